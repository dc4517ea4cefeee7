//! Makes profiles of what was read, from a file or from variables alike, and checks what no type says.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::keys::{PREFIX_DEFAULT, VARIABLE_PREFIX};
use super::read::{Faults, Found, shown};
use super::{BinDirs, ProfileConfig, Source};
use crate::engine::postgres::{Host, PARAMETERS_SUPPORTED, PostgresUrl, UrlError, UrlOrigin};
use crate::model::limits::{TTL_MINUTES_DEFAULT, TTL_MINUTES_MAX_DEFAULT};
use crate::model::{Secret, prefix_fault};

/// Extensions that reach other servers or files, or run untrusted code: no configuration may allow them.
const EXTENSIONS_NEVER: [&str; 8] =
    ["adminpack", "dblink", "file_fdw", "plperlu", "plpython3u", "plpythonu", "pltclu", "postgres_fdw"];
/// The longest name of a profile or source, in bytes.
const PROFILE_NAME_BYTES_MAX: usize = 64;
/// The longest name of an extension, in bytes, as Postgres keeps it.
const EXTENSION_NAME_BYTES_MAX: usize = 63;

/// A profile as read: each value with its place, faults of type and range noted already.
#[derive(Default)]
pub(super) struct ProfileInput {
    pub(super) place: String,
    pub(super) name: Option<Found<String>>,
    pub(super) admin_url: Option<Found<Secret>>,
    pub(super) managed: Option<Found<bool>>,
    pub(super) postgres_version: Option<Found<u16>>,
    pub(super) prefix: Option<Found<String>>,
    pub(super) default_ttl_minutes: Option<Found<u64>>,
    pub(super) max_ttl_minutes: Option<Found<u64>>,
    pub(super) max_active: Option<Found<u64>>,
    pub(super) allowed_extensions: Option<Found<Vec<String>>>,
    pub(super) allow_external: Option<Found<bool>>,
    pub(super) allowed_admin_hosts: Option<Found<Vec<String>>>,
}

/// Returns the profiles and the default one's name; what is returned is used only if no fault was noted.
pub(super) fn profiles(
    inputs: Vec<ProfileInput>,
    default: Option<Found<String>>,
    bin_dirs: &BinDirs,
    faults: &Faults,
) -> Option<(Vec<ProfileConfig>, String)> {
    let mut names = BTreeSet::new();
    let several = inputs.len() > 1;
    let mut profiles: Vec<ProfileConfig> = Vec::new();
    for input in inputs {
        if let Some(name) = &input.name
            && !names.insert(name.value.clone())
        {
            faults.add(&name.place, format!("names a second profile `{}`", shown(&name.value)));
        }
        let place = input.place.clone();
        let Some(profile) = profile(input, bin_dirs, faults) else { continue };
        if let Some(other) =
            profiles.iter().find(|other| other.name != profile.name && share_sandboxes(other, &profile))
        {
            faults.add(place, one_server(&other.name, &profile.name, matches!(profile.source, Source::Managed { .. })));
        }
        profiles.push(profile);
    }
    let default_profile = match default {
        Some(default) if names.contains(&default.value) => default.value,
        Some(default) => {
            let known = names.iter().map(|name| format!("`{}`", shown(name))).collect::<Vec<_>>().join(", ");
            faults.add(default.place, format!("names no profile; there are {known}"));
            return None;
        }
        None if several => {
            faults.add("defaultProfile", "is missing; there are several profiles, say which one calls without one use");
            return None;
        }
        None => profiles.first()?.name.clone(),
    };
    Some((profiles, default_profile))
}

/// Returns whether two profiles keep their sandboxes in one place, as far as that can be told without asking a server:
/// each would list, count and remove the other's.
fn share_sandboxes(one: &ProfileConfig, other: &ProfileConfig) -> bool {
    if one.prefix != other.prefix {
        return false;
    }
    match (&one.source, &other.source) {
        // Each major has a cluster of its own; without one it is whichever is there.
        (Source::Managed { postgres_version: one, .. }, Source::Managed { postgres_version: other, .. }) => {
            one.is_none() || other.is_none() || one == other
        }
        (Source::External { admin_url: one, .. }, Source::External { admin_url: other, .. }) => {
            let place = |url: &Secret| {
                let parsed = PostgresUrl::parse(url.expose(), UrlOrigin::Operator).ok()?;
                Some((parsed.endpoint.host, parsed.endpoint.port, parsed.database))
            };
            // One that cannot be read is a fault already.
            place(one).is_some_and(|one| Some(one) == place(other))
        }
        (Source::Managed { .. }, Source::External { .. }) | (Source::External { .. }, Source::Managed { .. }) => false,
    }
}

fn one_server(first: &str, second: &str, managed: bool) -> String {
    let (where_, or) = if managed {
        ("the managed cluster", ", or each another `postgresVersion`")
    } else {
        ("the same server and database", "")
    };
    format!(
        "makes profile `{second}` one with profile `{first}`: both are on {where_} with one `databasePrefix`, and would list, \
         count and remove each other's sandboxes; give one of them another `databasePrefix`{or}"
    )
}

fn profile(input: ProfileInput, bin_dirs: &BinDirs, faults: &Faults) -> Option<ProfileConfig> {
    let name = name(&input, faults);
    let prefix = match &input.prefix {
        None => PREFIX_DEFAULT.to_owned(),
        Some(prefix) => {
            if let Some(what) = prefix_fault(&prefix.value) {
                // The text shows the prefix, unless what stands there may be a secret.
                let text =
                    if shown(&prefix.value) == prefix.value { what } else { "is not a database prefix".to_owned() };
                faults.add(&prefix.place, format!("cannot be used: {text}"));
            }
            prefix.value.clone()
        }
    };
    let max_ttl_minutes = input.max_ttl_minutes.as_ref().map_or(TTL_MINUTES_MAX_DEFAULT, |found| found.value);
    let default_ttl_minutes = match &input.default_ttl_minutes {
        None => TTL_MINUTES_DEFAULT.min(max_ttl_minutes),
        Some(default) => {
            if default.value > max_ttl_minutes {
                faults.add(
                    &default.place,
                    format!("is {}, over the longest life of {max_ttl_minutes} minutes", default.value),
                );
            }
            default.value
        }
    };
    let source = source(&input, bin_dirs, faults);
    let allowed_extensions = input.allowed_extensions.map(|found| extensions(found, faults));
    Some(ProfileConfig {
        name: name?,
        source: source?,
        prefix,
        default_ttl_minutes,
        max_ttl_minutes,
        allowed_extensions,
        max_active_databases_per_owner: input.max_active.map(|found| found.value),
    })
}

fn name(input: &ProfileInput, faults: &Faults) -> Option<String> {
    let Some(name) = &input.name else {
        faults.add(format!("{}.name", input.place), "is missing");
        return None;
    };
    if let Some(text) = name_fault(&name.value) {
        faults.add(&name.place, text);
        return None;
    }
    Some(name.value.clone())
}

/// Says why a text is no name of a profile or source.
pub(super) fn name_fault(name: &str) -> Option<String> {
    let letters = name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'));
    (!letters || name.len() > PROFILE_NAME_BYTES_MAX)
        .then(|| format!("is not 1 to {PROFILE_NAME_BYTES_MAX} letters, digits, `_`, `.` or `-`"))
}

/// Says what is wrong with a URL without showing a piece of it that may be a password's.
pub(super) fn url_fault(fault: &UrlError) -> String {
    // An unescaped `?` or `&` makes a piece of the password look like a parameter's name.
    let supported = || PARAMETERS_SUPPORTED.map(|name| format!("`{name}`")).join(", ");
    if let UrlError::Parameter(name) = fault {
        // One of a fixed list: no password shows through.
        return format!("has the parameter `{name}`, which is not supported; remove it; supported are {}", supported());
    }
    if matches!(fault, UrlError::Unknown | UrlError::Twice(_)) {
        return format!(
            "has a parameter that is not known or stands twice; is a special character not percent-encoded? supported are {}",
            supported()
        );
    }
    format!("cannot be used: {fault}")
}

fn source(input: &ProfileInput, bin_dirs: &BinDirs, faults: &Faults) -> Option<Source> {
    let postgres_version = input.postgres_version.as_ref().map(|found| found.value);
    let managed = input.managed.as_ref().is_some_and(|found| found.value);
    let hosts = input.allowed_admin_hosts.as_ref().map(|found| hosts(found, faults)).unwrap_or_default();
    match (&input.admin_url, managed) {
        (None, true) => Some(Source::Managed { postgres_version, bin_dirs: bin_dirs.clone() }),
        (Some(url), false) => {
            let allow_external = input.allow_external.as_ref().is_some_and(|found| found.value);
            check_admin_url(url, allow_external, &hosts, faults);
            let admin_url = url.value.clone();
            Some(Source::External { admin_url, allow_external, allowed_admin_hosts: hosts, postgres_version })
        }
        (Some(url), true) => {
            faults.add(&url.place, "stands beside `managedLocal`; a profile has one or the other");
            None
        }
        (None, false) => {
            faults.add(&input.place, "has neither a usable `adminUrl` nor `managedLocal: true`");
            None
        }
    }
}

/// Checks an admin URL with the parser that is used to connect, and its host against what is allowed.
fn check_admin_url(url: &Found<Secret>, allow_external: bool, hosts: &[String], faults: &Faults) {
    let parsed = match PostgresUrl::parse(url.value.expose(), UrlOrigin::Operator) {
        Ok(parsed) => parsed,
        Err(fault) => {
            faults.add(&url.place, url_fault(&fault));
            return;
        }
    };
    let Host::Tcp(host) = &parsed.endpoint.host else { return };
    let allowed = is_this_machine(host) || if hosts.is_empty() { allow_external } else { hosts.contains(host) };
    if !allowed {
        let (hosts, any) = match url.place.starts_with(VARIABLE_PREFIX) {
            true => ("PGSANDBOX_ALLOWED_ADMIN_HOSTS", "PGSANDBOX_ALLOW_EXTERNAL_ADMIN_URL"),
            false => ("allowedAdminHosts", "allowExternalAdminUrl"),
        };
        let text = format!("names the host `{host}`, which is not this machine; allow it by `{hosts}` or `{any}`");
        faults.add(&url.place, text);
    }
}

fn is_this_machine(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

fn hosts(found: &Found<Vec<String>>, faults: &Faults) -> Vec<String> {
    let mut hosts = Vec::new();
    for host in &found.value {
        let letters = host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b':'));
        if host.is_empty() || host.len() > 253 || !letters {
            faults.add(&found.place, "holds something that is no host name or address");
            continue;
        }
        // As the URL parser writes it: names in lower case, addresses in their shortest form.
        hosts.push(host.parse::<IpAddr>().map_or_else(|_| host.to_ascii_lowercase(), |address| address.to_string()));
    }
    hosts
}

fn extensions(found: Found<Vec<String>>, faults: &Faults) -> Vec<String> {
    let mut seen = BTreeSet::new();
    for extension in &found.value {
        let letters =
            extension.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'_' | b'-'));
        if extension.is_empty() || extension.len() > EXTENSION_NAME_BYTES_MAX || !letters {
            faults.add(&found.place, "holds something that is no extension's name");
        } else if EXTENSIONS_NEVER.contains(&extension.as_str()) {
            faults.add(
                &found.place,
                format!("holds `{extension}`, which would lead out of a sandbox and is never allowed"),
            );
        } else if !seen.insert(extension) {
            faults.add(&found.place, format!("holds `{extension}` twice"));
        }
    }
    found.value
}
