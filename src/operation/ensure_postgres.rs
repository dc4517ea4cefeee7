//! Makes sure that Postgres of a version runs, and says what runs where.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::selector::ProfileSelector;
use super::{Ahead, Asks, Call, Done, Operation, Spec, Toolset};
use crate::admission::{Admissible, Permit};
use crate::engine::Standing;
use crate::model::{Failure, Impact, ObligationKind, Requested};
use crate::sandbox::{Ensured, ServerStatus, Wanted};

/// Arguments of `ensure_postgres`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct EnsurePostgres {
    #[serde(flatten)]
    profile: ProfileSelector,
    /// Install the version through the system's package manager if it is missing, where policies allow it. Default false.
    install_missing: Option<bool>,
}

/// What runs where.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Postgres {
    /// The profile whose server was made sure of.
    resolved_profile: String,
    resolved_postgres_version: String,
    /// Whether it had to be started.
    started: bool,
    /// The version that had to be installed.
    #[serde(skip_serializing_if = "Option::is_none")]
    installed: Option<String>,
    servers: Vec<ServerEntry>,
    /// Full versions of the servers installed on this machine, the newest first.
    installed_versions: Vec<String>,
}

/// One profile's server.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ServerEntry {
    profile: String,
    /// Whether this program runs the server.
    managed: bool,
    /// Its major version; of a cluster that is not there yet, the one it would have.
    #[serde(skip_serializing_if = "Option::is_none")]
    postgres_version: Option<String>,
    /// `running`, `stopped`, `not-made`, `external` for a server of others, or `silent` for one that does not answer.
    state: String,
}

impl From<ServerStatus> for ServerEntry {
    fn from(status: ServerStatus) -> Self {
        let state = match status.standing {
            Some(_) if !status.managed => "external",
            Some(Standing::Runs) => "running",
            Some(Standing::Stopped) => "stopped",
            Some(Standing::Unmade) => "not-made",
            None => "silent",
        };
        Self {
            profile: status.profile,
            managed: status.managed,
            postgres_version: status.major.map(|major| major.to_string()),
            state: state.to_owned(),
        }
    }
}

impl EnsurePostgres {
    fn installs(&self) -> bool {
        self.install_missing.unwrap_or(false)
    }

    fn wanted(&self) -> Wanted {
        Wanted {
            profile: self.profile.profile.clone(),
            postgres_version: self.profile.postgres_version.clone(),
            install: self.installs(),
        }
    }

    /// Returns what installs the version, as policies are asked about it.
    fn command(&self) -> Vec<String> {
        let package = match self.profile.postgres_version.as_deref() {
            Some(version) if version != "*" => {
                format!("postgresql-{}", version.split('.').next().unwrap_or_default())
            }
            Some(_) | None => "postgresql".to_owned(),
        };
        ["apt-get", "install", "--yes"].into_iter().map(str::to_owned).chain([package]).collect()
    }
}

impl Admissible for EnsurePostgres {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;
}

#[async_trait]
impl Operation for EnsurePostgres {
    const SPEC: Spec = Spec {
        name: "ensure_postgres",
        title: "Make sure that Postgres runs",
        help: "Starts the managed cluster of a Postgres version and says what runs where. Installs a missing version only when \
               asked to.",
        impact: Impact::ReachesOut,
        meets: &[],
        toolset: Toolset::Operator,
        idempotent: true,
    };
    type Output = Postgres;

    fn asks(&self) -> Asks {
        // About no profile: to resolve one could start it, before anybody was asked.
        let command = if self.installs() { self.command() } else { Vec::new() };
        Asks { requested: Requested { command, ..Requested::default() }, ..Asks::default() }
    }

    async fn foresee(&self, ahead: &Ahead<'_>) -> Result<Vec<String>, Failure> {
        ahead.core.foresee_ensure(ahead.grant, &self.wanted()).await?;
        Ok(Vec::new())
    }

    async fn run(permit: Permit<Self>, call: &Call) -> Result<Done<Postgres>, Failure> {
        let wanted = permit.input().wanted();
        let Ensured { profile, major, started, installed, servers, versions } =
            call.core.ensure(&permit, &wanted, call.progress.clone()).await?;
        let how = match (&installed, started) {
            (Some(version), _) => {
                format!("; PostgreSQL {version} was installed, and no server of the package's own started")
            }
            (None, true) => ", started now".to_owned(),
            (None, false) => String::new(),
        };
        Ok(Done::new(
            format!("Postgres {major} of profile `{profile}` runs{how}"),
            Postgres {
                resolved_profile: profile,
                resolved_postgres_version: major.to_string(),
                started,
                installed,
                servers: servers.into_iter().map(Into::into).collect(),
                installed_versions: versions,
            },
        ))
    }
}
