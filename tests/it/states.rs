//! Bad states of the metadata, of the state directory and of Postgres, each against the real program: a clear error with
//! the way on, nothing lost, nothing of anybody else's touched. `tests/proofs/states` plays many more.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::crash::{check_audit, check_tracked, cluster, code, create, query, rows, sql};
use super::harness;
use super::program::{Home, Stdio, Transport};

/// More than a sign of life and a login are waited for, on a busy machine.
const DEAD_ANSWER: Duration = Duration::from_secs(60);

/// Makes two sandboxes with a line each in a table, and returns their ids.
fn two(server: &mut Stdio) -> [String; 2] {
    [(); 2].map(|()| {
        let id = create(server);
        assert_eq!(sql(server, &id, "create table kept as select 1 as n")["ok"], true);
        id
    })
}

fn check_kept(server: &mut Stdio, id: &str) {
    assert_eq!(*rows(&sql(server, id, "select n from kept")), json!([[1]]));
}

/// Returns the checks of `doctor` that did not pass, as text.
fn complaints(server: &mut Stdio) -> String {
    let said = server.call("doctor", &json!({}));
    let checks = said["result"]["checks"].as_array().unwrap_or_else(|| panic!("{said:#}")).clone();
    let bad = checks.into_iter().filter(|check| check["status"] == "fail" || check["status"] == "warn");
    Value::Array(bad.collect()).to_string()
}

#[test]
fn a_row_edited_by_hand_is_refused_by_name_and_stands_in_nobody_elses_way() {
    let home = Home::fresh();
    let mut server = Stdio::start(&home);
    let [one, other] = two(&mut server);
    query(&home, "create table saved as select * from pgsandbox.sandboxes");
    for edit in [
        "expires_at = 'infinity'",
        "expires_at = '4000-01-01 BC'",
        "created_at = '-infinity'",
        "database_name = 'postgres'",
        "owner_role = 'pgsandbox_admin'",
        "engine = 'mysql'",
        "labels = '{\"a\": [\"b\"]}'",
        "extensions = array[null]",
        "bytes = -1",
    ] {
        query(&home, &format!("update pgsandbox.sandboxes set {edit} where id = '{one}'"));
        for (operation, more) in [
            ("run_sql", json!({"sql": "select 1"})),
            ("get_connection_string", json!({"includeCredentials": true})),
            ("extend_database", json!({"ttlMinutes": 90})),
            ("delete_database", json!({})),
        ] {
            let mut input = more;
            input["databaseId"] = json!(one);
            let refused = server.call(operation, &input);
            assert_eq!(code(&refused), "metadata_damaged", "{edit}: {operation}: {refused:#}");
            assert!(refused["errors"][0]["hint"].is_string(), "{refused:#}");
        }
        check_kept(&mut server, &other);
        let listed = server.call("list_databases", &json!({"includeExpired": true}));
        assert_eq!(listed["result"]["failures"], json!([]), "{edit}: {listed:#}");
        assert!(listed["result"]["databases"].to_string().contains(&other), "{edit}: {listed:#}");
        assert_eq!(server.call("cleanup_expired", &json!({}))["ok"], true, "{edit}");
        let complaints = complaints(&mut server);
        assert!(complaints.contains(&one), "{edit}: {complaints}");
        query(&home, "delete from pgsandbox.plans where state in ('running', 'undoing')");
        query(
            &home,
            &format!(
                "update pgsandbox.sandboxes b set (expires_at, created_at, database_name, owner_role, engine, labels,
                     extensions, bytes, state) = (s.expires_at, s.created_at, s.database_name, s.owner_role, s.engine,
                     s.labels, s.extensions, s.bytes, s.state) from saved s where s.id = b.id and b.id = '{one}'"
            ),
        );
        check_kept(&mut server, &one);
    }
    query(&home, "drop table saved");
    assert!(server.finish().success());
    assert_eq!(check_tracked(&home).len(), 2);
    check_audit(&home);
}

#[test]
fn a_state_that_fits_no_plan_is_told_and_deletion_still_works() {
    let home = Home::fresh();
    let mut server = Stdio::start(&home);
    for state in ["creating", "deleting"] {
        let id = create(&mut server);
        query(&home, &format!("update pgsandbox.sandboxes set state = '{state}' where id = '{id}'"));
        let refused = sql(&mut server, &id, "select 1");
        assert_eq!(code(&refused), "sandbox_not_ready");
        // What is being made may be ready in a moment; what is being removed never is again.
        assert_eq!(refused["errors"][0]["retryable"], state == "creating", "{refused:#}");
        let complaints = complaints(&mut server);
        assert!(complaints.contains(&id) && complaints.contains("no plan"), "{complaints}");
        let deleted = server.call("delete_database", &json!({"databaseId": id, "wait": true}));
        assert_eq!(deleted["result"]["deleted"], true, "{state}: {deleted:#}");
    }
    assert_eq!(check_tracked(&home).len(), 0);
    assert!(server.finish().success());
}

#[test]
fn a_password_of_another_row_opens_nothing_and_rotation_seals_the_rest() {
    let home = Home::fresh();
    let mut server = Stdio::start(&home);
    let [one, other] = two(&mut server);
    assert!(server.finish().success());
    query(
        &home,
        &format!(
            "update pgsandbox.sandboxes set owner_sealed = (select owner_sealed from pgsandbox.sandboxes
             where id = '{other}') where id = '{one}'"
        ),
    );
    let mut server = Stdio::start(&home);
    let refused = sql(&mut server, &one, "select 1");
    assert_eq!(code(&refused), "metadata_damaged", "{refused:#}");
    assert!(complaints(&mut server).contains(&one));
    let rotated = home.run(&["keys", "rotate"]);
    let said = String::from_utf8_lossy(&rotated.stderr);
    assert!(!rotated.status.success() && said.contains("1 sandboxes were sealed with the new key"), "{said}");
    check_kept(&mut server, &other);
    let deleted = server.call("delete_database", &json!({"databaseId": one, "wait": true}));
    assert_eq!(deleted["result"]["deleted"], true, "{deleted:#}");
    assert!(server.finish().success());
    assert!(home.run(&["keys", "rotate"]).status.success());
    assert_eq!(check_tracked(&home).len(), 1);
}

#[test]
fn metadata_of_a_newer_program_is_refused_and_doctor_says_so() {
    let home = Home::fresh();
    let mut server = Stdio::start(&home);
    let id = create(&mut server);
    assert!(server.finish().success());
    let newer = query(
        &home,
        "insert into pgsandbox.migrations (number, name, sha256)
         select max(number) + 1, 'more', '\\x00' from pgsandbox.migrations returning number",
    );
    let newer = &newer[0][0];
    let before = query(&home, "select * from pgsandbox.sandboxes");
    let mut server = Stdio::start(&home);
    let refused = sql(&mut server, &id, "select 1");
    assert_eq!(code(&refused), "invalid_configuration", "{refused:#}");
    let complaints = complaints(&mut server);
    assert!(complaints.contains("metadata.schema") && complaints.contains(&format!("version {newer}")), "{complaints}");
    assert!(server.finish().success());
    assert_eq!(query(&home, "select * from pgsandbox.sandboxes"), before);
    query(&home, &format!("delete from pgsandbox.migrations where number = {newer}"));
}

#[test]
fn what_stops_a_start_is_said_with_its_path_and_the_way_on() {
    let home = Home::fresh();
    assert!(home.run(&["policy", "list"]).status.success());
    for name in ["limits", "master.keys"] {
        let path = home.state().join(name);
        let right = fs::metadata(&path).unwrap().permissions();
        fs::set_permissions(&path, PermissionsExt::from_mode(right.mode() | 0o044)).unwrap();
        let refused = home.run(&["list-databases", "--format", "text"]);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(
            !refused.status.success() && said.contains(path.to_str().unwrap()) && said.contains("hint: "),
            "{said}"
        );
        fs::set_permissions(&path, right).unwrap();
    }
    assert!(home.run(&["policy", "list"]).status.success());
}

#[test]
fn a_server_that_has_no_room_is_busy_and_serves_again_when_it_has() {
    let home = Home::fresh();
    let mut server = Stdio::start(&home);
    let id = create(&mut server);
    query(&home, "alter system set max_connections = 12");
    query(&home, "alter system set superuser_reserved_connections = 2");
    assert!(home.run(&["local", "stop"]).status.success());
    assert_eq!(server.call("list_databases", &json!({}))["result"]["failures"], json!([]));
    let folder = cluster(&home);
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap().trim().to_owned();
    let mut config = tokio_postgres::Config::new();
    config.host_path(read("socket-directory")).port(read("port").parse().unwrap());
    config.user("pgsandbox_admin").password(read("admin-password")).dbname("postgres");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mut sessions = Vec::new();
    while let Ok((client, connection)) = runtime.block_on(config.connect(tokio_postgres::NoTls)) {
        sessions.push((client, runtime.spawn(connection)));
    }
    let refused = sql(&mut server, &id, "select 1");
    assert_eq!((code(&refused), &refused["errors"][0]["retryable"]), ("busy", &json!(true)), "{refused:#}");
    for (client, connection) in sessions {
        drop(client);
        runtime.block_on(connection).unwrap().unwrap();
    }
    assert_eq!(*rows(&sql(&mut server, &id, "select 1")), json!([[1]]));
    assert!(server.finish().success());
}

#[test]
fn a_server_that_says_nothing_any_more_is_given_up_and_used_again_once_it_does() {
    let home = Home::fresh();
    let mut server = Stdio::start(&home);
    let id = create(&mut server);
    let postmaster = fs::read_to_string(cluster(&home).join("data/postmaster.pid")).unwrap();
    let postmaster = postmaster.lines().next().unwrap().to_owned();
    let children = fs::read_to_string(format!("/proc/{postmaster}/task/{postmaster}/children")).unwrap();
    let all: Vec<&str> = children.split_whitespace().chain([postmaster.as_str()]).collect();
    all.iter().for_each(|pid| harness::kill(pid, Signal::STOP));
    let begun = Instant::now();
    let listed = server.call("list_databases", &json!({}));
    let took = begun.elapsed();
    let complaints = complaints(&mut server);
    all.iter().for_each(|pid| harness::kill(pid, Signal::CONT));
    let failed = &listed["result"]["failures"][0];
    assert!(
        failed["code"] == "postgres_connection_failed" || failed["code"] == "local_postgres_unavailable",
        "{listed:#}"
    );
    assert!(failed["hint"].is_string() && took < DEAD_ANSWER, "{took:?}: {listed:#}");
    assert!(complaints.contains(&format!("process {postmaster}")), "{complaints}");
    assert_eq!(*rows(&sql(&mut server, &id, "select 1")), json!([[1]]));
    assert!(server.finish().success());
    check_audit(&home);
}
