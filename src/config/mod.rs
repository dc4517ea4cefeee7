//! Configuration: what was written down → what the program runs with.
//!
//! Loading reads; it starts, makes and connects to nothing. Whatever is unreadable, unknown or out of range
//! stops the start, with every fault listed: a limit that cannot be read never becomes no limit, and nothing
//! that is configured is ignored. Only a source whose variable is not set is told as unusable instead. [`Config`] has a value for everything that has a default. [`keys`] is the one
//! list of keys and variables.

mod environment;
mod file;
pub mod keys;
mod named;
mod node;
pub mod policies;
mod read;
mod resolve;
mod sources;
mod state_dir;
mod writers;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

pub use environment::{Environment, is_repeatable};
pub use named::variables_named;
pub use state_dir::{StateDir, StateDirError};

use crate::audit::AuditSettings;
use crate::command::Confinement;
use crate::engine::postgres::PostgresUrl;
use crate::model::{Code, Failure, Secret};
use crate::secret::PasswordSource;
use crate::telemetry::TelemetrySettings;

/// All that is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where the program keeps its state. Nothing there has been looked at.
    pub home: StateDir,
    /// The servers, in the order they were written; at least one.
    pub profiles: Vec<ProfileConfig>,
    /// The name of one of them.
    pub default_profile: String,
    /// Databases that may be cloned by name, in the order they were written.
    pub sources: Vec<CloneSourceConfig>,
    /// Those of them that cannot be, since a variable that they name is not set.
    pub unusable_sources: Vec<UnusableSourceConfig>,
    /// Where client programs of Postgres are looked for first.
    pub bin_dirs: BinDirs,
    /// The policy TOML; `None` for the bundled policies.
    pub policies: Option<PathBuf>,
    /// The program that prints the keys, with its arguments; `None` for the key file of the state directory.
    pub key_command: Option<Vec<String>>,
    /// The audit log.
    pub audit: AuditSettings,
    /// How commands of repositories are run.
    pub commands: CommandsConfig,
    /// Log and traces.
    pub telemetry: TelemetrySettings,
    /// In whose name local calls are made, if not the local user's.
    pub owner: Option<String>,
    /// The file that was read, if one was.
    pub file: Option<PathBuf>,
    /// What works and should be looked at.
    pub warnings: Vec<String>,
}

/// How commands of repositories are run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandsConfig {
    /// What to do where they cannot be confined.
    pub confinement: Confinement,
    /// Directories below which repositories may be; empty for anywhere.
    pub repositories: Vec<PathBuf>,
    /// What they may read and execute besides.
    pub readable: Vec<PathBuf>,
    /// What they may write besides.
    pub writable: Vec<PathBuf>,
    /// Variables that are passed on besides.
    pub environment: Vec<String>,
}

impl Config {
    /// Returns the profile of that name.
    pub fn profile(&self, name: &str) -> Option<&ProfileConfig> {
        self.profiles.iter().find(|profile| profile.name == name)
    }
}

/// A server on which sandboxes are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileConfig {
    /// Unique among the profiles.
    pub name: String,
    /// Where the server comes from.
    pub source: Source,
    /// What names of databases and roles begin with.
    pub prefix: String,
    /// Not over `max_ttl_minutes`.
    pub default_ttl_minutes: u64,
    /// From a sandbox's creation.
    pub max_ttl_minutes: u64,
    /// `None` where the profile does not say; empty where it allows none.
    pub allowed_extensions: Option<Vec<String>>,
    /// `None` where the profile does not say.
    pub max_active_databases_per_owner: Option<u64>,
}

/// Where a profile's server comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A cluster that this program starts and looks after.
    Managed {
        /// The major version it must have.
        postgres_version: Option<u16>,
        /// Where server programs are looked for first.
        bin_dirs: BinDirs,
    },
    /// A server of the operator's own.
    External {
        /// Parsed once without fault, and its host allowed.
        admin_url: Secret,
        /// Whether hosts other than this machine were allowed.
        allow_external: bool,
        /// Such hosts by name, in lower case.
        allowed_admin_hosts: Vec<String>,
        /// The major version it must have.
        postgres_version: Option<u16>,
    },
}

/// A database that may be cloned by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloneSourceConfig {
    /// Unique among the sources.
    pub name: String,
    /// Where it is, and who reads it.
    pub url: PostgresUrl,
    /// Where the password is kept, if the URL has none.
    pub password: Option<PasswordSource>,
    /// Whether it is a production database.
    pub production: bool,
    /// The profiles into which it may be cloned; `None` for all.
    pub profiles: Option<Vec<String>>,
}

/// A database that could be cloned by name if the variables were set that its URL or password is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusableSourceConfig {
    /// Unique among all sources.
    pub name: String,
    /// Whether it is a production database.
    pub production: bool,
    /// What is not set; at least one.
    pub faults: Vec<Fault>,
}

impl UnusableSourceConfig {
    /// Returns what is not set, in one line.
    pub fn why(&self) -> String {
        self.faults.iter().map(Fault::to_string).collect::<Vec<_>>().join("; ")
    }
}

/// Directories of server programs, from the environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BinDirs {
    /// For any version.
    pub any: Option<PathBuf>,
    /// For one major version.
    pub by_major: BTreeMap<u16, PathBuf>,
}

/// One thing that is wrong with the configuration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// A key's path, a variable's name, or a file.
    pub place: String,
    /// What is wrong with it. Shows no value that could be a secret.
    pub what: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {}", self.place, self.what)
    }
}

/// All that is wrong with the configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    /// At least one.
    pub faults: Vec<Fault>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the configuration cannot be used")?;
        self.faults.iter().try_for_each(|fault| write!(f, "\n  {fault}"))
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::new(Code::InvalidConfiguration, error.to_string())
            .hint("correct what is listed; `docs/reference/configuration.md` has every key and variable")
    }
}

/// Reads the configuration that `environment` names.
///
/// # Errors
/// Fails with every fault there is.
pub fn load(environment: &Environment) -> Result<Config, ConfigError> {
    environment::load(environment)
}

/// Returns where state is kept, whatever else is configured. Looks at nothing.
///
/// # Errors
/// Fails if no directory is named, or one that cannot be meant.
pub fn state_dir(environment: &Environment) -> Result<StateDir, ConfigError> {
    environment::state_dir(environment)
}

/// Returns `path`, seen from `base` if it is relative.
fn seen_from(base: &Path, path: &str) -> PathBuf {
    base.join(path)
}
