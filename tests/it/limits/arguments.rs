//! What callers ask for and get: arguments and results at, just under and just over each bound, through the real program.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::crash::query;
use crate::hostile::{Session, code, wait};
use crate::program::{Home, Stdio, Transport};

/// Calls an operation and expects a code.
fn check(stdio: &mut Stdio, operation: &str, input: &Value, expected: &str) -> Value {
    let reply = stdio.call(operation, input);
    let shown: String = input.to_string().chars().take(80).collect();
    let said: String = reply.to_string().chars().take(1500).collect();
    assert_eq!(code(&reply), expected, "{operation} {shown}: {said}");
    reply
}

/// Makes a sandbox under the bounds that `more` tries, and deletes it if it was made.
fn check_create(stdio: &mut Stdio, more: &Value, expected: &str) {
    let reply = check(stdio, "create_database", more, expected);
    if expected == "ok" {
        check(stdio, "delete_database", &json!({"databaseId": reply["result"]["databaseId"]}), "ok");
    }
}

#[test]
fn what_a_sandbox_is_made_with_is_taken_at_its_bounds_and_no_further() {
    let home = Home::with_cluster();
    let mut stdio = Stdio::start(&home);
    let labels = |n: usize| (0..n).map(|n| (format!("k{n}"), json!("v"))).collect::<Map<_, _>>();
    let text = |n: usize| "x".repeat(n);
    let fits = [
        json!({"labels": labels(32), "nameHint": text(256), "ttlMinutes": 1440}),
        json!({"labels": {text(128): text(128)}, "owner": text(255), "ttlMinutes": 1}),
        json!({"labels": {text(127): text(127)}, "idempotencyKey": text(256), "ttlMinutes": 1439}),
    ];
    for more in fits {
        check_create(&mut stdio, &more, "ok");
    }
    let over = [
        (json!({"labels": labels(33)}), "invalid_arguments"),
        (json!({"labels": {text(129): "v"}}), "invalid_arguments"),
        (json!({"labels": {"k": text(129)}}), "invalid_arguments"),
        (json!({"nameHint": text(257)}), "invalid_arguments"),
        (json!({"owner": text(257)}), "invalid_arguments"),
        (json!({"idempotencyKey": text(257)}), "invalid_arguments"),
        (json!({"ttlMinutes": 0}), "invalid_ttl"),
        (json!({"ttlMinutes": 1441}), "invalid_ttl"),
        (json!({"extensions": vec!["citext"; 26]}), "invalid_extensions"),
        (json!({"extensions": [text(64)]}), "invalid_extensions"),
        // as long as can be, and as many as can be: then it is not allowed, or not there
        (json!({"extensions": [text(63)]}), "extension_not_allowed"),
        (json!({"extensions": (0..25).map(|n| format!("x{n}")).collect::<Vec<_>>()}), "extension_not_allowed"),
    ];
    for (more, expected) in over {
        check_create(&mut stdio, &more, expected);
    }
    for (ttl, allowed) in [(1441, "1 to 1440 minutes"), (0, "1 minute or more, up to the profile's limit")] {
        let reply = stdio.call("create_database", &json!({"ttlMinutes": ttl}));
        assert_eq!(reply["errors"][0]["allowed"], json!([allowed]), "{reply:#}");
    }
    for (limit, expected) in [(0, "invalid_arguments"), (1, "ok"), (200, "ok"), (201, "invalid_arguments")] {
        check(&mut stdio, "list_databases", &json!({"limit": limit}), expected);
    }
}

#[test]
fn what_runs_and_what_comes_back_keeps_to_its_bounds() {
    let home = Home::with_cluster();
    let mut it = Session::start(&home);
    let mut check = |sql: &str, more: Value, expected: &str| {
        let reply = it.sql(sql, more.clone());
        let said: String = reply.to_string().chars().take(1500).collect();
        let shown: String = sql.chars().take(80).collect();
        let more: String = more.to_string().chars().take(80).collect();
        assert_eq!(code(&reply), expected, "{shown} {more}: {said}");
        reply
    };
    for (rows, expected) in [(0, "ok"), (999, "ok"), (1000, "ok"), (1001, "invalid_row_limit")] {
        let reply = check("select * from generate_series(1, 1000)", json!({"rowLimit": rows}), expected);
        if expected == "ok" {
            assert_eq!(reply["result"]["returnedRowCount"], rows, "{rows}");
            assert_eq!(reply["result"]["truncated"], rows < 1000, "{rows}");
        }
    }
    for (rows, cut) in [(99, false), (100, false), (101, true)] {
        let reply = check(&format!("select * from generate_series(1, {rows})"), json!({}), "ok");
        assert_eq!(reply["result"]["truncated"], cut, "{rows} rows, where 100 are usual");
    }
    for (seconds, expected) in [(0, "invalid_arguments"), (1, "ok"), (300, "ok"), (301, "invalid_arguments")] {
        check("select 1", json!({"timeoutSeconds": seconds}), expected);
    }
    for (count, expected) in [(999, "ok"), (1000, "ok"), (1001, "invalid_arguments")] {
        let sum = (1..=count).map(|n| format!("${n}::int")).collect::<Vec<_>>().join("+");
        check(&format!("select {sum}"), json!({"params": vec![1; count]}), expected);
    }
    check("create table t (x text)", json!({}), "ok");
    const STDIN: usize = 1 << 20;
    for (bytes, expected) in [(STDIN - 1, "ok"), (STDIN, "ok"), (STDIN + 1, "invalid_arguments")] {
        check("copy t from stdin", json!({"stdin": "x".repeat(bytes)}), expected);
    }
    // A value fits if its bytes do and the reply has room for it, which by default it has not: it is left out alone.
    for (bytes, omitted) in [(200 << 10, false), (1 << 20, true), ((1 << 20) + 1, true)] {
        let reply = check(&format!("select 1, repeat('x', {bytes})"), json!({}), "ok");
        let value = &reply["result"]["resultSets"][0]["rows"][0][1];
        assert_eq!(value.is_object(), omitted, "{bytes}: {}", value.to_string().get(..100).unwrap_or_default());
    }
    // Rows of some KiB each: whole ones come until the next would be over what a reply holds.
    let reply = check("select repeat('x', 10000) from generate_series(1, 100)", json!({}), "ok");
    let returned = reply["result"]["returnedRowCount"].as_u64().unwrap();
    assert_eq!((returned, &reply["result"]["resultSets"][0]["truncatedBy"]), ((256 << 10) / 10_005, &json!("bytes")));
    for (notices, dropped) in [(49, 0), (50, 0), (51, 1)] {
        let sql = format!("do $$ begin for i in 1..{notices} loop raise notice 'n'; end loop; end $$");
        let reply = check(&sql, json!({}), "ok");
        assert_eq!(reply["result"]["noticesDropped"].as_u64().unwrap_or(0), dropped, "{notices} notices");
    }
    for (depth, expected) in [(32, "ok"), (33, "sql_too_complex")] {
        check(&format!("{}{}select 1", "/*".repeat(depth), "*/".repeat(depth)), json!({}), expected);
    }
    // An operator of 63 characters does not exist, which Postgres says; one more is not sent to it.
    for (length, expected) in [(63, "undefined_object"), (64, "sql_too_complex")] {
        check(&format!("select 1 {} 1", "@".repeat(length)), json!({}), expected);
    }
    const SQL: usize = 1 << 20;
    for (bytes, expected) in [(SQL - 1, "ok"), (SQL, "ok"), (SQL + 1, "sql_too_complex")] {
        let frame = "select length('')".len();
        check(&format!("select length('{}')", "x".repeat(bytes - frame)), json!({}), expected);
    }
    for (depth, nested) in [(100, true), (101, false)] {
        let reply = check(&format!("select '{}1{}'::json", "[".repeat(depth), "]".repeat(depth)), json!({}), "ok");
        assert_eq!(reply["result"]["resultSets"][0]["rows"][0][0].is_array(), nested, "{depth} levels of json");
    }
}

#[test]
fn input_of_a_command_and_a_line_of_the_protocol_are_read_up_to_their_bounds() {
    let home = Home::with_cluster();
    let file = home.path().join("input.json");
    for (bytes, fits) in [((16 << 20) - 1, true), (16 << 20, true), ((16 << 20) + 1, false)] {
        std::fs::write(&file, format!("{{}}{}", " ".repeat(bytes - 2))).unwrap();
        let input = format!("@{}", file.display());
        let done = home.run(&["tool", "list_profiles", "--input", &input]);
        let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.success(), fits, "{bytes}: {said}");
        assert_eq!(said.contains("longer than 16777216 bytes"), !fits, "{bytes}: {said}");
    }
    let mut stdio = Stdio::start(&home);
    const LINE: usize = 8 << 20;
    for (bytes, fits) in [(LINE - 1, true), (LINE, true), (LINE + 1, false)] {
        let frame = r#"{"jsonrpc":"2.0","id":"a","method":"ping","params":{"_meta":{"x":""}}}"#;
        let text = "x".repeat(bytes - frame.len());
        stdio.send_raw(&frame.replace(r#""x":"""#, &format!(r#""x":"{text}""#)));
        let answer = stdio.message(std::time::Duration::from_secs(60)).unwrap();
        assert_eq!(answer.get("result").is_some(), fits, "{bytes}: {answer}");
        assert_eq!(answer.get("error").is_some(), !fits, "{bytes}: {answer}");
    }
}

/// The sessions that one sandbox has out at once, as one of its roles.
const SESSIONS: usize = 8;

#[test]
fn the_time_a_call_declares_covers_its_wait_for_a_session() {
    let home = Home::with_cluster();
    let mut it = Session::start(&home);
    let sleeping =
        "from pg_stat_activity where query like '%pg_sleep(555)%' and state = 'active' and pid <> pg_backend_pid()";
    let count = || query(&home, &format!("select count(*) {sleeping}"))[0][0].parse::<usize>().unwrap();
    let call = |seconds: u64, sql: &str| {
        let input = json!({"databaseId": it.id, "sql": sql, "timeoutSeconds": seconds});
        json!({"name": "run_sql", "arguments": input})
    };
    let (sleep, quick, patient) = (call(300, "select pg_sleep(555)"), call(1, "select 1"), call(300, "select 1"));
    let mut sleepers: Vec<u64> = (1..SESSIONS).map(|_| it.stdio.begin("tools/call", sleep.clone())).collect();
    wait(Duration::from_secs(100), || count() == SESSIONS - 1);
    // One is left, and one who comes has it at once.
    let answer = it.stdio.request("tools/call", call(300, "select 1"));
    assert_eq!(code(&answer["result"]["structuredContent"]), "ok", "{answer:#}");
    sleepers.push(it.stdio.begin("tools/call", sleep));
    wait(Duration::from_secs(100), || count() == SESSIONS);
    let answer = it.stdio.request("tools/call", quick);
    let envelope = &answer["result"]["structuredContent"];
    assert_eq!(code(envelope), "command_timeout", "{envelope:#}");
    assert!(envelope["errors"][0]["message"].as_str().unwrap().contains("within 1000 ms"), "{envelope:#}");
    assert_eq!(count(), SESSIONS, "all were out for all of that second");
    // Who has time waits for the first that comes back.
    let waiting = it.stdio.begin("tools/call", patient);
    query(&home, &format!("select pg_terminate_backend(pid) {sleeping}"));
    let answer = it.stdio.answer(waiting);
    assert_eq!(code(&answer["result"]["structuredContent"]), "ok", "{answer:#}");
    for sleeper in sleepers {
        let answer = it.stdio.answer(sleeper);
        assert_ne!(code(&answer["result"]["structuredContent"]), "ok", "{answer:#}");
    }
}
