//! Whoever keeps us from closing or removing a sandbox: found, and ended if it is another sandbox.
//!
//! Sandboxes can hold each other's rows: a grant to a role, a grant on a database that the grantee may pass on, a
//! setting of one's own role in a database. And since 15 the server drops no database before every session has heard of
//! it, which one that waits for its client in the midst of a command does not (COPY whose rows do not come, rows that nobody
//! takes). What a sandbox holds is never a reason to keep another one. Whoever else holds it, an admin that removes another
//! sandbox or an operator, is waited for.

use std::collections::HashMap;
use std::future::{Future, pending};
use std::pin::pin;
use std::time::Duration;

use tokio::time::Instant;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

use super::Work;
use crate::engine::EngineError;
use crate::engine::postgres::admin::refused;
use crate::model::role_pattern;

/// The pause between two looks at who is in the way.
const HOLDERS_POLL: Duration = Duration::from_millis(50);
/// How long a statement goes on before it is looked at what it waits for.
const ATTENDED_AFTER: Duration = Duration::from_secs(1);
/// How long the server waits for sessions to hear of something before one that cannot is ended, in milliseconds.
const UNHEARD_AFTER_MS: f64 = 1_000.0;
/// Since this version the server drops no database before every session has heard of it.
const MAJOR_HEARD: u16 = 15;
/// How long it must have been seen without a move before.
const STILL_FOR: Duration = Duration::from_secs(2);
/// Stands for no session.
const NOBODY: i32 = 0;

/// Sessions that were seen waiting for their client: how they stood, and since when they stand so.
type Still = HashMap<i32, (String, Instant)>;

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

    /// Ends sandboxes' sessions that wait for their client and hear nothing meanwhile, while the server waits for all:
    /// whoever writes to a client that takes nothing, also at a command's end, and whoever reads in the midst of one.
    ///
    /// Only those that have not moved since the first of many looks: who is sent rows one after the other waits at most looks
    /// too, and hears between two of them.
    async fn end_unheard(&self, session: &Client, still: &mut Still) -> Result<(), EngineError> {
        if self.info.major < MAJOR_HEARD {
            return Ok(());
        }
        let failed = refused("end sessions that keep the server waiting", self.profile());
        let pattern = role_pattern(&self.server.settings().prefix);
        let waiting = session
            .query_typed(
                "SELECT a.pid, pg_catalog.concat_ws(' ', a.wait_event, a.backend_start, a.query_start, a.state_change, \
                 p.bytes_processed, p.tuples_processed) \
                 FROM pg_catalog.pg_stat_activity a LEFT JOIN pg_catalog.pg_stat_progress_copy p ON p.pid = a.pid \
                 WHERE a.usename::text ~ $1 AND (a.wait_event = 'ClientWrite' OR a.wait_event = 'ClientRead' \
                 AND a.state NOT IN ('idle', 'idle in transaction', 'idle in transaction (aborted)')) \
                 AND EXISTS (SELECT FROM pg_catalog.pg_stat_activity w WHERE w.wait_event = 'ProcSignalBarrier' \
                 AND w.query_start < pg_catalog.clock_timestamp() - $2 * interval '1 ms')",
                &[(&pattern, Type::TEXT), (&UNHEARD_AFTER_MS, Type::FLOAT8)],
            )
            .await
            .map_err(&failed)?;
        let now = Instant::now();
        let waiting: HashMap<i32, String> = waiting.iter().map(|row| (row.get(0), row.get(1))).collect();
        still.retain(|pid, (seen, _)| waiting.get(pid) == Some(seen));
        for (pid, seen) in waiting {
            let (_, since) = still.entry(pid).or_insert((seen, now));
            if now - *since < STILL_FOR {
                continue;
            }
            match session.query_typed("SELECT pg_catalog.pg_terminate_backend($1)", &[(&pid, Type::INT4)]).await {
                Ok(_) => {
                    tracing::warn!(sandbox = %self.spec.id, pid, "a session that kept the server waiting is ended")
                }
                // One of another admin's sandboxes: it is waited for.
                Err(e) if e.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {}
                Err(e) => return Err(failed(e)),
            }
        }
        Ok(())
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
            let mut still = Still::new();
            loop {
                let looked = async {
                    if let Some((inside, waiting)) = held_up {
                        self.end_holders(session, inside, waiting).await?;
                    }
                    self.end_unheard(session, &mut still).await
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
