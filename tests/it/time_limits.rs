//! A statement that takes too long is ended, and whose limit it was is told: in JSON and in text, by every operation that
//! runs the caller's SQL.

use std::time::Duration;

use pgsandbox::model::{Mode, Obligation};
use serde_json::{Value, json};

use crate::crash::query;
use crate::hostile::{Session, wait};
use crate::obligations::{demanding, home_with_policy_file, with, write_policies};
use crate::program::{Home, Stdio, Transport};

/// Takes hours, and is let through read-only.
const COUNT: &str = "select count(*) from generate_series(1, 10000000) a, generate_series(1, 10000000) b";
const SLEEP: &str = "select pg_catalog.pg_sleep(60)";

/// Expects that a limit ended the statement, and that this is told with who set it and what helps.
fn ended(error: &Value, limit: &str, helps: &str) {
    assert_eq!(error["code"], "statement_timeout", "{error:#}");
    let message = error["message"].as_str().unwrap();
    assert_eq!(message, format!("the statement was stopped at the limit of {limit}"), "{error:#}");
    assert!(error["hint"].as_str().unwrap().contains(helps), "`{helps}` is not said: {error:#}");
    assert_eq!(error["retryable"], false, "the same call has the same time again: {error:#}");
    assert_eq!(error["statementIndex"], 1, "{error:#}");
}

fn by_the_policy(reply: &Value) {
    ended(&reply["errors"][0], "300 ms, set by policy `demanding`", "the settings of policy `demanding`");
    let limits = &reply["policy"]["limits"];
    let limit = json!({"limit": "statement-timeout-ms", "value": "300", "setBy": "demanding"});
    assert!(limits.as_array().unwrap().contains(&limit), "{reply:#}");
}

fn in_text(home: &Home, arguments: &[&str]) {
    let output = home.run(&[arguments, &["--format", "text"]].concat());
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let whole = "the statement was stopped at the limit of 300 ms, set by policy `demanding`";
    assert!(said.contains(whole) && said.contains("hint: ask for less work; an operator can change"), "{said}");
    assert!(!output.status.success());
}

#[test]
fn a_policys_limit_is_told_with_its_policy_by_every_operation_that_runs_the_callers_sql() {
    let home = home_with_policy_file();
    let Session { stdio, id } = Session::start(&home);
    assert!(stdio.finish().success());
    let mut it = Session { stdio: with(&home, &demanding(&[Obligation::StatementTimeoutMs(300)])), id };
    for more in [json!({}), json!({"timeoutSeconds": 60})] {
        by_the_policy(&it.sql(SLEEP, more));
    }
    by_the_policy(&it.sql(COUNT, json!({"readonly": true, "timeoutSeconds": 60})));
    // One that is gone on after takes the time of all that follow, and the call is over with it.
    by_the_policy(&it.sql(&format!("{SLEEP}; select 1"), json!({"continueOnError": true})));
    by_the_policy(&it.sql("do $$ begin loop perform pg_catalog.pg_sleep(0.01); end loop; end $$", json!({})));
    by_the_policy(&it.sql("copy (select pg_catalog.pg_sleep(60)) to stdout", json!({})));
    let explained = it.stdio.call("explain_query", &json!({"databaseId": it.id, "sql": SLEEP, "analyze": true}));
    by_the_policy(&explained);
    in_text(&home, &["run-sql", "--database-id", &it.id, "--sql", SLEEP, "--timeout-seconds", "60"]);
    in_text(&home, &["explain-query", "--database-id", &it.id, "--sql", SLEEP, "--analyze"]);
}

#[test]
fn the_calls_own_limit_is_told_as_its_own_and_what_ended_a_statement_before_it_is_no_limit() {
    let home = home_with_policy_file();
    let mut it = Session::start(&home);
    let own = "1000 ms, set by the call's `timeoutSeconds`";
    let reply = it.sql(SLEEP, json!({"timeoutSeconds": 1}));
    ended(&reply["errors"][0], own, "give more time by `timeoutSeconds`, up to 300");
    // The limit is the call's: what was before has taken of it.
    let reply = it.sql(&format!("select pg_catalog.pg_sleep(0.7); {SLEEP}"), json!({"timeoutSeconds": 1}));
    let error = &reply["errors"][0];
    assert_eq!((&error["statementIndex"], &error["retryable"]), (&json!(2), &json!(false)), "{reply:#}");
    assert!(error["message"].as_str().unwrap().ends_with(own), "{reply:#}");
    // A timer of the SQL's own, and a cancel from elsewhere.
    let reply = it.sql(&format!("set statement_timeout = '200ms'; {SLEEP}"), json!({"timeoutSeconds": 60}));
    let another = |reply: &Value| {
        let error = &reply["errors"][0];
        assert_eq!(error["code"], "statement_timeout", "{reply:#}");
        assert!(error["hint"].as_str().unwrap().contains("not the limit of 60000 ms, set by the call's"), "{reply:#}");
    };
    another(&reply);
    let arguments = json!({"databaseId": it.id, "sql": SLEEP, "timeoutSeconds": 60});
    let sleeping = it.stdio.begin("tools/call", json!({"name": "run_sql", "arguments": arguments}));
    let cancel = "select pg_cancel_backend(pid)::text from pg_stat_activity where wait_event = 'PgSleep'";
    wait(Duration::from_secs(60), || !query(&home, cancel).is_empty());
    let reply = it.stdio.answer(sleeping)["result"]["structuredContent"].clone();
    another(&reply);
    assert_eq!(reply["errors"][0]["retryable"], true, "{reply:#}");
    assert!(it.stdio.finish().success());

    // A policy that leaves room above what was asked for bounds what is advised.
    let guest = demanding(&[Obligation::StatementTimeoutMs(10_000)]);
    write_policies(&home, &[(&guest.name, guest.component(), Mode::Enforce)]);
    let mut it = Session { stdio: Stdio::start(&home), id: it.id };
    ended(&it.sql(SLEEP, json!({"timeoutSeconds": 1}))["errors"][0], own, "up to 10, or");
}
