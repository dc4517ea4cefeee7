//! Keeps one owner from taking every connection of the server.
//!
//! A role may have so many sessions, and a sandbox two roles: nothing bounds what all sandboxes of one owner have together. So
//! where few connections are left, direct sessions of the owner who has most are ended, and only what is more than its share:
//! those that do nothing first. An owner that takes them again is kept out for a while. Who has no more than its share, or no
//! more than one sandbox may have, is never touched, nor who has the server for itself.
//!
//! Sessions of ours count for nobody: they come by the private socket, are few for each owner, and close by themselves. The
//! session that looks is opened before: where all connections are taken, also those that are kept for the admin, by logins
//! that were only begun for instance, no other could be opened.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::join_all;
use tokio_postgres::types::Type;

use super::super::admin::{AdminSession, Chain};
use super::greed::Owners;
use super::process::Paths;
use super::relief::{self, Why};

/// Where fewer connections are left, the server is crowded: as many as one owner's calls may use at once.
const LEFT_MIN: u32 = 24;
/// So many are free again once sessions were ended.
const LEFT_AGAIN: u32 = 48;
/// So many are anybody's share, however many owners there are: as many as both roles of one sandbox may have.
const SHARE_MIN: u32 = 40;
/// Who takes so many again within [`REMEMBERED_FOR`] is kept out.
const TAKEN_AGAIN: usize = 8;
/// How long it is remembered whose sessions were ended.
const REMEMBERED_FOR: Duration = Duration::from_secs(60);
/// Whose sessions were ended for it is noted there, for every program.
const PARTED: &str = "parted";
/// How long the session that looks may take.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// What is left for everybody but the admin, and of how many. A server from 16 on may keep some for others.
const ROOM: &str = "
    SELECT t.usable - (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_get_activity(NULL) a
        WHERE a.backend_type = 'client backend'), t.usable
    FROM (SELECT pg_catalog.current_setting('max_connections')::int8
        - pg_catalog.current_setting('superuser_reserved_connections')::int8
        - coalesce(pg_catalog.current_setting('reserved_connections', true), '0')::int8 AS usable) t";

/// Sessions that came over TCP: the process, whose, whether it does nothing, since when, and since when it is there.
const DIRECT: &str = "
    SELECT a.pid, r.rolname::text, coalesce(a.state, '') = 'idle',
        pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() - coalesce(a.state_change, a.backend_start)),
        pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() - a.backend_start)
    FROM pg_catalog.pg_stat_get_activity(NULL) a JOIN pg_catalog.pg_roles r ON r.oid = a.usesysid
    WHERE a.backend_type = 'client backend' AND a.client_addr IS NOT NULL";

/// Ends sessions, if their processes still serve some.
const END: &str = "
    SELECT pg_catalog.pg_terminate_backend(a.pid) FROM pg_catalog.pg_stat_get_activity(NULL) a
    WHERE a.pid = ANY ($1) AND a.backend_type = 'client backend' AND a.client_addr IS NOT NULL";

/// Connections for everybody but the admin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Room {
    left: i64,
    usable: i64,
}

/// A session that came over TCP.
#[derive(Clone, Debug)]
struct Direct {
    pid: i32,
    /// The sandbox's.
    database: String,
    is_idle: bool,
    /// How long it has been that, in seconds.
    still: f64,
    /// How long it has been there, in seconds.
    age: f64,
}

/// What is done about a crowd.
#[derive(Debug, PartialEq, Eq)]
enum Parting {
    /// These sessions of these sandboxes end.
    End { pids: Vec<i32>, databases: Vec<String> },
    /// All of these end, and these sandboxes are kept out.
    KeepOut { pids: Vec<i32>, databases: Vec<String> },
}

/// Returns whether few connections are left; `false` where it cannot be told.
pub(super) async fn is_crowded(session: &AdminSession) -> bool {
    room(session).await.is_some_and(Room::is_little)
}

/// Ends sessions of the owner who has most, if few connections are left and it has more than its share. Returns whether any
/// were.
pub(super) async fn part(paths: &Paths, session: &AdminSession, owners: &Owners) -> bool {
    let Some(room) = room(session).await.filter(|room| room.is_little()) else { return false };
    let Some(sessions) = direct(session).await else { return false };
    match choose(room, &sessions, owners, &parted(paths)) {
        None => false,
        Some(Parting::End { pids, databases }) => {
            tracing::warn!(
                sandboxes = databases.join(" "),
                sessions = pids.len(),
                left = room.left,
                "few connections are left: direct sessions of the owner who has most are ended"
            );
            for database in databases.iter().filter(|database| relief::is_plain(database)) {
                if let Err(error) = relief::note(paths, PARTED, database, "") {
                    tracing::warn!(sandbox = database, %error, "it cannot be noted whose sessions were ended");
                }
            }
            end(session, &pids).await
        }
        Some(Parting::KeepOut { pids, databases }) => {
            // First, as one of them may hold what keeps its roles from being changed.
            end(session, &pids).await;
            let those = databases.iter().filter(|database| relief::is_plain(database));
            join_all(those.map(|database| relief::keep_out(paths, session, database, Why::Connections))).await;
            true
        }
    }
}

impl Room {
    fn is_little(self) -> bool {
        self.left < i64::from(LEFT_MIN)
    }
}

/// Chooses what is done, given how long ago, in seconds, sessions of which sandboxes were ended.
fn choose(room: Room, sessions: &[Direct], owners: &Owners, parted: &HashMap<String, f64>) -> Option<Parting> {
    // Nobody else would be served.
    let count = owners.count().filter(|count| *count > 1)?;
    let mut held: HashMap<_, Vec<&Direct>> = HashMap::new();
    for session in sessions {
        held.entry(owners.of(&session.database)).or_default().push(session);
    }
    let mut most = held.into_values().max_by_key(Vec::len)?;
    let share = (room.usable.max(0).unsigned_abs() / count).max(u64::from(SHARE_MIN));
    let over = most.len().saturating_sub(usize::try_from(share).unwrap_or(usize::MAX));
    if over == 0 {
        return None;
    }
    let named = |of: &[&Direct]| {
        let mut names: Vec<_> = of.iter().map(|session| session.database.clone()).collect();
        names.sort_unstable();
        names.dedup();
        names
    };
    let first = most.first()?;
    let its = parted.iter().filter(|(database, _)| owners.are_ones(database, &first.database));
    let since = its.map(|(_, ago)| *ago).min_by(f64::total_cmp);
    let again = |since: f64| most.iter().filter(|session| session.age < since).count();
    if since.is_some_and(|since| again(since) >= TAKEN_AGAIN) {
        let pids = most.iter().map(|session| session.pid).collect();
        return Some(Parting::KeepOut { pids, databases: named(&most) });
    }
    // Idle ones, the longest so first; of those that work those that came last, which have least to lose.
    most.sort_by(|one, other| {
        let by = |of: &Direct| if of.is_idle { -of.still } else { of.age };
        other.is_idle.cmp(&one.is_idle).then(by(one).total_cmp(&by(other)))
    });
    let lacking = |than: u32| usize::try_from(i64::from(than) - room.left).unwrap_or(0);
    let idle = most.iter().filter(|session| session.is_idle).count();
    // Work is ended only for the room that there has to be.
    let wanted = lacking(LEFT_AGAIN).min(idle.max(lacking(LEFT_MIN)));
    most.truncate(wanted.min(over));
    let pids = most.iter().map(|session| session.pid).collect();
    Some(Parting::End { pids, databases: named(&most) })
}

async fn room(session: &AdminSession) -> Option<Room> {
    let row = tokio::time::timeout(ANSWERS_WITHIN, session.query_typed_one(ROOM, &[])).await.ok()?.ok()?;
    Some(Room { left: row.get(0), usable: row.get(1) })
}

async fn direct(session: &AdminSession) -> Option<Vec<Direct>> {
    let rows = tokio::time::timeout(ANSWERS_WITHIN, session.query_typed(DIRECT, &[])).await.ok()?.ok()?;
    let read = |row: &tokio_postgres::Row| Direct {
        pid: row.get(0),
        database: relief::database_of(row.get(1)).to_owned(),
        is_idle: row.get(2),
        still: row.get(3),
        age: row.get(4),
    };
    Some(rows.iter().map(read).collect())
}

/// Ends sessions. Returns whether the server was told.
async fn end(session: &AdminSession, pids: &[i32]) -> bool {
    let pids = pids.to_vec();
    match tokio::time::timeout(ANSWERS_WITHIN, session.query_typed(END, &[(&pids, Type::INT4_ARRAY)])).await {
        Ok(Ok(_)) => return true,
        Ok(Err(error)) => tracing::warn!(error = %Chain(&error), "sessions could not be ended"),
        Err(_) => tracing::warn!("sessions could not be ended in time"),
    }
    false
}

/// Returns the sandboxes whose sessions were ended lately and how long ago, in seconds; forgets the others.
fn parted(paths: &Paths) -> HashMap<String, f64> {
    let ago = |name: String| Some((relief::noted_ago(paths, PARTED, &name, REMEMBERED_FOR)?.as_secs_f64(), name));
    relief::noted(paths, PARTED).filter_map(ago).map(|(ago, name)| (name, ago)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sandbox and its owner.
    const OWNERS: [(&str, &str); 7] = [
        ("m1", "mallory"),
        ("m2", "mallory"),
        ("m3", "mallory"),
        ("m4", "mallory"),
        ("m5", "mallory"),
        ("a1", "alice"),
        ("b1", "bob"),
    ];

    fn owners(of: &[(&str, &str)]) -> Owners {
        Owners::new(of.iter().map(|(database, owner)| ((*database).to_owned(), (*owner).to_owned())).collect())
    }

    /// Sessions: so many of a sandbox, idle or not, and how long they have been there.
    fn sessions(of: &[(&str, usize, bool, f64)]) -> Vec<Direct> {
        let mut all = Vec::new();
        for (database, count, is_idle, age) in of {
            for _ in 0..*count {
                let pid = i32::try_from(all.len()).unwrap();
                all.push(Direct {
                    pid,
                    database: (*database).to_owned(),
                    is_idle: *is_idle,
                    still: age + f64::from(pid),
                    age: *age,
                });
            }
        }
        all
    }

    fn chosen(
        left: i64,
        of: &[(&str, usize, bool, f64)],
        parted: &[(&str, f64)],
    ) -> Option<(bool, usize, Vec<String>)> {
        let parted = parted.iter().map(|(database, ago)| ((*database).to_owned(), *ago)).collect();
        match choose(Room { left, usable: 184 }, &sessions(of), &owners(&OWNERS), &parted)? {
            Parting::End { pids, databases } => Some((false, pids.len(), databases)),
            Parting::KeepOut { pids, databases } => Some((true, pids.len(), databases)),
        }
    }

    #[test]
    fn of_the_owner_who_has_most_what_is_idle_goes_first_and_no_more_than_it_takes() {
        let five = |is_idle| ["m1", "m2", "m3", "m4", "m5"].map(|name| (name, 34, is_idle, 50.0));
        let all = |more: &[(&'static str, usize, bool, f64)]| [&five(true), more].concat();
        // The longest idle are the last of these.
        assert_eq!(chosen(0, &all(&[("a1", 14, true, 900.0)]), &[]), Some((false, 48, vec!["m4".into(), "m5".into()])));
        assert_eq!(chosen(20, &five(true), &[]).unwrap().1, 28);
        // Work goes only where there has to be room, and the youngest of it.
        assert_eq!(chosen(0, &five(false), &[]).unwrap().1, 24);
        let mixed = [("m1", 40, false, 90.0), ("m2", 40, false, 9.0), ("m3", 30, true, 3.0), ("m4", 40, false, 60.0)];
        assert_eq!(chosen(0, &mixed, &[]), Some((false, 30, vec!["m3".into()])));
        let mixed = [("m1", 40, false, 90.0), ("m2", 40, false, 9.0), ("m3", 10, true, 3.0), ("m4", 40, false, 60.0)];
        assert_eq!(chosen(0, &mixed, &[]), Some((false, 24, vec!["m2".into(), "m3".into()])));
    }

    #[test]
    fn who_has_no_more_than_its_share_is_never_touched() {
        // A third of 184 for each of three owners.
        let thirds = [("m1", 31, true, 9.0), ("m2", 30, true, 9.0), ("a1", 60, true, 9.0), ("b1", 61, true, 9.0)];
        assert_eq!(chosen(0, &thirds, &[("m1", 10.0), ("a1", 10.0)]), None);
        let more = [("m1", 33, true, 9.0), ("m2", 31, true, 9.0), ("a1", 60, true, 9.0), ("b1", 61, true, 9.0)];
        assert_eq!(chosen(0, &more, &[]).unwrap().1, 3);
        // Not fewer than one sandbox may have, however many owners there are.
        let many: Vec<(String, String)> = (0..30).map(|n| (format!("s{n}"), format!("o{n}"))).collect();
        let many: Vec<(&str, &str)> = many.iter().map(|(name, owner)| (name.as_str(), owner.as_str())).collect();
        for (count, is_ended) in [(40, false), (41, true)] {
            let all = sessions(&[("s0", count, true, 9.0)]);
            let parting = choose(Room { left: 0, usable: 184 }, &all, &owners(&many), &HashMap::new());
            assert_eq!(parting.is_some(), is_ended, "{count}");
        }
    }

    #[test]
    fn who_has_the_server_for_itself_or_is_not_known_is_left_alone() {
        let all = sessions(&[("m1", 90, true, 9.0), ("m2", 90, true, 9.0)]);
        for known in [owners(&[("m1", "mallory"), ("m2", "mallory")]), Owners::default()] {
            assert_eq!(choose(Room { left: 0, usable: 184 }, &all, &known, &HashMap::new()), None);
        }
    }

    #[test]
    fn who_takes_them_again_is_kept_out_with_all_its_sandboxes_that_have_some() {
        let of = |new: usize| [("m1", 100, true, 90.0), ("m2", 60, true, 90.0), ("m3", new, true, 1.0)];
        assert_eq!(chosen(0, &of(8), &[("m5", 2.0)]), Some((true, 168, vec!["m1".into(), "m2".into(), "m3".into()])));
        // A few, or those that were there before, are not taken again.
        assert!(!chosen(0, &of(7), &[("m5", 2.0)]).unwrap().0);
        assert!(!chosen(0, &of(8), &[("m5", 0.5)]).unwrap().0);
        assert!(!chosen(0, &of(8), &[("a1", 2.0)]).unwrap().0);
    }
}
