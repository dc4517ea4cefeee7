//! MCP over standard input and output. Nothing but JSON-RPC is ever written to the latter.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rmcp::service::serve_server;
use rmcp::transport::io::stdio_pipes;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::Sleep;

use super::handler::Handler;
use super::lines::Lines;
use crate::service::Service;

/// How long calls that run when the input ends may take to finish.
const DRAIN: Duration = Duration::from_secs(60);
/// How often running calls are counted once the input has ended.
const DRAIN_TICK: Duration = Duration::from_millis(10);

/// Serves one client until its input ends and what runs is done.
///
/// # Errors
/// Fails if the streams fail, or the client's first message is no handshake.
pub async fn serve_stdio(service: Arc<Service>, handler: Handler) -> io::Result<()> {
    let (input, output) = stdio_pipes();
    let input = DrainingInput { inner: input, service, ended: None };
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

/// Input whose end is passed on only when no call is running any more.
struct DrainingInput<R> {
    inner: R,
    service: Arc<Service>,
    ended: Option<(tokio::time::Instant, Pin<Box<Sleep>>)>,
}

impl<R: AsyncRead + Unpin> AsyncRead for DrainingInput<R> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.ended.is_none() {
            let before = buf.filled().len();
            let polled = Pin::new(&mut this.inner).poll_read(cx, buf);
            let at_end = matches!(polled, Poll::Ready(Ok(()))) && buf.filled().len() == before && buf.remaining() > 0;
            if !at_end {
                return polled;
            }
            // A call that was just read may not have begun: look again after a tick.
            let tick = Box::pin(tokio::time::sleep(DRAIN_TICK));
            this.ended = Some((tokio::time::Instant::now() + DRAIN, tick));
        }
        let Some((deadline, tick)) = &mut this.ended else { return Poll::Pending };
        loop {
            match tick.as_mut().poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(()) => {
                    let now = tokio::time::Instant::now();
                    if this.service.running() == 0 || now >= *deadline {
                        return Poll::Ready(Ok(()));
                    }
                    tick.as_mut().reset(now + DRAIN_TICK);
                }
            }
        }
    }
}
