//! What authors do with a component: its cases, checks, single evaluations, measurements.
//!
//! Everything here runs the very component that will be deployed, in the host that a server has, with a server's limits. It
//! needs no configuration, no state directory and no cluster, and nothing here decides about a request.

pub mod bench;
pub mod cases;
pub mod check;
pub mod eval;
pub mod fuzz;
pub mod shown;
pub mod subject;
pub mod suite;
