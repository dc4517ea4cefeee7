//! Sessions on the metadata database, as the store sees them.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use tokio_postgres::{Client, Config, NoTls};

use super::StoreError;
use crate::engine::postgres::{AdminSession, PooledSession, PostgresServer};

/// Gives sessions on one profile's metadata database, as its admin.
#[async_trait]
pub trait Sessions: Send + Sync + 'static {
    /// Returns a session with nothing of an earlier user in it; it may go back to a pool when dropped.
    async fn session(&self) -> Result<StoreSession, StoreError>;

    /// Returns a session that is closed when dropped: what it holds, a session lock for instance, ends with it.
    async fn dedicated(&self) -> Result<StoreSession, StoreError>;
}

/// A session on the metadata database, whoever keeps it.
pub struct StoreSession(Box<dyn DerefMut<Target = Client> + Send + Sync>);

impl StoreSession {
    /// Wraps a client, or a guard that gives it back to a pool.
    pub fn new(client: impl DerefMut<Target = Client> + Send + Sync + 'static) -> Self {
        Self(Box::new(client))
    }
}

impl fmt::Debug for StoreSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreSession")
    }
}

impl Deref for StoreSession {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.0
    }
}

impl DerefMut for StoreSession {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.0
    }
}

/// Sessions of the server behind a profile, out of the pool that its engine uses as well.
#[derive(Clone, Debug)]
pub struct ServerSessions(Arc<PostgresServer>);

impl ServerSessions {
    /// Takes sessions from `server`; nothing is contacted yet.
    pub fn new(server: Arc<PostgresServer>) -> Self {
        Self(server)
    }
}

#[async_trait]
impl Sessions for ServerSessions {
    async fn session(&self) -> Result<StoreSession, StoreError> {
        Ok(StoreSession::new(Lent(self.0.metadata_session().await?)))
    }

    async fn dedicated(&self) -> Result<StoreSession, StoreError> {
        Ok(StoreSession::new(Own(self.0.dedicated_metadata_session().await?)))
    }
}

/// A session out of the server's pool, as the driver's client.
struct Lent(PooledSession);

impl Deref for Lent {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.0
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.0
    }
}

/// A session of its own, as the driver's client.
struct Own(AdminSession);

impl Deref for Own {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.0
    }
}

impl DerefMut for Own {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.0
    }
}

/// Sessions straight through the driver, without TLS: for a server on this machine.
#[derive(Clone)]
pub struct DirectSessions {
    config: Config,
    idle: Arc<Mutex<Vec<Client>>>,
}

/// The most sessions kept for the next statement.
const IDLE_SESSIONS_MAX: usize = 4;

impl DirectSessions {
    /// Describes the database; nothing is connected yet.
    pub fn new(config: Config) -> Self {
        Self { config, idle: Arc::default() }
    }

    async fn connect(&self) -> Result<Client, StoreError> {
        let (client, connection) = self.config.connect(NoTls).await.map_err(StoreError::from_driver("connect"))?;
        // Ends when the client is dropped; what it says on the way out, the client has heard as well.
        tokio::spawn(async move { drop(connection.await) });
        Ok(client)
    }

    fn take_idle(&self) -> Option<Client> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|client| !client.is_closed());
        idle.pop()
    }
}

impl fmt::Debug for DirectSessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectSessions").finish_non_exhaustive()
    }
}

#[async_trait]
impl Sessions for DirectSessions {
    async fn session(&self) -> Result<StoreSession, StoreError> {
        let client = match self.take_idle() {
            Some(client) => client,
            None => self.connect().await?,
        };
        Ok(StoreSession::new(Returning { client: Some(client), idle: Arc::clone(&self.idle) }))
    }

    async fn dedicated(&self) -> Result<StoreSession, StoreError> {
        Ok(StoreSession::new(Box::new(self.connect().await?)))
    }
}

/// Puts its client back when dropped. A transaction left open has queued its ROLLBACK before.
struct Returning {
    client: Option<Client>,
    idle: Arc<Mutex<Vec<Client>>>,
}

impl Deref for Returning {
    type Target = Client;

    #[expect(clippy::expect_used, reason = "the client is there until drop, and nothing can be called after it")]
    fn deref(&self) -> &Client {
        self.client.as_ref().expect("a client until dropped")
    }
}

impl DerefMut for Returning {
    #[expect(clippy::expect_used, reason = "the client is there until drop, and nothing can be called after it")]
    fn deref_mut(&mut self) -> &mut Client {
        self.client.as_mut().expect("a client until dropped")
    }
}

impl Drop for Returning {
    fn drop(&mut self) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = self.client.take()
            && !client.is_closed()
            && idle.len() < IDLE_SESSIONS_MAX
        {
            idle.push(client);
        }
    }
}
