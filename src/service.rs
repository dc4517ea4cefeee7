//! The life of a request, on one screen.
//!
//! Whatever the edge, a call goes through here and only here: an audit entry is opened before anything
//! else and closed whatever happens; nothing acts without the permit that the gate hands out.

mod approvals;
mod facts;
mod preview;
mod running;
mod trail;

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use self::approvals::{Agreed, Use};
use self::facts::Facts;
use self::running::Running;
use self::trail::Trail;
use crate::admission::{self, Account, Book, Consents, Gate};
use crate::audit::{Audit, Opening};
use crate::command::Commands;
use crate::model::{
    Code, Console, Context, Decision, Failure, Health, Impact, Principal, Progress, RequestId, Tasks, Timestamp,
    TraceIds, Transport, fault,
};
use crate::operation::schema::JsonObject;
use crate::operation::{self, Asks, Call, Done, Envelope, OPERATIONS, Passed};
use crate::policy::{Holder, Set};
use crate::sandbox::Core;
use crate::sql::{Reader, Script};
use crate::telemetry::{Parent, continue_trace, span};

/// How long a call waits for the policies to be loaded, at start.
const POLICIES_WAIT: Duration = Duration::from_secs(60);
/// The operation that may run without policies, to say why there are none.
const DIAGNOSIS: &str = "doctor";

/// One call, as an edge hands it over.
pub struct Request {
    /// How it was asked: MCP's method, or `cli`.
    pub method: &'static str,
    /// Who asks, as authentication says.
    pub principal: Principal,
    /// What is asked for.
    pub operation: String,
    /// The arguments.
    pub input: JsonObject,
    /// Takes news of long work.
    pub progress: Arc<dyn Progress>,
    /// Set when the caller cancels.
    pub cancel: CancellationToken,
    /// The calls of the same connection that go on after they were answered with a handle.
    pub tasks: Arc<dyn Tasks>,
    /// The caller's place in a trace, as W3C trace context writes it.
    pub traceparent: Option<String>,
    /// The caller's terminal, where a command is to be run for it.
    pub console: Option<Arc<dyn Console>>,
}

/// Answers calls.
pub struct Service {
    core: Core,
    reader: Reader,
    policies: watch::Receiver<Option<Arc<Holder>>>,
    book: Arc<dyn Book>,
    consents: Arc<dyn Consents>,
    audit: Arc<Audit>,
    health: Vec<Arc<dyn Health>>,
    commands: Arc<Commands>,
    running: Running,
}

/// What a service is made of.
pub struct Parts {
    /// The lifecycle core.
    pub core: Core,
    /// Reads SQL.
    pub reader: Reader,
    /// The policies, once they are loaded.
    pub policies: watch::Receiver<Option<Arc<Holder>>>,
    /// Where rate limits are kept.
    pub book: Arc<dyn Book>,
    /// What people have agreed to.
    pub consents: Arc<dyn Consents>,
    /// The audit log.
    pub audit: Arc<Audit>,
    /// The health of parts that the core does not know.
    pub health: Vec<Arc<dyn Health>>,
    /// Runs commands of repositories.
    pub commands: Arc<Commands>,
}

impl Service {
    /// Puts a service together.
    pub fn new(parts: Parts) -> Arc<Self> {
        let Parts { core, reader, policies, book, consents, audit, health, commands } = parts;
        let running = Running::default();
        Arc::new(Self { core, reader, policies, book, consents, audit, health, commands, running })
    }

    /// Answers one call. Never fails otherwise than by what the envelope says.
    pub async fn call(self: &Arc<Self>, request: Request) -> Envelope {
        let _running = self.running.enter();
        let id = RequestId::fresh();
        // A span is named by the list, never by a caller's own word.
        let name = operation::find(&request.operation).map_or("unknown", |entry| entry.spec.name);
        let span = span::request(id, request.method, name, request.principal.transport);
        let trace = continue_trace(&span, request.traceparent.as_deref().and_then(Parent::parse));
        self.answer(id, request, trace).instrument(span).await
    }

    /// Returns how many calls run now.
    pub fn running(&self) -> usize {
        self.running.count()
    }

    async fn answer(self: &Arc<Self>, id: RequestId, request: Request, trace: Option<TraceIds>) -> Envelope {
        let trail = Trail::begin(id, Timestamp::now());
        let (principal, operation) = (&request.principal, request.operation.as_str());
        let opening = Opening { id, principal, operation, now: trail.now, trace, frees: frees_room(operation) };
        let ticket = match self.audit.open(opening) {
            Ok(ticket) => ticket,
            Err(error) => {
                let failure = error.into();
                span::failed(&tracing::Span::current(), &failure);
                return Envelope::failed(id, &failure, None);
            }
        };
        let mut outcome = self.attempt(&request, &trail).await;
        if let (Err(failure), Some(context)) = (&mut outcome, trail.context()) {
            self.name_acceptable_extensions(context, failure).await;
            if let (Some(server), Some(sandbox)) = (&context.server, &context.sandbox) {
                self.core.blame_others(&server.profile, &sandbox.name, failure).await;
            }
        }
        if let Err(failure) = &outcome {
            // What one sandbox has taken from all is freed by now for the next call.
            self.core.relieve_after(failure).await;
        }
        trail.record(&outcome);
        let closed = self.audit.close(ticket, trail.closing(&outcome));
        trail.reply(outcome, closed, request.principal.transport)
    }

    async fn attempt(self: &Arc<Self>, request: &Request, trail: &Trail) -> Result<Done<Value>, Failure> {
        let entry = operation::find_for(&request.operation, request.method)?;
        let prepared = entry.read(request.input.clone())?;
        let asks = prepared.asks();
        trail.approves(asks.approves.clone());
        let script = facts::read_sql(&self.reader, &asks)?;
        let facts = Facts { core: &self.core, spec: entry.spec, principal: &request.principal, asks: &asks };
        let mut context = facts.gather(trail.id, trail.now, script.as_deref()).await?;
        let set = self.set(context.operation).await;
        if let Ok(Some(set)) = &set {
            facts::show_texts(&mut context, set, script.as_deref(), &asks);
        }
        let context = trail.facts(context);
        let set = set?;
        let decision = trail.decided(self.decide(set.as_deref(), context, &asks)?);
        if let Some(set) = &set {
            set.count(decision);
        }
        self.make_ready(set.as_deref(), context);
        let people = (&self.core, &*self.consents);
        let agreed = Agreed::to(decision, context, &request.input, people, Use::Take).await?;
        trail.demands_approval(agreed.digest());
        let gate = Gate { context, decision, book: &*self.book, consents: &agreed };
        let Passed { ready, warnings, limits, receipt } = match prepared.admit(&gate) {
            Ok(passed) => passed,
            Err(failure) => {
                agreed.refused(&failure).await?;
                return Err(failure);
            }
        };
        trail.admitted(limits);
        let outcome = ready.run(&self.call_for(request, context, script)).await;
        trail.came_to(receipt.others());
        if outcome.is_err() {
            // Charges only if it was refused before anything was done for it, approvals also if it only looked.
            admission::refund(&receipt, &*self.book, trail.now)?;
            if admission::made_nothing(&receipt) {
                agreed.give_back().await;
            }
        }
        outcome.map(|done| done.warn(warnings))
    }
}

impl Service {
    /// Waits for the policies, which are loaded beside the handshake.
    async fn policies(&self) -> Result<Arc<Holder>, Failure> {
        let mut policies = self.policies.clone();
        let loaded = tokio::time::timeout(fault::within(POLICIES_WAIT), policies.wait_for(Option::is_some)).await;
        let not_run = |why| Failure::new(Code::PolicyNotReady, format!("{why}; the request was not run"));
        let Ok(loaded) = loaded else {
            return Err(
                not_run("the policies are still being loaded").hint("try again; `pgsandbox doctor` shows how they are")
            );
        };
        let holder = loaded.ok().and_then(|holder| holder.clone());
        holder.ok_or_else(|| not_run("the policies were not loaded").hint("start the program again; its log says why"))
    }

    /// Returns the policies that serve; none for the one operation that may run without.
    async fn set(&self, operation: &str) -> Result<Option<Arc<Set>>, Failure> {
        match self.policies().await.and_then(|holder| holder.current()) {
            Ok(set) => Ok(Some(set)),
            Err(_) if operation == DIAGNOSIS => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Prepares the next decision like this one beside what this call now waits for. A command makes no other call. What
    /// stands ready is of the set that serves then, whatever this call was decided by.
    fn make_ready(&self, set: Option<&Set>, context: &Context) {
        if set.is_none() || context.principal.transport == Transport::Cli {
            return;
        }
        let (operation, owner) = (context.operation, context.principal.owner.clone());
        let policies = self.policies.clone();
        drop(tokio::spawn(async move {
            let holder = policies.borrow().clone();
            if let Some(set) = holder.and_then(|holder| holder.current().ok()) {
                set.make_ready(operation, &owner);
            }
        }));
    }

    /// Asks the policies. Without any, only what they say of themselves can be asked for.
    fn decide(&self, set: Option<&Set>, context: &Context, asks: &Asks) -> Result<Decision, Failure> {
        let Some(set) = set else { return Ok(Decision::diagnosis()) };
        let account = Account::new(&context.principal, context.group_owner.as_deref());
        let balances = self.book.balances(&account, &set.buckets(context), context.now)?;
        let mut decision = set.decide(context, &balances);
        facts::hide_what_is_not_the_callers(&mut decision, asks);
        Ok(decision)
    }

    fn call_for(self: &Arc<Self>, request: &Request, context: &Context, script: Option<Arc<Script>>) -> Call {
        Call {
            core: self.core.clone(),
            progress: request.progress.clone(),
            cancel: request.cancel.clone(),
            database: context.sandbox.as_ref().map(|sandbox| sandbox.name.clone()).unwrap_or_default(),
            script,
            preview: self.clone(),
            health: self.health.clone(),
            tool_count: OPERATIONS.iter().filter(|entry| entry.is_tool()).count(),
            commands: self.commands.clone(),
            console: request.console.clone(),
            tasks: request.tasks.clone(),
        }
    }
}

/// Returns whether an operation makes room on a full disk, or shows how.
fn frees_room(operation: &str) -> bool {
    let removes = operation::find(operation).is_ok_and(|entry| entry.spec.impact == Impact::Destroys);
    removes || [DIAGNOSIS, "list_databases", "list_templates"].contains(&operation)
}
