//! `policy test`: the cases of a component.

use std::process::ExitCode;

use clap::ArgMatches;
use serde_json::{Value, json};

use super::{NotBegun, entries, found, head, junit, operations, subject_of};
use crate::author::shown;
use crate::author::subject::Subject;
use crate::author::suite::{self, CaseResult, Report};
use crate::cli::render::{self, Format, line};
use crate::model::counted;

/// How results are printed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Output {
    Human,
    Json,
    Junit,
}

impl Output {
    fn of(of: &ArgMatches, format: Format) -> Self {
        match (of.get_one::<String>("output").map(String::as_str), format) {
            (Some("junit"), _) => Self::Junit,
            (Some("json"), _) | (None, Format::Json) => Self::Json,
            (Some(_) | None, _) => Self::Human,
        }
    }
}

/// Returns the format in which it is told that nothing was begun.
pub(super) fn format(of: &ArgMatches, format: Format) -> Format {
    if Output::of(of, format) == Output::Json { Format::Json } else { Format::Text }
}

pub(super) fn run(of: &ArgMatches, format: Format) -> Result<ExitCode, NotBegun> {
    let found = found(of)?;
    let entries = entries(of, &found)?;
    if entries.is_empty() && of.get_flag("fail-on-empty") {
        return Err(NotBegun::from(
            "there are no cases to run; write some, or leave `--fail-on-empty` away".to_owned(),
        ));
    }
    let mut subject = subject_of(of, found)?;
    let report = suite::run(&mut subject, &operations(), &entries);
    let is_covered = report.unmet.is_empty() || !of.get_flag("require-coverage");
    let is_sound = report.failed().next().is_none() && is_covered;
    match Output::of(of, format) {
        Output::Human => told(&subject, &report, is_covered),
        Output::Json => render::json(&object(&subject, &report, is_sound).to_string()),
        Output::Junit => render::json(&junit::document(&subject, &report, is_covered)),
    }
    Ok(if is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn told(subject: &Subject, report: &Report, is_covered: bool) {
    let description = subject.description();
    line(&head(&description.name, &description.version, subject.sha256()));
    for case in &report.results {
        if case.reasons.is_empty() {
            line(&format!("ok   {}", case.name));
            continue;
        }
        line(&format!("FAIL {} (line {})", case.name, case.line));
        for reason in &case.reasons {
            line(&format!("     {}: {}", reason.code, reason.detail));
        }
        if let Some(request) = &case.request {
            line(&format!("     request: {request}"));
        }
        if let Some(decision) = &case.decision {
            line(&format!("     decision: {}", shown::decision(decision)));
        }
    }
    let cases = counted(report.results.len(), "case", "cases");
    line(&format!("{cases}, {} failed", report.failed().count()));
    let declared = description.codes.len();
    if declared == 0 {
        line("codes: none declared");
    } else if report.unmet.is_empty() {
        line(&format!("codes: {declared} declared, each met"));
    } else {
        let label = if is_covered { "codes" } else { "FAIL codes" };
        line(&format!("{label}: {declared} declared, no case meets `{}`", report.unmet.join("`, `")));
    }
}

fn object(subject: &Subject, report: &Report, is_sound: bool) -> Value {
    let description = subject.description();
    json!({
        "ok": is_sound,
        "policy": description.name,
        "version": description.version,
        "componentSha256": subject.sha256(),
        "cases": report.results.iter().map(case).collect::<Vec<_>>(),
        "failed": report.failed().count(),
        "codes": {"declared": description.codes, "unmet": report.unmet},
    })
}

fn case(case: &CaseResult) -> Value {
    let reasons = case.reasons.iter().map(|reason| json!({"code": reason.code, "detail": reason.detail}));
    let differs = case.differences.iter();
    let differs = differs.map(|one| json!({"key": one.key, "expected": one.expected, "came": one.came}));
    json!({
        "name": case.name,
        "line": case.line,
        "ok": case.reasons.is_empty(),
        "reasons": reasons.collect::<Vec<_>>(),
        "differences": differs.collect::<Vec<_>>(),
        "request": case.request,
        "decision": case.decision.as_ref().map(shown::decision),
        "elapsedUs": case.elapsed_us,
        "fuel": case.fuel,
    })
}
