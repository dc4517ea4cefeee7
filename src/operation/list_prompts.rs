//! Lists the prompts.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::page::{self, PAGE_MAX};
use super::prompt::{Prompt, prompts};
use super::{Asks, Call, Done, Operation, Spec, Toolset};
use crate::admission::{Admissible, Permit};
use crate::model::{Failure, Impact, ObligationKind, counted};

/// Arguments of `list_prompts`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListPrompts {
    /// Where the last page ended.
    cursor: Option<String>,
}

/// A page of prompts.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Prompts {
    prompts: Vec<Listed>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// A prompt as it is listed.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Listed {
    name: String,
    title: String,
    description: String,
    arguments: Vec<ListedArgument>,
}

/// An argument as it is listed.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ListedArgument {
    name: String,
    description: String,
    required: bool,
}

impl From<&Prompt> for Listed {
    fn from(prompt: &Prompt) -> Self {
        let arguments = prompt.arguments.iter().map(|argument| ListedArgument {
            name: argument.name.to_owned(),
            description: argument.description.to_owned(),
            required: argument.default.is_none(),
        });
        Self {
            name: prompt.name.to_owned(),
            title: prompt.title.to_owned(),
            description: prompt.description.to_owned(),
            arguments: arguments.collect(),
        }
    }
}

impl Admissible for ListPrompts {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;
}

#[async_trait]
impl Operation for ListPrompts {
    const SPEC: Spec = Spec {
        name: "list_prompts",
        title: "List prompts",
        help: "Lists the workflows that a client can begin with.",
        impact: Impact::Reads,
        meets: &[ObligationKind::ReadOnly],
        toolset: Toolset::Core,
        idempotent: true,
    };
    type Output = Prompts;

    fn check(&self) -> Result<(), Failure> {
        page::of(prompts().collect(), self.cursor.as_deref(), PAGE_MAX).map(|_| ())
    }

    fn asks(&self) -> Asks {
        Asks::default()
    }

    async fn run(permit: Permit<Self>, _call: &Call) -> Result<Done<Prompts>, Failure> {
        let (page, next_cursor) = page::of(prompts().collect(), permit.input().cursor.as_deref(), PAGE_MAX)?;
        let prompts: Vec<Listed> = page.into_iter().map(Into::into).collect();
        Ok(Done::new(counted(prompts.len(), "prompt", "prompts"), Prompts { prompts, next_cursor }))
    }
}
