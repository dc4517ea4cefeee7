//! Recorded requests: a file of an audit log's lines, or a folder of such files.
//!
//! Lines are read one after the other, so that a log of any length takes the memory of its longest line.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};

use super::cases::Operations;
use crate::audit::{Recorded, read_back};

/// The longest line of a log that is read, in bytes; what is written is far below it.
const LINE_BYTES_MAX: u64 = 8 << 20;
/// How the files of a log end.
const ENDING: &str = "jsonl";
/// The file of a log that lists the others.
const MANIFEST: &str = "manifest.jsonl";

/// Gives each decision of the records to `each`, file by file in the order of their names, which is that of time. A folder is
/// an audit log's.
///
/// # Errors
/// Says what cannot be read, with the line where it stands.
pub(super) fn each(path: &Path, operations: &Operations, mut each: impl FnMut(Recorded)) -> Result<(), String> {
    let unreadable = |path: &Path, error: &std::io::Error| format!("cannot read `{}`: {error}", path.display());
    for file in files(path).map_err(|error| unreadable(path, &error))? {
        let mut reader = BufReader::new(File::open(&file).map_err(|error| unreadable(&file, &error))?);
        let mut line = Vec::new();
        for number in 1_u64.. {
            line.clear();
            let read = reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
            let read = read.map_err(|error| unreadable(&file, &error))?;
            // What does not end may still be being written.
            let Some(text) = line.strip_suffix(b"\n") else {
                if u64::try_from(read).is_ok_and(|read| read == LINE_BYTES_MAX) {
                    return Err(format!("`{}`: line {number} is longer than {LINE_BYTES_MAX} bytes", file.display()));
                }
                break;
            };
            let text = std::str::from_utf8(text).map_err(|_| "it is no UTF-8".to_owned());
            let found = text.and_then(|text| read_back(text, |name| operations.name(name)));
            if let Some(recorded) = found.map_err(|fault| format!("`{}`: line {number}: {fault}", file.display()))? {
                each(recorded);
            }
        }
    }
    Ok(())
}

fn files(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    if !fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let path = entry?.path();
        let is_list = path.file_name().is_some_and(|name| name == MANIFEST);
        if path.extension().is_some_and(|ending| ending == ENDING) && !is_list {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
