//! Starts a command, watches it, and takes what it writes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::order::{self, Ending, Input, Order, Report};
use super::output::{Captured, Collector, Wanted};
use super::redact::Secrets;
use super::supervisor::SWEEP_MAX;
use super::{CommandError, Commands, Repo, confine, reach, repo};
use crate::model::{Console, OutputStream, fault};

/// The most time that a command may be given.
pub const TIMEOUT_SECONDS_MAX: u64 = 600;
/// The time it has unless asked otherwise.
pub const TIMEOUT_SECONDS_DEFAULT: u64 = 120;
/// The longest text that a command is given to read, in bytes.
pub const STDIN_BYTES_MAX: usize = 64 << 10;
/// How long a command may take to end once it was asked to.
const GRACE: Duration = Duration::from_secs(2);
/// How long the supervisor may take beyond that, and beyond its sweep.
const REPORT_MAX: Duration = Duration::from_secs(3);
/// How long is waited for the end of output once everything is gone.
const OUTPUT_END_MAX: Duration = Duration::from_secs(1);
/// How long a command waits for its turn.
const TURN_MAX: Duration = Duration::from_secs(20);
/// What is read at once.
const READ_BYTES: usize = 16 << 10;

/// A command to be run.
pub struct Run<'a> {
    /// Where.
    pub repo: &'a Repo,
    /// Checked by [`super::argv::check`].
    pub argv: &'a [String],
    /// What it reads.
    pub stdin: Stdin,
    /// Variables beside those of the surroundings; they may hold secrets.
    pub variables: Vec<(String, String)>,
    /// What is taken out of all output, beside what every command's is cleared of.
    pub secrets: Vec<String>,
    /// How long it may take.
    pub timeout: Duration,
    /// How standard output is wanted, and the error output.
    pub wanted: [Wanted; 2],
    /// Is shown the output as it comes.
    pub console: Option<Arc<dyn Console>>,
    /// Ends it.
    pub cancel: CancellationToken,
}

/// What a command reads.
pub enum Stdin {
    /// Nothing.
    Nothing,
    /// A text.
    Text(String),
    /// What the console has to be read.
    Console,
}

/// How a command went.
#[derive(Debug)]
pub struct Ran {
    /// How it ended.
    pub ended: Ended,
    /// Whether it was ended, and why.
    pub stopped: Option<Stopped>,
    /// Standard output.
    pub stdout: Captured,
    /// The error output.
    pub stderr: Captured,
    /// How long it took.
    pub elapsed: Duration,
    /// How many processes it left behind, which were ended.
    pub left_behind: u32,
    /// Whether it was confined.
    pub confined: bool,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With an exit code.
    Exited(i32),
    /// By a signal.
    Signalled(i32),
}

/// Why a command was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Its time was over.
    TimedOut,
    /// Its caller cancelled.
    Cancelled,
}

/// What a supervisor said, and what came of the command's streams.
struct Done {
    watched: io::Result<(Report, Option<Stopped>)>,
    stdout: Captured,
    stderr: Captured,
}

impl Commands {
    /// Runs a command to its end.
    ///
    /// If this is dropped, the command and all that came of it are ended all the same.
    ///
    /// # Errors
    /// Fails if the command could not be started.
    pub async fn run(&self, mut run: Run<'_>) -> Result<Ran, CommandError> {
        let confined = self.confined()?;
        let turn = tokio::time::timeout(fault::within(TURN_MAX), self.turns.acquire());
        let _turn = match run.cancel.run_until_cancelled(turn).await {
            Some(Ok(Ok(turn))) => turn,
            Some(Ok(Err(_)) | Err(_)) => return Err(CommandError::Busy),
            None => return Err(CommandError::Cancelled),
        };
        let temporary =
            Temporary::make(&self.settings.hidden).map_err(|error| system("its temporary directory", &error))?;
        let rules = confined.then(|| self.reach.rules(run.repo.path(), &self.settings.hidden));
        let passed = match (&run.stdin, &run.console) {
            (Stdin::Console, Some(console)) => console.input(),
            (Stdin::Console | Stdin::Nothing | Stdin::Text(_), _) => None,
        };
        let variables = std::mem::take(&mut run.variables);
        let mut order = Order {
            argv: run.argv.to_vec(),
            temporary: temporary.path.clone(),
            environment: self.environment(&temporary.path, variables),
            stdin: match (std::mem::replace(&mut run.stdin, Stdin::Nothing), &passed) {
                (Stdin::Text(text), _) => Input::Text(text),
                (Stdin::Console, Some(_)) => Input::Passed,
                (Stdin::Console | Stdin::Nothing, _) => Input::Nothing,
            },
            rules,
            grace_ms: u64::try_from(fault::within(GRACE).as_millis()).unwrap_or(u64::MAX),
            in_namespace: self.in_namespace.load(Ordering::Relaxed),
        };
        let secrets = Secrets::new(run.secrets.iter().chain(&self.settings.secrets).map(String::as_str));
        let open = [run.repo.dir(), temporary.dir.as_fd()];
        let descriptors: Vec<_> = open.into_iter().chain(passed.as_ref().map(AsFd::as_fd)).collect();
        let started = Instant::now();
        let mut done = self.once(&order, &descriptors, &secrets, &run).await?;
        if order.in_namespace && matches!(&done.watched, Ok((report, _)) if report.ending == Ending::NoNamespace) {
            self.in_namespace.store(false, Ordering::Relaxed);
            order.in_namespace = false;
            done = self.once(&order, &descriptors, &secrets, &run).await?;
        }
        let Done { watched, stdout, stderr } = done;
        let elapsed = started.elapsed();
        drop(temporary);
        let (report, stopped) = watched.map_err(|error| system("its end", &error))?;
        let program = || super::argv::shown(run.argv.first().map(String::as_str).unwrap_or_default());
        if report.remaining > 0 {
            return Err(CommandError::Remains { program: program(), count: report.remaining });
        }
        let ended = match report.ending {
            Ending::Exited(code) => Ended::Exited(code),
            Ending::Signalled(signal) => Ended::Signalled(signal),
            Ending::NotFound => return Err(CommandError::NotFound { program: program() }),
            Ending::NotExecutable => return Err(CommandError::NotExecutable { program: program() }),
            Ending::Unconfined(why) => return Err(CommandError::Unconfined { why }),
            Ending::TooMany => return Err(CommandError::TooMany { program: program() }),
            Ending::NoNamespace => return Err(CommandError::System { why: "no namespace".to_owned() }),
            Ending::Failed(why) => return Err(CommandError::System { why }),
        };
        Ok(Ran { ended, stopped, stdout, stderr, elapsed, left_behind: report.left_behind, confined })
    }

    /// Has one supervisor look after the command.
    async fn once(
        &self,
        order: &Order,
        descriptors: &[BorrowedFd<'_>],
        secrets: &Secrets,
        run: &Run<'_>,
    ) -> Result<Done, CommandError> {
        let (mut child, control) = self.supervise(order, descriptors).await?;
        let [wanted, wanted_error] = run.wanted;
        let console = |stream| run.console.clone().map(|console| (console, stream));
        let out = child
            .stdout
            .take()
            .map(|pipe| collect(pipe, Collector::new(wanted, secrets.clone()), console(OutputStream::Out)));
        let err = child
            .stderr
            .take()
            .map(|pipe| collect(pipe, Collector::new(wanted_error, secrets.clone()), console(OutputStream::Error)));
        let watched = watch(control, run.timeout, &run.cancel).await;
        // Nobody talks to it any more, so it ends whatever it looks after, and then itself.
        if tokio::time::timeout(SWEEP_MAX + REPORT_MAX, child.wait()).await.is_err() {
            child.start_kill().ok();
            child.wait().await.ok();
        }
        Ok(Done { watched, stdout: gathered(out).await, stderr: gathered(err).await })
    }

    /// Says whether commands are confined here.
    ///
    /// # Errors
    /// `unsafe_command` if they would not be, and the operator has not allowed it.
    pub fn confined(&self) -> Result<bool, CommandError> {
        match (confine::available(), self.settings.confinement) {
            (Ok(()), _) => Ok(true),
            (Err(_), super::Confinement::WhenAvailable) => Ok(false),
            (Err(why), super::Confinement::Required) => Err(CommandError::Unconfined { why }),
        }
    }

    /// Starts the supervisor and tells it what to run.
    async fn supervise(
        &self,
        order: &Order,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(Child, UnixStream), CommandError> {
        let begun = async {
            fault::pass("command.spawn").await?;
            let (own, theirs) = StdStream::pair()?;
            let mut command = Command::new(&self.settings.supervisor);
            command.arg(super::SUPERVISE).env_clear().current_dir("/");
            command.stdin(OwnedFd::from(theirs)).stdout(Stdio::piped()).stderr(Stdio::piped());
            let child = command.spawn()?;
            // Only now, so that nobody else holds the other end.
            drop(command);
            let message = order::encode(order)?;
            let sent = order::send_first(&own, &message, descriptors)?;
            own.set_nonblocking(true)?;
            let mut control = UnixStream::from_std(own)?;
            control.write_all(message.get(sent..).unwrap_or_default()).await?;
            Ok::<_, io::Error>((child, control))
        };
        begun.await.map_err(|error| system("its supervisor", &error))
    }

    fn environment(&self, temporary: &Path, variables: Vec<(String, String)>) -> Vec<(String, String)> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let mut all = self.told.variables.clone();
        let path: Vec<String> = self.told.path.iter().map(|dir| text(dir)).collect();
        all.insert("PATH".to_owned(), path.join(":"));
        all.extend(self.told.home.as_deref().map(|home| ("HOME".to_owned(), text(home))));
        all.insert("TMPDIR".to_owned(), text(temporary));
        // The user's own may hold credentials and is out of reach, which git takes for a failure.
        all.insert("GIT_CONFIG_GLOBAL".to_owned(), "/dev/null".to_owned());
        all.extend(variables);
        all.into_iter().collect()
    }
}

fn system(what: &str, error: &io::Error) -> CommandError {
    CommandError::System { why: format!("{what}: {error}") }
}

/// Waits for the report; asks for the end when time is over or the caller cancels.
async fn watch(
    mut control: UnixStream,
    timeout: Duration,
    cancel: &CancellationToken,
) -> io::Result<(Report, Option<Stopped>)> {
    let (mut from, mut to) = control.split();
    let report = async {
        fault::pass("command.report").await?;
        let mut head = [0; 4];
        from.read_exact(&mut head).await?;
        let mut body = vec![0; order::length(head)?];
        from.read_exact(&mut body).await?;
        order::decode(&body)
    };
    tokio::pin!(report);
    let stopped = tokio::select! {
        report = &mut report => return report.map(|report| (report, None)),
        () = tokio::time::sleep(timeout) => Stopped::TimedOut,
        () = cancel.cancelled() => Stopped::Cancelled,
    };
    to.write_all(&[order::STOP]).await?;
    let report = tokio::time::timeout(fault::within(GRACE + SWEEP_MAX + REPORT_MAX), report).await;
    report.map_err(|_| io::ErrorKind::TimedOut.into()).flatten().map(|report| (report, Some(stopped)))
}

/// A stream that is being read.
struct Stream {
    reading: JoinHandle<()>,
    collector: Arc<Mutex<Collector>>,
}

/// Reads a stream to its end.
fn collect(
    mut pipe: impl AsyncRead + Unpin + Send + 'static,
    collector: Collector,
    console: Option<(Arc<dyn Console>, OutputStream)>,
) -> Stream {
    let collector = Arc::new(Mutex::new(collector));
    let kept = Arc::clone(&collector);
    let show = move |bytes: &[u8]| {
        if let Some((console, stream)) = &console {
            console.wrote(*stream, bytes);
        }
    };
    let reading = tokio::spawn(async move {
        let mut buffer = vec![0; READ_BYTES];
        while let Ok(count @ 1..) = pipe.read(&mut buffer).await {
            let clean = locked(&kept).take(buffer.get(..count).unwrap_or_default());
            show(&clean);
        }
        let rest = locked(&kept).held_back();
        show(&rest);
    });
    Stream { reading, collector }
}

fn locked(collector: &Mutex<Collector>) -> MutexGuard<'_, Collector> {
    collector.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns what was kept of a stream, whose end does not come if somebody else still holds it.
async fn gathered(stream: Option<Stream>) -> Captured {
    let Some(Stream { mut reading, collector }) = stream else { return Captured::default() };
    if tokio::time::timeout(OUTPUT_END_MAX, &mut reading).await.is_err() {
        reading.abort();
    }
    locked(&collector).finish()
}

/// A directory of the command's own, gone when dropped.
struct Temporary {
    path: PathBuf,
    dir: OwnedFd,
}

impl Temporary {
    /// Makes it where nothing of this program's own is.
    fn make(hidden: &[PathBuf]) -> io::Result<Self> {
        fault::reach("command.temporary")?;
        let name = format!("pgsandbox-{}", uuid::Uuid::new_v4().simple());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = rustix::fs::open(std::env::temp_dir(), flags, Mode::empty())?;
        let path = repo::whereabouts(&parent)?;
        if hidden.iter().any(|hidden| path.starts_with(reach::real(hidden))) {
            return Err(io::Error::other("temporary files are among this program's own"));
        }
        rustix::fs::mkdirat(&parent, &name, Mode::RWXU)?;
        let dir = rustix::fs::openat(&parent, &name, flags | OFlags::NOFOLLOW, Mode::empty())?;
        Ok(Self { path: path.join(name), dir })
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // The supervisor has done it, if there was one.
        let removed = std::fs::remove_dir_all(&self.path);
        if let Some(error) = removed.err().filter(|error| error.kind() != io::ErrorKind::NotFound) {
            tracing::warn!(%error, "a command's temporary directory could not be removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::output::OUTPUT_CHARS_MAX;

    #[tokio::test]
    async fn output_that_does_not_end_with_the_command_is_given_up_and_what_came_is_kept() {
        let (mut held, pipe) = tokio::io::duplex(64);
        let wanted = Wanted {
            strip_ansi: false,
            chars_max: OUTPUT_CHARS_MAX,
            tail_lines: None,
            without_docker_lifecycle: false,
        };
        let stream = collect(pipe, Collector::new(wanted, Secrets::default()), None);
        held.write_all(b"so far").await.unwrap();
        while stream.collector.lock().unwrap().bytes() == 0 {
            tokio::task::yield_now().await;
        }
        let began = Instant::now();
        assert_eq!(gathered(Some(stream)).await.text, "so far");
        assert!(began.elapsed() >= OUTPUT_END_MAX);
        drop(held);
    }
}
