//! Finds `pg_dump` and `pg_restore`: of the sandbox's server's major, or else between the source's and that.
//!
//! Newer programs than the server are not used: what they write may hold settings that it does not know.

use std::path::PathBuf;

use crate::engine::EngineError;
use crate::engine::postgres::managed::{self, RunAs};
use crate::engine::postgres::server::{PostgresServer, ServerSource};
use crate::model::{Code, Failure};

/// As whom the programs run where root has no user for a server.
const ANYBODY: &str = "nobody";

/// A pair of programs of one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tools {
    pub(super) bin_dir: PathBuf,
    /// Their version.
    pub(super) version: String,
}

/// Returns as whom the programs run: as whom the managed server does, which root is not.
pub(super) fn user(server: &PostgresServer) -> Result<Option<RunAs>, EngineError> {
    let failed = |error: managed::ManagedError| super::known(error.into());
    match &server.settings().source {
        ServerSource::Managed(settings) => managed::cluster_user(&settings.run_as).map_err(failed),
        // A machine without a server of its own may have no such user.
        ServerSource::External(_) => {
            managed::cluster_user(managed::DEFAULT_USER).or_else(|_| managed::cluster_user(ANYBODY)).map_err(failed)
        }
    }
}

/// Finds the programs for a copy from a server of `source` to one of `target`.
pub(super) async fn find(server: &PostgresServer, source: u16, target: u16) -> Result<Tools, EngineError> {
    choose(&managed::dump_tools(&server.settings().tools).await, source, target)
}

/// Chooses among the programs that there are those for a copy from a server of `source` to one of `target`.
pub(super) fn choose(found: &[managed::DumpTools], source: u16, target: u16) -> Result<Tools, EngineError> {
    let fits = |tools: &&managed::DumpTools| (source..=target).contains(&tools.major);
    // The newest come first, and of one version those in the folder that the operator names.
    let best =
        found.iter().find(fits).map(|tools| Tools { bin_dir: tools.dir.clone(), version: tools.version.clone() });
    best.ok_or_else(|| missing(source, target, found))
}

fn missing(source: u16, target: u16, found: &[managed::DumpTools]) -> EngineError {
    let majors: Vec<String> = found.iter().map(|tools| tools.major.to_string()).collect();
    let there = if majors.is_empty() {
        "there are none".to_owned()
    } else {
        format!("there are those of {}", majors.join(", "))
    };
    let wanted = if source == target { format!("{target}") } else { format!("{target}, or at least {source}") };
    let text = format!("a copy needs `pg_dump` and `pg_restore` of Postgres {wanted}; {there}");
    super::known(Failure::new(Code::PostgresVersionUnavailable, text).hint(format!(
        "install the client programs of Postgres {target}, or set `PGSANDBOX_POSTGRES_{target}_BIN_DIR`"
    )))
}
