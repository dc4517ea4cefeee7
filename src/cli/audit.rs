//! Reads the audit log: its chain, and its last entries.

use std::io;
use std::process::ExitCode;

use clap::ArgMatches;
use serde_json::{Value, json};

use super::complain;
use super::render::{self, Format, line};
use crate::app::App;
use crate::audit;
use crate::model::{Code, Failure, RequestId, counted};

const IDS: &str = "a reply says its call's id as `requestId`, and each entry as `id`";
const OPERATIONS: &str =
    "operations are named as tools are, `run_sql` for instance; `docs/reference/audit.md` has the others";

/// Runs `audit …`.
pub(super) fn run(matches: &ArgMatches, app: &App, format: Format) -> ExitCode {
    match matches.subcommand() {
        Some(("tail", of)) => tail(of, app, format),
        _ => verify(app, format),
    }
}

fn verify(app: &App, format: Format) -> ExitCode {
    let report = match audit::verify(app.audit_dir()) {
        Ok(report) => report,
        Err(error) => {
            return unreadable(&error, format);
        }
    };
    if format == Format::Json {
        let faults: Vec<Value> = report
            .faults
            .iter()
            .map(|fault| json!({"file": fault.file, "line": fault.line, "what": fault.what}))
            .collect();
        let report = json!({
            "ok": report.is_sound(),
            "segments": report.segments,
            "lines": report.lines,
            "open": report.open,
            "faults": faults,
            "head": report.head,
        });
        render::json(&report.to_string());
        return if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    for fault in &report.faults {
        let at = fault.line.map(|line| format!(":{line}")).unwrap_or_default();
        line(&format!("{}{at}: {}", fault.file, fault.what));
    }
    line(&format!(
        "{}, {}, {}, {}",
        counted(report.segments, "segment", "segments"),
        counted(report.lines, "line", "lines"),
        counted(report.open, "request open", "requests open"),
        counted(report.faults.len(), "fault", "faults")
    ));
    line(&format!("head {}", report.head));
    if report.is_sound() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn tail(matches: &ArgMatches, app: &App, format: Format) -> ExitCode {
    let lines = matches.get_one::<u64>("lines").copied().unwrap_or(20);
    let filter = audit::Filter {
        operation: matches.get_one::<String>("operation").cloned(),
        id: matches.get_one::<String>("id").cloned(),
        ..audit::Filter::default()
    };
    if let Some(Err(_)) = filter.id.as_deref().map(str::parse::<RequestId>) {
        complain(&Failure::new(Code::InvalidArguments, "`--id` is no id of a request").hint(IDS), format);
        return ExitCode::from(2);
    }
    match audit::tail(app.audit_dir(), usize::try_from(lines).unwrap_or(usize::MAX), &filter) {
        Ok(entries) if entries.is_empty() && (filter.id.is_some() || filter.operation.is_some()) => {
            let (what, hint) = match (&filter.id, &filter.operation) {
                (Some(_), Some(_)) => ("this `--id` and this `--operation`", IDS),
                (Some(_), None) => ("this `--id`", IDS),
                (None, _) => ("this `--operation`", OPERATIONS),
            };
            complain(&Failure::new(Code::InvalidArguments, format!("no entry has {what}")).hint(hint), format)
        }
        Ok(entries) => {
            entries.iter().for_each(|entry| render::json(entry));
            ExitCode::SUCCESS
        }
        Err(error) => unreadable(&error, format),
    }
}

fn unreadable(error: &io::Error, format: Format) -> ExitCode {
    complain(&Failure::new(Code::AuditUnavailable, format!("the audit log cannot be read: {error}")), format)
}
