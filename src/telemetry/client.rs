//! The client that carries spans to the collector, by HTTP or by gRPC.
//!
//! The exporter calls from a thread without a runtime, so each request is a task on the program's own, with a
//! time limit, a connection of its own, and a bound on the answer. Redirects are not followed: spans go where the
//! configuration says and nowhere else. Of gRPC there is one unary call: what differs from HTTP is in [`super::grpc`].

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::uri::{Authority, Scheme};
use http::{HeaderValue, Request, Response, Uri, header};
use http_body_util::{BodyExt, Collected, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use opentelemetry_http::{HttpClient, HttpError};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;

use super::export::Counts;
use super::{ExportSettings, OtlpProtocol, grpc};
use crate::model::fault;

/// The largest answer that is read; a collector says a few bytes.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// The largest head of an answer by HTTP/2, trailers as well; by HTTP/1 it is a hundred lines of the library's own bound.
const ANSWER_HEAD_BYTES_MAX: u32 = 16 << 10;

/// How long a collector may take to answer when it is only looked for.
const PROBE_WAIT: Duration = Duration::from_secs(3);
const IN_TIME: &str = "the collector did not answer in time";

/// Sends each request by a task on a runtime.
#[derive(Debug)]
pub(super) struct RuntimeClient {
    runtime: Handle,
    protocol: OtlpProtocol,
    timeout: Duration,
    counts: Arc<Counts>,
}

impl RuntimeClient {
    pub(super) fn new(runtime: Handle, protocol: OtlpProtocol, timeout: Duration, counts: Arc<Counts>) -> Self {
        Self { runtime, protocol, timeout, counts }
    }
}

#[async_trait]
impl HttpClient for RuntimeClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (protocol, timeout) = (self.protocol, self.timeout);
        let exchange = async move { tokio::time::timeout(fault::within(timeout), exchange(request, protocol)).await };
        let answer = match self.runtime.spawn(exchange).await {
            Ok(Ok(answer)) => answer.inspect(|answer| {
                if answer.status().is_success() {
                    self.counts.refused(refused_spans(answer.body()));
                }
            }),
            Ok(Err(_)) => Err(IN_TIME.into()),
            Err(_) => Err("the program is ending".into()),
        };
        // The exporter words it anew, as of HTTP and without the cause.
        self.counts.met(fault_of(&answer));
        answer
    }
}

/// Asks a collector to take no spans at all, as it is asked to take some.
///
/// # Errors
/// Fails with what came instead of a yes: no value of a header, and nothing that the other side wrote.
pub(super) async fn probe(settings: &ExportSettings) -> Result<(), String> {
    let mut request = Request::post(settings.traces_url())
        .header(header::CONTENT_TYPE, "application/x-protobuf")
        .header(header::CONTENT_LENGTH, 0);
    for (name, value) in &settings.headers {
        request = request.header(name, value.expose());
    }
    let request = request.body(Bytes::new()).map_err(|_| "its URL or headers cannot be sent".to_owned())?;
    let within = fault::within(settings.timeout.min(PROBE_WAIT));
    let answer = tokio::time::timeout(within, exchange(request, settings.protocol)).await;
    fault_of(&answer.unwrap_or_else(|_| Err(IN_TIME.into()))).map_or(Ok(()), Err)
}

/// Says why an answer is none that a batch could count on.
fn fault_of(answer: &Result<Response<Bytes>, HttpError>) -> Option<String> {
    match answer {
        Ok(answer) if answer.status().is_success() => None,
        Ok(answer) => Some(format!("the collector answered with HTTP status {}", answer.status().as_u16())),
        Err(error) => {
            let causes = std::iter::successors(Some(&**error as &dyn std::error::Error), |error| error.source());
            Some(causes.map(ToString::to_string).collect::<Vec<_>>().join(": "))
        }
    }
}

async fn exchange(request: Request<Bytes>, protocol: OtlpProtocol) -> Result<Response<Bytes>, HttpError> {
    let (authority, tls) = target(request.uri())?;
    let host = bare_host(&authority).to_owned();
    let port = authority.port_u16().unwrap_or(if tls { 443 } else { 80 });
    fault::pass("socket.export").await.map_err(std::io::Error::from)?;
    let stream = TcpStream::connect((host.as_str(), port)).await?;
    if !tls {
        return talk(stream, request, &authority, protocol).await;
    }
    let roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    if protocol == OtlpProtocol::Grpc {
        config.alpn_protocols = vec![b"h2".to_vec()];
    }
    let stream = TlsConnector::from(Arc::new(config)).connect(ServerName::try_from(host)?, stream).await?;
    talk(stream, request, &authority, protocol).await
}

async fn talk(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    request: Request<Bytes>,
    authority: &Authority,
    protocol: OtlpProtocol,
) -> Result<Response<Bytes>, HttpError> {
    let stream = TokioIo::new(stream);
    match protocol {
        OtlpProtocol::Http => {
            let (mut sender, connection) = http1::handshake(stream).await?;
            // Ends with this exchange, however that ends; what it fails with, the sender reports.
            let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
            let (mut parts, body) = request.into_parts();
            parts.headers.insert(header::HOST, HeaderValue::from_str(authority.as_str())?);
            let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
            parts.uri = path.parse()?;
            let answer = sender.send_request(Request::from_parts(parts, Full::new(body))).await?;
            let (parts, body) = answer.into_parts();
            Ok(Response::from_parts(parts, collected(body).await?.to_bytes()))
        }
        OtlpProtocol::Grpc => {
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder.max_header_list_size(ANSWER_HEAD_BYTES_MAX);
            let (mut sender, connection) = builder.handshake(stream).await?;
            let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
            let answer = sender.send_request(grpc::request(request).map(Full::new)).await?;
            let (parts, body) = answer.into_parts();
            let body = collected(body).await?;
            let trailers = body.trailers().cloned();
            grpc::answer(parts, trailers.as_ref(), &body.to_bytes())
        }
    }
}

async fn collected(body: Incoming) -> Result<Collected<Bytes>, HttpError> {
    Limited::new(body, ANSWER_BYTES_MAX).collect().await
}

/// Returns how many spans of a request a collector says it refused while taking the others; none if the answer is
/// nothing that can be read.
///
/// The answer is an `ExportTraceServiceResponse` of <https://github.com/open-telemetry/opentelemetry-proto>, in which
/// field 1 is a message whose field 1 is the number, as a varint. The exporter reads it too, and tells nobody.
fn refused_spans(answer: &[u8]) -> u64 {
    let inner = || {
        let (tag, rest) = varint(answer)?;
        let (length, rest) = varint(rest)?;
        let partial = rest.get(..usize::try_from(length).ok()?)?;
        let (inner_tag, partial) = varint(partial)?;
        let (refused, _) = varint(partial)?;
        (tag == FIELD_1_MESSAGE && inner_tag == FIELD_1_VARINT).then_some(refused)
    };
    inner().unwrap_or(0)
}

const FIELD_1_MESSAGE: u64 = 1 << 3 | 2;
const FIELD_1_VARINT: u64 = 1 << 3;

/// Reads a number of seven bits a byte, and returns what follows it.
fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let end = bytes.iter().take(10).position(|byte| byte & 0x80 == 0)? + 1;
    let (digits, rest) = bytes.split_at_checked(end)?;
    Some((digits.iter().rev().fold(0, |number, byte| number << 7 | u64::from(byte & 0x7f)), rest))
}

/// Returns where a request goes, and whether by TLS.
fn target(uri: &Uri) -> Result<(Authority, bool), HttpError> {
    let authority = uri.authority().cloned().ok_or("the collector's URL names no host")?;
    match uri.scheme() {
        Some(scheme) if *scheme == Scheme::HTTP => Ok((authority, false)),
        Some(scheme) if *scheme == Scheme::HTTPS => Ok((authority, true)),
        _ => Err("the collector's URL is neither `http://` nor `https://`".into()),
    }
}

/// Returns a host without the brackets of an IPv6 address.
fn bare_host(authority: &Authority) -> &str {
    authority.host().trim_start_matches('[').trim_end_matches(']')
}

/// Says what is wrong with a collector's URL, if anything. Does not show it.
pub fn endpoint_fault(endpoint: &str) -> Option<String> {
    let uri = endpoint.parse::<Uri>().ok();
    let fits = uri.as_ref().is_some_and(|uri| target(uri).is_ok_and(|(authority, _)| !authority.host().is_empty()));
    if !fits {
        return Some("is not a URL like `http://localhost:4318`".to_owned());
    }
    if endpoint.contains('@') || uri.is_some_and(|uri| uri.query().is_some()) {
        return Some("holds credentials or parameters; send those as headers".to_owned());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_spans_are_read_from_an_answer_and_from_nothing_else() {
        use opentelemetry_proto::tonic::collector::trace::v1::{ExportTracePartialSuccess, ExportTraceServiceResponse};
        use prost::Message;
        for rejected_spans in [0, 1, 127, 128, 1 << 40] {
            let partial = ExportTracePartialSuccess { rejected_spans, error_message: "why".into() };
            let answer = ExportTraceServiceResponse { partial_success: Some(partial) }.encode_to_vec();
            assert_eq!(refused_spans(&answer), u64::try_from(rejected_spans).unwrap());
        }
        for nonsense in [&b""[..], b"\x0a", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"<html>", b"\x0a\x02\x08"]
        {
            assert_eq!(refused_spans(nonsense), 0);
        }
    }

    #[test]
    fn endpoints_are_checked() {
        for good in ["http://localhost:4318", "https://collector.example/otlp", "http://[::1]:4318/"] {
            assert_eq!(endpoint_fault(good), None, "{good}");
        }
        for bad in ["", "localhost:4318", "grpc://x", "http://", "http://u:pw@x", "http://x?key=1", "/v1/traces"] {
            let fault = endpoint_fault(bad).unwrap_or_else(|| panic!("{bad} passes"));
            assert!(!fault.contains("pw"));
        }
    }
}
