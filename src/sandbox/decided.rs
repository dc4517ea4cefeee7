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
/// How far off a row's time is in milliseconds.
const ROUNDING: Duration = Duration::from_millis(1);
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
        sandbox.read_at = sandbox.read_at.plus(age + ROUNDING);
        Some((seen.profile, sandbox))
    }

    /// Forgets every reading of a sandbox that is about to change.
    pub(super) fn forget(&self, id: SandboxId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|_, seen| seen.sandbox.id != id);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::time::Instant;

    use super::{Decided, FRESH_FOR, KEPT_MAX};
    use crate::engine::postgres::{
        PostgresEngine, PostgresServer, PostgresSettings, PostgresUrl, ServerSource, UrlOrigin,
    };
    use crate::model::{Origin, RequestId, SandboxId, SandboxKind, SandboxNames, Timestamp};
    use crate::sandbox::{Profile, ProfileSettings, Sandbox, State};
    use crate::store::{ByteLimits, ServerSessions};

    /// A profile whose server nobody asks.
    fn profile() -> Arc<Profile> {
        let url = PostgresUrl::parse("postgres://admin@127.0.0.1:1/postgres", UrlOrigin::Operator).unwrap();
        let settings = PostgresSettings::new("local", "pgsandbox", ServerSource::External(url));
        let server = PostgresServer::new(settings);
        let sessions = Arc::new(ServerSessions::new(Arc::clone(&server)));
        Arc::new(
            Profile::new("local", ProfileSettings::default(), Arc::new(PostgresEngine::new(server)), sessions).unwrap(),
        )
    }

    fn sandbox() -> Sandbox {
        let (id, now) = (SandboxId::fresh(), Timestamp::from_unix_ms(1_800_000_000_000));
        Sandbox {
            id,
            profile: "local".to_owned(),
            engine: "postgres".to_owned(),
            names: SandboxNames::new("pgsandbox", None, id),
            owner: "me".to_owned(),
            subject: "me".to_owned(),
            group_owner: None,
            labels: Vec::new(),
            hint: None,
            kind: SandboxKind::Sandbox,
            origin: Origin::Empty,
            source: None,
            template_name: None,
            extensions: Vec::new(),
            state: State::Ready,
            failure: None,
            bytes: None,
            byte_limits: ByteLimits::default(),
            login_withheld: false,
            login_turning: false,
            created_at: now,
            expires_at: now.plus(FRESH_FOR),
            read_at: now,
        }
    }

    /// The time is never over while this is asked for.
    fn later() -> Instant {
        Instant::now() + Duration::from_secs(3600)
    }

    #[test]
    fn a_reading_is_taken_once_for_its_request_and_its_sandbox() {
        let (decided, profile, one) = (Decided::default(), profile(), sandbox());
        let [request, other] = [(); 2].map(|()| RequestId::fresh());
        decided.keep(request, &profile, &one, later());
        assert!(decided.take(other, one.id).is_none());
        assert_eq!(decided.take(request, one.id).map(|(_, sandbox)| sandbox.id), Some(one.id));
        assert!(decided.take(request, one.id).is_none(), "a second time");
        decided.keep(request, &profile, &one, later());
        assert!(decided.take(request, SandboxId::fresh()).is_none(), "for another sandbox");
        decided.keep(request, &profile, &one, later());
        decided.forget(one.id);
        assert!(decided.take(request, one.id).is_none(), "forgotten");
    }

    #[test]
    fn a_reading_is_fresh_for_a_moment_and_its_clock_runs_on() {
        let (decided, profile, one) = (Decided::default(), profile(), sandbox());
        // On a busy machine the moment may be over before it is asked for.
        let taken = loop {
            let (request, asked) = (RequestId::fresh(), Instant::now() - FRESH_FOR / 2);
            decided.keep(request, &profile, &one, asked);
            let taken = decided.take(request, one.id);
            if asked.elapsed() < FRESH_FOR {
                break taken;
            }
        };
        let (_, taken) = taken.expect("it is fresh");
        assert!(taken.read_at.ms_since(one.read_at) >= i64::try_from(FRESH_FOR.as_millis() / 2).unwrap());
        let request = RequestId::fresh();
        decided.keep(request, &profile, &one, Instant::now() - FRESH_FOR);
        assert!(decided.take(request, one.id).is_none(), "no longer fresh");
    }

    #[test]
    fn readings_are_kept_up_to_a_bound_and_what_is_over_it_reads_again() {
        let (decided, profile, one) = (Decided::default(), profile(), sandbox());
        let requests: Vec<RequestId> = (0..KEPT_MAX + 1).map(|_| RequestId::fresh()).collect();
        requests.iter().for_each(|request| decided.keep(*request, &profile, &one, later()));
        let kept = requests.iter().filter(|request| decided.take(**request, one.id).is_some()).count();
        assert_eq!(kept, KEPT_MAX);
        // What was never taken makes room once it is stale.
        let stale = Instant::now() - FRESH_FOR;
        requests.iter().for_each(|request| decided.keep(*request, &profile, &one, stale));
        let request = RequestId::fresh();
        decided.keep(request, &profile, &one, later());
        assert!(decided.take(request, one.id).is_some());
    }
}
