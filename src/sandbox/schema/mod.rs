//! Schemas of sandboxes: read, digested, compared, and kept under names.
//!
//! A schema is read as the sandbox's reader, under a permit that names the sandbox. What is kept belongs to the permit's
//! principal, outlives the sandbox, and is nobody else's to see.

mod diff;
mod digest;
mod files;

use std::path::PathBuf;
use std::sync::Arc;

use tokio::time::Instant;

use self::files::{FilesError, Shelf};
use super::access::{PAUSE_MAX, PAUSE_MIN};
use super::core::require;
use super::kept::Kept;
use super::pool::Use;
use super::{Core, Profile, Sandbox, Selector, Target, not_found};
use crate::admission::{Grant, Permit};
use crate::engine::postgres::CatalogueSession;
use crate::engine::{EngineError, SandboxSpec};
use crate::model::{Code, CredentialAccess, Failure, Impact, SandboxId, Schema, SchemaFilter};

pub use diff::{AttributeChange, Change, ChangeKind, compare, compare_fingerprints, in_a_line};
pub(super) use digest::hex;
pub use digest::{DIGEST_VERSION, HANDLE_HEAD, SchemaDigest, is_checksum, is_handle};
pub use files::{
    KeptSchema, NOTES_BYTES_MAX, Origin, SNAPSHOT_BYTES_MAX, SNAPSHOT_NAME_CHARS_MAX, SNAPSHOTS_MAX, SchemaFacts,
    snapshot_name_fault,
};

/// A sandbox's schema as it was read.
#[derive(Clone, Debug)]
pub struct ReadSchema {
    /// The schema.
    pub schema: Schema,
    /// Where and when it was read.
    pub origin: Origin,
}

impl Core {
    /// Says where schemas are kept. What was said first stands.
    pub fn keep_schemas_in(&self, folder: PathBuf) {
        self.inner().schemas.set(folder).ok();
    }

    /// Reads the schema of the sandbox that the permit is for, or a part of it.
    ///
    /// # Errors
    /// `sandbox_expired`, `sandbox_not_ready`, `busy`, `invalid_arguments` if it is too large to be read as a whole, or the
    /// server cannot be reached.
    pub async fn schema<T>(
        &self,
        permit: &Permit<T>,
        id: SandboxId,
        filter: &SchemaFilter,
    ) -> Result<ReadSchema, Failure> {
        let looked = async {
            // A snapshot is made of what is read, and a command changes it.
            require(permit, Impact::Reads, Some(id))
                .or_else(|_| require(permit, Impact::Creates, Some(id)))
                .or_else(|_| require(permit, Impact::ReachesOut, Some(id)))?;
            let (profile, sandbox) = self.locate(permit, id).await?;
            sandbox.usable()?;
            Ok((profile, sandbox))
        };
        let (profile, sandbox) = permit.grant().course.refusing(looked.await)?;
        self.read_schema(permit.grant(), &profile, &sandbox, filter).await
    }

    /// Reads the schema of another sandbox, to be compared with that of the permit's: one of the principal's own, whatever
    /// is granted on others'.
    ///
    /// # Errors
    /// As [`Core::schema`], and `database_not_found` for one that is not the principal's.
    pub async fn other_schema<T>(
        &self,
        permit: &Permit<T>,
        other: &Selector,
        filter: &SchemaFilter,
    ) -> Result<ReadSchema, Failure> {
        let looked = async {
            own(permit, Impact::Reads)?;
            self.locate_own(permit.grant(), other).await
        };
        let (profile, sandbox) = permit.grant().course.refusing(looked.await)?;
        permit.grant().course.is_about(sandbox.id);
        self.read_schema(permit.grant(), &profile, &sandbox, filter).await
    }

    /// Says what [`Core::other_schema`] would refuse with.
    ///
    /// # Errors
    /// Fails as it would.
    pub async fn foresee_other_schema(&self, grant: &Grant, other: &Selector) -> Result<(), Failure> {
        self.locate_own(grant, other).await.map(drop)
    }

    async fn locate_own(&self, grant: &Grant, other: &Selector) -> Result<(Arc<Profile>, Sandbox), Failure> {
        let Target { profile, sandbox } = self.resolve(other).await?;
        let sandbox = sandbox.filter(|sandbox| sandbox.owner == grant.principal.owner).ok_or_else(not_found)?;
        profile.check_engine(&sandbox)?;
        sandbox.usable()?;
        Ok((profile, sandbox))
    }

    pub(super) async fn read_schema(
        &self,
        grant: &Grant,
        profile: &Profile,
        sandbox: &Sandbox,
        filter: &SchemaFilter,
    ) -> Result<ReadSchema, Failure> {
        let course = &grant.course;
        let until = Instant::now() + self.session_wait();
        let pool = &self.inner().pool;
        let turn = pool.turn(sandbox.id, CredentialAccess::ReadOnly, &sandbox.owner, until).await;
        let turn = course.refusing(turn)?;
        let spec = course.refusing(self.spec(profile, sandbox).await)?;
        course.acts();
        let waited = pool.take(sandbox.id, Use::Catalogue).and_then(Kept::catalogue);
        let mut kept = waited.is_some();
        let mut session = match waited {
            Some(session) => session,
            None => self.open_catalogue(profile, &spec, until).await?,
        };
        let schema = loop {
            match profile.engine.schema(&mut session, &spec, filter).await {
                Ok(schema) => break schema,
                // It may have ended while it waited, with its server for instance.
                Err(EngineError::Unreachable { .. }) if kept => {
                    kept = false;
                    session = self.open_catalogue(profile, &spec, until).await?;
                }
                Err(error) => return Err(error.into()),
            }
        };
        pool.give_back(sandbox.id, Use::Catalogue, Kept::Catalogue(session), turn);
        let origin = Origin {
            sandbox_id: sandbox.id.to_string(),
            sandbox_name: sandbox.names.database.clone(),
            profile: profile.name().to_owned(),
            postgres_version: profile.known_major(),
            at_ms: grant.now.unix_ms().try_into().unwrap_or_default(),
        };
        Ok(ReadSchema { schema, origin })
    }

    /// Logs in to read a sandbox's catalogue, waiting while the server has no connection left.
    async fn open_catalogue(
        &self,
        profile: &Profile,
        spec: &SandboxSpec,
        until: Instant,
    ) -> Result<CatalogueSession, Failure> {
        let mut pause = PAUSE_MIN;
        loop {
            let error = match profile.engine.catalogue(spec).await {
                Ok(session) => return Ok(session),
                Err(error) => error,
            };
            if !matches!(error, EngineError::Crowded { .. }) || Instant::now() + pause >= until {
                return Err(error.into());
            }
            // What waits for another call is in the way of this one.
            self.inner().pool.close_one();
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Keeps what a digest was made of, for a while, for its principal. Returns the handle, or `None` if it is too large.
    ///
    /// # Errors
    /// Fails if it cannot be written.
    pub async fn keep_schema<T>(
        &self,
        permit: &Permit<T>,
        read: ReadSchema,
        digest: &SchemaDigest,
    ) -> Result<Option<String>, Failure> {
        own(permit, Impact::Reads)?;
        let handle = digest.handle(&read.origin.sandbox_id);
        let owner = &permit.grant().principal.owner;
        let kept = KeptSchema::new(owner, &handle, &read.origin, digest, read.schema, None);
        let there = self.on_shelf(permit.grant(), move |shelf| shelf.keep(&kept)).await?;
        Ok(there.then_some(handle))
    }

    /// Returns what a digest was made of, if that is still kept for the principal.
    ///
    /// # Errors
    /// Fails if it cannot be read.
    pub async fn kept_schema<T>(&self, permit: &Permit<T>, handle: &str) -> Result<Option<KeptSchema>, Failure> {
        own(permit, Impact::Reads)?;
        let handle = handle.to_owned();
        let kept = self.on_shelf(permit.grant(), move |shelf| shelf.kept(&handle)).await?;
        kept.iter().for_each(|kept| names_origin(permit.grant(), kept));
        Ok(kept)
    }

    /// Keeps a schema under a name, which no snapshot of the principal's has yet.
    ///
    /// # Errors
    /// `invalid_artifact_name` if there is one of that name, or `quota_exceeded`.
    pub async fn create_snapshot<T>(
        &self,
        permit: &Permit<T>,
        name: &str,
        notes: Option<&str>,
        read: ReadSchema,
        digest: &SchemaDigest,
    ) -> Result<SchemaFacts, Failure> {
        own(permit, Impact::Creates)?;
        let owner = &permit.grant().principal.owner;
        let kept = KeptSchema::new(owner, name, &read.origin, digest, read.schema, notes);
        self.on_shelf(permit.grant(), move |shelf| shelf.add_snapshot(&kept).map(|()| kept.facts)).await
    }

    /// Says what [`Core::create_snapshot`] would refuse a name with.
    ///
    /// # Errors
    /// `invalid_artifact_name` if there is one of that name, or `quota_exceeded`.
    pub async fn foresee_snapshot(&self, grant: &Grant, name: &str) -> Result<(), Failure> {
        let name = name.to_owned();
        let looked = self.on_shelf(grant, move |shelf| {
            let there = shelf.snapshots()?;
            if there.iter().any(|facts| facts.name == name) {
                return Err(FilesError::Exists(name));
            }
            if there.len() >= SNAPSHOTS_MAX {
                let text = format!("there are {} snapshots; the limit is {SNAPSHOTS_MAX}", there.len());
                return Err(FilesError::Full(text));
            }
            Ok(())
        });
        looked.await
    }

    /// Returns the principal's snapshots, by name.
    ///
    /// # Errors
    /// Fails if they cannot be read.
    pub async fn snapshots<T>(&self, permit: &Permit<T>) -> Result<Vec<SchemaFacts>, Failure> {
        own(permit, Impact::Reads)?;
        self.snapshots_of(permit.grant()).await
    }

    /// Returns the snapshots of whom a permit is for, by name.
    ///
    /// # Errors
    /// Fails if they cannot be read.
    pub async fn snapshots_of(&self, grant: &Grant) -> Result<Vec<SchemaFacts>, Failure> {
        self.on_shelf(grant, |shelf| shelf.snapshots()).await
    }

    /// Returns the facts of a snapshot of whom a permit is for.
    ///
    /// # Errors
    /// `invalid_artifact_name`, `snapshot_not_found`.
    pub async fn snapshot_facts_of(&self, grant: &Grant, name: &str) -> Result<SchemaFacts, Failure> {
        if let Some(failure) = snapshot_name_fault(name) {
            return Err(failure);
        }
        let name = name.to_owned();
        self.on_shelf(grant, move |shelf| shelf.snapshot_facts(&name)).await
    }

    /// Returns the facts of the digests that are still kept for whom a permit is for, by handle.
    ///
    /// # Errors
    /// Fails if they cannot be read.
    pub async fn digests_of(&self, grant: &Grant) -> Result<Vec<SchemaFacts>, Failure> {
        self.on_shelf(grant, |shelf| shelf.digests()).await
    }

    /// Returns a snapshot of the principal's.
    ///
    /// # Errors
    /// `snapshot_not_found`.
    pub async fn snapshot<T>(&self, permit: &Permit<T>, name: &str) -> Result<KeptSchema, Failure> {
        own(permit, Impact::Reads)?;
        let name = name.to_owned();
        let kept = self.on_shelf(permit.grant(), move |shelf| shelf.snapshot(&name)).await?;
        names_origin(permit.grant(), &kept);
        Ok(kept)
    }

    /// Finds that there is a snapshot of that name.
    ///
    /// # Errors
    /// `snapshot_not_found`.
    pub async fn foresee_snapshot_use(&self, grant: &Grant, name: &str) -> Result<(), Failure> {
        let name = name.to_owned();
        self.on_shelf(grant, move |shelf| shelf.snapshot_facts(&name).map(drop)).await
    }

    /// Removes a snapshot of the principal's.
    ///
    /// # Errors
    /// `snapshot_not_found`.
    pub async fn delete_snapshot<T>(&self, permit: &Permit<T>, name: &str) -> Result<(), Failure> {
        own(permit, Impact::Destroys)?;
        let name = name.to_owned();
        self.on_shelf(permit.grant(), move |shelf| shelf.remove_snapshot(&name)).await
    }

    /// Works on what is kept for a principal, beside the threads that answer calls.
    async fn on_shelf<R: Send + 'static>(
        &self,
        grant: &Grant,
        work: impl FnOnce(&Shelf) -> Result<R, FilesError> + Send + 'static,
    ) -> Result<R, Failure> {
        let Some(root) = self.inner().schemas.get() else {
            return Err(Failure::new(Code::Internal, "this program keeps no schemas"));
        };
        let shelf = Shelf::new(root, &grant.principal.owner);
        let done = tokio::task::spawn_blocking(move || work(&shelf)).await;
        match done {
            Ok(result) => result.map_err(Failure::from),
            Err(error) => {
                Err(Failure::new(Code::Internal, "the work on kept schemas broke off").audit(error.to_string()))
            }
        }
    }
}

/// Says of a call that it is about the sandbox that a kept schema was read from, which may be gone.
fn names_origin(grant: &Grant, kept: &KeptSchema) {
    kept.facts.sandbox_id.parse().iter().for_each(|id| grant.course.is_about(*id));
}

/// Checks that a permit is for an act of this impact on what is the principal's own.
fn own<T>(permit: &Permit<T>, impact: Impact) -> Result<(), Failure> {
    require(permit, impact, permit.grant().target)
}
