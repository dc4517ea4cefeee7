//! Functions, operators and what is made of them, casts, languages.

use super::grants::Grantable;
use super::{Query, Reach, comment, no_extension, own_schema};
use crate::model::SchemaKind;

/// The major from which a function's body may be kept as it was parsed.
const PARSED_BODY_SINCE: u16 = 14;
/// The least number that an object of a user's has, as Postgres counts (`FirstNormalObjectId`).
const USER_OID_MIN: u32 = 16_384;

pub(super) fn queries(major: u16) -> Vec<Query> {
    vec![
        functions(major).granted_as(Grantable::Function),
        operators(),
        operator_families(),
        operator_classes(),
        casts(),
        languages().granted_as(Grantable::Language),
    ]
}

fn functions(major: u16) -> Query {
    let body =
        if major >= PARSED_BODY_SINCE { "coalesce(pg_get_function_sqlbody(p.oid), p.prosrc)" } else { "p.prosrc" };
    let sql = format!(
        r#"SELECT n.nspname AS "schema",
            quote_ident(p.proname) || '(' || pg_get_function_identity_arguments(p.oid) || ')' AS "object",
            CASE p.prokind WHEN 'p' THEN 'procedure' WHEN 'a' THEN 'aggregate' WHEN 'w' THEN 'window' ELSE 'function' END
                AS "form",
            nullif(pg_get_function_arguments(p.oid), pg_get_function_identity_arguments(p.oid)) AS "arguments",
            pg_get_function_result(p.oid) AS "result",
            CASE WHEN p.prokind <> 'a' THEN l.lanname END AS "language",
            CASE p.provolatile WHEN 'i' THEN 'immutable' WHEN 's' THEN 'stable' END AS "volatility",
            CASE WHEN p.proisstrict THEN 'yes' END AS "strict",
            CASE WHEN p.prosecdef THEN 'definer' END AS "security",
            CASE WHEN p.proleakproof THEN 'yes' END AS "leakproof",
            CASE p.proparallel WHEN 's' THEN 'safe' WHEN 'r' THEN 'restricted' END AS "parallel",
            CASE WHEN p.procost <> CASE WHEN l.lanname IN ('c', 'internal') THEN 1 ELSE 100 END THEN p.procost END AS "cost",
            CASE WHEN p.proretset AND p.prorows <> 1000 THEN p.prorows END AS "rows",
            nullif(p.prosupport, 0)::regproc::text AS "support function",
            CASE WHEN p.proconfig IS NOT NULL THEN (
                SELECT string_agg(o, ', ' ORDER BY o) FROM unnest(p.proconfig) o) END AS "settings",
            CASE WHEN p.prokind <> 'a' THEN {body} END AS "body",
            p.probin AS "library",
            a.aggtransfn::regproc::text AS "transition function",
            format_type(nullif(a.aggtranstype, 0), NULL) AS "state type",
            a.agginitval AS "initial value",
            nullif(a.aggfinalfn, 0)::regproc::text AS "final function",
            nullif(a.aggcombinefn, 0)::regproc::text AS "combine function",
            nullif(a.aggmtransfn, 0)::regproc::text AS "moving transition function",
            nullif(a.aggsortop, 0)::regoperator::text AS "sort operator",
            CASE a.aggkind WHEN 'o' THEN 'ordered set' WHEN 'h' THEN 'hypothetical set' END AS "aggregate form",
            pg_get_userbyid(p.proowner) AS "owner", p.proacl AS "acl", {comment} AS "comment"
        FROM pg_proc p
        JOIN pg_namespace n ON n.oid = p.pronamespace AND {own} AND {unowned}
        JOIN pg_language l ON l.oid = p.prolang
        LEFT JOIN pg_aggregate a ON a.aggfnoid = p.oid
        WHERE NOT EXISTS (SELECT FROM pg_depend i WHERE i.classid = 'pg_proc'::regclass AND i.objid = p.oid
            AND i.deptype = 'i')"#,
        own = own_schema("n"),
        unowned = no_extension("pg_proc", "p.oid"),
        comment = comment("pg_proc", "p.oid", "0"),
    );
    Query::new(SchemaKind::Function, Reach::Schema, sql)
}

fn operators() -> Query {
    let sql = format!(
        r#"SELECT n.nspname AS "schema",
            o.oprname || '(' || coalesce(format_type(nullif(o.oprleft, 0), NULL), 'none') || ', '
                || coalesce(format_type(nullif(o.oprright, 0), NULL), 'none') || ')' AS "object",
            format_type(nullif(o.oprresult, 0), NULL) AS "result", nullif(o.oprcode, 0)::regproc::text AS "function",
            nullif(o.oprcom, 0)::regoperator::text AS "commutator", nullif(o.oprnegate, 0)::regoperator::text AS "negator",
            nullif(o.oprrest, 0)::regproc::text AS "restriction estimate", nullif(o.oprjoin, 0)::regproc::text AS "join estimate",
            CASE WHEN o.oprcanmerge THEN 'yes' END AS "merges", CASE WHEN o.oprcanhash THEN 'yes' END AS "hashes",
            pg_get_userbyid(o.oprowner) AS "owner", {comment} AS "comment"
        FROM pg_operator o JOIN pg_namespace n ON n.oid = o.oprnamespace
        WHERE {own} AND {unowned}"#,
        own = own_schema("n"),
        unowned = no_extension("pg_operator", "o.oid"),
        comment = comment("pg_operator", "o.oid", "0"),
    );
    Query::new(SchemaKind::Operator, Reach::Schema, sql)
}

fn operator_families() -> Query {
    let sql = format!(
        r#"SELECT n.nspname AS "schema", quote_ident(f.opfname) || ' using ' || quote_ident(m.amname) AS "object",
            (SELECT string_agg(a.amopstrategy || ' ' || a.amopopr::regoperator::text, ', '
                ORDER BY a.amopstrategy, a.amopopr::regoperator::text) FROM pg_amop a WHERE a.amopfamily = f.oid)
                AS "operators",
            (SELECT string_agg(a.amprocnum || ' ' || a.amproc::regprocedure::text, ', '
                ORDER BY a.amprocnum, a.amproc::regprocedure::text) FROM pg_amproc a WHERE a.amprocfamily = f.oid)
                AS "functions",
            pg_get_userbyid(f.opfowner) AS "owner", {comment} AS "comment"
        FROM pg_opfamily f JOIN pg_namespace n ON n.oid = f.opfnamespace JOIN pg_am m ON m.oid = f.opfmethod
        WHERE {own} AND {unowned}"#,
        own = own_schema("n"),
        unowned = no_extension("pg_opfamily", "f.oid"),
        comment = comment("pg_opfamily", "f.oid", "0"),
    );
    Query::new(SchemaKind::OperatorFamily, Reach::Schema, sql)
}

fn operator_classes() -> Query {
    let sql = format!(
        r#"SELECT n.nspname AS "schema", quote_ident(o.opcname) || ' using ' || quote_ident(m.amname) AS "object",
            format_type(o.opcintype, NULL) AS "type", CASE WHEN o.opcdefault THEN 'yes' END AS "default",
            format_type(nullif(o.opckeytype, 0), NULL) AS "storage",
            (SELECT quote_ident(fn.nspname) || '.' || quote_ident(f.opfname) FROM pg_opfamily f
                JOIN pg_namespace fn ON fn.oid = f.opfnamespace WHERE f.oid = o.opcfamily) AS "family",
            pg_get_userbyid(o.opcowner) AS "owner", {comment} AS "comment"
        FROM pg_opclass o JOIN pg_namespace n ON n.oid = o.opcnamespace JOIN pg_am m ON m.oid = o.opcmethod
        WHERE {own} AND {unowned}"#,
        own = own_schema("n"),
        unowned = no_extension("pg_opclass", "o.oid"),
        comment = comment("pg_opclass", "o.oid", "0"),
    );
    Query::new(SchemaKind::OperatorClass, Reach::Schema, sql)
}

/// A cast that came with a type, to its multirange for instance, goes with it.
fn casts() -> Query {
    let sql = format!(
        r#"SELECT format_type(k.castsource, NULL) || ' as ' || format_type(k.casttarget, NULL) AS "object",
            nullif(k.castfunc, 0)::regprocedure::text AS "function",
            CASE k.castmethod WHEN 'b' THEN 'binary coercible' WHEN 'i' THEN 'by text' END AS "method",
            CASE k.castcontext WHEN 'a' THEN 'in assignments' WHEN 'i' THEN 'implicit' END AS "context",
            {comment} AS "comment"
        FROM pg_cast k WHERE k.oid >= {USER_OID_MIN} AND {unowned} AND NOT EXISTS (SELECT FROM pg_depend i
            WHERE i.classid = 'pg_cast'::regclass AND i.objid = k.oid AND i.deptype = 'i')"#,
        unowned = no_extension("pg_cast", "k.oid"),
        comment = comment("pg_cast", "k.oid", "0"),
    );
    Query::new(SchemaKind::Cast, Reach::Database, sql)
}

fn languages() -> Query {
    let sql = format!(
        r#"SELECT l.lanname AS "name", CASE WHEN l.lanpltrusted THEN 'yes' ELSE 'no' END AS "trusted",
            nullif(l.lanplcallfoid, 0)::regproc::text AS "handler",
            pg_get_userbyid(l.lanowner) AS "owner", l.lanacl AS "acl", {comment} AS "comment"
        FROM pg_language l WHERE l.oid >= {USER_OID_MIN} AND {unowned}"#,
        unowned = no_extension("pg_language", "l.oid"),
        comment = comment("pg_language", "l.oid", "0"),
    );
    Query::new(SchemaKind::Language, Reach::Database, sql)
}
