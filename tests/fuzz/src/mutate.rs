//! Changes inputs: bytes of any kind, and texts by the pieces they are made of.

use crate::rng::Rng;

/// Bytes and numbers at which readers go wrong.
const EDGES: &[u8] =
    &[0, 1, 0x7f, 0x80, 0xff, b'\n', b'\r', b' ', b'"', b'\'', b'\\', b'{', b'[', b'$', b'%', b'-', b';'];

/// Changes some bytes: overwrites, inserts, removes, repeats, moves, or takes some of another input.
pub fn bytes(rng: &mut Rng, input: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..=rng.below(4) {
        let at = rng.below(input.len() + 1);
        match rng.below(8) {
            0 if at < input.len() => input[at] ^= 1 << rng.below(8),
            1 if at < input.len() => input[at] = *rng.pick_of(EDGES),
            2 => input.insert(at, *rng.pick_of(EDGES)),
            3 => {
                let end = (at + 1 + rng.below(16)).min(input.len());
                input.drain(at.min(end)..end);
            }
            4 => {
                let end = (at + 1 + rng.below(32)).min(input.len());
                let piece = input[at.min(end)..end].to_vec();
                let times = if rng.once_in(20) { 200 } else { 1 + rng.below(3) };
                for _ in 0..times {
                    input.splice(at..at, piece.iter().copied());
                }
            }
            5 if !other.is_empty() => {
                let from = rng.below(other.len());
                let end = (from + 1 + rng.below(64)).min(other.len());
                let until = (at + rng.below(32)).min(input.len());
                input.splice(at.min(until)..until, other[from..end].iter().copied());
            }
            6 if at + 4 <= input.len() => {
                let number: u32 = *rng.pick_of(&[0, 1, 4, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 65_536, 0xffff]);
                input[at..at + 4].copy_from_slice(&number.to_be_bytes());
            }
            7 if at + 4 <= input.len() => {
                let number = (rng.next() as u32) >> rng.below(32);
                input[at..at + 4].copy_from_slice(&number.to_be_bytes());
            }
            _ => {}
        }
    }
}

/// Cuts a text where letters, digits, blanks and signs meet.
pub fn pieces(text: &str) -> Vec<&str> {
    let class = |c: char| match c {
        c if c.is_alphanumeric() || c == '_' => 0,
        c if c.is_whitespace() => 1,
        _ => 2,
    };
    let mut all = Vec::new();
    let mut start = 0;
    let mut last = None;
    for (at, c) in text.char_indices() {
        let now = class(c);
        if last.is_some_and(|before| before != now || now == 2) {
            all.push(&text[start..at]);
            start = at;
        }
        last = Some(now);
    }
    if start < text.len() {
        all.push(&text[start..]);
    }
    all
}

/// Changes some pieces of a text, with words of `words` and pieces of `other` put in.
pub fn text(rng: &mut Rng, input: &str, other: &str, words: &[&str]) -> String {
    let mut all: Vec<String> = pieces(input).into_iter().map(str::to_owned).collect();
    let others = pieces(other);
    for _ in 0..=rng.below(4) {
        let at = rng.below(all.len() + 1);
        let here = at.min(all.len().saturating_sub(1));
        match rng.below(8) {
            0 => all.insert(at, rng.pick(words).to_owned()),
            1 if !all.is_empty() => all[here] = rng.pick(words).to_owned(),
            2 if !all.is_empty() => drop(all.remove(here)),
            3 if !all.is_empty() => {
                let end = (here + 1 + rng.below(6)).min(all.len());
                let piece = all[here..end].to_vec();
                let times = if rng.once_in(30) { 100 } else { 1 };
                for _ in 0..times {
                    all.splice(here..here, piece.iter().cloned());
                }
            }
            4 if !others.is_empty() => {
                let from = rng.below(others.len());
                let end = (from + 1 + rng.below(12)).min(others.len());
                let until = (at + rng.below(8)).min(all.len());
                all.splice(at.min(until)..until, others[from..end].iter().map(|p| (*p).to_owned()));
            }
            5 if !all.is_empty() => {
                let with = rng.below(all.len());
                all.swap(here, with);
            }
            6 if !all.is_empty() => {
                let end = (here + 1 + rng.below(8)).min(all.len());
                all.drain(here..end);
            }
            7 => {
                let c = *rng.pick_of(&['\0', '\u{1}', '\u{7f}', 'é', '\u{202e}', '\u{feff}', '%', '\n', '𝄞', '\u{a0}']);
                all.insert(at, c.to_string());
            }
            _ => {}
        }
    }
    all.concat()
}

/// Returns an input as text; what is not UTF-8 is replaced.
pub fn as_text(input: &[u8]) -> String {
    String::from_utf8_lossy(input).into_owned()
}
