//! The book of token buckets in the state directory, shared by every process on it.
//!
//! One file for each account, named by the digest of its owner. A file has two places of fixed size, each
//! with a number and a digest; a change, made under the file's `flock`, goes to the place that is not the
//! newest, so one that is cut short leaves the state before it, whose call was then never admitted. A file
//! without a whole place refuses the call. Files are written in place and not synced, which keeps a charge
//! at some microseconds: replacing a file by another makes file systems write it out at once. A budget that
//! a power cut takes back is refilled, never lost. Files stay open for the account's next call, each handle for one
//! at a time, since a lock belongs to its handle; what was removed or put in another's place is opened anew.

use std::collections::{BTreeMap, HashMap};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, FlockOperation, OFlags, fallocate, flock};
use sha2::{Digest, Sha256};

use super::book::{ACCOUNT_KEYS_MAX, Book, BookError, Entries, Key};
use crate::model::fault;

/// The longest wait for an account that others change: a change takes some 10 µs, so more means a stopped process.
pub const BOOK_WAIT_MS_MAX: u64 = 250;
/// The pause between two attempts at a lock.
const LOCK_PAUSE: Duration = Duration::from_micros(200);
/// The first bytes of a place, with the format's version.
const MAGIC: &[u8; 16] = b"pgsandbox book 1";
/// [`MAGIC`], the state's number, and how many entries follow.
const HEADER_BYTES: usize = MAGIC.len() + 8 + 4;
/// Key and number.
const ENTRY_BYTES: usize = 32 + 8;
/// The digest of all before it.
const DIGEST_BYTES: usize = 32;
/// What file systems give at once, or a multiple of it.
const PAGE_BYTES: usize = 4096;
/// The size of a place, in bytes: whole pages that hold the largest account. Unused parts take no room on disk.
const PLACE_BYTES: usize = (HEADER_BYTES + ACCOUNT_KEYS_MAX * ENTRY_BYTES + DIGEST_BYTES).next_multiple_of(PAGE_BYTES);
/// What is read of a place at first: most accounts fit.
const FIRST_READ_BYTES: usize = 1024;
/// The most files that wait open: more than callers of everyday are at work at once.
const IDLE_FILES_MAX: usize = 64;
/// How often a file may turn out to have been replaced while its lock was awaited.
const REPLACED_MAX: usize = 8;

/// A book in a directory of its own.
#[derive(Debug)]
pub struct FileBook {
    directory: PathBuf,
    /// Files that no call uses, by owner.
    idle: Mutex<HashMap<String, Vec<Opened>>>,
}

/// An account's open file.
#[derive(Debug)]
struct Opened {
    path: PathBuf,
    file: File,
    /// Device and inode.
    identity: (u64, u64),
}

impl Opened {
    fn new(path: PathBuf, file: File) -> io::Result<Self> {
        let found = file.metadata()?;
        Ok(Self { path, file, identity: (found.dev(), found.ino()) })
    }

    /// Returns whether the file still stands where everybody looks for it.
    fn is_in_place(&self) -> bool {
        self.path.symlink_metadata().is_ok_and(|found| (found.dev(), found.ino()) == self.identity)
    }
}

impl FileBook {
    /// Opens the book in `directory`, which is made if it is missing.
    ///
    /// # Errors
    /// Fails if the directory cannot be made, is not this user's, or may be read by others.
    pub fn open(directory: impl Into<PathBuf>) -> Result<Self, BookError> {
        let directory = directory.into();
        fault::reach("file.book.dir").map_err(|injected| io_error(&directory, &injected.into()))?;
        match DirBuilder::new().mode(0o700).create(&directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(io_error(&directory, &error)),
            Ok(()) | Err(_) => {}
        }
        let found = directory.symlink_metadata().map_err(|error| io_error(&directory, &error))?;
        let mine = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o077 == 0;
        if !mine {
            let detail = "not a directory that only this user may enter (mode 0700)".to_owned();
            return Err(BookError::Io { path: directory, detail });
        }
        Ok(Self { directory, idle: Mutex::default() })
    }

    fn path(&self, owner: &str) -> PathBuf {
        let digest = Sha256::digest(owner.as_bytes());
        let name: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        self.directory.join(format!("{name}.book"))
    }
}

impl FileBook {
    fn idle(&self) -> std::sync::MutexGuard<'_, HashMap<String, Vec<Opened>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an account's open file if one waits.
    fn waiting(&self, owner: &str) -> Option<Opened> {
        self.idle().get_mut(owner)?.pop()
    }

    /// Leaves an account's file, which must not be locked, for the next call.
    fn leave(&self, owner: &str, opened: Opened) {
        let mut idle = self.idle();
        if idle.values().map(Vec::len).sum::<usize>() >= IDLE_FILES_MAX {
            idle.clear();
        }
        match idle.get_mut(owner) {
            Some(files) => files.push(opened),
            None => _ = idle.insert(owner.to_owned(), vec![opened]),
        }
    }

    /// Opens an account's file for reading; `None` where there is none.
    fn open_to_read(&self, owner: &str) -> Result<Option<(Opened, Kind)>, BookError> {
        if let Some(opened) = self.waiting(owner).filter(Opened::is_in_place) {
            return Ok(Some((opened, Kind::Writable)));
        }
        let path = self.path(owner);
        let open = |kind: Kind| options().read(true).write(kind == Kind::Writable).open(&path).map(|file| (file, kind));
        // A disk that cannot be written can still be read.
        match open(Kind::Writable).or_else(|_| open(Kind::ReadOnly)) {
            Ok((file, kind)) => {
                let opened = Opened::new(path.clone(), file).map_err(|error| io_error(&path, &error))?;
                Ok(Some((opened, kind)))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(io_error(&path, &error)),
        }
    }

    /// Opens an account's file, making it if it is missing, and waits for its lock. Whoever holds the lock of a file that
    /// was removed or replaced meanwhile shares it with nobody, and goes on to the one that stands there now.
    fn open_locked(&self, owner: &str) -> Result<Opened, BookError> {
        let mut tried = 0;
        while tried < REPLACED_MAX {
            let opened = match self.waiting(owner) {
                // Of whenever: many may have waited while theirs was replaced once.
                Some(opened) => opened,
                None => {
                    tried += 1;
                    let path = self.path(owner);
                    let open = options().read(true).write(true).create(true).open(&path);
                    open.and_then(|file| Opened::new(path.clone(), file)).map_err(|error| io_error(&path, &error))?
                }
            };
            lock(&opened.file, &opened.path)?;
            if opened.is_in_place() {
                return Ok(opened);
            }
        }
        Err(BookError::Io { path: self.path(owner), detail: "it is replaced all the time".to_owned() })
    }
}

/// What a file that is open to be read may be used for besides.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Writable,
    ReadOnly,
}

impl Book for FileBook {
    fn read(&self, owner: &str) -> Result<Entries, BookError> {
        fault::reach("file.book.read").map_err(|injected| io_error(&self.path(owner), &injected.into()))?;
        let Some((opened, kind)) = self.open_to_read(owner)? else { return Ok(Entries::default()) };
        let newest = match read(&opened.file, &opened.path) {
            // Both places may have been in the middle of a change, one after the other; under the lock none is.
            Err(BookError::Damaged { .. }) => {
                lock(&opened.file, &opened.path)?;
                let newest = read(&opened.file, &opened.path);
                unlock(&opened.file, &opened.path)?;
                newest
            }
            other => other,
        }?;
        if kind == Kind::Writable {
            self.leave(owner, opened);
        }
        Ok(newest.entries)
    }

    fn update(
        &self,
        owner: &str,
        change: &mut dyn FnMut(&mut Entries) -> Result<(), BookError>,
    ) -> Result<(), BookError> {
        fault::reach("file.book.open").map_err(|injected| io_error(&self.path(owner), &injected.into()))?;
        // Wherever this ends early the file is closed, and the lock ends with it.
        let opened = self.open_locked(owner)?;
        let Opened { file, path, .. } = &opened;
        let Newest { number, entries: before } = read(file, path)?;
        let mut entries = before.clone();
        let changed = change(&mut entries);
        if changed.is_ok() && entries != before {
            let number = number.saturating_add(1);
            fault::reach("file.book.write").map_err(|injected| io_error(path, &injected.into()))?;
            let state = filled_up(encode(number, &entries));
            file.write_all_at(&state, place(number)).map_err(|error| io_error(path, &error))?;
            if number == 1 || pages(entries.0.len()) != pages(before.0.len()) {
                set_aside(file, pages(entries.0.len()));
            }
        }
        unlock(file, path)?;
        self.leave(owner, opened);
        changed
    }
}

/// The newest whole state of a file.
struct Newest {
    number: u64,
    entries: Entries,
}

/// Returns how much of a place a state of so many entries needs, in whole pages, with one more for the entries to come.
fn pages(entries: usize) -> u64 {
    let bytes = HEADER_BYTES + entries * ENTRY_BYTES + DIGEST_BYTES;
    (bytes.next_multiple_of(PAGE_BYTES) + PAGE_BYTES).min(PLACE_BYTES) as u64
}

/// Sees that the states to come have their room in both places: on a disk that is full by then, calls that free some are still
/// to be charged. It is help: where nothing is set aside they are refused.
fn set_aside(file: &File, bytes: u64) {
    for number in 0..2 {
        if let Err(error) = fallocate(file, FallocateFlags::KEEP_SIZE, place(number), bytes) {
            tracing::debug!(%error, "no room is set aside for a record of rate limits");
        }
    }
}

/// Returns where in its file a state goes.
const fn place(number: u64) -> u64 {
    (number % 2) * PLACE_BYTES as u64
}

fn lock(file: &File, path: &Path) -> Result<(), BookError> {
    let began = Instant::now();
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
            Err(error) => return Err(io_error(path, &error.into())),
        }
        if began.elapsed() >= Duration::from_millis(BOOK_WAIT_MS_MAX) {
            return Err(BookError::Busy { waited_ms: BOOK_WAIT_MS_MAX });
        }
        sleep(LOCK_PAUSE);
    }
}

fn unlock(file: &File, path: &Path) -> Result<(), BookError> {
    flock(file, FlockOperation::Unlock).map_err(|error| io_error(path, &error.into()))
}

/// Options that follow no link and give others nothing.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::CLOEXEC).bits()).unwrap_or_default();
    options.mode(0o600).custom_flags(flags);
    options
}

/// Reads the newer of the two places; the other counts only where that one is not whole. A file that was made and never
/// written holds nothing yet.
fn read(file: &File, path: &Path) -> Result<Newest, BookError> {
    let read = |at| read_place(file, at).map_err(|error| io_error(path, &error));
    let mut places = [read(place(0))?, read(place(1))?];
    places.sort_by_key(|place| std::cmp::Reverse(place.number()));
    let mut fault = None;
    for place in &places {
        match place {
            Place::Absent => {}
            Place::Damaged(detail) => fault = Some(*detail),
            Place::Written(bytes) => match decode(bytes) {
                Ok(newest) => return Ok(newest),
                Err(detail) => fault = Some(detail),
            },
        }
    }
    match fault {
        Some(detail) => Err(BookError::Damaged { path: path.to_owned(), detail }),
        None => Ok(Newest { number: 0, entries: Entries::default() }),
    }
}

/// What is found in a place.
enum Place {
    /// As many bytes as its header says; whole or not.
    Written(Vec<u8>),
    /// The file ends before it, or it was skipped over.
    Absent,
    Damaged(&'static str),
}

impl Place {
    /// Returns the number of the state, as its header has it.
    fn number(&self) -> Option<u64> {
        let Self::Written(bytes) = self else { return None };
        let number = bytes.get(MAGIC.len()..)?.first_chunk::<8>()?;
        Some(u64::from_be_bytes(*number))
    }
}

fn read_place(file: &File, at: u64) -> io::Result<Place> {
    let mut bytes = vec![0; FIRST_READ_BYTES];
    let mut filled = fill(file, &mut bytes, at)?;
    let header = bytes.first_chunk::<HEADER_BYTES>();
    let Some(count) = header.and_then(|header| header.last_chunk::<4>()).map(|count| u32::from_be_bytes(*count)) else {
        return Ok(Place::Absent);
    };
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    if count > ACCOUNT_KEYS_MAX {
        return Ok(Place::Damaged("it holds more entries than are ever written"));
    }
    let size = HEADER_BYTES + count * ENTRY_BYTES + DIGEST_BYTES;
    if size > bytes.len() {
        bytes.resize(size, 0);
        filled = fill(file, &mut bytes, at)?;
    }
    if filled == 0 || bytes.iter().take(filled).all(|byte| *byte == 0) {
        return Ok(Place::Absent);
    }
    if filled < size {
        return Ok(Place::Damaged("it is cut short"));
    }
    bytes.truncate(size);
    Ok(Place::Written(bytes))
}

/// Reads as much as there is, up to the buffer's size.
fn fill(file: &File, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, at + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

fn encode(number: u64, entries: &Entries) -> Vec<u8> {
    let count = u32::try_from(entries.0.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::with_capacity(HEADER_BYTES + entries.0.len() * ENTRY_BYTES + DIGEST_BYTES);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&number.to_be_bytes());
    bytes.extend_from_slice(&count.to_be_bytes());
    for (key, full_at_ns) in &entries.0 {
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(&full_at_ns.to_be_bytes());
    }
    let digest = Sha256::digest(&bytes);
    bytes.extend_from_slice(&digest);
    bytes
}

/// Fills up what is written, so that the first read of a place does not meet the file's end and need another to be sure.
fn filled_up(mut state: Vec<u8>) -> Vec<u8> {
    state.resize(state.len().max(FIRST_READ_BYTES), 0);
    state
}

fn decode(bytes: &[u8]) -> Result<Newest, &'static str> {
    const SHORT: &str = "it is cut short";
    let (body, digest) = bytes.split_last_chunk::<DIGEST_BYTES>().ok_or(SHORT)?;
    if Sha256::digest(body).as_slice() != digest {
        return Err("its digest does not fit its contents");
    }
    let rest = body.strip_prefix(MAGIC).ok_or("it is of another version")?;
    let (number, rest) = rest.split_first_chunk::<8>().ok_or(SHORT)?;
    let (entries, []) = rest.get(4..).ok_or(SHORT)?.as_chunks::<ENTRY_BYTES>() else { return Err(SHORT) };
    let mut decoded: BTreeMap<Key, u64> = BTreeMap::new();
    for entry in entries {
        let (key, full_at_ns) = entry.split_first_chunk::<32>().ok_or(SHORT)?;
        decoded.insert(*key, full_at_ns.try_into().map(u64::from_be_bytes).map_err(|_| SHORT)?);
    }
    Ok(Newest { number: u64::from_be_bytes(*number), entries: Entries(decoded) })
}

fn io_error(path: &Path, error: &io::Error) -> BookError {
    BookError::Io { path: path.to_owned(), detail: error.to_string() }
}

#[cfg(test)]
#[path = "file_book_tests.rs"]
mod tests;
