//! Removes a snapshot.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Ahead, Asks, Call, Done, Operation, Spec, Toolset};
use crate::admission::{Admissible, Permit};
use crate::model::{Failure, Impact, ObligationKind};
use crate::sandbox::schema::snapshot_name_fault;

/// Arguments of `delete_schema_snapshot`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct DeleteSchemaSnapshot {
    /// The snapshot.
    snapshot_name: String,
}

/// What was removed.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct DeletedSnapshot {
    snapshot_name: String,
    /// Always true: one that is not there is an error.
    deleted: bool,
}

impl Admissible for DeleteSchemaSnapshot {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;
}

#[async_trait]
impl Operation for DeleteSchemaSnapshot {
    const SPEC: Spec = Spec {
        name: "delete_schema_snapshot",
        title: "Delete a schema snapshot",
        help: "Deletes one of your schema snapshots. No sandbox is touched.",
        impact: Impact::Destroys,
        meets: &[],
        toolset: Toolset::Schema,
        idempotent: false,
    };
    type Output = DeletedSnapshot;

    fn check(&self) -> Result<(), Failure> {
        snapshot_name_fault(&self.snapshot_name).map_or(Ok(()), Err)
    }

    fn asks(&self) -> Asks {
        Asks::default()
    }

    async fn foresee(&self, ahead: &Ahead<'_>) -> Result<Vec<String>, Failure> {
        ahead.core.foresee_snapshot_use(ahead.grant, &self.snapshot_name).await?;
        Ok(Vec::new())
    }

    async fn run(permit: Permit<Self>, call: &Call) -> Result<Done<DeletedSnapshot>, Failure> {
        let name = &permit.input().snapshot_name;
        // One that is not there was not removed.
        permit.grant().course.refusing(call.core.delete_snapshot(&permit, name).await)?;
        Ok(Done::new(
            format!("snapshot `{name}` is deleted"),
            DeletedSnapshot { snapshot_name: name.clone(), deleted: true },
        ))
    }
}
