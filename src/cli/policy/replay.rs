//! `policy replay`: what a component would have said of recorded requests.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ArgMatches;
use serde_json::{Value, json};

use super::{NotBegun, found_at, head, operations, subject_of};
use crate::author::replay::{Change, Replayed, beside_records};
use crate::author::subject::Subject;
use crate::cli::render::{self, Format, line};
use crate::model::counted;

/// How many changes are shown unless said otherwise.
const SHOWN_DEFAULT: u64 = 20;

pub(super) fn run(of: &ArgMatches, format: Format) -> Result<ExitCode, NotBegun> {
    let mut subject = subject_of(of, found_at(of, "candidate")?)?;
    let own = subject.description().name.clone();
    let name = of.get_one::<String>("as").cloned().unwrap_or(own);
    let replayed = beside_records(&mut subject, &name, &records(of), &operations())?;
    if replayed.asked == 0 && replayed.not_replayable == 0 {
        return Err(NotBegun::from(format!(
            "no decision of the records has a policy `{name}`; name the one to compare with by `--as`"
        )));
    }
    Ok(told(of, &[("candidate", &subject)], &replayed, format))
}

pub(super) fn records(of: &ArgMatches) -> PathBuf {
    of.get_one::<PathBuf>("records").cloned().unwrap_or_default()
}

/// Prints what came, of these components.
pub(super) fn told(of: &ArgMatches, subjects: &[(&str, &Subject)], replayed: &Replayed, format: Format) -> ExitCode {
    let shown = of.get_one::<u64>("show").copied().unwrap_or(SHOWN_DEFAULT);
    let shown = replayed.changes.iter().take(usize::try_from(shown).unwrap_or(usize::MAX));
    let Replayed { asked, same, changed, newly_refused, newly_allowed, not_replayable, not_compared, .. } = replayed;
    let code = if *changed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    if format == Format::Json {
        let Value::Object(mut object) = json!({
            "ok": *changed == 0,
            "asked": asked,
            "same": same,
            "changed": changed,
            "newlyRefused": newly_refused,
            "newlyAllowed": newly_allowed,
            "notReplayable": not_replayable,
            "notCompared": not_compared,
            "changes": shown.map(of_change).collect::<Vec<_>>(),
        }) else {
            return code;
        };
        for (what, subject) in subjects {
            let about = subject.description();
            let digest = subject.sha256();
            let about = json!({"policy": about.name, "version": about.version, "componentSha256": digest});
            object.insert((*what).to_owned(), about);
        }
        render::json(&Value::Object(object).to_string());
        return code;
    }
    for (what, subject) in subjects {
        let about = subject.description();
        line(&format!("{what:<10}{}", head(&about.name, &about.version, subject.sha256())));
    }
    for change in shown {
        let Change { id, at, operation, owner, before, after, .. } = change;
        line(&format!("{at} {id} {operation} of {owner}"));
        line(&format!("    before {before}"));
        line(&format!("    after  {after}"));
    }
    line(&format!(
        "{}: {same} the same, {changed} changed ({newly_refused} newly refused, {newly_allowed} no longer refused)",
        counted(*asked, "decision", "decisions"),
    ));
    if *not_replayable > 0 {
        line(&format!(
            "{not_replayable} more cannot be asked about again: their records leave out something policies saw"
        ));
    }
    if *not_compared > 0 {
        line(&format!("{not_compared} more were made without the policy"));
    }
    code
}

fn of_change(change: &Change) -> Value {
    json!({
        "id": change.id,
        "at": change.at,
        "operation": change.operation,
        "owner": change.owner,
        "before": change.before,
        "after": change.after,
        "request": change.request,
    })
}
