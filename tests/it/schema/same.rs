//! What is no change is not seen: other names of sandboxes, other servers, data, upkeep, and what a sandbox sets for itself.

use serde_json::json;

use super::{checksum, digest, home, made, ok, run};
use crate::harness::{cluster, clusters};
use crate::program::Stdio;

/// A schema of some size, with something of nearly everything; nothing in it is named after the sandbox.
pub(super) const SIZEABLE: &str = r#"
create schema app; create schema "Odd ""schema""
of \ two lines";
create type app.status as enum ('new', 'paid', 'it''s "sent"'); create domain app.email as text check (value ~ '@');
create type app.money as (amount numeric(12, 2), currency char(3)); create type app.span as range (subtype = int4);
create sequence app.numbers increment 5 start 10;
create table app.customers (id bigint generated always as identity primary key, email app.email not null unique,
    name text collate "C", created_at timestamptz not null default now(), tags text[] default '{}', extra jsonb);
create table app.orders (id int primary key default nextval('app.numbers'), customer_id bigint not null,
    status app.status default 'new', total numeric(12, 2) check (total >= 0), twice numeric generated always as (total * 2) stored,
    constraint of_customer foreign key (customer_id) references app.customers (id) on delete cascade deferrable);
create index on app.orders (customer_id, status) where status <> 'paid'; create index on app.orders using hash (status);
create unique index on app.customers (lower(name)); comment on table app.orders is 'What was ordered';
comment on column app.orders.total is 'With tax'; alter table app.orders alter total set statistics 300;
create table app.events (at timestamptz not null, kind text, payload jsonb) partition by range (at);
create table app.events_2026 partition of app.events for values from ('2026-01-01') to ('2027-01-01');
create table app.events_rest partition of app.events default; create index on app.events (kind);
create table app.child (note text) inherits (app.customers); alter table app.child set (fillfactor = 80);
create unlogged table app.cache (k text primary key, v bytea);
create view app.open_orders as select id, customer_id, total from app.orders where status <> 'paid' and total > 1 order by id;
create view app.named as select c.id, c.name, o.total from app.customers c join app.orders o on o.customer_id = c.id;
create view app.nested as select x.id, (select count(*) from app.orders o where o.customer_id = x.id) as n
    from (select id from app.customers where name is not null) x where exists (select 1 from app.orders where total = x.id);
create view app.both as select id from app.customers union all select id from app.orders;
create view app.withs as with q as (select id, total from app.orders) select q.id, sum(q.total) over (order by q.id) as s from q;
create view app.grouped as select status, count(*) filter (where total > 0) as n, max(total) from app.orders group by status having count(*) > 1;
create materialized view app.totals as select customer_id, sum(total) as total from app.orders group by customer_id;
create function app.total_of(customer bigint, since timestamptz default '2020-01-01') returns numeric language sql stable
    as $$ select sum(total) from app.orders where customer_id = customer $$;
create function app.parsed(a int) returns int language sql immutable begin atomic select a + 1; end;
create function app.touch() returns trigger language plpgsql security definer set search_path = app as $$ begin new.created_at := now(); return new; end $$;
create function app.nothing() returns trigger language plpgsql as $$ begin return null; end $$;
create procedure app.tidy() language plpgsql as $$ begin delete from app.cache; end $$;
create aggregate app.total(numeric) (sfunc = numeric_add, stype = numeric, initcond = '0');
create trigger touched before update on app.customers for each row when (old.name is distinct from new.name) execute function app.touch();
create trigger per_statement after insert on app.events for each statement execute function app.nothing();
create rule no_delete as on delete to app.orders do instead nothing;
alter table app.orders enable row level security; create policy own on app.orders using (total > 0) with check (total < 1000);
create policy by_role on app.orders as restrictive for select to current_user using (current_user = 'somebody');
grant select on app.orders to public; grant all on app.customers to public; grant select (name) on app.customers to public;
revoke execute on function app.total_of from public; alter default privileges in schema app grant select on tables to public;
alter default privileges revoke execute on functions from public;
create statistics app.together (dependencies, ndistinct) on customer_id, status from app.orders;
create publication parts for table app.orders (id, total) where (total > 1), table app.customers;
create collation app.plain (locale = 'C'); create operator app.=== (leftarg = int, rightarg = int, function = int4eq);
create cast (app.money as text) with inout; create text search configuration app.words (copy = pg_catalog.english);
create table "Odd ""schema""
of \ two lines"."ta""ble
'; drop table x; --" ("a "" b" int, "line
break" text default E'back\\slash \n "quoted" ''', "select" int, constraint "c""k" check ("a "" b" > 0));
create index "i""x" on "Odd ""schema""
of \ two lines"."ta""ble
'; drop table x; --" ("line
break");
create function "Odd ""schema""
of \ two lines"."f""n"("a "" b" int) returns text language sql as $$ select E'\\n''"' $$;
"#;

#[test]
fn the_same_sql_has_the_same_digest_in_every_sandbox_and_on_every_major() {
    let home = home(&clusters(), "same");
    let mut server = Stdio::start(&home);
    let mut all = Vec::new();
    for cluster in clusters() {
        let profile = format!("on{}", cluster.major);
        for hint in ["a", "quite another name"] {
            all.push(made(&mut server, &profile, hint, SIZEABLE));
        }
    }
    let first = digest(&mut server, &all[0]);
    assert!(first["counts"].as_object().unwrap().len() > 20 && first["truncated"] == false, "{first:#}");
    for other in &all[1..] {
        let diff = ok(&mut server, "schema_diff", &json!({"databaseId": other, "otherDatabaseId": all[0]}));
        assert_eq!((&diff["changed"], &diff["changes"]), (&json!(false), &json!([])), "{diff:#}");
        let digest = digest(&mut server, other);
        assert_eq!((&digest["checksum"], &digest["objects"]), (&first["checksum"], &first["objects"]));
    }
    // Nor do the names stand in what is shown.
    let shown = ok(&mut server, "describe_schema", &json!({"databaseId": all[0], "limit": 200}));
    let entries = shown["entries"].to_string();
    assert!(entries.contains("<owner>") && !entries.contains(shown["databaseName"].as_str().unwrap()), "{entries}");
}

#[test]
fn the_order_in_which_things_were_made_does_not_count() {
    let home = home(&[cluster()], "order");
    let mut server = Stdio::start(&home);
    let profile = format!("on{}", cluster().major);
    let parts = [
        "create table b (n int); comment on table b is 'x'",
        "create table a (n int)",
        "create function f() returns int language sql as 'select 1'",
    ];
    let forward = made(&mut server, &profile, "", &parts.join(";"));
    let back: Vec<&str> = parts.iter().rev().copied().collect();
    let backward = made(&mut server, &profile, "", &back.join(";"));
    assert_eq!(checksum(&mut server, &forward), checksum(&mut server, &backward));
}

#[test]
fn data_and_upkeep_are_no_change() {
    let home = home(&[cluster()], "upkeep");
    let mut server = Stdio::start(&home);
    let id = made(&mut server, &format!("on{}", cluster().major), "", SIZEABLE);
    let before = checksum(&mut server, &id);
    for done in [
        "insert into app.customers (email, name) select n || '@x', n::text from generate_series(1, 500) n",
        "insert into app.events select now(), 'k' from generate_series(1, 100)",
        "select nextval('app.numbers')",
        "analyze",
        "vacuum app.customers",
        "vacuum full app.customers",
        "reindex table app.orders",
        "cluster app.customers using customers_pkey; alter table app.customers set without cluster",
        "refresh materialized view app.totals",
        "truncate app.events",
        "create temp table passing (n int)",
        "set search_path = nowhere; select 1",
        "grant select on app.cache to current_user",
    ] {
        run(&mut server, &id, done);
        assert_eq!(checksum(&mut server, &id), before, "{done}");
    }
    // What this program gives its own reader, and gives again where it was taken away, is none either.
    let reader = "do $$ begin execute format('revoke select on app.cache from %I', replace(current_user, '_role', '_ro')); end $$";
    run(&mut server, &id, reader);
    assert_eq!(checksum(&mut server, &id), before, "{reader}");
}

#[test]
fn what_a_sandbox_sets_or_names_like_the_servers_own_changes_nothing_that_is_read() {
    let home = home(&[cluster()], "shadow");
    let mut server = Stdio::start(&home);
    let id = made(&mut server, &format!("on{}", cluster().major), "", SIZEABLE);
    let part = json!({"databaseId": id, "schema": "app"});
    let before = ok(&mut server, "schema_digest", &part);
    let trap = r#"
        create schema trap;
        create table trap.ran (n int); grant insert on trap.ran to public;
        create function trap.format_type(oid, integer) returns text language plpgsql as $$ begin insert into trap.ran values (1); return 'trap'; end $$;
        create function trap.pg_get_expr(pg_node_tree, oid) returns text language sql as $$ select 'trap' $$;
        create function trap.quote_ident(text) returns text language sql as $$ select 'trap' $$;
        create function trap.quote_ident(name) returns text language sql as $$ select 'trap' $$;
        create function trap.octet_length(text) returns int language sql as $$ select 1 / 0 $$;
        create function trap.yes(name, name) returns boolean language sql as $$ select true $$;
        create operator trap.= (leftarg = name, rightarg = name, function = trap.yes);
        create view trap.pg_class as select 1 as oid; create table trap.pg_namespace (oid oid, nspname name);
        create type trap.text as enum ('trap');
        do $$ begin
            execute format('alter database %I set search_path = trap, pg_catalog', current_database());
            execute format('alter database %I set quote_all_identifiers = on', current_database());
            execute format('alter database %I set standard_conforming_strings = off', current_database());
            execute format('alter database %I set bytea_output = escape', current_database());
            execute format('alter database %I set default_transaction_read_only = on', current_database());
            execute format('alter role %I set search_path = trap, pg_catalog', current_user);
        end $$"#;
    run(&mut server, &id, trap);
    let after = ok(&mut server, "schema_digest", &part);
    assert_eq!((&after["checksum"], &after["objects"]), (&before["checksum"], &before["objects"]));
    let whole = ok(&mut server, "describe_schema", &json!({"databaseId": id, "schema": "trap"}));
    assert!(whole["entryCount"].as_u64().unwrap() > 8 && !whole["entries"].to_string().contains("\"type\":\"trap\""));
}
