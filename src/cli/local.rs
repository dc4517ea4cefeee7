//! The managed cluster, by hand.

use std::process::ExitCode;

use clap::ArgMatches;
use serde_json::json;

use super::render::{self, Format, line, say};
use super::{Said, complain};
use crate::app::App;
use crate::model::Failure;

/// Runs `local …`.
pub(super) async fn run(matches: &ArgMatches, app: &App, format: Format) -> ExitCode {
    let outcome = match matches.subcommand_name() {
        Some("init" | "start") => app.start_cluster(&Said).await.map(|at| tell(format, true, &at)),
        Some("stop") => app.stop_cluster().await.map(|was_running| {
            tell(format, false, if was_running { "stopped" } else { "was not running" });
        }),
        _ => return status(app, format).await,
    };
    finish(outcome, format)
}

async fn status(app: &App, format: Format) -> ExitCode {
    match app.cluster_status().await {
        Ok(Some(at)) => {
            tell(format, true, &at);
            ExitCode::SUCCESS
        }
        Ok(None) => {
            tell(format, false, "not running");
            // The customary status of a service that does not run.
            ExitCode::from(3)
        }
        Err(failure) => complain(&failure, format),
    }
}

/// Prints how the cluster stands now.
fn tell(format: Format, running: bool, summary: &str) {
    match format {
        Format::Text => line(summary),
        Format::Json => render::json(&json!({"ok": true, "running": running, "summary": summary}).to_string()),
    }
}

fn finish(outcome: Result<(), Failure>, format: Format) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let status = complain(&failure, format);
            if let Some(detail) = &failure.audit {
                say(detail);
            }
            status
        }
    }
}
