//! From the start of the process to its first answers, with compiled policies and a running cluster.

use std::process::Stdio;
use std::time::Instant;

use serde_json::json;

use super::Effort;
use super::client::{Home, Server};
use super::report::{Report, Samples, Target};

pub fn measure(report: &mut Report, effort: Effort, home: &Home, sandbox: &str) {
    let (mut alone, mut initialize, mut answered) = (Samples::default(), Samples::default(), Samples::default());
    let (mut first, mut second) = (Samples::default(), Samples::default());
    let select = json!({"databaseId": sandbox, "sql": "select 1", "readonly": true});
    for _ in 0..effort.samples(50) {
        alone.time(|| home.command(&["--version"]).stdout(Stdio::null()).status().unwrap());
        let began = Instant::now();
        let mut server = Server::spawn(home);
        server.shake_hands();
        initialize.add(began.elapsed());
        server.call("run_sql", &select);
        answered.add(began.elapsed());
        server.finish();
        // The same once the policies are there: what is left is the sessions that a first call opens.
        let mut server = Server::start(home);
        server.call("list_profiles", &json!({}));
        first.time(|| server.call("run_sql", &select));
        second.time(|| server.call("run_sql", &select));
        server.finish();
    }
    let floor = Some(("the process alone: `--version`", alone.median()));
    report.time("start to `initialize`, p50", initialize.median(), floor, Target::UsMax(20e3));
    let parts = [
        ("the process alone", alone.median()),
        ("the program put together, and the handshake", initialize.median() - alone.median()),
    ];
    report.profile("start to `initialize`, p50", parts);
    let measure = "start to the first answered `run_sql`, p50";
    report.time(measure, answered.median(), floor, Target::UsMax(60e3));
    let parts = parts.into_iter().chain([
        ("loading the policies alone, beside the handshake and the sessions", report.notes.policies_us),
        ("the first call once the policies are loaded: sessions are opened", first.median()),
        ("the second call", second.median()),
    ]);
    report.profile(measure, parts.collect::<Vec<_>>());
}
