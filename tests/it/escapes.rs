//! The escape room: what a sandbox, its credentials, a caller, a policy, a file or a person next door may try to get
//! out, in or further, each attempt asserted on the true state that the cluster's superuser reads.
//!
//! `tests/proofs/escapes` plays this and prints how many there were of each category.

mod attempts;
mod callers;
mod loading;
mod machine;
mod neighbours;
mod room;
mod state;

use attempts::{Category, categories};
use room::{Report, Room, is_whole};

use crate::harness::{Cluster, cluster, own_clusters};

/// Fewer attempts than these mean that some were not tried.
const SQL_ATTEMPTS_MIN: usize = 550;
const CALLS_MIN: usize = 250;
const LOADED_MIN: usize = 170;
const LOCAL_MIN: usize = 50;

/// The categories that only Postgres stands before; the others are the same whoever the admin is.
const OF_THE_ADMIN: [&str; 3] = ["cross database", "metadata", "role"];

fn sql_attempts(superuser: bool, tried: impl Fn(&Category) -> bool) -> usize {
    let mut count = 0;
    for cluster in own_clusters() {
        let mut room = Room::new(&cluster, superuser);
        for category in categories().iter().filter(|category| tried(category)) {
            room.set_up(&category.setup);
            for attempt in category.attempts.iter().filter(|attempt| attempt.since <= cluster.major) {
                for way in &attempt.ways {
                    room.try_sql(&category.name, attempt, way);
                }
            }
        }
        count = room.report.finish();
    }
    count
}

fn in_rooms(body: impl Fn(&mut Room<'_>)) -> usize {
    let mut count = 0;
    for cluster in own_clusters() {
        let mut room = Room::new(&cluster, true);
        body(&mut room);
        count = room.report.finish();
    }
    count
}

#[test]
fn no_sql_leads_out_of_a_sandbox_of_a_superuser_admin() {
    assert!(sql_attempts(true, |_| true) >= SQL_ATTEMPTS_MIN);
}

#[test]
fn no_sql_leads_out_of_a_sandbox_of_an_ordinary_admin() {
    sql_attempts(false, |category| OF_THE_ADMIN.contains(&category.name.as_str()));
}

#[test]
fn no_call_reaches_another_owners_sandbox() {
    let count = in_rooms(|room| {
        callers::other_owners_sandboxes(room);
        callers::other_owners_names(room);
        callers::frames(room);
    });
    assert!(count >= CALLS_MIN, "{count}");
}

#[test]
fn no_sandbox_keeps_others_from_being_made_or_removed() {
    for superuser in [true, false] {
        for cluster in own_clusters() {
            let mut room = Room::new(&cluster, superuser);
            neighbours::removals_are_not_held_up(&mut room);
            neighbours::closed_databases_hold_up_no_removal(&mut room);
            neighbours::sessions_that_hear_nothing_hold_up_no_removal(&mut room);
            neighbours::sessions_whose_answers_nobody_takes_hold_up_no_removal(&mut room);
            neighbours::the_programs_locks_are_its_own(&mut room);
            room.report.finish();
        }
    }
}

#[test]
fn no_configuration_and_no_policy_reaches_further_than_itself() {
    let mut report = Report::new(&place(cluster()));
    loading::configurations(cluster(), &mut report);
    loading::policies(&mut report);
    let count = report.finish();
    assert!(count >= LOADED_MIN || !is_whole(), "{count}");
}

#[test]
fn nobody_else_on_the_machine_reaches_the_state() {
    let mut report = Report::new(&place(cluster()));
    machine::local_users(&mut report);
    let count = report.finish();
    assert!(count >= LOCAL_MIN, "{count}");
}

fn place(cluster: &Cluster) -> String {
    format!("{}, superuser", cluster.major)
}

/// The comparison sees each kind of change that an attempt could make: without this nothing above would mean a thing.
#[test]
fn a_change_that_is_planted_is_seen() {
    let cluster = own_clusters().remove(0);
    let mut room = Room::new(&cluster, true);
    let theirs = room.theirs.clone();
    assert_eq!(room.changes(false, &[]), Vec::<String>::new());
    let (owner, database) = (theirs.owner.0.as_str(), theirs.database.as_str());
    let planted = [
        (database, "UPDATE public.secrets SET a = 'x'".to_owned(), "content of public.secrets"),
        (database, "SELECT nextval('public.numbers')".to_owned(), "numbers"),
        (database, "SELECT lo_create(0)".to_owned(), "pg_largeobject_metadata"),
        (database, "CREATE TABLE public.planted (a int)".to_owned(), "relation public.planted"),
        (database, "ALTER TABLE public.secrets ENABLE ROW LEVEL SECURITY".to_owned(), "relation public.secrets"),
        (database, "GRANT EXECUTE ON FUNCTION pg_catalog.lo_import(text) TO PUBLIC".to_owned(), "pg_proc"),
        (database, "CREATE EXTENSION hstore".to_owned(), "pg_extension"),
        ("operator", "CREATE FUNCTION public.f() RETURNS int LANGUAGE sql AS 'SELECT 1'".to_owned(), "pg_proc"),
        ("template1", "CREATE SCHEMA planted".to_owned(), "pg_namespace"),
        ("postgres", "SELECT pg_create_physical_replication_slot('planted')".to_owned(), "slot planted"),
        ("postgres", "SELECT pg_advisory_lock(4711)".to_owned(), "advisory lock"),
        ("postgres", format!("ALTER ROLE {owner} CREATEDB"), "role "),
        ("postgres", format!("ALTER ROLE {owner} PASSWORD 'x'"), "password of"),
        ("postgres", format!("GRANT pg_monitor TO {owner}"), "member pg_monitor"),
        ("postgres", "CREATE ROLE planted".to_owned(), "role planted"),
        ("postgres", "CREATE DATABASE planted TEMPLATE template0".to_owned(), "database planted"),
        ("postgres", format!("ALTER DATABASE {database} CONNECTION LIMIT 0"), "database "),
        ("postgres", format!("ALTER ROLE {owner} SET work_mem = '1MB'"), "setting of"),
        ("postgres", format!("COMMENT ON DATABASE {database} IS 'x'"), "comment on"),
        ("postgres", "ALTER SYSTEM SET work_mem = '1MB'".to_owned(), "file postgresql.auto.conf"),
        ("postgres", "COPY (SELECT 'x') TO '{out}/planted'".to_owned(), "planted"),
        (room.admin, "UPDATE pgsandbox.sandboxes SET owner = 'x'".to_owned(), "content of pgsandbox.sandboxes"),
        (
            room.admin,
            "DELETE FROM pgsandbox.journal; INSERT INTO pgsandbox.idempotency SELECT prefix, 'a', id::text, '', id, now() \
          FROM pgsandbox.sandboxes"
                .to_owned(),
            "content of pgsandbox.idempotency",
        ),
        (
            "postgres",
            format!(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '{database}' AND usename = '{owner}'"
            ),
            "session ",
        ),
    ];
    for (place, sql, expected) in planted {
        room.plant(place, &sql);
        let found = room.changes(false, &[]);
        assert!(found.iter().any(|change| change.contains(expected)), "{sql}: {found:?}");
    }
}
