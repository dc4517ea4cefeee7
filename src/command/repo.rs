//! A repository on this machine: its directory, and its files read without leaving it.
//!
//! No link is followed, so what is read or written is in the repository, whatever was put there.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};

use super::CommandError;
use super::reach::{real, touches};
use crate::model::{fault, is_project_programs};

/// The longest path of a repository, in bytes, as systems have it.
pub(super) const PATH_BYTES_MAX: usize = 4096;
/// The most entries of a directory that are looked at.
pub(super) const ENTRIES_MAX: usize = 2000;
/// The system's own: neither these nor what is in them, nor what holds them, is a repository.
const SYSTEMS: [&str; 24] = [
    "/usr",
    "/Applications",
    "/Library",
    "/System",
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/home/linuxbrew/.linuxbrew",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/lost+found",
    "/nix",
    "/opt/homebrew",
    "/private/etc",
    "/proc",
    "/run",
    "/sbin",
    "/snap",
    "/sys",
    VAR,
    "/var/run",
];
/// Of which some is for everybody's files, and some services live in.
const VAR: &str = "/var";
/// Hold what is in nobody's way: directories in them may be repositories, they themselves and what holds them are not.
const SHARED: [&str; 13] = [
    "/",
    "/Users",
    "/Volumes",
    "/home",
    "/media",
    "/mnt",
    "/opt",
    "/root",
    "/srv",
    "/tmp",
    SHARED_VAR[0],
    SHARED_VAR[1],
    SHARED_VAR[2],
];
/// Those of them that are in `/var`.
const SHARED_VAR: [&str; 3] = ["/var/tmp", "/var/www", "/var/folders"];
/// Hold home directories: what is right in them is no repository.
const HOMES: [&str; 2] = ["/Users", "/home"];

/// An existing directory that commands may be run in.
#[derive(Debug)]
pub struct Repo {
    path: PathBuf,
    dir: OwnedFd,
}

/// Where repositories may be.
#[derive(Clone, Debug, Default)]
pub struct Grounds {
    /// Directories below which they may be; empty for anywhere.
    pub within: Vec<PathBuf>,
    /// This program's own directories and files.
    pub hidden: Vec<PathBuf>,
    /// The home directory.
    pub home: Option<PathBuf>,
    /// Where programs are looked for.
    pub path: Vec<PathBuf>,
    /// This program's own file.
    pub program: Option<PathBuf>,
}

impl Repo {
    /// Checks a path, and looks at nothing.
    ///
    /// # Errors
    /// `repo_not_found` if there can be nothing.
    pub fn check(path: &str) -> Result<(), CommandError> {
        let shown = || PathBuf::from(super::argv::shown(path));
        if path.len() > PATH_BYTES_MAX || path.contains('\0') {
            return Err(CommandError::RepoNotFound { path: shown() });
        }
        if Path::new(path).is_absolute() { Ok(()) } else { Err(CommandError::RepoRelative { path: shown() }) }
    }

    /// Opens a repository.
    ///
    /// # Errors
    /// `repo_not_found`, or `unsafe_command` for a directory that holds more than a repository, or this program's own.
    pub fn open(path: &str, grounds: &Grounds) -> Result<Self, CommandError> {
        let given = PathBuf::from(path);
        let not_found = || CommandError::RepoNotFound { path: PathBuf::from(super::argv::shown(path)) };
        Self::check(path)?;
        fault::reach("command.repo.open").map_err(|_| not_found())?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(CWD, &given, flags, Mode::empty()).map_err(|_| not_found())?;
        // What is open is judged, and stays what it is whatever is put in its place.
        let path = whereabouts(&dir).map_err(|_| not_found())?;
        match why_not(&path, grounds) {
            Some(why) => Err(CommandError::Repo { path, why }),
            None => Ok(Self { path, dir }),
        }
    }

    /// Returns where it was when it was opened, without links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the directory.
    pub(super) fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Reads a text file of at most `bytes_max`; none if there is none.
    ///
    /// # Errors
    /// Fails for what is no plain file of that size in UTF-8, or stands behind a link.
    pub fn read(&self, relative: &str, bytes_max: usize) -> io::Result<Option<String>> {
        fault::reach("command.repo.read")?;
        let opened = match self.open_at(relative, OFlags::RDONLY | OFlags::NONBLOCK) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let file = File::from(opened);
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is no plain file"));
        }
        let mut bytes = Vec::new();
        file.take(bytes_max as u64 + 1).read_to_end(&mut bytes)?;
        if bytes.len() > bytes_max {
            return Err(io::Error::other(format!("it is longer than {bytes_max} bytes")));
        }
        String::from_utf8(bytes).map(Some).map_err(|_| io::Error::other("it is not valid UTF-8"))
    }

    /// Returns the names in a directory that are plain files, or directories, sorted; of many only some.
    pub fn names(&self, relative: &str, wanted: FileType) -> Vec<String> {
        let opened = self.open_at(relative, OFlags::RDONLY | OFlags::DIRECTORY);
        let Ok(entries) = opened.and_then(|dir| Ok(Dir::read_from(dir)?)) else { return Vec::new() };
        let names = entries.take(ENTRIES_MAX).flatten().filter(|entry| entry.file_type() == wanted);
        let mut names: Vec<String> =
            names.filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned)).collect();
        names.retain(|name| name != "." && name != "..");
        names.sort();
        names
    }

    /// Writes a file in a directory of the repository's own, as a whole or not at all.
    ///
    /// # Errors
    /// Fails if the system does not let us, or if the directory is a link.
    pub fn write(&self, dir: &str, name: &str, text: &str) -> io::Result<()> {
        fault::reach("command.repo.write")?;
        match rustix::fs::mkdirat(&self.dir, dir, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let dir = self.open_at(dir, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let new = format!("{name}.{}.new", std::process::id());
        rustix::fs::unlinkat(&dir, &new, AtFlags::empty()).ok();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::openat(&dir, &new, flags, Mode::from_raw_mode(0o644))?);
        let written = file.write_all(text.as_bytes()).and_then(|()| Ok(rustix::fs::renameat(&dir, &new, &dir, name)?));
        if written.is_err() {
            rustix::fs::unlinkat(&dir, &new, AtFlags::empty()).ok();
        }
        written
    }

    /// Opens what is below the repository, and goes through no link on the way.
    fn open_at(&self, relative: &str, flags: OFlags) -> io::Result<OwnedFd> {
        let mut at = self.dir.as_fd().try_clone_to_owned()?;
        let parts: Vec<&OsStr> = Path::new(relative)
            .components()
            .filter(|part| *part != Component::CurDir)
            .map(|part| match part {
                Component::Normal(name) => Ok(name),
                Component::Prefix(_) | Component::RootDir | Component::CurDir | Component::ParentDir => {
                    Err(io::Error::other("it leads out of the repository"))
                }
            })
            .collect::<io::Result<_>>()?;
        let Some((last, way)) = parts.split_last() else {
            return Ok(rustix::fs::openat(&at, ".", flags | OFlags::CLOEXEC, Mode::empty())?);
        };
        let through = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for part in way {
            at = rustix::fs::openat(&at, *part, through, Mode::empty())?;
        }
        Ok(rustix::fs::openat(&at, *last, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?)
    }
}

/// Returns where an open directory is, without links.
///
/// # Errors
/// Fails if it is nowhere any more, or was moved meanwhile.
pub(super) fn whereabouts(dir: &OwnedFd) -> io::Result<PathBuf> {
    #[cfg(target_os = "linux")]
    let path = rustix::fs::readlinkat(CWD, format!("/proc/self/fd/{}", dir.as_raw_fd()), Vec::new())?;
    #[cfg(target_os = "macos")]
    let path = rustix::fs::getpath(dir)?;
    let path = PathBuf::from(std::ffi::OsString::from_vec(path.into_bytes()));
    let (there, open) = (rustix::fs::lstat(&path)?, rustix::fs::fstat(dir)?);
    if (there.st_dev, there.st_ino) != (open.st_dev, open.st_ino) {
        return Err(io::Error::other("the directory was moved"));
    }
    Ok(path)
}

/// Says why a directory is not one that commands are run in.
fn why_not(path: &Path, grounds: &Grounds) -> Option<String> {
    let said = |why: &str| Some(why.to_owned());
    if path.to_str().is_none() {
        return said("has a path that is not valid UTF-8");
    }
    if grounds.hidden.iter().any(|hidden| touches(path, &real(hidden))) {
        return said("holds this program's own files, or is among them");
    }
    let home = grounds.home.as_deref().map(real);
    let within_shared = || SHARED_VAR.iter().any(|shared| relation(path, Path::new(shared)) == Some(IN));
    let checked_out = |below: &Path| path.ancestors().take_while(|at| *at != below).any(|at| at.join(".git").exists());
    // Services have their homes there.
    let in_home = || home.as_deref().is_some_and(|home| path.starts_with(home) && checked_out(home));
    for shared in SHARED.map(Path::new) {
        if let Some(how) = relation(path, shared).filter(|how| *how != IN) {
            return Some(format!("{how} `{}`, in which many have their files", shared.display()));
        }
    }
    for system in SYSTEMS {
        let allowed = || system == VAR && (within_shared() || in_home());
        if let Some(how) = relation(path, Path::new(system)).filter(|how| *how != IN || !allowed()) {
            return Some(format!("{how} `{system}`, which is the system's own"));
        }
    }
    let is_home =
        |parent: &Path| HOMES.iter().any(|homes| parent == Path::new(homes) || parent == real(Path::new(homes)));
    if path.parent().is_some_and(is_home) || home.as_deref().is_some_and(|home| home.starts_with(path)) {
        return said("is a whole home directory, or holds one");
    }
    if real(&std::env::temp_dir()).starts_with(path) {
        return said("holds the temporary files of others");
    }
    if grounds.program.as_deref().is_some_and(|program| program.starts_with(path)) {
        return said("holds this program itself");
    }
    for dir in &grounds.path {
        // What is as wide as that has been looked at, and what is in a project is its own.
        let wide = || real(dir).parent().is_none() || home.as_deref().is_some_and(|home| home.starts_with(real(dir)));
        let allowed = |how| how == IN && wide() || how == HOLDS && is_project_programs(dir);
        if let Some(how) = relation(path, dir).filter(|how| !allowed(*how)) {
            return Some(format!("{how} `{}`, in which programs are looked for, by `PATH`", dir.display()));
        }
    }
    if let Some(home) = &home {
        // Settings and keys are in such directories; checked-out work may be as well.
        let below = path.strip_prefix(home).ok();
        let dotted = below
            .is_some_and(|below| below.components().any(|part| part.as_os_str().as_encoded_bytes().starts_with(b".")));
        if dotted && !checked_out(home) {
            return said("is in a hidden directory of the home directory, and not under version control");
        }
    }
    if !grounds.within.is_empty() && !grounds.within.iter().any(|ground| path.starts_with(real(ground))) {
        return said("is not where the operator lets repositories be");
    }
    None
}

/// How a directory can stand to another.
const IS: &str = "is";
const IN: &str = "is in";
const HOLDS: &str = "holds";

/// Returns how a directory stands to another, by that one's name and by where it leads.
fn relation(path: &Path, other: &Path) -> Option<&'static str> {
    let names = [other.to_path_buf(), real(other)];
    if names.iter().any(|name| path == name) {
        Some(IS)
    } else if names.iter().any(|name| path.starts_with(name)) {
        Some(IN)
    } else {
        names.iter().any(|name| name.starts_with(path)).then_some(HOLDS)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::model::{Code, Failure};

    fn ground() -> (tempfile::TempDir, PathBuf, Grounds) {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        for path in ["home/work/repo", "home/.ssh", "home/.tool/tree/.git", "state/audit", "elsewhere"] {
            fs::create_dir_all(root.join(path)).unwrap();
        }
        let grounds = Grounds {
            within: Vec::new(),
            hidden: vec![root.join("state")],
            home: Some(root.join("home")),
            ..Grounds::default()
        };
        (dir, root, grounds)
    }

    fn check(path: &Path, grounds: &Grounds, expected: Option<Code>) {
        let code = Repo::open(path.to_str().unwrap(), grounds).err().map(|error| Failure::from(error).code);
        assert_eq!(code, expected, "{}", path.display());
    }

    #[test]
    fn a_repository_is_a_directory_of_its_own() {
        let (_dir, root, mut grounds) = ground();
        let (missing, unsafe_) = (Some(Code::RepoNotFound), Some(Code::UnsafeCommand));
        fs::write(root.join("home/work/file"), "").unwrap();
        check(&root.join("home/work/repo"), &grounds, None);
        check(&root.join("home/.tool/tree"), &grounds, None);
        check(&root.join("home/work/none"), &grounds, missing);
        check(&root.join("home/work/file"), &grounds, missing);
        check(Path::new("home/work/repo"), &grounds, missing);
        check(&root.join("x".repeat(PATH_BYTES_MAX)), &grounds, missing);
        for path in ["home", "home/.ssh", "state", "state/audit", ""] {
            check(&root.join(path), &grounds, unsafe_);
        }
        for path in ["/", "/etc", "/usr", "/proc/self", "/dev"] {
            check(Path::new(path), &grounds, unsafe_);
        }
        for bin in ["work/bin/lib", "work/repo/.venv/bin", "work/tools/bin"] {
            fs::create_dir_all(root.join("home").join(bin)).unwrap();
        }
        grounds.path = ["bin", "repo/.venv/bin", "tools/bin"].map(|path| root.join("home/work").join(path)).to_vec();
        grounds.program = Some(root.join("home/work/own/pgsandbox"));
        fs::create_dir_all(root.join("home/work/own/src")).unwrap();
        for path in ["bin", "bin/lib", "repo/.venv/bin", "tools", "tools/bin", "own"] {
            check(&root.join("home/work").join(path), &grounds, unsafe_);
        }
        // A project's own programs are its own, and what is beside this program is not it.
        for path in ["repo", "own/src"] {
            check(&root.join("home/work").join(path), &grounds, None);
        }
        grounds.within = vec![root.join("home/work")];
        check(&root.join("home/work/repo"), &grounds, None);
        check(&root.join("elsewhere"), &grounds, unsafe_);
    }

    #[test]
    fn the_system_and_what_many_share_is_no_repository_and_what_is_in_there_may_be() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home");
        fs::create_dir(&home).unwrap();
        let grounds = Grounds { home: Some(home.clone()), ..Grounds::default() };
        let no = |path: &str, grounds: &Grounds| why_not(Path::new(path), grounds);
        for path in [
            "/",
            "/bin",
            "/usr/local/bin",
            "/usr/lib/python3",
            "/usr/local/src/app",
            "/usr/lib/systemd/system",
            "/boot/grub",
            "/etc/cron.d",
            "/run/user/0",
            "/nix/store/x",
            "/snap/x",
            "/sys/fs",
            "/dev/shm/x",
            "/var",
            "/var/lib",
            "/var/log",
            "/var/lib/app",
            "/var/spool/cron",
            "/var/backups",
            "/var/cache/x",
            "/var/run/x",
            "/opt",
            "/srv",
            "/mnt",
            "/media",
            "/home",
            "/home/ann",
            "/root",
            "/tmp",
            "/var/tmp",
            "/var/www",
            "/opt/homebrew",
            "/opt/homebrew/bin",
        ] {
            assert!(no(path, &grounds).is_some(), "{path}");
        }
        for path in [
            "/opt/app",
            "/srv/app",
            "/var/www/app",
            "/home/ann/project",
            "/root/project",
            "/workspace",
            "/work/project",
            "/tmp/x",
            "/var/tmp/x",
            "/mnt/c/project",
            "/app",
            "/workspaces/app",
            "/builds/group/app",
        ] {
            assert_eq!(no(path, &grounds), None, "{path}");
        }
        let service = Grounds { home: Some(PathBuf::from("/var/lib/jenkins")), ..Grounds::default() };
        assert!(no("/var/lib/jenkins/workspace/app", &service).is_some(), "it is not under version control");
    }

    #[test]
    fn nothing_is_read_or_written_through_a_link() {
        let (_dir, root, grounds) = ground();
        let at = root.join("home/work/repo");
        fs::write(root.join("elsewhere/secret"), "secret").unwrap();
        symlink(root.join("elsewhere/secret"), at.join("file")).unwrap();
        symlink(root.join("elsewhere"), at.join("dir")).unwrap();
        symlink(root.join("elsewhere"), at.join(".pgsandbox")).unwrap();
        fs::create_dir(at.join("real")).unwrap();
        fs::write(at.join("real/plain"), "text").unwrap();
        let repo = Repo::open(at.to_str().unwrap(), &grounds).unwrap();
        assert!(repo.read("file", 99).is_err());
        assert!(repo.read("dir/secret", 99).is_err());
        assert!(repo.read("../../../elsewhere/secret", 99).is_err());
        assert!(repo.read("/etc/hostname", 99).is_err());
        assert!(repo.read("real", 99).is_err());
        assert_eq!(repo.read("real/plain", 4).unwrap().as_deref(), Some("text"));
        assert!(repo.read("real/plain", 3).is_err());
        assert_eq!(repo.read("real/none", 99).unwrap(), None);
        assert_eq!(repo.names("", FileType::Directory), ["real"]);
        assert_eq!(repo.names("dir", FileType::RegularFile), Vec::<String>::new());
        assert!(repo.write(".pgsandbox", "project.json", "{}").is_err());
        assert!(!root.join("elsewhere/project.json").exists());
        fs::remove_file(at.join(".pgsandbox")).unwrap();
        repo.write(".pgsandbox", "project.json", "{}").unwrap();
        repo.write(".pgsandbox", "project.json", "{\"a\":1}").unwrap();
        assert_eq!(fs::read_dir(at.join(".pgsandbox")).unwrap().count(), 1);
    }

    #[test]
    fn of_a_directory_with_many_entries_only_some_are_looked_at() {
        let (_dir, root, grounds) = ground();
        let at = root.join("home/work/repo");
        (0..=ENTRIES_MAX).for_each(|n| fs::write(at.join(n.to_string()), "").unwrap());
        let repo = Repo::open(at.to_str().unwrap(), &grounds).unwrap();
        assert!(repo.names("", FileType::RegularFile).len() <= ENTRIES_MAX);
    }
}
