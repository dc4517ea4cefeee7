select treat(1 as pg_sleep)
SELECT d AND INTO s
with e as (select 1) select n insert into v from e
with e as (select 1) select (1) insert into v from e
CREATE TABLE p (a int, LIKE d, CHECK (true))
alter table w attach partition c for values in ((table "t"))
CLUSTER i ON t
SET CONSTRAINTS y DEFERRED
insert into t select substr(a), substring(a, 1), ceil(b), floor(b) from u
declare l cursor for select 1 from update join t on (a)
select ''--
''
N'',
SELECT U&"a"
