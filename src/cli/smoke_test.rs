//! Plays the main job as a client does: this program is started anew and spoken to over its pipes.

use std::process::{ExitCode, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::main_job::{self, Edge, Step};
use super::render::{self, Format, line};
use crate::model::fault;

/// How long any one answer may take: the first one may have to make a cluster.
const ANSWER: Duration = Duration::from_secs(180);
/// How long the program may take to end once its input has.
const END: Duration = Duration::from_secs(90);
/// The revision of the protocol that is spoken.
const REVISION: &str = "2025-11-25";

/// One check, as it came out.
struct Check {
    name: &'static str,
    outcome: Result<String, String>,
}

/// Runs `smoke-test`.
pub(super) fn run(format: Format) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let checks = match runtime {
        Ok(runtime) => runtime.block_on(play(|check| told(check, format))),
        Err(error) => vec![Check { name: "A start", outcome: Err(error.to_string()) }],
    };
    let is_sound = checks.iter().all(|check| check.outcome.is_ok());
    if format == Format::Json {
        let shown: Vec<Value> = checks
            .iter()
            .map(|check| {
                let (status, detail) = match &check.outcome {
                    Ok(said) => ("ok", said),
                    Err(fault) => ("fail", fault),
                };
                json!({"name": check.name, "status": status, "detail": detail})
            })
            .collect();
        render::json(&json!({"ok": is_sound, "checks": shown}).to_string());
    } else {
        let failed = checks.iter().filter(|check| check.outcome.is_err()).count();
        line(&format!("{} checks, {failed} failed", checks.len()));
    }
    if is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn told(check: &Check, format: Format) {
    if format == Format::Text {
        let (status, detail) = match &check.outcome {
            Ok(said) => ("ok", said),
            Err(fault) => ("FAIL", fault),
        };
        line(&format!("{status:<4} {:<36} {detail}", check.name));
    }
}

/// Plays everything; each check is told as soon as it is made.
async fn play(tell: impl Fn(&Check)) -> Vec<Check> {
    let mut checks = Vec::new();
    let mut note = |name, outcome: Result<String, String>| {
        let check = Check { name, outcome };
        tell(&check);
        let is_sound = check.outcome.is_ok();
        checks.push(check);
        is_sound
    };
    let mut server = match Server::start().await {
        Ok(server) => server,
        Err(fault) => {
            note("A start", Err(fault));
            return checks;
        }
    };
    if note("A handshake", server.shake_hands().await) && note("A list of tools", server.list_tools().await) {
        main_job::play(&mut server, |Step { title, outcome }| {
            note(title, outcome.map(|said| said.join("; ")));
        })
        .await;
    }
    note("An end when the input ends", server.end().await);
    checks
}

/// This program, started as a client starts it.
struct Server {
    child: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
    last_id: u64,
}

impl Server {
    async fn start() -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| format!("this program is not found: {error}"))?;
        let mut command = Command::new(program);
        // It is this program, and is to see what we see.
        command.arg("mcp").env_clear().envs(std::env::vars_os());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        fault::pass("spawn.smoke-test").await.map_err(|injected| std::io::Error::from(injected).to_string())?;
        let mut child = command.spawn().map_err(|error| format!("the program cannot be started: {error}"))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("the program has no pipes".to_owned());
        };
        Ok(Self { child, input: Some(input), output: BufReader::new(output).lines(), last_id: 0 })
    }

    async fn shake_hands(&mut self) -> Result<String, String> {
        let client = json!({"name": "smoke-test", "version": env!("CARGO_PKG_VERSION")});
        let asked = json!({"protocolVersion": REVISION, "capabilities": {}, "clientInfo": client});
        let answer = self.request("initialize", asked).await?;
        self.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await?;
        let field = |path: &str| answer.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
        if field("/serverInfo/name") != env!("CARGO_PKG_NAME") {
            return Err("another program answers".to_owned());
        }
        Ok(format!("version {}, revision {}", field("/serverInfo/version"), field("/protocolVersion")))
    }

    async fn list_tools(&mut self) -> Result<String, String> {
        let listed = self.request("tools/list", json!({})).await?;
        let tools = listed.get("tools").and_then(Value::as_array).cloned().unwrap_or_default();
        let names: Vec<&str> = tools.iter().filter_map(|tool| tool.get("name")?.as_str()).collect();
        let missing: Vec<&str> = ["create_database", "run_sql", "delete_database"]
            .into_iter()
            .filter(|name| !names.contains(name))
            .collect();
        if missing.is_empty() {
            Ok(format!("{} tools", names.len()))
        } else {
            Err(format!("{missing:?} are not listed"))
        }
    }

    async fn end(&mut self) -> Result<String, String> {
        self.input = None;
        match tokio::time::timeout(fault::within(END), self.child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(status.to_string()),
            Ok(Ok(status)) => Err(status.to_string()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("it still runs after {} s", END.as_secs())),
        }
    }

    /// Sends a request and returns its result.
    async fn request(&mut self, method: &str, params: Value) -> Result<Value, String> {
        self.last_id += 1;
        let id = self.last_id;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).await?;
        let answered = tokio::time::timeout(fault::within(ANSWER), self.answer(id)).await;
        let answer = answered.map_err(|_| format!("`{method}` was not answered within {} s", ANSWER.as_secs()))??;
        if let Some(error) = answer.get("error") {
            let message = error.get("message").and_then(Value::as_str).unwrap_or_default();
            return Err(format!("`{method}` was refused: {message}"));
        }
        Ok(answer.get("result").cloned().unwrap_or_default())
    }

    async fn send(&mut self, message: &Value) -> Result<(), String> {
        let gone = |error: std::io::Error| format!("the program takes no input: {error}");
        let input = self.input.as_mut().ok_or("the input has ended")?;
        input.write_all(format!("{message}\n").as_bytes()).await.map_err(gone)?;
        input.flush().await.map_err(gone)
    }

    async fn answer(&mut self, id: u64) -> Result<Value, String> {
        loop {
            let line = self.output.next_line().await.map_err(|error| format!("the output cannot be read: {error}"))?;
            let line = line.ok_or("the program ended before it answered; its standard error says why")?;
            let message: Value = serde_json::from_str(&line)
                .map_err(|_| "something that is no JSON-RPC is on standard output".to_owned())?;
            if message.get("id") == Some(&json!(id)) && message.get("method").is_none() {
                return Ok(message);
            }
        }
    }
}

impl Edge for Server {
    async fn answer(&mut self, operation: &str, input: Value) -> Result<Value, String> {
        let result = self.request("tools/call", json!({"name": operation, "arguments": input})).await?;
        result.get("structuredContent").cloned().ok_or_else(|| format!("`{operation}` has no structured content"))
    }
}
