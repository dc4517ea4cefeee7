//! The reference pages, made from the lists that the program itself works by.

#![expect(clippy::let_underscore_must_use, reason = "writing to a string cannot fail")]

use std::fmt::Write as _;

use serde_json::Value;

use crate::config::keys;
use crate::model::{Code, ObligationKind};
use crate::operation::{Entry, OPERATIONS, Offered};

/// The policy world, whose comments are the author's reference.
const WORLD: &str = include_str!("../../wit/policy.wit");
const GENERATED: &str = "<!-- Made from the program's own lists; `tests/it/surface.rs` says how to make it anew. -->\n";

/// Returns every page as (path below `docs/reference`, text).
pub fn pages() -> Vec<(&'static str, String)> {
    vec![
        ("operations.md", operations()),
        ("obligations.md", obligations()),
        ("errors.md", errors()),
        ("configuration.md", configuration()),
        ("policy-world.md", world()),
        ("bundled-policy-settings.md", policy_settings()),
    ]
}

fn policy_settings() -> String {
    let mut page = GENERATED.to_owned();
    super::policy_settings::write(&mut page);
    page
}

fn operations() -> String {
    let mut page = format!(
        "{GENERATED}# Operations\n\nEvery operation is an MCP tool and a command of the same name with `-` for `_`. Clients are shown the tools of the toolset `core`; `pgsandbox mcp --toolsets core,schema` shows more, `all` shows all. What is offered by another method of MCP alone says so at its head. Unknown arguments are refused.\n\
         On the command line an argument is an option of the same name, `--ttl-minutes` for `ttlMinutes`; each object of a list is given in JSON.\n\
         The result stands in the envelope's `result`. The envelope's own `ok` is about the call: of `doctor`, `verify_sandbox` and commands of a repository, \
         the result has an `ok` of its own, which says what they found.\n"
    );
    for entry in &OPERATIONS {
        let spec = entry.spec;
        let (impact, toolset) = (spec.impact.as_str(), spec.toolset.as_str());
        let offered = match entry.offered {
            Offered::Tool => format!("Toolset: {toolset}."),
            Offered::Method(method) => format!("Offered by `{method}` alone."),
        };
        let _ = write!(page, "\n## {}\n\n{}\n\nImpact: {impact}. {offered}\n\n", spec.name, spec.help);
        table(&mut page, "argument", entry.input_schema());
        page.push('\n');
        if let Some(Value::Object(result)) = entry.output_schema().get("properties").and_then(|p| p.get("result")) {
            table(&mut page, "result", result);
        }
    }
    page
}

fn table(page: &mut String, head: &str, schema: &serde_json::Map<String, Value>) {
    if schema.get("properties").and_then(Value::as_object).is_none_or(|properties| properties.is_empty()) {
        let _ = writeln!(page, "No {head}s.");
        return;
    }
    let _ = writeln!(page, "| {head} | type | |\n|---|---|---|");
    rows(page, head, "", schema);
}

/// Writes a row for each property; of lists of objects, also for those of the objects.
fn rows(page: &mut String, head: &str, prefix: &str, schema: &serde_json::Map<String, Value>) {
    let required: Vec<&str> =
        schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, property) in properties.into_iter().flatten() {
        let kind = property.get("type").and_then(Value::as_str).unwrap_or("any");
        let words = property.get("enum").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        let words: Vec<String> = words.map(|word| format!("`{word}`")).collect();
        let kind = if words.is_empty() { kind.to_owned() } else { words.join(" or ") };
        let help = property.get("description").and_then(Value::as_str).unwrap_or_default().replace('\n', " ");
        let required = if head == "argument" && required.contains(&name.as_str()) { " Required." } else { "" };
        let _ = writeln!(page, "| `{prefix}{name}` | {kind} | {help}{required} |");
        if let Some(Value::Object(items)) = property.get("items") {
            rows(page, head, &format!("{prefix}{name}[]."), items);
        }
    }
}

fn obligations() -> String {
    let mut page = format!(
        "{GENERATED}# Operations and obligations\n\nWhat each operation can be made to do. Where a policy demands what an operation cannot meet, the request \
         is refused with `obligation_unmet`. `approval` is met by the gate itself, for every operation. `consent` is known for every \
         operation and met for none yet: no transport of this version asks the person at the client, and the request is refused with `consent_required`.\n\n| operation | impact |"
    );
    let kinds: Vec<ObligationKind> = ObligationKind::ALL
        .into_iter()
        .filter(|kind| !matches!(kind, ObligationKind::Consent | ObligationKind::Approval))
        .collect();
    for kind in &kinds {
        let _ = write!(page, " {} |", kind.as_str());
    }
    let _ = write!(page, "\n|---|---|{}\n", "---|".repeat(kinds.len()));
    for Entry { spec, .. } in &OPERATIONS {
        let _ = write!(page, "| {} | {} |", spec.name, spec.impact.as_str());
        for kind in &kinds {
            let _ = write!(page, " {} |", if spec.meets.contains(kind) { "met" } else { "" });
        }
        page.push('\n');
    }
    page
}

fn errors() -> String {
    let mut page = format!("{GENERATED}# Error codes\n\n| code | category | retry | when |\n|---|---|---|---|\n");
    for code in Code::ALL {
        let retry = if code.usually_retryable() { "later" } else { "" };
        let _ = writeln!(page, "| `{}` | {} | {retry} | {} |", code.as_str(), code.category(), code.help());
    }
    page
}

fn configuration() -> String {
    let mut page = format!(
        "{GENERATED}# Configuration\n\nA JSON file named by `PGSANDBOX_CONFIG`, or one profile from the environment, or neither: a managed local cluster. Unknown keys and \
         variables are refused; everything that is wrong is listed at once and stops the start. Only a source \
         whose variable is not set is unusable instead: `doctor` says so, and its clones are refused.\n\n## Keys\n\n| key | takes | default | |\n|---|---|---|---|\n"
    );
    for key in keys::KEYS {
        let _ = writeln!(page, "| `{}` | {} | {} | {} |", key.path, takes(key.kind), key.default, key.help);
    }
    page.push_str("\n## Environment variables\n\n| variable | read | |\n|---|---|---|\n");
    for variable in keys::VARIABLES {
        let read = match variable.scope {
            keys::VariableScope::Always => "always",
            keys::VariableScope::WithoutFile => "without a file",
            keys::VariableScope::Ignored => "never",
        };
        let _ = writeln!(page, "| `{}` | {read} | {} |", variable.name, variable.help);
    }
    page
}

fn takes(kind: keys::Kind) -> String {
    match kind {
        keys::Kind::Text => "text".to_owned(),
        keys::Kind::Secret => "text, never shown".to_owned(),
        keys::Kind::Flag => "`true` or `false`".to_owned(),
        keys::Kind::Number { min, max } => format!("{min} to {max}"),
        keys::Kind::Version => "major version".to_owned(),
        keys::Kind::Word(words) => words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(" or "),
        keys::Kind::Texts => "list of texts".to_owned(),
        keys::Kind::Object => "object".to_owned(),
        keys::Kind::Map => "object of texts".to_owned(),
        keys::Kind::Objects => "list of objects".to_owned(),
        keys::Kind::Unavailable => "not available in this version; refused".to_owned(),
    }
}

/// Turns the world's text into a page: comments become prose, items become code.
fn world() -> String {
    let mut page = format!("{GENERATED}# The policy world\n\n");
    let mut prose: Vec<&str> = Vec::new();
    let mut code = String::new();
    let flush = |page: &mut String, code: &mut String| {
        if !code.trim().is_empty() {
            let _ = write!(page, "```wit\n{}\n```\n\n", code.trim_end());
        }
        code.clear();
    };
    for text in WORLD.lines() {
        let indent = text.len() - text.trim_start().len();
        match text.trim_start().strip_prefix("///") {
            // Comments on whole items are prose; those on fields stay beside their fields.
            Some(comment) if indent <= 4 => {
                flush(&mut page, &mut code);
                prose.push(comment.trim());
            }
            _ => {
                if !prose.is_empty() {
                    let _ = write!(page, "{}\n\n", prose.join("\n"));
                    prose.clear();
                }
                let _ = writeln!(code, "{text}");
            }
        }
    }
    flush(&mut page, &mut code);
    format!("{}\n", page.trim_end())
}
