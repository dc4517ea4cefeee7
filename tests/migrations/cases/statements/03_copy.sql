-- Data in the text: good, bad, empty, and in an aborted transaction. (Where the server refuses to begin, psql reads data as SQL: that is not copied.)
create table c (a int, b text, primary key (a));
COPY c FROM stdin;
1	one
2	\N
3	a;b -- not SQL
4	\\.
\.
copy c (b, a) from stdin with (format csv, header);
b,a
"quoted, ""x""",5
'; drop table c; --,6
\.
COPY c FROM stdin;
7	seven
7	twice
\.
COPY c FROM stdin;
8	not a number	too many
\.
COPY c FROM stdin;
\.
begin;
copy c from stdin;
9	nine
\.
copy c from stdin;
9	nine
\.
commit;
select * from c order by a;
copy (select * from c) to stdout;
