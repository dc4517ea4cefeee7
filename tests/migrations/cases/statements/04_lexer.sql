-- Where statements end.
create table "odd ""name""; x" (a int); select 'a'
'b'; select E'a\'b;c' ; select U&'\0041;' ; select U&"\0061" from (select 1 as a) q;
select $$;$$, $a$ $$ ; $a$; select $é$ ; $é$ as x;
/* a /* b; */ c; */ select 1; -- d; e
select 1 -- hi; select 2
;
;;
select 3 >-- '
 2; select 3 -/* ' */ 2; 
select 'it''s'; select "odd ""name""; x".a from "odd ""name""; x";
select 1 as a$$; select 2 as b$$;
select b'101', x'1F', B'2';
select 'unknown' as :name; select :'name'; select :"name"; select 1::int; select array[1,2,3][1:2];
create rule r as on insert to c do also (delete from t where id = 99; delete from t where id = 98);
create function f() returns int language sql begin atomic select 1; select 2; end; select f();
create function g() returns int language sql begin atomic select case when true then 1 else 2 end; end;
create function h() returns int language sql return 7; select h();
create function i(begin int) returns int language sql as 'select $1'; select i(1);
select 1 end; select 2;
select 1 union select 2; values (1), (2); table c;
selec 1; select; select 1,; from c; (select 1); );
with x as (insert into c values (100, 'w') returning *) select * from x;
select 1 as "a;b", 2 as "c'd";
select e'\x41', e'\u0041', '\x41'::bytea;
select 'a' 'b';
select 1/**/+/**/1;

select 5 % 3, 5 !@#% 3;
select -1, - -1, 1 - -1;
select 1.5e10, .5, 5., 1_000;
select 0x1F, 0b11;
é;
