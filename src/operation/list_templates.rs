//! Lists the caller's templates.

use std::collections::BTreeMap;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::list_databases::{ALL_VERSIONS, FailedProfile, unasked};
use super::selector::ScopeSelector;
use super::{Ahead, Asks, Call, Done, Operation, Spec, Toolset};
use crate::admission::{Admissible, Permit};
use crate::model::{Failure, Impact, ObligationKind, Timestamp, counted};
use crate::sandbox::{KeptDump, Template};

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
    /// Templates that were exported to files; they are of no profile.
    exported: Vec<Exported>,
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
    /// The sandbox that it is a copy of, which may be gone; an imported one is a copy of none.
    #[serde(skip_serializing_if = "Option::is_none")]
    source_database_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source_database_name: Option<String>,
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
        let source = sandbox.source.as_ref();
        Self {
            template_name: template.name.clone(),
            profile: sandbox.profile.clone(),
            principal: sandbox.owner.clone(),
            owner: sandbox.group_owner.clone(),
            created_by: template.created_by.clone(),
            notes: template.notes.clone(),
            source_database_id: source.map(|source| source.id.to_string()),
            source_database_name: source.map(|source| source.name.clone()),
            postgres_version: template.major.to_string(),
            extensions: template.extensions.iter().cloned().collect(),
            size_bytes: sandbox.bytes.unwrap_or_default(),
            created_at: sandbox.created_at.to_string(),
            privacy_warning: PRIVACY.to_owned(),
        }
    }
}

/// One exported template.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Exported {
    exported_name: String,
    /// What the template was called that was exported.
    template_name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    created_by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    notes: Option<String>,
    /// The version of the server that it was exported from; no older one can import it.
    postgres_version: String,
    /// The extensions in it, with their versions there.
    extensions: BTreeMap<String, String>,
    tables: u64,
    rows: u64,
    /// The size of its database.
    database_bytes: u64,
    /// The length of the file.
    size_bytes: u64,
    /// The dump's checksum.
    checksum: String,
    exported_at: String,
    /// What of the template is not in the file.
    left_out: Vec<String>,
}

impl Exported {
    pub(super) fn new(kept: &KeptDump) -> Self {
        let manifest = &kept.manifest;
        Self {
            exported_name: kept.name.clone(),
            template_name: manifest.template_name.clone(),
            created_by: manifest.created_by.clone(),
            notes: manifest.notes.clone(),
            postgres_version: manifest.postgres_version.clone(),
            extensions: manifest.extensions.iter().map(|e| (e.name.clone(), e.version.clone())).collect(),
            tables: manifest.tables,
            rows: manifest.rows,
            database_bytes: manifest.database_bytes,
            size_bytes: kept.bytes,
            checksum: format!("sha256:{}", manifest.dump_sha256),
            exported_at: Timestamp::from_unix_ms(manifest.exported_at_ms.max(0).unsigned_abs()).to_string(),
            left_out: manifest.left_out.clone(),
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
        help: "Lists your templates, profile by profile: what they were copied from, what they need and how large they are; and those that \
               were exported.",
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
        let exported = call.core.exported_templates(&permit).await?;
        let unasked = unasked(&list.failures);
        let templates: Vec<Listed> = list.templates.iter().map(Listed::new).collect();
        let result = Templates {
            profiles: list.profiles,
            privacy_warning: PRIVACY.to_owned(),
            failures: list.failures.into_iter().map(Into::into).collect(),
            exported: exported.iter().map(Exported::new).collect(),
            templates,
        };
        Ok(Done::new(counted(result.templates.len(), "template", "templates"), result).warn(unasked))
    }
}
