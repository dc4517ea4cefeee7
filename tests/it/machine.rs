//! What is told of servers and collectors: which versions there are, which two addresses are one, what cannot be reached.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use pgsandbox::engine::postgres::{BinarySettings, discover};
use pgsandbox::model::Mode;
use serde_json::{Value, json};

use crate::harness;
use crate::hostile::{Session, code};
use crate::obligations::{home_with_policy_file, policies_with, write_policies};
use crate::policies::guest::Guest;
use crate::program::{Cli, Home, Stdio, Transport};

/// A home with a configuration file.
fn configured(config: &Value) -> Home {
    let home = Home::fresh();
    let file = home.path().join("config.json");
    fs::write(&file, config.to_string()).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let path = file.to_str().unwrap().to_owned();
    home.with("PGSANDBOX_CONFIG", &path)
}

fn check_of(reply: &Value, name: &str) -> Value {
    let checks = reply["result"]["checks"].as_array().unwrap();
    checks.iter().find(|check| check["name"] == name).cloned().unwrap_or(Value::Null)
}

#[test]
fn versions_are_those_that_are_installed_and_none_is_made_to_find_out() {
    let installed = harness::block_on(discover(&BinarySettings::default()));
    let newest = installed[0].major;
    let majors: Vec<String> = installed.iter().map(|found| found.major.to_string()).collect();
    let home = Home::fresh();
    let mut cli = Cli::new(&home);
    let told = cli.call("list_profiles", &json!({}))["result"].clone();
    assert_eq!(told["availablePostgresVersions"], json!([newest.to_string()]), "{told:#}");
    assert_eq!(told["installedPostgresVersions"], json!(majors), "{told:#}");
    assert_eq!(told["profiles"][0]["postgresVersion"], newest.to_string(), "{told:#}");
    let told = cli.call("list_profiles", &json!({"includeDiscoveredLocal": false}))["result"].clone();
    assert_eq!(told.get("installedPostgresVersions"), None, "{told:#}");

    // Another version is refused before a cluster of this one is made.
    for named in [json!({}), json!({"profile": "local"})] {
        let mut input = json!({"postgresVersion": (newest + 1).to_string()});
        input.as_object_mut().unwrap().extend(named.as_object().unwrap().clone());
        let refused = cli.call("create_database", &input);
        let expected = if named == json!({}) { "postgres_version_unavailable" } else { "version_mismatch" };
        assert_eq!(code(&refused), expected, "{refused:#}");
        assert_eq!(refused["errors"][0]["requestedVersion"], (newest + 1).to_string());
    }
    assert!(!home.state().join("postgres").join(newest.to_string()).exists(), "nothing was made");
    let made = cli.call("create_database", &json!({"postgresVersion": format!("{newest}.1")}));
    assert_eq!(made["result"]["resolvedPostgresVersion"], newest.to_string(), "{made:#}");
}

#[test]
fn a_version_that_is_missing_is_told_beside_those_that_are_there() {
    let installed = harness::block_on(discover(&BinarySettings::default()));
    let missing = installed.iter().map(|found| found.major).max().unwrap() + 1;
    let home = Home::fresh().with("PGSANDBOX_POSTGRES_VERSION", &missing.to_string());
    let told = Cli::new(&home).call("list_profiles", &json!({}))["result"].clone();
    assert_eq!(told["availablePostgresVersions"], json!([]), "{told:#}");
    let output = home.run(&["quickstart"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let there = format!("{} in `{}`", installed[0].version, installed[0].bin_dir.display());
    let wanted = format!("PostgreSQL {missing}");
    for piece in [wanted.as_str(), &there, "[local_postgres_unavailable]", "--yes"] {
        assert!(said.contains(piece), "{piece} is missing: {said}");
    }
}

#[test]
fn two_addresses_of_one_server_are_found_by_doctor() {
    let cluster = harness::cluster();
    let here = cluster.superuser_url();
    let there = here.replace("127.0.0.1", "localhost");
    assert_ne!(here, there);
    let config = |second: Value| {
        let mut second = second;
        second["name"] = json!("second");
        json!({"defaultProfile": "first", "profiles": [{"name": "first", "adminUrl": here, "databasePrefix": "twins"}, second]})
    };
    let doctor = |second: Value| Cli::new(&configured(&config(second))).call("doctor", &json!({}));
    let found = check_of(&doctor(json!({"adminUrl": there, "databasePrefix": "twins"})), "second: profiles.distinct");
    assert_eq!(found["status"], "warn", "{found:#}");
    assert!(found["detail"].as_str().unwrap().contains("that of profile `first`"), "{found:#}");
    // Less rights make no difference.
    let limited = cluster.limited_url();
    let found = check_of(&doctor(json!({"adminUrl": limited, "databasePrefix": "twins"})), "second: profiles.distinct");
    assert_eq!(found["status"], "warn", "{found:#}");
    let apart = doctor(json!({"adminUrl": there, "databasePrefix": "others"}));
    assert_eq!(check_of(&apart, "second: profiles.distinct"), Value::Null, "{apart:#}");

    // One address and one prefix are refused at once.
    let home = configured(&config(json!({"adminUrl": here, "databasePrefix": "twins"})));
    let output = home.run(&["list-databases", "--format", "json"]);
    let reply: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), code(&reply)), (Some(2), "invalid_configuration"));
    let message = reply["errors"][0]["message"].as_str().unwrap();
    assert!(message.contains("profile `second` one with profile `first`"), "{message}");
    // What it is ended with has to load.
    let alone = json!({"profiles": [{"name": "first", "adminUrl": here}]});
    fs::write(home.path().join("config.json"), alone.to_string()).unwrap();
}

#[test]
fn a_collector_that_is_not_there_is_found_by_doctor_and_named_by_its_protocol() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let endpoint = format!("http://{free}");
    let config = json!({
        "profiles": [{"name": "local", "managedLocal": true}],
        "telemetry": {"enabled": true, "endpoint": endpoint, "protocol": "grpc", "headersFromEnv": {"x-key": "COLLECTOR_KEY"}},
    });
    let home = configured(&config).with("COLLECTOR_KEY", "hunter2");
    let output = home.run(&["doctor", "--format", "json"]);
    let reply: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(code(&reply), "ok", "{reply:#}");
    let found = check_of(&reply, "telemetry.collector");
    assert_eq!(found["status"], "warn", "{reply:#}");
    let detail = found["detail"].as_str().unwrap();
    assert!(detail.contains(&format!("`{endpoint}` by grpc: ")) && detail.contains("refused"), "{detail}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("the collector does not take spans") && said.contains("grpc"), "{said}");
    assert!(!said.contains("HTTP") && !said.contains("hunter2") && !reply.to_string().contains("hunter2"), "{said}");
}

#[test]
fn a_reader_that_row_security_stops_is_told_what_to_do() {
    let cluster = harness::cluster();
    let config = json!({"profiles": [{"name": "a", "adminUrl": cluster.limited_url(), "databasePrefix": "guarded"}]});
    let home = configured(&config);
    let mut cli = Cli::new(&home);
    let id = cli.call("create_database", &json!({}))["result"]["databaseId"].clone();
    let sql = "create table t (n int); alter table t enable row level security";
    assert_eq!(code(&cli.call("run_sql", &json!({"databaseId": id, "sql": sql}))), "ok");
    let read = cli.call("run_sql", &json!({"databaseId": id, "sql": "select * from t", "readonly": true}));
    assert_eq!(code(&read), "permission_denied", "{read:#}");
    let hint = read["errors"][0]["hint"].as_str().unwrap_or_default();
    assert!(hint.contains("row security") && hint.contains("call without `readonly`"), "{read:#}");
    cli.call("delete_database", &json!({"databaseId": id, "wait": true}));
}

#[test]
fn a_refused_extension_names_one_list_of_what_would_be_accepted() {
    let cluster = harness::cluster();
    let allowed = json!(["citext", "hstore", "pg_trgm", "pg_buffercache", "not_there"]);
    let policies = "[[policy]]\nsource = \"extensions\"\nsettings = { allow = [\"citext\", \"hstore\", \"not_there\", \"other\"] }\n\
                    [[policy]]\nsource = \"quota\"\n[[policy]]\nsource = \"readonly\"\n[[policy]]\nsource = \"ownership\"\n\
                    [[policy]]\nsource = \"statement-guard\"\n[[policy]]\nsource = \"clone-source\"\n";
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), policies).unwrap();
    let home = configured(&json!({"policies": file.path(), "profiles": [
        {"name": "a", "adminUrl": cluster.superuser_url(), "databasePrefix": "exts", "allowedExtensions": allowed}]}));
    let mut cli = Cli::new(&home);
    let id = cli.call("create_database", &json!({}))["result"]["databaseId"].clone();
    assert!(id.is_string(), "the profile is open");
    let mut check = |operation: &str, input: &Value, expected: &str| {
        let reply = cli.call(operation, input);
        let error = if reply["ok"] == true { &reply["result"]["statementFailures"][0] } else { &reply["errors"][0] };
        assert_eq!(error["code"], expected, "{reply:#}");
        // Every one of them is accepted, and the message has no list of its own.
        assert_eq!(error["allowed"], json!(["citext", "hstore"]), "{reply:#}");
        let message = error["message"].as_str().unwrap();
        assert!(!message.contains("citext") && !message.contains("allowed are"), "{message}");
    };
    for (name, expected) in [
        ("pg_trgm", "extension_not_allowed"),
        ("plperl", "extension_not_allowed"),
        ("not_there", "extension_setup_required"),
    ] {
        check("create_database", &json!({"extensions": [name]}), expected);
        let sql = format!("create extension {name}");
        for go_on in [false, true] {
            check("run_sql", &json!({"databaseId": id, "sql": sql, "continueOnError": go_on}), expected);
        }
    }
    cli.call("delete_database", &json!({"databaseId": id, "wait": true}));
}

#[test]
fn what_a_policy_keeps_from_new_sandboxes_no_statement_installs() {
    let home = home_with_policy_file();
    let file = home.path().join("policies.toml");
    fs::write(&file, policies_with("extensions", "settings = { allow = [\"citext\"] }\n")).unwrap();
    let mut it = Session::start(&home);
    let (on, off) = (json!({"continueOnError": true}), json!({}));
    let held =
        |it: &mut Session| it.sql("select string_agg(extname, ',' order by extname) from pg_extension", json!({}));
    for sql in [
        "create extension hstore",
        "create table before (a int); create extension if not exists \"hstore\" schema public",
    ] {
        let input = json!({"databaseId": it.id, "sql": sql});
        let told = it.stdio.call("explain_policy", &json!({"operation": "run_sql", "arguments": input}));
        let reply = it.sql(sql, off.clone());
        let error = &reply["errors"][0];
        let seen = (code(&reply), &error["policy"], &error["allowed"]);
        assert_eq!(seen, ("extension_not_allowed", &json!("extensions"), &json!(["citext"])), "{reply:#}");
        assert_eq!(&told["result"]["refusal"]["code"], &error["code"], "{told:#}");
    }
    let reply = it.sql("create extension hstore; create extension citext; create extension if not exists plpgsql", on);
    let failures = &reply["result"]["statementFailures"];
    assert_eq!((&failures[0]["policy"], &failures[1]), (&json!("extensions"), &Value::Null), "{reply:#}");
    assert_eq!(held(&mut it)["result"]["resultSets"][0]["rows"], json!([["citext,plpgsql"]]), "{reply:#}");
    let listed = it.stdio.call("list_extensions", &json!({}));
    assert_eq!(listed["result"]["availableExtensions"].as_array().unwrap().len(), 1, "{listed:#}");
    assert!(it.stdio.finish().success());

    // One that cannot be asked lets nothing through, whatever the others say.
    let mut broken = Guest::from_file("trap");
    (broken.covers, broken.concerns) = (vec!["create_database".to_owned()], Vec::new());
    write_policies(&home, &[("broken", broken.component(), Mode::Enforce)]);
    let mut it = Session { stdio: Stdio::start(&home), id: it.id };
    let reply = it.sql("create extension hstore", off);
    assert_eq!((code(&reply), &reply["errors"][0]["policy"]), ("policy_trapped", &json!("broken")), "{reply:#}");
    assert_eq!(held(&mut it)["result"]["resultSets"][0]["rows"], json!([["citext,plpgsql"]]));
}
