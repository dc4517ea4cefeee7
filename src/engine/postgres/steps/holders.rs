//! Whoever keeps us from closing or removing a sandbox: found, and ended if it is another sandbox.
//!
//! Sandboxes can hold each other's rows: a grant to a role, a grant on a database that the grantee may pass on, a
//! setting of one's own role in a database. What a sandbox holds is never a reason to keep another one. Whoever else holds it,
//! an admin that removes another sandbox or an operator, is waited for. Who does not hear of a removal is [`super::unheard`]'s.

use std::future::{Future, pending};
use std::pin::pin;
use std::time::Duration;

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::Work;
use super::unheard::Hearing;
use crate::engine::EngineError;
use crate::engine::postgres::admin::refused;
use crate::model::role_pattern;

/// The pause between two looks at who is in the way.
const HOLDERS_POLL: Duration = Duration::from_millis(50);
/// How long a statement goes on before it is looked at what it waits for.
const ATTENDED_AFTER: Duration = Duration::from_secs(1);
/// Stands for no session.
const NOBODY: i32 = 0;

impl Work<'_> {
    /// Carries out a statement of `session`, and ends other sandboxes' transactions that it waits for. `inside` is the
    /// database of another sandbox where the statement runs.
    ///
    /// That a row is held is seen only while somebody waits for it: by a session beside the one that waits.
    pub(in crate::engine::postgres) async fn against_holders<T>(
        &self,
        session: &Client,
        inside: Option<&str>,
        statement: impl Future<Output = Result<T, EngineError>>,
    ) -> Result<T, EngineError> {
        let waiting = self.number_of(session).await?;
        let Some(beside) = self.server.second_admin_session().await? else {
            self.end_holders(session, inside, NOBODY).await?;
            return statement.await;
        };
        self.while_it_waits(&beside, inside, waiting, statement).await
    }

    /// Carries out a statement for which every session must be heard; those of sandboxes that cannot hear are ended.
    pub(super) async fn attended<T>(
        &self,
        statement: impl Future<Output = Result<T, EngineError>>,
    ) -> Result<T, EngineError> {
        let mut statement = pin!(statement);
        if let Ok(done) = tokio::time::timeout(ATTENDED_AFTER, &mut statement).await {
            return done;
        }
        let Some(beside) = self.server.second_admin_session().await? else { return statement.await };
        self.beside(&beside, None, statement).await
    }

    /// Returns the number of a session.
    pub(super) async fn number_of(&self, session: &Client) -> Result<i32, EngineError> {
        let row = session.query_typed_one("SELECT pg_catalog.pg_backend_pid()", &[]).await;
        Ok(row.map_err(refused("learn the session's number", self.profile()))?.get(0))
    }

    /// Carries out a statement of session `waiting`; meanwhile `beside` ends what holds it up.
    pub(super) async fn while_it_waits<T>(
        &self,
        beside: &Client,
        inside: Option<&str>,
        waiting: i32,
        statement: impl Future<Output = Result<T, EngineError>>,
    ) -> Result<T, EngineError> {
        self.beside(beside, Some((inside, waiting)), statement).await
    }

    /// Carries out a statement; meanwhile `session` ends, again and again, who cannot hear, and, where it is said, who holds up
    /// the session of that number or is `inside` that database.
    async fn beside<T>(
        &self,
        session: &Client,
        held_up: Option<(Option<&str>, i32)>,
        statement: impl Future<Output = Result<T, EngineError>>,
    ) -> Result<T, EngineError> {
        let look = async {
            let mut hearing = Hearing::default();
            loop {
                let looked = async {
                    if let Some((inside, waiting)) = held_up {
                        self.end_holders(session, inside, waiting).await?;
                    }
                    self.end_unheard(session, &mut hearing).await
                };
                if let Err(error) = looked.await {
                    // What the statement says of it is what counts.
                    tracing::warn!(sandbox = %self.spec.id, %error, "who keeps the server waiting, or holds the sandbox, is not known");
                    return pending().await;
                }
                tokio::time::sleep(HOLDERS_POLL).await;
            }
        };
        tokio::select! {
            biased;
            done = statement => done,
            never = look => never,
        }
    }

    /// Ends other sandboxes' transactions that hold this one's roles or database, those that session `waiting` waits for,
    /// and those open in `inside`.
    async fn end_holders(&self, session: &Client, inside: Option<&str>, waiting: i32) -> Result<(), EngineError> {
        let failed = refused("end transactions that hold the sandbox", self.profile());
        let roles: Vec<&str> = self.roles().iter().map(|(role, ..)| *role).collect();
        let (pattern, filling) = (role_pattern(&self.server.settings().prefix), self.spec.names.filling_pattern());
        let rows = session
            .query(
                "WITH awaited AS (SELECT transactionid FROM pg_catalog.pg_locks \
                 WHERE pid = $5 AND NOT granted AND locktype = 'transactionid') \
                 SELECT DISTINCT a.pid, p.gid, p.owner::text, p.database::text FROM pg_catalog.pg_locks l \
                 LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid \
                 LEFT JOIN pg_catalog.pg_locks t ON l.pid IS NULL AND t.pid IS NULL AND t.locktype = 'transactionid' \
                 AND t.virtualtransaction = l.virtualtransaction \
                 LEFT JOIN pg_catalog.pg_prepared_xacts p ON p.transaction = t.transactionid \
                 WHERE l.granted AND l.pid IS DISTINCT FROM pg_catalog.pg_backend_pid() \
                 AND coalesce(a.usename, p.owner)::text ~ $1 \
                 AND (l.locktype = 'object' AND (l.classid = 'pg_catalog.pg_authid'::pg_catalog.regclass \
                 AND l.objid IN (SELECT oid FROM pg_catalog.pg_roles WHERE rolname = ANY ($2) OR rolname::text ~ $6) \
                 OR l.classid = 'pg_catalog.pg_database'::pg_catalog.regclass \
                 AND l.objid = (SELECT oid FROM pg_catalog.pg_database WHERE datname = $3)) \
                 OR l.pid = ANY (pg_catalog.pg_blocking_pids($5)) \
                 OR l.pid IS NULL AND l.locktype = 'transactionid' \
                 AND l.transactionid IN (SELECT transactionid FROM awaited) \
                 OR coalesce(a.datname, p.database) = $4 AND (p.gid IS NOT NULL OR a.xact_start IS NOT NULL))",
                &[&pattern, &roles, &self.spec.names.database, &inside, &waiting, &filling],
            )
            .await
            .map_err(&failed)?;
        for row in rows {
            let (pid, gid): (Option<i32>, Option<String>) = (row.get(0), row.get(1));
            if let Some(pid) = pid {
                tracing::warn!(sandbox = %self.spec.id, pid, "a transaction of another sandbox held it and is ended");
                match session.execute("SELECT pg_catalog.pg_terminate_backend($1)", &[&pid]).await {
                    Ok(_) => {}
                    Err(e) if e.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {}
                    Err(e) => return Err(failed(e)),
                }
            } else if let (Some(gid), Some(owner), Some(database)) = (gid, row.get(2), row.get(3)) {
                let (owner, database): (String, String) = (owner, database);
                let there = self.server.session_in(&database).await?;
                self.roll_back(&there, &gid, &owner).await?;
            }
        }
        Ok(())
    }
}
