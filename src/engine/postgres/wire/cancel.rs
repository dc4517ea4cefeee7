//! Stopping a statement from another task.
//!
//! A handle stops what the session does for whoever took it: after the session's reset it does nothing, so a late
//! cancel never meets the next caller's statement. A session that was cancelled is not used again, since the server
//! carries a cancel out whenever it arrives.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use postgres_protocol::message::frontend;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::engine::postgres::Endpoint;
use crate::engine::postgres::net::{self, NetError};
use crate::model::fault;

/// Stops the statement that a session runs, if it runs one.
#[derive(Clone)]
pub struct CancelHandle {
    target: Arc<Target>,
    lease: u64,
}

/// What a cancel needs to know, and whether one was sent.
pub(super) struct Target {
    endpoint: Endpoint,
    process_id: i32,
    key: i32,
    timeout: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    lease: u64,
    cancelled: bool,
}

impl Target {
    pub(super) fn new(endpoint: Endpoint, process_id: i32, key: i32, timeout: Duration) -> Self {
        Self { endpoint, process_id, key, timeout, state: Mutex::default() }
    }

    pub(super) fn process_id(&self) -> i32 {
        self.process_id
    }

    /// Returns whether a cancel was sent, or is about to be.
    pub(super) fn is_cancelled(&self) -> bool {
        self.lock().cancelled
    }

    /// Notes that a cancel is about to be sent.
    pub(super) fn give_up(&self) {
        self.lock().cancelled = true;
    }

    /// Makes every handle that was given out do nothing from now on.
    pub(super) fn next_lease(&self) {
        self.lock().lease += 1;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the server to stop the session's statement, and waits until it has taken note.
    pub(super) async fn send(&self) -> Result<(), NetError> {
        let failed = |injected| NetError::Unreachable(io::Error::from(injected).to_string());
        fault::pass("socket.cancel").await.map_err(failed)?;
        let mut stream = net::open(&self.endpoint, self.timeout).await?;
        let mut request = BytesMut::new();
        frontend::cancel_request(self.process_id, self.key, &mut request);
        let exchange = async {
            stream.write_all(&request).await?;
            stream.flush().await?;
            // The server closes the connection, in one way or another, once it has sent its signal.
            stream.read(&mut [0; 1]).await.or(Ok(0))
        };
        match tokio::time::timeout(self.timeout, exchange).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(e)) => Err(NetError::Unreachable(io::Error::to_string(&e))),
            Err(_) => Err(NetError::Timeout(self.timeout)),
        }
    }
}

impl CancelHandle {
    pub(super) fn new(target: &Arc<Target>) -> Self {
        Self { target: Arc::clone(target), lease: target.lock().lease }
    }

    /// Stops the statement that runs. The session is not used again, even if nothing ran.
    ///
    /// # Errors
    /// Fails when the server cannot be reached; the session is given up all the same.
    pub async fn cancel(&self) -> Result<(), NetError> {
        {
            let mut state = self.target.lock();
            if state.lease != self.lease {
                return Ok(());
            }
            state.cancelled = true;
        }
        self.target.send().await
    }
}

impl fmt::Debug for CancelHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelHandle").field("process_id", &self.target.process_id).finish_non_exhaustive()
    }
}

/// Sends a cancel when a call is dropped before its end.
pub(super) struct CancelOnDrop(Option<Arc<Target>>);

impl CancelOnDrop {
    pub(super) fn armed(target: &Arc<Target>) -> Self {
        Self(Some(Arc::clone(target)))
    }

    pub(super) fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        let Some(target) = self.0.take() else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            if let Err(error) = target.send().await {
                tracing::debug!(process_id = target.process_id, %error, "a cancel could not be sent");
            }
        });
    }
}
