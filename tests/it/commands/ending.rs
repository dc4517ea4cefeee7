//! A command ends with its call, and all that came of it.

use std::fs;
use std::time::{Duration, Instant};

use pgsandbox::command::{Ended, Stopped};
use tokio_util::sync::CancellationToken;

use super::Ground;
use crate::harness::runs;

/// Leaves the shell's group and session behind, twice, and writes its number.
const DAEMON: &str = "(setsid bash -c '(setsid bash -c \"echo \\$\\$ > daemon.pid; trap \\\"\\\" TERM HUP INT; exec sleep 600\" &) ; exit 0' &)
while [ ! -s daemon.pid ]; do read -t 0.01 <> <(:) || true; done";

fn daemon(ground: &Ground) -> String {
    fs::read_to_string(ground.root.join("repo/daemon.pid")).unwrap().trim().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exit_codes_and_signals_are_told() {
    let ground = Ground::new();
    for (script, expected) in
        [("exit 0", Ended::Exited(0)), ("exit 3", Ended::Exited(3)), ("kill -9 $$", Ended::Signalled(9))]
    {
        let ran = ground.run(&ground.script(script)).await.unwrap();
        assert_eq!((ran.ended, ran.stopped, ran.left_behind), (expected, None, 0), "{script}");
    }
    assert_eq!(ground.output("cat").await, "read me");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_of_a_session_of_its_own_ends_with_the_command() {
    let ground = Ground::new();
    let ran = ground.run(&ground.script(DAEMON)).await.unwrap();
    assert_eq!(ran.ended, Ended::Exited(0), "{}", ran.stderr.text);
    assert!(ran.left_behind >= 1);
    assert!(!runs(&daemon(&ground)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_will_not_end_is_killed_when_its_time_is_over() {
    let ground = Ground::new();
    let script = ground.script(&format!("trap '' TERM INT HUP\n{DAEMON}\nwhile :; do :; done"));
    let began = Instant::now();
    let ran = ground.run_for(&script, Duration::from_secs(2), CancellationToken::new()).await.unwrap();
    assert_eq!((ran.ended, ran.stopped), (Ended::Signalled(9), Some(Stopped::TimedOut)));
    assert!(began.elapsed() < Duration::from_secs(30));
    assert!(!runs(&daemon(&ground)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_command_is_asked_to_end() {
    let ground = Ground::new();
    let cancel = CancellationToken::new();
    let script = ground.script("trap 'echo bye; exit 7' TERM\necho > begun\nwhile :; do :; done");
    let begun = ground.root.join("repo/begun");
    let canceller = cancel.clone();
    let watcher = std::thread::spawn(move || {
        while !begun.exists() {
            std::thread::yield_now();
        }
        canceller.cancel();
    });
    let ran = ground.run_for(&script, Duration::from_secs(60), cancel).await.unwrap();
    watcher.join().unwrap();
    assert_eq!((ran.ended, ran.stopped), (Ended::Exited(7), Some(Stopped::Cancelled)));
    assert_eq!(ran.stdout.text, "bye\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_whose_call_is_dropped_ends_with_all_that_came_of_it() {
    let ground = Ground::new();
    let script = ground.script(&format!("echo $$ > own.pid\n{DAEMON}\nwhile :; do :; done"));
    {
        let call = ground.run_for(&script, Duration::from_secs(60), CancellationToken::new());
        let path = ground.root.join("repo/daemon.pid");
        let there = tokio::task::spawn_blocking(move || {
            while fs::read_to_string(&path).map_or(true, |text| text.is_empty()) {
                std::thread::yield_now();
            }
        });
        tokio::select! {
            _ = call => panic!("it ended"),
            there = there => there.unwrap(),
        }
    }
    let own = fs::read_to_string(ground.root.join("repo/own.pid")).unwrap().trim().to_owned();
    let since = Instant::now();
    while runs(&own) || runs(&daemon(&ground)) {
        assert!(since.elapsed() < Duration::from_secs(20), "it runs on");
        std::thread::yield_now();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_streams_without_end_are_bounded_and_do_not_hold_each_other_up() {
    let ground = Ground::new();
    let script = ground.script("yes hunter2-hunter2 >&2 &\nexec yes out");
    let ran = ground.run_for(&script, Duration::from_secs(2), CancellationToken::new()).await.unwrap();
    assert_eq!(ran.stopped, Some(Stopped::TimedOut));
    for (stream, line) in [(&ran.stdout, "out\n"), (&ran.stderr, "***\n")] {
        assert!(stream.truncated && stream.bytes > 1_000_000, "{}", stream.bytes);
        assert!(stream.text.chars().count() <= 8000 && stream.text.starts_with(line));
        assert!(!stream.text.contains("hunter2"));
    }
}
