//! Sets up a managed cluster and plays the main job once, saying what it does.

use std::process::ExitCode;
use std::sync::Arc;

use serde_json::{Value, json};

use super::main_job::{self, Edge, Step};
use super::render::{Format, line, say};
use super::setup::Entry;
use super::{Said, complain, request};
use crate::app::App;
use crate::model::{Silent, Transport};

/// Runs `quickstart`.
pub(super) async fn run(app: &App, install: bool) -> ExitCode {
    line("pgsandbox quick start");
    line("");
    line("1. Postgres");
    match app.ensure_postgres(install, &Said::new()).await {
        Ok(said) => said.iter().for_each(|text| line(&format!("   {text}"))),
        Err(failure) => return complain(&failure, Format::Text),
    }
    match app.start_first_cluster(&Said::new()).await {
        Ok(at) => line(&format!("   {at}")),
        Err(failure) => return complain(&failure, Format::Text),
    }
    let mut number = 1;
    let mut faults = Vec::new();
    let tell = |step: Step| {
        number += 1;
        line(&format!("{number}. {}", step.title));
        match step.outcome {
            Ok(said) => said.iter().for_each(|text| line(&format!("   {text}"))),
            Err(fault) => faults.push(fault),
        }
    };
    let is_sound = main_job::play(&mut Through(app), tell).await;
    faults.iter().for_each(|fault| say(&format!("error: {fault}")));
    if !is_sound {
        return ExitCode::FAILURE;
    }
    what_is_next();
    ExitCode::SUCCESS
}

/// Calls through the service of this process.
struct Through<'a>(&'a App);

impl Edge for Through<'_> {
    async fn answer(&mut self, operation: &str, input: Value) -> Result<Value, String> {
        let Value::Object(input) = input else { return Err("inputs are objects".to_owned()) };
        let request = request(self.0.principal(Transport::Cli), operation, input, Arc::new(Silent));
        Ok(self.0.service.call(request).await.to_json())
    }
}

fn what_is_next() {
    line("");
    line("Paste this into your MCP client's configuration:");
    let entry = Entry::of_this_process();
    line(&client_configuration(&entry));
    line("or let `pgsandbox setup` write it.");
    line("");
    let set: String = entry.env.iter().map(|(name, value)| format!("{name}={} ", quoted(value))).collect();
    line(&format!("The cluster keeps running; `{set}{} local stop` stops it.", quoted(&entry.command)));
}

fn client_configuration(entry: &Entry) -> String {
    let mut server = json!({"command": entry.command, "args": entry.args});
    if let (false, Some(server)) = (entry.env.is_empty(), server.as_object_mut()) {
        let environment = entry.env.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str())));
        server.insert("env".to_owned(), Value::Object(environment.collect()));
    }
    serde_json::to_string_pretty(&json!({"mcpServers": {"pgsandbox": server}})).unwrap_or_default()
}

/// Quotes a word for a shell, if it needs that.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:,@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_told_the_environment_that_was_used() {
        let entry = |env| Entry { command: "/p".to_owned(), args: vec!["mcp".to_owned()], env };
        let environment = vec![("PGSANDBOX_HOME".to_owned(), "/a b".to_owned())];
        let told: Value = serde_json::from_str(&client_configuration(&entry(environment))).unwrap();
        assert_eq!(told.pointer("/mcpServers/pgsandbox/env"), Some(&json!({"PGSANDBOX_HOME": "/a b"})));
        let told: Value = serde_json::from_str(&client_configuration(&entry(Vec::new()))).unwrap();
        assert_eq!(told.pointer("/mcpServers/pgsandbox"), Some(&json!({"command": "/p", "args": ["mcp"]})));
    }

    #[test]
    fn what_a_shell_would_split_is_quoted() {
        assert_eq!(quoted("/usr/bin/x-1"), "/usr/bin/x-1");
        assert_eq!(quoted("/a b"), "'/a b'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
