//! A snapshot as it is told.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use crate::model::Timestamp;
use crate::sandbox::schema::SchemaFacts;

/// A snapshot.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct SnapshotFacts {
    snapshot_name: String,
    /// The sandbox that it was made of, which may be gone.
    database_id: String,
    database_name: String,
    profile: String,
    /// The server's major version.
    #[serde(skip_serializing_if = "Option::is_none")]
    postgres_version: Option<String>,
    digest_version: u32,
    checksum: String,
    /// The schema that it is of, if one was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    schema: Option<String>,
    /// The table that it is of, if one was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    table: Option<String>,
    /// How many objects of each kind there are.
    counts: BTreeMap<String, usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    notes: Option<String>,
    created_at: String,
}

impl From<SchemaFacts> for SnapshotFacts {
    fn from(facts: SchemaFacts) -> Self {
        Self {
            snapshot_name: facts.name,
            database_id: facts.sandbox_id,
            database_name: facts.sandbox_name,
            profile: facts.profile,
            postgres_version: facts.postgres_version.map(|major| major.to_string()),
            digest_version: facts.digest_version,
            checksum: facts.checksum,
            schema: facts.schema,
            table: facts.table,
            counts: facts.counts.into_iter().collect(),
            notes: facts.notes,
            created_at: Timestamp::from_unix_ms(u64::try_from(facts.created_at_ms).unwrap_or_default()).to_string(),
        }
    }
}
