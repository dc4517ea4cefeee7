//! Frames of the Model Context Protocol, through the real program's standard input and output.
//!
//! What holds: what comes out are lines of JSON-RPC 2.0 and nothing else; a request is answered exactly once, with its own
//! id; what is no request is answered at most with an error; and the program goes on.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::driver::{Checked, Target};
use crate::mutate;
use crate::rng::Rng;

/// How long the answer to a ping may take.
const ANSWER: Duration = Duration::from_secs(60);
/// How long the first call may take, which waits until the policies are compiled.
const FIRST_ANSWER: Duration = Duration::from_secs(180);
const WORDS: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "null",
    "true",
    "1",
    "-1",
    "1e999",
    "\"jsonrpc\"",
    "\"2.0\"",
    "\"id\"",
    "\"method\"",
    "\"params\"",
    "\"result\"",
    "\"error\"",
    "\"tools/call\"",
    "\"tools/list\"",
    "\"ping\"",
    "\"initialize\"",
    "\"resources/list\"",
    "\"prompts/get\"",
    "\"completion/complete\"",
    "\"tasks/get\"",
    "\"name\"",
    "\"arguments\"",
    "\"_meta\"",
    "\"progressToken\"",
    "\"cursor\"",
    "\"run_sql\"",
    "\"list_profiles\"",
    "\"doctor\"",
    "\"protocolVersion\"",
    "\"2026-07-28\"",
    "\"notifications/initialized\"",
    "\"notifications/progress\"",
    "\"roots/list\"",
    "\\ud800",
    "\\u0000",
    "\u{feff}",
    "\u{2028}",
    "[[[[[[[[[[[[[[[[",
    "{\"a\":",
    "9007199254740993",
    "1.5",
    "\"id\":\"again\",",
];

pub struct Mcp {
    _home: TempDir,
    program: Option<Program>,
    pings: u64,
    frames: u64,
    started: u64,
}

struct Program {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    /// Ids whose answers nobody has waited for: one may come as late as it likes.
    loose: BTreeSet<String>,
}

impl Mcp {
    pub fn new() -> Self {
        let home = tempfile::tempdir().expect("a directory can be made");
        let mut this = Self { _home: home, program: None, pings: 0, frames: 0, started: 0 };
        // Before the time of the run begins; what goes wrong here does so again with the first frames, and is told then.
        this.program = this.start().ok();
        this
    }

    fn start(&mut self) -> Result<Program, String> {
        let path = std::env::var("PROGRAM").map_err(|_| "setting up: PROGRAM is not set".to_owned())?;
        self.started += 1;
        let mut child = Command::new(path)
            .arg("mcp")
            .env_clear()
            .env("PGSANDBOX_HOME", self._home.path().join("state"))
            .env("HOME", self._home.path())
            // Nobody listens there: what is asked of a database fails at once.
            .env("PGSANDBOX_ADMIN_DATABASE_URL", "postgresql://nobody:none@127.0.0.1:1/none")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("setting up: {error}"))?;
        let input = child.stdin.take().ok_or("setting up: no pipe")?;
        let mut output = BufReader::new(child.stdout.take().ok_or("setting up: no pipe")?);
        let (send, lines) = channel();
        std::thread::spawn(move || {
            let mut line = Vec::new();
            while output.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
                if send.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    return;
                }
                line.clear();
            }
        });
        let mut program = Program { child, input, lines, loose: BTreeSet::new() };
        let hello = json!({"jsonrpc": "2.0", "id": "hello", "method": "initialize", "params": {
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "fuzz", "version": "1"}}});
        let done = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        let written = program.input.write_all(format!("{hello}\n{done}\n").as_bytes());
        written.map_err(|error| format!("setting up: {error}"))?;
        let call = json!({"jsonrpc": "2.0", "id": "first", "method": "tools/call",
            "params": {"name": "list_profiles", "arguments": {}}});
        let written = program.input.write_all(format!("{call}\n").as_bytes());
        written.map_err(|error| format!("setting up: {error}"))?;
        for id in ["hello", "first"] {
            let line =
                program.lines.recv_timeout(FIRST_ANSWER).map_err(|_| "setting up: no answer to the first call")?;
            if !line.contains(&format!("\"{id}\"")) {
                return Err(format!("setting up: {line}"));
            }
        }
        Ok(program)
    }

    fn play(&mut self, program: &mut Program, frames: &[u8]) -> Checked {
        self.pings += 1;
        let ping = format!("ping-{}", self.pings);
        let mut bytes = frames.to_vec();
        bytes.extend(format!("\n{{\"jsonrpc\":\"2.0\",\"id\":\"{ping}\",\"method\":\"ping\"}}\n").as_bytes());
        // Written beside the reading: the program need not read all before it answers.
        let written = program.input.write_all(&bytes).and_then(|()| program.input.flush());
        let mut answers = Vec::new();
        let mut answered = false;
        let asked = ids(frames);
        let mut expected = expected(frames);
        expected.retain(|id| !program.loose.contains(&id.to_string()));
        program.loose.extend(asked.iter().filter(|id| !expected.contains(id)).map(ToString::to_string));
        loop {
            let all = answered && expected.iter().all(|id| answers.iter().any(|a: &Value| a.get("id") == Some(id)));
            if all {
                break;
            }
            let Ok(line) = program.lines.recv_timeout(ANSWER) else {
                let left: Vec<_> =
                    expected.iter().filter(|id| !answers.iter().any(|a| a.get("id") == Some(id))).collect();
                if let Ok(Some(status)) = program.child.try_wait() {
                    return Err(format!("ended: the program ended with {status}"));
                }
                let what = if answered { "unanswered" } else { "hang" };
                return Err(format!("{what}: no answer to {left:?} (ping answered: {answered}, written: {written:?})"));
            };
            let value = check_line(&line)?;
            answered |= value.get("id").and_then(Value::as_str) == Some(&ping);
            answers.push(value);
        }
        for id in &expected {
            let count = answers.iter().filter(|a| a.get("id") == Some(id)).count();
            if count != 1 {
                return Err(format!("twice: {count} answers to {id}"));
            }
        }
        let mut kinds: Vec<_> = answers
            .iter()
            .map(|a| match a.get("error") {
                Some(error) => format!(
                    "{} {}",
                    error["code"],
                    error["message"]
                        .as_str()
                        .unwrap_or_default()
                        .split_whitespace()
                        .take(3)
                        .collect::<Vec<_>>()
                        .join(" ")
                ),
                None => a["result"]
                    .as_object()
                    .map_or_else(String::new, |r| r.keys().cloned().collect::<Vec<_>>().join("+")),
            })
            .collect();
        kinds.sort();
        kinds.dedup();
        kinds.truncate(3);
        Ok(format!("{kinds:?}"))
    }
}

/// Returns every id in the frames.
fn ids(frames: &[u8]) -> Vec<Value> {
    let lines =
        frames.split(|b| *b == b'\n').map(|line| line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line).trim_ascii());
    lines.filter_map(|line| serde_json::from_slice::<Value>(line).ok()?.get("id").cloned()).collect()
}

/// Returns the ids that are asked for once by lines that are requests, whatever their method.
fn expected(frames: &[u8]) -> Vec<Value> {
    let mut ids: Vec<Value> = Vec::new();
    let mut cancels = false;
    for line in frames.split(|b| *b == b'\n') {
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line).trim_ascii();
        let Ok(value) = serde_json::from_slice::<Value>(line) else { continue };
        let method = value.get("method").and_then(Value::as_str);
        cancels |= method == Some("notifications/cancelled");
        let is_id = |id: &Value| id.is_string() || id.is_i64();
        if value.get("jsonrpc").and_then(Value::as_str) == Some("2.0") && method.is_some() {
            if let Some(id) = value.get("id").filter(|id| is_id(id)) {
                ids.push(id.clone());
            }
        }
    }
    // What is cancelled need not be answered, and of two requests of one id only one may be.
    if cancels {
        return Vec::new();
    }
    // An id in a line that cannot be read may be answered, too.
    let text = mutate::as_text(frames);
    ids.retain(|id| text.matches(&id.to_string()).count() == 1);
    ids
}

fn check_line(line: &str) -> Result<Value, String> {
    let value: Value = serde_json::from_str(line).map_err(|error| format!("no JSON: {error}: {line}"))?;
    let is_rpc = value.get("jsonrpc").and_then(Value::as_str) == Some("2.0");
    let is_answer = value.get("result").is_some() != value.get("error").is_some() && value.get("id").is_some();
    if is_rpc && (is_answer || value.get("method").is_some_and(Value::is_string)) {
        return Ok(value);
    }
    // An error without an id answers what has none.
    if is_rpc && value.get("error").is_some() {
        return Ok(value);
    }
    Err(format!("no JSON-RPC: {line}"))
}

impl Target for Mcp {
    fn make(&mut self, rng: &mut Rng, kept: &[Vec<u8>]) -> Vec<u8> {
        let mut all = Vec::new();
        for _ in 0..16 {
            let mut one = kept[rng.below(kept.len())].clone();
            // Kept inputs hold several lines: one of them is taken.
            let lines: Vec<_> = one.split(|b| *b == b'\n').filter(|l| !l.is_empty()).map(<[u8]>::to_vec).collect();
            if !lines.is_empty() {
                one = rng.pick_of(&lines).clone();
            }
            let other = kept[rng.below(kept.len())].clone();
            match rng.below(4) {
                0 => mutate::bytes(rng, &mut one, &other),
                1 | 2 => one = mutate::text(rng, &mutate::as_text(&one), &mutate::as_text(&other), WORDS).into_bytes(),
                _ => {}
            }
            // Ids of their own, so that each answer has one question.
            let text = mutate::as_text(&one).replace("\"id\":1,", &format!("\"id\":{},", rng.next() >> 20));
            all.extend(text.as_bytes());
            all.push(b'\n');
        }
        all
    }

    fn check(&mut self, input: &[u8]) -> Checked {
        let mut program = match self.program.take() {
            Some(program) => program,
            None => self.start()?,
        };
        self.frames += self.weight(input);
        match self.play(&mut program, input) {
            Ok(outcome) => {
                self.program = Some(program);
                Ok(outcome)
            }
            Err(what) => {
                let _gone = program.child.kill();
                let _waited = program.child.wait();
                Err(what)
            }
        }
    }

    fn weight(&self, input: &[u8]) -> u64 {
        input.split(|b| *b == b'\n').filter(|line| !line.is_empty()).count() as u64
    }

    fn note(&self) -> String {
        format!("{} frames to {} processes", self.frames, self.started)
    }
}

impl Drop for Mcp {
    fn drop(&mut self) {
        if let Some(mut program) = self.program.take() {
            let _gone = program.child.kill();
            let _waited = program.child.wait();
        }
    }
}
