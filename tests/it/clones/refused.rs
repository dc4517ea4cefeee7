//! What cannot be cloned: a clear error that names what is in the way, and nothing left.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use super::{Setup, files_with, reader_url, rows, source};
use crate::harness;
use crate::program::{Cli, Transport};

#[test]
fn a_source_that_cannot_be_read_whole_is_refused_by_name() {
    let cluster = harness::cluster();
    source(cluster, "closed", "", "CREATE TABLE open (v int)");
    let setup = Setup::on(cluster, "cloneclosed", &[("closed", reader_url(cluster, "closed"), json!({}))]);
    let change = |sql: &str| _ = rows(cluster, "closed", sql);
    change("CREATE TABLE hidden (v int)");
    setup.refused(json!({"source": "closed"}), "permission_denied", "may not read `public.hidden`");
    setup.refused(json!({"source": "closed", "schemaOnly": true}), "permission_denied", "may not read `public.hidden`");
    change(
        "GRANT SELECT ON hidden TO reader; ALTER TABLE hidden ENABLE ROW LEVEL SECURITY; ALTER ROLE reader NOBYPASSRLS",
    );
    setup.refused(json!({"source": "closed"}), "permission_denied", "row security hides rows of `public.hidden`");
    setup.cloned(json!({"source": "closed", "excludeTableData": ["hidden"]}));
}

#[test]
fn a_source_newer_than_the_sandboxes_server_is_refused_with_both_versions() {
    let Some(newer) = harness::clusters().into_iter().find(|cluster| cluster.major > harness::cluster().major) else {
        return;
    };
    source(newer, "newer", "", "CREATE TABLE t (v int)");
    let setup = Setup::on(harness::cluster(), "clonever", &[("newer", reader_url(newer, "newer"), json!({}))]);
    let error = setup.refused(json!({"source": "newer"}), "version_mismatch", "newer than the sandbox's server");
    assert_eq!(error["sourceVersion"], newer.major.to_string());
    assert_eq!(error["targetVersion"], harness::cluster().major.to_string());
}

#[test]
fn extensions_that_cannot_be_made_here_are_named_and_can_be_left_out() {
    let cluster = harness::cluster();
    let script = "CREATE EXTENSION postgres_fdw; CREATE SERVER elsewhere FOREIGN DATA WRAPPER postgres_fdw; \
        CREATE USER MAPPING FOR reader SERVER elsewhere OPTIONS (user 'u', password 'hunter2'); \
        CREATE FOREIGN TABLE far (v int) SERVER elsewhere; COMMENT ON FOREIGN TABLE far IS 'far'; \
        COMMENT ON EXTENSION postgres_fdw IS 'leads out'; CREATE TABLE near (v int); INSERT INTO near VALUES (7)";
    source(cluster, "extended", "", script);
    source(cluster, "untrusted", "", "CREATE EXTENSION pg_buffercache; CREATE TABLE t (v int)");
    source(cluster, "needed", "", "CREATE EXTENSION hstore; CREATE TABLE t (v hstore)");
    let url = |name| reader_url(cluster, name);
    let setup = Setup::on(
        cluster,
        "cloneext",
        &[
            ("extended", url("extended"), json!({})),
            ("untrusted", url("untrusted"), json!({})),
            ("needed", url("needed"), json!({})),
        ],
    );
    setup.refused(json!({"source": "extended"}), "extension_not_allowed", "`postgres_fdw`");
    setup.refused(json!({"source": "untrusted"}), "extension_not_allowed", "`pg_buffercache`");
    let without = json!({"source": "needed", "excludeSourceExtensions": ["hstore"]});
    setup.refused(without, "restore_incompatible", "table `t` of source `needed` cannot be restored");
    let unknown = json!({"source": "needed", "excludeSourceExtensions": ["hstore", "hstroe"]});
    let error = setup.refused(unknown, "invalid_extensions", "no extension `hstroe`");
    assert_eq!(error["allowed"], json!(["hstore"]));
    let result = setup.cloned(json!({"source": "extended", "excludeSourceExtensions": ["postgres_fdw"]}));
    assert_eq!(result["excludedSourceExtensions"], json!(["postgres_fdw"]));
    assert!(result["leftOut"].to_string().contains("1 foreign table"), "{result:#}");
    assert_eq!(setup.rows(&result["databaseName"], "SELECT v::text FROM near"), [["7"]]);
    assert_eq!(setup.rows(&result["databaseName"], "SELECT count(*)::text FROM pg_foreign_server"), [["0"]]);
}

#[test]
fn an_extension_that_only_the_admin_can_make_comes_in_its_own_schema() {
    let cluster = harness::cluster();
    let script = "CREATE SCHEMA tools; CREATE EXTENSION pg_buffercache SCHEMA tools; COMMENT ON EXTENSION pg_buffercache IS 'x'; \
        COMMENT ON SCHEMA tools IS 'y'; CREATE TABLE tools.t (v int)";
    source(cluster, "admins", "", script);
    let setup = Setup::on(cluster, "cloneadm", &[("admins", reader_url(cluster, "admins"), json!({}))]);
    let path = setup.home.path().join("config.json");
    let text = fs::read_to_string(&path)
        .unwrap()
        .replace("\"adminUrl\"", "\"allowedExtensions\":[\"pg_buffercache\"],\"adminUrl\"");
    fs::write(&path, text).unwrap();
    let setup = setup.under("{ allow = [{ name = \"*\" }] }");
    let file = setup.home.path().join("policies.toml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(
        &file,
        text.replace(
            "source = \"extensions\"\n",
            "source = \"extensions\"\nsettings = { allow = [\"pg_buffercache\"] }\n",
        ),
    )
    .unwrap();
    let result = setup.cloned(json!({"source": "admins"}));
    let at = "SELECT n.nspname, r.rolsuper::text FROM pg_extension e JOIN pg_namespace n ON n.oid = extnamespace \
              JOIN pg_roles r ON r.oid = extowner WHERE extname = 'pg_buffercache'";
    assert_eq!(setup.rows(&result["databaseName"], at), [["tools", "true"]]);
}

#[test]
fn a_materialised_view_that_relies_on_search_path_is_named() {
    let cluster = harness::cluster();
    let script = "CREATE TABLE t (v int); CREATE FUNCTION f() RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RETURN (SELECT count(*) FROM t); END $$; \
        CREATE MATERIALIZED VIEW mv AS SELECT f() AS n";
    source(cluster, "relies", "", script);
    let setup = Setup::on(cluster, "clonemv", &[("relies", reader_url(cluster, "relies"), json!({}))]);
    let error =
        setup.refused(json!({"source": "relies"}), "restore_incompatible", "materialised view `mv` of source `relies`");
    assert_eq!(error["sqlstate"], "42P01");
    assert!(error["hint"].as_str().unwrap().contains("search_path"));
}

#[test]
fn what_only_a_superuser_could_make_is_named() {
    let cluster = harness::cluster();
    source(cluster, "special", "", "CREATE FUNCTION f(internal) RETURNS internal LANGUAGE internal AS 'btint4cmp'");
    let setup = Setup::on(cluster, "clonesup", &[("special", reader_url(cluster, "special"), json!({}))]);
    setup.refused(json!({"source": "special"}), "restore_incompatible", "only a superuser may make it");
}

#[test]
fn sources_are_had_by_name_within_their_profiles_and_production_for_a_reason() {
    let cluster = harness::cluster();
    source(cluster, "prod", "", "CREATE TABLE t (v int)");
    let url = reader_url(cluster, "prod");
    let sources = [
        ("shop", url.clone(), json!({"production": true})),
        ("closed", url.clone(), json!({"profiles": ["local"]})),
        ("gone", cluster.url("nobody", "s3cret", "prod"), json!({})),
        ("nowhere", cluster.url("reader", "s3cret", "no_such_database"), json!({})),
    ];
    let open = "{ allow = [{ name = \"*\" }, { host = \"127.0.0.1\" }], production = {} }";
    let setup = Setup::on(cluster, "cloneprod", &sources).under(open);
    setup.refused(json!({}), "invalid_arguments", "one of `source` and `sourceDatabaseUrl` is required");
    setup.refused(json!({"source": "shop", "sourceDatabaseUrl": url}), "invalid_arguments", "exclude each other");
    setup.refused(json!({"source": "nope"}), "source_not_allowed", "there is no source `nope`");
    setup.refused(json!({"source": "shop"}), "source_not_allowed", "is a production database");
    setup.refused(json!({"source": "shop", "reason": "  "}), "source_not_allowed", "is a production database");
    // A URL to the same database is one to production as well.
    setup.refused(json!({"sourceDatabaseUrl": url}), "source_not_allowed", "is a production database");
    setup.refused(json!({"source": "gone"}), "postgres_auth_failed", "does not accept the credentials of `nobody`");
    setup.refused(json!({"source": "nowhere"}), "postgres_auth_failed", "does not accept");
    setup.refused(
        json!({"source": "shop", "reason": "bug 17", "timeoutSeconds": 601}),
        "invalid_arguments",
        "between 1 and 600",
    );
    let told = Cli::new(&setup.home)
        .call("explain_policy", &json!({"operation": "clone_database", "arguments": {"source": "shop"}}));
    assert_eq!(told["result"]["allowed"], false, "{told:#}");
    setup.cloned(json!({"source": "shop", "reason": "bug 17"}));
}

#[test]
fn a_url_of_the_callers_is_refused_by_default_and_read_strictly() {
    let cluster = harness::cluster();
    source(cluster, "by_url", "", "CREATE TABLE t (v int)");
    let setup = Setup::on(cluster, "cloneurl", &[]);
    let url = reader_url(cluster, "by_url");
    let error = setup.refused(json!({"sourceDatabaseUrl": url}), "source_not_allowed", "may not be cloned");
    let says = error["message"].as_str().unwrap();
    assert!(says.ends_with("allowed are configured sources by their names"), "{says}");
    let setup = setup.under("{ allow = [{ host = \"127.0.0.1\" }] }");
    for (url, says) in [
        ("postgresql://u:s3cret@a,b/d", "several hosts"),
        ("postgresql://u:s3cret@127.0.0.1/d?service=x", "`service` is not supported"),
        ("postgresql://u:s3cret@127.0.0.1/d?passfile=/etc/shadow", "`passfile` is not supported"),
        ("postgresql://u:s3cret@127.0.0.1/d?sslkey=/etc/shadow", "`sslkey` is not supported"),
        ("postgresql://u:s3cret@127.0.0.1/d?sslrootcert=/etc/shadow", "reads a file"),
        ("postgresql://u:s3cret@127.0.0.1/d?host=/tmp", "its host twice"),
        ("postgresql://u:s3cret@/d", "names no host"),
        ("postgresql://u:s3cret@[::1/d", "is not a name"),
    ] {
        setup.refused(json!({"sourceDatabaseUrl": url}), "invalid_arguments", says);
    }
    setup.refused(
        json!({"sourceDatabaseUrl": "postgresql://u:s3cret@[::1]:1/d"}),
        "source_not_allowed",
        "may not be cloned",
    );
    let result = setup.cloned(json!({"sourceDatabaseUrl": url}));
    assert!(!result.to_string().contains("s3cret"), "{result:#}");
    assert!(result["source"].as_str().unwrap().starts_with("postgresql://reader@127.0.0.1:"));
    assert_eq!(files_with(&setup.home, "s3cret"), "");
}

#[test]
fn no_password_reaches_the_programs() {
    let cluster = harness::cluster();
    source(cluster, "watched", "", "CREATE TABLE t (v int)");
    let setup = Setup::on(cluster, "clonearg", &[]).under("{ allow = [{ host = \"127.0.0.1\" }] }");
    let bin = setup.home.path().join("bin");
    fs::create_dir(&bin).unwrap();
    let log = setup.home.path().join("seen");
    fs::write(&log, "").unwrap();
    fs::set_permissions(&log, fs::Permissions::from_mode(0o666)).unwrap();
    for program in ["pg_dump", "pg_restore"] {
        let real = cluster.bin_dir.join(program);
        let script = format!(
            "#!/bin/sh\n[ -z \"$PGHOST\" ] || {{ id -u; env; echo \"$0 $*\"; stat -c '%a %A' \"$PGHOST\"; \
             find \"$PGHOST\" -type f -exec cat {{}} +; find \"$PGHOST\" -type s; }} >>{} 2>/dev/null\nexec {} \"$@\"\n",
            log.display(),
            real.display()
        );
        fs::write(bin.join(program), script).unwrap();
        fs::set_permissions(bin.join(program), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let name = format!("PGSANDBOX_POSTGRES_{}_BIN_DIR", cluster.major);
    let input = json!({"sourceDatabaseUrl": reader_url(cluster, "watched")}).to_string();
    let mut command = setup.home.command(&["tool", "clone_database", "--format", "json", "--input", "-"]);
    command.env(name, &bin).env("PGPASSWORD", "hunter2").env("PGSERVICE", "x");
    command
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    let seen = fs::read_to_string(&log).unwrap();
    assert!(seen.contains(".s.PGSQL.1") && seen.contains(".s.PGSQL.2"), "{seen}");
    for secret in ["s3cret", "hunter2", "PGSERVICE"] {
        assert!(!seen.contains(secret) && !said.contains(secret), "{secret}: {seen}{said}");
    }
    assert!(seen.contains("700 drwx------"), "{seen}");
    // As root the programs run as somebody else.
    assert!(!rustix::process::geteuid().is_root() || !seen.lines().any(|line| line == "0"), "{seen}");
}
