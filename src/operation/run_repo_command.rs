//! Runs a command of a repository against a sandbox.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;

use super::repo_command::{CommandArguments, CommandResult, MEETS};
use super::{Ahead, Asks, Call, Done, Operation, Spec, Toolset};
use crate::admission::{Admissible, Permit};
use crate::model::{Failure, Impact, ObligationKind};

/// Arguments of `run_repo_command`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct RunRepoCommand {
    #[serde(flatten)]
    command: CommandArguments,
}

impl Admissible for RunRepoCommand {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;
}

#[async_trait]
impl Operation for RunRepoCommand {
    const SPEC: Spec = Spec {
        name: "run_repo_command",
        title: "Run a repository's command",
        help: "Runs a command in a repository with the sandbox's credentials in DATABASE_URL, PGSANDBOX_DATABASE_URL and PG*. The argv is run directly, without a shell; output is bounded and cleared of credentials; whatever the command leaves running is ended with it. An exit code other than 0 is in the result.",
        impact: Impact::ReachesOut,
        meets: MEETS,
        toolset: Toolset::Repository,
        idempotent: false,
    };
    type Output = CommandResult;

    fn check(&self) -> Result<(), Failure> {
        self.command.check_migration()
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
