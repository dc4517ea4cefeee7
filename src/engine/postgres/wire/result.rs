//! What one statement gave back, with exactly what was left out.
//!
//! A cell keeps the value's text as the server wrote it; rendering is elsewhere. `Debug` shows no value.

use std::fmt;

use super::{Notice, Shape};
use crate::model::limits::{REPLY_BYTES_DEFAULT, ROWS_DEFAULT, VALUE_BYTES_MAX};

/// What a cell costs beside its text, in bytes: quotes, comma, a `null`. So a row of a thousand NULLs is not free.
pub(super) const CELL_BYTES: u64 = 5;

/// How much of a result is kept. The rest is read past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResultLimits {
    /// Rows; 0 keeps none.
    pub rows_max: u64,
    /// Bytes of all values together, each with a few for its punctuation; whole rows are kept.
    pub bytes_max: u64,
    /// Bytes of one value; a longer one is left out and its row kept. Never above [`VALUE_BYTES_MAX`], nor above
    /// `bytes_max`.
    pub value_bytes_max: usize,
}

impl Default for ResultLimits {
    fn default() -> Self {
        Self { rows_max: ROWS_DEFAULT, bytes_max: REPLY_BYTES_DEFAULT, value_bytes_max: VALUE_BYTES_MAX }
    }
}

/// What happens to a statement whose rows are more than its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rest {
    /// It ends early. What it would have done for the rows that are left, it does not do.
    #[default]
    Unfetched,
    /// It runs to its end, and the rows that are left are counted.
    Counted,
}

/// The result of one statement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResultSet {
    /// The columns in order; none for a statement that returns no rows. Names may repeat.
    pub columns: Vec<Column>,
    /// The rows that were kept, each with one cell for each column.
    pub rows: Vec<Vec<Cell>>,
    /// What the server says was done, `INSERT 0 3` for instance; `None` for an empty statement, and where the row
    /// limit ended the statement before the server said it.
    pub command_tag: Option<String>,
    /// Rows changed, copied or made, where the command tag tells.
    pub affected: Option<u64>,
    /// Rows of the whole result, where the server got to its end.
    pub rows_total: Option<u64>,
    /// Whether anything is missing: rows, or values in them.
    pub truncated: bool,
    /// The limit that was met first; one for whole rows before one for single values.
    pub truncated_by: Option<TruncatedBy>,
    /// Values in `rows` that are [`Cell::Omitted`].
    pub values_omitted: u64,
    /// Notices in order, the first [`NOTICES_MAX`](crate::model::limits::NOTICES_MAX) of them.
    pub notices: Vec<Notice>,
    /// Notices that were not kept.
    pub notices_dropped: u64,
}

/// A column of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// The name; not unique.
    pub name: String,
    /// The type as SQL would write it, without a modifier: `int4`, `text[]`, `public.mood`.
    pub type_name: String,
    /// The type's object identifier in its database.
    pub type_oid: u32,
    /// From 1.
    pub position: u32,
    /// The table's column that is returned directly, if one is.
    pub origin: Option<Origin>,
    /// How values are rendered.
    pub shape: Shape,
}

/// The column of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The table's object identifier.
    pub table_oid: u32,
    /// The column's number in the table, from 1; negative for system columns.
    pub column: i16,
}

/// The limit that cut a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TruncatedBy {
    /// More rows than asked for.
    Rows,
    /// More bytes than allowed.
    Bytes,
    /// A single value longer than allowed.
    ValueBytes,
}

impl TruncatedBy {
    /// Returns the word used in results.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rows => "rows",
            Self::Bytes => "bytes",
            Self::ValueBytes => "value_bytes",
        }
    }
}

/// One value.
#[derive(Clone, PartialEq, Eq)]
pub enum Cell {
    /// SQL's NULL, and nothing else.
    Null,
    /// The server's text form.
    Text(String),
    /// Bytes that are not UTF-8, from a database that does not say how its text is encoded.
    Bytes(Vec<u8>),
    /// A value that was too long.
    Omitted {
        /// Its length.
        bytes: u64,
    },
}

impl Cell {
    /// Keeps the bytes of a value.
    pub(super) fn from_bytes(value: &[u8]) -> Self {
        match std::str::from_utf8(value) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => Self::Bytes(value.to_vec()),
        }
    }

    /// Returns the text, where the value is one.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Null | Self::Bytes(_) | Self::Omitted { .. } => None,
        }
    }
}

impl fmt::Debug for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("Null"),
            Self::Text(text) => write!(f, "Text({} bytes)", text.len()),
            Self::Bytes(bytes) => write!(f, "Bytes({} bytes)", bytes.len()),
            Self::Omitted { bytes } => write!(f, "Omitted({bytes} bytes)"),
        }
    }
}

/// Reads how many rows a command tag tells of: `INSERT 0 3`, `COPY 5`. A SELECT that returned rows affected none.
pub(super) fn affected(tag: &str, returns_rows: bool) -> Option<u64> {
    let (command, counts) = tag.split_once(' ')?;
    match command {
        "INSERT" | "UPDATE" | "DELETE" | "MERGE" | "COPY" => counts.rsplit(' ').next()?.parse().ok(),
        "SELECT" if !returns_rows => counts.parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_tags_tell_what_was_affected() {
        assert_eq!(affected("INSERT 0 3", false), Some(3));
        assert_eq!(affected("UPDATE 0", true), Some(0));
        assert_eq!(affected("COPY 12", false), Some(12));
        assert_eq!(affected("SELECT 7", false), Some(7), "CREATE TABLE AS");
        assert_eq!(affected("SELECT 7", true), None);
        assert_eq!(affected("FETCH 2", true), None);
        assert_eq!(affected("CREATE TABLE", false), None);
    }

    #[test]
    fn a_cells_value_is_not_printed() {
        assert_eq!(format!("{:?}", Cell::Text("hunter2".into())), "Text(7 bytes)");
    }
}
