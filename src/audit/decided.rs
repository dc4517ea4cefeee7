//! What a line says of a decision: each policy's word, the demands with who made them, and the charges.
//!
//! Bounded like every part of a record: [`Bounds`] cuts what is too long, and no literal of a statement is in any of it.

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde::Serialize;

use super::record::{Bounds, NAMES_MAX};
use crate::model::{
    Decision, KeyedCharge, Limit, Mode, Obligation, ObligationKind as Kind, Obligations, PolicyReport, Said, Scope,
    Verdict, Would,
};

#[derive(Serialize)]
pub(super) struct DecisionRecord<'a> {
    verdict: &'static str,
    generation: u64,
    digest: Cow<'a, str>,
    policies: Vec<PolicyRecord<'a>>,
    /// Of enforced policies.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    obligations: Vec<ObligationRecord<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    charges: Vec<ChargeRecord<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<[Cow<'a, str>; 2]>,
    /// What it would be with shadow policies enforced and candidates in their places, where that is something else.
    #[serde(skip_serializing_if = "Option::is_none")]
    would: Option<WouldDecide<'a>>,
}

#[derive(Serialize)]
struct WouldDecide<'a> {
    verdict: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    /// The policy that would refuse.
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    obligations: Vec<ObligationRecord<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    charges: Vec<ChargeRecord<'a>>,
}

impl<'a> WouldDecide<'a> {
    fn new(bounds: &mut Bounds, would: &'a Would) -> Self {
        Self {
            verdict: verdict(would.refusal.is_some()),
            code: would.refusal.as_ref().map(|refusal| refusal.code.as_str()),
            policy: would.refusal.as_ref().and_then(|r| r.policy.as_ref()).map(|(policy, _)| bounds.text(policy)),
            obligations: obligations(&would.obligations),
            charges: charges(bounds, &would.charges),
        }
    }
}

const fn verdict(is_refused: bool) -> &'static str {
    if is_refused { "refused" } else { "allowed" }
}

fn charges<'a>(bounds: &mut Bounds, of: &'a [KeyedCharge]) -> Vec<ChargeRecord<'a>> {
    bounds.list(of, NAMES_MAX, |bounds, charge| ChargeRecord {
        policy: bounds.text(&charge.policy),
        bucket: bounds.text(&charge.bucket.name),
        cost: charge.cost,
    })
}

impl<'a> DecisionRecord<'a> {
    pub(super) fn new(decision: &'a Decision) -> Self {
        let mut bounds = Bounds::default();
        Self {
            verdict: verdict(decision.refusal.is_some()),
            generation: decision.generation.number,
            digest: bounds.text(&decision.generation.digest),
            policies: bounds.list(&decision.reports, NAMES_MAX, PolicyRecord::new),
            obligations: obligations(&decision.obligations),
            charges: charges(&mut bounds, &decision.charges),
            warnings: bounds.pairs(&decision.warnings),
            would: decision.would.as_deref().map(|would| WouldDecide::new(&mut bounds, would)),
        }
    }
}

#[derive(Serialize)]
struct PolicyRecord<'a> {
    policy: Cow<'a, str>,
    mode: &'static str,
    /// Of a candidate: the policy that it may come to stand for.
    #[serde(skip_serializing_if = "Option::is_none")]
    of: Option<Cow<'a, str>>,
    said: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<Cow<'a, str>>,
    /// A denial's text for auditors, or how the policy failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<Cow<'a, str>>,
    elapsed_us: u64,
    fuel: u64,
    /// In what a candidate's answer is another than that policy's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    differs: Vec<&'static str>,
    /// What a policy in shadow would have demanded and taken; that of the others is in the decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    would: Option<WouldRecord<'a>>,
}

impl<'a> PolicyRecord<'a> {
    fn new(bounds: &mut Bounds, report: &'a PolicyReport) -> Self {
        let (said, code, detail) = match &report.said {
            Said::NotConcerned => ("not-concerned", None, None),
            Said::Failed(fault) => ("failed", Some(fault.code.as_str()), Some(&fault.detail)),
            Said::Decided(decision) => match &decision.verdict {
                Verdict::Pass | Verdict::Abstain => (decision.verdict.as_str(), None, None),
                Verdict::Deny(denial) => (decision.verdict.as_str(), Some(denial.code.as_str()), Some(&denial.audit)),
            },
        };
        Self {
            policy: bounds.text(&report.policy),
            mode: report.mode.as_str(),
            of: bounds.some(report.of.as_ref()),
            said,
            code: code.map(|code| bounds.text(code)),
            detail: bounds.some(detail),
            elapsed_us: report.elapsed_us,
            fuel: report.fuel,
            differs: report.differs.iter().map(|kind| kind.as_str()).collect(),
            would: WouldRecord::new(bounds, report),
        }
    }
}

/// The demands and charges of a policy in shadow, which did not act.
#[derive(Serialize)]
struct WouldRecord<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    obligations: Vec<ObligationRecord<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    charges: Vec<WouldCharge<'a>>,
}

#[derive(Serialize)]
struct WouldCharge<'a> {
    bucket: Cow<'a, str>,
    cost: u32,
}

impl<'a> WouldRecord<'a> {
    /// About what a demand takes in a line besides its texts.
    const DEMAND_BYTES: usize = 64;

    fn new(bounds: &mut Bounds, report: &'a PolicyReport) -> Option<Self> {
        let Said::Decided(answer) = &report.said else { return None };
        let told = match report.mode {
            Mode::Enforce => false,
            Mode::Shadow => true,
            // Where it is as the policy says that it is for, that one's stands for both.
            Mode::Candidate => !report.differs.is_empty(),
        };
        if !told || answer.obligations.is_empty() && answer.charges.is_empty() {
            return None;
        }
        let mut obligations = Vec::new();
        for obligation in &answer.obligations {
            if !bounds.take(Self::DEMAND_BYTES) {
                break;
            }
            obligations.push(would(bounds, obligation));
        }
        let mut charges = Vec::new();
        for charge in &answer.charges {
            if !bounds.take(Self::DEMAND_BYTES) {
                break;
            }
            charges.push(WouldCharge { bucket: bounds.text(&charge.bucket), cost: charge.cost });
        }
        Some(Self { obligations, charges })
    }
}

/// Records one demand of a policy that is named around it.
fn would<'a>(bounds: &mut Bounds, obligation: &'a Obligation) -> ObligationRecord<'a> {
    let mut record = ObligationRecord { kind: obligation.kind().as_str(), ..ObligationRecord::default() };
    match obligation {
        Obligation::ReadOnly => {}
        Obligation::MaxRows(value)
        | Obligation::MaxResultBytes(value)
        | Obligation::StatementTimeoutMs(value)
        | Obligation::MaxTtlMinutes(value) => record.value = Some(*value),
        Obligation::MaxLiveSandboxes { scope, limit } | Obligation::MaxDatabaseBytes { scope, limit } => {
            record.scope = Some(scope_word(*scope));
            record.value = Some(*limit);
        }
        Obligation::Mask { relation, column } => {
            record.of = Some(Cow::Owned(bounds.text(&format!("{relation}.{column}")).into_owned()));
        }
        Obligation::AddLabel { key, value } => {
            record.of = Some(Cow::Owned(bounds.text(&format!("{key}={value}")).into_owned()));
        }
        Obligation::RequireLabel(of) | Obligation::Consent(of) | Obligation::Approval(of) => {
            record.of = Some(bounds.text(of));
        }
    }
    record
}

#[derive(Serialize)]
struct ChargeRecord<'a> {
    policy: Cow<'a, str>,
    bucket: Cow<'a, str>,
    cost: u32,
}

/// One demand and who made it.
#[derive(Default, Serialize)]
pub(super) struct ObligationRecord<'a> {
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    scope: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<u64>,
    /// A label's key, a column, a group or a question.
    #[serde(skip_serializing_if = "Option::is_none")]
    of: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    set_by: Vec<Cow<'a, str>>,
}

pub(super) fn obligations(all: &Obligations) -> Vec<ObligationRecord<'_>> {
    let mut bounds = Bounds::default();
    let mut records = Vec::new();
    if !all.read_only.is_empty() {
        records.push(ObligationRecord {
            kind: Kind::ReadOnly.as_str(),
            set_by: names(&all.read_only, &mut bounds),
            ..Default::default()
        });
    }
    let limits: [(Kind, Option<&Limit>); 4] = [
        (Kind::MaxRows, all.max_rows.as_ref()),
        (Kind::MaxResultBytes, all.max_result_bytes.as_ref()),
        (Kind::StatementTimeoutMs, all.statement_timeout_ms.as_ref()),
        (Kind::MaxTtlMinutes, all.max_ttl_minutes.as_ref()),
    ];
    for (kind, limit) in limits {
        records.extend(limit.map(|limit| limited(kind, None, limit, &mut bounds)));
    }
    for (kind, quotas) in
        [(Kind::MaxLiveSandboxes, &all.max_live_sandboxes), (Kind::MaxDatabaseBytes, &all.max_database_bytes)]
    {
        records.extend(quotas.iter().map(|(scope, limit)| limited(kind, Some(scope_word(*scope)), limit, &mut bounds)));
    }
    for ((relation, column), by) in &all.masks {
        records.push(demanded(Kind::Mask, &format!("{relation}.{column}"), by, &mut bounds));
    }
    for (key, by) in &all.required_labels {
        records.push(demanded(Kind::RequireLabel, key, by, &mut bounds));
    }
    for ((key, value), by) in &all.added_labels {
        records.push(demanded(Kind::AddLabel, &format!("{key}={value}"), by, &mut bounds));
    }
    for (question, by) in &all.consents {
        records.push(demanded(Kind::Consent, question, by, &mut bounds));
    }
    for (group, by) in &all.approvals {
        records.push(demanded(Kind::Approval, group, by, &mut bounds));
    }
    records
}

fn limited<'a>(kind: Kind, scope: Option<&'static str>, limit: &'a Limit, bounds: &mut Bounds) -> ObligationRecord<'a> {
    ObligationRecord {
        kind: kind.as_str(),
        scope,
        value: Some(limit.value),
        of: None,
        set_by: vec![bounds.text(&limit.set_by)],
    }
}

fn demanded<'a>(kind: Kind, of: &str, by: &'a BTreeSet<String>, bounds: &mut Bounds) -> ObligationRecord<'a> {
    let of = bounds.text(of).into_owned();
    ObligationRecord {
        kind: kind.as_str(),
        scope: None,
        value: None,
        of: Some(Cow::Owned(of)),
        set_by: names(by, bounds),
    }
}

fn names<'a>(names: &'a BTreeSet<String>, bounds: &mut Bounds) -> Vec<Cow<'a, str>> {
    names.iter().take(NAMES_MAX).map(|name| bounds.text(name)).collect()
}

const fn scope_word(scope: Scope) -> &'static str {
    match scope {
        Scope::Principal => "principal",
        Scope::Group => "group",
    }
}
