//! Where a request stands in a distributed trace.

use std::fmt;

/// A trace and a span in it, as W3C trace context numbers them. Neither is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceIds {
    /// The trace.
    pub trace: u128,
    /// The span within it.
    pub span: u64,
}

impl TraceIds {
    /// Returns the trace's id as 32 hexadecimal digits.
    pub fn trace_hex(self) -> String {
        format!("{:032x}", self.trace)
    }

    /// Returns the span's id as 16 hexadecimal digits.
    pub fn span_hex(self) -> String {
        format!("{:016x}", self.span)
    }
}

impl fmt::Display for TraceIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}-{:016x}", self.trace, self.span)
    }
}
