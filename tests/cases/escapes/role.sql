-- A sandbox's roles reach for more than they were given.
-- See tests/it/escapes/attempts.rs for the form of these files.

--@ owner, reader, write | a role makes itself a superuser
ALTER ROLE {me} SUPERUSER
--@ owner, reader, write | a role gives itself CREATEROLE
ALTER ROLE {me} CREATEROLE
--@ owner, reader | a role gives itself CREATEDB
ALTER ROLE {me} CREATEDB
--@ owner, reader | a role gives itself REPLICATION
ALTER ROLE {me} REPLICATION
--@ owner | the owner gives itself BYPASSRLS
ALTER ROLE {me} BYPASSRLS
--@ owner, reader | a role lives for ever
ALTER ROLE {me} VALID UNTIL 'infinity'
--@ owner, reader | a role lifts its connection limit
ALTER ROLE {me} CONNECTION LIMIT -1
--@ owner, reader | a role renames itself
ALTER ROLE {me} RENAME TO harmless
--@ owner, reader | a role renames itself to the reader of another sandbox
ALTER ROLE {me} RENAME TO {victim_reader}
--@ owner, write | a role lifts its limit on temporary files
ALTER ROLE {me} SET temp_file_limit = -1
--@ owner | a database lifts the limit on temporary files
ALTER DATABASE {db} SET temp_file_limit = -1
--@ owner, reader | a session lifts its limit on temporary files
SET temp_file_limit = -1
--@ owner, reader | set_config lifts the limit on temporary files
SELECT set_config('temp_file_limit', '-1', false)
--@ owner, reader, write | a role makes another role
CREATE ROLE intruder LOGIN SUPERUSER PASSWORD 'x'
--@ owner, reader | a role makes a plain role
CREATE USER intruder
--@ owner, write | a role makes a database
CREATE DATABASE intruder
--@ owner, reader | a role drops its companion
DROP ROLE {reader}
--@ owner, reader | a role drops the admin
DROP ROLE {admin}
--@ owner | the owner gives its companion the right to write as itself
GRANT {owner} TO {reader}
--@ reader | the reader gives itself the owner
GRANT {owner} TO {reader}
--@ owner, reader | a role becomes a member of another sandbox's owner
GRANT {victim_owner} TO {me}
--@ owner, reader | a role becomes a member of another sandbox's reader
GRANT {victim_reader} TO {me}
--@ owner, reader, write | a role becomes a member of the admin
GRANT {admin} TO {me}
--@ owner, reader | a role becomes a member of the bootstrap superuser
GRANT {super} TO {me}
--@ owner | the owner makes another sandbox's owner its member
GRANT {owner} TO {victim_owner}
--@ owner | the owner makes itself the grantor of its membership
GRANT {owner} TO {victim_owner} WITH ADMIN OPTION GRANTED BY {owner}
--@ owner | since 16 | the owner makes an inherited membership
GRANT {owner} TO {victim_owner} WITH INHERIT TRUE, SET TRUE
--@ owner | since 16 | the owner takes the admin's membership away, with its own name as grantor
REVOKE {owner} FROM {admin} GRANTED BY {owner} CASCADE
--@ owner | the owner throws the admin out of its role
REVOKE {owner} FROM {admin}
--@ owner, reader, write | pg_read_server_files
GRANT pg_read_server_files TO {me}
--@ owner, reader | pg_write_server_files
GRANT pg_write_server_files TO {me}
--@ owner, reader, write | pg_execute_server_program
GRANT pg_execute_server_program TO {me}
--@ owner, reader | pg_monitor
GRANT pg_monitor TO {me}
--@ owner, reader | pg_read_all_data
GRANT pg_read_all_data TO {me}
--@ owner, reader | pg_write_all_data
GRANT pg_write_all_data TO {me}
--@ owner, reader | pg_signal_backend
GRANT pg_signal_backend TO {me}
--@ owner | pg_database_owner, which has no members
GRANT pg_database_owner TO {reader}
--@ owner | since 16 | pg_create_subscription
GRANT pg_create_subscription TO {me}
--@ owner | pg_checkpoint
GRANT pg_checkpoint TO {me}
--@ owner | a predefined role becomes the reader's member
GRANT {reader} TO pg_monitor
--@ owner, reader, write | SET ROLE to the admin
SET ROLE {admin}
--@ owner, reader, write | SET ROLE to another sandbox's owner
SET ROLE {victim_owner}
--@ reader, read | SET ROLE to the owner of the same sandbox
SET ROLE {owner}
--@ owner, reader, write, read | set_config of the role
SELECT set_config('role', '{admin}', false)
--@ owner, reader, write | SET SESSION AUTHORIZATION to the admin
SET SESSION AUTHORIZATION {admin}
--@ owner, reader | SET SESSION AUTHORIZATION to the bootstrap superuser
SET SESSION AUTHORIZATION {super}
--@ owner, reader, read | set_config of the session's authorization
SELECT set_config('session_authorization', '{super}', false)
--@ owner | may settings | a setting of the role's own becomes a role
ALTER ROLE {me} SET role = '{admin}'
--@ owner | may settings | a setting of the database becomes a role
ALTER DATABASE {db} SET role = '{admin}'
--@ owner | may settings | the owner's database sets a session's authorization to itself
ALTER DATABASE {db} SET session_authorization = '{owner}'
--@ owner | may settings | the owner's database sets a session's authorization to the admin
ALTER DATABASE {db} SET session_authorization = '{admin}'
--@ owner, reader | is_superuser is set
SELECT set_config('is_superuser', 'on', false)
--@ owner, reader | may settings | is_superuser as a setting of the role
ALTER ROLE {me} SET is_superuser = 'on'
--@ owner, reader | another role's password
ALTER ROLE {victim_owner} PASSWORD 'taken'
--@ owner, reader, write | the admin's password
ALTER ROLE {admin} PASSWORD 'taken'
--@ owner | the companion's password
ALTER ROLE {reader} PASSWORD 'taken'
--@ reader | the owner's password
ALTER ROLE {owner} PASSWORD 'taken'
--@ owner | may password | the owner's own password, which is set back
ALTER ROLE {owner} PASSWORD 'taken'
--@ reader | may password | the reader's own password, which is set back
ALTER ROLE {reader} PASSWORD 'taken'
--@ write | a password through run_sql
ALTER ROLE CURRENT_USER PASSWORD 'taken'
--@ owner | may password | no password at all
ALTER ROLE {owner} PASSWORD NULL
--@ owner, reader | settings of every role
ALTER ROLE ALL SET work_mem = '1MB'
--@ owner, reader | settings of another role
ALTER ROLE {victim_owner} SET search_path = trap
--@ owner, reader | settings of the admin
ALTER ROLE {admin} SET search_path = trap
--@ owner, reader | may settings | settings of every role in the own database
ALTER ROLE ALL IN DATABASE {db} SET search_path = trap
--@ owner | settings of the admin in the own database
ALTER ROLE {admin} IN DATABASE {db} SET search_path = trap
--@ owner, reader | may settings | settings of oneself in another sandbox's database
ALTER ROLE {me} IN DATABASE {victim_db} SET work_mem = '1MB'
--@ owner | what another owns is taken over
REASSIGN OWNED BY {victim_owner} TO {owner}
--@ owner | what the admin owns is taken over
REASSIGN OWNED BY {admin} TO {owner}
--@ owner | what belongs to the bootstrap superuser is taken over
REASSIGN OWNED BY {super} TO {owner}
--@ owner | what the sandbox has is given to the admin
REASSIGN OWNED BY {owner} TO {admin}
--@ owner | what another owns is dropped
DROP OWNED BY {victim_owner} CASCADE
--@ owner, reader | what the admin owns is dropped
DROP OWNED BY {admin} CASCADE
--@ owner | a table is given to the admin, so that its triggers run as it
CREATE TABLE gift (a int); ALTER TABLE gift OWNER TO {admin}
--@ owner | a function is given to the admin, so that it defines its security
CREATE FUNCTION gift() RETURNS int LANGUAGE sql SECURITY DEFINER AS 'SELECT 1'; ALTER FUNCTION gift() OWNER TO {admin}
--@ owner | a view is given to the admin, so that it reads with its rights
CREATE VIEW gift_view AS SELECT rolpassword FROM pg_authid; ALTER VIEW gift_view OWNER TO {admin}
--@ owner | a schema for the admin
CREATE SCHEMA gift_schema AUTHORIZATION {admin}
--@ owner | default privileges of the admin
ALTER DEFAULT PRIVILEGES FOR ROLE {admin} GRANT ALL ON TABLES TO PUBLIC
--@ owner | default privileges of another sandbox's owner
ALTER DEFAULT PRIVILEGES FOR ROLE {victim_owner} GRANT ALL ON TABLES TO PUBLIC
--@ owner, reader | a grant of a parameter
GRANT SET ON PARAMETER session_preload_libraries TO {me}
--@ owner, reader | a grant of ALTER SYSTEM on a parameter
GRANT ALTER SYSTEM ON PARAMETER archive_command TO PUBLIC
--@ owner, reader | the catalogue of roles is written
UPDATE pg_catalog.pg_authid SET rolsuper = true WHERE rolname = '{me}'
--@ owner, reader | the catalogue of members is written
INSERT INTO pg_catalog.pg_auth_members (roleid, member, grantor, admin_option) VALUES (10, '{me}'::regrole, 10, true)
--@ owner, reader | system tables are opened for writing
SET allow_system_table_mods = on
--@ owner, reader, read | the passwords of all roles are read
SELECT rolname, rolpassword FROM pg_catalog.pg_authid
--@ owner, reader, read | the passwords of all roles are read through the view
SELECT usename, passwd FROM pg_catalog.pg_shadow
--@ owner, reader, read | passwords are copied out
COPY (SELECT rolpassword FROM pg_catalog.pg_authid) TO STDOUT
--@ owner | a SECURITY DEFINER function that raises its caller
CREATE FUNCTION raise_me() RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN EXECUTE 'ALTER ROLE {owner} SUPERUSER'; RETURN 'up'; END $$; SELECT raise_me()
--@ owner, write | an anonymous block that raises its caller and swallows the error
DO $$ BEGIN EXECUTE 'ALTER ROLE {owner} SUPERUSER'; EXCEPTION WHEN OTHERS THEN RAISE NOTICE 'not'; END $$
--@ owner | a role in an index expression
CREATE TABLE expr (a int); CREATE FUNCTION climb(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN EXECUTE 'ALTER ROLE {owner} SUPERUSER'; RETURN 1; EXCEPTION WHEN OTHERS THEN RETURN 1; END $$; CREATE INDEX ON expr (climb(a)); INSERT INTO expr VALUES (1); REINDEX TABLE expr; ANALYZE expr
--@ owner | a role in a materialised view
CREATE FUNCTION climb2() RETURNS int LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'SET ROLE {admin}'; RETURN 1; END $$; CREATE MATERIALIZED VIEW climbing AS SELECT climb2(); REFRESH MATERIALIZED VIEW climbing
--@ owner | a deferred trigger that runs after SET ROLE at the end of a transaction
CREATE TABLE late (a int); CREATE FUNCTION late_f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'GRANT pg_read_server_files TO {owner}'; RETURN NULL; EXCEPTION WHEN insufficient_privilege THEN RETURN NULL; END $$; CREATE CONSTRAINT TRIGGER late_t AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late_f(); BEGIN; INSERT INTO late VALUES (1); COMMIT
--@ owner | since 16 | createrole_self_grant brings nothing without CREATEROLE
SET createrole_self_grant = 'set, inherit'; CREATE ROLE intruder
--@ owner | a user of groups of old
ALTER GROUP {victim_owner} ADD USER {owner}
--@ owner | may comment | a comment on the own database
COMMENT ON DATABASE {db} IS 'mine'
--@ owner | a comment on the admin
COMMENT ON ROLE {admin} IS 'mine'
--@ owner | a security label on the admin
SECURITY LABEL ON ROLE {admin} IS 'x'
