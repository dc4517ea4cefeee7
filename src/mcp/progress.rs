//! News of long work, sent to the client that asked for it.

use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::{Peer, RoleServer};
use tokio::sync::mpsc;

use crate::model::Progress;

/// News waiting to be sent; what does not fit is dropped, as the next one says more.
const QUEUE_MAX: usize = 16;

/// Sends progress to the client without ever holding the work up.
pub(super) struct PeerProgress {
    queue: mpsc::Sender<ProgressNotificationParam>,
    token: ProgressToken,
}

impl PeerProgress {
    /// Starts sending. Ends when the progress is dropped.
    pub(super) fn new(peer: Peer<RoleServer>, token: ProgressToken) -> Self {
        let (queue, mut news) = mpsc::channel::<ProgressNotificationParam>(QUEUE_MAX);
        tokio::spawn(async move {
            while let Some(notification) = news.recv().await {
                if peer.notify_progress(notification).await.is_err() {
                    break;
                }
            }
        });
        Self { queue, token }
    }
}

impl Progress for PeerProgress {
    fn report(&self, done: u32, total: u32, message: &str) {
        let notification = ProgressNotificationParam::new(self.token.clone(), f64::from(done))
            .with_total(f64::from(total))
            .with_message(message);
        // A full queue means the client reads slowly; the work does not wait for it.
        drop(self.queue.try_send(notification));
    }
}
