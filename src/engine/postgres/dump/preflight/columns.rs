//! Looks at the columns of a source that are to be masked.

use super::super::job::{ClonePlan, DemandedMask, TableName};
use super::super::mask::{self, Column};
use super::Asking;
use crate::engine::EngineError;
use crate::engine::postgres::Param;

impl Asking<'_> {
    /// Adds what policies demand to be masked. What the source does not have shows nothing.
    pub(super) async fn demanded(&mut self, plan: &mut ClonePlan, demanded: &DemandedMask) -> Result<(), EngineError> {
        let DemandedMask { table, column, .. } = demanded;
        let found = |plan: &ClonePlan| plan.columns.iter().find(|c| c.table == *table && c.name == *column).cloned();
        if found(plan).is_none() {
            self.column(plan, table, column).await?;
        }
        if let Some(found) = found(plan) {
            plan.warnings.extend(mask::demand(&mut plan.masks, &found, demanded)?);
            return Ok(());
        }
        let sql = "SELECT 1::text FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace \
                   WHERE n.nspname = $1 AND c.relname = $2 AND a.attname = $3 AND c.relkind IN ('v', 'm')";
        let names = [&table.schema, &table.table, column].map(|name| Param::Text(name.clone()));
        if self.ask(sql, &names).await?.is_empty() {
            return Ok(());
        }
        let text = format!("`{table}` is a view, of which nothing can be masked but what it is made from");
        Err(mask::unmet(demanded, text, "an operator can let the policy name the columns of tables"))
    }

    pub(super) async fn column(
        &mut self,
        plan: &mut ClonePlan,
        table: &TableName,
        column: &str,
    ) -> Result<(), EngineError> {
        let sql = "SELECT format_type(a.atttypid, a.atttypmod), b.typname, b.typcategory, (a.attnotnull OR t.typnotnull)::text, \
                   (a.attgenerated <> '' OR a.attidentity <> '')::text, a.atttypmod::text, t.typbasetype::text \
                   FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace \
                   JOIN pg_type t ON t.oid = a.atttypid JOIN pg_type b ON b.oid = CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END \
                   WHERE n.nspname = $1 AND c.relname = $2 AND a.attname = $3 AND c.relkind IN ('r', 'p') \
                   AND a.attnum > 0 AND NOT a.attisdropped";
        let names = [&table.schema, &table.table, column].map(|name| Param::Text(name.to_owned()));
        for row in self.ask(sql, &names).await? {
            let [Some(declared), Some(base), Some(category), not_null, computed, modifier, _] = row.as_slice() else {
                continue;
            };
            let modifier = modifier.as_deref().and_then(|text| text.parse::<u32>().ok()).and_then(|m| m.checked_sub(4));
            let size = match base.as_str() {
                "numeric" => modifier.map(|m| (m >> 16).saturating_sub(m & 0x7ff)),
                _ => modifier,
            };
            plan.columns.push(Column {
                table: table.clone(),
                name: column.to_owned(),
                declared: declared.clone(),
                base: base.clone(),
                category: category.clone(),
                size,
                not_null: not_null.as_deref() == Some("true"),
                computed: computed.as_deref() == Some("true"),
            });
        }
        Ok(())
    }
}

/// Refuses a source that is newer than the server here, or too old.
fn version_mismatch(job: &CloneJob, source: u16, target: u16) -> Failure {
    let (text, hint) = if source > target {
        (
            format!("{} is Postgres {source}, newer than the sandbox's server, which is Postgres {target}", job.shown),
            format!("choose a profile of Postgres {source} or later"),
        )
    } else {
        (
            format!("{} is Postgres {source}, older than can be cloned", job.shown),
            format!("versions from {MAJOR_MIN} on can be cloned"),
        )
    };
    let mut failure = Failure::new(Code::VersionMismatch, text).hint(hint);
    let detail = failure.detail_mut();
    detail.source_version = Some(source.to_string());
    detail.target_version = Some(target.to_string());
    failure
}
