//! Where a server is reached.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::model::TlsMode;

/// A server's address and how the connection is protected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Where.
    pub host: Host,
    /// TCP port, or the number in the socket's file name.
    pub port: u16,
    /// How the connection is protected. Sockets are never.
    pub tls: TlsMode,
    /// Certificates to trust instead of the built-in ones, as a PEM file.
    pub ca_file: Option<PathBuf>,
    /// Where the host was found: it is connected to instead of looking the name up again.
    pub address: Option<SocketAddr>,
    /// Whether a login is bound to the server's certificate.
    pub binding: ChannelBinding,
}

/// Whether the proof of a password is bound to the certificate of the server that it is given to: who stands between with a
/// certificate of his own cannot pass it on then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChannelBinding {
    /// It is not.
    Disable,
    /// It is where the server offers it.
    #[default]
    Prefer,
    /// It is, or nobody logs in.
    Require,
}

impl ChannelBinding {
    /// Returns it as a URL has it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Disable => "disable",
            Self::Prefer => "prefer",
            Self::Require => "require",
        }
    }
}

/// A host name or a socket directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// A name or address.
    Tcp(String),
    /// The directory of a Unix socket.
    Unix(PathBuf),
}

/// Settings sent when a connection starts; they outrank database and role settings, and come back at RESET.
pub type StartupOptions = Vec<(String, String)>;
