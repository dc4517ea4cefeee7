//! `pgsandbox policy …`: what is loaded, and what authors do with a component.
//!
//! Only `list` and `reload` are about this program's own policies; the others take a component's path, and need neither configuration nor
//! state directory nor cluster.

mod bench;
mod check;
mod eval;
mod fuzz;
mod grammar;
mod junit;
mod loaded;
mod test;

use std::io::Read as _;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;

use clap::ArgMatches;
use serde_json::{Map, Value};

pub(super) use self::grammar::command;
use super::refused::NOT_DONE;
use super::render::{self, Format};
use crate::app::{App, WORKER_STACK_BYTES};
use crate::author::cases::{self, Entry, Operations};
use crate::author::subject::{self, CASES_BYTES_MAX, Found, Subject};
use crate::model::{Code, Failure};
use crate::operation::OPERATIONS;

/// Returns whether a command of these needs nothing of the program's own.
pub(super) fn is_apart(of: &ArgMatches) -> bool {
    !matches!(of.subcommand_name(), Some("list" | "reload"))
}

/// Runs a command that is about this program's own policies.
pub(super) async fn run(of: &ArgMatches, app: &App, format: Format) -> ExitCode {
    loaded::run(of, app, format).await
}

/// Runs a command that needs nothing of the program's own, with the stack that policies and the reader of SQL have in a server.
pub(super) fn run_apart(of: &ArgMatches, format: Format) -> ExitCode {
    thread::scope(|scope| {
        let started = thread::Builder::new()
            .name("policy".to_owned())
            .stack_size(WORKER_STACK_BYTES)
            .spawn_scoped(scope, || dispatch(of, format));
        match started.map(thread::ScopedJoinHandle::join) {
            Ok(Ok(code)) => code,
            Ok(Err(panic)) => resume_unwind(panic),
            Err(error) => {
                let failure = Failure::new(Code::Internal, format!("no thread could be started: {error}"));
                render::failures(&[failure], format);
                ExitCode::from(NOT_DONE)
            }
        }
    })
}

fn dispatch(of: &ArgMatches, format: Format) -> ExitCode {
    let ran = match of.subcommand() {
        Some(("check", of)) => check::run(of, format),
        Some(("test", of)) => test::run(of, format),
        Some(("eval", of)) => eval::run(of, format),
        Some(("bench", of)) => bench::run(of, format),
        Some(("fuzz", of)) => fuzz::run(of, format),
        Some(_) | None => Ok(ExitCode::FAILURE),
    };
    ran.unwrap_or_else(|NotBegun(failures)| {
        let format = match of.subcommand() {
            Some(("test", of)) => test::format(of, format),
            Some(_) | None => format,
        };
        render::failures(&failures, format);
        ExitCode::from(NOT_DONE)
    })
}

/// Why nothing was begun.
struct NotBegun(Vec<Failure>);

impl From<String> for NotBegun {
    fn from(text: String) -> Self {
        Self(vec![Failure::new(Code::InvalidArguments, text)])
    }
}

impl NotBegun {
    /// A component that no server would load.
    fn unloaded(text: String) -> Self {
        let failure = Failure::new(Code::PolicyNotReady, text);
        Self(vec![failure.hint("`pgsandbox policy check` finds everything that is wrong with a component")])
    }
}

/// The operations of this program.
fn operations() -> Operations {
    Operations(OPERATIONS.iter().map(|entry| (entry.spec.name, entry.spec.impact)).collect())
}

fn found(of: &ArgMatches) -> Result<Found, NotBegun> {
    let path = of.get_one::<PathBuf>("path").cloned().unwrap_or_default();
    Ok(subject::find(&path)?)
}

fn settings_of(of: &ArgMatches) -> Result<Option<Map<String, Value>>, NotBegun> {
    let given = of.get_one::<String>("settings");
    Ok(given.map(|given| subject::settings(given).map_err(|fault| format!("--settings: {fault}"))).transpose()?)
}

/// Loads the component of a command.
fn subject_of(of: &ArgMatches, found: Found) -> Result<Subject, NotBegun> {
    let settings = settings_of(of)?;
    let host = subject::host().map_err(NotBegun::unloaded)?;
    Subject::load(&host, found, settings).map_err(NotBegun::unloaded)
}

/// Reads the cases of a command: those it names, or those beside the component.
fn entries(of: &ArgMatches, found: &Found) -> Result<Vec<Entry>, NotBegun> {
    let Some(path) = of.get_one::<PathBuf>("cases").or(found.cases.as_ref()) else {
        return Err(NotBegun::from(
            "no cases are named; name them with `--cases`, or a folder that has a `cases.toml`".to_owned(),
        ));
    };
    cases::read(&subject::read_text(path, CASES_BYTES_MAX)?).map_err(|faults| {
        let failure =
            |fault: &cases::Fault| Failure::new(Code::InvalidArguments, format!("`{}`, {fault}", path.display()));
        NotBegun(faults.iter().map(failure).collect())
    })
}

/// Reads a text that a command names: a file, or `-` for standard input.
fn text(path: &str) -> Result<String, NotBegun> {
    if path != "-" {
        return Ok(subject::read_text(Path::new(path), CASES_BYTES_MAX)?);
    }
    let mut bytes = Vec::new();
    let bound = u64::try_from(CASES_BYTES_MAX).unwrap_or(u64::MAX).saturating_add(1);
    let read = std::io::stdin().take(bound).read_to_end(&mut bytes);
    read.map_err(|error| format!("cannot read standard input: {error}"))?;
    if bytes.len() > CASES_BYTES_MAX {
        return Err(NotBegun::from(format!("standard input has more than {CASES_BYTES_MAX} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| NotBegun::from("standard input is no UTF-8".to_owned()))
}

/// Says which component it was.
fn head(name: &str, version: &str, sha256: &str) -> String {
    format!("policy `{name}` {version}, sha256:{sha256}")
}
