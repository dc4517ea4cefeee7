//! What ends after its time. Here every deadline is some seconds, and what is waited for takes minutes: each answer comes
//! long before that, is a typed one, and leaves everything in order.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio as Pipe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pgsandbox::engine::EngineError;
use pgsandbox::engine::postgres::{PostgresServer, PostgresSettings, PostgresUrl, ServerSource, UrlOrigin};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls};

use crate::crash::{config, query, settle};
use crate::harness::{cluster, kill};
use crate::hostile::{code, wait};
use crate::program::{Home, Stdio, Transport};

/// What every deadline is shortened to.
const DEADLINE_MS: &str = "3000";
/// What is given up is given up in less than this, on however busy a machine; what it waited for takes longer.
const IN_TIME: Duration = Duration::from_secs(100);
const TOO_LONG_MS: u64 = 200_000;

/// Starts the program with its deadlines shortened, and something that is late.
pub(super) fn under(home: &Home, faults: &str) -> Stdio {
    let variables = [
        ("PGSANDBOX_TEST_DEADLINE_MS", DEADLINE_MS),
        ("PGSANDBOX_TEST_INTERVAL_MS", "300"),
        ("PGSANDBOX_TEST_FAULTS", faults),
    ];
    Stdio::start_with(home, &variables, Pipe::inherit())
}

pub(crate) fn late(point: &str) -> String {
    format!("{point}=delay:{TOO_LONG_MS}")
}

/// Calls, and expects a code before what is waited for could have come.
pub(super) fn check(stdio: &mut Stdio, operation: &str, input: &Value, expected: &str) -> Value {
    let begun = Instant::now();
    let reply = stdio.call(operation, input);
    assert_eq!(code(&reply), expected, "{operation}: {reply:#}");
    assert!(begun.elapsed() < IN_TIME, "{operation} took {:?}", begun.elapsed());
    reply
}

/// A transaction of the superuser's that keeps what it has locked until this is dropped.
struct Held {
    runtime: Runtime,
    client: Option<Client>,
}

impl Held {
    fn new(home: &Home, database: &str, sql: &str) -> Self {
        Self::with(config(home).dbname(database), sql)
    }

    fn with(config: &tokio_postgres::Config, sql: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let client = runtime.block_on(async {
            let (client, connection) = config.connect(NoTls).await.unwrap();
            tokio::spawn(connection);
            client.batch_execute(&format!("begin; {sql}")).await.unwrap();
            client
        });
        Self { runtime, client: Some(client) }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            let ended = self.runtime.block_on(client.batch_execute("rollback"));
            assert!(ended.is_ok() || std::thread::panicking(), "{ended:?}");
        }
    }
}

/// A sandbox made without any fault, with the name of its database.
pub(super) fn make(home: &Home) -> (String, String) {
    let mut stdio = Stdio::start(home);
    let made = check(&mut stdio, "create_database", &json!({"nameHint": "kept"}), "ok");
    assert!(stdio.finish().success());
    let text = |field: &str| made["result"][field].as_str().unwrap().to_owned();
    (text("databaseId"), text("databaseName"))
}

#[test]
fn a_creation_that_takes_too_long_is_taken_back_before_its_answer() {
    let home = Home::fresh();
    make(&home);
    let mut stdio = under(&home, &late("plan.create.open-database.before"));
    check(&mut stdio, "create_database", &json!({"nameHint": "late"}), "command_timeout");
    let left = "select count(*) from pg_database where datname like 'pgsandbox\\_late%'";
    assert_eq!(query(&home, left), [["0"]]);
    assert!(stdio.finish().success());
}

#[test]
fn a_removal_that_takes_too_long_goes_on_behind_its_answer() {
    let home = Home::fresh();
    let (id, _) = make(&home);
    // The step that took too long is tried again.
    let mut stdio = under(&home, &late("plan.delete.drop-database.before"));
    let reply = check(&mut stdio, "delete_database", &json!({"databaseId": id, "wait": true}), "ok");
    assert_eq!(reply["result"]["state"], "deleting", "{reply:#}");
    settle(&home);
    assert!(stdio.finish().success());
}

#[test]
fn a_program_that_ends_does_not_wait_for_a_removal_that_does_not() {
    let home = Home::fresh();
    let (id, name) = make(&home);
    let mut stdio = under(&home, &late("store.finish-delete"));
    check(&mut stdio, "delete_database", &json!({"databaseId": id}), "ok");
    wait(IN_TIME, || query(&home, &format!("select count(*) from pg_database where datname = '{name}'")) == [["0"]]);
    let begun = Instant::now();
    assert!(stdio.finish().success());
    assert!(begun.elapsed() < IN_TIME, "it ended after {:?}", begun.elapsed());
    let mut stdio = under(&home, "");
    check(&mut stdio, "list_databases", &json!({}), "ok");
    settle(&home);
    assert!(stdio.finish().success());
}

#[test]
fn servers_that_say_nothing_are_given_up() {
    let home = Home::fresh();
    let (id, name) = make(&home);
    let mut stdio = under(&home, "");
    let told = json!({"databaseId": id});
    check(&mut stdio, "get_connection_string", &told, "ok");
    let held = Held::new(&home, "pgsandbox", "lock table pgsandbox.sandboxes in access exclusive mode");
    check(&mut stdio, "get_connection_string", &told, "postgres_connection_failed");
    drop(held);
    check(&mut stdio, "get_connection_string", &told, "ok");

    check(&mut stdio, "list_extensions", &json!({"databaseId": id}), "ok");
    let held = Held::new(&home, &name, "lock table pg_catalog.pg_extension in access exclusive mode");
    check(&mut stdio, "list_extensions", &json!({"databaseId": id}), "postgres_connection_failed");
    drop(held);
    check(&mut stdio, "list_extensions", &json!({"databaseId": id}), "ok");

    // The same where the admin's own session asks.
    check(&mut stdio, "list_extensions", &json!({}), "ok");
    let held = ["postgres", "pgsandbox"]
        .map(|database| Held::new(&home, database, "lock table pg_catalog.pg_extension in access exclusive mode"));
    check(&mut stdio, "list_extensions", &json!({}), "postgres_connection_failed");
    drop(held);
    assert!(stdio.finish().success());
}

/// Takes a sandbox's login away, as its bytes would, so that the next call is to give it back.
fn withhold_login(home: &Home, id: &str, name: &str) {
    let withheld = format!(
        "alter role {name}_role nologin; update pgsandbox.sandboxes set login_withheld = true where id = '{id}'"
    );
    query(home, &withheld);
}

/// Starts the program without upkeep of logins: it would be at it as well, and its turn be in the way of the call's.
fn without_upkeep_of_logins(home: &Home, more: &[(&str, &str)]) -> Stdio {
    let variables = [&[("PGSANDBOX_TEST_FAULTS", "store.logins-due=fail@1+")], more].concat();
    Stdio::start_with(home, &variables, Pipe::inherit())
}

/// Holds the owner role of a sandbox, so that nobody can change it.
fn hold_role(home: &Home, name: &str) -> Held {
    Held::new(home, "pgsandbox", &format!("alter role {name}_role valid until 'infinity'"))
}

#[test]
fn a_login_that_cannot_be_given_back_in_time_is_given_back_later() {
    let home = Home::fresh();
    let (id, name) = make(&home);
    withhold_login(&home, &id, &name);
    let one = json!({"databaseId": id, "sql": "select 1"});
    let mut stdio = without_upkeep_of_logins(&home, &[("PGSANDBOX_TEST_DEADLINE_MS", DEADLINE_MS)]);
    let held = hold_role(&home, &name);
    let reply = check(&mut stdio, "run_sql", &one, "busy");
    assert!(reply["errors"][0]["message"].as_str().unwrap().contains("did not end in time"), "{reply:#}");
    drop(held);
    check(&mut stdio, "run_sql", &one, "ok");
    assert!(stdio.finish().success());
    let stands = format!(
        "select rolcanlogin and not login_withheld and not login_turning from pg_roles, pgsandbox.sandboxes
         where rolname = '{name}_role' and id = '{id}'"
    );
    assert_eq!(query(&home, &stands), [["t"]]);
}

/// With all the time there is.
#[test]
fn what_is_tried_again_is_tried_so_often_and_no_more() {
    let home = Home::fresh();
    let (id, name) = make(&home);
    withhold_login(&home, &id, &name);
    let mut stdio = without_upkeep_of_logins(&home, &[]);
    let held = hold_role(&home, &name);
    let reply = check(&mut stdio, "run_sql", &json!({"databaseId": id, "sql": "select 1"}), "busy");
    assert!(!reply["errors"][0]["message"].as_str().unwrap().contains("did not end in time"), "{reply:#}");
    // So it is where every way in is to be taken: the removal goes on later.
    check(&mut stdio, "delete_database", &json!({"databaseId": id, "wait": true}), "busy");
    drop(held);
    settle(&home);
    assert!(stdio.finish().success());
}

#[test]
fn roles_that_somebody_holds_are_dropped_later() {
    let home = Home::fresh();
    let (id, name) = make(&home);
    // By somebody whose transactions are none of ours to end.
    query(&home, "create role somebody superuser login password 'x'");
    let somebody = config(&home).user("somebody").password("x").clone();
    let mut stdio = Stdio::start(&home);
    let held = Held::with(&somebody, &format!("comment on role {name}_role is 'held'"));
    check(&mut stdio, "delete_database", &json!({"databaseId": id, "wait": true}), "busy");
    assert_eq!(query(&home, &format!("select count(*) from pg_database where datname = '{name}'")), [["0"]]);
    drop(held);
    settle(&home);
    assert!(stdio.finish().success());
}

#[test]
fn a_session_whose_own_statements_hang_is_left_for_another() {
    let home = Home::fresh();
    let (id, name) = make(&home);
    let mut stdio = under(&home, "");
    let mut sql = |sql: &str| {
        // Beyond what our own statements are given, so that the server's timer comes to nobody's help.
        let input = json!({"databaseId": id, "sql": sql, "timeoutSeconds": 300});
        let reply = check(&mut stdio, "run_sql", &input, "ok");
        reply["result"]["resultSets"].as_array().unwrap().last().unwrap()["rows"].clone()
    };
    sql("create table kept (a int); insert into kept values (1)");
    // Needed to drop a table, and not to make one: to forget what a call made of its own takes as long as this is held.
    let held = Held::new(&home, &name, "lock table pg_catalog.pg_inherits in access exclusive mode");
    let backend = |rows: &Value| rows[0][0].as_str().map_or_else(|| rows[0][0].to_string(), str::to_owned);
    let hung = backend(&sql("create temp table forgotten (a int); select pg_backend_pid()"));
    let counted =
        |which: &str| query(&home, &format!("select count(*) from pg_stat_activity where pid = {hung} {which}"));
    let forgets = "and query = 'DISCARD ALL' and state = 'active'";
    wait(IN_TIME, || counted(forgets) == [["1"]]);
    let another = backend(&sql("select pg_backend_pid()"));
    assert_ne!(hung, another, "a session that is not as it was is used again");
    wait(IN_TIME, || counted(forgets) == [["0"]]);
    // Its connection is closed; what is left of it goes when it can.
    drop(held);
    wait(IN_TIME, || counted("") == [["0"]]);
    assert_eq!(sql("select a from kept"), json!([[1]]));
    assert!(stdio.finish().success());
}

#[test]
fn a_kept_session_that_gives_no_sign_of_life_is_left_for_another() {
    /// For longer than a session is trusted without one.
    const IDLE: Duration = Duration::from_millis(400);
    let home = Home::fresh();
    make(&home);
    let mut stdio = Stdio::start_with(&home, &[("PGSANDBOX_TEST_DEADLINE_MS", DEADLINE_MS)], Pipe::inherit());
    check(&mut stdio, "list_databases", &json!({}), "ok");
    let idle = "select pid from pg_stat_activity where usename = 'pgsandbox_admin' and state = 'idle'
                and pid <> pg_backend_pid()";
    let sessions = query(&home, idle);
    assert!(!sessions.is_empty());
    let all = |signal: Signal| sessions.iter().for_each(|row| kill(&row[0], signal));
    all(Signal::STOP);
    std::thread::sleep(IDLE);
    check(&mut stdio, "list_databases", &json!({}), "ok");
    all(Signal::CONT);
    assert!(stdio.finish().success());
}

#[test]
fn a_program_whose_client_is_gone_ends_whatever_still_runs() {
    let home = Home::fresh();
    let (id, _) = make(&home);
    let mut stdio = under(&home, "");
    let sleep = json!({"databaseId": id, "sql": "select pg_sleep(250)", "timeoutSeconds": 300});
    stdio.begin("tools/call", json!({"name": "run_sql", "arguments": sleep}));
    let sleeps = "select count(*) from pg_stat_activity where query like '%pg_sleep(250)%' and state = 'active'
                  and pid <> pg_backend_pid()";
    wait(IN_TIME, || query(&home, sleeps) == [["1"]]);
    // Nor does it wait for a list of servers that somebody holds.
    let held = Held::new(&home, "pgsandbox", "lock table pgsandbox.servers in access exclusive mode");
    let begun = Instant::now();
    assert!(stdio.finish().success());
    assert!(begun.elapsed() < IN_TIME, "it ended after {:?}", begun.elapsed());
    drop(held);
}

#[test]
fn programs_of_a_server_that_hang_are_passed_over_or_given_up() {
    let home = Home::fresh();
    let folder = home.path().join("bin");
    fs::create_dir(&folder).unwrap();
    let write = |name: &str, script: &str| {
        let path = folder.join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    let says = "echo 'postgres (PostgreSQL) 17.99'";
    let hangs = format!("exec sleep {}", TOO_LONG_MS / 1000);
    for name in ["initdb", "pg_ctl"] {
        write(name, &hangs);
    }
    let home = home
        .with("PGSANDBOX_TEST_DEADLINE_MS", DEADLINE_MS)
        .with("PGSANDBOX_POSTGRES_17_BIN_DIR", folder.to_str().unwrap())
        .with("PGSANDBOX_POSTGRES_VERSION", "17");
    // One that does not say its version is none that is there; one that hangs while it makes a cluster is given up.
    for (script, expected) in [(says, "local_postgres_unavailable"), (&hangs, "postgres_version_unavailable")] {
        write("postgres", script);
        let mut stdio = Stdio::start(&home);
        check(&mut stdio, "create_database", &json!({}), expected);
        assert!(stdio.finish().success());
    }
    assert!(!home.state().join("postgres/postgres/17/data").exists());
}

#[tokio::test]
async fn a_session_of_the_admins_is_waited_for_and_then_the_program_is_busy() {
    const SESSIONS: usize = 8;
    let url = PostgresUrl::parse(&cluster().superuser_url(), UrlOrigin::Operator).unwrap();
    let mut settings = PostgresSettings::new("local", "waits", ServerSource::External(url));
    assert_eq!(settings.session_wait, Duration::from_secs(30));
    settings.session_wait = Duration::from_millis(300);
    let server: Arc<PostgresServer> = PostgresServer::new(settings);
    let mut sessions = Vec::new();
    for _ in 0..SESSIONS {
        sessions.push(server.admin_session().await.unwrap());
    }
    let error = server.admin_session().await.map(drop).unwrap_err();
    assert!(matches!(error, EngineError::Busy { sessions: 8, .. }), "{error:?}");
    // Who waits has the first that comes back.
    let waiting = tokio::spawn({
        let server = Arc::clone(&server);
        async move { server.admin_session().await.map(drop) }
    });
    sessions.pop();
    waiting.await.unwrap().unwrap();
}
