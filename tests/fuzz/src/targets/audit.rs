//! The audit log's readers, on a sealed log of which some bytes were changed.
//!
//! What holds: nothing panics; a log whose bytes are not those that were written is never found sound. Of the manifest alone
//! the end may be missing: what was cut off it is only seen by its last hash, which the report gives for that.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pgsandbox::audit::{Audit as Log, AuditSettings, Beside, Closing, Filter, Opening, Outcome, Sync, tail, verify};
use pgsandbox::model::{Code, Failure, Identity, Principal, RequestId, Timestamp, TraceIds, Transport};
use tempfile::TempDir;

use crate::driver::{Checked, Target};
use crate::mutate;
use crate::rng::Rng;

pub struct Audit {
    dir: TempDir,
    /// Each file with what was written to it, the manifest last.
    files: Vec<(PathBuf, Vec<u8>)>,
    head: String,
}

impl Audit {
    pub fn new() -> Self {
        // In memory, where there is such a place: files are written and read for each input.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory can be made");
        let settings = AuditSettings {
            dir: dir.path().join("audit"),
            sync: Sync::Every(Duration::from_secs(3600)),
            rotate_bytes: 2_000,
        };
        for _ in 0..2 {
            write(&settings);
        }
        let report = verify(&settings.dir).expect("the log can be read");
        assert!(report.is_sound() && report.segments > 2, "{report:?}");
        let entries = fs::read_dir(&settings.dir).expect("the log can be listed");
        let mut files: Vec<_> = entries
            .map(|entry| entry.expect("the log can be listed").path())
            .filter(|path| {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                name.starts_with("segment-") || name.contains("manifest")
            })
            .map(|path| {
                let bytes = fs::read(&path).expect("the log can be read");
                (path, bytes)
            })
            .filter(|(_, bytes)| !bytes.is_empty())
            .collect();
        files.sort_by_key(|(path, _)| (path.to_string_lossy().contains("manifest"), path.clone()));
        Self { dir, files, head: report.head }
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("audit")
    }
}

fn write(settings: &AuditSettings) {
    let audit = Log::open_log(settings.clone()).expect("a log can be opened");
    let principal = Principal {
        subject: "ana".into(),
        owner: "ana".into(),
        groups: vec!["dev".into()],
        transport: Transport::Stdio,
        client: "editor".into(),
        identity: Identity::Certain,
    };
    let now = Timestamp::from_unix_ms(1_800_000_000_000);
    let failure = Failure::new(Code::InvalidArguments, "a thing that was not there".to_owned());
    let mut open = Vec::new();
    for n in 0..9 {
        let trace = Some(TraceIds { trace: 0xabc, span: n + 1 });
        let opening = Opening { id: RequestId::fresh(), principal: &principal, operation: "run_sql", now, trace, frees: false };
        let ticket = audit.open(opening).expect("a request can be opened");
        open.push(ticket);
        if n % 3 == 2 {
            for ticket in open.drain(..) {
                let outcome = if n == 5 { Outcome::Failed(&failure) } else { Outcome::Ok };
                let closing = Closing {
                    now,
                    elapsed: Duration::from_micros(1234),
                    context: None,
                    decision: None,
                    enforced: None,
                    target: None,
                    beside: Beside::default(),
                    outcome,
                };
                audit.close(ticket, closing).expect("a request can be closed");
            }
        }
    }
    drop(Arc::into_inner(audit));
}

impl Target for Audit {
    /// An input is a list of changes: a file, a way, a place and a length, of a byte, a byte and twice two bytes each.
    fn make(&mut self, rng: &mut Rng, kept: &[Vec<u8>]) -> Vec<u8> {
        if rng.once_in(3) {
            return (0..6 * (1 + rng.below(3))).map(|_| rng.next() as u8).collect();
        }
        let mut input = kept[rng.below(kept.len())].clone();
        let other = kept[rng.below(kept.len())].clone();
        mutate::bytes(rng, &mut input, &other);
        input.truncate(60);
        input
    }

    fn check(&mut self, input: &[u8]) -> Checked {
        let mut now: Vec<Vec<u8>> = self.files.iter().map(|(_, bytes)| bytes.clone()).collect();
        let mut ways = String::new();
        for change in input.chunks_exact(6) {
            let [file, way, a, b, c, d] = change else { continue };
            let file = usize::from(*file) % now.len();
            let at = usize::from(u16::from_le_bytes([*a, *b])) % (now[file].len() + 1);
            let length = usize::from(u16::from_le_bytes([*c, *d]));
            let end = (at + 1 + length % 64).min(now[file].len());
            let from = &self.files[(file + 1) % self.files.len()].1;
            match way % 9 {
                0 if at < now[file].len() => now[file][at] ^= (length as u8).max(1),
                1 => now[file].insert(at, length as u8),
                2 => drop(now[file].drain(at.min(end)..end)),
                3 => now[file].truncate(at),
                4 => {
                    let piece = now[file][at.min(end)..end].to_vec();
                    now[file].splice(at..at, piece);
                }
                5 => now[file].extend_from_slice(&from[..length.min(from.len())]),
                6 | 7 => {
                    // Whole lines: removed, repeated, or exchanged.
                    let mut lines: Vec<_> = now[file].split_inclusive(|b| *b == b'\n').map(<[u8]>::to_vec).collect();
                    if !lines.is_empty() {
                        let (x, y) = (at % lines.len(), length % lines.len());
                        match way % 2 {
                            0 => lines.swap(x, y),
                            _ => drop(lines.remove(x)),
                        }
                    }
                    now[file] = lines.concat();
                }
                _ => now[file] = from.clone(),
            }
            ways.push_str(&format!("{}{file} ", way % 9));
        }
        for ((path, was), is) in self.files.iter().zip(&now) {
            if was != is {
                fs::write(path, is).map_err(|error| format!("setting up: {error}"))?;
            }
        }
        let report = verify(&self.log());
        let listed = tail(&self.log(), 5, &Filter::default());
        let changed = self.files.iter().zip(&now).any(|((_, was), is)| was != is);
        for ((path, was), is) in self.files.iter().zip(&now) {
            if was != is {
                fs::write(path, was).map_err(|error| format!("setting up: {error}"))?;
            }
        }
        let Ok(report) = report else { return Ok("the log cannot be read".to_owned()) };
        if changed && report.is_sound() && report.head == self.head {
            return Err(format!("sound: a changed log is found sound ({ways})"));
        }
        // A shorter manifest has another head; all else must be a fault.
        let manifest = self.files.len() - 1;
        let cut = self.files[manifest].1.starts_with(&now[manifest]);
        if changed && report.is_sound() && !cut {
            return Err(format!("sound: a changed log is found sound with another head ({ways})"));
        }
        if !changed && !report.is_sound() {
            return Err(format!("unsound: a log as it was written is found at fault: {:?}", report.faults));
        }
        let kinds: Vec<_> = report
            .faults
            .iter()
            .map(|f| f.what.split_whitespace().take(4).collect::<Vec<_>>().join(" "))
            .take(4)
            .collect();
        Ok(format!("{kinds:?} {}", listed.map_or(99, |lines| lines.len())))
    }
}
