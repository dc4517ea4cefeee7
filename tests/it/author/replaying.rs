//! `policy replay`, `policy diff` and `policy explain`: decided requests are asked about again.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use pgsandbox::audit::{canonical, read_back};
use pgsandbox::author::cases::{self, Operations};
use pgsandbox::model::{Context, RequestId};
use pgsandbox::operation::OPERATIONS;
use serde_json::{Value, json};

use super::{bundled, run_on};
use crate::program::Home;

const POLICIES: [&str; 9] = [
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

fn operations() -> Operations {
    Operations(OPERATIONS.iter().map(|entry| (entry.spec.name, entry.spec.impact)).collect())
}

fn line(request: &str, policies: &Value) -> String {
    let request: Value = serde_json::from_str(request).unwrap();
    let decision = json!({"verdict": "allowed", "generation": 1, "digest": "x", "policies": policies});
    let id = RequestId::fresh().to_string();
    json!({"kind": "close", "id": id, "at": "2026-11-30T00:00:00Z", "outcome": "ok", "decision": decision, "request": request})
        .to_string()
}

/// The requests of every bundled policy's cases.
fn requests() -> Vec<Context> {
    let mut all = Vec::new();
    for name in POLICIES {
        let text = fs::read_to_string(bundled(name).join("cases.toml")).unwrap();
        let entries = cases::read(&text).unwrap();
        all.extend(entries.iter().map(|entry| entry.case.asked(&operations(), name).unwrap().context));
    }
    all
}

#[test]
fn a_request_comes_back_from_its_record_as_policies_saw_it_or_not_at_all() {
    let names = operations();
    let (mut back, mut left_out, mut seen) = (0, 0, BTreeSet::new());
    for context in requests() {
        let record = canonical(&context);
        let recorded = read_back(&line(&record, &json!([])), |name| names.name(name)).unwrap().unwrap();
        match recorded.request {
            Ok(again) => {
                assert_eq!(canonical(&again), record);
                let again = Context { request_id: context.request_id, ..again };
                assert_eq!(again, context);
                back += 1;
                seen.insert(context.operation);
            }
            Err(why) => {
                assert!(why.contains("leaves out") && context.requested.command.len() > 1, "{why}: {record}");
                left_out += 1;
            }
        }
    }
    assert!(back > 150 && left_out > 5 && seen.len() > 15, "{back} {left_out} {seen:?}");
}

#[test]
fn what_is_no_record_of_this_version_is_said() {
    let names = operations();
    let record = canonical(&requests()[0]);
    let read = |text: &str| read_back(text, |name| names.name(name));
    assert!(read("{").is_err() && read("[]").is_err());
    assert!(read("{\"kind\":\"open\",\"at\":\"x\"}").unwrap().is_none());
    for (from, to, says) in [
        ("\"format\":1", "\"format\":2", "its format is 2"),
        ("\"phase\":\"before\"", "\"phase\":\"later\"", "`later`, which this version does not know"),
        ("\"replayable\":true", "\"replayable\":false", "leaves out"),
    ] {
        let changed = record.replacen(from, to, 1);
        assert_ne!(changed, record);
        let found = read(&line(&changed, &json!([]))).unwrap().unwrap().request.unwrap_err();
        assert!(found.contains(says), "{found}");
    }
}

/// Runs a command of `policy` that names no component first.
fn run(arguments: &[&str]) -> (i32, Value, String) {
    let ran = run_on(Path::new(arguments[1]), arguments[0], &arguments[2..]);
    (ran.status, serde_json::from_str(&ran.out).unwrap_or_default(), ran.err)
}

#[test]
fn a_real_log_is_asked_about_again_and_a_stricter_candidate_says_what_it_would_refuse() {
    let home = Home::fresh();
    for arguments in [&["list-profiles"][..], &["list-databases"], &["doctor"], &["create-database"]] {
        home.run(arguments);
    }
    let log = home.state().join("audit");
    let (log, ownership) = (log.to_str().unwrap(), bundled("ownership"));
    let ownership = ownership.to_str().unwrap();
    let candidate = format!("--candidate={ownership}");
    let (status, found, err) = run(&["replay", &candidate, "--records", log, "--format", "json"]);
    assert_eq!((status, &found["changed"], found["ok"].clone()), (0, &json!(0), json!(true)), "{found:#} {err}");
    assert!(found["asked"].as_u64().unwrap() >= 4 && found["same"] == found["asked"], "{found:#}");

    // The same policy, for whom nobody of the team is the owner of anything in their name.
    let rate = bundled("rate-limit");
    let rate = rate.to_str().unwrap();
    let none = "{\"impacts\": {\"reads\": {\"burst\": 1, \"per_interval\": 1, \"interval_ms\": 1000}}}";
    let (status, found, err) =
        run(&["diff", rate, rate, "--records", log, "--settings-after", none, "--format", "json", "--show", "1"]);
    assert_eq!(status, 1, "{found:#} {err}");
    assert!(found["changed"].as_u64().unwrap() >= 1, "{found:#}");
    assert_eq!(found["changes"].as_array().unwrap().len(), 1, "{found:#}");
    assert_eq!(found["before"]["componentSha256"], found["after"]["componentSha256"]);
    let change = &found["changes"][0];
    assert!(change["request"]["operation"].is_string() && change["before"] != change["after"], "{change:#}");

    let id = change["id"].as_str().unwrap();
    let explained = String::from_utf8(home.run(&["policy", "explain", id]).stdout).unwrap();
    assert!(explained.contains("decision    allowed by generation 1"), "{explained}");
    assert!(explained.contains("ownership           enforce  pass"), "{explained}");
    for wrong in ["nope", "00000000-0000-7000-8000-000000000000"] {
        assert_eq!(home.run(&["policy", "explain", wrong]).status.code(), Some(2));
    }
}

#[test]
fn a_denial_that_a_candidate_would_make_is_counted_as_newly_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("lines.jsonl");
    let said = json!([{"policy": "statement-guard", "mode": "enforce", "said": "abstain", "elapsed_us": 1, "fuel": 1}]);
    let guard = bundled("statement-guard");
    let text = fs::read_to_string(guard.join("cases.toml")).unwrap();
    let refused = cases::read(&text).unwrap();
    let refused = refused.iter().filter(|entry| entry.name.starts_with(char::is_alphabetic));
    let contexts = refused.map(|entry| entry.case.asked(&operations(), "statement-guard").unwrap().context);
    let lines: String = contexts.map(|context| line(&canonical(&context), &said) + "\n").collect();
    fs::write(&file, &lines).unwrap();
    let records = file.to_str().unwrap();
    let candidate = format!("--candidate={}", guard.display());
    let (status, found, err) = run(&["replay", &candidate, "--records", records, "--format", "json"]);
    assert_eq!(status, 1, "{err}");
    assert!(found["newlyRefused"].as_u64().unwrap() > 0, "{found:#}");
    let sum = |keys: [&str; 2]| keys.iter().map(|key| found[*key].as_u64().unwrap()).sum::<u64>();
    assert_eq!(sum(["same", "changed"]), found["asked"].as_u64().unwrap());
    assert_eq!(sum(["asked", "notReplayable"]), lines.lines().count() as u64);

    let (status, _, err) = run(&["replay", &candidate, "--records", records, "--as", "nobody"]);
    assert!(status == 2 && err.contains("no decision of the records has a policy `nobody`"), "{err}");
    for (name, text, says) in [("cut", "{\"kind\":\"clo", ""), ("bad", "{}\n", "line 1: it is no line of an audit log")]
    {
        let file = dir.path().join(name);
        fs::write(&file, text).unwrap();
        let (status, _, err) = run(&["replay", &candidate, "--records", file.to_str().unwrap()]);
        assert!(status == 2 && err.contains(says), "{name}: {err}");
    }
    let missing = Command::new(env!("CARGO_BIN_EXE_pgsandbox"))
        .args(["policy", "replay", &candidate, "--records", "/nowhere"])
        .output()
        .unwrap();
    assert!(missing.status.code() == Some(2), "{missing:?}");
}

#[test]
fn no_more_changes_are_kept_than_can_be_shown() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("lines.jsonl");
    let said = json!([{"policy": "quota", "mode": "enforce", "said": "deny", "code": "x", "elapsed_us": 1, "fuel": 1}]);
    let one = line(&canonical(&requests()[0]), &said) + "\n";
    fs::write(&file, one.repeat(1_001)).unwrap();
    let (records, quota) = (file.to_str().unwrap(), bundled("quota"));
    let candidate = format!("--candidate={}", quota.display());
    let shown = |most| run(&["replay", &candidate, "--records", records, "--format", "json", "--show", most]);
    let (status, found, err) = shown("1000");
    assert_eq!((status, &found["changed"], &found["newlyAllowed"]), (1, &json!(1_001), &json!(1_001)), "{err}");
    assert_eq!(found["changes"].as_array().unwrap().len(), 1_000);
    assert_eq!(shown("1001").0, 2);
    let (_, found, _) = run(&["replay", &candidate, "--records", records, "--format", "json"]);
    assert_eq!(found["changes"].as_array().unwrap().len(), 20);
}
