insert into t (a) select 1 on conflict (a) do update set a = excluded.a where t.a > 1 returning *
update t set (a, b) = (select 1, 2), c[1] = 2 from u where t.a = u.a returning f(a)
delete from only t using u where true
merge into t using u on t.a = u.a when matched then update set a = 1 when not matched then insert values (1)
copy t (a, b) from stdin with (format csv, header)
copy (select * from t) to stdout
copy t to program 'x'
explain (analyze off, analyze) insert into t values (1)
explain analyze verbose create table n as select 1
truncate t, only u restart identity cascade
prepare p (int) as insert into t values ($1)
declare c scroll cursor with hold for select * from t for update
with w as (insert into t values (1) returning a) merge into u using w on true when matched then delete
