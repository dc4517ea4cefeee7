//! The process that looks after one command: this program, started anew for nothing else.
//!
//! Where the kernel lets it, it starts the command in a namespace of process numbers, whose end ends everything in it
//! ([`namespace`], [`first`](super::first)). Where not, it is the command's parent and, as a subreaper, becomes the parent of
//! everything that the command leaves behind, whatever sessions and groups that made for itself, and kills what it finds.
//! When the command has ended, is to end, or the program that asked for it is gone, all of it is ended; what is not
//! is told. The command is confined and this process is not, so the kernel lets no signal through from one to the
//! other where it can tell: in a namespace, or by Landlock's signal scope from Linux 6.12.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use super::descendants::{LOOK_EVERY, Seen, descendants, tell, too_many};
use super::namespace;
use super::order::{self, Ending, Order, Report, STOP};
use super::start::{begin_in, ended, start, write_input};

/// How long everything may take to be gone once it was killed.
pub(super) const SWEEP_MAX: Duration = Duration::from_secs(5);
/// How long is waited between two looks at what is still there.
const SWEEP_PAUSE: Duration = Duration::from_millis(5);

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
    let (order, descriptors) = order::receive(&control)?;
    let temporary = order.temporary.clone();
    let report = if order.in_namespace {
        match begin_namespace(&order, &descriptors) {
            Ok((first, inbox)) => {
                drop(descriptors);
                look_after_namespace(first, &inbox, &control, order.grace())
            }
            // It is asked for again, without one.
            Err(_) => return order::send(&control, &Report::of(Ending::NoNamespace)),
        }
    } else {
        match start(&order, descriptors) {
            Ok(child) => look_after(child, order, &control),
            Err(ending) => Ok(Report::of(ending)),
        }
    };
    // Nothing writes there any more. Whoever asked may be gone.
    std::fs::remove_dir_all(temporary).ok();
    order::send(&control, &report?)
}

/// Starts the first process of a namespace, and tells it what to run.
fn begin_namespace(order: &Order, descriptors: &[OwnedFd]) -> io::Result<(Child, UnixStream)> {
    // What is started begins here, in its own namespace of mounts.
    begin_in(descriptors)?;
    namespace::enter()?;
    let (mut own, theirs) = UnixStream::pair()?;
    let mut command = Command::new("/proc/self/exe");
    command.args([super::SUPERVISE, super::FIRST]).env_clear().stdin(Stdio::from(OwnedFd::from(theirs)));
    let child = command.spawn()?;
    drop(command);
    let message = order::encode(order)?;
    let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    let sent = order::send_first(&own, &message, &descriptors)?;
    own.write_all(message.get(sent..).unwrap_or_default())?;
    Ok((child, own))
}

/// Waits for the command's end, or for the time to end it, and ends its namespace.
fn look_after_namespace(
    mut first: Child,
    inbox: &UnixStream,
    control: &UnixStream,
    grace: Duration,
) -> io::Result<Report> {
    let pid = i32::try_from(first.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
    let others = || descendants().into_iter().filter(|seen| seen.pid != pid).collect::<Vec<_>>();
    let mut until: Option<Instant> = None;
    let mut look = Instant::now() + LOOK_EVERY;
    let ending = loop {
        let [said, told] = readable([inbox, control], until.map_or(look, |until| until.min(look)))?;
        if said {
            let failed = |_| Ending::Failed("the command's first process ended before it".to_owned());
            break Some(order::read(inbox).unwrap_or_else(failed));
        }
        let mut word = [0];
        if told {
            match (&*control).read(&mut word) {
                Ok(1) if word == [STOP] => {
                    others().iter().for_each(|seen| tell(seen.pid, Signal::TERM));
                    until = Some(Instant::now() + grace);
                }
                Ok(1) => {}
                Ok(_) | Err(_) => break None,
            }
        }
        let now = Instant::now();
        if until.is_some_and(|until| now >= until) {
            break None;
        }
        if now >= look {
            if too_many(&others()) {
                break Some(Ending::TooMany);
            }
            look = now + LOOK_EVERY;
        }
    };
    let running = count(&others());
    tell(pid, Signal::KILL);
    let gone = ends_within(&mut first, SWEEP_MAX)?;
    // The command itself is among them if it did not end by itself.
    let left_behind = if ending.is_some() { running } else { running.saturating_sub(1) };
    let remaining = if gone { 0 } else { count(&others()).max(1) };
    let ending = ending.unwrap_or(Ending::Signalled(Signal::KILL.as_raw()));
    Ok(Report { ending, left_behind, remaining })
}

/// Waits until one of two has something to read, or has ended, at most until a time.
fn readable(streams: [&UnixStream; 2], until: Instant) -> io::Result<[bool; 2]> {
    let mut polled = streams.map(|stream| PollFd::new(stream, PollFlags::IN));
    match poll(&mut polled, Some(&timeout(until.saturating_duration_since(Instant::now())))) {
        Ok(_) => Ok(polled.map(|polled| !polled.revents().is_empty())),
        Err(rustix::io::Errno::INTR) => Ok([false; 2]),
        Err(error) => Err(error.into()),
    }
}

fn timeout(time: Duration) -> Timespec {
    Timespec::try_from(time).unwrap_or_default()
}

/// Waits for the end of a child, for so long.
fn ends_within(child: &mut Child, time: Duration) -> io::Result<bool> {
    let deadline = Instant::now() + time;
    while child.try_wait()?.is_none() {
        if Instant::now() >= deadline {
            return Ok(false);
        }
        poll(&mut [], Some(&timeout(SWEEP_PAUSE))).ok();
    }
    Ok(true)
}

/// Returns how many of them have not ended.
fn count(all: &[Seen]) -> u32 {
    u32::try_from(all.iter().filter(|seen| !seen.ended).count()).unwrap_or(u32::MAX)
}

/// What happened.
enum News {
    Ended(Pid, WaitStatus),
    /// There is no child left.
    NoneLeft,
    Stop,
    /// Nobody wants to know any more.
    Alone,
}

/// Waits for the command's end, and ends what it leaves behind.
fn look_after(mut child: Child, order: Order, control: &UnixStream) -> io::Result<Report> {
    let grace = order.grace();
    let own = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
    write_input(order.stdin, &mut child);
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
    let (left_behind, remaining) = sweep(own, &inbox, &mut ending);
    let ending = ending.unwrap_or_else(|| Ending::Failed("the command did not end though it was killed".to_owned()));
    Ok(Report { ending, left_behind, remaining })
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
    let mut look = Instant::now() + LOOK_EVERY;
    loop {
        let next = until.map_or(look, |until| until.min(look));
        match inbox.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Ok(News::Ended(pid, status)) if pid == own => return Some(ended(status)),
            Ok(News::Ended(..)) | Err(RecvTimeoutError::Timeout) => {}
            Ok(News::Stop) => {
                descendants().iter().for_each(|seen| tell(seen.pid, Signal::TERM));
                until = Some(Instant::now() + grace);
            }
            Ok(News::Alone | News::NoneLeft) | Err(RecvTimeoutError::Disconnected) => return None,
        }
        let now = Instant::now();
        if until.is_some_and(|until| now >= until) {
            return None;
        }
        if now >= look {
            if too_many(&descendants()) {
                return Some(Ending::TooMany);
            }
            look = now + LOOK_EVERY;
        }
    }
}

/// Kills all descendants, whole groups at once, until there are none. Returns how many there were beside the command itself,
/// and how many there still are.
fn sweep(own: Pid, inbox: &Receiver<News>, ending: &mut Option<Ending>) -> (u32, u32) {
    let deadline = Instant::now() + SWEEP_MAX;
    let supervisors = rustix::process::getpid();
    let mut others = BTreeSet::new();
    let left_behind = |others: &BTreeSet<i32>| u32::try_from(others.len()).unwrap_or(u32::MAX);
    while Instant::now() < deadline {
        for seen in descendants().iter().filter(|seen| !seen.ended) {
            if seen.pid != own {
                others.insert(seen.pid.as_raw_pid());
            }
            tell(seen.pid, Signal::KILL);
            // What has been forked since in the same group is reached by it, however short it lives.
            if let Some(group) =
                Pid::from_raw(seen.group.max(0)).filter(|group| ![supervisors, Pid::INIT].contains(group))
            {
                rustix::process::kill_process_group(group, Signal::KILL).ok();
            }
        }
        match inbox.recv_timeout(SWEEP_PAUSE) {
            Ok(News::Ended(pid, status)) if pid == own && ending.is_none() => *ending = Some(ended(status)),
            Ok(News::NoneLeft) | Err(RecvTimeoutError::Disconnected) => return (left_behind(&others), 0),
            Ok(News::Ended(..) | News::Stop | News::Alone) | Err(RecvTimeoutError::Timeout) => {}
        }
    }
    (left_behind(&others), count(&descendants()).max(1))
}
