//! Keeps a database to itself while code of another's may run in it: that of a source, as the sandbox's owner.
//!
//! Such code may do what the owner may: change its password and its settings, and give rights on all that it owns. So the
//! database is the reader's until it is handed over, and what lets the owner in is taken away as soon as a session of ours
//! is in. A way in is made anew for each, when nobody else acts as the owner any more, and under another name: the server
//! compares a login's password when it begins and finds its role when it ends, so one that was begun with a password of
//! that code's, and held, finds no role of its name.

use std::fmt;
use std::sync::Arc;

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::{Work, login_options};
use crate::engine::postgres::access;
use crate::engine::postgres::admin::{AdminSession, Login, ident, literal, refused};
use crate::engine::postgres::dump::CloneJob;
use crate::engine::postgres::server::PostgresServer;
use crate::engine::postgres::{Credentials, scram};
use crate::engine::{Contents, EngineError, SandboxSpec};
use crate::model::{Code, Failure, SandboxNames, Secret};

/// How long a change waits for what a session holds that was just ended.
const LOCK_TIMEOUT: &str = "2s";

/// The way into one database that is being filled.
#[derive(Clone)]
pub(in crate::engine::postgres) struct Door {
    server: Arc<PostgresServer>,
    spec: SandboxSpec,
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Door").field("sandbox", &self.spec.id).finish_non_exhaustive()
    }
}

impl Door {
    pub(in crate::engine::postgres) fn of(server: &Arc<PostgresServer>, spec: &SandboxSpec) -> Self {
        Self { server: Arc::clone(server), spec: spec.clone() }
    }

    /// Takes away what lets the owner in; who is in stays.
    pub(in crate::engine::postgres) async fn shut(&self) -> Result<(), EngineError> {
        Work::new(&self.server, &self.spec).await?.shut().await
    }

    /// Returns what the owner is called now.
    pub(in crate::engine::postgres) fn owner(&self) -> String {
        let opened = brought(&self.spec).map_or(0, CloneJob::opened);
        owner_after(&self.spec.names, opened)
    }

    /// Makes a way in that nobody knows but us, after all who were in are out: under a name of its own.
    pub(in crate::engine::postgres) async fn open(&self) -> Result<(), EngineError> {
        Work::new(&self.server, &self.spec).await?.unlock().await
    }

    /// Goes in as the owner, and shuts the door behind.
    pub(in crate::engine::postgres) async fn enter(&self) -> Result<AdminSession, EngineError> {
        self.open().await?;
        let entered = self.log_in().await;
        self.shut().await?;
        entered
    }

    /// The same with a second session, if one is to be had at once.
    pub(in crate::engine::postgres) async fn enter_twice(
        &self,
    ) -> Result<(AdminSession, Option<AdminSession>), EngineError> {
        self.open().await?;
        let (entered, beside) = tokio::join!(self.log_in(), self.log_in_now());
        self.shut().await?;
        Ok((entered?, beside))
    }

    async fn log_in_now(&self) -> Option<AdminSession> {
        let (reach, info) = tokio::try_join!(self.server.reach(), self.server.info()).ok()?;
        access::log_in(&reach, &self.credentials(), &self.spec.names.database, info.major).await.ok()
    }

    async fn log_in(&self) -> Result<AdminSession, EngineError> {
        let credentials = self.credentials();
        let reach = self.server.reach().await?;
        let login = Login {
            endpoint: &reach.endpoint,
            credentials: &credentials,
            database: &self.spec.names.database,
            timeout: reach.connect_timeout,
            answer: access::CATALOGUE_ANSWER,
        };
        let major = self.server.info().await?.major;
        let entered = self.server.log_in_as(&login, Some(major)).await;
        entered.map_err(|error| error.within(&self.server.settings().profile, &credentials.user))
    }

    fn credentials(&self) -> Credentials {
        Credentials { user: self.owner(), password: Some(self.spec.owner_password.clone()) }
    }
}

/// Returns what a database is filled by, if it is filled from elsewhere.
fn brought(spec: &SandboxSpec) -> Option<&CloneJob> {
    match &spec.contents {
        Contents::Clone(job) => Some(job),
        Contents::Restore(job) => Some(&job.clone),
        Contents::Empty | Contents::Copy { .. } => None,
    }
}

/// Returns what the owner is called after so many openings.
fn owner_after(names: &SandboxNames, openings: u8) -> String {
    if openings == 0 { names.owner_role.clone() } else { names.filling_role(openings) }
}

impl Work<'_> {
    async fn shut(&self) -> Result<(), EngineError> {
        let session = self.server.admin_session().await?;
        let (role, database) = (ident(&self.owner_now()), ident(&self.spec.names.database));
        let statements = [
            patience(),
            lasting_later(),
            format!("ALTER ROLE {role} CONNECTION LIMIT 0"),
            format!("REVOKE CONNECT ON DATABASE {database} FROM {role}"),
        ];
        self.together(&session, "keep others out of the copy", &statements).await
    }

    async fn unlock(&self) -> Result<(), EngineError> {
        let session = self.server.admin_session().await?;
        let job = self.brought().ok_or_else(|| EngineError::Unsupported("there is nothing to fill".to_owned()))?;
        let next = job.opened().checked_add(1).ok_or_else(|| self.tampered("made us go in too often"))?;
        self.nobody_is_in(&session).await?;
        let (before, after) = (self.owner_now(), self.spec.names.filling_role(next));
        self.join(&session, &before).await?;
        let mut statements = vec![patience(), lasting_later(), rename(&before, &after)];
        let verifier = verifier(&self.spec.owner_password).await?;
        statements.extend(self.roles_anew(&session, &[Anew { before: &before, after: &after, verifier }]).await?);
        let database = ident(&self.spec.names.database);
        statements.push(format!("GRANT CONNECT ON DATABASE {database} TO {}", ident(&after)));
        self.together(&session, "go into the copy", &statements).await?;
        job.note_opened(next);
        Ok(())
    }

    /// Returns what the owner is called now.
    pub(super) fn owner_now(&self) -> String {
        owner_after(&self.spec.names, self.brought().map_or(0, CloneJob::opened))
    }

    /// Returns what the copy of another server's database, or of a dump of one, has to go by.
    pub(super) fn brought(&self) -> Option<&'_ CloneJob> {
        brought(self.spec)
    }

    /// Ends who acts as the owner or is in the database, and refuses a copy whose code has let others in for good.
    pub(super) async fn nobody_is_in(&self, session: &Client) -> Result<(), EngineError> {
        self.terminate(session).await?;
        let names = &self.spec.names;
        let found = session
            .query_typed_one(
                "SELECT EXISTS (SELECT FROM pg_catalog.pg_auth_members m JOIN pg_catalog.pg_roles r ON r.oid = m.roleid \
                 WHERE r.rolname IN ($1, $2) \
                 AND m.member <> (SELECT oid FROM pg_catalog.pg_roles WHERE rolname = current_user)), \
                 EXISTS (SELECT FROM pg_catalog.pg_prepared_xacts WHERE owner IN ($1, $2) OR database = $3), \
                 EXISTS (SELECT FROM pg_catalog.pg_stat_activity WHERE (usename IN ($1, $2) OR datname = $3) \
                 AND pid <> pg_catalog.pg_backend_pid() AND backend_type IN ('client backend', 'walsender'))",
                &[
                    (&self.owner_now(), Type::NAME),
                    (&names.readonly_role, Type::NAME),
                    (&names.database, Type::NAME),
                ],
            )
            .await
            .map_err(refused("look who may enter the copy", self.profile()))?;
        let (members, prepared, sessions): (bool, bool, bool) = (found.get(0), found.get(1), found.get(2));
        match (members, prepared, sessions) {
            (true, ..) => Err(self.tampered("made another role a member of the sandbox's owner")),
            (_, true, _) => Err(self.tampered("left a prepared transaction")),
            (.., true) => Err(self.tampered("left a session that does not end")),
            (false, false, false) => Ok(()),
        }
    }

    /// Returns what makes the roles, once they have their new names, as they were made: logins, limits and settings.
    pub(super) async fn roles_anew(&self, session: &Client, roles: &[Anew<'_>]) -> Result<Vec<String>, EngineError> {
        let names: Vec<&str> = roles.iter().map(|role| role.before).collect();
        // In whatever database a role has set something for itself; for all of them without a name.
        let settings = session
            .query_typed(
                "SELECT r.rolname::text, d.datname::text FROM pg_catalog.pg_db_role_setting s \
                 JOIN pg_catalog.pg_roles r ON r.oid = s.setrole LEFT JOIN pg_catalog.pg_database d ON d.oid = s.setdatabase \
                 WHERE r.rolname = ANY ($1)",
                &[(&names, Type::NAME_ARRAY)],
            )
            .await
            .map_err(refused("look at the roles' settings", self.profile()))?;
        let mut statements = Vec::new();
        for row in settings {
            let (role, database): (String, Option<String>) = (row.get(0), row.get(1));
            let within = database.map(|name| format!(" IN DATABASE {}", ident(&name))).unwrap_or_default();
            let after = roles.iter().find(|anew| anew.before == role).map_or(role.as_str(), |anew| anew.after);
            statements.push(format!("ALTER ROLE {}{within} RESET ALL", ident(after)));
        }
        for Anew { after: role, verifier, .. } in roles {
            let login = login_options(self.server.settings().connection_limit, verifier, self.spec.expires_at);
            statements.push(format!("ALTER ROLE {} WITH LOGIN {login}", ident(role)));
            if self.info.superuser {
                statements.extend(self.role_limits(role, *role == self.spec.names.readonly_role));
            }
        }
        Ok(statements)
    }

    /// Says what code of the source has done that a copy is not to carry.
    pub(super) fn tampered(&self, what: &str) -> EngineError {
        let shown = self.brought().map_or("the source", |job| job.shown.as_str());
        let text = format!("code of {shown} that ran in the copy {what}; everything begun was removed");
        let failure = Failure::new(Code::RestoreIncompatible, text)
            .hint("look at the functions that its constraints, defaults, indexes and materialised views call, and leave them out");
        EngineError::Known(Box::new(failure))
    }
}

/// A role that is made again as it was made.
pub(super) struct Anew<'a> {
    /// What it is called now.
    pub(super) before: &'a str,
    /// What it is called by then.
    pub(super) after: &'a str,
    /// The verifier of its password.
    pub(super) verifier: String,
}

pub(super) fn rename(before: &str, after: &str) -> String {
    format!("ALTER ROLE {} RENAME TO {}", ident(before), ident(after))
}

/// Returns the verifier of a password, made while others use the processor.
pub(super) async fn verifier(password: &Secret) -> Result<String, EngineError> {
    let password = password.clone();
    let made = tokio::task::spawn_blocking(move || scram::verifier(&password)).await;
    made.map_err(|error| EngineError::Unsupported(format!("no verifier was made: {error}")))
}

pub(super) fn patience() -> String {
    format!("SET LOCAL lock_timeout = {}", literal(LOCK_TIMEOUT))
}

/// What is noted as ready is written to disk behind this, and so this with it; what is not ready is removed.
pub(super) fn lasting_later() -> String {
    "SET LOCAL synchronous_commit = off".to_owned()
}
