//! Lists what a client can read.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::page::PAGE_MAX;
use super::resources::{self, Resource};
use super::{Asks, Call, Done, Operation, Spec, Toolset};
use crate::admission::{Admissible, Permit};
use crate::model::{Failure, Impact, ObligationKind, counted};

/// Arguments of `list_resources`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListResources {
    /// Where the last page ended.
    cursor: Option<String>,
}

/// A page of resources.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Resources {
    resources: Vec<Resource>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

impl Admissible for ListResources {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;
}

#[async_trait]
impl Operation for ListResources {
    const SPEC: Spec = Spec {
        name: "list_resources",
        title: "List resources",
        help: "Lists profiles, and your sandboxes, schema digests, snapshots and templates, as resources. Starts nothing.",
        impact: Impact::Reads,
        meets: &[ObligationKind::ReadOnly],
        toolset: Toolset::Core,
        idempotent: true,
    };
    type Output = Resources;

    fn check(&self) -> Result<(), Failure> {
        resources::place(self.cursor.as_deref()).map(|_| ())
    }

    fn asks(&self) -> Asks {
        Asks::default()
    }

    async fn run(permit: Permit<Self>, call: &Call) -> Result<Done<Resources>, Failure> {
        let listed = resources::list(call, permit.grant(), permit.input().cursor.as_deref(), PAGE_MAX).await;
        // What fails as a whole fails before anything is looked at.
        let (resources, next_cursor) = permit.grant().course.refusing(listed)?;
        Ok(Done::new(counted(resources.len(), "resource", "resources"), Resources { resources, next_cursor }))
    }
}
