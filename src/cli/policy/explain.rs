//! `policy explain`: one decision, from the audit log.

use std::process::ExitCode;

use clap::ArgMatches;
use serde_json::Value;

use crate::app::App;
use crate::audit::{self, Filter};
use crate::cli::complain;
use crate::cli::render::{self, Format, line};
use crate::model::{Code, Failure, RequestId};

pub(super) fn run(of: &ArgMatches, app: &App, format: Format) -> ExitCode {
    let id = of.get_one::<String>("id").cloned().unwrap_or_default();
    let refused = |text: &str| {
        let hint = "a reply says its call's id as `requestId`, and `pgsandbox audit tail` that of each entry as `id`";
        complain(&Failure::new(Code::InvalidArguments, text).hint(hint), format);
        ExitCode::from(super::NOT_DONE)
    };
    if id.parse::<RequestId>().is_err() {
        return refused("what is given is no id of a request");
    }
    let filter = Filter { id: Some(id), kind: Some("close".to_owned()), ..Filter::default() };
    let found = match audit::tail(app.audit_dir(), 1, &filter) {
        Ok(found) => found,
        Err(error) => {
            let text = format!("the audit log cannot be read: {error}");
            return complain(&Failure::new(Code::AuditUnavailable, text), format);
        }
    };
    let Some(entry) = found.first() else {
        return refused("no request that has ended has this id");
    };
    if format == Format::Json {
        render::json(entry);
        return ExitCode::SUCCESS;
    }
    match serde_json::from_str::<Value>(entry) {
        Ok(entry) => told(&entry),
        Err(_) => {
            let text = "the request's line is damaged; `pgsandbox audit verify` says what else is";
            return complain(&Failure::new(Code::AuditUnavailable, text), format);
        }
    }
    ExitCode::SUCCESS
}

fn told(entry: &Value) {
    let text = |value: &Value| -> String { value.as_str().map_or_else(|| value.to_string(), str::to_owned) };
    let row = |key: &str, value: &str| line(&format!("{key:<12}{value}"));
    let request = &entry["request"];
    if request.is_object() {
        let (operation, impact) = (text(&request["operation"]), text(&request["impact"]));
        row(
            "request",
            &format!("{operation} ({impact}) of {}", request.pointer("/principal/owner").map(text).unwrap_or_default()),
        );
    }
    row("ended", &format!("{} at {}", text(&entry["outcome"]), text(&entry["at"])));
    for (key, value) in [("code", &entry["code"]), ("cause", &entry["cause"])] {
        if !value.is_null() {
            row(key, &text(value));
        }
    }
    let decision = &entry["decision"];
    if decision.is_null() {
        row("decision", "the policies were not asked");
        return;
    }
    row("decision", &format!("{} by generation {}", text(&decision["verdict"]), decision["generation"]));
    for policy in decision["policies"].as_array().into_iter().flatten() {
        let (name, mode, said) = (text(&policy["policy"]), text(&policy["mode"]), text(&policy["said"]));
        let code = policy["code"].as_str().map(|code| format!(" {code}")).unwrap_or_default();
        let detail = policy["detail"].as_str().map(|detail| format!(": {detail}")).unwrap_or_default();
        let cost = format!("{} µs, {} fuel", policy["elapsed_us"], policy["fuel"]);
        line(&format!("  {name:<20}{mode:<9}{said}{code}{detail} ({cost})"));
        if let Some(would) = policy["would"].as_object() {
            line(&format!("  {:<29}would have: {}", "", Value::Object(would.clone())));
        }
    }
    for (key, list) in [
        ("demand", &decision["obligations"]),
        ("charge", &decision["charges"]),
        ("warning", &decision["warnings"]),
        ("enforced", &entry["enforced"]),
    ] {
        list.as_array().into_iter().flatten().for_each(|one| row(key, &one.to_string()));
    }
}
