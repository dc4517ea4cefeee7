//! What comes over: every kind of object, from one server to another and from an older major to a newer one.

use serde_json::json;

use super::{READER_PASSWORD, Setup, files_with, reader_url, rows, source};
use crate::harness::{self, Cluster};

/// One of everything that a sandbox's owner may have, with names that are hard to quote.
const EVERYTHING: &str = r#"
    CREATE SCHEMA "odd ""schema"" \ name";
    CREATE SCHEMA ext;
    CREATE EXTENSION citext SCHEMA ext;
    COMMENT ON EXTENSION citext IS 'letters without case';
    CREATE EXTENSION pg_trgm;
    CREATE TYPE mood AS ENUM ('glad', 'sad');
    CREATE DOMAIN short AS text CHECK (length(VALUE) < 9);
    CREATE TABLE a (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, mail ext.citext, m mood, s short,
        twice int GENERATED ALWAYS AS (length(s) * 2) STORED, b_id int);
    CREATE TABLE b (id int PRIMARY KEY, a_id int REFERENCES a (id));
    ALTER TABLE a ADD FOREIGN KEY (b_id) REFERENCES b (id) DEFERRABLE;
    INSERT INTO a (mail, m, s) SELECT 'User' || n || '@example.com', 'glad', 'x' FROM generate_series(1, 1000) n;
    INSERT INTO b SELECT n, n FROM generate_series(1, 1000) n;
    UPDATE a SET b_id = id;
    CREATE UNLOGGED TABLE scratch AS SELECT 1 AS one;
    CREATE TABLE parts (at date NOT NULL, v int) PARTITION BY RANGE (at);
    CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM ('2026-01-01') TO ('2027-01-01');
    INSERT INTO parts SELECT '2026-02-03', n FROM generate_series(1, 10) n;
    CREATE TABLE "odd ""schema"" \ name"."line
break" (v text);
    INSERT INTO "odd ""schema"" \ name"."line
break" VALUES ('it''s \ here');
    CREATE INDEX ON a USING gin (s gin_trgm_ops);
    CREATE MATERIALIZED VIEW totals AS SELECT m, count(*) AS n FROM public.a GROUP BY m;
    CREATE VIEW glad AS SELECT id FROM public.a WHERE m = 'glad';
    CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;
    CREATE TRIGGER t BEFORE UPDATE ON a FOR EACH ROW EXECUTE FUNCTION f();
    CREATE FUNCTION ev() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN END $$;
    CREATE EVENT TRIGGER guard ON ddl_command_end EXECUTE FUNCTION ev();
    COMMENT ON EVENT TRIGGER guard IS 'only a superuser may';
    CREATE PUBLICATION pub FOR TABLE a;
    CREATE SUBSCRIPTION sub CONNECTION 'host=nowhere password=hunter2' PUBLICATION p WITH (connect = false, slot_name = NONE);
    SELECT lo_from_bytea(4242, 'large'::bytea);
    GRANT SELECT ON LARGE OBJECT 4242 TO reader;
"#;

/// Clones everything from `source_cluster` to `target`, and looks at what came.
fn check(source_cluster: &Cluster, target: &'static Cluster, prefix: &'static str) {
    let database = format!("{prefix}everything");
    source(source_cluster, &database, "", EVERYTHING);
    let setup = Setup::on(target, prefix, &[("everything", reader_url(source_cluster, &database), json!({}))]);
    let before = noticed(source_cluster, &database);
    let result = setup.cloned(json!({"source": "everything", "nameHint": "whole", "ttlMinutes": 10}));
    assert_eq!(noticed(source_cluster, &database), before, "the source noticed a write");
    assert_eq!(result["source"], "everything");
    assert_eq!(
        result["sourcePostgresVersion"].as_str().unwrap().split('.').next(),
        Some(&*source_cluster.major.to_string())
    );
    assert_eq!(result["installedExtensions"], json!(["citext", "pg_trgm"]));
    assert_eq!(result["leftOut"], json!(["1 event trigger", "1 subscription", "1 publication"]));
    let found = &result["verification"];
    assert_eq!(
        (&found["tables"], &found["rows"], &found["rowsCounted"]),
        (&json!(6), &json!(2012), &json!(true)),
        "{found:#}"
    );
    assert_eq!(found["unpopulatedMaterializedViews"], json!([]));
    assert_eq!(found["invalidObjects"], json!([]));
    let name = &result["databaseName"];
    assert_eq!(setup.rows(name, "SELECT m::text, n::text FROM totals"), [["glad", "1000"]]);
    let odd = "SELECT v FROM \"odd \"\"schema\"\" \\ name\".\"line\nbreak\"";
    assert_eq!(setup.rows(name, odd), [["it's \\ here"]]);
    assert_eq!(setup.rows(name, "SELECT convert_from(lo_get(4242), 'UTF8')"), [["large"]]);
    assert_eq!(
        setup.rows(name, "SELECT obj_description(oid) FROM pg_extension WHERE extname = 'citext'"),
        [["letters without case"]]
    );
    assert_eq!(
        setup.rows(
            name,
            "SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = extnamespace WHERE extname = 'citext'"
        ),
        [["ext"]]
    );
    assert_eq!(setup.rows(name, "SELECT relpersistence::text FROM pg_class WHERE relname = 'scratch'"), [["u"]]);
    let none = "SELECT (SELECT count(*) FROM pg_event_trigger) + (SELECT count(*) FROM pg_publication) \
                + (SELECT count(*) FROM pg_subscription s JOIN pg_database d ON d.oid = subdbid WHERE datname = current_database())";
    assert_eq!(setup.rows(name, none), [["0"]]);
    let role = result["roleName"].as_str().unwrap();
    let foreign = format!(
        "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relowner <> '{role}'::regrole AND relkind IN ('r','p','v','m','S')"
    );
    assert_eq!(setup.rows(name, &foreign), Vec::<Vec<String>>::new());
    setup.no_file_is_left();
    assert_eq!(files_with(&setup.home, READER_PASSWORD), "");
}

/// What a server would notice of a write: a transaction id taken, and rows changed. Nothing else writes there.
fn noticed(cluster: &Cluster, database: &str) -> Vec<Vec<String>> {
    rows(
        cluster,
        "postgres",
        &format!(
            "SELECT txid_snapshot_xmax(txid_current_snapshot())::text, tup_inserted::text, tup_updated::text, tup_deleted::text \
             FROM pg_stat_database WHERE datname = '{database}'"
        ),
    )
}

#[test]
fn everything_comes_over_from_another_server_which_notices_nothing() {
    let quiet = harness::own_cluster_with("-c autovacuum=off");
    check(&quiet, harness::cluster(), "clonewhole");
}

#[test]
fn everything_comes_over_to_a_newer_major() {
    let Some(newer) = harness::clusters().into_iter().find(|cluster| cluster.major > harness::cluster().major) else {
        return;
    };
    let quiet = harness::own_cluster_with("-c autovacuum=off");
    check(&quiet, newer, "clonenewer");
}

#[test]
fn a_source_of_more_objects_than_a_pipe_holds_names_comes_over() {
    let cluster = harness::cluster();
    let script = "DO $$ BEGIN FOR n IN 1..1200 LOOP EXECUTE format('CREATE DOMAIN %I AS int', rpad('d' || n, 63, 'x')); END LOOP; END $$;
        CREATE TABLE t (v text); INSERT INTO t SELECT repeat('x', 1000) FROM generate_series(1, 1000)";
    source(cluster, "many_objects", "", script);
    let setup = Setup::on(cluster, "clonemany", &[("many", reader_url(cluster, "many_objects"), json!({}))]);
    let result = setup.cloned(json!({"source": "many", "timeoutSeconds": 60}));
    assert_eq!(result["verification"]["rows"], 1000);
    let domains = "SELECT count(*)::text FROM pg_type WHERE typtype = 'd' AND typnamespace = 'public'::regnamespace";
    assert_eq!(setup.rows(&result["databaseName"], domains), [["1200"]]);
}

#[test]
fn a_copy_has_statistics_of_every_table_whatever_kind_it_is() {
    let cluster = harness::cluster();
    let script = "CREATE TABLE parent (v int); CREATE TABLE child () INHERITS (parent);
        CREATE TABLE parts (v int) PARTITION BY LIST (v);
        CREATE TABLE parts_1 PARTITION OF parts FOR VALUES IN (1) PARTITION BY LIST (v);
        CREATE TABLE parts_1_1 PARTITION OF parts_1 FOR VALUES IN (1);
        INSERT INTO parent VALUES (1), (2); INSERT INTO child VALUES (3); INSERT INTO parts VALUES (1);
        CREATE MATERIALIZED VIEW seen AS SELECT v FROM public.parent;
        DO $$ BEGIN FOR n IN 1..20 LOOP EXECUTE format('CREATE TABLE t%s AS SELECT 1 AS v', n); END LOOP; END $$";
    source(cluster, "statistics_of", "", script);
    let setup = Setup::on(cluster, "clonestat", &[("s", reader_url(cluster, "statistics_of"), json!({}))]);
    let result = setup.cloned(json!({"source": "s"}));
    let without = "SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'm') \
        AND NOT EXISTS (SELECT FROM pg_stats s WHERE s.schemaname = 'public' AND s.tablename = c.relname)";
    assert_eq!(setup.rows(&result["databaseName"], without), Vec::<Vec<String>>::new());
    let found = &result["verification"];
    assert_eq!((&found["tables"], &found["rows"]), (&json!(25), &json!(24)), "{found:#}");
}

#[test]
fn a_repeated_call_finds_the_copy_whatever_became_of_its_source() {
    let cluster = harness::cluster();
    source(cluster, "repeated", "", "CREATE TABLE t (v int); INSERT INTO t VALUES (1)");
    let setup = Setup::on(cluster, "clonerepeat", &[("repeated", reader_url(cluster, "repeated"), json!({}))]);
    let call = json!({"source": "repeated", "idempotencyKey": "k"});
    let first = setup.cloned(call.clone());
    harness::block_on(async {
        cluster.superuser("postgres").await.batch_execute("DROP DATABASE repeated").await.unwrap();
    });
    let again = setup.clone(call);
    assert_eq!(again["ok"], true, "{again:#}");
    assert_eq!(again["result"]["databaseId"], first["databaseId"], "{again:#}");
    assert!(again["summary"].as_str().unwrap().starts_with("found"), "{again:#}");
    assert_eq!(again["result"]["verification"], json!(null));
    let other = setup.clone(json!({"source": "repeated", "idempotencyKey": "k", "schemaOnly": true}));
    assert_eq!(other["errors"][0]["code"], "idempotency_conflict", "{other:#}");
}

#[test]
fn without_rows_only_the_schema_comes_and_rows_of_named_tables_stay_away() {
    let cluster = harness::cluster();
    let script = "CREATE TABLE kept (v int); CREATE TABLE left_out (v int); INSERT INTO kept VALUES (1); INSERT INTO left_out VALUES (1)";
    source(cluster, "some_rows", "", script);
    let setup = Setup::on(cluster, "clonerows", &[("some", reader_url(cluster, "some_rows"), json!({}))]);
    let bare = setup.cloned(json!({"source": "some", "schemaOnly": true}));
    assert_eq!(
        (&bare["schemaOnly"], &bare["verification"]["tables"], &bare["verification"]["rows"]),
        (&json!(true), &json!(2), &json!(0))
    );
    let some = setup.cloned(json!({"source": "some", "excludeTableData": ["left_out"]}));
    assert_eq!(
        some["verification"]["largestTables"],
        json!([{"table": "public.kept", "rows": 1}, {"table": "public.left_out", "rows": 0}])
    );
}

#[test]
fn text_of_other_encodings_becomes_utf_8_and_what_is_none_is_refused_by_name() {
    let cluster = harness::cluster();
    let latin = "ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'";
    source(cluster, "latin", latin, "CREATE TABLE t (v text); INSERT INTO t VALUES (chr(233))");
    let ascii = "ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'";
    source(cluster, "ascii_good", ascii, "CREATE TABLE t (v text); INSERT INTO t VALUES ('plain')");
    source(cluster, "ascii_bad", ascii, "CREATE TABLE t (v text); INSERT INTO t VALUES (E'\\xe9')");
    let url = |name| reader_url(cluster, name);
    let setup = Setup::on(
        cluster,
        "clonetext",
        &[
            ("latin", url("latin"), json!({})),
            ("good", url("ascii_good"), json!({})),
            ("bad", url("ascii_bad"), json!({})),
        ],
    );
    setup.refused(json!({"source": "bad"}), "restore_incompatible", "its encoding: table `public.t`");
    let result = setup.cloned(json!({"source": "latin"}));
    assert_eq!(setup.rows(&result["databaseName"], "SELECT v, length(v)::text FROM t"), [["é", "1"]]);
    let result = setup.cloned(json!({"source": "good"}));
    assert_eq!(setup.rows(&result["databaseName"], "SELECT v FROM t"), [["plain"]]);
}
