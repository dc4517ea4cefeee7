//! Loads the policies on a thread of their own, so that nobody waits for them who does not need them, and knows how they
//! stand: since when which set serves, and why another was refused.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use tokio::sync::watch;

use super::policy_source::{Seen, Source};
use crate::model::{Generation, Timestamp};
use crate::policy::{Holder, PolicyInfo};

/// The policies, loaded or on their way.
pub(super) struct Policies {
    pub(super) source: Source,
    loaded: watch::Receiver<Option<Arc<Holder>>>,
    standing: Mutex<Standing>,
}

/// How the policies stand.
#[derive(Clone, Debug, Default)]
pub(super) struct Standing {
    /// Since when this generation serves.
    pub(super) since: Option<Timestamp>,
    /// Of when the file is that it was read from.
    pub(super) file_time: Option<Timestamp>,
    /// What was to take its place last, and could not.
    pub(super) refused: Option<RefusedSet>,
    /// What was read last, taken or not.
    pub(super) tried: Seen,
}

/// A set that does not serve.
#[derive(Clone, Debug)]
pub(super) struct RefusedSet {
    /// When it was refused.
    pub(super) at: Timestamp,
    /// Of when the file is that it was read from.
    pub(super) file_time: Option<Timestamp>,
    /// Why, one line for each fault.
    pub(super) faults: Vec<String>,
}

/// The policies as they were loaded, for people and reports.
#[derive(Clone, Debug)]
pub struct PoliciesSeen {
    /// The policies, sorted by name.
    pub policies: Vec<PolicyInfo>,
    /// Which set they are.
    pub generation: Generation,
    /// The policy file; `None` for the bundled set.
    pub file: Option<PathBuf>,
    /// Since when they are loaded.
    pub since: Option<Timestamp>,
}

impl Policies {
    /// Begins to load the policies of `file`, or the bundled set.
    pub(super) fn begin(file: Option<PathBuf>, cache: PathBuf) -> Arc<Self> {
        let (done, loaded) = watch::channel(None);
        let policies =
            Arc::new(Self { source: Source::new(file, cache), loaded, standing: Mutex::new(Standing::default()) });
        let own = Arc::clone(&policies);
        let spawned = thread::Builder::new().name("policies".to_owned()).spawn(move || {
            let mut seen = Seen::default();
            let holder = Holder::new(|number| {
                let read = own.source.read(number);
                seen = read.seen;
                read.set
            });
            own.stand(|standing| {
                standing.file_time = seen.file_time();
                standing.since = holder.fault().is_none().then(Timestamp::now);
                // Where it was changed meanwhile it is another to the next look, and read again.
                standing.tried = seen;
            });
            if let Some(fault) = holder.fault() {
                tracing::error!(%fault, "the policies cannot be loaded; every request but `doctor` is refused");
            }
            // Nobody is left to be told when the program ends at once.
            drop(done.send(Some(Arc::new(holder))));
        });
        if let Err(error) = spawned {
            tracing::error!(%error, "the policies cannot be loaded: no thread could be started");
        }
        policies
    }

    /// Returns where the policies appear once they are loaded.
    pub(super) fn watch(&self) -> watch::Receiver<Option<Arc<Holder>>> {
        self.loaded.clone()
    }

    /// Waits until the policies are loaded, or known to be broken; `None` if nobody loads them.
    pub(super) async fn holder(&self) -> Option<Arc<Holder>> {
        let mut loaded = self.loaded.clone();
        loaded.wait_for(Option::is_some).await.ok().and_then(|holder| holder.clone())
    }

    /// Returns how they stand now.
    pub(super) fn standing(&self) -> Standing {
        self.locked().clone()
    }

    /// Notes how they stand.
    pub(super) fn stand(&self, note: impl FnOnce(&mut Standing)) {
        note(&mut self.locked());
    }

    fn locked(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the loaded policies, or one line for each fault.
    pub(super) async fn seen(&self) -> Result<PoliciesSeen, Vec<String>> {
        let Some(holder) = self.holder().await else { return Err(vec!["the policies were not loaded".to_owned()]) };
        if let Some(fault) = holder.fault() {
            return Err(fault.faults.iter().map(ToString::to_string).collect());
        }
        let set = holder.current().map_err(|failure| vec![failure.message])?;
        Ok(PoliciesSeen {
            policies: set.policies().cloned().collect(),
            generation: set.generation().clone(),
            file: self.source.file().map(Path::to_owned),
            since: self.standing().since,
        })
    }
}
