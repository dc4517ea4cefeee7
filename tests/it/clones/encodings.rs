//! Clones of sources in other encodings, whose objects have names of any letters: all of it comes over as text of UTF-8, or
//! the clone is refused and nothing is left.

use serde_json::json;

use super::{Setup, reader_url, rows, source};
use crate::engine::odd::{ODD, contents};
use crate::harness::{self, Cluster, block_on};

/// Names that a program or a statement of ours could stumble over, as arguments, in lists of a dump and in SQL.
const NAMED: &str = r#"
    RESET search_path; GRANT SELECT ON LARGE OBJECT 4242, 4243 TO reader;
    CREATE TABLE public."é" ("ü;
-- \" text, "'" int); INSERT INTO public."é" VALUES (E'\\é\n"', 1);
    CREATE TABLE public."aé\
; DROP ""x"" -- '%$" ("ß""\" text PRIMARY KEY DEFAULT E'\\''ß'); INSERT INTO public."aé\
; DROP ""x"" -- '%$" VALUES (DEFAULT), ('é''"');
    CREATE TABLE public."left out é""\
." (v text); INSERT INTO public."left out é""\
." VALUES ('é');
    CREATE FUNCTION public."Fünc\
""é"("größe\" text DEFAULT E'é\\''', OUT "é'" text) LANGUAGE sql AS $$ SELECT 'é\' || "größe\" $$;
    CREATE VIEW public."vü\
" AS SELECT "ß""\" AS "é
\" FROM public."aé\
; DROP ""x"" -- '%$";
    COMMENT ON FUNCTION public."Fünc\
""é" IS E'é\\\n''"';
    CREATE TYPE public."tÿp
\" AS ENUM ('é\', E'ß\n''');
"#;

/// What else is compared than rows: the names of everything, what functions say, and comments.
const NAMES: &str = r#"
    SELECT n.nspname || '/' || c.relname || '/' || a.attname || '/' || coalesce(pg_get_expr(d.adbin, d.adrelid), '') FROM pg_attribute a
        JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
        LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema' AND a.attnum > 0
    UNION ALL SELECT n.nspname || '/' || p.proname || '/' || pg_get_function_arguments(p.oid) || '/' || p.prosrc || '/' || coalesce(obj_description(p.oid, 'pg_proc'), '')
        FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
    UNION ALL SELECT t.typname || '/' || e.enumlabel FROM pg_enum e JOIN pg_type t ON t.oid = e.enumtypid
    UNION ALL SELECT pg_get_viewdef(c.oid) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relkind = 'v' AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
    UNION ALL SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid > 16384
    UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname !~ '^pg_'
    ORDER BY 1"#;

/// Returns everything that is compared, in one order whatever the database's is.
fn known(cluster: &Cluster, database: &str) -> (Vec<Vec<String>>, Vec<String>) {
    let mut names = rows(cluster, database, NAMES);
    names.sort();
    let mut held = block_on(async { contents(&cluster.superuser(database).await).await });
    held.sort();
    (names, held)
}

fn check(encoding: &str, database: &str, prefix: &'static str) {
    let cluster = harness::cluster();
    // With row security a reader that is no superuser gets nothing.
    let secured =
        "ALTER TABLE \"ro\"\"ws\" ENABLE ROW LEVEL SECURITY; ALTER TABLE \"ro\"\"ws\" FORCE ROW LEVEL SECURITY;";
    // Letters are bytes where there is no encoding, so what counts them is rightly another number in the copy.
    let counted = "\"twi'ce\" int GENERATED ALWAYS AS (length(\"é\\n%s\") * 2) STORED, ";
    assert!(ODD.contains(secured) && ODD.contains(counted));
    let script = format!("{}{NAMED}", ODD.replace(secured, "").replace(counted, ""));
    source(cluster, database, &format!("ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'"), &script);
    let expected = known(cluster, database);
    let setup = Setup::on(cluster, prefix, &[("odd", reader_url(cluster, database), json!({}))]);
    let made = setup.cloned(json!({"source": "odd", "ttlMinutes": 10}));
    let found = known(cluster, made["databaseName"].as_str().unwrap());
    let differ =
        |a: &Vec<String>, b: &Vec<String>| a.iter().filter(|line| !b.contains(line)).cloned().collect::<Vec<_>>();
    assert_eq!(differ(&expected.1, &found.1), Vec::<String>::new(), "{encoding}: {:#?}", differ(&found.1, &expected.1));
    assert_eq!(found.0, expected.0, "{encoding}");
    assert_eq!(made["verification"]["invalidObjects"], json!([]), "{made:#}");
    let left_out = "public.\"left out é\"\"\\\n.\"";
    let some = setup.cloned(json!({"source": "odd", "ttlMinutes": 10, "excludeTableData": [left_out]}));
    let database = &some["databaseName"];
    assert_eq!(setup.rows(database, &format!("SELECT count(*) FROM {left_out}")), [["0"]], "{encoding}");
    assert_eq!(setup.rows(database, "SELECT \"ü;\n-- \\\" FROM public.\"é\""), [["\\é\n\""]], "{encoding}");
    let schema = setup.cloned(json!({"source": "odd", "ttlMinutes": 10, "schemaOnly": true}));
    assert_eq!(rows(cluster, schema["databaseName"].as_str().unwrap(), NAMES).len(), expected.0.len());
    setup.no_file_is_left();
}

#[test]
fn a_source_in_latin_1_comes_over_with_every_name() {
    check("LATIN1", "names_latin", "clonelatin");
}

#[test]
fn a_source_without_an_encoding_that_holds_text_of_utf_8_comes_over_with_every_name() {
    check("SQL_ASCII", "names_ascii", "cloneascii");
}

#[test]
fn a_name_that_is_no_text_is_refused_and_nothing_is_left() {
    let cluster = harness::cluster();
    let sql = "DO $$ BEGIN EXECUTE format('KIND', convert_from('\\x74e9', 'SQL_ASCII')); END $$";
    let kinds = [
        ("names_bad_table", "CREATE TABLE public.%I (n int)"),
        ("names_bad_column", "CREATE TABLE public.t (%I int)"),
        ("names_bad_schema", "CREATE SCHEMA %I"),
        ("names_bad_function", "CREATE FUNCTION public.%I() RETURNS int LANGUAGE sql RETURN 1"),
    ];
    for (database, kind) in kinds {
        let options = "ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'";
        source(
            cluster,
            database,
            options,
            &format!("SET client_encoding = 'SQL_ASCII'; {}; RESET client_encoding", sql.replace("KIND", kind)),
        );
    }
    let sources: Vec<_> = kinds.map(|(name, _)| (name, reader_url(cluster, name), json!({}))).into();
    let setup = Setup::on(cluster, "clonenotext", &sources);
    for (database, _) in kinds {
        setup.refused(json!({"source": database}), "restore_incompatible", "is not valid in its encoding");
        setup.refused(
            json!({"source": database, "schemaOnly": true}),
            "restore_incompatible",
            "is not valid in its encoding",
        );
    }
}
