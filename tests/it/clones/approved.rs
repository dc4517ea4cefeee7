//! A source marked as production, by two users of one machine: for a reason, once, when the other has approved.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use super::{reader_url, source};
use crate::approvals::{User, account};
use crate::harness::{self, block_on};
use crate::hostile::code;
use crate::obligations::policies_with;
use crate::program::Home;

/// The guide's pieces for copies of production, for a server without TLS and a group that is here.
fn guide() -> String {
    let guide = include_str!("../../../docs/guides/bundled-policies.md");
    let section = guide.split_once("## Copies of production").unwrap().1;
    let pieces = section.split_once("```toml\n").unwrap().1.split_once("```").unwrap().0;
    let beside = ["ownership", "quota", "rate-limit", "statement-guard", "extensions", "host-command"];
    let beside: String = beside.iter().map(|name| format!("[[policy]]\nsource = \"{name}\"\n")).collect();
    format!("{beside}{}", pieces.replace("tls = \"verify-full\", ", "").replace("\"dba\"", "\"root\""))
}

/// Two users of this machine who share a profile, keys, policies and the source; none where nobody can be another.
fn two_users(prefix: &str, policies: &str, name: &str) -> Option<(Home, User, User)> {
    let agent = account("nobody").filter(|_| rustix::process::geteuid().is_root())?;
    let cluster = harness::cluster();
    let from = format!("{prefix}_source");
    source(cluster, &from, "", "CREATE TABLE t (v int); INSERT INTO t VALUES (7)");
    let database = format!("{prefix}_{}", std::process::id());
    block_on(async {
        let admin = cluster.superuser("postgres").await;
        admin.batch_execute(&format!("CREATE DATABASE {database}")).await.unwrap();
    });
    let home = Home::fresh();
    let dir = home.path().join("shared");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o1777)).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_pgsandbox"), dir.join("pgsandbox")).unwrap();
    fs::write(home.path().join("policies.toml"), policies).unwrap();
    // The keys are shared by a program that prints them.
    assert!(home.run(&["policy", "list"]).status.success());
    fs::copy(home.state().join("master.keys"), dir.join("keys")).unwrap();
    fs::set_permissions(dir.join("keys"), fs::Permissions::from_mode(0o644)).unwrap();
    let shared = json!({
        "profiles": [{"name": "team", "databasePrefix": prefix,
                      "adminUrl": cluster.superuser_url().replace("/postgres?", &format!("/{database}?"))}],
        "policies": home.path().join("policies.toml"),
        "keyCommand": ["/bin/cat", dir.join("keys")],
        "sources": [{"name": name, "production": true, "url": reader_url(cluster, &from)}],
    });
    let agent = User::new(Some(agent), "agent", &dir, &shared);
    let operator = User::new(None, "operator", &dir, &shared);
    Some((home, agent, operator))
}

/// Needs root, to be two users of this machine.
#[test]
fn copies_of_production_are_what_the_guide_says() {
    let Some((_home, agent, operator)) = two_users("guideprod", &guide(), "shop-eu") else { return };
    let id = |made: &Value| made["result"]["databaseId"].clone();
    let write = |id: &Value| {
        let reply = agent.call("run_sql", &json!({"databaseId": id, "sql": "insert into t values (8)"}));
        code(&reply).to_owned()
    };
    // The schema freely.
    let schema = agent.call("clone_database", &json!({"source": "shop-eu", "reason": "bug 17", "schemaOnly": true}));
    assert_eq!(code(&schema), "ok", "{schema:#}");
    assert_eq!(write(&id(&schema)), "ok");
    // Rows only when somebody approves, and then read-only, whatever labels the caller gives.
    let input = json!({"source": "shop-eu", "reason": "bug 17", "labels": {"task": "x"}});
    let asked = agent.call("clone_database", &input);
    assert_eq!(code(&asked), "approval_required", "{asked:#}");
    let digest = asked["detailHandles"][0].as_str().unwrap().strip_prefix("approval:").unwrap().to_owned();
    assert_eq!(code(&operator.call("approve", &json!({"requestDigest": digest}))), "ok");
    let made = agent.call("clone_database", &input);
    assert_eq!(code(&made), "ok", "{made:#}");
    assert_eq!(write(&id(&made)), "readonly_violation");
    let named = json!({"source": "shop-eu", "reason": "bug 17", "labels": {"data": "mine"}});
    assert_eq!(code(&agent.call("clone_database", &named)), "obligation_unmet");
    let credentials = json!({"databaseId": id(&made), "includeCredentials": true});
    assert_ne!(code(&agent.call("get_connection_string", &credentials)), "ok");
    // And so are copies of it.
    let renamed = json!({"databaseId": id(&made), "labels": {"data": "mine"}});
    assert_eq!(code(&agent.call("fork_database", &renamed)), "invalid_arguments");
    let fork = agent.call("fork_database", &json!({"databaseId": id(&made), "labels": {"more": "y"}}));
    assert_eq!(code(&fork), "ok", "{fork:#}");
    assert_eq!(write(&id(&fork)), "readonly_violation");
    let kept = json!({"databaseId": id(&made), "templateName": "shop"});
    assert_eq!(code(&agent.call("create_template_from_sandbox", &kept)), "ok");
    let renamed = json!({"templateName": "shop", "labels": {"data": "mine"}});
    assert_eq!(code(&agent.call("create_sandbox_from_template", &renamed)), "invalid_arguments");
    let again = agent.call("create_database", &json!({"templateName": "shop"}));
    assert_eq!(code(&again), "ok", "{again:#}");
    assert_eq!(write(&id(&again)), "readonly_violation");
    for made in [schema, made, fork, again] {
        assert_eq!(code(&agent.call("delete_database", &json!({"databaseId": id(&made), "wait": true}))), "ok");
    }
}

/// Needs root, to be two users of this machine.
#[test]
fn production_is_cloned_for_a_reason_once_and_when_another_has_approved() {
    let settings =
        "settings = { allow = [{ name = \"*\" }], production = { reason = true, approval_group = \"root\" } }\n";
    let policies = policies_with("clone-source", settings);
    let Some((_home, agent, operator)) = two_users("cloneprodtwo", &policies, "shop") else { return };

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

/// Needs root, to be two users of this machine.
#[test]
fn an_approval_is_not_spent_by_a_copy_that_fails_before_anything_is_made() {
    let settings =
        "settings = { allow = [{ name = \"*\" }], production = { reason = true, approval_group = \"root\" } }\n";
    let policies = policies_with("clone-source", settings);
    let Some((_home, agent, operator)) = two_users("cloneprodkept", &policies, "shop") else { return };
    let input = json!({"source": "shop", "reason": "bug 17", "excludeSourceExtensions": ["hstroe"]});
    let asked = agent.call("clone_database", &input);
    assert_eq!(code(&asked), "approval_required", "{asked:#}");
    let digest = asked["detailHandles"][0].as_str().unwrap().strip_prefix("approval:").unwrap().to_owned();
    assert_eq!(code(&operator.call("approve", &json!({"requestDigest": digest}))), "ok");
    for _ in 0..2 {
        let failed = agent.call("clone_database", &input);
        assert_eq!(code(&failed), "invalid_extensions", "{failed:#}");
    }
}
