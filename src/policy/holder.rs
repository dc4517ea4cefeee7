//! The generation that serves, and how another takes its place.
//!
//! A new set is loaded whole beside the serving one and swapped in at once; one that fails changes
//! nothing. A request keeps the set it began with.

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use crate::model::{Failure, Generation, Mode};

use super::{LoadError, Set};

/// Holds the serving set, or why there is none.
#[derive(Debug)]
pub struct Holder {
    serving: RwLock<Result<Arc<Set>, LoadError>>,
    /// Held while a reload runs, so that generations are numbered in the order they serve.
    last_number: Mutex<u64>,
}

/// A reload that took place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reloaded {
    /// What served before, if anything did.
    pub from: Option<Generation>,
    /// What serves now.
    pub to: Generation,
    /// Policies that lost their word: gone, or from enforce to shadow. To be recorded as a weakening.
    pub weakened: Vec<String>,
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

    /// Loads another generation with `load`, which is given its number, and lets it serve.
    ///
    /// # Errors
    /// Returns what is wrong with the new set; what served goes on serving.
    pub fn reload(&self, load: impl FnOnce(u64) -> Result<Set, LoadError>) -> Result<Reloaded, LoadError> {
        let mut last_number = self.last_number.lock().unwrap_or_else(PoisonError::into_inner);
        let number = last_number.saturating_add(1);
        let loaded = load(number);
        let mut serving = self.serving.write().unwrap_or_else(PoisonError::into_inner);
        let set = match loaded {
            Ok(set) => Arc::new(set),
            Err(error) => {
                // With nothing to go on serving, the newest reason is the one to tell.
                if serving.is_err() {
                    *serving = Err(error.clone());
                }
                return Err(error);
            }
        };
        *last_number = number;
        let before = std::mem::replace(&mut *serving, Ok(Arc::clone(&set))).ok();
        let weakened = before.as_deref().map(|before| weakened(before, &set)).unwrap_or_default();
        Ok(Reloaded { from: before.map(|set| set.generation().clone()), to: set.generation().clone(), weakened })
    }
}

fn weakened(before: &Set, after: &Set) -> Vec<String> {
    let enforced = |set: &Set, name: &str| set.policies().any(|p| p.name == name && p.mode == Mode::Enforce);
    let lost = before.policies().filter(|p| p.mode == Mode::Enforce && !enforced(after, &p.name));
    lost.map(|p| p.name.clone()).collect()
}
