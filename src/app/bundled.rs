//! The policies that the program carries, trusted by the digests compiled in beside them.

include!("../../policies/bundled.rs");
