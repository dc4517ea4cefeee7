//! What a sandbox is made of, as the lifecycle core sees it.
//!
//! The core plans, journals and recovers; an engine knows how each step is done and taken back. Every
//! step may find its work done already, and every undo may find nothing to take back: both succeed.
//! An engine never touches what does not bear the names in the [`SandboxSpec`] it is given.

pub mod postgres;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;

use crate::model::fault::Injected;
use crate::model::{
    Check, Code, CredentialAccess, Failure, Progress, SandboxId, SandboxKind, SandboxNames, Schema, SchemaFilter,
    Secret, Timestamp, counted,
};

/// All that an engine needs to make, find and remove one sandbox.
#[derive(Clone, Debug)]
pub struct SandboxSpec {
    /// The sandbox.
    pub id: SandboxId,
    /// Names of its database and roles.
    pub names: SandboxNames,
    /// The owner role's password.
    pub owner_password: Secret,
    /// The read-only role's password.
    pub readonly_password: Secret,
    /// When its time is over.
    pub expires_at: Timestamp,
    /// Extensions to be installed, in order, all allowed already.
    pub extensions: Vec<String>,
    /// What it is for.
    pub kind: SandboxKind,
    /// What it is filled with while it is made; of no account afterwards.
    pub contents: Contents,
}

/// What a new sandbox is filled with.
///
/// It is not stored: a creation that was interrupted is taken back, never carried on, and taking back asks only for
/// the names of the steps.
#[derive(Clone, Debug, Default)]
pub enum Contents {
    /// Nothing but its extensions.
    #[default]
    Empty,
    /// A copy of another sandbox, or of a template, on the same server.
    Copy {
        /// Its id.
        id: SandboxId,
        /// Its names.
        names: SandboxNames,
        /// Where the copy is made only to be written to a file, and then taken back.
        dump: Option<Arc<postgres::DumpJob>>,
        /// How large it was, where that was looked at ahead.
        source_bytes: Arc<OnceLock<u64>>,
        /// What is seen of the copy while it is made.
        seen: Arc<OnceLock<Seen>>,
    },
    /// A copy of a database of another server.
    Clone(Arc<postgres::CloneJob>),
    /// What was dumped to a file before.
    Restore(Arc<postgres::RestoreJob>),
}

/// What was seen of a copy by who gave it to its roles: nobody has to go in again to learn it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The extensions that came with it, in no order.
    pub extensions: Vec<String>,
    /// Its size, or that of what it is a copy of.
    pub bytes: u64,
}

/// One step of a plan, as data: what the journal stores is its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Step {
    /// Stable, unique within its engine, `create-roles` for instance.
    pub name: &'static str,
    /// For progress: what is being done, without names.
    pub label: &'static str,
    /// Whether all that it does is taken back with what an earlier step made. It is noted together with the step before it.
    pub inner: bool,
    /// Whether it keeps its own time, and ends by itself when it is cancelled.
    pub paced: bool,
}

impl Contents {
    /// A copy of another sandbox, or of a template, on the same server.
    pub fn copy(id: SandboxId, names: SandboxNames) -> Self {
        Self::Copy { id, names, dump: None, source_bytes: Arc::default(), seen: Arc::default() }
    }

    /// Returns what was seen of a copy while it was made.
    pub fn seen(&self) -> Option<&Seen> {
        match self {
            Self::Copy { seen, .. } => seen.get(),
            Self::Empty | Self::Clone(_) | Self::Restore(_) => None,
        }
    }
}

impl Step {
    /// A step that has lines of its own in the journal.
    pub const fn new(name: &'static str, label: &'static str) -> Self {
        Self { name, label, inner: false, paced: false }
    }

    /// A step that is noted together with the one before it.
    pub const fn inner(name: &'static str, label: &'static str) -> Self {
        Self { name, label, inner: true, paced: false }
    }

    /// The same, for a step that keeps its own time.
    #[must_use]
    pub const fn paced(mut self) -> Self {
        self.paced = true;
        self
    }
}

/// How a sandbox is removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteSteps {
    /// Done before the caller is answered: nobody can log in any more.
    pub foreground: Vec<Step>,
    /// Done afterwards, retried until they succeed.
    pub background: Vec<Step>,
}

/// The server behind a profile, once it answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerInfo {
    /// The major version.
    pub major: u16,
    /// The full version, as the server says it.
    pub version: String,
    /// Whether the admin session is a superuser's.
    pub superuser: bool,
}

/// The check of [`Engine::verify`] that the owner logs in; it fails where [`Engine::set_login`] took the login away.
pub const OWNER_LOGIN_CHECK: &str = "sandbox.login";

/// Something that bears a profile's prefix on a server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Found {
    /// `database` or `role`.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
}

/// Where and as whom a sandbox is reached. The password is kept apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionInfo {
    /// Host name, address, or socket directory.
    pub host: String,
    /// TCP port, or the socket's number.
    pub port: u16,
    /// The sandbox's database.
    pub database: String,
    /// The role to log in as.
    pub user: String,
    /// Query parameters of a URL, `sslmode` for instance.
    pub parameters: Vec<(String, String)>,
}

/// A kind of sandbox.
#[async_trait]
pub trait Engine: Send + Sync + 'static {
    /// Returns the engine's name, `postgres` for instance; stored in metadata.
    fn kind(&self) -> &'static str;

    /// Returns whether this program manages the server itself.
    fn managed(&self) -> bool;

    /// Returns the major version, where it is known without starting or asking anything.
    fn known_major(&self) -> Option<u16>;

    /// Makes the server answer, starting it if it is managed, and says what it is.
    async fn ready(&self) -> Result<ServerInfo, EngineError>;

    /// Returns the steps that make any sandbox of a kind with such contents: the first of them is written down with its
    /// row, before it is known.
    fn create_steps(&self, kind: SandboxKind, contents: &Contents) -> Vec<Step>;

    /// Returns every step that this version may have begun while making a sandbox, whatever its kind and contents: what
    /// is taken back is found among them by name.
    fn known_steps(&self) -> Vec<Step>;

    /// Returns the step that comes before those that make a sandbox, where one that is ready is made anew: it leaves
    /// the roles, and nothing else. It is taken back by removing the sandbox.
    fn reset_step(&self) -> Step;

    /// Says what keeps a sandbox or template from being copied, apart from who uses it just now. Changes nothing.
    async fn check_copy(&self, source: &SandboxSpec) -> Result<(), EngineError>;

    /// Waits a moment until nobody uses a sandbox that is to be copied. Says how many do, if that takes longer.
    async fn await_unused(&self, source: &SandboxSpec) -> Result<(), EngineError>;

    /// Looks how large what is to be copied is, for the steps that want to know: before them, beside something else that is
    /// waited for. Where that cannot be learnt now, they ask themselves.
    async fn look_ahead(&self, contents: &Contents);

    /// Returns the steps that remove a sandbox in any state, half-made ones too.
    fn delete_steps(&self) -> DeleteSteps;

    /// Does one step. Succeeds if it was done before.
    async fn run(&self, step: Step, sandbox: &SandboxSpec) -> Result<(), EngineError>;

    /// Takes one create step back. Succeeds if there is nothing to take back.
    async fn undo(&self, step: Step, sandbox: &SandboxSpec) -> Result<(), EngineError>;

    /// Makes the sandbox's logins end at `expires_at`.
    async fn set_expiry(&self, sandbox: &SandboxSpec, expires_at: Timestamp) -> Result<(), EngineError>;

    /// Takes the owner's direct login away and ends its sessions, or gives the login back: what happens to a sandbox
    /// over its byte quota. Read-only calls of ours go on; the reader's direct logins go as well where the server is managed.
    /// Succeeds if it was done before.
    async fn set_login(&self, sandbox: &SandboxSpec, allowed: bool) -> Result<(), EngineError>;

    /// Lets a role's direct logins in, from when its credentials are given out on; where somebody else decides who may log in,
    /// it does nothing. Succeeds if it was done before.
    async fn admit_direct(&self, _sandbox: &SandboxSpec, _access: CredentialAccess) -> Result<(), EngineError> {
        Ok(())
    }

    /// Ends direct sessions of roles whose direct logins are taken away: one that had begun before may be left.
    async fn end_kept_out(&self) -> Result<(), EngineError> {
        Ok(())
    }

    /// Returns the sandbox's size in bytes.
    async fn measure(&self, sandbox: &SandboxSpec) -> Result<u64, EngineError>;

    /// Looks at a source before it is copied, and at what the copy needs here; keeps in the job what it found. Changes
    /// nothing, there or here.
    async fn examine_source(&self, job: &postgres::CloneJob) -> Result<(), EngineError> {
        Err(EngineError::Unsupported(format!("{} cannot be copied to this kind of sandbox", job.shown)))
    }

    /// Looks at what a dump in a file needs here, before anything is made for it. Changes nothing.
    async fn examine_dump(
        &self,
        wanted: postgres::Wanted,
        _dump: postgres::InFile,
    ) -> Result<postgres::RestoreJob, EngineError> {
        Err(EngineError::Unsupported(format!("{} cannot be restored to this kind of sandbox", wanted.shown)))
    }

    /// Removes what copies have left that were killed on the way.
    async fn sweep_copies(&self) {}

    /// Returns how many bytes are free on the disk of the sandboxes, if it can be seen from here.
    fn disk_left(&self) -> Option<u64> {
        None
    }

    /// Keeps a part of that disk back again, for a server that could not start otherwise.
    fn keep_ballast(&self) {}

    /// Gives that part up, if there is nothing else left of the disk. Returns whether that made room.
    fn give_up_ballast(&self) -> bool {
        false
    }

    /// Keeps what is needed to tell who has taken what all of the server's share, with the owner of each sandbox by its
    /// database's name. Returns the databases of sandboxes that were kept out for that and are to be let in again.
    async fn keep_watch(&self, _owners: HashMap<String, String>) -> Vec<String> {
        Vec::new()
    }

    /// Makes room for other programs that ask for it, where it is known here who has taken all; sees to it that it is known as
    /// soon as the server runs. Starts nothing.
    async fn relieve_others(&self) {}

    /// Returns whether few of the server's connections are left, where this program sees to it that there are some. Starts
    /// nothing.
    async fn is_crowded(&self) -> bool {
        false
    }

    /// Ends direct sessions of an owner who has taken more than its share of the connections, where few are left; `owners` has
    /// that of each sandbox, by its database's name, if it is known better than at the last watch. Returns whether any were ended.
    async fn part_crowd(&self, _owners: Option<HashMap<String, String>>) -> bool {
        false
    }

    /// Makes room where other sandboxes than that of `database` have taken what all of the server's share. Returns whether they
    /// had; `false` where it cannot be told.
    async fn relieve_of_others(&self, _database: &str) -> bool {
        false
    }

    /// Lets a sandbox's roles in again, as they were made.
    async fn let_in(&self, _sandbox: &SandboxSpec) -> Result<(), EngineError> {
        Ok(())
    }

    /// Makes room where one session has taken what all of the server's share, as far as that can be done from outside. Where
    /// the server lets us in it does nothing.
    async fn relieve(&self) {}

    /// Returns everything on the server that bears `prefix`, tracked or not.
    async fn inventory(&self, prefix: &str) -> Result<Vec<Found>, EngineError>;

    /// Checks a sandbox against what it promises: identity, rights, ownership, memberships, isolation.
    async fn verify(&self, sandbox: &SandboxSpec) -> Result<Vec<Check>, EngineError>;

    /// Returns the extensions that can be installed with this admin, none that lead out of a sandbox.
    async fn available_extensions(&self) -> Result<Vec<ExtensionInfo>, EngineError>;

    /// Says whether a sandbox can be made with these extensions, in this order. Installs nothing.
    async fn check_extensions(&self, wanted: &[String]) -> Result<(), EngineError>;

    /// Returns (name, version) of the extensions installed in a sandbox.
    async fn installed_extensions(&self, sandbox: &SandboxSpec) -> Result<Vec<(String, String)>, EngineError>;

    /// Opens a session that reads a sandbox's catalogue.
    async fn catalogue(&self, sandbox: &SandboxSpec) -> Result<postgres::CatalogueSession, EngineError> {
        let _ = sandbox;
        Err(EngineError::Unsupported(format!("sandboxes of engine `{}` have no schema to be read", self.kind())))
    }

    /// Returns the schema of a sandbox, or a part of it, without the sandbox's own names, over a session into it. Where
    /// that fails, the session is not to be used again.
    async fn schema(
        &self,
        session: &mut postgres::CatalogueSession,
        sandbox: &SandboxSpec,
        filter: &SchemaFilter,
    ) -> Result<Schema, EngineError> {
        let (_, _, _) = (session, sandbox, filter);
        Err(EngineError::Unsupported(format!("sandboxes of engine `{}` have no schema to be read", self.kind())))
    }

    /// Returns how the sandbox is reached from this machine.
    fn connection(&self, sandbox: &SandboxSpec, access: CredentialAccess) -> ConnectionInfo;

    /// Opens a session as one of the sandbox's own roles, for the caller's SQL.
    async fn session(
        &self,
        sandbox: &SandboxSpec,
        access: CredentialAccess,
    ) -> Result<postgres::SandboxSession, EngineError>;

    /// Gives the read-only role again what it may see, where the owner's SQL took it away. Returns whether any was missing.
    /// Nothing of it goes on after `within`, on the server either.
    async fn restore_reads(&self, sandbox: &SandboxSpec, within: Duration) -> Result<bool, EngineError>;

    /// Returns the server's major version, or the one that a server of ours would be made of. Looks, and starts nothing.
    async fn major_ahead(&self) -> Option<u16> {
        self.known_major()
    }

    /// Returns majors and full versions of the servers on this machine that one of ours could be made of, newest first.
    async fn versions_installed(&self) -> Vec<(u16, String)> {
        Vec::new()
    }

    /// Installs a server on this machine, of which one of ours can be made, and returns its version. Without a major it is
    /// the one that the package manager prefers. Nothing is started.
    async fn install(&self, _major: Option<u16>, _progress: &dyn Progress) -> Result<String, EngineError> {
        Err(EngineError::Unsupported("the profile's server is not one that this program runs".to_owned()))
    }

    /// Returns what the server says of itself that no other says, however it is reached. Looks, and starts nothing.
    async fn identity(&self) -> Result<Option<String>, EngineError> {
        Ok(None)
    }

    /// Checks the server for `doctor`: looks, and starts nothing.
    async fn health(&self) -> Vec<Check>;

    /// Returns what there is of the server. Looks, and starts nothing; one that is not ours to start is taken to run.
    async fn standing(&self) -> Result<Standing, EngineError> {
        Ok(Standing::Runs)
    }
}

/// What there is of a server that this program may have to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It can be asked.
    Runs,
    /// It is there, and does not run.
    Stopped,
    /// It was never made, so nothing is on it.
    Unmade,
}

/// An extension that a server offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtensionInfo {
    /// Its name.
    pub name: String,
    /// The version that `CREATE EXTENSION` installs.
    pub default_version: String,
    /// Whether a database owner may install it without being a superuser.
    pub trusted: bool,
    /// The extensions that have to be there before it.
    pub requires: Vec<String>,
    /// The server's one-line description.
    pub comment: String,
}

/// Postgres' code for a disk without room.
pub const DISK_FULL: &str = "53100";
/// What to do about it.
pub const DISK_FULL_HINT: &str =
    "delete sandboxes that are not needed, or have an operator free space on the server's disk";

/// Postgres' code for memory that all of its sessions share, and is used up: its table of locks, for instance.
pub const STARVED: &str = "53200";

/// Says what an error code of the server's says of its condition, apart from what was asked of it: the code for callers,
/// and what to do.
pub(crate) fn server_condition(sqlstate: &str) -> Option<(Code, &'static str)> {
    Some(match sqlstate {
        DISK_FULL => (Code::DiskFull, DISK_FULL_HINT),
        "25006" => (
            Code::ServerReadOnly,
            "the server takes no writes: give the profile the address of the primary server, or have an operator end \
             its read-only mode",
        ),
        // too_many_connections
        "53300" => (Code::Busy, "close sessions that are not needed, or call again later"),
        // insufficient_resources, out_of_memory, configuration_limit_exceeded
        "53000" | STARVED | "53400" => {
            (Code::Busy, "the server is short of memory or another resource; call again later")
        }
        // lock_not_available, deadlock_detected, query_canceled
        "55P03" | "40P01" | "57014" => (Code::Busy, "the server is slow, or others hold a lock; call again later"),
        // system_error, io_error, undefined_file, duplicate_file
        "58000" | "58030" | "58P01" | "58P02" => (
            Code::PostgresConnectionFailed,
            "the server could not use its files: have an operator look at its disk and log",
        ),
        _ => return None,
    })
}

/// What can go wrong in an engine.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EngineError {
    /// The server cannot be reached, or the connection was lost.
    #[error("the server of profile `{profile}` cannot be reached")]
    Unreachable {
        /// The profile's name.
        profile: String,
        /// What the system or the driver said; holds no secret.
        detail: String,
    },
    /// The server does not accept the credentials.
    #[error("the server of profile `{profile}` does not accept the credentials of `{user}`")]
    Auth {
        /// The profile's name.
        profile: String,
        /// The role.
        user: String,
    },
    /// The server, the database or the role has no connection left.
    #[error("the server of profile `{profile}` has no connection left")]
    Crowded {
        /// The profile's name.
        profile: String,
    },
    /// Others use the thing.
    #[error("{what} is in use by {}", counted(.sessions, "other session", "other sessions"))]
    Busy {
        /// What is in use.
        what: String,
        /// How many sessions use it.
        sessions: u32,
    },
    /// The server refused a statement of ours.
    #[error("the server refused to {action} (SQLSTATE {sqlstate})")]
    Refused {
        /// What was attempted, in words.
        action: &'static str,
        /// The five-character code.
        sqlstate: String,
        /// The server's message, from statements of ours that hold no secret.
        detail: String,
    },
    /// The engine cannot do what is asked.
    #[error("{0}")]
    Unsupported(String),
    /// The server, or the admin's place on it, cannot be used before an operator has changed something.
    #[error("{}", .failure.message)]
    Unsuited {
        /// The check of `doctor` that this fails, `postgres.admin` for instance.
        check: &'static str,
        /// What is wrong, and as its hint what to change.
        failure: Box<Failure>,
    },
    /// The failure is known to the contract.
    #[error("{0}")]
    Known(Box<Failure>),
}

impl EngineError {
    /// Says what a test wants a server to have done: refused with a code, or gone.
    pub fn injected(injected: &Injected, profile: &str) -> Self {
        match injected.sqlstate() {
            Some(sqlstate) => Self::Refused {
                action: "do as it was asked",
                sqlstate: sqlstate.to_owned(),
                detail: "a test made it fail".to_owned(),
            },
            None => Self::Unreachable { profile: profile.to_owned(), detail: "a test made it fail".to_owned() },
        }
    }

    /// Says that an operator has to change something first, and what.
    pub fn unsuited(check: &'static str, code: Code, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Unsuited { check, failure: Box::new(Failure::new(code, message).hint(remedy)) }
    }
}

impl From<EngineError> for Failure {
    /// Words the error for a caller; what the server said of a statement goes to the log.
    fn from(error: EngineError) -> Self {
        let message = error.to_string();
        match error {
            EngineError::Unreachable { detail, .. } => {
                Self::new(Code::PostgresConnectionFailed, because(&message, &detail))
                    .hint("see `pgsandbox doctor`; the call may be repeated once the server answers")
                    .audit(detail)
            }
            EngineError::Auth { .. } => Self::new(Code::PostgresAuthFailed, message)
                .hint("see the user and the password of the profile, and `pg_hba.conf` of its server"),
            EngineError::Crowded { .. } => Self::new(Code::Busy, message).hint(
                "close sessions that are not needed, those of the sandbox's own clients first, or raise \
                 `max_connections`; then call again",
            ),
            EngineError::Busy { .. } => {
                Self::new(Code::Busy, message).hint("try again when the other sessions have ended")
            }
            EngineError::Refused { sqlstate, detail, .. } => {
                let (code, hint) = server_condition(&sqlstate)
                    .unwrap_or((Code::Internal, "see the log under the request id, and `pgsandbox doctor`"));
                let mut failure = Self::new(code, message).hint(hint).audit(detail);
                failure.detail_mut().sqlstate = Some(sqlstate);
                failure
            }
            EngineError::Unsupported(_) => {
                Self::new(Code::InvalidConfiguration, message).hint("see `pgsandbox doctor`")
            }
            EngineError::Unsuited { failure, .. } | EngineError::Known(failure) => *failure,
        }
    }
}

/// Joins what happened with its cause, where the cause says more.
pub fn because(message: &str, cause: &str) -> String {
    match cause.strip_prefix("the server cannot be reached: ").unwrap_or(cause) {
        "" => message.to_owned(),
        cause => format!("{message}: {cause}"),
    }
}

/// The failure of an admin that may not make the metadata schema.
pub fn metadata_right(database: &str, role: &str) -> Failure {
    let (quoted, quoted_role) = (quote(database), quote(role));
    let text = format!("role `{role}` may not make the schema `pgsandbox`, for its records, in database `{database}`");
    Failure::new(Code::InvalidConfiguration, text).hint(format!(
        "run in that database as its owner or a superuser: GRANT CREATE ON DATABASE {quoted} TO {quoted_role}; or: \
         CREATE SCHEMA pgsandbox AUTHORIZATION {quoted_role}"
    ))
}

/// The failure of an admin whose metadata schema belongs to somebody else.
pub fn metadata_owner(database: &str, role: &str) -> Failure {
    let text = format!("schema `pgsandbox` of database `{database}` does not belong to role `{role}`");
    Failure::new(Code::InvalidConfiguration, text).hint(format!(
        "log in as the role that owns it, or, if it is meant for this program, run there: \
         ALTER SCHEMA pgsandbox OWNER TO {}",
        quote(role)
    ))
}

/// Quotes an identifier, for a statement that somebody is to run.
fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A shared engine.
pub type SharedEngine = Arc<dyn Engine>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_cannot_be_reached_is_told_with_the_cause_once() {
        let told = |detail: &str| {
            let error = EngineError::Unreachable { profile: "p".to_owned(), detail: detail.to_owned() };
            Failure::from(error).message
        };
        let refused = "the server cannot be reached: Connection refused (os error 111)";
        assert_eq!(told(refused), "the server of profile `p` cannot be reached: Connection refused (os error 111)");
        assert_eq!(told("connection closed"), "the server of profile `p` cannot be reached: connection closed");
        assert_eq!(told(""), "the server of profile `p` cannot be reached");
    }
}
