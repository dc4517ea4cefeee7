//! Looks into a repository, and says what could be run there.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::Serialize;

use super::repo_command::check_url_names;
use super::{About, Ahead, Asks, Call, Done, Operation, Spec, Toolset, connection};
use crate::admission::{Admissible, Permit};
use crate::command::project::{self, PROJECT_FILE, Project};
use crate::command::survey::{Proposal, Purpose, Survey, VersionSource};
use crate::command::{Commands, Repo, argv};
use crate::model::{Code, CredentialAccess, Failure, Impact, ObligationKind};
use crate::sandbox::Selector;

/// Arguments of `prepare_for_repo`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct PrepareForRepo {
    /// Absolute path of the repository.
    repo_path: String,
    /// The command that changes the schema, to be recorded for run_repo_command and validate_schema_change.
    migration_command: Option<Vec<String>>,
    /// The command that fills in data, to be recorded for seed_database.
    seed_command: Option<Vec<String>>,
    /// Names beside DATABASE_URL under which those commands find the database URL, up to 8, to be recorded.
    database_url_env_names: Option<Vec<String>>,
    /// Postgres major version that the repository is made for, to be recorded; beside a sandbox, the version of its profile.
    postgres_version: Option<String>,
    /// A sandbox's id: how it is connected to is told, too.
    database_id: Option<String>,
    /// The same by its database name.
    database_name: Option<String>,
    /// The sandbox's profile; default: search all profiles.
    profile: Option<String>,
}

/// What was found in a repository.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Prepared {
    repo_path: String,
    /// The major version of Postgres that the repository is made for, if it says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    postgres_version: Option<String>,
    /// Every place that says which Postgres is used, the one that counts first.
    version_sources: Vec<VersionEntry>,
    tools: Vec<ToolEntry>,
    /// Commands that could be run; none was.
    proposals: Vec<ProposalEntry>,
    /// Names beside DATABASE_URL that the repository reads its database URL from: for databaseUrlEnvNames.
    database_url_env_names: Vec<String>,
    /// What is recorded in the repository.
    recorded: Recorded,
    /// Whether this call recorded it.
    written: bool,
    /// The sandbox that was named, with its password left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    connection_string_redacted: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct VersionEntry {
    file: String,
    /// The service, job or tool.
    name: String,
    /// What stands there, an image for instance.
    says: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    postgres_version: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ToolEntry {
    name: String,
    file: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ProposalEntry {
    /// `migration` or `seed`.
    purpose: String,
    command: Vec<String>,
    /// The file that says so.
    because: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Recorded {
    file: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    postgres_version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    migration_command: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seed_command: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    database_url_env_names: Option<Vec<String>>,
}

impl Admissible for PrepareForRepo {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;
}

#[async_trait]
impl Operation for PrepareForRepo {
    const SPEC: Spec = Spec {
        name: "prepare_for_repo",
        title: "Look into a repository",
        help: "Says which Postgres a repository is made for and which commands change and fill its database, by its files alone: \
               nothing is run. Commands that you give are recorded, without secrets, in the repository's .pgsandbox/project.json, \
               where run_repo_command and seed_database find them.",
        impact: Impact::ReachesOut,
        // It makes no sandbox and touches none, so that whatever is demanded of one holds.
        meets: &[
            ObligationKind::ReadOnly,
            ObligationKind::MaxRows,
            ObligationKind::MaxResultBytes,
            ObligationKind::MaxTtlMinutes,
            ObligationKind::MaxLiveSandboxes,
            ObligationKind::MaxDatabaseBytes,
        ],
        toolset: Toolset::Repository,
        idempotent: true,
    };
    type Output = Prepared;

    fn check(&self) -> Result<(), Failure> {
        for (name, command) in [("migrationCommand", &self.migration_command), ("seedCommand", &self.seed_command)] {
            let Some(command) = command else { continue };
            argv::check(command).and_then(|()| argv::check_recorded(command)).map_err(|error| {
                let mut failure = Failure::from(error);
                failure.message = format!("`{name}`: {}", failure.message);
                failure
            })?;
        }
        check_url_names(self.database_url_env_names.as_deref().unwrap_or_default())?;
        // With a sandbox named, the version only selects.
        if !self.names_sandbox() {
            self.major()?;
        }
        Ok(())
    }

    fn asks(&self) -> Asks {
        let about = if self.names_sandbox() { About::Sandbox(self.sandbox()) } else { About::Program };
        Asks { about, ..Asks::default() }
    }

    async fn foresee(&self, ahead: &Ahead<'_>) -> Result<Vec<String>, Failure> {
        self.open(ahead.commands).map(|_| Vec::new())
    }

    async fn run(permit: Permit<Self>, call: &Call) -> Result<Done<Prepared>, Failure> {
        let input = permit.input();
        let repo = permit.grant().course.refusing(input.open(&call.commands))?;
        let mut survey = Survey::of(&repo);
        let recorded = Project::read(&repo);
        let mut project = recorded.clone().unwrap_or_else(|warning| {
            survey.warnings.push(warning);
            Project::default()
        });
        let given = input.project()?;
        let written = given != Project::default();
        if written {
            project = Project {
                postgres_version: given.postgres_version.or(project.postgres_version),
                migration_command: given.migration_command.or(project.migration_command),
                seed_command: given.seed_command.or(project.seed_command),
                database_url_env_names: given.database_url_env_names.or(project.database_url_env_names),
            };
            permit.grant().course.acts();
            project.write(&repo).map_err(|error| {
                Failure::new(Code::UnsafeCommand, format!("`{PROJECT_FILE}` could not be written into the repository"))
                    .hint("is the directory writable, and no link? Without commands to record nothing is written")
                    .audit(error.to_string())
            })?;
        }
        let connection = match permit.grant().target {
            Some(id) => Some(call.core.connection_of(&permit, id, CredentialAccess::Owner).await?),
            None => None,
        };
        let version = project.postgres_version.clone().or_else(|| survey.major().map(|major| major.to_string()));
        let summary = summary(&repo, version.as_deref(), survey.proposals.len());
        let mut warnings = std::mem::take(&mut survey.warnings);
        let recorded_names = project.database_url_env_names.as_deref().unwrap_or_default();
        let unrecorded: Vec<&str> =
            survey.url_names.iter().filter(|name| !recorded_names.contains(name)).map(String::as_str).collect();
        if !unrecorded.is_empty() {
            warnings.push(format!(
                "its database URL is read from `{}`; record that with `databaseUrlEnvNames`, or give it with each command",
                unrecorded.join("`, `")
            ));
        }
        let mut majors = Vec::new();
        for profile in call.core.profiles() {
            majors.push(profile.major_ahead().await.map(|major| major.to_string()));
        }
        // Whose version is not known may have it.
        let is_unserved =
            |wanted: &&str| majors.iter().all(|major| major.as_deref().is_some_and(|major| major != *wanted));
        if let Some(version) = project.postgres_version.as_deref().filter(is_unserved) {
            warnings.push(format!(
                "no profile has Postgres {version}: validate_schema_change will not make a sandbox for the repository unless the call \
                 names a version or profile that there is; `list_profiles` shows them"
            ));
        }
        let result = Prepared {
            repo_path: repo.path().display().to_string(),
            postgres_version: version,
            version_sources: survey.versions.into_iter().map(VersionEntry::from).collect(),
            tools: survey.tools.into_iter().map(|(name, file)| ToolEntry { name, file }).collect(),
            proposals: survey.proposals.into_iter().map(ProposalEntry::from).collect(),
            database_url_env_names: survey.url_names,
            recorded: Recorded {
                file: PROJECT_FILE.to_owned(),
                postgres_version: project.postgres_version,
                migration_command: project.migration_command,
                seed_command: project.seed_command,
                database_url_env_names: project.database_url_env_names,
            },
            written,
            connection_string_redacted: connection.map(|info| connection::redacted(&info)),
        };
        Ok(Done::new(summary, result).warn(warnings))
    }
}

impl PrepareForRepo {
    fn names_sandbox(&self) -> bool {
        self.database_id.is_some() || self.database_name.is_some()
    }

    fn sandbox(&self) -> Selector {
        Selector {
            profile: self.profile.clone(),
            postgres_version: self.postgres_version.clone(),
            database_id: self.database_id.clone(),
            database_name: self.database_name.clone(),
        }
    }

    fn open(&self, commands: &Commands) -> Result<Repo, Failure> {
        Ok(commands.open(&self.repo_path)?)
    }

    /// Returns the version to be recorded: with a sandbox named, it only selects.
    fn major(&self) -> Result<Option<String>, Failure> {
        let Some(version) = self.postgres_version.as_deref().filter(|_| !self.names_sandbox()) else {
            return Ok(None);
        };
        match project::major(version) {
            Some(major) => Ok(Some(major.to_string())),
            None => Err(Failure::new(Code::InvalidArguments, "`postgresVersion` is no version of Postgres")
                .hint("give a major version, `16` for instance")),
        }
    }

    fn project(&self) -> Result<Project, Failure> {
        Ok(Project {
            postgres_version: self.major()?,
            migration_command: self.migration_command.clone(),
            seed_command: self.seed_command.clone(),
            database_url_env_names: self.database_url_env_names.clone(),
        })
    }
}

fn summary(repo: &Repo, version: Option<&str>, proposals: usize) -> String {
    let name = repo.path().file_name().unwrap_or_default().to_string_lossy();
    let version = version
        .map_or_else(|| "says no version of Postgres".to_owned(), |version| format!("is made for Postgres {version}"));
    format!(
        "`{}` {version}; {}",
        argv::shown(&name),
        crate::model::counted(proposals, "command is proposed", "commands are proposed")
    )
}

impl From<VersionSource> for VersionEntry {
    fn from(source: VersionSource) -> Self {
        let VersionSource { file, name, says, major } = source;
        Self { file, name, says, postgres_version: major.map(|major| major.to_string()) }
    }
}

impl From<Proposal> for ProposalEntry {
    fn from(proposal: Proposal) -> Self {
        let purpose = match proposal.purpose {
            Purpose::Migration => "migration",
            Purpose::Seed => "seed",
        };
        Self { purpose: purpose.to_owned(), command: proposal.command, because: proposal.because }
    }
}
