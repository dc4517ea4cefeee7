//! The admin's sessions that wait to be used again, by database.
//!
//! The last to come back is the first to go out again, so those in front have waited longest. Whoever comes back closes
//! what has waited too long, in every database; upkeep comes back more often than that.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::server::SESSIONS_MAX;

/// How long one stays open that nobody needs: a burst finds those of the last, and an idle program holds only what its
/// upkeep uses.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Sessions that wait, and since when.
#[derive(Debug)]
pub(super) struct Idle<S> {
    by_database: HashMap<String, Vec<(S, Instant)>>,
}

impl<S> Default for Idle<S> {
    fn default() -> Self {
        Self { by_database: HashMap::new() }
    }
}

impl<S> Idle<S> {
    /// Keeps a session, unless as many wait as can be out.
    pub(super) fn put(&mut self, database: String, session: S, now: Instant) {
        for waiting in self.by_database.values_mut() {
            waiting.retain(|(_, since)| now.duration_since(*since) < IDLE_TIMEOUT);
        }
        let waiting = self.by_database.entry(database).or_default();
        if waiting.len() < SESSIONS_MAX {
            waiting.push((session, now));
        }
    }

    /// Takes the session that came back last, with when that was.
    pub(super) fn take(&mut self, database: &str) -> Option<(S, Instant)> {
        self.by_database.get_mut(database)?.pop()
    }

    /// Closes all but one for each database, as the next step, or the way out, needs it.
    pub(super) fn trim(&mut self) {
        self.by_database.values_mut().for_each(|waiting| waiting.truncate(1));
    }

    /// Closes all.
    pub(super) fn clear(&mut self) {
        self.by_database.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many wait for the database.
    fn waiting<S>(idle: &Idle<S>, database: &str) -> usize {
        idle.by_database.get(database).map_or(0, Vec::len)
    }

    #[test]
    fn what_has_waited_too_long_is_closed_by_the_next_to_come_back() {
        const TICK: Duration = Duration::from_nanos(1);
        let begun = Instant::now();
        for (later, kept) in [(Duration::ZERO, 3), (IDLE_TIMEOUT - TICK, 3), (IDLE_TIMEOUT, 0), (IDLE_TIMEOUT * 9, 0)] {
            let mut idle = Idle::default();
            (0..3).for_each(|session| idle.put("postgres".to_owned(), session, begun));
            idle.put("pgsandbox".to_owned(), 3, begun);
            idle.put("pgsandbox".to_owned(), 4, begun + later);
            assert_eq!(waiting(&idle, "postgres"), kept, "after {later:?}, in a database that nobody comes back to");
            assert_eq!(idle.take("pgsandbox"), Some((4, begun + later)), "the last is never closed for the others");
        }
    }

    #[test]
    fn so_many_wait_for_one_database_and_no_more() {
        let now = Instant::now();
        let mut idle = Idle::default();
        for session in 0..SESSIONS_MAX + 2 {
            idle.put("postgres".to_owned(), session, now);
            assert_eq!(waiting(&idle, "postgres"), (session + 1).min(SESSIONS_MAX));
        }
        idle.put("pgsandbox".to_owned(), 0, now);
        idle.trim();
        assert_eq!((waiting(&idle, "postgres"), waiting(&idle, "pgsandbox")), (1, 1));
        idle.clear();
        assert_eq!(idle.take("postgres"), None);
    }
}
