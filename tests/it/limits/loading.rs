//! Policies that take too long to be loaded: whoever waits for them is answered, and they are not taken for good.

use std::process::Stdio as Pipe;

use pgsandbox::model::Mode;
use serde_json::json;

use super::deadlines::{check, late};
use crate::obligations::{home_with_policy_file, write_policies};
use crate::policies::guest::Guest;
use crate::program::{Home, Stdio};

#[test]
fn policies_that_take_too_long_are_waited_for_and_then_refuse_all_but_the_diagnosis() {
    let home = Home::fresh();
    let loaded_late = late("policy.load");
    let variables = [("PGSANDBOX_TEST_DEADLINE_MS", "500"), ("PGSANDBOX_TEST_FAULTS", loaded_late.as_str())];
    let mut stdio = Stdio::start_with(&home, &variables, Pipe::inherit());
    let reply = check(&mut stdio, "list_profiles", &json!({}), "policy_not_ready");
    let error = &reply["errors"][0];
    assert!(error["message"].as_str().unwrap().starts_with("the policies are still being loaded"), "{reply:#}");
    assert_eq!(error["retryable"], true, "{reply:#}");
    let reply = check(&mut stdio, "doctor", &json!({}), "ok");
    let checks = reply["result"]["checks"].as_array().unwrap();
    let of_policies = checks.iter().find(|check| check["name"] == "policies.loaded").unwrap();
    assert_eq!((&of_policies["status"], &reply["result"]["ok"]), (&json!("warn"), &json!(true)), "{reply:#}");
    assert!(stdio.finish().success());
    // What is late and comes in time is waited for.
    let variables = [("PGSANDBOX_TEST_FAULTS", "policy.load=delay:800")];
    let mut stdio = Stdio::start_with(&home, &variables, Pipe::inherit());
    check(&mut stdio, "list_profiles", &json!({}), "ok");
    assert!(stdio.finish().success());
}

#[test]
fn a_policy_that_takes_too_long_to_load_is_stopped_by_the_clock_where_its_fuel_lasts() {
    /// Much less than all the fuel of a load burns for, and much more than loading takes where nothing loops.
    const SHORT_MS: &str = "20";
    let home = home_with_policy_file();
    for (file, told) in [
        ("loop_configure", "settings"),
        ("loop_describe", "it does not describe itself"),
        ("loop_start", "it does not describe itself"),
    ] {
        write_policies(&home, &[("loops", Guest::from_file(file).component(), Mode::Enforce)]);
        let said = |deadline_ms: &str| {
            let mut command = home.command(&["policy", "list"]);
            let output = command.env("PGSANDBOX_TEST_DEADLINE_MS", deadline_ms).output().unwrap();
            assert!(!output.status.success(), "{file} was loaded");
            let text = String::from_utf8(output.stderr).unwrap();
            let line = text.lines().find(|line| line.contains("`loops`") || line.contains("loops"));
            line.unwrap_or_else(|| panic!("nothing of `loops` in: {text}")).to_owned()
        };
        let by_fuel = said("");
        assert!(by_fuel.contains(told) && by_fuel.contains("all fuel consumed"), "{file}: {by_fuel}");
        // The clock is a thread like any other, and may get its turn late; one that stops nothing never comes first.
        let by_clock = (0..10).map(|_| said(SHORT_MS)).find(|line| line.contains("interrupt"));
        let by_clock = by_clock.unwrap_or_else(|| panic!("{file}: fuel ended it each time"));
        assert!(by_clock.contains("policy_timeout"), "{file}: {by_clock}");
    }
}
