//! A source whose variable is not set: told and refused, and nothing else is.

use std::fs;

use serde_json::{Value, json};

use super::{Setup, reader_url, source};
use crate::harness;
use crate::hostile::code;
use crate::program::{Cli, Stdio, Transport};

/// Adds a source to the configuration.
fn with_source(setup: &Setup, added: Value) {
    let path = setup.home.path().join("config.json");
    let mut config: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    config["sources"].as_array_mut().unwrap().push(added);
    fs::write(&path, config.to_string()).unwrap();
}

#[test]
fn a_source_whose_variable_is_not_set_is_refused_and_told_and_the_others_are_cloned() {
    let cluster = harness::cluster();
    source(cluster, "unsetshop", "", "CREATE TABLE t (v int)");
    let url = reader_url(cluster, "unsetshop");
    let setup = Setup::on(cluster, "cloneunset", &[("shop", url.clone(), json!({}))]);
    with_source(&setup, json!({"name": "later", "urlFromEnv": "UNSET_URL"}));
    let why = "`sources[1].urlFromEnv` names `UNSET_URL`, which is not set";
    setup.refused(json!({"source": "later"}), "invalid_configuration", why);
    let mut stdio = Stdio::start(&setup.home);
    let listed = stdio.call("list_profiles", &json!({}));
    assert!(listed["result"]["hints"].to_string().contains(why), "{listed:#}");
    let found = stdio.call("doctor", &json!({}));
    let checks = found["result"]["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["name"] == "sources.later").unwrap_or_else(|| panic!("{found:#}"));
    assert_eq!((&check["status"], &check["detail"]), (&json!("fail"), &json!(why)));
    let told = json!({"operation": "clone_database", "arguments": {"source": "later"}});
    let told = stdio.call("explain_policy", &told);
    assert!(told.to_string().contains("UNSET_URL"), "{told:#}");
    assert!(stdio.finish().success());
    setup.cloned(json!({"source": "shop"}));

    // Set, it is one like the others.
    let home = &setup.home;
    let mut command = home.command(&["clone-database", "--source", "later", "--format", "json"]);
    let output = command.env("UNSET_URL", &url).output().unwrap();
    let reply: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(code(&reply), "ok", "{reply:#}");
    Cli::new(home).call("delete_database", &json!({"databaseId": reply["result"]["databaseId"], "wait": true}));
}

#[test]
fn while_a_production_source_is_not_known_no_url_is_taken() {
    let cluster = harness::cluster();
    source(cluster, "unsetprod", "", "CREATE TABLE t (v int)");
    let url = reader_url(cluster, "unsetprod");
    let setup = Setup::on(cluster, "cloneunsetprod", &[("shop", url.clone(), json!({}))]);
    with_source(&setup, json!({"name": "live", "urlFromEnv": "UNSET_URL", "production": true}));
    let asked = json!({"sourceDatabaseUrl": url});
    setup.refused(asked, "invalid_configuration", "leads to the production source `live`");
    setup.cloned(json!({"source": "shop"}));
}
