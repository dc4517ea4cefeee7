//! The metadata of one profile: sandboxes, the plans that make and remove them, and who works on what.
//!
//! Lives in schema `pgsandbox` of the profile's admin database and is shared by every server on the profile.
//! Time is the database's clock. Whoever writes for a plan must hold it: the epoch of the holder fences off one
//! that was paused and lost it. Nothing here touches a sandbox or knows what one is made of.

mod approvals;
mod damage;
mod drift;
mod error;
mod facts;
mod failpoint;
mod logins;
mod migrate;
mod plans;
mod record;
mod sandboxes;
mod servers;
mod session;
mod templates;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicI32;

use tokio::sync::Mutex;

use self::facts::Presence;
use crate::model::fault;

pub use approvals::{GivenApproval, NewRequest, Noted, WaitingRequest};
pub use damage::Damage;
pub use drift::{Drift, SHAPE};
pub use error::StoreError;
pub use facts::LiveUse;
pub use failpoint::{FailPoints, Inert, Point};
pub use logins::{DueLogin, LoginTurn};
pub use plans::{BeginDelete, Claimed, Whose};
pub use record::{
    ByteLimits, Held, Idempotency, Mark, NewTemplate, PlanKind, QuotaExceeded, QuotaLimits, Reservation, ReserveError,
    Reserved, Sandbox, Source, State,
};
pub use sandboxes::{After, Find, ListQuery, SealedPasswords};
pub use servers::HEARTBEAT_INTERVAL;
pub use session::{DirectSessions, ServerSessions, Sessions, StoreSession};
pub use templates::{Template, TemplateLimits, TemplateRefused};

/// The metadata of one profile.
pub struct Store {
    profile: String,
    prefix: String,
    sessions: Arc<dyn Sessions>,
    points: Arc<dyn FailPoints>,
    /// Our number among the servers on this metadata; 0 until the store is open.
    number: AtomicI32,
    /// The session whose lock says that we live.
    presence: Mutex<Option<Arc<Presence>>>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("profile", &self.profile).field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl Store {
    /// Describes the metadata of a profile; nothing is connected yet.
    ///
    /// Profiles are told apart by `prefix`, so a profile may be renamed; `profile` is for messages.
    pub fn new(profile: &str, prefix: &str, sessions: Arc<dyn Sessions>, points: Arc<dyn FailPoints>) -> Self {
        Self {
            profile: profile.to_owned(),
            prefix: prefix.to_owned(),
            sessions,
            points,
            number: AtomicI32::new(0),
            presence: Mutex::default(),
        }
    }

    /// Returns a session, having passed the point of the statement that it is for.
    async fn session(&self, statement: &'static str) -> Result<StoreSession, StoreError> {
        self.pass(statement).await?;
        self.sessions.session().await.map_err(|error| error.of_profile(&self.profile))
    }

    async fn pass(&self, statement: &'static str) -> Result<(), StoreError> {
        fault::pass_of(&["store.", statement]).await.map_err(|injected| self.injected(&injected))?;
        let point = Point::Statement(statement);
        if self.points.fails_at(point).await { Err(StoreError::Stopped(point)) } else { Ok(()) }
    }

    /// Passes the point after a statement that has taken effect: what its caller does not hear of has happened.
    async fn written(&self, statement: &'static str) -> Result<(), StoreError> {
        fault::pass_of(&["store.", statement, ".written"]).await.map_err(|injected| self.injected(&injected))
    }

    fn injected(&self, injected: &fault::Injected) -> StoreError {
        StoreError::injected(injected).of_profile(&self.profile)
    }

    /// Returns a function that types the driver's errors of one statement.
    fn typed(&self, action: &'static str) -> impl Fn(tokio_postgres::Error) -> StoreError {
        let from_driver = StoreError::from_driver(action);
        move |error| from_driver(error).of_profile(&self.profile)
    }
}
