//! What `doctor` looks at in each profile: its server, its metadata, and whether both and the keys go together.

use super::orphans::consistency;
use super::remove::{PAGE, PAGES_MAX};
use super::twins::Twins;
use super::{Core, Profile};
use crate::model::{Check, CheckStatus, Code, Failure, Timestamp, counted};
use crate::store::{After, Drift, ListQuery};

/// Sandboxes that have been past their time for longer are waiting for somebody who removes them.
const EXPIRED_SECONDS_MAX: i64 = 300;
/// Differences that are told; the rest is counted.
const DRIFT_TOLD_MAX: usize = 10;
/// Clocks further apart are not merely inexact.
const CLOCKS_APART_SECONDS_MAX: u64 = 60;
/// What `doctor` tells of one kind; the rest is counted.
const TOLD_MAX: usize = 20;

impl Core {
    /// Checks every profile for `doctor`: looks, and starts nothing. Where a server answers, it is compared with its
    /// metadata, and both with the keys.
    pub async fn health(&self) -> Vec<(String, Vec<Check>)> {
        let mut all = Vec::with_capacity(self.profiles().len());
        let mut twins = Twins::default();
        for profile in self.profiles() {
            let mut checks = profile.engine.health().await;
            let answers = |check: &Check| matches!(check.status, CheckStatus::Ok | CheckStatus::Warn);
            if checks.iter().all(answers) {
                checks.extend(twins.meet(profile).await);
            }
            if profile.is_open().await || checks.iter().all(answers) {
                match profile.store.look().await {
                    Ok(true) => {
                        checks.push(consistency(profile).await);
                        checks.push(self.usable(profile).await);
                        checks.push(clocks_agree(profile).await);
                        checks.push(expired(profile).await);
                        checks.push(drift(profile).await);
                    }
                    // Nothing was made on this server yet, or it is an earlier program's: the first use sees to it.
                    Ok(false) => {}
                    Err(error) => checks.push(failed("metadata.schema", error.into())),
                }
            }
            all.push((profile.name().to_owned(), checks));
        }
        all
    }

    /// Checks that each sandbox is of an engine that is there, and that its passwords open: the ring has their keys, and
    /// they are its own.
    async fn usable(&self, profile: &Profile) -> Check {
        let name = "sandboxes.usable";
        let mut query = ListQuery { include_expired: true, limit: PAGE, ..ListQuery::default() };
        let (mut count, mut faults) = (0, Vec::new());
        for _ in 0..PAGES_MAX {
            let page = match profile.store.list(&query).await {
                Ok(page) => page,
                Err(error) => return failed(name, error.into()),
            };
            let Some(last) = page.last() else { break };
            query.after = Some(After { time: last.created_at, id: last.id });
            for sandbox in &page {
                count += 1;
                let fault = match profile.check_engine(sandbox) {
                    Ok(()) => self.spec(profile, sandbox).await.err(),
                    Err(failure) => Some(failure),
                };
                // One that was removed since the page was read is none.
                if let Some(failure) = fault.filter(|failure| failure.code != Code::DatabaseNotFound) {
                    faults.push(format!("sandbox {}: {}", sandbox.id, failure.message));
                }
            }
        }
        if faults.is_empty() {
            let detail = format!("the passwords of {count} sandboxes open");
            return Check { name: name.to_owned(), status: CheckStatus::Ok, detail, remedy: None };
        }
        let remedy = "bring back the key file `master.keys` that they were sealed with; what was changed in the metadata \
                      cannot be used any more, only deleted";
        let detail = joined(&faults);
        Check { name: name.to_owned(), status: CheckStatus::Fail, detail, remedy: Some(remedy.to_owned()) }
    }
}

async fn clocks_agree(profile: &Profile) -> Check {
    let name = "clock.agrees".to_owned();
    match profile.store.clock().await {
        Err(error) => failed(&name, error.into()),
        Ok(server) => {
            let apart_seconds = server.ms_since(Timestamp::now()).unsigned_abs() / 1000;
            let agree = apart_seconds <= CLOCKS_APART_SECONDS_MAX;
            let status = if agree { CheckStatus::Ok } else { CheckStatus::Warn };
            let detail = format!("the server's clock and this machine's are {apart_seconds} s apart");
            let remedy = "set both clocks right: a sandbox's time is over by the server's";
            Check { name, status, detail, remedy: (!agree).then(|| remedy.to_owned()) }
        }
    }
}

/// Checks that the metadata schema is as the migrations make it.
pub(super) async fn drift(profile: &Profile) -> Check {
    let name = "metadata.shape";
    match profile.store.drift().await {
        Err(error) => failed(name, error.into()),
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
        Err(error) => failed(name, error.into()),
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

/// Tells what was found, up to a bound.
pub(super) fn joined(found: &[String]) -> String {
    let told = found.get(..TOLD_MAX).unwrap_or(found).join("; ");
    match found.len().saturating_sub(TOLD_MAX) {
        0 => told,
        more => format!("{told}; and {more} more"),
    }
}

pub(super) fn failed(name: &str, failure: Failure) -> Check {
    Check { name: name.to_owned(), status: CheckStatus::Fail, detail: failure.message, remedy: failure.hint }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_can_be_read_is_counted() {
        let told = |count: usize| joined(&(0..count).map(|n| format!("n{n}")).collect::<Vec<_>>());
        assert_eq!(told(0), "");
        for count in [TOLD_MAX - 1, TOLD_MAX] {
            assert!(told(count).ends_with(&format!("; n{}", count - 1)), "{}", told(count));
        }
        assert!(told(TOLD_MAX + 1).ends_with("; n19; and 1 more"), "{}", told(TOLD_MAX + 1));
    }
}
