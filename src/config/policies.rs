//! Reads the TOML file that names the policies.
//!
//! Every fault of the file is reported with its path, all at once; unknown keys are faults. Settings are
//! layered: a bundled policy's default settings, the file's `settings` over them, an owners' section over
//! both, each replacing whole top-level keys of the one beneath. What comes out are values with the
//! components' bytes in them; nothing is compiled here, and what settings mean only the policy knows.
//!
//! ```toml
//! [[policy]]
//! source = "quota"                # a bundled policy, or a path from this file: "./mine.wasm"
//! name = "quota"                  # default: the bundled name, or the file's name without `.wasm`
//! mode = "enforce"                # or "shadow": asked and recorded, without a say; or "candidate"
//! of = "quota"                    # of a candidate: the policy it may come to stand for
//! digest = "sha256:…"             # the component must have it
//! sees_text = false               # whether it is shown the statements' texts
//! settings = { max_live = 3 }
//! owners."team-*" = { max_live = 10 }
//! limits = { fuel = 5000000, memory_kib = 8192, timeout_ms = 250 }
//! ```

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json};
use toml::{Table, Value};

use crate::model::{Code, Failure, Mode, fault};
use crate::policy::{
    Bundled, COMPONENT_BYTES_MAX, Component, Limits, POLICIES_MAX, SETTINGS_DEPTH_MAX, Section, Spec, pattern_fault,
};

/// The largest file, in bytes: settings are bounded further on.
pub const POLICY_FILE_BYTES_MAX: u64 = 1 << 20;

const FILE_KEYS: [&str; 1] = ["policy"];
const POLICY_KEYS: [&str; 9] = ["name", "source", "mode", "of", "digest", "sees_text", "settings", "owners", "limits"];
const LIMIT_KEYS: [&str; 3] = ["fuel", "memory_kib", "timeout_ms"];

/// Everything that is wrong with the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} cannot be used: {}", path.display(), listed(faults))]
pub struct PoliciesError {
    /// The file.
    pub path: PathBuf,
    /// At least one, in the file's order.
    pub faults: Vec<Fault>,
    /// The policies whose component and settings could be read all the same, so that fault can be found with the settings
    /// at once. They are for nothing else: what stands beside them may be wrong.
    pub legible: Vec<Spec>,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{message}", prefix(path))]
pub struct Fault {
    /// Where, `policy[1].settings` for instance; empty for the whole file.
    pub path: String,
    /// What is wrong and what would be accepted.
    pub message: String,
}

fn prefix(path: &str) -> String {
    if path.is_empty() { String::new() } else { format!("`{path}`: ") }
}

fn listed(faults: &[Fault]) -> String {
    faults.iter().map(Fault::to_string).collect::<Vec<_>>().join("; ")
}

impl From<PoliciesError> for Failure {
    fn from(error: PoliciesError) -> Self {
        Self::new(Code::InvalidConfiguration, error.to_string()).hint("correct the file; the reference lists its keys")
    }
}

/// Returns the bundled policies as they apply without a file: those of the default set, enforced, with their default settings.
///
/// # Errors
/// Fails if the program was built with a bundled policy that is not the one it should be.
pub fn defaults(bundled: &[Bundled]) -> Result<Vec<Spec>, PoliciesError> {
    let mut reader =
        Reader { bundled, directory: Path::new(""), faults: Vec::new(), legible: Vec::new(), names: Vec::new() };
    let specs = bundled.iter().filter(|one| one.by_default).filter_map(|one| {
        let (component, pin, beneath) = reader.bundled(one, one.name)?;
        Some(Spec {
            name: one.name.to_owned(),
            component,
            pin,
            mode: Mode::Enforce,
            of: None,
            settings: canonical(&beneath),
            sections: Vec::new(),
            limits: Limits::default(),
            sees_text: false,
        })
    });
    let specs = specs.collect();
    reader.finish(Path::new("the bundled policies"), specs)
}

/// Reads a file and the components it names.
///
/// # Errors
/// Returns everything that is wrong with the file.
pub fn load(path: &Path, bundled: &[Bundled]) -> Result<Vec<Spec>, PoliciesError> {
    let refuse = |message: String| {
        let fault = Fault { path: String::new(), message };
        PoliciesError { path: path.to_owned(), faults: vec![fault], legible: Vec::new() }
    };
    let bytes = read(path, POLICY_FILE_BYTES_MAX).map_err(&refuse)?;
    let text = String::from_utf8(bytes).map_err(|_| refuse("it is no UTF-8".to_owned()))?;
    parse(&text, path, bundled)
}

/// Returns the file itself and the components that it names, as far as it can be read: whatever is to be looked at to see
/// that it changed. Finds no fault; [`load`] does.
pub fn files(path: &Path) -> Vec<PathBuf> {
    let text = read(path, POLICY_FILE_BYTES_MAX).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let table = text.and_then(|text| text.parse::<Table>().ok()).unwrap_or_default();
    let entries = table.get("policy").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let sources = entries.iter().filter_map(|entry| entry.get("source")?.as_str()).filter(|source| is_file(source));
    let directory = path.parent().unwrap_or(Path::new(""));
    let components = sources.take(POLICIES_MAX).map(|source| directory.join(source));
    std::iter::once(path.to_owned()).chain(components).collect()
}

/// Reads the text of a file that lies at `path`, and the components it names.
///
/// # Errors
/// Returns everything that is wrong with the text.
pub fn parse(text: &str, path: &Path, bundled: &[Bundled]) -> Result<Vec<Spec>, PoliciesError> {
    let directory = path.parent().unwrap_or(Path::new(""));
    let mut reader = Reader { bundled, directory, faults: Vec::new(), legible: Vec::new(), names: Vec::new() };
    let specs = match text.parse::<Table>() {
        Ok(table) => reader.file(&table),
        Err(error) => {
            // The message alone: the rest quotes the line, in which a secret may stand.
            let line = error.span().map(|span| text.get(..span.start).unwrap_or(text).matches('\n').count() + 1);
            let at = line.map(|line| format!("line {line}: ")).unwrap_or_default();
            reader.fault("", format!("{at}{}", error.message().replace('\n', ", ")));
            Vec::new()
        }
    };
    reader.finish(path, specs)
}

/// Reads tables, and gathers what is wrong with them.
struct Reader<'a> {
    bundled: &'a [Bundled],
    directory: &'a Path,
    faults: Vec<Fault>,
    legible: Vec<Spec>,
    /// The names of all policies, those among them that are not sound.
    names: Vec<String>,
}

type Source = (Component, Option<String>, Map<String, Json>);

impl Reader<'_> {
    fn fault(&mut self, path: &str, message: impl Into<String>) {
        self.faults.push(Fault { path: path.to_owned(), message: message.into() });
    }

    fn finish(self, path: &Path, specs: Vec<Spec>) -> Result<Vec<Spec>, PoliciesError> {
        if self.faults.is_empty() {
            return Ok(specs);
        }
        Err(PoliciesError { path: path.to_owned(), faults: self.faults, legible: self.legible })
    }

    fn file(&mut self, table: &Table) -> Vec<Spec> {
        self.known("", table, &FILE_KEYS);
        match table.get("policy") {
            None => {
                self.fault(
                    "",
                    "no policy is named; begin one with `[[policy]]`, or leave the file out for the bundled ones",
                );
                Vec::new()
            }
            Some(Value::Array(entries)) => {
                let numbered = entries.iter().enumerate();
                let specs: Vec<Spec> = numbered
                    .filter_map(|(index, entry)| {
                        let path = format!("policy[{index}]");
                        let entry = self.table(&path, Some(entry))?;
                        self.policy(&path, entry)
                    })
                    .collect();
                self.distinct();
                specs
            }
            Some(other) => {
                self.wrong_type("policy", "a list of tables, `[[policy]]`", other);
                Vec::new()
            }
        }
    }

    fn distinct(&mut self) {
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        for name in std::mem::take(&mut self.names) {
            let count = seen.entry(name.clone()).or_default();
            *count += 1;
            if *count == 2 {
                self.fault("policy", format!("two policies have the name `{name}`; give one of them another `name`"));
            }
        }
    }

    fn policy(&mut self, path: &str, table: &Table) -> Option<Spec> {
        self.known(path, table, &POLICY_KEYS);
        let before = self.faults.len();
        let source = self.text(path, table, "source");
        if !table.contains_key("source") {
            self.fault(path, "`source` is missing; name a bundled policy or a file");
        }
        let found = source.and_then(|source| self.source(&format!("{path}.source"), source));
        let name = self.text(path, table, "name").map(str::to_owned);
        let name = name.or_else(|| source.and_then(default_name)).filter(|name| self.name(path, name));
        self.names.extend(name.clone());
        let mode = self.mode(path, table);
        let of = self.text(path, table, "of").map(str::to_owned);
        let sees_text = self.boolean(path, table, "sees_text").unwrap_or(false);
        let digest = self.digest(path, table);
        let limits = self.limits(path, table);
        let before_settings = self.faults.len();
        let own = self.settings(&format!("{path}.settings"), table.get("settings"));
        let owners = self.owners(path, table);
        let settings_are_read = self.faults.len() == before_settings;
        let (component, pin, mut settings) = found?;
        if let Some(digest) = digest.as_ref().filter(|digest| digest.as_str() != component.sha256()) {
            let message = format!("the component's digest is `sha256:{}`, not `sha256:{digest}`", component.sha256());
            self.fault(&format!("{path}.digest"), message);
        }
        settings.extend(own);
        let sections = owners
            .into_iter()
            .map(|(pattern, section)| {
                let mut layered = settings.clone();
                layered.extend(section);
                Section { pattern, settings: canonical(&layered) }
            })
            .collect();
        let name = name?;
        let sound = self.faults.len() == before;
        let spec = Spec {
            name,
            component,
            pin: if sound { digest.or(pin) } else { None },
            mode: mode.unwrap_or(Mode::Enforce),
            of,
            settings: canonical(&settings),
            sections,
            limits: if sound { limits } else { Limits::default() },
            sees_text,
        };
        if settings_are_read {
            self.legible.push(spec.clone());
        }
        sound.then_some(spec)
    }

    fn name(&mut self, path: &str, name: &str) -> bool {
        let letters = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_.".contains(&b));
        let good = letters && (1..=64).contains(&name.len());
        if !good {
            let path = format!("{path}.name");
            self.fault(
                &path,
                "a name has 1 to 64 lower-case letters, digits, `-`, `_` or `.`; give the policy a `name`",
            );
        }
        good
    }

    fn source(&mut self, path: &str, source: &str) -> Option<Source> {
        if source.starts_with("oci:") || source.contains("://") {
            self.fault(
                path,
                "policies from registries are not supported yet; download the component and name the file",
            );
            return None;
        }
        if !is_file(source) {
            let bundled = self.bundled;
            return match bundled.iter().find(|one| one.name == source) {
                Some(one) => self.bundled(one, path),
                None => {
                    let names: Vec<_> = bundled.iter().map(|one| one.name).collect();
                    let message = format!("there is no bundled policy `{source}`{}", meant(source, &names));
                    self.fault(path, format!("{message}; a file is named with a `/` or by its ending `.wasm`"));
                    None
                }
            };
        }
        let file = self.directory.join(source);
        match read(&file, COMPONENT_BYTES_MAX as u64) {
            Ok(bytes) => Some((Component::new(bytes), None, Map::new())),
            Err(message) => {
                self.fault(path, format!("`{}`: {message}", file.display()));
                None
            }
        }
    }

    fn bundled(&mut self, one: &Bundled, path: &str) -> Option<Source> {
        let component = Component::new(one.component);
        if component.sha256() != one.sha256 {
            self.fault(path, format!("the bundled policy `{}` is not the one this program was built for", one.name));
            return None;
        }
        match serde_json::from_str(one.default_settings) {
            Ok(settings) => Some((component, Some(one.sha256.to_owned()), settings)),
            Err(error) => {
                self.fault(path, format!("the default settings of the bundled policy `{}`: {error}", one.name));
                None
            }
        }
    }

    fn mode(&mut self, path: &str, table: &Table) -> Option<Mode> {
        match self.text(path, table, "mode") {
            None => Some(Mode::Enforce),
            Some("enforce") => Some(Mode::Enforce),
            Some("shadow") => Some(Mode::Shadow),
            Some("candidate") => Some(Mode::Candidate),
            Some(other) => {
                let message = format!("it is no mode{}", meant(other, &["enforce", "shadow", "candidate"]));
                self.fault(&format!("{path}.mode"), message);
                None
            }
        }
    }

    /// Reads a digest, without its `sha256:`.
    fn digest(&mut self, path: &str, table: &Table) -> Option<String> {
        let text = self.text(path, table, "digest")?;
        let digits = text.strip_prefix("sha256:").unwrap_or_default();
        if digits.len() == 64 && digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
            return Some(digits.to_owned());
        }
        self.fault(&format!("{path}.digest"), "a digest is `sha256:` and 64 lower-case hexadecimal digits");
        None
    }

    fn limits(&mut self, path: &str, table: &Table) -> Limits {
        let mut limits = Limits::default();
        let path = format!("{path}.limits");
        let Some(given) = self.table(&path, table.get("limits")) else { return limits };
        self.known(&path, given, &LIMIT_KEYS);
        if let Some(fuel) = self.number(&path, given, "fuel") {
            limits.fuel = fuel;
        }
        if let Some(kib) = self.number(&path, given, "memory_kib") {
            limits.memory_bytes = usize::try_from(kib).unwrap_or(usize::MAX).saturating_mul(1024);
        }
        if let Some(ms) = self.number(&path, given, "timeout_ms") {
            limits.timeout_ms = ms;
        }
        limits
    }

    fn owners(&mut self, path: &str, table: &Table) -> Vec<(String, Map<String, Json>)> {
        let path = format!("{path}.owners");
        let Some(sections) = self.table(&path, table.get("owners")) else { return Vec::new() };
        let mut read = Vec::new();
        for (pattern, section) in sections {
            let at = format!("{path}.\"{pattern}\"");
            if let Some(fault) = pattern_fault(pattern) {
                self.fault(&at, fault);
            }
            read.push((pattern.clone(), self.settings(&at, Some(section))));
        }
        read
    }

    fn settings(&mut self, path: &str, value: Option<&Value>) -> Map<String, Json> {
        let Some(table) = self.table(path, value) else { return Map::new() };
        let entries =
            table.iter().filter_map(|(key, value)| Some((key.clone(), self.json(&format!("{path}.{key}"), value, 1)?)));
        entries.collect()
    }

    fn json(&mut self, path: &str, value: &Value, depth: usize) -> Option<Json> {
        if depth >= SETTINGS_DEPTH_MAX {
            self.fault(path, format!("settings are nested deeper than {SETTINGS_DEPTH_MAX}"));
            return None;
        }
        match value {
            Value::String(text) => Some(Json::String(text.clone())),
            Value::Integer(number) => Some(Json::from(*number)),
            Value::Boolean(truth) => Some(Json::Bool(*truth)),
            Value::Float(number) => {
                let number = serde_json::Number::from_f64(*number).map(Json::Number);
                if number.is_none() {
                    self.fault(path, "settings are JSON, which has no infinities and no `nan`");
                }
                number
            }
            Value::Datetime(_) => {
                self.fault(path, "settings are JSON, which has no dates; put it in quotes");
                None
            }
            Value::Array(items) => {
                let items = items.iter().enumerate();
                Some(items.filter_map(|(n, item)| self.json(&format!("{path}[{n}]"), item, depth + 1)).collect())
            }
            Value::Table(table) => {
                let entries = table.iter().filter_map(|(key, value)| {
                    Some((key.clone(), self.json(&format!("{path}.{key}"), value, depth + 1)?))
                });
                Some(Json::Object(entries.collect()))
            }
        }
    }

    fn known(&mut self, path: &str, table: &Table, keys: &[&str]) {
        for key in table.keys().filter(|key| !keys.contains(&key.as_str())) {
            self.fault(path, format!("there is no key `{key}`{}", meant(key, keys)));
        }
    }

    fn text<'t>(&mut self, path: &str, table: &'t Table, key: &str) -> Option<&'t str> {
        let value = table.get(key)?;
        let text = value.as_str();
        if text.is_none() {
            self.wrong_type(&format!("{path}.{key}"), "text in quotes", value);
        }
        text
    }

    fn boolean(&mut self, path: &str, table: &Table, key: &str) -> Option<bool> {
        let value = table.get(key)?;
        let truth = value.as_bool();
        if truth.is_none() {
            self.wrong_type(&format!("{path}.{key}"), "`true` or `false`", value);
        }
        truth
    }

    fn number(&mut self, path: &str, table: &Table, key: &str) -> Option<u64> {
        let value = table.get(key)?;
        let number = value.as_integer().and_then(|number| u64::try_from(number).ok());
        if number.is_none() {
            self.wrong_type(&format!("{path}.{key}"), "a whole number of zero or more", value);
        }
        number
    }

    fn table<'t>(&mut self, path: &str, value: Option<&'t Value>) -> Option<&'t Table> {
        let value = value?;
        let table = value.as_table();
        if table.is_none() {
            self.wrong_type(path, "a table", value);
        }
        table
    }

    fn wrong_type(&mut self, path: &str, wanted: &str, found: &Value) {
        self.fault(path, format!("{wanted} is wanted here, and it is {}", found.type_str()));
    }
}

/// Tells a file from a bundled policy's name.
fn is_file(source: &str) -> bool {
    source.contains('/') || source.ends_with(".wasm")
}

fn default_name(source: &str) -> Option<String> {
    if !is_file(source) {
        return Some(source.to_owned());
    }
    Path::new(source).file_stem().and_then(|stem| stem.to_str()).map(str::to_owned)
}

/// Words the nearest of the names that would have been accepted, or all if none is near.
fn meant(given: &str, names: &[&str]) -> String {
    let near = names.iter().map(|name| (strsim::damerau_levenshtein(given, name), name)).min();
    match near {
        Some((distance, name)) if distance <= 3 && distance < name.len() => format!("; is `{name}` meant?"),
        Some(_) => {
            let all: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
            format!("; there are {}", all.join(", "))
        }
        None => String::new(),
    }
}

fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    fault::reach("policy.file.read").map_err(|error| format!("it cannot be read: {}", io::Error::from(error)))?;
    let file = super::file::open(path).map_err(|error| format!("it cannot be read: {error}"))?;
    let found = file.metadata().map_err(|error| format!("it cannot be read: {error}"))?;
    if let Some(fault) = super::writers::fault_of(path, &found) {
        return Err(format!("it {fault}"));
    }
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(|error| format!("it cannot be read: {error}"))?;
    if bytes.len() as u64 > bytes_max {
        return Err(format!("it has more than {bytes_max} bytes"));
    }
    Ok(bytes)
}

/// Writes an object as JSON with its keys in order at every depth, so that equal settings have equal texts.
pub fn canonical(object: &Map<String, Json>) -> String {
    sorted(&Json::Object(object.clone())).to_string()
}

fn sorted(value: &Json) -> Json {
    match value {
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => value.clone(),
        Json::Array(items) => items.iter().map(sorted).collect(),
        Json::Object(object) => {
            let ordered: BTreeMap<_, _> = object.iter().collect();
            Json::Object(ordered.into_iter().map(|(key, value)| (key.clone(), sorted(value))).collect())
        }
    }
}

#[cfg(test)]
#[path = "policies_tests.rs"]
mod tests;
