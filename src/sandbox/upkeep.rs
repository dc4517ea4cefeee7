//! Keeps the house: takes back what a crash left, removes what has expired, finishes what was begun, measures, and
//! keeps those out that hold too much.
//!
//! Every round is idempotent, may run at any time and on any number of servers at once, and does the longest due
//! first; one that cannot be removed waits longer each time and holds up nothing else. Each removal is audited, and each
//! login that is taken away or given back.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;

use super::core::removal_spec;
use super::remove::{PAGE, PAGES_MAX, REMOVALS_AT_ONCE};
use super::room::{parts_crowds, relieves_others, runs};
use super::{Core, Profile, Sandbox};
use crate::admission::{Grant, Permit, SystemAuthority, SystemReason};
use crate::engine::Standing;
use crate::model::{Failure, PlanId, RequestId, Timestamp, fault};
use crate::store::{After, Claimed, ListQuery, Whose};

/// How often upkeep comes round. Expired sandboxes refuse use at once; this is only how soon they are gone.
const INTERVAL: Duration = Duration::from_secs(15);
/// Rounds between two looks at everything on a server.
const ROUNDS_PER_SWEEP: u32 = 20;
/// How old a sandbox's size may be.
const MEASURED_EVERY_SECONDS: i32 = 60;
/// Sandboxes measured in one round.
const MEASURED_AT_ONCE: i64 = 50;
/// Opens and closes audit entries of upkeep; wired by `app`.
#[async_trait]
pub trait UpkeepAudit: Send + Sync + 'static {
    /// Says that a sandbox is about to be removed or taken back, or its login changed. If this fails, it is not.
    async fn open(&self, permit: &Permit<()>, sandbox: &Sandbox) -> Result<(), Failure>;

    /// Says how it came out.
    async fn close(&self, permit: &Permit<()>, sandbox: &Sandbox, outcome: Result<(), &Failure>);
}

/// What became of the sandboxes and templates whose time was over, by the names of their databases.
#[derive(Clone, Debug, Default)]
pub struct Reaped {
    /// They are gone.
    pub removed: Vec<String>,
    /// They could not be removed now, and are tried again.
    pub failed: Vec<(String, Failure)>,
}

/// How a round of upkeep went on one profile.
#[derive(Debug)]
pub struct UpkeptProfile {
    /// The profile.
    pub profile: String,
    /// What was removed; `None` where its server does not run.
    pub outcome: Result<Option<Reaped>, Failure>,
}

/// The right to act and the place where it is recorded.
#[derive(Clone)]
pub(super) struct Steward {
    authority: SystemAuthority,
    pub(super) audit: Arc<dyn UpkeepAudit>,
}

impl Core {
    /// Starts upkeep, which runs until [`Core::drain`]. A managed server that nobody uses is not started for it.
    ///
    /// # Errors
    /// Fails if the core is about to stop.
    pub fn start_upkeep(&self, authority: SystemAuthority, audit: Arc<dyn UpkeepAudit>) -> Result<(), Failure> {
        for profile in self.profiles() {
            if profile.managed() {
                // Beside the rounds of upkeep, which may wait themselves for the room that is to be made.
                drop(self.spawn(self.clone().watch(Arc::clone(profile)))?);
            }
            // Also where a round hangs, for a removal that somebody holds up for instance.
            let steward = Steward { authority: authority.clone(), audit: Arc::clone(&audit) };
            drop(self.spawn(self.clone().hold_the_disk_in_time(Arc::clone(profile), steward))?);
            // Each on its own, so that one that is down does not hold up the others.
            let tending = self.clone().tend(Arc::clone(profile), authority.clone(), Arc::clone(&audit));
            drop(self.spawn(tending)?);
        }
        Ok(())
    }

    async fn watch(self, profile: Arc<Profile>) {
        self.inner().stopping.run_until_cancelled(relieves_others(&profile)).await;
    }

    /// Sees to it, as long as a program works that makes one call, that no owner has every connection of a managed server.
    ///
    /// # Errors
    /// Fails if the core is about to stop.
    pub fn watch_crowds(&self) -> Result<(), Failure> {
        for profile in self.profiles().iter().filter(|profile| profile.managed()) {
            let (core, profile) = (self.clone(), Arc::clone(profile));
            drop(self.spawn(async move {
                core.inner().stopping.run_until_cancelled(parts_crowds(&profile)).await;
            })?);
        }
        Ok(())
    }

    async fn tend(self, profile: Arc<Profile>, authority: SystemAuthority, audit: Arc<dyn UpkeepAudit>) {
        let stopping = &self.inner().stopping;
        let mut round = 0u32;
        let mut is_first = true;
        loop {
            // A managed server that others started is looked after as well, but not before the first calls.
            let is_there = profile.is_open().await || !is_first && runs(&profile).await || !profile.managed();
            is_first = false;
            if is_there {
                if let Err(failure) = self.upkeep(&profile, &authority, &audit, round).await {
                    self.relieve_after(&failure).await;
                    tracing::warn!(profile = profile.name(), %failure, audit = ?failure.audit, "upkeep failed");
                }
                round = round.wrapping_add(1);
            }
            let pause = async {
                tokio::select! {
                    () = tokio::time::sleep(fault::every(INTERVAL)) => {}
                    () = self.inner().opened.notified() => {}
                }
            };
            if stopping.run_until_cancelled(pause).await.is_none() {
                return;
            }
        }
    }

    /// Does what a program that ends after one call owes to those who come after it, on the profiles it has used: where
    /// no server runs nobody else does. What programs that died left half made or half removed is worked off, whoever
    /// they worked for, sizes that were not measured lately are measured, and the logins that are due are changed. What
    /// is past its time stays until somebody cleans up; what fails is left to the next.
    pub async fn settle(&self, authority: &SystemAuthority, audit: &Arc<dyn UpkeepAudit>) {
        let steward = Steward { authority: authority.clone(), audit: Arc::clone(audit) };
        for profile in self.profiles() {
            if !profile.is_open().await {
                continue;
            }
            let settled = async {
                self.sweep(profile).await?;
                self.recover(profile, Whose::Anybodys, Some(&steward)).await?;
                self.measure(profile).await?;
                self.settle_logins(profile, &steward).await.map(drop)
            };
            if let Err(failure) = settled.await {
                tracing::debug!(profile = profile.name(), %failure, audit = ?failure.audit, "not everything could be settled");
            }
        }
    }

    /// Does one round of upkeep on one profile.
    ///
    /// # Errors
    /// Fails if the profile cannot be opened or its metadata not be read; a sandbox that cannot be removed is no failure.
    pub async fn upkeep(
        &self,
        profile: &Arc<Profile>,
        authority: &SystemAuthority,
        audit: &Arc<dyn UpkeepAudit>,
        round: u32,
    ) -> Result<Reaped, Failure> {
        self.open(profile).await?;
        let steward = Steward { authority: authority.clone(), audit: Arc::clone(audit) };
        if let Err(failure) = self.hold_the_disk(profile, &steward).await {
            // What is removed further on makes room as well.
            tracing::warn!(profile = profile.name(), %failure, audit = ?failure.audit, "not all could be kept out of the disk");
        }
        if round.is_multiple_of(ROUNDS_PER_SWEEP) {
            self.sweep(profile).await?;
            profile.store.tidy().await?;
            profile.engine.keep_ballast();
        }
        self.keep_watch(profile).await?;
        // Also of those that were killed since the last round.
        profile.engine.sweep_copies().await;
        self.recover(profile, Whose::Anybodys, Some(&steward)).await?;
        let reaped = self.reap_expired(profile, &steward).await?;
        self.measure(profile).await?;
        self.settle_logins(profile, &steward).await?;
        self.inner().pool.close_stale();
        Ok(reaped)
    }

    /// Does one round of upkeep on every profile whose server runs, as a program does that stays: for where none does. A managed
    /// server is not started for it.
    pub async fn upkeep_once(&self, authority: &SystemAuthority, audit: &Arc<dyn UpkeepAudit>) -> Vec<UpkeptProfile> {
        let mut upkept = Vec::new();
        for profile in self.profiles() {
            let outcome = match profile.managed() {
                true => profile.standing().await.map(Some),
                false => Ok(None),
            };
            let outcome = match outcome {
                Ok(Some(Standing::Unmade | Standing::Stopped)) => Ok(None),
                Ok(Some(Standing::Runs) | None) => self.upkeep(profile, authority, audit, 0).await.map(Some),
                Err(failure) => Err(failure),
            };
            upkept.push(UpkeptProfile { profile: profile.name().to_owned(), outcome });
        }
        upkept
    }

    /// Works off plans that are due and that nobody works on, of those that are meant. Returns those that failed.
    pub(super) async fn recover(
        &self,
        profile: &Arc<Profile>,
        whose: Whose<'_>,
        steward: Option<&Steward>,
    ) -> Result<Vec<(Sandbox, Failure)>, Failure> {
        let mut failures = Vec::new();
        for _ in 0..PAGES_MAX {
            let claimed = profile.store.claim(&self.running(), whose, i64::try_from(PAGE).unwrap_or(i64::MAX)).await?;
            if claimed.is_empty() {
                break;
            }
            let running: Vec<_> = claimed.into_iter().map(|claimed| (self.enter(claimed.held.plan), claimed)).collect();
            let mut ended = futures_util::stream::iter(running)
                .map(|(guard, claimed)| {
                    let (core, profile, steward) = (self.clone(), Arc::clone(profile), steward.cloned());
                    let sandbox = claimed.sandbox.clone();
                    async move {
                        let result = core
                            .clone()
                            .detached(async move {
                                let _guard = guard;
                                core.recover_one(&profile, claimed, steward.as_ref()).await
                            })
                            .await;
                        (sandbox, result)
                    }
                })
                .buffer_unordered(REMOVALS_AT_ONCE);
            while let Some((sandbox, result)) = ended.next().await {
                if let Err(failure) = result {
                    tracing::warn!(sandbox = %sandbox.id, %failure, audit = ?failure.audit, "could not be removed now");
                    failures.push((sandbox, failure));
                }
            }
        }
        Ok(failures)
    }

    /// Takes up the plan of one sandbox, if it is due and nobody works on it. Returns whether it did; then something
    /// was done for the grant's call.
    pub(super) async fn recover_sandbox(
        &self,
        profile: &Arc<Profile>,
        whose: Whose<'_>,
        grant: &Grant,
    ) -> Result<bool, Failure> {
        let claimed = profile.store.claim(&self.running(), whose, 1).await?;
        let found = !claimed.is_empty();
        for claimed in claimed {
            grant.course.acts();
            let _running = self.enter(claimed.held.plan);
            match whose {
                Whose::Removed(_) => {
                    self.carry_out_removal(profile, claimed.held, &claimed.sandbox, || {}).await?;
                }
                Whose::Sandbox(_) | Whose::Anybodys | Whose::Owners(..) => {
                    self.recover_one(profile, claimed, None).await?;
                }
            }
        }
        Ok(found)
    }

    async fn recover_one(
        &self,
        profile: &Arc<Profile>,
        claimed: Claimed,
        steward: Option<&Steward>,
    ) -> Result<(), Failure> {
        let (held, sandbox) = (claimed.held, claimed.sandbox.clone());
        tracing::info!(sandbox = %sandbox.id, attempts = claimed.attempts, "takes up an unfinished plan");
        let work = async {
            if self.carry_reset_on(profile, &claimed).await? {
                return Ok(());
            }
            self.carry_out_removal(profile, held, &sandbox, || {}).await
        };
        match steward {
            None => work.await,
            Some(steward) => {
                let permit = steward.permit(SystemReason::Recovery);
                if let Err(failure) = steward.audit.open(&permit, &sandbox).await {
                    profile.store.release(&held, &failure.message).await?;
                    return Err(failure);
                }
                let outcome = work.await;
                steward.audit.close(&permit, &sandbox, outcome.as_ref().copied()).await;
                outcome
            }
        }
    }

    async fn reap_expired(&self, profile: &Arc<Profile>, steward: &Steward) -> Result<Reaped, Failure> {
        let clock = profile.store.clock().await?;
        if let Some(left) = profile.clock.doubts(clock, std::time::Instant::now(), Timestamp::now()) {
            tracing::warn!(
                profile = profile.name(), server_clock = %clock, seconds_left = left.as_secs(),
                "the server's clock has jumped ahead; for a while nothing is removed for its time"
            );
            return Ok(Reaped::default());
        }
        let reaped = std::sync::Mutex::new(Reaped::default());
        let mut query = ListQuery { limit: PAGE, ..ListQuery::default() };
        for _ in 0..PAGES_MAX {
            let page = profile.store.expired(&query).await?;
            let Some(last) = page.last() else { break };
            query.after = Some(After { time: last.expires_at, id: last.id });
            futures_util::stream::iter(page)
                .for_each_concurrent(REMOVALS_AT_ONCE, |sandbox| async {
                    let (id, name) = (sandbox.id, sandbox.names.database.clone());
                    let outcome = self.reap_one(profile, sandbox, steward).await;
                    let mut reaped = reaped.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    match outcome {
                        Ok(()) => reaped.removed.push(name),
                        Err(failure) => {
                            tracing::warn!(sandbox = %id, %failure, audit = ?failure.audit, "could not be removed now");
                            reaped.failed.push((name, failure));
                        }
                    }
                })
                .await;
        }
        Ok(reaped.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    async fn reap_one(&self, profile: &Arc<Profile>, sandbox: Sandbox, steward: &Steward) -> Result<(), Failure> {
        let permit = steward.permit(SystemReason::Reaper);
        steward.audit.open(&permit, &sandbox).await?;
        let outcome = self.reap(profile, sandbox.clone(), permit.grant()).await;
        steward.audit.close(&permit, &sandbox, outcome.as_ref().copied()).await;
        outcome
    }

    async fn measure(&self, profile: &Profile) -> Result<(), Failure> {
        for sandbox in profile.store.unmeasured(MEASURED_EVERY_SECONDS, MEASURED_AT_ONCE).await? {
            // One that cannot be measured, since its owner dropped it for instance, keeps its last size.
            let bytes = profile.engine.measure(&removal_spec(&sandbox)).await.ok();
            profile.store.measured(sandbox.id, bytes).await?;
        }
        Ok(())
    }

    /// Opens the removal of what is marked as gone and is there all the same: a step that took effect after it was
    /// given up, for instance. What has no row is left alone.
    async fn sweep(&self, profile: &Profile) -> Result<(), Failure> {
        let found = profile.engine.inventory(&profile.settings().prefix).await.map_err(Failure::from)?;
        let names: Vec<String> = found.iter().map(super::orphans::noted_name).collect();
        for sandbox in profile.store.bearing(&names).await? {
            if matches!(sandbox.state, super::State::Deleted | super::State::Failed)
                && profile.store.reopen_delete(sandbox.id, PlanId::fresh(), RequestId::fresh()).await?
            {
                tracing::warn!(sandbox = %sandbox.id, "was marked as gone and is there; it is removed again");
            }
        }
        Ok(())
    }
}

impl Steward {
    pub(super) fn permit(&self, reason: SystemReason) -> Permit<()> {
        self.authority.permit(reason, RequestId::fresh(), Timestamp::now())
    }
}
