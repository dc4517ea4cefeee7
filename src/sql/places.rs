//! Finds the relations of statements that the parser does not know, where they stand at known places.
//!
//! A statement is only taken for understood if nothing in it could name a further relation or call a function.

use std::collections::BTreeSet;

use super::scanner::TokenKind;
use super::tree::TreeFacts;
use super::words::{Words, quoted_if_dotted};
use crate::model::{Access, Relation};

/// Reads a statement by places, or returns `None` if it has more than places can tell.
pub(super) fn read(words: &Words<'_>) -> Option<TreeFacts> {
    let names = match words.word(0).to_ascii_uppercase().as_str() {
        "ALTER" => alter(words)?,
        "CREATE" => create(words)?,
        "COMMENT" => comment(words)?,
        "VACUUM" | "ANALYZE" | "ANALYSE" => {
            tables(words, after_options(words, &["FULL", "FREEZE", "VERBOSE", "ANALYZE", "ANALYSE"]))?
        }
        "CLUSTER" | "REPACK" => cluster(words)?,
        "LOCK" => tables(words, if words.is(1, "TABLE") { 2 } else { 1 })?,
        "REINDEX" => reindex(words)?,
        _ => return None,
    };
    let only_looks = words.is_any(0, &["LOCK", "ANALYZE", "ANALYSE"]);
    let access = if only_looks { Access::Reads } else { Access::Defines };
    let relations = names.into_iter().map(|name| Relation { name, access }).collect::<BTreeSet<_>>();
    Some(TreeFacts { complete: true, relations, ..TreeFacts::default() })
}

/// Words that bring in another relation.
const BRINGS_RELATION: &[&str] = &[
    "REFERENCES",
    "INHERIT",
    "INHERITS",
    "ATTACH",
    "DETACH",
    "PARTITION",
    "PARTITIONS",
    "LIKE",
    "OF",
    "OWNED",
    "SELECT",
    "ON",
    "INTO",
    "TABLE",
];

/// Words before a parenthesis that call nothing in these statements.
const NO_CALLS: &[&str] = &[
    "set",
    "reset",
    "options",
    "identity",
    "key",
    "unique",
    "include",
    "values",
    "with",
    "from",
    "to",
    "in",
    "numeric",
    "decimal",
    "varchar",
    "character",
    "char",
    "varying",
    "bit",
    "time",
    "timestamp",
    "timestamptz",
    "timetz",
    "interval",
    "float",
];

fn is_plain(words: &Words<'_>) -> bool {
    (0..words.len()).all(|index| {
        let calls = words.is_name(index)
            && words.has(index + 1, TokenKind::OpenParen)
            && !(words.has(index, TokenKind::Word) && NO_CALLS.contains(&words.name(index).as_ref()));
        !calls && !words.has(index, TokenKind::Semicolon) && !words.is_any(index, BRINGS_RELATION)
    })
}

fn alter(words: &Words<'_>) -> Option<Vec<String>> {
    if words.is(1, "DOMAIN") {
        return is_plain(words).then(Vec::new);
    }
    let kind_length = match () {
        () if words.is_any(1, &["TABLE", "INDEX", "SEQUENCE", "VIEW"]) => 1,
        () if words.are(1, &["MATERIALIZED", "VIEW"]) || words.are(1, &["FOREIGN", "TABLE"]) => 2,
        () => return None,
    };
    let name = words.after(1 + kind_length, &["IF", "EXISTS"]);
    if words.are(name, &["ALL", "IN"]) {
        return None;
    }
    let (first, rest) = named(words, name)?;
    let rest = if words.has(rest, TokenKind::Operator) { rest + 1 } else { rest };
    if let Some(moved) = moved(words, name, rest) {
        return Some(vec![first, moved]);
    }
    let mut names = vec![first];
    let mut rest = rest;
    if words.are(rest, &["ATTACH", "PARTITION"]) || words.are(rest, &["DETACH", "PARTITION"]) {
        let (partition, after) = named(words, rest + 2)?;
        names.push(partition);
        rest = after;
    }
    if let Some(at) = (rest..words.len()).find(|at| words.are(*at, &["SEQUENCE", "NAME"])) {
        names.push(words.relation_name(at + 2)?);
    }
    is_plain(&words.from(rest)).then_some(names)
}

/// Returns the name under which the relation named at `name` appears by what stands at `rest`.
fn moved(words: &Words<'_>, name: usize, rest: usize) -> Option<String> {
    if !words.is_name(rest + 2) || rest + 3 != words.len() {
        return None;
    }
    let mut parts = words.relation_parts(name)?;
    let bare = parts.pop()?;
    let new = quoted_if_dotted(&words.name(rest + 2));
    if words.are(rest, &["SET", "SCHEMA"]) {
        return Some(format!("{new}.{bare}"));
    }
    if words.are(rest, &["RENAME", "TO"]) {
        parts.push(new);
        return Some(parts.join("."));
    }
    None
}

fn create(words: &Words<'_>) -> Option<Vec<String>> {
    let mut kind = 1;
    while words.is_any(kind, &["TEMP", "TEMPORARY", "UNLOGGED", "OR", "REPLACE", "CONSTRAINT"]) {
        kind += 1;
    }
    if words.is(kind, "SEQUENCE") {
        let (name, rest) = named(words, words.after(kind + 1, &["IF", "NOT", "EXISTS"]))?;
        return is_plain(&words.from(rest)).then(|| vec![name]);
    }
    if words.is(kind, "TRIGGER") {
        // The condition can read columns and call functions; the function that runs later is named last.
        let on = words.find_outside(kind + 2, &["ON"])?;
        let (name, rest) = named(words, on + 1)?;
        let execute = words.find_outside(rest, &["EXECUTE"])?;
        let plain = words.find_outside(rest, &["WHEN", "FROM"]).is_none_or(|at| at > execute);
        return plain.then(|| vec![name]);
    }
    None
}

fn comment(words: &Words<'_>) -> Option<Vec<String>> {
    if words.are(1, &["ON", "COLUMN"]) {
        return words.column_relation(3).map(|name| vec![name]);
    }
    let is = words.find_outside(2, &["IS"])?;
    let on = words.find_outside(3, &["ON"]).filter(|on| *on < is);
    match on {
        // A constraint, trigger, rule or policy of a table; or a constraint of a domain.
        Some(on) if words.is(on + 1, "DOMAIN") => Some(Vec::new()),
        Some(on) => words.relation_name(on + 1).map(|name| vec![name]),
        None => Some(Vec::new()),
    }
}

/// Reads `CLUSTER t USING i`, and the older `CLUSTER i ON t`.
fn cluster(words: &Words<'_>) -> Option<Vec<String>> {
    let start = after_options(words, &["VERBOSE"]);
    let (first, rest) = named(words, start)?;
    if words.is(rest, "ON") {
        let (table, end) = named(words, rest + 1)?;
        return (end == words.len()).then(|| vec![first, table]);
    }
    tables(words, start).filter(|names| !names.is_empty())
}

fn reindex(words: &Words<'_>) -> Option<Vec<String>> {
    let kind = after_options(words, &[]);
    if !words.is_any(kind, &["TABLE", "INDEX"]) {
        return None;
    }
    let name = if words.is(kind + 1, "CONCURRENTLY") { kind + 2 } else { kind + 1 };
    words.relation_name(name).map(|name| vec![name])
}

/// Steps over options in parentheses, or over `flags`.
fn after_options(words: &Words<'_>, flags: &[&str]) -> usize {
    if words.has(1, TokenKind::OpenParen) {
        return words.closing(1).map_or(words.len(), |close| close + 1);
    }
    (1..words.len()).find(|index| !words.is_any(*index, flags)).unwrap_or(words.len())
}

/// Reads a list of tables, each with or without its columns, up to something else.
fn tables(words: &Words<'_>, start: usize) -> Option<Vec<String>> {
    let mut names = Vec::new();
    let mut index = start;
    while index < words.len() {
        let (name, mut rest) = named(words, index)?;
        names.push(name);
        if words.has(rest, TokenKind::OpenParen) {
            rest = words.closing(rest)? + 1;
        }
        if !words.has(rest, TokenKind::Comma) {
            break;
        }
        index = rest + 1;
    }
    Some(names)
}

/// Reads a relation's name; returns where it ends, too.
fn named(words: &Words<'_>, index: usize) -> Option<(String, usize)> {
    let name = words.relation_name(index)?;
    let mut end = if words.is(index, "ONLY") { index + 2 } else { index + 1 };
    while words.has(end, TokenKind::Dot) {
        end += 2;
    }
    Some((name, end))
}
