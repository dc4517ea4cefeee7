//! Setting clients up, completing commands, and the smoke test, by the real program.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::program::Home;

/// A user's home directory and a project, with a state directory of their own.
struct Desk {
    home: Home,
    dir: tempfile::TempDir,
}

impl Desk {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("project")).unwrap();
        Self { home: Home::fresh(), dir }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.home.command(words);
        command.env("HOME", self.dir.path()).current_dir(self.dir.path().join("project"));
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// Runs a command that must succeed, and returns what it says in JSON.
    fn told(&self, words: &[&str]) -> Value {
        let output = self.run(&[words, &["--format", "json"]].concat());
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stdout));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Runs a command that must be refused, and returns why it was.
    fn refused(&self, words: &[&str]) -> String {
        let output = self.run(&[words, &["--format", "json"]].concat());
        let reply: Value = serde_json::from_slice(&output.stdout).unwrap();
        // Nothing was begun.
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        reply["errors"].to_string()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::create_dir_all(self.file(name).parent().unwrap()).unwrap();
        fs::write(self.file(name), text).unwrap();
    }

    /// Returns every file below the desk with what it holds.
    fn all(&self) -> Vec<(PathBuf, Vec<u8>)> {
        fn look(dir: &Path, found: &mut Vec<(PathBuf, Vec<u8>)>) {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() { look(&path, found) } else { found.push((path.clone(), fs::read(&path).unwrap())) }
            }
        }
        let mut found = Vec::new();
        look(self.dir.path(), &mut found);
        found.sort();
        found
    }
}

const ALL: [&str; 5] = ["codex", "cursor", "vscode", "claude-desktop", "claude-code"];

#[test]
fn every_client_is_set_up_once_and_taken_back_to_the_byte() {
    let desk = Desk::new();
    desk.write(".codex/config.toml", "# mine\nmodel = 'o'\n");
    desk.write(".config/Code/User/mcp.json", "{\r\n\t// mine\r\n\t\"inputs\": [],\r\n}\r\n");
    desk.write(".config/Claude/claude_desktop_config.json", "{\"mcpServers\":{}}");
    let before = desk.all();
    let dry = desk.told(&[&["setup", "--dry-run"], &ALL[..]].concat());
    assert_eq!(desk.all(), before, "a dry run wrote something");
    assert!(!desk.home.state().join("clients.json").exists());
    assert!(dry["changes"][0]["difference"].as_str().unwrap().contains("+[mcp_servers.pgsandbox]"), "{dry:#}");
    let set_up = desk.told(&[&["setup"], &ALL[..]].concat());
    let actions: Vec<&str> =
        set_up["changes"].as_array().unwrap().iter().map(|c| c["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["added", "created", "added", "added", "created"], "{set_up:#}");
    let after = desk.all();
    assert_eq!(after.len(), before.len() + 2);
    let again = desk.told(&[&["setup"], &ALL[..]].concat());
    assert!(again["changes"].as_array().unwrap().iter().all(|c| c["action"] == "unchanged"), "{again:#}");
    assert_eq!(desk.all(), after);
    // What is written starts the program, and with this state directory.
    let read: Value = serde_json::from_slice(&fs::read(desk.file("project/.mcp.json")).unwrap()).unwrap();
    let entry = &read["mcpServers"]["pgsandbox"];
    assert_eq!(entry["args"], json!(["mcp"]));
    assert_eq!(entry["env"]["PGSANDBOX_HOME"], json!(desk.home.state()));
    let version = Command::new(entry["command"].as_str().unwrap()).arg("--version").output().unwrap();
    assert!(version.status.success());
    let dry = desk.told(&["uninstall", "--dry-run"]);
    assert_eq!(desk.all(), after, "a dry run wrote something");
    assert!(dry["notes"].to_string().contains("left: the state directory"), "{dry:#}");
    desk.told(&["uninstall"]);
    assert_eq!(desk.all(), before);
    assert!(desk.home.state().join("pgsandbox.state").exists(), "the state directory is kept");
}

#[test]
fn in_the_home_directory_both_scopes_are_one_file() {
    let desk = Desk::new();
    let at_home = |words: &[&str]| {
        let output = desk.command(&[words, &["--format", "json"]].concat()).current_dir(desk.dir.path()).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stdout));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let before = desk.all();
    at_home(&["setup", "codex", "cursor"]);
    let stands = at_home(&["setup"]);
    let files: Vec<_> = stands["clients"].as_array().unwrap().iter().map(|c| (&c["client"], &c["file"])).collect();
    assert!((1..files.len()).all(|at| !files[..at].contains(&files[at])), "{stands:#}");
    let gone = at_home(&["uninstall"]);
    let removed = gone["changes"].as_array().unwrap().iter().filter(|change| change["action"] == "removed").count();
    assert_eq!((removed, desk.all()), (2, before), "{gone:#}");
}

#[test]
fn variables_that_the_configuration_names_are_told() {
    let desk = Desk::new();
    let source = json!({"name": "shop", "url": "postgresql://reader@h/shop", "passwordFromEnv": "SHOP_PW"});
    desk.write(
        "config.json",
        &json!({"profiles": [{"name": "a", "managedLocal": true}], "sources": [source]}).to_string(),
    );
    fs::set_permissions(desk.file("config.json"), fs::Permissions::from_mode(0o600)).unwrap();
    let mut command = desk.command(&["setup", "cursor", "--format", "json"]);
    let output = command.env("PGSANDBOX_CONFIG", desk.file("config.json")).env("SHOP_PW", "hunter2").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("reads `SHOP_PW`") && !said.contains("hunter2"), "{said}");
}

#[test]
fn a_configuration_is_named_from_the_root_wherever_the_client_starts_the_program() {
    let desk = Desk::new();
    desk.write("config.json", &json!({"profiles": [{"name": "a", "managedLocal": true}]}).to_string());
    let mut command = desk.command(&["setup", "cursor", "--format", "json"]);
    let there = desk.file("config.json");
    let output = command.current_dir(there.parent().unwrap()).env("PGSANDBOX_CONFIG", "config.json").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let written: Value = serde_json::from_slice(&fs::read(desk.file(".cursor/mcp.json")).unwrap()).unwrap();
    let named = written["mcpServers"]["pgsandbox"]["env"]["PGSANDBOX_CONFIG"].as_str().unwrap();
    assert_eq!(fs::canonicalize(named).unwrap(), fs::canonicalize(there).unwrap(), "{written:#}");
    assert!(named.starts_with('/'), "{named}");
}

#[test]
fn a_file_that_cannot_be_read_is_named_with_the_place_and_none_is_written() {
    let desk = Desk::new();
    desk.write(".cursor/mcp.json", "{\n  \"mcpServers\": {\"a\": hunter2}\n}\n");
    desk.write(".codex/config.toml", "a = 1\nb = \n");
    desk.write(".config/Code/User/mcp.json", "{}");
    let before = desk.all();
    let why = desk.refused(&["setup", "vscode", "cursor", "codex"]);
    assert!(why.contains("mcp.json`: line 2, column 23:") && why.contains("config.toml`: line 2, column 5:"), "{why}");
    assert!(!why.contains("hunter2"), "{why}");
    assert_eq!(desk.all(), before);
    fs::write(desk.file(".cursor/mcp.json"), b"{\n \"\xff\": 1}").unwrap();
    assert!(desk.refused(&["setup", "cursor"]).contains("line 2, column 3: is not UTF-8"));
    fs::remove_file(desk.file(".cursor/mcp.json")).unwrap();
    fs::create_dir(desk.file(".cursor/mcp.json")).unwrap();
    assert!(desk.refused(&["setup", "cursor"]).contains("is no file"));
    // Comments are none of JSON's, where the client takes nothing else.
    desk.write("project/.mcp.json", "{} // mine");
    assert!(desk.refused(&["setup", "claude-code"]).contains("line 1, column 4:"));
    assert!(desk.refused(&["setup", "claude-code", "--scope", "user"]).contains("claude mcp add"));
}

#[test]
fn a_link_stays_a_link_and_what_it_leads_to_keeps_its_mode() {
    let desk = Desk::new();
    desk.write("dotfiles/mcp.json", "{}");
    fs::set_permissions(desk.file("dotfiles/mcp.json"), fs::Permissions::from_mode(0o640)).unwrap();
    fs::create_dir(desk.file(".cursor")).unwrap();
    symlink("../dotfiles/mcp.json", desk.file(".cursor/mcp.json")).unwrap();
    desk.told(&["setup", "cursor"]);
    assert!(fs::symlink_metadata(desk.file(".cursor/mcp.json")).unwrap().is_symlink());
    let target = desk.file("dotfiles/mcp.json");
    assert!(fs::read_to_string(&target).unwrap().contains("pgsandbox"));
    assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o640);
    desk.told(&["uninstall", "cursor"]);
    assert_eq!(fs::read_to_string(&target).unwrap(), "{}");
}

#[test]
fn a_projects_link_out_of_it_is_not_followed() {
    let desk = Desk::new();
    desk.write("elsewhere.json", "{}");
    fs::create_dir(desk.file("project/.cursor")).unwrap();
    symlink(desk.file("elsewhere.json"), desk.file("project/.cursor/mcp.json")).unwrap();
    let why = desk.refused(&["setup", "cursor", "--scope", "project"]);
    assert!(why.contains("a link out of the project"), "{why}");
    assert_eq!(fs::read_to_string(desk.file("elsewhere.json")).unwrap(), "{}");
}

#[test]
fn what_was_set_up_under_another_name_is_taken_back_as_well() {
    let desk = Desk::new();
    desk.write(".cursor/mcp.json", "{\"mcpServers\": {}}");
    let before = desk.all();
    desk.told(&["setup", "cursor", "--name", "second"]);
    desk.told(&["setup", "cursor"]);
    let text = fs::read_to_string(desk.file(".cursor/mcp.json")).unwrap();
    desk.write(".cursor/mcp.json", &text.replace("\"mcp\"", "\"mcp\", \"--toolsets\", \"all\""));
    let gone = desk.told(&["uninstall"]);
    let changes = gone["changes"].as_array().unwrap();
    assert_eq!(changes.iter().filter(|change| change["action"] == "removed").count(), 2, "{gone:#}");
    assert!(changes.iter().any(|change| change["removedWithIt"] == json!(["further arguments"])), "{gone:#}");
    assert_eq!(desk.all(), before);
}

#[test]
fn a_file_that_was_made_goes_with_the_last_server_in_it() {
    let desk = Desk::new();
    let before = desk.all();
    for together in [true, false] {
        desk.told(&["setup", "codex", "cursor"]);
        desk.told(&["setup", "codex", "cursor", "--name", "foo"]);
        if together {
            desk.told(&["uninstall"]);
        } else {
            desk.told(&["uninstall", "--name", "pgsandbox"]);
            let stands = desk.told(&["setup"]);
            assert!(stands["clients"].to_string().contains("set up as `foo`"), "{stands:#}");
            desk.told(&["uninstall", "--name", "foo"]);
        }
        assert_eq!(desk.all(), before, "{together}");
        assert!(
            [".codex", ".cursor"].iter().all(|folder| !desk.file(folder).exists()),
            "directories were made and stay"
        );
    }
    // A directory that somebody has put something in is somebody's.
    desk.told(&["setup", "codex", "cursor"]);
    desk.write(".codex/notes", "mine");
    desk.told(&["uninstall"]);
    assert_eq!((desk.file(".codex/notes").exists(), desk.file(".cursor").exists()), (true, false));
    assert!(desk.refused(&["setup", "cursor", "--name", "a b"]).contains("takes letters"));
}

#[test]
fn a_write_that_fails_leaves_the_file_as_it_was() {
    let desk = Desk::new();
    desk.write(".cursor/mcp.json", "{\"a\": 1}");
    let before = desk.all();
    for point in ["file.client.read", "file.client.write", "file.client.rename"] {
        let mut command = desk.command(&["setup", "cursor", "--format", "json"]);
        let output = command.env("PGSANDBOX_TEST_FAULTS", format!("{point}=fail:full")).output().unwrap();
        let status = if point == "file.client.read" { 2 } else { 1 };
        assert_eq!(output.status.code(), Some(status), "{point}");
        assert_eq!(desk.all(), before, "{point}");
    }
}

#[test]
fn no_secret_is_written_or_shown() {
    let desk = Desk::new();
    let other = json!({"mcpServers": {"other": {"command": "x", "env": {"TOKEN": "hunter2"}}}});
    desk.write(".cursor/mcp.json", &serde_json::to_string_pretty(&other).unwrap());
    let url = "postgres://admin:hunter3@127.0.0.1:1/postgres";
    for words in [&["setup", "cursor", "--dry-run"][..], &["setup", "cursor"], &["uninstall", "cursor", "--dry-run"]] {
        for format in ["text", "json"] {
            let output = desk
                .command(&[words, &["--format", format]].concat())
                .env("PGSANDBOX_ADMIN_DATABASE_URL", url)
                .output()
                .unwrap();
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8_lossy(&said);
            assert!(output.status.success() && !said.contains("hunter"), "{words:?}: {said}");
            let warned = said.contains("`PGSANDBOX_ADMIN_DATABASE_URL` holds a secret");
            assert_eq!(warned, words[0] == "setup", "{words:?}: {said}");
        }
    }
    let written = fs::read_to_string(desk.file(".cursor/mcp.json")).unwrap();
    assert!(written.contains("hunter2") && !written.contains("hunter3"), "{written}");
}

#[test]
fn uninstalling_deletes_no_database_and_says_how_to() {
    let desk = Desk::new();
    let why = desk.refused(&["uninstall", "--purge"]);
    assert!(why.contains("deletes no database") && why.contains("delete-database --wait"), "{why}");
    desk.write("project/.mcp.json", r#"{"mcpServers": {"pgsandbox": {"command": "npx"}}}"#);
    let before = desk.all();
    assert!(desk.refused(&["setup", "claude-code"]).contains("starts another program"));
    assert!(desk.refused(&["uninstall", "claude-code"]).contains("starts another program"));
    let all = desk.told(&["uninstall"]);
    assert!(all["notes"].to_string().contains("starts another program"), "{all:#}");
    assert_eq!(desk.all(), before);
}

#[test]
fn how_each_client_stands_is_shown_without_writing() {
    let desk = Desk::new();
    desk.write(".cursor/mcp.json", "{]");
    desk.told(&["setup", "codex", "--scope", "project"]);
    let before = desk.all();
    let stands = desk.told(&["setup"]);
    let of = |client: &str, scope: &str| {
        let clients = stands["clients"].as_array().unwrap();
        let one = clients.iter().find(|c| c["client"] == client && c["scope"] == scope).unwrap();
        one["stands"].as_str().unwrap().to_owned()
    };
    assert_eq!(of("codex", "project"), "set up");
    assert_eq!(of("codex", "user"), "no such file");
    assert!(of("cursor", "user").contains("line 1, column 2"));
    assert_eq!(desk.all(), before);
}

#[test]
fn completions_are_scripts_that_their_shells_read() {
    let home = Home::fresh();
    for (shell, check) in [("bash", "-n"), ("zsh", "-n"), ("fish", "--no-execute")] {
        let output = home.run(&["completions", shell]);
        assert!(output.status.success());
        let script = String::from_utf8(output.stdout).unwrap();
        for word in
            ["run-sql", "smoke-test", "databaseId", "database-id", "dry-run"].iter().filter(|w| **w != "databaseId")
        {
            assert!(script.contains(word), "{shell} does not know `{word}`");
        }
        let file = home.path().join(shell);
        fs::write(&file, script).unwrap();
        // Only where the shell is installed.
        let Ok(read) = Command::new(shell).arg(check).arg(&file).output() else { continue };
        assert!(read.status.success(), "{shell}: {}", String::from_utf8_lossy(&read.stderr));
    }
    assert_eq!(home.run(&["completions", "cmd"]).status.code(), Some(2));
}

#[test]
fn the_smoke_test_plays_the_main_job_as_a_client_does() {
    let home = Home::fresh();
    let output = home.run(&["smoke-test", "--format", "json"]);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.success() && told["ok"] == true, "{told:#}");
    assert_eq!(told["checks"].as_array().unwrap().len(), 9, "{told:#}");
    let text = home.run(&["smoke-test"]);
    assert!(String::from_utf8_lossy(&text.stdout).ends_with("9 checks, 0 failed\n"));
    let left: Value = serde_json::from_slice(&home.run(&["list-databases", "--format", "json"]).stdout).unwrap();
    assert_eq!(left["result"]["databases"], json!([]));
}

#[test]
fn the_smoke_test_says_what_did_not_go_as_it_must() {
    let home = Home::fresh();
    let failed = |variables: &[(&str, &str)], name: &str, what: &str| {
        let output =
            home.command(&["smoke-test", "--format", "json"]).envs(variables.iter().copied()).output().unwrap();
        let told: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((output.status.code(), &told["ok"]), (Some(1), &json!(false)), "{told:#}");
        let checks = told["checks"].as_array().unwrap();
        let one = checks.iter().find(|check| check["status"] == "fail").unwrap();
        assert!(one["name"] == name && one["detail"].as_str().unwrap().contains(what), "{told:#}");
    };
    failed(&[("PGSANDBOX_NONSENSE", "1")], "A handshake", "ended before it answered");
    failed(&[("PGSANDBOX_TEST_FAULTS", "spawn.smoke-test=fail:nofile")], "A start", "");
    let nowhere = [("PGSANDBOX_ADMIN_DATABASE_URL", "postgres://a:b@127.0.0.1:1/postgres?sslmode=disable")];
    failed(&nowhere, "A sandbox", "postgres_connection_failed");
    // A program that says nothing is given up.
    let silent = [("PGSANDBOX_TEST_DEADLINE_MS", "300"), ("PGSANDBOX_TEST_FAULTS", "audit.open=delay:3000")];
    failed(&silent, "A sandbox", "was not answered within");
}
