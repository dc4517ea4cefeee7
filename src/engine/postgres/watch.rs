//! Gives up a server that owes an answer and does not give it.
//!
//! The driver waits for an answer without end, and so would everybody who asked: for a server that was stopped by a
//! signal, or behind a connection that only one end still believes in. A [`Watched`] stream follows how many answers are
//! owed, by the kinds of messages that pass, and fails to read once one has been owed for too long. The driver then ends
//! the connection, and whoever waits is told. Nothing here reads what messages say.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// Messages of ours that are answered by [`READY`]: Sync, and a simple Query.
const ASKS: [u8; 2] = [b'S', b'Q'];
/// The server's word that it has answered and is ready for the next.
const READY: u8 = b'Z';

/// How long answers may take, which may be changed while nothing is owed.
#[derive(Clone, Debug)]
pub(super) struct Patience(Arc<AtomicU64>);

impl Patience {
    pub(super) fn new(answer: Duration) -> Self {
        let patience = Self(Arc::default());
        patience.set(answer);
        patience
    }

    pub(super) fn set(&self, answer: Duration) {
        self.0.store(u64::try_from(answer.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn get(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}

/// A stream to a server, from the startup message on.
pub(super) struct Watched<S> {
    stream: S,
    patience: Patience,
    sent: Messages,
    received: Messages,
    owed: u64,
    limit: Option<Pin<Box<Sleep>>>,
}

impl<S> Watched<S> {
    /// Watches `stream`, on which nothing was sent yet.
    pub(super) fn new(stream: S, patience: Patience) -> Self {
        // The startup message is answered like a query; it alone has no kind, only a length.
        let sent = Messages { head_bytes: 4, ..Messages::default() };
        Self { stream, patience, sent, received: Messages::default(), owed: 1, limit: None }
    }

    fn arm(&mut self) {
        self.limit = Some(Box::pin(sleep_until(Instant::now() + self.patience.get())));
    }

    /// Wakes the task when the limit is reached; says whether it is.
    fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        self.limit.as_mut().is_some_and(|limit| limit.as_mut().poll(cx).is_ready())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        if let Poll::Ready(read) = Pin::new(&mut this.stream).poll_read(cx, buf) {
            let news = buf.filled().get(before..).unwrap_or_default();
            let mut answered = 0;
            this.received.follow(news, |kind| answered += u64::from(kind == READY));
            if answered > 0 {
                this.owed = this.owed.saturating_sub(answered);
                this.limit = None;
                if this.owed > 0 {
                    this.arm();
                }
            }
            return Poll::Ready(read);
        }
        if this.is_over(cx) {
            let ms = this.patience.get().as_millis();
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("the server did not answer within {ms} ms"),
            )));
        }
        Poll::Pending
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(cx, buf);
        if let Poll::Ready(Ok(count)) = &written {
            let mut asked = 0;
            this.sent.follow(buf.get(..*count).unwrap_or_default(), |kind| asked += u64::from(ASKS.contains(&kind)));
            this.owed = this.owed.saturating_add(asked);
        }
        // What cannot be sent will not be answered either.
        if this.limit.is_none() && (this.owed > 0 || written.is_pending()) {
            this.arm();
        }
        // The driver writes after it has read; so the task is to be woken from here as well. It reads again then.
        if this.is_over(cx) {
            cx.waker().wake_by_ref();
        }
        written
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

/// Where one direction stands: in a message's head, or so many bytes before the next one.
#[derive(Debug)]
struct Messages {
    head: Vec<u8>,
    /// Kind and length; the length alone in the startup message.
    head_bytes: usize,
    rest: usize,
}

impl Default for Messages {
    fn default() -> Self {
        Self { head: Vec::with_capacity(5), head_bytes: 5, rest: 0 }
    }
}

impl Messages {
    /// Reads on, and tells the kind of each message whose head ends here.
    fn follow(&mut self, mut bytes: &[u8], mut each: impl FnMut(u8)) {
        while !bytes.is_empty() {
            let passed = self.rest.min(bytes.len());
            self.rest -= passed;
            bytes = bytes.get(passed..).unwrap_or_default();
            let wanted = (self.head_bytes - self.head.len()).min(bytes.len());
            self.head.extend_from_slice(bytes.get(..wanted).unwrap_or_default());
            bytes = bytes.get(wanted..).unwrap_or_default();
            if self.head.len() < self.head_bytes {
                continue;
            }
            let length = self.head.last_chunk::<4>().map_or(4, |length| u32::from_be_bytes(*length));
            self.rest = usize::try_from(length).unwrap_or(usize::MAX).saturating_sub(4);
            if let (5, Some(kind)) = (self.head_bytes, self.head.first()) {
                each(*kind);
            }
            self.head.clear();
            self.head_bytes = 5;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    const SHORT: Duration = Duration::from_millis(50);
    const QUERY: &[u8] = b"Q\0\0\0\x06x\0";
    const READY_IDLE: &[u8] = b"Z\0\0\0\x05I";

    #[test]
    fn messages_are_told_however_they_are_cut() {
        let text = [b"\0\0\0\x09hello".as_slice(), QUERY, b"P\0\0\0\x04", b"S\0\0\0\x04"].concat();
        for size in 1..=text.len() {
            let mut kinds = Vec::new();
            let mut messages = Messages { head_bytes: 4, ..Messages::default() };
            for piece in text.chunks(size) {
                messages.follow(piece, |kind| kinds.push(kind));
            }
            assert_eq!(kinds, b"QPS", "in pieces of {size}");
        }
    }

    #[tokio::test]
    async fn a_server_that_owes_an_answer_is_given_up_and_one_that_owes_none_is_not() {
        let (ours, mut server) = duplex(1024);
        let mut watched = Watched::new(ours, Patience::new(SHORT));
        watched.write_all(b"\0\0\0\x09hello").await.unwrap();
        server.write_all(READY_IDLE).await.unwrap();
        let mut answer = [0; 6];
        watched.read_exact(&mut answer).await.unwrap();
        let idle = tokio::time::timeout(4 * SHORT, watched.read_u8()).await;
        assert!(idle.is_err(), "nothing is owed: {idle:?}");

        watched.write_all(QUERY).await.unwrap();
        // Half an answer is none.
        server.write_all(b"C\0\0\0\x06x").await.unwrap();
        let mut half = [0; 6];
        watched.read_exact(&mut half).await.unwrap();
        let begun = Instant::now();
        assert_eq!(watched.read_u8().await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() < Duration::from_secs(60));
    }

    #[tokio::test]
    async fn a_server_that_takes_nothing_is_given_up() {
        let (ours, _server) = duplex(4);
        let (mut reader, mut writer) = tokio::io::split(Watched::new(ours, Patience::new(SHORT)));
        // In one task, as the driver reads and writes.
        let outcome = tokio::select! {
            read = reader.read_u8() => read.map(drop),
            written = writer.write_all(&[0; 64]) => written,
        };
        assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
