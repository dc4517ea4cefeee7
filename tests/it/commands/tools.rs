//! Package managers, confined: each with a small repository and no network, where it is installed.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use pgsandbox::command::{Commands, Ended, Run, Stdin, Surroundings};
use tokio_util::sync::CancellationToken;

use super::{ALL, Ground};

/// Runs a tool with the home directory that is really there.
async fn check(files: &[(&str, &str)], argv: &[&str], expected: &str) {
    let told = Surroundings::of_process(&[]);
    let installed = |dir: &PathBuf| dir.join(argv[0]).exists();
    if !told.path.iter().any(installed) {
        return crate::harness::not_tried(&format!("`{}` is not installed here", argv[0]));
    }
    let ground = Ground::new();
    for (file, text) in files {
        let path = ground.root.join("repo").join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let commands = Commands::new(ground.settings.clone(), told);
    let repo = commands.open(ground.root.join("repo").to_str().unwrap()).unwrap();
    let argv: Vec<String> = argv.iter().map(|word| (*word).to_owned()).collect();
    let run = Run {
        repo: &repo,
        argv: &argv,
        stdin: Stdin::Nothing,
        variables: Vec::new(),
        secrets: Vec::new(),
        timeout: Duration::from_secs(300),
        wanted: [ALL, ALL],
        console: None,
        cancel: CancellationToken::new(),
    };
    let ran = commands.run(run).await.unwrap();
    assert_eq!(ran.ended, Ended::Exited(0), "{}{}", ran.stdout.text, ran.stderr.text);
    assert!(ran.stdout.text.contains(expected), "{}{}", ran.stdout.text, ran.stderr.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn npm_runs_a_script_and_installs_from_a_folder() {
    let package = r#"{"name": "a", "version": "1.0.0", "scripts": {"hello": "node -e \"console.log('hello ' + require('b'))\"", "postinstall": "echo"}, "dependencies": {"b": "file:./b"}}"#;
    let files = [
        ("package.json", package),
        ("b/package.json", r#"{"name": "b", "version": "1.0.0"}"#),
        ("b/index.js", "module.exports = 'b'"),
    ];
    check(&files, &["npm", "install", "--offline", "--no-audit", "--no-fund"], "added 1 package").await;
    let script = r#"{"name": "a", "scripts": {"hello": "node -e \"console.log('hello b')\""}}"#;
    check(&[("package.json", script)], &["npm", "run", "hello"], "hello b").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pip_and_cargo_find_their_homes() {
    check(&[], &["pip", "--version"], "pip").await;
    check(
        &[],
        &["python3", "-c", "import tempfile, ssl; f = tempfile.NamedTemporaryFile(); print('made', f.name)"],
        "made",
    )
    .await;
    let manifest = "[package]\nname = \"a\"\nversion = \"0.1.0\"\nedition = \"2021\"\n";
    let main = "fn main() { println!(\"built and run\"); }";
    check(
        &[("Cargo.toml", manifest), ("src/main.rs", main)],
        &["cargo", "run", "--offline", "--quiet"],
        "built and run",
    )
    .await;
    check(&[], &["git", "init", "."], "").await;
}
