//! What is kept of schemas: whose it is, how long it stays, and what becomes of it when it is not what was written.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{digest, home, made, ok, refused, run};
use crate::harness::cluster;
use crate::program::{Home, Stdio, Transport};

fn profile() -> String {
    format!("on{}", cluster().major)
}

fn named(name: &str) -> Value {
    json!({"snapshotName": name})
}

/// Returns every file and folder below a path.
fn below(path: &Path) -> Vec<PathBuf> {
    let mut found = vec![path.to_owned()];
    for entry in fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(below(&path)) } else { found.push(path) }
    }
    found
}

fn snapshot_file(home: &Home, name: &str) -> PathBuf {
    let end = format!("/snapshots/{name}.schema");
    below(&home.state().join("schemas")).into_iter().find(|path| path.to_str().unwrap().ends_with(&end)).unwrap()
}

#[test]
fn a_snapshot_outlives_its_sandbox_and_is_compared_with_any_other() {
    let home = home(&[cluster()], "kept");
    let mut server = Stdio::start(&home);
    let id = made(&mut server, &profile(), "first", "create table t (n int)");
    let kept =
        ok(&mut server, "create_schema_snapshot", &json!({"databaseId": id, "snapshotName": "before", "notes": "why"}));
    assert_eq!((&kept["notes"], &kept["databaseId"], &kept["counts"]["table"]), (&json!("why"), &json!(id), &json!(1)));
    assert_eq!(kept["checksum"], digest(&mut server, &id)["checksum"]);
    ok(&mut server, "delete_database", &json!({"databaseId": id, "wait": true}));

    let other = made(&mut server, &profile(), "second", "create table t (n int)");
    let diff = |server: &mut Stdio| {
        ok(server, "diff_schema_snapshot", &json!({"databaseId": other, "snapshotName": "before"}))
    };
    assert_eq!(diff(&mut server)["changed"], false);
    run(&mut server, &other, "alter table t alter n type bigint");
    let changed = diff(&mut server);
    assert_eq!(changed["changes"][0]["attributes"], json!([{"name": "type", "before": "integer", "after": "bigint"}]));
    let by_diff = ok(&mut server, "schema_diff", &json!({"databaseId": other, "snapshotName": "before"}));
    assert_eq!(by_diff["changes"], changed["changes"]);

    ok(&mut server, "create_schema_snapshot", &json!({"databaseId": other, "snapshotName": "after"}));
    let between =
        ok(&mut server, "diff_schema_snapshot", &json!({"snapshotName": "before", "otherSnapshotName": "after"}));
    assert_eq!(between["changes"], changed["changes"]);
    let listed = ok(&mut server, "list_schema_snapshots", &json!({}));
    let names: Vec<&Value> = listed["snapshots"].as_array().unwrap().iter().map(|s| &s["snapshotName"]).collect();
    assert_eq!(names, ["after", "before"]);
    let of_one = ok(&mut server, "list_schema_snapshots", &json!({"databaseId": other}));
    assert_eq!(of_one["snapshots"].as_array().unwrap().len(), 1);

    // Another process, later, finds them.
    assert!(server.finish().success());
    let mut server = Stdio::start(&home);
    ok(&mut server, "delete_schema_snapshot", &named("before"));
    refused(&mut server, "delete_schema_snapshot", &named("before"), "snapshot_not_found");
    refused(
        &mut server,
        "diff_schema_snapshot",
        &json!({"databaseId": other, "snapshotName": "before"}),
        "snapshot_not_found",
    );
}

#[test]
fn a_snapshot_is_not_replaced_and_its_name_is_one() {
    let home = home(&[cluster()], "names");
    let mut server = Stdio::start(&home);
    let id = made(&mut server, &profile(), "", "");
    let with = |name: &str| json!({"databaseId": id, "snapshotName": name});
    let long = "x".repeat(80);
    for good in ["a", ".", "..", "-", ".hidden", "A-b_c.9", &long] {
        ok(&mut server, "create_schema_snapshot", &with(good));
    }
    let too_long = "x".repeat(81);
    for bad in ["", "a b", "a/b", "../a", "é", "a\0", "a\n", &too_long] {
        refused(&mut server, "create_schema_snapshot", &with(bad), "invalid_artifact_name");
        refused(&mut server, "delete_schema_snapshot", &named(bad), "invalid_artifact_name");
    }
    let before = fs::read(snapshot_file(&home, "a")).unwrap();
    run(&mut server, &id, "create table t ()");
    let told =
        ok(&mut server, "explain_policy", &json!({"operation": "create_schema_snapshot", "arguments": with("a")}));
    let error = refused(&mut server, "create_schema_snapshot", &with("a"), "invalid_artifact_name");
    assert_eq!(told["refusal"], error);
    assert_eq!(fs::read(snapshot_file(&home, "a")).unwrap(), before);
    let notes = |bytes: usize| json!({"databaseId": id, "snapshotName": "noted", "notes": "n".repeat(bytes)});
    refused(&mut server, "create_schema_snapshot", &notes(1001), "invalid_arguments");
    ok(&mut server, "create_schema_snapshot", &notes(1000));
}

#[test]
fn what_is_kept_is_private_and_nobody_elses() {
    let home = home(&[cluster()], "private");
    let mut mine = Stdio::start(&home);
    let id = made(&mut mine, &profile(), "", "create table secret_plans (n int)");
    ok(&mut mine, "create_schema_snapshot", &json!({"databaseId": id, "snapshotName": "plans"}));
    let handle = digest(&mut mine, &id)["handle"].clone();
    for path in below(&home.state().join("schemas")) {
        let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode, if path.is_dir() { 0o700 } else { 0o600 }, "{}", path.display());
    }

    let mut other = Stdio::start_with(&home, &[("PGSANDBOX_OWNER", "mallory")], std::process::Stdio::inherit());
    let own = made(&mut other, &profile(), "", "");
    assert_eq!(ok(&mut other, "list_schema_snapshots", &json!({}))["snapshots"], json!([]));
    let missing = |server: &mut Stdio, name: &str| {
        let told = [
            refused(server, "delete_schema_snapshot", &named(name), "snapshot_not_found"),
            refused(
                server,
                "diff_schema_snapshot",
                &json!({"databaseId": own, "snapshotName": name}),
                "snapshot_not_found",
            ),
            refused(server, "schema_diff", &json!({"databaseId": own, "snapshotName": name}), "snapshot_not_found"),
        ];
        json!(told).to_string().replace(name, "NAME")
    };
    assert_eq!(missing(&mut other, "plans"), missing(&mut other, "nothing"), "one that is not one's own is not there");
    refused(&mut other, "schema_diff", &json!({"databaseId": own, "baseDigest": handle}), "invalid_base_digest");
    for (operation, more) in [
        ("describe_schema", json!({})),
        ("schema_digest", json!({})),
        ("schema_diff", json!({"baseDigest": handle})),
        ("create_schema_snapshot", json!({"snapshotName": "mine"})),
        ("diff_schema_snapshot", json!({"snapshotName": "plans"})),
    ] {
        let mut input = more;
        input["databaseId"] = json!(id);
        refused(&mut other, operation, &input, "database_not_found");
    }
    for ghost in [id.as_str(), "01890000-0000-7000-8000-000000000000"] {
        let input = json!({"databaseId": own, "otherDatabaseId": ghost});
        let error = refused(&mut other, "schema_diff", &input, "database_not_found");
        assert!(!error.to_string().contains("secret_plans"));
    }
    // The same name is free to the other.
    ok(&mut other, "create_schema_snapshot", &json!({"databaseId": own, "snapshotName": "plans"}));
    ok(&mut mine, "delete_schema_snapshot", &named("plans"));
    assert_eq!(ok(&mut other, "list_schema_snapshots", &json!({}))["snapshots"].as_array().unwrap().len(), 1);
}

#[test]
fn a_base_is_refused_unless_it_can_be_compared() {
    let home = home(&[cluster()], "bases");
    let mut server = Stdio::start(&home);
    let id = made(&mut server, &profile(), "", "create table a (); create table b ()");
    let base = ok(&mut server, "schema_digest", &json!({"databaseId": id}));
    let with = |base: &Value| json!({"databaseId": id, "baseDigest": base});
    let mut bare = base.clone();
    bare.as_object_mut().unwrap().remove("version");
    for bad in [&base["checksum"], &bare, &json!("{"), &json!(null), &json!("digest-000000000000000000000000")] {
        refused(&mut server, "schema_diff", &with(bad), "invalid_base_digest");
    }
    let mut old = base.clone();
    old["version"] = json!(0);
    refused(&mut server, "schema_diff", &with(&old), "schema_digest_version_mismatch");
    let both = json!({"databaseId": id, "baseDigest": base, "snapshotName": "x"});
    refused(&mut server, "schema_diff", &both, "invalid_arguments");
    refused(&mut server, "schema_diff", &json!({"databaseId": id}), "invalid_base_digest");
    let part = json!({"databaseId": id, "baseDigest": base, "table": "a"});
    refused(&mut server, "schema_diff", &part, "invalid_base_digest");

    // Where fingerprints were left out and the schema is not kept, that it is the same can be said, and where it differs not.
    let mut short = ok(&mut server, "schema_digest", &json!({"databaseId": id, "limit": 1}));
    assert_eq!(short["truncated"], true);
    short.as_object_mut().unwrap().remove("handle");
    assert_eq!(ok(&mut server, "schema_diff", &with(&short))["changed"], false);
    run(&mut server, &id, "drop table b");
    refused(&mut server, "schema_diff", &with(&short), "invalid_base_digest");
    // The whole reply, as an object and as text, is as good as its result.
    for given in
        [json!({"ok": true, "result": base}), json!(json!({"result": base}).to_string()), json!(base.to_string())]
    {
        let diff = ok(&mut server, "schema_diff", &with(&given));
        assert_eq!((&diff["counts"]["table"]["removed"], &diff["described"]), (&json!(1), &json!(true)), "{given}");
    }
}

#[test]
fn what_is_not_what_was_written_is_not_believed() {
    let home = home(&[cluster()], "damage");
    let mut server = Stdio::start(&home);
    let id = made(&mut server, &profile(), "", "create table t (n int)");
    for name in ["edited", "open", "old", "sound"] {
        ok(&mut server, "create_schema_snapshot", &json!({"databaseId": id, "snapshotName": name}));
    }
    let edit = |name: &str, from: &str, to: &str| {
        let file = snapshot_file(&home, name);
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(&file, text.replace(from, to)).unwrap();
    };
    edit("edited", "integer", "bigint");
    edit("old", "\"digest_version\":1", "\"digest_version\":0");
    fs::set_permissions(snapshot_file(&home, "open"), fs::Permissions::from_mode(0o644)).unwrap();
    let with = |name: &str| json!({"databaseId": id, "snapshotName": name});
    refused(&mut server, "diff_schema_snapshot", &with("edited"), "internal");
    refused(&mut server, "diff_schema_snapshot", &with("open"), "internal");
    refused(&mut server, "diff_schema_snapshot", &with("old"), "schema_digest_version_mismatch");
    refused(&mut server, "schema_diff", &with("old"), "schema_digest_version_mismatch");
    assert_eq!(ok(&mut server, "diff_schema_snapshot", &with("sound"))["changed"], false);
    let listed = ok(&mut server, "list_schema_snapshots", &json!({}));
    assert_eq!(listed["snapshots"].as_array().unwrap().len(), 3, "what cannot be read is passed over: {listed:#}");
    // It can be deleted.
    for name in ["edited", "open", "old"] {
        assert_eq!(server.call("delete_schema_snapshot", &named(name))["ok"], true, "{name}");
    }
}
