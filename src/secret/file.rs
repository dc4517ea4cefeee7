//! Where keys are kept: a file of ours, a file of the operator's, or a program that prints them.
//!
//! A file of ours appears whole or not at all, with mode 0600, and is written only under its lock. A file that
//! others may read, or that belongs to another user, is refused.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use rustix::process::{Pid, geteuid, test_kill_process};
use zeroize::Zeroizing;

use super::ring::Key;
use super::{GET, SecretError, random};
use crate::model::{Secret, fault};

/// The key file's name in a state directory.
pub const KEY_FILE_NAME: &str = "master.keys";
/// The lock file beside it: the key file itself is replaced when it changes, so it cannot carry the lock.
const LOCK_FILE_NAME: &str = "master.keys.lock";
/// The first line of a file of ours.
const HEADER: &str =
    "# pgsandbox master keys, one per line, the current one last; whoever reads them can open every sandbox";
/// More than anyone rotates; a larger file is something else.
const KEY_FILE_BYTES_MAX: u64 = 64 << 10;
/// A program that asks a vault answers within this.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

/// Where keys come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// `master.keys` in this directory; made if it is not there.
    StateDirectory(PathBuf),
    /// A file that the operator keeps.
    File(PathBuf),
    /// A program and its arguments; it prints the keys.
    Command(Vec<String>),
}

impl fmt::Display for KeySource {
    /// Names the file, or the program without its arguments.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StateDirectory(directory) => directory.join(KEY_FILE_NAME).display().fmt(f),
            Self::File(path) => path.display().fmt(f),
            Self::Command(argv) => f.write_str(argv.first().map_or("", String::as_str)),
        }
    }
}

/// Reads the keys of a source, making the first one in a state directory that has none.
pub(super) async fn load(source: &KeySource) -> Result<Vec<Key>, SecretError> {
    match source {
        KeySource::StateDirectory(directory) => {
            let path = directory.join(KEY_FILE_NAME);
            clear_staged(directory);
            match read(&path) {
                Err(ReadError::Missing) => {
                    create(directory, &path).map_err(|error| io_error("create", &path, &error))?;
                    read(&path).map_err(|error| error.named(&path))
                }
                other => other.map_err(|error| error.named(&path)),
            }
        }
        KeySource::File(path) => read(path).map_err(|error| error.named(path)),
        KeySource::Command(argv) => run(argv, &source.to_string(), COMMAND_TIMEOUT).await,
    }
}

/// Adds a fresh key to a file of ours and returns all keys.
pub(super) async fn append(source: &KeySource) -> Result<Vec<Key>, SecretError> {
    let KeySource::StateDirectory(directory) = source else {
        return Err(SecretError::NotOurs(source.to_string()));
    };
    let path = directory.join(KEY_FILE_NAME);
    let _lock = lock(directory).map_err(|error| io_error("lock", &path, &error))?;
    let mut keys = load(source).await?;
    keys.push(Key::fresh()?);
    let staged = stage(directory, &keys).map_err(|error| io_error("write", &path, &error))?;
    let renamed = fault::reach("file.keys.rename").map_err(io::Error::from).and_then(|()| fs::rename(&staged, &path));
    let replaced = match renamed {
        Ok(()) => sync(directory),
        // What was written beside it holds every key.
        Err(error) => fs::remove_file(&staged).and(Err(error)),
    };
    replaced.map_err(|error| io_error("replace", &path, &error))?;
    Ok(keys)
}

/// Makes the first key. A link, unlike a rename, fails if another process was first: then its key is the one.
fn create(directory: &Path, path: &Path) -> io::Result<()> {
    let key = Key::fresh().map_err(io::Error::other)?;
    let staged = stage(directory, &[key])?;
    let linked = fault::reach("file.keys.link").map_err(io::Error::from).and_then(|()| fs::hard_link(&staged, path));
    fs::remove_file(&staged)?;
    match linked {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other.and_then(|()| sync(directory)),
    }
}

/// Writes keys to a new private file beside the key file, down to the disk.
fn stage(directory: &Path, keys: &[Key]) -> io::Result<PathBuf> {
    let tag = u64::from_le_bytes(*random::<8>().map_err(io::Error::other)?);
    let path = directory.join(format!("{KEY_FILE_NAME}.{}-{tag:016x}", std::process::id()));
    let mut text = Zeroizing::new(format!("{HEADER}\n"));
    for key in keys {
        STANDARD.encode_string(key.bytes(), &mut text);
        text.push('\n');
    }
    fault::reach("file.keys.stage")?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    let written = fault::reach("file.keys.write").map_err(io::Error::from);
    let written = written.and_then(|()| file.write_all(text.as_bytes())).and_then(|()| file.sync_all());
    match written {
        Ok(()) => Ok(path),
        Err(error) => {
            fs::remove_file(&path)?;
            Err(error)
        }
    }
}

/// Removes what a process that died while it wrote keys has left: whole keys, in a file that nobody looks after.
fn clear_staged(directory: &Path) {
    let gone = |pid: i32| Pid::from_raw(pid).is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH));
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let rest = name.to_str().and_then(|name| name.strip_prefix(KEY_FILE_NAME)?.strip_prefix('.'));
        let pid = rest.and_then(|rest| rest.split_once('-')?.0.parse().ok());
        if pid.is_some_and(gone)
            && let Err(error) = fs::remove_file(entry.path())
        {
            tracing::warn!(%error, file = %entry.path().display(), "an unfinished key file stays");
        }
    }
}

fn lock(directory: &Path) -> io::Result<File> {
    fault::reach("file.keys.lock")?;
    let path = directory.join(LOCK_FILE_NAME);
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
    flock(&file, FlockOperation::LockExclusive)?;
    Ok(file)
}

fn sync(directory: &Path) -> io::Result<()> {
    fault::reach("file.keys.sync")?;
    File::open(directory)?.sync_all()
}

enum ReadError {
    Missing,
    Io(io::Error),
    Unsafe(String),
    Malformed(&'static str),
}

impl ReadError {
    fn named(self, path: &Path) -> SecretError {
        let name = path.display().to_string();
        match self {
            Self::Missing => {
                SecretError::Source { action: "read", from: name, detail: "there is no such file".to_owned() }
            }
            Self::Io(error) => io_error("read", path, &error),
            Self::Unsafe(fault) => SecretError::Unsafe { path: name, fault },
            Self::Malformed(fault) => SecretError::Malformed { from: name, fault },
        }
    }
}

fn io_error(action: &'static str, path: &Path, error: &io::Error) -> SecretError {
    SecretError::Source { action, from: path.display().to_string(), detail: error.to_string() }
}

fn read(path: &Path) -> Result<Vec<Key>, ReadError> {
    fault::reach("file.keys.read").map_err(|injected| ReadError::Io(injected.into()))?;
    parse(&read_text(path)?).map_err(ReadError::Malformed)
}

/// Reads a small file that is ours and that nobody else can read.
fn read_text(path: &Path) -> Result<Zeroizing<String>, ReadError> {
    let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).unwrap_or_default();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(|error| {
        if error.kind() == io::ErrorKind::NotFound { ReadError::Missing } else { ReadError::Io(error) }
    })?;
    let facts = file.metadata().map_err(ReadError::Io)?;
    let me = geteuid().as_raw();
    if !facts.is_file() {
        return Err(ReadError::Unsafe("is not a regular file".to_owned()));
    }
    if facts.uid() != me {
        return Err(ReadError::Unsafe(format!("belongs to user {}, not to user {me}", facts.uid())));
    }
    if facts.mode() & 0o077 != 0 {
        return Err(ReadError::Unsafe(format!("has mode {:04o}, which lets others in", facts.mode() & 0o7777)));
    }
    if facts.len() > KEY_FILE_BYTES_MAX {
        return Err(ReadError::Malformed("it is too large"));
    }
    let mut text = Zeroizing::new(String::new());
    let mut bounded = file.take(KEY_FILE_BYTES_MAX);
    bounded.read_to_string(&mut text).map_err(|error| {
        let not_text = error.kind() == io::ErrorKind::InvalidData;
        if not_text { ReadError::Malformed("it is not text") } else { ReadError::Io(error) }
    })?;
    Ok(text)
}

async fn run(argv: &[String], name: &str, wait: Duration) -> Result<Vec<Key>, SecretError> {
    let text = run_text(argv, name, wait).await?;
    parse(&text).map_err(|fault| SecretError::Malformed { from: name.to_owned(), fault })
}

/// Runs a program of the operator's and returns what it prints.
async fn run_text(argv: &[String], name: &str, wait: Duration) -> Result<Zeroizing<String>, SecretError> {
    let failed = |detail: String| SecretError::Source { action: GET, from: name.to_owned(), detail };
    let Some((program, arguments)) = argv.split_first() else {
        return Err(failed("no program is named".to_owned()));
    };
    let mut command = tokio::process::Command::new(program);
    // It may need what its own service wants to be told; nothing that is ours.
    for (ours, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"PGSANDBOX_")) {
        command.env_remove(ours);
    }
    let child = command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(wait, child)
        .await
        .map_err(|_| failed(format!("no answer within {} s", wait.as_secs())))?
        .map_err(|error| failed(error.to_string()))?;
    let stdout = Zeroizing::new(output.stdout);
    if !output.status.success() {
        return Err(failed(output.status.to_string()));
    }
    let malformed = |fault| SecretError::Malformed { from: name.to_owned(), fault };
    let text = std::str::from_utf8(&stdout).map_err(|_| malformed("it is not text"))?;
    Ok(Zeroizing::new(text.to_owned()))
}

/// Where a password of the operator's is kept, to be read when it is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PasswordSource {
    /// A file that holds it, private to this program's user.
    File(PathBuf),
    /// A program and its arguments; it prints the password.
    Command(Vec<String>),
}

impl PasswordSource {
    /// Reads the password: what the file holds or the program prints, without the end of its line.
    ///
    /// # Errors
    /// Fails if it cannot be had, if others may read the file, or if it is none: empty, or of several lines.
    pub async fn read(&self) -> Result<Secret, SecretError> {
        let (name, text) = match self {
            Self::File(path) => {
                let read = fault::reach("file.password.read").map_err(|injected| ReadError::Io(injected.into()));
                (path.display().to_string(), read.and_then(|()| read_text(path)).map_err(|error| error.named(path)))
            }
            Self::Command(argv) => {
                let name = argv.first().cloned().unwrap_or_default();
                let text = run_text(argv, &name, COMMAND_TIMEOUT).await;
                (name, text)
            }
        };
        let text = text.map_err(|error| match error {
            SecretError::Source { from, detail, .. } => SecretError::PasswordUnread { from, detail },
            SecretError::Malformed { from, .. } => SecretError::NoPassword(from),
            SecretError::Unsafe { .. }
            | SecretError::PasswordUnread { .. }
            | SecretError::NoPassword(_)
            | SecretError::UnknownKey(_)
            | SecretError::Forged
            | SecretError::NotOurs(_)
            | SecretError::NoRandom => error,
        })?;
        let password = text.strip_suffix('\n').unwrap_or(&text);
        let password = password.strip_suffix('\r').unwrap_or(password);
        if password.is_empty() || password.contains(['\n', '\r', '\0']) {
            return Err(SecretError::NoPassword(name));
        }
        Ok(Secret::new(password))
    }
}

/// Reads one key per line; empty lines and comments are skipped.
fn parse(text: &str) -> Result<Vec<Key>, &'static str> {
    let mut keys = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let decoded = Zeroizing::new(STANDARD.decode(line).map_err(|_| "a line is not base64")?);
        let bytes: [u8; 32] = decoded.as_slice().try_into().map_err(|_| "a key is not 32 bytes")?;
        keys.push(Key::new(Zeroizing::new(bytes)));
    }
    if keys.is_empty() { Err("it is empty") } else { Ok(keys) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::unix::fs::PermissionsExt as _;

    use super::super::{KeyId, KeyRing};
    use super::*;

    const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n";

    async fn open(source: KeySource) -> Result<KeyId, SecretError> {
        KeyRing::open(source).await.map(|ring| ring.current_id().unwrap())
    }

    fn write(dir: &tempfile::TempDir, text: &str, mode: u32) -> PathBuf {
        let path = dir.path().join("keys");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 8)]
    async fn many_that_start_at_once_agree_on_one_key() {
        let dir = tempfile::tempdir().unwrap();
        let starts = (0..32).map(|_| tokio::spawn(open(KeySource::StateDirectory(dir.path().to_owned()))));
        let mut ids = BTreeSet::new();
        for start in starts.collect::<Vec<_>>() {
            ids.insert(start.await.unwrap().unwrap());
        }
        assert_eq!(ids.len(), 1);
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, [KEY_FILE_NAME]);
        let mode = fs::metadata(dir.path().join(KEY_FILE_NAME)).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o600);
    }

    #[tokio::test]
    async fn rotations_at_once_lose_no_key() {
        let dir = tempfile::tempdir().unwrap();
        let source = KeySource::StateDirectory(dir.path().to_owned());
        let first = open(source.clone()).await.unwrap();
        let rotations = (0..8).map(|_| {
            let source = source.clone();
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async { KeyRing::open(source).await.unwrap().rotate().await.unwrap() })
            })
        });
        for rotation in rotations.collect::<Vec<_>>() {
            assert_ne!(rotation.join().unwrap(), first);
        }
        assert_eq!(load(&source).await.unwrap_or_default().len(), 9);
    }

    #[tokio::test]
    async fn keys_that_a_process_died_over_do_not_lie_about() {
        let dir = tempfile::tempdir().unwrap();
        let dead =
            std::process::Command::new("true").spawn().and_then(|mut child| Ok((child.id(), child.wait()?))).unwrap().0;
        let left = dir.path().join(format!("{KEY_FILE_NAME}.{dead}-0123456789abcdef"));
        let being_written = dir.path().join(format!("{KEY_FILE_NAME}.{}-0123456789abcdef", std::process::id()));
        for file in [&left, &being_written] {
            fs::write(file, KEY).unwrap();
        }
        open(KeySource::StateDirectory(dir.path().to_owned())).await.unwrap();
        assert!(!left.exists() && being_written.exists());
    }

    #[tokio::test]
    async fn a_key_file_that_others_may_read_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        for mode in [0o640, 0o604, 0o660] {
            let path = write(&dir, KEY, mode);
            let error = open(KeySource::File(path.clone())).await.unwrap_err();
            assert!(matches!(&error, SecretError::Unsafe { path: named, .. } if *named == path.display().to_string()));
        }
    }

    #[tokio::test]
    async fn a_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let path = write(&dir, KEY, 0o600);
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(path, &link).unwrap();
        assert!(open(KeySource::File(link)).await.is_err());
    }

    #[tokio::test]
    async fn what_is_not_a_key_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for text in ["", "# nothing\n", "not base64!\n", "AAECAw==\n"] {
            let error = open(KeySource::File(write(&dir, text, 0o600))).await.unwrap_err();
            assert!(matches!(error, SecretError::Malformed { .. }), "{text}: {error}");
        }
    }

    #[tokio::test]
    async fn a_file_and_a_program_with_the_same_key_agree() {
        let dir = tempfile::tempdir().unwrap();
        let from_file = open(KeySource::File(write(&dir, KEY, 0o600))).await.unwrap();
        let argv = vec!["printf".to_owned(), "%s".to_owned(), KEY.to_owned()];
        assert_eq!(open(KeySource::Command(argv)).await.unwrap(), from_file);
    }

    #[tokio::test]
    async fn a_program_that_gives_keys_sees_of_our_environment_nothing_that_is_ours() {
        // Of the environment of a test nothing can be changed, so it is this test's own program that sees another.
        const INSIDE: &str = "PGSANDBOX_TEST_KEY_COMMAND";
        let name = "secret::file::tests::a_program_that_gives_keys_sees_of_our_environment_nothing_that_is_ours";
        if std::env::var_os(INSIDE).is_none() {
            let seen = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", name, "--nocapture"])
                .envs([(INSIDE, "1"), ("PGSANDBOX_ADMIN_DATABASE_URL", "postgres://u:hunter2@h/d"), ("VAULT", "addr")])
                .output()
                .unwrap();
            assert!(seen.status.success() && String::from_utf8_lossy(&seen.stdout).contains("1 passed"), "{seen:?}");
            return;
        }
        // It gives its key only where it sees what it needs and nothing of ours.
        let script = format!("env | grep -q ^PGSANDBOX_ && exit 1; [ \"$VAULT\" = addr ] && echo {KEY}");
        let argv = ["sh", "-c", &script].map(str::to_owned);
        open(KeySource::Command(argv.to_vec())).await.unwrap();
    }

    #[tokio::test]
    async fn a_program_that_fails_gives_no_keys() {
        let error = open(KeySource::Command(vec!["false".to_owned()])).await.unwrap_err();
        assert!(matches!(error, SecretError::Source { .. }));
        let failure = crate::model::Failure::from(error);
        assert!(failure.hint.unwrap().contains("`keyCommand` by hand"), "{}", failure.message);
    }

    #[tokio::test]
    async fn a_program_that_gives_no_keys_in_time_is_given_up() {
        let argv = |script: &str| ["sh", "-c", script].map(str::to_owned);
        let hangs = argv("exec sleep 600");
        let error = run(&hangs, "a vault", Duration::from_millis(50)).await.err().expect("it gave nothing");
        assert!(matches!(&error, SecretError::Source { detail, .. } if detail.contains("no answer")), "{error:?}");
        let comes = argv(&format!("printf %s {KEY}"));
        assert_eq!(run(&comes, "a vault", COMMAND_TIMEOUT).await.map(|keys| keys.len()).ok(), Some(1));
    }

    #[tokio::test]
    async fn keys_of_the_operator_are_not_rotated_here() {
        let dir = tempfile::tempdir().unwrap();
        let ring = KeyRing::open(KeySource::File(write(&dir, KEY, 0o600))).await.unwrap();
        assert!(matches!(ring.rotate().await, Err(SecretError::NotOurs(_))));
    }

    #[tokio::test]
    async fn a_key_file_is_read_up_to_its_bound_and_no_further() {
        let dir = tempfile::tempdir().unwrap();
        for (bytes, fits) in
            [(KEY_FILE_BYTES_MAX - 1, true), (KEY_FILE_BYTES_MAX, true), (KEY_FILE_BYTES_MAX + 1, false)]
        {
            // The key is the last line: what is not read to its end has none.
            let text = format!("{}\n{KEY}", "#".repeat(usize::try_from(bytes).unwrap() - KEY.len() - 1));
            let found = open(KeySource::File(write(&dir, &text, 0o600))).await;
            assert_eq!(found.is_ok(), fits, "{bytes}: {found:?}");
        }
    }
}
