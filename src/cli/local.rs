//! The managed cluster, by hand.

use std::process::ExitCode;

use clap::ArgMatches;

use super::render::{line, say};
use super::{Said, complain};
use crate::app::App;
use crate::model::Failure;

/// Runs `local …`.
pub(super) async fn run(matches: &ArgMatches, app: &App) -> ExitCode {
    let outcome = match matches.subcommand_name() {
        Some("init" | "start") => app.start_cluster(&Said).await.map(|at| line(&at)),
        Some("stop") => app.stop_cluster().await.map(|was_running| {
            line(if was_running { "stopped" } else { "was not running" });
        }),
        _ => return status(app).await,
    };
    finish(outcome)
}

async fn status(app: &App) -> ExitCode {
    match app.cluster_status().await {
        Ok(Some(at)) => {
            line(&at);
            ExitCode::SUCCESS
        }
        Ok(None) => {
            line("not running");
            // The customary status of a service that does not run.
            ExitCode::from(3)
        }
        Err(failure) => complain(&failure),
    }
}

fn finish(outcome: Result<(), Failure>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let status = complain(&failure);
            if let Some(detail) = &failure.audit {
                say(detail);
            }
            status
        }
    }
}
