//! A sandbox for one call alone: made under the call's permit, and removed when the call is over, however that ends.
//!
//! It is a sandbox like any other: checked, counted, with its row and its plans. Who has a [`Disposable`] made it, and so needs
//! no other permit to use it. It is removed once that is dropped, by a task that is there from the beginning: so also where
//! nobody waits for the call any more, and where the program is told to end. What a killed program leaves is removed after
//! its time, which is short.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::access::refuse_if_read_only;
use super::core::require;
use super::remove::Removal;
use super::schema::ReadSchema;
use super::{Core, CreateRequest, Profile, Sandbox, State, not_found};
use crate::admission::{Grant, Permit};
use crate::engine::ConnectionInfo;
use crate::model::{Code, CredentialAccess, Failure, Impact, Progress, SchemaFilter, Secret, fault};
use crate::store::Find;

/// How long the call waits for its sandbox to be gone; then it is told that it is not yet.
const REMOVAL_WAIT: Duration = Duration::from_secs(60);

/// A sandbox for one call alone, ready to be used.
#[derive(Debug)]
pub struct Disposable {
    core: Core,
    grant: Grant,
    profile: Arc<Profile>,
    sandbox: Sandbox,
    /// Its removal begins when this is dropped.
    held: oneshot::Sender<Infallible>,
    removal: JoinHandle<Result<State, Failure>>,
}

impl Core {
    /// Makes a sandbox for one call alone, within the bounds and quotas of its permit. `cancel` asks the making to stop.
    ///
    /// # Errors
    /// As [`Core::create`].
    pub async fn create_disposable<T>(
        &self,
        permit: &Permit<T>,
        request: CreateRequest,
        progress: Arc<dyn Progress>,
        cancel: CancellationToken,
    ) -> Result<Disposable, Failure> {
        require(permit, Impact::ReachesOut, None)?;
        let grant = permit.grant().clone();
        let (profile, request) = self.checked(&grant, request)?;
        let core = self.clone();
        // Whoever waits may leave: what is made then goes with what this hands back.
        self.detached(async move {
            let created = core.create_asked(&profile, &grant, &request, &*progress, &cancel).await?;
            grant.course.is_about(created.sandbox.id);
            Ok(core.dispose_later(grant, profile, created.sandbox))
        })
        .await
    }

    fn dispose_later(self, grant: Grant, profile: Arc<Profile>, sandbox: Sandbox) -> Disposable {
        let (held, dropped) = oneshot::channel::<Infallible>();
        let (core, for_task, for_removal, id) = (self.clone(), Arc::clone(&profile), grant.clone(), sandbox.id);
        let removal = self.follow_up(async move {
            // Nothing is ever sent.
            dropped.await.ok();
            let removed = match core.remove(&for_task, id, &for_removal, false, || {}).await {
                // Its command may have had it deleted, or dropped.
                Ok(Removal::Gone(_)) => Ok(State::Deleted),
                Ok(Removal::Theirs(_) | Removal::NotExpired) => Ok(State::Deleting),
                Err(failure) if failure.code == Code::DatabaseNotFound => Ok(State::Deleted),
                Err(failure) => Err(failure),
            };
            if let Err(failure) = &removed {
                tracing::warn!(sandbox = %id, %failure, "a sandbox of one call could not be removed now");
            }
            removed
        });
        Disposable { core: self, grant, profile, sandbox, held, removal }
    }
}

impl Disposable {
    /// Returns the sandbox as it was made.
    pub fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// Returns where and how it is reached, with its owner's password.
    ///
    /// # Errors
    /// `obligation_unmet` for a request that must only read, `quota_exceeded` when the byte quota is used up.
    pub async fn credentials(&self) -> Result<(ConnectionInfo, Secret), Failure> {
        let Self { core, profile, grant, .. } = self;
        let sandbox = self.now().await?;
        refuse_if_read_only(grant)?;
        core.admit_owner(grant, profile, &sandbox).await?;
        let spec = core.spec(profile, &sandbox).await?;
        Core::give_out(profile, spec, CredentialAccess::Owner).await
    }

    /// Reads its schema.
    ///
    /// # Errors
    /// As [`Core::schema`].
    pub async fn schema(&self, filter: &SchemaFilter) -> Result<ReadSchema, Failure> {
        let sandbox = self.now().await?;
        self.core.read_schema(&self.grant, &self.profile, &sandbox, filter).await
    }

    /// Removes it, and waits for that a while: it is gone, or nobody can use it any more.
    ///
    /// # Errors
    /// It could not be removed now, and is marked for it and tried again.
    pub async fn remove(self) -> Result<State, Failure> {
        let Self { held, removal, .. } = self;
        drop(held);
        match tokio::time::timeout(fault::within(REMOVAL_WAIT), removal).await {
            Ok(Ok(removed)) => removed,
            Ok(Err(error)) => {
                let text = "the removal broke off; it is tried again";
                Err(Failure::new(Code::Internal, text).audit(error.to_string()))
            }
            Err(_) => Ok(State::Deleting),
        }
    }

    async fn now(&self) -> Result<Sandbox, Failure> {
        let now = self.profile.store.find(&Find::Id(self.sandbox.id)).await?.ok_or_else(not_found)?;
        now.usable()?;
        Ok(now)
    }
}
