//! Exported templates in the state directory: one private file each, in a folder of its owner's.
//!
//! A file is found by its owner and its name alone; no caller names a path. It appears whole or not at all, and in the
//! place of another only where that was asked for. What a process that died has left unfinished is removed by the next
//! who looks: an unfinished file is locked by who writes it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use sha2::{Digest as _, Sha256};

use super::file::{self, DUMP_AT, Manifest, Unsound};
use crate::model::{Code, Failure, fault};
use crate::sandbox::schema::hex;

/// Exported templates that one owner may have.
pub(super) const DUMPS_MAX: usize = 32;
/// What they may take on disk together, in bytes.
pub(super) const DUMP_BYTES_MAX: u64 = 16 << 30;
/// How many digits of an owner's digest name its folder.
const OWNER_DIGITS: usize = 32;

const END: &str = ".template";
const UNFINISHED: &str = ".unfinished-";
const LOCK: &str = ".lock";

/// An exported template, as it is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptDump {
    /// What it is called.
    pub name: String,
    /// What is known of it.
    pub manifest: Manifest,
    /// The file's length.
    pub bytes: u64,
}

/// An exported template that is open.
#[derive(Debug)]
pub(super) struct OpenDump {
    pub(super) file: File,
    pub(super) manifest: Manifest,
}

/// Why an exported template cannot be kept, or had.
#[derive(Debug, thiserror::Error)]
pub(super) enum ShelfError {
    /// The system does not let us.
    #[error("the exported templates in `{}` cannot be used", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Others could read it, or it is no file or folder.
    #[error("`{}` is not a private file of this program's", path.display())]
    Exposed {
        /// The file or folder.
        path: PathBuf,
    },
    /// It is not what was written.
    #[error("exported template `{name}` cannot be used: {why}")]
    Unsound {
        /// Its name.
        name: String,
        /// What is wrong with it.
        why: Unsound,
    },
    /// There is one of that name.
    #[error("there is an exported template `{0}` already")]
    Exists(String),
    /// There are as many as there may be, or they are as large.
    #[error("{0}")]
    Full(String),
    /// There is none.
    #[error("you have no exported template `{name}`")]
    Missing {
        /// Its name.
        name: String,
        /// Those there are.
        known: Vec<String>,
    },
}

impl From<ShelfError> for Failure {
    fn from(error: ShelfError) -> Self {
        let message = error.to_string();
        match error {
            ShelfError::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                Self::new(Code::DiskFull, message)
                    .hint("free space where the state directory is")
                    .audit(source.to_string())
            }
            ShelfError::Io { source, .. } => Self::new(Code::Internal, message)
                .hint("see the rights and the disk of the state directory")
                .audit(source.to_string()),
            ShelfError::Exposed { .. } => {
                Self::new(Code::Internal, message).hint("have an operator move it away, or make it private again")
            }
            ShelfError::Unsound { why, .. } => {
                let failure = Self::new(Code::TemplateRestoreFailed, message)
                    .hint("nothing was restored; export the template again, or bring the file once more");
                match why {
                    Unsound::Io(error) => failure.audit(error.to_string()),
                    Unsound::Strange
                    | Unsound::Manifest
                    | Unsound::Field(_)
                    | Unsound::Length { .. }
                    | Unsound::Checksum => failure,
                }
            }
            ShelfError::Exists(_) => Self::new(Code::InvalidArguments, message)
                .hint(
                    "give another name (to `exported add` by `--name`), have `export_template` replace it by `replace: true`, or \
                     remove it with `delete_template` and `exported: true`",
                ).naming(&["replace", "exported"]),
            ShelfError::Full(_) => Self::new(Code::QuotaExceeded, message)
                .hint("remove one with `delete_template` and `exported: true`; `list_templates` shows them").naming(&["exported"]),
            ShelfError::Missing { known, .. } => {
                Self::new(Code::TemplateNotFound, message).hint("`list_templates` shows yours").allowed(known)
            }
        }
    }
}

type Result<T> = std::result::Result<T, ShelfError>;

/// One owner's exported templates.
#[derive(Clone, Debug)]
pub(super) struct Shelf {
    root: PathBuf,
    home: PathBuf,
}

/// A file that is being written. It goes when this is dropped, unless it was finished.
#[derive(Debug)]
pub(super) struct Unfinished {
    path: PathBuf,
    file: File,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, file = %self.path.display(), "an unfinished export stays; the next one removes it");
        }
    }
}

impl Unfinished {
    /// Returns the file, for what writes the dump behind the manifest's place.
    pub(super) fn file(&self) -> io::Result<File> {
        self.file.try_clone()
    }
}

impl Shelf {
    /// Names the place of `owner` below `root`; looks at nothing.
    pub(super) fn new(root: &Path, owner: &str) -> Self {
        let home = root.join(hex(&Sha256::digest(owner.as_bytes()), OWNER_DIGITS));
        Self { root: root.to_owned(), home }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.join(format!("{name}{END}"))
    }

    /// Says what [`Shelf::finish`] would refuse a file of that name with, and how many bytes there is room for.
    pub(super) fn room(&self, name: &str, replace: bool) -> Result<u64> {
        let path = self.path(name);
        let there = self.files()?;
        let others = there.iter().filter(|found| found.path != path);
        let (count, bytes) = others.fold((0, 0_u64), |(count, bytes), found| (count + 1, bytes + found.bytes));
        if !replace && count < there.len() {
            return Err(ShelfError::Exists(name.to_owned()));
        }
        if count >= DUMPS_MAX {
            return Err(ShelfError::Full(format!("there are {count} exported templates; the limit is {DUMPS_MAX}")));
        }
        let room = DUMP_BYTES_MAX.saturating_sub(bytes);
        if room <= DUMP_AT {
            let limit = DUMP_BYTES_MAX >> 30;
            return Err(ShelfError::Full(format!("exported templates would take more than {limit} GiB together")));
        }
        Ok(room - DUMP_AT)
    }

    /// Makes an empty private file, to be written and then finished.
    pub(super) fn begin(&self) -> Result<Unfinished> {
        let _lock = self.lock()?;
        self.sweep();
        let mut random = [0; 8];
        // A name that is taken is refused.
        getrandom::fill(&mut random).unwrap_or_default();
        let path = self.home.join(format!("{UNFINISHED}{}", hex(&random, usize::MAX)));
        let made = fault::reach("file.dumps.make").map_err(io::Error::from).and_then(|()| {
            let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
            flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            Ok(file)
        });
        let file = made.map_err(|source| ShelfError::Io { path: path.clone(), source })?;
        Ok(Unfinished { path, file })
    }

    /// Writes the manifest, and gives the file its name.
    pub(super) fn finish(&self, unfinished: &Unfinished, name: &str, manifest: &Manifest, replace: bool) -> Result<()> {
        let path = self.path(name);
        let failed = |source| ShelfError::Io { path: path.clone(), source };
        fault::reach("file.dumps.manifest").map_err(|injected| failed(injected.into()))?;
        file::write_manifest(&unfinished.file, manifest)
            .map_err(|why| ShelfError::Unsound { name: name.to_owned(), why })?;
        unfinished.file.sync_all().map_err(failed)?;
        self.put(&unfinished.path, name, manifest.dump_bytes, replace)
    }

    /// Gives a whole file its name, if there is room for it.
    fn put(&self, whole: &Path, name: &str, dump_bytes: u64, replace: bool) -> Result<()> {
        let path = self.path(name);
        let failed = |source| ShelfError::Io { path: path.clone(), source };
        let _lock = self.lock()?;
        if dump_bytes > self.room(name, replace)? {
            let limit = DUMP_BYTES_MAX >> 30;
            return Err(ShelfError::Full(format!("exported templates would take more than {limit} GiB together")));
        }
        fault::reach("file.dumps.link").map_err(|injected| failed(injected.into()))?;
        if replace { fs::rename(whole, &path) } else { fs::hard_link(whole, &path) }.map_err(failed)?;
        fault::reach("file.dumps.sync").map_err(|injected| failed(injected.into()))?;
        File::open(&self.home).and_then(|folder| folder.sync_all()).map_err(failed)
    }

    /// Returns those there are, by name. One that cannot be read is passed over, and logged.
    pub(super) fn list(&self) -> Result<Vec<KeptDump>> {
        let mut found = Vec::new();
        for at in self.files()? {
            let Some(name) = at.name() else { continue };
            match self.open(&name) {
                Ok(open) => found.push(KeptDump { bytes: at.bytes, manifest: open.manifest, name }),
                Err(ShelfError::Missing { .. }) => {}
                Err(error) => tracing::warn!(%error, "an exported template is passed over"),
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// Opens one, and reads its manifest. The dump is not looked at.
    pub(super) fn open(&self, name: &str) -> Result<OpenDump> {
        let path = self.path(name);
        let Some(file) = open(&path)? else { return Err(self.missing(name)?) };
        let manifest = file::read_manifest(&file).map_err(|why| ShelfError::Unsound { name: name.to_owned(), why })?;
        Ok(OpenDump { file, manifest })
    }

    /// Finds that there is a file of that name, whatever it holds.
    pub(super) fn find(&self, name: &str) -> Result<()> {
        if self.files()?.iter().any(|found| found.name().as_deref() == Some(name)) {
            return Ok(());
        }
        Err(self.missing(name)?)
    }

    /// Removes one, whatever it holds.
    pub(super) fn remove(&self, name: &str) -> Result<()> {
        let path = self.path(name);
        self.find(name)?;
        let _lock = self.lock()?;
        let failed = |source| ShelfError::Io { path: path.clone(), source };
        fault::reach("file.dumps.remove").map_err(|injected| failed(injected.into()))?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(self.missing(name)?),
            removed => removed.and_then(|()| File::open(&self.home)?.sync_all()).map_err(failed),
        }
    }

    fn missing(&self, name: &str) -> Result<ShelfError> {
        let known = self.files()?.iter().filter_map(Found::name).collect();
        Ok(ShelfError::Missing { name: name.to_owned(), known })
    }

    /// Makes the folder, if it is missing, and holds its lock; a lock ends with its file.
    fn lock(&self) -> Result<File> {
        fault::reach("file.dumps.dir")
            .map_err(|injected| ShelfError::Io { path: self.home.clone(), source: injected.into() })?;
        private_folder(&self.root)?;
        private_folder(&self.home)?;
        let path = self.home.join(LOCK);
        let locked = fault::reach("file.dumps.lock").map_err(io::Error::from).and_then(|()| {
            let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path)?;
            flock(&file, FlockOperation::LockExclusive)?;
            Ok(file)
        });
        locked.map_err(|source| ShelfError::Io { path, source })
    }

    /// Removes what processes left unfinished that died.
    fn sweep(&self) {
        sweep(&self.home);
    }

    fn files(&self) -> Result<Vec<Found>> {
        let failed = |source| ShelfError::Io { path: self.home.clone(), source };
        fault::reach("file.dumps.list").map_err(|injected| failed(injected.into()))?;
        let entries = match fs::read_dir(&self.home) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(failed)?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry.map_err(failed)?;
            let Ok(facts) = entry.metadata() else { continue };
            let at = Found { path: entry.path(), bytes: facts.len() };
            if at.name().is_some() {
                found.push(at);
            }
        }
        Ok(found)
    }
}

/// Removes what processes left unfinished that died, in every owner's folder below `root`.
pub(super) fn sweep_all(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        // Who makes a file locks it a moment later, under this.
        let Ok(lock) = OpenOptions::new().write(true).open(entry.path().join(LOCK)) else { continue };
        if flock(&lock, FlockOperation::LockExclusive).is_ok() {
            sweep(&entry.path());
        }
    }
}

fn sweep(home: &Path) {
    for entry in fs::read_dir(home).into_iter().flatten().flatten() {
        if !entry.file_name().to_str().is_some_and(|name| name.starts_with(UNFINISHED)) {
            continue;
        }
        let Ok(Some(file)) = open(&entry.path()) else { continue };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            fs::remove_file(entry.path()).unwrap_or_default();
        }
    }
}

struct Found {
    path: PathBuf,
    bytes: u64,
}

impl Found {
    fn name(&self) -> Option<String> {
        let name = self.path.file_name()?.to_str()?.strip_suffix(END)?;
        (!name.starts_with(UNFINISHED) && !name.is_empty()).then(|| name.to_owned())
    }
}

/// Makes a folder that only this user may enter, or finds that it is one.
fn private_folder(path: &Path) -> Result<()> {
    let failed = |source| ShelfError::Io { path: path.to_owned(), source };
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
        Ok(()) | Err(_) => {}
    }
    let found = path.symlink_metadata().map_err(failed)?;
    let mine = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o077 == 0;
    if mine { Ok(()) } else { Err(ShelfError::Exposed { path: path.to_owned() }) }
}

/// Opens a private file of this user's; `None` if there is none.
fn open(path: &Path) -> Result<Option<File>> {
    let failed = |source| ShelfError::Io { path: path.to_owned(), source };
    fault::reach("file.dumps.open").map_err(|injected| failed(injected.into()))?;
    let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).unwrap_or_default();
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        // what a link is not followed with
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
            return Err(ShelfError::Exposed { path: path.to_owned() });
        }
        other => other.map_err(failed)?,
    };
    let facts = file.metadata().map_err(failed)?;
    let mine = facts.is_file() && facts.uid() == rustix::process::geteuid().as_raw() && facts.mode() & 0o077 == 0;
    if mine { Ok(Some(file)) } else { Err(ShelfError::Exposed { path: path.to_owned() }) }
}

#[cfg(test)]
#[path = "shelf_tests.rs"]
mod tests;
