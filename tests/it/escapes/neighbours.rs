//! A sandbox keeps another one, or this program, from what is theirs to do: by holding on to what they need.

use std::io::Write as _;

use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::attempts::Way;
use super::room::{Outcome, Room, is_whole};
use crate::program::{Stdio, Transport};

const CATEGORY: &str = "other owner";
const METADATA: &str = "metadata";

/// Another sandbox is removed although this one holds its roles and its database in an open, or a prepared, transaction.
pub(super) fn removals_are_not_held_up(room: &mut Room<'_>) {
    let holds = [
        ("a right to its database that it let be passed on", "SAVEPOINT s; GRANT CONNECT ON DATABASE {d} TO {r}"),
        ("a grant to its roles", "CREATE TABLE held_1 (a int); GRANT SELECT ON held_1 TO {o}, {r}"),
        ("settings of one's own in its database", "ALTER ROLE {me} IN DATABASE {d} SET work_mem = '2MB'"),
        ("a policy for its role", "CREATE TABLE held_2 (a int); CREATE POLICY p ON held_2 TO {o}"),
        ("default privileges for its role", "ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO {o}"),
        ("a right to one's own database", "GRANT CONNECT ON DATABASE {mine} TO {o}"),
        ("a row that its grant is in", "GRANT SELECT ON held_before TO {o}; ALTER TABLE held_before ADD b int"),
    ];
    let held = room.log_in(&Way::Owner(None)).unwrap();
    room.wait(held.batch_execute("CREATE TABLE held_before (a int)")).unwrap();
    for (number, (what, sql)) in holds.into_iter().enumerate() {
        for prepared in [false, true] {
            // Each waits for locks for some seconds.
            if !is_whole() && (number > 1 || prepared && number > 0) {
                continue;
            }
            let made = room.victim.call("create_database", &json!({"nameHint": "held"}));
            let (id, name) =
                (made["result"]["databaseId"].clone(), made["result"]["databaseName"].as_str().unwrap().to_owned());
            let owner = made["result"]["roleName"].as_str().unwrap().to_owned();
            let sql = sql
                .replace("{o}", &owner)
                .replace("{r}", &owner.replace("_role", "_ro"))
                .replace("{d}", &name)
                .replace("{me}", &room.mine.owner.0)
                .replace("{mine}", &room.mine.database);
            let passed_on = format!("GRANT CONNECT ON DATABASE {name} TO {} WITH GRANT OPTION", room.mine.owner.0);
            let passed_on = room.victim.call("run_sql", &json!({"databaseId": id, "sql": passed_on}));
            assert_eq!(passed_on["ok"], true, "{passed_on}");
            let client = room.log_in(&Way::Owner(None)).unwrap();
            // What is committed is found, and removed, whoever holds it now.
            room.wait(client.batch_execute(&format!("GRANT SELECT ON held_before TO {owner}"))).unwrap();
            let end = if prepared { format!("; PREPARE TRANSACTION 'held {number}'") } else { String::new() };
            let began = room.wait(client.batch_execute(&format!("BEGIN; {sql}{end}")));
            assert!(began.is_ok(), "{what}: {began:?}");
            let gone = room.victim.call("delete_database", &json!({"databaseId": id, "wait": true}));
            let title = format!("a removal is held up by {what}{}", if prepared { ", prepared" } else { "" });
            let mut found = Vec::new();
            if gone["result"]["deleted"] != true {
                found.push(format!("it was not removed: {gone}"));
            }
            let left = room.superuser(room.admin, &format!(
                "SELECT rolname FROM pg_roles WHERE rolname LIKE '{name}%' UNION SELECT datname FROM pg_database WHERE datname = '{name}'"
            ));
            if !left.is_empty() {
                found.push(format!("left: {left}"));
            }
            room.report.note(CATEGORY, &title, Outcome::Ran, &found);
            drop(client);
            if prepared {
                let client = room.log_in(&Way::Owner(None)).unwrap();
                // Gone already, where it was in the way.
                room.wait(client.batch_execute(&format!("ROLLBACK PREPARED 'held {number}'"))).ok();
            }
        }
    }
    room.accept();
}

/// Another sandbox is removed although its roles have rights in a database of this one that nobody gets into any more.
pub(super) fn closed_databases_hold_up_no_removal(room: &mut Room<'_>) {
    let closer = room.attacker.call("create_database", &json!({"nameHint": "closer"}));
    let (mine, me) = (room.mine.database.clone(), room.mine.owner.0.clone());
    let held = format!("BEGIN; ALTER DATABASE {mine} CONNECTION LIMIT 5");
    let again = format!(
        "DO $$ BEGIN LOOP BEGIN EXECUTE 'ALTER DATABASE {mine} ALLOW_CONNECTIONS false'; \
         EXCEPTION WHEN OTHERS THEN NULL; END; COMMIT; END LOOP; END $$"
    );
    for (shut, then) in [
        ("ALLOW_CONNECTIONS false", None),
        ("CONNECTION LIMIT 0", None),
        ("ALLOW_CONNECTIONS false", Some(&held)),
        ("ALLOW_CONNECTIONS false", Some(&again)),
    ] {
        let limit = format!("SELECT rolconnlimit FROM pg_roles WHERE rolname = '{me}'");
        let limited = room.superuser(room.admin, &limit);
        let made = room.victim.call("create_database", &json!({"nameHint": "closed"}));
        let (id, owner) =
            (made["result"]["databaseId"].clone(), made["result"]["roleName"].as_str().unwrap().to_owned());
        let held = room.log_in(&Way::Owner(None)).unwrap();
        room.wait(
            held.batch_execute(&format!(
                "CREATE TABLE IF NOT EXISTS closed (a text); GRANT SELECT ON closed TO {owner}"
            )),
        )
        .unwrap();
        drop(held);
        // A database is closed from another one.
        let other = closer["result"]["databaseName"].as_str().unwrap();
        let let_in = format!("GRANT CONNECT ON DATABASE {other} TO {me}");
        let let_in = json!({"databaseId": closer["result"]["databaseId"], "sql": let_in});
        assert_eq!(room.attacker.call("run_sql", &let_in)["ok"], true);
        let outside = room.log_in(&Way::Owner(Some(other.to_owned()))).unwrap();
        room.wait(outside.batch_execute(&format!("ALTER DATABASE {mine} WITH {shut}"))).unwrap();
        drop(outside);
        // Whoever is ended comes back at once and goes on.
        let goes_on = then.map(|sql| room.again_and_again(other, sql));
        let gone = room.victim.call("delete_database", &json!({"databaseId": id, "wait": true}));
        let mut found = Vec::new();
        if gone["result"]["deleted"] != true {
            found.push(format!("it was not removed: {gone}"));
        }
        let after = room.superuser(room.admin, &limit);
        if after != limited {
            found.push(format!("its owner may not come back: {after}, {limited} before"));
        }
        let held_by = then.map_or("nothing more", String::as_str);
        room.report.note(CATEGORY, &format!("a removal is held up by {shut} and {held_by}"), Outcome::Ran, &found);
        if let Some(goes_on) = goes_on {
            goes_on.abort();
            let end = format!("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = '{me}'");
            room.superuser(room.admin, &end);
        }
        let outside = room.log_in(&Way::Owner(Some(other.to_owned()))).unwrap();
        room.wait(
            outside.batch_execute(&format!("ALTER DATABASE {mine} WITH ALLOW_CONNECTIONS true CONNECTION LIMIT -1")),
        )
        .unwrap();
    }
    let gone = json!({"databaseId": closer["result"]["databaseId"], "wait": true});
    assert_eq!(room.attacker.call("delete_database", &gone)["result"]["deleted"], true);
    room.accept();
}

/// Another sandbox is removed although a session of this one waits for its client in the midst of a command: since 15 the
/// server drops no database before every session has heard of it, and such a session hears nothing.
pub(super) fn sessions_that_hear_nothing_hold_up_no_removal(room: &mut Room<'_>) {
    let held = room.log_in(&Way::Owner(None)).unwrap();
    room.wait(held.batch_execute("CREATE TABLE unheard (a text)")).unwrap();
    let made = room.victim.call("create_database", &json!({"nameHint": "unheard"}));
    let (id, name) =
        (made["result"]["databaseId"].clone(), made["result"]["databaseName"].as_str().unwrap().to_owned());
    let rows = room.wait(held.copy_in::<_, bytes::Bytes>("COPY unheard FROM STDIN")).unwrap();
    // Who is sent rows waits at most moments as well, and hears between two of them.
    let (moving, stop) = room.copies_on();
    let waits = "SELECT pid FROM pg_stat_activity WHERE query ~ '^COPY unheard' AND wait_event_type = 'Client'";
    assert_ne!(room.superuser(room.admin, waits), "", "a command waits for its client");
    let gone = room.victim.call("delete_database", &json!({"databaseId": id, "wait": true}));
    let mut found = Vec::new();
    if gone["result"]["deleted"] != true {
        found.push(format!("it was not removed: {gone}"));
    }
    let there = room.superuser(room.admin, &format!("SELECT datname FROM pg_database WHERE datname = '{name}'"));
    if !there.is_empty() {
        found.push(format!("left: {there}"));
    }
    drop(stop);
    if let Err(error) = room.wait(moving).unwrap() {
        found.push(format!("a session was ended that hears: {error}"));
    }
    room.report.note(CATEGORY, "a removal waits for a session that waits for its client", Outcome::Ran, &found);
    drop((rows, held));
    room.accept();
}

/// The same where the client takes nothing of what it is sent: of a function called in the old way, and of answers that are
/// written whole at their statement's end, when the session is idle already.
pub(super) fn sessions_whose_answers_nobody_takes_hold_up_no_removal(room: &mut Room<'_>) {
    let oid = room.superuser(room.admin, "SELECT 'pg_catalog.repeat(text,int4)'::regprocedure::oid");
    let oid: u32 = oid.trim().parse().unwrap_or_else(|_| panic!("{oid:?}"));
    let mut call = vec![b'F', 0, 0, 0, 0];
    call.extend_from_slice(&oid.to_be_bytes());
    call.extend_from_slice(&[0, 1, 0, 0, 0, 2, 0, 0, 0, 1, b'x', 0, 0, 0, 8]);
    call.extend_from_slice(b"50000000\0\0");
    let length = u32::try_from(call.len() - 1).unwrap().to_be_bytes();
    call[1..5].copy_from_slice(&length);
    let select = b"Q\0\0\0\x1dselect repeat('x', 7000)\0".to_vec();
    for (what, message, times) in [("a function's result", call, 1), ("answers", select, 1_000_000)] {
        let made = room.victim.call("create_database", &json!({"nameHint": "untaken"}));
        let id = made["result"]["databaseId"].clone();
        let (mut socket, client, connection) = room.deaf();
        let pid = room.superuser(
            room.admin,
            &format!("SELECT pid FROM pg_stat_activity WHERE client_port = {}", socket.local_addr().unwrap().port()),
        );
        let waits =
            format!("SELECT pid FROM pg_stat_activity WHERE pid = {} AND wait_event = 'ClientWrite'", pid.trim());
        // As much as goes in, until the server waits for what it has answered to be taken.
        let messages = message.repeat(times);
        let mut unsent = messages.as_slice();
        loop {
            match socket.write(unsent) {
                Ok(written) if written > 0 => {
                    unsent = &unsent[written..];
                    continue;
                }
                // Nothing is left, or nothing more goes in.
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => panic!("{error}"),
            }
            if !room.superuser(room.admin, &waits).is_empty() {
                break;
            }
        }
        let gone = room.victim.call("delete_database", &json!({"databaseId": id, "wait": true}));
        let mut found = Vec::new();
        if gone["result"]["deleted"] != true {
            found.push(format!("it was not removed: {gone}"));
        }
        room.report.note(CATEGORY, &format!("a removal waits for one who takes no {what}"), Outcome::Ran, &found);
        drop((socket, client, connection));
    }
    room.accept();
}

/// Sandboxes are made although one that may log in to the admin's database holds every lock that making them takes.
pub(super) fn the_programs_locks_are_its_own(room: &mut Room<'_>) {
    let quota = |scope: &str| {
        let digest = Sha256::digest(format!("pgsandbox quota\0pgsandbox\0{scope}\0victor\0"));
        i64::from_be_bytes(digest[..8].try_into().unwrap())
    };
    let locks = [
        ("the lock of migrations", format!("SELECT pg_advisory_lock({})", 0x7067_7362_6d69_6772_i64)),
        (
            "the locks of servers to come",
            "SELECT pg_advisory_lock(1346851650, g) FROM generate_series(1, 1000) g".to_owned(),
        ),
        ("the lock of an owner's quota", format!("SELECT pg_advisory_lock({})", quota("principal"))),
        ("the lock of an owner's ungrouped quota", format!("SELECT pg_advisory_lock({})", quota("ungrouped"))),
    ];
    for who in [Way::Owner(Some("home".into())), Way::Reader(Some("home".into()))] {
        for (what, sql) in &locks {
            if !is_whole() && matches!(who, Way::Reader(_)) {
                continue;
            }
            let client = room.log_in(&who).unwrap();
            let held = room.wait(client.batch_execute(&format!("SET lock_timeout = '100ms'; {sql}")));
            let mut victim =
                Stdio::start_with(&room.home, &[("PGSANDBOX_OWNER", "victor")], std::process::Stdio::inherit());
            let made = victim.call("create_database", &json!({"nameHint": "locked"}));
            let mut found = Vec::new();
            if made["ok"] == true {
                let gone =
                    victim.call("delete_database", &json!({"databaseId": made["result"]["databaseId"], "wait": true}));
                assert_eq!(gone["result"]["deleted"], true, "{gone:#}");
            } else {
                found.push(format!("no sandbox was made: {made}"));
            }
            assert!(victim.finish().success());
            // One of the numbers is a living server's.
            let outcome = if held.is_ok() { Outcome::Ran } else { Outcome::Below };
            room.report.note(METADATA, &format!("{what} is held, {who:?}"), outcome, &found);
        }
    }
    room.accept();
}
