//! Reads the address of a Postgres server from a URL: the one parser for admin URLs and clone sources.
//!
//! What is decided about a URL and what is connected to come from the same [`PostgresUrl`]. Whatever
//! this parser does not know is refused, never passed on; no error holds a password. No file is read
//! and no name is looked up here.

mod parameters;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

pub use self::parameters::PARAMETERS_SUPPORTED;
use super::{ChannelBinding, Endpoint, Host};
use crate::model::{Code, Failure, Secret, TlsMode};

/// Postgres' own port.
const PORT_DEFAULT: u16 = 5432;
/// Where Debian's servers keep their socket; meant by an operator's URL without a host.
const SOCKET_DIR_DEFAULT: &str = "/var/run/postgresql";
/// How long a connection may take to come up unless the URL says otherwise.
const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// The longest URL, in bytes: more than any real one, and cheap to read.
const URL_BYTES_MAX: usize = 8 << 10;

/// What is printed as it is; all else is percent-encoded, so that a part cannot look like another.
const PRINTED_BYTES: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// The same for a directory.
const PRINTED_PATH: &AsciiSet = &PRINTED_BYTES.remove(b'/');
/// Who wrote a URL: it decides what the URL may make us do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UrlOrigin {
    /// The operator, in the configuration: may name certificate files.
    Operator,
    /// A caller: nothing that reads files, and the host must be said.
    Caller,
}

/// As whom to log in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The role.
    pub user: String,
    /// Its password, where one is needed.
    pub password: Option<Secret>,
}

/// A server, a database on it, and as whom to log in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostgresUrl {
    /// Where.
    pub endpoint: Endpoint,
    /// Which database.
    pub database: String,
    /// As whom.
    pub credentials: Credentials,
    /// How long the connection may take to come up.
    pub connect_timeout: Duration,
}

/// Why a URL is refused. Holds no password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Another scheme, or none.
    #[error("a database URL starts with `postgresql://` or `postgres://`")]
    Scheme,
    /// Over the limit.
    #[error("the database URL is longer than {URL_BYTES_MAX} bytes")]
    TooLong,
    /// A part is not what percent-encoding allows.
    #[error("the {0} in the database URL is not valid percent-encoded UTF-8")]
    Encoding(&'static str),
    /// A part is empty that must not be.
    #[error("the database URL names no {0}")]
    Missing(&'static str),
    /// A part is said twice.
    #[error("the database URL says its {0} twice")]
    Twice(String),
    /// A `#`, which would cut the rest off.
    #[error("the database URL contains `#`; write it as `%23`")]
    Fragment,
    /// A `@`, before which some readers see the password end and others do not.
    #[error("the user or password in the database URL contains `@` or `?`; write them as `%40` and `%3F`")]
    Ambiguous,
    /// More than one host.
    #[error("the database URL names several hosts; one is supported")]
    SeveralHosts,
    /// A host that is no name, no address and no directory.
    #[error("the host in the database URL is not a name, an address or an absolute directory")]
    Host,
    /// Not a port.
    #[error("the port in the database URL is not a number from 1 to 65535")]
    Port,
    /// A known parameter with a value it cannot have.
    #[error("`{name}` in the database URL must be {expected}")]
    Value {
        /// The parameter.
        name: &'static str,
        /// What it may be.
        expected: &'static str,
    },
    /// A parameter that reads files, allowed to operators only.
    #[error("`{0}` is not allowed in a database URL given with a call, as it reads a file of this machine")]
    OperatorOnly(&'static str),
    /// A parameter that is not supported.
    #[error("`{0}` is not supported in a database URL")]
    Parameter(&'static str),
    /// A parameter that nobody knows: perhaps a password with a `?` in it, so it is not named.
    #[error("a parameter in the database URL is not known; a `?` or `&` in a password is written as `%3F` or `%26`")]
    Unknown,
}

impl From<UrlError> for Failure {
    fn from(error: UrlError) -> Self {
        Self::new(Code::InvalidArguments, error.to_string())
            .hint("write `postgresql://user:password@host:port/database`, special characters percent-encoded")
    }
}

impl PostgresUrl {
    /// Reads a URL.
    ///
    /// # Errors
    /// Says which part cannot be used. Nothing is guessed and nothing is dropped.
    pub fn parse(text: &str, origin: UrlOrigin) -> Result<Self, UrlError> {
        if text.len() > URL_BYTES_MAX {
            return Err(UrlError::TooLong);
        }
        let rest =
            text.strip_prefix("postgresql://").or_else(|| text.strip_prefix("postgres://")).ok_or(UrlError::Scheme)?;
        if rest.contains('#') {
            return Err(UrlError::Fragment);
        }
        let (before_query, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = before_query.split_once('/').unwrap_or((before_query, ""));
        // libpq ends user and password at the first `@` before any `/`, and others at the last: one only is both.
        let before_path = rest.split('/').next().unwrap_or_default();
        let at_signs = authority.matches('@').count();
        if at_signs > 1 || (at_signs == 0 && before_path.contains('@')) {
            return Err(UrlError::Ambiguous);
        }
        let mut parts = Parts::default();
        parts.authority(authority)?;
        if !path.is_empty() {
            set(&mut parts.database, "database", decode(path, "database")?)?;
        }
        parts.query(query, origin)?;
        parts.resolve(origin)
    }

    /// Returns the URL without its password, for people to read. It reads as the same server, database and user.
    pub fn redacted(&self) -> String {
        let database = utf8_percent_encode(&self.database, PRINTED_BYTES);
        let user = utf8_percent_encode(&self.credentials.user, PRINTED_BYTES);
        match &self.endpoint.host {
            Host::Tcp(host) if host.contains(':') => {
                format!("postgresql://{user}@[{host}]:{}/{database}", self.endpoint.port)
            }
            Host::Tcp(host) => format!("postgresql://{user}@{host}:{}/{database}", self.endpoint.port),
            Host::Unix(dir) => {
                let dir = dir.to_string_lossy();
                let dir = utf8_percent_encode(&dir, PRINTED_PATH);
                format!("postgresql://{user}@/{database}?host={dir}&port={}", self.endpoint.port)
            }
        }
    }
}

impl fmt::Display for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.redacted())
    }
}

/// What a URL says, each part at most once.
#[derive(Default)]
struct Parts {
    host: Option<String>,
    port: Option<String>,
    database: Option<String>,
    user: Option<String>,
    password: Option<String>,
    tls: Option<TlsMode>,
    ca_file: Option<PathBuf>,
    binding: Option<ChannelBinding>,
    connect_timeout: Option<Duration>,
}

impl Parts {
    fn authority(&mut self, authority: &str) -> Result<(), UrlError> {
        let (userinfo, hostport) = match authority.rsplit_once('@') {
            Some((userinfo, hostport)) => (Some(userinfo), hostport),
            None => (None, authority),
        };
        if let Some(userinfo) = userinfo {
            let (user, password) = match userinfo.split_once(':') {
                Some((user, password)) => (user, Some(password)),
                None => (userinfo, None),
            };
            if !user.is_empty() {
                self.user = Some(decode(user, "user")?);
            }
            if let Some(password) = password.filter(|p| !p.is_empty()) {
                self.password = Some(decode(password, "password")?);
            }
        }
        if hostport.contains(',') {
            return Err(UrlError::SeveralHosts);
        }
        let (host, port) = match hostport.strip_prefix('[') {
            Some(rest) => {
                let (address, after) = rest.split_once(']').ok_or(UrlError::Host)?;
                let address: Ipv6Addr = address.parse().map_err(|_| UrlError::Host)?;
                let port = match after.strip_prefix(':') {
                    Some(port) => Some(port),
                    None if after.is_empty() => None,
                    None => return Err(UrlError::Host),
                };
                (address.to_string(), port)
            }
            None => {
                let (host, port) = match hostport.split_once(':') {
                    Some((host, port)) => (host, Some(port)),
                    None => (hostport, None),
                };
                (decode(host, "host")?, port)
            }
        };
        self.host = Some(host).filter(|h| !h.is_empty());
        self.port = port.filter(|p| !p.is_empty()).map(str::to_owned);
        Ok(())
    }

    fn resolve(self, origin: UrlOrigin) -> Result<PostgresUrl, UrlError> {
        let host = match (self.host, origin) {
            (Some(host), _) => host_of(&host)?,
            (None, UrlOrigin::Operator) => Host::Unix(PathBuf::from(SOCKET_DIR_DEFAULT)),
            (None, UrlOrigin::Caller) => return Err(UrlError::Missing("host")),
        };
        if origin == UrlOrigin::Caller {
            match &host {
                Host::Unix(_) => return Err(UrlError::OperatorOnly("host")),
                // The system takes it for this machine, whatever a policy says of that.
                Host::Tcp(name) if name.parse::<IpAddr>().is_ok_and(|address| address.is_unspecified()) => {
                    return Err(UrlError::Host);
                }
                Host::Tcp(_) => {}
            }
        }
        let port = match self.port {
            Some(port) => port.parse().ok().filter(|p| *p != 0).ok_or(UrlError::Port)?,
            None => PORT_DEFAULT,
        };
        let user = self.user.filter(|u| !u.is_empty()).ok_or(UrlError::Missing("user"))?;
        let database = match (self.database.filter(|d| !d.is_empty()), origin) {
            (Some(database), _) => database,
            (None, UrlOrigin::Operator) => user.clone(),
            (None, UrlOrigin::Caller) => return Err(UrlError::Missing("database")),
        };
        let tls = match host {
            Host::Tcp(_) => self.tls.unwrap_or(TlsMode::Prefer),
            Host::Unix(_) => TlsMode::Disable,
        };
        let binding = self.binding.unwrap_or_default();
        if binding == ChannelBinding::Require && tls == TlsMode::Disable {
            let expected = "`prefer` or `disable` where there is no TLS, or go with an `sslmode` that has it";
            return Err(UrlError::Value { name: "channel_binding", expected });
        }
        Ok(PostgresUrl {
            endpoint: Endpoint { host, port, tls, ca_file: self.ca_file, address: None, binding },
            database,
            credentials: Credentials { user, password: self.password.map(Secret::new) },
            connect_timeout: self.connect_timeout.unwrap_or(CONNECT_TIMEOUT_DEFAULT),
        })
    }
}

/// Sets a part that may be said once.
fn set(part: &mut Option<String>, name: &'static str, value: String) -> Result<(), UrlError> {
    if part.replace(value).is_some() {
        return Err(UrlError::Twice(name.to_owned()));
    }
    Ok(())
}

/// Decodes percent-encoding strictly: a stray `%`, a NUL and invalid UTF-8 are refused.
fn decode(text: &str, part: &'static str) -> Result<String, UrlError> {
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let valid = match byte {
            b'%' => [bytes.next(), bytes.next()].iter().all(|b| b.is_some_and(|b| b.is_ascii_hexdigit())),
            byte => byte > b' ' && byte != 0x7f,
        };
        if !valid {
            return Err(UrlError::Encoding(part));
        }
    }
    let decoded = percent_decode_str(text).decode_utf8().map_err(|_| UrlError::Encoding(part))?;
    if decoded.contains('\0') {
        return Err(UrlError::Encoding(part));
    }
    Ok(decoded.into_owned())
}

fn host_of(host: &str) -> Result<Host, UrlError> {
    if host.contains(',') {
        return Err(UrlError::SeveralHosts);
    }
    if host.starts_with('/') {
        return Ok(Host::Unix(PathBuf::from(host)));
    }
    if let Ok(address) = host.parse::<Ipv6Addr>() {
        // One address has one spelling, so that a pattern or a comparison means all that lead there.
        return Ok(Host::Tcp(address.to_canonical().to_string()));
    }
    let letters = host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'));
    if host.is_empty() || host.starts_with('-') || !letters {
        return Err(UrlError::Host);
    }
    if is_number(host) && host.parse::<Ipv4Addr>().is_err() {
        return Err(UrlError::Host);
    }
    Ok(Host::Tcp(host.to_ascii_lowercase()))
}

/// Returns whether a system's resolver could take a host for an address of version 4 in one of its old forms: `127.1`,
/// `0x7f000001`, `017700000001`. No name ends in a number.
fn is_number(host: &str) -> bool {
    let last = host.trim_end_matches('.').rsplit('.').next().unwrap_or_default();
    let hexadecimal = last.strip_prefix("0x").or_else(|| last.strip_prefix("0X"));
    last.bytes().all(|b| b.is_ascii_digit())
        || hexadecimal.is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good(text: &str) -> PostgresUrl {
        PostgresUrl::parse(text, UrlOrigin::Operator).unwrap()
    }

    fn check(text: &str, host: &str, port: u16, database: &str, user: &str, password: Option<&str>) {
        let url = good(text);
        let host = if host.starts_with('/') { Host::Unix(host.into()) } else { Host::Tcp(host.to_owned()) };
        assert_eq!(url.endpoint.host, host, "{text}");
        assert_eq!(url.endpoint.port, port, "{text}");
        assert_eq!(url.database, database, "{text}");
        assert_eq!(url.credentials.user, user, "{text}");
        assert_eq!(url.credentials.password.as_ref().map(Secret::expose), password, "{text}");
    }

    fn refused(text: &str, origin: UrlOrigin, expected: UrlError) {
        assert_eq!(PostgresUrl::parse(text, origin), Err(expected), "{text}");
    }

    #[test]
    fn the_parts_of_a_url_are_found() {
        check("postgres://u:p@h:6543/d", "h", 6543, "d", "u", Some("p"));
        check("postgresql://u@Db.Example.COM/d", "db.example.com", 5432, "d", "u", None);
        check("postgresql://u@h", "h", 5432, "u", "u", None);
        check("postgresql://u@h/", "h", 5432, "u", "u", None);
        check("postgresql://h/d?user=u&password=p", "h", 5432, "d", "u", Some("p"));
        check("postgresql://u:p@[::1]:6000/d", "::1", 6000, "d", "u", Some("p"));
    }

    #[test]
    fn passwords_may_hold_anything_percent_encoded() {
        check("postgresql://u:%40%3A%2F%23%25%3F@h/d", "h", 5432, "d", "u", Some("@:/#%?"));
        check("postgresql://u:a:b@h/d", "h", 5432, "d", "u", Some("a:b"));
        check("postgresql://u%40corp:%E6%BC%A2@h/d", "h", 5432, "d", "u@corp", Some("漢"));
    }

    #[test]
    fn socket_directories_are_hosts() {
        check("postgresql://u@%2Fvar%2Frun:5433/d", "/var/run", 5433, "d", "u", None);
        check("postgresql:///d?host=/var/run&port=5433&user=u", "/var/run", 5433, "d", "u", None);
        check("postgresql://u@/d", "/var/run/postgresql", 5432, "d", "u", None);
        assert_eq!(good("postgresql://u@%2Ftmp/d?sslmode=require").endpoint.tls, TlsMode::Disable);
    }

    #[test]
    fn tls_and_timeout_are_read() {
        let url = good("postgresql://u@h/d?sslmode=verify-full&sslrootcert=/etc/ca.pem&connect_timeout=3");
        assert_eq!(url.endpoint.tls, TlsMode::VerifyFull);
        assert_eq!(url.endpoint.ca_file, Some(PathBuf::from("/etc/ca.pem")));
        assert_eq!(url.connect_timeout, Duration::from_secs(3));
        assert_eq!(good("postgresql://u@h/d").endpoint.tls, TlsMode::Prefer);
    }

    #[test]
    fn a_login_is_bound_as_the_url_says_and_never_where_there_is_no_tls() {
        let binding = |query: &str| good(&format!("postgresql://u@h/d?{query}")).endpoint.binding;
        assert_eq!(binding("sslmode=require"), ChannelBinding::Prefer);
        for (word, expected) in [
            ("disable", ChannelBinding::Disable),
            ("prefer", ChannelBinding::Prefer),
            ("require", ChannelBinding::Require),
        ] {
            assert_eq!(binding(&format!("sslmode=require&channel_binding={word}")), expected);
            assert_eq!(binding(&format!("channel_binding={word}")), expected, "TLS is had where it is offered");
            assert_eq!(expected.as_str(), word);
        }
        for query in ["channel_binding=", "channel_binding=Require", "channel_binding=allow"] {
            let expected = "`disable`, `prefer` or `require`";
            let error = UrlError::Value { name: "channel_binding", expected };
            refused(&format!("postgresql://u@h/d?{query}"), UrlOrigin::Caller, error);
        }
        let twice = "postgresql://u@h/d?channel_binding=require&channel_binding=disable";
        refused(twice, UrlOrigin::Caller, UrlError::Twice("channel_binding".into()));
        for text in [
            "postgresql://u@h/d?sslmode=disable&channel_binding=require",
            "postgresql://u@%2Ftmp/d?channel_binding=require",
        ] {
            let error = PostgresUrl::parse(text, UrlOrigin::Operator).unwrap_err();
            assert!(matches!(error, UrlError::Value { name: "channel_binding", .. }), "{text}: {error}");
        }
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        for origin in [UrlOrigin::Operator, UrlOrigin::Caller] {
            for name in ["service", "servicefile", "passfile", "sslkey", "sslcert", "options", "hostaddr"] {
                refused(&format!("postgresql://u@h/d?{name}=x"), origin, UrlError::Parameter(name));
            }
            refused("postgresql://u@h/d?Host=x", origin, UrlError::Parameter("host"));
            refused("postgresql://u@h/d?no_such=x", origin, UrlError::Unknown);
            refused("postgresql://u@a,b/d", origin, UrlError::SeveralHosts);
            refused("postgresql://u@a:1,b:2/d", origin, UrlError::SeveralHosts);
            refused("postgresql://u@/d?host=a%2Cb", origin, UrlError::SeveralHosts);
            refused("mysql://u@h/d", origin, UrlError::Scheme);
            refused("host=h user=u", origin, UrlError::Scheme);
            refused("postgresql://u:p#x@h/d", origin, UrlError::Fragment);
            refused("postgresql://u:%zz@h/d", origin, UrlError::Encoding("password"));
            refused("postgresql://u:%ff@h/d", origin, UrlError::Encoding("password"));
            refused("postgresql://u@h/%00", origin, UrlError::Encoding("database"));
            refused("postgresql://u@h:0/d", origin, UrlError::Port);
            refused("postgresql://u@h:70000/d", origin, UrlError::Port);
            refused("postgresql://u@[::1/d", origin, UrlError::Host);
            refused("postgresql://u@h/d?host=g", origin, UrlError::Twice("host".into()));
            refused("postgresql://u@h/d?sslmode=require&sslmode=disable", origin, UrlError::Twice("sslmode".into()));
            refused("postgresql://h/d", origin, UrlError::Missing("user"));
            refused(&format!("postgresql://u@h/{}", "d".repeat(URL_BYTES_MAX)), origin, UrlError::TooLong);
        }
        let fault = PostgresUrl::parse("postgresql://u@h/d?connect_timeout=61", UrlOrigin::Operator);
        assert!(matches!(fault, Err(UrlError::Value { name: "connect_timeout", .. })));
    }

    #[test]
    fn a_callers_url_reads_no_file_and_says_where() {
        refused("postgresql://u@h/d?sslrootcert=/etc/shadow", UrlOrigin::Caller, UrlError::OperatorOnly("sslrootcert"));
        refused("postgresql://u@%2Frun/d", UrlOrigin::Caller, UrlError::OperatorOnly("host"));
        refused("postgresql://u@/d", UrlOrigin::Caller, UrlError::Missing("host"));
        refused("postgresql://u@h", UrlOrigin::Caller, UrlError::Missing("database"));
    }

    #[test]
    fn an_address_has_one_spelling() {
        for origin in [UrlOrigin::Operator, UrlOrigin::Caller] {
            let old = [
                "127.1",
                "2130706433",
                "0",
                "0x7f.1",
                "0x7f000001",
                "0X7F000001",
                "0177.0.0.1",
                "127.0.0.01",
                "127.0.0.1.",
                "1.2.3.4.5",
                "256.1.1.1",
                "db.1",
                ".",
                "a.0x",
            ];
            for host in old {
                refused(&format!("postgresql://u@{host}/d"), origin, UrlError::Host);
                refused(&format!("postgresql://u@/d?host={host}"), origin, UrlError::Host);
            }
            for (host, spelled) in [
                ("[::ffff:127.0.0.1]", "127.0.0.1"),
                ("[::FFFF:7F00:1]", "127.0.0.1"),
                ("[0:0::1]", "::1"),
                ("127.0.0.1", "127.0.0.1"),
                ("1.db", "1.db"),
                ("0x1.internal.", "0x1.internal."),
            ] {
                let url = PostgresUrl::parse(&format!("postgresql://u@{host}/d"), origin).unwrap();
                assert_eq!(url.endpoint.host, Host::Tcp(spelled.into()), "{host}");
            }
            let url = PostgresUrl::parse("postgresql://u@/d?host=::ffff:10.0.0.1", origin).unwrap();
            assert_eq!(url.endpoint.host, Host::Tcp("10.0.0.1".into()));
        }
        for host in ["0.0.0.0", "[::]", "[::ffff:0.0.0.0]"] {
            refused(&format!("postgresql://u@{host}/d"), UrlOrigin::Caller, UrlError::Host);
        }
    }

    #[test]
    fn no_error_and_no_rendering_shows_a_password() {
        for bad in [
            "postgresql://u:hunter2@h:99999/d",
            "postgresql://u:hunter2@h/d?service=x",
            "postgresql://u:hunter2@a,b/d",
            "postgresql://u@h/d?password=hunter2&password=hunter2",
            "postgresql://u:hunter2%zz@h/d",
            "postgresql://u:p?hunter2@h/d",
            "postgresql://u:p?hunter2/x@h/d",
            "postgresql://u:p/hunter2@h/d",
            "postgresql://u@h/d?x&hunter2",
        ] {
            let error = PostgresUrl::parse(bad, UrlOrigin::Caller).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        }
        let url = good("postgresql://u:hunter2@h/d");
        assert!(!format!("{url} {url:?}").contains("hunter2"));
        assert_eq!(url.redacted(), "postgresql://u@h:5432/d");
    }

    #[test]
    fn a_url_is_read_up_to_its_bound_and_no_further() {
        let url = |bytes: usize| {
            let frame = "postgresql://u@h/";
            format!("{frame}{}", "d".repeat(bytes - frame.len()))
        };
        for bytes in [URL_BYTES_MAX - 1, URL_BYTES_MAX] {
            assert!(PostgresUrl::parse(&url(bytes), UrlOrigin::Caller).is_ok(), "{bytes}");
        }
        refused(&url(URL_BYTES_MAX + 1), UrlOrigin::Caller, UrlError::TooLong);
    }

    #[test]
    fn a_password_that_readers_would_end_at_different_places_is_refused() {
        for text in
            ["postgresql://u:a@b@h/d", "postgresql://u:a?b@h/d", "postgresql://h?user=u@g", "postgresql://u@v@h/d"]
        {
            refused(text, UrlOrigin::Operator, UrlError::Ambiguous);
        }
        check("postgresql://u@h/d?password=a@b", "h", 5432, "d", "u", Some("a@b"));
    }

    #[test]
    fn what_is_printed_reads_as_the_same_server() {
        for text in [
            "postgresql://u%40v:p@h/d%2Fe",
            "postgresql://u@h/d%3Fhost=g",
            "postgresql://u%25:p@[::1]/%C3%A9%20%23",
            "postgresql://u@/d?host=/run/a%26port%3D1&port=5433",
        ] {
            let url = good(text);
            let again = good(&url.to_string());
            assert_eq!((&again.endpoint.host, again.endpoint.port), (&url.endpoint.host, url.endpoint.port), "{url}");
            assert_eq!((&again.database, &again.credentials.user), (&url.database, &url.credentials.user), "{url}");
        }
        assert_eq!(good("postgresql://u@h/d%3Fhost=g").to_string(), "postgresql://u@h:5432/d%3Fhost%3Dg");
    }
}
