//! The client for the caller's SQL: one statement at a time, by the extended protocol only.
//!
//! Whatever a server or a statement sends, memory stays within the call's limits: what is too large is read past by
//! its header. One `Parse` takes one statement, so text that hides a second one does not run. Every call has a
//! timer of its own behind the server's; a call that is dropped, timed out or out of step leaves a session that
//! says [`SandboxSession::is_usable`] no more. No error, value or notice of the caller's shows in `Debug` or
//! `Display` output, except the SQLSTATE.
//! Statements of the program itself are not sent here, and nothing here reads SQL.

mod array;
mod cancel;
mod channel;
mod collect;
mod connection;
mod errors;
mod message;
mod render;
mod result;
mod session;
mod startup;
mod types;

pub use cancel::CancelHandle;
pub(super) use errors::UNBOUND_HINT;
pub use errors::{ServerError, WireError};
pub use message::{CallerText, Notice};
pub use render::JsonForm;
pub use result::{Cell, Column, Origin, Rest, ResultLimits, ResultSet, TruncatedBy};
pub use session::{Param, SandboxSession, StatementCall, TxStatus};
pub(super) use startup::logged_in;
pub use startup::{Auth, SessionTarget};
pub use types::Shape;
