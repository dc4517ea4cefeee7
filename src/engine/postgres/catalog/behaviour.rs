//! What acts by itself when tables are used: triggers, rules, policies; and what leaves by publications.

use super::{Query, Reach, comment, no_extension, of_relation};
use crate::model::SchemaKind;

/// Majors from which a thing is in the catalogue.
const PUBLISHED_PARTS_SINCE: u16 = 15;
const PUBLISHED_GENERATED_SINCE: u16 = 18;

pub(super) fn queries(major: u16) -> Vec<Query> {
    vec![
        triggers().below_table(),
        rules().below_table(),
        policies().below_table(),
        publications(major),
        event_triggers(),
    ]
}

/// Says when something is fired, if not always.
fn enabled(column: &str) -> String {
    format!(
        "CASE {column} WHEN 'D' THEN 'never' WHEN 'R' THEN 'on replicas only' WHEN 'A' THEN 'always, on replicas too' END"
    )
}

/// Those that Postgres made for constraints are theirs, and those of a partition its parent's.
fn triggers() -> Query {
    let sql = format!(
        r#"SELECT n.nspname AS "schema", c.relname AS "of", t.tgname AS "name",
            pg_get_triggerdef(t.oid) AS "definition", {enabled} AS "fires", {comment} AS "comment"
        FROM pg_trigger t
        {relation}
        WHERE NOT t.tgisinternal AND t.tgparentid = 0"#,
        enabled = enabled("t.tgenabled"),
        relation = of_relation("t.tgrelid"),
        comment = comment("pg_trigger", "t.oid", "0"),
    );
    Query::new(SchemaKind::Trigger, Reach::Table, sql)
}

/// A view's own rule is its definition.
fn rules() -> Query {
    let sql = format!(
        r#"SELECT n.nspname AS "schema", c.relname AS "of", r.rulename AS "name",
            pg_get_ruledef(r.oid) AS "definition", {enabled} AS "fires", {comment} AS "comment"
        FROM pg_rewrite r
        {relation}
        WHERE r.rulename <> '_RETURN'"#,
        enabled = enabled("r.ev_enabled"),
        relation = of_relation("r.ev_class"),
        comment = comment("pg_rewrite", "r.oid", "0"),
    );
    Query::new(SchemaKind::Rule, Reach::Table, sql)
}

fn policies() -> Query {
    let sql = format!(
        r#"SELECT n.nspname AS "schema", c.relname AS "of", p.polname AS "name",
            CASE p.polcmd WHEN 'r' THEN 'SELECT' WHEN 'a' THEN 'INSERT' WHEN 'w' THEN 'UPDATE' WHEN 'd' THEN 'DELETE'
                ELSE 'ALL' END AS "command",
            CASE WHEN NOT p.polpermissive THEN 'yes' END AS "restrictive",
            CASE WHEN p.polroles <> '{{0}}' THEN (
                SELECT string_agg(CASE r WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(r)) END, ', '
                    ORDER BY pg_get_userbyid(r)) FROM unnest(p.polroles) r) END AS "roles",
            pg_get_expr(p.polqual, p.polrelid) AS "using", pg_get_expr(p.polwithcheck, p.polrelid) AS "check",
            {comment} AS "comment"
        FROM pg_policy p
        {relation}"#,
        relation = of_relation("p.polrelid"),
        comment = comment("pg_policy", "p.oid", "0"),
    );
    Query::new(SchemaKind::Policy, Reach::Table, sql)
}

fn publications(major: u16) -> Query {
    let (parts, schemas) = if major >= PUBLISHED_PARTS_SINCE {
        (
            "|| coalesce(' (' || (SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY a.attname) FROM pg_attribute a \
             WHERE a.attrelid = c.oid AND a.attnum = ANY (r.prattrs)) || ')', '') \
             || coalesce(' where ' || pg_get_expr(r.prqual, c.oid), '')",
            "(SELECT string_agg(quote_ident(s.nspname), ', ' ORDER BY s.nspname) FROM pg_publication_namespace r \
             JOIN pg_namespace s ON s.oid = r.pnnspid WHERE r.pnpubid = p.oid)",
        )
    } else {
        ("", "NULL::text")
    };
    let generated =
        if major >= PUBLISHED_GENERATED_SINCE { "CASE p.pubgencols WHEN 's' THEN 'stored' END" } else { "NULL::text" };
    let sql = format!(
        r#"SELECT p.pubname AS "name", CASE WHEN p.puballtables THEN 'yes' END AS "all tables",
            concat_ws(', ', CASE WHEN p.pubinsert THEN 'insert' END, CASE WHEN p.pubupdate THEN 'update' END,
                CASE WHEN p.pubdelete THEN 'delete' END, CASE WHEN p.pubtruncate THEN 'truncate' END) AS "publishes",
            CASE WHEN p.pubviaroot THEN 'yes' END AS "via the root",
            (SELECT string_agg(quote_ident(s.nspname) || '.' || quote_ident(c.relname) {parts}, ', '
                ORDER BY s.nspname, c.relname) FROM pg_publication_rel r JOIN pg_class c ON c.oid = r.prrelid
                JOIN pg_namespace s ON s.oid = c.relnamespace WHERE r.prpubid = p.oid) AS "tables",
            {schemas} AS "schemas", {generated} AS "generated columns",
            pg_get_userbyid(p.pubowner) AS "owner", {comment} AS "comment"
        FROM pg_publication p WHERE {unowned}"#,
        unowned = no_extension("pg_publication", "p.oid"),
        comment = comment("pg_publication", "p.oid", "0"),
    );
    Query::new(SchemaKind::Publication, Reach::Database, sql)
}

fn event_triggers() -> Query {
    let sql = format!(
        r#"SELECT e.evtname AS "name", e.evtevent AS "event", e.evtfoid::regproc::text AS "function",
            {enabled} AS "fires", array_to_string(e.evttags, ', ') AS "tags",
            pg_get_userbyid(e.evtowner) AS "owner", {comment} AS "comment"
        FROM pg_event_trigger e WHERE {unowned}"#,
        enabled = enabled("e.evtenabled"),
        unowned = no_extension("pg_event_trigger", "e.oid"),
        comment = comment("pg_event_trigger", "e.oid", "0"),
    );
    Query::new(SchemaKind::EventTrigger, Reach::Database, sql)
}
