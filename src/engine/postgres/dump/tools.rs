//! Finds `pg_dump` and `pg_restore`: of the sandbox's server's major, or else between the source's and that.
//!
//! Newer programs than the server are not used: what they write may hold settings that it does not know.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::engine::EngineError;
use crate::engine::postgres::admin::major_of;
use crate::engine::postgres::managed::{self, BinarySettings, RunAs};
use crate::engine::postgres::server::{PostgresServer, ServerSource};
use crate::model::{Code, Failure, fault};

/// As whom the programs run where root has no user for a server.
const ANYBODY: &str = "nobody";

/// A pair of programs of one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tools {
    pub(super) major: u16,
    pub(super) bin_dir: PathBuf,
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
pub(super) async fn find(server: &Arc<PostgresServer>, source: u16, target: u16) -> Result<Tools, EngineError> {
    let user = user(server)?;
    let mut found: Vec<Tools> = Vec::new();
    for dir in managed::tool_dirs(tool_settings(server)) {
        if let Some(major) = examine(&dir, user.as_ref()).await
            && found.iter().all(|tools| tools.major != major)
        {
            let exact = major == target;
            found.push(Tools { major, bin_dir: dir });
            if exact {
                break;
            }
        }
    }
    let fits = |tools: &&Tools| (source..=target).contains(&tools.major);
    let best = found.iter().filter(fits).max_by_key(|tools| tools.major).cloned();
    best.ok_or_else(|| missing(source, target, &found))
}

fn tool_settings(server: &PostgresServer) -> &BinarySettings {
    &server.settings().tools
}

fn missing(source: u16, target: u16, found: &[Tools]) -> EngineError {
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

/// Returns the major of the programs in a folder, if both are there and say the same.
async fn examine(dir: &Path, user: Option<&RunAs>) -> Option<u16> {
    let dump = version(dir, "pg_dump", user).await?;
    let restore = version(dir, "pg_restore", user).await?;
    (dump == restore).then_some(dump)
}

async fn version(dir: &Path, program: &str, user: Option<&RunAs>) -> Option<u16> {
    let path = dir.join(program);
    if !path.is_file() {
        return None;
    }
    fault::pass("spawn.tool-version").await.ok()?;
    let mut command = tokio::process::Command::from(managed::command(&path, user));
    command.arg("--version").kill_on_drop(true);
    let output = tokio::time::timeout(fault::within(managed::VERSION_WAIT), command.output()).await.ok()?.ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    major_of(text.strip_prefix(&format!("{program} (PostgreSQL) "))?)
}
