//! A state directory with a cluster of its own, and a client that speaks MCP to the program over its pipes.
//!
//! The client reads and writes in the thread that measures: no queue of its own is in the figures.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Every bundled policy, with budgets that a measurement does not use up.
const POLICIES: &str = r#"
policy = [
  { source = "clone-source", settings = { allow = [{ host = "127.0.0.1" }] } }, { source = "extensions" }, { source = "host-command" }, { source = "ownership" },
  { source = "quota", settings = { max_live = 100, max_live_group = 100 } },
  { source = "rate-limit", settings = { impacts = {
      reads = { burst = 1000000, per_interval = 1000000, interval_ms = 1000 },
      creates = { burst = 1000000, per_interval = 1000000, interval_ms = 1000 },
      writes = { burst = 1000000, per_interval = 1000000, interval_ms = 1000 },
      destroys = { burst = 1000000, per_interval = 1000000, interval_ms = 1000 },
      discloses = { burst = 1000000, per_interval = 1000000, interval_ms = 1000 },
      "reaches-out" = { burst = 1000000, per_interval = 1000000, interval_ms = 1000 } } } },
  { source = "readonly" }, { source = "row-limit" }, { source = "statement-guard" },
]
"#;

/// A fresh state directory. Its cluster is stopped and everything removed when it is dropped.
pub struct Home(TempDir);

impl Home {
    /// Makes one; its cluster starts with the first call that needs it.
    pub fn fresh() -> Self {
        // Below `/tmp`, and open to be passed through: as root, the cluster runs as another user.
        let dir = tempfile::Builder::new().prefix("pgsandbox-bench.").tempdir_in("/tmp").unwrap();
        fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        fs::write(dir.path().join("policies.toml"), POLICIES).unwrap();
        Self(dir)
    }

    /// Returns the state directory.
    pub fn state(&self) -> PathBuf {
        self.0.path().join("state")
    }

    /// Returns a command of the program on this state directory.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pgsandbox"));
        command.args(arguments).env_clear();
        for name in ["PATH", "HOME", "LANG"] {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command
            .env("PGSANDBOX_HOME", self.state())
            .env("PGSANDBOX_POLICIES", self.0.path().join("policies.toml"))
            .env("PGSANDBOX_MAX_ACTIVE_DATABASES_PER_OWNER", "100");
        command
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if let Err(error) = self.command(&["local", "stop"]).stdin(Stdio::null()).output() {
            eprintln!("the cluster could not be stopped: {error}");
        }
    }
}

/// One running program with one client.
pub struct Server {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    next_id: u64,
    /// The bytes of the last answer.
    pub last_bytes: usize,
}

impl Server {
    /// Starts the program and shakes hands.
    pub fn start(home: &Home) -> Self {
        let mut this = Self::spawn(home);
        this.shake_hands();
        this
    }

    /// Starts the program.
    pub fn spawn(home: &Home) -> Self {
        let mut command = home.command(&["mcp"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, input, output, next_id: 0, last_bytes: 0 }
    }

    /// Sends `initialize` and waits for its answer.
    pub fn shake_hands(&mut self) {
        let id = self.begin(
            "initialize",
            &json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}),
        );
        let (answered, answer) = self.next_answer();
        assert_eq!(answered, id, "{answer}");
        writeln!(self.input, "{}", json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).unwrap();
    }

    /// Sends a request; returns its id.
    pub fn begin(&mut self, method: &str, params: &Value) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let mut line = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string();
        line.push('\n');
        self.input.write_all(line.as_bytes()).unwrap();
        id
    }

    /// Begins a call of an operation.
    pub fn begin_call(&mut self, operation: &str, arguments: &Value) -> u64 {
        self.begin("tools/call", &json!({"name": operation, "arguments": arguments}))
    }

    /// Waits for the next answer to any request.
    pub fn next_answer(&mut self) -> (u64, Value) {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the program has ended");
            let message: Value = serde_json::from_str(&line).unwrap();
            if let Some(id) = message["id"].as_u64().filter(|_| message.get("method").is_none()) {
                self.last_bytes = line.len();
                return (id, message);
            }
        }
    }

    /// Calls an operation and returns its envelope.
    pub fn call(&mut self, operation: &str, arguments: &Value) -> Value {
        let id = self.begin_call(operation, arguments);
        let (answered, mut answer) = self.next_answer();
        assert_eq!(answered, id);
        let envelope = answer["result"]["structuredContent"].take();
        assert_eq!(envelope["ok"], true, "{operation}: {envelope:#}{answer:#}");
        envelope
    }

    /// Creates a sandbox and returns its id.
    pub fn create(&mut self) -> String {
        let envelope = self.call("create_database", &json!({"ttlMinutes": 60}));
        envelope["result"]["databaseId"].as_str().unwrap_or_else(|| panic!("{envelope:#}")).to_owned()
    }

    /// Returns the program's resident memory, in MiB.
    pub fn rss_mib(&self) -> f64 {
        self.status_mib("VmRSS:")
    }

    /// Returns the most memory that the program ever had resident, in MiB.
    pub fn peak_mib(&self) -> f64 {
        self.status_mib("VmHWM:")
    }

    fn status_mib(&self, name: &str) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
    }

    /// Ends the input and waits for the program to end.
    pub fn finish(self) {
        let Self { mut child, input, output, .. } = self;
        drop(input);
        child.wait().unwrap();
        drop(output);
    }
}
