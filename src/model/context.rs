//! The facts on which a request is decided: gathered once, small, and free of secrets.

use super::{Impact, Principal, RequestId, SandboxId, StatementFacts, Timestamp};

/// When policies are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Could this principal ever use the operation? For lists.
    Visible,
    /// May the request run?
    Before,
    /// May the result be released?
    After,
}

impl Phase {
    /// Returns the word used in records.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Visible => "visible",
            Self::Before => "before",
            Self::After => "after",
        }
    }
}

/// All there is to know when a request is decided.
///
/// The request's id is *not* shown to policies, so that decisions can be compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    pub request_id: RequestId,
    pub phase: Phase,
    /// The operation's name, `run_sql` for instance.
    pub operation: &'static str,
    pub impact: Impact,
    pub principal: Principal,
    /// The owner that the caller named beneath the principal, or the named sandbox's group owner.
    pub group_owner: Option<String>,
    pub now: Timestamp,
    pub server: Option<ServerFacts>,
    pub sandbox: Option<SandboxFacts>,
    pub principal_usage: Option<Usage>,
    pub group_usage: Option<Usage>,
    pub statements: Vec<StatementFacts>,
    /// The statements' texts, in order, where the operator grants them to policies; else empty.
    pub statement_texts: Vec<String>,
    pub clone_source: Option<CloneSource>,
    pub requested: Requested,
    pub outcome: Option<OutcomeFacts>,
}

/// The profile and server a request is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFacts {
    pub profile: String,
    /// The kind of engine, `postgres` for instance.
    pub engine: String,
    /// The server's major version, where it is known without starting anything.
    pub major: Option<u16>,
    pub managed: bool,
}

/// Where a sandbox's first contents came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    Empty,
    Clone,
    Fork,
    Template,
}

impl Origin {
    /// Returns the word used in records.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Clone => "clone",
            Self::Fork => "fork",
            Self::Template => "template",
        }
    }
}

/// An existing sandbox that a request is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxFacts {
    pub id: SandboxId,
    pub name: String,
    /// The authenticated owner that created it.
    pub owner: String,
    pub group_owner: Option<String>,
    /// Sorted by key.
    pub labels: Vec<(String, String)>,
    pub origin: Origin,
    pub created_at: Timestamp,
    pub expires_at: Timestamp,
    /// Size when last measured.
    pub bytes: Option<u64>,
}

/// Live sandboxes of one owner on one profile, and their bytes when last measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub live: u32,
    pub bytes: u64,
}

/// How a connection to a server is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TlsMode {
    Disable,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

/// A database to be cloned. There is no password in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloneSource {
    pub name: Option<String>,
    pub host: String,
    pub port: u16,
    pub database: String,
    pub user: String,
    pub tls: TlsMode,
    pub production: bool,
    pub schema_only: bool,
    pub reason: Option<String>,
}

/// Which role's credentials are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CredentialAccess {
    Owner,
    ReadOnly,
}

/// What the caller asked for, where the operation has such an argument.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requested {
    pub ttl_minutes: Option<u64>,
    pub rows: Option<u64>,
    pub timeout_ms: Option<u64>,
    pub read_only: bool,
    /// Set where raw credentials are asked for.
    pub credentials: Option<CredentialAccess>,
    /// Labels of a sandbox to be made, or filters of a list; sorted by key.
    pub labels: Vec<(String, String)>,
    pub extensions: Vec<String>,
    pub command: Vec<String>,
}

/// Facts of a result, for the `after` phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutcomeFacts {
    pub rows: u64,
    pub bytes: u64,
    pub elapsed_ms: u64,
    pub columns: Vec<String>,
}
