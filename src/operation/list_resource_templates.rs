//! Lists how URIs of resources are made.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::page::{self, PAGE_MAX};
use super::resources::{Template, templates};
use super::{Asks, Call, Done, Operation, Spec, Toolset};
use crate::admission::{Admissible, Permit};
use crate::model::{Failure, Impact, ObligationKind, counted};

/// Arguments of `list_resource_templates`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListResourceTemplates {
    /// Where the last page ended.
    cursor: Option<String>,
}

/// A page of templates.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Templates {
    resource_templates: Vec<Template>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

impl Admissible for ListResourceTemplates {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;
}

#[async_trait]
impl Operation for ListResourceTemplates {
    const SPEC: Spec = Spec {
        name: "list_resource_templates",
        title: "List resource templates",
        help: "Lists how URIs of resources are made.",
        impact: Impact::Reads,
        meets: &[ObligationKind::ReadOnly],
        toolset: Toolset::Core,
        idempotent: true,
    };
    type Output = Templates;

    fn check(&self) -> Result<(), Failure> {
        page::of(templates(), self.cursor.as_deref(), PAGE_MAX).map(|_| ())
    }

    fn asks(&self) -> Asks {
        Asks::default()
    }

    async fn run(permit: Permit<Self>, _call: &Call) -> Result<Done<Templates>, Failure> {
        let (resource_templates, next_cursor) = page::of(templates(), permit.input().cursor.as_deref(), PAGE_MAX)?;
        let summary = counted(resource_templates.len(), "template", "templates");
        Ok(Done::new(summary, Templates { resource_templates, next_cursor }))
    }
}
