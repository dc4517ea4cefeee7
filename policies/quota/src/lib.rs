//! Limits how many sandboxes an owner may have at once, how large they may be together, and how long they live.
//!
//! It never counts: the limits are demands that the host makes true in the transaction that reserves the sandbox, so
//! twenty parallel calls get no more than one would. It never refuses by itself and answers for no operation.
//!
//! | setting | meaning | absent or `null` |
//! |---|---|---|
//! | `max_live` | live sandboxes of the principal, on one profile | no limit |
//! | `max_live_group` | the principal's live sandboxes under one group owner, or under none, on one profile | no limit |
//! | `max_bytes` | bytes of the principal's live sandboxes on one profile together | no limit |
//! | `max_bytes_group` | bytes of those under one group owner, or under none, together | no limit |
//! | `max_ttl_minutes` | longest life of a sandbox, from its creation | the profile's limit |

use pgsandbox_policy::{Bucket, Decision, Description, Obligation, Policy, Problem, Problems, Request, Scope};

/// The operations that make a sandbox.
const MAKING: [&str; 5] =
    ["clone_database", "create_database", "create_sandbox_from_template", "fork_database", "prepare_for_repo"];
/// The operation that makes a sandbox for itself where it is given none.
const MAKING_WITHOUT: &str = "validate_schema_change";
/// The operations that make an existing sandbox larger. What `explain_query` measures is run: its rows are taken back, and
/// the room that they took is not.
const FILLING: [&str; 6] =
    ["explain_query", "reset_database", "run_repo_command", "run_sql", "seed_database", "validate_schema_change"];
/// The operation that makes a sandbox live longer.
const EXTENDING: &str = "extend_database";

/// The longest life that can be set: a year. More is a slip of units.
const TTL_MINUTES_MAX: u64 = 525_600;

/// The settings.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
#[derive(Default)]
pub struct Settings {
    max_live: Option<u32>,
    max_live_group: Option<u32>,
    max_bytes: Option<u64>,
    max_bytes_group: Option<u64>,
    max_ttl_minutes: Option<u64>,
}

/// The policy.
#[derive(Debug)]
pub struct Quota {
    live: Vec<Obligation>,
    bytes: Vec<Obligation>,
    ttl: Option<Obligation>,
}

impl Policy for Quota {
    type Settings = Settings;

    fn describe() -> Description {
        Description::new("quota", env!("CARGO_PKG_VERSION"), include_str!("../settings.schema.json"))
            .concerns(MAKING)
            .concerns(FILLING)
            .concerns([EXTENDING])
    }

    fn configure(settings: Settings) -> Result<(Self, Vec<Bucket>), Vec<Problem>> {
        let mut problems = Problems::default();
        if let Some(minutes) = settings.max_ttl_minutes {
            problems.check_range("max_ttl_minutes", minutes, 1, TTL_MINUTES_MAX);
        }
        let live = |scope, limit: Option<u32>| limit.map(|n| Obligation::live_sandboxes(scope, n.into()));
        let bytes = |scope, limit: Option<u64>| limit.map(|n| Obligation::database_bytes(scope, n));
        let policy = Self {
            live: [live(Scope::Principal, settings.max_live), live(Scope::Group, settings.max_live_group)]
                .into_iter()
                .flatten()
                .collect(),
            bytes: [bytes(Scope::Principal, settings.max_bytes), bytes(Scope::Group, settings.max_bytes_group)]
                .into_iter()
                .flatten()
                .collect(),
            ttl: settings.max_ttl_minutes.map(Obligation::MaxTtlMinutes),
        };
        problems.done((policy, Vec::new()))
    }

    fn evaluate(&self, request: &Request) -> Decision {
        let operation = request.operation.as_str();
        let making = MAKING.contains(&operation) || operation == MAKING_WITHOUT && request.sandbox.is_none();
        let mut decision = Decision::abstain();
        if making {
            decision.obligations.extend(self.live.iter().cloned());
        }
        if making || FILLING.contains(&operation) {
            decision.obligations.extend(self.bytes.iter().cloned());
        }
        if making || operation == EXTENDING {
            decision.obligations.extend(self.ttl.iter().cloned());
        }
        decision
    }
}

pgsandbox_policy::export!(Quota);

#[cfg(test)]
mod tests {
    use pgsandbox_policy::testing;

    use super::*;

    #[test]
    fn the_description_fits_the_settings() {
        testing::check_description::<Quota>(include_str!("../default.json"));
    }

    #[test]
    fn the_cases_come_out_as_expected() {
        testing::check_cases::<Quota>(include_str!("../cases.toml"), include_str!("../default.json"));
    }

    #[test]
    fn a_life_of_nothing_or_of_centuries_is_refused() {
        for minutes in ["0", "525601"] {
            let problems = testing::problems::<Quota>(&format!(r#"{{"max_ttl_minutes":{minutes}}}"#));
            assert_eq!(problems[0].0, "max_ttl_minutes");
        }
    }

    #[test]
    fn the_use_that_is_shown_changes_nothing() {
        let policy: Quota = testing::configured(r#"{"max_live":1}"#);
        let mut request = testing::request("create_database");
        let before = policy.evaluate(&request);
        request.principal_usage = Some(pgsandbox_policy::Usage { live: 50, bytes: 1 });
        assert_eq!(policy.evaluate(&request), before);
    }
}
