//! The private directory of one copy: sockets, and the archive where one is kept.
//!
//! It is removed on every way out, and what a killed process left is removed by the next: each directory is locked by who
//! uses it. Everything in it is made before it is given to the programs' user, so nothing planted there leads us anywhere.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, chown, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::guests::Guests;
use super::system;
use crate::engine::EngineError;
use crate::engine::postgres::managed::RunAs;
use crate::model::fault;

/// What the names of the directories begin with.
const PREFIX: &str = "copy-";
/// What the names of their locks end with.
const LOCK: &str = ".lock";

/// How many names are tried for a directory.
const NAMES_TRIED_MAX: u32 = 5;

/// The directory of one copy.
#[derive(Debug)]
pub(super) struct WorkDir {
    path: PathBuf,
    lock_path: PathBuf,
    /// Held as long as the directory is used.
    _lock: File,
    user: Option<RunAs>,
    guests: Guests,
}

impl WorkDir {
    /// Makes one below `base`, for the programs of `user`.
    pub(super) fn make(base: &Path, user: Option<&RunAs>) -> Result<Self, EngineError> {
        Self::make_in(base, user).map_err(system("make a private directory"))
    }

    fn make_in(base: &Path, user: Option<&RunAs>) -> io::Result<Self> {
        fault::reach("file.copy-dir.make")?;
        let mode = if user.is_some() { 0o711 } else { 0o700 };
        DirBuilder::new().recursive(true).mode(mode).create(base)?;
        let mut tried = 0;
        let (path, lock_path, lock) = loop {
            tried += 1;
            let name = format!("{PREFIX}{:08x}{:04x}", std::process::id(), random());
            let (path, lock_path) = (base.join(&name), base.join(format!("{name}{LOCK}")));
            let lock = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&lock_path)?;
            let locked = flock(&lock, FlockOperation::NonBlockingLockExclusive);
            // Somebody who sweeps may have taken it for one that was left, in the moment before it was locked.
            if locked.is_ok() && lock_path.exists() {
                break (path, lock_path, lock);
            }
            if tried == NAMES_TRIED_MAX {
                return Err(io::Error::other("every name that was tried was swept away"));
            }
        };
        let this = Self { path, lock_path, _lock: lock, user: user.cloned(), guests: Guests::default() };
        DirBuilder::new().mode(0o700).create(&this.path)?;
        Ok(this)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whom the sockets in it answer.
    pub(super) fn guests(&self) -> &Guests {
        &self.guests
    }

    /// Returns the number of the programs' user.
    pub(super) fn uid(&self) -> u32 {
        self.user.as_ref().map_or_else(|| rustix::process::geteuid().as_raw(), |user| user.uid)
    }

    /// Makes a file that only the programs' user can read, and us.
    pub(super) fn file(&self, name: &str) -> Result<File, EngineError> {
        self.make_file(name).map_err(system("make a private file"))
    }

    fn make_file(&self, name: &str) -> io::Result<File> {
        fault::reach("file.copy-file.make")?;
        let path = self.path.join(name);
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
        if let Some(user) = &self.user {
            fchown(&file, Some(user.uid), Some(user.gid))?;
        }
        Ok(file)
    }

    /// Lets only the programs' user connect to a socket in it.
    pub(super) fn own_socket(&self, path: &Path) -> io::Result<()> {
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        match &self.user {
            Some(user) => chown(path, Some(user.uid), Some(user.gid)),
            None => Ok(()),
        }
    }

    /// Gives the directory to the programs' user, once all that we put there is there.
    pub(super) fn give_away(&self) -> Result<(), EngineError> {
        let Some(user) = &self.user else { return Ok(()) };
        chown(&self.path, Some(user.uid), Some(user.gid)).map_err(system("give a directory away"))
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        remove(&self.path, &self.lock_path);
    }
}

/// Removes the directories that processes left which were killed while they copied.
pub(in crate::engine::postgres) fn sweep(base: &Path) {
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(of) = name.to_str().and_then(|name| name.strip_suffix(LOCK)).filter(|of| of.starts_with(PREFIX))
        else {
            continue;
        };
        let lock_path = entry.path();
        let Ok(lock) = OpenOptions::new().write(true).open(&lock_path) else { continue };
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            remove(&base.join(of), &lock_path);
        }
    }
}

/// Removes a directory, and then its lock: as long as there is anything, there is a lock that says whose it is.
fn remove(path: &Path, lock_path: &Path) {
    let removed = match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => fs::remove_file(lock_path),
    };
    if let Err(error) = removed {
        tracing::warn!(%error, directory = %path.display(), "the private directory of a copy stays; the next start removes it");
    }
}

fn random() -> u16 {
    let mut bytes = [0; 2];
    // Only so that two copies of one process differ; a name that is taken is refused.
    getrandom::fill(&mut bytes).unwrap_or_default();
    u16::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(base: &Path) -> usize {
        fs::read_dir(base).unwrap().count()
    }

    #[test]
    fn a_directory_is_private_and_goes_with_who_uses_it() {
        let base = tempfile::tempdir().unwrap();
        let work = WorkDir::make(base.path(), None).unwrap();
        work.file("archive").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(work.path()), mode(&work.path().join("archive"))), (0o700, 0o600));
        drop(work);
        assert_eq!(names(base.path()), 0);
    }

    #[test]
    fn what_a_killed_process_left_is_swept_and_what_is_used_stays() {
        let base = tempfile::tempdir().unwrap();
        let used = WorkDir::make(base.path(), None).unwrap();
        fs::create_dir(base.path().join("copy-left")).unwrap();
        fs::write(base.path().join("copy-left/archive"), "rows").unwrap();
        fs::write(base.path().join("copy-left.lock"), "").unwrap();
        fs::write(base.path().join("somebody-elses.lock"), "").unwrap();
        sweep(base.path());
        assert!(used.path().is_dir());
        assert_eq!(names(base.path()), 3);
    }
}
