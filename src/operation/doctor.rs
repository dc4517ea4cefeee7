//! Checks the program's own health.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::verify_sandbox::{CheckEntry, all_pass, summary};
use super::{Asks, Call, Done, Operation, Spec, Toolset};
use crate::admission::{Admissible, Permit};
use crate::model::{Check, Failure, Impact, ObligationKind};

/// Arguments of `doctor`: none.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Doctor {}

/// How the checks came out.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Diagnosis {
    /// Whether no check failed. The envelope's own `ok` says only that the checks were made.
    ok: bool,
    checks: Vec<CheckEntry>,
}

impl Admissible for Doctor {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;
}

#[async_trait]
impl Operation for Doctor {
    const SPEC: Spec = Spec {
        name: "doctor",
        title: "Check health",
        help: "Checks configuration, policies, audit log, clusters and leftovers, and says what to do. Looks; starts and changes nothing.",
        impact: Impact::Reads,
        meets: &[ObligationKind::ReadOnly],
        toolset: Toolset::Core,
        idempotent: true,
    };
    type Output = Diagnosis;

    fn asks(&self) -> Asks {
        Asks::default()
    }

    async fn run(_permit: Permit<Self>, call: &Call) -> Result<Done<Diagnosis>, Failure> {
        let mut checks = Vec::new();
        for part in &call.health {
            checks.extend(part.checks().await);
        }
        for (profile, of_profile) in call.core.health().await {
            checks.extend(
                of_profile.into_iter().map(|check| Check { name: format!("{profile}: {}", check.name), ..check }),
            );
        }
        Ok(Done::new(
            summary(&checks),
            Diagnosis { ok: all_pass(&checks), checks: checks.into_iter().map(Into::into).collect() },
        ))
    }
}
