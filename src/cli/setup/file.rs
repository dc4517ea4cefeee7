//! Reads and replaces the file of a client's configuration: whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use crate::model::fault;

/// The longest configuration that is read, in bytes.
const FILE_BYTES_MAX: u64 = 8 << 20;
/// Links that are followed to the file itself.
const LINKS_MAX: usize = 16;

/// A file as it was read.
#[derive(Debug)]
pub(super) struct Source {
    /// The file itself, behind any links.
    pub(super) path: PathBuf,
    /// What it holds; `None` if it is not there.
    pub(super) bytes: Option<Vec<u8>>,
}

/// Reads a file; one that is not there is read as such.
pub(super) fn read(path: &Path) -> io::Result<Source> {
    let path = behind_links(path)?;
    fault::reach("file.client.read")?;
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Source { path, bytes: None }),
        Err(error) => return Err(error),
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("is no file"));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::other(format!("is longer than {FILE_BYTES_MAX} bytes")));
    }
    Ok(Source { path, bytes: Some(bytes) })
}

/// Returns whether two paths mean one file, which need not be there.
pub(super) fn is_same(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| {
        let folder = path.parent().and_then(|folder| folder.canonicalize().ok());
        (folder.unwrap_or_else(|| path.parent().unwrap_or(path).to_path_buf()), path.file_name().map(ToOwned::to_owned))
    };
    one == other || place(one) == place(other)
}

/// Returns whether a file is, or would be, somewhere below a directory.
pub(super) fn is_below(path: &Path, directory: &Path) -> bool {
    let real = |path: &Path| path.ancestors().find_map(|folder| folder.canonicalize().ok());
    match (real(path), directory.canonicalize()) {
        (Some(path), Ok(directory)) => path.starts_with(directory),
        _ => false,
    }
}

/// Returns the directories that lead to a file and are not there.
pub(super) fn missing_folders(path: &Path) -> Vec<PathBuf> {
    path.ancestors().skip(1).take_while(|folder| !folder.exists()).map(Path::to_path_buf).collect()
}

/// Removes those of the directories in which nothing is.
pub(super) fn remove_empty(mut folders: Vec<PathBuf>) {
    folders.sort_by_key(|folder| std::cmp::Reverse(folder.components().count()));
    for folder in folders {
        // One that somebody has put something in is somebody's now.
        drop(fs::remove_dir(folder));
    }
}

/// Follows links to the file that they mean, which need not be there.
fn behind_links(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_path_buf();
    for _ in 0..=LINKS_MAX {
        match fs::symlink_metadata(&path) {
            // Opening anything but a file or a link could wait for ever.
            Ok(found) if found.is_file() => return Ok(path),
            Ok(found) if found.is_symlink() => {
                let target = fs::read_link(&path)?;
                path = path.parent().unwrap_or(Path::new("/")).join(target);
            }
            Ok(_) => return Err(io::Error::other("is no file")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(path),
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("is a link that leads on and on"))
}

/// Replaces what was read by `text`, or removes the file. Mode and owner stay; a file that has changed since is left alone.
pub(super) fn replace(source: &Source, text: Option<&str>) -> io::Result<()> {
    if read(&source.path)?.bytes != source.bytes {
        return Err(io::Error::other("was changed meanwhile; it was left as it is"));
    }
    let Some(text) = text else { return fs::remove_file(&source.path) };
    let dir = source.path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(dir)?;
    let before = fs::metadata(&source.path).ok();
    let name = source.path.file_name().unwrap_or_default().to_string_lossy();
    let unfinished = dir.join(format!(".{name}.pgsandbox-{}", std::process::id()));
    let written = write(&unfinished, text, before.as_ref()).and_then(|()| {
        fault::reach("file.client.rename")?;
        fs::rename(&unfinished, &source.path)
    });
    if written.is_err() {
        // Whatever is left of it is of no use, and may not be there at all.
        drop(fs::remove_file(&unfinished));
    }
    written?;
    // The name is on disk once its directory is.
    File::open(dir)?.sync_all()
}

fn write(path: &Path, text: &str, like: Option<&fs::Metadata>) -> io::Result<()> {
    // A new file is the user's own until somebody lets others in.
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    if let Some(like) = like {
        let ours = file.metadata()?;
        if (like.uid(), like.gid()) != (ours.uid(), ours.gid()) {
            chown(path, Some(like.uid()), Some(like.gid()))?;
        }
        file.set_permissions(fs::Permissions::from_mode(like.mode() & 0o7777))?;
    }
    fault::reach("file.client.write")?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_its_bound() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        for (more, is_read) in [(0, true), (1, false)] {
            File::create(&path).unwrap().set_len(FILE_BYTES_MAX + more).unwrap();
            assert_eq!(read(&path).is_ok(), is_read);
        }
    }

    #[test]
    fn links_are_followed_up_to_a_bound_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let link = |n: usize| dir.path().join(format!("{n}"));
        fs::write(link(0), "old").unwrap();
        for n in 1..=LINKS_MAX + 1 {
            std::os::unix::fs::symlink(link(n - 1), link(n)).unwrap();
        }
        let source = read(&link(LINKS_MAX)).unwrap();
        replace(&source, Some("new")).unwrap();
        assert_eq!(fs::read_to_string(link(0)).unwrap(), "new");
        assert!(fs::symlink_metadata(link(LINKS_MAX)).unwrap().is_symlink());
        assert!(read(&link(LINKS_MAX + 1)).is_err());
        // A link may lead to what is not there yet.
        std::os::unix::fs::symlink("later/file", dir.path().join("loose")).unwrap();
        let source = read(&dir.path().join("loose")).unwrap();
        replace(&source, Some("made")).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("later/file")).unwrap(), "made");
    }

    #[test]
    fn mode_stays_and_nothing_is_left_beside_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let source = read(&path).unwrap();
        replace(&source, Some("new")).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        // What was read is not there any more.
        assert!(replace(&source, Some("newer")).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    }
}
