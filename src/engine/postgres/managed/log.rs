//! What a cluster's server says of itself while it starts, and no longer.
//!
//! A server that panics writes down the statement that it was at, whatever is set; one without memory for a statement writes
//! those that its session has planned. So it says nothing any more once it listens (`conf.rs`), nobody hears what it writes all the same
//! (`start.rs`), the logs that an earlier version's servers left are removed, and what is shown of the rest is no statement.

use super::process::Paths;
use super::user::{self, RunAs};
use crate::model::fault;

/// How much of it is shown when the server does not start.
const LOG_TAIL_BYTES: usize = 600;
/// What servers of earlier versions wrote to, in the cluster's folder for it.
const LOGS: [&str; 2] = ["server.log", "server.log.1"];
/// What a server says of itself.
const LEVELS: [&[u8]; 4] = [b"FATAL:  ", b"PANIC:  ", b"ERROR:  ", b"LOG:  "];

/// Removes the logs of earlier versions' servers, which may hold statements.
pub(super) fn remove(paths: &Paths, user: Option<&RunAs>) {
    let logs = LOGS.map(|name| paths.log_dir().join(name));
    if !logs.iter().any(|log| log.symlink_metadata().is_ok()) || fault::reach("spawn.log-aside").is_err() {
        return;
    }
    // By a program, as the cluster's user, whose directory it is.
    let done = user::command("/bin/rm", user).arg("-f").args(&logs).status();
    if !done.is_ok_and(|status| status.success()) {
        tracing::warn!(directory = %paths.log_dir().display(), "the logs of an earlier version's server could not be removed");
    }
}

/// Returns the end of what the server said of itself.
pub(super) fn said(output: &[u8]) -> String {
    tail(&spoken(output))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_what_is_said_is_cut_at_a_character() {
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
        let shown = said(log);
        assert_eq!(
            shown,
            "2026-11-30 22:37:33.166 UTC [17850] PANIC:  could not write to file \"pg_wal/x\": No space left on device; \
             postgres: could not find the data; 2026-11-30 22:37:34.000 UTC [17852] FATAL:  the server is to end"
        );
    }
}
