//! Lists the caller's snapshots.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::snapshot_facts::SnapshotFacts;
use super::{Ahead, Asks, Call, Done, Operation, Spec, Toolset};
use crate::admission::{Admissible, Permit};
use crate::model::{Failure, Impact, ObligationKind, counted};

/// Arguments of `list_schema_snapshots`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListSchemaSnapshots {
    /// Only those made of this sandbox, by id.
    database_id: Option<String>,
    /// Only those made of this sandbox, by its database name.
    database_name: Option<String>,
}

/// The snapshots.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Snapshots {
    /// By name; at most a hundred there are.
    snapshots: Vec<SnapshotFacts>,
}

impl Admissible for ListSchemaSnapshots {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;
}

#[async_trait]
impl Operation for ListSchemaSnapshots {
    const SPEC: Spec = Spec {
        name: "list_schema_snapshots",
        title: "List schema snapshots",
        help: "Lists your schema snapshots, those of sandboxes that are gone too.",
        impact: Impact::Reads,
        meets: &[ObligationKind::ReadOnly],
        toolset: Toolset::Schema,
        idempotent: true,
    };
    type Output = Snapshots;

    fn asks(&self) -> Asks {
        Asks::default()
    }

    async fn foresee(&self, _ahead: &Ahead<'_>) -> Result<Vec<String>, Failure> {
        Ok(Vec::new())
    }

    async fn run(permit: Permit<Self>, call: &Call) -> Result<Done<Snapshots>, Failure> {
        let input = permit.input();
        let mut snapshots = call.core.snapshots(&permit).await?;
        let is = |asked: &Option<String>, has: &str| asked.as_ref().is_none_or(|asked| asked == has);
        snapshots
            .retain(|facts| is(&input.database_id, &facts.sandbox_id) && is(&input.database_name, &facts.sandbox_name));
        let summary = counted(snapshots.len(), "snapshot", "snapshots");
        Ok(Done::new(summary, Snapshots { snapshots: snapshots.into_iter().map(Into::into).collect() }))
    }
}
