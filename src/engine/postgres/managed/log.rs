//! What a cluster's server says of itself, in a file of its own: while it starts, and only that.
//!
//! A server that panics writes down the statement that it was at, whatever is set. So it says nothing any more once it listens
//! (`conf.rs`), what an earlier version's server left is removed, and what is shown of the rest is no statement.

use std::fs;
use std::path::Path;

use super::process::Paths;
use super::user::{self, RunAs};
use crate::model::fault;

/// A log that is larger is put aside at start.
const LOG_BYTES_MAX: u64 = 8 << 20;
/// How much of the log is shown when the server does not start.
const LOG_TAIL_BYTES: usize = 600;
/// What it is called when it is put aside.
const LOG_ASIDE: &str = "server.log.1";
/// What stands before a statement.
const STATEMENT: &[u8] = b" STATEMENT:  ";
/// What a server says of itself.
const LEVELS: [&[u8]; 4] = [b"FATAL:  ", b"PANIC:  ", b"ERROR:  ", b"LOG:  "];

/// Sees that the log holds no statement, and is not large: another is begun then.
pub(super) fn put_aside(paths: &Paths, user: Option<&RunAs>) {
    let aside = paths.log_dir().join(LOG_ASIDE);
    for path in [&paths.log(), &aside] {
        if holds_statements(path) && !by_program("/bin/rm", &[path], user) {
            tracing::warn!(path = %path.display(), "a log with a statement in it could not be removed");
        }
    }
    if !fs::metadata(paths.log()).is_ok_and(|m| m.len() > LOG_BYTES_MAX) {
        return;
    }
    if fault::reach("spawn.log-aside").is_err() {
        return;
    }
    if !by_program("/bin/mv", &[&paths.log(), &aside], user) {
        tracing::warn!("the cluster's log is large and could not be put aside");
    }
}

/// Returns what the server said of itself behind so many bytes of its log.
pub(super) fn said_since(paths: &Paths, logged: u64) -> String {
    let log = fs::read(paths.log()).unwrap_or_default();
    let news = usize::try_from(logged).ok().and_then(|at| log.get(at..)).unwrap_or_default();
    tail(&spoken(news))
}

/// Returns the end of a text, its lines in one.
pub(super) fn tail(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    let joined = lines.join("; ");
    let mut start = joined.len().saturating_sub(LOG_TAIL_BYTES);
    while !joined.is_char_boundary(start) {
        start += 1;
    }
    joined.get(start..).unwrap_or_default().to_owned()
}

/// Returns the lines that begin as a server's own do: with the time and the process, or its name. The further lines of whatever
/// text are indented, so that none can look like one.
fn spoken(log: &[u8]) -> Vec<u8> {
    let is_spoken = |line: &&[u8]| {
        let prefix = line.windows(2).position(|window| window == b"] ");
        let rest = prefix.and_then(|at| line.get(at + 2..)).unwrap_or_default();
        let is_own = !line.starts_with(b"\t") && LEVELS.iter().any(|level| rest.starts_with(level));
        is_own || line.starts_with(b"postgres: ")
    };
    log.split(|byte| *byte == b'\n').filter(is_spoken).collect::<Vec<_>>().join(&b'\n')
}

fn holds_statements(path: &Path) -> bool {
    fs::read(path).is_ok_and(|log| log.windows(STATEMENT.len()).any(|window| window == STATEMENT))
}

/// Has a program do it as the cluster's user, whose directory it is. Returns whether it did.
fn by_program(program: &str, paths: &[&Path], user: Option<&RunAs>) -> bool {
    let done = user::command(program, user).arg("-f").args(paths).status();
    done.is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_log_is_cut_at_a_character() {
        let said = tail("漢\n".repeat(400).as_bytes());
        assert!(said.len() <= LOG_TAIL_BYTES && said.ends_with('漢'));
    }

    #[test]
    fn no_statement_is_shown() {
        let log = b"2026-11-30 22:37:33.166 UTC [17850] PANIC:  could not write to file \"pg_wal/x\": No space left on device\n\
            2026-11-30 22:37:33.166 UTC [17850] STATEMENT:  insert into t values ('x') FATAL:  hunter2\n\
            \t2026-11-30 22:37:33.166 UTC [1] FATAL:  hunter2\n\
            2026-11-30 22:37:33.170 UTC [17851] DETAIL:  hunter2\n\
            postgres: could not find the data\n\
            hunter2 ] FATAL: hunter2\n\
            2026-11-30 22:37:34.000 UTC [17852] FATAL:  the server is to end";
        let shown = tail(&spoken(log));
        assert_eq!(
            shown,
            "2026-11-30 22:37:33.166 UTC [17850] PANIC:  could not write to file \"pg_wal/x\": No space left on device; \
             postgres: could not find the data; 2026-11-30 22:37:34.000 UTC [17852] FATAL:  the server is to end"
        );
    }
}
