-- Effects are complete whatever the row limit: the names of what is made last say how many there were.
create sequence many;
select nextval('many') from generate_series(1, 2500);
select last_value from many;
create table logged (i int);
create function log(i int) returns int language plpgsql as $$begin insert into logged values (i); return i; end$$;
select log(i) from generate_series(1, 3000) i;
with x as (insert into logged select i from generate_series(1, 1500) i returning i) select * from x;
insert into logged select i from generate_series(1, 1500) i returning *;
create table l1000 as select count(*) from logged;
do $$begin execute 'create table logged_' || (select count(*) from logged) || '_' || (select last_value from many) || ' ()'; end$$;
create table logged_rows (primary key (i)) inherits (logged);
