//! The client for callers' SQL against a real server, and against servers that lie.

mod cluster;
mod copy;
mod hostile;
mod login;
mod readonly;
mod results;
mod timers;
mod transactions;
