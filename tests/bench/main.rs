//! Measures the program and prints each figure beside its floor from the same run.
//!
//! Nothing is asserted about time: machines differ, and a figure means something only beside the floor next to it.
//! Everything runs on a cluster and in a state directory of its own, which are removed at the end. `--quick` takes
//! fewer samples, for a run on every change; `--only WORD` measures only the parts whose name holds the word; with
//! `--targets` the status is 3 if a measure misses its target.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    unreachable_pub,
    reason = "a measurement fails loudly and prints"
)]

mod calls;
mod client;
mod copies;
mod gate;
mod lifecycle;
mod one_policy;
mod reading;
mod report;
mod start;

use client::Home;
use pgsandbox::telemetry::{Telemetry, TelemetrySettings};
use report::Report;

/// How much is measured.
#[derive(Clone, Copy)]
struct Effort {
    /// Divides the number of samples.
    divisor: usize,
}

impl Effort {
    /// Returns how many samples to take where a full run takes `full`; never fewer than five.
    fn samples(self, full: usize) -> usize {
        (full / self.divisor).max(5)
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let effort = Effort { divisor: if arguments.iter().any(|a| a == "--quick") { 10 } else { 1 } };
    let only = arguments.iter().position(|a| a == "--only").and_then(|at| arguments.get(at + 1)).cloned();
    let wanted = |part: &str| only.as_deref().is_none_or(|word| part.contains(word));
    // As in the program: lines are logged, spans are made for the log, and nothing is exported.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _telemetry = Telemetry::install(&TelemetrySettings::default(), runtime.handle()).unwrap();
    let mut report = Report::default();
    if wanted("gate") {
        eprintln!("the gate …");
        gate::measure(&mut report, effort);
    }
    if wanted("reading") {
        eprintln!("reading SQL …");
        reading::measure(&mut report, effort);
    }
    if ["calls", "lifecycle", "copies", "start"].into_iter().any(wanted) {
        eprintln!("a cluster and the compiled policies …");
        let home = Home::fresh();
        let mut server = client::Server::start(&home);
        let sandbox = server.create();
        if wanted("calls") {
            eprintln!("calls …");
            calls::measure(&mut report, effort, &home, &mut server, &sandbox);
        }
        if wanted("lifecycle") {
            eprintln!("creating and deleting …");
            lifecycle::measure(&mut report, effort, &home, &mut server);
        }
        if wanted("copies") {
            eprintln!("copies …");
            copies::measure(&mut report, effort, &home, &mut server);
        }
        server.finish();
        if wanted("start") {
            eprintln!("starting …");
            start::measure(&mut report, effort, &home, &sandbox);
        }
    }
    print!("{}", report.written());
    if arguments.iter().any(|a| a == "--targets") && !report.missed().is_empty() {
        eprintln!("missed: {}", report.missed().join("; "));
        std::process::exit(3);
    }
}
