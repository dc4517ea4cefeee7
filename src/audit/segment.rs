//! One process' own file of audit lines, from its listing in the manifest to its seal.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::chain::Link;
use super::file::{ChainedFile, Scan};
use super::manifest::{self, Entry, Length};
use super::record::json;
use super::room;
use crate::model::{RequestId, Timestamp, fault};

/// What all segments' names begin and end with.
const PREFIX: &str = "segment-";
const SUFFIX: &str = ".jsonl";

/// The first line of a segment.
#[derive(Serialize)]
struct Header<'a> {
    kind: &'static str,
    format: u32,
    segment: &'a str,
    at: String,
    build: &'static str,
    pid: u32,
    /// The segment this one goes on from.
    #[serde(skip_serializing_if = "Option::is_none")]
    previous: Option<&'a str>,
    /// Requests that were open when it began.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    carried: Vec<String>,
}

/// The few keys of a line that this program itself reads back.
#[derive(Deserialize)]
struct Keys {
    kind: String,
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    previous: Option<String>,
    #[serde(default)]
    carried: Vec<String>,
}

/// What a line means for which requests are open.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    Opens(String),
    Closes(String),
    /// The segment begins, and these are open.
    Carries(Vec<String>),
    Nothing,
}

impl Event {
    pub(super) fn of(line: &str) -> Self {
        let Ok(keys) = serde_json::from_str::<Keys>(line) else { return Self::Nothing };
        match (keys.kind.as_str(), keys.id) {
            ("open", Some(id)) => Self::Opens(id),
            ("close", Some(id)) => Self::Closes(id),
            ("segment", _) => Self::Carries(keys.carried),
            _ => Self::Nothing,
        }
    }
}

/// A segment being written.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) file: ChainedFile,
    dir: PathBuf,
}

impl Segment {
    /// Begins a segment: makes it, writes its first line, lists it.
    pub(super) fn begin(dir: &Path, previous: Option<&str>, carried: &BTreeSet<RequestId>) -> io::Result<Self> {
        let now = Timestamp::now();
        let pid = std::process::id();
        let name = segment_name(now, pid);
        let path = dir.join(&name);
        let header = json(&Header {
            kind: "segment",
            format: 1,
            segment: &name,
            at: now.to_string(),
            build: super::BUILD,
            pid,
            previous,
            carried: carried.iter().map(ToString::to_string).collect(),
        });
        let entry = Entry::Add { segment: name.clone(), at: now.to_string(), pid, build: super::BUILD.to_owned() };
        // Made and locked while the manifest is, so that nobody takes it for a dead process' segment. A crash
        // before the listing leaves a file with nothing but its header, which is passed over.
        let listed = manifest::add(dir, &entry, || {
            let begun = ChainedFile::create(&path).and_then(|file| headed(file, &header));
            let file = match begun {
                Err(fault) if fault.kind() == io::ErrorKind::StorageFull => {
                    // What there is of it is written over.
                    ChainedFile::from_spare(&path).and_then(|file| headed(file, &header)).map_err(|_| fault)?
                }
                begun => begun?,
            };
            room::keep_spare(dir);
            Ok(file)
        });
        if listed.is_err() {
            // If it stays it is such a file.
            drop(fs::remove_file(&path));
        }
        Ok(Self { file: listed?, dir: dir.to_owned() })
    }

    /// Returns how long the segment is now.
    pub(super) fn length(&self) -> Length {
        Length::of(self.file.name(), self.file.link(), self.file.bytes())
    }

    /// Forces the segment to disk and says in the manifest that it is complete.
    pub(super) fn seal(&self) -> io::Result<()> {
        fault::reach("audit.segment.seal")?;
        self.file.sync()?;
        // It takes no more lines. Under the manifest's lock, as nobody else makes or takes the spare room meanwhile.
        manifest::add(&self.dir, &Entry::Seal(self.length()), || self.file.release(&self.dir))
    }
}

fn headed(mut file: ChainedFile, header: &str) -> io::Result<ChainedFile> {
    file.append(header)?;
    file.reserve();
    Ok(file)
}

/// A segment whose process is gone.
pub(super) struct Dead {
    pub(super) segment: Segment,
    pub(super) scan: Scan,
    /// Requests that were never closed.
    pub(super) open: BTreeSet<String>,
    /// Where its chain stood after each line.
    pub(super) links: Vec<Link>,
}

/// Takes over a segment if its process is gone.
pub(super) fn take_over(dir: &Path, name: &str) -> io::Result<Option<Dead>> {
    let mut open = BTreeSet::new();
    let mut links = Vec::new();
    let found = ChainedFile::open_scanned(&dir.join(name), |line, link| {
        match Event::of(line) {
            Event::Opens(id) => {
                open.insert(id);
            }
            Event::Closes(id) => {
                open.remove(&id);
            }
            Event::Carries(ids) => open.extend(ids),
            Event::Nothing => {}
        }
        links.push(link);
    })?;
    Ok(found.map(|(file, scan)| Dead { segment: Segment { file, dir: dir.to_owned() }, scan, open, links }))
}

/// Returns the name of the segment that the one called `name` goes on from.
pub(super) fn predecessor(dir: &Path, name: &str) -> io::Result<Option<String>> {
    fault::reach("audit.predecessor.read")?;
    let mut line = String::new();
    BufReader::new(File::open(dir.join(name))?).read_line(&mut line)?;
    Ok(serde_json::from_str::<Keys>(&line).ok().and_then(|keys| keys.previous))
}

/// Returns whether a file of the directory is named like a segment.
pub(super) fn is_segment_name(name: &str) -> bool {
    name.starts_with(PREFIX) && name.ends_with(SUFFIX)
}

/// Names a segment so that names sort by time and no two processes ever choose the same.
fn segment_name(now: Timestamp, pid: u32) -> String {
    let unique = Uuid::new_v4().simple().to_string();
    let time: String = now.to_string().chars().filter(|c| !matches!(c, '-' | ':')).collect();
    format!("{PREFIX}{time}-{pid}-{}{SUFFIX}", unique.get(..8).unwrap_or(&unique))
}
