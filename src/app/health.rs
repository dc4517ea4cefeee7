//! The health of policies, audit log and telemetry, for `doctor`.

use std::path::PathBuf;
use std::sync::Arc;

use super::cluster::Besides;
use super::policies::{Policies, RefusedSet, Standing};
use crate::audit;
use crate::command::Commands;
use crate::identity::own_identity;
use crate::model::{Check, CheckStatus, Health, Identity, Mode, Timestamp, counted};
use crate::sandbox::UnusableSource;
use crate::telemetry::Telemetry;
use async_trait::async_trait;

fn check(name: &str, status: CheckStatus, detail: impl Into<String>, remedy: Option<&str>) -> Check {
    Check { name: name.to_owned(), status, detail: detail.into(), remedy: remedy.map(str::to_owned) }
}

/// Whether policies serve, and which.
pub(super) struct PoliciesHealth(Arc<Policies>);

impl PoliciesHealth {
    pub(super) fn new(policies: Arc<Policies>) -> Self {
        Self(policies)
    }
}

#[async_trait]
impl Health for PoliciesHealth {
    async fn checks(&self) -> Vec<Check> {
        let loaded = self.0.watch();
        let Some(holder) = loaded.borrow().clone() else {
            let (status, detail) = if loaded.has_changed().is_ok() {
                (CheckStatus::Warn, "the policies are still being loaded")
            } else {
                // Whoever loaded them is gone.
                (CheckStatus::Fail, "the policies were not loaded")
            };
            let remedy = "every request but `doctor` waits for them, and is refused after a while";
            return vec![check("policies.loaded", status, detail, Some(remedy))];
        };
        if let Some(fault) = holder.fault() {
            let remedy = "correct the policy file, which is taken by itself then; every request but `doctor` is refused until then";
            let one = |fault: &crate::policy::LoadFault| {
                check("policies.loaded", CheckStatus::Fail, fault.to_string(), Some(remedy))
            };
            return fault.faults.iter().map(one).collect();
        }
        let Ok(set) = holder.current() else { return Vec::new() };
        let of = |mode: Mode| set.policies().filter(|policy| policy.mode == mode).count();
        let candidates = match of(Mode::Candidate) {
            0 => String::new(),
            candidates => format!(", {}", counted(candidates, "candidate", "candidates")),
        };
        let generation = set.generation();
        let standing = self.0.standing();
        let since = standing.since.map(|since| format!(" since {since}")).unwrap_or_default();
        let detail = format!(
            "{} enforced, {} in shadow{candidates}; generation {}{since}, digest {}",
            of(Mode::Enforce),
            of(Mode::Shadow),
            generation.number,
            generation.digest
        );
        let mut checks = vec![check("policies.loaded", CheckStatus::Ok, detail, None)];
        checks.extend(standing.refused.as_ref().map(|refused| not_taken(generation.number, &standing, refused)));
        checks
    }
}

/// Says that another set was to serve and does not.
fn not_taken(serving: u64, standing: &Standing, refused: &RefusedSet) -> Check {
    let of = |time: Option<Timestamp>| time.map(|time| format!(" of {time}")).unwrap_or_default();
    let detail = format!(
        "generation {serving}, from the file{}, serves; the file{} was refused at {}: {}",
        of(standing.file_time),
        of(refused.file_time),
        refused.at,
        refused.faults.join("; ")
    );
    let remedy = "correct the policy file: it is taken by itself then, and without that no server starts with policies";
    check("policies.reload", CheckStatus::Fail, detail, Some(remedy))
}

/// Whether commands of repositories can be confined.
pub(super) struct CommandsHealth(Arc<Commands>);

impl CommandsHealth {
    pub(super) fn new(commands: Arc<Commands>) -> Self {
        Self(commands)
    }
}

#[async_trait]
impl Health for CommandsHealth {
    async fn checks(&self) -> Vec<Check> {
        let (status, detail, remedy) = match self.0.confined() {
            Ok(true) => (CheckStatus::Ok, "commands of repositories are confined by Landlock".to_owned(), None),
            Ok(false) => {
                let detail = "commands of repositories run unconfined, as `commands.confinement` allows".to_owned();
                (CheckStatus::Warn, detail, Some("set `commands.confinement` to `required` to run none here"))
            }
            Err(error) => (
                CheckStatus::Skipped,
                format!("commands of repositories are refused: {error}"),
                Some("run on Linux 6.2 or later with Landlock"),
            ),
        };
        vec![check("commands.confined", status, detail, remedy)]
    }
}

/// Which clusters of the state directory no profile leads to.
pub(super) struct ClustersHealth(Besides);

impl ClustersHealth {
    pub(super) fn new(besides: Besides) -> Self {
        Self(besides)
    }
}

#[async_trait]
impl Health for ClustersHealth {
    async fn checks(&self) -> Vec<Check> {
        let mut checks = Vec::new();
        for cluster in self.0.clusters() {
            let Ok(status) = cluster.status().await else { continue };
            let major = status.major.map(|major| format!(" {major}")).unwrap_or_default();
            let (stands, stop) = if status.running {
                ("runs, and no", "`pgsandbox local stop` stops it as well")
            } else {
                ("is stopped, and no", "`pgsandbox local status` shows every cluster")
            };
            let detail = format!("the cluster of Postgres{major} in the state directory {stands} profile leads to it");
            let remedy = format!(
                "name the configuration with its profile by `PGSANDBOX_CONFIG`, or set `PGSANDBOX_POSTGRES_VERSION`; {stop}"
            );
            checks.push(check("postgres.clusters", CheckStatus::Warn, detail, Some(&remedy)));
        }
        checks
    }
}

/// Which program this is, and whether its state has room.
pub(super) struct ProgramHealth(PathBuf);

/// Below this many free bytes the audit log may soon not be written, and then nothing is done any more.
const FREE_BYTES_MIN: u64 = 256 << 20;

impl ProgramHealth {
    pub(super) fn new(home: PathBuf) -> Self {
        Self(home)
    }
}

#[async_trait]
impl Health for ProgramHealth {
    async fn checks(&self) -> Vec<Check> {
        let version = format!("{} {}", env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
        let mut checks = vec![check("program.version", CheckStatus::Ok, version, None)];
        if own_identity() == Identity::Chosen {
            let detail = "the program runs in a user namespace, where nobody is known by its user: there are no groups, and \
                          approvals and requests that need them are refused";
            let remedy = "run it outside of one, or in a container with root, where groups and approvals are wanted";
            checks.push(check("program.user", CheckStatus::Warn, detail, Some(remedy)));
        }
        if let Ok(found) = rustix::fs::statvfs(&self.0) {
            checks.push(room(&self.0, found.f_bavail.saturating_mul(found.f_frsize)));
        }
        checks
    }
}

fn room(home: &std::path::Path, free: u64) -> Check {
    let detail = format!("{} MiB free for `{}`", free >> 20, home.display());
    if free >= FREE_BYTES_MIN {
        return check("state.disk", CheckStatus::Ok, detail, None);
    }
    let remedy = "free some space: when the audit log cannot be written, every call is refused";
    check("state.disk", CheckStatus::Warn, detail, Some(remedy))
}

/// Which sources of clones cannot be used.
pub(super) struct SourcesHealth(Vec<UnusableSource>);

impl SourcesHealth {
    pub(super) fn new(unusable: Vec<UnusableSource>) -> Self {
        Self(unusable)
    }
}

#[async_trait]
impl Health for SourcesHealth {
    async fn checks(&self) -> Vec<Check> {
        let one = |source: &UnusableSource| {
            let urls = if source.production { ", and so is every URL, which could lead to it" } else { "" };
            let remedy = format!(
                "set the variable where this program is started, or take the source out of the configuration; a clone of it is \
                 refused until then{urls}"
            );
            check(&format!("sources.{}", source.name), CheckStatus::Fail, &source.why, Some(&remedy))
        };
        self.0.iter().map(one).collect()
    }
}

/// Whether the audit log's chain holds.
pub(super) struct AuditHealth(PathBuf);

impl AuditHealth {
    pub(super) fn new(dir: PathBuf) -> Self {
        Self(dir)
    }
}

#[async_trait]
impl Health for AuditHealth {
    async fn checks(&self) -> Vec<Check> {
        let dir = self.0.clone();
        // Reading a long log is work for a thread that may block.
        let report = tokio::task::spawn_blocking(move || audit::verify(&dir)).await;
        vec![match report {
            Ok(Ok(report)) if report.is_sound() => {
                let detail = format!(
                    "{}, {}, unbroken",
                    counted(report.segments, "segment", "segments"),
                    counted(report.lines, "line", "lines")
                );
                check("audit.chain", CheckStatus::Ok, detail, None)
            }
            Ok(Ok(report)) => {
                let detail = counted(report.faults.len(), "fault", "faults");
                check("audit.chain", CheckStatus::Fail, detail, Some("`pgsandbox audit verify` lists them"))
            }
            Ok(Err(error)) => check("audit.chain", CheckStatus::Fail, format!("cannot be read: {error}"), None),
            Err(_) => check("audit.chain", CheckStatus::Fail, "could not be checked", None),
        }]
    }
}

/// Whether spans are lost, and whether the collector takes any.
pub(super) struct TelemetryHealth(Arc<Telemetry>);

impl TelemetryHealth {
    pub(super) fn new(telemetry: Arc<Telemetry>) -> Self {
        Self(telemetry)
    }
}

#[async_trait]
impl Health for TelemetryHealth {
    async fn checks(&self) -> Vec<Check> {
        let lost = self.0.lost_spans();
        let status = if lost == 0 { CheckStatus::Ok } else { CheckStatus::Warn };
        let remedy = (lost > 0).then_some("see whether the collector runs and takes spans fast enough");
        let mut checks =
            vec![check("telemetry.lost_spans", status, format!("{lost} spans lost by this process"), remedy)];
        if let Some((endpoint, protocol)) = self.0.collector() {
            let place = format!("`{endpoint}` by {}", protocol.as_str());
            checks.push(match self.0.reach().await {
                Ok(()) => check("telemetry.collector", CheckStatus::Ok, format!("takes spans at {place}"), None),
                Err(fault) => {
                    let detail = format!("does not take spans at {place}: {fault}");
                    let remedy = "see that the collector runs there and speaks this protocol, and that the headers are \
                                  what it asks for; requests are served all the same, and their spans lost";
                    check("telemetry.collector", CheckStatus::Warn, detail, Some(remedy))
                }
            });
        }
        checks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_is_almost_full_is_told_before_nothing_is_done_any_more() {
        let status = |free| room(std::path::Path::new("/h"), free).status;
        assert_eq!(status(FREE_BYTES_MIN), CheckStatus::Ok);
        assert_eq!(status(FREE_BYTES_MIN - 1), CheckStatus::Warn);
    }
}
