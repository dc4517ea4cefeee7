//! Decides which labels a sandbox to be made must carry, and which it may not.
//!
//! | setting | meaning | absent |
//! |---|---|---|
//! | `required` | key → patterns, one of which the label's value must fit; `["*"]` is any value | no label is required |
//! | `forbidden` | patterns of keys that a caller may not give | none |
//!
//! It is about what a caller asks for. A fork carries the labels of what it is a copy of, and these count; those of a template are
//! not known when it is asked for, so what is required is named in the call. Labels that other policies add do not count:
//! what is always given need not be asked for.

use std::collections::BTreeMap;

use pgsandbox_policy::statement::clean;
use pgsandbox_policy::{Bucket, Decision, Description, Label, Patterns, Phase, Policy, Problem, Problems, Request};

/// The operations that make sandboxes.
const CONCERNS: [&str; 5] =
    ["clone_database", "create_database", "create_sandbox_from_template", "fork_database", "validate_schema_change"];
/// Makes a sandbox only where it names none.
const VALIDATING: &str = "validate_schema_change";
/// Makes one out of another, with its labels.
const FORKING: &str = "fork_database";

const LABEL_NOT_ALLOWED: &str = "label_not_allowed";
const LABEL_REQUIRED: &str = "label_required";

/// The longest key of a label, in bytes, as the host takes them.
const KEY_BYTES_MAX: usize = 128;

/// The settings.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    required: BTreeMap<String, Vec<String>>,
    forbidden: Vec<String>,
}

/// The policy.
#[derive(Debug)]
pub struct RequiredLabels {
    required: Vec<(String, Patterns)>,
    forbidden: Patterns,
}

impl Policy for RequiredLabels {
    type Settings = Settings;

    fn describe() -> Description {
        Description::new("required-labels", env!("CARGO_PKG_VERSION"), include_str!("../settings.schema.json"))
            .concerns(CONCERNS)
            .codes([LABEL_NOT_ALLOWED, LABEL_REQUIRED])
    }

    fn configure(settings: Settings) -> Result<(Self, Vec<Bucket>), Vec<Problem>> {
        let mut problems = Problems::default();
        let forbidden = Patterns::read(&settings.forbidden, "forbidden", &mut problems);
        let mut required = Vec::with_capacity(settings.required.len());
        for (key, values) in settings.required {
            let path = format!("required.{key}");
            if key.is_empty() || key.len() > KEY_BYTES_MAX || key.chars().any(char::is_control) {
                problems.add(&path, format!("a label's key has 1 to {KEY_BYTES_MAX} bytes and no control characters"));
            }
            if values.is_empty() {
                problems.add(&path, "an empty list allows no value; write `[\"*\"]` for any");
            }
            if forbidden.matches(&key) {
                problems.add(&path, "the key is forbidden as well, so that nothing could be made");
            }
            let values = Patterns::read(&values, &path, &mut problems);
            required.push((key, values));
        }
        problems.done((Self { required, forbidden }, Vec::new()))
    }

    fn evaluate(&self, request: &Request) -> Decision {
        let makes_none = request.operation == VALIDATING && request.sandbox.is_some();
        if makes_none || request.phase != Phase::Before {
            return Decision::abstain();
        }
        let asked = &request.requested.labels;
        if let Some(label) = asked.iter().find(|label| self.forbidden.matches(&label.key)) {
            let key = clean(&label.key);
            return Decision::deny(
                LABEL_NOT_ALLOWED,
                format!("the label `{key}` may not be given; leave it out"),
                format!("the label `{key}` is forbidden"),
            );
        }
        let copied = request.sandbox.as_ref().filter(|_| request.operation == FORKING);
        let copied = copied.map_or(&[][..], |sandbox| sandbox.labels.as_slice());
        for (key, values) in &self.required {
            let is_it = |label: &&Label| label.key == *key;
            match asked.iter().chain(copied).find(is_it) {
                None => {
                    return Decision::deny(
                        LABEL_REQUIRED,
                        format!("a sandbox needs the label `{key}`, with a value that fits one of {}", values.quoted()),
                        format!("the label `{key}` is missing"),
                    );
                }
                Some(label) if !values.matches(&label.value) => {
                    let value = clean(&label.value);
                    return Decision::deny(
                        LABEL_NOT_ALLOWED,
                        format!("the label `{key}` may not be `{value}`; its value fits one of {}", values.quoted()),
                        format!("the label `{key}` has a value that is not allowed"),
                    );
                }
                Some(_) => {}
            }
        }
        Decision::abstain()
    }
}

pgsandbox_policy::export!(RequiredLabels);

#[cfg(test)]
mod tests {
    use pgsandbox_policy::testing;

    use super::*;

    #[test]
    fn the_description_fits_the_settings() {
        testing::check_description::<RequiredLabels>(include_str!("../default.json"));
    }

    #[test]
    fn the_cases_come_out_as_expected() {
        testing::check_cases::<RequiredLabels>(include_str!("../cases.toml"), include_str!("../default.json"));
    }

    #[test]
    fn every_fault_is_reported() {
        let settings = r#"{"required":{"":["x"],"a":[],"b":[""],"c":["*"]},"forbidden":["c*",""]}"#;
        let paths: Vec<_> = testing::problems::<RequiredLabels>(settings).into_iter().map(|(path, _)| path).collect();
        assert_eq!(paths, ["forbidden[1]", "required.", "required.a", "required.b[0]", "required.c"]);
    }
}
