//! Looks at a call that goes on after it was answered with a handle.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Asks, Call, Done, Operation, Spec, Toolset};
use crate::admission::{Admissible, Permit};
use crate::model::{Code, Failure, Impact, ObligationKind, Task};

/// Arguments of `get_task`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct GetTask {
    /// The task's id.
    task_id: String,
}

/// A task, and its result once there is one.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Looked {
    task_id: String,
    /// `working`, `completed` or `cancelled`.
    status: String,
    created_at: String,
    last_updated_at: String,
    /// How long after its begin it may be forgotten, in milliseconds.
    ttl_ms: u64,
    /// How long to wait before asking again, in milliseconds.
    poll_interval_ms: u64,
    /// What the call would have answered; only once it is completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Value>,
}

impl From<Task> for Looked {
    fn from(task: Task) -> Self {
        Self {
            task_id: task.id,
            status: task.status.as_str().to_owned(),
            created_at: task.created_at.to_string(),
            last_updated_at: task.updated_at.to_string(),
            ttl_ms: task.ttl_ms,
            poll_interval_ms: task.poll_interval_ms,
            result: task.result.and_then(|result| serde_json::from_str(&result).ok()),
        }
    }
}

/// The failure for a task that is not there; worded the same for one that is not the caller's.
pub(super) fn no_such_task() -> Failure {
    Failure::new(Code::InvalidArguments, "there is no such task")
        .hint("a task is kept for a while, for the connection that it was begun on")
}

impl Admissible for GetTask {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;
}

#[async_trait]
impl Operation for GetTask {
    const SPEC: Spec = Spec {
        name: "get_task",
        title: "Look at a task",
        help: "Says how a call stands that was answered with a task, and returns its result once there is one.",
        impact: Impact::Reads,
        meets: &[ObligationKind::ReadOnly],
        toolset: Toolset::Core,
        idempotent: true,
    };
    type Output = Looked;

    fn asks(&self) -> Asks {
        Asks::default()
    }

    async fn run(permit: Permit<Self>, call: &Call) -> Result<Done<Looked>, Failure> {
        let owner = &permit.grant().principal.owner;
        let task = call.tasks.look(owner, &permit.input().task_id).ok_or_else(no_such_task)?;
        Ok(Done::new(format!("task {}", task.status.as_str()), task.into()))
    }
}
