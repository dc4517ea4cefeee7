//! Makes room in a server that lets nobody in: one session has taken what all of them share.
//!
//! The table of locks is one for the whole server. Whoever fills it keeps everybody out, the admin included, and no SQL
//! can end it any more. So whose sessions hold most are ended from outside, as processes: never the admin's own, and no more
//! than it takes until a login succeeds. All of one sandbox's at once: what one frees another would take. A session that was
//! opened before knows who holds the locks, where there is one.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use tokio::time::Instant;

use super::super::admin::{AdminSession, Chain, ident};
use super::ADMIN_ROLE;
use super::process::{Paths, server_pid};

/// Who takes all again within this time is kept out.
const REMEMBERED_FOR: Duration = Duration::from_secs(60);
/// For how long.
const HELD_OFF_FOR: Duration = Duration::from_secs(180);
/// Where it is noted, so that it is the same for every program and ends also if this one does.
const HELD_OFF: &str = "held-off";
/// How long the session that tells who holds the locks may take.
const TELLS_WITHIN: Duration = Duration::from_secs(2);
/// How often room is made for one login.
pub(in crate::engine::postgres) const ROUNDS_MAX: u32 = 50;
/// So many locks are no want of anybody's.
const LOCKS_MIN: u64 = 1_000;
/// How long one that is ended may take to go.
const GONE_WAIT: Duration = Duration::from_secs(2);
/// How often it is looked whether it is gone.
const GONE_POLL: Duration = Duration::from_millis(10);

/// A process of the server's that serves a session.
#[derive(Debug, PartialEq, Eq)]
struct Backend {
    pid: u32,
    role: String,
    /// What it has in memory for itself alone, in KiB: who holds many locks knows of them.
    private_kb: u64,
}

/// What is known for the next time.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// Opened before.
    session: Option<AdminSession>,
    /// When the last round of relief ended.
    last: Option<Instant>,
    /// Whose sessions were ended, and when last.
    ended: HashMap<String, Instant>,
    /// Who is to be kept out.
    again: BTreeSet<String>,
}

impl Watch {
    /// Returns whether there is a session that answers.
    pub(super) async fn watches(&mut self) -> bool {
        if self.session.is_some() && self.locks().await.is_none() {
            self.session = None;
        }
        self.session.is_some()
    }

    pub(super) async fn watch_by(&mut self, session: AdminSession) {
        self.session = Some(session);
        // What the statement needs is then known to the session.
        self.locks().await;
    }

    /// Ends whoever holds most, unless that was done since `asked`. Returns whether the server is worth another try.
    pub(super) async fn relieve(&mut self, paths: &Paths, asked: Instant) -> bool {
        if self.last.is_some_and(|last| last > asked) {
            return true;
        }
        let locks = self.locks().await.unwrap_or_default();
        let Some(database) = end_greediest(paths, &locks).await else { return !locks.is_empty() && self.wait().await };
        let now = Instant::now();
        self.last = Some(now);
        self.ended.retain(|_, last| now - *last < REMEMBERED_FOR);
        let plain = database.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        if self.ended.insert(database.clone(), now).is_some() && plain {
            self.again.insert(database);
        }
        true
    }

    async fn wait(&mut self) -> bool {
        tokio::time::sleep(GONE_POLL).await;
        true
    }

    /// Returns whether somebody is to be kept out.
    pub(super) fn calls_for_more(&self) -> bool {
        !self.again.is_empty()
    }

    /// Takes the logins of those who took all again.
    pub(super) async fn hold_off(&mut self, paths: &Paths, session: &AdminSession) {
        for database in std::mem::take(&mut self.again) {
            let file = file(paths, &database);
            let noted = fs::create_dir_all(paths.directory.join(HELD_OFF)).and_then(|()| fs::write(&file, b""));
            if let Err(error) = noted {
                tracing::warn!(sandbox = database, %error, "who took all cannot be kept out");
                continue;
            }
            for role in ["role", "ro"].map(|kind| format!("{database}_{kind}")) {
                // Given back by whoever lets the sandbox in again.
                let sql = format!("ALTER ROLE {} CONNECTION LIMIT 0", ident(&role));
                if let Err(error) = session.batch_execute(&sql).await {
                    tracing::warn!(sandbox = database, error = %Chain(&error), "who took all cannot be kept out");
                }
            }
            tracing::warn!(sandbox = database, "whose sessions took all again is kept out for some minutes");
            end_all(paths, &database);
        }
    }

    /// Returns how many locks each process holds; `None` if nobody can tell.
    async fn locks(&self) -> Option<HashMap<u32, u64>> {
        let session = self.session.as_ref()?;
        // The function and not the view: that one reads catalogues that all databases share, whose locks nobody gets any more.
        let sql =
            "SELECT l.pid, pg_catalog.count(*) FROM pg_catalog.pg_lock_status() l WHERE l.pid IS NOT NULL GROUP BY 1";
        let rows = tokio::time::timeout(TELLS_WITHIN, session.query_typed(sql, &[])).await.ok()?.ok()?;
        let count = |row: &tokio_postgres::Row| {
            Some((u32::try_from(row.get::<_, i32>(0)).ok()?, u64::try_from(row.get::<_, i64>(1)).ok()?))
        };
        Some(rows.iter().filter_map(count).collect())
    }
}

/// Returns whether a sandbox is kept out, by its database's name.
pub(super) fn is_held_off(paths: &Paths, database: &str) -> bool {
    let noted = fs::metadata(file(paths, database)).and_then(|noted| noted.modified());
    noted.is_ok_and(|noted| noted.elapsed().is_ok_and(|age| age < HELD_OFF_FOR))
}

/// Returns those whose time is over, and forgets them.
pub(super) fn let_in_again(paths: &Paths) -> Vec<String> {
    let noted = fs::read_dir(paths.directory.join(HELD_OFF)).into_iter().flatten().flatten();
    let names = noted.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| !is_held_off(paths, name) && fs::remove_file(file(paths, name)).is_ok()).collect()
}

fn file(paths: &Paths, database: &str) -> PathBuf {
    paths.directory.join(HELD_OFF).join(database)
}

fn end_all(paths: &Paths, database: &str) {
    let Some(server) = server_pid(paths) else { return };
    backends(server).iter().filter(|one| database_of(&one.role) == database).for_each(|one| end(one, server));
}

/// Ends all sessions of the sandbox that holds most: locks, by each session's process, where they are known, or else memory.
/// Returns whose they were.
pub(super) async fn end_greediest(paths: &Paths, locks: &HashMap<u32, u64>) -> Option<String> {
    let server = server_pid(paths)?;
    let all = backends(server);
    let mut held: HashMap<&str, u64> = HashMap::new();
    for backend in &all {
        let holds = if locks.is_empty() { Some(&backend.private_kb) } else { locks.get(&backend.pid) };
        *held.entry(database_of(&backend.role)).or_default() += holds.copied().unwrap_or(0);
    }
    let (greediest, holds) = held.into_iter().max_by_key(|(_, holds)| *holds)?;
    if !locks.is_empty() && holds < LOCKS_MIN {
        return None;
    }
    let ended: Vec<&Backend> = all.iter().filter(|backend| database_of(&backend.role) == greediest).collect();
    tracing::warn!(
        sandbox = greediest,
        sessions = ended.len(),
        locks_are_known = !locks.is_empty(),
        "the server lets nobody in for want of shared memory: the sessions of whoever holds most are ended"
    );
    for backend in &ended {
        end(backend, server);
    }
    let until = Instant::now() + GONE_WAIT;
    while ended.iter().any(|one| backend(one.pid, server).is_some_and(|now| now.role == one.role))
        && Instant::now() < until
    {
        tokio::time::sleep(GONE_POLL).await;
    }
    Some(greediest.to_owned())
}

fn end(ended: &Backend, server: u32) {
    let Some(pid) = i32::try_from(ended.pid).ok().and_then(Pid::from_raw) else { return };
    // The number is the process' as long as this is open; what it was before is looked at behind it.
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    if backend(ended.pid, server).is_none_or(|now| now.role != ended.role) {
        return;
    }
    if let Err(error) = pidfd_send_signal(&process, Signal::TERM) {
        tracing::warn!(%error, "a session could not be ended");
    }
}

/// Returns the database of the sandbox whose role it is, or else the role.
fn database_of(role: &str) -> &str {
    match role.rsplit_once('_') {
        Some((database, "role" | "ro")) => database,
        Some((database, filling)) if filling.starts_with('f') => database,
        Some(_) | None => role,
    }
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
    fn the_roles_of_one_sandbox_are_taken_together() {
        for role in ["pgsb_a_0123456789_role", "pgsb_a_0123456789_ro", "pgsb_a_0123456789_f12"] {
            assert_eq!(database_of(role), "pgsb_a_0123456789", "{role}");
        }
        assert_eq!(database_of("operator"), "operator");
    }

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
