//! Asks a component a great many odd requests, and finds what a policy must never do.
//!
//! Whatever it is asked, a policy answers within its bounds, answers the same again, and names only codes that it declares. What it
//! does not is made small and written out as a case. The same seed gives the same requests.

mod generate;
mod shrink;

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};

pub use generate::{NAMES_MAX, Random, STATEMENTS_MAX};
pub use shrink::ATTEMPTS_MAX;

use generate::Material;

use super::cases::{Case, Expect, GivenStatement, Operations, Told, VerdictWord, Word, Words as _};
use super::subject::Subject;
use crate::model::{Code, PolicyDecision, PolicyFault, StatementClass, Traits, Verdict};
use crate::policy::{LoadFault, Set};

/// What is to be tried.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// What every request is made from.
    pub seed: u64,
    /// After so many requests it is enough.
    pub count: u64,
    /// Or after this time, if that is over first.
    pub time: Option<Duration>,
    /// Whether a further write must leave a denial one.
    pub is_monotone: bool,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Fuzzed {
    /// Requests that were tried.
    pub tried: u64,
    /// How many of them passed, were abstained from, and were denied.
    pub verdicts: [u64; 3],
    /// The first request that broke a rule, made small.
    pub violation: Option<Violation>,
}

/// A rule that was broken.
#[derive(Clone, Debug, PartialEq)]
pub struct Violation {
    /// `not_deterministic`, `not_monotone`, or the code of a policy's failure.
    pub code: &'static str,
    /// What happened.
    pub detail: String,
    /// The request, as a case; what is expected of it is what the rule wants, where that is known.
    pub case: Box<Case>,
}

/// Tries requests until one breaks a rule or it is enough.
///
/// # Errors
/// Returns what is wrong with the settings, or that there is nothing to ask.
pub fn run(
    subject: &mut Subject,
    operations: &Operations,
    settings: Option<&Map<String, Value>>,
    plan: Plan,
) -> Result<Fuzzed, Vec<LoadFault>> {
    let set = subject.configured(settings, false)?;
    let Some(material) = Material::of(&set, subject, operations) else {
        return Err(vec![LoadFault {
            policy: subject.name().to_owned(),
            path: "describe.concerns".to_owned(),
            message: "it wants to see no operation of this version; there is nothing to ask it".to_owned(),
        }]);
    };
    let bench = Bench { set, subject, operations, is_monotone: plan.is_monotone };
    let began = Instant::now();
    let mut fuzzed = Fuzzed { tried: 0, verdicts: [0; 3], violation: None };
    while fuzzed.tried < plan.count && plan.time.is_none_or(|time| began.elapsed() < time) {
        // Each request has a seed of its own, so that the last one can be made without those before.
        let mut random = Random::new(plan.seed.wrapping_add(fuzzed.tried));
        let case = generate::case(&mut random, &material);
        fuzzed.tried += 1;
        match bench.violation(&case) {
            Ok(decision) => {
                let index = VerdictWord::words().iter().position(|(_, word)| *word == VerdictWord::from(&decision));
                if let Some(count) = index.and_then(|index| fuzzed.verdicts.get_mut(index)) {
                    *count += 1;
                }
            }
            Err(found) => {
                let code = found.code;
                let is_same = |case: &Case| bench.violation(case).is_err_and(|found| found.code == code);
                let small = shrink::shrunk(case, is_same);
                let mut found = bench.violation(&small).err().unwrap_or(found);
                found.case.name = Some(format!("{code}, found with seed {}", plan.seed));
                fuzzed.violation = Some(found);
                break;
            }
        }
    }
    Ok(fuzzed)
}

/// A configured policy that requests are tried on.
struct Bench<'a> {
    set: Arc<Set>,
    subject: &'a Subject,
    operations: &'a Operations,
    is_monotone: bool,
}

impl Bench<'_> {
    /// Returns the verdict on a request, or the rule that is broken over it.
    fn violation(&self, case: &Case) -> Result<Verdict, Violation> {
        let first = self.ask(case)?;
        if self.ask(case)? != first {
            let detail = "the same request got two answers".to_owned();
            return Err(broken("not_deterministic", detail, case, &first));
        }
        if self.is_monotone && matches!(first.verdict, Verdict::Deny(_)) {
            let more = with_a_write(case);
            let then = self.ask(&more)?;
            if !matches!(then.verdict, Verdict::Deny(_)) {
                let then = then.verdict.as_str();
                let detail =
                    format!("a request that is denied gets `{then}` with a write added to it, its last statement");
                return Err(broken("not_monotone", detail, &more, &first));
            }
        }
        Ok(first.verdict)
    }

    fn ask(&self, case: &Case) -> Result<PolicyDecision, Violation> {
        let failed =
            |code: &'static str, detail: String| Violation { code, detail, case: Box::new(expecting(case, None)) };
        let asked = case.asked(self.operations, self.subject.name()).map_err(|fault| failed("case_unusable", fault))?;
        let evaluation = self.set.evaluate(self.subject.name(), &asked.context, &asked.balances);
        let answer = evaluation.map(|evaluation| evaluation.answer).unwrap_or_else(|| {
            Err(PolicyFault { code: Code::PolicyNotReady, detail: "the policy is not there".to_owned() })
        });
        answer.map_err(|PolicyFault { code, detail }| failed(code.as_str(), detail))
    }
}

fn broken(code: &'static str, detail: String, case: &Case, wanted: &PolicyDecision) -> Violation {
    Violation { code, detail, case: Box::new(expecting(case, Some(wanted))) }
}

/// Returns a case that expects a decision; one that only has to be answered is to be denied, until its author knows better.
fn expecting(case: &Case, wanted: Option<&PolicyDecision>) -> Case {
    let expect = wanted.map(|decision| Told::from(decision).expect()).unwrap_or_else(|| Expect {
        verdict: Some(Word(VerdictWord::Deny)),
        code: Some("the_code_that_it_should_have".to_owned()),
        ..Expect::default()
    });
    Case { expect: Some(expect), ..case.clone() }
}

/// Adds a write of a table to a request.
fn with_a_write(case: &Case) -> Case {
    let mut statements = case.statements.clone().unwrap_or_default();
    statements.push(GivenStatement {
        class: Word(StatementClass::Write),
        tag: "INSERT".to_owned(),
        traits: vec![Word(Traits::UNQUALIFIED_RELATION)],
        reads: Vec::new(),
        writes: vec!["added".to_owned()],
        defines: Vec::new(),
        functions: Vec::new(),
        read_only_safe: false,
        text: None,
    });
    Case { statements: Some(statements), ..case.clone() }
}
