//! The Postgres engine: managed cluster, admin and sandbox sessions, plan steps, isolation.

mod endpoint;
pub(crate) mod net;
mod wire;

pub use endpoint::{Endpoint, Host, StartupOptions};
pub use net::NetError;
pub use wire::*;
