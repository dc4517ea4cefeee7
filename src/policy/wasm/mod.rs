//! The WebAssembly host: runs policies that are components of the world in `wit/`.
//!
//! Every evaluation has a store and an instance of its own, so nothing passes from one request to
//! another. A policy has no imports: no clock, no chance, no files, no network. Fuel decides how long it
//! may run, and the same input always stops at the same place; the clock behind it only catches what fuel
//! cannot see. Compilation happens when a set is loaded, never in a request.

mod anatomy;
mod cache;
mod engine;
mod guest;
mod kept;
mod limits;
mod run;
mod snapshot;
mod standby;
mod v0_1;

pub use anatomy::{Anatomy, Memory, WORLD_EXPORTS, anatomy};
pub use engine::{Host, HostError, HostSettings, SLOT_WAIT_MS_DEFAULT, SLOTS_DEFAULT, WAITING_MAX};
pub use limits::{
    BRIEF_FUEL, BRIEF_TICKS, CORE_INSTANCES_MAX, FACTS_PER_MS, FUEL_PER_FACT, LOAD_FUEL, LOAD_TIMEOUT_MS,
    OUTPUT_BYTES_MAX, STACK_BYTES_MAX, TABLE_ELEMENTS_MAX, TICK_MS, TICKS_MIN,
};
pub use standby::STANDBY_MAX;
