//! Schemas in the state directory: snapshots under names, and what digests were made of, for a while.
//!
//! Each owner has a folder of its own, named by a digest of the owner, and every file in it says whose it is: what is another's
//! is not there. Files are private, appear whole or not at all, and never in the place of another; all that changes a
//! folder is done under its lock. A file is a line of facts, then a line for each object.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, OFlags, flock};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::digest::{DIGEST_VERSION, SchemaDigest, hex, is_handle};
use crate::model::{Code, Failure, Schema, SchemaFilter, SchemaKey, SchemaKind, SchemaObject, fault};

/// Snapshots that one owner may have.
pub const SNAPSHOTS_MAX: usize = 100;
/// What one owner's snapshots may take on disk together, in bytes.
pub const SNAPSHOT_BYTES_MAX: u64 = 128 << 20;
/// The longest name of a snapshot, in characters.
pub const SNAPSHOT_NAME_CHARS_MAX: usize = 80;
/// The longest notes of a snapshot, in bytes.
pub const NOTES_BYTES_MAX: usize = 1000;
/// Schemas of digests that are kept for one owner; the oldest goes first.
const KEPT_MAX: usize = 32;
/// What they may take on disk together, in bytes.
const KEPT_BYTES_MAX: u64 = 64 << 20;
/// How long one is kept after it was last asked for.
const KEPT_FOR: Duration = Duration::from_secs(24 * 60 * 60);
/// The largest file that is read, in bytes: a schema as large as one may be, written out.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// How many snapshots are named where another was asked for.
const MISSING_SHOWN_MAX: usize = 20;
/// The format of the files.
const FORMAT: u32 = 1;
/// How many digits of an owner's digest name its folder.
const OWNER_DIGITS: usize = 32;

const SNAPSHOTS: &str = "snapshots";
const KEPT: &str = "digests";
const END: &str = ".schema";
const UNFINISHED: &str = ".unfinished";
const LOCK: &str = ".lock";

/// What is known of a kept schema beside its objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchemaFacts {
    format: u32,
    /// Whose it is.
    pub owner: String,
    /// Its name, or its handle.
    pub name: String,
    /// The sandbox that it was read from.
    pub sandbox_id: String,
    /// That sandbox's name.
    pub sandbox_name: String,
    /// That sandbox's profile.
    pub profile: String,
    /// The server's major version.
    pub postgres_version: Option<u16>,
    /// The version of the digest's form.
    pub digest_version: u32,
    /// The digest's checksum.
    pub checksum: String,
    /// The part of the schema that it is, by its schema.
    pub schema: Option<String>,
    /// And by its table.
    pub table: Option<String>,
    /// How many objects of each kind there are.
    pub counts: Vec<(String, usize)>,
    /// What its maker noted.
    pub notes: Option<String>,
    /// When it was made, in milliseconds since 1970.
    pub created_at_ms: i64,
}

impl SchemaFacts {
    /// Returns the part of the schema that it is.
    pub fn filter(&self) -> SchemaFilter {
        SchemaFilter { schema: self.schema.clone(), table: self.table.clone() }
    }
}

/// Where and when a schema was read.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The sandbox's id.
    pub sandbox_id: String,
    /// Its name.
    pub sandbox_name: String,
    /// Its profile.
    pub profile: String,
    /// The server's major version, where it is known.
    pub postgres_version: Option<u16>,
    /// When, in milliseconds since 1970.
    pub at_ms: i64,
}

/// A schema with what is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptSchema {
    /// What is known of it.
    pub facts: SchemaFacts,
    /// It.
    pub schema: Schema,
}

impl KeptSchema {
    /// Puts together what is to be kept under `name`.
    pub(super) fn new(
        owner: &str,
        name: &str,
        origin: &Origin,
        digest: &SchemaDigest,
        schema: Schema,
        notes: Option<&str>,
    ) -> Self {
        let facts = SchemaFacts {
            format: FORMAT,
            owner: owner.to_owned(),
            name: name.to_owned(),
            sandbox_id: origin.sandbox_id.clone(),
            sandbox_name: origin.sandbox_name.clone(),
            profile: origin.profile.clone(),
            postgres_version: origin.postgres_version,
            digest_version: digest.version,
            checksum: digest.checksum.clone(),
            schema: digest.filter.schema.clone(),
            table: digest.filter.table.clone(),
            counts: schema.counts().into_iter().map(|(kind, count)| (kind.as_str().to_owned(), count)).collect(),
            notes: notes.map(str::to_owned),
            created_at_ms: origin.at_ms,
        };
        Self { facts, schema }
    }

    fn text(&self) -> io::Result<String> {
        let mut text = serde_json::to_string(&self.facts)?;
        for object in self.schema.objects() {
            let SchemaKey { kind, schema, name } = &object.key;
            text.push('\n');
            text.push_str(&serde_json::to_string(&(kind.as_str(), schema, name, &object.of, &object.attributes))?);
        }
        text.push('\n');
        Ok(text)
    }

    fn read(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let facts: SchemaFacts = serde_json::from_str(lines.next()?).ok()?;
        let object = |line: &str| {
            let (kind, schema, name, of, attributes) =
                serde_json::from_str::<(String, String, String, Option<String>, Vec<(String, String)>)>(line).ok()?;
            Some(SchemaObject { key: SchemaKey { kind: SchemaKind::parse(&kind)?, schema, name }, of, attributes })
        };
        let objects: Option<Vec<SchemaObject>> = lines.map(object).collect();
        let schema = Schema::new(objects?);
        // Of another form it is shown, and compared with nothing; of this one its checksum says whether it is whole.
        let whole = facts.digest_version != DIGEST_VERSION
            || SchemaDigest::of(&schema, &facts.filter()).checksum == facts.checksum;
        (facts.format == FORMAT && whole).then_some(Self { facts, schema })
    }
}

/// Why a schema cannot be kept, or had.
#[derive(Debug, thiserror::Error)]
pub(super) enum FilesError {
    /// The system does not let us.
    #[error("what is kept of schemas in `{}` cannot be used", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Others could read it, or it is not what this program wrote.
    #[error("`{}` is not a private file of this program's, or was changed", path.display())]
    Damaged {
        /// The file or folder.
        path: PathBuf,
    },
    /// There is one of that name.
    #[error("there is a snapshot named `{0}` already")]
    Exists(String),
    /// There are as many as there may be, or they are as large.
    #[error("{0}")]
    Full(String),
    /// There is none.
    #[error("there is no snapshot named `{name}`")]
    Missing {
        /// As it was asked for.
        name: String,
        /// Some of those that there are.
        there: Vec<String>,
    },
}

impl From<FilesError> for Failure {
    fn from(error: FilesError) -> Self {
        let message = error.to_string();
        match error {
            FilesError::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                Self::new(Code::DiskFull, message)
                    .hint("free space where the state directory is")
                    .audit(source.to_string())
            }
            FilesError::Io { source, .. } => Self::new(Code::Internal, message)
                .hint("see the rights and the disk of the state directory")
                .audit(source.to_string()),
            FilesError::Damaged { .. } => {
                Self::new(Code::Internal, message).hint("move it away; a snapshot has to be made again")
            }
            FilesError::Exists(_) => Self::new(Code::InvalidArtifactName, message).hint(
                "snapshots are not replaced: choose another name, or delete it with `delete_schema_snapshot` first",
            ),
            FilesError::Full(_) => {
                Self::new(Code::QuotaExceeded, message).hint("delete some with `delete_schema_snapshot`")
            }
            FilesError::Missing { there, .. } => Self::new(Code::SnapshotNotFound, message)
                .hint("`list_schema_snapshots` shows those there are")
                .allowed(there),
        }
    }
}

/// Says what is wrong with a snapshot's name, if anything.
pub fn snapshot_name_fault(name: &str) -> Option<Failure> {
    let letters = name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'));
    if (1..=SNAPSHOT_NAME_CHARS_MAX).contains(&name.len()) && letters {
        return None;
    }
    let text = format!("a snapshot's name is 1 to {SNAPSHOT_NAME_CHARS_MAX} letters, digits, `_`, `.` or `-`");
    Some(Failure::new(Code::InvalidArtifactName, text).hint("`before-invoices` is one, for instance"))
}

/// One owner's kept schemas.
#[derive(Clone, Debug)]
pub(super) struct Shelf {
    root: PathBuf,
    owner: String,
}

type Result<T> = std::result::Result<T, FilesError>;

impl Shelf {
    /// Names the place of `owner` below `root`; looks at nothing.
    pub(super) fn new(root: &Path, owner: &str) -> Self {
        Self { root: root.to_owned(), owner: owner.to_owned() }
    }

    fn home(&self) -> PathBuf {
        self.root.join(hex(&Sha256::digest(self.owner.as_bytes()), OWNER_DIGITS))
    }

    fn path(&self, folder: &str, name: &str) -> PathBuf {
        self.home().join(folder).join(format!("{name}{END}"))
    }

    /// Keeps a snapshot under its name.
    ///
    /// # Errors
    /// Fails if there is one of that name, or no room.
    pub(super) fn add_snapshot(&self, kept: &KeptSchema) -> Result<()> {
        let _lock = self.lock(SNAPSHOTS)?;
        let text = kept.text().map_err(|error| io_error(&self.home(), error))?;
        let there = self.files(SNAPSHOTS)?;
        let path = self.path(SNAPSHOTS, &kept.facts.name);
        if there.iter().any(|file| file.path == path) {
            return Err(FilesError::Exists(kept.facts.name.clone()));
        }
        if there.len() >= SNAPSHOTS_MAX {
            return Err(FilesError::Full(format!("there are {} snapshots; the limit is {SNAPSHOTS_MAX}", there.len())));
        }
        let bytes = there.iter().map(|file| file.bytes).sum::<u64>().saturating_add(length(&text));
        if bytes > SNAPSHOT_BYTES_MAX {
            let limit = SNAPSHOT_BYTES_MAX >> 20;
            return Err(FilesError::Full(format!("snapshots would take more than {limit} MiB together")));
        }
        write(&path, &text).map_err(|error| {
            let there = error.kind() == io::ErrorKind::AlreadyExists;
            if there { FilesError::Exists(kept.facts.name.clone()) } else { io_error(&path, error) }
        })
    }

    /// Returns the facts of every snapshot, by name.
    ///
    /// # Errors
    /// Fails if the folder cannot be read. A file that cannot be is passed over, and logged.
    pub(super) fn snapshots(&self) -> Result<Vec<SchemaFacts>> {
        self.listed(SNAPSHOTS, |_| true)
    }

    /// Returns the facts of every digest whose schema is still kept, by handle.
    ///
    /// # Errors
    /// As [`Shelf::snapshots`].
    pub(super) fn digests(&self) -> Result<Vec<SchemaFacts>> {
        self.listed(KEPT, |file| !file.changed.elapsed().is_ok_and(|age| age > KEPT_FOR))
    }

    fn listed(&self, folder: &str, counts: impl Fn(&Found) -> bool) -> Result<Vec<SchemaFacts>> {
        let mut found = Vec::new();
        for file in self.files(folder)?.into_iter().filter(counts) {
            match self.facts(&file.path) {
                Ok(Some(facts)) => found.push(facts),
                Ok(None) => {}
                Err(error) => tracing::warn!(%error, "a kept schema is passed over"),
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// Returns a snapshot.
    ///
    /// # Errors
    /// Fails if there is none of that name, or it is not what was written.
    pub(super) fn snapshot(&self, name: &str) -> Result<KeptSchema> {
        self.load(&self.path(SNAPSHOTS, name))?.ok_or_else(|| self.missing(name))
    }

    /// Returns a snapshot's facts.
    ///
    /// # Errors
    /// Fails if there is none of that name.
    pub(super) fn snapshot_facts(&self, name: &str) -> Result<SchemaFacts> {
        self.facts(&self.path(SNAPSHOTS, name))?.ok_or_else(|| self.missing(name))
    }

    /// Removes a snapshot.
    ///
    /// # Errors
    /// Fails if there is none of that name.
    pub(super) fn remove_snapshot(&self, name: &str) -> Result<()> {
        let path = self.path(SNAPSHOTS, name);
        if !self.home().join(SNAPSHOTS).exists() {
            return Err(self.missing(name));
        }
        let _lock = self.lock(SNAPSHOTS)?;
        fault::reach("file.schemas.remove").map_err(|injected| io_error(&path, injected.into()))?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(self.missing(name)),
            Err(error) => Err(io_error(&path, error)),
            Ok(()) => sync(&path).map_err(|error| io_error(&path, error)),
        }
    }

    /// Says that there is no such snapshot, and which there are.
    fn missing(&self, name: &str) -> FilesError {
        let there = self.snapshots().unwrap_or_default().into_iter().take(MISSING_SHOWN_MAX);
        FilesError::Missing { name: name.to_owned(), there: there.map(|facts| facts.name).collect() }
    }

    /// Keeps the schema of a digest under its handle for a while; what is oldest makes room. Returns whether there was.
    ///
    /// # Errors
    /// Fails if it cannot be written.
    pub(super) fn keep(&self, kept: &KeptSchema) -> Result<bool> {
        let path = self.path(KEPT, &kept.facts.name);
        let _lock = self.lock(KEPT)?;
        let mut there = self.files(KEPT)?;
        there.retain(|file| file.path != path);
        // Aged by when it was last asked for.
        there.sort_by_key(|file| file.changed);
        if self.load(&path).is_ok_and(|found| found.is_some()) {
            let file = OpenOptions::new().append(true).open(&path).map_err(|error| io_error(&path, error))?;
            file.set_modified(SystemTime::now()).map_err(|error| io_error(&path, error))?;
            return Ok(true);
        }
        let text = kept.text().map_err(|error| io_error(&path, error))?;
        if length(&text) > KEPT_BYTES_MAX {
            return Ok(false);
        }
        let mut bytes = there.iter().map(|file| file.bytes).sum::<u64>().saturating_add(length(&text));
        let mut count = there.len() + 1;
        for file in &there {
            let old = file.changed.elapsed().is_ok_and(|age| age > KEPT_FOR);
            if !old && count <= KEPT_MAX && bytes <= KEPT_BYTES_MAX {
                continue;
            }
            fault::reach("file.schemas.age").map_err(|injected| io_error(&file.path, injected.into()))?;
            fs::remove_file(&file.path).map_err(|error| io_error(&file.path, error))?;
            bytes = bytes.saturating_sub(file.bytes);
            count -= 1;
        }
        if path.exists() {
            // It was damaged, or it could have been read.
            fs::remove_file(&path).map_err(|error| io_error(&path, error))?;
        }
        write(&path, &text).map_err(|error| io_error(&path, error))?;
        Ok(true)
    }

    /// Returns the schema of a digest, if it is still kept.
    ///
    /// # Errors
    /// Fails if it cannot be read.
    pub(super) fn kept(&self, handle: &str) -> Result<Option<KeptSchema>> {
        if !is_handle(handle) {
            return Ok(None);
        }
        let path = self.path(KEPT, handle);
        let aged = fs::metadata(&path)
            .and_then(|found| found.modified())
            .is_ok_and(|changed| changed.elapsed().is_ok_and(|age| age > KEPT_FOR));
        if aged { Ok(None) } else { self.load(&path) }
    }

    /// Makes the folder, if it is missing, and holds its lock; a lock ends with its file.
    fn lock(&self, folder: &str) -> Result<File> {
        let path = self.home().join(folder);
        fault::reach("file.schemas.dir").map_err(|injected| io_error(&path, injected.into()))?;
        for path in [&self.root, &self.home(), &path] {
            private_folder(path)?;
        }
        let lock = path.join(LOCK);
        fault::reach("file.schemas.lock").map_err(|injected| io_error(&lock, injected.into()))?;
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&lock);
        let file = file.map_err(|error| io_error(&lock, error))?;
        flock(&file, FlockOperation::LockExclusive).map_err(|error| io_error(&lock, error.into()))?;
        Ok(file)
    }

    /// Returns what is in a folder, and takes away what a process that died has left unfinished, which nobody else writes
    /// while the lock is held.
    fn files(&self, folder: &str) -> Result<Vec<Found>> {
        let path = self.home().join(folder);
        fault::reach("file.schemas.list").map_err(|injected| io_error(&path, injected.into()))?;
        let entries = match fs::read_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(|error| io_error(&path, error))?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| io_error(&path, error))?;
            let Ok(facts) = entry.metadata() else { continue };
            if entry.file_name().to_str().is_some_and(|name| name.ends_with(END)) {
                let changed = facts.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                found.push(Found { path: entry.path(), bytes: facts.len(), changed });
            }
        }
        Ok(found)
    }

    fn facts(&self, path: &Path) -> Result<Option<SchemaFacts>> {
        let Some(file) = open(path)? else { return Ok(None) };
        let mut line = String::new();
        let read = BufReader::new(file.take(FILE_BYTES_MAX)).read_line(&mut line);
        read.map_err(|error| io_error(path, error))?;
        let facts = serde_json::from_str::<SchemaFacts>(&line).ok().filter(|facts| facts.owner == self.owner);
        facts.map(Some).ok_or_else(|| FilesError::Damaged { path: path.to_owned() })
    }

    fn load(&self, path: &Path) -> Result<Option<KeptSchema>> {
        let Some(file) = open(path)? else { return Ok(None) };
        let damaged = || FilesError::Damaged { path: path.to_owned() };
        let mut text = String::new();
        let read = file.take(FILE_BYTES_MAX).read_to_string(&mut text);
        read.map_err(
            |error| if error.kind() == io::ErrorKind::InvalidData { damaged() } else { io_error(path, error) },
        )?;
        let kept = KeptSchema::read(&text).filter(|kept| kept.facts.owner == self.owner);
        kept.map(Some).ok_or_else(damaged)
    }
}

struct Found {
    path: PathBuf,
    bytes: u64,
    changed: SystemTime,
}

fn io_error(path: &Path, source: io::Error) -> FilesError {
    FilesError::Io { path: path.to_owned(), source }
}

fn length(text: &str) -> u64 {
    u64::try_from(text.len()).unwrap_or(u64::MAX)
}

/// Makes a folder that only this user may enter, or finds that it is one.
fn private_folder(path: &Path) -> Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(io_error(path, error)),
        Ok(()) | Err(_) => {}
    }
    let found = path.symlink_metadata().map_err(|error| io_error(path, error))?;
    let mine = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o077 == 0;
    if mine { Ok(()) } else { Err(FilesError::Damaged { path: path.to_owned() }) }
}

/// Opens a private file of this user's; `None` if there is none.
fn open(path: &Path) -> Result<Option<File>> {
    fault::reach("file.schemas.read").map_err(|injected| io_error(path, injected.into()))?;
    let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).unwrap_or_default();
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(|error| io_error(path, error))?,
    };
    let facts = file.metadata().map_err(|error| io_error(path, error))?;
    let mine = facts.is_file() && facts.uid() == rustix::process::geteuid().as_raw() && facts.mode() & 0o077 == 0;
    if mine && facts.len() <= FILE_BYTES_MAX {
        Ok(Some(file))
    } else {
        Err(FilesError::Damaged { path: path.to_owned() })
    }
}

/// Writes a file that is not there yet, whole or not at all, down to the disk.
fn write(path: &Path, text: &str) -> io::Result<()> {
    // Under the folder's lock, so what bears this name was left by a process that died.
    let unfinished = path.with_file_name(UNFINISHED);
    match fs::remove_file(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    fault::reach("file.schemas.open")?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished)?;
    let written = fault::reach("file.schemas.write")
        .map_err(io::Error::from)
        .and_then(|()| file.write_all(text.as_bytes()))
        .and_then(|()| file.sync_all())
        .and_then(|()| fault::reach("file.schemas.link").map_err(io::Error::from))
        // A link, unlike a rename, replaces nothing.
        .and_then(|()| fs::hard_link(&unfinished, path));
    fs::remove_file(&unfinished)?;
    written?;
    sync(path)
}

fn sync(path: &Path) -> io::Result<()> {
    fault::reach("file.schemas.sync")?;
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
#[path = "files_tests.rs"]
mod tests;
