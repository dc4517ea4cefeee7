//! Which servers share the metadata, and which of them live.
//!
//! A server lives while a session of its own holds the advisory lock of its number *and* its heartbeat is fresh:
//! the lock is gone the moment a server is killed, the heartbeat grows old when it hangs.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::facts::Presence;
use super::{Store, StoreError, StoreSession, migrate};
use crate::model::{Timestamp, fault, role_pattern};

/// How often a server says that it lives.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);
/// Silence after which a server that still holds its lock counts as dead: several missed heartbeats.
pub(super) const LEASE_SECONDS: i32 = 60;
/// The first half of the lock's key: `PGSB`.
pub(super) const PRESENCE_CLASS: i32 = 0x5047_5342;
/// How long a server that ends waits to be taken off the list.
const LEAVE_WAIT: Duration = Duration::from_secs(5);
/// How long the row of a removed sandbox is kept: what is left of it by then was not left by this program.
const ENDED_KEPT_DAYS: i32 = 30;
/// Servers that held nothing and were silent this long are forgotten.
const FORGOTTEN_AFTER_HOURS: i32 = 24;

/// A condition that holds while server `p.holder` lives.
pub(super) fn holder_lives() -> String {
    format!(
        "exists (select from pgsandbox.servers s
            join pg_catalog.pg_locks l on l.locktype = 'advisory' and l.granted and l.objsubid = 2
                and l.classid = {PRESENCE_CLASS} and l.objid = s.number::pg_catalog.oid
                and l.database = (select d.oid from pg_catalog.pg_database d
                                  where d.datname = pg_catalog.current_database())
            where s.number = p.holder
              and s.heartbeat_at > pg_catalog.now() - pg_catalog.make_interval(secs => {LEASE_SECONDS}))"
    )
}

impl Store {
    /// Migrates the metadata and registers this server. Cheap when both are done and the session still stands.
    ///
    /// # Errors
    /// Fails if the database cannot be reached, or its schema is not one to be used.
    pub async fn open(&self) -> Result<(), StoreError> {
        let mut presence = self.presence.lock().await;
        if presence.as_ref().is_some_and(|session| !session.is_closed()) {
            return Ok(());
        }
        self.pass("open").await?;
        let mut session = self.sessions.dedicated().await.map_err(|error| error.of_profile(&self.profile))?;
        self.pass("end-strangers").await?;
        self.end_strangers(&session).await?;
        self.pass("migrate").await?;
        migrate::migrate(&mut session).await.map_err(|error| error.of_profile(&self.profile))?;
        self.pass("register").await?;
        let number = self.register(&session).await?;
        self.written("register").await?;
        self.number.store(number, Ordering::SeqCst);
        *presence = Some(Arc::new(Presence::new(session)));
        Ok(())
    }

    /// Returns the server's clock.
    ///
    /// # Errors
    /// Fails if the metadata cannot be read.
    pub async fn clock(&self) -> Result<Timestamp, StoreError> {
        let session = self.session("clock").await?;
        let sql = "select (extract(epoch from pg_catalog.clock_timestamp()) * 1000)::bigint";
        let row = session.query_one(sql, &[]).await.map_err(self.typed("read the server's clock"))?;
        Ok(Timestamp::from_unix_ms(u64::try_from(row.get::<_, i64>(0)).unwrap_or_default()))
    }

    /// Looks at the schema without migrating it or registering this server. Returns whether it can be read as it is.
    ///
    /// # Errors
    /// Fails if the database cannot be reached, or its schema is not one to be used.
    pub async fn look(&self) -> Result<bool, StoreError> {
        let session = self.session("look").await?;
        migrate::look(&session).await.map_err(|error| error.of_profile(&self.profile))
    }

    /// Returns whether the store was opened and its session still stands.
    pub async fn is_open(&self) -> bool {
        self.present().await.is_some()
    }

    /// Returns the session that says that we live, if the store was opened and it still stands.
    pub(super) async fn present(&self) -> Option<Arc<Presence>> {
        self.presence.lock().await.as_ref().filter(|session| !session.is_closed()).map(Arc::clone)
    }

    /// Registers, or takes our number's lock again after the session was lost.
    async fn register(&self, session: &StoreSession) -> Result<i32, StoreError> {
        let typed = self.typed("register this server");
        let held = self.number.load(Ordering::SeqCst);
        if held != 0 {
            // The lock first: a number whose lock another has is not ours any more.
            let row = session
                .query_one("select pg_catalog.pg_try_advisory_lock($1, $2)", &[&PRESENCE_CLASS, &held])
                .await
                .map_err(&typed)?;
            let locked: bool = row.get(0);
            if locked {
                let renewed = session
                    .execute("update pgsandbox.servers set heartbeat_at = now() where number = $1", &[&held])
                    .await
                    .map_err(&typed)?;
                if renewed == 1 {
                    return Ok(held);
                }
            }
        }
        let host = host_name();
        let pid = i32::try_from(std::process::id()).unwrap_or(0);
        let row = session
            .query_one("insert into pgsandbox.servers (host, pid) values ($1, $2) returning number", &[&host, &pid])
            .await
            .map_err(&typed)?;
        let number: i32 = row.get(0);
        session
            .query("select pg_catalog.pg_advisory_lock($1, $2)", &[&PRESENCE_CLASS, &number])
            .await
            .map_err(&typed)?;
        Ok(number)
    }

    /// Says that this server lives, while the store is open. Does not open it again: that would start a managed
    /// server which somebody stopped, and who is not open holds nothing.
    ///
    /// # Errors
    /// Fails if the metadata cannot be written.
    pub async fn heartbeat(&self) -> Result<(), StoreError> {
        let presence = self.presence.lock().await.clone();
        let Some(session) = presence.filter(|session| !session.is_closed()) else { return Ok(()) };
        let number = self.number()?;
        self.pass("heartbeat").await?;
        self.end_strangers(&session).await?;
        // On the session that holds the lock: if only our end still believes in it, the lock is gone, and it is this that
        // finds out.
        session
            .execute("update pgsandbox.servers set heartbeat_at = now() where number = $1", &[&number])
            .await
            .map_err(self.typed("say that this server lives"))?;
        Ok(())
    }

    /// Ends sessions that hold advisory locks of this program's and have no business in its database: a sandbox's role
    /// that was let in there, as PUBLIC is on a server whose operator has not said otherwise. Anybody who may log in to a
    /// database may take any such lock in it, and would keep everybody from making sandboxes.
    async fn end_strangers(&self, session: &StoreSession) -> Result<(), StoreError> {
        let ended = session
            .query(
                "select a.usename::text, pg_catalog.pg_terminate_backend(a.pid) from pg_catalog.pg_stat_activity a
                 join pg_catalog.pg_roles r on r.oid = a.usesysid
                 where not r.rolsuper and r.rolname <> current_user
                   and pg_catalog.pg_has_role(current_user, r.oid, 'USAGE')
                   and not pg_catalog.pg_has_role(r.oid, current_user, 'MEMBER')
                   and exists (
                     select from pg_catalog.pg_locks l join pg_catalog.pg_database d on d.oid = l.database
                     where l.pid = a.pid and l.locktype = 'advisory' and d.datname = pg_catalog.current_database()
                       and (r.rolname ~ $1 or exists (
                         select from pg_catalog.pg_locks w join pg_catalog.pg_stat_activity o on o.pid = w.pid
                         where not w.granted and w.locktype = l.locktype and w.database = l.database
                           and (w.classid, w.objid, w.objsubid) = (l.classid, l.objid, l.objsubid)
                           and o.usename = current_user)))",
                &[&role_pattern(&self.prefix)],
            )
            .await
            .map_err(self.typed("end sessions of strangers"))?;
        for row in ended {
            let role: String = row.get(0);
            tracing::warn!(profile = self.profile, role, "a session that held locks of the metadata was ended");
        }
        Ok(())
    }

    /// Takes this server off the list, so that what it still holds is taken over at once.
    ///
    /// # Errors
    /// Fails if the metadata cannot be written; the session's end does the same then.
    pub async fn leave(&self) -> Result<(), StoreError> {
        let Some(session) = self.presence.lock().await.take() else { return Ok(()) };
        self.pass("leave").await?;
        let number = self.number.swap(0, Ordering::SeqCst);
        let sql = "delete from pgsandbox.servers where number = $1";
        match tokio::time::timeout(fault::within(LEAVE_WAIT), session.execute(sql, &[&number])).await {
            Ok(left) => left.map(drop).map_err(self.typed("take this server off the list")),
            Err(_) => {
                Err(StoreError::Unreachable { profile: self.profile.clone(), detail: "no answer in time".to_owned() })
            }
        }
    }

    /// Forgets what no longer matters: old keys, rows of long removed sandboxes, dead servers, lines of ended plans.
    ///
    /// # Errors
    /// Fails if the metadata cannot be written.
    pub async fn tidy(&self) -> Result<(), StoreError> {
        let session = self.session("tidy").await?;
        let typed = self.typed("tidy the metadata");
        session.execute("delete from pgsandbox.idempotency where expires_at <= now()", &[]).await.map_err(&typed)?;
        session
            .execute(
                "delete from pgsandbox.servers s where s.heartbeat_at < now() - make_interval(hours => $1)
                 and not exists (select from pgsandbox.plans p where p.holder = s.number and p.state in ('running', 'undoing'))",
                &[&FORGOTTEN_AFTER_HOURS],
            )
            .await
            .map_err(&typed)?;
        session
            .execute(
                "delete from pgsandbox.sandboxes where state in ('deleted', 'failed')
                 and ended_at < now() - make_interval(days => $1)",
                &[&ENDED_KEPT_DAYS],
            )
            .await
            .map_err(&typed)?;
        // Lines of earlier attempts say nothing that the last does not.
        session
            .execute(
                "delete from pgsandbox.journal j using pgsandbox.plans p
                 where p.id = j.plan_id and (p.state in ('done', 'undone') or (p.kind = 'delete' and j.epoch < p.epoch))",
                &[],
            )
            .await
            .map_err(&typed)?;
        Ok(())
    }

    /// Returns our number.
    pub(super) fn number(&self) -> Result<i32, StoreError> {
        match self.number.load(Ordering::SeqCst) {
            0 => Err(StoreError::NotOpen(self.profile.clone())),
            number => Ok(number),
        }
    }
}

/// Returns this machine's name, for people who read the table.
fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").map(|name| name.trim().to_owned()).unwrap_or_default()
}
