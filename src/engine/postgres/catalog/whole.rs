//! What a database has as a whole: settings, schemas, extensions, privileges to come, and ways to other servers.
//!
//! Of options of foreign data only the names are read: there are passwords among them.

use super::grants::Grantable;
use super::{Query, Reach, comment, no_extension, own_schema};
use crate::model::SchemaKind;

pub(super) fn queries() -> Vec<Query> {
    let mut all = vec![
        database(),
        schemas().granted_as(Grantable::Schema),
        extensions(),
        wrappers().granted_as(Grantable::Wrapper),
        servers().granted_as(Grantable::Server),
        user_mappings(),
        privileges("<> 0", "", Grantable::ToCome),
    ];
    // What is given everywhere says all that objects are given, the usual too, which differs from kind to kind.
    all.extend(
        [
            ('r', Grantable::Table),
            ('S', Grantable::Sequence),
            ('f', Grantable::Function),
            ('T', Grantable::Type),
            ('n', Grantable::Schema),
        ]
        .map(|(letter, on)| privileges("= 0", &format!("AND d.defaclobjtype = '{letter}'"), on)),
    );
    all
}

fn database() -> Query {
    let sql = r#"SELECT 'settings' AS "object",
            (SELECT string_agg(o, ', ' ORDER BY o) FROM pg_db_role_setting s, unnest(s.setconfig) o
                WHERE s.setdatabase = d.oid AND s.setrole = 0) AS "settings",
            (SELECT string_agg(quote_ident(pg_get_userbyid(s.setrole)) || ': ' || o, ', ' ORDER BY s.setrole, o)
                FROM pg_db_role_setting s, unnest(s.setconfig) o
                WHERE s.setdatabase = d.oid AND s.setrole <> 0) AS "settings of roles",
            shobj_description(d.oid, 'pg_database') AS "comment"
        FROM pg_database d WHERE d.datname = current_database()"#;
    Query::new(SchemaKind::Database, Reach::Database, sql.to_owned())
}

fn schemas() -> Query {
    let sql = format!(
        r#"SELECT n.nspname AS "name", CASE n.nspowner WHEN 10 THEN '' ELSE pg_get_userbyid(n.nspowner) END AS "owner",
            n.nspacl AS "acl",
            nullif({comment}, CASE n.nspname WHEN 'public' THEN 'standard public schema' END) AS "comment"
        FROM pg_namespace n WHERE {own} AND {unowned}"#,
        own = own_schema("n"),
        unowned = no_extension("pg_namespace", "n.oid"),
        comment = comment("pg_namespace", "n.oid", "0"),
    );
    Query::new(SchemaKind::Schema, Reach::Schema, sql)
}

fn extensions() -> Query {
    let sql = r#"SELECT e.extname AS "name", e.extversion AS "version", quote_ident(n.nspname) AS "in schema"
        FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace"#;
    Query::new(SchemaKind::Extension, Reach::Database, sql.to_owned())
}

fn options(column: &str) -> String {
    format!(
        "CASE WHEN {column} IS NOT NULL THEN (
                SELECT string_agg(split_part(o, '=', 1), ', ' ORDER BY o) FROM unnest({column}) o) END"
    )
}

fn wrappers() -> Query {
    let sql = format!(
        r#"SELECT w.fdwname AS "name", nullif(w.fdwhandler, 0)::regproc::text AS "handler",
            nullif(w.fdwvalidator, 0)::regproc::text AS "validator", {options} AS "options set",
            pg_get_userbyid(w.fdwowner) AS "owner", w.fdwacl AS "acl", {comment} AS "comment"
        FROM pg_foreign_data_wrapper w WHERE {unowned}"#,
        options = options("w.fdwoptions"),
        unowned = no_extension("pg_foreign_data_wrapper", "w.oid"),
        comment = comment("pg_foreign_data_wrapper", "w.oid", "0"),
    );
    Query::new(SchemaKind::ForeignDataWrapper, Reach::Database, sql)
}

fn servers() -> Query {
    let sql = format!(
        r#"SELECT s.srvname AS "name", (SELECT w.fdwname FROM pg_foreign_data_wrapper w WHERE w.oid = s.srvfdw) AS "wrapper",
            s.srvtype AS "type", s.srvversion AS "version", {options} AS "options set",
            pg_get_userbyid(s.srvowner) AS "owner", s.srvacl AS "acl", {comment} AS "comment"
        FROM pg_foreign_server s WHERE {unowned}"#,
        options = options("s.srvoptions"),
        unowned = no_extension("pg_foreign_server", "s.oid"),
        comment = comment("pg_foreign_server", "s.oid", "0"),
    );
    Query::new(SchemaKind::ForeignServer, Reach::Database, sql)
}

/// Only that there is one: the catalogue itself is nobody's to read, as passwords are in it.
fn user_mappings() -> Query {
    let sql =
        r#"SELECT quote_ident(m.usename) || ' on ' || quote_ident(m.srvname) AS "object" FROM pg_user_mappings m"#;
    Query::new(SchemaKind::UserMapping, Reach::Database, sql.to_owned())
}

fn privileges(namespace: &str, of_kind: &str, on: Grantable) -> Query {
    let sql = format!(
        r#"SELECT 'of ' || quote_ident(pg_get_userbyid(d.defaclrole)) || ' on ' || CASE d.defaclobjtype WHEN 'r' THEN 'tables'
                WHEN 'S' THEN 'sequences' WHEN 'f' THEN 'functions' WHEN 'T' THEN 'types' WHEN 'n' THEN 'schemas'
                ELSE 'large objects' END || coalesce(' in ' || quote_ident(n.nspname), '') AS "object",
            d.defaclacl AS "acl"
        FROM pg_default_acl d LEFT JOIN pg_namespace n ON n.oid = d.defaclnamespace
        WHERE d.defaclnamespace {namespace} {of_kind}"#
    );
    Query::new(SchemaKind::DefaultPrivileges, Reach::Database, sql).granted_as(on)
}
