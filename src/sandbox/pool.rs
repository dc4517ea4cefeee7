//! Keeps sessions into sandboxes for the next call, and keeps any one caller from taking them all.
//!
//! A session goes back only if it is sound and could be reset to what it was when opened; any other is closed. Few
//! wait per sandbox and role, and not for long. Nothing is handed out across sandboxes or roles, and what reads catalogues
//! for us never runs a caller's SQL.
//!
//! Who wants a session takes a [`Turn`] first: so many may be out per sandbox and role, per owner, and in all. Others
//! wait their turn, in the order in which they came, and are told to come back if it does not come in time. What waits
//! on the shelves and what is out are never more together than there are turns: the longest waiting makes room.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::model::{Code, CredentialAccess, Failure, SandboxId};

/// Sessions that wait per sandbox and role, and that may be out at once: what agents run side by side in one sandbox.
/// A call that finds none logs in, which takes longer than all the rest of it.
const PER_ROLE_MAX: usize = 8;
/// Sessions of one owner's that may be out at once, in however many sandboxes: a quarter is left for everybody else.
const PER_OWNER_MAX: usize = 24;
/// Sessions in all; each is a backend of some megabytes on the server.
const TOTAL_MAX: usize = 32;
/// How long a session waits: a forgotten one keeps a backend, and DROP DATABASE, waiting.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Sessions that wait per sandbox to read its catalogue: schemas are seldom read side by side.
const CATALOGUES_MAX: usize = 1;

/// What a session is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Use {
    /// The caller's SQL, as one of the sandbox's roles.
    Sql(CredentialAccess),
    /// Reading the catalogue, as the reader; what is run is ours alone.
    Catalogue,
}

impl Use {
    /// Returns the role that the session is of, among whose turns its own is.
    const fn access(self) -> CredentialAccess {
        match self {
            Self::Sql(access) => access,
            Self::Catalogue => CredentialAccess::ReadOnly,
        }
    }

    /// Returns how many may wait.
    const fn waiting_max(self) -> usize {
        match self {
            Self::Sql(_) => PER_ROLE_MAX,
            Self::Catalogue => CATALOGUES_MAX,
        }
    }
}

impl From<CredentialAccess> for Use {
    fn from(access: CredentialAccess) -> Self {
        Self::Sql(access)
    }
}

/// What a session must offer to be used again.
#[async_trait]
pub trait Reusable: Send + 'static {
    /// Returns whether the connection stands, and no transaction, copy or cancelled statement hangs on it.
    fn is_usable(&self) -> bool;

    /// Returns whether the server has said nothing since the last call, and has not closed the connection. One that has
    /// ended the session, while it waited, says so first.
    fn is_quiet(&self) -> bool;

    /// Puts the session back to what it was when opened; returns whether that worked.
    async fn reset(&mut self) -> bool;
}

type Lane = (SandboxId, CredentialAccess);
type Key = (SandboxId, Use);

/// Waiting sessions, by sandbox and role, and the turns of those who want one.
pub(super) struct SessionPool<S> {
    shelves: Arc<Mutex<Shelves<S>>>,
    per_role: Lanes<Lane>,
    per_owner: Lanes<String>,
    total: Arc<Semaphore>,
    /// The sandboxes that nobody gets a session into, or that somebody waits for to be so.
    holds: Mutex<HashMap<SandboxId, Arc<tokio::sync::Mutex<Weak<Hold>>>>>,
}

/// Every turn of a sandbox's: while it is kept, nobody gets a session into it. Those who want that share it.
#[derive(Debug)]
pub(super) struct Hold {
    _turns: [OwnedSemaphorePermit; 2],
}

/// The right to have one session out.
#[derive(Debug)]
pub(super) struct Turn {
    /// Given back narrowest first.
    _permits: [OwnedSemaphorePermit; 3],
}

struct Shelves<S> {
    idle: HashMap<Key, Vec<(S, Instant)>>,
    /// The turns that are left, which is how many more sessions there may be.
    free: Arc<Semaphore>,
    closed: bool,
}

/// Turns by key; a key that nobody is at is forgotten.
struct Lanes<K> {
    lanes: Mutex<HashMap<K, Arc<Semaphore>>>,
    width: usize,
}

impl<K: Eq + Hash> Lanes<K> {
    fn new(width: usize) -> Self {
        Self { lanes: Mutex::default(), width }
    }

    fn lane(&self, key: K) -> Arc<Semaphore> {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever waits or is out holds its lane.
        lanes.retain(|_, lane| Arc::strong_count(lane) > 1);
        Arc::clone(lanes.entry(key).or_insert_with(|| Arc::new(Semaphore::new(self.width))))
    }
}

impl<S: Reusable> SessionPool<S> {
    pub(super) fn new() -> Self {
        let total = Arc::new(Semaphore::new(TOTAL_MAX));
        let shelves = Shelves { idle: HashMap::new(), free: Arc::clone(&total), closed: false };
        Self {
            shelves: Arc::new(Mutex::new(shelves)),
            per_role: Lanes::new(PER_ROLE_MAX),
            per_owner: Lanes::new(PER_OWNER_MAX),
            total,
            holds: Mutex::default(),
        }
    }

    /// Waits until no session of the sandbox's is out, but not beyond `until`, and lets none out while what is returned
    /// is kept.
    ///
    /// # Errors
    /// `busy` when some did not come back in time.
    pub(super) async fn hold(&self, id: SandboxId, until: Instant) -> Result<Arc<Hold>, Failure> {
        let place = {
            let mut holds = self.holds.lock().unwrap_or_else(PoisonError::into_inner);
            // Who holds one, or waits for one, is known by its place.
            holds.retain(|_, place| {
                Arc::strong_count(place) > 1 || place.try_lock().is_ok_and(|hold| hold.strong_count() > 0)
            });
            Arc::clone(holds.entry(id).or_default())
        };
        let in_use = || {
            Failure::new(Code::Busy, "calls in the sandbox are under way, and did not end in time")
                .hint("call again when they have ended")
        };
        let mut held = tokio::time::timeout_at(until, place.lock()).await.map_err(|_| in_use())?;
        if let Some(hold) = held.upgrade() {
            return Ok(hold);
        }
        let owner = take_turns(self.per_role.lane((id, CredentialAccess::Owner)), until).await.ok_or_else(in_use)?;
        let reader =
            take_turns(self.per_role.lane((id, CredentialAccess::ReadOnly)), until).await.ok_or_else(in_use)?;
        let hold = Arc::new(Hold { _turns: [owner, reader] });
        *held = Arc::downgrade(&hold);
        Ok(hold)
    }

    /// Waits until a session of the sandbox's may go out, but not beyond `until`.
    ///
    /// # Errors
    /// `busy` when none may in time.
    pub(super) async fn turn(
        &self,
        id: SandboxId,
        access: CredentialAccess,
        owner: &str,
        until: Instant,
    ) -> Result<Turn, Failure> {
        // The narrowest first, so that who waits for one holds up nobody at the wider ones.
        let role =
            take_turn(self.per_role.lane((id, access)), until).await.ok_or_else(|| {
                crowded(&format!("{PER_ROLE_MAX} calls as the same role of the sandbox")).hint(
                "run fewer calls at once in one sandbox, or give each a shorter `timeoutSeconds`; then call again",
            ).naming(&["timeoutSeconds"])
            })?;
        let owner = take_turn(self.per_owner.lane(owner.to_owned()), until).await.ok_or_else(|| {
            crowded(&format!("{PER_OWNER_MAX} calls in sandboxes of the same owner"))
                .hint("run fewer calls at once, or give each a shorter `timeoutSeconds`; then call again")
                .naming(&["timeoutSeconds"])
        })?;
        let total = take_turn(Arc::clone(&self.total), until).await.ok_or_else(|| {
            crowded(&format!("{TOTAL_MAX} calls, as many as this server runs at once,")).hint("call again later")
        })?;
        Ok(Turn { _permits: [role, owner, total] })
    }

    /// Takes a waiting session, for who has a turn. Where there is none, there is room on the server for a new one.
    pub(super) fn take(&self, id: SandboxId, what_for: impl Into<Use>) -> Option<S> {
        let mut shelves = self.shelves.lock().unwrap_or_else(PoisonError::into_inner);
        shelves.drop_stale(Instant::now());
        if let Some(waiting) = shelves.idle.get_mut(&(id, what_for.into())) {
            while let Some((session, _)) = waiting.pop() {
                if session.is_usable() && session.is_quiet() {
                    return Some(session);
                }
            }
        }
        shelves.make_room();
        None
    }

    /// Puts a session back, if it can be used again. Never waits: the reset runs in a task of its own, and `turn` ends
    /// with it.
    pub(super) fn give_back(&self, id: SandboxId, what_for: impl Into<Use>, mut session: S, turn: Turn) {
        if !session.is_usable() {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let shelves = Arc::clone(&self.shelves);
        let key = (id, what_for.into());
        drop(runtime.spawn(async move {
            if session.reset().await && session.is_usable() {
                let mut shelves = shelves.lock().unwrap_or_else(PoisonError::into_inner);
                // Under the lock, so that whoever has the next turn finds the session.
                drop(turn);
                shelves.put(key, session);
            }
        }));
    }

    /// Closes the session that has waited longest, so that the server has room for another. Returns whether there was one.
    pub(super) fn close_one(&self) -> bool {
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner).close_longest_waiting()
    }

    /// Closes what waits for a sandbox that is about to go.
    pub(super) fn close(&self, id: SandboxId) {
        let mut shelves = self.shelves.lock().unwrap_or_else(PoisonError::into_inner);
        shelves.idle.retain(|(of, _), _| *of != id);
    }

    /// Closes what waits for one role of a sandbox.
    pub(super) fn close_role(&self, id: SandboxId, access: CredentialAccess) {
        let mut shelves = self.shelves.lock().unwrap_or_else(PoisonError::into_inner);
        shelves.idle.retain(|(of, what_for), _| (*of, what_for.access()) != (id, access));
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

async fn take_turn(lane: Arc<Semaphore>, until: Instant) -> Option<OwnedSemaphorePermit> {
    tokio::time::timeout_at(until, lane.acquire_owned()).await.ok()?.ok()
}

async fn take_turns(lane: Arc<Semaphore>, until: Instant) -> Option<OwnedSemaphorePermit> {
    let all = u32::try_from(PER_ROLE_MAX).unwrap_or(u32::MAX);
    tokio::time::timeout_at(until, lane.acquire_many_owned(all)).await.ok()?.ok()
}

fn crowded(who: &str) -> Failure {
    Failure::new(Code::Busy, format!("{who} are under way, and none ended in time"))
}

impl<S> Shelves<S> {
    fn put(&mut self, key: Key, session: S) {
        let waiting = self.idle.entry(key).or_default();
        if !self.closed && waiting.len() < key.1.waiting_max() {
            waiting.push((session, Instant::now()));
            self.make_room();
        }
    }

    /// Closes what has waited longest, until no more wait than there are turns left.
    fn make_room(&mut self) {
        while self.idle.values().map(Vec::len).sum::<usize>() > self.free.available_permits() {
            if !self.close_longest_waiting() {
                return;
            }
        }
    }

    fn close_longest_waiting(&mut self) -> bool {
        // The first of each shelf has waited longest there.
        let oldest = self.idle.iter().filter_map(|(key, waiting)| Some((waiting.first()?.1, *key))).min_by_key(|o| o.0);
        let Some((_, key)) = oldest else { return false };
        if let Some(waiting) = self.idle.get_mut(&key)
            && !waiting.is_empty()
        {
            drop(waiting.remove(0));
        }
        true
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
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use futures_util::FutureExt as _;

    use super::*;

    struct Fake {
        usable: bool,
        resets: bool,
        ended: Arc<AtomicBool>,
        open: Arc<AtomicUsize>,
    }

    impl Fake {
        fn new(open: &Arc<AtomicUsize>) -> Self {
            open.fetch_add(1, Ordering::SeqCst);
            Self { usable: true, resets: true, ended: Arc::default(), open: Arc::clone(open) }
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

        fn is_quiet(&self) -> bool {
            !self.ended.load(Ordering::SeqCst)
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

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    /// Has a session out and gives it back.
    async fn use_one(pool: &SessionPool<Fake>, id: SandboxId, access: CredentialAccess, session: Fake) {
        let turn = pool.turn(id, access, "owner", soon()).await.unwrap();
        pool.give_back(id, access, session, turn);
        settle().await;
    }

    /// Returns a turn if there is one at once.
    fn turn_now(pool: &SessionPool<Fake>, id: SandboxId, owner: &str) -> Option<Turn> {
        pool.turn(id, OWNER, owner, soon()).now_or_never().map(Result::unwrap)
    }

    const OWNER: CredentialAccess = CredentialAccess::Owner;

    #[tokio::test]
    async fn a_session_that_the_server_ended_while_it_waited_is_not_used_again() {
        let (pool, open, id) = pool();
        let session = Fake::new(&open);
        let ended = Arc::clone(&session.ended);
        use_one(&pool, id, OWNER, session).await;
        ended.store(true, Ordering::SeqCst);
        assert!(pool.take(id, OWNER).is_none());
        assert_eq!(open.load(Ordering::SeqCst), 0);
    }

    #[tokio::test]
    async fn a_sound_session_is_used_again_for_the_same_sandbox_and_role_only() {
        let (pool, open, id) = pool();
        use_one(&pool, id, OWNER, Fake::new(&open)).await;
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
        use_one(&pool, id, OWNER, unsound).await;
        use_one(&pool, id, OWNER, stubborn).await;
        settle().await;
        assert!(pool.take(id, OWNER).is_none());
        assert_eq!(open.load(Ordering::SeqCst), 0);
    }

    #[tokio::test]
    async fn few_are_out_per_sandbox_and_role_and_as_many_wait() {
        let (pool, open, id) = pool();
        let turns: Vec<Turn> = (0..PER_ROLE_MAX).map(|_| turn_now(&pool, id, "owner").unwrap()).collect();
        assert!(turn_now(&pool, id, "owner").is_none(), "one more than may be");
        assert!(turn_now(&pool, SandboxId::fresh(), "owner").is_some(), "another sandbox has its own");
        turns.into_iter().for_each(|turn| pool.give_back(id, OWNER, Fake::new(&open), turn));
        settle().await;
        assert_eq!(open.load(Ordering::SeqCst), PER_ROLE_MAX);
        assert!(turn_now(&pool, id, "owner").is_some());
    }

    #[tokio::test]
    async fn one_owner_leaves_room_for_others() {
        let (pool, ..) = pool();
        let turns: Vec<Turn> =
            (0..PER_OWNER_MAX).map(|_| turn_now(&pool, SandboxId::fresh(), "greedy").unwrap()).collect();
        assert!(turn_now(&pool, SandboxId::fresh(), "greedy").is_none());
        let others: Vec<Turn> =
            (PER_OWNER_MAX..TOTAL_MAX).map(|_| turn_now(&pool, SandboxId::fresh(), "other").unwrap()).collect();
        assert!(turn_now(&pool, SandboxId::fresh(), "third").is_none(), "all are out");
        drop((turns, others));
        assert!(turn_now(&pool, SandboxId::fresh(), "third").is_some());
    }

    #[tokio::test]
    async fn a_call_that_waits_has_the_next_turn_and_its_session() {
        let (pool, open, id) = pool();
        let mut turns: Vec<Turn> = (0..PER_ROLE_MAX).map(|_| turn_now(&pool, id, "owner").unwrap()).collect();
        let mut waiting = std::pin::pin!(pool.turn(id, OWNER, "owner", soon()));
        assert!(waiting.as_mut().now_or_never().is_none());
        pool.give_back(id, OWNER, Fake::new(&open), turns.pop().unwrap());
        let _turn = waiting.await.unwrap();
        assert!(pool.take(id, OWNER).is_some());
    }

    #[tokio::test]
    async fn what_waits_and_what_is_out_are_bounded_together() {
        let (pool, open, _) = pool();
        for _ in 0..TOTAL_MAX {
            use_one(&pool, SandboxId::fresh(), OWNER, Fake::new(&open)).await;
        }
        assert_eq!(open.load(Ordering::SeqCst), TOTAL_MAX);
        let id = SandboxId::fresh();
        let _turn = turn_now(&pool, id, "owner").unwrap();
        assert!(pool.take(id, OWNER).is_none());
        assert_eq!(open.load(Ordering::SeqCst), TOTAL_MAX - 1, "the longest waiting made room");
        assert!(pool.close_one());
        assert_eq!(open.load(Ordering::SeqCst), TOTAL_MAX - 2);
    }

    #[tokio::test]
    async fn nobody_gets_a_session_into_a_sandbox_that_is_held() {
        let (pool, open, id) = pool();
        let out = turn_now(&pool, id, "owner").unwrap();
        assert!(pool.hold(id, soon()).now_or_never().is_none(), "a call is under way");
        pool.give_back(id, OWNER, Fake::new(&open), out);
        settle().await;
        let (one, two) = (pool.hold(id, soon()).await.unwrap(), pool.hold(id, soon()).await.unwrap());
        assert!(turn_now(&pool, SandboxId::fresh(), "owner").is_some(), "of another sandbox");
        drop(one);
        assert!(turn_now(&pool, id, "owner").is_none(), "the other one holds it still");
        drop(two);
        assert!(turn_now(&pool, id, "owner").is_some());
    }

    #[tokio::test]
    async fn none_waits_for_long() {
        let (pool, open, id) = pool();
        use_one(&pool, id, OWNER, Fake::new(&open)).await;
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
        use_one(&pool, id, OWNER, Fake::new(&open)).await;
        use_one(&pool, id, CredentialAccess::ReadOnly, Fake::new(&open)).await;
        settle().await;
        pool.close_role(id, OWNER);
        assert!(pool.take(id, OWNER).is_none());
        assert!(pool.take(id, CredentialAccess::ReadOnly).is_some());
    }

    #[tokio::test]
    async fn what_reads_the_catalogue_is_kept_apart_from_what_runs_sql() {
        let (pool, open, id) = pool();
        let (one, two) = (turn_now(&pool, id, "owner").unwrap(), turn_now(&pool, id, "owner").unwrap());
        pool.give_back(id, Use::Catalogue, Fake::new(&open), one);
        pool.give_back(id, Use::Catalogue, Fake::new(&open), two);
        settle().await;
        assert_eq!(open.load(Ordering::SeqCst), CATALOGUES_MAX);
        assert!(pool.take(id, CredentialAccess::ReadOnly).is_none() && pool.take(id, OWNER).is_none());
        pool.close_role(id, OWNER);
        let session = pool.take(id, Use::Catalogue).unwrap();
        assert!(pool.take(id, Use::Catalogue).is_none());
        pool.give_back(id, Use::Catalogue, session, turn_now(&pool, id, "owner").unwrap());
        settle().await;
        pool.close_role(id, CredentialAccess::ReadOnly);
        assert!(pool.take(id, Use::Catalogue).is_none(), "it was the reader's");
    }

    #[tokio::test]
    async fn a_sandbox_that_goes_takes_its_sessions_along() {
        let (pool, open, id) = pool();
        use_one(&pool, id, OWNER, Fake::new(&open)).await;
        settle().await;
        pool.close(id);
        assert_eq!(open.load(Ordering::SeqCst), 0);
    }
}
