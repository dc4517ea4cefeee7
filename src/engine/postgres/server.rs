//! The server behind one profile: how it is reached, who its admin is, and the few sessions kept open to it.
//!
//! A managed server is started when it does not answer; an external one never is. Sessions into databases
//! other than the admin's own and the metadata's are never kept.

use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::admin::{AdminSession, Login, LoginError, ident, refused};
use super::direct;
use super::idle::Idle;
use super::managed::{
    ADMIN_DATABASE, BinarySettings, DIRECT_ROLE, ManagedCluster, ManagedSettings, ROUNDS_MAX, WITHHELD_ROLE,
};
use super::{Credentials, Endpoint, PostgresUrl};
use crate::engine::{EngineError, ServerInfo};
use crate::model::{Code, Failure, fault};

/// The database that a managed cluster's metadata lives in.
pub const METADATA_DATABASE: &str = "pgsandbox";
/// The most pooled sessions of one server: eight creates at once go no faster than two.
pub(super) const SESSIONS_MAX: usize = 8;
/// How long somebody waits for a session, or for a connection to a server that has none left, before being told to
/// come back.
const SESSION_WAIT: Duration = Duration::from_secs(30);
/// How long somebody waits before trying such a server again, the first and the later times.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(250);
/// A kept session that has been idle for longer is asked for a sign of life first.
const TRUSTED_IDLE: Duration = Duration::from_millis(250);
/// How long a kept session may take to give a sign of life.
const SIGN_OF_LIFE_WAIT: Duration = Duration::from_secs(5);
/// How long a login to a managed server may take; an external one's URL says how long.
const MANAGED_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the server may take for a statement on the metadata: longer than it waits for a lock.
const METADATA_ANSWER: Duration = Duration::from_secs(25);
/// How long the server may take for any other statement of ours: longer than its own timer lets it.
const ANSWER: Duration = Duration::from_secs(130);
/// The first major without the settings this program relies on, and the last one it was tried with.
const MAJORS: std::ops::RangeInclusive<u16> = 13..=18;

/// Everything the engine has to know of one profile.
#[derive(Clone, Debug)]
pub struct PostgresSettings {
    /// The profile's name, for messages.
    pub profile: String,
    /// What every name on the server begins with, followed by `_`.
    pub prefix: String,
    /// Where the server is.
    pub source: ServerSource,
    /// The major version that an external server must have; a managed one is chosen by its own settings.
    pub major: Option<u16>,
    /// The most sessions of a sandbox's owner role; the read-only role has as many.
    pub connection_limit: u32,
    /// Temporary files of one session, in kB. Needs a superuser as admin.
    pub temp_file_limit_kb: Option<u64>,
    /// Time for one statement of a direct connection, in ms. A hint: a role may change its own.
    pub statement_timeout_ms: Option<u64>,
    /// How long one of the admin's own sessions is waited for.
    pub session_wait: Duration,
    /// Where client programs are looked for first.
    pub tools: BinarySettings,
    /// Where copies keep what they need meanwhile, in private directories of their own.
    pub work_dir: PathBuf,
}

impl PostgresSettings {
    /// Sets a profile up with the usual limits.
    pub fn new(profile: impl Into<String>, prefix: impl Into<String>, source: ServerSource) -> Self {
        Self {
            profile: profile.into(),
            prefix: prefix.into(),
            source,
            major: None,
            // an application's own pool of ten, twice
            connection_limit: 20,
            temp_file_limit_kb: Some(1 << 20),
            statement_timeout_ms: None,
            session_wait: SESSION_WAIT,
            tools: BinarySettings::default(),
            work_dir: std::env::temp_dir().join(format!("pgsandbox-copies-{}", rustix::process::geteuid().as_raw())),
        }
    }
}

/// Where a profile's server comes from.
#[derive(Clone, Debug)]
pub enum ServerSource {
    /// Somebody else runs it.
    External(PostgresUrl),
    /// This program runs it.
    Managed(ManagedSettings),
}

/// One server, shared by all who work on its profile.
#[derive(Debug)]
pub struct PostgresServer {
    settings: PostgresSettings,
    managed: Option<ManagedCluster>,
    slots: Arc<Semaphore>,
    /// Held while the server is looked for, so that it is looked for once. Keeps the last failure and when it came: who
    /// has waited for a search that failed does not wait for another.
    finding: tokio::sync::Mutex<Option<(Instant, EngineError)>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    reach: Option<Reach>,
    info: Option<ServerInfo>,
    idle: Idle<AdminSession>,
}

/// How the server is reached right now.
#[derive(Clone, Debug)]
pub(super) struct Reach {
    /// For our own sessions.
    pub(super) endpoint: Endpoint,
    /// The admin.
    pub(super) admin: Credentials,
    /// The admin's own database.
    pub(super) database: String,
    pub(super) connect_timeout: Duration,
}

/// A session out of the pool; goes back when dropped, if it is still good.
#[derive(Debug)]
pub struct PooledSession {
    session: Option<AdminSession>,
    database: String,
    server: Arc<PostgresServer>,
    _slot: OwnedSemaphorePermit,
}

impl PostgresServer {
    /// Sets a server up. Nothing is contacted or started.
    pub fn new(settings: PostgresSettings) -> Arc<Self> {
        let managed = match &settings.source {
            ServerSource::Managed(managed) => Some(ManagedCluster::new(managed.clone())),
            ServerSource::External(_) => None,
        };
        let slots = Arc::new(Semaphore::new(SESSIONS_MAX));
        Arc::new(Self { settings, managed, slots, finding: tokio::sync::Mutex::default(), state: Mutex::default() })
    }

    /// Returns the profile's settings.
    pub fn settings(&self) -> &PostgresSettings {
        &self.settings
    }

    /// Returns the cluster, where this program runs it.
    pub fn managed(&self) -> Option<&ManagedCluster> {
        self.managed.as_ref()
    }

    /// Opens or reuses a session in the database that holds the metadata schema.
    ///
    /// # Errors
    /// Fails when the server cannot be reached (or started), or does not accept the admin.
    pub async fn metadata_session(self: &Arc<Self>) -> Result<PooledSession, EngineError> {
        let database = self.metadata_database().await?;
        self.pooled(database, METADATA_ANSWER).await
    }

    /// Opens a session in the database that holds the metadata schema, which is closed when dropped: what it holds,
    /// a session lock for instance, ends with it. It takes no slot from the pool.
    ///
    /// # Errors
    /// Fails when the server cannot be reached (or started), or does not accept the admin.
    pub async fn dedicated_metadata_session(self: &Arc<Self>) -> Result<AdminSession, EngineError> {
        let database = self.metadata_database().await?;
        let session = self.open(&database).await?;
        session.answers_within(METADATA_ANSWER);
        Ok(session)
    }

    /// Opens or reuses a session in the admin's own database.
    ///
    /// # Errors
    /// Fails when the server cannot be reached (or started), or does not accept the admin.
    pub async fn admin_session(self: &Arc<Self>) -> Result<PooledSession, EngineError> {
        let database = self.reach().await?.database;
        self.pooled(database, ANSWER).await
    }

    /// Opens or reuses a second session in the admin's own database for who has one already; `None` if there is none
    /// to be had at once.
    pub(super) async fn second_admin_session(self: &Arc<Self>) -> Result<Option<PooledSession>, EngineError> {
        let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() else { return Ok(None) };
        let database = self.reach().await?.database;
        self.lend(database, slot, ANSWER).await.map(Some)
    }

    /// Returns the name of the database that holds the metadata schema.
    pub(super) async fn metadata_database(&self) -> Result<String, EngineError> {
        match self.settings.source {
            ServerSource::Managed(_) => Ok(METADATA_DATABASE.to_owned()),
            ServerSource::External(_) => Ok(self.reach().await?.database),
        }
    }

    /// Opens a session of the admin's in any database, to be closed after use. Does not wait: a database may be closed.
    pub(super) async fn session_in(&self, database: &str) -> Result<AdminSession, EngineError> {
        self.open_now(database).await
    }

    /// Says what the server is, asking it once.
    ///
    /// # Errors
    /// Fails when the server cannot be reached, and when the admin or the server will not do.
    pub async fn info(self: &Arc<Self>) -> Result<ServerInfo, EngineError> {
        if let Some(info) = self.known_info() {
            return Ok(info);
        }
        let session = self.admin_session().await?;
        let info = self.examine(&session).await?;
        self.state().info = Some(info.clone());
        Ok(info)
    }

    /// Returns what [`info`](Self::info) found, if it was asked before.
    pub(super) fn known_info(&self) -> Option<ServerInfo> {
        self.state().info.clone()
    }

    /// Returns how the server is reached; a managed one is started for it.
    pub(super) async fn reach(&self) -> Result<Reach, EngineError> {
        if let Some(reach) = self.state().reach.clone() {
            return Ok(reach);
        }
        self.find().await
    }

    /// Finds out anew how the server is reached, starting it if it is managed.
    async fn find(&self) -> Result<Reach, EngineError> {
        let asked = Instant::now();
        let mut last = self.finding.lock().await;
        if let Some(reach) = self.state().reach.clone() {
            return Ok(reach);
        }
        if let Some((_, error)) = last.as_ref().filter(|(at, _)| *at >= asked) {
            return Err(error.clone());
        }
        let found = self.search().await;
        *last = found.as_ref().err().map(|error| (Instant::now(), error.clone()));
        found
    }

    async fn search(&self) -> Result<Reach, EngineError> {
        let reach = match (&self.settings.source, &self.managed) {
            (ServerSource::Managed(_), Some(cluster)) => {
                let (running, session) =
                    cluster.ensure_running().await.map_err(|e| EngineError::Known(Box::new(e.into())))?;
                session.answers_within(ANSWER);
                self.close_to_public(&session).await?;
                direct::renew_rules(self, &session).await?;
                let reach = Reach {
                    endpoint: running.endpoint,
                    admin: running.admin,
                    database: ADMIN_DATABASE.to_owned(),
                    connect_timeout: MANAGED_CONNECT_TIMEOUT,
                };
                // Whoever looked for the server wants a session next; to log in takes longer than all else here.
                self.state().idle.put(reach.database.clone(), session, Instant::now());
                reach
            }
            (ServerSource::External(url), _) => Reach {
                endpoint: url.endpoint.clone(),
                admin: url.credentials.clone(),
                database: url.database.clone(),
                connect_timeout: url.connect_timeout,
            },
            (ServerSource::Managed(_), None) => {
                return Err(EngineError::Unsupported("the managed cluster was not set up".to_owned()));
            }
        };
        self.state().reach = Some(reach.clone());
        Ok(reach)
    }

    /// Looks anew for a server that did not answer.
    pub(super) async fn reconnect(&self) -> Result<Reach, EngineError> {
        self.forget();
        self.find().await
    }

    async fn pooled(self: &Arc<Self>, database: String, answer: Duration) -> Result<PooledSession, EngineError> {
        let slot = tokio::time::timeout(self.settings.session_wait, Arc::clone(&self.slots).acquire_owned()).await;
        let Ok(Ok(slot)) = slot else {
            let what = format!("the admin connection of profile `{}`", self.settings.profile);
            return Err(EngineError::Busy { what, sessions: u32::try_from(SESSIONS_MAX).unwrap_or(u32::MAX) });
        };
        self.lend(database, slot, answer).await
    }

    async fn lend(
        self: &Arc<Self>,
        database: String,
        slot: OwnedSemaphorePermit,
        answer: Duration,
    ) -> Result<PooledSession, EngineError> {
        let until = Instant::now() + self.settings.session_wait;
        let mut pause = PAUSE_MIN;
        let session = loop {
            if let Some(session) = self.kept(&database).await {
                break session;
            }
            match self.open_now(&database).await {
                Err(EngineError::Crowded { .. }) if Instant::now() + pause < until => {
                    self.trim_idle();
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                opened => break opened?,
            }
        };
        session.answers_within(answer);
        Ok(PooledSession { session: Some(session), database, server: Arc::clone(self), _slot: slot })
    }

    /// Takes a kept session that still answers.
    async fn kept(&self, database: &str) -> Option<AdminSession> {
        loop {
            let (session, since) = self.state().idle.take(database)?;
            if session.is_closed() {
                continue;
            }
            if since.elapsed() < TRUSTED_IDLE {
                return Some(session);
            }
            match tokio::time::timeout(fault::within(SIGN_OF_LIFE_WAIT), session.check_connection()).await {
                Ok(Ok(())) => return Some(session),
                Ok(Err(_)) => {}
                // The others would be waited for as long, and in vain.
                Err(_) => self.state().idle.clear(),
            }
        }
    }

    /// Opens a session, waiting while the server has no connection left; a managed server that does not answer is
    /// started first.
    async fn open(&self, database: &str) -> Result<AdminSession, EngineError> {
        let until = Instant::now() + self.settings.session_wait;
        let mut pause = PAUSE_MIN;
        loop {
            match self.open_now(database).await {
                Err(EngineError::Crowded { .. }) if Instant::now() + pause < until => {
                    self.trim_idle();
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                opened => return opened,
            }
        }
    }

    async fn open_now(&self, database: &str) -> Result<AdminSession, EngineError> {
        let reach = self.reach().await?;
        match self.log_in(&reach, database).await {
            Err(error) if error.is_unreachable() && !error.is_silence() && self.managed.is_some() => {
                let reach = self.reconnect().await?;
                self.log_in(&reach, database).await.map_err(|e| self.login_failed(e, &reach, database))
            }
            other => other.map_err(|e| self.login_failed(e, &reach, database)),
        }
    }

    /// Names what an admin URL names wrongly: a database that is not there, or that its role may not enter.
    fn login_failed(&self, error: LoginError, reach: &Reach, database: &str) -> EngineError {
        let (profile, user) = (&self.settings.profile, &reach.admin.user);
        let (shown, role) = (ident(database), ident(user));
        let (what, remedy) = match error.sqlstate() {
            Some("3D000") if database == reach.database => (
                format!("the server of profile `{profile}` has no database `{database}`"),
                format!("name another in the profile's admin URL, or run there: CREATE DATABASE {shown} OWNER {role}"),
            ),
            Some("42501") if database == reach.database => (
                format!("role `{user}` of profile `{profile}` may not enter the database `{database}`"),
                format!("run there as its owner: GRANT CONNECT, CREATE ON DATABASE {shown} TO {role}"),
            ),
            Some(_) | None => return error.within(profile, user),
        };
        EngineError::unsuited("postgres.database", Code::InvalidConfiguration, what, remedy)
    }

    async fn log_in(&self, reach: &Reach, database: &str) -> Result<AdminSession, LoginError> {
        let major = self.known_info().map(|i| i.major);
        let login = Login {
            endpoint: &reach.endpoint,
            credentials: &reach.admin,
            database,
            timeout: reach.connect_timeout,
            answer: ANSWER,
        };
        let mut rounds = 0;
        loop {
            rounds += 1;
            match (AdminSession::open(&login, major).await, &self.managed) {
                (Err(error), Some(managed)) if error.is_starved() && rounds < ROUNDS_MAX && managed.relieve().await => {
                }
                (Ok(session), Some(managed)) => {
                    managed.hold_off(&session).await;
                    return Ok(session);
                }
                (opened, _) => return opened,
            }
        }
    }

    /// Sees that the server still lets the admin in, and makes it, where it is managed.
    pub(super) async fn relieve(&self) {
        let Some(reach) = self.state().reach.clone() else { return };
        if let Err(error) = self.log_in(&reach, &reach.database).await {
            tracing::warn!(profile = self.settings.profile, %error, "the server that had no room left does not let us in");
        }
    }

    /// Logs in as a sandbox's role, waiting while the server has no connection left.
    pub(super) async fn log_in_as(&self, login: &Login<'_>, major: Option<u16>) -> Result<AdminSession, LoginError> {
        let until = Instant::now() + self.settings.session_wait;
        let mut pause = PAUSE_MIN;
        loop {
            match AdminSession::open(login, major).await {
                Err(error) if error.is_crowded() && Instant::now() + pause < until => {
                    // Sessions of ours that do nothing need not be in the way.
                    self.trim_idle();
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                opened => return opened,
            }
        }
    }

    /// Closes sessions that nobody needs just now, so that the server has room for others; one for each database stays,
    /// as the next step, or the way out, needs it.
    pub(super) fn trim_idle(&self) {
        self.state().idle.trim();
    }

    /// Forgets where the server was; the next who needs it looks anew.
    fn forget(&self) {
        let mut state = self.state();
        state.reach = None;
        state.idle.clear();
    }

    /// Reads what the server is, and refuses what cannot work.
    async fn examine(&self, session: &AdminSession) -> Result<ServerInfo, EngineError> {
        let profile = &self.settings.profile;
        let row = session
            .query_one(
                "SELECT pg_catalog.current_setting('server_version'), r.rolsuper, r.rolcreatedb, r.rolcreaterole, \
                 pg_catalog.current_setting('search_path') = 'pg_catalog' \
                 AND pg_catalog.current_setting('bytea_output') = 'hex' \
                 AND pg_catalog.current_setting('statement_timeout') <> '0', r.rolname::text \
                 FROM pg_catalog.pg_roles r WHERE r.rolname = current_user",
                &[],
            )
            .await
            .map_err(refused("say what it is", profile))?;
        let (version, superuser, createdb, createrole): (String, bool, bool, bool) =
            (row.get(0), row.get(1), row.get(2), row.get(3));
        let (pinned, user): (bool, String) = (row.get(4), row.get(5));
        let major = session.major();
        let unsuited = |check, text: String, remedy: String| {
            Err(EngineError::unsuited(check, Code::InvalidConfiguration, text, remedy))
        };
        check_major(profile, major)?;
        if let Some(wanted) = self.settings.major.filter(|wanted| *wanted != major) {
            return Err(other_major(profile, wanted, major));
        }
        if !pinned {
            let text = format!(
                "profile `{profile}` is reached through something that drops start-up settings (`options`), a pooler perhaps"
            );
            return unsuited("postgres.settings", text, "give the address of the server itself".to_owned());
        }
        let rights: Vec<&str> = [("CREATEDB", createdb), ("CREATEROLE", createrole)]
            .into_iter()
            .filter_map(|(right, has)| (!superuser && !has).then_some(right))
            .collect();
        if !rights.is_empty() {
            let text = format!("role `{user}` of profile `{profile}` lacks {}", rights.join(" and "));
            let remedy = format!("run there as a superuser: ALTER ROLE {} {}", ident(&user), rights.join(" "));
            return unsuited("postgres.admin", text, remedy);
        }
        Ok(ServerInfo { major, version, superuser })
    }

    /// Makes sure that a managed cluster has its metadata database and the roles by which direct logins are let in, and that
    /// PUBLIC can enter none of ours.
    async fn close_to_public(&self, session: &AdminSession) -> Result<(), EngineError> {
        let profile = &self.settings.profile;
        let there = session
            .query_one(
                "SELECT EXISTS (SELECT FROM pg_catalog.pg_database WHERE datname = $1), \
                 EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = $2), \
                 EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = $3)",
                &[&METADATA_DATABASE, &DIRECT_ROLE, &WITHHELD_ROLE],
            )
            .await
            .map_err(refused("list databases", profile))?;
        direct::make_roles(session, profile, [there.get(1), there.get(2)]).await?;
        if !there.get::<_, bool>(0) {
            let sql = format!("CREATE DATABASE {} TEMPLATE template0", ident(METADATA_DATABASE));
            match session.execute(sql.as_str(), &[]).await {
                Ok(_) => {}
                // another process of ours was faster
                Err(e) if e.code().is_some_and(|c| matches!(c.code(), "42P04" | "23505")) => {}
                Err(e) => return Err(refused("create the metadata database", profile)(e)),
            }
        }
        let open = "SELECT d.datname::text FROM pg_catalog.pg_database d \
                    WHERE d.datname IN ('postgres', 'template1', $1) \
                    AND (pg_catalog.has_database_privilege('public', d.oid, 'CONNECT') \
                         OR pg_catalog.has_database_privilege('public', d.oid, 'TEMPORARY'))";
        for row in session.query(open, &[&METADATA_DATABASE]).await.map_err(refused("list databases", profile))? {
            let database: String = row.get(0);
            let sql = format!("REVOKE CONNECT, TEMPORARY ON DATABASE {} FROM PUBLIC", ident(&database));
            match session.execute(sql.as_str(), &[]).await {
                Ok(_) => {}
                // another process of ours does the same at this moment
                Err(e) if e.code().is_some_and(|c| c.code() == "XX000") => {}
                Err(e) => return Err(refused("close a database to PUBLIC", profile)(e)),
            }
        }
        let left = session.query(open, &[&METADATA_DATABASE]).await.map_err(refused("list databases", profile))?;
        if let Some(row) = left.first() {
            let database: String = row.get(0);
            return Err(EngineError::Unsupported(format!("database `{database}` stays open to PUBLIC")));
        }
        Ok(())
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The failure of a profile whose server is not of the version that its configuration demands.
fn other_major(profile: &str, wanted: u16, major: u16) -> EngineError {
    let text = format!("profile `{profile}` is set to Postgres {wanted}, and its server is Postgres {major}");
    let mut failure =
        Failure::new(Code::VersionMismatch, text).hint("correct the profile's `postgresVersion`, or its admin URL");
    let detail = failure.detail_mut();
    detail.requested_version = Some(wanted.to_string());
    detail.resolved_profile = Some(profile.to_owned());
    detail.resolved_postgres_version = Some(major.to_string());
    EngineError::Unsuited { check: "postgres.version", failure: Box::new(failure) }
}

impl Deref for PooledSession {
    type Target = AdminSession;

    #[expect(clippy::expect_used, reason = "the session is there until the guard is dropped")]
    fn deref(&self) -> &AdminSession {
        self.session.as_ref().expect("present until dropped")
    }
}

impl DerefMut for PooledSession {
    #[expect(clippy::expect_used, reason = "the session is there until the guard is dropped")]
    fn deref_mut(&mut self) -> &mut AdminSession {
        self.session.as_mut().expect("present until dropped")
    }
}

impl Drop for PooledSession {
    fn drop(&mut self) {
        let Some(session) = self.session.take() else { return };
        if session.is_closed() {
            return;
        }
        self.server.state().idle.put(std::mem::take(&mut self.database), session, Instant::now());
    }
}

/// Refuses a server that this program was not made for.
fn check_major(profile: &str, major: u16) -> Result<(), EngineError> {
    if MAJORS.contains(&major) {
        return Ok(());
    }
    let text = format!("the server of profile `{profile}` is PostgreSQL {major}");
    let remedy = format!("choose another server: versions {} to {} are supported", MAJORS.start(), MAJORS.end());
    Err(EngineError::unsuited("postgres.version", Code::InvalidConfiguration, text, remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn majors_are_taken_at_their_bounds_and_no_further() {
        for (major, fits) in [(0, false), (12, false), (13, true), (14, true), (17, true), (18, true), (19, false)] {
            let checked = check_major("local", major);
            assert_eq!(checked.is_ok(), fits, "{major}: {checked:?}");
        }
    }
}
