//! The words of closed sets, as cases write them.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::model::{CredentialAccess, Impact, Origin, Phase, StatementClass, TlsMode, Traits, Transport};

/// A closed set of words.
pub trait Words: Copy + PartialEq {
    /// Returns every word with what it stands for.
    fn words() -> Vec<(&'static str, Self)>;
}

/// A value that is written as a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word<T>(pub T);

impl<T: Words> Word<T> {
    /// Returns the word.
    pub fn as_str(self) -> &'static str {
        T::words().into_iter().find(|(_, value)| *value == self.0).map(|(word, _)| word).unwrap_or_default()
    }
}

impl<'de, T: Words> Deserialize<'de> for Word<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfSet<T>(PhantomData<T>);

        impl<T: Words> Visitor<'_> for OfSet<T> {
            type Value = Word<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("one of ")?;
                f.write_str(&listed::<T>())
            }

            fn visit_str<E: Error>(self, given: &str) -> Result<Self::Value, E> {
                let found = T::words().into_iter().find(|(word, _)| *word == given);
                found.map(|(_, value)| Word(value)).ok_or_else(|| {
                    let given: String = given.escape_default().collect();
                    E::custom(format!("`{given}` is none of the words that are accepted: {}", listed::<T>()))
                })
            }
        }

        deserializer.deserialize_str(OfSet(PhantomData))
    }
}

impl<T: Words> Serialize for Word<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

fn listed<T: Words>() -> String {
    T::words().into_iter().map(|(word, _)| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

impl Words for Phase {
    fn words() -> Vec<(&'static str, Self)> {
        [Self::Visible, Self::Before, Self::After].map(|phase| (phase.as_str(), phase)).to_vec()
    }
}

impl Words for Impact {
    fn words() -> Vec<(&'static str, Self)> {
        Self::ALL.map(|impact| (impact.as_str(), impact)).to_vec()
    }
}

impl Words for Transport {
    fn words() -> Vec<(&'static str, Self)> {
        [Self::Stdio, Self::Http, Self::Cli, Self::Internal].map(|transport| (transport.as_str(), transport)).to_vec()
    }
}

impl Words for Origin {
    fn words() -> Vec<(&'static str, Self)> {
        [Self::Empty, Self::Clone, Self::Fork, Self::Template].map(|origin| (origin.as_str(), origin)).to_vec()
    }
}

impl Words for StatementClass {
    fn words() -> Vec<(&'static str, Self)> {
        Self::ALL.map(|class| (class.as_str(), class)).to_vec()
    }
}

impl Words for Traits {
    fn words() -> Vec<(&'static str, Self)> {
        Self::NAMED.map(|(one, word)| (word, one)).to_vec()
    }
}

impl Words for TlsMode {
    fn words() -> Vec<(&'static str, Self)> {
        vec![
            ("disabled", Self::Disable),
            ("prefer", Self::Prefer),
            ("require", Self::Require),
            ("verify-ca", Self::VerifyCa),
            ("verify-full", Self::VerifyFull),
        ]
    }
}

impl Words for CredentialAccess {
    fn words() -> Vec<(&'static str, Self)> {
        vec![("owner", Self::Owner), ("read-only", Self::ReadOnly)]
    }
}
