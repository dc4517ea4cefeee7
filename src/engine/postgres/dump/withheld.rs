//! Sees that no rows came over of tables whose rows were to stay at the source.
//!
//! A partition that is made there between the look and the dump is on nobody's list.

use super::job::CloneJob;
use super::known;
use crate::engine::EngineError;
use crate::engine::postgres::admin::{AdminSession, refused_unquoted};
use crate::model::{Code, Failure};

/// A table that holds rows for another or itself: by its file, as row security may hide them from its owner.
const WITH_ROWS: &str = "WITH RECURSIVE t (oid) AS (SELECT c.oid FROM pg_catalog.pg_class c \
     JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2 \
     UNION SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN t ON i.inhparent = t.oid) \
     SELECT FROM t JOIN pg_catalog.pg_class c ON c.oid = t.oid JOIN pg_catalog.pg_am a ON a.oid = c.relam \
     WHERE c.relkind = 'r' AND a.amname = 'heap' AND pg_catalog.pg_relation_size(c.oid) > 0 LIMIT 1";

/// Refuses a copy with rows that were to stay.
pub(super) async fn check(session: &AdminSession, profile: &str, job: &CloneJob) -> Result<(), EngineError> {
    let failed = refused_unquoted("look at the copy", profile);
    for table in &job.options.exclude_table_data {
        if session.query_opt(WITH_ROWS, &[&table.schema, &table.table]).await.map_err(&failed)?.is_some() {
            let text =
                format!("rows of `{table}` of {} came over that were to stay; everything begun was removed", job.shown);
            return Err(known(
                Failure::new(Code::Busy, text).hint("a partition was made at the source meanwhile; call again"),
            ));
        }
    }
    Ok(())
}
