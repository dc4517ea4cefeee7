//! Counts the calls that run.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many calls run now.
#[derive(Clone, Debug, Default)]
pub(super) struct Running(Arc<AtomicUsize>);

/// One running call. Ends when dropped, however the call ends.
#[derive(Debug)]
pub(super) struct Entered(Arc<AtomicUsize>);

impl Running {
    /// Counts one call in.
    pub(super) fn enter(&self) -> Entered {
        self.0.fetch_add(1, Ordering::SeqCst);
        Entered(self.0.clone())
    }

    /// Returns how many calls run.
    pub(super) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
