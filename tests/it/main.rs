//! The one integration-test binary.

mod config;
mod engine;
mod harness;
mod policies;
mod sql;
mod wire;
