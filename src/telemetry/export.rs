//! Export of finished spans in batches, with every lost one counted.
//!
//! A span is in exactly one place: waiting or being sent (`waiting`), taken by the collector, or lost. At most as many
//! as configured wait, those being sent included, so the library's own queue never overflows uncounted.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{Protocol, SpanExporter as OtlpExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracerProvider, Span, SpanData, SpanExporter, SpanProcessor,
};
use tokio::runtime::Handle;
use uuid::Uuid;

use super::client::RuntimeClient;
use super::{Counter, ExportSettings, OWN, OtlpProtocol, TelemetryError, grpc};

/// How long spans wait for others before they are sent.
const BATCH_DELAY: Duration = Duration::from_secs(2);
/// The most spans of one request.
const BATCH_SPANS_MAX: usize = 512;
/// The path that OTLP over HTTP gives to spans.
const HTTP_TRACES_PATH: &str = "/v1/traces";

/// Where spans went.
#[derive(Debug, Default)]
pub(super) struct Counts {
    waiting: Counter,
    lost: Counter,
    ended: AtomicBool,
    /// The collector took the last batch, or none was sent.
    failing: AtomicBool,
    /// What came of the last request, where it did not go well.
    fault: Mutex<Option<String>>,
}

impl Counts {
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Counts what still waits as lost, and whatever ends later. Returns all that was lost.
    pub(super) fn give_up(&self) -> u64 {
        self.ended.store(true, Ordering::SeqCst);
        let waiting = self.waiting.swap(0, Ordering::SeqCst);
        self.lost.fetch_add(waiting, Ordering::Relaxed) + waiting
    }

    /// Counts spans that the collector refused while it took the others of the same batch: not more than a batch.
    pub(super) fn refused(&self, spans: u64) {
        self.lost.fetch_add(spans.min(BATCH_SPANS_MAX as u64), Ordering::Relaxed);
    }

    /// Keeps what came of a request.
    pub(super) fn met(&self, fault: Option<String>) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = fault;
    }

    fn fault(&self) -> Option<String> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes a place in the queue if there is one.
    fn enter(&self, places: u64) -> bool {
        let free = |waiting| (waiting < places).then_some(waiting + 1);
        let entered = !self.ended.load(Ordering::SeqCst)
            && self.waiting.fetch_update(Ordering::SeqCst, Ordering::SeqCst, free).is_ok();
        if !entered {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        entered
    }

    /// Gives places back: the spans were taken, or are lost.
    fn leave(&self, spans: usize, taken: bool) {
        let spans = spans as u64;
        let left = self.waiting.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |waiting| waiting.checked_sub(spans));
        // After giving up they have been counted already.
        if left.is_ok() && !taken {
            self.lost.fetch_add(spans, Ordering::Relaxed);
        }
    }
}

impl ExportSettings {
    /// Returns where spans are sent.
    pub(super) fn traces_url(&self) -> String {
        let path = match self.protocol {
            OtlpProtocol::Http => HTTP_TRACES_PATH,
            OtlpProtocol::Grpc => grpc::TRACES_PATH,
        };
        format!("{}{path}", self.endpoint.trim_end_matches('/'))
    }
}

/// Builds what makes and exports spans.
pub(super) fn provider(
    settings: &ExportSettings,
    runtime: &Handle,
    counts: Arc<Counts>,
) -> Result<SdkTracerProvider, TelemetryError> {
    let headers: HashMap<_, _> =
        settings.headers.iter().map(|(name, value)| (name.clone(), value.expose().to_owned())).collect();
    let client = RuntimeClient::new(runtime.clone(), settings.protocol, settings.timeout, Arc::clone(&counts));
    let exporter = OtlpExporter::builder()
        .with_http()
        .with_http_client(client)
        .with_endpoint(settings.traces_url())
        .with_protocol(Protocol::HttpBinary)
        .with_timeout(settings.timeout)
        .with_headers(headers)
        .build()
        .map_err(|fault| TelemetryError::Export(fault.to_string()))?;
    let config = BatchConfigBuilder::default()
        .with_max_queue_size(settings.queue_spans)
        .with_max_export_batch_size(BATCH_SPANS_MAX.min(settings.queue_spans))
        .with_scheduled_delay(BATCH_DELAY)
        .build();
    let protocol = settings.protocol.as_str();
    let exporter = CountingExporter { inner: exporter, counts: Arc::clone(&counts), protocol };
    let inner = BatchSpanProcessor::builder(exporter).with_batch_config(config).build();
    let places = settings.queue_spans as u64;
    let resource = Resource::builder_empty()
        .with_service_name(OWN)
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_attribute(KeyValue::new("service.instance.id", Uuid::new_v4().to_string()))
        .build();
    Ok(SdkTracerProvider::builder()
        // Not the parent's choice: a caller must not be able to keep its own requests out of the traces.
        .with_sampler(Sampler::AlwaysOn)
        .with_resource(resource)
        .with_span_processor(CountingProcessor { inner, counts, places })
        .build())
}

#[derive(Debug)]
struct CountingProcessor {
    inner: BatchSpanProcessor,
    counts: Arc<Counts>,
    places: u64,
}

impl SpanProcessor for CountingProcessor {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.inner.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        if self.counts.enter(self.places) {
            self.inner.on_end(span);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

#[derive(Debug)]
struct CountingExporter<E> {
    inner: E,
    counts: Arc<Counts>,
    protocol: &'static str,
}

impl<E: SpanExporter> SpanExporter for CountingExporter<E> {
    fn export(&self, batch: Vec<SpanData>) -> impl Future<Output = OTelSdkResult> + Send {
        let spans = batch.len();
        let sent = self.inner.export(batch);
        async move {
            let sent = sent.await;
            self.counts.leave(spans, sent.is_ok());
            match (self.counts.failing.swap(sent.is_err(), Ordering::Relaxed), &sent) {
                (false, Err(error)) => {
                    let fault = self.counts.fault().unwrap_or_else(|| error.to_string());
                    tracing::warn!(protocol = self.protocol, fault, "the collector does not take spans; they are lost");
                }
                (true, Ok(())) => tracing::info!(lost = self.counts.lost(), "the collector takes spans again"),
                (true, Err(_)) | (false, Ok(())) => {}
            }
            sent
        }
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_span_is_counted_once() {
        let counts = Counts::default();
        assert_eq!((0..5).filter(|_| counts.enter(3)).count(), 3);
        assert_eq!(counts.lost(), 2);
        counts.leave(1, true);
        counts.leave(1, false);
        assert_eq!(counts.lost(), 3);
        assert_eq!(counts.give_up(), 4);
        counts.leave(1, false);
        assert!(!counts.enter(3));
        assert_eq!(counts.lost(), 5);
    }
}
