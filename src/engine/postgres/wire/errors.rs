//! What can go wrong in a session, and which failure each is to a caller.
//!
//! `Display` and `Debug` show no text of the server's but the SQLSTATE: it may hold literals of the caller's SQL. The
//! caller gets it, in the failure's message; audit and logs get [`Failure::audit`].

use std::fmt;

use super::message::{CallerText, Fields, lossy};
use crate::engine::postgres::NetError;
use crate::engine::{DISK_FULL, DISK_FULL_HINT};
use crate::model::limits::ERROR_CONTEXT_BYTES_MAX;
use crate::model::{Code, Failure};

/// What to do where a login cannot be bound to the server's certificate.
pub(in crate::engine::postgres) const UNBOUND_HINT: &str = "reach the server itself over TLS and let it ask for `scram-sha-256`, \
    or give `channel_binding=prefer` where the way to it is trusted";

/// An error that the server reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerError(Box<Fields>);

/// Why a call in a session failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// No connection could be opened.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The server does not accept the credentials.
    #[error("the server does not accept the credentials ({0})")]
    Auth(ServerError),
    /// The server accepts no session for another reason: no right to connect, too many sessions, no such database.
    #[error("the server accepts no session ({0})")]
    Refused(ServerError),
    /// The server asks for a way to log in that is not used over this connection.
    #[error("the server asks for the authentication method `{0}`, which is not used over this connection")]
    AuthMethod(&'static str),
    /// The login is to be bound to the server's certificate, and the server, or whoever stands before it, does not do that.
    #[error("the server does not bind the login to its certificate, which `channel_binding=require` demands")]
    Unbound,
    /// The server could not prove that it knows the password's verifier.
    #[error("the server could not prove that it knows the password: it may be another server")]
    Impostor,
    /// The server broke the protocol.
    #[error("the server broke the protocol: {0}")]
    Protocol(&'static str),
    /// The connection ended within a call.
    #[error("the connection was lost: {0}")]
    Lost(String),
    /// The server ended the session.
    #[error("the server ended the session ({0})")]
    Ended(ServerError),
    /// The statement failed.
    #[error("the server refused the statement ({0})")]
    Statement(ServerError),
    /// The statement's time was over. `stopped` is false where the server did not react, and its backend may go on.
    #[error("the statement was stopped after {ms} ms")]
    Timeout {
        /// The time it had.
        ms: u64,
        /// Whether the server is known to have stopped it.
        stopped: bool,
    },
    /// A [`CancelHandle`](super::CancelHandle) stopped the statement.
    #[error("the statement was cancelled")]
    Cancelled,
    /// `COPY … FROM STDIN` without data.
    #[error("the statement copies from standard input and no data was given")]
    CopyDataMissing,
    /// The frame around a statement that is taken back, or may only read, did not hold. The session is closed and nothing was committed by it.
    #[error("the statement left the transaction it was given")]
    ReadOnlyViolated,
    /// A transaction is open where none may be.
    #[error("a transaction is open in the session")]
    NotIdle,
    /// A setting that reading SQL and results depends on was changed.
    #[error("the setting `{0}` was changed; the session cannot be used further")]
    Setting(&'static str),
    /// The session was closed by an earlier fault, timeout or cancel.
    #[error("the session cannot be used further")]
    Unusable,
    /// The request cannot be sent.
    #[error("the statement cannot be sent: {0}")]
    NotSendable(&'static str),
}

impl ServerError {
    pub(super) fn new(fields: Fields) -> Self {
        Self(Box::new(fields))
    }

    /// Returns the five-character code.
    pub fn sqlstate(&self) -> &str {
        &self.0.sqlstate
    }

    /// Returns whether the session ended with the error.
    pub fn is_fatal(&self) -> bool {
        matches!(self.0.severity.as_str(), "FATAL" | "PANIC")
    }

    /// Returns the message. It is the caller's: not for logs.
    pub fn message(&self) -> &CallerText {
        &self.0.message
    }

    /// Returns the details, if any.
    pub fn detail(&self) -> Option<&CallerText> {
        self.0.detail.as_ref()
    }

    /// Returns what the server advises, if anything.
    pub fn hint(&self) -> Option<&CallerText> {
        self.0.hint.as_ref()
    }

    /// Returns where in the server's code for the caller the error arose: functions and lines.
    pub fn context(&self) -> Option<&CallerText> {
        self.0.context.as_ref()
    }

    /// Returns the position in the statement, in characters from 1.
    pub fn position(&self) -> Option<u32> {
        self.0.position
    }

    /// Returns the schema the error is about.
    pub fn schema(&self) -> Option<&CallerText> {
        self.0.schema.as_ref()
    }

    /// Returns the table the error is about.
    pub fn table(&self) -> Option<&CallerText> {
        self.0.table.as_ref()
    }

    /// Returns the column the error is about.
    pub fn column(&self) -> Option<&CallerText> {
        self.0.column.as_ref()
    }

    /// Returns the data type the error is about.
    pub fn data_type(&self) -> Option<&CallerText> {
        self.0.data_type.as_ref()
    }

    /// Returns the constraint the error is about.
    pub fn constraint(&self) -> Option<&CallerText> {
        self.0.constraint.as_ref()
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SQLSTATE {}", self.sqlstate())
    }
}

impl WireError {
    /// Returns the SQLSTATE, where the server gave one.
    pub fn sqlstate(&self) -> Option<&str> {
        self.server().map(ServerError::sqlstate)
    }

    fn server(&self) -> Option<&ServerError> {
        match self {
            Self::Auth(e) | Self::Refused(e) | Self::Ended(e) | Self::Statement(e) => Some(e),
            Self::Net(_)
            | Self::AuthMethod(_)
            | Self::Unbound
            | Self::Impostor
            | Self::Protocol(_)
            | Self::Lost(_)
            | Self::Timeout { .. }
            | Self::Cancelled
            | Self::CopyDataMissing
            | Self::ReadOnlyViolated
            | Self::NotIdle
            | Self::Setting(_)
            | Self::Unusable
            | Self::NotSendable(_) => None,
        }
    }

    /// Says the error as the failure of the call's statement `index`, from 1.
    pub fn into_failure(self, index: u32) -> Failure {
        let mut failure = Failure::from(self);
        failure.detail_mut().statement_index = Some(index);
        failure
    }
}

impl From<WireError> for Failure {
    fn from(error: WireError) -> Self {
        let audit = error.to_string();
        let fail = |code, message: &str| Self::new(code, message);
        let failure = match &error {
            WireError::Statement(e) => return statement_failure(e),
            WireError::Net(error) => {
                let remedy = "see `pgsandbox doctor`; the call may be repeated once the server answers";
                let failure = fail(Code::PostgresConnectionFailed, &audit).hint(error.tls_remedy().unwrap_or(remedy));
                if error.passes() { failure } else { failure.for_good() }
            }
            WireError::Auth(_) => fail(Code::PostgresAuthFailed, &audit),
            WireError::Refused(e) if e.sqlstate() == "53300" => {
                fail(Code::Busy, "the sandbox has as many sessions as it may have")
                    .hint("close other connections to it, then try again")
            }
            WireError::Refused(_) => fail(Code::PostgresConnectionFailed, &audit),
            WireError::AuthMethod(_) => fail(Code::PostgresAuthFailed, &audit)
                .hint("let the server ask for `scram-sha-256`, or connect with TLS"),
            WireError::Unbound => fail(Code::PostgresAuthFailed, &audit).hint(UNBOUND_HINT),
            WireError::Impostor => {
                fail(Code::PostgresAuthFailed, &audit).hint("see which server listens at the profile's address")
            }
            WireError::Protocol(_) => fail(Code::PostgresConnectionFailed, &audit)
                .hint("see which server listens at the profile's address, and what is between it and here"),
            WireError::Lost(_) | WireError::Ended(_) => {
                fail(Code::PostgresConnectionFailed, "the server ended the session while the statement ran")
                    .hint("see what the statement has done before trying again")
            }
            WireError::Timeout { ms, stopped } => {
                let message = match stopped {
                    true => format!("the statement ran longer than {ms} ms and was stopped"),
                    false => format!("the statement ran longer than {ms} ms; the server did not react and was left"),
                };
                fail(Code::StatementTimeout, &message).hint("ask for more time, or for less work")
            }
            WireError::Cancelled => fail(Code::Cancelled, "the statement was cancelled"),
            WireError::CopyDataMissing => {
                fail(Code::InvalidArguments, "`COPY … FROM STDIN` was called without data").hint("give it as `stdin`")
            }
            WireError::ReadOnlyViolated => {
                fail(Code::ReadonlyViolation, "the statement left the transaction it was given; the session was closed")
            }
            WireError::NotIdle => fail(Code::Internal, "a transaction was open where none may be"),
            WireError::Setting(name) => {
                let message = format!("`{name}` was changed, and the statements after it were not run");
                fail(Code::SqlFailed, &message).hint(format!("leave `{name}` as it is"))
            }
            WireError::Unusable => {
                fail(Code::PostgresConnectionFailed, "the session was closed by an earlier fault").hint("try again")
            }
            WireError::NotSendable(what) => {
                fail(Code::InvalidArguments, &format!("the statement cannot be sent: {what}"))
            }
        };
        let sqlstate = error.sqlstate().map(str::to_owned);
        let mut failure = failure.audit(audit);
        if let Some(sqlstate) = sqlstate {
            failure.detail_mut().sqlstate = Some(sqlstate);
        }
        failure
    }
}

/// Words an error of the caller's own statement: the server's message, which is the caller's to read.
fn statement_failure(error: &ServerError) -> Failure {
    let code = statement_code(error.sqlstate());
    let message = match error.detail() {
        Some(detail) => format!("{} ({})", error.message().expose(), detail.expose()),
        None => error.message().expose().to_owned(),
    };
    let mut failure = Failure::new(code, message).audit(error.to_string());
    if code == Code::DiskFull {
        failure = failure.hint(DISK_FULL_HINT);
    }
    let hint = || (error.sqlstate() == "08P01").then(|| "give one value for each parameter as `params`".to_owned());
    failure.hint = error.hint().map(|h| h.expose().to_owned()).or_else(hint).or(failure.hint);
    // A serialisation failure asks for nothing but a second try.
    failure.retryable |= error.sqlstate() == "40001";
    let detail = failure.detail_mut();
    detail.sqlstate = Some(error.sqlstate().to_owned());
    detail.position = error.position();
    detail.context = error.context().map(|text| lossy(text.expose().as_bytes(), ERROR_CONTEXT_BYTES_MAX));
    failure
}

/// Returns the code for an SQLSTATE (documentation, "PostgreSQL Error Codes").
fn statement_code(sqlstate: &str) -> Code {
    match sqlstate {
        "42P01" => Code::UndefinedTable,
        "42703" => Code::UndefinedColumn,
        // Object, function, schema, database.
        "42704" | "42883" | "3F000" | "3D000" => Code::UndefinedObject,
        "42601" => Code::SyntaxError,
        "42501" => Code::PermissionDenied,
        "25006" => Code::ReadonlyViolation,
        "55P03" | "40P01" => Code::LockTimeout,
        "57014" => Code::StatementTimeout,
        DISK_FULL => Code::DiskFull,
        _ if sqlstate.starts_with("23") => Code::ConstraintViolation,
        _ => Code::SqlFailed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(body: &str) -> ServerError {
        ServerError::new(Fields::read(body.replace('|', "\0").as_bytes()))
    }

    fn check(sqlstate: &str, code: Code) {
        let failure = WireError::Statement(server(&format!("VERROR|C{sqlstate}|Mm|P3||"))).into_failure(2);
        assert_eq!(failure.code, code, "{sqlstate}");
        let detail = failure.detail.unwrap();
        assert_eq!(
            (detail.sqlstate.as_deref(), detail.statement_index, detail.position),
            (Some(sqlstate), Some(2), Some(3))
        );
    }

    #[test]
    fn sqlstates_become_the_contracts_codes() {
        check("42P01", Code::UndefinedTable);
        check("42703", Code::UndefinedColumn);
        check("42883", Code::UndefinedObject);
        check("42601", Code::SyntaxError);
        check("23505", Code::ConstraintViolation);
        check("23503", Code::ConstraintViolation);
        check("42501", Code::PermissionDenied);
        check("25006", Code::ReadonlyViolation);
        check("55P03", Code::LockTimeout);
        check("40P01", Code::LockTimeout);
        check("22012", Code::SqlFailed);
        check("40001", Code::SqlFailed);
    }

    #[test]
    fn the_caller_reads_the_servers_words_and_the_log_does_not() {
        let error = WireError::Statement(server("VERROR|C23505|Mduplicate|DKey (mail)=(a@b) exists|Hdo not||"));
        assert!(!format!("{error} {error:?}").contains("a@b"));
        let failure = Failure::from(error);
        assert_eq!(failure.message, "duplicate (Key (mail)=(a@b) exists)");
        assert_eq!(failure.hint.as_deref(), Some("do not"));
        assert_eq!(failure.audit.as_deref(), Some("SQLSTATE 23505"));
    }

    #[test]
    fn the_caller_is_told_where_it_arose_within_a_bound_and_nobody_else() {
        let text = format!("COPY t, line 2, column n: \"{}\"", "9".repeat(ERROR_CONTEXT_BYTES_MAX));
        let error = WireError::Statement(server(&format!("VERROR|C22P02|Mm|W{text}||")));
        assert!(!format!("{error} {error:?}").contains("999"));
        let failure = Failure::from(error);
        assert_eq!(failure.audit.as_deref(), Some("SQLSTATE 22P02"));
        let context = failure.detail.unwrap().context.unwrap();
        assert!(context.starts_with("COPY t, line 2, column n: \"9"), "{context}");
        assert_eq!(context.len(), ERROR_CONTEXT_BYTES_MAX + '…'.len_utf8());
    }

    #[test]
    fn too_many_sessions_is_busy_and_may_be_tried_again() {
        let failure = Failure::from(WireError::Refused(server("VFATAL|C53300|Mtoo many||")));
        assert_eq!((failure.code, failure.retryable), (Code::Busy, true));
    }
}
