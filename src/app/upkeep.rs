//! Audits what upkeep does, like any request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use crate::admission::Permit;
use crate::audit::{Audit, Beside, Closing, Opening, Outcome, Ticket};
use crate::model::{Failure, RequestId, Timestamp};
use crate::sandbox::{Sandbox, UpkeepAudit};

/// Opens and closes audit entries of upkeep.
pub(super) struct AuditedUpkeep {
    audit: Arc<Audit>,
    open: Mutex<HashMap<RequestId, Ticket>>,
}

impl AuditedUpkeep {
    pub(super) fn new(audit: Arc<Audit>) -> Self {
        Self { audit, open: Mutex::default() }
    }
}

#[async_trait]
impl UpkeepAudit for AuditedUpkeep {
    async fn open(&self, permit: &Permit<()>, _sandbox: &Sandbox) -> Result<(), Failure> {
        let grant = permit.grant();
        let opening = Opening {
            id: grant.request_id,
            principal: &grant.principal,
            operation: grant.operation,
            now: grant.now,
            trace: None,
            frees: true,
        };
        let ticket = self.audit.open(opening)?;
        self.open.lock().unwrap_or_else(PoisonError::into_inner).insert(grant.request_id, ticket);
        Ok(())
    }

    async fn close(&self, permit: &Permit<()>, sandbox: &Sandbox, outcome: Result<(), &Failure>) {
        let id = permit.grant().request_id;
        let Some(ticket) = self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&id) else { return };
        let now = Timestamp::now();
        let elapsed = u64::try_from(now.ms_since(permit.grant().now)).unwrap_or(0);
        let closing = Closing {
            now,
            elapsed: Duration::from_millis(elapsed),
            context: None,
            decision: None,
            enforced: None,
            target: Some(sandbox.id),
            beside: Beside::default(),
            outcome: match outcome {
                Ok(()) => Outcome::Ok,
                Err(failure) => Outcome::Failed(failure),
            },
        };
        if let Err(error) = self.audit.close(ticket, closing) {
            tracing::error!(%error, "an audit entry of upkeep could not be closed");
        }
    }
}
