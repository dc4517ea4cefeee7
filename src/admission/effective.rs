//! What an operation applies to its own input.
//!
//! The helpers only lower and add, and each says who set what it lowered.

use std::collections::BTreeSet;

use crate::model::limits::LABELS_MAX;
use crate::model::{Code, Failure, Limit, ObligationKind, Obligations};

/// The merged obligations, as an operation meets them.
#[derive(Debug)]
pub struct Effective<'a> {
    obligations: &'a Obligations,
}

/// A value in force, with who set it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    /// The value.
    pub value: u64,
    /// The policy, or `request` or `core` where no policy lowered it.
    pub set_by: String,
    /// What to tell the caller, where it gets less than it asked for.
    pub warning: Option<String>,
}

impl<'a> Effective<'a> {
    /// Wraps merged obligations.
    pub(super) fn new(obligations: &'a Obligations) -> Self {
        Self { obligations }
    }

    /// Returns all of them.
    pub fn obligations(&self) -> &'a Obligations {
        self.obligations
    }

    /// Returns the policies that demand read-only; empty if none does.
    pub fn read_only(&self) -> &'a BTreeSet<String> {
        &self.obligations.read_only
    }

    /// Lowers a value to a policy's limit, silently where the caller asked for nothing and with a warning where it did:
    /// for rows, bytes and time, of which less is still an answer.
    pub fn lowered(kind: ObligationKind, limit: Option<&Limit>, asked: Option<u64>, otherwise: u64) -> Effect {
        let wanted = asked.unwrap_or(otherwise);
        match limit.filter(|limit| limit.value < wanted) {
            Some(limit) => {
                let said = || format!("`{}` is {}, set by `{}`", kind.as_str(), limit.value, limit.set_by);
                Effect { value: limit.value, set_by: limit.set_by.clone(), warning: asked.map(|_| said()) }
            }
            None => Effect { value: wanted, set_by: origin(asked), warning: None },
        }
    }

    /// Lowers what the caller left open, and refuses what it asked for beyond a policy's limit: for times to live, which
    /// are never cut short unasked.
    ///
    /// # Errors
    /// Fails with `code` if `asked` is over the limit.
    pub fn within(
        kind: ObligationKind,
        limit: Option<&Limit>,
        asked: Option<u64>,
        otherwise: u64,
        code: Code,
    ) -> Result<Effect, Failure> {
        let effect = Self::lowered(kind, limit, asked, otherwise);
        match asked.filter(|asked| *asked > effect.value) {
            None => Ok(effect),
            Some(asked) => {
                let Effect { value, set_by, .. } = effect;
                let message = format!("{asked} is over the limit `{}` of {value}, set by `{set_by}`", kind.as_str());
                let mut failure = Failure::new(code, message).hint(format!("ask for {value} or less"));
                failure.policy = Some((set_by, kind.as_str().to_owned()));
                Err(failure)
            }
        }
    }

    /// Checks the labels of a sandbox to be made against those required, and adds those that policies add.
    ///
    /// # Errors
    /// Fails if a required label is missing, if the caller gave an added label another value, or if there are too many.
    pub fn label(&self, labels: &mut Vec<(String, String)>) -> Result<(), Failure> {
        for ((key, value), policies) in &self.obligations.added_labels {
            let given = labels.iter().find(|(given, _)| given == key).map(|(_, given)| given.clone());
            match given {
                None => labels.push((key.clone(), value.clone())),
                Some(given) if given == *value => {}
                Some(_) => {
                    let by = named(policies);
                    return Err(unmet(
                        ObligationKind::AddLabel,
                        policies,
                        format!("label `{key}` is set to `{value}` by {by}, and the call gives it another value"),
                    )
                    .hint(format!("leave label `{key}` out, or give it that value")));
                }
            }
        }
        for (key, policies) in &self.obligations.required_labels {
            if !labels.iter().any(|(given, _)| given == key) {
                let message = format!("label `{key}` is missing, and {} demands it", named(policies));
                return Err(unmet(ObligationKind::RequireLabel, policies, message)
                    .hint(format!("give the sandbox a label `{key}`")));
            }
        }
        if labels.len() > LABELS_MAX {
            let message =
                format!("with the labels that policies add there are {}, over the limit of {LABELS_MAX}", labels.len());
            return Err(Failure::new(Code::InvalidArguments, message).hint("give fewer labels"));
        }
        labels.sort();
        Ok(())
    }
}

impl Effective<'_> {
    /// Refuses labels that policies demand, where no sandbox is made that could bear them.
    ///
    /// # Errors
    /// Fails if a label is demanded or to be added.
    pub fn no_label(&self) -> Result<(), Failure> {
        let required = self.obligations.required_labels.iter().map(|(key, by)| (ObligationKind::RequireLabel, key, by));
        let added = self.obligations.added_labels.iter().map(|((key, _), by)| (ObligationKind::AddLabel, key, by));
        match required.chain(added).next() {
            None => Ok(()),
            Some((kind, key, policies)) => {
                let message =
                    format!("{} demands label `{key}`, and no sandbox is made that could bear it", named(policies));
                Err(unmet(kind, policies, message)
                    .hint("an operator can change the policy's settings for this operation"))
            }
        }
    }
}

fn origin(asked: Option<u64>) -> String {
    if asked.is_some() { "request".to_owned() } else { "core".to_owned() }
}

/// Words a list of policies.
pub(super) fn named(policies: &BTreeSet<String>) -> String {
    let names: Vec<_> = policies.iter().map(|policy| format!("`{policy}`")).collect();
    format!("policy {}", names.join(", "))
}

/// Refuses because an obligation cannot be met, naming the first policy that demands it.
pub(super) fn unmet(kind: ObligationKind, policies: &BTreeSet<String>, message: String) -> Failure {
    let mut failure = Failure::new(Code::ObligationUnmet, message);
    failure.policy = policies.first().map(|policy| (policy.clone(), kind.as_str().to_owned()));
    failure
}
