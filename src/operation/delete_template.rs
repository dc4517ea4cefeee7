//! Removes a template.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::selector::ProfileSelector;
use super::{About, Ahead, Asks, Call, Done, Operation, Spec, Toolset};
use crate::admission::{Admissible, Permit};
use crate::model::{Failure, Impact, ObligationKind};
use crate::sandbox::bounds;

/// Arguments of `delete_template`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct DeleteTemplate {
    #[serde(flatten)]
    profile: ProfileSelector,
    /// The template, as `list_templates` shows it.
    template_name: String,
    /// Whether the exported template of that name is meant, and not the one on the server; default false.
    exported: Option<bool>,
}

/// What became of the template.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct DeletedTemplate {
    template_name: String,
    /// Of which profile it was; an exported template is of none.
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<String>,
    deleted: bool,
}

impl Admissible for DeleteTemplate {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;
}

#[async_trait]
impl Operation for DeleteTemplate {
    const SPEC: Spec = Spec {
        name: "delete_template",
        title: "Delete a template",
        help: "Deletes a template of yours with all that is in it, or an exported one. Sandboxes that were made from it stay, but cannot \
               be reset any more.",
        impact: Impact::Destroys,
        meets: &[],
        toolset: Toolset::Copies,
        idempotent: true,
    };
    type Output = DeletedTemplate;

    fn check(&self) -> Result<(), Failure> {
        bounds::check_template_name(&self.template_name)
    }

    fn asks(&self) -> Asks {
        Asks { about: About::Profile((&self.profile).into()), ..Asks::default() }
    }

    async fn foresee(&self, ahead: &Ahead<'_>) -> Result<Vec<String>, Failure> {
        if self.exported.unwrap_or(false) {
            ahead.core.foresee_delete_exported(ahead.grant, &self.template_name).await?;
        } else {
            ahead.core.foresee_delete_template(ahead.grant, &self.template_name).await?;
        }
        Ok(Vec::new())
    }

    async fn run(permit: Permit<Self>, call: &Call) -> Result<Done<DeletedTemplate>, Failure> {
        let input = permit.input();
        if input.exported.unwrap_or(false) {
            let template_name = input.template_name.clone();
            call.core.delete_exported(&permit, &template_name).await?;
            let summary = format!("exported template `{template_name}` is deleted");
            return Ok(Done::new(summary, DeletedTemplate { template_name, profile: None, deleted: true }));
        }
        let template = call.core.delete_template(&permit, &permit.input().template_name).await?;
        let (name, profile) = (template.name, template.sandbox.profile);
        let summary = format!("template `{name}` is deleted from profile `{profile}`");
        Ok(Done::new(summary, DeletedTemplate { template_name: name, profile: Some(profile), deleted: true }))
    }
}
