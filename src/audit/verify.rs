//! Checks a log: that no line was changed, moved or removed, and that what was opened was closed.
//!
//! Reading only; may run while processes write. Every fault is found, not just the first.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use super::chain::{Broken, Link};
use super::file::{LINE_BYTES_MAX, is_held};
use super::manifest::{self, Entry, Length, MANIFEST};
use super::segment::{Event, is_segment_name};

/// What verifying found.
#[derive(Debug, Default)]
pub struct VerifyReport {
    /// Segments that were read.
    pub segments: usize,
    /// Lines that were read, the manifest's included.
    pub lines: u64,
    /// Requests that are open in processes that still run.
    pub open: usize,
    /// The manifest's last hash. Kept elsewhere, it shows later whether the manifest's end was removed.
    pub head: String,
    /// What is wrong.
    pub faults: Vec<Fault>,
}

impl VerifyReport {
    /// Returns whether nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.faults.is_empty()
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The file's name.
    pub file: String,
    /// The line, from 1, if it is about one.
    pub line: Option<u64>,
    /// What is wrong with it.
    pub what: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.file)?;
        if let Some(line) = self.line {
            write!(f, " line {line}")?;
        }
        write!(f, ": {}", self.what)
    }
}

/// What the manifest says of one segment.
#[derive(Default)]
struct Listed {
    lengths: Vec<Length>,
    seal: Option<Length>,
}

/// Checks the log in `dir`. A directory without a log has nothing wrong with it.
///
/// # Errors
/// Fails if the directory itself cannot be read; files that cannot be read are faults in the report.
pub fn verify(dir: &Path) -> io::Result<VerifyReport> {
    let mut report = VerifyReport::default();
    // The directory is read before the manifest: a segment is listed before it has a line, so one seen here
    // with lines in it must be in the manifest read afterwards.
    let present = present(dir)?;
    let listed = read_manifest(dir, !present.is_empty(), &mut report);
    for (name, bytes) in present {
        let is_listed = listed.iter().any(|(of, _)| *of == name);
        if !is_listed && has_lines(&dir.join(&name), bytes) {
            report.fault(&name, None, "the manifest does not list it");
        }
    }
    let mut requests = Requests::default();
    let mut living = BTreeSet::new();
    let mut broken = BTreeSet::new();
    for (name, listed) in &listed {
        match read_segment(dir, name, listed, &mut report, &mut requests) {
            Writer::Alive => {
                living.insert(name.clone());
            }
            Writer::Gone => {}
            Writer::Unknown => {
                broken.insert(name.clone());
            }
        }
    }
    for (id, segment) in requests.open {
        if living.contains(&segment) {
            report.open += 1;
        } else if !broken.contains(&segment) {
            report.fault(&segment, None, &format!("request {id} was never closed"));
        }
    }
    if broken.is_empty() {
        for (id, segment) in requests.closed_unopened {
            report.fault(&segment, None, &format!("request {id} is closed and was not open"));
        }
    }
    Ok(report)
}

/// Which requests are open, over all segments in the order they were begun.
#[derive(Default)]
struct Requests {
    /// With the segment that is to close it.
    open: BTreeMap<String, String>,
    closed_unopened: Vec<(String, String)>,
}

impl Requests {
    fn follow(&mut self, line: &str, segment: &str) {
        match Event::of(line) {
            Event::Opens(id) => {
                self.open.insert(id, segment.to_owned());
            }
            Event::Closes(id) => {
                if self.open.remove(&id).is_none() {
                    self.closed_unopened.push((id, segment.to_owned()));
                }
            }
            Event::Carries(ids) => {
                for id in ids {
                    if let Some(of) = self.open.get_mut(&id) {
                        segment.clone_into(of);
                    }
                }
            }
            Event::Nothing => {}
        }
    }
}

#[derive(PartialEq, Eq)]
enum Writer {
    Alive,
    Gone,
    /// The segment is missing or damaged.
    Unknown,
}

impl VerifyReport {
    fn fault(&mut self, file: &str, line: Option<u64>, what: &str) {
        self.faults.push(Fault { file: file.to_owned(), line, what: what.to_owned() });
    }
}

fn present(dir: &Path) -> io::Result<BTreeMap<String, u64>> {
    let mut names = BTreeMap::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if is_segment_name(&name) {
            names.insert(name, entry.metadata()?.len());
        }
    }
    Ok(names)
}

/// Returns whether more than a header is in the first `bytes` of a file.
fn has_lines(path: &Path, bytes: u64) -> bool {
    let Ok(file) = File::open(path) else { return true };
    let mut lines = BufReader::new(file.take(bytes)).split(b'\n');
    lines.next().is_some() && lines.next().is_some()
}

/// Reads the manifest: segments in the order they were begun.
fn read_manifest(dir: &Path, needed: bool, report: &mut VerifyReport) -> Vec<(String, Listed)> {
    let mut listed = Vec::<(String, Listed)>::new();
    let mut entries = Vec::new();
    let read = read_lines(&manifest::path(dir), MANIFEST, report, |line, _| entries.push(manifest::parse(line)));
    match read {
        Ok(end) => {
            report.head = end.link.hash.to_string();
            if end.torn && is_held(&manifest::path(dir)).is_ok_and(|held| !held) {
                report.fault(MANIFEST, Some(end.link.lines + 1), "it ends in the middle of a line");
            }
        }
        Err(fault) if fault.kind() == io::ErrorKind::NotFound => {
            if needed {
                report.fault(MANIFEST, None, "it is missing");
            }
        }
        Err(fault) => report.fault(MANIFEST, None, &format!("it cannot be read: {fault}")),
    }
    for (number, entry) in (1..).zip(entries) {
        let (length, seals) = match entry {
            Ok(Entry::Add { segment, .. }) => {
                listed.push((segment, Listed::default()));
                continue;
            }
            Ok(Entry::Checkpoint(length)) => (length, false),
            Ok(Entry::Seal(length)) => (length, true),
            Err(fault) => {
                report.fault(MANIFEST, Some(number), &fault.to_string());
                continue;
            }
        };
        let Some((_, of)) = listed.iter_mut().rev().find(|(name, _)| *name == length.segment) else {
            report.fault(MANIFEST, Some(number), "it is about a segment that was not begun");
            continue;
        };
        if seals && of.seal.replace(length.clone()).is_some() {
            report.fault(MANIFEST, Some(number), &format!("it seals `{}` again", length.segment));
        }
        of.lengths.push(length);
    }
    listed
}

fn read_segment(dir: &Path, name: &str, listed: &Listed, report: &mut VerifyReport, requests: &mut Requests) -> Writer {
    let path = dir.join(name);
    // Asked before reading: a writer that ends in between has written all it ever will.
    let held = is_held(&path).unwrap_or(false);
    let mut links = BTreeMap::new();
    let wanted: BTreeSet<u64> = listed.lengths.iter().map(|length| length.lines).collect();
    let read = read_lines(&path, name, report, |line, link| {
        requests.follow(line, name);
        if wanted.contains(&link.lines) {
            links.insert(link.lines, link);
        }
    });
    let end = match read {
        Ok(end) => end,
        Err(fault) => {
            let missing = fault.kind() == io::ErrorKind::NotFound;
            let what = if missing { "it is missing".to_owned() } else { format!("it cannot be read: {fault}") };
            report.fault(name, None, &what);
            return Writer::Unknown;
        }
    };
    report.segments += 1;
    if !end.whole {
        return Writer::Unknown;
    }
    let mut writer = Writer::Gone;
    for length in &listed.lengths {
        let start = Link::start(name);
        let link = if length.lines == 0 { Some(&start) } else { links.get(&length.lines) };
        match link {
            None => {
                let what = format!("it has {} lines and had {} once", end.link.lines, length.lines);
                report.fault(name, None, &what);
                writer = Writer::Unknown;
            }
            Some(link) if !length.ends_with(link.hash) => {
                report.fault(name, Some(length.lines), "it is not the line that the manifest knows");
            }
            Some(_) => {}
        }
    }
    if let Some(seal) = &listed.seal {
        if end.link.lines > seal.lines || end.torn {
            report.fault(name, Some(seal.lines + 1), "it goes on after its seal");
        }
        return writer;
    }
    if held || sealed_since(dir, name, end.link) {
        return Writer::Alive;
    }
    report.fault(name, None, "its process ended without sealing it; the next start of the program does so");
    if end.torn {
        report.fault(name, Some(end.link.lines + 1), "it ends in the middle of a line");
    }
    writer
}

/// Returns whether the segment was sealed after the manifest was read, as it was read.
fn sealed_since(dir: &Path, name: &str, link: Link) -> bool {
    let seals = |entry: &Entry| match entry {
        Entry::Seal(length) => length.segment == name && length.lines == link.lines && length.ends_with(link.hash),
        Entry::Add { .. } | Entry::Checkpoint(_) => false,
    };
    manifest::entries(dir).is_ok_and(|entries| entries.iter().any(seals))
}

struct End {
    link: Link,
    /// Every line followed the one before.
    whole: bool,
    torn: bool,
}

/// Reads a file's lines, noting the first that does not follow; `each` gets those up to there.
fn read_lines(path: &Path, name: &str, report: &mut VerifyReport, mut each: impl FnMut(&str, Link)) -> io::Result<End> {
    let mut reader = BufReader::new(File::open(path)?);
    let mut end = End { link: Link::start(name), whole: true, torn: false };
    let mut buffer = Vec::new();
    loop {
        buffer.clear();
        Read::by_ref(&mut reader).take(LINE_BYTES_MAX).read_until(b'\n', &mut buffer)?;
        if buffer.last() != Some(&b'\n') {
            end.torn = !buffer.is_empty();
            return Ok(end);
        }
        buffer.pop();
        report.lines += 1;
        let checked = std::str::from_utf8(&buffer).map_err(|_| Broken::Shape).and_then(|line| {
            let link = end.link.check(line)?;
            each(line, link);
            Ok(link)
        });
        match checked {
            Ok(link) => end.link = link,
            Err(broken) => {
                let what = match broken {
                    Broken::Shape => "it is not a line of the log",
                    Broken::Hash => "it was changed, or does not follow the line before",
                    Broken::Sequence => "its number is not the next",
                };
                report.fault(name, Some(end.link.lines + 1), what);
                end.whole = false;
                return Ok(end);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::file;
    use crate::audit::segment::Segment;

    /// The hashes need no key: who rewrites a whole segment can make them anew. The manifest knows the old ones.
    #[test]
    fn a_segment_that_was_forged_whole_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("audit");
        file::private_dir(&dir).unwrap();
        let segment = Segment::begin(&dir, None, &BTreeSet::new()).unwrap();
        segment.seal().unwrap();
        let name = segment.file.name();
        drop(segment);
        let path = dir.join(&name);
        let mut forged = Vec::new();
        Link::start(&name).line("{\"kind\":\"segment\",\"format\":1}", &mut forged);
        fs::write(&path, forged).unwrap();
        let report = verify(&dir).unwrap();
        assert_eq!(report.faults.len(), 1, "{report:?}");
        assert_eq!(
            report.faults[0].to_string(),
            format!("`{name}` line 1: it is not the line that the manifest knows")
        );
    }
}
