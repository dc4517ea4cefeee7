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

    /// Returns the hash of a line that follows `self` and whose body is these parts together.
    fn then(self, body: &[&[u8]]) -> Self {
        let mut hasher = Sha256::new();
        hasher.update(self.0);
        body.iter().for_each(|part| hasher.update(part));
        Self(hasher.finalize().into())
    }
}

impl Hash {
    /// Returns the hash in lower-case hexadecimal.
    fn digits(self) -> [u8; HASH_CHARS] {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0; HASH_CHARS];
        for (pair, byte) in text.as_chunks_mut::<2>().0.iter_mut().zip(self.0) {
            *pair = [byte >> 4, byte & 15].map(|half| DIGITS.get(usize::from(half)).copied().unwrap_or_default());
        }
        text
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.digits()).unwrap_or_default())
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

    /// Makes in `line` the next line of `entry`, a JSON object's text with at least one key, with its line feed.
    pub(super) fn line(self, entry: &str, line: &mut Vec<u8>) -> Self {
        let keys = entry.strip_prefix('{').unwrap_or(entry);
        line.clear();
        line.extend_from_slice(HEAD.as_bytes());
        // The hash's place; what it is over stands behind it.
        line.extend_from_slice(&[b'0'; HASH_CHARS]);
        line.extend_from_slice(AFTER_HASH.as_bytes());
        let body = line.len();
        line.extend_from_slice(b"\"seq\":");
        line.extend_from_slice(self.lines.to_string().as_bytes());
        line.push(b',');
        line.extend_from_slice(keys.as_bytes());
        let hash = self.hash.then(&[b"{", line.get(body..).unwrap_or_default()]);
        if let Some(place) = line.get_mut(HEAD.len()..HEAD.len() + HASH_CHARS) {
            place.copy_from_slice(&hash.digits());
        }
        line.push(b'\n');
        Self { lines: self.lines + 1, hash }
    }

    /// Checks that `line`, without its line feed, is the next one. Returns where the chain stands after it.
    pub(super) fn check(self, line: &str) -> Result<Self, Broken> {
        let parts = split(line).ok_or(Broken::Shape)?;
        let hash = self.hash.then(&[b"{", parts.keys.as_bytes()]);
        if hash.digits() != *parts.hash.as_bytes() {
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

    fn line(link: Link, entry: &str) -> (Link, String) {
        let mut line = b"of before".to_vec();
        let next = link.line(entry, &mut line);
        (next, String::from_utf8(line).unwrap())
    }

    #[test]
    fn a_hash_is_sha256_over_the_one_before_and_the_object_without_it() {
        let start = Link::start("a");
        let (_, text) = line(start, "{\"kind\":\"x\"}");
        let mut hashed = Sha256::digest("pgsandbox audit 1\na").to_vec();
        hashed.extend_from_slice(b"{\"seq\":0,\"kind\":\"x\"}");
        let hash: String = Sha256::digest(&hashed).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(text, format!("{{\"hash\":\"{hash}\",\"seq\":0,\"kind\":\"x\"}}\n"));
    }

    #[test]
    fn a_line_checks_after_the_one_it_was_made_for_and_no_other() {
        let start = Link::start("a");
        let (one, first) = line(start, "{\"kind\":\"x\"}");
        let (two, second) = line(one, "{\"kind\":\"y\"}");
        assert_eq!(start.check(first.trim_end()), Ok(one));
        assert_eq!(one.check(second.trim_end()), Ok(two));
        assert_eq!(Link::after(second.trim_end()), Some(two));
        assert_eq!(start.check(second.trim_end()), Err(Broken::Hash));
        assert_eq!(Link::start("b").check(first.trim_end()), Err(Broken::Hash));
    }

    #[test]
    fn lines_are_json_with_the_hash_first() {
        let (_, line) = line(Link::start("a"), "{\"kind\":\"x\"}");
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
