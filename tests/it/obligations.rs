//! Every demand of a policy, through the real program: made true with its origin named, or the request refused.

use std::fs;
use std::time::Duration;

use pgsandbox::model::{Bucket, Charge, Denial, Mode, Obligation, Scope, Verdict};
use serde_json::{Value, json};

use crate::crash::query;
use crate::hostile::{Session, code, wait};
use crate::policies::guest::Guest;
use crate::program::{Home, Stdio, Transport};

/// The bundled policies, as they stand in a file.
const BUNDLED: [&str; 9] = [
    "clone-source",
    "extensions",
    "host-command",
    "ownership",
    "quota",
    "rate-limit",
    "readonly",
    "row-limit",
    "statement-guard",
];

/// A state directory whose policies are those of a file.
pub(crate) fn home_with_policy_file() -> Home {
    policy_file_in(Home::with_cluster())
}

/// Sets a state directory up so that its policies are those of a file.
fn policy_file_in(home: Home) -> Home {
    let file = home.path().join("policies.toml");
    let home = home.with("PGSANDBOX_POLICIES", file.to_str().unwrap());
    write_policies(&home, &[]);
    home
}

/// Writes the file: the bundled policies, and others beside them.
pub(crate) fn write_policies(home: &Home, others: &[(&str, Vec<u8>, Mode)]) {
    write_policies_but(home, "", others);
}

/// The same without one of the bundled policies.
pub(crate) fn write_policies_but(home: &Home, left_out: &str, others: &[(&str, Vec<u8>, Mode)]) {
    let bundled = BUNDLED.iter().filter(|name| **name != left_out);
    let mut text: String = bundled.map(|name| format!("[[policy]]\nsource = \"{name}\"\n")).collect();
    for (name, component, mode) in others {
        fs::write(home.path().join(format!("{name}.wasm")), component).unwrap();
        let mode = mode.as_str();
        text.push_str(&format!("[[policy]]\nname = \"{name}\"\nsource = \"./{name}.wasm\"\nmode = \"{mode}\"\n"));
    }
    fs::write(home.path().join("policies.toml"), text).unwrap();
}

/// Returns a file of the bundled policies, one of them with more to it.
pub(crate) fn policies_with(name: &str, more: &str) -> String {
    let entry =
        |policy: &&str| format!("[[policy]]\nsource = \"{policy}\"\n{}", if *policy == name { more } else { "" });
    BUNDLED.iter().map(entry).collect()
}

/// A policy that abstains, and demands.
pub(crate) fn demanding(demands: &[Obligation]) -> Guest {
    let mut guest = Guest::new("demanding");
    guest.covers = Vec::new();
    guest.decision.verdict = Verdict::Abstain;
    guest.decision.obligations = demands.to_vec();
    guest
}

/// Starts the program with one more policy.
pub(crate) fn with(home: &Home, guest: &Guest) -> Stdio {
    write_policies(home, &[(&guest.name, guest.component(), Mode::Enforce)]);
    Stdio::start(home)
}

/// A connection under one more policy, to a sandbox that was made without it.
fn with_sandbox(home: &Home, guest: &Guest) -> Session {
    write_policies(home, &[]);
    let Session { stdio, id } = Session::start(home);
    assert!(stdio.finish().success());
    Session { stdio: with(home, guest), id }
}

/// Expects a refusal by the gate, foretold by `explain_policy`, that names the policy and its demand.
fn refused(stdio: &mut Stdio, operation: &str, input: &Value, expected: &str, demand: &str) {
    let told = stdio.call("explain_policy", &json!({"operation": operation, "arguments": input}));
    let reply = stdio.call(operation, input);
    assert_eq!(code(&reply), expected, "{operation} {input}: {reply:#}");
    let error = &reply["errors"][0];
    assert!(error["message"].as_str().unwrap().contains("`demanding`"), "{operation}: {error:#}");
    assert_eq!(
        (&error["policy"], &error["policyCode"]),
        (&json!("demanding"), &json!(demand)),
        "{operation}: {error:#}"
    );
    if told["ok"] == true {
        assert_eq!(told["result"]["allowed"], false, "{operation} is explained otherwise: {told:#}");
        assert_eq!(&told["result"]["refusal"], error, "{operation} is explained otherwise");
    } else {
        // The explanation itself is under the same demand, and does not meet it.
        assert_eq!(code(&told), expected, "{told:#}");
    }
}

/// Expects that a reply carries a limit with the policy that set it.
fn limited(reply: &Value, limit: &str, value: &str) {
    let limits = reply["policy"]["limits"].as_array().unwrap_or_else(|| panic!("no limits: {reply:#}"));
    let wanted = json!({"limit": limit, "value": value, "setBy": "demanding"});
    assert!(limits.contains(&wanted), "{wanted} is not among {limits:#?}");
}

fn warned(reply: &Value, text: &str) {
    let warnings = reply["warnings"].to_string();
    assert!(warnings.contains(text) && warnings.contains("`demanding`"), "`{text}` is not said: {warnings}");
}

#[test]
fn read_only_is_made_true_by_the_role_and_refused_where_it_cannot_be() {
    let home = home_with_policy_file();
    let mut it = with_sandbox(&home, &demanding(&[Obligation::ReadOnly]));
    let reply = it.sql("show transaction_read_only", json!({}));
    assert_eq!(reply["result"]["resultSets"][0]["rows"], json!([["on"]]), "{reply:#}");
    warned(&reply, "read-only");
    let reply = it.sql("select current_user", json!({"readonly": false}));
    assert!(reply["result"]["resultSets"][0]["rows"][0][0].as_str().unwrap().ends_with("_ro"), "{reply:#}");
    assert_eq!(code(&it.sql("create table t ()", json!({}))), "readonly_violation");
    let of = json!({"databaseId": it.id});
    let reply = it.stdio.call("get_connection_string", &of);
    assert_eq!((&reply["ok"], &reply["result"]["access"]), (&json!(true), &json!("readonly")), "{reply:#}");
    warned(&reply, "read-only");
    let raw = json!({"databaseId": it.id, "includeCredentials": true, "access": "owner"});
    assert_eq!(code(&it.stdio.call("get_connection_string", &raw)), "readonly_violation");
    refused(&mut it.stdio, "create_database", &json!({}), "obligation_unmet", "read-only");
    refused(&mut it.stdio, "delete_database", &of, "obligation_unmet", "read-only");
    assert_eq!(code(&it.stdio.call("list_databases", &json!({}))), "ok");
}

#[test]
fn rows_bytes_and_time_are_cut_and_who_cut_them_is_said() {
    let home = home_with_policy_file();
    let mut it = with_sandbox(&home, &demanding(&[Obligation::MaxRows(3)]));
    let reply = it.sql("select * from generate_series(1, 10)", json!({"rowLimit": 7}));
    assert_eq!(reply["result"]["returnedRowCount"], 3, "{reply:#}");
    assert_eq!(reply["result"]["truncated"], true);
    warned(&reply, "row limit 3");
    limited(&reply, "max-rows", "3");
    let told = it.sql("select 1", json!({"rowLimit": 2}));
    assert_eq!(told["warnings"], json!([]), "a limit that is not reached is no warning");
    let raw = json!({"databaseId": it.id, "includeCredentials": true});
    assert_eq!(code(&it.stdio.call("get_connection_string", &raw)), "obligation_unmet");
    refused(&mut it.stdio, "list_databases", &json!({}), "obligation_unmet", "max-rows");
    assert!(it.stdio.finish().success());

    let mut it = Session { stdio: with(&home, &demanding(&[Obligation::MaxResultBytes(100)])), id: it.id };
    let reply = it.sql("select repeat('x', 30) from generate_series(1, 10)", json!({}));
    assert_eq!(reply["result"]["truncatedBy"], "bytes", "{reply:#}");
    assert!(reply["result"]["returnedRowCount"].as_u64().unwrap() <= 3);
    warned(&reply, "100 bytes");
    limited(&reply, "max-result-bytes", "100");
    let reply = it.sql("select 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa';".repeat(9).as_str(), json!({}));
    let rows: usize =
        reply["result"]["resultSets"].as_array().unwrap().iter().map(|s| s["rows"].as_array().unwrap().len()).sum();
    assert!(rows <= 3, "the budget is the call's, not each statement's: {reply:#}");
    assert!(it.stdio.finish().success());

    let mut it = Session { stdio: with(&home, &demanding(&[Obligation::StatementTimeoutMs(300)])), id: it.id };
    let reply = it.sql("select pg_sleep(60)", json!({"timeoutSeconds": 60}));
    assert_eq!(code(&reply), "statement_timeout", "{reply:#}");
    limited(&reply, "statement-timeout-ms", "300");
    warned(&it.sql("select 1", json!({})), "timeout in ms 300");
}

#[test]
fn the_life_of_sandboxes_is_limited() {
    let home = home_with_policy_file();
    let mut it = with_sandbox(&home, &demanding(&[Obligation::MaxTtlMinutes(5)]));
    for (operation, input) in [
        ("create_database", json!({"ttlMinutes": 6})),
        ("extend_database", json!({"databaseId": it.id, "ttlMinutes": 6})),
    ] {
        let reply = it.stdio.call(operation, &input);
        assert_eq!(code(&reply), "invalid_ttl", "{reply:#}");
        assert!(reply["errors"][0]["message"].as_str().unwrap().contains("set by `demanding`"), "{reply:#}");
    }
    let reply = it.stdio.call("create_database", &json!({"nameHint": "short"}));
    assert_eq!(code(&reply), "ok", "{reply:#}");
    warned(&reply, "ttl 5 minutes");
    limited(&reply, "max-ttl-minutes", "5");
    refused(
        &mut it.stdio,
        "run_sql",
        &json!({"databaseId": it.id, "sql": "select 1"}),
        "obligation_unmet",
        "max-ttl-minutes",
    );
    assert!(it.stdio.finish().success());
    write_policies(&home, &[]);
    let listed = Stdio::start(&home).call("list_databases", &json!({}));
    let databases = listed["result"]["databases"].as_array().unwrap();
    let short = databases.iter().find(|d| d["databaseName"].as_str().unwrap().contains("short")).unwrap();
    assert!(short["expiresInSeconds"].as_i64().unwrap() <= 300, "{short:#}");
}

#[test]
fn live_sandboxes_are_counted_for_the_principal_and_for_the_group() {
    let home = home_with_policy_file();
    let limit = |scope, limit| Obligation::MaxLiveSandboxes { scope, limit };
    let mut stdio = with(&home, &demanding(&[limit(Scope::Principal, 3), limit(Scope::Group, 1)]));
    let create = |stdio: &mut Stdio, group: &str| stdio.call("create_database", &json!({"owner": group}));
    let first = create(&mut stdio, "team");
    assert_eq!(code(&first), "ok", "{first:#}");
    let full = |reply: &Value| {
        assert_eq!(code(reply), "quota_exceeded", "{reply:#}");
        assert!(reply["errors"][0]["message"].as_str().unwrap().contains("`demanding`"), "{reply:#}");
    };
    full(&create(&mut stdio, "team"));
    assert_eq!(code(&create(&mut stdio, "other")), "ok");
    assert_eq!(code(&create(&mut stdio, "third")), "ok");
    // Inventing owners buys nothing.
    full(&create(&mut stdio, "fourth"));
    // Eight at once do not get past it either, in whatever order they are answered.
    for n in 0..8 {
        stdio.begin("tools/call", json!({"name": "create_database", "arguments": {"owner": format!("g{n}")}}));
    }
    for _ in 0..8 {
        let answer = stdio.message(Duration::from_secs(120)).unwrap();
        full(&answer["result"]["structuredContent"]);
    }
}

#[test]
fn bytes_of_sandboxes_are_limited_for_writing() {
    let home = home_with_policy_file();
    let mut it =
        with_sandbox(&home, &demanding(&[Obligation::MaxDatabaseBytes { scope: Scope::Principal, limit: 1000 }]));
    // Sizes are measured from time to time: the first time soon after the start.
    let mut reply = Value::Null;
    wait(Duration::from_secs(90), || {
        reply = it.sql("create table if not exists t (a int)", json!({}));
        code(&reply) != "ok"
    });
    assert_eq!(code(&reply), "quota_exceeded", "{reply:#}");
    assert!(reply["errors"][0]["message"].as_str().unwrap().contains("set by `demanding`"), "{reply:#}");
    limited(&reply, "max-database-bytes per principal", "1000");
    assert_eq!(code(&it.sql("select 1", json!({"readonly": true}))), "ok", "reading still helps to decide what may go");
    assert_eq!(code(&it.stdio.call("create_database", &json!({}))), "quota_exceeded");
}

#[test]
fn what_no_operation_can_do_is_refused() {
    let home = home_with_policy_file();
    let mask = Obligation::Mask { relation: "public.t".into(), column: "c".into() };
    let mut it = with_sandbox(&home, &demanding(&[mask]));
    let input = json!({"databaseId": it.id, "sql": "select c from t"});
    refused(&mut it.stdio, "run_sql", &input, "obligation_unmet", "mask");
    let raw = json!({"databaseId": it.id, "includeCredentials": true});
    refused(&mut it.stdio, "get_connection_string", &raw, "obligation_unmet", "mask");
}

#[test]
fn consent_is_given_by_nobody_and_approval_not_by_who_asks() {
    let home = policy_file_in(Home::fresh());
    for (demand, expected, kind) in [
        (Obligation::Consent("may it?".into()), "consent_required", "consent"),
        (Obligation::Approval("dba".into()), "approval_required", "approval"),
    ] {
        let mut guest = demanding(&[demand]);
        guest.concerns = vec!["create_database".into(), "list_profiles".into()];
        let mut stdio = with(&home, &guest);
        refused(&mut stdio, "list_profiles", &json!({}), expected, kind);
        refused(&mut stdio, "create_database", &json!({}), expected, kind);
        assert_eq!(stdio.call("list_databases", &json!({}))["result"]["databases"], json!([]));
    }
}

#[test]
fn labels_are_demanded_and_added() {
    let home = policy_file_in(Home::fresh());
    let mut guest = demanding(&[
        Obligation::RequireLabel("ticket".into()),
        Obligation::AddLabel { key: "team".into(), value: "blue".into() },
    ]);
    guest.concerns = vec!["create_database".into()];
    let mut stdio = with(&home, &guest);
    refused(&mut stdio, "create_database", &json!({}), "obligation_unmet", "require-label");
    let other = json!({"labels": {"ticket": "1", "team": "red"}});
    refused(&mut stdio, "create_database", &other, "obligation_unmet", "add-label");
    assert_eq!(code(&stdio.call("create_database", &json!({"labels": {"ticket": "1"}}))), "ok");
    let listed = stdio.call("list_databases", &json!({}));
    let labels: Vec<_> = listed["result"]["databases"].as_array().unwrap().iter().map(|d| &d["labels"]).collect();
    assert_eq!(labels, [&json!({"ticket": "1", "team": "blue"})], "only what was let through is there");
}

/// A policy that charges one bucket for each call of an operation.
pub(crate) fn charging(name: &str, operation: &str, burst: u32, cost: u32) -> Guest {
    let mut guest = demanding(&[]);
    guest.name = name.to_owned();
    guest.concerns = vec![operation.to_owned()];
    guest.configured = Ok(vec![Bucket { name: "calls".into(), burst, per_interval: 1, interval_ms: 3_600_000 }]);
    guest.decision.charges = vec![Charge { bucket: "calls".into(), cost }];
    guest
}

pub(crate) fn balances(stdio: &mut Stdio, operation: &str, input: &Value) -> Vec<(String, u64)> {
    let told = stdio.call("explain_policy", &json!({"operation": operation, "arguments": input}));
    let entries = told["result"]["balances"].as_array().unwrap_or_else(|| panic!("{told:#}"));
    let own = entries.iter().filter(|entry| entry["bucket"] == "calls");
    own.map(|e| (e["policy"].as_str().unwrap().to_owned(), e["remaining"].as_u64().unwrap())).collect()
}

pub(crate) fn enforce(home: &Home, guests: &[Guest]) -> Stdio {
    let built: Vec<_> = guests.iter().map(|g| (g.name.as_str(), g.component(), Mode::Enforce)).collect();
    write_policies(home, &built);
    Stdio::start(home)
}

#[test]
fn charges_are_taken_all_or_none_and_an_explanation_costs_nothing() {
    let home = home_with_policy_file();
    let guests = [charging("a-wide", "list_profiles", 100, 1), charging("b-narrow", "list_profiles", 2, 1)];
    let mut stdio = enforce(&home, &guests);
    let left = |stdio: &mut Stdio| {
        balances(stdio, "list_profiles", &json!({})).into_iter().map(|(_, n)| n).collect::<Vec<_>>()
    };
    for _ in 0..5 {
        assert_eq!(left(&mut stdio), [100, 2]);
    }
    assert_eq!(code(&stdio.call("list_profiles", &json!({}))), "ok");
    assert_eq!(code(&stdio.call("list_profiles", &json!({}))), "ok");
    let told = stdio.call("explain_policy", &json!({"operation": "list_profiles"}));
    assert_eq!(told["result"]["refusal"]["code"], "rate_limited", "{told:#}");
    for _ in 0..3 {
        let reply = stdio.call("list_profiles", &json!({}));
        assert_eq!(code(&reply), "rate_limited", "{reply:#}");
        let error = &reply["errors"][0];
        let ms = error["retryAfterMs"].as_u64().unwrap();
        assert!(ms > 0 && ms <= 3_600_000, "{error:#}");
        assert_eq!((&error["policy"], &error["retryable"]), (&json!("b-narrow"), &json!(true)));
    }
    // The other bucket was not charged for what was refused; and the book outlives the process.
    assert_eq!(left(&mut stdio), [98, 0]);
    assert!(stdio.finish().success());
    assert_eq!(left(&mut Stdio::start(&home)), [98, 0]);

    let mut stdio = enforce(&home, &[charging("c-dear", "list_profiles", 5, 6)]);
    let reply = stdio.call("list_profiles", &json!({}));
    assert_eq!(code(&reply), "quota_exceeded", "{reply:#}");
    assert!(reply["errors"][0].get("retryAfterMs").is_none(), "waiting does not help: {reply:#}");
}

#[test]
fn a_refusal_before_the_first_act_gives_charges_back_and_a_failure_keeps_them() {
    let home = home_with_policy_file();
    write_policies(&home, &[]);
    let Session { stdio, id } = Session::start(&home);
    assert!(stdio.finish().success());
    let stdio = enforce(&home, &[charging("a-wide", "run_sql", 100, 1)]);
    let mut it = Session { stdio, id };
    let input = json!({"databaseId": it.id, "sql": "select 1"});
    let left = |it: &mut Session| balances(&mut it.stdio, "run_sql", &input)[0].1;
    assert_eq!(left(&mut it), 100);
    let reply = it.sql("select $1; select 2", json!({"params": [1]}));
    assert_eq!(code(&reply), "single_statement_required", "{reply:#}");
    assert_eq!(left(&mut it), 100, "a call that the core refused was charged");
    assert_eq!(code(&it.sql("select 1/0", json!({}))), "sql_failed");
    assert_eq!(left(&mut it), 99, "a call that ran and failed was not charged");
}

/// Waits until a sandbox is in the making, and returns its id.
fn in_the_making(home: &Home) -> String {
    let sql = "select id from pgsandbox.sandboxes where state = 'creating'";
    wait(Duration::from_secs(60), || !query(home, sql).is_empty());
    query(home, sql)[0][0].clone()
}

#[test]
fn what_was_found_in_the_making_or_gone_was_not_begun_and_is_not_paid_for() {
    let home = home_with_policy_file();
    write_policies(&home, &[]);
    let mut first = Stdio::start(&home);
    let keyed = json!({"idempotencyKey": "k"});
    let made = first.call("create_database", &keyed);
    let gone = json!({"databaseId": made["result"]["databaseId"], "wait": true});
    assert_eq!(code(&first.call("delete_database", &gone)), "ok");
    assert!(first.finish().success());

    let mut stdio = enforce(&home, &[charging("d", "delete_database", 9, 1), charging("c", "create_database", 9, 1)]);
    let left = |stdio: &mut Stdio, operation, input| balances(stdio, operation, input)[0].1;
    let other = json!({"idempotencyKey": "k2"});
    assert_eq!(left(&mut stdio, "create_database", &other), 9);
    assert_eq!(code(&stdio.call("create_database", &keyed)), "database_not_found");
    assert_eq!(left(&mut stdio, "create_database", &other), 9, "a key whose sandbox is gone was charged");

    // Another server takes its time; what it makes is neither to be deleted yet nor to be had by its key.
    let slow = [("PGSANDBOX_TEST_FAULTS", "plan.create.open-database.before=delay:4000")];
    let mut slow = Stdio::start_with(&home, &slow, std::process::Stdio::inherit());
    let making = slow.begin("tools/call", json!({"name": "create_database", "arguments": other}));
    let half = json!({"databaseId": in_the_making(&home)});
    let listed = json!({"databaseId": made["result"]["databaseId"]});
    for _ in 0..2 {
        assert_eq!(code(&stdio.call("delete_database", &half)), "sandbox_not_ready");
        assert_eq!(code(&stdio.call("delete_database", &listed)), "database_not_found");
    }
    assert_eq!(left(&mut stdio, "delete_database", &half), 9, "a refused deletion was charged");
    let made = slow.answer(making);
    assert_eq!(made["result"]["structuredContent"]["ok"], true, "{made:#}");
    assert_eq!(code(&stdio.call("delete_database", &half)), "ok");
    let next = json!({"databaseId": stdio.call("create_database", &json!({}))["result"]["databaseId"]});
    assert_eq!(left(&mut stdio, "delete_database", &next), 8, "a deletion was not charged");
}

#[test]
fn another_owners_sandbox_is_not_to_be_told_from_none() {
    let home = home_with_policy_file();
    // Guards whose names sort before and after `ownership`, and which would refuse on what they see of the sandbox.
    let no =
        Verdict::Deny(Denial { code: "no".into(), message: "no".into(), audit: String::new(), retry_after_ms: None });
    let mut early = Guest::new("a-guard");
    early.decision.verdict = no.clone();
    early.covers = Vec::new();
    early.concerns = vec!["verify_sandbox".into()];
    let mut late = early.clone();
    late.name = "z-guard".into();
    write_policies(&home, &[]);
    let mut mine = Session::start(&home);
    let listed = mine.stdio.call("list_databases", &json!({}));
    let name = listed["result"]["databases"][0]["databaseName"].as_str().unwrap().to_owned();
    let built: Vec<_> = [&early, &late].iter().map(|g| (g.name.as_str(), g.component(), Mode::Enforce)).collect();
    write_policies(&home, &built);
    let mut other = Stdio::start_with(&home, &[("PGSANDBOX_OWNER", "other")], std::process::Stdio::inherit());
    let (ghost_id, ghost_name) = ("11111111-2222-4333-8444-555555555555", "pgsandbox_it_0123456789");
    let bare = |reply: Value| {
        let mut reply = reply;
        reply.as_object_mut().unwrap().remove("requestId");
        reply
    };
    let calls = [
        ("get_connection_string", json!({})),
        ("get_connection_string", json!({"includeCredentials": true})),
        ("run_sql", json!({"sql": "select 1"})),
        ("run_sql", json!({"sql": "select 1", "readonly": true})),
        ("run_sql", json!({"sql": "alter system set work_mem = 1"})),
        ("run_sql", json!({"sql": "selectt"})),
        ("run_sql", json!({"sql": "select '"})),
        ("run_sql", json!({"sql": ""})),
        ("run_sql", json!({"sql": "select 1", "timeoutSeconds": 999})),
        ("extend_database", json!({"ttlMinutes": 5})),
        ("extend_database", json!({"ttlMinutes": 99999})),
        ("fork_database", json!({})),
        ("create_template_from_sandbox", json!({"templateName": "loot"})),
        ("reset_database", json!({})),
        ("delete_database", json!({})),
        ("delete_database", json!({"wait": true})),
        ("list_extensions", json!({})),
        ("verify_sandbox", json!({})),
        ("describe_schema", json!({})),
        ("describe_schema", json!({"limit": 0})),
        ("schema_digest", json!({})),
        ("schema_diff", json!({})),
        ("schema_diff", json!({"snapshotName": "none"})),
        ("create_schema_snapshot", json!({"snapshotName": "s"})),
        ("create_schema_snapshot", json!({"snapshotName": "/"})),
        ("diff_schema_snapshot", json!({"snapshotName": "none"})),
    ];
    for (operation, input) in calls {
        for (by_id, by_name) in [(true, false), (false, true), (true, true)] {
            let input_of = |id: &str, name: &str| {
                let mut input = input.clone();
                let object = input.as_object_mut().unwrap();
                by_id.then(|| object.insert("databaseId".into(), json!(id)));
                by_name.then(|| object.insert("databaseName".into(), json!(name)));
                input
            };
            let (there, none) = (input_of(&mine.id, &name), input_of(ghost_id, ghost_name));
            let direct = bare(other.call(operation, &there));
            assert_eq!(direct, bare(other.call(operation, &none)), "{operation} {input}");
            assert_ne!(code(&direct), "ok", "{operation} {input}");
            let explained = |input: &Value| json!({"operation": operation, "arguments": input});
            let told = bare(other.call("explain_policy", &explained(&there)));
            assert_eq!(told, bare(other.call("explain_policy", &explained(&none))), "explained: {operation} {input}");
            assert_eq!(code(&told), code(&direct), "{operation} {input}");
        }
    }
    let found = code(&bare(other.call("verify_sandbox", &json!({"databaseId": mine.id})))).to_owned();
    assert_eq!(found, "database_not_found");
    assert_eq!(other.call("list_databases", &json!({}))["result"]["databases"], json!([]));
    assert_eq!(other.call("cleanup_expired", &json!({}))["ok"], true);
    assert_eq!(code(&mine.sql("select 1", json!({}))), "ok", "nothing of it was touched");
}

/// Runs one statement under a policy file and returns whether its record says that the decision can be replayed.
fn replayable(home: &Home, policies: &str) -> Vec<bool> {
    fs::write(home.path().join("policies.toml"), policies).unwrap();
    let mut it = Session::start(home);
    assert_eq!(it.sql("select 1", json!({}))["ok"], true);
    assert!(it.stdio.finish().success());
    let log = home.state().join("audit");
    let files = fs::read_dir(&log).unwrap().map(|entry| entry.unwrap().path());
    let text: String = files.filter_map(|path| fs::read_to_string(path).ok()).collect();
    fs::remove_dir_all(&log).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let of_sql = lines.filter(|line| line["kind"] == "close" && line["request"]["operation"] == "run_sql");
    of_sql.map(|line| line["request"]["replayable"].as_bool().unwrap()).collect()
}

#[test]
fn a_decision_made_without_the_statements_texts_can_be_replayed_from_its_record() {
    let home = home_with_policy_file();
    let bundled: String = BUNDLED.iter().map(|name| format!("[[policy]]\nsource = \"{name}\"\n")).collect();
    assert_eq!(replayable(&home, &bundled), [true]);
    let granted = bundled.replace("source = \"row-limit\"\n", "source = \"row-limit\"\nsees_text = true\n");
    assert_eq!(replayable(&home, &granted), [false]);
}

#[test]
fn a_request_in_the_log_bears_its_own_outcome_and_no_policys() {
    let home = Home::with_cluster();
    let log = home.path().join("stderr");
    let errors = fs::File::create(&log).unwrap().into();
    let mut stdio = Stdio::start_with(&home, &[("PGSANDBOX_LOG", "pgsandbox=debug")], errors);
    let created = stdio.call("create_database", &json!({}));
    let id = created["result"]["databaseId"].as_str().unwrap().to_owned();
    let reply = stdio.call("run_sql", &json!({"databaseId": id, "sql": "select 1 / 0"}));
    assert_eq!(reply["ok"], false, "{reply:#}");
    assert!(stdio.finish().success());
    let text = fs::read_to_string(&log).unwrap();
    let line = text.lines().find(|line| line.contains("service::trail") && line.contains("sql_failed"));
    let line = line.unwrap_or_else(|| panic!("{text}"));
    let request = reply["requestId"].as_str().unwrap();
    for once in [&*format!("request={request}"), "code=\"sql_failed\""] {
        assert_eq!(line.matches(once).count(), 1, "{once} in {line}");
    }
    // What policies said is in spans and in the audit log.
    assert!(!line.contains("verdict"), "{line}");
}

#[test]
fn a_policy_cannot_allow_more_than_a_reply_holds() {
    let home = home_with_policy_file();
    let made = Session::start(&home);
    let id = made.id.clone();
    assert!(made.stdio.finish().success());
    // The bundled policy allows less than the program does.
    let guest = demanding(&[Obligation::MaxResultBytes(100 << 20)]);
    write_policies_but(&home, "row-limit", &[("demanding", guest.component(), Mode::Enforce)]);
    let mut it = Session { stdio: Stdio::start(&home), id };
    // A megabyte to a row: three fit a reply with their frames, the fourth would be over it.
    let reply = it.sql("select repeat('x', 1048576) from generate_series(1, 10)", json!({}));
    let set = &reply["result"]["resultSets"][0];
    assert_eq!((&set["returnedRowCount"], &set["truncatedBy"]), (&json!(3), &json!("bytes")));
    for (bytes, omitted) in [((1 << 20) - 1, false), (1 << 20, false), ((1 << 20) + 1, true)] {
        let reply = it.sql(&format!("select repeat('x', {bytes})"), json!({}));
        let value = &reply["result"]["resultSets"][0]["rows"][0][0];
        assert_eq!(value.get("omittedBytes") == Some(&json!(bytes)), omitted, "{bytes}");
    }
}
