//! Makes SQL: by grammar, and by changing statements token by token.

mod grammar;
mod words;

use pgsandbox::sql::scanner::{TokenKind, tokens};

use self::grammar::statement;
use self::words::{AROUND, BLANKS, LITERALS, SIGNS, WORDS};
use crate::rng::Rng;

/// Texts are kept short: what is long and deep has cases of its own.
const BYTES_MAX: usize = 6 << 10;

/// Makes a text of one of the ways.
pub fn make(rng: &mut Rng, kept: &[Vec<u8>]) -> Vec<u8> {
    let pick = |rng: &mut Rng| String::from_utf8_lossy(&kept[rng.below(kept.len())]).into_owned();
    let mut text = match rng.below(10) {
        0..=2 => statement(rng, 4),
        3 => format!("{}{}{}", statement(rng, 3), rng.pick(&["; ", ";", ";\n", " ;; ", "\n"]), pick(rng)),
        4 => deep(rng),
        _ => pick(rng),
    };
    for _ in 0..rng.below(5) {
        text = match rng.below(6) {
            0 => {
                let (before, after) = rng.pick_of(AROUND);
                format!("{before}{text}{after}")
            }
            1 => respaced(rng, &text),
            _ => {
                let other = if rng.once_in(2) { pick(rng) } else { statement(rng, 2) };
                changed(rng, &text, &other)
            }
        };
    }
    if text.len() > BYTES_MAX {
        let end = text.floor_char_boundary(BYTES_MAX);
        text.truncate(end);
    }
    text.into_bytes()
}

/// Makes something deep or long.
fn deep(rng: &mut Rng) -> String {
    let times = 1 + rng.below(400);
    match rng.below(12) {
        0 => format!("select {}1{}", "(".repeat(times), ")".repeat(times)),
        1 => format!("select 1{}", "+1".repeat(times)),
        2 => format!("select {}1", "- ".repeat(times)),
        3 => format!("select 1{}", " union select 1".repeat(times)),
        4 => format!("select {}1{}", "lower(".repeat(times), ")".repeat(times)),
        5 => format!("{}select 1{}", "/*".repeat(times % 40), "*/".repeat(times % 40)),
        6 => format!("select a{}", ".a".repeat(times)),
        7 => format!("select a{}", "[1]".repeat(times)),
        8 => format!("select {}1{}", "case when true then ".repeat(times), " end".repeat(times)),
        9 => format!("{}select 1{}", "select * from (".repeat(times), ") q".repeat(times)),
        10 => format!("select 1 {} 2", "@".repeat(times % 70)),
        _ => format!("select {}", "1,".repeat(times)),
    }
}

/// Changes the blanks between tokens, and how names are written.
fn respaced(rng: &mut Rng, text: &str) -> String {
    let Ok(all) = tokens(text) else { return text.to_owned() };
    let mut out = String::new();
    for token in all {
        let piece = &text[token.range()];
        match token.kind {
            TokenKind::Space if rng.once_in(3) => out.push_str(rng.pick(BLANKS)),
            TokenKind::Word if rng.once_in(12) => {
                let written = match rng.below(5) {
                    0 => format!("\"{}\"", piece.to_lowercase()),
                    1 => piece.to_uppercase(),
                    2 => format!("U&\"{piece}\""),
                    3 => piece.to_lowercase(),
                    _ => format!("{piece}\u{e9}"),
                };
                out.push_str(&written);
            }
            _ if rng.once_in(25) => {
                out.push_str(rng.pick(BLANKS));
                out.push_str(piece);
            }
            _ => out.push_str(piece),
        }
    }
    out
}

/// Changes some tokens.
fn changed(rng: &mut Rng, text: &str, other: &str) -> String {
    let cut = |text: &str| -> Vec<String> {
        match tokens(text) {
            Ok(all) => all.into_iter().map(|token| text[token.range()].to_owned()).collect(),
            Err(_) => crate::mutate::pieces(text).into_iter().map(str::to_owned).collect(),
        }
    };
    let mut all = cut(text);
    let others = cut(other);
    for _ in 0..=rng.below(3) {
        let at = rng.below(all.len() + 1);
        let here = at.min(all.len().saturating_sub(1));
        match rng.below(10) {
            0 | 1 => {
                let word = word(rng);
                all.insert(at, format!(" {word} "));
            }
            2 if !all.is_empty() => all[here] = word(rng).to_owned(),
            3 if !all.is_empty() => drop(all.remove(here)),
            4 if !all.is_empty() => {
                let end = (here + 1 + rng.below(8)).min(all.len());
                let piece = all[here..end].to_vec();
                let to = rng.below(all.len() + 1);
                all.splice(to..to, piece);
            }
            5 | 6 if !others.is_empty() => {
                let from = rng.below(others.len());
                let end = (from + 1 + rng.below(20)).min(others.len());
                let until = (at + rng.below(6)).min(all.len());
                let mut piece = others[from..end].to_vec();
                piece.insert(0, " ".to_owned());
                piece.push(" ".to_owned());
                all.splice(at.min(until)..until, piece);
            }
            7 if !all.is_empty() => {
                let with = rng.below(all.len());
                all.swap(here, with);
            }
            8 => {
                let inner = statement(rng, 2);
                all.insert(at, format!(" ({inner}) "));
            }
            9 => all.insert(
                at,
                rng.pick(&["'", "\"", "$$", "/*", "*/", "--", "\n", "(", ")", ";", "\u{b}", "\\"]).to_owned(),
            ),
            _ => {}
        }
    }
    all.concat()
}

fn word<'a>(rng: &mut Rng) -> &'a str {
    match rng.below(4) {
        0 => rng.pick(SIGNS),
        1 => rng.pick(LITERALS),
        _ => rng.pick(WORDS),
    }
}
