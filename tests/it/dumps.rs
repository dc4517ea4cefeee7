//! Templates as files, through the real program: exported, brought to another server, imported; and what is no such file.

use std::fs;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use pgsandbox::policy::sha256_hex;
use serde_json::{Value, json};

use crate::harness::{self, Cluster, block_on};
use crate::program::{Cli, Home, Stdio, Transport as _};

/// Where the dump begins in a file, and where the manifest does.
const DUMP_AT: u64 = 256 << 10;
const MANIFEST_AT: usize = 26 + 64 + 1;

/// What is exported: most of what a schema can have, with rows.
const CONTENTS: &str = "
    CREATE EXTENSION IF NOT EXISTS citext;
    CREATE SCHEMA app;
    CREATE TYPE app.mood AS ENUM ('glad', 'sad');
    CREATE TABLE app.users (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name citext NOT NULL UNIQUE,
        mood app.mood DEFAULT 'glad', kind varchar(8) CHECK (kind IN ('a', 'b')), made timestamptz DEFAULT now());
    CREATE TABLE app.notes (id serial PRIMARY KEY, owner bigint REFERENCES app.users, text text) ;
    CREATE INDEX notes_by_owner ON app.notes (owner) WHERE text <> '';
    CREATE VIEW app.glad AS SELECT id, name FROM app.users WHERE mood = 'glad';
    CREATE MATERIALIZED VIEW app.counts AS SELECT mood, count(*) n FROM app.users GROUP BY mood;
    CREATE FUNCTION app.twice(n int) RETURNS int LANGUAGE sql AS 'SELECT n * 2';
    CREATE FUNCTION app.touch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.made := now(); RETURN NEW; END $$;
    CREATE TRIGGER touched BEFORE UPDATE ON app.users FOR EACH ROW EXECUTE FUNCTION app.touch();
    CREATE TABLE app.parts (id int, at date) PARTITION BY RANGE (at);
    CREATE TABLE app.parts_1 PARTITION OF app.parts FOR VALUES FROM ('2020-01-01') TO ('2021-01-01');
    ALTER TABLE app.notes ENABLE ROW LEVEL SECURITY;
    CREATE POLICY own ON app.notes USING (owner IS NOT NULL);
    COMMENT ON TABLE app.users IS 'people';
    INSERT INTO app.users (name, kind) SELECT 'user ' || n, 'a' FROM generate_series(1, 500) n;
    INSERT INTO app.notes (owner, text) SELECT n, 'note ' || n FROM generate_series(1, 500) n;
    INSERT INTO app.parts SELECT n, '2020-05-05' FROM generate_series(1, 50) n;
    REFRESH MATERIALIZED VIEW app.counts";

struct Setup {
    home: Home,
    profiles: Vec<(&'static str, &'static Cluster)>,
}

impl Setup {
    /// A program with a profile on each of these servers.
    fn on(profiles: &[(&'static str, &'static Cluster)]) -> Self {
        Self::by(profiles, Cluster::superuser_url)
    }

    /// The same, with admins of a kind.
    fn by(profiles: &[(&'static str, &'static Cluster)], url: fn(&Cluster) -> String) -> Self {
        let home = Home::fresh();
        let described: Vec<Value> = profiles
            .iter()
            .map(|(name, cluster)| {
                json!({"name": name, "adminUrl": url(cluster), "databasePrefix": prefix(name),
                    "allowedExtensions": ["citext"]})
            })
            .collect();
        let config = json!({"defaultProfile": profiles[0].0, "profiles": described});
        let path = home.path().join("config.json");
        fs::write(&path, config.to_string()).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let path = path.to_str().unwrap().to_owned();
        let mut home = home.with("PGSANDBOX_CONFIG", &path);
        for cluster in harness::clusters() {
            let variable = format!("PGSANDBOX_POSTGRES_{}_BIN_DIR", cluster.major);
            home = home.with(&variable, cluster.bin_dir.to_str().unwrap());
        }
        Self { home, profiles: profiles.to_vec() }
    }

    fn call(&self, operation: &str, input: Value) -> Value {
        Cli::new(&self.home).call(operation, &input)
    }

    fn done(&self, operation: &str, input: Value) -> Value {
        let reply = self.call(operation, input);
        assert_eq!(reply["ok"], true, "{operation}: {reply:#}");
        reply["result"].clone()
    }

    fn refused(&self, operation: &str, input: Value, code: &str) -> Value {
        let reply = self.call(operation, input);
        assert_eq!(reply["errors"][0]["code"], code, "{operation}: {reply:#}");
        reply["errors"][0].clone()
    }

    /// Makes a sandbox with these contents on the default profile, and keeps it as a template; the sandbox is gone then.
    fn template(&self, name: &str, contents: &str) {
        let made = self.done("create_database", json!({"nameHint": "dumps"}));
        let id = made["databaseId"].clone();
        self.done("run_sql", json!({"databaseId": id, "sql": contents}));
        self.done(
            "create_template_from_sandbox",
            json!({"databaseId": id, "templateName": name, "notes": "as it was"}),
        );
        self.done("delete_database", json!({"databaseId": id, "wait": true}));
    }

    fn export(&self, name: &str) -> Value {
        self.done("export_template", json!({"templateName": name}))["exported"].clone()
    }

    /// Returns the one exported file.
    fn file(&self) -> PathBuf {
        let root = self.home.state().join("templates");
        let owner = fs::read_dir(root).unwrap().next().unwrap().unwrap().path();
        let ends = |path: &PathBuf| path.extension().is_some_and(|end| end == "template");
        fs::read_dir(owner).unwrap().map(|entry| entry.unwrap().path()).find(ends).unwrap()
    }

    /// Finds that on none of the servers anything is left but what `templates` say.
    fn nothing_left(&self, templates: &[usize]) {
        for ((name, cluster), expected) in self.profiles.iter().zip(templates) {
            let (databases, roles) = bearing(cluster, prefix(name));
            assert_eq!((databases.len(), roles.len()), (*expected, 2 * expected), "{name}: {databases:?} {roles:?}");
        }
        let copies = self.home.state().join("copies");
        let left: Vec<_> = fs::read_dir(copies).into_iter().flatten().flatten().collect();
        assert!(left.is_empty(), "{left:?}");
        let unfinished = self.file().parent().unwrap().read_dir().unwrap();
        let unfinished =
            unfinished.filter(|e| e.as_ref().unwrap().file_name().to_string_lossy().contains("unfinished"));
        assert_eq!(unfinished.count(), 0);
    }
}

/// Returns the databases and roles that bear a prefix.
fn bearing(cluster: &Cluster, prefix: &str) -> (Vec<String>, Vec<String>) {
    let pattern = format!("{prefix}\\_%");
    block_on(async {
        let admin = cluster.superuser("postgres").await;
        let names = async |sql: &str| -> Vec<String> {
            admin.query(sql, &[&pattern]).await.unwrap().iter().map(|row| row.get(0)).collect()
        };
        (
            names("SELECT datname::text FROM pg_database WHERE datname LIKE $1").await,
            names("SELECT rolname::text FROM pg_roles WHERE rolname LIKE $1").await,
        )
    })
}

fn prefix(profile: &str) -> &'static str {
    match profile {
        "old" => "pgdumpsold",
        "new" => "pgdumpsnew",
        "mine" => "pgdumpsmine",
        _ => "pgdumpsnone",
    }
}

#[test]
fn a_template_is_exported_and_imported_again_when_it_is_gone_and_on_a_newer_server() {
    let Some(newer) = harness::clusters().into_iter().find(|cluster| cluster.major > harness::cluster().major) else {
        return harness::not_tried("there is no newer Postgres");
    };
    let setup = Setup::on(&[("old", harness::cluster()), ("new", newer)]);
    setup.template("base", CONTENTS);
    let exported = setup.export("base");
    assert_eq!((&exported["tables"], &exported["rows"]), (&json!(4), &json!(1050)), "{exported:#}");
    assert!(
        exported["extensions"]["citext"].is_string() && exported["checksum"].as_str().unwrap().starts_with("sha256:")
    );
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let file = setup.file();
    assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o600, 0o700));
    assert!(fs::read(&file).unwrap()[DUMP_AT as usize..].starts_with(b"PGDMP"), "any tool of Postgres' reads it");
    setup.nothing_left(&[1, 0]);
    let again = setup.refused("export_template", json!({"templateName": "base"}), "invalid_arguments");
    assert!(again["hint"].as_str().unwrap().contains("replace"), "{again}");
    let exported = setup.done("export_template", json!({"templateName": "base", "replace": true}))["exported"].clone();
    setup.done("delete_template", json!({"templateName": "base"}));
    for (profile, same) in [("old", true), ("new", false)] {
        let imported = setup.done("import_template", json!({"exportedName": "base", "profile": profile}));
        assert_eq!(imported["notes"], "as it was");
        let found = &imported["verification"];
        assert_eq!((&found["tables"], &found["rows"]), (&json!(4), &json!(1050)), "{found:#}");
        assert!(!same || found["checksum"] == exported["checksum"]);
        let made = setup.done("create_sandbox_from_template", json!({"templateName": "base", "profile": profile}));
        let id = made["databaseId"].clone();
        let sql = "SELECT (SELECT count(*) FROM app.users), (SELECT count(*) FROM app.glad), app.twice(21), \
                   (SELECT sum(n) FROM app.counts), (SELECT count(*) FROM app.notes)";
        let read = setup.done("run_sql", json!({"databaseId": id, "sql": sql}));
        assert_eq!(read["resultSets"][0]["rows"], json!([["500", "500", 42, "500", "500"]]), "{read:#}");
        let verified = setup.done("verify_sandbox", json!({"databaseId": id}));
        let failed = verified["checks"].as_array().unwrap().iter().filter(|check| check["status"] == "fail").count();
        assert_eq!(failed, 0, "{verified:#}");
        setup.done(
            "run_sql",
            json!({"databaseId": id, "sql": "INSERT INTO app.users (name, kind) VALUES ('more', 'b')"}),
        );
        setup.done("delete_database", json!({"databaseId": id, "wait": true}));
    }
    setup.nothing_left(&[1, 1]);
    // What is on the newer server does not go back.
    setup.done("export_template", json!({"templateName": "base", "profile": "new", "replace": true}));
    let back = setup.refused(
        "import_template",
        json!({"exportedName": "base", "profile": "old", "replace": true}),
        "version_mismatch",
    );
    assert!(back["message"].as_str().unwrap().contains("newer"), "{back}");
    setup.nothing_left(&[1, 1]);
    for profile in ["old", "new"] {
        setup.done("delete_template", json!({"templateName": "base", "profile": profile}));
    }
    setup.done("delete_template", json!({"templateName": "base", "exported": true}));
    assert_eq!(setup.done("list_templates", json!({}))["exported"], json!([]));
}

/// Writes a manifest into a file, with a checksum that fits.
fn forge(path: &Path, change: impl FnOnce(&mut Value)) {
    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut text = vec![0; DUMP_AT as usize - MANIFEST_AT];
    file.read_exact_at(&mut text, MANIFEST_AT as u64).unwrap();
    let mut manifest: Value = serde_json::from_slice(&text).unwrap();
    change(&mut manifest);
    let length = text.len();
    text = manifest.to_string().into_bytes();
    text.resize(length, b' ');
    file.write_all_at(format!("pgsandbox template dump 1 {}\n", sha256_hex(&text)).as_bytes(), 0).unwrap();
    file.write_all_at(&text, MANIFEST_AT as u64).unwrap();
}

/// Puts another dump into a file, with checksums that fit.
fn replace_dump(path: &Path, dump: &[u8]) {
    let mut file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(DUMP_AT).unwrap();
    file.seek(SeekFrom::Start(DUMP_AT)).unwrap();
    file.write_all(dump).unwrap();
    forge(path, |manifest| {
        manifest["dumpBytes"] = dump.len().into();
        manifest["dumpSha256"] = sha256_hex(dump).into();
    });
}

#[test]
fn a_file_that_is_not_what_was_exported_is_refused_and_nothing_is_left() {
    let setup = Setup::on(&[("mine", harness::cluster())]);
    setup.template(
        "base",
        "CREATE EXTENSION citext; CREATE TABLE t AS SELECT n, 'x'::citext c FROM generate_series(1, 100) n",
    );
    setup.export("base");
    let (file, whole) = (setup.file(), fs::read(setup.file()).unwrap());
    let import = json!({"exportedName": "base", "templateName": "again"});
    let check = |what: &str, code: &str, spoil: &dyn Fn(&Path)| {
        fs::remove_file(&file).unwrap_or_default();
        fs::write(&file, &whole).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        spoil(&file);
        let error = setup.refused("import_template", import.clone(), code);
        assert!(error["message"].as_str().unwrap().len() > 20, "{what}: {error}");
        setup.nothing_left(&[1]);
    };
    let resized =
        |path: &Path, length: u64| fs::OpenOptions::new().write(true).open(path).unwrap().set_len(length).unwrap();
    let restore = "template_restore_failed";
    check("nothing", restore, &|path| resized(path, 0));
    check("cut in the manifest", restore, &|path| resized(path, 1000));
    check("cut in the dump", restore, &|path| resized(path, whole.len() as u64 - 1));
    check("longer", restore, &|path| resized(path, 1 << 40));
    check("one byte of the dump", restore, &|path| {
        let file = fs::OpenOptions::new().write(true).open(path).unwrap();
        file.write_all_at(b"?", DUMP_AT + 100).unwrap();
    });
    check("one byte of the manifest", restore, &|path| {
        let file = fs::OpenOptions::new().write(true).open(path).unwrap();
        file.write_all_at(b"?", MANIFEST_AT as u64 + 40).unwrap();
    });
    check("a checksum that was edited with the manifest", restore, &|path| {
        forge(path, |manifest| manifest["dumpSha256"] = "0".repeat(64).into());
    });
    check("a manifest of wrong types", restore, &|path| forge(path, |manifest| manifest["rows"] = json!("many")));
    check("a manifest that says more than is there", restore, &|path| {
        forge(path, |manifest| manifest["rows"] = json!(101));
    });
    check("a manifest of other objects", restore, &|path| {
        forge(path, |manifest| manifest["shapeDigest"] = "0".repeat(64).into());
    });
    check("a manifest without its extension", restore, &|path| {
        forge(path, |manifest| manifest["extensions"] = json!([]));
    });
    check("an extension that is not allowed", "extension_not_allowed", &|path| {
        let more = json!([{"name": "hstore", "version": "1", "schema": "public"},
            {"name": "citext", "version": "1", "schema": "public"}]);
        forge(path, |manifest| manifest["extensions"] = more);
    });
    check("an extension that leads out", "extension_not_allowed", &|path| {
        let more = json!([{"name": "dblink", "version": "1", "schema": "public"}]);
        forge(path, |manifest| manifest["extensions"] = more);
    });
    check("an older server's than can be", "version_mismatch", &|path| {
        forge(path, |manifest| manifest["postgresMajor"] = json!(9));
    });
    check("larger than there is room for", "quota_exceeded", &|path| {
        forge(path, |manifest| manifest["databaseBytes"] = json!(1_u64 << 50));
    });
    check("a text instead of a dump", restore, &|path| replace_dump(path, b"CREATE TABLE t ();\n\\! touch /tmp/x\n"));
    check("noise behind a dump's beginning", restore, &|path| {
        replace_dump(path, &[b"PGDMP\x01\x0e\x00\x04\x08\x01".as_slice(), &[0xff; 4000]].concat());
    });
    check("others may read it", "internal", &|path| {
        fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
    });
    check("a link", "internal", &|path| {
        let elsewhere = path.with_extension("elsewhere");
        fs::rename(path, &elsewhere).unwrap();
        symlink(&elsewhere, path).unwrap();
    });
    for name in ["../base", "/etc/passwd", "a/b", "", "x\0"] {
        setup.refused("import_template", json!({"exportedName": name}), "invalid_artifact_name");
        setup.refused("export_template", json!({"templateName": name}), "invalid_artifact_name");
    }
    setup.refused("import_template", json!({"exportedName": "none"}), "template_not_found");
    setup.refused("export_template", json!({"templateName": "none"}), "template_not_found");
    // A file that cannot be used can be removed.
    setup.done("delete_template", json!({"templateName": "base", "exported": true}));
    setup.done("delete_template", json!({"templateName": "base"}));
}

/// Makes a dump with the program of Postgres', of a database of the superuser's.
fn dumped(cluster: &Cluster, database: &str, script: &str) -> Vec<u8> {
    block_on(async {
        let admin = cluster.superuser("postgres").await;
        admin.batch_execute(&format!("CREATE DATABASE {database} TEMPLATE template0")).await.unwrap();
        cluster.superuser(database).await.batch_execute(script).await.unwrap();
    });
    let url = cluster.superuser_url().rsplit_once('/').map(|(start, _)| format!("{start}/{database}")).unwrap();
    let output = std::process::Command::new(cluster.bin_dir.join("pg_dump"))
        .args(["--format=custom", "--dbname", &url])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    block_on(async {
        let admin = cluster.superuser("postgres").await;
        admin.batch_execute(&format!("DROP DATABASE {database} WITH (FORCE)")).await.unwrap();
    });
    output.stdout
}

#[test]
fn code_in_a_dump_runs_as_the_templates_owner_and_never_as_the_admin() {
    let cluster = harness::cluster();
    let setup = Setup::on(&[("mine", cluster)]);
    setup.template("base", "CREATE TABLE t (n int)");
    setup.export("base");
    // A function that is called for each row that is restored; where it is dumped it is harmless until the end.
    let script = "
        CREATE TABLE who (is_super text, name text);
        CREATE FUNCTION note(n int) RETURNS int LANGUAGE sql AS 'SELECT n';
        CREATE TABLE t (n int CHECK (note(n) > 0));
        INSERT INTO t VALUES (1);
        CREATE OR REPLACE FUNCTION note(n int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO public.who SELECT current_setting('is_superuser'), current_user;
            BEGIN EXECUTE 'ALTER ROLE CURRENT_USER SUPERUSER'; EXCEPTION WHEN OTHERS THEN NULL; END;
            BEGIN EXECUTE 'CREATE ROLE pgdumps_evil SUPERUSER'; EXCEPTION WHEN OTHERS THEN NULL; END;
            BEGIN EXECUTE 'COPY public.who TO PROGRAM ''touch /tmp/pgdumps-evil'''; EXCEPTION WHEN OTHERS THEN NULL; END;
            RETURN n; END $$";
    let dump = dumped(cluster, "pgdumpsevil", script);
    replace_dump(&setup.file(), &dump);
    // Whatever comes of it, nothing was done with more rights.
    let reply = setup.call("import_template", json!({"exportedName": "base", "templateName": "evil"}));
    block_on(async {
        let admin = cluster.superuser("postgres").await;
        let rows = admin
            .query("SELECT FROM pg_roles WHERE rolname = 'pgdumps_evil' OR (rolsuper AND rolname ~ '^pgdumps')", &[]);
        assert!(rows.await.unwrap().is_empty());
    });
    assert!(!Path::new("/tmp/pgdumps-evil").exists());
    assert_eq!(reply["errors"][0]["code"], "template_restore_failed", "it is not what was exported: {reply:#}");
    setup.nothing_left(&[1]);
    // One whose manifest says the same as it does is what its owner could have made anyway.
    setup.done("delete_template", json!({"templateName": "base", "exported": true}));
    setup.done("delete_template", json!({"templateName": "base"}));
    setup.template(
        "base",
        "CREATE TABLE who (is_super text, name text); CREATE FUNCTION note(n int) RETURNS int LANGUAGE plpgsql \
        AS $$ BEGIN INSERT INTO public.who SELECT current_setting('is_superuser'), current_user; \
        GRANT ALL ON public.who TO PUBLIC; ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO PUBLIC; \
        IF session_user::text ~ '_f[0-9]+$' THEN EXECUTE format('ALTER ROLE %I PASSWORD %L', session_user, 'known'); \
        EXECUTE format('ALTER ROLE %I SET work_mem = %L', session_user, '64kB'); END IF; RETURN n; END $$; \
        CREATE TABLE t (n int CHECK (note(n) > 0)); INSERT INTO t VALUES (1); TRUNCATE who",
    );
    setup.export("base");
    forge(&setup.file(), |manifest| manifest["rowsCounted"] = json!(false));
    setup.done("import_template", json!({"exportedName": "base", "templateName": "told"}));
    block_on(async {
        let admin = cluster.superuser("postgres").await;
        let set = "SELECT rolname::text FROM pg_authid WHERE rolname ~ '^pgdumpsmine' AND (rolname ~ '_f[0-9]+$' OR rolcanlogin \
            OR rolpassword IS NOT NULL OR EXISTS (SELECT FROM pg_db_role_setting WHERE setrole = pg_authid.oid \
            AND setconfig::text ~ 'work_mem'))";
        let left: Vec<String> = admin.query(set, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
        assert_eq!(left, Vec::<String>::new(), "what the file's code set of the template's roles is still there");
    });
    let made = setup.done("create_sandbox_from_template", json!({"templateName": "told"}));
    // Nobody may what the code gave to all.
    let read = "SELECT DISTINCT is_super, name ~ '_f[0-9]+$', \
        (SELECT relacl::text ~ '[{,]=' FROM pg_class WHERE oid = 'who'::regclass), \
        EXISTS (SELECT FROM pg_default_acl WHERE defaclacl::text ~ '[{,]=') FROM who";
    let read = json!({"databaseId": made["databaseId"], "sql": read});
    assert_eq!(setup.done("run_sql", read)["resultSets"][0]["rows"], json!([["off", true, false, false]]));
    setup.done("delete_database", json!({"databaseId": made["databaseId"], "wait": true}));
    for name in ["base", "told"] {
        setup.done("delete_template", json!({"templateName": name}));
    }
}

#[test]
fn what_cannot_be_carried_is_told_and_what_cannot_be_dumped_is_refused() {
    let setup = Setup::on(&[("mine", harness::cluster())]);
    setup.template(
        "base",
        "CREATE TABLE t (n int); CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'; \
         REVOKE EXECUTE ON FUNCTION f() FROM PUBLIC; CREATE PUBLICATION p FOR TABLE t",
    );
    let reply = setup.call("export_template", json!({"templateName": "base"}));
    let told = reply["warnings"].to_string();
    assert!(told.contains("1 publication") && told.contains("granted"), "{reply:#}");
    setup.done("import_template", json!({"exportedName": "base", "replace": true}));
    for (contents, code) in [
        (
            "CREATE TABLE f (n int); INSERT INTO f VALUES (1); ALTER TABLE f ENABLE ROW LEVEL SECURITY; ALTER TABLE f FORCE ROW LEVEL SECURITY",
            "permission_denied",
        ),
        (
            "CREATE TABLE f (n int); ALTER TABLE f ENABLE ROW LEVEL SECURITY; CREATE POLICY own ON f TO CURRENT_USER USING (true)",
            "restore_incompatible",
        ),
    ] {
        setup.template("other", contents);
        let error = setup.refused("export_template", json!({"templateName": "other"}), code);
        assert!(error["hint"].is_string(), "{error}");
        setup.done("delete_template", json!({"templateName": "other"}));
        setup.nothing_left(&[1]);
    }
    setup.done("delete_template", json!({"templateName": "base"}));
}

#[test]
fn settings_and_a_comment_of_the_database_come_with_it() {
    let setup = Setup::on(&[("mine", harness::cluster())]);
    let made = setup.done("create_database", json!({"nameHint": "settings"}));
    let (id, name) = (made["databaseId"].clone(), made["databaseName"].as_str().unwrap().to_owned());
    let sql = format!(
        "CREATE SCHEMA app; CREATE TABLE app.t (n int); ALTER DATABASE {name} SET search_path = app, \"a b\", public; \
         ALTER DATABASE {name} SET statement_timeout = '7s'; COMMENT ON DATABASE {name} IS 'it''s mine'"
    );
    setup.done("run_sql", json!({"databaseId": id, "sql": sql}));
    setup.done("create_template_from_sandbox", json!({"databaseId": id, "templateName": "base"}));
    setup.done("delete_database", json!({"databaseId": id, "wait": true}));
    setup.export("base");
    setup.done("import_template", json!({"exportedName": "base", "templateName": "again"}));
    let made = setup.done("create_sandbox_from_template", json!({"templateName": "again"}));
    let sql = "SELECT current_setting('search_path'), (SELECT count(*) FROM t), shobj_description(oid, 'pg_database') \
               FROM pg_database WHERE datname = current_database()";
    let read = setup.done("run_sql", json!({"databaseId": made["databaseId"], "sql": sql}));
    assert_eq!(read["resultSets"][0]["rows"], json!([["app, \"a b\", public", "0", "it's mine"]]), "{read:#}");
    setup.done("delete_database", json!({"databaseId": made["databaseId"], "wait": true}));
    for name in ["base", "again"] {
        setup.done("delete_template", json!({"templateName": name}));
    }
}

#[test]
fn a_manifest_holds_nothing_of_who_exported_it() {
    let setup = Setup::on(&[("mine", harness::cluster())]);
    setup.template("base", "CREATE TABLE t (n int)");
    setup.export("base");
    let mut text = vec![0; DUMP_AT as usize];
    fs::File::open(setup.file()).unwrap().read_exact(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    for secret in ["password", "SCRAM", setup.home.path().to_str().unwrap()] {
        assert!(!text.contains(secret), "{secret}: {text}");
    }
    setup.done("delete_template", json!({"templateName": "base"}));
}

#[test]
fn a_file_is_brought_to_another_machine_by_its_operator() {
    let (here, there) = (Setup::on(&[("mine", harness::cluster())]), Setup::on(&[("none", harness::cluster())]));
    here.template("base", "CREATE TABLE t AS SELECT generate_series(1, 10) n");
    here.export("base");
    let file = here.home.path().join("base.template");
    let path = file.to_str().unwrap();
    let run = |setup: &Setup, arguments: &[&str], succeeds: bool| {
        let output = setup.home.run(arguments);
        assert_eq!(output.status.success(), succeeds, "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    run(&here, &["exported", "save", "base", path], true);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let again = run(&here, &["exported", "save", "base", path], false);
    assert!(again.contains("none is replaced"), "{again}");
    run(&here, &["exported", "save", "none", "/nowhere"], false);
    run(&there, &["exported", "add", path], true);
    run(&there, &["exported", "add", path], false);
    run(&there, &["exported", "add", path, "--name", "../x"], false);
    run(&there, &["exported", "add", path, "--name", "other"], true);
    for strange in ["/dev/zero", "/etc/passwd", "/nowhere", "/"] {
        run(&there, &["exported", "add", strange, "--name", "strange"], false);
    }
    fs::OpenOptions::new().write(true).open(&file).unwrap().write_all_at(b"?", DUMP_AT + 9).unwrap();
    let spoilt = run(&there, &["exported", "add", path, "--name", "spoilt"], false);
    assert!(spoilt.contains("checksum"), "{spoilt}");
    let names: Vec<Value> = there.done("list_templates", json!({}))["exported"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| e["exportedName"].clone())
        .collect();
    assert_eq!(names, [json!("base"), json!("other")]);
    there.done("import_template", json!({"exportedName": "other"}));
    there.nothing_left(&[1]);
    let tail = there.home.run(&["audit", "tail", "--operation", "template-transport"]);
    assert_eq!(String::from_utf8_lossy(&tail.stdout).lines().count(), 9, "each is audited");
    there.done("delete_template", json!({"templateName": "other"}));
    here.done("delete_template", json!({"templateName": "base"}));
}

#[test]
fn an_admin_that_is_no_superuser_exports_and_imports_too() {
    for cluster in harness::clusters() {
        let setup = Setup::by(&[("mine", cluster)], Cluster::limited_url);
        setup.template("base", CONTENTS);
        setup.export("base");
        setup.done("import_template", json!({"exportedName": "base", "replace": true}));
        let made = setup.done("create_sandbox_from_template", json!({"templateName": "base"}));
        let read = json!({"databaseId": made["databaseId"], "sql": "SELECT count(*) FROM app.users", "readonly": true});
        assert_eq!(setup.done("run_sql", read)["resultSets"][0]["rows"], json!([["500"]]));
        setup.done("delete_database", json!({"databaseId": made["databaseId"], "wait": true}));
        setup.nothing_left(&[1]);
        setup.done("delete_template", json!({"templateName": "base"}));
    }
}

/// Plays a command with a fault, and returns its envelope where it lived to write one.
fn under_fault(setup: &Setup, fault: &str, operation: &str, input: &Value) -> Option<Value> {
    let mut command = setup.home.command(&["tool", operation, "--format", "json", "--input", &input.to_string()]);
    let output = command.env("PGSANDBOX_TEST_FAULTS", fault).output().unwrap();
    serde_json::from_slice(&output.stdout).ok()
}

#[test]
fn what_fails_or_is_killed_anywhere_leaves_the_template_and_the_file_as_they_were_and_nothing_else() {
    let setup = Setup::on(&[("mine", harness::cluster())]);
    setup.template("base", "CREATE TABLE t AS SELECT generate_series(1, 100) n");
    setup.export("base");
    let whole = fs::read(setup.file()).unwrap();
    let export = json!({"templateName": "base", "replace": true});
    let import = json!({"exportedName": "base", "templateName": "again"});
    let both = [
        "plan.create.create-roles.after",
        "plan.create.open-database.before",
        "file.copy-dir.make",
        "socket.relay.bind",
    ];
    let exporting = [
        "plan.create.copy-database.after",
        "plan.create.write-dump.before",
        "plan.create.write-dump.after",
        "spawn.pg-dump",
        "file.copy.move",
        "file.dumps.make",
        "file.dumps.manifest",
        "file.dumps.link",
    ];
    let importing = [
        "plan.create.create-database.after",
        "plan.create.restore-dump.before",
        "plan.create.restore-dump.after",
        "plan.create.close-roles.after",
        "plan.create.seal-template.before",
        "spawn.pg-restore",
        "file.dump.copy",
        "file.dumps.open",
        "file.copy-list.write",
    ];
    let exporting = both.iter().chain(&exporting).map(|point| ("export_template", *point, &export));
    let importing = both.iter().chain(&importing).map(|point| ("import_template", *point, &import));
    for (operation, point, input) in exporting.chain(importing) {
        for kind in ["fail", "crash"] {
            let reply = under_fault(&setup, &format!("{point}={kind}"), operation, input);
            assert!(reply.as_ref().is_none_or(|reply| reply["ok"] == false), "{operation} {point}={kind}: {reply:#?}");
            assert!(kind == "crash" || reply.is_some(), "{operation} {point}");
            // The next command takes back what a killed one left, and what waits for that is tried until it is gone.
            let tidied = || {
                setup.call("list_templates", json!({}))["ok"] == true
                    && bearing(setup.profiles[0].1, "pgdumpsmine").0.len() == 1
            };
            assert!(
                (0..20).any(|_| tidied()),
                "{operation} {point}={kind} leaves {:?}",
                bearing(setup.profiles[0].1, "pgdumpsmine")
            );
        }
        assert_eq!(fs::read(setup.file()).unwrap(), whole, "{operation} {point}");
    }
    // What an export left unfinished that was killed is swept by the next.
    setup.done("export_template", export);
    setup.done("import_template", import);
    setup.nothing_left(&[2]);
    for name in ["base", "again"] {
        setup.done("delete_template", json!({"templateName": name}));
    }
}

#[test]
fn what_takes_too_long_or_is_cancelled_is_stopped_and_nothing_is_left() {
    let setup = Setup::on(&[("mine", harness::cluster())]);
    setup.template("base", "CREATE TABLE t AS SELECT generate_series(1, 100) n");
    setup.export("base");
    let export = json!({"templateName": "base", "replace": true, "timeoutSeconds": 1});
    let import = json!({"exportedName": "base", "templateName": "again", "timeoutSeconds": 1});
    for (operation, fault, input) in [
        ("export_template", "spawn.pg-dump=delay:5000", &export),
        ("import_template", "spawn.pg-restore=delay:5000", &import),
    ] {
        let reply = under_fault(&setup, fault, operation, input).unwrap();
        assert_eq!(reply["errors"][0]["code"], "command_timeout", "{reply:#}");
        setup.nothing_left(&[1]);
    }
    for (operation, fault, mut input) in [
        ("export_template", "plan.create.write-dump.before=delay:3000", export),
        ("import_template", "plan.create.restore-dump.before=delay:3000", import),
    ] {
        input["timeoutSeconds"] = json!(60);
        let faults = [("PGSANDBOX_TEST_FAULTS", fault)];
        let mut stdio = Stdio::start_with(&setup.home, &faults, std::process::Stdio::inherit());
        let params = json!({"name": operation, "arguments": input, "_meta": {"progressToken": 7}});
        let id = stdio.begin("tools/call", params);
        // Its last step has begun when it is told of.
        let told = |message: &Value| message["params"]["message"].to_string().contains("the dump");
        while !told(&stdio.message(std::time::Duration::from_secs(30)).expect("it tells of its steps")) {}
        stdio.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}));
        assert!(stdio.finish().success());
        setup.nothing_left(&[1]);
    }
    setup.done("delete_template", json!({"templateName": "base"}));
}

#[test]
fn anothers_exported_template_is_not_there() {
    let setup = Setup::on(&[("mine", harness::cluster())]);
    setup.template("base", "CREATE TABLE t (n int)");
    setup.export("base");
    for (operation, input) in [
        ("import_template", json!({"exportedName": "base"})),
        ("export_template", json!({"templateName": "base"})),
        ("delete_template", json!({"templateName": "base", "exported": true})),
    ] {
        let mut command = setup.home.command(&["tool", operation, "--format", "json", "--input", &input.to_string()]);
        let output = command.env("PGSANDBOX_OWNER", "bob").output().unwrap();
        let reply: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(reply["errors"][0]["code"], "template_not_found", "{reply:#}");
        assert!(!reply["errors"][0]["allowed"].to_string().contains("base"), "{reply:#}");
    }
    setup.nothing_left(&[1]);
    setup.done("delete_template", json!({"templateName": "base"}));
}
