//! `policy check` and `policy eval`.

use pgsandbox::policy::Problem;
use serde_json::{Value, json};

use super::{Desk, Ran, bundled, run_on};
use crate::policies::guest::{Guest, encode, world};

fn places(ran: &Ran, key: &str) -> Vec<String> {
    let found = ran.json();
    found[key].as_array().unwrap().iter().map(|one| one["place"].as_str().unwrap().to_owned()).collect()
}

fn check(desk: &Desk, places_expected: &[&str], says: &str) {
    let ran = desk.run("check", &["--format", "json"]);
    assert_eq!(ran.status, 1, "{}", ran.out);
    assert_eq!(places(&ran, "faults"), places_expected, "{}", ran.out);
    assert!(ran.out.contains(says), "{says}: {}", ran.out);
    let text = desk.run("check", &[]);
    assert!(text.status == 1 && text.out.contains("FAULT "), "{}", text.out);
}

#[test]
fn every_bundled_policy_is_sound() {
    for name in [
        "clone-source",
        "extensions",
        "host-command",
        "ownership",
        "quota",
        "rate-limit",
        "readonly",
        "row-limit",
        "statement-guard",
    ] {
        let ran = run_on(&bundled(name), "check", &["--format", "json"]);
        assert_eq!((ran.status, places(&ran, "faults")), (0, vec![]), "{name}: {}", ran.out);
        let found = ran.json();
        assert_eq!(found["imports"], json!([]), "{name}");
        assert!((1..=65536).contains(&found["stackBytes"].as_u64().unwrap()), "{name}");
        assert!(found["memories"][0]["minBytes"].as_u64().unwrap() >= 65536, "{name}");
        assert!(found["snapshotBytes"].as_u64().unwrap() > 1000, "{name}");
        let tried = found["evaluations"].as_array().unwrap();
        assert!(!tried.is_empty() && tried.iter().all(|one| one["fuel"].as_u64().unwrap() > 0), "{name}");
        assert!(tried.iter().all(|one| one["memoryBytes"].as_u64().unwrap() >= 65536), "{name}");
    }
    let ran = run_on(&bundled("rate-limit"), "check", &[]);
    assert!(ran.out.contains("\nbuckets      ") && ran.out.ends_with("0 faults, 0 notes\n"), "{}", ran.out);
}

#[test]
fn a_component_that_imports_wasi_is_told_what_to_do() {
    let clock = "(module (import \"wasi:clocks/wall-clock@0.2.0\" \"now\" (func $now (result i64)))";
    let clock = Guest::new("p").wat().replacen("(module", clock, 1);
    let desk = Desk::with(&encode(&clock, &world("import wasi:clocks/wall-clock@0.2.0;"), "policy"));
    check(
        &desk,
        &["imports"],
        "it imports `wasi:clocks/wall-clock@0.2.0`, and a policy of `pgsandbox:policy@0.1.0` may import nothing",
    );
    check(
        &desk,
        &["imports"],
        "build it without WASI (for Rust: target `wasm32-unknown-unknown`, not `wasm32-wasip2`)",
    );
}

#[test]
fn what_is_no_policy_is_told_with_its_place() {
    let nothing = encode("(module)", "package a:b; world nothing {}", "nothing");
    check(&Desk::with(&nothing), &["exports"], "does not export `describe`, `configure` and `evaluate`");
    check(&Desk::with(b"no component at all"), &["component"], "no component that can be compiled");
    check(&Desk::with(b"\0asm\x01\0\0\0"), &["component"], "it is a core module and no component");
    check(&Desk::with(b""), &["component"], "");
}

#[test]
fn memory_beyond_what_a_policy_has_is_told() {
    let mut guest = Guest::new("p");
    guest.pages = 200;
    check(&Desk::of(&guest), &["memory", "component"], "unless its `limits.memory_kib` is 12800 or more");
    guest.pages = 300;
    check(
        &Desk::of(&guest),
        &["memory", "component"],
        "it begins with 19660800 bytes, over the 16777216 that a policy can have at most",
    );
}

#[test]
fn settings_that_are_refused_are_told_all_at_once_with_path_and_type() {
    let settings = "{\"max_live\": \"ten\", \"max_byts\": 1}";
    let ran = run_on(&bundled("quota"), "check", &["--settings", settings, "--format", "json"]);
    assert_eq!(
        (ran.status, places(&ran, "faults")),
        (1, vec!["settings.max_byts".to_owned(), "settings.max_live".to_owned()]),
        "{}",
        ran.out
    );
    assert!(ran.out.contains("a whole number is wanted here, and it is text"), "{}", ran.out);
    let mut refuses = Guest::from_file("refuses_settings");
    refuses.configured = Err(vec![Problem { path: "max".into(), message: "is no number".into() }]);
    let ran = Desk::of(&refuses).run("check", &["--format", "json"]);
    assert_eq!((ran.status, places(&ran, "faults")), (1, vec!["settings.max".to_owned()]), "{}", ran.out);
}

#[test]
fn a_policy_that_fails_over_an_operation_is_told_which() {
    let mut guest = Guest::from_file("trap");
    (guest.covers, guest.concerns) =
        (vec!["run_sql".into()], vec!["run_sql".into(), "doctor".into(), "fly".into(), "doctor".into()]);
    let desk = Desk::of(&guest);
    let ran = desk.run("check", &["--format", "json"]);
    // The trial at load asks for the first operation that the policy names, so the settings are refused there.
    assert_eq!(ran.status, 1, "{}", ran.out);
    assert!(ran.out.contains("policy_trapped"), "{}", ran.out);
    let notes = places(&ran, "notes");
    assert!(notes.contains(&"describe.concerns".to_owned()), "{}", ran.out);
    assert!(
        ran.out.contains("`fly` is no operation of this version") && ran.out.contains("`doctor` is named twice"),
        "{}",
        ran.out
    );
    guest.concerns = vec!["*".into()];
    guest.covers = vec!["*".into()];
    let ran = Desk::of(&guest).run("check", &["--format", "json"]);
    assert!(places(&ran, "faults").contains(&"evaluate(run_sql, before)".to_owned()), "{}", ran.out);
}

#[test]
fn what_is_seldom_meant_is_a_note_and_no_fault() {
    let ran = Desk::of(&Guest::new("p")).run("check", &["--format", "json"]);
    assert_eq!((ran.status, places(&ran, "faults")), (0, vec![]), "{}", ran.out);
    let notes = places(&ran, "notes");
    assert!(
        notes.contains(&"settings".to_owned()) && notes.contains(&"describe.settings-schema".to_owned()),
        "{notes:?}"
    );
}

fn verdict(ran: &Ran) -> Value {
    ran.json()["decision"]["verdict"].clone()
}

#[test]
fn one_request_is_decided_and_the_whole_decision_told() {
    let guard = bundled("statement-guard");
    let ran = run_on(&guard, "eval", &["--case", "reads and writes", "--format", "json"]);
    assert_eq!((ran.status, verdict(&ran)), (0, json!("abstain")), "{}", ran.out);
    let found = ran.json();
    assert!(found["fuel"].as_u64().unwrap() > 0 && found["componentSha256"].as_str().unwrap().len() == 64);
    assert_eq!(found["request"]["statements"][1]["class"], "write");
    let desk = Desk::of(&Guest::new("p"));
    let toml = desk.write("r.toml", "operation = \"run_sql\"\nsql = \"copy t from program 'x'\"\nsandbox = {}\n");
    let ran = run_on(&guard, "eval", &["--request", toml.to_str().unwrap(), "--format", "json"]);
    assert_eq!(ran.json()["decision"]["denial"]["code"], "class_not_allowed", "{}", ran.out);
    let ran = run_on(&guard, "eval", &["--request", toml.to_str().unwrap()]);
    assert!(
        ran.status == 0 && ran.out.contains("\nverdict      deny\ncode         class_not_allowed\nmessage      "),
        "{}",
        ran.out
    );
    assert!(ran.out.contains("\nfuel         ") && ran.out.contains("\ntime         "), "{}", ran.out);
}

#[test]
fn sql_that_is_nested_deep_is_read_as_a_server_reads_it() {
    let desk = Desk::of(&Guest::new("p"));
    for depth in [900, 5_000] {
        let (open, close) = ("(".repeat(depth), ")".repeat(depth));
        let text = format!("operation = \"run_sql\"\nsql = \"select {open}1{close}\"\n");
        let request = desk.write("r.toml", text);
        let ran = desk.run("eval", &["--request", request.to_str().unwrap(), "--format", "json"]);
        assert_eq!((ran.status, verdict(&ran)), (0, json!("pass")), "{}{}", ran.out, ran.err);
    }
}

#[test]
fn balances_and_settings_of_the_command_line_go_before_the_requests() {
    let desk = Desk::of(&Guest::new("p"));
    let request = desk.write("r.json", "{\"operation\": \"run_sql\", \"balances\": {\"a\": 1}}");
    let request = request.to_str().unwrap();
    let ran = desk.run("eval", &["--request", request, "--balances", "{\"b\": 7}", "--format", "json"]);
    assert_eq!(ran.json()["request"]["balances"], json!([{"bucket": "b", "remaining": 7}]), "{}", ran.out);
    let refused = |arguments: &[&str]| assert_eq!(desk.run("eval", arguments).status, 2, "{arguments:?}");
    refused(&["--request", request, "--balances", "7"]);
    refused(&["--request", request, "--case", "x"]);
    refused(&[]);
    refused(&["--case", "x"]);
    let ran = run_on(&bundled("quota"), "eval", &["--request", request, "--settings", "{\"max_live\": \"x\"}"]);
    assert!(ran.status == 1 && ran.err.contains("`settings.max_live`: a whole number is wanted here"), "{}", ran.err);
}

#[test]
fn a_policy_that_fails_over_a_request_is_told_with_its_code() {
    let desk = Desk::of(&Guest::from_file("trap"));
    let request = desk.write("r.toml", "operation = \"run_sql\"\n");
    let ran = desk.run("eval", &["--request", request.to_str().unwrap(), "--format", "json"]);
    assert_eq!((ran.status, &ran.json()["failure"]["code"]), (1, &json!("policy_trapped")), "{}", ran.out);
}
