select a, lower(b) from t where id = 1 order by 2 limit 3
select 1; drop table t
with recursive w(a) as (values (1) union all select a + 1 from w where a < 9) select * from w
with w as (delete from t returning *) select count(*) from w
select * from t for update of t skip locked
select a into n from t
select * from rows from (f(1), generate_series(1, 2)) with ordinality as r(a, b, n)
select * from t tablesample bernoulli (10) repeatable (1)
select * from xmltable('/a' passing x columns b int path 'b' default lower(c)) q
select extract(year from now()), a at time zone 'UTC', trim(both 'x' from b), overlay(a placing b from 1), position(a in b)
select array[1, 2][1], (row(1, 2)).f1, a[1:2], array(select 1), a::int, cast(a as numeric(3, 2)), interval '1' day
select count(*) filter (where a > 1) over (partition by b order by c rows between 1 preceding and current row exclude ties) from t
select percentile_cont(0.5) within group (order by a) from t group by grouping sets ((a), (b), ()), rollup (c), cube (d)
select a operator(pg_catalog.+) b, a between symmetric b and c, a is distinct from b, a similar to 'x' escape '!', not a isnull
select case a when 1 then 2 else 3 end, coalesce(a, b), nullif(a, b), greatest(a, b), exists (select 1), a = any (array[1])
(select 1 union all select 2) intersect (values (1), (2)) order by 1 using operator(pg_catalog.<) offset 1 rows fetch first 2 rows with ties
table only (t)
select json_build_object('a', 1) -> 'a' ->> 0, b @> '{}', b ? 'x', b #> '{a}', xmlelement(name a, xmlattributes(b as c), d), xmlforest(a as b)
select u&"d\0061t" uescape '!', U&'\0041', E'\'', B'01', X'1f', N'n', $$a$$, $t$b$t$, 1.5e3, .5, 1., $1
select current_date, current_timestamp(3), localtime, current_user, session_user, collation for (a), treat(a as t), normalize(a, nfc), a is nfc normalized
select * from a natural join b left join c using (x) as j cross join lateral (select 1) d full join e on true
select a as into, b as "from", c insert, d as AS from t as x(a, b, c, d)
