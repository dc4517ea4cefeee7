//! Throw-away Postgres clusters for tests.
//!
//! One cluster per major and test process, started at first use and gone with the process, however that ends: a
//! watchdog holds the read end of a pipe and removes everything when the write end closes. What `initdb` makes is
//! kept in cargo's `target/tmp` and copied. As root the servers run as user `postgres`.
//!
//! The first server found on the machine is used (or the one in `PGSANDBOX_TEST_POSTGRES_BIN_DIR`), and the one
//! in `PGSANDBOX_TEST_POSTGRES_18_BIN_DIR` besides.
#![allow(dead_code, reason = "not every test needs every helper")]

use std::fs::{self, File};
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use pgsandbox::engine::postgres::{BinarySettings, Installation, discover};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal};
use tokio_postgres::{Client, NoTls};

/// The superuser of test clusters, and its password.
pub(crate) const SUPERUSER: &str = "harness";
/// An admin with CREATEDB and CREATEROLE and nothing more, and its password.
pub(crate) const LIMITED: &str = "limited";
/// The password of both.
pub(crate) const PASSWORD: &str = "correct:horse/battery@staple";
/// The same in a URL.
const PASSWORD_ENCODED: &str = "correct%3Ahorse%2Fbattery%40staple";

/// A server that belongs to this test process.
pub(crate) struct Cluster {
    /// Its major version.
    pub(crate) major: u16,
    /// Its port on 127.0.0.1.
    pub(crate) port: u16,
    /// Its programs.
    pub(crate) bin_dir: PathBuf,
    /// Its data.
    pub(crate) data: PathBuf,
    settings: String,
    _watchdog: Child,
}

/// Returns the cluster of the machine's own server.
pub(crate) fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| start(&installation()))
}

/// Starts a cluster that no other test uses: to be killed, for instance.
pub(crate) fn own_cluster() -> Cluster {
    start(&installation())
}

/// Starts a cluster that no other test uses, with settings of its own: `-c name=value …`.
pub(crate) fn own_cluster_with(settings: &str) -> Cluster {
    start_with(&installation(), settings)
}

/// Returns every cluster there is to test with: the machine's own, and 18 where it is configured.
pub(crate) fn clusters() -> Vec<&'static Cluster> {
    static EIGHTEEN: OnceLock<Option<Cluster>> = OnceLock::new();
    let eighteen = || {
        let eighteen = EIGHTEEN.get_or_init(|| {
            let bin_dir = std::env::var_os("PGSANDBOX_TEST_POSTGRES_18_BIN_DIR")?;
            Some(start(&examine(bin_dir.into())))
        });
        eighteen.as_ref()
    };
    std::thread::scope(|scope| {
        let eighteen = scope.spawn(eighteen);
        std::iter::once(cluster()).chain(eighteen.join().unwrap()).collect()
    })
}

/// Starts a cluster of each major there is to test with, that no other test uses.
pub(crate) fn own_clusters() -> Vec<Cluster> {
    let eighteen = std::env::var_os("PGSANDBOX_TEST_POSTGRES_18_BIN_DIR");
    let found = std::iter::once(installation()).chain(eighteen.map(|dir| examine(dir.into())));
    std::thread::scope(|scope| {
        let starting: Vec<_> = found.map(|found| scope.spawn(move || start(&found))).collect();
        starting.into_iter().map(|cluster| cluster.join().unwrap()).collect()
    })
}

/// Returns the machine's own server.
pub(crate) fn installation() -> Installation {
    match std::env::var_os("PGSANDBOX_TEST_POSTGRES_BIN_DIR") {
        Some(bin_dir) => examine(bin_dir.into()),
        None => block_on(discover(&BinarySettings::default()))
            .into_iter()
            .next()
            .expect("these tests need a Postgres server: install one, or set PGSANDBOX_TEST_POSTGRES_BIN_DIR"),
    }
}

fn examine(bin_dir: PathBuf) -> Installation {
    let settings = BinarySettings { bin_dir: Some(bin_dir.clone()), ..BinarySettings::default() };
    block_on(discover(&settings))
        .into_iter()
        .find(|i| i.bin_dir == bin_dir)
        .unwrap_or_else(|| panic!("there is no Postgres server in {}", bin_dir.display()))
}

impl Cluster {
    /// Returns the URL of the superuser's database.
    pub(crate) fn superuser_url(&self) -> String {
        self.url(SUPERUSER, PASSWORD_ENCODED, "postgres")
    }

    /// Returns the URL of an admin with CREATEDB and CREATEROLE, in a database of its own.
    pub(crate) fn limited_url(&self) -> String {
        self.url(LIMITED, PASSWORD_ENCODED, LIMITED)
    }

    /// Returns both admins' URLs.
    pub(crate) fn admin_urls(&self) -> [String; 2] {
        [self.superuser_url(), self.limited_url()]
    }

    /// Returns a URL; user and password percent-encoded already.
    pub(crate) fn url(&self, user: &str, password: &str, database: &str) -> String {
        format!("postgresql://{user}:{password}@127.0.0.1:{}/{database}?sslmode=disable", self.port)
    }

    /// Connects as the superuser.
    pub(crate) async fn superuser(&self, database: &str) -> Client {
        self.connect(SUPERUSER, PASSWORD, database).await.expect("the superuser can log in")
    }

    /// Connects as anybody.
    pub(crate) async fn connect(
        &self,
        user: &str,
        password: &str,
        database: &str,
    ) -> Result<Client, tokio_postgres::Error> {
        connect_to(self.port, user, password, database).await
    }

    /// Kills the server's main process and starts it again, as after a crash.
    pub(crate) fn crash_and_restart(&self) {
        let pid = fs::read_to_string(self.data.join("postmaster.pid")).unwrap();
        let pid = pid.lines().next().unwrap();
        kill(pid, Signal::QUIT);
        while runs(pid) {
            std::thread::yield_now();
        }
        run_server(&self.bin_dir, &self.data, self.port, &self.settings).unwrap();
    }
}

async fn connect_to(port: u16, user: &str, password: &str, database: &str) -> Result<Client, tokio_postgres::Error> {
    let mut config = tokio_postgres::Config::new();
    config.host("127.0.0.1").port(port).user(user).password(password).dbname(database);
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// Says why this machine does not let a test try something.
#[expect(clippy::print_stderr, reason = "it is told to whoever runs the tests")]
pub(crate) fn not_tried(why: &str) {
    eprintln!("not tried: {why}");
}

/// Sends a signal to a process. No program is needed for it: a bare system has none.
pub(crate) fn kill(pid: &str, signal: Signal) {
    let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// Runs a future to its end on a thread of its own, as the caller may be inside a runtime.
pub(crate) fn block_on<T: Send>(future: impl Future<Output = T> + Send) -> T {
    std::thread::scope(|scope| {
        scope
            .spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(future)
            })
            .join()
            .unwrap()
    })
}

/// Makes a private temporary directory below which anybody could be let in: short, so that sockets fit.
pub(crate) fn temp_dir() -> tempfile::TempDir {
    let dir = tempfile::Builder::new().prefix("pgsb-").tempdir_in("/tmp").unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711)).unwrap();
    dir
}

fn start(installation: &Installation) -> Cluster {
    start_with(installation, "")
}

fn start_with(installation: &Installation, settings: &str) -> Cluster {
    let dir = temp_dir().keep();
    let watchdog = watchdog(&dir);
    let data = dir.join("data");
    copy(&template(installation), &data);
    give_away(&data);
    let port = run_on_some_port(&installation.bin_dir, &data, settings);
    let bin_dir = installation.bin_dir.clone();
    let settings = settings.to_owned();
    Cluster { major: installation.major, port, bin_dir, data, settings, _watchdog: watchdog }
}

/// Starts a server on a port that is free, and returns the port.
fn run_on_some_port(bin_dir: &Path, data: &Path, settings: &str) -> u16 {
    let mut started = Err(io::Error::other("no port"));
    for _ in 0..20 {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        started = run_server(bin_dir, data, port, settings).map(|()| port);
        if started.is_ok() {
            break;
        }
    }
    started.unwrap()
}

/// Starts a standby of a cluster, with everything that the cluster has by now.
pub(crate) fn standby_of(primary: &Cluster) -> Cluster {
    let dir = temp_dir().keep();
    let watchdog = watchdog(&dir);
    let data = dir.join("data");
    fs::DirBuilder::new().mode(0o700).create(&data).unwrap();
    give_away(&data);
    let mut command = as_server(&primary.bin_dir.join("pg_basebackup"));
    command.args(["-h", "127.0.0.1", "-p", &primary.port.to_string(), "-U", SUPERUSER, "-c", "fast", "-R", "-D"]);
    let output = command.arg(&data).env("PGPASSWORD", PASSWORD).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let port = run_on_some_port(&primary.bin_dir, &data, &primary.settings);
    let (bin_dir, settings) = (primary.bin_dir.clone(), primary.settings.clone());
    Cluster { major: primary.major, port, bin_dir, data, settings, _watchdog: watchdog }
}

fn run_server(bin_dir: &Path, data: &Path, port: u16, settings: &str) -> io::Result<()> {
    let options = format!(
        "-c port={port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off \
         -c synchronous_commit=off -c full_page_writes=off -c max_prepared_transactions=8 -c wal_level=logical \
         -c shared_buffers=32MB -c max_connections=100 {settings}"
    );
    let mut command = as_server(&bin_dir.join("pg_ctl"));
    command.arg("start").arg("-w").arg("-D").arg(data).arg("-l").arg(data.join("log")).args(["-o", &options]);
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    if status.success() {
        return Ok(());
    }
    Err(io::Error::other(fs::read_to_string(data.join("log")).unwrap_or_default()))
}

/// Returns what `initdb` makes and the other admin in it, made once per machine and version.
fn template(installation: &Installation) -> PathBuf {
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("initdb-{}-3", installation.version));
    let lock = File::create(kept.with_extension("lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    if kept.join("PG_VERSION").exists() {
        return kept;
    }
    let work = temp_dir();
    let mut watchdog = watchdog(work.path());
    let data = work.path().join("data");
    let password_file = work.path().join("password");
    fs::DirBuilder::new().mode(0o700).create(&data).unwrap();
    fs::write(&password_file, PASSWORD).unwrap();
    give_away(&data);
    let mut command = as_server(&installation.bin_dir.join("initdb"));
    command.arg("-D").arg(&data).args(["-U", SUPERUSER, "-A", "scram-sha-256", "-E", "UTF8", "-N", "--locale=C"]);
    let output = command.arg("--pwfile").arg(&password_file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    add_limited_admin(&installation.bin_dir, &data);
    let part = kept.with_extension("part");
    drop(fs::remove_dir_all(&part));
    copy(&data, &part);
    fs::rename(&part, &kept).unwrap();
    // It has nothing to stop any more, and removes what is left.
    drop(watchdog.stdin.take());
    watchdog.wait().unwrap();
    kept
}

/// Starts a new cluster once, for its second admin.
fn add_limited_admin(bin_dir: &Path, data: &Path) {
    let port = run_on_some_port(bin_dir, data, "");
    block_on(async {
        let admin = connect_to(port, SUPERUSER, PASSWORD, "postgres").await.unwrap();
        let role = format!("CREATE ROLE {LIMITED} LOGIN CREATEDB CREATEROLE PASSWORD '{PASSWORD}'");
        admin.batch_execute(&role).await.unwrap();
        admin.batch_execute(&format!("CREATE DATABASE {LIMITED} OWNER {LIMITED}")).await.unwrap();
    });
    let stopped =
        as_server(&bin_dir.join("pg_ctl")).args(["stop", "-w", "-m", "fast", "-D"]).arg(data).output().unwrap();
    assert!(stopped.status.success(), "{}", String::from_utf8_lossy(&stopped.stderr));
    fs::remove_file(data.join("log")).unwrap();
}

fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").args(["-a", "--reflink=auto"]).arg(from).arg(to).status().unwrap();
    assert!(status.success());
}

/// Returns a command that runs as somebody whom Postgres accepts.
pub(crate) fn as_server(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("LC_ALL", "C").current_dir("/").stdin(Stdio::null());
    if let Some((uid, gid)) = server_user() {
        command.uid(uid).gid(gid);
    }
    command
}

/// Gives a directory and what is in it to whom servers run as.
pub(crate) fn give_away(dir: &Path) {
    let Some((uid, gid)) = server_user() else { return };
    chown(dir, Some(uid), Some(gid)).unwrap();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { give_away(&path) } else { chown(&path, Some(uid), Some(gid)).unwrap() }
    }
}

fn server_user() -> Option<(u32, u32)> {
    rustix::process::geteuid().is_root().then_some(())?;
    let passwd = fs::read_to_string("/etc/passwd").unwrap();
    let line = passwd.lines().find(|l| l.starts_with("postgres:")).expect("as root, tests need a user `postgres`");
    let fields: Vec<&str> = line.split(':').collect();
    Some((fields[2].parse().unwrap(), fields[3].parse().unwrap()))
}

/// Starts a process that waits for the end of this one, then stops the server in `dir` and removes `dir`.
fn watchdog(dir: &Path) -> Child {
    remove_after_exit(
        dir,
        "pid=$(head -n 1 \"$1/data/postmaster.pid\" 2>/dev/null) && kill -QUIT \"$pid\" && \
         while [ -e \"/proc/$pid/cwd\" ]; do sleep 0.05; done",
    )
}

/// Returns whether a process runs. One that has ended and that nobody has asked after does not, though its number is
/// taken: in a container the first process may be one that asks after nobody.
pub(crate) fn runs(pid: &str) -> bool {
    Path::new("/proc").join(pid).join("cwd").exists()
}

/// Returns whether a process works in a directory or below it. Numbers do not tell: a command has its own.
pub(crate) fn runs_in(dir: impl AsRef<Path>) -> bool {
    let dir = std::fs::canonicalize(dir).unwrap();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes.filter_map(|process| std::fs::read_link(process.path().join("cwd")).ok()).any(|cwd| cwd.starts_with(&dir))
}

/// Starts a process that waits for the end of this one, then runs `script` with `dir` as `$1` and removes `dir`.
pub(crate) fn remove_after_exit(dir: &Path, script: &str) -> Child {
    Command::new("/bin/sh")
        .arg("-c")
        .arg(format!("trap '' INT TERM HUP; cat >/dev/null; {script}; rm -rf \"$1\""))
        .arg("sh")
        .arg(dir)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // a runner that ends a test's whole group must not end the watchdog
        .process_group(0)
        .spawn()
        .unwrap()
}
