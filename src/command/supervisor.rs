//! The process that looks after one command: this program, started anew for nothing else.
//!
//! It is the command's parent and, as a subreaper, becomes the parent of everything that the command leaves behind,
//! whatever sessions and groups that made for itself. When the command has ended, is to end, or the program that asked for
//! it is gone, all of it is ended. The command is confined and this process is not, so the kernel lets no signal through
//! from one to the other where it can tell (Landlock's signal scope, from Linux 6.12).

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use super::confine;
use super::order::{self, DESCRIPTORS_MAX, Ending, Input, Order, Report, STOP};

/// How long everything may take to be gone once it was killed.
pub(super) const SWEEP_MAX: Duration = Duration::from_secs(5);
/// How long is waited between two looks at what is still there.
const SWEEP_PAUSE: Duration = Duration::from_millis(5);

/// What happened.
enum News {
    Ended(Pid, WaitStatus),
    /// There is no child left.
    NoneLeft,
    Stop,
    /// Nobody wants to know any more.
    Alone,
}

/// Looks after one command, as it is told over standard input.
pub(super) fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn serve() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    // Without a terminal: what is typed there is not for the command, nor is the terminal.
    rustix::process::setsid()?;
    let control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let (order, descriptors) = receive(&control)?;
    let temporary = order.temporary.clone();
    let report = match start(&order, descriptors) {
        Ok(child) => look_after(child, order, &control),
        Err(ending) => Ok(Report { ending, left_behind: 0 }),
    };
    // Nothing writes there any more. Whoever asked may be gone.
    std::fs::remove_dir_all(temporary).ok();
    order::send(&control, &report?)
}

/// Reads the order, and the file descriptors that come along.
fn receive(control: &UnixStream) -> io::Result<(Order, Vec<OwnedFd>)> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut head = [0; 4];
    let mut got = 0;
    let mut descriptors = Vec::new();
    while let Some(rest) = head.get_mut(got..).filter(|rest| !rest.is_empty()) {
        let mut parts = [IoSliceMut::new(rest)];
        let received = rustix::net::recvmsg(control, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        if received.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        got += received.bytes;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(came) = message {
                descriptors.extend(came);
            }
        }
    }
    let mut body = vec![0; order::length(head)?];
    (&*control).read_exact(&mut body)?;
    Ok((order::decode(&body)?, descriptors))
}

/// Starts the command from a thread that is confined first: what a thread may not, its child may not either.
fn start(order: &Order, mut descriptors: Vec<OwnedFd>) -> Result<Child, Ending> {
    let Some((program, arguments)) = order.argv.split_first() else { return Err(Ending::NotFound) };
    let passed = if matches!(order.stdin, Input::Passed) { descriptors.pop() } else { None };
    let Some(repo) = descriptors.first() else { return Err(Ending::Failed("no repository came along".to_owned())) };
    // The command begins where this process is, in the directory that was judged, wherever it is by now.
    rustix::process::fchdir(repo).map_err(|error| Ending::Failed(error.to_string()))?;
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(order.environment.iter().map(|(name, value)| (name, value)));
    command.process_group(0);
    command.stdin(match (&order.stdin, passed) {
        (Input::Text(_), _) => Stdio::piped(),
        (Input::Passed, Some(descriptor)) => descriptor.into(),
        (Input::Passed | Input::Nothing, _) => Stdio::null(),
    });
    let failed = |error: io::Error| {
        // A script that names no interpreter is no program.
        let no_program = error.raw_os_error() == Some(rustix::io::Errno::NOEXEC.raw_os_error());
        if error.kind() == io::ErrorKind::NotFound {
            Ending::NotFound
        } else if no_program || error.kind() == io::ErrorKind::PermissionDenied {
            Ending::NotExecutable
        } else {
            Ending::Failed(error.to_string())
        }
    };
    thread::scope(|scope| {
        let started = scope.spawn(|| {
            confine::give_up_rights().map_err(Ending::Failed)?;
            if let Some(rules) = &order.rules {
                confine::restrict(rules, &descriptors).map_err(Ending::Unconfined)?;
            }
            command.spawn().map_err(failed)
        });
        started.join().unwrap_or_else(|_| Err(Ending::Failed("the starting thread ended".to_owned())))
    })
}

/// Waits for the command's end, and ends what it leaves behind.
fn look_after(mut child: Child, order: Order, control: &UnixStream) -> io::Result<Report> {
    let grace = Duration::from_millis(order.grace_ms);
    let own = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
    if let (Input::Text(text), Some(mut to)) = (order.stdin, child.stdin.take()) {
        // A command need not read what it is given.
        thread::spawn(move || to.write_all(text.as_bytes()).ok());
    }
    let (news, inbox) = mpsc::channel();
    let (reaper, listener, mut control) = (news.clone(), news, control.try_clone()?);
    thread::spawn(move || reap(&reaper));
    thread::spawn(move || {
        let mut said = [0];
        while let Ok(1) = control.read(&mut said) {
            if said == [STOP] && listener.send(News::Stop).is_err() {
                return;
            }
        }
        drop(listener.send(News::Alone));
    });
    let mut ending = wait(own, &inbox, grace);
    let left_behind = sweep(own, &inbox, &mut ending);
    let ending = ending.unwrap_or_else(|| Ending::Failed("the command did not end though it was killed".to_owned()));
    Ok(Report { ending, left_behind })
}

/// Says who ended, until there is no child left.
fn reap(news: &Sender<News>) {
    loop {
        let said = match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) => news.send(News::Ended(pid, status)),
            Err(rustix::io::Errno::INTR) | Ok(None) => Ok(()),
            Err(_) => return drop(news.send(News::NoneLeft)),
        };
        if said.is_err() {
            return;
        }
    }
}

/// Returns how the command ended; none if it is to be killed.
fn wait(own: Pid, inbox: &Receiver<News>, grace: Duration) -> Option<Ending> {
    let mut until: Option<Instant> = None;
    loop {
        let news = match until {
            None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(until) => inbox.recv_timeout(until.saturating_duration_since(Instant::now())),
        };
        match news {
            Ok(News::Ended(pid, status)) if pid == own => return Some(ended(status)),
            Ok(News::Ended(..)) => {}
            Ok(News::Stop) => {
                descendants().into_iter().for_each(|pid| tell(pid, Signal::TERM));
                until = Some(Instant::now() + grace);
            }
            Ok(News::Alone | News::NoneLeft) | Err(_) => return None,
        }
    }
}

/// Sends a signal; to one that is gone already there is nothing to say.
fn tell(pid: Pid, signal: Signal) {
    rustix::process::kill_process(pid, signal).ok();
}

fn ended(status: WaitStatus) -> Ending {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Ending::Exited(code),
        (None, Some(signal)) => Ending::Signalled(signal),
        (None, None) => Ending::Failed("the command ended in no known way".to_owned()),
    }
}

/// Kills all descendants until there are none. Returns how many there were beside the command itself.
fn sweep(own: Pid, inbox: &Receiver<News>, ending: &mut Option<Ending>) -> u32 {
    let deadline = Instant::now() + SWEEP_MAX;
    let mut others = BTreeSet::new();
    while Instant::now() < deadline {
        for pid in descendants() {
            if pid != own {
                others.insert(pid.as_raw_pid());
            }
            tell(pid, Signal::KILL);
        }
        match inbox.recv_timeout(SWEEP_PAUSE) {
            Ok(News::Ended(pid, status)) if pid == own => *ending = Some(ended(status)),
            Ok(News::NoneLeft) | Err(RecvTimeoutError::Disconnected) => break,
            Ok(News::Ended(..) | News::Stop | News::Alone) | Err(RecvTimeoutError::Timeout) => {}
        }
    }
    u32::try_from(others.len()).unwrap_or(u32::MAX)
}

/// Returns every process that comes of this one and has not ended.
fn descendants() -> Vec<Pid> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        // The name stands in parentheses, and may hold some itself.
        let Some((_, rest)) = stat.rsplit_once(')') else { continue };
        let mut fields = rest.split_whitespace();
        let (Some(state), Some(parent)) = (fields.next(), fields.next()) else { continue };
        if let Ok(parent) = parent.parse()
            && state != "Z"
        {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut next = vec![rustix::process::getpid().as_raw_pid()];
    while let Some(parent) = next.pop() {
        for pid in children.remove(&parent).unwrap_or_default() {
            found.extend(Pid::from_raw(pid));
            next.push(pid);
        }
    }
    found
}
