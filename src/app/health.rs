//! The health of policies, audit log and telemetry, for `doctor`.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::watch;

use crate::audit;
use crate::model::{Check, CheckStatus, Health, Mode, counted};
use crate::policy::Holder;
use crate::telemetry::Telemetry;

fn check(name: &str, status: CheckStatus, detail: impl Into<String>, remedy: Option<&str>) -> Check {
    Check { name: name.to_owned(), status, detail: detail.into(), remedy: remedy.map(str::to_owned) }
}

/// Whether policies serve, and which.
pub(super) struct PoliciesHealth(watch::Receiver<Option<Arc<Holder>>>);

impl PoliciesHealth {
    pub(super) fn new(policies: watch::Receiver<Option<Arc<Holder>>>) -> Self {
        Self(policies)
    }
}

#[async_trait]
impl Health for PoliciesHealth {
    async fn checks(&self) -> Vec<Check> {
        let Some(holder) = self.0.borrow().clone() else {
            let (status, detail) = if self.0.has_changed().is_ok() {
                (CheckStatus::Warn, "the policies are still being loaded")
            } else {
                // Whoever loaded them is gone.
                (CheckStatus::Fail, "the policies were not loaded")
            };
            let remedy = "every request but `doctor` waits for them, and is refused after a while";
            return vec![check("policies.loaded", status, detail, Some(remedy))];
        };
        if let Some(fault) = holder.fault() {
            let remedy = "correct the policy file; every request but `doctor` is refused until then";
            let one = |fault: &crate::policy::LoadFault| {
                check("policies.loaded", CheckStatus::Fail, fault.to_string(), Some(remedy))
            };
            return fault.faults.iter().map(one).collect();
        }
        let Ok(set) = holder.current() else { return Vec::new() };
        let (enforced, shadow): (Vec<_>, Vec<_>) = set.policies().partition(|policy| policy.mode == Mode::Enforce);
        let generation = set.generation();
        let detail = format!(
            "{} enforced, {} in shadow; generation {}, digest {}",
            enforced.len(),
            shadow.len(),
            generation.number,
            generation.digest
        );
        vec![check("policies.loaded", CheckStatus::Ok, detail, None)]
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
