//! What a component would have said of requests that were decided: beside what was said then, or beside another component.
//!
//! A record holds all that policies saw but their balances, so a bucket is full here. What a record leaves out is not guessed:
//! such requests are counted, and not asked about.

use std::path::Path;

use serde_json::{Value, json};

use super::cases::{Asked, Operations};
use super::shown;
use super::subject::Subject;
use crate::audit::{Recorded, RecordedPolicy};
use crate::model::{Balance, Context, PolicyDecision, Verdict};

/// The most changes that are kept to be shown; all are counted.
const CHANGES_MAX: usize = 1_000;

/// What became of the records.
#[derive(Clone, Debug, Default)]
pub struct Replayed {
    /// Decisions that were asked about again.
    pub asked: u64,
    /// Those of which the component says the same.
    pub same: u64,
    /// Those of which it says something else.
    pub changed: u64,
    /// Of the changed, those that it would refuse, or fail on, and that were not refused by it before.
    pub newly_refused: u64,
    /// Of the changed, those that it would no longer refuse.
    pub newly_allowed: u64,
    /// Decisions whose request cannot be shown again.
    pub not_replayable: u64,
    /// Decisions in which there is nothing to compare with.
    pub not_compared: u64,
    /// The first of the changed.
    pub changes: Vec<Change>,
}

/// A request of which something else is said.
#[derive(Clone, Debug)]
pub struct Change {
    /// The request's id.
    pub id: String,
    /// When it was decided.
    pub at: String,
    /// The operation.
    pub operation: &'static str,
    /// Whose request it was.
    pub owner: String,
    /// What was said.
    pub before: Value,
    /// What would be said.
    pub after: Value,
    /// The request as the policy saw it.
    pub request: Value,
}

/// Asks a component about every recorded decision again, beside what the policy `name` said then.
///
/// # Errors
/// Says what of the records cannot be read, or what is wrong with the settings.
pub fn beside_records(
    subject: &mut Subject,
    name: &str,
    records: &Path,
    operations: &Operations,
) -> Result<Replayed, String> {
    let mut candidate = Asker::new(subject)?;
    let mut replayed = Replayed::default();
    super::records::each(records, operations, |recorded| {
        let Some(before) = recorded.policies.iter().find(|policy| policy.policy == name) else {
            replayed.not_compared += 1;
            return;
        };
        let before = of_record(before);
        replayed.take(&recorded, |context| (before, candidate.verdict(context)));
    })?;
    Ok(replayed)
}

/// Asks two components about every recorded decision, and compares all that they say.
///
/// # Errors
/// Says what of the records cannot be read, or what is wrong with the settings.
pub fn beside_another(
    before: &mut Subject,
    after: &mut Subject,
    records: &Path,
    operations: &Operations,
) -> Result<Replayed, String> {
    let (mut before, mut after) = (Asker::new(before)?, Asker::new(after)?);
    let mut replayed = Replayed::default();
    super::records::each(records, operations, |recorded| {
        replayed.take(&recorded, |context| (before.whole(context), after.whole(context)));
    })?;
    Ok(replayed)
}

/// What was said, shown, and whether it refuses.
type Said = (Value, bool);

impl Replayed {
    fn take(&mut self, recorded: &Recorded, ask: impl FnOnce(&Context) -> (Said, Said)) {
        let Ok(context) = &recorded.request else {
            self.not_replayable += 1;
            return;
        };
        self.asked += 1;
        let ((before, refused_before), (after, refuses)) = ask(context);
        if before == after {
            self.same += 1;
            return;
        }
        self.changed += 1;
        match (refused_before, refuses) {
            (false, true) => self.newly_refused += 1,
            (true, false) => self.newly_allowed += 1,
            (false, false) | (true, true) => {}
        }
        if self.changes.len() < CHANGES_MAX {
            let asked =
                Asked { context: context.clone(), balances: Vec::new(), differences: Vec::new(), with_text: false };
            self.changes.push(Change {
                id: recorded.id.clone(),
                at: recorded.at.clone(),
                operation: context.operation,
                owner: context.principal.owner.clone(),
                before,
                after,
                request: shown::request(&asked),
            });
        }
    }
}

/// Asks one configured component.
struct Asker<'a> {
    subject: &'a Subject,
    set: std::sync::Arc<crate::policy::Set>,
}

impl<'a> Asker<'a> {
    fn new(subject: &'a mut Subject) -> Result<Self, String> {
        let set = subject
            .configured(None, false)
            .map_err(|faults| faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))?;
        Ok(Self { subject, set })
    }

    /// Returns the verdict and its code: what a record holds of each policy.
    fn verdict(&mut self, context: &Context) -> Said {
        match self.ask(context) {
            None => (json!({"said": "not-concerned"}), false),
            Some(Ok(decision)) => match &decision.verdict {
                Verdict::Deny(denial) => (json!({"said": "deny", "code": denial.code}), true),
                Verdict::Pass | Verdict::Abstain => (json!({"said": decision.verdict.as_str()}), false),
            },
            Some(Err(code)) => (json!({"said": "failed", "code": code}), true),
        }
    }

    /// Returns all that is said.
    fn whole(&mut self, context: &Context) -> Said {
        match self.ask(context) {
            None => (json!({"said": "not-concerned"}), false),
            Some(Ok(decision)) => (shown::decision(&decision), matches!(decision.verdict, Verdict::Deny(_))),
            Some(Err(code)) => (json!({"said": "failed", "code": code}), true),
        }
    }

    fn ask(&self, context: &Context) -> Option<Result<PolicyDecision, &'static str>> {
        if !self.subject.description().concerned(context.operation, context.phase) {
            return None;
        }
        let full = |(policy, bucket): (String, crate::model::Bucket)| Balance {
            policy,
            bucket: bucket.name,
            remaining: bucket.burst,
        };
        let balances: Vec<Balance> = self.set.buckets(context).into_iter().map(full).collect();
        let evaluation = self.set.evaluate(self.subject.name(), context, &balances)?;
        Some(evaluation.answer.map_err(|fault| fault.code.as_str()))
    }
}

fn of_record(policy: &RecordedPolicy) -> Said {
    let refuses = matches!(policy.said.as_str(), "deny" | "failed");
    let said = match &policy.code {
        Some(code) => json!({"said": policy.said, "code": code}),
        None => json!({"said": policy.said}),
    };
    (said, refuses)
}
