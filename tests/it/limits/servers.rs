//! Servers of a managed cluster that hold its data and let nobody in, and what a killed one has left: each is waited for
//! as long as it may take, then given up with its process named, and nothing is lost by it.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio as Pipe};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use super::deadlines::{check, make, under};
use crate::crash::cluster;
use crate::hostile::wait;
use crate::program::{Home, Stdio};

/// For longer than anything is waited for.
const LONG: &str = "250";

/// A process that is ended with its value, if it has not ended by then.
struct Process(Child);

impl Process {
    fn start(command: &mut Command) -> Self {
        Self(command.stdin(Pipe::null()).stdout(Pipe::null()).stderr(Pipe::null()).spawn().unwrap())
    }

    /// A process that works in the cluster's data, as its server does.
    fn in_data(data: &Path, script: &str) -> Self {
        Self::start(Command::new("/bin/sh").args(["-c", script]).current_dir(data))
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Makes a home with a sandbox, and stops its server. Returns where the data is.
fn stopped_home() -> (Home, String, PathBuf) {
    let home = Home::fresh();
    let (id, _) = make(&home);
    stop(&home);
    let data = cluster(&home).join("data");
    (home, id, data)
}

fn stop(home: &Home) {
    let stopped = home.run(&["local", "stop"]);
    assert!(stopped.status.success(), "{}", String::from_utf8_lossy(&stopped.stderr));
}

/// Expects that the server starts and has what it had.
fn check_serves(home: &Home, id: &str) {
    let mut stdio = Stdio::start(home);
    let listed = check(&mut stdio, "list_databases", &json!({}), "ok");
    assert_eq!(listed["result"]["databases"][0]["databaseId"], id, "{listed:#}");
    check(&mut stdio, "run_sql", &json!({"databaseId": id, "sql": "select 1"}), "ok");
    assert!(stdio.finish().success());
}

/// Expects that the server is given up, and why.
fn check_given_up(stdio: &mut Stdio, says: &str) {
    let reply = check(stdio, "list_databases", &json!({}), "ok");
    let failure = &reply["result"]["failures"][0];
    assert_eq!(failure["code"], "local_postgres_unavailable", "{reply:#}");
    assert!(failure["message"].as_str().unwrap().contains(says), "`{says}` is not in: {reply:#}");
}

/// Writes down that a process is the data's server; `state` is what Postgres says of itself there.
fn note_server(data: &Path, pid: u32, state: &str) {
    let lines = format!("{pid}\n{}\n0\n0\n\n\n\n{state}\n", data.display());
    fs::write(data.join("postmaster.pid"), lines).unwrap();
}

/// A server that answers each login by saying that it is starting up.
struct Starting {
    path: PathBuf,
    asked: Arc<AtomicU32>,
    over: Arc<AtomicBool>,
}

impl Starting {
    fn listen(path: PathBuf) -> Self {
        let listener = UnixListener::bind(&path).unwrap();
        let this = Self { path, asked: Arc::default(), over: Arc::default() };
        let (asked, over) = (Arc::clone(&this.asked), Arc::clone(&this.over));
        thread::spawn(move || {
            let fields = b"SFATAL\0VFATAL\0C57P03\0Mthe database system is starting up\0\0";
            let length = u32::try_from(fields.len()).unwrap() + 4;
            let answer = [b"E".as_slice(), &length.to_be_bytes(), fields].concat();
            for caller in listener.incoming() {
                if over.load(Ordering::SeqCst) {
                    return;
                }
                let mut caller = caller.unwrap();
                let mut head = [0; 4];
                caller.read_exact(&mut head).unwrap();
                let rest = u64::from(u32::from_be_bytes(head)) - 4;
                std::io::copy(&mut Read::by_ref(&mut caller).take(rest), &mut std::io::sink()).unwrap();
                caller.write_all(&answer).ok();
                asked.fetch_add(1, Ordering::SeqCst);
            }
        });
        this
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        drop(std::os::unix::net::UnixStream::connect(&self.path));
        fs::remove_file(&self.path).ok();
    }
}

#[test]
fn a_server_that_holds_the_data_and_does_not_come_up_is_waited_for_and_then_given_up() {
    let (home, id, data) = stopped_home();
    // One that somebody else started, and that says nothing of itself.
    let other = Process::start(Command::new("sleep").arg(LONG).current_dir(&data));
    note_server(&data, other.pid(), "starting");
    let mut stdio = under(&home, "");
    check_given_up(&mut stdio, &format!("process {} holds its data", other.pid()));
    assert!(stdio.finish().success());
    // The same server says that it is ready, and lets nobody in. Ours is another, to which no earlier failure stands.
    let mut stdio = under(&home, "");
    note_server(&data, other.pid(), "ready");
    let port = fs::read_to_string(cluster(&home).join("port")).unwrap();
    let starting = Starting::listen(cluster(&home).join(format!("run/.s.PGSQL.{}", port.trim())));
    check_given_up(&mut stdio, "the database system is starting up");
    assert!(starting.asked.load(Ordering::SeqCst) > 2, "it was asked once only");
    assert!(stdio.finish().success());
    drop((starting, other));
    // One that goes away in time is waited for, and ours starts.
    let going = Process::start(Command::new("sleep").arg("1").current_dir(&data));
    note_server(&data, going.pid(), "stopping");
    check_serves(&home, &id);
}

#[test]
fn what_a_killed_server_has_left_is_asked_to_end_then_killed_and_given_up_if_it_comes_back() {
    let (home, id, data) = stopped_home();
    // What counts as a process of Postgres' is one of that name that works in the data.
    let program = home.path().join("postgres-left");
    fs::copy("/bin/sleep", &program).unwrap();
    let program = program.display();
    let obedient = Process::in_data(&data, &format!("exec {program} {LONG}"));
    let mut deaf = Process::in_data(&data, &format!("trap '' QUIT; exec {program} {LONG}"));
    let begun = Instant::now();
    check_serves(&home, &id);
    // Five seconds, as nothing shortens them here.
    assert!(begun.elapsed() >= Duration::from_secs(5), "{:?}", begun.elapsed());
    let ended = |process: &mut Process| process.0.wait().unwrap().signal();
    assert_eq!(ended(&mut deaf), Some(Signal::KILL.as_raw()));
    let mut obedient = obedient;
    assert_eq!(ended(&mut obedient), Some(Signal::QUIT.as_raw()));
    stop(&home);
    // Whatever it does, some come back: more than one, so that there is no moment without any.
    let again = || Process::in_data(&data, &format!("trap '' QUIT; while :; do {program} {LONG}; done"));
    let again = [again(), again(), again()];
    let there = || left(&data);
    wait(Duration::from_secs(60), || there() == again.len());
    let mut stdio = Stdio::start_with(&home, &[("PGSANDBOX_TEST_DEADLINE_MS", "1000")], Pipe::inherit());
    check_given_up(&mut stdio, "of a killed server holds its data");
    assert!(stdio.finish().success());
    drop(again);
    check_serves(&home, &id);
    assert_eq!(there(), 0);
}

/// Counts the processes that lie about in the data.
fn left(data: &Path) -> usize {
    let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let lies = |process: &PathBuf| {
        let program = fs::read_link(process.join("exe")).unwrap_or_default();
        program.ends_with("postgres-left") && fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd == data)
    };
    processes.filter(lies).count()
}
