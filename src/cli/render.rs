//! Prints results: one place for standard output, one for standard error.

mod forms;

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Deserialize;
use serde_json::{Value, json as object};

use super::arguments::{self, kebab};
use crate::model::Failure;
use crate::operation::Envelope;
use crate::operation::envelope::EnvelopeError;

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// JSON on standard output, failures too.
    Json,
    /// Words: results on standard output, failures on standard error.
    Text,
}

impl Format {
    /// Returns the format asked for, or text: for what operators do, whose output people read and scripts match.
    pub(super) fn asked(asked: Option<&str>) -> Self {
        if asked == Some("json") { Self::Json } else { Self::Text }
    }

    /// Returns the format asked for, or what the command prints by itself; a word that is no command was meant to be one of
    /// an operation.
    pub(super) fn of(command: Option<&str>, asked: Option<&str>) -> Self {
        if command.is_some_and(arguments::prints_text) { Self::asked(asked) } else { Self::choose(asked) }
    }

    /// Returns the format asked for, or what suits standard output.
    pub(super) fn choose(asked: Option<&str>) -> Self {
        match asked {
            Some("json") => Self::Json,
            Some(_) => Self::Text,
            None if io::stdout().is_terminal() => Self::Text,
            None => Self::Json,
        }
    }
}

/// Whether something could not be written to standard output.
static LOST: AtomicBool = AtomicBool::new(false);

/// Writes a line to standard output for people.
pub(super) fn line(text: &str) {
    json(&shown(text));
}

/// Writes a line to standard output for programs, as it is. A reader that went away is no fault of ours.
pub(super) fn json(text: &str) {
    let mut out = io::stdout().lock();
    let written = writeln!(out, "{text}").and_then(|()| out.flush());
    drop(out);
    note(written);
}

fn note(written: io::Result<()>) {
    let Err(error) = written else { return };
    if error.kind() != io::ErrorKind::BrokenPipe && !LOST.swap(true, Ordering::Relaxed) {
        say(&format!("error: standard output cannot be written: {error}"));
    }
}

/// Returns the status for what was written to standard output by others.
pub(super) fn written(written: io::Result<()>) -> ExitCode {
    note(written);
    if is_written() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns whether everything that was to be read on standard output was written.
pub(super) fn is_written() -> bool {
    !LOST.load(Ordering::Relaxed)
}

/// Writes a line to standard error.
pub(super) fn say(text: &str) {
    drop(writeln!(io::stderr().lock(), "{}", shown(text)));
}

/// Shows control characters, which could drive the terminal, as blanks that are seen. Lines may still end, and be indented.
fn shown(text: &str) -> Cow<'_, str> {
    let drives = |c: char| c.is_control() && c != '\n' && c != '\t';
    if text.contains(drives) { text.replace(drives, "␣").into() } else { text.into() }
}

/// Writes why something that is no call of an operation was not done; at least one reason.
pub(super) fn failures(failures: &[Failure], format: Format) {
    let errors: Vec<EnvelopeError> = failures.iter().map(Into::into).collect();
    match format {
        Format::Json => {
            let summary = errors.first().map(|error| error.message.as_str());
            json(&object!({"ok": false, "summary": summary, "warnings": [], "errors": errors}).to_string());
        }
        Format::Text => errors.iter().for_each(error),
    }
}

fn error(error: &EnvelopeError) {
    say(&format!("error: {} [{}]", error.message, error.code));
    if let Some(hint) = hint(error) {
        say(&format!("hint: {hint}"));
    }
    if !error.allowed.is_empty() {
        say(&format!("allowed: {}", error.allowed.join(", ")));
    }
    if let Some(policy) = &error.policy {
        say(&format!("policy: {policy}"));
    }
    // What a command wrote is like a result, whatever became of the command.
    let written = error.output.iter().flat_map(|output| [&output.stdout, &output.stderr]);
    written.filter(|text| !text.is_empty()).for_each(|text| line(text.trim_end_matches('\n')));
}

/// Returns the hint, with the options that stand for arguments here.
fn hint(error: &EnvelopeError) -> Option<String> {
    let as_options = |hint: String, name: &&str| {
        let option = format!("`--{}`", kebab(name));
        hint.replace(&format!("`{name}`"), &option).replace(&format!("`{name}: true`"), &option)
    };
    error.hint.clone().map(|hint| error.hint_arguments.iter().fold(hint, as_options))
}

/// Writes an envelope.
pub(super) fn envelope(envelope: &Envelope, format: Format) {
    match format {
        Format::Json => json(&envelope.to_json().to_string()),
        Format::Text => text(envelope),
    }
}

fn text(envelope: &Envelope) {
    for failed in &envelope.errors {
        match (&failed.sqlstate, failed.statement_index) {
            (Some(_), Some(_)) => statement_failed(failed),
            (_, _) => error(failed),
        }
        say(&format!("request: {}", envelope.request_id));
    }
    for warning in &envelope.warnings {
        say(&format!("note: {warning}"));
    }
    let Some(result) = &envelope.result else { return };
    match result.get("resultSets").and_then(Value::as_array) {
        Some(sets) => {
            sets.iter().for_each(table);
            said_beside(result);
        }
        None => match forms::shown(result) {
            Some(lines) => lines.iter().for_each(|text| line(text)),
            None => line(&serde_json::to_string_pretty(result).unwrap_or_default()),
        },
    }
    say(&envelope.summary);
}

/// Writes what the server said of the caller's statement. It may quote it, and is like a row of a result: standard
/// error is kept by many who are not the caller.
fn statement_failed(failed: &EnvelopeError) {
    line(&failed.message);
    failed.context.iter().for_each(|context| line(&format!("context: {context}")));
    hint(failed).iter().for_each(|hint| line(&format!("hint: {hint}")));
    let index = failed.statement_index.map(|index| format!(" {index}")).unwrap_or_default();
    let on = failed.line.map(|line| format!(" on line {line}")).unwrap_or_default();
    let at = failed.position.map(|position| format!(", at its character {position}")).unwrap_or_default();
    // Without a state it was not the server that refused.
    let state = failed.sqlstate.as_ref().map(|state| format!(", SQLSTATE {state}")).unwrap_or_default();
    say(&format!("error: statement{index} failed{on}{at}{state} [{}]", failed.code));
}

/// Writes what a call that ran its statements has beside their rows: notices, and statements that failed while it went on.
fn said_beside(result: &Value) {
    let list = |key: &str| result.get(key).and_then(Value::as_array).into_iter().flatten();
    for notice in list("notices") {
        let word = |key: &str| notice.get(key).and_then(Value::as_str).unwrap_or_default();
        line(&format!("{}: {}", word("severity"), word("message")));
    }
    let read = |failed: &Value| EnvelopeError::deserialize(failed).ok();
    list("statementFailures").filter_map(read).for_each(|failed| statement_failed(&failed));
}

/// Writes a result set as an aligned table.
fn table(set: &Value) {
    let names = set.get("columns").and_then(Value::as_array).into_iter().flatten();
    let header: Vec<String> = names.map(|c| c.get("name").map(cell).unwrap_or_default()).collect();
    let rows = set.get("rows").and_then(Value::as_array).into_iter().flatten();
    let rows: Vec<Vec<String>> =
        rows.filter_map(Value::as_array).map(|row| row.iter().map(cell).collect::<Vec<_>>()).collect();
    if header.is_empty() {
        line(set.get("commandTag").and_then(Value::as_str).unwrap_or_default());
        return;
    }
    aligned(&header, &rows).iter().for_each(|text| line(text));
    if set.get("truncated").and_then(Value::as_bool).unwrap_or(false) {
        line("… (there are more rows)");
    }
}

/// Returns the lines of a table.
fn aligned(header: &[String], rows: &[Vec<String>]) -> Vec<String> {
    let widths: Vec<usize> = header
        .iter()
        .enumerate()
        .map(|(i, name)| {
            let cells = rows.iter().filter_map(|row| row.get(i)).map(|c| c.chars().count());
            cells.chain([name.chars().count()]).max().unwrap_or(0)
        })
        .collect();
    let padded = |row: &[String]| -> String {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        cells.join(" | ").trim_end().to_owned()
    };
    let between = widths.iter().map(|width| "-".repeat(*width)).collect::<Vec<_>>().join("-+-");
    [padded(header), between].into_iter().chain(rows.iter().map(|row| padded(row))).collect()
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "∅".to_owned(),
        Value::String(text) => one_line(text),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    }
}

/// Shows a text in a line: a row is one.
fn one_line(text: &str) -> String {
    text.replace(char::is_control, "␣")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Code;

    #[test]
    fn a_hint_names_options_in_the_place_of_arguments_and_changes_nothing_else() {
        let said = "give `databaseId` or `replace: true`; not `replaced`, `database`, replace or `seedCommand`";
        let failure = Failure::new(Code::InvalidArguments, "`replace`").hint(said).naming(&["databaseId", "replace"]);
        let error = EnvelopeError::from(&failure);
        assert_eq!(error.hint.as_deref(), Some(said), "what a client reads has the arguments");
        assert_eq!(
            hint(&error).as_deref(),
            Some("give `--database-id` or `--replace`; not `replaced`, `database`, replace or `seedCommand`")
        );
        assert_eq!(hint(&EnvelopeError::from(&failure.hint("`replace` it"))).as_deref(), Some("`replace` it"));
    }
}
