//! Where nothing is done: faults of arguments and configuration in the form that is asked for, and explanations.

use std::fs;
use std::io::Write;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::hostile::{Session, code};
use crate::program::{Cli, Home, Transport};

/// A command line, variables around it, and the status and code that it ends with.
type Case<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)], i32, &'a str);

#[test]
fn every_error_is_json_where_json_is_asked_for() {
    let home = Home::fresh();
    let file = home.path().join("config.json");
    fs::write(&file, r#"{"profiles": [{"name": "a", "managedLocal": true, "x": 1}, {"name": "b"}], "y": 2}"#).unwrap();
    let faulty = [("PGSANDBOX_CONFIG", file.to_str().unwrap())];
    let unreadable = [("PGSANDBOX_CONFIG", "/nowhere/config.json")];
    let misspelt = [("PGSANDBOX_LOG", "infoo")];
    let inside = home.path().join("not-ours");
    fs::create_dir(&inside).unwrap();
    fs::write(inside.join("x"), "").unwrap();
    let strange = [("PGSANDBOX_HOME", inside.to_str().unwrap())];
    let none: [(&str, &str); 0] = [];
    let cases: [Case<'_>; 15] = [
        (&["doctor"], &faulty, 2, "invalid_configuration"),
        (&["policy", "list"], &faulty, 2, "invalid_configuration"),
        (&["list-databases"], &unreadable, 2, "invalid_configuration"),
        (&["list-databases"], &misspelt, 2, "invalid_configuration"),
        (&["local", "status"], &strange, 2, "invalid_configuration"),
        (&["list-databases", "--nonsense"], &none, 2, "invalid_arguments"),
        (&["list-database"], &none, 2, "invalid_arguments"),
        (&["audit", "tail", "-n", "x"], &none, 2, "invalid_arguments"),
        (&["run-sql", "select 1"], &none, 2, "invalid_arguments"),
        (&["tool"], &none, 2, "invalid_arguments"),
        (&["run-sql", "--row-limit", "x"], &none, 2, "invalid_arguments"),
        (&["tool", "run_sql", "--input", "{"], &none, 2, "invalid_arguments"),
        (&["tool", "run_sql", "--input", "@/nowhere"], &none, 2, "invalid_arguments"),
        (&["tool", "nonsense"], &none, 1, "unknown_operation"),
        (&["quickstart"], &none, 2, "invalid_arguments"),
    ];
    for (words, variables, status, expected) in cases {
        for json in [&["--format", "json"][..], &["--format=json"]] {
            let all = [words, json].concat();
            let output = home.command(&all).envs(variables.iter().copied()).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            let reply: Value =
                serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{all:?}: {e}: {said}"));
            assert_eq!((reply["ok"].as_bool(), code(&reply)), (Some(false), expected), "{all:?}: {reply:#}");
            assert_eq!(output.status.code(), Some(status), "{all:?}: {reply:#}");
            assert_eq!(said, "", "{all:?}");
        }
        if words == ["quickstart"] {
            continue;
        }
        let output = home.command(words).arg("--format=text").envs(variables.iter().copied()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.starts_with("error: ") && output.stdout.is_empty(), "{words:?}: {said}");
        assert_eq!(output.status.code(), Some(status), "{words:?}: {said}");
    }
    let all = home.command(&["doctor", "--format=json"]).envs(faulty).output().unwrap();
    let reply: Value = serde_json::from_slice(&all.stdout).unwrap();
    assert!(reply["errors"].as_array().unwrap().len() >= 2, "each fault is one error: {reply:#}");
}

#[test]
fn a_fault_of_the_command_line_is_told_as_the_commands_other_errors_are() {
    let home = Home::fresh();
    let file = home.path().join("config.json");
    fs::write(&file, r#"{"profiles": []}"#).unwrap();
    let none: &[(&str, &str)] = &[];
    let faulty = &[("PGSANDBOX_CONFIG", file.to_str().unwrap())][..];
    // Standard output is no terminal here.
    for (words, variables, is_json) in [
        (&["create-database", "--ttl", "60"][..], none, true),
        (&["creat-database"], none, true),
        (&["cleanup", "--nonsense"], none, true),
        (&["tool", "run_sql", "--nonsense"], none, true),
        (&["list-databases"], faulty, true),
        (&["local", "sttus"], none, false),
        (&["local", "status"], faulty, false),
        (&["setup", "zed"], none, false),
        (&["mcp", "--nonsense", "--format=json"], none, false),
        (&["--nonsense"], none, false),
    ] {
        let output = home.command(words).envs(variables.iter().copied()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        let (told, quiet) = if is_json { (output.stdout, output.stderr) } else { (output.stderr, output.stdout) };
        let told = String::from_utf8_lossy(&told);
        assert!(quiet.is_empty() && told.starts_with(if is_json { "{" } else { "error: " }), "{words:?}: {told}");
    }
}

#[test]
fn sql_is_read_from_a_file_or_from_standard_input() {
    let home = Home::fresh();
    let file = home.path().join("dump.sql");
    fs::write(&file, "-- a dump\nselect 'é' as it").unwrap();
    let file = file.to_str().unwrap();
    let mut cli = Cli::new(&home);
    let made = cli.call("create_database", &json!({"ttlMinutes": 5}));
    let id = made["result"]["databaseId"].as_str().unwrap();
    let by = |words: &[&str], input: &str| {
        let all = [&["run-sql", "--database-id", id, "--format", "json"], words].concat();
        let mut child = home.command(&all).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // One that does not read it may be gone.
        drop(child.stdin.take().unwrap().write_all(input.as_bytes()));
        child.wait_with_output().unwrap()
    };
    for (words, input, it) in [
        (&["--file", file][..], "", "é"),
        (&["-f", file], "", "é"),
        (&["--file", "-"], "select 'ü' as it", "ü"),
        (&["--file", "-", "--input", r#"{"readonly": true}"#], "select 'ü' as it", "ü"),
    ] {
        let output = by(words, input);
        let reply: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(reply["result"]["resultSets"][0]["rows"][0][0], it, "{words:?}: {reply:#}");
    }
    for words in [
        &["--file", "/nowhere"][..],
        &["--file", file, "--sql", "select 1"],
        &["--file", file, "--input", r#"{"sql": "select 1"}"#],
        &["--file", "-", "--input", "-"],
    ] {
        let output = by(words, "{}");
        let reply: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((output.status.code(), code(&reply)), (Some(2), "invalid_arguments"), "{words:?}: {reply:#}");
    }
}

#[test]
fn an_explanation_starts_no_server_and_says_where_it_would_need_one() {
    let home = Home::fresh();
    let mut cli = Cli::new(&home);
    let runs = || home.run(&["local", "status"]).status.code();
    let explained = |operation: &str, arguments: Value| json!({"operation": operation, "arguments": arguments});
    let made = explained("create_database", json!({"extensions": ["citext"]}));
    // Of a server that was never made it is known that nothing is on it.
    let told = cli.call("explain_policy", &made);
    assert_eq!(told["result"]["allowed"], true, "{told:#}");
    assert!(told["warnings"].to_string().contains("is not there yet"), "{told:#}");
    let some = json!({"databaseId": "11111111-2222-4333-8444-555555555555", "sql": "select 1"});
    assert_eq!(code(&cli.call("explain_policy", &explained("run_sql", some.clone()))), "database_not_found");
    for listed in ["list_databases", "list_profiles", "cleanup_expired"] {
        let told = cli.call("explain_policy", &explained(listed, json!({})));
        assert_eq!(told["result"]["allowed"], true, "{listed}: {told:#}");
    }
    assert!(!home.state().join("postgres").exists(), "a cluster was made for an explanation");
    assert_eq!(code(&cli.call("list_databases", &json!({}))), "ok");
    assert_eq!(cli.call("explain_policy", &made)["warnings"], json!([]));
    // What is on one that was stopped cannot be known.
    assert!(home.run(&["local", "stop"]).status.success());
    for needing in [&made, &explained("run_sql", some)] {
        let told = cli.call("explain_policy", needing);
        assert_eq!(code(&told), "local_postgres_unavailable", "{told:#}");
        assert!(told["errors"][0]["hint"].as_str().unwrap().contains("`pgsandbox local start`"), "{told:#}");
    }
    assert_eq!(cli.call("explain_policy", &explained("list_databases", json!({})))["result"]["allowed"], true);
    assert_eq!(runs(), Some(3), "it was started for an explanation");
}

#[test]
fn in_text_what_the_server_quotes_of_a_statement_is_on_standard_output_alone() {
    let home = Home::fresh();
    let Session { stdio, id } = Session::start(&home);
    assert!(stdio.finish().success());
    let sql = "select 'hunter2'::int";
    let output = home.run(&["run-sql", "--database-id", &id, "--sql", sql, "--format", "text"]);
    let (out, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(out.contains("hunter2"), "the caller is told: {out}");
    assert!(
        errors.contains("error: statement 1 failed on line 1, at its character 8, SQLSTATE 22P02")
            && !errors.contains("hunter2"),
        "{errors}"
    );
    assert_eq!(output.status.code(), Some(1));
    // Also where the call goes on, and what the server says without failing.
    let sql = "do $$ begin raise notice 'hunter2'; end $$; select nope; select 3";
    let asked = ["run-sql", "--database-id", &id, "--sql", sql, "--continue-on-error", "--format", "text"];
    let output = home.run(&asked);
    let (out, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(out.contains("NOTICE: hunter2") && out.contains("column \"nope\" does not exist"), "{out}");
    assert!(
        errors.contains("error: statement 2 failed on line 1, at its character 8, SQLSTATE 42703 [undefined_column]"),
        "{errors}"
    );
    assert!(!errors.contains("hunter2"), "{errors}");
}

#[test]
fn in_text_a_refusal_names_the_policy_that_refused() {
    let home = Home::fresh();
    let Session { stdio, id } = Session::start(&home);
    assert!(stdio.finish().success());
    let output = home.run(&["run-sql", "--database-id", &id, "--sql", "create role r", "--format", "text"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("[denied]") && errors.contains("\npolicy: statement-guard\n"), "{errors}");
}

#[test]
fn a_json_array_that_is_no_postgres_array_is_told_how_to_be_one() {
    let home = Home::fresh();
    let Session { mut stdio, id } = Session::start(&home);
    let mut hint = |sql: &str, params: Value| {
        let reply = stdio.call("run_sql", &json!({"databaseId": id, "sql": sql, "params": params}));
        reply["errors"][0]["hint"].as_str().unwrap_or_default().to_owned()
    };
    assert!(hint("select $1::text[]", json!([["x", "y"]])).contains("`\"{x,y}\"`"));
    assert!(!hint("select $1::int", json!(["x"])).contains("array"), "no array was given");
    assert_eq!(hint("select $1::text[]", json!(["{x,y}"])), "");
    assert_eq!(hint("select array(select jsonb_array_elements_text($1::jsonb))", json!([["x", "y"]])), "");
}

#[test]
fn a_state_directory_behind_a_link_that_leads_nowhere_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let link = place.path().join("link");
    std::os::unix::fs::symlink(place.path().join("nowhere"), &link).unwrap();
    for home in [link.join("home"), link.join("a/b"), "/proc/no-such-thing".into()] {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_pgsandbox"))
            .args(["list-profiles", "--format", "json"])
            .env("PGSANDBOX_HOME", &home)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(said["ok"], false, "{said}");
    }
}
