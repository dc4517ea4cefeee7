//! The one integration-test binary.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::wildcard_enum_match_arm,
    unreachable_pub,
    reason = "a test's helpers fail loudly, and everything here is a test"
)]

mod acts;
mod approvals;
mod audit;
mod author;
mod beyond_tools;
mod broken_policies;
mod bytes;
mod cases;
mod clients;
mod clones;
mod commands;
mod config;
mod copies;
mod crash;
mod crowd;
mod decisions;
mod direct;
mod dumps;
mod durability;
mod engine;
mod escapes;
mod explain;
mod faults;
mod first_use;
mod harness;
mod health;
mod hostile;
mod labelled;
mod layers;
mod lifecycle;
mod lifecycle_postgres;
mod limits;
mod machine;
mod not_done;
mod obligations;
mod permits;
mod plans;
mod policies;
mod pressure;
mod program;
mod reload;
mod round_trips;
mod scenarios;
mod schema;
mod shared_catalogues;
mod shown;
mod sql;
mod starved;
mod states;
mod surface;
mod time_limits;
mod told;
mod toy_engine;
mod unheard;
mod values;
mod versions;
mod wire;
