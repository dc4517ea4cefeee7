//! Uses, extends and looks into one sandbox.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::core::{removal_spec, require};
use super::create::check_offered;
use super::kept::Kept;
use super::pool::Turn;
use super::request::{over_ttl, ttl_limit};
use super::{Core, Profile, Sandbox, State, not_found};
use crate::admission::{Grant, Permit};
use crate::engine::postgres::SandboxSession;
use crate::engine::{ConnectionInfo, EngineError, ExtensionInfo, OWNER_LOGIN_CHECK, SandboxSpec};
use crate::model::{Check, CheckStatus, Code, CredentialAccess, Failure, Impact, Limit, SandboxId, Secret};
use crate::store::Find;

/// How long a call waits before it tries a crowded server again, the first and the later times: a closed session's
/// backend needs some milliseconds to go.
pub(super) const PAUSE_MIN: Duration = Duration::from_millis(10);
pub(super) const PAUSE_MAX: Duration = Duration::from_millis(250);

/// A turn that took longer to come was waited for.
const WAITED: Duration = Duration::from_millis(50);

/// A session into a sandbox, on loan. Goes back to the pool when dropped, if it is sound.
pub struct SessionLease {
    core: Core,
    sandbox: SandboxId,
    access: CredentialAccess,
    session: Option<SandboxSession>,
    /// There until the session is given back.
    turn: Option<Turn>,
}

impl Deref for SessionLease {
    type Target = SandboxSession;

    #[expect(clippy::expect_used, reason = "the session is there until drop, and nothing can be called after it")]
    fn deref(&self) -> &SandboxSession {
        self.session.as_ref().expect("a session until dropped")
    }
}

impl DerefMut for SessionLease {
    #[expect(clippy::expect_used, reason = "the session is there until drop, and nothing can be called after it")]
    fn deref_mut(&mut self) -> &mut SandboxSession {
        self.session.as_mut().expect("a session until dropped")
    }
}

impl Drop for SessionLease {
    fn drop(&mut self) {
        if let (Some(session), Some(turn)) = (self.session.take(), self.turn.take()) {
            self.core.inner().pool.give_back(self.sandbox, self.access, Kept::Sql(session), turn);
        }
    }
}

impl SessionLease {
    /// Closes the session instead of giving it back: after a cancel, for instance.
    pub fn close(mut self) {
        self.session = None;
    }
}

impl Core {
    /// Moves a sandbox's end to `ttl_minutes` from now. Its whole life stays within the limit. An expired one may be
    /// extended until it is cleaned up.
    ///
    /// # Errors
    /// `invalid_ttl`, `database_not_found` or `sandbox_not_ready`.
    pub async fn extend<T>(&self, permit: &Permit<T>, id: SandboxId, ttl_minutes: u64) -> Result<Sandbox, Failure> {
        let course = permit.grant().course.clone();
        let looked = async {
            require(permit, Impact::Writes, Some(id))?;
            let (profile, sandbox) = self.locate(permit, id).await?;
            let limit = ttl_limit(profile.settings(), &permit.grant().obligations);
            check_extension(&profile, ttl_minutes, &limit)?;
            Ok((profile, sandbox, limit))
        };
        let (profile, sandbox, limit) = course.refusing(looked.await)?;
        let core = self.clone();
        self.detached(async move {
            let Some(extended) = profile.store.extend(id, ttl_minutes, limit.value).await? else {
                return course.refusing(Err(not_extended(&profile, &sandbox, limit.value).await?));
            };
            course.acts();
            let spec = core.spec(&profile, &extended).await?;
            profile.engine.set_expiry(&spec, extended.expires_at).await.map_err(|error| {
                Failure::from(error).hint("the new end is noted, but logins still end at the old one; call again")
            })?;
            Ok(extended)
        })
        .await
    }

    /// Says what [`Core::extend`] would refuse with.
    ///
    /// # Errors
    /// Fails as the extension would.
    pub async fn foresee_extend(&self, grant: &Grant, id: SandboxId, ttl_minutes: u64) -> Result<(), Failure> {
        let (profile, sandbox) = self.locate_granted(grant, id).await?;
        let limit = ttl_limit(profile.settings(), &grant.obligations);
        check_extension(&profile, ttl_minutes, &limit)?;
        // What may still be extended is the row's to say: ready, expired or not.
        if sandbox.state != State::Ready || lived_minutes(&sandbox).saturating_add(ttl_minutes) > limit.value {
            return Err(not_extended(&profile, &sandbox, limit.value).await?);
        }
        Ok(())
    }

    /// Says what [`Core::credentials`] would refuse with before it asks the server for anything.
    ///
    /// # Errors
    /// Fails as the disclosure would.
    pub async fn foresee_credentials(
        &self,
        grant: &Grant,
        id: SandboxId,
        access: CredentialAccess,
        with_password: bool,
    ) -> Result<(), Failure> {
        self.foresee_use(grant, id, access).await?;
        let (profile, sandbox) = self.locate_granted(grant, id).await?;
        if with_password && access == CredentialAccess::ReadOnly && profile.managed() {
            self.foresee_owner(grant, &profile, &sandbox).await?;
        }
        Ok(())
    }

    /// Says what [`Core::session`] would refuse with before it asks the server for one.
    ///
    /// # Errors
    /// Fails as the use would.
    pub async fn foresee_use(&self, grant: &Grant, id: SandboxId, access: CredentialAccess) -> Result<(), Failure> {
        let (profile, sandbox) = self.locate_granted(grant, id).await?;
        sandbox.usable()?;
        if access == CredentialAccess::Owner {
            refuse_if_read_only(grant)?;
            self.foresee_owner(grant, &profile, &sandbox).await?;
        }
        Ok(())
    }

    /// Lends a session as one of the sandbox's roles. Waits where the sandbox, its owner or this program have as many
    /// out as they may, and where the server has no connection left.
    ///
    /// # Errors
    /// `sandbox_expired`, `sandbox_not_ready`, `obligation_unmet` for the owner role of a request that must only
    /// read, `quota_exceeded` for it when the byte quota is used up, `busy` if none came free in time, or the server
    /// cannot be reached.
    pub async fn session<T>(
        &self,
        permit: &Permit<T>,
        id: SandboxId,
        access: CredentialAccess,
    ) -> Result<SessionLease, Failure> {
        let looked = async {
            require(permit, Impact::Reads, Some(id)).or_else(|_| require(permit, Impact::Writes, Some(id)))?;
            self.locate_for_use(permit, id, access).await
        };
        let course = &permit.grant().course;
        let (profile, sandbox) = course.refusing(looked.await)?;
        let pool = &self.inner().pool;
        let until = Instant::now() + self.session_wait();
        let began = Instant::now();
        let turn = course.refusing(pool.turn(id, access, &sandbox.owner, until).await)?;
        if began.elapsed() > WAITED {
            // Meanwhile its time may have come.
            let now = profile.store.find(&Find::Id(id)).await?.ok_or_else(not_found);
            course.refusing(now.and_then(|now| now.usable()))?;
        }
        let session = match pool.take(id, access).and_then(Kept::sql) {
            Some(session) => session,
            None => {
                let spec = course.refusing(self.spec(&profile, &sandbox).await)?;
                course.acts();
                match self.open_session(&profile, &spec, access, until).await {
                    // Its login was taken away since it was looked at, and need not be any longer.
                    Err(failure) if failure.code == Code::QuotaExceeded && failure.retryable => {
                        let (profile, _) = self.locate_for_use(permit, id, access).await?;
                        self.open_session(&profile, &spec, access, until).await?
                    }
                    Ok(session) => session,
                    Err(failure) => return Err(failure),
                }
            }
        };
        course.acts();
        Ok(SessionLease { core: self.clone(), sandbox: id, access, session: Some(session), turn: Some(turn) })
    }

    /// Finds a sandbox that is to be used as one of its roles, and lets that role in.
    async fn locate_for_use<T>(
        &self,
        permit: &Permit<T>,
        id: SandboxId,
        access: CredentialAccess,
    ) -> Result<(Arc<Profile>, Sandbox), Failure> {
        let (profile, sandbox) = self.locate_usable(permit, id).await?;
        if access == CredentialAccess::Owner {
            refuse_if_read_only(permit.grant())?;
            self.admit_owner(permit.grant(), &profile, &sandbox).await?;
        }
        Ok((profile, sandbox))
    }

    /// Finds a sandbox that can be used.
    pub(super) async fn locate_usable<T>(
        &self,
        permit: &Permit<T>,
        id: SandboxId,
    ) -> Result<(Arc<Profile>, Sandbox), Failure> {
        let (profile, sandbox) = self.locate(permit, id).await?;
        sandbox.usable()?;
        Ok((profile, sandbox))
    }

    /// Logs in as one of the sandbox's roles, waiting while the server has no connection left.
    async fn open_session(
        &self,
        profile: &Arc<Profile>,
        spec: &SandboxSpec,
        access: CredentialAccess,
        until: Instant,
    ) -> Result<SandboxSession, Failure> {
        let mut pause = PAUSE_MIN;
        loop {
            let error = match profile.engine.session(spec, access).await {
                Ok(session) => return Ok(session),
                Err(error) => error,
            };
            let crowded = matches!(error, EngineError::Crowded { .. });
            if !crowded || Instant::now() + pause >= until {
                return Err(self.why_refused(profile, spec.id, access, error).await?);
            }
            // What waits for other sandboxes is in the way of this call.
            self.inner().pool.close_one();
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
            if let Some(session) = self.inner().pool.take(spec.id, access).and_then(Kept::sql) {
                return Ok(session);
            }
        }
    }

    /// Says why a login into a sandbox failed, which may have changed since it was looked at.
    async fn why_refused(
        &self,
        profile: &Arc<Profile>,
        id: SandboxId,
        access: CredentialAccess,
        error: EngineError,
    ) -> Result<Failure, Failure> {
        match (&error, access) {
            (EngineError::Auth { .. }, CredentialAccess::Owner) => self.why_owner_is_refused(profile, id, error).await,
            (EngineError::Auth { .. } | EngineError::Known(_) | EngineError::Crowded { .. }, _) => {
                let now = profile.store.find(&Find::Id(id)).await?.ok_or_else(not_found)?;
                Ok(now.usable().err().unwrap_or_else(|| error.into()))
            }
            (_, _) => Ok(error.into()),
        }
    }

    /// Gives the read-only role again what it may see of the sandbox, where the owner's SQL took it away. Returns
    /// whether any was missing. That is writing, if only rights: a request that must only read, as a policy demands, has
    /// none of it done.
    ///
    /// # Errors
    /// As [`Core::session`] of the owner role, or it did not end by `until`.
    pub async fn restore_reads<T>(&self, permit: &Permit<T>, id: SandboxId, until: Instant) -> Result<bool, Failure> {
        require(permit, Impact::Reads, Some(id)).or_else(|_| require(permit, Impact::Writes, Some(id)))?;
        refuse_if_read_only(permit.grant())?;
        let restored = async {
            let (profile, sandbox) = self.locate_usable(permit, id).await?;
            let spec = self.spec(&profile, &sandbox).await?;
            let within = until.saturating_duration_since(Instant::now());
            profile.engine.restore_reads(&spec, within).await.map_err(Failure::from)
        };
        let late = |_| Failure::new(Code::CommandTimeout, "the reader's rights could not be restored in time");
        tokio::time::timeout_at(until, restored).await.map_err(late)?
    }

    /// Discloses where and how a sandbox is reached, and with the role's password lets its direct logins in. A role
    /// whose login is taken away has none to disclose.
    ///
    /// # Errors
    /// As [`Core::session`]; `quota_exceeded` for the reader as well, where its direct logins are taken away.
    pub async fn credentials<T>(
        &self,
        permit: &Permit<T>,
        id: SandboxId,
        access: CredentialAccess,
    ) -> Result<(ConnectionInfo, Secret), Failure> {
        self.disclose(permit, Impact::Discloses, id, access).await
    }

    /// Discloses where a sandbox is reached, without any password, to who may use it as one of its roles.
    ///
    /// # Errors
    /// As [`Core::session`].
    pub async fn whereabouts<T>(
        &self,
        permit: &Permit<T>,
        id: SandboxId,
        access: CredentialAccess,
    ) -> Result<ConnectionInfo, Failure> {
        let looked = async {
            require(permit, Impact::Discloses, Some(id))?;
            self.locate_for_use(permit, id, access).await
        };
        let (profile, sandbox) = permit.grant().course.refusing(looked.await)?;
        Ok(profile.engine.connection(&removal_spec(&sandbox), access))
    }

    /// The same of the owner role, for a command that is to be run with it.
    ///
    /// # Errors
    /// As [`Core::session`].
    pub async fn credentials_for_command<T>(
        &self,
        permit: &Permit<T>,
        id: SandboxId,
    ) -> Result<(ConnectionInfo, Secret), Failure> {
        self.disclose(permit, Impact::ReachesOut, id, CredentialAccess::Owner).await
    }

    /// Returns where and how the sandbox of a permit is reached, without any password.
    ///
    /// # Errors
    /// `database_not_found`.
    pub async fn connection_of<T>(
        &self,
        permit: &Permit<T>,
        id: SandboxId,
        access: CredentialAccess,
    ) -> Result<ConnectionInfo, Failure> {
        let looked = async {
            require(permit, Impact::ReachesOut, Some(id))?;
            let (_, sandbox) = self.locate(permit, id).await?;
            self.connection(&sandbox, access).await
        };
        permit.grant().course.refusing(looked.await)
    }

    async fn disclose<T>(
        &self,
        permit: &Permit<T>,
        impact: Impact,
        id: SandboxId,
        access: CredentialAccess,
    ) -> Result<(ConnectionInfo, Secret), Failure> {
        let looked = async {
            require(permit, impact, Some(id))?;
            let (profile, sandbox) = self.locate_for_use(permit, id, access).await?;
            if access == CredentialAccess::ReadOnly && profile.managed() {
                self.admit_owner(permit.grant(), &profile, &sandbox).await?;
            }
            let spec = self.spec(&profile, &sandbox).await?;
            Ok((profile, spec))
        };
        let (profile, spec) = permit.grant().course.refusing(looked.await)?;
        permit.grant().course.acts();
        Self::give_out(&profile, spec, access).await
    }

    /// Lets a role's direct logins in and returns what it logs in with.
    pub(super) async fn give_out(
        profile: &Profile,
        spec: SandboxSpec,
        access: CredentialAccess,
    ) -> Result<(ConnectionInfo, Secret), Failure> {
        profile.engine.admit_direct(&spec, access).await?;
        let info = profile.engine.connection(&spec, access);
        let password = match access {
            CredentialAccess::Owner => spec.owner_password,
            CredentialAccess::ReadOnly => spec.readonly_password,
        };
        Ok((info, password))
    }

    /// Returns where and how a sandbox is reached, without any password. Needs no permit: nothing in it is secret.
    ///
    /// # Errors
    /// `database_not_found`, or its profile cannot be looked at.
    pub async fn connection(&self, sandbox: &Sandbox, access: CredentialAccess) -> Result<ConnectionInfo, Failure> {
        let profile = self.profile(&sandbox.profile)?;
        Ok(profile.engine.connection(&removal_spec(sandbox), access))
    }

    /// Checks a sandbox against what it promises.
    ///
    /// # Errors
    /// `sandbox_expired`, `sandbox_not_ready`, or the server cannot be reached.
    pub async fn verify<T>(&self, permit: &Permit<T>, id: SandboxId) -> Result<Vec<Check>, Failure> {
        let looked = async {
            require(permit, Impact::Reads, Some(id))?;
            let (profile, sandbox) = self.locate_usable(permit, id).await?;
            let spec = self.spec(&profile, &sandbox).await?;
            Ok((profile, sandbox, spec))
        };
        let (profile, sandbox, spec) = permit.grant().course.refusing(looked.await)?;
        let mut checks = profile.engine.verify(&spec).await.map_err(Failure::from)?;
        if !sandbox.login_stands() {
            checks.iter_mut().for_each(excuse_withheld_login);
        }
        Ok(checks)
    }

    /// Returns those of `names` that the profile's server can install with what they require being among them too; with
    /// `by_owner`, in a sandbox, by its own role. Starts nothing: of a server that was not asked yet, all are returned.
    pub async fn installable(&self, profile: &str, mut names: Vec<String>, by_owner: bool) -> Vec<String> {
        let Ok(profile) = self.profile(profile) else { return names };
        if !profile.is_open().await {
            return names;
        }
        let Ok(offered) = profile.engine.available_extensions().await else { return names };
        loop {
            let before = names.clone();
            names.retain(|name| {
                let offer = offered.iter().find(|offer| offer.name == *name && (offer.trusted || !by_owner));
                offer.is_some_and(|offer| offer.requires.iter().all(|required| before.contains(required)))
            });
            if names.len() == before.len() {
                return names;
            }
        }
    }

    /// Finds that a profile's server does not have an extension at all. What cannot be asked is left to the server.
    ///
    /// # Errors
    /// `unknown_profile`, or `extension_setup_required`.
    pub async fn check_has_extension(&self, profile: &str, name: &str) -> Result<(), Failure> {
        let profile = self.profile(profile)?;
        if self.open(&profile).await.is_err() {
            return Ok(());
        }
        match check_offered(&profile, &[name.to_owned()]).await {
            Err(failure) if failure.code == Code::ExtensionSetupRequired => Err(failure),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Returns the extensions that a profile's server can install, whether or not the profile allows them.
    ///
    /// # Errors
    /// `unknown_profile`, or the server cannot be reached.
    pub async fn available_extensions(&self, profile: &str) -> Result<Vec<ExtensionInfo>, Failure> {
        let profile = self.profile(profile)?;
        self.open(&profile).await?;
        profile.engine.available_extensions().await.map_err(Failure::from)
    }

    /// Returns (name, version) of the extensions in a sandbox.
    ///
    /// # Errors
    /// `sandbox_expired`, `sandbox_not_ready`, or the server cannot be reached.
    pub async fn installed_extensions<T>(
        &self,
        permit: &Permit<T>,
        id: SandboxId,
    ) -> Result<Vec<(String, String)>, Failure> {
        let looked = async {
            // Who just made it may look as well.
            require(permit, Impact::Reads, Some(id))
                .or_else(|_| require(permit, Impact::Creates, permit.grant().target))
                .or_else(|_| require(permit, Impact::ReachesOut, permit.grant().target))
                .or_else(|_| require(permit, Impact::Destroys, Some(id)))?;
            let (profile, sandbox) = self.locate_usable(permit, id).await?;
            let spec = self.spec(&profile, &sandbox).await?;
            Ok((profile, spec))
        };
        let (profile, spec) = permit.grant().course.refusing(looked.await)?;
        profile.engine.installed_extensions(&spec).await.map_err(Failure::from)
    }
}

/// Makes a warning of the failed login that we took away ourselves.
fn excuse_withheld_login(check: &mut Check) {
    if check.name == OWNER_LOGIN_CHECK && check.status == CheckStatus::Fail {
        check.status = CheckStatus::Warn;
        "the owner's login is taken away while its sandboxes hold too many bytes".clone_into(&mut check.detail);
        check.remedy = Some("delete another sandbox of the same owner; the login then comes back".to_owned());
    }
}

fn check_extension(profile: &Profile, ttl_minutes: u64, limit: &Limit) -> Result<(), Failure> {
    if ttl_minutes == 0 {
        return Err(Failure::new(Code::InvalidTtl, "a ttl of 0 minutes is none")
            .hint(format!("ask for 1 to {} minutes", limit.value))
            .allowed_minutes(limit.value));
    }
    if ttl_minutes > limit.value {
        return Err(over_ttl(profile.name(), ttl_minutes, limit));
    }
    Ok(())
}

/// Returns how long a sandbox has lived, in minutes begun.
fn lived_minutes(sandbox: &Sandbox) -> u64 {
    u64::try_from(sandbox.read_at.ms_since(sandbox.created_at)).unwrap_or(0).div_ceil(60_000)
}

pub(super) fn refuse_if_read_only(grant: &Grant) -> Result<(), Failure> {
    let demanding = &grant.obligations.read_only;
    match demanding.first() {
        Some(policy) => Err(Failure::new(
            Code::ObligationUnmet,
            format!("`{policy}` demands read-only use, and the owner role can write"),
        )
        .hint("use the read-only role")),
        None => Ok(()),
    }
}

/// Says why the row was not extended.
async fn not_extended(profile: &Arc<Profile>, before: &Sandbox, life_minutes_max: u64) -> Result<Failure, Failure> {
    let Some(now) = profile.store.find(&Find::Id(before.id)).await? else { return Ok(not_found()) };
    Ok(match now.state {
        State::Ready => {
            let left = life_minutes_max.saturating_sub(lived_minutes(&now));
            let text = format!(
                "sandbox `{}` would live longer than the limit of {life_minutes_max} minutes from its creation",
                now.names.database
            );
            let failure = Failure::new(Code::InvalidTtl, text);
            if left == 0 {
                failure.hint("create another")
            } else {
                failure.hint(format!("ask for {left} minutes or less")).allowed_minutes(left)
            }
        }
        State::Creating | State::Deleting => match now.usable() {
            Err(failure) => failure,
            Ok(()) => not_found(),
        },
        State::Deleted | State::Failed => not_found(),
    })
}
