//! Keeps a copy of a sandbox as a template.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;

use super::extend_database::missing_target;
use super::list_templates::{Listed, PRIVACY};
use super::selector::DatabaseSelector;
use super::{About, Ahead, Asks, Call, Done, Operation, Spec, Toolset};
use crate::admission::{Admissible, Permit};
use crate::model::{Failure, Impact, ObligationKind};
use crate::sandbox::{TemplateRequest, bounds};

/// Arguments of `create_template_from_sandbox`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct CreateTemplateFromSandbox {
    #[serde(flatten)]
    database: DatabaseSelector,
    /// What the template is called: 1 to 80 letters, digits, `_`, `.` or `-`; yours alone.
    template_name: String,
    /// Who makes it, in your own words.
    created_by: Option<String>,
    /// What it is for.
    notes: Option<String>,
    /// Whether a template of that name gives way to this one; default false.
    replace: Option<bool>,
}

impl CreateTemplateFromSandbox {
    fn request(&self) -> TemplateRequest {
        TemplateRequest {
            name: self.template_name.clone(),
            created_by: self.created_by.clone(),
            notes: self.notes.clone(),
            replace: self.replace.unwrap_or(false),
        }
    }
}

impl Admissible for CreateTemplateFromSandbox {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;
}

#[async_trait]
impl Operation for CreateTemplateFromSandbox {
    const SPEC: Spec = Spec {
        name: "create_template_from_sandbox",
        title: "Keep a sandbox as a template",
        help: "Copies a sandbox of yours, data and all, into a template that outlives it: create_sandbox_from_template makes \
               sandboxes of it. Nobody may use the sandbox meanwhile. Templates are yours alone.",
        impact: Impact::Creates,
        meets: &[],
        toolset: Toolset::Copies,
        idempotent: false,
    };
    type Output = Listed;

    fn check(&self) -> Result<(), Failure> {
        bounds::check_template_name(&self.template_name)?;
        bounds::check_text("createdBy", self.created_by.as_deref())?;
        bounds::check_notes(self.notes.as_deref())
    }

    fn asks(&self) -> Asks {
        Asks { about: About::Sandbox((&self.database).into()), ..Asks::default() }
    }

    async fn foresee(&self, ahead: &Ahead<'_>) -> Result<Vec<String>, Failure> {
        let source = ahead.grant.target.ok_or_else(missing_target)?;
        ahead.core.foresee_template(ahead.grant, source, &self.request()).await?;
        Ok(vec!["whether others use the sandbox is known only when it is copied".to_owned()])
    }

    async fn run(permit: Permit<Self>, call: &Call) -> Result<Done<Listed>, Failure> {
        let source = permit.grant().target.ok_or_else(missing_target)?;
        let request = permit.input().request();
        let (progress, cancel) = (call.progress.clone(), call.cancel.clone());
        let template = call.core.create_template(&permit, source, request, progress, cancel).await?;
        let summary = format!("template `{}` is kept on profile `{}`", template.name, template.sandbox.profile);
        Ok(Done::new(summary, Listed::new(&template)).warn([PRIVACY.to_owned()]))
    }
}
