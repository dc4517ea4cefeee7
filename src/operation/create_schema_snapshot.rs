//! Keeps a sandbox's schema under a name.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;

use super::extend_database::missing_target;
use super::schema_part::SchemaPart;
use super::selector::DatabaseSelector;
use super::snapshot_facts::SnapshotFacts;
use super::{About, Ahead, Asks, Call, Done, Operation, Spec, Toolset};
use crate::admission::{Admissible, Permit};
use crate::model::{Code, CredentialAccess, Failure, Impact, ObligationKind};
use crate::sandbox::schema::{NOTES_BYTES_MAX, SchemaDigest, snapshot_name_fault};

/// Arguments of `create_schema_snapshot`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct CreateSchemaSnapshot {
    #[serde(flatten)]
    database: DatabaseSelector,
    #[serde(flatten)]
    part: SchemaPart,
    /// Its name: 1 to 80 letters, digits, `_`, `.` or `-`. One that is there is not replaced.
    snapshot_name: String,
    /// What to remember about it, up to 1000 bytes.
    notes: Option<String>,
}

impl Admissible for CreateSchemaSnapshot {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;
}

#[async_trait]
impl Operation for CreateSchemaSnapshot {
    const SPEC: Spec = Spec {
        name: "create_schema_snapshot",
        title: "Keep a schema under a name",
        help: "Keeps a sandbox's schema as it is now under a name, to be compared with later, also with other sandboxes and after \
               this one is gone. Only you see it.",
        impact: Impact::Creates,
        // Nothing in the sandbox changes: its reader looks.
        meets: &[ObligationKind::ReadOnly],
        toolset: Toolset::Schema,
        idempotent: false,
    };
    type Output = SnapshotFacts;

    fn check(&self) -> Result<(), Failure> {
        self.part.check()?;
        if let Some(fault) = snapshot_name_fault(&self.snapshot_name) {
            return Err(fault);
        }
        match self.notes.as_ref().filter(|notes| notes.len() > NOTES_BYTES_MAX) {
            Some(notes) => Err(Failure::new(
                Code::InvalidArguments,
                format!("`notes` has {} bytes; the limit is {NOTES_BYTES_MAX}", notes.len()),
            )),
            None => Ok(()),
        }
    }

    fn asks(&self) -> Asks {
        Asks { about: About::Sandbox((&self.database).into()), ..Asks::default() }
    }

    async fn foresee(&self, ahead: &Ahead<'_>) -> Result<Vec<String>, Failure> {
        let id = ahead.grant.target.ok_or_else(missing_target)?;
        ahead.core.foresee_snapshot(ahead.grant, &self.snapshot_name).await?;
        ahead.core.foresee_use(ahead.grant, id, CredentialAccess::ReadOnly).await?;
        Ok(Vec::new())
    }

    async fn run(permit: Permit<Self>, call: &Call) -> Result<Done<SnapshotFacts>, Failure> {
        let id = permit.grant().target.ok_or_else(missing_target)?;
        let input = permit.input();
        let free = call.core.foresee_snapshot(permit.grant(), &input.snapshot_name).await;
        permit.grant().course.refusing(free)?;
        let filter = input.part.filter();
        let read = call.core.schema(&permit, id, &filter).await?;
        let digest = SchemaDigest::of(&read.schema, &filter);
        let missed = input.part.missed(digest.fingerprints.is_empty());
        let facts =
            call.core.create_snapshot(&permit, &input.snapshot_name, input.notes.as_deref(), read, &digest).await?;
        let summary = format!("snapshot `{}` of `{}` with checksum {}", facts.name, facts.sandbox_name, facts.checksum);
        Ok(Done::new(summary, facts.into()).warn(missed))
    }
}
