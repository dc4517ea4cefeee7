//! What a policy said, as cases write it, and how it differs from what was expected.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::words::{Word, Words};
use crate::model::{Obligation, PolicyDecision, Scope, Verdict};

/// A verdict without what belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are the verdict's own words")]
pub enum VerdictWord {
    Pass,
    Abstain,
    Deny,
}

impl Words for VerdictWord {
    fn words() -> Vec<(&'static str, Self)> {
        vec![("pass", Self::Pass), ("abstain", Self::Abstain), ("deny", Self::Deny)]
    }
}

impl From<&Verdict> for VerdictWord {
    fn from(verdict: &Verdict) -> Self {
        match verdict {
            Verdict::Pass => Self::Pass,
            Verdict::Abstain => Self::Abstain,
            Verdict::Deny(_) => Self::Deny,
        }
    }
}

/// What is expected of a decision: all it holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Expect {
    /// The verdict.
    pub verdict: Option<Word<VerdictWord>>,
    /// A denial's code.
    pub code: Option<String>,
    /// Obligations, each its kind and what it demands.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub obligations: Vec<String>,
    /// How many warnings.
    #[serde(skip_serializing_if = "is_none")]
    pub warnings: usize,
    /// Costs, by bucket.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub charges: BTreeMap<String, u64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over references")]
fn is_none(count: &usize) -> bool {
    *count == 0
}

/// A decision as cases write it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told(Expect);

/// One part of a decision that is another than expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The key of `expect`.
    pub key: &'static str,
    /// What was expected.
    pub expected: String,
    /// What came.
    pub came: String,
}

impl From<Expect> for Told {
    fn from(mut expect: Expect) -> Self {
        expect.obligations.sort();
        Self(expect)
    }
}

impl From<&PolicyDecision> for Told {
    fn from(decision: &PolicyDecision) -> Self {
        let mut charges: BTreeMap<String, u64> = BTreeMap::new();
        for charge in &decision.charges {
            *charges.entry(charge.bucket.clone()).or_default() += u64::from(charge.cost);
        }
        let code = match &decision.verdict {
            Verdict::Deny(denial) => Some(denial.code.clone()),
            Verdict::Pass | Verdict::Abstain => None,
        };
        Self::from(Expect {
            verdict: Some(Word(VerdictWord::from(&decision.verdict))),
            code,
            obligations: decision.obligations.iter().map(obligation_text).collect(),
            warnings: decision.warnings.len(),
            charges,
        })
    }
}

impl Told {
    /// Returns it as a case would expect it.
    pub fn expect(self) -> Expect {
        self.0
    }

    /// Returns where it is another than expected, key by key.
    pub fn differences(&self, expected: &Self) -> Vec<Difference> {
        let compared = self.parts().into_iter().zip(expected.parts());
        let differs = compared.filter(|((_, came), (_, expected))| came != expected);
        differs.map(|((key, came), (_, expected))| Difference { key, expected, came }).collect()
    }

    fn parts(&self) -> [(&'static str, String); 5] {
        let Expect { verdict, code, obligations, warnings, charges } = &self.0;
        [
            ("verdict", verdict.map(Word::as_str).unwrap_or_default().to_owned()),
            ("code", code.clone().unwrap_or_else(|| "none".to_owned())),
            ("obligations", format!("{obligations:?}")),
            ("charges", format!("{charges:?}")),
            ("warnings", warnings.to_string()),
        ]
    }
}

/// Writes an obligation: its kind, then what it demands.
pub fn obligation_text(obligation: &Obligation) -> String {
    let kind = obligation.kind().as_str();
    let of = |scope: Scope, limit: u64| match scope {
        Scope::Principal => format!("{kind} principal {limit}"),
        Scope::Group => format!("{kind} group {limit}"),
    };
    match obligation {
        Obligation::ReadOnly => kind.to_owned(),
        Obligation::MaxRows(n)
        | Obligation::MaxResultBytes(n)
        | Obligation::StatementTimeoutMs(n)
        | Obligation::MaxTtlMinutes(n) => format!("{kind} {n}"),
        Obligation::MaxLiveSandboxes { scope, limit } | Obligation::MaxDatabaseBytes { scope, limit } => {
            of(*scope, *limit)
        }
        Obligation::Mask { relation, column } => format!("{kind} {relation}.{column}"),
        Obligation::AddLabel { key, value } => format!("{kind} {key}={value}"),
        Obligation::RequireLabel(text) | Obligation::Consent(text) | Obligation::Approval(text) => {
            format!("{kind} {text}")
        }
    }
}
