//! Decides whether a decided operation may run, and hands out the proof.
//!
//! The order is fixed: the policies' refusal, obligations the operation cannot meet, obligations applied
//! to its input, consent and approval, and last of all the charges, which are taken all or none. So a
//! request that is refused for any reason costs nothing.

use std::collections::BTreeSet;

use crate::model::{
    Code, Context, Decision, Failure, Identity, KeyedCharge, Limit, ObligationKind, Obligations, Phase, SandboxId,
    Scope, Timestamp,
};

use super::effective::{Effective, named, unmet};
use super::{Account, Book, BookError, Course, Grant, Permit};

/// An operation's input that obligations can be applied to.
pub trait Admissible {
    /// The obligations the operation makes true. Consent and approval are admission's own to meet, for every operation.
    const MEETS: &'static [ObligationKind];

    /// Applies the obligations to the input and returns warnings for the caller. Nothing to apply, unless it says otherwise.
    ///
    /// # Errors
    /// Fails if an obligation cannot be met with this input.
    fn apply(&mut self, effective: &Effective<'_>) -> Result<Vec<String>, Failure> {
        let _ = effective;
        Ok(Vec::new())
    }
}

/// An operation that may run.
#[derive(Debug)]
pub struct Admitted<T> {
    /// The key to the core, with the input as it may be carried out.
    pub permit: Permit<T>,
    /// For the caller: the policies' warnings, then those of the obligations.
    pub warnings: Vec<String>,
    /// The limits that policies set, for the reply, the audit and `explain_policy`.
    pub limits: Vec<AppliedLimit>,
    /// What was charged, to be given back if the core refuses before its first act.
    pub receipt: Receipt,
}

/// A limit in force, with the policy that set it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedLimit {
    /// What is limited.
    pub kind: ObligationKind,
    /// Whose use a quota counts.
    pub scope: Option<Scope>,
    /// The limit.
    pub value: u64,
    /// The policy.
    pub set_by: String,
}

/// What a call was charged.
#[derive(Clone, Debug)]
pub struct Receipt {
    account: Account,
    charges: Vec<KeyedCharge>,
    course: Course,
}

impl Receipt {
    /// Returns the charges, for the audit.
    pub fn charges(&self) -> &[KeyedCharge] {
        &self.charges
    }

    /// Returns the sandboxes that the call came to be about beside the one that it was decided on, for the audit.
    pub fn others(&self) -> Vec<SandboxId> {
        self.course.others()
    }
}

/// Something that a person must have said yes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand<'a> {
    /// The person at the caller's client, to this question.
    Consent(&'a str),
    /// Another principal of this group.
    Approval(&'a str),
}

/// Knows what people have agreed to.
pub trait Consents: Send + Sync {
    /// Returns whether `demand` was met for exactly this request.
    fn given(&self, context: &Context, demand: Demand<'_>) -> bool;

    /// Returns what stands for the request where approval of it is asked for.
    fn digest(&self) -> Option<&str> {
        None
    }
}

/// Nobody has agreed to anything.
#[derive(Clone, Copy, Debug)]
pub struct NoConsents;

impl Consents for NoConsents {
    fn given(&self, _context: &Context, _demand: Demand<'_>) -> bool {
        false
    }
}

/// Admits an operation that was decided on `context`: applies the obligations, takes the charges, makes the permit.
///
/// # Errors
/// Returns why the operation may not run; nothing is then charged.
pub fn admit<T: Admissible>(
    input: T,
    context: &Context,
    decision: &Decision,
    book: &dyn Book,
    consents: &dyn Consents,
) -> Result<Admitted<T>, Failure> {
    let Prepared { input, warnings, account } = prepare(input, context, decision, consents)?;
    book.charge(&account, &decision.charges, context.now)?;
    let grant = grant(context, decision);
    let receipt = Receipt { account, charges: decision.charges.clone(), course: grant.course.clone() };
    let limits = limits(&decision.obligations);
    Ok(Admitted { permit: Permit::new(input, grant), warnings, limits, receipt })
}

fn grant(context: &Context, decision: &Decision) -> Grant {
    Grant {
        request_id: context.request_id,
        principal: context.principal.clone(),
        group_owner: context.group_owner.clone(),
        operation: context.operation,
        impact: context.impact,
        profile: context.server.as_ref().map(|server| server.profile.clone()),
        target: context.sandbox.as_ref().map(|sandbox| sandbox.id),
        obligations: decision.obligations.clone(),
        now: context.now,
        course: Course::default(),
    }
}

/// Says what [`admit`] would, without charging: the input as it would be carried out, and what a permit would grant.
/// It is no permit.
///
/// # Errors
/// Returns the failure that the call would get.
pub fn foresee<T: Admissible>(
    input: T,
    context: &Context,
    decision: &Decision,
    book: &dyn Book,
    consents: &dyn Consents,
) -> Result<(T, Grant), Failure> {
    let Prepared { input, account, .. } = prepare(input, context, decision, consents)?;
    book.probe(&account, &decision.charges, context.now)?;
    Ok((input, grant(context, decision)))
}

/// Returns whether a call failed before anything was made for it: then what people agreed to was not used.
pub fn made_nothing(receipt: &Receipt) -> bool {
    receipt.course.made_nothing()
}

/// Gives back what a call was charged, if it was refused before anything was done for it: its permit's
/// [`Course`] says so.
///
/// # Errors
/// Fails if the book cannot be had; the charges then stay taken.
pub fn refund(receipt: &Receipt, book: &dyn Book, now: Timestamp) -> Result<(), BookError> {
    if receipt.course.refused() { book.refund(&receipt.account, &receipt.charges, now) } else { Ok(()) }
}

struct Prepared<T> {
    input: T,
    warnings: Vec<String>,
    account: Account,
}

/// Does everything that comes before the charges.
fn prepare<T: Admissible>(
    mut input: T,
    context: &Context,
    decision: &Decision,
    consents: &dyn Consents,
) -> Result<Prepared<T>, Failure> {
    if let Some(refusal) = &decision.refusal {
        return Err(refusal.clone());
    }
    // A decision for a list was made with less, and for a result too late.
    if context.phase != Phase::Before {
        return Err(Failure::new(Code::Internal, "only what was decided before a call can admit it"));
    }
    let obligations = &decision.obligations;
    meets(obligations, T::MEETS, context.operation)?;
    no_label_conflict(obligations)?;
    let mut warnings: Vec<String> =
        decision.warnings.iter().map(|(policy, text)| format!("policy `{policy}`: {text}")).collect();
    warnings.extend(input.apply(&Effective::new(obligations))?);
    agreed(obligations, context, consents)?;
    let account = Account::new(&context.principal, context.group_owner.as_deref());
    Ok(Prepared { input, warnings, account })
}

fn meets(obligations: &Obligations, met: &[ObligationKind], operation: &str) -> Result<(), Failure> {
    let own = [ObligationKind::Consent, ObligationKind::Approval];
    let Some(kind) = obligations.kinds().into_iter().find(|kind| !met.contains(kind) && !own.contains(kind)) else {
        return Ok(());
    };
    let policies = demanding(obligations, kind);
    let message = format!("{} demands `{}`, which `{operation}` cannot do", named(&policies), kind.as_str());
    Err(unmet(kind, &policies, message).hint("an operator can change the policy's settings for this operation"))
}

/// Returns the policies behind a demand; of limits, the one that set it.
fn demanding(obligations: &Obligations, kind: ObligationKind) -> BTreeSet<String> {
    let one = |limit: &Option<Limit>| limit.iter().map(|limit| limit.set_by.clone()).collect();
    match kind {
        ObligationKind::ReadOnly => obligations.read_only.clone(),
        ObligationKind::MaxRows => one(&obligations.max_rows),
        ObligationKind::MaxResultBytes => one(&obligations.max_result_bytes),
        ObligationKind::StatementTimeoutMs => one(&obligations.statement_timeout_ms),
        ObligationKind::MaxTtlMinutes => one(&obligations.max_ttl_minutes),
        ObligationKind::MaxLiveSandboxes => set_by(obligations.max_live_sandboxes.values()),
        ObligationKind::MaxDatabaseBytes => set_by(obligations.max_database_bytes.values()),
        ObligationKind::Mask => obligations.masks.values().flatten().cloned().collect(),
        ObligationKind::RequireLabel => obligations.required_labels.values().flatten().cloned().collect(),
        ObligationKind::AddLabel => obligations.added_labels.values().flatten().cloned().collect(),
        ObligationKind::Consent => obligations.consents.values().flatten().cloned().collect(),
        ObligationKind::Approval => obligations.approvals.values().flatten().cloned().collect(),
    }
}

fn set_by<'a>(limits: impl Iterator<Item = &'a Limit>) -> BTreeSet<String> {
    limits.map(|limit| limit.set_by.clone()).collect()
}

/// Refuses two values for one label, whoever demands them.
fn no_label_conflict(obligations: &Obligations) -> Result<(), Failure> {
    let mut before: Option<(&String, &String, &BTreeSet<String>)> = None;
    for ((key, value), policies) in &obligations.added_labels {
        if let Some((_, other, others)) = before.filter(|(known, ..)| *known == key) {
            let message = format!(
                "label `{key}` is set to `{other}` by {} and to `{value}` by {}",
                named(others),
                named(policies)
            );
            return Err(
                unmet(ObligationKind::AddLabel, policies, message).hint("an operator must make the two policies agree")
            );
        }
        before = Some((key, value, policies));
    }
    Ok(())
}

fn agreed(obligations: &Obligations, context: &Context, consents: &dyn Consents) -> Result<(), Failure> {
    for (question, policies) in &obligations.consents {
        if !consents.given(context, Demand::Consent(question)) {
            let message = format!("{} asks the person at the client: {question}", named(policies));
            let failure = Failure::new(Code::ConsentRequired, message)
                .hint("no person is asked: this version of the program cannot ask over any transport, whatever the client can do; \
                     an operator can demand `approval_group` instead of `consent`, or take the demand out");
            return Err(by(failure, policies, ObligationKind::Consent));
        }
    }
    for (group, policies) in &obligations.approvals {
        if context.principal.identity == Identity::Chosen {
            let message = format!(
                "{} demands the approval of group `{group}`, and nobody is known by its user in a user namespace",
                named(policies)
            );
            let failure = Failure::new(Code::Denied, message).hint(
                "make the request from outside of it: on the machine itself where this is a container without root",
            );
            return Err(by(failure, policies, ObligationKind::Approval));
        }
        if !consents.given(context, Demand::Approval(group)) {
            let message = format!("{} demands the approval of another principal of group `{group}`", named(policies));
            let mut failure = Failure::new(Code::ApprovalRequired, message);
            failure.hint = Some(match consents.digest() {
                Some(digest) => {
                    failure.detail_mut().handle = Some(format!("approval:{digest}"));
                    format!(
                        "ask somebody of group `{group}` to run `pgsandbox approve --request-digest {digest}`, or to call `approve` with \
                         that digest; then make the same request again"
                    )
                }
                None => format!("ask somebody of group `{group}` to approve this request"),
            });
            return Err(by(failure, policies, ObligationKind::Approval));
        }
    }
    Ok(())
}

fn by(mut failure: Failure, policies: &BTreeSet<String>, kind: ObligationKind) -> Failure {
    failure.policy = policies.first().map(|policy| (policy.clone(), kind.as_str().to_owned()));
    failure
}

/// Lists the limits that policies set, in the order of [`ObligationKind::ALL`].
pub fn limits(obligations: &Obligations) -> Vec<AppliedLimit> {
    let single = [
        (ObligationKind::MaxRows, &obligations.max_rows),
        (ObligationKind::MaxResultBytes, &obligations.max_result_bytes),
        (ObligationKind::StatementTimeoutMs, &obligations.statement_timeout_ms),
        (ObligationKind::MaxTtlMinutes, &obligations.max_ttl_minutes),
    ];
    let scoped = [
        (ObligationKind::MaxLiveSandboxes, &obligations.max_live_sandboxes),
        (ObligationKind::MaxDatabaseBytes, &obligations.max_database_bytes),
    ];
    let single = single.into_iter().filter_map(|(kind, limit)| limit.as_ref().map(|limit| (kind, None, limit)));
    let scoped = scoped
        .into_iter()
        .flat_map(|(kind, limits)| limits.iter().map(move |(scope, limit)| (kind, Some(*scope), limit)));
    let applied = |(kind, scope, limit): (ObligationKind, Option<Scope>, &Limit)| AppliedLimit {
        kind,
        scope,
        value: limit.value,
        set_by: limit.set_by.clone(),
    };
    single.chain(scoped).map(applied).collect()
}

#[cfg(test)]
#[path = "admit_tests.rs"]
mod tests;
