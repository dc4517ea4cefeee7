//! Stands between a program of Postgres' and a server: a socket here, a connection of ours there.
//!
//! So a program reaches the one server that was decided on, by the connection and the TLS that all sessions of ours have, and
//! by as many connections as are due, one after another. The login is ours as well: the program is told that it is
//! accepted, and never has a password. It cannot choose database, role or settings either, as its own first message is not
//! passed on. What the server answers is followed just far enough to know an error by its code: texts are not kept.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use postgres_protocol::message::frontend;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf};
use tokio::net::unix::OwnedWriteHalf;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};

use super::copied;
use super::guests::Guests;
use super::system;
use super::workdir::WorkDir;
use crate::engine::EngineError;
use crate::engine::postgres::Endpoint;
use crate::engine::postgres::net::{self, NetError, Stream};
use crate::engine::postgres::steps::Door;
use crate::engine::postgres::wire::{self, SessionTarget, WireError};
use crate::model::fault;

/// What is moved at once.
const CHUNK_BYTES: usize = 64 << 10;
/// The most of one message that is kept to be looked at: errors are shorter, rows are not looked at.
const KEPT_BYTES_MAX: usize = 16 << 10;
/// The beginning of the first message: its length, and what it asks for.
const HEAD_BYTES: usize = 8;
/// The longest first message of a program: Postgres' own bound is a sixth of it.
const FIRST_BYTES_MAX: u64 = 64 << 10;
/// What a program is told once we are logged in for it: that nothing is asked of it.
const ACCEPTED: [u8; 9] = [b'R', 0, 0, 0, 8, 0, 0, 0, 0];
/// What a request to stop a statement asks for, in place of a protocol version.
const CANCEL_REQUEST: [u8; 4] = [0x04, 0xd2, 0x16, 0x2e];
/// What a program says last: that it ends its session.
const TERMINATE: [u8; 5] = [b'X', 0, 0, 0, 4];
/// How long a server may take to end the session of a program that has ended.
const LEAVE_WAIT: Duration = Duration::from_millis(500);
/// How long telling a server to stop may take.
const CANCEL_WAIT: Duration = Duration::from_secs(5);
/// The longest path of a socket that the system takes, in bytes.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// An error that a server reported, without its text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reported {
    pub(super) sqlstate: String,
    pub(super) schema: Option<String>,
    pub(super) table: Option<String>,
    pub(super) column: Option<String>,
    pub(super) constraint: Option<String>,
    /// The table whose rows were being copied then, as SQL names it.
    pub(super) copied: Option<String>,
}

/// How a connection to a server ended that should not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// It could not be opened, or the server did not accept us.
    Login(WireError),
    /// It was silent before the session began.
    Silent(Duration),
    /// The server closed it, or it broke.
    Closed,
    /// Others could not be kept out.
    Unguarded(String),
}

/// What was seen so far.
#[derive(Debug, Default)]
struct Seen {
    error: Option<Reported>,
    lost: Option<Lost>,
    /// The table whose rows the program has asked for last.
    copied: Option<String>,
    /// The running session, for a request to stop it.
    key: Option<(i32, i32)>,
    /// What is shut behind each session before it may say anything.
    door: Option<Door>,
}

/// A socket in a private directory, and who listens there.
#[derive(Debug)]
pub(super) struct Relay {
    seen: Arc<Mutex<Seen>>,
    endpoint: Endpoint,
    task: JoinHandle<()>,
}

impl Relay {
    /// Listens on socket `number` in `work` for as many `connections`, each of which becomes a session of `target`.
    pub(super) fn listen(
        work: &WorkDir,
        number: u16,
        target: SessionTarget,
        connections: u32,
    ) -> Result<Self, EngineError> {
        let path = work.path().join(format!(".s.PGSQL.{number}"));
        let listener = bind(work, &path).map_err(system("make a socket"))?;
        let seen = Arc::new(Mutex::new(Seen::default()));
        let endpoint = target.endpoint.clone();
        let line = Arc::new(Line {
            seen: Arc::clone(&seen),
            target,
            uid: work.uid(),
            socket: number,
            guests: work.guests().clone(),
            left: AtomicU32::new(connections),
        });
        let task = tokio::spawn(async move {
            // They end with this task.
            let mut carried = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let line = Arc::clone(&line);
                carried.spawn(async move { line.admit(client).await });
            }
        });
        Ok(Self { seen, endpoint, task })
    }

    /// Has a door shut behind each session.
    pub(super) fn guard(&self, door: Door) {
        lock(&self.seen).door = Some(door);
    }

    /// Returns the first error that the server reported.
    pub(super) fn error(&self) -> Option<Reported> {
        lock(&self.seen).error.clone()
    }

    /// Returns how a connection was lost, if one was.
    pub(super) fn lost(&self) -> Option<Lost> {
        lock(&self.seen).lost.clone()
    }
}

impl Drop for Relay {
    /// Ends the session on the server as well: a statement does not end because nobody waits for it.
    fn drop(&mut self) {
        self.task.abort();
        let Some(key) = lock(&self.seen).key.take() else { return };
        let endpoint = self.endpoint.clone();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { stop(&endpoint, key).await });
        }
    }
}

/// Asks a server to stop what a session does.
async fn stop(endpoint: &Endpoint, (process, key): (i32, i32)) {
    let cancel = async {
        let mut stream = net::open(endpoint, CANCEL_WAIT).await?;
        let mut request = BytesMut::new();
        frontend::cancel_request(process, key, &mut request);
        let sent = async {
            stream.write_all(&request).await?;
            stream.flush().await
        };
        sent.await.map_err(|error| NetError::Unreachable(error.to_string()))
    };
    drop(tokio::time::timeout(fault::within(CANCEL_WAIT), cancel).await);
}

fn bind(work: &WorkDir, path: &PathBuf) -> io::Result<UnixListener> {
    fault::reach("socket.relay.bind")?;
    if path.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
        let text = format!("the path of the state directory is too long for a socket: `{}`", path.display());
        return Err(io::Error::other(text));
    }
    let listener = UnixListener::bind(path)?;
    work.own_socket(path)?;
    Ok(listener)
}

fn lock(seen: &Mutex<Seen>) -> std::sync::MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a connection needs to know.
struct Line {
    seen: Arc<Mutex<Seen>>,
    target: SessionTarget,
    uid: u32,
    socket: u16,
    guests: Guests,
    /// How many connections are still due.
    left: AtomicU32,
}

impl Line {
    /// Carries one of the connections that are due. A program that fails opens another to stop its statement, and waits
    /// until that is closed: closing it is all there is to do, as its session ends with it.
    async fn admit(&self, mut client: UnixStream) {
        if !self.is_due(&client) {
            return;
        }
        let mut head = [0; HEAD_BYTES];
        if client.read_exact(&mut head).await.is_err() {
            return;
        }
        let [length, asked] = [head.first_chunk(), head.last_chunk()].map(|four| four.copied().unwrap_or([0; 4]));
        let rest = u64::from(u32::from_be_bytes(length)).saturating_sub(HEAD_BYTES as u64);
        if rest > FIRST_BYTES_MAX
            || tokio::io::copy(&mut (&mut client).take(rest), &mut tokio::io::sink()).await.is_err()
        {
            return;
        }
        let one_less = |left: u32| left.checked_sub(1);
        if asked != CANCEL_REQUEST && self.left.fetch_update(Relaxed, Relaxed, one_less).is_ok() {
            self.carry(client).await;
        }
    }

    /// Returns whether a program of ours is at the other end: started for this socket, and running as the programs do.
    /// What runs as the same user is not answered for that. Says so in the log.
    fn is_due(&self, client: &UnixStream) -> bool {
        let peer = client.peer_cred().ok();
        let process = peer.as_ref().and_then(|peer| peer.pid()).and_then(|pid| u32::try_from(pid).ok());
        let user = peer.map(|peer| peer.uid());
        let due = user == Some(self.uid) && process.is_some_and(|process| self.guests.expect(self.socket, process));
        if !due {
            tracing::warn!(process, user, "a process that was not started for it asked for a copy's connection");
        }
        due
    }

    /// Logs in, and carries what is said until one side ends it.
    async fn carry(&self, client: UnixStream) {
        let passed = fault::pass("socket.relay.connect").await;
        let mut target = self.target.clone();
        if let Some(door) = &lock(&self.seen).door {
            target.user = door.owner();
        }
        let opened = match passed {
            Ok(()) => wire::logged_in(&target).await,
            Err(injected) => Err(WireError::Lost(io::Error::from(injected).to_string())),
        };
        let (stream, greeting) = match opened {
            Ok(opened) => opened,
            Err(error) => return self.lose(Lost::Login(error)),
        };
        let (from_client, mut to_client) = client.into_split();
        let (from_server, to_server) = tokio::io::split(stream);
        if to_client.write_all(&ACCEPTED).await.is_err() {
            return;
        }
        let ready = Notify::new();
        let key = Mutex::new(None);
        let ended = AtomicBool::new(false);
        let timeout = self.target.connect_timeout;
        let silence = async {
            if tokio::time::timeout(fault::within(timeout), ready.notified()).await.is_ok() {
                std::future::pending::<()>().await;
            }
        };
        let mut answers = std::pin::pin!(self.answer(&greeting, from_server, to_client, &ready, &key, &ended));
        let gone = tokio::select! {
            () = ask(from_client, to_server, &ended, |asked| self.note_copied(asked)) => true,
            lost = &mut answers => {
                // The end of a session that the program ended may be seen before the program's own.
                if let Some(lost) = lost.filter(|lost| *lost != Lost::Closed || !ended.load(Relaxed)) {
                    self.lose(lost);
                }
                false
            }
            () = silence => {
                self.lose(Lost::Silent(timeout));
                false
            }
        };
        let own = *key.lock().unwrap_or_else(PoisonError::into_inner);
        // A program that has ended is answered by the end of its session, if the server is not in the midst of a statement.
        if gone
            && tokio::time::timeout(fault::within(LEAVE_WAIT), answers).await.is_err()
            && let Some(own) = own
        {
            stop(&self.target.endpoint, own).await;
        }
        let mut seen = lock(&self.seen);
        if seen.key == own {
            seen.key = None;
        }
    }

    fn note_copied(&self, asked: &[u8]) {
        if asked.first() == Some(&b'Q') {
            lock(&self.seen).copied = copied::table(asked);
        }
    }

    fn lose(&self, lost: Lost) {
        lock(&self.seen).lost.get_or_insert(lost);
    }

    /// Carries the server's answers, `greeting` first. Returns how the connection was lost, where the server ended it.
    async fn answer(
        &self,
        greeting: &[u8],
        mut server: ReadHalf<Stream>,
        mut client: OwnedWriteHalf,
        ready: &Notify,
        key: &Mutex<Option<(i32, i32)>>,
        ended: &AtomicBool,
    ) -> Option<Lost> {
        let mut messages = Messages::default();
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut news = greeting;
        let mut guarded = false;
        loop {
            let mut began = false;
            messages.follow(news, |tag, body| match tag {
                b'K' => {
                    *key.lock().unwrap_or_else(PoisonError::into_inner) = key_of(body);
                    lock(&self.seen).key = key_of(body);
                }
                b'Z' => {
                    began = true;
                    ready.notify_one();
                }
                // A session that its program has ended may be ended once more, and that is no error of the copy.
                b'E' if !ended.load(Relaxed) => {
                    let mut seen = lock(&self.seen);
                    let copied = seen.copied.clone();
                    seen.error.get_or_insert_with(|| Reported { copied, ..reported(body) });
                }
                _ => {}
            });
            if began && !guarded {
                guarded = true;
                let door = lock(&self.seen).door.clone();
                if let Some(door) = door
                    && let Err(error) = door.shut().await
                {
                    return Some(Lost::Unguarded(error.to_string()));
                }
            }
            if client.write_all(news).await.is_err() {
                return None;
            }
            news = match server.read(&mut chunk).await {
                Ok(0) | Err(_) => return Some(Lost::Closed),
                Ok(read) => chunk.get(..read).unwrap_or_default(),
            };
        }
    }
}

/// Carries what the program asks, until it ends. Notes in `ended` whether it has ended its session.
async fn ask(
    mut client: impl AsyncRead + Unpin,
    mut server: impl AsyncWrite + Unpin,
    ended: &AtomicBool,
    heard: impl Fn(&[u8]),
) {
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut last = [0; TERMINATE.len()];
    loop {
        let news = match client.read(&mut chunk).await {
            Ok(0) | Err(_) => break,
            Ok(read) => chunk.get(..read).unwrap_or_default(),
        };
        last = last_of(last, news);
        // Before it is sent, as the answer may be there at once.
        ended.store(last == TERMINATE, Relaxed);
        heard(news);
        let sent = async {
            server.write_all(news).await?;
            server.flush().await
        };
        if sent.await.is_err() {
            // What the server has to say about it is read on the other side.
            std::future::pending::<()>().await;
        }
    }
    server.shutdown().await.unwrap_or_default();
}

/// Returns the last bytes of what was sent, of which `before` were the last before `news`.
fn last_of<const N: usize>(before: [u8; N], news: &[u8]) -> [u8; N] {
    let all = before.into_iter().chain(news.get(news.len().saturating_sub(N)..).unwrap_or_default().iter().copied());
    let mut last = [0; N];
    for byte in all {
        last.rotate_left(1);
        if let Some(end) = last.last_mut() {
            *end = byte;
        }
    }
    last
}

/// Finds messages in what a server sends: a kind, a length, and a body.
#[derive(Debug, Default)]
struct Messages {
    head: Vec<u8>,
    left: usize,
    body: Vec<u8>,
}

impl Messages {
    fn follow(&mut self, mut bytes: &[u8], mut on: impl FnMut(u8, &[u8])) {
        const TAG_AND_LENGTH: usize = 5;
        while !bytes.is_empty() {
            if self.left == 0 && self.head.len() < TAG_AND_LENGTH {
                let (taken, rest) = bytes.split_at((TAG_AND_LENGTH - self.head.len()).min(bytes.len()));
                self.head.extend_from_slice(taken);
                bytes = rest;
                let Some(length) = self.head.get(1..TAG_AND_LENGTH).and_then(|b| b.first_chunk()) else { continue };
                self.left = (u32::from_be_bytes(*length) as usize).saturating_sub(4);
            } else {
                let (taken, rest) = bytes.split_at(self.left.min(bytes.len()));
                if self.is_looked_at() {
                    let room = KEPT_BYTES_MAX.saturating_sub(self.body.len()).min(taken.len());
                    self.body.extend_from_slice(taken.get(..room).unwrap_or_default());
                }
                self.left -= taken.len();
                bytes = rest;
            }
            if self.left == 0 {
                if let (true, Some(tag)) = (self.is_looked_at(), self.head.first()) {
                    on(*tag, &self.body);
                }
                self.head.clear();
                self.body.clear();
            }
        }
    }

    fn is_looked_at(&self) -> bool {
        self.head.first().is_some_and(|tag| matches!(tag, b'K' | b'Z' | b'E'))
    }
}

fn key_of(body: &[u8]) -> Option<(i32, i32)> {
    if body.len() != 8 {
        return None;
    }
    Some((i32::from_be_bytes(*body.first_chunk()?), i32::from_be_bytes(*body.last_chunk()?)))
}

/// Reads the fields of an error that are no text of the server's.
fn reported(body: &[u8]) -> Reported {
    let mut reported = Reported::default();
    for field in body.split(|byte| *byte == 0) {
        let Some((kind, value)) = field.split_first() else { continue };
        let text = || {
            let text = String::from_utf8_lossy(value);
            text.chars().take(63).flat_map(char::escape_default).collect::<String>()
        };
        match kind {
            b'C' if value.len() == 5 && value.iter().all(u8::is_ascii_alphanumeric) => reported.sqlstate = text(),
            b's' => reported.schema = Some(text()),
            b't' => reported.table = Some(text()),
            b'c' => reported.column = Some(text()),
            b'n' => reported.constraint = Some(text()),
            _ => {}
        }
    }
    reported
}

/// Returns the directory in which a program looks for the sockets.
pub(super) fn host(work: &WorkDir) -> PathBuf {
    work.path().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(tag: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
        [&[tag], length.as_slice(), body].concat()
    }

    #[test]
    fn errors_are_found_however_the_bytes_are_cut() {
        let error = b"SERROR\0C42501\0Mpermission denied for 'hunter2'\0ttab\nle\0\0";
        let stream: Vec<u8> = [
            message(b'R', &0_u32.to_be_bytes()),
            message(b'K', &[0, 0, 0, 7, 0, 0, 0, 9]),
            message(b'Z', b"I"),
            message(b'd', &[b'E'; 100_000]),
            message(b'2', b""),
            message(b'E', error),
        ]
        .concat();
        for size in [1, 2, 5, 7, 1000, stream.len()] {
            let mut messages = Messages::default();
            let mut found = Vec::new();
            for chunk in stream.chunks(size) {
                messages.follow(chunk, |tag, body| found.push((tag, body.to_vec())));
            }
            assert_eq!(found.iter().map(|(tag, _)| *tag).collect::<Vec<_>>(), b"KZE", "{size}");
            assert_eq!(key_of(&found[0].1), Some((7, 9)));
            let reported = reported(&found[2].1);
            assert_eq!((reported.sqlstate.as_str(), reported.table.as_deref()), ("42501", Some("tab\\nle")));
            assert!(!format!("{reported:?}").contains("hunter2"));
        }
    }

    #[tokio::test]
    async fn a_socket_whose_path_is_too_long_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let target = nowhere();
        let room = SOCKET_PATH_BYTES_MAX - base.path().as_os_str().len() - "/d/copy-0123456789ab/.s.PGSQL.1".len();
        for (length, fits) in [(room, true), (room + 1, false)] {
            let dir = base.path().join("d".repeat(1 + length));
            let work = WorkDir::make(&dir, None).unwrap();
            let listening = Relay::listen(&work, 1, target.clone(), 1);
            assert_eq!(listening.is_ok(), fits, "{length}");
        }
    }

    fn nowhere() -> SessionTarget {
        let url = "postgresql://u@127.0.0.1:1/d?sslmode=disable";
        let url =
            crate::engine::postgres::PostgresUrl::parse(url, crate::engine::postgres::UrlOrigin::Operator).unwrap();
        SessionTarget {
            endpoint: url.endpoint,
            database: url.database,
            user: url.credentials.user,
            password: crate::model::Secret::new(""),
            application_name: String::new(),
            options: Vec::new(),
            auth: wire::Auth::AsServerAsks,
            connect_timeout: Duration::from_secs(1),
        }
    }

    #[tokio::test]
    async fn a_process_of_the_same_user_that_was_not_started_for_the_socket_is_not_answered() {
        let base = tempfile::tempdir().unwrap();
        let work = WorkDir::make(base.path(), None).unwrap();
        let relay = Relay::listen(&work, 1, nowhere(), 1).unwrap();
        for socket in 1..=2 {
            // The other program runs, and was started for the other socket.
            let mut command = tokio::process::Command::new("/bin/sleep");
            let (mut child, _expected) =
                work.guests().start(socket + 1, command.arg("600").kill_on_drop(true)).unwrap();
            let mut stranger = UnixStream::connect(work.path().join(".s.PGSQL.1")).await.unwrap();
            let asked = stranger.write_all(&[0, 0, 0, 8, 0, 3, 0, 0]).await;
            let mut answer = Vec::new();
            let read = stranger.read_to_end(&mut answer).await;
            assert!(answer.is_empty() && (asked.is_err() || read.is_err() || read.unwrap() == 0), "{answer:?}");
            child.kill().await.unwrap();
        }
        // Nobody was logged in for it, which would have failed here.
        assert_eq!(relay.lost(), None);
    }

    #[tokio::test]
    async fn a_program_has_ended_its_session_once_the_last_it_said_is_so() {
        let query = message(b'Q', b"select 1\0");
        let session = [query.clone(), TERMINATE.to_vec()].concat();
        for size in [1, 3, session.len() - 4, session.len()] {
            // Of what comes at once nothing is joined: each piece is read on its own.
            let pieces = session.chunks(size);
            let (mut program, here) = tokio::io::duplex(size);
            let ended = AtomicBool::new(false);
            let mut carried = std::pin::pin!(ask(here, tokio::io::sink(), &ended, |_| ()));
            let count = pieces.len();
            for (index, piece) in pieces.enumerate() {
                tokio::select! {
                    biased;
                    sent = program.write_all(piece) => sent.unwrap(),
                    () = &mut carried => panic!("it has not ended"),
                }
                // It takes what there is, and waits for more.
                let waits = std::future::poll_fn(|cx| std::task::Poll::Ready(carried.as_mut().poll(cx).is_pending()));
                assert!(waits.await);
                assert_eq!(ended.load(Relaxed), index + 1 == count, "{size}: {index}");
            }
            drop(program);
            carried.await;
            assert!(ended.load(Relaxed));
        }
        // What is said afterwards counts, should it be something else.
        let ended = AtomicBool::new(false);
        ask([session, query].concat().as_slice(), tokio::io::sink(), &ended, |_| ()).await;
        assert!(!ended.load(Relaxed));
    }

    #[test]
    fn of_a_message_no_more_is_kept_than_is_looked_at() {
        let mut messages = Messages::default();
        let mut kept = 0;
        for bytes in [KEPT_BYTES_MAX - 1, KEPT_BYTES_MAX, KEPT_BYTES_MAX + 1] {
            messages.follow(&message(b'E', &vec![b'x'; bytes]), |_, body| kept = body.len());
            assert_eq!(kept, bytes.min(KEPT_BYTES_MAX));
        }
    }
}
