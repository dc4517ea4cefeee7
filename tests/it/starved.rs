//! A server whose table of locks one sandbox has filled, met by programs that had no call yet, by commands, and by statements
//! of others: nobody's honest work is ended for it, and nobody is told that it is their own doing.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio_postgres::Client;

use super::pressure::{admin, cluster_of, log_in, made, take_again_and_again, url_of, wait_for_the_watch};
use super::program::{Cli, Home, Stdio, Transport as _};

/// So many calls by a command each.
const CALLS: usize = 8;
/// So many sessions change a row, and so many copies are made beside them.
const CHANGERS: usize = 8;
const COPIES: usize = 6;

/// For so long it is waited for a program that can tell who holds the locks.
const OTHERS_WAIT: Duration = Duration::from_secs(6);

/// Takes every lock that there is.
const ALL: &str = "SELECT count(pg_advisory_lock(n)) FROM generate_series(1, 1000000) n";

/// Drives connections also while calls are waited for.
fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Begins honest work whose session is larger than any that only takes locks.
async fn work_with_much_memory(url: &str) -> Client {
    let works = log_in(url).await.unwrap();
    works.batch_execute("BEGIN; CREATE TABLE work (n int); INSERT INTO work VALUES (1)").await.unwrap();
    for name in 0..10 {
        let sql = format!("SELECT set_config('held.a{name}', repeat('x', 20000000), false) IS NULL");
        works.batch_execute(&sql).await.unwrap();
    }
    works
}

async fn end_work(works: &Client) {
    works.batch_execute("INSERT INTO work VALUES (2); COMMIT").await.expect("honest work goes on");
}

fn write(id: &Value) -> Value {
    json!({"databaseId": id, "sql": "CREATE TABLE IF NOT EXISTS t (n int); INSERT INTO t VALUES (1)"})
}

#[test]
fn a_program_without_a_call_yet_knows_who_holds_the_locks() {
    let (home, runtime) = (Home::fresh(), runtime());
    let mut cli = Cli::new(&home);
    let [taker, honest, other] =
        ["taker", "honest", "other"].map(|name| made(&cli.call("create_database", &json!({"nameHint": name}))));
    let (taker, honest) = (url_of(&mut cli, &taker), url_of(&mut cli, &honest));
    let mut server = Stdio::start(&home);
    runtime.block_on(async {
        wait_for_the_watch(&home).await;
        // It watches, and has opened nothing.
        let opened =
            "SELECT count(*) FROM pg_stat_activity WHERE datname = 'pgsandbox' AND backend_type = 'client backend'";
        assert_eq!(admin(&home).await.query_one(opened, &[]).await.unwrap().get::<_, i64>(0), 0);
        let works = work_with_much_memory(&honest).await;
        let taken = log_in(&taker).await.unwrap();
        assert_eq!(taken.batch_execute(ALL).await.unwrap_err().code().unwrap().code(), "53200");
        let calls: [Value; 3] = std::array::from_fn(|_| server.call("run_sql", &write(&other)));
        assert!(calls[1..].iter().all(|reply| reply["ok"] == true), "{calls:#?}");
        assert!(taken.query("SELECT 1", &[]).await.is_err(), "the session that took them is ended");
        end_work(&works).await;
    });
    assert!(server.finish().success());
}

#[test]
fn a_server_that_does_not_run_is_not_started_to_be_watched() {
    let home = Home::fresh();
    let mut cli = Cli::new(&home);
    made(&cli.call("create_database", &json!({})));
    assert!(home.run(&["local", "stop"]).status.success());
    let mut server = Stdio::start(&home);
    // A call that starts none either, so that there was time for a look.
    for _ in 0..20 {
        assert_eq!(server.call("list_profiles", &json!({}))["ok"], true);
        std::thread::yield_now();
    }
    assert!(!cluster_of(&home).join("data/postmaster.pid").exists());
    assert!(server.finish().success());
}

#[test]
fn a_command_asks_who_holds_the_locks_as_often_as_it_meets_it() {
    let (home, runtime) = (Home::fresh(), runtime());
    let (mut server, mut cli) = (Stdio::start(&home), Cli::new(&home));
    let [taker, honest, other] =
        ["taker", "honest", "other"].map(|name| made(&server.call("create_database", &json!({"nameHint": name}))));
    let (taker, honest) = (url_of(&mut server, &taker), url_of(&mut server, &honest));
    let works = runtime.block_on(async {
        wait_for_the_watch(&home).await;
        work_with_much_memory(&honest).await
    });
    let takers = take_again_and_again(&taker);
    // It is the first time in a minute each time, so that they are not kept out.
    let ended = cluster_of(&home).join("ended");
    let forgets = runtime.spawn(async move {
        loop {
            fs::read_dir(&ended).into_iter().flatten().flatten().for_each(|one| drop(fs::remove_file(one.path())));
            tokio::task::yield_now().await;
        }
    });
    // Each logs in several times, and meets it anew.
    for _ in 0..CALLS {
        cli.call("run_sql", &write(&other));
    }
    forgets.abort();
    takers.shutdown_background();
    runtime.block_on(end_work(&works));
    assert!(server.finish().success());
}

#[test]
fn a_command_that_nobody_answers_guesses_after_a_while() {
    let (home, runtime) = (Home::fresh(), runtime());
    let mut cli = Cli::new(&home);
    let [taker, other] = ["taker", "other"].map(|name| made(&cli.call("create_database", &json!({"nameHint": name}))));
    let taker = url_of(&mut cli, &taker);
    runtime.block_on(async {
        let taken = log_in(&taker).await.unwrap();
        assert_eq!(taken.batch_execute(ALL).await.unwrap_err().code().unwrap().code(), "53200");
        let began = Instant::now();
        // What was begun before it was ended may be told to come back.
        cli.call("run_sql", &write(&other));
        assert!(began.elapsed() > OTHERS_WAIT, "{:?}", began.elapsed());
        assert_eq!(cli.call("run_sql", &write(&other))["ok"], true);
        assert!(taken.query("SELECT 1", &[]).await.is_err(), "the session that took them is ended");
    });
}

#[test]
fn a_statement_that_finds_no_lock_left_by_others_is_busy_and_what_it_takes_itself_is_its_own_doing() {
    let (home, runtime) = (Home::fresh(), runtime());
    let (mut server, mut cli) = (Stdio::start(&home), Cli::new(&home));
    let [taker, other] =
        ["taker", "other"].map(|name| made(&server.call("create_database", &json!({"nameHint": name}))));
    let taker = url_of(&mut server, &taker);
    let takes = |count: u32| {
        let sql = format!("DO $$ BEGIN PERFORM pg_advisory_xact_lock(n) FROM generate_series(1, {count}) n; END $$");
        json!({"databaseId": other, "sql": sql})
    };
    runtime.block_on(wait_for_the_watch(&home));
    // By a running server, which has a session that can tell, and by a command, which has none.
    for through_command in [false, true] {
        let mut call = |input: &Value| {
            if through_command { cli.call("run_sql", input) } else { server.call("run_sql", input) }
        };
        let reply = call(&takes(1_000_000));
        let told = |reply: &Value| {
            let error = &reply["errors"][0];
            (error["code"].as_str().unwrap_or("ok").to_owned(), error["retryable"] == true, error["sqlstate"].clone())
        };
        assert_eq!(told(&reply), ("sql_failed".to_owned(), false, json!("53200")), "{reply:#}");
        let taken = runtime.block_on(async {
            let taken = log_in(&taker).await.unwrap();
            assert_eq!(taken.batch_execute(ALL).await.unwrap_err().code().unwrap().code(), "53200");
            // Who needs few goes on.
            taken.batch_execute("SELECT pg_advisory_unlock(n) FROM generate_series(1, 1000) n").await.unwrap();
            taken
        });
        let reply = call(&takes(20_000));
        assert_eq!(told(&reply), ("busy".to_owned(), true, json!("53200")), "{through_command}: {reply:#}");
        let reply = call(&takes(20_000));
        assert_eq!(reply["ok"], true, "{through_command}: {reply:#}");
        runtime
            .block_on(async { taken.query("SELECT 1", &[]).await.expect_err("the session that took them is ended") });
        fs::read_dir(cluster_of(&home).join("ended"))
            .unwrap()
            .flatten()
            .for_each(|one| fs::remove_file(one.path()).unwrap());
    }
    assert!(server.finish().success());
}

#[test]
fn a_copy_is_made_beside_a_database_whose_row_changes_all_the_time() {
    let (home, runtime) = (Home::fresh(), runtime());
    let mut server = Stdio::start(&home);
    let [changed, copied] = ["changed", "copied"].map(|name| {
        let reply = server.call("create_database", &json!({"nameHint": name}));
        assert_eq!(reply["ok"], true, "{reply:#}");
        reply["result"].clone()
    });
    let (database, role) = (changed["databaseName"].as_str().unwrap(), copied["roleName"].as_str().unwrap());
    let url = url_of(&mut server, &changed["databaseId"]);
    // Without it nothing of the other one is touched.
    runtime
        .block_on(async {
            log_in(&url).await.unwrap().batch_execute(&format!("GRANT CONNECT ON DATABASE {database} TO {role}")).await
        })
        .unwrap();
    let changes = format!(
        "DO $$ BEGIN LOOP BEGIN EXECUTE 'ALTER DATABASE {database} CONNECTION LIMIT 17'; EXCEPTION WHEN OTHERS THEN NULL; END; \
         COMMIT; END LOOP; END $$"
    );
    for _ in 0..CHANGERS {
        let (url, changes) = (url.clone(), changes.clone());
        runtime.spawn(async move {
            loop {
                if let Ok(client) = log_in(&url).await {
                    client.batch_execute(&changes).await.ok();
                }
                tokio::task::yield_now().await;
            }
        });
    }
    for _ in 0..COPIES {
        let copy = server.call("fork_database", &json!({"databaseId": copied["databaseId"]}));
        assert_eq!(copy["ok"], true, "{copy:#}");
    }
    runtime.shutdown_background();
    assert!(server.finish().success());
}
