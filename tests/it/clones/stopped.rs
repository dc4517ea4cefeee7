//! Clones that do not come to their end: cancelled, over their time, killed, failing at any point. Nothing is left, there or here.

use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{Setup, reader_url, rows, source};
use crate::harness::{self, Cluster, block_on};
use crate::program::{Stdio, Transport};

/// How long what was stopped may take to be gone.
const GONE_WITHIN: Duration = Duration::from_secs(20);
const LOOK_AGAIN: Duration = Duration::from_millis(50);

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + GONE_WITHIN;
    while !done() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// How many sessions of ours a source has.
fn sessions(cluster: &Cluster, database: &str) -> String {
    let sql = format!(
        "SELECT count(*)::text FROM pg_stat_activity WHERE datname = '{database}' AND application_name = 'pgsandbox'"
    );
    rows(cluster, "postgres", &sql)[0][0].clone()
}

/// Holds a table of a source, so that its dump waits, for as long as what is returned is kept.
fn hold(cluster: &'static Cluster, database: &'static str) -> Sender<()> {
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let (ready, held) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        block_on(async move {
            let client = cluster.superuser(database).await;
            client.batch_execute("BEGIN; LOCK TABLE t IN ACCESS EXCLUSIVE MODE").await.unwrap();
            ready.send(()).unwrap();
            receiver.recv().ok();
        });
    });
    held.recv().unwrap();
    sender
}

fn setup(prefix: &'static str, database: &'static str) -> Setup {
    let cluster = harness::cluster();
    source(cluster, database, "", "CREATE TABLE t (v int); INSERT INTO t SELECT generate_series(1, 1000)");
    Setup::on(cluster, prefix, &[("held", reader_url(cluster, database), json!({}))])
}

#[test]
fn a_clone_is_cancelled_while_it_copies() {
    let setup = setup("clonecancel", "held_cancel");
    let held = hold(setup.target, "held_cancel");
    let mut stdio = Stdio::start(&setup.home);
    let params = json!({"name": "clone_database", "arguments": {"source": "held"}, "_meta": {"progressToken": 7}});
    let id = stdio.begin("tools/call", params);
    wait_until("the dump does not wait", || sessions(setup.target, "held_cancel") == "1" && waits(setup.target));
    let begun = Instant::now();
    stdio.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}));
    wait_until("a session stays on the source", || sessions(setup.target, "held_cancel") == "0");
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    let left = || {
        rows(setup.target, "postgres", "SELECT count(*)::text FROM pg_database WHERE datname LIKE 'clonecancel\\_%'")[0]
            [0]
            != "0"
    };
    wait_until("a database stays", || !left());
    // The next call is answered, so the program lives; and it has told of its steps.
    assert_eq!(stdio.call("list_databases", &json!({}))["result"]["databases"], json!([]));
    let told: Vec<f64> = stdio.notifications.iter().filter_map(|n| n["params"]["progress"].as_f64()).collect();
    assert!(told.len() > 3 && told.windows(2).all(|pair| pair[0] < pair[1]), "{told:?}");
    drop(held);
    assert!(stdio.finish().success());
    setup.nothing_is_left();
}

fn waits(cluster: &Cluster) -> bool {
    let sql =
        "SELECT count(*)::text FROM pg_stat_activity WHERE application_name = 'pgsandbox' AND wait_event_type = 'Lock'";
    rows(cluster, "postgres", sql)[0][0] != "0"
}

#[test]
fn a_clone_over_its_time_is_stopped_and_one_that_gets_no_lock_says_so() {
    let setup = setup("clonetime", "held_time");
    let held = hold(setup.target, "held_time");
    setup.refused(json!({"source": "held", "timeoutSeconds": 3}), "command_timeout", "was not done within 3 s");
    wait_until("a session stays on the source", || sessions(setup.target, "held_time") == "0");
    setup.refused(json!({"source": "held"}), "lock_timeout", "did not give a lock in time");
    drop(held);
}

#[test]
fn a_program_killed_while_it_clones_leaves_nothing_to_the_next() {
    let setup = setup("clonekill", "held_kill");
    let held = hold(setup.target, "held_kill");
    let mut stdio = Stdio::start(&setup.home);
    stdio.begin("tools/call", json!({"name": "clone_database", "arguments": {"source": "held"}}));
    wait_until("the dump does not wait", || waits(setup.target));
    stdio.kill();
    // Its programs lose their connections with it.
    wait_until("a session stays on the source", || sessions(setup.target, "held_kill") == "0");
    drop(held);
    let mut next = Stdio::start(&setup.home);
    assert_eq!(next.call("list_databases", &json!({}))["ok"], true);
    let left = || {
        rows(setup.target, "postgres", "SELECT count(*)::text FROM pg_database WHERE datname LIKE 'clonekill\\_%'")[0]
            [0]
            != "0"
    };
    let until = Instant::now() + Duration::from_secs(90);
    while left() {
        assert!(Instant::now() < until, "a database stays");
        std::thread::sleep(LOOK_AGAIN);
    }
    assert!(next.finish().success());
    setup.nothing_is_left();
}

#[test]
fn a_clone_that_fails_anywhere_leaves_nothing() {
    let setup = setup("clonefail", "held_fail");
    for point in [
        "file.copy-dir.make",
        "file.copy-file.make",
        "file.copy-list.write",
        "file.copy.move",
        "socket.relay.bind",
        "socket.relay.connect",
        "socket.relay.connect=fail@2",
        "socket.source-login",
        "spawn.pg-dump",
        "spawn.pg-restore",
        "plan.create.copy-source.before",
        "plan.create.copy-source.after",
        "plan.create.check-copy.before",
    ] {
        let fault = if point.contains('=') { point.to_owned() } else { format!("{point}=fail") };
        let mut input = json!({"source": "held"});
        if point.starts_with("file.copy-file") || point.starts_with("file.copy-list") {
            // An archive is kept only where something is masked or left out.
            input["mask"] = json!([{"table": "t", "column": "v", "with": "hash"}]);
        }
        let input = input.to_string();
        let mut command = setup.home.command(&["tool", "clone_database", "--format", "json", "--input", &input]);
        let output = command.env("PGSANDBOX_TEST_FAULTS", &fault).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!output.status.success(), "{point}: {text}");
        assert!(text.contains("\"code\""), "{point}: {text}");
        assert!(!text.contains("s3cret"), "{point}: {text}");
        setup.nothing_is_left();
    }
}
