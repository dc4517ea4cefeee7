//! The configuration file.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;

use super::environment::{Common, Environment};
use super::keys::{EXPORT_TIMEOUT_MS_DEFAULT, QUEUE_SPANS_DEFAULT, VARIABLE_PREFIX};
use super::node::Node;
use super::read::{Faults, Found, Reader, shown};
use super::resolve::{ProfileInput, profiles};
use super::sources::sources;
use super::{CommandsConfig, Config, Source, StateDir, UnusableSourceConfig, seen_from, writers};
use crate::audit::{AuditSettings, ROTATE_BYTES_DEFAULT, SYNC_INTERVAL_DEFAULT, Sync};
use crate::command::Confinement;
use crate::model::{Secret, fault, place_in_text};
use crate::telemetry::{ExportSettings, OtlpProtocol, TelemetrySettings, endpoint_fault, header_fault};

/// The largest file that is read: a thousand profiles fit.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Where OpenTelemetry programs are told of a collector.
const OTLP_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
/// Says how spans go there.
const OTLP_PROTOCOL: &str = "OTEL_EXPORTER_OTLP_PROTOCOL";

pub(super) fn load(path: &Path, environment: &Environment, common: Common, faults: &Faults) -> Option<Config> {
    let place = path.display().to_string();
    let text = match read(path) {
        Ok(text) => text,
        Err(what) => {
            faults.add(place, what);
            return None;
        }
    };
    let entries = match serde_json::from_str::<Node>(&text) {
        Ok(Node::Object(entries)) => entries,
        Ok(other) => {
            faults.add(place, format!("holds {}; expected an object", other.kind()));
            return None;
        }
        // The library's own text may show a piece of the file.
        Err(fault) => {
            faults.add(place, format!("is not JSON: look at {}", place_in_text(fault.line(), fault.column())));
            return None;
        }
    };
    let base = path.parent().unwrap_or(Path::new(""));
    let root = Reader::root(&entries, faults);
    let inputs = match root.objects("profiles") {
        Some(items) if items.is_empty() => {
            faults.add("profiles", "is empty; leave it out for a managed profile");
            Vec::new()
        }
        Some(items) => items.iter().map(profile).collect(),
        None if root.has("profiles") => Vec::new(),
        None => vec![managed()],
    };
    let default = root.text("defaultProfile");
    let profiles = profiles(inputs, default, &common.bin_dirs, faults);
    let items = root.objects("sources").unwrap_or_default();
    let source_url_here = items.iter().any(|item| item.has("url"));
    let known = profiles.as_ref().map(|(profiles, _)| profiles.as_slice());
    let (sources, unusable_sources) = sources(items, known, environment, faults);
    let policies = root.text("policies").and_then(|found| existing_file(base, &found, faults));
    let key_command = root.texts("keyCommand").and_then(|found| key_command(found, faults));
    let audit = audit(&root, &common.home, faults);
    let commands = root.object("commands").map(|commands| self::commands(&commands, faults)).unwrap_or_default();
    let export = root.object("telemetry").and_then(|telemetry| export(&telemetry, environment, faults));
    let (profiles, default_profile) = profiles?;
    let admin_url = profiles.iter().any(|profile| matches!(profile.source, Source::External { .. }));
    let source_url = source_url_here && sources.iter().any(|source| source.url.credentials.password.is_some());
    let mut warnings = warnings(path, admin_url, source_url);
    let unusable = |source: &UnusableSourceConfig| format!("source `{}` cannot be used: {}", source.name, source.why());
    warnings.extend(unusable_sources.iter().map(unusable));
    Some(Config {
        home: common.home,
        profiles,
        default_profile,
        sources,
        unusable_sources,
        bin_dirs: common.bin_dirs,
        policies,
        key_command,
        audit,
        commands,
        telemetry: TelemetrySettings { log_filter: common.log_filter, export },
        owner: common.owner,
        file: Some(path.to_path_buf()),
        warnings,
    })
}

/// Opens a regular file and nothing else: a pipe would be waited for until somebody writes to it.
pub(super) fn open(path: &Path) -> io::Result<fs::File> {
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_file() || kind.is_dir() { Ok(file) } else { Err(io::Error::other("it is no regular file")) }
}

fn read(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    fault::reach("file.config.read").map_err(|fault| format!("cannot be read: {}", io::Error::from(fault)))?;
    let file = open(path).map_err(|fault| format!("cannot be read: {fault}"))?;
    let found = file.metadata().map_err(|fault| format!("cannot be read: {fault}"))?;
    if let Some(fault) = writers::fault_of(path, &found) {
        return Err(fault);
    }
    let bytes = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
    match bytes {
        Ok(bytes) if bytes as u64 > FILE_BYTES_MAX => Err(format!("is over {FILE_BYTES_MAX} bytes")),
        Ok(_) => Ok(text),
        Err(fault) => Err(format!("cannot be read: {fault}")),
    }
}

fn profile(reader: &Reader<'_>) -> ProfileInput {
    ProfileInput {
        place: reader.place().to_owned(),
        name: reader.text("name"),
        admin_url: reader.secret("adminUrl"),
        managed: reader.flag("managedLocal"),
        postgres_version: reader.version("postgresVersion"),
        prefix: reader.text("databasePrefix"),
        default_ttl_minutes: reader.number("defaultTtlMinutes"),
        max_ttl_minutes: reader.number("maxTtlMinutes"),
        max_active: reader.number("maxActiveDatabasesPerOwner"),
        allowed_extensions: reader.texts("allowedExtensions"),
        allow_external: reader.flag("allowExternalAdminUrl"),
        allowed_admin_hosts: reader.texts("allowedAdminHosts"),
    }
}

/// Returns the profile of a file that names none.
fn managed() -> ProfileInput {
    ProfileInput {
        place: "profiles".to_owned(),
        name: Some(Found { value: "local".to_owned(), place: "profiles".to_owned() }),
        managed: Some(Found { value: true, place: "profiles".to_owned() }),
        ..Default::default()
    }
}

fn existing_file(base: &Path, found: &Found<String>, faults: &Faults) -> Option<PathBuf> {
    let path = seen_from(base, &found.value);
    if path.is_file() {
        return Some(path);
    }
    faults.add(&found.place, format!("is not a file: `{}`", shown(&path.display().to_string())));
    None
}

fn key_command(found: Found<Vec<String>>, faults: &Faults) -> Option<Vec<String>> {
    check_program(&found, faults);
    Some(found.value)
}

/// Checks the words of a program whose answer is a secret: that it is named by its path, and that only we or root could
/// have written it. Nothing is run before it is needed.
pub(super) fn check_program(words: &Found<Vec<String>>, faults: &Faults) {
    let Some(program) = words.value.first().map(Path::new).filter(|program| program.is_absolute()) else {
        faults.add(&words.place, "does not begin with the absolute path of a program");
        return;
    };
    if let Some(fault) = writers::fault_at(program) {
        let program = program.display().to_string();
        faults.add(&words.place, format!("names the program `{}`, which {fault}", program.escape_default()));
    }
}

fn audit(root: &Reader<'_>, home: &StateDir, faults: &Faults) -> AuditSettings {
    let mut settings = AuditSettings {
        dir: home.audit(),
        sync: Sync::Every(SYNC_INTERVAL_DEFAULT),
        rotate_bytes: ROTATE_BYTES_DEFAULT,
    };
    let Some(audit) = root.object("audit") else { return settings };
    if let Some(dir) = audit.text("dir") {
        if !Path::new(&dir.value).is_absolute() {
            faults.add(&dir.place, "is not an absolute path");
        }
        settings.dir = PathBuf::from(dir.value);
    }
    let interval = audit.number("syncIntervalMs");
    if let Some(interval) = &interval {
        settings.sync = Sync::Every(Duration::from_millis(interval.value));
    }
    if audit.word("sync").is_some_and(|word| word.value == "always") {
        if let Some(interval) = interval {
            faults.add(interval.place, "does not count with `sync` `always`; remove one of them");
        }
        settings.sync = Sync::Always;
    }
    if let Some(bytes) = audit.number("rotateBytes") {
        settings.rotate_bytes = bytes.value;
    }
    settings
}

fn commands(commands: &Reader<'_>, faults: &Faults) -> CommandsConfig {
    let paths = |key: &str| {
        let Some(found) = commands.texts(key) else { return Vec::new() };
        if found.value.iter().any(|path| !Path::new(path).is_absolute()) {
            faults.add(&found.place, "holds something that is not an absolute path");
        }
        found.value.into_iter().map(PathBuf::from).collect()
    };
    let environment = commands.texts("environment").map(|found| {
        let is_name = |name: &String| {
            let letters = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
            letters && !name.is_empty() && !name.starts_with(VARIABLE_PREFIX) && !name.starts_with("LD_")
        };
        if !found.value.iter().all(is_name) {
            let text =
                format!("holds something that is no variable's name, or begins with `{VARIABLE_PREFIX}` or `LD_`");
            faults.add(&found.place, text);
        }
        found.value
    });
    let confinement = match commands.word("confinement").as_ref().map(|found| found.value) {
        Some("available") => Confinement::WhenAvailable,
        Some(_) | None => Confinement::Required,
    };
    CommandsConfig {
        confinement,
        repositories: paths("repositories"),
        readable: paths("readable"),
        writable: paths("writable"),
        environment: environment.unwrap_or_default(),
    }
}

fn export(telemetry: &Reader<'_>, environment: &Environment, faults: &Faults) -> Option<ExportSettings> {
    // All keys are read even if nothing is exported, so that their faults do not wait for the day it is.
    let enabled = telemetry.flag("enabled");
    let endpoint = telemetry.text("endpoint");
    let protocol = telemetry.word("protocol");
    let timeout_ms = telemetry.number("timeoutMs").map_or(EXPORT_TIMEOUT_MS_DEFAULT, |found| found.value);
    let queue_spans = telemetry.number("queueSpans").map_or(QUEUE_SPANS_DEFAULT, |found| found.value);
    let names = telemetry.map("headersFromEnv");
    if enabled.is_none() && !telemetry.has("enabled") {
        faults.add("telemetry.enabled", "is missing; say `true` or `false`");
    }
    let enabled = enabled.is_some_and(|found| found.value);
    let protocol = match protocol {
        // The two variables are one statement: what goes to a URL of ours is not said by somebody else's.
        None if enabled && !telemetry.has("endpoint") && !telemetry.has("protocol") => {
            environment.text(OTLP_PROTOCOL, faults)
        }
        protocol => protocol.map(|found| Found { place: found.place, value: found.value.to_owned() }),
    };
    let protocol = protocol.and_then(|found| {
        let known = OtlpProtocol::of_word(&found.value);
        if known.is_none() {
            let words = OtlpProtocol::WORDS.join("`, `");
            faults.add(&found.place, format!("is not a protocol that spans can be sent by; those are `{words}`"));
        }
        known
    });
    let protocol = protocol.unwrap_or_default();
    let endpoint = match endpoint {
        None if enabled && !telemetry.has("endpoint") => environment.text(OTLP_ENDPOINT, faults).or_else(|| {
            faults.add("telemetry.endpoint", format!("is missing, and `{OTLP_ENDPOINT}` is not set either"));
            None
        }),
        endpoint => endpoint,
    };
    if let Some(endpoint) = &endpoint
        && let Some(what) = endpoint_fault(&endpoint.value)
    {
        faults.add(&endpoint.place, what);
    }
    let mut headers = Vec::new();
    for (header, variable) in names.as_ref().map(|found| found.value.as_slice()).unwrap_or_default() {
        let place = format!("telemetry.headersFromEnv.{}", shown(header));
        match environment.raw(variable).and_then(|value| value.to_str()) {
            Some(value) => {
                if let Some(what) = header_fault(header, value) {
                    faults.add(place, what);
                }
                headers.push((header.clone(), Secret::new(value)));
            }
            None if enabled => faults.add(place, format!("names `{}`, which is not set", shown(variable))),
            None => {}
        }
    }
    let timeout = Duration::from_millis(timeout_ms);
    let queue_spans = usize::try_from(queue_spans).unwrap_or(usize::MAX);
    enabled
        .then(|| Some(ExportSettings { endpoint: endpoint?.value, protocol, headers, timeout, queue_spans }))
        .flatten()
}

/// Says if others can read URLs in the file that let somebody in.
fn warnings(path: &Path, admin_url: bool, source_url: bool) -> Vec<String> {
    let mode = fs::metadata(path).map_or(0, |meta| meta.permissions().mode());
    let what = match (admin_url, source_url) {
        (true, _) => "an admin URL",
        (false, true) => "the password of a source",
        (false, false) => return Vec::new(),
    };
    if mode & 0o077 == 0 {
        return Vec::new();
    }
    vec![format!("`{}` holds {what} and others may read it; `chmod 600` it", path.display())]
}
