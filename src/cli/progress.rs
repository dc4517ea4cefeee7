//! News of long work, on standard error: none of what is quickly done, and how far it is of the rest.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;

use super::render::say;
use crate::model::Progress;

/// What is done within this is over before anybody wonders.
const QUIET: Duration = Duration::from_secs(1);

/// Says how far work is, once it takes long.
pub(super) struct Said {
    news: Arc<Mutex<News>>,
    late: JoinHandle<()>,
}

impl Said {
    /// Begins to listen. It speaks once work takes long: what was told last is said then.
    pub(super) fn new() -> Self {
        let news = Arc::new(Mutex::new(News::default()));
        let of_late = Arc::clone(&news);
        let late = tokio::spawn(async move {
            tokio::time::sleep(QUIET).await;
            // Held while it is written, so that what is told meanwhile comes after it.
            let mut news = of_late.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(text) = news.speak() {
                say(&text);
            }
        });
        Self { news, late }
    }
}

impl Drop for Said {
    fn drop(&mut self) {
        self.late.abort();
    }
}

impl Progress for Said {
    fn report(&self, done: u32, total: u32, message: &str) {
        let mut news = self.news.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(text) = news.told(done, total, message) {
            say(&text);
        }
    }
}

/// What there is to be said.
#[derive(Debug, Default)]
struct News {
    speaks: bool,
    last: Option<String>,
}

impl News {
    /// Takes what is told, and returns what is to be said of it now.
    fn told(&mut self, done: u32, total: u32, message: &str) -> Option<String> {
        let hundredths = u64::from(done) * 100 / u64::from(total.max(1));
        let text = Some(format!("[{hundredths:>3}%] {message}"));
        if self.last == text {
            return None;
        }
        self.last = text;
        self.last.clone().filter(|_| self.speaks)
    }

    /// Speaks from now on, and returns what was told last.
    fn speak(&mut self) -> Option<String> {
        self.speaks = true;
        self.last.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_quickly_done_is_not_told_and_of_long_work_each_part_once() {
        let mut news = News::default();
        assert_eq!(news.speak(), None);
        let mut news = News::default();
        assert_eq!(news.told(0, 1000, "looking"), None);
        assert_eq!(news.told(1, 7000, "making the roles"), None);
        assert_eq!(news.speak().as_deref(), Some("[  0%] making the roles"));
        assert_eq!(news.told(10, 7000, "making the roles"), None);
        assert_eq!(news.told(1000, 7000, "copying").as_deref(), Some("[ 14%] copying"));
        assert_eq!(news.told(7000, 7000, "ready").as_deref(), Some("[100%] ready"));
    }
}
