//! Bad input over MCP stdio with the real program: each gets an answer or a typed error, and the server lives on.

use std::fs::{self, File};
use std::process::Stdio as Pipe;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::program::{Home, Stdio, Transport};

/// What the program's memory may grow to, whatever a result holds, in KiB.
const RSS_KIB_MAX: u64 = 400 << 10;
/// A word that may stand nowhere but in the sandbox and in its caller's answers.
const MARK: &str = "planted-literal-";

/// A connection with a sandbox.
pub(crate) struct Session {
    pub(crate) stdio: Stdio,
    pub(crate) id: String,
}

impl Session {
    pub(crate) fn start(home: &Home) -> Self {
        Self::create(Stdio::start(home))
    }

    fn create(mut stdio: Stdio) -> Self {
        let created = stdio.call("create_database", &json!({"nameHint": "it"}));
        assert_eq!(created["ok"], true, "{created:#}");
        let id = created["result"]["databaseId"].as_str().unwrap().to_owned();
        Self { stdio, id }
    }

    /// Calls `run_sql` with further arguments.
    pub(crate) fn sql(&mut self, sql: &str, more: Value) -> Value {
        let mut input = json!({"databaseId": self.id, "sql": sql});
        input.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.stdio.call("run_sql", &input)
    }

    /// Expects a code, or `ok`, and that the server is there afterwards.
    pub(crate) fn check(&mut self, what: &str, reply: &Value, expected: &str) {
        let shown = reply.to_string();
        let shown = shown.get(..2000).unwrap_or(&shown);
        assert_eq!(code(reply), expected, "{what}: {shown}");
        let after = self.sql("select 1", json!({}));
        assert_eq!(code(&after), "ok", "after {what}: {after:#}");
    }

    fn check_sql(&mut self, what: &str, sql: &str, expected: &str) {
        let reply = self.sql(sql, json!({"timeoutSeconds": 60}));
        self.check(what, &reply, expected);
    }

    fn peak_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.stdio.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

/// Returns `ok`, or the code of the failure.
pub(crate) fn code(reply: &Value) -> &str {
    if reply["ok"] == true { "ok" } else { reply["errors"][0]["code"].as_str().unwrap_or("no envelope") }
}

#[test]
fn sql_of_any_size_and_shape_gets_a_typed_answer() {
    let home = Home::with_cluster();
    let mut it = Session::start(&home);
    let nested = |open: &str, middle: &str, close: &str, n: usize| {
        format!("select {}{middle}{}", open.repeat(n), close.repeat(n))
    };
    let too_complex = [
        ("a megabyte and more", format!("select 1 /*{}*/", "x".repeat(1 << 20))),
        ("chained operators", format!("select 1{}", "+1".repeat(200_000))),
        ("nested comments", format!("{}{}select 1", "/*".repeat(20_000), "*/".repeat(20_000))),
        ("one long operator", format!("select 1 {} 1", "+".repeat(500_000))),
        ("many statements", "select 1;".repeat(20_000)),
        ("parentheses", nested("(", "1", ")", 200_000)),
        ("NUL", "select 'a\0b'".to_owned()),
    ];
    for (what, sql) in too_complex {
        it.check_sql(what, &sql, "sql_too_complex");
    }
    let unreadable = [
        ("an open string", "select 'a".to_owned()),
        ("an open comment", "select 1 /*".to_owned()),
        ("an open dollar quote", "select $a$ 1".to_owned()),
        ("a command of psql", "\\copy t from x".to_owned()),
        ("an empty name", "select \"\"".to_owned()),
        ("a number that runs into a name", "select 1a".to_owned()),
        ("a control character", "select \u{b}1".to_owned()),
    ];
    for (what, sql) in unreadable {
        it.check_sql(what, &sql, "syntax_error");
        assert_eq!(code(&it.sql(&sql, json!({"readonly": true}))), "syntax_error", "{what}");
    }
    let refused_by_postgres = [
        ("deep parentheses", nested("(", "1", ")", 12_000)),
        ("deep cases", nested("case when true then ", "1", " end", 5_000)),
        ("deep calls", nested("abs(", "1", ")", 12_000)),
        ("signs", nested("- ", "1", "", 12_000)),
        ("no statement", "  ;; -- nothing".to_owned()),
    ];
    for (what, sql) in &refused_by_postgres {
        it.check_sql(what, sql, "syntax_error");
        let reply = it.sql(sql, json!({"readonly": true}));
        assert!(["readonly_violation", "syntax_error"].contains(&code(&reply)), "{what}: {reply:#}");
    }
    it.check_sql("a long chain", &format!("select 1{}", "+1".repeat(12_000)), "sql_failed");
    it.check_sql("many unions", &vec!["select 1"; 5000].join(" union "), "ok");
    it.check_sql("a literal of almost a megabyte", &format!("select length('{}')", "x".repeat((1 << 20) - 100)), "ok");
}

#[test]
fn results_of_any_size_are_cut_and_do_not_fill_memory() {
    let home = Home::with_cluster();
    let mut it = Session::start(&home);
    for more in [json!({"timeoutSeconds": 120}), json!({"timeoutSeconds": 120, "readonly": true})] {
        let reply = it.sql("select repeat('x', 500 * 1024 * 1024)", more);
        it.check("500 MB in one value", &reply, "ok");
        assert_eq!(reply["result"]["resultSets"][0]["rows"][0][0]["omittedBytes"], 524_288_000);
    }
    let reply = it.sql("select * from generate_series(1, 10000000)", json!({"rowLimit": 1000, "timeoutSeconds": 120}));
    it.check("ten million rows", &reply, "ok");
    assert_eq!(reply["result"]["returnedRowCount"], 1000);
    assert_eq!(reply["result"]["truncated"], true);
    let columns = |n: usize| format!("select {}", vec!["1"; n].join(","));
    let reply = it.sql(&columns(1664), json!({}));
    it.check("as many columns as there can be", &reply, "ok");
    assert_eq!(reply["result"]["resultSets"][0]["rows"][0].as_array().unwrap().len(), 1664);
    it.check_sql("one column more", &columns(1665), "sql_failed");

    let bounded = |reply: &Value, what: &str| assert!(reply.to_string().len() < 5 << 20, "{what}");
    let reply = it.sql(&format!("{};", columns(400)).repeat(1000), json!({"timeoutSeconds": 120}));
    bounded(&reply, "the columns of a thousand results");
    assert!(reply["warnings"].to_string().contains("left out"), "{}", reply["warnings"]);
    let failing = "do $$ begin raise exception '%', repeat('z', 100000); end $$;".repeat(1000);
    let reply = it.sql(&failing, json!({"continueOnError": true, "timeoutSeconds": 120}));
    bounded(&reply, "a thousand long failures");
    assert_eq!(reply["summary"], "0 statements ran, 1000 failed");
    let noisy = "do $$ begin for i in 1..2000 loop raise notice '%', repeat('y', 10000); end loop; end $$";
    let reply = it.sql(noisy, json!({}));
    bounded(&reply, "notices");
    assert!(reply["result"]["noticesDropped"].as_u64().unwrap() >= 1900, "{}", reply["result"]["noticesDropped"]);
    it.check("all of it", &reply, "ok");
    let peak = it.peak_kib();
    assert!(peak < RSS_KIB_MAX, "the program grew to {peak} KiB");
}

#[test]
fn sleep_ends_by_timeout_and_by_cancellation() {
    let home = Home::with_cluster();
    let mut it = Session::start(&home);
    let reply = it.sql("select pg_sleep(600)", json!({"timeoutSeconds": 1}));
    it.check("pg_sleep", &reply, "statement_timeout");

    let mut other = Stdio::spawn_and_shake_hands_by_string_id(&home);
    let call = json!({"jsonrpc": "2.0", "id": 0, "method": "tools/call", "params": {"name": "run_sql",
        "arguments": {"databaseId": it.id, "sql": "select pg_sleep(600)", "timeoutSeconds": 300}}});
    other.send(&call);
    let sleeping = "select count(*) from pg_stat_activity where state = 'active' and query ~ 'pg_sleep' \
                    and pid <> pg_backend_pid()";
    let sleepers = |it: &mut Session| {
        let reply = it.sql(sleeping, json!({}));
        reply["result"]["resultSets"][0]["rows"][0][0].as_str().unwrap().to_owned()
    };
    wait(Duration::from_secs(30), || sleepers(&mut it) == "1");
    other.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 0}}));
    let cancelled = Instant::now();
    wait(Duration::from_secs(1), || sleepers(&mut it) == "0");
    assert!(cancelled.elapsed() < Duration::from_secs(1), "the backend was busy for {:?}", cancelled.elapsed());
    // The next message is the answer to the next request: the cancelled one is not answered.
    other.send(&json!({"jsonrpc": "2.0", "id": "next", "method": "ping"}));
    let next = other.message(Duration::from_secs(30)).unwrap();
    assert_eq!(next["id"], "next", "{next:#}");
    assert_eq!(code(&it.sql("select 1", json!({}))), "ok");
}

/// Waits until `done`, looking again and again.
pub(crate) fn wait(within: Duration, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + within;
    while !done() {
        assert!(Instant::now() < end, "not within {within:?}");
    }
}

/// Everything that is known to get past a reading of the text, or past a read-only transaction.
const BYPASSES: &[&str] = &[
    "select 1 end; drop table t",
    "select 1 >--\n1; drop table t",
    "select 1 -/* */1; delete from t",
    "with x as (delete from t returning 1) select * from x",
    "with x as (select $\u{e9}$ $\u{e9}$), y as (delete from t returning 1) select 1",
    "select a and into x from t",
    "select * into x from t",
    "select U&\"pg_sl\\0065ep\"(1)",
    "select U&\"s\\0065tval\"('s', 99)",
    "copy t from stdin;\n9\n\\.\n",
    "select * from setval('s', 99)",
    "select setval('s', 99)",
    "select nextval('s')",
    "select f()",
    "select * from f()",
    "select v from v",
    "explain analyze create table x as select 1",
    "explain (analyze) create table x as select 1",
    "explain (analyze true, costs off) insert into t values (9)",
    "explain (costs off, analyze 1) delete from t",
    "explain (analyze on) select f()",
    "select lo_create(0)",
    "select lo_from_bytea(0, 'x')",
    "notify channel",
    "listen channel",
    "lock table t",
    "reindex table t",
    "cluster t using t_pkey",
    "vacuum t",
    "analyze t",
    "set transaction_read_only = off",
    "set transaction_read_only = off; insert into t values (9)",
    "set session characteristics as transaction read write",
    "begin read write; insert into t values (9); commit",
    "commit; insert into t values (9)",
    "rollback; insert into t values (9)",
    "prepare transaction 'x'",
    "prepare p as insert into t values (9)",
    "prepare p as select 1",
    "execute p",
    "declare c cursor with hold for select f()",
    "copy (delete from t returning 1) to stdout",
    "copy (select f()) to stdout",
    "copy t to '/tmp/pgsandbox-bypass'",
    "copy t to program 'true'",
    "copy t to stdout; drop table t",
    "select pg_create_physical_replication_slot('x')",
    "select pg_logical_emit_message(false, 'a', 'b')",
    "do $$ begin delete from t; end $$",
    "call p()",
    "select * from t for update",
    "select set_config('transaction_read_only', 'off', false)",
    "select query_to_xml('delete from t', true, true, '')",
    "select dblink_exec('', 'delete from t')",
    "select pg_sleep(0)",
    "select pg_advisory_lock(1)",
    "select pg_terminate_backend(1)",
    "refresh materialized view m",
    "truncate t",
    "create temp table x()",
    "create table x()",
    "drop database postgres",
    "alter system set work_mem = 1",
    "alter database postgres reset all",
    "set role none",
    "reset all",
    "discard all",
    "deallocate all",
    "load 'x'",
    "security label on table t is null",
    "insert into t values (9)",
    "merge into t using t s on false when not matched then insert values (9)",
    "values (f())",
    "table t; delete from t",
    "select 1 where exists (select f())",
    "select operator(public.@@@) t.a from t",
    "select 1::public.d",
];

#[test]
fn every_known_bypass_is_refused_read_only_or_changes_nothing() {
    let home = Home::with_cluster();
    let mut it = Session::start(&home);
    let fixture = "create table t (a int primary key); insert into t values (1), (2); create sequence s; \
        create function f() returns int language plpgsql as $$ begin insert into public.t values (7); return 1; end $$; \
        create procedure p() language plpgsql as $$ begin delete from public.t; end $$; \
        create view v as select f() as v; create materialized view m as select count(*) from t; \
        create function ff(int) returns int language sql as $$ insert into public.t values (8) returning 1 $$; \
        create operator public.@@@ (rightarg = int, function = ff); \
        create function ok(int) returns bool language plpgsql as $$ begin insert into public.t values (6); return true; end $$; \
        create domain public.d as int check (ok(value));";
    let reply = it.sql(fixture, json!({}));
    it.check("the fixture", &reply, "ok");
    let looks = "select (select array_agg(a order by a) from t), (select last_value from s), \
        (select count(*) from pg_class where relnamespace = 'public'::regnamespace), \
        (select count(*) from pg_largeobject_metadata), (select count(*) from pg_replication_slots), \
        (select count(*) from pg_prepared_xacts), (select array_agg(datname::text order by 1) from pg_database)";
    let look = |it: &mut Session| it.sql(looks, json!({}))["result"]["resultSets"][0]["rows"].clone();
    let before = look(&mut it);
    assert_eq!(before[0][0], json!([1, 2]));
    let mut ran = Vec::new();
    for sql in BYPASSES {
        let reply = it.sql(sql, json!({"readonly": true}));
        if reply["ok"] == true {
            ran.push(*sql);
        }
        assert_eq!(look(&mut it), before, "{sql} changed something: {reply:#}");
        let mode = it.sql("show transaction_read_only", json!({"readonly": true}));
        assert_eq!(mode["result"]["resultSets"][0]["rows"], json!([["on"]]), "after {sql}: {mode:#}");
    }
    // A view or a cast that runs code is stopped by Postgres alone; none of the others gets as far as that.
    assert_eq!(ran, [""; 0]);
}

#[test]
fn arguments_out_of_bounds_get_their_own_codes() {
    let home = Home::with_cluster();
    let mut it = Session::start(&home);
    let (id, big) = (it.id.clone(), "x".repeat(1 << 20));
    let labels = |n: usize| (0..n).map(|n| (n.to_string(), json!("x"))).collect::<serde_json::Map<_, _>>();
    let huge: Value = serde_json::from_str("9223372036854775808").unwrap();
    let beyond: Value = serde_json::from_str("1000000000000000000000000000000").unwrap();
    let cases = [
        ("create_database", json!({"ttlMinutes": 0}), "invalid_ttl"),
        ("create_database", json!({"ttlMinutes": -1}), "invalid_ttl"),
        ("create_database", json!({"ttlMinutes": huge}), "invalid_ttl"),
        ("create_database", json!({"ttlMinutes": beyond}), "invalid_ttl"),
        ("create_database", json!({"ttlMinutes": 1.5}), "invalid_arguments"),
        ("create_database", json!({"ttlMinutes": "5"}), "invalid_arguments"),
        ("create_database", json!({"labels": {"a": big}}), "invalid_arguments"),
        ("create_database", json!({"labels": {&big: "a"}}), "invalid_arguments"),
        ("create_database", json!({"labels": labels(33)}), "invalid_arguments"),
        ("create_database", json!({"labels": {"a": 5}}), "invalid_arguments"),
        ("create_database", json!({"labels": ["a"]}), "invalid_arguments"),
        ("create_database", json!({"labels": {"a\0": "b"}}), "invalid_arguments"),
        ("create_database", json!({"nameHint": "漢".repeat(200)}), "invalid_arguments"),
        ("create_database", json!({"nameHint": "\0"}), "invalid_arguments"),
        ("create_database", json!({"owner": "\0"}), "invalid_arguments"),
        ("create_database", json!({"owner": big}), "invalid_arguments"),
        ("create_database", json!({"extensions": vec!["citext"; 26]}), "invalid_extensions"),
        ("create_database", json!({"extensions": ["dblink"]}), "extension_not_allowed"),
        ("create_database", json!({"profile": big}), "unknown_profile"),
        ("create_database", json!({"postgresVersion": big}), "invalid_arguments"),
        ("create_database", json!({"postgresVersion": "99"}), "postgres_version_unavailable"),
        ("create_database", json!({"postgresVersion": "99999"}), "postgres_version_unavailable"),
        ("extend_database", json!({"databaseId": id, "ttlMinutes": 0}), "invalid_ttl"),
        ("extend_database", json!({"databaseId": id, "ttlMinutes": huge}), "invalid_ttl"),
        ("list_databases", json!({"cursor": big}), "invalid_arguments"),
        ("list_databases", json!({"labels": {"a\0": "b"}}), "invalid_arguments"),
        ("list_databases", json!({"limit": 0}), "invalid_arguments"),
        ("cleanup_expired", json!({"owner": "a\0b"}), "invalid_arguments"),
        ("cleanup_expired", json!({"labels": {"a\0": "b"}}), "invalid_arguments"),
        ("run_sql", json!({"sql": "select 1"}), "invalid_arguments"),
        ("run_sql", json!({"sql": "select 1", "databaseId": big}), "invalid_arguments"),
        ("run_sql", json!({"sql": "select 1", "databaseId": id, "databaseName": "another"}), "database_not_found"),
        ("run_sql", json!({"sql": "select 1", "databaseName": "a\0b"}), "invalid_arguments"),
        ("run_sql", json!({"sql": "select 1", "databaseId": id, "sqll": 1}), "invalid_arguments"),
        ("run_sql", json!({"sql": "select 1", "databaseId": id, &big: 1}), "invalid_arguments"),
        ("run_sql", json!({"sql": {"a": 1}, "databaseId": id}), "invalid_arguments"),
        ("run_sql", json!({"sql": null, "databaseId": id}), "invalid_arguments"),
        ("run_sql", json!({"sql": "select 1", "databaseId": id, "rowLimit": -1}), "invalid_row_limit"),
        ("run_sql", json!({"sql": "select 1", "databaseId": id, "rowLimit": 1e300}), "invalid_row_limit"),
        ("run_sql", json!({"sql": "select 1", "databaseId": id, "timeoutSeconds": huge}), "invalid_arguments"),
        ("run_sql", json!({"sql": "select 1", "databaseId": id, "params": vec![1; 2000]}), "invalid_arguments"),
        ("explain_policy", json!({"operation": big}), "unknown_operation"),
        ("explain_policy", json!({"operation": "run_sql", "arguments": [1]}), "invalid_arguments"),
        ("drop_everything", json!({}), "unknown_operation"),
        (&big, json!({}), "unknown_operation"),
    ];
    for (operation, input, expected) in cases {
        let began = Instant::now();
        let reply = it.stdio.call(operation, &input);
        let what =
            format!("{} {}", operation.get(..20).unwrap_or(operation), input.to_string().get(..80).unwrap_or(""));
        it.check(&what, &reply, expected);
        assert!(reply.to_string().len() < 4096, "{what} is said back: {} bytes", reply.to_string().len());
        assert!(began.elapsed() < Duration::from_secs(10), "{what} took {:?}", began.elapsed());
    }
    let reply = it.stdio.call("create_database", &json!({"nameHint": "漢".repeat(85), "labels": labels(32)}));
    it.check("as much as is allowed", &reply, "ok");
}

/// Sends one line and returns what comes of it, before and after the answer to a further request.
fn answers(stdio: &mut Stdio, line: &[u8], answered: bool) -> Vec<Value> {
    stdio.notifications.clear();
    stdio.send_bytes(line);
    let first = answered.then(|| stdio.message(Duration::from_secs(60)).expect("the line was not answered"));
    let after = stdio.request("tools/call", json!({"name": "list_profiles", "arguments": {}}));
    assert_eq!(after["result"]["structuredContent"]["ok"], true, "{after:#}");
    stdio.notifications.extend(first);
    std::mem::take(&mut stdio.notifications)
}

/// A fault of the protocol: its code, and the id it answers.
type Fault = (i64, Option<u64>);

#[test]
fn lines_that_are_no_request_are_answered_or_passed_over_and_never_end_the_connection() {
    let home = Home::with_cluster();
    let mut stdio = Stdio::start(&home);
    let sql = |bytes: &[u8]| {
        let head =
            br#"{"jsonrpc":"2.0","id":900,"method":"tools/call","params":{"name":"run_sql","arguments":{"sql":""#;
        [head, bytes, br#""}}}"#].concat()
    };
    let sdk_order = |text: String| {
        let head = r#"{"method":"tools/call","params":{"name":"run_sql","arguments":{"sql":""#;
        format!(r#"{head}{text}"}}}},"jsonrpc":"2.0","id":900}}"#).into_bytes()
    };
    let deep = format!(
        r#"{{"jsonrpc":"2.0","id":900,"method":"ping","params":{{"a":{}{}}}}}"#,
        "[".repeat(200),
        "]".repeat(200)
    );
    let (parse, invalid, params, method) = (-32700, -32600, -32602, -32601);
    let id = Some(900);
    let cases: Vec<(&str, Vec<u8>, Option<Fault>)> = vec![
        ("nothing", b"".to_vec(), None),
        ("blanks", b"   \r".to_vec(), None),
        ("no JSON", b"hello".to_vec(), Some((parse, None))),
        ("bytes that are no UTF-8", sql(b"select '\xff\xfe'"), Some((parse, id))),
        (
            "bytes that are no UTF-8, id last",
            sdk_order("\u{fffd}".into()).iter().map(|b| if *b == 0xbf { 0xff } else { *b }).collect(),
            Some((parse, id)),
        ),
        ("half a surrogate", sql(b"select '\\ud800'"), Some((parse, id))),
        ("a raw NUL", sql(b"select '\0'"), Some((parse, id))),
        ("a hundred thousand brackets", vec![b'['; 100_000], Some((parse, None))),
        ("deep nesting", deep.into_bytes(), Some((parse, id))),
        ("20 MB", sql(&vec![b'x'; 20_000_000]), Some((invalid, id))),
        ("20 MB, id last", sdk_order("x".repeat(20_000_000)), Some((invalid, id))),
        ("20 MB of nothing", vec![b'x'; 20_000_000], Some((invalid, None))),
        ("null", b"null".to_vec(), Some((invalid, None))),
        ("a batch", br#"[{"jsonrpc":"2.0","id":900,"method":"ping"}]"#.to_vec(), Some((invalid, None))),
        ("no version", br#"{"id":900,"method":"ping"}"#.to_vec(), Some((invalid, id))),
        ("a twofold key", br#"{"jsonrpc":"2.0","id":900,"method":"ping","method":"x"}"#.to_vec(), Some((invalid, id))),
        ("an id that is none", br#"{"jsonrpc":"2.0","id":{"a":1},"method":"ping"}"#.to_vec(), Some((invalid, None))),
        ("an unknown method", br#"{"jsonrpc":"2.0","id":900,"method":"foo/bar"}"#.to_vec(), Some((method, id))),
        (
            "a notification with an id",
            br#"{"jsonrpc":"2.0","id":900,"method":"notifications/initialized"}"#.to_vec(),
            Some((method, id)),
        ),
        (
            "a method that is not offered",
            br#"{"jsonrpc":"2.0","id":900,"method":"resources/subscribe","params":{"uri":"x"}}"#.to_vec(),
            Some((method, id)),
        ),
        ("no parameters", br#"{"jsonrpc":"2.0","id":900,"method":"tools/call"}"#.to_vec(), Some((params, id))),
        (
            "arguments in a list",
            br#"{"jsonrpc":"2.0","id":900,"method":"tools/call","params":{"name":"run_sql","arguments":[1]}}"#.to_vec(),
            Some((params, id)),
        ),
        (
            "a name that is a number",
            br#"{"jsonrpc":"2.0","id":900,"method":"tools/call","params":{"name":5}}"#.to_vec(),
            Some((params, id)),
        ),
        ("an unknown notification", br#"{"jsonrpc":"2.0","method":"notifications/x","params":{}}"#.to_vec(), None),
        (
            "a cancellation of nothing",
            br#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":77777}}"#.to_vec(),
            None,
        ),
        ("a cancellation of no shape", br#"{"jsonrpc":"2.0","method":"notifications/cancelled"}"#.to_vec(), None),
        ("an answer to nothing", br#"{"jsonrpc":"2.0","id":900,"result":{}}"#.to_vec(), None),
    ];
    for (what, line, expected) in cases {
        let got = answers(&mut stdio, &line, expected.is_some());
        let errors: Vec<_> = got.iter().map(|m| (m["error"]["code"].as_i64().unwrap(), m["id"].as_u64())).collect();
        assert_eq!(errors, Vec::from_iter(expected), "{what}: {got:?}");
    }
    let called_twice = br#"{"jsonrpc":"2.0","id":900,"method":"tools/call","params":{"name":"explain_policy","arguments":{"operation":"doctor","operation":"list_profiles"}}}"#;
    let got = answers(&mut stdio, called_twice, true);
    // Of a key that is given twice the last counts, for the decision as for the call.
    assert_eq!(got[0]["result"]["structuredContent"]["result"]["operation"], "list_profiles", "{got:?}");
    assert!(stdio.finish().success());
}

#[test]
fn what_comes_before_the_handshake_is_refused_and_does_not_prevent_it() {
    let home = Home::fresh();
    let mut stdio = Stdio::start_without_handshake(&home);
    for line in [
        "hello",
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
    ] {
        stdio.send_raw(line);
    }
    let early = stdio.request("tools/call", json!({"name": "list_profiles", "arguments": {}}));
    assert_eq!(early["error"]["code"], -32602, "{early:#}");
    stdio.shake_hands("2025-11-25");
    assert_eq!(code(&stdio.call("list_profiles", &json!({}))), "ok");
    assert!(stdio.finish().success());
}

#[test]
fn every_revision_of_the_protocol_is_spoken() {
    let home = Home::fresh();
    for (asked, given) in [
        ("2024-11-05", "2024-11-05"),
        ("2025-03-26", "2025-03-26"),
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-11-25"),
        ("1999-01-01", "2025-11-25"),
    ] {
        let mut stdio = Stdio::start_without_handshake(&home);
        let answer = stdio.shake_hands(asked);
        assert_eq!(answer["result"]["protocolVersion"], given);
        let tools = stdio.request("tools/list", json!({}));
        assert_eq!(tools["result"]["tools"].as_array().unwrap().len(), 12, "{asked}");
        let called = stdio.request("tools/call", json!({"name": "list_profiles", "arguments": {}}));
        let text: Value = serde_json::from_str(called["result"]["content"][0]["text"].as_str().unwrap()).unwrap();
        assert_eq!(text["ok"], true, "{asked}");
        assert_eq!(called["result"].get("structuredContent").is_some(), given >= "2025-06-18", "{asked}");
    }
    // Without a handshake, each request names the revision.
    let mut stdio = Stdio::start_without_handshake(&home);
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "it", "version": "1"}});
    let found = stdio.request("server/discover", json!({"_meta": meta}));
    assert!(found["result"]["supportedVersions"].as_array().unwrap().contains(&json!("2026-07-28")), "{found:#}");
    let called = stdio.request("tools/call", json!({"name": "list_profiles", "arguments": {}, "_meta": meta}));
    assert_eq!(called["result"]["structuredContent"]["ok"], true, "{called:#}");
}

#[test]
fn no_literal_and_no_password_is_kept_or_shown_outside_the_sandbox() {
    let home = Home::with_cluster();
    let errors = home.path().join("stderr");
    let log = File::create(&errors).unwrap();
    let variables = [("PGSANDBOX_LOG", "trace,rmcp=trace,tokio_postgres=trace")];
    let mut it = Session::create(Stdio::start_with(&home, &variables, Pipe::from(log)));
    let id = it.id.clone();
    let secrets: Vec<String> = ["owner", "readonly"]
        .iter()
        .map(|access| {
            let asked = json!({"databaseId": id, "includeCredentials": true, "access": access});
            let reply = it.stdio.call("get_connection_string", &asked);
            let url = reply["result"]["connectionString"].as_str().unwrap_or_else(|| panic!("{reply:#}")).to_owned();
            url.split(':').nth(2).unwrap().split('@').next().unwrap().to_owned()
        })
        .collect();
    assert!(secrets.iter().all(|secret| secret.len() > 40), "no passwords in the connection strings");
    let marked = [
        "create table t (a text unique, b int check (b > 0)); insert into t values ('@value', 1)",
        "insert into t values ('@value', 1)",
        "insert into t values ('@check', -1)",
        "select '@cast'::int",
        "select 1 as \"@label\"",
        "select 1 -- @comment",
        "select 1 /* @comment */",
        "do $$ begin raise exception '@exception' using detail = '@detail', hint = '@hint'; end $$",
        "do $$ begin raise notice '@notice'; raise log '@log'; raise warning '@warning'; end $$",
        "do $$ begin perform 1 / 0; /* @body */ end $$",
        "copy t from stdin;\n@copied\tz\n\\.\n",
        "selectt '@syntax'",
        "select '@open",
        "select pg_sleep(5), '@slow'",
        "select set_config('application_name', '@application', false)",
        "prepare p as select '@prepared'; execute p",
        "begin; insert into t values ('@open', 3)",
        "create function f() returns text language sql as $$ select '@function' $$; select f()",
        "create role x password '@password'",
        "alter role current_user password '@password'",
        "comment on table t is '@comment'",
        "alter system set work_mem = '@setting'",
        "select pg_read_file('@file')",
    ];
    for sql in marked {
        let sql = sql.replace('@', MARK);
        for read_only in [false, true] {
            it.sql(&sql, json!({"readonly": read_only, "timeoutSeconds": 1, "continueOnError": true}));
            let asked =
                json!({"operation": "run_sql", "arguments": {"databaseId": id, "sql": sql, "readonly": read_only}});
            it.stdio.call("explain_policy", &asked);
        }
    }
    let param = format!("{MARK}parameter");
    it.sql("select $1::int", json!({"params": [param]}));
    it.sql("copy t from stdin", json!({"stdin": format!("{MARK}data\tz\n")}));
    it.stdio.call("run_sql", &json!({"databaseId": id, "sql": {"a": param}}));
    for line in [
        format!(
            r#"{{"jsonrpc":"2.0","id":901,"method":"tools/call","params":{{"name":"run_sql","arguments":["{MARK}"]}}}}"#
        ),
        format!(r#"{{"jsonrpc":"2.0","id":902,"method":"tools/call","params":{{"sql":"{MARK}"#),
        format!(r#"{{"jsonrpc":"2.0","id":903,"x":"{MARK}"}}"#),
        format!(r#"{{"jsonrpc":"2.0","method":"notifications/x","params":{{"x":"{MARK}"}}}}"#),
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":1,"reason":"{MARK}"}}}}"#
        ),
    ] {
        it.stdio.send_raw(&line);
    }
    assert_eq!(code(&it.sql("select 1", json!({}))), "ok");

    let mut wanted: Vec<&str> = secrets.iter().map(String::as_str).collect();
    wanted.push(MARK);
    let seen = admin_sees(&home);
    check_free(&wanted, "pg_stat_activity and the metadata", seen.as_bytes());
    for (pid, what) in
        ["cmdline", "environ"].iter().flat_map(|what| processes().into_iter().map(move |pid| (pid, what)))
    {
        let bytes = fs::read(format!("/proc/{pid}/{what}")).unwrap_or_default();
        if bytes.windows(9).any(|part| part == b"pgsandbox") {
            check_free(&wanted, &format!("{what} of process {pid}"), &bytes);
        }
    }
    let admin = fs::read_to_string(admin_password_file(&home)).unwrap();
    assert!(it.stdio.finish().success());
    check_free(&wanted, "stderr", &fs::read(&errors).unwrap());
    wanted.push(admin.trim());
    let mut files = 0;
    for_each_file(&home.state(), &mut |path| {
        // What the server stores of sandboxes is the sandboxes' own.
        let of_the_server =
            ["base", "pg_wal", "run"].iter().any(|part| path.components().any(|c| c.as_os_str() == *part));
        let own = path.ends_with("admin-password");
        if own {
            use std::os::unix::fs::PermissionsExt as _;
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
        } else if !of_the_server {
            files += 1;
            check_free(&wanted, &path.display().to_string(), &fs::read(path).unwrap());
        }
    });
    assert!(files > 20, "the state directory was not looked through");
}

fn check_free(wanted: &[&str], place: &str, bytes: &[u8]) {
    for word in wanted {
        let at = bytes.windows(word.len()).position(|part| part == word.as_bytes());
        if let Some(at) = at {
            let from = at.saturating_sub(200);
            let around = String::from_utf8_lossy(&bytes[from..(at + 100).min(bytes.len())]).into_owned();
            panic!("{place} holds a secret or a literal: …{around}…");
        }
    }
}

fn processes() -> Vec<u32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != std::process::id())
        .collect()
}

fn for_each_file(dir: &std::path::Path, visit: &mut dyn FnMut(&std::path::Path)) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let kind = fs::symlink_metadata(&path).unwrap().file_type();
        if kind.is_dir() {
            for_each_file(&path, visit);
        } else if kind.is_file() {
            visit(&path);
        }
    }
}

fn admin_password_file(home: &Home) -> std::path::PathBuf {
    let mut found = None;
    for_each_file(&home.state(), &mut |path| {
        if path.ends_with("admin-password") {
            found = Some(path.to_owned());
        }
    });
    found.unwrap()
}

/// What a superuser sees of other sessions, and every row of the metadata.
fn admin_sees(home: &Home) -> String {
    let file = admin_password_file(home);
    let port = fs::read_to_string(file.with_file_name("port")).unwrap().trim().parse().unwrap();
    let password = fs::read_to_string(&file).unwrap();
    let socket = fs::read_to_string(file.with_file_name("socket-directory")).unwrap();
    crate::harness::block_on(async move {
        let mut config = tokio_postgres::Config::new();
        config
            .host_path(socket.trim())
            .port(port)
            .user("pgsandbox_admin")
            .password(password.trim())
            .dbname("pgsandbox");
        let (client, connection) = config.connect(tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        let activity = "select string_agg(query, E'\\n') from pg_stat_activity where pid <> pg_backend_pid()";
        let mut seen: String = client.query_one(activity, &[]).await.unwrap().get(0);
        assert!(seen.contains("DISCARD ALL"), "no session of a sandbox is seen: {seen}");
        let tables = "select tablename::text from pg_tables where schemaname = 'pgsandbox'";
        for table in client.query(tables, &[]).await.unwrap() {
            let table: String = table.get(0);
            let rows = format!("select string_agg(t::text, E'\\n') from pgsandbox.{table} t");
            let rows: Option<String> = client.query_one(&rows, &[]).await.unwrap().get(0);
            seen.push_str(&rows.unwrap_or_default());
        }
        seen
    })
}
