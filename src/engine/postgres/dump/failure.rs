//! Says why a copy failed: by what the servers reported and how the programs ended, never by what they printed.

use super::job::CloneJob;
use super::program::{self, Broken, Entry, Program};
use super::relay::{Lost, Relay, Reported};
use super::{known, preflight, side_name};
use crate::engine::postgres::wire::WireError;
use crate::engine::{EngineError, server_condition};
use crate::model::{Code, Failure};

/// Where a fault lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Source,
    Target,
}

/// Passes a success on, and words a failure.
pub(super) fn judge(
    outcome: Result<(), Broken>,
    source: Option<&Relay>,
    target: Option<&Relay>,
    job: &CloneJob,
) -> Result<(), EngineError> {
    outcome.map_err(|broken| of(&broken, source, target, job))
}

/// Words a failure: what a server reported comes before how a program ended for it.
pub(super) fn of(broken: &Broken, source: Option<&Relay>, target: Option<&Relay>, job: &CloneJob) -> EngineError {
    let entry = match broken {
        Broken::Failed { entry, .. } => entry.as_ref(),
        Broken::Start(..) | Broken::Move(_) | Broken::ListTooLong | Broken::TooLarge(_) => None,
    };
    let failure = if let Some(reported) = source.and_then(Relay::error) {
        of_source(&reported, job)
    } else if let Some(lost) = source.and_then(Relay::lost) {
        of_connection(Side::Source, &lost, job)
    } else if let Some(reported) = target.and_then(Relay::error) {
        of_target(&reported, entry, job)
    } else if let Some(lost) = target.and_then(Relay::lost) {
        of_connection(Side::Target, &lost, job)
    } else {
        of_program(broken, job)
    };
    known(failure)
}

fn of_program(broken: &Broken, job: &CloneJob) -> Failure {
    let shown = &job.shown;
    match broken {
        Broken::Start(program, error) => {
            Failure::new(Code::LocalPostgresUnavailable, format!("`{}` could not be started", program.name()))
                .hint("see that the client programs of Postgres are installed and may be run by the server's user")
                .audit(error.to_string())
        }
        Broken::Move(error) if error.kind() == std::io::ErrorKind::StorageFull => {
            Failure::new(Code::DiskFull, format!("the disk is full that the archive of {shown} is kept on meanwhile"))
                .hint("free space on the disk of the state directory, or leave rows out")
        }
        Broken::Move(error) if error.kind() == std::io::ErrorKind::QuotaExceeded => {
            let most = job.options.bytes_max.unwrap_or_default();
            super::size::over(job, super::size::archive_bytes_max(job), most)
        }
        Broken::Move(error) => {
            Failure::new(Code::Internal, format!("the copy of {shown} broke off")).audit(error.to_string())
        }
        Broken::ListTooLong => {
            Failure::new(Code::RestoreIncompatible, format!("{shown} has more objects than can be copied"))
        }
        Broken::TooLarge(most) => Failure::new(
            Code::QuotaExceeded,
            format!("the dump of {shown} is larger than the {most} bytes that there is room for"),
        )
        .hint("remove exported templates that are not needed; `list_templates` shows them"),
        Broken::Failed { program, status, entry } => {
            let verb = match program {
                Program::Dump => "could not dump",
                Program::Restore => "could not restore",
            };
            let at = entry.as_ref().map(at).unwrap_or_default();
            let text = format!("`{}` {verb} {shown}{at}: it ended with {}", program.name(), program::ended(*status));
            Failure::new(Code::RestoreIncompatible, text)
                .hint("run the same program by hand to see its words; they are not shown here, as they hold pieces of the source")
        }
    }
}

fn at(entry: &Entry) -> String {
    format!(" at {} `{}`", entry.class, entry.name)
}

/// Words what the source refused.
fn of_source(reported: &Reported, job: &CloneJob) -> Failure {
    let (shown, state) = (&job.shown, reported.sqlstate.as_str());
    let user = &job.source.credentials.user;
    let object = object(reported);
    let failure = match state {
        "42501" => Failure::new(Code::PermissionDenied, format!("role `{user}` of {shown} may not read all of it{object}"))
            .hint("grant it SELECT on all tables, sequences and large objects and USAGE on their schemas, or use another role"),
        // lock_not_available, and what `--lock-wait-timeout` ends by
        "55P03" | "57014" => Failure::new(Code::LockTimeout, format!("{shown} did not give a lock in time{object}"))
            .hint("somebody changes a table there; call again later"),
        // serialization_failure: what a standby ends readers by whose rows its primary has removed
        "40001" => Failure::new(Code::Busy, format!("{shown} broke off the dump for a conflict with its primary"))
            .hint("call again later, clone less, or raise `max_standby_streaming_delay` there"),
        "22021" | "22P05" | "22P02" => Failure::new(
            Code::RestoreIncompatible,
            format!("{shown} holds text that is not valid in its encoding{object}"),
        )
        .hint("leave the table's rows out by `excludeTableData`, or correct them at the source").naming(&["excludeTableData"]),
        state => {
            let code = server_condition(state).map_or(Code::RestoreIncompatible, |(code, _)| code);
            Failure::new(code, format!("{shown} could not be read (SQLSTATE {state}){object}"))
                .hint("see the source server's log; nothing was changed there")
        }
    };
    with_state(failure, state)
}

/// Words what the sandbox's server refused.
fn of_target(reported: &Reported, entry: Option<&Entry>, job: &CloneJob) -> Failure {
    let (shown, state) = (&job.shown, reported.sqlstate.as_str());
    let what = match entry {
        Some(entry) => format!("{} `{}`", entry.class, entry.name),
        None => "an object".to_owned(),
    };
    let cannot = |why: &str| {
        Failure::new(
            Code::RestoreIncompatible,
            format!("{what} of {shown} cannot be restored: {why} (SQLSTATE {state})"),
        )
    };
    if let Some((code, hint)) = server_condition(state) {
        let text = format!("{what} of {shown} was not restored (SQLSTATE {state}); everything begun was removed");
        return with_state(Failure::new(code, text).hint(hint), state);
    }
    let masked = job.plan().is_ok_and(|plan| !plan.masks.is_empty());
    let failure = match state {
        "42501" => cannot("only a superuser may make it, which the sandbox's owner is not")
            .hint("leave its extension out by `excludeSourceExtensions`, or have the source's owner drop the object").naming(&["excludeSourceExtensions"]),
        "42704" | "42883" | "42P01" | "3F000" | "42703" => cannot("it needs something that is not there")
            .hint("a function that relies on `search_path` must name its tables and functions with their schemas; what an \
                   excluded extension makes is not there either"),
        "22021" | "22P05" => cannot("its text cannot be written in UTF-8")
            .hint("leave the table's rows out by `excludeTableData`, or correct them at the source").naming(&["excludeTableData"]),
        state if state.starts_with("23") && masked => cannot("masked values break a constraint")
            .hint("mask both sides of a foreign key, by `hash` or `fake` alike: equal values stay equal then; `constant` and `null` make all equal, \
                   which a key cannot be"),
        state if state.starts_with("23") => cannot("the rows break a constraint")
            .hint(if job.options.exclude_table_data.is_empty() {
                "the source's own rows do not fit its constraints; leave them out by `excludeTableData`, or correct them there"
            } else {
                "rows that refer to what `excludeTableData` leaves out must be left out by it as well; else the source's own rows do not fit its constraints"
            }).naming(&["excludeTableData"]),
        _ => cannot("the server refuses it").hint("leave it out, or make it fit the sandbox's server"),
    };
    with_state(failure, state)
}

/// Words the loss of a connection.
pub(super) fn of_connection(side: Side, lost: &Lost, job: &CloneJob) -> Failure {
    let whose = match side {
        Side::Source => job.shown.clone(),
        Side::Target => side_name(side).to_owned(),
    };
    let text = match lost {
        Lost::Login(error) => return of_login(side, error, job),
        Lost::Silent(within) => format!("{whose} did not open a session within {} s", within.as_secs()),
        Lost::Closed => format!("the connection to {whose} was lost while copying"),
        Lost::Unguarded(detail) => {
            let text = "others could not be kept out of the copy; everything begun was removed";
            return Failure::new(Code::Internal, text).audit(detail.clone());
        }
    };
    Failure::new(Code::PostgresConnectionFailed, text)
        .hint("see that the server runs and is reached as configured; everything begun was removed")
}

/// Words a refused login, which is ours: the programs have no part in it.
fn of_login(side: Side, error: &WireError, job: &CloneJob) -> Failure {
    match side {
        Side::Source => preflight::of_wire(error, job, "open a session"),
        Side::Target => {
            let text = format!("{} does not accept the sandbox's owner: {error}", side_name(side));
            Failure::new(Failure::from(error.clone()).code, text)
                .hint("see `pgsandbox doctor`; everything begun was removed")
        }
    }
}

fn object(reported: &Reported) -> String {
    match (&reported.schema, &reported.table, &reported.constraint, &reported.copied) {
        (Some(schema), Some(table), ..) => format!(": table `{schema}.{table}`"),
        (_, Some(table), ..) => format!(": table `{table}`"),
        (_, _, Some(constraint), _) => format!(": constraint `{constraint}`"),
        (.., Some(copied)) => format!(": table `{copied}`"),
        (_, None, None, None) => String::new(),
    }
}

fn with_state(mut failure: Failure, state: &str) -> Failure {
    if !state.is_empty() {
        failure.detail_mut().sqlstate = Some(state.to_owned());
    }
    failure
}
