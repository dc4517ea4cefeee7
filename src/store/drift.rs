//! Compares the metadata schema with what the migrations make: a column or an index that somebody changed by hand is
//! found before a statement meets it. Looks only.

use super::{Store, StoreError};

/// What the migrations make, a line each: what [`SHAPE`] returns of a schema that nobody touched.
const EXPECTED: &str = include_str!("migrations/shape.txt");

/// Describes the schema in lines that are the same on every major.
pub const SHAPE: &str = "
    select 'column ' || c.relname || '.' || a.attname || ' ' || pg_catalog.format_type(a.atttypid, a.atttypmod)
           || case when a.attnotnull then ' not null' else '' end
           || case when a.attidentity <> '' then ' identity' else '' end
           || coalesce(' default ' || pg_catalog.pg_get_expr(d.adbin, d.adrelid), '')
    from pg_catalog.pg_attribute a
    join pg_catalog.pg_class c on c.oid = a.attrelid
    left join pg_catalog.pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
    where c.relnamespace = (select oid from pg_catalog.pg_namespace where nspname = 'pgsandbox')
      and c.relkind in ('r', 'p', 'v', 'm', 'f') and a.attnum > 0 and not a.attisdropped
    union all
    select 'constraint ' || c.relname || ' ' || pg_catalog.pg_get_constraintdef(k.oid)
    from pg_catalog.pg_constraint k join pg_catalog.pg_class c on c.oid = k.conrelid
    where k.connamespace = (select oid from pg_catalog.pg_namespace where nspname = 'pgsandbox')
      and k.contype in ('p', 'u', 'c', 'f', 'x')
    union all
    select 'index ' || c.relname || ': ' || pg_catalog.pg_get_indexdef(i.indexrelid)
           || case when i.indisvalid then '' else ' (invalid)' end
    from pg_catalog.pg_index i join pg_catalog.pg_class c on c.oid = i.indexrelid
    where c.relnamespace = (select oid from pg_catalog.pg_namespace where nspname = 'pgsandbox')
    union all
    select 'trigger ' || c.relname || ' ' || t.tgname
    from pg_catalog.pg_trigger t join pg_catalog.pg_class c on c.oid = t.tgrelid
    where c.relnamespace = (select oid from pg_catalog.pg_namespace where nspname = 'pgsandbox') and not t.tgisinternal
    union all
    select 'rule ' || c.relname || ' ' || r.rulename
    from pg_catalog.pg_rewrite r join pg_catalog.pg_class c on c.oid = r.ev_class
    where c.relnamespace = (select oid from pg_catalog.pg_namespace where nspname = 'pgsandbox') and c.relkind <> 'v'
    union all
    select 'row security ' || c.relname from pg_catalog.pg_class c
    where c.relnamespace = (select oid from pg_catalog.pg_namespace where nspname = 'pgsandbox') and c.relrowsecurity
    order by 1";

/// How far the schema is from what this program made of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drift {
    /// What is there and was not made by this program.
    pub strange: Vec<String>,
    /// What this program made and is not there as it was.
    pub missing: Vec<String>,
}

impl Store {
    /// Compares the schema with what the migrations make.
    ///
    /// # Errors
    /// Fails if the catalogue cannot be read.
    pub async fn drift(&self) -> Result<Drift, StoreError> {
        let session = self.session("drift").await?;
        let rows = session.query(SHAPE, &[]).await.map_err(self.typed("look at the metadata schema"))?;
        let found: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        Ok(compare(&found))
    }

    /// Returns how many sandboxes are past their time and not being removed, and for how many seconds the first has been.
    ///
    /// # Errors
    /// Fails if the metadata cannot be read.
    pub async fn overdue(&self) -> Result<(i64, i64), StoreError> {
        let session = self.session("overdue").await?;
        let sql = "select count(*), coalesce(extract(epoch from pg_catalog.now() - min(expires_at)), 0)::bigint
                   from pgsandbox.sandboxes
                   where prefix = $1 and state = 'ready' and expires_at <= pg_catalog.now()";
        let row = session.query_one(sql, &[&self.prefix]).await;
        let row = row.map_err(self.typed("count what is past its time"))?;
        Ok((row.get(0), row.get(1)))
    }
}

fn compare(found: &[String]) -> Drift {
    let strange = found.iter().filter(|line| !EXPECTED.lines().any(|of| of == line.as_str()));
    let missing = EXPECTED.lines().filter(|line| !found.iter().any(|of| of == line));
    Drift { strange: strange.cloned().collect(), missing: missing.map(str::to_owned).collect() }
}
