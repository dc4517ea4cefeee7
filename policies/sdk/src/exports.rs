//! Stands between the world's three exports and a [`Policy`].
//!
//! What `configure` makes is kept in one static slot, so that a memory snapshot taken after it holds a policy that
//! only has to evaluate. Nothing else of a policy lives longer than a call.

use std::sync::{Mutex, PoisonError};

use serde::de::DeserializeOwned;

use crate::{Bucket, Decision, Description, Problem, Request, settings};

/// A policy: what it is, what its settings make of it, and its decision.
pub trait Policy: Sized {
    /// The settings, with every key that the settings schema names and no other (`deny_unknown_fields`).
    type Settings: DeserializeOwned;

    /// Says what the policy is.
    fn describe() -> Description;

    /// Makes the policy and its buckets from its settings.
    ///
    /// # Errors
    /// Returns every fault of the settings at once, each with its path (see [`crate::Problems`]).
    fn configure(settings: Self::Settings) -> Result<(Self, Vec<Bucket>), Vec<Problem>>;

    /// Decides.
    fn evaluate(&self, request: &Request) -> Decision;
}

/// Where the configured policy lives.
pub struct Slot<P>(Mutex<Option<P>>);

impl<P: Policy> Slot<P> {
    /// Makes an empty slot.
    pub const fn empty() -> Self {
        Self(Mutex::new(None))
    }

    /// Fills the slot from settings, a JSON object.
    ///
    /// # Errors
    /// Returns the faults of the settings; the slot is then empty.
    pub fn configure(&self, settings: &str) -> Result<Vec<Bucket>, Vec<Problem>> {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *slot = None;
        let (policy, buckets) = P::configure(settings::parse(settings)?)?;
        *slot = Some(policy);
        Ok(buckets)
    }

    /// Decides by the policy in the slot. An empty slot traps, which the host takes for a refusal.
    pub fn evaluate(&self, request: &Request) -> Decision {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(policy) => policy.evaluate(request),
            None => std::process::abort(),
        }
    }
}

/// Exports a type that implements [`Policy`] as the component's policy.
///
/// On other targets than WebAssembly it exports nothing, so that several policies fit into one test program.
#[macro_export]
macro_rules! export {
    ($policy:ident) => {
        #[cfg(target_arch = "wasm32")]
        #[allow(unsafe_code, reason = "the component's exports are C functions")]
        const _: () = {
            static SLOT: $crate::Slot<$policy> = $crate::Slot::empty();

            struct Exported;

            impl $crate::bindings::Guest for Exported {
                fn describe() -> $crate::Description {
                    <$policy as $crate::Policy>::describe()
                }

                fn configure(settings: String) -> Result<Vec<$crate::Bucket>, Vec<$crate::Problem>> {
                    SLOT.configure(&settings)
                }

                fn evaluate(request: $crate::Request) -> $crate::Decision {
                    // The instance ends with the call: taking the request apart again would be half the work.
                    SLOT.evaluate(&::std::mem::ManuallyDrop::new(request))
                }
            }

    $crate::bindings::export_world!(Exported with_types_in $crate::bindings);
        };
    };
}
