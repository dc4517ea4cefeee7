//! The audit log: one line before each request's work and one after, in files that cannot be changed unseen.
//!
//! Nothing is done that was not written down first: if the opening line cannot be written the request is
//! refused. If the closing line cannot, the reply says so, the deed stands, and nothing more is accepted
//! until it can be. A line is written when the kernel has it; it is on disk within the configured interval.
//! Each process writes segments of its own in `<state>/audit/`, under one manifest.
//! No secret, no statement text and no literal is in a line: the types of `record` and `decided` have no place for them.

mod chain;
mod decided;
mod file;
mod log;
mod manifest;
mod record;
mod recover;
mod reload;
mod room;
mod segment;
mod tail;
mod verify;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

pub use log::{Audit, Beside, Closing, Opening, Outcome, Ticket};
pub use record::canonical;
pub use recover::Recovery;
pub use reload::{Reload, ReloadChange};
pub use tail::{Filter, tail};
pub use verify::{Fault, VerifyReport, verify};

use crate::model::{Code, Failure};

/// The version that stands in every opening line.
const BUILD: &str = env!("CARGO_PKG_VERSION");

/// Where and how the log is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditSettings {
    /// The directory, used for nothing else; made with mode 0700.
    pub dir: PathBuf,
    /// When lines are forced to disk.
    pub sync: Sync,
    /// A segment that has so many bytes is followed by another.
    pub rotate_bytes: u64,
}

/// When lines are forced to disk. A crash of this program loses nothing either way; a crash of the machine may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// Before a line counts as written. Each request then waits for the disk twice.
    Always,
    /// Together, each time so long has passed.
    Every(Duration),
}

/// The time between syncs unless configured otherwise: what a power cut may take.
pub const SYNC_INTERVAL_DEFAULT: Duration = Duration::from_secs(1);
/// The size of a segment unless configured otherwise: some hundred thousand requests, quick to verify.
pub const ROTATE_BYTES_DEFAULT: u64 = 64 << 20;

/// Why a line could not be written.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The request was not begun.
    #[error("the audit log in `{}` cannot be written: {source}", dir.display())]
    Unavailable {
        /// The log's directory.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The request was not begun: the room that is left is for what frees some.
    #[error(
        "{left} bytes are free on the disk of the audit log in `{}`: only what frees some is taken in",
        dir.display()
    )]
    NearlyFull {
        /// The log's directory.
        dir: PathBuf,
        /// What is free, in bytes.
        left: u64,
    },
    /// The work was done, and its closing line waits to be written.
    #[error("the operation was carried out, but its closing line cannot be written to the audit log in `{}`: {source}", dir.display())]
    Unclosed {
        /// The log's directory.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl From<AuditError> for Failure {
    fn from(error: AuditError) -> Self {
        let (dir, source) = match &error {
            AuditError::Unavailable { dir, source } | AuditError::Unclosed { dir, source } => (dir, source),
            AuditError::NearlyFull { .. } => {
                return Self::new(Code::AuditUnavailable, error.to_string()).hint(
                    "delete sandboxes or templates that are not needed, or have an operator free space on that disk",
                );
            }
        };
        let is = |kinds: &[io::ErrorKind]| kinds.contains(&source.kind());
        let hint = if is(&[io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded]) {
            "free space on the disk of"
        } else if is(&[io::ErrorKind::PermissionDenied, io::ErrorKind::ReadOnlyFilesystem]) {
            "check owner and mode of"
        } else if is(&[io::ErrorKind::InvalidData]) {
            "run `pgsandbox audit verify`, keep the evidence, and move away"
        } else {
            "see to"
        };
        let hint = format!("{hint} `{}`; nothing is accepted until the log can be written", dir.display());
        Self::new(Code::AuditUnavailable, error.to_string()).hint(hint)
    }
}
