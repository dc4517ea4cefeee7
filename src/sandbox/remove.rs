//! Removes sandboxes: one that is named, or those whose time is over.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::core::{removal_spec, require, store_failure};
use super::find::Version;
use super::work::{Work, first_stage};
use super::{Core, Profile, ProfileFailure, Sandbox, State, not_found};
use crate::admission::{Grant, Permit};
use crate::model::{Code, Failure, Impact, PlanId, SandboxId};
use crate::store::{After, BeginDelete, Find, Held, ListQuery, Whose};

/// How often a waiting caller looks whether another server has removed the sandbox.
const REMOVAL_POLL: Duration = Duration::from_millis(50);
/// Removals carried out at once: more only wait for the same disk, and one that hangs must not hold up the rest.
pub(super) const REMOVALS_AT_ONCE: usize = 4;
/// Expired sandboxes read at once.
pub(super) const PAGE: usize = 100;
/// Pages of one cleanup; what is left over is for the next.
pub(super) const PAGES_MAX: usize = 100;

/// A sandbox on its way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deleted {
    /// The sandbox.
    pub sandbox: Sandbox,
    /// [`State::Deleted`] only once database and roles are gone; else [`State::Deleting`].
    pub state: State,
}

/// Which expired sandboxes are cleaned up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CleanupFilter {
    /// Only of this profile.
    pub profile: Option<String>,
    /// Only on this version; `*` or nothing for all.
    pub postgres_version: Option<String>,
    /// Only of this authenticated owner.
    pub owner: Option<String>,
    /// Only of this group owner.
    pub group_owner: Option<String>,
    /// Only those that bear all of these labels.
    pub labels: Vec<(String, String)>,
}

/// What a cleanup did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CleanupReport {
    /// The profiles that were looked at.
    pub profiles: Vec<String>,
    /// Expired sandboxes, the longest expired first.
    pub selected: Vec<Sandbox>,
    /// Those of them that are gone.
    pub deleted: Vec<SandboxId>,
    /// Those that are not, and why; they are tried again.
    pub failures: Vec<CleanupFailure>,
    /// Profiles that could not be looked at.
    pub profile_failures: Vec<ProfileFailure>,
}

/// A sandbox that could not be removed now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CleanupFailure {
    /// The sandbox.
    pub sandbox: Sandbox,
    /// Why.
    pub failure: Failure,
}

/// What became of one removal.
pub(super) enum Removal {
    /// Gone, by us or somebody else.
    Gone(Sandbox),
    /// Was extended before we came.
    NotExpired,
    /// Somebody else is at it.
    Theirs(Sandbox),
}

impl Core {
    /// Removes a sandbox. Answers once nobody can log in any more; with `wait`, once it is gone or that time is over.
    /// A sandbox that is being removed already is removed by whoever began.
    ///
    /// # Errors
    /// `database_not_found`, `sandbox_not_ready` while it is being made, or the first steps failed: then it is
    /// marked for removal, and tried again.
    pub async fn delete<T>(
        &self,
        permit: &Permit<T>,
        id: SandboxId,
        wait: Option<Duration>,
    ) -> Result<Deleted, Failure> {
        let looked = async {
            require(permit, Impact::Destroys, Some(id))?;
            self.locate(permit, id).await
        };
        let grant = permit.grant().clone();
        let (profile, sandbox) = grant.course.refusing(looked.await)?;
        let started = Instant::now();
        let (barred_sender, mut barred) = oneshot::channel();
        let core = self.clone();
        let for_task = Arc::clone(&profile);
        let for_removal = grant.clone();
        let task = self.spawn(async move {
            core.remove(&for_task, id, &for_removal, false, move || {
                // The caller may have left.
                barred_sender.send(()).ok();
            })
            .await
        });
        let mut task = grant.course.refusing(task)?;
        let removal = tokio::select! {
            biased;
            ended = &mut task => ended,
            Ok(()) = &mut barred => {
                let Some(wait) = wait else { return Ok(Deleted { sandbox, state: State::Deleting }) };
                match tokio::time::timeout_at(started + wait, task).await {
                    Ok(ended) => ended,
                    Err(_) => return Ok(Deleted { sandbox, state: State::Deleting }),
                }
            }
        };
        let removal = removal.map_err(|error| {
            Failure::new(Code::Internal, "the removal broke off; it is tried again").audit(error.to_string())
        })?;
        match removal {
            Ok(Removal::Gone(sandbox)) => Ok(Deleted { sandbox, state: State::Deleted }),
            Ok(Removal::Theirs(sandbox)) => {
                let state = match wait {
                    Some(wait) => await_removal(&profile, id, started + wait).await?,
                    None => State::Deleting,
                };
                Ok(Deleted { sandbox, state })
            }
            // Not asked for here.
            Ok(Removal::NotExpired) => Ok(Deleted { sandbox, state: State::Ready }),
            // Nobody can log in any more, which is all that this caller waits for; the rest is tried again.
            Err(_) if wait.is_none() && barred.try_recv().is_ok() => Ok(Deleted { sandbox, state: State::Deleting }),
            Err(failure) => Err(failure),
        }
    }

    /// Removes what has expired, the longest expired first; with `dry_run`, only says what that would be.
    /// One that cannot be removed does not keep the rest from it.
    ///
    /// # Errors
    /// `unknown_profile`, or no profile could be looked at.
    pub async fn cleanup<T>(
        &self,
        permit: &Permit<T>,
        filter: &CleanupFilter,
        dry_run: bool,
    ) -> Result<CleanupReport, Failure> {
        let grant = permit.grant();
        let course = &grant.course;
        course.refusing(require(permit, Impact::Destroys, None))?;
        let mut report = CleanupReport::default();
        let scope = course.refusing(self.in_scope(filter.profile.as_deref(), filter.postgres_version.as_deref()))?;
        for profile in scope {
            report.profiles.push(profile.name().to_owned());
            if let Err(failure) = self.cleanup_profile(&profile, filter, dry_run, grant, &mut report).await {
                report.profile_failures.push(ProfileFailure { profile: profile.name().to_owned(), failure });
            }
        }
        match report.profile_failures.first() {
            Some(first) if report.profile_failures.len() == report.profiles.len() => {
                course.refusing(Err(first.failure.clone()))
            }
            Some(_) | None => Ok(report),
        }
    }

    /// Says what [`Core::cleanup`] would refuse with before it looks anywhere.
    ///
    /// # Errors
    /// Fails as the cleanup would.
    pub fn foresee_cleanup(&self, filter: &CleanupFilter) -> Result<(), Failure> {
        self.in_scope(filter.profile.as_deref(), filter.postgres_version.as_deref()).map(|_| ())
    }

    async fn cleanup_profile(
        &self,
        profile: &Arc<Profile>,
        filter: &CleanupFilter,
        dry_run: bool,
        grant: &Grant,
        report: &mut CleanupReport,
    ) -> Result<(), Failure> {
        self.open(profile).await?;
        if !Version::parse(filter.postgres_version.as_deref())?.may_fit(profile) {
            return Ok(());
        }
        if !dry_run {
            grant.course.acts();
        }
        let mut query = ListQuery {
            owner: filter.owner.clone(),
            group_owner: filter.group_owner.clone(),
            labels: filter.labels.clone(),
            limit: PAGE,
            ..ListQuery::default()
        };
        for _ in 0..PAGES_MAX {
            let page = profile.store.expired(&query).await?;
            let Some(last) = page.last() else { break };
            query.after = Some(After { time: last.expires_at, id: last.id });
            report.selected.extend(page.iter().cloned());
            if !dry_run {
                let mut ended = futures_util::stream::iter(page)
                    .map(|sandbox| self.remove_expired(profile, sandbox, grant))
                    .buffered(REMOVALS_AT_ONCE);
                while let Some((sandbox, removal)) = ended.next().await {
                    match removal {
                        Ok(Removal::Gone(sandbox)) => report.deleted.push(sandbox.id),
                        Ok(Removal::NotExpired | Removal::Theirs(_)) => {}
                        Err(failure) => report.failures.push(CleanupFailure { sandbox, failure }),
                    }
                }
            }
        }
        // Whoever cleans up also finishes what a killed program left half done, of the sandboxes that are meant: often there
        // is no server that would.
        let whose = match &filter.owner {
            Some(owner) => Some(Whose::Owners(owner, filter.group_owner.as_deref())),
            None if filter.group_owner.is_none() => Some(Whose::Anybodys),
            None => None,
        };
        if let Some(whose) = whose.filter(|_| !dry_run && filter.labels.is_empty()) {
            for (sandbox, failure) in self.recover(profile, whose, None).await? {
                report.failures.push(CleanupFailure { sandbox, failure });
            }
        }
        Ok(())
    }

    async fn remove_expired(
        &self,
        profile: &Arc<Profile>,
        sandbox: Sandbox,
        grant: &Grant,
    ) -> (Sandbox, Result<Removal, Failure>) {
        let (core, for_task, id) = (self.clone(), Arc::clone(profile), sandbox.id);
        let grant = grant.clone();
        let removal = self.detached(async move { core.remove(&for_task, id, &grant, true, || {}).await }).await;
        (sandbox, removal)
    }

    /// Removes an expired sandbox; says whether it is gone.
    pub(super) async fn reap(&self, profile: &Arc<Profile>, sandbox: Sandbox, grant: &Grant) -> Result<(), Failure> {
        self.remove_expired(profile, sandbox, grant).await.1.map(drop)
    }

    /// Removes a sandbox, or finds it gone, in the making or in other hands; says of the grant's call whether anything is done for it.
    pub(super) async fn remove(
        &self,
        profile: &Arc<Profile>,
        id: SandboxId,
        grant: &Grant,
        only_expired: bool,
        barred: impl FnOnce() + Send,
    ) -> Result<Removal, Failure> {
        self.inner().decided.forget(id);
        let plan = PlanId::fresh();
        let _running = self.enter(plan);
        let steps = profile.engine.delete_steps();
        let first = first_stage(&[steps.foreground, steps.background].concat());
        let begun = profile
            .store
            .begin_delete(id, plan, grant.request_id, only_expired, &self.running(), &first)
            .await
            .map_err(store_failure)?;
        match begun {
            BeginDelete::Ours(held, sandbox) => {
                grant.course.acts();
                grant.course.is_about(id);
                self.carry_out_removal(profile, held, &sandbox, barred).await?;
                Ok(Removal::Gone(sandbox))
            }
            BeginDelete::Theirs(sandbox) => Ok(Removal::Theirs(sandbox)),
            BeginDelete::NotExpired(_) => Ok(Removal::NotExpired),
            // Whoever made it may have been killed.
            BeginDelete::Creating(sandbox) if self.recover_sandbox(profile, Whose::Removed(id), grant).await? => {
                Ok(Removal::Gone(sandbox))
            }
            BeginDelete::Creating(sandbox) => grant.course.refusing(Err(Failure::new(
                Code::SandboxNotReady,
                format!("sandbox `{}` is still being made", sandbox.names.database),
            )
            .hint("cancel its making, or call again"))),
            BeginDelete::Gone => grant.course.refusing(Err(not_found())),
        }
    }

    /// Works off a plan that is ours: a removal, or a creation that was interrupted.
    pub(super) async fn carry_out_removal(
        &self,
        profile: &Arc<Profile>,
        held: Held,
        sandbox: &Sandbox,
        barred: impl FnOnce() + Send,
    ) -> Result<(), Failure> {
        let _running = self.enter(held.plan);
        self.inner().pool.close(sandbox.id);
        if let Err(failure) = profile.check_engine(sandbox) {
            profile.store.release(&held, &failure.message).await?;
            return Err(failure);
        }
        let work = Work { profile: Arc::clone(profile), held, spec: removal_spec(sandbox), anew: false };
        work.remove(barred).await.map_err(|broken| {
            let mut failure = Failure::from(broken);
            failure.hint.get_or_insert_with(|| "it is marked for removal, and tried again".to_owned());
            failure.retryable = true;
            failure
        })
    }
}

/// Waits for somebody else's removal.
async fn await_removal(profile: &Profile, id: SandboxId, until: Instant) -> Result<State, Failure> {
    loop {
        match profile.store.find(&Find::Id(id)).await? {
            Some(sandbox) if sandbox.state == State::Deleting => {}
            Some(_) | None => return Ok(State::Deleted),
        }
        if Instant::now() >= until {
            return Ok(State::Deleting);
        }
        tokio::time::sleep(REMOVAL_POLL).await;
    }
}
