//! What policies demand beyond yes and no, and how demands of several policies become one.
//!
//! Merging never loosens: limits take the minimum, demands the union, and each effective value keeps
//! the name of the policy that set it. The result does not depend on the order of the policies.

use std::collections::{BTreeMap, BTreeSet};

/// Whose use a quota counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// The authenticated principal's owner.
    Principal,
    /// The group owner that the caller named beneath the principal.
    Group,
}

/// One demand of one policy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Obligation {
    /// Run as the read-only role in a read-only transaction.
    ReadOnly,
    /// Return at most so many rows per result set.
    MaxRows(u64),
    /// Return at most so many bytes of row data.
    MaxResultBytes(u64),
    /// Stop statements after so many milliseconds.
    StatementTimeoutMs(u64),
    /// Let the sandbox live at most so many minutes.
    MaxTtlMinutes(u64),
    /// Allow at most so many live sandboxes, counting the one to be made.
    MaxLiveSandboxes {
        /// Whose use is counted.
        scope: Scope,
        /// The most that is allowed.
        limit: u64,
    },
    /// Allow at most so many bytes in all live sandboxes together.
    MaxDatabaseBytes {
        /// Whose use is counted.
        scope: Scope,
        /// The most that is allowed.
        limit: u64,
    },
    /// Show nothing of a column.
    Mask {
        /// The relation, as `schema.name`.
        relation: String,
        /// The column.
        column: String,
    },
    /// A sandbox to be made must carry this label.
    RequireLabel(String),
    /// A sandbox to be made gets this label.
    AddLabel {
        /// The label's key.
        key: String,
        /// The label's value.
        value: String,
    },
    /// The caller's client must ask its person this question.
    Consent(String),
    /// Another principal of this group must approve.
    Approval(String),
}

/// The kinds of obligation, as rows of the operation × obligation table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObligationKind {
    /// See [`Obligation::ReadOnly`].
    ReadOnly,
    /// See [`Obligation::MaxRows`].
    MaxRows,
    /// See [`Obligation::MaxResultBytes`].
    MaxResultBytes,
    /// See [`Obligation::StatementTimeoutMs`].
    StatementTimeoutMs,
    /// See [`Obligation::MaxTtlMinutes`].
    MaxTtlMinutes,
    /// See [`Obligation::MaxLiveSandboxes`].
    MaxLiveSandboxes,
    /// See [`Obligation::MaxDatabaseBytes`].
    MaxDatabaseBytes,
    /// See [`Obligation::Mask`].
    Mask,
    /// See [`Obligation::RequireLabel`].
    RequireLabel,
    /// See [`Obligation::AddLabel`].
    AddLabel,
    /// See [`Obligation::Consent`].
    Consent,
    /// See [`Obligation::Approval`].
    Approval,
}

impl ObligationKind {
    /// Every kind, in the order of the generated page.
    pub const ALL: [Self; 12] = [
        Self::ReadOnly,
        Self::MaxRows,
        Self::MaxResultBytes,
        Self::StatementTimeoutMs,
        Self::MaxTtlMinutes,
        Self::MaxLiveSandboxes,
        Self::MaxDatabaseBytes,
        Self::Mask,
        Self::RequireLabel,
        Self::AddLabel,
        Self::Consent,
        Self::Approval,
    ];

    /// Returns the word used in records, settings and pages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ReadOnly => "read-only",
            Self::MaxRows => "max-rows",
            Self::MaxResultBytes => "max-result-bytes",
            Self::StatementTimeoutMs => "statement-timeout-ms",
            Self::MaxTtlMinutes => "max-ttl-minutes",
            Self::MaxLiveSandboxes => "max-live-sandboxes",
            Self::MaxDatabaseBytes => "max-database-bytes",
            Self::Mask => "mask",
            Self::RequireLabel => "require-label",
            Self::AddLabel => "add-label",
            Self::Consent => "consent",
            Self::Approval => "approval",
        }
    }
}

impl Obligation {
    /// Returns the demand's kind.
    pub const fn kind(&self) -> ObligationKind {
        match self {
            Self::ReadOnly => ObligationKind::ReadOnly,
            Self::MaxRows(_) => ObligationKind::MaxRows,
            Self::MaxResultBytes(_) => ObligationKind::MaxResultBytes,
            Self::StatementTimeoutMs(_) => ObligationKind::StatementTimeoutMs,
            Self::MaxTtlMinutes(_) => ObligationKind::MaxTtlMinutes,
            Self::MaxLiveSandboxes { .. } => ObligationKind::MaxLiveSandboxes,
            Self::MaxDatabaseBytes { .. } => ObligationKind::MaxDatabaseBytes,
            Self::Mask { .. } => ObligationKind::Mask,
            Self::RequireLabel(_) => ObligationKind::RequireLabel,
            Self::AddLabel { .. } => ObligationKind::AddLabel,
            Self::Consent(_) => ObligationKind::Consent,
            Self::Approval(_) => ObligationKind::Approval,
        }
    }
}

/// A limit with the policy that set it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The limit, in the unit of its kind.
    pub value: u64,
    /// The policy, or `profile`, `request` or `core` where no policy lowered the value.
    pub set_by: String,
}

/// The demands of all enforced policies, merged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Obligations {
    /// The policies that demand read-only, sorted; empty if none does.
    pub read_only: BTreeSet<String>,
    /// Rows per result set.
    pub max_rows: Option<Limit>,
    /// Bytes of row data.
    pub max_result_bytes: Option<Limit>,
    /// Milliseconds for each statement.
    pub statement_timeout_ms: Option<Limit>,
    /// Minutes from creation.
    pub max_ttl_minutes: Option<Limit>,
    /// Live sandboxes, by whose use is counted.
    pub max_live_sandboxes: BTreeMap<Scope, Limit>,
    /// Bytes of all live sandboxes together, by whose use is counted.
    pub max_database_bytes: BTreeMap<Scope, Limit>,
    /// (relation, column) → the policies that demand it.
    pub masks: BTreeMap<(String, String), BTreeSet<String>>,
    /// Label key → the policies that demand it.
    pub required_labels: BTreeMap<String, BTreeSet<String>>,
    /// (key, value) → the policies that add it. Two values for one key are a conflict that admission refuses.
    pub added_labels: BTreeMap<(String, String), BTreeSet<String>>,
    /// Question → the policies that ask it.
    pub consents: BTreeMap<String, BTreeSet<String>>,
    /// Group → the policies that demand its approval.
    pub approvals: BTreeMap<String, BTreeSet<String>>,
}

impl Obligations {
    /// Adds one policy's demand. The order of additions does not matter.
    pub fn add(&mut self, policy: &str, obligation: Obligation) {
        match obligation {
            Obligation::ReadOnly => {
                self.read_only.insert(policy.to_owned());
            }
            Obligation::MaxRows(value) => lower(&mut self.max_rows, value, policy),
            Obligation::MaxResultBytes(value) => lower(&mut self.max_result_bytes, value, policy),
            Obligation::StatementTimeoutMs(value) => lower(&mut self.statement_timeout_ms, value, policy),
            Obligation::MaxTtlMinutes(value) => lower(&mut self.max_ttl_minutes, value, policy),
            Obligation::MaxLiveSandboxes { scope, limit } => {
                lower_keyed(&mut self.max_live_sandboxes, scope, limit, policy);
            }
            Obligation::MaxDatabaseBytes { scope, limit } => {
                lower_keyed(&mut self.max_database_bytes, scope, limit, policy);
            }
            Obligation::Mask { relation, column } => note(&mut self.masks, (relation, column), policy),
            Obligation::RequireLabel(key) => note(&mut self.required_labels, key, policy),
            Obligation::AddLabel { key, value } => note(&mut self.added_labels, (key, value), policy),
            Obligation::Consent(question) => note(&mut self.consents, question, policy),
            Obligation::Approval(group) => note(&mut self.approvals, group, policy),
        }
    }

    /// Returns the kinds that are demanded, in the order of [`ObligationKind::ALL`].
    pub fn kinds(&self) -> Vec<ObligationKind> {
        let demanded = |kind: &ObligationKind| match kind {
            ObligationKind::ReadOnly => !self.read_only.is_empty(),
            ObligationKind::MaxRows => self.max_rows.is_some(),
            ObligationKind::MaxResultBytes => self.max_result_bytes.is_some(),
            ObligationKind::StatementTimeoutMs => self.statement_timeout_ms.is_some(),
            ObligationKind::MaxTtlMinutes => self.max_ttl_minutes.is_some(),
            ObligationKind::MaxLiveSandboxes => !self.max_live_sandboxes.is_empty(),
            ObligationKind::MaxDatabaseBytes => !self.max_database_bytes.is_empty(),
            ObligationKind::Mask => !self.masks.is_empty(),
            ObligationKind::RequireLabel => !self.required_labels.is_empty(),
            ObligationKind::AddLabel => !self.added_labels.is_empty(),
            ObligationKind::Consent => !self.consents.is_empty(),
            ObligationKind::Approval => !self.approvals.is_empty(),
        };
        ObligationKind::ALL.into_iter().filter(demanded).collect()
    }
}

/// Keeps the lower limit; of equal ones, the one whose policy sorts first.
fn lower(slot: &mut Option<Limit>, value: u64, policy: &str) {
    let keep = slot.as_ref().is_some_and(|now| (now.value, now.set_by.as_str()) <= (value, policy));
    if !keep {
        *slot = Some(Limit { value, set_by: policy.to_owned() });
    }
}

fn lower_keyed(map: &mut BTreeMap<Scope, Limit>, scope: Scope, value: u64, policy: &str) {
    let mut slot = map.remove(&scope);
    lower(&mut slot, value, policy);
    if let Some(limit) = slot {
        map.insert(scope, limit);
    }
}

fn note<K: Ord>(map: &mut BTreeMap<K, BTreeSet<String>>, key: K, policy: &str) {
    map.entry(key).or_default().insert(policy.to_owned());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(demands: &[(&str, Obligation)]) -> Obligations {
        let mut all = Obligations::default();
        for (policy, obligation) in demands {
            all.add(policy, obligation.clone());
        }
        all
    }

    #[test]
    fn the_lower_limit_wins_and_keeps_its_origin() {
        let all =
            merged(&[("a", Obligation::MaxRows(50)), ("b", Obligation::MaxRows(10)), ("c", Obligation::MaxRows(10))]);
        assert_eq!(all.max_rows, Some(Limit { value: 10, set_by: "b".into() }));
    }

    #[test]
    fn order_does_not_matter() {
        let mut demands = vec![
            ("a", Obligation::MaxRows(10)),
            ("b", Obligation::MaxRows(10)),
            ("c", Obligation::ReadOnly),
            ("a", Obligation::MaxLiveSandboxes { scope: Scope::Group, limit: 3 }),
            ("b", Obligation::MaxLiveSandboxes { scope: Scope::Group, limit: 2 }),
            ("b", Obligation::RequireLabel("task".into())),
        ];
        let forward = merged(&demands);
        demands.reverse();
        assert_eq!(forward, merged(&demands));
    }
}
