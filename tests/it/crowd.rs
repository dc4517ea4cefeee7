//! A server whose connections one owner takes, by direct logins of its sandboxes, and takes again when they are ended: others
//! go on, who has its share of them keeps it, and that owner is kept out and told.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio_postgres::NoTls;

use super::pressure::{WAIT, admin, cluster_of, log_in, made, url_of};
use super::program::{Cli, Home, Stdio, Transport};

/// So many sandboxes of one owner may have more sessions than the server.
const SANDBOXES: usize = 5;
/// So many sessions each role may have, and so many more are tried.
const PER_ROLE: usize = 20;
const TOO_MANY: usize = 2;
/// An application's own pool, or two.
const HONEST: usize = 30;
/// Within this each call of others is carried out.
const SOON: Duration = Duration::from_secs(15);
/// So many connections are nobody's but the admin's.
const RESERVED: i64 = 16;

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn start_as(home: &Home, owner: &str) -> Stdio {
    Stdio::start_with(home, &[("PGSANDBOX_OWNER", owner)], std::process::Stdio::inherit())
}

/// Returns a home whose commands are alice's, a sandbox of hers, and all ways in to sandboxes of mallory's, with one of those.
fn prepared() -> (Home, Value, Vec<String>, Value) {
    let home = Home::fresh().with("PGSANDBOX_OWNER", "alice");
    let mut mallory = start_as(&home, "mallory");
    let mut urls = Vec::new();
    let mut last = Value::Null;
    for _ in 0..SANDBOXES {
        last = made(&mallory.call("create_database", &json!({"nameHint": "crowd"})));
        urls.push(url_of(&mut mallory, &last));
        let reader = json!({"databaseId": last, "access": "readonly", "includeCredentials": true});
        let reply = mallory.call("get_connection_string", &reader);
        urls.push(reply["result"]["connectionString"].as_str().unwrap_or_else(|| panic!("{reply:#}")).to_owned());
    }
    assert!(mallory.finish().success());
    let hers = made(&Cli::new(&home).call("create_database", &json!({"nameHint": "hers"})));
    (home, hers, urls, last)
}

/// Logs in by each of these as often as it is let in, and again whenever a session ends.
fn crowd(urls: &[String], first: &str) -> Runtime {
    let runtime = runtime();
    for url in urls.iter().flat_map(|url| std::iter::repeat_n(url, PER_ROLE + TOO_MANY)) {
        let (url, first) = (url.clone(), first.to_owned());
        runtime.spawn(async move {
            let mut pace = tokio::time::interval(Duration::from_millis(20));
            loop {
                pace.tick().await;
                if let Ok((client, connection)) = tokio_postgres::connect(&url, NoTls).await {
                    let does = async {
                        client.batch_execute(&first).await.ok();
                        std::future::pending::<()>().await;
                    };
                    tokio::select! {
                        _ = connection => {}
                        () = does => {}
                    }
                }
            }
        });
    }
    runtime
}

/// Waits until the server has nothing left but what is the admin's.
async fn wait_until_all_are_taken(home: &Home) {
    let admin = admin(home).await;
    let left = "SELECT current_setting('max_connections')::int8 - count(*) FROM pg_stat_activity \
                WHERE backend_type = 'client backend'";
    let until = Instant::now() + WAIT;
    while admin.query_one(left, &[]).await.unwrap().get::<_, i64>(0) > RESERVED {
        assert!(Instant::now() < until, "they do not take all");
        tokio::task::yield_now().await;
    }
}

/// Makes, uses and removes sandboxes.
fn work(by: &mut impl Transport, hers: &Value) {
    let mut call = |operation: &str, input: &Value| {
        let began = Instant::now();
        let reply = by.call(operation, input);
        assert!(reply["ok"] == true && began.elapsed() < SOON, "{operation}: {:?}: {reply:#}", began.elapsed());
        reply["result"].clone()
    };
    call(
        "run_sql",
        &json!({"databaseId": hers, "sql": "CREATE TABLE IF NOT EXISTS t (n int); INSERT INTO t VALUES (1)"}),
    );
    let made = call("create_database", &json!({}));
    call("describe_schema", &json!({"databaseId": made["databaseId"]}));
    call("run_sql", &json!({"databaseId": made["databaseId"], "sql": "SELECT 1"}));
    let gone = call("delete_database", &json!({"databaseId": made["databaseId"], "wait": true}));
    assert_eq!(gone["deleted"], true, "{gone:#}");
}

#[test]
fn an_owner_that_takes_all_connections_again_and_again_is_kept_out_and_others_go_on() {
    let (home, hers, urls, of_mallory) = prepared();
    let runtime = runtime();
    let url = url_of(&mut Cli::new(&home), &hers);
    let pool: Vec<_> = (0..HONEST).map(|number| if number % 2 == 0 { "SELECT 1" } else { "BEGIN; SELECT 1" }).collect();
    let pool: Vec<_> = runtime.block_on(async {
        let reader = json!({"databaseId": hers, "access": "readonly", "includeCredentials": true});
        let reply = Cli::new(&home).call("get_connection_string", &reader);
        let reader = reply["result"]["connectionString"].as_str().unwrap().to_owned();
        let mut clients = Vec::new();
        for (number, first) in pool.iter().enumerate() {
            let client = log_in(if number < HONEST / 2 { &url } else { &reader }).await.unwrap();
            client.batch_execute(first).await.unwrap();
            clients.push(client);
        }
        clients
    });
    let takers = crowd(&urls, "SELECT 1");
    runtime.block_on(wait_until_all_are_taken(&home));

    // A server that had no session yet.
    let mut alice = start_as(&home, "alice");
    work(&mut alice, &hers);
    work(&mut alice, &hers);
    // One who was not there before.
    let mut bob = start_as(&home, "bob");
    let his = made(&bob.call("create_database", &json!({})));
    work(&mut bob, &his);
    let until = Instant::now() + SOON;
    while fs::read_dir(cluster_of(&home).join("held-off")).map_or(0, |noted| noted.count()) < SANDBOXES {
        assert!(Instant::now() < until, "they are not kept out");
    }
    runtime.block_on(async {
        for client in &pool {
            client.batch_execute("SELECT 1").await.expect("who has its share keeps it");
        }
        log_in(&url).await.expect("there is room for others' direct logins");
        let refused = log_in(&urls[0]).await.expect_err("kept out");
        assert_eq!(refused.code().unwrap().code(), "53300", "{refused}");
    });
    let mut mallory = start_as(&home, "mallory");
    let reply = mallory.call("run_sql", &json!({"databaseId": of_mallory, "sql": "SELECT 1"}));
    let error = &reply["errors"][0];
    assert_eq!((&error["code"], &error["retryable"]), (&json!("busy"), &json!(true)), "{reply:#}");
    assert!(error["message"].as_str().unwrap().contains("most of the server's connections"), "{reply:#}");
    let doctor = alice.call("doctor", &json!({})).to_string();
    assert!(doctor.contains("postgres.crowded-out"), "{doctor}");
    takers.shutdown_background();
    for server in [alice, bob, mallory] {
        assert!(server.finish().success());
    }
}

#[test]
fn a_command_makes_room_among_connections_where_no_server_runs_also_of_sessions_that_work() {
    let (home, hers, urls, _) = prepared();
    for first in ["SELECT 1", "SELECT pg_sleep(1000)"] {
        let takers = crowd(&urls, first);
        runtime().block_on(wait_until_all_are_taken(&home));
        work(&mut Cli::new(&home), &hers);
        takers.shutdown_background();
        // As after some minutes.
        let long_ago = std::time::SystemTime::now() - Duration::from_secs(3600);
        for noted in ["held-off", "parted"] {
            for noted in fs::read_dir(cluster_of(&home).join(noted)).into_iter().flatten().flatten() {
                fs::File::options().write(true).open(noted.path()).unwrap().set_modified(long_ago).unwrap();
            }
        }
        let mut mallory = start_as(&home, "mallory");
        let until = Instant::now() + WAIT;
        while runtime().block_on(log_in(&urls[0])).is_err() {
            assert!(Instant::now() < until, "they are let in again");
        }
        mallory.call("list_databases", &json!({}));
        assert!(mallory.finish().success());
    }
}
