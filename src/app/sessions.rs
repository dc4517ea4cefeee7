//! Sessions on a profile's metadata database, as the store wants them.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use async_trait::async_trait;
use tokio_postgres::Client;

use crate::engine::postgres::{PooledSession, PostgresServer};
use crate::store::{Sessions, StoreError, StoreSession};

/// A profile's server, seen as the place of its metadata.
#[derive(Debug)]
pub(super) struct MetadataSessions(Arc<PostgresServer>);

impl MetadataSessions {
    pub(super) fn new(server: Arc<PostgresServer>) -> Self {
        Self(server)
    }
}

#[async_trait]
impl Sessions for MetadataSessions {
    async fn session(&self) -> Result<StoreSession, StoreError> {
        Ok(StoreSession::new(Pooled(self.0.metadata_session().await?)))
    }

    async fn dedicated(&self) -> Result<StoreSession, StoreError> {
        Ok(StoreSession::new(self.0.dedicated_metadata_session().await?))
    }
}

/// A pooled session, seen as the driver's client.
struct Pooled(PooledSession);

impl Deref for Pooled {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.0
    }
}

impl DerefMut for Pooled {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.0
    }
}
