//! The scanner and the splitter, against Postgres' own scanner and parser.
//!
//! What holds for every text that we read and Postgres accepts: the tokens begin at the same bytes and are of the
//! same kinds, and the statements are the same bytes. What we refuse is nobody's risk and only counted.

use pgsandbox::sql::scanner::{Token, TokenKind as K, tokens};

use super::sql::{error_kind, ours};
use crate::driver::{Checked, Target};
use crate::oracle::{Answer, Lexeme, Node, Oracle};
use crate::rng::Rng;
use crate::sql_text;

pub struct Scanner {
    oracle: Oracle,
    accepted: u64,
    refused: u64,
}

impl Scanner {
    pub fn new() -> Self {
        Self { oracle: Oracle::start(), accepted: 0, refused: 0 }
    }
}

impl Target for Scanner {
    fn make(&mut self, rng: &mut Rng, kept: &[Vec<u8>]) -> Vec<u8> {
        let mut input = sql_text::make(rng, kept);
        if rng.once_in(8) {
            let other = kept[rng.below(kept.len())].clone();
            crate::mutate::bytes(rng, &mut input, &other);
        }
        input
    }

    fn check(&mut self, input: &[u8]) -> Checked {
        let Ok(whole) = std::str::from_utf8(input) else { return Ok("no text".to_owned()) };
        let script = ours(whole);
        // Nothing begins with the mark for Postgres; we step over it and send what follows.
        let text = whole.strip_prefix('\u{feff}').unwrap_or(whole);
        let skipped = whole.len() - text.len();
        if text.contains('\0') {
            return match script {
                Ok(_) => Err("nul: a text with a NUL is read".to_owned()),
                Err(error) => Ok(error_kind(&error)),
            };
        }
        let Some(Some(Answer { parsed, scanned })) = self.oracle.ask(&[text]).pop() else {
            return Ok("the oracle died".to_owned());
        };
        let script = match script {
            Ok(script) => script,
            Err(error) => {
                self.refused += u64::from(parsed.is_ok());
                return Ok(format!("{} accepted={}", error_kind(&error), parsed.is_ok()));
            }
        };
        let Some(scanned) = scanned else { return Ok(format!("refused by the scanner {}", script.statements.len())) };
        compare_tokens(text, &scanned)?;
        let Ok(tree) = parsed else { return Ok(format!("refused by the parser {}", script.statements.len())) };
        self.accepted += 1;
        // COPY data is psql's, and never sent as SQL.
        if script.statements.iter().any(|s| s.copy_data.is_some()) {
            return Ok("copy data".to_owned());
        }
        let statements = tree.get("stmts").map(Node::items).unwrap_or_default();
        if script.statements.len() != statements.len() {
            return Err(format!("statements: {} for us, {} for Postgres", script.statements.len(), statements.len()));
        }
        for (own, theirs) in script.statements.iter().zip(statements) {
            let own = own.text.start - skipped..own.text.end - skipped;
            let start = theirs.number("stmt_location") as usize;
            let length = theirs.number("stmt_len") as usize;
            let end = if length == 0 { text.len() } else { start + length };
            // Theirs begin after the `;` before and end at their own: around ours there may be nothing else.
            let outside = |l: &&Lexeme| !l.is_comment() && l.token != u64::from(b';') && !own.contains(&l.start);
            let left = scanned.iter().find(|l| l.start >= start && l.start < end && outside(l));
            if own.start < start || own.end > end || left.is_some() {
                return Err(format!("bounds: {own:?} for us, {start}..{end} for Postgres"));
            }
        }
        let classes: Vec<_> = script.statements.iter().take(3).map(|s| s.facts.class.as_str()).collect();
        Ok(format!("{} {classes:?} {}", script.statements.len(), kinds(text)))
    }

    fn note(&self) -> String {
        format!(
            "{} accepted by both, {} refused by us alone, oracle restarted {} times",
            self.accepted, self.refused, self.oracle.died
        )
    }
}

/// The kinds of tokens in a text, as a set.
fn kinds(text: &str) -> u64 {
    tokens(text).map_or(0, |all| all.iter().fold(0, |set, token| set | 1 << (token.kind as u64)))
}

fn compare_tokens(text: &str, theirs: &[Lexeme]) -> Result<(), String> {
    let Ok(own) = tokens(text) else { return Ok(()) };
    // Postgres 15 reads `0x1F` as a number and a name, 16 and later as a number. And libpg_query, unlike the server's
    // scanner, ends a string at a comment after it, even if it goes on in the next line.
    let differs = |token: &Token| match token.kind {
        K::Number => text[token.range()].contains(['x', 'X', 'o', 'O', 'b', 'B', '_']),
        K::String | K::UnicodeString => text[token.range()].contains("--"),
        _ => false,
    };
    if own.iter().any(differs) {
        return Ok(());
    }
    let mut cut = Vec::new();
    for token in own.into_iter().filter(|t| t.kind != K::Space) {
        // `N'…'` is two tokens for Postgres, the keyword NCHAR and the string.
        if token.kind == K::String && text[token.range()].starts_with(['n', 'N']) {
            cut.push(Token { kind: K::Word, end: token.start + 1, ..token });
            cut.push(Token { start: token.start + 1, ..token });
        } else {
            cut.push(token);
        }
    }
    let own = cut;
    for (own, theirs) in own.iter().zip(theirs) {
        if own.start != theirs.start {
            return Err(format!("token start: {} for us, {} for Postgres", own.start, theirs.start));
        }
        let same = match own.kind {
            K::Space => false,
            K::Comment => theirs.is_comment(),
            K::Word => theirs.keyword > 0 || theirs.token == 258,
            K::QuotedName => theirs.token == 258 && theirs.keyword == 0,
            K::UnicodeName => theirs.token == 259,
            K::String => matches!(theirs.token, 261 | 263 | 264),
            K::UnicodeString => theirs.token == 262,
            K::DollarString => theirs.token == 261,
            K::Number => matches!(theirs.token, 260 | 266),
            K::Parameter => theirs.token == 267,
            K::Operator => theirs.token < 256 || matches!(theirs.token, 265 | 272..=274),
            K::OpenParen => theirs.token == u64::from(b'('),
            K::CloseParen => theirs.token == u64::from(b')'),
            K::OpenBracket => theirs.token == u64::from(b'['),
            K::CloseBracket => theirs.token == u64::from(b']'),
            K::Comma => theirs.token == u64::from(b','),
            K::Semicolon => theirs.token == u64::from(b';'),
            K::Dot => theirs.token == u64::from(b'.'),
            K::DotDot => theirs.token == 269,
            K::Colon => theirs.token == u64::from(b':'),
            K::Cast => theirs.token == 268,
            K::Assign => theirs.token == 270,
            K::Arrow => theirs.token == 271,
            K::Backslash | K::Other => theirs.token < 256,
        };
        if !same {
            return Err(format!("token kind: {:?} for us, {} for Postgres", own.kind, theirs.token));
        }
    }
    if own.len() != theirs.len() {
        return Err(format!("token count: {} for us, {} for Postgres", own.len(), theirs.len()));
    }
    Ok(())
}
