//! Lists the caller's templates.

use std::collections::BTreeMap;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::list_databases::{ALL_VERSIONS, FailedProfile, unasked};
use super::selector::ScopeSelector;
use super::{Ahead, Asks, Call, Done, Operation, Spec, Toolset};
use crate::admission::{Admissible, Permit};
use crate::model::{Failure, Impact, ObligationKind, counted};
use crate::sandbox::Template;

/// What whoever keeps a template is told.
pub(super) const PRIVACY: &str =
    "a template holds all rows that its sandbox held; delete it when they are not to be kept any longer";

/// Arguments of `list_templates`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListTemplates {
    #[serde(flatten)]
    within: ScopeSelector,
}

/// The caller's templates.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Templates {
    /// The profiles that were searched.
    profiles: Vec<String>,
    templates: Vec<Listed>,
    /// What is to be kept in mind of them.
    privacy_warning: String,
    /// Profiles that could not be searched.
    failures: Vec<FailedProfile>,
}

/// One template.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Listed {
    template_name: String,
    profile: String,
    /// The principal's owner whose it is.
    principal: String,
    /// The group of work that the sandbox belonged to.
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    created_by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    notes: Option<String>,
    /// The sandbox that it is a copy of; it may be gone.
    source_database_id: String,
    source_database_name: String,
    /// The server's major version when it was made.
    postgres_version: String,
    /// The extensions in it, with their versions.
    extensions: BTreeMap<String, String>,
    size_bytes: u64,
    created_at: String,
    /// What is to be kept in mind of it.
    privacy_warning: String,
}

impl Listed {
    pub(super) fn new(template: &Template) -> Self {
        let sandbox = &template.sandbox;
        let (id, name) =
            sandbox.source.as_ref().map(|source| (source.id.to_string(), source.name.clone())).unwrap_or_default();
        Self {
            template_name: template.name.clone(),
            profile: sandbox.profile.clone(),
            principal: sandbox.owner.clone(),
            owner: sandbox.group_owner.clone(),
            created_by: template.created_by.clone(),
            notes: template.notes.clone(),
            source_database_id: id,
            source_database_name: name,
            postgres_version: template.major.to_string(),
            extensions: template.extensions.iter().cloned().collect(),
            size_bytes: sandbox.bytes.unwrap_or_default(),
            created_at: sandbox.created_at.to_string(),
            privacy_warning: PRIVACY.to_owned(),
        }
    }
}

impl ListTemplates {
    fn version(&self) -> Option<&str> {
        self.within.postgres_version.as_deref().filter(|version| *version != ALL_VERSIONS)
    }
}

impl Admissible for ListTemplates {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;
}

#[async_trait]
impl Operation for ListTemplates {
    const SPEC: Spec = Spec {
        name: "list_templates",
        title: "List templates",
        help: "Lists your templates, profile by profile: what they were copied from, what they need and how large they are.",
        impact: Impact::Reads,
        meets: &[ObligationKind::ReadOnly],
        toolset: Toolset::Copies,
        idempotent: true,
    };
    type Output = Templates;

    fn asks(&self) -> Asks {
        Asks::default()
    }

    async fn foresee(&self, ahead: &Ahead<'_>) -> Result<Vec<String>, Failure> {
        ahead.core.foresee_templates(self.within.profile.as_deref(), self.version())?;
        Ok(Vec::new())
    }

    async fn run(permit: Permit<Self>, call: &Call) -> Result<Done<Templates>, Failure> {
        let input = permit.input();
        let listed = call.core.templates(&permit, input.within.profile.as_deref(), input.version()).await;
        let list = permit.grant().course.refusing(listed)?;
        let unasked = unasked(&list.failures);
        let templates: Vec<Listed> = list.templates.iter().map(Listed::new).collect();
        let result = Templates {
            profiles: list.profiles,
            privacy_warning: PRIVACY.to_owned(),
            failures: list.failures.into_iter().map(Into::into).collect(),
            templates,
        };
        Ok(Done::new(counted(result.templates.len(), "template", "templates"), result).warn(unasked))
    }
}
