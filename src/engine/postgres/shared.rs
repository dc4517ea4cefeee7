//! The catalogues that all databases of a managed server share, kept small.
//!
//! What sandboxes write there counts for none of them: comments on their databases, settings and passwords of their roles. So
//! its size is looked at as a whole, and nothing is done about it before it is far from what honest work needs. Then what
//! is too long is taken away, who wrote much of it is kept out for a while, and the room is given back. What a transaction
//! may still see cannot be; where that is much, old transactions of sandboxes are ended.
//!
//! Whose a row is that nobody sees any more cannot be told: who takes back each comment in the transaction that wrote it is
//! not kept out, and held only by what is given back in each round.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

use super::admin::{AdminSession, Chain, ident, literal, refused};
use super::managed::{ManagedCluster, Why};
use super::server::PostgresServer;
use super::steps::unseen;
use crate::engine::EngineError;
use crate::model::role_pattern;

/// What may lie in shared catalogues. A fresh server has less than a megabyte there, and a thousand sandboxes add one.
const SHARED_BYTES_MAX: i64 = 32 << 20;
/// The longest comment on a database, and settings of a role or database together, that are left where there is more. That
/// is as much of a comment as goes with an export.
const TEXT_BYTES_MAX: i32 = 8 << 10;
/// The longest password's verifier that is left; ours are of some 130 bytes.
const VERIFIER_BYTES_MAX: i32 = 1 << 10;
/// Who has more there is kept out for a while.
const KEPT_OUT_BYTES: i64 = 1 << 20;
/// So much that cannot be given back, as somebody may still see it, ends old transactions.
const SEEN_BYTES_MAX: i64 = 256 << 20;
/// How old a transaction is that is ended for it, in seconds.
const OLD_SECONDS: f64 = 120.0;
/// A catalogue's size from which it is worth looking for what it can give back.
const VACUUMED_BYTES_MIN: i64 = 1 << 20;
/// What is taken away in one round.
const TAKEN_AT_ONCE: i64 = 1000;
/// How long a change waits for what somebody holds; the next round tries it again.
const LOCK_TIMEOUT: &str = "500ms";
/// A kept row of the out-of-line texts, and of a catalogue, in bytes: the first is the largest one, the second a usual one.
const CHUNK_BYTES: i64 = 2_000;
const ROW_BYTES: i64 = 256;

/// Each shared catalogue: its name and what its rows take up, inside and out of line. Indexes do not shrink, and are left out.
const SIZES: &str = "
    SELECT relname::text, pg_catalog.pg_relation_size(oid)
        + CASE WHEN reltoastrelid = 0 THEN 0 ELSE pg_catalog.pg_relation_size(reltoastrelid) END,
        pg_catalog.pg_stat_get_dead_tuples(oid), pg_catalog.pg_stat_get_dead_tuples(reltoastrelid)
    FROM pg_catalog.pg_class WHERE relisshared AND relkind = 'r' ORDER BY 2 DESC";

/// Comments of sandboxes that are too long: the database, its owner, and what it takes up.
const COMMENTS: &str = "
    SELECT d.datname::text, pg_catalog.pg_get_userbyid(d.datdba)::text, pg_catalog.pg_column_size(s.description)::int8
    FROM pg_catalog.pg_shdescription s JOIN pg_catalog.pg_database d
        ON s.classoid = 'pg_catalog.pg_database'::pg_catalog.regclass AND s.objoid = d.oid
    WHERE pg_catalog.pg_column_size(s.description) > $2 AND pg_catalog.pg_get_userbyid(d.datdba)::text ~ $1
    ORDER BY 3 DESC LIMIT $3";

/// Settings of sandboxes beyond what may stand together, the longest of each: role, database and name of each, whose it is,
/// and what all of that role's in that database take up.
const SETTINGS: &str = "
    SELECT r.rolname::text, d.datname::text, x.name, coalesce(r.rolname, pg_catalog.pg_get_userbyid(d.datdba))::text, x.bytes
    FROM (SELECT s.setrole, s.setdatabase, pg_catalog.split_part(c, '=', 1) AS name,
            pg_catalog.pg_column_size(s.setconfig)::int8 AS bytes,
            sum(pg_catalog.octet_length(c)) OVER (PARTITION BY s.setrole, s.setdatabase
                ORDER BY pg_catalog.octet_length(c), c) AS together
        FROM pg_catalog.pg_db_role_setting s, pg_catalog.unnest(s.setconfig) c
        WHERE pg_catalog.pg_column_size(s.setconfig) > $2) x
    LEFT JOIN pg_catalog.pg_roles r ON r.oid = x.setrole LEFT JOIN pg_catalog.pg_database d ON d.oid = x.setdatabase
    WHERE x.together > $2 AND coalesce(r.rolname, pg_catalog.pg_get_userbyid(d.datdba))::text ~ $1 LIMIT $3";

/// Passwords of sandboxes' roles whose verifier is too long: the role twice, and what it takes up.
const VERIFIERS: &str = "
    SELECT rolname::text, rolname::text, pg_catalog.pg_column_size(rolpassword)::int8 FROM pg_catalog.pg_authid
    WHERE pg_catalog.pg_column_size(rolpassword) > $2 AND rolname::text ~ $1 ORDER BY 3 DESC LIMIT $3";

/// Something of a sandbox' that is too long.
struct TooLong {
    /// What takes it away.
    cure: String,
    /// The role that wrote it.
    role: String,
    bytes: i64,
}

/// How large the shared catalogues are.
pub(super) struct Sizes {
    /// All of them.
    pub(super) bytes: i64,
    /// About so much of it is of rows that are gone, and may still be seen.
    seen_bytes: i64,
    /// Each of some size.
    large: Vec<String>,
}

impl Sizes {
    /// Returns whether it is more than honest work needs.
    pub(super) fn is_too_much(&self) -> bool {
        self.bytes > SHARED_BYTES_MAX
    }

    /// Looks how large they are.
    pub(super) async fn read(session: &AdminSession, profile: &str) -> Result<Self, EngineError> {
        let failed = refused("say how large the shared catalogues are", profile);
        let rows = session.query_typed(SIZES, &[]).await.map_err(failed)?;
        let mut sizes = Self { bytes: 0, seen_bytes: 0, large: Vec::new() };
        for row in &rows {
            let (bytes, dead, dead_chunks): (i64, Option<i64>, Option<i64>) = (row.get(1), row.get(2), row.get(3));
            sizes.bytes += bytes;
            sizes.seen_bytes += dead.unwrap_or(0) * ROW_BYTES + dead_chunks.unwrap_or(0) * CHUNK_BYTES;
            if bytes > VACUUMED_BYTES_MIN {
                sizes.large.push(row.get(0));
            }
        }
        Ok(sizes)
    }
}

/// Does what there is to do about them in one round of upkeep; nothing on a server that somebody else runs.
pub(super) async fn keep_small(server: &Arc<PostgresServer>) -> Result<(), EngineError> {
    let Some(cluster) = server.managed() else { return Ok(()) };
    let profile = &server.settings().profile;
    let mut session = server.admin_session().await?;
    let sizes = Sizes::read(&session, profile).await?;
    if !sizes.is_too_much() {
        return Ok(());
    }
    tracing::warn!(profile, bytes = sizes.bytes, "more lies in the catalogues that all databases share than is needed");
    let pattern = role_pattern(&server.settings().prefix);
    let too_long = too_long(&session, profile, &pattern).await?;
    keep_out(cluster, &session, &too_long).await;
    for one in &too_long {
        take_away(&mut session, one).await;
    }
    for catalogue in &sizes.large {
        give_back(&session, catalogue).await;
    }
    let left = Sizes::read(&session, profile).await?;
    if left.is_too_much() && left.seen_bytes > SEEN_BYTES_MAX {
        end_old(&session, profile, &pattern).await?;
    }
    Ok(())
}

async fn too_long(session: &AdminSession, profile: &str, pattern: &str) -> Result<Vec<TooLong>, EngineError> {
    let failed = refused("say what is too long in the shared catalogues", profile);
    let ask = async |sql: &str, max: i32| {
        let parameters: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 3] =
            [(&pattern, Type::TEXT), (&max, Type::INT4), (&TAKEN_AT_ONCE, Type::INT8)];
        session.query_typed(sql, &parameters).await.map_err(&failed)
    };
    let mut found = Vec::new();
    for row in ask(COMMENTS, TEXT_BYTES_MAX).await? {
        let cure = format!("COMMENT ON DATABASE {} IS NULL", ident(row.get(0)));
        found.push(TooLong { cure, role: row.get(1), bytes: row.get(2) });
    }
    for row in ask(SETTINGS, TEXT_BYTES_MAX).await? {
        let whose = match (row.get::<_, Option<&str>>(0), row.get::<_, Option<&str>>(1)) {
            (Some(role), Some(database)) => format!("ROLE {} IN DATABASE {}", ident(role), ident(database)),
            (Some(role), None) => format!("ROLE {}", ident(role)),
            (None, Some(database)) => format!("DATABASE {}", ident(database)),
            (None, None) => continue,
        };
        found.push(TooLong {
            cure: format!("ALTER {whose} RESET {}", ident(row.get(2))),
            role: row.get(3),
            bytes: row.get(4),
        });
    }
    for row in ask(VERIFIERS, VERIFIER_BYTES_MAX).await? {
        // The sandbox' next call sets it back.
        let cure = format!("ALTER ROLE {} PASSWORD NULL", ident(row.get(0)));
        found.push(TooLong { cure, role: row.get(1), bytes: row.get(2) });
    }
    Ok(found)
}

/// Keeps those out who have written much.
async fn keep_out(cluster: &ManagedCluster, session: &AdminSession, too_long: &[TooLong]) {
    let mut written: BTreeMap<&str, i64> = BTreeMap::new();
    for one in too_long {
        let most = written.entry(&one.role).or_default();
        *most = one.bytes.max(*most);
    }
    for (role, _) in written.into_iter().filter(|(_, bytes)| *bytes > KEPT_OUT_BYTES) {
        cluster.keep_out(session, role, Why::Catalogues).await;
    }
}

async fn take_away(session: &mut AdminSession, too_long: &TooLong) {
    match cured(session, &too_long.cure).await {
        Ok(()) => tracing::warn!(
            role = too_long.role,
            bytes = too_long.bytes,
            "what was too long in a shared catalogue is gone"
        ),
        Err(error) => {
            // Not in the server's words: they may name the setting.
            let sqlstate = error.code().map(SqlState::code);
            tracing::warn!(
                role = too_long.role,
                sqlstate,
                "what is too long in a shared catalogue cannot be taken away yet"
            );
        }
    }
}

/// Carries out what takes something away. What a setting is called may be a sandbox' own word, so nobody reads it meanwhile.
async fn cured(session: &mut AdminSession, cure: &str) -> Result<(), tokio_postgres::Error> {
    let transaction = session.transaction().await?;
    transaction.batch_execute(&format!("SET LOCAL lock_timeout = {}", literal(LOCK_TIMEOUT))).await?;
    unseen(&transaction, cure).await?;
    transaction.commit().await
}

/// Gives the room of rows that nobody sees any more back to the disk. Unlike `VACUUM FULL` that keeps nobody from logging in:
/// a catalogue is held for itself only while its end is cut off, and only if nobody else wants it.
async fn give_back(session: &AdminSession, catalogue: &str) {
    let sql = format!("VACUUM (SKIP_LOCKED, TRUNCATE) pg_catalog.{}", ident(catalogue));
    if let Err(error) = session.batch_execute(&sql).await {
        tracing::warn!(catalogue, error = %Chain(&error), "a shared catalogue could not be made smaller now");
    }
}

/// Ends transactions of sandboxes that have seen for long what lies there.
async fn end_old(session: &AdminSession, profile: &str, pattern: &str) -> Result<(), EngineError> {
    let sql = "SELECT pg_catalog.count(*) FROM (SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity \
               WHERE usename::text ~ $1 AND (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL) \
               AND xact_start < pg_catalog.clock_timestamp() - $2 * interval '1 second') ended";
    let ended = session
        .query_typed_one(sql, &[(&pattern, Type::TEXT), (&OLD_SECONDS, Type::FLOAT8)])
        .await
        .map_err(refused("end old transactions", profile))?;
    let ended: i64 = ended.get(0);
    if ended > 0 {
        tracing::warn!(ended, "old transactions kept what is gone from the shared catalogues, and are ended");
    }
    Ok(())
}
