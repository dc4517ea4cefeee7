//! The real program as its users run it: a fresh state directory, the command line, MCP over stdio.
//!
//! The stdio client here is a few lines of JSON-RPC of its own, so that what goes over the wire is seen as it is.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio as Pipe};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

/// How long any one answer may take: a fresh cluster on a busy machine.
const ANSWER: Duration = Duration::from_secs(120);

/// A fresh state directory. Its cluster is stopped and everything removed when it is dropped.
pub(crate) struct Home {
    dir: TempDir,
    variables: Vec<(String, String)>,
}

impl Home {
    pub(crate) fn fresh() -> Self {
        // Below `/tmp`, and open to be passed through: the cluster's user is another one where tests run as root.
        let dir = tempfile::Builder::new().prefix("pgsandbox-it.").tempdir_in("/tmp").unwrap();
        fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let home = Self { dir, variables: Vec::new() };
        home.take_compiled_policies();
        home
    }

    /// A fresh state directory whose cluster is made already, and has never served: making one is most of what a short test
    /// would take, and is tried by tests of its own.
    pub(crate) fn with_cluster() -> Self {
        let home = Self::fresh();
        let to = home.state().join("postgres");
        copy_as_is(&made_cluster(), &to);
        home
    }

    /// Begins with the compiled policies of an earlier test: compiling them takes an unoptimised program some seconds,
    /// and is tried by tests of its own.
    fn take_compiled_policies(&self) {
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("compiled-policies");
        fs::create_dir_all(kept.parent().unwrap()).unwrap();
        let lock = File::create(kept.with_extension("lock")).unwrap();
        lock.lock().unwrap();
        // Compiled code of another build is of no use to this one.
        let stamp = build();
        if fs::read_to_string(kept.join("stamp")).is_ok_and(|of| of == stamp) {
            copy_dir(&kept.join("state"), &self.state());
            return;
        }
        if kept.exists() {
            fs::remove_dir_all(&kept).unwrap();
        }
        let listed = self.run(&["policy", "list"]);
        assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
        // The mark of a state directory, and the compiled code; keys and records are each test's own.
        for entry in fs::read_dir(self.state()).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if name == "cache" || (path.is_file() && name != "master.keys") {
                let to = kept.join("state").join(&name);
                fs::create_dir_all(kept.join("state")).unwrap();
                if path.is_dir() { copy_dir(&path, &to) } else { _ = fs::copy(&path, &to).unwrap() }
            }
        }
        fs::set_permissions(kept.join("state"), fs::metadata(self.state()).unwrap().permissions()).unwrap();
        fs::write(kept.join("stamp"), stamp).unwrap();
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pgsandbox"));
        command.args(arguments).env_clear();
        for name in ["PATH", "HOME", "LANG"] {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command.env("PGSANDBOX_HOME", self.state()).envs(self.variables.iter().cloned());
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).stdin(Pipe::null()).output().unwrap()
    }
}

/// Tells one build of the program from another.
fn build() -> String {
    format!("{:?}", fs::metadata(env!("CARGO_BIN_EXE_pgsandbox")).unwrap().modified().unwrap())
}

/// Returns the folder of a cluster that this build of the program made, made once per machine.
fn made_cluster() -> PathBuf {
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("made-cluster");
    let lock = File::create(kept.with_extension("lock")).unwrap();
    lock.lock().unwrap();
    let stamp = build();
    if fs::read_to_string(kept.join("stamp")).is_ok_and(|of| of == stamp) {
        return kept.join("postgres");
    }
    if kept.exists() {
        fs::remove_dir_all(&kept).unwrap();
    }
    fs::create_dir_all(&kept).unwrap();
    let home = Home::fresh();
    for arguments in [["local", "init"], ["local", "stop"]] {
        let done = home.run(&arguments);
        assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    }
    copy_as_is(&home.state().join("postgres"), &kept.join("postgres"));
    for cluster in fs::read_dir(kept.join("postgres/postgres")).unwrap() {
        // Each finds a port of its own, and keeps room of its own back on the disk.
        for own in ["port", "data/pgsandbox.ballast"] {
            fs::remove_file(cluster.as_ref().unwrap().path().join(own)).ok();
        }
    }
    fs::write(kept.join("stamp"), stamp).unwrap();
    kept.join("postgres")
}

/// Copies a folder with its owners: a cluster's data are another user's where tests run as root.
fn copy_as_is(from: &Path, to: &Path) {
    let copied = Command::new("cp").args(["-a", "--reflink=auto"]).arg(from).arg(to).status().unwrap();
    assert!(copied.success());
}

fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    fs::set_permissions(to, fs::metadata(from).unwrap().permissions()).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let to = to.join(path.file_name().unwrap());
        if path.is_dir() { copy_dir(&path, &to) } else { _ = fs::copy(&path, &to).unwrap() }
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let stopped = self.run(&["local", "stop"]);
        if !thread::panicking() && self.state().exists() {
            let said = String::from_utf8_lossy(&stopped.stderr);
            // A home of other people's servers only has none to stop.
            let none = said.contains("no profile of this configuration is managed");
            assert!(stopped.status.success() || none, "{said}");
        }
    }
}

/// Something that calls operations.
pub(crate) trait Transport {
    /// Calls an operation and returns the envelope.
    fn call(&mut self, operation: &str, input: &Value) -> Value;
}

/// The command line.
pub(crate) struct Cli<'a> {
    home: &'a Home,
}

impl<'a> Cli<'a> {
    pub(crate) fn new(home: &'a Home) -> Self {
        Self { home }
    }
}

impl Transport for Cli<'_> {
    fn call(&mut self, operation: &str, input: &Value) -> Value {
        let output = self.home.run(&["tool", operation, "--format", "json", "--input", &input.to_string()]);
        let text = String::from_utf8(output.stdout).unwrap();
        let envelope: Value = serde_json::from_str(&text)
            .unwrap_or_else(|e| panic!("{operation}: {e}: {text}{}", String::from_utf8_lossy(&output.stderr)));
        // What was carried out and found something not in order, as `doctor` does, is no success either.
        let in_order = envelope["ok"] == true
            && envelope["result"]["ok"] != false
            && envelope["result"]["statementsFailed"].is_null();
        assert_eq!(output.status.success(), in_order, "{operation}: {envelope:#}");
        envelope
    }
}

/// One MCP connection over stdio.
pub(crate) struct Stdio {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    next_id: u64,
    pub(crate) notifications: Vec<Value>,
}

impl Stdio {
    /// Starts the program and shakes hands.
    pub(crate) fn start(home: &Home) -> Self {
        Self::start_with(home, &[], Pipe::inherit())
    }

    /// Starts the program with further variables and a standard error of its own, and shakes hands.
    pub(crate) fn start_with(home: &Home, variables: &[(&str, &str)], errors: Pipe) -> Self {
        let mut this = Self::spawn(home, variables, errors);
        this.shake_hands("2025-11-25");
        this
    }

    /// Shakes hands under an id that is a text, so that the first number is still free.
    pub(crate) fn spawn_and_shake_hands_by_string_id(home: &Home) -> Self {
        let mut this = Self::spawn(home, &[], Pipe::inherit());
        let params =
            json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "it", "version": "1"}});
        this.send(&json!({"jsonrpc": "2.0", "id": "hello", "method": "initialize", "params": params}));
        let answer = this.message(ANSWER).unwrap();
        assert_eq!(answer["id"], "hello", "{answer:#}");
        this.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        this
    }

    pub(crate) fn start_without_handshake(home: &Home) -> Self {
        Self::spawn(home, &[], Pipe::inherit())
    }

    /// Shakes hands in a revision of the protocol; returns the answer.
    pub(crate) fn shake_hands(&mut self, revision: &str) -> Value {
        let answer = self.request(
            "initialize",
            json!({"protocolVersion": revision, "capabilities": {}, "clientInfo": {"name": "it", "version": "1"}}),
        );
        assert_eq!(answer["result"]["serverInfo"]["name"], "pgsandbox", "{answer:#}");
        self.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        answer
    }

    fn spawn(home: &Home, variables: &[(&str, &str)], errors: Pipe) -> Self {
        let mut command = home.command(&["mcp"]);
        command.envs(variables.iter().copied()).stdin(Pipe::piped()).stdout(Pipe::piped()).stderr(errors);
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let input = child.stdin.take();
        Self { child, input, lines, next_id: 0, notifications: Vec::new() }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn send(&mut self, message: &Value) {
        self.send_raw(&message.to_string());
    }

    pub(crate) fn send_raw(&mut self, line: &str) {
        self.send_bytes(line.as_bytes());
    }

    pub(crate) fn send_bytes(&mut self, line: &[u8]) {
        let input = self.input.as_mut().unwrap();
        // A program that was killed on purpose does not read any more.
        input.write_all(line).and_then(|()| input.write_all(b"\n")).and_then(|()| input.flush()).ok();
    }

    /// Sends a request without waiting; returns its id. Ids begin at 0, which must work like any other.
    pub(crate) fn begin(&mut self, method: &str, params: Value) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        id
    }

    /// Waits for the answer to a request; everything on standard output must be JSON-RPC.
    pub(crate) fn answer(&mut self, id: u64) -> Value {
        // It may have come before an answer that was waited for.
        let kept = self.notifications.iter().position(|message| message["id"] == id && message.get("method").is_none());
        if let Some(at) = kept {
            return self.notifications.remove(at);
        }
        loop {
            let message = self.message(ANSWER).unwrap_or_else(|| panic!("no answer to request {id}"));
            if message["id"] == id && message.get("method").is_none() {
                return message;
            }
            self.notifications.push(message);
        }
    }

    /// Returns the next message, if one comes in time.
    pub(crate) fn message(&mut self, within: Duration) -> Option<Value> {
        let line = match self.lines.recv_timeout(within) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
        };
        let message: Value =
            serde_json::from_str(&line).unwrap_or_else(|e| panic!("standard output is not JSON-RPC: {e}: {line}"));
        assert_eq!(message["jsonrpc"], "2.0", "{line}");
        Some(message)
    }

    pub(crate) fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.begin(method, params);
        self.answer(id)
    }

    /// Ends the input, and goes on listening.
    pub(crate) fn end_input(&mut self) {
        self.input = None;
    }

    /// Waits for the program to end by itself.
    pub(crate) fn wait(&mut self) -> std::process::ExitStatus {
        self.child.wait().unwrap()
    }

    /// Ends the input and waits for the program to end.
    pub(crate) fn finish(mut self) -> std::process::ExitStatus {
        self.input = None;
        self.child.wait().unwrap()
    }

    /// Kills the program as the kernel would.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Transport for Stdio {
    fn call(&mut self, operation: &str, input: &Value) -> Value {
        let answer = self.request("tools/call", json!({"name": operation, "arguments": input}));
        match answer.get("result") {
            Some(result) => {
                let envelope = result["structuredContent"].clone();
                assert_eq!(result["isError"] == true, envelope["ok"] == false, "{operation}: {result:#}");
                envelope
            }
            // A tool that does not exist is a fault of the protocol; the envelope comes as its data.
            None => answer["error"]["data"].clone(),
        }
    }
}

impl Drop for Stdio {
    fn drop(&mut self) {
        self.input = None;
        if thread::panicking() {
            self.child.kill().ok();
        }
        self.child.wait().ok();
    }
}
