//! Makes statements, queries and expressions by grammar.

use super::words::LITERALS;
use crate::rng::Rng;

/// Makes a statement by grammar; `depth` bounds how deep queries are inside each other.
pub(super) fn statement(rng: &mut Rng, depth: usize) -> String {
    if !rng.once_in(3) || depth == 0 {
        return query(rng, depth);
    }
    let q = query(rng, depth - 1);
    let e = expression(rng, depth - 1);
    let t = relation(rng);
    let n = name(rng);
    match rng.below(40) {
        0 => format!("insert into {t} (a, b) {q} returning {e}"),
        1 => format!("insert into {t} as x values ({e}, default) on conflict (a) do update set a = {e} where {e}"),
        2 => format!("update only {t} as x set a = {e}, (b, c) = ({q}) from {t} y where {e}"),
        3 => format!("update {t} set a[1] = {e}"),
        4 => format!("delete from {t} using {t} y where {e} returning *"),
        5 => format!("delete from {t}"),
        6 => format!(
            "merge into {t} x using ({q}) y on {e} when matched and {e} then delete when not matched then insert values ({e})"
        ),
        7 => format!("with w as ({q}) {}", dml(rng, &t, &e)),
        8 => format!(
            "create table {t} (a int default {e}, b text check ({e}), foreign key (a) references {n} (a)) partition by range (({e}))"
        ),
        9 => format!("create table {t} as {q}"),
        10 => format!("create table if not exists {t} (like {n} including all, primary key (a))"),
        11 => format!(
            "create unique index concurrently {n} on only {t} using gin (({e}), lower(a) text_ops desc) where {e}"
        ),
        12 => format!("create or replace view {t} with (security_barrier) as {q}"),
        13 => format!("create function {n}(a int default {e}) returns setof {t} language sql as $${q}$$"),
        14 => format!("create function {n}() returns int begin atomic {q}; {q}; end"),
        15 => format!(
            "create trigger {n} before insert or update of a on {t} referencing new table as x for each row when ({e}) execute function {n}({})",
            rng.below(9)
        ),
        16 => format!("create rule {n} as on update to {t} where {e} do instead ({q}; notify x)"),
        17 => format!("create policy {n} on {t} for all to public using ({e}) with check ({e})"),
        18 => format!(
            "alter table {t} add column c int default {e}, alter a type text using ({e}), drop b cascade, add constraint k check ({e}) not valid"
        ),
        19 => format!("alter table {t} attach partition {n} for values in ({e})"),
        20 => format!("drop table if exists {t}, {n} cascade"),
        21 => format!("truncate {t}, only {n} restart identity cascade"),
        22 => format!("copy {t} (a, b) from stdin with (format csv) where {e}"),
        23 => format!("copy {t} to '/tmp/x'"),
        24 => format!("copy ({q}) to stdout with (header, force_quote (a))"),
        25 => format!(
            "explain (analyze {}, costs) {q}",
            rng.pick(&["", "off", "true", "'off'", "0", "1", "no", "\"off\""])
        ),
        26 => format!("explain {}", dml(rng, &t, &e)),
        27 => format!("call {n}({e})"),
        28 => format!("do {} $$ begin {q}; end $$", rng.pick(&["", "language plpgsql"])),
        29 => format!("prepare {n} (int) as {q}; execute {n}({e}); deallocate {n}"),
        30 => format!("declare {n} binary cursor with hold for {q}"),
        31 => format!("set local {n} to {}", rng.pick(&["on", "'x'", "default", "1, 2"])),
        32 => format!("grant select (a), update on {t} to {n} with grant option"),
        33 => format!(
            "comment on {} {t} is 'x'",
            rng.pick(&["table", "column x.", "view", "index", "function", "trigger a on"])
        ),
        34 => format!("lock table only {t}, {n} in access exclusive mode nowait"),
        35 => format!("refresh materialized view concurrently {t}"),
        36 => format!("create schema {n} create table a (b int) create view v as {q} grant select on v to public"),
        37 => format!(
            "alter {} {t} {}",
            rng.pick(&[
                "table",
                "view",
                "sequence",
                "index",
                "materialized view",
                "foreign table",
                "type",
                "function",
                "schema",
                "database",
                "role"
            ]),
            rng.pick(&["rename to x", "owner to x", "set schema x", "rename column a to b", "reset (x)"])
        ),
        38 => format!("create statistics {n} on a, ({e}) from {t}"),
        _ => format!(
            "{} {t}",
            rng.pick(&[
                "vacuum full",
                "analyze verbose",
                "reindex table",
                "cluster",
                "listen",
                "show",
                "drop view",
                "drop index concurrently",
                "drop function",
                "drop schema",
                "security label on table"
            ])
        ),
    }
}

fn dml(rng: &mut Rng, t: &str, e: &str) -> String {
    match rng.below(4) {
        0 => format!("insert into {t} values ({e}) returning a"),
        1 => format!("update {t} set a = {e} returning *"),
        2 => format!("delete from {t} where {e} returning 1"),
        _ => format!("merge into {t} using w on {e} when matched then update set a = {e}"),
    }
}

/// Makes a query.
pub(super) fn query(rng: &mut Rng, depth: usize) -> String {
    let mut out = String::new();
    if depth > 0 && rng.once_in(4) {
        let (inner, n) = (query(rng, depth - 1), name(rng));
        let (t, e) = (relation(rng), expression(rng, 0));
        let inner = if rng.once_in(3) { dml(rng, &t, &e) } else { inner };
        let recursive = rng.pick(&["", "recursive "]);
        let columns = rng.pick(&["", "(a)", "(a, b)"]);
        let materialized = rng.pick(&["", "materialized ", "not materialized "]);
        out.push_str(&format!("with {recursive}{n}{columns} as {materialized}({inner}) "));
        if rng.once_in(4) {
            out.insert_str(out.len() - 1, &format!(", {} as ({})", name(rng), query(rng, depth - 1)));
        }
    }
    match rng.below(12) {
        0 => out.push_str(&format!("values ({}), ({})", expression(rng, depth), expression(rng, depth))),
        1 => out.push_str(&format!("table {}", relation(rng))),
        2 if depth > 0 => {
            let op = rng.pick(&["union", "union all", "intersect", "except all"]);
            out.push_str(&format!("({}) {op} {}", query(rng, depth - 1), query(rng, depth - 1)));
        }
        _ => select(rng, depth, &mut out),
    }
    if rng.once_in(5) {
        out.push_str(&format!(
            " order by {} {}",
            expression(rng, depth.min(1)),
            rng.pick(&["", "desc nulls last", "using <", "using operator(pg_catalog.>)", "using operator(public.>)"])
        ));
    }
    if rng.once_in(6) {
        out.push_str(&format!(" limit {}", expression(rng, 0)));
    }
    if rng.once_in(12) {
        out.push_str(rng.pick(&[
            " for update",
            " for share of t nowait",
            " for no key update skip locked",
            " for key share",
            " for read only",
        ]));
    }
    out
}

fn select(rng: &mut Rng, depth: usize, out: &mut String) {
    out.push_str("select ");
    out.push_str(rng.pick(&["", "", "", "all ", "distinct ", "distinct on (a) "]));
    for n in 0..=rng.below(3) {
        if n > 0 {
            out.push_str(", ");
        }
        out.push_str(&expression(rng, depth));
        match rng.below(8) {
            0 => out.push_str(&format!(
                " as {}",
                rng.pick(&["x", "into", "\"from\"", "AS", "select", "insert", "for", "update"])
            )),
            1 => out.push_str(rng.pick(&[" x", " into_", " update", " insert", " values"])),
            _ => {}
        }
    }
    if rng.once_in(14) {
        out.push_str(&format!(" into {}{}", rng.pick(&["", "temp ", "table ", "unlogged table "]), name(rng)));
    }
    if !rng.once_in(5) {
        out.push_str(&format!(" from {}", from_item(rng, depth)));
        if rng.once_in(3) {
            let item = from_item(rng, depth);
            let with = rng.pick(&[", ", " join ", " left join ", " cross join ", " natural join ", ", lateral "]);
            out.push_str(with);
            out.push_str(&item);
            if matches!(with, " join " | " left join ") {
                out.push_str(rng.pick(&[" on true", " using (a)", " on lower(a) = b", " using (a) as j"]));
            }
        }
    }
    if rng.once_in(2) {
        out.push_str(&format!(" where {}", expression(rng, depth)));
    }
    if rng.once_in(6) {
        out.push_str(&format!(
            " group by {} having {}",
            rng.pick(&["a", "1", "grouping sets ((a), ())", "cube (a, b)", "rollup (a)", "distinct a", "()"]),
            expression(rng, 0)
        ));
    }
    if rng.once_in(9) {
        out.push_str(" window w as (partition by a order by b rows between 1 preceding and current row exclude ties)");
    }
}

fn from_item(rng: &mut Rng, depth: usize) -> String {
    let e = expression(rng, depth.saturating_sub(1));
    let alias = rng.pick(&["", " q", " as q", " as q (a, b)", " q(a)", " as update", " as \"Q\" (a)"]);
    match rng.below(12) {
        0 if depth > 0 => format!("({}) as q{}", query(rng, depth - 1), rng.pick(&["", "(a, b)"])),
        1 => format!(
            "{}({e}){}",
            function(rng),
            rng.pick(&["", " q", " as (a int, b text)", " with ordinality as q (a, n)", " as q(a int)"])
        ),
        2 => format!("rows from ({}({e}), {}({e}) as (a int)){alias}", function(rng), function(rng)),
        3 => format!(
            "{} tablesample {}({e}) repeatable (1)",
            relation(rng),
            rng.pick(&["bernoulli", "system", "mine", "public.system", "system_rows"])
        ),
        4 => format!(
            "xmltable(xmlnamespaces('u' as x), '/r' passing {e} columns a int path 'a' default {e}, n for ordinality){alias}"
        ),
        5 => format!("only ({}){alias}", relation(rng)),
        6 => format!("({} join {} on {e}){}", relation(rng), relation(rng), rng.pick(&["", " j"])),
        7 => format!("{} *{alias}", relation(rng)),
        8 => format!("unnest(array[{e}], {e}){alias}"),
        9 => format!("generate_series(1, {e}) as g(n)"),
        10 => format!("current_date{alias}"),
        _ => format!("{}{alias}", relation(rng)),
    }
}

/// Makes an expression.
pub(super) fn expression(rng: &mut Rng, depth: usize) -> String {
    if depth == 0 || rng.once_in(3) {
        return match rng.below(7) {
            0 => rng
                .pick(&["a", "b", "t.a", "q.*", "*", "update", "insert", "\"A\"", "x.y.z", "a[1]", "(a).b", "a.b.c"])
                .to_owned(),
            1 => format!("{}()", function(rng)),
            2 => rng.pick(LITERALS).to_owned(),
            3 => rng
                .pick(&[
                    "null",
                    "true",
                    "current_user",
                    "current_timestamp(3)",
                    "current_catalog",
                    "localtime",
                    "user",
                    "default",
                ])
                .to_owned(),
            _ => rng.below(100).to_string(),
        };
    }
    let (a, b) = (expression(rng, depth - 1), expression(rng, depth - 1));
    let f = function(rng);
    match rng.below(44) {
        0..=3 => format!("{f}({a}, {b})"),
        4 => format!("{f}(distinct {a} order by {b}) filter (where {a})"),
        5 => format!("{f}({a}) over (partition by {b} order by {a} range unbounded preceding)"),
        6 => format!("{f}({a}) within group (order by {b})"),
        7 => format!("{f}(x => {a}, variadic {b})"),
        8 => format!("({})", query(rng, depth - 1)),
        9 => format!("exists ({})", query(rng, depth - 1)),
        10 => format!("array({})", query(rng, depth - 1)),
        11 => format!("{a} in ({})", query(rng, depth - 1)),
        12 => format!("{a} = any ({})", query(rng, depth - 1)),
        13 => format!(
            "{a} {} all (array[{b}])",
            rng.pick(&["=", "<", "~~", "operator(public.=)", "operator(pg_catalog.=)"])
        ),
        14 => format!("case {a} when {b} then {a} else {b} end"),
        15 => format!("case when {a} then {b} end"),
        16 => format!("cast({a} as {})", type_name(rng)),
        17 => format!("{a}::{}", type_name(rng)),
        18 => format!(
            "{a} {} {b}",
            rng.pick(&[
                "+",
                "-",
                "*",
                "/",
                "%",
                "^",
                "<",
                ">",
                "=",
                "<>",
                "||",
                "->",
                "->>",
                "@>",
                "?",
                "#>",
                "&&",
                "<->",
                "operator(pg_catalog.+)",
                "operator(public.+)",
                "~",
                "!~~*"
            ])
        ),
        19 => format!(
            "{a} {} {b}",
            rng.pick(&["and", "or", "is distinct from", "is not distinct from", "like", "not ilike", "similar to"])
        ),
        20 => format!("{a} like {b} escape '!'"),
        21 => format!("{a} between symmetric {b} and {a}"),
        22 => format!(
            "{a} {}",
            rng.pick(&[
                "is null",
                "isnull",
                "notnull",
                "is not true",
                "is unknown",
                "is document",
                "is nfc normalized",
                "is not normalized",
                "collate \"C\"",
                "at time zone 'UTC'",
                "[1:2]"
            ])
        ),
        23 => format!("({a}, {b}) {} ({b}, {a})", rng.pick(&["=", "<", "overlaps", "in"])),
        24 => format!("row({a}, {b})"),
        25 => format!("array[{a}, [{b}]]"),
        26 => format!("extract({} from {a})", rng.pick(&["year", "'month'", "epoch", "second"])),
        27 => format!("overlay({a} placing {b} from 1 for 2)"),
        28 => format!("position({a} in {b})"),
        29 => format!("substring({a} {} {b})", rng.pick(&["from", "for", "similar '#' escape", ","])),
        30 => format!("trim({} {a} from {b})", rng.pick(&["", "both", "leading", "trailing"])),
        31 => format!("coalesce({a}, {b})"),
        32 => format!(
            "{}({a}, {b})",
            rng.pick(&[
                "nullif",
                "greatest",
                "least",
                "xmlconcat",
                "xmlforest",
                "grouping",
                "\"coalesce\"",
                "\"extract\"",
                "pg_catalog.coalesce"
            ])
        ),
        33 => format!("normalize({a}, nfc)"),
        34 => format!("treat({a} as {})", type_name(rng)),
        35 => format!("xmlelement(name x, xmlattributes({a} as y), {b})"),
        36 => format!("xmlexists({a} passing by ref {b})"),
        37 => format!("xmlparse(document {a})"),
        38 => format!("collation for ({a})"),
        39 => format!("- {a}"),
        40 => format!("not {a}"),
        41 => format!("@ {a}"),
        42 => format!(
            "interval {} {}",
            rng.pick(&["'1'", "(3) '1'"]),
            rng.pick(&["", "day to second", "year", "second(2)"])
        ),
        _ => format!(
            "{} '{}'",
            rng.pick(&["date", "point", "public.mine", "timestamp(3) with time zone", "float(5)", "lower"]),
            rng.below(9)
        ),
    }
}

fn function<'a>(rng: &mut Rng) -> &'a str {
    rng.pick(&[
        "lower",
        "count",
        "sum",
        "now",
        "coalesce",
        "nextval",
        "pg_sleep",
        "f",
        "public.lower",
        "pg_catalog.lower",
        "\"lower\"",
        "\"Lower\"",
        "LOWER",
        "pg_catalog.\"lower\"",
        "db.pg_catalog.lower",
        "set_config",
        "pg_notify",
        "dblink",
        "generate_series",
        "unnest",
        "array_agg",
        "left",
        "right",
        "replace",
        "format",
        "row_number",
        "jsonb_build_object",
        "txid_current",
        "lo_creat",
        "query_to_xml",
        "U&\"low\\0065r\"",
        "values",
        "if",
        "log",
        "any_value",
        "char_length",
        "to_char",
        "date",
        "int4",
        "text",
        "max",
        "f.g",
    ])
}

fn relation<'a>(rng: &mut Rng) -> &'a str {
    rng.pick(&[
        "t",
        "accounts",
        "orders",
        "public.t",
        "a.b",
        "\"T\"",
        "\"a.b\".c",
        "x.y.z",
        "pg_class",
        "pg_catalog.pg_proc",
        "w",
        "q",
        "U&\"\\0074\"",
        "information_schema.tables",
        "é",
        "update",
        "values_",
        "T",
        "Public.Orders",
        "\"sel\"\"ect\"",
        "key",
        "lower",
    ])
}

fn name<'a>(rng: &mut Rng) -> &'a str {
    rng.pick(&[
        "w",
        "t",
        "n",
        "v",
        "x",
        "\"W\"",
        "accounts",
        "a_rather_long_name_that_is_longer_than_sixty_three_bytes_in_all_its_letters",
        "s.n",
        "é",
        "atomic",
        "begin",
        "insert",
    ])
}

fn type_name<'a>(rng: &mut Rng) -> &'a str {
    rng.pick(&[
        "int",
        "text",
        "numeric(3, 2)",
        "varchar(5)",
        "public.mine",
        "int[]",
        "double precision",
        "timestamp with time zone",
        "bit varying(3)",
        "setof t",
        "xml",
        "interval day",
        "char",
        "\"char\"",
        "mine(3)",
        "float(3)",
        "regclass",
        "oid",
        "json",
    ])
}
