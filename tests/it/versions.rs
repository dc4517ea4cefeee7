//! Managed clusters of several majors side by side through one server, and what is told of those that are not there.

use std::fs;

use serde_json::{Value, json};

use crate::hostile::code;
use crate::program::{Home, Stdio, Transport};

/// A state directory with a profile for each of two majors, and the majors; none where only one is there to test with.
fn two_majors() -> Option<(Home, [String; 2])> {
    let eighteen = std::env::var("PGSANDBOX_TEST_POSTGRES_18_BIN_DIR").ok()?;
    let own = crate::harness::installation();
    let home = Home::fresh();
    let profile = |name: &str, major: u16| json!({"name": name, "managedLocal": true, "postgresVersion": major});
    let config = json!({"defaultProfile": "own", "profiles": [profile("own", own.major), profile("later", 18)]});
    let file = home.path().join("config.json");
    fs::write(&file, config.to_string()).unwrap();
    let home = home
        .with("PGSANDBOX_CONFIG", file.to_str().unwrap())
        .with("PGSANDBOX_POSTGRES_18_BIN_DIR", &eighteen)
        .with(&format!("PGSANDBOX_POSTGRES_{}_BIN_DIR", own.major), own.bin_dir.to_str().unwrap());
    (own.major != 18).then(|| (home, [own.major.to_string(), "18".to_owned()]))
}

fn ok(stdio: &mut Stdio, operation: &str, input: &Value) -> Value {
    let reply = stdio.call(operation, input);
    assert_eq!(code(&reply), "ok", "{operation} {input}: {reply:#}");
    reply["result"].clone()
}

fn fails(stdio: &mut Stdio, operation: &str, input: &Value, expected: &str) -> Value {
    let reply = stdio.call(operation, input);
    assert_eq!(code(&reply), expected, "{operation} {input}: {reply:#}");
    reply["errors"][0].clone()
}

fn states(result: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    result["servers"].as_array().unwrap().iter().map(|s| (text(&s["profile"]), text(&s["state"]))).collect()
}

fn of(pairs: [(&str, &str); 2]) -> Vec<(String, String)> {
    pairs.map(|(a, b)| (a.to_owned(), b.to_owned())).to_vec()
}

#[test]
fn the_first_cluster_stays_the_default_one_and_every_cluster_of_the_directory_is_known_without_its_configuration() {
    let Some((home, [own, _])) = two_majors() else { return };
    for profile in ["own", "later"] {
        assert!(home.run(&["local", "start", "--profile", profile]).status.success());
    }
    let mut it = Stdio::start(&home);
    let made = ok(&mut it, "create_database", &json!({"profile": "own", "nameHint": "first"}));
    it.finish();
    // As another shell or cron would: without the configuration, and then without the programs of 18 as well.
    let run = |words: &[&str], without: &[&str]| {
        let mut command = home.command(&[words, &["--format", "json"]].concat());
        without.iter().for_each(|name| _ = command.env_remove(name));
        let output = command.output().unwrap();
        let reply: Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.success(), reply)
    };
    let bare = ["PGSANDBOX_CONFIG"];
    let (_, listed) = run(&["list-databases"], &bare);
    assert_eq!(listed["result"]["databases"][0]["databaseId"], made["databaseId"], "{listed:#}");
    let (_, stands) = run(&["local", "status"], &bare);
    let clusters = |of: &Value| -> Vec<(String, bool)> {
        let of = of["clusters"].as_array().unwrap();
        of.iter().map(|one| (one["postgresVersion"].as_str().unwrap().to_owned(), one["running"] == true)).collect()
    };
    assert_eq!(clusters(&stands), [(own.clone(), true), ("18".to_owned(), true)], "{stands:#}");
    assert_eq!(
        (stands["clusters"][0]["profile"].as_str(), stands["clusters"][1]["profile"].as_str()),
        (Some("local"), None)
    );
    let (_, looked) = run(&["doctor"], &bare);
    let checks = looked["result"]["checks"].as_array().unwrap();
    let told = checks.iter().find(|check| check["name"] == "postgres.clusters").unwrap();
    assert!(told["status"] == "warn" && told["detail"].to_string().contains("Postgres 18"), "{told:#}");
    let blind = ["PGSANDBOX_CONFIG", "PGSANDBOX_POSTGRES_18_BIN_DIR"];
    let (stopped, reply) = run(&["local", "stop"], &blind);
    assert!(stopped, "{reply:#}");
    assert_eq!(clusters(&reply), [(own, false), ("18".to_owned(), false)], "{reply:#}");
    let (_, stands) = run(&["local", "status"], &bare);
    assert!(clusters(&stands).iter().all(|(_, running)| !running), "{stands:#}");
    // What is missing is named with the way to it.
    let (_, looked) = run(&["doctor"], &["PGSANDBOX_POSTGRES_18_BIN_DIR"]);
    let remedies = looked["result"]["checks"].to_string();
    assert!(remedies.contains("PGSANDBOX_POSTGRES_18_BIN_DIR") && remedies.contains("--install-missing"), "{remedies}");
}

#[test]
fn clusters_of_two_majors_run_side_by_side_and_calls_move_between_them() {
    let Some((home, [own, later])) = two_majors() else { return };
    let mut it = Stdio::start(&home);
    let listed = ok(&mut it, "list_profiles", &json!({}));
    assert_eq!(listed["profiles"].as_array().unwrap().len(), 2, "{listed:#}");

    // Only the one that is asked for is started; a version with a patch level is its major.
    let ensured = ok(&mut it, "ensure_postgres", &json!({"postgresVersion": "18.1"}));
    assert_eq!((&ensured["resolvedProfile"], &ensured["resolvedPostgresVersion"]), (&json!("later"), &json!("18")));
    assert_eq!(ensured["started"], true, "{ensured:#}");
    assert_eq!(states(&ensured), of([("own", "not-made"), ("later", "running")]));
    assert!(ensured["installedVersions"].as_array().unwrap().len() >= 2, "{ensured:#}");
    let again = ok(&mut it, "ensure_postgres", &json!({"profile": "later"}));
    assert_eq!(again["started"], false, "{again:#}");
    let ensured = ok(&mut it, "ensure_postgres", &json!({}));
    assert_eq!(
        (&ensured["resolvedProfile"], states(&ensured)),
        (&json!("own"), of([("own", "running"), ("later", "running")]))
    );

    let make = |it: &mut Stdio, version: &str| {
        let made = ok(it, "create_database", &json!({"postgresVersion": version, "nameHint": "side"}));
        assert_eq!(made["resolvedPostgresVersion"], version, "{made:#}");
        (made["databaseId"].as_str().unwrap().to_owned(), made["databaseName"].as_str().unwrap().to_owned())
    };
    let (on_own, name) = make(&mut it, &own);
    let (on_later, _) = make(&mut it, &later);
    let server = |it: &mut Stdio, input: Value| {
        let mut input = input;
        input["sql"] = json!("select current_setting('server_version_num')::int / 10000");
        ok(it, "run_sql", &input)["resultSets"][0]["rows"][0][0].to_string()
    };
    for _ in 0..2 {
        assert_eq!(server(&mut it, json!({"databaseId": on_own})), own);
        assert_eq!(server(&mut it, json!({"databaseId": on_later})), later);
        assert_eq!(server(&mut it, json!({"databaseName": name, "postgresVersion": format!("{own}.3")})), own);
        assert_eq!(server(&mut it, json!({"databaseId": on_later, "profile": "later"})), later);
    }
    // An explicit selector is never overridden by what could be inferred.
    fails(
        &mut it,
        "run_sql",
        &json!({"databaseId": on_own, "profile": "later", "sql": "select 1"}),
        "database_not_found",
    );
    fails(
        &mut it,
        "run_sql",
        &json!({"databaseId": on_own, "postgresVersion": later, "sql": "select 1"}),
        "database_not_found",
    );
    let listed = ok(&mut it, "list_databases", &json!({"postgresVersion": later}));
    assert_eq!(listed["databases"].as_array().unwrap().len(), 1, "{listed:#}");
    let listed = ok(&mut it, "list_databases", &json!({"postgresVersion": "*"}));
    assert_eq!(listed["databases"].as_array().unwrap().len(), 2, "{listed:#}");
    assert!(it.finish().success());
    the_operator_stops_one_or_all(&home);
}

fn the_operator_stops_one_or_all(home: &Home) {
    let local = |words: &[&str]| {
        let output = home.run(&[&["local"], words, &["--format", "json"]].concat());
        (output.status.code(), serde_json::from_slice::<Value>(&output.stdout).unwrap())
    };
    let running = |told: &Value| -> Vec<(String, bool)> {
        let clusters = told["clusters"].as_array().unwrap().iter();
        clusters.map(|one| (one["profile"].as_str().unwrap().to_owned(), one["running"].as_bool().unwrap())).collect()
    };
    let both = |own: bool, later: bool| vec![("own".to_owned(), own), ("later".to_owned(), later)];
    let (status, told) = local(&["status"]);
    assert_eq!((status, running(&told)), (Some(0), both(true, true)), "{told:#}");
    let (status, told) = local(&["stop", "--profile", "later"]);
    assert_eq!((status, running(&told)), (Some(0), vec![("later".to_owned(), false)]), "{told:#}");
    let (status, told) = local(&["status"]);
    assert_eq!((status, running(&told)), (Some(3), both(true, false)), "{told:#}");
    let (status, told) = local(&["start"]);
    assert_eq!((status, running(&told)), (Some(0), both(true, true)), "{told:#}");
    let (status, told) = local(&["stop"]);
    assert_eq!((status, running(&told)), (Some(0), both(false, false)), "{told:#}");
    let (status, told) = local(&["stop", "--profile", "nonsense"]);
    assert_eq!((status, &told["errors"][0]["allowed"]), (Some(1), &json!(["own", "later"])), "{told:#}");
}

#[test]
fn a_version_that_is_not_there_is_named_and_nothing_is_started_or_installed_for_it() {
    let Some((home, [own, _])) = two_majors() else { return };
    let mut it = Stdio::start(&home);
    for operation in ["ensure_postgres", "create_database", "list_databases"] {
        for missing in ["9", "9.6", "14", "99999"] {
            let error = fails(&mut it, operation, &json!({"postgresVersion": missing}), "postgres_version_unavailable");
            let major = missing.split('.').next().unwrap();
            assert_eq!(
                (&error["requestedVersion"], &error["allowed"]),
                (&json!(major), &json!([own, "18"])),
                "{error:#}"
            );
        }
        let error = fails(&mut it, operation, &json!({"profile": "own", "postgresVersion": "18"}), "version_mismatch");
        assert_eq!(
            (&error["requestedVersion"], &error["resolvedProfile"], &error["resolvedPostgresVersion"]),
            (&json!("18"), &json!("own"), &json!(own)),
            "{operation}: {error:#}"
        );
        fails(&mut it, operation, &json!({"profile": "nobody"}), "unknown_profile");
        for bad in ["", "x", "18x", "-18", "18;drop"] {
            fails(&mut it, operation, &json!({"postgresVersion": bad}), "invalid_arguments");
        }
    }
    // To install is a command on this host, which no policy allows unless an operator says so.
    for version in ["14", "18", "99999"] {
        let input = json!({"postgresVersion": version, "installMissing": true});
        let error = fails(&mut it, "ensure_postgres", &input, "denied");
        assert_eq!(error["policyCode"], "command_not_allowed", "{error:#}");
    }
    let told = json!({"operation": "ensure_postgres", "arguments": {"postgresVersion": "14"}});
    let told = ok(&mut it, "explain_policy", &told);
    assert_eq!(told["refusal"]["code"], "postgres_version_unavailable", "{told:#}");
    let clusters = home.state().join("postgres");
    assert!(!clusters.exists() || fs::read_dir(&clusters).unwrap().next().is_none(), "a cluster was made");
    assert!(it.finish().success());
}

#[test]
fn a_managed_profile_whose_server_is_not_installed_says_what_to_do() {
    let home = Home::fresh();
    let file = home.path().join("config.json");
    let profile = json!({"name": "old", "managedLocal": true, "postgresVersion": 13});
    fs::write(&file, json!({"profiles": [profile]}).to_string()).unwrap();
    let home = home.with("PGSANDBOX_CONFIG", file.to_str().unwrap());
    let mut it = Stdio::start(&home);
    for input in [json!({}), json!({"postgresVersion": "13"}), json!({"profile": "old"})] {
        let reply = it.call("ensure_postgres", &input);
        if reply["ok"] == true {
            // This machine has it.
            return;
        }
        assert_eq!(code(&reply), "postgres_version_unavailable", "{reply:#}");
        assert!(reply["errors"][0]["hint"].as_str().unwrap().contains("installMissing"), "{reply:#}");
    }
}
