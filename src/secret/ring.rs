//! The keys, and what they seal.
//!
//! A sealed value is `1 | key id, 8 bytes | nonce, 12 bytes | AES-256-GCM-SIV ciphertext and tag`. The
//! associated data is the sandbox's id and the field's name, so a value cannot be moved to another row or
//! column. A key's id is cut from its SHA-256, so it cannot disagree with the key.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use aes_gcm_siv::aead::{Aead, KeyInit, Payload};
use aes_gcm_siv::{Aes256GcmSiv, Nonce};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::file::{self, KeySource};
use super::{SecretError, random};
use crate::model::{SandboxId, Secret};

/// The only envelope there is so far.
const ENVELOPE_VERSION: u8 = 1;
const KEY_BYTES: usize = 32;
const KEY_ID_BYTES: usize = 8;
const NONCE_BYTES: usize = 12;

/// Names a key; tells nothing about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId([u8; KEY_ID_BYTES]);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A sealed value, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed(Vec<u8>);

impl Sealed {
    /// Takes a stored value. It is checked when it is opened.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// Returns the bytes to store.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the bytes to store, without a copy.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Returns the key that sealed the value.
    ///
    /// # Errors
    /// Fails if this is no envelope of ours.
    pub fn key_id(&self) -> Result<KeyId, SecretError> {
        let (&version, rest) = self.0.split_first().ok_or(SecretError::Forged)?;
        let (id, _) = rest.split_first_chunk().ok_or(SecretError::Forged)?;
        if version == ENVELOPE_VERSION { Ok(KeyId(*id)) } else { Err(SecretError::Forged) }
    }
}

/// One master key.
#[derive(Clone)]
pub(super) struct Key {
    bytes: Zeroizing<[u8; KEY_BYTES]>,
    id: KeyId,
}

impl Key {
    pub(super) fn new(bytes: Zeroizing<[u8; KEY_BYTES]>) -> Self {
        let digest = Sha256::new().chain_update(b"pgsandbox key id\0").chain_update(bytes.as_slice()).finalize();
        let mut id = [0; KEY_ID_BYTES];
        for (to, from) in id.iter_mut().zip(digest.iter()) {
            *to = *from;
        }
        Self { bytes, id: KeyId(id) }
    }

    pub(super) fn fresh() -> Result<Self, SecretError> {
        Ok(Self::new(random::<KEY_BYTES>()?))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.bytes.as_slice()
    }
}

/// The keys of one installation. Shared by everything that seals or opens.
#[derive(Clone)]
pub struct KeyRing {
    source: KeySource,
    /// Never empty; the current one is last.
    keys: Arc<RwLock<Vec<Key>>>,
}

impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyRing")
            .field("source", &self.source)
            .field("current", &self.current_id())
            .finish_non_exhaustive()
    }
}

impl KeyRing {
    /// Reads the keys of `source`. A state directory without a key gets one; of several processes that
    /// start at once, all get the same.
    ///
    /// # Errors
    /// Fails if the source cannot be read, is open to others, or holds something else.
    pub async fn open(source: KeySource) -> Result<Self, SecretError> {
        let keys = file::load(&source).await?;
        Ok(Self { source, keys: Arc::new(RwLock::new(keys)) })
    }

    /// Returns the id of the key that seals.
    pub fn current_id(&self) -> Option<KeyId> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner).last().map(|key| key.id)
    }

    /// Returns what stands for a message: the same as long as the current key does, and no help in guessing what the message
    /// is to who has no key.
    pub fn keyed_digest(&self, message: &[u8]) -> [u8; 32] {
        let key = self.keys.read().unwrap_or_else(PoisonError::into_inner).last().cloned();
        let key = key.as_ref().map_or(&[][..], Key::bytes);
        // The inner digest is of fixed length, so nothing can be appended to the message.
        let message = Sha256::digest(message);
        Sha256::new().chain_update(b"pgsandbox digest\0").chain_update(key).chain_update(message).finalize().into()
    }

    /// Seals `secret` for one field of one sandbox.
    ///
    /// # Errors
    /// Fails if the system gives no random bytes.
    pub fn seal(&self, sandbox: SandboxId, field: &str, secret: &Secret) -> Result<Sealed, SecretError> {
        let key = self.keys.read().unwrap_or_else(PoisonError::into_inner).last().cloned();
        let key = key.ok_or(SecretError::Malformed { from: self.source.to_string(), fault: "it is empty" })?;
        let nonce = random::<NONCE_BYTES>()?;
        let aad = associated_data(sandbox, field);
        let sealed = cipher(&key)?
            .encrypt(&Nonce::from(*nonce), Payload { msg: secret.expose().as_bytes(), aad: &aad })
            .map_err(|_| SecretError::Forged)?;
        let mut envelope = Vec::with_capacity(1 + KEY_ID_BYTES + NONCE_BYTES + sealed.len());
        envelope.push(ENVELOPE_VERSION);
        envelope.extend_from_slice(&key.id.0);
        envelope.extend_from_slice(nonce.as_slice());
        envelope.extend_from_slice(&sealed);
        Ok(Sealed(envelope))
    }

    /// Opens what was sealed for this field of this sandbox. Reads the source again if the key is not known yet:
    /// another process may have rotated.
    ///
    /// # Errors
    /// Fails if no key fits, or the value was changed or moved.
    pub async fn open_sealed(&self, sandbox: SandboxId, field: &str, sealed: &Sealed) -> Result<Secret, SecretError> {
        let id = sealed.key_id()?;
        let key = match self.find(id) {
            Some(key) => key,
            None => {
                let keys = file::load(&self.source).await?;
                *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
                self.find(id).ok_or(SecretError::UnknownKey(id))?
            }
        };
        let rest = sealed.0.get(1 + KEY_ID_BYTES..).ok_or(SecretError::Forged)?;
        let (nonce, ciphertext) = rest.split_first_chunk::<NONCE_BYTES>().ok_or(SecretError::Forged)?;
        let aad = associated_data(sandbox, field);
        let plain = cipher(&key)?
            .decrypt(&Nonce::from(*nonce), Payload { msg: ciphertext, aad: &aad })
            .map_err(|_| SecretError::Forged)?;
        let plain = Zeroizing::new(plain);
        let text = std::str::from_utf8(&plain).map_err(|_| SecretError::Forged)?;
        Ok(Secret::new(text))
    }

    /// Adds a fresh key, which seals from now on. Older keys keep opening.
    ///
    /// # Errors
    /// Fails if the keys are not kept in the state directory, or the file cannot be written.
    pub async fn rotate(&self) -> Result<KeyId, SecretError> {
        let keys = file::append(&self.source).await?;
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
        self.current_id().ok_or(SecretError::Malformed { from: self.source.to_string(), fault: "it is empty" })
    }

    /// Seals a value with the current key; `None` if it is already.
    ///
    /// # Errors
    /// Fails as opening and sealing do.
    pub async fn reseal(
        &self,
        sandbox: SandboxId,
        field: &str,
        sealed: &Sealed,
    ) -> Result<Option<Sealed>, SecretError> {
        if Some(sealed.key_id()?) == self.current_id() {
            return Ok(None);
        }
        let secret = self.open_sealed(sandbox, field, sealed).await?;
        self.seal(sandbox, field, &secret).map(Some)
    }

    fn find(&self, id: KeyId) -> Option<Key> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner).iter().find(|key| key.id == id).cloned()
    }
}

fn cipher(key: &Key) -> Result<Aes256GcmSiv, SecretError> {
    Aes256GcmSiv::new_from_slice(key.bytes()).map_err(|_| SecretError::Forged)
}

fn associated_data(sandbox: SandboxId, field: &str) -> Vec<u8> {
    format!("pgsandbox\0{sandbox}\0{field}").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn ring(dir: &tempfile::TempDir) -> KeyRing {
        KeyRing::open(KeySource::StateDirectory(dir.path().to_owned())).await.unwrap()
    }

    #[tokio::test]
    async fn a_sealed_value_opens_only_for_its_sandbox_and_field() {
        let dir = tempfile::tempdir().unwrap();
        let ring = ring(&dir).await;
        let (mine, other) = (SandboxId::fresh(), SandboxId::fresh());
        let sealed = ring.seal(mine, "owner", &Secret::new("s3cret")).unwrap();
        assert_eq!(ring.open_sealed(mine, "owner", &sealed).await.unwrap().expose(), "s3cret");
        assert_eq!(ring.open_sealed(other, "owner", &sealed).await, Err(SecretError::Forged));
        assert_eq!(ring.open_sealed(mine, "readonly", &sealed).await, Err(SecretError::Forged));
        assert!(!sealed.as_bytes().windows(6).any(|w| w == b"s3cret"));
    }

    #[tokio::test]
    async fn a_changed_value_does_not_open() {
        let dir = tempfile::tempdir().unwrap();
        let ring = ring(&dir).await;
        let id = SandboxId::fresh();
        let sealed = ring.seal(id, "owner", &Secret::new("s3cret")).unwrap();
        for at in 0..sealed.as_bytes().len() {
            let mut bytes = sealed.as_bytes().to_vec();
            bytes[at] ^= 1;
            assert!(ring.open_sealed(id, "owner", &Sealed::from_bytes(bytes)).await.is_err(), "byte {at}");
        }
        for length in 0..sealed.as_bytes().len() {
            let cut = Sealed::from_bytes(sealed.as_bytes()[..length].to_vec());
            assert!(ring.open_sealed(id, "owner", &cut).await.is_err(), "length {length}");
        }
    }

    #[tokio::test]
    async fn the_same_secret_never_seals_to_the_same_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let ring = ring(&dir).await;
        let id = SandboxId::fresh();
        let secret = Secret::new("s3cret");
        assert_ne!(ring.seal(id, "owner", &secret).unwrap(), ring.seal(id, "owner", &secret).unwrap());
    }

    #[tokio::test]
    async fn after_rotation_old_values_open_and_can_be_resealed() {
        let dir = tempfile::tempdir().unwrap();
        let (here, elsewhere) = (ring(&dir).await, ring(&dir).await);
        let id = SandboxId::fresh();
        let old = here.seal(id, "owner", &Secret::new("s3cret")).unwrap();
        let new_key = here.rotate().await.unwrap();
        assert_ne!(old.key_id().unwrap(), new_key);
        assert_eq!(here.open_sealed(id, "owner", &old).await.unwrap().expose(), "s3cret");

        let new = here.reseal(id, "owner", &old).await.unwrap().expect("an old value is sealed again");
        assert_eq!(new.key_id().unwrap(), new_key);
        assert_eq!(here.reseal(id, "owner", &new).await.unwrap(), None);
        // A process that read the keys before the rotation finds the new one.
        assert_eq!(elsewhere.open_sealed(id, "owner", &new).await.unwrap().expose(), "s3cret");
    }

    #[tokio::test]
    async fn a_value_of_another_installation_names_the_missing_key() {
        let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let id = SandboxId::fresh();
        let sealed = ring(&there).await.seal(id, "owner", &Secret::new("x")).unwrap();
        let expected = SecretError::UnknownKey(sealed.key_id().unwrap());
        assert_eq!(ring(&here).await.open_sealed(id, "owner", &sealed).await, Err(expected));
    }

    #[tokio::test]
    async fn a_digest_depends_on_message_and_key() {
        let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (one, other) = (ring(&here).await, ring(&there).await);
        assert_eq!(one.keyed_digest(b"a"), ring(&here).await.keyed_digest(b"a"));
        assert_ne!(one.keyed_digest(b"a"), one.keyed_digest(b"b"));
        assert_ne!(one.keyed_digest(b"a"), other.keyed_digest(b"a"));
    }

    #[tokio::test]
    async fn debugging_a_ring_shows_no_key() {
        let dir = tempfile::tempdir().unwrap();
        let ring = ring(&dir).await;
        let key = ring.keys.read().unwrap()[0].bytes().to_vec();
        let shown = format!("{ring:?}");
        assert!(!shown.contains(&format!("{key:?}")));
    }
}
