//! `policy list`: the policies of this program.

use std::process::ExitCode;

use serde_json::{Value, json};

use crate::app::App;
use crate::cli::render::{self, Format, line, say};
use crate::model::{Code, Failure};

pub(super) async fn run(app: &App, format: Format) -> ExitCode {
    match app.policies().await {
        Ok(infos) if format == Format::Json => {
            let policies: Vec<Value> = infos
                .iter()
                .map(|info| {
                    json!({
                        "name": info.name,
                        "mode": info.mode.as_str(),
                        "version": info.description.version,
                        "componentSha256": info.component_sha256,
                        "settingsSha256": info.settings_sha256,
                        "covers": info.description.covers,
                    })
                })
                .collect();
            render::json(&json!({"ok": true, "policies": policies}).to_string());
            ExitCode::SUCCESS
        }
        Err(faults) if format == Format::Json => {
            let failures: Vec<Failure> =
                faults.into_iter().map(|fault| Failure::new(Code::PolicyNotReady, fault)).collect();
            render::failures(&failures, format);
            ExitCode::FAILURE
        }
        Ok(infos) => {
            for info in infos {
                let covers = info.description.covers.join(", ");
                line(&format!(
                    "{:<16} {:<8} {} covers: {}",
                    info.name,
                    info.mode.as_str(),
                    info.component_sha256.get(..16).unwrap_or_default(),
                    if covers.is_empty() { "nothing" } else { &covers }
                ));
            }
            ExitCode::SUCCESS
        }
        Err(faults) => {
            faults.iter().for_each(|fault| say(&format!("error: {fault}")));
            ExitCode::FAILURE
        }
    }
}
