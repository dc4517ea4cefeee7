//! Loads the policies on a thread of their own, so that nobody waits for them who does not need them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use tokio::sync::watch;

use super::bundled::BUNDLED;
use crate::config::policies::{self, Fault};
use crate::policy::wasm::{Host, HostSettings};
use crate::policy::{Holder, LoadError, LoadFault, PolicyInfo, Set, Spec};

/// The policies, loaded or on their way.
pub(super) struct Loading(watch::Receiver<Option<Arc<Holder>>>);

impl Loading {
    /// Begins to load the policies of `file`, or the bundled set.
    pub(super) fn begin(file: Option<PathBuf>, cache: PathBuf) -> Self {
        let (done, loaded) = watch::channel(None);
        let spawned = thread::Builder::new().name("policies".to_owned()).spawn(move || {
            let holder = Holder::new(|number| load(file.as_deref(), cache, number));
            if let Some(fault) = holder.fault() {
                tracing::error!(%fault, "the policies cannot be loaded; every request but `doctor` is refused");
            }
            // Nobody is left to be told when the program ends at once.
            drop(done.send(Some(Arc::new(holder))));
        });
        if let Err(error) = spawned {
            tracing::error!(%error, "the policies cannot be loaded: no thread could be started");
        }
        Self(loaded)
    }

    /// Returns where the policies appear once they are loaded.
    pub(super) fn watch(&self) -> watch::Receiver<Option<Arc<Holder>>> {
        self.0.clone()
    }

    /// Returns the loaded policies, or one line for each fault.
    pub(super) async fn infos(&self) -> Result<Vec<PolicyInfo>, Vec<String>> {
        let mut loaded = self.0.clone();
        let holder = loaded.wait_for(Option::is_some).await.ok().and_then(|holder| holder.clone());
        let Some(holder) = holder else { return Err(vec!["the policies were not loaded".to_owned()]) };
        if let Some(fault) = holder.fault() {
            return Err(fault.faults.iter().map(ToString::to_string).collect());
        }
        let set = holder.current().map_err(|failure| vec![failure.message])?;
        Ok(set.policies().cloned().collect())
    }
}

fn load(file: Option<&std::path::Path>, cache: PathBuf, number: u64) -> Result<Set, LoadError> {
    let fault =
        |message: String| LoadError { faults: vec![LoadFault { policy: String::new(), path: String::new(), message }] };
    let settings = HostSettings { cache_directory: Some(cache), ..HostSettings::default() };
    let host = Host::new(&settings).map_err(|error| fault(error.to_string()))?;
    let specs = match file {
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
    let mut left = error.legible;
    while !left.is_empty() {
        let mut names = BTreeSet::new();
        let (now, later): (Vec<Spec>, Vec<Spec>) = left.into_iter().partition(|spec| names.insert(spec.name.clone()));
        if let Err(of_settings) = Set::load(&host, &now, number) {
            faults.extend(of_settings.faults);
        }
        left = later;
    }
    Err(LoadError { faults })
}
