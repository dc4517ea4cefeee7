//! Measures a component over the requests of its cases, and another beside it, in turns.

use std::sync::Arc;
use std::time::Instant;

use super::cases::{Asked, Entry, Operations};
use super::subject::{Found, Subject};
use super::suite::refused;
use crate::policy::Set;
use crate::policy::wasm::Host;

/// Evaluations of each request that are not counted: the first touch memory that the later ones find.
const WARM_ROUNDS: usize = 3;
/// Of how many evaluations one takes longer than the slowest that is told.
const TAIL_OF: usize = 100;

/// What one component took.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The name that the policy goes by here.
    pub name: String,
    /// Its digest.
    pub sha256: String,
    /// From bytes to a policy that answers, with its default settings, in microseconds.
    pub load_us: u64,
    /// What each evaluation starts from, in bytes; none where it is configured anew each time.
    pub snapshot_bytes: Option<usize>,
    /// Requests.
    pub requests: usize,
    /// Evaluations that were counted.
    pub evaluations: usize,
    /// Half of them took less, in nanoseconds.
    pub median_ns: u64,
    /// One of a hundred took more.
    pub p99_ns: u64,
    /// The fuel of half of them was less.
    pub median_fuel: u64,
    /// The most.
    pub fuel_max: u64,
    /// The largest that a memory was, in bytes.
    pub memory_bytes: usize,
    /// Evaluations that the policy did not answer.
    pub failed: usize,
}

/// A component with every request that it is measured on.
struct Bench {
    subject: Subject,
    load_us: u64,
    snapshot_bytes: Option<usize>,
    requests: Vec<(Arc<Set>, Asked)>,
    times_ns: Vec<u64>,
    fuel: Vec<u64>,
    memory_bytes: usize,
    failed: usize,
}

/// Measures components, each evaluation of one beside one of the others. `count` is the evaluations of each.
///
/// # Errors
/// Says why one cannot be measured.
pub fn run(
    host: &Host,
    found: Vec<Found>,
    operations: &Operations,
    entries: &[Entry],
    count: usize,
) -> Result<Vec<Measured>, String> {
    let benches: Result<Vec<Bench>, String> =
        found.into_iter().map(|found| Bench::load(host, found, operations, entries)).collect();
    let mut benches = benches?;
    for index in 0..entries.len().saturating_mul(WARM_ROUNDS) {
        benches.iter_mut().for_each(|bench| bench.evaluate(index));
    }
    benches.iter_mut().for_each(Bench::forget);
    for index in 0..count {
        benches.iter_mut().for_each(|bench| bench.evaluate(index));
    }
    Ok(benches.into_iter().map(Bench::measured).collect())
}

impl Bench {
    fn load(host: &Host, found: Found, operations: &Operations, entries: &[Entry]) -> Result<Self, String> {
        let began = Instant::now();
        let mut subject = Subject::load(host, found, None)?;
        let name = subject.name().to_owned();
        let refused = |case: &str, faults: &[_]| {
            let detail: Vec<String> = faults.iter().map(|fault| refused(fault).detail).collect();
            format!("`{name}` cannot be measured{case}: {}", detail.join("; "))
        };
        // The settings that no case replaces.
        let own = subject.configured(None, false);
        let load_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        let snapshot_bytes = own.as_ref().ok().and_then(|set| set.snapshot_bytes(&name));
        if let (Err(faults), true) = (&own, entries.iter().any(|entry| entry.case.settings.is_none())) {
            return Err(refused("", faults));
        }
        let mut requests = Vec::new();
        for entry in entries {
            let of_case = format!(" on case `{}`", entry.name);
            let asked = entry.case.asked(operations, &name);
            let asked = asked.map_err(|fault| format!("`{name}` cannot be measured{of_case}: {fault}"))?;
            let set = subject.configured(entry.case.settings.as_ref(), asked.with_text);
            requests.push((set.map_err(|faults| refused(&of_case, &faults))?, asked));
        }
        Ok(Self {
            subject,
            load_us,
            snapshot_bytes,
            requests,
            times_ns: Vec::new(),
            fuel: Vec::new(),
            memory_bytes: 0,
            failed: 0,
        })
    }

    /// Evaluates one of the requests, from making the instance to having given it back.
    fn evaluate(&mut self, index: usize) {
        let at = index.checked_rem(self.requests.len()).unwrap_or(0);
        let Some((set, asked)) = self.requests.get(at) else { return };
        let began = Instant::now();
        let evaluation = set.evaluate(self.subject.name(), &asked.context, &asked.balances);
        let elapsed = began.elapsed();
        let Some(evaluation) = evaluation else { return };
        self.times_ns.push(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX));
        self.fuel.push(evaluation.fuel);
        self.memory_bytes = self.memory_bytes.max(evaluation.memory_bytes);
        self.failed += usize::from(evaluation.answer.is_err());
    }

    fn forget(&mut self) {
        self.times_ns.clear();
        self.fuel.clear();
        self.failed = 0;
    }

    fn measured(mut self) -> Measured {
        self.times_ns.sort_unstable();
        self.fuel.sort_unstable();
        Measured {
            name: self.subject.name().to_owned(),
            sha256: self.subject.sha256().to_owned(),
            load_us: self.load_us,
            snapshot_bytes: self.snapshot_bytes,
            requests: self.requests.len(),
            evaluations: self.times_ns.len(),
            median_ns: at(&self.times_ns, 2),
            p99_ns: tail(&self.times_ns),
            median_fuel: at(&self.fuel, 2),
            fuel_max: self.fuel.last().copied().unwrap_or(0),
            memory_bytes: self.memory_bytes,
            failed: self.failed,
        }
    }
}

/// Returns what stands at the end of the first of so many parts of sorted numbers.
fn at(sorted: &[u64], parts: usize) -> u64 {
    sorted.get(sorted.len() / parts).copied().unwrap_or(0)
}

/// Returns what all but one of a hundred are no more than.
fn tail(sorted: &[u64]) -> u64 {
    let over = sorted.len() / TAIL_OF;
    sorted.len().checked_sub(over + 1).and_then(|index| sorted.get(index)).copied().unwrap_or(0)
}
