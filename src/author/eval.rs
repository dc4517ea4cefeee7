//! One evaluation of one request, with all that is known of it.

use serde_json::Value;

use super::cases::{Case, Operations};
use super::shown;
use super::subject::Subject;
use super::suite::{Reason, refused};
use crate::policy::Evaluation;

/// An evaluation with what it was of.
#[derive(Clone, Debug)]
pub struct Evaluated {
    /// The request as the policy saw it.
    pub request: Value,
    /// Whether a server would ask the policy about it.
    pub is_concerned: bool,
    /// Whether a pass answers for the operation.
    pub covers: bool,
    /// Where the reader and the case's own facts differ.
    pub differences: Vec<String>,
    /// What came.
    pub evaluation: Evaluation,
}

/// Has a request evaluated.
///
/// # Errors
/// Says why the policy could not be asked.
pub fn run(subject: &mut Subject, operations: &Operations, case: &Case) -> Result<Evaluated, Vec<Reason>> {
    let asked =
        case.asked(operations, subject.name()).map_err(|detail| vec![Reason { code: "case_unusable", detail }])?;
    let set = subject
        .configured(case.settings.as_ref(), asked.with_text)
        .map_err(|faults| faults.iter().map(refused).collect::<Vec<_>>())?;
    let description = subject.description();
    let evaluation = set.evaluate(subject.name(), &asked.context, &asked.balances).ok_or_else(Vec::new)?;
    Ok(Evaluated {
        request: shown::request(&asked),
        is_concerned: description.concerned(asked.context.operation, asked.context.phase),
        covers: description.covers(asked.context.operation),
        differences: asked.differences,
        evaluation,
    })
}
