//! Runs the cases of a file, each twice, and says of each how it came out.

use std::collections::BTreeSet;

use serde_json::Value;

use super::cases::{self, Asked, Difference, Entry, Operations, Told};
use super::shown;
use super::subject::Subject;
use crate::model::{PolicyDecision, PolicyFault, Verdict};
use crate::policy::{LoadFault, Set};

/// What one run found.
#[derive(Clone, Debug)]
pub struct Report {
    /// Every case, in the file's order.
    pub results: Vec<CaseResult>,
    /// Declared codes that no case met.
    pub unmet: Vec<String>,
}

impl Report {
    /// Returns the cases that failed.
    pub fn failed(&self) -> impl Iterator<Item = &CaseResult> {
        self.results.iter().filter(|result| !result.reasons.is_empty())
    }
}

/// How one case came out.
#[derive(Clone, Debug)]
pub struct CaseResult {
    /// Its name.
    pub name: String,
    /// The line on which it begins.
    pub line: usize,
    /// Why it failed; nothing where it passed.
    pub reasons: Vec<Reason>,
    /// Where the decision is another than expected.
    pub differences: Vec<Difference>,
    /// The request as the policy saw it, if one could be made.
    pub request: Option<Value>,
    /// What the policy said, if it did.
    pub decision: Option<PolicyDecision>,
    /// Time of its first evaluation in microseconds.
    pub elapsed_us: u64,
    /// Fuel of it.
    pub fuel: u64,
}

/// A reason for which a case failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// `unexpected`, `case_unusable`, `reader_differs`, `settings_refused`, `not_concerned`, `not_deterministic`, or the code of a
    /// policy's failure.
    pub code: &'static str,
    /// What happened.
    pub detail: String,
}

/// Runs the cases on a component.
pub fn run(subject: &mut Subject, operations: &Operations, entries: &[Entry]) -> Report {
    let results: Vec<CaseResult> = entries.iter().map(|entry| case(subject, operations, entry)).collect();
    let met: BTreeSet<String> = results.iter().filter_map(|result| code_of(result.decision.as_ref()?)).collect();
    let unmet = cases::unmet(&subject.description().codes, &met).into_iter().map(str::to_owned).collect();
    Report { results, unmet }
}

fn code_of(decision: &PolicyDecision) -> Option<String> {
    match &decision.verdict {
        Verdict::Deny(denial) => Some(denial.code.clone()),
        Verdict::Pass | Verdict::Abstain => None,
    }
}

fn case(subject: &mut Subject, operations: &Operations, entry: &Entry) -> CaseResult {
    let mut result = CaseResult {
        name: entry.name.clone(),
        line: entry.line,
        reasons: Vec::new(),
        differences: Vec::new(),
        request: None,
        decision: None,
        elapsed_us: 0,
        fuel: 0,
    };
    let asked = match entry.case.asked(operations, subject.name()) {
        Ok(asked) => asked,
        Err(detail) => {
            result.reasons.push(Reason { code: "case_unusable", detail });
            return result;
        }
    };
    result.request = Some(shown::request(&asked));
    let differs = |detail: &String| Reason { code: "reader_differs", detail: detail.clone() };
    result.reasons.extend(asked.differences.iter().map(differs));
    let policy = subject.name().to_owned();
    match subject.configured(entry.case.settings.as_ref(), asked.with_text) {
        Ok(set) => evaluate(&set, &policy, &asked, entry, &mut result),
        Err(faults) => result.reasons.extend(faults.iter().map(refused)),
    }
    result
}

/// Says of settings why a policy does not take them.
pub(super) fn refused(fault: &LoadFault) -> Reason {
    let LoadFault { path, message, .. } = fault;
    Reason { code: "settings_refused", detail: format!("`{path}`: {message}") }
}

fn evaluate(set: &Set, policy: &str, asked: &Asked, entry: &Entry, result: &mut CaseResult) {
    let Asked { context, balances, .. } = asked;
    let concerned = set.policies().any(|info| info.description.concerned(context.operation, context.phase));
    if !concerned {
        result.reasons.push(Reason {
            code: "not_concerned",
            detail: format!(
                "the policy does not want to see `{}` in phase `{}`, and would not be asked",
                context.operation,
                context.phase.as_str()
            ),
        });
        return;
    }
    let ask = || set.evaluate(policy, context, balances);
    let (Some(first), Some(second)) = (ask(), ask()) else { return };
    (result.elapsed_us, result.fuel) = (first.elapsed_us, first.fuel);
    if first.answer != second.answer {
        let detail =
            "the same request got two answers; a policy is a function of its settings and the request".to_owned();
        result.reasons.push(Reason { code: "not_deterministic", detail });
    }
    match first.answer {
        Ok(decision) => {
            result.differences = Told::from(&decision).differences(&Told::from(entry.expect.clone()));
            let said = |Difference { key, expected, came }: &Difference| Reason {
                code: "unexpected",
                detail: format!("{key}: expected {expected}, came {came}"),
            };
            result.reasons.extend(result.differences.iter().map(said));
            result.decision = Some(decision);
        }
        Err(PolicyFault { code, detail }) => result.reasons.push(Reason { code: code.as_str(), detail }),
    }
}
