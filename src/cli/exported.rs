//! Files of exported templates, by hand.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ArgMatches;
use serde_json::json;

use super::complain;
use super::render::{self, Format, line};
use crate::app::App;

/// Runs `exported …`.
pub(super) async fn run(matches: &ArgMatches, app: &App, format: Format) -> ExitCode {
    let file = |of: &ArgMatches| of.get_one::<PathBuf>("file").cloned().unwrap_or_default();
    let name = |of: &ArgMatches| of.get_one::<String>("name").cloned();
    let outcome = match matches.subcommand() {
        Some(("save", of)) => {
            let (name, to) = (name(of).unwrap_or_default(), file(of));
            let saved = app.save_exported(&name, &to).await;
            saved.map(|()| (format!("exported template `{name}` is saved to {}", shown(&to)), name))
        }
        Some(("add", of)) => {
            let added = app.add_exported(&file(of), name(of).as_deref()).await;
            added.map(|name| {
                (format!("exported template `{name}` is there; `import-template` makes a template of it"), name)
            })
        }
        _ => return ExitCode::FAILURE,
    };
    match outcome {
        Ok((summary, name)) => {
            match format {
                Format::Text => line(&summary),
                Format::Json => {
                    render::json(&json!({"ok": true, "exportedName": name, "summary": summary}).to_string());
                }
            }
            ExitCode::SUCCESS
        }
        Err(failure) => complain(&failure, format),
    }
}

fn shown(path: &Path) -> String {
    path.to_string_lossy().chars().flat_map(char::escape_default).collect()
}
