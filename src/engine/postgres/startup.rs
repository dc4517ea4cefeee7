//! The settings every connection of ours starts with, for each major version.
//!
//! A sandbox may change its database's and its own roles' settings; what is sent at the start outranks
//! both and comes back at RESET. An unknown name is fatal when a connection starts, so each major has
//! a list of its own. A pooler that drops these settings cannot be used.

use super::StartupOptions;

/// The name our sessions bear in `pg_stat_activity`.
pub const APPLICATION_NAME: &str = "pgsandbox";

/// Majors before the first on which a setting exists get a list without it.
const IDLE_SESSION_TIMEOUT_SINCE: u16 = 14;
const CREATEROLE_SELF_GRANT_SINCE: u16 = 16;
const TRANSACTION_TIMEOUT_SINCE: u16 = 17;

/// The longest a statement of the admin's may take: dropping a large database needs seconds, not minutes.
const ADMIN_STATEMENT_TIMEOUT_MS: u32 = 120_000;
/// The longest an admin statement waits for a lock, so that a stuck session cannot hold the control plane.
const ADMIN_LOCK_TIMEOUT_MS: u32 = 20_000;
/// The longest an admin transaction may sit idle; ours never wait for anything but the server.
const ADMIN_IDLE_IN_TRANSACTION_MS: u32 = 60_000;

/// The setting by which a session only reads.
const READ_ONLY: &str = "default_transaction_read_only";
/// The longest a question to a source may take on its side, and wait for a lock there.
const SOURCE_STATEMENT_TIMEOUT_MS: u32 = 60_000;
const SOURCE_LOCK_TIMEOUT_MS: u32 = 10_000;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Administration, metadata and catalogue reading: `search_path` is pinned.
    Admin,
    /// The owner role with the caller's SQL: the database's own `search_path` is honoured.
    Owner,
    /// The read-only role with the caller's SQL. Row security must not hide rows silently: the role either
    /// bypasses it, or Postgres refuses.
    ReadOnly {
        /// Whether the role has BYPASSRLS.
        bypasses_row_security: bool,
    },
    /// Another server that is copied: nothing can be changed there, and nothing is waited for long.
    Source,
}

/// Settings that exist on every supported major, whoever connects.
const ALWAYS: [(&str, &str); 31] = [
    // a library that does not exist would fail every connection
    ("local_preload_libraries", ""),
    // a database-level SET ROLE would turn an admin session into the sandbox's
    ("role", "none"),
    ("default_transaction_isolation", "read committed"),
    ("default_transaction_read_only", "off"),
    ("default_transaction_deferrable", "off"),
    ("synchronous_commit", "on"),
    // what would end a session behind our back
    ("exit_on_error", "off"),
    ("tcp_user_timeout", "0"),
    ("tcp_keepalives_idle", "0"),
    ("tcp_keepalives_interval", "0"),
    ("tcp_keepalives_count", "0"),
    // parse trees in the server's log would hold literals
    ("debug_print_parse", "off"),
    ("debug_print_rewritten", "off"),
    ("debug_print_plan", "off"),
    ("log_parameter_max_length_on_error", "0"),
    // how text is read
    ("client_encoding", "UTF8"),
    ("standard_conforming_strings", "on"),
    ("backslash_quote", "safe_encoding"),
    ("transform_null_equals", "off"),
    ("array_nulls", "on"),
    ("xmloption", "content"),
    // how values are written
    ("DateStyle", "ISO, MDY"),
    ("IntervalStyle", "postgres"),
    ("TimeZone", "UTC"),
    ("bytea_output", "hex"),
    ("xmlbinary", "base64"),
    ("extra_float_digits", "1"),
    ("quote_all_identifiers", "off"),
    ("client_min_messages", "notice"),
    ("check_function_bodies", "on"),
    ("password_encryption", "scram-sha-256"),
];

/// Returns the settings for a connection to a server of `major`.
pub fn startup_options(major: u16, purpose: Purpose) -> StartupOptions {
    let mut options: StartupOptions = ALWAYS.iter().map(|(name, value)| pair(name, value)).collect();
    if major >= IDLE_SESSION_TIMEOUT_SINCE {
        options.push(pair("idle_session_timeout", "0"));
        options.push(pair("client_connection_check_interval", "0"));
    }
    if major >= CREATEROLE_SELF_GRANT_SINCE {
        options.push(pair("createrole_self_grant", ""));
    }
    if major >= TRANSACTION_TIMEOUT_SINCE {
        options.push(pair("transaction_timeout", "0"));
    }
    match purpose {
        Purpose::Admin => {
            options.push(pair("search_path", "pg_catalog"));
            options.push(pair("row_security", "on"));
            options.push(pair("default_tablespace", ""));
            options.push(pair("temp_tablespaces", ""));
            options.push(pair("default_table_access_method", "heap"));
            options.push(pair("jit", "off"));
            options.push(pair("statement_timeout", &ADMIN_STATEMENT_TIMEOUT_MS.to_string()));
            options.push(pair("lock_timeout", &ADMIN_LOCK_TIMEOUT_MS.to_string()));
            options.push(pair("idle_in_transaction_session_timeout", &ADMIN_IDLE_IN_TRANSACTION_MS.to_string()));
        }
        Purpose::Source => {
            options.retain(|(name, _)| name != READ_ONLY);
            options.push(pair(READ_ONLY, "on"));
            options.push(pair("search_path", "pg_catalog"));
            // rows are copied all, or the copy is refused
            options.push(pair("row_security", "off"));
            options.push(pair("statement_timeout", &SOURCE_STATEMENT_TIMEOUT_MS.to_string()));
            options.push(pair("lock_timeout", &SOURCE_LOCK_TIMEOUT_MS.to_string()));
            options.push(pair("idle_in_transaction_session_timeout", &ADMIN_IDLE_IN_TRANSACTION_MS.to_string()));
        }
        Purpose::Owner | Purpose::ReadOnly { .. } => {
            let row_security = match purpose {
                Purpose::ReadOnly { bypasses_row_security: false } => "off",
                Purpose::ReadOnly { bypasses_row_security: true } | Purpose::Owner => "on",
                Purpose::Admin | Purpose::Source => "on",
            };
            options.push(pair("row_security", row_security));
            // each call sets its own and keeps a timer besides
            options.push(pair("statement_timeout", "0"));
            options.push(pair("lock_timeout", "0"));
            options.push(pair("idle_in_transaction_session_timeout", "0"));
        }
    }
    options
}

/// Returns the settings as the text of a startup packet's `options`, or of `PGOPTIONS`.
///
/// Blanks and backslashes are escaped as Postgres' own splitter expects (`pg_split_opts`).
pub fn as_options_text(options: &StartupOptions) -> String {
    let mut text = String::new();
    for (name, value) in options {
        if !text.is_empty() {
            text.push(' ');
        }
        text.push_str("-c ");
        text.push_str(name);
        text.push('=');
        for c in value.chars() {
            if c == '\\' || c.is_ascii_whitespace() {
                text.push('\\');
            }
            text.push(c);
        }
    }
    text
}

fn pair(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(major: u16, purpose: Purpose, name: &str) -> Option<String> {
        startup_options(major, purpose).into_iter().find(|(n, _)| n == name).map(|(_, v)| v)
    }

    #[test]
    fn a_setting_is_sent_only_to_majors_that_know_it() {
        for (name, since) in [
            ("idle_session_timeout", 14),
            ("client_connection_check_interval", 14),
            ("createrole_self_grant", 16),
            ("transaction_timeout", 17),
        ] {
            for major in 13..=18 {
                assert_eq!(value(major, Purpose::Owner, name).is_some(), major >= since, "{name} on {major}");
            }
        }
    }

    #[test]
    fn only_admin_sessions_pin_the_search_path() {
        assert_eq!(value(15, Purpose::Admin, "search_path").as_deref(), Some("pg_catalog"));
        assert_eq!(value(15, Purpose::Owner, "search_path"), None);
        assert_eq!(value(15, Purpose::ReadOnly { bypasses_row_security: true }, "search_path"), None);
    }

    #[test]
    fn row_security_is_off_for_a_reader_that_cannot_bypass_it() {
        let of = |bypasses_row_security| value(15, Purpose::ReadOnly { bypasses_row_security }, "row_security");
        assert_eq!(of(false).as_deref(), Some("off"));
        assert_eq!(of(true).as_deref(), Some("on"));
    }

    #[test]
    fn a_source_is_only_read() {
        for major in 13..=18 {
            assert_eq!(value(major, Purpose::Source, "default_transaction_read_only").as_deref(), Some("on"));
            assert_eq!(value(major, Purpose::Owner, "default_transaction_read_only").as_deref(), Some("off"));
        }
    }

    #[test]
    fn no_setting_is_named_twice() {
        let reader = Purpose::ReadOnly { bypasses_row_security: false };
        for purpose in [Purpose::Admin, Purpose::Owner, reader, Purpose::Source] {
            let mut names: Vec<_> = startup_options(18, purpose).into_iter().map(|(n, _)| n).collect();
            names.sort();
            let count = names.len();
            names.dedup();
            assert_eq!(names.len(), count);
        }
    }

    #[test]
    fn the_text_form_escapes_blanks_and_backslashes() {
        let options = vec![pair("a", "x y"), pair("b", ""), pair("c", "\\")];
        assert_eq!(as_options_text(&options), "-c a=x\\ y -c b= -c c=\\\\");
    }
}
