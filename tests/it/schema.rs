//! Schemas through the real program: every kind of change is seen and described, and nothing that is none.

mod bounds;
mod kept;
mod kinds;
mod same;
mod sessions;

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use super::crash::{code, sql};
use super::harness::Cluster;
use super::program::{Home, Stdio, Transport};

/// A home whose profiles are on these clusters, each named `on<major>`.
pub(crate) fn home(clusters: &[&Cluster], prefix: &str) -> Home {
    let home = Home::fresh();
    let profiles: Vec<Value> = clusters
        .iter()
        .map(|cluster| {
            let name = format!("on{}", cluster.major);
            json!({"name": name, "adminUrl": cluster.superuser_url(), "databasePrefix": prefix,
                "allowedExtensions": ["hstore"]})
        })
        .collect();
    let config = home.path().join("config.json");
    let default = profiles[0]["name"].clone();
    fs::write(&config, json!({"defaultProfile": default, "profiles": profiles}).to_string()).unwrap();
    fs::set_permissions(&config, fs::Permissions::from_mode(0o600)).unwrap();
    let path = config.to_str().unwrap().to_owned();
    home.with("PGSANDBOX_CONFIG", &path)
}

/// Makes a sandbox on a profile, with this in it.
pub(crate) fn made(server: &mut Stdio, profile: &str, hint: &str, text: &str) -> String {
    let made = server.call("create_database", &json!({"profile": profile, "nameHint": hint}));
    assert_eq!(made["ok"], true, "{made:#}");
    let id = made["result"]["databaseId"].as_str().unwrap().to_owned();
    run(server, &id, text);
    id
}

/// Runs statements that must succeed.
pub(crate) fn run(server: &mut Stdio, id: &str, text: &str) {
    if !text.is_empty() {
        let done = sql(server, id, text);
        assert_eq!(done["ok"], true, "{text}\n{done:#}");
    }
}

/// Calls what must succeed, and returns its result.
pub(crate) fn ok(server: &mut Stdio, operation: &str, input: &Value) -> Value {
    let reply = server.call(operation, input);
    assert_eq!(reply["ok"], true, "{operation} {input}: {reply:#}");
    reply["result"].clone()
}

/// Calls what must be refused with a code.
pub(crate) fn refused(server: &mut Stdio, operation: &str, input: &Value, expected: &str) -> Value {
    let reply = server.call(operation, input);
    assert_eq!(code(&reply), expected, "{operation} {input}: {reply:#}");
    reply["errors"][0].clone()
}

pub(crate) fn digest(server: &mut Stdio, id: &str) -> Value {
    ok(server, "schema_digest", &json!({"databaseId": id}))
}

pub(crate) fn checksum(server: &mut Stdio, id: &str) -> String {
    digest(server, id)["checksum"].as_str().unwrap().to_owned()
}
