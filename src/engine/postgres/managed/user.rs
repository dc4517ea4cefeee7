//! Who runs the cluster: we ourselves, or, where we are root, a named unprivileged user.
//!
//! Postgres refuses to run as root. Everything in directories of the cluster's user is written *as* that
//! user, so that a link planted there leads root nowhere.

use std::fs::{self, DirBuilder};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::ManagedError;
use crate::model::fault;

/// The user that Debian's packages make for the server.
pub(in crate::engine::postgres) const DEFAULT_USER: &str = "postgres";

/// A user of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunAs {
    /// Its name.
    pub name: String,
    /// Its number.
    pub uid: u32,
    /// The number of its own group.
    pub gid: u32,
}

/// Returns whether this process is root's.
pub(super) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns the user to run the cluster as; `None` where that is ourselves.
pub(in crate::engine::postgres) fn cluster_user(name: &str) -> Result<Option<RunAs>, ManagedError> {
    if !is_root() {
        return Ok(None);
    }
    let passwd = fs::read_to_string("/etc/passwd").map_err(ManagedError::io("read", Path::new("/etc/passwd")))?;
    let user = find_user(&passwd, name).ok_or_else(|| ManagedError::NoUser(name.to_owned()))?;
    if user.uid == 0 {
        return Err(ManagedError::NoUser(name.to_owned()));
    }
    Ok(Some(user))
}

fn find_user(passwd: &str, name: &str) -> Option<RunAs> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let found = fields.next()?;
        let (uid, gid) = (fields.nth(1)?, fields.next()?);
        (found == name).then_some(())?;
        Some(RunAs { name: name.to_owned(), uid: uid.parse().ok()?, gid: gid.parse().ok()? })
    })
}

/// The environment of the cluster's programs. Ours may hold an admin URL or a collector's token, and whoever may look at
/// a process may read what it was started with.
pub(super) const ENVIRONMENT: [(&str, &str); 2] = [("PATH", "/usr/local/bin:/usr/bin:/bin"), ("LC_ALL", "C")];

/// Prepares a program of the cluster's: as its user, in `/`, with an environment of our own making.
pub(in crate::engine::postgres) fn command(program: impl AsRef<Path>, user: Option<&RunAs>) -> Command {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new(program.as_ref());
    command.env_clear().envs(ENVIRONMENT).current_dir("/");
    command.stdin(Stdio::null());
    if let Some(user) = user {
        // std drops the supplementary groups as well when root gives a uid
        command.uid(user.uid).gid(user.gid);
    }
    command
}

/// Makes a directory that only the cluster's user can enter. Its parent is ours.
pub(super) fn make_private_dir(path: &Path, user: Option<&RunAs>) -> Result<(), ManagedError> {
    fault::reach("file.private-dir.make").map_err(|injected| ManagedError::io("make", path)(injected.into()))?;
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {}
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(ManagedError::io("make", path)(e)),
    }
    let found = fs::symlink_metadata(path).map_err(ManagedError::io("examine", path))?;
    if !found.is_dir() {
        return Err(ManagedError::NotPrivate(path.to_owned()));
    }
    let us = rustix::process::geteuid().as_raw();
    let wanted = user.map_or(us, |u| u.uid);
    if found.uid() != wanted {
        if found.uid() != us {
            return Err(ManagedError::NotPrivate(path.to_owned()));
        }
        chown(path, user.map(|u| u.uid), user.map(|u| u.gid)).map_err(ManagedError::io("give away", path))?;
    }
    if found.mode() & 0o077 != 0 {
        return Err(ManagedError::NotPrivate(path.to_owned()));
    }
    Ok(())
}

/// Writes a file as the cluster's user, all of it or nothing, readable by that user only.
pub(super) fn write_as(path: &Path, content: &[u8], user: Option<&RunAs>) -> Result<(), ManagedError> {
    let failed = ManagedError::io("write", path);
    fault::reach("spawn.write-as").map_err(|injected| failed(injected.into()))?;
    let mut child = command("/bin/sh", user)
        .args(["-c", "umask 077 && cat >\"$1.part\" && mv -f \"$1.part\" \"$1\"", "sh"])
        .arg(path)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(&failed)?;
    let written = match child.stdin.take() {
        Some(mut stdin) => stdin.write_all(content),
        None => Ok(()),
    };
    let status = child.wait().map_err(&failed)?;
    written.map_err(&failed)?;
    if status.success() { Ok(()) } else { Err(failed(std::io::Error::other(status.to_string()))) }
}

/// Says which directory above `path` the cluster's user cannot enter, if any.
pub(super) fn first_closed(path: &Path, user: &RunAs) -> Option<PathBuf> {
    let mut ancestors: Vec<_> = path.ancestors().collect();
    ancestors.reverse();
    let closed = |dir: &&Path| {
        let Ok(found) = fs::metadata(dir) else { return false };
        let bit = match (found.uid() == user.uid, found.gid() == user.gid) {
            (true, _) => 0o100,
            (false, true) => 0o010,
            (false, false) => 0o001,
        };
        found.mode() & bit == 0
    };
    ancestors.into_iter().find(closed).map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn users_are_read_from_passwd() {
        let passwd = "root:x:0:0::/root:/bin/sh\npostgres:x:101:104:,,,:/var/lib/postgresql:/bin/bash\nbroken\n";
        let expected = RunAs { name: "postgres".into(), uid: 101, gid: 104 };
        assert_eq!(find_user(passwd, "postgres"), Some(expected));
        assert_eq!(find_user(passwd, "nobody"), None);
    }

    #[test]
    fn a_directory_that_others_cannot_enter_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("inner");
        fs::create_dir(&inner).unwrap();
        let stranger = RunAs { name: "stranger".into(), uid: 4_000_000, gid: 4_000_000 };
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(first_closed(&inner, &stranger), None);
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(first_closed(&inner, &stranger), Some(dir.path().to_owned()));
    }

    #[test]
    fn a_link_in_place_of_a_private_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/tmp", dir.path().join("run")).unwrap();
        assert!(matches!(make_private_dir(&dir.path().join("run"), None), Err(ManagedError::NotPrivate(_))));
    }
}
