//! Finds installed Postgres servers: what the operator names first, then the usual places, then PATH.
//!
//! A folder counts if `initdb`, `pg_ctl` and `postgres` are in it and `postgres` says its version.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::process::Command;

use super::user::ENVIRONMENT;
use crate::model::{fault, is_project_programs};

/// Programs a cluster cannot do without.
const PROGRAMS: [&str; 3] = ["initdb", "pg_ctl", "postgres"];
/// Folders below which each major has a `bin` of its own, as (folder, what follows the major).
const VERSIONED: [(&str, &str); 5] = [
    ("/usr/lib/postgresql", "bin"),
    ("/usr/lib64/pgsql", "bin"),
    ("/opt/homebrew/opt", "bin"),
    ("/usr/local/opt", "bin"),
    ("/usr", "bin"),
];
/// How long a program may take to say its version.
const VERSION_WAIT: Duration = Duration::from_secs(10);

/// Where the operator wants servers to be looked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BinarySettings {
    /// The one folder to take whatever its major (`PGSANDBOX_POSTGRES_BIN_DIR`).
    pub bin_dir: Option<PathBuf>,
    /// The folder to take for a major (`PGSANDBOX_POSTGRES_<MAJOR>_BIN_DIR`).
    pub bin_dir_by_major: BTreeMap<u16, PathBuf>,
}

/// An installed server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installation {
    /// Its major version.
    pub major: u16,
    /// Its full version.
    pub version: String,
    /// The folder of its programs.
    pub bin_dir: PathBuf,
}

/// Returns one installation for each major, the newest first; what the operator named wins.
pub async fn discover(settings: &BinarySettings) -> Vec<Installation> {
    let mut found: BTreeMap<u16, Installation> = BTreeMap::new();
    for dir in candidates(settings) {
        if let Some(installation) = examine(&dir).await {
            found.entry(installation.major).or_insert(installation);
        }
    }
    for (major, dir) in &settings.bin_dir_by_major {
        if let Some(installation) = examine(dir).await.filter(|i| i.major == *major) {
            found.insert(*major, installation);
        }
    }
    found.into_values().rev().collect()
}

/// Folders to look into for client programs: those named for a major, then where servers are, then those on PATH.
pub(super) fn tool_dirs(settings: &BinarySettings) -> Vec<PathBuf> {
    let mut dirs: Vec<PathBuf> = settings.bin_dir_by_major.values().cloned().collect();
    dirs.extend(candidates(settings));
    for dir in on_path() {
        // A wrapper that chooses a version itself has another name behind the link.
        if let Ok(real) = dir.join("pg_dump").canonicalize()
            && real.file_name().is_some_and(|name| name == "pg_dump")
        {
            dirs.extend(real.parent().map(Path::to_owned));
        }
    }
    dirs
}

/// Returns the folders on PATH but for those of projects, into which a command of theirs may write.
fn on_path() -> Vec<PathBuf> {
    let all = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&all).filter(|dir| dir.is_absolute() && !is_project_programs(dir)).collect()
}

/// Folders to look into, the operator's first.
pub(super) fn candidates(settings: &BinarySettings) -> Vec<PathBuf> {
    let mut dirs: Vec<PathBuf> = settings.bin_dir.iter().cloned().collect();
    for (parent, rest) in VERSIONED {
        let Ok(entries) = std::fs::read_dir(parent) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let stem = name.trim_start_matches("postgresql@").trim_start_matches("pgsql-");
            if stem.parse::<u16>().is_ok() {
                dirs.push(entry.path().join(rest));
            }
        }
    }
    dirs.push(PathBuf::from("/usr/local/pgsql/bin"));
    for dir in on_path() {
        // a link on PATH leads to the folder with the rest
        if let Ok(real) = dir.join("initdb").canonicalize() {
            dirs.extend(real.parent().map(Path::to_owned));
        }
    }
    dirs
}

async fn examine(dir: &Path) -> Option<Installation> {
    if !PROGRAMS.iter().all(|program| dir.join(program).is_file()) {
        return None;
    }
    fault::pass("spawn.postgres-version").await.ok()?;
    let mut command = Command::new(dir.join("postgres"));
    command.env_clear().envs(ENVIRONMENT).arg("--version").kill_on_drop(true).stdin(std::process::Stdio::null());
    let output = tokio::time::timeout(fault::within(VERSION_WAIT), command.output()).await.ok()?.ok()?;
    let version = version_of(&String::from_utf8_lossy(&output.stdout))?;
    let major = super::super::admin::major_of(&version)?;
    Some(Installation { major, version, bin_dir: dir.to_owned() })
}

/// Reads `15.18` from `postgres (PostgreSQL) 15.18 (Debian …)`.
fn version_of(line: &str) -> Option<String> {
    let rest = line.trim().strip_prefix("postgres (PostgreSQL) ")?;
    rest.split_whitespace().next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        assert_eq!(version_of("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n").as_deref(), Some("15.18"));
        assert_eq!(version_of("postgres (PostgreSQL) 19devel").as_deref(), Some("19devel"));
        assert_eq!(version_of("psql (PostgreSQL) 15.1"), None);
    }

    #[tokio::test]
    async fn a_server_that_is_asked_for_its_version_sees_nothing_of_our_environment() {
        let dir = tempfile::tempdir().unwrap();
        for program in PROGRAMS {
            let script = "#!/bin/sh\nenv >\"$0.environment\"\necho 'postgres (PostgreSQL) 15.18'\n";
            std::fs::write(dir.path().join(program), script).unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(dir.path().join(program), mode).unwrap();
        }
        assert_eq!(examine(dir.path()).await.unwrap().major, 15);
        let seen = std::fs::read_to_string(dir.path().join("postgres.environment")).unwrap();
        let ours = ["PATH", "LC_ALL", "PWD", "SHLVL", "_", "OLDPWD"];
        let others = |line: &&str| line.split_once('=').is_none_or(|(name, _)| !ours.contains(&name));
        assert!(std::env::vars_os().count() > ours.len(), "there is something to be seen");
        assert_eq!(seen.lines().filter(others).collect::<Vec<_>>(), Vec::<&str>::new());
    }

    #[tokio::test]
    async fn a_folder_without_a_server_is_no_installation() {
        let dir = tempfile::tempdir().unwrap();
        for program in PROGRAMS {
            std::fs::write(dir.path().join(program), "not a program").unwrap();
        }
        assert_eq!(examine(dir.path()).await, None);
    }
}
