//! Lists requests that wait for another principal's approval.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Asks, Call, Done, Operation, Spec, Toolset};
use crate::admission::{Admissible, Permit};
use crate::model::{Failure, Impact, ObligationKind, counted};
use crate::sandbox::{Cut, Waiting};

/// Arguments of `list_approvals`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListApprovals {
    /// Shows this request alone, and nothing of it cut.
    request_digest: Option<String>,
}

/// The requests that wait, or are approved and not made yet.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Approvals {
    requests: Vec<WaitingEntry>,
}

/// A request that waits, or is approved and was not made yet.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct WaitingEntry {
    /// What `approve` takes.
    request_digest: String,
    /// The profile on whose metadata it waits.
    profile: String,
    /// Who asks and what for, arguments without passwords; what its SQL does, which policies demand approval (`demandedBy`, by group), and what they said.
    request: Value,
    /// What of it is cut here; `requestDigest` shows it whole.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cut: Vec<CutText>,
    /// Groups that must approve, all of them.
    groups: Vec<String>,
    /// Groups that have.
    approved: Vec<String>,
    /// `waiting`, or `approved` where all groups have.
    state: String,
    /// Until when exactly this request can be made once, where it is approved.
    #[serde(skip_serializing_if = "Option::is_none")]
    usable_until: Option<String>,
    asked_at: String,
    /// Until when it is kept.
    expires_at: String,
    /// Whether you may approve it.
    yours_to_approve: bool,
}

/// A part of a request that is cut.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct CutText {
    /// Where it stands in `request`, as a JSON pointer.
    at: String,
    /// How long the whole is.
    bytes: u64,
    /// The SHA-256 of the whole.
    sha256: String,
}

impl From<Cut> for CutText {
    fn from(cut: Cut) -> Self {
        Self { at: cut.at, bytes: cut.bytes as u64, sha256: cut.sha256 }
    }
}

impl From<Waiting> for WaitingEntry {
    fn from(waiting: Waiting) -> Self {
        let state = if waiting.is_approved() { "approved" } else { "waiting" };
        Self {
            state: state.to_owned(),
            usable_until: waiting.usable_until.map(|until| until.to_string()),
            request_digest: waiting.digest,
            profile: waiting.profile,
            request: waiting.what,
            cut: waiting.cut.into_iter().map(Into::into).collect(),
            groups: waiting.groups,
            approved: waiting.approved,
            asked_at: waiting.asked_at.to_string(),
            expires_at: waiting.expires_at.to_string(),
            yours_to_approve: waiting.yours,
        }
    }
}

impl Admissible for ListApprovals {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;
}

#[async_trait]
impl Operation for ListApprovals {
    const SPEC: Spec = Spec {
        name: "list_approvals",
        title: "List requests that wait for approval",
        help: "Lists your own requests that wait for another principal's approval or have it, and those of others that wait for yours or have it. \
               Starts nothing.",
        impact: Impact::Reads,
        meets: &[ObligationKind::ReadOnly],
        toolset: Toolset::Operator,
        idempotent: true,
    };
    type Output = Approvals;

    fn asks(&self) -> Asks {
        Asks::default()
    }

    async fn run(permit: Permit<Self>, call: &Call) -> Result<Done<Approvals>, Failure> {
        let (waiting, more) = call.core.waiting_approvals(&permit, permit.input().request_digest.as_deref()).await?;
        let waits = waiting.iter().filter(|request| !request.is_approved());
        let yours = waits.clone().filter(|request| request.yours).count();
        let (waits, all) = (waits.count(), waiting.len());
        let requests: Vec<WaitingEntry> = waiting.into_iter().map(Into::into).collect();
        let summary = format!(
            "{} waiting, {yours} of them for you; {} approved and not made yet",
            counted(waits, "request", "requests"),
            all - waits
        );
        let more =
            more.then(|| "more requests wait than are looked at here; `approve` knows each by its digest".to_owned());
        let cut = requests.iter().filter(|request| !request.cut.is_empty()).count();
        let cut = (cut > 0).then(|| {
            let those = counted(cut, "request is", "requests are");
            format!("{those} not shown whole: look at each with `requestDigest` before you approve it")
        });
        Ok(Done::new(summary, Approvals { requests }).warn(more).warn(cut))
    }
}
