//! Makes room in a server that lets nobody in: one session has taken what all of them share.
//!
//! The table of locks is one for the whole server. Whoever fills it keeps everybody out, the admin included, and no SQL
//! can end it any more. So whose sessions hold most are ended from outside, as processes: never the admin's own, and no more
//! than it takes until a login succeeds. All of one owner's at once: what one frees another would take. A session that was
//! opened before knows who holds the locks. A program that stays opens one as soon as the server runs; one without, a command
//! for instance, asks those that may have one, each time. It is guessed by memory, and that not often, only where nobody has
//! answered for longer than whoever can tell takes to look, to end sessions and to see them gone, and where nobody was let in
//! after that either: memory says little of locks, and the largest session is often somebody's honest work.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use tokio::time::Instant;

use super::super::admin::{AdminSession, Chain, ident};
use super::ADMIN_ROLE;
use super::greed::{Held, Owners};
use super::process::{Paths, server_pid};

/// Who takes all again within this time is kept out.
const REMEMBERED_FOR: Duration = Duration::from_secs(60);
/// For how long.
const HELD_OFF_FOR: Duration = Duration::from_secs(180);
/// Where it is noted, so that it is the same for every program and ends also if this one does.
const HELD_OFF: &str = "held-off";
/// Whose sessions were ended is noted there, for every program.
const ENDED: &str = "ended";
/// Stands where a program that cannot tell who holds the locks asks others that can.
const WANTED: &str = "relief-wanted";
/// How long it waits for them: longer than a look, who holds the locks and the end of sessions take together.
const OTHERS_WAIT: Duration = Duration::from_secs(6);
/// So many times a minute sessions are ended by one program.
const RELIEFS_MAX: usize = 60;
/// So many sandboxes' a minute, by all programs, where it is not known who holds the locks.
const GUESSES_MAX: usize = 3;
/// How long the session that tells who holds the locks may take.
const TELLS_WITHIN: Duration = Duration::from_secs(2);
/// How often room is made for one login.
pub(in crate::engine::postgres) const ROUNDS_MAX: u32 = 50;
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

/// What a sandbox took from all, for which it is kept out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine::postgres) enum Why {
    /// Every lock of the server, again and again.
    Locks,
    /// Room in the catalogues that all databases share.
    Catalogues,
    /// Nearly every connection of the server, with others of its owner, again and again.
    Connections,
}

impl Why {
    /// Returns the word for it in a file.
    const fn word(self) -> &'static str {
        match self {
            Self::Locks => "locks",
            Self::Catalogues => "catalogues",
            Self::Connections => "connections",
        }
    }
}

/// What is known for the next time.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// Opened before.
    session: Option<AdminSession>,
    /// For how many locks the server is set up.
    room: u64,
    /// When the last rounds of relief ended.
    ended: VecDeque<Instant>,
    /// When others were last asked to tell, in vain.
    unheard: Option<Instant>,
    /// Who is to be kept out.
    again: BTreeSet<String>,
    /// Whose the sandboxes are, as of the last round of upkeep.
    owners: Owners,
}

impl Watch {
    /// Returns whether there is a session, as far as can be told without asking it.
    pub(super) fn has_session(&self) -> bool {
        self.session().is_some()
    }

    /// Returns the session, if there is one.
    pub(super) fn session(&self) -> Option<&AdminSession> {
        self.session.as_ref().filter(|session| !session.is_closed())
    }

    /// Returns whose the sandboxes are, as far as it is known.
    pub(super) fn owners(&self) -> &Owners {
        &self.owners
    }

    /// Lets go of a session that does not answer.
    pub(super) async fn forget_a_silent_session(&mut self) {
        if self.locks().await.is_none() {
            self.session = None;
        }
    }

    /// Notes whose the sandboxes are.
    pub(super) fn know(&mut self, owners: Owners) {
        self.owners = owners;
    }

    pub(super) async fn watch_by(&mut self, session: AdminSession) {
        self.session = Some(session);
        self.unheard = None;
        self.room = self.room().await.unwrap_or(u64::MAX);
        // What the statement needs is then known to the session.
        self.locks().await;
    }

    /// Ends whoever holds most, unless that was done since `asked`. Returns whether the server is worth another try.
    pub(super) async fn relieve(&mut self, paths: &Paths, asked: Instant) -> bool {
        if self.ended.back().is_some_and(|last| *last > asked) {
            return true;
        }
        let locks = self.locks().await;
        if locks.is_none() && !self.is_left_alone(paths, asked).await {
            return true;
        }
        self.end_greediest(paths, locks.as_ref(), None).await
    }

    /// Ends whoever of the others holds most, if they hold so many locks that a statement of the sandbox of `database` found
    /// none. Returns whether they did.
    pub(super) async fn relieve_of_others(&mut self, paths: &Paths, asked: Instant, database: &str) -> bool {
        let Some(locks) = self.locks().await else {
            // None can be opened, so nobody is let in.
            self.relieve(paths, asked).await;
            let ended = lately(paths);
            return !ended.is_empty() && !ended.iter().any(|one| one == database);
        };
        let held = held(paths, Some(&locks));
        let own = held.get(database).map_or(0, |held| held.all);
        let others = held.values().map(|held| held.all).sum::<u64>() - own;
        // Its own statement holds none any more: what it needed is not known, only what others had left for it. The server finds
        // room for more than it is set up for, and who holds less than that has left some to everybody.
        if others <= own || others < self.room {
            return false;
        }
        self.end_greediest(paths, Some(&locks), Some(database)).await;
        true
    }

    /// Ends the sandboxes of the owner who holds most, `but` that of a database. Returns whether the server is worth another try.
    async fn end_greediest(&mut self, paths: &Paths, locks: Option<&HashMap<u32, Held>>, but: Option<&str>) -> bool {
        while self.ended.front().is_some_and(|first| first.elapsed() > REMEMBERED_FOR) {
            self.ended.pop_front();
        }
        let guesses = if locks.is_none() { lately(paths).len() } else { 0 };
        if self.ended.len() >= RELIEFS_MAX || guesses >= GUESSES_MAX {
            tracing::warn!("sessions were ended too often lately for want of shared memory: none is ended now");
            return false;
        }
        let databases = end_greediest(paths, locks, but, &self.owners).await;
        if databases.is_empty() {
            // Whoever held them is gone meanwhile, or nobody is there to be ended.
            tokio::time::sleep(GONE_POLL).await;
            return locks.is_some();
        }
        self.ended.push_back(Instant::now());
        let before = lately(paths);
        let was_ended = |database: &str| before.iter().any(|ended| self.owners.are_ones(ended, database));
        let again = databases.iter().any(|database| was_ended(database));
        for database in databases.into_iter().filter(|database| is_plain(database)) {
            if let Err(error) = note(paths, ENDED, &database, "") {
                tracing::warn!(sandbox = database, %error, "it cannot be noted whose sessions were ended");
            }
            if again {
                self.again.insert(database);
            }
        }
        if again && let Some(session) = self.session.take() {
            // Faster than a login, which those who come back would forestall.
            self.hold_off(paths, &session).await;
            self.session = Some(session);
        }
        true
    }

    /// Has a program make room that can tell who holds the locks. Returns whether none had when it was last asked for, and a
    /// login that was tried since, and failed at `asked`, found the server as it was.
    async fn is_left_alone(&mut self, paths: &Paths, asked: Instant) -> bool {
        match self.unheard {
            Some(since) if asked < since => return false,
            Some(since) if since.elapsed() < OTHERS_WAIT => {
                self.unheard = None;
                return true;
            }
            Some(_) | None => {}
        }
        self.unheard = (!others_relieve(paths).await).then(Instant::now);
        false
    }

    /// Makes room where a program that cannot tell who holds the locks asks for it.
    pub(super) async fn relieve_others(&mut self, paths: &Paths) {
        let wanted = paths.directory.join(WANTED);
        if self.has_session() && wanted.exists() && self.locks().await.is_some() {
            self.relieve(paths, Instant::now()).await;
            drop(fs::remove_file(&wanted));
        }
    }

    /// Returns whether somebody is to be kept out.
    pub(super) fn calls_for_more(&self) -> bool {
        !self.again.is_empty()
    }

    /// Takes the logins of those who took all again.
    pub(super) async fn hold_off(&mut self, paths: &Paths, session: &AdminSession) {
        for database in std::mem::take(&mut self.again) {
            if !keep_out(paths, session, &database, Why::Locks).await {
                self.again.insert(database);
            }
        }
    }

    /// Returns for how many locks the server is set up. It finds room for more.
    async fn room(&self) -> Option<u64> {
        let sql = "SELECT pg_catalog.current_setting('max_locks_per_transaction')::int8 \
                   * pg_catalog.current_setting('max_connections')::int8";
        let answer = self.session.as_ref()?.query_typed_one(sql, &[]);
        let row = tokio::time::timeout(TELLS_WITHIN, answer).await.ok()?.ok()?;
        u64::try_from(row.get::<_, i64>(0)).ok()
    }

    /// Returns how many locks each process holds; `None` if nobody can tell.
    async fn locks(&self) -> Option<HashMap<u32, Held>> {
        let session = self.session.as_ref()?;
        // The function and not the view: that one reads catalogues that all databases share, whose locks nobody gets any more.
        let sql = "SELECT l.pid, pg_catalog.count(*), pg_catalog.count(*) FILTER (WHERE l.locktype = 'advisory') \
             FROM pg_catalog.pg_lock_status() l WHERE l.pid IS NOT NULL GROUP BY 1";
        let rows = tokio::time::timeout(TELLS_WITHIN, session.query_typed(sql, &[])).await.ok()?.ok()?;
        let count = |row: &tokio_postgres::Row| {
            let number = |column: usize| u64::try_from(row.get::<_, i64>(column)).ok();
            Some((u32::try_from(row.get::<_, i32>(0)).ok()?, Held { all: number(1)?, advisory: number(2)? }))
        };
        Some(rows.iter().filter_map(count).collect())
    }
}

/// Keeps a sandbox out for a while, by its database's name, and ends its sessions. Returns whether that need not be tried again.
pub(super) async fn keep_out(paths: &Paths, session: &AdminSession, database: &str, why: Why) -> bool {
    if let Err(error) = note(paths, HELD_OFF, database, why.word()) {
        tracing::warn!(sandbox = database, %error, "who took all cannot be kept out");
        return true;
    }
    let mut is_taken = true;
    for role in ["role", "ro"].map(|kind| format!("{database}_{kind}")) {
        // Given back by whoever lets the sandbox in again.
        let sql = format!("ALTER ROLE {} CONNECTION LIMIT 0", ident(&role));
        match tokio::time::timeout(TELLS_WITHIN, session.batch_execute(&sql)).await {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => {
                tracing::warn!(sandbox = database, error = %Chain(&error), "who took all cannot be kept out yet")
            }
            Err(_) => tracing::warn!(sandbox = database, "who took all cannot be kept out yet"),
        }
        is_taken = false;
    }
    if is_taken {
        tracing::warn!(sandbox = database, took = why.word(), "who took what all share is kept out for some minutes");
    }
    end_all(paths, database);
    is_taken
}

/// Returns what a sandbox is kept out for, if it is, by its database's name.
pub(super) fn is_held_off(paths: &Paths, database: &str) -> Option<Why> {
    let file = file(paths, HELD_OFF, database);
    is_noted(&file, HELD_OFF_FOR).then(|| match fs::read_to_string(&file) {
        Ok(word) if word == Why::Catalogues.word() => Why::Catalogues,
        Ok(word) if word == Why::Connections.word() => Why::Connections,
        Ok(_) | Err(_) => Why::Locks,
    })
}

/// Returns the databases of those that are kept out, and what for.
pub(super) fn held_off(paths: &Paths) -> Vec<(String, Why)> {
    noted(paths, HELD_OFF).filter_map(|name| is_held_off(paths, &name).map(|why| (name, why))).collect()
}

/// Returns those whose time is over, and forgets them.
pub(super) fn let_in_again(paths: &Paths) -> Vec<String> {
    let over = noted(paths, HELD_OFF).filter(|name| is_held_off(paths, name).is_none());
    over.filter(|name| fs::remove_file(file(paths, HELD_OFF, name)).is_ok()).collect()
}

/// Returns those whose sessions were ended lately, and forgets the others.
fn lately(paths: &Paths) -> Vec<String> {
    let is_late = |name: &String| {
        let file = file(paths, ENDED, name);
        is_noted(&file, REMEMBERED_FOR) || fs::remove_file(&file).is_err()
    };
    noted(paths, ENDED).filter(is_late).collect()
}

/// Returns the sandboxes of which something is noted, by their databases' names.
pub(super) fn noted(paths: &Paths, what: &str) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(paths.directory.join(what)).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}

/// Notes something of a sandbox, for every program.
pub(super) fn note(paths: &Paths, what: &str, database: &str, word: &str) -> io::Result<()> {
    fs::create_dir_all(paths.directory.join(what))?;
    fs::write(file(paths, what, database), word)
}

/// Returns how long ago it was noted, if that was lately; else it is forgotten.
pub(super) fn noted_ago(paths: &Paths, what: &str, database: &str, lately: Duration) -> Option<Duration> {
    let file = file(paths, what, database);
    let ago = age(&file).filter(|age| *age < lately);
    if ago.is_none() {
        drop(fs::remove_file(&file));
    }
    ago
}

fn is_noted(file: &Path, lately: Duration) -> bool {
    age(file).is_some_and(|age| age < lately)
}

fn age(file: &Path) -> Option<Duration> {
    fs::metadata(file).and_then(|noted| noted.modified()).ok()?.elapsed().ok()
}

fn file(paths: &Paths, what: &str, database: &str) -> PathBuf {
    paths.directory.join(what).join(database)
}

/// Returns whether it is a name that this program has made.
pub(super) fn is_plain(database: &str) -> bool {
    database.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

fn end_all(paths: &Paths, database: &str) {
    let Some(server) = server_pid(paths) else { return };
    backends(server).iter().filter(|one| database_of(&one.role) == database).for_each(|one| end(one, server));
}

/// Asks for somebody who can tell who holds the locks. Returns whether there was one, who has made room then.
async fn others_relieve(paths: &Paths) -> bool {
    let wanted = paths.directory.join(WANTED);
    if fs::write(&wanted, b"").is_err() {
        return false;
    }
    let until = Instant::now() + OTHERS_WAIT;
    while wanted.exists() {
        if Instant::now() > until {
            // Nobody is there.
            drop(fs::remove_file(&wanted));
            return false;
        }
        tokio::time::sleep(GONE_POLL).await;
    }
    true
}

/// Returns what the sessions of each sandbox hold: locks, by each session's process, where they are known, or else memory.
fn held_by(all: &[Backend], locks: Option<&HashMap<u32, Held>>) -> HashMap<String, Held> {
    let mut held: HashMap<String, Held> = HashMap::new();
    for backend in all {
        let memory = Held { all: backend.private_kb, advisory: 0 };
        let holds = locks.map_or(memory, |locks| locks.get(&backend.pid).copied().unwrap_or_default());
        *held.entry(database_of(&backend.role).to_owned()).or_default() += holds;
    }
    held
}

fn held(paths: &Paths, locks: Option<&HashMap<u32, Held>>) -> HashMap<String, Held> {
    server_pid(paths).map(|server| held_by(&backends(server), locks)).unwrap_or_default()
}

/// Ends all sessions of the sandboxes of the owner who holds most, `but` that of a database; where it is guessed, of one
/// sandbox. Returns whose they were.
async fn end_greediest(
    paths: &Paths,
    locks: Option<&HashMap<u32, Held>>,
    but: Option<&str>,
    owners: &Owners,
) -> Vec<String> {
    let Some(server) = server_pid(paths) else { return Vec::new() };
    let all = backends(server);
    let mut held = held_by(&all, locks);
    held.retain(|database, _| Some(database.as_str()) != but);
    let greediest = match locks {
        Some(_) => owners.greediest(&held),
        None => held.into_iter().max_by_key(|(_, held)| held.all).map(|(database, _)| database).into_iter().collect(),
    };
    let ended: Vec<&Backend> =
        all.iter().filter(|backend| greediest.iter().any(|one| one == database_of(&backend.role))).collect();
    if greediest.is_empty() {
        return greediest;
    }
    tracing::warn!(
        sandboxes = greediest.join(" "),
        sessions = ended.len(),
        locks_are_known = locks.is_some(),
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
    greediest
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
pub(super) fn database_of(role: &str) -> &str {
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
