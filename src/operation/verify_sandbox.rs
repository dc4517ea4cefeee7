//! Checks a sandbox against what it promises.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::extend_database::missing_target;
use super::selector::DatabaseSelector;
use super::{About, Ahead, Asks, Call, Done, Operation, Spec, Toolset};
use crate::admission::{Admissible, Permit};
use crate::model::{Check, CheckStatus, Failure, Impact, ObligationKind, counted};

/// Arguments of `verify_sandbox`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct VerifySandbox {
    #[serde(flatten)]
    database: DatabaseSelector,
}

/// How the sandbox's checks came out.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Verified {
    database_id: String,
    /// Whether no check failed. The envelope's own `ok` says only that the checks were made.
    ok: bool,
    checks: Vec<CheckEntry>,
}

/// One check.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct CheckEntry {
    /// A stable name.
    name: String,
    /// `ok`, `warn`, `fail` or `skipped`.
    status: String,
    /// What was seen.
    detail: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

impl From<Check> for CheckEntry {
    fn from(check: Check) -> Self {
        Self { name: check.name, status: check.status.as_str().to_owned(), detail: check.detail, remedy: check.remedy }
    }
}

/// Returns whether no check failed.
pub(super) fn all_pass(checks: &[Check]) -> bool {
    checks.iter().all(|check| check.status != CheckStatus::Fail)
}

/// Says in one line how checks came out.
pub(super) fn summary(checks: &[Check]) -> String {
    let count = |status| checks.iter().filter(|check| check.status == status).count();
    let skipped = match count(CheckStatus::Skipped) {
        0 => String::new(),
        skipped => format!(", {skipped} skipped"),
    };
    format!(
        "{}: {} ok, {} to look at, {} failed{skipped}",
        counted(checks.len(), "check", "checks"),
        count(CheckStatus::Ok),
        count(CheckStatus::Warn),
        count(CheckStatus::Fail)
    )
}

impl Admissible for VerifySandbox {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;
}

#[async_trait]
impl Operation for VerifySandbox {
    const SPEC: Spec = Spec {
        name: "verify_sandbox",
        title: "Verify a sandbox's isolation",
        help: "Logs in with the sandbox's own credential and checks identity, rights, ownership, memberships and that no other \
               database can be reached.",
        impact: Impact::Reads,
        meets: &[ObligationKind::ReadOnly],
        toolset: Toolset::Core,
        idempotent: true,
    };
    type Output = Verified;

    fn asks(&self) -> Asks {
        Asks { about: About::Sandbox((&self.database).into()), ..Asks::default() }
    }

    async fn foresee(&self, ahead: &Ahead<'_>) -> Result<Vec<String>, Failure> {
        ahead.reads_sandbox().await.map(|()| Vec::new())
    }

    async fn run(permit: Permit<Self>, call: &Call) -> Result<Done<Verified>, Failure> {
        let id = permit.grant().target.ok_or_else(missing_target)?;
        let checks = call.core.verify(&permit, id).await?;
        Ok(Done::new(
            summary(&checks),
            Verified {
                database_id: id.to_string(),
                ok: all_pass(&checks),
                checks: checks.into_iter().map(Into::into).collect(),
            },
        ))
    }
}
