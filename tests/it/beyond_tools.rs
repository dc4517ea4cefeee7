//! MCP beyond tools: prompts, resources, completion and tasks pass the same gate, and show nobody another's things.

use serde_json::{Value, json};

use crate::hostile::code;
use crate::obligations::{home_with_policy_file, write_policies_but};
use crate::program::{Home, Stdio, Transport};

/// Where the envelope of a failure is.
fn refusal(answer: &Value) -> (i64, &str) {
    (answer["error"]["code"].as_i64().unwrap_or_default(), code(&answer["error"]["data"]))
}

fn made(stdio: &mut Stdio) -> String {
    let created = stdio.call("create_database", &json!({"nameHint": "beyond"}));
    assert_eq!(code(&created), "ok", "{created:#}");
    created["result"]["databaseId"].as_str().unwrap().to_owned()
}

fn uris(stdio: &mut Stdio) -> Vec<String> {
    let listed = stdio.request("resources/list", json!({}));
    let resources = listed["result"]["resources"].as_array().unwrap_or_else(|| panic!("{listed:#}"));
    resources.iter().map(|resource| resource["uri"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_call_that_has_no_news_is_said_to_go_on() {
    let home = Home::with_cluster();
    let variables = [("PGSANDBOX_TEST_INTERVAL_MS", "100")];
    let mut stdio = Stdio::start_with(&home, &variables, std::process::Stdio::inherit());
    let id = made(&mut stdio);
    let arguments = json!({"databaseId": id, "sql": "select pg_sleep(250)", "timeoutSeconds": 300});
    let params = json!({"name": "run_sql", "arguments": arguments, "_meta": {"progressToken": 7}});
    let call = stdio.begin("tools/call", params);
    let mut next = || {
        let told = stdio.message(std::time::Duration::from_secs(30)).expect("it is said to go on");
        assert_eq!((&told["method"], &told["params"]["progressToken"]), (&json!("notifications/progress"), &json!(7)));
        told["params"]["progress"].as_f64().unwrap()
    };
    let told: Vec<f64> = (0..3).map(|_| next()).collect();
    assert!(told.is_sorted_by(|one, next| one < next), "{told:?}");
    stdio.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": call}}));
    assert!(stdio.finish().success());
}

#[test]
fn prompts_are_listed_and_filled() {
    let home = Home::fresh();
    let mut stdio = Stdio::start(&home);
    let listed = stdio.request("prompts/list", json!({}));
    let prompts = listed["result"]["prompts"].as_array().unwrap();
    assert!(prompts.iter().any(|prompt| prompt["name"] == "verify_roles"), "{listed:#}");
    let migration = prompts.iter().find(|prompt| prompt["name"] == "migrate_and_verify").unwrap();
    assert_eq!(migration["arguments"][0]["required"], true, "{migration:#}");
    assert_eq!(migration["arguments"][1]["required"], false, "{migration:#}");
    let get = |arguments: Value| json!({"name": "verify_roles", "arguments": arguments});
    let filled = stdio.request("prompts/get", get(json!({"databaseId": "a\"b"})));
    let text = filled["result"]["messages"][0]["content"]["text"].as_str().unwrap();
    assert!(text.contains(r#"verify_sandbox {"databaseId": "a\"b"}"#), "{text}");
    for wrong in [
        get(json!({})),
        get(json!({"databaseId": "x", "more": "y"})),
        get(json!({"databaseId": 5})),
        json!({"name": "nonsense"}),
    ] {
        let refused = stdio.request("prompts/get", wrong.clone());
        assert_eq!(refusal(&refused), (-32602, "invalid_arguments"), "{wrong}: {refused:#}");
    }
    for (method, params) in [
        ("prompts/get", json!({"name": 5})),
        ("resources/read", json!({})),
        ("completion/complete", json!({"ref": "x"})),
    ] {
        let refused = stdio.request(method, params);
        assert_eq!(refused["error"]["code"], -32602, "{method}: {refused:#}");
        assert!(refused["error"]["message"].as_str().unwrap().starts_with("`params` takes "), "{refused:#}");
    }
    assert!(stdio.finish().success());
}

#[test]
fn a_strange_cursor_is_refused_by_every_list() {
    let home = Home::fresh();
    let mut stdio = Stdio::start(&home);
    for list in ["tools/list", "prompts/list", "resources/list", "resources/templates/list"] {
        for cursor in ["", "x", "OTk5", "MDp4"] {
            let refused = stdio.request(list, json!({"cursor": cursor}));
            assert_eq!(refused["error"]["code"], -32602, "{list} {cursor}: {refused:#}");
        }
        let whole = stdio.request(list, json!({}));
        assert!(whole["result"].get("nextCursor").is_none(), "{list}: {whole:#}");
    }
    assert!(stdio.finish().success());
}

#[test]
fn looking_at_resources_starts_nothing() {
    let home = Home::fresh();
    let mut stdio = Stdio::start(&home);
    assert_eq!(uris(&mut stdio), ["pgsandbox://profiles/local"]);
    let read = stdio.request("resources/read", json!({"uri": "pgsandbox://profiles/local"}));
    let text = read["result"]["contents"][0]["text"].as_str().unwrap();
    let told: Value = serde_json::from_str(text).unwrap();
    assert_eq!((&told["name"], &told["maxTtlMinutes"]), (&json!("local"), &json!(1440)), "{told:#}");
    let templates = stdio.request("resources/templates/list", json!({}));
    assert_eq!(templates["result"]["resourceTemplates"].as_array().unwrap().len(), 5, "{templates:#}");
    let of = |template: &str, name: &str, value: &str| json!({"ref": {"type": "ref/resource", "uri": template}, "argument": {"name": name, "value": value}});
    let completed = stdio.request("completion/complete", of("pgsandbox://profiles/{profile}", "profile", "lo"));
    assert_eq!(completed["result"]["completion"]["values"], json!(["local"]), "{completed:#}");
    let completed = stdio.request("completion/complete", of("pgsandbox://sandboxes/{databaseId}", "databaseId", ""));
    assert_eq!(completed["result"]["completion"]["values"], json!([]), "{completed:#}");
    for (template, name) in [("pgsandbox://x/{y}", "y"), ("pgsandbox://profiles/{profile}", "databaseId")] {
        let refused = stdio.request("completion/complete", of(template, name, ""));
        assert_eq!(refusal(&refused).0, -32602, "{refused:#}");
    }
    for strange in ["pgsandbox://profiles/nowhere", "file:///etc/passwd", "pgsandbox://sandboxes/../x"] {
        let refused = stdio.request("resources/read", json!({"uri": strange}));
        assert_eq!(refusal(&refused).0, -32002, "{strange}: {refused:#}");
    }
    assert!(!home.state().join("postgres").exists(), "a cluster was made for a look");
    assert!(stdio.finish().success());
}

#[test]
fn nobody_is_shown_anothers_sandbox() {
    let home = Home::with_cluster();
    let mut ann = Stdio::start_with(&home, &[("PGSANDBOX_OWNER", "ann")], std::process::Stdio::inherit());
    let mut bob = Stdio::start_with(&home, &[("PGSANDBOX_OWNER", "bob")], std::process::Stdio::inherit());
    let id = made(&mut ann);
    let uri = format!("pgsandbox://sandboxes/{id}");
    assert_eq!(uris(&mut ann), ["pgsandbox://profiles/local".to_owned(), uri.clone()]);
    assert_eq!(uris(&mut bob), ["pgsandbox://profiles/local"]);
    let read = ann.request("resources/read", json!({"uri": uri}));
    let text = read["result"]["contents"][0]["text"].as_str().unwrap_or_else(|| panic!("{read:#}"));
    assert!(text.contains(&id) && text.contains("\"state\": \"ready\""), "{text}");
    assert!(!text.contains("postgresql://") && !text.to_lowercase().contains("password"), "{text}");
    let hidden = bob.request("resources/read", json!({"uri": uri}));
    let absent =
        bob.request("resources/read", json!({"uri": "pgsandbox://sandboxes/11111111-2222-4333-8444-555555555555"}));
    assert_eq!(refusal(&hidden), (-32002, "database_not_found"), "{hidden:#}");
    assert_eq!(hidden["error"]["message"], absent["error"]["message"]);
    let of = json!({"ref": {"type": "ref/prompt", "name": "verify_roles"}, "argument": {"name": "databaseId", "value": &id[..4]}});
    let values = |answer: Value| answer["result"]["completion"]["values"].clone();
    assert_eq!(values(ann.request("completion/complete", of.clone())), json!([id]));
    assert_eq!(values(bob.request("completion/complete", of)), json!([]));
    assert!(bob.finish().success());
    ann.call("delete_database", &json!({"databaseId": id, "wait": true}));
    assert!(ann.finish().success());
}

#[test]
fn every_method_is_decided_and_audited_and_none_is_a_tool() {
    let home = home_with_policy_file();
    let asked = [
        ("prompts/list", json!({}), "list_prompts"),
        ("prompts/get", json!({"name": "verify_roles", "arguments": {"databaseId": "x"}}), "get_prompt"),
        ("resources/list", json!({}), "list_resources"),
        ("resources/templates/list", json!({}), "list_resource_templates"),
        ("resources/read", json!({"uri": "pgsandbox://profiles/local"}), "read_resource"),
        (
            "completion/complete",
            json!({"ref": {"type": "ref/prompt", "name": "verify_roles"}, "argument": {"name": "databaseId", "value": ""}}),
            "complete",
        ),
        ("tasks/get", json!({"taskId": "x"}), "get_task"),
        ("tasks/cancel", json!({"taskId": "x"}), "cancel_task"),
    ];
    let mut stdio = with_tasks(&home);
    for (method, params, operation) in &asked {
        let answer = stdio.request(method, params.clone());
        let expected = if method.starts_with("tasks/") { (-32602, "invalid_arguments") } else { (0, "ok") };
        let seen = if answer.get("error").is_some() { refusal(&answer) } else { (0, "ok") };
        assert_eq!(seen, expected, "{method}: {answer:#}");
        // The name is no tool's.
        let called = stdio.call(operation, &json!({}));
        assert_eq!(code(&called), "unknown_operation", "{called:#}");
    }
    assert!(stdio.finish().success());
    let said = home.run(&["audit", "tail", "-n", "1000"]);
    let said = String::from_utf8(said.stdout).unwrap();
    for (_, _, operation) in &asked {
        let lines = said.lines().filter(|line| line.contains(&format!("\"{operation}\""))).count();
        assert!(lines >= 2, "{operation} is in {lines} lines");
        let shown = home.run(&["tool", operation, "--input", "{}", "--format", "json"]);
        let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
        assert_eq!(code(&shown), "unknown_operation", "{shown:#}");
        let command = operation.replace('_', "-");
        assert_eq!(home.run(&[&command]).status.code(), Some(2), "{command}");
    }
    // Where no policy answers for it, it is not done.
    write_policies_but(&home, "ownership", &[]);
    let mut stdio = with_tasks(&home);
    for (method, params, _) in &asked {
        let refused = stdio.request(method, params.clone());
        assert_eq!(refusal(&refused), (-32000, "uncovered"), "{method}: {refused:#}");
    }
    assert!(stdio.finish().success());
}

/// A client that knows what to do with a task.
fn with_tasks(home: &Home) -> Stdio {
    let mut stdio = Stdio::start_without_handshake(home);
    let capabilities = json!({"extensions": {"io.modelcontextprotocol/tasks": {}}});
    let client = json!({"name": "it", "version": "1"});
    let hello = json!({"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": client});
    let answer = stdio.request("initialize", hello);
    assert!(
        answer["result"]["capabilities"]["extensions"].get("io.modelcontextprotocol/tasks").is_some(),
        "{answer:#}"
    );
    stdio.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    stdio
}

fn sleeps(id: &str, seconds: u32) -> Value {
    json!({"name": "run_sql", "arguments": {"databaseId": id, "sql": format!("select pg_sleep({seconds}), 'slept' as word"), "timeoutSeconds": 60}})
}

/// Asks after a task until it does not work any more.
fn ended(stdio: &mut Stdio, task: &str) -> Value {
    loop {
        let answer = stdio.request("tasks/get", json!({"taskId": task}));
        assert!(answer.get("error").is_none(), "{answer:#}");
        if answer["result"]["status"] != "working" {
            return answer["result"].clone();
        }
    }
}

#[test]
fn a_long_call_becomes_a_task_for_a_client_that_knows_them() {
    let home = Home::with_cluster();
    let mut stdio = with_tasks(&home);
    // The first call makes a cluster, which may itself become one.
    let mut answer = stdio.request("tools/call", json!({"name": "create_database", "arguments": {}}));
    if answer["result"]["resultType"] == "task" {
        let task = answer["result"]["taskId"].as_str().unwrap().to_owned();
        answer = ended(&mut stdio, &task);
    }
    let created = &answer["result"]["structuredContent"]["result"];
    let id = created["databaseId"].as_str().unwrap_or_else(|| panic!("{answer:#}")).to_owned();
    let short = stdio.call("run_sql", &json!({"databaseId": id, "sql": "select 1"}));
    assert_eq!(code(&short), "ok", "a short call is answered at once");
    let long = stdio.request("tools/call", sleeps(&id, 4));
    assert_eq!(
        (&long["result"]["resultType"], &long["result"]["status"]),
        (&json!("task"), &json!("working")),
        "{long:#}"
    );
    let task = long["result"]["taskId"].as_str().unwrap().to_owned();
    let done = ended(&mut stdio, &task);
    assert_eq!(done["status"], "completed", "{done:#}");
    assert_eq!(done["result"]["structuredContent"]["result"]["resultSets"][0]["rows"][0][1], "slept", "{done:#}");
    // What is cancelled stops at the server.
    let long = stdio.request("tools/call", sleeps(&id, 50));
    let task = long["result"]["taskId"].as_str().unwrap().to_owned();
    let told = stdio.request("tasks/cancel", json!({"taskId": task}));
    assert!(told.get("error").is_none(), "{told:#}");
    let done = ended(&mut stdio, &task);
    assert_eq!((&done["status"], done.get("result")), (&json!("cancelled"), None), "{done:#}");
    // On another connection of the same owner it is not there.
    let mut other = with_tasks(&home);
    for method in ["tasks/get", "tasks/cancel"] {
        let refused = other.request(method, json!({"taskId": task}));
        assert_eq!(refusal(&refused), (-32602, "invalid_arguments"), "{refused:#}");
    }
    assert!(other.finish().success());
    let gone = stdio.call("delete_database", &json!({"databaseId": id}));
    assert_eq!(code(&gone), "ok", "{gone:#}");
    assert!(stdio.finish().success());
}

#[test]
fn a_client_that_knows_no_tasks_is_given_none() {
    let home = Home::with_cluster();
    let mut stdio = Stdio::start(&home);
    let id = made(&mut stdio);
    let slept = stdio.call("run_sql", &json!({"databaseId": id, "sql": "select pg_sleep(3), 'slept'"}));
    assert_eq!(slept["result"]["resultSets"][0]["rows"][0][1], "slept", "{slept:#}");
    let refused = stdio.request("tasks/get", json!({"taskId": "x"}));
    assert_eq!(refused["error"]["code"], -32021, "{refused:#}");
    assert!(stdio.finish().success());
}

#[test]
fn digests_snapshots_and_templates_are_listed_read_and_completed_for_whose_they_are() {
    let home = Home::with_cluster();
    let mut ann = Stdio::start_with(&home, &[("PGSANDBOX_OWNER", "ann")], std::process::Stdio::inherit());
    let mut bob = Stdio::start_with(&home, &[("PGSANDBOX_OWNER", "bob")], std::process::Stdio::inherit());
    let id = made(&mut ann);
    let done = |stdio: &mut Stdio, operation: &str, input: Value| {
        let reply = stdio.call(operation, &input);
        assert_eq!(reply["ok"], true, "{operation}: {reply:#}");
        reply["result"].clone()
    };
    let digest = done(&mut ann, "schema_digest", json!({"databaseId": id}));
    let handle = digest["handle"].as_str().unwrap().to_owned();
    done(&mut ann, "create_schema_snapshot", json!({"databaseId": id, "snapshotName": "before", "notes": "as it was"}));
    done(&mut ann, "create_template_from_sandbox", json!({"databaseId": id, "templateName": "base"}));
    done(&mut ann, "export_template", json!({"templateName": "base"}));
    let kept = [
        ("digests", "handle", handle.as_str(), digest["checksum"].as_str().unwrap()),
        ("snapshots", "snapshotName", "before", "as it was"),
        ("templates", "templateName", "base", "\"exportedName\": \"base\""),
    ];
    let (seen, others) = (uris(&mut ann), uris(&mut bob));
    for (path, variable, name, holds) in kept {
        let uri = format!("pgsandbox://{path}/{name}");
        assert_eq!((seen.contains(&uri), others.contains(&uri)), (true, false), "{uri}");
        let read = ann.request("resources/read", json!({"uri": uri}));
        let text = read["result"]["contents"][0]["text"].as_str().unwrap_or_else(|| panic!("{read:#}"));
        assert!(text.contains(holds) && text.contains(&id) && !text.to_lowercase().contains("password"), "{text}");
        let hidden = bob.request("resources/read", json!({"uri": uri}));
        let absent = bob.request("resources/read", json!({"uri": format!("pgsandbox://{path}/none")}));
        assert_eq!(refusal(&hidden).0, -32002, "{hidden:#}");
        assert_eq!(refusal(&hidden), refusal(&absent));
        let of = json!({"ref": {"type": "ref/resource", "uri": format!("pgsandbox://{path}/{{{variable}}}")},
            "argument": {"name": variable, "value": &name[..2]}});
        let values = |answer: Value| answer["result"]["completion"]["values"].clone();
        assert_eq!(values(ann.request("completion/complete", of.clone())), json!([name]));
        assert_eq!(values(bob.request("completion/complete", of)), json!([]));
    }
    done(&mut ann, "delete_template", json!({"templateName": "base"}));
    assert!(uris(&mut ann).contains(&"pgsandbox://templates/base".to_owned()), "it is still exported");
    done(&mut ann, "delete_template", json!({"templateName": "base", "exported": true}));
    assert!(!uris(&mut ann).contains(&"pgsandbox://templates/base".to_owned()));
    done(&mut ann, "delete_database", json!({"databaseId": id, "wait": true}));
    assert!(ann.finish().success() && bob.finish().success());
}

#[test]
fn sources_are_completed_that_the_caller_may_clone_and_nothing_of_them_but_the_name() {
    let cluster = crate::harness::cluster();
    let url = crate::clones::reader_url(cluster, "nowhere");
    let named = |name| (name, url.clone(), json!({}));
    let setup = crate::clones::Setup::on(cluster, "pgcomplete", &[named("staging"), named("stable"), named("secret")])
        .under(r#"{ allow = [{ name = "sta*" }] }"#);
    let mut stdio = Stdio::start(&setup.home);
    let mut complete = |value: &str| {
        let of = json!({"ref": {"type": "ref/prompt", "name": "safe_clone"}, "argument": {"name": "source", "value": value}});
        let answer = stdio.request("completion/complete", of);
        assert!(!answer.to_string().contains("127.0.0.1") && !answer.to_string().contains("s3cret"), "{answer:#}");
        answer["result"]["completion"]["values"].clone()
    };
    assert_eq!(complete(""), json!(["staging", "stable"]));
    assert_eq!(complete("stag"), json!(["staging"]));
    assert_eq!(complete("se"), json!([]));
    assert_eq!(complete("postgresql://"), json!([]));
    assert!(stdio.finish().success());
}
