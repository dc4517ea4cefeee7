//! Makes a sandbox, each step so that it may be done again.
//!
//! A database is closed to everybody from its first moment until one transaction has taken PUBLIC's rights away.

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::{Work, login_options};
use crate::engine::EngineError;
use crate::engine::postgres::admin::{AdminSession, ident, literal, refused};
use crate::engine::postgres::{Credentials, access, extensions};

impl Work<'_> {
    pub(super) async fn create_roles(&self) -> Result<(), EngineError> {
        let mut session = self.server.admin_session().await?;
        let failed = refused("create the roles", self.profile());
        // one transaction, so that a durable server waits for its disk once
        let transaction = session.transaction().await.map_err(&failed)?;
        let session = transaction.client();
        let limit = self.server.settings().connection_limit;
        for (role, password, reader) in self.roles() {
            let found = self.role_oid(session, role).await?.is_some();
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
            self.execute(session, "create a role", &sql).await?;
            self.join(session, role).await?;
            if self.info.superuser {
                self.set_role_limits(session, role, reader).await?;
            }
        }
        transaction.commit().await.map_err(&failed)
    }

    /// Sets what only a superuser can, and the role itself cannot change back: temporary files, and for the reader
    /// that row security hides nothing. The statement timeout is a hint.
    async fn set_role_limits(&self, session: &Client, role: &str, reader: bool) -> Result<(), EngineError> {
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

    pub(super) async fn create_database(&self) -> Result<(), EngineError> {
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
    async fn encoding(&self, session: &Client) -> Result<&'static str, EngineError> {
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
    pub(super) async fn prepare_database(&self) -> Result<(), EngineError> {
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

    pub(super) async fn open_database(&self) -> Result<(), EngineError> {
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
    pub(super) async fn prepare_owner(&self) -> Result<(), EngineError> {
        let plan = {
            let session = self.server.admin_session().await?;
            extensions::plan(&session, self.profile(), &self.spec.extensions, self.info.superuser).await?
        };
        let mut session = self.owner_session().await?;
        let failed = refused("set the reader's rights", self.profile());
        let transaction = session.transaction().await.map_err(&failed)?;
        let session = transaction.client();
        let reader = ident(&self.spec.names.readonly_role);
        let mut statements = access::reads_to_come(&reader).to_vec();
        if self.info.major >= 15 || self.info.superuser {
            statements.push(format!("GRANT USAGE ON SCHEMA public TO {reader}"));
        }
        for sql in &statements {
            self.execute(session, "set the reader's rights", sql).await?;
        }
        for extension in &plan.by_owner {
            self.execute(session, "install an extension", &extension.sql()).await?;
        }
        transaction.commit().await.map_err(&failed)
    }

    async fn owner_session(&self) -> Result<AdminSession, EngineError> {
        let reach = self.server.reach().await?;
        let credentials =
            Credentials { user: self.spec.names.owner_role.clone(), password: Some(self.spec.owner_password.clone()) };
        let database = &self.spec.names.database;
        access::log_in_with_room(&reach, &credentials, database, self.info.major)
            .await
            .map_err(|e| e.within(self.profile(), &credentials.user))
    }
}
