//! How the answers of several policies become one decision.
//!
//! The result is a function of the *set* of answers: policies are taken in the order of their names,
//! and every rule below is a minimum or a union. Of several reasons to refuse one is told, chosen by
//! kind and then by name; all of them are in the reports.

use std::collections::BTreeMap;

use crate::model::{
    Bucket, Code, Context, Decision, Denial, Failure, Generation, KeyedCharge, Mode, Obligations, Phase, PolicyFault,
    PolicyReport, Said, Verdict,
};

/// The code of a denial that the caller is not to tell from there being no such thing.
pub const NOT_FOUND: &str = "not_found";

/// One policy's part in a decision.
pub(super) struct Part<'a> {
    pub(super) report: PolicyReport,
    /// The buckets of the section that was asked.
    pub(super) buckets: &'a [Bucket],
    /// Whether the policy declares that its `pass` answers for the operation.
    pub(super) covers: bool,
}

/// Merges the parts, which are sorted by policy.
pub(super) fn merge(context: &Context, parts: Vec<Part<'_>>, generation: Generation) -> Decision {
    let refusal = refusal(context, &parts);
    let mut obligations = Obligations::default();
    let mut costs: BTreeMap<(&str, &str), (&Bucket, u32)> = BTreeMap::new();
    let mut warnings = Vec::new();
    for part in parts.iter().filter(|part| part.report.mode == Mode::Enforce) {
        let Said::Decided(answer) = &part.report.said else { continue };
        let policy = part.report.policy.as_str();
        for obligation in &answer.obligations {
            obligations.add(policy, obligation.clone());
        }
        for warning in &answer.warnings {
            warnings.push((policy.to_owned(), warning.clone()));
        }
        // A list is no use of anything.
        let charges = if context.phase == Phase::Visible { &[] } else { answer.charges.as_slice() };
        for charge in charges {
            let Some(bucket) = part.buckets.iter().find(|bucket| bucket.name == charge.bucket) else { continue };
            let cost = &mut costs.entry((policy, &bucket.name)).or_insert((bucket, 0)).1;
            *cost = cost.saturating_add(charge.cost);
        }
    }
    warnings.sort();
    let charges = costs
        .into_iter()
        .filter(|(_, (_, cost))| *cost > 0)
        .map(|((policy, _), (bucket, cost))| KeyedCharge { policy: policy.to_owned(), bucket: bucket.clone(), cost })
        .collect();
    let reports = parts.into_iter().map(|part| part.report).collect();
    Decision { refusal, obligations, charges, warnings, reports, generation }
}

/// Picks the reason to refuse, if there is one: a denial, else a fault, else a lack of coverage; of one kind, the policy
/// whose name sorts first. A denial with [`NOT_FOUND`] goes before every other.
///
/// A denial goes first because it stands whatever a failing policy would have said: so whether a clock struck first does
/// not change what the caller is told.
fn refusal(context: &Context, parts: &[Part<'_>]) -> Option<Failure> {
    let enforced = || parts.iter().filter(|part| part.report.mode == Mode::Enforce);
    let denials = || {
        enforced().filter_map(|part| match &part.report.said {
            Said::Decided(answer) => match &answer.verdict {
                Verdict::Deny(denial) => Some((&part.report.policy, denial)),
                Verdict::Pass | Verdict::Abstain => None,
            },
            Said::NotConcerned | Said::Failed(_) => None,
        })
    };
    // Any other reason would tell that the thing is there.
    let hiding = denials().find(|(_, denial)| denial.code == NOT_FOUND);
    let denial = hiding.or_else(|| denials().next()).map(|(policy, denial)| denied(policy, denial));
    let fault = || {
        enforced().find_map(|part| match &part.report.said {
            Said::Failed(fault) => Some(failed(&part.report.policy, fault)),
            Said::NotConcerned | Said::Decided(_) => None,
        })
    };
    denial.or_else(fault).or_else(|| uncovered(context, parts))
}

/// Refuses an operation that nobody answers for.
///
/// A list shows what an enforced policy could cover, and, of one that wants to be asked about lists, what it passes there; a
/// result was covered before it was made.
fn uncovered(context: &Context, parts: &[Part<'_>]) -> Option<Failure> {
    let passed = |part: &Part<'_>| match &part.report.said {
        Said::Decided(answer) => answer.verdict == Verdict::Pass,
        Said::NotConcerned | Said::Failed(_) => false,
    };
    let covered =
        parts.iter().filter(|part| part.covers && part.report.mode == Mode::Enforce).any(|part| match context.phase {
            Phase::Before => passed(part),
            Phase::Visible => part.report.said == Said::NotConcerned || passed(part),
            Phase::After => true,
        });
    (!covered && context.phase != Phase::After).then(|| {
        Failure::new(Code::Uncovered, format!("no enforced policy answers for `{}`", context.operation))
            .hint("an operator can load a policy that covers the operation, or give one in shadow mode its word back")
    })
}

/// Words a denial. A code that is one of the contract's own words keeps its place there.
///
/// A denial with [`NOT_FOUND`] must not tell that the thing exists: the failure names no policy, and whoever words "not
/// found" otherwise puts those words in place of these.
fn denied(policy: &str, denial: &Denial) -> Failure {
    const OWN_WORDS: [Code; 5] = [
        Code::RateLimited,
        Code::QuotaExceeded,
        Code::SourceNotAllowed,
        Code::ExtensionNotAllowed,
        Code::ReadonlyViolation,
    ];
    let hidden = denial.code == NOT_FOUND;
    let own = OWN_WORDS.into_iter().find(|code| code.as_str() == denial.code).unwrap_or(Code::Denied);
    let mut failure = Failure::new(if hidden { Code::DatabaseNotFound } else { own }, denial.message.clone());
    failure.policy = (!hidden).then(|| (policy.to_owned(), denial.code.clone()));
    if !denial.audit.is_empty() {
        failure = failure.audit(denial.audit.clone());
    }
    match denial.retry_after_ms.filter(|_| !hidden) {
        Some(ms) => failure.retry_after_ms(ms),
        None => failure,
    }
}

/// Words a policy's failure to answer.
fn failed(policy: &str, fault: &PolicyFault) -> Failure {
    const WHAT: [(Code, &str); 5] = [
        (Code::PolicyTrapped, "crashed"),
        (Code::PolicyTimeout, "did not answer within its fuel and time"),
        (Code::PolicyMemory, "wanted more memory than it may have"),
        (Code::PolicyOutputInvalid, "gave an answer that breaks the rules"),
        (Code::Busy, "had no free slot in time"),
    ];
    let what = WHAT.iter().find(|(code, _)| *code == fault.code).map_or("is not ready", |(_, what)| what);
    let hint = if fault.code == Code::Busy {
        "try again in a moment"
    } else {
        "an operator finds the reason under the request id; `pgsandbox policy check` tries the policy"
    };
    let mut failure = Failure::new(fault.code, format!("policy `{policy}` {what}; the request was not run")).hint(hint);
    failure.policy = Some((policy.to_owned(), fault.code.as_str().to_owned()));
    failure.audit(fault.detail.clone())
}
