//! Makes matching calls read-only.
//!
//! A call that any rule matches runs as the sandbox's read-only role in a read-only transaction, and gets no
//! credentials but read-only ones; what an operation cannot do read-only, the host refuses. The policy never refuses
//! by itself and answers for no operation. Owners are matched by the host, through `owners` sections.
//!
//! `rules` is a list; a rule matches if each of its parts does, and a part that is absent always does:
//!
//! | part | matches |
//! |---|---|
//! | `operations` | the operation, by name |
//! | `profiles` | the profile, by pattern; a call whose profile is not known matches |
//! | `labels` | the sandbox's labels: each key must be there with a value that fits the pattern |
//! | `groups` | a principal that is in one of the groups, by pattern |
//! | `not_groups` | a principal that is in none of the groups, by pattern |
//! | `clients` | the client program's own name for itself, by pattern: a convenience, never a barrier |

use std::collections::BTreeMap;

use pgsandbox_policy::{
    Bucket, Decision, Description, Label, Obligation, Pattern, Patterns, Policy, Problem, Problems, Request,
};

/// The operations that reach into a sandbox's data, or hand out a way to.
const OPERATIONS: [&str; 7] = [
    "explain_query",
    "get_connection_string",
    "prepare_for_repo",
    "run_repo_command",
    "run_sql",
    "seed_database",
    "validate_schema_change",
];

/// The settings.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    #[serde(default)]
    rules: Vec<RuleSettings>,
}

/// One rule as it is written.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RuleSettings {
    operations: Option<Vec<String>>,
    profiles: Option<Vec<String>>,
    labels: BTreeMap<String, String>,
    groups: Option<Vec<String>>,
    not_groups: Option<Vec<String>>,
    clients: Option<Vec<String>>,
}

/// The policy.
#[derive(Debug)]
pub struct Readonly {
    rules: Vec<Rule>,
}

#[derive(Debug)]
struct Rule {
    operations: Option<Vec<String>>,
    profiles: Option<Patterns>,
    labels: Vec<(String, Pattern)>,
    groups: Option<Patterns>,
    not_groups: Option<Patterns>,
    clients: Option<Patterns>,
}

impl Policy for Readonly {
    type Settings = Settings;

    fn describe() -> Description {
        Description::new("readonly", env!("CARGO_PKG_VERSION"), include_str!("../settings.schema.json"))
            .concerns(OPERATIONS)
    }

    fn configure(settings: Settings) -> Result<(Self, Vec<Bucket>), Vec<Problem>> {
        let mut problems = Problems::default();
        let rules = settings
            .rules
            .into_iter()
            .enumerate()
            .map(|(index, rule)| Rule::read(rule, &format!("rules[{index}]"), &mut problems))
            .collect();
        problems.done((Self { rules }, Vec::new()))
    }

    fn evaluate(&self, request: &Request) -> Decision {
        if self.rules.iter().any(|rule| rule.matches(request)) {
            Decision::abstain().demand(Obligation::ReadOnly)
        } else {
            Decision::abstain()
        }
    }
}

impl Rule {
    fn read(rule: RuleSettings, path: &str, problems: &mut Problems) -> Self {
        if let Some(operations) = &rule.operations {
            problems.check_known(&format!("{path}.operations"), operations, &OPERATIONS);
        }
        let mut labels = Vec::new();
        for (key, value) in rule.labels {
            match Pattern::new(&value) {
                Ok(pattern) => labels.push((key, pattern)),
                Err(message) => problems.add(format!("{path}.labels.{key}"), message),
            }
        }
        let mut patterns = |name: &str, list: Option<Vec<String>>| {
            let path = format!("{path}.{name}");
            let list = list?;
            if list.is_empty() {
                problems.add(path, "an empty list matches nothing; leave the part out to match everything");
                return None;
            }
            Some(Patterns::read(&list, &path, problems))
        };
        Self {
            profiles: patterns("profiles", rule.profiles),
            groups: patterns("groups", rule.groups),
            not_groups: patterns("not_groups", rule.not_groups),
            clients: patterns("clients", rule.clients),
            operations: rule.operations,
            labels,
        }
    }

    fn matches(&self, request: &Request) -> bool {
        let principal = &request.principal;
        let operation = self.operations.as_ref().is_none_or(|list| list.contains(&request.operation));
        // Not knowing where a call goes is no reason to let it write there.
        let profile = self
            .profiles
            .as_ref()
            .is_none_or(|patterns| request.server.as_ref().is_none_or(|server| patterns.matches(&server.profile)));
        let in_any = |patterns: &Patterns| principal.groups.iter().any(|group| patterns.matches(group));
        operation
            && profile
            && self.labels.iter().all(|(key, pattern)| carries(labels_of(request), key, pattern))
            && self.groups.as_ref().is_none_or(in_any)
            && !self.not_groups.as_ref().is_some_and(in_any)
            && self.clients.as_ref().is_none_or(|patterns| patterns.matches(&principal.client))
    }
}

/// Returns the labels of the sandbox, or those it shall get where there is none yet.
fn labels_of(request: &Request) -> &[Label] {
    request.sandbox.as_ref().map_or(&request.requested.labels, |sandbox| &sandbox.labels)
}

fn carries(labels: &[Label], key: &str, pattern: &Pattern) -> bool {
    labels.iter().any(|label| label.key == key && pattern.matches(&label.value))
}

pgsandbox_policy::export!(Readonly);

#[cfg(test)]
mod tests {
    use pgsandbox_policy::testing;

    use super::*;

    #[test]
    fn the_description_fits_the_settings() {
        testing::check_description::<Readonly>(include_str!("../default.json"));
    }

    #[test]
    fn the_cases_come_out_as_expected() {
        testing::check_cases::<Readonly>(include_str!("../cases.toml"), include_str!("../default.json"));
    }

    #[test]
    fn a_call_of_unknown_profile_is_not_let_write() {
        let policy: Readonly = testing::configured(r#"{"rules":[{"profiles":["prod"]}]}"#);
        let mut request = testing::request("run_sql");
        request.server = None;
        assert_eq!(policy.evaluate(&request).obligations, [Obligation::ReadOnly]);
    }

    #[test]
    fn every_fault_is_reported() {
        let settings = r#"{"rules":[{"operations":["run_sq"],"labels":{"env":""}},{"profiles":[]}]}"#;
        let paths: Vec<_> = testing::problems::<Readonly>(settings).into_iter().map(|(path, _)| path).collect();
        assert_eq!(paths, ["rules[0].operations[0]", "rules[0].labels.env", "rules[1].profiles"]);
    }
}
