//! Export by gRPC against a collector in this process: a good one, and ones that refuse, are slow or talk nonsense.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::collector_tests::{build, check_bad_collector, make_spans, reached, settings};
use super::*;

fn by_grpc(endpoint: &str, queue_spans: usize) -> TelemetrySettings {
    let mut settings = settings(endpoint, queue_spans);
    settings.export.as_mut().unwrap().protocol = OtlpProtocol::Grpc;
    settings
}

/// What a collector got: path, headers, message.
type Received = (String, HeaderMap, ExportTraceServiceRequest);

/// A collector that answers with a message and a status.
async fn collector(rejected: i64, status: &'static str) -> (String, UnboundedReceiver<Received>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (sender, received) = unbounded_channel();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let sender = sender.clone();
            let answer = service_fn(move |request: Request<Incoming>| {
                let sender = sender.clone();
                async move {
                    let (parts, body) = request.into_parts();
                    let body = body.collect().await.unwrap().to_bytes();
                    assert_eq!(body[..1], [0], "not compressed");
                    assert_eq!(u32::from_be_bytes(body[1..5].try_into().unwrap()) as usize, body.len() - 5);
                    let spans = ExportTraceServiceRequest::decode(&body[5..]).unwrap();
                    drop(sender.send((parts.uri.path().to_owned(), parts.headers, spans)));
                    Ok::<_, Infallible>(reply(rejected, status))
                }
            });
            tokio::spawn(http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), answer));
        }
    });
    (endpoint, received)
}

fn reply(rejected: i64, status: &'static str) -> Response<impl hyper::body::Body<Data = Bytes, Error = Infallible>> {
    let partial = ExportTracePartialSuccess { rejected_spans: rejected, error_message: String::new() };
    let message = ExportTraceServiceResponse { partial_success: Some(partial) }.encode_to_vec();
    let mut body = vec![0];
    body.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
    body.extend(message);
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static(status));
    let frames = [Frame::data(Bytes::from(body)), Frame::trailers(trailers)].map(Ok);
    let body = StreamBody::new(futures_util::stream::iter(frames));
    Response::builder().header("content-type", "application/grpc").body(body).unwrap()
}

/// A server that says this to whoever connects, and then nothing more.
async fn babbler(says: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let mut held = Vec::new();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut bytes = [0; 24];
            stream.read_exact(&mut bytes).await.ok();
            assert_eq!(&bytes[..14], b"PRI * HTTP/2.0");
            stream.write_all(says).await.ok();
            held.push(stream);
        }
    });
    endpoint
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spans_arrive_by_grpc_with_what_the_call_needs() {
    let (endpoint, mut received) = collector(0, "0").await;
    let (telemetry, dispatch) = build(&by_grpc(&endpoint, 2000));
    make_spans(&dispatch, 1000);
    assert_eq!(telemetry.shutdown(Duration::from_secs(10)).await, 0);
    let mut spans = 0;
    while let Ok((path, headers, message)) = received.try_recv() {
        assert_eq!(path, "/opentelemetry.proto.collector.trace.v1.TraceService/Export");
        for (name, value) in [("content-type", "application/grpc"), ("te", "trailers"), ("x-key", "t0ken")] {
            assert_eq!(headers[name], value, "{headers:?}");
        }
        spans += message.resource_spans.iter().flat_map(|r| &r.scope_spans).map(|s| s.spans.len()).sum::<usize>();
    }
    assert_eq!(spans, 1000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spans_that_a_grpc_collector_refuses_are_counted() {
    for (rejected, status, lost) in [(3, "0", 3), (0, "14", 10), (0, "fine", 10)] {
        let (endpoint, _received) = collector(rejected, status).await;
        let (telemetry, dispatch) = build(&by_grpc(&endpoint, 100));
        make_spans(&dispatch, 10);
        assert_eq!(telemetry.shutdown(Duration::from_secs(10)).await, lost, "{rejected} {status}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_grpc_collector_costs_spans_and_no_time() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    check_bad_collector(&by_grpc(&format!("http://{free}"), 2000)).await;
    let settings_frame: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
    for says in
        [b"" as &[u8], b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n", settings_frame, b"220 mail\r\n"]
    {
        check_bad_collector(&by_grpc(&babbler(says).await, 2000)).await;
    }
}

/// A body that is whole at once has no trailers: what a plain HTTP/2 server answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_none_of_grpc_takes_no_spans() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let answer = service_fn(|_| async { Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("<html>")))) });
            tokio::spawn(http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), answer));
        }
    });
    check_bad_collector(&by_grpc(&endpoint, 2000)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_head_of_an_answer_is_read_up_to_its_bound_and_no_further() {
    const MOST: usize = 16 << 10;
    // RFC 9113, 6.5.2: a field counts with its name, its value, and 32.
    let field = |name: &str, value_bytes: usize| name.len() + value_bytes + 32;
    let others = field(":status", 3) + field("content-type", "application/grpc".len()) + field("date", 29);
    // The library takes less than its bound.
    for (bytes, lost) in [(MOST - 2, 0), (MOST - 1, 0), (MOST, 10)] {
        let padding = "x".repeat(bytes - others - field("x-padding", 0));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let padding = HeaderValue::from_str(&padding).unwrap();
                let answer = service_fn(move |request: Request<Incoming>| {
                    let padding = padding.clone();
                    async move {
                        request.into_body().collect().await.unwrap();
                        let mut reply = reply(0, "0");
                        reply.headers_mut().insert("x-padding", padding);
                        Ok::<_, Infallible>(reply)
                    }
                });
                tokio::spawn(http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), answer));
            }
        });
        let (telemetry, dispatch) = build(&by_grpc(&endpoint, 100));
        make_spans(&dispatch, 10);
        assert_eq!(telemetry.shutdown(Duration::from_secs(10)).await, lost, "a head of {bytes} bytes");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_grpc_collector_says_when_it_is_looked_for_is_told_as_it_is() {
    let (endpoint, mut received) = collector(0, "0").await;
    assert_eq!(reached(&by_grpc(&endpoint, 10)).await.0, Ok(()));
    let (_, headers, message) = received.try_recv().unwrap();
    assert_eq!((&headers["x-key"], message.resource_spans.len()), (&HeaderValue::from_static("t0ken"), 0));

    let (endpoint, _received) = collector(0, "16").await;
    let fault = reached(&by_grpc(&endpoint, 10)).await.0.unwrap_err();
    assert_eq!(fault, "the collector refused the spans with gRPC status 16");
    let fault = reached(&by_grpc(&babbler(b"HTTP/1.1 400 Bad Request\r\n\r\n").await, 10)).await.0.unwrap_err();
    assert!(!fault.contains("t0ken"), "{fault}");
}
