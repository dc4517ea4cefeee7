//! One store, one instance, one call: what a policy may use, and what its failures mean.

use wasmtime::component::InstancePre;
use wasmtime::{PoolConcurrencyLimitError, ResourceLimiter, Store, Trap};

use crate::model::{Code, PolicyFault};

use super::engine::Shared;
use super::limits::{Budget, CORE_INSTANCES_MAX, TABLE_ELEMENTS_MAX};
use super::v0_1::{Decider, DeciderPre, Policy, PolicyPre};

/// A policy's store data: the bounds of its memories and tables.
pub(super) struct Bounds {
    pub(super) memory_bytes: usize,
    /// The largest that a memory was, in bytes.
    pub(super) peak_bytes: usize,
}

/// A memory or table wanted to be larger than it may. Growing then traps, as most guests would only abort anyway, and
/// less tellingly.
#[derive(Debug, thiserror::Error)]
#[error("{what} wanted {wanted} {unit}, over the limit of {max}")]
struct OverBound {
    what: &'static str,
    wanted: usize,
    unit: &'static str,
    max: usize,
}

impl ResourceLimiter for Bounds {
    fn memory_growing(&mut self, _current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        if desired <= self.memory_bytes {
            self.peak_bytes = self.peak_bytes.max(desired);
            return Ok(true);
        }
        Err(OverBound { what: "memory", wanted: desired, unit: "bytes", max: self.memory_bytes }.into())
    }

    fn memory_grow_failed(&mut self, error: wasmtime::Error) -> wasmtime::Result<()> {
        Err(error.context(OverBound { what: "memory", wanted: 0, unit: "bytes", max: self.memory_bytes }))
    }

    fn table_growing(&mut self, _current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        if desired <= TABLE_ELEMENTS_MAX {
            return Ok(true);
        }
        Err(OverBound { what: "a table", wanted: desired, unit: "elements", max: TABLE_ELEMENTS_MAX }.into())
    }

    fn instances(&self) -> usize {
        CORE_INSTANCES_MAX as usize
    }

    fn tables(&self) -> usize {
        CORE_INSTANCES_MAX as usize
    }

    fn memories(&self) -> usize {
        CORE_INSTANCES_MAX as usize
    }
}

/// Makes a store that may use what `budget` says.
pub(super) fn store(shared: &Shared, budget: Budget) -> Result<Store<Bounds>, PolicyFault> {
    let mut store = Store::new(&shared.engine, Bounds { memory_bytes: budget.memory_bytes, peak_bytes: 0 });
    store.limiter(|bounds| bounds);
    refill(&mut store, budget)?;
    Ok(store)
}

/// Gives a store its whole budget.
pub(super) fn refill(store: &mut Store<Bounds>, budget: Budget) -> Result<(), PolicyFault> {
    store.set_fuel(budget.fuel).map_err(|error| not_ready(&error))?;
    store.set_epoch_deadline(budget.ticks);
    store.set_hostcall_fuel(budget.output_bytes);
    Ok(())
}

/// Instantiates a policy.
pub(super) fn instantiate(pre: &PolicyPre<Bounds>, store: &mut Store<Bounds>) -> Result<Policy, PolicyFault> {
    pre.instantiate(store).map_err(|error| fault(&error).unwrap_or_else(|| not_ready(&error)))
}

/// Instantiates a policy of which only the decision is wanted.
pub(super) fn instantiate_decider(pre: &DeciderPre<Bounds>, store: &mut Store<Bounds>) -> Result<Decider, PolicyFault> {
    pre.instantiate(store).map_err(|error| fault(&error).unwrap_or_else(|| not_ready(&error)))
}

/// Instantiates what is not of a policy's world.
pub(super) fn instantiate_raw(
    pre: &InstancePre<Bounds>,
    store: &mut Store<Bounds>,
) -> Result<wasmtime::component::Instance, PolicyFault> {
    pre.instantiate(store).map_err(|error| fault(&error).unwrap_or_else(|| not_ready(&error)))
}

/// Says what a failed call means. What is neither a trap nor a limit is an answer that cannot be read.
pub(super) fn call_fault(error: &wasmtime::Error) -> PolicyFault {
    fault(error).unwrap_or_else(|| PolicyFault {
        code: Code::PolicyOutputInvalid,
        detail: format!("its answer cannot be read: {}", error.root_cause()),
    })
}

fn not_ready(error: &wasmtime::Error) -> PolicyFault {
    PolicyFault { code: Code::PolicyNotReady, detail: format!("it cannot be instantiated: {}", error.root_cause()) }
}

/// Says what a trap or a limit means.
fn fault(error: &wasmtime::Error) -> Option<PolicyFault> {
    if let Some(over) = error.downcast_ref::<OverBound>() {
        return Some(PolicyFault { code: Code::PolicyMemory, detail: over.to_string() });
    }
    if error.downcast_ref::<PoolConcurrencyLimitError>().is_some() {
        return Some(PolicyFault { code: Code::Busy, detail: "the pool of instances is used up".to_owned() });
    }
    let trap = error.downcast_ref::<Trap>()?;
    let code = if [Trap::OutOfFuel, Trap::Interrupt].contains(trap) {
        Code::PolicyTimeout
    } else if *trap == Trap::AllocationTooLarge {
        Code::PolicyMemory
    } else {
        Code::PolicyTrapped
    };
    Some(PolicyFault { code, detail: trap.to_string() })
}
