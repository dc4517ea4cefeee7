//! The hash chain: how one line of a log vouches for all lines before it.
//!
//! A line is one JSON object whose first key is its hash: `{"hash":"…","seq":N,…}`. The hash is SHA-256
//! over the hash of the line before it and the line's own text without the hash, byte for byte, so
//! checking needs no JSON at all and does not depend on how a library prints it. The first line of a
//! file follows a hash of the file's own name: a file under another's name does not check.
//! Nothing here does input or output.

use std::fmt;

use sha2::{Digest, Sha256};

/// The link between two lines.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Hash([u8; 32]);

impl Hash {
    /// Returns what the first line of the file called `name` follows.
    pub(super) fn before_first(name: &str) -> Self {
        Self(Sha256::digest(format!("pgsandbox audit 1\n{name}")).into())
    }

    /// Returns the hash of a line with `body` that follows `self`.
    fn then(self, body: &str) -> Self {
        let mut hasher = Sha256::new();
        hasher.update(self.0);
        hasher.update(body.as_bytes());
        Self(hasher.finalize().into())
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digit = |half: u8| char::from_digit(u32::from(half), 16).unwrap_or('0');
        let text: String = self.0.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect();
        f.write_str(&text)
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What stands before a line's hash and after it.
const HEAD: &str = "{\"hash\":\"";
const AFTER_HASH: &str = "\",";
/// Hexadecimal digits of a hash.
const HASH_CHARS: usize = 64;

/// Where a chain stands: the number of its lines and the hash of the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) lines: u64,
    pub(super) hash: Hash,
}

impl Link {
    /// Returns where the empty file called `name` stands.
    pub(super) fn start(name: &str) -> Self {
        Self { lines: 0, hash: Hash::before_first(name) }
    }

    /// Makes the next line of `entry`, a JSON object's text with at least one key, with its line feed.
    pub(super) fn line(self, entry: &str) -> (Self, String) {
        let keys = entry.strip_prefix('{').unwrap_or(entry);
        let body = format!("{{\"seq\":{},{keys}", self.lines);
        let hash = self.hash.then(&body);
        let line = format!("{HEAD}{hash}{AFTER_HASH}{}\n", body.strip_prefix('{').unwrap_or(&body));
        (Self { lines: self.lines + 1, hash }, line)
    }

    /// Checks that `line`, without its line feed, is the next one. Returns where the chain stands after it.
    pub(super) fn check(self, line: &str) -> Result<Self, Broken> {
        let parts = split(line).ok_or(Broken::Shape)?;
        let body = format!("{{{}", parts.keys);
        let hash = self.hash.then(&body);
        if hash.to_string() != parts.hash {
            return Err(Broken::Hash);
        }
        if !parts.keys.starts_with(&format!("\"seq\":{},", self.lines)) {
            return Err(Broken::Sequence);
        }
        Ok(Self { lines: self.lines + 1, hash })
    }

    /// Reads where a chain stands after `line`, without checking it.
    pub(super) fn after(line: &str) -> Option<Self> {
        let parts = split(line)?;
        let (seq, _) = parts.keys.strip_prefix("\"seq\":")?.split_once(',')?;
        let mut bytes = [0; 32];
        for (byte, digits) in bytes.iter_mut().zip(parts.hash.as_bytes().chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        }
        Some(Self { lines: seq.parse::<u64>().ok()?.checked_add(1)?, hash: Hash(bytes) })
    }
}

/// How a line does not follow the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// It is not a line of a log at all.
    Shape,
    /// It was changed, or what was before it was.
    Hash,
    /// Its number is not the next one.
    Sequence,
}

struct Parts<'a> {
    hash: &'a str,
    keys: &'a str,
}

fn split(line: &str) -> Option<Parts<'_>> {
    let rest = line.strip_prefix(HEAD)?;
    let (hash, rest) = rest.split_at_checked(HASH_CHARS)?;
    let keys = rest.strip_prefix(AFTER_HASH)?;
    hash.bytes().all(|b| b.is_ascii_hexdigit()).then_some(Parts { hash, keys })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_checks_after_the_one_it_was_made_for_and_no_other() {
        let start = Link::start("a");
        let (one, first) = start.line("{\"kind\":\"x\"}");
        let (two, second) = one.line("{\"kind\":\"y\"}");
        assert_eq!(start.check(first.trim_end()), Ok(one));
        assert_eq!(one.check(second.trim_end()), Ok(two));
        assert_eq!(Link::after(second.trim_end()), Some(two));
        assert_eq!(start.check(second.trim_end()), Err(Broken::Hash));
        assert_eq!(Link::start("b").check(first.trim_end()), Err(Broken::Hash));
    }

    #[test]
    fn lines_are_json_with_the_hash_first() {
        let (_, line) = Link::start("a").line("{\"kind\":\"x\"}");
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["seq"], 0);
        assert_eq!(value["kind"], "x");
        assert_eq!(value["hash"].as_str().unwrap().len(), 64);
    }

    #[test]
    fn what_is_no_line_is_said_to_be_none() {
        for line in ["", "{}", "{\"hash\":\"é", "{\"hash\":\"00\",\"seq\":0}"] {
            assert_eq!(Link::start("a").check(line), Err(Broken::Shape), "{line}");
            assert_eq!(Link::after(line), None);
        }
    }
}
