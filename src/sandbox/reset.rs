//! Makes a sandbox anew: back to empty, or to what it was copied from, under the same id, names, roles and passwords.
//!
//! It is one plan: the database is dropped and made again. Until it has begun nothing is lost. Where the server cannot do it
//! just now, for what somebody else does on it, it is tried again until it can: no other sandbox's doings cost this one its
//! life. What fails otherwise, or breaks off with the program, is taken back like any creation, and the sandbox is then
//! gone, with its row saying why.

use std::sync::Arc;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::core::require;
use super::create::{CREATE_DEADLINE, check_offered};
use super::work::{Work, first_stage};
use super::{Core, Profile, Sandbox, not_found};
use crate::admission::{Grant, Permit};
use crate::engine::Contents;
use crate::model::{Failure, Impact, PlanId, Progress, SandboxId, Silent, fault};
use crate::store::{ByteLimits, Claimed, Find, PlanKind};

impl Core {
    /// Makes a sandbox anew, as it was when it was made. Sessions in it are ended. Once it has begun it goes on to its end.
    ///
    /// # Errors
    /// `sandbox_expired`, `sandbox_not_ready`, `template_not_found` if what it was copied from is gone, `busy` if that or
    /// the sandbox is in use by a call. Then it is as it was. If a step fails, the sandbox is made anew later, or removed.
    pub async fn reset<T>(
        &self,
        permit: &Permit<T>,
        id: SandboxId,
        progress: Arc<dyn Progress>,
    ) -> Result<Sandbox, Failure> {
        let grant = permit.grant().clone();
        let looked = async {
            require(permit, Impact::Destroys, Some(id))?;
            self.locate_usable(permit, id).await
        };
        let (profile, sandbox) = grant.course.refusing(looked.await)?;
        let core = self.clone();
        self.detached(async move { core.reset_checked(&profile, &grant, &sandbox, &*progress).await }).await
    }

    /// Says what [`Core::reset`] would refuse with before its first act.
    ///
    /// # Errors
    /// Fails as the reset would.
    pub async fn foresee_reset(&self, grant: &Grant, id: SandboxId) -> Result<(), Failure> {
        let (profile, sandbox) = self.locate_granted(grant, id).await?;
        sandbox.usable()?;
        self.beginning_of(&profile, &sandbox).await?;
        check_offered(&profile, &sandbox.extensions).await
    }

    async fn reset_checked(
        &self,
        profile: &Arc<Profile>,
        grant: &Grant,
        sandbox: &Sandbox,
        progress: &dyn Progress,
    ) -> Result<Sandbox, Failure> {
        let prepared = async {
            let beginning = self.beginning_of(profile, sandbox).await?;
            beginning.source.iter().for_each(|source| grant.course.is_about(source.id));
            check_offered(profile, &sandbox.extensions).await?;
            let limits = ByteLimits::new(&grant.obligations.max_database_bytes);
            if limits != sandbox.byte_limits {
                profile.store.set_byte_limits(sandbox.id, limits).await?;
            }
            let mut spec = self.spec(profile, sandbox).await?;
            spec.contents = beginning.contents;
            let pool = &self.inner().pool;
            let hold = pool.hold(sandbox.id, Instant::now() + fault::within(super::copies::HOLD_WAIT)).await?;
            pool.close(sandbox.id);
            let source = match (&spec.contents, &beginning.source) {
                (Contents::Copy { .. }, Some(source)) => {
                    let source = profile.store.find(&Find::Id(source.id)).await?.ok_or_else(not_found)?;
                    Some(self.hold_source(profile, &source).await?)
                }
                (Contents::Empty | Contents::Copy { .. } | Contents::Clone(_) | Contents::Restore(_), _) => None,
            };
            Ok((spec, hold, source))
        };
        let (spec, _hold, _source) = grant.course.refusing(prepared.await)?;
        let steps = Work::steps(profile, &spec, true);
        let plan = PlanId::fresh();
        let _running = self.enter(plan);
        self.inner().decided.forget(sandbox.id);
        let begun = profile.store.begin_reset(sandbox.id, plan, grant.request_id, &first_stage(&steps)).await?;
        let Some((held, _)) = begun else {
            let now = profile.store.find(&Find::Id(sandbox.id)).await?.ok_or_else(not_found)?;
            return grant.course.refusing(Err(now.usable().err().unwrap_or_else(not_found)));
        };
        grant.course.acts();
        let work = Work { profile: Arc::clone(profile), held, spec, anew: true };
        let deadline = Instant::now() + fault::within(CREATE_DEADLINE);
        // Not to be cancelled: half-way there is nothing to go back to.
        work.make(progress, &CancellationToken::new(), deadline).await
    }

    /// Goes on with a reset that was let go of. Returns whether it was one; then it is made anew, or let go of again.
    pub(super) async fn carry_reset_on(&self, profile: &Arc<Profile>, claimed: &Claimed) -> Result<bool, Failure> {
        let Claimed { held, sandbox, attempts, undoing } = claimed;
        // A killed program's statement may still run: its reset is taken back.
        if held.kind != PlanKind::Create || *undoing || *attempts == 0 || sandbox.expired() {
            return Ok(false);
        }
        let begun = profile.store.begun(held.plan).await?;
        if begun.first().is_none_or(|step| step != profile.engine.reset_step().name) {
            return Ok(false);
        }
        self.inner().pool.close(sandbox.id);
        let prepared = async {
            profile.check_engine(sandbox)?;
            let beginning = self.beginning_of(profile, sandbox).await?;
            let mut spec = self.spec(profile, sandbox).await?;
            spec.contents = beginning.contents;
            let source = match (&spec.contents, &beginning.source) {
                (Contents::Copy { .. }, Some(source)) => {
                    let source = profile.store.find(&Find::Id(source.id)).await?.ok_or_else(not_found)?;
                    Some(self.hold_source(profile, &source).await?)
                }
                (Contents::Empty | Contents::Copy { .. } | Contents::Clone(_) | Contents::Restore(_), _) => None,
            };
            Ok((spec, source))
        };
        let (spec, _source) = match prepared.await {
            Ok(prepared) => prepared,
            Err(failure @ Failure { retryable: true, .. }) => {
                profile.store.release(held, &failure.message).await?;
                return Err(failure);
            }
            Err(failure) => {
                tracing::warn!(sandbox = %sandbox.id, %failure, "it cannot be made anew any more and is removed");
                return Ok(false);
            }
        };
        let work = Work { profile: Arc::clone(profile), held: *held, spec, anew: true };
        let deadline = Instant::now() + fault::within(CREATE_DEADLINE);
        work.make(&Silent, &CancellationToken::new(), deadline).await.map(|_| true)
    }
}
