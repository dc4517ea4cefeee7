//! The main job, from a sandbox's creation to its deletion: played by `quickstart` through the service, and by
//! `smoke-test` over MCP.

use serde_json::{Value, json};

/// How long the sandbox lives if nobody deletes it.
const TTL_MINUTES: u64 = 15;
/// A migration, and rows to read.
const MIGRATION: &str = "create table invoice (id bigint generated always as identity primary key, total numeric(10, 2) not null);\n\
     insert into invoice (total) select i * 1.25 from generate_series(1, 500) i;";

/// Where operations are called.
pub(super) trait Edge {
    /// Calls an operation and returns the envelope.
    async fn answer(&mut self, operation: &str, input: Value) -> Result<Value, String>;
}

/// One step of the job, when it is done.
pub(super) struct Step {
    /// What is shown.
    pub(super) title: &'static str,
    /// What was seen, line by line; or what was not as it must be.
    pub(super) outcome: Result<Vec<String>, String>,
}

/// Plays the job, and tells each step as it is done. Returns whether every step went as it must; whatever was made is
/// deleted.
pub(super) async fn play(edge: &mut impl Edge, mut tell: impl FnMut(Step)) -> bool {
    let made = made(edge).await;
    let id = made.as_ref().map(|(id, _)| id.clone()).ok();
    tell(Step { title: "A sandbox", outcome: made.map(|(_, said)| said) });
    let Some(id) = id else { return false };
    let mut is_sound = true;
    let mut tell = |title, outcome: Result<Vec<String>, String>| {
        is_sound &= outcome.is_ok();
        tell(Step { title, outcome });
    };
    tell("A migration", migrated(edge, &id).await);
    tell("A read, limited to three rows", read(edge, &id).await);
    tell("A write that is asked for as a read", read_only(edge, &id).await);
    tell("A refusal by a policy", refused(edge, &id).await);
    tell("Deletion", deleted(edge, &id).await);
    is_sound
}

async fn made(edge: &mut impl Edge) -> Result<(String, Vec<String>), String> {
    let made = call(edge, "create_database", json!({"nameHint": "quick start", "ttlMinutes": TTL_MINUTES})).await?;
    let field = |name: &str| made.get(name).and_then(Value::as_str).unwrap_or_default();
    let said = format!("{}, owned by role {}, until {}", field("databaseName"), field("roleName"), field("expiresAt"));
    Ok((field("databaseId").to_owned(), vec![said]))
}

async fn migrated(edge: &mut impl Edge, id: &str) -> Result<Vec<String>, String> {
    let result = call(edge, "run_sql", json!({"databaseId": id, "sql": MIGRATION})).await?;
    let tags = result.get("resultSets").and_then(Value::as_array).into_iter().flatten();
    let tags: Vec<&str> = tags.filter_map(|set| set.get("commandTag")).filter_map(Value::as_str).collect();
    Ok(vec![tags.join(", ")])
}

async fn read(edge: &mut impl Edge, id: &str) -> Result<Vec<String>, String> {
    let read =
        json!({"databaseId": id, "sql": "select id, total from invoice order by id", "readonly": true, "rowLimit": 3});
    let result = call(edge, "run_sql", read).await?;
    let rows = result.pointer("/resultSets/0/rows").and_then(Value::as_array).cloned().unwrap_or_default();
    let mut said: Vec<String> = rows.iter().map(Value::to_string).collect();
    if said != [r#"["1","1.25"]"#, r#"["2","2.50"]"#, r#"["3","3.75"]"#] {
        return Err(format!("other rows came than were written: {}", said.join(" ")));
    }
    if result.get("truncated") != Some(&json!(true)) {
        return Err("there are more rows, and nothing says so".to_owned());
    }
    said.push("… and more, which were not fetched".to_owned());
    Ok(said)
}

async fn read_only(edge: &mut impl Edge, id: &str) -> Result<Vec<String>, String> {
    let write = json!({"databaseId": id, "sql": "delete from invoice", "readonly": true});
    let error = error(edge, write, "a write went through a call that only reads").await?;
    let field = |name: &str| error.get(name).and_then(Value::as_str).unwrap_or_default();
    if field("code") != "readonly_violation" {
        return Err(format!("it was refused as `{}`, not as `readonly_violation`", field("code")));
    }
    Ok(vec![format!("{} (code {})", field("message"), field("code"))])
}

async fn refused(edge: &mut impl Edge, id: &str) -> Result<Vec<String>, String> {
    let statement = json!({"databaseId": id, "sql": "alter system set fsync = off"});
    let unrefused = "a statement that a policy must refuse was not refused";
    let error = error(edge, statement, unrefused).await?;
    let field = |name: &str| error.get(name).and_then(Value::as_str).unwrap_or_default();
    if field("policy").is_empty() {
        return Err(unrefused.to_owned());
    }
    Ok(vec![format!("{} (policy {}, code {})", field("message"), field("policy"), field("policyCode"))])
}

async fn deleted(edge: &mut impl Edge, id: &str) -> Result<Vec<String>, String> {
    let gone = call(edge, "delete_database", json!({"databaseId": id, "wait": true})).await?;
    Ok(vec![format!("state: {}", gone.get("state").and_then(Value::as_str).unwrap_or_default())])
}

/// Calls an operation that must succeed, and returns its result.
async fn call(edge: &mut impl Edge, operation: &str, input: Value) -> Result<Value, String> {
    let envelope = edge.answer(operation, input).await?;
    if let Some(result) = envelope.get("result") {
        return Ok(result.clone());
    }
    let field = |name: &str| envelope.pointer(&format!("/errors/0/{name}")).and_then(Value::as_str);
    Err(format!("{operation}: {} [{}]", field("message").unwrap_or("no result"), field("code").unwrap_or("none")))
}

/// Runs SQL that must be refused, and returns why it was.
async fn error(edge: &mut impl Edge, input: Value, unrefused: &str) -> Result<Value, String> {
    let envelope = edge.answer("run_sql", input).await?;
    envelope.pointer("/errors/0").cloned().ok_or_else(|| unrefused.to_owned())
}
