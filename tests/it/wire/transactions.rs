//! Transactions as the caller wrote them, and sessions that are used again.

use std::time::Duration;

use pgsandbox::engine::postgres::{StatementCall, TxStatus, WireError};

use super::cluster::{Cluster, call, fails, run, texts, value};

#[tokio::test]
async fn a_transaction_does_what_it_says() {
    let cluster = Cluster::start().await;
    let mut session = cluster.session("owner").await;
    run(&mut session, "CREATE TABLE t (n int)").await;
    assert_eq!(session.status(), TxStatus::Idle);
    run(&mut session, "BEGIN").await;
    assert_eq!(session.status(), TxStatus::InTransaction);
    run(&mut session, "INSERT INTO t VALUES (1)").await;
    run(&mut session, "SAVEPOINT s").await;
    assert_eq!(fails(&mut session, "SELECT 1/0").await, "22012");
    assert_eq!(session.status(), TxStatus::Failed);
    assert_eq!(fails(&mut session, "SELECT 1").await, "25P02");
    run(&mut session, "ROLLBACK TO s").await;
    assert_eq!(session.status(), TxStatus::InTransaction);
    run(&mut session, "ROLLBACK").await;
    assert_eq!(session.status(), TxStatus::Idle);
    assert_eq!(value(&mut session, "SELECT count(*) FROM t").await, "0");
}

#[tokio::test]
async fn nothing_of_ours_comes_between_the_callers_statements() {
    let cluster = Cluster::start().await;
    // The first statement of a session, for which the timer is set.
    let mut session = cluster.session("owner").await;
    run(&mut session, "BEGIN").await;
    run(&mut session, "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE").await;
    assert_eq!(value(&mut session, "SHOW transaction_isolation").await, "serializable");
    run(&mut session, "COMMIT").await;
    // Statements that want no transaction around them, each as the first.
    for text in ["CREATE TABLE t (n int)", "CREATE INDEX CONCURRENTLY ON t (n)", "VACUUM t", "ANALYZE"] {
        session.reset().await.unwrap();
        run(&mut session, text).await;
    }
    run(&mut session, "CREATE TYPE mood AS ENUM ('a')").await;
    run(&mut session, "ALTER TYPE mood ADD VALUE 'b'").await;
}

#[tokio::test]
async fn a_result_that_was_cut_holds_no_lock() {
    let cluster = Cluster::start().await;
    let mut session = cluster.session("owner").await;
    run(&mut session, "CREATE TABLE t AS SELECT generate_series(1, 5000) AS n").await;
    run(&mut session, "BEGIN").await;
    assert!(run(&mut session, "SELECT * FROM t").await.truncated);
    run(&mut session, "DROP TABLE t").await;
    run(&mut session, "COMMIT").await;
}

#[tokio::test]
async fn the_callers_own_timeout_counts() {
    let cluster = Cluster::start().await;
    let mut session = cluster.session("owner").await;
    let quick = |text| StatementCall { timeout: Duration::from_secs(20), ..call(text) };
    let set = session.execute(&quick("SHOW statement_timeout")).await.unwrap();
    assert_eq!(set.rows[0][0].text(), Some("20s"));
    run(&mut session, "SET statement_timeout = '50ms'").await;
    assert_eq!(fails(&mut session, "SELECT pg_sleep(10)").await, "57014");
    run(&mut session, "RESET statement_timeout").await;
    session.reset().await.unwrap();
    let set = session.execute(&quick("SHOW statement_timeout")).await.unwrap();
    assert_eq!(set.rows[0][0].text(), Some("20s"), "set again for the next use");
}

#[tokio::test]
async fn a_reset_leaves_nothing_of_a_call() {
    let cluster = Cluster::start().await;
    let mut session = cluster.session("owner").await;
    for statement in [
        "CREATE TABLE kept (n int)",
        "PREPARE p AS SELECT 1",
        "CREATE TEMP TABLE kept_not (n int)",
        "SET search_path = nowhere",
        "SET timezone = 'Asia/Tokyo'",
        "SET default_transaction_isolation = serializable",
        "LISTEN c",
        "SELECT pg_advisory_lock(42)",
        "SET ROLE owner",
        "BEGIN",
        "DECLARE c CURSOR WITH HOLD FOR SELECT 1",
        "INSERT INTO public.kept VALUES (1)",
    ] {
        run(&mut session, statement).await;
    }
    session.reset().await.unwrap();
    assert!(session.is_usable());
    assert_eq!(session.status(), TxStatus::Idle);
    let left = "SELECT (SELECT count(*) FROM pg_prepared_statements), (SELECT count(*) FROM pg_cursors WHERE name <> ''), \
                (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'), (SELECT count(*) FROM kept), \
                to_regclass('kept_not'), current_setting('search_path'), current_setting('TimeZone'), \
                current_setting('default_transaction_isolation'), (SELECT count(*) FROM pg_listening_channels()), \
                current_setting('role')";
    let found = &texts(&mut session, left).await[0];
    let expected = ["0", "0", "0", "0", "", "\"$user\", public", "UTC", "read committed", "0", "none"];
    let found: Vec<_> = found.iter().map(|v| v.as_deref().unwrap_or_default()).collect();
    assert_eq!(found, expected);
}

#[tokio::test]
async fn a_failed_transaction_is_rolled_back() {
    let cluster = Cluster::start().await;
    let mut session = cluster.session("owner").await;
    run(&mut session, "BEGIN").await;
    assert_eq!(fails(&mut session, "SELECT nothing").await, "42703");
    session.rollback().await.unwrap();
    assert_eq!((session.status(), session.is_usable()), (TxStatus::Idle, true));
    session.rollback().await.unwrap();
    run(&mut session, "BEGIN").await;
    assert_eq!(fails(&mut session, "SELECT nothing").await, "42703");
    session.reset().await.unwrap();
    assert_eq!(value(&mut session, "SELECT 1").await, "1");
}

#[tokio::test]
async fn settings_that_reading_depends_on_are_watched() {
    let cluster = Cluster::start().await;
    for (text, name) in [
        ("SET standard_conforming_strings = off", "standard_conforming_strings"),
        ("SELECT set_config('client_encoding', 'LATIN1', false)", "client_encoding"),
        ("DO $$ BEGIN SET standard_conforming_strings = off; END $$", "standard_conforming_strings"),
    ] {
        let mut session = cluster.session("owner").await;
        run(&mut session, text).await;
        assert!(!session.is_usable(), "{text}");
        assert_eq!(session.execute(&call("SELECT 1")).await, Err(WireError::Setting(name)), "{text}");
        assert_eq!(session.execute_read_only(&call("SELECT 1")).await, Err(WireError::Setting(name)), "{text}");
        session.reset().await.unwrap();
        assert!(session.is_usable(), "a reset sets them back");
        assert_eq!(value(&mut session, "SELECT 'a\\'").await, "a\\");
    }
}

#[tokio::test]
async fn the_databases_own_settings_do_not_reach_a_session() {
    let cluster = Cluster::start().await;
    let mut session = cluster.session("owner").await;
    for text in [
        "ALTER DATABASE box SET standard_conforming_strings = off",
        "ALTER DATABASE box SET client_encoding = 'LATIN1'",
        "ALTER ROLE owner SET timezone = 'Asia/Tokyo'",
        "ALTER ROLE owner IN DATABASE box SET standard_conforming_strings = off",
    ] {
        run(&mut session, text).await;
    }
    let mut next = cluster.session("owner").await;
    assert!(next.is_usable());
    assert_eq!(value(&mut next, "SHOW timezone").await, "UTC");
    assert_eq!(value(&mut next, "SELECT 'ü\\'").await, "ü\\");
    next.reset().await.unwrap();
    assert_eq!(value(&mut next, "SHOW timezone").await, "UTC", "a reset brings ours back");
}
