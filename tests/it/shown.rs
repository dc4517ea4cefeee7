//! What people are shown in text: forms of its own for checks, lists and what a command wrote, and nothing that is soon over.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use crate::commands::confines;
use crate::program::Home;

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A home in which a command can be run, and a repository with one.
fn home() -> (Home, String) {
    let home = Home::with_cluster();
    let config = home.path().join("config.json");
    let confinement = if confines() { "required" } else { "available" };
    fs::write(&config, json!({"commands": {"confinement": confinement}}).to_string()).unwrap();
    let home = home.with("PGSANDBOX_CONFIG", config.to_str().unwrap());
    let repo = home.path().join("repo");
    fs::create_dir(&repo).unwrap();
    let script = "#!/bin/bash\nprintf 'a\\n\\tb\\e[31m\\n'; echo complains >&2; exit 7\n";
    fs::write(repo.join("script"), script).unwrap();
    fs::set_permissions(repo.join("script"), PermissionsExt::from_mode(0o755)).unwrap();
    let repo = repo.to_str().unwrap().to_owned();
    (home, repo)
}

#[test]
fn checks_lists_and_output_have_a_form_for_people() {
    let (home, repo) = home();
    let run = |arguments: &[&str]| {
        let output = home.run(&[&["--format", "text"], arguments].concat());
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (status, stdout, stderr) = run(&["create-database", "--name-hint", "shown", "--labels", "task=42"]);
    assert_eq!(status, Some(0), "{stderr}");
    let made: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    let (id, name) = (made["databaseId"].as_str().unwrap(), made["databaseName"].as_str().unwrap());

    let (_, stdout, stderr) = run(&["list-databases"]);
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{stdout}");
    assert!(lines[0].starts_with("databaseId") && lines[2].starts_with(id), "{stdout}");
    assert!(lines[2].contains(name) && lines[2].contains("task=42"), "{stdout}");
    assert!(stderr.ends_with("1 sandbox\n") && !stderr.contains("%]"), "what is soon done is not told of: {stderr}");

    let (status, stdout, _) = run(&["verify-sandbox", "--database-id", id]);
    assert_eq!(status, Some(0), "{stdout}");
    assert!(stdout.lines().count() > 5 && stdout.lines().all(|line| !line.starts_with('{')), "{stdout}");
    assert!(stdout.lines().any(|line| line.starts_with("ok      ")), "{stdout}");
    let (_, stdout, stderr) = run(&["doctor"]);
    assert!(stdout.lines().any(|line| line.starts_with("ok      ")), "{stdout}");
    assert!(stderr.contains("checks: "), "{stderr}");

    let (status, stdout, stderr) =
        run(&["run-repo-command", "--repo-path", &repo, "--database-id", id, "--", "./script"]);
    assert_eq!((status, stdout.as_str()), (Some(1), "a\n\tb␣[31m\ncomplains\n"), "{stderr}");
    assert!(stderr.contains("`./script` ended with exit code 7"), "{stderr}");
}

#[test]
fn what_runs_a_command_says_of_itself_that_it_could_not_begin() {
    let (home, _) = home();
    let status = |arguments: &[&str]| {
        home.command(arguments).env("PGSANDBOX_CONFIG", "/nonexistent/config.json").status().unwrap().code()
    };
    assert_eq!(status(&["with-database", "--", "true"]), Some(125));
    assert_eq!(status(&["with-database", "--nonsense", "--", "true"]), Some(125));
    assert_eq!(status(&["with-database", "--connection-mode", "x", "--", "true"]), Some(125));
    assert_eq!(status(&["doctor"]), Some(2));
    let said = home.run(&["with-database", "npm", "test"]);
    assert!(text(&said.stderr).contains("put `--` before the command"), "{}", text(&said.stderr));
}
