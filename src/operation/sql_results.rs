//! The results of SQL as callers read them: exact values, bounded, each row once.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::envelope::EnvelopeError;
use crate::engine::postgres::{Cell, Column, JsonForm, Notice, ResultSet};
use crate::model::limits::{NOTICES_MAX, REPLY_FRAME_BYTES_MAX};
use crate::model::{Code, Failure, Obligations, counted};

/// What a value costs beside its text, in bytes: quotes and a comma.
const CELL_BYTES: u64 = 5;
/// What a result or a failure costs in a reply beside its texts, in bytes: its keys, counts and signs.
const FRAME_BYTES: usize = 120;
/// The same for a column.
const COLUMN_FRAME_BYTES: usize = 24;
/// What quotes and comma around a word add, in bytes.
const WORD_FRAME_BYTES: usize = 3;
/// Why a result has no rows and no columns where the reply has no room for them.
const CUT_BY_BYTES: &str = "bytes";
/// Told with JSON that is not nested.
const JSON_AS_TEXT: &str = "columns with `jsonAsText` hold each JSON value as a string of its text, since a client could change one that is nested: it \
     has a number past 2^53 or with digits that a double loses, a key twice, or is JSON's own null; read the string, or take the parts in SQL";

/// Results of one call.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct SqlResults {
    /// One per statement that succeeded.
    pub(super) result_sets: Vec<ResultSetEntry>,
    /// The last set's rows that were returned.
    returned_row_count: u64,
    /// The rows that the last statement touched, where it says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    affected_row_count: Option<u64>,
    /// Whether the last set's whole row count is known.
    total_row_count_known: bool,
    /// Whether the last set was cut.
    truncated: bool,
    /// What cut it: `rows`, `bytes` or `value_bytes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated_by: Option<String>,
    /// Messages of the server, in order.
    notices: Vec<NoticeEntry>,
    /// How many further messages were left out.
    notices_dropped: u64,
    /// How many statements failed, with continueOnError; absent if none did.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    statements_failed: Option<usize>,
    /// Those of them that the reply has room for.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    statement_failures: Vec<StatementFailure>,
    /// Time from the first statement's start to the last one's end.
    pub(super) elapsed_ms: u64,
    #[serde(skip)]
    pub(super) warnings: Vec<String>,
    /// What the results and failures so far take up beside their rows.
    #[serde(skip)]
    frame_bytes: usize,
    /// Results without their columns and rows, and failures that are not told.
    #[serde(skip)]
    left_out: (usize, usize),
}

/// A statement that failed while the call went on.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct StatementFailure {
    #[serde(flatten)]
    error: EnvelopeError,
}

impl From<&Failure> for StatementFailure {
    fn from(failure: &Failure) -> Self {
        Self { error: failure.into() }
    }
}

/// Result of one statement.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ResultSetEntry {
    /// From 1.
    statement_index: u32,
    /// What the server says was done; absent where the row limit ended the statement first.
    #[serde(skip_serializing_if = "Option::is_none")]
    command_tag: Option<String>,
    columns: Vec<ColumnEntry>,
    /// Each row's values in the order of the columns.
    rows: Vec<Vec<Value>>,
    returned_row_count: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    affected_row_count: Option<u64>,
    total_row_count_known: bool,
    truncated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated_by: Option<String>,
    #[serde(skip)]
    kept_bytes: u64,
}

/// One column.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ColumnEntry {
    name: String,
    /// The type as Postgres writes it.
    r#type: String,
    /// Whether each JSON value here is a string of its text: nested, one would not come through a reader's doubles as it is.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    json_as_text: bool,
}

/// A message of the server.
#[derive(Debug, Serialize, JsonSchema)]
struct NoticeEntry {
    severity: String,
    message: String,
}

impl ResultSetEntry {
    pub(super) fn new(statement_index: u32, set: &ResultSet) -> Self {
        let forms: Vec<_> = (0..set.columns.len()).map(|index| set.json_form(index)).collect();
        let name = |(column, form): (&Column, &JsonForm)| ColumnEntry {
            name: column.name.clone(),
            r#type: column.type_name.clone(),
            json_as_text: *form == JsonForm::Text,
        };
        let row = |row: &Vec<Cell>| -> Vec<Value> {
            let columns = set.columns.iter().zip(&forms);
            row.iter().zip(columns).map(|(cell, (column, form))| cell.json_value(&column.shape, *form)).collect()
        };
        let kept =
            set.rows.iter().flatten().map(|cell| cell.text().map_or(CELL_BYTES, |text| text.len() as u64 + CELL_BYTES));
        Self {
            statement_index,
            command_tag: set.command_tag.clone(),
            columns: set.columns.iter().zip(&forms).map(name).collect(),
            rows: set.rows.iter().map(row).collect(),
            returned_row_count: set.rows.len() as u64,
            affected_row_count: set.affected,
            total_row_count_known: set.rows_total.is_some() || set.columns.is_empty(),
            truncated: set.truncated,
            truncated_by: set.truncated_by.map(|by| by.as_str().to_owned()),
            kept_bytes: kept.sum(),
        }
    }

    /// Returns what the rows count against the call's byte budget.
    pub(super) fn kept_bytes(&self) -> u64 {
        self.kept_bytes
    }

    fn columns_bytes(&self) -> usize {
        self.columns.iter().map(|column| column.name.len() + column.r#type.len() + COLUMN_FRAME_BYTES).sum()
    }

    /// Leaves columns and rows out; the counts of what the statement did stay.
    fn without_columns(mut self) -> Self {
        if self.returned_row_count > 0 {
            self.truncated = true;
            self.truncated_by = Some(CUT_BY_BYTES.to_owned());
        }
        self.columns.clear();
        self.rows.clear();
        self.returned_row_count = 0;
        self
    }
}

/// Takes `bytes` of what is left, if that is enough.
fn take(left: &mut u64, bytes: usize) -> bool {
    let after = left.checked_sub(bytes as u64);
    *left = after.unwrap_or(*left);
    after.is_some()
}

impl SqlResults {
    /// Adds a statement's result; without its columns and rows where the reply has no room for them.
    pub(super) fn add_set(&mut self, entry: ResultSetEntry) {
        let columns = entry.columns_bytes();
        self.frame_bytes += FRAME_BYTES;
        if columns > 0 && self.frame_bytes + columns > REPLY_FRAME_BYTES_MAX {
            self.left_out.0 += 1;
            self.result_sets.push(entry.without_columns());
            return;
        }
        self.frame_bytes += columns;
        self.result_sets.push(entry);
    }

    /// Adds a statement's failure; only counts it where the reply has no room for it, or the call's `bytes_left` none for
    /// what the server said.
    pub(super) fn add_failure(&mut self, failure: &Failure, bytes_left: &mut u64) {
        *self.statements_failed.get_or_insert_default() += 1;
        let context = failure.detail.as_ref().and_then(|detail| detail.context.as_ref()).map_or(0, String::len);
        if !take(bytes_left, failure.message.len() + context) {
            self.left_out.1 += 1;
            return;
        }
        let allowed = failure.allowed.iter().map(|word| word.len() + WORD_FRAME_BYTES).sum::<usize>();
        let texts = failure.message.len() + context + failure.hint.as_ref().map_or(0, String::len) + allowed;
        if self.frame_bytes + FRAME_BYTES + texts > REPLY_FRAME_BYTES_MAX {
            self.left_out.1 += 1;
            return;
        }
        self.frame_bytes += FRAME_BYTES + texts;
        self.statement_failures.push(StatementFailure::from(failure));
    }

    /// Returns whether one of the failures that are told is `code`.
    pub(super) fn has_failure(&self, code: Code) -> bool {
        self.statement_failures.iter().any(|failure| failure.error.code == code.as_str())
    }

    /// Says what the reply had no room for.
    pub(super) fn say_what_is_left_out(&mut self) {
        let (sets, failures) = self.left_out;
        if sets > 0 {
            self.warnings.push(format!("the reply is full: columns and rows of {sets} results are left out"));
        }
        if failures > 0 {
            self.warnings.push(format!("the reply is full: {failures} of the failures are left out"));
        }
    }

    /// Keeps notices, up to the bound for the whole call and to the bytes that are left for it, and counts those that are
    /// left out.
    pub(super) fn add_notices(&mut self, notices: Vec<Notice>, dropped: u64, bytes_left: &mut u64) {
        self.notices_dropped += dropped;
        for notice in notices {
            let message = notice.message.expose();
            if self.notices.len() >= NOTICES_MAX || !take(bytes_left, message.len()) {
                self.notices_dropped += 1;
                continue;
            }
            self.notices.push(NoticeEntry { message: message.to_owned(), severity: notice.severity });
        }
    }

    /// Says what became of JSON that could not be nested.
    pub(super) fn say_what_is_text(&mut self) {
        if self.result_sets.iter().flat_map(|set| &set.columns).any(|column| column.json_as_text) {
            self.warnings.push(JSON_AS_TEXT.to_owned());
        }
    }

    /// Repeats the last set's counts at the top.
    pub(super) fn total_up(&mut self) {
        if let Some(last) = self.result_sets.last() {
            self.returned_row_count = last.returned_row_count;
            self.affected_row_count = last.affected_row_count;
            self.total_row_count_known = last.total_row_count_known;
            self.truncated = last.truncated;
            self.truncated_by.clone_from(&last.truncated_by);
        }
    }

    /// Says which policy's limit cut a result, where one did.
    pub(super) fn say_what_cut(&mut self, demands: &Obligations) {
        let cut_by = |by: &str| self.result_sets.iter().any(|set| set.truncated_by.as_deref() == Some(by));
        if let Some(limit) = demands.max_result_bytes.as_ref().filter(|_| cut_by(CUT_BY_BYTES)) {
            self.warnings.push(format!("rows are cut at {} bytes, set by `{}`", limit.value, limit.set_by));
        }
    }

    pub(super) fn summary(&self) -> String {
        let failed = self.statements_failed.unwrap_or(0);
        match (self.result_sets.as_slice(), failed) {
            ([only], 0) => {
                let tag = only.command_tag.as_deref().unwrap_or("SELECT");
                if only.columns.is_empty() && only.returned_row_count == 0 {
                    return tag.to_owned();
                }
                format!(
                    "{tag}: {} returned{}",
                    counted(only.returned_row_count, "row", "rows"),
                    if only.truncated { ", and more left out" } else { "" }
                )
            }
            (sets, 0) => format!("{} ran", counted(sets.len(), "statement", "statements")),
            (sets, failed) => format!("{} ran, {failed} failed", counted(sets.len(), "statement", "statements")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(columns: usize) -> ResultSetEntry {
        let column = |_| ColumnEntry { name: "c".repeat(60), r#type: "int4".to_owned(), json_as_text: false };
        ResultSetEntry {
            statement_index: 1,
            command_tag: Some("SELECT 1".to_owned()),
            columns: (0..columns).map(column).collect(),
            rows: vec![vec![Value::from(1); columns]],
            returned_row_count: 1,
            affected_row_count: None,
            total_row_count_known: true,
            truncated: false,
            truncated_by: None,
            kept_bytes: 0,
        }
    }

    #[test]
    fn columns_of_many_results_do_not_fill_a_reply_without_bound() {
        let mut results = SqlResults::default();
        (0..1000).for_each(|_| results.add_set(entry(400)));
        results.say_what_is_left_out();
        let (first, last) = (&results.result_sets[0], &results.result_sets[999]);
        assert_eq!((first.columns.len(), first.truncated), (400, false));
        assert_eq!((last.columns.len(), last.rows.len(), last.returned_row_count), (0, 0, 0));
        assert_eq!(last.truncated_by.as_deref(), Some(CUT_BY_BYTES));
        assert_eq!(results.warnings.len(), 1);
        assert!(serde_json::to_vec(&results).unwrap().len() < 2 * REPLY_FRAME_BYTES_MAX);
    }

    #[test]
    fn the_results_of_as_many_statements_as_a_call_may_have_all_have_their_columns() {
        let mut results = SqlResults::default();
        (0..crate::model::limits::SQL_STATEMENTS_MAX).for_each(|_| results.add_set(entry(1)));
        results.say_what_is_left_out();
        assert_eq!(results.warnings, [""; 0]);
    }

    #[test]
    fn failures_that_do_not_fit_are_counted() {
        let mut results = SqlResults::default();
        let failure = Failure::new(Code::SqlFailed, "x".repeat(8 << 10)).allowed(vec!["y".repeat(20); 400]);
        (0..9000).for_each(|_| results.add_failure(&failure, &mut u64::MAX.clone()));
        results.say_what_is_left_out();
        assert_eq!(results.summary(), "0 statements ran, 9000 failed");
        assert_eq!(results.warnings.len(), 1);
        assert!(serde_json::to_vec(&results).unwrap().len() < 2 * REPLY_FRAME_BYTES_MAX);
    }

    #[test]
    fn what_the_server_said_takes_from_the_bytes_of_the_call() {
        let mut results = SqlResults::default();
        let notice = || Notice {
            severity: "NOTICE".into(),
            sqlstate: "00000".into(),
            message: crate::engine::postgres::CallerText::new("x".repeat(100)),
            detail: None,
            hint: None,
        };
        let mut left = 250;
        results.add_notices(vec![notice(), notice(), notice()], 0, &mut left);
        assert_eq!((results.notices.len(), results.notices_dropped, left), (2, 1, 50));
        let failure = |bytes| Failure::new(Code::SqlFailed, "x".repeat(bytes));
        results.add_failure(&failure(51), &mut left);
        assert_eq!((results.statement_failures.len(), results.statements_failed.unwrap_or(0), left), (0, 1, 50));
        results.add_failure(&failure(50), &mut left);
        assert_eq!((results.statement_failures.len(), results.statements_failed.unwrap_or(0), left), (1, 2, 0));
        let mut with_context = failure(10);
        with_context.detail_mut().context = Some("y".repeat(20));
        let mut left = 29;
        results.add_failure(&with_context, &mut left);
        assert_eq!((results.statement_failures.len(), left), (1, 29));
        left += 1;
        results.add_failure(&with_context, &mut left);
        assert_eq!((results.statement_failures.len(), left), (2, 0));
        results.say_what_is_left_out();
        assert_eq!(results.warnings.len(), 1);
    }
}
