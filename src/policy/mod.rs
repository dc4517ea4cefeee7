//! Which policies apply, and what they decide together.
//!
//! A [`Set`] is one loaded generation of policies. Deciding is pure: the same set, context and balances
//! give the same decision, in whatever order the policies were named, and nothing is charged or changed.
//! How a policy is run is not here but behind [`Loader`] and [`Evaluator`], which [`wasm`] implements.

mod answer;
mod change;
mod counts;
mod evaluator;
mod holder;
mod merge;
mod owners;
mod schema;
mod set;
mod spec;
pub mod wasm;

#[cfg(test)]
mod tests;

pub use answer::{
    BUCKET_FILL_MS_MAX, BUCKETS_MAX, CHARGES_MAX, OBLIGATIONS_MAX, TEXT_BYTES_MAX, WARNINGS_MAX, WORD_BYTES_MAX,
};
pub use change::{Change, Changed};
pub use counts::Counts;
pub use evaluator::{ConfigureError, Configured, Description, Evaluation, Evaluator, Loaded, Loader, Problem, Request};
pub use holder::{Holder, Prepared, Reloaded};
pub use merge::{NOT_FOUND, refused_under};
pub use owners::pattern_fault;
pub use set::{LoadError, LoadFault, PolicyInfo, Set};
pub use spec::{
    Bundled, COMPONENT_BYTES_MAX, Component, FUEL_DEFAULT, FUEL_MAX, FUEL_MIN, Limits, MEMORY_BYTES_DEFAULT,
    MEMORY_BYTES_MAX, MEMORY_BYTES_MIN, POLICIES_MAX, SECTIONS_MAX, SETTINGS_BYTES_MAX, SETTINGS_DEPTH_MAX, Section,
    Spec, TIMEOUT_MS_DEFAULT, TIMEOUT_MS_MAX, TIMEOUT_MS_MIN, sha256_hex,
};
