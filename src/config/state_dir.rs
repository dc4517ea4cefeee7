//! The directory that holds what the program must remember.
//!
//! A directory is used only if this program made it: a marker file says so, and in which format. One with other
//! contents is refused by name and not touched, and so is one that others can look into. As root the directory
//! can be passed through, so that the managed cluster's own user reaches its part, and not listed.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::model::{Code, Failure, fault};

/// The marker's name and contents.
const MARKER: &str = "pgsandbox.state";
const MARKER_HEAD: &str = "pgsandbox state directory, format ";
/// The format this program writes and reads.
const FORMAT: u32 = 1;
/// An unfinished marker, left by a crash.
const MARKER_NEW: &str = "pgsandbox.state.new";

/// Where the program keeps its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateDir {
    path: PathBuf,
}

/// Why a state directory is not used.
#[derive(Debug, thiserror::Error)]
pub enum StateDirError {
    /// The system does not let us.
    #[error("the state directory `{}` cannot be used: {source}", path.display())]
    System {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is something else.
    #[error("`{}` is not a directory", path.display())]
    NotADirectory {
        /// The path.
        path: PathBuf,
    },
    /// Another program's, or a person's.
    #[error("`{}` was not made by this program and holds `{example}`; it was not touched", path.display())]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// One of the names in it.
        example: String,
    },
    /// Of a later version.
    #[error("the state directory `{}` is of format {found}; this program knows format {FORMAT}", path.display())]
    Format {
        /// The directory.
        path: PathBuf,
        /// What its marker says.
        found: String,
    },
    /// Others can look into it.
    #[error("the state directory `{}` has mode {mode:03o}, which lets others in", path.display())]
    TooOpen {
        /// The directory.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
        /// What they may be at most.
        wanted: u32,
    },
    /// It is another user's.
    #[error("the state directory `{}` belongs to user {owner}", path.display())]
    NotOurs {
        /// The directory.
        path: PathBuf,
        /// Its owner's number.
        owner: u32,
    },
}

impl From<StateDirError> for Failure {
    fn from(error: StateDirError) -> Self {
        let hint = match &error {
            StateDirError::TooOpen { path, wanted, .. } => format!("run `chmod {wanted:03o} {}`", path.display()),
            StateDirError::Format { .. } => {
                "use the version of the program that made it, or another directory".to_owned()
            }
            StateDirError::System { .. }
            | StateDirError::NotADirectory { .. }
            | StateDirError::Foreign { .. }
            | StateDirError::NotOurs { .. } => "set `PGSANDBOX_HOME` to another directory".to_owned(),
        };
        Self::new(Code::InvalidConfiguration, error.to_string()).hint(hint)
    }
}

impl StateDir {
    /// Names a directory without looking at it.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Returns the directory's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the file that is in the directory as long as it is this program's.
    pub fn marker(&self) -> PathBuf {
        self.path.join(MARKER)
    }

    /// Returns where the audit log is kept unless configured otherwise.
    pub fn audit(&self) -> PathBuf {
        self.path.join("audit")
    }

    /// Makes the directory if it is missing, and checks that it is this program's, this user's and private.
    ///
    /// May be called by several processes at once on a directory that none of them has seen before.
    ///
    /// # Errors
    /// Fails if the directory must not or cannot be used. One that is not ours is not touched.
    pub fn open(&self) -> Result<(), StateDirError> {
        let system = |source| StateDirError::System { path: self.path.clone(), source };
        let root = rustix::process::geteuid().is_root();
        let mode = if root { 0o711 } else { 0o700 };
        fault::reach("file.state.make").map_err(|injected| system(injected.into()))?;
        make(&self.path, mode).map_err(system)?;
        let meta = fs::metadata(&self.path).map_err(system)?;
        if !meta.is_dir() {
            return Err(StateDirError::NotADirectory { path: self.path.clone() });
        }
        // Held while the marker is looked for and written, so that nobody sees a directory half made.
        let dir = File::open(&self.path).map_err(system)?;
        fault::reach("file.state.lock").map_err(|injected| system(injected.into()))?;
        dir.lock().map_err(system)?;
        self.check_marker()?;
        if meta.uid() != rustix::process::geteuid().as_raw() {
            return Err(StateDirError::NotOurs { path: self.path.clone(), owner: meta.uid() });
        }
        if meta.mode() & 0o777 & !mode != 0 {
            return Err(StateDirError::TooOpen { path: self.path.clone(), mode: meta.mode() & 0o777, wanted: mode });
        }
        self.write_marker().map_err(system)
    }

    /// Refuses a directory with contents and without a marker that this program understands.
    fn check_marker(&self) -> Result<(), StateDirError> {
        let system = |source| StateDirError::System { path: self.path.clone(), source };
        match fs::read_to_string(self.path.join(MARKER)) {
            Ok(text) => {
                let format = text.trim_end().strip_prefix(MARKER_HEAD).unwrap_or("unknown");
                if format == FORMAT.to_string() {
                    return Ok(());
                }
                Err(StateDirError::Format { path: self.path.clone(), found: format.escape_default().to_string() })
            }
            Err(fault) if fault.kind() == io::ErrorKind::NotFound => {
                for entry in fs::read_dir(&self.path).map_err(system)? {
                    let name = entry.map_err(system)?.file_name();
                    if name != MARKER_NEW {
                        let example = name.to_string_lossy().escape_default().to_string();
                        return Err(StateDirError::Foreign { path: self.path.clone(), example });
                    }
                }
                Ok(())
            }
            Err(fault) => Err(system(fault)),
        }
    }

    fn write_marker(&self) -> io::Result<()> {
        let marker = self.path.join(MARKER);
        if marker.try_exists()? {
            return Ok(());
        }
        let unfinished = self.path.join(MARKER_NEW);
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
        fault::reach("file.state.marker-write")?;
        writeln!(file, "{MARKER_HEAD}{FORMAT}")?;
        file.sync_all()?;
        fault::reach("file.state.marker-rename")?;
        fs::rename(&unfinished, &marker)
    }
}

/// Makes a directory and those above it, each that is made with `mode` whatever the umask says.
fn make(path: &Path, mode: u32) -> io::Result<()> {
    match make_one(path, mode) {
        Err(fault) if fault.kind() == io::ErrorKind::NotFound => {
            let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) else { return Err(fault) };
            make(parent, mode)?;
            // A link that leads nowhere is there, and nothing can be made in it.
            make_one(path, mode)
        }
        other => other,
    }
}

fn make_one(path: &Path, mode: u32) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(mode)),
        Err(fault) if fault.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(fault) => Err(fault),
    }
}
