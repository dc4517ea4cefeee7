//! Identities of requests and sandboxes.

use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

/// The one id of a request: audit entry, journal parent, span attribute, and what a person sees in an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(Uuid);

/// The identity of a sandbox, for good: names may be reused, ids are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SandboxId(Uuid);

/// The identity of one plan in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlanId(Uuid);

impl RequestId {
    /// Makes a fresh id that sorts by time.
    pub fn fresh() -> Self {
        Self(Uuid::now_v7())
    }
}

impl SandboxId {
    /// Makes a fresh random id.
    pub fn fresh() -> Self {
        Self(Uuid::new_v4())
    }

    /// Returns the ten hexadecimal digits that stand in the sandbox's name.
    pub fn short(self) -> String {
        self.0.simple().to_string().chars().take(10).collect()
    }
}

impl PlanId {
    /// Makes a fresh id that sorts by time.
    pub fn fresh() -> Self {
        Self(Uuid::now_v7())
    }
}

macro_rules! uuid_newtype {
    ($($name:ident),*) => {$(
        impl From<Uuid> for $name {
            fn from(id: Uuid) -> Self {
                Self(id)
            }
        }

        impl From<$name> for Uuid {
            fn from(id: $name) -> Self {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Uuid::parse_str(text).map(Self)
            }
        }
    )*};
}

uuid_newtype!(RequestId, SandboxId, PlanId);
