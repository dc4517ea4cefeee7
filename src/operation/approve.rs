//! Approves another principal's request.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::list_approvals::WaitingEntry;
use super::{Asks, Call, Done, Operation, Spec, Toolset};
use crate::admission::{Admissible, Permit};
use crate::model::{Failure, Impact, ObligationKind, counted};
use crate::sandbox::Approval;

/// Arguments of `approve`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Approve {
    /// The digest that the refusal of the request told, 64 hexadecimal digits.
    request_digest: String,
}

/// What was approved.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ApprovalGiven {
    request: WaitingEntry,
    /// Until when exactly this request can be made once.
    usable_until: String,
}

impl Admissible for Approve {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;
}

#[async_trait]
impl Operation for Approve {
    const SPEC: Spec = Spec {
        name: "approve",
        title: "Approve another principal's request",
        help: "Approves one request of another principal in the name of your groups. It then can be made once, within an hour. \
               Nobody approves a request of their own.",
        impact: Impact::Writes,
        meets: &[],
        toolset: Toolset::Operator,
        idempotent: true,
    };
    type Output = ApprovalGiven;

    fn asks(&self) -> Asks {
        Asks { approves: Some(self.request_digest.clone()), ..Asks::default() }
    }

    async fn run(permit: Permit<Self>, call: &Call) -> Result<Done<ApprovalGiven>, Failure> {
        let Approval { request, usable_until } = call.core.approve(&permit, &permit.input().request_digest).await?;
        let missing = request.groups.iter().filter(|group| !request.approved.contains(group)).count();
        let more = match missing {
            0 => String::new(),
            missing => format!("; {} must approve", counted(missing, "more group", "more groups")),
        };
        let summary = format!("approved in the name of {}{more}", request.approved.join(", "));
        Ok(Done::new(summary, ApprovalGiven { request: request.into(), usable_until: usable_until.to_string() }))
    }
}
