-- What must only read tries to write: in a read-only call, and as the reader that is logged in directly.

--@ setup
CREATE TABLE kept (a int PRIMARY KEY, b text); INSERT INTO kept VALUES (1, 'one'), (2, 'two');
CREATE SEQUENCE counter; CREATE SEQUENCE unlogged_counter;
CREATE TABLE serials (a serial, b int DEFAULT nextval('counter'));
CREATE MATERIALIZED VIEW kept_count AS SELECT count(*) FROM kept;
CREATE FUNCTION adds() RETURNS int LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.kept VALUES (7, 'added'); RETURN 1; END $$;
CREATE FUNCTION adds_stable() RETURNS int LANGUAGE plpgsql STABLE AS $$ BEGIN PERFORM nextval('public.counter'); RETURN 1; END $$;
CREATE FUNCTION adds_quietly() RETURNS int LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.kept VALUES (8, 'added'); RETURN 1; EXCEPTION WHEN OTHERS THEN RETURN 0; END $$;
CREATE FUNCTION leaves_read_only() RETURNS int LANGUAGE plpgsql AS $$ BEGIN PERFORM set_config('transaction_read_only', 'off', false); INSERT INTO public.kept VALUES (9, 'added'); RETURN 1; EXCEPTION WHEN OTHERS THEN RETURN 0; END $$;
CREATE FUNCTION leaves_by_set() RETURNS int LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.kept VALUES (10, 'added'); RETURN 1; END $$;
-- From 18 on no function may be given this setting; then the function is called without it.
DO $do$ BEGIN ALTER FUNCTION leaves_by_set() SET transaction_read_only = off; EXCEPTION WHEN feature_not_supported THEN NULL; END $do$;
CREATE FUNCTION locks() RETURNS int LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_lock(4711); RETURN 1; END $$;
CREATE FUNCTION large() RETURNS oid LANGUAGE plpgsql AS $$ BEGIN RETURN lo_from_bytea(0, 'large'); EXCEPTION WHEN OTHERS THEN RETURN 0; END $$;
CREATE FUNCTION commits() RETURNS int LANGUAGE plpgsql AS $$ BEGIN COMMIT; RETURN 1; END $$;
CREATE PROCEDURE removes() LANGUAGE plpgsql AS $$ BEGIN COMMIT; DELETE FROM public.kept; COMMIT; END $$;
CREATE FUNCTION tells() RETURNS int LANGUAGE plpgsql AS $$ BEGIN NOTIFY escape, 'x'; RETURN 1; END $$;
CREATE FUNCTION drains() RETURNS int LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'ALTER TABLE public.kept ADD c int'; RETURN 1; EXCEPTION WHEN OTHERS THEN RETURN 0; END $$;
CREATE FUNCTION as_owner() RETURNS int LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN INSERT INTO public.kept VALUES (11, 'added'); RETURN 1; END $$;
CREATE FUNCTION on_int(int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.kept VALUES (12, 'added'); RETURN 1; END $$;
CREATE FUNCTION lower(varchar) RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN INSERT INTO public.kept VALUES (13, 'added'); RETURN ''; END $$;
CREATE FUNCTION equals(kept, kept) RETURNS bool LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN INSERT INTO public.kept VALUES (14, 'added'); RETURN true; END $$;
CREATE OPERATOR public.= (leftarg = kept, rightarg = kept, function = equals);
CREATE OPERATOR public.@@@ (rightarg = int, function = on_int);
CREATE FUNCTION to_words(kept) RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN INSERT INTO public.kept VALUES (15, 'added'); RETURN ''; END $$;
CREATE CAST (kept AS text) WITH FUNCTION to_words(kept);
CREATE FUNCTION checks(int) RETURNS bool LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN INSERT INTO public.kept VALUES (16, 'added'); RETURN true; END $$;
CREATE DOMAIN checked AS int CHECK (checks(VALUE));
CREATE VIEW acting AS SELECT adds() AS a;
CREATE VIEW acting_as_owner AS SELECT as_owner() AS a;
CREATE VIEW writable AS SELECT * FROM kept;
CREATE FUNCTION instead() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN DELETE FROM public.kept; RETURN NEW; END $$;
CREATE TRIGGER instead_of INSTEAD OF INSERT ON writable FOR EACH ROW EXECUTE FUNCTION instead();
CREATE TABLE ruled (a int); CREATE RULE also AS ON UPDATE TO ruled DO ALSO DELETE FROM kept;
CREATE TABLE guarded (a int); ALTER TABLE guarded ENABLE ROW LEVEL SECURITY; INSERT INTO guarded VALUES (1);
CREATE POLICY guarding ON guarded USING (as_owner() = 1);
CREATE FUNCTION adding(int, int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.kept VALUES (17, 'added'); RETURN 1; END $$;
CREATE AGGREGATE summing (int) (sfunc = adding, stype = int, initcond = '0');

--@ read | INSERT
INSERT INTO kept VALUES (3, 'three')
--@ read | UPDATE
UPDATE kept SET b = ''
--@ read | DELETE that hides in a WITH
WITH gone AS (DELETE FROM kept RETURNING a) SELECT * FROM gone
--@ read | INSERT deep in a WITH
WITH a AS (WITH b AS (INSERT INTO kept VALUES (3, '') RETURNING a) SELECT * FROM b) SELECT * FROM a
--@ read | MERGE
MERGE INTO kept t USING kept s ON t.a = s.a WHEN MATCHED THEN DELETE
--@ read | TRUNCATE
TRUNCATE kept
--@ read | SELECT INTO
SELECT * INTO copied FROM kept
--@ read | a bare label that is a keyword before INTO
SELECT a AND INTO copied FROM kept
--@ read | CREATE TABLE AS in EXPLAIN ANALYZE
EXPLAIN ANALYZE CREATE TABLE copied AS SELECT 1
--@ read | EXPLAIN with ANALYZE by a number
EXPLAIN (COSTS OFF, ANALYZE 1) DELETE FROM kept
--@ read | EXPLAIN with ANALYZE by a word, twice
EXPLAIN (ANALYZE off, ANALYZE on) DELETE FROM kept
--@ read | a second statement behind END
SELECT 1 END; DROP TABLE kept
--@ read | a second statement behind an operator that is a comment
SELECT 1 >--
1; DROP TABLE kept
--@ read | a comment that nests
SELECT 1 /* /* */ ; DROP TABLE kept; /* */ */ ; DROP TABLE kept
--@ read | a dollar quote of bytes above ASCII
WITH x AS (SELECT $é$ $é$), y AS (DELETE FROM kept RETURNING 1) SELECT 1
--@ read | a string that goes on in the next line
SELECT 'a'
'b'; DROP TABLE kept
--@ read | a backslash in a string
SELECT '\'; DROP TABLE kept; --'
--@ read | an escape in an escape string
SELECT E'\'; DROP TABLE kept; --'
--@ read | a name in escapes
SELECT U&"set\0076al"('counter', 99)
--@ read | a name in escapes of its own
SELECT U&"set!0076al" UESCAPE '!' ('counter', 99)
--@ read | a parameter that is glued to a word
SELECT $1DROP TABLE kept
--@ read | a vertical tab
SELECT 1; DROP TABLE kept
--@ read | an aggregate that adds
SELECT summing(a) FROM kept
--@ read | nextval
SELECT nextval('counter')
--@ read | setval
SELECT setval('counter', 99)
--@ read | setval in FROM
SELECT * FROM setval('counter', 99)
--@ read | lastval after a default
SELECT currval('counter')
--@ read | a function that adds
SELECT adds()
--@ read | a function in FROM that adds
SELECT * FROM adds()
--@ read | a function in LATERAL that adds
SELECT * FROM kept, LATERAL adds()
--@ read | a function in VALUES that adds
VALUES (adds())
--@ read | a function in ORDER BY that adds
SELECT 1 ORDER BY adds()
--@ read | a function in LIMIT that adds
SELECT 1 LIMIT adds()
--@ read | a function in a FILTER that adds
SELECT count(*) FILTER (WHERE adds() = 1) FROM kept
--@ read | a function in TABLESAMPLE that adds
SELECT * FROM kept TABLESAMPLE system (adds())
--@ read | a function in a window's frame that adds
SELECT sum(a) OVER (ORDER BY a ROWS adds() PRECEDING) FROM kept
--@ read | a function in GROUPING SETS that adds
SELECT 1 FROM kept GROUP BY GROUPING SETS ((adds()))
--@ read | a function in an XML table that adds
SELECT * FROM XMLTABLE('/a' PASSING '<a/>' COLUMNS x int DEFAULT adds())
--@ read | a function that calls itself stable
SELECT adds_stable()
--@ read | a function that swallows its error
SELECT adds_quietly()
--@ read | a function that leaves the read-only mode
SELECT leaves_read_only()
--@ read | a function that leaves the read-only mode by a clause of its own
SELECT leaves_by_set()
--@ read | a function that runs as its owner
SELECT as_owner()
--@ read | a view that adds
SELECT * FROM acting
--@ read | a view that runs as its owner
SELECT * FROM acting_as_owner
--@ read | an overload of a harmless name
SELECT lower(b::varchar) FROM kept
--@ read | an operator that runs code
SELECT OPERATOR(public.@@@) a FROM kept
--@ read | an equality that runs code
SELECT count(*) FROM kept x JOIN kept y ON x = y
--@ read | a cast that runs code
SELECT kept::text FROM kept
--@ read | a cast that nobody wrote
SELECT x || '' FROM kept x
--@ read | a domain that runs code
SELECT 1::checked
--@ read | a domain inside an array
SELECT '{1}'::checked[]
--@ read | a domain by JSON
SELECT * FROM json_to_record('{"a": 1}') AS t(a checked)
--@ read | a policy that runs code
SELECT * FROM guarded
--@ read | a trigger behind a view
INSERT INTO writable VALUES (1, '')
--@ read | a rule behind an UPDATE
UPDATE ruled SET a = 1
--@ read | a call of a procedure
CALL removes()
--@ read | a function that commits
SELECT commits()
--@ read | an anonymous block
DO $$ BEGIN DELETE FROM kept; END $$
--@ read | a block in a language that is not named first
DO LANGUAGE plpgsql $$ BEGIN COMMIT; DELETE FROM kept; END $$
--@ read | an advisory lock that stays
SELECT pg_advisory_lock(4711)
--@ read | an advisory lock by a function
SELECT locks()
--@ read | an advisory lock by trying
SELECT pg_try_advisory_lock_shared(1, 2)
--@ read | a large object
SELECT lo_create(0)
--@ read | a large object with content
SELECT lo_from_bytea(0, 'x')
--@ read | a large object by a function
SELECT large()
--@ read | a descriptor of a large object
SELECT lo_open(lo_creat(-1), 131072)
--@ read | a notification
NOTIFY escape, 'x'
--@ read | a notification by a function
SELECT pg_notify('escape', 'x')
--@ read | a notification by a function of the owner's
SELECT tells()
--@ read | a session that listens
LISTEN escape
--@ read | a change of a table by a function
SELECT drains()
--@ read | a lock on a table
LOCK TABLE kept IN ACCESS EXCLUSIVE MODE
--@ read | rows are locked
SELECT * FROM kept FOR UPDATE
--@ read | rows are locked in a subquery
SELECT * FROM (SELECT * FROM kept FOR SHARE) x
--@ read | an index is built anew
REINDEX TABLE kept
--@ read | a table is rewritten
CLUSTER kept USING kept_pkey
--@ read | a table is vacuumed
VACUUM FULL kept
--@ read | statistics are taken
ANALYZE kept
--@ read | a materialised view is refreshed
REFRESH MATERIALIZED VIEW kept_count
--@ read | the transaction is opened for writing
SET TRANSACTION READ WRITE
--@ read | the transaction is opened for writing by its setting
SET transaction_read_only = off; DELETE FROM kept
--@ read | set_config opens the transaction for writing
SELECT set_config('transaction_read_only', 'off', true)
--@ read | the session is opened for writing
SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE
--@ read | the default is opened for writing
SET default_transaction_read_only = off
--@ read | the transaction is ended
COMMIT; DELETE FROM kept
--@ read | the transaction is ended by its old name
END; DELETE FROM kept
--@ read | the transaction is rolled back and chained
ROLLBACK AND CHAIN; DELETE FROM kept
--@ read | another transaction begins
BEGIN READ WRITE; DELETE FROM kept; COMMIT
--@ read | a savepoint is rolled back
SAVEPOINT a; ROLLBACK TO a; DELETE FROM kept
--@ read | a statement is prepared for the next call
PREPARE later AS DELETE FROM kept
--@ read | a prepared statement is run
EXECUTE later
--@ read | prepared statements are thrown away
DEALLOCATE ALL
--@ read | the session is cleaned
DISCARD ALL
--@ read | a cursor that outlives its transaction
DECLARE c CURSOR WITH HOLD FOR SELECT adds()
--@ read | a cursor that deletes
DELETE FROM kept WHERE CURRENT OF c
--@ read | COPY in
COPY kept FROM STDIN
--@ read | COPY of a deletion
COPY (DELETE FROM kept RETURNING a) TO STDOUT
--@ read | COPY of a function
COPY (SELECT adds()) TO STDOUT
--@ read | COPY and another statement
COPY kept TO STDOUT; DROP TABLE kept
--@ read | a temporary table
CREATE TEMP TABLE t (a int)
--@ read | a temporary view
CREATE TEMP VIEW t AS SELECT 1
--@ read | a query in XML
SELECT query_to_xml('DELETE FROM kept RETURNING a', true, true, '')
--@ read | a cursor in XML
SELECT cursor_to_xml('c', 1, true, true, '')
--@ read | a query for words
SELECT * FROM ts_stat('SELECT to_tsvector(adds()::text)')
--@ read | a query for a rewritten query
SELECT ts_rewrite('a'::tsquery, 'SELECT adds()::text::tsquery, ''b''::tsquery')
--@ read | a tree of a query
SELECT * FROM connectby('kept', 'a', 'adds()', '1', 0)
--@ read | a function by its number
SELECT * FROM pg_catalog.pg_proc p, LATERAL (SELECT p.oid::regprocedure) x WHERE adds() = 1
--@ read | a role is set
SET ROLE {owner}
--@ read | a setting for all later calls
ALTER ROLE {reader} SET default_transaction_read_only = off
--@ read | a password for later
ALTER ROLE {reader} PASSWORD 'taken'
--@ read | a session is ended
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{owner}'
--@ read | a snapshot is exported
SELECT pg_export_snapshot()
--@ read | a lock on a two-phase transaction
COMMIT PREPARED 'of the operator'
--@ read | a WAL message that needs no transaction
SELECT pg_logical_emit_message(false, 'x', 'y')
--@ reader | INSERT by the reader itself
INSERT INTO kept VALUES (3, 'three')
--@ reader | UPDATE by the reader itself
UPDATE kept SET b = ''
--@ reader | DELETE by the reader itself
DELETE FROM kept
--@ reader | TRUNCATE by the reader itself
TRUNCATE kept
--@ reader | a table
CREATE TABLE t (a int)
--@ reader | a table by a query
CREATE TABLE t AS SELECT * FROM kept
--@ reader | a temporary table
CREATE TEMP TABLE t (a int)
--@ reader | a schema
CREATE SCHEMA t
--@ reader | a function
CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'
--@ reader | a temporary function
CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql AS 'SELECT 1'
--@ reader | a domain
CREATE DOMAIN d AS int
--@ reader | an extension
CREATE EXTENSION hstore
--@ reader | a sequence by the reader itself
SELECT nextval('counter')
--@ reader | a sequence set by the reader itself
SELECT setval('counter', 99)
--@ reader | an anonymous block by the reader itself
DO $$ BEGIN DELETE FROM kept; END $$
--@ reader | a procedure by the reader itself
CALL removes()
--@ reader | a function of the owner's that is not the definer's
SELECT adds()
--@ reader | a rule by the reader itself
UPDATE ruled SET a = 1
--@ reader | a view with a trigger by the reader itself
INSERT INTO writable VALUES (1, '')
--@ reader | a materialised view by the reader itself
REFRESH MATERIALIZED VIEW kept_count
--@ reader | rights are handed on
GRANT ALL ON kept TO PUBLIC
--@ reader | a table changes hands
ALTER TABLE kept OWNER TO {reader}
--@ reader | a lock that keeps the owner out
LOCK TABLE kept IN ACCESS EXCLUSIVE MODE
--@ reader | rows are locked by the reader itself
SELECT * FROM kept FOR UPDATE
--@ reader | row security is switched off
SET row_security = off; INSERT INTO guarded VALUES (2)
--@ reader | a policy
CREATE POLICY p ON kept USING (true)
--@ reader | a trigger
CREATE TRIGGER t AFTER INSERT ON kept EXECUTE FUNCTION instead()
--@ reader | a rule
CREATE RULE r AS ON SELECT TO kept DO INSTEAD SELECT 1
--@ reader | an index
CREATE INDEX ON kept (b)
--@ reader | a comment
COMMENT ON TABLE kept IS 'x'
--@ reader | a setting of the database
ALTER DATABASE {db} SET search_path = trap
--@ reader | a right on the database
GRANT CREATE ON DATABASE {db} TO {reader}
--@ reader | statistics
CREATE STATISTICS s ON a, b FROM kept
--@ reader | a publication
CREATE PUBLICATION p FOR TABLE kept
--@ reader | statistics of the planner are cleared
SELECT pg_catalog.pg_clear_relation_stats('public', 'kept')
--@ reader | what the reader owns is given to the owner
REASSIGN OWNED BY {owner} TO {reader}
