//! A file of chained lines that is only ever added to.
//!
//! A line is in the file whole or not at all: what a failed write left of it is cut off again. Only one
//! process adds to a file at a time, which the file's lock makes true: the holder of a [`ChainedFile`]
//! holds the lock, and the system gives it back when the process is gone, however it went.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::chain::Link;
use super::room;
use crate::model::fault;

/// The longest line that is read, in bytes; records are cut to a few hundred KiB when written.
pub(super) const LINE_BYTES_MAX: u64 = 8 << 20;
/// The room that is kept for the next line, in bytes; few lines are longer.
const LINE_BYTES_KEPT: usize = 64 << 10;
/// How much of a file's end is read to find its last line, where lines are short (manifest).
const TAIL_BYTES: u64 = 64 << 10;
/// How long the lock of a new file may be held by one who only looks.
const NEW_LOCK_WAIT_MAX: Duration = Duration::from_secs(1);
const LOCK_POLL: Duration = Duration::from_millis(1);

/// A file open for adding, with its lock.
#[derive(Debug)]
pub(super) struct ChainedFile {
    file: File,
    path: PathBuf,
    bytes: u64,
    link: Link,
    /// Device and inode.
    identity: (u64, u64),
    /// The line being added; kept for its room.
    line: Vec<u8>,
    /// Where the room ends that is set aside behind the end.
    reserved: u64,
    broken: bool,
    #[cfg(test)]
    pub(super) fail_writes: u32,
}

/// What is found when a file is read from its start.
#[derive(Debug)]
pub(super) struct Scan {
    /// Where the chain stands after the last whole line.
    pub(super) link: Link,
    /// The length of the whole lines.
    pub(super) bytes: u64,
    /// The length of what follows the last line feed.
    pub(super) torn_bytes: u64,
}

impl ChainedFile {
    /// Makes the file and locks it. Fails if it exists.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        fault::reach("audit.segment.create")?;
        let file = private().read(true).append(true).create_new(true).open(path)?;
        lock(&file)?;
        Self::new(file, path, 0, Link::start(&file_name(path)))
    }

    /// Makes the file of the room that lies ready in its directory, for a disk that has no other.
    pub(super) fn from_spare(path: &Path) -> io::Result<Self> {
        let dir = path.parent().unwrap_or(Path::new(""));
        let file = room::spare(dir)?;
        if !try_lock(&file)? {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "another process has what lay ready for a segment"));
        }
        fs::rename(dir.join(room::SPARE), path)?;
        let made = Self::new(file, path, 0, Link::start(&file_name(path)))?;
        // Whose lock came after that of another, who has it under its new name, has renamed another file.
        if made.is_in_place() { Ok(made) } else { Err(corrupt("what lay ready for a segment was exchanged")) }
    }

    /// Opens the file, making it if it is not there, and takes its lock if nobody has it. Finds the end by
    /// the last line alone, which must be short.
    pub(super) fn open_end(path: &Path) -> io::Result<Option<Self>> {
        fault::reach("audit.manifest.open")?;
        let mut file = private().read(true).append(true).create(true).open(path)?;
        if !try_lock(&file)? {
            return Ok(None);
        }
        let bytes = file.metadata()?.len();
        file.seek(SeekFrom::Start(bytes.saturating_sub(TAIL_BYTES)))?;
        let mut tail = Vec::new();
        Read::by_ref(&mut file).take(TAIL_BYTES).read_to_end(&mut tail)?;
        let whole = tail.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let torn = (tail.len() - whole) as u64;
        let lines = tail.get(..whole.saturating_sub(1)).unwrap_or_default();
        let last = lines.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
        let link = if bytes == torn && bytes <= TAIL_BYTES {
            Link::start(&file_name(path))
        } else {
            std::str::from_utf8(last).ok().and_then(Link::after).ok_or_else(|| corrupt("its last line is damaged"))?
        };
        let this = Self::new(file, path, bytes - torn, link)?;
        if torn > 0 {
            this.file.set_len(this.bytes)?;
        }
        Ok(Some(this))
    }

    /// Opens an existing file and takes its lock if nobody has it, reading all of it: `line` is given each
    /// whole line that follows from the one before, without its line feed, and where the chain stands after it.
    pub(super) fn open_scanned(path: &Path, line: impl FnMut(&str, Link)) -> io::Result<Option<(Self, Scan)>> {
        fault::reach("audit.segment.scan")?;
        let file = private().read(true).append(true).open(path)?;
        if !try_lock(&file)? {
            return Ok(None);
        }
        let scan = scan(&file, &file_name(path), line)?;
        let this = Self::new(file, path, scan.bytes, scan.link)?;
        Ok(Some((this, scan)))
    }

    fn new(file: File, path: &Path, bytes: u64, link: Link) -> io::Result<Self> {
        let found = file.metadata()?;
        Ok(Self {
            file,
            path: path.to_owned(),
            bytes,
            link,
            identity: (found.dev(), found.ino()),
            line: Vec::new(),
            reserved: 0,
            broken: false,
            #[cfg(test)]
            fail_writes: 0,
        })
    }

    /// Adds one entry, a JSON object's text. If it fails the file is as before.
    pub(super) fn append(&mut self, entry: &str) -> io::Result<()> {
        if self.broken {
            return Err(corrupt("an earlier write left it damaged"));
        }
        let mut line = std::mem::take(&mut self.line);
        let next = self.link.line(entry, &mut line);
        let written = self.write(&line);
        let bytes = line.len() as u64;
        line.shrink_to(LINE_BYTES_KEPT);
        self.line = line;
        if let Err(fault) = written {
            // What was written of the line must not stand before the next one.
            self.broken = self.file.set_len(self.bytes).is_err();
            self.reserved = 0;
            return Err(fault);
        }
        self.bytes += bytes;
        self.link = next;
        Ok(())
    }

    /// Sees that room is set aside behind the end, if the disk has it.
    pub(super) fn reserve(&mut self) {
        if self.reserved.saturating_sub(self.bytes) < room::RESERVED_BYTES_MIN {
            self.reserved = room::reserve(&self.file, self.bytes).unwrap_or(self.reserved);
        }
    }

    /// Gives back what is set aside, to who begins the next file in the directory if it has none.
    pub(super) fn release(&self, dir: &Path) -> io::Result<()> {
        room::hand_on(&self.file, self.bytes, dir)
    }

    #[cfg(not(test))]
    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        fault::reach("audit.line.write")?;
        self.file.write_all(line)?;
        Ok(fault::reach("audit.line.written")?)
    }

    /// Fails half-way while `fail_writes` says so, as a full disk does.
    #[cfg(test)]
    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        if self.fail_writes > 0 {
            self.fail_writes -= 1;
            self.file.write_all(&line[..line.len() / 2])?;
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.file.write_all(line)
    }

    /// Returns whether the file is still where it was made: a line in a file that was removed is no record.
    pub(super) fn is_in_place(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.identity)
    }

    /// Cuts off what follows the last whole line.
    pub(super) fn cut_torn(&self) -> io::Result<()> {
        fault::reach("audit.torn.cut")?;
        self.file.set_len(self.bytes)
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        fault::reach("audit.file.sync")?;
        self.file.sync_data()
    }

    /// Returns a second handle, to be synced while lines are being added.
    pub(super) fn handle(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn link(&self) -> Link {
        self.link
    }

    pub(super) fn name(&self) -> String {
        file_name(&self.path)
    }
}

/// Returns whether a process holds the file's lock, that is, may still add to it.
pub(super) fn is_held(path: &Path) -> io::Result<bool> {
    let file = File::open(path)?;
    match file.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(fault)) => Err(fault),
    }
}

/// Makes a directory that only its owner may look into, and says if an existing one is open to others.
pub(super) fn private_dir(path: &Path) -> io::Result<()> {
    fault::reach("audit.dir.make")?;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let found = fs::metadata(path)?;
    let me = rustix::process::geteuid().as_raw();
    if found.uid() != me {
        let text = format!("it belongs to user {}, not to user {me}; give it back by `chown`", found.uid());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    let mode = found.permissions().mode();
    if mode & 0o077 != 0 {
        let text = format!("its mode {:03o} lets others in; `chmod 700` it", mode & 0o777);
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    Ok(())
}

/// Reads a file of chained lines from its start: stops at the first line that does not follow.
fn scan(file: &File, name: &str, mut each: impl FnMut(&str, Link)) -> io::Result<Scan> {
    let mut reader = BufReader::new(file);
    let mut scan = Scan { link: Link::start(name), bytes: 0, torn_bytes: 0 };
    let mut buffer = Vec::new();
    loop {
        buffer.clear();
        let read = Read::by_ref(&mut reader).take(LINE_BYTES_MAX).read_until(b'\n', &mut buffer)? as u64;
        if buffer.last() != Some(&b'\n') {
            if read == LINE_BYTES_MAX {
                // Not torn: nobody writes such a line, and what follows it must not be cut off with it.
                return Err(corrupt(&format!("line {} is longer than {LINE_BYTES_MAX} bytes", scan.link.lines + 1)));
            }
            scan.torn_bytes = read;
            return Ok(scan);
        }
        buffer.pop();
        let line = std::str::from_utf8(&buffer).map_err(|_| corrupt("it holds bytes that are no text"))?;
        let number = scan.link.lines + 1;
        scan.link =
            scan.link.check(line).map_err(|_| corrupt(&format!("line {number} does not follow the one before")))?;
        scan.bytes += read;
        each(line, scan.link);
    }
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn try_lock(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(fault)) => Err(fault),
    }
}

/// Takes the lock of a file that was just made. Only somebody who looks whether it is held can be in the way.
fn lock(file: &File) -> io::Result<()> {
    let begun = Instant::now();
    while !try_lock(file)? {
        if begun.elapsed() > NEW_LOCK_WAIT_MAX {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "another process holds its lock"));
        }
        thread::sleep(LOCK_POLL);
    }
    Ok(())
}

pub(super) fn corrupt(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_the_file_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let mut file = ChainedFile::create(&path).unwrap();
        file.append("{\"n\":1}").unwrap();
        let before = fs::read(&path).unwrap();
        file.fail_writes = 1;
        assert_eq!(file.append("{\"n\":2}").unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs::read(&path).unwrap(), before);
        file.append("{\"n\":3}").unwrap();
        drop(file);
        let mut lines = 0;
        let (_, scan) = ChainedFile::open_scanned(&path, |_, _| lines += 1).unwrap().unwrap();
        assert_eq!((lines, scan.torn_bytes), (2, 0));
    }

    #[test]
    fn a_file_is_continued_where_it_ended() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        for n in 0..3 {
            let mut file = ChainedFile::open_end(&path).unwrap().unwrap();
            assert_eq!(file.link().lines, n);
            file.append("{\"n\":1}").unwrap();
        }
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"hash\":\"12").unwrap();
        let mut file = ChainedFile::open_end(&path).unwrap().unwrap();
        file.append("{\"n\":4}").unwrap();
        drop(file);
        let (_, scan) = ChainedFile::open_scanned(&path, |_, _| ()).unwrap().unwrap();
        assert_eq!((scan.link.lines, scan.torn_bytes), (4, 0));
    }

    #[test]
    fn a_file_in_use_is_not_opened_twice() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let held = ChainedFile::create(&path).unwrap();
        assert!(ChainedFile::open_end(&path).unwrap().is_none());
        assert!(is_held(&path).unwrap());
        drop(held);
        assert!(!is_held(&path).unwrap());
    }

    #[test]
    fn files_and_directories_are_private() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("x/y");
        private_dir(&inner).unwrap();
        let file = ChainedFile::create(&inner.join("a")).unwrap();
        assert_eq!(fs::metadata(&file.path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(&inner).unwrap().permissions().mode() & 0o777, 0o700);
        fs::set_permissions(&inner, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(private_dir(&inner).unwrap_err().to_string().contains("755"));
    }

    #[test]
    fn a_line_that_is_too_long_is_damage_and_is_not_cut_off() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let mut line = Vec::new();
        ChainedFile::create(&path).unwrap().link.line("{\"x\":\"\"}", &mut line);
        let frame = line.len();
        for (bytes, fits) in [(LINE_BYTES_MAX - 1, true), (LINE_BYTES_MAX, true), (LINE_BYTES_MAX + 1, false)] {
            fs::remove_file(&path).unwrap();
            let mut file = ChainedFile::create(&path).unwrap();
            let text = "x".repeat(usize::try_from(bytes).unwrap() - frame);
            file.append(&format!("{{\"x\":\"{text}\"}}")).unwrap();
            file.append("{\"n\":2}").unwrap();
            drop(file);
            match ChainedFile::open_scanned(&path, |_, _| ()) {
                Ok(found) => assert!(fits && found.unwrap().1.link.lines == 2, "{bytes}"),
                Err(fault) => assert!(!fits && fault.to_string().contains("line 1 is longer"), "{bytes}: {fault}"),
            }
        }
    }

    #[test]
    fn a_lock_that_is_held_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let held = File::create(&path).unwrap();
        held.lock_shared().unwrap();
        let begun = Instant::now();
        assert_eq!(lock(&File::open(&path).unwrap()).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() >= NEW_LOCK_WAIT_MAX);
        drop(held);
        lock(&File::open(&path).unwrap()).unwrap();
    }
}
