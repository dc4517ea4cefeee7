//! A server with few connections: calls wait for one, and are told to come back if none comes. A server whose table of
//! locks one sandbox has filled: that one is ended, and kept out if it does so again, and the others go on.

use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use pgsandbox::model::{Code, CredentialAccess, Failure};
use pgsandbox::sandbox::Core;
use pgsandbox::store::Inert;
use serde_json::{Value, json};
use tokio_postgres::Client;

use super::harness::{Cluster, block_on, own_cluster_with};
use super::lifecycle_postgres::{core, run};
use super::program::{Cli, Home, Stdio, Transport};
use super::toy_engine::{any_permit, create};

/// Of these the server keeps three for its superuser.
const CONNECTIONS: usize = 15;
/// Calls at once.
const CALLS: usize = 20;
/// Long enough for anything here.
pub(super) const WAIT: Duration = Duration::from_secs(60);

/// Calls at once, in both sandboxes and as both roles.
async fn calls(core: &Core, ids: [pgsandbox::model::SandboxId; 2]) -> Vec<Result<i32, Failure>> {
    let calls = (0..CALLS).map(|number| {
        let (core, id) = (core.clone(), ids[number % 2]);
        let access = if number % 4 < 2 { CredentialAccess::Owner } else { CredentialAccess::ReadOnly };
        tokio::spawn(async move {
            let mut session = core.session(&any_permit(), id, access).await?;
            let slept = run(&mut session, "select pg_catalog.pg_sleep(0.02)").await;
            assert_eq!(slept.rows.len(), 1);
            Ok(session.process_id())
        })
    });
    let mut ended = Vec::new();
    for call in calls.collect::<Vec<_>>() {
        ended.push(call.await.unwrap());
    }
    ended
}

/// Takes connections as somebody else, until the server has none left for anybody but its superuser.
async fn hog(cluster: &Cluster) -> Vec<Client> {
    let mut hogs = Vec::new();
    while let Ok(client) = cluster.connect(super::harness::LIMITED, super::harness::PASSWORD, "limited").await {
        hogs.push(client);
        assert!(hogs.len() <= CONNECTIONS);
    }
    hogs
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_wait_for_a_connection_and_are_told_to_come_back_if_none_comes() {
    let cluster = own_cluster_with(&format!("-c max_connections={CONNECTIONS} -c max_wal_senders=2"));
    let keys = tempfile::tempdir().unwrap();
    let core = core(&cluster.superuser_url(), &keys, None, Arc::new(Inert)).await;
    let (one, two) = (create(&core).await.unwrap(), create(&core).await.unwrap());
    let ids = [one.id, two.id];
    core.set_session_wait(WAIT);
    for round in 0..2 {
        let ended = calls(&core, ids).await;
        assert!(ended.iter().all(Result::is_ok), "round {round}: {ended:?}");
    }

    // Somebody else takes all there are, and another program of ours has no session yet.
    let hogs = hog(&cluster).await;
    let other = self::core(&cluster.superuser_url(), &keys, None, Arc::new(Inert)).await;
    other.set_session_wait(Duration::from_millis(700));
    for failure in calls(&other, ids).await.into_iter().map(Result::unwrap_err) {
        assert_eq!((failure.code, failure.retryable), (Code::Busy, true), "{failure:?}");
        assert!(failure.hint.is_some(), "{failure:?}");
    }
    assert!(other.drain(WAIT).await);

    // A call that waits goes on as soon as there is room again.
    core.set_session_wait(WAIT);
    let waiting = {
        let core = core.clone();
        tokio::spawn(async move { calls(&core, ids).await })
    };
    drop(hogs);
    let ended = waiting.await.unwrap();
    assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    for sandbox in core.list(&Default::default()).await.unwrap().databases {
        core.delete(&any_permit(), sandbox.id, Some(WAIT)).await.unwrap();
    }
    assert!(core.drain(WAIT).await);
}

/// Logs in to a sandbox as its owner, by what the program says of it.
pub(super) async fn log_in(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

#[test]
fn a_sandbox_that_takes_every_lock_of_the_server_is_ended_and_the_others_go_on() {
    let home = Home::fresh();
    let (mut server, mut cli) = (Stdio::start(&home), Cli::new(&home));
    let create = json!({"nameHint": "locks"});
    let made = |reply: Value| {
        assert_eq!(reply["ok"], true, "{reply:#}");
        reply["result"]["databaseId"].clone()
    };
    let (taker, other) = (made(server.call("create_database", &create)), made(server.call("create_database", &create)));
    let url = cli.call("get_connection_string", &json!({"databaseId": taker, "includeCredentials": true}));
    let url = url["result"]["connectionString"].as_str().unwrap().to_owned();
    let writes = json!({"databaseId": other, "sql": "CREATE TABLE IF NOT EXISTS t (n int); INSERT INTO t VALUES (1)"});
    // By a running server that has sessions, and by a command that has none.
    for through_command in [false, true] {
        block_on(async {
            let taken = log_in(&url).await.unwrap();
            let all = "SELECT count(pg_advisory_lock(n)) FROM generate_series(1, 1000000) n";
            let error = taken.batch_execute(all).await.unwrap_err();
            assert_eq!(error.code().unwrap().code(), "53200", "{error}");
            let refused = log_in(&url).await.expect_err("nobody gets in");
            assert_eq!(refused.code().unwrap().code(), "53200", "{refused}");
            // Whoever meets it first may be told to come back, and only once.
            let calls: [Value; 3] = std::array::from_fn(|_| {
                if through_command { cli.call("run_sql", &writes) } else { server.call("run_sql", &writes) }
            });
            assert!(calls[0]["ok"] == true || calls[0]["errors"][0]["code"] == "busy", "{:#}", calls[0]);
            assert!(calls[1..].iter().all(|reply| reply["ok"] == true), "{calls:#?}");
            assert!(taken.query("SELECT 1", &[]).await.is_err(), "the session that took them is ended");
        });
        made(server.call("create_database", &create));
    }
    drop(server);
}

/// More sessions of one sandbox's that take locks than it has connections for are refused.
const TAKERS: usize = 18;
/// Within this calls of others go on.
const SOON: Duration = Duration::from_secs(20);

pub(super) fn made(reply: &Value) -> Value {
    assert_eq!(reply["ok"], true, "{reply:#}");
    reply["result"]["databaseId"].clone()
}

pub(super) fn url_of(server: &mut impl Transport, id: &Value) -> String {
    let reply = server.call("get_connection_string", &json!({"databaseId": id, "includeCredentials": true}));
    reply["result"]["connectionString"].as_str().unwrap_or_else(|| panic!("{reply:#}")).to_owned()
}

/// Logs in to a managed cluster as its admin.
pub(super) async fn admin(home: &Home) -> Client {
    admin_in(home, "postgres").await
}

pub(super) async fn admin_in(home: &Home, database: &str) -> Client {
    let cluster = cluster_of(home);
    let read = |name: &str| fs::read_to_string(cluster.join(name)).unwrap().trim().to_owned();
    let mut config = tokio_postgres::Config::new();
    config.host_path(read("socket-directory")).port(read("port").parse().unwrap()).dbname(database);
    config.user("pgsandbox_admin").password(read("admin-password"));
    let (admin, connection) = config.connect(tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    admin
}

/// Waits until a managed cluster's admin has a session that can tell who holds the locks: its last statement says so.
pub(super) async fn wait_for_the_watch(home: &Home) {
    let admin = admin(home).await;
    let watches =
        "SELECT 1 FROM pg_stat_activity WHERE query ~ 'pg_lock_status|superuser_reserved' AND pid <> pg_backend_pid()";
    let until = Instant::now() + WAIT;
    while admin.query(watches, &[]).await.unwrap().is_empty() {
        assert!(Instant::now() < until, "nobody watches");
    }
}

#[test]
fn who_holds_the_locks_is_ended_and_not_whose_session_is_largest() {
    let home = Home::fresh();
    let (mut server, mut cli) = (Stdio::start(&home), Cli::new(&home));
    let [taker, honest, other] =
        ["taker", "honest", "other"].map(|name| made(&server.call("create_database", &json!({"nameHint": name}))));
    let (taker, honest) = (url_of(&mut server, &taker), url_of(&mut server, &honest));
    let writes = json!({"databaseId": other, "sql": "CREATE TABLE IF NOT EXISTS t (n int); INSERT INTO t VALUES (1)"});
    // By a running server that knows, and by a command that asks it.
    for through_command in [false, true] {
        block_on(async {
            wait_for_the_watch(&home).await;
            let works = log_in(&honest).await.unwrap();
            let work = "BEGIN; CREATE TABLE IF NOT EXISTS work (n int); INSERT INTO work VALUES (1)";
            works.batch_execute(work).await.unwrap();
            for name in ["a", "b", "c"] {
                let sql = format!("SELECT set_config('held.{name}', repeat('x', 20000000), false) IS NULL");
                works.batch_execute(&sql).await.unwrap();
            }
            let taken = log_in(&taker).await.unwrap();
            let all = "SELECT count(pg_advisory_lock(n)) FROM generate_series(1, 1000000) n";
            assert_eq!(taken.batch_execute(all).await.unwrap_err().code().unwrap().code(), "53200");
            let calls: [Value; 3] = std::array::from_fn(|_| {
                if through_command { cli.call("run_sql", &writes) } else { server.call("run_sql", &writes) }
            });
            assert!(calls[1..].iter().all(|reply| reply["ok"] == true), "{through_command}: {calls:#?}");
            assert!(taken.query("SELECT 1", &[]).await.is_err(), "the session that took them is ended");
            works.batch_execute("INSERT INTO work VALUES (2); COMMIT").await.expect("honest work goes on");
        });
        // That was once in a minute each: the next is not the second.
        if let Ok(ended) = fs::read_dir(cluster_of(&home).join("ended")) {
            ended.flatten().for_each(|entry| fs::remove_file(entry.path()).unwrap());
        }
    }
    assert!(server.finish().success());
}

pub(super) fn cluster_of(home: &Home) -> PathBuf {
    let mut clusters =
        fs::read_dir(home.state().join("postgres/postgres")).unwrap().flatten().map(|entry| entry.path());
    clusters.find(|path| path.join("admin-password").exists()).unwrap()
}

/// Takes all locks of a server as a sandbox' owner, by many sessions, each of which comes back when it is ended; until what is
/// returned is shut down.
pub(super) fn take_again_and_again(url: &str) -> tokio::runtime::Runtime {
    let takes = "DO $$ DECLARE k int := 0; BEGIN LOOP BEGIN LOOP PERFORM pg_advisory_lock(pg_backend_pid(), k); \
                 k := k + 1; END LOOP; EXCEPTION WHEN OTHERS THEN NULL; END; PERFORM pg_sleep(0.005); END LOOP; END $$";
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for _ in 0..TAKERS {
        let url = url.to_owned();
        runtime.spawn(async move {
            // As fast as a program is started for it.
            let mut pace = tokio::time::interval(Duration::from_millis(20));
            loop {
                pace.tick().await;
                if let Ok(client) = log_in(&url).await {
                    client.batch_execute(takes).await.ok();
                }
            }
        });
    }
    runtime
}

#[test]
fn a_sandbox_that_takes_all_locks_again_is_kept_out_for_a_while() {
    let home = Home::fresh();
    let (mut server, mut cli) = (Stdio::start(&home), Cli::new(&home));
    let [taker, other, gone] =
        ["taker", "other", "gone"].map(|name| made(&server.call("create_database", &json!({"nameHint": name}))));
    let url = url_of(&mut server, &taker);
    block_on(wait_for_the_watch(&home));
    let runtime = take_again_and_again(&url);
    let write = json!({"databaseId": other, "sql": "CREATE TABLE IF NOT EXISTS t (n int); INSERT INTO t VALUES (1)"});
    let until = Instant::now() + SOON;
    let held_off = cluster_of(&home).join("held-off");
    while fs::read_dir(&held_off).map_or(0, |noted| noted.count()) == 0 {
        server.call("run_sql", &write);
        assert!(Instant::now() < until, "it is not kept out");
    }
    // One that was begun before may still be told to come back.
    server.call("run_sql", &write);
    for _ in 0..5 {
        let reply = server.call("run_sql", &write);
        assert_eq!(reply["ok"], true, "{reply:#}");
    }
    let removed = server.call("delete_database", &json!({"databaseId": gone, "wait": true}));
    assert_eq!(removed["result"]["deleted"], true, "{removed:#}");
    assert_eq!(cli.call("run_sql", &write)["ok"], true);
    let reply = server.call("run_sql", &json!({"databaseId": taker, "sql": "SELECT 1"}));
    assert_eq!(reply["errors"][0]["code"], "busy", "{reply:#}");
    let doctor = server.call("doctor", &json!({})).to_string();
    assert!(doctor.contains("postgres.locks"), "{doctor}");

    // Its time is over.
    runtime.shutdown_background();
    let long_ago = SystemTime::now() - Duration::from_secs(3600);
    for noted in fs::read_dir(&held_off).unwrap().flatten() {
        File::options().write(true).open(noted.path()).unwrap().set_modified(long_ago).unwrap();
    }
    let until = Instant::now() + WAIT;
    while block_on(log_in(&url)).is_err() {
        assert!(Instant::now() < until, "it is let in again");
    }
    assert!(server.finish().success());
}
