//! `policy eval`: one request, and the whole decision.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::ArgMatches;
use serde_json::json;

use super::{NotBegun, entries, found, head, operations, subject_of, text};
use crate::author::cases::{Case, read_request};
use crate::author::eval::{self, Evaluated};
use crate::author::shown;
use crate::author::subject::Subject;
use crate::cli::render::{self, Format, line};
use crate::model::{Code, Failure, PolicyFault, Verdict};

pub(super) fn run(of: &ArgMatches, format: Format) -> Result<ExitCode, NotBegun> {
    let found = found(of)?;
    let mut case: Case = match (of.get_one::<String>("case"), of.get_one::<String>("request")) {
        (Some(name), _) => {
            let entries = entries(of, &found)?;
            let entry = entries.into_iter().find(|entry| entry.name == *name);
            entry.ok_or_else(|| NotBegun::from(format!("no case has the name `{name}`")))?.case
        }
        (None, file) => {
            let file = file.map(String::as_str).unwrap_or_default();
            read_request(&text(file)?).map_err(|fault| NotBegun::from(format!("the request: {fault}")))?
        }
    };
    if let Some(given) = of.get_one::<String>("balances") {
        let balances = serde_json::from_str::<BTreeMap<String, u32>>(given);
        let wanted = |_| NotBegun::from("--balances: an object of buckets and whole numbers is wanted".to_owned());
        case.balances = Some(balances.map_err(wanted)?);
    }
    // Those that are named on the command line go before the case's.
    if of.contains_id("settings") {
        case.settings = None;
    }
    let mut subject = subject_of(of, found)?;
    match eval::run(&mut subject, &operations(), &case) {
        Ok(evaluated) => Ok(told(&subject, &evaluated, format)),
        Err(reasons) => {
            let failure = |reason: &crate::author::suite::Reason| {
                Failure::new(Code::PolicyNotReady, format!("{}: {}", reason.code, reason.detail))
            };
            render::failures(&reasons.iter().map(failure).collect::<Vec<_>>(), format);
            Ok(ExitCode::FAILURE)
        }
    }
}

fn told(subject: &Subject, evaluated: &Evaluated, format: Format) -> ExitCode {
    let description = subject.description();
    let Evaluated { request, is_concerned, covers, differences, evaluation } = evaluated;
    let answer = &evaluation.answer;
    let code = if answer.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    if format == Format::Json {
        let failed = answer.as_ref().err();
        let object = json!({
            "ok": answer.is_ok(),
            "policy": description.name,
            "version": description.version,
            "componentSha256": subject.sha256(),
            "request": request,
            "concerned": is_concerned,
            "covers": covers,
            "readerDiffers": differences,
            "decision": answer.as_ref().ok().map(shown::decision),
            "failure": failed.map(|PolicyFault { code, detail }| json!({"code": code.as_str(), "detail": detail})),
            "fuel": evaluation.fuel,
            "elapsedUs": evaluation.elapsed_us,
            "memoryBytes": evaluation.memory_bytes,
        });
        render::json(&object.to_string());
        return code;
    }
    line(&head(&description.name, &description.version, subject.sha256()));
    let row = |key: &str, value: &str| line(&format!("{key:<13}{value}"));
    row("request", &request.to_string());
    differences.iter().for_each(|one| row("note", one));
    if !is_concerned {
        row("note", "a server would not ask the policy about this request");
    }
    match answer {
        Ok(decision) => {
            row("verdict", decision.verdict.as_str());
            if let Verdict::Deny(denial) = &decision.verdict {
                row("code", &denial.code);
                row("message", &denial.message);
                row("audit", &denial.audit);
                denial.retry_after_ms.iter().for_each(|ms| row("retry after", &format!("{ms} ms")));
            }
            if decision.verdict == Verdict::Pass && !covers {
                row("note", "the policy does not cover the operation: this pass does not answer for it");
            }
            decision.obligations.iter().for_each(|one| row("obligation", &crate::author::cases::obligation_text(one)));
            decision.charges.iter().for_each(|one| row("charge", &format!("{} {}", one.bucket, one.cost)));
            decision.warnings.iter().for_each(|one| row("warning", one));
        }
        Err(PolicyFault { code, detail }) => row("failure", &format!("{} ({detail})", code.as_str())),
    }
    row("fuel", &evaluation.fuel.to_string());
    row("time", &format!("{} µs", evaluation.elapsed_us));
    row("memory", &format!("{} bytes", evaluation.memory_bytes));
    code
}
