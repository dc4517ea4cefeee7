//! The Postgres engine: managed cluster, admin and sandbox sessions, plan steps, isolation.

mod endpoint;
mod wire;

pub use endpoint::{Endpoint, Host, StartupOptions};
pub use wire::SandboxSession;
