//! The log on stderr, and traces to a collector where one is configured.
//!
//! Neither ever delays a request: log lines and finished spans go into bounded queues, and what does not fit is
//! lost and counted. Standard output belongs to the protocol; nothing here writes to it. Only this program's
//! own spans are exported, and libraries that log whole requests or SQL are held at warnings, or kept out, whatever the
//! filter says. Without a configured collector no connection is ever made.

mod client;
mod export;
mod grpc;
mod parent;
pub mod span;
mod stderr;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tokio::runtime::Handle;
use tracing::level_filters::LevelFilter;
use tracing::{Dispatch, Event, Metadata};
use tracing_subscriber::filter::{EnvFilter, FilterExt, filter_fn};
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Registry, fmt};

pub use client::endpoint_fault;
pub use parent::{Parent, continue_trace};

use crate::model::Secret;
use export::Counts;
use stderr::StderrLog;

/// What is logged unless `PGSANDBOX_LOG` says otherwise.
pub const LOG_FILTER_DEFAULT: &str = "info,tokio_postgres=warn";
/// Libraries that print requests, SQL or headers when they are asked to be talkative.
const QUIET: [&str; 7] = ["tokio_postgres", "hyper", "hyper_util", "h2", "rustls", "sqlparser", "opentelemetry"];
/// The library that prints whole messages, results among them, at every level; its errors come back to us as values.
const SILENT: &str = "rmcp";
/// The crate's own targets, the only ones that are exported.
const OWN: &str = "pgsandbox";

/// What is logged and what is exported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TelemetrySettings {
    /// Directives of the log on stderr, as `tracing-subscriber` reads them; `None` for the default.
    pub log_filter: Option<String>,
    /// Where spans go; `None` if nowhere.
    pub export: Option<ExportSettings>,
}

/// How spans are sent: the protobuf messages of OTLP in either case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OtlpProtocol {
    /// HTTP/1.1, to `/v1/traces`.
    #[default]
    Http,
    /// gRPC, over HTTP/2.
    Grpc,
}

impl OtlpProtocol {
    /// Every protocol, by the words of the OpenTelemetry specification.
    pub const WORDS: [&'static str; 2] = ["http/protobuf", "grpc"];

    /// Returns its word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http/protobuf",
            Self::Grpc => "grpc",
        }
    }

    /// Returns the protocol of a word.
    pub fn of_word(word: &str) -> Option<Self> {
        match word {
            "http/protobuf" => Some(Self::Http),
            "grpc" => Some(Self::Grpc),
            _ => None,
        }
    }
}

/// Where spans are sent, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportSettings {
    /// The collector's URL without the path of a signal: `http://localhost:4318`.
    pub endpoint: String,
    /// How they are sent there.
    pub protocol: OtlpProtocol,
    /// Headers of each request, credentials among them.
    pub headers: Vec<(String, Secret)>,
    /// How long one request may take.
    pub timeout: Duration,
    /// How many finished spans may wait; further ones are lost, and counted.
    pub queue_spans: usize,
}

/// Why telemetry cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The log filter is none.
    #[error("`PGSANDBOX_LOG` {0}")]
    Filter(String),
    /// The exporter cannot be built.
    #[error("spans cannot be exported: {0}")]
    Export(String),
    /// Something else in this process has set up tracing.
    #[error("tracing was set up before")]
    Installed,
}

/// Telemetry that runs. Dropping it loses what still waits; [`Telemetry::shutdown`] does not.
#[derive(Debug)]
pub struct Telemetry {
    provider: Option<SdkTracerProvider>,
    export: Option<ExportSettings>,
    counts: Arc<Counts>,
    log: StderrLog,
}

impl Telemetry {
    /// Sets up log and export for the whole process. Spans are sent by tasks on `runtime`.
    ///
    /// # Errors
    /// Fails if the settings cannot be used, or if tracing was set up before.
    pub fn install(settings: &TelemetrySettings, runtime: &Handle) -> Result<Self, TelemetryError> {
        let (telemetry, dispatch) = Self::build(settings, runtime)?;
        tracing::dispatcher::set_global_default(dispatch).map_err(|_| TelemetryError::Installed)?;
        Ok(telemetry)
    }

    /// Builds what [`Telemetry::install`] installs.
    ///
    /// # Errors
    /// Fails if the settings cannot be used.
    pub fn build(settings: &TelemetrySettings, runtime: &Handle) -> Result<(Self, Dispatch), TelemetryError> {
        let directives = settings.log_filter.as_deref().unwrap_or(LOG_FILTER_DEFAULT);
        let log = StderrLog::start();
        let counts = Arc::new(Counts::default());
        // A layer that is not there would still have its say on every span, so there is none where nothing is exported.
        let (provider, dispatch) = match &settings.export {
            Some(export) => {
                let provider = export::provider(export, runtime, Arc::clone(&counts))?;
                let spans = tracing_opentelemetry::layer()
                    .with_tracer(provider.tracer(OWN))
                    .with_location(false)
                    .with_threads(false)
                    .with_tracked_inactivity(false)
                    .with_filter(filter_fn(is_exported));
                let lines = lines_layer(directives, log.writer())?;
                (Some(provider), Dispatch::new(Registry::default().with(spans).with(lines)))
            }
            None => (None, Dispatch::new(Registry::default().with(lines_layer(directives, log.writer())?))),
        };
        Ok((Self { provider, export: settings.export.clone(), counts, log }, dispatch))
    }

    /// Returns where spans are sent, and by which protocol; `None` if nowhere.
    pub fn collector(&self) -> Option<(&str, OtlpProtocol)> {
        self.export.as_ref().map(|export| (export.endpoint.as_str(), export.protocol))
    }

    /// Asks the collector whether it would take spans now, for a few seconds at most.
    ///
    /// # Errors
    /// Fails with what came instead of a yes.
    pub async fn reach(&self) -> Result<(), String> {
        match &self.export {
            Some(export) => client::probe(export).await,
            None => Ok(()),
        }
    }

    /// Returns how many spans were lost: to a full queue, or to a collector that did not take them.
    pub fn lost_spans(&self) -> u64 {
        self.counts.lost()
    }

    /// Returns how many lines of the log were lost, as nobody read stderr.
    pub fn lost_log_lines(&self) -> u64 {
        self.log.lost()
    }

    /// Sends and writes what waits, for at most `deadline`. Returns how many spans were lost in all.
    pub async fn shutdown(&self, deadline: Duration) -> u64 {
        let end = Instant::now() + deadline;
        if let Some(provider) = self.provider.clone() {
            // On a thread of its own: it blocks, and the sending tasks need the runtime meanwhile.
            let ended = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(deadline));
            if tokio::time::timeout(deadline, ended).await.is_err() {
                tracing::warn!("the collector did not take the last spans in time");
            }
        }
        let lost = self.counts.give_up();
        if lost > 0 {
            tracing::warn!(lost, "spans were lost");
        }
        let log = self.log.clone();
        let left = end.saturating_duration_since(Instant::now()).max(LOG_FLUSH_MIN);
        // Whether the lines were read or not, the time is up then.
        drop(tokio::task::spawn_blocking(move || log.flush(left)).await);
        lost
    }
}

/// The least time that the last log lines get, however long the collector took.
const LOG_FLUSH_MIN: Duration = Duration::from_millis(100);
const FILTER_FAULT: &str = "is not a log filter; write a level, or directives like `info,pgsandbox::policy=debug`";

/// Builds what writes the log's lines.
fn lines_layer<S, W>(directives: &str, writer: W) -> Result<impl Layer<S>, TelemetryError>
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
    W: for<'a> fmt::MakeWriter<'a> + Send + Sync + 'static,
{
    let filter = log_filter(directives).map_err(TelemetryError::Filter)?;
    let filter = filter.and(filter_fn(may_be_logged));
    Ok(fmt::layer().with_writer(writer).with_ansi(false).event_format(PlainLine).with_filter(filter))
}

/// Writes an event as a line: when, how grave, from where, what. Of the spans around it only their names: their fields
/// are for the collector, and say more than somebody who reads stderr, a caller perhaps, should be told.
struct PlainLine;

impl<S, N> FormatEvent<S, N> for PlainLine
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut line: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        let metadata = event.metadata();
        SystemTime.format_time(&mut line)?;
        write!(line, " {:>5} ", metadata.level())?;
        for span in context.event_scope().into_iter().flat_map(|scope| scope.from_root()) {
            write!(line, "{}: ", span.name())?;
        }
        write!(line, "{}: ", metadata.target())?;
        context.field_format().format_fields(line.by_ref(), event)?;
        writeln!(line)
    }
}

/// Says what is wrong with a log filter, if anything.
pub fn filter_fault(directives: &str) -> Option<String> {
    log_filter(directives).err()
}

/// Reads a log filter. A word alone is a level: the reader would take any other for a place to log from, and a misspelt
/// level would silence everything else.
fn log_filter(directives: &str) -> Result<EnvFilter, String> {
    let is_level = |word: &str| word.parse::<LevelFilter>().is_ok() || word.starts_with(env!("CARGO_PKG_NAME"));
    let is_word = |word: &str| !word.contains(['=', '[', ']', '{', '}']);
    if let Some(at) = directives.split(',').map(str::trim).position(|word| is_word(word) && !is_level(word)) {
        // Not the word: whoever reads this need not be who may read the environment.
        return Err(format!("{FILTER_FAULT}; word {} is no level", at + 1));
    }
    EnvFilter::try_new(directives).map_err(|_| FILTER_FAULT.to_owned())
}

/// Says what is wrong with a header of an export, if anything. Does not show the value.
pub fn header_fault(name: &str, value: &str) -> Option<String> {
    let name = http::HeaderName::from_bytes(name.as_bytes());
    let value = http::HeaderValue::from_str(value);
    match (name, value) {
        (Err(_), _) => Some("is not the name of an HTTP header".to_owned()),
        (_, Err(_)) => Some("has a value that cannot stand in an HTTP header".to_owned()),
        (Ok(_), Ok(_)) => None,
    }
}

/// Of this program's spans only the request's is for the log, where it says to which request a line belongs: what is
/// within a request is measured for a collector, and costs nothing where there is none.
fn may_be_logged(metadata: &Metadata<'_>) -> bool {
    let within_request =
        metadata.is_span() && is_within(metadata.target(), OWN) && metadata.target() != span::REQUEST_TARGET;
    if within_request || is_within(metadata.target(), SILENT) {
        return false;
    }
    *metadata.level() <= LevelFilter::WARN || !QUIET.iter().any(|library| is_within(metadata.target(), library))
}

/// Only spans: an event's text may say more than a trace should keep.
fn is_exported(metadata: &Metadata<'_>) -> bool {
    metadata.is_span() && *metadata.level() <= LevelFilter::INFO && is_within(metadata.target(), OWN)
}

/// Returns whether a target is a crate or one of its modules.
fn is_within(target: &str, of: &str) -> bool {
    target.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// A count that is shown and never reset.
type Counter = AtomicU64;

#[cfg(test)]
mod collector_tests;
#[cfg(test)]
mod grpc_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_checked() {
        for good in [
            "debug",
            LOG_FILTER_DEFAULT,
            "info,pgsandbox::policy=trace",
            "off",
            "warn,pgsandbox::sql",
            "info,[request]=debug",
        ] {
            assert_eq!(filter_fault(good), None, "{good}");
        }
        for bad in ["info,=", "pgsandbox=loud", "a=b=c", "infoo", "info,pgsandox"] {
            assert!(filter_fault(bad).is_some(), "{bad}");
        }
    }

    #[test]
    fn a_target_is_within_its_crate_and_no_other() {
        assert!(is_within("pgsandbox", OWN));
        assert!(is_within("pgsandbox::policy", OWN));
        assert!(!is_within("pgsandboxed", OWN));
        assert!(!is_within("rmcp::service", OWN));
    }

    #[test]
    fn headers_are_checked_without_being_shown() {
        assert_eq!(header_fault("authorization", "Bearer x"), None);
        assert!(header_fault("a b", "x").is_some());
        assert!(!header_fault("a", "secret\n").unwrap().contains("secret"));
    }
}
