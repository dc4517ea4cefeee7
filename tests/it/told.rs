//! What a caller is told of what went wrong, and what nobody else is.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Output, Stdio as Pipe};

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
    let home = Home::with_cluster();
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
    assert!(log.contains("request refused") && !log.contains("hunter2") && !log.contains("inner_one"), "{log}");
    let audit = audited(&home);
    assert!(audit.len() > 1000 && !audit.contains("hunter2") && !audit.contains("inner_one(text)"), "{audit}");
}

#[test]
fn a_long_context_is_cut_where_it_is_told() {
    let home = Home::with_cluster();
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
    let home = Home::with_cluster();
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

#[test]
fn sql_that_cannot_be_read_is_refused_with_its_place() {
    let home = Home::with_cluster();
    let mut it = Session::start(&home);
    let mut check = |sql: &str, expected: Value| {
        let reply = it.sql(sql, json!({}));
        let error = &reply["errors"][0];
        let seen = json!([error["statementIndex"], error["position"], error["line"], error["sqlstate"], error["code"]]);
        assert_eq!(seen, expected, "{sql}: {reply:#}");
        assert!(!reply.to_string().contains("hunter2"), "{reply:#}");
    };
    check("select 'hunter2", json!([1, 8, 1, "42601", "syntax_error"]));
    check("select 1;\n\n select 'ü', 'hunter2", json!([2, 13, 3, "42601", "syntax_error"]));
    check("select 1;\n\\connect hunter2", json!([2, 1, 2, "42601", "syntax_error"]));
    check("select 1 \n;;\nselect 123hunter2", json!([2, 8, 3, "42601", "syntax_error"]));
    check("copy t from stdin;\n1;2\n\\.\nselect \"\"", json!([2, 8, 4, "42601", "syntax_error"]));
    check(&format!("select 1; select 1 {}", "+".repeat(100)), json!([2, 10, 1, null, "sql_too_complex"]));
    // What Postgres cannot parse has the same.
    check("select 1;\nselec 'hunter2'", json!([2, 1, 2, "42601", "syntax_error"]));
}

#[test]
fn an_id_and_a_name_that_differ_are_told_apart_to_their_owner_alone() {
    let home = Home::with_cluster().with("PGSANDBOX_OWNER", "ana");
    let mut it = Session::start(&home);
    let other = it.stdio.call("create_database", &json!({"nameHint": "other"}))["result"].clone();
    let own_name = it.sql("select current_database()", json!({}))["result"]["resultSets"][0]["rows"][0][0].clone();
    let (id, name) = (it.id.clone(), other["databaseName"].as_str().unwrap().to_owned());
    let asked = |id: &str, name: &str| json!({"databaseId": id, "databaseName": name, "sql": "select 1"});
    let message = |reply: &Value| reply["errors"][0]["message"].as_str().unwrap().to_owned();
    let nobody = "00000000-0000-4000-8000-000000000000";
    for (reply, says) in [
        (
            it.stdio.call("run_sql", &asked(&id, &name)),
            format!("of this `databaseId` is named {own_name}").replace('"', "`"),
        ),
        (
            it.stdio.call("run_sql", &asked(&id, "nope")),
            format!("of this `databaseId` is named {own_name}").replace('"', "`"),
        ),
        (
            it.stdio.call("run_sql", &asked(nobody, &name)),
            format!("of this `databaseName` has the id `{}`", other["databaseId"].as_str().unwrap()),
        ),
        (it.stdio.call("run_sql", &asked(nobody, "nope")), "there is no such sandbox".to_owned()),
    ] {
        assert_eq!(code(&reply), "database_not_found", "{reply:#}");
        assert!(message(&reply).contains(&says), "{reply:#} instead of {says}");
    }
    // Another hears what he would hear of a sandbox that is not there.
    let mut stranger = Stdio::start_with(&home, &[("PGSANDBOX_OWNER", "bob")], Pipe::inherit());
    for (id, name) in [(id.as_str(), "nope"), (nobody, name.as_str()), (id.as_str(), name.as_str())] {
        let reply = stranger.call("run_sql", &asked(id, name));
        assert_eq!(
            (code(&reply), message(&reply).as_str()),
            ("database_not_found", "there is no such sandbox"),
            "{reply:#}"
        );
    }
}

#[test]
fn a_command_line_that_says_a_thing_twice_is_refused() {
    let home = Home::fresh();
    let check = |line: &[&str], says: &str| {
        let output = home.run(line);
        let (out, errors) = written(&output);
        assert_eq!(output.status.code(), Some(2), "{line:?}: {out}{errors}");
        assert!(errors.contains(says) && !errors.contains("hunter2"), "{line:?}: {errors}");
    };
    check(
        &["create-database", "--format=text", "--labels", "a=1", "--labels", "a=hunter2"],
        "--labels: a key is given twice",
    );
    check(
        &["create-database", "--format=text", "--labels", "a=1", "--labels", r#"{"a": "hunter2"}"#],
        "a key is given twice",
    );
    let input = r#"{"sql": "select 'hunter2'"}"#;
    check(
        &["run-sql", "--format=text", "--sql", "select 1", "--input", input],
        "`--sql` stands beside `--input`, which has `sql` as well",
    );
}

#[test]
fn an_audit_log_without_what_was_asked_for_says_so() {
    let home = Home::fresh();
    assert!(home.run(&["list-profiles"]).status.success());
    let tail = |more: &[&str]| home.run(&[&["audit", "tail"], more].concat());
    assert!(tail(&[]).status.success() && tail(&["--operation", "list_profiles"]).status.success());
    let id = "01a22b7e-5ae5-73a0-8857-0bcd336e4093";
    for (more, status, says) in [
        (&["--operation", "nope"][..], 1, "no entry has this `--operation`"),
        (&["--id", "bogus"], 2, "`--id` is no id of a request"),
        (&["--id", id], 1, "no entry has this `--id`"),
        (&["--id", id, "--operation", "list_profiles"], 1, "no entry has this `--id` and this `--operation`"),
        (&["-n", "0"], 2, "a whole number from 1 to 100000"),
    ] {
        let output = tail(more);
        let (out, errors) = written(&output);
        assert_eq!((output.status.code(), out.as_str()), (Some(status), ""), "{more:?}: {errors}");
        assert!(errors.contains(says), "{more:?}: {errors}");
        let json = tail(&[more, &["--format", "json"]].concat());
        assert_eq!(serde_json::from_slice::<Value>(&json.stdout).unwrap()["ok"], false, "{more:?}");
    }
}

#[test]
fn help_that_cannot_be_written_is_a_failure() {
    let home = Home::fresh();
    for line in [&["--help"][..], &["--version"], &["run-sql", "--help"]] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let output = home.command(line).stdout(full).stderr(Pipe::piped()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{line:?}");
        assert!(written(&output).1.contains("standard output cannot be written"), "{line:?}");
        assert!(home.run(line).status.success());
    }
}

/// Collects the keys of a line, `a.b[].c` for instance; a list of anything but objects is one.
fn keys(of: &Value, at: &str, found: &mut BTreeSet<String>) {
    match of {
        Value::Object(object) => {
            for (key, value) in object {
                keys(value, &if at.is_empty() { key.clone() } else { format!("{at}.{key}") }, found);
            }
        }
        Value::Array(items) if items.iter().any(Value::is_object) => {
            items.iter().for_each(|item| keys(item, &format!("{at}[]"), found));
        }
        _ => drop(found.insert(at.to_owned())),
    }
}

#[test]
fn the_page_on_the_audit_log_has_every_key_of_its_lines() {
    let home = Home::with_cluster();
    let mut it = Session::start(&home);
    let made = it.stdio.call(
        "create_database",
        &json!({"owner": "group", "labels": {"a": "b"}, "extensions": ["citext"], "ttlMinutes": 5}),
    );
    it.id = made["result"]["databaseId"].as_str().unwrap().to_owned();
    assert_eq!(code(&it.sql("create table t (n int); select count(*) from t", json!({"rowLimit": 5}))), "ok");
    assert_eq!(code(&it.sql("select 1/0", json!({"timeoutSeconds": 5}))), "sql_failed");
    assert_eq!(code(&it.sql("alter system set work_mem = '1GB'", json!({}))), "denied");
    let credentials = json!({"databaseId": it.id, "includeCredentials": true});
    it.stdio.call("get_connection_string", &credentials);
    it.stdio.call("nope", &json!({}));
    it.stdio.call("list_databases", &json!({}));
    assert!(it.stdio.finish().success());
    let mut found = BTreeSet::new();
    for line in audited(&home).lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        // The manifest's own lines are for the program.
        if matches!(line["kind"].as_str(), Some("segment" | "open" | "close")) {
            keys(&line, "", &mut found);
        }
    }
    assert!(found.len() > 50, "{found:#?}");
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference/audit.md")).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let told: BTreeSet<String> = rows.map(|(key, _)| key.to_owned()).collect();
    let missing: Vec<_> = found.difference(&told).collect();
    assert!(missing.is_empty(), "docs/reference/audit.md does not say what these are: {missing:?}");
}
