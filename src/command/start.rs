//! Starts a command, confined, from the process that is to be its parent.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;

use rustix::process::WaitStatus;

use super::confine;
use super::order::{Ending, Input, Order};

/// Starts the command from a thread that is confined first: what a thread may not, its child may not either.
pub(super) fn start(order: &Order, mut descriptors: Vec<OwnedFd>) -> Result<Child, Ending> {
    let Some((program, arguments)) = order.argv.split_first() else { return Err(Ending::NotFound) };
    let passed = if matches!(order.stdin, Input::Passed) { descriptors.pop() } else { None };
    begin_in(&descriptors).map_err(|error| Ending::Failed(error.to_string()))?;
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

/// Goes into the repository: what this process starts begins where it is, in the directory that was judged, wherever that is
/// by now.
pub(super) fn begin_in(descriptors: &[OwnedFd]) -> io::Result<()> {
    let repo = descriptors.first().ok_or_else(|| io::Error::other("no repository came along"))?;
    // In another namespace of mounts the directory that is open is the outer one, and it is there already.
    let here = rustix::fs::stat(".").map(|stat| (stat.st_dev, stat.st_ino));
    let there = rustix::fs::fstat(repo).map(|stat| (stat.st_dev, stat.st_ino))?;
    if here == Ok(there) { Ok(()) } else { Ok(rustix::process::fchdir(repo)?) }
}

/// Writes what the command is to read.
pub(super) fn write_input(input: Input, child: &mut Child) {
    if let (Input::Text(text), Some(mut to)) = (input, child.stdin.take()) {
        // A command need not read what it is given.
        thread::spawn(move || to.write_all(text.as_bytes()).ok());
    }
}

/// Returns how a command ended.
pub(super) fn ended(status: WaitStatus) -> Ending {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Ending::Exited(code),
        (None, Some(signal)) => Ending::Signalled(signal),
        (None, None) => Ending::Failed("the command ended in no known way".to_owned()),
    }
}
