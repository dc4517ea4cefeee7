//! News of long work, sent to the client that asked for it; and of a call without news, that it goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::{Peer, RoleServer};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::model::{Progress, fault};

/// News waiting to be sent; what does not fit is dropped, as a later one says more.
const QUEUE_MAX: usize = 16;
/// How long a call is silent before its client is told that it goes on: many count their time-out from the last news.
const BEAT: Duration = Duration::from_secs(10);
/// By how much news is more than the last where the work itself is no further: the protocol wants each to be more.
const PROGRESS_STEP: f64 = 1.0 / 1024.0;

/// What is to be told.
#[derive(Debug)]
enum News {
    Report { done: u32, total: u32, message: String },
    GoesOn { since: Duration },
}

/// Sends progress to the client without ever holding the work up.
pub(super) struct PeerProgress {
    queue: mpsc::Sender<News>,
    told: AtomicBool,
}

/// Tells the client of a silent call that it goes on, until this is dropped.
pub(super) struct Beat(JoinHandle<()>);

impl Drop for Beat {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl PeerProgress {
    /// Starts sending. Ends when the progress is dropped.
    pub(super) fn new(peer: Peer<RoleServer>, token: ProgressToken) -> Self {
        let (progress, mut news) = Self::queued();
        tokio::spawn(async move {
            let mut teller = Teller { token, last: None };
            while let Some(news) = news.recv().await {
                if peer.notify_progress(teller.tell(news)).await.is_err() {
                    break;
                }
            }
        });
        progress
    }

    /// Says from now on that the call goes on, whenever nothing else was said for a while.
    pub(super) fn beat(self: &Arc<Self>) -> Beat {
        let (progress, began) = (Arc::clone(self), Instant::now());
        Beat(tokio::spawn(async move {
            loop {
                tokio::time::sleep(fault::every(BEAT)).await;
                if !progress.told.swap(false, Ordering::Relaxed) {
                    progress.queue(News::GoesOn { since: began.elapsed() });
                }
            }
        }))
    }

    fn queued() -> (Self, mpsc::Receiver<News>) {
        let (queue, news) = mpsc::channel(QUEUE_MAX);
        (Self { queue, told: AtomicBool::new(false) }, news)
    }

    fn queue(&self, news: News) {
        // A full queue means the client reads slowly; the work does not wait for it.
        drop(self.queue.try_send(news));
    }
}

impl Progress for PeerProgress {
    fn report(&self, done: u32, total: u32, message: &str) {
        self.told.store(true, Ordering::Relaxed);
        self.queue(News::Report { done, total, message: message.to_owned() });
    }
}

/// Words news for the client, each more than the last.
struct Teller {
    token: ProgressToken,
    last: Option<f64>,
}

impl Teller {
    fn tell(&mut self, news: News) -> ProgressNotificationParam {
        let least = self.last.map_or(0.0, |last| last + PROGRESS_STEP);
        let of = |progress| ProgressNotificationParam::new(self.token.clone(), progress);
        let told = match news {
            News::Report { done, total, message } => {
                let done = f64::from(done).max(least);
                of(done).with_total(f64::from(total).max(done)).with_message(message)
            }
            News::GoesOn { since } => of(least).with_message(format!("goes on, for {} s now", since.as_secs())),
        };
        self.last = Some(told.progress);
        told
    }
}

#[cfg(test)]
mod tests {
    use rmcp::model::NumberOrString;

    use super::*;

    #[test]
    fn news_that_nobody_takes_are_kept_up_to_a_bound_and_hold_nothing_up() {
        let most = u32::try_from(QUEUE_MAX).unwrap();
        let done = |news: News| match news {
            News::Report { done, .. } => Some(done),
            News::GoesOn { .. } => None,
        };
        for (told, kept) in [(most - 1, most - 1), (most, most), (most + 1, most)] {
            let (progress, mut news) = PeerProgress::queued();
            (0..told).for_each(|done| progress.report(done, told, "making"));
            let taken: Vec<u32> = std::iter::from_fn(|| news.try_recv().ok()).filter_map(done).collect();
            assert_eq!(taken, (0..kept).collect::<Vec<_>>(), "{told} told");
            // There is room again.
            progress.report(told, told, "made");
            assert_eq!(news.try_recv().ok().and_then(done), Some(told));
        }
    }

    #[test]
    fn each_news_is_more_than_the_last_and_never_more_than_the_whole() {
        let mut teller = Teller { token: ProgressToken(NumberOrString::Number(1)), last: None };
        let goes_on = |seconds| News::GoesOn { since: Duration::from_secs(seconds) };
        let report = |done| News::Report { done, total: 2, message: "making".to_owned() };
        let news = [goes_on(10), report(0), goes_on(20), report(1), report(1), report(2), goes_on(30), report(2)];
        let told: Vec<_> = news.into_iter().map(|news| teller.tell(news)).collect();
        assert!(told.is_sorted_by(|one, next| one.progress < next.progress), "{told:?}");
        assert!(told.iter().all(|told| told.total.is_none_or(|total| told.progress <= total)), "{told:?}");
        assert_eq!(told[2].message.as_deref(), Some("goes on, for 20 s now"));
        assert_eq!((told[3].progress, told[3].total), (1.0, Some(2.0)));
    }
}
