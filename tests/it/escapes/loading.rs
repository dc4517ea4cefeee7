//! Configuration, environment and policies that reach for more than a setting: files, other servers, the host.
//!
//! Each is loaded by the real program. What it says must not hold what lies in a file it was pointed to, nothing may be
//! changed, nobody may be called, and it has to end.

use std::cell::Cell;
use std::fs;
use std::io::Read as _;
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio as Pipe};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};

use super::room::{CANARY, Outcome, Report, is_whole};
use super::state::{self, State};
use crate::harness::Cluster;
use crate::policies::guest::Guest;
use crate::program::Home;

const CONFIGURATION: &str = "configuration";
const HOST: &str = "policy host";
/// Whatever is loaded is loaded by then, or refused, on a busy machine.
const ENDED_WITHIN: Duration = Duration::from_secs(120);

/// Starting the program some hundred times is for the proof; beside other tests it is every so many-th.
const TRIED_OF: usize = 6;

/// A folder with traps, and somebody who listens and must not be called.
struct Traps {
    home: Home,
    listener: TcpListener,
    before: State,
    tried: Cell<usize>,
}

impl Traps {
    fn new() -> Self {
        let home = Home::fresh();
        let dir = home.path().join("traps");
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("secret"), format!("password = {CANARY}\n\"{CANARY}\n")).unwrap();
        fs::write(dir.join("secret.json"), format!("{{\"profiles\": [{{\"name\": \"{CANARY}\" \"{CANARY}\"")).unwrap();
        mknodat(CWD, dir.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        symlink("loop", dir.join("loop")).unwrap();
        symlink("secret", dir.join("link")).unwrap();
        symlink("/dev/zero", dir.join("zero")).unwrap();
        fs::File::create(dir.join("sparse")).unwrap().set_len(4 << 30).unwrap();
        fs::create_dir(dir.join("folder")).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut traps = Self { home, listener, before: State::new(), tried: Cell::new(0) };
        traps.before = traps.look();
        traps
    }

    fn dir(&self) -> std::path::PathBuf {
        self.home.path().join("traps")
    }

    /// The traps as they are; the sparse file's content is of no interest.
    fn look(&self) -> State {
        let mut state = State::new();
        for entry in fs::read_dir(self.dir()).unwrap() {
            let path = entry.unwrap().path();
            let about = fs::symlink_metadata(&path).unwrap();
            state.insert(
                ("traps".into(), path.display().to_string()),
                format!("{about:?}").split("accessed").next().unwrap().to_owned(),
            );
        }
        state
    }

    /// Runs the program to its end; returns its status and all it said.
    fn run(&self, words: &[&str], variables: &[(String, String)]) -> Result<(bool, String), String> {
        let mut command = self.home.command(words);
        command.envs(variables.iter().cloned());
        ended(command)
    }

    /// Tries one configuration, and notes it; returns whether it was loaded. Among others only some are tried.
    fn attempt(
        &self,
        report: &mut Report,
        category: &str,
        title: &str,
        words: &[&str],
        variables: &[(String, String)],
    ) -> Option<bool> {
        let number = self.tried.replace(self.tried.get() + 1);
        if !is_whole() && !number.is_multiple_of(TRIED_OF) {
            return None;
        }
        let mut found = Vec::new();
        let outcome = match self.run(words, variables) {
            Err(what) => {
                found.push(what);
                Outcome::Ran
            }
            Ok((good, said)) => {
                if said.contains(CANARY) {
                    found.push(format!("was told a secret: {said}"));
                }
                if good { Outcome::Ran } else { Outcome::Before }
            }
        };
        if let Ok((_, peer)) = self.listener.accept() {
            found.push(format!("somebody else was called, from {peer}"));
        }
        found.extend(state::differences(&self.before, &self.look()).into_iter().map(|d| format!("{d:?}")));
        report.note(category, title, outcome, &found);
        Some(outcome == Outcome::Ran)
    }
}

/// Waits for a program to end, for as long as it may take; it is killed after that.
fn ended(mut command: Command) -> Result<(bool, String), String> {
    let mut child = command.stdin(Pipe::null()).stdout(Pipe::piped()).stderr(Pipe::piped()).spawn().unwrap();
    let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let readers = [
        std::thread::spawn(move || {
            let mut text = Vec::new();
            out.read_to_end(&mut text).ok();
            text
        }),
        std::thread::spawn(move || {
            let mut text = Vec::new();
            err.read_to_end(&mut text).ok();
            text
        }),
    ];
    let until = Instant::now() + ENDED_WITHIN;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > until {
            child.kill().unwrap();
            child.wait().unwrap();
            return Err("it did not end".to_owned());
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let said = readers.map(|reader| String::from_utf8_lossy(&reader.join().unwrap()).into_owned()).concat();
    Ok((status.success(), said))
}

fn set(name: &str, value: impl Into<String>) -> (String, String) {
    (name.to_owned(), value.into())
}

/// Files that are no configuration, URLs that are more than an address, variables of other programs.
pub(super) fn configurations(cluster: &Cluster, report: &mut Report) {
    let traps = Traps::new();
    let dir = traps.dir();
    let path = |name: &str| dir.join(name).display().to_string();
    for file in ["fifo", "secret", "secret.json", "loop", "link", "zero", "sparse", "folder", "nothing", "secret/x"] {
        for variable in ["PGSANDBOX_CONFIG", "PGSANDBOX_POLICIES"] {
            let title = format!("{variable} is {file}");
            traps.attempt(report, CONFIGURATION, &title, &["policy", "list"], &[set(variable, path(file))]);
        }
    }
    for value in
        ["/etc/shadow", "/proc/self/environ", "/proc/self/mem", "/dev/stdin", "file:///etc/passwd", "-", "a\nb"]
    {
        for variable in ["PGSANDBOX_CONFIG", "PGSANDBOX_POLICIES"] {
            let title = format!("{variable} is {value:?}");
            traps.attempt(
                report,
                CONFIGURATION,
                &title,
                &["policy", "list"],
                &[set(variable, value), set("X", CANARY)],
            );
        }
    }
    for (what, home) in [
        ("a folder of others", path("folder")),
        ("a file", path("secret")),
        ("a link in a circle", path("loop")),
        ("a pipe", path("fifo")),
        ("a relative path", "state".into()),
        ("a path with dots", format!("{}/../../../../etc", path("folder"))),
        ("the root", "/".into()),
        ("a folder of the system", "/etc".into()),
        ("a folder in /proc", "/proc/self".into()),
        ("somebody's own folder", "/tmp".into()),
    ] {
        traps.attempt(
            report,
            CONFIGURATION,
            &format!("the home is {what}"),
            &["list-databases"],
            &[set("PGSANDBOX_HOME", home)],
        );
    }
    let port = traps.listener.local_addr().unwrap().port();
    let (good, user) = (cluster.port, crate::harness::SUPERUSER);
    let url = |rest: &str| {
        rest.replace("{port}", &port.to_string())
            .replace("{good}", &good.to_string())
            .replace("{dir}", &dir.display().to_string())
    };
    for rest in [
        "postgresql://u@127.0.0.1:{good},127.0.0.1:{port}/x",
        "postgresql://u@127.0.0.1:{good}/x?host=127.0.0.1&port={port}",
        "postgresql://u@127.0.0.1:{good}/x?hostaddr=127.0.0.1",
        "postgresql://u@127.0.0.1:{good}/x?service=x",
        "postgresql://u@127.0.0.1:{good}/x?servicefile={dir}/secret",
        "postgresql://u@127.0.0.1:{good}/x?passfile={dir}/secret",
        "postgresql://u@127.0.0.1:{good}/x?sslrootcert={dir}/secret&sslmode=verify-full",
        "postgresql://u@127.0.0.1:{good}/x?sslkey={dir}/secret",
        "postgresql://u@127.0.0.1:{good}/x?sslcert={dir}/fifo",
        "postgresql://u@127.0.0.1:{good}/x?options=-c%20role%3Dnone",
        "postgresql://u@127.0.0.1:{good}/x?options=-c%20search_path%3Dtrap",
        "postgresql://u@127.0.0.1:{good}/x?target_session_attrs=any",
        "postgresql://u@127.0.0.1:{good}/x?gssencmode=require",
        "postgresql://u@127.0.0.1:{good}/x?replication=database",
        "postgresql://u@127.0.0.1:{good}/x?application_name=x%00",
        "postgresql://u@%2Ftmp/x",
        "postgresql:///x?host={dir}",
        "postgresql://u:p%40127.0.0.1:{port}@127.0.0.1:{good}/x",
        "postgresql://u@127.0.0.1:{good}#@127.0.0.1:{port}/x",
        "postgresql://u@2130706433:{port}/x",
        "postgresql://u@0x7f.1:{port}/x",
        "postgresql://u@localhost.localdomain.example:{port}/x",
        "postgresql://u@[::ffff:10.0.0.1]:{port}/x",
        "postgresql://u@169.254.169.254/x",
        "postgresql://u@db.example.com/x",
        "host=127.0.0.1 port={port} dbname=x",
        "jdbc:postgresql://127.0.0.1:{port}/x",
        "file://{dir}/secret",
        "http://127.0.0.1:{port}/x",
    ] {
        let value = url(rest);
        let title = format!("an admin URL: {rest}");
        traps.attempt(
            report,
            CONFIGURATION,
            &title,
            &["list-databases"],
            &[set("PGSANDBOX_ADMIN_DATABASE_URL", value)],
        );
    }
    let admin = |more: Value| {
        let mut profile =
            json!({"name": "a", "adminUrl": cluster.url(user, "correct%3Ahorse%2Fbattery%40staple", "postgres")});
        profile.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"profiles": [profile]})
    };
    let mut documents: Vec<(String, Value)> =
        ["", "pg", "PG", "x'; DROP DATABASE postgres; --", "a b", "a\"b", "a%", "../a", "\u{430}", "operator\0"]
            .iter()
            .map(|prefix| (format!("the prefix {prefix:?}"), admin(json!({"databasePrefix": prefix}))))
            .collect();
    documents.extend(
        ["", "../a", "a/b", "a\0", "a;b", "{}", "a'b"]
            .map(|name| (format!("the profile {name:?}"), admin(json!({"name": name})))),
    );
    for (what, more) in [
        ("the audit log in a folder of others", json!({"audit": {"dir": path("folder") + "/../folder"}})),
        ("the audit log over a file", json!({"audit": {"dir": path("secret")}})),
        ("the audit log through a link", json!({"audit": {"dir": path("link")}})),
        ("the audit log in /etc", json!({"audit": {"dir": "/etc"}})),
        (
            "a collector that is a file",
            json!({"telemetry": {"enabled": true, "endpoint": format!("file://{}", path("secret"))}}),
        ),
        (
            "a collector with a password",
            json!({"telemetry": {"enabled": true, "endpoint": format!("http://u:{CANARY}@127.0.0.1:1")}}),
        ),
        (
            "a collector that is not enabled",
            json!({"telemetry": {"enabled": false, "endpoint": format!("http://127.0.0.1:{port}")}}),
        ),
        ("a limit that is none", json!({"profiles": [{"name": "a", "managedLocal": true, "maxTtlMinutes": "1e999"}]})),
        (
            "a profile of two kinds",
            json!({"profiles": [{"name": "a", "managedLocal": true, "adminUrl": "postgresql://u@127.0.0.1:1/x"}]}),
        ),
        (
            "the policies by a path with dots",
            json!({"profiles": [{"name": "a", "managedLocal": true}], "policies": "../traps/secret"}),
        ),
    ] {
        let mut document = admin(json!({}));
        document.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        documents.push((what.to_owned(), document));
    }
    let file = traps.home.path().join("config.json");
    for (what, document) in documents {
        fs::write(&file, document.to_string()).unwrap();
        let variables = [set("PGSANDBOX_CONFIG", file.display().to_string())];
        traps.attempt(report, CONFIGURATION, &what, &["policy", "list"], &variables);
    }
    environment(cluster, &traps, report, port);
}

/// What libpq and others read is not read by this program, and nobody they name is called.
fn environment(cluster: &Cluster, traps: &Traps, report: &mut Report, port: u16) {
    let dir = traps.dir();
    let path = |name: &str| dir.join(name).display().to_string();
    let admin = set(
        "PGSANDBOX_ADMIN_DATABASE_URL",
        cluster.url(crate::harness::SUPERUSER, "correct%3Ahorse%2Fbattery%40staple", "postgres"),
    );
    let port = port.to_string();
    for variables in [
        vec![set("PGHOST", "127.0.0.1"), set("PGPORT", port.clone())],
        vec![set("PGHOSTADDR", "127.0.0.1"), set("PGPORT", port.clone())],
        vec![set("PGSERVICE", "x"), set("PGSERVICEFILE", path("secret"))],
        vec![set("PGPASSFILE", path("fifo"))],
        vec![set("PGOPTIONS", "-c search_path=trap -c role=nobody")],
        vec![set("PGUSER", "nobody"), set("PGPASSWORD", CANARY), set("PGDATABASE", "operator")],
        vec![set("PGSSLMODE", "verify-full"), set("PGSSLROOTCERT", path("secret"))],
        vec![set("PGTZ", "../../etc/passwd"), set("PGDATESTYLE", "German"), set("PGCLIENTENCODING", "SQL_ASCII")],
        vec![set("PGDATA", path("folder")), set("PGSYSCONFDIR", dir.display().to_string())],
        vec![set("HOME", dir.display().to_string())],
        vec![
            set("http_proxy", format!("http://127.0.0.1:{port}")),
            set("ALL_PROXY", format!("http://127.0.0.1:{port}")),
        ],
        vec![
            set("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://127.0.0.1:{port}")),
            set("OTEL_TRACES_EXPORTER", "otlp"),
        ],
        vec![set("OTEL_EXPORTER_OTLP_HEADERS", format!("a={CANARY}"))],
        vec![set("RUST_LOG", "trace"), set("RUST_BACKTRACE", "full")],
        vec![set("DATABASE_URL", format!("postgresql://u:{CANARY}@127.0.0.1:{port}/x"))],
        vec![set("TMPDIR", path("folder"))],
        vec![set("LC_ALL", "../../etc/passwd"), set("LANGUAGE", "x")],
        vec![set("WASMTIME_BACKTRACE_DETAILS", "1"), set("WASMTIME_CACHE", path("folder"))],
    ] {
        let names: Vec<&str> = variables.iter().map(|(name, _)| name.as_str()).collect();
        let mut all = variables.clone();
        all.push(admin.clone());
        let ran = traps.attempt(
            report,
            CONFIGURATION,
            &format!("the environment's {}", names.join(", ")),
            &["list-databases"],
            &all,
        );
        assert!(ran != Some(false), "{names:?} keeps the program from its server");
    }
    for name in ["PGSANDBOX_SECRET", "PGSANDBOX_POLICY_BYPASS", "PGSANDBOX_TRUSTED", "PGSANDBOX_DATABASE_PREFIX_"] {
        let ran = traps.attempt(
            report,
            CONFIGURATION,
            &format!("the variable {name}"),
            &["list-databases"],
            &[set(name, CANARY), admin.clone()],
        );
        assert!(ran != Some(true), "{name} is not refused");
    }
}

/// Policies that reach for the host, or that are no policies.
pub(super) fn policies(report: &mut Report) {
    let traps = Traps::new();
    let home = traps.home.path();
    let file = home.join("policies.toml");
    let variables = [set("PGSANDBOX_POLICIES", file.display().to_string())];
    let load = |report: &mut Report, title: &str, entry: &str| {
        fs::write(&file, format!("[[policy]]\nsource = \"ownership\"\n{entry}")).unwrap();
        let ran = traps.attempt(report, HOST, title, &["policy", "list"], &variables);
        assert!(ran != Some(true), "{title} was loaded");
    };
    let write = |name: &str, bytes: &[u8]| fs::write(home.join(name), bytes).unwrap();
    for import in [
        "wasi:cli/environment@0.2.0",
        "wasi:cli/stdout@0.2.0",
        "wasi:cli/exit@0.2.0",
        "wasi:filesystem/preopens@0.2.0",
        "wasi:filesystem/types@0.2.0",
        "wasi:sockets/tcp@0.2.0",
        "wasi:sockets/instance-network@0.2.0",
        "wasi:clocks/wall-clock@0.2.0",
        "wasi:clocks/monotonic-clock@0.2.0",
        "wasi:random/random@0.2.0",
        "wasi:http/outgoing-handler@0.2.0",
        "wasi:io/streams@0.2.0",
        "wasi:keyvalue/store@0.2.0",
        "pgsandbox:policy/host@0.1.0",
        "pgsandbox:policy/types@0.1.0",
    ] {
        write("guest.wasm", &wat::parse_str(format!("(component (import \"{import}\" (instance)))")).unwrap());
        load(
            report,
            &format!("a component that imports {import}"),
            "[[policy]]\nname = \"guest\"\nsource = \"./guest.wasm\"\n",
        );
    }
    let modules = [
        ("a component that imports a function", "(component (import \"host-call\" (func)))".to_owned()),
        ("a component that imports a module", "(component (import \"m\" (core module)))".to_owned()),
        ("a component that imports a component", "(component (import \"c\" (component)))".to_owned()),
        ("a component that imports a resource", "(component (import \"r\" (type (sub resource))))".to_owned()),
        ("a component that exports nothing", "(component)".to_owned()),
        ("a core module", "(module)".to_owned()),
        (
            "a core module of WASI",
            "(module (import \"wasi_snapshot_preview1\" \"proc_exit\" (func (param i32))))".to_owned(),
        ),
        ("a core module that imports memory", "(module (import \"env\" \"memory\" (memory 1)))".to_owned()),
        ("a core module of 64 bits", "(module (memory i64 1))".to_owned()),
        ("a core module with threads", "(module (memory 1 2 shared))".to_owned()),
    ];
    for (what, text) in modules {
        write("guest.wasm", &wat::parse_str(text).unwrap());
        load(report, what, "[[policy]]\nname = \"guest\"\nsource = \"./guest.wasm\"\n");
    }
    let good = Guest::new("guest").component();
    let mut huge = good.clone();
    huge.resize(64 << 20, 0);
    let bytes: [(&str, Vec<u8>); 6] = [
        ("a text", b"(component)".to_vec()),
        ("nothing", Vec::new()),
        ("compiled code", [b"\x7fELF".as_slice(), &[2; 4096]].concat()),
        ("half a component", good[..good.len() / 2].to_vec()),
        ("a component with more behind it", [good.as_slice(), b"more"].concat()),
        ("a component of 64 MiB", huge),
    ];
    for (what, bytes) in bytes {
        write("guest.wasm", &bytes);
        load(report, &format!("a policy that is {what}"), "[[policy]]\nname = \"guest\"\nsource = \"./guest.wasm\"\n");
    }
    fs::remove_file(home.join("guest.wasm")).unwrap();
    for source in [
        "../traps/secret",
        "./traps/secret",
        "./traps/fifo",
        "./traps/loop",
        "./traps/zero",
        "./traps/sparse",
        "./traps/folder",
        "./traps/link",
        "/etc/passwd",
        "/etc/shadow",
        "/proc/self/exe",
        "/proc/self/mem",
        "/dev/zero",
        "/dev/stdin",
        "http://127.0.0.1/x.wasm",
        "oci://127.0.0.1/x",
        "../quota",
        "quota.wasm",
        "quota\\u0000",
        "",
        ".",
        "./",
        "file:///etc/passwd",
        "~/x.wasm",
        "$HOME/x.wasm",
    ] {
        load(
            report,
            &format!("a policy from {source:?}"),
            &format!("[[policy]]\nname = \"guest\"\nsource = \"{source}\"\n"),
        );
    }
    write("guest.wasm", &good);
    for (what, entry) in [
        (
            "a digest that is another's",
            "[[policy]]\nname = \"guest\"\nsource = \"./guest.wasm\"\nsha256 = \"0000000000000000000000000000000000000000000000000000000000000000\"\n",
        ),
        ("the name of a bundled policy", "[[policy]]\nname = \"ownership\"\nsource = \"./guest.wasm\"\n"),
        ("a name that is a path", "[[policy]]\nname = \"../guest\"\nsource = \"./guest.wasm\"\n"),
        ("a mode that opens", "[[policy]]\nname = \"guest\"\nsource = \"./guest.wasm\"\nmode = \"off\"\n"),
        ("a switch that opens", "[[policy]]\nname = \"guest\"\nsource = \"./guest.wasm\"\nfail_open = true\n"),
        (
            "an allowance of imports",
            "[[policy]]\nname = \"guest\"\nsource = \"./guest.wasm\"\nallow_imports = [\"wasi:cli/environment\"]\n",
        ),
        (
            "limits beyond the program's",
            "[[policy]]\nname = \"guest\"\nsource = \"./guest.wasm\"\nlimits = { memory_bytes = 99999999999 }\n",
        ),
    ] {
        load(report, what, entry);
    }
}
