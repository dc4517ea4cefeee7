//! Where a cluster lies, who serves it, and how that is made and stopped; how it is started, `start.rs` has.
//!
//! Whoever calls holds the cluster's lock. What lies in the folders of the cluster's user is only ever read
//! for a number or a process id, never trusted further.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{Output, Stdio};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::future::join;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncReadExt as _};

use super::binaries::Installation;
use super::home::{read_own, read_small, write_private};
use super::user::{self, RunAs};
use super::{ADMIN_ROLE, ManagedError, conf, log};
use crate::model::{Secret, fault};

/// What folders begin with in which data is made.
const INIT_DIR: &str = "init-";
/// How often a process that is waited for is looked at again.
const PROCESS_POLL: Duration = Duration::from_millis(50);
/// How long what a killed server has left is given to end as it is asked to, and then to be gone once it is killed.
const REMAINS_WAIT: Duration = Duration::from_secs(5);
/// The longest socket path that is used: systems allow 104 to 108 bytes, and some count the end.
const SOCKET_PATH_BYTES_MAX: usize = 100;
/// How many names are tried for a socket directory outside the state directory.
const SOCKET_DIRS_TRIED_MAX: u32 = 8;
/// How long a program of Postgres' may take: the server's own start and stop have a shorter limit in themselves.
const PROGRAM_WAIT: Duration = Duration::from_secs(150);
/// Seconds that `pg_ctl` waits for the server.
pub(super) const PG_CTL_WAIT_SECONDS: &str = "90";
/// How long what a program that failed has said is read yet, where something that it started holds it.
const OUTPUT_WAIT: Duration = Duration::from_secs(1);
/// What is kept of what a program says, from its end.
const SAID_BYTES_MAX: usize = 64 << 10;
/// How long a server that somebody else started is given to come up or go away.
const OTHER_WAIT: Duration = Duration::from_secs(60);

/// Where everything of one cluster lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Paths {
    pub(super) directory: PathBuf,
    pub(super) major: u16,
}

impl Paths {
    pub(super) fn new(home: &Path, major: u16) -> Self {
        Self { directory: home.join("postgres").join(major.to_string()), major }
    }

    pub(super) fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    pub(super) fn lock(&self) -> PathBuf {
        self.directory.join("lock")
    }

    pub(super) fn port(&self) -> PathBuf {
        self.directory.join("port")
    }

    pub(super) fn password(&self) -> PathBuf {
        self.directory.join("admin-password")
    }

    pub(super) fn socket_dir_file(&self) -> PathBuf {
        self.directory.join("socket-directory")
    }

    pub(super) fn log_dir(&self) -> PathBuf {
        self.directory.join("log")
    }

    /// The data comes to its place last of all and in one piece, so a cluster with both is complete.
    pub(super) fn initialised(&self) -> bool {
        self.password().is_file() && self.data().join("PG_VERSION").is_file()
    }
}

/// Returns the majors that have a folder below `home`, the newest first.
pub(super) fn majors(home: &Path) -> Vec<u16> {
    let entries = fs::read_dir(home.join("postgres")).into_iter().flatten().flatten();
    let mut majors: Vec<u16> = entries.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect();
    majors.sort_unstable_by(|a, b| b.cmp(a));
    majors
}

/// Returns the clusters that are there, the newest major first.
pub(super) fn clusters(home: &Path) -> Vec<Paths> {
    majors(home).into_iter().map(|major| Paths::new(home, major)).filter(Paths::initialised).collect()
}

/// Returns the cluster that is meant where no version is asked for: as it was written down, else the one made first.
pub(super) fn first(home: &Path) -> Option<Paths> {
    let mut there = clusters(home);
    if there.len() > 1 {
        let noted = fs::read_to_string(first_file(home)).ok().and_then(|text| text.trim().parse::<u16>().ok());
        let made = |paths: &Paths| fs::metadata(paths.password()).and_then(|found| found.modified()).ok();
        there.sort_by_key(|paths| (Some(paths.major) != noted, made(paths)));
    }
    there.into_iter().next()
}

/// Writes down which cluster was made first, once.
pub(super) fn note_first(home: &Path) -> Result<(), ManagedError> {
    let file = first_file(home);
    match first(home) {
        Some(paths) if !file.exists() => write_private(&file, format!("{}\n", paths.major).as_bytes()),
        Some(_) | None => Ok(()),
    }
}

fn first_file(home: &Path) -> PathBuf {
    home.join("first-cluster")
}

/// Makes the cluster's data, in a folder beside its final place that is renamed when complete.
pub(super) async fn init(paths: &Paths, installation: &Installation, user: Option<&RunAs>) -> Result<(), ManagedError> {
    // of its own for each attempt: the program of one that was killed may still be writing
    let work = paths.directory.join(format!("{INIT_DIR}{}", uuid::Uuid::new_v4().simple()));
    let made = work.join("data");
    // data without its password was in use once: it is not ours to throw away
    if paths.data().exists() {
        return Err(ManagedError::Init(format!("`{}` is there without its password", paths.data().display())));
    }
    remove_attempts(paths);
    let password = random_password()?;
    user::make_private_dir(&work, user)?;
    let password_file = work.join("password");
    user::write_as(&password_file, password.expose().as_bytes(), user)?;
    let mut said = String::new();
    // not every system has the first one
    for locale in ["C.UTF-8", "C"] {
        let mut command = user::command(installation.bin_dir.join("initdb"), user);
        command
            .args(["--username", ADMIN_ROLE, "--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", locale])
            .arg("--pwfile")
            .arg(&password_file)
            .arg("--pgdata")
            .arg(&made);
        let output =
            run("initdb", command).await.map_err(ManagedError::io("run", &installation.bin_dir.join("initdb")))?;
        if output.status.success() {
            // the password first: data that can be seen can be used
            write_private(&paths.password(), password.expose().as_bytes())?;
            fault::reach("file.data.rename").map_err(|e| ManagedError::io("rename", &made)(e.into()))?;
            fs::rename(&made, paths.data()).map_err(ManagedError::io("rename", &made))?;
            fault::reach("file.data.renamed").map_err(|e| ManagedError::io("rename", &made)(e.into()))?;
            remove_attempts(paths);
            return Ok(());
        }
        said = log::tail(&output.stderr);
        if made.exists() {
            fs::remove_dir_all(&made).map_err(ManagedError::io("remove", &made))?;
        }
    }
    fs::remove_dir_all(&work).map_err(ManagedError::io("remove", &work))?;
    Err(ManagedError::Init(said))
}

/// Removes what attempts to make the data have left; nobody has used it. What is still being written there stays, and
/// fails for want of the rest.
pub(super) fn remove_attempts(paths: &Paths) {
    for entry in fs::read_dir(&paths.directory).into_iter().flatten().flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(INIT_DIR.as_bytes())
            && let Err(error) = fs::remove_dir_all(entry.path())
        {
            tracing::debug!(%error, directory = %entry.path().display(), "an attempt's folder stays");
        }
    }
}

/// Checks that the programs are of the major that wrote the data.
pub(super) fn check_version(paths: &Paths, installation: &Installation) -> Result<(), ManagedError> {
    let data = read_small(&paths.data().join("PG_VERSION"))?.unwrap_or_default();
    let data = data.trim();
    if data == installation.major.to_string() {
        return Ok(());
    }
    Err(ManagedError::DataVersion {
        directory: paths.directory.clone(),
        data: data.chars().filter(char::is_ascii_digit).collect(),
        binaries: installation.major,
    })
}

fn hba_file(paths: &Paths) -> PathBuf {
    paths.data().join("pg_hba.conf")
}

/// Returns whether who may connect is as this version writes it.
pub(super) fn has_rules(paths: &Paths) -> Result<bool, ManagedError> {
    Ok(read_small(&hba_file(paths))?.as_ref() == Some(&conf::hba()))
}

/// Writes who may connect; a server that runs has to be told.
pub(super) fn write_rules(paths: &Paths, user: Option<&RunAs>) -> Result<(), ManagedError> {
    user::write_as(&hba_file(paths), conf::hba().as_bytes(), user)
}

/// Stops the server. Returns whether it ran.
pub(super) async fn stop(
    paths: &Paths,
    installation: &Installation,
    user: Option<&RunAs>,
) -> Result<bool, ManagedError> {
    if server_pid(paths).is_none() {
        return Ok(false);
    }
    let pg_ctl = installation.bin_dir.join("pg_ctl");
    let mut command = user::command(&pg_ctl, user);
    command.args(["stop", "--wait", "--timeout", PG_CTL_WAIT_SECONDS, "--mode", "fast", "--pgdata"]).arg(paths.data());
    let output = run("pg-ctl-stop", command).await.map_err(ManagedError::io("run", &pg_ctl))?;
    if output.status.success() || server_pid(paths).is_none() {
        return Ok(true);
    }
    Err(ManagedError::Stop(log::tail(&output.stderr)))
}

/// Stops the server without a program of Postgres', as `pg_ctl` does it. Returns whether it ran.
pub(super) async fn stop_by_signal(paths: &Paths) -> Result<bool, ManagedError> {
    let Some(pid) = server_pid(paths) else { return Ok(false) };
    let until = tokio::time::Instant::now() + fault::within(PROGRAM_WAIT);
    let failed = |error: &dyn std::fmt::Display| ManagedError::Stop(format!("process {pid}: {error}"));
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(|| failed(&"is none"))?;
    // The number is the process' as long as this is open; what it is is looked at behind it.
    match pidfd_open(number, PidfdFlags::empty()) {
        Ok(process) if server_pid(paths) == Some(pid) => {
            pidfd_send_signal(process, Signal::INT).map_err(|error| failed(&error))?;
        }
        Ok(_) | Err(rustix::io::Errno::SRCH) => {}
        Err(error) => return Err(failed(&error)),
    }
    while server_pid(paths) == Some(pid) {
        if tokio::time::Instant::now() > until {
            return Err(ManagedError::Stop(format!("process {pid} does not end")));
        }
        tokio::time::sleep(PROCESS_POLL).await;
    }
    Ok(true)
}

/// Returns the process that serves the cluster's data, if there is one.
pub(super) fn server_pid(paths: &Paths) -> Option<u32> {
    let pid = recorded_pid(paths)?;
    is_our_server(pid, &paths.data()).then_some(pid)
}

/// Deals with a `postmaster.pid` that is there although nobody let us in: waits for a server that is coming up or
/// going down, and removes a file whose process is another program by now. Returns whether a server is there.
pub(super) async fn wait_for_other(paths: &Paths) -> Result<bool, ManagedError> {
    let Some(pid) = recorded_pid(paths) else { return Ok(false) };
    let until = tokio::time::Instant::now() + fault::within(OTHER_WAIT);
    loop {
        if !is_our_server(pid, &paths.data()) {
            if Path::new(&format!("/proc/{pid}")).exists() {
                let file = paths.data().join("postmaster.pid");
                fs::remove_file(&file).map_err(ManagedError::io("remove", &file))?;
            }
            return Ok(false);
        }
        if is_ready(paths) {
            return Ok(true);
        }
        if tokio::time::Instant::now() > until {
            return Err(ManagedError::Start(format!("process {pid} holds its data and does not answer")));
        }
        tokio::time::sleep(PROCESS_POLL).await;
    }
}

/// Clears away what a server that was killed has left, when none runs: its processes, which hold its memory and do
/// not all notice that it is gone, and its socket's lock, whose process number may live on as another's, or as a dead
/// process that nobody has asked after. Postgres would not start beside either.
pub(super) async fn clear_remains(paths: &Paths) -> Result<(), ManagedError> {
    let wait = fault::within(REMAINS_WAIT);
    let until = tokio::time::Instant::now() + wait;
    let mut signal = Signal::QUIT;
    loop {
        let left = server_processes(&paths.data());
        if left.is_empty() {
            break;
        }
        if tokio::time::Instant::now() > until {
            signal = Signal::KILL;
        }
        for pid in left {
            if tokio::time::Instant::now() > until + wait {
                return Err(ManagedError::Start(format!("process {pid} of a killed server holds its data")));
            }
            if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw)
                && let Err(error) = kill_process(pid, signal)
            {
                tracing::debug!(%error, "a process of a killed server could not be ended");
            }
        }
        tokio::time::sleep(PROCESS_POLL).await;
    }
    let Some(socket_dir) = known_socket_dir(paths)? else { return Ok(()) };
    for entry in fs::read_dir(&socket_dir).into_iter().flatten().flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(b".s.PGSQL.") {
            fs::remove_file(entry.path()).map_err(ManagedError::io("remove", &entry.path()))?;
        }
    }
    Ok(())
}

/// Returns the processes of Postgres that work in `data`, but for one that a person has started on its own.
fn server_processes(data: &Path) -> Vec<u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| {
        let process = PathBuf::from(format!("/proc/{pid}"));
        let program = fs::read_link(process.join("exe")).unwrap_or_default();
        let arguments = fs::read(process.join("cmdline")).unwrap_or_default();
        program.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"postgres"))
            && !arguments.split(|byte| *byte == 0).any(|argument| argument == b"--single")
            && is_our_server(*pid, data)
    })
    .collect()
}

fn recorded_pid(paths: &Paths) -> Option<u32> {
    let text = read_small(&paths.data().join("postmaster.pid")).ok()??;
    text.lines().next()?.trim().parse().ok()
}

/// Postgres writes its state into the eighth line.
fn is_ready(paths: &Paths) -> bool {
    let text = read_small(&paths.data().join("postmaster.pid")).ok().flatten().unwrap_or_default();
    text.lines().nth(7).is_some_and(|state| state.trim() == "ready")
}

/// A server's working directory is its data; where that cannot be seen, a process of that number counts as the server.
fn is_our_server(pid: u32, data: &Path) -> bool {
    let process = PathBuf::from(format!("/proc/{pid}"));
    if !Path::new("/proc/self").exists() {
        return rustix::process::Pid::from_raw(i32::try_from(pid).unwrap_or(-1))
            .is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH));
    }
    match (fs::metadata(process.join("cwd")), fs::metadata(data)) {
        (Ok(cwd), Ok(data)) => cwd.dev() == data.dev() && cwd.ino() == data.ino(),
        (Err(e), _) if e.kind() == std::io::ErrorKind::PermissionDenied => {
            // another user's process cannot be the server of our data
            false
        }
        (Err(_), _) | (_, Err(_)) => false,
    }
}

/// Returns the directory of the server's socket as it was written down, if it can be this cluster's. In a state
/// directory that was copied, it is the original's: nothing there is ours. In one that was moved, the socket went along.
pub(super) fn known_socket_dir(paths: &Paths) -> Result<Option<PathBuf>, ManagedError> {
    let Some(known) = read_own(&paths.socket_dir_file(), false)?.map(PathBuf::from) else { return Ok(None) };
    let inside = paths.directory.join("run");
    let outside = outside_name(paths);
    let is_outside = known.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(&outside));
    Ok(if is_outside && !fits(&inside) { Some(known) } else { fits(&inside).then_some(inside) })
}

/// Returns how the names of a socket directory begin that lies outside the cluster's.
fn outside_name(paths: &Paths) -> String {
    let digest = Sha256::digest(paths.directory.as_os_str().as_encoded_bytes());
    format!("pgsandbox-{}-", URL_SAFE_NO_PAD.encode(digest.get(..9).unwrap_or_default()))
}

/// Returns whether a server with this data directory serves the cluster. One that was moved while its server runs is at
/// another path than that says; its process tells then.
pub(super) fn serves(paths: &Paths, directory: &Path) -> bool {
    match (fs::metadata(directory), fs::metadata(paths.data())) {
        (Ok(theirs), Ok(ours)) => theirs.dev() == ours.dev() && theirs.ino() == ours.ino(),
        (Err(_), Ok(_)) => server_pid(paths).is_some(),
        (_, Err(_)) => false,
    }
}

/// Returns the socket's directory: inside the cluster's, or another private one where that path is too long.
pub(super) fn socket_dir(paths: &Paths, user: Option<&RunAs>) -> Result<PathBuf, ManagedError> {
    let inside = paths.directory.join("run");
    if fits(&inside) {
        user::make_private_dir(&inside, user)?;
        return Ok(inside);
    }
    let base = match std::env::var_os("XDG_RUNTIME_DIR") {
        _ if user.is_some() => PathBuf::from("/run"),
        Some(dir) if Path::new(&dir).is_absolute() => PathBuf::from(dir),
        Some(_) | None => std::env::temp_dir(),
    };
    let name = outside_name(paths);
    let mut refused = ManagedError::NotPrivate(base.clone());
    for attempt in 0..SOCKET_DIRS_TRIED_MAX {
        let outside = base.join(format!("{name}{attempt}"));
        if !fits(&outside) {
            break;
        }
        match user::make_private_dir(&outside, user) {
            Ok(()) => return Ok(outside),
            // somebody else has put something there
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

fn fits(socket_dir: &Path) -> bool {
    socket_dir.join(".s.PGSQL.65432").as_os_str().len() <= SOCKET_PATH_BYTES_MAX
}

/// Runs what starts the server, and returns what that said until it was there. What it says from then on nobody hears: nothing
/// holds the other end of its output any more.
pub(super) async fn run_start(command: std::process::Command) -> std::io::Result<Output> {
    run("pg-ctl-start", command).await
}

async fn run(point: &str, command: std::process::Command) -> std::io::Result<Output> {
    let mut command = tokio::process::Command::from(command);
    command.kill_on_drop(true);
    let passed = fault::pass_of(&["spawn.", point]);
    let ended = async {
        passed.await?;
        Box::pin(output_of(command)).await
    };
    let output = tokio::time::timeout(fault::within(PROGRAM_WAIT), ended)
        .await
        .unwrap_or_else(|_| Err(std::io::Error::new(std::io::ErrorKind::TimedOut, "it took too long")))?;
    fault::pass_of(&["spawn.", point, ".ended"]).await?;
    Ok(output)
}

/// Waits until a program ends, and returns the end of what it said. What it has started may go on and hold its output: that is
/// not waited for.
async fn output_of(mut command: tokio::process::Command) -> std::io::Result<Output> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let status = {
        let mut said =
            pin!(join(keep_end(child.stdout.take(), &mut stdout), keep_end(child.stderr.take(), &mut stderr)));
        let (status, is_all) = tokio::select! {
            biased;
            status = child.wait() => (status?, false),
            _ = &mut said => (child.wait().await?, true),
        };
        if !status.success() && !is_all {
            drop(tokio::time::timeout(fault::within(OUTPUT_WAIT), said).await);
        }
        status
    };
    Ok(Output { status, stdout, stderr })
}

/// Reads to the end, and keeps as much of it as is kept of what a program says.
async fn keep_end(from: Option<impl AsyncRead + Unpin>, kept: &mut Vec<u8>) {
    let Some(mut from) = from else { return };
    let mut part = vec![0; 4 << 10];
    while let Ok(read @ 1..) = from.read(&mut part).await {
        kept.extend(part.iter().take(read));
        kept.drain(..kept.len().saturating_sub(SAID_BYTES_MAX));
    }
}

fn random_password() -> Result<Secret, ManagedError> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|e| ManagedError::Init(format!("no random numbers: {e}")))?;
    Ok(Secret::new(URL_SAFE_NO_PAD.encode(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> tokio::process::Command {
        let mut command = tokio::process::Command::new("/bin/sh");
        command.args(["-c", script]).kill_on_drop(true);
        command
    }

    #[tokio::test]
    async fn the_end_of_what_a_program_says_is_kept() {
        for bytes in [SAID_BYTES_MAX - 1, SAID_BYTES_MAX, SAID_BYTES_MAX + 1, 5 * SAID_BYTES_MAX] {
            let script = format!("head -c {} /dev/zero; printf x; exec head -c {bytes} /dev/zero >&2", bytes - 1);
            let script = format!("{script}; exit 1").replace("exec ", "");
            let said = output_of(shell(&script)).await.unwrap();
            assert!(!said.status.success());
            assert_eq!((said.stdout.len(), said.stderr.len()), (bytes.min(SAID_BYTES_MAX), bytes.min(SAID_BYTES_MAX)));
            assert_eq!(said.stdout.last(), Some(&b'x'));
        }
    }

    #[tokio::test]
    async fn what_a_program_has_started_is_not_waited_for() {
        for (status, script) in [(0, "sleep 60 & echo said"), (1, "echo said; sleep 60 & exit 1")] {
            let (began, until) = (std::time::Instant::now(), OUTPUT_WAIT * status + Duration::from_secs(20));
            let said = output_of(shell(script)).await.unwrap();
            assert!(began.elapsed() < until, "{script}");
            assert!(status == 0 || said.stdout == b"said\n", "{said:?}");
        }
    }

    #[test]
    fn a_socket_that_would_not_fit_goes_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let short = Paths::new(dir.path(), 15);
        fs::create_dir_all(&short.directory).unwrap();
        assert_eq!(socket_dir(&short, None).unwrap(), short.directory.join("run"));
        let long = Paths::new(&dir.path().join("x".repeat(90)), 15);
        fs::create_dir_all(&long.directory).unwrap();
        let outside = socket_dir(&long, None).unwrap();
        assert!(!outside.starts_with(dir.path()) && fits(&outside), "{outside:?}");
        assert_eq!(fs::metadata(&outside).unwrap().mode() & 0o777, 0o700);
        fs::remove_dir(&outside).unwrap();
    }

    #[test]
    fn names_of_others_are_passed_over_up_to_a_bound() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(&dir.path().join("x".repeat(90)), 15);
        fs::create_dir_all(&paths.directory).unwrap();
        let first = socket_dir(&paths, None).unwrap();
        let name = first.file_name().unwrap().to_str().unwrap().strip_suffix('0').unwrap();
        let other = |n: u32| first.with_file_name(format!("{name}{n}"));
        fs::remove_dir(&first).unwrap();
        for taken in 0..SOCKET_DIRS_TRIED_MAX {
            assert_eq!(socket_dir(&paths, None).unwrap(), other(taken));
            fs::remove_dir(other(taken)).unwrap();
            // Whatever is there and no folder of ours.
            fs::write(other(taken), "").unwrap();
        }
        let refused = socket_dir(&paths, None);
        (0..SOCKET_DIRS_TRIED_MAX).for_each(|taken| fs::remove_file(other(taken)).unwrap());
        assert!(!other(SOCKET_DIRS_TRIED_MAX).exists());
        assert!(refused.is_err(), "{refused:?}");
    }

    #[test]
    fn a_process_that_is_no_server_of_ours_is_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!is_our_server(std::process::id(), dir.path()));
        assert!(is_our_server(std::process::id(), &std::env::current_dir().unwrap()));
    }
}
