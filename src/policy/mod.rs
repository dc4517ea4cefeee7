//! Which policies apply, and what they decide together.

pub mod wasm;
