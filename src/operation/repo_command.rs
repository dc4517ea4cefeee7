//! What the operations share that run a command of a repository against a sandbox.

use std::net::IpAddr;
use std::sync::OnceLock;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::arguments::Whole;
use super::extend_database::missing_target;
use super::selector::DatabaseSelector;
use super::{About, Ahead, Asks, Call, Done, connection};
use crate::admission::{Grant, Permit};
use crate::command::output::{OUTPUT_CHARS_MAX, TAIL_LINES_MAX};
use crate::command::project::Project;
use crate::command::surroundings::{URL_NAMES_MAX, check_url_name};
use crate::command::{
    Captured, CommandError, Commands, Ended, Ran, Repo, Run, STDIN_BYTES_MAX, Stdin, Stopped, TIMEOUT_SECONDS_DEFAULT,
    TIMEOUT_SECONDS_MAX, Wanted, argv,
};
use crate::engine::ConnectionInfo;
use crate::model::{Code, CredentialAccess, Failure, ObligationKind, ProgramOutput, Requested, SandboxId, Secret};
use crate::sandbox::Selector;

/// Demands that such an operation can make true. A command has the owner's credentials, so one that is to be read-only,
/// or to keep to limits of rows, is refused.
pub(super) const MEETS: &[ObligationKind] = &[ObligationKind::MaxDatabaseBytes];
/// What a container calls the machine that it runs on.
const CONTAINERS_HOST: &str = "host.docker.internal";

/// Arguments of every operation that runs a command.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct CommandArguments {
    #[serde(flatten)]
    database: DatabaseSelector,
    /// Absolute path of the repository, in which the command runs.
    repo_path: String,
    /// The program and its arguments, each a word of its own: no shell reads them. Default: what prepare_for_repo recorded.
    command: Option<Vec<String>>,
    /// Text for the command to read, up to 64 KiB.
    stdin: Option<String>,
    /// Further names under which the command finds the database URL, up to 8. Default: what prepare_for_repo recorded.
    database_url_env_names: Option<Vec<String>>,
    /// How the command reaches the database: `direct`, or `localContainer` from a container of this machine. Default direct.
    connection_mode: Option<ConnectionMode>,
    /// Time for the command, 1 to 600; default 120.
    timeout_seconds: Option<Whole>,
    /// Leave the control sequences of terminals out; default false.
    strip_ansi: Option<bool>,
    /// Characters kept of standard output, 0 to 8000; default 8000. Beginning and end are kept.
    stdout_limit: Option<Whole>,
    /// The same of the error output.
    stderr_limit: Option<Whole>,
    /// Only so many last lines of each, 1 to 1000.
    tail_lines: Option<Whole>,
    /// Leave out the lines by which Docker says how containers come and go; default false.
    suppress_docker_lifecycle: Option<bool>,
    /// What is run: read once, so that what was decided on is what runs.
    #[serde(skip)]
    words: OnceLock<Vec<String>>,
    /// The recorded names of the database URL, read as early.
    #[serde(skip)]
    recorded_names: OnceLock<Vec<String>>,
}

/// From where the database is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
enum ConnectionMode {
    /// From this machine.
    Direct,
    /// From a container on this machine.
    LocalContainer,
}

/// How a command went.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct CommandResult {
    /// Whether it ended with exit code 0.
    ok: bool,
    database_id: String,
    database_name: String,
    /// The command, secrets taken out.
    command: Vec<String>,
    /// Its exit code; absent if a signal ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    /// The signal that ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    /// Always false: a command whose time was over is the error `command_timeout`.
    timed_out: bool,
    elapsed_ms: u64,
    stdout: String,
    stderr: String,
    /// Whether something of it was left out.
    stdout_truncated: bool,
    stderr_truncated: bool,
    /// Bytes that the command wrote.
    stdout_bytes: u64,
    stderr_bytes: u64,
    /// Processes that it left running, which were ended.
    left_behind: u32,
    /// Whether it was confined to the repository, caches and the system's programs.
    confined: bool,
}

impl CommandArguments {
    /// Finds fault with the arguments. `recorded` reads what the repository remembers, and is asked only for a command that is not
    /// given; `missing` is told where there is none either.
    pub(super) fn check(
        &self,
        recorded: impl FnOnce(Project) -> Option<Vec<String>>,
        missing: Failure,
    ) -> Result<(), Failure> {
        Repo::check(&self.repo_path)?;
        let project = Project::look_at(&self.repo_path);
        let fault = project.as_ref().err().cloned();
        let project = project.unwrap_or_default();
        let names = project.database_url_env_names.clone().filter(|_| self.database_url_env_names.is_none());
        self.recorded_names.set(names.unwrap_or_default()).ok();
        let words = match (&self.command, fault) {
            (Some(words), _) => words.clone(),
            (None, None) => recorded(project).ok_or(missing)?,
            // Something may be recorded there.
            (None, Some(fault)) => {
                let message = format!("no command was given, and {fault}");
                return Err(Failure::new(missing.code, message)
                    .hint("correct the file, or give `command`")
                    .naming(&["command"]));
            }
        };
        argv::check(&words)?;
        self.words.set(words).ok();
        self.timeout()?;
        self.wanted()?;
        if let Some(stdin) = self.stdin.as_ref().filter(|stdin| stdin.len() > STDIN_BYTES_MAX) {
            let message = format!("`stdin` of {} bytes is over the limit of {STDIN_BYTES_MAX}", stdin.len());
            return Err(Failure::new(Code::InvalidArguments, message).hint("put it into a file of the repository"));
        }
        check_url_names(self.database_url_env_names.as_deref().unwrap_or_default())
    }

    /// Finds fault with the arguments of an operation that runs the recorded migration unless it is given another command.
    pub(super) fn check_migration(&self) -> Result<(), Failure> {
        let missing = Failure::new(
            Code::MissingSchemaChangeCommand,
            "no command was given, and the repository has none recorded",
        )
        .hint("give `command`, or record a `migrationCommand` with prepare_for_repo")
        .naming(&["command", "migrationCommand"]);
        self.check(|project| project.migration_command, missing)
    }

    /// Says what policies need to see.
    pub(super) fn asks(&self) -> Asks {
        Asks {
            about: About::Sandbox(self.selector()),
            requested: Requested {
                command: self.words().to_vec(),
                timeout_ms: self.timeout().ok().and_then(|timeout| u64::try_from(timeout.as_millis()).ok()),
                ..Requested::default()
            },
            usage: true,
            ..Asks::default()
        }
    }

    /// Says what the call would be refused with.
    pub(super) async fn foresee(&self, ahead: &Ahead<'_>) -> Result<(), Failure> {
        let id = ahead.grant.target.ok_or_else(missing_target)?;
        self.look(ahead.commands)?;
        ahead.core.foresee_use(ahead.grant, id, CredentialAccess::Owner).await
    }

    /// Runs it in the sandbox of the permit, and tells how it went.
    pub(super) async fn carry_out<T>(&self, permit: &Permit<T>, call: &Call) -> Result<Done<CommandResult>, Failure> {
        let repo = self.open(permit.grant(), &call.commands)?;
        let id = permit.grant().target.ok_or_else(missing_target)?;
        let credentials = call.core.credentials_for_command(permit, id).await?;
        let prepared = self.prepare(permit.grant(), repo, id, credentials)?;
        let result = self.run(permit.grant(), call, &prepared).await?;
        let warnings = result.warnings();
        Ok(Done::new(result.summary(), result).warn(warnings))
    }

    /// Opens the repository, before anything is done for the command.
    pub(super) fn open(&self, grant: &Grant, commands: &Commands) -> Result<Repo, Failure> {
        grant.course.refusing(self.look(commands).map_err(Failure::from))
    }

    fn look(&self, commands: &Commands) -> Result<Repo, CommandError> {
        commands.confined()?;
        commands.open(&self.repo_path)
    }

    /// Makes everything ready, and runs nothing.
    pub(super) fn prepare(
        &self,
        grant: &Grant,
        repo: Repo,
        id: SandboxId,
        (info, password): (ConnectionInfo, Secret),
    ) -> Result<Prepared, Failure> {
        let seen = grant.course.refusing(self.seen_from(&info))?;
        Ok(Prepared { repo, id, info, seen, password })
    }

    /// Runs the command.
    pub(super) async fn run(&self, grant: &Grant, call: &Call, prepared: &Prepared) -> Result<CommandResult, Failure> {
        let words = self.words();
        let stdin = match (&self.stdin, &call.console) {
            (Some(text), _) => Stdin::Text(text.clone()),
            (None, Some(_)) => Stdin::Console,
            (None, None) => Stdin::Nothing,
        };
        grant.course.acts();
        let ran = call
            .commands
            .run(Run {
                repo: &prepared.repo,
                argv: words,
                stdin,
                variables: self.variables(prepared),
                secrets: vec![prepared.password.expose().to_owned()],
                timeout: self.timeout()?,
                wanted: self.wanted()?,
                console: call.console.clone(),
                cancel: call.cancel.clone(),
            })
            .await?;
        let program = argv::shown(words.first().map(String::as_str).unwrap_or_default());
        let written = format!("it had written {} and {} bytes", ran.stdout.bytes, ran.stderr.bytes);
        let mut failure = match ran.stopped {
            None => return Ok(result(words, prepared, ran)),
            Some(Stopped::TimedOut) => {
                let seconds = self.timeout()?.as_secs();
                let message =
                    format!("`{program}` ran longer than {seconds} s and was ended with all that it had started");
                Failure::new(Code::CommandTimeout, message)
                    .hint(format!("{written}; ask for more time, up to {TIMEOUT_SECONDS_MAX} s, or for less work"))
            }
            Some(Stopped::Cancelled) => {
                let message =
                    format!("the call was cancelled by the caller; `{program}` was ended with all that it had started");
                Failure::new(Code::Cancelled, message).hint(written)
            }
        };
        failure.detail_mut().output = Some(output(ran));
        Err(failure)
    }

    /// Returns whether the arguments name a sandbox.
    pub(super) fn names_sandbox(&self) -> bool {
        self.database.database_id.is_some() || self.database.database_name.is_some()
    }

    /// Returns which sandbox, or else which profile, the arguments name.
    pub(super) fn selector(&self) -> Selector {
        (&self.database).into()
    }

    /// Returns the repository's path, as it was given.
    pub(super) fn repo_path(&self) -> &str {
        &self.repo_path
    }

    fn words(&self) -> &[String] {
        self.words.get().map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns the time that the command has.
    pub(super) fn timeout(&self) -> Result<Duration, Failure> {
        let Some(seconds) = self.timeout_seconds else { return Ok(Duration::from_secs(TIMEOUT_SECONDS_DEFAULT)) };
        let asked = within("timeoutSeconds", seconds, 1, TIMEOUT_SECONDS_MAX)?;
        Ok(Duration::from_secs(asked))
    }

    fn wanted(&self) -> Result<[Wanted; 2], Failure> {
        let limit = |name: &str, asked: Option<Whole>| match asked {
            None => Ok(OUTPUT_CHARS_MAX),
            Some(asked) => within(name, asked, 0, OUTPUT_CHARS_MAX as u64).map(as_size),
        };
        let lines = |asked: Whole| within("tailLines", asked, 1, TAIL_LINES_MAX as u64).map(as_size);
        let wanted = Wanted {
            strip_ansi: self.strip_ansi.unwrap_or(false),
            chars_max: limit("stdoutLimit", self.stdout_limit)?,
            tail_lines: self.tail_lines.map(lines).transpose()?,
            without_docker_lifecycle: self.suppress_docker_lifecycle.unwrap_or(false),
        };
        Ok([wanted, Wanted { chars_max: limit("stderrLimit", self.stderr_limit)?, ..wanted }])
    }

    /// Returns how the database is reached from where the command runs.
    fn seen_from(&self, info: &ConnectionInfo) -> Result<ConnectionInfo, Failure> {
        let mut seen = info.clone();
        if self.connection_mode == Some(ConnectionMode::LocalContainer) {
            let here =
                info.host == "localhost" || info.host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
            if !here {
                let message =
                    format!("the server is at `{}`, which a container reaches as this machine does", info.host);
                return Err(Failure::new(Code::InvalidArguments, message).hint("use connectionMode `direct`"));
            }
            CONTAINERS_HOST.clone_into(&mut seen.host);
        }
        Ok(seen)
    }

    fn variables(&self, prepared: &Prepared) -> Vec<(String, String)> {
        let Prepared { seen, password, .. } = prepared;
        let url = connection::with_password(seen, password);
        let text = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let mut all = vec![
            text("PGHOST", &seen.host),
            text("PGPORT", &seen.port.to_string()),
            text("PGUSER", &seen.user),
            text("PGPASSWORD", password.expose()),
            text("PGDATABASE", &seen.database),
        ];
        for (name, value) in &seen.parameters {
            match name.as_str() {
                "sslmode" => all.push(text("PGSSLMODE", value)),
                "sslrootcert" => all.push(text("PGSSLROOTCERT", value)),
                "channel_binding" => all.push(text("PGCHANNELBINDING", value)),
                _ => {}
            }
        }
        let recorded = self.recorded_names.get().into_iter().flatten();
        let names = self.database_url_env_names.iter().flatten().chain(recorded).map(String::as_str);
        all.extend(
            ["DATABASE_URL", "PGSANDBOX_DATABASE_URL"].into_iter().chain(names).map(|name| text(name, url.expose())),
        );
        all
    }
}

/// What a command is run with.
pub(super) struct Prepared {
    repo: Repo,
    id: SandboxId,
    info: ConnectionInfo,
    seen: ConnectionInfo,
    password: Secret,
}

/// Returns what a command wrote that was ended.
fn output(ran: Ran) -> ProgramOutput {
    let Ran { stdout, stderr, .. } = ran;
    ProgramOutput {
        stdout: stdout.text,
        stderr: stderr.text,
        stdout_truncated: stdout.truncated,
        stderr_truncated: stderr.truncated,
        stdout_bytes: stdout.bytes,
        stderr_bytes: stderr.bytes,
    }
}

fn result(words: &[String], prepared: &Prepared, ran: Ran) -> CommandResult {
    let Ran { ended, stdout, stderr, elapsed, left_behind, confined, .. } = ran;
    let (exit_code, signal) = match ended {
        Ended::Exited(code) => (Some(code), None),
        Ended::Signalled(signal) => (None, Some(signal)),
    };
    let Captured { text: stdout, truncated: stdout_truncated, bytes: stdout_bytes } = stdout;
    let Captured { text: stderr, truncated: stderr_truncated, bytes: stderr_bytes } = stderr;
    let password = prepared.password.expose();
    CommandResult {
        ok: exit_code == Some(0),
        database_id: prepared.id.to_string(),
        database_name: prepared.info.database.clone(),
        command: words.iter().map(|word| crate::command::without(word, password)).collect(),
        exit_code,
        signal,
        timed_out: false,
        elapsed_ms: u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
        stdout,
        stderr,
        stdout_truncated,
        stderr_truncated,
        stdout_bytes,
        stderr_bytes,
        left_behind,
        confined,
    }
}

impl CommandResult {
    /// Says in a line how it went.
    pub(super) fn summary(&self) -> String {
        let program = argv::shown(self.command.first().map(String::as_str).unwrap_or_default());
        match (self.exit_code, self.signal) {
            (Some(code), _) => format!("`{program}` ended with exit code {code} in {} ms", self.elapsed_ms),
            (None, signal) => format!("`{program}` was ended by signal {}", signal.unwrap_or_default()),
        }
    }

    /// Returns what the caller should know beside.
    pub(super) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.left_behind > 0 {
            warnings.push(format!(
                "what the command left running was ended: {}",
                crate::model::counted(self.left_behind, "process", "processes")
            ));
        }
        if !self.confined {
            warnings.push("the command ran unconfined, as `commands.confinement` allows".to_owned());
        }
        warnings
    }
}

/// Finds fault with further names of the database URL.
pub(super) fn check_url_names(names: &[String]) -> Result<(), Failure> {
    if names.len() > URL_NAMES_MAX {
        let message = format!("{} names for the database URL are over the limit of {URL_NAMES_MAX}", names.len());
        return Err(Failure::new(Code::InvalidArguments, message));
    }
    Ok(names.iter().try_for_each(|name| check_url_name(name))?)
}

fn within(name: &str, asked: Whole, min: u64, max: u64) -> Result<u64, Failure> {
    asked.within(min, max).ok_or_else(|| {
        Failure::new(Code::InvalidArguments, format!("`{name}` of {} is not between {min} and {max}", asked.shown()))
    })
}

fn as_size(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
