//! Which server certificates are trusted, and what a session can be bound to.
//!
//! `require` without a CA file accepts any certificate, as it does everywhere: it stops who only listens. With a
//! CA file it is `verify-ca`. `verify-ca` without a file of its own falls back on the public authorities, which sign
//! for anyone, so the name is checked then as well. A certificate that the file holds itself is its own authority.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use sha2::{Digest, Sha256, Sha384, Sha512};

use super::named::Named;
use super::untrusted::TlsFault;
use super::{NetError, der};
use crate::model::TlsMode;

/// The largest file of trusted certificates, in bytes: the list of all public authorities has a tenth of it.
const CA_FILE_BYTES_MAX: u64 = 4 << 20;

/// How much of a certificate is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    /// Nothing but that the server holds its key.
    Any,
    /// That a trusted authority signed it.
    Authority,
    /// That, and that it is for the host.
    AuthorityAndName,
}

/// Builds the TLS settings for `mode` with the certificates of `ca_file`, or the built-in ones.
pub(super) async fn client_config(mode: TlsMode, ca_file: Option<&Path>) -> Result<ClientConfig, NetError> {
    let trust = match (mode, ca_file) {
        (TlsMode::Disable | TlsMode::Prefer | TlsMode::Require, None) | (TlsMode::Disable | TlsMode::Prefer, _) => {
            Trust::Any
        }
        (TlsMode::Require | TlsMode::VerifyCa, Some(_)) => Trust::Authority,
        (TlsMode::VerifyCa, None) | (TlsMode::VerifyFull, _) => Trust::AuthorityAndName,
    };
    let tls = |_: Error| NetError::Tls(TlsFault::Other);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier: Arc<dyn ServerCertVerifier> = match trust {
        Trust::Any => Arc::new(Lenient { roots: None, provider: Arc::clone(&provider) }),
        Trust::Authority => {
            let (roots, certificates) = roots(ca_file).await?;
            let otherwise = Arc::new(Lenient { roots: Some(roots), provider: Arc::clone(&provider) });
            Arc::new(Named { certificates, names: false, otherwise })
        }
        Trust::AuthorityAndName => {
            let (roots, certificates) = roots(ca_file).await?;
            let builder = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
            let otherwise = builder.build().map_err(|_| NetError::Tls(TlsFault::Other))?;
            Arc::new(Named { certificates, names: true, otherwise })
        }
    };
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(tls)?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth())
}

/// Returns the authorities, and the certificates of the file as they are.
async fn roots(ca_file: Option<&Path>) -> Result<(RootCertStore, Vec<CertificateDer<'static>>), NetError> {
    let Some(path) = ca_file else {
        return Ok((RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() }, Vec::new()));
    };
    let fault = |detail: String| NetError::CaFile { path: path.to_owned(), detail };
    let bytes = tokio::fs::metadata(path).await.map_err(|e| fault(e.to_string()))?.len();
    if bytes > CA_FILE_BYTES_MAX {
        return Err(fault(format!("it has {bytes} bytes, at most {CA_FILE_BYTES_MAX} are read")));
    }
    let pem = tokio::fs::read(path).await.map_err(|e| fault(e.to_string()))?;
    let (mut store, mut certificates) = (RootCertStore::empty(), Vec::new());
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|_| fault("it is not in PEM form".into()))?;
        store.add(certificate.clone()).map_err(|_| fault("a certificate in it is malformed".into()))?;
        certificates.push(certificate);
    }
    if store.is_empty() {
        return Err(fault("there is no certificate in it".into()));
    }
    Ok((store, certificates))
}

/// A check that leaves out the name, and without roots the authority too. The handshake's signature is always checked.
#[derive(Debug)]
struct Lenient {
    roots: Option<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if let Some(roots) = &self.roots {
            let certificate = ParsedCertificate::try_from(end_entity)?;
            let algorithms = self.provider.signature_verification_algorithms.all;
            verify_server_cert_signed_by_trust_anchor(&certificate, roots, intermediates, now, algorithms)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Signature algorithms of certificates by the contents of their object identifiers, and the hash of RFC 5929 § 4.1:
/// the signature's own, SHA-256 in place of MD5 and SHA-1. Others, Ed25519 and RSA-PSS among them, have none.
const HASHES: [(&[u8], Hash); 9] = [
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x04], Hash::Sha256), // md5WithRSA
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x05], Hash::Sha256), // sha1WithRSA
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0b], Hash::Sha256), // sha256WithRSA
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0c], Hash::Sha384), // sha384WithRSA
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0d], Hash::Sha512), // sha512WithRSA
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x01], Hash::Sha256),             // ecdsa-with-SHA1
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02], Hash::Sha256),       // ecdsa-with-SHA256
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x03], Hash::Sha384),       // ecdsa-with-SHA384
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x04], Hash::Sha512),       // ecdsa-with-SHA512
];

#[derive(Clone, Copy)]
enum Hash {
    Sha256,
    Sha384,
    Sha512,
}

/// Returns what `tls-server-end-point` binds a session to, `None` where the signature algorithm defines nothing.
pub(super) fn end_point_hash(certificate: &[u8]) -> Option<Vec<u8>> {
    // Certificate ::= SEQUENCE { tbsCertificate SEQUENCE, signatureAlgorithm SEQUENCE { algorithm OID, … }, … }
    let (outer, _) = der::element(certificate, der::SEQUENCE)?;
    let (_, after_tbs) = der::element(outer, der::SEQUENCE)?;
    let (algorithm, _) = der::element(after_tbs, der::SEQUENCE)?;
    let (oid, _) = der::element(algorithm, der::OBJECT_IDENTIFIER)?;
    let (_, hash) = HASHES.iter().find(|(known, _)| *known == oid)?;
    Some(match hash {
        Hash::Sha256 => Sha256::digest(certificate).to_vec(),
        Hash::Sha384 => Sha384::digest(certificate).to_vec(),
        Hash::Sha512 => Sha512::digest(certificate).to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_hashed_as_its_signature_says() {
        // A certificate in shape only: empty body, sha384WithRSA, empty signature.
        let oid = [0x06, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0c];
        let mut der = vec![0x30, 0x81, 17, 0x30, 0, 0x30, 11];
        der.extend(oid);
        assert_eq!(end_point_hash(&der), None, "cut off");
        der.extend([0x03, 0]);
        assert_eq!(end_point_hash(&der), Some(Sha384::digest(&der).to_vec()));
    }

    #[test]
    fn a_real_certificate_is_hashed_whole() {
        let pem = include_bytes!("../../../../tests/it/wire/tls/server.pem");
        let der = CertificateDer::from_pem_slice(pem).unwrap();
        assert_eq!(end_point_hash(&der), Some(Sha384::digest(&der).to_vec()));
    }

    #[test]
    fn ed25519_binds_nothing() {
        assert_eq!(end_point_hash(&[0x30, 9, 0x30, 0, 0x30, 5, 0x06, 3, 0x2b, 0x65, 0x70]), None);
    }

    #[tokio::test]
    async fn a_ca_file_without_certificates_is_a_fault() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let found = client_config(TlsMode::VerifyFull, Some(file.path())).await.map(|_| ());
        assert!(matches!(found, Err(NetError::CaFile { .. })), "{found:?}");
        let found = client_config(TlsMode::Require, Some(Path::new("/nowhere/ca.pem"))).await.map(|_| ());
        assert!(matches!(found, Err(NetError::CaFile { .. })), "{found:?}");
    }

    #[tokio::test]
    async fn a_ca_file_is_read_up_to_its_bound_and_no_further() {
        let pem = include_bytes!("../../../../tests/it/wire/tls/server.pem");
        let file = tempfile::NamedTempFile::new().unwrap();
        for (bytes, fits) in [(CA_FILE_BYTES_MAX - 1, true), (CA_FILE_BYTES_MAX, true), (CA_FILE_BYTES_MAX + 1, false)]
        {
            let mut text = pem.to_vec();
            text.resize(usize::try_from(bytes).unwrap(), b'\n');
            std::fs::write(file.path(), text).unwrap();
            let found = client_config(TlsMode::VerifyFull, Some(file.path())).await.map(|_| ());
            assert_eq!(found.is_ok(), fits, "{bytes}: {found:?}");
        }
    }
}
