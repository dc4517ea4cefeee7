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
    /// The request.
    pub request_id: RequestId,
    /// When the policies are asked.
    pub phase: Phase,
    /// The operation's name, `run_sql` for instance.
    pub operation: &'static str,
    /// The operation's impact.
    pub impact: Impact,
    /// Who asks.
    pub principal: Principal,
    /// The owner that the caller named beneath the principal, or the named sandbox's group owner.
    pub group_owner: Option<String>,
    /// When the facts were gathered.
    pub now: Timestamp,
    /// The profile that the request was resolved to.
    pub server: Option<ServerFacts>,
    /// The sandbox that the request was resolved to.
    pub sandbox: Option<SandboxFacts>,
    /// Use of the principal's owner, where the operation makes or fills sandboxes.
    pub principal_usage: Option<Usage>,
    /// Use of the group owner, likewise.
    pub group_usage: Option<Usage>,
    /// The request's statements in order, where it carries SQL.
    pub statements: Vec<StatementFacts>,
    /// The statements' texts, in order, where the operator grants them to policies; else empty.
    pub statement_texts: Vec<String>,
    /// The source, where one is to be cloned.
    pub clone_source: Option<CloneSource>,
    /// What the caller asked for.
    pub requested: Requested,
    /// Facts of the result, in phase `after` only.
    pub outcome: Option<OutcomeFacts>,
}

/// The profile and server a request is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFacts {
    /// The profile's name.
    pub profile: String,
    /// The kind of engine, `postgres` for instance.
    pub engine: String,
    /// The server's major version, where it is known without starting anything.
    pub major: Option<u16>,
    /// Whether this program manages the cluster itself.
    pub managed: bool,
}

/// Where a sandbox's first contents came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// Nothing was put in.
    Empty,
    /// Copied from another server with dump and restore.
    Clone,
    /// Copied from another sandbox.
    Fork,
    /// Copied from a template.
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
    /// Its identity.
    pub id: SandboxId,
    /// Its name, which is its database's.
    pub name: String,
    /// The authenticated owner that created it.
    pub owner: String,
    /// The group owner named when it was created.
    pub group_owner: Option<String>,
    /// Sorted by key.
    pub labels: Vec<(String, String)>,
    /// Where its first contents came from.
    pub origin: Origin,
    /// When it was created.
    pub created_at: Timestamp,
    /// When its time is over.
    pub expires_at: Timestamp,
    /// Size when last measured.
    pub bytes: Option<u64>,
}

/// Live sandboxes of one owner on one profile, and their bytes when last measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// How many are live, expired ones that are still there included.
    pub live: u32,
    /// Their size together, in bytes.
    pub bytes: u64,
}

/// How a connection to a server is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TlsMode {
    /// Never encrypted.
    Disable,
    /// Encrypted if the server offers it; unverified.
    Prefer,
    /// Encrypted; the certificate is not verified.
    Require,
    /// Encrypted; the certificate's issuer is verified.
    VerifyCa,
    /// Encrypted; issuer and host name are verified.
    VerifyFull,
}

/// A database to be cloned. There is no password in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloneSource {
    /// The configured name, or none where the caller gave a URL.
    pub name: Option<String>,
    /// Host name, address or socket directory.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Database.
    pub database: String,
    /// User.
    pub user: String,
    /// How the connection is protected.
    pub tls: TlsMode,
    /// Whether the operator marked it as production.
    pub production: bool,
    /// Whether only the schema is wanted.
    pub schema_only: bool,
    /// Why the caller wants it.
    pub reason: Option<String>,
}

/// Which role's credentials are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CredentialAccess {
    /// The role that owns the database.
    Owner,
    /// Its read-only companion.
    ReadOnly,
}

/// What the caller asked for, where the operation has such an argument.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requested {
    /// Minutes to live.
    pub ttl_minutes: Option<u64>,
    /// Rows per result set.
    pub rows: Option<u64>,
    /// Milliseconds for the statements.
    pub timeout_ms: Option<u64>,
    /// Whether the call is to be read-only.
    pub read_only: bool,
    /// Set where raw credentials are asked for.
    pub credentials: Option<CredentialAccess>,
    /// Labels of a sandbox to be made, or filters of a list; sorted by key.
    pub labels: Vec<(String, String)>,
    /// Extensions of a sandbox to be made.
    pub extensions: Vec<String>,
    /// A repository command: program and arguments.
    pub command: Vec<String>,
}

/// Facts of a result, for the `after` phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutcomeFacts {
    /// Rows of all result sets.
    pub rows: u64,
    /// Bytes of row data.
    pub bytes: u64,
    /// Milliseconds the work took.
    pub elapsed_ms: u64,
    /// Column names of all result sets.
    pub columns: Vec<String>,
}
