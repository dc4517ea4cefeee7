//! Connection strings, with and without their password.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::engine::ConnectionInfo;
use crate::model::Secret;

/// What need not be escaped in a URL's parts.
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Returns the URL with the password replaced by `***`.
pub(crate) fn redacted(info: &ConnectionInfo) -> String {
    url(info, "***")
}

/// Returns the URL with its password.
pub(crate) fn with_password(info: &ConnectionInfo, password: &Secret) -> Secret {
    Secret::new(url(info, &escape(password.expose())))
}

fn url(info: &ConnectionInfo, password: &str) -> String {
    let socket = info.host.starts_with('/');
    let host = match (socket, info.host.contains(':')) {
        (true, _) => String::new(),
        (false, true) => format!("[{}]", info.host),
        (false, false) => escape(&info.host),
    };
    let mut parameters: Vec<(&str, &str)> = Vec::new();
    if socket {
        parameters.push(("host", &info.host));
    }
    parameters.extend(info.parameters.iter().map(|(k, v)| (k.as_str(), v.as_str())));
    let query: Vec<String> = parameters.iter().map(|(k, v)| format!("{}={}", escape(k), escape(v))).collect();
    let query = if query.is_empty() { String::new() } else { format!("?{}", query.join("&")) };
    format!("postgresql://{}:{password}@{host}:{}/{}{query}", escape(&info.user), info.port, escape(&info.database))
}

fn escape(text: &str) -> String {
    utf8_percent_encode(text, UNRESERVED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(host: &str, expected: &str) {
        let info = ConnectionInfo {
            host: host.into(),
            port: 65432,
            database: "pgsb_a_0123456789".into(),
            user: "pgsb_a_0123456789_role".into(),
            parameters: Vec::new(),
        };
        assert_eq!(with_password(&info, &Secret::new("p@s:s/w%")).expose(), expected);
        assert!(!redacted(&info).contains("p%40s"));
    }

    #[test]
    fn a_tcp_url_escapes_the_password() {
        check("127.0.0.1", "postgresql://pgsb_a_0123456789_role:p%40s%3As%2Fw%25@127.0.0.1:65432/pgsb_a_0123456789");
    }

    #[test]
    fn an_ipv6_address_stands_in_brackets() {
        check("::1", "postgresql://pgsb_a_0123456789_role:p%40s%3As%2Fw%25@[::1]:65432/pgsb_a_0123456789");
    }

    #[test]
    fn a_socket_directory_is_a_parameter() {
        check(
            "/run/x",
            "postgresql://pgsb_a_0123456789_role:p%40s%3As%2Fw%25@:65432/pgsb_a_0123456789?host=%2Frun%2Fx",
        );
    }
}
