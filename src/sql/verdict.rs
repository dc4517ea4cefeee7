//! Whether a statement looks fit for read-only use.
//!
//! The verdict is a filter: it is advice to policies, and keeps plain mistakes from the server. The barrier is the
//! read-only role in a transaction that cannot be made writable. Names are all that is judged, and an overload, a
//! view, an operator or a cast can run a user's code behind an allowed name.

use super::functions;
use super::scanner::TokenKind;
use super::split::turns_text;
use super::tree::{Call, TreeFacts};
use super::words::{Words, quoted_if_dotted};
use crate::model::StatementClass as Class;

/// Returns whether a call is of a function that is known to leave everything as it is.
pub(super) fn is_allowed(call: &Call) -> bool {
    let listed = || functions::built_in(&call.name).is_some_and(|f| f.read_only);
    match call.schema.as_deref() {
        None => listed() || (!call.quoted && functions::is_construct(&call.name)),
        Some("pg_catalog") => listed(),
        Some(_) => false,
    }
}

/// Returns whether a statement of this class, with this tree, passes every test.
///
/// `expected` is the class that keywords give to the part that was parsed.
pub(super) fn is_read_only_safe(words: &Words<'_>, class: Class, tree: Option<&TreeFacts>) -> bool {
    if !matches!(class, Class::Read | Class::Show | Class::Explain | Class::CopyOut) || hides_something(words) {
        return false;
    }
    match tree {
        Some(tree) => tree.calls.iter().all(is_allowed) && looks_like_calls_are_explained(words, tree),
        None => false,
    }
}

/// Returns whether a name outside literals is other than it looks.
pub(super) fn hides_something(words: &Words<'_>) -> bool {
    (0..words.len()).any(|index| {
        words.has(index, TokenKind::UnicodeName)
            || (words.is_name(index) && words.text(index).chars().any(is_invisible))
    })
}

const fn is_invisible(c: char) -> bool {
    turns_text(c)
        || matches!(
            c,
            '\u{0}'..='\u{1f}' | '\u{7f}'..='\u{a0}' | '\u{ad}' | '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{1680}'
                | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}' | '\u{2000}'..='\u{200d}' | '\u{2028}' | '\u{2029}'
                | '\u{202f}' | '\u{205f}'..='\u{2065}' | '\u{206a}'..='\u{206f}' | '\u{2800}' | '\u{3000}' | '\u{3164}'
                | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}'
        )
}

/// Returns whether every name before a parenthesis is an allowed function or no function at all.
///
/// This does not rest on the tree: should the parser take a call for something else, the call still shows here.
fn looks_like_calls_are_explained(words: &Words<'_>, tree: &TreeFacts) -> bool {
    (0..words.len().saturating_sub(1)).all(|index| {
        if !words.is_name(index) || !words.has(index + 1, TokenKind::OpenParen) {
            return true;
        }
        let quoted = words.has(index, TokenKind::QuotedName);
        let name = words.name(index).into_owned();
        let schema = (index >= 2 && words.has(index - 1, TokenKind::Dot)).then(|| words.name(index - 2).into_owned());
        if schema.is_none() && !quoted && is_interval_field(words, index) {
            return true;
        }
        if schema.is_none() && !quoted && words.is(index, "OPERATOR") {
            return names_own_operator(words, index);
        }
        let plain = quoted_if_dotted(&name);
        let written = schema.as_ref().map_or(plain.clone(), |s| format!("{}.{plain}", quoted_if_dotted(s)));
        if tree.column_lists.contains(&written) || (schema.is_none() && !quoted && NOT_CALLS.contains(&name.as_str())) {
            return true;
        }
        is_allowed(&Call { schema, name, quoted })
    })
}

/// Returns whether `SECOND(…)` at `index` is how precise an interval is.
fn is_interval_field(words: &Words<'_>, index: usize) -> bool {
    let after_literal = index >= 2 && words.has(index - 1, TokenKind::String) && words.is(index - 2, "INTERVAL");
    let after_field = index >= 2 && words.is(index - 1, "TO") && words.is_any(index - 2, &["DAY", "HOUR", "MINUTE"]);
    words.is(index, "SECOND")
        && (after_literal || after_field)
        && words.has(index + 2, TokenKind::Number)
        && words.has(index + 3, TokenKind::CloseParen)
}

/// Returns whether `OPERATOR(…)` at `index` names an operator of Postgres' own schema, or none in particular.
fn names_own_operator(words: &Words<'_>, index: usize) -> bool {
    words.has(index + 2, TokenKind::Operator)
        || (words.name(index + 2) == "pg_catalog" && words.has(index + 3, TokenKind::Dot))
}

/// Words that a parenthesis follows in a query without a call: clauses and types with modifiers.
const NOT_CALLS: &[&str] = &[
    // clauses
    "all",
    "analyse",
    "analyze",
    "and",
    "any",
    "as",
    "between",
    "by",
    "case",
    "copy",
    "cube",
    "distinct",
    "else",
    "except",
    "explain",
    "fetch",
    "filter",
    "first",
    "from",
    "group",
    "having",
    "ilike",
    "in",
    "intersect",
    "into",
    "is",
    "join",
    "lateral",
    "like",
    "limit",
    "materialized",
    "next",
    "not",
    "offset",
    "on",
    "only",
    "or",
    "over",
    "passing",
    "repeatable",
    "returning",
    "rollup",
    "select",
    "set",
    "sets",
    "some",
    "symmetric",
    "then",
    "to",
    "union",
    "using",
    "values",
    "when",
    "where",
    "with",
    "columns",
    "xmlnamespaces",
    "xmltable",
    "escape",
    "force_not_null",
    "force_null",
    "force_quote",
    "bernoulli",
    "system",
    // types
    "bit",
    "bpchar",
    "char",
    "character",
    "dec",
    "decimal",
    "float",
    "interval",
    "nchar",
    "numeric",
    "time",
    "timestamp",
    "timestamptz",
    "timetz",
    "varbit",
    "varchar",
    "varying",
    "zone",
];
