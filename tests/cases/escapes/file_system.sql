-- A sandbox reaches for the server's files, its programs and its settings.

--@ owner, reader, write, read | a file is read
SELECT pg_read_file('{file}')
--@ owner, reader | a part of a file is read
SELECT pg_read_file('{file}', 0, 100, true)
--@ owner, reader | a file is read as bytes
SELECT convert_from(pg_read_binary_file('{file}'), 'UTF8')
--@ owner, reader, read | a folder is listed
SELECT pg_ls_dir('/')
--@ owner, reader | the data directory is listed
SELECT pg_ls_dir('.')
--@ owner, reader | the log folder is listed
SELECT * FROM pg_ls_logdir()
--@ owner | the WAL folder is listed
SELECT * FROM pg_ls_waldir()
--@ owner | temporary files are listed
SELECT * FROM pg_ls_tmpdir()
--@ owner, reader | a file is looked at
SELECT * FROM pg_stat_file('{file}')
--@ owner | the name of the log
SELECT pg_current_logfile()
--@ owner, reader | pg_hba.conf by its view
SELECT * FROM pg_hba_file_rules
--@ owner, reader | the configuration files by their view
SELECT * FROM pg_file_settings
--@ owner | where the data lies
SELECT current_setting('data_directory')
--@ owner | how the server was built
SELECT * FROM pg_config
--@ owner, reader, write | a table is written to a file
COPY (SELECT 'escaped') TO '{out}/copied'
--@ owner, reader, write | a file is read into a table
CREATE TABLE IF NOT EXISTS from_file (line text); COPY from_file FROM '{file}'; SELECT * FROM from_file
--@ owner, reader, write, read | a program writes
COPY (SELECT 'x') TO PROGRAM 'cat >{out}/program'
--@ owner, write | a program is read
CREATE TABLE IF NOT EXISTS from_program (line text); COPY from_program FROM PROGRAM 'touch {out}/program; cat {file}'
--@ owner, reader, write | a large object is read from a file
SELECT lo_import('{file}')
--@ owner, reader | a large object is written to a file
SELECT lo_export(lo_from_bytea(0, 'x'), '{out}/large')
--@ owner | a large object gets a number of the system's
SELECT lo_import('{file}', 1259)
--@ owner | the right to import files
GRANT EXECUTE ON FUNCTION pg_catalog.lo_import(text) TO {owner}
--@ owner | a copy of the function that imports files
CREATE FUNCTION my_import(text) RETURNS oid LANGUAGE internal AS 'be_lo_import'
--@ owner | a copy of the function that reads files
CREATE FUNCTION my_read(text) RETURNS text LANGUAGE internal AS 'pg_read_file_all'
--@ owner, write | a function of the C library
CREATE FUNCTION sys(text) RETURNS int LANGUAGE c STRICT AS 'libc.so.6', 'system'
--@ owner | a function of a library of the server's own
CREATE FUNCTION plpgsql_again() RETURNS language_handler LANGUAGE c AS '$libdir/plpgsql', 'plpgsql_call_handler'
--@ owner, reader, write | a library is loaded
LOAD '{out}/library.so'
--@ owner, reader | a library is loaded by a path out of its folder
LOAD '$libdir/plugins/../../../../../..{out}/library.so'
--@ owner | may settings | a library for every session of the database
ALTER DATABASE {db} SET local_preload_libraries = 'no_such'
--@ owner | a library from anywhere for every session of the database
ALTER DATABASE {db} SET session_preload_libraries = '{out}/library.so'
--@ owner | where libraries are looked for
ALTER DATABASE {db} SET dynamic_library_path = '{out}'
--@ owner | since 18 | where extensions are looked for
ALTER DATABASE {db} SET extension_control_path = '{out}'
--@ owner, reader | where libraries are looked for, in the session
SET dynamic_library_path = '{out}'
--@ owner, write | an untrusted language
CREATE EXTENSION plperlu
--@ owner, write | another untrusted language
CREATE EXTENSION plpython3u
--@ owner | a language of one's own
CREATE LANGUAGE mine HANDLER plpgsql_call_handler
--@ owner | an untrusted twin of a trusted language
CREATE LANGUAGE plpgsqlu HANDLER plpgsql_call_handler
--@ owner, write | an extension that reads files
CREATE EXTENSION file_fdw
--@ owner | an extension that administers files
CREATE EXTENSION adminpack
--@ owner | an extension that reads raw pages
CREATE EXTENSION pageinspect
--@ owner | an extension that runs in the background
CREATE EXTENSION pg_cron
--@ owner | an extension by a path
CREATE EXTENSION "../../../../..{out}/evil"
--@ owner | an extension's version by a path
CREATE EXTENSION hstore VERSION '../../../../..{out}/evil'
--@ owner, write | a tablespace
CREATE TABLESPACE mine LOCATION '{out}'
--@ owner | a tablespace inside the data directory
SET allow_in_place_tablespaces = on; CREATE TABLESPACE mine LOCATION ''
--@ owner | temporary files go elsewhere
SET temp_tablespaces = 'pg_global'; CREATE TEMP TABLE elsewhere (a int)
--@ owner, write | a table among the shared ones
CREATE TABLE shared_one (a int) TABLESPACE pg_global
--@ owner, reader, write | a setting of the server
ALTER SYSTEM SET archive_command = 'touch {out}/archive'
--@ owner, write | all settings of the server are reset
ALTER SYSTEM RESET ALL
--@ owner, reader | the configuration is read again
SELECT pg_reload_conf()
--@ owner, reader | the log is rotated
SELECT pg_rotate_logfile()
--@ owner, reader | a checkpoint
CHECKPOINT
--@ owner, reader | WAL is switched
SELECT pg_switch_wal()
--@ owner | a restore point
SELECT pg_create_restore_point('x')
--@ owner | a backup is begun
SELECT pg_backup_start('x', true)
--@ owner | a standby is promoted
SELECT pg_promote()
--@ owner, reader | collations are imported from the system
SELECT pg_import_system_collations('pg_catalog')
--@ owner, reader | the program that archives
SET archive_command = 'touch {out}/archive'
--@ owner, reader | statements are logged, with their parameters
SET log_statement = 'all'
--@ owner | every error is logged with its statement, for the database
ALTER DATABASE {db} SET log_min_error_statement = 'debug5'
--@ owner, reader | where a library is taken from at a crash
SET backtrace_functions = 'fires'
--@ owner | pages with wrong checksums are read
SET zero_damaged_pages = on
--@ owner, write | a dictionary from any file
CREATE TEXT SEARCH DICTIONARY any_file (TEMPLATE = synonym, SYNONYMS = '../../../../../..{file}')
--@ owner | a dictionary from any file, by another template
CREATE TEXT SEARCH DICTIONARY any_file2 (TEMPLATE = ispell, DictFile = '/etc/passwd', AffFile = '/etc/passwd')
--@ owner | a stop-word list from any file
CREATE TEXT SEARCH DICTIONARY any_file3 (TEMPLATE = simple, STOPWORDS = '../../../../../../etc/passwd')
--@ owner | a thesaurus from any file
CREATE TEXT SEARCH DICTIONARY any_file4 (TEMPLATE = thesaurus, DictFile = '../../../etc/passwd', Dictionary = pg_catalog.simple)
--@ owner | a template of dictionaries, which takes functions of the server's own
CREATE TEXT SEARCH TEMPLATE mine (LEXIZE = dsimple_lexize)
--@ owner | a parser of texts
CREATE TEXT SEARCH PARSER mine (START = prsd_start, GETTOKEN = prsd_nexttoken, END = prsd_end, LEXTYPES = prsd_lextype)
--@ owner, reader, read | an XML document that names a file
SELECT xmlparse(document '<!DOCTYPE a [<!ENTITY e SYSTEM "file://{file}">]><a>&e;</a>')
--@ owner, reader | an XML path that names a file
SELECT xpath('document("file://{file}")', '<a/>'::xml)
--@ owner | names of time zones from any file
SET timezone_abbreviations = '../../../../..{file}'
--@ owner, reader | a time zone from any file
SET timezone = '../../../../..{file}'
--@ owner | a locale from any file
CREATE COLLATION any_locale (provider = libc, locale = '../../../../..{file}')
--@ owner | a type with functions of the server's own
CREATE TYPE mine; CREATE FUNCTION mine_in(cstring) RETURNS mine LANGUAGE internal AS 'byteain'
--@ owner | a cast that takes bytes for a pointer
CREATE CAST (bigint AS internal) WITHOUT FUNCTION
--@ owner | an aggregate whose state is a pointer
CREATE AGGREGATE pointer_agg (anynonarray) (sfunc = array_agg_transfn, stype = internal, finalfunc = array_agg_finalfn, finalfunc_extra)
--@ owner | an aggregate whose state is a pointer of another's
CREATE AGGREGATE pointer_agg2 (bytea) (sfunc = string_agg_transfn, stype = internal, initcond = '1')
--@ owner | a function that takes a pointer is called
SELECT array_agg_finalfn(1, 2)
--@ owner | an operator class
CREATE OPERATOR CLASS mine FOR TYPE int USING btree AS OPERATOR 1 <
--@ owner | an access method
CREATE ACCESS METHOD mine TYPE INDEX HANDLER bthandler
--@ owner | a support function
CREATE FUNCTION mine_sup(int) RETURNS int LANGUAGE sql SUPPORT pg_catalog.generate_series_int4_support AS 'SELECT 1'
--@ owner | a leakproof function
CREATE FUNCTION leaky(text) RETURNS bool LANGUAGE sql LEAKPROOF AS 'SELECT true'
--@ owner | a conversion of encodings
CREATE DEFAULT CONVERSION mine FOR 'UTF8' TO 'LATIN1' FROM utf8_to_iso8859_1
--@ owner | a transform
CREATE TRANSFORM FOR int LANGUAGE sql (FROM SQL WITH FUNCTION prsd_lextype(internal))
--@ owner | a trusted extension whose script would run what was planted
CREATE SCHEMA planted; CREATE FUNCTION planted.planted_op(text, text) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'ALTER ROLE {owner} SUPERUSER'; RETURN true; END $$; CREATE OPERATOR planted.= (leftarg = text, rightarg = text, function = planted.planted_op); CREATE FUNCTION planted.format(text, text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'ALTER ROLE {owner} SUPERUSER'; RETURN ''; END $$; SET search_path = planted, public; CREATE EXTENSION citext SCHEMA planted
--@ owner | a trusted extension that finds its functions made already
CREATE SCHEMA before; CREATE FUNCTION before.hstore_version_diag(int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'ALTER ROLE {owner} SUPERUSER'; RETURN 1; END $$; CREATE TYPE before.hstore; CREATE EXTENSION hstore SCHEMA before
--@ owner | a trusted extension in a schema whose name is code
CREATE SCHEMA "x$$; ALTER ROLE {owner_bare} SUPERUSER; --"; CREATE EXTENSION cube SCHEMA "x$$; ALTER ROLE {owner_bare} SUPERUSER; --"
--@ owner | functions of a trusted extension, which belong to a superuser, are rewritten
CREATE EXTENSION IF NOT EXISTS pg_trgm; CREATE OR REPLACE FUNCTION similarity(text, text) RETURNS real LANGUAGE sql SECURITY DEFINER AS 'SELECT 1::real'
--@ owner | functions of a trusted extension get settings and a new owner
CREATE EXTENSION IF NOT EXISTS pg_trgm; ALTER FUNCTION similarity(text, text) SECURITY DEFINER; ALTER FUNCTION similarity(text, text) OWNER TO {admin}
--@ owner | an object of one's own joins an extension
CREATE EXTENSION IF NOT EXISTS pg_trgm; CREATE FUNCTION joins() RETURNS int LANGUAGE sql AS 'SELECT 1'; ALTER EXTENSION pg_trgm ADD FUNCTION joins()
--@ owner | the system's language leaves its extension
ALTER EXTENSION plpgsql DROP LANGUAGE plpgsql
--@ owner | the system's language changes hands
ALTER LANGUAGE plpgsql OWNER TO {owner}
--@ owner | statistics are imported for a system table
SELECT pg_restore_relation_stats('schemaname', 'pg_catalog', 'relname', 'pg_class', 'relpages', 1)
--@ owner, reader | pages are read into memory for all
SELECT pg_prewarm('pg_catalog.pg_authid')
--@ owner | a WAL message
SELECT pg_logical_emit_message(false, 'x', 'y')
--@ owner, reader | upgrade functions
SELECT binary_upgrade_set_next_pg_authid_oid(10)
--@ owner | the transaction counter is used up faster
SELECT pg_catalog.pg_nextoid('pg_catalog.pg_authid'::regclass, 'oid', 'pg_catalog.pg_authid_oid_index'::regclass)
