//! Sessions for the control plane: administration, metadata, and reading catalogues.
//!
//! Every session starts with the settings of [`startup`](super::startup), so that nothing a sandbox has
//! set for its database or roles reaches it. Statements here are ours alone: a caller's text has no way in.

use std::error::Error as _;
use std::io;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::config::{self, SslMode, SslNegotiation};
use tokio_postgres::{Client, Config};

use super::net::Encrypted;
use super::startup::{self, APPLICATION_NAME, Purpose};
use super::watch::{Patience, Watched};
use super::wire::UNBOUND_HINT;
use super::{ChannelBinding, Credentials, Endpoint, NetError, net};
use crate::engine::{EngineError, STARVED, server_condition};
use crate::model::{Code, Failure, fault};

/// The oldest major whose settings every supported server knows; used until a server has said its version.
pub(super) const MAJOR_MIN: u16 = 13;

/// Postgres' code for a server, database or role that has as many sessions as it may have.
pub(super) const CONNECTIONS_USED_UP: &str = "53300";

/// A database on a server, and as whom to log in to it.
#[derive(Clone, Debug)]
pub(super) struct Login<'a> {
    pub(super) endpoint: &'a Endpoint,
    pub(super) credentials: &'a Credentials,
    pub(super) database: &'a str,
    pub(super) timeout: Duration,
    /// How long the server may take to answer a statement, once logged in.
    pub(super) answer: Duration,
}

/// A session of ours, never for a caller's SQL.
pub struct AdminSession {
    client: Client,
    major: u16,
    patience: Patience,
}

/// Why a session could not be opened. Holds no secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum LoginError {
    /// No connection.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The connection was lost on the way, or is no Postgres.
    #[error("the connection was lost while logging in: {0}")]
    Lost(String),
    /// The server wants a password and there is none, or it wants what this program does not speak.
    #[error("the server's way of authentication cannot be met")]
    Method,
    /// The login is to be bound to the server's certificate, and is not.
    #[error("the server does not bind the login to its certificate, which `channel_binding=require` demands")]
    Unbound,
    /// The server said no.
    #[error("the server refuses the login (SQLSTATE {sqlstate}): {message}")]
    Refused {
        /// The five-character code.
        sqlstate: String,
        /// Its message.
        message: String,
    },
}

impl LoginError {
    /// Returns the server's code, where the server refused.
    pub(super) fn sqlstate(&self) -> Option<&str> {
        match self {
            Self::Refused { sqlstate, .. } => Some(sqlstate),
            Self::Net(_) | Self::Lost(_) | Self::Method | Self::Unbound => None,
        }
    }

    /// Returns whether there is no server to talk to: not running, starting up or going down.
    pub(super) fn is_unreachable(&self) -> bool {
        match self {
            Self::Net(_) | Self::Lost(_) => true,
            Self::Method | Self::Unbound => false,
            // cannot_connect_now, admin_shutdown, crash_shutdown
            Self::Refused { sqlstate, .. } => matches!(sqlstate.as_str(), "57P03" | "57P01" | "57P02"),
        }
    }

    /// Returns whether somebody is there who says nothing.
    pub(super) fn is_silence(&self) -> bool {
        matches!(self, Self::Net(NetError::Timeout(_)))
    }

    /// Returns whether the server, the database or the role has no connection left: too_many_connections.
    pub(super) fn is_crowded(&self) -> bool {
        self.sqlstate() == Some(CONNECTIONS_USED_UP)
    }

    /// Returns whether the server has no room left for anybody: out_of_memory, as it calls its table of locks too.
    pub(super) fn is_starved(&self) -> bool {
        self.sqlstate() == Some(STARVED)
    }

    /// Returns the error with the profile and role it concerns.
    pub(super) fn within(self, profile: &str, user: &str) -> EngineError {
        if let Self::Net(fault) = &self
            && let Some(remedy) = fault.tls_remedy()
        {
            let message = format!("no session with the server of profile `{profile}`: {fault}");
            let failure = Failure::new(Code::PostgresConnectionFailed, message).hint(remedy);
            let failure = if fault.passes() { failure } else { failure.for_good() };
            return EngineError::Unsuited { check: "postgres.tls", failure: Box::new(failure) };
        }
        if self == Self::Unbound {
            let message = format!("no session with the server of profile `{profile}`: {self}");
            return EngineError::unsuited("postgres.tls", Code::PostgresAuthFailed, message, UNBOUND_HINT);
        }
        if self.is_unreachable() {
            return EngineError::Unreachable { profile: profile.to_owned(), detail: self.to_string() };
        }
        if self.is_crowded() {
            return EngineError::Crowded { profile: profile.to_owned() };
        }
        match self {
            // The server is there, and not in a state to let anybody in: for want of disk, for instance.
            Self::Refused { sqlstate, message }
                if server_condition(&sqlstate).is_none()
                    && ["XX", "57", "58"].iter().any(|c| sqlstate.starts_with(c)) =>
            {
                let detail = format!("{message} (SQLSTATE {sqlstate})");
                EngineError::Unreachable { profile: profile.to_owned(), detail }
            }
            Self::Refused { sqlstate, message } if !sqlstate.starts_with("28") => {
                EngineError::Refused { action: "open a session", sqlstate, detail: message }
            }
            Self::Refused { .. } | Self::Method | Self::Unbound | Self::Net(_) | Self::Lost(_) => {
                EngineError::Auth { profile: profile.to_owned(), user: user.to_owned() }
            }
        }
    }
}

impl AdminSession {
    /// Logs in. `major` is the server's, where it is known.
    pub(super) async fn open(login: &Login<'_>, major: Option<u16>) -> Result<Self, LoginError> {
        let session = Self::open_with(login, major.unwrap_or(MAJOR_MIN)).await?;
        if major.is_none() && startup::startup_options(session.major, Purpose::Admin).len() > startup_len(MAJOR_MIN) {
            return Self::open_with(login, session.major).await;
        }
        Ok(session)
    }

    async fn open_with(login: &Login<'_>, major: u16) -> Result<Self, LoginError> {
        timeout(fault::within(login.timeout), Self::log_in(login, major))
            .await
            .unwrap_or(Err(LoginError::Net(NetError::Timeout(login.timeout))))
    }

    async fn log_in(login: &Login<'_>, major: u16) -> Result<Self, LoginError> {
        fault::pass("socket.admin-login").await.map_err(|e| LoginError::Lost(io::Error::from(e).to_string()))?;
        let stream = net::open(login.endpoint, login.timeout).await?;
        let mut config = Config::new();
        config
            .user(&login.credentials.user)
            .dbname(login.database)
            .application_name(APPLICATION_NAME)
            .options(startup::as_options_text(&startup::startup_options(major, Purpose::Admin)))
            .channel_binding(match login.endpoint.binding {
                ChannelBinding::Disable => config::ChannelBinding::Disable,
                ChannelBinding::Prefer => config::ChannelBinding::Prefer,
                ChannelBinding::Require => config::ChannelBinding::Require,
            })
            // The stream is encrypted already where it has to be: then the driver takes it as it is.
            .ssl_mode(if stream.is_encrypted() { SslMode::Require } else { SslMode::Disable })
            .ssl_negotiation(SslNegotiation::Direct);
        if let Some(password) = &login.credentials.password {
            config.password(password.expose());
        }
        let patience = Patience::new(login.answer);
        let encrypted = Encrypted { binding: stream.channel_binding() };
        let stream = Watched::new(stream, patience.clone());
        let connected = config.connect_raw(stream, encrypted).await;
        let (client, connection) = connected.map_err(|error| {
            let error = login_error(&error, login.answer);
            // The driver does not say by kind why it cannot log in.
            if error == LoginError::Method && binds_or_fails(login) { LoginError::Unbound } else { error }
        })?;
        let version = connection.parameter("server_version").unwrap_or_default();
        let major = major_of(version).ok_or_else(|| {
            LoginError::Lost(format!("the server's version `{}` is not known", version.escape_default()))
        })?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(error = %Chain(&error), "an admin connection ended");
            }
        });
        Ok(Self { client, major, patience })
    }

    /// Says how long the server may take to answer from now on; after that the session is closed.
    pub(super) fn answers_within(&self, answer: Duration) {
        self.patience.set(answer);
    }

    /// Returns the server's major version.
    pub fn major(&self) -> u16 {
        self.major
    }
}

impl std::fmt::Debug for AdminSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AdminSession").field("major", &self.major).finish_non_exhaustive()
    }
}

impl Deref for AdminSession {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl DerefMut for AdminSession {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.client
    }
}

fn startup_len(major: u16) -> usize {
    startup::startup_options(major, Purpose::Admin).len()
}

fn login_error(error: &tokio_postgres::Error, patience: Duration) -> LoginError {
    if let Some(db) = error.as_db_error() {
        return LoginError::Refused { sqlstate: db.code().code().to_owned(), message: db.message().to_owned() };
    }
    let io = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    if io.is_some_and(|io| io.kind() == io::ErrorKind::TimedOut) {
        // Somebody is there who says nothing, whichever of the two clocks is the first to notice.
        return LoginError::Net(NetError::Timeout(patience));
    }
    if io.is_some() || error.is_closed() {
        return LoginError::Lost(Chain(error).to_string());
    }
    LoginError::Method
}

/// Returns whether a login that the driver cannot do is one that it cannot bind: it has all else.
fn binds_or_fails(login: &Login<'_>) -> bool {
    login.endpoint.binding == ChannelBinding::Require && login.credentials.password.is_some()
}

/// Reads the major from `15.18 (Debian 15.18-0+deb12u1)`, `18.6` or `19devel`.
pub(super) fn major_of(version: &str) -> Option<u16> {
    let digits: String = version.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// An error with its causes, in one line.
pub(super) struct Chain<'a>(pub(super) &'a dyn std::error::Error);

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

/// Quotes an identifier.
pub(super) fn ident(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Quotes a literal, for utility statements, which take no parameters. `standard_conforming_strings` is
/// pinned on, so only the quote is special.
pub(super) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// Makes a failed statement of ours into an error; `action` completes "the server refused to …".
pub(super) fn refused(action: &'static str, profile: &str) -> impl Fn(tokio_postgres::Error) -> EngineError {
    move |error| match error.as_db_error() {
        Some(db) if matches!(db.code().code(), "57P01" | "57P02" | "57P03") => {
            EngineError::Unreachable { profile: profile.to_owned(), detail: db.message().to_owned() }
        }
        Some(db) => EngineError::Refused {
            action,
            sqlstate: db.code().code().to_owned(),
            detail: match db.detail() {
                Some(detail) => format!("{}: {detail}", db.message()),
                None => db.message().to_owned(),
            },
        },
        None => EngineError::Unreachable { profile: profile.to_owned(), detail: Chain(&error).to_string() },
    }
}

/// The same for a statement that runs a caller's code or holds a caller's texts: what the server says of it may hold a value,
/// and its code alone is kept.
pub(super) fn refused_unquoted(action: &'static str, profile: &str) -> impl Fn(tokio_postgres::Error) -> EngineError {
    let refused = refused(action, profile);
    move |error| {
        let mut refused = refused(error);
        if let EngineError::Refused { detail, .. } = &mut refused {
            "what the server said may hold a value".clone_into(detail);
        }
        refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoting_leaves_no_way_out() {
        assert_eq!(ident("a\"; DROP TABLE x; --"), "\"a\"\"; DROP TABLE x; --\"");
        assert_eq!(literal("a'; DROP TABLE x; --"), "'a''; DROP TABLE x; --'");
        assert_eq!(literal("back\\slash"), "'back\\slash'");
    }

    #[test]
    fn majors_are_read_from_every_kind_of_version() {
        assert_eq!(major_of("15.18 (Debian 15.18-0+deb12u1)"), Some(15));
        assert_eq!(major_of("19devel"), Some(19));
        assert_eq!(major_of("soon"), None);
    }

    #[test]
    fn a_refused_login_is_an_authentication_failure_and_a_server_that_starts_is_not() {
        let refused = |sqlstate: &str| LoginError::Refused { sqlstate: sqlstate.into(), message: "m".into() };
        assert!(matches!(refused("28P01").within("p", "u"), EngineError::Auth { .. }));
        assert!(matches!(refused("57P03").within("p", "u"), EngineError::Unreachable { .. }));
        assert!(matches!(refused("3D000").within("p", "u"), EngineError::Refused { .. }));
        assert!(matches!(refused("53300").within("p", "u"), EngineError::Crowded { .. }));
    }

    #[tokio::test]
    async fn a_server_that_says_nothing_is_silent_whichever_clock_notices_first() {
        let directory = tempfile::tempdir().unwrap();
        let listener = std::os::unix::net::UnixListener::bind(directory.path().join(".s.PGSQL.1")).unwrap();
        let endpoint = Endpoint {
            host: super::super::endpoint::Host::Unix(directory.path().to_owned()),
            port: 1,
            tls: crate::model::TlsMode::Disable,
            ca_file: None,
            address: None,
            binding: ChannelBinding::Disable,
        };
        let credentials = Credentials { user: "u".into(), password: None };
        let short = Duration::from_millis(30);
        for (timeout, answer) in [(short, short * 100), (short * 100, short), (short, short)] {
            let login = Login { endpoint: &endpoint, credentials: &credentials, database: "d", timeout, answer };
            let error = AdminSession::open(&login, Some(15)).await.err().unwrap();
            assert!(error.is_silence(), "{error:?}");
        }
        drop(listener);
    }

    #[test]
    fn a_server_without_tls_is_not_called_unreachable() {
        for fault in [NetError::TlsNotOffered, NetError::Tls(net::TlsFault::Expired), NetError::Malformed] {
            let said = fault.to_string();
            let error = LoginError::Net(fault).within("p", "u");
            let EngineError::Unsuited { check: "postgres.tls", failure } = &error else { panic!("{error:?}") };
            assert!(failure.message.contains(&said) && failure.hint.is_some(), "{failure:?}");
        }
        let gone = LoginError::Net(NetError::Unreachable("refused".into())).within("p", "u");
        assert!(matches!(gone, EngineError::Unreachable { .. }));
    }
}
