//! `policy test`.

use std::fs;
use std::path::Path;

use pgsandbox::author::subject::CASES_BYTES_MAX;
use pgsandbox::model::{Denial, Obligation, Verdict};
use serde_json::{Value, json};

use super::{Desk, bundled, run_on};
use crate::policies::guest::Guest;

const PASSES: &str = "[[case]]\nname = \"it passes\"\noperation = \"run_sql\"\n[case.expect]\nverdict = \"pass\"\n";

fn reasons(ran: &Value) -> Vec<&str> {
    let cases = ran["cases"].as_array().unwrap().iter();
    cases.flat_map(|case| case["reasons"].as_array().unwrap()).map(|reason| reason["code"].as_str().unwrap()).collect()
}

#[test]
fn the_cases_of_a_bundled_policy_pass_and_the_digest_is_told() {
    let ran = run_on(&bundled("statement-guard"), "test", &["--require-coverage", "--fail-on-empty"]);
    assert_eq!(ran.status, 0, "{}{}", ran.out, ran.err);
    let digests = fs::read_to_string(bundled("digests.txt")).unwrap();
    let digest = digests.lines().find(|line| line.contains("statement-guard.wasm")).unwrap().split(' ').next().unwrap();
    assert!(
        ran.out.starts_with("policy `statement-guard` ") && ran.out.contains(&format!(", sha256:{digest}\n")),
        "{}",
        ran.out
    );
    assert!(ran.out.contains("ok   reads and writes\n") && ran.out.contains(" cases, 0 failed\n"), "{}", ran.out);
    assert!(ran.out.ends_with(" declared, each met\n"), "{}", ran.out);
}

#[test]
fn a_case_that_comes_out_otherwise_shows_the_difference_and_the_request() {
    let mut guest = Guest::new("g");
    guest.decision.obligations = vec![Obligation::MaxRows(7)];
    let desk = Desk::of(&guest);
    desk.write("cases.toml", PASSES);
    let ran = desk.run("test", &[]);
    assert_eq!(ran.status, 1, "{}", ran.err);
    for part in [
        "FAIL it passes (line 1)",
        "unexpected: obligations: expected [], came [\"max-rows 7\"]",
        "\"operation\":\"run_sql\"",
        "1 case, 1 failed",
    ] {
        assert!(ran.out.contains(part), "{part}: {}", ran.out);
    }
    let ran = desk.run("test", &["--output", "json"]).json();
    assert_eq!((&ran["ok"], &ran["failed"]), (&json!(false), &json!(1)));
    let case = &ran["cases"][0];
    assert_eq!(case["differences"], json!([{"key": "obligations", "expected": "[]", "came": "[\"max-rows 7\"]"}]));
    assert_eq!(case["request"]["principal"]["owner"], "ana");
    assert_eq!(case["decision"]["obligations"], json!(["max-rows 7"]));
}

#[test]
fn the_cases_of_the_reference_page_come_out() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference/policy-cases.md");
    let page = fs::read_to_string(page).unwrap();
    let cases = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let desk = Desk::with(b"");
    let file = desk.write("page.toml", cases);
    let ran = run_on(&bundled("statement-guard"), "test", &["--cases", file.to_str().unwrap()]);
    assert!(ran.status == 0 && ran.out.contains("2 cases, 0 failed"), "{}{}", ran.out, ran.err);
}

#[test]
fn codes_that_no_case_meets_are_told_and_are_failures_where_coverage_is_asked_for() {
    let desk = Desk::of(&Guest::new("g"));
    desk.write("cases.toml", PASSES);
    let ran = desk.run("test", &[]);
    assert_eq!((ran.status, ran.out.contains("codes: 1 declared, no case meets `no`")), (0, true), "{}", ran.out);
    let ran = desk.run("test", &["--require-coverage", "--format", "json"]);
    assert_eq!((ran.status, &ran.json()["codes"]), (1, &json!({"declared": ["no"], "unmet": ["no"]})));
}

#[test]
fn a_code_that_is_not_declared_and_a_trap_fail_under_codes_of_their_own() {
    let mut undeclared = Guest::new("g");
    undeclared.decision.verdict =
        Verdict::Deny(Denial { code: "other".into(), message: "x".into(), audit: String::new(), retry_after_ms: None });
    // A component that fails on its trial at load takes no settings: this one fails over everything.
    for (guest, code) in [
        (Guest::from_file("trap"), "policy_trapped"),
        (Guest::from_file("grow_memory"), "policy_memory"),
        (Guest::from_file("loop_evaluate"), "policy_timeout"),
        (undeclared, "policy_output_invalid"),
    ] {
        let desk = Desk::of(&guest);
        desk.write("cases.toml", PASSES);
        let ran = desk.run("test", &["--output", "json"]);
        assert_eq!((ran.status, reasons(&ran.json())), (1, vec![code]), "{}", ran.out);
    }
}

#[test]
fn what_the_policy_would_not_be_asked_and_what_is_no_operation_fail() {
    let mut guest = Guest::new("g");
    (guest.covers, guest.concerns) = (vec![], vec!["run_sql".into()]);
    let desk = Desk::of(&guest);
    desk.write("cases.toml", PASSES.replace("run_sql", "doctor"));
    assert_eq!(reasons(&desk.run("test", &["--output", "json"]).json()), ["not_concerned"]);
    desk.write("cases.toml", PASSES.replace("run_sql", "run_sqll"));
    assert_eq!(reasons(&desk.run("test", &["--output", "json"]).json()), ["case_unusable"]);
    desk.write("cases.toml", PASSES.replace("[case.expect]", "sql = \"select 'open\"\n[case.expect]"));
    assert_eq!(reasons(&desk.run("test", &["--output", "json"]).json()), ["case_unusable"]);
}

#[test]
fn settings_that_the_policy_refuses_fail_with_their_path_and_the_type_that_is_wanted() {
    let path = bundled("quota");
    let ran = run_on(&path, "test", &["--settings", "{\"max_live\": \"ten\"}", "--output", "json"]).json();
    let reason = ran["cases"].as_array().unwrap().iter().flat_map(|case| case["reasons"].as_array().unwrap()).next();
    let reason = reason.expect("a case without settings of its own failed");
    assert_eq!(reason["code"], "settings_refused");
    assert_eq!(reason["detail"], "`settings.max_live`: a whole number is wanted here, and it is text");
}

#[test]
fn nothing_is_begun_without_something_to_begin_with() {
    let desk = Desk::of(&Guest::new("g"));
    let told = |arguments: &[&str], says: &str| {
        let ran = desk.run("test", arguments);
        assert!(
            ran.status == 2 && ran.err.contains(says) && ran.out.is_empty(),
            "{} {says}: {}{}",
            ran.status,
            ran.out,
            ran.err
        );
    };
    told(&[], "no cases are named");
    desk.write("cases.toml", "");
    assert_eq!(desk.run("test", &[]).status, 0);
    told(&["--fail-on-empty"], "there are no cases to run");
    told(&["--settings", "[]"], "must be a JSON object");
    told(&["--settings", "@/nowhere"], "cannot read `/nowhere`");
    told(&["--cases", "/nowhere"], "cannot read `/nowhere`");
    desk.write("cases.toml", "#".repeat(CASES_BYTES_MAX + 1));
    told(&[], &format!("has more than {CASES_BYTES_MAX} bytes"));
    desk.write("cases.toml", "#".repeat(CASES_BYTES_MAX));
    assert_eq!(desk.run("test", &[]).status, 0);
    desk.write("cases.toml", "[[case]]\nname = 3\n");
    told(&[], "line 2, `case[0].name`: invalid type");
    let ran = desk.run("test", &["--output", "json"]);
    assert_eq!((ran.status, &ran.json()["ok"]), (2, &json!(false)));
    desk.write("q.wasm", "x");
    told(&[], "holds 2 components, `p.wasm` and `q.wasm` among them");
    assert_eq!(run_on(Path::new("/nowhere"), "test", &[]).status, 2);
}

#[test]
fn a_report_for_build_servers_is_xml_whatever_names_and_texts_hold() {
    let mut guest = Guest::new("g<&>\"'");
    guest.decision.warnings = vec!["]]> & <b>".into()];
    let desk = Desk::of(&guest);
    desk.write("cases.toml", PASSES.replace("it passes", "<a> & \\\"b\\\" \\u001b ]]>"));
    let ran = desk.run("test", &["--output", "junit", "--require-coverage"]);
    assert_eq!(ran.status, 1);
    assert!(
        ran.out.starts_with("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites tests=\"2\" failures=\"2\""),
        "{}",
        ran.out
    );
    assert!(ran.out.contains("name=\"&lt;a&gt; &amp; &quot;b&quot; \u{fffd} ]]&gt;\""), "{}", ran.out);
    assert!(ran.out.contains("type=\"unexpected\"") && ran.out.contains("type=\"coverage\""), "{}", ran.out);
    // Outside of tags there is no sign that could begin another.
    let outside: String = ran.out.split('<').filter_map(|part| part.split_once('>')).map(|(_, text)| text).collect();
    assert!(!outside.contains('>'), "{outside}");
    let odd = |c: char| c.is_control() && c != '\n';
    assert!(!ran.out.contains(odd), "{:?}", ran.out);
}
