//! Looks at a copy: its statistics are rebuilt, its tables and rows counted, and what is not whole is named.

use std::sync::Arc;

use super::job::{CloneJob, CloneReport, TableRows};
use crate::engine::postgres::admin::{ident, refused_unquoted};
use crate::engine::postgres::server::PostgresServer;
use crate::engine::postgres::steps::Door;
use crate::engine::{EngineError, SandboxSpec};

/// Up to this size rows are counted; of a larger copy the server's estimates are told.
const COUNTED_BYTES_MAX: i64 = 256 << 20;
/// The most tables that are counted one by one.
const COUNTED_TABLES_MAX: usize = 1_000;
/// How many tables are told of by name.
const LARGEST_TOLD: usize = 20;
/// How many things that are not whole are named; more are counted.
const NAMED_MAX: usize = 50;

/// The tables that hold rows themselves, without the server's own and those of extensions.
const TABLES: &str = "FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
     WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema' AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d \
     WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = c.oid AND d.deptype = 'e')";

pub(super) async fn check(server: &Arc<PostgresServer>, spec: &SandboxSpec, job: &CloneJob) -> Result<(), EngineError> {
    let session = Door::of(server, spec).enter().await?;
    // ANALYZE runs functions of the source's indexes on its rows.
    let failed = refused_unquoted("look at the copy", &server.settings().profile);
    session.answers_within(job.left());
    let time = format!("SET statement_timeout = {}", job.left().as_millis().max(1));
    session.batch_execute(&time).await.map_err(&failed)?;
    session.batch_execute("ANALYZE").await.map_err(&failed)?;
    let mut report = CloneReport::default();
    let size: i64 = session
        .query_one(
            "SELECT coalesce(pg_catalog.sum(pg_catalog.pg_relation_size(oid)), 0)::pg_catalog.int8 \
             FROM pg_catalog.pg_class WHERE relkind IN ('r', 'i', 'm', 't')",
            &[],
        )
        .await
        .map_err(&failed)?
        .get(0);
    let sql = format!(
        "SELECT n.nspname::text, c.relname::text, c.relkind = 'p', greatest(c.reltuples, 0)::pg_catalog.int8 {TABLES} \
         AND c.relkind IN ('r', 'p') ORDER BY 4 DESC, 1, 2"
    );
    let tables = session.query(sql.as_str(), &[]).await.map_err(&failed)?;
    report.tables = tables.len() as u64;
    report.counted = are_counted(size, tables.len());
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
    report.largest = largest(rows);
    let names = async |sql: String| -> Result<Vec<String>, EngineError> {
        let rows = session.query(sql.as_str(), &[]).await.map_err(&failed)?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    };
    report.extensions =
        names("SELECT extname::text FROM pg_catalog.pg_extension WHERE extname <> 'plpgsql' ORDER BY 1".to_owned())
            .await?;
    let invalid = "SELECT 'index ' || i.indexrelid::pg_catalog.regclass::text FROM pg_catalog.pg_index i WHERE NOT i.indisvalid \
         UNION ALL SELECT 'constraint ' || pg_catalog.quote_ident(k.conname) || ' of ' || k.conrelid::pg_catalog.regclass::text \
         FROM pg_catalog.pg_constraint k WHERE NOT k.convalidated AND k.conrelid <> 0 ORDER BY 1";
    report.invalid = named(names(invalid.to_owned()).await?);
    let unpopulated = format!(
        "SELECT c.oid::pg_catalog.regclass::text {TABLES} AND c.relkind = 'm' AND NOT c.relispopulated ORDER BY 1"
    );
    report.unpopulated = named(names(unpopulated).await?);
    // A second look at one sandbox finds the first one's.
    job.report.set(report).unwrap_or_default();
    Ok(())
}

/// Returns whether the rows of a copy are counted one by one.
fn are_counted(bytes: i64, tables: usize) -> bool {
    bytes <= COUNTED_BYTES_MAX && tables <= COUNTED_TABLES_MAX
}

/// Returns the tables with the most rows.
fn largest(mut tables: Vec<TableRows>) -> Vec<TableRows> {
    tables.sort_by(|a, b| b.rows.cmp(&a.rows).then_with(|| a.table.cmp(&b.table)));
    tables.truncate(LARGEST_TOLD);
    tables
}

/// Returns the first names, and how many more there are.
fn named(mut names: Vec<String>) -> Vec<String> {
    if let Some(more) = names.len().checked_sub(NAMED_MAX).filter(|more| *more > 0) {
        names.truncate(NAMED_MAX);
        names.push(format!("{more} more"));
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_large_copy_are_estimates() {
        assert!(are_counted(COUNTED_BYTES_MAX, COUNTED_TABLES_MAX));
        assert!(!are_counted(COUNTED_BYTES_MAX + 1, 1));
        assert!(!are_counted(1, COUNTED_TABLES_MAX + 1));
    }

    #[test]
    fn the_tables_with_the_most_rows_are_told_and_no_more() {
        let tables = |count: u64| (0..count).map(|rows| TableRows { table: format!("t{rows}"), rows }).collect();
        for count in [LARGEST_TOLD - 1, LARGEST_TOLD, LARGEST_TOLD + 1] {
            let told = largest(tables(count as u64));
            assert_eq!(told.len(), count.min(LARGEST_TOLD));
            assert_eq!(told[0].rows, count as u64 - 1);
        }
    }

    #[test]
    fn what_is_not_whole_is_named_up_to_a_bound_and_counted_beyond() {
        let names = |count: usize| vec!["x".to_owned(); count];
        assert_eq!(named(names(NAMED_MAX)).len(), NAMED_MAX);
        assert_eq!(named(names(NAMED_MAX + 2)).last().unwrap(), "2 more");
    }
}
