//! The policies that the program carries, trusted by the digests compiled in beside them.

use crate::policy::Bundled;

/// Every bundled policy, sorted by name; written by the tool that builds them.
pub(super) static BUNDLED: &[Bundled] = include!("../../policies/bundled.rs");
