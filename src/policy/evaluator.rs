//! How the policy kernel sees what runs a policy.
//!
//! [`Loader`] turns a component into a [`Loaded`] policy, which is configured once for each owners'
//! section and then only evaluated. An [`Evaluator`] keeps nothing from one evaluation to the next.

use std::sync::Arc;

use crate::model::{Balance, Bucket, Context, Phase, PolicyDecision, PolicyFault};

use super::Spec;

/// What a policy says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// The name its author gave it.
    pub name: String,
    /// Its author's version.
    pub version: String,
    /// Operations that its `pass` answers for; `*` is every operation.
    pub covers: Vec<String>,
    /// Operations that it wants to see; `*` is every operation. What it covers it sees as well.
    pub concerns: Vec<String>,
    /// Phases beside [`Phase::Before`] in which it wants to be asked.
    pub phases: Vec<Phase>,
    /// Codes its denials may have.
    pub codes: Vec<String>,
    /// A JSON Schema of its settings.
    pub settings_schema: String,
}

impl Description {
    /// Returns whether a `pass` answers for `operation`.
    pub fn covers(&self, operation: &str) -> bool {
        names(&self.covers, operation)
    }

    /// Returns whether the policy is to be asked about `operation` in `phase`.
    pub fn concerned(&self, operation: &str, phase: Phase) -> bool {
        let asked = phase == Phase::Before || self.phases.contains(&phase);
        asked && (names(&self.concerns, operation) || self.covers(operation))
    }
}

fn names(list: &[String], operation: &str) -> bool {
    list.iter().any(|name| name == "*" || name == operation)
}

/// Makes policies runnable.
pub trait Loader: Send + Sync {
    /// Compiles and describes a policy.
    ///
    /// # Errors
    /// Says what is wrong with the component and what would be accepted.
    fn load(&self, spec: &Spec) -> Result<Box<dyn Loaded>, String>;
}

/// A policy that can be configured.
pub trait Loaded: Send + Sync {
    /// Returns what the policy says of itself.
    fn description(&self) -> &Description;

    /// Configures the policy with a JSON object.
    ///
    /// # Errors
    /// Fails if the policy refuses the settings or does not answer as it must.
    fn configure(&self, settings: &str) -> Result<Configured, ConfigureError>;
}

/// A policy that is ready to decide.
pub struct Configured {
    /// The buckets its charges may name.
    pub buckets: Vec<Bucket>,
    /// What decides.
    pub evaluator: Arc<dyn Evaluator>,
}

/// Why settings did not make a policy ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigureError {
    /// The policy refuses the settings.
    Problems(Vec<Problem>),
    /// The policy did not answer as it must.
    Fault(PolicyFault),
}

/// A fault of settings, as a policy reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where, as a path; empty for the whole.
    pub path: String,
    /// What is wrong and what would be accepted.
    pub message: String,
}

/// What a policy is shown.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The facts.
    pub context: &'a Context,
    /// What is left in this policy's own buckets.
    pub balances: &'a [Balance],
    /// Whether the statements' texts are shown.
    pub with_text: bool,
}

/// One evaluation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evaluation {
    /// The answer, or why there is none.
    pub answer: Result<PolicyDecision, PolicyFault>,
    /// Time it took, in microseconds.
    pub elapsed_us: u64,
    /// Fuel it took.
    pub fuel: u64,
    /// The largest its memory was, in bytes.
    pub memory_bytes: usize,
}

/// Runs one configured policy.
pub trait Evaluator: Send + Sync {
    /// Decides. Never fails but in the value it returns.
    fn evaluate(&self, request: &Request<'_>) -> Evaluation;

    /// Does ahead what the next evaluation would have to do first, and clears up behind the last, while nobody waits.
    /// Changes no answer. Nothing, unless there is something to do.
    fn make_ready(&self) {}

    /// Returns the size of what each evaluation starts from, in bytes, if that was written out when it was configured.
    fn snapshot_bytes(&self) -> Option<usize> {
        None
    }
}
