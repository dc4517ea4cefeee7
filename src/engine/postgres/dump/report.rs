//! Looks at a copy: its statistics are rebuilt, its tables and rows counted, and what is not whole is named.

use std::sync::Arc;

use super::job::{CloneJob, CloneReport, TableRows};
use crate::engine::postgres::access;
use crate::engine::postgres::admin::{ident, refused};
use crate::engine::postgres::server::PostgresServer;
use crate::engine::{EngineError, SandboxSpec};
use crate::model::CredentialAccess;

/// Up to this size rows are counted; of a larger copy the server's estimates are told.
const COUNTED_BYTES_MAX: i64 = 256 << 20;
/// The most tables that are counted one by one.
const COUNTED_TABLES_MAX: usize = 1_000;
/// How many tables are told of by name.
const LARGEST_TOLD: usize = 20;
/// How many things that are not whole are named.
const NAMED_MAX: i64 = 50;

/// The tables that hold rows themselves, without the server's own and those of extensions.
const TABLES: &str = "FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
     WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema' AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d \
     WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = c.oid AND d.deptype = 'e')";

pub(super) async fn check(server: &Arc<PostgresServer>, spec: &SandboxSpec, job: &CloneJob) -> Result<(), EngineError> {
    let session = access::catalogue_session(server, spec, CredentialAccess::Owner).await?;
    let failed = refused("look at the copy", &server.settings().profile);
    session.answers_within(job.left());
    let time = format!("SET statement_timeout = {}", job.left().as_millis().max(1));
    session.batch_execute(&time).await.map_err(&failed)?;
    session.batch_execute("ANALYZE").await.map_err(&failed)?;
    let mut report = CloneReport::default();
    let size: i64 = session
        .query_one("SELECT pg_catalog.pg_database_size(pg_catalog.current_database())", &[])
        .await
        .map_err(&failed)?
        .get(0);
    let sql = format!(
        "SELECT n.nspname::text, c.relname::text, c.relkind = 'p', greatest(c.reltuples, 0)::pg_catalog.int8 {TABLES} \
         AND c.relkind IN ('r', 'p') ORDER BY 4 DESC, 1, 2"
    );
    let tables = session.query(sql.as_str(), &[]).await.map_err(&failed)?;
    report.tables = tables.len() as u64;
    report.counted = size <= COUNTED_BYTES_MAX && tables.len() <= COUNTED_TABLES_MAX;
    let mut rows = Vec::new();
    for row in tables.iter().filter(|row| !row.get::<_, bool>(2)) {
        let (schema, table, estimate): (String, String, i64) = (row.get(0), row.get(1), row.get(3));
        let count = if report.counted {
            let sql = format!("SELECT pg_catalog.count(*) FROM ONLY {}.{}", ident(&schema), ident(&table));
            session.query_one(sql.as_str(), &[]).await.map_err(&failed)?.get(0)
        } else {
            estimate
        };
        rows.push(TableRows { table: format!("{schema}.{table}"), rows: u64::try_from(count).unwrap_or_default() });
    }
    report.rows = rows.iter().map(|table| table.rows).sum();
    rows.sort_by(|a, b| b.rows.cmp(&a.rows).then_with(|| a.table.cmp(&b.table)));
    rows.truncate(LARGEST_TOLD);
    report.largest = rows;
    let names = async |sql: String| -> Result<Vec<String>, EngineError> {
        let rows = session.query(sql.as_str(), &[&NAMED_MAX]).await.map_err(&failed)?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    };
    report.extensions = names(
        "SELECT extname::text FROM pg_catalog.pg_extension WHERE extname <> 'plpgsql' ORDER BY 1 LIMIT $1 + 1000"
            .to_owned(),
    )
    .await?;
    report.invalid = names(
        "SELECT 'index ' || i.indexrelid::pg_catalog.regclass::text FROM pg_catalog.pg_index i WHERE NOT i.indisvalid \
         UNION ALL SELECT 'constraint ' || pg_catalog.quote_ident(k.conname) || ' of ' || k.conrelid::pg_catalog.regclass::text \
         FROM pg_catalog.pg_constraint k WHERE NOT k.convalidated AND k.conrelid <> 0 ORDER BY 1 LIMIT $1"
            .to_owned(),
    )
    .await?;
    report.unpopulated = names(format!(
        "SELECT c.oid::pg_catalog.regclass::text {TABLES} AND c.relkind = 'm' AND NOT c.relispopulated ORDER BY 1 LIMIT $1"
    ))
    .await?;
    // A second look at one sandbox finds the first one's.
    job.report.set(report).unwrap_or_default();
    Ok(())
}
