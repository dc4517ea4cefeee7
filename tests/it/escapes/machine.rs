//! Another user of the machine, and the cluster's own, reach for the state directory and the managed cluster.
//!
//! They can be somebody else only where tests run as root; elsewhere the modes alone are looked at.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio as Pipe};

use serde_json::json;

use super::room::{Outcome, Report};
use crate::harness::block_on;
use crate::program::{Home, Stdio, Transport};

const LOCAL: &str = "local user";
const FILES: &str = "file system";
/// Nobody of importance.
const NOBODY: u32 = 65534;

/// Everything below a folder that is no link.
fn below(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let about = fs::symlink_metadata(&path).unwrap();
        found.push(path.clone());
        if about.is_dir() {
            below(&path, found);
        }
    }
}

fn user(name: &str) -> Option<u32> {
    let passwd = fs::read_to_string("/etc/passwd").unwrap();
    let line = passwd.lines().find(|line| line.starts_with(&format!("{name}:")))?;
    line.split(':').nth(2)?.parse().ok()
}

/// Runs a script as somebody else; returns whether it succeeded and what it said.
fn as_user(uid: u32, script: &str, arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(script).arg("sh").args(arguments).current_dir("/").stdin(Pipe::null()).uid(uid).gid(uid);
    let output = command.output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Tries what another user of the machine may try.
pub(super) fn local_users(report: &mut Report) {
    let home = Home::fresh();
    let mut stdio = Stdio::start(&home);
    let made = stdio.call("create_database", &json!({"nameHint": "local"}));
    assert_eq!(made["ok"], true, "{made:#}");
    let state = home.state();
    let cluster = fs::read_dir(state.join("postgres/postgres")).unwrap().next().unwrap().unwrap().path();
    let read = |name: &str| fs::read_to_string(cluster.join(name)).unwrap().trim().to_owned();
    let (port, socket, secret) = (read("port"), read("socket-directory"), read("admin-password"));
    let mut paths = vec![state.clone()];
    below(&state, &mut paths);
    let data = cluster.join("data");
    let base = data.join("base");
    paths.retain(|path| !path.starts_with(&base) && !path.is_symlink());

    // Nobody else is let in by any mode.
    for path in &paths {
        let about = fs::symlink_metadata(path).unwrap();
        let others = about.mode() & 0o007;
        let passed = path.starts_with(&data) || others == 0 || about.is_dir() && others == 0o001;
        let found = if passed { vec![] } else { vec![format!("{}: {:o}", path.display(), about.mode())] };
        if !path.starts_with(&data) {
            report.note(LOCAL, &format!("the mode of {}", relative(path, &state)), Outcome::Below, &found);
        }
    }
    let mode = fs::metadata(&data).unwrap().permissions().mode() & 0o777;
    report.note(
        LOCAL,
        "the mode of the cluster's data",
        Outcome::Below,
        &if mode == 0o700 { vec![] } else { vec![format!("{mode:o}")] },
    );

    for (what, password) in [
        ("no password", ""),
        ("the user's name", "pgsandbox_admin"),
        ("`postgres`", "postgres"),
        ("a verifier", "SCRAM-SHA-256$4096:x"),
        ("half of the password", &secret[..secret.len() / 2]),
    ] {
        for address in ["127.0.0.1", &socket] {
            for (role, database) in
                [("pgsandbox_admin", "pgsandbox"), ("pgsandbox_admin", "postgres"), ("postgres", "postgres")]
            {
                let entered = block_on(log_in(address, &port, role, password, database));
                let found = if entered { vec![format!("{role} entered {database}")] } else { vec![] };
                let how = if address.starts_with('/') { "by the socket" } else { "by TCP" };
                report.note(
                    LOCAL,
                    &format!("a login as {role} to {database} with {what}, {how}"),
                    Outcome::Below,
                    &found,
                );
            }
        }
    }
    let address: Vec<String> = listeners(&port);
    let found = if address.iter().all(|a| a == "0100007F") && !address.is_empty() {
        vec![]
    } else {
        vec![format!("{address:?}")]
    };
    report.note(LOCAL, "the addresses that the cluster listens on", Outcome::Below, &found);

    if rustix::process::geteuid().is_root() {
        let postgres = user("postgres").unwrap_or(NOBODY);
        as_others(report, &stdio, &state, &cluster, &socket, NOBODY, "nobody");
        as_others(report, &stdio, &state, &cluster, &socket, postgres, "postgres");
    }
    state_is_not_followed(report, &home, &mut stdio, &state);
    assert!(stdio.finish().success());
}

fn relative(path: &Path, state: &Path) -> String {
    // Names that differ each time are left out, so that a table can be compared.
    let path = path.strip_prefix(state).unwrap_or(path).display().to_string();
    if path.is_empty() { "the state directory".to_owned() } else { path }
}

async fn log_in(address: &str, port: &str, role: &str, password: &str, database: &str) -> bool {
    let mut config = tokio_postgres::Config::new();
    config.port(port.parse().unwrap()).user(role).dbname(database).connect_timeout(std::time::Duration::from_secs(10));
    if address.starts_with('/') {
        config.host_path(address)
    } else {
        config.host(address)
    };
    if !password.is_empty() {
        config.password(password);
    }
    config.connect(tokio_postgres::NoTls).await.is_ok()
}

/// Returns the addresses, in hex, on which a port is listened to.
fn listeners(port: &str) -> Vec<String> {
    let wanted = format!(":{:04X}", port.parse::<u16>().unwrap());
    let mut found = Vec::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        for line in fs::read_to_string(table).unwrap_or_default().lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            if fields[3] == "0A" && fields[1].ends_with(&wanted) {
                found.push(fields[1].trim_end_matches(&wanted).to_owned());
            }
        }
    }
    found
}

fn as_others(report: &mut Report, stdio: &Stdio, state: &Path, cluster: &Path, socket: &str, uid: u32, name: &str) {
    // The cluster's user reads its own data, which is no secret to it.
    let is_server = fs::metadata(cluster.join("data")).unwrap().uid() == uid;
    let mut targets =
        vec![state.join("master.keys"), cluster.join("admin-password"), state.join("audit"), state.to_owned()];
    if !is_server {
        targets.extend([
            cluster.join("data"),
            cluster.join("data/pg_hba.conf"),
            cluster.join("data/postmaster.pid"),
            cluster.join("log"),
            socket.into(),
        ]);
        targets.push(
            Path::new(socket).join(format!(".s.PGSQL.{}", fs::read_to_string(cluster.join("port")).unwrap().trim())),
        );
    }
    let mut files = Vec::new();
    below(&state.join("audit"), &mut files);
    below(&state.join("cache"), &mut files);
    targets.extend(files.into_iter().filter(|path| path.is_file()).take(12));
    let pid = stdio.pid().to_string();
    let mut tries: Vec<(String, String, Vec<String>)> = Vec::new();
    for target in &targets {
        let (shown, target) = (relative(target, state), target.display().to_string());
        tries.push((
            format!("reads {shown}"),
            "if [ -d \"$1\" ]; then ls \"$1\"; else cat \"$1\"; fi".into(),
            vec![target.clone()],
        ));
        tries.push((
            format!("writes to {shown}"),
            "if [ -d \"$1\" ]; then : >\"$1/planted\"; else : >>\"$1\"; fi".into(),
            vec![target.clone()],
        ));
        tries.push((format!("replaces {shown}"), "mv \"$1\" \"$1.moved\"".into(), vec![target.clone()]));
        tries.push((format!("opens {shown} to all"), "chmod 777 \"$1\"".into(), vec![target.clone()]));
    }
    for (what, script) in [
        ("reads the server's environment", "cat /proc/$1/environ"),
        ("reads the server's memory", "dd if=/proc/$1/mem bs=1 count=1 skip=4194304"),
        ("lists the server's open files", "ls /proc/$1/fd/"),
        ("stops the server", "kill -STOP $1"),
        ("ends the server", "kill $1"),
        ("writes to the server's standard input", "echo x >/proc/$1/fd/0"),
        ("enters the server's folder", "cd /proc/$1/cwd/ && ls /proc/$1/root/root"),
    ] {
        tries.push((what.to_owned(), script.to_owned(), vec![pid.clone()]));
    }
    for (what, script, arguments) in tries {
        let before = tree(state, &cluster.join("data"));
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let (done, _) = as_user(uid, &format!("{{ {script}; }} 2>/dev/null"), &arguments);
        let mut found = if done { vec!["it succeeded".to_owned()] } else { vec![] };
        if tree(state, &cluster.join("data")) != before {
            found.push("the state directory has changed".to_owned());
        }
        report.note(LOCAL, &format!("{name} {what}"), if done { Outcome::Ran } else { Outcome::Below }, &found);
    }
}

/// Names, modes and owners below the state directory, the cluster's data left out.
fn tree(state: &Path, data: &Path) -> Vec<(PathBuf, u32, u32)> {
    let mut paths = vec![state.to_owned()];
    below(state, &mut paths);
    let rows = paths.into_iter().filter(|path| !path.starts_with(data));
    rows.filter_map(|path| fs::symlink_metadata(&path).ok().map(|about| (path, about.mode(), about.uid()))).collect()
}

/// Links in the place of the program's own files lead it nowhere: what they point to stays as it is.
fn state_is_not_followed(report: &mut Report, home: &Home, stdio: &mut Stdio, state: &Path) {
    let target = home.path().join("target");
    for (what, name) in [
        ("the marker", "pgsandbox.state"),
        ("the marker's unfinished form", "pgsandbox.state.new"),
        ("the keys' unfinished form", "master.keys.new"),
        ("a file of nobody", "planted"),
        ("a segment of the audit log", "audit/segment-planted.jsonl"),
        ("a folder of the cache", "cache/planted"),
    ] {
        fs::write(&target, "as it was").unwrap();
        let path = state.join(name);
        let kept = path.exists().then(|| fs::read(&path).unwrap());
        fs::remove_file(&path).ok();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        let listed = home.run(&["list-profiles"]);
        stdio.call("list_databases", &json!({}));
        let after = fs::read_to_string(&target).unwrap_or_default();
        let found = if after == "as it was" { vec![] } else { vec![format!("what {name} points to is now {after:?}")] };
        fs::remove_file(&path).ok();
        if let Some(kept) = kept {
            fs::write(&path, kept).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        }
        let outcome = if listed.status.success() { Outcome::Ran } else { Outcome::Before };
        report.note(FILES, &format!("a link in the place of {what}"), outcome, &found);
    }
}
