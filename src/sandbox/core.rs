//! The core itself: its profiles, its tasks, and how it stops.

use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::decided::Decided;
use super::kept::Kept;
use super::pool::SessionPool;
use super::sources::Sources;
use super::{Profile, Sandbox, not_found};
use crate::admission::{Grant, Permit};
use crate::engine::{Contents, SandboxSpec, Standing};
use crate::model::{Code, Failure, Impact, PlanId, SandboxId, SandboxKind, Secret, fault};
use crate::secret::{KeyRing, Sealed};
use crate::store::{Find, HEARTBEAT_INTERVAL, State, StoreError};

/// How long a call waits for a session unless told otherwise, in ms: less than a statement may usually take, so that who
/// waits in vain is told that the server is busy, and not that the statement's time is over.
const SESSION_WAIT_MS: u64 = 20_000;

/// What a core is made of.
#[derive(Debug)]
pub struct Parts {
    /// The profiles, in the order in which they are shown; names distinct.
    pub profiles: Vec<Profile>,
    /// The profile that is meant where none is named.
    pub default_profile: String,
    /// The keys that seal passwords.
    pub keys: KeyRing,
}

/// The lifecycle core. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Core(Arc<Inner>, Reach);

/// What is done to have a profile's server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// One that is managed is made and started.
    Starts,
    /// None is: what does not run is not there.
    Looks,
}

pub(super) struct Inner {
    pub(super) profiles: Vec<Arc<Profile>>,
    default_profile: String,
    pub(super) keys: KeyRing,
    pub(super) pool: SessionPool<Kept>,
    pub(super) decided: Decided,
    /// Databases that may be cloned by name.
    pub(super) sources: OnceLock<Sources>,
    /// How long a call waits for a session, in ms.
    session_wait_ms: AtomicU64,
    /// Plans that a task of ours works on.
    running: Mutex<BTreeSet<PlanId>>,
    /// Profiles whose heartbeat is on.
    beating: Mutex<BTreeSet<String>>,
    pub(super) tasks: TaskTracker,
    /// Set once the program is to end: nothing new begins.
    pub(super) stopping: CancellationToken,
    /// Set once nothing runs any more: heartbeats end.
    stopped: CancellationToken,
    /// Told when a profile is opened, or a disk has filled up: there may be something to recover, or to remove.
    pub(super) opened: Notify,
    /// Where schemas are kept.
    pub(super) schemas: OnceLock<PathBuf>,
    /// Where exported templates are kept.
    pub(super) dumps: OnceLock<PathBuf>,
}

/// Marks a plan as ours for as long as it is kept.
pub(super) struct Running {
    core: Core,
    plan: PlanId,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.core.0.running.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.plan);
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("profiles", &self.0.profiles).finish_non_exhaustive()
    }
}

impl Core {
    /// Builds the core. Starts and connects nothing.
    ///
    /// # Errors
    /// Fails if two profiles have one name, or the default names none.
    pub fn new(parts: Parts) -> Result<Self, Failure> {
        let invalid = |text: String| Failure::new(Code::InvalidConfiguration, text);
        let mut names = BTreeSet::new();
        for profile in &parts.profiles {
            if !names.insert(profile.name()) {
                return Err(invalid(format!("there are two profiles named `{}`", profile.name())));
            }
        }
        if !names.contains(parts.default_profile.as_str()) {
            return Err(invalid(format!("the default profile `{}` is not among the profiles", parts.default_profile))
                .allowed(names));
        }
        let inner = Inner {
            profiles: parts.profiles.into_iter().map(Arc::new).collect(),
            default_profile: parts.default_profile,
            keys: parts.keys,
            pool: SessionPool::new(),
            decided: Decided::default(),
            sources: OnceLock::new(),
            session_wait_ms: AtomicU64::new(SESSION_WAIT_MS),
            running: Mutex::default(),
            beating: Mutex::default(),
            tasks: TaskTracker::new(),
            stopping: CancellationToken::new(),
            stopped: CancellationToken::new(),
            opened: Notify::new(),
            schemas: OnceLock::new(),
            dumps: OnceLock::new(),
        };
        Ok(Self(Arc::new(inner), Reach::Starts))
    }

    /// Returns the same core for one who only looks: a managed server that does not run is not started for it.
    #[must_use]
    pub fn looking(&self) -> Self {
        Self(Arc::clone(&self.0), Reach::Looks)
    }

    pub(super) fn only_looks(&self) -> bool {
        self.1 == Reach::Looks
    }

    /// Returns the profiles, in the order in which they are shown.
    pub fn profiles(&self) -> &[Arc<Profile>] {
        &self.0.profiles
    }

    /// Returns the profile that is meant where none is named.
    pub fn default_profile(&self) -> &str {
        &self.0.default_profile
    }

    /// Returns a profile.
    ///
    /// # Errors
    /// `unknown_profile`.
    pub fn profile(&self, name: &str) -> Result<Arc<Profile>, Failure> {
        self.0.profiles.iter().find(|profile| profile.name() == name).map(Arc::clone).ok_or_else(|| {
            let shown: String = name.chars().take(80).flat_map(char::escape_default).collect();
            Failure::new(Code::UnknownProfile, format!("there is no profile `{shown}`"))
                .allowed(self.0.profiles.iter().map(|profile| profile.name()))
        })
    }

    /// Sets how long a call waits for a session into a sandbox before it is told to come back.
    pub fn set_session_wait(&self, wait: Duration) {
        self.0.session_wait_ms.store(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(super) fn session_wait(&self) -> Duration {
        Duration::from_millis(self.0.session_wait_ms.load(Ordering::Relaxed))
    }

    /// Opens a profile: starts its server if it is managed, migrates its metadata, and keeps saying that we live.
    ///
    /// # Errors
    /// Fails if the server cannot be reached or started, or its metadata is not to be used.
    pub async fn open(&self, profile: &Profile) -> Result<(), Failure> {
        if self.1 == Reach::Looks && !profile.is_open().await && profile.standing().await? != Standing::Runs {
            return Err(not_started(profile));
        }
        profile.open().await?;
        let first = self.0.beating.lock().unwrap_or_else(PoisonError::into_inner).insert(profile.name().to_owned());
        if first && let Ok(beating) = self.profile(profile.name()) {
            beating.engine.sweep_copies().await;
            self.sweep_dumps();
            let stopped = self.0.stopped.clone();
            tokio::spawn(async move {
                while stopped.run_until_cancelled(tokio::time::sleep(fault::every(HEARTBEAT_INTERVAL))).await.is_some()
                {
                    if let Err(error) = beating.store.heartbeat().await {
                        tracing::warn!(profile = beating.name(), %error, "no heartbeat");
                    }
                }
            });
            self.0.opened.notify_waiters();
        }
        Ok(())
    }

    /// Returns whether only looking is in order and the profile's server was never made: then nothing is on it.
    pub(super) async fn sees_nothing_on(&self, profile: &Profile) -> Result<bool, Failure> {
        Ok(self.1 == Reach::Looks && !profile.is_open().await && profile.standing().await? == Standing::Unmade)
    }

    /// Lets what runs come to its end, for at most `deadline`; begins nothing new. What is left then is finished or
    /// taken back by the next start, or by another server.
    ///
    /// Returns whether everything came to its end.
    pub async fn drain(&self, deadline: Duration) -> bool {
        self.0.stopping.cancel();
        self.0.tasks.close();
        let ended = tokio::time::timeout(deadline, self.0.tasks.wait()).await.is_ok();
        self.0.stopped.cancel();
        self.0.pool.close_all();
        for profile in &self.0.profiles {
            if let Err(error) = profile.store.leave().await {
                tracing::debug!(profile = profile.name(), %error, "could not sign off");
            }
        }
        ended
    }

    pub(super) fn inner(&self) -> &Inner {
        &self.0
    }

    /// Runs work in a task of its own, which goes on when the caller's request is dropped, and waits for it.
    pub(super) async fn detached<R: Send + 'static>(
        &self,
        work: impl Future<Output = Result<R, Failure>> + Send + 'static,
    ) -> Result<R, Failure> {
        self.spawn(work)?.await.unwrap_or_else(|error| {
            Err(Failure::new(Code::Internal, "the work on the sandbox broke off; what was begun is taken back")
                .audit(error.to_string()))
        })
    }

    /// Starts work in a task of its own.
    pub(super) fn spawn<R: Send + 'static>(
        &self,
        work: impl Future<Output = R> + Send + 'static,
    ) -> Result<tokio::task::JoinHandle<R>, Failure> {
        if self.0.stopping.is_cancelled() {
            return Err(Failure::new(Code::Busy, "the program is about to end and begins nothing new"));
        }
        let span = tracing::Span::current();
        Ok(self.0.tasks.spawn(tracing::Instrument::instrument(work, span)))
    }

    /// Starts work that belongs to what runs already, also while the program is about to end: whoever starts it is waited for
    /// then, and so is this.
    pub(super) fn follow_up<R: Send + 'static>(
        &self,
        work: impl Future<Output = R> + Send + 'static,
    ) -> tokio::task::JoinHandle<R> {
        self.0.tasks.spawn(tracing::Instrument::instrument(work, tracing::Span::current()))
    }

    /// Marks a plan as one of ours.
    pub(super) fn enter(&self, plan: PlanId) -> Running {
        self.0.running.lock().unwrap_or_else(PoisonError::into_inner).insert(plan);
        Running { core: self.clone(), plan }
    }

    /// Returns the plans that tasks of ours work on.
    pub(super) fn running(&self) -> Vec<PlanId> {
        self.0.running.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }

    /// Finds a sandbox by id: as the permit's request was just decided on it, or else in the profile that the permit
    /// names, or else in every one, opening them as needed.
    pub(super) async fn locate<T>(
        &self,
        permit: &Permit<T>,
        id: SandboxId,
    ) -> Result<(Arc<Profile>, Sandbox), Failure> {
        let granted = permit.grant().profile.as_deref();
        if let Some((profile, sandbox)) = self.0.decided.take(permit.grant().request_id, id)
            && granted.is_none_or(|name| name == profile.name())
        {
            profile.check_engine(&sandbox)?;
            return Ok((profile, sandbox));
        }
        self.locate_granted(permit.grant(), id).await
    }

    /// Finds a sandbox for what a permit grants, or would grant.
    pub(super) async fn locate_granted(
        &self,
        grant: &Grant,
        id: SandboxId,
    ) -> Result<(Arc<Profile>, Sandbox), Failure> {
        let granted = grant.profile.as_deref();
        let mut unreachable = None;
        for profile in self.0.profiles.iter().filter(|profile| granted.is_none_or(|name| name == profile.name())) {
            let found = match self.open(profile).await {
                Ok(()) => profile.store.find(&Find::Id(id)).await.map_err(Failure::from),
                Err(failure) => Err(failure),
            };
            match found {
                Ok(Some(sandbox))
                    if sandbox.kind == SandboxKind::Sandbox
                        && !matches!(sandbox.state, State::Deleted | State::Failed) =>
                {
                    profile.check_engine(&sandbox)?;
                    return Ok((Arc::clone(profile), sandbox));
                }
                Ok(_) => {}
                Err(failure) => unreachable = unreachable.or(Some(failure)),
            }
        }
        Err(unreachable.unwrap_or_else(not_found))
    }

    /// Returns the sandbox as its engine needs it, passwords opened.
    pub(super) async fn spec(&self, profile: &Profile, sandbox: &Sandbox) -> Result<SandboxSpec, Failure> {
        let sealed = profile.store.passwords(sandbox.id).await?.ok_or_else(not_found)?;
        let (owner, readonly) = (Sealed::from_bytes(sealed.owner), Sealed::from_bytes(sealed.readonly));
        let owner = self.0.keys.open_sealed(sandbox.id, OWNER_FIELD, &owner).await?;
        let readonly = self.0.keys.open_sealed(sandbox.id, READONLY_FIELD, &readonly).await?;
        Ok(bare_spec(sandbox, owner, readonly))
    }
}

/// The failure of one who only looks, where the server has to be asked and does not run.
fn not_started(profile: &Profile) -> Failure {
    let name = profile.name();
    let text =
        format!("the managed server of profile `{name}` does not run, and nothing is started for an explanation");
    Failure::new(Code::LocalPostgresUnavailable, text).hint(
        "what would be decided depends on what is on it: call something that uses it, `list_databases` for instance, \
         or run `pgsandbox local start`; then ask again",
    )
}

/// What the owner role's password is sealed for.
pub(super) const OWNER_FIELD: &str = "owner";
/// What the read-only role's password is sealed for.
pub(super) const READONLY_FIELD: &str = "readonly";

/// Returns the sandbox as its engine needs it to remove it: no password is opened, so a lost key keeps nothing alive.
pub(super) fn removal_spec(sandbox: &Sandbox) -> SandboxSpec {
    bare_spec(sandbox, Secret::new(""), Secret::new(""))
}

pub(super) fn bare_spec(sandbox: &Sandbox, owner_password: Secret, readonly_password: Secret) -> SandboxSpec {
    SandboxSpec {
        id: sandbox.id,
        names: sandbox.names.clone(),
        owner_password,
        readonly_password,
        expires_at: sandbox.expires_at,
        extensions: sandbox.extensions.clone(),
        kind: sandbox.kind,
        contents: Contents::Empty,
    }
}

/// Checks that a permit is for this. One for a sandbox is none for acts without one: it does not open all others.
pub(super) fn require<T>(permit: &Permit<T>, impact: Impact, target: Option<SandboxId>) -> Result<(), Failure> {
    let wider = target.is_none() && permit.grant().target.is_some();
    if permit.allows(impact, target) && !wider {
        return Ok(());
    }
    let grant = permit.grant();
    let text = format!(
        "the permit for `{}` ({}) does not cover this act ({})",
        grant.operation,
        grant.impact.as_str(),
        impact.as_str()
    );
    Err(Failure::new(Code::Internal, text))
}

/// Says what a metadata error is to a caller, for use with `map_err` where types cannot be inferred.
pub(super) fn store_failure(error: StoreError) -> Failure {
    error.into()
}
