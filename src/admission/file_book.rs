//! The book of token buckets in the state directory, shared by every process on it.
//!
//! One file for each account, named by the digest of its owner, replaced whole by renaming; a reader sees
//! the old file or the new one. A change holds an exclusive `flock` on one of 256 lock files, chosen by the
//! digest's first byte, which are never removed. A file that is not exactly what this program writes
//! refuses the call. Files are not synced: a budget that a power cut takes back is refilled, never lost.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};
use std::{io, process};

use rustix::fs::{FlockOperation, OFlags, flock};
use sha2::{Digest, Sha256};

use super::book::{ACCOUNT_KEYS_MAX, Book, BookError, Entries, Key};

/// The longest wait for an account that others change: a change takes some 50 µs, so more means a stopped process.
pub const BOOK_WAIT_MS_MAX: u64 = 250;
/// The pause between two attempts at a lock.
const LOCK_PAUSE: Duration = Duration::from_micros(200);
/// The first bytes of a file, with the format's version.
const MAGIC: &[u8; 16] = b"pgsandbox book 1";
/// Key and number.
const ENTRY_BYTES: usize = 32 + 8;
/// The digest of all before it.
const DIGEST_BYTES: usize = 32;
/// The largest file, in bytes.
const FILE_BYTES_MAX: usize = MAGIC.len() + ACCOUNT_KEYS_MAX * ENTRY_BYTES + DIGEST_BYTES;

/// A book in a directory of its own.
#[derive(Debug)]
pub struct FileBook {
    directory: PathBuf,
}

impl FileBook {
    /// Opens the book in `directory`, which is made if it is missing.
    ///
    /// # Errors
    /// Fails if the directory cannot be made, is not this user's, or may be read by others.
    pub fn open(directory: impl Into<PathBuf>) -> Result<Self, BookError> {
        let directory = directory.into();
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
        Ok(Self { directory })
    }

    fn lock(&self, digest: &[u8; 32]) -> Result<File, BookError> {
        let path = self.directory.join(format!("{:02x}.lock", digest.first().copied().unwrap_or_default()));
        let file =
            options().read(true).write(true).create(true).open(&path).map_err(|error| io_error(&path, &error))?;
        let began = Instant::now();
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(file),
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
                Err(error) => return Err(io_error(&path, &error.into())),
            }
            if began.elapsed() >= Duration::from_millis(BOOK_WAIT_MS_MAX) {
                return Err(BookError::Busy { waited_ms: BOOK_WAIT_MS_MAX });
            }
            sleep(LOCK_PAUSE);
        }
    }

    fn path(&self, digest: &[u8; 32]) -> PathBuf {
        let name: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        self.directory.join(format!("{name}.book"))
    }
}

impl Book for FileBook {
    fn read(&self, owner: &str) -> Result<Entries, BookError> {
        read(&self.path(&digest(owner)))
    }

    fn update(
        &self,
        owner: &str,
        change: &mut dyn FnMut(&mut Entries) -> Result<(), BookError>,
    ) -> Result<(), BookError> {
        let digest = digest(owner);
        let path = self.path(&digest);
        let _lock = self.lock(&digest)?;
        let before = read(&path)?;
        let mut entries = before.clone();
        change(&mut entries)?;
        if entries == before { Ok(()) } else { write(&path, &entries) }
    }
}

fn digest(owner: &str) -> [u8; 32] {
    Sha256::digest(owner.as_bytes()).into()
}

/// Options that follow no link and give others nothing.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::CLOEXEC).bits()).unwrap_or_default();
    options.mode(0o600).custom_flags(flags);
    options
}

fn read(path: &Path) -> Result<Entries, BookError> {
    let file = match options().read(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Entries::default()),
        Err(error) => return Err(io_error(path, &error)),
    };
    let mut bytes = Vec::new();
    let bytes_max = u64::try_from(FILE_BYTES_MAX + 1).unwrap_or(u64::MAX);
    file.take(bytes_max).read_to_end(&mut bytes).map_err(|error| io_error(path, &error))?;
    parse(&bytes).map_err(|detail| BookError::Damaged { path: path.to_owned(), detail })
}

fn parse(bytes: &[u8]) -> Result<Entries, &'static str> {
    if bytes.len() > FILE_BYTES_MAX {
        return Err("the file is larger than any that is written");
    }
    let (body, digest) = bytes.split_last_chunk::<DIGEST_BYTES>().ok_or("the file is cut short")?;
    if Sha256::digest(body).as_slice() != digest {
        return Err("the file's digest does not fit its contents");
    }
    let rest = body.strip_prefix(MAGIC).ok_or("the file is of another version")?;
    let (entries, []) = rest.as_chunks::<ENTRY_BYTES>() else { return Err("an entry is cut short") };
    let mut parsed: BTreeMap<Key, u64> = BTreeMap::new();
    for entry in entries {
        let (key, number) = entry.split_first_chunk::<32>().ok_or("an entry is cut short")?;
        let number = number.try_into().map(u64::from_be_bytes).map_err(|_| "an entry is cut short")?;
        parsed.insert(*key, number);
    }
    Ok(Entries(parsed))
}

fn write(path: &Path, entries: &Entries) -> Result<(), BookError> {
    let mut bytes = Vec::with_capacity(MAGIC.len() + entries.0.len() * ENTRY_BYTES + DIGEST_BYTES);
    bytes.extend_from_slice(MAGIC);
    for (key, number) in &entries.0 {
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(&number.to_be_bytes());
    }
    let digest = Sha256::digest(&bytes);
    bytes.extend_from_slice(&digest);
    // Under the lock nobody else writes this account, so the name only has to differ from what a crash left.
    let staged = path.with_extension(format!("{}.new", process::id()));
    let written = options()
        .write(true)
        .create(true)
        .truncate(true)
        .open(&staged)
        .and_then(|mut file| file.write_all(&bytes))
        .and_then(|()| std::fs::rename(&staged, path));
    written.map_err(|error| {
        // The write's own error is the one to tell.
        std::fs::remove_file(&staged).unwrap_or_default();
        io_error(path, &error)
    })
}

fn io_error(path: &Path, error: &io::Error) -> BookError {
    BookError::Io { path: path.to_owned(), detail: error.to_string() }
}

#[cfg(test)]
#[path = "file_book_tests.rs"]
mod tests;
