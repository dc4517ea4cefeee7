//! What an operator says of one policy, as values.
//!
//! Settings are JSON texts of objects in canonical form (keys sorted, no space), with the beneath lying
//! layers merged in already. Nothing here reads files: the component's bytes are in the value.

use std::borrow::Cow;
use std::fmt;
use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use crate::model::Mode;

/// The largest component, in bytes: a Python guest has 18 MB, and compiling takes memory in proportion.
pub const COMPONENT_BYTES_MAX: usize = 24 << 20;
/// The most policies of one set: each concerned one is run on every request.
pub const POLICIES_MAX: usize = 64;
/// The most owners' sections of one policy: each is configured, compiled and kept.
pub const SECTIONS_MAX: usize = 256;
/// The longest settings of one policy for one section, in bytes of JSON.
pub const SETTINGS_BYTES_MAX: usize = 64 << 10;
/// The deepest nesting of settings: guests read them recursively on a small stack.
pub const SETTINGS_DEPTH_MAX: usize = 16;

/// Fuel of one evaluation unless set otherwise: some 0.4 ms of work, a hundred times what the bundled policies need.
pub const FUEL_DEFAULT: u64 = 5_000_000;
/// The least fuel that can be set: below it not even a small guest reads its request.
pub const FUEL_MIN: u64 = 10_000;
/// The most fuel that can be set: some 4 ms on a worker that serves others too.
pub const FUEL_MAX: u64 = 50_000_000;
/// Linear memory of one instance unless set otherwise, in bytes.
pub const MEMORY_BYTES_DEFAULT: usize = 8 << 20;
/// The least memory that can be set, in bytes: two pages.
pub const MEMORY_BYTES_MIN: usize = 128 << 10;
/// The most memory that can be set, in bytes: what a slot of the pool reserves.
pub const MEMORY_BYTES_MAX: usize = 16 << 20;
/// The clock behind the fuel unless set otherwise, in milliseconds: long enough that a busy machine does not stop
/// what fuel allows.
pub const TIMEOUT_MS_DEFAULT: u64 = 250;
/// The least time that can be set, in milliseconds: two ticks of the clock and something.
pub const TIMEOUT_MS_MIN: u64 = 20;
/// The most time that can be set, in milliseconds.
pub const TIMEOUT_MS_MAX: u64 = 2_000;

/// A policy that comes with the program.
#[derive(Clone, Copy, Debug)]
pub struct Bundled {
    /// The name it is configured by.
    pub name: &'static str,
    /// The component.
    pub component: &'static [u8],
    /// The component's expected digest, in lower-case hexadecimal.
    pub sha256: &'static str,
    /// The settings beneath whatever is configured: JSON text of an object.
    pub default_settings: &'static str,
    /// Whether it applies where there is no policy file.
    pub by_default: bool,
}

/// A component's bytes with their digest.
#[derive(Clone, PartialEq, Eq)]
pub struct Component {
    bytes: Cow<'static, [u8]>,
    sha256: String,
}

impl Component {
    /// Takes a component's bytes.
    pub fn new(bytes: impl Into<Cow<'static, [u8]>>) -> Self {
        let bytes = bytes.into();
        let sha256 = sha256_hex(&bytes);
        Self { bytes, sha256 }
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the digest in lower-case hexadecimal.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }
}

impl fmt::Debug for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Component({} bytes, sha256 {})", self.bytes.len(), self.sha256)
    }
}

/// One policy of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The name in records and messages, unique within a set.
    pub name: String,
    /// What is run.
    pub component: Component,
    /// The digest the component must have.
    pub pin: Option<String>,
    /// Whether its word counts.
    pub mode: Mode,
    /// Of a candidate: the policy that it may come to stand for.
    pub of: Option<String>,
    /// Canonical JSON of an object, for owners without a section.
    pub settings: String,
    /// Settings of their own for some owners.
    pub sections: Vec<Section>,
    /// What an evaluation may use.
    pub limits: Limits,
    /// Whether statements' texts are shown to it; its decisions then cannot be replayed from records.
    pub sees_text: bool,
}

/// The settings for some owners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// An owner, or a pattern in which `*` stands for any text.
    pub pattern: String,
    /// Canonical JSON of an object: the section's keys laid over the policy's settings, one level deep.
    pub settings: String,
}

/// What one evaluation may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Decides first, and the same way each time.
    pub fuel: u64,
    /// Of each linear memory, in bytes.
    pub memory_bytes: usize,
    /// The clock behind the fuel, in milliseconds.
    pub timeout_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { fuel: FUEL_DEFAULT, memory_bytes: MEMORY_BYTES_DEFAULT, timeout_ms: TIMEOUT_MS_DEFAULT }
    }
}

/// Returns the SHA-256 of `bytes` in lower-case hexadecimal.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        // Writing to a string cannot fail.
        write!(out, "{byte:02x}").unwrap_or_default();
        out
    })
}
