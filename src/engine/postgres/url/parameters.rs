//! The parameters of a URL, what stands behind its `?`: those that are known, and the values that each may have.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use super::{Parts, UrlError, UrlOrigin, decode, set};
use crate::engine::postgres::ChannelBinding;
use crate::model::TlsMode;

/// The longest `connect_timeout`, so that an unreachable server cannot hold a request for ever.
const CONNECT_TIMEOUT_MAX: Duration = Duration::from_secs(60);
/// Parameters that a URL of an operator's may have.
pub const PARAMETERS_SUPPORTED: [&str; 10] = [
    "host",
    "port",
    "dbname",
    "user",
    "password",
    "sslmode",
    "sslrootcert",
    "channel_binding",
    "connect_timeout",
    "application_name",
];

/// Parameters that libpq knows and errors may name; what else stands in their place may be part of a password.
const PARAMETERS: &[&str] = &[
    "application_name",
    "channel_binding",
    "client_encoding",
    "connect_timeout",
    "dbname",
    "fallback_application_name",
    "gssdelegation",
    "gssencmode",
    "gsslib",
    "host",
    "hostaddr",
    "keepalives",
    "keepalives_count",
    "keepalives_idle",
    "keepalives_interval",
    "krbsrvname",
    "load_balance_hosts",
    "options",
    "passfile",
    "password",
    "port",
    "replication",
    "require_auth",
    "requirepeer",
    "requiressl",
    "service",
    "servicefile",
    "ssl",
    "ssl_max_protocol_version",
    "ssl_min_protocol_version",
    "sslcert",
    "sslcertmode",
    "sslcompression",
    "sslcrl",
    "sslcrldir",
    "sslkey",
    "sslmode",
    "sslnegotiation",
    "sslpassword",
    "sslrootcert",
    "sslsni",
    "target_session_attrs",
    "tcp_user_timeout",
    "user",
];

impl Parts {
    pub(super) fn query(&mut self, query: &str, origin: UrlOrigin) -> Result<(), UrlError> {
        let mut seen = BTreeSet::new();
        for pair in query.split('&').filter(|p| !p.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = decode(name, "parameter name")?;
            if !seen.insert(name.clone()) {
                return Err(UrlError::Twice(name.escape_default().to_string()));
            }
            let value = decode(value, "parameter value")?;
            match name.as_str() {
                "host" => set(&mut self.host, "host", value)?,
                "port" => set(&mut self.port, "port", value)?,
                "dbname" => set(&mut self.database, "database", value)?,
                "user" => set(&mut self.user, "user", value)?,
                "password" => set(&mut self.password, "password", value)?,
                "sslmode" => self.tls = Some(tls_mode(&value)?),
                "sslrootcert" if origin == UrlOrigin::Caller => return Err(UrlError::OperatorOnly("sslrootcert")),
                "sslrootcert" if value.is_empty() => {
                    return Err(UrlError::Value { name: "sslrootcert", expected: "the path of a PEM file" });
                }
                // libpq's word for the built-in certificates, which are ours unless a file is named
                "sslrootcert" if value == "system" => {}
                "sslrootcert" => self.ca_file = Some(PathBuf::from(value)),
                "channel_binding" => self.binding = Some(channel_binding(&value)?),
                "connect_timeout" => self.connect_timeout = Some(connect_timeout(&value)?),
                // ours is sent instead: it says who connects
                "application_name" => {}
                other => return Err(unsupported(other)),
            }
        }
        Ok(())
    }
}

fn unsupported(name: &str) -> UrlError {
    let folded = name.to_ascii_lowercase();
    let known = PARAMETERS.iter().find(|known| **known == folded);
    known.map_or(UrlError::Unknown, |known| UrlError::Parameter(known))
}

fn tls_mode(value: &str) -> Result<TlsMode, UrlError> {
    Ok(match value {
        "disable" => TlsMode::Disable,
        // libpq's `allow` encrypts only where the server insists; this client then does so at once
        "allow" | "prefer" => TlsMode::Prefer,
        "require" => TlsMode::Require,
        "verify-ca" => TlsMode::VerifyCa,
        "verify-full" => TlsMode::VerifyFull,
        _ => {
            return Err(UrlError::Value {
                name: "sslmode",
                expected: "`disable`, `allow`, `prefer`, `require`, `verify-ca` or `verify-full`",
            });
        }
    })
}

fn channel_binding(value: &str) -> Result<ChannelBinding, UrlError> {
    Ok(match value {
        "disable" => ChannelBinding::Disable,
        "prefer" => ChannelBinding::Prefer,
        "require" => ChannelBinding::Require,
        _ => return Err(UrlError::Value { name: "channel_binding", expected: "`disable`, `prefer` or `require`" }),
    })
}

fn connect_timeout(value: &str) -> Result<Duration, UrlError> {
    let fault = UrlError::Value { name: "connect_timeout", expected: "a number of seconds from 1 to 60" };
    let seconds = value.parse::<u64>().map_err(|_| fault.clone())?;
    let timeout = Duration::from_secs(seconds);
    if seconds == 0 || timeout > CONNECT_TIMEOUT_MAX {
        return Err(fault);
    }
    Ok(timeout)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::postgres::PostgresUrl;

    #[test]
    fn a_connect_timeout_is_taken_up_to_its_bound_and_no_further() {
        let parsed = |seconds: &str, origin| {
            PostgresUrl::parse(&format!("postgresql://u@h/d?connect_timeout={seconds}"), origin)
        };
        for seconds in [1, 59, 60] {
            let url = parsed(&seconds.to_string(), UrlOrigin::Operator).unwrap();
            assert_eq!(url.connect_timeout, Duration::from_secs(seconds));
        }
        let fault = UrlError::Value { name: "connect_timeout", expected: "a number of seconds from 1 to 60" };
        for seconds in ["0", "61", "-1", "99999999999999999999"] {
            for origin in [UrlOrigin::Operator, UrlOrigin::Caller] {
                assert_eq!(parsed(seconds, origin), Err(fault.clone()), "{seconds}");
            }
        }
    }
}
