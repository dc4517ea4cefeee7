//! Whether a server's clock is to be believed when it says that a sandbox's time is over.
//!
//! A sandbox's time is over by its server's clock, and what is over is removed. A clock that was set a year ahead for a
//! minute would so remove everything. Therefore a clock that has jumped ahead, or is ahead of this machine's when it is
//! first seen, is doubted for a while, in which nothing is removed for its time: an operator, or the machine itself, has
//! that long to set it right, and so has the owner of a laptop that slept. Use is refused meanwhile as ever.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::model::Timestamp;

/// More than clocks that nobody keeps drift apart, and than a round of upkeep is late on a busy machine.
const JUMP: Duration = Duration::from_secs(600);
/// How long a clock that has jumped is doubted.
const DOUBT: Duration = Duration::from_secs(600);

/// What is known of one server's clock.
#[derive(Debug, Default)]
pub(super) struct ClockWatch(Mutex<Option<Seen>>);

#[derive(Clone, Copy, Debug)]
struct Seen {
    server: Timestamp,
    at: Instant,
    doubted_until: Option<Instant>,
}

impl ClockWatch {
    /// Takes note of the server's time, `server`, seen at `at`, when this machine's clock said `ours`. Returns how long
    /// it is still doubted; `None` if it is believed.
    pub(super) fn doubts(&self, server: Timestamp, at: Instant, ours: Timestamp) -> Option<Duration> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (expected, doubted_until) = match *seen {
            Some(seen) => (seen.server.plus(at.duration_since(seen.at)), seen.doubted_until),
            None => (ours, None),
        };
        let ahead_ms = server.ms_since(expected);
        let jump_ms = i64::try_from(JUMP.as_millis()).unwrap_or(i64::MAX);
        let doubted_until = if ahead_ms > jump_ms {
            Some(at + DOUBT)
        } else if ahead_ms < -jump_ms {
            // Set back: what was wrong is right again, or too little is removed.
            None
        } else {
            doubted_until.filter(|until| at < *until)
        };
        *seen = Some(Seen { server, at, doubted_until });
        doubted_until.map(|until| until.duration_since(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const YEAR_SECONDS: u64 = 366 * 24 * 3600;

    /// Each look is (seconds passed, the server's clock, ours), in seconds; believed or not.
    fn check(looks: &[(u64, u64, u64)], believed: &[bool]) {
        let (watch, begun) = (ClockWatch::default(), Instant::now());
        let time = |seconds: u64| Timestamp::from_unix_ms((1_000_000_000 + seconds) * 1000);
        let found: Vec<bool> = looks
            .iter()
            .map(|&(passed, server, ours)| {
                watch.doubts(time(server), begun + Duration::from_secs(passed), time(ours)).is_none()
            })
            .collect();
        assert_eq!(found, believed, "{looks:?}");
    }

    #[test]
    fn a_clock_that_goes_as_time_does_is_believed() {
        check(&[(0, 0, 0), (15, 15, 15), (30, 31, 30), (3600, 3590, 3600)], &[true; 4]);
    }

    #[test]
    fn a_clock_that_jumps_ahead_is_believed_once_it_has_stood() {
        let year = YEAR_SECONDS;
        check(&[(0, 0, 0), (15, year, 15), (30, year + 15, 30), (616, year + 601, 616)], &[true, false, false, true]);
    }

    #[test]
    fn a_clock_that_was_set_right_again_is_believed_at_once() {
        check(&[(0, 0, 0), (15, YEAR_SECONDS, 15), (30, 30, 30)], &[true, false, true]);
    }

    #[test]
    fn a_clock_that_is_ahead_of_ours_when_it_is_first_seen_is_doubted_for_a_while() {
        let year = YEAR_SECONDS;
        check(&[(0, year, 0), (590, year + 590, 590), (605, year + 605, 605)], &[false, false, true]);
    }

    #[test]
    fn a_jump_of_our_own_clock_changes_nothing_once_the_servers_is_known() {
        check(&[(0, 0, 0), (15, 15, YEAR_SECONDS), (30, 30, 0)], &[true; 3]);
    }

    #[test]
    fn a_clock_behind_removes_too_little_and_is_believed() {
        check(&[(0, 0, YEAR_SECONDS), (15, 15, YEAR_SECONDS)], &[true; 2]);
    }
}
