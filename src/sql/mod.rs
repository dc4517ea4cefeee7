//! Reads SQL: tokens, statements, classes, touched relations and functions. No database here.
//!
//! A text is cut where Postgres cuts it ([`scanner`]), split into statements, and each is classed by its unquoted
//! keywords; a parser that is fed the same tokens adds relations, functions and a second opinion, of which the
//! stricter counts. What cannot be cut, or is over a limit, is an error; what is cut and not understood is
//! `unparsed`, or has the trait `relations-unknown`. Nothing here is the barrier against writes: that is the role
//! and the transaction in which a statement runs.
//!
//! Not here: what a policy makes of the facts, how statements are sent, and the syntax of SQL, which Postgres checks.

mod cache;
mod class;
mod error;
mod fingerprint;
mod functions;
mod places;
pub mod scanner;
mod split;
#[cfg(test)]
mod tests;
mod tree;
mod verdict;
mod words;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

pub use cache::{CACHE_BYTES_DEFAULT, Reader};
pub use error::{At, SqlError};

use class::{Detail, Reading};
use scanner::Token;
use split::Splitter;
use tree::TreeFacts;
use words::Words;

use crate::model::limits::{SQL_BYTES_MAX, SQL_STATEMENTS_MAX};
use crate::model::{Access, Code, Failure, Relation, StatementClass, StatementFacts, Traits};

/// The statements of one call's SQL, in order. A text of nothing but comments has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// None of them is of class `empty`.
    pub statements: Vec<Statement>,
}

/// One statement of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// Its bytes in the text, from its first word to its last sign, without the `;`.
    pub text: Range<usize>,
    /// The line on which it starts, from 1.
    pub line: usize,
    /// What it does.
    pub facts: StatementFacts,
    /// Whether Postgres runs it only outside a transaction block.
    pub wants_autocommit: bool,
    /// The extension that it installs by name.
    pub installs: Option<Installs>,
    /// For COPY … FROM STDIN: the bytes of the data that follows it, without the final `\.`.
    pub copy_data: Option<Range<usize>>,
}

impl Statement {
    /// Returns the line of `text`, which the statement was read from, on which one of its characters is, counted from 1; its
    /// first one's without it.
    pub fn line_at(&self, text: &str, character: Option<u32>) -> Option<u32> {
        let own = text.get(self.text.clone()).unwrap_or_default();
        let before = usize::try_from(character.map_or(0, |character| character.saturating_sub(1))).ok()?;
        let breaks = own.chars().take(before).filter(|c| *c == '\n').count();
        u32::try_from(self.line + breaks).ok()
    }
}

/// An extension that a statement installs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installs {
    /// Its name as Postgres folds it; `None` where it is written in escapes.
    pub name: Option<String>,
    /// Whether what it requires comes with it.
    pub cascades: bool,
}

/// Reads a text. Depends on nothing but the text.
pub fn read(text: &str) -> Result<Arc<Script>, SqlError> {
    let cut = cut(text)?;
    let to_parse: Vec<_> = cut.iter().filter_map(|c| c.parsed_part(text)).collect();
    let mut trees = tree::read_all(&to_parse).into_iter();
    let statements = cut
        .into_iter()
        .map(|statement| {
            let tree = match &statement.reading.detail {
                Detail::Parse(_) => trees.next().flatten(),
                Detail::Relation(index) => one_relation(&statement.words(text), *index),
                Detail::Nothing => Some(TreeFacts { complete: true, ..TreeFacts::default() }),
                Detail::Hidden => None,
            };
            let tree = match tree {
                Some(tree) if tree.complete => Some(tree),
                other => places::read(&statement.words(text)).or(other),
            };
            finish(statement, text, tree)
        })
        .collect();
    Ok(Arc::new(Script { statements }))
}

/// Says why a text cannot be read, with the statement and the place in it where that can be told.
pub fn failure(error: SqlError, text: &str) -> Failure {
    let at = error.at();
    let mut failure = Failure::from(error);
    let Some(at) = at else { return failure };
    let syntax = failure.code == Code::SyntaxError;
    let detail = failure.detail_mut();
    detail.line = u32::try_from(at.line).ok();
    (detail.statement_index, detail.position) = place(text, at.byte).unzip();
    if syntax {
        detail.sqlstate = Some(SYNTAX_ERROR.to_owned());
    }
    failure
}

/// Postgres' code for what cannot be parsed.
const SYNTAX_ERROR: &str = "42601";

/// Returns in which statement a byte is, and at which of its characters, both from 1. What is before it can be read.
fn place(text: &str, byte: usize) -> Option<(u32, u32)> {
    // A word in the byte's place, so that its statement is there however little of it comes before.
    let mut before = text.get(..byte)?.to_owned();
    before.push('x');
    let statements = cut(&before).ok()?;
    let start = statements.last()?.text.start;
    let characters = before.get(start..byte)?.chars().count();
    Some((u32::try_from(statements.len()).ok()?, u32::try_from(characters + 1).ok()?))
}

/// A statement with what its keywords say.
#[derive(Debug)]
struct Cut {
    text: Range<usize>,
    line: usize,
    tokens: Vec<Token>,
    misleading_comment: bool,
    copy_data: Option<Range<usize>>,
    reading: Reading,
}

impl Cut {
    fn words<'a>(&'a self, text: &'a str) -> Words<'a> {
        Words::new(text, &self.tokens)
    }

    fn parsed_part<'a>(&'a self, text: &'a str) -> Option<Words<'a>> {
        match &self.reading.detail {
            Detail::Parse(range) => Some(self.words(text).part(range.clone())),
            Detail::Relation(_) | Detail::Nothing | Detail::Hidden => None,
        }
    }
}

/// Cuts a text into statements and reads their keywords.
fn cut(text: &str) -> Result<Vec<Cut>, SqlError> {
    if text.len() > SQL_BYTES_MAX {
        return Err(SqlError::TooLong { bytes: text.len() });
    }
    let mut splitter = Splitter::new(text)?;
    let mut statements = Vec::new();
    let mut tokens = Vec::new();
    let mut lines = Lines::default();
    while let Some(piece) = splitter.next_piece(&mut tokens)? {
        if statements.len() == SQL_STATEMENTS_MAX {
            return Err(SqlError::Statements { at: At::new(text, piece.text.start) });
        }
        let reading = class::read(&Words::new(text, &tokens));
        let takes_data = reading.class == StatementClass::CopyIn;
        let copy_data = takes_data.then(|| splitter.take_copy_data()).flatten();
        statements.push(Cut {
            line: lines.of(text, piece.text.start),
            text: piece.text,
            tokens: tokens.clone(),
            misleading_comment: piece.misleading_comment,
            copy_data,
            reading,
        });
    }
    Ok(statements)
}

/// Counts lines once over a text that is read from left to right.
#[derive(Debug, Default)]
struct Lines {
    byte: usize,
    breaks: usize,
}

impl Lines {
    fn of(&mut self, text: &str, byte: usize) -> usize {
        let between = text.as_bytes().get(self.byte..byte).unwrap_or_default();
        self.breaks += between.iter().filter(|b| **b == b'\n').count();
        self.byte = byte;
        self.breaks + 1
    }
}

/// Makes the facts of a statement whose only relation is named at a known token.
fn one_relation(words: &Words<'_>, index: usize) -> Option<TreeFacts> {
    // COPY … TO reads; COPY … FROM and REFRESH give the relation other rows.
    let copies_out = words.find_outside(index + 1, &["FROM", "TO"]).is_some_and(|at| words.is(at, "TO"));
    let access = if copies_out { Access::Reads } else { Access::Writes };
    let name = words.relation_name(index)?;
    Some(TreeFacts {
        complete: true,
        column_lists: BTreeSet::from([name.clone()]),
        relations: BTreeSet::from([Relation { name, access }]),
        ..TreeFacts::default()
    })
}

/// Puts together what keywords, tree and function names say.
fn finish(statement: Cut, text: &str, tree: Option<TreeFacts>) -> Statement {
    use StatementClass as C;
    let words = statement.words(text);
    let keyword_class = statement.reading.class;
    let tree_class = tree.as_ref().and_then(|t| t.class);
    let class = stricter(keyword_class, tree_class);
    let parsed = matches!(statement.reading.detail, Detail::Parse(_));
    // Where keywords and tree see different statements, one of them took a name for a keyword: no name is trusted.
    let keyword_inside = statement.reading.class_inside;
    let differ = match (keyword_inside, tree_class) {
        (C::Read | C::ReadLock | C::Write | C::Ddl, Some(tree)) => tree != keyword_inside,
        (C::Read | C::ReadLock, None) => true,
        // A definition with a query inside: an INTO that the tree has not seen makes a relation that it does not know.
        (C::Ddl, None) => class::makes_relation_by_into(&words),
        _ => false,
    };
    let tree = tree.map(|tree| TreeFacts { complete: tree.complete && !(parsed && differ), ..tree });
    // A plain EXPLAIN may be of a write; every other safe class is about a query that only reads.
    let agrees = !parsed || class == StatementClass::Explain || tree_class == Some(StatementClass::Read);

    let mut traits = statement.reading.traits;
    let mut relations = Vec::new();
    let mut called = Vec::new();
    match &tree {
        Some(tree) => {
            if tree.no_where {
                traits.insert(Traits::NO_WHERE);
            }
            if tree.nested_write {
                traits.insert(Traits::DATA_MODIFYING_CTE);
            }
            for call in &tree.calls {
                traits.insert(call_traits(call));
            }
            if tree.complete && !names_are_escaped(&words) && !names_function_by_type(&words) {
                if tree.relations.iter().any(|r| !is_qualified(&r.name)) {
                    traits.insert(Traits::UNQUALIFIED_RELATION);
                }
                relations = tree.relations.iter().cloned().collect();
                called = called_names(tree);
            } else {
                traits.insert(Traits::RELATIONS_UNKNOWN);
            }
        }
        None => traits.insert(Traits::RELATIONS_UNKNOWN),
    }
    let read_only_safe = agrees
        && !statement.misleading_comment
        && verdict::is_read_only_safe(&words, class, tree.as_ref().filter(|t| t.complete));
    let facts = StatementFacts {
        class,
        tag: statement.reading.tag.clone(),
        traits,
        relations,
        functions: called,
        read_only_safe,
        fingerprint: fingerprint::of(&words),
    };
    Statement {
        facts,
        installs: class::installs(&words),
        text: statement.text.clone(),
        line: statement.line,
        wants_autocommit: statement.reading.wants_autocommit,
        copy_data: statement.copy_data.clone(),
    }
}

/// Returns the stricter of two opinions about a query; of other statements the tree has none.
fn stricter(keywords: StatementClass, tree: Option<StatementClass>) -> StatementClass {
    use StatementClass as C;
    let rank = |class| [C::ReadLock, C::Write, C::Ddl].iter().position(|c| *c == class);
    match tree {
        // A plain EXPLAIN is not among them: it runs nothing, whatever it is about.
        Some(tree)
            if rank(tree) > rank(keywords)
                && matches!(
                    keywords,
                    C::Read | C::CopyOut | C::Prepared | C::Cursor | C::ReadLock | C::Write | C::Ddl
                ) =>
        {
            tree
        }
        Some(_) | None => keywords,
    }
}

fn call_traits(call: &tree::Call) -> Traits {
    if call.schema.is_none() && !call.quoted && functions::is_construct(&call.name) {
        return Traits::default();
    }
    match call.schema.as_deref() {
        None | Some("pg_catalog") => functions::built_in(&call.name).map(|f| f.traits),
        Some(_) => None,
    }
    .unwrap_or_else(|| functions::foreign_traits(&call.name))
}

fn called_names(tree: &TreeFacts) -> Vec<String> {
    let names: BTreeSet<_> = tree
        .calls
        .iter()
        .map(|call| match &call.schema {
            Some(schema) => format!("{schema}.{}", words::quoted_if_dotted(&call.name)),
            None => words::quoted_if_dotted(&call.name),
        })
        .collect();
    names.into_iter().collect()
}

/// Returns whether a name is written in Unicode escapes, so that it is not known here.
fn names_are_escaped(words: &Words<'_>) -> bool {
    words.tokens().iter().any(|t| t.kind == scanner::TokenKind::UnicodeName)
}

/// Returns whether there is a `TREAT(x AS name)`: Postgres calls its own function of that name.
fn names_function_by_type(words: &Words<'_>) -> bool {
    (0..words.len()).any(|index| words.is(index, "TREAT") && words.has(index + 1, scanner::TokenKind::OpenParen))
}

/// Returns whether a folded name has a schema; a dot inside quotes makes none.
fn is_qualified(name: &str) -> bool {
    let mut quoted = false;
    name.chars().any(|c| {
        quoted ^= c == '"';
        c == '.' && !quoted
    })
}
