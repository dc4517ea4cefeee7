//! Turns a decision into a permit: obligations applied, charges taken.
//!
//! A [`Permit`] exists only if every obligation of the decision has been applied to the operation's
//! input inside it and every charge has been taken. Its constructor is private to this folder, so nothing
//! else can make one. Nothing here reads a clock: the context says what time it is.

mod admit;
mod book;
mod course;
mod effective;
mod file_book;
mod gate;
mod permit;

pub use admit::{
    Admissible, Admitted, AppliedLimit, Consents, Demand, NoConsents, Receipt, admit, foresee, limits, made_nothing,
    refund,
};
pub use book::{ACCOUNT_KEYS_MAX, Account, Book, BookError, Entries, MemoryBook};
pub use course::Course;
pub use effective::{Effect, Effective};
pub use file_book::{BOOK_WAIT_MS_MAX, FileBook};
pub use gate::Gate;
pub use permit::{Grant, Permit, SystemAuthority, SystemReason};
