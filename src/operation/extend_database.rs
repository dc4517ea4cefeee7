//! Gives a sandbox more time.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::arguments::Whole;
use super::new_sandbox::{check_ttl, ttl_minutes};
use super::selector::DatabaseSelector;
use super::{About, Ahead, Asks, Call, Done, Operation, Spec, Toolset};
use crate::admission::{Admissible, Effective, Permit};
use crate::model::{Code, Failure, Impact, ObligationKind, Requested};

/// Arguments of `extend_database`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ExtendDatabase {
    #[serde(flatten)]
    database: DatabaseSelector,
    /// Minutes to live from now. The whole life from creation stays within the profile's maximum.
    ttl_minutes: Whole,
}

/// When the sandbox's time is over now.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Extended {
    database_id: String,
    database_name: String,
    profile: String,
    expires_at: String,
}

impl Admissible for ExtendDatabase {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;

    fn apply(&mut self, effective: &Effective<'_>) -> Result<Vec<String>, Failure> {
        let demands = effective.obligations();
        if let Some(limit) = &demands.max_ttl_minutes {
            check_ttl(self.ttl_minutes, limit)?;
        }
        Ok(Vec::new())
    }
}

#[async_trait]
impl Operation for ExtendDatabase {
    const SPEC: Spec = Spec {
        name: "extend_database",
        title: "Extend a sandbox's time",
        help: "Sets a sandbox's remaining time. Also revives an expired sandbox that has not been cleaned up yet.",
        impact: Impact::Writes,
        meets: &[ObligationKind::MaxTtlMinutes],
        toolset: Toolset::Core,
        idempotent: false,
    };
    type Output = Extended;

    fn check(&self) -> Result<(), Failure> {
        ttl_minutes(Some(self.ttl_minutes)).map(|_| ())
    }

    fn asks(&self) -> Asks {
        Asks {
            about: About::Sandbox((&self.database).into()),
            requested: Requested { ttl_minutes: self.ttl_minutes.within(0, u64::MAX), ..Requested::default() },
            ..Asks::default()
        }
    }

    async fn foresee(&self, ahead: &Ahead<'_>) -> Result<Vec<String>, Failure> {
        let id = ahead.grant.target.ok_or_else(missing_target)?;
        let minutes = ttl_minutes(Some(self.ttl_minutes))?.ok_or_else(missing_target)?;
        ahead.core.foresee_extend(ahead.grant, id, minutes).await?;
        Ok(Vec::new())
    }

    async fn run(permit: Permit<Self>, call: &Call) -> Result<Done<Extended>, Failure> {
        let id = permit.grant().target.ok_or_else(missing_target)?;
        let minutes = ttl_minutes(Some(permit.input().ttl_minutes))?.ok_or_else(missing_target)?;
        let sandbox = call.core.extend(&permit, id, minutes).await?;
        let summary = format!("`{}` expires at {}", sandbox.names.database, sandbox.expires_at);
        Ok(Done::new(
            summary,
            Extended {
                database_id: sandbox.id.to_string(),
                database_name: sandbox.names.database,
                profile: sandbox.profile,
                expires_at: sandbox.expires_at.to_string(),
            },
        ))
    }
}

/// A permit for an operation about a sandbox always names the sandbox.
pub(super) fn missing_target() -> Failure {
    Failure::new(Code::Internal, "the permit names no sandbox")
}
