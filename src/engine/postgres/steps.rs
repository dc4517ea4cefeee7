//! The steps that make and remove a sandbox, and how each is taken back.
//!
//! Every step may find its work done. A database is closed to everybody from its first moment until one
//! transaction has taken PUBLIC's rights away; a sandbox is removed by closing it first, which is quick, and
//! dropping it later, which is not. What the caller's SQL has left behind may resist, and does not succeed.

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::error::SqlState;

use super::admin::{AdminSession, Login, ident, literal, refused};
use super::extensions;
use super::scram;
use super::server::PostgresServer;
use super::{Credentials, names};
use crate::engine::{DeleteSteps, EngineError, SandboxSpec, ServerInfo, Step};
use crate::model::{Secret, Timestamp};

const CREATE_ROLES: Step = Step { name: "create-roles", label: "creating the roles" };
const CREATE_DATABASE: Step = Step { name: "create-database", label: "creating the database" };
const PREPARE_DATABASE: Step = Step { name: "prepare-database", label: "preparing the database" };
const OPEN_DATABASE: Step = Step { name: "open-database", label: "opening the database to its roles" };
const PREPARE_OWNER: Step = Step { name: "prepare-owner", label: "preparing the owner's and the reader's rights" };
const CLOSE: Step = Step { name: "close", label: "closing the database" };
const CLEAR: Step = Step { name: "clear", label: "removing what would hold the database" };
const DROP_DATABASE: Step = Step { name: "drop-database", label: "dropping the database" };
const DROP_OWNED: Step = Step { name: "drop-owned", label: "removing what the roles own elsewhere" };
const DROP_ROLES: Step = Step { name: "drop-roles", label: "dropping the roles" };

/// How long a change of roles or database waits for a lock before the sessions that hold it are ended.
const CLOSE_LOCK_TIMEOUT: &str = "250ms";
/// How often closing is tried against sessions that come back.
const CLOSE_ATTEMPTS_MAX: u32 = 12;
/// How long ended sessions are given to go away.
const TERMINATE_WAIT: Duration = Duration::from_secs(3);
const TERMINATE_POLL: Duration = Duration::from_millis(5);
/// What `datconnlimit` is while a database is half dropped; it can then only be dropped.
const HALF_DROPPED: i32 = -2;

/// Returns the steps that make a sandbox.
pub(super) fn create_steps() -> Vec<Step> {
    vec![CREATE_ROLES, CREATE_DATABASE, PREPARE_DATABASE, OPEN_DATABASE, PREPARE_OWNER]
}

/// Returns the steps that remove one.
pub(super) fn delete_steps() -> DeleteSteps {
    DeleteSteps { foreground: vec![CLOSE], background: vec![CLEAR, DROP_DATABASE, DROP_OWNED, DROP_ROLES] }
}

/// One sandbox on its server, about to be worked on.
pub(super) struct Work<'a> {
    server: &'a Arc<PostgresServer>,
    spec: &'a SandboxSpec,
    info: ServerInfo,
}

/// What the catalogue says of a sandbox's database.
struct FoundDatabase {
    owner: String,
    connection_limit: i32,
    is_template: bool,
}

impl<'a> Work<'a> {
    /// Checks the names and finds the server.
    pub(super) async fn new(server: &'a Arc<PostgresServer>, spec: &'a SandboxSpec) -> Result<Self, EngineError> {
        names::check(&server.settings().prefix, spec)?;
        let info = server.info().await?;
        Ok(Self { server, spec, info })
    }

    /// Does one step.
    pub(super) async fn run(&self, step: Step) -> Result<(), EngineError> {
        match step.name {
            name if name == CREATE_ROLES.name => self.create_roles().await,
            name if name == CREATE_DATABASE.name => self.create_database().await,
            name if name == PREPARE_DATABASE.name => self.prepare_database().await,
            name if name == OPEN_DATABASE.name => self.open_database().await,
            name if name == PREPARE_OWNER.name => self.prepare_owner().await,
            name if name == CLOSE.name => self.close().await,
            name if name == CLEAR.name => self.clear().await,
            name if name == DROP_DATABASE.name => self.drop_database().await,
            name if name == DROP_OWNED.name => self.drop_owned().await,
            name if name == DROP_ROLES.name => self.drop_roles().await,
            other => Err(EngineError::Unsupported(format!("there is no step `{}`", other.escape_default()))),
        }
    }

    /// Takes one create step back.
    pub(super) async fn undo(&self, step: Step) -> Result<(), EngineError> {
        match step.name {
            name if name == CREATE_ROLES.name => {
                self.drop_owned().await?;
                self.drop_roles().await
            }
            name if name == CREATE_DATABASE.name => {
                self.close().await?;
                self.clear().await?;
                self.drop_database().await
            }
            name if name == OPEN_DATABASE.name => self.close().await,
            // lies inside the database and goes with it
            name if name == PREPARE_DATABASE.name || name == PREPARE_OWNER.name => Ok(()),
            other => Err(EngineError::Unsupported(format!("step `{}` cannot be taken back", other.escape_default()))),
        }
    }

    async fn create_roles(&self) -> Result<(), EngineError> {
        let session = self.server.admin_session().await?;
        let settings = self.server.settings();
        let limit = settings.connection_limit;
        for (role, password, reader) in self.roles() {
            let found = self.role_oid(&session, role).await?.is_some();
            let login = login_options(limit, password, self.spec.expires_at);
            // 15 lets nobody but a superuser even mention some attributes in ALTER ROLE
            let sql = if found {
                format!("ALTER ROLE {} WITH LOGIN {login}", ident(role))
            } else {
                format!(
                    "CREATE ROLE {} WITH LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS {login}",
                    ident(role)
                )
            };
            self.execute(&session, "create a role", &sql).await?;
            self.join(&session, role).await?;
            if self.info.superuser {
                self.set_role_limits(&session, role, reader).await?;
            }
        }
        Ok(())
    }

    /// Sets what only a superuser can, and the role itself cannot change back: temporary files, and for the reader
    /// that row security hides nothing. The statement timeout is a hint.
    async fn set_role_limits(&self, session: &AdminSession, role: &str, reader: bool) -> Result<(), EngineError> {
        let settings = self.server.settings();
        let role = ident(role);
        if let Some(kb) = settings.temp_file_limit_kb {
            let sql = format!("ALTER ROLE {role} SET temp_file_limit = {}", literal(&format!("{kb}kB")));
            self.execute(session, "limit a role's temporary files", &sql).await?;
        }
        if let Some(ms) = settings.statement_timeout_ms {
            let sql = format!("ALTER ROLE {role} SET statement_timeout = {}", literal(&format!("{ms}ms")));
            self.execute(session, "limit a role's statements", &sql).await?;
        }
        if reader {
            self.execute(session, "let the reader see every row", &format!("ALTER ROLE {role} BYPASSRLS")).await?;
        }
        Ok(())
    }

    /// Makes an admin that is no superuser a member of a sandbox role: it could neither give it a database nor
    /// drop what it owns otherwise. A role of 15 can throw the admin out again, so this is repeated before use.
    pub(super) async fn join(&self, session: &AdminSession, role: &str) -> Result<(), EngineError> {
        if self.info.superuser {
            return Ok(());
        }
        let failed = refused("make the admin a member of the sandbox's role", self.profile());
        let check = if self.info.major >= 16 {
            "SELECT pg_catalog.pg_has_role(current_user, oid, 'USAGE') AND pg_catalog.pg_has_role(current_user, oid, 'SET') \
             FROM pg_catalog.pg_roles WHERE rolname = $1"
        } else {
            "SELECT pg_catalog.pg_has_role(current_user, oid, 'USAGE') FROM pg_catalog.pg_roles WHERE rolname = $1"
        };
        let member = session.query_opt(check, &[&role]).await.map_err(&failed)?;
        if member.is_none_or(|row| row.get(0)) {
            return Ok(());
        }
        let options = if self.info.major >= 16 { " WITH INHERIT TRUE, SET TRUE" } else { "" };
        let sql = format!("GRANT {} TO CURRENT_USER{options}", ident(role));
        session.execute(sql.as_str(), &[]).await.map(drop).map_err(&failed)
    }

    async fn create_database(&self) -> Result<(), EngineError> {
        let session = self.server.admin_session().await?;
        let names = &self.spec.names;
        if let Some(found) = self.find_database(&session).await? {
            return if found.owner == names.owner_role { Ok(()) } else { Err(self.foreign_owner(&found.owner)) };
        }
        let closed = if self.info.superuser { "CONNECTION LIMIT 0" } else { "ALLOW_CONNECTIONS false" };
        let sql = format!(
            "CREATE DATABASE {} OWNER {} TEMPLATE template0{} {closed}",
            ident(&names.database),
            ident(&names.owner_role),
            self.encoding(&session).await?
        );
        self.execute(&session, "create the database", &sql).await
    }

    /// A server whose template is not in UTF-8 gets databases that are, with the one locale that fits every encoding.
    async fn encoding(&self, session: &AdminSession) -> Result<&'static str, EngineError> {
        let row = session
            .query_one(
                "SELECT pg_catalog.pg_encoding_to_char(encoding) = 'UTF8' FROM pg_catalog.pg_database \
                 WHERE datname = 'template0'",
                &[],
            )
            .await
            .map_err(refused("describe template0", self.profile()))?;
        Ok(match (row.get::<_, bool>(0), self.info.major >= 15) {
            (true, _) => "",
            (false, true) => " ENCODING 'UTF8' LOCALE_PROVIDER libc LC_COLLATE 'C' LC_CTYPE 'C'",
            (false, false) => " ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'",
        })
    }

    /// Does the admin's part inside the database, while nobody else can enter it.
    async fn prepare_database(&self) -> Result<(), EngineError> {
        let session = self.server.admin_session().await?;
        let plan = extensions::plan(&session, self.profile(), &self.spec.extensions, self.info.superuser).await?;
        // before 15 everybody may create in `public`, the reader as well
        let public = self.info.superuser && self.info.major < 15;
        if plan.by_admin.is_empty() && !public {
            return Ok(());
        }
        let inside = self.server.session_in(&self.spec.names.database).await?;
        if public {
            let owner = ident(&self.spec.names.owner_role);
            self.execute(&inside, "give schema `public` away", &format!("ALTER SCHEMA public OWNER TO {owner}"))
                .await?;
            self.execute(&inside, "close schema `public`", "REVOKE CREATE ON SCHEMA public FROM PUBLIC").await?;
        }
        for extension in &plan.by_admin {
            self.execute(&inside, "install an extension", &extension.sql()).await?;
        }
        Ok(())
    }

    async fn open_database(&self) -> Result<(), EngineError> {
        let mut session = self.server.admin_session().await?;
        for (role, ..) in self.roles() {
            self.join(&session, role).await?;
        }
        let names = &self.spec.names;
        let failed = refused("open the database to its roles", self.profile());
        let database = ident(&names.database);
        let roles = format!("{}, {}", ident(&names.owner_role), ident(&names.readonly_role));
        let transaction = session.transaction().await.map_err(&failed)?;
        let mut statements = Vec::new();
        if !self.info.superuser {
            // before PUBLIC loses it, which is how the admin had it
            statements.push(format!("GRANT CONNECT ON DATABASE {database} TO CURRENT_USER"));
        }
        statements.push(format!("REVOKE ALL ON DATABASE {database} FROM PUBLIC"));
        statements.push(format!("GRANT CONNECT ON DATABASE {database} TO {roles}"));
        statements.push(format!("ALTER DATABASE {database} WITH ALLOW_CONNECTIONS true CONNECTION LIMIT -1"));
        for sql in statements {
            transaction.execute(sql.as_str(), &[]).await.map_err(&failed)?;
        }
        // a REVOKE that could not revoke says so in a mere warning
        let row = transaction
            .query_one(
                "SELECT pg_catalog.has_database_privilege('public', $1::text, 'CONNECT, TEMPORARY, CREATE'), \
                 pg_catalog.has_database_privilege($2::name, $1::text, 'CONNECT'), \
                 pg_catalog.has_database_privilege($3::name, $1::text, 'CONNECT'), \
                 pg_catalog.has_database_privilege($3::name, $1::text, 'TEMPORARY, CREATE')",
                &[&names.database, &names.owner_role, &names.readonly_role],
            )
            .await
            .map_err(&failed)?;
        let (public, owner, reader, reader_more): (bool, bool, bool, bool) =
            (row.get(0), row.get(1), row.get(2), row.get(3));
        if public || !owner || !reader || reader_more {
            return Err(EngineError::Refused {
                action: "open the database to its roles",
                sqlstate: SqlState::INSUFFICIENT_PRIVILEGE.code().to_owned(),
                detail: "its rights are not as they were set; it stays closed".to_owned(),
            });
        }
        transaction.commit().await.map_err(&failed)
    }

    /// Does the owner's part: what the reader may see of all that the owner will make, and the owner's extensions.
    async fn prepare_owner(&self) -> Result<(), EngineError> {
        let plan = {
            let session = self.server.admin_session().await?;
            extensions::plan(&session, self.profile(), &self.spec.extensions, self.info.superuser).await?
        };
        let session = self.owner_session().await?;
        let reader = ident(&self.spec.names.readonly_role);
        let mut statements = vec![
            format!("ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO {reader}"),
            format!("ALTER DEFAULT PRIVILEGES GRANT SELECT ON SEQUENCES TO {reader}"),
            format!("ALTER DEFAULT PRIVILEGES GRANT USAGE ON SCHEMAS TO {reader}"),
        ];
        if self.info.major >= 15 || self.info.superuser {
            statements.push(format!("GRANT USAGE ON SCHEMA public TO {reader}"));
        }
        for sql in &statements {
            self.execute(&session, "set the reader's rights", sql).await?;
        }
        for extension in &plan.by_owner {
            self.execute(&session, "install an extension", &extension.sql()).await?;
        }
        Ok(())
    }

    async fn owner_session(&self) -> Result<AdminSession, EngineError> {
        let reach = self.server.reach().await?;
        let credentials =
            Credentials { user: self.spec.names.owner_role.clone(), password: Some(self.spec.owner_password.clone()) };
        let login = Login {
            endpoint: &reach.endpoint,
            credentials: &credentials,
            database: &self.spec.names.database,
            timeout: reach.connect_timeout,
        };
        let opened = AdminSession::open(&login, Some(self.info.major)).await;
        opened.map_err(|e| e.within(self.profile(), &credentials.user))
    }

    /// Takes every way in: roles and database in one transaction, then the sessions that are there. A session may
    /// hold the rows to be changed in an open or prepared transaction; such transactions are ended first.
    pub(super) async fn close(&self) -> Result<(), EngineError> {
        let mut session = self.server.admin_session().await?;
        let mut attempt = 0;
        loop {
            attempt += 1;
            match self.take_logins(&mut session).await {
                Ok(()) => break,
                Err(error) if attempt < CLOSE_ATTEMPTS_MAX && is_contention(&error) => {
                    self.terminate(&session).await?;
                    self.roll_back_prepared(&session).await?;
                }
                Err(error) => return Err(error),
            }
        }
        self.terminate(&session).await
    }

    async fn take_logins(&self, session: &mut AdminSession) -> Result<(), EngineError> {
        let mut statements = Vec::new();
        for (role, ..) in self.roles() {
            if self.role_oid(session, role).await?.is_some() {
                self.join(session, role).await?;
                statements.push(format!("ALTER ROLE {} NOLOGIN", ident(role)));
            }
        }
        if let Some(found) = self.find_database(session).await? {
            if found.owner != self.spec.names.owner_role {
                return Err(self.foreign_owner(&found.owner));
            }
            if found.connection_limit != HALF_DROPPED {
                statements.push(format!("ALTER DATABASE {} CONNECTION LIMIT 0", ident(&self.spec.names.database)));
            }
        }
        let failed = refused("close the sandbox", self.profile());
        let transaction = session.transaction().await.map_err(&failed)?;
        let limit = format!("SET LOCAL lock_timeout = {}", literal(CLOSE_LOCK_TIMEOUT));
        transaction.execute(limit.as_str(), &[]).await.map_err(&failed)?;
        for sql in statements {
            transaction.execute(sql.as_str(), &[]).await.map_err(&failed)?;
        }
        transaction.commit().await.map_err(&failed)
    }

    /// Ends every session of the sandbox's roles anywhere, and of anybody in its database, as far as the admin may.
    pub(super) async fn terminate(&self, session: &AdminSession) -> Result<(), EngineError> {
        let names = &self.spec.names;
        let failed = refused("end the sandbox's sessions", self.profile());
        let until = tokio::time::Instant::now() + TERMINATE_WAIT;
        loop {
            let rows = session
                .query(
                    "SELECT a.pid FROM pg_catalog.pg_stat_activity a \
                     WHERE (a.usename = $1 OR a.usename = $2 OR a.datname = $3) AND a.pid <> pg_catalog.pg_backend_pid() \
                     AND a.backend_type IN ('client backend', 'walsender')",
                    &[&names.owner_role, &names.readonly_role, &names.database],
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
            tokio::time::sleep(TERMINATE_POLL).await;
        }
    }

    /// Rolls prepared transactions in the database back. They must be rolled back in it, so it takes one connection.
    async fn roll_back_prepared(&self, session: &AdminSession) -> Result<(), EngineError> {
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
            Err(EngineError::Refused { .. } | EngineError::Auth { .. }) => {
                let sql = format!("ALTER DATABASE {} WITH ALLOW_CONNECTIONS true CONNECTION LIMIT 1", ident(database));
                self.execute(session, "enter the database", &sql).await?;
                self.server.session_in(database).await?
            }
            Err(error) => return Err(error),
        };
        for row in rows {
            let (gid, owner): (String, String) = (row.get(0), row.get(1));
            if !self.info.superuser {
                inside.execute(format!("SET ROLE {}", ident(&owner)).as_str(), &[]).await.map_err(&failed)?;
            }
            match inside.execute(format!("ROLLBACK PREPARED {}", literal(&gid)).as_str(), &[]).await {
                Ok(_) => {}
                Err(e) if e.code() == Some(&SqlState::UNDEFINED_OBJECT) => {}
                Err(e) => return Err(failed(e)),
            }
        }
        Ok(())
    }

    /// Removes what would make DROP DATABASE fail.
    async fn clear(&self) -> Result<(), EngineError> {
        let session = self.server.admin_session().await?;
        let Some(found) = self.find_database(&session).await? else { return Ok(()) };
        if found.owner != self.spec.names.owner_role {
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

    async fn drop_slots(&self, session: &AdminSession) -> Result<(), EngineError> {
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

    async fn drop_subscriptions(&self, session: &AdminSession) -> Result<(), EngineError> {
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

    async fn drop_database(&self) -> Result<(), EngineError> {
        let session = self.server.admin_session().await?;
        let names = &self.spec.names;
        let Some(found) = self.find_database(&session).await? else { return Ok(()) };
        if found.owner != names.owner_role {
            return Err(self.foreign_owner(&found.owner));
        }
        self.join(&session, &names.owner_role).await?;
        let sql = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", ident(&names.database));
        let Err(error) = session.execute(sql.as_str(), &[]).await else { return Ok(()) };
        let held = [SqlState::OBJECT_IN_USE, SqlState::INSUFFICIENT_PRIVILEGE];
        let sessions = self.sessions(&session).await?;
        if sessions > 0 && error.code().is_some_and(|c| held.contains(c)) {
            return Err(EngineError::Busy { what: format!("database `{}`", names.database), sessions });
        }
        Err(refused("drop the database", self.profile())(error))
    }

    /// Counts the sessions in the database.
    async fn sessions(&self, session: &AdminSession) -> Result<u32, EngineError> {
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
    async fn drop_owned(&self) -> Result<(), EngineError> {
        let session = self.server.admin_session().await?;
        for (role, ..) in self.roles() {
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
            let drop_owned = format!("DROP OWNED BY {}", ident(role));
            for row in rows {
                let (database, owner): (Option<String>, Option<String>) = (row.get(0), row.get(1));
                let (Some(database), Some(owner)) = (database, owner) else {
                    self.execute(&session, "drop what a role owns", &drop_owned).await?;
                    continue;
                };
                let inside = self.server.session_in(&database).await?;
                if self.is_sandbox(&database, &owner) {
                    self.join(&inside, &owner).await?;
                    let sql = format!("REASSIGN OWNED BY {} TO {}", ident(role), ident(&owner));
                    self.execute(&inside, "give away what a role owns", &sql).await?;
                }
                self.execute(&inside, "drop what a role owns", &drop_owned).await?;
            }
        }
        Ok(())
    }

    /// A database that a role owns beside its own was given to it by somebody, and is not ours to drop.
    async fn owns_no_database(&self, session: &AdminSession, role: &str, oid: u32) -> Result<(), EngineError> {
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
    fn is_sandbox(&self, database: &str, owner: &str) -> bool {
        let prefix = &self.server.settings().prefix;
        database.strip_prefix(prefix.as_str()).is_some_and(|rest| rest.starts_with('_'))
            && owner == format!("{database}_role")
    }

    async fn drop_roles(&self) -> Result<(), EngineError> {
        let session = self.server.admin_session().await?;
        for (role, ..) in self.roles().into_iter().rev() {
            if self.role_oid(&session, role).await?.is_some() {
                self.join(&session, role).await?;
                self.terminate(&session).await?;
                let sql = format!("DROP ROLE IF EXISTS {}", ident(role));
                self.execute(&session, "drop a role", &sql).await?;
            }
        }
        Ok(())
    }

    /// Returns the owner and the reader: name, password, and whether it is the reader.
    pub(super) fn roles(&self) -> [(&'a str, &'a Secret, bool); 2] {
        let spec = self.spec;
        [
            (spec.names.owner_role.as_str(), &spec.owner_password, false),
            (spec.names.readonly_role.as_str(), &spec.readonly_password, true),
        ]
    }

    pub(super) fn profile(&self) -> &'a str {
        &self.server.settings().profile
    }

    pub(super) async fn role_oid(&self, session: &AdminSession, role: &str) -> Result<Option<u32>, EngineError> {
        let row = session
            .query_opt("SELECT oid FROM pg_catalog.pg_roles WHERE rolname = $1", &[&role])
            .await
            .map_err(refused("find a role", self.profile()))?;
        Ok(row.map(|row| row.get(0)))
    }

    async fn find_database(&self, session: &AdminSession) -> Result<Option<FoundDatabase>, EngineError> {
        let row = session
            .query_opt(
                "SELECT pg_catalog.pg_get_userbyid(datdba)::text, datconnlimit, datistemplate \
                 FROM pg_catalog.pg_database WHERE datname = $1",
                &[&self.spec.names.database],
            )
            .await
            .map_err(refused("find the database", self.profile()))?;
        Ok(row.map(|row| FoundDatabase { owner: row.get(0), connection_limit: row.get(1), is_template: row.get(2) }))
    }

    fn foreign_owner(&self, owner: &str) -> EngineError {
        EngineError::Refused {
            action: "touch a database of another owner",
            sqlstate: SqlState::INSUFFICIENT_PRIVILEGE.code().to_owned(),
            detail: format!("database `{}` belongs to `{owner}`", self.spec.names.database),
        }
    }

    pub(super) async fn execute(
        &self,
        session: &AdminSession,
        action: &'static str,
        sql: &str,
    ) -> Result<(), EngineError> {
        session.execute(sql, &[]).await.map(drop).map_err(refused(action, self.profile()))
    }
}

/// Returns what a role's login is limited by: a verifier instead of a password, sessions, and time.
pub(super) fn login_options(connection_limit: u32, password: &Secret, until: Timestamp) -> String {
    format!(
        "CONNECTION LIMIT {connection_limit} PASSWORD {} VALID UNTIL {}",
        literal(&scram::verifier(password)),
        literal(&until.to_string())
    )
}

/// Returns whether the sandbox's own open transactions can be the reason.
pub(super) fn is_contention(error: &EngineError) -> bool {
    match error {
        // lock_not_available, deadlock_detected, and internal_error for "tuple concurrently updated"
        EngineError::Refused { sqlstate, .. } => matches!(sqlstate.as_str(), "55P03" | "40P01" | "XX000"),
        EngineError::Unreachable { .. }
        | EngineError::Auth { .. }
        | EngineError::Busy { .. }
        | EngineError::Unsupported(_)
        | EngineError::Known(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_statement_holds_a_password() {
        let options = login_options(5, &Secret::new("hunter2"), Timestamp::from_unix_ms(0));
        assert!(!options.contains("hunter2"), "{options}");
        assert!(options.starts_with("CONNECTION LIMIT 5 PASSWORD 'SCRAM-SHA-256$4096:"), "{options}");
        assert!(options.ends_with("VALID UNTIL '1970-01-01T00:00:00.000Z'"), "{options}");
    }

    #[test]
    fn every_step_has_a_name_of_its_own() {
        let delete = delete_steps();
        let mut names: Vec<_> =
            create_steps().iter().chain(&delete.foreground).chain(&delete.background).map(|s| s.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
