//! Text that must never be printed.

use std::fmt;

use zeroize::Zeroizing;

/// A password, key or connection string with a password in it.
///
/// It has no `Display`, its `Debug` shows nothing, it is wiped when dropped, and nothing converts it
/// into a request record, a span or an audit line. Reading it is spelled out: [`Secret::expose`].
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Wraps a secret text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(Zeroizing::new(text.into()))
    }

    /// Returns the text itself, for the one place that needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}
