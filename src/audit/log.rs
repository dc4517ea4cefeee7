//! The log as the rest of the program sees it: open, close, and what happens when either fails.
//!
//! Every opened entry is closed: by [`Audit::close`], or as abandoned when its [`Ticket`] is dropped, or by
//! the next process' recovery. Lines are written under one mutex, where the caller stands: a line is one
//! `write` of a few hundred bytes into the page cache, some microseconds, which is less than handing it to
//! another thread and waiting for the answer; and the answer must be waited for. Beginning a segment, once per
//! start and per rotation, also waits for the manifest's lock, which others hold for one line. Only with
//! `sync = always` does each caller wait for the disk, which is what that setting asks for.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::file::private_dir;
use super::manifest::{self, Entry};
use super::record::{CloseEntry, Ending, OpenEntry, json};
use super::recover::{self, Recovery};
use super::reload::Reload;
use super::room;
use super::segment::Segment;
use super::{AuditError, AuditSettings, Sync};
use crate::model::{
    Context, Decision, Failure, Obligations, Principal, RequestId, SandboxId, Timestamp, TraceIds, fault,
};

/// A checkpoint is due after so many lines …
const CHECKPOINT_LINES: u64 = 1000;
/// … or when so much time has passed and there are new lines: what can be cut off a segment unseen.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(30);
/// How much a full segment may grow before changing it is tried again.
const ROTATE_RETRY_BYTES: u64 = 1 << 20;

/// The log of this process. One per process and directory.
#[derive(Debug)]
pub struct Audit {
    shared: Arc<Shared>,
    syncer: Option<Syncer>,
}

/// What the syncing thread sees of the log.
#[derive(Debug)]
struct Shared {
    settings: AuditSettings,
    state: Mutex<State>,
}

/// The thread that syncs from time to time; it ends when `alive` is dropped.
#[derive(Debug)]
struct Syncer {
    alive: mpsc::Sender<()>,
    thread: thread::JoinHandle<()>,
}

#[derive(Debug)]
struct State {
    /// `None` until the first line, and after a segment was given up.
    segment: Option<Segment>,
    /// The last segment's name.
    previous: Option<String>,
    open: BTreeSet<RequestId>,
    /// Closing lines that could not be written. As many at most as requests were open when writing failed,
    /// since none is opened before these are written.
    pending: VecDeque<String>,
    /// Lines were written since the last sync.
    unsynced: bool,
    /// The disk did not take what was written: what follows goes to another segment.
    give_up: bool,
    /// The size at which the segment is to be changed.
    rotate_at: u64,
    checkpointed_lines: u64,
    checkpointed_at: Instant,
    /// Whether the directory above the log's was there: where it was removed since, it is not made anew.
    is_above_there: bool,
}

/// What is known before the work.
#[derive(Clone, Copy, Debug)]
pub struct Opening<'a> {
    /// The request.
    pub id: RequestId,
    /// Who asks.
    pub principal: &'a Principal,
    /// What is asked for, as the caller named it.
    pub operation: &'a str,
    /// When.
    pub now: Timestamp,
    /// Where the request stands in a trace, if in any.
    pub trace: Option<TraceIds>,
    /// Whether it helps where the disk is full: such is taken in as long as a line can be written at all.
    pub frees: bool,
}

/// What is known after the work.
#[derive(Clone, Copy, Debug)]
pub struct Closing<'a> {
    /// When.
    pub now: Timestamp,
    /// Since the opening.
    pub elapsed: Duration,
    /// `None` where the request was refused before its facts were gathered.
    pub context: Option<&'a Context>,
    /// `None` where nothing was decided.
    pub decision: Option<&'a Decision>,
    /// What was made true, limits of profile and core among it.
    pub enforced: Option<&'a Obligations>,
    /// The sandbox it was about, one that was made included.
    pub target: Option<SandboxId>,
    /// What it was about beside that.
    pub beside: Beside<'a>,
    /// What became of it.
    pub outcome: Outcome<'a>,
}

/// What a request was about beside the sandbox that it was decided on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Beside<'a> {
    /// Further sandboxes and templates.
    pub others: &'a [SandboxId],
    /// The digest under which the request is approved, where approval of it is demanded.
    pub digest: Option<&'a str>,
    /// The digest of the request that it was to approve, as the caller wrote it.
    pub approves: Option<&'a str>,
}

/// What became of a request.
#[derive(Clone, Copy, Debug)]
pub enum Outcome<'a> {
    /// It was done.
    Ok,
    /// It was refused or failed.
    Failed(&'a Failure),
}

/// An open entry. Dropping it closes the entry as abandoned.
#[derive(Debug)]
#[must_use = "dropping the ticket closes its entry as abandoned"]
pub struct Ticket {
    audit: Arc<Audit>,
    id: RequestId,
    opened: Instant,
    open: bool,
}

impl Ticket {
    /// Returns the request that is open.
    pub fn id(&self) -> RequestId {
        self.id
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        let ending = Ending::Abandoned("dropped before its end");
        let entry = json(&CloseEntry::new(self.id, Timestamp::now(), self.opened.elapsed(), ending));
        if let Err(fault) = self.audit.write_close(self.id, entry) {
            tracing::error!(request = %self.id, %fault, "the closing line of an abandoned request waits to be written");
        }
    }
}

impl Audit {
    /// Makes the log's directory if it is missing, and checks that it can be written.
    ///
    /// The first segment is begun by the first line, so that a process that is asked nothing leaves nothing.
    ///
    /// # Errors
    /// Fails if the directory cannot be made or written, or lets others in.
    pub fn open_log(settings: AuditSettings) -> Result<Arc<Self>, AuditError> {
        let checked = private_dir(&settings.dir).and_then(|()| manifest::probe(&settings.dir));
        checked.map_err(|source| AuditError::Unavailable { dir: settings.dir.clone(), source })?;
        Ok(Self::deferred(settings))
    }

    /// Returns the log without looking at its directory: for a program that must answer, and refuse, whatever
    /// state its disk is in. Each opening tries anew.
    pub fn deferred(settings: AuditSettings) -> Arc<Self> {
        let state = State {
            is_above_there: is_above_there(&settings),
            segment: None,
            previous: None,
            open: BTreeSet::new(),
            pending: VecDeque::new(),
            unsynced: false,
            give_up: false,
            rotate_at: settings.rotate_bytes,
            checkpointed_lines: 0,
            checkpointed_at: Instant::now(),
        };
        let sync = settings.sync;
        let shared = Arc::new(Shared { settings, state: Mutex::new(state) });
        let syncer = match sync {
            Sync::Always => None,
            Sync::Every(interval) => Syncer::start(Arc::clone(&shared), interval),
        };
        Arc::new(Self { shared, syncer })
    }

    /// Writes the line before the work.
    ///
    /// # Errors
    /// Fails if the line, or a closing line that still waits, cannot be written, or if what room there is is kept for what
    /// frees some: the request must be refused.
    pub fn open(self: &Arc<Self>, opening: Opening<'_>) -> Result<Ticket, AuditError> {
        self.open_entry(opening, None)
    }

    /// Writes the line before the policies change, or are refused to.
    ///
    /// # Errors
    /// Fails if the line cannot be written: nothing else may serve.
    pub fn open_reload(self: &Arc<Self>, opening: Opening<'_>, reload: &Reload<'_>) -> Result<Ticket, AuditError> {
        self.open_entry(opening, Some(reload))
    }

    fn open_entry(self: &Arc<Self>, opening: Opening<'_>, reload: Option<&Reload<'_>>) -> Result<Ticket, AuditError> {
        let Opening { id, principal, operation, now, trace, frees } = opening;
        let entry = json(&OpenEntry::new(id, now, trace, principal, operation).reload(reload));
        fault::reach("audit.open").map_err(|injected| self.unavailable(injected.into()))?;
        let dir = &self.shared.settings.dir;
        if !frees && let Some(left) = room::nearly_none(dir) {
            return Err(AuditError::NearlyFull { dir: dir.clone(), left });
        }
        let mut state = self.shared.state();
        let written =
            state.drain_pending(&self.shared.settings).and_then(|()| state.write(&self.shared.settings, &entry));
        written.map_err(|source| self.unavailable(source))?;
        state.open.insert(id);
        if let Err(source) = state.sync_if_always(&self.shared.settings) {
            // The line may or may not be on the disk. It says that a request was begun; one says that it was not.
            let ending = Ending::Abandoned("refused, as the disk did not take the opening line");
            state.open.remove(&id);
            state.pending.push_back(json(&CloseEntry::new(id, now, Duration::ZERO, ending)));
            return Err(self.unavailable(source));
        }
        Ok(Ticket { audit: Arc::clone(self), id, opened: Instant::now(), open: true })
    }

    /// Writes the line after the work, whatever its outcome.
    ///
    /// # Errors
    /// Fails if the line cannot be written. The deed stands, the caller must be told, and the line is written
    /// before any other request is accepted.
    pub fn close(&self, mut ticket: Ticket, closing: Closing<'_>) -> Result<(), AuditError> {
        let ending = match closing.outcome {
            Outcome::Ok => Ending::Ok,
            Outcome::Failed(failure) => Ending::Failed(failure),
        };
        let target = closing.target.or_else(|| closing.context?.sandbox.as_ref().map(|sandbox| sandbox.id));
        let entry = CloseEntry::new(ticket.id, closing.now, closing.elapsed, ending)
            .target(target)
            .beside(&closing.beside, target)
            .decision(closing.decision)
            .enforced(closing.enforced)
            .request(closing.context);
        ticket.open = false;
        self.write_close(ticket.id, json(&entry))
    }

    /// Closes what processes that are gone left open, and seals their segments.
    ///
    /// # Errors
    /// Fails if the manifest cannot be read or written. Segments that cannot be recovered are in the result.
    pub fn recover(&self) -> Result<Recovery, AuditError> {
        recover::recover(&self.shared.settings.dir).map_err(|source| self.unavailable(source))
    }

    /// Writes what waits and forces it to disk.
    ///
    /// # Errors
    /// Fails if lines cannot be written.
    pub fn flush(&self) -> Result<(), AuditError> {
        let mut state = self.shared.state();
        let flushed = state.drain_pending(&self.shared.settings).and_then(|()| state.sync());
        flushed.map_err(|source| self.unavailable(source))
    }

    fn write_close(&self, id: RequestId, entry: String) -> Result<(), AuditError> {
        let mut state = self.shared.state();
        state.open.remove(&id);
        state.pending.push_back(entry);
        let written =
            state.drain_pending(&self.shared.settings).and_then(|()| state.sync_if_always(&self.shared.settings));
        written.map_err(|source| AuditError::Unclosed { dir: self.shared.settings.dir.clone(), source })
    }

    fn unavailable(&self, source: io::Error) -> AuditError {
        AuditError::Unavailable { dir: self.shared.settings.dir.clone(), source }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // A panic while it was held cannot have left half a line: see `ChainedFile::append`.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forces to disk what was written since the last time, without keeping writers waiting.
    fn sync_group(&self) {
        let (handle, checkpoint) = {
            let mut state = self.state();
            let unsynced = std::mem::take(&mut state.unsynced);
            let handle = state.segment.as_ref().filter(|_| unsynced).map(|segment| segment.file.handle());
            (handle, state.checkpoint_due())
        };
        let synced = match handle {
            Some(handle) => handle.and_then(|file| {
                fault::reach("audit.group.sync").map_err(io::Error::from).and_then(|()| file.sync_data())
            }),
            None => Ok(()),
        };
        if let Err(fault) = synced {
            tracing::error!(%fault, dir = %self.settings.dir.display(), "the disk did not take the audit log's lines");
            self.state().give_up = true;
            return;
        }
        let Some(checkpoint) = checkpoint else { return };
        if let Err(fault) = manifest::add(&self.settings.dir, &Entry::Checkpoint(checkpoint), || Ok(())) {
            tracing::warn!(%fault, "the audit log's checkpoint was not written");
        }
    }
}

impl Drop for Audit {
    /// Seals the segment. What cannot be written now is what recovery finds.
    fn drop(&mut self) {
        if let Some(Syncer { alive, thread }) = self.syncer.take() {
            drop(alive);
            // It may be in the middle of a sync. If it panicked there is nothing of it left to wait for.
            drop(thread.join());
        }
        let mut state = self.shared.state();
        if let Err(fault) = state.drain_pending(&self.shared.settings) {
            tracing::error!(%fault, lost_lines = state.pending.len(), "closing lines of the audit log were lost");
            return;
        }
        if let Some(Err(fault)) = state.segment.take().map(|segment| segment.seal()) {
            tracing::warn!(%fault, "the audit log's segment was not sealed; the next start does it");
        }
    }
}

impl State {
    /// Writes one line, beginning or changing the segment where needed.
    fn write(&mut self, settings: &AuditSettings, entry: &str) -> io::Result<()> {
        let full = self.segment.as_ref().is_some_and(|segment| segment.file.bytes() >= self.rotate_at);
        let in_place = self.segment.as_ref().is_some_and(|segment| segment.file.is_in_place());
        if !in_place || self.give_up {
            self.change_segment(settings)?;
        } else if full && let Err(fault) = self.change_segment(settings) {
            // The one there is still takes lines, which matters more than its size.
            tracing::warn!(%fault, "the audit log's segment is full and no other can be begun");
            self.rotate_at = self.rotate_at.saturating_add(ROTATE_RETRY_BYTES);
        }
        let Some(segment) = &mut self.segment else { return Err(io::ErrorKind::NotFound.into()) };
        segment.file.append(entry)?;
        segment.file.reserve();
        self.unsynced = true;
        Ok(())
    }

    /// Begins a segment, then seals the one before: what was open there is carried over.
    fn change_segment(&mut self, settings: &AuditSettings) -> io::Result<()> {
        if self.is_above_there && !is_above_there(settings) {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the directory above it was removed"));
        }
        private_dir(&settings.dir)?;
        let next = Segment::begin(&settings.dir, self.previous.as_deref(), &self.open)?;
        self.previous = Some(next.file.name());
        self.rotate_at = settings.rotate_bytes;
        self.give_up = false;
        self.checkpointed_lines = 0;
        self.checkpointed_at = Instant::now();
        if let Some(Err(fault)) = self.segment.replace(next).map(|segment| segment.seal()) {
            tracing::warn!(%fault, "a segment of the audit log was not sealed; the next start does it");
        }
        Ok(())
    }

    fn drain_pending(&mut self, settings: &AuditSettings) -> io::Result<()> {
        while let Some(entry) = self.pending.pop_front() {
            let reached = fault::reach("audit.close").map_err(io::Error::from);
            if let Err(fault) = reached.and_then(|()| self.write(settings, &entry)) {
                self.pending.push_front(entry);
                return Err(fault);
            }
        }
        Ok(())
    }

    fn sync_if_always(&mut self, settings: &AuditSettings) -> io::Result<()> {
        match settings.sync {
            Sync::Always => self.sync(),
            Sync::Every(_) => Ok(()),
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        let Some(segment) = self.segment.as_ref().filter(|_| self.unsynced) else { return Ok(()) };
        let synced = segment.file.sync();
        self.give_up |= synced.is_err();
        self.unsynced = false;
        synced
    }

    /// Returns the length to note in the manifest, if it is time to.
    fn checkpoint_due(&mut self) -> Option<manifest::Length> {
        let segment = self.segment.as_ref()?;
        let lines = segment.file.link().lines;
        let news = lines - self.checkpointed_lines;
        let due = news >= CHECKPOINT_LINES || (news > 0 && self.checkpointed_at.elapsed() >= CHECKPOINT_EVERY);
        if !due {
            return None;
        }
        self.checkpointed_lines = lines;
        self.checkpointed_at = Instant::now();
        Some(segment.length())
    }
}

impl Syncer {
    fn start(shared: Arc<Shared>, interval: Duration) -> Option<Self> {
        let (alive, ended) = mpsc::channel::<()>();
        let run = move || {
            while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                shared.sync_group();
            }
        };
        match thread::Builder::new().name("audit-sync".into()).spawn(run) {
            Ok(thread) => Some(Self { alive, thread }),
            Err(fault) => {
                tracing::error!(%fault, "no thread for the audit log; its lines reach the disk when the system likes");
                None
            }
        }
    }
}

fn is_above_there(settings: &AuditSettings) -> bool {
    settings.dir.parent().is_some_and(std::path::Path::is_dir)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::verify;
    use crate::model::{Identity, Transport};

    fn log(dir: &std::path::Path) -> Arc<Audit> {
        let sync = Sync::Every(Duration::from_secs(60));
        Audit::open_log(AuditSettings { dir: dir.join("audit"), sync, rotate_bytes: 1 << 20 }).unwrap()
    }

    fn open(audit: &Arc<Audit>) -> Result<Ticket, AuditError> {
        let principal = Principal {
            subject: "ana".into(),
            owner: "ana".into(),
            groups: Vec::new(),
            transport: Transport::Cli,
            client: String::new(),
            identity: Identity::Certain,
        };
        let now = Timestamp::now();
        audit.open(Opening {
            id: RequestId::fresh(),
            principal: &principal,
            operation: "doctor",
            now,
            trace: None,
            frees: false,
        })
    }

    fn close(audit: &Audit, ticket: Ticket) -> Result<(), AuditError> {
        let outcome = Outcome::Ok;
        let (now, elapsed) = (Timestamp::now(), Duration::ZERO);
        audit.close(
            ticket,
            Closing {
                now,
                elapsed,
                context: None,
                decision: None,
                enforced: None,
                target: None,
                beside: Beside::default(),
                outcome,
            },
        )
    }

    #[test]
    fn in_a_directory_that_was_removed_since_no_log_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        std::fs::create_dir(&state).unwrap();
        let settings = AuditSettings { dir: state.join("audit"), sync: Sync::Always, rotate_bytes: 1 << 20 };
        let audit = Audit::deferred(settings);
        std::fs::remove_dir(&state).unwrap();
        assert!(matches!(open(&audit), Err(AuditError::Unavailable { .. })));
        assert!(!state.exists());
        std::fs::create_dir(&state).unwrap();
        close(&audit, open(&audit).unwrap()).unwrap();
    }

    fn fail_writes(audit: &Audit, times: u32) {
        audit.shared.state().segment.as_mut().unwrap().file.fail_writes = times;
    }

    #[test]
    fn what_cannot_be_opened_is_refused_and_leaves_no_trace() {
        let dir = tempfile::tempdir().unwrap();
        let audit = log(dir.path());
        let ticket = open(&audit).unwrap();
        fail_writes(&audit, 1);
        assert!(matches!(open(&audit), Err(AuditError::Unavailable { .. })));
        close(&audit, ticket).unwrap();
        drop(audit);
        let report = verify(&dir.path().join("audit")).unwrap();
        assert!(report.is_sound(), "{report:?}");
    }

    #[test]
    fn what_cannot_be_closed_is_said_and_nothing_is_accepted_until_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let audit = log(dir.path());
        let (one, other) = (open(&audit).unwrap(), open(&audit).unwrap());
        fail_writes(&audit, 3);
        assert!(matches!(close(&audit, one), Err(AuditError::Unclosed { .. })));
        drop(other);
        assert_eq!(audit.shared.state().pending.len(), 2);
        assert!(open(&audit).is_err());
        let ticket = open(&audit).unwrap();
        assert_eq!(audit.shared.state().pending.len(), 0);
        close(&audit, ticket).unwrap();
        drop(audit);
        let report = verify(&dir.path().join("audit")).unwrap();
        assert!(report.is_sound() && report.open == 0, "{report:?}");
    }

    #[test]
    fn after_the_disk_refused_lines_go_to_another_segment() {
        let dir = tempfile::tempdir().unwrap();
        let audit = log(dir.path());
        let ticket = open(&audit).unwrap();
        let first = audit.shared.state().previous.clone();
        audit.shared.state().give_up = true;
        close(&audit, ticket).unwrap();
        assert_ne!(audit.shared.state().previous, first);
        drop(audit);
        let report = verify(&dir.path().join("audit")).unwrap();
        assert!(report.is_sound() && report.segments == 2, "{report:?}");
    }

    #[test]
    fn a_log_that_was_removed_is_begun_anew_or_nothing_is_accepted() {
        let dir = tempfile::tempdir().unwrap();
        let audit = log(dir.path());
        let audit_dir = dir.path().join("audit");
        let ticket = open(&audit).unwrap();
        std::fs::remove_dir_all(&audit_dir).unwrap();
        std::fs::write(&audit_dir, "in its place").unwrap();
        assert!(matches!(close(&audit, ticket), Err(AuditError::Unclosed { .. })));
        assert!(matches!(open(&audit), Err(AuditError::Unavailable { .. })));
        std::fs::remove_file(&audit_dir).unwrap();
        let ticket = open(&audit).unwrap();
        close(&audit, ticket).unwrap();
        drop(audit);
        let report = verify(&audit_dir).unwrap();
        assert!(!report.is_sound() && report.open == 0, "what is gone is said: {report:?}");
        let segments = std::fs::read_dir(&audit_dir).unwrap().filter(|entry| {
            let name = entry.as_ref().unwrap().file_name();
            name.to_string_lossy().starts_with("segment-")
        });
        assert_eq!(segments.count(), 1);
    }

    #[test]
    fn checkpoints_are_noted_once_there_are_enough_lines() {
        let dir = tempfile::tempdir().unwrap();
        let audit = log(dir.path());
        for _ in 0..=CHECKPOINT_LINES / 2 {
            let ticket = open(&audit).unwrap();
            close(&audit, ticket).unwrap();
        }
        audit.shared.sync_group();
        audit.shared.sync_group();
        let entries = manifest::entries(&dir.path().join("audit")).unwrap();
        let checkpoints: Vec<_> = entries.iter().filter(|entry| matches!(entry, Entry::Checkpoint(_))).collect();
        assert_eq!(checkpoints.len(), 1, "{entries:?}");
        assert!(verify(&dir.path().join("audit")).unwrap().is_sound());
        // Cut while its process lives, at the end of a line.
        let segment = dir.path().join("audit").join(audit.shared.state().segment.as_ref().unwrap().file.name());
        let text = std::fs::read_to_string(&segment).unwrap();
        let kept: String = text.split_inclusive('\n').take(5).collect();
        std::fs::write(&segment, kept).unwrap();
        let report = verify(&dir.path().join("audit")).unwrap();
        assert!(
            report.faults.iter().any(|fault| fault.what.contains("it has 5 lines and had 1003 once")),
            "{report:?}"
        );
    }
}
