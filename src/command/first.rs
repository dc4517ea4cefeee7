//! The first process of a namespace that a command has to itself: this program once again, started by the supervisor.
//!
//! It starts the command, asks how what ends in the namespace ended, and says how the command did. Its own end is the
//! end of everything in the namespace; it comes from the supervisor, or when that is gone.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;

use rustix::process::{Pid, WaitOptions};

use super::namespace;
use super::order::{self, Ending, Order};
use super::start::{ended, start, write_input};

/// Runs one command, as it is told over standard input.
pub(super) fn main() -> ExitCode {
    match serve() {
        Ok(never) => match never {},
        Err(_) => ExitCode::FAILURE,
    }
}

fn serve() -> io::Result<std::convert::Infallible> {
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let (mut order, descriptors) = order::receive(&control)?;
    let shares_alone = namespace::settle(&places(&order))?;
    if let Some(rules) = order.rules.as_mut().filter(|_| shares_alone) {
        // The one that is there now; with the command it is gone.
        rules.write.push(namespace::SHARED_MEMORY.into());
    }
    let mut supervisor = control.try_clone()?;
    thread::spawn(move || {
        // It says nothing more, so this ends when it does.
        while let Ok(1..) = supervisor.read(&mut [0]) {}
        std::process::exit(1);
    });
    let ending = match start(&order, descriptors) {
        Ok(mut child) => {
            write_input(order.stdin, &mut child);
            let own = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
            wait(own)?
        }
        Err(ending) => ending,
    };
    order::send(&control, &ending)?;
    loop {
        // Somebody has to ask after those whose parents are gone; where there is no child there will be none.
        if rustix::process::wait(WaitOptions::empty()).is_err_and(|error| error != rustix::io::Errno::INTR) {
            thread::park();
        }
    }
}

/// Returns where the command works, and what it reaches beside, but for shared memory as such.
fn places(order: &Order) -> Vec<PathBuf> {
    let allowed = order.rules.iter().flat_map(|rules| rules.read.iter().chain(&rules.write)).cloned();
    let named = allowed.filter(|path| path != Path::new(namespace::SHARED_MEMORY));
    std::env::current_dir().into_iter().chain([order.temporary.clone()]).chain(named).collect()
}

/// Waits for the command's end.
fn wait(own: Pid) -> io::Result<Ending> {
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == own => return Ok(ended(status)),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
