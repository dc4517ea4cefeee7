//! Turns a decision into a permit: obligations applied, charges taken.
//!
//! A [`Permit`] exists only if every obligation of the decision has been applied to the operation's
//! input inside it. Its constructor is private to this folder, so nothing else can make one.

mod permit;

pub use permit::{Grant, Permit, SystemAuthority, SystemReason};
