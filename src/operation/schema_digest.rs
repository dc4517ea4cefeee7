//! Digests a sandbox's schema, and keeps what was digested for a while.

use std::collections::BTreeMap;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::arguments::Whole;
use super::extend_database::missing_target;
use super::schema_part::{SchemaPart, counts, limit};
use super::selector::DatabaseSelector;
use super::{About, Ahead, Asks, Call, Done, Operation, Spec, Toolset};
use crate::admission::{Admissible, Permit};
use crate::model::{Failure, Impact, ObligationKind, counted};
use crate::sandbox::schema::SchemaDigest;

/// Fingerprints that are sent unless asked otherwise, and the most that can be asked for.
const FINGERPRINTS_DEFAULT: u64 = 200;
const FINGERPRINTS_MAX: u64 = 5000;
/// The most text of fingerprints in one reply, in bytes.
const FINGERPRINT_BYTES_MAX: usize = 256 << 10;

/// Arguments of `schema_digest`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct DigestSchema {
    #[serde(flatten)]
    database: DatabaseSelector,
    #[serde(flatten)]
    part: SchemaPart,
    /// Fingerprints of objects to be sent, 0 to 5000; default 200. None are needed as long as `handle` is kept.
    limit: Option<Whole>,
}

/// A digest; give it, or its handle alone, to `schema_diff` as `baseDigest`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Digested {
    database_id: String,
    database_name: String,
    /// The version of the digest's form; those of two versions are not compared.
    version: u32,
    /// SHA-256 over the schema without the sandbox's own names, in hexadecimal digits.
    checksum: String,
    /// Names what was digested, which is kept for you for a day: with it a diff can tell before and after.
    #[serde(skip_serializing_if = "Option::is_none")]
    handle: Option<String>,
    /// The schema that it is of, if one was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    schema: Option<String>,
    /// The table that it is of, if one was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    table: Option<String>,
    /// How many objects of each kind there are.
    counts: BTreeMap<String, usize>,
    /// A fingerprint of each object, by kind and name; a table's is also its columns'.
    objects: BTreeMap<String, BTreeMap<String, String>>,
    /// Whether fingerprints were left out.
    truncated: bool,
}

impl DigestSchema {
    fn fingerprints(&self) -> Result<usize, Failure> {
        limit(self.limit, FINGERPRINTS_DEFAULT, FINGERPRINTS_MAX, 0)
    }
}

/// Returns as many fingerprints as fit, by kind and name, and whether those are all.
fn fingerprints(digest: &SchemaDigest, limit: usize) -> (BTreeMap<String, BTreeMap<String, String>>, bool) {
    let mut objects: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    let (mut bytes, mut sent) = (0, 0);
    for (key, print) in &digest.fingerprints {
        let path = key.path();
        bytes += path.len() + print.len();
        if sent >= limit || bytes > FINGERPRINT_BYTES_MAX {
            break;
        }
        sent += 1;
        objects.entry(key.kind.as_str().to_owned()).or_default().insert(path, print.clone());
    }
    (objects, sent == digest.fingerprints.len())
}

impl Admissible for DigestSchema {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;
}

#[async_trait]
impl Operation for DigestSchema {
    const SPEC: Spec = Spec {
        name: "schema_digest",
        title: "Digest a schema",
        help: "Returns a checksum of a sandbox's schema that is the same wherever the schema is, whatever the sandbox is called, \
               and a fingerprint of each object. Call it before a migration, and `schema_diff` with its `handle` after.",
        impact: Impact::Reads,
        meets: &[ObligationKind::ReadOnly],
        toolset: Toolset::Schema,
        idempotent: true,
    };
    type Output = Digested;

    fn check(&self) -> Result<(), Failure> {
        self.part.check()?;
        self.fingerprints().map(drop)
    }

    fn asks(&self) -> Asks {
        Asks { about: About::Sandbox((&self.database).into()), ..Asks::default() }
    }

    async fn foresee(&self, ahead: &Ahead<'_>) -> Result<Vec<String>, Failure> {
        ahead.reads_sandbox().await.map(|()| Vec::new())
    }

    async fn run(permit: Permit<Self>, call: &Call) -> Result<Done<Digested>, Failure> {
        let id = permit.grant().target.ok_or_else(missing_target)?;
        let filter = permit.input().part.filter();
        let limit = permit.input().fingerprints()?;
        let read = call.core.schema(&permit, id, &filter).await?;
        let digest = SchemaDigest::of(&read.schema, &filter);
        let (origin, counts) = (read.origin.clone(), counts(read.schema.counts()));
        let mut warnings: Vec<String> =
            permit.input().part.missed(digest.fingerprints.is_empty()).into_iter().collect();
        // The digest is what was asked for; that it cannot be kept is told.
        let handle = match call.core.keep_schema(&permit, read, &digest).await {
            Ok(Some(handle)) => Some(handle),
            Ok(None) => {
                warnings
                    .push("the schema is too large to be kept; make a snapshot, or keep the fingerprints".to_owned());
                None
            }
            Err(failure) => {
                tracing::warn!(error = %failure, cause = failure.audit, "what was digested could not be kept");
                warnings.push(format!("what was digested could not be kept: {}", failure.message));
                None
            }
        };
        let (objects, complete) = fingerprints(&digest, limit);
        let total = digest.fingerprints.len();
        Ok(Done::new(
            format!(
                "the schema of `{}` has {} and checksum {}",
                call.database,
                counted(total, "object", "objects"),
                digest.checksum
            ),
            Digested {
                database_id: origin.sandbox_id,
                database_name: origin.sandbox_name,
                version: digest.version,
                checksum: digest.checksum,
                handle,
                schema: filter.schema,
                table: filter.table,
                counts,
                objects,
                truncated: !complete,
            },
        )
        .warn(warnings))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Code, SchemaFilter, SchemaKey, SchemaKind};

    #[test]
    fn no_more_fingerprints_are_sent_than_are_asked_for_or_fit() {
        let key = |n: usize, name: &str| SchemaKey {
            kind: SchemaKind::Table,
            schema: "s".into(),
            name: format!("{name}{n}"),
        };
        let digest = |name: &str| SchemaDigest {
            version: 1,
            checksum: String::new(),
            filter: SchemaFilter::default(),
            fingerprints: (0..10_000).map(|n| (key(n, name), "0123456789abcdef".to_owned())).collect(),
        };
        let sent = |digest: &SchemaDigest, limit| {
            let (objects, complete) = fingerprints(digest, limit);
            (objects.values().map(BTreeMap::len).sum::<usize>(), complete)
        };
        assert_eq!(sent(&digest("t"), 200), (200, false));
        assert_eq!(sent(&digest("t"), 0), (0, false));
        let long = "x".repeat(50);
        let fits = FINGERPRINT_BYTES_MAX / (long.len() + 22);
        assert!(sent(&digest(&long), 5000).0.abs_diff(fits) < 10);
        let of = |limit: u64| DigestSchema {
            database: Default::default(),
            part: Default::default(),
            limit: Some(limit.into()),
        };
        assert_eq!(of(FINGERPRINTS_MAX + 1).fingerprints().unwrap_err().code, Code::InvalidArguments);
        assert!(of(FINGERPRINTS_MAX).fingerprints().is_ok() && of(0).fingerprints().is_ok());
    }
}
