//! Makes room in a server that lets nobody in: one session has taken what all of them share.
//!
//! The table of locks is one for the whole server. Whoever fills it keeps everybody out, the admin included, and no SQL
//! can end it any more. So the session is ended from outside, as a process: never one of the admin's own, and no more than
//! it takes until a login succeeds.

use std::fs;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::ADMIN_ROLE;
use super::process::{Paths, server_pid};

/// How long one that is ended may take to go.
const GONE_WAIT: Duration = Duration::from_secs(2);
/// How often it is looked whether it is gone.
const GONE_POLL: Duration = Duration::from_millis(10);

/// A process of the server's that serves a session.
#[derive(Debug, PartialEq, Eq)]
struct Backend {
    pid: u32,
    role: String,
    /// What it has in memory for itself alone, in KiB: who holds most knows of most locks.
    private_kb: u64,
}

/// Ends the session that holds most and is not the admin's. Returns whether there was one.
pub(super) async fn end_largest(paths: &Paths) -> bool {
    let Some(server) = server_pid(paths) else { return false };
    let Some(largest) = backends(server).into_iter().max_by_key(|backend| backend.private_kb) else { return false };
    let Some(pid) = i32::try_from(largest.pid).ok().and_then(Pid::from_raw) else { return false };
    // The number is the process' as long as this is open; what it was before is looked at behind it.
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return true };
    if backend(largest.pid, server).is_none_or(|now| now.role != largest.role) {
        return true;
    }
    tracing::warn!(
        role = largest.role,
        private_kb = largest.private_kb,
        "the server lets nobody in for want of shared memory: the largest session is ended"
    );
    if let Err(error) = pidfd_send_signal(&process, Signal::TERM) {
        tracing::warn!(%error, "a session could not be ended");
        return false;
    }
    let until = tokio::time::Instant::now() + GONE_WAIT;
    while backend(largest.pid, server).is_some() && tokio::time::Instant::now() < until {
        tokio::time::sleep(GONE_POLL).await;
    }
    true
}

fn backends(server: u32) -> Vec<Backend> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| backend(pid, server)).collect()
}

/// Returns the process if it is a child of the server's that serves a session of another role than the admin.
fn backend(pid: u32, server: u32) -> Option<Backend> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    if field("PPid:")? != u64::from(server) {
        return None;
    }
    let title = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let role = role_of(&String::from_utf8_lossy(&title))?;
    Some(Backend { pid, role, private_kb: field("RssAnon:").unwrap_or(0) })
}

/// Reads whom a process serves from its title: `postgres: role database 127.0.0.1(1234) idle`.
fn role_of(title: &str) -> Option<String> {
    let mut words = title.strip_prefix("postgres: ")?.split([' ', '\0']);
    let (role, _database, from) = (words.next()?, words.next()?, words.next()?);
    let session = from == "[local]" || from.ends_with(')') && from.contains('(');
    (session && role != ADMIN_ROLE).then(|| role.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_told_from_what_the_server_does_for_itself() {
        let check = |title: &str, role: Option<&str>| assert_eq!(role_of(title).as_deref(), role, "{title}");
        check(
            "postgres: pgsb_a_0123456789_role pgsb_a_0123456789 127.0.0.1(40112) idle in transaction",
            Some("pgsb_a_0123456789_role"),
        );
        check("postgres: pgsb_a_0123456789_ro pgsb_a_0123456789 [local] SELECT\0\0\0", Some("pgsb_a_0123456789_ro"));
        check("postgres: pgsandbox_admin postgres [local] idle", None);
        for own in [
            "postgres: checkpointer ",
            "postgres: autovacuum worker pgsb_a",
            "postgres: parallel worker for PID 12 ",
            "postgres: io worker 0",
            "/usr/lib/postgresql/15/bin/postgres\0-D\0/data",
        ] {
            check(own, None);
        }
    }
}
