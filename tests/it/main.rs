//! The one integration-test binary.

mod config;
mod policies;
mod sql;
