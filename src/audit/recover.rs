//! Closes what a crash left open.
//!
//! A segment belongs to whoever holds its lock, and the system releases the lock with the process, so a
//! segment that can be locked has lost its writer. What such a process left open is closed as `abandoned` in
//! its own segment, which is then sealed. A segment that does not check, or is shorter than the manifest
//! says it once was, is evidence: it is reported and left as it is.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use super::file::corrupt;
use super::manifest::{self, Entry, Length};
use super::record::{CloseEntry, Ending, json};
use super::segment::{Dead, predecessor, take_over};
use crate::model::{RequestId, Timestamp, fault};

/// What recovery found and did.
#[derive(Debug, Default)]
pub struct Recovery {
    /// Requests that were open and are closed as abandoned now.
    pub abandoned: Vec<RequestId>,
    /// Segments that were sealed.
    pub sealed: Vec<String>,
    /// (segment, what is wrong with it) of those that could not be recovered.
    pub faults: Vec<(String, String)>,
}

/// Says in a segment that the end of its last line was missing.
#[derive(Serialize)]
struct Torn {
    kind: &'static str,
    at: String,
    torn_bytes: u64,
}

pub(super) fn recover(dir: &Path) -> io::Result<Recovery> {
    let mut recovery = Recovery::default();
    for (name, checkpoints) in unsealed(dir)? {
        match take_over(dir, &name) {
            Ok(None) => {}
            // Sealed by another process since the manifest was read.
            Ok(Some(_)) if !unsealed(dir)?.contains_key(&name) => {}
            Ok(Some(dead)) => match finish(dir, dead, &checkpoints, &mut recovery) {
                Ok(()) => recovery.sealed.push(name),
                Err(fault) => recovery.faults.push((name, fault.to_string())),
            },
            Err(fault) => recovery.faults.push((name, fault.to_string())),
        }
    }
    Ok(recovery)
}

/// Returns the listed segments that have no seal, with their checkpoints.
fn unsealed(dir: &Path) -> io::Result<BTreeMap<String, Vec<Length>>> {
    let mut segments = BTreeMap::new();
    for entry in manifest::entries(dir)? {
        match entry {
            Entry::Add { segment, .. } => {
                segments.insert(segment, Vec::new());
            }
            Entry::Checkpoint(length) => {
                if let Some(checkpoints) = segments.get_mut(&length.segment) {
                    checkpoints.push(length);
                }
            }
            Entry::Seal(length) => {
                segments.remove(&length.segment);
            }
        }
    }
    Ok(segments)
}

fn finish(dir: &Path, dead: Dead, checkpoints: &[Length], recovery: &mut Recovery) -> io::Result<()> {
    let Dead { mut segment, scan, open, links } = dead;
    for checkpoint in checkpoints {
        if !links.iter().any(|link| link.lines == checkpoint.lines && checkpoint.ends_with(link.hash)) {
            return Err(corrupt(&format!("it had {} lines once and has not any more", checkpoint.lines)));
        }
    }
    let now = Timestamp::now();
    if scan.torn_bytes > 0 {
        segment.file.cut_torn()?;
        let torn = Torn { kind: "torn", at: now.to_string(), torn_bytes: scan.torn_bytes };
        segment.file.append(&json(&torn))?;
    }
    // What was open when its process went on to another segment is that one's to close.
    let open = if open.is_empty() || has_successor(dir, &segment.file.name())? { BTreeSet::new() } else { open };
    for id in open {
        let Ok(id) = id.parse::<RequestId>() else { continue };
        let ending = Ending::Abandoned("the process ended");
        fault::reach("audit.abandoned.close")?;
        segment.file.append(&json(&CloseEntry::new(id, now, Duration::ZERO, ending)))?;
        recovery.abandoned.push(id);
    }
    segment.seal()
}

fn has_successor(dir: &Path, name: &str) -> io::Result<bool> {
    for entry in manifest::entries(dir)? {
        let Entry::Add { segment, .. } = entry else { continue };
        match predecessor(dir, &segment) {
            Ok(of) if of.as_deref() == Some(name) => return Ok(true),
            Ok(_) => {}
            Err(fault) if fault.kind() == io::ErrorKind::NotFound => {}
            Err(fault) => return Err(fault),
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::segment::Segment;
    use crate::audit::{file, verify};

    #[test]
    fn what_an_unsealed_segment_handed_on_is_its_successors_to_close() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("audit");
        file::private_dir(&dir).unwrap();
        let id = RequestId::fresh();
        let mut first = Segment::begin(&dir, None, &BTreeSet::new()).unwrap();
        first.file.append(&format!("{{\"kind\":\"open\",\"id\":\"{id}\"}}")).unwrap();
        let second = Segment::begin(&dir, Some(&first.file.name()), &BTreeSet::from([id])).unwrap();
        drop((first, second));
        let recovery = recover(&dir).unwrap();
        assert_eq!((recovery.abandoned, recovery.sealed.len()), (vec![id], 2));
        let report = verify(&dir).unwrap();
        assert!(report.is_sound(), "{report:?}");
    }

    #[test]
    fn a_dead_segment_that_was_longer_once_is_not_sealed() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("audit");
        file::private_dir(&dir).unwrap();
        let segment = Segment::begin(&dir, None, &BTreeSet::new()).unwrap();
        let mut longer = segment.length();
        longer.lines += 1;
        manifest::add(&dir, &Entry::Checkpoint(longer), || Ok(())).unwrap();
        drop(segment);
        let recovery = recover(&dir).unwrap();
        assert!(recovery.sealed.is_empty() && recovery.faults[0].1.contains("had 2 lines once"), "{recovery:?}");
    }
}
