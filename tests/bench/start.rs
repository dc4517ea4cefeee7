//! From the start of the process to its first answers, with compiled policies and a running cluster.

use std::process::Stdio;
use std::time::Instant;

use serde_json::json;

use super::Effort;
use super::client::{Home, Server};
use super::report::{Report, Samples};

pub fn measure(report: &mut Report, effort: Effort, home: &Home, sandbox: &str) {
    let (mut help, mut initialize, mut answered) = (Samples::default(), Samples::default(), Samples::default());
    let select = json!({"databaseId": sandbox, "sql": "select 1", "readonly": true});
    for _ in 0..effort.samples(50) {
        help.time(|| home.command(&["--version"]).stdout(Stdio::null()).status().unwrap());
        let began = Instant::now();
        let mut server = Server::spawn(home);
        server.shake_hands();
        initialize.add(began.elapsed());
        server.call("run_sql", &select);
        answered.add(began.elapsed());
        server.finish();
    }
    let floor = Some(("the process alone: `--version`", help.median()));
    report.time("start to `initialize`, p50", initialize.median(), floor, "20 ms");
    report.time("start to the first answered `run_sql`, p50", answered.median(), floor, "60 ms");
}
