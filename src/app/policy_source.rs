//! Reads and loads a set of policies, and says what it was read from.
//!
//! Every generation of a process is run by one host, so that all share its pool, its clock and what is compiled already.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use super::bundled::BUNDLED;
use crate::config::policies::{self, Fault};
use crate::model::{Mode, Timestamp};
use crate::policy::wasm::{Host, HostSettings};
use crate::policy::{LoadError, LoadFault, Set, Spec};

/// Where policies come from.
pub(super) struct Source {
    file: Option<PathBuf>,
    cache: PathBuf,
    host: Mutex<Option<Host>>,
}

/// A set as it was read.
pub(super) struct Read {
    pub(super) set: Result<Set, LoadError>,
    /// What it was read from.
    pub(super) seen: Seen,
    /// Whether that was the same before it was read and after.
    pub(super) steady: bool,
}

/// The policy file and the components that it names, each with what tells it from another that is put in its place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen(Vec<(PathBuf, Option<Identity>)>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

impl Seen {
    fn of(paths: Vec<PathBuf>) -> Self {
        let identity = |path: &Path| {
            // Through links: what they lead to is what is read.
            let found = fs::metadata(path).ok()?;
            Some(Identity {
                device: found.dev(),
                inode: found.ino(),
                bytes: found.size(),
                modified: (found.mtime(), found.mtime_nsec()),
            })
        };
        Self(paths.into_iter().map(|path| (identity(&path), path)).map(|(identity, path)| (path, identity)).collect())
    }

    /// Looks at the same files once more.
    pub(super) fn again(&self) -> Self {
        Self::of(self.0.iter().map(|(path, _)| path.clone()).collect())
    }

    /// Returns of when the policy file is, if there is one.
    pub(super) fn file_time(&self) -> Option<Timestamp> {
        let (seconds, nanoseconds) = self.0.first()?.1.as_ref()?.modified;
        let since = Duration::new(u64::try_from(seconds).ok()?, u32::try_from(nanoseconds).ok()?);
        Some(Timestamp::from(UNIX_EPOCH + since))
    }
}

impl Source {
    /// Names the file, or the bundled set, and where compiled code is kept.
    pub(super) fn new(file: Option<PathBuf>, cache: PathBuf) -> Self {
        Self { file, cache, host: Mutex::new(None) }
    }

    /// Returns the policy file; `None` for the bundled set.
    pub(super) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Reads, compiles, configures and tries a set. `number` is its generation's.
    pub(super) fn read(&self, number: u64) -> Read {
        let file = Seen::of(self.file.clone().into_iter().collect());
        let seen = Seen::of(self.file.as_deref().map(policies::files).unwrap_or_default());
        let set = self.load(number);
        let steady = seen.0.first() == file.0.first() && seen.again() == seen;
        Read { set, seen, steady }
    }

    fn load(&self, number: u64) -> Result<Set, LoadError> {
        let host = self.host()?;
        let specs = match &self.file {
            Some(file) => policies::load(file, BUNDLED),
            None => policies::defaults(BUNDLED),
        };
        let error = match specs {
            Ok(specs) => return Set::load(&host, &specs, number),
            Err(error) => error,
        };
        let of_file = |fault: Fault| LoadFault { policy: String::new(), path: fault.path, message: fault.message };
        let mut faults: Vec<LoadFault> = error.faults.into_iter().map(of_file).collect();
        // What is wrong with the file hides nothing that is wrong with the settings in it. Of equal names, which are told
        // already, each is looked at by itself.
        // What a candidate is for may be among what could not be read.
        let alone = |spec: Spec| match spec.mode {
            Mode::Candidate => Spec { mode: Mode::Shadow, of: None, ..spec },
            Mode::Enforce | Mode::Shadow => spec,
        };
        let mut left: Vec<Spec> = error.legible.into_iter().map(alone).collect();
        while !left.is_empty() {
            let mut names = BTreeSet::new();
            let (now, later): (Vec<Spec>, Vec<Spec>) =
                left.into_iter().partition(|spec| names.insert(spec.name.clone()));
            if let Err(of_settings) = Set::load(&host, &now, number) {
                faults.extend(of_settings.faults);
            }
            left = later;
        }
        Err(LoadError { faults })
    }

    /// Returns the host, which is started by the first set that needs it.
    fn host(&self) -> Result<Host, LoadError> {
        let mut host = self.host.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(host) = &*host {
            return Ok(host.clone());
        }
        let settings = HostSettings { cache_directory: Some(self.cache.clone()), ..HostSettings::default() };
        let started = Host::new(&settings).map_err(|error| LoadError {
            faults: vec![LoadFault { policy: String::new(), path: String::new(), message: error.to_string() }],
        })?;
        Ok(host.insert(started).clone())
    }
}
