//! Says how a sandbox's schema, or another snapshot, differs from a snapshot.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;

use super::arguments::Whole;
use super::schema_diff::{SchemaDiff, check_version};
use super::schema_part::change_limit;
use super::selector::DatabaseSelector;
use super::{About, Ahead, Asks, Call, Done, Operation, Spec, Toolset};
use crate::admission::{Admissible, Permit};
use crate::model::{Code, CredentialAccess, Failure, Impact, ObligationKind};
use crate::sandbox::schema::snapshot_name_fault;

/// Arguments of `diff_schema_snapshot`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct DiffSchemaSnapshot {
    #[serde(flatten)]
    database: DatabaseSelector,
    /// The snapshot: what it has is `before`.
    snapshot_name: String,
    /// A later snapshot to compare with it, instead of a sandbox.
    other_snapshot_name: Option<String>,
    /// Differences to be told, 1 to 500; default 50.
    limit: Option<Whole>,
}

impl DiffSchemaSnapshot {
    fn names_sandbox(&self) -> bool {
        self.database.database_id.is_some() || self.database.database_name.is_some()
    }
}

impl Admissible for DiffSchemaSnapshot {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;
}

#[async_trait]
impl Operation for DiffSchemaSnapshot {
    const SPEC: Spec = Spec {
        name: "diff_schema_snapshot",
        title: "Compare with a schema snapshot",
        help: "Says how the schema of a sandbox of yours differs from a snapshot, or how another snapshot does. Name the sandbox, \
               also where it is the one that the snapshot was made of, or the other snapshot.",
        impact: Impact::Reads,
        meets: &[ObligationKind::ReadOnly],
        toolset: Toolset::Schema,
        idempotent: true,
    };
    type Output = SchemaDiff;

    fn check(&self) -> Result<(), Failure> {
        change_limit(self.limit)?;
        for name in [Some(&self.snapshot_name), self.other_snapshot_name.as_ref()].into_iter().flatten() {
            if let Some(fault) = snapshot_name_fault(name) {
                return Err(fault);
            }
        }
        let text = match (self.names_sandbox(), &self.other_snapshot_name) {
            (true, None) | (false, Some(_)) => return Ok(()),
            (false, None) => "there is nothing to compare the snapshot with",
            (true, Some(_)) => "there are two things to compare the snapshot with",
        };
        Err(Failure::new(Code::InvalidArguments, text)
            .hint("say which sandbox, with `databaseId` or `databaseName`, or which `otherSnapshotName`")
            .naming(&["databaseId", "databaseName", "otherSnapshotName"]))
    }

    fn asks(&self) -> Asks {
        let about = if self.names_sandbox() { About::Sandbox((&self.database).into()) } else { About::Program };
        Asks { about, ..Asks::default() }
    }

    async fn foresee(&self, ahead: &Ahead<'_>) -> Result<Vec<String>, Failure> {
        ahead.core.foresee_snapshot_use(ahead.grant, &self.snapshot_name).await?;
        if let Some(other) = &self.other_snapshot_name {
            ahead.core.foresee_snapshot_use(ahead.grant, other).await?;
        }
        if let Some(id) = ahead.grant.target {
            ahead.core.foresee_use(ahead.grant, id, CredentialAccess::ReadOnly).await?;
        }
        Ok(Vec::new())
    }

    async fn run(permit: Permit<Self>, call: &Call) -> Result<Done<SchemaDiff>, Failure> {
        let input = permit.input();
        let limit = change_limit(input.limit)?;
        let course = &permit.grant().course;
        let kept = course.refusing(call.core.snapshot(&permit, &input.snapshot_name).await)?;
        course.refusing(check_version(&kept))?;
        let filter = kept.facts.filter();
        let (with, after) = match (permit.grant().target, &input.other_snapshot_name) {
            (Some(id), _) => ("snapshot", call.core.schema(&permit, id, &filter).await?.schema),
            (None, Some(other)) => {
                let other = call.core.snapshot(&permit, other).await?;
                check_version(&other)?;
                if other.facts.filter() != filter {
                    return Err(Failure::new(
                        Code::InvalidArguments,
                        "the two snapshots are of different parts of a schema",
                    )
                    .hint("make both with the same `schema` and `table`"));
                }
                ("snapshot", other.schema)
            }
            (None, None) => return Err(super::extend_database::missing_target()),
        };
        let (diff, told) = SchemaDiff::of(with, (&kept.schema, kept.facts.checksum), &after, limit);
        Ok(Done::new(told.summary(&format!("snapshot `{}`", input.snapshot_name)), diff))
    }
}
