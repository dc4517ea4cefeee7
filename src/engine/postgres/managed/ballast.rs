//! Keeps a part of the disk back for the day when it is full.
//!
//! A server that cannot write its log stops and does not start again, and then nothing can be removed either. What is kept
//! here is given up for that one start, or where nobody is left who could fill it as well: it is enough to come up, and to drop
//! databases. Given up, it counts for nothing that is free: it is to be made again.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};

use super::process::Paths;

/// What is kept back: some segments of the server's log.
const BYTES: u64 = 64 << 20;
/// How much has to stay free beside it; on a smaller disk nothing is kept back.
const BESIDE_BYTES: u64 = 192 << 20;
/// What is left where nothing more can be written: a server that runs needs a little for each commit.
const NOTHING_BYTES: u64 = 8 << 20;
/// Its name, among the server's data, as it has to be on the same disk.
const NAME: &str = "pgsandbox.ballast";
/// What `stat` counts a file's room in, whatever the file system (`st_blocks` of stat(2)).
const BLOCK_BYTES: u64 = 512;
/// How much is written at once where the system cannot set blocks aside.
const CHUNK_BYTES: usize = 1 << 16;

/// Gives it up if nothing more can be written beside a server that runs. Returns whether that made room.
pub(super) fn give_up_beside(paths: &Paths) -> bool {
    give_up(paths, NOTHING_BYTES)
}

/// Gives it up for a start if the disk is full. Returns whether that made room.
pub(super) fn give_up_for_start(paths: &Paths) -> bool {
    give_up(paths, BYTES)
}

/// Sees that it is there, if the disk has room for it. Nothing depends on it before the day it is needed.
pub(super) fn keep(paths: &Paths) {
    let (data, file) = (paths.data(), file(paths));
    let there = fs::symlink_metadata(&file).is_ok_and(|there| there.is_file() && is_whole(&there));
    if there || free(&data).is_none_or(|free| free < BYTES + BESIDE_BYTES) {
        return;
    }
    if let Err(error) = make(&data, &file) {
        tracing::debug!(%error, "nothing of the disk could be kept back");
        fs::remove_file(&file).ok();
    }
}

fn give_up(paths: &Paths, left: u64) -> bool {
    let full = free(&paths.data()).is_some_and(|free| free <= left);
    full && fs::symlink_metadata(file(paths)).is_ok_and(|there| there.is_file() && there.len() > 0)
        && OpenOptions::new().write(true).open(file(paths)).and_then(|file| file.set_len(0)).is_ok()
}

/// Returns how many bytes are free where the data is, without those that are to be kept back again.
pub(super) fn left(paths: &Paths) -> Option<u64> {
    let given_up = fs::symlink_metadata(file(paths)).is_ok_and(|there| !is_whole(&there));
    Some(free(&paths.data())?.saturating_sub(if given_up { BYTES } else { 0 }))
}

/// Returns whether a file keeps all of it: one that was copied with its directory may be all holes.
fn is_whole(file: &fs::Metadata) -> bool {
    file.len() == BYTES && file.blocks().saturating_mul(BLOCK_BYTES) >= BYTES
}

fn free(data: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(data).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

fn file(paths: &Paths) -> PathBuf {
    paths.data().join(NAME)
}

fn make(data: &Path, path: &Path) -> io::Result<()> {
    let owner = fs::metadata(data)?;
    // Not followed, and nothing that is there is written to.
    fs::remove_file(path).or_else(|e| if e.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(e) })?;
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    std::os::unix::fs::fchown(&file, Some(owner.uid()), Some(owner.gid()))?;
    match fallocate(&file, FallocateFlags::empty(), 0, BYTES) {
        Ok(()) => Ok(()),
        Err(_) => write(file),
    }
}

fn write(mut file: File) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    for _ in 0..BYTES / CHUNK_BYTES as u64 {
        // What a file system could make smaller would not have its room.
        getrandom::fill(&mut chunk).map_err(|error| io::Error::other(error.to_string()))?;
        file.write_all(&chunk)?;
    }
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_kept_whole_and_made_again() {
        let home = tempfile::tempdir().unwrap();
        let paths = Paths::new(home.path(), 15);
        fs::create_dir_all(paths.data()).unwrap();
        if free(&paths.data()).unwrap() < BYTES + BESIDE_BYTES {
            return;
        }
        for broken in [None, Some("cut"), Some("holes"), Some("link")] {
            match broken {
                Some("cut") => fs::write(file(&paths), "short").unwrap(),
                Some("holes") => {
                    fs::remove_file(file(&paths)).unwrap();
                    File::create(file(&paths)).unwrap().set_len(BYTES).unwrap();
                }
                Some(_) => {
                    fs::remove_file(file(&paths)).unwrap();
                    fs::write(home.path().join("other"), "kept").unwrap();
                    std::os::unix::fs::symlink(home.path().join("other"), file(&paths)).unwrap();
                }
                None => {}
            }
            keep(&paths);
            let made = fs::symlink_metadata(file(&paths)).unwrap();
            assert!(made.is_file() && made.len() == BYTES && made.blocks() * 512 >= BYTES, "{broken:?}: {made:?}");
        }
        assert_eq!(fs::read_to_string(home.path().join("other")).unwrap(), "kept");
        assert!(!give_up(&paths, BYTES), "the disk is not full");
        let whole = left(&paths).unwrap();
        assert!(give_up(&paths, u64::MAX) && !give_up(&paths, u64::MAX));
        assert_eq!(fs::metadata(file(&paths)).unwrap().blocks(), 0);
        assert!(left(&paths).unwrap() < whole + BYTES / 2, "what was given up counts as free");
        keep(&paths);
        assert_eq!(fs::metadata(file(&paths)).unwrap().len(), BYTES);
    }
}
