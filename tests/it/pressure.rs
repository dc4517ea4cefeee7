//! A server with few connections: calls wait for one, and are told to come back if none comes. A server whose table of
//! locks one sandbox has filled: that one is ended, and the others go on.

use std::sync::Arc;
use std::time::Duration;

use pgsandbox::model::{Code, CredentialAccess, Failure};
use pgsandbox::sandbox::Core;
use pgsandbox::store::Inert;
use serde_json::{Value, json};
use tokio_postgres::Client;

use super::harness::{Cluster, block_on, own_cluster_with};
use super::lifecycle_postgres::{core, run};
use super::program::{Cli, Home, Stdio, Transport as _};
use super::toy_engine::{any_permit, create};

/// Of these the server keeps three for its superuser.
const CONNECTIONS: usize = 15;
/// Calls at once.
const CALLS: usize = 20;
/// Long enough for anything here.
const WAIT: Duration = Duration::from_secs(60);

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
async fn log_in(url: &str) -> Result<Client, tokio_postgres::Error> {
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
