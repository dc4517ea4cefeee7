//! Tracing and OpenTelemetry export.
