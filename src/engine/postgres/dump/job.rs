//! What is to be copied, what was found out about it, and what came of it.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Begun, known};
use crate::engine::EngineError;
use crate::engine::postgres::PostgresUrl;
use crate::model::{Code, Failure, Progress};

/// One database that is to be copied into a new sandbox. Lives as long as the sandbox is being made.
pub struct CloneJob {
    /// The source, its password included.
    pub source: PostgresUrl,
    /// What it is called in messages: a configured name, or a URL without its password.
    pub shown: String,
    /// What is wanted of it.
    pub options: CloneOptions,
    /// When the copy must be there.
    pub deadline: Instant,
    /// How long that was from the beginning.
    pub time: Duration,
    /// Set when the caller cancels.
    pub cancel: CancellationToken,
    /// Takes news.
    pub progress: Arc<dyn Progress>,
    pub(super) plan: OnceLock<ClonePlan>,
    pub(super) report: OnceLock<CloneReport>,
    begun: Mutex<Option<Begun>>,
    /// How often the database was opened to be filled.
    opened: AtomicU8,
}

impl std::fmt::Debug for CloneJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CloneJob").field("shown", &self.shown).finish_non_exhaustive()
    }
}

/// What is wanted of a source.
#[derive(Clone, Debug, Default)]
pub struct CloneOptions {
    /// No rows.
    pub schema_only: bool,
    /// Extensions of the source that are left out.
    pub exclude_extensions: Vec<String>,
    /// Tables whose rows are left out.
    pub exclude_table_data: Vec<TableName>,
    /// Columns whose values are replaced.
    pub masks: Vec<Mask>,
    /// Columns of which policies demand that nothing is shown, where the source has them.
    pub demanded: Vec<DemandedMask>,
    /// Extensions of the source that may be made here.
    pub allowed_extensions: Vec<String>,
    /// The most bytes that the source may have.
    pub bytes_max: Option<u64>,
    /// Databases that the source must not be, each with what it is called and its password.
    pub guarded: Vec<(String, PostgresUrl)>,
}

/// A table's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableName {
    /// Its schema.
    pub schema: String,
    /// Its own name.
    pub table: String,
}

/// One column whose values are replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mask {
    /// The table.
    pub table: TableName,
    /// The column.
    pub column: String,
    /// By what.
    pub with: MaskWith,
}

/// One column of which policies demand that nothing is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DemandedMask {
    /// The table.
    pub table: TableName,
    /// The column.
    pub column: String,
    /// The policies, the first of them first.
    pub policies: Vec<String>,
}

/// By what a column's values are replaced. NULL stays NULL but for a constant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MaskWith {
    /// One value for all, in text form.
    Constant(String),
    /// NULL.
    Null,
    /// A hash under a key that nobody knows: equal values stay equal within the copy.
    Hash,
    /// A value of the same shape, equal values staying equal within the copy.
    Fake,
}

/// What was found out about a source before anything was made.
#[derive(Clone, Debug, Default)]
pub struct ClonePlan {
    /// Its version, as it says itself.
    pub source_version: String,
    /// Its major version.
    pub source_major: u16,
    /// Its size in bytes.
    pub source_bytes: u64,
    /// Its extensions that the copy gets, each with its schema.
    pub extensions: Vec<(String, String)>,
    /// Its extensions that the copy does not get.
    pub excluded_extensions: Vec<String>,
    /// What else is left out, in words.
    pub left_out: Vec<String>,
    /// What the caller should know.
    pub warnings: Vec<String>,
    /// How many tables it has.
    pub tables: u64,
    /// Of the extensions, those that the admin makes.
    pub(in crate::engine::postgres) by_admin: Vec<String>,
    /// How it sorts texts.
    pub(super) source_locale: Option<String>,
    /// Where the source was found.
    pub(super) address: Option<SocketAddr>,
    pub(super) foreign_tables: Vec<TableName>,
    /// The tables whose rows are left out, with their partitions and whatever inherits from them.
    pub(super) without_rows: BTreeSet<TableName>,
    pub(super) foreign_servers: bool,
    pub(super) event_triggers: bool,
    /// What is replaced: what the caller wants, and what policies demand.
    pub(super) masks: Vec<Mask>,
    pub(super) columns: Vec<super::mask::Column>,
    pub(super) tools: Option<super::tools::Tools>,
}

/// What came of a copy.
#[derive(Clone, Debug, Default)]
pub struct CloneReport {
    /// Tables, partitioned ones and partitions included.
    pub tables: u64,
    /// Rows of all of them.
    pub rows: u64,
    /// Whether rows were counted, or are the server's estimates.
    pub counted: bool,
    /// The tables with the most rows.
    pub largest: Vec<TableRows>,
    /// Extensions.
    pub extensions: Vec<String>,
    /// Indexes that are not valid, and constraints that were not validated.
    pub invalid: Vec<String>,
    /// Materialised views that hold nothing yet.
    pub unpopulated: Vec<String>,
}

/// The rows of one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableRows {
    /// The table, as `schema.name`.
    pub table: String,
    /// Its rows.
    pub rows: u64,
}

impl CloneJob {
    /// Begins a job that must be done within `time`.
    pub fn new(
        source: PostgresUrl,
        shown: String,
        options: CloneOptions,
        time: Duration,
        cancel: CancellationToken,
        progress: Arc<dyn Progress>,
    ) -> Self {
        let deadline = Instant::now() + time;
        let (plan, report, begun) = (OnceLock::new(), OnceLock::new(), Mutex::default());
        let opened = AtomicU8::new(0);
        Self { source, shown, options, deadline, time, cancel, progress, plan, report, begun, opened }
    }

    /// Returns what was found out about the source.
    ///
    /// # Errors
    /// Fails if nobody has looked.
    pub fn plan(&self) -> Result<&ClonePlan, EngineError> {
        self.plan
            .get()
            .ok_or_else(|| known(Failure::new(Code::Internal, "the source was not looked at before its copy")))
    }

    /// Returns what came of the copy, once it was checked.
    pub fn report(&self) -> Option<&CloneReport> {
        self.report.get()
    }

    /// Returns how long is left.
    pub fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Returns how often the database was opened to be filled, by which its owner's name is known.
    pub(in crate::engine::postgres) fn opened(&self) -> u8 {
        self.opened.load(Ordering::SeqCst)
    }

    pub(in crate::engine::postgres) fn note_opened(&self, times: u8) {
        self.opened.store(times, Ordering::SeqCst);
    }

    pub(super) fn keep_begun(&self, begun: Begun) {
        *self.begun.lock().unwrap_or_else(PoisonError::into_inner) = Some(begun);
    }

    pub(super) fn take_begun(&self) -> Option<Begun> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Ends what was begun: the source is let go, and no file stays.
    pub(in crate::engine::postgres) fn give_up(&self) {
        drop(self.take_begun());
    }

    /// Returns the failure of a job whose time is over.
    pub(super) fn over(&self) -> Failure {
        let text = format!(
            "the copy of {} was not done within {} s; everything begun was removed",
            self.shown,
            self.time.as_secs()
        );
        Failure::new(Code::CommandTimeout, text)
            .hint("give it a higher `timeoutSeconds`, or leave rows out: `schemaOnly`, `excludeTableData`")
            .naming(&["timeoutSeconds", "schemaOnly", "excludeTableData"])
    }
}

impl std::fmt::Display for TableName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = |name: &str| name.chars().take(63).flat_map(char::escape_default).collect::<String>();
        write!(f, "{}.{}", shown(&self.schema), shown(&self.table))
    }
}

impl TableName {
    /// Reads `table`, `schema.table`, or either part in double quotes with `""` for a quote; `public` where no schema is named.
    pub fn parse(text: &str) -> Option<Self> {
        let (first, rest) = part(text)?;
        let (schema, table) = match rest.strip_prefix('.') {
            Some(rest) => {
                let (second, rest) = part(rest)?;
                rest.is_empty().then_some((first, second))?
            }
            None => rest.is_empty().then_some(("public".to_owned(), first))?,
        };
        Some(Self { schema, table })
    }

    /// Returns the pattern by which `pg_dump` finds this table and no other.
    pub(super) fn pattern(&self) -> String {
        let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
        format!("{}.{}", quoted(&self.schema), quoted(&self.table))
    }
}

/// Takes one name off the beginning of a text.
fn part(text: &str) -> Option<(String, &str)> {
    let Some(mut rest) = text.strip_prefix('"') else {
        let end = text.find('.').unwrap_or(text.len());
        let (name, rest) = text.split_at(end);
        return (!name.is_empty() && !name.contains(['"', '\0'])).then(|| (name.to_owned(), rest));
    };
    let mut name = String::new();
    loop {
        let (before, after) = rest.split_once('"')?;
        name.push_str(before);
        match after.strip_prefix('"') {
            Some(after) => {
                name.push('"');
                rest = after;
            }
            None => return (!name.is_empty() && !name.contains('\0')).then_some((name, after)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Option<(&str, &str)>) {
        let found = TableName::parse(text);
        let expected = expected.map(|(schema, table)| TableName { schema: schema.into(), table: table.into() });
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn names_of_tables_are_read_with_and_without_quotes() {
        check("users", Some(("public", "users")));
        check("App.Users", Some(("App", "Users")));
        check("\"a.b\".\"c\"\"d\n\"", Some(("a.b", "c\"d\n")));
        check("\"users\"", Some(("public", "users")));
        for bad in ["", ".", "a.", ".b", "a.b.c", "\"a", "\"\"", "a\"b", "\"a\"b"] {
            check(bad, None);
        }
    }

    #[test]
    fn a_pattern_keeps_every_letter() {
        let name = TableName { schema: "s*".into(), table: "a\"?.|$".into() };
        assert_eq!(name.pattern(), "\"s*\".\"a\"\"?.|$\"");
    }
}
