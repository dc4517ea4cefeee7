//! Export against a collector in this process: a good one, and ones that are down, slow or talk nonsense.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span as ExportedSpan;
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;

use super::*;
use crate::model::{Code, Failure, RequestId, Transport};

/// One request as the collector got it.
struct Received {
    head: String,
    body: Vec<u8>,
}

impl Received {
    fn spans(&self) -> Vec<ExportedSpan> {
        let request = ExportTraceServiceRequest::decode(self.body.as_slice()).unwrap();
        request.resource_spans.into_iter().flat_map(|r| r.scope_spans).flat_map(|s| s.spans).collect()
    }
}

/// How a collector answers.
#[derive(Clone, Copy)]
enum Answer {
    Text(&'static str),
    Never,
}

const OK: Answer = Answer::Text("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");

struct Collector {
    endpoint: String,
    received: UnboundedReceiver<Received>,
    task: JoinHandle<()>,
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn collector(answer: Answer) -> Collector {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (sender, received) = unbounded_channel();
    let task = tokio::spawn(async move {
        let mut held = Vec::new();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let got = read_request(&mut stream).await;
            drop(sender.send(got));
            match answer {
                Answer::Text(text) => stream.write_all(text.as_bytes()).await.unwrap(),
                Answer::Never => held.push(stream),
            }
        }
    });
    Collector { endpoint, received, task }
}

async fn read_request(stream: &mut TcpStream) -> Received {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        assert_ne!(stream.read_buf(&mut bytes).await.unwrap(), 0, "the request ends early");
    };
    let head = String::from_utf8(bytes[..head_end].to_vec()).unwrap().to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap().parse::<usize>().unwrap();
    while bytes.len() < head_end + length {
        assert_ne!(stream.read_buf(&mut bytes).await.unwrap(), 0, "the request ends early");
    }
    Received { head, body: bytes[head_end..].to_vec() }
}

pub(super) fn settings(endpoint: &str, queue_spans: usize) -> TelemetrySettings {
    TelemetrySettings {
        // As talkative as can be: nothing of it may be exported all the same.
        log_filter: Some("error,rmcp=trace".to_owned()),
        export: Some(ExportSettings {
            endpoint: endpoint.to_owned(),
            protocol: OtlpProtocol::Http,
            headers: vec![("x-key".to_owned(), Secret::new("t0ken"))],
            timeout: Duration::from_millis(300),
            queue_spans,
        }),
    }
}

pub(super) fn build(settings: &TelemetrySettings) -> (Telemetry, Dispatch) {
    Telemetry::build(settings, &Handle::current()).unwrap()
}

/// Makes spans that are over at once, and returns how long that took.
pub(super) fn make_spans(dispatch: &Dispatch, spans: usize) -> Duration {
    let begun = Instant::now();
    tracing::dispatcher::with_default(dispatch, || {
        for _ in 0..spans {
            span::request(RequestId::fresh(), "tools/call", "run_sql", Transport::Stdio).in_scope(|| ());
        }
    });
    begun.elapsed()
}

fn attributes(span: &ExportedSpan) -> BTreeMap<String, String> {
    let text =
        |value: &Option<opentelemetry_proto::tonic::common::v1::AnyValue>| format!("{:?}", value.as_ref().unwrap());
    span.attributes.iter().map(|pair| (pair.key.clone(), text(&pair.value))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spans_arrive_with_their_names_parents_and_attributes() {
    let mut collector = collector(OK).await;
    let (telemetry, dispatch) = build(&settings(&collector.endpoint, 100));
    let parent = Parent::parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00").unwrap();
    let id = RequestId::fresh();
    let ids = tracing::dispatcher::with_default(&dispatch, || {
        let request = span::request(id, "tools/call", "run_sql", Transport::Stdio);
        let ids = continue_trace(&request, Some(parent)).unwrap();
        request.in_scope(|| {
            span::policy("quota", "enforce").in_scope(|| ());
            let statement = span::statement("SELECT", "pgsandbox_x");
            let mut failure = Failure::new(Code::UndefinedTable, "the text stays here");
            failure.detail_mut().sqlstate = Some("42P01".to_owned());
            span::failed(&statement, &failure);
            statement.in_scope(|| tracing::error!("an event's text"));
            tracing::info_span!(target: "rmcp::service", "theirs", secret = "hunter2").in_scope(|| ());
            tracing::info_span!(target: "tokio_postgres", "theirs").in_scope(|| ());
        });
        ids
    });
    assert_eq!(telemetry.shutdown(Duration::from_secs(10)).await, 0);
    let received = collector.received.recv().await.unwrap();
    assert!(received.head.starts_with("post /v1/traces http/1.1"), "{}", received.head);
    assert!(received.head.contains("x-key: t0ken") && received.head.contains("application/x-protobuf"));
    let spans = received.spans();
    let names: Vec<_> = spans.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["policy quota", "SELECT", "tools/call run_sql"]);
    let [policy, statement, request] = &spans[..] else { panic!("{spans:?}") };
    assert_eq!(request.trace_id, parent.ids.trace.to_be_bytes());
    assert_eq!(request.parent_span_id, parent.ids.span.to_be_bytes());
    assert_eq!((request.span_id.as_slice(), ids.trace), (&ids.span.to_be_bytes()[..], parent.ids.trace));
    for child in [policy, statement] {
        assert_eq!((&child.trace_id, &child.parent_span_id), (&request.trace_id, &request.span_id));
    }
    let of_request = attributes(request);
    for (name, value) in [
        (span::GEN_AI_TOOL_NAME, "run_sql"),
        (span::MCP_METHOD_NAME, "tools/call"),
        (span::NETWORK_TRANSPORT, "pipe"),
        (span::REQUEST_ID, &*id.to_string()),
    ] {
        assert!(of_request[name].contains(value), "{name} in {of_request:?}");
    }
    let of_statement = attributes(statement);
    for (name, value) in [
        (span::DB_SYSTEM_NAME, "postgresql"),
        (span::DB_NAMESPACE, "pgsandbox_x"),
        (span::DB_RESPONSE_STATUS_CODE, "42P01"),
        (span::ERROR_TYPE, "undefined_table"),
    ] {
        assert!(of_statement[name].contains(value), "{name} in {of_statement:?}");
    }
    assert_eq!(statement.status.as_ref().unwrap().code, 2);
    for text in ["hunter2", "an event's text", "the text stays here"] {
        let bytes = received.body.windows(text.len()).any(|window| window == text.as_bytes());
        assert!(!bytes, "`{text}` was exported");
    }
}

/// Checks that a bad collector delays neither requests nor the end, and that each span is counted.
pub(super) async fn check_bad_collector(settings: &TelemetrySettings) {
    let (telemetry, dispatch) = build(settings);
    let elapsed = make_spans(&dispatch, 1000);
    assert!(elapsed < Duration::from_secs(2), "1000 spans took {elapsed:?}");
    let begun = Instant::now();
    let lost = telemetry.shutdown(Duration::from_secs(1)).await;
    assert!(begun.elapsed() < Duration::from_secs(3), "the end took {:?}", begun.elapsed());
    assert_eq!(lost, 1000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_is_down_costs_spans_and_no_time() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    check_bad_collector(&settings(&format!("http://{free}"), 2000)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_never_answers_costs_spans_and_no_time() {
    let collector = collector(Answer::Never).await;
    check_bad_collector(&settings(&collector.endpoint, 2000)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_talks_nonsense_costs_spans_and_no_time() {
    for nonsense in [
        "220 mail.example ESMTP\r\n\r\n",
        "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 4\r\n\r\noops",
        "HTTP/1.1 302 Found\r\nlocation: http://elsewhere.example/\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n",
    ] {
        let collector = collector(Answer::Text(nonsense)).await;
        check_bad_collector(&settings(&collector.endpoint, 2000)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_loses_spans_and_counts_them() {
    let collector = collector(Answer::Never).await;
    let (telemetry, dispatch) = build(&settings(&collector.endpoint, 64));
    make_spans(&dispatch, 1000);
    assert!(telemetry.lost_spans() >= 1000 - 64, "{}", telemetry.lost_spans());
    assert_eq!(telemetry.shutdown(Duration::from_millis(100)).await, 1000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spans_that_the_collector_refuses_are_counted() {
    let collector = collector(Answer::Text("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n\x0a\x02\x08\x03")).await;
    let (telemetry, dispatch) = build(&settings(&collector.endpoint, 100));
    make_spans(&dispatch, 10);
    assert_eq!(telemetry.shutdown(Duration::from_secs(10)).await, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_is_read_up_to_its_bound_and_no_further() {
    let answer = |bytes: usize| format!("HTTP/1.1 200 OK\r\ncontent-length: {bytes}\r\n\r\n{}", "\0".repeat(bytes));
    for (bytes, lost) in [((64 << 10) - 1, 0), (64 << 10, 0), ((64 << 10) + 1, 10)] {
        let collector = collector(Answer::Text(answer(bytes).leak())).await;
        let (telemetry, dispatch) = build(&settings(&collector.endpoint, 100));
        make_spans(&dispatch, 10);
        assert_eq!(telemetry.shutdown(Duration::from_secs(10)).await, lost, "{bytes}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_cannot_switch_its_own_trace_off() {
    let mut collector = collector(OK).await;
    let (telemetry, dispatch) = build(&settings(&collector.endpoint, 100));
    let parent = Parent::parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00").unwrap();
    assert!(!parent.sampled);
    tracing::dispatcher::with_default(&dispatch, || {
        let request = span::request(RequestId::fresh(), "tools/call", "run_sql", Transport::Stdio);
        continue_trace(&request, Some(parent));
        request.in_scope(|| ());
    });
    assert_eq!(telemetry.shutdown(Duration::from_secs(10)).await, 0);
    assert_eq!(collector.received.recv().await.unwrap().spans().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_collector_there_are_no_ids_and_nothing_is_lost() {
    let (telemetry, dispatch) = build(&TelemetrySettings::default());
    let ids = tracing::dispatcher::with_default(&dispatch, || {
        continue_trace(&span::request(RequestId::fresh(), "cli", "doctor", Transport::Cli), None)
    });
    assert_eq!(ids, None);
    assert_eq!(telemetry.shutdown(Duration::from_secs(1)).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_within_a_request_is_no_span_where_nobody_collects_it() {
    let (_telemetry, dispatch) = build(&TelemetrySettings { log_filter: Some("trace".into()), export: None });
    tracing::dispatcher::with_default(&dispatch, || {
        assert!(!span::request(RequestId::fresh(), "cli", "doctor", Transport::Cli).is_disabled(), "lines name it");
        for within in [span::classify(), span::policy("quota", "enforce"), span::statement("SELECT", "x")] {
            assert!(within.is_disabled(), "{within:?}");
        }
    });
}

/// What libraries say at debug level may hold whole requests and SQL.
#[test]
fn talkative_libraries_are_held_at_warnings_whatever_the_filter_says() {
    #[derive(Clone, Default)]
    struct Seen(Arc<std::sync::Mutex<Vec<u8>>>);
    impl std::io::Write for Seen {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let seen = Seen::default();
    let sink = seen.clone();
    let lines = lines_layer("trace", move || sink.clone()).unwrap();
    tracing::subscriber::with_default(Registry::default().with(lines), || {
        tracing::debug!(target: "tokio_postgres::query", "select 'hunter2'");
        tracing::warn!(target: "tokio_postgres::query", "a warning");
        tracing::info!(target: "rmcp::service", "hunter2");
        tracing::warn!(target: "hyper::client", "a warning");
        tracing::warn!(target: "rmcp::service", "response error: hunter2");
        tracing::error!(target: "rmcp::service", "hunter2");
        let span = tracing::info_span!(target: "pgsandbox::request", "request", sandbox = "hunter2");
        span.in_scope(|| tracing::debug!(target: "pgsandbox::policy", code = 7, "our own"));
    });
    let text = String::from_utf8(seen.0.lock().unwrap().clone()).unwrap();
    assert!(!text.contains("hunter2"), "{text}");
    assert!(text.contains("a warning"), "{text}");
    assert!(text.contains("pgsandbox::policy: our own code=7\n"), "of spans the names alone: {text}");
}

/// Returns what came of looking for a collector, and how long that took.
pub(super) async fn reached(settings: &TelemetrySettings) -> (Result<(), String>, Duration) {
    let (telemetry, _dispatch) = build(settings);
    let begun = Instant::now();
    (telemetry.reach().await, begun.elapsed())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_is_looked_for_by_the_protocol_that_is_configured() {
    let mut good = collector(OK).await;
    assert_eq!(reached(&settings(&good.endpoint, 10)).await.0, Ok(()));
    let asked = good.received.try_recv().unwrap();
    assert!(
        asked.head.starts_with("post /v1/traces http/1.1") && asked.head.contains("x-key: t0ken"),
        "{}",
        asked.head
    );
    assert!(asked.body.is_empty(), "no span is sent");

    let refusing = collector(Answer::Text("HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n")).await;
    let fault = reached(&settings(&refusing.endpoint, 10)).await.0.unwrap_err();
    assert_eq!(fault, "the collector answered with HTTP status 401");
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let fault = reached(&settings(&format!("http://{nobody}"), 10)).await.0.unwrap_err();
    assert!(fault.contains("refused") && !fault.contains("t0ken"), "{fault}");

    // Not longer than an export may take, nor than the bound.
    let silent = collector(Answer::Never).await;
    for (timeout, most) in [(300, 3), (60_000, 10)] {
        let mut slow = settings(&silent.endpoint, 10);
        slow.export.as_mut().unwrap().timeout = Duration::from_millis(timeout);
        let (fault, took) = reached(&slow).await;
        assert_eq!(fault, Err("the collector did not answer in time".to_owned()));
        assert!(took < Duration::from_secs(most), "{took:?}");
    }
    assert_eq!(build(&TelemetrySettings::default()).0.collector(), None);
}
