//! A profile: where sandboxes are made, and within which bounds.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as PlainMutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Mutex;

use super::Sandbox;
use super::clock::ClockWatch;
use super::request::{ALLOWED_BY_DEFAULT, NEVER_ALLOWED, check_extensions};
use crate::engine::{Engine, ServerInfo, Standing};
use crate::model::{Code, Failure, SandboxId, limits, prefix_fault};
use crate::store::{FailPoints, Inert, Sessions, Store};

/// What an operator sets for one profile. Policies only lower it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileSettings {
    /// What every database and role of the profile begins with.
    pub prefix: String,
    /// Time to live unless asked otherwise.
    pub default_ttl_minutes: u64,
    /// The longest life of a sandbox from its creation.
    pub max_ttl_minutes: u64,
    /// Extensions that may be installed.
    pub allowed_extensions: Vec<String>,
    /// The most live sandboxes of one owner, and of one group owner; no limit of the profile's if absent.
    pub max_active_per_owner: Option<u64>,
}

impl Default for ProfileSettings {
    fn default() -> Self {
        Self {
            prefix: "pgsandbox".to_owned(),
            default_ttl_minutes: limits::TTL_MINUTES_DEFAULT,
            max_ttl_minutes: limits::TTL_MINUTES_MAX_DEFAULT,
            allowed_extensions: ALLOWED_BY_DEFAULT.iter().map(|&name| name.to_owned()).collect(),
            max_active_per_owner: None,
        }
    }
}

/// One profile: an engine, its metadata, and bounds. Opened when first needed.
pub struct Profile {
    pub(super) name: String,
    pub(super) settings: ProfileSettings,
    pub(super) engine: Arc<dyn Engine>,
    pub(super) store: Store,
    pub(super) points: Arc<dyn FailPoints>,
    info: OnceLock<ServerInfo>,
    pub(super) clock: ClockWatch,
    /// Held while opening, so that many first calls start one server once. Keeps the last failure and until when it
    /// stands: who has waited for an attempt that failed does not wait for another.
    opening: Mutex<Option<(Instant, Failure)>>,
    /// The sandbox that a request was last let write in, until it is measured for it.
    filled: PlainMutex<Option<SandboxId>>,
    /// Whether a login was given back since that was last asked.
    let_in: AtomicBool,
}

impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Profile").field("name", &self.name).field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Profile {
    /// Describes a profile; nothing is started or connected yet.
    ///
    /// # Errors
    /// Fails if a setting cannot be used.
    pub fn new(
        name: &str,
        settings: ProfileSettings,
        engine: Arc<dyn Engine>,
        sessions: Arc<dyn Sessions>,
    ) -> Result<Self, Failure> {
        Self::with_points(name, settings, engine, sessions, Arc::new(Inert))
    }

    /// Describes a profile whose work passes `points`: for tests.
    ///
    /// # Errors
    /// Fails if a setting cannot be used.
    pub fn with_points(
        name: &str,
        settings: ProfileSettings,
        engine: Arc<dyn Engine>,
        sessions: Arc<dyn Sessions>,
        points: Arc<dyn FailPoints>,
    ) -> Result<Self, Failure> {
        let fault = |text: String| Failure::new(Code::InvalidConfiguration, format!("profile `{name}`: {text}"));
        if let Some(text) = prefix_fault(&settings.prefix) {
            return Err(fault(text));
        }
        if settings.max_ttl_minutes == 0 || settings.max_ttl_minutes > TTL_MINUTES_CEILING {
            return Err(fault(format!("the longest life is not between 1 and {TTL_MINUTES_CEILING} minutes")));
        }
        if settings.default_ttl_minutes == 0 || settings.default_ttl_minutes > settings.max_ttl_minutes {
            return Err(fault(format!("the default life is not between 1 and {} minutes", settings.max_ttl_minutes)));
        }
        let store = Store::new(name, &settings.prefix, sessions, Arc::clone(&points));
        Ok(Self {
            name: name.to_owned(),
            settings,
            engine,
            store,
            points,
            info: OnceLock::new(),
            clock: ClockWatch::default(),
            opening: Mutex::default(),
            filled: PlainMutex::default(),
            let_in: AtomicBool::default(),
        })
    }

    /// Returns the profile's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the operator's settings.
    pub fn settings(&self) -> &ProfileSettings {
        &self.settings
    }

    /// Returns the extensions that the profile allows, without those that none may.
    pub fn allowed_extensions(&self) -> Vec<String> {
        let allowed = self.settings.allowed_extensions.iter();
        allowed.filter(|name| !NEVER_ALLOWED.contains(&name.as_str())).cloned().collect()
    }

    /// Checks that the profile allows an extension.
    ///
    /// # Errors
    /// `extension_not_allowed`, or `invalid_extensions` for what is no name of one.
    pub fn check_extension(&self, name: &str) -> Result<(), Failure> {
        check_extensions(&self.name, &[name.to_owned()], &self.settings.allowed_extensions).map(|_| ())
    }

    /// Notes that a request is let write in a sandbox.
    pub(super) fn note_filled(&self, id: SandboxId) {
        *self.filled.lock().unwrap_or_else(PoisonError::into_inner) = Some(id);
    }

    /// Returns the sandbox that a request was last let write in, once.
    pub(super) fn take_filled(&self) -> Option<SandboxId> {
        self.filled.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Notes that a sandbox's login is given back.
    pub(super) fn note_let_in(&self) {
        self.let_in.store(true, Ordering::Relaxed);
    }

    /// Returns whether one was since this was last asked.
    pub(super) fn take_let_in(&self) -> bool {
        self.let_in.swap(false, Ordering::Relaxed)
    }

    /// Returns the engine's kind, `postgres` for instance.
    pub fn engine_kind(&self) -> &'static str {
        self.engine.kind()
    }

    /// Checks that a sandbox is of this profile's engine: no other knows what it is made of.
    pub(super) fn check_engine(&self, sandbox: &Sandbox) -> Result<(), Failure> {
        let kind = self.engine.kind();
        if sandbox.engine == kind {
            return Ok(());
        }
        let found: String = sandbox.engine.chars().take(40).flat_map(char::escape_default).collect();
        let text =
            format!("sandbox {} is recorded as of engine `{found}`; profile `{}` has `{kind}`", sandbox.id, self.name);
        Err(Failure::new(Code::MetadataDamaged, text)
            .hint("nothing was done with it: have an operator put its row in `pgsandbox.sandboxes` right"))
    }

    /// Returns whether this program manages the server itself.
    pub fn managed(&self) -> bool {
        self.engine.managed()
    }

    /// Returns the server's major version, where it is known without starting or asking anything.
    pub fn known_major(&self) -> Option<u16> {
        self.info.get().map(|info| info.major).or_else(|| self.engine.known_major())
    }

    /// Returns the server's major version; of a cluster of ours that is not there yet, the one it would be made of. Starts
    /// nothing; a server of others that was never asked does not say.
    pub async fn major_ahead(&self) -> Option<u16> {
        match self.known_major() {
            Some(major) => Some(major),
            None => self.engine.major_ahead().await,
        }
    }

    /// Returns the majors installed on this machine that a cluster of ours could be made of, the newest first; none where
    /// the profile's server is another's.
    pub async fn majors_installed(&self) -> Vec<u16> {
        self.engine.versions_installed().await.into_iter().map(|(major, _)| major).collect()
    }

    /// Returns what the server said of itself when the profile was first opened.
    pub fn server_info(&self) -> Option<&ServerInfo> {
        self.info.get()
    }

    /// Returns whether the profile was opened and its server is still there.
    pub(super) async fn is_open(&self) -> bool {
        self.store.is_open().await
    }

    /// Returns what there is of the server. Starts nothing.
    pub(super) async fn standing(&self) -> Result<Standing, Failure> {
        self.engine.standing().await.map_err(Failure::from)
    }

    /// Makes the server answer, starting it if it is managed, and its metadata usable. Cheap once both are.
    pub(super) async fn open(&self) -> Result<(), Failure> {
        if self.store.is_open().await {
            return Ok(());
        }
        let asked = Instant::now();
        let mut last = self.opening.lock().await;
        if self.store.is_open().await {
            return Ok(());
        }
        if let Some((_, failure)) = last.as_ref().filter(|(until, _)| *until >= asked) {
            return Err(failure.clone());
        }
        let opened = async {
            let info = self.engine.ready().await.map_err(Failure::from)?;
            self.info.get_or_init(|| info);
            Ok(self.store.open().await?)
        };
        let begun = Instant::now();
        let opened: Result<(), Failure> = opened.await;
        // A call asks several times. What took long to find out it is told again, and does not find out again.
        let stands = begun.elapsed().min(FAILURE_STANDS_MAX);
        *last = opened.as_ref().err().map(|failure| (Instant::now() + stands, failure.clone()));
        opened
    }
}

/// The longest time for which a failure to open is everybody's: no longer than it took to find out, either.
const FAILURE_STANDS_MAX: Duration = Duration::from_secs(2);
/// A hundred years: beyond it, times no longer fit where they are stored.
const TTL_MINUTES_CEILING: u64 = 100 * 366 * 24 * 60;
