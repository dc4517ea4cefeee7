//! How often a candidate's answer was another than that of the policy it may come to stand for.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::model::{Difference, PolicyReport, Said};

/// What a candidate came to since its generation serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts {
    /// The candidate.
    pub policy: String,
    /// The policy that it may come to stand for.
    pub of: String,
    /// Requests that concerned one of the two.
    pub asked: u64,
    /// Of those, how many both answered alike.
    pub same: u64,
    /// How many they did not, by what was another; one request may be in several.
    pub differed: Vec<(Difference, u64)>,
    /// How often it failed to answer.
    pub failed: u64,
}

/// The counters of one candidate.
#[derive(Debug, Default)]
pub(super) struct Counters {
    asked: AtomicU64,
    same: AtomicU64,
    differed: [AtomicU64; Difference::ALL.len()],
    failed: AtomicU64,
}

impl Counters {
    /// Counts what it said of one request. `live` is what the policy said that it is for.
    pub(super) fn count(&self, report: &PolicyReport, live: &Said) {
        if report.said == Said::NotConcerned && *live == Said::NotConcerned {
            return;
        }
        let add = |counter: &AtomicU64| {
            counter.fetch_add(1, Ordering::Relaxed);
        };
        add(&self.asked);
        if report.differs.is_empty() {
            add(&self.same);
        }
        let kinds = Difference::ALL.iter().zip(&self.differed);
        kinds.filter(|(kind, _)| report.differs.contains(kind)).for_each(|(_, counter)| add(counter));
        if matches!(report.said, Said::Failed(_)) {
            add(&self.failed);
        }
    }

    pub(super) fn read(&self, policy: &str, of: &str) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            policy: policy.to_owned(),
            of: of.to_owned(),
            asked: read(&self.asked),
            same: read(&self.same),
            differed: Difference::ALL.into_iter().zip(self.differed.iter().map(read)).collect(),
            failed: read(&self.failed),
        }
    }
}
