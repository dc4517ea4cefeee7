//! `policy fuzz`: odd requests, until one breaks a rule.

use std::process::ExitCode;
use std::time::Duration;

use clap::ArgMatches;
use serde_json::json;
use uuid::Uuid;

use super::{NotBegun, found, head, operations, subject_of};
use crate::author::cases;
use crate::author::fuzz::{self, Plan};
use crate::cli::render::{self, Format, line};
use crate::model::{Code, Failure};

/// Requests unless a number or a time is asked for.
const COUNT_DEFAULT: u64 = 10_000;

pub(super) fn run(of: &ArgMatches, format: Format) -> Result<ExitCode, NotBegun> {
    let mut subject = subject_of(of, found(of)?)?;
    let number = |name: &str| of.get_one::<u64>(name).copied();
    let (fresh, _) = Uuid::new_v4().as_u64_pair();
    let seed = number("seed").unwrap_or(fresh);
    let time = number("seconds").map(Duration::from_secs);
    let count = number("count").unwrap_or(if time.is_some() { u64::MAX } else { COUNT_DEFAULT });
    let plan = Plan { seed, count, time, is_monotone: of.get_flag("monotone") };
    let fuzzed = fuzz::run(&mut subject, &operations(), None, plan).map_err(|faults| {
        NotBegun(faults.iter().map(|fault| Failure::new(Code::PolicyNotReady, fault.to_string())).collect())
    })?;
    let [passes, abstains, denials] = fuzzed.verdicts;
    let code = if fuzzed.violation.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    let description = subject.description();
    if format == Format::Json {
        let violation = fuzzed.violation.as_ref();
        let violation =
            violation.map(|one| json!({"code": one.code, "detail": one.detail, "case": cases::write(&one.case)}));
        let object = json!({
            "ok": fuzzed.violation.is_none(),
            "policy": description.name,
            "version": description.version,
            "componentSha256": subject.sha256(),
            // A number that JSON's readers may not hold.
            "seed": seed.to_string(),
            "tried": fuzzed.tried,
            "verdicts": {"pass": passes, "abstain": abstains, "deny": denials},
            "violation": violation,
        });
        render::json(&object.to_string());
        return Ok(code);
    }
    line(&head(&description.name, &description.version, subject.sha256()));
    line(&format!(
        "seed {seed}: {} requests, of which it passed {passes}, abstained from {abstains} and denied {denials}",
        fuzzed.tried
    ));
    match &fuzzed.violation {
        None => line("no rule was broken"),
        Some(violation) => {
            line(&format!("FAIL {}: {}", violation.code, violation.detail));
            line("as a case, with what it is to come to left to you:");
            line(cases::write(&violation.case).trim_end());
        }
    }
    Ok(code)
}
