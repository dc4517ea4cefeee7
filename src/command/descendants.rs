//! Finds the processes that come of this one.

use std::collections::BTreeMap;
use std::time::Duration;

use rustix::process::{Pid, Signal};

/// The most processes and threads that a command may have at a time; above that it is ended. What is made by a fork and waits
/// to be looked after by its parent is one as well.
pub(super) const TASKS_MAX: usize = 2048;
/// How often they are counted.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(250);

/// A process as it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) pid: Pid,
    /// The number of its group.
    pub(super) group: i32,
    /// Whether it has ended, and only its parent has not asked how.
    pub(super) ended: bool,
    /// How many threads it has.
    pub(super) threads: usize,
}

/// Returns every process that comes of this one.
pub(super) fn descendants() -> Vec<Seen> {
    let own = rustix::process::getpid().as_raw_pid();
    // Where `/proc` is that of others, its numbers are others', and nobody is to be ended by them.
    if std::fs::read_link("/proc/self").is_ok_and(|link| link.to_str() != Some(&own.to_string())) {
        return Vec::new();
    }
    let mut children: BTreeMap<i32, Vec<Seen>> = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let number = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
        let Some(pid) = number.filter(|number| *number > 0).and_then(Pid::from_raw) else { continue };
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        if let Some((parent, seen)) = read(pid, &stat) {
            children.entry(parent).or_default().push(seen);
        }
    }
    let mut found = Vec::new();
    let mut next = vec![own];
    while let Some(parent) = next.pop() {
        for seen in children.remove(&parent).unwrap_or_default() {
            next.push(seen.pid.as_raw_pid());
            found.push(seen);
        }
    }
    found
}

/// Reads what the kernel says of a process: its parent, and the rest.
fn read(pid: Pid, stat: &str) -> Option<(i32, Seen)> {
    // The name stands in parentheses, and may hold some itself.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let ended = matches!(fields.next()?, "Z" | "X");
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    let threads = fields.nth(14)?.parse().ok()?;
    Some((parent, Seen { pid, group, ended, threads }))
}

/// Returns whether they are more than a command may have.
pub(super) fn too_many(all: &[Seen]) -> bool {
    all.iter().map(|seen| seen.threads.max(1)).sum::<usize>() > TASKS_MAX
}

/// Sends a signal; to one that is gone already there is nothing to say.
pub(super) fn tell(pid: Pid, signal: Signal) {
    rustix::process::kill_process(pid, signal).ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_of_a_process_is_read_whatever_its_name_is() {
        let pid = Pid::from_raw(7).unwrap();
        let rest = "5 6 6 0 -1 4194560 93 0 0 0 0 0 0 0 20 0 3 0 1234 0 0";
        let seen = Seen { pid, group: 6, ended: false, threads: 3 };
        assert_eq!(read(pid, &format!("7 (a) Z 1 (x)) S {rest}")), Some((5, seen)));
        assert_eq!(read(pid, &format!("7 (sh) Z {rest}")), Some((5, Seen { ended: true, ..seen })));
        assert_eq!(read(pid, "7 (sh) S 5"), None);
    }

    #[test]
    fn processes_threads_and_what_only_waits_to_be_asked_for_have_one_bound() {
        let seen = |threads| Seen { pid: Pid::INIT, group: 1, ended: false, threads };
        assert!(!too_many(&[seen(TASKS_MAX - 1), Seen { ended: true, ..seen(0) }]));
        assert!(too_many(&[seen(TASKS_MAX - 1), seen(1), Seen { ended: true, ..seen(0) }]));
    }
}
