//! Limits what one call returns and how long its statements run.
//!
//! The limits are demands that the host makes true while it fetches, and by timers; no statement is rewritten. The
//! policy never refuses by itself and answers for no operation.
//!
//! | setting | meaning | absent or `null` |
//! |---|---|---|
//! | `max_rows` | rows of each result set of `run_sql` | the program's limit |
//! | `max_result_bytes` | bytes of row data of `run_sql` | the program's limit |
//! | `statement_timeout_ms` | time for the statements of `run_sql` and `explain_query` | the program's limit |
//! | `operations` | these three for one operation each, in place of the ones above | the ones above |
//!
//! A limit on the rows or bytes of `get_connection_string` has a meaning of its own: the host then gives out no
//! credentials of the owner role, since nobody counts the rows of a direct connection.

use std::collections::BTreeMap;

use pgsandbox_policy::{Bucket, Decision, Description, Obligation, Policy, Problem, Problems, Request};

/// The operations whose results can be limited.
const OPERATIONS: [&str; 3] = ["explain_query", "get_connection_string", "run_sql"];

/// The settings.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    max_rows: Option<u64>,
    max_result_bytes: Option<u64>,
    statement_timeout_ms: Option<u64>,
    #[serde(default)]
    operations: BTreeMap<String, Limits>,
}

/// The limits of one operation.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    max_rows: Option<u64>,
    max_result_bytes: Option<u64>,
    statement_timeout_ms: Option<u64>,
}

/// The policy.
#[derive(Debug)]
pub struct RowLimit {
    /// Demands by operation.
    demands: BTreeMap<String, Vec<Obligation>>,
}

impl Policy for RowLimit {
    type Settings = Settings;

    fn describe() -> Description {
        Description::new("row-limit", env!("CARGO_PKG_VERSION"), include_str!("../settings.schema.json"))
            .concerns(OPERATIONS)
    }

    fn configure(settings: Settings) -> Result<(Self, Vec<Bucket>), Vec<Problem>> {
        let mut problems = Problems::default();
        let timeout = settings.statement_timeout_ms;
        check_timeout("statement_timeout_ms", timeout, &mut problems);
        let general = Limits {
            max_rows: settings.max_rows,
            max_result_bytes: settings.max_result_bytes,
            statement_timeout_ms: timeout,
        };
        let mut demands = BTreeMap::from([
            ("explain_query".to_owned(), Limits { statement_timeout_ms: timeout, ..Limits::default() }.demands()),
            ("run_sql".to_owned(), general.demands()),
        ]);
        for (operation, limits) in settings.operations {
            if !OPERATIONS.contains(&operation.as_str()) {
                let known = OPERATIONS.join("`, `");
                problems.add(format!("operations.{operation}"), format!("not one of `{known}`"));
                continue;
            }
            let path = format!("operations.{operation}.statement_timeout_ms");
            check_timeout(&path, limits.statement_timeout_ms, &mut problems);
            demands.insert(operation, limits.demands());
        }
        problems.done((Self { demands }, Vec::new()))
    }

    fn evaluate(&self, request: &Request) -> Decision {
        let mut decision = Decision::abstain();
        if let Some(demands) = self.demands.get(&request.operation) {
            decision.obligations.clone_from(demands);
        }
        decision
    }
}

/// Postgres takes a timeout of zero for none at all.
fn check_timeout(path: &str, timeout_ms: Option<u64>, problems: &mut Problems) {
    if timeout_ms == Some(0) {
        problems.add(path, "0 would be no limit; write the milliseconds, or leave it out");
    }
}

impl Limits {
    fn demands(&self) -> Vec<Obligation> {
        [
            self.max_rows.map(Obligation::MaxRows),
            self.max_result_bytes.map(Obligation::MaxResultBytes),
            self.statement_timeout_ms.map(Obligation::StatementTimeoutMs),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

pgsandbox_policy::export!(RowLimit);

#[cfg(test)]
mod tests {
    use pgsandbox_policy::testing;

    use super::*;

    #[test]
    fn the_description_fits_the_settings() {
        testing::check_description::<RowLimit>(include_str!("../default.json"));
    }

    #[test]
    fn the_cases_come_out_as_expected() {
        testing::check_cases::<RowLimit>(include_str!("../cases.toml"), include_str!("../default.json"));
    }

    #[test]
    fn a_timeout_of_zero_is_refused_wherever_it_stands() {
        let settings = r#"{"statement_timeout_ms":0,"operations":{"run_sql":{"statement_timeout_ms":0},"x":{}}}"#;
        let paths: Vec<_> = testing::problems::<RowLimit>(settings).into_iter().map(|(path, _)| path).collect();
        assert_eq!(paths, ["statement_timeout_ms", "operations.run_sql.statement_timeout_ms", "operations.x"]);
    }
}
