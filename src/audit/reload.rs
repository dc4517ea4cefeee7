//! What a line says of a change of the policies: from which generation to which, what is another, and what is weaker.
//!
//! It stands in the opening line, so that no generation serves that was not written down first.

use std::borrow::Cow;

use serde::Serialize;

use super::record::{Bounds, NAMES_MAX};
use crate::model::Generation;

/// A reload of the policies, as it is about to take place, or as it was refused.
#[derive(Clone, Copy, Debug)]
pub struct Reload<'a> {
    /// What it was begun by: `signal`, `file` or `command`.
    pub trigger: &'static str,
    /// The policy file; `None` for the bundled set.
    pub file: Option<&'a str>,
    /// What serves until then, if anything does.
    pub from: Option<&'a Generation>,
    /// What serves from then on; `None` where the new set is refused.
    pub to: Option<&'a Generation>,
    /// What is another in it.
    pub changes: &'a [ReloadChange<'a>],
    /// Why it is refused.
    pub faults: &'a [String],
}

/// One change of one policy.
#[derive(Clone, Copy, Debug)]
pub struct ReloadChange<'a> {
    /// The policy.
    pub policy: &'a str,
    /// What of it is another.
    pub what: &'static str,
    /// How it was.
    pub from: Option<&'a str>,
    /// How it is.
    pub to: Option<&'a str>,
    /// Whether requests may pass for it that were refused before.
    pub weakens: bool,
}

#[derive(Serialize)]
pub(super) struct ReloadRecord<'a> {
    trigger: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<GenerationRecord<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<GenerationRecord<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    weakened: Vec<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    changes: Vec<ChangeRecord<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    faults: Vec<Cow<'a, str>>,
}

#[derive(Serialize)]
struct GenerationRecord<'a> {
    generation: u64,
    digest: Cow<'a, str>,
}

#[derive(Serialize)]
struct ChangeRecord<'a> {
    policy: Cow<'a, str>,
    what: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<Cow<'a, str>>,
}

impl<'a> ReloadRecord<'a> {
    pub(super) fn new(of: &Reload<'a>) -> Self {
        let mut bounds = Bounds::default();
        let b = &mut bounds;
        let mut weakened: Vec<&str> = of.changes.iter().filter(|change| change.weakens).map(|c| c.policy).collect();
        weakened.dedup();
        let generation = |b: &mut Bounds, of: Option<&'a Generation>| {
            of.map(|of| GenerationRecord { generation: of.number, digest: b.text(&of.digest) })
        };
        // First what matters most: the part is bounded as a whole.
        let weakened = weakened.into_iter().take(NAMES_MAX).map(|name| b.text(name)).collect();
        Self {
            trigger: of.trigger,
            file: of.file.map(|file| b.text(file)),
            from: generation(b, of.from),
            to: generation(b, of.to),
            weakened,
            changes: b.list(of.changes, NAMES_MAX, |b, change| ChangeRecord {
                policy: b.text(change.policy),
                what: change.what,
                from: change.from.map(|word| b.text(word)),
                to: change.to.map(|word| b.text(word)),
            }),
            faults: b.names(of.faults),
        }
    }
}
