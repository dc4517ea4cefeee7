//! Masks: what is replaced is nowhere in the copy, and what cannot be masked is refused before anything is made.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::{Setup, reader_url, rows, source};
use crate::harness;
use crate::program::{Cli, Home, Transport};

const PEOPLE: &str = "
    CREATE TABLE people (id int PRIMARY KEY, mail varchar(40) NOT NULL UNIQUE, name text, phone text, born date, salary int,
        code uuid DEFAULT gen_random_uuid(), doc jsonb, shout text GENERATED ALWAYS AS (upper(name)) STORED);
    INSERT INTO people (id, mail, name, phone, born, salary, doc) SELECT n, 'Secret' || n || '@example.com', 'Ana Secretova',
        '+49 170 ' || 1000 + n, '1980-05-06', 50000 + n, '{\"x\": \"secret\"}' FROM generate_series(1, 200) n;
    INSERT INTO people (id, mail) VALUES (0, 'Secret0@example.com');
    CREATE TABLE orders (id int PRIMARY KEY, mail varchar(40) REFERENCES people (mail));
    INSERT INTO orders SELECT n, 'Secret' || n || '@example.com' FROM generate_series(1, 50) n;
    CREATE INDEX ON people (lower(name));
    CREATE MATERIALIZED VIEW names AS SELECT DISTINCT name, mail FROM public.people;
    CREATE TABLE history (old text);
    CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.history VALUES (OLD.mail); RETURN NEW; END $$;
    CREATE TRIGGER keep BEFORE UPDATE ON people FOR EACH ROW EXECUTE FUNCTION keep();
    ALTER TABLE people ENABLE ROW LEVEL SECURITY; ALTER TABLE people FORCE ROW LEVEL SECURITY;
    CREATE POLICY everybody ON people USING (true);
    ALTER ROLE reader BYPASSRLS;
";

#[test]
fn what_is_masked_is_in_no_file_of_a_managed_server() {
    let cluster = harness::cluster();
    source(
        cluster,
        "walled_source",
        "",
        "CREATE TABLE t (id int PRIMARY KEY, mail text, note text); \
         INSERT INTO t SELECT n, 'Unmasked' || 'word' || n, repeat('Unmasked' || 'note', 20) FROM generate_series(1, 20000) n",
    );
    let home = Home::fresh();
    let config = json!({
        "profiles": [{"name": "local", "managedLocal": true}],
        "sources": [{"name": "walled", "url": reader_url(cluster, "walled_source")}],
    });
    let path = home.path().join("config.json");
    fs::write(&path, config.to_string()).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let path = path.to_str().unwrap().to_owned();
    let home = home.with("PGSANDBOX_CONFIG", &path);
    let mask = |column: &str, with: &str| json!({"table": "t", "column": column, "with": with});
    let wish = json!({"source": "walled", "mask": [mask("mail", "hash"), mask("note", "null")]});
    let reply = Cli::new(&home).call("clone_database", &wish);
    assert_eq!(reply["ok"], true, "{reply:#}");
    let holding: Vec<_> = files_below(home.path())
        .into_iter()
        .filter(|file| {
            let bytes = fs::read(file).unwrap_or_default();
            [&b"Unmaskedword"[..], b"Unmaskednote"].iter().any(|word| bytes.windows(word.len()).any(|w| w == *word))
        })
        .collect();
    assert!(holding.is_empty(), "{holding:?}");
}

fn files_below(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => files.extend(files_below(&entry.path())),
            Ok(kind) if kind.is_file() => files.push(entry.path()),
            Ok(_) | Err(_) => {}
        }
    }
    files
}

#[test]
fn what_is_masked_is_nowhere_in_the_copy() {
    let cluster = harness::cluster();
    source(cluster, "people_source", "", PEOPLE);
    let setup = Setup::on(cluster, "clonemask", &[("people", reader_url(cluster, "people_source"), json!({}))]);
    let mask = |table: &str, column: &str, with: &str| json!({"table": table, "column": column, "with": with});
    let result = setup.cloned(json!({"source": "people", "mask": [
        mask("people", "mail", "fake"), mask("public.orders", "mail", "fake"), mask("people", "name", "hash"),
        mask("people", "phone", "fake"), mask("people", "born", "fake"), mask("people", "salary", "fake"),
        mask("people", "code", "hash"), {"table": "people", "column": "doc", "with": "constant", "value": "{\"gone\": 1}"},
    ]}));
    let name = &result["databaseName"];
    let rows = |sql: &str| setup.rows(name, sql);
    let everything =
        ["people", "orders", "names", "history"].map(|table| rows(&format!("SELECT t::text FROM {table} t")));
    for row in everything.iter().flatten() {
        assert!(!row[0].to_lowercase().contains("secret"), "{row:?}");
    }
    assert_eq!(everything.map(|rows| rows.len()), [201, 50, 201, 0]);
    // The same value is the same fake, wherever it stands: the foreign key holds.
    assert_eq!(rows("SELECT count(*)::text FROM orders JOIN people USING (mail)"), [["50"]]);
    let shaped = "SELECT count(*)::text FROM people WHERE mail ~ '^[A-Z][a-z]{5}[0-9]+@[a-z]{7}\\.[a-z]{3}$'";
    assert_eq!(rows(shaped), [["201"]]);
    assert_eq!(rows("SELECT count(*)::text FROM people WHERE phone ~ '^\\+[0-9]{2} [0-9]{3} [0-9]{4}$'"), [["200"]]);
    assert_eq!(
        rows(
            "SELECT count(*)::text FROM people WHERE salary BETWEEN 10000 AND 99999 AND extract(year FROM born) = 1980"
        ),
        [["200"]]
    );
    assert_eq!(
        rows("SELECT count(*)::text FROM people WHERE id = 0 AND name IS NULL AND phone IS NULL AND born IS NULL"),
        [["1"]]
    );
    assert_eq!(
        rows(
            "SELECT count(*)::text FROM people WHERE doc = '{\"gone\": 1}' AND shout IS NOT DISTINCT FROM upper(name)"
        ),
        [["201"]]
    );
    // Neither the statistics nor what is left of old rows holds a value.
    assert_eq!(
        rows("SELECT count(*)::text FROM pg_stats s WHERE schemaname = 'public' AND s::text ILIKE '%secret%'"),
        [["0"]]
    );
    assert_eq!(
        rows("SELECT (count(*) > 0)::text FROM pg_stats WHERE tablename = 'people' AND attname = 'mail'"),
        [["true"]]
    );
    assert_eq!(rows("SELECT (pg_relation_size('people') < 90000)::text"), [["true"]]);
    // The keys are gone.
    assert_eq!(rows("SELECT count(*)::text FROM pg_class WHERE relname = 'pgsandbox_mask'"), [["0"]]);
}

#[test]
fn masks_that_do_not_fit_are_refused_before_anything_is_made() {
    let cluster = harness::cluster();
    source(cluster, "people_fit", "", PEOPLE);
    let setup = Setup::on(cluster, "clonefit", &[("people", reader_url(cluster, "people_fit"), json!({}))]);
    let refused = |mask, code, says| _ = setup.refused(json!({"source": "people", "mask": [mask]}), code, says);
    let of = |column: &str, with: &str| json!({"table": "people", "column": column, "with": with});
    refused(of("nope", "null"), "invalid_arguments", "no column `nope` in a table `public.people`");
    refused(json!({"table": "People", "column": "mail", "with": "null"}), "invalid_arguments", "no column `mail`");
    refused(of("mail", "null"), "invalid_arguments", "is NOT NULL");
    refused(of("doc", "fake"), "invalid_arguments", "is of type `jsonb`, which `fake` does not fit");
    refused(of("born", "hash"), "invalid_arguments", "which `hash` does not fit");
    refused(of("shout", "hash"), "invalid_arguments", "is generated by the server");
    refused(of("mail", "constant"), "invalid_arguments", "needs a `value`");
    refused(of("mail", "blur"), "invalid_arguments", "");
    refused(json!({"table": "a.b.c", "column": "x", "with": "null"}), "invalid_arguments", "which is no table's name");
    let twice = json!({"source": "people", "mask": [of("mail", "hash"), of("mail", "fake")]});
    setup.refused(twice, "invalid_arguments", "is masked twice");
    let constant = |value: &str| json!({"table": "people", "column": "born", "with": "constant", "value": value});
    let error = setup.refused(
        json!({"source": "people", "mask": [constant("hunter2")]}),
        "restore_incompatible",
        "could not be masked",
    );
    assert!(!error.to_string().contains("hunter2"), "{error:#}");
    let same = json!({"table": "people", "column": "mail", "with": "constant", "value": "x"});
    setup.refused(
        json!({"source": "people", "mask": [same]}),
        "restore_incompatible",
        "masked values break a constraint",
    );
    setup.refused(
        json!({"source": "people", "schemaOnly": true, "mask": [of("mail", "hash")]}),
        "invalid_arguments",
        "`schemaOnly`",
    );
}

#[test]
fn what_is_masked_of_a_table_is_masked_in_its_partitions_and_in_what_inherits() {
    let cluster = harness::cluster();
    let script = "CREATE TABLE ev (id int, secret text) PARTITION BY RANGE (id); \
        CREATE TABLE ev1 PARTITION OF ev FOR VALUES FROM (0) TO (100); \
        CREATE TABLE parent (secret text); CREATE TABLE child (more int) INHERITS (parent); \
        INSERT INTO ev SELECT n, 'planted' FROM generate_series(1, 9) n; INSERT INTO child VALUES ('planted', 1)";
    source(cluster, "mask_parts", "", script);
    let setup = Setup::on(cluster, "clonemaskp", &[("parts", reader_url(cluster, "mask_parts"), json!({}))]);
    let mask = |table: &str| json!({"table": table, "column": "secret", "with": "hash"});
    let result = setup.cloned(json!({"source": "parts", "mask": [mask("ev"), mask("parent")]}));
    let name = &result["databaseName"];
    let sql = "SELECT secret FROM ev UNION ALL SELECT secret FROM parent";
    let found = setup.rows(name, sql);
    assert_eq!(found.len(), 10);
    assert!(found.iter().all(|row| !row[0].contains("planted")), "{found:?}");
    // Nor is it left in a table's file.
    setup.rows(name, "CHECKPOINT");
    for table in ["ev1", "child"] {
        let path = &setup.rows(name, &format!("SELECT pg_relation_filepath('{table}')"))[0][0];
        let file = std::fs::read(cluster.data.join(path)).unwrap();
        assert!(!file.windows(7).any(|bytes| bytes == b"planted"), "{table}");
    }
}

/// What kind of letter one is: what a fake keeps of it.
fn kind(letter: char) -> char {
    match letter {
        '0'..='9' => '0',
        'A'..='Z' => 'A',
        'a'..='z' => 'a',
        other if other.is_ascii() => other,
        _ => 'a',
    }
}

#[test]
fn a_fake_has_its_values_shape_letter_for_letter() {
    let cluster = harness::cluster();
    let script = r#"CREATE TABLE t (id int PRIMARY KEY, v text, n numeric, w text);
        INSERT INTO t SELECT c, chr(c), c * 1234567.25, 'x' || chr(c) || 'X' FROM generate_series(1, 767) c;
        INSERT INTO t SELECT 1000 + n, left(repeat('The quick Brown fox, No. 1234567890 of 80-99_é漢 ~/{}[]@`^', 40), n),
            -n, repeat('aA0', n) FROM generate_series(0, 300) n;
        INSERT INTO t VALUES (2000, repeat('zZ9', 100000), 0, ''), (2001, NULL, NULL, NULL), (2002, '', 'NaN', 'é')"#;
    source(cluster, "mask_shape", "", script);
    let setup = Setup::on(cluster, "cloneshape", &[("shape", reader_url(cluster, "mask_shape"), json!({}))]);
    let mask = |column: &str| json!({"table": "t", "column": column, "with": "fake"});
    let result = setup.cloned(json!({"source": "shape", "mask": [mask("v"), mask("n"), mask("w")]}));
    let sql = "SELECT v, n::text, w FROM t ORDER BY id";
    let (before, after) = (rows(cluster, "mask_shape", sql), setup.rows(&result["databaseName"], sql));
    assert_eq!(before.len(), after.len());
    let mut seen = std::collections::BTreeMap::new();
    for (before, after) in before.iter().flatten().zip(after.iter().flatten()) {
        if before == "NULL" || before == "NaN" {
            assert_eq!(before, after);
            continue;
        }
        let shape = |text: &str| text.chars().map(kind).collect::<String>();
        // Leading zeros of a number are not written.
        if before.parse::<f64>().is_err() {
            assert_eq!(shape(before), shape(after), "{before:?} {after:?}");
        }
        after.chars().for_each(|letter| *seen.entry(letter).or_insert(0_u32) += 1);
    }
    for letter in ('a'..='z').chain('A'..='Z').chain('0'..='9') {
        assert!(seen.get(&letter).is_some_and(|times| *times > 1000), "{letter}: {seen:?}");
    }
    // The long text is of letters as often as chance has it: none stands for all of its kind, and nothing repeats.
    let long = &after[after.len() - 3][0];
    assert_eq!(long.len(), 300_000);
    let pieces: std::collections::BTreeSet<&[u8]> = long.as_bytes().chunks(60).collect();
    assert_eq!(pieces.len(), 5000);
}
