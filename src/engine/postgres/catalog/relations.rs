//! Tables and views, and what tables are made of: columns, constraints, indexes, sequences, statistics.

use super::grants::Grantable;
use super::{Query, Reach, comment, no_extension, of_relation, own_schema};
use crate::model::SchemaKind;

/// Majors from which a thing is in the catalogue.
const COMPRESSION_SINCE: u16 = 14;
const UNCHECKED_NOT_NULL_SINCE: u16 = 18;
/// The number of the access method `heap`, on every server (`HEAP_TABLE_AM_OID`).
const HEAP_OID: u32 = 2;

pub(super) fn queries(major: u16) -> Vec<Query> {
    vec![
        relations().granted_as(Grantable::Table),
        columns(major).below_table().granted_as(Grantable::Column),
        constraints().below_table(),
        indexes(),
        sequences().granted_as(Grantable::Sequence),
        statistics(),
    ]
}

fn relations() -> Query {
    let sql = format!(
        r#"SELECT CASE c.relkind WHEN 'v' THEN 'view' WHEN 'm' THEN 'materializedView' ELSE 'table' END AS "kind",
            n.nspname AS "schema", c.relname AS "name",
            CASE c.relkind WHEN 'p' THEN 'partitioned' WHEN 'f' THEN 'foreign' END AS "form",
            CASE c.relpersistence WHEN 'u' THEN 'unlogged' WHEN 't' THEN 'temporary' END AS "persistence",
            CASE WHEN c.reloftype <> 0 THEN format_type(c.reloftype, NULL) END AS "of type",
            CASE WHEN c.relkind = 'p' THEN pg_get_partkeydef(c.oid) END AS "partition key",
            (SELECT string_agg(quote_ident(pn.nspname) || '.' || quote_ident(p.relname), ', ' ORDER BY i.inhseqno)
                FROM pg_inherits i JOIN pg_class p ON p.oid = i.inhparent JOIN pg_namespace pn ON pn.oid = p.relnamespace
                WHERE i.inhrelid = c.oid) AS "parents",
            CASE WHEN c.relispartition THEN pg_get_expr(c.relpartbound, c.oid) END AS "partition bound",
            CASE WHEN c.reloptions IS NOT NULL THEN (
                SELECT string_agg(o, ', ' ORDER BY o) FROM unnest(c.reloptions) o) END AS "storage parameters",
            CASE WHEN c.reltoastrelid <> 0 THEN (
                SELECT string_agg(o, ', ' ORDER BY o) FROM pg_class t, unnest(t.reloptions) o
                WHERE t.oid = c.reltoastrelid) END AS "toast parameters",
            CASE WHEN c.relrowsecurity THEN 'enabled' END AS "row security",
            CASE WHEN c.relforcerowsecurity THEN 'also for the owner' END AS "row security applies",
            CASE WHEN c.relkind IN ('r', 'p', 'm') THEN CASE c.relreplident WHEN 'n' THEN 'nothing' WHEN 'f' THEN 'full'
                WHEN 'i' THEN 'an index' END END AS "replica identity",
            CASE WHEN c.relam NOT IN (0, {HEAP_OID}) THEN (
                SELECT am.amname FROM pg_am am WHERE am.oid = c.relam AND am.amname <> 'heap') END AS "access method",
            CASE WHEN c.reltablespace <> 0 THEN (
                SELECT t.spcname FROM pg_tablespace t WHERE t.oid = c.reltablespace) END AS "tablespace",
            CASE WHEN c.relkind = 'f' THEN (
                SELECT fs.srvname FROM pg_foreign_table ft JOIN pg_foreign_server fs ON fs.oid = ft.ftserver
                WHERE ft.ftrelid = c.oid) END AS "server",
            CASE WHEN c.relkind = 'f' THEN (
                SELECT string_agg(split_part(o, '=', 1), ', ' ORDER BY o) FROM pg_foreign_table ft, unnest(ft.ftoptions) o
                WHERE ft.ftrelid = c.oid) END AS "options set",
            CASE WHEN c.relkind IN ('v', 'm') THEN pg_get_viewdef(c.oid) END AS "definition",
            CASE WHEN c.relkind NOT IN ('v', 'm') THEN (
                SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum) FROM pg_attribute a
                WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) END AS "column order",
            pg_get_userbyid(c.relowner) AS "owner", c.relacl AS "acl", {comment} AS "comment"
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relkind IN ('r', 'p', 'f', 'v', 'm') AND ($2::text IS NULL OR c.relname = $2) AND {own} AND {unowned}"#,
        comment = comment("pg_class", "c.oid", "0"),
        own = own_schema("n"),
        unowned = no_extension("pg_class", "c.oid"),
    );
    Query::new(SchemaKind::Table, Reach::Table, sql)
}

fn columns(major: u16) -> Query {
    let compression = if major >= COMPRESSION_SINCE {
        "CASE a.attcompression WHEN 'p' THEN 'pglz' WHEN 'l' THEN 'lz4' END"
    } else {
        "NULL::text"
    };
    // A server that keeps NOT NULL as a constraint knows more of it than that it is there.
    let not_null = if major >= UNCHECKED_NOT_NULL_SINCE {
        "(SELECT 'not null' || CASE WHEN NOT k.convalidated THEN ' not valid' ELSE '' END \
          || CASE WHEN k.connoinherit THEN ' no inherit' ELSE '' END \
          FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype = 'n' AND k.conkey = ARRAY[a.attnum])"
    } else {
        "NULL::text"
    };
    let sql = format!(
        r#"SELECT n.nspname AS "schema", c.relname AS "of", a.attname AS "name",
            format_type(a.atttypid, a.atttypmod) AS "type",
            CASE WHEN a.attnotnull THEN coalesce({not_null}, 'not null') END AS "nullability",
            CASE WHEN a.attgenerated = '' THEN pg_get_expr(ad.adbin, ad.adrelid) END AS "default",
            CASE a.attgenerated WHEN 's' THEN 'stored: ' || pg_get_expr(ad.adbin, ad.adrelid)
                WHEN 'v' THEN 'virtual: ' || pg_get_expr(ad.adbin, ad.adrelid) END AS "generated",
            CASE a.attidentity WHEN 'a' THEN 'always' WHEN 'd' THEN 'by default' END AS "identity",
            CASE WHEN a.attcollation <> 0 AND a.attcollation <> t.typcollation THEN (
                SELECT quote_ident(cn.nspname) || '.' || quote_ident(co.collname)
                FROM pg_collation co JOIN pg_namespace cn ON cn.oid = co.collnamespace WHERE co.oid = a.attcollation)
                END AS "collation",
            CASE WHEN a.attstorage <> t.typstorage AND c.relkind NOT IN ('v', 'f') THEN CASE a.attstorage
                WHEN 'p' THEN 'plain' WHEN 'e' THEN 'external' WHEN 'm' THEN 'main' ELSE 'extended' END END AS "storage",
            {compression} AS "compression",
            nullif(a.attstattarget, -1) AS "statistics target",
            CASE WHEN a.attoptions IS NOT NULL THEN (
                SELECT string_agg(o, ', ' ORDER BY o) FROM unnest(a.attoptions) o) END AS "parameters",
            CASE WHEN a.attfdwoptions IS NOT NULL THEN (
                SELECT string_agg(split_part(o, '=', 1), ', ' ORDER BY o) FROM unnest(a.attfdwoptions) o) END AS "options set",
            CASE WHEN NOT a.attislocal THEN 'from a parent' END AS "inherited",
            a.attacl AS "acl", {comment} AS "comment"
        FROM pg_attribute a
        {relation} AND c.relkind IN ('r', 'p', 'f', 'v', 'm')
        JOIN pg_type t ON t.oid = a.atttypid
        LEFT JOIN pg_attrdef ad ON ad.adrelid = a.attrelid AND ad.adnum = a.attnum
        WHERE a.attnum > 0 AND NOT a.attisdropped"#,
        relation = of_relation("a.attrelid"),
        comment = comment("pg_class", "c.oid", "a.attnum"),
    );
    Query::new(SchemaKind::Column, Reach::Table, sql)
}

/// NOT NULL is its column's, and what a partition has of its parent is the parent's.
fn constraints() -> Query {
    let sql = format!(
        r#"SELECT n.nspname AS "schema", c.relname AS "of", k.conname AS "name",
            pg_get_constraintdef(k.oid) AS "definition",
            CASE WHEN NOT k.conislocal THEN 'from a parent' END AS "inherited",
            {comment} AS "comment"
        FROM pg_constraint k
        {relation}
        WHERE k.contype IN ('p', 'u', 'c', 'f', 'x') AND k.conparentid = 0"#,
        relation = of_relation("k.conrelid"),
        comment = comment("pg_constraint", "k.oid", "0"),
    );
    Query::new(SchemaKind::Constraint, Reach::Table, sql)
}

fn indexes() -> Query {
    let sql = format!(
        r#"SELECT n.nspname AS "schema", c.relname AS "of", i.relname AS "name",
            pg_get_indexdef(i.oid) AS "definition",
            (SELECT quote_ident(k.conname) FROM pg_constraint k
                WHERE k.conindid = i.oid AND k.conrelid = c.oid AND k.contype IN ('p', 'u', 'x')) AS "constraint",
            CASE WHEN x.indisprimary THEN 'yes' END AS "primary key",
            CASE WHEN NOT x.indisvalid THEN 'no' END AS "valid",
            CASE WHEN x.indisclustered THEN 'yes' END AS "clustered on",
            CASE WHEN x.indisreplident THEN 'yes' END AS "replica identity",
            CASE WHEN i.reltablespace <> 0 THEN (
                SELECT t.spcname FROM pg_tablespace t WHERE t.oid = i.reltablespace) END AS "tablespace",
            CASE WHEN x.indexprs IS NOT NULL THEN (
                SELECT string_agg(a.attnum || ': ' || a.attstattarget, ', ' ORDER BY a.attnum) FROM pg_attribute a
                WHERE a.attrelid = i.oid AND a.attstattarget >= 0) END AS "statistics targets",
            {comment} AS "comment"
        FROM pg_index x
        JOIN pg_class i ON i.oid = x.indexrelid AND NOT i.relispartition
        {relation}"#,
        relation = of_relation("x.indrelid"),
        comment = comment("pg_class", "i.oid", "0"),
    );
    Query::new(SchemaKind::Index, Reach::Table, sql)
}

/// A sequence that a column owns is its table's; `$2` is looked for there.
fn sequences() -> Query {
    let sql = format!(
        r#"SELECT n.nspname AS "schema", c.relname AS "name", o.relname AS "of",
            format_type(s.seqtypid, NULL) AS "type", s.seqstart AS "start", s.seqincrement AS "increment",
            s.seqmin AS "minimum", s.seqmax AS "maximum", s.seqcache AS "cache",
            CASE WHEN s.seqcycle THEN 'yes' END AS "cycle",
            CASE c.relpersistence WHEN 'u' THEN 'unlogged' END AS "persistence",
            CASE WHEN o.oid IS NOT NULL THEN quote_ident(o.nspname) || '.' || quote_ident(o.relname) || '.'
                || quote_ident(o.attname) END AS "owned by",
            pg_get_userbyid(c.relowner) AS "owner", c.relacl AS "acl", {comment} AS "comment"
        FROM pg_sequence s
        JOIN pg_class c ON c.oid = s.seqrelid
        JOIN pg_namespace n ON n.oid = c.relnamespace AND {own} AND {unowned}
        LEFT JOIN LATERAL (
            SELECT o.oid, o.relname, r.nspname, a.attname FROM pg_depend d
            JOIN pg_class o ON o.oid = d.refobjid
            JOIN pg_namespace r ON r.oid = o.relnamespace
            JOIN pg_attribute a ON a.attrelid = o.oid AND a.attnum = d.refobjsubid
            WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.objsubid = 0
                AND d.refclassid = 'pg_class'::regclass AND d.deptype IN ('a', 'i') LIMIT 1) o ON true
        WHERE $2::text IS NULL OR o.relname = $2"#,
        own = own_schema("n"),
        unowned = no_extension("pg_class", "c.oid"),
        comment = comment("pg_class", "c.oid", "0"),
    );
    Query::new(SchemaKind::Sequence, Reach::Table, sql)
}

/// What is of a table in another schema is named in its own.
fn statistics() -> Query {
    let sql = format!(
        r#"SELECT sn.nspname AS "schema", c.relname AS "of", s.stxname AS "name",
            pg_get_statisticsobjdef(s.oid) AS "definition", nullif(s.stxstattarget, -1) AS "statistics target",
            pg_get_userbyid(s.stxowner) AS "owner", {comment} AS "comment"
        FROM pg_statistic_ext s
        JOIN pg_namespace sn ON sn.oid = s.stxnamespace
        {relation}
        WHERE {unowned}"#,
        relation = of_relation("s.stxrelid"),
        unowned = no_extension("pg_statistic_ext", "s.oid"),
        comment = comment("pg_statistic_ext", "s.oid", "0"),
    );
    Query::new(SchemaKind::Statistics, Reach::Table, sql)
}
