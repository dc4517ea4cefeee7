//! The one integration-test binary.

#[cfg(test)]
mod audit;
#[cfg(test)]
mod config;
mod engine;
mod harness;
mod policies;
mod sql;
mod wire;
