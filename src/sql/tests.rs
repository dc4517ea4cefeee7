//! What is read of whole statements: class, tag, traits, relations, functions, and the verdict.

use super::*;

/// Reads one statement.
fn one(sql: &str) -> Statement {
    let script = read(sql).unwrap();
    assert_eq!(script.statements.len(), 1, "{sql}");
    script.statements[0].clone()
}

/// Checks class and tag, in that order, of each statement.
fn check_class(cases: &[(&str, &str, &str)]) {
    for (class, tag, sql) in cases {
        let facts = one(sql).facts;
        assert_eq!((facts.class.as_str(), facts.tag.as_str()), (*class, *tag), "{sql}");
    }
}

/// Checks relations, as `+name` read, `*name` written, `#name` defined, and after `|` functions.
fn check_touched(cases: &[(&str, &str)]) {
    for (expected, sql) in cases {
        let facts = one(sql).facts;
        assert!(!facts.traits.contains(Traits::RELATIONS_UNKNOWN), "{sql}: relations are not known");
        let relations = facts.relations.iter().map(|r| {
            let sign = match r.access {
                Access::Reads => '+',
                Access::Writes => '*',
                Access::Defines => '#',
            };
            format!("{sign}{}", r.name)
        });
        let mut got = relations.collect::<Vec<_>>().join(" ");
        if !facts.functions.is_empty() {
            got = format!("{got} | {}", facts.functions.join(" "));
        }
        assert_eq!(got.trim(), *expected, "{sql}");
    }
}

fn has(sql: &str, traits: Traits) -> bool {
    one(sql).facts.traits.contains(traits)
}

fn is_safe(sql: &str) -> bool {
    one(sql).facts.read_only_safe
}

#[test]
fn every_kind_of_statement_has_its_class() {
    check_class(&[
        ("read", "SELECT", "select 1"),
        ("read", "SELECT", "((SELECT 1) UNION (SELECT 2))"),
        ("read", "VALUES", "VALUES (1)"),
        ("read", "TABLE", "TABLE t"),
        ("read", "WITH", "WITH a AS (SELECT 1) SELECT * FROM a"),
        ("read-lock", "SELECT", "SELECT 1 FROM t FOR NO KEY UPDATE"),
        ("read-lock", "SELECT", "SELECT 1 FROM t FOR KEY SHARE NOWAIT"),
        ("ddl", "SELECT INTO", "SELECT 1 INTO t"),
        ("write", "INSERT", "INSERT INTO t SELECT 1"),
        ("write", "MERGE", "MERGE INTO t USING s ON true WHEN MATCHED THEN DELETE"),
        ("write", "TRUNCATE", "TRUNCATE t"),
        ("write", "WITH", "WITH a AS (SELECT 1) INSERT INTO t SELECT * FROM a"),
        ("ddl", "CREATE TABLE", "CREATE GLOBAL TEMPORARY TABLE t (a int)"),
        ("ddl", "CREATE TABLE AS", "CREATE TABLE t AS SELECT 1"),
        ("ddl", "CREATE INDEX", "CREATE UNIQUE INDEX i ON t (a)"),
        ("ddl", "CREATE MATERIALIZED VIEW", "CREATE MATERIALIZED VIEW v AS SELECT 1"),
        ("ddl", "CREATE VIEW", "CREATE OR REPLACE RECURSIVE VIEW v (a) AS SELECT 1"),
        ("ddl", "CREATE CONVERSION", "CREATE DEFAULT CONVERSION c FOR 'a' TO 'b' FROM f"),
        ("ddl", "CREATE STATISTICS", "CREATE STATISTICS s ON a, b FROM t"),
        ("ddl", "CREATE FOREIGN TABLE", "CREATE FOREIGN TABLE t (a int) SERVER s"),
        ("ddl", "ALTER LARGE OBJECT", "ALTER LARGE OBJECT 1 OWNER TO r"),
        ("ddl", "DROP TEXT SEARCH PARSER", "DROP TEXT SEARCH PARSER p"),
        ("ddl", "COMMENT", "COMMENT ON TABLE t IS 'x'"),
        ("ddl", "CREATE SCHEMA", "CREATE SCHEMA s CREATE TABLE t (a int)"),
        ("code", "CREATE SCHEMA", "CREATE SCHEMA s CREATE TRIGGER g AFTER INSERT ON t EXECUTE FUNCTION f()"),
        ("access-control", "CREATE SCHEMA", "CREATE SCHEMA s CREATE TABLE t (a int) GRANT SELECT ON t TO r"),
        ("code", "CREATE FUNCTION", "CREATE OR REPLACE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'"),
        ("code", "CREATE TRIGGER", "CREATE CONSTRAINT TRIGGER g AFTER INSERT ON t EXECUTE FUNCTION f()"),
        ("code", "CREATE LANGUAGE", "CREATE OR REPLACE TRUSTED PROCEDURAL LANGUAGE l"),
        ("code", "CREATE FOREIGN DATA WRAPPER", "CREATE FOREIGN DATA WRAPPER w"),
        ("code", "CREATE OPERATOR CLASS", "CREATE OPERATOR CLASS c FOR TYPE int USING btree AS STORAGE int"),
        ("code", "CREATE USER MAPPING", "CREATE USER MAPPING FOR r SERVER s"),
        ("code", "DROP CAST", "DROP CAST (a AS b)"),
        ("access-control", "GRANT", "GRANT a TO b"),
        ("access-control", "DROP OWNED", "DROP OWNED BY r"),
        ("access-control", "REASSIGN OWNED", "REASSIGN OWNED BY a TO b"),
        ("access-control", "ALTER DEFAULT PRIVILEGES", "ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO r"),
        ("cluster", "CREATE USER", "CREATE USER u"),
        ("cluster", "ALTER DATABASE", "ALTER DATABASE d SET a = 1"),
        ("cluster", "ALTER SYSTEM", "ALTER SYSTEM SET a = 1"),
        ("transaction", "BEGIN", "BEGIN"),
        ("transaction", "START TRANSACTION", "START TRANSACTION READ ONLY"),
        ("transaction", "PREPARE TRANSACTION", "PREPARE TRANSACTION 'x'"),
        ("transaction", "COMMIT PREPARED", "COMMIT PREPARED 'x'"),
        ("transaction", "SET TRANSACTION", "SET SESSION TRANSACTION READ WRITE"),
        ("transaction", "SET CONSTRAINTS", "SET CONSTRAINTS ALL DEFERRED"),
        ("session", "SET", "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE"),
        ("session", "SET ROLE", "SET LOCAL ROLE r"),
        ("session", "SET SESSION AUTHORIZATION", "SET SESSION AUTHORIZATION r"),
        ("session", "DISCARD", "DISCARD TEMP"),
        ("show", "SHOW", "SHOW ALL"),
        ("procedural", "DO", "DO $$ $$"),
        ("procedural", "CALL", "CALL p()"),
        ("copy-in", "COPY", "COPY t (a) FROM STDIN WITH (FORMAT csv)"),
        ("copy-out", "COPY", "COPY BINARY t TO STDOUT"),
        ("copy-out", "COPY", "COPY (SELECT a FROM t) TO STDOUT"),
        ("copy-out", "COPY", "COPY binary TO STDOUT"),
        ("copy-server", "COPY", "COPY t FROM '/x'"),
        ("copy-server", "COPY", "COPY (SELECT 1) TO PROGRAM 'x'"),
        ("write", "COPY", "COPY (INSERT INTO t VALUES (1) RETURNING a) TO STDOUT"),
        ("maintenance", "REFRESH MATERIALIZED VIEW", "REFRESH MATERIALIZED VIEW CONCURRENTLY v"),
        ("maintenance", "ANALYZE", "ANALYSE t"),
        ("replication", "CREATE PUBLICATION", "CREATE PUBLICATION p FOR ALL TABLES"),
        ("replication", "ALTER SUBSCRIPTION", "ALTER SUBSCRIPTION s ENABLE"),
        ("notify", "LISTEN", "LISTEN c"),
        ("lock", "LOCK TABLE", "LOCK t"),
        ("prepared", "PREPARE", "PREPARE p (int) AS SELECT $1"),
        ("write", "PREPARE", "PREPARE p AS DELETE FROM t"),
        ("prepared", "EXECUTE", "EXECUTE p"),
        ("cursor", "DECLARE CURSOR", "DECLARE c INSENSITIVE CURSOR WITH HOLD FOR SELECT 1"),
        ("read-lock", "DECLARE CURSOR", "DECLARE c CURSOR FOR SELECT 1 FROM t FOR UPDATE"),
        ("cursor", "MOVE", "MOVE NEXT FROM c"),
        ("utility", "LOAD", "LOAD 'x'"),
        ("utility", "SECURITY LABEL", "SECURITY LABEL ON TABLE t IS 'x'"),
        ("explain", "EXPLAIN", "EXPLAIN DELETE FROM t"),
        ("unparsed", "", "SELEC 1"),
        ("unparsed", "", "EXPLAIN"),
        ("unparsed", "", "EXPLAIN DROP TABLE t"),
        ("unparsed", "", "\"select\" 1"),
        ("unparsed", "", "U&\"select\" 1"),
        ("unparsed", "PREPARE", "PREPARE p AS PREPARE q AS SELECT 1"),
    ]);
}

#[test]
fn tags_hold_no_name_and_no_literal() {
    for sql in
        ["CREATE TABLE secret (a int)", "SET secret = 'secret'", "secret 'secret'", "ALTER secret x", "LOAD 'secret'"]
    {
        assert!(!one(sql).facts.tag.to_lowercase().contains("secret"), "{sql}");
    }
}

#[test]
fn a_write_in_a_with_clause_is_a_write_wherever_it_stands() {
    check_class(&[
        ("write", "WITH", "WITH d AS (DELETE FROM t RETURNING 1) SELECT 1"),
        ("write", "WITH", "WITH d AS MATERIALIZED (UPDATE t SET a = 1 RETURNING 1) SELECT 1"),
        (
            "write",
            "WITH",
            "WITH d AS (WITH e AS (SELECT 1) MERGE INTO t USING e ON true WHEN MATCHED THEN DELETE) SELECT 1",
        ),
        ("write", "SELECT", "SELECT * FROM (WITH d AS (INSERT INTO t VALUES (1) RETURNING 1) SELECT * FROM d) x"),
        ("write", "WITH", "WITH RECURSIVE r AS (SELECT 1) SEARCH DEPTH FIRST BY a SET o DELETE FROM t"),
        ("write", "WITH", "WITH RECURSIVE r AS (SELECT 1) CYCLE a SET c USING p UPDATE t SET a = 1"),
        ("write", "WITH", "WITH RECURSIVE r AS (SELECT 1) SEARCH DEPTH FIRST BY a SET key DELETE FROM t"),
        ("write", "WITH", "WITH RECURSIVE r AS (SELECT 1) SEARCH DEPTH FIRST BY a SET by UPDATE t SET a = 1"),
        ("read-lock", "WITH", "WITH a AS (SELECT 1) SELECT 1 FROM t FOR NO KEY UPDATE OF t"),
        ("write", "EXPLAIN ANALYZE", "EXPLAIN ANALYZE WITH d AS (DELETE FROM t RETURNING 1) SELECT 1"),
        ("ddl", "WITH", "WITH d AS (DELETE FROM t RETURNING 1) SELECT 1 INTO x FROM d"),
    ]);
    assert!(has("WITH d AS (DELETE FROM t RETURNING 1) SELECT 1", Traits::DATA_MODIFYING_CTE));
    assert!(has("INSERT INTO x WITH d AS (DELETE FROM t RETURNING 1) SELECT * FROM d", Traits::DATA_MODIFYING_CTE));
    assert!(!has("WITH a AS (SELECT 1) DELETE FROM t USING a", Traits::DATA_MODIFYING_CTE));
}

#[test]
fn keywords_that_are_only_names_do_not_count() {
    check_class(&[
        ("read", "SELECT", "SELECT delete FROM t"),
        ("read", "SELECT", "SELECT a.update, b.insert FROM t"),
        ("read", "SELECT", "SELECT 1 AS into, 2 AS for"),
        ("read", "WITH", "WITH a AS (SELECT 1) SELECT update, delete FROM a"),
        ("read", "SELECT", "SELECT \"into\" FROM \"for update\""),
        ("read", "SELECT", "SELECT 'INTO x FOR UPDATE'"),
        // But where a label is itself called AS, what follows is a keyword again.
        ("ddl", "SELECT INTO", "SELECT 1 AS AS INTO x"),
        ("ddl", "SELECT INTO", "SELECT t.as INTO x FROM t"),
        ("ddl", "SELECT INTO", "SELECT a AND INTO x FROM t"),
        ("ddl", "SELECT INTO", "SELECT 5. INTO x"),
    ]);
}

#[test]
fn explain_runs_its_statement_if_the_last_analyze_is_on() {
    let running = [
        "EXPLAIN ANALYZE",
        "EXPLAIN ANALYSE VERBOSE",
        "EXPLAIN (ANALYZE)",
        "EXPLAIN (ANALYSE true)",
        "EXPLAIN (ANALYZE 1)",
        "EXPLAIN (\"analyze\")",
        "EXPLAIN (U&\"\\0061nalyze\")",
        "EXPLAIN (ANALYZE off, ANALYZE)",
        "EXPLAIN (ANALYZE 'yes')",
        "EXPLAIN (COSTS off, ANALYZE on)",
        "EXPLAIN (ANALYZE offf)",
        "EXPLAIN (ANALYZE -0)",
        "EXPLAIN (ANALYZE U&'off')",
    ];
    for explain in running {
        check_class(&[("write", "EXPLAIN ANALYZE", &format!("{explain} DELETE FROM t"))]);
        check_class(&[("ddl", "EXPLAIN ANALYZE", &format!("{explain} CREATE TABLE t AS SELECT 1"))]);
        check_class(&[("read", "EXPLAIN ANALYZE", &format!("{explain} SELECT 1"))]);
    }
    let plain = [
        "EXPLAIN",
        "EXPLAIN VERBOSE",
        "EXPLAIN (VERBOSE)",
        "EXPLAIN (ANALYZE off)",
        "EXPLAIN (ANALYZE FALSE)",
        "EXPLAIN (ANALYZE 0)",
        "EXPLAIN (ANALYZE 'off')",
        "EXPLAIN (ANALYZE, ANALYZE off)",
    ];
    for explain in plain {
        check_class(&[("explain", "EXPLAIN", &format!("{explain} DELETE FROM t"))]);
    }
}

#[test]
fn relations_are_found_with_what_is_done_to_them() {
    check_touched(&[
        ("+a +s.b", "SELECT * FROM A JOIN \"s\".b USING (x)"),
        ("+t", "TABLE t"),
        ("+t +u", "SELECT 1 UNION TABLE t UNION (TABLE u)"),
        ("+t +u", "SELECT (SELECT 1 FROM t) WHERE EXISTS (SELECT 1 FROM u)"),
        ("+\"a.b\" +Odd", "SELECT * FROM \"Odd\", \"a.b\""),
        ("+s.t", "SELECT * FROM db.s.t"),
        ("*t +u", "INSERT INTO t SELECT * FROM u"),
        ("*t +u", "UPDATE t SET a = 1 FROM u"),
        ("*t +u", "DELETE FROM ONLY t USING u"),
        ("*t +u", "MERGE INTO t USING u ON true WHEN MATCHED THEN DELETE"),
        ("*t +u", "WITH d AS (DELETE FROM t RETURNING 1) SELECT * FROM d, u"),
        ("*t *u", "TRUNCATE t, u"),
        ("+t #x", "SELECT * INTO x FROM t"),
        ("+t #x", "CREATE TABLE x AS TABLE t"),
        ("+t #v", "CREATE MATERIALIZED VIEW v AS SELECT * FROM t WITH NO DATA"),
        ("+p +q #t", "CREATE TABLE t (a int REFERENCES p, FOREIGN KEY (a) REFERENCES q)"),
        ("+p #t", "ALTER TABLE t ADD COLUMN a int REFERENCES p (x)"),
        ("#a #b.c", "DROP TABLE a, b.c CASCADE"),
        ("#i #t", "CREATE INDEX i ON t (a)"),
        ("#p #t", "ALTER TABLE ONLY t ATTACH PARTITION p FOR VALUES FROM ('a') TO ('b')"),
        ("#public.i #public.t", "CREATE INDEX i ON public.t (a)"),
        ("#c #p", "CREATE TABLE c PARTITION OF p FOR VALUES IN (1)"),
        // Its rows are the parent's.
        ("#a.p #c", "CREATE TABLE c () INHERITS (a.p)"),
        ("#s", "ALTER SEQUENCE s RESTART"),
        ("#s", "CREATE SEQUENCE IF NOT EXISTS s START WITH 1"),
        ("#t", "COMMENT ON COLUMN t.a IS 'x'"),
        ("#t", "COMMENT ON CONSTRAINT c ON t IS 'x'"),
        ("#t #u", "VACUUM (FULL) t (a), u"),
        ("#t", "REINDEX TABLE CONCURRENTLY t"),
        ("+t #t", "CREATE TABLE IF NOT EXISTS t (LIKE t)"),
        ("+t", "LOCK TABLE t IN SHARE MODE"),
        ("+t +u", "ANALYZE VERBOSE t (a), u"),
        ("*s.v", "REFRESH MATERIALIZED VIEW CONCURRENTLY s.v"),
        ("+t", "COPY t TO STDOUT"),
        ("*s.t", "COPY s.t (a) FROM STDIN"),
        ("+t", "COPY (SELECT * FROM t) TO STDOUT"),
        ("+t", "EXPLAIN (ANALYZE) SELECT * FROM t"),
        ("+t", "PREPARE p AS SELECT * FROM t"),
        ("+t", "DECLARE c CURSOR FOR SELECT * FROM t"),
        ("", "SET a = 'b'"),
        ("", "DROP FUNCTION f(int)"),
    ]);
}

#[test]
fn a_relation_is_reported_where_it_comes_from_and_where_it_appears() {
    check_touched(&[
        ("#audit.w #public.w", "ALTER TABLE public.w SET SCHEMA audit"),
        ("#audit.w #w", "ALTER TABLE IF EXISTS ONLY w * SET SCHEMA Audit"),
        ("#\"a.b\".\"c.d\" #public.\"c.d\"", "ALTER TABLE db.public.\"c.d\" SET SCHEMA \"a.b\""),
        ("#audit.v #public.v", "ALTER VIEW public.v SET SCHEMA audit"),
        ("#audit.m #public.m", "ALTER MATERIALIZED VIEW IF EXISTS public.m SET SCHEMA audit"),
        ("#audit.s #public.s", "ALTER SEQUENCE public.s SET SCHEMA audit"),
        ("#audit.f #public.f", "ALTER FOREIGN TABLE public.f SET SCHEMA audit"),
        ("#audit.t #audit.x", "ALTER TABLE audit.t RENAME TO x"),
        ("#t #x", "ALTER TABLE t RENAME TO X"),
        ("#audit.v #audit.x", "ALTER VIEW audit.v RENAME TO x"),
        ("#audit.m #audit.x", "ALTER MATERIALIZED VIEW audit.m RENAME TO x"),
        ("#audit.s #audit.x", "ALTER SEQUENCE audit.s RENAME TO x"),
        ("#audit.f #audit.x", "ALTER FOREIGN TABLE audit.f RENAME TO x"),
        ("#audit.i #audit.x", "ALTER INDEX audit.i RENAME TO x"),
        ("#audit.i #audit.j", "ALTER INDEX audit.i ATTACH PARTITION audit.j"),
        ("#t", "ALTER TABLE t RENAME COLUMN a TO x"),
        ("#t", "ALTER VIEW t RENAME a TO x"),
        ("#t", "ALTER TABLE t RENAME CONSTRAINT a TO x"),
        ("#audit.x +t", "SELECT * INTO audit.x FROM t"),
        ("#audit.x +t", "CREATE TABLE audit.x AS SELECT * FROM t"),
        ("#audit.x +t", "CREATE VIEW audit.x AS SELECT * FROM t"),
        ("#audit.s", "CREATE SEQUENCE audit.s"),
        ("", "ALTER SCHEMA s OWNER TO r"),
        ("", "CREATE EXTENSION vector"),
    ]);
    for sql in [
        "ALTER SCHEMA s RENAME TO audit",
        "ALTER EXTENSION e SET SCHEMA audit",
        "CREATE EXTENSION e SCHEMA audit",
        "CREATE EXTENSION e WITH VERSION '1' SCHEMA audit CASCADE",
        "CREATE FOREIGN TABLE audit.f (a int) SERVER s",
        "IMPORT FOREIGN SCHEMA s FROM SERVER v INTO audit",
        "CREATE SCHEMA audit CREATE VIEW v AS SELECT 1",
        "ALTER TABLE t SET SCHEMA U&\"\\0061udit\"",
    ] {
        assert!(has(sql, Traits::RELATIONS_UNKNOWN), "{sql}");
    }
}

#[test]
fn statements_that_may_name_more_than_is_seen_have_unknown_relations() {
    for sql in [
        "ALTER TABLE ALL IN TABLESPACE a SET TABLESPACE b",
        "ALTER TABLE t INHERIT p",
        "ALTER TABLE t ALTER COLUMN a SET DEFAULT f() NO SUCH GRAMMAR",
        "CREATE RULE r AS ON INSERT TO t DO ALSO DELETE FROM u",
        "CREATE TRIGGER g AFTER INSERT ON t WHEN (f()) EXECUTE FUNCTION g('x')",
        "GRANT SELECT ON ALL TABLES IN SCHEMA s TO r",
        "COPY t FROM STDIN WHERE f()",
        "CREATE SCHEMA s CREATE TABLE t (a int)",
        "REINDEX SCHEMA s",
        "REASSIGN OWNED BY a TO b",
        "EXECUTE p",
        "SELECT 1 FROM t WHERE",
        "DROP SCHEMA s CASCADE",
        "DROP TYPE y CASCADE",
        "TRUNCATE t CASCADE",
        "DROP OWNED BY r",
    ] {
        assert!(has(sql, Traits::RELATIONS_UNKNOWN), "{sql}");
    }
}

#[test]
fn names_of_with_items_hide_relations_only_where_they_are_in_scope() {
    check_touched(&[
        ("", "WITH a AS (SELECT 1) SELECT * FROM a"),
        // Within its own query the name is still that of the relation.
        ("+a", "WITH a AS (SELECT * FROM a) SELECT * FROM a"),
        ("", "WITH RECURSIVE a AS (SELECT 1 UNION SELECT * FROM a) SELECT * FROM a"),
        ("", "WITH a AS (SELECT 1), b AS (SELECT * FROM a) SELECT * FROM b"),
        ("+b", "WITH a AS (SELECT * FROM b), b AS (SELECT 1) SELECT * FROM a"),
        ("+a", "SELECT * FROM (WITH a AS (SELECT 1) SELECT * FROM a) x, a"),
        ("+public.a", "WITH a AS (SELECT 1) SELECT * FROM public.a"),
        ("*a", "WITH a AS (SELECT 1) DELETE FROM a"),
    ]);
}

#[test]
fn functions_are_found_wherever_they_are_called() {
    check_touched(&[
        ("| lower", "SELECT LOWER('x')"),
        ("| app.f g", "SELECT app.f(g(1))"),
        ("| f", "SELECT * FROM f() WITH ORDINALITY"),
        ("| f g", "SELECT * FROM f() x, LATERAL g() y"),
        ("| generate_series", "SELECT * FROM generate_series(1, 2) AS g(x)"),
        ("| unnest", "SELECT * FROM unnest(ARRAY[1])"),
        ("+t | f", "SELECT 1 FROM t ORDER BY f()"),
        ("| f", "VALUES (f())"),
        ("| p", "CALL p(1)"),
        ("| F", "SELECT \"F\"()"),
        ("*t | f", "INSERT INTO t VALUES (1) RETURNING f()"),
    ]);
}

#[test]
fn traits_are_set() {
    assert!(has("DO 'x'", Traits::DYNAMIC_SQL) && has("DO 'x'", Traits::OPAQUE_BODY));
    assert!(has("SELECT query_to_xml('x', true, true, '')", Traits::DYNAMIC_SQL));
    assert!(has("SELECT nextval('s')", Traits::VOLATILE_FUNCTION));
    assert!(!has("SELECT lower('s')", Traits::VOLATILE_FUNCTION));
    assert!(has("COPY t TO '/x'", Traits::SERVER_FILE));
    assert!(has("SELECT pg_read_file('x')", Traits::SERVER_FILE));
    assert!(has("SELECT lo_export(1, 'x')", Traits::SERVER_FILE));
    assert!(has("LOAD 'x'", Traits::SERVER_FILE));
    assert!(has("CREATE SUBSCRIPTION s CONNECTION 'x' PUBLICATION p", Traits::NETWORK));
    assert!(has("SELECT * FROM dblink('x', 'y') AS t(a int)", Traits::NETWORK));
    assert!(has("SET a = 1", Traits::SESSION_SETTING));
    assert!(has("SELECT set_config('a', 'b', true)", Traits::SESSION_SETTING));
    assert!(has("CREATE FUNCTION f() RETURNS int AS 'x' LANGUAGE sql", Traits::OPAQUE_BODY));
    assert!(has("DELETE FROM t", Traits::NO_WHERE));
    assert!(has("UPDATE t SET a = (SELECT 1 WHERE true)", Traits::NO_WHERE));
    assert!(has("WITH d AS (DELETE FROM t RETURNING 1) SELECT 1", Traits::NO_WHERE));
    assert!(!has("DELETE FROM t WHERE a = 1", Traits::NO_WHERE));
    assert!(has("SELECT * FROM t", Traits::UNQUALIFIED_RELATION));
    assert!(has("SELECT * FROM s.u, \"a.b\"", Traits::UNQUALIFIED_RELATION));
    assert!(!has("SELECT * FROM s.t", Traits::UNQUALIFIED_RELATION));
    assert!(has("SELECT f()", Traits::UNKNOWN_FUNCTION));
    assert!(has("SELECT app.lower('x')", Traits::UNKNOWN_FUNCTION));
    assert!(!has("SELECT coalesce(1, 2), pg_catalog.lower('x')", Traits::UNKNOWN_FUNCTION));
    assert!(has("DO 'x'", Traits::RELATIONS_UNKNOWN));
    assert!(has("SELECT * FROM U&\"t\"", Traits::RELATIONS_UNKNOWN));
    assert!(!has("SHOW a", Traits::RELATIONS_UNKNOWN));
}

#[test]
fn statements_that_want_no_transaction_say_so() {
    let wanting = [
        "CREATE INDEX CONCURRENTLY ON t (a)",
        "DROP INDEX CONCURRENTLY i",
        "REINDEX (CONCURRENTLY) TABLE t",
        "REINDEX TABLE CONCURRENTLY t",
        "REINDEX DATABASE d",
        "VACUUM t",
        "CLUSTER",
        "CREATE DATABASE d",
        "DROP DATABASE d",
        "ALTER DATABASE d SET TABLESPACE s",
        "CREATE TABLESPACE s LOCATION '/x'",
        "ALTER SYSTEM SET a = 1",
        "ALTER TYPE t ADD VALUE 'x'",
        "DISCARD ALL",
        "COMMIT PREPARED 'x'",
        "CREATE SUBSCRIPTION s CONNECTION 'x' PUBLICATION p",
        "ALTER TABLE t DETACH PARTITION p CONCURRENTLY",
    ];
    for sql in wanting {
        assert!(one(sql).wants_autocommit, "{sql}");
    }
    for sql in [
        "CREATE INDEX ON t (a)",
        "CREATE INDEX i ON concurrently (a)",
        "CLUSTER t",
        "DISCARD TEMP",
        "ALTER TYPE t RENAME VALUE 'a' TO 'b'",
        "ANALYZE",
    ] {
        assert!(!one(sql).wants_autocommit, "{sql}");
    }
}

#[test]
fn a_safe_verdict_needs_every_name_to_be_known_and_visible() {
    for sql in [
        "SELECT lower(a), count(*), now(), coalesce(a, b), CURRENT_USER FROM t",
        "SELECT pg_catalog.upper('x')",
        "SELECT a::numeric(10, 2), cast(b AS varchar(3)) FROM t",
        "WITH n(i) AS (SELECT 1) SELECT * FROM n, (VALUES (1)) v(x)",
        "SELECT sum(a) FILTER (WHERE b) OVER (PARTITION BY c) FROM t WINDOW w AS (ORDER BY d)",
        "SELECT 1 OPERATOR(pg_catalog.+) 2",
        "SELECT '\u{200b}\u{202e}'",
        "SELECT 1 -- naïve \u{2764}\u{fe0f}",
        "COPY (SELECT 1) TO STDOUT",
        "COPY s.t (a, b) TO STDOUT WITH (FORMAT csv, FORCE_QUOTE (a))",
        "EXPLAIN INSERT INTO t (a) VALUES (1)",
        "SHOW ALL",
    ] {
        assert!(is_safe(sql), "{sql}");
    }
    for sql in [
        "SELECT f()",
        "SELECT public.lower('x')",
        "SELECT \"coalesce\"(1)",
        "SELECT U&\"pg_sl\\0065ep\"(1)",
        "SELECT lower\u{200b}('x')",
        "SELECT \"a\u{202e}b\" FROM t",
        "SELECT 1 -- \u{202e} reversed",
        "SELECT 1 OPERATOR(public.+) 2",
        "SELECT * FROM f",
        "SELECT 1 FROM t FOR UPDATE",
        "SELECT 1 INTO x",
        "COPY (SELECT f()) TO STDOUT",
        "COPY t TO '/x'",
        "EXPLAIN SELECT f()",
        "EXPLAIN ANALYZE DELETE FROM t",
        "SELECT TOP 5 * FROM t",
        "SELECT 1 FROM t WHERE",
        "BEGIN",
        "SET a = 1",
        "PREPARE p AS SELECT 1",
    ] {
        assert_eq!(is_safe(sql), sql == "SELECT * FROM f", "{sql}");
    }
}

#[test]
fn fingerprints_are_of_the_shape_alone() {
    let of = |sql: &str| one(sql).facts.fingerprint;
    assert_eq!(of("SELECT a FROM t WHERE b = 1"), of("select  \"a\" from T /* x */ where b = 'two'"));
    assert_eq!(of("SELECT $1, E'a', $$b$$, 0x1F"), of("SELECT 1, 2, 3, 4"));
    assert_ne!(of("SELECT a"), of("SELECT b"));
    assert_ne!(of("SELECT \"A\""), of("SELECT a"));
    assert_ne!(of("SELECT 1, 2"), of("SELECT 1"));
    assert_ne!(of("SELECT ab c"), of("SELECT a bc"));
    assert_eq!(of("SELECT 1").to_string(), "57955f1a2bad3868", "stored fingerprints stay comparable");
}

#[test]
fn statements_know_their_place_and_their_data() {
    let text = "-- first\nSELECT 1;\n\nCOPY t FROM stdin;\n1\n2\n\\.\nSELECT 2 ; ";
    let script = read(text).unwrap();
    let places: Vec<_> = script.statements.iter().map(|s| (s.line, &text[s.text.clone()])).collect();
    assert_eq!(places, [(2, "SELECT 1"), (4, "COPY t FROM stdin"), (8, "SELECT 2")]);
    assert_eq!(script.statements[1].copy_data.clone().map(|range| &text[range]), Some("1\n2\n"));
    assert_eq!(script.statements[0].copy_data, None);
}

#[test]
fn texts_and_statements_are_limited() {
    let long = |bytes: usize| format!("SELECT '{}'", "a".repeat(bytes - "SELECT ''".len()));
    assert!(read(&long(SQL_BYTES_MAX)).is_ok());
    assert!(matches!(read(&long(SQL_BYTES_MAX + 1)), Err(SqlError::TooLong { .. })));
    let many = "SELECT 1;".repeat(SQL_STATEMENTS_MAX + 1);
    assert!(matches!(read(&many), Err(SqlError::Statements { .. })));
    assert_eq!(read(&many[9..]).unwrap().statements.len(), SQL_STATEMENTS_MAX);
    let tokens = crate::model::limits::SQL_TOKENS_PER_STATEMENT_MAX;
    let values = |count: usize| format!("SELECT 1{}", ",1".repeat((count - 2) / 2));
    assert!(read(&values(tokens)).is_ok());
    assert!(matches!(read(&values(tokens + 2)), Err(SqlError::Tokens { .. })));
}

#[test]
fn errors_become_failures_without_any_of_the_text() {
    let failure: crate::model::Failure = read("SELECT 'hunter2").unwrap_err().into();
    assert_eq!(failure.code, crate::model::Code::SyntaxError);
    assert_eq!(failure.message, "the string that starts at line 1 has no end");
    assert!(!format!("{failure:?}").contains("hunter2"));
}

#[test]
fn insert_as_a_label_hides_no_new_relation() {
    check_class(&[
        ("ddl", "WITH", "WITH w AS (SELECT 1) SELECT a insert INTO n FROM w"),
        ("ddl", "WITH", "WITH w AS (SELECT 1) SELECT (1) insert INTO n FROM w"),
        ("ddl", "WITH", "WITH w AS (SELECT 1) SELECT materialized (1) merge INTO n FROM w"),
        ("write", "WITH", "WITH w AS NOT MATERIALIZED (SELECT 1), v AS (SELECT 2) INSERT INTO n SELECT 1"),
        ("write", "WITH", "WITH w AS (INSERT INTO n SELECT 1 RETURNING a) SELECT * FROM w"),
    ]);
}

#[test]
fn what_keywords_and_tree_read_differently_has_no_known_relations() {
    // `AND` is a label here, and `n` a new table.
    for sql in [
        "SELECT d AND INTO n",
        "SELECT d AND INTO n FROM t",
        "EXPLAIN SELECT d OR INTO n",
        "CREATE VIEW v AS SELECT d LIKE INTO n",
        "CREATE TABLE u AS SELECT d AND INTO n FROM t",
        "CREATE MATERIALIZED VIEW v AS SELECT d OR INTO n FROM t",
        "DECLARE c CURSOR FOR SELECT d LIKE INTO n",
        "PREPARE p AS SELECT d LIKE INTO n",
        "COPY (SELECT d LIKE INTO n) TO STDOUT",
    ] {
        assert!(has(sql, Traits::RELATIONS_UNKNOWN), "{sql}");
    }
    for sql in ["CREATE VIEW v AS SELECT a FROM t", "CREATE TABLE u AS SELECT a AS into FROM t"] {
        assert!(!has(sql, Traits::RELATIONS_UNKNOWN), "{sql}");
    }
}

#[test]
fn reads_in_rarer_forms_are_understood() {
    for sql in [
        "SELECT format('%s', variadic array[1, 2])",
        "SELECT sum(a) OVER (ORDER BY b ROWS BETWEEN 2 PRECEDING AND CURRENT ROW EXCLUDE TIES) FROM t",
        "SELECT sum(a) OVER (RANGE UNBOUNDED PRECEDING EXCLUDE NO OTHERS) FROM t",
        "SELECT interval '1' second(2), interval '1 2:03' day to second (3)",
        "SELECT xmlelement(name a, b), xmlpi(name \"x-y\"), c IS NOT DOCUMENT",
        "WITH RECURSIVE w (a) AS (SELECT 1 UNION ALL SELECT a + 1 FROM w) CYCLE a SET c TO 'y' DEFAULT 'n' USING p SELECT * FROM w",
        "WITH RECURSIVE w (a) AS (SELECT 1 UNION ALL SELECT a + 1 FROM w) SEARCH DEPTH FIRST BY a SET s CYCLE a SET c USING p SELECT * FROM w",
    ] {
        assert!(is_safe(sql), "{sql}");
    }
    for sql in ["SELECT second(2)", "SELECT 'x' second(2)", "SELECT f(variadic a)", "SELECT xmlelement(name a, f(b))"] {
        assert!(!is_safe(sql), "{sql}");
    }
}

#[test]
fn a_call_in_the_dress_of_a_type_is_no_read() {
    // Postgres makes it `pg_catalog.pg_sleep(1)`.
    for sql in [
        "SELECT TREAT(1 AS pg_sleep)",
        "SELECT treat ('/etc/passwd' as pg_read_file)",
        "SELECT a FROM t WHERE treat(a AS int)",
    ] {
        assert!(!is_safe(sql), "{sql}");
        assert!(has(sql, Traits::RELATIONS_UNKNOWN), "{sql}: what is called is not known");
    }
}

#[test]
fn functions_that_the_parser_knows_by_name_are_reported() {
    check_touched(&[
        ("| substr", "SELECT substr('abc', 2)"),
        ("| substring", "SELECT substring('abc', 2)"),
        ("| substring", "SELECT substring(a)"),
        ("| ceil floor", "SELECT ceil(1.5), floor(1.5)"),
        ("*t | substr", "INSERT INTO t SELECT substr('abc', 1)"),
    ]);
}

#[test]
fn relations_in_rarer_places_are_reported_or_unknown() {
    check_touched(&[("#i #t", "CLUSTER i ON t"), ("#t", "CLUSTER t USING i")]);
    for sql in
        ["CREATE TABLE p (a int, LIKE d, CHECK (true))", "ALTER TABLE w ATTACH PARTITION c FOR VALUES IN ((TABLE t))"]
    {
        let found = one(sql).facts;
        let named = |name: &str| found.relations.iter().any(|r| r.name == name);
        assert!(found.traits.contains(Traits::RELATIONS_UNKNOWN) || named("d") || named("t"), "{sql}: {found:?}");
    }
}
