//! What `doctor` finds: each fault is planted, found by its own check, and gone from it when it is mended.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{self, Cluster};
use crate::hostile::code;
use crate::program::{Cli, Home, Transport};

fn home(url: &str, prefix: &str) -> Home {
    Home::fresh().with("PGSANDBOX_ADMIN_DATABASE_URL", url).with("PGSANDBOX_DATABASE_PREFIX", prefix)
}

/// Returns a check by name, without its profile.
fn check(home: &Home, name: &str) -> (String, String, String) {
    let reply: Value = serde_json::from_slice(&home.run(&["doctor", "--format", "json"]).stdout).unwrap();
    let checks = reply["result"]["checks"].as_array().unwrap_or_else(|| panic!("{reply:#}"));
    let is_it = |check: &&Value| check["name"].as_str().unwrap().rsplit(": ").next() == Some(name);
    let found = checks.iter().find(is_it).unwrap_or_else(|| panic!("no check `{name}`: {checks:#?}"));
    let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
    (text("status"), text("detail"), text("remedy"))
}

/// Returns a cluster of our own, used once through a home.
fn used(prefix: &str) -> (Cluster, Home) {
    let cluster = harness::own_cluster();
    let home = home(&cluster.superuser_url(), prefix);
    assert_eq!(code(&Cli::new(&home).call("list_databases", &json!({}))), "ok");
    (cluster, home)
}

#[tokio::test]
async fn the_expected_shape_is_what_the_migrations_make() {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/migrations/shape.txt");
    for cluster in harness::own_clusters() {
        let home = home(&cluster.superuser_url(), "shape");
        assert_eq!(code(&Cli::new(&home).call("list_databases", &json!({}))), "ok");
        let admin = cluster.superuser("postgres").await;
        let rows = admin.query(pgsandbox::store::SHAPE, &[]).await.unwrap();
        let mut lines: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        lines.sort();
        let seen = lines.join("\n") + "\n";
        if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
            fs::write(&kept, seen).unwrap();
            return;
        }
        assert_eq!(fs::read_to_string(&kept).unwrap(), seen, "UPDATE_SNAPSHOTS=1 writes shape.txt anew");
    }
}

#[tokio::test]
async fn a_schema_that_was_changed_by_hand_is_told_line_by_line() {
    let (cluster, home) = used("drift");
    assert_eq!(check(&home, "metadata.shape").0, "ok");
    let admin = cluster.superuser("postgres").await;
    let change = |sql: &'static str| admin.batch_execute(sql);
    change("ALTER TABLE pgsandbox.sandboxes ADD COLUMN extra int").await.unwrap();
    change("DROP INDEX pgsandbox.sandboxes_of_owner").await.unwrap();
    let (status, detail, remedy) = check(&home, "metadata.shape");
    assert_eq!(status, "warn");
    assert!(detail.contains("not ours: column sandboxes.extra integer"), "{detail}");
    assert!(detail.contains("missing: index sandboxes_of_owner: CREATE INDEX"), "{detail}");
    assert!(remedy.contains("`pgsandbox`"), "{remedy}");
    for n in 0..12 {
        admin.batch_execute(&format!("ALTER TABLE pgsandbox.sandboxes ADD COLUMN extra{n} int")).await.unwrap();
    }
    let (_, detail, _) = check(&home, "metadata.shape");
    assert!(detail.ends_with("; and 4 more"), "{detail}");
    for n in 0..12 {
        admin.batch_execute(&format!("ALTER TABLE pgsandbox.sandboxes DROP COLUMN extra{n}")).await.unwrap();
    }
    change("ALTER TABLE pgsandbox.sandboxes DROP COLUMN extra").await.unwrap();
    change(
        "CREATE INDEX sandboxes_of_owner ON pgsandbox.sandboxes (prefix, owner) WHERE state NOT IN ('deleted', 'failed')",
    )
    .await
    .unwrap();
    assert_eq!(check(&home, "metadata.shape").0, "ok");
}

#[tokio::test]
async fn what_has_waited_past_its_time_is_told_until_it_is_removed() {
    let (cluster, home) = used("late");
    let made = Cli::new(&home).call("create_database", &json!({"ttlMinutes": 5}));
    assert_eq!(check(&home, "sandboxes.expired").0, "ok");
    let admin = cluster.superuser("postgres").await;
    admin.batch_execute("UPDATE pgsandbox.sandboxes SET expires_at = now() - interval '1 hour'").await.unwrap();
    let (status, detail, remedy) = check(&home, "sandboxes.expired");
    assert!(status == "warn" && detail.contains("1 sandbox is past"), "{status}: {detail}");
    assert!(remedy.contains("`pgsandbox cleanup`"));
    assert_eq!(code(&made), "ok");
    assert!(home.run(&["cleanup"]).status.success());
    assert_eq!(check(&home, "sandboxes.expired").0, "ok");
}

#[tokio::test]
async fn what_is_on_one_side_only_is_named() {
    let (cluster, home) = used("lone");
    let made = Cli::new(&home).call("create_database", &json!({}));
    let name = made["result"]["databaseName"].as_str().unwrap().to_owned();
    assert_eq!(check(&home, "sandboxes.consistent").0, "ok");
    let admin = cluster.superuser("postgres").await;
    for sql in [
        "CREATE DATABASE lone_stray_0123456789",
        "CREATE ROLE lone_nobody_role",
        &format!("DROP DATABASE {name} WITH (FORCE)"),
    ] {
        admin.batch_execute(sql).await.unwrap();
    }
    let (status, detail, _) = check(&home, "sandboxes.consistent");
    assert_eq!(status, "warn");
    for part in ["database `lone_stray_0123456789` has no row", "role `lone_nobody_role` has no row"] {
        assert!(detail.contains(part), "{detail}");
    }
    assert!(detail.contains(&format!("the database of `{name}` is gone")), "{detail}");
    let (status, detail, _) = check(&home, "postgres.public-connect");
    assert!(status == "warn" && detail.contains("`postgres`"), "{detail}");
    // Looking changed nothing.
    assert!(
        admin
            .query_opt("SELECT FROM pg_database WHERE datname = 'lone_stray_0123456789'", &[])
            .await
            .unwrap()
            .is_some()
    );
}

#[test]
fn programs_that_are_too_old_to_dump_a_server_are_told() {
    let cluster = harness::cluster();
    let home = home(&cluster.superuser_url(), "tools");
    let dir = home.path().join("bin");
    fs::create_dir(&dir).unwrap();
    let program = |name: &str, version: &str| {
        let file = dir.join(name);
        fs::write(&file, format!("#!/bin/sh\necho '{name} (PostgreSQL) {version}'\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    };
    program("pg_dump", "99.1 (Debian 99.1-1)");
    program("pg_restore", "98.4");
    let path = format!("{}:{}", dir.display(), std::env::var("PATH").unwrap());
    let home = home.with("PATH", &path);
    let (_, detail, _) = check(&home, "postgres.tools");
    assert!(!detail.contains("99.1"), "of two versions: {detail}");
    program("pg_restore", "99.1");
    let (status, detail, _) = check(&home, "postgres.tools");
    assert!(
        status == "ok" && detail.starts_with(&format!("pg_dump and pg_restore 99.1 in `{}`", dir.display())),
        "{detail}"
    );
    for cluster in harness::clusters().iter().filter(|of| of.major > cluster.major) {
        let home = self::home(&cluster.superuser_url(), "tools");
        let (status, _, remedy) = check(&home, "postgres.tools");
        assert!(status == "warn" && remedy.contains(&cluster.major.to_string()), "{status}: {remedy}");
    }
}

#[test]
fn programs_that_do_not_answer_are_none() {
    let home = home(&harness::cluster().superuser_url(), "mute");
    let dir = home.path().join("bin");
    fs::create_dir(&dir).unwrap();
    for name in ["pg_dump", "pg_restore"] {
        fs::write(dir.join(name), "#!/bin/sh\nexec sleep 600\n").unwrap();
        fs::set_permissions(dir.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let home = home
        .with("PATH", &format!("{}:{}", dir.display(), std::env::var("PATH").unwrap()))
        .with("PGSANDBOX_TEST_DEADLINE_MS", "2000");
    let (_, detail, _) = check(&home, "postgres.tools");
    assert!(!detail.contains(&dir.display().to_string()), "{detail}");
}

#[test]
fn a_policy_file_or_component_that_others_may_write_serves_nothing_and_is_told() {
    let home = Home::fresh();
    let (file, component) = (home.path().join("mine.toml"), home.path().join("mine.wasm"));
    let bundled = Path::new(env!("CARGO_MANIFEST_DIR")).join("policies/quota/quota.wasm");
    fs::copy(bundled, &component).unwrap();
    fs::write(&file, "[[policy]]\nsource = \"mine.wasm\"\n[[policy]]\nsource = \"ownership\"\n").unwrap();
    let home = home.with("PGSANDBOX_POLICIES", file.to_str().unwrap());
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    assert_eq!(check(&home, "policies.loaded").0, "ok");
    for path in [&file, &component] {
        mode(path, 0o666);
        let (status, detail, remedy) = check(&home, "policies.loaded");
        let says = format!("it has mode 0666, which lets others change it; run `chmod go-w {}`", path.display());
        assert!(status == "fail" && detail.contains(&says), "{status}: {detail}");
        assert!(remedy.starts_with("correct the policy file"), "{remedy}");
        assert_eq!(code(&Cli::new(&home).call("list_profiles", &json!({}))), "policy_not_ready");
        mode(path, 0o644);
    }
    mode(home.path(), 0o777);
    let (status, detail, _) = check(&home, "policies.loaded");
    assert!(status == "fail" && detail.contains(&format!("lies in `{}`", home.path().display())), "{detail}");
    mode(home.path(), 0o755);
    assert_eq!(check(&home, "policies.loaded").0, "ok");
}

#[test]
fn the_program_its_room_and_its_log_are_looked_at() {
    let home = home(&harness::cluster().superuser_url(), "self");
    assert_eq!(check(&home, "program.version").1, format!("pgsandbox {}", env!("CARGO_PKG_VERSION")));
    assert_eq!(check(&home, "state.disk").0, "ok");
    let (status, detail, _) = check(&home, "policies.loaded");
    assert!(status == "ok" && detail.contains("generation 1 since ") && detail.contains(", digest "), "{detail}");
    assert_eq!(check(&home, "telemetry.lost_spans").0, "ok");
    assert_eq!(check(&home, "audit.chain").0, "ok");
    let segment = fs::read_dir(home.state().join("audit")).unwrap().map(|entry| entry.unwrap().path());
    let segment = segment.filter(|path| path.extension().is_some_and(|end| end == "jsonl")).max().unwrap();
    let text = fs::read_to_string(&segment).unwrap();
    fs::write(&segment, text.replacen("doctor", "docton", 1)).unwrap();
    let (status, _, remedy) = check(&home, "audit.chain");
    assert!(status == "fail" && remedy.contains("`pgsandbox audit verify`"), "{status}: {remedy}");
}

#[tokio::test]
async fn a_row_that_was_made_a_template_by_hand_is_told_and_so_is_a_template_without_its_other_half() {
    let (cluster, home) = used("halves");
    let call = |operation: &str, input: Value| {
        let reply = Cli::new(&home).call(operation, &input);
        assert_eq!(code(&reply), "ok", "{reply:#}");
        reply["result"].clone()
    };
    let made = call("create_database", json!({"nameHint": "halves"}));
    let id = made["databaseId"].as_str().unwrap().to_owned();
    call("create_template_from_sandbox", json!({"databaseId": id, "templateName": "base"}));
    assert_eq!(check(&home, "sandboxes.consistent").0, "ok");
    let admin = cluster.superuser("postgres").await;
    let of_template = "(select id from pgsandbox.sandboxes where kind = 'template')";
    let kept = "create table kept as select * from pgsandbox.templates";
    admin.batch_execute(kept).await.unwrap();
    let template = "update pgsandbox.sandboxes set kind = 'template', template_name = 'forged' where id = ";
    let sandbox = "update pgsandbox.sandboxes set kind = 'sandbox', template_name = null where id = ";
    for (spoil, mend, says) in [
        (format!("{template}'{id}'"), format!("{sandbox}'{id}'"), "it is a template, and there is no row for it"),
        (
            format!("insert into pgsandbox.templates select '{id}', null, null, 15, '[]'"),
            format!("delete from pgsandbox.templates where sandbox_id = '{id}'"),
            "it is a sandbox, and there is a row for it",
        ),
        (
            "delete from pgsandbox.templates".to_owned(),
            "insert into pgsandbox.templates select * from public.kept".to_owned(),
            "it is a template, and there is no row for it",
        ),
        (
            format!("update pgsandbox.sandboxes set template_name = null where id = {of_template}"),
            format!("update pgsandbox.sandboxes set template_name = 'base' where id = {of_template}"),
            "a template without a name",
        ),
    ] {
        admin.batch_execute(&spoil).await.unwrap();
        let (status, detail, remedy) = check(&home, "sandboxes.consistent");
        assert_eq!(status, "warn", "{spoil}");
        assert!(detail.contains(says) && !remedy.is_empty(), "{spoil}: {detail}");
        admin.batch_execute(&mend).await.unwrap();
        assert_eq!(check(&home, "sandboxes.consistent").0, "ok", "{mend}");
    }
}
