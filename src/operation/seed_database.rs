//! Fills a sandbox by a repository's own command.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;

use super::repo_command::{CommandArguments, CommandResult, MEETS};
use super::{Ahead, Asks, Call, Done, Operation, Spec, Toolset};
use crate::admission::{Admissible, Permit};
use crate::model::{Code, Failure, Impact, ObligationKind};

/// Arguments of `seed_database`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct SeedDatabase {
    #[serde(flatten)]
    command: CommandArguments,
}

impl Admissible for SeedDatabase {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;
}

#[async_trait]
impl Operation for SeedDatabase {
    const SPEC: Spec = Spec {
        name: "seed_database",
        title: "Seed a sandbox from a repository",
        help: "Runs a repository's seed command against a sandbox, as run_repo_command does. Without command, the seedCommand that prepare_for_repo recorded is run; nothing is guessed.",
        impact: Impact::ReachesOut,
        meets: MEETS,
        toolset: Toolset::Repository,
        idempotent: false,
    };
    type Output = CommandResult;

    fn check(&self) -> Result<(), Failure> {
        let missing =
            Failure::new(Code::MissingSeedCommand, "no seed command was given, and the repository has none recorded")
                .hint("give `command`, or record a `seedCommand` with prepare_for_repo")
                .naming(&["command", "seedCommand"]);
        self.command.check(|project| project.seed_command, missing)
    }

    fn asks(&self) -> Asks {
        self.command.asks()
    }

    async fn foresee(&self, ahead: &Ahead<'_>) -> Result<Vec<String>, Failure> {
        self.command.foresee(ahead).await.map(|()| Vec::new())
    }

    async fn run(permit: Permit<Self>, call: &Call) -> Result<Done<CommandResult>, Failure> {
        permit.input().command.carry_out(&permit, call).await
    }
}
