//! How the answers of several policies become one decision.
//!
//! The result is a function of the *set* of answers: policies are taken in the order of their names,
//! and every rule below is a minimum or a union. Of several reasons to refuse one is told, chosen by
//! kind and then by name; all of them are in the reports.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{
    Bucket, Code, Context, Decision, Denial, Difference, Failure, Generation, KeyedCharge, Mode, Obligations, Phase,
    PolicyDecision, PolicyFault, PolicyReport, Said, Verdict, Would,
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

/// What several parts come to together.
struct Merged {
    refusal: Option<Failure>,
    obligations: Obligations,
    charges: Vec<KeyedCharge>,
    warnings: Vec<(String, String)>,
}

/// Merges the parts, which are sorted by policy.
pub(super) fn merge(context: &Context, mut parts: Vec<Part<'_>>, generation: Generation) -> Decision {
    compare(&mut parts);
    let enforced = parts.iter().filter(|part| part.report.mode == Mode::Enforce);
    let Merged { refusal, obligations, charges, warnings } =
        together(context, &enforced.map(Voice::own).collect::<Vec<_>>());
    let all_enforced = parts.iter().all(|part| part.report.mode == Mode::Enforce);
    let would = (!all_enforced).then(|| would(context, &parts));
    let would = would.filter(|would| {
        let code = |refusal: &Option<Failure>| refusal.as_ref().map(|refusal| (refusal.code, refusal.policy.clone()));
        code(&would.refusal) != code(&refusal) || would.obligations != obligations || would.charges != charges
    });
    let reports = parts.into_iter().map(|part| part.report).collect();
    Decision { refusal, obligations, charges, warnings, reports, generation, would: would.map(Box::new) }
}

/// Says in what each candidate's answer is another than that of the policy it is for.
fn compare(parts: &mut [Part<'_>]) {
    let found: Vec<Vec<Difference>> = parts
        .iter()
        .map(|part| {
            let live = part.report.of.as_ref().and_then(|of| parts.iter().find(|live| live.report.policy == *of));
            live.map(|live| differences(&live.report.said, &part.report.said)).unwrap_or_default()
        })
        .collect();
    for (part, differs) in parts.iter_mut().zip(found) {
        part.report.differs = differs;
    }
}

fn differences(live: &Said, candidate: &Said) -> Vec<Difference> {
    let code = |said: &Said| match said {
        Said::Decided(PolicyDecision { verdict: Verdict::Deny(denial), .. }) => Some(denial.code.clone()),
        Said::Failed(fault) => Some(fault.code.as_str().to_owned()),
        Said::Decided(_) | Said::NotConcerned => None,
    };
    let verdict = |said: &Said| match said {
        Said::NotConcerned => "not-concerned",
        Said::Failed(_) => "failed",
        Said::Decided(decision) => decision.verdict.as_str(),
    };
    let mut found = Vec::new();
    if verdict(live) != verdict(candidate) {
        found.push(Difference::Verdict);
    } else if code(live) != code(candidate) {
        found.push(Difference::Code);
    }
    if let (Said::Decided(live), Said::Decided(candidate)) = (live, candidate) {
        let demands = |of: &PolicyDecision| of.obligations.iter().cloned().collect::<BTreeSet<_>>();
        if demands(live) != demands(candidate) {
            found.push(Difference::Obligations);
        }
        let costs = |of: &PolicyDecision| {
            let mut costs: BTreeMap<String, u64> = BTreeMap::new();
            for charge in of.charges.iter().filter(|charge| charge.cost > 0) {
                *costs.entry(charge.bucket.clone()).or_default() += u64::from(charge.cost);
            }
            costs
        };
        if costs(live) != costs(candidate) {
            found.push(Difference::Charges);
        }
    }
    found
}

/// One part that counts, and the name under which it does.
struct Voice<'a> {
    policy: &'a str,
    part: &'a Part<'a>,
}

impl<'a> Voice<'a> {
    fn own(part: &'a Part<'_>) -> Self {
        Voice { policy: &part.report.policy, part }
    }
}

/// Decides as if the policies in shadow were enforced, and each candidate stood for its policy.
fn would(context: &Context, parts: &[Part<'_>]) -> Would {
    let candidates: BTreeMap<&str, &Part<'_>> =
        parts.iter().filter_map(|part| Some((part.report.of.as_deref()?, part))).collect();
    let standing = parts.iter().filter(|part| part.report.of.is_none());
    let voices: Vec<Voice<'_>> = standing
        .map(|part| {
            let policy = part.report.policy.as_str();
            Voice { policy, part: candidates.get(policy).copied().unwrap_or(part) }
        })
        .collect();
    let Merged { refusal, obligations, charges, warnings: _ } = together(context, &voices);
    Would { refusal, obligations, charges }
}

/// Merges the voices that count, which are sorted by policy.
fn together(context: &Context, voices: &[Voice<'_>]) -> Merged {
    let refusal = refusal(context, voices);
    let mut obligations = Obligations::default();
    let mut costs: BTreeMap<(&str, &str), (&Bucket, u32)> = BTreeMap::new();
    let mut warnings = Vec::new();
    for Voice { policy, part } in voices {
        let Said::Decided(answer) = &part.report.said else { continue };
        for obligation in &answer.obligations {
            obligations.add(policy, obligation.clone());
        }
        for warning in &answer.warnings {
            warnings.push(((*policy).to_owned(), warning.clone()));
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
    Merged { refusal, obligations, charges, warnings }
}

/// Picks the reason to refuse, if there is one: a denial, else a fault, else a lack of coverage; of one kind, the policy
/// whose name sorts first. A denial with [`NOT_FOUND`] goes before every other.
///
/// A denial goes first because it stands whatever a failing policy would have said: so whether a clock struck first does
/// not change what the caller is told.
fn refusal(context: &Context, voices: &[Voice<'_>]) -> Option<Failure> {
    let denials = || {
        voices.iter().filter_map(|voice| match &voice.part.report.said {
            Said::Decided(answer) => match &answer.verdict {
                Verdict::Deny(denial) => Some((voice.policy, denial)),
                Verdict::Pass | Verdict::Abstain => None,
            },
            Said::NotConcerned | Said::Failed(_) => None,
        })
    };
    // Any other reason would tell that the thing is there.
    let hiding = denials().find(|(_, denial)| denial.code == NOT_FOUND);
    let denial = hiding.or_else(|| denials().next()).map(|(policy, denial)| denied(policy, denial));
    let fault = || {
        voices.iter().find_map(|voice| match &voice.part.report.said {
            Said::Failed(fault) => Some(failed(voice.policy, fault)),
            Said::NotConcerned | Said::Decided(_) => None,
        })
    };
    denial.or_else(fault).or_else(|| uncovered(context, voices))
}

/// Refuses an operation that nobody answers for.
///
/// A list shows what an enforced policy could cover, and, of one that wants to be asked about lists, what it passes there; a
/// result was covered before it was made.
fn uncovered(context: &Context, voices: &[Voice<'_>]) -> Option<Failure> {
    let passed = |part: &Part<'_>| match &part.report.said {
        Said::Decided(answer) => answer.verdict == Verdict::Pass,
        Said::NotConcerned | Said::Failed(_) => false,
    };
    let covered = voices.iter().filter(|voice| voice.part.covers).any(|voice| match context.phase {
        Phase::Before => passed(voice.part),
        Phase::Visible => voice.part.report.said == Said::NotConcerned || passed(voice.part),
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

/// Says why an enforced policy refuses under `code`, whatever else is said: its denial, else that a policy failed to answer.
pub fn refused_under(decision: &Decision, code: Code) -> Option<Failure> {
    let enforced = || decision.reports.iter().filter(|report| report.mode == Mode::Enforce);
    let denial = enforced().find_map(|report| match &report.said {
        Said::Decided(PolicyDecision { verdict: Verdict::Deny(denial), .. }) if denial.code == code.as_str() => {
            Some(denied(&report.policy, denial))
        }
        Said::Decided(_) | Said::NotConcerned | Said::Failed(_) => None,
    });
    let fault = || {
        enforced().find_map(|report| match &report.said {
            Said::Failed(fault) => Some(failed(&report.policy, fault)),
            Said::Decided(_) | Said::NotConcerned => None,
        })
    };
    denial.or_else(fault)
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
