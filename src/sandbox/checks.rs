//! What `doctor` looks at in a profile's metadata beside the sandboxes themselves.

use super::Profile;
use crate::model::{Check, CheckStatus, counted};
use crate::store::Drift;

/// Sandboxes that have been past their time for longer are waiting for somebody who removes them.
const EXPIRED_SECONDS_MAX: i64 = 300;
/// Differences that are told; the rest is counted.
const DRIFT_TOLD_MAX: usize = 10;

/// Checks that the metadata schema is as the migrations make it.
pub(super) async fn drift(profile: &Profile) -> Check {
    let name = "metadata.shape";
    match profile.store.drift().await {
        Err(error) => super::upkeep::failed(name, error.into()),
        Ok(drift) if drift == Drift::default() => {
            check(name, CheckStatus::Ok, "as this program's migrations make it", None)
        }
        Ok(Drift { strange, missing }) => {
            let missing = missing.iter().map(|line| format!("missing: {line}"));
            let found: Vec<String> = missing.chain(strange.iter().map(|line| format!("not ours: {line}"))).collect();
            let mut detail = found.get(..DRIFT_TOLD_MAX).unwrap_or(&found).join("; ");
            if found.len() > DRIFT_TOLD_MAX {
                detail.push_str(&format!("; and {} more", found.len() - DRIFT_TOLD_MAX));
            }
            let remedy = "somebody changed schema `pgsandbox` by hand: put it back as it was, and keep what is yours in another schema";
            check(name, CheckStatus::Warn, &detail, Some(remedy))
        }
    }
}

/// Checks that what is past its time is being removed.
pub(super) async fn expired(profile: &Profile) -> Check {
    let name = "sandboxes.expired";
    match profile.store.overdue().await {
        Err(error) => super::upkeep::failed(name, error.into()),
        Ok((count, seconds)) => {
            let detail = match count {
                0 => "none is past its time".to_owned(),
                count => {
                    let count = counted(usize::try_from(count).unwrap_or_default(), "sandbox is", "sandboxes are");
                    format!("{count} past their time, the first for {seconds} s")
                }
            };
            let remedy = "`pgsandbox cleanup` removes them, and so does any `pgsandbox mcp` that runs";
            let is_late = seconds > EXPIRED_SECONDS_MAX;
            let status = if is_late { CheckStatus::Warn } else { CheckStatus::Ok };
            check(name, status, &detail, is_late.then_some(remedy))
        }
    }
}

fn check(name: &str, status: CheckStatus, detail: &str, remedy: Option<&str>) -> Check {
    Check { name: name.to_owned(), status, detail: detail.to_owned(), remedy: remedy.map(str::to_owned) }
}
