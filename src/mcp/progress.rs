//! News of long work, sent to the client that asked for it.

use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::{Peer, RoleServer};
use tokio::sync::mpsc;

use crate::model::Progress;

/// News waiting to be sent; what does not fit is dropped, as a later one says more.
const QUEUE_MAX: usize = 16;

/// Sends progress to the client without ever holding the work up.
pub(super) struct PeerProgress {
    queue: mpsc::Sender<ProgressNotificationParam>,
    token: ProgressToken,
}

impl PeerProgress {
    /// Starts sending. Ends when the progress is dropped.
    pub(super) fn new(peer: Peer<RoleServer>, token: ProgressToken) -> Self {
        let (progress, mut news) = Self::queued(token);
        tokio::spawn(async move {
            while let Some(notification) = news.recv().await {
                if peer.notify_progress(notification).await.is_err() {
                    break;
                }
            }
        });
        progress
    }

    fn queued(token: ProgressToken) -> (Self, mpsc::Receiver<ProgressNotificationParam>) {
        let (queue, news) = mpsc::channel(QUEUE_MAX);
        (Self { queue, token }, news)
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

#[cfg(test)]
mod tests {
    use rmcp::model::NumberOrString;

    use super::*;

    #[test]
    fn news_that_nobody_takes_are_kept_up_to_a_bound_and_hold_nothing_up() {
        let most = u32::try_from(QUEUE_MAX).unwrap();
        for (told, kept) in [(most - 1, most - 1), (most, most), (most + 1, most)] {
            let (progress, mut news) = PeerProgress::queued(ProgressToken(NumberOrString::Number(1)));
            (0..told).for_each(|done| progress.report(done, told, "making"));
            let taken: Vec<f64> = std::iter::from_fn(|| news.try_recv().ok()).map(|news| news.progress).collect();
            assert_eq!(taken, (0..kept).map(f64::from).collect::<Vec<_>>(), "{told} told");
            // There is room again.
            progress.report(told, told, "made");
            assert_eq!(news.try_recv().map(|news| news.progress).ok(), Some(f64::from(told)));
        }
    }
}
