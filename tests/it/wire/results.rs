//! Rows, columns, values, notices and errors.

use pgsandbox::engine::postgres::{Cell, JsonForm, Rest, ResultLimits, StatementCall, TruncatedBy, WireError};
use pgsandbox::model::limits::NOTICES_MAX;

use super::cluster::{Cluster, call, fails, memory_peak_kib, params, rows, run, texts, value, words};

fn limited(text: &str, rows_max: u64) -> StatementCall<'_> {
    StatementCall { limits: ResultLimits { rows_max, ..ResultLimits::default() }, ..call(text) }
}

#[tokio::test]
async fn columns_have_names_types_positions_and_origins() {
    let cluster = Cluster::start().await;
    let mut session = cluster.session("owner").await;
    run(&mut session, "CREATE TABLE t (id int8 PRIMARY KEY, tags text[])").await;
    let set = run(&mut session, "SELECT id AS x, tags, 1 AS x, now() FROM t").await;
    let columns: Vec<_> = set.columns.iter().map(|c| (c.name.as_str(), c.type_name.as_str(), c.position)).collect();
    assert_eq!(columns, [("x", "int8", 1), ("tags", "text[]", 2), ("x", "int4", 3), ("now", "timestamptz", 4)]);
    let oid = value(&mut session, "SELECT 't'::regclass::oid").await;
    let origins: Vec<_> = set.columns.iter().map(|c| c.origin.map(|o| (o.table_oid.to_string(), o.column))).collect();
    assert_eq!(origins, [Some((oid.clone(), 1)), Some((oid, 2)), None, None]);
}

#[tokio::test]
async fn types_of_the_callers_own_have_names() {
    let cluster = Cluster::start().await;
    let mut session = cluster.session("owner").await;
    for statement in [
        "CREATE SCHEMA s",
        "CREATE TYPE s.mood AS ENUM ('sad', 'so so')",
        "CREATE TYPE pair AS (a int, b text)",
        "CREATE DOMAIN age AS int CHECK (VALUE >= 0)",
    ] {
        run(&mut session, statement).await;
    }
    let text = "SELECT 'sad'::s.mood, ARRAY['so so']::s.mood[], (1, 'x')::pair, 7::age, ARRAY[7, NULL]::age[]";
    for begin in [false, true] {
        if begin {
            run(&mut session, "BEGIN").await;
        }
        let set = run(&mut session, text).await;
        let names: Vec<_> = set.columns.iter().map(|c| c.type_name.as_str()).collect();
        assert_eq!(names, ["s.mood", "s.mood[]", "pair", "int4", "age[]"]);
        assert_eq!(set.rows_json(), r#"[["sad",["so so"],"(1,x)",7,[7,null]]]"#);
        // The second time they are known.
        assert_eq!(run(&mut session, text).await, set);
    }
}

#[tokio::test]
async fn values_are_exact_whatever_their_type() {
    let cluster = Cluster::start().await;
    let mut session = cluster.session("owner").await;
    let text = r#"SELECT true, 1::int2, -2147483648, 9223372036854775807, 1.10::numeric, 'NaN'::numeric, 0.1::float4,
        1e-7::float8, 'NaN'::float8, '-Infinity'::float4, NULL::int, ''::text, 'NULL', E'a\nb"', '\x00ff'::bytea,
        '2026-02-29 12:00:00'::text, 'infinity'::timestamp, '1 day'::interval, '{"n": 12345678901234567890.10}'::json,
        '{"b": 1.5, "a": [1, null]}'::jsonb, '{"a":1,"a":2}'::json, 'null'::jsonb, '{}'::int[], '{1,NULL}'::int[],
        '{{a,"b c"},{"NULL",NULL}}'::text[], '[0:1]={1,2}'::int[], ARRAY['{"x": 1}'::jsonb], ARRAY[true, false],
        ARRAY['(1,1),(0,0)'::box, '(2,2),(1,1)'::box], '1 2'::int2vector, '[1,5)'::int4range,
        ARRAY['[1,5)'::int4range], 7::"char", 7::oid, ARRAY[9223372036854775807]"#;
    let set = run(&mut session, text).await;
    let expected = r#"[[true,1,-2147483648,"9223372036854775807","1.10","NaN",0.1,1e-07,"NaN","-Infinity",null,"",
        "NULL","a\nb\"","\\x00ff","2026-02-29 12:00:00","infinity","1 day","{\"n\": 12345678901234567890.10}",
        {"a": [1, null], "b": 1.5},"{\"a\":1,\"a\":2}","null",[],[1,null],[["a","b c"],["NULL",null]],"[0:1]={1,2}",
        [{"x": 1}],[true,false],["(1,1),(0,0)","(2,2),(1,1)"],"1 2","[1,5)",["[1,5)"],"\u0007","7",
        ["9223372036854775807"]]]"#;
    assert_eq!(set.rows_json(), expected.replace("\n        ", ""));
    let forms: Vec<_> = (0..set.columns.len()).filter(|index| set.json_form(*index) == JsonForm::Text).collect();
    assert_eq!(forms, [18, 20, 21]);
}

#[tokio::test]
async fn as_many_columns_come_as_postgres_has() {
    let cluster = Cluster::start().await;
    let mut session = cluster.session("owner").await;
    let columns: Vec<_> = (1..=1664).map(|n| format!("{n} AS c{n}")).collect();
    let set = run(&mut session, &format!("SELECT {}", columns.join(","))).await;
    assert_eq!(set.columns.len(), 1664);
    assert_eq!(set.rows[0][1663], Cell::Text("1664".into()));
}

#[tokio::test]
async fn ten_million_rows_are_cut_at_the_limit_exactly() {
    let cluster = Cluster::start().await;
    let mut session = cluster.session("owner").await;
    let set = session.execute(&limited("SELECT generate_series(1, 10000000)", 1000)).await.unwrap();
    assert_eq!((set.rows.len(), set.truncated_by, set.rows_total), (1000, Some(TruncatedBy::Rows), None));
    assert_eq!(set.rows[999][0], Cell::Text("1000".into()));
    let set = session.execute(&limited("SELECT generate_series(1, 1000)", 1000)).await.unwrap();
    assert_eq!((set.rows.len(), set.truncated, set.rows_total), (1000, false, Some(1000)));
    assert_eq!(set.command_tag.as_deref(), Some("SELECT 1000"));
    let set = session.execute(&limited("SELECT generate_series(1, 1001)", 1000)).await.unwrap();
    assert_eq!((set.rows.len(), set.truncated_by), (1000, Some(TruncatedBy::Rows)));
    let set = session.execute(&limited("SELECT 1", 0)).await.unwrap();
    assert_eq!((set.columns.len(), set.rows.len(), set.truncated), (1, 0, true));
    let set = session.execute(&limited("SELECT 1 WHERE false", 0)).await.unwrap();
    assert_eq!((set.rows.len(), set.truncated), (0, false));
}

#[tokio::test]
async fn a_statement_with_effects_runs_to_its_end_and_counts_what_is_not_kept() {
    let cluster = Cluster::start().await;
    let mut session = cluster.session("owner").await;
    run(&mut session, "CREATE SEQUENCE s").await;
    let text = "SELECT nextval('s') FROM generate_series(1, 5000)";
    let set = session.execute(&StatementCall { rest: Rest::Counted, ..limited(text, 3) }).await.unwrap();
    assert_eq!((set.rows.len(), set.truncated_by, set.rows_total), (3, Some(TruncatedBy::Rows), Some(5000)));
    assert_eq!(value(&mut session, "SELECT last_value FROM s").await, "5000");
    let set = session.execute(&limited(text, 3)).await.unwrap();
    assert_eq!((set.rows.len(), set.rows_total), (3, None));
    assert_eq!(value(&mut session, "SELECT last_value FROM s").await, "5004", "one more than is kept");
}

#[tokio::test]
async fn a_value_of_500_megabytes_is_read_past() {
    let cluster = Cluster::start().await;
    let mut session = cluster.session("owner").await;
    run(&mut session, "SELECT 1").await;
    let before = memory_peak_kib();
    let set = run(&mut session, "SELECT 1, repeat('x', 500000000), 'after'").await;
    let grown = memory_peak_kib() - before;
    assert_eq!(set.rows[0][1], Cell::Omitted { bytes: 500_000_000 });
    assert_eq!(set.rows[0][2], Cell::Text("after".into()));
    assert_eq!((set.truncated_by, set.values_omitted), (Some(TruncatedBy::ValueBytes), 1));
    assert!(grown < 16 << 10, "memory grew by {grown} KiB");
    assert_eq!(value(&mut session, "SELECT 2").await, "2", "the session goes on");
}

#[tokio::test]
async fn a_reply_ends_with_its_byte_budget_on_a_whole_row() {
    let cluster = Cluster::start().await;
    let mut session = cluster.session("owner").await;
    let limits = ResultLimits { rows_max: 1000, bytes_max: 100_000, ..ResultLimits::default() };
    let text = "SELECT repeat('x', 30000) FROM generate_series(1, 1000)";
    let set = session.execute(&StatementCall { limits, ..call(text) }).await.unwrap();
    assert_eq!((set.rows.len(), set.truncated_by), (3, Some(TruncatedBy::Bytes)));
    assert_eq!(set.rows_total, Some(1000), "the rest was counted");
}

#[tokio::test]
async fn command_tags_tell_what_was_done() {
    let cluster = Cluster::start().await;
    let mut session = cluster.session("owner").await;
    let mut check = async |text: &str, tag: Option<&str>, affected: Option<u64>| {
        let set = run(&mut session, text).await;
        assert_eq!((set.command_tag.as_deref(), set.affected), (tag, affected), "{text}");
    };
    check("CREATE TABLE t AS SELECT generate_series(1, 5) AS n", Some("SELECT 5"), Some(5)).await;
    check("INSERT INTO t VALUES (6), (7)", Some("INSERT 0 2"), Some(2)).await;
    check("UPDATE t SET n = n WHERE n > 2 RETURNING n", Some("UPDATE 5"), Some(5)).await;
    check("DELETE FROM t WHERE n = 1", Some("DELETE 1"), Some(1)).await;
    check("SELECT * FROM t", Some("SELECT 6"), None).await;
    check("CREATE INDEX ON t (n)", Some("CREATE INDEX"), None).await;
    check("  -- nothing\n", None, None).await;
    check("", None, None).await;
}

#[tokio::test]
async fn a_limit_cuts_what_is_returned_and_not_what_is_done() {
    let cluster = Cluster::start().await;
    let mut session = cluster.session("owner").await;
    run(&mut session, "CREATE TABLE t AS SELECT generate_series(1, 500) AS n").await;
    let set = session.execute(&limited("UPDATE t SET n = -n RETURNING n", 10)).await.unwrap();
    assert_eq!((set.rows.len(), set.truncated, set.affected), (10, true, None));
    assert_eq!(value(&mut session, "SELECT count(*) FROM t WHERE n < 0").await, "500");
}

#[tokio::test]
async fn parameters_are_typed_by_the_server() {
    let cluster = Cluster::start().await;
    let mut session = cluster.session("owner").await;
    let values = params(&[Some("41"), None, Some("'; DROP TABLE t; --"), Some("{\"a\":1}")]);
    let text = "SELECT $1::int + 1, $2::date, $3, $4::jsonb ->> 'a'";
    let set = session.execute(&StatementCall { params: &values, ..call(text) }).await.unwrap();
    assert_eq!(set.rows_json(), r#"[[42,null,"'; DROP TABLE t; --","1"]]"#);
    let found = session.execute(&StatementCall { params: &values, ..call("SELECT $1::int") }).await;
    assert!(matches!(found, Err(WireError::Statement(e)) if e.sqlstate() == "08P01"), "too many parameters");
    let bad = params(&[Some("nul\0byte")]);
    let found = session.execute(&StatementCall { params: &bad, ..call("SELECT $1") }).await;
    assert!(matches!(found, Err(WireError::Statement(e)) if e.sqlstate() == "22021"));
    assert_eq!(value(&mut session, "SELECT 2").await, "2");
}

#[tokio::test]
async fn what_cannot_be_sent_is_refused_and_the_session_goes_on() {
    let cluster = Cluster::start().await;
    let mut session = cluster.session("owner").await;
    let many = params(&[None; 1001]);
    let long = "x".repeat((1 << 20) + 1);
    for refused in [
        call("SELECT 1\0; DROP TABLE t"),
        call(&long),
        StatementCall { params: &many, ..call("SELECT 1") },
        StatementCall { copy_in: Some(long.as_bytes()), ..call("SELECT 1") },
    ] {
        let found = session.execute(&refused).await;
        assert!(matches!(found, Err(WireError::NotSendable(_))), "{found:?}");
    }
    assert_eq!(value(&mut session, "SELECT 2").await, "2");
}

#[tokio::test]
async fn a_second_statement_in_the_text_does_not_run() {
    let cluster = Cluster::start().await;
    let mut session = cluster.session("owner").await;
    run(&mut session, "CREATE TABLE t ()").await;
    for text in ["SELECT 1; DROP TABLE t", "DROP TABLE t; SELECT 1", "SELECT 1 /* */ ; ; DROP TABLE t"] {
        assert_eq!(fails(&mut session, text).await, "42601", "{text}");
    }
    assert_eq!(value(&mut session, "SELECT to_regclass('t')").await, "t");
}

#[tokio::test]
async fn errors_keep_the_servers_fields() {
    let cluster = Cluster::start().await;
    let mut session = cluster.session("owner").await;
    run(&mut session, "CREATE TABLE t (id int CONSTRAINT positive CHECK (id > 0))").await;
    let error = session.execute(&call("INSERT INTO t VALUES (-4711)")).await.unwrap_err();
    assert!(!format!("{error} {error:?}").contains("4711"), "the caller's literal is not printed");
    let WireError::Statement(error) = error else { panic!("{error}") };
    assert_eq!(error.sqlstate(), "23514");
    assert_eq!(error.constraint().unwrap().expose(), "positive");
    assert_eq!(error.table().unwrap().expose(), "t");
    assert!(error.detail().unwrap().expose().contains("4711"), "the caller reads it");
    let error = session.execute(&call("SELECT 'ü', nothing FROM t")).await.unwrap_err();
    let failure = error.into_failure(3);
    assert_eq!(failure.code.as_str(), "undefined_column");
    let detail = failure.detail.unwrap();
    assert_eq!((detail.position, detail.statement_index), (Some(13), Some(3)), "in characters");
}

#[tokio::test]
async fn an_error_of_10_megabytes_is_cut() {
    let cluster = Cluster::start().await;
    let mut session = cluster.session("owner").await;
    run(&mut session, "SELECT 1").await;
    let before = memory_peak_kib();
    let text = "DO $$ BEGIN RAISE '%', repeat('x', 100000000); END $$";
    let WireError::Statement(error) = session.execute(&call(text)).await.unwrap_err() else { panic!() };
    assert_eq!(error.sqlstate(), "P0001");
    assert!(error.message().expose().len() < 10_000);
    assert!(memory_peak_kib() - before < 2 << 10);
    assert_eq!(value(&mut session, "SELECT 2").await, "2");
}

#[tokio::test]
async fn notices_come_with_the_result_or_the_failure() {
    let cluster = Cluster::start().await;
    let mut session = cluster.session("owner").await;
    let raise = "DO $$ BEGIN FOR i IN 1..200 LOOP RAISE NOTICE 'n%', i USING HINT = 'h'; END LOOP; END $$";
    let set = run(&mut session, raise).await;
    assert_eq!((set.notices.len(), set.notices_dropped), (NOTICES_MAX, 200 - NOTICES_MAX as u64));
    let first = &set.notices[0];
    assert_eq!((first.severity.as_str(), first.sqlstate.as_str(), first.message.expose()), ("NOTICE", "00000", "n1"));
    assert_eq!(first.hint.as_ref().unwrap().expose(), "h");
    assert_eq!(fails(&mut session, "DO $$ BEGIN RAISE WARNING 'w'; RAISE 'e'; END $$").await, "P0001");
    let notices = session.take_notices();
    assert_eq!((notices.len(), notices[0].message.expose()), (1, "w"));
    assert!(run(&mut session, "SELECT 1").await.notices.is_empty());
}

#[tokio::test]
async fn bytes_that_are_no_text_are_kept() {
    let cluster = Cluster::start().await;
    let mut session = cluster.session("owner").await;
    let set = run(&mut session, "SELECT set_config('client_encoding', 'LATIN1', false), 'ü', 'u'").await;
    let expected = [Cell::Text("LATIN1".into()), Cell::Bytes(vec![0xfc]), Cell::Text("u".into())];
    assert_eq!(set.rows, [expected]);
}

#[tokio::test]
async fn notifications_and_settings_between_rows_do_no_harm() {
    let cluster = Cluster::start().await;
    let mut session = cluster.session("owner").await;
    run(&mut session, "LISTEN c").await;
    run(&mut session, "NOTIFY c, 'payload'").await;
    let text = "SELECT set_config('application_name', 'x' || n, false) FROM generate_series(1, 3) AS n";
    assert_eq!(texts(&mut session, text).await.len(), 3);
    let set = run(&mut session, "SELECT 1, NULL").await;
    assert_eq!(rows(&set), [[Some("1".to_owned()), None]]);
    let error = session.execute(&call("SELECT 1/0")).await.unwrap_err();
    assert!(words(&error).contains("division by zero"));
}
