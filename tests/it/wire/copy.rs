//! COPY, both ways.

use pgsandbox::engine::postgres::{ResultLimits, StatementCall, TruncatedBy, TxStatus, WireError};

use super::cluster::{Cluster, call, rows, run, texts, value};

fn with_data<'a>(text: &'a str, data: &'a [u8]) -> StatementCall<'a> {
    StatementCall { copy_in: Some(data), ..call(text) }
}

#[tokio::test]
async fn copied_lines_are_rows_of_one_column() {
    let cluster = Cluster::start().await;
    let mut session = cluster.session("owner").await;
    let set = run(&mut session, r"COPY (VALUES (1, 'a'), (2, E'b\nc'), (3, NULL)) TO STDOUT").await;
    let lines: Vec<_> = rows(&set).into_iter().map(|row| row[0].clone().unwrap()).collect();
    assert_eq!(lines, ["1\ta", "2\tb\\nc", "3\t\\N"]);
    assert_eq!((set.columns[0].name.as_str(), set.columns[0].type_name.as_str()), ("copy_data", "text"));
    assert_eq!((set.command_tag.as_deref(), set.affected, set.rows_total), (Some("COPY 3"), Some(3), Some(3)));
    let set = run(&mut session, "COPY (VALUES (E'a\\nb')) TO STDOUT (FORMAT csv)").await;
    assert_eq!(rows(&set), [[Some("\"a\nb\"".to_owned())]], "a line break within a value");
    let set = run(&mut session, "COPY (SELECT 1) TO STDOUT (FORMAT binary)").await;
    assert_eq!(set.columns[0].type_name, "bytea");
    assert!(rows(&set)[0][0].as_ref().unwrap().starts_with("\\x5047434f50590aff0d0a00"));
}

#[tokio::test]
async fn copying_out_keeps_to_the_limits_and_does_all_of_its_work() {
    let cluster = Cluster::start().await;
    let mut session = cluster.session("owner").await;
    run(&mut session, "CREATE TABLE t AS SELECT generate_series(1, 100000) AS n").await;
    let limits = ResultLimits { rows_max: 10, ..ResultLimits::default() };
    let text = "COPY (DELETE FROM t RETURNING n) TO STDOUT";
    let set = session.execute(&StatementCall { limits, ..call(text) }).await.unwrap();
    assert_eq!((set.rows.len(), set.truncated_by), (10, Some(TruncatedBy::Rows)));
    assert_eq!((set.affected, set.rows_total), (Some(100_000), Some(100_000)));
    assert_eq!(value(&mut session, "SELECT count(*) FROM t").await, "0");
    let limits = ResultLimits { bytes_max: 100, ..ResultLimits::default() };
    let text = "COPY (SELECT repeat('x', 30) FROM generate_series(1, 50)) TO STDOUT";
    let set = session.execute(&StatementCall { limits, ..call(text) }).await.unwrap();
    assert_eq!((set.rows.len(), set.truncated_by), (2, Some(TruncatedBy::Bytes)));
}

#[tokio::test]
async fn data_is_copied_in() {
    let cluster = Cluster::start().await;
    let mut session = cluster.session("owner").await;
    run(&mut session, "CREATE TABLE t (n int, s text)").await;
    let set = session.execute(&with_data("COPY t FROM STDIN", b"1\ta\n2\t\\N\n")).await.unwrap();
    assert_eq!((set.command_tag.as_deref(), set.affected), (Some("COPY 2"), Some(2)));
    let set = session.execute(&with_data("COPY t FROM STDIN", b"")).await.unwrap();
    assert_eq!(set.affected, Some(0));
    let set = session.execute(&with_data("COPY t FROM STDIN (FORMAT csv)", b"3,\"x\ny\"\n")).await.unwrap();
    assert_eq!(set.affected, Some(1));
    assert_eq!(texts(&mut session, "SELECT s FROM t ORDER BY n").await[2], [Some("x\ny".to_owned())]);
}

#[tokio::test]
async fn data_that_only_fails_when_it_is_committed_is_a_failure_of_its_statement() {
    let cluster = Cluster::start().await;
    let mut session = cluster.session("owner").await;
    run(&mut session, "CREATE TABLE t (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)").await;
    let found = session.execute(&with_data("COPY t FROM STDIN", b"1\n1\n")).await;
    assert!(matches!(&found, Err(WireError::Statement(error)) if error.sqlstate() == "23505"), "{found:?}");
    assert!(session.is_usable());
    assert_eq!(value(&mut session, "SELECT count(*) FROM t").await, "0");
}

#[tokio::test]
async fn data_that_nobody_asks_for_does_no_harm() {
    let cluster = Cluster::start().await;
    let mut session = cluster.session("owner").await;
    let set = session.execute(&with_data("SELECT 1", b"data")).await.unwrap();
    assert_eq!(rows(&set), [[Some("1".to_owned())]]);
    let found = session.execute(&with_data("SELECT 1/0", b"data")).await;
    assert!(matches!(found, Err(WireError::Statement(e)) if e.sqlstate() == "22012"));
    let set = session.execute(&with_data("", b"data")).await.unwrap();
    assert_eq!(set.command_tag, None);
    assert_eq!(value(&mut session, "SELECT 2").await, "2");
}

#[tokio::test]
async fn copying_in_without_data_fails_and_the_session_goes_on() {
    let cluster = Cluster::start().await;
    let mut session = cluster.session("owner").await;
    run(&mut session, "CREATE TABLE t (n int)").await;
    let found = session.execute(&call("COPY t FROM STDIN")).await;
    assert_eq!(found, Err(WireError::CopyDataMissing));
    assert!(session.is_usable());
    assert_eq!(value(&mut session, "SELECT 2").await, "2");
    run(&mut session, "BEGIN").await;
    assert_eq!(session.execute(&call("COPY t FROM STDIN")).await, Err(WireError::CopyDataMissing));
    assert_eq!(session.status(), TxStatus::Failed);
    session.rollback().await.unwrap();
    assert_eq!(value(&mut session, "SELECT 3").await, "3");
}

/// The server may fail between asking for data and reading any: what was sent ahead then means something else.
#[tokio::test]
async fn a_copy_that_fails_before_it_reads_leaves_the_session_in_step() {
    let cluster = Cluster::start().await;
    let mut session = cluster.session("owner").await;
    for statement in [
        "CREATE TABLE t (n int)",
        "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$",
        "CREATE TRIGGER no BEFORE INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION no()",
    ] {
        run(&mut session, statement).await;
    }
    for round in 0..5 {
        assert_eq!(session.execute(&call("COPY t FROM STDIN")).await, Err(WireError::CopyDataMissing), "{round}");
        assert_eq!(value(&mut session, "SELECT 2").await, "2");
        let found = session.execute(&with_data("COPY t FROM STDIN", b"1\n")).await;
        assert!(matches!(found, Err(WireError::Statement(e)) if e.sqlstate() == "P0001"));
        assert_eq!(value(&mut session, "SELECT 3").await, "3");
    }
}

#[tokio::test]
async fn bad_data_fails_and_the_session_goes_on() {
    let cluster = Cluster::start().await;
    let mut session = cluster.session("owner").await;
    run(&mut session, "CREATE TABLE t (n int)").await;
    let mut data = b"1\nnot a number\n".to_vec();
    data.resize(1 << 20, b'\n');
    let found = session.execute(&with_data("COPY t FROM STDIN", &data)).await;
    assert!(matches!(found, Err(WireError::Statement(e)) if e.sqlstate() == "22P02"));
    assert_eq!(value(&mut session, "SELECT count(*) FROM t").await, "0");
}

/// Were all data written before anything is read, both ends would wait for each other.
#[tokio::test]
async fn notices_may_come_while_data_goes_out() {
    let cluster = Cluster::start().await;
    let mut session = cluster.session("owner").await;
    for statement in [
        "CREATE TABLE t (n int)",
        "CREATE FUNCTION say() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN RAISE NOTICE '%', repeat('x', 2000); RETURN NEW; END $$",
        "CREATE TRIGGER say BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION say()",
    ] {
        run(&mut session, statement).await;
    }
    let data = "1234567890\n".repeat(10_000);
    let set = session.execute(&with_data("COPY t FROM STDIN", data.as_bytes())).await.unwrap();
    assert_eq!((set.affected, set.notices_dropped), (Some(10_000), 9_950));
}
