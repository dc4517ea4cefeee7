//! The managed cluster: made, started, stopped and found again, whoever comes first.

use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use pgsandbox::engine::postgres::{
    BinarySettings, ManagedCluster, ManagedError, ManagedSettings, PostgresEngine, PostgresServer, PostgresSettings,
    ServerSource,
};
use pgsandbox::engine::{Contents, Engine, EngineError};
use pgsandbox::model::{CheckStatus, Code, CredentialAccess, SandboxKind};

use super::{PREFIX, spec};
use crate::harness;
use crate::pressure::WAIT;

/// A state directory that is stopped and removed with the test's process.
struct Place {
    home: PathBuf,
    settings: ManagedSettings,
    _watchdog: Child,
}

static PLACES: AtomicU32 = AtomicU32::new(0);

fn place() -> Place {
    let dir = harness::temp_dir().keep();
    let watchdog = harness::remove_after_exit(
        &dir,
        "for f in \"$1\"/*/postgres/*/data/postmaster.pid; do pid=$(head -n 1 \"$f\" 2>/dev/null) && \
         kill -QUIT \"$pid\" && while [ -e \"/proc/$pid/cwd\" ]; do sleep 0.05; done; done",
    );
    let home = dir.join("home");
    let installation = harness::installation();
    let mut settings = ManagedSettings::new(&home);
    settings.major = Some(installation.major);
    settings.binaries = BinarySettings { bin_dir: Some(installation.bin_dir), ..BinarySettings::default() };
    // Far from what a developer's own cluster uses and from the ports that clients get, and for each place another one:
    // tests that run at once, in one process or in several, would take a port that was let go from each other.
    let apart =
        PLACES.fetch_add(1, Ordering::Relaxed).wrapping_mul(1009).wrapping_add(std::process::id().wrapping_mul(37));
    settings.port_first = 10_000 + u16::try_from(apart % 20_000).unwrap();
    Place { home, settings, _watchdog: watchdog }
}

impl Place {
    fn cluster(&self) -> ManagedCluster {
        ManagedCluster::new(self.settings.clone())
    }

    fn engine(&self) -> PostgresEngine {
        let source = ServerSource::Managed(self.settings.clone());
        PostgresEngine::new(PostgresServer::new(PostgresSettings::new("local", PREFIX, source)))
    }

    fn directory(&self) -> PathBuf {
        self.home.join("postgres").join(self.settings.major.unwrap().to_string())
    }
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn a_cluster_is_made_started_stopped_and_started_again() {
    let place = place();
    let cluster = place.cluster();
    let status = cluster.status().await.unwrap();
    assert_eq!((status.initialised, status.running), (false, false));
    assert!(!place.home.exists(), "looking makes nothing");
    assert!(!cluster.stop().await.unwrap());
    assert!(cluster.init().await.unwrap());
    assert!(!cluster.init().await.unwrap());
    assert!(!cluster.status().await.unwrap().running);
    let started = cluster.start().await.unwrap();
    assert!(started.running && started.pid.is_some());
    assert_eq!(cluster.start().await.unwrap(), started);
    assert!(cluster.stop().await.unwrap());
    assert!(!cluster.stop().await.unwrap());
    assert!(!cluster.status().await.unwrap().running);
    let again = cluster.start().await.unwrap();
    assert_eq!(again.port, started.port);
    assert_ne!(again.pid, started.pid);
    cluster.stop().await.unwrap();
}

#[tokio::test]
async fn what_the_cluster_keeps_is_private() {
    let place = place();
    let cluster = place.cluster();
    let status = cluster.start().await.unwrap();
    let directory = place.directory();
    assert_eq!(mode(&directory.join("admin-password")), 0o600);
    assert_eq!(mode(&directory.join("data")), 0o700);
    assert_eq!(mode(&directory.join("run")), 0o700);
    assert_eq!(mode(&directory.join("log")), 0o700);
    if rustix::process::geteuid().is_root() {
        let pid = status.pid.unwrap();
        let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(format!("/proc/{pid}")).unwrap());
        assert_ne!(owner, 0, "the server does not run as root");
        assert_eq!(status.run_as.as_deref(), Some("postgres"));
    }
    let hba = std::fs::read_to_string(directory.join("data/pg_hba.conf")).unwrap();
    let closed = |line: &str| line.starts_with('#') || line.ends_with(" reject") || line.ends_with(" scram-sha-256");
    assert!(hba.lines().all(closed) && !hba.contains("host all all"), "{hba}");
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", status.pid.unwrap())).unwrap();
    let memory = limits.lines().find(|line| line.starts_with("Max address space")).unwrap();
    assert!(!memory.contains("unlimited"), "{memory}");
    cluster.stop().await.unwrap();
}

#[tokio::test]
async fn a_managed_engine_starts_its_server_on_demand_and_every_check_passes() {
    let place = place();
    let engine = place.engine();
    let checks = engine.health().await;
    assert!(checks.iter().any(|c| c.name == "postgres.cluster" && c.status == CheckStatus::Skipped), "{checks:?}");
    assert!(!place.home.exists(), "health starts nothing");
    let info = engine.ready().await.unwrap();
    assert!(info.superuser);
    let (spec, other) = (spec("managed"), spec("neighbour"));
    for spec in [&spec, &other] {
        for step in engine.create_steps(SandboxKind::Sandbox, &Contents::Empty) {
            engine.run(step, spec).await.unwrap();
        }
    }
    let wrong: Vec<_> =
        engine.verify(&spec).await.unwrap().into_iter().filter(|c| c.status != CheckStatus::Ok).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    let wrong: Vec<_> = engine.health().await.into_iter().filter(|c| c.status == CheckStatus::Fail).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    // the server goes away under us and comes back for the next who needs it
    place.cluster().stop().await.unwrap();
    assert!(engine.measure(&spec).await.unwrap() > 0);
    let connection = engine.connection(&spec, CredentialAccess::Owner);
    assert_eq!(connection.host, "127.0.0.1");
    assert_eq!(Some(connection.port), place.cluster().status().await.unwrap().port);
    let metadata = engine.server().metadata_session().await.unwrap();
    let row = metadata.query_one("SELECT current_database()::text, current_user::text", &[]).await.unwrap();
    assert_eq!((row.get::<_, &str>(0), row.get::<_, &str>(1)), ("pgsandbox", "pgsandbox_admin"));
    drop(metadata);
    for spec in [&spec, &other] {
        let steps = engine.delete_steps();
        for step in steps.foreground.into_iter().chain(steps.background) {
            engine.run(step, spec).await.unwrap();
        }
    }
    assert!(engine.inventory(PREFIX).await.unwrap().is_empty());
    place.cluster().stop().await.unwrap();
}

#[tokio::test]
async fn nothing_of_a_statement_or_a_password_is_in_the_servers_log() {
    let place = place();
    let engine = place.engine();
    let spec = spec("secrets");
    for step in engine.create_steps(SandboxKind::Sandbox, &Contents::Empty) {
        engine.run(step, &spec).await.unwrap();
    }
    let connection = engine.connection(&spec, CredentialAccess::Owner);
    let mut config = tokio_postgres::Config::new();
    config.host(&connection.host).port(connection.port).user(&connection.user).dbname(&connection.database);
    config.password(spec.owner_password.expose());
    assert!(config.connect(tokio_postgres::NoTls).await.is_err(), "nobody was given its credentials");
    engine.admit_direct(&spec, CredentialAccess::Owner).await.unwrap();
    let (client, driver) = config.connect(tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(driver);
    client.batch_execute("SET debug_print_parse = on; SET client_min_messages = debug5").await.unwrap();
    for sql in [
        "SELECT 'hunter2'::int",
        "ALTER ROLE CURRENT_USER PASSWORD 'hunter2'",
        "CREATE ROLE hunter2 PASSWORD 'hunter2'",
        "DO $$ BEGIN RAISE LOG 'hunter2'; RAISE WARNING 'hunter2'; RAISE EXCEPTION 'hunter2'; END $$",
        "hunter2",
    ] {
        drop(client.batch_execute(sql).await);
    }
    assert!(client.query("SELECT $1::text::int", &[&"hunter2"]).await.is_err());
    // Who panics would write down its statement, whatever is set: nobody writes anything while there are statements.
    let destination: String = client.query_one("SHOW log_destination", &[]).await.unwrap().get(0);
    assert_eq!(destination, "");
    assert!(config.password("wrong").connect(tokio_postgres::NoTls).await.is_err());
    // For want of memory a session writes past all logs what it has planned.
    let starved = "SET work_mem = '1TB'; SELECT 'hunter2', count(*) FROM (SELECT g FROM generate_series(1, 1000000000) g \
                   UNION SELECT g FROM generate_series(1, 1000000000) g) x";
    let starve = async |client: &tokio_postgres::Client| {
        let refused = client.batch_execute(starved).await.unwrap_err();
        assert_eq!(refused.code(), Some(&tokio_postgres::error::SqlState::OUT_OF_MEMORY), "{refused:?}");
    };
    starve(&client).await;
    let said = || {
        let mut search = std::process::Command::new("grep");
        search.args(["-rlE", "hunter2|authentication failed", "--exclude-dir=data"]).arg(place.directory());
        let found = String::from_utf8(search.output().unwrap().stdout).unwrap();
        found.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(said(), [""; 0]);
    // They are what would be said: a server that is heard says each of them.
    drop(client);
    place.cluster().stop().await.unwrap();
    let heard = place.directory().join("log/heard");
    let started = harness::as_server(Path::new("/bin/sh"))
        .args(["-c", "ulimit -v 8000000; exec \"$@\"", "sh"])
        .arg(harness::installation().bin_dir.join("pg_ctl"))
        .args(["start", "--wait", "--silent", "--pgdata"])
        .arg(place.directory().join("data"))
        .arg("--log")
        .arg(&heard)
        .args(["--options", "-c log_destination=stderr -c log_min_messages=error -c log_min_error_statement=error"])
        .status()
        .unwrap();
    assert!(started.success());
    // It has set itself another one above.
    config.password("hunter2");
    let (client, driver) = config.connect(tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(driver);
    assert!(client.batch_execute("SELECT 'hunter2'::int").await.is_err());
    assert!(config.password("wrong").connect(tokio_postgres::NoTls).await.is_err());
    let log = std::fs::read_to_string(&heard).unwrap();
    assert!(log.contains("STATEMENT:  SELECT 'hunter2'::int") && log.contains("authentication failed"), "{log}");
    let before = log.len();
    let (client, driver) = config.password("hunter2").connect(tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(driver);
    starve(&client).await;
    let log = std::fs::read_to_string(&heard).unwrap();
    assert!(log[before..].contains("hunter2"), "{log}");
    assert_eq!(said(), [heard.display().to_string()]);
    place.cluster().stop().await.unwrap();
}

/// Logs in as the cluster's admin, by its private socket.
async fn admin(place: &Place) -> tokio_postgres::Client {
    let read = |name: &str| std::fs::read_to_string(place.directory().join(name)).unwrap().trim().to_owned();
    let mut config = tokio_postgres::Config::new();
    config.host_path(read("socket-directory")).port(read("port").parse().unwrap()).dbname("postgres");
    config.user("pgsandbox_admin").password(read("admin-password"));
    let (client, driver) = config.connect(tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(driver);
    client
}

/// A place whose `pg_ctl` fails once without a word. When it has started the server for the second time, it tries to log in and
/// writes down what came of that; with `waits` it then waits for a file `go-on`.
fn place_that_fails_once(waits: bool) -> (Place, PathBuf) {
    let mut place = place();
    let real = harness::installation().bin_dir;
    let programs = place.home.with_file_name("programs");
    std::fs::create_dir(&programs).unwrap();
    std::fs::set_permissions(&programs, PermissionsExt::from_mode(0o777)).unwrap();
    for entry in std::fs::read_dir(&real).unwrap().flatten().filter(|entry| entry.file_name() != "pg_ctl") {
        std::os::unix::fs::symlink(entry.path(), programs.join(entry.file_name())).unwrap();
    }
    let (real, own, run) = (real.display(), programs.display(), place.directory().join("run"));
    let wait = if waits { "while [ ! -e go-on ]; do sleep 0.05; done" } else { "" };
    let script = format!(
        "#!/bin/sh\n\
         [ \"$1\" = start ] || exec {real}/pg_ctl \"$@\"\n\
         cd {own}\n\
         echo >>starts\n\
         [ \"$(wc -l <starts)\" = 1 ] && exit 1\n\
         {real}/pg_ctl \"$@\" || exit 1\n\
         [ \"$(wc -l <starts)\" = 2 ] || exit 0\n\
         port=$(sed -n 4p {data}/postmaster.pid)\n\
         for host in {run} 127.0.0.1; do\n\
         PGPASSWORD=wrong {real}/psql -XAtc 'select 1' \"host=$host port=$port user=pgsandbox_admin dbname=postgres\"\n\
         done >tried.part 2>&1\n\
         mv tried.part tried\n\
         {wait}\n",
        data = place.directory().join("data").display(),
        run = run.display(),
    );
    let path = programs.join("pg_ctl");
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    place.settings.binaries = BinarySettings { bin_dir: Some(programs.clone()), ..BinarySettings::default() };
    (place, programs)
}

/// Checks that nobody was let in by the server whose log was open, and that none is there any more.
async fn check_nobody_was_let_in(place: &Place, programs: &Path) {
    let tried = std::fs::read_to_string(programs.join("tried")).unwrap();
    assert_eq!(tried.matches("pg_hba.conf rejects connection").count(), 2, "{tried}");
    assert_eq!(std::fs::read_to_string(programs.join("starts")).unwrap().lines().count(), 3);
    assert!(!place.directory().join("data/pgsandbox.closed.conf").exists());
    let settings = "SELECT current_setting('log_destination'), current_setting('hba_file')";
    let found = admin(place).await.query_one(settings, &[]).await.unwrap();
    assert_eq!(found.get::<_, &str>(0), "");
    assert_eq!(Path::new(found.get::<_, &str>(1)), place.directory().join("data/pg_hba.conf"));
    place.cluster().stop().await.unwrap();
}

#[tokio::test]
async fn nobody_is_let_in_by_a_server_whose_log_is_open() {
    let (place, programs) = place_that_fails_once(false);
    place.cluster().start().await.unwrap();
    check_nobody_was_let_in(&place, &programs).await;
}

#[tokio::test]
async fn a_server_whose_log_was_left_open_by_a_program_that_ended_is_used_by_none() {
    let (place, programs) = place_that_fails_once(true);
    let cluster = place.cluster();
    let started = tokio::spawn(async move { cluster.start().await.map(drop) });
    let until = Instant::now() + WAIT;
    while !programs.join("tried").exists() {
        assert!(Instant::now() < until && !started.is_finished(), "it is not started again");
        tokio::task::yield_now().await;
    }
    started.abort();
    assert!(started.await.is_err());
    std::fs::write(programs.join("go-on"), "").unwrap();
    assert!(place.directory().join("data/postmaster.pid").exists(), "its server is there");
    place.cluster().start().await.unwrap();
    check_nobody_was_let_in(&place, &programs).await;
}

#[tokio::test]
async fn a_server_that_fails_when_it_says_nothing_any_more_is_asked_once_more_why() {
    let place = place();
    let cluster = place.cluster();
    cluster.start().await.unwrap();
    cluster.stop().await.unwrap();
    // What an earlier version's server left when it panicked.
    let log = place.directory().join("log/server.log");
    std::fs::write(&log, "2026-11-30 22:37:33.166 UTC [1] STATEMENT:  select 'hunter2'\n").unwrap();
    let segments = place.directory().join("data/pg_wal");
    let aside = place.directory().join("segments");
    std::fs::rename(&segments, &aside).unwrap();
    std::fs::create_dir(&segments).unwrap();
    std::os::unix::fs::chown(&segments, Some(aside.metadata().unwrap().uid()), Some(aside.metadata().unwrap().gid()))
        .unwrap();
    let refused = cluster.start().await.unwrap_err().to_string();
    assert!(refused.contains("PANIC") && refused.contains("checkpoint record"), "{refused}");
    assert!(!log.exists());
    let conf = std::fs::read_to_string(place.directory().join("data/postgresql.conf")).unwrap();
    assert!(conf.contains("log_destination = ''"), "what failed once more leaves the log open");
    std::fs::remove_dir_all(&segments).unwrap();
    std::fs::rename(&aside, &segments).unwrap();
    cluster.start().await.unwrap();
    cluster.stop().await.unwrap();
}

#[tokio::test]
async fn data_whose_password_is_lost_is_not_thrown_away() {
    let place = place();
    let cluster = place.cluster();
    cluster.init().await.unwrap();
    std::fs::remove_file(place.directory().join("admin-password")).unwrap();
    assert!(matches!(place.cluster().start().await, Err(ManagedError::Init(_))));
    assert!(place.directory().join("data/PG_VERSION").exists());
}

#[tokio::test]
async fn eight_who_want_the_cluster_at_once_get_the_same_one() {
    let place = Arc::new(place());
    let starts: Vec<_> = (0..8)
        .map(|_| {
            let place = Arc::clone(&place);
            tokio::spawn(async move { place.cluster().start().await })
        })
        .collect();
    let mut found = Vec::new();
    for start in starts {
        let status = start.await.unwrap().unwrap();
        found.push((status.pid.unwrap(), status.port.unwrap()));
    }
    found.dedup();
    assert_eq!(found.len(), 1, "{found:?}");
    place.cluster().stop().await.unwrap();
}

#[tokio::test]
async fn a_port_that_is_taken_is_left_and_the_new_one_remembered() {
    let place = place();
    let cluster = place.cluster();
    let first = cluster.start().await.unwrap().port.unwrap();
    cluster.stop().await.unwrap();
    let listener = TcpListener::bind(("127.0.0.1", first)).unwrap();
    let second = cluster.start().await.unwrap().port.unwrap();
    assert_ne!(second, first);
    cluster.stop().await.unwrap();
    drop(listener);
    assert_eq!(cluster.start().await.unwrap().port, Some(second));
    cluster.stop().await.unwrap();
}

#[tokio::test]
async fn a_killed_server_comes_back_whatever_its_pid_file_says() {
    let place = place();
    let cluster = place.cluster();
    let pid = cluster.start().await.unwrap().pid.unwrap();
    harness::kill(&pid.to_string(), rustix::process::Signal::KILL);
    while harness::runs(&pid.to_string()) {
        tokio::task::yield_now().await;
    }
    let file = place.directory().join("data/postmaster.pid");
    // after a restart of the machine the number may be another program's
    let text = std::fs::read_to_string(&file).unwrap().replacen(&pid.to_string(), &std::process::id().to_string(), 1);
    std::fs::write(&file, text).unwrap();
    let status = cluster.start().await.unwrap();
    assert!(status.running);
    cluster.stop().await.unwrap();
}

#[tokio::test]
async fn a_directory_of_somebody_else_is_refused() {
    let place = place();
    std::fs::create_dir(&place.home).unwrap();
    std::fs::write(place.home.join("thesis.txt"), "x").unwrap();
    assert!(matches!(place.cluster().start().await, Err(ManagedError::ForeignHome(_))));
    assert_eq!(std::fs::read_dir(&place.home).unwrap().count(), 1);
    let refused = place.engine().ready().await;
    assert!(matches!(&refused, Err(EngineError::Known(f)) if f.code == Code::InvalidConfiguration), "{refused:?}");
}

#[tokio::test]
async fn nothing_is_made_where_the_state_directory_was_removed() {
    let mut place = place();
    let mark = place.home.parent().unwrap().join("mark");
    std::fs::write(&mark, "").unwrap();
    place.settings.mark = Some(mark.clone());
    let engine = place.engine();
    engine.ready().await.unwrap();
    place.cluster().stop().await.unwrap();
    std::fs::remove_dir_all(&place.home).unwrap();
    std::fs::remove_file(&mark).unwrap();
    let refused = place.engine().ready().await;
    assert!(matches!(&refused, Err(EngineError::Known(f)) if f.code == Code::LocalPostgresUnavailable), "{refused:?}");
    assert!(matches!(place.cluster().start().await, Err(ManagedError::HomeGone(_))));
    assert!(!place.home.exists());
}

#[tokio::test]
async fn the_cluster_that_was_made_first_is_meant_where_no_version_is_asked_for() {
    let place = place();
    let settings = ManagedSettings { major: None, ..place.settings.clone() };
    let major = place.settings.major.unwrap();
    assert!(place.cluster().init().await.unwrap());
    // One that is newer, and came later.
    let later = place.home.join("postgres").join((major + 1).to_string());
    std::fs::create_dir_all(later.join("data")).unwrap();
    std::fs::write(later.join("data/PG_VERSION"), format!("{}\n", major + 1)).unwrap();
    std::fs::write(later.join("admin-password"), "x").unwrap();
    assert_eq!(ManagedCluster::new(settings.clone()).known_major(), Some(major));
    // A directory of a program that wrote nothing down is told by the age of its clusters.
    std::fs::remove_file(place.home.join("first-cluster")).unwrap();
    assert_eq!(ManagedCluster::new(settings.clone()).known_major(), Some(major));
    // What is written down counts as long as it is there.
    std::fs::write(place.home.join("first-cluster"), (major + 1).to_string()).unwrap();
    assert_eq!(ManagedCluster::new(settings.clone()).known_major(), Some(major + 1));
    std::fs::remove_dir_all(&later).unwrap();
    assert_eq!(ManagedCluster::new(settings).known_major(), Some(major));
}

#[tokio::test]
async fn a_cluster_stops_without_its_programs() {
    let mut place = place();
    let started = place.cluster().start().await.unwrap();
    place.settings.binaries = BinarySettings::default();
    let directory = place.directory();
    // Of a major that no machine has: its folder alone says so.
    let strange = directory.with_file_name("9");
    std::fs::rename(&directory, &strange).unwrap();
    std::fs::write(strange.join("data/PG_VERSION"), "9\n").unwrap();
    place.settings.major = Some(9);
    assert!(place.cluster().stop().await.unwrap());
    assert!(!Path::new(&format!("/proc/{}/cwd", started.pid.unwrap())).exists());
    assert!(!place.cluster().stop().await.unwrap());
}

#[tokio::test]
async fn a_cluster_of_a_major_that_is_not_installed_is_named() {
    let mut place = place();
    place.settings.major = Some(12);
    let refused = place.engine().ready().await;
    assert!(
        matches!(&refused, Err(EngineError::Known(f)) if f.code == Code::PostgresVersionUnavailable),
        "{refused:?}"
    );
    assert!(!place.home.exists());
}

#[tokio::test]
async fn a_state_directory_with_a_long_path_gets_its_socket_elsewhere() {
    let mut place = place();
    place.settings.home = place.home.join("x".repeat(90));
    let status = place.cluster().start().await.unwrap();
    assert!(status.running);
    let directory = status.directory.unwrap();
    let socket = std::fs::read_to_string(directory.join("socket-directory")).unwrap();
    assert_eq!(mode(Path::new(&socket)), 0o700);
    place.cluster().stop().await.unwrap();
    std::fs::remove_dir_all(socket).unwrap();
}

/// Copies a state directory, owners and modes included.
fn copy_home(from: &Place, to: &Place) {
    let status = std::process::Command::new("cp").arg("-a").arg(&from.home).arg(&to.home).status().unwrap();
    assert!(status.success());
}

#[tokio::test]
async fn a_copy_gets_a_server_of_its_own_and_leaves_the_originals_alone() {
    let (original, copy) = (place(), place());
    let first = original.cluster();
    first.init().await.unwrap();
    let running = first.start().await.unwrap();
    assert!(first.stop().await.unwrap());
    // As it was left: what it says of its socket and its port is the original's.
    copy_home(&original, &copy);
    let running_again = first.start().await.unwrap();
    assert_eq!(running.port, running_again.port);

    let second = copy.cluster();
    assert!(!second.status().await.unwrap().running, "the original's server counts as the copy's");
    let own = second.start().await.unwrap();
    assert!(own.running && own.pid != running_again.pid && own.port != running_again.port, "{own:?} {running_again:?}");
    // The original's server is still reached through its own socket, and is nobody's to stop but its own.
    assert_eq!(first.status().await.unwrap(), running_again);
    assert!(second.stop().await.unwrap());
    assert_eq!(first.status().await.unwrap(), running_again);
    assert!(first.stop().await.unwrap());
}

#[tokio::test]
async fn what_others_could_have_changed_is_refused_by_name() {
    let place = place();
    let cluster = place.cluster();
    cluster.init().await.unwrap();
    cluster.start().await.unwrap();
    let set_mode = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    let directory = place.directory();
    for (path, wrong) in [
        (directory.join("admin-password"), 0o640),
        (directory.join("port"), 0o666),
        (directory.join("socket-directory"), 0o622),
        (directory.clone(), 0o777),
        (place.home.clone(), 0o733),
    ] {
        let right = mode(&path);
        set_mode(&path, wrong);
        let refused = cluster.start().await;
        assert!(matches!(&refused, Err(ManagedError::Exposed { path: named, .. }) if *named == path), "{refused:?}");
        set_mode(&path, right);
    }
    let password = directory.join("admin-password");
    std::fs::rename(&password, directory.join("aside")).unwrap();
    std::os::unix::fs::symlink("aside", &password).unwrap();
    let refused = cluster.start().await;
    assert!(matches!(&refused, Err(ManagedError::Exposed { path, .. }) if *path == password), "{refused:?}");
    std::fs::remove_file(&password).unwrap();
    std::fs::rename(directory.join("aside"), &password).unwrap();
    assert!(cluster.start().await.unwrap().running);
    assert!(cluster.stop().await.unwrap());
}

#[tokio::test]
async fn data_of_another_major_is_named_with_the_programs_it_wants() {
    let place = place();
    let cluster = place.cluster();
    cluster.init().await.unwrap();
    std::fs::write(place.directory().join("data/PG_VERSION"), "9\n").unwrap();
    let Err(error) = cluster.start().await else { panic!("it starts") };
    let programs = place.settings.major.unwrap();
    assert!(
        matches!(&error, ManagedError::DataVersion { data, binaries, .. } if data == "9" && *binaries == programs),
        "{error:?}"
    );
    assert!(error.remedy().contains("PGSANDBOX_POSTGRES_9_BIN_DIR"), "{}", error.remedy());
}

#[tokio::test]
async fn ports_are_tried_up_to_a_bound_and_logs_of_earlier_versions_are_removed() {
    const PORTS: u16 = 100;
    let place = place();
    let cluster = place.cluster();
    assert!(cluster.init().await.unwrap());
    // What cannot be taken is taken already.
    let first = place.settings.port_first;
    let mut taken: Vec<_> = (first..first + PORTS).map(|port| TcpListener::bind(("127.0.0.1", port)).ok()).collect();
    let beyond = first + PORTS;
    let refused = cluster.start().await.unwrap_err();
    assert!(matches!(refused, ManagedError::NoPort(..)), "{refused}");
    // Somebody else may have it by now, and nobody the one beyond: that one is never tried.
    taken.pop();
    if let Ok(started) = cluster.start().await {
        assert_eq!(started.port, Some(beyond - 1));
        assert!(cluster.stop().await.unwrap());
    }
    drop(taken);

    let logs = ["server.log", "server.log.1"].map(|name| place.directory().join("log").join(name));
    for log in &logs {
        std::fs::write(log, "2026-11-30 22:37:33.166 UTC [1] STATEMENT:  select 'hunter2'").unwrap();
    }
    cluster.start().await.unwrap();
    assert!(logs.iter().all(|log| !log.exists()));
    assert!(cluster.stop().await.unwrap());
}
