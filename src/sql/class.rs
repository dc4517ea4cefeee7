//! Says from unquoted keywords alone what a statement does.
//!
//! Keywords cannot be escaped or hidden, so this reading holds whatever else is in the statement. Where keywords
//! leave a doubt, the stricter class is given. Whether the statement is valid is left to Postgres; a statement that
//! begins like none of Postgres' grammar is `unparsed`.

mod define;

pub(super) use define::installs;

use std::ops::Range;

use super::scanner::TokenKind;
use super::words::Words;
use crate::model::{StatementClass as Class, Traits};

/// What keywords say of a statement.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) class: Class,
    /// The class of the part that the parser reads: of the statement inside EXPLAIN, COPY and so on.
    pub(super) class_inside: Class,
    /// The leading keywords, from tables of this file.
    pub(super) tag: String,
    pub(super) traits: Traits,
    pub(super) wants_autocommit: bool,
    pub(super) detail: Detail,
}

/// Where relations and functions are to be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Detail {
    /// In these tokens, which the parser reads as a statement of its own.
    Parse(Range<usize>),
    /// There is one relation, with its name at this token.
    Relation(usize),
    /// There are none: the statement has only settings, channels or names of other things.
    Nothing,
    /// Nowhere that we can see.
    Hidden,
}

impl Reading {
    fn new(class: Class, tag: impl Into<String>, detail: Detail) -> Self {
        Self { class, class_inside: class, tag: tag.into(), traits: Traits::default(), wants_autocommit: false, detail }
    }

    fn with(mut self, traits: Traits) -> Self {
        self.traits.insert(traits);
        self
    }

    fn autocommit(mut self, wanted: bool) -> Self {
        self.wants_autocommit |= wanted;
        self
    }
}

/// Reads a statement's keywords.
pub(super) fn read(words: &Words<'_>) -> Reading {
    let whole = Detail::Parse(0..words.len());
    if words.has(0, TokenKind::OpenParen) {
        return query(words);
    }
    let first = words.word(0).to_ascii_uppercase();
    match first.as_str() {
        "SELECT" | "VALUES" | "TABLE" | "WITH" => query(words),
        "INSERT" | "MERGE" | "UPDATE" | "DELETE" => {
            let mut reading = Reading::new(Class::Write, first.as_str(), whole);
            if matches!(first.as_str(), "UPDATE" | "DELETE") && words.find_outside(1, &["WHERE"]).is_none() {
                reading.traits.insert(Traits::NO_WHERE);
            }
            if find_query_hazards(words).nested_write {
                reading.traits.insert(Traits::DATA_MODIFYING_CTE);
            }
            reading
        }
        "TRUNCATE" => {
            // Relations that are not named lose their rows, too.
            let detail = if words.is(words.len() - 1, "CASCADE") { Detail::Hidden } else { whole };
            Reading::new(Class::Write, "TRUNCATE", detail)
        }
        "COPY" => copy(words),
        "EXPLAIN" => explain(words),
        "CREATE" => define::create(words),
        "ALTER" => define::alter(words),
        "DROP" => define::drop(words),
        "COMMENT" => Reading::new(Class::Ddl, "COMMENT", whole),
        "GRANT" | "REVOKE" => Reading::new(Class::AccessControl, first.as_str(), whole),
        "REASSIGN" => Reading::new(Class::AccessControl, "REASSIGN OWNED", Detail::Hidden),
        "IMPORT" => Reading::new(Class::Ddl, "IMPORT FOREIGN SCHEMA", Detail::Hidden).with(Traits::NETWORK),
        "BEGIN" | "COMMIT" | "END" | "ROLLBACK" | "ABORT" | "SAVEPOINT" | "RELEASE" => {
            let prepared = words.is(1, "PREPARED");
            let tag = if prepared { format!("{first} PREPARED") } else { first.clone() };
            Reading::new(Class::Transaction, tag, Detail::Nothing).autocommit(prepared)
        }
        "START" if words.is(1, "TRANSACTION") => Reading::new(Class::Transaction, "START TRANSACTION", Detail::Nothing),
        "SET" => set(words),
        "RESET" => Reading::new(Class::Session, "RESET", Detail::Nothing).with(Traits::SESSION_SETTING),
        "DISCARD" => Reading::new(Class::Session, "DISCARD", Detail::Nothing)
            .with(Traits::SESSION_SETTING)
            .autocommit(words.is(1, "ALL")),
        "SHOW" if words.len() > 1 => Reading::new(Class::Show, "SHOW", Detail::Nothing),
        "DO" => {
            Reading::new(Class::Procedural, "DO", Detail::Hidden).with(Traits::DYNAMIC_SQL).with(Traits::OPAQUE_BODY)
        }
        "CALL" => Reading::new(Class::Procedural, "CALL", whole).with(Traits::DYNAMIC_SQL).with(Traits::OPAQUE_BODY),
        "VACUUM" => Reading::new(Class::Maintenance, "VACUUM", Detail::Hidden).autocommit(true),
        "ANALYZE" | "ANALYSE" => Reading::new(Class::Maintenance, "ANALYZE", Detail::Hidden),
        "REINDEX" => reindex(words),
        "CLUSTER" => Reading::new(Class::Maintenance, "CLUSTER", Detail::Hidden).autocommit(words.len() == 1),
        "REPACK" => Reading::new(Class::Maintenance, "REPACK", Detail::Hidden).autocommit(true),
        "CHECKPOINT" => Reading::new(Class::Maintenance, "CHECKPOINT", Detail::Nothing),
        "REFRESH" if words.are(1, &["MATERIALIZED", "VIEW"]) => {
            let name = if words.is(3, "CONCURRENTLY") { 4 } else { 3 };
            Reading::new(Class::Maintenance, "REFRESH MATERIALIZED VIEW", Detail::Relation(name))
        }
        "LISTEN" | "NOTIFY" | "UNLISTEN" => Reading::new(Class::Notify, first.as_str(), Detail::Nothing),
        "LOCK" => Reading::new(Class::Lock, "LOCK TABLE", whole),
        "PREPARE" => prepare(words),
        "EXECUTE" => Reading::new(Class::Prepared, "EXECUTE", Detail::Hidden).with(Traits::DYNAMIC_SQL),
        "DEALLOCATE" => Reading::new(Class::Prepared, "DEALLOCATE", Detail::Nothing),
        "DECLARE" => declare(words),
        "FETCH" | "MOVE" | "CLOSE" => Reading::new(Class::Cursor, first.as_str(), Detail::Nothing),
        "LOAD" => Reading::new(Class::Utility, "LOAD", Detail::Nothing).with(Traits::SERVER_FILE),
        "SECURITY" if words.is(1, "LABEL") => Reading::new(Class::Utility, "SECURITY LABEL", Detail::Hidden),
        _ => unparsed(),
    }
}

fn unparsed() -> Reading {
    Reading::new(Class::Unparsed, "", Detail::Hidden)
}

/// Keywords in a query, at any depth, that make it more than a read.
#[derive(Clone, Copy, Debug, Default)]
struct Hazards {
    /// INSERT, UPDATE, DELETE or MERGE.
    write: bool,
    /// One of them inside parentheses: in a WITH clause.
    nested_write: bool,
    /// SELECT … INTO.
    into: bool,
    /// A row lock clause.
    lock: bool,
}

impl Hazards {
    const fn class(self) -> Class {
        if self.into {
            Class::Ddl
        } else if self.write {
            Class::Write
        } else if self.lock {
            Class::ReadLock
        } else {
            Class::Read
        }
    }
}

/// Returns whether a keyword INTO stands where only a SELECT … INTO has one.
pub(super) fn makes_relation_by_into(words: &Words<'_>) -> bool {
    find_query_hazards(words).into
}

/// Looks through a query or a data-changing statement, whose own first word is not looked at.
fn find_query_hazards(words: &Words<'_>) -> Hazards {
    let mut hazards = Hazards::default();
    // Whether each open parenthesis began the query of a WITH item, and where the last of such ended.
    let mut open = Vec::new();
    let mut item_end = None;
    // Without WITH the grammar has no place for a data-changing statement inside a query.
    let mut with = words.is(0, "WITH");
    for index in 0..words.len() {
        match words.kind(index) {
            Some(TokenKind::OpenParen) => open.push(index > 0 && words.is_any(index - 1, &["AS", "MATERIALIZED"])),
            Some(TokenKind::CloseParen) => {
                let was_item = open.pop() == Some(true);
                if was_item {
                    item_end = Some(index);
                }
            }
            Some(TokenKind::Word) if index > 0 => {
                let initial = words.word(index).as_bytes().first().map_or(0, u8::to_ascii_uppercase);
                match initial {
                    b'W' if words.is(index, "WITH") => with = true,
                    b'I' if words.is(index, "INTO") && !words.is_label(index) => {
                        // `INSERT INTO` begins a statement, or is a label and what makes a relation.
                        let begins =
                            index >= 2 && (words.has(index - 2, TokenKind::OpenParen) || item_end == Some(index - 2));
                        hazards.into |= !(with && begins && is_data_change(words, index - 1));
                    }
                    b'F' if words.is(index, "FOR") && !words.is_label(index) => {
                        hazards.lock |= words.is_any(index + 1, &["UPDATE", "SHARE"])
                            || words.are(index + 1, &["KEY", "SHARE"])
                            || words.are(index + 1, &["NO", "KEY", "UPDATE"]);
                    }
                    b'I' | b'U' | b'D' | b'M' if with && is_data_change(words, index) => {
                        hazards.write = true;
                        hazards.nested_write |= !open.is_empty();
                    }
                    _ => {}
                }
            }
            _ => {}
        }
    }
    hazards
}

/// Returns whether a data-changing statement may begin at `index`, inside a query with a WITH clause.
///
/// These words are not reserved, so a column may have them as its name. A statement begins after a parenthesis or
/// at the end of a WITH item, which is a name or a constant, and never after a comma, an operator, or a word that an
/// expression follows.
fn is_data_change(words: &Words<'_>, index: usize) -> bool {
    if index == 0 || words.is_label(index) {
        return false;
    }
    let continues = match words.word(index).as_bytes().first().map(u8::to_ascii_uppercase) {
        Some(b'I') => words.is(index, "INSERT") && words.is(index + 1, "INTO"),
        Some(b'M') => words.is(index, "MERGE") && words.is(index + 1, "INTO"),
        Some(b'D') => words.is(index, "DELETE") && words.is(index + 1, "FROM"),
        Some(b'U') => words.is(index, "UPDATE") && words.is_name(index + 1) && !words.is_any(index + 1, CLAUSE_WORDS),
        _ => false,
    };
    if !continues {
        return false;
    }
    match words.kind(index - 1) {
        Some(TokenKind::Word) => {
            let lock = words.is(index - 1, "FOR") || (index >= 3 && words.are(index - 3, &["FOR", "NO", "KEY"]));
            words.is_label(index - 1) || !(lock || words.is_any(index - 1, EXPRESSION_FOLLOWS))
        }
        Some(TokenKind::Comma | TokenKind::Operator | TokenKind::Dot | TokenKind::OpenBracket) => false,
        _ => true,
    }
}

/// Reserved words that an expression follows. Only reserved ones: any other can be the name that ends a WITH item.
const EXPRESSION_FOLLOWS: &[&str] =
    &["SELECT", "DISTINCT", "ALL", "DO", "THEN", "ON", "OR", "AND", "NOT", "WHERE", "HAVING", "CASE", "WHEN", "ELSE"];

/// Reserved words that can follow a column, and so no `UPDATE` statement.
const CLAUSE_WORDS: &[&str] = &[
    "FROM",
    "WHERE",
    "GROUP",
    "HAVING",
    "ORDER",
    "LIMIT",
    "OFFSET",
    "FETCH",
    "FOR",
    "UNION",
    "EXCEPT",
    "INTERSECT",
    "WINDOW",
    "AS",
    "AND",
    "OR",
    "IN",
    "THEN",
    "ELSE",
    "END",
    "WHEN",
    "ASC",
    "DESC",
    "NOT",
    "COLLATE",
    "INTO",
];

fn query(words: &Words<'_>) -> Reading {
    let mut first = 0;
    while words.has(first, TokenKind::OpenParen) {
        first += 1;
    }
    let tag = match words.word(first).to_ascii_uppercase().as_str() {
        "SELECT" => "SELECT",
        "VALUES" => "VALUES",
        "TABLE" if words.len() > first + 1 => "TABLE",
        "WITH" => "WITH",
        _ => return unparsed(),
    };
    let hazards = find_query_hazards(words);
    let mut reading = Reading::new(hazards.class(), tag, Detail::Parse(0..words.len()));
    if hazards.nested_write {
        reading.traits.insert(Traits::DATA_MODIFYING_CTE);
    }
    if hazards.into && tag == "SELECT" {
        reading.tag = "SELECT INTO".to_owned();
    }
    reading
}

fn copy(words: &Words<'_>) -> Reading {
    let subject = if words.is(1, "BINARY") && !words.is_any(2, &["FROM", "TO"]) { 2 } else { 1 };
    // A table's name is stepped over, as it may be a keyword; a query in parentheses is stepped over as a whole.
    let after = if words.has(subject, TokenKind::OpenParen) { subject } else { subject + 1 };
    let Some(direction) = words.find_outside(after, &["FROM", "TO"]) else { return unparsed() };
    let from = words.is(direction, "FROM");
    let target = direction + 1;
    let (target_class, target_traits) = if words.is_any(target, &["STDIN", "STDOUT"]) {
        (if from { Class::CopyIn } else { Class::CopyOut }, Traits::default())
    } else {
        let mut traits = Traits::SERVER_FILE;
        if words.is(target, "PROGRAM") {
            traits.insert(Traits::NETWORK);
        }
        (Class::CopyServer, traits)
    };
    if !words.has(subject, TokenKind::OpenParen) {
        // The condition of COPY … FROM … WHERE can call functions.
        let detail = match words.find_outside(target, &["WHERE"]) {
            Some(_) => Detail::Hidden,
            None => Detail::Relation(subject),
        };
        return Reading::new(target_class, "COPY", detail).with(target_traits);
    }
    let Some(close) = words.closing(subject) else { return unparsed() };
    let inner = preparable(words, subject + 1..close);
    let class = if !is_query(inner.class) {
        Class::Unparsed
    } else if inner.class == Class::Read || target_class == Class::CopyServer {
        target_class
    } else {
        inner.class
    };
    Reading { class, tag: "COPY".to_owned(), ..inner }.with(target_traits)
}

/// Returns whether a class is one that a query or a data-changing statement can have.
const fn is_query(class: Class) -> bool {
    matches!(class, Class::Read | Class::ReadLock | Class::Write | Class::Ddl)
}

/// Words with which a query or a data-changing statement begins, beside a parenthesis.
const PREPARABLE: &[&str] = &["SELECT", "VALUES", "TABLE", "WITH", "INSERT", "UPDATE", "DELETE", "MERGE"];

/// Reads a query or a data-changing statement inside another statement: nothing else is nested without end.
fn preparable(words: &Words<'_>, range: Range<usize>) -> Reading {
    match words.has(range.start, TokenKind::OpenParen) || words.is_any(range.start, PREPARABLE) {
        true => inner(words, range),
        false => unparsed(),
    }
}

/// Reads a statement inside another; its token numbers are those of the whole.
fn inner(words: &Words<'_>, range: Range<usize>) -> Reading {
    let mut reading = read(&words.part(range.clone()));
    reading.detail = match reading.detail {
        Detail::Parse(part) => Detail::Parse(part.start + range.start..part.end + range.start),
        Detail::Relation(index) => Detail::Relation(index + range.start),
        other @ (Detail::Nothing | Detail::Hidden) => other,
    };
    reading
}

fn explain(words: &Words<'_>) -> Reading {
    let mut analyze = false;
    let mut start = 1;
    let query = words.has(2, TokenKind::OpenParen)
        || words.is_any(2, &["SELECT", "WITH", "TABLE"])
        || (words.is(2, "VALUES") && words.has(3, TokenKind::OpenParen));
    if words.has(1, TokenKind::OpenParen) && !query {
        let Some(close) = words.closing(1) else { return unparsed() };
        analyze = options_analyze(&words.part(2..close));
        start = close + 1;
    } else {
        if words.is_any(1, &["ANALYZE", "ANALYSE"]) {
            analyze = true;
            start = 2;
        }
        if words.is(start, "VERBOSE") {
            start += 1;
        }
    }
    let explainable = words.has(start, TokenKind::OpenParen)
        || words.is_any(start, PREPARABLE)
        || words.is_any(start, &["DECLARE", "CREATE", "REFRESH", "EXECUTE"]);
    if !explainable {
        return unparsed();
    }
    let inner = inner(words, start..words.len());
    if inner.class == Class::Unparsed {
        return unparsed();
    }
    if analyze {
        return Reading { tag: "EXPLAIN ANALYZE".to_owned(), ..inner };
    }
    Reading { class: Class::Explain, tag: "EXPLAIN".to_owned(), wants_autocommit: false, ..inner }
}

/// Returns whether the options of an EXPLAIN run the statement: the last ANALYZE counts, as in Postgres.
fn options_analyze(options: &Words<'_>) -> bool {
    let mut analyze = false;
    let mut start = 0;
    let mut depth = 0_usize;
    for index in 0..=options.len() {
        match options.kind(index) {
            Some(TokenKind::OpenParen) => depth += 1,
            Some(TokenKind::CloseParen) => depth = depth.saturating_sub(1),
            Some(TokenKind::Comma) if depth == 0 => {}
            None => {}
            Some(_) => continue,
        }
        if depth == 0 && matches!(options.kind(index), Some(TokenKind::Comma) | None) {
            let name = options.name(start).to_ascii_lowercase();
            // A name in Unicode escapes may be any name.
            if matches!(name.as_str(), "analyze" | "analyse") || options.has(start, TokenKind::UnicodeName) {
                analyze = !is_off(&options.part(start + 1..index));
            }
            start = index + 1;
        }
    }
    analyze
}

/// Returns whether an option's value surely means no.
fn is_off(value: &Words<'_>) -> bool {
    if value.len() != 1 {
        return false;
    }
    match value.kind(0) {
        Some(TokenKind::Word) => value.is_any(0, &["OFF", "FALSE"]),
        Some(TokenKind::Number) => value.text(0) == "0",
        Some(TokenKind::String | TokenKind::QuotedName) => {
            let text = value.text(0).trim_matches(['\'', '"']);
            text.eq_ignore_ascii_case("off") || text.eq_ignore_ascii_case("false")
        }
        _ => false,
    }
}

fn prepare(words: &Words<'_>) -> Reading {
    if words.is(1, "TRANSACTION") && words.has(2, TokenKind::String) {
        return Reading::new(Class::Transaction, "PREPARE TRANSACTION", Detail::Nothing);
    }
    let Some(as_keyword) = words.find_outside(2, &["AS"]) else { return unparsed() };
    let inner = preparable(words, as_keyword + 1..words.len());
    let class = if inner.class == Class::Read { Class::Prepared } else { inner.class };
    Reading { class, tag: "PREPARE".to_owned(), ..inner }
}

fn declare(words: &Words<'_>) -> Reading {
    let Some(for_keyword) = words.find_outside(2, &["FOR"]) else { return unparsed() };
    let inner = preparable(words, for_keyword + 1..words.len());
    let class = match is_query(inner.class) {
        true if inner.class == Class::Read => Class::Cursor,
        true => inner.class,
        false => Class::Unparsed,
    };
    Reading { class, tag: "DECLARE CURSOR".to_owned(), ..inner }
}

fn set(words: &Words<'_>) -> Reading {
    if words.is(1, "CONSTRAINTS") {
        return Reading::new(Class::Transaction, "SET CONSTRAINTS", Detail::Nothing);
    }
    let name = if words.is_any(1, &["LOCAL", "SESSION"]) { 2 } else { 1 };
    if words.is(name, "TRANSACTION") {
        return Reading::new(Class::Transaction, "SET TRANSACTION", Detail::Nothing);
    }
    let tag = if words.is(name, "ROLE") {
        "SET ROLE"
    } else if words.is_any(name, &["AUTHORIZATION"]) || words.are(1, &["SESSION", "AUTHORIZATION"]) {
        "SET SESSION AUTHORIZATION"
    } else {
        "SET"
    };
    Reading::new(Class::Session, tag, Detail::Nothing).with(Traits::SESSION_SETTING)
}

fn reindex(words: &Words<'_>) -> Reading {
    let kind = match words.has(1, TokenKind::OpenParen) {
        true => words.closing(1).map_or(1, |close| close + 1),
        false => 1,
    };
    let concurrently = (1..words.len()).any(|index| words.is(index, "CONCURRENTLY"));
    let many = words.is_any(kind, &["SCHEMA", "DATABASE", "SYSTEM"]);
    Reading::new(Class::Maintenance, "REINDEX", Detail::Hidden).autocommit(concurrently || many)
}
