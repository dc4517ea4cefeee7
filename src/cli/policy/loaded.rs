//! `policy list` and `policy reload`: shows the policies as they load and as servers have them, and has servers read them again.

use std::process::ExitCode;

use clap::ArgMatches;
use serde_json::{Value, json};

use crate::app::{Answered, App, PoliciesSeen, ServerSeen};
use crate::cli::complain;
use crate::cli::render::{self, Format, line, say};
use crate::model::{Code, Failure, counted};
use crate::policy::PolicyInfo;

/// The digits of a digest that a line shows.
const DIGEST_CHARS: usize = 16;

/// Shows what candidates came to.
pub(super) const COUNTS: &str = "counts";

/// Runs `policy …`.
pub(super) async fn run(matches: &ArgMatches, app: &App, format: Format) -> ExitCode {
    match matches.subcommand_name() {
        Some("reload") => reload(app, format).await,
        Some("list") if counts(matches) => told_counts(app, format).await,
        _ => list(app, format).await,
    }
}

async fn list(app: &App, format: Format) -> ExitCode {
    let servers = app.servers_seen();
    match app.policies().await {
        Ok(seen) if format == Format::Json => {
            let policies: Vec<Value> = seen.policies.iter().map(policy).collect();
            let servers: Vec<&Value> = servers.iter().map(|server| &server.standing).collect();
            let listed = json!({
                "ok": true,
                "digest": seen.generation.digest,
                "file": seen.file,
                "policies": policies,
                "servers": servers,
            });
            render::json(&listed.to_string());
            ExitCode::SUCCESS
        }
        Err(faults) if format == Format::Json => {
            let failures: Vec<Failure> =
                faults.into_iter().map(|fault| Failure::new(Code::PolicyNotReady, fault)).collect();
            render::failures(&failures, format);
            ExitCode::FAILURE
        }
        Ok(seen) => {
            print(&seen);
            servers.iter().for_each(|server| line(&standing(server)));
            ExitCode::SUCCESS
        }
        Err(faults) => {
            faults.iter().for_each(|fault| say(&format!("error: {fault}")));
            servers.iter().for_each(|server| say(&standing(server)));
            ExitCode::FAILURE
        }
    }
}

fn counts(matches: &ArgMatches) -> bool {
    matches.subcommand().is_some_and(|(_, of)| of.get_flag(COUNTS))
}

/// Says of every running server how its candidates answer.
async fn told_counts(app: &App, format: Format) -> ExitCode {
    let answered = match app.ask_policies().await {
        Ok(answered) => answered,
        Err(failure) => return complain(&failure, format),
    };
    let all = answered.iter().all(|one| one.answer.is_ok());
    if format == Format::Json {
        let servers: Vec<Value> = answered.iter().map(answer).collect();
        render::json(&json!({"ok": all, "servers": servers}).to_string());
        return if all { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    for one in &answered {
        match &one.answer {
            Ok(said) => {
                line(&standing(&ServerSeen { pid: one.pid, standing: said.clone() }));
                let candidates = said.get("candidates").and_then(Value::as_array);
                candidates.into_iter().flatten().for_each(|candidate| line(&counted_line(candidate)));
            }
            Err(why) => say(&format!("error: server {}: {why}", one.pid)),
        }
    }
    if answered.is_empty() {
        line("no server runs on this state directory");
    }
    if all { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn counted_line(candidate: &Value) -> String {
    let text = |key: &str| candidate.get(key).and_then(Value::as_str).unwrap_or_default();
    let number = |of: &Value, key: &str| of.get(key).and_then(Value::as_u64).unwrap_or_default();
    let kinds = candidate.get("by").and_then(Value::as_object);
    let kinds: Vec<String> = kinds
        .into_iter()
        .flatten()
        .filter_map(|(kind, count)| count.as_u64().filter(|count| *count > 0).map(|count| format!("{kind} {count}")))
        .collect();
    let by = if kinds.is_empty() { String::new() } else { format!(" ({})", kinds.join(", ")) };
    format!(
        "  {} for `{}`: asked {}, same {}, different {}{by}, failed {}",
        text("policy"),
        text("of"),
        number(candidate, "asked"),
        number(candidate, "same"),
        number(candidate, "different"),
        number(candidate, "failed")
    )
}

fn policy(info: &PolicyInfo) -> Value {
    json!({
        "name": info.name,
        "mode": info.mode.as_str(),
        "of": info.of,
        "version": info.description.version,
        "componentSha256": info.component_sha256,
        "settingsSha256": info.settings_sha256,
        "covers": info.description.covers,
    })
}

fn print(seen: &PoliciesSeen) {
    for info in &seen.policies {
        let covers = info.description.covers.join(", ");
        line(&format!(
            "{:<16} {:<8} {} covers: {}",
            info.name,
            info.mode.as_str(),
            short(&info.component_sha256),
            if covers.is_empty() { "nothing" } else { &covers }
        ));
    }
    let from = seen.file.as_ref().map(|file| format!("`{}`", file.display()));
    line(&format!(
        "read now from {}: digest {}",
        from.unwrap_or_else(|| "the bundled set".to_owned()),
        short(&seen.generation.digest)
    ));
}

/// Says how a server's policies stand.
fn standing(server: &ServerSeen) -> String {
    let said = &server.standing;
    let text = |key: &str| said.get(key).and_then(Value::as_str);
    let of = match (text("state"), said.get("generation").and_then(Value::as_u64)) {
        (Some("serves"), Some(generation)) => {
            let digest = short(text("digest").unwrap_or_default());
            let since = text("since").map(|since| format!(", since {since}")).unwrap_or_default();
            let from = text("file").map_or_else(|| ", bundled".to_owned(), |file| format!(", from `{file}`"));
            format!("generation {generation}, digest {digest}{since}{from}")
        }
        (Some("loading"), _) => "its policies are still being loaded".to_owned(),
        _ => format!("no policies: {}", faults(said.get("faults"))),
    };
    let refused = said.get("refused").map(|refused| {
        let at = refused.get("at").and_then(Value::as_str).unwrap_or_default();
        format!("; refused at {at}: {}", faults(refused.get("faults")))
    });
    format!("server {}: {of}{}", server.pid, refused.unwrap_or_default())
}

async fn reload(app: &App, format: Format) -> ExitCode {
    let answered = match app.reload_policies().await {
        Ok(answered) => answered,
        Err(failure) => return complain(&failure, format),
    };
    let taken = answered.iter().filter(|one| is_taken(one)).count();
    let all = taken == answered.len();
    if format == Format::Json {
        let servers: Vec<Value> = answered.iter().map(answer).collect();
        render::json(&json!({"ok": all, "servers": servers}).to_string());
    } else {
        answered.iter().for_each(|one| line(&told(one)));
        let servers = counted(answered.len(), "server", "servers");
        match answered.len() {
            0 => line("no server runs on this state directory: the next one reads the policies when it starts"),
            _ if all => line(&format!("{taken} of {servers} took the policies")),
            _ => say(&format!("error: {taken} of {servers} took the policies")),
        }
    }
    if all { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn is_taken(one: &Answered) -> bool {
    one.answer.as_ref().is_ok_and(|answer| answer.get("taken") == Some(&Value::Bool(true)))
}

fn answer(one: &Answered) -> Value {
    match &one.answer {
        Ok(answer) => answer.clone(),
        Err(why) => json!({"pid": one.pid, "taken": false, "faults": [why]}),
    }
}

fn told(one: &Answered) -> String {
    let said = answer(one);
    let serving = said.get("generation").and_then(Value::as_u64);
    let of = if is_taken(one) {
        let digest = said.get("digest").and_then(Value::as_str).unwrap_or_default();
        let weakened = said.get("weakened").and_then(Value::as_array).filter(|names| !names.is_empty());
        let weakened = weakened.map(|names| format!("; weaker for: {}", listed(names))).unwrap_or_default();
        format!("generation {}, digest {}{weakened}", serving.unwrap_or_default(), short(digest))
    } else {
        let serves = serving.map_or_else(String::new, |serving| format!("generation {serving} goes on serving; "));
        format!("not taken; {serves}{}", faults(said.get("faults")))
    };
    format!("server {}: {of}", one.pid)
}

fn faults(of: Option<&Value>) -> String {
    of.and_then(Value::as_array).map(|faults| joined(faults, "; ")).unwrap_or_default()
}

fn listed(names: &[Value]) -> String {
    joined(names, ", ")
}

fn joined(texts: &[Value], between: &str) -> String {
    texts.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(between)
}

fn short(digest: &str) -> &str {
    digest.get(..DIGEST_CHARS).unwrap_or(digest)
}
