//! Copies a sandbox into a new one.

use std::collections::BTreeMap;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::arguments::Whole;
use super::create_database::{Created, check_labels, check_ttl, summary, ttl_minutes};
use super::extend_database::missing_target;
use super::selector::DatabaseSelector;
use super::{About, Ahead, Asks, Call, Done, Operation, Spec, Toolset};
use crate::admission::{Admissible, Effective, Grant, Permit};
use crate::model::{Failure, Impact, ObligationKind, Requested};
use crate::sandbox::{CreateRequest, bounds};

/// Arguments of `fork_database`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ForkDatabase {
    #[serde(flatten)]
    database: DatabaseSelector,
    /// What the copy is for; becomes part of its name.
    name_hint: Option<String>,
    /// Minutes to live, from 1 to the profile's maximum; default: the profile's default.
    ttl_minutes: Option<Whole>,
    /// A group of work beneath you that the copy belongs to; default: the source's.
    owner: Option<String>,
    /// Labels of the copy, up to 32.
    labels: Option<BTreeMap<String, String>>,
}

/// A copy as its maker sees it.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Forked {
    #[serde(flatten)]
    created: Created,
    /// The id of the sandbox that it is a copy of.
    forked_from: String,
}

impl ForkDatabase {
    fn request(&self, grant: &Grant) -> Result<CreateRequest, Failure> {
        Ok(CreateRequest {
            profile: grant.profile.clone().unwrap_or_default(),
            name_hint: self.name_hint.clone(),
            ttl_minutes: ttl_minutes(self.ttl_minutes)?,
            labels: self.labels.clone().unwrap_or_default().into_iter().collect(),
            ..CreateRequest::default()
        })
    }
}

impl Admissible for ForkDatabase {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;

    fn apply(&mut self, effective: &Effective<'_>) -> Result<Vec<String>, Failure> {
        let mut labels = self.labels.take().unwrap_or_default().into_iter().collect();
        effective.label(&mut labels)?;
        self.labels = Some(labels.into_iter().collect());
        if let (Some(limit), Some(ttl)) = (&effective.obligations().max_ttl_minutes, self.ttl_minutes) {
            check_ttl(ttl, limit)?;
        }
        Ok(Vec::new())
    }
}

#[async_trait]
impl Operation for ForkDatabase {
    const SPEC: Spec = Spec {
        name: "fork_database",
        title: "Fork a sandbox database",
        help: "Copies a sandbox of yours, data and all, into a new one with roles and a time to live of its own; the source stays \
               as it is. Nobody may use the source meanwhile: end your sessions there first.",
        impact: Impact::Creates,
        meets: &[
            ObligationKind::MaxTtlMinutes,
            ObligationKind::MaxLiveSandboxes,
            ObligationKind::MaxDatabaseBytes,
            ObligationKind::RequireLabel,
            ObligationKind::AddLabel,
        ],
        toolset: Toolset::Copies,
        idempotent: false,
    };
    type Output = Forked;

    fn check(&self) -> Result<(), Failure> {
        ttl_minutes(self.ttl_minutes)?;
        bounds::check_text("nameHint", self.name_hint.as_deref())?;
        bounds::check_text("owner", self.owner.as_deref())?;
        check_labels(self.labels.as_ref())
    }

    fn asks(&self) -> Asks {
        Asks {
            about: About::Sandbox((&self.database).into()),
            group_owner: self.owner.clone(),
            requested: Requested {
                ttl_minutes: self.ttl_minutes.and_then(|ttl| ttl.within(0, u64::MAX)),
                labels: self.labels.clone().unwrap_or_default().into_iter().collect(),
                ..Requested::default()
            },
            usage: true,
            ..Asks::default()
        }
    }

    async fn foresee(&self, ahead: &Ahead<'_>) -> Result<Vec<String>, Failure> {
        let source = ahead.grant.target.ok_or_else(missing_target)?;
        ahead.core.foresee_fork(ahead.grant, source, self.request(ahead.grant)?).await?;
        Ok(vec!["whether others use the source is known only when it is copied".to_owned()])
    }

    async fn run(permit: Permit<Self>, call: &Call) -> Result<Done<Forked>, Failure> {
        let source = permit.grant().target.ok_or_else(missing_target)?;
        let request = permit.input().request(permit.grant())?;
        let created = call.core.fork(&permit, source, request, call.progress.clone(), call.cancel.clone()).await?;
        let result = Forked { created: Created::new(&permit, call, &created).await?, forked_from: source.to_string() };
        Ok(Done::new(summary("forked", &created.sandbox), result))
    }
}
