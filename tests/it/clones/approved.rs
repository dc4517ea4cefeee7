//! A source marked as production, by two users of one machine: for a reason, once, when the other has approved.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use super::{reader_url, source};
use crate::approvals::{User, account};
use crate::harness::{self, block_on};
use crate::hostile::code;
use crate::obligations::policies_with;
use crate::program::Home;

/// Needs root, to be two users of this machine.
#[test]
fn production_is_cloned_for_a_reason_once_and_when_another_has_approved() {
    let Some(agent) = account("nobody").filter(|_| rustix::process::geteuid().is_root()) else { return };
    let cluster = harness::cluster();
    source(cluster, "production_source", "", "CREATE TABLE t (v int); INSERT INTO t VALUES (7)");
    let database = format!("approved_clones_{}", std::process::id());
    block_on(async {
        let admin = cluster.superuser("postgres").await;
        admin.batch_execute(&format!("CREATE DATABASE {database}")).await.unwrap();
    });
    let home = Home::fresh();
    let dir = home.path().join("shared");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_pgsandbox"), dir.join("pgsandbox")).unwrap();
    let settings =
        "settings = { allow = [{ name = \"*\" }], production = { reason = true, approval_group = \"root\" } }\n";
    fs::write(home.path().join("policies.toml"), policies_with("clone-source", settings)).unwrap();
    // The keys are shared by a program that prints them.
    assert!(home.run(&["policy", "list"]).status.success());
    fs::copy(home.state().join("master.keys"), dir.join("keys")).unwrap();
    fs::set_permissions(dir.join("keys"), fs::Permissions::from_mode(0o644)).unwrap();
    let shared = json!({
        "profiles": [{"name": "team", "databasePrefix": "cloneprodtwo",
                      "adminUrl": cluster.superuser_url().replace("/postgres?", &format!("/{database}?"))}],
        "policies": home.path().join("policies.toml"),
        "keyCommand": ["/bin/cat", dir.join("keys")],
        "sources": [{"name": "shop", "production": true, "url": reader_url(cluster, "production_source")}],
    });
    let agent = User::new(Some(agent), "agent", &dir, &shared);
    let operator = User::new(None, "operator", &dir, &shared);

    let bare = agent.call("clone_database", &json!({"source": "shop"}));
    assert!(bare["errors"][0]["message"].as_str().unwrap().contains("reason"), "{bare:#}");
    assert_ne!(code(&bare), "approval_required", "nobody is asked for what would be refused: {bare:#}");
    let input = json!({"source": "shop", "reason": "bug 17", "ttlMinutes": 5});
    let asked = agent.call("clone_database", &input);
    assert_eq!(code(&asked), "approval_required", "{asked:#}");
    let digest = asked["detailHandles"][0].as_str().unwrap().strip_prefix("approval:").unwrap().to_owned();
    let approve = json!({"requestDigest": digest});
    assert_eq!(code(&agent.call("approve", &approve)), "denied", "whoever asks does not approve");
    assert_eq!(code(&agent.call("clone_database", &input)), "approval_required");

    let listed = operator.call("list_approvals", &json!({}));
    let shown = listed["result"]["requests"].to_string();
    assert!(shown.contains("bug 17") && shown.contains("shop") && !shown.contains("s3cret"), "{listed:#}");
    assert_eq!(code(&operator.call("approve", &approve)), "ok");
    for other in [
        json!({"source": "shop", "reason": "bug 18", "ttlMinutes": 5}),
        json!({"source": "shop", "reason": "bug 17", "ttlMinutes": 6}),
        json!({"source": "shop", "reason": "bug 17", "ttlMinutes": 5, "schemaOnly": true}),
    ] {
        assert_eq!(code(&agent.call("clone_database", &other)), "approval_required", "{other}");
    }
    // The same of another caller is another request.
    assert_eq!(code(&operator.call("clone_database", &input)), "approval_required");
    let made = agent.call("clone_database", &input);
    assert_eq!((code(&made), &made["result"]["verification"]["rows"]), ("ok", &json!(1)), "{made:#}");
    assert_eq!(code(&agent.call("clone_database", &input)), "approval_required", "used twice");
    let of = json!({"databaseId": made["result"]["databaseId"], "wait": true});
    assert_eq!(code(&agent.call("delete_database", &of)), "ok");
}
