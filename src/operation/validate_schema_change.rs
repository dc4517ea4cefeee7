//! Runs a repository's migration against a sandbox, and says what it did to the schema.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::arguments::Whole;
use super::repo_command::{CommandArguments, CommandResult, MEETS};
use super::schema_diff::SchemaDiff;
use super::schema_part::change_limit;
use super::{Ahead, Asks, Call, Done, Operation, Spec, Toolset};
use crate::admission::{Admissible, Permit};
use crate::command::project::Project;
use crate::model::{Code, Failure, Impact, ObligationKind, SchemaFilter};
use crate::sandbox::schema::SchemaDigest;

/// Arguments of `validate_schema_change`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ValidateSchemaChange {
    #[serde(flatten)]
    command: CommandArguments,
    /// Differences to be told, 1 to 500; default 50.
    limit: Option<Whole>,
}

/// What a command did to a schema.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Validated {
    #[serde(flatten)]
    command: CommandResult,
    /// How the schema differs after the command from before it.
    schema_diff: SchemaDiff,
}

impl Admissible for ValidateSchemaChange {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;
}

#[async_trait]
impl Operation for ValidateSchemaChange {
    const SPEC: Spec = Spec {
        name: "validate_schema_change",
        title: "Validate a schema change",
        help: "Reads a sandbox's schema, runs a repository's command as run_repo_command does, and says how the schema differs after it, \
               also where the command failed. Without command, the migrationCommand that prepare_for_repo recorded is run.",
        impact: Impact::ReachesOut,
        meets: MEETS,
        toolset: Toolset::Repository,
        idempotent: false,
    };
    type Output = Validated;

    fn check(&self) -> Result<(), Failure> {
        change_limit(self.limit)?;
        let missing = Failure::new(
            Code::MissingSchemaChangeCommand,
            "no command was given, and the repository has none recorded",
        )
        .hint("give `command`, or record a `migrationCommand` with prepare_for_repo");
        self.command.check(|path| Project::at(path).migration_command, missing)
    }

    fn asks(&self) -> Asks {
        self.command.asks()
    }

    async fn foresee(&self, ahead: &Ahead<'_>) -> Result<Vec<String>, Failure> {
        self.command.foresee(ahead).await.map(|()| Vec::new())
    }

    async fn run(permit: Permit<Self>, call: &Call) -> Result<Done<Validated>, Failure> {
        let input = &permit.input().command;
        let limit = change_limit(permit.input().limit)?;
        let prepared = input.prepare(&permit, call).await?;
        let all = SchemaFilter::default();
        let before = call.core.schema(&permit, prepared.id, &all).await?.schema;
        let command = input.run(&permit, call, &prepared).await?;
        let after = call.core.schema(&permit, prepared.id, &all).await?.schema;
        let checksum = SchemaDigest::of(&before, &all).checksum;
        let (schema_diff, told) = SchemaDiff::of("before", (&before, checksum), &after, limit);
        let summary = format!("{}; {}", command.summary(), told.summary("before"));
        let warnings = command.warnings();
        Ok(Done::new(summary, Validated { command, schema_diff }).warn(warnings))
    }
}
