//! Copies a database on its own server, with the fastest way the server has.
//!
//! A copy is closed to everybody from its first moment, and its roles cannot log in, until it is theirs. The source is
//! only read; it must have no sessions while it is copied, as the server demands.

use std::time::Duration;

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};

use super::Work;
use crate::engine::postgres::admin::{ident, refused};
use crate::engine::postgres::startup::APPLICATION_NAME;
use crate::engine::{Contents, EngineError};
use crate::model::{Code, Failure, SandboxKind, SandboxNames, fault, role_pattern};

/// How long sessions in the source are given to end before it is said that it is in use.
const SOURCE_WAIT: Duration = Duration::from_secs(2);
const SOURCE_POLL: Duration = Duration::from_millis(2);
/// How long a session of another program of ours must have done nothing to be ended for a copy, in ms: one that was used
/// just now may be taken again at this moment.
const ASIDE_AFTER_MS: f64 = 1000.0;
/// The largest source that is copied through the write-ahead log on a server that waits for its disk: beyond, two
/// checkpoints cost less than writing everything twice.
const WAL_LOG_BYTES_MAX: i64 = 256 << 20;
/// Settings that the server shows to nobody, and lets everybody make.
const SHOWN_TO_NOBODY: [&str; 6] = [
    "role",
    "session_authorization",
    "seed",
    "transaction_isolation",
    "transaction_read_only",
    "transaction_deferrable",
];
/// Who is named at most where rights of others are in the way.
const OTHERS_SHOWN_MAX: i64 = 5;

impl Work<'_> {
    /// Makes the database as a copy of `source`, and gives the roles their passwords meanwhile.
    pub(super) async fn copy_database(&self, source: &SandboxNames) -> Result<(), EngineError> {
        let session = self.server.admin_session().await?;
        let stays = !matches!(self.spec.contents, Contents::Copy { dump: Some(_), .. });
        if self.spec.kind == SandboxKind::Template && stays {
            return self.make_copy(&session, source).await;
        }
        // Only if there is one at once, as for a new database.
        let Some(beside) = self.server.second_admin_session().await? else {
            self.make_copy(&session, source).await?;
            return self.set_passwords(&session).await;
        };
        let (made, set) = tokio::join!(self.make_copy(&session, source), self.set_passwords(&beside));
        made.and(set)
    }

    async fn make_copy(&self, session: &Client, source: &SandboxNames) -> Result<(), EngineError> {
        let names = &self.spec.names;
        let found = self.find_database(session);
        let (found, strategy, users) = tokio::join!(found, self.strategy(session, source), self.users(session, source));
        if let Some(found) = found? {
            return if found.owner == names.owner_role { Ok(()) } else { Err(self.foreign_owner(&found.owner)) };
        }
        let strategy = strategy?;
        self.join(session, &source.owner_role).await?;
        if users? > 0 {
            self.await_unused(session, source).await?;
        }
        let closed = if self.info.superuser { "CONNECTION LIMIT 0" } else { "ALLOW_CONNECTIONS false" };
        let sql = format!(
            "CREATE DATABASE {} OWNER {} TEMPLATE {}{strategy} {closed}",
            ident(&names.database),
            ident(&names.owner_role),
            ident(&source.database)
        );
        let made = session.batch_execute(&sql).await;
        match made.map_err(refused("copy the database", self.profile())) {
            Err(EngineError::Refused { sqlstate, .. }) if sqlstate == SqlState::OBJECT_IN_USE.code() => {
                let sessions = self.users(session, source).await?.max(1);
                Err(in_use(source, sessions))
            }
            made => made,
        }
    }

    /// Says what keeps `source` from being copied, before anything is begun.
    pub(in crate::engine::postgres) async fn check_copy(&self, source: &SandboxNames) -> Result<(), EngineError> {
        let session = self.server.admin_session().await?;
        let pattern = role_pattern(&self.server.settings().prefix);
        let named: [(&(dyn ToSql + Sync), Type); 1] = [(&source.database, Type::NAME)];
        let found = session.query_typed_opt(
            "SELECT oid FROM pg_catalog.pg_database WHERE datname = $1 AND datconnlimit <> -2",
            &named,
        );
        // Rights of another sandbox would hold on to the copy, and its roles could not be removed without it.
        let whose: [(&(dyn ToSql + Sync), Type); 5] = [
            (&source.database, Type::NAME),
            (&pattern, Type::TEXT),
            (&source.owner_role, Type::NAME),
            (&source.readonly_role, Type::NAME),
            (&OTHERS_SHOWN_MAX, Type::INT8),
        ];
        let others = session.query_typed(
            "SELECT DISTINCT r.rolname::text FROM pg_catalog.pg_shdepend s \
             JOIN pg_catalog.pg_roles r ON r.oid = s.refobjid \
             WHERE s.dbid = (SELECT oid FROM pg_catalog.pg_database WHERE datname = $1) \
             AND s.refclassid = 'pg_catalog.pg_authid'::pg_catalog.regclass \
             AND r.rolname::text ~ $2 AND r.rolname NOT IN ($3, $4) ORDER BY 1 LIMIT $5",
            &whose,
        );
        let owned = self.owned_beside(&session, source);
        let (found, others, owned) = tokio::join!(found, others, owned);
        let failed = refused("look at the database to be copied", self.profile());
        let Some(found) = found.map_err(&failed)? else { return Err(source_gone(source)) };
        let (oid, others): (u32, _) = (found.get(0), others.map_err(&failed)?);
        if !others.is_empty() {
            let named: Vec<String> = others.iter().map(|row| format!("`{}`", row.get::<_, String>(0))).collect();
            let text = format!(
                "roles of other sandboxes own or may use objects in `{}`: {}",
                source.database,
                named.join(", ")
            );
            let failure = Failure::new(Code::InvalidArguments, text)
                .hint("take their rights away there (`REASSIGN OWNED`, `REVOKE`), then call again");
            return Err(EngineError::Known(Box::new(failure)));
        }
        if let Some(failure) = owned? {
            return Err(EngineError::Known(Box::new(failure)));
        }
        if !self.info.superuser {
            self.check_settings(&session, source, oid).await?;
        }
        Ok(())
    }

    /// Returns a refusal of what the source's roles own beside what is inside: it would become the copy's. And of what they
    /// log in to other servers with, where the admin may not read it.
    async fn owned_beside(&self, session: &Client, source: &SandboxNames) -> Result<Option<Failure>, EngineError> {
        let found = session
            .query_typed_opt(
                "SELECT CASE s.dbid WHEN 0 THEN pg_catalog.pg_describe_object(s.classid, s.objid, 0) END \
                 FROM pg_catalog.pg_shdepend s JOIN pg_catalog.pg_roles r ON r.oid = s.refobjid \
                 WHERE r.rolname IN ($1, $2) AND s.refclassid = 'pg_catalog.pg_authid'::pg_catalog.regclass \
                 AND s.deptype = 'o' AND (s.dbid = 0 AND s.classid <> 'pg_catalog.pg_database'::pg_catalog.regclass \
                 OR $3 AND s.dbid = (SELECT oid FROM pg_catalog.pg_database WHERE datname = $4) AND s.classid = 'pg_catalog.pg_user_mapping'::pg_catalog.regclass) \
                 ORDER BY 1 LIMIT 1",
                &[
                    (&source.owner_role, Type::NAME),
                    (&source.readonly_role, Type::NAME),
                    (&!self.info.superuser, Type::BOOL),
                    (&source.database, Type::NAME),
                ],
            )
            .await
            .map_err(refused("look at what the source's roles own", self.profile()))?;
        let Some(found) = found else { return Ok(None) };
        let failure = match found.get::<_, Option<String>>(0) {
            Some(what) => {
                let text = format!("the roles of `{}` own {what}, which is not inside it", source.database);
                Failure::new(Code::InvalidArguments, text)
                    .hint("have an operator give it to another role (`ALTER … OWNER TO`), then call again")
            }
            None => {
                let text = format!(
                    "`{}` has user mappings for its roles, which the admin of profile `{}` may not make for a copy",
                    source.database,
                    self.profile()
                );
                Failure::new(Code::InvalidConfiguration, text)
                    .hint("drop them there (`DROP USER MAPPING`), or use a profile whose admin is a superuser")
            }
        };
        Ok(Some(failure))
    }

    /// Refuses settings that this admin could not set again on a copy.
    async fn check_settings(&self, session: &Client, source: &SandboxNames, oid: u32) -> Result<(), EngineError> {
        let mut refusal = self.setting_refused(session, source, oid).await?;
        if refusal.as_ref().is_some_and(|name| name.starts_with("plpgsql.")) {
            // Known, as to who sets it again, once the language has been used.
            let failed = refused("look at the database's settings", self.profile());
            session.batch_execute("DO LANGUAGE plpgsql 'BEGIN END'").await.map_err(failed)?;
            refusal = self.setting_refused(session, source, oid).await?;
        }
        let Some(name) = refusal else { return Ok(()) };
        let text = format!(
            "database `{}` sets `{name}`, which the admin of profile `{}` may not set on a copy",
            source.database,
            self.profile()
        );
        let hint = format!("have a superuser run: ALTER DATABASE {} RESET {}", ident(&source.database), ident(&name));
        Err(EngineError::Known(Box::new(Failure::new(Code::InvalidConfiguration, text).hint(hint))))
    }

    /// Returns a setting of the database, or of the source's roles in it, that the admin may not make. One that the server
    /// shows it nothing of is such: a superuser's, or one of a module that is not there, which may turn out to be.
    async fn setting_refused(
        &self,
        session: &Client,
        source: &SandboxNames,
        oid: u32,
    ) -> Result<Option<String>, EngineError> {
        let may = if self.info.major >= 15 { "pg_catalog.has_parameter_privilege(c.name, 'SET')" } else { "false" };
        let sql = format!(
            "SELECT c.name FROM pg_catalog.pg_db_role_setting s \
             LEFT JOIN pg_catalog.pg_roles r ON r.oid = s.setrole \
             CROSS JOIN LATERAL (SELECT pg_catalog.split_part(u, '=', 1) FROM pg_catalog.unnest(s.setconfig) u) c (name) \
             LEFT JOIN pg_catalog.pg_settings p ON pg_catalog.lower(p.name) = pg_catalog.lower(c.name) \
             WHERE s.setdatabase = $1 AND (s.setrole = 0 OR r.rolname IN ($2::text::name, $3::text::name)) \
             AND CASE WHEN p.name IS NULL THEN c.name <> ALL ($4::text[]) ELSE p.context NOT IN ('user', 'backend') END \
             AND NOT {may} ORDER BY 1 LIMIT 1"
        );
        let hidden: &[&str] = &SHOWN_TO_NOBODY;
        let row = session
            .query_opt(&sql, &[&oid, &source.owner_role, &source.readonly_role, &hidden])
            .await
            .map_err(refused("look at the database's settings", self.profile()))?;
        Ok(row.map(|row| row.get(0)))
    }

    /// Waits, not for long, until nobody uses the source.
    pub(in crate::engine::postgres) async fn await_unused(
        &self,
        session: &Client,
        source: &SandboxNames,
    ) -> Result<(), EngineError> {
        let until = tokio::time::Instant::now() + fault::within(SOURCE_WAIT);
        loop {
            let sessions = self.users(session, source).await?;
            if sessions == 0 {
                return Ok(());
            }
            self.put_aside(session, source).await?;
            if tokio::time::Instant::now() > until {
                return Err(in_use(source, sessions));
            }
            tokio::time::sleep(SOURCE_POLL).await;
        }
    }

    /// Ends what other programs of ours keep in the source for their next call: sessions of its own roles that bear our name
    /// and do nothing. Its owner could give that name to another, and end it as well.
    async fn put_aside(&self, session: &Client, source: &SandboxNames) -> Result<(), EngineError> {
        let ended = session
            .query_typed(
                "SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity \
                 WHERE datname = $1 AND usename IN ($2, $3) AND application_name = $4 AND state = 'idle' \
                 AND state_change < pg_catalog.clock_timestamp() - $5 * interval '1 ms'",
                &[
                    (&source.database, Type::NAME),
                    (&source.owner_role, Type::NAME),
                    (&source.readonly_role, Type::NAME),
                    (&APPLICATION_NAME, Type::TEXT),
                    (&ASIDE_AFTER_MS, Type::FLOAT8),
                ],
            )
            .await;
        match ended {
            Ok(ended) if ended.is_empty() => Ok(()),
            Ok(ended) => {
                tracing::info!(source = %source.database, sessions = ended.len(), "sessions that waited are put aside for a copy");
                Ok(())
            }
            // Then they are counted, and told.
            Err(e) if e.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => Ok(()),
            Err(e) => Err(refused("put waiting sessions aside", self.profile())(e)),
        }
    }

    /// Counts sessions and prepared transactions in the source; the server ends its own autovacuum there by itself.
    async fn users(&self, session: &Client, source: &SandboxNames) -> Result<u32, EngineError> {
        let row = session
            .query_typed_one(
                "SELECT (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_activity \
                 WHERE datname = $1 AND usename IS NOT NULL) + \
                 (SELECT pg_catalog.count(*) FROM pg_catalog.pg_prepared_xacts WHERE database = $1)",
                &[(&source.database, Type::NAME)],
            )
            .await
            .map_err(refused("count sessions", self.profile()))?;
        Ok(u32::try_from(row.get::<_, i64>(0)).unwrap_or(u32::MAX))
    }

    async fn strategy(&self, session: &Client, source: &SandboxNames) -> Result<&'static str, EngineError> {
        if self.info.major < 15 {
            return Ok("");
        }
        let known = self.source_bytes();
        let row = session
            .query_typed_opt(
                "SELECT coalesce($2, pg_catalog.pg_database_size(oid)), pg_catalog.current_setting('fsync') = 'on', \
                 coalesce(pg_catalog.current_setting('file_copy_method', true) = 'clone', false) \
                 FROM pg_catalog.pg_database WHERE datname = $1",
                &[(&source.database, Type::NAME), (&known, Type::INT8)],
            )
            .await
            .map_err(refused("measure the database", self.profile()))?;
        let row = row.ok_or_else(|| source_gone(source))?;
        Ok(fastest(row.get(0), row.get(1), row.get(2)))
    }

    /// Returns how large the source is, where that was looked at ahead.
    pub(super) fn source_bytes(&self) -> Option<i64> {
        match &self.spec.contents {
            Contents::Copy { source_bytes, .. } => source_bytes.get().and_then(|bytes| i64::try_from(*bytes).ok()),
            Contents::Empty | Contents::Clone(_) | Contents::Restore(_) => None,
        }
    }

    /// Lets nobody in any more, the admin neither: from here on the template is only copied.
    pub(super) async fn seal_template(&self) -> Result<(), EngineError> {
        let session = self.server.admin_session().await?;
        self.join(&session, &self.spec.names.owner_role).await?;
        let database = ident(&self.spec.names.database);
        let statements = [
            format!("REVOKE ALL ON DATABASE {database} FROM PUBLIC"),
            format!("ALTER DATABASE {database} WITH ALLOW_CONNECTIONS false"),
        ];
        self.together(&session, "close the template", &statements).await
    }

    /// Lets the admin into a copy, and nobody else: one that is no superuser has no other way in.
    pub(super) async fn let_admin_in(&self, session: &Client) -> Result<(), EngineError> {
        if self.info.superuser {
            return Ok(());
        }
        let database = ident(&self.spec.names.database);
        self.join(session, &self.spec.names.owner_role).await?;
        let rights = [
            format!("GRANT CONNECT ON DATABASE {database} TO CURRENT_USER"),
            format!("REVOKE ALL ON DATABASE {database} FROM PUBLIC"),
        ];
        self.together(session, "close the copy to everybody else", &rights).await?;
        let row = session
            .query_one(
                "SELECT pg_catalog.has_database_privilege('public', $1::text, 'CONNECT')",
                &[&self.spec.names.database],
            )
            .await
            .map_err(refused("look at the copy's rights", self.profile()))?;
        if row.get(0) {
            return Err(EngineError::Refused {
                action: "close the copy to everybody else",
                sqlstate: SqlState::INSUFFICIENT_PRIVILEGE.code().to_owned(),
                detail: "its rights are not as they were set; it stays closed".to_owned(),
            });
        }
        let open = format!("ALTER DATABASE {database} WITH ALLOW_CONNECTIONS true");
        self.execute(session, "let the admin into the copy", &open).await
    }
}

/// Returns how the server is told to copy a database of `bytes`: `durable` is one that waits for its disk, `clones` one
/// that shares files instead of copying them.
fn fastest(bytes: i64, durable: bool, clones: bool) -> &'static str {
    if durable && !clones && bytes <= WAL_LOG_BYTES_MAX { " STRATEGY WAL_LOG" } else { " STRATEGY FILE_COPY" }
}

fn in_use(source: &SandboxNames, sessions: u32) -> EngineError {
    EngineError::Busy { what: format!("database `{}`", source.database), sessions }
}

/// Says that what was to be copied is not there.
fn source_gone(source: &SandboxNames) -> EngineError {
    let message = format!("database `{}`, which was to be copied, is gone", source.database);
    EngineError::Known(Box::new(Failure::new(Code::DatabaseNotFound, message)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_is_copied_in_the_way_that_costs_least() {
        let (log, files) = (" STRATEGY WAL_LOG", " STRATEGY FILE_COPY");
        assert_eq!(fastest(WAL_LOG_BYTES_MAX, true, false), log);
        assert_eq!(fastest(WAL_LOG_BYTES_MAX + 1, true, false), files);
        assert_eq!(fastest(1, false, false), files, "nothing waits for the disk");
        assert_eq!(fastest(1, true, true), files, "files are shared");
    }
}
