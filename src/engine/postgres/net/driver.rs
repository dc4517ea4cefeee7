//! Hands the driver of the control plane a stream that is encrypted already, with what a login over it can be bound to.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};

/// Takes a stream for one that is encrypted.
pub(in crate::engine::postgres) struct Encrypted {
    /// Its `tls-server-end-point` channel binding, where it has one.
    pub(in crate::engine::postgres) binding: Option<Vec<u8>>,
}

/// An encrypted stream.
pub(in crate::engine::postgres) struct Bound<S> {
    stream: S,
    binding: Option<Vec<u8>>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsConnect<S> for Encrypted {
    type Stream = Bound<S>;
    type Error = Infallible;
    type Future = Ready<Result<Bound<S>, Infallible>>;

    fn connect(self, stream: S) -> Self::Future {
        ready(Ok(Bound { stream, binding: self.binding }))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Bound<S> {
    fn channel_binding(&self) -> ChannelBinding {
        self.binding.clone().map_or_else(ChannelBinding::none, ChannelBinding::tls_server_end_point)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Bound<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bound<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
