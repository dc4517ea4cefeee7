//! Writes a pgsandbox policy: leaves only the decision to its author.
//!
//! A policy is a pure function of its settings and of the request it is shown. Implement [`Policy`], name the type
//! in [`export!`], build for `wasm32-unknown-unknown`, and encode the module as a component (`policies/build`
//! does both). There are no imports: no clock, no random numbers, no files, no network, no log.
//!
//! ```
//! use pgsandbox_policy::{Bucket, Decision, Description, Policy, Problem, Request};
//!
//! struct NoFriday;
//!
//! #[derive(serde::Deserialize)]
//! #[serde(deny_unknown_fields)]
//! struct Settings {}
//!
//! impl Policy for NoFriday {
//!     type Settings = Settings;
//!
//!     fn describe() -> Description {
//!         Description::new("no-friday", "1.0.0", r#"{"type":"object","additionalProperties":false}"#)
//!             .concerns(["create_database"])
//!             .codes(["friday"])
//!     }
//!
//!     fn configure(_: Settings) -> Result<(Self, Vec<Bucket>), Vec<Problem>> {
//!         Ok((Self, Vec::new()))
//!     }
//!
//!     fn evaluate(&self, request: &Request) -> Decision {
//!         let days = request.now_ms / 86_400_000;
//!         if days % 7 == 1 {
//!             return Decision::deny("friday", "no sandboxes on Fridays; any other day will do", "it is Friday");
//!         }
//!         Decision::abstain()
//!     }
//! }
//!
//! pgsandbox_policy::export!(NoFriday);
//! ```
//!
//! Settings are JSON without fractions: whole numbers, text, booleans, lists and objects; keys may not repeat.
//! Keep to ordered collections (`BTreeMap`, sorted vectors): the same settings must leave the same memory.

#[rustfmt::skip]
#[allow(unsafe_code, missing_docs, unreachable_pub, clippy::all, clippy::restriction, clippy::pedantic, reason = "generated")]
#[doc(hidden)]
pub mod bindings;

#[cfg(target_arch = "wasm32")]
#[allow(unsafe_code, reason = "an allocator works on raw memory")]
mod allocator;
mod decision;
mod exports;
mod glob;
mod json;
mod settings;
pub mod statement;
#[cfg(feature = "testing")]
#[allow(clippy::panic, clippy::expect_used, clippy::indexing_slicing, reason = "fails the test that called it")]
pub mod testing;
mod window;
mod words;

pub use bindings::pgsandbox::policy::types::{
    Access, Balance, Bucket, Charge, CloneSource, CredentialAccess, Decision, Denial, Description, Impact, Label, Mask,
    Obligation, Origin, Outcome, Phase, Principal, Problem, Quota, Relation, Request, Requested, Sandbox, Scope,
    Server, Statement, StatementClass, StatementTraits, Tls, Transport, Usage, Verdict,
};
pub use decision::TEXT_BYTES_MAX;
pub use exports::{Policy, Slot};
pub use glob::{Pattern, Patterns};
pub use settings::Problems;
pub use window::{Window, WindowSettings};
