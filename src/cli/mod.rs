//! The command line: operations' commands from the list, and what only an operator does.
//!
//! Operations go through the service like any tool call; what acts on the machine itself goes through the
//! program's own authority and is audited as well. Nothing here acts on its own.

mod arguments;
mod audit;
mod everyones;
mod exported;
mod local;
mod main_job;
mod nearest;
mod policy;
mod policy_settings;
mod progress;
mod quickstart;
pub mod reference;
mod refused;
mod render;
mod setup;
mod smoke_test;
mod with_database;

use std::io::Read;
use std::process::ExitCode;
use std::sync::Arc;

use clap::ArgMatches;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use self::progress::Said;
pub use self::refused::{misread, refused};
pub use self::render::Format;
use self::render::{line, say};
use crate::app::App;
use crate::model::{Code, Failure, NoTasks, Principal, Progress, Transport, counted, place_in_text};
use crate::operation::schema::JsonObject;
use crate::operation::{Envelope, Toolset, find};
use crate::service::Request;

/// The longest input read from a file or standard input, in bytes.
const INPUT_BYTES_MAX: u64 = 16 << 20;

/// The status of a call that went on to its end although statements failed: as psql ends where one stops a script.
const STATEMENTS_FAILED: u8 = 3;

/// What the command line asks for.
pub enum Command {
    /// Serve MCP over standard input and output.
    Mcp {
        /// The groups of tools to show.
        toolsets: Vec<Toolset>,
        /// Where row data travels: `structured` or `text`.
        rows_in: String,
    },
    /// What needs nothing of the program's own: neither its configuration nor its state directory.
    Apart(Box<ArgMatches>),
    /// Anything else.
    Other(Box<ArgMatches>),
}

/// Reads the command line. `interactive` is whether standard input is a terminal.
///
/// # Errors
/// Returns clap's error, which knows how to print itself.
pub fn parse(arguments: &[std::ffi::OsString], interactive: bool) -> Result<Command, clap::Error> {
    let mut command = arguments::command();
    let matches = command.try_get_matches_from_mut(arguments)?;
    match matches.subcommand() {
        Some(("mcp", of)) => {
            let rows_in = of.get_one::<String>("rows-in").cloned().unwrap_or_default();
            Ok(Command::Mcp { toolsets: toolsets(of), rows_in })
        }
        None if !interactive => Ok(Command::Mcp { toolsets: vec![Toolset::Core], rows_in: "structured".to_owned() }),
        // A person who calls the program alone wants to know what it can do.
        None => match command.try_get_matches_from_mut([env!("CARGO_PKG_NAME"), "--help"]) {
            Ok(matches) => Ok(Command::Other(Box::new(matches))),
            Err(help) => Err(help),
        },
        Some(("setup" | "uninstall" | "smoke-test" | "completions", _)) => Ok(Command::Apart(Box::new(matches))),
        Some(("policy", of)) if policy::is_apart(of) => Ok(Command::Apart(Box::new(matches))),
        Some(_) => Ok(Command::Other(Box::new(matches))),
    }
}

/// Runs a command that needs nothing of the program's own.
pub fn run_apart(matches: &ArgMatches) -> ExitCode {
    let plain = format_asked(matches);
    let code = match matches.subcommand() {
        Some(("setup", of)) => setup::setup(of, plain),
        Some(("uninstall", of)) => setup::uninstall(of, plain),
        Some(("smoke-test", _)) => smoke_test::run(plain),
        Some(("completions", of)) => completions(of),
        Some(("policy", of)) => policy::run_apart(of, plain),
        Some(_) | None => ExitCode::FAILURE,
    };
    if render::is_written() { code } else { ExitCode::FAILURE }
}

/// Prints what makes a shell complete this program's commands and options.
fn completions(of: &ArgMatches) -> ExitCode {
    let shell = match of.get_one::<String>("shell").map(String::as_str) {
        Some("bash") => clap_complete::Shell::Bash,
        Some("zsh") => clap_complete::Shell::Zsh,
        _ => clap_complete::Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut arguments::completed(), env!("CARGO_PKG_NAME"), &mut script);
    render::json(String::from_utf8_lossy(&script).trim_end());
    ExitCode::SUCCESS
}

/// Says to a person what waits for a client.
pub fn tell_of_waiting() {
    say(
        "note: this speaks MCP over standard input and output and waits for a client; `pgsandbox setup` has a client start it, \
         `pgsandbox --help` shows what people call, and Ctrl-C ends it",
    );
}

/// Returns the toolsets that are asked for, `all` being every one.
fn toolsets(of: &ArgMatches) -> Vec<Toolset> {
    let words: Vec<&String> = of.get_many("toolsets").into_iter().flatten().collect();
    let asked = |toolset: &Toolset| words.iter().any(|&word| word == toolset.as_str() || word == "all");
    Toolset::ALL.into_iter().filter(asked).collect()
}

/// Returns the format in which a command's results are printed, and what goes wrong before it runs.
pub fn format_asked(matches: &ArgMatches) -> Format {
    Format::of(matches.subcommand_name(), matches.get_one::<String>("format").map(String::as_str))
}

/// Runs a command other than `mcp`. What nobody could be told is a failure.
pub async fn run(matches: &ArgMatches, app: &App) -> ExitCode {
    let code = run_command(matches, app).await;
    if render::is_written() { code } else { ExitCode::FAILURE }
}

async fn run_command(matches: &ArgMatches, app: &App) -> ExitCode {
    let asked = matches.get_one::<String>("format").map(String::as_str);
    let (format, plain) = (Format::choose(asked), Format::asked(asked));
    let Some((name, of)) = matches.subcommand() else { return ExitCode::FAILURE };
    match name {
        "quickstart" if plain == Format::Json => {
            let text = "`quickstart` is for people and prints text only";
            complain(&Failure::new(Code::InvalidArguments, text).hint("leave `--format json` away"), plain);
            ExitCode::from(2)
        }
        "quickstart" => quickstart::run(app, of.get_flag("yes")).await,
        "local" => local::run(of, app, plain).await,
        "audit" => audit::run(of, app, plain),
        "policy" => policy::run(of, app, plain).await,
        "keys" => keys(app, plain).await,
        "exported" => exported::run(of, app, plain).await,
        "tool" => {
            let name = of.get_one::<String>("name").map(String::as_str).unwrap_or_default();
            operation(name, whole_input(of), app, format).await
        }
        "with-database" => with_database::run(of, app, plain).await,
        "cleanup" if of.get_flag(arguments::EVERYONES) => everyones::run(app, format).await,
        "cleanup" => from_arguments("cleanup_expired", of, app, format).await,
        command => from_arguments(&command.replace('-', "_"), of, app, format).await,
    }
}

async fn from_arguments(name: &str, matches: &ArgMatches, app: &App, format: Format) -> ExitCode {
    let input = whole_input(matches).and_then(|whole| match find(name) {
        Ok(entry) => with_sql_read(matches, arguments::input_of(entry, matches, whole)?).map(Some),
        Err(failure) => Err(failure.to_string()),
    });
    operation(name, input, app, format).await
}

async fn operation(name: &str, input: Result<Option<JsonObject>, String>, app: &App, format: Format) -> ExitCode {
    let input = match input {
        Ok(input) => input.unwrap_or_default(),
        Err(fault) => {
            complain(&Failure::new(Code::InvalidArguments, fault), format);
            return ExitCode::from(2);
        }
    };
    let envelope = app.service.call(request(app.principal(Transport::Cli), name, input, Arc::new(Said::new()))).await;
    render::envelope(&envelope, format);
    match envelope.ok {
        true if statements_failed(&envelope) => ExitCode::from(STATEMENTS_FAILED),
        true if !found_wanting(&envelope) => ExitCode::SUCCESS,
        true | false => ExitCode::FAILURE,
    }
}

/// Returns whether a call that went on after statements that failed, as it was told to, had any.
fn statements_failed(envelope: &Envelope) -> bool {
    let failures = envelope.result.as_ref().and_then(|result| result.get("statementsFailed"));
    failures.and_then(Value::as_u64).is_some_and(|failed| failed > 0)
}

/// Returns whether a call that was carried out, `doctor` for instance, says of what it looked at that it is not in order.
fn found_wanting(envelope: &Envelope) -> bool {
    envelope.result.as_ref().and_then(|result| result.get("ok")).and_then(Value::as_bool) == Some(false)
}

/// Builds a request of the command line. Ctrl-C cancels it, and so does being told to end.
fn request(principal: Principal, operation: &str, input: JsonObject, progress: Arc<dyn Progress>) -> Request {
    let cancel = CancellationToken::new();
    let on_signal = cancel.clone();
    tokio::spawn(async move {
        let Ok(mut terminate) = signal(SignalKind::terminate()) else { return };
        tokio::select! {
            Ok(()) = tokio::signal::ctrl_c() => {}
            Some(()) = terminate.recv() => {}
            else => return,
        }
        on_signal.cancel();
    });
    Request {
        method: "cli",
        principal,
        operation: operation.to_owned(),
        input,
        progress,
        cancel,
        tasks: Arc::new(NoTasks),
        traceparent: None,
        console: None,
    }
}

/// Adds the SQL that `--file` names to an operation's input.
fn with_sql_read(matches: &ArgMatches, mut input: JsonObject) -> Result<JsonObject, String> {
    // Only operations that take SQL have the argument.
    let given = matches.try_get_one::<String>(arguments::SQL_FILE).ok().flatten();
    let Some(given) = given else { return Ok(input) };
    if input.contains_key("sql") {
        return Err(format!("`--file` stands beside `--{}`, which has `sql` as well", arguments::INPUT));
    }
    if given == "-" && matches.get_one::<String>(arguments::INPUT).is_some_and(|input| input == "-") {
        return Err(format!("`--file` and `--{}` cannot both be read from standard input", arguments::INPUT));
    }
    let sql = if given == "-" { read_all(std::io::stdin()) } else { read_file(given) };
    input.insert("sql".to_owned(), Value::String(sql?));
    Ok(input)
}

/// Reads `--input`: JSON, `@file`, or `-` for standard input.
fn whole_input(matches: &ArgMatches) -> Result<Option<JsonObject>, String> {
    let Some(given) = matches.get_one::<String>(arguments::INPUT) else { return Ok(None) };
    let text = match given.strip_prefix('@') {
        Some(path) => read_file(path)?,
        None if given == "-" => read_all(std::io::stdin())?,
        None => given.clone(),
    };
    match serde_json::from_str(&text) {
        Ok(Value::Object(object)) => Ok(Some(object)),
        Ok(_) => Err("the input is not a JSON object".to_owned()),
        Err(error) => Err(format!("the input is not JSON: look at {}", place_in_text(error.line(), error.column()))),
    }
}

fn read_file(path: &str) -> Result<String, String> {
    read_all(std::fs::File::open(path).map_err(|error| format!("cannot read `{path}`: {error}"))?)
}

fn read_all(source: impl Read) -> Result<String, String> {
    let mut text = String::new();
    let read = source
        .take(INPUT_BYTES_MAX + 1)
        .read_to_string(&mut text)
        .map_err(|error| format!("cannot read the input: {error}"))?;
    if read as u64 > INPUT_BYTES_MAX {
        return Err(format!("the input is longer than {INPUT_BYTES_MAX} bytes"));
    }
    Ok(text)
}

async fn keys(app: &App, format: Format) -> ExitCode {
    match app.rotate_keys().await {
        Ok(resealed) if format == Format::Json => {
            render::json(&json!({"ok": true, "resealed": resealed}).to_string());
            ExitCode::SUCCESS
        }
        Ok(resealed) => {
            line(&format!(
                "a new key is current; it seals the passwords of {}",
                counted(resealed, "sandbox", "sandboxes")
            ));
            ExitCode::SUCCESS
        }
        Err(failure) => complain(&failure, format),
    }
}

/// Prints a failure.
fn complain(failure: &Failure, format: Format) -> ExitCode {
    render::failures(std::slice::from_ref(failure), format);
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_toolsets(line: &[&str], expected: Option<&[Toolset]>) {
        let arguments: Vec<std::ffi::OsString> = ["pgsandbox"].iter().chain(line).map(Into::into).collect();
        let shown = parse(&arguments, false).ok().map(|command| match command {
            Command::Mcp { toolsets, .. } => toolsets,
            Command::Apart(_) | Command::Other(_) => panic!("{line:?} is another command"),
        });
        assert_eq!(shown.as_deref(), expected, "{line:?}");
    }

    #[test]
    fn clients_are_shown_the_groups_of_tools_they_ask_for() {
        check_toolsets(&[], Some(&[Toolset::Core]));
        check_toolsets(&["mcp"], Some(&[Toolset::Core]));
        check_toolsets(&["mcp", "--toolsets", "schema,core"], Some(&[Toolset::Core, Toolset::Schema]));
        check_toolsets(
            &["mcp", "--toolsets", "copies", "--toolsets", "schema"],
            Some(&[Toolset::Copies, Toolset::Schema]),
        );
        check_toolsets(&["mcp", "--toolsets", "all"], Some(&Toolset::ALL));
        check_toolsets(&["mcp", "--toolsets", "nope"], None);
    }
}
