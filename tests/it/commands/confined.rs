//! What a command reaches of the machine, and what it is told.

use std::fs;

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
