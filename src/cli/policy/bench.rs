//! `policy bench`: what a component takes, and another beside it.

#![expect(clippy::cast_precision_loss, reason = "times and ratios that people read")]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ArgMatches;
use serde_json::{Value, json};

use super::{NotBegun, entries, found, operations};
use crate::author::bench::{self, Measured};
use crate::author::subject;
use crate::cli::render::{self, Format, line};

/// Evaluations of each component unless another number is asked for.
const COUNT_DEFAULT: u64 = 10_000;
/// Nanoseconds of a microsecond.
const NS_PER_US: f64 = 1_000.0;
/// Microseconds of a millisecond.
const US_PER_MS: f64 = 1_000.0;

pub(super) fn run(of: &ArgMatches, format: Format) -> Result<ExitCode, NotBegun> {
    let found = found(of)?;
    let entries = entries(of, &found)?;
    if entries.is_empty() {
        return Err(NotBegun::from(
            "there are no cases to measure on; write some, or name others with `--cases`".to_owned(),
        ));
    }
    let mut all = vec![found];
    if let Some(baseline) = of.get_one::<PathBuf>("baseline") {
        all.push(subject::find(baseline)?);
    }
    let count = of.get_one::<u64>("count").copied().unwrap_or(COUNT_DEFAULT);
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let host = subject::host().map_err(NotBegun::unloaded)?;
    let measured = bench::run(&host, all, &operations(), &entries, count).map_err(NotBegun::unloaded)?;
    let ratio = match measured.as_slice() {
        [one, other] => Some(one.median_ns as f64 / other.median_ns.max(1) as f64),
        _ => None,
    };
    if format == Format::Json {
        let measured: Vec<Value> = measured.iter().map(object).collect();
        let object = json!({"ok": true, "component": measured.first(), "baseline": measured.get(1), "ratio": ratio});
        render::json(&object.to_string());
    } else {
        measured.iter().for_each(told);
        ratio.iter().for_each(|ratio| line(&format!("median of the first to that of the baseline: {ratio:.2}")));
    }
    Ok(ExitCode::SUCCESS)
}

fn told(measured: &Measured) {
    let us = |ns: u64| ns as f64 / NS_PER_US;
    line(&format!("policy `{}`, sha256:{}", measured.name, measured.sha256));
    let row = |key: &str, value: String| line(&format!("{key:<13}{value}"));
    row("evaluations", format!("{} of {} requests", measured.evaluations, measured.requests));
    row("time", format!("median {:.1} µs, p99 {:.1} µs", us(measured.median_ns), us(measured.p99_ns)));
    row("fuel", format!("median {}, at most {}", measured.median_fuel, measured.fuel_max));
    row("memory", format!("at most {} bytes", measured.memory_bytes));
    row(
        "configured",
        match measured.snapshot_bytes {
            Some(bytes) => format!("{bytes} bytes, which each evaluation starts from"),
            None => "anew in each evaluation: the component's state cannot be written out".to_owned(),
        },
    );
    row("load", format!("{:.1} ms", measured.load_us as f64 / US_PER_MS));
    if measured.failed > 0 {
        row("note", format!("{} evaluations were not answered; `pgsandbox policy test` says why", measured.failed));
    }
}

fn object(measured: &Measured) -> Value {
    json!({
        "policy": measured.name,
        "componentSha256": measured.sha256,
        "requests": measured.requests,
        "evaluations": measured.evaluations,
        "medianNs": measured.median_ns,
        "p99Ns": measured.p99_ns,
        "medianFuel": measured.median_fuel,
        "maxFuel": measured.fuel_max,
        "memoryBytes": measured.memory_bytes,
        "snapshotBytes": measured.snapshot_bytes,
        "loadUs": measured.load_us,
        "failed": measured.failed,
    })
}
