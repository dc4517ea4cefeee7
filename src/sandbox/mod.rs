//! The lifecycle core.
