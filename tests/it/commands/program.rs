//! Commands through the program as it is: the tools over MCP and the command line, and `with-database`.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Output, Stdio as Pipe};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::confines;
use crate::harness::{kill, runs_in};
use crate::hostile::{code, wait};
use crate::obligations::policies_with;
use crate::program::{Cli, Home, Stdio, Transport};

/// What a repository holds itself may be run, and npm.
const OWN_COMMANDS: &str = "settings = { allow = [[\"./*\", \"**\"], [\"npm\", \"**\"]] }\n";

/// A home with a repository beside it, and policies that let its scripts run over every transport.
pub(super) struct Place {
    pub(super) home: Home,
    pub(super) repo: String,
}

impl Place {
    pub(super) fn new() -> Self {
        Self::with_policy(OWN_COMMANDS)
    }

    /// A place whose cluster was never made: an explanation starts none.
    pub(super) fn unmade() -> Self {
        Self::in_home(Home::fresh(), OWN_COMMANDS)
    }

    pub(super) fn with_policy(host_command: &str) -> Self {
        Self::in_home(Home::with_cluster(), host_command)
    }

    fn in_home(home: Home, host_command: &str) -> Self {
        let policies = home.path().join("policies.toml");
        fs::write(&policies, policies_with("host-command", host_command)).unwrap();
        let confinement = if confines() { "required" } else { "available" };
        let config = home.path().join("config.json");
        let text = json!({"policies": policies, "commands": {"confinement": confinement}});
        fs::write(&config, text.to_string()).unwrap();
        let home = home.with("PGSANDBOX_CONFIG", config.to_str().unwrap());
        let repo = home.path().join("repo");
        fs::create_dir(&repo).unwrap();
        Self { repo: repo.to_str().unwrap().to_owned(), home }
    }

    /// Puts an executable script into the repository.
    pub(super) fn script(&self, name: &str, text: &str) -> String {
        let path = format!("{}/{name}", self.repo);
        fs::write(&path, format!("#!/bin/bash\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        format!("./{name}")
    }

    /// Runs `with-database` with a script.
    pub(super) fn with_database(&self, options: &[&str], script: &str) -> Output {
        self.home
            .run(&self.line(options, &self.script("script", script)).iter().map(String::as_str).collect::<Vec<_>>())
    }

    pub(super) fn line(&self, options: &[&str], program: &str) -> Vec<String> {
        let first = ["with-database", "--repo-path", &self.repo].into_iter().chain(options.iter().copied());
        first.chain(["--", program]).map(str::to_owned).collect()
    }

    pub(super) fn databases(&self) -> usize {
        let listed = Cli::new(&self.home).call("list_databases", &json!({}));
        listed["result"]["databases"].as_array().unwrap().len()
    }
}

pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(super) fn create(transport: &mut dyn Transport) -> String {
    let made = transport.call("create_database", &json!({}));
    made["result"]["databaseId"].as_str().unwrap_or_else(|| panic!("{made:#}")).to_owned()
}

#[test]
fn a_command_works_on_its_sandbox_and_shows_none_of_its_credentials() {
    let place = Place::new();
    let program = place.script(
        "script",
        "echo $DATABASE_URL $PGPASSWORD; echo $APP_URL >&2; for ((i = 0; i < ${#PGPASSWORD}; i++)); do echo -n \"${PGPASSWORD:$i:1}\"; done; echo\n\
         psql -v ON_ERROR_STOP=1 -Atc 'CREATE TABLE t (a int); SELECT current_user = current_setting($$session_authorization$$)' \"$DATABASE_URL\"; cat; exit 3",
    );
    let mut stdio = Stdio::start(&place.home);
    let id = create(&mut stdio);
    let full = stdio.call("get_connection_string", &json!({"databaseId": id, "includeCredentials": true}));
    let full = full["result"]["connectionString"].as_str().unwrap().to_owned();
    let password = full.split_once("_role:").unwrap().1.split_once('@').unwrap().0.to_owned();
    let input = json!({
        "databaseId": id, "repoPath": place.repo, "command": [program, "--token", password], "stdin": "from the caller",
        "databaseUrlEnvNames": ["APP_URL"],
    });
    let ran = stdio.call("run_repo_command", &input);
    let result = &ran["result"];
    assert_eq!(
        (ran["ok"].as_bool(), result["ok"].as_bool(), result["exitCode"].as_i64()),
        (Some(true), Some(false), Some(3)),
        "{ran:#}"
    );
    assert!(!ran.to_string().contains(&password), "{ran:#}");
    let redacted = full.replace(&password, "***");
    assert_eq!(result["stdout"], format!("{redacted} ***\n***\nCREATE TABLE\nt\nfrom the caller"), "{ran:#}");
    assert_eq!(result["stderr"], format!("{redacted}\n"));
    assert_eq!(result["command"], json!([program, "--token", "***"]));
    let seen = stdio.call("run_sql", &json!({"databaseId": id, "sql": "SELECT count(*) FROM t"}));
    assert_eq!(seen["ok"], true, "{seen:#}");
    assert!(stdio.finish().success());
    let mut audited = String::new();
    for entry in fs::read_dir(place.home.state().join("audit")).unwrap() {
        audited += &text(&fs::read(entry.unwrap().path()).unwrap());
    }
    assert!(audited.contains("./script") && !audited.contains("--token") && !audited.contains(&password));
}

#[test]
fn names_of_the_database_url_are_recorded_and_a_file_that_cannot_be_used_is_named() {
    let place = Place::new();
    let program =
        place.script("script", "[ \"$APP_DB_URL\" = \"$DATABASE_URL\" ] && echo same; echo \"${OTHER_URL:-none}\"");
    fs::write(Path::new(&place.repo).join(".env.example"), "APP_DB_URL=postgres://localhost/app\n").unwrap();
    fs::write(Path::new(&place.repo).join("docker-compose.yml"), "services:\n  db:\n    image: postgres:12\n").unwrap();
    let mut stdio = Stdio::start(&place.home);
    let id = create(&mut stdio);
    let prepare = |stdio: &mut Stdio, names: &[&str]| {
        let input = json!({"repoPath": place.repo, "seedCommand": [program], "databaseUrlEnvNames": names});
        stdio.call("prepare_for_repo", &input)
    };
    let looked = stdio.call("prepare_for_repo", &json!({"repoPath": place.repo}));
    assert!(looked["warnings"].to_string().contains("`APP_DB_URL`"), "{looked:#}");
    let prepared = prepare(&mut stdio, &["APP_DB_URL"]);
    assert_eq!(prepared["result"]["recorded"]["databaseUrlEnvNames"], json!(["APP_DB_URL"]), "{prepared:#}");
    assert!(!prepared["warnings"].to_string().contains("APP_DB_URL"), "{prepared:#}");
    assert_eq!(prepare(&mut stdio, &["PATH"])["ok"], false);
    let seed = |stdio: &mut Stdio, more: Value| {
        let mut input = json!({"databaseId": id, "repoPath": place.repo});
        input.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        stdio.call("seed_database", &input)
    };
    assert_eq!(seed(&mut stdio, json!({}))["result"]["stdout"], "same\nnone\n");
    // What a call names counts alone.
    let other = seed(&mut stdio, json!({"databaseUrlEnvNames": ["OTHER_URL"]}));
    assert!(!other["result"]["stdout"].as_str().unwrap().contains("same"), "{other:#}");
    let validated = stdio.call("validate_schema_change", &json!({"repoPath": place.repo, "command": [program]}));
    assert!(validated["warnings"].to_string().contains("made for Postgres 12"), "{validated:#}");
    fs::write(Path::new(&place.repo).join(".pgsandbox/project.json"), "{\"seedCommand\": \"npm run hunter2\"}")
        .unwrap();
    let refused = seed(&mut stdio, json!({}));
    let said = refused["errors"][0].to_string();
    assert_eq!(refused["errors"][0]["code"], "missing_seed_command", "{refused:#}");
    assert!(said.contains("project.json") && said.contains("a list of words") && !said.contains("hunter2"), "{said}");
}

#[test]
fn the_environment_is_what_the_guide_says() {
    let place = Place::new();
    let program = place.script("script", "tr '\\0' '\\n' < /proc/$$/environ | cut -d= -f1 | sort | tr '\\n' ' '");
    let mut command = place.home.command(&[]);
    for (name, value) in
        [("PGPASSWORD", "mine"), ("AWS_SECRET_ACCESS_KEY", "mine"), ("npm_config_cache", "/tmp/npm"), ("TERM", "dumb")]
    {
        command.env(name, value);
    }
    let line = place.line(&["--database-url-env-names", "APP_URL"], &program);
    let output = command.args(line).stdin(Pipe::null()).output().unwrap();
    let said = text(&output.stdout);
    let names: Vec<&str> = said.split_whitespace().filter(|name| *name != "LANG").collect();
    let expected = [
        "APP_URL",
        "DATABASE_URL",
        "GIT_CONFIG_GLOBAL",
        "HOME",
        "PATH",
        "PGDATABASE",
        "PGHOST",
        "PGPASSWORD",
        "PGPORT",
        "PGSANDBOX_DATABASE_URL",
        "PGUSER",
        "TERM",
        "TMPDIR",
        "npm_config_cache",
    ];
    let mut sorted = names.clone();
    sorted.retain(|name| *name != "PGSSLMODE");
    sorted.sort_unstable();
    assert_eq!(sorted, expected, "{}", text(&output.stderr));
    let guide = include_str!("../../../docs/guides/repository-commands.md");
    for name in names {
        assert!(name == "APP_URL" || guide.contains(&format!("`{name}`")), "the guide does not name `{name}`");
    }
}

#[test]
fn nothing_runs_but_what_a_policy_allows() {
    let place = Place::with_policy("");
    place.script("script", "touch ran");
    let mut stdio = Stdio::start(&place.home);
    let id = create(&mut stdio);
    for (operation, more) in [
        ("run_repo_command", json!(["./script"])),
        ("seed_database", json!(["./script"])),
        ("prepare_for_repo", Value::Null),
    ] {
        let mut input = json!({"databaseId": id, "repoPath": place.repo, "command": more});
        if more.is_null() {
            input.as_object_mut().unwrap().remove("command");
        }
        let refused = stdio.call(operation, &input);
        assert_eq!(
            (code(&refused), &refused["errors"][0]["policyCode"]),
            ("denied", &json!("command_not_allowed")),
            "{refused:#}"
        );
    }
    assert!(stdio.finish().success());
    // Whoever is on the command line could run it without this program.
    let ran = Cli::new(&place.home)
        .call("run_repo_command", &json!({"databaseId": id, "repoPath": place.repo, "command": ["./script"]}));
    assert_eq!(ran["result"]["exitCode"], 0, "{ran:#}");
    assert!(fs::exists(format!("{}/ran", place.repo)).unwrap());
}

#[test]
fn arguments_out_of_range_and_commands_that_are_none_are_refused_by_their_codes() {
    let place = Place::new();
    let program = place.script("script", "exit 0");
    let plain = format!("{}/plain", place.repo);
    fs::write(&plain, "no program").unwrap();
    let mut stdio = Stdio::start(&place.home);
    let id = create(&mut stdio);
    let state = place.home.state();
    let long = "x".repeat((64 << 10) + 1);
    for (more, expected) in [
        (json!({"command": ["sh", "-c", "id"]}), "unsafe_command"),
        (json!({"command": ["npm test"]}), "unclear_command"),
        (json!({"command": ["./none"]}), "unclear_command"),
        (json!({"command": ["./plain"]}), "unclear_command"),
        (json!({"command": [program], "repoPath": "/no/such/place"}), "repo_not_found"),
        (json!({"command": [program], "repoPath": state}), "unsafe_command"),
        (json!({"command": [program], "repoPath": "/"}), "unsafe_command"),
        (json!({"command": [program], "timeoutSeconds": 0}), "invalid_arguments"),
        (json!({"command": [program], "timeoutSeconds": 601}), "invalid_arguments"),
        (json!({"command": [program], "stdoutLimit": 8001}), "invalid_arguments"),
        (json!({"command": [program], "stderrLimit": -1}), "invalid_arguments"),
        (json!({"command": [program], "tailLines": 1001}), "invalid_arguments"),
        (json!({"command": [program], "stdin": long}), "invalid_arguments"),
        (json!({"command": [program], "databaseUrlEnvNames": ["LD_PRELOAD"]}), "invalid_arguments"),
        (
            json!({"command": [program], "databaseUrlEnvNames": ["A", "B", "C", "D", "E", "F", "G", "H", "I"]}),
            "invalid_arguments",
        ),
        (json!({}), "missing_schema_change_command"),
    ] {
        let mut input = json!({"databaseId": id, "repoPath": place.repo});
        input.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let refused = stdio.call("run_repo_command", &input);
        assert_eq!(code(&refused), expected, "{refused:#}");
        assert!(!refused.to_string().contains("Internal"));
    }
    let refused = stdio.call("seed_database", &json!({"databaseId": id, "repoPath": place.repo}));
    assert_eq!(code(&refused), "missing_seed_command");
    let within = json!({
        "databaseId": id, "repoPath": place.repo, "command": [program], "timeoutSeconds": 600, "stdoutLimit": 0, "stderrLimit": 8000,
        "tailLines": 1000, "stdin": &long[1..], "databaseUrlEnvNames": ["A", "B", "C", "D", "E", "F", "G", "H"],
    });
    assert_eq!(stdio.call("run_repo_command", &within)["ok"], true);
    assert!(stdio.finish().success());
}

#[test]
fn a_repository_is_looked_into_and_what_is_recorded_is_run() {
    let place = Place::new();
    fs::write(format!("{}/compose.yaml", place.repo), "services:\n  db:\n    image: postgres:16\n").unwrap();
    fs::write(format!("{}/docker-compose.yml", place.repo), "services: [oops\n").unwrap();
    fs::write(format!("{}/package.json", place.repo), r#"{"scripts": {"db:migrate": "x"}}"#).unwrap();
    let program = place.script("seed.sh", "psql -qAtc 'CREATE TABLE seeded ()'");
    let mut stdio = Stdio::start(&place.home);
    let id = create(&mut stdio);
    let looked = stdio.call("prepare_for_repo", &json!({"repoPath": place.repo}));
    let result = &looked["result"];
    assert_eq!((&result["postgresVersion"], &result["written"]), (&json!("16"), &json!(false)), "{looked:#}");
    assert_eq!(result["proposals"][0]["command"], json!(["npm", "run", "db:migrate"]));
    assert!(looked["warnings"].to_string().contains("docker-compose.yml"), "{looked:#}");
    assert!(!fs::exists(format!("{}/.pgsandbox", place.repo)).unwrap());
    let recorded =
        stdio.call("prepare_for_repo", &json!({"repoPath": place.repo, "databaseId": id, "seedCommand": [program]}));
    assert_eq!(recorded["result"]["written"], true, "{recorded:#}");
    assert!(recorded["result"]["connectionStringRedacted"].as_str().unwrap().contains(":***@"));
    let seeded = stdio.call("seed_database", &json!({"databaseId": id, "repoPath": place.repo}));
    assert_eq!(seeded["result"]["exitCode"], 0, "{seeded:#}");
    let seen = stdio.call("run_sql", &json!({"databaseId": id, "sql": "TABLE seeded"}));
    assert_eq!(seen["ok"], true, "{seen:#}");
    assert!(stdio.finish().success());
}

#[test]
fn what_a_command_does_to_the_schema_is_told_also_where_it_fails() {
    let place = Place::new();
    let program = place.script("script", "psql -qc 'CREATE TABLE made (id int PRIMARY KEY)'; exit 4");
    let mut stdio = Stdio::start(&place.home);
    let id = create(&mut stdio);
    let input = json!({"databaseId": id, "repoPath": place.repo, "command": [program]});
    let told = stdio.call("explain_policy", &json!({"operation": "validate_schema_change", "arguments": input}));
    assert_eq!(told["ok"], true, "{told:#}");
    let validated = stdio.call("validate_schema_change", &input);
    let result = &validated["result"];
    assert_eq!((&result["exitCode"], &result["schemaDiff"]["changed"]), (&json!(4), &json!(true)), "{validated:#}");
    let changes = result["schemaDiff"]["changes"].as_array().unwrap();
    assert!(
        changes.iter().any(|change| change["name"] == "public.made" && change["change"] == "added"),
        "{validated:#}"
    );
    let same = place.script("same", "exit 0");
    let input = json!({"databaseId": id, "repoPath": place.repo, "command": [same]});
    let validated = stdio.call("validate_schema_change", &input);
    assert_eq!(validated["result"]["schemaDiff"]["changed"], false, "{validated:#}");
    assert!(stdio.finish().success());
}

#[test]
fn a_command_that_cannot_be_confined_is_not_run_unless_the_operator_lets_it() {
    let place = Place::new();
    let program = place.script("script", "touch ran");
    let confinement = |word: &str| {
        let policies = place.home.path().join("policies.toml");
        let text = json!({"policies": policies, "commands": {"confinement": word}});
        fs::write(place.home.path().join("config.json"), text.to_string()).unwrap();
    };
    confinement("required");
    let faults = [("PGSANDBOX_TEST_FAULTS", "command.confine=fail@1+")];
    let mut stdio = Stdio::start_with(&place.home, &faults, Pipe::inherit());
    let id = create(&mut stdio);
    let input = json!({"databaseId": id, "repoPath": place.repo, "command": [program]});
    let refused = stdio.call("run_repo_command", &input);
    assert_eq!(code(&refused), "unsafe_command", "{refused:#}");
    assert!(refused["errors"][0]["hint"].as_str().unwrap().contains("commands.confinement"));
    assert!(!fs::exists(format!("{}/ran", place.repo)).unwrap());
    assert!(stdio.finish().success());
    confinement("available");
    let mut command =
        place.home.command(&["tool", "run_repo_command", "--format", "json", "--input", &input.to_string()]);
    command.envs(faults);
    let output = command.output().unwrap();
    let ran: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(&output.stderr)));
    assert_eq!((&ran["result"]["exitCode"], &ran["result"]["confined"]), (&json!(0), &json!(false)), "{ran:#}");
    assert!(ran["warnings"].to_string().contains("unconfined"));
}

#[test]
fn a_cancelled_call_and_a_client_that_leaves_end_the_command() {
    let place = Place::new();
    let program = place.script(
        "script",
        "trap '' TERM\n(setsid sleep 600 & echo $! > daemon.pid)\necho $$ > own.pid\nwhile :; do :; done",
    );
    let pid =
        |name: &str| fs::read_to_string(format!("{}/{name}.pid", place.repo)).unwrap_or_default().trim().to_owned();
    let begun = || !pid("own").is_empty() && !pid("daemon").is_empty();
    let over = || !runs_in(&place.repo);
    let mut stdio = Stdio::start(&place.home);
    let id = create(&mut stdio);
    let arguments = json!({"name": "run_repo_command", "arguments": {"databaseId": id, "repoPath": place.repo, "command": [program]}});
    let call = stdio.begin("tools/call", arguments.clone());
    wait(Duration::from_secs(60), begun);
    stdio.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": call}}));
    wait(Duration::from_secs(30), over);
    fs::remove_file(format!("{}/own.pid", place.repo)).unwrap();
    stdio.begin("tools/call", arguments);
    wait(Duration::from_secs(60), begun);
    kill(&stdio.pid().to_string(), Signal::KILL);
    wait(Duration::from_secs(30), over);
}

#[test]
fn with_database_gives_a_sandbox_for_a_command_and_ends_as_it_does() {
    let place = Place::new();
    let output = place.with_database(&[], "psql -Atc 'SELECT current_database()'; echo $PGPASSWORD; exit 7");
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    assert!(said.starts_with("pgsandbox_") && said.ends_with("\n***\n"), "{said}");
    assert_eq!(place.databases(), 0);
    let killed = place.with_database(&[], "kill -TERM $$");
    assert_eq!(killed.status.code(), Some(128 + 15));
    let late = place.with_database(&["--timeout-seconds", "1"], "sleep 600");
    assert_eq!(late.status.code(), Some(124), "{}", text(&late.stderr));
    let kept = place.with_database(&["--cleanup", "on-success"], "exit 1");
    assert_eq!((kept.status.code(), place.databases()), (Some(1), 1));
    let done = place.with_database(&["--cleanup", "on-success"], "exit 0");
    assert_eq!((done.status.code(), place.databases()), (Some(0), 1));
    let kept = place.with_database(&["--cleanup", "keep"], "exit 0");
    assert_eq!((kept.status.code(), place.databases()), (Some(0), 2));
    let refused = place.home.run(&["with-database", "--repo-path", &place.repo, "--", "bash", "-c", "id"]);
    assert!(!text(&refused.stderr).contains("created"), "no sandbox is made for it");
    assert_eq!((refused.status.code(), place.databases()), (Some(125), 2), "{}", text(&refused.stderr));
    assert!(text(&refused.stderr).contains("unsafe_command"));
}

#[test]
fn with_database_says_in_json_what_came_of_it_and_hands_its_own_input_on() {
    let place = Place::new();
    let program = place.script("script", "cat; echo error >&2; exit 2");
    let mut command = place.home.command(&["--format", "json"]);
    let mut child = command
        .args(place.line(&["--labels", "task=7"], &program))
        .stdin(Pipe::piped())
        .stdout(Pipe::piped())
        .stderr(Pipe::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"handed on\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let result: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(&output.stderr)));
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("handed on\n") && text(&output.stderr).contains("error\n"));
    for (name, expected) in [
        ("schemaVersion", json!(1)),
        ("ok", json!(false)),
        ("exitCode", json!(2)),
        ("timedOut", json!(false)),
        ("cleanup", json!({"mode": "always", "state": "deleted"})),
        ("errors", json!([])),
    ] {
        assert_eq!(result[name], expected, "{name}: {result:#}");
    }
    assert!(result["databaseId"].is_string());
}

#[test]
fn an_interrupted_with_database_ends_its_command_and_removes_its_sandbox() {
    let place = Place::new();
    for (signal, expected) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let program = place.script("script", "echo $$ > own.pid; sleep 600 & wait");
        let own = format!("{}/own.pid", place.repo);
        let child = place.home.command(&[]).args(place.line(&[], &program)).stdin(Pipe::null()).spawn().unwrap();
        wait(Duration::from_secs(60), || fs::read_to_string(&own).is_ok_and(|pid| !pid.trim().is_empty()));
        kill(&child.id().to_string(), signal);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(expected));
        assert!(!runs_in(&place.repo));
        assert_eq!(place.databases(), 0);
        fs::remove_file(own).unwrap();
    }
}

#[test]
fn no_more_commands_run_at_a_time_than_may() {
    let place = Place::new();
    let program = place
        .script("script", "mktemp begun.XXXXXX > /dev/null; while [ ! -e go ]; do read -t 0.01 <> <(:) || true; done");
    let id = create(&mut Cli::new(&place.home));
    let mut stdio = Stdio::start_with(&place.home, &[("PGSANDBOX_TEST_DEADLINE_MS", "2000")], Pipe::inherit());
    let arguments = json!({"name": "run_repo_command", "arguments": {"databaseId": id, "repoPath": place.repo, "command": [program]}});
    let calls: Vec<u64> = (0..4).map(|_| stdio.begin("tools/call", arguments.clone())).collect();
    let begun = || {
        fs::read_dir(&place.repo)
            .unwrap()
            .filter(|e| e.as_ref().unwrap().file_name().to_string_lossy().starts_with("begun"))
            .count()
    };
    wait(Duration::from_secs(60), || begun() == 4);
    let refused = stdio.call("run_repo_command", &arguments["arguments"]);
    assert_eq!(code(&refused), "busy", "{refused:#}");
    fs::write(format!("{}/go", place.repo), "").unwrap();
    for call in calls {
        let answer = stdio.answer(call);
        assert_eq!(answer["result"]["structuredContent"]["ok"], true, "{answer:#}");
    }
    assert!(stdio.finish().success());
}

#[test]
fn a_supervisor_that_does_not_answer_is_given_up_and_the_command_ends() {
    let place = Place::new();
    let program = place.script("script", "while :; do :; done");
    let variables =
        [("PGSANDBOX_TEST_FAULTS", "command.report=delay:60000@1+"), ("PGSANDBOX_TEST_DEADLINE_MS", "3000")];
    let id = create(&mut Cli::new(&place.home));
    let mut stdio = Stdio::start_with(&place.home, &variables, Pipe::inherit());
    let failed = stdio.call(
        "run_repo_command",
        &json!({"databaseId": id, "repoPath": place.repo, "command": [program], "timeoutSeconds": 1}),
    );
    assert_eq!(code(&failed), "internal", "{failed:#}");
    assert!(!runs_in(&place.repo));
    assert!(stdio.finish().success());
}
