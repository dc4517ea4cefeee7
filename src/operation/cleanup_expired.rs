//! Removes the caller's sandboxes whose time is over.

use std::collections::BTreeMap;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::list_databases::{FailedProfile, unasked};
use super::new_sandbox::check_labels;
use super::{Ahead, Asks, Call, Done, Operation, Spec, Toolset};
use crate::admission::{Admissible, Grant, Permit};
use crate::model::{Failure, Impact, ObligationKind, Requested, SandboxId, counted};
use crate::sandbox::{CleanupFilter, Core, bounds};

/// Arguments of `cleanup_expired`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct CleanupExpired {
    /// Profile name; default: the default profile, or with postgresVersion or includeAllVersions every profile that fits.
    profile: Option<String>,
    /// Only profiles of this Postgres major version; `*` is every version.
    postgres_version: Option<String>,
    /// Only this group of work.
    owner: Option<String>,
    /// Only sandboxes that carry all of these labels.
    labels: Option<BTreeMap<String, String>>,
    /// Only say what would be removed; default false.
    dry_run: Option<bool>,
    /// Look at every version, whatever postgresVersion says; default false.
    include_all_versions: Option<bool>,
}

/// What was removed.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct CleanedUp {
    /// What was looked at: one profile, or all.
    scope: String,
    /// The profiles that were looked at.
    profiles: Vec<String>,
    /// Profiles that were left alone.
    remaining_profiles: Vec<String>,
    dry_run: bool,
    filters: Filters,
    /// Names of the sandboxes whose time is over.
    selected: Vec<String>,
    /// Names of those that are gone.
    deleted: Vec<String>,
    /// Those that could not be removed; they are tried again later.
    failures: Vec<FailedSandbox>,
    /// Profiles that could not be reached.
    profile_failures: Vec<FailedProfile>,
}

/// The filters that were applied.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Filters {
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    labels: BTreeMap<String, String>,
}

/// A sandbox that could not be removed.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct FailedSandbox {
    database_name: String,
    code: String,
    message: String,
}

impl CleanupExpired {
    fn every_version(&self) -> bool {
        self.include_all_versions.unwrap_or(false)
    }

    fn filter(&self, core: &Core, grant: &Grant) -> CleanupFilter {
        let named = self.profile.clone();
        let profile = if self.every_version() || self.postgres_version.is_some() {
            named
        } else {
            Some(named.unwrap_or_else(|| core.default_profile().to_owned()))
        };
        CleanupFilter {
            profile,
            postgres_version: self.postgres_version.clone().filter(|_| !self.every_version()),
            owner: Some(grant.principal.owner.clone()),
            group_owner: self.owner.clone(),
            labels: self.labels.clone().unwrap_or_default().into_iter().collect(),
        }
    }
}

impl Admissible for CleanupExpired {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;
}

#[async_trait]
impl Operation for CleanupExpired {
    const SPEC: Spec = Spec {
        name: "cleanup_expired",
        title: "Clean up expired sandboxes",
        help: "Deletes your sandboxes whose time is over, oldest first. With dryRun it only names them.",
        impact: Impact::Destroys,
        meets: &[],
        toolset: Toolset::Core,
        idempotent: true,
    };
    type Output = CleanedUp;

    fn check(&self) -> Result<(), Failure> {
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
        ahead.core.foresee_cleanup(&self.filter(ahead.core, ahead.grant))?;
        Ok(Vec::new())
    }

    async fn run(permit: Permit<Self>, call: &Call) -> Result<Done<CleanedUp>, Failure> {
        let input = permit.input();
        let dry_run = input.dry_run.unwrap_or(false);
        let filter = input.filter(&call.core, permit.grant());
        let labels = input.labels.clone().unwrap_or_default();
        let report = call.core.cleanup(&permit, &filter, dry_run).await?;
        let every_profile = call.core.profiles().iter().map(|profile| profile.name().to_owned());
        let remaining_profiles = every_profile.filter(|name| !report.profiles.contains(name)).collect();
        let name_of = |id: &SandboxId| report.selected.iter().find(|s| s.id == *id).map(|s| s.names.database.clone());
        let failures: Vec<FailedSandbox> = report
            .failures
            .iter()
            .map(|failed| FailedSandbox {
                database_name: failed.sandbox.names.database.clone(),
                code: failed.failure.code.as_str().to_owned(),
                message: failed.failure.message.clone(),
            })
            .collect();
        let verb = if dry_run { "would delete" } else { "deleted" };
        let count = if dry_run { report.selected.len() } else { report.deleted.len() };
        let unasked = unasked(&report.profile_failures);
        let done = Done::new(
            match (dry_run, failures.len()) {
                (true, 0) => format!("{verb} {}", counted(count, "expired sandbox", "expired sandboxes")),
                (_, failed) => {
                    format!("{verb} {}, {failed} failed", counted(count, "expired sandbox", "expired sandboxes"))
                }
            },
            CleanedUp {
                scope: if filter.profile.is_none() { "all profiles" } else { "profile" }.to_owned(),
                profiles: report.profiles,
                remaining_profiles,
                dry_run,
                filters: Filters { owner: input.owner.clone(), labels },
                selected: report.selected.iter().map(|sandbox| sandbox.names.database.clone()).collect(),
                deleted: report.deleted.iter().filter_map(name_of).collect(),
                failures,
                profile_failures: report.profile_failures.into_iter().map(Into::into).collect(),
            },
        );
        Ok(done.warn(unasked))
    }
}
