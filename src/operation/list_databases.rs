//! Lists the caller's sandboxes.

use std::collections::BTreeMap;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::arguments::Whole;
use super::new_sandbox::check_labels;
use super::selector::ScopeSelector;
use super::{Ahead, Asks, Call, Done, Operation, Spec, Toolset};
use crate::admission::{Admissible, Grant, Permit};
use crate::model::limits::LIST_PAGE_MAX;
use crate::model::{Code, Failure, Impact, ObligationKind, Requested, counted};
use crate::sandbox::{ListFilter, ProfileFailure, Sandbox, bounds};

/// The Postgres version that means every version.
pub(super) const ALL_VERSIONS: &str = "*";
/// Sandboxes per page, unless asked otherwise.
const PAGE_DEFAULT: u64 = 50;

/// Arguments of `list_databases`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListDatabases {
    #[serde(flatten)]
    within: ScopeSelector,
    /// Only this group of work.
    owner: Option<String>,
    /// Only sandboxes that carry all of these labels.
    labels: Option<BTreeMap<String, String>>,
    /// Whether to list sandboxes whose time is over, too; default false.
    include_expired: Option<bool>,
    /// Look at every version, whatever postgresVersion says; default false.
    include_all_versions: Option<bool>,
    /// Where the last page ended.
    cursor: Option<String>,
    /// Sandboxes per page, 1 to 200; default 50.
    limit: Option<Whole>,
}

/// A page of sandboxes.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Databases {
    /// What was searched: one profile, or all.
    scope: String,
    /// The profiles that were searched.
    profiles: Vec<String>,
    databases: Vec<Listed>,
    /// Whether there are more.
    truncated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
    /// Profiles that could not be searched.
    failures: Vec<FailedProfile>,
}

/// A profile that did not answer.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct FailedProfile {
    profile: String,
    code: String,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

impl From<ProfileFailure> for FailedProfile {
    fn from(failed: ProfileFailure) -> Self {
        let ProfileFailure { profile, failure } = failed;
        Self { profile, code: failure.code.as_str().to_owned(), message: failure.message, hint: failure.hint }
    }
}

/// One sandbox.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Listed {
    database_id: String,
    database_name: String,
    profile: String,
    role_name: String,
    /// The principal's owner that created it.
    principal: String,
    /// The group of work that was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    labels: BTreeMap<String, String>,
    /// `creating`, `ready`, `deleting` or `failed`.
    state: String,
    created_at: String,
    expires_at: String,
    expired: bool,
    /// `active` or `expired`.
    ttl_status: String,
    /// Negative once expired.
    expires_in_seconds: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    size_bytes: Option<u64>,
}

impl Listed {
    pub(super) fn new(sandbox: &Sandbox) -> Self {
        let expired = sandbox.expired();
        Self {
            database_id: sandbox.id.to_string(),
            database_name: sandbox.names.database.clone(),
            profile: sandbox.profile.clone(),
            role_name: sandbox.names.owner_role.clone(),
            principal: sandbox.owner.clone(),
            owner: sandbox.group_owner.clone(),
            labels: sandbox.labels.iter().cloned().collect(),
            state: sandbox.state.as_str().to_owned(),
            created_at: sandbox.created_at.to_string(),
            expires_at: sandbox.expires_at.to_string(),
            expired,
            ttl_status: if expired { "expired" } else { "active" }.to_owned(),
            expires_in_seconds: sandbox.expires_in_seconds(),
            size_bytes: sandbox.bytes,
        }
    }
}

impl ListDatabases {
    fn page(&self) -> Result<u64, Failure> {
        let max = u64::try_from(LIST_PAGE_MAX).unwrap_or(u64::MAX);
        let Some(limit) = self.limit else { return Ok(PAGE_DEFAULT) };
        limit.within(1, max).ok_or_else(|| {
            Failure::new(Code::InvalidArguments, format!("limit of {} is not between 1 and {max}", limit.shown()))
        })
    }

    fn filter(&self, grant: &Grant) -> Result<ListFilter, Failure> {
        let every_version = self.include_all_versions.unwrap_or(false);
        Ok(ListFilter {
            profile: self.within.profile.clone(),
            postgres_version: self.within.postgres_version.clone().filter(|v| v != ALL_VERSIONS && !every_version),
            owner: Some(grant.principal.owner.clone()),
            group_owner: self.owner.clone(),
            labels: self.labels.clone().unwrap_or_default().into_iter().collect(),
            include_expired: self.include_expired.unwrap_or(false),
            cursor: self.cursor.clone(),
            limit: usize::try_from(self.page()?).ok(),
        })
    }
}

impl Admissible for ListDatabases {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;
}

#[async_trait]
impl Operation for ListDatabases {
    const SPEC: Spec = Spec {
        name: "list_databases",
        title: "List sandbox databases",
        help: "Lists your sandboxes, profile by profile, oldest first. Answers for the profiles it can reach and names those it cannot.",
        impact: Impact::Reads,
        meets: &[ObligationKind::ReadOnly],
        toolset: Toolset::Core,
        idempotent: true,
    };
    type Output = Databases;

    fn check(&self) -> Result<(), Failure> {
        self.page()?;
        bounds::check_text("owner", self.owner.as_deref())?;
        check_labels(self.labels.as_ref())
    }

    fn asks(&self) -> Asks {
        Asks {
            group_owner: self.owner.clone(),
            requested: Requested {
                labels: self.labels.clone().unwrap_or_default().into_iter().collect(),
                ..Requested::default()
            },
            ..Asks::default()
        }
    }

    async fn foresee(&self, ahead: &Ahead<'_>) -> Result<Vec<String>, Failure> {
        ahead.core.foresee_list(&self.filter(ahead.grant)?)?;
        Ok(Vec::new())
    }

    async fn run(permit: Permit<Self>, call: &Call) -> Result<Done<Databases>, Failure> {
        let input = permit.input();
        let listed = async { call.core.list(&input.filter(permit.grant())?).await };
        // What fails as a whole fails before anything is looked at.
        let report = permit.grant().course.refusing(listed.await)?;
        let unasked = unasked(&report.failures);
        let databases: Vec<Listed> = report.databases.iter().map(Listed::new).collect();
        let scope = match input.within.profile {
            Some(_) => "profile",
            None => "all profiles",
        };
        let mut summary = format!(
            "{}{}",
            counted(databases.len(), "sandbox", "sandboxes"),
            if report.truncated { ", and more beyond `nextCursor`" } else { "" }
        );
        if !unasked.is_empty() {
            let names: Vec<String> = report.failures.iter().map(|failed| format!("`{}`", failed.profile)).collect();
            summary.push_str(&format!("; could not ask {}", names.join(", ")));
        }
        let done = Done::new(
            summary,
            Databases {
                scope: scope.to_owned(),
                profiles: report.profiles,
                databases,
                truncated: report.truncated,
                next_cursor: report.next_cursor,
                failures: report.failures.into_iter().map(Into::into).collect(),
            },
        );
        Ok(done.warn(unasked))
    }
}

/// Warns of each profile that did not answer: what it has is missing from the result.
pub(super) fn unasked(failures: &[ProfileFailure]) -> Vec<String> {
    let warning = |failed: &ProfileFailure| {
        format!("profile `{}` could not be asked: {}", failed.profile, failed.failure.message)
    };
    failures.iter().map(warning).collect()
}
