//! The component under test: found at a path, loaded as a server loads it.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::config::policies::canonical;
use crate::model::{Mode, place_in_text};
use crate::policy::wasm::{Host, HostSettings};
use crate::policy::{
    COMPONENT_BYTES_MAX, Component, ConfigureError, Configured, Description, Limits, LoadFault, Loaded, Loader,
    SETTINGS_BYTES_MAX, SETTINGS_DEPTH_MAX, Set, Spec,
};

/// The longest cases file or request, in bytes.
pub const CASES_BYTES_MAX: usize = 4 << 20;
/// The name that a policy goes by here whose file is named as what is no policy.
const OTHER_NAME: &str = "policy";
/// What limits' origins are called where no policy set them.
const RESERVED_NAMES: [&str; 3] = ["core", "profile", "request"];
/// What lies beside a component in its folder.
const CASES_FILE: &str = "cases.toml";
const SETTINGS_FILE: &str = "default.json";

/// A component as it lies on disk, with what lies beside it.
#[derive(Clone, Debug)]
pub struct Found {
    /// The file's name without its ending.
    pub name: String,
    /// Its bytes with their digest.
    pub component: Component,
    /// The settings where nobody gives any: `default.json` of its folder.
    pub settings: Option<Map<String, Value>>,
    /// `cases.toml` of its folder, if it is there.
    pub cases: Option<PathBuf>,
}

/// Finds a component: a file, or a folder that holds one, with its cases and its default settings.
///
/// # Errors
/// Says what cannot be found or read.
pub fn find(path: &Path) -> Result<Found, String> {
    let is_folder = fs::metadata(path).map_err(|error| unreadable(path, &error))?.is_dir();
    let file = if is_folder { component_in(path)? } else { path.to_owned() };
    let bytes = read(&file, COMPONENT_BYTES_MAX)?;
    let name = file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let is_taken = name.is_empty() || RESERVED_NAMES.contains(&name.as_str());
    let beside = |name: &str| Some(path.join(name)).filter(|path| is_folder && path.exists());
    Ok(Found {
        name: if is_taken { OTHER_NAME.to_owned() } else { name },
        component: Component::new(bytes),
        settings: beside(SETTINGS_FILE).map(|path| settings_file(&path)).transpose()?,
        cases: beside(CASES_FILE),
    })
}

/// Returns the one component of a folder.
fn component_in(folder: &Path) -> Result<PathBuf, String> {
    let entries = fs::read_dir(folder).map_err(|error| unreadable(folder, &error))?;
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|end| end == "wasm"))
        .collect();
    found.sort();
    match found.as_slice() {
        [one] => Ok(one.clone()),
        [] => Err(format!("`{}` holds no component; build one into it, or name its file", folder.display())),
        [first, second, ..] => Err(format!(
            "`{}` holds {} components, `{}` and `{}` among them; name the file of one",
            folder.display(),
            found.len(),
            first.file_name().unwrap_or_default().display(),
            second.file_name().unwrap_or_default().display(),
        )),
    }
}

/// Reads a file that is no longer than so many bytes.
///
/// # Errors
/// Says why it cannot be read.
pub fn read(path: &Path, bytes_max: usize) -> Result<Vec<u8>, String> {
    let refused = |error: std::io::Error| unreadable(path, &error);
    // Opening a pipe would wait for whoever writes it.
    if !fs::metadata(path).map_err(refused)?.is_file() {
        return Err(format!("`{}` is no file", path.display()));
    }
    let mut bytes = Vec::new();
    let bound = u64::try_from(bytes_max).unwrap_or(u64::MAX).saturating_add(1);
    File::open(path).and_then(|file| file.take(bound).read_to_end(&mut bytes)).map_err(refused)?;
    if bytes.len() > bytes_max {
        return Err(format!("`{}` has more than {bytes_max} bytes", path.display()));
    }
    Ok(bytes)
}

/// Reads a text file that is no longer than so many bytes.
///
/// # Errors
/// Says why it cannot be read.
pub fn read_text(path: &Path, bytes_max: usize) -> Result<String, String> {
    String::from_utf8(read(path, bytes_max)?).map_err(|_| format!("`{}` is no UTF-8", path.display()))
}

fn unreadable(path: &Path, error: &std::io::Error) -> String {
    format!("cannot read `{}`: {error}", path.display())
}

/// Reads settings: a JSON object, or `@` and the path of a file that holds one.
///
/// # Errors
/// Says what is wrong with them.
pub fn settings(given: &str) -> Result<Map<String, Value>, String> {
    match given.strip_prefix('@') {
        Some(path) => settings_file(Path::new(path)),
        None => object(given).map_err(|fault| format!("the settings {fault}")),
    }
}

fn settings_file(path: &Path) -> Result<Map<String, Value>, String> {
    object(&read_text(path, SETTINGS_BYTES_MAX)?).map_err(|fault| format!("`{}` {fault}", path.display()))
}

fn object(text: &str) -> Result<Map<String, Value>, String> {
    match serde_json::from_str(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err("must be a JSON object".to_owned()),
        Err(error) => Err(format!("cannot be read as JSON: look at {}", place_in_text(error.line(), error.column()))),
    }
}

/// A component that was compiled once, for every configuration of it.
#[derive(Clone)]
struct Once(Arc<dyn Loaded>);

impl Loader for Once {
    fn load(&self, _spec: &Spec) -> Result<Box<dyn Loaded>, String> {
        Ok(Box::new(self.clone()))
    }
}

impl Loaded for Once {
    fn description(&self) -> &Description {
        self.0.description()
    }

    fn configure(&self, settings: &str) -> Result<Configured, ConfigureError> {
        self.0.configure(settings)
    }
}

impl fmt::Debug for Once {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Once").finish_non_exhaustive()
    }
}

/// A loaded component.
#[derive(Debug)]
pub struct Subject {
    found: Found,
    loaded: Once,
    /// What is configured already, by settings and by whether texts are shown.
    sets: BTreeMap<(String, bool), Result<Arc<Set>, Vec<LoadFault>>>,
}

impl Subject {
    /// Loads a component. `settings` are in the place of its folder's.
    ///
    /// # Errors
    /// Says why a server would not load it, whatever its settings.
    pub fn load(host: &Host, found: Found, settings: Option<Map<String, Value>>) -> Result<Self, String> {
        let found = Found { settings: settings.or(found.settings), ..found };
        let loaded = host.load(&spec(&found, "{}".to_owned(), false));
        let loaded = loaded.map_err(|fault| format!("`{}` cannot be loaded: {fault}", found.name))?;
        Ok(Self { found, loaded: Once(loaded.into()), sets: BTreeMap::new() })
    }

    /// Returns the name that the policy goes by here.
    pub fn name(&self) -> &str {
        &self.found.name
    }

    /// Returns the component's digest, in lower-case hexadecimal.
    pub fn sha256(&self) -> &str {
        self.found.component.sha256()
    }

    /// Returns what the policy says of itself.
    pub fn description(&self) -> &Description {
        self.loaded.0.description()
    }

    /// Returns the policy configured with these settings, or with its defaults, as a set of its own.
    ///
    /// # Errors
    /// Returns what is wrong with the settings, as a server would say it.
    pub fn configured(
        &mut self,
        settings: Option<&Map<String, Value>>,
        with_text: bool,
    ) -> Result<Arc<Set>, Vec<LoadFault>> {
        let settings = settings.or(self.found.settings.as_ref());
        if let Some(fault) = settings.and_then(depth_fault) {
            return Err(vec![fault]);
        }
        let text = settings.map_or_else(|| "{}".to_owned(), canonical);
        let (loaded, found) = (&self.loaded, &self.found);
        let set = self.sets.entry((text.clone(), with_text)).or_insert_with(|| {
            Set::load(loaded, &[spec(found, text, with_text)], 1).map(Arc::new).map_err(|error| error.faults)
        });
        set.clone()
    }
}

/// Starts a host as a server has it, but that it keeps nothing compiled.
///
/// # Errors
/// Says why this machine has none.
pub fn host() -> Result<Host, String> {
    Host::new(&HostSettings::default()).map_err(|error| error.to_string())
}

fn spec(found: &Found, settings: String, sees_text: bool) -> Spec {
    Spec {
        name: found.name.clone(),
        component: found.component.clone(),
        pin: None,
        mode: Mode::Enforce,
        settings,
        sections: Vec::new(),
        limits: Limits::default(),
        sees_text,
        of: None,
    }
}

/// Finds fault with settings that a policy file could not hold.
fn depth_fault(settings: &Map<String, Value>) -> Option<LoadFault> {
    let depth = 1 + settings.values().map(depth).max().unwrap_or(0);
    (depth > SETTINGS_DEPTH_MAX).then(|| LoadFault {
        policy: String::new(),
        path: "settings".to_owned(),
        message: format!("is nested more than {SETTINGS_DEPTH_MAX} deep"),
    })
}

/// Counts how deep a value is nested. What was read from a text is nested no deeper than its reader goes.
fn depth(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(keys) => 1 + keys.values().map(depth).max().unwrap_or(0),
    }
}
