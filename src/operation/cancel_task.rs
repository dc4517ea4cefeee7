//! Cancels a call that goes on after it was answered with a handle.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::get_task::no_such_task;
use super::{Asks, Call, Done, Operation, Spec, Toolset};
use crate::admission::{Admissible, Permit};
use crate::model::{Failure, Impact, ObligationKind};

/// Arguments of `cancel_task`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct CancelTask {
    /// The task's id.
    task_id: String,
}

/// That it was told.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Told {
    task_id: String,
}

impl Admissible for CancelTask {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;
}

#[async_trait]
impl Operation for CancelTask {
    const SPEC: Spec = Spec {
        name: "cancel_task",
        title: "Cancel a task",
        help: "Cancels a call that was answered with a task, as its own cancelling would: what it began is taken back or finished.",
        // What the call itself may do was decided when it was made; this changes what becomes of it.
        impact: Impact::Writes,
        meets: &[],
        toolset: Toolset::Core,
        idempotent: true,
    };
    type Output = Told;

    fn asks(&self) -> Asks {
        Asks::default()
    }

    async fn run(permit: Permit<Self>, call: &Call) -> Result<Done<Told>, Failure> {
        let task_id = permit.input().task_id.clone();
        if !call.tasks.cancel(&permit.grant().principal.owner, &task_id) {
            return Err(no_such_task());
        }
        Ok(Done::new("the task is told to end", Told { task_id }))
    }
}
