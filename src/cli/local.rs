//! The managed clusters, by hand.

use std::process::ExitCode;

use clap::ArgMatches;
use serde_json::{Value, json};

use super::render::{self, Format, line, say};
use super::{Said, complain};
use crate::app::{App, ClusterSeen};

/// The customary status of a service that does not run.
const NOT_RUNNING: u8 = 3;

/// Runs `local …`.
pub(super) async fn run(matches: &ArgMatches, app: &App, format: Format) -> ExitCode {
    let Some((name, of)) = matches.subcommand() else { return ExitCode::FAILURE };
    let profile = of.get_one::<String>("profile").map(String::as_str);
    let seen = match name {
        "init" | "start" => app.start_clusters(profile, &Said::new()).await,
        "stop" => match app.stop_clusters(profile).await {
            Ok((stopped, Ok(()))) => Ok(stopped),
            Ok((stopped, Err(failure))) => {
                // Those that went down are told, too.
                if format == Format::Text {
                    tell(&stopped, format);
                }
                Err(failure)
            }
            Err(failure) => Err(failure),
        },
        _ => app.clusters_seen(profile).await,
    };
    match seen {
        Ok(seen) => {
            tell(&seen, format);
            // What no profile leads to need not run.
            let is_down = name == "status" && seen.iter().any(|cluster| !cluster.running && cluster.profile.is_some());
            if is_down { ExitCode::from(NOT_RUNNING) } else { ExitCode::SUCCESS }
        }
        Err(failure) => {
            let status = complain(&failure, format);
            if let Some(detail) = &failure.audit {
                say(detail);
            }
            status
        }
    }
}

/// Prints how the clusters stand now.
fn tell(seen: &[ClusterSeen], format: Format) {
    if format == Format::Json {
        let clusters: Vec<Value> = seen
            .iter()
            .map(|one| {
                json!({
                    "profile": one.profile,
                    "postgresVersion": one.major.map(|major| major.to_string()),
                    "running": one.running,
                    "summary": one.summary,
                })
            })
            .collect();
        let running = seen.iter().all(|one| one.running || one.profile.is_none());
        render::json(&json!({"ok": true, "running": running, "clusters": clusters}).to_string());
        return;
    }
    match seen {
        [one] => line(&one.summary),
        several => several.iter().for_each(|one| line(&format!("{}: {}", called(one), one.summary))),
    }
}

fn called(one: &ClusterSeen) -> String {
    match (&one.profile, one.major) {
        (Some(profile), _) => profile.clone(),
        (None, Some(major)) => format!("no profile (Postgres {major})"),
        (None, None) => "no profile".to_owned(),
    }
}
