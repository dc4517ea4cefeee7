//! Fills a prompt.

use std::collections::BTreeMap;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Asks, Call, Done, Operation, Spec, Toolset, prompt};
use crate::admission::{Admissible, Permit};
use crate::model::{Failure, Impact, ObligationKind};

/// Arguments of `get_prompt`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct GetPrompt {
    /// The prompt's name.
    name: String,
    /// What it is told, by name.
    arguments: Option<BTreeMap<String, String>>,
}

/// A prompt with its arguments in their places.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Filled {
    description: String,
    /// What the agent is told.
    text: String,
}

impl GetPrompt {
    fn fill(&self) -> Result<Filled, Failure> {
        let prompt = prompt::find(&self.name)?;
        let given: Vec<_> = self.arguments.clone().unwrap_or_default().into_iter().collect();
        Ok(Filled { description: prompt.description.to_owned(), text: prompt.fill(&given)? })
    }
}

impl Admissible for GetPrompt {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;
}

#[async_trait]
impl Operation for GetPrompt {
    const SPEC: Spec = Spec {
        name: "get_prompt",
        title: "Get a prompt",
        help: "Returns a workflow's text, with its arguments in their places.",
        impact: Impact::Reads,
        meets: &[ObligationKind::ReadOnly],
        toolset: Toolset::Core,
        idempotent: true,
    };
    type Output = Filled;

    fn check(&self) -> Result<(), Failure> {
        self.fill().map(|_| ())
    }

    fn asks(&self) -> Asks {
        Asks::default()
    }

    async fn run(permit: Permit<Self>, _call: &Call) -> Result<Done<Filled>, Failure> {
        let filled = permit.input().fill()?;
        Ok(Done::new(format!("prompt `{}`", permit.input().name), filled))
    }
}
