//! Disposable PostgreSQL sandboxes for coding agents, behind a policy gate.
//!
//! The folders in reading order; `docs/architecture.md` is the map and says who may name whom.

pub mod model;

pub mod policy;
pub mod sql;

pub mod admission;

pub mod engine;
pub mod store;

pub mod command;

pub mod audit;
pub mod sandbox;
pub mod secret;

pub mod operation;
pub mod service;

pub mod config;
pub mod identity;
pub mod telemetry;

pub mod author;

pub mod cli;
pub mod mcp;

pub mod app;
