//! The words of the program: plain values that every other folder speaks in.
//!
//! Nothing here does input or output, reads a clock, or knows a wire format: what crosses a
//! boundary has a type of its own at that boundary. Values are small, printable and comparable,
//! except secrets, which cannot be printed at all. The one exception is [`fault`], which in builds for tests reads the
//! environment.

mod context;
mod decision;
mod error;
pub mod fault;
mod ids;
mod impact;
mod kind;
pub mod limits;
mod names;
mod obligation;
mod places;
mod ports;
mod principal;
mod schema;
mod secret;
mod statement;
mod time;
mod trace;
mod words;

pub use context::*;
pub use decision::*;
pub use error::*;
pub use ids::*;
pub use impact::*;
pub use kind::*;
pub use names::*;
pub use obligation::*;
pub use places::*;
pub use ports::*;
pub use principal::*;
pub use schema::*;
pub use secret::*;
pub use statement::*;
pub use time::*;
pub use trace::*;
pub use words::*;
