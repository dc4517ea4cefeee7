//! What can go wrong with the metadata.

use tokio_postgres::error::SqlState;

use super::Point;
use crate::engine::{EngineError, because, metadata_owner, metadata_right, server_condition};
use crate::model::fault::Injected;
use crate::model::{Code, Failure, SandboxId};

/// What can go wrong with the metadata.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The server cannot be reached, or the connection was lost.
    #[error("the metadata database of profile `{profile}` cannot be reached")]
    Unreachable {
        /// The profile's name, or empty where it is not known yet.
        profile: String,
        /// What the driver said.
        detail: String,
    },
    /// The engine could not give a session.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The server refused a statement.
    #[error("the metadata database refused to {action} (SQLSTATE {sqlstate})")]
    Refused {
        /// What was attempted.
        action: &'static str,
        /// The five-character code.
        sqlstate: String,
        /// The server's message.
        detail: String,
    },
    /// There is a schema of our name that another program wrote.
    #[error("schema `pgsandbox` of database `{database}` was not written by this program: {fault}")]
    Foreign {
        /// The metadata database.
        database: String,
        /// How it is known.
        fault: String,
    },
    /// The admin may not make the schema.
    #[error("role `{role}` may not make the schema `pgsandbox` in database `{database}`")]
    NoRight {
        /// The metadata database.
        database: String,
        /// The admin.
        role: String,
    },
    /// There is a schema of our name, and it belongs to another role.
    #[error("schema `pgsandbox` of database `{database}` does not belong to role `{role}`")]
    NotOwned {
        /// The metadata database.
        database: String,
        /// The admin.
        role: String,
    },
    /// The schema was written by a newer version of this program.
    #[error("schema `pgsandbox` of database `{database}` has version {found}; this program knows up to {known}")]
    Newer {
        /// The metadata database.
        database: String,
        /// Its version.
        found: i32,
        /// The newest version this program knows.
        known: i32,
    },
    /// Another server took the plan over.
    #[error("another server has taken over the work on the sandbox")]
    Fenced,
    /// The store is used before it is opened.
    #[error("the metadata of profile `{0}` is not open")]
    NotOpen(String),
    /// A sandbox's row holds a value that this program does not write there: somebody has edited it.
    #[error("the metadata of sandbox {sandbox} was changed by another: {what} is not as this program writes it")]
    Damaged {
        /// The sandbox.
        sandbox: SandboxId,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A stored value is none that this program writes.
    #[error("the metadata holds a value that this program does not write: {0}")]
    Corrupt(&'static str),
    /// A test made it fail.
    #[error("stopped at `{0}`")]
    Stopped(Point),
}

impl StoreError {
    /// Returns a function that types the driver's errors of one action.
    pub fn from_driver(action: &'static str) -> impl Fn(tokio_postgres::Error) -> Self {
        move |error| {
            let Some(db) = error.as_db_error() else {
                return Self::Unreachable { profile: String::new(), detail: chain(&error) };
            };
            let code = db.code();
            let shutting_down = [
                &SqlState::ADMIN_SHUTDOWN,
                &SqlState::CRASH_SHUTDOWN,
                &SqlState::CANNOT_CONNECT_NOW,
                &SqlState::TOO_MANY_CONNECTIONS,
            ];
            if code.code().starts_with("08") || shutting_down.contains(&code) {
                return Self::Unreachable { profile: String::new(), detail: db.message().to_owned() };
            }
            Self::Refused { action, sqlstate: code.code().to_owned(), detail: db.message().to_owned() }
        }
    }

    /// Says what a test wants a server to have done: refused with a code, or gone.
    pub(super) fn injected(injected: &Injected) -> Self {
        match injected.sqlstate() {
            Some(sqlstate) => Self::Refused {
                action: "do as it was asked",
                sqlstate: sqlstate.to_owned(),
                detail: "a test made it fail".to_owned(),
            },
            None => Self::Unreachable { profile: String::new(), detail: "a test made it fail".to_owned() },
        }
    }

    /// Names the profile, where the place of the error did not know it.
    #[must_use]
    pub fn of_profile(mut self, name: &str) -> Self {
        if let Self::Unreachable { profile, .. } = &mut self
            && profile.is_empty()
        {
            name.clone_into(profile);
        }
        self
    }

    /// Returns whether the same may succeed once the server is reached again.
    pub fn is_connection(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Engine(EngineError::Unreachable { .. }))
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let text = error.to_string();
        match error {
            StoreError::Unreachable { detail, .. } => {
                Self::new(Code::PostgresConnectionFailed, because(&text, &detail))
                    .hint("see whether the server runs, then call again")
                    .audit(detail)
            }
            StoreError::Engine(error) => error.into(),
            StoreError::Refused { sqlstate, detail, .. } => {
                let (code, hint) = server_condition(&sqlstate)
                    .unwrap_or((Code::Internal, "see the log under the request id, and `pgsandbox doctor`"));
                let mut failure = Self::new(code, text).hint(hint).audit(detail);
                failure.detail_mut().sqlstate = Some(sqlstate);
                failure
            }
            StoreError::Damaged { .. } => Self::new(Code::MetadataDamaged, text).hint(
                "nothing was done with it: have an operator put its row in `pgsandbox.sandboxes` right; \
                 `pgsandbox doctor` lists all such rows",
            ),
            StoreError::Foreign { .. } => Self::new(Code::InvalidConfiguration, text)
                .hint("use another admin database, or move the schema away; it was not touched"),
            StoreError::NoRight { database, role } => metadata_right(&database, &role),
            StoreError::NotOwned { database, role } => metadata_owner(&database, &role),
            StoreError::Newer { .. } => Self::new(Code::InvalidConfiguration, text)
                .hint("use the newer version of this program; the schema was not touched"),
            StoreError::Fenced => Self::new(Code::Busy, text).hint("look at the sandbox again before a second try"),
            StoreError::Corrupt(_) => Self::new(Code::MetadataDamaged, text)
                .hint("have an operator look at schema `pgsandbox`, and restore it from a backup if need be"),
            StoreError::NotOpen(_) | StoreError::Stopped(_) => Self::new(Code::Internal, text),
        }
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
