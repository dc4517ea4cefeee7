//! What is said between the program and the process that looks after one command.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::confine::Rules;

/// The most file descriptors that come along.
const DESCRIPTORS_MAX: usize = 3;
/// The longest message: argv, environment, rules and standard input fit many times.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Says that the command is to end.
pub(super) const STOP: u8 = b's';

/// A command to be run. It has the sandbox's password in it, and is nowhere but on a private socket.
///
/// With it come file descriptors: the repository, the command's temporary directory, and what it reads, if that is passed.
#[derive(Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) argv: Vec<String>,
    /// The command's own directory, removed after it.
    pub(super) temporary: PathBuf,
    /// The whole environment.
    pub(super) environment: Vec<(String, String)>,
    pub(super) stdin: Input,
    /// None where the command runs unconfined.
    pub(super) rules: Option<Rules>,
    /// How long the command may take to end once it was asked to.
    pub(super) grace_ms: u64,
    /// Whether it is to have process numbers of its own.
    pub(super) in_namespace: bool,
}

impl Order {
    /// Returns how long the command may take to end once it was asked to.
    pub(super) fn grace(&self) -> Duration {
        Duration::from_millis(self.grace_ms)
    }
}

/// What a command reads.
#[derive(Serialize, Deserialize)]
pub(super) enum Input {
    Nothing,
    Text(String),
    /// The last file descriptor that comes along with the message.
    Passed,
}

/// How it went.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Report {
    pub(super) ending: Ending,
    /// Processes that the command left behind, and that were ended.
    pub(super) left_behind: u32,
    /// Processes that could not be ended.
    pub(super) remaining: u32,
}

impl Report {
    /// Reports on a command of which nothing is left.
    pub(super) fn of(ending: Ending) -> Self {
        Self { ending, left_behind: 0, remaining: 0 }
    }
}

/// How a command ended.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Ending {
    Exited(i32),
    Signalled(i32),
    NotFound,
    NotExecutable,
    /// The rules could not be enforced.
    Unconfined(String),
    /// It had too many processes and threads, and was ended.
    TooMany,
    /// The kernel gives it no process numbers of its own; nothing was started.
    NoNamespace,
    Failed(String),
}

/// Writes a message.
pub(super) fn encode(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let body = serde_json::to_vec(message).map_err(|_| io::Error::other("a path is not valid UTF-8"))?;
    let length = u32::try_from(body.len()).ok().filter(|_| body.len() <= MESSAGE_BYTES_MAX);
    let length = length.ok_or_else(|| io::Error::other("the message is too long"))?;
    Ok([&length.to_le_bytes(), body.as_slice()].concat())
}

/// Sends a message.
pub(super) fn send(mut to: impl Write, message: &impl Serialize) -> io::Result<()> {
    to.write_all(&encode(message)?)
}

/// Sends the first bytes of a message, with file descriptors. Returns how many were sent.
pub(super) fn send_first(to: &UnixStream, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("there are too many file descriptors"));
    }
    let first = message.get(..1).unwrap_or_default();
    Ok(rustix::net::sendmsg(to, &[IoSlice::new(first)], &mut ancillary, SendFlags::empty())?)
}

/// Reads an order, and the file descriptors that come along.
pub(super) fn receive(from: &UnixStream) -> io::Result<(Order, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut head = [0; 4];
    let mut got = 0;
    let mut descriptors = Vec::new();
    while let Some(rest) = head.get_mut(got..).filter(|rest| !rest.is_empty()) {
        let mut parts = [IoSliceMut::new(rest)];
        let received = rustix::net::recvmsg(from, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
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
    Ok((rest_of(from, head)?, descriptors))
}

/// Reads a message.
pub(super) fn read<T: DeserializeOwned>(mut from: impl Read) -> io::Result<T> {
    let mut head = [0; 4];
    from.read_exact(&mut head)?;
    rest_of(from, head)
}

fn rest_of<T: DeserializeOwned>(mut from: impl Read, head: [u8; 4]) -> io::Result<T> {
    let mut body = vec![0; length(head)?];
    from.read_exact(&mut body)?;
    decode(&body)
}

/// Returns a message's length, from its first bytes.
pub(super) fn length(head: [u8; 4]) -> io::Result<usize> {
    let length = u32::from_le_bytes(head) as usize;
    if length > MESSAGE_BYTES_MAX { Err(io::Error::other("the message is too long")) } else { Ok(length) }
}

/// Reads a message's body.
pub(super) fn decode<T: DeserializeOwned>(body: &[u8]) -> io::Result<T> {
    // The library's own text may show a piece of it.
    serde_json::from_slice(body).map_err(|_| io::Error::other("the message cannot be read"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_comes_through_and_one_that_is_too_long_does_not() {
        let report = Report { ending: Ending::Exited(3), left_behind: 2, remaining: 1 };
        let mut wire = Vec::new();
        send(&mut wire, &report).unwrap();
        let (head, body) = wire.split_at(4);
        assert_eq!(length(head.try_into().unwrap()).unwrap(), body.len());
        assert_eq!(decode::<Report>(body).unwrap(), report);
        assert_eq!(read::<Report>(wire.as_slice()).unwrap(), report);
        assert!(decode::<Report>(&body[1..]).is_err());
        assert!(encode(&"x".repeat(MESSAGE_BYTES_MAX - 1)).is_err());
        let head = |length: usize| u32::try_from(length).unwrap().to_le_bytes();
        assert!(length(head(MESSAGE_BYTES_MAX)).is_ok() && length(head(MESSAGE_BYTES_MAX + 1)).is_err());
    }
}
