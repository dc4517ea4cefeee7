//! Finds where statements begin and end, and what between them is psql's and not the server's.
//!
//! A statement ends at a `;` outside parentheses, or at the end of the text; the body of a routine between
//! `BEGIN ATOMIC` and `END` is part of its statement. `\restrict` and `\unrestrict` lines are stepped over; lines
//! after `COPY … FROM STDIN;` up to `\.` are that statement's data and are never read as SQL. Nothing is classified
//! here.

use std::ops::Range;

use super::error::{At, SqlError};
use super::scanner::{Scanner, Token, TokenKind};
use super::words::Words;
use crate::model::limits::SQL_TOKENS_PER_STATEMENT_MAX;

/// A statement as it is cut out of its text.
#[derive(Debug)]
pub(super) struct Piece {
    /// From the first to the last token that is no blank and no comment.
    pub(super) text: Range<usize>,
    /// Whether a comment in it can change the order in which people read it.
    pub(super) misleading_comment: bool,
}

/// Cuts one text into statements, from left to right.
#[derive(Debug)]
pub(super) struct Splitter<'a> {
    text: &'a str,
    scanner: Scanner<'a>,
    /// Set once no line `\.` is left, so that a text is searched for one only once.
    no_more_data_ends: bool,
}

impl<'a> Splitter<'a> {
    /// Starts at the beginning of `text`, after a byte order mark.
    pub(super) fn new(text: &'a str) -> Result<Self, SqlError> {
        let mut scanner = Scanner::new(text)?;
        if text.starts_with(BYTE_ORDER_MARK) {
            scanner.jump_to(BYTE_ORDER_MARK.len_utf8());
        }
        Ok(Self { text, scanner, no_more_data_ends: false })
    }

    /// Reads the next statement and leaves its tokens, without blanks and comments, in `tokens`.
    ///
    /// Returns `None` at the end; a statement of nothing but comments is stepped over.
    pub(super) fn next_piece(&mut self, tokens: &mut Vec<Token>) -> Result<Option<Piece>, SqlError> {
        tokens.clear();
        let mut nesting = Nesting::default();
        let mut misleading_comment = false;
        while let Some(token) = self.scanner.next_token()? {
            if token.kind == TokenKind::Space {
                continue;
            }
            if token.kind == TokenKind::Comment {
                misleading_comment |= self.slice(token.range()).chars().any(turns_text);
                continue;
            }
            if token.kind == TokenKind::Backslash {
                self.meta_command(token.start, tokens.is_empty())?;
                continue;
            }
            if token.kind == TokenKind::Semicolon && nesting.is_outside() {
                if let Some(piece) = piece(tokens, misleading_comment) {
                    return Ok(Some(piece));
                }
                misleading_comment = false;
                continue;
            }
            tokens.push(token);
            if tokens.len() > SQL_TOKENS_PER_STATEMENT_MAX {
                let start = tokens.first().map_or(0, |t| t.start);
                return Err(SqlError::Tokens { at: At::new(self.text, start) });
            }
            nesting.add(self.text, tokens);
        }
        Ok(piece(tokens, misleading_comment))
    }

    /// Takes the data of the `COPY … FROM STDIN` that was just read, if lines up to `\.` follow it.
    pub(super) fn take_copy_data(&mut self) -> Option<Range<usize>> {
        if self.no_more_data_ends {
            return None;
        }
        let rest = self.text.get(self.scanner.position()..)?;
        let line = rest.trim_start_matches([' ', '\t', '\r']).strip_prefix('\n')?;
        let start = self.text.len() - line.len();
        let mut line = start;
        while let Some(rest) = self.text.get(line..).filter(|rest| !rest.is_empty()) {
            let length = rest.find('\n').map_or(rest.len(), |n| n + 1);
            let content = rest.get(..length)?.trim_end_matches(['\n', '\r']);
            if content == COPY_DATA_END {
                self.scanner.jump_to(line + length);
                return Some(start..line);
            }
            line += length;
        }
        self.no_more_data_ends = true;
        None
    }

    /// Steps over a line that the server need not see, or refuses it.
    fn meta_command(&mut self, backslash: usize, at_statement_start: bool) -> Result<(), SqlError> {
        let after = self.slice(backslash + 1..self.text.len());
        let word_end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(after.len());
        let word = after.get(..word_end).unwrap_or_default();
        if at_statement_start && SKIPPED_COMMANDS.contains(&word) {
            let line = after.find(['\n', '\r']).unwrap_or(after.len());
            self.scanner.jump_to(backslash + 1 + line);
            return Ok(());
        }
        // Only known names are repeated: what follows a stray backslash may be part of a secret.
        let known = |name: &&&str| **name == word || (word.is_empty() && after.starts_with(**name));
        let name = META_COMMANDS.iter().find(known).copied();
        Err(SqlError::MetaCommand { name, at: At::new(self.text, backslash) })
    }

    fn slice(&self, range: Range<usize>) -> &'a str {
        self.text.get(range).unwrap_or_default()
    }
}

const BYTE_ORDER_MARK: char = '\u{feff}';
const COPY_DATA_END: &str = "\\.";
/// pg_dump brackets its output with these; they only tell psql to refuse other commands.
const SKIPPED_COMMANDS: [&str; 2] = ["restrict", "unrestrict"];
/// Commands of psql that errors may name; `restrict` is among them for where it is not at a statement's start.
const META_COMMANDS: &[&str] = &[
    "a",
    "bind",
    "c",
    "cd",
    "connect",
    "conninfo",
    "copy",
    "copyright",
    "crosstabview",
    "d",
    "da",
    "db",
    "dconfig",
    "dd",
    "df",
    "di",
    "dn",
    "do",
    "dp",
    "drds",
    "ds",
    "dt",
    "du",
    "dv",
    "dx",
    "e",
    "echo",
    "ef",
    "elif",
    "else",
    "encoding",
    "endif",
    "errverbose",
    "ev",
    "f",
    "g",
    "gdesc",
    "getenv",
    "gexec",
    "gset",
    "gx",
    "h",
    "html",
    "i",
    "if",
    "ir",
    "include",
    "include_relative",
    "l",
    "list",
    "lo_export",
    "lo_import",
    "lo_list",
    "lo_unlink",
    "o",
    "out",
    "p",
    "parse",
    "password",
    "print",
    "prompt",
    "pset",
    "q",
    "qecho",
    "quit",
    "r",
    "reset",
    "restrict",
    "s",
    "set",
    "setenv",
    "sf",
    "sv",
    "t",
    "timing",
    "unrestrict",
    "unset",
    "w",
    "warn",
    "watch",
    "write",
    "x",
    "z",
    ".",
    "!",
    "?",
    "\\",
    ";",
];

fn piece(tokens: &[Token], misleading_comment: bool) -> Option<Piece> {
    let (first, last) = (tokens.first()?, tokens.last()?);
    Some(Piece { text: first.start..last.end, misleading_comment })
}

/// What is open at a token: parentheses, and routine bodies.
#[derive(Debug, Default)]
struct Nesting {
    parens: usize,
    /// Depth of `BEGIN ATOMIC`.
    bodies: usize,
    /// First token of the innermost statement.
    statement: usize,
}

impl Nesting {
    const fn is_outside(&self) -> bool {
        self.parens == 0 && self.bodies == 0
    }

    /// Takes the last token of `tokens` into account.
    ///
    /// Within a body every statement ends with `;`, and `END` can begin none: an `END` right after `;` or
    /// `ATOMIC` closes the body, and no other does, be it of a CASE or a label.
    fn add(&mut self, text: &str, tokens: &[Token]) {
        let last = tokens.len() - 1;
        match tokens.last().map(|t| t.kind) {
            Some(TokenKind::OpenParen) => self.parens += 1,
            Some(TokenKind::CloseParen) => self.parens = self.parens.saturating_sub(1),
            Some(TokenKind::Semicolon) if self.parens == 0 => self.statement = last + 1,
            Some(TokenKind::Word) if self.parens == 0 => {
                let words = Words::new(text, tokens);
                if last > 0 && words.is(last, "ATOMIC") && words.is(last - 1, "BEGIN") && self.in_routine(&words) {
                    self.bodies += 1;
                    self.statement = last + 1;
                } else if self.bodies > 0 && last == self.statement && words.is(last, "END") {
                    self.bodies -= 1;
                }
            }
            _ => {}
        }
    }

    fn in_routine(&self, words: &Words<'_>) -> bool {
        let first = self.statement;
        let kind = if words.are(first + 1, &["OR", "REPLACE"]) { first + 3 } else { first + 1 };
        words.is(first, "CREATE") && words.is_any(kind, &["FUNCTION", "PROCEDURE"])
    }
}

/// Returns whether a character changes the direction in which text is shown.
pub(super) const fn turns_text(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{61c}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> Vec<&str> {
        let mut splitter = Splitter::new(text).unwrap();
        let mut tokens = Vec::new();
        let mut pieces = Vec::new();
        while let Some(piece) = splitter.next_piece(&mut tokens).unwrap() {
            pieces.push(&text[piece.text]);
        }
        pieces
    }

    #[test]
    fn statements_end_at_semicolons_outside_parentheses() {
        assert_eq!(split("a; b ;; -- c\n;d"), ["a", "b", "d"]);
        assert_eq!(
            split("CREATE RULE r AS ON INSERT TO t DO (a; b); c"),
            ["CREATE RULE r AS ON INSERT TO t DO (a; b)", "c"]
        );
        assert_eq!(split("a); b"), ["a)", "b"]);
        assert_eq!(split("a (; b"), ["a (; b"]);
        assert_eq!(split("/* x */ -- y"), [""; 0]);
        assert_eq!(split("\u{feff}a;b"), ["a", "b"], "a byte order mark is no name");
    }

    #[test]
    fn routine_bodies_are_part_of_their_statement() {
        let bodies = [
            "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; SELECT 2; END",
            "CREATE OR REPLACE PROCEDURE f() BEGIN ATOMIC END",
            "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT CASE WHEN true THEN 1 END; SELECT 1 case; END",
            "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1 end; END",
            "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT * FROM begin atomic; END",
            "create function f() begin atomic create function g() begin atomic select 1; end; select 2; end",
        ];
        for body in bodies {
            assert_eq!(split(&format!("{body}; DROP TABLE t")), [body, "DROP TABLE t"]);
        }
        assert_eq!(split("BEGIN ATOMIC; SELECT 1; END"), ["BEGIN ATOMIC", "SELECT 1", "END"], "no routine");
        assert_eq!(split("CREATE FUNCTION f(begin atomic); SELECT 1").len(), 2, "a parameter's name and type");
        assert_eq!(split("CREATE TABLE t BEGIN ATOMIC; SELECT 1").len(), 2);
    }

    #[test]
    fn meta_commands_are_stepped_over_or_refused_by_name() {
        assert_eq!(split("\\restrict abc\nSELECT 1;\n\\unrestrict abc\n"), ["SELECT 1"]);
        let refused = |text: &str| match Splitter::new(text).unwrap().next_piece(&mut Vec::new()) {
            Err(SqlError::MetaCommand { name, .. }) => name,
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(refused("\\connect db"), Some("connect"));
        assert_eq!(refused("\\."), Some("."));
        assert_eq!(refused("SELECT 1 \\g"), Some("g"));
        assert_eq!(refused("SELECT 1 \\restrict x"), Some("restrict"), "only where a statement may start");
        assert_eq!(refused("\\hunter2"), None, "an unknown word may be a secret");
        assert_eq!(split("SELECT '\\connect'"), ["SELECT '\\connect'"]);
    }

    fn copy_data(text: &str) -> (Option<&str>, Vec<&str>) {
        let mut splitter = Splitter::new(text).unwrap();
        splitter.next_piece(&mut Vec::new()).unwrap();
        let data = splitter.take_copy_data().map(|range| &text[range]);
        let mut rest = Vec::new();
        while let Some(piece) = splitter.next_piece(&mut Vec::new()).unwrap() {
            rest.push(&text[piece.text]);
        }
        (data, rest)
    }

    #[test]
    fn copy_data_ends_at_its_own_line_and_is_no_sql() {
        assert_eq!(copy_data("COPY t FROM STDIN;\n1\t'\n\\.\nSELECT 1"), (Some("1\t'\n"), vec!["SELECT 1"]));
        assert_eq!(copy_data("COPY t FROM STDIN; \r\n1\r\n\\.\r\nb"), (Some("1\r\n"), vec!["b"]));
        assert_eq!(copy_data("COPY t FROM STDIN;\n\\."), (Some(""), vec![]));
        assert_eq!(copy_data("COPY t FROM STDIN;\n\\.x\n\\.\n"), (Some("\\.x\n"), vec![]));
        assert_eq!(
            copy_data("COPY t FROM STDIN;\nDROP TABLE t;"),
            (None, vec!["DROP TABLE t"]),
            "without an end it is SQL"
        );
        assert_eq!(copy_data("COPY t FROM STDIN; SELECT 1;\n"), (None, vec!["SELECT 1"]));
    }
}
