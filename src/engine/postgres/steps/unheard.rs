//! Sessions of sandboxes that keep the server waiting for all of them to hear of something: told from those that hear, and
//! ended.
//!
//! Since 15 the server drops no database before every session has heard of it, which one that waits for its client in the midst
//! of a command does not. Who moves is not who hears: bytes of a row that never ends say nothing. Who takes or sends whole
//! rows hears between two of them, which is seen of COPY alone, and such a session is never ended. Of others it is seen whether
//! they wake at all, where the server runs here. Who does not is ended soon. Who does may be somebody whose rows are
//! taken slowly, and is ended only where the server has waited for long, one after the other, and no more than it takes.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

use super::Work;
use crate::engine::EngineError;
use crate::engine::postgres::admin::refused;
use crate::model::role_pattern;

/// How long the server waits for sessions to hear of something before it is looked for those that cannot, in milliseconds.
const UNHEARD_AFTER_MS: f64 = 1_000.0;
/// Since this version the server drops no database before every session has heard of it.
const MAJOR_HEARD: u16 = 15;
/// Since this version COPY says which rows it left out for a fault of theirs.
const MAJOR_SKIPS: u16 = 17;
/// How long a session must have been seen without a move before it is ended.
const STILL_FOR: Duration = Duration::from_secs(2);
/// How long one and the same wait of the server's has lasted before who moves is ended as well.
const PATIENT_FOR: Duration = Duration::from_secs(15);
/// How long the server has to go on once a session was ended, before another one is.
const GOES_ON_WITHIN: Duration = Duration::from_millis(200);

/// A statement that waits for all sessions to hear: its session, and when it began.
type Wait = (i32, String);

/// What is known of who hears, from one look to the next.
#[derive(Debug, Default)]
pub(super) struct Hearing {
    /// What waits, and since when it is seen.
    waits: HashMap<Wait, Instant>,
    sessions: HashMap<i32, Heard>,
    /// Until then nobody is ended.
    pause: Option<Instant>,
}

/// How a session was seen at one look.
#[derive(Clone, Debug)]
struct Seen {
    /// Which command of which session it is.
    command: String,
    /// Since when it is in its state, in seconds.
    since: f64,
    waits: Option<For>,
    /// How many rows it has done with.
    rows: i64,
    /// How many bytes COPY has taken.
    bytes: i64,
    /// How often its process woke; `None` where that cannot be seen from here.
    wakes: Option<u64>,
    /// How many bytes its client has not been sent yet, where that is seen: it is woken only for many of them.
    unsent: Option<u64>,
}

/// What a session waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum For {
    /// What its client sends.
    Input,
    /// That its client takes something.
    Output,
}

/// A command of a session, as it was seen from its first look on.
#[derive(Debug)]
struct Heard {
    last: Seen,
    first_at: Instant,
    first_wakes: Option<u64>,
    moved_at: Instant,
    /// When it was last seen to have done with a row: it has heard of all that was to be heard of then.
    heard_at: Option<Instant>,
    /// Whether it is another admin's, which is waited for.
    is_foreign: bool,
}

impl Heard {
    fn new(seen: Seen, now: Instant) -> Self {
        let first_wakes = seen.wakes;
        Self { last: seen, first_at: now, first_wakes, moved_at: now, heard_at: None, is_foreign: false }
    }

    fn see(&mut self, seen: Seen, now: Instant) {
        if seen.rows != self.last.rows {
            self.heard_at = Some(now);
        }
        let moved = |seen: &Seen| (seen.rows, seen.bytes, seen.wakes, seen.unsent);
        if seen.waits.is_none() || moved(&seen) != moved(&self.last) {
            self.moved_at = now;
        }
        self.last = seen;
    }

    /// Returns what it waits for, if it may be what something waits for that is seen since then.
    fn waits(&self, since: Instant) -> Option<For> {
        self.last.waits.filter(|_| !self.is_foreign && self.heard_at.is_none_or(|at| at < since))
    }

    fn wakes(&self) -> u64 {
        self.last.wakes.unwrap_or_default().saturating_sub(self.first_wakes.unwrap_or_default())
    }
}

impl Hearing {
    /// Notes how all stand that may be waited for.
    fn note(&mut self, waits: Vec<Wait>, sessions: HashMap<i32, Seen>, now: Instant) {
        self.waits.retain(|wait, _| waits.contains(wait));
        for wait in waits {
            self.waits.entry(wait).or_insert(now);
        }
        self.sessions.retain(|pid, heard| sessions.get(pid).is_some_and(|seen| seen.command == heard.last.command));
        for (pid, seen) in sessions {
            match self.sessions.get_mut(&pid) {
                Some(heard) => heard.see(seen, now),
                None => drop(self.sessions.insert(pid, Heard::new(seen, now))),
            }
        }
    }

    /// Returns who is to be ended now: nobody, or one, or several that certainly hear nothing.
    fn deaf(&self, now: Instant) -> Vec<i32> {
        if self.pause.is_some_and(|until| now < until) {
            return Vec::new();
        }
        let Some(newest) = self.waits.values().max() else { return Vec::new() };
        let still = |input_or_output: For, knows_wakes: bool| {
            let of = self.sessions.iter().filter(move |(_, heard)| {
                heard.waits(*newest) == Some(input_or_output)
                    && heard.last.wakes.is_some() == knows_wakes
                    && now - heard.moved_at >= STILL_FOR
            });
            of.map(|(pid, heard)| (*pid, heard)).collect::<Vec<_>>()
        };
        // Whose client takes slowly wakes seldom: last of all.
        for waits in [For::Input, For::Output] {
            let certain = still(waits, true);
            if !certain.is_empty() {
                return certain.into_iter().map(|(pid, _)| pid).collect();
            }
        }
        let longest = |sessions: Vec<(i32, &Heard)>| {
            let order = |heard: &Heard| (heard.last.waits, heard.wakes());
            let first = sessions.into_iter().min_by(|(_, one), (_, other)| {
                order(one).cmp(&order(other)).then(one.last.since.total_cmp(&other.last.since))
            });
            first.map(|(pid, _)| pid)
        };
        if let Some(pid) = longest(still(For::Input, false)) {
            return vec![pid];
        }
        let Some(due) = self.waits.values().filter(|since| now - **since >= PATIENT_FOR).max() else {
            return Vec::new();
        };
        let last = self.sessions.iter().filter(|(_, heard)| heard.waits(*due).is_some() && heard.first_at <= *due);
        longest(last.map(|(pid, heard)| (*pid, heard)).collect()).into_iter().collect()
    }
}

impl Work<'_> {
    /// Ends sandboxes' sessions that hear nothing, while the server waits for all to hear: whoever writes to a client
    /// that takes nothing, also at a command's end, and whoever reads in the midst of one.
    pub(super) async fn end_unheard(&self, session: &Client, hearing: &mut Hearing) -> Result<(), EngineError> {
        if self.info.major < MAJOR_HEARD {
            return Ok(());
        }
        let failed = refused("end sessions that keep the server waiting", self.profile());
        let waits = session
            .query_typed(
                "SELECT pid, query_start::text FROM pg_catalog.pg_stat_activity WHERE wait_event = 'ProcSignalBarrier' \
                 AND query_start < pg_catalog.clock_timestamp() - $1 * interval '1 ms'",
                &[(&UNHEARD_AFTER_MS, Type::FLOAT8)],
            )
            .await
            .map_err(&failed)?;
        if waits.is_empty() {
            *hearing = Hearing::default();
            return Ok(());
        }
        let sessions = self.sessions_of_sandboxes(session).await?;
        let now = Instant::now();
        hearing.note(waits.iter().map(|row| (row.get(0), row.get(1))).collect(), sessions, now);
        for pid in hearing.deaf(now) {
            let Some(heard) = hearing.sessions.get_mut(&pid) else { continue };
            let end = "SELECT pg_catalog.pg_terminate_backend(a.pid) FROM pg_catalog.pg_stat_activity a WHERE a.pid = $1 \
                       AND pg_catalog.concat_ws(' ', a.backend_start, a.query_start, a.state_change) = $2";
            match session.query_typed(end, &[(&pid, Type::INT4), (&heard.last.command, Type::TEXT)]).await {
                // It is in another command by now.
                Ok(rows) if rows.is_empty() => {}
                Ok(_) => {
                    tracing::warn!(
                        sandbox = %self.spec.id, pid, wakes = heard.wakes(),
                        "a session that kept the server waiting is ended"
                    );
                    hearing.pause = Some(now + GOES_ON_WITHIN);
                }
                // One of another admin's sandboxes: it is waited for.
                Err(e) if e.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => heard.is_foreign = true,
                Err(e) => return Err(failed(e)),
            }
        }
        Ok(())
    }

    /// Looks at the sandboxes' sessions, and which of them wait for their client in the midst of a command or of its answer.
    async fn sessions_of_sandboxes(&self, session: &Client) -> Result<HashMap<i32, Seen>, EngineError> {
        let skipped = if self.info.major >= MAJOR_SKIPS { "+ p.tuples_skipped" } else { "" };
        let sql = format!(
            "SELECT a.pid, pg_catalog.concat_ws(' ', a.backend_start, a.query_start, a.state_change), \
             coalesce(extract(epoch FROM a.state_change), 0)::float8, \
             CASE WHEN a.wait_event = 'ClientRead' AND a.state LIKE 'idle%' THEN '' ELSE coalesce(a.wait_event, '') END, \
             coalesce(p.tuples_processed + p.tuples_excluded {skipped}, 0), coalesce(p.bytes_processed, 0), \
             a.client_port \
             FROM pg_catalog.pg_stat_activity a LEFT JOIN pg_catalog.pg_stat_progress_copy p ON p.pid = a.pid \
             WHERE a.usename::text ~ $1"
        );
        let rows = session
            .query_typed(&sql, &[(&role_pattern(&self.server.settings().prefix), Type::TEXT)])
            .await
            .map_err(refused("look for sessions that keep the server waiting", self.profile()))?;
        let wakes = self.server.managed().map(|managed| managed.wakes());
        let seen = rows.iter().map(|row| {
            let pid: i32 = row.get(0);
            let waits = match row.get(3) {
                "ClientRead" => Some(For::Input),
                "ClientWrite" => Some(For::Output),
                _ => None,
            };
            let (command, since, port): (_, _, Option<i32>) = (row.get(1), row.get(2), row.get(6));
            let unsent = wakes.as_ref().filter(|_| waits.is_some()).and_then(|wakes| wakes.unsent(port?));
            let wakes = wakes.as_ref().and_then(|wakes| wakes.of(pid));
            (pid, Seen { command, since, waits, rows: row.get(4), bytes: row.get(5), wakes, unsent })
        });
        Ok(seen.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A look: after so many milliseconds, the sessions that are there.
    type Look<'a> = (u64, &'a [(i32, Seen)]);

    fn seen(waits: Option<For>, rows: i64, wakes: Option<u64>) -> Seen {
        Seen { command: "copy".to_owned(), since: 0.0, waits, rows, bytes: 0, wakes, unsent: None }
    }

    fn reads(rows: i64, wakes: Option<u64>) -> Seen {
        seen(Some(For::Input), rows, wakes)
    }

    fn writes(rows: i64, wakes: Option<u64>) -> Seen {
        seen(Some(For::Output), rows, wakes)
    }

    /// Looks again and again while one statement waits, and checks who is to be ended after the last look.
    fn check(looks: &[Look<'_>], expected: &[i32]) {
        let (mut hearing, began) = (Hearing::default(), Instant::now());
        let mut ended = Vec::new();
        for (at, sessions) in looks {
            let now = began + Duration::from_millis(*at);
            hearing.note(vec![(1, "drop".to_owned())], sessions.iter().cloned().collect(), now);
            ended = hearing.deaf(now);
        }
        ended.sort_unstable();
        assert_eq!(ended, expected, "{looks:?}");
    }

    #[test]
    fn who_does_not_wake_is_ended_and_who_reads_first() {
        let deaf: &[_] =
            &[(2, reads(0, Some(5))), (3, writes(0, Some(5))), (4, reads(7, Some(1))), (5, seen(None, 0, Some(1)))];
        check(&[(0, deaf)], &[]);
        check(&[(0, deaf), (1_999, deaf)], &[]);
        check(&[(0, deaf), (2_000, deaf)], &[2, 4]);
        let writer: &[_] = &[(3, writes(0, Some(5)))];
        check(&[(0, writer), (2_000, writer)], &[3]);
    }

    #[test]
    fn who_has_rows_done_hears_and_is_never_ended() {
        let looks = [0, 1, 2, 3].map(|rows| [(2, reads(rows, Some(5))), (3, writes(rows, None))]);
        check(&[(0, &looks[0]), (9_000, &looks[1]), (18_000, &looks[2]), (30_000, &looks[3])], &[]);
        // Of this wait it has heard by the first of them.
        check(&[(0, &looks[0]), (1_000, &looks[1]), (40_000, &looks[1])], &[]);
    }

    #[test]
    fn who_moves_without_rows_is_ended_late_and_alone() {
        let look = |n: u64| {
            [(2, reads(0, Some(n * 9))), (3, reads(0, Some(n * 2))), (4, writes(0, Some(n))), (5, reads(0, Some(n)))]
        };
        let looks = [0, 1, 2, 3].map(look);
        check(&[(0, &looks[0]), (1_500, &looks[1]), (14_999, &looks[2])], &[]);
        check(&[(0, &looks[0]), (7_500, &looks[1]), (15_000, &looks[2])], &[5]);
        check(&[(0, &looks[0][..3]), (7_500, &looks[1][..3]), (15_000, &looks[2][..3])], &[3]);
        check(&[(0, &looks[0][2..3]), (7_500, &looks[1][2..3]), (15_000, &looks[2][2..3])], &[4]);
        // It began when the statement waited already, and has heard.
        check(&[(0, &[]), (7_500, &looks[1]), (15_000, &looks[2]), (16_000, &looks[3])], &[]);
    }

    #[test]
    fn where_nobody_knows_who_wakes_one_at_a_time_is_ended() {
        let since = |seen: Seen, since| Seen { since, ..seen };
        let deaf: &[_] =
            &[(2, since(reads(0, None), 20.0)), (3, since(reads(0, None), 10.0)), (4, since(writes(0, None), 1.0))];
        check(&[(0, deaf), (2_000, deaf)], &[3]);
        check(&[(0, &deaf[2..]), (14_000, &deaf[2..])], &[]);
        check(&[(0, &deaf[2..]), (15_000, &deaf[2..])], &[4]);
    }
}
