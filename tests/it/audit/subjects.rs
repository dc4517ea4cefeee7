//! What a line names: every sandbox that a call came to be about, and what an approval was for.

use std::fs;

use pgsandbox::model::{Mode, Obligation};
use serde_json::{Value, json};

use crate::crash::query;
use crate::hostile::code;
use crate::obligations::{demanding, home_with_policy_file, write_policies};
use crate::program::{Cli, Home, Stdio, Transport};

/// Returns the line that closes the request of a reply.
pub(crate) fn closed(home: &Home, reply: &Value) -> Value {
    let entries = fs::read_dir(home.state().join("audit")).unwrap().map(|entry| entry.unwrap().path());
    let segments = entries.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("segment-"));
    let text: String = segments.map(|path| fs::read_to_string(path).unwrap()).collect();
    let mut lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let closing = lines.find(|line| line["kind"] == "close" && line["id"] == reply["requestId"]);
    closing.unwrap_or_else(|| panic!("it is not audited: {reply:#}"))
}

#[test]
fn a_line_names_every_sandbox_that_the_call_is_about() {
    let home = Home::with_cluster();
    let mut stdio = Stdio::start(&home);
    let mut call = |operation: &str, input: Value| {
        let reply = stdio.call(operation, &input);
        assert_eq!(code(&reply), "ok", "{operation}: {reply:#}");
        let line = closed(&home, &reply);
        let id = reply["result"]["databaseId"].as_str().unwrap_or_default().to_owned();
        (line["target"].clone(), line["others"].clone(), id)
    };
    let (target, others, one) = call("create_database", json!({}));
    assert_eq!((&target, &others), (&json!(one), &Value::Null));
    let (.., two) = call("create_database", json!({}));
    let both = (json!(two), json!([one]));
    let of = |call: (Value, Value, String)| (call.0, call.1);
    assert_eq!(of(call("schema_diff", json!({"databaseId": two, "otherDatabaseId": one}))), both);
    call("create_schema_snapshot", json!({"databaseId": one, "snapshotName": "s"}));
    assert_eq!(of(call("schema_diff", json!({"databaseId": two, "snapshotName": "s"}))), both);
    assert_eq!(of(call("diff_schema_snapshot", json!({"databaseId": two, "snapshotName": "s"}))), both);
    let asked = json!({"operation": "delete_database", "arguments": {"databaseId": one}});
    assert_eq!(of(call("explain_policy", asked)), (Value::Null, json!([one])));

    let (source, made, _) = call("create_template_from_sandbox", json!({"databaseId": one, "templateName": "t"}));
    assert_eq!((source, made.as_array().map(Vec::len)), (json!(one), Some(1)));
    let (target, from, three) = call("create_sandbox_from_template", json!({"templateName": "t"}));
    assert_eq!((&target, &from), (&json!(three), &made));
    assert_eq!(call("reset_database", json!({"databaseId": three})).1, made);
    assert_eq!(of(call("delete_template", json!({"templateName": "t"}))), (Value::Null, made));
    assert!(stdio.finish().success());

    // By a program that ends after one call: no upkeep is faster.
    let over = format!(
        "update pgsandbox.sandboxes set expires_at = now() - interval '1 second' where id in ('{one}', '{two}')"
    );
    query(&home, &over);
    let cleaned = Cli::new(&home).call("cleanup_expired", &json!({}));
    let line = closed(&home, &cleaned);
    let sorted = |list: &Value| {
        let mut ids: Vec<String> = list.as_array().unwrap().iter().map(ToString::to_string).collect();
        ids.sort();
        ids
    };
    assert_eq!((line.get("target"), sorted(&line["others"])), (None, sorted(&json!([one, two]))), "{cleaned:#}");
}

#[test]
fn a_line_names_what_was_to_be_approved_and_what_waits_for_it() {
    let home = home_with_policy_file();
    let mut guest = demanding(&[Obligation::Approval("dba".into())]);
    guest.concerns = vec!["create_database".into()];
    write_policies(&home, &[(&guest.name, guest.component(), Mode::Enforce)]);
    let mut cli = Cli::new(&home);
    let refused = cli.call("create_database", &json!({"ttlMinutes": 5}));
    let digest = refused["detailHandles"][0].as_str().unwrap().strip_prefix("approval:").unwrap().to_owned();
    let line = closed(&home, &refused);
    assert_eq!((&line["digest"], line.get("approves")), (&json!(digest), None), "{line:#}");
    let own = cli.call("approve", &json!({"requestDigest": digest}));
    assert_eq!((code(&own), &closed(&home, &own)["approves"]), ("denied", &json!(digest)));
    let password = cli.call("approve", &json!({"requestDigest": "hunter2"}));
    assert_eq!(closed(&home, &password)["approves"], "(malformed)");
    assert_eq!(closed(&home, &cli.call("list_databases", &json!({}))).get("digest"), None);
}
