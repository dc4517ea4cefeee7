//! Says how a sandbox's schema differs from an earlier one, or from another sandbox's.

use std::collections::BTreeMap;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::arguments::Whole;
use super::base_digest::{BaseDigest, SentDigest, not_kept};
use super::extend_database::missing_target;
use super::schema_part::{KindChanges, SchemaPart, Told, ToldChange, change_limit};
use super::selector::DatabaseSelector;
use super::{About, Ahead, Asks, Call, Done, Operation, Spec, Toolset};
use crate::admission::{Admissible, Permit};
use crate::model::{Code, Failure, Impact, ObligationKind, Schema, SchemaFilter};
use crate::sandbox::Selector;
use crate::sandbox::schema::{
    DIGEST_VERSION, KeptSchema, SchemaDigest, compare, compare_fingerprints, snapshot_name_fault,
};

/// The operation whose decision stands for looking at the other sandbox.
const LOOKS_AT_OTHER: &str = "schema_digest";

/// Arguments of `schema_diff`. What it is compared with is one of `baseDigest`, `snapshotName`, and `otherDatabaseId` or
/// `otherDatabaseName`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct DiffSchema {
    #[serde(flatten)]
    database: DatabaseSelector,
    #[serde(flatten)]
    part: SchemaPart,
    /// The earlier digest: the result of `schema_digest`, its whole reply, either as text, or its `handle` alone.
    base_digest: Option<Value>,
    /// A snapshot of yours to compare with.
    snapshot_name: Option<String>,
    /// Another sandbox of yours to compare with, by id: what it has is `before`.
    other_database_id: Option<String>,
    /// The same by its database name.
    other_database_name: Option<String>,
    /// Differences to be told, 1 to 500; default 50.
    limit: Option<Whole>,
}

/// How two schemas differ.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct SchemaDiff {
    /// What it was compared with: `digest`, `snapshot`, `sandbox`, or `before` for what a command found when it began.
    compared_with: String,
    before_checksum: String,
    after_checksum: String,
    /// Whether anything differs.
    changed: bool,
    /// How many objects differ, by kind.
    counts: BTreeMap<String, KindChanges>,
    /// How many differences there are in all.
    change_count: usize,
    /// Each difference, with the attributes that differ before and after.
    changes: Vec<ToldChange>,
    /// Whether some are not told; raise `limit`, or narrow it with `schema` and `table`.
    truncated: bool,
    /// Whether before and after are told; false where of the earlier schema there are only fingerprints.
    described: bool,
}

impl SchemaDiff {
    /// Tells how two whole schemas differ.
    pub(super) fn of(
        with: &str,
        (before, before_checksum): (&Schema, String),
        after: &Schema,
        limit: usize,
    ) -> (Self, Told) {
        let after_checksum = SchemaDigest::of(after, &SchemaFilter::default()).checksum;
        Self::told(with, before_checksum, after_checksum, Told::new(&compare(before, after), limit), true)
    }

    fn told(with: &str, before_checksum: String, after_checksum: String, told: Told, described: bool) -> (Self, Told) {
        let Told { counts, changes, count, told, truncated } = told;
        let changed = before_checksum != after_checksum;
        let rest = Told { counts: BTreeMap::new(), changes: Vec::new(), count, told, truncated };
        let diff = Self {
            compared_with: with.to_owned(),
            before_checksum,
            after_checksum,
            changed,
            counts,
            change_count: count,
            changes,
            truncated,
            described,
        };
        (diff, rest)
    }
}

/// What a schema is compared with.
enum Base {
    Digest(BaseDigest),
    Snapshot(String),
    Other(Selector),
}

impl DiffSchema {
    fn base(&self) -> Result<Base, Failure> {
        let named = self.other_database_id.is_some() || self.other_database_name.is_some();
        match (&self.base_digest, &self.snapshot_name, named) {
            (Some(digest), None, false) => Ok(Base::Digest(BaseDigest::read(digest)?)),
            (None, Some(name), false) => snapshot_name_fault(name).map_or(Ok(Base::Snapshot(name.clone())), Err),
            (None, None, true) => Ok(Base::Other(self.other())),
            (None, None, false) => Err(Failure::new(Code::InvalidBaseDigest, "there is nothing to compare with")
                .hint("give `baseDigest`, `snapshotName` or `otherDatabaseId`")
                .naming(&["baseDigest", "snapshotName", "otherDatabaseId"])),
            (_, _, _) => Err(Failure::new(Code::InvalidArguments, "there are several things to compare with")
                .hint("give one of `baseDigest`, `snapshotName` and `otherDatabaseId`")
                .naming(&["baseDigest", "snapshotName", "otherDatabaseId"])),
        }
    }

    fn other(&self) -> Selector {
        Selector {
            database_id: self.other_database_id.clone(),
            database_name: self.other_database_name.clone(),
            ..Selector::default()
        }
    }
}

impl Admissible for DiffSchema {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;
}

#[async_trait]
impl Operation for DiffSchema {
    const SPEC: Spec = Spec {
        name: "schema_diff",
        title: "Compare schemas",
        help: "Says how a sandbox's schema differs from an earlier digest or snapshot, or from another sandbox of yours: what was \
               added, removed and changed, and how each changed attribute was before and is after.",
        impact: Impact::Reads,
        meets: &[ObligationKind::ReadOnly],
        toolset: Toolset::Schema,
        idempotent: true,
    };
    type Output = SchemaDiff;

    fn check(&self) -> Result<(), Failure> {
        self.part.check()?;
        change_limit(self.limit)?;
        self.base().map(drop)
    }

    fn asks(&self) -> Asks {
        Asks { about: About::Sandbox((&self.database).into()), ..Asks::default() }
    }

    async fn foresee(&self, ahead: &Ahead<'_>) -> Result<Vec<String>, Failure> {
        ahead.reads_sandbox().await?;
        match self.base()? {
            Base::Digest(_) => {}
            Base::Snapshot(name) => ahead.core.foresee_snapshot_use(ahead.grant, &name).await?,
            Base::Other(other) => ahead.core.foresee_other_schema(ahead.grant, &other).await?,
        }
        Ok(Vec::new())
    }

    async fn run(permit: Permit<Self>, call: &Call) -> Result<Done<SchemaDiff>, Failure> {
        let limit = change_limit(permit.input().limit)?;
        match permit.input().base()? {
            Base::Digest(digest) => with_digest(&permit, call, digest, limit).await,
            Base::Snapshot(name) => {
                let kept = call.core.snapshot(&permit, &name).await?;
                check_version(&kept)?;
                with_kept(&permit, call, kept, ("snapshot", &format!("snapshot `{name}`")), limit).await
            }
            Base::Other(other) => with_other(&permit, call, &other, limit).await,
        }
    }
}

/// Finds that a kept schema is of another form.
pub(super) fn check_version(kept: &KeptSchema) -> Result<(), Failure> {
    let version = kept.facts.digest_version;
    if version == DIGEST_VERSION {
        return Ok(());
    }
    let text = format!(
        "snapshot `{}` is of version {version}, and this program's digests are of version {DIGEST_VERSION}",
        kept.facts.name
    );
    Err(Failure::new(Code::SchemaDigestVersionMismatch, text).hint("make another with `create_schema_snapshot`"))
}

async fn with_digest(
    permit: &Permit<DiffSchema>,
    call: &Call,
    base: BaseDigest,
    limit: usize,
) -> Result<Done<SchemaDiff>, Failure> {
    let kept = match &base.handle {
        Some(handle) => call.core.kept_schema(permit, handle).await?,
        None => None,
    };
    // What was sent counts, and what is kept is taken for it only if it is that.
    let kept = kept.filter(|kept| {
        let same = |sent: &SentDigest| sent.checksum == kept.facts.checksum && sent.filter == kept.facts.filter();
        kept.facts.digest_version == DIGEST_VERSION && base.sent.as_ref().is_none_or(same)
    });
    if let Some(kept) = kept {
        return with_kept(permit, call, kept, ("digest", "the digest"), limit).await;
    }
    let Some(sent) = base.sent else {
        return Err(not_kept());
    };
    let id = permit.grant().target.ok_or_else(missing_target)?;
    let filter = permit.input().part.agreed(&sent.filter, "the base digest", Code::InvalidBaseDigest)?;
    let read = call.core.schema(permit, id, &filter).await?;
    let after = SchemaDigest::of(&read.schema, &filter);
    if !sent.complete && sent.checksum != after.checksum {
        return Err(Failure::new(
            Code::InvalidBaseDigest,
            "the schema differs from the base digest, and where cannot be said: fingerprints were left out of it, and what \
             was digested is not kept",
        )
        .hint("ask `schema_digest` for more of them with `limit`, or make a snapshot before the next change")
        .naming(&["limit"]));
    }
    let changes =
        if sent.checksum == after.checksum { Vec::new() } else { compare_fingerprints(&sent.fingerprints, &after) };
    let (diff, told) = SchemaDiff::told("digest", sent.checksum, after.checksum, Told::new(&changes, limit), false);
    let summary = told.summary("the digest");
    let why = "only objects are named: the base digest has fingerprints, and what was digested is not kept, so how they were \
               before cannot be told";
    Ok(Done::new(summary, diff).warn((!changes.is_empty()).then(|| why.to_owned())))
}

async fn with_kept(
    permit: &Permit<DiffSchema>,
    call: &Call,
    kept: KeptSchema,
    (with, named): (&str, &str),
    limit: usize,
) -> Result<Done<SchemaDiff>, Failure> {
    let id = permit.grant().target.ok_or_else(missing_target)?;
    let code = if with == "digest" { Code::InvalidBaseDigest } else { Code::InvalidArguments };
    let filter = permit.input().part.agreed(&kept.facts.filter(), named, code)?;
    let read = call.core.schema(permit, id, &filter).await?;
    let (diff, told) = SchemaDiff::of(with, (&kept.schema, kept.facts.checksum), &read.schema, limit);
    Ok(Done::new(told.summary(named), diff))
}

async fn with_other(
    permit: &Permit<DiffSchema>,
    call: &Call,
    other: &Selector,
    limit: usize,
) -> Result<Done<SchemaDiff>, Failure> {
    let id = permit.grant().target.ok_or_else(missing_target)?;
    // The decision was about one sandbox; looking at the other is one of its own.
    let mut arguments = json!({});
    for (name, value) in [("databaseId", &other.database_id), ("databaseName", &other.database_name)] {
        if let (Some(value), Some(object)) = (value, arguments.as_object_mut()) {
            object.insert(name.to_owned(), json!(value));
        }
    }
    let previewed = call.preview.preview(&permit.grant().principal, LOOKS_AT_OTHER, &arguments.to_string()).await;
    let course = &permit.grant().course;
    let refused = previewed.and_then(|previewed| {
        previewed.sandbox.into_iter().for_each(|other| course.is_about(other));
        previewed.refusal.map_or(Ok(()), Err)
    });
    course.refusing(refused)?;
    let filter = permit.input().part.filter();
    let before = call.core.other_schema(permit, other, &filter).await?;
    let after = call.core.schema(permit, id, &filter).await?;
    let checksum = SchemaDigest::of(&before.schema, &filter).checksum;
    let (diff, told) = SchemaDiff::of("sandbox", (&before.schema, checksum), &after.schema, limit);
    Ok(Done::new(told.summary(&format!("sandbox `{}`", before.origin.sandbox_name)), diff))
}
