//! Makes a template of an exported one.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::arguments::Whole;
use super::export_template::{requested, timeout};
use super::list_templates::{Listed, PRIVACY};
use super::selector::ProfileSelector;
use super::{About, Ahead, Asks, Call, Done, Operation, Spec, Toolset};
use crate::admission::{Admissible, Permit};
use crate::model::{Failure, Impact, ObligationKind};
use crate::sandbox::{ImportRequest, Imported, TemplateRequest, bounds};

/// Arguments of `import_template`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ImportTemplate {
    #[serde(flatten)]
    profile: ProfileSelector,
    /// The exported template, as `list_templates` shows it under `exported`.
    exported_name: String,
    /// What the template is called; default: as the exported one.
    template_name: Option<String>,
    /// Who makes it, in your own words; default: as it was noted.
    created_by: Option<String>,
    /// What it is for; default: as it was noted.
    notes: Option<String>,
    /// Whether a template of that name gives way to this one; default false.
    replace: Option<bool>,
    /// Seconds it may take, from 1 to 600; default 240.
    timeout_seconds: Option<Whole>,
}

/// A template made of an exported one.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ImportedTemplate {
    #[serde(flatten)]
    template: Listed,
    exported_name: String,
    /// The version of the server that it was exported from.
    source_postgres_version: String,
    verification: Verification,
}

/// What was found in a template that was imported.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Verification {
    /// The file's checksum was compared before anything was restored.
    checksum: String,
    tables: u64,
    rows: u64,
    /// Whether rows were counted, here and where it was exported.
    rows_counted: bool,
    /// Whether the schema is the exported one to the letter. Otherwise this server writes expressions in other words; that all
    /// objects are there, and columns of the same types, was found in any case.
    same_schema: bool,
}

impl ImportTemplate {
    fn request(&self, allowed_extensions: Vec<String>) -> Result<ImportRequest, Failure> {
        Ok(ImportRequest {
            from: self.exported_name.clone(),
            template: TemplateRequest {
                name: self.template_name.clone().unwrap_or_else(|| self.exported_name.clone()),
                created_by: self.created_by.clone(),
                notes: self.notes.clone(),
                replace: self.replace.unwrap_or(false),
            },
            allowed_extensions,
            time: timeout(self.timeout_seconds)?,
        })
    }
}

impl Admissible for ImportTemplate {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;
}

#[async_trait]
impl Operation for ImportTemplate {
    const SPEC: Spec = Spec {
        name: "import_template",
        title: "Import a template",
        help: "Makes a template of an exported one of yours, on this profile's server: of the version that it was exported from, or a \
               newer one. Its checksum is compared before anything is restored, and what was restored is compared with what was \
               exported. If it fails or is cancelled, nothing is left.",
        impact: Impact::Creates,
        meets: &[],
        toolset: Toolset::Copies,
        idempotent: false,
    };
    type Output = ImportedTemplate;

    fn check(&self) -> Result<(), Failure> {
        bounds::check_template_name(&self.exported_name)?;
        if let Some(name) = &self.template_name {
            bounds::check_template_name(name)?;
        }
        bounds::check_text("createdBy", self.created_by.as_deref())?;
        bounds::check_notes(self.notes.as_deref())?;
        timeout(self.timeout_seconds).map(drop)
    }

    fn asks(&self) -> Asks {
        let about = About::Profile((&self.profile).into());
        Asks { about, requested: requested(self.timeout_seconds), ..Asks::default() }
    }

    async fn foresee(&self, ahead: &Ahead<'_>) -> Result<Vec<String>, Failure> {
        // What of its extensions the caller may have is decided when it is made.
        let named = ahead.core.extensions_of_exported(ahead.grant, &self.exported_name).await?;
        ahead.core.foresee_import(ahead.grant, &self.request(named)?).await?;
        Ok(vec![
            "whether the file is whole, becomes what was exported, and all its extensions are allowed to you is known only when it \
             is imported"
                .to_owned(),
        ])
    }

    async fn run(permit: Permit<Self>, call: &Call) -> Result<Done<ImportedTemplate>, Failure> {
        // Of the dump's extensions those are made that the caller could ask for by name.
        let grant = permit.grant();
        let profile = grant.profile.clone().unwrap_or_else(|| call.core.default_profile().to_owned());
        let allowed = call.preview.acceptable_extensions(&grant.principal, &profile).await?;
        let request = permit.input().request(allowed)?;
        let (progress, cancel) = (call.progress.clone(), call.cancel.clone());
        let imported = call.core.import_template(&permit, request, progress, cancel).await?;
        let Imported { template, manifest, restored, same_schema } = imported;
        let mut warnings = vec![PRIVACY.to_owned()];
        if !same_schema {
            warnings.push(
                "this server writes some expressions of the schema in other words than the one it was exported from"
                    .to_owned(),
            );
        }
        if !restored.settings_left_out.is_empty() {
            warnings.push(format!(
                "settings of the database that are not set here: {}",
                restored.settings_left_out.join(", ")
            ));
        }
        if !manifest.left_out.is_empty() {
            warnings.push(format!("not in the file: {}", manifest.left_out.join("; ")));
        }
        let summary = format!("template `{}` is imported to profile `{}`", template.name, template.sandbox.profile);
        let verification = Verification {
            checksum: format!("sha256:{}", manifest.dump_sha256),
            tables: restored.report.tables,
            rows: restored.report.rows,
            rows_counted: restored.report.counted && manifest.rows_counted,
            same_schema,
        };
        let result = ImportedTemplate {
            template: Listed::new(&template),
            exported_name: permit.input().exported_name.clone(),
            source_postgres_version: manifest.postgres_version,
            verification,
        };
        Ok(Done::new(summary, result).warn(warnings))
    }
}
