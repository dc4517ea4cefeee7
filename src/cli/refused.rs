//! Says why nothing was done: arguments that cannot be read, or a program that does not start.
//!
//! What is said names arguments and commands and never shows a value, which may be SQL or a secret.

use std::error::Error as _;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::arguments::{self, Wanted};
use super::render::{self, Format};
use super::with_database;
use crate::app::Refusal;
use crate::model::{Code, Failure};

/// The status of a program that did not get to do anything.
const NOT_DONE: u8 = 2;
/// Characters of a mistyped command or argument that are shown.
const NAME_CHARS_MAX: usize = 40;

/// Says why the program does not start. `command` is what it would have done.
pub fn refused(refusal: &Refusal, format: Format, command: Option<&str>) -> ExitCode {
    match format {
        Format::Json => render::failures(&refusal.failures, format),
        // Standard output belongs to the protocol.
        Format::Text => render::say(&format!("error: {}", refusal.text)),
    }
    not_done(command)
}

/// Says what is wrong with a command line, or prints the help that was asked for.
pub fn misread(error: &clap::Error, arguments: &[OsString]) -> ExitCode {
    if !error.use_stderr() {
        let printed = error.print().and_then(|()| io::stdout().flush());
        return render::written(printed);
    }
    let grammar = arguments::command();
    let command = command_in(&grammar, arguments);
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        drop(error.print());
        return not_done(command.map(Command::get_name));
    }
    render::failures(&[failure(error, command)], asked_in(arguments));
    not_done(command.map(Command::get_name))
}

/// The status of a program that did not get to do anything. `with-database` ends as the command that it runs, so its own
/// failures have a status that hardly any command has.
fn not_done(command: Option<&str>) -> ExitCode {
    ExitCode::from(if command == Some("with-database") { with_database::FAILED } else { NOT_DONE })
}

/// Returns the command that a command line names, though it cannot be read.
fn command_in<'a>(grammar: &'a Command, arguments: &[OsString]) -> Option<&'a Command> {
    let mut words = arguments.iter().skip(1).map(|word| word.to_string_lossy());
    while let Some(word) = words.next() {
        if word == "--format" {
            words.next();
        } else if !word.starts_with('-') {
            return grammar.find_subcommand(&*word);
        }
    }
    None
}

/// Returns the format that a command line asks for, though it cannot be read.
fn asked_in(arguments: &[OsString]) -> Format {
    let mut format = None;
    let mut words = arguments.iter().map(|word| word.to_string_lossy()).take_while(|word| word != "--");
    while let Some(word) = words.next() {
        if word == "--format" {
            format = words.next().map(|value| value.into_owned());
        } else if let Some(value) = word.strip_prefix("--format=") {
            format = Some(value.to_owned());
        }
    }
    Format::asked(format.as_deref())
}

fn failure(error: &clap::Error, command: Option<&Command>) -> Failure {
    let said = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.as_str()],
        Some(ContextValue::Strings(texts)) => texts.iter().map(String::as_str).collect(),
        Some(_) | None => Vec::new(),
    };
    let argument = said(ContextKind::InvalidArg).first().and_then(|text| named(text));
    let text = match (error.kind(), &argument) {
        (ErrorKind::UnknownArgument, Some(name)) => format!("there is no argument `{name}` here"),
        (ErrorKind::UnknownArgument, None) => "a value stands where the name of an argument is wanted".to_owned(),
        (ErrorKind::InvalidSubcommand, _) => {
            match said(ContextKind::InvalidSubcommand).first().and_then(|w| named(w)) {
                Some(name) => format!("there is no command `{name}`"),
                None => "the first word is no command".to_owned(),
            }
        }
        (ErrorKind::MissingSubcommand, _) => "a command is missing".to_owned(),
        (ErrorKind::MissingRequiredArgument, _) => {
            format!("arguments are missing: {}", said(ContextKind::InvalidArg).join(", "))
        }
        (ErrorKind::ArgumentConflict, Some(name)) => format!("`{name}` is given twice, or beside what excludes it"),
        (_, Some(name)) => {
            let wanted = error.source().and_then(|source| source.downcast_ref::<Wanted>());
            let wanted = wanted.map(|wanted| format!("; it takes {wanted}")).unwrap_or_default();
            format!("`{name}` cannot take the value that is given{wanted}")
        }
        (kind, None) => format!("the command line cannot be read: {kind}"),
    };
    let nearest = [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand].into_iter().flat_map(said).next();
    // What stands where it is no argument of ours is meant to be the command that is to be run.
    let is_word = said(ContextKind::InvalidArg).first().is_some_and(|word| !word.starts_with('-'));
    let runs = command.filter(|command| command.get_arguments().any(clap::Arg::is_last_set));
    let runs = runs.filter(|_| error.kind() == ErrorKind::UnknownArgument && is_word);
    let hint = match (runs, nearest) {
        (Some(runs), _) => {
            format!("put `--` before the command that is to be run: `{} … -- COMMAND`", runs.get_name())
        }
        (None, Some(nearest)) => format!("`{nearest}` comes nearest; `--help` lists what there is"),
        (None, None) => "`--help` lists what there is".to_owned(),
    };
    let valid = said(ContextKind::ValidValue).into_iter().chain(said(ContextKind::ValidSubcommand));
    Failure::new(Code::InvalidArguments, text).hint(hint).allowed(valid)
}

/// Returns what may be shown of a word: the name of an argument without its value, or what looks like a command.
fn named(word: &str) -> Option<String> {
    let name = word.split(['=', '[', ' ']).next().unwrap_or_default();
    let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'));
    let is_whole = word.len() == name.len() || word.starts_with('-');
    (is_name && is_whole && !name.is_empty() && name.len() <= NAME_CHARS_MAX).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(line: &[&str]) -> Failure {
        let grammar = arguments::command();
        let error = grammar.clone().try_get_matches_from(line).unwrap_err();
        let words: Vec<OsString> = line.iter().map(OsString::from).collect();
        failure(&error, command_in(&grammar, &words))
    }

    fn check(line: &[&str], expected: &str) {
        let line = [&["pgsandbox"], line].concat();
        let failure = failed(&line);
        assert!(failure.message.contains(expected), "{line:?}: {failure:?}");
        assert!(!format!("{failure:?}").contains("hunter2"), "{line:?}: {failure:?}");
    }

    #[test]
    fn what_is_said_of_a_command_line_names_arguments_and_shows_no_value() {
        check(&["run-sql", "select 'hunter2'"], "a value stands where");
        check(&["run-sql", "--sgl=select 'hunter2'"], "no argument `--sgl`");
        check(&["run-sql", "--sgl", "select 'hunter2'"], "no argument `--sgl`");
        check(&["select 'hunter2'"], "the first word is no command");
        check(&["run-sgl"], "no command `run-sgl`");
        check(&[&"x".repeat(NAME_CHARS_MAX)], &"x".repeat(NAME_CHARS_MAX));
        check(&[&"x".repeat(NAME_CHARS_MAX + 1)], "the first word is no command");
        check(&["run-sql", "--readonly=hunter2"], "`--readonly` cannot take the value");
        for out in ["hunter2", "0", "100001", "-1"] {
            check(
                &["audit", "tail", "-n", out],
                "`--lines` cannot take the value that is given; it takes a whole number from 1 to 100000",
            );
        }
        check(&["--format", "hunter2", "doctor"], "`--format` cannot take the value");
        check(&["tool"], "arguments are missing: <name>");
        check(&["doctor", "--format", "json", "--format", "hunter2"], "`--format`");
    }

    #[test]
    fn a_command_that_stands_without_its_dashes_is_told_where_they_go() {
        for line in [
            &["pgsandbox", "with-database", "npm", "test"][..],
            &["pgsandbox", "--format", "json", "with-database", "./hunter2"],
            &["pgsandbox", "run-repo-command", "--repo-path", "/r", "npm", "test"],
        ] {
            let failure = failed(line);
            assert!(failure.hint.as_deref().unwrap().contains("put `--` before"), "{failure:?}");
            assert!(!format!("{failure:?}").contains("hunter2"), "{failure:?}");
        }
        for line in [&["pgsandbox", "run-sql", "x"][..], &["pgsandbox", "with-database", "--owmer", "x", "--", "true"]]
        {
            assert!(!failed(line).hint.unwrap().contains("put `--`"), "{line:?}");
        }
    }

    #[test]
    fn what_runs_a_command_ends_with_a_status_of_its_own_where_it_cannot_begin() {
        let status = |line: &[&str]| {
            let words: Vec<OsString> = line.iter().map(OsString::from).collect();
            let grammar = arguments::command();
            format!("{:?}", not_done(command_in(&grammar, &words).map(Command::get_name)))
        };
        let expected = |code: u8| format!("{:?}", ExitCode::from(code));
        assert_eq!(status(&["pgsandbox", "with-database", "--nonsense"]), expected(125));
        assert_eq!(status(&["pgsandbox", "--format", "with-database", "doctor", "--nonsense"]), expected(2));
        assert_eq!(status(&["pgsandbox", "nonsense", "with-database"]), expected(2));
        assert_eq!(status(&["pgsandbox"]), expected(2));
    }

    #[test]
    fn the_format_is_found_in_what_cannot_be_read() {
        let format = |line: &[&str]| asked_in(&line.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(format(&["run-sgl", "--format", "json"]), Format::Json);
        assert_eq!(format(&["--format=json", "run-sgl"]), Format::Json);
        assert_eq!(format(&["run-sgl", "--", "--format=json"]), Format::Text);
        assert_eq!(format(&["run-sgl", "--format"]), Format::Text);
    }
}
