//! Opens the byte stream to a server: TCP or Unix socket, with TLS where the endpoint demands it.
//!
//! The answer to the request for TLS is one byte and nothing may follow it before the handshake: a server (or who
//! sits before it) that sends more is refused, so nothing unencrypted is ever taken for part of the session. A
//! certificate is checked as `sslmode` says, and never less: see [`Trust`].
//! Nothing here knows passwords, and nothing here speaks the protocol beyond that one byte.

mod certificate;
mod der;
mod driver;
mod named;
mod untrusted;

pub(super) use driver::Encrypted;
pub use untrusted::TlsFault;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{Endpoint, Host};
use crate::model::{TlsMode, fault};

/// The code of the request for TLS, in place of a protocol version.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

/// An open connection, ready for the startup message.
pub(crate) enum Stream {
    /// TCP without TLS.
    Tcp(TcpStream),
    /// A Unix socket.
    Unix(UnixStream),
    /// TLS over TCP.
    Tls(Box<TlsStream<TcpStream>>),
}

/// Why a connection could not be opened. Holds no secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetError {
    /// Nobody answered in time.
    #[error("the server did not answer within {} ms", .0.as_millis())]
    Timeout(Duration),
    /// The system could not connect.
    #[error("the server cannot be reached: {0}")]
    Unreachable(String),
    /// TLS is demanded and the server has none.
    #[error("the server does not offer TLS, which the endpoint demands")]
    TlsNotOffered,
    /// The handshake failed; a certificate that is not trusted is such a failure.
    #[error("{0}")]
    Tls(TlsFault),
    /// The file of trusted certificates cannot be used.
    #[error("the certificates in `{}` cannot be used: {detail}", .path.display())]
    CaFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
    /// The host's name cannot stand in a certificate.
    #[error("`{0}` is not a host name or address")]
    HostName(String),
    /// The answer to the request for TLS is none, or has more to it.
    #[error("the server's answer to the request for TLS is malformed")]
    Malformed,
}

impl NetError {
    /// Returns what to do where a server answers and TLS with it cannot be had as the URL demands; `None` of all else.
    pub(crate) fn tls_remedy(&self) -> Option<&'static str> {
        match self {
            Self::TlsNotOffered => Some(
                "let the server offer TLS (`ssl = on`), or give `sslmode=prefer` or `disable` where the way to it is trusted",
            ),
            Self::Tls(fault) => Some(fault.remedy()),
            Self::CaFile { .. } => Some("see the file that `sslrootcert` names"),
            Self::Malformed => Some("see what listens at the address: it does not answer as a Postgres server does"),
            Self::Timeout(_) | Self::Unreachable(_) | Self::HostName(_) => None,
        }
    }

    /// Returns whether the same may go well later, with nothing set otherwise.
    pub(crate) fn passes(&self) -> bool {
        match self {
            Self::Timeout(_) | Self::Unreachable(_) => true,
            Self::Tls(fault) => fault.passes(),
            Self::TlsNotOffered | Self::CaFile { .. } | Self::HostName(_) | Self::Malformed => false,
        }
    }
}

/// Opens a connection to `endpoint` within `deadline`, everything included.
///
/// # Errors
/// Fails when the server cannot be reached in time, or not as the endpoint's [`TlsMode`] demands.
pub(crate) async fn open(endpoint: &Endpoint, deadline: Duration) -> Result<Stream, NetError> {
    tokio::time::timeout(fault::within(deadline), open_unbounded(endpoint))
        .await
        .unwrap_or(Err(NetError::Timeout(deadline)))
}

async fn open_unbounded(endpoint: &Endpoint) -> Result<Stream, NetError> {
    let unreachable = |e: io::Error| NetError::Unreachable(e.to_string());
    fault::pass("socket.connect").await.map_err(|injected| unreachable(injected.into()))?;
    let host = match &endpoint.host {
        Host::Unix(directory) => {
            let path = directory.join(format!(".s.PGSQL.{}", endpoint.port));
            return UnixStream::connect(path).await.map(Stream::Unix).map_err(unreachable);
        }
        Host::Tcp(host) => host,
    };
    let tcp = match endpoint.address {
        Some(address) => TcpStream::connect(address).await,
        None => TcpStream::connect((host.as_str(), endpoint.port)).await,
    };
    let mut tcp = tcp.map_err(unreachable)?;
    tcp.set_nodelay(true).map_err(unreachable)?;
    if endpoint.tls == TlsMode::Disable {
        return Ok(Stream::Tcp(tcp));
    }
    match (ask_for_tls(&mut tcp).await?, endpoint.tls) {
        (false, TlsMode::Disable | TlsMode::Prefer) => Ok(Stream::Tcp(tcp)),
        (false, TlsMode::Require | TlsMode::VerifyCa | TlsMode::VerifyFull) => Err(NetError::TlsNotOffered),
        (true, _) => handshake(tcp, host, endpoint).await,
    }
}

/// Asks for TLS and returns whether the server agrees.
async fn ask_for_tls(tcp: &mut TcpStream) -> Result<bool, NetError> {
    let unreachable = |e: io::Error| NetError::Unreachable(e.to_string());
    fault::pass("socket.tls-request").await.map_err(|injected| unreachable(injected.into()))?;
    tcp.write_all(&SSL_REQUEST).await.map_err(unreachable)?;
    // One byte more than may come, so that what must not follow is seen. What comes later meets the handshake.
    let mut answer = [0; 2];
    match (tcp.read(&mut answer).await.map_err(unreachable)?, answer) {
        (0, _) => Err(NetError::Unreachable("the server closed the connection when asked for TLS".into())),
        (1, [b'S', _]) => Ok(true),
        (1, [b'N', _]) => Ok(false),
        (_, _) => Err(NetError::Malformed),
    }
}

async fn handshake(tcp: TcpStream, host: &str, endpoint: &Endpoint) -> Result<Stream, NetError> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let name = ServerName::try_from(bare.to_owned()).map_err(|_| NetError::HostName(host.to_owned()))?;
    fault::pass("socket.tls-handshake").await.map_err(|e| NetError::Tls(TlsFault::of(&io::Error::from(e))))?;
    let config = certificate::client_config(endpoint.tls, endpoint.ca_file.as_deref()).await?;
    let stream = TlsConnector::from(Arc::new(config)).connect(name, tcp).await;
    stream.map(|tls| Stream::Tls(Box::new(tls))).map_err(|e| NetError::Tls(TlsFault::of(&e)))
}

impl Stream {
    /// Returns whether what is sent is encrypted, or never leaves this machine's kernel.
    pub(crate) fn is_private(&self) -> bool {
        match self {
            Self::Tcp(_) => false,
            Self::Unix(_) | Self::Tls(_) => true,
        }
    }

    /// Returns whether it is TLS.
    pub(crate) fn is_encrypted(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// Returns the address of the other end, where it has one.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        let tcp = match self {
            Self::Tcp(tcp) => tcp,
            Self::Tls(tls) => tls.get_ref().0,
            Self::Unix(_) => return None,
        };
        tcp.peer_addr().ok()
    }

    /// Returns whether nothing has come that waits to be read, and the other end has not closed. Takes a byte of what has
    /// come, so the stream is of no use after a `false`.
    pub(crate) fn is_quiet(&self) -> bool {
        let mut byte = [0];
        let read = match self {
            Self::Tcp(s) => s.try_read(&mut byte),
            Self::Unix(s) => s.try_read(&mut byte),
            Self::Tls(s) => s.get_ref().0.try_read(&mut byte),
        };
        matches!(read, Err(e) if e.kind() == io::ErrorKind::WouldBlock)
    }

    /// Returns the `tls-server-end-point` channel binding (RFC 5929), where the certificate has one.
    pub(crate) fn channel_binding(&self) -> Option<Vec<u8>> {
        let Self::Tls(tls) = self else { return None };
        let certificate = tls.get_ref().1.peer_certificates()?.first()?;
        certificate::end_point_hash(certificate)
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        ready!(fault::poll("socket.read", cx))?;
        match self.get_mut() {
            Self::Tcp(s) => Pin::new(s).poll_read(cx, buf),
            Self::Unix(s) => Pin::new(s).poll_read(cx, buf),
            Self::Tls(s) => Pin::new(s).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        ready!(fault::poll("socket.write", cx))?;
        match self.get_mut() {
            Self::Tcp(s) => Pin::new(s).poll_write(cx, buf),
            Self::Unix(s) => Pin::new(s).poll_write(cx, buf),
            Self::Tls(s) => Pin::new(s).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(s) => Pin::new(s).poll_flush(cx),
            Self::Unix(s) => Pin::new(s).poll_flush(cx),
            Self::Tls(s) => Pin::new(s).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(s) => Pin::new(s).poll_shutdown(cx),
            Self::Unix(s) => Pin::new(s).poll_shutdown(cx),
            Self::Tls(s) => Pin::new(s).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::engine::postgres::ChannelBinding;

    const SOON: Duration = Duration::from_secs(5);

    fn endpoint(port: u16, tls: TlsMode) -> Endpoint {
        Endpoint {
            host: Host::Tcp("127.0.0.1".into()),
            port,
            tls,
            ca_file: None,
            address: None,
            binding: ChannelBinding::Prefer,
        }
    }

    /// Connects to a server that answers the request for TLS with `answer`.
    async fn check(tls: TlsMode, answer: &'static [u8], expected: Result<(), NetError>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = tokio::spawn(async move {
            let (mut tcp, _) = listener.accept().await.unwrap();
            let mut request = [0; 8];
            tcp.read_exact(&mut request).await.unwrap();
            assert_eq!(request, SSL_REQUEST);
            tcp.write_all(answer).await.unwrap();
            tcp.shutdown().await.unwrap();
        });
        let found = open(&endpoint(port, tls), SOON).await.map(|_| ());
        match (&found, &expected) {
            (Err(NetError::Tls(_)), Err(NetError::Tls(_))) => {}
            _ => assert_eq!(found, expected, "{tls:?} {answer:?}"),
        }
        server.await.unwrap();
    }

    #[tokio::test]
    async fn a_server_without_tls_is_refused_where_tls_is_demanded() {
        for tls in [TlsMode::Require, TlsMode::VerifyCa, TlsMode::VerifyFull] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let server = async {
                let (mut tcp, _) = listener.accept().await.unwrap();
                tcp.read_exact(&mut [0; 8]).await.unwrap();
                tcp.write_all(b"N").await.unwrap();
                tcp
            };
            let endpoint = endpoint(port, tls);
            let (found, _tcp) = tokio::join!(open(&endpoint, SOON), server);
            assert_eq!(found.map(|_| ()), Err(NetError::TlsNotOffered));
        }
    }

    #[tokio::test]
    async fn a_name_whose_address_is_known_is_not_looked_up_again() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let host = Host::Tcp("elsewhere.invalid".into());
        let endpoint = Endpoint { host, address: Some(address), ..endpoint(1, TlsMode::Disable) };
        assert_eq!(open(&endpoint, SOON).await.unwrap().address(), Some(address));
    }

    #[tokio::test]
    async fn what_follows_the_answer_in_the_clear_is_refused() {
        let authentication_ok = b"SR\0\0\0\x08\0\0\0\0";
        check(TlsMode::Require, authentication_ok, Err(NetError::Malformed)).await;
        check(TlsMode::Prefer, b"NR\0\0\0\x08\0\0\0\0", Err(NetError::Malformed)).await;
    }

    #[tokio::test]
    async fn an_answer_that_is_none_is_refused() {
        check(TlsMode::Prefer, b"E", Err(NetError::Malformed)).await;
        let gone = NetError::Unreachable("the server closed the connection when asked for TLS".into());
        check(TlsMode::Prefer, b"", Err(gone)).await;
    }

    #[tokio::test]
    async fn a_server_that_is_silent_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let short = Duration::from_millis(50);
        let found = open(&endpoint(port, TlsMode::Prefer), short).await.map(|_| ());
        assert_eq!(found, Err(NetError::Timeout(short)));
    }

    #[tokio::test]
    async fn a_port_that_nobody_listens_on_is_unreachable() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let found = open(&endpoint(port, TlsMode::Disable), SOON).await.map(|_| ());
        assert!(matches!(found, Err(NetError::Unreachable(_))), "{found:?}");
    }
}
