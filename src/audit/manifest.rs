//! The list of segments: which there were, and how each ended.
//!
//! One file for all processes on a state directory, chained like a segment. A segment is listed before
//! its first line is written; `checkpoint` and `seal` entries say how long it was and what its last line's
//! hash was, so that a segment that is gone, cut or exchanged is noticed. What cannot be noticed from
//! within: that the newest segments were removed together with the manifest's end. Who fears that keeps
//! the manifest's own last hash, which verifying prints, somewhere else.

use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::chain::{Hash, Link};
use super::file::{ChainedFile, corrupt};
use super::record::json;
use crate::model::{Timestamp, fault};

/// The manifest's file name.
pub(super) const MANIFEST: &str = "manifest.jsonl";
/// How long another process may keep the manifest; it needs it for one line.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(2);
const LOCK_POLL: Duration = Duration::from_millis(2);

/// One line of the manifest, without hash and number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(super) enum Entry {
    /// A segment begins.
    Add { segment: String, at: String, pid: u32, build: String },
    /// A segment was at least this long.
    Checkpoint(Length),
    /// A segment is complete.
    Seal(Length),
}

/// How long a segment was, and its last line's hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Length {
    pub(super) segment: String,
    pub(super) at: String,
    pub(super) lines: u64,
    pub(super) bytes: u64,
    pub(super) last: String,
}

impl Length {
    pub(super) fn of(segment: String, link: Link, bytes: u64) -> Self {
        Self { segment, at: Timestamp::now().to_string(), lines: link.lines, bytes, last: link.hash.to_string() }
    }

    /// Returns whether `hash` is the last line's.
    pub(super) fn ends_with(&self, hash: Hash) -> bool {
        self.last == hash.to_string()
    }
}

/// Adds one entry, waiting for the other processes. `first` runs with the manifest locked, before the entry
/// is written; if it fails nothing is.
pub(super) fn add<T>(dir: &Path, entry: &Entry, first: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let mut manifest = locked(dir)?;
    let value = first()?;
    fault::reach("audit.manifest.append")?;
    manifest.append(&json(entry))?;
    manifest.reserve();
    if let Err(fault) = manifest.sync() {
        // It is written all the same: what verifies today verifies unless the machine goes down.
        tracing::warn!(%fault, "the disk did not take the audit log's manifest");
    }
    Ok(value)
}

/// Checks that the manifest can be added to.
pub(super) fn probe(dir: &Path) -> io::Result<()> {
    locked(dir).map(drop)
}

/// Reads the manifest's entries without checking the chain; nothing if there is no manifest.
pub(super) fn entries(dir: &Path) -> io::Result<Vec<Entry>> {
    fault::reach("audit.manifest.read")?;
    let text = match std::fs::read_to_string(path(dir)) {
        Ok(text) => text,
        Err(fault) if fault.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(fault) => return Err(fault),
    };
    let whole = text.rfind('\n').and_then(|end| text.get(..end)).unwrap_or_default();
    whole.lines().map(parse).collect()
}

/// Reads one line's entry.
pub(super) fn parse(line: &str) -> io::Result<Entry> {
    serde_json::from_str(line).map_err(|_| corrupt("a line of the manifest is damaged"))
}

pub(super) fn path(dir: &Path) -> PathBuf {
    dir.join(MANIFEST)
}

fn locked(dir: &Path) -> io::Result<ChainedFile> {
    let path = path(dir);
    let begun = Instant::now();
    loop {
        if let Some(manifest) = ChainedFile::open_end(&path)? {
            return Ok(manifest);
        }
        if begun.elapsed() > LOCK_WAIT_MAX {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "another process does not let go of the manifest"));
        }
        thread::sleep(LOCK_POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_that_is_held_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let held = locked(dir.path()).unwrap();
        let begun = Instant::now();
        assert_eq!(probe(dir.path()).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() >= LOCK_WAIT_MAX);
        drop(held);
        probe(dir.path()).unwrap();
    }
}
