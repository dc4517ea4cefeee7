//! The generation that serves, and how another takes its place.
//!
//! A new set is loaded whole beside the serving one and swapped in at once; one that fails changes
//! nothing. A request keeps the set it began with.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::model::{Failure, Generation};

use super::change::{Change, changes};
use super::{LoadError, Set};

/// Holds the serving set, or why there is none.
#[derive(Debug)]
pub struct Holder {
    serving: RwLock<Result<Arc<Set>, LoadError>>,
    /// Held while a reload runs, so that generations are numbered in the order they serve, and nothing else is put in the
    /// place of what was compared.
    last_number: Mutex<u64>,
}

/// A reload, as it took place or is about to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reloaded {
    /// What served before, if anything did.
    pub from: Option<Generation>,
    /// What serves then.
    pub to: Generation,
    /// What is another in it, by policy. Nothing where nothing served before.
    pub changes: Vec<Change>,
}

impl Reloaded {
    /// Returns the policies for whose sake requests may pass that were refused before: an enforced one is gone or has no say
    /// any more, or one answers for what none answered for. To be recorded as a weakening.
    pub fn weakened(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.changes.iter().filter(|c| c.weakens).map(|c| c.policy.as_str()).collect();
        names.dedup();
        names
    }
}

/// Another generation, loaded and tried, that does not serve yet. Dropped, it never does. No other reload runs beside it.
#[derive(Debug)]
pub struct Prepared<'a> {
    holder: &'a Holder,
    last_number: MutexGuard<'a, u64>,
    set: Arc<Set>,
    reloaded: Reloaded,
}

impl Prepared<'_> {
    /// Returns what would change.
    pub fn reloaded(&self) -> &Reloaded {
        &self.reloaded
    }

    /// Lets it serve: each request that begins from now on is decided by it, whole.
    pub fn serve(mut self) -> Reloaded {
        *self.last_number = self.reloaded.to.number;
        let mut serving = self.holder.serving.write().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *serving, Ok(self.set));
        drop(serving);
        // Where no request holds it any more it is taken apart here, while nobody waits for the lock.
        drop(before);
        self.reloaded
    }
}

impl Holder {
    /// Loads the first generation with `load`, which is given its number. A failure is held as the reason to refuse.
    pub fn new(load: impl FnOnce(u64) -> Result<Set, LoadError>) -> Self {
        Self { serving: RwLock::new(load(1).map(Arc::new)), last_number: Mutex::new(1) }
    }

    /// Returns the serving set.
    ///
    /// # Errors
    /// Fails with `policy_not_ready` if no set could be loaded yet.
    pub fn current(&self) -> Result<Arc<Set>, Failure> {
        let serving = self.serving.read().unwrap_or_else(PoisonError::into_inner);
        serving.as_ref().map(Arc::clone).map_err(Failure::from)
    }

    /// Returns why no set serves, if none does.
    pub fn fault(&self) -> Option<LoadError> {
        self.serving.read().unwrap_or_else(PoisonError::into_inner).as_ref().err().cloned()
    }

    /// Loads another generation with `load`, which is given its number, beside the one that serves.
    ///
    /// # Errors
    /// Returns what is wrong with the new set; what served goes on serving.
    pub fn prepare(&self, load: impl FnOnce(u64) -> Result<Set, LoadError>) -> Result<Prepared<'_>, LoadError> {
        let last_number = self.last_number.lock().unwrap_or_else(PoisonError::into_inner);
        let set = match load(last_number.saturating_add(1)) {
            Ok(set) => Arc::new(set),
            Err(error) => {
                let mut serving = self.serving.write().unwrap_or_else(PoisonError::into_inner);
                // With nothing to go on serving, the newest reason is the one to tell.
                if serving.is_err() {
                    *serving = Err(error.clone());
                }
                return Err(error);
            }
        };
        let before = self.current().ok();
        let reloaded = Reloaded {
            from: before.as_deref().map(|before| before.generation().clone()),
            to: set.generation().clone(),
            changes: before.as_deref().map(|before| changes(before, &set)).unwrap_or_default(),
        };
        Ok(Prepared { holder: self, last_number, set, reloaded })
    }
}
