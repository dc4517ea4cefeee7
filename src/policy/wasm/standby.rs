//! An instance made ready before it is asked for, and used ones that wait to be cleared.
//!
//! Making and clearing an instance take longer than a small policy's answer, and neither needs to be waited for. An
//! instance that stood ready is as fresh as any: it was made from the same code, ran nothing, and serves one request.
//! It holds a place from when it is made until it is cleared; there are so many places in the pool beside the slots, so
//! what stands ready takes nothing from what runs.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wasmtime::Store;

use super::run::Bounds;
use super::v0_1::Decider;

/// The most instances that stand ready or wait to be cleared, over all policies: the bundled ones need nine.
pub const STANDBY_MAX: u32 = 16;

/// The places of a host.
#[derive(Debug, Default)]
pub(super) struct Places {
    taken: AtomicU32,
}

/// A place, free again when dropped.
#[derive(Debug)]
pub(super) struct Place(Arc<Places>);

impl Places {
    /// Takes a place, if one is free.
    pub(super) fn take(self: &Arc<Self>) -> Option<Place> {
        let more = |taken: u32| (taken < STANDBY_MAX).then_some(taken + 1);
        let taken = self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        taken.is_ok().then(|| Place(Arc::clone(self)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::AcqRel);
    }
}

/// An instance that has not run, or one that has and will not again.
pub(super) struct Made {
    pub(super) store: Store<Bounds>,
    pub(super) decider: Decider,
    /// What making it took, which counts as the evaluation's.
    pub(super) fuel: u64,
    /// Free once the instance is gone: fields are dropped in this order.
    _place: Place,
}

impl Made {
    pub(super) fn new(store: Store<Bounds>, decider: Decider, fuel: u64, place: Place) -> Self {
        Self { store, decider, fuel, _place: place }
    }
}

/// What one configured policy has standing.
#[derive(Default)]
pub(super) struct Standby {
    standing: Mutex<Standing>,
}

#[derive(Default)]
struct Standing {
    ready: Option<Made>,
    used: Vec<Made>,
}

impl Standby {
    fn standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the instance that stands ready.
    pub(super) fn take(&self) -> Option<Made> {
        self.standing().ready.take()
    }

    /// Leaves an instance that was used, to be cleared by the next [`renew`](Self::renew).
    pub(super) fn leave(&self, used: Made) {
        self.standing().used.push(used);
    }

    /// Clears what was used, and has one made ready if none is.
    pub(super) fn renew(&self, make: impl FnOnce() -> Option<Made>) {
        let (used, wanted) = {
            let mut standing = self.standing();
            (std::mem::take(&mut standing.used), standing.ready.is_none())
        };
        drop(used);
        let Some(made) = wanted.then(make).flatten() else { return };
        // Another may have been quicker: theirs then goes.
        let surplus = self.standing().ready.replace(made);
        drop(surplus);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_so_many_places_and_no_more() {
        let places = Arc::new(Places::default());
        let mut taken: Vec<_> = (0..STANDBY_MAX).map(|_| places.take().unwrap()).collect();
        assert!(places.take().is_none());
        taken.pop();
        let again = places.take();
        assert!(again.is_some() && places.take().is_none());
    }
}
