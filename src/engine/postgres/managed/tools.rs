//! Finds the programs that dump and restore databases: the operator's folders first, then where servers are looked for.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::process::Command;

use super::binaries::{BinarySettings, tool_dirs};
use super::user::ENVIRONMENT;
use crate::model::fault;

/// Both are needed, and of one version.
const DUMP: &str = "pg_dump";
const RESTORE: &str = "pg_restore";
/// How long a program may take to say its version.
const VERSION_WAIT: Duration = Duration::from_secs(10);

/// Programs that dump and restore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::engine::postgres) struct DumpTools {
    /// Their major version.
    pub(in crate::engine::postgres) major: u16,
    /// Their full version.
    pub(in crate::engine::postgres) version: String,
    /// The folder they are in.
    pub(in crate::engine::postgres) dir: PathBuf,
}

/// Returns what there is, the newest first.
pub(in crate::engine::postgres) async fn dump_tools(settings: &BinarySettings) -> Vec<DumpTools> {
    let mut found: Vec<DumpTools> = Vec::new();
    for dir in tool_dirs(settings) {
        if found.iter().any(|tools| tools.dir == dir) || ![DUMP, RESTORE].iter().all(|name| dir.join(name).is_file()) {
            continue;
        }
        if let Some((major, version)) = version(&dir).await {
            found.push(DumpTools { major, version, dir });
        }
    }
    found.sort_by_key(|tools| std::cmp::Reverse(tools.major));
    found
}

async fn version(dir: &Path) -> Option<(u16, String)> {
    let said = async |program: &str| {
        fault::pass("spawn.dump-version").await.ok()?;
        let mut command = Command::new(dir.join(program));
        command.env_clear().envs(ENVIRONMENT).arg("--version").kill_on_drop(true).stdin(std::process::Stdio::null());
        let output = tokio::time::timeout(fault::within(VERSION_WAIT), command.output()).await.ok()?.ok()?;
        let said = String::from_utf8_lossy(&output.stdout);
        let version = said.trim().strip_prefix(program)?.trim().strip_prefix("(PostgreSQL) ")?.to_owned();
        version.split_whitespace().next().map(str::to_owned)
    };
    let (dump, restore) = tokio::join!(said(DUMP), said(RESTORE));
    let (dump, restore) = (dump?, restore?);
    let major = super::super::admin::major_of(&dump)?;
    (super::super::admin::major_of(&restore)? == major).then_some((major, dump))
}
