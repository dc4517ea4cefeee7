//! A caller reaches for what is another owner's, and past the protocol.

use serde_json::{Value, json};

use super::room::{Outcome, Room, outcome_of};
use crate::program::Transport;

const OTHER: &str = "other owner";
const MCP: &str = "MCP";
/// A sandbox that there is not: what is told of another owner's must not differ from what is told of this.
const NOBODYS: &str = "00000000-0000-4000-8000-000000000000";

/// Every way to name another owner's sandbox.
fn selectors(room: &Room<'_>) -> Vec<(&'static str, Value)> {
    let (id, name) = (&room.theirs.id, &room.theirs.database);
    let short = id.replace('-', "");
    vec![
        ("by id", json!({"databaseId": id})),
        ("by name", json!({"databaseName": name})),
        ("by id and name", json!({"databaseId": id, "databaseName": name})),
        ("by id in a profile", json!({"databaseId": id, "profile": "shared"})),
        ("by its id and one's own name", json!({"databaseId": id, "databaseName": room.mine.database})),
        ("by one's own id and its name", json!({"databaseId": room.mine.id, "databaseName": name})),
        ("by id in capitals", json!({"databaseId": id.to_uppercase()})),
        ("by id without dashes", json!({"databaseId": short})),
        ("by id in braces", json!({"databaseId": format!("{{{id}}}")})),
        ("by id as a URN", json!({"databaseId": format!("urn:uuid:{id}")})),
        ("by id between blanks", json!({"databaseId": format!(" {id} ")})),
        ("by a pattern", json!({"databaseName": "pgsandbox_victor%"})),
        ("by name in quotes", json!({"databaseName": format!("\"{name}\"")})),
        ("by a name that is SQL", json!({"databaseName": format!("x' OR database_name = '{name}")})),
        ("by name in capitals", json!({"databaseName": name.to_uppercase()})),
    ]
}

/// Every operation that takes a sandbox.
fn operations() -> Vec<(&'static str, &'static str, Value)> {
    vec![
        ("get_connection_string", "the connection", json!({})),
        ("get_connection_string", "the owner's password", json!({"includeCredentials": true})),
        ("get_connection_string", "the reader's password", json!({"includeCredentials": true, "access": "readonly"})),
        ("run_sql", "a read", json!({"sql": "SELECT * FROM secrets", "readonly": true})),
        ("run_sql", "a write", json!({"sql": "DELETE FROM secrets"})),
        ("extend_database", "more time", json!({"ttlMinutes": 600})),
        ("extend_database", "less time", json!({"ttlMinutes": 1})),
        ("fork_database", "a copy", json!({})),
        ("create_template_from_sandbox", "a copy that is kept", json!({"templateName": "loot"})),
        ("reset_database", "its emptiness", json!({})),
        ("delete_database", "the end", json!({})),
        ("delete_database", "the end, waited for", json!({"wait": true})),
        ("verify_sandbox", "the checks", json!({})),
        ("list_extensions", "its extensions", json!({})),
        ("describe_schema", "its schema", json!({})),
        ("schema_digest", "its schema's digest", json!({})),
        ("schema_diff", "its schema's difference", json!({"snapshotName": "any"})),
        ("create_schema_snapshot", "a snapshot of it", json!({"snapshotName": "any"})),
        ("diff_schema_snapshot", "its difference from a snapshot", json!({"snapshotName": "any"})),
    ]
}

fn with(mut input: Value, more: &Value) -> Value {
    input.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    input
}

/// Calls, and tells of an answer that another owner's sandbox was in where nobody's would not have been.
fn call(room: &mut Room<'_>, category: &str, title: &str, operation: &str, input: &Value) {
    let theirs = room.theirs.clone();
    let said = input.to_string();
    room.attempt(category, title, |room| {
        let reply = room.attacker.call(operation, input);
        let (outcome, told) = outcome_of(&reply);
        // What the caller has said itself is no secret to it.
        let mut told = if said.contains(super::room::CANARY) { told.replace(super::room::CANARY, "") } else { told };
        for secret in [&theirs.id, &theirs.database, &theirs.owner.1, &theirs.reader.1] {
            if told.contains(secret.as_str()) && !said.contains(secret.as_str()) {
                told.push_str(super::room::CANARY);
            }
        }
        (outcome, told)
    });
}

/// Another owner's sandbox, in every operation that takes one.
pub(super) fn other_owners_sandboxes(room: &mut Room<'_>) {
    for (operation, what, more) in operations() {
        for (how, selector) in selectors(room) {
            let input = with(selector.clone(), &more);
            let title = format!("{operation}: {what}, {how}");
            call(room, OTHER, &title, operation, &input);
        }
        // The same words as for a sandbox that there is not.
        room.attempt(OTHER, &format!("{operation}: {what}, told from nobody's"), |room| {
            let mut ask = |id: &str| {
                let reply = room.attacker.call(operation, &with(json!({"databaseId": id}), &more));
                let error = &reply["errors"][0];
                (error["code"].clone(), error["message"].to_string().replace(id, ""), error["hint"].clone())
            };
            let (theirs, nobodys) = (ask(&room.theirs.id), ask(NOBODYS));
            let told = if theirs == nobodys { String::new() } else { format!("{}: {theirs:?}", super::room::CANARY) };
            (Outcome::Before, told)
        });
    }
    let explained = json!({"operation": "run_sql", "arguments": {"databaseId": room.theirs.id, "sql": "SELECT 1"}});
    call(room, OTHER, "explain_policy of a call on another's sandbox", "explain_policy", &explained);
}

/// Lists and cleanups that reach for others', owner names with tricks, and keys of others.
pub(super) fn other_owners_names(room: &mut Room<'_>) {
    let note = json!({"note": format!("{} in a label", super::room::CANARY)});
    let lists = [
        ("of another owner", json!({"owner": "victor"})),
        ("of every owner", json!({"owner": "*"})),
        ("of an owner that is a pattern", json!({"owner": "%"})),
        ("of an owner that is SQL", json!({"owner": "' OR true --"})),
        ("of no owner", json!({"owner": ""})),
        ("of another's label", json!({"labels": note})),
        ("of a label that is SQL", json!({"labels": {"a' OR true --": "b"}})),
        ("of all versions, expired ones too", json!({"includeExpired": true, "includeAllVersions": true})),
        ("from a page that begins before everything", json!({"cursor": "MDAwMDAwMDA"})),
        ("from a page that is another's id", json!({"cursor": room.theirs.id})),
        ("in a profile that is SQL", json!({"profile": "x' OR true --"})),
    ];
    for (what, input) in lists {
        call(room, OTHER, &format!("list_databases {what}"), "list_databases", &input);
        let mut input = input;
        input.as_object_mut().unwrap().remove("cursor");
        input.as_object_mut().unwrap().remove("includeExpired");
        call(room, OTHER, &format!("cleanup_expired {what}"), "cleanup_expired", &input);
    }
    let key = json!({"nameHint": "keyed", "idempotencyKey": "the key of victor"});
    let theirs = room.victim.call("create_database", &key);
    assert_eq!(theirs["ok"], true, "{theirs:#}");
    room.accept();
    let id = theirs["result"]["databaseId"].as_str().unwrap().to_owned();
    let owners =
        ["victor", "victor/task", "../victor", " victor", "VICTOR", "victor\u{200b}", "*", "root", "mallory/../victor"];
    let mut creates: Vec<(String, Value)> =
        owners.iter().map(|owner| (format!("as {owner:?}"), json!({"owner": owner}))).collect();
    creates.push(("with the key of another".into(), key.clone()));
    creates.push(("with the key of another, as another".into(), with(key, &json!({"owner": "victor"}))));
    creates.push(("named as another's".into(), json!({"nameHint": room.theirs.database})));
    creates.push(("named as SQL".into(), json!({"nameHint": "\"; DROP DATABASE operator; --"})));
    creates
        .push(("with extensions that are SQL".into(), json!({"extensions": ["hstore\"; DROP DATABASE operator; --"]})));
    creates.push(("with an extension that leads out".into(), json!({"extensions": ["dblink"]})));
    for (how, input) in creates {
        // What is made is the attacker's own, and removed again before the state is compared.
        let victim = [room.theirs.id.clone(), id.clone()];
        room.attempt(OTHER, &format!("create_database {how}"), |room| {
            let reply = room.attacker.call("create_database", &input);
            let (outcome, mut told) = outcome_of(&reply);
            if let Some(made) = reply["result"]["databaseId"].as_str() {
                if victim.iter().any(|theirs| theirs == made) {
                    told.push_str(super::room::CANARY);
                } else {
                    let gone = room.attacker.call("delete_database", &json!({"databaseId": made, "wait": true}));
                    assert_eq!(gone["result"]["deleted"], true, "{gone:#}");
                }
                room.accept_rows_of_the_attacker();
            }
            (outcome, told)
        });
    }
    let listed = room.victim.call("list_databases", &json!({}));
    let count = listed["result"]["databases"].as_array().unwrap().len();
    assert_eq!(count, 2, "the victim's own list: {listed:#}");
}

/// What else than the offered tools could be called, and what could be said of who calls.
pub(super) fn frames(room: &mut Room<'_>) {
    for name in [
        "local_stop",
        "local stop",
        "keys_rotate",
        "keys rotate",
        "exported",
        "exported add",
        "audit_tail",
        "audit",
        "policy_reload",
        "policy",
        "cleanup",
        "approve",
        "clone_database",
        "run_repo_command",
        "seed_database",
        "migrate",
        "../run_sql",
        "run_sql\0",
        "RUN_SQL",
        "run-sql",
        "tool",
        "",
        "__proto__",
        "constructor",
        "run_sql;delete_database",
    ] {
        let input = json!({"databaseId": room.theirs.id, "sql": "SELECT * FROM secrets"});
        call(room, MCP, &format!("a tool called {name:?}"), name, &input);
    }
    let (mine, theirs) = (room.mine.id.clone(), room.theirs.id.clone());
    let read = json!({"databaseId": theirs, "sql": "SELECT * FROM secrets", "readonly": true});
    let requests = [
        ("resources/read", json!({"uri": "file:///etc/passwd"})),
        ("resources/read", json!({"uri": format!("pgsandbox://{theirs}")})),
        ("resources/list", json!({})),
        ("resources/subscribe", json!({"uri": "file:///"})),
        ("prompts/get", json!({"name": "x"})),
        (
            "completion/complete",
            json!({"ref": {"type": "ref/prompt", "name": "x"}, "argument": {"name": "a", "value": "victor"}}),
        ),
        ("logging/setLevel", json!({"level": "debug"})),
        ("sampling/createMessage", json!({"messages": [], "maxTokens": 1})),
        ("roots/list", json!({})),
        ("elicitation/create", json!({"message": "x", "requestedSchema": {}})),
        ("tasks/list", json!({})),
        ("tasks/result", json!({"taskId": theirs})),
        (
            "initialize",
            json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "victor", "version": "1"}}),
        ),
        (
            "tools/call",
            json!({"name": "run_sql", "arguments": read, "_meta": {"owner": "victor", "principal": "victor"}}),
        ),
        (
            "tools/call",
            json!({"name": "run_sql", "arguments": read, "owner": "victor", "principal": {"subject": "victor"}}),
        ),
        ("tools/call", json!({"name": "run_sql", "arguments": with(read.clone(), &json!({"owner": "victor"}))})),
        (
            "tools/call",
            json!({"name": "run_sql", "arguments": with(read.clone(), &json!({"__proto__": {"owner": "victor"}}))}),
        ),
        ("tools/call", json!({"name": "run_sql", "arguments": read.to_string()})),
        ("tools/call", json!({"name": ["run_sql"], "arguments": read})),
        ("tools/call", json!({"name": "run_sql", "arguments": with(read.clone(), &json!({"databaseId": [theirs]}))})),
        ("tools/call", json!({"name": "run_sql", "arguments": with(read.clone(), &json!({"readonly": "false"}))})),
        (
            "tools/call",
            json!({"name": "explain_policy", "arguments": {"operation": "run_sql", "arguments": read, "execute": true}}),
        ),
        ("tools/call", json!({"name": "list_databases", "arguments": {}, "_meta": {"pgsandbox.owner": "victor"}})),
        ("tools/call", json!({"name": "list_databases", "arguments": {"owner": "mallory"}, "task": {"ttl": 60000}})),
        ("server/discover", json!({"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}})),
        ("$/cancelRequest", json!({"id": 0})),
        ("rpc.discover", json!({})),
    ];
    for (number, (method, params)) in requests.into_iter().enumerate() {
        room.attempt(MCP, &format!("{method}, {number}"), |room| {
            let answer = room.attacker.request(method, params);
            let outcome = match answer.get("result") {
                Some(result) if result["isError"] != true => Outcome::Ran,
                _ => Outcome::Before,
            };
            (outcome, answer.to_string())
        });
    }
    let lines = [
        ("a key twice, its own first", format!(r#""databaseId":"{mine}","databaseId":"{theirs}""#)),
        ("a key twice, its own last", format!(r#""databaseId":"{theirs}","databaseId":"{mine}""#)),
        ("a key in escapes", format!(r#""database\u0049d":"{theirs}""#)),
        ("an id with an escaped NUL", format!(r#""databaseId":"{theirs}\u0000""#)),
    ];
    for (what, selector) in lines {
        room.attempt(MCP, what, |room| {
            room.attacker.send_raw(&format!(
                r#"{{"jsonrpc":"2.0","id":"raw","method":"tools/call","params":{{"name":"run_sql","arguments":{{{selector},"sql":"SELECT * FROM secrets"}}}}}}"#
            ));
            let answer = room.attacker.message(std::time::Duration::from_secs(60)).unwrap();
            let ran = answer["result"]["isError"] == false;
            (if ran { Outcome::Ran } else { Outcome::Before }, answer.to_string())
        });
    }
    for (what, line) in [
        (
            "a cancellation of whatever runs",
            json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 0}}),
        ),
        (
            "an answer to a question that was not asked",
            json!({"jsonrpc": "2.0", "id": 0, "result": {"action": "accept"}}),
        ),
        (
            "a notification that calls",
            json!({"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "run_sql", "arguments": read}}),
        ),
        (
            "a progress of nothing",
            json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}}),
        ),
        ("roots that changed", json!({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"})),
    ] {
        room.attempt(MCP, what, |room| {
            room.attacker.send(&line);
            let after = room.attacker.call("list_profiles", &json!({}));
            assert_eq!(after["ok"], true, "{after:#}");
            let heard = std::mem::take(&mut room.attacker.notifications);
            (Outcome::Before, format!("{heard:?}"))
        });
    }
}
