//! Removes a sandbox, whole or half made, and what it has left elsewhere.
//!
//! It is closed first, which is quick, and dropped later, which is not. What the caller's SQL has left behind may
//! resist, and does not succeed; what others have done is reported, not undone.

use std::time::Duration;

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

use super::changed::Patience;
use super::{Work, contended, is_contention};
use crate::engine::EngineError;
use crate::engine::postgres::admin::{AdminSession, ident, literal, refused};

/// How long a change of roles or database waits for a lock before the sessions that hold it are ended.
const CLOSE_LOCK_TIMEOUT: &str = "250ms";
/// How often closing is tried against sessions that come back.
const CLOSE_ATTEMPTS_MAX: u32 = 12;
/// How long dropping waits for what somebody else's open transaction holds, before one of a sandbox is ended.
pub(super) const DROP_LOCK_TIMEOUT: &str = "2s";
/// How often dropping is tried against transactions that come back.
pub(super) const DROP_ATTEMPTS_MAX: u32 = 5;
/// How often another sandbox's database is opened that its owner closes again.
const ENTER_ATTEMPTS_MAX: u32 = 12;
/// How long ended sessions are given to go away.
const TERMINATE_WAIT: Duration = Duration::from_secs(3);
/// How soon it is looked again whether they have; each pause is twice the one before.
const TERMINATE_POLL: Duration = Duration::from_millis(1);
const TERMINATE_POLL_MAX: Duration = Duration::from_millis(10);
/// What `datconnlimit` is while a database is half dropped; it can then only be dropped.
const HALF_DROPPED: i32 = -2;

/// What is closed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ways {
    /// The roles alone.
    Roles,
    /// The roles and the database.
    All,
}

/// Another sandbox, in whose database something is to be removed.
pub(super) struct Other {
    pub(super) database: String,
    pub(super) owner: String,
    /// Whether its owner had closed it.
    closed: bool,
    /// Whether its owner is kept out for the moment.
    barred: bool,
}

impl Other {
    pub(super) fn new(database: String, owner: String) -> Self {
        Self { database, owner, closed: false, barred: false }
    }

    /// Returns whether its owner is kept out for the moment.
    pub(super) fn is_barred(&self) -> bool {
        self.barred
    }
}

/// By which way sessions came.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Come {
    Anyhow,
    OverTcp,
}

impl Work<'_> {
    /// Takes every way in: roles and database in one transaction, then the sessions that are there. A session of this
    /// sandbox, or of another one that it gave a right, may hold the rows to be changed in an open or prepared
    /// transaction; such transactions are ended.
    pub(super) async fn close(&self) -> Result<(), EngineError> {
        let session = self.server.admin_session().await?;
        let mut attempt = 0;
        loop {
            attempt += 1;
            let taken = self.take_logins(&session, Ways::All);
            let taken = if attempt == 1 { taken.await } else { self.against_holders(&session, None, taken).await };
            match taken {
                Ok(()) => break,
                Err(error) if attempt < CLOSE_ATTEMPTS_MAX && is_contention(&error) => {
                    // Whoever holds the database's row keeps nobody's login open by it.
                    match self.take_logins(&session, Ways::Roles).await {
                        Err(error) if !is_contention(&error) => return Err(error),
                        Ok(()) | Err(_) => {}
                    }
                    self.terminate(&session).await?;
                    self.roll_back_prepared(&session).await?;
                }
                Err(error) => return Err(contended(error)),
            }
        }
        self.terminate(&session).await
    }

    async fn take_logins(&self, session: &AdminSession, ways: Ways) -> Result<(), EngineError> {
        let mut statements = vec![format!("SET LOCAL lock_timeout = {}", literal(CLOSE_LOCK_TIMEOUT))];
        for role in self.known_roles(session).await? {
            self.join(session, &role).await?;
            statements.push(format!("ALTER ROLE {} NOLOGIN", ident(&role)));
        }
        if let Some(found) = self.find_database(session).await? {
            if !self.is_its_own(&found.owner) {
                return Err(self.foreign_owner(&found.owner));
            }
            if ways == Ways::All && found.connection_limit != HALF_DROPPED {
                statements.push(format!("ALTER DATABASE {} CONNECTION LIMIT 0", ident(&self.spec.names.database)));
            }
        }
        // One message, and so one transaction.
        session.batch_execute(&statements.join("; ")).await.map_err(refused("close the sandbox", self.profile()))
    }

    /// Ends every session of the sandbox's roles anywhere, and of anybody in its database, as far as the admin may.
    pub(in crate::engine::postgres) async fn terminate(&self, session: &Client) -> Result<(), EngineError> {
        let names = &self.spec.names;
        self.terminate_of(session, &[&names.owner_role, &names.readonly_role], Some(&names.database), Come::Anyhow)
            .await
    }

    /// Ends every session of one role anywhere.
    pub(in crate::engine::postgres) async fn terminate_role(
        &self,
        session: &Client,
        role: &str,
    ) -> Result<(), EngineError> {
        self.terminate_of(session, &[role], None, Come::Anyhow).await
    }

    /// Ends the sessions of one role that came over TCP.
    pub(in crate::engine::postgres) async fn terminate_direct(
        &self,
        session: &Client,
        role: &str,
    ) -> Result<(), EngineError> {
        self.terminate_of(session, &[role], None, Come::OverTcp).await
    }

    async fn terminate_of(
        &self,
        session: &Client,
        roles: &[&str],
        database: Option<&str>,
        come: Come,
    ) -> Result<(), EngineError> {
        let failed = refused("end the sandbox's sessions", self.profile());
        let until = tokio::time::Instant::now() + TERMINATE_WAIT;
        let mut pause = TERMINATE_POLL;
        let filling = self.spec.names.filling_pattern();
        loop {
            let rows = session
                .query_typed(
                    "SELECT a.pid FROM pg_catalog.pg_stat_activity a \
                     WHERE (a.usename = ANY ($1) OR a.datname = $2 OR a.usename::text ~ $3) \
                     AND (a.client_addr IS NOT NULL OR NOT $4) \
                     AND a.pid <> pg_catalog.pg_backend_pid() AND a.backend_type IN ('client backend', 'walsender')",
                    &[
                        (&roles, Type::NAME_ARRAY),
                        (&database, Type::NAME),
                        (&filling, Type::TEXT),
                        (&(come == Come::OverTcp), Type::BOOL),
                    ],
                )
                .await
                .map_err(&failed)?;
            if rows.is_empty() {
                return Ok(());
            }
            let mut ours = false;
            for row in rows {
                let pid: i32 = row.get(0);
                match session.execute("SELECT pg_catalog.pg_terminate_backend($1)", &[&pid]).await {
                    Ok(_) => ours = true,
                    // a superuser's session, which an ordinary admin may not end: dropping reports it
                    Err(e) if e.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {}
                    Err(e) => return Err(failed(e)),
                }
            }
            if !ours || tokio::time::Instant::now() > until {
                return Ok(());
            }
            tokio::time::sleep(pause).await;
            pause = TERMINATE_POLL_MAX.min(pause * 2);
        }
    }

    /// Rolls prepared transactions in the database back. They must be rolled back in it, so it takes one connection.
    async fn roll_back_prepared(&self, session: &Client) -> Result<(), EngineError> {
        let failed = refused("roll a prepared transaction back", self.profile());
        let database = &self.spec.names.database;
        let rows = session
            .query("SELECT gid, owner::text FROM pg_catalog.pg_prepared_xacts WHERE database = $1", &[database])
            .await
            .map_err(&failed)?;
        if rows.is_empty() {
            return Ok(());
        }
        let inside = match self.server.session_in(database).await {
            Ok(inside) => inside,
            // closed already, or its owner has closed it
            Err(EngineError::Refused { .. } | EngineError::Auth { .. } | EngineError::Crowded { .. }) => {
                let sql = format!("ALTER DATABASE {} WITH ALLOW_CONNECTIONS true CONNECTION LIMIT 1", ident(database));
                self.execute(session, "enter the database", &sql).await?;
                self.server.session_in(database).await?
            }
            Err(error) => return Err(error),
        };
        for row in rows {
            let (gid, owner): (String, String) = (row.get(0), row.get(1));
            self.roll_back(&inside, &gid, &owner).await?;
        }
        Ok(())
    }

    /// Rolls one prepared transaction back, in its database.
    pub(super) async fn roll_back(&self, inside: &Client, gid: &str, owner: &str) -> Result<(), EngineError> {
        let failed = refused("roll a prepared transaction back", self.profile());
        if !self.info.superuser {
            inside.execute(format!("SET ROLE {}", ident(owner)).as_str(), &[]).await.map_err(&failed)?;
        }
        match inside.execute(format!("ROLLBACK PREPARED {}", literal(gid)).as_str(), &[]).await {
            Ok(_) => Ok(()),
            Err(e) if e.code() == Some(&SqlState::UNDEFINED_OBJECT) => Ok(()),
            Err(e) => Err(failed(e)),
        }
    }

    /// Removes what would make DROP DATABASE fail.
    pub(super) async fn clear(&self) -> Result<(), EngineError> {
        let session = self.server.admin_session().await?;
        let Some(found) = self.find_database(&session).await? else { return Ok(()) };
        if !self.is_its_own(&found.owner) {
            return Err(self.foreign_owner(&found.owner));
        }
        if found.connection_limit == HALF_DROPPED {
            return Ok(());
        }
        self.join(&session, &found.owner).await?;
        if found.is_template {
            let sql = format!("ALTER DATABASE {} IS_TEMPLATE false", ident(&self.spec.names.database));
            self.execute(&session, "make the database no template", &sql).await?;
        }
        self.roll_back_prepared(&session).await?;
        self.drop_slots(&session).await?;
        self.drop_subscriptions(&session).await
    }

    async fn drop_slots(&self, session: &Client) -> Result<(), EngineError> {
        let failed = refused("drop a replication slot", self.profile());
        let rows = session
            .query(
                "SELECT slot_name::text, active_pid FROM pg_catalog.pg_replication_slots WHERE database = $1",
                &[&self.spec.names.database],
            )
            .await
            .map_err(&failed)?;
        for row in rows {
            let (slot, pid): (String, Option<i32>) = (row.get(0), row.get(1));
            if let Some(pid) = pid {
                session.execute("SELECT pg_catalog.pg_terminate_backend($1)", &[&pid]).await.map_err(&failed)?;
            }
            match session.execute("SELECT pg_catalog.pg_drop_replication_slot($1)", &[&slot]).await {
                Ok(_) => {}
                Err(e) if e.code() == Some(&SqlState::UNDEFINED_OBJECT) => {}
                Err(e) => return Err(failed(e)),
            }
        }
        Ok(())
    }

    async fn drop_subscriptions(&self, session: &Client) -> Result<(), EngineError> {
        let failed = refused("drop a subscription", self.profile());
        let rows = session
            .query(
                "SELECT s.subname::text FROM pg_catalog.pg_subscription s \
                 JOIN pg_catalog.pg_database d ON d.oid = s.subdbid WHERE d.datname = $1",
                &[&self.spec.names.database],
            )
            .await
            .map_err(&failed)?;
        if rows.is_empty() {
            return Ok(());
        }
        let inside = self.server.session_in(&self.spec.names.database).await?;
        for row in rows {
            let name = ident(row.get(0));
            // without its slot it can be dropped even if the other server is gone
            for sql in [
                format!("ALTER SUBSCRIPTION {name} DISABLE"),
                format!("ALTER SUBSCRIPTION {name} SET (slot_name = NONE)"),
                format!("DROP SUBSCRIPTION {name}"),
            ] {
                inside.execute(sql.as_str(), &[]).await.map_err(&failed)?;
            }
        }
        Ok(())
    }

    pub(super) async fn drop_database(&self) -> Result<(), EngineError> {
        let session = self.server.admin_session().await?;
        let names = &self.spec.names;
        let Some(found) = self.find_database(&session).await? else { return Ok(()) };
        if !self.is_its_own(&found.owner) {
            return Err(self.foreign_owner(&found.owner));
        }
        self.join(&session, &found.owner).await?;
        let sql = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", ident(&names.database));
        let Err(error) = self.execute_whoever_holds(&session, None, "drop the database", &sql).await else {
            return Ok(());
        };
        let held = [SqlState::OBJECT_IN_USE, SqlState::INSUFFICIENT_PRIVILEGE];
        let sessions = self.sessions(&session).await?;
        if sessions > 0
            && let EngineError::Refused { sqlstate, .. } = &error
            && held.iter().any(|state| state.code() == sqlstate)
        {
            return Err(EngineError::Busy { what: format!("database `{}`", names.database), sessions });
        }
        Err(error)
    }

    /// Executes a statement that needs a sandbox's roles or database for itself. Any other sandbox can hold them: a
    /// grant to a role, or a setting of one's own role in a database, locks it until the transaction ends. Such
    /// transactions are ended; `inside` is the database of another sandbox where the statement runs.
    async fn execute_whoever_holds(
        &self,
        session: &Client,
        inside: Option<&str>,
        action: &'static str,
        sql: &str,
    ) -> Result<(), EngineError> {
        let patience = format!("SET lock_timeout = {}", literal(DROP_LOCK_TIMEOUT));
        self.execute(session, action, &patience).await?;
        let mut patience = Patience::begin();
        let mut attempt = 0;
        let outcome = loop {
            attempt += 1;
            let executed = self.execute(session, action, sql);
            let outcome = if attempt == 1 {
                self.attended(executed).await
            } else {
                self.against_holders(session, inside, executed).await
            };
            match outcome {
                Err(error) if patience.goes_on(&error, attempt, DROP_ATTEMPTS_MAX) => patience.pause().await,
                outcome => break outcome.map_err(contended),
            }
        };
        self.execute(session, action, "RESET lock_timeout").await?;
        outcome
    }

    /// Counts the sessions in the database.
    async fn sessions(&self, session: &Client) -> Result<u32, EngineError> {
        let row = session
            .query_one(
                "SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_activity WHERE datname = $1",
                &[&self.spec.names.database],
            )
            .await
            .map_err(refused("count sessions", self.profile()))?;
        Ok(u32::try_from(row.get::<_, i64>(0)).unwrap_or(u32::MAX))
    }

    /// Removes what the roles own and were granted in other databases, which others must have allowed them.
    ///
    /// In another sandbox's database its owner gets the objects. Anywhere else nobody does: what a sandbox has made,
    /// a view or a function for instance, would then run with the rights of a powerful owner.
    pub(super) async fn drop_owned(&self) -> Result<(), EngineError> {
        let session = self.server.admin_session().await?;
        for role in &self.known_roles(&session).await? {
            let Some(oid) = self.role_oid(&session, role).await? else { continue };
            self.join(&session, role).await?;
            self.owns_no_database(&session, role, oid).await?;
            let rows = session
                .query(
                    "SELECT DISTINCT d.datname::text, pg_catalog.pg_get_userbyid(d.datdba)::text \
                     FROM pg_catalog.pg_shdepend s LEFT JOIN pg_catalog.pg_database d ON d.oid = s.dbid \
                     WHERE s.refclassid = 'pg_catalog.pg_authid'::pg_catalog.regclass AND s.refobjid = $1",
                    &[&oid],
                )
                .await
                .map_err(refused("list what a role owns", self.profile()))?;
            let drop_owned = || ("drop what a role owns", format!("DROP OWNED BY {}", ident(role)));
            for row in rows {
                let (database, owner): (Option<String>, Option<String>) = (row.get(0), row.get(1));
                let (Some(database), Some(owner)) = (database, owner) else {
                    self.take_from(&session, None, role, drop_owned()).await?;
                    continue;
                };
                if !self.is_sandbox(&database, &owner) {
                    let inside = self.server.session_in(&database).await?;
                    self.take_from(&inside, None, role, drop_owned()).await?;
                    continue;
                }
                let mut other = Other::new(database, owner);
                let done = self.drop_owned_in(&session, role, &mut other).await;
                if other.barred {
                    self.unbar(&session, &other).await?;
                }
                done?;
            }
        }
        Ok(())
    }

    /// Gives another sandbox's owner what the role owns in its database, and drops the rest.
    async fn drop_owned_in(&self, session: &AdminSession, role: &str, other: &mut Other) -> Result<(), EngineError> {
        let inside = self.session_in_anothers(session, other).await?;
        self.join(&inside, &other.owner).await?;
        let reassign = format!("REASSIGN OWNED BY {} TO {}", ident(role), ident(&other.owner));
        self.take_from(&inside, Some(other), role, ("give away what a role owns", reassign)).await?;
        let drop_owned = format!("DROP OWNED BY {}", ident(role));
        self.take_from(&inside, Some(other), role, ("drop what a role owns", drop_owned)).await?;
        if other.closed {
            let sql = format!("ALTER DATABASE {} WITH ALLOW_CONNECTIONS false", ident(&other.database));
            self.execute_whoever_holds(session, None, "leave another sandbox as it was", &sql).await?;
        }
        Ok(())
    }

    /// Keeps another sandbox's owner out for as long as it takes to get in: who comes back again and again leaves no moment
    /// for it. What is limited so is set back by the owner's next call, should this one not come to it.
    pub(super) async fn bar(&self, session: &Client, other: &mut Other) -> Result<(), EngineError> {
        let sql = [
            format!("SET LOCAL lock_timeout = {}", literal(DROP_LOCK_TIMEOUT)),
            format!("ALTER ROLE {} CONNECTION LIMIT 0", ident(&other.owner)),
        ];
        other.barred = true;
        let barred = self.together(session, "keep another sandbox's owner out", &sql);
        match self.against_holders(session, None, barred).await {
            Err(error) if !is_contention(&error) => return Err(error),
            Ok(()) | Err(_) => {}
        }
        self.terminate_of(session, &[&other.owner], None, Come::Anyhow).await
    }

    /// Lets it in again, unless it is kept out for another reason.
    pub(super) async fn unbar(&self, session: &Client, other: &Other) -> Result<(), EngineError> {
        if self.server.managed().is_some_and(|managed| managed.is_held_off(&other.database).is_some()) {
            return Ok(());
        }
        let limit = self.server.settings().connection_limit;
        let sql = format!("ALTER ROLE {} CONNECTION LIMIT {limit}", ident(&other.owner));
        self.execute_whoever_holds(session, None, "let another sandbox's owner in again", &sql).await
    }

    /// Goes into another sandbox's database, although its owner has closed it.
    async fn session_in_anothers(
        &self,
        session: &AdminSession,
        other: &mut Other,
    ) -> Result<AdminSession, EngineError> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let database = other.database.as_str();
            let kept_out = match self.server.session_in(database).await {
                Ok(inside) => return Ok(inside),
                // Connections are not allowed, limited to none, or a right to them is taken away.
                Err(
                    error @ (EngineError::Refused { .. } | EngineError::Crowded { .. } | EngineError::Unsuited { .. }),
                ) => error,
                Err(error) => return Err(error),
            };
            // Its owner may close it again.
            if attempt == ENTER_ATTEMPTS_MAX {
                return Err(kept_out);
            }
            let row = session
                .query_typed_opt(
                    "SELECT datallowconn FROM pg_catalog.pg_database WHERE datname = $1",
                    &[(&database, Type::NAME)],
                )
                .await
                .map_err(refused("look at another sandbox", self.profile()))?;
            let Some(row) = row else { return Err(kept_out) };
            other.closed |= !row.get::<_, bool>(0);
            self.join(session, &other.owner).await?;
            let mut open = vec![
                format!("SET LOCAL lock_timeout = {}", literal(DROP_LOCK_TIMEOUT)),
                format!("ALTER DATABASE {} WITH ALLOW_CONNECTIONS true CONNECTION LIMIT -1", ident(database)),
            ];
            if !self.info.superuser {
                open.push(format!("GRANT CONNECT ON DATABASE {} TO CURRENT_USER", ident(database)));
            }
            if attempt > 1 {
                self.bar(session, other).await?;
            }
            let opened = self.together(session, "go into another sandbox", &open);
            match self.against_holders(session, None, opened).await {
                Err(error) if !is_contention(&error) => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
    }

    /// A database that a role owns beside its own was given to it by somebody, and is not ours to drop.
    async fn owns_no_database(&self, session: &Client, role: &str, oid: u32) -> Result<(), EngineError> {
        let row = session
            .query_opt("SELECT datname::text FROM pg_catalog.pg_database WHERE datdba = $1 LIMIT 1", &[&oid])
            .await
            .map_err(refused("list what a role owns", self.profile()))?;
        let Some(row) = row else { return Ok(()) };
        Err(EngineError::Refused {
            action: "remove the sandbox's role",
            sqlstate: SqlState::DEPENDENT_OBJECTS_STILL_EXIST.code().to_owned(),
            detail: format!("role `{role}` owns database `{}`", row.get::<_, String>(0)),
        })
    }

    /// Returns whether a database is a sandbox of this profile's, by its name and its owner's.
    pub(super) fn is_sandbox(&self, database: &str, owner: &str) -> bool {
        let prefix = &self.server.settings().prefix;
        database.strip_prefix(prefix.as_str()).is_some_and(|rest| rest.starts_with('_'))
            && owner == format!("{database}_role")
    }

    pub(super) async fn drop_roles(&self) -> Result<(), EngineError> {
        let session = self.server.admin_session().await?;
        for role in self.known_roles(&session).await?.iter().rev() {
            self.join(&session, role).await?;
            self.terminate(&session).await?;
            let sql = format!("DROP ROLE IF EXISTS {}", ident(role));
            self.execute_whoever_holds(&session, None, "drop a role", &sql).await?;
        }
        Ok(())
    }
}
