//! The steps that make and remove a sandbox, and how each is taken back.
//!
//! Every step may find its work done, and every undo nothing to take back. Nothing is touched but what bears the
//! sandbox's own names, and no statement holds a password.

mod carried;
mod changed;
mod copy;
mod create;
mod delete;
mod guard;
mod hand_over;
mod holders;
mod reown;
mod rights;
mod unheard;

pub(super) use carried::DatabaseSetting;

use std::sync::Arc;

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

use super::admin::{ident, literal, refused};
use super::dump::{self, CloneJob, DumpJob, RestoreJob};
use super::names;
use super::server::PostgresServer;
use crate::engine::{Contents, DeleteSteps, EngineError, SandboxSpec, ServerInfo, Step};
use crate::model::{Code, Failure, SandboxKind, SandboxNames, Secret, Timestamp};

pub(super) use guard::Door;

const CREATE_ROLES: Step = Step::new("create-roles", "creating the roles");
const CREATE_DATABASE: Step = Step::new("create-database", "creating the database");
const PREPARE_DATABASE: Step = Step::inner("prepare-database", "preparing the database");
const OPEN_DATABASE: Step = Step::inner("open-database", "opening the database to its roles");
const PREPARE_OWNER: Step = Step::inner("prepare-owner", "preparing the owner's and the reader's rights");
const COPY_DATABASE: Step = Step::new("copy-database", "copying the database");
const GIVE_COPY: Step = Step::inner("give-copy", "giving the copy to its roles");
const SEAL_TEMPLATE: Step = Step::inner("seal-template", "closing the template");
/// Removes what a sandbox holds, and keeps its roles.
pub(super) const RESET: Step = Step::new("reset", "removing what the sandbox holds");
const COPY_SOURCE: Step = Step::inner("copy-source", "copying the source").paced();
const CHECK_COPY: Step = Step::inner("check-copy", "looking at the copy").paced();
const HAND_OVER: Step = Step::inner("hand-over", "handing the copy over to its owner");
const WRITE_DUMP: Step = Step::inner("write-dump", "writing the dump").paced();
const RESTORE_DUMP: Step = Step::inner("restore-dump", "restoring the dump").paced();
const SETTLE_DUMP: Step = Step::inner("settle-dump", "comparing what was restored with its file").paced();
const CLOSE_ROLES: Step = Step::inner("close-roles", "taking the roles' logins away");
const CLOSE: Step = Step::new("close", "closing the database");
const CLEAR: Step = Step::new("clear", "removing what would hold the database");
const DROP_DATABASE: Step = Step::new("drop-database", "dropping the database");
const DROP_OWNED: Step = Step::new("drop-owned", "removing what the roles own elsewhere");
const DROP_ROLES: Step = Step::new("drop-roles", "dropping the roles");

/// Returns the steps that make a sandbox of a kind with such contents.
pub(super) fn create_steps(kind: SandboxKind, contents: &Contents) -> Vec<Step> {
    let database = match contents {
        Contents::Empty | Contents::Clone(_) | Contents::Restore(_) => vec![CREATE_DATABASE],
        Contents::Copy { .. } => vec![COPY_DATABASE, GIVE_COPY],
    };
    let end = match (kind, contents) {
        // What is restored as its owner is open to its owner until it is.
        (SandboxKind::Sandbox, _) | (SandboxKind::Template, Contents::Restore(_)) => {
            vec![PREPARE_DATABASE, OPEN_DATABASE, PREPARE_OWNER]
        }
        (SandboxKind::Template, Contents::Copy { dump: Some(_), .. }) => vec![OPEN_DATABASE, WRITE_DUMP],
        (SandboxKind::Template, Contents::Empty | Contents::Copy { dump: None, .. } | Contents::Clone(_)) => {
            vec![SEAL_TEMPLATE]
        }
    };
    // While it is filled, nobody gets in but sessions of ours.
    let filled = match contents {
        Contents::Clone(_) => vec![COPY_SOURCE, CHECK_COPY, HAND_OVER],
        Contents::Restore(_) => vec![RESTORE_DUMP, HAND_OVER, SETTLE_DUMP, CLOSE_ROLES, SEAL_TEMPLATE],
        Contents::Empty | Contents::Copy { .. } => Vec::new(),
    };
    [vec![CREATE_ROLES], database, end, filled].concat()
}

/// Returns all steps that make any sandbox.
pub(super) fn known_steps() -> Vec<Step> {
    vec![
        RESET,
        CREATE_ROLES,
        CREATE_DATABASE,
        COPY_DATABASE,
        GIVE_COPY,
        PREPARE_DATABASE,
        OPEN_DATABASE,
        PREPARE_OWNER,
        SEAL_TEMPLATE,
        COPY_SOURCE,
        CHECK_COPY,
        HAND_OVER,
        WRITE_DUMP,
        RESTORE_DUMP,
        SETTLE_DUMP,
        CLOSE_ROLES,
    ]
}

/// Lie inside the database and go with it, or are of its roles.
const WITHIN: [Step; 11] = [
    PREPARE_DATABASE,
    PREPARE_OWNER,
    GIVE_COPY,
    SEAL_TEMPLATE,
    COPY_SOURCE,
    CHECK_COPY,
    HAND_OVER,
    WRITE_DUMP,
    RESTORE_DUMP,
    SETTLE_DUMP,
    CLOSE_ROLES,
];

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
            name if name == COPY_DATABASE.name => self.copy_database(self.source()?).await,
            name if name == GIVE_COPY.name => self.give_copy(self.source()?).await,
            name if name == SEAL_TEMPLATE.name => self.seal_template().await,
            name if name == RESET.name => self.remove_database().await,
            name if name == PREPARE_DATABASE.name => self.prepare_database().await,
            name if name == OPEN_DATABASE.name => self.open_database().await,
            name if name == PREPARE_OWNER.name => self.prepare_owner().await,
            name if name == COPY_SOURCE.name => dump::copy(self.server, self.spec, self.job()?).await,
            name if name == CHECK_COPY.name => dump::check(self.server, self.spec, self.job()?).await,
            name if name == HAND_OVER.name => self.hand_over().await.map_err(|error| self.worded(error)),
            name if name == WRITE_DUMP.name => dump::write(self.server, self.spec, self.dump()?).await,
            name if name == RESTORE_DUMP.name => dump::restore(self.server, self.spec, self.restored()?).await,
            name if name == SETTLE_DUMP.name => dump::settle(self.server, self.spec, self.restored()?).await,
            name if name == CLOSE_ROLES.name => self.close_roles().await,
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
        if let Contents::Clone(job) = &self.spec.contents {
            job.give_up();
        }
        match step.name {
            name if name == CREATE_ROLES.name => {
                self.drop_owned().await?;
                self.drop_roles().await
            }
            name if name == CREATE_DATABASE.name || name == COPY_DATABASE.name => self.remove_database().await,
            name if name == RESET.name => {
                self.remove_database().await?;
                self.drop_owned().await?;
                self.drop_roles().await
            }
            name if name == OPEN_DATABASE.name => self.close().await,
            name if WITHIN.iter().any(|s| s.name == name) => Ok(()),
            other => Err(EngineError::Unsupported(format!("step `{}` cannot be taken back", other.escape_default()))),
        }
    }

    /// Closes and drops the database, whatever is in it.
    async fn remove_database(&self) -> Result<(), EngineError> {
        self.close().await?;
        self.clear().await?;
        self.drop_database().await
    }

    /// Returns the names of what the database is a copy of.
    fn source(&self) -> Result<&'a SandboxNames, EngineError> {
        match &self.spec.contents {
            Contents::Copy { names, .. } => Ok(names),
            Contents::Empty | Contents::Clone(_) | Contents::Restore(_) => {
                Err(EngineError::Unsupported("a sandbox that is no copy has no source".to_owned()))
            }
        }
    }

    /// Returns what is to be copied.
    fn job(&self) -> Result<&'a CloneJob, EngineError> {
        match &self.spec.contents {
            Contents::Clone(job) => Ok(job),
            Contents::Empty | Contents::Copy { .. } | Contents::Restore(_) => {
                Err(EngineError::Unsupported("there is nothing to copy".to_owned()))
            }
        }
    }

    /// Returns what is to be written.
    fn dump(&self) -> Result<&'a DumpJob, EngineError> {
        match &self.spec.contents {
            Contents::Copy { dump: Some(job), .. } => Ok(job),
            Contents::Empty | Contents::Copy { dump: None, .. } | Contents::Clone(_) | Contents::Restore(_) => {
                Err(EngineError::Unsupported("there is nothing to dump".to_owned()))
            }
        }
    }

    /// Says what stands in the way of filling a database as whoever asked for it knows it.
    fn worded(&self, error: EngineError) -> EngineError {
        if self.restored().is_ok() { dump::of_import(error) } else { error }
    }

    /// Returns what is to be restored.
    fn restored(&self) -> Result<&'a RestoreJob, EngineError> {
        match &self.spec.contents {
            Contents::Restore(job) => Ok(job),
            Contents::Empty | Contents::Copy { .. } | Contents::Clone(_) => {
                Err(EngineError::Unsupported("there is nothing to restore".to_owned()))
            }
        }
    }

    /// Makes an admin that is no superuser a member of a sandbox role: it could neither give it a database nor
    /// drop what it owns otherwise. Before 15 a role can throw the admin out again, so this is repeated before use.
    pub(super) async fn join(&self, session: &Client, role: &str) -> Result<(), EngineError> {
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
        session.execute(self.membership(role).as_str(), &[]).await.map(drop).map_err(&failed)
    }

    /// Returns the statement that makes the admin a member of a role.
    fn membership(&self, role: &str) -> String {
        let options = if self.info.major >= 16 { " WITH INHERIT TRUE, SET TRUE" } else { "" };
        format!("GRANT {} TO CURRENT_USER{options}", ident(role))
    }

    /// Returns which of the sandbox's roles there are, under whatever name, the reader last.
    async fn known_roles(&self, session: &Client) -> Result<Vec<String>, EngineError> {
        let names = &self.spec.names;
        let rows = session
            .query_typed(
                "SELECT rolname::text FROM pg_catalog.pg_roles WHERE rolname IN ($1, $2) OR rolname::text ~ $3 \
                 ORDER BY rolname = $2, rolname",
                &[
                    (&names.owner_role, Type::NAME),
                    (&names.readonly_role, Type::NAME),
                    (&names.filling_pattern(), Type::TEXT),
                ],
            )
            .await
            .map_err(refused("find the roles", self.profile()))?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Runs statements in one transaction and one round trip; none of them takes effect if one fails.
    async fn together(&self, session: &Client, action: &'static str, statements: &[String]) -> Result<(), EngineError> {
        session.batch_execute(&statements.join("; ")).await.map_err(refused(action, self.profile()))
    }

    /// Returns the owner and the reader: name, password, and whether it is the reader.
    pub(super) fn roles(&self) -> [(&'a str, &'a Secret, bool); 2] {
        let spec = self.spec;
        [
            (spec.names.owner_role.as_str(), &spec.owner_password, false),
            (spec.names.readonly_role.as_str(), &spec.readonly_password, true),
        ]
    }

    /// Returns the server's major version.
    pub(in crate::engine::postgres) fn major(&self) -> u16 {
        self.info.major
    }

    /// Returns whether the server is one that this program runs.
    pub(in crate::engine::postgres) fn is_managed(&self) -> bool {
        self.server.managed().is_some()
    }

    pub(super) fn profile(&self) -> &'a str {
        &self.server.settings().profile
    }

    pub(super) async fn role_oid(&self, session: &Client, role: &str) -> Result<Option<u32>, EngineError> {
        let row = session
            .query_typed_opt("SELECT oid FROM pg_catalog.pg_roles WHERE rolname = $1", &[(&role, Type::NAME)])
            .await
            .map_err(refused("find a role", self.profile()))?;
        Ok(row.map(|row| row.get(0)))
    }

    async fn find_database(&self, session: &Client) -> Result<Option<FoundDatabase>, EngineError> {
        let row = session
            .query_typed_opt(
                "SELECT pg_catalog.pg_get_userbyid(datdba)::text, datconnlimit, datistemplate \
                 FROM pg_catalog.pg_database WHERE datname = $1",
                &[(&self.spec.names.database, Type::NAME)],
            )
            .await
            .map_err(refused("find the database", self.profile()))?;
        Ok(row.map(|row| FoundDatabase { owner: row.get(0), connection_limit: row.get(1), is_template: row.get(2) }))
    }

    /// Returns whether a database's owner is one of the sandbox's roles: the reader, as long as it is filled.
    fn is_its_own(&self, owner: &str) -> bool {
        self.spec.names.is_own_role(owner)
    }

    fn foreign_owner(&self, owner: &str) -> EngineError {
        EngineError::Refused {
            action: "touch a database of another owner",
            sqlstate: SqlState::INSUFFICIENT_PRIVILEGE.code().to_owned(),
            detail: format!("database `{}` belongs to `{owner}`", self.spec.names.database),
        }
    }

    pub(super) async fn execute(&self, session: &Client, action: &'static str, sql: &str) -> Result<(), EngineError> {
        session.execute(sql, &[]).await.map(drop).map_err(refused(action, self.profile()))
    }
}

/// Returns what a role's login is limited by: a verifier instead of a password, sessions, and time.
pub(super) fn login_options(connection_limit: u32, verifier: &str, until: Timestamp) -> String {
    format!(
        "CONNECTION LIMIT {connection_limit} PASSWORD {} VALID UNTIL {}",
        literal(verifier),
        literal(&until.to_string())
    )
}

/// Returns whether the sandbox's own open transactions can be the reason.
pub(super) fn is_contention(error: &EngineError) -> bool {
    match error {
        // lock_not_available, deadlock_detected, serialization_failure, and internal_error for "tuple concurrently updated"
        EngineError::Refused { sqlstate, .. } => matches!(sqlstate.as_str(), "55P03" | "40P01" | "40001" | "XX000"),
        EngineError::Unreachable { .. }
        | EngineError::Auth { .. }
        | EngineError::Crowded { .. }
        | EngineError::Busy { .. }
        | EngineError::Unsupported(_)
        | EngineError::Unsuited { .. }
        | EngineError::Known(_) => false,
    }
}

/// Returns whether it failed as somebody changed what was to be changed: for the rows themselves the server has no code.
fn is_changed(sqlstate: &str) -> bool {
    [SqlState::INTERNAL_ERROR, SqlState::T_R_SERIALIZATION_FAILURE].iter().any(|state| state.code() == sqlstate)
}

/// Says of what others have kept from being done to the end that it can be tried again: of a change that came in between, which
/// the server has no code of its own for, as well.
pub(super) fn contended(error: EngineError) -> EngineError {
    if let EngineError::Refused { action, sqlstate, detail } = &error
        && is_changed(sqlstate)
    {
        let text = format!("others changed the same rows of the server's again and again: it refused to {action}");
        let mut failure = Failure::new(Code::Busy, text).hint("call again later").audit(detail);
        failure.detail_mut().sqlstate = Some(sqlstate.clone());
        return EngineError::Known(Box::new(failure));
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::postgres::scram;

    #[test]
    fn no_statement_holds_a_password() {
        let options = login_options(5, &scram::verifier(&Secret::new("hunter2")), Timestamp::from_unix_ms(0));
        assert!(!options.contains("hunter2"), "{options}");
        assert!(options.starts_with("CONNECTION LIMIT 5 PASSWORD 'SCRAM-SHA-256$4096:"), "{options}");
        assert!(options.ends_with("VALID UNTIL '1970-01-01T00:00:00.000Z'"), "{options}");
    }

    #[test]
    fn every_step_has_a_name_of_its_own() {
        let delete = delete_steps();
        let mut names: Vec<_> =
            known_steps().iter().chain(&delete.foreground).chain(&delete.background).map(|s| s.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
