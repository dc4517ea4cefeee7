//! Cuts SQL into tokens exactly where Postgres cuts it, after `scan.l` of Postgres 15 to 18.
//!
//! Tokens tile the text without gap or overlap. Work is linear in the text, whatever the text. The session's
//! `standard_conforming_strings = on` and `backslash_quote = safe_encoding` are taken for granted; the engine pins
//! them. What Postgres' own scanner would reject or take long over is an error here. Nothing is unescaped or
//! looked up: what a token means is for others to say.

use std::ops::Range;

use super::error::{At, SqlError};
use crate::model::limits::{SQL_COMMENT_DEPTH_MAX, SQL_OPERATOR_RUN_MAX};

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenKind {
    /// Blanks and line breaks.
    Space,
    /// `-- …` up to the line break, or `/* … */`.
    Comment,
    /// A keyword or an unquoted name.
    Word,
    /// `"…"`.
    QuotedName,
    /// `U&"…"`, whose name is only known after its escapes are read.
    UnicodeName,
    /// Any string constant, with its prefix and its continuation lines: `'…'`, `E'…'`, `B'…'`, `X'…'`, `N'…'`.
    String,
    /// `U&'…'`.
    UnicodeString,
    /// `$tag$…$tag$`.
    DollarString,
    /// A numeric constant.
    Number,
    /// `$1`.
    Parameter,
    /// One operator, `=` and `*` included.
    Operator,
    /// `(`.
    OpenParen,
    /// `)`.
    CloseParen,
    /// `[`.
    OpenBracket,
    /// `]`.
    CloseBracket,
    /// `,`.
    Comma,
    /// `;`.
    Semicolon,
    /// `.`.
    Dot,
    /// `..`.
    DotDot,
    /// `:`.
    Colon,
    /// `::`.
    Cast,
    /// `:=`.
    Assign,
    /// `=>`.
    Arrow,
    /// `\`, which no statement has outside its strings and names.
    Backslash,
    /// A character that is part of no statement: `{`, `}`, a lone `$`.
    Other,
}

impl TokenKind {
    /// Returns whether the token is a literal or stands for one.
    pub const fn is_value(self) -> bool {
        matches!(self, Self::String | Self::UnicodeString | Self::DollarString | Self::Number | Self::Parameter)
    }
}

/// A token: its kind and its bytes in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// What it is.
    pub kind: TokenKind,
    /// Where it starts, in bytes.
    pub start: usize,
    /// Where it ends, in bytes.
    pub end: usize,
}

impl Token {
    /// Returns the token's bytes in the text.
    pub const fn range(&self) -> Range<usize> {
        self.start..self.end
    }
}

/// Cuts a whole text into tokens.
pub fn tokens(text: &str) -> Result<Vec<Token>, SqlError> {
    let mut scanner = Scanner::new(text)?;
    let mut all = Vec::new();
    while let Some(token) = scanner.next_token()? {
        all.push(token);
    }
    Ok(all)
}

/// Reads a text from left to right, one token at a time.
#[derive(Debug)]
pub struct Scanner<'a> {
    text: &'a str,
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Scanner<'a> {
    /// Starts at the text's first byte. A text with a NUL, which no server can be sent, is refused as a whole.
    pub fn new(text: &'a str) -> Result<Self, SqlError> {
        match text.find('\0') {
            Some(byte) => Err(SqlError::Nul { at: At::new(text, byte) }),
            None => Ok(Self { text, bytes: text.as_bytes(), position: 0 }),
        }
    }

    /// Returns where the next token starts.
    pub const fn position(&self) -> usize {
        self.position
    }

    /// Goes on from `position`, which must not be inside a token that has not been read.
    pub(super) const fn jump_to(&mut self, position: usize) {
        self.position = position;
    }

    /// Returns the next token, `None` at the end of the text.
    pub fn next_token(&mut self) -> Result<Option<Token>, SqlError> {
        use TokenKind as K;
        let start = self.position;
        let Some(first) = self.at(start) else { return Ok(None) };
        let second = self.at(start + 1).unwrap_or(0);
        let (kind, end) = match first {
            b' ' | b'\t' | b'\n' | b'\r' | 0x0c => (K::Space, self.while_at(start + 1, is_space)),
            b'-' if second == b'-' => (K::Comment, self.line_comment(start)),
            b'/' if second == b'*' => (K::Comment, self.block_comment(start)?),
            b'\'' => (K::String, self.string(start, start + 1, Escapes::Doubled)?),
            b'e' | b'E' if second == b'\'' => (K::String, self.string(start, start + 2, Escapes::Backslash)?),
            b'b' | b'B' | b'x' | b'X' if second == b'\'' => (K::String, self.string(start, start + 2, Escapes::None)?),
            b'n' | b'N' if second == b'\'' => (K::String, self.string(start, start + 2, Escapes::Doubled)?),
            b'u' | b'U' if second == b'&' && self.at(start + 2) == Some(b'\'') => {
                (K::UnicodeString, self.string(start, start + 3, Escapes::Doubled)?)
            }
            b'u' | b'U' if second == b'&' && self.at(start + 2) == Some(b'"') => {
                (K::UnicodeName, self.quoted_name(start, start + 3)?)
            }
            b'"' => (K::QuotedName, self.quoted_name(start, start + 1)?),
            _ if is_name_start(first) => (K::Word, self.while_at(start + 1, is_name_part)),
            b'$' => self.dollar(start, second)?,
            b'0'..=b'9' => (K::Number, self.number(start)?),
            b'.' if second.is_ascii_digit() => (K::Number, self.number(start)?),
            b'.' if second == b'.' => (K::DotDot, start + 2),
            b'.' => (K::Dot, start + 1),
            b':' if second == b':' => (K::Cast, start + 2),
            b':' if second == b'=' => (K::Assign, start + 2),
            b':' => (K::Colon, start + 1),
            b'(' => (K::OpenParen, start + 1),
            b')' => (K::CloseParen, start + 1),
            b'[' => (K::OpenBracket, start + 1),
            b']' => (K::CloseBracket, start + 1),
            b',' => (K::Comma, start + 1),
            b';' => (K::Semicolon, start + 1),
            b'\\' => (K::Backslash, start + 1),
            _ if is_operator_part(first) => self.operator(start)?,
            0..=0x1f | 0x7f => return Err(SqlError::ControlCharacter { at: self.place(start), code: first }),
            _ => (K::Other, start + 1),
        };
        self.position = end;
        Ok(Some(Token { kind, start, end }))
    }

    fn at(&self, index: usize) -> Option<u8> {
        self.bytes.get(index).copied()
    }

    fn while_at(&self, mut index: usize, holds: impl Fn(u8) -> bool) -> usize {
        while self.at(index).is_some_and(&holds) {
            index += 1;
        }
        index
    }

    fn place(&self, byte: usize) -> At {
        At::new(self.text, byte)
    }

    fn unterminated(&self, what: &'static str, start: usize) -> SqlError {
        SqlError::Unterminated { what, at: self.place(start) }
    }

    fn line_comment(&self, start: usize) -> usize {
        self.while_at(start + 2, |b| b != b'\n' && b != b'\r')
    }

    fn block_comment(&self, start: usize) -> Result<usize, SqlError> {
        let mut depth = 1_usize;
        let mut index = start + 2;
        while let Some(byte) = self.at(index) {
            match (byte, self.at(index + 1)) {
                (b'*', Some(b'/')) => {
                    depth -= 1;
                    index += 2;
                    if depth == 0 {
                        return Ok(index);
                    }
                }
                (b'/', Some(b'*')) => {
                    depth += 1;
                    if depth > SQL_COMMENT_DEPTH_MAX {
                        return Err(SqlError::CommentDepth { at: self.place(index) });
                    }
                    index += 2;
                }
                _ => index += 1,
            }
        }
        Err(self.unterminated("comment", start))
    }

    /// Reads to the end of a string constant whose body starts at `body`, continuation lines included.
    fn string(&self, start: usize, body: usize, escapes: Escapes) -> Result<usize, SqlError> {
        let mut index = body;
        loop {
            match self.at(index) {
                None => return Err(self.unterminated("string", start)),
                Some(b'\'') if escapes != Escapes::None && self.at(index + 1) == Some(b'\'') => index += 2,
                Some(b'\'') => match self.continuation(index + 1) {
                    Some(next_body) => index = next_body,
                    None => return Ok(index + 1),
                },
                Some(b'\\') if escapes == Escapes::Backslash => index += 2,
                Some(_) => index += 1,
            }
        }
    }

    /// Returns where the string goes on, if blanks or `--` comments with a line break and a quote follow.
    fn continuation(&self, after_quote: usize) -> Option<usize> {
        let mut index = after_quote;
        let mut line_break = false;
        loop {
            match self.at(index)? {
                b'\n' | b'\r' => {
                    line_break = true;
                    index += 1;
                }
                b' ' | b'\t' | 0x0c => index += 1,
                b'-' if self.at(index + 1) == Some(b'-') => index = self.line_comment(index),
                b'\'' if line_break => return Some(index + 1),
                _ => return None,
            }
        }
    }

    fn quoted_name(&self, start: usize, body: usize) -> Result<usize, SqlError> {
        let mut index = body;
        loop {
            match self.at(index) {
                None => return Err(self.unterminated("quoted name", start)),
                Some(b'"') if self.at(index + 1) == Some(b'"') => index += 2,
                Some(b'"') if index == body => return Err(SqlError::EmptyName { at: self.place(start) }),
                Some(b'"') => return Ok(index + 1),
                Some(_) => index += 1,
            }
        }
    }

    /// Reads what a `$` begins: a parameter, a quoted string, or nothing.
    fn dollar(&self, start: usize, second: u8) -> Result<(TokenKind, usize), SqlError> {
        if second.is_ascii_digit() {
            let end = self.while_at(start + 1, |b| b.is_ascii_digit());
            if self.at(end).is_some_and(is_name_start) {
                return Err(SqlError::Junk { after: "parameter", at: self.place(start) });
            }
            return Ok((TokenKind::Parameter, end));
        }
        let tag_end = match is_name_start(second) {
            true => self.while_at(start + 2, |b| is_name_start(b) || b.is_ascii_digit()),
            false => start + 1,
        };
        if self.at(tag_end) != Some(b'$') {
            return Ok((TokenKind::Other, start + 1));
        }
        let body = tag_end + 1;
        let delimiter = self.bytes.get(start..body).unwrap_or_default();
        // Linear: no tag contains a `$`, so comparisons at two `$` never read the same bytes.
        let mut index = body;
        loop {
            match self.at(index) {
                None => return Err(self.unterminated("dollar-quoted string", start)),
                Some(b'$') if self.bytes.get(index..).is_some_and(|rest| rest.starts_with(delimiter)) => {
                    return Ok((TokenKind::DollarString, index + delimiter.len()));
                }
                Some(_) => index += 1,
            }
        }
    }

    fn number(&self, start: usize) -> Result<usize, SqlError> {
        let junk = || SqlError::Junk { after: "number", at: self.place(start) };
        let radix: Option<fn(&u8) -> bool> = match (self.at(start), self.at(start + 1)) {
            (Some(b'0'), Some(b'x' | b'X')) => Some(u8::is_ascii_hexdigit),
            (Some(b'0'), Some(b'o' | b'O')) => Some(|b| matches!(b, b'0'..=b'7')),
            (Some(b'0'), Some(b'b' | b'B')) => Some(|b| matches!(b, b'0' | b'1')),
            _ => None,
        };
        if let Some(is_digit) = radix {
            let end = self.digits(start + 2, is_digit, true);
            // A `$` too: Postgres' longest match is then a number with a name stuck to it.
            if end == start + 2 || self.at(end).is_some_and(is_name_part) {
                return Err(junk());
            }
            return Ok(end);
        }
        let mut end = self.digits(start, u8::is_ascii_digit, false);
        if self.at(end) == Some(b'.') && (end == start || self.at(end + 1) != Some(b'.')) {
            end = self.digits(end + 1, u8::is_ascii_digit, false);
        }
        if matches!(self.at(end), Some(b'e' | b'E')) {
            let sign = usize::from(matches!(self.at(end + 1), Some(b'+' | b'-')));
            let exponent = end + 1 + sign;
            let exponent_end = self.digits(exponent, u8::is_ascii_digit, false);
            if exponent_end == exponent {
                return Err(junk());
            }
            end = exponent_end;
        }
        if self.at(end).is_some_and(is_name_start) {
            return Err(junk());
        }
        Ok(end)
    }

    /// Reads digits with single `_` between them, and before the first if `leading` says so.
    fn digits(&self, mut index: usize, is_digit: fn(&u8) -> bool, leading: bool) -> usize {
        let from = index;
        loop {
            let underscore = usize::from((index > from || leading) && self.at(index) == Some(b'_'));
            match self.at(index + underscore) {
                Some(byte) if is_digit(&byte) => index += underscore + 1,
                _ => return index,
            }
        }
    }

    fn operator(&self, start: usize) -> Result<(TokenKind, usize), SqlError> {
        let mut run_end = start;
        while let Some(byte) = self.at(run_end).filter(|b| is_operator_part(*b)) {
            if matches!((byte, self.at(run_end + 1)), (b'-', Some(b'-')) | (b'/', Some(b'*'))) {
                break;
            }
            run_end += 1;
            if run_end - start > SQL_OPERATOR_RUN_MAX {
                return Err(SqlError::OperatorRun { at: self.place(start) });
            }
        }
        let run = self.bytes.get(start..run_end).unwrap_or_default();
        let mut length = run.len();
        if let [head @ .., b'+' | b'-'] = run
            && !head.iter().any(|b| b"~!@#^&|`?%".contains(b))
        {
            while length > 1 && matches!(run.get(length - 1), Some(b'+' | b'-')) {
                length -= 1;
            }
        }
        let kind = if run.get(..length) == Some(b"=>") { TokenKind::Arrow } else { TokenKind::Operator };
        Ok((kind, start + length))
    }
}

/// How a quote is written inside a string.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Escapes {
    /// Not at all: bits and bytes.
    None,
    /// Twice.
    Doubled,
    /// Twice, or after a backslash.
    Backslash,
}

const fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0c)
}

const fn is_name_start(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_' || byte >= 0x80
}

const fn is_name_part(byte: u8) -> bool {
    is_name_start(byte) || byte.is_ascii_digit() || byte == b'$'
}

const fn is_operator_part(byte: u8) -> bool {
    matches!(
        byte,
        b'~' | b'!'
            | b'@'
            | b'#'
            | b'^'
            | b'&'
            | b'|'
            | b'`'
            | b'?'
            | b'+'
            | b'-'
            | b'*'
            | b'/'
            | b'%'
            | b'<'
            | b'>'
            | b'='
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows the tokens of a text, blanks and comments too, as `Kind:text`.
    fn check(text: &str, expected: &[(TokenKind, &str)]) {
        let tokens = tokens(text).unwrap();
        let got: Vec<_> = tokens.iter().map(|t| (t.kind, &text[t.range()])).collect();
        assert_eq!(got, expected, "{text:?}");
    }

    /// Shows only the texts of tokens that are neither blank nor comment.
    fn texts(text: &str) -> Vec<&str> {
        let keep = |t: &Token| !matches!(t.kind, TokenKind::Space | TokenKind::Comment);
        tokens(text).unwrap().into_iter().filter(keep).map(|t| &text[t.range()]).collect()
    }

    fn error(text: &str) -> SqlError {
        tokens(text).unwrap_err()
    }

    use TokenKind as K;

    #[test]
    fn operators_end_where_a_comment_starts() {
        check(
            "3>-- x\n2",
            &[(K::Number, "3"), (K::Operator, ">"), (K::Comment, "-- x"), (K::Space, "\n"), (K::Number, "2")],
        );
        check("4-/* ' */2", &[(K::Number, "4"), (K::Operator, "-"), (K::Comment, "/* ' */"), (K::Number, "2")]);
        check("a@/*c*/b", &[(K::Word, "a"), (K::Operator, "@"), (K::Comment, "/*c*/"), (K::Word, "b")]);
    }

    #[test]
    fn a_trailing_sign_belongs_to_the_operator_only_after_a_special_character() {
        assert_eq!(texts("3>=-1"), ["3", ">=", "-", "1"]);
        assert_eq!(texts("1*-+-2"), ["1", "*", "-", "+", "-", "2"]);
        assert_eq!(texts("a@-b"), ["a", "@-", "b"]);
        assert_eq!(texts("a#-b"), ["a", "#-", "b"]);
        assert_eq!(texts("1+-2"), ["1", "+", "-", "2"]);
        assert_eq!(texts("x=>-1"), ["x", "=>", "-", "1"]);
    }

    #[test]
    fn block_comments_nest_and_line_comments_end_at_either_line_break() {
        assert_eq!(texts("1/* a /* b */ c */2"), ["1", "2"]);
        assert_eq!(texts("1/*/ */2"), ["1", "2"]);
        assert_eq!(texts("1/***/2"), ["1", "2"]);
        assert_eq!(texts("1--x\r2"), ["1", "2"]);
        assert_eq!(texts("1--x\n2"), ["1", "2"]);
    }

    #[test]
    fn strings_double_quotes_and_only_e_strings_take_backslashes() {
        assert_eq!(texts(r"'a''b'"), [r"'a''b'"]);
        assert_eq!(texts(r"N'a''b' E'a''b' U&'a''b'"), [r"N'a''b'", r"E'a''b'", r"U&'a''b'"]);
        assert_eq!(texts(r"B'1''0' X'1''f'"), ["B'1'", "'0'", "X'1'", "'f'"], "bits and bytes have no quotes in them");
        assert_eq!(texts(r"'a\' 1"), [r"'a\'", "1"]);
        assert_eq!(texts(r"E'a\' 1'"), [r"E'a\' 1'"]);
        assert_eq!(texts(r"e'\\' 1"), [r"e'\\'", "1"]);
        assert_eq!(texts(r"B'a\' X'b\' N'c\' U&'d\'"), [r"B'a\'", r"X'b\'", r"N'c\'", r"U&'d\'"]);
        assert_eq!(texts("u& 'x'"), ["u", "&", "'x'"]);
        assert_eq!(texts("type'x'"), ["type", "'x'"], "a prefix is one letter");
    }

    #[test]
    fn strings_go_on_over_line_breaks_in_their_own_mode() {
        assert_eq!(texts("'a'\n'b'"), ["'a'\n'b'"]);
        assert_eq!(texts("'a' 'b'"), ["'a'", "'b'"]);
        assert_eq!(texts("'a' -- c\n  'b'"), ["'a' -- c\n  'b'"]);
        assert_eq!(texts("'a' /* c */\n'b'"), ["'a'", "'b'"]);
        assert_eq!(texts("E'a'\n'\\'b' 1"), ["E'a'\n'\\'b'", "1"]);
        assert_eq!(texts("'a'\n'\\' 1"), ["'a'\n'\\'", "1"]);
        assert_eq!(texts("$$a$$\n'b'"), ["$$a$$", "'b'"]);
    }

    #[test]
    fn dollar_quotes_have_tags_of_letters_digits_and_high_bytes() {
        assert_eq!(texts("$$a'b$$"), ["$$a'b$$"]);
        assert_eq!(texts("$t_1$ $$ $t$ $t_1$"), ["$t_1$ $$ $t$ $t_1$"]);
        assert_eq!(texts("$€$; ' $€$"), ["$€$; ' $€$"]);
        assert_eq!(texts("a$$ b$$"), ["a$$", "b$$"], "never inside a name");
        assert_eq!(texts("$$$a$$"), ["$$$a$$"]);
        assert_eq!(texts("$1$$a$$"), ["$1", "$$a$$"]);
        check("$a b", &[(K::Other, "$"), (K::Word, "a"), (K::Space, " "), (K::Word, "b")]);
    }

    #[test]
    fn numbers_are_cut_as_postgres_cuts_them() {
        assert_eq!(
            texts("0.5e3 .5 5. 1e-2 1..10 0x1F 1_000"),
            ["0.5e3", ".5", "5.", "1e-2", "1", "..", "10", "0x1F", "1_000"]
        );
        for text in ["1a", "5.into", "1e", "1e+", "0x", "0x1F$$a$$", "1_", "0b2", "$1a", "$1é"] {
            assert!(matches!(error(text), SqlError::Junk { .. }), "{text}");
        }
    }

    #[test]
    fn names_keep_their_quotes_and_may_not_be_empty() {
        check("\"a\"\"b\"", &[(K::QuotedName, "\"a\"\"b\"")]);
        check("U&\"a\\0061\"", &[(K::UnicodeName, "U&\"a\\0061\"")]);
        check("größe$1", &[(K::Word, "größe$1")]);
        assert!(matches!(error("\"\""), SqlError::EmptyName { .. }));
        assert!(matches!(error("U&\"\""), SqlError::EmptyName { .. }));
    }

    #[test]
    fn what_has_no_end_is_an_error_with_its_start() {
        for (text, what) in [
            ("'a", "string"),
            ("E'a\\", "string"),
            ("\"a", "quoted name"),
            ("$$a", "dollar-quoted string"),
            ("/* /* */", "comment"),
        ] {
            let SqlError::Unterminated { what: got, at } = error(&format!("\n {text}")) else { panic!("{text}") };
            assert_eq!((got, at), (what, At { byte: 2, line: 2 }));
        }
    }

    #[test]
    fn control_characters_are_refused_wherever_postgres_might_disagree() {
        assert!(matches!(error("SELECT\u{b}1"), SqlError::ControlCharacter { code: 0x0b, .. }));
        assert!(matches!(error("\u{1}"), SqlError::ControlCharacter { code: 1, .. }));
        for text in ["\0", "'a\0'", "E'\\\0'", "\"a\0\"", "$$\0$$", "--\0", "/*\0*/"] {
            assert!(matches!(error(text), SqlError::Nul { .. }), "{text:?}");
        }
    }

    #[test]
    fn comments_and_operators_are_limited() {
        let nested = |depth: usize| format!("{}{}", "/*".repeat(depth), "*/".repeat(depth));
        assert!(tokens(&nested(SQL_COMMENT_DEPTH_MAX)).is_ok());
        assert!(matches!(error(&nested(SQL_COMMENT_DEPTH_MAX + 1)), SqlError::CommentDepth { .. }));
        assert!(tokens(&"@".repeat(SQL_OPERATOR_RUN_MAX)).is_ok());
        assert!(matches!(error(&"@".repeat(SQL_OPERATOR_RUN_MAX + 1)), SqlError::OperatorRun { .. }));
        assert!(matches!(error(&"+".repeat(SQL_OPERATOR_RUN_MAX + 1)), SqlError::OperatorRun { .. }));
    }
}
