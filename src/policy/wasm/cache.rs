//! What loading a policy makes, kept so that it need not be made at every start: compiled code above all.
//!
//! Compiled code is run as it is, so what is kept must be ours: the directory is entered by nobody else,
//! and each file carries a MAC over its name and contents under a key that lies there too. A file's name
//! is the digest of the engine, of the snapshots' version, of the world and of all that it was made from.
//! Anything that does not fit is made anew; nothing is ever taken from anywhere else.

use std::fs::{DirBuilder, File, OpenOptions};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fs, process};

use hmac::{Hmac, KeyInit as _, Mac as _};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use sha2::{Digest as _, Sha256};
use wasmtime::Engine;
use wasmtime::component::Component;
use zeroize::Zeroizing;

use crate::model::fault;
use crate::policy::spec::hex;

use super::HostError;
use super::engine::Shared;
use super::snapshot::SNAPSHOT_VERSION;

/// The largest file, in bytes: compiled code is some six times its component. What is larger is made anew at each start.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// The most files kept; the oldest go first.
const FILES_MAX: usize = 512;
const KEY_BYTES: usize = 32;
const MAC_BYTES: usize = 32;
/// The world: what was made for another one is of no use.
const WORLD: &str = include_str!("../../../wit/policy.wit");

/// A directory of compiled code.
pub(super) struct Cache {
    directory: PathBuf,
    key: Zeroizing<[u8; KEY_BYTES]>,
    file_bytes_max: u64,
    /// Of the engine, the snapshots' version and the world.
    engine_hash: u64,
}

impl Shared {
    /// Compiles a component, or takes what was compiled before.
    pub(super) fn compile(&self, bytes: &[u8]) -> wasmtime::Result<Component> {
        let Some(cache) = &self.cache else { return Component::new(&self.engine, bytes) };
        let name = cache.name("code", &[bytes]);
        if let Some(component) = cache.get(&name).and_then(|entry| entry.component(&self.engine, 0)) {
            return Ok(component);
        }
        fault::reach("policy.compile").map_err(std::io::Error::from)?;
        let component = Component::new(&self.engine, bytes)?;
        // What cannot be kept is compiled again next time.
        if let Ok(code) = component.serialize() {
            cache.put(&name, &[&code]).unwrap_or_default();
        }
        Ok(component)
    }
}

impl Cache {
    /// Opens the cache in `directory`, which is made if it is missing, with its key.
    pub(super) fn open(directory: &Path, engine: &Engine) -> Result<Self, HostError> {
        let fault = |detail: String| HostError::Cache { path: directory.to_owned(), detail };
        fault::reach("policy.cache.dir").map_err(|injected| fault(io::Error::from(injected).to_string()))?;
        match DirBuilder::new().mode(0o700).create(directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(fault(error.to_string())),
            Ok(()) | Err(_) => {}
        }
        let found = directory.symlink_metadata().map_err(|error| fault(error.to_string()))?;
        if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() || found.mode() & 0o077 != 0 {
            return Err(fault("it is not a directory that only this user may enter (mode 0700)".to_owned()));
        }
        clear_staged(directory);
        let key = key(&directory.join("key")).map_err(|error| fault(format!("its key: {error}")))?;
        let mut hash = DefaultHasher::new();
        engine.precompile_compatibility_hash().hash(&mut hash);
        SNAPSHOT_VERSION.hash(&mut hash);
        WORLD.hash(&mut hash);
        let engine_hash = hash.finish();
        Ok(Self { directory: directory.to_owned(), key, file_bytes_max: FILE_BYTES_MAX, engine_hash })
    }

    /// Returns the name of what is made of `parts`; `kind` says what it is.
    pub(super) fn name(&self, kind: &str, parts: &[&[u8]]) -> String {
        let mut hash = Sha256::new();
        hash.update(self.engine_hash.to_be_bytes());
        for part in std::iter::once(&kind.as_bytes()).chain(parts) {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        hex(&hash.finalize())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.cwasm"))
    }

    fn mac(&self, name: &str, parts: &[&[u8]]) -> Option<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(self.key.as_slice()).ok()?;
        mac.update(name.as_bytes());
        parts.iter().for_each(|part| mac.update(part));
        Some(mac)
    }

    /// Returns what is kept under `name`, if this program wrote it.
    pub(super) fn get(&self, name: &str) -> Option<Entry> {
        fault::reach("policy.cache.read").ok()?;
        let file = options().read(true).open(self.path(name)).ok()?;
        let size = file.metadata().ok()?.len();
        if size > self.file_bytes_max {
            return None;
        }
        let mut bytes = Vec::with_capacity(usize::try_from(size).ok()? + 1);
        // One that grows meanwhile has another MAC.
        file.take(size).read_to_end(&mut bytes).ok()?;
        let (mac, body) = bytes.split_first_chunk::<MAC_BYTES>()?;
        self.mac(name, &[body])?.verify_slice(mac).ok()?;
        Some(Entry(bytes))
    }

    /// Keeps `parts`, one behind the other, under `name`, unless they are more than would be read.
    pub(super) fn put(&self, name: &str, parts: &[&[u8]]) -> io::Result<()> {
        let bytes = parts.iter().map(|part| part.len()).sum::<usize>().saturating_add(MAC_BYTES);
        if u64::try_from(bytes).is_ok_and(|bytes| bytes > self.file_bytes_max) {
            return Ok(());
        }
        let Some(mac) = self.mac(name, parts) else { return Ok(()) };
        fault::reach("policy.cache.room")?;
        self.make_room()?;
        let mut bytes = mac.finalize().into_bytes().to_vec();
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
        write_whole(&self.path(name), &bytes, |from, to| fs::rename(from, to))
    }

    /// Removes the oldest files beyond the bound.
    fn make_room(&self) -> io::Result<()> {
        let mut files: Vec<_> = fs::read_dir(&self.directory)?
            .filter_map(Result::ok)
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "cwasm"))
            .filter_map(|path| Some((path.metadata().ok()?.modified().ok()?, path)))
            .collect();
        files.sort();
        let over = (files.len() + 1).saturating_sub(FILES_MAX);
        files.iter().take(over).try_for_each(|(_, path)| fs::remove_file(path))
    }
}

/// Removes what processes that died while they wrote have left.
fn clear_staged(directory: &Path) {
    let gone = |pid: i32| Pid::from_raw(pid).is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH));
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let staged = name.to_str().and_then(|name| name.strip_suffix(".new")?.rsplit_once('.'));
        let pid = staged.and_then(|(_, writer)| writer.split_once('-')?.0.parse().ok());
        if pid.is_some_and(gone) {
            // One that stays takes room, and nothing more.
            fs::remove_file(entry.path()).unwrap_or_default();
        }
    }
}

/// A file whose MAC was checked.
pub(super) struct Entry(Vec<u8>);

impl Entry {
    /// Returns what was kept.
    pub(super) fn body(&self) -> &[u8] {
        self.0.get(MAC_BYTES..).unwrap_or_default()
    }

    /// Returns the component whose code begins at `at`, in what was kept.
    pub(super) fn component(&self, engine: &Engine, at: usize) -> Option<Component> {
        deserialize(engine, self.body().get(at..)?)
    }
}

/// Reads the key, making it first if there is none.
fn key(path: &Path) -> io::Result<Zeroizing<[u8; KEY_BYTES]>> {
    if !path.exists() {
        fault::reach("policy.cache.key.make")?;
        let mut fresh = Zeroizing::new([0; KEY_BYTES]);
        getrandom::fill(fresh.as_mut_slice()).map_err(|error| io::Error::other(error.to_string()))?;
        // A link is made whole or not at all: of two processes that start at once, one key stays.
        match write_whole(path, fresh.as_slice(), |from, to| {
            fs::hard_link(from, to).and_then(|()| fs::remove_file(from))
        }) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    fault::reach("policy.cache.key.read")?;
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    options().read(true).open(path)?.read_exact(key.as_mut_slice())?;
    Ok(key)
}

/// Writes a file beside its place and has `put` move it there.
fn write_whole(path: &Path, bytes: &[u8], put: impl FnOnce(&Path, &Path) -> io::Result<()>) -> io::Result<()> {
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
    let staged = path.with_extension(format!("{}-{number}.new", process::id()));
    let write = |mut file: File| {
        fault::reach("policy.cache.write").map_err(io::Error::from).and_then(|()| file.write_all(bytes))
    };
    let written = options()
        .write(true)
        .create(true)
        .truncate(true)
        .open(&staged)
        .and_then(write)
        .and_then(|()| Ok(fault::reach("policy.cache.put")?))
        .and_then(|()| put(&staged, path));
    written.inspect_err(|_| fs::remove_file(&staged).unwrap_or_default())
}

/// Options that follow no link and give others nothing.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::CLOEXEC).bits()).unwrap_or_default();
    options.mode(0o600).custom_flags(flags);
    options
}

/// Makes a component of code whose MAC was checked.
#[expect(unsafe_code, reason = "wasmtime trusts compiled code; `get` lets only such through as this program wrote")]
fn deserialize(engine: &Engine, code: &[u8]) -> Option<Component> {
    // SAFETY: the bytes are what `Component::serialize` gave this program: they carry its MAC under a key that only this
    // user can read. A version or target that differs is refused by wasmtime itself.
    unsafe { Component::deserialize(engine, code) }.ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn servers_that_start_at_once_agree_on_one_key() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        let together = Barrier::new(8);
        let keys: Vec<_> = std::thread::scope(|scope| {
            let start = || {
                together.wait();
                key(&path).unwrap()
            };
            let started: Vec<_> = (0..8).map(|_| scope.spawn(start)).collect();
            started.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(keys.iter().all(|key| *key == keys[0] && **key != [0; KEY_BYTES]));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left beside the key");
    }

    #[test]
    fn what_a_process_died_over_does_not_lie_about() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("compiled");
        drop(Cache::open(&path, &Engine::default()).unwrap());
        let dead =
            process::Command::new("true").spawn().and_then(|mut child| Ok((child.id(), child.wait()?))).unwrap().0;
        let (left, being_written) =
            (path.join(format!("x.{dead}-0.new")), path.join(format!("x.{}-0.new", process::id())));
        for file in [&left, &being_written] {
            fs::write(file, "code").unwrap();
        }
        drop(Cache::open(&path, &Engine::default()).unwrap());
        assert!(!left.exists() && being_written.exists());
    }

    #[test]
    fn what_is_kept_is_had_under_its_own_name_and_untouched_only() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::open(&directory.path().join("compiled"), &Engine::default()).unwrap();
        cache.put("a", &[b"co", b"de"]).unwrap();
        assert_eq!(cache.get("a").unwrap().body(), b"code");
        fs::copy(cache.path("a"), cache.path("b")).unwrap();
        assert!(cache.get("b").is_none(), "under another's name");
        let whole = fs::read(cache.path("a")).unwrap();
        for at in 0..whole.len() {
            let mut touched = whole.clone();
            touched[at] ^= 1;
            fs::write(cache.path("a"), touched).unwrap();
            assert!(cache.get("a").is_none(), "byte {at}");
        }
        for cut in 0..whole.len() {
            fs::write(cache.path("a"), &whole[..cut]).unwrap();
            assert!(cache.get("a").is_none(), "cut at {cut}");
        }
        fs::remove_file(cache.directory.join("key")).unwrap();
        fs::write(cache.path("a"), &whole).unwrap();
        let other = Cache::open(&cache.directory, &Engine::default()).unwrap();
        assert!(other.get("a").is_none(), "under another key");
    }

    #[test]
    fn a_file_is_kept_and_read_up_to_its_bound_and_no_further() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::open(&directory.path().join("compiled"), &Engine::default()).unwrap();
        assert_eq!(cache.file_bytes_max, FILE_BYTES_MAX);
        let body_max = 1 << 10;
        let small = Cache { file_bytes_max: body_max as u64 + MAC_BYTES as u64, ..cache };
        for (bytes, fits) in [(body_max - 1, true), (body_max, true), (body_max + 1, false)] {
            let (name, code) = (bytes.to_string(), vec![7; bytes]);
            let (head, rest) = code.split_at(bytes / 2);
            small.put(&name, &[head, rest]).unwrap();
            assert_eq!(small.path(&name).exists(), fits, "{bytes} bytes");
            assert_eq!(small.get(&name).map(|entry| entry.body().to_vec()), fits.then_some(code), "{bytes} bytes");
        }
        // One that is there, and whole, is not read all the same.
        let large = Cache { file_bytes_max: FILE_BYTES_MAX, ..small };
        large.put("large", &[&vec![7; body_max + 1]]).unwrap();
        assert!(large.get("large").is_some());
        let small = Cache { file_bytes_max: body_max as u64 + MAC_BYTES as u64, ..large };
        assert!(small.get("large").is_none());
    }

    #[test]
    fn names_tell_apart_what_things_are_made_of() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::open(&directory.path().join("compiled"), &Engine::default()).unwrap();
        let names = [
            cache.name("a", &[b"x", b"y"]),
            cache.name("b", &[b"x", b"y"]),
            cache.name("a", &[b"xy", b""]),
            cache.name("a", &[b"", b"xy"]),
            cache.name("a", &[b"xy"]),
        ];
        assert_eq!(names.iter().collect::<std::collections::BTreeSet<_>>().len(), names.len());
    }

    #[test]
    fn the_oldest_files_make_room() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("compiled");
        let cache = Cache::open(&path, &Engine::default()).unwrap();
        for number in 0..FILES_MAX + 3 {
            cache.put(&number.to_string(), &[b"code"]).unwrap();
        }
        let kept = fs::read_dir(&path).unwrap().count() - 1;
        assert_eq!(kept, FILES_MAX, "and the key");
        assert!(path.join(format!("{}.cwasm", FILES_MAX + 2)).exists());
    }
}
