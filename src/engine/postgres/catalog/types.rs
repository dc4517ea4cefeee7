//! Types, collations, conversions and text search.

use super::grants::Grantable;
use super::{Query, Reach, comment, no_extension, own_schema};
use crate::model::SchemaKind;

/// Majors from which a thing is in the catalogue, or bears its name there.
const MULTIRANGE_SINCE: u16 = 14;
const ICU_LOCALE_SINCE: u16 = 15;
const ICU_RULES_SINCE: u16 = 16;
const COLLATION_LOCALE_SINCE: u16 = 17;

pub(super) fn queries(major: u16) -> Vec<Query> {
    vec![
        types(major).granted_as(Grantable::Type),
        collations(major),
        conversions(),
        text_search_configurations(),
        text_search_dictionaries(),
    ]
}

fn types(major: u16) -> Query {
    let multirange = if major >= MULTIRANGE_SINCE {
        "(SELECT format_type(r.rngmultitypid, NULL) FROM pg_range r WHERE r.rngtypid = t.oid)"
    } else {
        "NULL::text"
    };
    let sql = format!(
        r#"SELECT n.nspname AS "schema", t.typname AS "name",
            CASE t.typtype WHEN 'e' THEN 'enum' WHEN 'd' THEN 'domain' WHEN 'c' THEN 'composite' WHEN 'r' THEN 'range'
                ELSE 'base' END AS "form",
            CASE WHEN t.typtype = 'e' THEN (
                SELECT string_agg(quote_literal(e.enumlabel), ', ' ORDER BY e.enumsortorder) FROM pg_enum e
                WHERE e.enumtypid = t.oid) END AS "values",
            CASE WHEN t.typtype = 'c' THEN (
                SELECT string_agg(quote_ident(a.attname) || ' ' || format_type(a.atttypid, a.atttypmod)
                    || CASE WHEN a.attcollation <> 0 AND a.attcollation <> at.typcollation THEN ' collate ' || (
                        SELECT quote_ident(cn.nspname) || '.' || quote_ident(co.collname) FROM pg_collation co
                        JOIN pg_namespace cn ON cn.oid = co.collnamespace WHERE co.oid = a.attcollation) ELSE '' END
                    || coalesce(' -- ' || {part_comment}, ''), ', ' ORDER BY a.attnum)
                FROM pg_attribute a JOIN pg_type at ON at.oid = a.atttypid
                WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped) END AS "attributes",
            CASE WHEN t.typtype = 'd' THEN format_type(t.typbasetype, t.typtypmod) END AS "base type",
            CASE WHEN t.typtype = 'd' AND t.typcollation <> b.typcollation THEN (
                SELECT quote_ident(cn.nspname) || '.' || quote_ident(co.collname) FROM pg_collation co
                JOIN pg_namespace cn ON cn.oid = co.collnamespace WHERE co.oid = t.typcollation) END AS "collation",
            CASE WHEN t.typtype = 'd' AND t.typnotnull THEN 'not null' END AS "nullability",
            CASE WHEN t.typtype = 'd' THEN coalesce(pg_get_expr(t.typdefaultbin, 0), t.typdefault) END AS "default",
            (SELECT string_agg(quote_ident(k.conname) || ' ' || pg_get_constraintdef(k.oid), ', ' ORDER BY k.conname)
                FROM pg_constraint k WHERE k.contypid = t.oid AND k.contype = 'c') AS "checks",
            (SELECT format_type(r.rngsubtype, NULL) FROM pg_range r WHERE r.rngtypid = t.oid) AS "subtype",
            (SELECT quote_ident(o.opcname) FROM pg_range r JOIN pg_opclass o ON o.oid = r.rngsubopc
                WHERE r.rngtypid = t.oid) AS "operator class",
            (SELECT nullif(r.rngcanonical, 0)::regproc::text FROM pg_range r WHERE r.rngtypid = t.oid) AS "canonical",
            (SELECT nullif(r.rngsubdiff, 0)::regproc::text FROM pg_range r WHERE r.rngtypid = t.oid) AS "difference",
            {multirange} AS "multirange",
            CASE WHEN t.typtype = 'b' THEN t.typinput::text || ', ' || t.typoutput::text END AS "functions",
            pg_get_userbyid(t.typowner) AS "owner", t.typacl AS "acl", {comment} AS "comment"
        FROM pg_type t
        JOIN pg_namespace n ON n.oid = t.typnamespace AND {own} AND {unowned}
        LEFT JOIN pg_class c ON c.oid = t.typrelid
        LEFT JOIN pg_type b ON b.oid = t.typbasetype
        WHERE (t.typtype IN ('e', 'd', 'r') OR t.typtype = 'c' AND c.relkind = 'c'
            OR t.typtype = 'b' AND NOT EXISTS (SELECT FROM pg_type e WHERE e.typarray = t.oid))"#,
        part_comment = comment("pg_class", "t.typrelid", "a.attnum"),
        own = own_schema("n"),
        unowned = no_extension("pg_type", "t.oid"),
        comment = comment("pg_type", "t.oid", "0"),
    );
    Query::new(SchemaKind::Type, Reach::Schema, sql)
}

fn collations(major: u16) -> Query {
    let locale = match major {
        COLLATION_LOCALE_SINCE.. => "coalesce(k.colllocale, k.collcollate)",
        ICU_LOCALE_SINCE.. => "coalesce(k.colliculocale, k.collcollate)",
        _ => "k.collcollate",
    };
    let rules = if major >= ICU_RULES_SINCE { "k.collicurules" } else { "NULL::text" };
    let sql = format!(
        r#"SELECT n.nspname AS "schema", k.collname AS "name",
            CASE k.collprovider WHEN 'i' THEN 'icu' WHEN 'c' THEN 'libc' WHEN 'b' THEN 'builtin' ELSE 'default' END
                AS "provider",
            {locale} AS "locale",
            CASE WHEN k.collprovider = 'c' AND k.collctype <> k.collcollate THEN k.collctype END AS "character type",
            CASE WHEN NOT k.collisdeterministic THEN 'no' END AS "deterministic", {rules} AS "rules",
            pg_get_userbyid(k.collowner) AS "owner", {comment} AS "comment"
        FROM pg_collation k JOIN pg_namespace n ON n.oid = k.collnamespace
        WHERE {own} AND {unowned}"#,
        own = own_schema("n"),
        unowned = no_extension("pg_collation", "k.oid"),
        comment = comment("pg_collation", "k.oid", "0"),
    );
    Query::new(SchemaKind::Collation, Reach::Schema, sql)
}

fn conversions() -> Query {
    let sql = format!(
        r#"SELECT n.nspname AS "schema", k.conname AS "name", pg_encoding_to_char(k.conforencoding) AS "from",
            pg_encoding_to_char(k.contoencoding) AS "to", k.conproc::text AS "function",
            CASE WHEN k.condefault THEN 'yes' END AS "default",
            pg_get_userbyid(k.conowner) AS "owner", {comment} AS "comment"
        FROM pg_conversion k JOIN pg_namespace n ON n.oid = k.connamespace
        WHERE {own} AND {unowned}"#,
        own = own_schema("n"),
        unowned = no_extension("pg_conversion", "k.oid"),
        comment = comment("pg_conversion", "k.oid", "0"),
    );
    Query::new(SchemaKind::Conversion, Reach::Schema, sql)
}

fn text_search_configurations() -> Query {
    let sql = format!(
        r#"SELECT n.nspname AS "schema", quote_ident(k.cfgname) || ' (configuration)' AS "object",
            (SELECT p.prsname FROM pg_ts_parser p WHERE p.oid = k.cfgparser) AS "parser",
            (SELECT string_agg(m.maptokentype || ': ' || m.mapdict::regdictionary::text, ', '
                ORDER BY m.maptokentype, m.mapseqno) FROM pg_ts_config_map m WHERE m.mapcfg = k.oid) AS "mappings",
            pg_get_userbyid(k.cfgowner) AS "owner", {comment} AS "comment"
        FROM pg_ts_config k JOIN pg_namespace n ON n.oid = k.cfgnamespace
        WHERE {own} AND {unowned}"#,
        own = own_schema("n"),
        unowned = no_extension("pg_ts_config", "k.oid"),
        comment = comment("pg_ts_config", "k.oid", "0"),
    );
    Query::new(SchemaKind::TextSearch, Reach::Schema, sql)
}

fn text_search_dictionaries() -> Query {
    let sql = format!(
        r#"SELECT n.nspname AS "schema", quote_ident(k.dictname) || ' (dictionary)' AS "object",
            (SELECT t.tmplname FROM pg_ts_template t WHERE t.oid = k.dicttemplate) AS "template",
            k.dictinitoption AS "options", pg_get_userbyid(k.dictowner) AS "owner", {comment} AS "comment"
        FROM pg_ts_dict k JOIN pg_namespace n ON n.oid = k.dictnamespace
        WHERE {own} AND {unowned}"#,
        own = own_schema("n"),
        unowned = no_extension("pg_ts_dict", "k.oid"),
        comment = comment("pg_ts_dict", "k.oid", "0"),
    );
    Query::new(SchemaKind::TextSearch, Reach::Schema, sql)
}
