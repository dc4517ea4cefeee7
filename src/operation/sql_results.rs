//! The results of SQL as callers read them: exact values, bounded, each row once.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::envelope::EnvelopeError;
use crate::engine::postgres::{Cell, Column, Notice, ResultSet};
use crate::model::limits::NOTICES_MAX;
use crate::model::{Failure, Obligations};

/// What a value costs beside its text, in bytes: quotes and a comma.
const CELL_BYTES: u64 = 5;

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
    /// Statements that failed, with continueOnError.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub(super) statement_failures: Vec<StatementFailure>,
    /// Time from the first statement's start to the last one's end.
    pub(super) elapsed_ms: u64,
    #[serde(skip)]
    pub(super) warnings: Vec<String>,
}

/// A statement that failed while the call went on.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct StatementFailure {
    #[serde(flatten)]
    error: EnvelopeError,
}

impl StatementFailure {
    pub(super) fn code(&self) -> &str {
        &self.error.code
    }
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
struct ColumnEntry {
    name: String,
    /// The type as Postgres writes it.
    r#type: String,
}

/// A message of the server.
#[derive(Debug, Serialize, JsonSchema)]
struct NoticeEntry {
    severity: String,
    message: String,
}

impl ResultSetEntry {
    pub(super) fn new(statement_index: u32, set: &ResultSet) -> Self {
        let name = |column: &Column| ColumnEntry { name: column.name.clone(), r#type: column.type_name.clone() };
        let row = |row: &Vec<Cell>| -> Vec<Value> {
            row.iter().zip(&set.columns).map(|(cell, column)| cell.json_value(&column.shape)).collect()
        };
        let kept =
            set.rows.iter().flatten().map(|cell| cell.text().map_or(CELL_BYTES, |text| text.len() as u64 + CELL_BYTES));
        Self {
            statement_index,
            command_tag: set.command_tag.clone(),
            columns: set.columns.iter().map(name).collect(),
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
}

impl SqlResults {
    /// Keeps notices, up to the bound for the whole call, and counts those that are left out.
    pub(super) fn add_notices(&mut self, notices: Vec<Notice>, dropped: u64) {
        let room = NOTICES_MAX.saturating_sub(self.notices.len());
        self.notices_dropped += dropped + notices.len().saturating_sub(room) as u64;
        let entry = |n: Notice| NoticeEntry { severity: n.severity, message: n.message.expose().to_owned() };
        self.notices.extend(notices.into_iter().take(room).map(entry));
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
        if let Some(limit) = demands.max_result_bytes.as_ref().filter(|_| cut_by("bytes")) {
            self.warnings.push(format!("rows are cut at {} bytes, set by `{}`", limit.value, limit.set_by));
        }
    }

    pub(super) fn summary(&self) -> String {
        let failed = self.statement_failures.len();
        match (self.result_sets.as_slice(), failed) {
            ([only], 0) => {
                let tag = only.command_tag.as_deref().unwrap_or("SELECT");
                format!(
                    "{tag}: {} rows returned{}",
                    only.returned_row_count,
                    if only.truncated { ", and more left out" } else { "" }
                )
            }
            (sets, 0) => format!("{} statements ran", sets.len()),
            (sets, failed) => format!("{} statements ran, {failed} failed", sets.len()),
        }
    }
}
