create table t (a int primary key default f(1) references u (b), check (g(a) > 0), like v including all) inherits (w)
create function f(a int default 1) returns int language sql begin atomic select 1; insert into t values (case when true then 1 end); end
create or replace procedure p() begin atomic end
create rule r as on insert to t where new.a > 1 do also (insert into u values (1); notify x)
create trigger g after insert or update of a on t from u deferrable referencing new table as n for each row when (new.a > f(1)) execute function h('x')
create policy p on t for select to public using (f(a)) with check (g(b))
create schema s create table t (a int) create view v as select 1 grant select on t to public create trigger g before insert on t execute function f()
create index concurrently i on only t using gin (lower(a) gin_trgm_ops, (f(b))) include (c) where g(d)
create materialized view v as select f(a) from t with no data
alter table t add column c int generated always as (f(a)) stored, attach partition u for values from (1) to (2)
alter type e add value 'x' before 'y'
create statistics s on a, (f(b)) from t
drop function f(int), g cascade
drop trigger a on b.c
comment on column a.b.c is 'x'
grant select (a), update on t to public
alter default privileges in schema s grant all on tables to u
do language plpgsql $$ begin perform f(); end $$
call f(g(1))
set local role to 'x'
set transaction read write
show all
lock table t, only u in share mode nowait
vacuum (full, analyze) t (a)
refresh materialized view concurrently v
listen x; notify x, 'y'
security label for p on table t is 'x'
create sequence s owned by t.a
begin; savepoint a; rollback to a; commit and chain
prepare transaction 'x'
begin atomic; select 1; end
