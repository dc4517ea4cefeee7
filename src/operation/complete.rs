//! Completes what a client asks for by prompt or resource template, with names that are the caller's to know.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::prompt::{self, Names};
use super::resources::kept;
use super::{Asks, Call, Done, Operation, Spec, Toolset, resources};
use crate::admission::{Admissible, Grant, Permit};
use crate::model::limits::LIST_PAGE_MAX;
use crate::model::{Code, Failure, Impact, ObligationKind, counted};
use crate::sandbox::ListFilter;

/// Words that an answer holds; the protocol allows no more.
const VALUES_MAX: usize = 100;

/// Arguments of `complete`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Complete {
    /// The prompt whose argument is completed.
    prompt: Option<String>,
    /// The resource template whose variable is completed.
    uri_template: Option<String>,
    /// The argument's or variable's name.
    argument: String,
    /// What there is of the word so far.
    value: String,
}

/// What the word may become.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Completed {
    values: Vec<String>,
    total: usize,
    has_more: bool,
}

impl Complete {
    fn names(&self) -> Result<Names, Failure> {
        let of_variable = || match self.argument.as_str() {
            "databaseId" => Some(Names::Sandbox),
            "profile" => Some(Names::Profile),
            "handle" => Some(Names::Digest),
            "snapshotName" => Some(Names::Snapshot),
            "templateName" => Some(Names::Template),
            _ => None,
        };
        let names = match (&self.prompt, &self.uri_template) {
            (Some(name), None) => {
                let arguments = prompt::find(name)?.arguments;
                arguments.iter().find(|argument| argument.name == self.argument).map(|argument| argument.names)
            }
            (None, Some(template)) => {
                resources::of_template(template)?;
                of_variable().filter(|_| template.contains(&format!("{{{}}}", self.argument)))
            }
            (Some(_), Some(_)) | (None, None) => {
                return Err(Failure::new(
                    Code::InvalidArguments,
                    "either a prompt or a resource template is completed",
                ));
            }
        };
        names.ok_or_else(|| Failure::new(Code::InvalidArguments, "there is no such argument to complete"))
    }

    async fn words(&self, names: Names, call: &Call, grant: &Grant) -> Result<Vec<String>, Failure> {
        match names {
            Names::Anything => Ok(Vec::new()),
            Names::Digest => kept::digests(call, grant).await,
            Names::Snapshot => kept::snapshots(call, grant).await,
            Names::Template => kept::templates(call, grant).await,
            Names::Source => sources(call, grant).await,
            Names::Profile => Ok(call.core.profiles().iter().map(|profile| profile.name().to_owned()).collect()),
            Names::Sandbox => {
                let owner = Some(grant.principal.owner.clone());
                let filter = ListFilter { owner, limit: Some(LIST_PAGE_MAX), ..ListFilter::default() };
                // Nothing is started while somebody types.
                let report = call.core.looking().list(&filter).await?;
                Ok(report.databases.iter().map(|sandbox| sandbox.id.to_string()).collect())
            }
        }
    }
}

/// Returns the sources of which the caller would be let clone at least the schema, with a reason, by name: neither a URL nor
/// anything else of theirs.
async fn sources(call: &Call, grant: &Grant) -> Result<Vec<String>, Failure> {
    let mut allowed = Vec::new();
    for name in call.core.source_names().into_iter().take(VALUES_MAX) {
        let arguments = json!({"source": name, "schemaOnly": true, "reason": "to be completed"}).to_string();
        let previewed = call.preview.preview(&grant.principal, CLONES, &arguments).await;
        if previewed.is_ok_and(|previewed| previewed.decision.refusal.is_none()) {
            allowed.push(name);
        }
    }
    Ok(allowed)
}

/// The operation that takes sources.
const CLONES: &str = "clone_database";

impl Admissible for Complete {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;
}

#[async_trait]
impl Operation for Complete {
    const SPEC: Spec = Spec {
        name: "complete",
        title: "Complete a word",
        help: "Completes arguments of prompts and resource templates with names of profiles, of sources that you may clone, and of what is yours. Starts nothing.",
        impact: Impact::Reads,
        meets: &[ObligationKind::ReadOnly],
        toolset: Toolset::Core,
        idempotent: true,
    };
    type Output = Completed;

    fn check(&self) -> Result<(), Failure> {
        self.names().map(|_| ())
    }

    fn asks(&self) -> Asks {
        Asks::default()
    }

    async fn run(permit: Permit<Self>, call: &Call) -> Result<Done<Completed>, Failure> {
        let input = permit.input();
        let words = input.words(input.names()?, call, permit.grant()).await?;
        let completed = Completed::of(words, &input.value);
        Ok(Done::new(counted(completed.values.len(), "word", "words"), completed))
    }
}

impl Completed {
    fn of(mut values: Vec<String>, begin: &str) -> Self {
        values.retain(|word| word.starts_with(begin));
        let total = values.len();
        values.truncate(VALUES_MAX);
        Self { has_more: values.len() < total, values, total }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_holds_so_many_words_and_says_that_there_are_more() {
        let words = |count: usize| (0..count).map(|n| format!("w{n}")).collect::<Vec<_>>();
        let all = Completed::of(words(VALUES_MAX), "w");
        assert_eq!((all.values.len(), all.has_more), (VALUES_MAX, false));
        let some = Completed::of(words(VALUES_MAX + 1), "w");
        assert_eq!((some.values.len(), some.total, some.has_more), (VALUES_MAX, VALUES_MAX + 1, true));
        assert_eq!(Completed::of(words(3), "w2").values, ["w2"]);
    }
}
