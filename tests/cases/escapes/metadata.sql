-- A sandbox reaches for this program's own tables. The operator of this server lets PUBLIC log in to the admin's
-- database, as Postgres does unless told otherwise.

--@ owner@home, reader@home | the rows of all sandboxes are read
SELECT * FROM pgsandbox.sandboxes
--@ owner@home, reader@home | sealed passwords are read
SELECT owner_sealed FROM pgsandbox.sandboxes
--@ owner@home, reader@home | the journal is read
TABLE pgsandbox.journal
--@ owner@home, reader@home | idempotency keys are read
TABLE pgsandbox.idempotency
--@ owner@home | the list of servers is read
TABLE pgsandbox.servers
--@ owner@home, reader@home | a sandbox gets a new owner
UPDATE pgsandbox.sandboxes SET owner = 'mallory'
--@ owner@home | a sandbox lives for ever
UPDATE pgsandbox.sandboxes SET expires_at = 'infinity'
--@ owner@home | a row makes the program drop the operator's database
UPDATE pgsandbox.sandboxes SET database_name = 'operator', state = 'deleting'
--@ owner@home | a row of a sandbox that there is not
INSERT INTO pgsandbox.sandboxes SELECT * FROM pgsandbox.sandboxes
--@ owner@home | all rows are removed
DELETE FROM pgsandbox.sandboxes
--@ owner@home, reader@home | all rows are removed at once
TRUNCATE pgsandbox.sandboxes CASCADE
--@ owner@home | a plan that removes somebody else's sandbox
INSERT INTO pgsandbox.plans (id, sandbox_id, kind, state, request_id) VALUES (gen_random_uuid(), '{victim_id}', 'delete', 'running', gen_random_uuid())
--@ owner@home | the journal says what was not done
DELETE FROM pgsandbox.journal
--@ owner@home | the schema is dropped
DROP SCHEMA pgsandbox CASCADE
--@ owner@home | the schema changes hands
ALTER SCHEMA pgsandbox OWNER TO {owner}
--@ owner@home | a table changes hands
ALTER TABLE pgsandbox.sandboxes OWNER TO {owner}
--@ owner@home, reader@home | a right to the schema
GRANT USAGE ON SCHEMA pgsandbox TO PUBLIC
--@ owner@home | a right to the tables
GRANT ALL ON ALL TABLES IN SCHEMA pgsandbox TO PUBLIC
--@ owner@home, reader@home | a table in the schema
CREATE TABLE pgsandbox.mine (a int)
--@ owner@home | a trigger on a table
CREATE TRIGGER t BEFORE INSERT ON pgsandbox.sandboxes FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()
--@ owner@home | a rule on a table
CREATE RULE r AS ON INSERT TO pgsandbox.sandboxes DO ALSO DELETE FROM pgsandbox.sandboxes
--@ owner@home | an index on a table
CREATE INDEX ON pgsandbox.sandboxes (owner)
--@ owner@home, reader@home | a lock on a table
LOCK TABLE pgsandbox.sandboxes IN ACCESS SHARE MODE
--@ owner@home | a foreign key to a table, which would lock its rows
CREATE TEMP TABLE fk (id uuid REFERENCES pgsandbox.sandboxes (id))
--@ owner@home | a view of a table
CREATE TEMP VIEW v AS SELECT * FROM pgsandbox.sandboxes
--@ owner@home | a schema of the program's name after the next install
CREATE SCHEMA IF NOT EXISTS pgsandbox_next AUTHORIZATION {owner}
--@ owner@home, reader@home | a schema in the admin's database
CREATE SCHEMA trap
--@ owner@home, reader@home | a table in the public schema of the admin's database
CREATE TABLE public.trap (a int)
--@ owner@home, reader@home | a function in the public schema of the admin's database
CREATE FUNCTION public.count(text) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'
--@ owner@home | an operator in the public schema of the admin's database
CREATE OPERATOR public.= (leftarg = text, rightarg = uuid, function = pg_catalog.texteq)
--@ owner@home | a cast in the admin's database
CREATE CAST (uuid AS int) WITHOUT FUNCTION
--@ owner@home | an extension in the admin's database
CREATE EXTENSION hstore
--@ owner@home | the program's search_path in the admin's database
ALTER ROLE {admin} IN DATABASE {home} SET search_path = pg_temp
--@ owner@home, reader@home | the next value of a sequence of the program's
SELECT nextval('pgsandbox.servers_number_seq')
--@ owner@home | the sequence of the program's is set back
SELECT setval('pgsandbox.servers_number_seq', 1)
--@ owner@home, reader@home | the size of the tables
SELECT pg_total_relation_size('pgsandbox.sandboxes')
--@ owner@home | the statistics of columns
SELECT most_common_vals FROM pg_stats WHERE schemaname = 'pgsandbox'
--@ owner@home | the statistics without their view
SELECT stavalues1 FROM pg_catalog.pg_statistic
--@ owner@home, reader@home | tables are written out as XML
SELECT schema_to_xml('pgsandbox', true, true, '')
--@ owner@home | the database is written out as XML
SELECT database_to_xml(true, true, '')
--@ owner@home | what the program is doing
SELECT query FROM pg_stat_activity WHERE usename = '{admin}' AND query <> '<insufficient privilege>'
--@ owner, reader, write, read | the metadata from inside a sandbox
SELECT * FROM pgsandbox.sandboxes
--@ owner, write | a schema of the metadata's name inside a sandbox changes nothing
CREATE SCHEMA IF NOT EXISTS pgsandbox; CREATE TABLE IF NOT EXISTS pgsandbox.sandboxes (id uuid)
--@ owner@home | rows are copied out
COPY pgsandbox.sandboxes TO STDOUT
--@ owner@home | rows are deleted by a cursor
BEGIN; DECLARE c CURSOR FOR SELECT * FROM pgsandbox.sandboxes FOR UPDATE; FETCH c
--@ owner@home | the comment that marks the schema
COMMENT ON SCHEMA pgsandbox IS 'another''s'
