//! Whom a socket of ours answers: the programs that were started for it, and what they start.
//!
//! A program is known before it can connect, and no longer than it is not waited for: until then its number is nobody
//! else's.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::process::{Child, Command};

/// How many generations lie between a program and what it was started by, at most: a wrapper or two.
const GENERATIONS_MAX: usize = 8;

/// The programs that run, each with the socket that it was started for.
#[derive(Clone, Debug, Default)]
pub(super) struct Guests(Arc<Mutex<BTreeSet<(u16, u32)>>>);

/// A program that is expected, until this is dropped.
#[derive(Debug)]
pub(super) struct Expected {
    guests: Guests,
    guest: (u16, u32),
}

impl Guests {
    /// Starts a program for a socket.
    pub(super) fn start(&self, socket: u16, command: &mut Command) -> io::Result<(Child, Option<Expected>)> {
        // Whoever asks meanwhile waits: the program may be there before we know its number.
        let mut known = self.lock();
        let child = command.spawn()?;
        let guest = child.id().map(|id| (socket, id));
        known.extend(guest);
        drop(known);
        Ok((child, guest.map(|guest| Expected { guests: self.clone(), guest })))
    }

    /// Returns whether a process is a program that was started for the socket, or was started by one.
    pub(super) fn expect(&self, socket: u16, process: u32) -> bool {
        let known = self.lock();
        descent(process, parent).any(|ancestor| known.contains(&(socket, ancestor)))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeSet<(u16, u32)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        self.guests.lock().remove(&self.guest);
    }
}

/// Returns a process and those that it descends from.
fn descent(process: u32, parent: impl Fn(u32) -> Option<u32>) -> impl Iterator<Item = u32> {
    std::iter::successors(Some(process), move |child| parent(*child)).take(1 + GENERATIONS_MAX)
}

/// Returns who started a process, where the system says so.
fn parent(process: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // Its name, in parentheses, may hold anything.
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use tokio::io::{AsyncBufReadExt as _, BufReader};

    use super::*;

    #[tokio::test]
    async fn a_program_is_expected_at_its_own_socket_and_so_is_what_it_starts_and_nobody_else() {
        let guests = Guests::default();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "sleep 600 & echo $!; wait"]).stdout(Stdio::piped()).process_group(0);
        let (mut child, expected) = guests.start(1, &mut command).unwrap();
        let program = child.id().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).await.unwrap();
        let started: u32 = line.trim().parse().unwrap();
        assert!(guests.expect(1, program) && guests.expect(1, started));
        assert!(!guests.expect(2, program), "it was started for the other socket");
        assert!(!guests.expect(1, std::process::id()), "we are not among those that we started");
        drop(expected);
        assert!(!guests.expect(1, program) && !guests.expect(1, started));
        let group = rustix::process::Pid::from_raw(i32::try_from(program).unwrap()).unwrap();
        rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap();
        child.wait().await.unwrap();
    }

    #[test]
    fn descent_is_followed_up_to_its_bound_and_no_further() {
        let generations = u32::try_from(GENERATIONS_MAX).unwrap();
        for (ancestor, found) in [(generations, true), (generations + 1, false)] {
            assert_eq!(descent(0, |child| Some(child + 1)).any(|process| process == ancestor), found, "{ancestor}");
        }
    }
}
