//! One statement's tokens without blanks and comments, and the questions asked of them.
//!
//! Keywords are ASCII and fold as ASCII; a quoted name is never a keyword, whatever its text.

use std::borrow::Cow;
use std::ops::Range;

use super::scanner::{Token, TokenKind};

/// The longest name in bytes; Postgres cuts longer ones.
const NAME_BYTES_MAX: usize = 63;

/// A statement, or part of one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words<'a> {
    text: &'a str,
    tokens: &'a [Token],
}

impl<'a> Words<'a> {
    pub(super) const fn new(text: &'a str, tokens: &'a [Token]) -> Self {
        Self { text, tokens }
    }

    pub(super) const fn len(&self) -> usize {
        self.tokens.len()
    }

    pub(super) const fn tokens(&self) -> &'a [Token] {
        self.tokens
    }

    /// Returns the part in `range`, cut to what there is.
    pub(super) fn part(&self, range: Range<usize>) -> Self {
        let end = range.end.min(self.tokens.len());
        Self { text: self.text, tokens: self.tokens.get(range.start.min(end)..end).unwrap_or_default() }
    }

    pub(super) fn from(&self, start: usize) -> Self {
        self.part(start..self.tokens.len())
    }

    pub(super) fn kind(&self, index: usize) -> Option<TokenKind> {
        self.tokens.get(index).map(|t| t.kind)
    }

    pub(super) fn has(&self, index: usize, kind: TokenKind) -> bool {
        self.kind(index) == Some(kind)
    }

    /// Returns the token's text, empty past the end.
    pub(super) fn text(&self, index: usize) -> &'a str {
        self.tokens.get(index).and_then(|t| self.text.get(t.range())).unwrap_or_default()
    }

    /// Returns the unquoted word at `index`, empty if there is none.
    pub(super) fn word(&self, index: usize) -> &'a str {
        if self.has(index, TokenKind::Word) { self.text(index) } else { "" }
    }

    /// Returns whether the unquoted word `keyword` stands at `index`.
    pub(super) fn is(&self, index: usize, keyword: &str) -> bool {
        self.word(index).eq_ignore_ascii_case(keyword)
    }

    /// Returns whether one of `keywords` stands at `index`.
    pub(super) fn is_any(&self, index: usize, keywords: &[&str]) -> bool {
        let word = self.word(index);
        !word.is_empty() && keywords.iter().any(|k| word.eq_ignore_ascii_case(k))
    }

    /// Returns whether `keywords` stand at `index` one after the other.
    pub(super) fn are(&self, index: usize, keywords: &[&str]) -> bool {
        keywords.iter().enumerate().all(|(n, keyword)| self.is(index + n, keyword))
    }

    /// Returns whether a name, quoted or not, stands at `index`.
    pub(super) fn is_name(&self, index: usize) -> bool {
        matches!(self.kind(index), Some(TokenKind::Word | TokenKind::QuotedName | TokenKind::UnicodeName))
    }

    /// Returns whether the word at `index` is only a label or a column: after `.`, or after an `AS` that is no label itself.
    pub(super) fn is_label(&self, index: usize) -> bool {
        // Consecutive `AS` take turns in being the keyword and being the label.
        let mut before = index;
        while before > 0 && self.is(before - 1, "AS") {
            before -= 1;
        }
        if before > 0 && self.has(before - 1, TokenKind::Dot) {
            return before == index || (index - before).is_multiple_of(2);
        }
        (index - before) % 2 == 1
    }

    /// Returns where `keyword` first stands outside parentheses at or after `from`, as a keyword.
    pub(super) fn find_outside(&self, from: usize, keywords: &[&str]) -> Option<usize> {
        let mut depth = 0_usize;
        for index in from..self.len() {
            match self.kind(index) {
                Some(TokenKind::OpenParen) => depth += 1,
                Some(TokenKind::CloseParen) => depth = depth.saturating_sub(1),
                Some(TokenKind::Word) if depth == 0 && self.is_any(index, keywords) && !self.is_label(index) => {
                    return Some(index);
                }
                _ => {}
            }
        }
        None
    }

    /// Returns the index of the parenthesis that closes the one at `open`.
    pub(super) fn closing(&self, open: usize) -> Option<usize> {
        let mut depth = 0_usize;
        for index in open..self.len() {
            match self.kind(index) {
                Some(TokenKind::OpenParen) => depth += 1,
                Some(TokenKind::CloseParen) => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 {
                        return Some(index);
                    }
                }
                _ => {}
            }
        }
        None
    }

    /// Returns the name at `index` as Postgres folds it.
    pub(super) fn name(&self, index: usize) -> Cow<'a, str> {
        match self.kind(index) {
            Some(TokenKind::QuotedName) => cut(unquote(self.text(index))),
            _ => fold(self.text(index)),
        }
    }

    /// Returns the index after `keywords`, if they stand at `index`.
    pub(super) fn after(&self, index: usize, keywords: &[&str]) -> usize {
        if self.are(index, keywords) { index + keywords.len() } else { index }
    }

    /// Returns the qualified name at `index`, folded; the database's name is left out.
    pub(super) fn relation_name(&self, index: usize) -> Option<String> {
        self.relation_parts(index).map(|parts| parts.join("."))
    }

    /// Returns the parts of the qualified name at `index`: its schema, where one is written, and itself.
    pub(super) fn relation_parts(&self, index: usize) -> Option<Vec<String>> {
        let mut parts = self.name_parts(index)?;
        Some(parts.split_off(parts.len().saturating_sub(2)))
    }

    /// Returns the relation of the qualified column at `index`.
    pub(super) fn column_relation(&self, index: usize) -> Option<String> {
        let mut parts = self.name_parts(index)?;
        parts.pop();
        (!parts.is_empty()).then(|| parts.split_off(parts.len().saturating_sub(2)).join("."))
    }

    fn name_parts(&self, index: usize) -> Option<Vec<String>> {
        let mut index = if self.is(index, "ONLY") { index + 1 } else { index };
        let mut parts = Vec::new();
        loop {
            if !self.is_name(index) {
                return None;
            }
            parts.push(quoted_if_dotted(&self.name(index)));
            if !self.has(index + 1, TokenKind::Dot) {
                break;
            }
            index += 2;
        }
        Some(parts)
    }
}

/// Puts a folded name back into quotes if it has a dot or a quote, so that no two names look the same.
pub(super) fn quoted_if_dotted(name: &str) -> String {
    if name.contains(['.', '"']) { format!("\"{}\"", name.replace('"', "\"\"")) } else { name.to_owned() }
}

/// Folds an unquoted name as Postgres does: ASCII letters only, cut to 63 bytes.
pub(super) fn fold(name: &str) -> Cow<'_, str> {
    if name.bytes().any(|b| b.is_ascii_uppercase()) {
        cut(Cow::Owned(name.to_ascii_lowercase()))
    } else {
        cut(Cow::Borrowed(name))
    }
}

/// Cuts a name to what Postgres keeps of it.
pub(super) fn cut(name: Cow<'_, str>) -> Cow<'_, str> {
    if name.len() <= NAME_BYTES_MAX {
        return name;
    }
    let end = name.floor_char_boundary(NAME_BYTES_MAX);
    Cow::Owned(name.get(..end).unwrap_or_default().to_owned())
}

/// Takes a quoted name out of its quotes.
pub(super) fn unquote(quoted: &str) -> Cow<'_, str> {
    let inner = quoted.strip_prefix('"').and_then(|q| q.strip_suffix('"')).unwrap_or(quoted);
    if inner.contains("\"\"") { Cow::Owned(inner.replace("\"\"", "\"")) } else { Cow::Borrowed(inner) }
}
