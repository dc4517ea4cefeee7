//! A throw-away Postgres cluster for one test.
//!
//! It is copied from a template that is initialised once for a build, listens on a socket in its own temporary
//! directory, and ends with the test.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pgsandbox::engine::postgres::{
    Auth, ChannelBinding, Endpoint, Host, Param, Rest, ResultLimits, ResultSet, SandboxSession, SessionTarget,
    StatementCall, WireError,
};
use pgsandbox::model::{Secret, TlsMode};
use rustix::process::Signal;

/// Where the server's programs are, unless `PGSANDBOX_TEST_POSTGRES_BIN_DIR` says otherwise.
const BIN_DIR: &str = "/usr/lib/postgresql/15/bin";
const PASSWORD: &str = "the password of every role";
const PORT: u16 = 5432;

/// The database of the tests: `box`, owned by `owner`, in which `reader` may read.
const SETUP: &[&str] = &[
    "CREATE ROLE owner LOGIN PASSWORD 'the password of every role'",
    "CREATE ROLE reader LOGIN PASSWORD 'the password of every role'",
    "CREATE DATABASE box OWNER owner",
];

pub(crate) struct Cluster {
    server: Child,
    directory: tempfile::TempDir,
    pub(crate) tcp_port: Option<u16>,
}

impl Cluster {
    /// Starts a cluster that can be reached by its socket.
    pub(crate) async fn start() -> Self {
        Self::start_with(&[], "").await
    }

    /// Starts a cluster with further settings, and with lines before those that say who may log in.
    pub(crate) async fn start_with(settings: &[&str], access: &str) -> Self {
        Self::start_at(None, settings, access).await
    }

    /// Starts a cluster that speaks TLS on a port of `127.0.0.1`. The server must have been built with OpenSSL.
    pub(crate) async fn start_with_tls() -> Self {
        let files = tempfile::tempdir().unwrap();
        give(files.path());
        for (name, text) in
            [("server.pem", include_str!("tls/server.pem")), ("server.key", include_str!("tls/server.key"))]
        {
            let path = files.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            give(&path);
        }
        let port = free_port();
        let certificate = format!("ssl_cert_file={}", files.path().join("server.pem").display());
        let key = format!("ssl_key_file={}", files.path().join("server.key").display());
        let listen = format!("port={port}");
        let settings = ["ssl=on", &certificate, &key, "listen_addresses=127.0.0.1", &listen];
        Self::start_at(Some(port), &settings, "hostnossl all all all reject").await
    }

    async fn start_at(tcp_port: Option<u16>, settings: &[&str], access: &str) -> Self {
        let template = template().await;
        let directory = tempfile::tempdir().unwrap();
        give(directory.path());
        let data = directory.path().join("data");
        copy(&template, &data);
        let rules = data.join("pg_hba.conf");
        fs::write(&rules, format!("{access}\n{}", fs::read_to_string(&rules).unwrap())).unwrap();
        let mut cluster = Self { server: launch(&data, directory.path(), settings), directory, tcp_port };
        cluster.wait().await;
        cluster
    }

    pub(crate) fn socket(&self) -> Endpoint {
        let port = self.tcp_port.unwrap_or(PORT);
        Endpoint {
            host: Host::Unix(self.directory.path().to_owned()),
            port,
            tls: TlsMode::Disable,
            ca_file: None,
            address: None,
            binding: ChannelBinding::Prefer,
        }
    }

    /// Who `role` is, in the database of the tests.
    pub(crate) fn target(&self, role: &str) -> SessionTarget {
        target(self.socket(), role)
    }

    pub(crate) async fn session(&self, role: &str) -> SandboxSession {
        SandboxSession::connect(&self.target(role)).await.unwrap()
    }

    async fn wait(&mut self) {
        let since = Instant::now();
        loop {
            match SandboxSession::connect(&self.target("postgres")).await {
                Ok(_) => return,
                Err(error) => assert!(since.elapsed() < Duration::from_secs(30), "the cluster does not start: {error}"),
            }
            if let Some(status) = self.server.try_wait().unwrap() {
                let log = fs::read_to_string(self.directory.path().join("log")).unwrap();
                panic!("the cluster ended with {status}: {log}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // At once: nobody reads these files again.
        stop(&mut self.server, Signal::QUIT);
    }
}

pub(crate) fn target(endpoint: Endpoint, role: &str) -> SessionTarget {
    SessionTarget {
        endpoint,
        database: "box".into(),
        user: role.into(),
        password: Secret::new(PASSWORD),
        application_name: "pgsandbox tests".into(),
        options: vec![("TimeZone".into(), "UTC".into()), ("extra_float_digits".into(), "1".into())],
        auth: Auth::ScramOnly,
        connect_timeout: Duration::from_secs(10),
    }
}

/// A call of `text` with the usual limits.
pub(crate) fn call(text: &str) -> StatementCall<'_> {
    StatementCall {
        text,
        params: &[],
        limits: ResultLimits::default(),
        rest: Rest::default(),
        timeout: Duration::from_secs(60),
        copy_in: None,
    }
}

/// Runs a statement that has to work.
pub(crate) async fn run(session: &mut SandboxSession, text: &str) -> ResultSet {
    session.execute(&call(text)).await.unwrap_or_else(|error| panic!("{text}: {}", words(&error)))
}

/// Runs a statement that has to fail, and returns its SQLSTATE.
pub(crate) async fn fails(session: &mut SandboxSession, text: &str) -> String {
    match session.execute(&call(text)).await {
        Err(WireError::Statement(error)) => error.sqlstate().to_owned(),
        other => panic!("{text}: {other:?}"),
    }
}

/// Runs a query and returns its values as texts.
pub(crate) async fn texts(session: &mut SandboxSession, text: &str) -> Vec<Vec<Option<String>>> {
    rows(&run(session, text).await)
}

/// Runs a query that has one value.
pub(crate) async fn value(session: &mut SandboxSession, text: &str) -> String {
    texts(session, text).await[0][0].clone().unwrap()
}

pub(crate) fn rows(set: &ResultSet) -> Vec<Vec<Option<String>>> {
    set.rows.iter().map(|row| row.iter().map(|cell| cell.text().map(str::to_owned)).collect()).collect()
}

/// What an error says, the server's words among it.
pub(crate) fn words(error: &WireError) -> String {
    if let WireError::Statement(e) | WireError::Ended(e) | WireError::Auth(e) | WireError::Refused(e) = error {
        return format!("{error}: {}", e.message().expose());
    }
    error.to_string()
}

pub(crate) fn params(values: &[Option<&str>]) -> Vec<Param> {
    values.iter().map(|v| v.map_or(Param::Null, |v| Param::Text(v.into()))).collect()
}

/// The most memory this process has had, in KiB.
pub(crate) fn memory_peak_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn program(name: &str) -> PathBuf {
    let directory = std::env::var_os("PGSANDBOX_TEST_POSTGRES_BIN_DIR").unwrap_or_else(|| BIN_DIR.into());
    Path::new(&directory).join(name)
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Returns a stopped data directory, making it if there is none yet.
async fn template() -> PathBuf {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let ready = home.join(format!("wire-cluster-{}", program("").to_string_lossy().replace('/', "-")));
    let lock = File::create(home.join("wire-cluster.lock")).unwrap();
    lock.lock().unwrap();
    if ready.exists() {
        return ready;
    }
    let directory = tempfile::tempdir().unwrap();
    give(directory.path());
    let data = directory.path().join("data");
    let password = directory.path().join("password");
    fs::write(&password, PASSWORD).unwrap();
    give(&password);
    let mut initdb = Command::new(program("initdb"));
    initdb.arg("-D").arg(&data).arg(format!("--pwfile={}", password.display()));
    initdb.args([
        "--auth=scram-sha-256",
        "--username=postgres",
        "--encoding=UTF8",
        "--locale=C",
        "--no-sync",
        "--wal-segsize=1",
    ]);
    let made = unprivileged(initdb).stdout(Stdio::null()).status().unwrap();
    assert!(made.success(), "initdb failed");

    let mut server = launch(&data, directory.path(), &[]);
    let endpoint = Endpoint {
        host: Host::Unix(directory.path().to_owned()),
        port: PORT,
        tls: TlsMode::Disable,
        ca_file: None,
        address: None,
        binding: ChannelBinding::Prefer,
    };
    let admin = SessionTarget { database: "postgres".into(), ..target(endpoint, "postgres") };
    let since = Instant::now();
    let mut session = loop {
        match SandboxSession::connect(&admin).await {
            Ok(session) => break session,
            Err(error) => assert!(since.elapsed() < Duration::from_secs(30), "the template does not start: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    for statement in SETUP {
        run(&mut session, statement).await;
    }
    drop(session);
    stop(&mut server, Signal::INT);
    let part = home.join("wire-cluster-part");
    if part.exists() {
        fs::remove_dir_all(&part).unwrap();
    }
    copy(&data, &part);
    fs::rename(&part, &ready).unwrap();
    ready
}

fn launch(data: &Path, sockets: &Path, settings: &[&str]) -> Child {
    let mut postgres = Command::new(program("postgres"));
    postgres.arg("-D").arg(data);
    let sockets = format!("unix_socket_directories={}", sockets.display());
    let port = format!("port={PORT}");
    let usual = [&*sockets, &*port, "listen_addresses=", "fsync=off", "shared_buffers=16MB", "max_connections=30"];
    for setting in usual.iter().chain(settings) {
        postgres.arg("-c").arg(setting);
    }
    let log = File::create(data.with_file_name("log")).unwrap();
    unprivileged(postgres).stdout(Stdio::null()).stderr(log).spawn().unwrap()
}

/// Ends a server and waits for its end. An interrupt leaves its files consistent.
fn stop(server: &mut Child, signal: Signal) {
    let id = rustix::process::Pid::from_child(server);
    if server.try_wait().unwrap().is_none() {
        rustix::process::kill_process(id, signal).unwrap();
    }
    server.wait().unwrap();
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg("--reflink=auto").arg(from).arg(to).status().unwrap();
    assert!(copied.success());
}

/// Postgres refuses to run as root: root's tests run it as the user `postgres`.
fn unprivileged(mut command: Command) -> Command {
    if let Some((user, group)) = other_user() {
        command.uid(user).gid(group);
    }
    command.current_dir("/");
    command
}

/// Gives a file to the user that Postgres runs as.
fn give(path: &Path) {
    if let Some((user, group)) = other_user() {
        std::os::unix::fs::chown(path, Some(user), Some(group)).unwrap();
    }
}

fn other_user() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").unwrap();
    let line = users.lines().find(|line| line.starts_with("postgres:")).expect("there is a user `postgres`");
    let mut fields = line.split(':').skip(2).map(|field| field.parse().unwrap());
    Some((fields.next().unwrap(), fields.next().unwrap()))
}
