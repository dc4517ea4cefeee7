-- A sandbox reaches for other databases of the same server.

--@ owner@victim, reader@victim | a login into another sandbox
SELECT * FROM secrets
--@ owner@operator, reader@operator | a login into a database that the operator has closed
SELECT * FROM secrets
--@ owner@template0, reader@template0 | a login into template0
SELECT 1
--@ owner, reader, write, read | a table of another database by its full name
SELECT * FROM {victim_db}.public.secrets
--@ owner, write | another sandbox's database is dropped
DROP DATABASE {victim_db}
--@ owner | another sandbox's database is dropped by force
DROP DATABASE {victim_db} WITH (FORCE)
--@ owner | the admin's database is dropped
DROP DATABASE {home}
--@ owner | another sandbox's database is copied
CREATE DATABASE stolen TEMPLATE {victim_db}
--@ owner | another sandbox's database is renamed
ALTER DATABASE {victim_db} RENAME TO stolen
--@ owner | another sandbox's database changes hands
ALTER DATABASE {victim_db} OWNER TO {owner}
--@ owner | the own database is given to another sandbox
ALTER DATABASE {db} OWNER TO {victim_owner}
--@ owner | the own database is given to the admin
ALTER DATABASE {db} OWNER TO {admin}
--@ owner | the own database takes another's name
ALTER DATABASE {db} RENAME TO stolen
--@ owner | another sandbox's database gets a setting
ALTER DATABASE {victim_db} SET search_path = trap
--@ owner | the admin's database gets a setting
ALTER DATABASE {home} SET search_path = trap
--@ owner | template1 gets a setting
ALTER DATABASE template1 SET search_path = trap
--@ owner | another sandbox's database lets nobody in
ALTER DATABASE {victim_db} CONNECTION LIMIT 0
--@ owner | another sandbox's database forbids connections
ALTER DATABASE {victim_db} ALLOW_CONNECTIONS false
--@ owner | another sandbox's database becomes a template
ALTER DATABASE {victim_db} IS_TEMPLATE true
--@ owner, reader | CONNECT on another sandbox's database
GRANT CONNECT ON DATABASE {victim_db} TO {me}
--@ owner | CONNECT on the operator's database
GRANT CONNECT ON DATABASE operator TO {me}
--@ owner | another sandbox is locked out of its own database
REVOKE CONNECT ON DATABASE {victim_db} FROM {victim_owner}
--@ owner | may database | the own database is opened to everybody
GRANT CONNECT ON DATABASE {db} TO PUBLIC
--@ owner | may database | the own database is closed to everybody again
REVOKE CONNECT ON DATABASE {db} FROM PUBLIC
--@ owner | may database | another sandbox is let into the own database
GRANT ALL ON DATABASE {db} TO {victim_owner}
--@ owner | may database | it is let in no more
REVOKE ALL ON DATABASE {db} FROM {victim_owner}
--@ owner | may database | the own database lets nobody in
ALTER DATABASE {db} CONNECTION LIMIT 0
--@ owner | may database | the own database becomes a template
ALTER DATABASE {db} IS_TEMPLATE true
--@ owner | may database | the own database is a template no more
ALTER DATABASE {db} IS_TEMPLATE false
--@ owner | the own database forbids connections
ALTER DATABASE {db} ALLOW_CONNECTIONS false
--@ owner | a comment on another sandbox's database
COMMENT ON DATABASE {victim_db} IS 'mine'
--@ owner, write | the own database moves to another tablespace
ALTER DATABASE {db} SET TABLESPACE pg_global
--@ owner | the own database is dropped from within
DROP DATABASE {db}
--@ owner, write | an extension that connects to other databases
CREATE EXTENSION dblink
--@ owner, write | an extension that has tables on other servers
CREATE EXTENSION postgres_fdw
--@ owner | the library of an extension that connects, without the extension
CREATE FUNCTION connect_out(text) RETURNS text LANGUAGE c AS '$libdir/dblink', 'dblink_connect'
--@ owner | a foreign data wrapper of one's own
CREATE FOREIGN DATA WRAPPER out_there
--@ owner | a foreign server
CREATE SERVER out_there FOREIGN DATA WRAPPER postgresql
--@ owner | a user mapping for another role
CREATE USER MAPPING FOR {victim_owner} SERVER out_there OPTIONS (password 'x')
--@ owner, write | a subscription to another sandbox's database
CREATE SUBSCRIPTION spy CONNECTION 'host=127.0.0.1 port={port} dbname={victim_db} user={owner}' PUBLICATION p
--@ owner | a subscription without a connection
CREATE SUBSCRIPTION spy CONNECTION 'dbname={victim_db}' PUBLICATION p WITH (connect = false)
--@ owner | a publication of all tables
CREATE PUBLICATION everything FOR ALL TABLES
--@ owner, reader, read | a physical replication slot
SELECT pg_create_physical_replication_slot('escape', true)
--@ owner, reader | a logical replication slot
SELECT pg_create_logical_replication_slot('escape', 'test_decoding')
--@ owner, reader | a slot is copied
SELECT pg_copy_physical_replication_slot('operator_slot', 'escape')
--@ owner, reader | the operator's slot is dropped
SELECT pg_drop_replication_slot('operator_slot')
--@ owner, reader | the operator's slot is moved
SELECT pg_replication_slot_advance('operator_slot', '0/1')
--@ owner | changes of the cluster are decoded
SELECT * FROM pg_logical_slot_peek_changes('operator_slot', NULL, NULL)
--@ owner, reader | a replication origin
SELECT pg_replication_origin_create('escape')
--@ owner, reader | a session takes part in replication
SELECT pg_replication_origin_session_setup('escape')
--@ owner, reader | triggers and foreign keys are switched off as if for replication
SET session_replication_role = replica
--@ owner, reader, read | the size of another database
SELECT pg_database_size('{victim_db}')
--@ owner, reader, read | what other sandboxes run at the moment
SELECT query, application_name, client_addr FROM pg_stat_activity WHERE datname = '{victim_db}' AND query <> '<insufficient privilege>'
--@ owner, reader, read | what other sessions run, by the function beneath the view
SELECT query FROM pg_stat_get_activity(NULL) WHERE query <> '<insufficient privilege>' AND query LIKE '%secret%'
--@ owner, reader | what one session of another runs
SELECT pg_stat_get_backend_activity(b) FROM pg_stat_get_backend_idset() b
--@ owner, reader | texts of statements of others
SELECT query FROM pg_stat_statements
--@ owner, reader, write | another sandbox's sessions are ended
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{victim_db}'
--@ owner, reader | the admin's sessions are ended
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{admin}'
--@ owner, reader | the operator's sessions are ended
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'operator'
--@ owner, reader | another sandbox's statement is cancelled
SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE datname = '{victim_db}'
--@ owner | the server's background processes are ended
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type <> 'client backend'
--@ owner, reader | a session's memory is written to the log
SELECT pg_log_backend_memory_contexts(pid) FROM pg_stat_activity WHERE datname = '{victim_db}'
--@ owner, reader | another database's snapshot is taken
BEGIN ISOLATION LEVEL REPEATABLE READ; SET TRANSACTION SNAPSHOT '00000003-00000002-1'; SELECT 1
--@ owner, reader | another sandbox's prepared transaction is committed
COMMIT PREPARED 'of the operator'
--@ owner, reader | another sandbox's prepared transaction is rolled back
ROLLBACK PREPARED 'of the operator'
--@ owner | may prepared | a transaction is prepared and stays
BEGIN; CREATE TABLE IF NOT EXISTS prepared_one (a int); PREPARE TRANSACTION 'mine'
--@ owner | may prepared | it is committed
COMMIT PREPARED 'mine'
--@ read | a prepared transaction of a read-only call
PREPARE TRANSACTION 'mine'
--@ owner | statistics of the whole server are reset
SELECT pg_stat_reset_shared('bgwriter')
--@ owner, reader | statistics of the database are reset
SELECT pg_stat_reset()
--@ owner | other sandboxes hear a notification
NOTIFY heard, 'x'
--@ owner, reader | a lock on a table of all databases
LOCK TABLE pg_catalog.pg_database IN ACCESS EXCLUSIVE MODE
--@ owner, reader | a lock on the table of roles
LOCK TABLE pg_catalog.pg_authid IN ACCESS EXCLUSIVE MODE
--@ owner | a shared table is rewritten
VACUUM FULL pg_catalog.pg_database
--@ owner | shared indexes are built anew
REINDEX TABLE pg_catalog.pg_authid
--@ owner, write | system indexes are built anew
REINDEX SYSTEM
--@ owner | a trigger on a shared table
CREATE TRIGGER t AFTER INSERT ON pg_catalog.pg_authid EXECUTE FUNCTION suppress_redundant_updates_trigger()
--@ owner | a rule on a system view
CREATE RULE r AS ON SELECT TO pg_catalog.pg_roles DO INSTEAD SELECT 1
--@ owner | an event trigger, which fires for the admin as well
CREATE FUNCTION fires() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'ALTER ROLE {owner} SUPERUSER'; END $$; CREATE EVENT TRIGGER fires ON ddl_command_end EXECUTE FUNCTION fires()
--@ owner | since 17 | an event trigger on login
CREATE FUNCTION logs_in() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'ALTER ROLE {owner} SUPERUSER'; END $$; CREATE EVENT TRIGGER logs_in ON login EXECUTE FUNCTION logs_in()
--@ owner | a schema that could stand in for the system's
CREATE SCHEMA pg_trap
--@ owner, reader | a function in pg_catalog
CREATE FUNCTION pg_catalog.quick() RETURNS int LANGUAGE sql AS 'SELECT 1'
--@ owner | an operator in pg_catalog
CREATE OPERATOR pg_catalog.=== (leftarg = int, rightarg = int, function = int4eq)
--@ owner | a system function is replaced
CREATE OR REPLACE FUNCTION pg_catalog.now() RETURNS timestamptz LANGUAGE sql AS 'SELECT NULL::timestamptz'
--@ owner | a system function changes hands
ALTER FUNCTION pg_catalog.lo_import(text) OWNER TO {owner}
--@ owner | schema pg_catalog changes hands
ALTER SCHEMA pg_catalog OWNER TO {owner}
--@ owner | schema pg_catalog is renamed
ALTER SCHEMA pg_catalog RENAME TO trap
