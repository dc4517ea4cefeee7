//! What a caller is told of what went wrong, and what nobody else is.

use std::fs;
use std::process::Output;

use serde_json::{Value, json};

use crate::hostile::{Session, code};
use crate::program::{Home, Stdio, Transport};

/// Returns what a command wrote, results and what is beside them.
fn written(output: &Output) -> (String, String) {
    (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Returns everything that was recorded of the requests of a home.
fn audited(home: &Home) -> String {
    let entries = fs::read_dir(home.state().join("audit")).unwrap().map(|entry| entry.unwrap().path());
    entries.filter_map(|path| fs::read_to_string(path).ok()).collect()
}

#[test]
fn where_in_the_servers_work_a_statement_failed_is_told_to_its_caller_alone() {
    let home = Home::fresh();
    let log = home.path().join("log");
    let errors = fs::File::create(&log).unwrap();
    let mut stdio = Stdio::start_with(&home, &[("PGSANDBOX_LOG", "trace")], errors.into());
    let id = stdio.call("create_database", &json!({}))["result"]["databaseId"].as_str().unwrap().to_owned();
    let mut it = Session { stdio, id };
    let made = "create table t (n int);\n\ncreate function inner_one(v text) returns int language plpgsql as $$\nbegin\n\
                return v::int;\nend $$;\ncreate function outer_one(v text) returns int language plpgsql as $$ begin return inner_one(v); end $$;";
    assert_eq!(code(&it.sql(made, json!({}))), "ok");

    let copied = it.sql("copy t from stdin", json!({"stdin": "1\n2\nhunter2\n"}));
    assert_eq!(copied["errors"][0]["context"], "COPY t, line 3, column n: \"hunter2\"", "{copied:#}");
    let called = it.sql("select 1;\n\nselect outer_one('hunter2')", json!({}));
    let context = called["errors"][0]["context"].as_str().unwrap();
    let expected =
        "PL/pgSQL function inner_one(text) line 3 at RETURN\nPL/pgSQL function outer_one(text) line 1 at RETURN";
    assert!(context.contains(expected), "the innermost first: {context}");
    assert_eq!(called["errors"][0]["line"], 3, "{called:#}");

    // Also where the call goes on; what has no place of its own has its statement's.
    let sql =
        "select 1;\nselect outer_one('hunter2');\ninsert into t\nselect nope;\n\n-- and\ninsert into t values (1/0)";
    let on = it.sql(sql, json!({"continueOnError": true}));
    assert_eq!(code(&on), "ok", "{on:#}");
    assert_eq!(on["result"]["statementsFailed"], 3, "{on:#}");
    let failed = on["result"]["statementFailures"].as_array().unwrap();
    assert!(failed[0]["context"].as_str().unwrap().contains("inner_one(text) line 3"), "{on:#}");
    let at = |failed: &Value| (failed["line"].as_u64(), failed["position"].as_u64());
    assert_eq!(failed.iter().map(at).collect::<Vec<_>>(), [(Some(2), None), (Some(4), Some(22)), (Some(7), None)]);
    assert_eq!(failed[2].get("context"), None);

    assert!(it.stdio.finish().success());
    let log = fs::read_to_string(log).unwrap();
    assert!(log.len() > 1000 && !log.contains("hunter2") && !log.contains("inner_one"), "{log}");
    let audit = audited(&home);
    assert!(audit.len() > 1000 && !audit.contains("hunter2") && !audit.contains("inner_one(text)"), "{audit}");
}

#[test]
fn a_long_context_is_cut_where_it_is_told() {
    let home = Home::fresh();
    let mut it = Session::start(&home);
    let deep = "create function deep(n int) returns int language plpgsql as $$ begin if n = 0 then return 1 / n; end if; return deep(n - 1); end $$";
    assert_eq!(code(&it.sql(deep, json!({}))), "ok");
    let reply = it.sql("select deep(200)", json!({}));
    let context = reply["errors"][0]["context"].as_str().unwrap();
    assert!(context.len() <= (2 << 10) + '…'.len_utf8() && context.ends_with('…'), "{}", context.len());
    assert!(context.starts_with("PL/pgSQL function deep(integer) line 1 at RETURN"), "{context}");
}

#[test]
fn a_command_whose_statements_failed_on_the_way_does_not_end_as_one_that_succeeded() {
    let home = Home::fresh();
    let Session { stdio, id } = Session::start(&home);
    assert!(stdio.finish().success());
    let run =
        |sql: &str, more: &[&str]| home.run(&[&["run-sql", "--database-id", id.as_str(), "--sql", sql], more].concat());
    let go_on = "--continue-on-error";
    for format in ["--format=text", "--format=json"] {
        assert_eq!(run("select 1; select 2", &[go_on, format]).status.code(), Some(0));
        assert_eq!(run("select 1; select nope; select 2", &[go_on, format]).status.code(), Some(3));
        assert_eq!(run("select 1; select nope; select 2", &[format]).status.code(), Some(1));
    }
    // Each is named with its place, and what the server quotes is not on standard error.
    let sql = "select 1;\nselect 'ü', nope;\ndo $$ begin perform 'hunter2'::int; end $$";
    let (out, errors) = written(&run(sql, &[go_on, "--format=text"]));
    assert!(out.contains("column \"nope\" does not exist"), "{out}");
    assert!(out.contains("context: PL/pgSQL function inline_code_block line 1 at PERFORM"), "{out}");
    let place = "error: statement 2 failed on line 2, at its character 13, SQLSTATE 42703 [undefined_column]";
    assert!(errors.contains(place), "{errors}");
    assert!(errors.contains("error: statement 3 failed on line 3, SQLSTATE 22P02 [sql_failed]"), "{errors}");
    assert!(!errors.contains("hunter2") && !errors.contains("inline_code_block"), "{errors}");
}
