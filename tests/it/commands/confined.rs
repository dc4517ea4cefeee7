//! What a command reaches of the machine, and what it is told.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::Duration;

use pgsandbox::command::Ended;
use tokio_util::sync::CancellationToken;

use super::{Ground, confines};

/// Tries to read and to write what the first argument names.
const TRY: &str =
    "try() { cat \"$1\" >/dev/null 2>&1 && echo read $2; { : >> \"$1\"; } 2>/dev/null && echo written $2; }\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_repository_and_the_caches_are_writable_and_the_state_is_out_of_reach() {
    if !confines() {
        return;
    }
    let ground = Ground::new();
    let root = ground.root.display();
    let script = format!(
        "{TRY}touch repo-file\ntry repo-file repository\ntry {root}/home/.npm/x cache\ntry \"$TMPDIR/x\" temporary\n\
         try {root}/state/keys state\ntry {root}/home/.ssh/id key\ntry {root}/home/x home\ntry /etc/passwd passwd\n\
         ls {root}/state {root}/home >/dev/null 2>&1 && echo listed\n\
         ln -s {root}/state/keys link; try link link\n\
         ln {root}/state/keys hard 2>/dev/null && echo linked\n\
         mv {root}/state/keys moved 2>/dev/null && echo moved\n\
         cat /proc/$PPID/environ >/dev/null 2>&1 && echo environ\n\
         cat /proc/$PPID/root{root}/state/keys >/dev/null 2>&1 && echo root\n\
         kill -0 $PPID 2>/dev/null && echo signalled\n\
         rights=$((16#$(sed -n 's/^CapPrm:.//p' /proc/self/status))); echo $((rights & ~0x4fb))\n\
         grep -c '^NoNewPrivs:.1$' /proc/self/status\n\
         exit 0"
    );
    let out = ground.output(&script).await;
    let expected = "read repository\nwritten repository\nwritten cache\nwritten temporary\nread passwd\n0\n1\n";
    // As root the rules alone keep the system's own files, and a process's environment.
    assert_eq!(out, expected);
    assert_eq!(fs::read_to_string(ground.root.join("state/keys")).unwrap(), "the master key");
}

/// What a command does that began in a directory which was swapped for a link to the state: it is where it was judged to
/// be, and the link leads nowhere.
const SWAPPED: &str = "pwd; ls; cat state-of 2>/dev/null; cat keys $ROOT/repo/keys $ROOT/cache/keys $ROOT/state/keys 2>/dev/null
: 2>/dev/null >> $ROOT/repo/keys; : 2>/dev/null >> $ROOT/cache/keys; touch $ROOT/repo/new $ROOT/cache/new here 2>/dev/null; exit 0";

fn swappable() -> Ground {
    let mut ground = Ground::new();
    fs::create_dir(ground.root.join("cache")).unwrap();
    ground.settings.further.writable.push(ground.root.join("cache"));
    ground.variables.push(("ROOT".to_owned(), ground.root.display().to_string()));
    ground
}

fn check_swapped(ground: &Ground, said: &str) {
    let aside = ground.root.join("repo-aside");
    assert_eq!(said, format!("{}\nscript\n", aside.display()));
    assert!(aside.join("here").exists());
    assert_eq!(fs::read_to_string(ground.root.join("state/keys")).unwrap(), "the master key");
    assert!(!ground.root.join("state/new").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repository_that_is_swapped_once_it_was_judged_is_still_the_one_that_was() {
    if !confines() {
        return;
    }
    let ground = swappable();
    let argv = ground.script(SWAPPED);
    let commands = ground.commands();
    let repo = commands.open(ground.root.join("repo").to_str().unwrap()).unwrap();
    for name in ["repo", "cache"] {
        fs::rename(ground.root.join(name), ground.root.join(format!("{name}-aside"))).unwrap();
        symlink(ground.root.join("state"), ground.root.join(name)).unwrap();
    }
    let run = ground.run_in(&commands, &repo, &argv, Duration::from_secs(60), CancellationToken::new());
    let ran = run.await.unwrap();
    assert_eq!(ran.ended, Ended::Exited(0), "{}", ran.stderr.text);
    check_swapped(&ground, &ran.stdout.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_swapped_when_the_supervisor_begins_is_not_allowed_either() {
    if !confines() {
        return;
    }
    let mut ground = swappable();
    let program = ground.settings.supervisor.display().to_string();
    let root = ground.root.display().to_string();
    // Stands before the supervisor: all rules are made by then, and none is enforced yet.
    let hook = ground.root.join("hook");
    let swap =
        |name: &str| format!("/bin/mv {root}/{name} {root}/{name}-aside; /bin/ln -s {root}/state {root}/{name}\n");
    let text = format!("#!/bin/bash\n{}{}exec {program} \"$@\"\n", swap("repo"), swap("cache"));
    fs::write(&hook, text).unwrap();
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
    ground.settings.supervisor = hook;
    let ran = ground.run(&ground.script(SWAPPED)).await.unwrap();
    assert_eq!(ran.ended, Ended::Exited(0), "{}", ran.stderr.text);
    check_swapped(&ground, &ran.stdout.text);
}
