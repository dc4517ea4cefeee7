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
use super::nearest::nearest;
use super::render::{self, Format};
use super::with_database;
use crate::app::Refusal;
use crate::model::{Code, Failure};

/// The status of a program that did not get to do anything.
pub(super) const NOT_DONE: u8 = 2;
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
    render::failures(&[failure(error, command, &grammar)], format_in(arguments, command));
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

/// Returns the format in which a command line's faults are told: as its command's other errors are.
fn format_in(arguments: &[OsString], command: Option<&Command>) -> Format {
    let asked = asked_in(arguments);
    let is_named = arguments.iter().skip(1).any(|word| !word.to_string_lossy().starts_with('-'));
    match command.map(Command::get_name) {
        // Standard output belongs to the protocol, which is also what is spoken where no command is named.
        Some("mcp") => Format::asked(None),
        None if !is_named => Format::asked(asked.as_deref()),
        command => Format::of(command, asked.as_deref()),
    }
}

/// Returns the format that a command line names, though it cannot be read.
fn asked_in(arguments: &[OsString]) -> Option<String> {
    let mut format = None;
    let mut words = arguments.iter().map(|word| word.to_string_lossy()).take_while(|word| word != "--");
    while let Some(word) = words.next() {
        if word == "--format" {
            format = words.next().map(|value| value.into_owned());
        } else if let Some(value) = word.strip_prefix("--format=") {
            format = Some(value.to_owned());
        }
    }
    format
}

fn failure(error: &clap::Error, command: Option<&Command>, grammar: &Command) -> Failure {
    let said = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.as_str()],
        Some(ContextValue::Strings(texts)) => texts.iter().map(String::as_str).collect(),
        Some(_) | None => Vec::new(),
    };
    let argument = said(ContextKind::InvalidArg).first().and_then(|text| named(text));
    // What stands where it is no argument of ours may be anything.
    let is_word = said(ContextKind::InvalidArg).first().is_some_and(|word| !word.starts_with('-'));
    let text = match (error.kind(), &argument) {
        (ErrorKind::UnknownArgument, Some(name)) if !is_word => format!("there is no argument `{name}` here"),
        (ErrorKind::UnknownArgument, _) => "a value stands where the name of an argument is wanted".to_owned(),
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
    let hint = hint(error, command, grammar, is_word);
    let valid = said(ContextKind::ValidValue).into_iter().chain(said(ContextKind::ValidSubcommand));
    Failure::new(Code::InvalidArguments, text).hint(hint).allowed(valid)
}

/// Says what to do about a command line. `is_word` is whether what is wrong with it is a word that is no argument.
fn hint(error: &clap::Error, command: Option<&Command>, grammar: &Command, is_word: bool) -> String {
    let there_is = "`--help` lists what there is";
    let said = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        Some(_) | None => None,
    };
    let strays = error.kind() == ErrorKind::UnknownArgument && is_word;
    if let Some(command) = command.filter(|_| strays) {
        if command.get_arguments().any(clap::Arg::is_last_set) {
            // It is meant to be the command that is to be run.
            return format!("put `--` before the command that is to be run: `{} … -- COMMAND`", command.get_name());
        }
        if let Some(way) = way_to_say(command) {
            return format!("{way}; {there_is}");
        }
    }
    let near: Vec<&str> = match (error.kind(), said(ContextKind::InvalidSubcommand), error.get(ContextKind::ValidValue))
    {
        (ErrorKind::InvalidSubcommand, Some(word), _) => {
            // Its own commands where it has some.
            let of = command.filter(|command| command.has_subcommands()).unwrap_or(grammar);
            nearest(word, of.get_subcommands().map(Command::get_name))
        }
        (ErrorKind::InvalidValue, _, Some(ContextValue::Strings(valid))) => {
            let value = said(ContextKind::InvalidValue).unwrap_or_default();
            nearest(value, valid.iter().map(String::as_str))
        }
        (_, _, _) => said(ContextKind::SuggestedArg).into_iter().collect(),
    };
    match near.as_slice() {
        [] => there_is.to_owned(),
        [one] => format!("`{one}` comes nearest; {there_is}"),
        several => format!("`{}` come nearest; {there_is}", several.join("`, `")),
    }
}

/// Says how that is given to a command which other programs take as a word by itself.
fn way_to_say(command: &Command) -> Option<&'static str> {
    let takes = |long: &str| command.get_arguments().any(|argument| argument.get_long() == Some(long));
    if takes("sql") {
        return Some("give the SQL with `--sql`");
    }
    if takes("template-name") {
        return Some("name the template with `--template-name`");
    }
    if takes("snapshot-name") {
        return Some("name the snapshot with `--snapshot-name`");
    }
    takes("database-name").then_some("name the sandbox with `--database-name` or `--database-id`")
}

/// Returns what may be shown of a word: the name of an argument without its value, or what looks like a command.
fn named(word: &str) -> Option<String> {
    // Where it is a value's place that is told, its name stands in brackets.
    let word = word.trim_end_matches("...").trim_start_matches(['[', '<']).trim_end_matches([']', '>']);
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
        failure(&error, command_in(&grammar, &words), &grammar)
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
    fn what_is_meant_is_said_where_it_can_be_told() {
        let hint = |line: &[&str]| failed(&[&["pgsandbox"], line].concat()).hint.unwrap();
        for (line, expected) in [
            (&["creat-database"][..], "`create-database` comes nearest"),
            (&["create_database"], "`create-database` comes nearest"),
            (&["local", "sttus"], "`status` comes nearest"),
            (&["clean"], "`cleanup-expired`, `cleanup` come nearest"),
            (&["setup", "Codex"], "`codex` comes nearest"),
            (&["run-sql", "--sgl", "x"], "`--sql` comes nearest"),
            (&["run-sql", "select 'hunter2'"], "give the SQL with `--sql`"),
            (&["delete-database", "hunter2"], "name the sandbox with `--database-name` or `--database-id`"),
            (&["delete-template", "hunter2"], "name the template with `--template-name`"),
            (&["hunter2"], "`--help` lists what there is"),
            (&["setup", "hunter2"], "`--help` lists what there is"),
        ] {
            let hint = hint(line);
            assert!(hint.starts_with(expected), "{line:?}: {hint}");
        }
        check(&["setup", "hunter2"], "`CLIENT` cannot take the value that is given");
        check(&["completions", "hunter2"], "`shell` cannot take the value that is given");
    }

    #[test]
    fn the_format_is_found_in_what_cannot_be_read() {
        let format = |line: &[&str]| asked_in(&line.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(format(&["run-sgl", "--format", "json"]).as_deref(), Some("json"));
        assert_eq!(format(&["--format=json", "run-sgl"]).as_deref(), Some("json"));
        assert_eq!(format(&["run-sgl", "--", "--format=json"]), None);
        assert_eq!(format(&["run-sgl", "--format"]), None);
    }
}
