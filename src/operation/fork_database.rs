//! Copies a sandbox into a new one.

use std::collections::BTreeMap;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::arguments::Whole;
use super::create_database::{Created, summary};
use super::extend_database::missing_target;
use super::new_sandbox::{self, NewSandbox};
use super::selector::DatabaseSelector;
use super::{About, Ahead, Asks, Call, Done, Operation, Spec, Toolset};
use crate::admission::{Admissible, Effective, Permit};
use crate::model::{Failure, Impact, ObligationKind};

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
    /// Labels beside the source's, which the copy keeps; up to 32 together.
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
    fn new_sandbox(&self) -> NewSandbox<'_> {
        NewSandbox {
            name_hint: self.name_hint.as_deref(),
            ttl_minutes: self.ttl_minutes,
            owner: self.owner.as_deref(),
            labels: self.labels.as_ref(),
            ..NewSandbox::default()
        }
    }
}

impl Admissible for ForkDatabase {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;

    fn apply(&mut self, effective: &Effective<'_>) -> Result<Vec<String>, Failure> {
        new_sandbox::apply(&mut self.labels, self.ttl_minutes, effective)
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
        meets: new_sandbox::MEETS,
        toolset: Toolset::Copies,
        idempotent: false,
    };
    type Output = Forked;

    fn check(&self) -> Result<(), Failure> {
        self.new_sandbox().check()
    }

    fn asks(&self) -> Asks {
        Asks {
            about: About::Sandbox((&self.database).into()),
            group_owner: self.owner.clone(),
            requested: self.new_sandbox().requested(),
            usage: true,
            ..Asks::default()
        }
    }

    async fn foresee(&self, ahead: &Ahead<'_>) -> Result<Vec<String>, Failure> {
        let source = ahead.grant.target.ok_or_else(missing_target)?;
        ahead.core.foresee_fork(ahead.grant, source, self.new_sandbox().request(ahead.grant)?).await?;
        Ok(vec!["whether others use the source is known only when it is copied".to_owned()])
    }

    async fn run(permit: Permit<Self>, call: &Call) -> Result<Done<Forked>, Failure> {
        let source = permit.grant().target.ok_or_else(missing_target)?;
        let request = permit.input().new_sandbox().request(permit.grant())?;
        let created = call.core.fork(&permit, source, request, call.progress.clone(), call.cancel.clone()).await?;
        let result = Forked { created: Created::new(&permit, call, &created).await?, forked_from: source.to_string() };
        Ok(Done::new(summary("forked", &created.sandbox), result))
    }
}
