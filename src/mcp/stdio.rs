//! MCP over standard input and output. Nothing but JSON-RPC is ever written to the latter.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rmcp::service::serve_server;
use rmcp::transport::io::stdio_pipes;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, Sleep};

use super::handler::Handler;
use super::lines::Lines;
use crate::model::fault;
use crate::service::Service;

/// How long calls that run when the input ends may take to finish.
const DRAIN: Duration = Duration::from_secs(60);
/// How long they may take when the program is told to end: whoever tells it kills it soon after.
const SIGNAL_DRAIN: Duration = Duration::from_secs(5);
/// How often running calls are counted once the input has ended.
const DRAIN_TICK: Duration = Duration::from_millis(10);

/// Serves one client until its input ends, or a signal says so, and what runs is done.
///
/// # Errors
/// Fails if the streams fail, or the client's first message is no handshake.
pub async fn serve_stdio(service: Arc<Service>, handler: Handler) -> io::Result<()> {
    let (input, output) = stdio_pipes();
    // SIGHUP ends nothing: it has the policies read again, and where a terminal is gone the input ends by itself.
    let kinds = [SignalKind::terminate(), SignalKind::interrupt()];
    let signals = kinds.into_iter().map(signal).collect::<io::Result<_>>()?;
    let input = DrainingInput { inner: input, service, signals, ended: None };
    let running = match serve_server(handler, Lines::new(input, output)).await {
        Ok(running) => running,
        // A client that goes away before the handshake has nothing to be told.
        Err(rmcp::service::ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        // Its own words would quote the message.
        Err(rmcp::service::ServerInitializeError::ExpectedInitializeRequest(_)) => {
            return Err(io::Error::other("the client's first message is no handshake"));
        }
        Err(error) => return Err(io::Error::other(error.to_string())),
    };
    running.waiting().await.map(|_reason| ()).map_err(io::Error::other)
}

/// Input whose end is passed on only when no call is running any more. After a signal nothing more is read.
struct DrainingInput<R> {
    inner: R,
    service: Arc<Service>,
    signals: Vec<Signal>,
    ended: Option<Ended>,
}

/// Input that has ended, while calls may still be running.
struct Ended {
    deadline: Instant,
    tick: Pin<Box<Sleep>>,
}

impl Ended {
    fn within(drain: Duration) -> Self {
        // A call that was just read may not have begun: look again after a tick.
        Self { deadline: Instant::now() + drain, tick: Box::pin(tokio::time::sleep(DRAIN_TICK)) }
    }

    fn poll(&mut self, cx: &mut Context<'_>, service: &Service) -> Poll<()> {
        loop {
            if self.tick.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            let now = Instant::now();
            if service.running() == 0 || now >= self.deadline {
                return Poll::Ready(());
            }
            self.tick.as_mut().reset(now + DRAIN_TICK);
        }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for DrainingInput<R> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        for signal in &mut this.signals {
            // One after another, so that each of them wakes us.
            while let Poll::Ready(Some(())) = signal.poll_recv(cx) {
                // A second signal is no other than the first.
                let deadline = Instant::now() + SIGNAL_DRAIN;
                let ended = this.ended.get_or_insert_with(|| Ended::within(SIGNAL_DRAIN));
                ended.deadline = ended.deadline.min(deadline);
            }
        }
        if this.ended.is_none() {
            let before = buf.filled().len();
            let polled = Pin::new(&mut this.inner).poll_read(cx, buf);
            let at_end = matches!(polled, Poll::Ready(Ok(()))) && buf.filled().len() == before && buf.remaining() > 0;
            if !at_end {
                return polled;
            }
        }
        this.ended.get_or_insert_with(|| Ended::within(fault::within(DRAIN))).poll(cx, &this.service).map(Ok)
    }
}
