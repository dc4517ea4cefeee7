//! Words what a TLS handshake fails with: a sentence for each fault, and what to do about it.

use std::fmt;
use std::io;

use rustls::{AlertDescription, CertificateError, Error};

/// The most names of a certificate that are shown, and of each so many characters.
const NAMES_MAX: usize = 5;
const NAME_CHARS_MAX: usize = 100;

/// Why a handshake failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsFault {
    /// The connection failed beneath it.
    Connection(String),
    /// The server ended it, with this alert (RFC 8446 § 6).
    Alert(u8),
    /// The server wants a certificate of ours.
    ClientCertificate,
    /// There is no version or cipher that both have.
    Incompatible,
    /// What the server sent is not TLS.
    Malformed,
    /// The certificate's time is over.
    Expired,
    /// The certificate's time has not begun.
    NotYetValid,
    /// Nobody that is trusted signed the certificate.
    UnknownIssuer,
    /// The certificate is for other hosts: for these.
    OtherName(Vec<String>),
    /// The certificate is not for servers.
    Purpose,
    /// The certificate is an authority's, and `sslrootcert` does not name it itself; or it is of an old version.
    Authority,
    /// The certificate, or a signature made with its key, is malformed or of a kind that is not known here.
    Certificate,
    /// Anything else.
    Other,
}

impl TlsFault {
    /// Reads what the handshake failed with.
    pub(super) fn of(error: &io::Error) -> Self {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
            Some(error) => Self::of_tls(error),
            None if error.kind() == io::ErrorKind::UnexpectedEof => {
                Self::Connection("the server closed the connection".into())
            }
            None => Self::Connection(error.to_string()),
        }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "of all that the library knows these are told apart")]
    fn of_tls(error: &Error) -> Self {
        match error {
            Error::AlertReceived(AlertDescription::CertificateRequired) => Self::ClientCertificate,
            Error::AlertReceived(AlertDescription::ProtocolVersion | AlertDescription::HandshakeFailure)
            | Error::PeerIncompatible(_) => Self::Incompatible,
            Error::AlertReceived(alert) => Self::Alert((*alert).into()),
            Error::InvalidMessage(_)
            | Error::InappropriateMessage { .. }
            | Error::InappropriateHandshakeMessage { .. }
            | Error::PeerMisbehaved(_)
            | Error::PeerSentOversizedRecord
            | Error::DecryptError
            | Error::NoCertificatesPresented => Self::Malformed,
            Error::InvalidCertificate(fault) => Self::of_certificate(fault),
            _ => Self::Other,
        }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "of all that the library knows these are told apart")]
    fn of_certificate(fault: &CertificateError) -> Self {
        match fault {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => Self::Expired,
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => Self::NotYetValid,
            CertificateError::UnknownIssuer => Self::UnknownIssuer,
            // Signed by one of the same name and another key.
            CertificateError::BadSignature => Self::UnknownIssuer,
            CertificateError::NotValidForName => Self::OtherName(Vec::new()),
            CertificateError::NotValidForNameContext { presented, .. } => {
                Self::OtherName(presented.iter().take(NAMES_MAX).map(|name| shown(name)).collect())
            }
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => Self::Purpose,
            // Of what has no name of its own there, this is what servers show.
            CertificateError::Other(_) => Self::Authority,
            _ => Self::Certificate,
        }
    }

    /// Returns what to do about it.
    pub(crate) fn remedy(&self) -> &'static str {
        match self {
            Self::Connection(_) => "see the server's log; the call may be repeated",
            Self::Alert(_) | Self::Other => {
                "see the log of the server, which ended the handshake or could not go on with it"
            }
            Self::ClientCertificate => {
                "let `pg_hba.conf` of the server demand no `clientcert` of this role, and give it a password"
            }
            Self::Incompatible => {
                "let the server offer TLS 1.2 or 1.3 (`ssl_min_protocol_version`, `ssl_max_protocol_version`, `ssl_ciphers`)"
            }
            Self::Malformed => "see what listens at the address: it does not answer as a server with TLS does",
            Self::Expired => "have the server's certificate renewed, or see the clock of this machine",
            Self::NotYetValid => "see the clocks of this machine and of the server",
            Self::UnknownIssuer => {
                "let `sslrootcert` name the file of the authority that signed the server's certificate, or of the certificate itself if it \
                 has signed itself"
            }
            Self::OtherName(_) => {
                "reach the server by a name that its certificate has, have it issued with this one (subjectAltName), or give \
                 `sslmode=verify-ca`, which does not check the name"
            }
            Self::Purpose => {
                "give the server a certificate for servers: with `serverAuth`, if it has an extendedKeyUsage"
            }
            Self::Authority => {
                "let `sslrootcert` name the file of this very certificate, or give the server one of version 3 that an authority signed"
            }
            Self::Certificate => {
                "give the server an X.509 certificate of version 3, with an RSA key of at least 2048 bits or one of P-256 or P-384"
            }
        }
    }

    /// Returns whether the same may go well later.
    pub(crate) fn passes(&self) -> bool {
        matches!(self, Self::Connection(_))
    }
}

fn shown(name: &str) -> String {
    // The library writes `DnsName("x")`, `IpAddress(1.2.3.4)`.
    let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).unwrap_or(name);
    inner.trim_matches('"').chars().take(NAME_CHARS_MAX).flat_map(char::escape_default).collect()
}

impl fmt::Display for TlsFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Connection(detail) => return write!(f, "the connection failed in the TLS handshake: {detail}"),
            Self::Alert(code) => return write!(f, "the server ended the TLS handshake (alert {code})"),
            Self::OtherName(names) if !names.is_empty() => {
                return write!(f, "the server's certificate is not for this host, but for `{}`", names.join("`, `"));
            }
            Self::OtherName(_) => "the server's certificate is not for this host",
            Self::ClientCertificate => "the server demands a certificate of the client, of which none can be given",
            Self::Incompatible => "the server offers no version or cipher of TLS that is used here",
            Self::Malformed => "what the server sent in the TLS handshake is malformed",
            Self::Expired => "the server's certificate has expired",
            Self::NotYetValid => "the server's certificate is not valid yet",
            Self::UnknownIssuer => "the server's certificate is signed by nobody who is trusted",
            Self::Purpose => "the server's certificate is not for servers",
            Self::Authority => "the server's certificate is an authority's own, or of a version before 3",
            Self::Certificate => "the server's certificate, or what it signed, is of a kind that is not accepted",
            Self::Other => "the TLS handshake failed",
        };
        f.write_str(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(error: Error) -> TlsFault {
        TlsFault::of(&io::Error::other(error))
    }

    #[test]
    fn each_fault_has_a_sentence_and_a_remedy_of_its_own_and_no_name_of_the_librarys() {
        let names = vec!["DnsName(\"db.example\")".to_owned(), "IpAddress(127.0.0.1)".to_owned()];
        let expected = rustls_pki_types::ServerName::try_from("localhost").unwrap();
        let faults = [
            (Error::AlertReceived(AlertDescription::CertificateRequired), TlsFault::ClientCertificate),
            (Error::AlertReceived(AlertDescription::ProtocolVersion), TlsFault::Incompatible),
            (Error::AlertReceived(AlertDescription::InternalError), TlsFault::Alert(80)),
            (Error::NoCertificatesPresented, TlsFault::Malformed),
            (CertificateError::Expired.into(), TlsFault::Expired),
            (CertificateError::NotValidYet.into(), TlsFault::NotYetValid),
            (CertificateError::UnknownIssuer.into(), TlsFault::UnknownIssuer),
            (
                CertificateError::NotValidForNameContext { expected, presented: names }.into(),
                TlsFault::OtherName(vec!["db.example".into(), "127.0.0.1".into()]),
            ),
            (CertificateError::InvalidPurpose.into(), TlsFault::Purpose),
            (CertificateError::BadEncoding.into(), TlsFault::Certificate),
            (Error::General("of the library".into()), TlsFault::Other),
        ];
        let mut said = std::collections::BTreeSet::new();
        for (error, fault) in faults {
            let found = of(error);
            assert_eq!(found, fault);
            assert!(said.insert(found.to_string()), "{found} is said of two");
            assert!(!found.to_string().contains(['(', '"', ':']) || matches!(found, TlsFault::Alert(_)), "{found}");
            assert!(!found.passes() && !found.remedy().is_empty());
        }
    }

    #[test]
    fn of_a_certificates_names_some_are_shown_and_cut() {
        let long = format!("DnsName(\"{}\")", "x".repeat(NAME_CHARS_MAX + 1));
        let expected = rustls_pki_types::ServerName::try_from("localhost").unwrap();
        let presented = vec![long; NAMES_MAX + 1];
        let names = vec!["x".repeat(NAME_CHARS_MAX); NAMES_MAX];
        let found = of(CertificateError::NotValidForNameContext { expected, presented }.into());
        assert_eq!(found, TlsFault::OtherName(names));
    }

    #[test]
    fn a_connection_that_breaks_may_hold_the_next_time() {
        let broken = TlsFault::of(&io::Error::from(io::ErrorKind::UnexpectedEof));
        assert_eq!(broken, TlsFault::Connection("the server closed the connection".into()));
        assert!(broken.passes());
    }
}
