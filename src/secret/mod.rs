//! Seals the passwords of sandboxes, and makes them.
//!
//! A sealed value names the key that sealed it, and opens only for the sandbox and field it was sealed for.
//! The newest key seals; every key of the ring opens. Keys and opened values are wiped when dropped.
//! Nothing here depends on how a server is reached, and no key is ever written but to the key file.

mod file;
mod ring;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use zeroize::Zeroizing;

use crate::model::{Code, Failure, Secret};

pub use file::{KEY_FILE_NAME, KeySource, PasswordSource};
pub use ring::{KeyId, KeyRing, Sealed};

/// Random bytes of a password: 256 bits.
const PASSWORD_BYTES: usize = 32;

/// What is attempted with a program that prints keys.
const GET: &str = "get";

/// What can go wrong with keys and sealed values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// Others may read the file of keys or of a password, or it is not ours.
    #[error("file `{path}` {fault}")]
    Unsafe {
        /// The file.
        path: String,
        /// What is wrong with it.
        fault: String,
    },
    /// The key file or command cannot be read, or the file cannot be written.
    #[error("could not {action} the keys of `{from}`")]
    Source {
        /// What was attempted.
        action: &'static str,
        /// The file or program.
        from: String,
        /// What the system said.
        detail: String,
    },
    /// What the source holds is not a key.
    #[error("`{from}` does not hold keys: {fault}")]
    Malformed {
        /// The file or program.
        from: String,
        /// What is wrong, without the content.
        fault: &'static str,
    },
    /// A value was sealed with a key that the ring does not have.
    #[error("no key `{0}` to open a sealed value with")]
    UnknownKey(KeyId),
    /// A value was changed, cut, or belongs to another sandbox or field.
    #[error("a sealed value does not open: it was changed, or belongs to another sandbox or field")]
    Forged,
    /// Keys come from a place that this program does not write.
    #[error("keys from `{0}` are rotated where they are kept, not here")]
    NotOurs(String),
    /// The file or program that holds a password cannot be read or run.
    #[error("could not get the password from `{from}`: {detail}")]
    PasswordUnread {
        /// The file or program.
        from: String,
        /// What the system said.
        detail: String,
    },
    /// A password's source holds none.
    #[error("`{0}` does not hold a password: one line of text")]
    NoPassword(String),
    /// The system gives no random bytes.
    #[error("the system gives no random bytes")]
    NoRandom,
}

impl From<SecretError> for Failure {
    fn from(error: SecretError) -> Self {
        let text = error.to_string();
        match error {
            SecretError::Unsafe { .. } => Self::new(Code::InvalidConfiguration, text)
                .hint("make the file the program's user's own, with mode 0600"),
            SecretError::Source { action: GET, detail, .. } => Self::new(Code::InvalidConfiguration, text)
                .hint("run the program of `keyCommand` by hand: it must end within half a minute without an error, and print the keys")
                .audit(detail),
            SecretError::Source { detail, .. } => Self::new(Code::InvalidConfiguration, text)
                .hint("see that the source is there, is no link, and that its disk is not full or read-only")
                .audit(detail),
            SecretError::Malformed { .. } => Self::new(Code::InvalidConfiguration, text)
                .hint("a key is 32 random bytes in base64, one key per line, the current one last"),
            SecretError::UnknownKey(_) => Self::new(Code::InvalidConfiguration, text)
                .hint("bring back the key file that the sandbox was made with, or delete the sandbox"),
            SecretError::NotOurs(_) => {
                Self::new(Code::InvalidConfiguration, text).hint("add the new key there, as the last one")
            }
            SecretError::Forged => Self::new(Code::MetadataDamaged, text)
                .hint("have an operator put the sandbox's row right, or delete the sandbox"),
            SecretError::PasswordUnread { detail, .. } => Self::new(Code::InvalidConfiguration, text)
                .hint("see that the file is there and readable, or that the program ends in time and without an error")
                .audit(detail),
            SecretError::NoPassword(_) => Self::new(Code::InvalidConfiguration, text)
                .hint("put the password alone there, without quotes and in one line"),
            SecretError::NoRandom => Self::new(Code::Internal, text),
        }
    }
}

/// Makes a password of 256 random bits, as 43 characters that need no escaping in a URL.
///
/// # Errors
/// Fails if the system gives no random bytes.
pub fn random_password() -> Result<Secret, SecretError> {
    let bytes = random::<PASSWORD_BYTES>()?;
    Ok(Secret::new(URL_SAFE_NO_PAD.encode(bytes.as_slice())))
}

/// Returns random bytes that are wiped when dropped.
fn random<const N: usize>() -> Result<Zeroizing<[u8; N]>, SecretError> {
    let mut bytes = Zeroizing::new([0; N]);
    getrandom::fill(bytes.as_mut_slice()).map_err(|_| SecretError::NoRandom)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn passwords_are_long_distinct_and_safe_in_urls() {
        let many: BTreeSet<String> = (0..100).map(|_| random_password().unwrap().expose().to_owned()).collect();
        assert_eq!(many.len(), 100);
        for password in many {
            assert_eq!(password.len(), 43);
            assert!(password.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'));
        }
    }
}
