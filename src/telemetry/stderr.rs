//! Writes log lines to stderr from a thread of its own.
//!
//! A client that starts this program may never read its stderr; writing there directly would then stop every
//! request once the pipe is full. Lines that do not fit into the queue are lost and counted.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::thread;
use std::time::{Duration, Instant};

use tracing_subscriber::fmt::MakeWriter;

use super::Counter;

/// How many lines may wait: a burst; at a few hundred bytes each well under a MB.
const QUEUE_LINES: usize = 1024;
/// The longest line, in bytes.
const LINE_BYTES_MAX: usize = 16 << 10;
const FLUSH_POLL: Duration = Duration::from_millis(5);

enum Message {
    Line(Vec<u8>),
    /// Answered when all lines before it are written.
    Flush(SyncSender<()>),
}

/// The log's queue and the thread behind it.
#[derive(Clone, Debug)]
pub(super) struct StderrLog {
    queue: SyncSender<Message>,
    lost: Arc<Counter>,
}

impl StderrLog {
    pub(super) fn start() -> Self {
        Self::start_with(io::stderr())
    }

    fn start_with(sink: impl Write + Send + 'static) -> Self {
        let (queue, lines) = mpsc::sync_channel(QUEUE_LINES);
        let lost = Arc::new(Counter::new(0));
        // Without the thread the receiver is gone and every line counts as lost.
        drop(thread::Builder::new().name("log".into()).spawn(move || run(&lines, sink)));
        Self { queue, lost }
    }

    pub(super) fn writer(&self) -> Lines {
        Lines { queue: self.queue.clone(), lost: Arc::clone(&self.lost) }
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Waits until all lines so far are written, for at most `deadline`.
    pub(super) fn flush(&self, deadline: Duration) {
        let end = Instant::now() + deadline;
        let (done, written) = mpsc::sync_channel(1);
        let mut message = Message::Flush(done);
        while let Err(TrySendError::Full(back)) = self.queue.try_send(message) {
            if Instant::now() >= end {
                return;
            }
            message = back;
            thread::sleep(FLUSH_POLL);
        }
        let left = end.saturating_duration_since(Instant::now());
        if written.recv_timeout(left).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn run(lines: &Receiver<Message>, mut sink: impl Write) {
    while let Ok(message) = lines.recv() {
        match message {
            // A log that cannot be written has nowhere to say so.
            Message::Line(line) => drop(sink.write_all(&line)),
            Message::Flush(done) => drop(done.try_send(())),
        }
    }
}

/// Makes a writer for each event.
#[derive(Clone, Debug)]
pub(super) struct Lines {
    queue: SyncSender<Message>,
    lost: Arc<Counter>,
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line { bytes: Vec::new(), lines: self.clone() }
    }
}

/// One event's text, queued when dropped.
pub(super) struct Line {
    bytes: Vec<u8>,
    lines: Lines,
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = LINE_BYTES_MAX.saturating_sub(self.bytes.len());
        self.bytes.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.bytes.len() == LINE_BYTES_MAX {
            self.bytes.push(b'\n');
        }
        if self.lines.queue.try_send(Message::Line(std::mem::take(&mut self.bytes))).is_err() {
            self.lines.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_arrive_in_order_by_the_end_of_a_flush() {
        let shared = Shared::default();
        let log = StderrLog::start_with(shared.clone());
        for n in 0..100 {
            writeln!(log.writer().make_writer(), "{n}").unwrap();
        }
        log.flush(Duration::from_secs(5));
        let text = String::from_utf8(shared.0.lock().unwrap().clone()).unwrap();
        assert_eq!(
            text.lines().map(|line| line.parse::<u32>().unwrap()).collect::<Vec<_>>(),
            (0..100).collect::<Vec<_>>()
        );
        assert_eq!(log.lost(), 0);
    }

    #[test]
    fn a_reader_that_never_reads_stops_nobody() {
        let shared = Shared::default();
        let held = shared.0.clone();
        let guard = held.lock().unwrap();
        let log = StderrLog::start_with(shared);
        for _ in 0..QUEUE_LINES + 100 {
            writeln!(log.writer().make_writer(), "line").unwrap();
        }
        // One line may be with the thread already.
        assert!((99..=100).contains(&log.lost()), "{}", log.lost());
        log.flush(Duration::from_millis(20));
        drop(guard);
    }

    #[test]
    fn a_line_has_a_longest_length() {
        let shared = Shared::default();
        let log = StderrLog::start_with(shared.clone());
        log.writer().make_writer().write_all(&vec![b'x'; LINE_BYTES_MAX * 2]).unwrap();
        log.flush(Duration::from_secs(5));
        assert_eq!(shared.0.lock().unwrap().len(), LINE_BYTES_MAX + 1);
    }
}
