//! The Postgres engine: managed cluster, admin and sandbox sessions, plan steps, isolation.

mod access;
mod admin;
mod catalog;
mod direct;
mod dump;
mod endpoint;
mod engine;
mod extensions;
mod health;
mod idle;
mod managed;
mod names;
pub(crate) mod net;
mod scram;
mod server;
mod shared;
mod startup;
mod steps;
mod url;
mod verify;
mod watch;
mod wire;

pub use admin::AdminSession;
pub use catalog::CatalogueSession;
pub use dump::{
    CloneJob, CloneOptions, ClonePlan, CloneReport, Compare, DemandedMask, DumpJob, Dumped, InFile, Mask, MaskWith,
    RestoreJob, Restored, TableName, TableRows, Wanted,
};
pub use endpoint::{ChannelBinding, Endpoint, Host, StartupOptions};
pub use engine::PostgresEngine;
pub use managed::{
    ADMIN_ROLE, BinarySettings, ClusterStatus, Home, InstallError, Installation, ManagedCluster, ManagedError,
    ManagedSettings, PORT_FIRST, RunAs, clusters_in, discover, install,
};
pub use net::{NetError, TlsFault};
pub use server::{METADATA_DATABASE, PooledSession, PostgresServer, PostgresSettings, ServerSource};
pub use startup::{APPLICATION_NAME, Purpose, as_options_text, startup_options};
pub use url::{Credentials, PARAMETERS_SUPPORTED, PostgresUrl, UrlError, UrlOrigin};
pub use wire::*;
