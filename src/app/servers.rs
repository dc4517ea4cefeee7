//! Which servers run on a state directory, and how a command asks something of all of them.
//!
//! Each server holds a file of its own in `servers/`, locked for as long as it lives, that says how its policies stand. A
//! command leaves a question there, locked as well, which servers see when they look, and each answers in a file. What is
//! not locked any more is of somebody who died, and is removed by whoever comes next. The directory's own lock is held
//! while files are made and removed, so that nobody takes one that was just made for one that was left.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::model::{RequestId, fault};

/// The folder below the state directory.
const FOLDER: &str = "servers";
/// How long a server may take to answer: it looks every few seconds, and may have to compile first.
const ANSWER_WAIT: Duration = Duration::from_secs(60);
/// How often it is looked whether one has answered.
const ANSWER_POLL: Duration = Duration::from_millis(50);
/// The size of a server's file: so much is written over at once.
const STANDING_BYTES: usize = 4 << 10;
/// The largest answer that is read.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

const SERVER: &str = "server";
const ANSWER: &str = "answer";

/// What is asked of servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// To read their policies once more.
    Reload,
    /// To say how their policies stand, and what they have counted.
    Tell,
}

impl Ask {
    const ALL: [Self; 2] = [Self::Reload, Self::Tell];

    const fn ending(self) -> &'static str {
        match self {
            Self::Reload => "reload",
            Self::Tell => "tell",
        }
    }
}

/// A question that waits for this server's answer.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) ask: Ask,
    id: String,
}

/// This server's own file, there as long as this is.
pub(super) struct Registration {
    folder: PathBuf,
    id: String,
    file: File,
}

/// A server that runs.
#[derive(Clone, Debug)]
pub struct ServerSeen {
    /// Its process.
    pub pid: u64,
    /// How its policies stand, as it says.
    pub standing: Value,
}

/// What became of a question.
#[derive(Clone, Debug)]
pub struct Answered {
    /// The server's process.
    pub pid: u64,
    /// What it says; an error where it did not.
    pub answer: Result<Value, String>,
}

impl Registration {
    /// Makes this server known below the state directory `home`.
    pub(super) fn make(home: &Path, standing: &Value) -> io::Result<Self> {
        let folder = home.join(FOLDER);
        make_private(&folder)?;
        let _lock = locked(&folder)?;
        sweep(&folder);
        let id = RequestId::fresh().to_string();
        fault::reach("servers.register")?;
        let file = make_locked(&folder.join(format!("{id}.{SERVER}")))?;
        let registration = Self { folder, id, file };
        registration.tell(standing)?;
        Ok(registration)
    }

    /// Returns whether the file is still where others find it.
    pub(super) fn is_found(&self) -> bool {
        self.file.metadata().is_ok_and(|found| found.nlink() > 0)
    }

    /// Says how the policies stand now.
    pub(super) fn tell(&self, standing: &Value) -> io::Result<()> {
        let mut text = with_pid(standing).to_string();
        if text.len() > STANDING_BYTES {
            // A set that was refused may have more faults than fit; a question brings all of them.
            let mut short = standing.clone();
            if let Some(faults) = short.pointer_mut("/refused/faults") {
                *faults = json!(["more than fit here: `pgsandbox doctor` lists them"]);
            }
            text = with_pid(&short).to_string();
        }
        fault::reach("servers.tell")?;
        let mut bytes = text.into_bytes();
        bytes.resize(bytes.len().max(STANDING_BYTES), b' ');
        self.file.write_all_at(&bytes, 0)
    }

    /// Returns the questions that wait for this server's answer, and removes those of commands that died.
    pub(super) fn asked(&self) -> Vec<Asked> {
        let mut waiting = Vec::new();
        let mut left = false;
        for (stem, ending) in names(&self.folder) {
            let Some(ask) = Ask::ALL.into_iter().find(|ask| ask.ending() == ending) else { continue };
            if !is_held(&self.folder.join(format!("{stem}.{ending}"))) {
                left = true;
            } else if !self.answer_to(&stem).exists() {
                waiting.push(Asked { ask, id: stem });
            }
        }
        if left && let Ok(_lock) = locked(&self.folder) {
            sweep(&self.folder);
        }
        waiting
    }

    /// Answers a question.
    pub(super) fn answer(&self, asked: &Asked, answer: &Value) -> io::Result<()> {
        let to = self.answer_to(&asked.id);
        let unfinished = to.with_extension("new");
        fault::reach("servers.answer")?;
        let mut file = options().create(true).truncate(true).write(true).open(&unfinished)?;
        file.write_all(with_pid(answer).to_string().as_bytes())?;
        fs::rename(unfinished, to)
    }

    fn answer_to(&self, question: &str) -> PathBuf {
        self.folder.join(format!("{question}+{}.{ANSWER}", self.id))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        drop(fs::remove_file(self.folder.join(format!("{}.{SERVER}", self.id))));
    }
}

/// Returns the servers that run on the state directory.
pub(super) fn running(home: &Path) -> Vec<ServerSeen> {
    let folder = home.join(FOLDER);
    living(&folder).into_iter().map(|(_, seen)| seen).collect()
}

/// Asks something of every server that runs, and waits for their answers.
pub(super) fn ask(home: &Path, ask: Ask) -> io::Result<Vec<Answered>> {
    let folder = home.join(FOLDER);
    // Where no server ever was there is nobody to ask.
    if !folder.exists() {
        return Ok(Vec::new());
    }
    make_private(&folder)?;
    let question = Question::leave(&folder, ask)?;
    let until = Instant::now() + fault::within(ANSWER_WAIT);
    let mut waiting = living(&folder);
    let mut answered = Vec::new();
    loop {
        waiting.retain(|(id, server)| {
            let answer = question.answer_of(id);
            // Looked at first: an answer that it left before it ended counts.
            let lives = is_held(&folder.join(format!("{id}.{SERVER}")));
            let said = match read(&answer) {
                Some(answer) => Ok(answer),
                None if lives && Instant::now() < until => return true,
                None if lives => Err(format!("it did not answer within {} seconds", ANSWER_WAIT.as_secs())),
                None => Err("it ended before it answered".to_owned()),
            };
            answered.push(Answered { pid: server.pid, answer: said });
            false
        });
        if waiting.is_empty() {
            answered.sort_by_key(|answered| answered.pid);
            return Ok(answered);
        }
        thread::sleep(ANSWER_POLL);
    }
}

/// A question, removed with its answers when it is dropped.
struct Question {
    folder: PathBuf,
    id: String,
    /// Locked as long as somebody waits.
    _file: File,
}

impl Question {
    fn leave(folder: &Path, ask: Ask) -> io::Result<Self> {
        let _lock = locked(folder)?;
        sweep(folder);
        let id = RequestId::fresh().to_string();
        fault::reach("servers.ask")?;
        let file = make_locked(&folder.join(format!("{id}.{}", ask.ending())))?;
        Ok(Self { folder: folder.to_owned(), id, _file: file })
    }

    fn answer_of(&self, server: &str) -> PathBuf {
        self.folder.join(format!("{}+{server}.{ANSWER}", self.id))
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        // Answers first: whoever dies in between leaves what the next one removes.
        for (stem, ending) in names(&self.folder) {
            if stem == self.id || stem.strip_prefix(&self.id).is_some_and(|rest| rest.starts_with('+')) {
                drop(fs::remove_file(self.folder.join(format!("{stem}.{ending}"))));
            }
        }
    }
}

/// Returns the servers that hold their files, with their ids.
fn living(folder: &Path) -> Vec<(String, ServerSeen)> {
    let servers = names(folder).into_iter().filter(|(_, ending)| ending == SERVER);
    let mut found: Vec<_> = servers
        .filter_map(|(id, ending)| {
            let path = folder.join(format!("{id}.{ending}"));
            let standing = is_held(&path).then(|| read(&path)).flatten()?;
            let pid = standing.get("pid").and_then(Value::as_u64).unwrap_or_default();
            Some((id, ServerSeen { pid, standing }))
        })
        .collect();
    found.sort_by_key(|(_, seen)| seen.pid);
    found
}

/// Removes what those left who died. The folder's lock is held.
fn sweep(folder: &Path) {
    let names = names(folder);
    let is_question = |ending: &str| Ask::ALL.iter().any(|ask| ask.ending() == ending);
    for (stem, ending) in &names {
        let path = folder.join(format!("{stem}.{ending}"));
        let left = match stem.split_once('+') {
            // An answer, or half of one, to a question that nobody asks any more.
            Some((question, _)) => {
                let asks = Ask::ALL.map(|ask| folder.join(format!("{question}.{}", ask.ending())));
                !asks.iter().any(|ask| is_held(ask))
            }
            None => (ending == SERVER || is_question(ending)) && !is_held(&path),
        };
        if left {
            drop(fs::remove_file(path));
        }
    }
}

/// Returns the files of the folder, each by what stands before its last dot and after it.
fn names(folder: &Path) -> Vec<(String, String)> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter_map(|name| name.rsplit_once('.').map(|(stem, end)| (stem.to_owned(), end.to_owned()))).collect()
}

/// Returns whether somebody who lives holds a file.
fn is_held(path: &Path) -> bool {
    let Ok(file) = options().read(true).open(path) else { return false };
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    // Whatever lies there in place of a file is neither followed nor waited for.
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    options.mode(0o600).custom_flags(flags.bits().cast_signed());
    options
}

/// Makes a file and locks it. The folder's lock is held.
fn make_locked(path: &Path) -> io::Result<File> {
    let file = options().create_new(true).read(true).write(true).open(path)?;
    // Whoever looks whether it is held holds it for a moment.
    file.lock()?;
    Ok(file)
}

/// Makes the folder, and checks that nobody else has a part in it.
fn make_private(folder: &Path) -> io::Result<()> {
    fault::reach("servers.folder")?;
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let found = folder.symlink_metadata()?;
    if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() || found.mode() & 0o077 != 0 {
        let text = format!("`{}` is not a directory that only this user may enter (mode 0700)", folder.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    Ok(())
}

fn locked(folder: &Path) -> io::Result<File> {
    let dir = File::open(folder)?;
    dir.lock()?;
    Ok(dir)
}

fn read(path: &Path) -> Option<Value> {
    let mut text = String::new();
    options().read(true).open(path).ok()?.take(ANSWER_BYTES_MAX).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

fn with_pid(of: &Value) -> Value {
    let mut of = of.clone();
    if let Some(object) = of.as_object_mut() {
        object.insert("pid".to_owned(), json!(std::process::id()));
    }
    of
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    fn files(home: &Path) -> usize {
        fs::read_dir(home.join(FOLDER)).unwrap().count()
    }

    #[test]
    fn every_server_that_runs_answers_and_nothing_is_left() {
        let home = home();
        let path = home.path().to_owned();
        assert!(ask(&path, Ask::Reload).unwrap().is_empty(), "nobody was ever there");
        let servers = [1, 2].map(|n| Registration::make(&path, &json!({"n": n})).unwrap());
        assert_eq!(running(&path).len(), 2);
        let asking = thread::spawn(move || ask(&path, Ask::Reload).unwrap());
        for (n, server) in servers.iter().enumerate() {
            let asked = loop {
                if let [asked] = &server.asked()[..] {
                    break asked.clone();
                }
                thread::yield_now();
            };
            assert_eq!(asked.ask, Ask::Reload);
            server.answer(&asked, &json!({"n": n})).unwrap();
        }
        let answered = asking.join().unwrap();
        let said: Vec<_> = answered.iter().map(|one| one.answer.as_ref().unwrap()["n"].as_u64().unwrap()).collect();
        assert_eq!(said.iter().sum::<u64>(), 1);
        assert!(servers[0].asked().is_empty());
        assert_eq!(files(home.path()), 2);
        drop(servers);
        assert_eq!((files(home.path()), running(home.path()).len()), (0, 0));
    }

    #[test]
    fn a_server_that_ends_is_not_waited_for() {
        let home = home();
        let server = Registration::make(home.path(), &json!({})).unwrap();
        let path = home.path().to_owned();
        let asking = thread::spawn(move || ask(&path, Ask::Tell).unwrap());
        while server.asked().is_empty() {
            thread::yield_now();
        }
        drop(server);
        let answered = asking.join().unwrap();
        assert_eq!(answered[0].answer.clone().unwrap_err(), "it ended before it answered");
        assert_eq!(files(home.path()), 0);
    }

    #[test]
    fn what_the_dead_left_is_nobodys_and_is_removed() {
        let home = home();
        let folder = home.path().join(FOLDER);
        make_private(&folder).unwrap();
        for name in ["a.server", "b.reload", "b+a.answer", "b+a.new"] {
            fs::write(folder.join(name), "{\"pid\":1}").unwrap();
        }
        assert!(running(home.path()).is_empty());
        let server = Registration::make(home.path(), &json!({})).unwrap();
        assert_eq!((files(home.path()), server.asked().len()), (1, 0));
        fs::write(folder.join("c.tell"), "").unwrap();
        assert!(server.asked().is_empty(), "nobody asks");
        assert_eq!(files(home.path()), 1);
    }

    #[test]
    fn a_folder_that_lets_others_in_is_not_used() {
        use std::os::unix::fs::PermissionsExt as _;
        let home = home();
        make_private(&home.path().join(FOLDER)).unwrap();
        fs::set_permissions(home.path().join(FOLDER), fs::Permissions::from_mode(0o755)).unwrap();
        assert!(Registration::make(home.path(), &json!({})).is_err());
        assert!(ask(home.path(), Ask::Reload).is_err());
    }

    #[test]
    fn a_file_that_was_removed_is_known_to_be() {
        let home = home();
        let server = Registration::make(home.path(), &json!({})).unwrap();
        assert!(server.is_found());
        fs::remove_file(home.path().join(FOLDER).join(format!("{}.{SERVER}", server.id))).unwrap();
        assert!(!server.is_found());
    }

    #[test]
    fn more_faults_than_fit_leave_the_rest_readable() {
        let home = home();
        let faults: Vec<String> = (0..100).map(|n| format!("{n}{}", "x".repeat(100))).collect();
        let standing = json!({"generation": 3, "refused": {"at": "now", "faults": faults}});
        let server = Registration::make(home.path(), &standing).unwrap();
        assert_eq!(running(home.path())[0].standing["generation"], 3);
        server.tell(&json!({"generation": 4})).unwrap();
        assert_eq!(running(home.path())[0].standing["generation"], 4);
    }

    #[test]
    fn what_is_too_long_is_no_answer() {
        let home = home();
        let path = home.path().join("answer");
        let max = usize::try_from(ANSWER_BYTES_MAX).unwrap();
        for (bytes, fits) in [(max - 1, true), (max, true), (max + 1, false)] {
            fs::write(&path, format!("\"{}\"", "x".repeat(bytes - 2))).unwrap();
            assert_eq!(read(&path).is_some(), fits, "{bytes} bytes");
        }
    }
}
