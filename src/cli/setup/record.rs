//! What setting up made, beside the entries themselves: so that taking it back leaves each file as it was.
//!
//! The record is a file in the state directory. Without it, or with one that cannot be read, only entries are taken back.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::change::Made;
use super::file;

/// The record's name in the state directory.
const NAME: &str = "clients.json";

/// Where a client was set up, and what was made for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Line {
    file: PathBuf,
    server: String,
    made: String,
    /// The directories that were made for the file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    folders: Vec<PathBuf>,
}

/// The record of a state directory.
#[derive(Debug, Default)]
pub(super) struct Record {
    lines: Vec<Line>,
}

impl Record {
    /// Reads the record; one that is not there, or cannot be read, is empty.
    pub(super) fn read(home: &Path) -> Self {
        let bytes = file::read(&home.join(NAME)).ok().and_then(|source| source.bytes).unwrap_or_default();
        Self { lines: serde_json::from_slice(&bytes).unwrap_or_default() }
    }

    /// Returns the names under which clients were set up.
    pub(super) fn servers(&self) -> BTreeSet<String> {
        self.lines.iter().map(|line| line.server.clone()).collect()
    }

    /// Returns what was made in a file for a server.
    pub(super) fn made(&self, file: &Path, server: &str) -> Made {
        let line = self.lines.iter().find(|line| line.file == file && line.server == server);
        line.map(|line| Made::of(&line.made)).unwrap_or_default()
    }

    /// Returns the names under which servers were set up in a file.
    pub(super) fn names(&self, file: &Path) -> Vec<&str> {
        self.lines.iter().filter(|line| line.file == file).map(|line| line.server.as_str()).collect()
    }

    /// Notes what was made, `None` for nothing any more, and for which directories. Returns those that are nobody's any more.
    pub(super) fn note(
        &mut self,
        file: &Path,
        server: &str,
        made: Option<Made>,
        mut folders: Vec<PathBuf>,
    ) -> Vec<PathBuf> {
        let before = self.made(file, server);
        let of = self.lines.iter_mut().filter(|line| line.file == file && line.server == server);
        of.for_each(|line| folders.append(&mut line.folders));
        self.lines.retain(|line| line.file != file || line.server != server);
        // What holds several servers goes with the last of them.
        if made.is_none()
            && let Some(other) = self.lines.iter_mut().find(|line| line.file == file)
            && Made::of(&other.made) < before
        {
            before.as_str().clone_into(&mut other.made);
        }
        let Some(made) = made else {
            if let Some(other) = self.lines.iter_mut().find(|line| line.file == file) {
                other.folders.append(&mut folders);
            }
            return folders;
        };
        let (file, server, made) = (file.to_owned(), server.to_owned(), made.as_str().to_owned());
        self.lines.push(Line { file, server, made, folders });
        Vec::new()
    }

    /// Writes the record.
    pub(super) fn write(&self, home: &Path) -> std::io::Result<()> {
        let source = file::read(&home.join(NAME))?;
        let text = (!self.lines.is_empty()).then(|| serde_json::to_string_pretty(&self.lines)).transpose()?;
        if source.bytes.is_none() && text.is_none() {
            return Ok(());
        }
        file::replace(&source, text.as_deref())
    }
}
