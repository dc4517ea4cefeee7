//! The real program where things go wrong around it: killed, started many times at once, its server, its port, its log
//! or its disk taken away, told to end.
//!
//! Always: a typed error, nothing lost, nothing left, the program alive. `tests/crash/run.py` does the same as the first
//! test with as many kills as one likes. What needs a file system of its own is tried where tests run as root.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio as Pipe};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio_postgres::{NoTls, SimpleQueryMessage};

use super::harness::block_on;
use super::program::{Home, Stdio, Transport};

/// How long a new server may take until nothing is left undone: some rounds of upkeep on a busy machine.
const SETTLED_WITHIN: Duration = Duration::from_secs(90);
/// How often the inspector looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// More than a server keeps of sessions with one sandbox.
const SESSIONS_KEPT: usize = 8;
/// Servers started at once.
const SERVERS: usize = 8;

const BASE_POLICIES: &str = "\
[[policy]]\nsource = \"ownership\"\n[[policy]]\nsource = \"statement-guard\"\n[[policy]]\nsource = \"extensions\"\n";

/// Returns a fresh home whose policies are the base with `more`.
fn home_with_policies(more: &str) -> Home {
    let home = Home::fresh();
    let policies = home.path().join("policies.toml");
    fs::write(&policies, format!("{BASE_POLICIES}{more}")).unwrap();
    let config = home.path().join("config.json");
    let content = json!({"policies": policies, "profiles": [{"name": "local", "managedLocal": true}]});
    fs::write(&config, content.to_string()).unwrap();
    home.with("PGSANDBOX_CONFIG", config.to_str().unwrap())
}

/// Returns the folder of the one cluster in a home.
pub(super) fn cluster(home: &Home) -> PathBuf {
    let clusters: Vec<_> = fs::read_dir(home.state().join("postgres/postgres")).unwrap().flatten().collect();
    assert_eq!(clusters.len(), 1, "one cluster");
    clusters[0].path()
}

/// Returns how the cluster's superuser is let in, through its private socket.
pub(super) fn config(home: &Home) -> tokio_postgres::Config {
    let cluster = cluster(home);
    let read = |name: &str| fs::read_to_string(cluster.join(name)).unwrap().trim().to_owned();
    let mut config = tokio_postgres::Config::new();
    config
        .host_path(read("socket-directory"))
        .port(read("port").parse().unwrap())
        .user("pgsandbox_admin")
        .password(read("admin-password"))
        .dbname("pgsandbox");
    config
}

/// Returns rows as the cluster's superuser sees them.
pub(super) fn query(home: &Home, sql: &str) -> Vec<Vec<String>> {
    let config = config(home);
    block_on(async {
        let (client, connection) = config.connect(NoTls).await.unwrap();
        let connection = tokio::spawn(connection);
        let messages = client.simple_query(sql).await.unwrap();
        drop(client);
        connection.await.unwrap().unwrap();
        let rows = messages.into_iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some((0..row.len()).map(|i| row.get(i).unwrap_or("").to_owned()).collect()),
            _ => None,
        });
        rows.collect()
    })
}

fn count(home: &Home, sql: &str) -> usize {
    query(home, sql)[0][0].parse().unwrap()
}

/// Waits until nothing is being made or removed any more.
pub(super) fn settle(home: &Home) {
    let unsettled = "select count(*) from (
        select id from pgsandbox.sandboxes where state in ('creating', 'deleting') or (state = 'ready' and expires_at < now())
        union select sandbox_id from pgsandbox.plans where state in ('running', 'undoing')) as x";
    let until = Instant::now() + SETTLED_WITHIN;
    while count(home, unsettled) > 0 {
        let stuck = "select b.database_name, b.state, p.kind, p.state, p.attempts, p.last_error
                     from pgsandbox.sandboxes b left join pgsandbox.plans p on p.sandbox_id = b.id
                     where b.state in ('creating', 'deleting')";
        assert!(Instant::now() < until, "stuck: {:?}", query(home, stuck));
        thread::sleep(LOOK_AGAIN);
    }
}

/// Checks that what is on the cluster and what the metadata says is the same; returns the ready sandboxes with their names.
pub(super) fn check_tracked(home: &Home) -> BTreeMap<String, String> {
    let rows = query(
        home,
        "select id, database_name, owner_role, readonly_role from pgsandbox.sandboxes where state = 'ready' order by 2",
    );
    let databases = query(
        home,
        "select d.datname, r.rolname from pg_database d join pg_roles r on r.oid = d.datdba
         where d.datname like 'pgsandbox\\_%' order by 1",
    );
    let owned: Vec<Vec<String>> = rows.iter().map(|row| vec![row[1].clone(), row[2].clone()]).collect();
    assert_eq!(databases, owned, "databases with their owners, and those of the rows");
    let roles = query(
        home,
        "select rolname from pg_roles where rolname like 'pgsandbox\\_%'
         and rolname not in ('pgsandbox_admin', 'pgsandbox_direct', 'pgsandbox_withheld') order by 1",
    );
    let mut wanted: Vec<Vec<String>> =
        rows.iter().flat_map(|row| [vec![row[2].clone()], vec![row[3].clone()]]).collect();
    wanted.sort();
    assert_eq!(roles, wanted, "roles, and those of the rows");
    rows.into_iter().map(|row| (row[0].clone(), row[1].clone())).collect()
}

pub(super) fn check_audit(home: &Home) {
    let verified = home.run(&["audit", "verify"]);
    let said = String::from_utf8_lossy(&verified.stdout);
    assert!(verified.status.success() && said.contains(" 0 requests open"), "{said}");
}

pub(super) fn create(server: &mut Stdio) -> String {
    let made = server.call("create_database", &json!({}));
    assert_eq!(made["ok"], true, "{made:#}");
    made["result"]["databaseId"].as_str().unwrap().to_owned()
}

pub(super) fn sql(server: &mut Stdio, id: &str, text: &str) -> Value {
    server.call("run_sql", &json!({"databaseId": id, "sql": text}))
}

pub(super) fn rows(envelope: &Value) -> &Value {
    assert_eq!(envelope["ok"], true, "{envelope:#}");
    &envelope["result"]["resultSets"][0]["rows"]
}

pub(super) fn code(envelope: &Value) -> &str {
    envelope["errors"][0]["code"].as_str().unwrap_or("none")
}

fn begin(server: &mut Stdio, operation: &str, input: Value) -> u64 {
    server.begin("tools/call", json!({"name": operation, "arguments": input}))
}

fn envelope(server: &mut Stdio, id: u64) -> Value {
    server.answer(id)["result"]["structuredContent"].clone()
}

/// Waits until a statement that holds `mark` runs on the cluster.
fn await_statement(home: &Home, mark: &str) {
    let running = format!(
        "select count(*) from pg_stat_activity where state = 'active' and query like '%{mark}%' and pid <> pg_backend_pid()"
    );
    let until = Instant::now() + SETTLED_WITHIN;
    while count(home, &running) == 0 {
        assert!(Instant::now() < until, "`{mark}` does not run");
        thread::sleep(LOOK_AGAIN);
    }
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
}

/// Numbers that look random and are the same in every run: Knuth's MMIX generator, its upper bits.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

#[test]
fn killed_in_the_middle_of_anything_the_next_start_finds_everything_in_order() {
    let home = Home::fresh();
    let mut numbers = Numbers(20);
    let mut stock = Vec::new();
    for kill in 0..10 {
        let mut server = Stdio::start(&home);
        while stock.len() < 3 {
            stock.push(create(&mut server));
        }
        let moment = Duration::from_millis(numbers.below(150));
        match kill % 4 {
            0 | 2 => _ = begin(&mut server, "create_database", json!({"nameHint": "killed"})),
            1 => {
                let wait = numbers.below(2) == 0;
                _ = begin(&mut server, "delete_database", json!({"databaseId": stock.pop(), "wait": wait}));
            }
            _ => {
                let id = stock.pop().unwrap();
                query(
                    &home,
                    &format!("update pgsandbox.sandboxes set expires_at = now() - interval '1 s' where id = '{id}'"),
                );
                begin(&mut server, "extend_database", json!({"databaseId": stock[0], "ttlMinutes": 100}));
                begin(&mut server, "cleanup_expired", json!({}));
            }
        }
        thread::sleep(moment);
        server.kill();
    }
    let mut server = Stdio::start(&home);
    assert_eq!(server.call("list_databases", &json!({}))["ok"], true);
    settle(&home);
    let live = check_tracked(&home);
    for id in &stock {
        let name = live.get(id).unwrap_or_else(|| panic!("{id} is lost"));
        assert_eq!(*rows(&sql(&mut server, id, "select current_database()")), json!([[name]]));
    }
    assert!(server.finish().success());
    check_audit(&home);
}

/// Starts eight servers at once and has them called at once, ten calls in all; returns the envelopes.
fn ten_calls_to_eight_servers(servers: &mut [Stdio], operation: &str) -> Vec<Value> {
    thread::scope(|scope| {
        let calls = servers.iter_mut().enumerate().map(|(n, server)| {
            scope.spawn(move || {
                // Two of them are called twice.
                let ids: Vec<u64> =
                    (0..if n < 2 { 2 } else { 1 }).map(|_| begin(server, operation, json!({}))).collect();
                let mut answers: BTreeMap<u64, Value> = BTreeMap::new();
                while answers.len() < ids.len() {
                    let message = server.message(Duration::from_secs(120)).expect("an answer");
                    let answer =
                        message["id"].as_u64().filter(|id| ids.contains(id) && message.get("method").is_none());
                    if let Some(id) = answer {
                        answers.insert(id, message["result"]["structuredContent"].clone());
                    }
                }
                answers.into_values().collect::<Vec<_>>()
            })
        });
        calls.collect::<Vec<_>>().into_iter().flat_map(|call| call.join().unwrap()).collect()
    })
}

fn start_together(home: &Home) -> Vec<Stdio> {
    thread::scope(|scope| {
        let starts: Vec<_> = (0..SERVERS).map(|_| scope.spawn(|| Stdio::start(home))).collect();
        starts.into_iter().map(|start| start.join().unwrap()).collect()
    })
}

#[test]
fn eight_servers_started_at_once_share_one_cluster_one_key_and_every_budget() {
    let home = home_with_policies(
        "[[policy]]\nsource = \"quota\"\nsettings = { max_live = 3 }\n\
         [[policy]]\nsource = \"rate-limit\"\n\
         settings = { impacts = { reads = { burst = 5, per_interval = 1, interval_ms = 86400000 } } }\n",
    );
    let mut servers = start_together(&home);
    let made = ten_calls_to_eight_servers(&mut servers, "create_database");
    let listed = ten_calls_to_eight_servers(&mut servers, "list_databases");
    let of = |envelopes: &[Value], wanted: &str| envelopes.iter().filter(|e| code(e) == wanted).count();
    assert_eq!((made.len(), of(&made, "none"), of(&made, "quota_exceeded")), (10, 3, 7), "{made:#?}");
    assert_eq!((listed.len(), of(&listed, "none"), of(&listed, "rate_limited")), (10, 5, 5), "{listed:#?}");
    assert!(servers.into_iter().all(|server| server.finish().success()));
    assert_eq!(check_tracked(&home).len(), 3);
    let keys = fs::read_to_string(home.state().join("master.keys")).unwrap();
    assert_eq!(keys.lines().filter(|line| !line.starts_with('#')).count(), 1, "one key");
    let mut names: Vec<_> = fs::read_dir(cluster(&home)).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["admin-password", "data", "lock", "log", "port", "run", "socket-directory"], "and nothing else");
    assert_eq!(count(&home, "select count(*) from pgsandbox.servers"), 0, "all have signed off");
    check_audit(&home);
}

fn postmaster(home: &Home) -> u32 {
    let text = fs::read_to_string(cluster(home).join("data/postmaster.pid")).unwrap();
    text.lines().next().unwrap().parse().unwrap()
}

#[test]
fn when_postgres_is_killed_calls_say_so_and_the_next_starts_it_again() {
    let home = Home::fresh();
    let mut server = Stdio::start(&home);
    let id = create(&mut server);
    assert_eq!(sql(&mut server, &id, "create table kept as select 42 as answer")["ok"], true);
    // One sleeps, and would notice; one computes, and would not, keeping the dead server's memory for itself.
    let sleeping = begin(&mut server, "run_sql", json!({"databaseId": id, "sql": "select pg_sleep(600)"}));
    let computing =
        json!({"databaseId": id, "sql": "do $$ declare i int := 0; begin loop i := (i + 1) % 7; end loop; end $$"});
    let computing = begin(&mut server, "run_sql", computing);
    await_statement(&home, "pg_sleep(600)");
    await_statement(&home, "(i + 1)");
    signal(postmaster(&home), Signal::KILL);
    assert_eq!(code(&envelope(&mut server, sleeping)), "postgres_connection_failed");
    // A session may end under the very next call as well, a moment after its server.
    let mut answer = sql(&mut server, &id, "select answer from kept");
    for _ in 0..SESSIONS_KEPT {
        if code(&answer) == "postgres_connection_failed" {
            answer = sql(&mut server, &id, "select answer from kept");
        }
    }
    assert_eq!(*rows(&answer), json!([[42]]));
    assert_eq!(code(&envelope(&mut server, computing)), "postgres_connection_failed");
    let another = create(&mut server);
    settle(&home);
    assert_eq!(check_tracked(&home).len(), 2);
    for id in [id, another] {
        assert_eq!(server.call("delete_database", &json!({"databaseId": id, "wait": true}))["result"]["deleted"], true);
    }
    assert!(server.finish().success());
    check_audit(&home);
}

#[test]
fn a_port_that_was_taken_meanwhile_is_left_to_its_taker() {
    let home = Home::fresh();
    let mut server = Stdio::start(&home);
    let id = create(&mut server);
    let port: u16 = fs::read_to_string(cluster(&home).join("port")).unwrap().trim().parse().unwrap();
    assert!(home.run(&["local", "stop"]).status.success());
    let taker = TcpListener::bind(("127.0.0.1", port)).unwrap();
    assert_eq!(*rows(&sql(&mut server, &id, "select 1")), json!([[1]]));
    let now: u16 = query(&home, "show port")[0][0].parse().unwrap();
    assert_ne!(now, port);
    let said = server.call("get_connection_string", &json!({"databaseId": id}));
    let url = said["result"]["connectionStringRedacted"].as_str().unwrap();
    assert!(url.contains(&format!("@127.0.0.1:{now}/")), "{url}");
    drop(taker);
    assert!(server.finish().success());
}

#[test]
fn without_an_audit_log_nothing_runs_and_with_one_everything_does_again() {
    let home = Home::fresh();
    let mut server = Stdio::start(&home);
    let id = create(&mut server);
    let log = home.state().join("audit");
    fs::remove_dir_all(&log).unwrap();
    fs::write(&log, "in its place").unwrap();
    let refused = sql(&mut server, &id, "create table never (i int)");
    assert_eq!(code(&refused), "audit_unavailable", "{refused:#}");
    // One that starts now answers, and says the same.
    let mut other = Stdio::start(&home);
    assert_eq!(code(&other.call("list_databases", &json!({}))), "audit_unavailable");
    fs::remove_file(&log).unwrap();
    assert_eq!(*rows(&sql(&mut server, &id, "select to_regclass('never')")), json!([[null]]));
    assert_eq!(other.call("list_databases", &json!({}))["ok"], true);
    assert!(server.finish().success() && other.finish().success());
}

/// A small file system of its own. Unmounted when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts one, if this user may.
    fn mount(at: &Path, size: &str, mode: u32) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        fs::create_dir_all(at).unwrap();
        // What lies beneath is looked at as well, once this is gone.
        fs::set_permissions(at, PermissionsExt::from_mode(mode)).unwrap();
        let options = format!("size={size},mode={mode:o}");
        let done = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "none"]).arg(at).output().unwrap();
        done.status.success().then(|| Self(at.to_owned()))
    }

    /// Takes all the room that is left; removing the file gives it back.
    fn fill(&self) -> PathBuf {
        let path = self.0.join("filler");
        let mut file = fs::File::create(&path).unwrap();
        while std::io::Write::write(&mut file, &[0; 4096]).is_ok_and(|written| written > 0) {}
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let done = Command::new("umount").arg(&self.0).status();
        assert!(thread::panicking() || done.unwrap().success(), "{} stays mounted", self.0.display());
    }
}

#[test]
fn with_a_full_disk_under_the_audit_log_nothing_runs_until_there_is_room() {
    let home = Home::fresh();
    let log = home.state().join("audit");
    let mut server = Stdio::start(&home);
    let id = create(&mut server);
    assert!(server.finish().success());
    fs::remove_dir_all(&log).unwrap();
    let Some(disk) = SmallDisk::mount(&log, "64k", 0o700) else { return };
    let mut server = Stdio::start(&home);
    assert_eq!(server.call("list_databases", &json!({}))["ok"], true);
    let filler = disk.fill();
    let mut refused = json!({});
    // The last page of the log's file still has room for some lines.
    for n in 0..20 {
        let said = sql(&mut server, &id, &format!("create table t{n} (i int)"));
        if said["ok"] == false {
            refused = said;
            break;
        }
    }
    assert_eq!(code(&refused), "audit_unavailable", "{refused:#}");
    fs::remove_file(filler).unwrap();
    assert_eq!(server.call("list_databases", &json!({}))["ok"], true);
    assert!(server.finish().success());
    check_audit(&home);
    drop(disk);
}

#[test]
fn a_full_disk_under_everything_is_said_and_nothing_is_lost() {
    let home = Home::fresh();
    let Some(disk) = SmallDisk::mount(&home.state(), "160m", 0o711) else { return };
    let mut server = Stdio::start(&home);
    let id = create(&mut server);
    assert_eq!(sql(&mut server, &id, "create table kept as select 42 as answer")["ok"], true);
    let filler = disk.fill();
    // Whatever is hit first, the log, the record of limits or the server's data: each says what it is.
    let known = ["audit_unavailable", "limits_unavailable", "disk_full", "local_postgres_unavailable"];
    let more = ["postgres_connection_failed", "sql_failed"];
    for (operation, input) in [
        ("create_database", json!({})),
        ("run_sql", json!({"databaseId": id, "sql": "create table more as select repeat('x', 1000000)"})),
        ("create_database", json!({})),
        ("list_databases", json!({})),
    ] {
        let said = server.call(operation, &input);
        assert!(
            said["ok"] == true || known.iter().chain(&more).any(|one| *one == code(&said)),
            "{operation}: {said:#}"
        );
    }
    fs::remove_file(filler).unwrap();
    assert_eq!(*rows(&sql(&mut server, &id, "select answer from kept")), json!([[42]]));
    create(&mut server);
    settle(&home);
    check_tracked(&home);
    assert!(server.finish().success());
    check_audit(&home);
    assert!(home.run(&["local", "stop"]).status.success());
    drop(disk);
}

/// Fills whatever is free, by its own login, as long as it is let in. Ends when the flag is set.
fn fill_directly(url: String, stop: Arc<AtomicBool>) -> thread::JoinHandle<()> {
    let rows = |text: &str| format!("do $$ begin loop insert into filled select {text}; commit; end loop; end $$");
    let large = rows("repeat(md5(random()::text), 30000) from generate_series(1, 4)");
    let small = rows("'x' from generate_series(1, 5000)");
    thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            Command::new("psql").args(["-XAtq", "-c", &large, "-c", &small, &url]).output().unwrap();
            thread::sleep(LOOK_AGAIN);
        }
    })
}

#[test]
fn a_sandbox_that_fills_the_disk_to_its_last_byte_keeps_nobody_from_removing_what_is_there() {
    let home = Home::fresh();
    let Some(disk) = SmallDisk::mount(&home.state(), "460m", 0o711) else { return };
    let mut server = Stdio::start(&home);
    let (filling, other, last) = (create(&mut server), create(&mut server), create(&mut server));
    assert_eq!(sql(&mut server, &filling, "create table filled (t text)")["ok"], true);
    let asked = json!({"databaseId": filling, "includeCredentials": true});
    let url = server.call("get_connection_string", &asked)["result"]["connectionString"].as_str().unwrap().to_owned();
    let stop = Arc::new(AtomicBool::new(false));
    let fillers: Vec<_> = (0..4).map(|_| fill_directly(url.clone(), stop.clone())).collect();
    // Somebody else on the same disk takes what it leaves.
    let until = Instant::now() + Duration::from_secs(60);
    while rustix::fs::statvfs(home.state()).unwrap().f_bavail * 4096 > 72 << 20 {
        assert!(Instant::now() < until, "the disk is not filled");
        thread::sleep(LOOK_AGAIN);
    }
    let filler = disk.fill();
    let removed = |server: &mut Stdio, id: &str| {
        let until = Instant::now() + Duration::from_secs(90);
        loop {
            let said = server.call("delete_database", &json!({"databaseId": id, "wait": true}));
            if said["ok"] == true && said["result"]["status"] != "deleting" {
                return;
            }
            assert!(Instant::now() < until, "{said:#}");
            thread::sleep(LOOK_AGAIN);
        }
    };
    removed(&mut server, &other);
    removed(&mut server, &filling);
    // A program that begins now as well.
    let by_command = home.run(&["delete-database", "--database-id", &last, "--wait"]);
    assert!(by_command.status.success(), "{by_command:?}");
    stop.store(true, Ordering::Relaxed);
    fillers.into_iter().for_each(|filler| filler.join().unwrap());
    fs::remove_file(filler).unwrap();
    create(&mut server);
    settle(&home);
    check_tracked(&home);
    assert!(server.finish().success());
    check_audit(&home);
    assert!(home.run(&["local", "stop"]).status.success());
    drop(disk);
}

#[test]
fn the_end_of_input_waits_for_what_runs() {
    let home = Home::fresh();
    let mut server = Stdio::start(&home);
    let id = create(&mut server);
    let sleeping = begin(&mut server, "run_sql", json!({"databaseId": id, "sql": "select pg_sleep(1), 7 as n"}));
    let making = begin(&mut server, "create_database", json!({}));
    server.end_input();
    let mut answers = BTreeMap::new();
    while let Some(message) = server.message(Duration::from_secs(60)) {
        answers.insert(message["id"].as_u64().unwrap_or(u64::MAX), message["result"]["structuredContent"].clone());
    }
    assert_eq!(rows(&answers[&sleeping])[0][1], 7);
    assert_eq!(answers[&making]["ok"], true, "{answers:#?}");
    assert!(server.finish().success());
    assert_eq!(check_tracked(&home).len(), 2);
    check_audit(&home);
}

#[test]
fn a_signal_ends_the_server_in_order() {
    let home = Home::fresh();
    for (sent, sandboxes) in [(Signal::TERM, 2), (Signal::INT, 4)] {
        let mut server = Stdio::start(&home);
        let id = create(&mut server);
        let sleeping = begin(&mut server, "run_sql", json!({"databaseId": id, "sql": "select pg_sleep(1.5), 7 as n"}));
        let making = begin(&mut server, "create_database", json!({}));
        await_statement(&home, "pg_sleep(1.5)");
        signal(server.pid(), sent);
        assert_eq!(rows(&envelope(&mut server, sleeping))[0][1], 7);
        assert_eq!(envelope(&mut server, making)["ok"], true);
        assert!(server.wait().success());
        assert_eq!(check_tracked(&home).len(), sandboxes);
    }
    check_audit(&home);
}

#[test]
fn what_outlasts_a_signal_is_given_up_and_ended_on_the_server_as_well() {
    let home = Home::fresh();
    let mut server = Stdio::start(&home);
    let id = create(&mut server);
    begin(&mut server, "run_sql", json!({"databaseId": id, "sql": "select pg_sleep(590)", "timeoutSeconds": 300}));
    await_statement(&home, "pg_sleep(590)");
    let begun = Instant::now();
    signal(server.pid(), Signal::TERM);
    assert!(server.wait().success());
    assert!(begun.elapsed() < Duration::from_secs(40), "it took {:?}", begun.elapsed());
    let until = Instant::now() + Duration::from_secs(10);
    while count(
        &home,
        "select count(*) from pg_stat_activity where query like '%pg_sleep(590)%' and pid <> pg_backend_pid()",
    ) > 0
    {
        assert!(Instant::now() < until, "the statement runs on");
        thread::sleep(LOOK_AGAIN);
    }
    check_audit(&home);
}

#[test]
fn ctrl_c_cancels_a_command_and_leaves_nothing() {
    let home = Home::fresh();
    let mut server = Stdio::start(&home);
    let id = create(&mut server);
    assert!(server.finish().success());
    let start = |arguments: &[&str]| {
        home.command(arguments).stdin(Pipe::null()).stdout(Pipe::piped()).stderr(Pipe::null()).spawn().unwrap()
    };
    let running = start(&[
        "run-sql",
        "--format",
        "json",
        "--input",
        &json!({"databaseId": id, "sql": "select pg_sleep(580)"}).to_string(),
    ]);
    await_statement(&home, "pg_sleep(580)");
    signal(running.id(), Signal::INT);
    let ended = running.wait_with_output().unwrap();
    let said: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!((code(&said), ended.status.success()), ("cancelled", false), "{said:#}");
    assert_eq!(
        count(
            &home,
            "select count(*) from pg_stat_activity where query like '%pg_sleep(580)%' and pid <> pg_backend_pid()"
        ),
        0
    );
    // A creation is cancelled between its steps, or is done before.
    let making = start(&["create-database", "--format", "json"]);
    let until = Instant::now() + SETTLED_WITHIN;
    while count(&home, "select count(*) from pgsandbox.plans where kind = 'create'") < 2 {
        assert!(Instant::now() < until, "the creation does not begin");
    }
    signal(making.id(), Signal::INT);
    let said: Value = serde_json::from_slice(&making.wait_with_output().unwrap().stdout).unwrap();
    assert!(["cancelled", "none"].contains(&code(&said)), "{said:#}");
    assert_eq!(check_tracked(&home).len(), if said["ok"] == true { 2 } else { 1 });
    check_audit(&home);
}
