//! Seals the passwords of all sandboxes with a new key.

use super::core::{OWNER_FIELD, READONLY_FIELD};
use super::remove::PAGE;
use super::{Core, Profile, Sandbox};
use crate::admission::Permit;
use crate::model::{Code, Failure, Transport};
use crate::secret::Sealed;
use crate::store::{After, ListQuery, SealedPasswords};

impl Core {
    /// Makes a new key, and seals the passwords of every live sandbox with it. Returns how many were sealed again.
    ///
    /// # Errors
    /// Fails if the permit is not the program's own, or a profile cannot be looked at; then it may be called again.
    pub async fn rotate_keys<T>(&self, permit: &Permit<T>) -> Result<u64, Failure> {
        if permit.grant().principal.transport != Transport::Internal {
            return Err(Failure::new(Code::Internal, "keys are rotated under the program's own permit only"));
        }
        self.inner().keys.rotate().await?;
        let (mut count, mut left) = (0, Vec::new());
        for profile in self.profiles() {
            self.open(profile).await?;
            let mut query = ListQuery { include_expired: true, limit: PAGE, ..ListQuery::default() };
            loop {
                let page = profile.store.list(&query).await?;
                let Some(last) = page.last() else { break };
                query.after = Some(After { time: last.created_at, id: last.id });
                for sandbox in &page {
                    match self.reseal(profile, sandbox).await {
                        Ok(sealed) => count += u64::from(sealed),
                        // One whose key is lost, or whose row was edited, does not keep the rest from the new key.
                        Err(failure) if !failure.retryable => left.push(failure),
                        Err(failure) => return Err(failure),
                    }
                }
            }
        }
        match left.into_iter().next() {
            None => Ok(count),
            Some(mut first) => {
                first.message =
                    format!("{count} sandboxes were sealed with the new key, and not all: {}", first.message);
                Err(first)
            }
        }
    }

    async fn reseal(&self, profile: &Profile, sandbox: &Sandbox) -> Result<bool, Failure> {
        let Some(old) = profile.store.passwords(sandbox.id).await? else { return Ok(false) };
        let keys = &self.inner().keys;
        let reseal = async |field, bytes: &[u8]| {
            let sealed = keys.reseal(sandbox.id, field, &Sealed::from_bytes(bytes.to_vec())).await?;
            Ok::<_, Failure>(sealed.map_or_else(|| bytes.to_vec(), Sealed::into_bytes))
        };
        let owner = reseal(OWNER_FIELD, &old.owner).await?;
        let readonly = reseal(READONLY_FIELD, &old.readonly).await?;
        let new = SealedPasswords { owner, readonly };
        if new == old {
            return Ok(false);
        }
        Ok(profile.store.replace_passwords(sandbox.id, &old, &new).await?)
    }
}
