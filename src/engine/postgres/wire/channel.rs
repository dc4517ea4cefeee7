//! Messages in and out over one stream, with bounds on what is held.
//!
//! Writing and reading go on together, so neither end can wait for the other for ever: while data goes out, notices
//! come in. Memory grows only with bytes that have really arrived, never with a length that a header claims.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWrite};

use super::WireError;
use crate::engine::postgres::net::Stream;

/// Read from the socket at once, in bytes.
const READ_BYTES: usize = 32 << 10;
/// Kept of a buffer that had to grow, in bytes; more is given back.
const KEPT_BYTES_MAX: usize = 128 << 10;

/// One end of a connection.
pub(super) struct Channel {
    stream: Stream,
    inbox: BytesMut,
    outbox: BytesMut,
    flushed: bool,
}

/// The head of a message: its kind, and how many bytes follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) tag: u8,
    pub(super) bytes: usize,
}

impl Channel {
    pub(super) fn new(stream: Stream) -> Self {
        Self { stream, inbox: BytesMut::new(), outbox: BytesMut::new(), flushed: true }
    }

    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Lets the stream go, with what has come and was not read. What was to be sent has left with the last read.
    pub(super) fn into_parts(self) -> (Stream, BytesMut) {
        (self.stream, self.inbox)
    }

    /// Returns whether nothing has come that was not read, the end of the stream included. Takes a byte of what has.
    pub(super) fn is_quiet(&self) -> bool {
        self.inbox.is_empty() && self.stream.is_quiet()
    }

    /// Returns the place for messages to be sent; they leave with the next read.
    pub(super) fn out(&mut self) -> &mut BytesMut {
        &mut self.outbox
    }

    /// Reads the next message's head.
    pub(super) async fn header(&mut self) -> Result<Header, WireError> {
        let head = self.want(5).await?;
        let (Some(&tag), Some(length)) = (head.first(), head.get(1..5)) else {
            return Err(WireError::Protocol("a message has no head"));
        };
        let length = length.iter().fold(0usize, |n, &b| n << 8 | usize::from(b));
        self.inbox.advance(5);
        match length.checked_sub(4) {
            Some(bytes) if length <= i32::MAX as usize => Ok(Header { tag, bytes }),
            _ => Err(WireError::Protocol("a message's length is impossible")),
        }
    }

    /// Waits until `bytes` bytes are here and shows them. The caller bounds `bytes`, and takes them by [`Self::done`].
    pub(super) async fn want(&mut self, bytes: usize) -> Result<&[u8], WireError> {
        while self.inbox.len() < bytes {
            self.exchange().await?;
        }
        Ok(self.inbox.get(..bytes).unwrap_or_default())
    }

    /// Takes `bytes` bytes that were shown by [`Self::want`].
    pub(super) fn done(&mut self, bytes: usize) {
        self.inbox.advance(bytes.min(self.inbox.len()));
        if self.inbox.is_empty() && self.inbox.capacity() > KEPT_BYTES_MAX {
            self.inbox = BytesMut::new();
        }
    }

    /// Reads past `bytes` bytes without keeping them.
    pub(super) async fn skip(&mut self, mut bytes: usize) -> Result<(), WireError> {
        loop {
            let here = bytes.min(self.inbox.len());
            self.done(here);
            bytes -= here;
            if bytes == 0 {
                return Ok(());
            }
            self.exchange().await?;
        }
    }

    /// Reads a body of `bytes` bytes and shows `read` at most `bytes_max` of them.
    pub(super) async fn body<T>(
        &mut self,
        bytes: usize,
        bytes_max: usize,
        read: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, WireError> {
        let shown = bytes.min(bytes_max);
        let value = read(self.want(shown).await?);
        self.done(shown);
        self.skip(bytes - shown).await?;
        Ok(value)
    }

    /// Sends what can be sent and reads what has come: at least one byte.
    async fn exchange(&mut self) -> Result<(), WireError> {
        self.inbox.reserve(READ_BYTES);
        match poll_fn(|cx| self.poll_exchange(cx)).await {
            Ok(0) => Err(WireError::Lost("the server closed the connection".into())),
            Ok(_) => Ok(()),
            Err(e) => Err(WireError::Lost(e.to_string())),
        }
    }

    fn poll_exchange(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        // A failure to send is told only if there is nothing to read: the server's own reason may wait there.
        let sent = self.poll_send(cx);
        match pin!(self.stream.read_buf(&mut self.inbox)).poll(cx) {
            Poll::Ready(read) => Poll::Ready(read),
            Poll::Pending => match sent {
                Poll::Ready(Err(e)) => Poll::Ready(Err(e)),
                Poll::Ready(Ok(())) | Poll::Pending => Poll::Pending,
            },
        }
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.outbox.is_empty() {
            match Pin::new(&mut self.stream).poll_write(cx, &self.outbox) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(n)) => self.outbox.advance(n),
                Poll::Ready(Err(e)) => return Poll::Ready(Err(e)),
                Poll::Pending => return Poll::Pending,
            }
            self.flushed = false;
        }
        if self.outbox.capacity() > KEPT_BYTES_MAX {
            self.outbox = BytesMut::new();
        }
        if self.flushed {
            return Poll::Ready(Ok(()));
        }
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.flushed = matches!(flushed, Poll::Ready(Ok(())));
        flushed
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::AsyncWriteExt;
    use tokio::net::UnixStream;

    use super::*;

    fn pair() -> (Channel, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Channel::new(Stream::Unix(ours)), theirs)
    }

    #[tokio::test]
    async fn a_length_that_is_only_claimed_takes_no_memory() {
        let (mut channel, mut server) = pair();
        server.write_all(b"D\x7f\xff\xff\xffabc").await.unwrap();
        drop(server);
        let header = channel.header().await.unwrap();
        assert_eq!(header, Header { tag: b'D', bytes: i32::MAX as usize - 4 });
        let found = channel.want(1 << 20).await.map(<[u8]>::len);
        assert!(matches!(found, Err(WireError::Lost(_))), "{found:?}");
        assert!(channel.inbox.capacity() <= 2 * READ_BYTES);
    }

    #[tokio::test]
    async fn what_came_unasked_is_seen_and_so_is_the_end() {
        async fn is_seen(channel: &Channel) -> bool {
            let seen = async {
                while channel.is_quiet() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(10), seen).await.is_ok()
        }
        let (channel, mut server) = pair();
        assert!(channel.is_quiet());
        server.write_all(b"E").await.unwrap();
        assert!(is_seen(&channel).await);
        let (channel, server) = pair();
        drop(server);
        assert!(is_seen(&channel).await);
    }

    #[tokio::test]
    async fn impossible_lengths_are_refused() {
        for head in [*b"D\0\0\0\x03", *b"D\x80\0\0\0", *b"D\xff\xff\xff\xff"] {
            let (mut channel, mut server) = pair();
            server.write_all(&head).await.unwrap();
            let found = channel.header().await;
            assert!(matches!(found, Err(WireError::Protocol(_))), "{head:?} {found:?}");
        }
    }

    #[tokio::test]
    async fn both_ends_may_send_at_once_without_end() {
        const BYTES: usize = 4 << 20;
        let (mut channel, mut server) = pair();
        channel.out().extend_from_slice(&vec![1; BYTES]);
        // The server writes everything before it reads anything.
        let server = tokio::spawn(async move {
            server.write_all(&vec![2; BYTES]).await.unwrap();
            let mut read = vec![0; BYTES];
            server.read_exact(&mut read).await.unwrap();
            server.write_all(&[3]).await.unwrap();
            server
        });
        channel.skip(BYTES).await.unwrap();
        assert_eq!(channel.want(1).await.unwrap(), [3]);
        server.await.unwrap();
    }

    #[tokio::test]
    async fn a_buffer_that_grew_is_given_back() {
        let (mut channel, mut server) = pair();
        let sender = tokio::spawn(async move {
            server.write_all(&vec![7; 1 << 20]).await.unwrap();
            server
        });
        channel.want(1 << 20).await.unwrap();
        channel.done(1 << 20);
        assert!(channel.inbox.capacity() <= KEPT_BYTES_MAX);
        sender.await.unwrap();
    }
}
