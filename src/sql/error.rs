//! What can keep a text from being read.
//!
//! No error holds text of the caller's: positions and limits only. Syntax is not checked here; Postgres does that.

use crate::model::limits::{
    SQL_BYTES_MAX, SQL_COMMENT_DEPTH_MAX, SQL_OPERATOR_RUN_MAX, SQL_STATEMENTS_MAX, SQL_TOKENS_PER_STATEMENT_MAX,
};
use crate::model::{Code, Failure};

/// A place in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// Bytes before it.
    pub byte: usize,
    /// Its line, from 1.
    pub line: usize,
}

impl At {
    /// Finds the line of a byte.
    pub fn new(text: &str, byte: usize) -> Self {
        let before = text.as_bytes().get(..byte).unwrap_or(text.as_bytes());
        Self { byte, line: 1 + before.iter().filter(|b| **b == b'\n').count() }
    }
}

/// Why a text is refused before anything is made of it, in every mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SqlError {
    /// The text is too long.
    #[error("the SQL has {bytes} bytes, over the limit of {SQL_BYTES_MAX}")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// There are too many statements.
    #[error("the SQL has more than {SQL_STATEMENTS_MAX} statements")]
    Statements {
        /// The first one too many.
        at: At,
    },
    /// A statement is too long.
    #[error("the statement at line {} has more than {SQL_TOKENS_PER_STATEMENT_MAX} words and signs", .at.line)]
    Tokens {
        /// Where the statement starts.
        at: At,
    },
    /// Comments are nested too deep.
    #[error("comments at line {} are nested more than {SQL_COMMENT_DEPTH_MAX} deep", .at.line)]
    CommentDepth {
        /// The innermost comment read.
        at: At,
    },
    /// A run of operator characters is too long.
    #[error("the operator at line {} has more than {SQL_OPERATOR_RUN_MAX} characters", .at.line)]
    OperatorRun {
        /// Where it starts.
        at: At,
    },
    /// The text has a NUL, which no Postgres text can hold.
    #[error("the SQL has a NUL character at line {}", .at.line)]
    Nul {
        /// Where.
        at: At,
    },
    /// A control character stands outside strings and names.
    ///
    /// The vertical tab is among them: Postgres takes it for a blank from version 16 on, and not before.
    #[error("the SQL has control character 0x{code:02x} at line {}", .at.line)]
    ControlCharacter {
        /// Where.
        at: At,
        /// The character.
        code: u8,
    },
    /// A string, name or comment has no end.
    #[error("the {what} that starts at line {} has no end", .at.line)]
    Unterminated {
        /// What it is.
        what: &'static str,
        /// Where it starts.
        at: At,
    },
    /// A quoted name is empty.
    #[error("the quoted name at line {} is empty", .at.line)]
    EmptyName {
        /// Where.
        at: At,
    },
    /// A number or parameter runs into a name.
    #[error("the {after} at line {} runs into a name without a space", .at.line)]
    Junk {
        /// `number` or `parameter`.
        after: &'static str,
        /// Where it starts.
        at: At,
    },
    /// A command of psql stands where SQL should.
    #[error("line {} has {}, which is a command of psql and not SQL", .at.line, MetaName(.name))]
    MetaCommand {
        /// Its name, if it is a known one.
        name: Option<&'static str>,
        /// Where.
        at: At,
    },
}

impl SqlError {
    /// Returns where the text could not be read, unless it is the whole text.
    pub const fn at(&self) -> Option<At> {
        match self {
            Self::TooLong { .. } => None,
            Self::Statements { at }
            | Self::Tokens { at }
            | Self::CommentDepth { at }
            | Self::OperatorRun { at }
            | Self::Nul { at }
            | Self::ControlCharacter { at, .. }
            | Self::Unterminated { at, .. }
            | Self::EmptyName { at }
            | Self::Junk { at, .. }
            | Self::MetaCommand { at, .. } => Some(*at),
        }
    }

    /// Returns the code: what no Postgres reads either is a fault of the text, all else is over a limit of ours.
    const fn code(&self) -> Code {
        match self {
            Self::TooLong { .. }
            | Self::Statements { .. }
            | Self::Tokens { .. }
            | Self::CommentDepth { .. }
            | Self::OperatorRun { .. }
            | Self::Nul { .. } => Code::SqlTooComplex,
            Self::ControlCharacter { .. }
            | Self::Unterminated { .. }
            | Self::EmptyName { .. }
            | Self::Junk { .. }
            | Self::MetaCommand { .. } => Code::SyntaxError,
        }
    }

    const fn hint(&self) -> &'static str {
        match self {
            Self::TooLong { .. } | Self::Statements { .. } => "send it in several calls",
            Self::Tokens { .. } => "split the statement, or load rows with `COPY … FROM STDIN`",
            Self::CommentDepth { .. } => "remove the nested comments",
            Self::OperatorRun { .. } => "put spaces between operators",
            Self::Nul { .. } | Self::ControlCharacter { .. } => "remove the character",
            Self::Unterminated { .. } => "close it",
            Self::EmptyName { .. } => "name it",
            Self::Junk { .. } => "put a space between them",
            Self::MetaCommand { .. } => {
                "send SQL only; `\\restrict`, `\\unrestrict` and COPY data up to `\\.` are understood"
            }
        }
    }
}

impl From<SqlError> for Failure {
    fn from(error: SqlError) -> Self {
        Failure::new(error.code(), error.to_string()).hint(error.hint())
    }
}

struct MetaName<'a>(&'a Option<&'static str>);

impl std::fmt::Display for MetaName<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(name) => write!(f, "`\\{name}`"),
            None => f.write_str("a backslash"),
        }
    }
}
