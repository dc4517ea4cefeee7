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
/// Where not all of it is to be had, so many parts of it are tried.
const RESERVED_STEPS: u64 = 32;
/// What `stat` counts a file's room in, whatever the file system (`st_blocks` of stat(2)).
const BLOCK_BYTES: u64 = 512;
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

/// Sees that a spare file lies in the directory and has its room, if the disk does.
pub(super) fn keep_spare(dir: &Path) {
    if nearly_none(dir).is_none() {
        set_aside_spare(dir);
    }
}

/// Makes the spare file of what a segment that ends gives back, however little is free beside that: who comes next on a full
/// disk begins one.
pub(super) fn hand_on(file: &File, bytes: u64, dir: &Path) -> io::Result<()> {
    let released = release(file, bytes);
    set_aside_spare(dir);
    released
}

fn set_aside_spare(dir: &Path) {
    let path = dir.join(SPARE);
    let file = match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
        Err(fault) if fault.kind() == io::ErrorKind::AlreadyExists => spare(dir),
        made => made,
    };
    // Another process may have been faster, or what lies there is not ours.
    let Ok(file) = file else { return };
    // What was copied with its directory is there without its room.
    if set_aside(&file) >= RESERVED_BYTES || (1..=RESERVED_STEPS).rev().any(|steps| reserve_steps(&file, steps)) {
        return;
    }
    if set_aside(&file) == 0 {
        fs::remove_file(&path).ok();
    }
}

fn reserve_steps(file: &File, steps: u64) -> bool {
    fallocate(file, FallocateFlags::KEEP_SIZE, 0, RESERVED_BYTES / RESERVED_STEPS * steps).is_ok()
}

fn set_aside(file: &File) -> u64 {
    file.metadata().map_or(0, |found| found.blocks().saturating_mul(BLOCK_BYTES))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_ready_without_its_room_gets_it_and_what_is_not_ours_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(SPARE);
        let room = || fs::symlink_metadata(&path).unwrap().blocks() * BLOCK_BYTES;
        // As `cp -a` leaves it.
        File::create(&path).unwrap();
        assert_eq!(room(), 0);
        keep_spare(dir.path());
        assert!(room() >= RESERVED_BYTES);
        fs::write(&path, "something").unwrap();
        let before = room();
        keep_spare(dir.path());
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), room()), ("something", before));
        fs::remove_file(&path).unwrap();
        let other = dir.path().join("other");
        File::create(&other).unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        keep_spare(dir.path());
        assert_eq!(fs::metadata(&other).unwrap().blocks(), 0);
    }

    #[test]
    fn a_segment_that_ends_hands_its_room_on() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::create(dir.path().join("segment")).unwrap();
        reserve(&file, 0).unwrap();
        hand_on(&file, 0, dir.path()).unwrap();
        assert_eq!(file.metadata().unwrap().blocks(), 0);
        assert!(set_aside(&spare(dir.path()).unwrap()) >= RESERVED_BYTES);
    }
}
