//! Bounds how large a copy becomes, whatever its source has said of itself.
//!
//! The copy is measured while it grows and once more at its end: what is counted is what the server holds, rows that were
//! packed at the source, indexes and whatever the source's code writes included.

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::types::Type;

use super::job::CloneJob;
use super::known;
use crate::engine::postgres::admin::refused;
use crate::engine::postgres::server::{PostgresServer, ServerSource};
use crate::engine::{EngineError, SandboxSpec};
use crate::model::{Code, Failure, fault};

/// How often a copy that grows is measured.
const MEASURED_EVERY: Duration = Duration::from_millis(500);
/// What a copy leaves on the disks of the sandboxes' server and of the archive, for everybody else.
const DISK_BYTES_LEFT: u64 = 256 << 20;
/// How much larger an archive may be than the copy may become: rows take more room as text.
const ARCHIVE_FACTOR: u64 = 4;

/// Returns how many bytes the sandbox's database has; none as long as it is not there.
pub(super) async fn bytes(server: &Arc<PostgresServer>, spec: &SandboxSpec) -> Result<u64, EngineError> {
    let sql = "SELECT pg_catalog.pg_database_size(oid) FROM pg_catalog.pg_database WHERE datname = $1";
    let session = server.admin_session().await?;
    let row = session.query_typed_opt(sql, &[(&spec.names.database, Type::NAME)]).await;
    let row = row.map_err(refused("measure the copy", &server.settings().profile))?;
    Ok(row.and_then(|row| u64::try_from(row.get::<_, i64>(0)).ok()).unwrap_or_default())
}

/// Ends once the copy, which began with `empty` bytes, is larger than it may be, and says so.
pub(super) async fn outgrown(
    server: &Arc<PostgresServer>,
    spec: &SandboxSpec,
    job: &CloneJob,
    empty: u64,
) -> EngineError {
    loop {
        tokio::time::sleep(fault::every(MEASURED_EVERY)).await;
        if let Err(error) = check(server, spec, job, empty).await {
            return error;
        }
    }
}

/// Refuses a copy that is larger than it may be.
pub(super) async fn check(
    server: &Arc<PostgresServer>,
    spec: &SandboxSpec,
    job: &CloneJob,
    empty: u64,
) -> Result<(), EngineError> {
    if let ServerSource::Managed(settings) = &server.settings().source {
        let disks = [&settings.home, &server.settings().work_dir].map(|path| rustix::fs::statvfs(path).ok());
        if disks.into_iter().flatten().any(|disk| is_full(disk.f_bavail.saturating_mul(disk.f_frsize))) {
            let text =
                format!("the copy of {} would fill the sandboxes' disk; everything begun was removed", job.shown);
            return Err(known(Failure::new(Code::DiskFull, text).hint(HINT)));
        }
    }
    let Some(most) = job.options.bytes_max else { return Ok(()) };
    match bytes(server, spec).await?.saturating_sub(empty) {
        grown if grown > most => Err(known(over(job, grown, most))),
        _ => Ok(()),
    }
}

/// Returns the most bytes that an archive may have.
pub(super) fn archive_bytes_max(job: &CloneJob) -> u64 {
    job.options.bytes_max.map_or(u64::MAX, |most| most.saturating_mul(ARCHIVE_FACTOR))
}

/// Says that a copy is larger than the quota leaves.
pub(super) fn over(job: &CloneJob, bytes: u64, most: u64) -> Failure {
    let text = format!(
        "the copy of {} has grown to {bytes} bytes, and {most} are left of the quota of bytes; everything begun was removed",
        job.shown
    );
    Failure::new(Code::QuotaExceeded, text).hint(HINT)
}

const HINT: &str = "delete sandboxes that are not needed, or leave rows out: `schemaOnly`, `excludeTableData`";

fn is_full(free: u64) -> bool {
    free < DISK_BYTES_LEFT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_never_filled_to_its_end() {
        assert!(is_full(DISK_BYTES_LEFT - 1));
        assert!(!is_full(DISK_BYTES_LEFT));
    }
}
