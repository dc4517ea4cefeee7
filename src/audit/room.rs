//! Room on the disk that is the log's own.
//!
//! A full disk must not shut the log: nothing could be deleted then, as nothing is done that was not written down. So each file
//! has room behind its end that nobody else gets, one more lies ready for who begins a segment, and where little is free
//! only what frees some is taken in. All of it is help: where a file system sets nothing aside, the log is refused as before.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::{FallocateFlags, OFlags, fallocate};

/// What is set aside behind a file's end, in bytes: some hundred removals.
pub(super) const RESERVED_BYTES: u64 = 512 << 10;
/// When less is left behind the end, more is set aside if the disk has it.
pub(super) const RESERVED_BYTES_MIN: u64 = 256 << 10;
/// Where less is free, the log takes in only what frees some; on a small disk …
pub(super) const FREE_BYTES_MIN: u64 = 8 << 20;
/// … where less than this part of it is.
const FREE_PART_MIN: u64 = 8;
/// What lies ready for who begins a segment on a full disk.
pub(super) const SPARE: &str = "spare";

/// Sets room aside behind a file of `bytes`, whose end it does not change. Returns where that room ends.
pub(super) fn reserve(file: &File, bytes: u64) -> Option<u64> {
    fallocate(file, FallocateFlags::KEEP_SIZE, bytes, RESERVED_BYTES).ok()?;
    Some(bytes.saturating_add(RESERVED_BYTES))
}

/// Gives back what is set aside behind the end of a file of `bytes`.
pub(super) fn release(file: &File, bytes: u64) -> io::Result<()> {
    file.set_len(bytes)
}

/// Returns how many bytes are free where `path` is, if that is so little that it is kept for what frees some.
pub(super) fn nearly_none(path: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(path).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    let (left, all) = (bytes(found.f_bavail), bytes(found.f_blocks));
    (left < FREE_BYTES_MIN.min(all / FREE_PART_MIN)).then_some(left)
}

/// Sees that a spare file lies in the directory, if the disk has room for it.
pub(super) fn keep_spare(dir: &Path) {
    let path = dir.join(SPARE);
    if fs::symlink_metadata(&path).is_ok() || nearly_none(dir).is_some() {
        return;
    }
    // Another process may have been faster.
    let Ok(file) = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) else { return };
    if reserve(&file, 0).is_none() {
        fs::remove_file(&path).ok();
    }
}

/// Opens the spare file, for who will give it another name. Whoever locks it has it.
pub(super) fn spare(dir: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW.bits().cast_signed();
    let file = OpenOptions::new().read(true).append(true).custom_flags(flags).open(dir.join(SPARE))?;
    let found = file.metadata()?;
    if !found.is_file() || found.len() != 0 || found.nlink() != 1 {
        return Err(super::file::corrupt("what lies ready for a segment is not an empty file"));
    }
    Ok(file)
}
