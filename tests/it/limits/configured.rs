//! What an operator configures: each number, text and list at, just under and just over its bound.

use std::fs;

use pgsandbox::config::keys::{KEYS, Kind};
use pgsandbox::config::{Environment, load};
use serde_json::{Value, json};

/// Returns what is wrong with a configuration.
fn faults(config: &str) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pgsandbox.json");
    fs::write(&path, config).unwrap();
    let variables = [("PGSANDBOX_CONFIG", path.to_str().unwrap()), ("PGSANDBOX_HOME", "/srv/state")];
    match load(&Environment::of(variables, false)) {
        Ok(_) => Vec::new(),
        Err(error) => error.faults.iter().map(ToString::to_string).collect(),
    }
}

/// A configuration with one value at the place of a key.
fn with(path: &str, value: Value) -> String {
    let mut profile = json!({"name": "a", "managedLocal": true});
    let mut telemetry = json!({"enabled": true, "endpoint": "http://localhost"});
    let mut audit = json!({});
    // A default is not over its maximum, and a longest life not under the default.
    if path == "profiles[].defaultTtlMinutes" {
        profile["maxTtlMinutes"] = json!(525_600);
    }
    match path.split_once('.') {
        Some(("profiles[]", name)) => profile[name] = value,
        Some(("telemetry", name)) => telemetry[name] = value,
        Some(("audit", name)) => audit[name] = value,
        Some(_) | None => panic!("`{path}` is not known here"),
    }
    json!({"profiles": [profile], "telemetry": telemetry, "audit": audit}).to_string()
}

fn check(path: &str, value: Value, fits: bool) {
    let found = faults(&with(path, value.clone()));
    let shown = value.to_string().chars().take(60).collect::<String>();
    let place = path.replace("[]", "[0]");
    if fits {
        assert_eq!(found, [""; 0], "{path}: {shown}");
    } else {
        assert!(found.len() == 1 && found[0].starts_with(&format!("`{place}")), "{path}: {shown}: {found:?}");
    }
}

#[test]
fn every_number_of_the_configuration_is_taken_at_its_bounds_and_no_further() {
    let mut checked = 0;
    for key in KEYS {
        let Kind::Number { min, max } = key.kind else { continue };
        for (value, fits) in [(min, true), (min + 1, true), (max - 1, true), (max, true)] {
            check(key.path, json!(value), fits);
        }
        for value in [min - 1, max + 1, u64::MAX] {
            check(key.path, json!(value), false);
        }
        for value in [json!(-1), json!(1.5), json!("10"), json!(null), json!(1e30)] {
            check(key.path, value, false);
        }
        checked += 1;
    }
    assert!(checked >= 7, "{checked}");
}

#[test]
fn majors_are_taken_at_their_bounds_and_no_further() {
    for (major, fits) in [(12, false), (13, true), (99, true), (100, false)] {
        check("profiles[].postgresVersion", json!(major), fits);
        check("profiles[].postgresVersion", json!(format!("{major}.1")), fits);
    }
}

#[test]
fn names_texts_and_lists_are_taken_at_their_bounds_and_no_further() {
    for (length, fits) in [(63, true), (64, true), (65, false), (0, false)] {
        let name = "n".repeat(length);
        let found = faults(&json!({"profiles": [{"name": name, "managedLocal": true}]}).to_string());
        assert_eq!(found.is_empty(), fits, "a name of {length}: {found:?}");
    }
    for (length, fits) in [(23, true), (24, true), (25, false)] {
        check("profiles[].databasePrefix", json!("p".repeat(length)), fits);
    }
    for (length, fits) in [(62, true), (63, true), (64, false)] {
        check("profiles[].allowedExtensions", json!(["x".repeat(length)]), fits);
    }
    for (count, fits) in [(999, true), (1000, true), (1001, false)] {
        let names: Vec<_> = (0..count).map(|n| format!("x{n}")).collect();
        check("profiles[].allowedExtensions", json!(names), fits);
    }
    let url = |length: usize| format!("http://{}", "h".repeat(length - "http://".len()));
    for (length, fits) in [(8191, true), (8192, true), (8193, false)] {
        check("telemetry.endpoint", json!(url(length)), fits);
    }
}

#[test]
fn a_file_is_read_up_to_its_bound_and_no_further() {
    let padded = |bytes: usize| {
        let text = json!({"profiles": [{"name": "a", "managedLocal": true}]}).to_string();
        format!("{text}{}", " ".repeat(bytes - text.len()))
    };
    for bytes in [(1 << 20) - 1, 1 << 20] {
        assert_eq!(faults(&padded(bytes)), [""; 0], "{bytes}");
    }
    let found = faults(&padded((1 << 20) + 1));
    assert!(found.len() == 1 && found[0].contains("1048576"), "{found:?}");
}
