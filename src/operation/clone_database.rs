//! Makes a sandbox that begins as a copy of another database.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::arguments::Whole;
use super::create_database::{Created, lowered_ttl, summary};
use super::new_sandbox::{self, check_labels, ttl_minutes};
use super::selector::ProfileSelector;
use super::{About, Ahead, Asks, Call, Done, Operation, Spec, Toolset};
use crate::admission::{Admissible, Effective, Grant, Permit};
use crate::engine::postgres::{CloneOptions, CloneReport, DemandedMask, Mask, MaskWith, TableName};
use crate::model::{Code, Failure, Impact, ObligationKind, Obligations, Requested, Secret};
use crate::sandbox::{CloneAsked, CloneRequest, CreateRequest, Idempotency, SourceRef, bounds};

/// How long a copy may take unless asked otherwise, and at most, in seconds.
const TIMEOUT_SECONDS_DEFAULT: u64 = 240;
const TIMEOUT_SECONDS_MAX: u64 = 600;
/// The most tables whose rows are left out, and the most columns that are masked.
const NAMED_MAX: usize = 200;
/// The longest constant that masks a column, in bytes.
const CONSTANT_BYTES_MAX: usize = 4 << 10;

/// Arguments of `clone_database`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct CloneDatabase {
    #[serde(flatten)]
    profile: ProfileSelector,
    /// Name of a configured source. Either this or sourceDatabaseUrl.
    source: Option<String>,
    /// URL of the database, where a policy allows one; prefer source, which needs no password here.
    source_database_url: Option<Hidden>,
    /// Why the copy is needed; production sources demand it.
    reason: Option<String>,
    /// Copy no rows; default false.
    schema_only: Option<bool>,
    /// Seconds the copy may take, from 1 to 600; default 240.
    timeout_seconds: Option<Whole>,
    /// Extensions of the source to leave out, by name.
    exclude_source_extensions: Option<Vec<String>>,
    /// Tables whose rows are left out: `schema.table`, or `table` in `public`.
    exclude_table_data: Option<Vec<String>>,
    /// Columns whose values are replaced before anyone can read the copy.
    mask: Option<Vec<MaskInput>>,
    /// What the sandbox is for; becomes part of its name.
    name_hint: Option<String>,
    /// Minutes to live, from 1 to the profile's maximum; default: the profile's default. Never clamped.
    ttl_minutes: Option<Whole>,
    /// A group of work beneath you, a task for instance; has a quota of its own.
    owner: Option<String>,
    /// Labels, up to 32.
    labels: Option<BTreeMap<String, String>>,
    /// Extensions to install beside the source's, up to 25.
    extensions: Option<Vec<String>>,
    /// Repeating a call with the same key gives the same sandbox instead of a second one.
    idempotency_key: Option<String>,
}

/// One column to be masked.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct MaskInput {
    /// `schema.table`, or `table` in `public`.
    table: String,
    /// The column.
    column: String,
    /// `constant`: `value` for all; `null`; `hash`: a keyed hash; `fake`: a value of the same shape. Equal values stay
    /// equal under the last two.
    with: MaskWord,
    /// The constant, in text form.
    value: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum MaskWord {
    Constant,
    Null,
    Hash,
    Fake,
}

/// A text that is never shown.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(transparent)]
struct Hidden(String);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hidden(…)")
    }
}

/// A copy as its maker sees it.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ClonedDatabase {
    #[serde(flatten)]
    created: Created,
    /// The source's name, or its URL without a password.
    source: String,
    schema_only: bool,
    source_size_bytes: Option<u64>,
    source_postgres_version: Option<String>,
    /// Absent, with what follows, where an earlier call with the same key made it.
    excluded_source_extensions: Option<Vec<String>>,
    /// What else of the source was left out.
    left_out: Option<Vec<String>>,
    /// What was found in the copy.
    verification: Option<Verification>,
}

/// What was found in a copy.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Verification {
    tables: u64,
    rows: u64,
    /// Whether rows were counted, or are the server's estimates.
    rows_counted: bool,
    /// The tables with the most rows.
    largest_tables: Vec<TableCount>,
    extensions: Vec<String>,
    /// Indexes that are not valid, and constraints that were not validated.
    invalid_objects: Vec<String>,
    unpopulated_materialized_views: Vec<String>,
}

/// The rows of one table.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct TableCount {
    table: String,
    rows: u64,
}

impl From<&CloneReport> for Verification {
    fn from(report: &CloneReport) -> Self {
        let count =
            |table: &crate::engine::postgres::TableRows| TableCount { table: table.table.clone(), rows: table.rows };
        Self {
            tables: report.tables,
            rows: report.rows,
            rows_counted: report.counted,
            largest_tables: report.largest.iter().map(count).collect(),
            extensions: report.extensions.clone(),
            invalid_objects: report.invalid.clone(),
            unpopulated_materialized_views: report.unpopulated.clone(),
        }
    }
}

impl CloneDatabase {
    fn asked(&self) -> Result<CloneAsked, Failure> {
        let source = match (&self.source, &self.source_database_url) {
            (Some(name), None) => SourceRef::Name(name.clone()),
            (None, Some(url)) => SourceRef::Url(Secret::new(&url.0)),
            (Some(_), Some(_)) => {
                return Err(Failure::new(
                    Code::InvalidArguments,
                    "arguments `source` and `sourceDatabaseUrl` exclude each other",
                ));
            }
            (None, None) => {
                return Err(Failure::new(
                    Code::InvalidArguments,
                    "one of `source` and `sourceDatabaseUrl` is required",
                ));
            }
        };
        Ok(CloneAsked { source, schema_only: self.schema_only.unwrap_or_default(), reason: self.reason.clone() })
    }

    fn options(&self) -> Result<CloneOptions, Failure> {
        let tables = self.exclude_table_data.as_deref().unwrap_or_default();
        let masks = self.mask.as_deref().unwrap_or_default();
        for (name, count) in [("excludeTableData", tables.len()), ("mask", masks.len())] {
            if count > NAMED_MAX {
                let text = format!("argument `{name}` has {count} items; at most {NAMED_MAX} are allowed");
                return Err(Failure::new(Code::InvalidArguments, text));
            }
        }
        if self.schema_only.unwrap_or_default() && !(tables.is_empty() && masks.is_empty()) {
            let text = "with `schemaOnly` there are no rows to leave out by `excludeTableData` or to `mask`";
            return Err(Failure::new(Code::InvalidArguments, text).hint("leave these arguments out"));
        }
        let mut options = CloneOptions {
            schema_only: self.schema_only.unwrap_or_default(),
            exclude_extensions: self.exclude_source_extensions.clone().unwrap_or_default(),
            exclude_table_data: tables
                .iter()
                .map(|name| table_name("excludeTableData", name))
                .collect::<Result<_, _>>()?,
            ..CloneOptions::default()
        };
        for mask in masks {
            let mask = mask.read()?;
            if options.masks.iter().any(|known| known.table == mask.table && known.column == mask.column) {
                let text = format!("column `{}` of `{}` is masked twice", mask.column.escape_default(), mask.table);
                return Err(Failure::new(Code::InvalidArguments, text));
            }
            options.masks.push(mask);
        }
        Ok(options)
    }

    fn time(&self) -> Result<Duration, Failure> {
        let Some(asked) = self.timeout_seconds else { return Ok(Duration::from_secs(TIMEOUT_SECONDS_DEFAULT)) };
        asked.within(1, TIMEOUT_SECONDS_MAX).map(Duration::from_secs).ok_or_else(|| {
            let text = format!("a timeout of {} seconds is not between 1 and {TIMEOUT_SECONDS_MAX}", asked.shown());
            Failure::new(Code::InvalidArguments, text)
        })
    }

    /// Returns the idempotency key with the digest of everything else that was asked for, passwords excepted.
    fn idempotency(&self, asked: &CloneAsked) -> Option<Idempotency> {
        let key = self.idempotency_key.clone()?;
        let masks: Vec<_> = self.mask.iter().flatten().map(|mask| format!("{mask:?}")).collect();
        let digested = serde_json::json!([
            "clone_database",
            self.profile.profile,
            self.profile.postgres_version,
            self.source,
            asked.shown(),
            self.schema_only,
            self.exclude_source_extensions,
            self.exclude_table_data,
            masks,
            self.name_hint,
            self.ttl_minutes.map(Whole::shown),
            self.owner,
            self.labels,
            self.extensions,
        ]);
        Some(Idempotency { key, digest: Sha256::digest(digested.to_string()).into() })
    }

    fn request(&self, grant: &Grant) -> Result<CloneRequest, Failure> {
        let asked = self.asked()?;
        Ok(CloneRequest {
            create: CreateRequest {
                profile: grant.profile.clone().unwrap_or_default(),
                name_hint: self.name_hint.clone(),
                ttl_minutes: ttl_minutes(self.ttl_minutes)?,
                labels: self.labels.clone().unwrap_or_default().into_iter().collect(),
                extensions: self.extensions.clone().unwrap_or_default(),
                template: None,
                idempotency: self.idempotency(&asked),
            },
            asked,
            options: CloneOptions { demanded: self.demanded(&grant.obligations)?, ..self.options()? },
            time: self.time()?,
        })
    }

    /// Returns what policies demand to be masked. Where no rows are copied nothing is there to be shown.
    fn demanded(&self, obligations: &Obligations) -> Result<Vec<DemandedMask>, Failure> {
        if self.schema_only.unwrap_or_default() {
            return Ok(Vec::new());
        }
        let masks = obligations.masks.iter();
        masks.map(|((relation, column), policies)| demanded_mask(relation, column, policies)).collect()
    }
}

impl MaskInput {
    fn read(&self) -> Result<Mask, Failure> {
        let table = table_name("mask", &self.table)?;
        let invalid = |text: &str| Err(Failure::new(Code::InvalidArguments, text.to_owned()));
        let with = match (self.with, &self.value) {
            (MaskWord::Constant, Some(value)) if value.len() > CONSTANT_BYTES_MAX => {
                return invalid("a constant of `mask` is longer than 4096 bytes");
            }
            (MaskWord::Constant, Some(value)) => MaskWith::Constant(value.clone()),
            (MaskWord::Constant, None) => return invalid("a `mask` with `constant` needs a `value`"),
            (MaskWord::Null | MaskWord::Hash | MaskWord::Fake, Some(_)) => {
                return invalid("only a `mask` with `constant` takes a `value`");
            }
            (MaskWord::Null, None) => MaskWith::Null,
            (MaskWord::Hash, None) => MaskWith::Hash,
            (MaskWord::Fake, None) => MaskWith::Fake,
        };
        if self.column.is_empty() || self.column.contains('\0') {
            return invalid("a `mask` names no column");
        }
        Ok(Mask { table, column: self.column.clone(), with })
    }
}

fn demanded_mask(relation: &str, column: &str, policies: &BTreeSet<String>) -> Result<DemandedMask, Failure> {
    let policies: Vec<String> = policies.iter().cloned().collect();
    match TableName::parse(relation) {
        Some(table) => Ok(DemandedMask { table, column: column.to_owned(), policies }),
        None => {
            let shown: String = relation.chars().take(80).flat_map(char::escape_default).collect();
            let text =
                format!("policy `{}` demands `mask` of `{shown}`, which is no table's name", policies.join("`, `"));
            let mut failure =
                Failure::new(Code::ObligationUnmet, text).hint("an operator can let the policy name a `schema.table`");
            failure.policy =
                policies.into_iter().next().map(|policy| (policy, ObligationKind::Mask.as_str().to_owned()));
            Err(failure)
        }
    }
}

fn table_name(argument: &str, text: &str) -> Result<TableName, Failure> {
    TableName::parse(text).ok_or_else(|| {
        let shown: String = text.chars().take(80).flat_map(char::escape_default).collect();
        Failure::new(Code::InvalidArguments, format!("argument `{argument}` names `{shown}`, which is no table's name"))
            .hint("write `schema.table`, or `table` in `public`; a name with a dot or a quote stands in double quotes")
    })
}

impl Admissible for CloneDatabase {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;

    fn apply(&mut self, effective: &Effective<'_>) -> Result<Vec<String>, Failure> {
        self.demanded(effective.obligations())?;
        new_sandbox::apply(&mut self.labels, self.ttl_minutes, effective)
    }
}

#[async_trait]
impl Operation for CloneDatabase {
    const SPEC: Spec = Spec {
        name: "clone_database",
        title: "Clone a database into a sandbox",
        help: "Copies a database of another server into a new sandbox: a configured source by its name, or a URL where a policy allows one. \
               The source is only read. Prefer schemaOnly or a source without real people's data; columns can be masked. If it \
               fails or is cancelled, nothing is left.",
        impact: Impact::ReachesOut,
        meets: &[
            ObligationKind::MaxTtlMinutes,
            ObligationKind::MaxLiveSandboxes,
            ObligationKind::MaxDatabaseBytes,
            ObligationKind::Mask,
            ObligationKind::RequireLabel,
            ObligationKind::AddLabel,
        ],
        toolset: Toolset::Copies,
        idempotent: false,
    };
    type Output = ClonedDatabase;

    fn check(&self) -> Result<(), Failure> {
        self.asked()?.check()?;
        ttl_minutes(self.ttl_minutes)?;
        self.time()?;
        bounds::check_text("source", self.source.as_deref())?;
        bounds::check_text("reason", self.reason.as_deref())?;
        bounds::check_text("nameHint", self.name_hint.as_deref())?;
        bounds::check_text("owner", self.owner.as_deref())?;
        bounds::check_text("idempotencyKey", self.idempotency_key.as_deref())?;
        check_labels(self.labels.as_ref())?;
        bounds::check_extension_names(self.exclude_source_extensions.as_deref().unwrap_or_default())?;
        bounds::check_extension_names(self.extensions.as_deref().unwrap_or_default())?;
        self.options().map(drop)
    }

    fn asks(&self) -> Asks {
        Asks {
            about: About::Profile((&self.profile).into()),
            group_owner: self.owner.clone(),
            requested: Requested {
                ttl_minutes: self.ttl_minutes.and_then(|ttl| ttl.within(0, u64::MAX)),
                timeout_ms: self
                    .timeout_seconds
                    .and_then(|seconds| seconds.within(0, TIMEOUT_SECONDS_MAX))
                    .map(|s| s * 1000),
                labels: self.labels.clone().unwrap_or_default().into_iter().collect(),
                extensions: self.extensions.clone().unwrap_or_default(),
                ..Requested::default()
            },
            sql: None,
            // Checked before: a call without a source does not come here.
            clone: self.asked().ok(),
            usage: true,
            ..Asks::default()
        }
    }

    async fn foresee(&self, ahead: &Ahead<'_>) -> Result<Vec<String>, Failure> {
        ahead.core.foresee_copy(ahead.grant, self.request(ahead.grant)?).await
    }

    async fn run(permit: Permit<Self>, call: &Call) -> Result<Done<ClonedDatabase>, Failure> {
        let input = permit.input();
        let mut request = input.request(permit.grant())?;
        // Of the source's extensions those are made that the caller could ask for by name.
        let (principal, profile) = (&permit.grant().principal, &request.create.profile);
        request.options.allowed_extensions = call.preview.acceptable_extensions(principal, profile).await?;
        let source = request.asked.shown();
        let cloned = call.core.copy_source(&permit, request, call.progress.clone(), call.cancel.clone()).await?;
        let created = Created::new(&permit, call, &cloned.created).await?;
        let replayed = cloned.created.replayed;
        let plan = cloned.job.as_ref().map(|job| job.plan()).transpose().map_err(Failure::from)?;
        let mut warnings = plan.map(|plan| plan.warnings.clone()).unwrap_or_default();
        warnings.extend(lowered_ttl(&permit, call, &cloned.created.sandbox, input.ttl_minutes)?);
        let verification = cloned.job.as_ref().and_then(|job| job.report()).map(Verification::from);
        if let (Some(found), Some(plan)) = (&verification, plan) {
            if found.tables != plan.tables {
                warnings.push(format!(
                    "the source had {} tables when it was looked at, and the copy has {}",
                    plan.tables, found.tables
                ));
            }
            if !found.invalid_objects.is_empty() || !found.unpopulated_materialized_views.is_empty() {
                warnings
                    .push("some objects of the copy are not whole, as at the source: see `verification`".to_owned());
            }
        }
        let result = ClonedDatabase {
            created,
            source,
            schema_only: input.schema_only.unwrap_or_default(),
            source_size_bytes: plan.map(|plan| plan.source_bytes),
            source_postgres_version: plan.map(|plan| plan.source_version.clone()),
            excluded_source_extensions: plan.map(|plan| plan.excluded_extensions.clone()),
            left_out: plan.map(|plan| plan.left_out.clone()),
            verification,
        };
        let verb = if replayed { "found" } else { "cloned" };
        Ok(Done::new(summary(verb, &cloned.created.sandbox), result).warn(warnings))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(input: Value, expected: Result<(), &str>) {
        let input: CloneDatabase = serde_json::from_value(input).unwrap();
        let found = input.check().map_err(|failure| failure.message);
        match (found, expected) {
            (Ok(()), Ok(())) => {}
            (Err(found), Err(says)) => assert!(found.contains(says), "{found}"),
            (found, expected) => panic!("{found:?} instead of {expected:?}"),
        }
    }

    #[test]
    fn arguments_are_taken_up_to_their_bounds_and_no_further() {
        for (seconds, fits) in [(0, false), (1, true), (TIMEOUT_SECONDS_MAX, true), (TIMEOUT_SECONDS_MAX + 1, false)] {
            let expected = if fits { Ok(()) } else { Err("is not between 1 and 600") };
            check(json!({"source": "s", "timeoutSeconds": seconds}), expected);
        }
        for (count, fits) in [(NAMED_MAX, true), (NAMED_MAX + 1, false)] {
            let expected = if fits { Ok(()) } else { Err("at most 200 are allowed") };
            let tables: Vec<_> = (0..count).map(|n| format!("t{n}")).collect();
            let mask: Vec<_> = tables.iter().map(|t| json!({"table": t, "column": "c", "with": "null"})).collect();
            check(json!({"source": "s", "excludeTableData": tables}), expected);
            check(json!({"source": "s", "mask": mask}), expected);
        }
        for (bytes, fits) in [(CONSTANT_BYTES_MAX, true), (CONSTANT_BYTES_MAX + 1, false)] {
            let expected = if fits { Ok(()) } else { Err("longer than 4096 bytes") };
            let mask = json!({"table": "t", "column": "c", "with": "constant", "value": "x".repeat(bytes)});
            check(json!({"source": "s", "mask": [mask]}), expected);
        }
    }

    #[test]
    fn a_url_is_never_shown() {
        let input = json!({"sourceDatabaseUrl": "postgresql://u:hunter2@h/d", "idempotencyKey": "k"});
        let input: CloneDatabase = serde_json::from_value(input).unwrap();
        let asked = input.asked().unwrap();
        assert!(!format!("{input:?} {asked:?} {:?}", input.asks()).contains("hunter2"));
        assert_eq!(asked.shown(), "postgresql://u@h:5432/d");
        // Who changes the password and calls again means the same.
        let other: CloneDatabase =
            serde_json::from_value(json!({"sourceDatabaseUrl": "postgresql://u:other@h/d", "idempotencyKey": "k"}))
                .unwrap();
        assert_eq!(input.idempotency(&asked), other.idempotency(&other.asked().unwrap()));
    }
}
