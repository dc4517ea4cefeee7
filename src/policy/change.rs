//! What one generation changes against the one before, and which of that is a weakening.
//!
//! Weaker is a set in which an enforced policy is gone or only looks on, and one that answers for an operation for which
//! no enforced policy answered before: such a one was refused as `uncovered`. What another component or other settings let
//! through nobody can tell from outside: that is a change, told with its digests.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::Mode;

use super::{Limits, PolicyInfo, Set};

/// One change of one policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The policy's name.
    pub policy: String,
    /// What of it is another.
    pub what: Changed,
    /// How it was; `None` where it was not there.
    pub from: Option<String>,
    /// How it is; `None` where it is not there any more.
    pub to: Option<String>,
    /// Whether requests may pass for it that were refused before.
    pub weakens: bool,
}

/// What of a policy is another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Changed {
    /// It was not there, or is not any more; the words are its modes.
    Presence,
    /// Whether its word counts.
    Mode,
    /// The policy that a candidate is for.
    Of,
    /// The component; the words are digests.
    Component,
    /// The settings; the words are digests.
    Settings,
    /// What an evaluation may use.
    Limits,
    /// Whether it is shown the statements' texts.
    Texts,
    /// Operations for which no enforced policy answered.
    Covers,
}

impl Changed {
    /// Returns the word used in records.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Presence => "presence",
            Self::Mode => "mode",
            Self::Of => "of",
            Self::Component => "component",
            Self::Settings => "settings",
            Self::Limits => "limits",
            Self::Texts => "texts",
            Self::Covers => "covers",
        }
    }
}

/// Compares two sets. Sorted by policy.
pub(super) fn changes(before: &Set, after: &Set) -> Vec<Change> {
    let by_name = |set| -> BTreeMap<&str, &PolicyInfo> { Set::policies(set).map(|p| (p.name.as_str(), p)).collect() };
    let (before, after) = (by_name(before), by_name(after));
    let names: BTreeSet<&str> = before.keys().chain(after.keys()).copied().collect();
    let newly = newly_covered(&before, &after);
    let mut found = Vec::new();
    for name in names {
        let mut add = |what: Changed, from: Option<String>, to: Option<String>, weakens: bool| {
            if from != to {
                found.push(Change { policy: name.to_owned(), what, from, to, weakens });
            }
        };
        let mode = |policy: &PolicyInfo| Some(policy.mode.as_str().to_owned());
        match (before.get(name), after.get(name)) {
            (Some(was), Some(is)) => {
                add(Changed::Mode, mode(was), mode(is), was.mode == Mode::Enforce);
                add(Changed::Of, was.of.clone(), is.of.clone(), false);
                let digests = |policy: &PolicyInfo| Some(policy.component_sha256.clone());
                add(Changed::Component, digests(was), digests(is), false);
                let settings = |policy: &PolicyInfo| Some(policy.settings_sha256.clone());
                add(Changed::Settings, settings(was), settings(is), false);
                add(Changed::Limits, Some(limits(was.limits)), Some(limits(is.limits)), false);
                let texts = |policy: &PolicyInfo| Some(if policy.sees_text { "shown" } else { "hidden" }.to_owned());
                add(Changed::Texts, texts(was), texts(is), false);
            }
            (was, is) => {
                let lost = was.is_some_and(|was| was.mode == Mode::Enforce);
                add(Changed::Presence, was.and_then(|was| mode(was)), is.and_then(|is| mode(is)), lost);
            }
        }
        let covers: Vec<&str> = newly.iter().filter(|(by, _)| *by == name).map(|(_, operation)| *operation).collect();
        add(Changed::Covers, None, (!covers.is_empty()).then(|| covers.join(", ")), true);
    }
    found
}

/// Returns the operations, with the enforced policies that answer for them, for which none answered before.
fn newly_covered<'a>(
    before: &BTreeMap<&str, &'a PolicyInfo>,
    after: &BTreeMap<&'a str, &'a PolicyInfo>,
) -> Vec<(&'a str, &'a str)> {
    let enforced = |policy: &&&PolicyInfo| policy.mode == Mode::Enforce;
    let known: BTreeSet<&str> =
        before.values().filter(enforced).flat_map(|p| p.description.covers.iter().map(String::as_str)).collect();
    if known.contains("*") {
        return Vec::new();
    }
    let of = after.values().filter(|policy| policy.mode == Mode::Enforce);
    let named =
        of.flat_map(|policy| policy.description.covers.iter().map(|word| (policy.name.as_str(), word.as_str())));
    named.filter(|(_, operation)| !known.contains(operation)).collect()
}

fn limits(of: Limits) -> String {
    let Limits { fuel, memory_bytes, timeout_ms } = of;
    format!("fuel {fuel}, memory {} KiB, {timeout_ms} ms", memory_bytes >> 10)
}
