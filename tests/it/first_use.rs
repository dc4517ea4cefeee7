//! Setting the program up and using it for the first time: what is wrong is named, with what to do about it.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use pgsandbox::engine::postgres::{
    PostgresEngine, PostgresServer, PostgresSettings, PostgresUrl, ServerSource, UrlOrigin,
};
use pgsandbox::engine::{Engine, EngineError};
use pgsandbox::model::{CheckStatus, Code};
use serde_json::{Value, json};

use crate::harness::{self, PASSWORD};
use crate::hostile::code;
use crate::program::{Cli, Home, Stdio, Transport};

/// A home with external profiles, each a name, an admin URL and further settings.
fn home(profiles: &[(&str, &str, Value)]) -> Home {
    let home = Home::fresh();
    let profiles: Vec<Value> = profiles
        .iter()
        .map(|(name, url, more)| {
            let mut profile = json!({"name": name, "adminUrl": url});
            profile.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            profile
        })
        .collect();
    let config = home.path().join("config.json");
    let default = profiles[0]["name"].clone();
    fs::write(&config, json!({"defaultProfile": default, "profiles": profiles}).to_string()).unwrap();
    // It holds a password, and the program warns of one that others may read.
    fs::set_permissions(&config, fs::Permissions::from_mode(0o600)).unwrap();
    let path = config.to_str().unwrap().to_owned();
    home.with("PGSANDBOX_CONFIG", &path)
}

/// Writes a policy file of the bundled policies, with these settings for some of them.
fn policies(home: Home, settings: &[(&str, &str)]) -> Home {
    let names =
        ["quota", "readonly", "row-limit", "clone-source", "rate-limit", "statement-guard", "extensions", "ownership"];
    let entry = |name: &&str| {
        let own = settings.iter().find(|(of, _)| of == name).map_or(String::new(), |(_, text)| format!("{text}\n"));
        format!("[[policy]]\nsource = \"{name}\"\n{own}")
    };
    let file = home.path().join("policies.toml");
    fs::write(&file, names.iter().map(entry).collect::<String>()).unwrap();
    let config = home.path().join("config.json");
    let mut read: Value = serde_json::from_str(&fs::read_to_string(&config).unwrap()).unwrap();
    read["policies"] = json!(file.to_str().unwrap());
    fs::write(&config, read.to_string()).unwrap();
    home
}

fn prefix(name: &str) -> Value {
    json!({"databasePrefix": name})
}

fn failed_checks(home: &Home) -> Vec<(String, String, String)> {
    let output = home.run(&["doctor", "--format", "json"]);
    let reply: Value = serde_json::from_slice(&output.stdout).unwrap();
    let word = |check: &Value, key: &str| check[key].as_str().unwrap_or_default().to_owned();
    let checks = reply["result"]["checks"].as_array().unwrap_or_else(|| panic!("{reply:#}"));
    let failed: Vec<_> = checks
        .iter()
        .filter(|check| check["status"] == "fail")
        .map(|check| (word(check, "name"), word(check, "detail"), word(check, "remedy")))
        .collect();
    assert_eq!(output.status.code(), Some(i32::from(!failed.is_empty())), "{reply:#}");
    failed
}

/// Expects that a call fails with `code`, its hint says `does`, and `doctor` finds the same under `check`.
fn check_named(home: &Home, expected: &str, says: &str, does: &str, check: &str) {
    let reply = Cli::new(home).call("create_database", &json!({}));
    assert_eq!(code(&reply), expected, "{reply:#}");
    let (message, hint) = (reply["errors"][0]["message"].to_string(), reply["errors"][0]["hint"].to_string());
    assert!(message.contains(says), "`{says}` is not in {message}");
    assert!(hint.replace("\\\"", "\"").contains(does), "`{does}` is not in {hint}");
    let failed = failed_checks(home);
    let found = failed.iter().find(|(name, ..)| name == check).unwrap_or_else(|| panic!("{check}: {failed:#?}"));
    assert!(found.1.contains(says) && found.2.contains(does), "{found:?}");
}

#[tokio::test]
async fn an_admin_without_a_right_is_told_which_and_works_once_it_has_it() {
    let cluster = harness::cluster();
    let admin = cluster.superuser("postgres").await;
    let role =
        format!("CREATE ROLE newcomer LOGIN CREATEDB CREATEROLE PASSWORD '{PASSWORD}'; CREATE DATABASE newcomers");
    for statement in role.split("; ") {
        admin.batch_execute(statement).await.unwrap();
    }
    let url = |database: &str| cluster.url("newcomer", "correct%3Ahorse%2Fbattery%40staple", database);
    let one = home(&[("own", &*url("newcomers"), prefix("newc"))]);
    let grant = "GRANT CREATE ON DATABASE \"newcomers\" TO \"newcomer\"";
    check_named(&one, "invalid_configuration", "may not make the schema", grant, "own: postgres.metadata");
    // A schema made beforehand does as well as the grant.
    let inside = cluster.superuser("newcomers").await;
    inside.batch_execute("CREATE SCHEMA pgsandbox").await.unwrap();
    let owner = "ALTER SCHEMA pgsandbox OWNER TO \"newcomer\"";
    check_named(&one, "invalid_configuration", "does not belong to role `newcomer`", owner, "own: postgres.metadata");
    inside.batch_execute(owner).await.unwrap();
    let made = Cli::new(&one).call("create_database", &json!({}));
    assert_eq!(code(&made), "ok", "{made:#}");
    assert!(failed_checks(&one).is_empty());
    let id = &made["result"]["databaseId"];
    assert_eq!(code(&Cli::new(&one).call("delete_database", &json!({"databaseId": id, "wait": true}))), "ok");

    admin.batch_execute("ALTER ROLE newcomer NOCREATEDB").await.unwrap();
    let alter = "ALTER ROLE \"newcomer\" CREATEDB";
    check_named(&one, "invalid_configuration", "lacks CREATEDB", alter, "own: postgres.admin");

    let none = home(&[("own", &*url("nowhere"), prefix("newc"))]);
    check_named(&none, "invalid_configuration", "no database `nowhere`", "CREATE DATABASE", "own: postgres.database");
    let tls = url("newcomers").replace("sslmode=disable", "sslmode=require");
    let tls = home(&[("own", &*tls, prefix("newc"))]);
    check_named(&tls, "postgres_connection_failed", "does not offer TLS", "sslmode", "own: postgres.tls");
}

#[tokio::test]
async fn a_server_of_another_version_than_its_profile_says_is_refused() {
    let cluster = harness::cluster();
    let other = if cluster.major == 16 { 17 } else { 16 };
    let parsed = PostgresUrl::parse(&cluster.superuser_url(), UrlOrigin::Operator).unwrap();
    let mut settings = PostgresSettings::new("own", "vers", ServerSource::External(parsed));
    settings.major = Some(other);
    let engine = PostgresEngine::new(PostgresServer::new(settings));
    assert_eq!(engine.known_major(), Some(other), "it is known before the server is asked");
    let refused = engine.ready().await;
    let mismatch =
        |e: &EngineError| matches!(e, EngineError::Unsuited { failure, .. } if failure.code == Code::VersionMismatch);
    assert!(refused.as_ref().is_err_and(mismatch), "{refused:?}");
    let health = engine.health().await;
    let failed = health.iter().find(|check| check.status == CheckStatus::Fail).unwrap();
    assert_eq!(failed.name, "postgres.version", "{failed:?}");

    let mut more = prefix("vers");
    more["postgresVersion"] = json!(other);
    let home = home(&[("own", &*cluster.superuser_url(), more)]);
    let reply = Cli::new(&home).call("create_database", &json!({}));
    assert_eq!(code(&reply), "version_mismatch", "{reply:#}");
    assert_eq!(reply["errors"][0]["resolvedPostgresVersion"], json!(cluster.major.to_string()));
    let profiles = Cli::new(&home).call("list_profiles", &json!({}));
    assert_eq!(profiles["result"]["availablePostgresVersions"], json!([other.to_string()]), "{profiles:#}");
}

/// Expects that `explain_policy` says of a call what the call gets.
fn check_foretold(cli: &mut Cli<'_>, operation: &str, input: &Value, expected: &str) -> Value {
    let told = cli.call("explain_policy", &json!({"operation": operation, "arguments": input}));
    let reply = cli.call(operation, input);
    assert_eq!(code(&reply), expected, "{operation} {input}: {reply:#}");
    assert_eq!(told["result"]["allowed"], json!(expected == "ok"), "{operation} {input}: {told:#}");
    assert_eq!(told["result"].get("refusal"), reply["errors"].get(0), "{operation} {input}");
    told
}

#[tokio::test]
async fn an_explanation_foretells_what_policies_and_core_refuse() {
    let cluster = harness::cluster();
    let url = cluster.superuser_url();
    let more =
        json!({"databasePrefix": "told", "allowedExtensions": ["citext", "hstore"], "maxActiveDatabasesPerOwner": 1});
    let home = policies(
        home(&[("own", &*url, more)]),
        &[
            ("extensions", "settings = { allow = [\"hstore\", \"pgcrypto\"] }"),
            ("readonly", "settings = { rules = [{ operations = [\"run_sql\"], labels = { mode = \"look\" } }] }"),
        ],
    );
    let mut cli = Cli::new(&home);
    let made = cli.call("create_database", &json!({"labels": {"mode": "look"}}));
    assert_eq!(code(&made), "ok", "{made:#}");
    let id = made["result"]["databaseId"].clone();
    let sql = |text: &str| json!({"databaseId": id, "sql": text});
    check_foretold(&mut cli, "run_sql", &sql("select 1"), "ok");
    let told = check_foretold(&mut cli, "run_sql", &sql("create table t (a int)"), "readonly_violation");
    let demand = json!({"limit": "read-only", "value": "true", "setBy": "readonly"});
    assert!(told["result"]["limits"].as_array().unwrap().contains(&demand), "{told:#}");
    let refusal = &told["result"]["refusal"];
    assert_eq!((&refusal["policy"], &refusal["policyCode"]), (&json!("readonly"), &json!("read-only")), "{refusal:#}");
    let hint = refusal["hint"].as_str().unwrap();
    assert!(hint.contains("`readonly` demands") && !hint.contains("leave"), "{hint}");
    check_foretold(&mut cli, "create_database", &json!({}), "quota_exceeded");
    // What profile and policy both allow is hstore, and that is said everywhere.
    for (extension, expected) in [("citext", "extension_not_allowed"), ("pgcrypto", "extension_not_allowed")] {
        let told = check_foretold(&mut cli, "create_database", &json!({"extensions": [extension]}), expected);
        assert_eq!(told["result"]["refusal"]["allowed"], json!(["hstore"]), "{extension}: {told:#}");
    }
    let listed = cli.call("list_extensions", &json!({}));
    let names: Vec<_> =
        listed["result"]["availableExtensions"].as_array().unwrap().iter().map(|e| &e["name"]).collect();
    assert_eq!(names, [&json!("hstore")]);
    let profiles = cli.call("list_profiles", &json!({}));
    assert_eq!(profiles["result"]["profiles"][0]["allowedExtensions"], json!(["hstore"]));

    let extend = |minutes: u64| json!({"databaseId": id, "ttlMinutes": minutes});
    check_foretold(&mut cli, "extend_database", &extend(1441), "invalid_ttl");
    let metadata = cluster.superuser("postgres").await;
    let age = "UPDATE pgsandbox.sandboxes SET created_at = created_at - interval '5 hours', \
               expires_at = now() - interval '1 minute' WHERE id::text = $1";
    metadata.execute(age, &[&id.as_str().unwrap()]).await.unwrap();
    check_foretold(&mut cli, "run_sql", &sql("select 1"), "sandbox_expired");
    check_foretold(&mut cli, "get_connection_string", &json!({"databaseId": id}), "sandbox_expired");
    // Its hint says how many minutes are left, which may be one less by the time of the call.
    let told = cli.call("explain_policy", &json!({"operation": "extend_database", "arguments": extend(1440)}));
    assert_eq!(told["result"]["refusal"]["code"], "invalid_ttl", "{told:#}");
    assert_eq!(code(&cli.call("extend_database", &extend(1440))), "invalid_ttl");
    assert_eq!(code(&cli.call("delete_database", &json!({"databaseId": id, "wait": true}))), "ok");
}

#[tokio::test]
async fn only_allowed_extensions_are_installed_by_statements() {
    let cluster = harness::cluster();
    let more = json!({"databasePrefix": "exts", "allowedExtensions": ["citext", "earthdistance"]});
    let home = home(&[("own", &*cluster.superuser_url(), more)]);
    let mut cli = Cli::new(&home);
    let made = cli.call("create_database", &json!({}));
    let id = made["result"]["databaseId"].clone();
    let sql = |text: &str| json!({"databaseId": id, "sql": text});
    for text in [
        "create table before (a int); create extension hstore",
        "CREATE EXTENSION IF NOT EXISTS \"hstore\" SCHEMA public",
        "create /* x */ extension if not exists U&\"hstor\\0065\"",
        "create extension earthdistance cascade",
        "create extension HStore",
        "begin; create extension hstore; commit",
    ] {
        let told = check_foretold(&mut cli, "run_sql", &sql(text), "extension_not_allowed");
        assert!(told["result"]["refusal"]["statementIndex"].is_u64(), "{told:#}");
    }
    let seen = cli.call(
        "run_sql",
        &sql("select extname from pg_extension union all select relname from pg_class where relname = 'before'"),
    );
    assert_eq!(seen["result"]["resultSets"][0]["rows"], json!([["plpgsql"]]), "nothing ran of what was refused");
    let mut on = sql("create extension hstore; create extension if not exists plpgsql; create extension citext");
    on["continueOnError"] = json!(true);
    let reply = cli.call("run_sql", &on);
    assert_eq!(code(&reply), "ok", "{reply:#}");
    assert!(reply["result"].to_string().contains("extension_not_allowed"), "{reply:#}");
    let seen = cli.call("run_sql", &sql("select extname from pg_extension order by 1"));
    assert_eq!(seen["result"]["resultSets"][0]["rows"], json!([["citext"], ["plpgsql"]]));
    cli.call("delete_database", &json!({"databaseId": id, "wait": true}));
}

#[tokio::test]
async fn standard_error_tells_a_caller_nothing_that_the_reply_does_not() {
    let cluster = harness::cluster();
    let home = home(&[("own", &*cluster.superuser_url(), prefix("seen"))]);
    let made = Cli::new(&home).call("create_database", &json!({}));
    let (id, name) = (&made["result"]["databaseId"], made["result"]["databaseName"].as_str().unwrap());
    let arguments = ["run-sql", "--format", "text", "--database-name", name, "--sql", "select 1"];
    let others = home.command(&arguments).env("PGSANDBOX_OWNER", "somebody-else").output().unwrap();
    let said = String::from_utf8(others.stderr).unwrap();
    assert!(!others.status.success() && said.starts_with("error: there is no such sandbox"), "{said}");
    assert!(!said.contains(id.as_str().unwrap()) && !said.contains("hidden"), "{said}");
    assert!(!said.contains("WARN"), "{said}");
    let audit = home.run(&["audit", "tail", "--operation", "run_sql"]);
    assert!(String::from_utf8_lossy(&audit.stdout).contains("hidden by a policy"), "the audit says it");
    Cli::new(&home).call("delete_database", &json!({"databaseId": id, "wait": true}));
}

#[tokio::test]
async fn a_lost_key_file_is_found_by_doctor() {
    let cluster = harness::cluster();
    let home = home(&[("own", &*cluster.superuser_url(), prefix("keys"))]);
    let made = Cli::new(&home).call("create_database", &json!({}));
    let id = &made["result"]["databaseId"];
    assert!(failed_checks(&home).is_empty());
    fs::remove_file(home.state().join("master.keys")).unwrap();
    let failed = failed_checks(&home);
    assert_eq!(
        failed.iter().map(|(name, ..)| name.as_str()).collect::<Vec<_>>(),
        ["own: sandboxes.usable"],
        "{failed:?}"
    );
    assert!(failed[0].2.contains("master.keys"), "{failed:?}");
    // What needs no password still works.
    assert_eq!(code(&Cli::new(&home).call("delete_database", &json!({"databaseId": id, "wait": true}))), "ok");
    assert!(failed_checks(&home).is_empty());
}

#[test]
fn a_list_says_which_profile_could_not_be_asked() {
    let home = home(&[("gone", "postgresql://a:b@127.0.0.1:1/postgres?sslmode=disable", prefix("gone"))]);
    let reply = Cli::new(&home).call("list_databases", &json!({}));
    assert!(reply["summary"].as_str().unwrap().contains("could not ask `gone`"), "{reply:#}");
    assert!(reply["warnings"][0].as_str().unwrap().contains("profile `gone` could not be asked"), "{reply:#}");
}

#[test]
fn what_an_operator_does_prints_json_where_it_is_asked_for() {
    let home = Home::fresh();
    let printed = |arguments: &[&str], status: i32| -> Value {
        let output = home.run(&[arguments, &["--format", "json"]].concat());
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {output:?}");
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {output:?}"))
    };
    assert_eq!(printed(&["local", "status"], 3)["running"], false);
    assert_eq!(printed(&["local", "stop"], 0)["running"], false);
    assert_eq!(printed(&["audit", "verify"], 0)["faults"], json!([]));
    assert_eq!(printed(&["policy", "list"], 0)["policies"].as_array().unwrap().len(), 9);
    assert_eq!(code(&printed(&["quickstart"], 2)), "invalid_arguments");
}

#[test]
fn every_fault_of_a_policy_file_is_said_at_once_each_where_it_stands() {
    let url = "postgresql://a:b@127.0.0.1:1/postgres?sslmode=disable";
    let quota = "mode = \"maybe\"\nsettings = { max_lives = 1, max_bytes = \"many\" }\nowners.\"team-*\" = { max_live = 2 }\n\
                 owners.solo = { max_live_group = true }";
    let home =
        policies(home(&[("own", url, json!({}))]), &[("quota", quota), ("rate-limit", "settings = { cost = 1 }")]);
    let output = home.run(&["policy", "list"]);
    let said = String::from_utf8(output.stderr).unwrap();
    let faults: Vec<&str> = said.lines().filter(|line| line.starts_with("error: ")).collect();
    let expected = [
        "`policy[0].mode`: it is no mode",
        "policy `quota`, `owners.solo.max_live_group`",
        "policy `quota`, `settings.max_bytes`",
        "policy `quota`, `settings.max_lives`",
        "policy `rate-limit`, `settings.cost`",
    ];
    assert_eq!(faults.len(), expected.len(), "{said}");
    for (fault, words) in faults.iter().zip(expected) {
        assert!(fault.contains(words), "`{words}` is not in: {fault}");
    }
}

#[tokio::test]
async fn what_moves_into_a_denied_schema_is_refused_and_a_missing_schema_is_named() {
    let cluster = harness::cluster();
    let guard = "settings = { deny_relations = [{ name = \"audit.*\", access = [\"writes\", \"defines\"] }] }";
    let home = policies(home(&[("own", &*cluster.superuser_url(), prefix("move"))]), &[("statement-guard", guard)]);
    let mut cli = Cli::new(&home);
    let made = cli.call("create_database", &json!({}));
    let id = made["result"]["databaseId"].clone();
    let sql = |text: &str| json!({"databaseId": id, "sql": text});
    let ready = "create schema audit; create table public.w (a int); create view public.v as select 1 as a; \
                 create index i on public.w (a)";
    check_foretold(&mut cli, "run_sql", &sql(ready), "ok");
    for moves in [
        "alter table public.w set schema audit",
        "alter view public.v set schema \"audit\"",
        "create schema side; create table side.x (a int); alter schema side rename to other",
        "create extension citext schema audit",
        "select 1 as a into audit.x",
    ] {
        check_foretold(&mut cli, "run_sql", &sql(moves), "denied");
    }
    let told = check_foretold(&mut cli, "run_sql", &sql("create table t (a int)"), "denied");
    let message = told["result"]["refusal"]["message"].as_str().unwrap();
    assert!(message.contains("with one (`public.t`) it is judged by that"), "{message}");
    check_foretold(&mut cli, "run_sql", &sql("create table public.t (a int); alter table public.t rename to u"), "ok");
    cli.call("delete_database", &json!({"databaseId": id, "wait": true}));
}

#[tokio::test]
async fn what_a_policy_in_shadow_would_demand_is_told_and_recorded_and_does_not_act() {
    let cluster = harness::cluster();
    let home = policies(
        home(&[("own", &*cluster.superuser_url(), prefix("shad"))]),
        &[("row-limit", "mode = \"shadow\"\nsettings = { max_rows = 2 }"), ("rate-limit", "mode = \"shadow\"")],
    );
    let mut cli = Cli::new(&home);
    let made = cli.call("create_database", &json!({}));
    let id = made["result"]["databaseId"].clone();
    let input = json!({"databaseId": id, "sql": "select generate_series(1, 5)"});
    let told = check_foretold(&mut cli, "run_sql", &input, "ok");
    let word = |policy: &str| {
        let words = told["result"]["policies"].as_array().unwrap();
        words.iter().find(|word| word["policy"] == policy).unwrap_or_else(|| panic!("{policy}: {told:#}")).clone()
    };
    let demand = json!({"limit": "max-rows", "value": "2", "setBy": "row-limit"});
    assert!(word("row-limit")["limits"].as_array().unwrap().contains(&demand), "{told:#}");
    assert!(!told["result"]["limits"].to_string().contains("row-limit"), "it does not act: {told:#}");
    assert_eq!(word("rate-limit")["charges"][0]["cost"], json!(1), "{told:#}");
    let reply = cli.call("run_sql", &input);
    assert_eq!(reply["result"]["resultSets"][0]["rows"].as_array().unwrap().len(), 5, "{reply:#}");

    let audit = home.run(&["audit", "tail", "--operation", "run_sql"]);
    let lines = String::from_utf8(audit.stdout).unwrap();
    let closed = lines.lines().rfind(|line| line.contains("\"decision\"")).unwrap_or_else(|| panic!("{lines}"));
    let closed: Value = serde_json::from_str(closed).unwrap();
    let recorded = |policy: &str| {
        let all = closed["decision"]["policies"].as_array().unwrap();
        all.iter().find(|record| record["policy"] == policy).unwrap_or_else(|| panic!("{policy}: {closed:#}"))
    };
    let demands = recorded("row-limit")["would"]["obligations"].as_array().unwrap();
    assert!(demands.contains(&json!({"kind": "max-rows", "value": 2})), "{closed:#}");
    assert_eq!(recorded("rate-limit")["would"]["charges"][0]["cost"], json!(1), "{closed:#}");
    assert!(recorded("quota").get("would").is_none(), "what acts is in the decision itself");
    assert!(!closed["enforced"].to_string().contains("row-limit"), "{closed:#}");
    cli.call("delete_database", &json!({"databaseId": id, "wait": true}));
}

#[tokio::test]
async fn an_explanation_foretells_what_the_server_and_the_arguments_do_not_allow() {
    let cluster = harness::cluster();
    let allowed = ["citext", "cube", "dict_xsyn", "earthdistance", "pg_stat_statements", "not_there"];
    let more = json!({"databasePrefix": "fore", "allowedExtensions": allowed});
    let top = json!({"databasePrefix": "fort", "allowedExtensions": ["cube", "earthdistance"]});
    let profiles = [("own", &*cluster.limited_url(), more), ("top", &*cluster.superuser_url(), top)];
    let home = policies(home(&profiles), &[("extensions", "settings = { allow = [\"*\"] }")]);
    let mut cli = Cli::new(&home);
    let made = cli.call("create_database", &json!({}));
    let id = made["result"]["databaseId"].clone();
    let asked = |names: &[&str]| json!({"extensions": names});
    for only_superusers in ["dict_xsyn", "pg_stat_statements"] {
        let told = check_foretold(&mut cli, "create_database", &asked(&[only_superusers]), "extension_not_allowed");
        let allowed = &told["result"]["refusal"]["allowed"];
        let has = |name: &str| allowed.as_array().unwrap().contains(&json!(name));
        assert!(has("citext") && !has("dict_xsyn") && !has("pg_stat_statements") && !has("not_there"), "{told:#}");
    }
    let without_cube = json!({"profile": "top", "extensions": ["earthdistance"]});
    check_foretold(&mut cli, "create_database", &without_cube, "invalid_extensions");
    check_foretold(&mut cli, "create_database", &asked(&["not_there"]), "extension_setup_required");
    let listed = cli.call("list_extensions", &json!({}));
    let listed = listed["result"]["availableExtensions"].as_array().unwrap();
    assert!(listed.iter().any(|e| e["name"] == "citext"), "{listed:#?}");
    for e in listed {
        // Each as it says that it must be asked for.
        let requires = e["requires"].as_array().cloned().unwrap_or_default();
        let names: Vec<&Value> = requires.iter().chain([&e["name"]]).collect();
        let told =
            cli.call("explain_policy", &json!({"operation": "create_database", "arguments": {"extensions": names}}));
        assert_eq!(told["result"]["allowed"], json!(true), "{told:#}");
    }

    for bad in [json!({"limit": 1000}), json!({"limit": 0}), json!({"cursor": "garbage"})] {
        let told = cli.call("explain_policy", &json!({"operation": "list_databases", "arguments": bad}));
        assert_eq!(code(&cli.call("list_databases", &bad)), "invalid_arguments", "{bad}");
        let allowed = told["result"]["allowed"] == json!(true);
        assert!(!allowed && told.to_string().contains("invalid_arguments"), "{bad}: {told:#}");
    }
    for operation in ["list_databases", "cleanup_expired"] {
        check_foretold(&mut cli, operation, &json!({"profile": "nowhere"}), "unknown_profile");
    }

    let sql = |text: &str| json!({"databaseId": id, "sql": text});
    check_foretold(&mut cli, "run_sql", &sql("create table b (a int); copy b from stdin"), "invalid_arguments");
    let told = check_foretold(&mut cli, "run_sql", &sql("create extension not_there"), "extension_setup_required");
    assert_eq!(told["result"]["refusal"]["statementIndex"], json!(1), "{told:#}");
    let told = check_foretold(&mut cli, "run_sql", &sql("create extension hstore"), "extension_not_allowed");
    assert!(!told["result"]["refusal"]["allowed"].to_string().contains("dict_xsyn"), "{told:#}");
    let seen = cli.call("run_sql", &sql("select count(*) from pg_class where relname = 'b'"));
    assert_eq!(seen["result"]["resultSets"][0]["rows"], json!([["0"]]), "nothing ran of what was refused");
    let mut on = sql("create table b (a int); create extension hstore; create extension not_there");
    on["continueOnError"] = json!(true);
    let told = check_foretold(&mut cli, "run_sql", &on, "ok");
    let warnings = told["warnings"].to_string();
    for said in
        ["statement 2 would be refused: `extension_not_allowed`", "statement 3 would be refused: `extension_setup"]
    {
        assert!(warnings.contains(said), "{told:#}");
    }
    cli.call("delete_database", &json!({"databaseId": id, "wait": true}));
}

#[tokio::test]
async fn doctor_counts_every_check_and_takes_nobody_elses_sandboxes_for_leftovers() {
    let cluster = harness::cluster();
    let url = cluster.superuser_url();
    let home = home(&[("own", &*url, prefix("mine")), ("twin", &*url, prefix("twin"))]);
    let mut cli = Cli::new(&home);
    assert_eq!(code(&cli.call("list_databases", &json!({}))), "ok");
    let admin = cluster.superuser("postgres").await;
    admin.batch_execute("CREATE DATABASE mine_another_1234567890").await.unwrap();
    let reply = cli.call("doctor", &json!({}));
    let checks = reply["result"]["checks"].as_array().unwrap();
    let found = checks.iter().find(|check| check["name"] == "own: sandboxes.consistent").unwrap();
    let remedy = found["remedy"].as_str().unwrap_or_else(|| panic!("{found:#}"));
    let (other, drop) = (remedy.find("another installation").unwrap(), remedy.find("drop it").unwrap());
    assert!(other < drop && remedy.contains("SELECT database_name FROM pgsandbox.sandboxes"), "{remedy}");
    admin.batch_execute("DROP DATABASE mine_another_1234567890").await.unwrap();

    // A cluster that was not started is none of the things that were looked at.
    let output = Home::fresh().run(&["doctor", "--format", "json"]);
    let unstarted: Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = unstarted["result"]["checks"].as_array().unwrap();
    let summary = unstarted["summary"].as_str().unwrap();
    let numbers: Vec<usize> = summary.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
    let skipped = checks.iter().filter(|check| check["status"] == "skipped").count();
    assert!(skipped > 0 && summary.contains(&format!("{skipped} skipped")), "{summary}: {checks:#?}");
    assert_eq!(numbers[0], numbers[1..].iter().sum::<usize>(), "{summary}");

    let refused = cli.call("create_database", &json!({"postgresVersion": (cluster.major + 1).to_string()}));
    assert_eq!(refused["errors"][0]["allowed"], json!([cluster.major.to_string()]), "{refused:#}");
}

/// Calls `run_sql` on a fresh sandbox of the cluster's.
struct Bench {
    home: Home,
    id: Value,
}

impl Bench {
    fn new(home: Home) -> Self {
        let made = Cli::new(&home).call("create_database", &json!({}));
        assert_eq!(code(&made), "ok", "{made:#}");
        Self { home, id: made["result"]["databaseId"].clone() }
    }

    fn sql(&self, sql: &str, mut more: Value) -> Value {
        more["databaseId"] = self.id.clone();
        more["sql"] = json!(sql);
        Cli::new(&self.home).call("run_sql", &more)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let reply = Cli::new(&self.home).call("delete_database", &json!({"databaseId": self.id, "wait": true}));
        if !std::thread::panicking() {
            assert_eq!(code(&reply), "ok", "{reply:#}");
        }
    }
}

#[tokio::test]
async fn numbers_among_parameters_arrive_digit_for_digit() {
    let cluster = harness::cluster();
    let bench = Bench::new(home(&[("own", &*cluster.superuser_url(), prefix("digits"))]));
    // As text, so that nothing but the program reads them; by its own arguments and as a client's message.
    let written = ["123456789012345678901", "18446744073709551617", "0.12345678901234567890", "1.10", "-0.70", "-7"];
    let params: Value = serde_json::from_str(&format!("[{}]", written.join(","))).unwrap();
    let sql = "select $1::text, $2::text, $3::text, $4::text, $5::text, $6::text";
    let reply = bench.sql(sql, json!({"params": params}));
    assert_eq!(reply["result"]["resultSets"][0]["rows"][0], json!(written), "{reply:#}");
    let mut arguments = vec!["run-sql", "--format", "json", "--sql", sql, "--database-id", bench.id.as_str().unwrap()];
    arguments.extend(written.iter().flat_map(|number| ["--params", number]));
    let output = bench.home.run(&arguments);
    let reply: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(reply["result"]["resultSets"][0]["rows"][0], json!(written), "{reply:#}");
    let mut stdio = Stdio::start(&bench.home);
    stdio.send_raw(
        &format!(
            r#"{{"jsonrpc": "2.0", "id": 77, "method": "tools/call", "params": {{"name": "run_sql", "arguments":
           {{"databaseId": {}, "sql": "{sql}", "params": [{}]}}}}}}"#,
            bench.id,
            written.join(",")
        )
        .replace('\n', " "),
    );
    let reply = stdio.answer(77);
    assert_eq!(reply["result"]["structuredContent"]["result"]["resultSets"][0]["rows"][0], json!(written), "{reply:#}");
    assert!(stdio.finish().success());
}

#[tokio::test]
async fn data_that_is_sent_twice_is_refused_and_not_half_copied() {
    let cluster = harness::cluster();
    let bench = Bench::new(home(&[("own", &*cluster.superuser_url(), prefix("twice"))]));
    assert_eq!(code(&bench.sql("create table t (n int)", json!({}))), "ok");
    let inline = "copy t from stdin;\n1\n2\n\\.\n";
    let reply = bench.sql(inline, json!({"stdin": "5\n6\n"}));
    assert_eq!(code(&reply), "invalid_arguments", "{reply:#}");
    assert_eq!(code(&bench.sql(inline, json!({}))), "ok");
    assert_eq!(code(&bench.sql("copy t from stdin", json!({"stdin": "5\n6\n"}))), "ok");
    let reply = bench.sql("select n from t order by n", json!({}));
    assert_eq!(reply["result"]["resultSets"][0]["rows"], json!([[1], [2], [5], [6]]), "{reply:#}");
}

#[tokio::test]
async fn the_byte_quota_holds_where_every_call_is_a_program_of_its_own() {
    let cluster = harness::cluster();
    let home = home(&[("own", &*cluster.superuser_url(), prefix("sized"))]);
    let bench = Bench::new(policies(home, &[("quota", "settings = { max_bytes = 12000000 }")]));
    let fill = "create table filled as select repeat(md5(n::text), 40) from generate_series(1, 8000) n";
    assert_eq!(code(&bench.sql(fill, json!({}))), "ok");
    // Measured when it ended, as it wrote.
    assert_eq!(code(&bench.sql("create table more (n int)", json!({}))), "quota_exceeded");
    assert_eq!(code(&bench.sql("select count(*) from filled", json!({"readonly": true}))), "ok");
    let admin = cluster.superuser("postgres").await;
    let name = admin
        .query_one(
            "select owner_role from pgsandbox.sandboxes where id = $1::text::uuid",
            &[&bench.id.as_str().unwrap()],
        )
        .await
        .unwrap()
        .get::<_, String>(0);
    let login = admin.query_one("select rolcanlogin from pg_roles where rolname = $1", &[&name]).await.unwrap();
    assert!(!login.get::<_, bool>(0), "a direct login is over the quota, too");
}

#[test]
fn a_cluster_that_was_stopped_meanwhile_costs_no_call() {
    let bench = Bench::new(Home::fresh());
    let mut stdio = Stdio::start(&bench.home);
    let mut select = |sql: &str| stdio.call("run_sql", &json!({"databaseId": bench.id, "sql": sql}));
    assert_eq!(code(&select("create table t (n int)")), "ok");
    assert!(bench.home.run(&["local", "stop"]).status.success());
    assert_eq!(code(&select("insert into t values (1)")), "ok");
    assert_eq!(select("select n from t")["result"]["resultSets"][0]["rows"], json!([[1]]));
    assert!(stdio.finish().success());
}

#[test]
fn a_misspelt_log_level_is_refused() {
    let home = Home::fresh();
    let output = home.command(&["list-profiles", "--format", "text"]).env("PGSANDBOX_LOG", "infoo").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(2) && said.contains("word 1 is no level") && !said.contains("infoo"),
        "{said}"
    );
}

#[tokio::test]
async fn nothing_that_is_printed_for_people_drives_their_terminal() {
    let cluster = harness::cluster();
    let bench = Bench::new(home(&[("own", &*cluster.superuser_url(), prefix("drives"))]));
    let id = bench.id.as_str().unwrap();
    let escape = "\u{1b}]0;pwned\u{7}\u{9b}31m";
    for sql in [
        format!("select 1 as \"{escape}\""),
        format!("select '{escape}'"),
        format!("do $$ begin raise exception '{escape}'; end $$"),
        format!("create table \"{escape}\" (n int); select 1 from \"{escape}x\""),
    ] {
        let output = bench.home.run(&["run-sql", "--format", "text", "--database-id", id, "--sql", &sql]);
        for printed in [output.stdout, output.stderr] {
            let printed = String::from_utf8(printed).unwrap();
            assert!(!printed.contains(|c: char| c.is_control() && c != '\n'), "{printed:?}");
        }
    }
}

#[test]
fn output_that_cannot_be_written_is_a_failure() {
    let home = Home::fresh();
    for arguments in [&["list-profiles"][..], &["audit", "verify"], &["policy", "list"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = home.command(arguments).stdout(full).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(1) && said.contains("standard output cannot be written"),
            "{arguments:?}: {said}"
        );
    }
}
