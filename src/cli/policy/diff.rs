//! `policy diff`: two components over the same recorded requests.

use std::process::ExitCode;

use clap::ArgMatches;

use super::replay::{records, told};
use super::{NotBegun, found_at, operations, settings_of, subject_with};
use crate::author::replay::beside_another;
use crate::cli::render::Format;

pub(super) fn run(of: &ArgMatches, format: Format) -> Result<ExitCode, NotBegun> {
    let mut before = subject_with(settings_of(of, "settings-before")?, found_at(of, "before")?)?;
    let mut after = subject_with(settings_of(of, "settings-after")?, found_at(of, "after")?)?;
    let replayed = beside_another(&mut before, &mut after, &records(of), &operations())?;
    Ok(told(of, &[("before", &before), ("after", &after)], &replayed, format))
}
