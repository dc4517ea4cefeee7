//! Keeps the house: takes back what a crash left, removes what has expired, finishes what was begun, measures, and
//! keeps those out that hold too much.
//!
//! Every round is idempotent, may run at any time and on any number of servers at once, and does the longest due
//! first; one that cannot be removed waits longer each time and holds up nothing else. Each removal is audited, and each
//! login that is taken away or given back.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;

use super::core::{OWNER_FIELD, READONLY_FIELD, removal_spec};
use super::remove::{PAGE, PAGES_MAX, REMOVALS_AT_ONCE};
use super::twins::Twins;
use super::{Core, Profile, Sandbox};
use crate::admission::{Grant, Permit, SystemAuthority, SystemReason};
use crate::engine::{Found, Standing};
use crate::model::{
    Check, CheckStatus, Code, Failure, PlanId, RequestId, SandboxKind, Timestamp, Transport, fault, settled_role,
};
use crate::secret::Sealed;
use crate::store::{After, Claimed, Damage, ListQuery, SealedPasswords, Whose};

/// How often upkeep comes round. Expired sandboxes refuse use at once; this is only how soon they are gone.
const INTERVAL: Duration = Duration::from_secs(15);
/// Rounds between two looks at everything on a server.
const ROUNDS_PER_SWEEP: u32 = 20;
/// How old a sandbox's size may be.
const MEASURED_EVERY_SECONDS: i32 = 60;
/// Sandboxes measured in one round.
const MEASURED_AT_ONCE: i64 = 50;
/// Attempts after which a removal is shown to people.
const STUCK_AFTER_ATTEMPTS: i32 = 3;
/// Clocks further apart are not merely inexact.
const CLOCKS_APART_SECONDS_MAX: u64 = 60;
/// What `doctor` tells of one kind; the rest is counted.
const TOLD_MAX: usize = 20;
/// Stuck removals shown.
const STUCK_SHOWN_MAX: i64 = 50;
/// What to do about things without a row. Records are looked for in one database only, and another's sandboxes must not
/// be dropped for it.
const REMEDY_UNTRACKED: &str = "what has no row may belong to another installation with this prefix, whose records are in another database of the \
     server: it does if `SELECT database_name FROM pgsandbox.sandboxes` in some other database names it, and then give \
     each installation a `databasePrefix` of its own; otherwise its row was removed by hand or it was not made by this \
     program: look at it, and drop it yourself";

/// Opens and closes audit entries of upkeep; wired by `app`.
#[async_trait]
pub trait UpkeepAudit: Send + Sync + 'static {
    /// Says that a sandbox is about to be removed or taken back, or its login changed. If this fails, it is not.
    async fn open(&self, permit: &Permit<()>, sandbox: &Sandbox) -> Result<(), Failure>;

    /// Says how it came out.
    async fn close(&self, permit: &Permit<()>, sandbox: &Sandbox, outcome: Result<(), &Failure>);
}

/// What metadata and server disagree on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Orphans {
    /// Bear the profile's prefix and have no row: reported, never touched.
    pub untracked: Vec<Found>,
    /// Are ready by their row, and their database is not there: an owner may drop its own.
    pub missing: Vec<Sandbox>,
    /// Could not be removed several times, with the last reason.
    pub stuck: Vec<(Sandbox, String)>,
    /// Are half made or half removed, and nobody works on them: whoever did was killed, or failed and lets it rest.
    pub waiting: Vec<Sandbox>,
    /// Have a row that this program does not leave behind: nothing is done with them.
    pub damaged: Vec<Damage>,
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
            // Each on its own, so that one that is down does not hold up the others.
            let tending = self.clone().tend(Arc::clone(profile), authority.clone(), Arc::clone(&audit));
            drop(self.spawn(tending)?);
        }
        Ok(())
    }

    async fn tend(self, profile: Arc<Profile>, authority: SystemAuthority, audit: Arc<dyn UpkeepAudit>) {
        let stopping = &self.inner().stopping;
        let mut round = 0u32;
        let mut is_first = true;
        loop {
            // A managed server that others started is looked after as well, but not before the first calls.
            let is_there = !profile.managed()
                || profile.is_open().await
                || !is_first && matches!(profile.standing().await, Ok(Standing::Runs));
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
                self.settle_logins(profile, &steward).await
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
        if round.is_multiple_of(ROUNDS_PER_SWEEP) {
            self.sweep(profile).await?;
            profile.store.tidy().await?;
            profile.engine.keep_ballast();
        }
        self.keep_watch(profile).await;
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
        let names: Vec<String> = found.iter().map(noted_name).collect();
        for sandbox in profile.store.bearing(&names).await? {
            if matches!(sandbox.state, super::State::Deleted | super::State::Failed)
                && profile.store.reopen_delete(sandbox.id, PlanId::fresh(), RequestId::fresh()).await?
            {
                tracing::warn!(sandbox = %sandbox.id, "was marked as gone and is there; it is removed again");
            }
        }
        Ok(())
    }

    /// Compares metadata and server: changes nothing, and opens the profile.
    ///
    /// # Errors
    /// `unknown_profile`, or it cannot be looked at.
    pub async fn orphans(&self, profile: &str) -> Result<Orphans, Failure> {
        let profile = self.profile(profile)?;
        self.open(&profile).await?;
        Self::compare(&profile).await
    }

    async fn compare(profile: &Profile) -> Result<Orphans, Failure> {
        let found = profile.engine.inventory(&profile.settings().prefix).await.map_err(Failure::from)?;
        let names: Vec<String> = found.iter().map(noted_name).collect();
        // Of any profile: a prefix may begin with another's.
        let tracked = profile.store.tracked(&names).await?;
        let there: BTreeSet<&String> = names.iter().collect();
        let mut missing = Vec::new();
        for kind in [SandboxKind::Sandbox, SandboxKind::Template] {
            let mut query = ListQuery { include_expired: true, kind, limit: PAGE, ..ListQuery::default() };
            for _ in 0..PAGES_MAX {
                let page = profile.store.list(&query).await?;
                let Some(last) = page.last() else { break };
                query.after = Some(After { time: last.created_at, id: last.id });
                missing.extend(page.into_iter().filter(|sandbox| {
                    sandbox.state == super::State::Ready && !there.contains(&sandbox.names.database)
                }));
            }
        }
        let stuck = profile.store.stuck(STUCK_AFTER_ATTEMPTS, STUCK_SHOWN_MAX).await?;
        let waiting = profile.store.waiting(STUCK_AFTER_ATTEMPTS, STUCK_SHOWN_MAX).await?;
        let untracked = found.into_iter().filter(|found| !tracked.contains(&noted_name(found))).collect();
        let damaged = profile.store.damage().await?;
        Ok(Orphans { untracked, missing, stuck, waiting, damaged })
    }

    /// Checks every profile for `doctor`: looks, and starts nothing. Where a server answers, it is compared with its
    /// metadata, and both with the keys.
    pub async fn health(&self) -> Vec<(String, Vec<Check>)> {
        let mut all = Vec::with_capacity(self.profiles().len());
        let mut twins = Twins::default();
        for profile in self.profiles() {
            let mut checks = profile.engine.health().await;
            let answers = |check: &Check| matches!(check.status, CheckStatus::Ok | CheckStatus::Warn);
            if checks.iter().all(answers) {
                checks.extend(twins.meet(profile).await);
            }
            if profile.is_open().await || checks.iter().all(answers) {
                match profile.store.look().await {
                    Ok(true) => {
                        checks.push(Self::consistency(profile).await);
                        checks.push(self.usable(profile).await);
                        checks.push(Self::clocks_agree(profile).await);
                        checks.push(super::checks::expired(profile).await);
                        checks.push(super::checks::drift(profile).await);
                    }
                    // Nothing was made on this server yet, or it is an earlier program's: the first use sees to it.
                    Ok(false) => {}
                    Err(error) => checks.push(failed("metadata.schema", error.into())),
                }
            }
            all.push((profile.name().to_owned(), checks));
        }
        all
    }

    async fn consistency(profile: &Profile) -> Check {
        let name = "sandboxes.consistent".to_owned();
        match Self::compare(profile).await {
            Err(failure) => failed(&name, failure),
            Ok(orphans) if orphans == Orphans::default() => {
                let detail = "metadata and server agree".to_owned();
                Check { name, status: CheckStatus::Ok, detail, remedy: None }
            }
            Ok(Orphans { untracked, missing, stuck, waiting, damaged }) => {
                let remedies = [
                    (!untracked.is_empty()).then_some(REMEDY_UNTRACKED),
                    (!missing.is_empty()).then_some("delete sandboxes whose database is gone"),
                    (!damaged.is_empty()).then_some(
                        "put rows that were changed right in `pgsandbox.sandboxes`; until then nothing is done with them",
                    ),
                    (!waiting.is_empty()).then_some(
                        "what waits is removed by a server that runs, by the next command that uses the profile, or by deleting it",
                    ),
                    (!stuck.is_empty()).then_some("see to what cannot be removed; it is tried again"),
                ];
                let remedy = remedies.into_iter().flatten().collect::<Vec<_>>().join("; ");
                let shown: Vec<String> = damaged
                    .iter()
                    .map(|row| format!("the row of sandbox {} was changed by another: {}", row.id, row.fault))
                    .chain(untracked.iter().map(|found| format!("{} `{}` has no row", found.kind, found.name)))
                    .chain(
                        missing.iter().map(|sandbox| format!("the database of `{}` is gone", sandbox.names.database)),
                    )
                    .chain(stuck.iter().map(|(s, why)| format!("`{}` cannot be removed: {why}", s.names.database)))
                    .chain(
                        waiting.iter().map(|s| {
                            format!("`{}` waits to be removed, its {} broke off", s.names.database, half_way(s))
                        }),
                    )
                    .collect();
                Check { name, status: CheckStatus::Warn, detail: joined(&shown), remedy: Some(remedy) }
            }
        }
    }

    async fn clocks_agree(profile: &Profile) -> Check {
        let name = "clock.agrees".to_owned();
        match profile.store.clock().await {
            Err(error) => failed(&name, error.into()),
            Ok(server) => {
                let apart_seconds = server.ms_since(Timestamp::now()).unsigned_abs() / 1000;
                let agree = apart_seconds <= CLOCKS_APART_SECONDS_MAX;
                let status = if agree { CheckStatus::Ok } else { CheckStatus::Warn };
                let detail = format!("the server's clock and this machine's are {apart_seconds} s apart");
                let remedy = "set both clocks right: a sandbox's time is over by the server's";
                Check { name, status, detail, remedy: (!agree).then(|| remedy.to_owned()) }
            }
        }
    }

    /// Checks that each sandbox is of an engine that is there, and that its passwords open: the ring has their keys, and
    /// they are its own.
    async fn usable(&self, profile: &Profile) -> Check {
        let name = "sandboxes.usable";
        let mut query = ListQuery { include_expired: true, limit: PAGE, ..ListQuery::default() };
        let (mut count, mut faults) = (0, Vec::new());
        for _ in 0..PAGES_MAX {
            let page = match profile.store.list(&query).await {
                Ok(page) => page,
                Err(error) => return failed(name, error.into()),
            };
            let Some(last) = page.last() else { break };
            query.after = Some(After { time: last.created_at, id: last.id });
            for sandbox in &page {
                count += 1;
                let fault = match profile.check_engine(sandbox) {
                    Ok(()) => self.spec(profile, sandbox).await.err(),
                    Err(failure) => Some(failure),
                };
                // One that was removed since the page was read is none.
                if let Some(failure) = fault.filter(|failure| failure.code != Code::DatabaseNotFound) {
                    faults.push(format!("sandbox {}: {}", sandbox.id, failure.message));
                }
            }
        }
        if faults.is_empty() {
            let detail = format!("the passwords of {count} sandboxes open");
            return Check { name: name.to_owned(), status: CheckStatus::Ok, detail, remedy: None };
        }
        let remedy = "bring back the key file `master.keys` that they were sealed with; what was changed in the metadata \
                      cannot be used any more, only deleted";
        let detail = joined(&faults);
        Check { name: name.to_owned(), status: CheckStatus::Fail, detail, remedy: Some(remedy.to_owned()) }
    }

    /// Makes a new key, and seals the passwords of every live sandbox with it. Returns how many were sealed again.
    ///
    /// # Errors
    /// Fails if the permit is not the program's own, or a profile cannot be looked at; then it may be called again.
    pub async fn rotate_keys<T>(&self, permit: &Permit<T>) -> Result<u64, Failure> {
        if permit.grant().principal.transport != Transport::Internal {
            return Err(Failure::new(Code::Internal, "keys are rotated under the program's own permit only"));
        }
        self.inner().keys.rotate().await?;
        let (mut count, mut left) = (0, Vec::new());
        for profile in self.profiles() {
            self.open(profile).await?;
            let mut query = ListQuery { include_expired: true, limit: PAGE, ..ListQuery::default() };
            loop {
                let page = profile.store.list(&query).await?;
                let Some(last) = page.last() else { break };
                query.after = Some(After { time: last.created_at, id: last.id });
                for sandbox in &page {
                    match self.reseal(profile, sandbox).await {
                        Ok(sealed) => count += u64::from(sealed),
                        // One whose key is lost, or whose row was edited, does not keep the rest from the new key.
                        Err(failure) if !failure.retryable => left.push(failure),
                        Err(failure) => return Err(failure),
                    }
                }
            }
        }
        match left.into_iter().next() {
            None => Ok(count),
            Some(mut first) => {
                first.message =
                    format!("{count} sandboxes were sealed with the new key, and not all: {}", first.message);
                Err(first)
            }
        }
    }

    async fn reseal(&self, profile: &Profile, sandbox: &Sandbox) -> Result<bool, Failure> {
        let Some(old) = profile.store.passwords(sandbox.id).await? else { return Ok(false) };
        let keys = &self.inner().keys;
        let reseal = async |field, bytes: &[u8]| {
            let sealed = keys.reseal(sandbox.id, field, &Sealed::from_bytes(bytes.to_vec())).await?;
            Ok::<_, Failure>(sealed.map_or_else(|| bytes.to_vec(), Sealed::into_bytes))
        };
        let owner = reseal(OWNER_FIELD, &old.owner).await?;
        let readonly = reseal(READONLY_FIELD, &old.readonly).await?;
        let new = SealedPasswords { owner, readonly };
        if new == old {
            return Ok(false);
        }
        Ok(profile.store.replace_passwords(sandbox.id, &old, &new).await?)
    }
}

/// Returns what broke off.
fn half_way(sandbox: &Sandbox) -> &'static str {
    if sandbox.state == super::State::Creating { "making" } else { "removal" }
}

/// Returns the name under which what was found is noted, if it is ours: a role has others while its database is filled.
fn noted_name(found: &Found) -> String {
    let settled = if found.kind == "role" { settled_role(&found.name) } else { None };
    settled.unwrap_or_else(|| found.name.clone())
}

/// Tells what was found, up to a bound.
fn joined(found: &[String]) -> String {
    let told = found.get(..TOLD_MAX).unwrap_or(found).join("; ");
    match found.len().saturating_sub(TOLD_MAX) {
        0 => told,
        more => format!("{told}; and {more} more"),
    }
}

pub(super) fn failed(name: &str, failure: Failure) -> Check {
    Check { name: name.to_owned(), status: CheckStatus::Fail, detail: failure.message, remedy: failure.hint }
}

impl Steward {
    pub(super) fn permit(&self, reason: SystemReason) -> Permit<()> {
        self.authority.permit(reason, RequestId::fresh(), Timestamp::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_can_be_read_is_counted() {
        let told = |count: usize| joined(&(0..count).map(|n| format!("n{n}")).collect::<Vec<_>>());
        assert_eq!(told(0), "");
        for count in [TOLD_MAX - 1, TOLD_MAX] {
            assert!(told(count).ends_with(&format!("; n{}", count - 1)), "{}", told(count));
        }
        assert!(told(TOLD_MAX + 1).ends_with("; n19; and 1 more"), "{}", told(TOLD_MAX + 1));
    }
}
