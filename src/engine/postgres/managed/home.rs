//! The state directory: claimed once, recognised ever after, locked while a cluster in it is changed.
//!
//! A directory that this program did not write is refused by name and nothing in it is touched. As root,
//! directories on the way to a cluster can be entered by its user, and nothing of ours can be read by it.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use super::ManagedError;
use crate::model::fault;

/// The file that says whose directory this is.
const MARKER: &str = "pgsandbox-state";
/// What the marker says: the format's version, to be raised when an older program could not read the directory.
const MARKER_TEXT: &str = "state directory of pgsandbox, format 1\n";
/// What the extension of a file begins with that is being written; the number of the process follows.
const PART: &str = "part-";
/// The lock that is held while the directory is claimed.
const LOCK: &str = "lock";
/// How often a lock that others hold is tried again.
const LOCK_POLL: Duration = Duration::from_millis(25);

/// A state directory of this program's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home(PathBuf);

/// A lock that is held until this is dropped, or the process ends in whatever way.
#[derive(Debug)]
pub(super) struct Locked {
    _file: File,
}

impl Home {
    /// Takes a directory for this program: an absent or empty one is made ours, one of ours is recognised.
    ///
    /// # Errors
    /// Refuses a directory with anything else in it, and one of a newer format.
    pub fn claim(path: &Path) -> Result<Self, ManagedError> {
        if !path.is_absolute() {
            return Err(ManagedError::RelativeHome(path.to_owned()));
        }
        if Self::recognise(path)? {
            return Ok(Self(path.to_owned()));
        }
        make_dir(path)?;
        let _lock = Locked::take_blocking(&path.join(LOCK))?;
        if !Self::recognise(path)? {
            write_private(&path.join(MARKER), MARKER_TEXT.as_bytes())?;
        }
        Ok(Self(path.to_owned()))
    }

    /// Returns the directory's path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns whether `path` is ours; `false` if it is absent or empty. Touches nothing.
    ///
    /// # Errors
    /// Refuses a directory that is another's.
    pub fn recognise(path: &Path) -> Result<bool, ManagedError> {
        let entries = match fs::read_dir(path) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(e) => return Err(ManagedError::io("read", path)(e)),
        };
        let mut strange = None;
        for entry in entries {
            let name = entry.map_err(ManagedError::io("read", path))?.file_name();
            // the marker's own beginnings are its name with something behind it
            if name != LOCK && !name.as_encoded_bytes().starts_with(MARKER.as_bytes()) {
                strange = Some(name);
            }
        }
        // read after the listing: the marker is written before anything else, so whoever sees the rest sees it
        match fs::read_to_string(path.join(MARKER)) {
            Ok(text) if text == MARKER_TEXT => Ok(true),
            Ok(_) => Err(ManagedError::HomeFormat(path.to_owned())),
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(ManagedError::io("read", path)(e)),
            Err(_) if strange.is_some() => Err(ManagedError::ForeignHome(path.to_owned())),
            Err(_) => Ok(false),
        }
    }
}

impl Locked {
    /// Waits for the lock until `deadline`.
    pub(super) async fn take(path: &Path, wait: Duration) -> Result<Self, ManagedError> {
        let file = open_lock(path)?;
        let until = Instant::now() + wait;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { _file: file }),
                Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < until => {
                    tokio::time::sleep(LOCK_POLL).await;
                }
                Err(Errno::WOULDBLOCK | Errno::INTR) => return Err(ManagedError::Locked(path.to_owned())),
                Err(e) => return Err(ManagedError::io("lock", path)(e.into())),
            }
        }
    }

    /// Waits for the lock; for what is held only for a moment.
    fn take_blocking(path: &Path) -> Result<Self, ManagedError> {
        let file = open_lock(path)?;
        flock(&file, FlockOperation::LockExclusive).map_err(|e| ManagedError::io("lock", path)(e.into()))?;
        Ok(Self { _file: file })
    }
}

fn open_lock(path: &Path) -> Result<File, ManagedError> {
    fault::reach("file.lock.open").map_err(|injected| ManagedError::io("open", path)(injected.into()))?;
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(ManagedError::io("open", path))
}

/// Makes a directory of ours and those above it: closed to others, but for the cluster's user where that is another.
pub(super) fn make_dir(path: &Path) -> Result<(), ManagedError> {
    let mode = if super::user::is_root() { 0o711 } else { 0o700 };
    fault::reach("file.dir.make").map_err(|injected| ManagedError::io("make", path)(injected.into()))?;
    let missing: Vec<&Path> = path.ancestors().take_while(|dir| !dir.exists()).collect();
    DirBuilder::new().recursive(true).mode(mode).create(path).map_err(ManagedError::io("make", path))?;
    // whatever the umask says
    missing.into_iter().try_for_each(|dir| {
        fs::set_permissions(dir, Permissions::from_mode(mode)).map_err(ManagedError::io("open", dir))
    })
}

/// Writes a file that only we can read, all of it or nothing.
pub(super) fn write_private(path: &Path, content: &[u8]) -> Result<(), ManagedError> {
    clear_parts(path);
    let part = path.with_extension(format!("{PART}{}", std::process::id()));
    let write = || {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
        fault::reach("file.private.write")?;
        file.write_all(content)?;
        file.sync_all()?;
        fault::reach("file.private.rename")?;
        fs::rename(&part, path)
    };
    let written = write().inspect_err(|_| fs::remove_file(&part).unwrap_or_default());
    written.map_err(ManagedError::io("write", path))
}

/// Removes what processes that died while they wrote `path` have left: it may be a password.
fn clear_parts(path: &Path) {
    let gone = |pid: i32| Pid::from_raw(pid).is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH));
    for entry in path.parent().into_iter().flat_map(fs::read_dir).flatten().flatten() {
        let found = entry.path();
        let part = found.extension().and_then(|extension| extension.to_str()?.strip_prefix(PART)?.parse().ok());
        if found.file_stem() == path.file_stem()
            && part.is_some_and(gone)
            && let Err(error) = fs::remove_file(&found)
        {
            tracing::warn!(%error, file = %found.display(), "an unfinished file stays");
        }
    }
}

/// Reads a small file that only we may have written, and with `private` only we may read; `None` if it is absent.
pub(super) fn read_own(path: &Path, private: bool) -> Result<Option<String>, ManagedError> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(ManagedError::io("examine", path)(e)),
    };
    if !found.is_file() {
        return Err(ManagedError::Exposed { path: path.to_owned(), fault: "is not a regular file".to_owned() });
    }
    check_own(path, &found, if private { 0o077 } else { 0o022 })?;
    read_small(path)
}

/// Checks that a directory on the way to a cluster is ours and that nobody else can change what is in it.
pub(super) fn check_own_dir(path: &Path) -> Result<(), ManagedError> {
    let found = fs::metadata(path).map_err(ManagedError::io("examine", path))?;
    check_own(path, &found, 0o022)
}

fn check_own(path: &Path, found: &fs::Metadata, closed: u32) -> Result<(), ManagedError> {
    let exposed = |fault: String| Err(ManagedError::Exposed { path: path.to_owned(), fault });
    let me = rustix::process::geteuid().as_raw();
    if found.uid() != me {
        return exposed(format!("belongs to user {}, not to user {me}", found.uid()));
    }
    if found.mode() & closed != 0 {
        return exposed(format!("has mode {:04o}, which lets others in", found.mode() & 0o7777));
    }
    Ok(())
}

/// Reads a small file of ours; `None` if it is absent.
pub(super) fn read_small(path: &Path) -> Result<Option<String>, ManagedError> {
    fault::reach("file.small.read").map_err(|injected| ManagedError::io("read", path)(injected.into()))?;
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(ManagedError::io("read", path)(e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fresh_directory_is_claimed_and_recognised() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("a/b");
        assert!(!Home::recognise(&home).unwrap());
        Home::claim(&home).unwrap();
        assert!(Home::recognise(&home).unwrap());
        fs::write(home.join("anything"), "x").unwrap();
        Home::claim(&home).unwrap();
        let mode = fs::metadata(home.join(MARKER)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_directory_of_somebody_else_is_refused_and_not_touched() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("thesis.txt"), "x").unwrap();
        let error = Home::claim(dir.path()).unwrap_err();
        assert!(matches!(error, ManagedError::ForeignHome(_)), "{error:?}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_newer_format_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(MARKER), "state directory of pgsandbox, format 2\n").unwrap();
        assert!(matches!(Home::claim(dir.path()), Err(ManagedError::HomeFormat(_))));
    }

    #[test]
    fn eight_claims_at_once_all_succeed() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home");
        std::thread::scope(|scope| {
            for claim in (0..8).map(|_| scope.spawn(|| Home::claim(&home))).collect::<Vec<_>>() {
                claim.join().unwrap().unwrap();
            }
        });
    }

    #[test]
    fn what_a_process_died_over_goes_with_the_next_writing() {
        let dir = tempfile::tempdir().unwrap();
        let dead =
            std::process::Command::new("true").spawn().and_then(|mut child| Ok((child.id(), child.wait()?))).unwrap().0;
        let (left, others) =
            (dir.path().join(format!("password.part-{dead}")), dir.path().join(format!("port.part-{dead}")));
        for file in [&left, &others] {
            fs::write(file, "s3cret").unwrap();
        }
        write_private(&dir.path().join("password"), b"another").unwrap();
        assert!(!left.exists() && others.exists());
        write_private(&dir.path().join("port"), b"1").unwrap();
        assert!(!others.exists());
    }

    #[tokio::test]
    async fn a_lock_is_held_by_one_and_freed_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = Locked::take(&path, Duration::ZERO).await.unwrap();
        assert!(matches!(Locked::take(&path, Duration::ZERO).await, Err(ManagedError::Locked(_))));
        drop(first);
        Locked::take(&path, Duration::ZERO).await.unwrap();
    }
}
