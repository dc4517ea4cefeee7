//! Makes a sandbox from a template.

use std::collections::BTreeMap;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::arguments::Whole;
use super::create_database::{CreateDatabase, Created, summary};
use super::selector::ProfileSelector;
use super::{Ahead, Asks, Call, Done, Operation, Spec, Toolset};
use crate::admission::{Admissible, Effective, Permit};
use crate::model::{Failure, Impact, ObligationKind};

/// Arguments of `create_sandbox_from_template`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct CreateSandboxFromTemplate {
    #[serde(flatten)]
    profile: ProfileSelector,
    /// The template, as `list_templates` shows it.
    template_name: String,
    /// What the sandbox is for; becomes part of its name.
    name_hint: Option<String>,
    /// Minutes to live, from 1 to the profile's maximum; default: the profile's default.
    ttl_minutes: Option<Whole>,
    /// A group of work beneath you, a task for instance.
    owner: Option<String>,
    /// Labels beside the template's, which the sandbox keeps; up to 32 together.
    labels: Option<BTreeMap<String, String>>,
    /// Extensions to install beside the template's, up to 25.
    extensions: Option<Vec<String>>,
    /// Repeating a call with the same key gives the same sandbox instead of a second one.
    idempotency_key: Option<String>,
}

/// A sandbox made from a template, as its maker sees it.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct FromTemplate {
    #[serde(flatten)]
    created: Created,
    template_name: String,
}

impl CreateSandboxFromTemplate {
    /// Returns the same wish as `create_database` has it.
    fn wish(&self) -> CreateDatabase {
        CreateDatabase {
            profile: self.profile.clone(),
            name_hint: self.name_hint.clone(),
            ttl_minutes: self.ttl_minutes,
            owner: self.owner.clone(),
            labels: self.labels.clone(),
            extensions: self.extensions.clone(),
            template_name: Some(self.template_name.clone()),
            idempotency_key: self.idempotency_key.clone(),
        }
    }
}

impl Admissible for CreateSandboxFromTemplate {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;

    fn apply(&mut self, effective: &Effective<'_>) -> Result<Vec<String>, Failure> {
        let mut wish = self.wish();
        let warnings = wish.apply(effective)?;
        self.labels = wish.labels;
        Ok(warnings)
    }
}

#[async_trait]
impl Operation for CreateSandboxFromTemplate {
    const SPEC: Spec = Spec {
        name: "create_sandbox_from_template",
        title: "Create a sandbox from a template",
        help: "Creates a sandbox that is a copy of a template of yours, data and all, with roles and a time to live of its own.",
        impact: Impact::Creates,
        meets: CreateDatabase::SPEC.meets,
        toolset: Toolset::Copies,
        idempotent: false,
    };
    type Output = FromTemplate;

    fn check(&self) -> Result<(), Failure> {
        self.wish().check()
    }

    fn asks(&self) -> Asks {
        self.wish().asks()
    }

    async fn foresee(&self, ahead: &Ahead<'_>) -> Result<Vec<String>, Failure> {
        self.wish().foresee(ahead).await
    }

    async fn run(permit: Permit<Self>, call: &Call) -> Result<Done<FromTemplate>, Failure> {
        let request = permit.input().wish().request(permit.grant())?;
        let created = call.core.create(&permit, request, call.progress.clone(), call.cancel.clone()).await?;
        let result = FromTemplate {
            created: Created::new(&permit, call, &created).await?,
            template_name: permit.input().template_name.clone(),
        };
        let verb = if created.replayed { "found" } else { "created" };
        Ok(Done::new(summary(verb, &created.sandbox), result))
    }
}
