//! What is said between the program and the process that looks after one command.

use std::io::{self, Write};
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::confine::Rules;

/// The most file descriptors that come along.
pub(super) const DESCRIPTORS_MAX: usize = 3;
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
        let report = Report { ending: Ending::Exited(3), left_behind: 2 };
        let mut wire = Vec::new();
        send(&mut wire, &report).unwrap();
        let (head, body) = wire.split_at(4);
        assert_eq!(length(head.try_into().unwrap()).unwrap(), body.len());
        assert_eq!(decode::<Report>(body).unwrap(), report);
        assert!(decode::<Report>(&body[1..]).is_err());
        assert!(encode(&"x".repeat(MESSAGE_BYTES_MAX - 1)).is_err());
        let head = |length: usize| u32::try_from(length).unwrap().to_le_bytes();
        assert!(length(head(MESSAGE_BYTES_MAX)).is_ok() && length(head(MESSAGE_BYTES_MAX + 1)).is_err());
    }
}
