//! A sandbox that is made for one validation alone: within the same bounds as any other, and gone with its call, however
//! that ends.

use std::fs;
use std::process::Stdio as Pipe;
use std::time::Duration;

use pgsandbox::model::{Obligation, Scope};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::program::{Place, create};
use crate::audit::subjects::closed;
use crate::crash::{query, settle};
use crate::harness::runs_in;
use crate::hostile::{code, wait};
use crate::limits::deadlines::late;
use crate::obligations::demanding;
use crate::program::{Cli, Stdio, Transport};

/// What a migration does: one table, and a table's worth of trouble afterwards.
const MIGRATION: &str = "psql -qc 'CREATE TABLE made (id int PRIMARY KEY)'";
/// States of all sandboxes that there ever were.
const STATES: &str = "select state from pgsandbox.sandboxes order by created_at";

fn validate(place: &Place, more: Value) -> Value {
    let mut input = json!({"repoPath": place.repo});
    input.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    input
}

fn gone(place: &Place) {
    let left = "select count(*) from pg_database where datname like 'pgsandbox\\_validation%'";
    assert_eq!(query(&place.home, left), [["0"]]);
    let roles = "select count(*) from pg_roles where rolname like 'pgsandbox\\_validation%'";
    assert_eq!(query(&place.home, roles), [["0"]]);
}

#[test]
fn a_change_is_validated_in_a_sandbox_of_its_own_that_goes_with_the_call() {
    let place = Place::unmade();
    let program = place.script(
        "script",
        &format!(
            "{MIGRATION}; [ \"$1\" = fail ] && exit 4; [ \"$1\" = wait ] && echo waits $PGPASSWORD && sleep 600; exit 0"
        ),
    );
    let mut stdio = Stdio::start(&place.home);
    let good = validate(&place, json!({"command": [program]}));
    let told = stdio.call("explain_policy", &json!({"operation": "validate_schema_change", "arguments": good}));
    assert_eq!((&told["result"]["allowed"], place.databases()), (&json!(true), 0), "{told:#}");

    let done = stdio.call("validate_schema_change", &good);
    let result = &done["result"];
    assert_eq!(
        (&result["exitCode"], &result["schemaDiff"]["counts"]["table"]["added"]),
        (&json!(0), &json!(1)),
        "{done:#}"
    );
    assert_eq!(result["disposable"]["state"], "deleted", "{done:#}");
    let line = closed(&place.home, &done);
    assert_eq!((&line["target"], line.get("others")), (&result["databaseId"], None), "{line:#}");

    let failed = stdio.call("validate_schema_change", &validate(&place, json!({"command": [program, "fail"]})));
    assert_eq!(
        (&failed["result"]["exitCode"], &failed["result"]["schemaDiff"]["changed"]),
        (&json!(4), &json!(true)),
        "{failed:#}"
    );

    let late = validate(&place, json!({"command": [program, "wait"], "timeoutSeconds": 2}));
    let late = stdio.call("validate_schema_change", &late);
    assert_eq!(code(&late), "command_timeout", "{late:#}");
    assert_eq!(late["errors"][0]["output"]["stdout"], "waits ***\n", "{late:#}");
    let named = closed(&place.home, &late)["others"].clone();
    assert_eq!(named.as_array().map(Vec::len), Some(1), "its sandbox is named: {named}");
    gone(&place);
    assert_eq!(query(&place.home, STATES), vec![["deleted"]; 3]);
    assert_eq!(
        query(&place.home, "select id from pgsandbox.sandboxes order by created_at desc limit 1")[0][0],
        named[0].as_str().unwrap()
    );

    // One that is named stays.
    let id = create(&mut stdio);
    let kept = stdio.call("validate_schema_change", &validate(&place, json!({"command": [program], "databaseId": id})));
    assert_eq!((&kept["result"]["databaseId"], kept["result"].get("disposable")), (&json!(id), None), "{kept:#}");
    assert_eq!(place.databases(), 1);
    assert!(stdio.finish().success());
}

#[test]
fn a_cancelled_validation_and_a_client_that_leaves_take_the_sandbox_along() {
    let place = Place::new();
    let program = place.script("script", "psql -qAtc 'SELECT current_database()'; echo $$ > own.pid; sleep 600");
    let own = format!("{}/own.pid", place.repo);
    let pid = || fs::read_to_string(&own).unwrap_or_default().trim().to_owned();
    let arguments =
        json!({"name": "validate_schema_change", "arguments": validate(&place, json!({"command": [program]}))});
    let deleted = |count: usize| query(&place.home, STATES) == vec![["deleted"]; count];

    let mut stdio = Stdio::start(&place.home);
    let call = stdio.begin("tools/call", arguments.clone());
    wait(Duration::from_secs(60), || !pid().is_empty());
    stdio.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": call}}));
    wait(Duration::from_secs(60), || deleted(1));
    assert!(!runs_in(&place.repo));

    fs::remove_file(&own).unwrap();
    stdio.begin("tools/call", arguments.clone());
    wait(Duration::from_secs(60), || !pid().is_empty());
    // A server that is told to end ends what runs, and waits for what that has left to do.
    crate::harness::kill(&stdio.pid().to_string(), Signal::TERM);
    stdio.wait();
    wait(Duration::from_secs(60), || deleted(2));
    gone(&place);
}

#[test]
fn the_sandbox_of_a_killed_validation_has_a_short_life_and_is_removed_after_it() {
    let place = Place::new();
    let program = place.script("script", "echo $$ > own.pid; sleep 600");
    let own = format!("{}/own.pid", place.repo);
    let mut stdio = Stdio::start(&place.home);
    let arguments = validate(&place, json!({"command": [program], "timeoutSeconds": 30}));
    stdio.begin("tools/call", json!({"name": "validate_schema_change", "arguments": arguments}));
    wait(Duration::from_secs(60), || fs::read_to_string(&own).is_ok_and(|pid| !pid.trim().is_empty()));
    stdio.kill();
    let mut cli = Cli::new(&place.home);
    let left = cli.call("list_databases", &json!({}));
    let database = &left["result"]["databases"][0];
    assert!(database["expiresInSeconds"].as_i64().is_some_and(|seconds| seconds <= 6 * 60), "{left:#}");
    query(&place.home, "update pgsandbox.sandboxes set expires_at = now() - interval '1 second'");
    let cleaned = cli.call("cleanup_expired", &json!({}));
    assert_eq!(cleaned["result"]["deleted"].as_array().map(Vec::len), Some(1), "{cleaned:#}");
    gone(&place);
}

#[test]
fn a_sandbox_that_is_not_gone_in_time_is_said_to_be_on_its_way() {
    let place = Place::new();
    let program = place.script("script", MIGRATION);
    // Both are made, so that nothing but the removal is late.
    let id = create(&mut Cli::new(&place.home));
    Cli::new(&place.home).call("delete_database", &json!({"databaseId": id, "wait": true}));
    let variables = [
        ("PGSANDBOX_TEST_DEADLINE_MS", "3000"),
        ("PGSANDBOX_TEST_INTERVAL_MS", "300"),
        ("PGSANDBOX_TEST_FAULTS", &late("plan.delete.drop-database.before")),
    ];
    let mut stdio = Stdio::start_with(&place.home, &variables, Pipe::inherit());
    let reply = stdio.call("validate_schema_change", &validate(&place, json!({"command": [program]})));
    assert_eq!((code(&reply), &reply["result"]["disposable"]["state"]), ("ok", &json!("deleting")), "{reply:#}");
    settle(&place.home);
    assert!(stdio.finish().success());
    gone(&place);
}

/// Adds a policy to those of a place.
fn demand(place: &Place, demands: &[Obligation]) {
    let mut guest = demanding(demands);
    guest.concerns = vec!["validate_schema_change".into()];
    let dir = place.home.path();
    fs::write(dir.join("demanding.wasm"), guest.component()).unwrap();
    let policies = fs::read_to_string(dir.join("policies.toml")).unwrap();
    let entry = "[[policy]]\nname = \"demanding\"\nsource = \"./demanding.wasm\"\n";
    let without = policies.replace(entry, "");
    fs::write(dir.join("policies.toml"), without + entry).unwrap();
}

#[test]
fn what_policies_demand_of_a_new_sandbox_holds_for_one_of_a_call() {
    let place = Place::new();
    let program = place.script("script", MIGRATION);
    let id = create(&mut Cli::new(&place.home));
    let check = |demands: &[Obligation], more: Value, expected: &str, by: &str| {
        demand(&place, demands);
        let mut input = validate(&place, json!({"command": [program]}));
        input.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let mut stdio = Stdio::start(&place.home);
        let told = stdio.call("explain_policy", &json!({"operation": "validate_schema_change", "arguments": input}));
        let reply = stdio.call("validate_schema_change", &input);
        assert_eq!(code(&reply), expected, "{reply:#}");
        if expected == "ok" {
            assert_eq!(told["result"]["allowed"], true, "{told:#}");
        } else {
            assert!(reply["errors"][0].to_string().contains(by), "{reply:#}");
            assert_eq!(told["result"]["refusal"], reply["errors"][0], "{told:#}");
        }
        assert!(stdio.finish().success());
        assert_eq!(place.databases(), 1);
    };
    let named = json!({"databaseId": id});
    let live = |scope, limit| Obligation::MaxLiveSandboxes { scope, limit };
    check(&[live(Scope::Principal, 1)], json!({}), "quota_exceeded", "demanding");
    check(&[live(Scope::Principal, 2)], json!({}), "ok", "");
    check(&[live(Scope::Principal, 1)], named.clone(), "ok", "");
    check(&[live(Scope::Group, 0)], json!({"owner": "team"}), "quota_exceeded", "demanding");
    check(&[Obligation::MaxTtlMinutes(6)], json!({}), "invalid_ttl", "7 minutes");
    check(&[Obligation::MaxTtlMinutes(6)], json!({"timeoutSeconds": 60}), "ok", "");
    check(&[Obligation::MaxTtlMinutes(1)], named.clone(), "ok", "");
    check(&[Obligation::RequireLabel("ticket".into())], json!({}), "obligation_unmet", "require-label");
    check(&[Obligation::RequireLabel("ticket".into())], json!({"labels": {"ticket": "7"}}), "ok", "");
    check(&[Obligation::RequireLabel("ticket".into())], named.clone(), "obligation_unmet", "require-label");
    let blue = Obligation::AddLabel { key: "team".into(), value: "blue".into() };
    check(std::slice::from_ref(&blue), named, "obligation_unmet", "add-label");
    check(&[blue], json!({}), "ok", "");
    check(&[Obligation::ReadOnly], json!({}), "obligation_unmet", "read-only");
    let labels = query(&place.home, "select labels from pgsandbox.sandboxes where labels::text like '%blue%'");
    assert_eq!(labels.len(), 1, "the label was added to the sandbox");
}

#[test]
fn a_repositorys_own_version_is_taken_where_the_call_names_none() {
    let place = Place::new();
    let program = place.script("script", MIGRATION);
    let mut stdio = Stdio::start(&place.home);
    let input = validate(&place, json!({"postgresVersion": "97", "migrationCommand": [program]}));
    assert_eq!(stdio.call("prepare_for_repo", &input)["result"]["written"], true);
    let refused = stdio.call("validate_schema_change", &validate(&place, json!({})));
    assert_eq!(code(&refused), "postgres_version_unavailable", "{refused:#}");
    let profiles = stdio.call("list_profiles", &json!({}));
    let name = profiles["result"]["profiles"][0]["name"].clone();
    let done = stdio.call("validate_schema_change", &validate(&place, json!({"profile": name})));
    assert_eq!(code(&done), "ok", "an explicit profile counts: {done:#}");
    let of_none = stdio.call("validate_schema_change", &validate(&place, json!({"profile": "none"})));
    assert_eq!(code(&of_none), "unknown_profile");
    let id = create(&mut stdio);
    for (name, value) in [("owner", json!("team")), ("labels", json!({"a": "b"}))] {
        let of_two = validate(&place, json!({"databaseId": id, name: value}));
        assert_eq!(code(&stdio.call("validate_schema_change", &of_two)), "invalid_arguments");
    }
    let unfit = validate(&place, json!({"repoPath": "/no/such/place", "command": [program]}));
    assert_ne!(code(&stdio.call("validate_schema_change", &unfit)), "ok");
    assert!(stdio.finish().success());
    assert_eq!(place.databases(), 1, "no sandbox is made for what is refused");
}
