//! The environment: which configuration applies, and the variables that are one.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::keys::{Kind, TEST_PREFIX, VARIABLE_PREFIX, VARIABLES, Variable, VariableScope, key_at};
use super::read::{Faults, Found, major, range, shown, unknown, version_expected};
use super::resolve::{ProfileInput, profiles};
use super::{BinDirs, CommandsConfig, Config, ConfigError, StateDir, file};
use crate::audit::{AuditSettings, ROTATE_BYTES_DEFAULT, SYNC_INTERVAL_DEFAULT, Sync};
use crate::model::Secret;
use crate::telemetry::{TelemetrySettings, filter_fault};

/// Where state is kept as root: a place that the managed cluster's own user can reach.
const HOME_OF_ROOT: &str = "/var/lib/pgsandbox";
/// Where state is kept in a user's own home.
const HOME_OF_USER: &str = ".pgsandbox";
/// Variables of a pattern: `PGSANDBOX_POSTGRES_16_BIN_DIR`.
const MAJOR_BIN_DIR: (&str, &str) = ("PGSANDBOX_POSTGRES_", "_BIN_DIR");

/// What a process is told by its surroundings, as values.
#[derive(Clone, PartialEq, Eq)]
pub struct Environment {
    /// All variables.
    variables: BTreeMap<OsString, OsString>,
    /// Whether the process runs as root.
    root: bool,
}

impl fmt::Debug for Environment {
    /// Shows names alone.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment").field("names", &self.variables.keys()).field("root", &self.root).finish()
    }
}

impl Environment {
    /// Returns that of this process.
    pub fn of_process() -> Self {
        Self { variables: std::env::vars_os().collect(), root: rustix::process::geteuid().is_root() }
    }

    /// Returns one of the given variables.
    pub fn of<K: Into<OsString>, V: Into<OsString>>(variables: impl IntoIterator<Item = (K, V)>, root: bool) -> Self {
        Self { variables: variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect(), root }
    }

    /// Sets a variable, as an option of the command line does.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }

    pub(super) fn raw(&self, name: &str) -> Option<&OsStr> {
        self.variables.get(OsStr::new(name)).map(OsString::as_os_str)
    }

    /// Returns a variable's text; one that is there and cannot be read is a fault.
    pub(super) fn text(&self, name: &str, faults: &Faults) -> Option<Found<String>> {
        let raw = self.raw(name)?;
        match raw.to_str() {
            Some("") => faults.add(name, "is set and empty; give it a value or unset it"),
            Some(text) => return Some(Found { value: text.to_owned(), place: name.to_owned() }),
            None => faults.add(name, "is not valid UTF-8"),
        }
        None
    }
}

impl Environment {
    /// Returns what another process has to be given to meet the same state directory, servers and owner, in the order of
    /// the reference page: variables that this program reads and that hold no secret. Whatever directory it is started in,
    /// it finds the same files.
    pub fn repeatable(&self) -> Vec<(String, String)> {
        let mut found: Vec<_> = self.set().filter(|(name, _)| is_repeatable(name)).collect();
        for (name, value) in &mut found {
            // The others have to be absolute.
            if name == "PGSANDBOX_CONFIG"
                && let Ok(path) = std::path::absolute(&*value)
                && let Some(path) = path.to_str()
            {
                *value = path.to_owned();
            }
        }
        let place = |name: &str| VARIABLES.iter().position(|variable| variable.name == name).unwrap_or(usize::MAX);
        found.sort_by(|(a, _), (b, _)| (place(a), a).cmp(&(place(b), b)));
        found
    }

    /// Returns the names of the variables that are set, count, and hold a secret.
    pub fn secrets(&self) -> Vec<String> {
        self.set().map(|(name, _)| name).filter(|name| is_secret(name)).collect()
    }

    /// Returns the variables that this program reads and that have a value.
    fn set(&self) -> impl Iterator<Item = (String, String)> {
        let text = |text: &OsString| text.to_str().map(str::to_owned);
        let all = self.variables.iter().filter_map(move |(name, value)| Some((text(name)?, text(value)?)));
        all.filter(|(name, value)| !value.is_empty() && is_read(name))
    }
}

/// Returns whether a variable is one that this program reads and that may be written down where others can read it.
pub fn is_repeatable(name: &str) -> bool {
    is_read(name) && !is_secret(name)
}

fn is_read(name: &str) -> bool {
    is_major_bin_dir(name) || VARIABLES.iter().any(|v| v.name == name && v.scope != VariableScope::Ignored)
}

fn is_secret(name: &str) -> bool {
    let variable = VARIABLES.iter().find(|variable| variable.name == name);
    variable.and_then(|variable| key_at(variable.key?)).is_some_and(|key| key.kind == Kind::Secret)
}

/// Returns where state is kept, whatever else is configured.
///
/// # Errors
/// Fails if no directory is named, or one that cannot be meant.
pub(super) fn state_dir(environment: &Environment) -> Result<StateDir, ConfigError> {
    let faults = Faults::default();
    let home = home(environment, &faults);
    let faults = faults.into_inner();
    if faults.is_empty() { Ok(home) } else { Err(ConfigError { faults }) }
}

/// What holds with and without a configuration file.
pub(super) struct Common {
    pub(super) home: StateDir,
    pub(super) owner: Option<String>,
    pub(super) log_filter: Option<String>,
    pub(super) bin_dirs: BinDirs,
}

pub(super) fn load(environment: &Environment) -> Result<Config, ConfigError> {
    let faults = Faults::default();
    check_names(environment, &faults);
    let common = common(environment, &faults);
    let config = match environment.raw("PGSANDBOX_CONFIG") {
        Some(_) => {
            let path = environment.text("PGSANDBOX_CONFIG", &faults);
            path.and_then(|path| file::load(Path::new(&path.value), environment, common, &faults))
        }
        None => from_variables(environment, common, &faults),
    };
    let faults = faults.into_inner();
    match config {
        Some(mut config) if faults.is_empty() => {
            config.warnings.extend(empty_bin_dirs(&config.bin_dirs));
            Ok(config)
        }
        _ => Err(ConfigError { faults }),
    }
}

/// Refuses variables that look like this program's and are not, and those that a file takes the place of.
fn check_names(environment: &Environment, faults: &Faults) {
    let has_file = environment.raw("PGSANDBOX_CONFIG").is_some();
    for name in environment.variables.keys() {
        let name = name.to_string_lossy();
        if !name.starts_with(VARIABLE_PREFIX) || name.starts_with(TEST_PREFIX) || is_major_bin_dir(&name) {
            continue;
        }
        match VARIABLES.iter().find(|variable| variable.name == name) {
            None => faults.add(shown(&name), unknown(&name, VARIABLES.iter().map(|variable| variable.name))),
            Some(Variable { scope: VariableScope::WithoutFile, key: Some(key), .. }) if has_file => {
                faults.add(&*name, format!("does not count beside `PGSANDBOX_CONFIG`; say `{key}` there and unset it"));
            }
            Some(_) => {}
        }
    }
}

/// Returns whether a variable is shaped like the bin dir of a version, a version that is none included.
fn is_major_bin_dir(name: &str) -> bool {
    between(name).is_some_and(|version| !version.is_empty() && version.bytes().all(|b| b.is_ascii_digit()))
}

fn between(name: &str) -> Option<&str> {
    name.strip_prefix(MAJOR_BIN_DIR.0)?.strip_suffix(MAJOR_BIN_DIR.1)
}

fn common(environment: &Environment, faults: &Faults) -> Common {
    let owner = environment.text("PGSANDBOX_OWNER", faults);
    if let Some(owner) = &owner
        && let Some(what) = crate::model::owner_fault(&owner.value)
    {
        faults.add(&owner.place, what);
    }
    let log_filter = environment.text("PGSANDBOX_LOG", faults);
    if let Some(filter) = &log_filter
        && let Some(what) = filter_fault(&filter.value)
    {
        faults.add(&filter.place, what);
    }
    Common {
        home: home(environment, faults),
        owner: owner.map(|found| found.value),
        log_filter: log_filter.map(|found| found.value),
        bin_dirs: bin_dirs(environment, faults),
    }
}

/// Returns where state is kept; a fault's stand-in is never used.
fn home(environment: &Environment, faults: &Faults) -> StateDir {
    if environment.raw("PGSANDBOX_HOME").is_some() {
        let home = environment.text("PGSANDBOX_HOME", faults);
        let path = home.map(|home| PathBuf::from(home.value)).unwrap_or_default();
        if !path.as_os_str().is_empty() && !path.is_absolute() {
            faults.add("PGSANDBOX_HOME", "is not an absolute path");
        }
        return StateDir::at(path);
    }
    if environment.root {
        return StateDir::at(HOME_OF_ROOT);
    }
    match environment.raw("HOME").map(Path::new).filter(|home| home.is_absolute()) {
        Some(home) => StateDir::at(home.join(HOME_OF_USER)),
        None => {
            faults.add("HOME", "is not set to an absolute path; set `PGSANDBOX_HOME`");
            StateDir::at("")
        }
    }
}

fn bin_dirs(environment: &Environment, faults: &Faults) -> BinDirs {
    let mut dirs = BinDirs { any: bin_dir(environment, "PGSANDBOX_POSTGRES_BIN_DIR", faults), ..Default::default() };
    for name in environment.variables.keys().filter_map(|name| name.to_str()) {
        if !is_major_bin_dir(name) {
            continue;
        }
        let dir = bin_dir(environment, name, faults);
        match (between(name).and_then(major), dir) {
            (None, _) => faults.add(name, format!("does not name {}", version_expected())),
            (Some(major), Some(dir)) => drop(dirs.by_major.insert(major, dir)),
            (Some(_), None) => {}
        }
    }
    dirs
}

/// Says which of the directories of Postgres' programs hold none that are looked for: they are passed over.
fn empty_bin_dirs(dirs: &BinDirs) -> Vec<String> {
    let any = dirs.any.iter().map(|dir| ("PGSANDBOX_POSTGRES_BIN_DIR".to_owned(), dir));
    let by_major =
        dirs.by_major.iter().map(|(major, dir)| (format!("{}{major}{}", MAJOR_BIN_DIR.0, MAJOR_BIN_DIR.1), dir));
    let is_empty = |dir: &PathBuf| ["postgres", "pg_dump"].iter().all(|program| !dir.join(program).exists());
    let empty = any.chain(by_major).filter(|(_, dir)| is_empty(dir));
    empty
        .map(|(name, _)| format!("`{name}` names a directory without `postgres` and `pg_dump`; it is passed over"))
        .collect()
}

fn bin_dir(environment: &Environment, name: &str, faults: &Faults) -> Option<PathBuf> {
    let dir = PathBuf::from(environment.text(name, faults)?.value);
    match path_fault(&dir, "a directory", fs::Metadata::is_dir) {
        None => Some(dir),
        Some(fault) => {
            faults.add(name, fault);
            None
        }
    }
}

/// Says why a path is not the absolute one of something that is there and is of its `kind`.
fn path_fault(path: &Path, kind: &str, is_kind: fn(&fs::Metadata) -> bool) -> Option<String> {
    if !path.is_absolute() {
        return Some(format!("is not an absolute path; expected that of {kind}"));
    }
    match fs::metadata(path) {
        Ok(found) if is_kind(&found) => None,
        Ok(_) => Some(format!("is the path of something else than {kind}")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Some("is the path of something that is not there".to_owned())
        }
        Err(error) => Some(format!("is a path that cannot be looked at: {}", error.kind())),
    }
}

/// Builds the configuration of one profile from variables alone.
fn from_variables(environment: &Environment, common: Common, faults: &Faults) -> Option<Config> {
    let text = |name| environment.text(name, faults);
    let number = |name| number(environment, name, faults);
    let admin_url =
        text("PGSANDBOX_ADMIN_DATABASE_URL").map(|url| Found { value: Secret::new(url.value), place: url.place });
    let given = environment.raw("PGSANDBOX_ADMIN_DATABASE_URL").is_some();
    let name = if given { "default" } else { "local" };
    let input = ProfileInput {
        place: if given { "PGSANDBOX_ADMIN_DATABASE_URL" } else { "the environment" }.to_owned(),
        name: Some(Found { value: name.to_owned(), place: String::new() }),
        managed: (!given).then(|| Found { value: true, place: String::new() }),
        admin_url,
        prefix: text("PGSANDBOX_DATABASE_PREFIX"),
        default_ttl_minutes: number("PGSANDBOX_DEFAULT_TTL_MINUTES"),
        max_ttl_minutes: number("PGSANDBOX_MAX_TTL_MINUTES"),
        max_active: number("PGSANDBOX_MAX_ACTIVE_DATABASES_PER_OWNER"),
        allowed_extensions: list(environment, "PGSANDBOX_ALLOWED_EXTENSIONS", faults),
        postgres_version: version(environment, faults),
        allow_external: flag(environment, "PGSANDBOX_ALLOW_EXTERNAL_ADMIN_URL", faults),
        allowed_admin_hosts: list(environment, "PGSANDBOX_ALLOWED_ADMIN_HOSTS", faults),
    };
    let policies = text("PGSANDBOX_POLICIES").map(|found| PathBuf::from(found.value));
    if let Some(fault) = policies.as_ref().and_then(|path| path_fault(path, "a file", fs::Metadata::is_file)) {
        faults.add("PGSANDBOX_POLICIES", fault);
    }
    let (profiles, default_profile) = profiles(vec![input], None, &common.bin_dirs, faults)?;
    Some(Config {
        audit: AuditSettings {
            dir: common.home.audit(),
            sync: Sync::Every(SYNC_INTERVAL_DEFAULT),
            rotate_bytes: ROTATE_BYTES_DEFAULT,
        },
        home: common.home,
        profiles,
        default_profile,
        sources: Vec::new(),
        unusable_sources: Vec::new(),
        bin_dirs: common.bin_dirs,
        policies,
        commands: CommandsConfig::default(),
        key_command: None,
        telemetry: TelemetrySettings { log_filter: common.log_filter, export: None },
        owner: common.owner,
        file: None,
        warnings: Vec::new(),
    })
}

fn number(environment: &Environment, name: &str, faults: &Faults) -> Option<Found<u64>> {
    let found = environment.text(name, faults)?;
    let of = VARIABLES.iter().find(|variable| variable.name == name).and_then(|variable| key_at(variable.key?));
    let (min, max) = of.map_or((0, u64::MAX), |key| range(key.kind));
    let digits = found.value.bytes().all(|b| b.is_ascii_digit());
    let value = digits.then(|| found.value.parse::<u64>().ok()).flatten().filter(|n| (min..=max).contains(n));
    if value.is_none() {
        faults.add(name, format!("is not a whole number from {min} to {max}"));
    }
    Some(Found { value: value?, place: found.place })
}

fn version(environment: &Environment, faults: &Faults) -> Option<Found<u16>> {
    let found = environment.text("PGSANDBOX_POSTGRES_VERSION", faults)?;
    let value = major(&found.value);
    if value.is_none() {
        faults.add(&found.place, format!("is not {}", version_expected()));
    }
    Some(Found { value: value?, place: found.place })
}

fn flag(environment: &Environment, name: &str, faults: &Faults) -> Option<Found<bool>> {
    let found = environment.text(name, faults)?;
    let value = match found.value.as_str() {
        "true" | "1" => true,
        "false" | "0" => false,
        _ => {
            faults.add(name, "is not `true` or `false`");
            return None;
        }
    };
    Some(Found { value, place: found.place })
}

fn list(environment: &Environment, name: &str, faults: &Faults) -> Option<Found<Vec<String>>> {
    let found = environment.text(name, faults)?;
    let value = found.value.split(',').map(|item| item.trim().to_owned()).collect();
    Some(Found { value, place: found.place })
}
