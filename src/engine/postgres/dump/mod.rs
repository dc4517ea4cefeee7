//! Copies a database of another server into a new sandbox: `pg_dump` there, `pg_restore` here as the sandbox's owner.
//!
//! The source is only read: by one session at a time, read-only, with lock timeouts. Whatever the programs say with each
//! other passes through a [`relay`] of ours, so the source is the very server that was decided on, reached with our own TLS
//! and our own login: the programs know no password. The copy is masked before anybody has a password for it.
//! What the programs print is never shown or logged, as it holds pieces of the source.

mod archive;
mod collation;
mod copied;
mod failure;
mod guests;
mod identity;
mod job;
mod kept;
mod mask;
mod preflight;
mod program;
mod relay;
mod report;
mod size;
mod tools;
mod withheld;
mod workdir;

use std::fs::File;
use std::sync::Arc;

use tokio::time::sleep_until;

pub use job::{CloneJob, CloneOptions, ClonePlan, CloneReport, DemandedMask, Mask, MaskWith, TableName, TableRows};
pub use kept::{Compare, DumpJob, Dumped, InFile, RestoreJob, Restored, Wanted};

use self::archive::Filter;
use self::failure::Side;
use self::program::{Programs, Purpose, Restore, Running};
use self::relay::Relay;
use self::workdir::WorkDir;
use super::access;
use super::server::PostgresServer;
use super::steps::Door;
use crate::engine::{EngineError, SandboxSpec};
use crate::model::{Code, Failure};

pub(super) use kept::{examine, of_import, restore, settle, write};
pub(super) use preflight::preflight;
pub(super) use workdir::sweep;

/// The numbers of the two sockets in the private directory.
const SOURCE_SOCKET: u16 = 1;
const TARGET_SOCKET: u16 = 2;
/// The number that no socket has.
const NO_SOCKET: u16 = 0;

/// How often the archive is restored from at most: what comes before the masks, and what comes after.
const RESTORES_MAX: u32 = 2;

/// A copy that has begun: the source is being read, and what it says waits for the sandbox's database.
#[derive(Debug)]
pub(super) struct Begun {
    // In the order in which they end: the programs, their connections, their files.
    dump: Running,
    way: Way,
    source: Relay,
    target: Relay,
    programs: Programs,
    _work: WorkDir,
}

/// Which way a dump goes.
#[derive(Debug)]
enum Way {
    /// Into this restore, which does not connect before it is given something.
    Streams(Box<Running>),
    /// Into an archive, of which what is on a list is restored: something is left out or masked.
    Kept { archive: File, list: File },
}

/// Begins to read the source, while the sandbox's database is being made.
pub(super) async fn begin(server: &Arc<PostgresServer>, spec: &SandboxSpec, job: &CloneJob) -> Result<(), EngineError> {
    let begun = stoppable(job, begin_unbounded(server, spec, job)).await?;
    job.keep_begun(begun);
    Ok(())
}

async fn begin_unbounded(
    server: &Arc<PostgresServer>,
    spec: &SandboxSpec,
    job: &CloneJob,
) -> Result<Begun, EngineError> {
    let plan = job.plan()?;
    let user = tools::user(server)?;
    let work = WorkDir::make(&server.settings().work_dir, user.as_ref())?;
    let source = Relay::listen(&work, SOURCE_SOCKET, preflight::login(job, plan.source_major, plan.address), 1)?;
    let owner = access::owner_login(server, spec).await?;
    let target = Relay::listen(&work, TARGET_SOCKET, owner, RESTORES_MAX)?;
    let programs = Programs::prepare(&work, user, job, plan, spec)?;
    let streams = Filter::of(plan).is_empty() && plan.masks.is_empty();
    let files = if streams { None } else { Some((work.file("archive")?, work.file("list")?)) };
    work.give_away()?;
    let failed = |broken| failure::of(&broken, Some(&source), Some(&target), job);
    let purpose = if streams { Purpose::Stream } else { Purpose::Keep };
    let dump = programs.dump(purpose).await.map_err(failed)?;
    let way = match files {
        Some((archive, list)) => Way::Kept { archive, list },
        None => Way::Streams(Box::new(programs.restore_streamed().await.map_err(failed)?)),
    };
    Ok(Begun { dump, way, source, target, programs, _work: work })
}

/// Copies the source into the sandbox's database, masked. Stops when the job is cancelled or its time is over.
pub(super) async fn copy(server: &Arc<PostgresServer>, spec: &SandboxSpec, job: &CloneJob) -> Result<(), EngineError> {
    let copied = async {
        let empty = size::bytes(server, spec).await?;
        tokio::select! {
            biased;
            copied = copy_unbounded(server, spec, job) => copied?,
            over = size::outgrown(server, spec, job, empty) => return Err(over),
        }
        size::check(server, spec, job, empty).await?;
        if job.options.exclude_table_data.is_empty() {
            return Ok(());
        }
        let session = Door::of(server, spec).enter().await?;
        withheld::check(&session, &server.settings().profile, job).await
    };
    stoppable(job, copied).await
}

/// Rebuilds the copy's statistics and looks at what came of it.
pub(super) async fn check(server: &Arc<PostgresServer>, spec: &SandboxSpec, job: &CloneJob) -> Result<(), EngineError> {
    let looked = async {
        // Two go through the tables where two can get in.
        let door = Door::of(server, spec);
        let (sessions, bytes) = tokio::join!(door.enter_twice(), size::bytes(server, spec));
        report::check(sessions?, bytes?, &server.settings().profile, job).await
    };
    stoppable(job, looked).await
}

/// Does work that ends when the job is cancelled or its time is over: whatever it began ends with it.
async fn stoppable<T>(job: &CloneJob, work: impl Future<Output = Result<T, EngineError>>) -> Result<T, EngineError> {
    tokio::select! {
        biased;
        () = job.cancel.cancelled() => {
            Err(known(Failure::new(Code::Cancelled, "the request was cancelled; everything begun was removed")))
        }
        () = sleep_until(job.deadline) => Err(known(job.over())),
        done = work => done,
    }
}

async fn copy_unbounded(server: &Arc<PostgresServer>, spec: &SandboxSpec, job: &CloneJob) -> Result<(), EngineError> {
    let plan = job.plan()?;
    let begun = match job.take_begun() {
        Some(begun) => begun,
        None => begin_unbounded(server, spec, job).await?,
    };
    // The last one named ends first.
    let Begun { _work, programs, target, source, way, dump } = begun;
    let door = Door::of(server, spec);
    target.guard(door.clone());
    let (from, into) = (Some(&source), Some(&target));
    let (archive, list) = match way {
        Way::Streams(restore) => {
            door.open().await?;
            return failure::judge(programs.stream(dump, *restore, job).await, from, into, job);
        }
        Way::Kept { archive, list } => (archive, list),
    };
    failure::judge(programs.keep(dump, &archive, job).await, from, into, job)?;
    let listed = programs.list(&archive).await.map_err(|broken| failure::of(&broken, from, into, job))?;
    program::write(&list, &Filter::of(plan).apply(listed))?;
    let restore = |part| programs.restore(&archive, part);
    door.open().await?;
    if plan.masks.is_empty() {
        return failure::judge(restore(Restore::All).await, from, into, job);
    }
    failure::judge(restore(Restore::BeforeMasks).await, from, into, job)?;
    let session = door.enter().await?;
    mask::apply(&session, &server.settings().profile, job, plan).await?;
    drop(session);
    door.open().await?;
    failure::judge(restore(Restore::AfterMasks).await, from, into, job)?;
    mask::forget(server).await
}

fn known(failure: Failure) -> EngineError {
    EngineError::Known(Box::new(failure))
}

/// Makes what the system says of a file or program of ours into an error.
fn system(action: &'static str) -> impl Fn(std::io::Error) -> EngineError {
    move |error| {
        let code = if error.kind() == std::io::ErrorKind::StorageFull { Code::DiskFull } else { Code::Internal };
        let failure = Failure::new(code, format!("could not {action} for the copy"));
        known(
            failure.hint("see that the disk of the state directory is not full or read-only").audit(error.to_string()),
        )
    }
}

/// Returns which side of the copy a fault is on, in words.
const fn side_name(side: Side) -> &'static str {
    match side {
        Side::Source => "the source",
        Side::Target => "the sandbox's server",
    }
}
