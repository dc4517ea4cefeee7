//! Every key of the configuration file and every variable, once: the reader and the reference page use it.
//!
//! The reader takes types and ranges from here and refuses what is not here, so a key that works is a key
//! that is documented.

use crate::audit::{ROTATE_BYTES_DEFAULT, SYNC_INTERVAL_DEFAULT};
use crate::model::limits::{TTL_MINUTES_DEFAULT, TTL_MINUTES_MAX_DEFAULT};
use crate::telemetry::OtlpProtocol;

/// A key of the configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Where it stands: `profiles[].adminUrl` for instance.
    pub path: &'static str,
    /// What it takes.
    pub kind: Kind,
    /// What holds where it is missing, in words.
    pub default: &'static str,
    /// What it does.
    pub help: &'static str,
}

/// What a key takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Text.
    Text,
    /// Text that is never shown.
    Secret,
    /// `true` or `false`.
    Flag,
    /// A whole number within a range.
    Number {
        /// The least.
        min: u64,
        /// The most.
        max: u64,
    },
    /// A major version of Postgres, as a number or as text; a patch level is ignored.
    Version,
    /// One of some words.
    Word(&'static [&'static str]),
    /// A list of texts.
    Texts,
    /// An object whose keys stand in this table.
    Object,
    /// An object with keys of the operator's choosing, and texts.
    Map,
    /// A list of objects whose keys stand in this table.
    Objects,
    /// Planned, and refused until it is built: nothing that is configured is ever ignored.
    Unavailable,
}

/// An environment variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name; `<MAJOR>` stands for a version.
    pub name: &'static str,
    /// The key it stands for, with that key's type and range.
    pub key: Option<&'static str>,
    /// Whether a configuration file takes its place, so that both together are refused.
    pub scope: VariableScope,
    /// What it does.
    pub help: &'static str,
}

/// Where a variable counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VariableScope {
    /// Always.
    Always,
    /// Only without a configuration file, which has a key for it.
    WithoutFile,
    /// Known and not read.
    Ignored,
}

/// The longest time to live that can be configured: a year. A sandbox is not where data is kept.
pub const TTL_MINUTES_CEILING: u64 = 525_600;
/// The oldest and the newest major version that are understood.
pub const MAJOR_MIN: u64 = 13;
/// Two digits: whatever has more is a mistake.
pub const MAJOR_MAX: u64 = 99;
/// More sandboxes than one owner can use, fewer than a server can have databases.
const ACTIVE_MAX: u64 = 10_000;
/// What a database prefix is unless configured.
pub const PREFIX_DEFAULT: &str = "pgsandbox";
/// How long one export may take unless configured.
pub const EXPORT_TIMEOUT_MS_DEFAULT: u64 = 5_000;
/// How many spans may wait unless configured: a burst of some hundred requests, a few MB.
pub const QUEUE_SPANS_DEFAULT: u64 = 4_096;

const fn key(path: &'static str, kind: Kind, default: &'static str, help: &'static str) -> Key {
    Key { path, kind, default, help }
}

/// The keys of the file, in the order of the reference page.
pub const KEYS: &[Key] = &[
    key(
        "defaultProfile",
        Kind::Text,
        "the only profile",
        "The profile that is used where a call names none. Needed where there are several.",
    ),
    key("profiles", Kind::Objects, "one managed profile `local`", "The servers on which sandboxes are made."),
    key("profiles[].name", Kind::Text, "needed", "1 to 64 letters, digits, `_`, `.` or `-`."),
    key(
        "profiles[].adminUrl",
        Kind::Secret,
        "none",
        "URL of an admin role on a server of your own: a superuser, or a role with CREATEDB and CREATEROLE that also has CREATE on the URL's database \
         (or owns a schema `pgsandbox` made there beforehand), where the program keeps its records. Either this or `managedLocal`.",
    ),
    key(
        "profiles[].managedLocal",
        Kind::Flag,
        "false",
        "Whether this program itself starts and looks after a cluster under its home.",
    ),
    key(
        "profiles[].postgresVersion",
        Kind::Version,
        "the newest installed; any",
        "Major version: which a managed cluster runs, or which the server of `adminUrl` must have.",
    ),
    key(
        "profiles[].databasePrefix",
        Kind::Text,
        PREFIX_DEFAULT,
        "What names of databases and roles begin with: 1 to 24 lower-case letters, digits or `_`. Nothing without it is ever dropped. Two profiles of one server have two.",
    ),
    key(
        "profiles[].defaultTtlMinutes",
        Kind::Number { min: 1, max: TTL_MINUTES_CEILING },
        "240, or `maxTtlMinutes` if that is less",
        "How long a sandbox lives unless asked otherwise.",
    ),
    key(
        "profiles[].maxTtlMinutes",
        Kind::Number { min: 1, max: TTL_MINUTES_CEILING },
        "1440",
        "How long a sandbox may live, extensions included.",
    ),
    key(
        "profiles[].maxActiveDatabasesPerOwner",
        Kind::Number { min: 1, max: ACTIVE_MAX },
        "none; the `quota` policy's",
        "How many live sandboxes one owner may have.",
    ),
    key(
        "profiles[].allowedExtensions",
        Kind::Texts,
        "those of Postgres' own that it trusts a database's owner with",
        "Extensions that may be installed when a sandbox is made and by CREATE EXTENSION in `run_sql`, there only those that Postgres trusts a database's owner with; the `extensions` policy can allow less of both. An empty \
         list allows none. Not stopped: what a function or DO block installs, and a direct login; there Postgres lets a database's owner create the \
         extensions it trusts.",
    ),
    key(
        "profiles[].allowExternalAdminUrl",
        Kind::Flag,
        "false",
        "Whether `adminUrl` may name a host that is not this machine.",
    ),
    key(
        "profiles[].allowedAdminHosts",
        Kind::Texts,
        "none",
        "Hosts beside this machine that `adminUrl` may name, and then no others.",
    ),
    key("policies", Kind::Text, "the bundled policies", "Path of the policy TOML, relative to this file."),
    key(
        "keyCommand",
        Kind::Texts,
        "`master.keys` under the home",
        "A program by its absolute path, and its arguments, that prints the keys: for servers with state directories of their own that share a profile, its credentials and its approvals. It prints what `master.keys` holds: a key a line, 32 random bytes in base64 (`openssl rand -base64 32`), the current one last; lines that begin with `#` are passed over.",
    ),
    key("audit", Kind::Object, "see its keys", "The audit log."),
    key("audit.dir", Kind::Text, "`audit` under the home", "Absolute path of a directory for the log alone."),
    key(
        "audit.sync",
        Kind::Word(&["always", "interval"]),
        "interval",
        "When lines are forced to disk: before each counts as written, or together from time to time.",
    ),
    key(
        "audit.syncIntervalMs",
        Kind::Number { min: 10, max: 60_000 },
        "1000",
        "The time between syncs: what a power cut may take.",
    ),
    key(
        "audit.rotateBytes",
        Kind::Number { min: 1 << 20, max: 4 << 30 },
        "67108864",
        "The size at which another segment is begun.",
    ),
    key(
        "telemetry",
        Kind::Object,
        "nothing is sent",
        "Export of traces by OTLP, over HTTP or gRPC. Nothing is ever sent anywhere else.",
    ),
    key("telemetry.enabled", Kind::Flag, "needed if `telemetry` is there", "Whether spans are exported."),
    key(
        "telemetry.endpoint",
        Kind::Text,
        "`OTEL_EXPORTER_OTLP_ENDPOINT`",
        "The collector's `http://` or `https://` URL: over HTTP usually on port 4318, and `/v1/traces` is added; over gRPC on port 4317.",
    ),
    key(
        "telemetry.protocol",
        Kind::Word(&OtlpProtocol::WORDS),
        "`http/protobuf`; beside `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_EXPORTER_OTLP_PROTOCOL`",
        "How spans are sent.",
    ),
    key(
        "telemetry.headersFromEnv",
        Kind::Map,
        "none",
        "Header → name of the environment variable that holds its value.",
    ),
    key("telemetry.timeoutMs", Kind::Number { min: 100, max: 60_000 }, "5000", "How long one export may take."),
    key(
        "telemetry.queueSpans",
        Kind::Number { min: 64, max: 65_536 },
        "4096",
        "How many finished spans may wait; further ones are lost and counted.",
    ),
    key("commands", Kind::Object, "see its keys", "How commands of repositories are run, where policies let them."),
    key(
        "commands.confinement",
        Kind::Word(&["required", "available"]),
        "required",
        "Whether a command is confined by Landlock or not run, or is run unconfined where the system has no Landlock.",
    ),
    key(
        "commands.repositories",
        Kind::Texts,
        "anywhere but among the system's and this program's own files",
        "Absolute paths of directories below which repositories may be.",
    ),
    key(
        "commands.readable",
        Kind::Texts,
        "none",
        "Absolute paths that commands may read and execute beside those of the reference.",
    ),
    key(
        "commands.writable",
        Kind::Texts,
        "none",
        "Absolute paths, of caches for instance, that they may write as well.",
    ),
    key("commands.environment", Kind::Texts, "none", "Names of variables that are passed on to them besides."),
    key(
        "sources",
        Kind::Objects,
        "none",
        "Databases that `clone_database` may be asked for by name; the `clone-source` policy decides about each call.",
    ),
    key("sources[].name", Kind::Text, "needed", "1 to 64 letters, digits, `_`, `.` or `-`."),
    key(
        "sources[].url",
        Kind::Secret,
        "`urlFromEnv`",
        "URL of the database, of a role that may read it and no more. `sslmode` up to `verify-full`, with `sslrootcert` for a CA of your own, or for a certificate that has signed itself; `channel_binding`.",
    ),
    key("sources[].urlFromEnv", Kind::Text, "`url`", "Name of the environment variable that holds the URL."),
    key(
        "sources[].passwordFromEnv",
        Kind::Text,
        "the URL's",
        "Name of the environment variable that holds the password, where the URL has none.",
    ),
    key(
        "sources[].passwordFile",
        Kind::Text,
        "the URL's",
        "Absolute path of a file that holds the password and only this program's user can read; read for each clone.",
    ),
    key(
        "sources[].passwordCommand",
        Kind::Texts,
        "the URL's",
        "A program by its absolute path, and its arguments; it prints the password, and is run for each clone. It sees the environment without what is this program's own.",
    ),
    key(
        "sources[].production",
        Kind::Flag,
        "false",
        "Whether it is a production database: a call must say a `reason`, and policies can demand more, another principal's approval among it.",
    ),
    key("sources[].profiles", Kind::Texts, "all", "Profiles into which it may be cloned."),
    key("pool", Kind::Unavailable, "", "Sandboxes kept ready."),
    key("http", Kind::Unavailable, "", "The HTTP listener."),
    key("identity", Kind::Unavailable, "", "Tokens and their owners."),
    key("limits", Kind::Unavailable, "", "Caps lower than the program's own."),
];

const fn variable(name: &'static str, key: Option<&'static str>, scope: VariableScope, help: &'static str) -> Variable {
    Variable { name, key, scope, help }
}

use VariableScope::{Always, Ignored, WithoutFile};

/// What every variable of this program begins with.
pub const VARIABLE_PREFIX: &str = "PGSANDBOX_";
/// Variables that begin so are for the program's own tests, and pass.
pub const TEST_PREFIX: &str = "PGSANDBOX_TEST_";

/// The variables, in the order of the reference page.
pub const VARIABLES: &[Variable] = &[
    variable("PGSANDBOX_CONFIG", None, Always, "Path of the configuration file."),
    variable(
        "PGSANDBOX_HOME",
        None,
        Always,
        "The state directory: an absolute path. Default `~/.pgsandbox`, as root `/var/lib/pgsandbox`.",
    ),
    variable(
        "PGSANDBOX_OWNER",
        None,
        Always,
        "The owner in whose name local calls are made. Nobody checks it: it keeps apart, and keeps nobody out. Default the local user.",
    ),
    variable(
        "PGSANDBOX_LOG",
        None,
        Always,
        "What is logged to stderr: `debug`, or directives like `info,pgsandbox::policy=debug`. `RUST_LOG` is not read.",
    ),
    variable("PGSANDBOX_POSTGRES_BIN_DIR", None, Always, "Directory of `initdb` and `postgres` for managed clusters."),
    variable(
        "PGSANDBOX_POSTGRES_<MAJOR>_BIN_DIR",
        None,
        Always,
        "The same for one major version: `PGSANDBOX_POSTGRES_16_BIN_DIR`.",
    ),
    variable(
        "PGSANDBOX_ADMIN_DATABASE_URL",
        Some("profiles[].adminUrl"),
        WithoutFile,
        "The admin URL of the one profile `default`.",
    ),
    variable("PGSANDBOX_DATABASE_PREFIX", Some("profiles[].databasePrefix"), WithoutFile, "As `databasePrefix`."),
    variable(
        "PGSANDBOX_DEFAULT_TTL_MINUTES",
        Some("profiles[].defaultTtlMinutes"),
        WithoutFile,
        "As `defaultTtlMinutes`.",
    ),
    variable("PGSANDBOX_MAX_TTL_MINUTES", Some("profiles[].maxTtlMinutes"), WithoutFile, "As `maxTtlMinutes`."),
    variable(
        "PGSANDBOX_MAX_ACTIVE_DATABASES_PER_OWNER",
        Some("profiles[].maxActiveDatabasesPerOwner"),
        WithoutFile,
        "As `maxActiveDatabasesPerOwner`.",
    ),
    variable(
        "PGSANDBOX_ALLOWED_EXTENSIONS",
        Some("profiles[].allowedExtensions"),
        WithoutFile,
        "As `allowedExtensions`, separated by commas.",
    ),
    variable("PGSANDBOX_POSTGRES_VERSION", Some("profiles[].postgresVersion"), WithoutFile, "As `postgresVersion`."),
    variable(
        "PGSANDBOX_ALLOW_EXTERNAL_ADMIN_URL",
        Some("profiles[].allowExternalAdminUrl"),
        WithoutFile,
        "As `allowExternalAdminUrl`: `true` or `false`.",
    ),
    variable(
        "PGSANDBOX_ALLOWED_ADMIN_HOSTS",
        Some("profiles[].allowedAdminHosts"),
        WithoutFile,
        "As `allowedAdminHosts`, separated by commas.",
    ),
    variable("PGSANDBOX_POLICIES", Some("policies"), WithoutFile, "As `policies`: an absolute path."),
    variable(
        "PGSANDBOX_DATABASE_URL",
        None,
        Ignored,
        "Not read: the name is left to commands that are given a sandbox's URL.",
    ),
];

/// Returns the key at a path.
pub fn key_at(path: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.path == path)
}

/// Returns the names that may stand in the object at `path`, which is empty for the file itself.
pub fn names_in(path: &str) -> impl Iterator<Item = &'static str> + '_ {
    KEYS.iter().filter_map(move |key| {
        let rest = if path.is_empty() { key.path } else { key.path.strip_prefix(path)?.strip_prefix('.')? };
        (!rest.contains(['.', '['])).then_some(rest)
    })
}

const _: () = {
    assert!(SYNC_INTERVAL_DEFAULT.as_millis() == 1000, "the text above says so");
    assert!(ROTATE_BYTES_DEFAULT == 67_108_864, "the text above says so");
    assert!(TTL_MINUTES_DEFAULT == 240 && TTL_MINUTES_MAX_DEFAULT == 1440, "the text above says so");
};
