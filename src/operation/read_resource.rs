//! Reads a resource.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::resources::{self, Content};
use super::{Asks, Call, Done, Operation, Spec, Toolset};
use crate::admission::{Admissible, Permit};
use crate::model::{Failure, Impact, ObligationKind};

/// Arguments of `read_resource`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ReadResource {
    /// The resource's URI.
    uri: String,
}

/// What is in a resource.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Contents {
    contents: Vec<Content>,
}

impl Admissible for ReadResource {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;
}

#[async_trait]
impl Operation for ReadResource {
    const SPEC: Spec = Spec {
        name: "read_resource",
        title: "Read a resource",
        help: "Returns what is in a resource: of a profile its limits; of one of your sandboxes, digests, snapshots or templates what is recorded of it.",
        impact: Impact::Reads,
        meets: &[ObligationKind::ReadOnly],
        toolset: Toolset::Core,
        idempotent: true,
    };
    type Output = Contents;

    fn check(&self) -> Result<(), Failure> {
        resources::find(&self.uri).map(|_| ())
    }

    fn asks(&self) -> Asks {
        let about = resources::find(&self.uri).map(|(kind, name)| kind.about(name)).unwrap_or_default();
        Asks { about, ..Asks::default() }
    }

    async fn run(permit: Permit<Self>, call: &Call) -> Result<Done<Contents>, Failure> {
        let (kind, name) = resources::find(&permit.input().uri)?;
        let content = kind.read(call, permit.grant(), name).await?;
        Ok(Done::new(format!("resource `{}`", content.uri), Contents { contents: vec![content] }))
    }
}
