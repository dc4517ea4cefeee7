//! Hashes a statement's shape: equal for statements that differ only in their values, and the same in every build.
//!
//! Two shapes may by chance, or by design of their author, have one hash: it groups and labels, and proves nothing.

use super::words::Words;
use crate::model::Fingerprint;

/// FNV-1a, 64 bits: <http://www.isthe.com/chongo/tech/comp/fnv/>.
const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0100_0000_01b3;

/// Hashes words folded, names as they are, and a `?` for every literal and parameter.
pub(super) fn of(words: &Words<'_>) -> Fingerprint {
    let mut hash = OFFSET;
    for (index, token) in words.tokens().iter().enumerate() {
        hash = if token.kind.is_value() { add(hash, b"?") } else { add(hash, words.name(index).as_bytes()) };
        // No token has a NUL in it.
        hash = add(hash, b"\0");
    }
    Fingerprint(hash)
}

fn add(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME))
}
