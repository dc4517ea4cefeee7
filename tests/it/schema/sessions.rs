//! The session that reads a catalogue waits for the next call, as the reader, and is in nobody's way.

use serde_json::json;

use super::{checksum, home, made, ok, run};
use crate::harness::{Cluster, block_on, cluster, clusters};
use crate::program::Stdio;

/// Sessions of ours in a sandbox's database: process and user.
fn sessions(cluster: &Cluster, database: &str) -> Vec<(i32, String)> {
    block_on(async {
        let superuser = cluster.superuser("postgres").await;
        let sql = "select pid, usename::text from pg_stat_activity where datname = $1 and state = 'idle' order by pid";
        superuser.query(sql, &[&database]).await.unwrap().iter().map(|row| (row.get(0), row.get(1))).collect()
    })
}

fn name(server: &mut Stdio, id: &str) -> String {
    ok(server, "schema_digest", &json!({"databaseId": id}))["databaseName"].as_str().unwrap().to_owned()
}

#[test]
fn readings_of_one_sandbox_share_a_session_of_the_readers_that_sees_every_change() {
    for cluster in clusters() {
        let home = home(&[cluster], "share");
        let profile = format!("on{}", cluster.major);
        let mut server = Stdio::start(&home);
        let id = made(&mut server, &profile, "a", "");
        let database = name(&mut server, &id);
        // What ran the caller's SQL is the owner's.
        let reader =
            |all: Vec<(i32, String)>| all.into_iter().filter(|(_, user)| user.ends_with("_ro")).collect::<Vec<_>>();
        let first = reader(sessions(cluster, &database));
        assert_eq!(first.len(), 1, "{first:?}");
        let mut seen = Vec::new();
        // More often than the server needs to keep a plan of its own for all that may be asked for.
        for step in 0..8 {
            run(
                &mut server,
                &id,
                &format!("create schema s{step}; create table s{step}.t (n int primary key, a{step} text)"),
            );
            seen.push(checksum(&mut server, &id));
            let input = json!({"databaseId": id, "schema": format!("s{step}"), "table": "t"});
            let part = ok(&mut server, "schema_digest", &input);
            assert_eq!(part["counts"], json!({"table": 1, "column": 2, "constraint": 1, "index": 1}), "{part:#}");
            let none = ok(&mut server, "schema_digest", &json!({"databaseId": id, "schema": "s", "table": "t"}));
            assert_eq!(none["counts"], json!({}), "{none:#}");
        }
        assert_eq!(reader(sessions(cluster, &database)), first, "none logged in anew");
        let mut other = Stdio::start(&home);
        assert_eq!(Some(&checksum(&mut other, &id)), seen.last(), "one that has just logged in sees the same");
        seen.dedup();
        assert_eq!(seen.len(), 8);
        drop(other);
    }
}

#[test]
fn a_session_that_ended_while_it_waited_is_no_obstacle() {
    let cluster = cluster();
    let home = home(&[cluster], "ended");
    let mut server = Stdio::start(&home);
    let id = made(&mut server, &format!("on{}", cluster.major), "a", "create table t (n int)");
    let database = name(&mut server, &id);
    let before = checksum(&mut server, &id);
    let ended = sessions(cluster, &database);
    block_on(async {
        let superuser = cluster.superuser("postgres").await;
        superuser
            .execute("select pg_terminate_backend(pid, 10000) from pg_stat_activity where datname = $1", &[&database])
            .await
            .unwrap();
    });
    assert_eq!(checksum(&mut server, &id), before);
    let again = sessions(cluster, &database);
    assert!(!again.is_empty() && again.iter().all(|session| !ended.contains(session)), "{again:?}");
}

#[test]
fn a_session_that_waits_keeps_no_sandbox_from_being_copied_made_anew_or_deleted() {
    for cluster in clusters() {
        let home = home(&[cluster], "inway");
        let profile = format!("on{}", cluster.major);
        let mut server = Stdio::start(&home);
        let id = made(&mut server, &profile, "a", "create table t (n int)");
        let before = checksum(&mut server, &id);
        let fork = ok(&mut server, "fork_database", &json!({"databaseId": id, "nameHint": "b"}));
        let copy = fork["databaseId"].as_str().unwrap().to_owned();
        assert_eq!(checksum(&mut server, &copy), before);
        run(&mut server, &copy, "drop table t");
        assert_ne!(checksum(&mut server, &copy), before);
        assert_eq!(checksum(&mut server, &id), before);
        ok(&mut server, "reset_database", &json!({"databaseId": copy}));
        assert_eq!(checksum(&mut server, &copy), before, "of the database that is there now");
        for id in [&copy, &id] {
            let deleted = ok(&mut server, "delete_database", &json!({"databaseId": id, "wait": true}));
            assert_eq!(deleted["state"], "deleted", "{deleted:#}");
        }
    }
}
