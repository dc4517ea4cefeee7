//! A command ends with its call, and all that came of it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use pgsandbox::command::{CommandError, Ended, Namespace, Stopped};
use pgsandbox::model::{Code, Failure};
use tokio_util::sync::CancellationToken;

use super::Ground;
use crate::harness::{not_tried, runs_in};

/// Leaves the shell's group and session behind, twice, and writes its number.
const DAEMON: &str = "(setsid bash -c '(setsid bash -c \"echo \\$\\$ > daemon.pid; trap \\\"\\\" TERM HUP INT; exec sleep 600\" &) ; exit 0' &)
while [ ! -s daemon.pid ]; do read -t 0.01 <> <(:) || true; done";

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

/// Both ways in which what comes of a command is ended.
const WAYS: [Namespace; 2] = [Namespace::WhenAvailable, Namespace::Never];

async fn check_a_daemon(namespace: Namespace) {
    let mut ground = Ground::new();
    ground.settings.namespace = namespace;
    let ran = ground.run(&ground.script(DAEMON)).await.unwrap();
    assert_eq!(ran.ended, Ended::Exited(0), "{}", ran.stderr.text);
    assert!(ran.left_behind >= 1);
    assert!(!runs_in(&ground.root));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_of_a_session_of_its_own_ends_with_the_command() {
    for way in WAYS {
        check_a_daemon(way).await;
    }
}

/// Begins chains of processes, in a session each, of which every one makes the next and ends at once, and ends itself.
/// They end by the clock.
const CHAINS: &str = r#"exec perl -MPOSIX -e '
my $end = time + 8;
for (1 .. 24) {
    next if fork;
    POSIX::setsid();
    open STDOUT, ">/dev/null"; open STDERR, ">/dev/null";
    while (time < $end) { my $next = fork; POSIX::_exit(0) if $next; select undef, undef, undef, 0.001 if !defined $next; }
    POSIX::_exit(0);
}
POSIX::_exit(0)'"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chains_of_processes_that_outrun_every_look_end_with_the_command() {
    for way in WAYS {
        let mut ground = Ground::new();
        ground.settings.namespace = way;
        match ground.run(&ground.script(CHAINS)).await {
            Ok(ran) => {
                assert_eq!(ran.ended, Ended::Exited(0), "{}", ran.stderr.text);
                assert!(!runs_in(&ground.root), "{way:?}: after {:?}", ran.elapsed);
            }
            // Without numbers of its own it is a race, which is told if it was lost.
            Err(CommandError::Remains { count, .. }) if way != Namespace::WhenAvailable => assert!(count > 0),
            Err(error) => panic!("{way:?}: {error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_of_too_many_processes_and_threads_is_ended() {
    let threads = "import threading, time\nthreading.stack_size(32768)\n\
                   for _ in range(2100): threading.Thread(target=time.sleep, args=(8,), daemon=True).start()\ntime.sleep(8)";
    let rooted = rustix::process::geteuid().is_root();
    for way in WAYS {
        let mut ground = Ground::new();
        ground.settings.namespace = way;
        fs::write(ground.root.join("repo/many.py"), threads).unwrap();
        match ground.run(&["python3".to_owned(), "many.py".to_owned()]).await {
            Err(CommandError::NotFound { .. }) => return not_tried("`python3` is not installed here"),
            Err(error) => {
                let failure = Failure::from(error);
                assert_eq!(failure.code, Code::UnsafeCommand, "{failure:?}");
                assert!(failure.message.contains("more than 2048 processes and threads"), "{}", failure.message);
            }
            // The kernel counts those of a user's own namespace, and makes no more.
            Ok(ran) => {
                assert!(!rooted && way == Namespace::WhenAvailable && ran.stderr.text.contains("thread"), "{ran:?}")
            }
        }
        assert!(!runs_in(&ground.root));
    }
}

/// Puts a program in the supervisor's place that gives a report of its own, once, and then is the supervisor.
fn reports(ground: &mut Ground, report: &str) {
    let (hook, said) = (ground.root.join("hook"), ground.root.join("said").display().to_string());
    let program = ground.settings.supervisor.display().to_string();
    let text = format!(
        "#!/usr/bin/perl\nexec '{program}', @ARGV if -e '{said}';\nopen my $f, '>', '{said}'; open my $to, '>&=0';\n\
         sub get {{ my ($n, $got) = (shift, ''); sysread STDIN, $got, $n - length $got, length $got or die while length $got < $n; $got }}\n\
         get(unpack 'V', get(4)); my $said = '{report}'; syswrite $to, pack('V', length $said) . $said;\n"
    );
    fs::write(&hook, text).unwrap();
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
    ground.settings.supervisor = hook;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_of_which_something_could_not_be_ended_fails_and_says_so() {
    let mut ground = Ground::new();
    reports(&mut ground, r#"{"ending":{"Exited":0},"left_behind":3,"remaining":2}"#);
    let failure = Failure::from(ground.run(&ground.script("exit 0")).await.unwrap_err());
    assert_eq!(failure.code, Code::Internal);
    assert!(failure.message.contains("`./script` ended, and 2 processes"), "{}", failure.message);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_the_kernel_gives_no_namespace_a_command_runs_without() {
    let mut ground = Ground::new();
    reports(&mut ground, r#"{"ending":"NoNamespace","left_behind":0,"remaining":0}"#);
    // Its number is one of the system's then.
    let number = ground.output("cat; echo; echo $$").await;
    let number: u32 = number.strip_prefix("read me\n").unwrap().trim().parse().unwrap();
    assert!(number > 20, "{number}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_sees_no_other_processes_where_it_has_numbers_of_its_own() {
    let ground = Ground::new();
    let out = ground.output("readlink /proc/self/ns/pid; echo $$; cd /proc; echo [0-9]*; exit 0").await;
    let lines: Vec<&str> = out.lines().collect();
    let own = fs::read_link("/proc/self/ns/pid").unwrap();
    if lines[0] == own.to_str().unwrap() {
        return not_tried("this kernel gives no namespace of process numbers");
    }
    assert!(lines[1].parse::<u32>().unwrap() < 20, "{out}");
    // Where parts of `/proc` are covered, a new one cannot be shown.
    if rustix::process::geteuid().is_root() {
        assert!(lines[2].split(' ').count() <= 4, "{out}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_will_not_end_is_killed_when_its_time_is_over() {
    let ground = Ground::new();
    let script = ground.script(&format!("trap '' TERM INT HUP\n{DAEMON}\nwhile :; do :; done"));
    let began = Instant::now();
    let ran = ground.run_for(&script, Duration::from_secs(2), CancellationToken::new()).await.unwrap();
    assert_eq!((ran.ended, ran.stopped), (Ended::Signalled(9), Some(Stopped::TimedOut)));
    assert!(began.elapsed() < Duration::from_secs(30));
    assert!(!runs_in(&ground.root));
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
    let script = ground.script(&format!("{DAEMON}\nwhile :; do :; done"));
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
    let since = Instant::now();
    while runs_in(&ground.root) {
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
