//! Prints results: one place for standard output, one for standard error.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json as object};

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
    let Err(error) = writeln!(out, "{text}").and_then(|()| out.flush()) else { return };
    if error.kind() != io::ErrorKind::BrokenPipe && !LOST.swap(true, Ordering::Relaxed) {
        say(&format!("error: standard output cannot be written: {error}"));
    }
}

/// Returns whether everything that was to be read on standard output was written.
pub(super) fn is_written() -> bool {
    !LOST.load(Ordering::Relaxed)
}

/// Writes a line to standard error.
pub(super) fn say(text: &str) {
    drop(writeln!(io::stderr().lock(), "{}", shown(text)));
}

/// Shows control characters, which could drive the terminal, as blanks that are seen. Lines may still end.
fn shown(text: &str) -> Cow<'_, str> {
    let drives = |c: char| c.is_control() && c != '\n';
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
    if let Some(hint) = &error.hint {
        say(&format!("hint: {hint}"));
    }
    if !error.allowed.is_empty() {
        say(&format!("allowed: {}", error.allowed.join(", ")));
    }
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
            (Some(sqlstate), Some(index)) => {
                statement_failed(&failed.message, failed.hint.as_deref(), index, sqlstate, &failed.code);
            }
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
        None => line(&serde_json::to_string_pretty(result).unwrap_or_default()),
    }
    say(&envelope.summary);
}

/// Writes what the server said of the caller's statement. It may quote it, and is like a row of a result: standard
/// error is kept by many who are not the caller.
fn statement_failed(message: &str, hint: Option<&str>, index: u32, sqlstate: &str, code: &str) {
    line(message);
    hint.iter().for_each(|hint| line(&format!("hint: {hint}")));
    // Without a state it was not the server that refused.
    let state = if sqlstate.is_empty() { String::new() } else { format!(", SQLSTATE {sqlstate}") };
    say(&format!("error: statement {index} failed{state} [{code}]"));
}

/// Writes what a call that ran its statements has beside their rows: notices, and statements that failed while it went on.
fn said_beside(result: &Value) {
    let list = |key: &str| result.get(key).and_then(Value::as_array).into_iter().flatten();
    let word = |of: &Value, key: &str| of.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    for notice in list("notices") {
        line(&format!("{}: {}", word(notice, "severity"), word(notice, "message")));
    }
    for failed in list("statementFailures") {
        let index = failed.get("statementIndex").and_then(Value::as_u64).and_then(|index| u32::try_from(index).ok());
        let hint = failed.get("hint").and_then(Value::as_str);
        let (sqlstate, code) = (word(failed, "sqlstate"), word(failed, "code"));
        statement_failed(&word(failed, "message"), hint, index.unwrap_or_default(), &sqlstate, &code);
    }
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
    line(&padded(&header));
    line(&widths.iter().map(|width| "-".repeat(*width)).collect::<Vec<_>>().join("-+-"));
    for row in &rows {
        line(&padded(row));
    }
    if set.get("truncated").and_then(Value::as_bool).unwrap_or(false) {
        line("… (there are more rows)");
    }
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "∅".to_owned(),
        // A row is a line.
        Value::String(text) => text.replace(char::is_control, "␣"),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    }
}
