//! Keeps sessions into sandboxes for the next call.
//!
//! A session goes back only if it is sound and could be reset to what it was when opened; any other is closed. Few
//! wait per sandbox and role, and not for long. Nothing is handed out across sandboxes or roles.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use crate::model::{CredentialAccess, SandboxId};

/// Sessions that wait per sandbox and role: what agents run side by side in one sandbox. A call that finds none logs in,
/// which takes longer than all the rest of it.
const IDLE_MAX: usize = 8;
/// How long a session waits: a forgotten one keeps a backend, and DROP DATABASE, waiting.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Sessions that wait in all; each is a backend of some megabytes on the server.
const IDLE_TOTAL_MAX: usize = 32;

/// What a session must offer to be used again.
#[async_trait]
pub trait Reusable: Send + 'static {
    /// Returns whether the connection stands, and no transaction, copy or cancelled statement hangs on it.
    fn is_usable(&self) -> bool;

    /// Puts the session back to what it was when opened; returns whether that worked.
    async fn reset(&mut self) -> bool;
}

type Key = (SandboxId, CredentialAccess);

/// Waiting sessions, by sandbox and role.
pub(super) struct SessionPool<S> {
    shelves: Arc<Mutex<Shelves<S>>>,
}

struct Shelves<S> {
    idle: HashMap<Key, Vec<(S, Instant)>>,
    closed: bool,
}

impl<S: Reusable> SessionPool<S> {
    pub(super) fn new() -> Self {
        Self { shelves: Arc::new(Mutex::new(Shelves { idle: HashMap::new(), closed: false })) }
    }

    /// Takes a waiting session.
    pub(super) fn take(&self, id: SandboxId, access: CredentialAccess) -> Option<S> {
        let mut shelves = self.shelves.lock().unwrap_or_else(PoisonError::into_inner);
        shelves.drop_stale(Instant::now());
        let waiting = shelves.idle.get_mut(&(id, access))?;
        while let Some((session, _)) = waiting.pop() {
            if session.is_usable() {
                return Some(session);
            }
        }
        None
    }

    /// Puts a session back, if it can be used again. Never waits: the reset runs in a task of its own.
    pub(super) fn give_back(&self, id: SandboxId, access: CredentialAccess, mut session: S) {
        if !session.is_usable() {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let shelves = Arc::clone(&self.shelves);
        drop(runtime.spawn(async move {
            if session.reset().await && session.is_usable() {
                shelves.lock().unwrap_or_else(PoisonError::into_inner).put((id, access), session);
            }
        }));
    }

    /// Closes what waits for a sandbox that is about to go.
    pub(super) fn close(&self, id: SandboxId) {
        let mut shelves = self.shelves.lock().unwrap_or_else(PoisonError::into_inner);
        shelves.idle.retain(|(of, _), _| *of != id);
    }

    /// Closes what waits for one role of a sandbox.
    pub(super) fn close_role(&self, id: SandboxId, access: CredentialAccess) {
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner).idle.remove(&(id, access));
    }

    /// Closes what has waited too long.
    pub(super) fn close_stale(&self) {
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner).drop_stale(Instant::now());
    }

    /// Closes everything, for good.
    pub(super) fn close_all(&self) {
        let mut shelves = self.shelves.lock().unwrap_or_else(PoisonError::into_inner);
        shelves.closed = true;
        shelves.idle.clear();
    }
}

impl<S> Shelves<S> {
    fn put(&mut self, key: Key, session: S) {
        let total: usize = self.idle.values().map(Vec::len).sum();
        let waiting = self.idle.entry(key).or_default();
        if !self.closed && waiting.len() < IDLE_MAX && total < IDLE_TOTAL_MAX {
            waiting.push((session, Instant::now()));
        }
    }

    fn drop_stale(&mut self, now: Instant) {
        for waiting in self.idle.values_mut() {
            waiting.retain(|(_, since)| now.duration_since(*since) < IDLE_TIMEOUT);
        }
        self.idle.retain(|_, waiting| !waiting.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    struct Fake {
        usable: bool,
        resets: bool,
        open: Arc<AtomicUsize>,
    }

    impl Fake {
        fn new(open: &Arc<AtomicUsize>) -> Self {
            open.fetch_add(1, Ordering::SeqCst);
            Self { usable: true, resets: true, open: Arc::clone(open) }
        }
    }

    impl Drop for Fake {
        fn drop(&mut self) {
            self.open.fetch_sub(1, Ordering::SeqCst);
        }
    }

    #[async_trait]
    impl Reusable for Fake {
        fn is_usable(&self) -> bool {
            self.usable
        }

        async fn reset(&mut self) -> bool {
            self.resets
        }
    }

    /// Lets the tasks that reset come to their end: on one thread, they run when this one yields.
    async fn settle() {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }

    fn pool() -> (SessionPool<Fake>, Arc<AtomicUsize>, SandboxId) {
        (SessionPool::new(), Arc::default(), SandboxId::fresh())
    }

    const OWNER: CredentialAccess = CredentialAccess::Owner;

    #[tokio::test]
    async fn a_sound_session_is_used_again_for_the_same_sandbox_and_role_only() {
        let (pool, open, id) = pool();
        pool.give_back(id, OWNER, Fake::new(&open));
        settle().await;
        assert!(pool.take(SandboxId::fresh(), OWNER).is_none());
        assert!(pool.take(id, CredentialAccess::ReadOnly).is_none());
        assert!(pool.take(id, OWNER).is_some());
        assert!(pool.take(id, OWNER).is_none());
    }

    #[tokio::test]
    async fn what_is_unsound_or_does_not_reset_is_closed() {
        let (pool, open, id) = pool();
        let (mut unsound, mut stubborn) = (Fake::new(&open), Fake::new(&open));
        unsound.usable = false;
        stubborn.resets = false;
        pool.give_back(id, OWNER, unsound);
        pool.give_back(id, OWNER, stubborn);
        settle().await;
        assert!(pool.take(id, OWNER).is_none());
        assert_eq!(open.load(Ordering::SeqCst), 0);
    }

    #[tokio::test]
    async fn few_wait_per_sandbox_and_role() {
        let (pool, open, id) = pool();
        for _ in 0..IDLE_MAX + 3 {
            pool.give_back(id, OWNER, Fake::new(&open));
        }
        settle().await;
        assert_eq!(open.load(Ordering::SeqCst), IDLE_MAX);
    }

    #[tokio::test]
    async fn few_wait_in_all() {
        let (pool, open, _) = pool();
        for _ in 0..IDLE_TOTAL_MAX + 5 {
            pool.give_back(SandboxId::fresh(), OWNER, Fake::new(&open));
        }
        settle().await;
        assert_eq!(open.load(Ordering::SeqCst), IDLE_TOTAL_MAX);
    }

    #[tokio::test]
    async fn none_waits_for_long() {
        let (pool, open, id) = pool();
        pool.give_back(id, OWNER, Fake::new(&open));
        settle().await;
        let now = Instant::now();
        pool.shelves.lock().unwrap().drop_stale(now + IDLE_TIMEOUT - Duration::from_secs(1));
        assert_eq!(open.load(Ordering::SeqCst), 1);
        pool.shelves.lock().unwrap().drop_stale(now + IDLE_TIMEOUT);
        assert_eq!(open.load(Ordering::SeqCst), 0);
    }

    #[tokio::test]
    async fn a_role_that_may_not_log_in_loses_its_sessions_and_the_other_keeps_its_own() {
        let (pool, open, id) = pool();
        pool.give_back(id, OWNER, Fake::new(&open));
        pool.give_back(id, CredentialAccess::ReadOnly, Fake::new(&open));
        settle().await;
        pool.close_role(id, OWNER);
        assert!(pool.take(id, OWNER).is_none());
        assert!(pool.take(id, CredentialAccess::ReadOnly).is_some());
    }

    #[tokio::test]
    async fn a_sandbox_that_goes_takes_its_sessions_along() {
        let (pool, open, id) = pool();
        pool.give_back(id, OWNER, Fake::new(&open));
        settle().await;
        pool.close(id);
        assert_eq!(open.load(Ordering::SeqCst), 0);
    }
}
