//! The bounds of the host, each with its reason.
//!
//! Fuel, memory and time of an evaluation can be set per policy and are in [`Limits`](crate::policy::Limits);
//! these hold for all.

use std::time::Duration;

use crate::model::fault;
use crate::policy::Limits;

/// What a policy may hand over in one call, in bytes as wasmtime counts them (a list costs its elements' host size):
/// lifted data is ours to hold, and many lists may point at the same guest memory.
pub const OUTPUT_BYTES_MAX: usize = 256 << 10;
/// Stack of a policy, in bytes: a worker's stack must hold it.
pub const STACK_BYTES_MAX: usize = 256 << 10;
/// The most elements of a table: function pointers, of which a large guest has some thousand.
pub const TABLE_ELEMENTS_MAX: usize = 10_000;
/// The most core instances, memories and tables of one component: an engine, its adapter and shims.
pub const CORE_INSTANCES_MAX: u32 = 4;
/// Fuel added for each statement, relation, function and column of a request: reading a long migration is no fault of
/// the policy. A small Rust guest takes some 300 for one.
pub const FUEL_PER_FACT: u64 = 1_000;
/// Facts for each of which together the clock gets a millisecond more: handing them over is the host's work, and slow on
/// a busy machine.
pub const FACTS_PER_MS: u64 = 10;
/// Fuel of a first attempt, on the thread that serves the request: ten times what the bundled policies need, and some
/// 2 ms even of the slowest instructions. What needs more runs again, with all it may use, beside what serves others.
pub const BRIEF_FUEL: u64 = 500_000;
/// The clock behind it, in ticks.
pub const BRIEF_TICKS: u64 = 2;
/// The clock's tick, in milliseconds.
pub const TICK_MS: u64 = 5;
/// The fewest ticks of a deadline: the first may come at once.
pub const TICKS_MIN: u64 = 2;
/// Fuel of `describe` and `configure`, and of a start function there: they run at load, on large settings.
pub const LOAD_FUEL: u64 = 200_000_000;
/// The clock behind it, in milliseconds.
pub const LOAD_TIMEOUT_MS: u64 = 5_000;

/// What one store may use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    pub(super) fuel: u64,
    pub(super) ticks: u64,
    pub(super) memory_bytes: usize,
    pub(super) output_bytes: usize,
}

impl Budget {
    /// Returns the budget of an evaluation of a request with so many facts.
    pub(super) fn evaluation(limits: Limits, facts: usize) -> Self {
        let facts = u64::try_from(facts).unwrap_or(u64::MAX);
        Self {
            fuel: limits.fuel.saturating_add(FUEL_PER_FACT.saturating_mul(facts)),
            ticks: ticks(limits.timeout_ms.saturating_add(facts / FACTS_PER_MS)),
            memory_bytes: limits.memory_bytes,
            output_bytes: OUTPUT_BYTES_MAX,
        }
    }

    /// Returns the budget of a first attempt.
    pub(super) fn brief(self) -> Self {
        Self { fuel: self.fuel.min(BRIEF_FUEL), ticks: self.ticks.min(BRIEF_TICKS), ..self }
    }

    /// Returns the budget of `describe` and `configure`.
    pub(super) fn load(limits: Limits) -> Self {
        Self {
            fuel: LOAD_FUEL,
            ticks: ticks(load_timeout_ms()),
            memory_bytes: limits.memory_bytes,
            output_bytes: OUTPUT_BYTES_MAX,
        }
    }
}

fn load_timeout_ms() -> u64 {
    let within = fault::within(Duration::from_millis(LOAD_TIMEOUT_MS));
    u64::try_from(within.as_millis()).unwrap_or(LOAD_TIMEOUT_MS)
}

/// Counts one tick more than fits, as the first may come at once.
fn ticks(timeout_ms: u64) -> u64 {
    (timeout_ms.div_ceil(TICK_MS) + 1).max(TICKS_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_never_shorter_than_its_time() {
        assert_eq!(ticks(0), TICKS_MIN);
        assert_eq!(ticks(1), 2);
        assert_eq!(ticks(5), 2);
        assert_eq!(ticks(6), 3);
        assert_eq!(ticks(250), 51);
    }

    #[test]
    fn long_requests_get_fuel_and_time_for_their_length() {
        let [short, long] = [0, 10_000].map(|facts| Budget::evaluation(Limits::default(), facts));
        assert_eq!(long.fuel - short.fuel, 10_000_000);
        assert_eq!(long.ticks - short.ticks, 200);
    }
}
