//! Failures as callers see them: a stable code, a message, and what to do.
//!
//! Each part has typed errors of its own and says, beside their definition, which failure each becomes.
//! Nothing reads a message to find out what happened.

use std::fmt;

/// A failure as a caller gets it. Holds no secret and no literal of the caller's SQL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The stable code.
    pub code: Code,
    /// What happened, to what: lower case, no full stop, names in backticks.
    pub message: String,
    /// What to do.
    pub hint: Option<String>,
    /// The arguments that the hint names, each in backticks, alone or with `: true`: on the command line they are options.
    pub hint_arguments: &'static [&'static str],
    /// Whether the same call may succeed later without a change.
    pub retryable: bool,
    /// When to try again, in milliseconds.
    pub retry_after_ms: Option<u64>,
    /// What would have been accepted.
    pub allowed: Vec<String>,
    /// The policy that refused, and its own code.
    pub policy: Option<(String, String)>,
    /// For auditors and logs; never shown to the caller.
    pub audit: Option<String>,
    /// Boxed, as few failures have it.
    pub detail: Option<Box<FailureDetail>>,
}

/// Further facts, where they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailureDetail {
    /// Postgres' five-character code.
    pub sqlstate: Option<String>,
    /// From 1.
    pub statement_index: Option<u32>,
    /// In characters from 1, within the statement.
    pub position: Option<u32>,
    /// The line of the call's SQL that the position is on, or else the statement begins on; from 1.
    pub line: Option<u32>,
    /// Where in the server's work for the caller's statement it arose. The caller's data, like the message of such a failure.
    pub context: Option<String>,
    /// Whether earlier statements of the same call were committed.
    pub earlier_committed: Option<bool>,
    /// The version that was asked for.
    pub requested_version: Option<String>,
    /// The source's version.
    pub source_version: Option<String>,
    /// The target's version.
    pub target_version: Option<String>,
    /// The profile that the request was resolved to.
    pub resolved_profile: Option<String>,
    /// Its Postgres version.
    pub resolved_postgres_version: Option<String>,
    /// Under which more is to be had, `approval:` and a request's digest for instance.
    pub handle: Option<String>,
    /// What a program wrote that was ended, within the bounds and cleared of the secrets that all output is.
    pub output: Option<ProgramOutput>,
}

/// What is kept of a program's output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramOutput {
    /// Standard output.
    pub stdout: String,
    /// The error output.
    pub stderr: String,
    /// Whether something of standard output was left out.
    pub stdout_truncated: bool,
    /// The same of the error output.
    pub stderr_truncated: bool,
    /// Bytes that it wrote to standard output.
    pub stdout_bytes: u64,
    /// Bytes that it wrote to the error output.
    pub stderr_bytes: u64,
}

impl Failure {
    /// Builds a failure with the code's usual retryability and nothing else.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            hint: None,
            hint_arguments: &[],
            retryable: code.usually_retryable(),
            retry_after_ms: None,
            allowed: Vec::new(),
            policy: None,
            audit: None,
            detail: None,
        }
    }

    /// Adds what to do.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self.hint_arguments = &[];
        self
    }

    /// Says which arguments of operations the hint names.
    #[must_use]
    pub fn naming(mut self, arguments: &'static [&'static str]) -> Self {
        self.hint_arguments = arguments;
        self
    }

    /// Adds what would have been accepted.
    #[must_use]
    pub fn allowed(mut self, allowed: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.allowed = allowed.into_iter().map(Into::into).collect();
        self
    }

    /// Adds that 1 to `max` minutes would have been accepted, if there are any.
    #[must_use]
    pub fn allowed_minutes(self, max: u64) -> Self {
        match max {
            0 => self,
            1 => self.allowed(["1 minute"]),
            _ => self.allowed([format!("1 to {max} minutes")]),
        }
    }

    /// Adds text for logs and auditors: the cause chain, without secrets.
    #[must_use]
    pub fn audit(mut self, text: impl Into<String>) -> Self {
        self.audit = Some(text.into());
        self
    }

    /// Says that the same call cannot succeed later.
    #[must_use]
    pub fn for_good(mut self) -> Self {
        self.retryable = false;
        self
    }

    /// Says when to try again.
    #[must_use]
    pub fn retry_after_ms(mut self, ms: u64) -> Self {
        self.retryable = true;
        self.retry_after_ms = Some(ms);
        self
    }

    /// Returns the further facts, to be filled in.
    pub fn detail_mut(&mut self) -> &mut FailureDetail {
        self.detail.get_or_insert_default()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.code.as_str())
    }
}

impl std::error::Error for Failure {}

macro_rules! codes {
    ($($variant:ident $text:literal $category:literal $retry:ident $help:literal;)*) => {
        /// The stable codes of failures. The contract's words; never renamed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code {
            $(#[doc = $help] $variant,)*
        }

        impl Code {
            /// Every code, in the order of the reference page.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Returns the word callers see.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// Returns the category callers see.
            pub const fn category(self) -> &'static str {
                match self { $(Self::$variant => $category,)* }
            }

            /// Returns when the code is given, for the reference page.
            pub const fn help(self) -> &'static str {
                match self { $(Self::$variant => $help,)* }
            }

            /// Returns whether the same call may succeed later without a change.
            pub const fn usually_retryable(self) -> bool {
                match self { $(Self::$variant => codes!(@$retry),)* }
            }
        }
    };
    (@again) => { true };
    (@never) => { false };
}

codes! {
    InvalidArguments "invalid_arguments" "validation" never "an argument is unknown, missing, of the wrong type or out of range";
    UnknownOperation "unknown_operation" "validation" never "there is no operation of that name";
    UnknownProfile "unknown_profile" "validation" never "there is no profile of that name";
    InvalidTtl "invalid_ttl" "validation" never "a time to live is not between 1 minute and what the profile or a policy allows";
    InvalidRowLimit "invalid_row_limit" "validation" never "a row limit is out of range";
    InvalidExtensions "invalid_extensions" "validation" never "an extension's name is malformed, or there are too many";
    ExtensionNotAllowed "extension_not_allowed" "validation" never "the profile or a policy does not allow the extension";
    ExtensionSetupRequired "extension_setup_required" "validation" never "the extension is not installed on the server";
    SingleStatementRequired "single_statement_required" "validation" never "the operation takes exactly one statement";
    InvalidBaseDigest "invalid_base_digest" "validation" never "a base digest is not one that can be compared";
    InvalidArtifactName "invalid_artifact_name" "validation" never "the name of a snapshot or template is malformed";
    UnsafeCommand "unsafe_command" "validation" never "a repository command is not allowed";
    UnclearCommand "unclear_command" "validation" never "a repository command cannot be told apart from an unsafe one";
    RepoNotFound "repo_not_found" "validation" never "the repository path does not exist";
    MissingSeedCommand "missing_seed_command" "validation" never "no seed command was given or found";
    MissingSchemaChangeCommand "missing_schema_change_command" "validation" never "no schema change command was given or found";
    UndefinedColumn "undefined_column" "sql_analysis" never "a column does not exist";
    UndefinedTable "undefined_table" "sql_analysis" never "a relation does not exist";
    UndefinedObject "undefined_object" "sql_analysis" never "a function, type, schema or other object does not exist";
    SyntaxError "syntax_error" "sql_syntax" never "Postgres cannot parse a statement, or a string, name or comment in it has no end";
    SqlTooComplex "sql_too_complex" "sql_syntax" never "SQL is over a limit of size, nesting or length, or holds a NUL";
    UnparsedStatement "unparsed_statement" "sql_syntax" never "a statement's class is not known and the request is read-only";
    ConstraintViolation "constraint_violation" "sql_execution" never "a constraint was violated";
    PermissionDenied "permission_denied" "sql_execution" never "Postgres denies the role the right";
    ReadonlyViolation "readonly_violation" "sql_execution" never "the statement is not one that may run read-only";
    SqlFailed "sql_failed" "sql_execution" never "Postgres refused a statement for another reason; see `sqlstate`";
    LockTimeout "lock_timeout" "sql_execution" again "a lock was not granted in time, or a deadlock was broken";
    StatementTimeout "statement_timeout" "timeout" again "a statement was stopped: over its time, which the same call has again and which is not retryable, or cancelled by another session";
    CommandTimeout "command_timeout" "timeout" again "work ran longer than allowed and was stopped";
    Cancelled "cancelled" "timeout" again "the caller cancelled the request";
    PostgresAuthFailed "postgres_auth_failed" "postgres" never "Postgres does not accept the credentials";
    PostgresConnectionFailed "postgres_connection_failed" "postgres" again "Postgres cannot be reached, or the connection was lost";
    ServerReadOnly "server_read_only" "postgres" again "the Postgres server takes no writes: it is a standby, or was set read-only";
    DiskFull "disk_full" "postgres" again "the disk of the Postgres server is full";
    DatabaseNotFound "database_not_found" "config" never "there is no such sandbox, or it is not the caller's";
    MetadataDamaged "metadata_damaged" "config" never "the sandbox's row in the metadata was changed by another, so nothing is done with the sandbox";
    VersionMismatch "version_mismatch" "config" never "a profile and a Postgres version disagree";
    RestoreIncompatible "restore_incompatible" "config" never "a dump cannot be restored on this server";
    PostgresVersionUnavailable "postgres_version_unavailable" "config" never "no profile or installation has that Postgres version";
    InvalidConfiguration "invalid_configuration" "config" never "the configuration cannot be used; every fault is listed";
    LocalPostgresUnavailable "local_postgres_unavailable" "local_postgres" again "the managed cluster is not installed, or does not start";
    LocalPostgresInstallFailed "local_postgres_install_failed" "local_postgres" again "the package manager could not install Postgres";
    TemplateNotFound "template_not_found" "template" never "there is no such template";
    TemplateRestoreFailed "template_restore_failed" "template" never "a template could not be restored";
    SnapshotNotFound "snapshot_not_found" "snapshot" never "there is no such snapshot";
    SchemaDigestVersionMismatch "schema_digest_version_mismatch" "snapshot" never "two digests are of different versions";
    Denied "denied" "policy" never "a policy refused; its own code stands beside";
    Uncovered "uncovered" "policy" never "no enforced policy answers for the operation";
    RateLimited "rate_limited" "policy" again "a rate limit is used up for now";
    QuotaExceeded "quota_exceeded" "policy" never "a quota is used up";
    ApprovalRequired "approval_required" "policy" never "another principal must approve first";
    ConsentRequired "consent_required" "policy" never "the person at the client must agree, and has not or cannot be asked";
    SourceNotAllowed "source_not_allowed" "policy" never "the source may not be cloned";
    SandboxExpired "sandbox_expired" "lifecycle" never "the sandbox's time is over; it can be extended until it is cleaned up";
    SandboxNotReady "sandbox_not_ready" "lifecycle" again "the sandbox is being made or being deleted";
    IdempotencyConflict "idempotency_conflict" "validation" never "the idempotency key was used with other arguments";
    AuditUnavailable "audit_unavailable" "audit" again "the audit log cannot be written; nothing is accepted until it can";
    Busy "busy" "busy" again "no free slot came up in time";
    ObligationUnmet "obligation_unmet" "policy" never "a policy demands what the operation cannot do";
    PolicyTrapped "policy_trapped" "policy_failure" never "a policy crashed; the request was not run";
    PolicyTimeout "policy_timeout" "policy_failure" never "a policy did not answer within its fuel or time; the request was not run";
    PolicyMemory "policy_memory" "policy_failure" never "a policy wanted more memory than it may have; the request was not run";
    PolicyOutputInvalid "policy_output_invalid" "policy_failure" never "a policy's answer breaks the rules; the request was not run";
    LimitsUnavailable "limits_unavailable" "policy_failure" again "the record of rate limits cannot be read or written; the request was not run";
    PolicyNotReady "policy_not_ready" "policy_failure" again "the policies are not loaded; the request was not run";
    Internal "internal" "internal" never "something that must not happen; see the log under the request id";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn codes_are_distinct() {
        let words: BTreeSet<_> = Code::ALL.iter().map(|c| c.as_str()).collect();
        assert_eq!(words.len(), Code::ALL.len());
    }
}
