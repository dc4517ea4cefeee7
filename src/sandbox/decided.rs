//! The row that a request was decided on, kept for the moment until the request is carried out.
//!
//! A request reads its sandbox's row once for the decision. What is done under the permit right afterwards may rely on
//! that reading, so that no second one stands in its way: once, for that request only, and only while it is fresh. Its
//! clock runs on meanwhile, never slower than the server's, so a sandbox whose time is over in between is expired.
//! What changes a sandbox never relies on it alone: the metadata's own statements check state and time again.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::{Profile, Sandbox};
use crate::model::{RequestId, SandboxId};

/// How long a reading stands. Policies take a thousandth of it; who waits for a person's consent reads again.
const FRESH_FOR: Duration = Duration::from_millis(250);
/// Readings kept at once; a request that finds no room reads again.
const KEPT_MAX: usize = 1024;

/// Rows by the request that was decided on them.
#[derive(Default)]
pub(super) struct Decided(Mutex<HashMap<RequestId, Seen>>);

struct Seen {
    profile: Arc<Profile>,
    sandbox: Sandbox,
    /// Before the question was sent: the row's `read_at` is not before it.
    asked: Instant,
}

impl fmt::Debug for Decided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decided").finish_non_exhaustive()
    }
}

impl Decided {
    /// Keeps a row that was asked for at `asked`.
    pub(super) fn keep(&self, request: RequestId, profile: &Arc<Profile>, sandbox: &Sandbox, asked: Instant) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // What was refused is never taken.
        kept.retain(|_, seen| seen.asked.elapsed() < FRESH_FOR);
        if kept.len() < KEPT_MAX {
            kept.insert(request, Seen { profile: Arc::clone(profile), sandbox: sandbox.clone(), asked });
        }
    }

    /// Takes the row of sandbox `id` that `request` was decided on, if it is still fresh. There is no second time.
    pub(super) fn take(&self, request: RequestId, id: SandboxId) -> Option<(Arc<Profile>, Sandbox)> {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&request)?;
        let age = seen.asked.elapsed();
        if age >= FRESH_FOR || seen.sandbox.id != id {
            return None;
        }
        let mut sandbox = seen.sandbox;
        // Rounded up: for a millisecond the sandbox may seem older than it is, and never younger.
        sandbox.read_at = sandbox.read_at.plus(age + Duration::from_millis(1));
        Some((seen.profile, sandbox))
    }

    /// Forgets every reading of a sandbox that is about to change.
    pub(super) fn forget(&self, id: SandboxId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|_, seen| seen.sandbox.id != id);
    }
}
