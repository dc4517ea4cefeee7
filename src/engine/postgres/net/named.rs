//! Trusts a certificate that `sslrootcert` names itself, as servers with a certificate of their own signing have it.
//!
//! The usual checks know authorities alone, and refuse the certificate of an authority that a server shows as its own.
//! Where what the server shows is byte for byte one that the operator's file holds there is nobody else to be asked: it is its own
//! anchor. Its time, its purpose, its names and the handshake's signature are checked as ever.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::der::Parts;

/// A check of certificates that the file names, and `otherwise` of all others.
#[derive(Debug)]
pub(super) struct Named {
    pub(super) certificates: Vec<CertificateDer<'static>>,
    /// Whether the names are checked too.
    pub(super) names: bool,
    pub(super) otherwise: Arc<dyn ServerCertVerifier>,
}

impl Named {
    fn check(&self, certificate: &CertificateDer<'_>, name: &ServerName<'_>, now: UnixTime) -> Result<(), Error> {
        let parsed = ParsedCertificate::try_from(certificate)?;
        let parts = Parts::of(certificate).ok_or(CertificateError::BadEncoding)?;
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        if now < parts.not_before.timestamp() {
            return Err(CertificateError::NotValidYet.into());
        }
        if now > parts.not_after.timestamp() {
            return Err(CertificateError::Expired.into());
        }
        if !parts.for_servers {
            return Err(CertificateError::InvalidPurpose.into());
        }
        if !self.names || names_by_common_name(&parts, name) {
            return Ok(());
        }
        verify_server_name(&parsed, name)
    }
}

/// Returns whether the subject's common name is the host, where there are no other names: as `openssl req -x509` makes them.
fn names_by_common_name(parts: &Parts<'_>, name: &ServerName<'_>) -> bool {
    let host = name.to_str();
    !parts.has_alt_names && parts.common_name.is_some_and(|common| common.eq_ignore_ascii_case(host.as_bytes()))
}

impl ServerCertVerifier for Named {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if !self.certificates.iter().any(|named| named.as_ref() == end_entity.as_ref()) {
            return self.otherwise.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        }
        self.check(end_entity, server_name, now).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.otherwise.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.otherwise.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.otherwise.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustls::RootCertStore;
    use rustls::client::WebPkiServerVerifier;
    use rustls_pki_types::pem::PemObject;

    use super::*;

    const PLAIN: &[u8] = include_bytes!("../../../../tests/it/wire/tls/self-signed.pem");
    const NAMES: &[u8] = include_bytes!("../../../../tests/it/wire/tls/self-signed-names.pem");
    const CLIENT: &[u8] = include_bytes!("../../../../tests/it/wire/tls/self-signed-client.pem");
    const OTHER: &[u8] = include_bytes!("../../../../tests/it/wire/tls/self-signed-other.pem");

    fn der(pem: &[u8]) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(pem).unwrap()
    }

    fn trusting(pem: &[u8], names: bool) -> Named {
        let mut roots = RootCertStore::empty();
        roots.add(der(pem)).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let otherwise = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        Named { certificates: vec![der(pem)], names, otherwise }
    }

    /// Asks who trusts `trusted` about a server that shows `shown` as `host`, `days` after the certificate began.
    fn found(trusted: &[u8], names: bool, shown: &[u8], host: &str, days: i64) -> Result<(), Error> {
        let shown = der(shown);
        let begin = Parts::of(&shown).unwrap().not_before.timestamp();
        let now = u64::try_from(begin + days * 86_400).unwrap();
        let now = UnixTime::since_unix_epoch(Duration::from_secs(now));
        let host = ServerName::try_from(host).unwrap();
        trusting(trusted, names).verify_server_cert(&shown, &[], &host, &[], now).map(|_| ())
    }

    #[test]
    fn a_certificate_that_the_file_holds_is_its_own_anchor() {
        assert_eq!(found(PLAIN, true, PLAIN, "localhost", 1), Ok(()), "by its common name");
        assert_eq!(found(PLAIN, true, PLAIN, "LocalHost", 1), Ok(()));
        assert_eq!(found(NAMES, true, NAMES, "localhost", 1), Ok(()));
        assert_eq!(found(NAMES, true, NAMES, "127.0.0.1", 1), Ok(()));
        assert_eq!(found(NAMES, false, NAMES, "anywhere.example", 1), Ok(()), "verify-ca does not ask for the name");
    }

    #[test]
    fn its_names_are_checked() {
        for (pem, host) in [(PLAIN, "127.0.0.1"), (PLAIN, "localhost.example"), (NAMES, "other.example")] {
            let found = found(pem, true, pem, host, 1);
            let is_name = matches!(
                found,
                Err(Error::InvalidCertificate(
                    CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }
                ))
            );
            assert!(is_name, "{host}: {found:?}");
        }
        let by_common_name = found(NAMES, true, NAMES, "elsewhere.example", 1);
        assert!(by_common_name.is_err(), "a common name beside other names counts for nothing");
    }

    #[test]
    fn its_time_and_its_purpose_are_checked() {
        for names in [true, false] {
            let expired = Err(CertificateError::Expired.into());
            assert_eq!(found(PLAIN, names, PLAIN, "localhost", 36_501), expired);
            assert_eq!(found(PLAIN, names, PLAIN, "localhost", 36_500), Ok(()), "on its last second");
            assert_eq!(found(PLAIN, names, PLAIN, "localhost", -1), Err(CertificateError::NotValidYet.into()));
            assert_eq!(found(CLIENT, names, CLIENT, "localhost", 1), Err(CertificateError::InvalidPurpose.into()));
        }
    }

    #[test]
    fn another_certificate_of_the_same_name_is_not_trusted() {
        for names in [true, false] {
            assert!(found(PLAIN, names, OTHER, "localhost", 1).is_err());
            assert!(found(OTHER, names, PLAIN, "localhost", 1).is_err());
        }
    }
}
