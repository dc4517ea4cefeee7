//! Reads a statement's tokens with the parser, for what only a tree can tell: relations, functions, a second opinion.
//!
//! The parser gets our tokens and never the text, so it cannot see other boundaries than Postgres does; it must use
//! them up. Literals are blanked before it sees them. Its trees are looked at and dropped where they are made, on a
//! stack that is large enough, and are never cloned: chains of operators make them as deep as they are long.

#![expect(clippy::wildcard_enum_match_arm, reason = "the parser's enums list many dialects and grow with each release")]

mod convert;
mod facts;

use std::panic::catch_unwind;

use sqlparser::dialect::PostgreSqlDialect;
use sqlparser::parser::Parser;
use sqlparser::tokenizer::Token as ParserToken;

pub(super) use facts::{Call, TreeFacts};

use super::scanner::TokenKind;
use super::words::Words;

/// The deepest tree that is read on the caller's stack: its drop takes a few hundred bytes a level.
const DEPTH_ON_CALLERS_STACK_MAX: usize = 1_000;
/// The stack of the thread for deeper trees: `SQL_TOKENS_PER_STATEMENT_MAX` levels fit, in debug builds too.
const BIG_STACK_BYTES: usize = 256 << 20;

/// Reads several statements; `None` where the parser does not understand one.
pub(super) fn read_all(statements: &[Words<'_>]) -> Vec<Option<TreeFacts>> {
    let read = || statements.iter().map(read).collect();
    if statements.iter().all(|words| depth_bound(words) <= DEPTH_ON_CALLERS_STACK_MAX) {
        return read();
    }
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("sql-tree".to_owned()).stack_size(BIG_STACK_BYTES);
        let result = thread.spawn_scoped(scope, read).ok().and_then(|thread| thread.join().ok());
        // Without a thread nothing is known of relations, which is safe to say of any statement.
        result.unwrap_or_else(|| statements.iter().map(|_| None).collect())
    })
}

fn read(words: &Words<'_>) -> Option<TreeFacts> {
    // A parser that gives up by panicking has not understood the statement; nothing of it is used afterwards.
    catch_unwind(|| parse(words)).ok().flatten()
}

fn parse(words: &Words<'_>) -> Option<TreeFacts> {
    let tokens = convert::tokens(words)?;
    let dialect = PostgreSqlDialect {};
    let mut parser = Parser::new(&dialect).with_tokens(tokens);
    let statement = parser.parse_statement().ok()?;
    if parser.peek_token_ref().token != ParserToken::EOF {
        return None;
    }
    facts::gather(&statement)
}

/// Returns a bound of how deep a statement's tree can be.
///
/// A tree is deep where something follows something without a comma between them: the bound is the longest such
/// row, with the rows around it.
fn depth_bound(words: &Words<'_>) -> usize {
    let mut rows = vec![0_usize];
    let (mut sum, mut bound) = (0_usize, 0_usize);
    for token in words.tokens() {
        match token.kind {
            TokenKind::OpenParen | TokenKind::OpenBracket => rows.push(0),
            TokenKind::CloseParen | TokenKind::CloseBracket if rows.len() > 1 => {
                sum -= rows.pop().unwrap_or_default();
            }
            TokenKind::Comma => {
                if let Some(row) = rows.last_mut() {
                    sum -= *row;
                    *row = 0;
                }
            }
            _ => {
                if let Some(row) = rows.last_mut() {
                    *row += 1;
                    sum += 1;
                }
            }
        }
        bound = bound.max(sum + rows.len());
    }
    bound
}
