//! Timeouts, cancels, and connections that end.

use std::time::{Duration, Instant};

use pgsandbox::engine::postgres::{SandboxSession, SessionTarget, StatementCall, TxStatus, WireError};

use super::cluster::{Cluster, call, run, value};

fn within(ms: u64, text: &str) -> StatementCall<'_> {
    StatementCall { timeout: Duration::from_millis(ms), ..call(text) }
}

/// Waits until the backend `process_id` runs something, or nothing any more. Says whether it came to that in time.
async fn becomes(active: bool, process_id: i32, watcher: &mut SandboxSession, time: Duration) -> bool {
    let since = Instant::now();
    let text = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {process_id} AND state = 'active'");
    while since.elapsed() < time {
        if (value(watcher, &text).await == "1") == active {
            return true;
        }
    }
    false
}

async fn is_idle_within_a_second(watcher: &mut SandboxSession, process_id: i32) -> bool {
    becomes(false, process_id, watcher, Duration::from_secs(1)).await
}

async fn is_busy(watcher: &mut SandboxSession, process_id: i32) {
    assert!(becomes(true, process_id, watcher, Duration::from_secs(20)).await);
}

async fn watcher(cluster: &Cluster) -> SandboxSession {
    let admin = SessionTarget { database: "postgres".into(), ..cluster.target("postgres") };
    SandboxSession::connect(&admin).await.unwrap()
}

#[tokio::test]
async fn the_servers_timer_ends_a_statement_and_not_the_session() {
    let cluster = Cluster::start().await;
    let mut session = cluster.session("owner").await;
    let since = Instant::now();
    let error = session.execute(&within(100, "SELECT pg_sleep(600)")).await.unwrap_err();
    assert!(since.elapsed() < Duration::from_secs(2));
    assert_eq!(error.sqlstate(), Some("57014"));
    assert_eq!(pgsandbox::model::Failure::from(error).code.as_str(), "statement_timeout");
    assert!(session.is_usable());
    let error = session.execute_read_only(&within(100, "SELECT pg_sleep(600)")).await.unwrap_err();
    assert_eq!(error.sqlstate(), Some("57014"));
    session.reset().await.unwrap();
    assert_eq!(value(&mut session, "SELECT 1").await, "1");
}

#[tokio::test]
async fn our_own_timer_ends_a_statement_that_switched_the_servers_off() {
    let cluster = Cluster::start().await;
    let mut watcher = watcher(&cluster).await;
    let mut session = cluster.session("owner").await;
    run(&mut session, "SET statement_timeout = 0").await;
    let since = Instant::now();
    let found = session.execute(&within(100, "SELECT pg_sleep(600)")).await;
    assert_eq!(found, Err(WireError::Timeout { ms: 100, stopped: true }));
    assert!(since.elapsed() < Duration::from_secs(2), "{:?}", since.elapsed());
    assert!(is_idle_within_a_second(&mut watcher, session.process_id()).await);
    assert!(!session.is_usable());
    assert_eq!(session.execute(&call("SELECT 1")).await, Err(WireError::Unusable));
    assert_eq!(session.reset().await, Err(WireError::Unusable));
}

#[tokio::test]
async fn a_cancel_from_another_task_stops_a_statement_within_a_second() {
    let cluster = Cluster::start().await;
    let mut watcher = watcher(&cluster).await;
    for read_only in [false, true] {
        let mut session = cluster.session("owner").await;
        let (handle, process_id) = (session.cancel_handle(), session.process_id());
        let running = tokio::spawn(async move {
            let found = match read_only {
                false => session.execute(&call("SELECT pg_sleep(600)")).await,
                true => session.execute_read_only(&call("SELECT pg_sleep(600)")).await,
            };
            (session, found)
        });
        is_busy(&mut watcher, process_id).await;
        let since = Instant::now();
        handle.cancel().await.unwrap();
        let (session, found) = running.await.unwrap();
        assert!(since.elapsed() < Duration::from_secs(1), "{:?}", since.elapsed());
        assert_eq!(found, Err(WireError::Cancelled), "read-only: {read_only}");
        assert!(!session.is_usable());
    }
}

#[tokio::test]
async fn a_cancel_after_the_reset_does_nothing() {
    let cluster = Cluster::start().await;
    let mut session = cluster.session("owner").await;
    let late = session.cancel_handle();
    session.reset().await.unwrap();
    let (found, cancelled) = {
        let slow = call("SELECT pg_sleep(0.2)");
        tokio::join!(session.execute(&slow), late.cancel())
    };
    cancelled.unwrap();
    assert!(found.is_ok(), "{found:?}");
    assert!(session.is_usable());
}

#[tokio::test]
async fn a_call_that_is_dropped_stops_its_statement() {
    let cluster = Cluster::start().await;
    let mut watcher = watcher(&cluster).await;
    let mut session = cluster.session("owner").await;
    run(&mut session, "SET statement_timeout = 0").await;
    let process_id = session.process_id();
    let slow = call("SELECT pg_sleep(600)");
    tokio::select! {
        found = session.execute(&slow) => panic!("{found:?}"),
        () = is_busy(&mut watcher, process_id) => {}
    }
    assert!(!session.is_usable());
    assert_eq!(session.execute(&call("SELECT 1")).await, Err(WireError::Unusable));
    assert!(is_idle_within_a_second(&mut watcher, process_id).await);
}

#[tokio::test]
async fn a_backend_that_is_ended_is_told_as_such() {
    let cluster = Cluster::start().await;
    let mut watcher = watcher(&cluster).await;
    let mut session = cluster.session("owner").await;
    let process_id = session.process_id();
    let running = tokio::spawn(async move {
        let found = session.execute(&call("SELECT pg_sleep(600)")).await;
        (session, found)
    });
    is_busy(&mut watcher, process_id).await;
    run(&mut watcher, &format!("SELECT pg_terminate_backend({process_id})")).await;
    let (mut session, found) = running.await.unwrap();
    assert!(matches!(&found, Err(WireError::Ended(e)) if e.sqlstate() == "57P01"), "{found:?}");
    assert_eq!(session.execute(&call("SELECT 1")).await, Err(WireError::Unusable));

    // And one that is ended between two calls.
    let mut session = cluster.session("owner").await;
    let end = format!("SELECT pg_terminate_backend({}, 5000)", session.process_id());
    run(&mut watcher, &end).await;
    let found = session.execute(&call("SELECT 1")).await;
    assert!(matches!(&found, Err(WireError::Ended(e)) if e.sqlstate() == "57P01"), "{found:?}");
}

#[tokio::test]
async fn a_process_that_is_killed_loses_the_connection() {
    let cluster = Cluster::start().await;
    let mut session = cluster.session("owner").await;
    let process = rustix::process::Pid::from_raw(session.process_id()).unwrap();
    let mut watcher = watcher(&cluster).await;
    let slow = call("SELECT pg_sleep(600)");
    let kill = async {
        is_busy(&mut watcher, process.as_raw_nonzero().get()).await;
        rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    };
    let (found, ()) = tokio::join!(session.execute(&slow), kill);
    assert!(matches!(found, Err(WireError::Lost(_))), "{found:?}");
    assert!(!session.is_usable());
}

#[tokio::test]
async fn a_timeout_within_a_transaction_leaves_it_failed() {
    let cluster = Cluster::start().await;
    let mut session = cluster.session("owner").await;
    session.execute(&within(200, "BEGIN")).await.unwrap();
    let error = session.execute(&call("SELECT pg_sleep(600)")).await.unwrap_err();
    assert_eq!(error.sqlstate(), Some("57014"));
    assert_eq!(session.status(), TxStatus::Failed);
    session.rollback().await.unwrap();
}
