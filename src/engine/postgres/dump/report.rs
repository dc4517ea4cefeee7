//! Looks at a copy: its statistics are rebuilt, its tables and rows counted, and what is not whole is named.

use std::slice::Chunks;
use std::sync::{Mutex, PoisonError};

use futures_util::future::{try_join, try_join_all, try_join3};

use super::job::{CloneJob, CloneReport, TableName, TableRows};
use super::known;
use crate::engine::postgres::admin::{AdminSession, ident, refused_unquoted};
use crate::engine::{EngineError, server_condition};
use crate::model::{Code, Failure};

/// Up to this size rows are counted; of a larger copy the server's estimates are told.
const COUNTED_BYTES_MAX: u64 = 256 << 20;
/// The most tables that are counted one by one.
const COUNTED_TABLES_MAX: usize = 1_000;
/// How many tables are told of by name.
const LARGEST_TOLD: usize = 20;
/// How many things that are not whole are named; more are counted.
const NAMED_MAX: usize = 50;

/// How many tables are looked at in one round trip.
const TABLES_AT_ONCE: usize = 8;

/// What is no system object.
const RELATIONS: &str = "FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
     WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'";
/// Whether it belongs to an extension.
const EXTENSIONS: &str = "EXISTS (SELECT FROM pg_catalog.pg_depend d \
     WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = c.oid AND d.deptype = 'e')";

/// One relation with rows, or with statistics of the rows below it.
struct Relation {
    schema: String,
    name: String,
    /// Whether it is a table, and no extension's.
    table: bool,
    /// Whether it has rows itself and is such a table.
    holds_rows: bool,
    /// Whether its statistics come with those of the table that it is a part of.
    part: bool,
}

/// Looks at a copy of so many bytes with one session of its owner's, and with a second one where there is one.
pub(super) async fn check(
    (session, beside): (AdminSession, Option<AdminSession>),
    bytes: u64,
    profile: &str,
    job: &CloneJob,
) -> Result<(), EngineError> {
    let failed = refused_unquoted("look at the copy", profile);
    for session in [Some(&session), beside.as_ref()].into_iter().flatten() {
        session.answers_within(job.left());
        // The statistics are on disk once the sandbox is noted as ready, which waits for all that was written before.
        let settings =
            format!("SET statement_timeout = {}; SET synchronous_commit = off", job.left().as_millis().max(1));
        session.batch_execute(&settings).await.map_err(&failed)?;
    }
    let mut report = CloneReport::default();
    let relations = relations(&session).await.map_err(&failed)?;
    let tables = relations.iter().filter(|relation| relation.table).count();
    report.tables = tables as u64;
    report.counted = are_counted(bytes, tables);
    let queue = Mutex::new(relations.chunks(TABLES_AT_ONCE));
    let go_through = async |session: &AdminSession| {
        let mut counted = Vec::new();
        while let Some(some) = next(&queue) {
            let looked = some.iter().map(async |relation| {
                let looked = look_at(session, relation, report.counted).await;
                looked.map_err(|error| unanalysed(relation, failed(error), job))
            });
            counted.extend(try_join_all(looked).await?.into_iter().flatten());
        }
        Ok::<_, EngineError>(counted)
    };
    let rows = match &beside {
        None => go_through(&session).await?,
        Some(beside) => {
            let (mine, others) = try_join(go_through(&session), go_through(beside)).await?;
            [mine, others].concat()
        }
    };
    let rows = if report.counted { rows } else { estimates(&session).await.map_err(&failed)? };
    report.rows = rows.iter().map(|table| table.rows).sum();
    report.largest = largest(rows);
    let names = async |sql: String| -> Result<Vec<String>, EngineError> {
        let rows = session.query(sql.as_str(), &[]).await.map_err(&failed)?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    };
    let extensions =
        names("SELECT extname::text FROM pg_catalog.pg_extension WHERE extname <> 'plpgsql' ORDER BY 1".to_owned());
    let invalid = "SELECT 'index ' || i.indexrelid::pg_catalog.regclass::text FROM pg_catalog.pg_index i WHERE NOT i.indisvalid \
         UNION ALL SELECT 'constraint ' || pg_catalog.quote_ident(k.conname) || ' of ' || k.conrelid::pg_catalog.regclass::text \
         FROM pg_catalog.pg_constraint k WHERE NOT k.convalidated AND k.conrelid <> 0 ORDER BY 1";
    let unpopulated = format!(
        "SELECT c.oid::pg_catalog.regclass::text {RELATIONS} AND NOT {EXTENSIONS} AND c.relkind = 'm' \
         AND NOT c.relispopulated ORDER BY 1"
    );
    let (extensions, invalid, unpopulated) =
        try_join3(extensions, names(invalid.to_owned()), names(unpopulated)).await?;
    report.extensions = extensions;
    report.invalid = named(invalid);
    report.unpopulated = named(unpopulated);
    // A second look at one sandbox finds the first one's.
    job.report.set(report).unwrap_or_default();
    Ok(())
}

/// Returns what has statistics, the largest first.
async fn relations(session: &AdminSession) -> Result<Vec<Relation>, tokio_postgres::Error> {
    let sql = format!(
        "SELECT n.nspname::text, c.relname::text, c.relkind IN ('r', 'p') AND NOT {EXTENSIONS}, \
         c.relkind = 'r' AND NOT {EXTENSIONS}, c.relispartition \
         {RELATIONS} AND c.relkind IN ('r', 'p', 'm') ORDER BY c.relpages DESC, 1, 2"
    );
    let rows = session.query(sql.as_str(), &[]).await?;
    let relation = |row: &tokio_postgres::Row| Relation {
        schema: row.get(0),
        name: row.get(1),
        table: row.get(2),
        holds_rows: row.get(3),
        part: row.get(4),
    };
    Ok(rows.iter().map(relation).collect())
}

fn next<'a>(queue: &Mutex<Chunks<'a, Relation>>) -> Option<&'a [Relation]> {
    queue.lock().unwrap_or_else(PoisonError::into_inner).next()
}

/// Rebuilds the statistics of one relation, and counts its rows where that is wanted.
async fn look_at(
    session: &AdminSession,
    relation: &Relation,
    counts: bool,
) -> Result<Option<TableRows>, tokio_postgres::Error> {
    let name = format!("{}.{}", ident(&relation.schema), ident(&relation.name));
    let analyse = async {
        if relation.part {
            return Ok(());
        }
        session.execute(format!("ANALYZE {name}").as_str(), &[]).await.map(drop)
    };
    let count = async {
        if !(counts && relation.holds_rows) {
            return Ok(None);
        }
        let sql = format!("SELECT pg_catalog.count(*) FROM ONLY {name}");
        session.query_typed_one(&sql, &[]).await.map(|row| Some(row.get::<_, i64>(0)))
    };
    // Sent one behind the other, without waiting.
    let ((), count) = try_join(analyse, count).await?;
    Ok(count.map(|count| table_rows(&relation.schema, &relation.name, count)))
}

/// Words why the statistics of a table cannot be had: the source's own functions run for them, on its rows, so the
/// server's words are not kept.
fn unanalysed(relation: &Relation, refused: EngineError, job: &CloneJob) -> EngineError {
    let EngineError::Refused { sqlstate, .. } = &refused else { return refused };
    if server_condition(sqlstate).is_some() {
        return refused;
    }
    let table = TableName { schema: relation.schema.clone(), table: relation.name.clone() };
    let text = format!("table `{table}` of {} cannot be analysed in the copy (SQLSTATE {sqlstate})", job.shown);
    let mut failure = Failure::new(Code::RestoreIncompatible, text).hint(
        "a function that its indexes or statistics are built on fails on its rows: correct it at the source, or leave the rows \
         out by `excludeTableData`",
    );
    failure.detail_mut().sqlstate = Some(sqlstate.clone());
    known(failure)
}

/// Returns the server's estimates of the rows of each table.
async fn estimates(session: &AdminSession) -> Result<Vec<TableRows>, tokio_postgres::Error> {
    let sql = format!(
        "SELECT n.nspname::text, c.relname::text, greatest(c.reltuples, 0)::pg_catalog.int8 \
         {RELATIONS} AND NOT {EXTENSIONS} AND c.relkind = 'r'"
    );
    let rows = session.query(sql.as_str(), &[]).await?;
    Ok(rows.iter().map(|row| table_rows(row.get(0), row.get(1), row.get(2))).collect())
}

fn table_rows(schema: &str, name: &str, rows: i64) -> TableRows {
    TableRows { table: format!("{schema}.{name}"), rows: u64::try_from(rows).unwrap_or_default() }
}

/// Returns whether the rows of a copy are counted one by one.
fn are_counted(bytes: u64, tables: usize) -> bool {
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
