//! Makes a sandbox, runs a command with its credentials, and removes the sandbox again.
//!
//! Each of the three is a call of an operation like any other: decided, audited and refused by itself.

use std::io::{IsTerminal, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use clap::ArgMatches;
use serde_json::{Map, Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::render::{self, Format, say};
use super::{Said, request};
use crate::app::App;
use crate::command::project::{self, Project};
use crate::command::{TIMEOUT_SECONDS_MAX, argv};
use crate::model::{Code, Console, Failure, OutputStream, Transport};
use crate::operation::Envelope;
use crate::operation::envelope::EnvelopeError;
use crate::operation::schema::JsonObject;
use crate::service::Request;

/// The form of the session's result.
const SCHEMA_VERSION: u64 = 1;
/// The command's time was over.
const TIMED_OUT: u8 = 124;
/// This program failed or refused, and not the command.
pub(super) const FAILED: u8 = 125;
/// What is added to the number of a signal that ended the command.
const SIGNALLED: u8 = 128;

/// What becomes of the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cleanup {
    Always,
    OnSuccess,
    Keep,
}

impl Cleanup {
    const WORDS: [(Self, &'static str); 3] =
        [(Self::Always, "always"), (Self::OnSuccess, "on-success"), (Self::Keep, "keep")];

    fn of(word: &str) -> Self {
        Self::WORDS.into_iter().find(|(_, known)| *known == word).map_or(Self::Always, |(cleanup, _)| cleanup)
    }

    fn as_str(self) -> &'static str {
        Self::WORDS.into_iter().find(|(known, _)| *known == self).map_or("always", |(_, word)| word)
    }
}

/// The terminal that the command is run for.
struct Terminal {
    /// Standard output is left to the session's result.
    result_alone: bool,
}

impl Console for Terminal {
    fn wrote(&self, stream: OutputStream, bytes: &[u8]) {
        // A reader that went away is no reason to end the command.
        let write = |mut to: Box<dyn Write>| to.write_all(bytes).and_then(|()| to.flush()).ok();
        match stream {
            OutputStream::Out if !self.result_alone => write(Box::new(std::io::stdout().lock())),
            OutputStream::Out | OutputStream::Error => write(Box::new(std::io::stderr().lock())),
        };
    }

    fn input(&self) -> Option<OwnedFd> {
        let stdin = std::io::stdin();
        // What is not in the terminal's foreground may not read from it.
        if stdin.is_terminal() { None } else { stdin.as_fd().try_clone_to_owned().ok() }
    }
}

/// What came of it.
#[derive(Default)]
struct Session {
    created: Value,
    ran: Value,
    errors: Vec<Value>,
    warnings: Vec<String>,
    timed_out: bool,
    code: u8,
    state: &'static str,
}

/// Runs the command line's `with-database`.
pub(super) async fn run(matches: &ArgMatches, app: &App, format: Format) -> ExitCode {
    let stop = Stop::listen();
    let cleanup = Cleanup::of(matches.get_one::<String>("cleanup").map(String::as_str).unwrap_or_default());
    let mut session = Session { code: FAILED, state: "none", ..Session::default() };
    let words: Vec<String> = matches.get_many("command").into_iter().flatten().cloned().collect();
    if let Err(error) = argv::check(&words) {
        // No sandbox is made for what would be refused with it.
        let failure = Failure::from(error);
        if format == Format::Json {
            session.errors.extend(serde_json::to_value(EnvelopeError::from(&failure)).ok());
            render::json(&session.result(cleanup).to_string());
        } else {
            render::failures(std::slice::from_ref(&failure), format);
        }
        return ExitCode::from(FAILED);
    }
    let created = call(app, "create_database", create_input(matches), stop.cancel.clone(), None).await;
    session.take(&created, format);
    if let Some(result) = created.result {
        session.created = result;
        if format == Format::Text {
            say(&created.summary);
        }
        session.warn(matches, &words, format);
        let console: Arc<dyn Console> = Arc::new(Terminal { result_alone: format == Format::Json });
        let input = run_input(matches, session.text("databaseId"));
        let ran = call(app, "run_repo_command", input, stop.cancel.clone(), Some(console)).await;
        session.take(&ran, format);
        session.code = exit_code(&ran, &stop);
        session.ran = ran.result.unwrap_or_default();
        session.clean_up(app, cleanup, format).await;
    } else if stop.signal().is_some() {
        session.code = exit_code(&created, &stop);
    }
    if format == Format::Json {
        render::json(&session.result(cleanup).to_string());
    }
    ExitCode::from(session.code)
}

async fn call(
    app: &App,
    operation: &str,
    input: JsonObject,
    cancel: CancellationToken,
    console: Option<Arc<dyn Console>>,
) -> Envelope {
    let request = request(app.principal(Transport::Cli), operation, input, Arc::new(Said::new()));
    app.service.call(Request { cancel, console, ..request }).await
}

impl Session {
    /// Keeps what went wrong, and says it to people.
    fn take(&mut self, envelope: &Envelope, format: Format) {
        // What the command wrote was shown as it came.
        let envelope = &mut envelope.clone();
        envelope.errors.iter_mut().for_each(|error| error.output = None);
        self.timed_out |= has(envelope, Code::CommandTimeout);
        self.errors.extend(envelope.errors.iter().filter_map(|error| serde_json::to_value(error).ok()));
        if format == Format::Text {
            // A result is shown by what the command itself wrote.
            render::envelope(&Envelope { result: None, ..envelope.clone() }, format);
        }
    }

    /// Says what the person will want to know before the command runs.
    fn warn(&mut self, matches: &ArgMatches, words: &[String], format: Format) {
        let asked = matches.get_one::<String>("repo-path").map(String::as_str).unwrap_or(".");
        let recorded = Project::at(&super::arguments::absolute(asked)).postgres_version;
        let recorded = recorded.as_deref().and_then(project::major).map(|major| major.to_string());
        let is_chosen = matches.contains_id("profile") || matches.contains_id("postgres-version");
        let has = self.text("resolvedPostgresVersion");
        if let Some(recorded) = recorded.filter(|recorded| *recorded != has && !is_chosen) {
            self.warnings.push(format!(
                "the repository records Postgres {recorded}, and the sandbox is of {has}; `--postgres-version {recorded}` asks for it"
            ));
        }
        if std::io::stdin().is_terminal() && reads_a_person(words) {
            self.warnings.push(format!(
                "a command has no terminal here, and `{}` will read nothing; for a session by hand make a sandbox with \
                 `pgsandbox create-database`, and connect with what `pgsandbox get-connection-string --include-credentials` prints",
                argv::shown(words.first().map(String::as_str).unwrap_or_default())
            ));
        }
        if format == Format::Text {
            self.warnings.iter().for_each(|warning| say(&format!("note: {warning}")));
        }
    }

    fn text(&self, name: &str) -> String {
        self.created.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
    }

    async fn clean_up(&mut self, app: &App, cleanup: Cleanup, format: Format) {
        let keep = match cleanup {
            Cleanup::Always => false,
            Cleanup::OnSuccess => self.code != 0,
            Cleanup::Keep => true,
        };
        self.state = "kept";
        if keep {
            if format == Format::Text {
                say(&format!("`{}` is kept until {}", self.text("databaseName"), self.text("expiresAt")));
            }
            return;
        }
        let input = Map::from_iter([
            ("databaseId".to_owned(), json!(self.text("databaseId"))),
            ("wait".to_owned(), json!(true)),
        ]);
        // Whoever wanted the command to end wants this to be done all the same.
        let deleted = call(app, "delete_database", input, CancellationToken::new(), None).await;
        self.take(&deleted, format);
        let state = deleted.result.as_ref().and_then(|result| result.get("state")).and_then(Value::as_str);
        self.state = match state {
            Some("deleted") => "deleted",
            Some(_) => "deleting",
            None => "failed",
        };
        if self.state == "failed" && self.code == 0 {
            self.code = FAILED;
        } else if format == Format::Text && state.is_some() {
            say(&deleted.summary);
        }
    }

    fn result(&self, cleanup: Cleanup) -> Value {
        let ran = |name: &str| self.ran.get(name).cloned().unwrap_or_default();
        let created = |name: &str| self.created.get(name).cloned().unwrap_or_default();
        json!({
            "schemaVersion": SCHEMA_VERSION,
            "ok": self.code == 0,
            "databaseId": created("databaseId"),
            "databaseName": created("databaseName"),
            "profile": created("resolvedProfile"),
            "postgresVersion": created("resolvedPostgresVersion"),
            "expiresAt": created("expiresAt"),
            "command": ran("command"),
            "exitCode": ran("exitCode"),
            "signal": ran("signal"),
            "timedOut": self.timed_out,
            "elapsedMs": ran("elapsedMs"),
            "confined": ran("confined"),
            "leftBehind": ran("leftBehind"),
            "cleanup": {"mode": cleanup.as_str(), "state": self.state},
            "programExitCode": self.code,
            "warnings": self.warnings,
            "errors": self.errors,
        })
    }
}

/// Returns whether a command is one that people talk to, and is given nothing else to do.
fn reads_a_person(words: &[String]) -> bool {
    let Some((program, rest)) = words.split_first() else { return false };
    let name = program.rsplit('/').next().unwrap_or_default();
    let tasks = ["--command", "--file", "--list", "--version", "--help"];
    let has_task = |word: &String| {
        // Short options may be joined: `-Xc`.
        let is_joined = word.starts_with('-') && !word.starts_with("--") && word.contains(['c', 'f', 'l', 'V', '?']);
        is_joined || tasks.contains(&word.split('=').next().unwrap_or_default())
    };
    matches!(name, "psql" | "pgcli") && !rest.iter().any(has_task)
}

fn has(envelope: &Envelope, code: Code) -> bool {
    envelope.errors.iter().any(|error| error.code == code.as_str())
}

/// Returns the exit code that says how the command ended.
fn exit_code(ran: &Envelope, stop: &Stop) -> u8 {
    let number = |name: &str| ran.result.as_ref().and_then(|result| result.get(name)).and_then(Value::as_u64);
    let small = |number: u64| u8::try_from(number).ok();
    match (number("exitCode"), number("signal"), stop.signal()) {
        (Some(code), _, _) => small(code).unwrap_or(FAILED),
        (None, Some(signal), _) => small(signal).and_then(|signal| SIGNALLED.checked_add(signal)).unwrap_or(FAILED),
        (None, None, Some(signal)) if has(ran, Code::Cancelled) => SIGNALLED.saturating_add(signal),
        (None, None, _) if has(ran, Code::CommandTimeout) => TIMED_OUT,
        (None, None, _) => FAILED,
    }
}

/// Whether this program was told to end, and how.
struct Stop {
    cancel: CancellationToken,
    by: Arc<AtomicU8>,
}

impl Stop {
    fn listen() -> Self {
        let stop = Self { cancel: CancellationToken::new(), by: Arc::default() };
        for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
            let Ok(mut signals) = signal(kind) else { continue };
            let (cancel, by) = (stop.cancel.clone(), Arc::clone(&stop.by));
            tokio::spawn(async move {
                if signals.recv().await.is_some() {
                    by.store(u8::try_from(kind.as_raw_value()).unwrap_or_default(), Ordering::Relaxed);
                    cancel.cancel();
                }
            });
        }
        stop
    }

    fn signal(&self) -> Option<u8> {
        Some(self.by.load(Ordering::Relaxed)).filter(|signal| *signal != 0)
    }
}

/// Puts arguments into an input, each under its name there.
fn texts(matches: &ArgMatches, names: &[(&str, &str)]) -> JsonObject {
    let text =
        |(argument, name): &(&str, &str)| Some(((*name).to_owned(), json!(matches.get_one::<String>(argument)?)));
    names.iter().filter_map(text).collect()
}

fn numbers(matches: &ArgMatches, input: &mut JsonObject, names: &[(&str, &str)]) {
    for (argument, name) in names {
        input.extend(matches.get_one::<i64>(argument).map(|number| ((*name).to_owned(), json!(number))));
    }
}

fn lists(matches: &ArgMatches, input: &mut JsonObject, names: &[(&str, &str)]) {
    for (argument, name) in names {
        let values: Vec<&String> = matches.get_many(argument).into_iter().flatten().collect();
        if !values.is_empty() {
            input.insert((*name).to_owned(), json!(values));
        }
    }
}

fn create_input(matches: &ArgMatches) -> JsonObject {
    let names = [
        ("profile", "profile"),
        ("postgres-version", "postgresVersion"),
        ("name-hint", "nameHint"),
        ("owner", "owner"),
    ];
    let mut input = texts(matches, &names);
    numbers(matches, &mut input, &[("ttl-minutes", "ttlMinutes")]);
    lists(matches, &mut input, &[("extensions", "extensions")]);
    let labels = matches.get_many::<String>("labels").into_iter().flatten();
    let labels: JsonObject = labels
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(key, value)| (key.to_owned(), json!(value)))
        .collect();
    if !labels.is_empty() {
        input.insert("labels".to_owned(), Value::Object(labels));
    }
    input
}

fn run_input(matches: &ArgMatches, id: String) -> JsonObject {
    let mut input = texts(matches, &[("connection-mode", "connectionMode")]);
    let asked = matches.get_one::<String>("repo-path").map(String::as_str).unwrap_or(".");
    input.insert("repoPath".to_owned(), json!(super::arguments::absolute(asked)));
    input.insert("databaseId".to_owned(), json!(id));
    input.insert("timeoutSeconds".to_owned(), json!(TIMEOUT_SECONDS_MAX));
    numbers(matches, &mut input, &[("timeout-seconds", "timeoutSeconds")]);
    lists(matches, &mut input, &[("database-url-env-names", "databaseUrlEnvNames"), ("command", "command")]);
    input
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_talk_to_is_told_from_what_has_something_to_do() {
        let of = |line: &str| reads_a_person(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        for line in ["psql", "/usr/bin/psql -X", "pgcli"] {
            assert!(of(line), "{line}");
        }
        for line in ["psql -c x", "psql -Xc x", "psql -fx", "psql --file=x", "psql -V", "npm test", "./psql.sh"] {
            assert!(!of(line), "{line}");
        }
    }
}
