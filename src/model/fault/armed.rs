//! What the environment asks for, and the counting of firings.

use std::collections::HashMap;
use std::env;
use std::fs::{File, OpenOptions};
use std::future::Future;
use std::io::Write as _;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use super::Injected;

const FAULTS: &str = "PGSANDBOX_TEST_FAULTS";
const LOG: &str = "PGSANDBOX_TEST_FAULTS_LOG";
const DEADLINE: &str = "PGSANDBOX_TEST_DEADLINE_MS";
const INTERVAL: &str = "PGSANDBOX_TEST_INTERVAL_MS";

/// Every name there is, one per line.
const POINTS: &str = include_str!("points.txt");

/// The system's errors that can be asked for, by Linux' numbers.
const ERRNOS: [(&str, i32); 8] = [
    ("io", 5),
    ("missing", 2),
    ("denied", 13),
    ("nofile", 24),
    ("full", 28),
    ("readonly", 30),
    ("reset", 104),
    ("refused", 111),
];

/// How a point fails: a system's error and, where a server is to have answered, its code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Said {
    errno: i32,
    sqlstate: Option<String>,
}

impl Said {
    pub(super) fn errno(&self) -> i32 {
        self.errno
    }

    pub(super) fn sqlstate(&self) -> Option<&str> {
        self.sqlstate.as_deref()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    Fail(Said),
    Delay(Duration),
    Crash,
}

/// What happens at one point, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Order {
    action: Action,
    /// The number of the firing, from 1.
    firing: u64,
    /// Also at every later one.
    onward: bool,
}

#[derive(Debug, Default)]
struct Orders {
    by_point: HashMap<String, Vec<Order>>,
    log: Option<File>,
    deadline: Option<Duration>,
    interval: Option<Duration>,
    fired: Mutex<HashMap<String, u64>>,
    /// Points that are polled and delayed, and until when.
    slow: Mutex<HashMap<String, Instant>>,
}

/// `None` inside where nothing is asked for.
static ORDERS: OnceLock<Result<Option<Orders>, String>> = OnceLock::new();

fn read() -> &'static Result<Option<Orders>, String> {
    ORDERS.get_or_init(|| {
        let text = |name| env::var(name).ok().filter(|text| !text.is_empty());
        let ms = |name| {
            let read = |text: String| text.parse().map(Duration::from_millis);
            text(name).map(read).transpose().map_err(|_| format!("`{name}` is no number of milliseconds"))
        };
        let (faults, log, deadline, interval) = (text(FAULTS), text(LOG), ms(DEADLINE)?, ms(INTERVAL)?);
        if faults.is_none() && log.is_none() && deadline.is_none() && interval.is_none() {
            return Ok(None);
        }
        let by_point = parse(&faults.unwrap_or_default())?;
        let mut orders = Orders { by_point, deadline, interval, ..Orders::default() };
        if let Some(path) = log {
            let file = OpenOptions::new().append(true).create(true).open(&path);
            orders.log = Some(file.map_err(|error| format!("`{LOG}`: `{path}` cannot be written: {error}"))?);
        }
        Ok(Some(orders))
    })
}

pub(super) fn check() -> Result<(), String> {
    read().as_ref().map(drop).map_err(Clone::clone)
}

fn orders() -> Option<&'static Orders> {
    read().as_ref().ok()?.as_ref()
}

fn parse(text: &str) -> Result<HashMap<String, Vec<Order>>, String> {
    let mut by_point: HashMap<String, Vec<Order>> = HashMap::new();
    for entry in text.split(';').map(str::trim).filter(|entry| !entry.is_empty()) {
        let fault = |what: &str| format!("`{FAULTS}`: `{entry}` {what}");
        let (point, rest) = entry.split_once('=').ok_or_else(|| fault("is no `point=action`"))?;
        if !POINTS.lines().any(|known| known == point) {
            return Err(fault("names a point that there is not"));
        }
        let (action, firing) = rest.split_once('@').unwrap_or((rest, "1"));
        let (firing, onward) = match firing.strip_suffix('+') {
            Some(firing) => (firing, true),
            None => (firing, false),
        };
        let firing = firing.parse().map_err(|_| fault("does not say at which firing"))?;
        let (word, detail) = action.split_once(':').unwrap_or((action, ""));
        let action = match (word, detail) {
            ("crash", "") => Action::Crash,
            ("delay", ms) => {
                Action::Delay(Duration::from_millis(ms.parse().map_err(|_| fault("does not say how many ms"))?))
            }
            ("fail", how) => Action::Fail(said(how).ok_or_else(|| fault("names no error that can be had"))?),
            _ => return Err(fault("does what no point can do")),
        };
        by_point.entry(point.to_owned()).or_default().push(Order { action, firing, onward });
    }
    Ok(by_point)
}

fn said(how: &str) -> Option<Said> {
    let how = if how.is_empty() { "io" } else { how };
    if let Some((_, errno)) = ERRNOS.iter().find(|(word, _)| *word == how) {
        return Some(Said { errno: *errno, sqlstate: None });
    }
    let code = how.len() == 5 && how.bytes().all(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase());
    code.then(|| Said { errno: 5, sqlstate: Some(how.to_owned()) })
}

impl Orders {
    /// Counts a firing and returns what is to be done, unless that is to end the program.
    fn fire(&self, point: &str) -> Option<Action> {
        let count = {
            let mut fired = locked(&self.fired);
            let count = fired.entry(point.to_owned()).or_default();
            *count += 1;
            *count
        };
        let due = |order: &&Order| order.firing == count || (order.onward && order.firing < count);
        let order = self.by_point.get(point).and_then(|orders| orders.iter().find(due));
        if let Some(log) = &self.log {
            let mark = if order.is_some() { "!" } else { "" };
            // One write, so that the lines of threads and processes do not mix. A log that is full is the test's to see.
            let line = format!("{mark}{point}\n");
            drop((&mut &*log).write_all(line.as_bytes()));
        }
        let action = order?.action.clone();
        if action == Action::Crash {
            std::process::abort();
        }
        Some(action)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn reach(point: &str) -> Result<(), Injected> {
    match orders().and_then(|orders| orders.fire(point)) {
        Some(Action::Fail(said)) => Err(Injected(said)),
        Some(Action::Delay(time)) => {
            thread::sleep(time);
            Ok(())
        }
        Some(Action::Crash) | None => Ok(()),
    }
}

pub(super) fn pass(parts: &[&str]) -> Passing {
    Passing(match orders().and_then(|orders| orders.fire(&parts.concat())) {
        Some(Action::Fail(said)) => Outcome::Failed(said),
        Some(Action::Delay(time)) => Outcome::Late(Instant::now() + time),
        Some(Action::Crash) | None => Outcome::Passed,
    })
}

pub(super) fn poll(point: &str, cx: &Context<'_>) -> Poll<Result<(), Injected>> {
    let Some(orders) = orders() else { return Poll::Ready(Ok(())) };
    let until = locked(&orders.slow).get(point).copied();
    let until = match until {
        Some(until) => until,
        None => match orders.fire(point) {
            Some(Action::Fail(said)) => return Poll::Ready(Err(Injected(said))),
            Some(Action::Delay(time)) => {
                let until = Instant::now() + time;
                locked(&orders.slow).insert(point.to_owned(), until);
                until
            }
            Some(Action::Crash) | None => return Poll::Ready(Ok(())),
        },
    };
    if wait_until(until, cx).is_pending() {
        return Poll::Pending;
    }
    locked(&orders.slow).remove(point);
    Poll::Ready(Ok(()))
}

pub(super) fn within(time: Duration) -> Duration {
    orders().and_then(|orders| orders.deadline).map_or(time, |deadline| time.min(deadline))
}

pub(super) fn every(time: Duration) -> Duration {
    orders().and_then(|orders| orders.interval).map_or(time, |interval| time.min(interval))
}

/// Wakes the task at `until`, by a thread: nothing here knows the runtime.
fn wait_until(until: Instant, cx: &Context<'_>) -> Poll<()> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Poll::Ready(());
    }
    let waker = cx.waker().clone();
    thread::spawn(move || {
        thread::sleep(left);
        waker.wake();
    });
    Poll::Pending
}

/// A point that is being passed.
pub(super) struct Passing(Outcome);

enum Outcome {
    Passed,
    Failed(Said),
    Late(Instant),
}

impl Future for Passing {
    type Output = Result<(), Injected>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &self.0 {
            Outcome::Passed => Poll::Ready(Ok(())),
            Outcome::Failed(said) => Poll::Ready(Err(Injected(said.clone()))),
            Outcome::Late(until) => wait_until(*until, cx).map(Ok),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first() -> &'static str {
        POINTS.lines().next().unwrap()
    }

    #[test]
    fn what_is_asked_for_is_read() {
        let point = first();
        let orders = parse(&format!("{point}=fail@2; {point}=delay:30@4+;{point}=crash")).unwrap();
        let io = Said { errno: 5, sqlstate: None };
        let order = |action, firing, onward| Order { action, firing, onward };
        let expected = [
            order(Action::Fail(io), 2, false),
            order(Action::Delay(Duration::from_millis(30)), 4, true),
            order(Action::Crash, 1, false),
        ];
        assert_eq!(orders[point], expected);
        assert_eq!(said("full").map(|said| said.errno), Some(28));
        assert_eq!(said("53100").and_then(|said| said.sqlstate), Some("53100".to_owned()));
    }

    #[test]
    fn what_no_point_is_or_can_do_is_refused_by_name() {
        let point = first();
        let wrong = [
            "no.such.point=crash".to_owned(),
            point.to_owned(),
            format!("{point}=explode"),
            format!("{point}=crash:now"),
            format!("{point}=fail:softly"),
            format!("{point}=delay"),
            format!("{point}=crash@first"),
        ];
        for entry in wrong {
            let fault = parse(&entry).unwrap_err();
            assert!(fault.contains(&format!("`{entry}`")), "{fault}");
        }
    }

    #[test]
    fn a_point_acts_at_its_firing_and_no_other() {
        let point = first();
        let by_point = parse(&format!("{point}=fail@2;{point}=fail:full@4+")).unwrap();
        let orders = Orders { by_point, ..Orders::default() };
        let errno = |action| match action {
            Some(Action::Fail(said)) => said.errno,
            Some(Action::Delay(_) | Action::Crash) | None => 0,
        };
        let seen: Vec<i32> = (0..5).map(|_| errno(orders.fire(point))).collect();
        assert_eq!(seen, [0, 5, 0, 28, 28]);
    }
}
