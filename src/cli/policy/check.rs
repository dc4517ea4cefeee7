//! `policy check`: everything that is wrong with a component, at once.

use std::process::ExitCode;

use clap::ArgMatches;
use serde_json::{Value, json};

use super::{NotBegun, found, head, operations, settings_of};
use crate::author::check::{self, Checked, Finding, Tried};
use crate::author::{shown, subject};
use crate::cli::render::{self, Format, line};
use crate::model::counted;
use crate::policy::Description;

pub(super) fn run(of: &ArgMatches, format: Format) -> Result<ExitCode, NotBegun> {
    let (found, settings) = (found(of)?, settings_of(of)?);
    let host = subject::host().map_err(NotBegun::unloaded)?;
    let checked = check::run(&host, found, settings, &operations());
    match format {
        Format::Json => render::json(&object(&checked).to_string()),
        Format::Text => told(&checked),
    }
    Ok(if checked.faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn told(checked: &Checked) {
    let said = |of: fn(&Description) -> &String| checked.description.as_ref().map(of).cloned().unwrap_or_default();
    let name = Some(said(|one| &one.name)).filter(|name| !name.is_empty()).unwrap_or_else(|| checked.name.clone());
    line(&head(&name, &said(|one| &one.version), &checked.sha256));
    let row = |key: &str, value: String| line(&format!("{key:<13}{value}"));
    row("size", format!("{} bytes", checked.component_bytes));
    if let Some(parts) = &checked.anatomy {
        row("imports", listed(&parts.imports));
        row("exports", listed(&parts.exports));
        for memory in &parts.memories {
            let most = memory.max_bytes.map_or_else(|| "no maximum".to_owned(), |most| format!("at most {most}"));
            let stack = parts.stack_bytes.map(|stack| format!(", stack {stack}")).unwrap_or_default();
            row("memory", format!("{} bytes at the start, {most}{stack}", memory.min_bytes));
        }
    }
    if let Some(description) = &checked.description {
        row("covers", listed(&description.covers));
        row("concerns", listed(&description.concerns));
        row("phases", listed(&phases(description)));
        row("codes", listed(&description.codes));
    }
    if let Some(bytes) = checked.snapshot_bytes {
        row("configured", format!("{bytes} bytes, which each evaluation starts from"));
    }
    if !checked.buckets.is_empty() {
        row("buckets", listed(&checked.buckets.iter().map(|bucket| bucket.name.clone()).collect::<Vec<_>>()));
    }
    if let Some(most) = checked.tried.iter().max_by_key(|tried| tried.fuel) {
        row(
            "evaluations",
            format!(
                "{}, fuel at most {} ({}, {}), memory at most {} bytes",
                counted(checked.tried.len(), "plain request", "plain requests"),
                most.fuel,
                most.operation,
                most.phase.as_str(),
                checked.tried.iter().map(|tried| tried.memory_bytes).max().unwrap_or(0),
            ),
        );
    }
    for (label, findings) in [("note", &checked.notes), ("FAULT", &checked.faults)] {
        for Finding { place, message } in findings {
            line(&format!("{label} {place}: {message}"));
        }
    }
    line(&format!(
        "{}, {}",
        counted(checked.faults.len(), "fault", "faults"),
        counted(checked.notes.len(), "note", "notes")
    ));
}

fn phases(description: &Description) -> Vec<String> {
    ["before".to_owned()].into_iter().chain(description.phases.iter().map(|phase| phase.as_str().to_owned())).collect()
}

fn listed(words: &[String]) -> String {
    if words.is_empty() { "nothing".to_owned() } else { words.join(", ") }
}

fn object(checked: &Checked) -> Value {
    let findings = |list: &[Finding]| -> Value {
        list.iter().map(|one| json!({"place": one.place, "message": one.message})).collect()
    };
    json!({
        "ok": checked.faults.is_empty(),
        "componentSha256": checked.sha256,
        "componentBytes": checked.component_bytes,
        "imports": checked.anatomy.as_ref().map(|parts| &parts.imports),
        "exports": checked.anatomy.as_ref().map(|parts| &parts.exports),
        "memories": checked.anatomy.as_ref().map(|parts| {
            let memories = parts.memories.iter();
            memories.map(|one| json!({"minBytes": one.min_bytes, "maxBytes": one.max_bytes})).collect::<Vec<_>>()
        }),
        "stackBytes": checked.anatomy.as_ref().and_then(|parts| parts.stack_bytes),
        "description": checked.description.as_ref().map(|one| json!({
            "name": one.name,
            "version": one.version,
            "covers": one.covers,
            "concerns": one.concerns,
            "phases": phases(one),
            "codes": one.codes,
            "settingsSchema": one.settings_schema,
        })),
        "buckets": checked.buckets.iter().map(shown::bucket).collect::<Vec<_>>(),
        "snapshotBytes": checked.snapshot_bytes,
        "evaluations": checked.tried.iter().map(tried).collect::<Vec<_>>(),
        "faults": findings(&checked.faults),
        "notes": findings(&checked.notes),
    })
}

fn tried(tried: &Tried) -> Value {
    let verdict = match &tried.answer {
        Ok(decision) => decision.verdict.as_str(),
        Err(fault) => fault.code.as_str(),
    };
    json!({
        "operation": tried.operation,
        "phase": tried.phase.as_str(),
        "verdict": verdict,
        "fuel": tried.fuel,
        "memoryBytes": tried.memory_bytes,
    })
}
