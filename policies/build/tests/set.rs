//! The bundled policies as a set: what they cover, and what they say together by default.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::collections::BTreeSet;

use pgsandbox_policy::{Decision, Description, Policy, Request, Verdict, testing};

/// A policy of the set with its default settings.
struct Member {
    about: Description,
    default_settings: &'static str,
    /// Returns what is wrong with settings.
    problems: fn(&str) -> Vec<(String, String)>,
    decide: Box<dyn Fn(&Request) -> Decision>,
}

fn member<P: Policy + 'static>(default_settings: &'static str) -> Member {
    let policy: P = testing::configured(default_settings);
    Member {
        about: P::describe(),
        default_settings,
        problems: testing::problems::<P>,
        decide: Box::new(move |request| policy.evaluate(request)),
    }
}

macro_rules! set {
    ($($folder:literal $policy:ty),+ $(,)?) => {
        vec![$(($folder, member::<$policy>(include_str!(concat!("../../", $folder, "/default.json"))))),+]
    };
}

fn set() -> Vec<(&'static str, Member)> {
    set![
        "clone-source" policy_clone_source::ClonePolicy,
        "destructive-guard" policy_destructive_guard::DestructiveGuard,
        "extensions" policy_extensions::Extensions,
        "host-command" policy_host_command::HostCommand,
        "maintenance-window" policy_maintenance_window::MaintenanceWindow,
        "ownership" policy_ownership::Ownership,
        "quota" policy_quota::Quota,
        "rate-limit" policy_rate_limit::RateLimit,
        "readonly" policy_readonly::Readonly,
        "required-labels" policy_required_labels::RequiredLabels,
        "row-limit" policy_row_limit::RowLimit,
        "rules" policy_rules::Rules,
        "statement-guard" policy_statement_guard::StatementGuard,
    ]
}

/// The policies that apply without a policy file.
fn default_set() -> Vec<(&'static str, Member)> {
    let bundled = include_str!("../../bundled.rs");
    let applies = |name: &str| {
        let entry = bundled.split("Bundled {").find(|entry| entry.contains(&format!("name: \"{name}\",")));
        entry.unwrap().contains("by_default: true,")
    };
    set().into_iter().filter(|(name, _)| applies(name)).collect()
}

/// What those say together: refused by whom, or passed by whom.
fn together(request: &Request) -> Result<Vec<&'static str>, (&'static str, String)> {
    let mut passed = Vec::new();
    for (name, member) in default_set() {
        let concerns = &member.about.concerns;
        if !concerns.iter().any(|c| c == "*" || *c == request.operation) {
            continue;
        }
        match (member.decide)(request).verdict {
            Verdict::Deny(denial) => return Err((name, denial.code)),
            Verdict::Pass if member.about.covers.contains(&request.operation) => passed.push(name),
            Verdict::Pass | Verdict::Abstain => {}
        }
    }
    Ok(passed)
}

#[test]
fn a_policy_is_called_what_its_folder_is() {
    for (folder, member) in set() {
        assert_eq!(member.about.name, folder);
    }
}

#[test]
fn every_operation_is_covered() {
    let covered: BTreeSet<String> = default_set().into_iter().flat_map(|(_, member)| member.about.covers).collect();
    let operations: BTreeSet<String> = testing::OPERATIONS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(covered, operations);
}

#[test]
fn limiters_answer_for_nothing() {
    for (name, member) in set() {
        if ["quota", "rate-limit", "readonly", "row-limit"].contains(&name) {
            assert!(member.about.covers.is_empty() && member.about.codes.is_empty(), "{name}");
        }
    }
}

#[test]
fn an_owner_may_do_everything_with_its_own_sandbox_but_run_commands() {
    for (operation, _) in testing::OPERATIONS {
        let mut request = testing::request(operation);
        request.sandbox = Some(pgsandbox_policy::Sandbox {
            id: "x".into(),
            name: "x".into(),
            owner: "ana".into(),
            group_owner: None,
            labels: Vec::new(),
            origin: pgsandbox_policy::Origin::Empty,
            age_seconds: 1,
            seconds_left: 1,
            bytes: None,
        });
        request.clone_source = Some(pgsandbox_policy::CloneSource {
            name: Some("staging".into()),
            host: "localhost".into(),
            port: 5432,
            database: "app".into(),
            user: "reader".into(),
            tls: pgsandbox_policy::Tls::Disabled,
            production: false,
            schema_only: false,
            reason: None,
        });
        let runs_commands =
            ["prepare_for_repo", "run_repo_command", "seed_database", "validate_schema_change"].contains(operation);
        match together(&request) {
            Ok(passed) => assert!(!runs_commands && !passed.is_empty(), "{operation}: {passed:?}"),
            Err((by, code)) => assert!(runs_commands && by == "host-command", "{operation}: {by} {code}"),
        }
    }
}

/// Lays settings over others, as a policy file does: whole keys replace those beneath.
fn over(beneath: &serde_json::Value, settings: Option<&toml::Value>) -> serde_json::Value {
    let mut all = beneath.clone();
    let settings = settings.map_or(serde_json::Value::Null, |settings| serde_json::to_value(settings).unwrap());
    for (key, value) in settings.as_object().into_iter().flatten() {
        all[key] = value.clone();
    }
    all
}

#[test]
fn the_guide_shows_settings_that_are_accepted() {
    let guide = include_str!("../../../docs/guides/bundled-policies.md");
    let set = set();
    let mut shown = 0;
    for block in guide.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()) {
        let file: toml::Table = block.parse().unwrap();
        for policy in file["policy"].as_array().unwrap() {
            let source = policy["source"].as_str().unwrap();
            let (_, member) = set.iter().find(|(name, _)| *name == source).unwrap();
            let defaults = serde_json::from_str(member.default_settings).unwrap();
            let settings = over(&defaults, policy.get("settings"));
            let sections = policy.get("owners").and_then(toml::Value::as_table).into_iter().flatten();
            let sections = sections.map(|(_, section)| over(&settings, Some(section)));
            for settings in sections.chain([settings.clone()]) {
                assert_eq!((member.problems)(&settings.to_string()), [], "{source}: {settings}");
                shown += 1;
            }
        }
    }
    assert!(shown > 5, "the guide shows hardly any settings");
}

#[test]
fn the_bindings_are_of_the_world_that_is_there() {
    let wit = include_bytes!("../../../wit/policy.wit");
    let first = include_str!("../../sdk/src/bindings.rs").lines().next().unwrap_or_default();
    assert!(first.contains(&sha256(wit)), "wit/policy.wit has changed; run `policies-build bindings`: {first}");
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::{Digest as _, Sha256};
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
