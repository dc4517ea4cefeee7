//! Continues a caller's trace: W3C `traceparent`.
//!
//! A malformed header is no header: the request gets a trace of its own. `tracestate` is not read.

use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::model::TraceIds;

/// The span that a caller names as its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parent {
    /// Its ids.
    pub ids: TraceIds,
    /// Whether the caller records its trace.
    pub sampled: bool,
}

impl Parent {
    /// Reads a `traceparent` header, or the same text from a request's metadata.
    ///
    /// The format is of <https://www.w3.org/TR/trace-context/#traceparent-header>: what later versions add after
    /// the flags is ignored, as it says; version `ff`, upper case and ids of zero are invalid, as it says.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(5, '-');
        let version = hex(parts.next()?, 2)?;
        let trace = hex(parts.next()?, 32)?;
        let span = hex(parts.next()?, 16)?;
        let flags = hex(parts.next()?, 2)?;
        let known = match version {
            0 => parts.next().is_none(),
            0xff => false,
            _ => true,
        };
        let span = u64::try_from(span).ok()?;
        (known && trace != 0 && span != 0).then_some(Self { ids: TraceIds { trace, span }, sampled: flags & 1 == 1 })
    }
}

/// Makes `span` a child of the caller's, if there is one, and returns the ids to be recorded for it.
///
/// To be called before anything enters the span. Without export the span has no ids, and the caller's own are
/// returned: a record then still leads to the caller's trace.
pub fn continue_trace(span: &Span, parent: Option<Parent>) -> Option<TraceIds> {
    if let Some(parent) = parent {
        let flags = if parent.sampled { TraceFlags::SAMPLED } else { TraceFlags::default() };
        let trace = TraceId::from_bytes(parent.ids.trace.to_be_bytes());
        let id = SpanId::from_bytes(parent.ids.span.to_be_bytes());
        let context = SpanContext::new(trace, id, flags, true, TraceState::NONE);
        // Fails where nothing is exported, which leaves nothing to be done.
        drop(span.set_parent(opentelemetry::Context::new().with_remote_span_context(context)));
    }
    let context = span.context();
    let own = context.span().span_context().clone();
    if own.is_valid() && !own.is_remote() {
        let trace = u128::from_be_bytes(own.trace_id().to_bytes());
        return Some(TraceIds { trace, span: u64::from_be_bytes(own.span_id().to_bytes()) });
    }
    parent.map(|parent| parent.ids)
}

fn hex(digits: &str, length: usize) -> Option<u128> {
    let lower = digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    (lower && digits.len() == length).then(|| u128::from_str_radix(digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_as_the_standard_says() {
        let parent = Parent::parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").unwrap();
        assert_eq!(parent.ids.trace_hex(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(parent.ids.span_hex(), "b7ad6b7169203331");
        assert!(parent.sampled);
        assert!(Parent::parse("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00-later").is_some());
    }

    #[test]
    fn whatever_else_is_no_header() {
        for bad in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319é-b7ad6b7169203331-01",
        ] {
            assert_eq!(Parent::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn without_export_the_callers_ids_are_recorded() {
        let parent = Parent::parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").unwrap();
        assert_eq!(continue_trace(&Span::none(), Some(parent)), Some(parent.ids));
        assert_eq!(continue_trace(&Span::none(), None), None);
    }
}
