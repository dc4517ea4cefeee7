//! Puts another set of policies in the place of the one that serves, or says why not.
//!
//! No generation serves that was not written to the audit log first. Whatever is wrong with a new set, the old one goes
//! on serving; without an old one, everything but the diagnosis goes on being refused.

use std::sync::Arc;
use std::time::Instant;

use super::policies::{Policies, RefusedSet};
use crate::admission::{SystemAuthority, SystemReason};
use crate::audit::{Audit, AuditError, Beside, Closing, Opening, Outcome, Reload, ReloadChange, Ticket};
use crate::model::{Failure, Generation, RequestId, Timestamp};
use crate::policy::{Change, Holder, LoadError, Reloaded};

/// What a reload was begun by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trigger {
    /// SIGHUP.
    Signal,
    /// The policy file, or a component that it names, is another.
    File,
    /// `pgsandbox policy reload`.
    Command,
}

impl Trigger {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Signal => "signal",
            Self::File => "file",
            Self::Command => "command",
        }
    }
}

/// Why nothing else serves now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NotTaken {
    /// The new set is broken: one line for each fault.
    Broken(Vec<String>),
    /// The audit log does not take that another set serves. May be tried again.
    Unwritten(String),
    /// Somebody wrote to the files while they were read. May be tried again.
    Unsteady,
}

impl NotTaken {
    /// Says it, one line for each fault.
    pub(super) fn lines(self) -> Vec<String> {
        match self {
            Self::Broken(faults) => faults,
            Self::Unwritten(why) => vec![why],
            Self::Unsteady => {
                vec!["the policy file or a component changed while it was read; it is read once it rests".to_owned()]
            }
        }
    }
}

/// Reloads the policies of this process.
pub(super) struct Reloader {
    pub(super) policies: Arc<Policies>,
    pub(super) audit: Arc<Audit>,
    pub(super) authority: SystemAuthority,
}

impl Reloader {
    /// Reads the policies once more and lets them serve. Blocks: what is not compiled yet takes seconds.
    pub(super) fn reload(&self, holder: &Holder, trigger: Trigger) -> Result<Reloaded, NotTaken> {
        let started = Instant::now();
        let before = holder.current().ok().map(|set| set.generation().clone());
        let mut seen = None;
        let mut unsteady = false;
        let prepared = holder.prepare(|number| {
            let read = self.policies.source.read(number);
            unsteady = !read.steady;
            seen = Some(read.seen);
            read.set
        });
        if unsteady {
            return Err(NotTaken::Unsteady);
        }
        let seen = seen.unwrap_or_default();
        let prepared = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                let faults: Vec<String> = error.faults.iter().map(ToString::to_string).collect();
                tell_refused(before.as_ref(), &faults);
                self.audit_refused(before.as_ref(), trigger, &error, &faults, started);
                let refused = RefusedSet { at: Timestamp::now(), file_time: seen.file_time(), faults: faults.clone() };
                self.policies.stand(|standing| {
                    standing.refused = Some(refused);
                    standing.tried = seen;
                });
                return Err(NotTaken::Broken(faults));
            }
        };
        let of = prepared.reloaded();
        let ticket = match self.open(trigger, of.from.as_ref(), Some(&of.to), &of.changes, &[]) {
            Ok(ticket) => ticket,
            Err(error) => {
                let why = format!("the new policies do not serve, as that cannot be recorded: {error}");
                let refused =
                    RefusedSet { at: Timestamp::now(), file_time: seen.file_time(), faults: vec![why.clone()] };
                self.policies.stand(|standing| standing.refused = Some(refused));
                return Err(NotTaken::Unwritten(why));
            }
        };
        let reloaded = prepared.serve();
        self.policies.stand(|standing| {
            standing.since = Some(Timestamp::now());
            standing.file_time = seen.file_time();
            standing.refused = None;
            standing.tried = seen;
        });
        self.close(ticket, started, Outcome::Ok);
        tell_taken(&reloaded);
        Ok(reloaded)
    }

    fn audit_refused(
        &self,
        before: Option<&Generation>,
        trigger: Trigger,
        error: &LoadError,
        faults: &[String],
        started: Instant,
    ) {
        match self.open(trigger, before, None, &[], faults) {
            Ok(ticket) => self.close(ticket, started, Outcome::Failed(&Failure::from(error))),
            // Nothing is changed by it, and it is said aloud.
            Err(error) => tracing::error!(%error, "that the new policies are refused cannot be recorded"),
        }
    }

    fn open(
        &self,
        trigger: Trigger,
        from: Option<&Generation>,
        to: Option<&Generation>,
        changes: &[Change],
        faults: &[String],
    ) -> Result<Ticket, AuditError> {
        let permit = self.authority.permit(SystemReason::PolicyReload, RequestId::fresh(), Timestamp::now());
        let grant = permit.grant();
        let opening = Opening {
            id: grant.request_id,
            principal: &grant.principal,
            operation: grant.operation,
            now: grant.now,
            trace: None,
            frees: false,
        };
        let file = self.policies.source.file().map(|file| file.to_string_lossy().into_owned());
        let changes: Vec<ReloadChange<'_>> = changes.iter().map(change).collect();
        let reload = Reload { trigger: trigger.as_str(), file: file.as_deref(), from, to, changes: &changes, faults };
        self.audit.open_reload(opening, &reload)
    }

    fn close(&self, ticket: Ticket, started: Instant, outcome: Outcome<'_>) {
        let closing = Closing {
            now: Timestamp::now(),
            elapsed: started.elapsed(),
            context: None,
            decision: None,
            enforced: None,
            target: None,
            beside: Beside::default(),
            outcome,
        };
        if let Err(error) = self.audit.close(ticket, closing) {
            tracing::error!(%error, "the audit entry of a reload could not be closed");
        }
    }
}

fn change(of: &Change) -> ReloadChange<'_> {
    ReloadChange {
        policy: &of.policy,
        what: of.what.as_str(),
        from: of.from.as_deref(),
        to: of.to.as_deref(),
        weakens: of.weakens,
    }
}

fn tell_taken(reloaded: &Reloaded) {
    let (generation, digest) = (reloaded.to.number, reloaded.to.digest.as_str());
    let weakened = reloaded.weakened();
    if weakened.is_empty() {
        tracing::info!(generation, digest, "other policies serve");
    } else {
        let weakened = weakened.join(", ");
        tracing::warn!(generation, digest, weakened, "other policies serve, and let through what was refused before");
    }
}

fn tell_refused(serving: Option<&Generation>, faults: &[String]) {
    let faults = faults.join("; ");
    match serving.map(|generation| generation.number) {
        Some(generation) => {
            tracing::error!(generation, faults, "the new policies are refused; the generation before goes on serving");
        }
        None => tracing::error!(faults, "the policies still cannot be loaded; every request but `doctor` is refused"),
    }
}
