//! Removes whatever is past its time, whoever's it is: what a program that stays does by itself, for where none does.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::render::{self, Format, line};
use crate::app::App;
use crate::model::{Failure, counted};
use crate::operation::envelope::EnvelopeError;
use crate::sandbox::{Reaped, UpkeptProfile};

/// Runs `cleanup --everyones`.
pub(super) async fn run(app: &App, format: Format) -> ExitCode {
    let upkept = app.upkeep_once().await;
    let is_whole = |one: &UpkeptProfile| match &one.outcome {
        Ok(Some(reaped)) => reaped.failed.is_empty(),
        Ok(None) => true,
        Err(_) => false,
    };
    let ok = upkept.iter().all(is_whole);
    match format {
        Format::Json => {
            let profiles: Vec<Value> = upkept.iter().map(told).collect();
            render::json(&json!({"ok": ok, "profiles": profiles}).to_string());
        }
        Format::Text => upkept.iter().for_each(tell),
    }
    if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn told(one: &UpkeptProfile) -> Value {
    let error = |failure: &Failure| serde_json::to_value(EnvelopeError::from(failure)).unwrap_or_default();
    let failed = |(name, failure): &(String, Failure)| json!({"databaseName": name, "error": error(failure)});
    let profile = &one.profile;
    match &one.outcome {
        Ok(Some(Reaped { removed, failed: left })) => {
            let failures: Vec<Value> = left.iter().map(failed).collect();
            json!({"profile": profile, "deleted": removed, "failures": failures})
        }
        Ok(None) => json!({"profile": profile, "deleted": [], "failures": [], "running": false}),
        Err(failure) => json!({"profile": profile, "deleted": [], "failures": [], "error": error(failure)}),
    }
}

fn tell(one: &UpkeptProfile) {
    let profile = &one.profile;
    match &one.outcome {
        Ok(Some(Reaped { removed, failed })) => {
            line(&format!("{profile}: removed {}", counted(removed.len(), "database", "databases")));
            removed.iter().for_each(|name| line(&format!("  {name}")));
            for (name, failure) in failed {
                render::say(&format!(
                    "error: `{name}` of {profile} was not removed: {} [{}]",
                    failure.message,
                    failure.code.as_str()
                ));
            }
        }
        Ok(None) => line(&format!("{profile}: its server does not run, and was not started")),
        Err(failure) => {
            render::say(&format!("error: {profile}: {} [{}]", failure.message, failure.code.as_str()));
            if let Some(hint) = &failure.hint {
                render::say(&format!("hint: {hint}"));
            }
        }
    }
}
