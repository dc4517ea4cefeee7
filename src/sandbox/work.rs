//! Carries out plans: each step journalled before and after, taken back in reverse where it fails.
//!
//! Steps are journalled by stages: a step and those after it that leave nothing of their own. That a stage is done is
//! written together with that the next has begun, before anything of the next happens: one commit, not one for each line.
//!
//! A create plan that is interrupted is always taken back, never carried on, by whoever finds it. A delete plan is
//! always carried on, from its first step. So two that work on one plan for a moment want the same.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Profile, Sandbox};
use crate::engine::{EngineError, SandboxSpec, Step};
use crate::model::{Code, Failure, Progress, SandboxKind, fault};
use crate::store::{Find, Held, Mark, PlanKind, Point, State, StoreError};
use crate::telemetry::span;

/// The longest a single step may take; dropping a large database on a busy disk takes minutes at most.
const STEP_TIMEOUT: Duration = Duration::from_secs(180);

/// One plan that is ours to carry out.
pub(super) struct Work {
    pub(super) profile: Arc<Profile>,
    pub(super) held: Held,
    pub(super) spec: SandboxSpec,
    /// Whether it makes anew what was ready.
    pub(super) anew: bool,
}

/// Why a plan stopped.
#[derive(Debug)]
pub(super) enum Broken {
    Cancelled,
    Deadline,
    StepTimeout(Step),
    Engine(EngineError),
    Store(StoreError),
    Stopped(Point),
    NotOurs,
}

impl Broken {
    /// Returns whether it is of the server's state and not of what was to be done.
    fn may_pass(&self) -> bool {
        match self {
            Self::Deadline | Self::StepTimeout(_) => true,
            Self::Engine(error) => Failure::from(error.clone()).retryable,
            Self::Cancelled | Self::Store(_) | Self::Stopped(_) | Self::NotOurs => false,
        }
    }

    /// Returns whether the server had no session left for a step.
    fn is_for_want_of_a_session(&self) -> bool {
        matches!(self, Self::Engine(EngineError::Crowded { .. }))
    }
}

impl From<StoreError> for Broken {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<EngineError> for Broken {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}

impl From<Broken> for Failure {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Cancelled => Self::new(Code::Cancelled, "the request was cancelled; everything begun was removed"),
            Broken::Deadline => Self::new(Code::CommandTimeout, "the sandbox was not ready in time")
                .hint("everything begun is removed; call again later"),
            Broken::StepTimeout(step) => {
                Self::new(Code::CommandTimeout, format!("step `{}` did not end in time", step.name))
            }
            Broken::Engine(error) => error.into(),
            Broken::Store(error) => error.into(),
            Broken::Stopped(point) => Self::new(Code::Internal, format!("stopped at `{point}`")),
            Broken::NotOurs => Self::new(
                Code::Internal,
                "a name in the metadata does not bear the profile's prefix; nothing was dropped",
            ),
        }
    }
}

impl Work {
    /// Returns the steps that make a sandbox, or make it anew.
    pub(super) fn steps(profile: &Profile, spec: &SandboxSpec, anew: bool) -> Vec<Step> {
        let steps = profile.engine.create_steps(spec.kind, &spec.contents);
        let first = anew.then(|| profile.engine.reset_step());
        first.into_iter().chain(steps).collect()
    }

    /// Makes the sandbox. If that fails or is cancelled, everything begun is taken back before this returns, or
    /// else by the next round of upkeep. One that is made anew, and that only what others do keeps from it, is let go of:
    /// upkeep makes it anew.
    pub(super) async fn make(
        &self,
        progress: &dyn Progress,
        cancel: &CancellationToken,
        deadline: Instant,
    ) -> Result<Sandbox, Failure> {
        let mut acted = Vec::new();
        let broken = match self.make_steps(progress, cancel, deadline, &mut acted).await {
            Ok(sandbox) => return Ok(sandbox),
            Err(broken) => broken,
        };
        // The last statement may have done its work though its answer was lost.
        if matches!(broken, Broken::Store(_))
            && let Ok(Some(sandbox)) = self.profile.store.find(&Find::Id(self.held.sandbox)).await
            && sandbox.state == State::Ready
        {
            return Ok(sandbox);
        }
        if self.anew && broken.may_pass() {
            self.let_go(&broken).await;
            let name = &self.spec.names.database;
            let mut failure = Failure::from(broken).hint(format!(
                "sandbox `{name}` is kept and goes on to be made anew; `list_databases` shows when it is ready"
            ));
            failure.retryable = true;
            return Err(failure);
        }
        if broken.is_for_want_of_a_session() {
            // The caller has waited for one as long as anybody does, and taking back needs one as well.
            self.let_go(&broken).await;
            let left = "what was begun is taken back in the background";
            let failure = Failure::from(broken);
            let audit = failure.audit.as_ref().map_or_else(|| left.to_owned(), |audit| format!("{audit}; {left}"));
            return Err(failure.audit(audit));
        }
        let mut failure = Failure::from(broken);
        if self.anew {
            let name = &self.spec.names.database;
            failure.hint = Some(format!("sandbox `{name}` could not be made anew and is removed; create another"));
        }
        Err(match self.take_all_back(&failure.message, &acted).await {
            Ok(()) => failure,
            Err(left) => {
                let audit = failure.audit.clone().unwrap_or_default();
                failure.audit(format!("{audit}; taking back goes on in the background: {left}"))
            }
        })
    }

    /// Makes it for what its last step does with it, and takes all of it back, whatever came of that.
    pub(super) async fn make_for_a_while(
        &self,
        purpose: &str,
        progress: &dyn Progress,
        cancel: &CancellationToken,
        deadline: Instant,
    ) -> Result<(), Failure> {
        let mut acted = Vec::new();
        let made = self.do_steps(progress, cancel, deadline, &mut acted).await.map(|_| ()).map_err(Failure::from);
        let reason = made.as_ref().map_or_else(|failure| failure.message.as_str(), |()| purpose);
        // What is left is said in the log, and upkeep sees to it.
        self.take_all_back(reason, &acted).await.unwrap_or_default();
        made
    }

    /// Takes back what was begun. Returns what keeps it from that; then the next round of upkeep does.
    async fn take_all_back(&self, reason: &str, acted: &[Step]) -> Result<(), Failure> {
        let Err(error) = self.take_back(reason).await else { return Ok(()) };
        let fenced = matches!(error, Broken::Store(StoreError::Fenced));
        let left = match self.undo_own(if fenced { acted } else { &[] }).await {
            Ok(()) => Failure::from(error),
            Err(error) => error.into(),
        };
        tracing::warn!(sandbox = %self.held.sandbox, error = %left, "taking back goes on in the background");
        Err(left)
    }

    async fn make_steps(
        &self,
        progress: &dyn Progress,
        cancel: &CancellationToken,
        deadline: Instant,
        acted: &mut Vec<Step>,
    ) -> Result<Sandbox, Broken> {
        let total = self.do_steps(progress, cancel, deadline, acted).await?;
        let finished = match self.spec.kind {
            SandboxKind::Sandbox => {
                let bytes = self.spec.contents.seen().map(|seen| seen.bytes);
                self.profile.store.finish_create(&self.held, &names(acted), bytes).await
            }
            SandboxKind::Template => self.profile.store.finish_template(&self.held, &names(acted)).await,
        };
        if !matches!(finished, Ok(_) | Err(StoreError::Fenced)) {
            // It may be written all the same: what is ready is not ours to take back.
            acted.clear();
        }
        let sandbox = finished?;
        progress.report(total, total, "ready");
        Ok(sandbox)
    }

    /// Does the steps, and returns how many they are.
    async fn do_steps(
        &self,
        progress: &dyn Progress,
        cancel: &CancellationToken,
        deadline: Instant,
        acted: &mut Vec<Step>,
    ) -> Result<u32, Broken> {
        let steps = Self::steps(&self.profile, &self.spec, self.anew);
        let total = u32::try_from(steps.len()).unwrap_or(u32::MAX);
        let mut done = 0;
        for stage in stages(&steps) {
            for (inner, step) in stage.iter().enumerate() {
                progress.report(done, total, step.label);
                done += 1;
                // Between steps only: a step that is dropped half-way may still take effect, after it was taken back.
                if cancel.is_cancelled() {
                    return Err(Broken::Cancelled);
                }
                if Instant::now() >= deadline {
                    return Err(Broken::Deadline);
                }
                if inner == 0 {
                    self.note_begun(acted, stage).await?;
                    acted.clear();
                }
                acted.push(*step);
                self.act("create", *step).await?;
            }
        }
        if cancel.is_cancelled() {
            return Err(Broken::Cancelled);
        }
        Ok(total)
    }

    /// Writes down that a stage has begun, and that the one before it is done. That the first has begun was written with
    /// the plan, unless the plan is carried on.
    async fn note_begun(&self, done: &[Step], stage: &[Step]) -> Result<(), StoreError> {
        if done.is_empty() && self.held.begun {
            return Ok(());
        }
        let done = done.iter().map(|step| (step.name, Mark::Done));
        let lines: Vec<_> = done.chain(stage.iter().map(|step| (step.name, Mark::Intent))).collect();
        self.profile.store.note(&self.held, &lines).await
    }

    /// Takes back steps of ours that are not noted as done, of a plan that somebody else has taken over meanwhile: whoever
    /// did takes it back, and may have been there before these steps had their effect.
    async fn undo_own(&self, acted: &[Step]) -> Result<(), EngineError> {
        for step in acted.iter().rev() {
            self.profile.engine.undo(*step, &self.spec).await?;
        }
        Ok(())
    }

    /// Takes a create plan back and marks the sandbox as failed. Lets go of the plan if that does not work now.
    pub(super) async fn take_back(&self, reason: &str) -> Result<(), Broken> {
        let result = self.take_back_steps(reason).await;
        if let Err(error) = &result {
            self.let_go(error).await;
        }
        result
    }

    async fn take_back_steps(&self, reason: &str) -> Result<(), Broken> {
        self.check_names()?;
        let (store, engine) = (&self.profile.store, &self.profile.engine);
        store.begin_undo(&self.held, reason).await?;
        // All that was begun, also what an earlier attempt has taken back: a killed program's statement may still run
        // on the server, and take effect after its step was found not to have been done.
        let begun = store.begun(self.held.plan).await?;
        let known = engine.known_steps();
        let begun: Vec<Option<Step>> =
            begun.iter().rev().map(|name| known.iter().find(|step| step.name == name).copied()).collect();
        if begun.contains(&None) {
            // Begun by a version with other steps: removal copes with whatever is there.
            let steps = engine.delete_steps();
            for step in steps.foreground.into_iter().chain(steps.background) {
                self.act("undo", step).await?;
            }
        }
        let mut undone = Vec::new();
        for step in begun.into_iter().flatten() {
            let mut lines: Vec<_> = undone.drain(..).map(|name| (name, Mark::Undone)).collect();
            lines.push((step.name, Mark::Undo));
            store.note(&self.held, &lines).await?;
            let point = Point::Undo(step.name);
            if self.profile.points.fails_at(point).await {
                return Err(Broken::Stopped(point));
            }
            tokio::time::timeout(fault::within(STEP_TIMEOUT), self.undo(step))
                .await
                .map_err(|_| Broken::StepTimeout(step))??;
            undone.push(step.name);
        }
        Ok(store.finish_undo(&self.held, &undone).await?)
    }

    /// Removes the sandbox. Calls `barred` once nobody can log in any more. Lets go of the plan if a step fails; it is
    /// tried again later.
    pub(super) async fn remove(&self, barred: impl FnOnce() + Send) -> Result<(), Broken> {
        if self.held.kind == PlanKind::Create {
            return self.take_back("its making was interrupted").await;
        }
        let result = self.remove_steps(barred).await;
        if let Err(error) = &result {
            self.let_go(error).await;
        }
        result
    }

    async fn remove_steps(&self, barred: impl FnOnce() + Send) -> Result<(), Broken> {
        self.check_names()?;
        let steps = self.profile.engine.delete_steps();
        let mut acted = Vec::new();
        self.remove_stages(&steps.foreground, &mut acted).await?;
        // Whoever carries the removal on begins with its first step, so nobody who waits need wait for the next line.
        barred();
        self.remove_stages(&steps.background, &mut acted).await?;
        Ok(self.profile.store.finish_delete(&self.held, &names(&acted)).await?)
    }

    /// Does steps of a removal; `acted` is what is done and not noted.
    async fn remove_stages(&self, steps: &[Step], acted: &mut Vec<Step>) -> Result<(), Broken> {
        for stage in stages(steps) {
            self.note_begun(acted, stage).await?;
            acted.clear();
            for step in stage {
                self.act("delete", *step).await?;
                acted.push(*step);
            }
        }
        Ok(())
    }

    async fn act(&self, plan: &'static str, step: Step) -> Result<(), Broken> {
        let point = Point::Step(step.name);
        if self.profile.points.fails_at(point).await {
            return Err(Broken::Stopped(point));
        }
        let span = span::step(plan, step.name);
        span.record(span::SANDBOX_ID, self.spec.id.to_string());
        let act = async {
            let outcome = tracing::Instrument::instrument(self.run(plan, step), span.clone()).await;
            outcome.inspect_err(|error| span::failed(&span, &error.clone().into()))
        };
        if step.paced {
            return Ok(act.await?);
        }
        let in_time = tokio::time::timeout(fault::within(STEP_TIMEOUT), act).await;
        in_time.map_err(|_| {
            span::failed_with(&span, Code::CommandTimeout);
            Broken::StepTimeout(step)
        })??;
        Ok(())
    }

    async fn run(&self, plan: &'static str, step: Step) -> Result<(), EngineError> {
        let injected = |injected| EngineError::injected(&injected, &self.profile.name);
        fault::pass_of(&["plan.", plan, ".", step.name, ".before"]).await.map_err(injected)?;
        self.profile.engine.run(step, &self.spec).await?;
        fault::pass_of(&["plan.", plan, ".", step.name, ".after"]).await.map_err(injected)
    }

    async fn undo(&self, step: Step) -> Result<(), EngineError> {
        let injected = |injected| EngineError::injected(&injected, &self.profile.name);
        fault::pass_of(&["plan.undo.", step.name, ".before"]).await.map_err(injected)?;
        self.profile.engine.undo(step, &self.spec).await?;
        fault::pass_of(&["plan.undo.", step.name, ".after"]).await.map_err(injected)
    }

    /// Gives the plan free for a later attempt. If that fails as well, upkeep finds it held by nobody who lives.
    async fn let_go(&self, error: &Broken) {
        if matches!(error, Broken::Store(StoreError::Fenced)) {
            return;
        }
        if let Err(lost) = self.profile.store.release(&self.held, &describe(error)).await {
            tracing::warn!(sandbox = %self.held.sandbox, error = %lost, "could not let go of a plan");
        }
    }

    /// Checks the rule under which anything is dropped: it bears the profile's prefix and the sandbox's own id.
    fn check_names(&self) -> Result<(), Broken> {
        let names = &self.spec.names;
        let prefix = format!("{}_", self.profile.settings.prefix);
        let short = self.spec.id.short();
        let ours = |name: &String| name.starts_with(&prefix) && name.contains(&short);
        let all = [&names.database, &names.owner_role, &names.readonly_role].into_iter().all(ours);
        if all { Ok(()) } else { Err(Broken::NotOurs) }
    }
}

/// Returns the first stage of a plan: the steps that are noted as begun when it is written.
pub(super) fn first_stage(steps: &[Step]) -> Vec<&'static str> {
    stages(steps).next().map(names).unwrap_or_default()
}

/// Returns the steps in groups that are noted together.
fn stages(steps: &[Step]) -> impl Iterator<Item = &[Step]> {
    steps.chunk_by(|_, next| next.inner)
}

fn names(steps: &[Step]) -> Vec<&'static str> {
    steps.iter().map(|step| step.name).collect()
}

/// Says what went wrong, for the row that people look at when a removal is stuck.
fn describe(error: &Broken) -> String {
    match error {
        Broken::Engine(EngineError::Refused { action, sqlstate, detail }) => {
            format!("the server refused to {action} (SQLSTATE {sqlstate}): {detail}")
        }
        Broken::Engine(error) => error.to_string(),
        Broken::Store(error) => error.to_string(),
        Broken::StepTimeout(step) => format!("step `{}` did not end in time", step.name),
        Broken::Stopped(point) => format!("stopped at `{point}`"),
        Broken::NotOurs => "a name does not bear the profile's prefix".to_owned(),
        Broken::Cancelled => "cancelled".to_owned(),
        Broken::Deadline => "over its deadline".to_owned(),
    }
}
