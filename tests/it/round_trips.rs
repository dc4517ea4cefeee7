//! What a call costs in round trips, counted between the program and its server.
//!
//! A round trip is what is sent before something comes back: however many statements are in it. A login is many.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::crash::query;
use super::harness::{Cluster, cluster};
use super::program::{Home, Stdio, Transport};

/// What a session is reset with; nobody waits for it.
const RESET: &[u8] = b"DISCARD ALL";
/// The profile that is counted.
const PROFILE: &str = "counted";
/// Calls that are counted.
const CALLS: usize = 15;
/// How long a reset may take to be seen.
const PATIENCE: Duration = Duration::from_secs(20);

/// A way to the server on which everything is counted.
struct Counting {
    port: u16,
    counts: Arc<Mutex<Counts>>,
}

/// What went over all connections.
#[derive(Clone, Debug, Default)]
struct Counts {
    /// Round trips, resets apart.
    trips: usize,
    resets: usize,
    logins: usize,
    /// What was sent in each, cut short: for whoever reads a failure.
    sent: Vec<String>,
}

impl Counting {
    fn before(cluster: &Cluster) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let counts: Arc<Mutex<Counts>> = Arc::default();
        let (for_threads, server) = (Arc::clone(&counts), cluster.port);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(upstream) = TcpStream::connect(("127.0.0.1", server)) else { return };
                relay(client, upstream, &for_threads);
            }
        });
        Self { port, counts }
    }

    fn counts(&self) -> Counts {
        self.counts.lock().unwrap().clone()
    }
}

/// Passes everything on, both ways, in threads of their own.
fn relay(client: TcpStream, server: TcpStream, counts: &Arc<Mutex<Counts>>) {
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    counts.lock().unwrap().logins += 1;
    // Whether the client spoke last.
    let asked = Arc::new(Mutex::new(false));
    let (mut from_client, mut to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    let (for_client, for_counts) = (Arc::clone(&asked), Arc::clone(counts));
    thread::spawn(move || {
        pass(&mut from_client, &mut to_server, |bytes| {
            let mut asked = for_client.lock().unwrap();
            let mut counts = for_counts.lock().unwrap();
            if bytes.windows(RESET.len()).any(|window| window == RESET) {
                counts.resets += 1;
            } else if !*asked {
                counts.trips += 1;
                let text = bytes.iter().filter(|b| b.is_ascii_graphic() || **b == b' ').take(160);
                counts.sent.push(text.map(|&b| char::from(b)).collect());
            }
            *asked = true;
        });
    });
    let (mut from_server, mut to_client) = (server, client);
    thread::spawn(move || pass(&mut from_server, &mut to_client, |_| *asked.lock().unwrap() = false));
}

fn pass(from: &mut TcpStream, to: &mut TcpStream, mut seen: impl FnMut(&[u8])) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        seen(&buffer[..read]);
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    to.shutdown(Shutdown::Both).ok();
}

/// A program whose one profile is reached through `counting`.
fn home(cluster: &Cluster, counting: &Counting) -> Home {
    let home = Home::fresh();
    let config = home.path().join("config.json");
    let url = cluster.superuser_url().replace(&format!(":{}/", cluster.port), &format!(":{}/", counting.port));
    // The other is never used: it is what the home stops at its end.
    let content = json!({"defaultProfile": PROFILE, "profiles": [
        {"name": PROFILE, "adminUrl": url, "databasePrefix": "trips"}, {"name": "local", "managedLocal": true}]});
    std::fs::write(&config, content.to_string()).unwrap();
    home.with("PGSANDBOX_CONFIG", config.to_str().unwrap())
}

/// Makes a call and returns what it took, once its session is reset.
fn count(server: &mut Stdio, counting: &Counting, input: &Value) -> Counts {
    let before = counting.counts();
    let envelope = server.call("run_sql", input);
    assert_eq!(envelope["ok"], true, "{envelope:#}");
    let until = Instant::now() + PATIENCE;
    while counting.counts().resets == before.resets {
        assert!(Instant::now() < until, "the session was not reset");
        thread::yield_now();
    }
    let after = counting.counts();
    Counts {
        trips: after.trips - before.trips,
        resets: after.resets - before.resets,
        logins: after.logins - before.logins,
        sent: after.sent[before.sent.len()..].to_vec(),
    }
}

#[test]
fn a_read_costs_one_round_trip_more_than_its_statement_and_a_write_as_much() {
    let cluster = cluster();
    let counting = Counting::before(cluster);
    let home = home(cluster, &counting);
    let mut server = Stdio::start(&home);
    let made = server.call("create_database", &json!({"profile": PROFILE}));
    let id = made["result"]["databaseId"].as_str().unwrap_or_else(|| panic!("{made:#}")).to_owned();
    for (readonly, sql) in [(true, "select 1"), (true, "select 'a', 2.5"), (false, "create table if not exists t ()")] {
        let input = json!({"profile": PROFILE, "databaseId": id, "sql": sql, "readonly": readonly});
        for _ in 0..3 {
            count(&mut server, &counting, &input);
        }
        let counted: Vec<Counts> = (0..CALLS).map(|_| count(&mut server, &counting, &input)).collect();
        // The program says now and then that it lives; so the usual call is looked at.
        let mut by_trips: BTreeMap<usize, usize> = BTreeMap::new();
        counted.iter().for_each(|counts| *by_trips.entry(counts.trips).or_default() += 1);
        let usual = by_trips.iter().max_by_key(|(_, calls)| **calls).map(|(trips, _)| *trips);
        // One for the sandbox's row and what its owner has live, one for begin, snapshot, statement and rollback.
        assert_eq!(usual, Some(2), "{sql}: {:#?}", counted.iter().max_by_key(|counts| counts.trips));
        let quiet = counted.iter().filter(|counts| counts.logins == 0 && counts.resets == 1).count();
        assert!(quiet > CALLS / 2, "{sql}: {counted:#?}");
    }
    let gone = server.call("delete_database", &json!({"profile": PROFILE, "databaseId": id, "wait": true}));
    assert_eq!(gone["ok"], true, "{gone:#}");
}

/// Counts the logins into the database that a managed server is administered from, once nobody is in it any more.
fn administered(home: &Home) -> usize {
    let number = |sql: &str| -> usize { query(home, sql)[0][0].parse().unwrap() };
    let within = "datname = 'postgres' and backend_type = 'client backend'";
    let until = Instant::now() + PATIENCE;
    while number(&format!("select count(*) from pg_stat_activity where {within}")) > 0 {
        assert!(Instant::now() < until, "somebody stays in the database");
        thread::yield_now();
    }
    // A session is counted, at the latest, before it goes.
    number("select sessions from pg_stat_database where datname = 'postgres'")
}

#[test]
fn whoever_finds_a_managed_server_keeps_the_session_that_did() {
    let home = Home::with_cluster();
    let mut server = Stdio::start(&home);
    let made = server.call("create_database", &json!({}));
    let id = made["result"]["databaseId"].as_str().unwrap_or_else(|| panic!("{made:#}")).to_owned();
    assert!(server.finish().success());
    let before = administered(&home);
    let mut server = Stdio::start(&home);
    let read = server.call("run_sql", &json!({"databaseId": id, "sql": "select 1", "readonly": true}));
    assert_eq!(read["ok"], true, "{read:#}");
    assert!(server.finish().success());
    let logins = administered(&home) - before;
    // Upkeep, which begins beside the first call, may want one of its own.
    assert!((1..=2).contains(&logins), "{logins} logins into `postgres` for one call");
}

/// Makes a sandbox several times, each of which is removed again, and returns the least that it took: round trips, logins,
/// and what was sent. The program says now and then that it lives, and upkeep looks around.
fn least(server: &mut Stdio, counting: &Counting, operation: &str, input: &Value) -> (usize, usize, Vec<String>) {
    let mut make = || {
        let before = counting.counts();
        let made = server.call(operation, input);
        assert_eq!(made["ok"], true, "{made:#}");
        let after = counting.counts();
        let sent = after.sent[before.sent.len()..].to_vec();
        let logins = after.logins - before.logins;
        let id = made["result"]["databaseId"].clone();
        let gone = server.call("delete_database", &json!({"profile": PROFILE, "databaseId": id, "wait": true}));
        assert_eq!(gone["ok"], true, "{gone:#}");
        (sent.len(), logins, sent)
    };
    make();
    (0..5).map(|_| make()).min().unwrap()
}

#[test]
fn making_a_sandbox_costs_few_round_trips_and_one_login_into_it() {
    let cluster = cluster();
    let counting = Counting::before(cluster);
    let home = home(cluster, &counting);
    let mut server = Stdio::start(&home);
    let (trips, logins, sent) = least(&mut server, &counting, "create_database", &json!({"profile": PROFILE}));
    assert_eq!((trips, logins), (21, 1), "{sent:#?}");
}

#[test]
fn a_fork_costs_few_round_trips_and_one_login_into_it() {
    let cluster = cluster();
    let counting = Counting::before(cluster);
    let home = home(cluster, &counting);
    let mut server = Stdio::start(&home);
    let source = server.call("create_database", &json!({"profile": PROFILE}));
    let id = source["result"]["databaseId"].clone();
    let sql = "create table t (a int primary key); create function f() returns int language sql return 1";
    let filled = server.call("run_sql", &json!({"profile": PROFILE, "databaseId": id, "sql": sql}));
    assert_eq!(filled["ok"], true, "{filled:#}");
    let input = json!({"profile": PROFILE, "databaseId": id});
    let (trips, logins, sent) = least(&mut server, &counting, "fork_database", &input);
    // One for the row, and one in which the copy is given to its roles and opened to them.
    let commits = sent.iter().filter(|sent| sent.ends_with("QCOMMIT")).count();
    assert_eq!((trips, logins, commits), (33, 1, 2), "{sent:#?}");
}
