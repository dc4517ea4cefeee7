//! What is known of a request so far: each fact set once, in order, and kept for the audit and the reply.

use std::sync::OnceLock;
use std::time::Instant;

use serde_json::Value;

use crate::admission::{AppliedLimit, limits};
use crate::audit::{AuditError, Beside, Closing, Outcome};
use crate::model::{Code, Context, Decision, Failure, RequestId, SandboxId, Timestamp, Transport};
use crate::operation::envelope::{LimitNote, PolicyNote};
use crate::operation::{Done, Envelope};
use crate::telemetry::span;

/// The trail of one request.
pub(super) struct Trail {
    pub(super) id: RequestId,
    pub(super) now: Timestamp,
    started: Instant,
    context: OnceLock<Context>,
    decision: OnceLock<Decision>,
    limits: OnceLock<Vec<AppliedLimit>>,
    approves: OnceLock<String>,
    digest: OnceLock<String>,
    others: OnceLock<Vec<SandboxId>>,
}

impl Trail {
    /// Begins a request's trail.
    pub(super) fn begin(id: RequestId, now: Timestamp) -> Self {
        Self {
            id,
            now,
            started: Instant::now(),
            context: OnceLock::new(),
            decision: OnceLock::new(),
            limits: OnceLock::new(),
            approves: OnceLock::new(),
            digest: OnceLock::new(),
            others: OnceLock::new(),
        }
    }

    /// Keeps which request this one is to approve.
    pub(super) fn approves(&self, digest: Option<String>) {
        digest.map(|digest| self.approves.get_or_init(|| digest));
    }

    /// Keeps the facts.
    pub(super) fn facts(&self, context: Context) -> &Context {
        self.context.get_or_init(|| context)
    }

    /// Returns the facts, once they are gathered.
    pub(super) fn context(&self) -> Option<&Context> {
        self.context.get()
    }

    /// Keeps the decision.
    pub(super) fn decided(&self, decision: Decision) -> &Decision {
        self.decision.get_or_init(|| decision)
    }

    /// Keeps the limits that policies set.
    pub(super) fn admitted(&self, limits: Vec<AppliedLimit>) {
        self.limits.get_or_init(|| limits);
    }

    /// Keeps the digest under which this request is approved.
    pub(super) fn demands_approval(&self, digest: Option<&str>) {
        digest.map(|digest| self.digest.get_or_init(|| digest.to_owned()));
    }

    /// Keeps which further sandboxes it came to be about.
    pub(super) fn came_to(&self, others: Vec<SandboxId>) {
        self.others.get_or_init(|| others);
    }

    /// Puts the outcome on the request's span.
    pub(super) fn record(&self, outcome: &Result<Done<Value>, Failure>) {
        let span = tracing::Span::current();
        if let Some(context) = self.context.get() {
            span.record(span::OWNER, context.principal.owner.as_str());
            if let Some(server) = &context.server {
                span.record(span::PROFILE, server.profile.as_str());
            }
            if let Some(sandbox) = &context.sandbox {
                span.record(span::SANDBOX_ID, sandbox.id.to_string());
            }
        }
        if let Some(decision) = self.decision.get() {
            span.record(span::VERDICT, if decision.refusal.is_some() { "deny" } else { "pass" });
        }
        if let Err(failure) = outcome {
            span::failed(&span, failure);
            if let Some((policy, code)) = &failure.policy {
                span.record(span::POLICY_NAME, policy.as_str());
                span.record(span::POLICY_CODE, code.as_str());
            }
        }
        if acted(outcome) {
            self.record_limits(&span);
        }
    }

    /// Says under which limits the request stood, and whose they are: of a refused one, those that were decided.
    fn record_limits(&self, span: &tracing::Span) {
        let Some(decision) = self.decision.get() else { return };
        let limits = limits(&decision.obligations);
        let limits = limits.iter().map(LimitNote::from);
        let limits = limits.map(|note| format!("{}={} by {}", note.limit, note.value, note.set_by)).collect::<Vec<_>>();
        if !limits.is_empty() {
            span.record(span::LIMITS, limits.join(", "));
        }
    }

    /// Returns what the audit entry is closed with.
    pub(super) fn closing<'a>(&'a self, outcome: &'a Result<Done<Value>, Failure>) -> Closing<'a> {
        let decision = self.decision.get();
        Closing {
            now: Timestamp::now(),
            elapsed: self.started.elapsed(),
            context: self.context.get(),
            decision,
            enforced: decision.filter(|_| self.limits.get().is_some()).map(|decision| &decision.obligations),
            target: made(outcome),
            beside: Beside {
                others: self.others.get().map(Vec::as_slice).unwrap_or_default(),
                digest: self.digest.get().map(String::as_str),
                approves: self.approves.get().map(String::as_str),
            },
            outcome: match outcome {
                Ok(_) => Outcome::Ok,
                Err(failure) => Outcome::Failed(failure),
            },
        }
    }

    /// Renders the reply. A closing line that could not be written is said; the deed stands.
    pub(super) fn reply(
        self,
        outcome: Result<Done<Value>, Failure>,
        closed: Result<(), AuditError>,
        transport: Transport,
    ) -> Envelope {
        let note = self.note().filter(|_| acted(&outcome));
        let mut envelope = match outcome {
            Ok(done) => Envelope::done(self.id, done, note),
            Err(failure) => {
                log(self.id, &failure, transport);
                Envelope::failed(self.id, &failure, note)
            }
        };
        if let Err(error) = closed {
            let failure = Failure::from(error);
            envelope.warnings.push(format!(
                "the call was carried out, but its audit entry could not be closed: {}; nothing more is accepted until it can",
                failure.message
            ));
        }
        envelope
    }

    fn note(&self) -> Option<PolicyNote> {
        let limits = self.limits.get().filter(|limits| !limits.is_empty())?;
        let generation = self.decision.get()?.generation.digest.clone();
        Some(PolicyNote { generation, limits: limits.iter().map(LimitNote::from).collect() })
    }
}

/// Returns whether a limit may have acted on a request: it failed, or there is something to warn of.
fn acted(outcome: &Result<Done<Value>, Failure>) -> bool {
    outcome.as_ref().map_or(true, |done| !done.warnings.is_empty())
}

/// Logs why a request failed: refusals are the gate's daily work, and what nobody intended is for people to see.
fn log(id: RequestId, failure: &Failure, transport: Transport) {
    let detail = failure.audit.as_deref().unwrap_or_default();
    // Everything that a caller's own doing brings about. What auditors are told of it, about other owners' sandboxes for
    // instance, is in the audit only: a caller of the command line, or on a pipe, reads this log.
    let callers_own = matches!(
        failure.code.category(),
        "policy"
            | "validation"
            | "sql_analysis"
            | "sql_syntax"
            | "sql_execution"
            | "config"
            | "lifecycle"
            | "timeout"
            | "busy"
            | "template"
            | "snapshot"
    ) && failure.code != Code::InvalidConfiguration;
    // Whoever called by the command line is told the same in the same place.
    let is_told = transport == Transport::Cli && detail.is_empty();
    if callers_own || is_told {
        tracing::debug!(request = %id, code = failure.code.as_str(), "request refused");
    } else {
        tracing::warn!(request = %id, code = failure.code.as_str(), detail, "request failed");
    }
}

/// Returns the sandbox that a successful call was about, one that it made included.
fn made(outcome: &Result<Done<Value>, Failure>) -> Option<SandboxId> {
    outcome.as_ref().ok()?.result.get("databaseId")?.as_str()?.parse().ok()
}
