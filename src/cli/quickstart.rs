//! Sets up a managed cluster and plays the main job once, saying what it does.

use std::process::ExitCode;
use std::sync::Arc;

use serde_json::{Value, json};

use super::render::{Format, line, say};
use super::setup::Entry;
use super::{Said, complain, request};
use crate::app::App;
use crate::model::{Silent, Transport};
use crate::operation::Envelope;

/// Runs `quickstart`.
pub(super) async fn run(app: &App, install: bool) -> ExitCode {
    line("pgsandbox quick start");
    line("");
    line("1. Postgres");
    match app.ensure_postgres(install, &Said).await {
        Ok(said) => said.iter().for_each(|text| line(&format!("   {text}"))),
        Err(failure) => return complain(&failure, Format::Text),
    }
    match app.start_cluster(&Said).await {
        Ok(at) => line(&format!("   {at}")),
        Err(failure) => return complain(&failure, Format::Text),
    }
    match play(app).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(step) => {
            say(&format!("error: {step}"));
            ExitCode::FAILURE
        }
    }
}

/// Plays the main job. Fails with the step that did not go as it must.
async fn play(app: &App) -> Result<(), String> {
    line("2. A sandbox");
    let made = call(app, "create_database", json!({"nameHint": "quick start", "ttlMinutes": 15})).await?;
    let field = |name: &str| made.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let id = field("databaseId");
    line(&format!("   {}, owned by role {}, until {}", field("databaseName"), field("roleName"), field("expiresAt")));
    let played = in_sandbox(app, &id).await;
    line("6. Deletion");
    let gone = call(app, "delete_database", json!({"databaseId": id, "wait": true})).await?;
    line(&format!("   state: {}", gone.get("state").and_then(Value::as_str).unwrap_or_default()));
    played?;
    line("");
    line("Paste this into your MCP client's configuration:");
    let entry = Entry::of_this_process();
    line(&client_configuration(&entry));
    line("or let `pgsandbox setup` write it.");
    line("");
    let set: String = entry.env.iter().map(|(name, value)| format!("{name}={} ", quoted(value))).collect();
    line(&format!("The cluster keeps running; `{set}{} local stop` stops it.", quoted(&entry.command)));
    Ok(())
}

async fn in_sandbox(app: &App, id: &str) -> Result<(), String> {
    line("3. A migration");
    let migration = "create table invoice (id bigint generated always as identity primary key, total numeric(10, 2) not null);\n\
                     insert into invoice (total) select i * 1.25 from generate_series(1, 500) i;";
    let result = call(app, "run_sql", json!({"databaseId": id, "sql": migration})).await?;
    let tags = result.get("resultSets").and_then(Value::as_array).into_iter().flatten();
    let tags: Vec<&str> = tags.filter_map(|set| set.get("commandTag")).filter_map(Value::as_str).collect();
    line(&format!("   {}", tags.join(", ")));

    line("4. A read, limited to three rows");
    let read =
        json!({"databaseId": id, "sql": "select id, total from invoice order by id", "readonly": true, "rowLimit": 3});
    let result = call(app, "run_sql", read).await?;
    for row in result.pointer("/resultSets/0/rows").and_then(Value::as_array).into_iter().flatten() {
        line(&format!("   {row}"));
    }
    let truncated = result.get("truncated").and_then(Value::as_bool).unwrap_or(false);
    line(if truncated { "   … and more, which were not fetched" } else { "   that was all" });

    line("5. A refusal by a policy");
    let refused = answer(app, "run_sql", json!({"databaseId": id, "sql": "alter system set fsync = off"})).await;
    let Some(error) = refused.errors.first().filter(|error| error.policy.is_some()) else {
        return Err("a statement that a policy must refuse was not refused".to_owned());
    };
    let policy = error.policy.as_deref().unwrap_or_default();
    line(&format!("   {} (policy {policy}, code {})", error.message, error.policy_code.as_deref().unwrap_or_default()));
    Ok(())
}

async fn answer(app: &App, operation: &str, input: Value) -> Envelope {
    let Value::Object(input) = input else { unreachable!("inputs are written as objects") };
    app.service.call(request(app.principal(Transport::Cli), operation, input, Arc::new(Silent))).await
}

async fn call(app: &App, operation: &str, input: Value) -> Result<Value, String> {
    let envelope = answer(app, operation, input).await;
    match (envelope.result, envelope.errors.first()) {
        (Some(result), _) => Ok(result),
        (None, Some(error)) => Err(format!("{operation}: {} [{}]", error.message, error.code)),
        (None, None) => Err(format!("{operation}: no result")),
    }
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
