//! Makes a sandbox, each step so that it may be done again.
//!
//! A database is closed to everybody from its first moment until one transaction has taken PUBLIC's rights away.

use futures_util::future::try_join;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Transaction};

use super::Work;
use super::guard::lasting_later;
use crate::engine::postgres::admin::{AdminSession, Login, ident, literal, refused};
use crate::engine::postgres::{Credentials, access, dump, extensions, scram};
use crate::engine::{Contents, EngineError};
use crate::model::SandboxKind;

impl Work<'_> {
    /// Makes the roles, which cannot log in before they have passwords. The source of a copy is read from here on.
    pub(super) async fn create_roles(&self) -> Result<(), EngineError> {
        let Contents::Clone(job) = &self.spec.contents else { return self.make_roles().await };
        // Neither is left half-way: what was sent may still take effect.
        let (made, begun) = tokio::join!(self.make_roles(), dump::begin(self.server, self.spec, job));
        made.and(begun)
    }

    async fn make_roles(&self) -> Result<(), EngineError> {
        let session = self.server.admin_session().await?;
        let known = self.known_roles(&session).await?;
        // Who is in a copy before it is given away would be in the source's; a template is nobody's to enter.
        let login = match (self.spec.kind, &self.spec.contents) {
            (SandboxKind::Sandbox, Contents::Empty | Contents::Clone(_)) | (_, Contents::Restore(_)) => "LOGIN",
            (SandboxKind::Template, _) | (_, Contents::Copy { .. }) => "NOLOGIN",
        };
        let options = format!(
            "CONNECTION LIMIT {} VALID UNTIL {}",
            self.server.settings().connection_limit,
            literal(&self.spec.expires_at.to_string())
        );
        // Who owns the database has to be there when it is made, and that waits for the disk: for these roles as well.
        let mut statements: Vec<String> = known.is_empty().then(lasting_later).into_iter().collect();
        for (role, _, reader) in self.roles() {
            // 15 lets nobody but a superuser even mention some attributes in ALTER ROLE
            if known.iter().any(|known| known == role) {
                self.join(&session, role).await?;
                statements.push(format!("ALTER ROLE {} WITH {login} {options}", ident(role)));
                statements.extend(reader.then(|| self.keeping_out(role, true)).flatten());
            } else {
                statements.push(format!(
                    "CREATE ROLE {} WITH {login} NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS {options}",
                    ident(role)
                ));
                statements.extend((!self.info.superuser).then(|| self.membership(role)));
            }
            if self.info.superuser {
                statements.extend(self.role_limits(role, reader));
            }
        }
        self.together(&session, "create the roles", &statements).await
    }

    /// Returns what only a superuser can set, and the role itself cannot change back: temporary files, and for the
    /// reader that row security hides nothing. The statement timeout is a hint.
    pub(super) fn role_limits(&self, role: &str, reader: bool) -> Vec<String> {
        let settings = self.server.settings();
        let role = ident(role);
        let files = settings
            .temp_file_limit_kb
            .map(|kb| format!("ALTER ROLE {role} SET temp_file_limit = {}", literal(&format!("{kb}kB"))));
        let time = settings
            .statement_timeout_ms
            .map(|ms| format!("ALTER ROLE {role} SET statement_timeout = {}", literal(&format!("{ms}ms"))));
        let rows = reader.then(|| format!("ALTER ROLE {role} BYPASSRLS"));
        files.into_iter().chain(time).chain(rows).collect()
    }

    /// Gives the roles their passwords: verifiers, which are made while others use the processor.
    pub(super) async fn set_passwords(&self, session: &Client) -> Result<(), EngineError> {
        let passwords = [self.spec.owner_password.clone(), self.spec.readonly_password.clone()];
        let verifiers = tokio::task::spawn_blocking(move || passwords.map(|password| scram::verifier(&password)));
        let verifiers =
            verifiers.await.map_err(|error| EngineError::Unsupported(format!("no verifier was made: {error}")))?;
        let statements: Vec<String> = self
            .roles()
            .iter()
            .zip(verifiers)
            .map(|((role, ..), verifier)| format!("ALTER ROLE {} PASSWORD {}", ident(role), literal(&verifier)))
            .collect();
        self.together(session, "set the roles' passwords", &statements).await
    }

    /// Makes the database, and gives the roles their passwords meanwhile: both take the server some time.
    pub(super) async fn create_database(&self) -> Result<(), EngineError> {
        let session = self.server.admin_session().await?;
        // Only if there is one at once: who holds a session and waits for another could wait for a twin of its own.
        let Some(beside) = self.server.second_admin_session().await? else {
            self.make_database(&session).await?;
            return self.set_passwords(&session).await;
        };
        let (made, set) = tokio::join!(self.make_database(&session), self.set_passwords(&beside));
        made.and(set)
    }

    async fn make_database(&self, session: &Client) -> Result<(), EngineError> {
        let names = &self.spec.names;
        let (found, encoding) = try_join(self.find_database(session), self.encoding(session)).await?;
        if let Some(found) = found {
            return if self.is_its_own(&found.owner) { Ok(()) } else { Err(self.foreign_owner(&found.owner)) };
        }
        let closed = if self.info.superuser { "CONNECTION LIMIT 0" } else { "ALLOW_CONNECTIONS false" };
        let owner = if self.is_filled() { &names.readonly_role } else { &names.owner_role };
        let sql = format!(
            "CREATE DATABASE {} OWNER {} TEMPLATE template0{} {closed}",
            ident(&names.database),
            ident(owner),
            encoding
        );
        session.batch_execute(&sql).await.map_err(refused("create the database", self.profile()))
    }

    /// Returns whether it is filled from elsewhere: code from there runs in it before it is its owner's.
    fn is_filled(&self) -> bool {
        self.brought().is_some()
    }

    /// A server whose template is not in UTF-8 gets databases that are, with the one locale that fits every encoding.
    async fn encoding(&self, session: &Client) -> Result<&'static str, EngineError> {
        let row = session
            .query_typed_one(
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
        // before 15 everybody may create in `public`, the reader as well
        let copy = matches!(self.spec.contents, Contents::Copy { .. });
        let public = !copy && self.info.superuser && self.info.major < 15;
        let plan = self.extensions().await?;
        let copied = self.copied_extensions().await?;
        if plan.by_admin.is_empty() && copied.is_empty() && !public {
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
        for (extension, schema) in &copied {
            let owner = ident(&self.spec.names.owner_role);
            let schema_sql = format!("CREATE SCHEMA IF NOT EXISTS {} AUTHORIZATION {owner}", ident(schema));
            if schema != "pg_catalog" && schema != "public" {
                self.execute(&inside, "make an extension's schema", &schema_sql).await?;
            }
            self.execute(&inside, "install an extension", &extension.sql_in(schema)).await?;
        }
        Ok(())
    }

    /// Returns those of a source's extensions that the admin makes, each with its schema; the others come with the copy.
    async fn copied_extensions(&self) -> Result<Vec<(extensions::Planned, String)>, EngineError> {
        let Some(job) = self.brought() else { return Ok(Vec::new()) };
        let copy = job.plan()?;
        if copy.by_admin.is_empty() {
            return Ok(Vec::new());
        }
        let session = self.server.admin_session().await?;
        let plan = extensions::plan(&session, self.profile(), &copy.by_admin, self.info.superuser).await?;
        let schema = |planned: &extensions::Planned| {
            let found = copy.extensions.iter().find(|(name, _)| name == planned.name());
            found.map_or_else(|| "public".to_owned(), |(_, schema)| schema.clone())
        };
        Ok(plan.by_admin.into_iter().chain(plan.by_owner).map(|planned| (planned.clone(), schema(&planned))).collect())
    }

    pub(super) async fn open_database(&self) -> Result<(), EngineError> {
        if self.opens_when_given() {
            return Ok(());
        }
        let mut session = self.server.admin_session().await?;
        for (role, ..) in self.roles() {
            self.join(&session, role).await?;
        }
        let failed = refused("open the database to its roles", self.profile());
        let transaction = session.transaction().await.map_err(&failed)?;
        let statements = self.opening().join("; ");
        // asked behind it, and not at all if it failed
        let opened = async { transaction.batch_execute(&statements).await.map_err(&failed) };
        let (opened, checked) = tokio::join!(opened, self.check_open(&transaction));
        opened?;
        checked?;
        transaction.commit().await.map_err(&failed)
    }

    /// Returns whether it is a copy that is opened by what gives it to its roles, in the same transaction. What the admin
    /// installs into one comes between the two.
    pub(super) fn opens_when_given(&self) -> bool {
        let copy = matches!(self.spec.contents, Contents::Copy { .. });
        copy && self.spec.kind == SandboxKind::Sandbox && self.spec.extensions.is_empty()
    }

    /// Returns what opens the database to its roles, and to nobody else.
    pub(super) fn opening(&self) -> Vec<String> {
        let names = &self.spec.names;
        let database = ident(&names.database);
        let roles = format!("{}, {}", ident(&names.owner_role), ident(&names.readonly_role));
        let mut statements = Vec::new();
        if !self.info.superuser {
            // before PUBLIC loses it, which is how the admin had it
            statements.push(format!("GRANT CONNECT ON DATABASE {database} TO CURRENT_USER"));
        }
        statements.push(format!("REVOKE ALL ON DATABASE {database} FROM PUBLIC"));
        statements.push(format!("GRANT CONNECT ON DATABASE {database} TO {roles}"));
        if self.is_filled() {
            // What the owner of a database may do in it.
            statements.push(format!("GRANT CREATE, TEMPORARY ON DATABASE {database} TO {}", ident(&names.owner_role)));
        }
        statements.push(format!("ALTER DATABASE {database} WITH ALLOW_CONNECTIONS true CONNECTION LIMIT -1"));
        if let Contents::Copy { .. } = self.spec.contents {
            statements.extend(self.roles().iter().map(|(role, ..)| format!("ALTER ROLE {} LOGIN", ident(role))));
        }
        statements
    }

    /// Checks that the database is open to its roles, and to nobody else: a REVOKE that could not revoke says so in a mere
    /// warning.
    pub(super) async fn check_open(&self, transaction: &Transaction<'_>) -> Result<(), EngineError> {
        let names = &self.spec.names;
        let params: [(&(dyn ToSql + Sync), Type); 3] =
            [(&names.database, Type::TEXT), (&names.owner_role, Type::NAME), (&names.readonly_role, Type::NAME)];
        let rights = transaction.query_typed_one(
            "SELECT pg_catalog.has_database_privilege('public', $1::text, 'CONNECT, TEMPORARY, CREATE'), \
             pg_catalog.has_database_privilege($2::name, $1::text, 'CONNECT'), \
             pg_catalog.has_database_privilege($3::name, $1::text, 'CONNECT'), \
             pg_catalog.has_database_privilege($3::name, $1::text, 'TEMPORARY, CREATE')",
            &params,
        );
        let row = rights.await.map_err(refused("open the database to its roles", self.profile()))?;
        let (public, owner, reader, reader_more): (bool, bool, bool, bool) =
            (row.get(0), row.get(1), row.get(2), row.get(3));
        if public || !owner || !reader || reader_more && !self.is_filled() {
            return Err(EngineError::Refused {
                action: "open the database to its roles",
                sqlstate: SqlState::INSUFFICIENT_PRIVILEGE.code().to_owned(),
                detail: "its rights are not as they were set; it stays closed".to_owned(),
            });
        }
        Ok(())
    }

    /// Does the owner's part: what the reader may see of all that the owner will make, and the owner's extensions.
    ///
    /// The one session into the database: what it does is of the database itself, and cannot be done from outside.
    pub(super) async fn prepare_owner(&self) -> Result<(), EngineError> {
        let plan = self.extensions().await?;
        let reader = ident(&self.spec.names.readonly_role);
        let mut statements = Vec::new();
        if !matches!(self.spec.contents, Contents::Copy { .. }) {
            statements.extend(access::reads_to_come(&reader));
            if self.info.major >= 15 || self.info.superuser {
                statements.push(format!("GRANT USAGE ON SCHEMA public TO {reader}"));
            }
        } else if plan.by_owner.is_empty() {
            // The rights came with the copy.
            return Ok(());
        }
        if self.is_filled() && self.info.major >= 15 {
            // The database's owner has it, which is another as long as it is filled.
            let inside = self.server.session_in(&self.spec.names.database).await?;
            let sql = format!("ALTER SCHEMA public OWNER TO {}", ident(&self.spec.names.owner_role));
            self.execute(&inside, "give schema `public` away", &sql).await?;
        }
        let session = self.owner_session().await?;
        statements.extend(plan.by_owner.iter().map(extensions::Planned::sql));
        self.together(&session, "set the reader's rights and install the extensions", &statements).await
    }

    /// Returns who makes which of the extensions.
    async fn extensions(&self) -> Result<extensions::Plan, EngineError> {
        let mut wanted = self.spec.extensions.clone();
        if let Some(job) = self.brought() {
            // What the source has comes with the copy, into the source's schema.
            let copy = job.plan()?;
            wanted.retain(|name| copy.extensions.iter().all(|(copied, _)| copied != name));
        }
        if wanted.is_empty() {
            return Ok(extensions::Plan::default());
        }
        let session = self.server.admin_session().await?;
        extensions::plan(&session, self.profile(), &wanted, self.info.superuser).await
    }

    /// Lets neither role log in any more, whoever may know a password by now.
    pub(super) async fn close_roles(&self) -> Result<(), EngineError> {
        let session = self.server.admin_session().await?;
        let mut statements = Vec::new();
        for (role, ..) in self.roles() {
            self.join(&session, role).await?;
            statements.push(format!("ALTER ROLE {} NOLOGIN PASSWORD NULL", ident(role)));
        }
        self.together(&session, "take the roles' logins away", &statements).await
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
            answer: access::CATALOGUE_ANSWER,
        };
        let opened = self.server.log_in_as(&login, Some(self.info.major)).await;
        opened.map_err(|e| e.within(self.profile(), &credentials.user))
    }
}
