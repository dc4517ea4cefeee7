//! The client for the caller's SQL.

/// A session as one of a sandbox's own roles; the only thing that can send a caller's SQL.
#[derive(Debug)]
pub struct SandboxSession {}
