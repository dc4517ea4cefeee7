//! `policy bench` and `policy fuzz`.

use pgsandbox::author::cases;
use pgsandbox::model::{Denial, Verdict};
use serde_json::json;

use super::{Desk, bundled, run_on};
use crate::policies::guest::Guest;

#[test]
fn a_measurement_tells_time_fuel_memory_and_the_ratio_to_another() {
    let path = bundled("readonly");
    let ran = run_on(&path, "bench", &["--count", "50", "--baseline", path.to_str().unwrap(), "--format", "json"]);
    assert_eq!(ran.status, 0, "{}", ran.err);
    let found = ran.json();
    for one in [&found["component"], &found["baseline"]] {
        assert_eq!((&one["evaluations"], &one["failed"]), (&json!(50), &json!(0)), "{one}");
        for key in ["requests", "medianNs", "p99Ns", "medianFuel", "maxFuel", "memoryBytes", "snapshotBytes", "loadUs"]
        {
            assert!(one[key].as_u64().unwrap() > 0, "{key}: {one}");
        }
    }
    // Fuel is the same each time, whatever the machine does.
    assert_eq!(found["component"]["maxFuel"], found["baseline"]["maxFuel"]);
    assert!(found["ratio"].as_f64().unwrap() > 0.0);
    let ran = run_on(&path, "bench", &["--count", "20"]);
    assert!(ran.out.contains(" requests\ntime         median "), "{}", ran.out);
}

#[test]
fn what_cannot_be_measured_is_not_begun() {
    let desk = Desk::of(&Guest::new("p"));
    desk.write("cases.toml", "");
    let ran = desk.run("bench", &[]);
    assert!(ran.status == 2 && ran.err.contains("no cases to measure on"), "{}", ran.err);
    desk.write("cases.toml", "[[case]]\nname = \"a\"\noperation = \"nope\"\n[case.expect]\nverdict = \"pass\"\n");
    let ran = desk.run("bench", &[]);
    assert!(ran.status == 2 && ran.err.contains("on case `a`: `nope` is no operation"), "{}", ran.err);
    for (command, option, number) in [
        ("bench", "--count", "0"),
        ("bench", "--count", "10000001"),
        ("fuzz", "--count", "1000000001"),
        ("fuzz", "--seconds", "86401"),
        ("fuzz", "--seed", "-1"),
    ] {
        let ran = desk.run(command, &[option, number]);
        assert!(ran.status == 2 && ran.err.contains("a whole number"), "{command} {option} {number}: {}", ran.err);
    }
    assert_eq!(desk.run("bench", &["--baseline", "/nowhere"]).status, 2);
    let mut blind = Guest::new("p");
    (blind.covers, blind.concerns) = (vec![], vec!["fly".into()]);
    let ran = Desk::of(&blind).run("fuzz", &[]);
    assert!(ran.status == 2 && ran.err.contains("it wants to see no operation of this version"), "{}", ran.err);
}

#[test]
fn the_bundled_policies_break_no_rule() {
    for name in ["ownership", "statement-guard", "rate-limit", "clone-source"] {
        let ran = run_on(&bundled(name), "fuzz", &["--count", "300", "--seed", "7", "--format", "json"]);
        assert_eq!(ran.status, 0, "{name}: {}{}", ran.out, ran.err);
        assert_eq!(ran.json()["tried"], json!(300));
        let again = run_on(&bundled(name), "fuzz", &["--count", "300", "--seed", "7", "--format", "json"]);
        assert_eq!(ran.out, again.out, "the same seed gives the same requests");
    }
    let ran = run_on(&bundled("statement-guard"), "fuzz", &["--count", "300", "--seed", "1", "--monotone"]);
    assert_eq!(ran.status, 0, "{}", ran.out);
    assert!(ran.out.contains("seed 1: 300 requests, of which it passed 0, abstained from "), "{}", ran.out);
    assert!(ran.out.ends_with("no rule was broken\n"), "{}", ran.out);
}

/// Expects that a rule is found to be broken, and that what is printed is a case that can be read.
fn check_found(desk: &Desk, arguments: &[&str], code: &str) -> cases::Entry {
    let arguments: Vec<&str> = [arguments, &["--format", "json", "--seed", "3"]].concat();
    let ran = desk.run("fuzz", &arguments);
    assert_eq!(ran.status, 1, "{}{}", ran.out, ran.err);
    let found = ran.json();
    assert_eq!(found["violation"]["code"], code, "{}", ran.out);
    let written = found["violation"]["case"].as_str().unwrap();
    let mut entries = cases::read(written).unwrap_or_else(|faults| panic!("{faults:?}\n{written}"));
    assert_eq!(entries.len(), 1, "{written}");
    entries.remove(0)
}

#[test]
fn a_policy_that_traps_or_names_a_code_of_its_own_is_found_and_its_request_made_small() {
    let entry = check_found(&Desk::of(&Guest::from_file("trap")), &[], "policy_trapped");
    let small = cases::write(&entry.case);
    assert!(small.lines().count() < 10, "{small}");
    let mut guest = Guest::new("p");
    guest.decision.verdict =
        Verdict::Deny(Denial { code: "other".into(), message: "x".into(), audit: String::new(), retry_after_ms: None });
    check_found(&Desk::of(&guest), &[], "policy_output_invalid");
}

#[test]
fn a_denial_that_a_further_write_turns_is_found_where_the_policy_claims_it_is_not() {
    // Denies what has no statement, and passes the rest: the list of statements is the request's.
    let mut guest = Guest::from_file("denies_without_statements");
    guest.decision.verdict =
        Verdict::Deny(Denial { code: "no".into(), message: "x".into(), audit: String::new(), retry_after_ms: None });
    let desk = Desk::of(&guest);
    assert_eq!(desk.run("fuzz", &["--count", "200", "--seed", "3"]).status, 0);
    let entry = check_found(&desk, &["--monotone"], "not_monotone");
    assert_eq!(entry.expect.code.as_deref(), Some("no"));
    assert_eq!(entry.case.statements.map(|statements| statements.len()), Some(1));
}
