//! Says why nothing was done: arguments that cannot be read, or a program that does not start.
//!
//! What is said names arguments and commands and never shows a value, which may be SQL or a secret.

use std::error::Error as _;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::arguments::Wanted;
use super::render::{self, Format};
use crate::app::Refusal;
use crate::model::{Code, Failure};

/// Characters of a mistyped command or argument that are shown.
const NAME_CHARS_MAX: usize = 40;

/// Says why the program does not start.
pub fn refused(refusal: &Refusal, format: Format) -> ExitCode {
    match format {
        Format::Json => render::failures(&refusal.failures, format),
        // Standard output belongs to the protocol.
        Format::Text => render::say(&format!("error: {}", refusal.text)),
    }
    not_done()
}

/// Says what is wrong with a command line, or prints the help that was asked for.
pub fn misread(error: &clap::Error, arguments: &[OsString]) -> ExitCode {
    if !error.use_stderr() {
        let printed = error.print().and_then(|()| io::stdout().flush());
        return render::written(printed);
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        drop(error.print());
        return not_done();
    }
    render::failures(&[failure(error)], asked_in(arguments));
    not_done()
}

/// The status of a program that did not get to do anything.
fn not_done() -> ExitCode {
    ExitCode::from(2)
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

fn failure(error: &clap::Error) -> Failure {
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
    let hint = match nearest {
        Some(nearest) => format!("`{nearest}` comes nearest; `--help` lists what there is"),
        None => "`--help` lists what there is".to_owned(),
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

    fn check(line: &[&str], expected: &str) {
        let line = [&["pgsandbox"], line].concat();
        let error = super::super::arguments::command().try_get_matches_from(&line).unwrap_err();
        let failure = failure(&error);
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
    fn the_format_is_found_in_what_cannot_be_read() {
        let format = |line: &[&str]| asked_in(&line.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(format(&["run-sgl", "--format", "json"]), Format::Json);
        assert_eq!(format(&["--format=json", "run-sgl"]), Format::Json);
        assert_eq!(format(&["run-sgl", "--", "--format=json"]), Format::Text);
        assert_eq!(format(&["run-sgl", "--format"]), Format::Text);
    }
}
