-- Kinds of objects and rights, those that a sandbox may not have too.
create extension if not exists pgcrypto; create extension hstore; create extension no_such; create extension dblink; create extension plperlu;
grant select on t to public; revoke all on t from public; grant select on t to nobody_here; alter default privileges grant select on tables to public;
alter table t owner to postgres; alter table t owner to current_user; alter schema public owner to postgres; comment on database postgres is 'x';
create policy p on t using (true); alter table t enable row level security; alter table t force row level security; select count(*) from t; alter table t no force row level security;
create publication pub for table t; create publication all_tables for all tables;
create event trigger et on ddl_command_end execute function f(); create foreign data wrapper w;
create table parted (k int, v text) partition by range (k); create table parted_1 partition of parted for values from (0) to (10); insert into parted values (1, 'x'), (11, 'y');
create materialized view mv as select * from t with no data; select * from mv; refresh materialized view mv; create unique index on mv (id); refresh materialized view concurrently mv;
create domain d as text check (value <> ''); create aggregate agg (int) (sfunc = int4pl, stype = int); create operator === (leftarg = int, rightarg = int, function = int4eq);
create cast (mood as int) with function no_such(mood); create collation coll from "C"; create text search configuration tsc (copy = simple); create statistics st on id, note from t;
create function trg() returns trigger language plpgsql as $$begin new.note := new.note || '!'; return new; end$$; create trigger tr before insert on t for each row execute function trg(); insert into t values (300, 'z');
create sequence sq; select nextval('sq'), currval('sq'); select setval('sq', 100); alter sequence sq restart;
create table gen (a int generated always as identity, b int generated always as (a * 2) stored); insert into gen default values; insert into gen (a) values (5); insert into gen overriding system value values (9);
merge into t using (values (1)) s(i) on t.id = s.i when matched then update set note = 'm'; 

select pg_sleep(0.01); drop table no_such; drop table if exists no_such; drop owned by current_user; reassign owned by current_user to postgres;
