//! The read-only frame, tried as the owner of everything: what it lets through here, nothing else stops.

use std::time::Duration;

use pgsandbox::engine::postgres::{SandboxSession, StatementCall, TxStatus, WireError};

use super::cluster::{Cluster, call, rows, run, texts, value};

/// What of the database a read-only call must not change.
const STATE: &str = "SELECT (SELECT count(*) FROM t), (SELECT last_value FROM s), \
    (SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace), \
    (SELECT count(*) FROM pg_largeobject_metadata), (SELECT count(*) FROM pg_prepared_xacts)";

async fn prepared(cluster: &Cluster) -> SandboxSession {
    let mut session = cluster.session("owner").await;
    for statement in [
        "CREATE TABLE t (n int)",
        "INSERT INTO t VALUES (1), (2)",
        "CREATE SEQUENCE s",
        "CREATE FUNCTION sneaky() RETURNS int LANGUAGE plpgsql AS $$ BEGIN \
           SET transaction_read_only = off; INSERT INTO t VALUES (3); RETURN 1; END $$",
        "CREATE PROCEDURE committing() LANGUAGE plpgsql AS $$ BEGIN COMMIT; INSERT INTO t VALUES (3); END $$",
    ] {
        run(&mut session, statement).await;
    }
    session
}

#[tokio::test]
async fn reads_run() {
    let cluster = Cluster::start().await;
    let mut session = prepared(&cluster).await;
    let set = session.execute_read_only(&call("SELECT n FROM t ORDER BY n")).await.unwrap();
    assert_eq!(rows(&set), [[Some("1".to_owned())], [Some("2".to_owned())]]);
    assert_eq!(set.command_tag.as_deref(), Some("SELECT 2"));
    for text in ["SHOW server_version", "EXPLAIN SELECT * FROM t", "COPY t TO STDOUT", "VALUES (1)", ""] {
        session.execute_read_only(&call(text)).await.unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!((session.status(), session.is_usable()), (TxStatus::Idle, true), "{text}");
    }
    let found = session.execute_read_only(&call("SELECT nothing")).await.unwrap_err();
    assert_eq!(found.sqlstate(), Some("42703"));
    let set = session.execute_read_only(&call("SELECT generate_series(1, 5000)")).await.unwrap();
    assert_eq!((set.rows.len(), set.truncated), (100, true));
}

#[tokio::test]
async fn the_timer_is_set_within_the_frame() {
    let cluster = Cluster::start().await;
    let mut session = cluster.session("reader").await;
    let text = "SELECT current_setting('statement_timeout'), current_setting('transaction_read_only')";
    let timeout = Duration::from_millis(4321);
    let set = session.execute_read_only(&StatementCall { timeout, ..call(text) }).await.unwrap();
    assert_eq!(rows(&set), [[Some("4321ms".to_owned()), Some("on".to_owned())]]);
    assert_eq!(value(&mut session, "SHOW transaction_read_only").await, "off", "and only there");
}

/// Whatever a statement does, afterwards everything is as it was, and the session says if it is in doubt.
#[tokio::test]
async fn nothing_that_is_tried_changes_anything() {
    let cluster = Cluster::start().await;
    let mut session = prepared(&cluster).await;
    let before = texts(&mut session, STATE).await;
    let refused = [
        ("INSERT INTO t VALUES (3)", "25006"),
        ("WITH x AS (DELETE FROM t RETURNING *) SELECT * FROM x", "25006"),
        ("SELECT n INTO u FROM t", "25006"),
        ("CREATE TABLE u ()", "25006"),
        ("SELECT nextval('s')", "25006"),
        ("COPY t FROM STDIN", "25006"),
        ("SELECT * FROM t FOR UPDATE", "25006"),
        ("SET transaction_read_only = off", "25001"),
        ("SET TRANSACTION READ WRITE", "25001"),
        ("SELECT set_config('transaction_read_only', 'off', true)", "25001"),
        ("SELECT sneaky()", "25001"),
        ("CALL committing()", "2D000"),
        ("DO $$ BEGIN COMMIT; INSERT INTO t VALUES (3); END $$", "2D000"),
        ("VACUUM t", "25001"),
        ("CREATE INDEX CONCURRENTLY ON t (n)", "25006"),
        ("PREPARE TRANSACTION 'x'", "55000"),
        ("SELECT 1; INSERT INTO t VALUES (3)", "42601"),
        ("ROLLBACK; INSERT INTO t VALUES (3)", "42601"),
        ("DO $$ BEGIN EXECUTE 'ROLLBACK'; END $$", "0A000"),
    ];
    for (text, sqlstate) in refused {
        let found = session.execute_read_only(&call(text)).await;
        assert_eq!(found.as_ref().err().and_then(WireError::sqlstate), Some(sqlstate), "{text}: {found:?}");
        assert!(session.is_usable(), "{text}");
    }
    // Postgres runs these in a read-only transaction; the rollback takes them back.
    for text in [
        "EXPLAIN ANALYZE CREATE TABLE u AS SELECT 1",
        "SELECT lo_create(4711)",
        "SELECT lo_from_bytea(4712, 'x')",
        "SET default_transaction_read_only = off",
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
        "SAVEPOINT x",
        "LOCK TABLE t IN ACCESS SHARE MODE",
        "LISTEN c",
        "DECLARE c CURSOR WITH HOLD FOR SELECT 1",
        "ROLLBACK AND CHAIN",
        "COMMIT AND CHAIN",
    ] {
        if let Err(error) = session.execute_read_only(&call(text)).await {
            assert!(matches!(error, WireError::Statement(_)), "{text}: {error}");
        }
        assert!(session.is_usable(), "{text}");
    }
    assert_eq!(texts(&mut session, STATE).await, before);
}

#[tokio::test]
async fn ending_the_transaction_ends_the_session() {
    let cluster = Cluster::start().await;
    for text in ["COMMIT", "ROLLBACK", "END", "ABORT"] {
        let mut session = cluster.session("reader").await;
        let found = session.execute_read_only(&call(text)).await;
        assert_eq!(found, Err(WireError::ReadOnlyViolated), "{text}");
        assert!(!session.is_usable(), "{text}");
        assert_eq!(session.execute_read_only(&call("SELECT 1")).await, Err(WireError::Unusable), "{text}");
    }
}

#[tokio::test]
async fn prepared_statements_of_the_callers_cannot_replace_the_frame() {
    let cluster = Cluster::start().await;
    let mut session = prepared(&cluster).await;
    let before = texts(&mut session, STATE).await;
    for text in [
        "PREPARE begin AS SELECT 1",
        "PREPARE \"BEGIN READ ONLY\" AS SELECT 1",
        "PREPARE s0 AS SELECT 1",
        "DEALLOCATE ALL",
        "DISCARD ALL",
        "DEALLOCATE \"\"",
    ] {
        if let Err(error) = session.execute_read_only(&call(text)).await {
            assert!(matches!(error, WireError::Statement(_)), "{text}: {error}");
        }
        let found = session.execute_read_only(&call("INSERT INTO t VALUES (3)")).await.unwrap_err();
        assert_eq!(found.sqlstate(), Some("25006"), "after {text}");
    }
    assert_eq!(texts(&mut session, STATE).await, before);
}

#[tokio::test]
async fn a_frame_begins_only_where_no_transaction_is() {
    let cluster = Cluster::start().await;
    let mut session = prepared(&cluster).await;
    run(&mut session, "BEGIN").await;
    assert_eq!(session.execute_read_only(&call("SELECT 1")).await, Err(WireError::NotIdle));
    assert!(session.is_usable());
    session.rollback().await.unwrap();
    session.execute_read_only(&call("SELECT 1")).await.unwrap();
}

/// Cancels hit wherever they hit: none may let a statement run outside its frame.
#[tokio::test]
async fn stray_cancels_let_nothing_through() {
    let cluster = Cluster::start().await;
    let mut session = prepared(&cluster).await;
    let mut other = cluster.session("owner").await;
    let mut refused = 0;
    for _ in 0..100 {
        if !session.is_usable() {
            session = cluster.session("owner").await;
        }
        let cancel = format!("SELECT pg_cancel_backend({})", session.process_id());
        let (insert, cancel) = (call("INSERT INTO t VALUES (3)"), call(&cancel));
        let (found, _cancelled) = tokio::join!(session.execute_read_only(&insert), other.execute(&cancel));
        refused += u32::from(found.is_err());
    }
    assert_eq!(refused, 100);
    assert_eq!(value(&mut other, "SELECT count(*) FROM t").await, "2");
}
