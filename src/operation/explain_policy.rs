//! Says what the policies, and the core before its first act, would say about a call, without running or charging it.

use std::collections::BTreeSet;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::envelope::{EnvelopeError, LimitNote};
use super::{Asks, Call, Done, Operation, Spec, Toolset};
use crate::admission::{self, Admissible, Permit};
use crate::model::{Failure, Impact, ObligationKind, Obligations, PolicyReport, Previewed, Said, Verdict, Would};

/// Arguments of `explain_policy`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ExplainPolicy {
    /// The operation to be explained, `run_sql` for instance.
    operation: String,
    /// The arguments that it would be called with.
    arguments: Option<Map<String, Value>>,
}

/// What would be decided.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Explained {
    operation: String,
    /// Whether the call would be let through.
    allowed: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<EnvelopeError>,
    /// Each policy's word.
    policies: Vec<PolicyWord>,
    /// The limits and demands that would act, each with who set it; those of policies in shadow do not.
    limits: Vec<LimitNote>,
    /// What is left in the buckets that the call would draw on.
    balances: Vec<BalanceEntry>,
    /// The set of policies that decided.
    generation: String,
    /// Only where it is something else: the decision with shadow policies enforced and candidates in their places.
    #[serde(skip_serializing_if = "Option::is_none")]
    would: Option<WouldBe>,
}

/// A decision that is not the one.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct WouldBe {
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<EnvelopeError>,
    limits: Vec<LimitNote>,
}

/// One policy's word.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct PolicyWord {
    policy: String,
    /// `enforce`, `shadow` or `candidate`.
    mode: String,
    /// The policy that a candidate may come to stand for.
    #[serde(skip_serializing_if = "Option::is_none")]
    of: Option<String>,
    /// In what a candidate's answer is another.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    differs: Vec<String>,
    /// `pass`, `abstain`, `deny`, `not-concerned`, or the code of its failure.
    verdict: String,
    /// The code of its denial.
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<String>,
    /// What it tells the caller.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    /// What it demands. Of a policy in shadow nothing acts: it is what would act if it were enforced.
    limits: Vec<LimitNote>,
    /// Tokens it would take, by bucket; one in shadow takes none.
    charges: Vec<ChargeEntry>,
}

/// Tokens to be taken.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ChargeEntry {
    bucket: String,
    cost: u32,
}

/// What is left in a bucket.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct BalanceEntry {
    policy: String,
    bucket: String,
    remaining: u32,
}

impl Admissible for ExplainPolicy {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;
}

#[async_trait]
impl Operation for ExplainPolicy {
    const SPEC: Spec = Spec {
        name: "explain_policy",
        title: "Explain a policy decision",
        help: "Says what each policy would say about a call, which limits would act and what budget is left. Runs, charges and starts nothing.",
        impact: Impact::Reads,
        meets: &[ObligationKind::ReadOnly],
        toolset: Toolset::Core,
        idempotent: true,
    };
    type Output = Explained;

    fn asks(&self) -> Asks {
        Asks::default()
    }

    async fn run(permit: Permit<Self>, call: &Call) -> Result<Done<Explained>, Failure> {
        let input = permit.input();
        let arguments = Value::Object(input.arguments.clone().unwrap_or_default()).to_string();
        let mut previewed = call.preview.preview(&permit.grant().principal, &input.operation, &arguments).await?;
        previewed.sandbox.into_iter().for_each(|id| permit.grant().course.is_about(id));
        let allowed = previewed.refusal.is_none();
        let summary = match &previewed.refusal {
            None => format!("`{}` would be let through", input.operation),
            Some(refusal) => format!("`{}` would be refused: {}", input.operation, refusal.message),
        };
        let warnings = std::mem::take(&mut previewed.warnings);
        Ok(Done::new(summary, explained(input.operation.clone(), allowed, previewed)).warn(warnings))
    }
}

fn explained(operation: String, allowed: bool, previewed: Previewed) -> Explained {
    let balances = previewed.balances.into_iter();
    Explained {
        operation,
        allowed,
        refusal: previewed.refusal.as_ref().map(Into::into),
        policies: previewed.decision.reports.iter().map(word).collect(),
        limits: limits(&previewed.obligations),
        balances: balances
            .map(|b| BalanceEntry { policy: b.policy, bucket: b.bucket, remaining: b.remaining })
            .collect(),
        would: previewed.decision.would.as_deref().map(would_be),
        generation: previewed.decision.generation.digest,
    }
}

fn would_be(would: &Would) -> WouldBe {
    WouldBe {
        allowed: would.refusal.is_none(),
        refusal: would.refusal.as_ref().map(Into::into),
        limits: limits(&would.obligations),
    }
}

/// Lists demands, each with who makes it, first those that are no numbers.
fn limits(of: &Obligations) -> Vec<LimitNote> {
    demands(of).chain(admission::limits(of).iter().map(LimitNote::from)).collect()
}

/// Lists the demands that are no numbers, each with who makes it.
fn demands(of: &Obligations) -> impl Iterator<Item = LimitNote> {
    let note = |kind: ObligationKind, value: &str, policies: &BTreeSet<String>| -> Vec<LimitNote> {
        let note = |policy: &String| LimitNote {
            limit: kind.as_str().to_owned(),
            value: value.to_owned(),
            set_by: policy.clone(),
        };
        policies.iter().map(note).collect()
    };
    let mut notes = note(ObligationKind::ReadOnly, "true", &of.read_only);
    let masks = of.masks.iter();
    notes.extend(masks.flat_map(|((of, column), by)| note(ObligationKind::Mask, &format!("{of}.{column}"), by)));
    notes.extend(of.required_labels.iter().flat_map(|(key, by)| note(ObligationKind::RequireLabel, key, by)));
    let added = of.added_labels.iter();
    notes.extend(added.flat_map(|((key, value), by)| note(ObligationKind::AddLabel, &format!("{key}={value}"), by)));
    notes.extend(of.consents.iter().flat_map(|(question, by)| note(ObligationKind::Consent, question, by)));
    notes.extend(of.approvals.iter().flat_map(|(group, by)| note(ObligationKind::Approval, group, by)));
    notes.into_iter()
}

fn word(report: &PolicyReport) -> PolicyWord {
    let mut word = PolicyWord {
        policy: report.policy.clone(),
        mode: report.mode.as_str().to_owned(),
        of: report.of.clone(),
        differs: report.differs.iter().map(|kind| kind.as_str().to_owned()).collect(),
        verdict: String::new(),
        code: None,
        message: None,
        limits: Vec::new(),
        charges: Vec::new(),
    };
    match &report.said {
        Said::NotConcerned => "not-concerned".clone_into(&mut word.verdict),
        Said::Failed(fault) => fault.code.as_str().clone_into(&mut word.verdict),
        Said::Decided(decision) => {
            decision.verdict.as_str().clone_into(&mut word.verdict);
            if let Verdict::Deny(denial) = &decision.verdict {
                word.code = Some(denial.code.clone());
                word.message = Some(denial.message.clone());
            }
            let mut demanded = Obligations::default();
            for obligation in &decision.obligations {
                demanded.add(&report.policy, obligation.clone());
            }
            word.limits = limits(&demanded);
            word.charges = decision
                .charges
                .iter()
                .map(|charge| ChargeEntry { bucket: charge.bucket.clone(), cost: charge.cost })
                .collect();
        }
    }
    word
}
