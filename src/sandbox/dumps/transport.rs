//! Brings exported templates from a file of the operator's, and to one: by whoever owns the state directory, by no tool.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;

use super::file::{self, DUMP_AT};
use super::shelf::{DUMP_BYTES_MAX, Shelf, ShelfError};
use crate::admission::Permit;
use crate::model::{Code, Failure, Transport, fault};
use crate::sandbox::Core;
use crate::sandbox::bounds::check_template_name;

impl Core {
    /// Copies an exported template of an owner's to a private file that is not there yet.
    ///
    /// # Errors
    /// The permit is not the program's own; `template_not_found`; it is not whole; or the file cannot be written.
    pub async fn save_exported<T>(
        &self,
        permit: &Permit<T>,
        owner: &str,
        name: &str,
        to: &Path,
    ) -> Result<(), Failure> {
        check_template_name(name)?;
        let (shelf, name, to) = (self.transport_shelf(permit, owner)?, name.to_owned(), to.to_owned());
        beside(move || save(&shelf, &name, &to)).await
    }

    /// Takes a file as an exported template of an owner's, under the name it has or another. Returns that.
    ///
    /// # Errors
    /// The permit is not the program's own; it is no such file, or not whole; there is one of that name; `quota_exceeded`.
    pub async fn add_exported<T>(
        &self,
        permit: &Permit<T>,
        owner: &str,
        from: &Path,
        name: Option<&str>,
    ) -> Result<String, Failure> {
        name.map_or(Ok(()), check_template_name)?;
        let shelf = self.transport_shelf(permit, owner)?;
        let (from, name) = (from.to_owned(), name.map(str::to_owned));
        beside(move || add(&shelf, &from, name)).await
    }

    fn transport_shelf<T>(&self, permit: &Permit<T>, owner: &str) -> Result<Shelf, Failure> {
        if permit.grant().principal.transport != Transport::Internal {
            return Err(Failure::new(Code::Internal, "files are brought under the program's own permit only"));
        }
        match self.inner().dumps.get() {
            Some(root) => Ok(Shelf::new(root, owner)),
            None => Err(Failure::new(Code::Internal, "this program keeps no exported templates")),
        }
    }
}

/// Works beside the threads that answer calls.
async fn beside<R: Send + 'static>(work: impl FnOnce() -> Result<R, Failure> + Send + 'static) -> Result<R, Failure> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(Failure::new(Code::Internal, "the file was not copied").audit(error.to_string())))
}

fn save(shelf: &Shelf, name: &str, to: &Path) -> Result<(), Failure> {
    let mut open = shelf.open(name)?;
    file::verify(&open.file, &open.manifest).map_err(|why| ShelfError::Unsound { name: name.to_owned(), why })?;
    let failed = |error: io::Error| outside("written", to, &error);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to).map_err(failed)?;
    let copied = fault::reach("file.dumps.save").map_err(io::Error::from).and_then(|()| {
        open.file.seek(SeekFrom::Start(0))?;
        io::copy(&mut open.file, &mut file)?;
        file.sync_all()
    });
    copied.map_err(|error| {
        // Half a file would be taken for one.
        fs::remove_file(to).unwrap_or_default();
        failed(error)
    })
}

fn add(shelf: &Shelf, from: &Path, name: Option<String>) -> Result<String, Failure> {
    let failed = |error: io::Error| outside("read", from, &error);
    // A pipe or a device would be waited for.
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(from).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(outside("read", from, &io::Error::other("it is no regular file")));
    }
    let unsound = |why| {
        let name =
            from.file_name().unwrap_or_default().to_string_lossy().chars().flat_map(char::escape_default).collect();
        Failure::from(ShelfError::Unsound { name, why })
    };
    // Before anything is copied.
    let said = file::read_manifest(&file).map_err(unsound)?;
    let name = name.unwrap_or(said.template_name);
    let room = shelf.room(&name, false)?;
    if said.dump_bytes > room {
        let text = format!("the file holds {} bytes, and there is room for {room}", said.dump_bytes);
        return Err(Failure::new(Code::QuotaExceeded, text).hint("remove exported templates that are not needed"));
    }
    let unfinished = shelf.begin()?;
    let mut into: File = unfinished.file().map_err(failed)?;
    fault::reach("file.dumps.add").map_err(|injected| failed(injected.into()))?;
    io::copy(&mut file.take(DUMP_AT + DUMP_BYTES_MAX), &mut into).map_err(failed)?;
    // What was copied is what counts.
    let manifest = file::read_manifest(&into).map_err(unsound)?;
    file::verify(&into, &manifest).map_err(unsound)?;
    shelf.finish(&unfinished, &name, &manifest, false)?;
    Ok(name)
}

/// Words what the system says of a file of the operator's.
fn outside(verb: &str, path: &Path, error: &io::Error) -> Failure {
    let code = if error.kind() == io::ErrorKind::StorageFull { Code::DiskFull } else { Code::InvalidArguments };
    let shown: String = path.to_string_lossy().chars().flat_map(char::escape_default).collect();
    let hint = match verb {
        "read" => "name a regular file that `pgsandbox exported save` has written",
        _ => "name a file that is not there yet, in a directory that you may write in: none is replaced",
    };
    Failure::new(code, format!("`{shown}` cannot be {verb}: {error}")).hint(hint)
}
