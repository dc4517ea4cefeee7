//! What a server holds and its metadata does not, and the reverse: found, told, and never touched here.

use std::collections::BTreeSet;

use super::checks::{failed, joined};
use super::remove::{PAGE, PAGES_MAX};
use super::{Core, Profile, Sandbox};
use crate::engine::Found;
use crate::model::{Check, CheckStatus, Failure, SandboxKind, settled_role};
use crate::store::{After, Damage, ListQuery};

/// Attempts after which a removal is shown to people.
const STUCK_AFTER_ATTEMPTS: i32 = 3;
/// Stuck removals shown.
const STUCK_SHOWN_MAX: i64 = 50;
/// What to do about things without a row. Records are looked for in one database only, and another's sandboxes must not
/// be dropped for it.
const REMEDY_UNTRACKED: &str = "what has no row may belong to another installation with this prefix, whose records are in another database of the \
     server: it does if `SELECT database_name FROM pgsandbox.sandboxes` in some other database names it, and then give \
     each installation a `databasePrefix` of its own; otherwise its row was removed by hand or it was not made by this \
     program: look at it, and drop it yourself";

/// What metadata and server disagree on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Orphans {
    /// Bear the profile's prefix and have no row: reported, never touched.
    pub untracked: Vec<Found>,
    /// Are ready by their row, and their database is not there: an owner may drop its own.
    pub missing: Vec<Sandbox>,
    /// Could not be removed several times, with the last reason.
    pub stuck: Vec<(Sandbox, String)>,
    /// Are half made or half removed, and nobody works on them: whoever did was killed, or failed and lets it rest.
    pub waiting: Vec<Sandbox>,
    /// Have a row that this program does not leave behind: nothing is done with them.
    pub damaged: Vec<Damage>,
}

impl Core {
    /// Compares metadata and server: changes nothing, and opens the profile.
    ///
    /// # Errors
    /// `unknown_profile`, or it cannot be looked at.
    pub async fn orphans(&self, profile: &str) -> Result<Orphans, Failure> {
        let profile = self.profile(profile)?;
        self.open(&profile).await?;
        compare(&profile).await
    }
}

async fn compare(profile: &Profile) -> Result<Orphans, Failure> {
    let found = profile.engine.inventory(&profile.settings().prefix).await.map_err(Failure::from)?;
    let names: Vec<String> = found.iter().map(noted_name).collect();
    // Of any profile: a prefix may begin with another's.
    let tracked = profile.store.tracked(&names).await?;
    let there: BTreeSet<&String> = names.iter().collect();
    let mut missing = Vec::new();
    for kind in [SandboxKind::Sandbox, SandboxKind::Template] {
        let mut query = ListQuery { include_expired: true, kind, limit: PAGE, ..ListQuery::default() };
        for _ in 0..PAGES_MAX {
            let page = profile.store.list(&query).await?;
            let Some(last) = page.last() else { break };
            query.after = Some(After { time: last.created_at, id: last.id });
            missing
                .extend(page.into_iter().filter(|sandbox| {
                    sandbox.state == super::State::Ready && !there.contains(&sandbox.names.database)
                }));
        }
    }
    let stuck = profile.store.stuck(STUCK_AFTER_ATTEMPTS, STUCK_SHOWN_MAX).await?;
    let waiting = profile.store.waiting(STUCK_AFTER_ATTEMPTS, STUCK_SHOWN_MAX).await?;
    let untracked = found.into_iter().filter(|found| !tracked.contains(&noted_name(found))).collect();
    let damaged = profile.store.damage().await?;
    Ok(Orphans { untracked, missing, stuck, waiting, damaged })
}

/// Checks that metadata and server agree.
pub(super) async fn consistency(profile: &Profile) -> Check {
    let name = "sandboxes.consistent".to_owned();
    match compare(profile).await {
        Err(failure) => failed(&name, failure),
        Ok(orphans) if orphans == Orphans::default() => {
            let detail = "metadata and server agree".to_owned();
            Check { name, status: CheckStatus::Ok, detail, remedy: None }
        }
        Ok(Orphans { untracked, missing, stuck, waiting, damaged }) => {
            let remedies = [
                (!untracked.is_empty()).then_some(REMEDY_UNTRACKED),
                (!missing.is_empty()).then_some("delete sandboxes whose database is gone"),
                (!damaged.is_empty()).then_some(
                    "put rows that were changed right in `pgsandbox.sandboxes`; until then nothing is done with them",
                ),
                (!waiting.is_empty()).then_some(
                    "what waits is removed by a server that runs, by the next command that uses the profile, or by deleting it",
                ),
                (!stuck.is_empty()).then_some("see to what cannot be removed; it is tried again"),
            ];
            let remedy = remedies.into_iter().flatten().collect::<Vec<_>>().join("; ");
            let shown: Vec<String> = damaged
                .iter()
                .map(|row| format!("the row of sandbox {} was changed by another: {}", row.id, row.fault))
                .chain(untracked.iter().map(|found| format!("{} `{}` has no row", found.kind, found.name)))
                .chain(missing.iter().map(|sandbox| format!("the database of `{}` is gone", sandbox.names.database)))
                .chain(stuck.iter().map(|(s, why)| format!("`{}` cannot be removed: {why}", s.names.database)))
                .chain(
                    waiting
                        .iter()
                        .map(|s| format!("`{}` waits to be removed, its {} broke off", s.names.database, half_way(s))),
                )
                .collect();
            Check { name, status: CheckStatus::Warn, detail: joined(&shown), remedy: Some(remedy) }
        }
    }
}

/// Returns what broke off.
fn half_way(sandbox: &Sandbox) -> &'static str {
    if sandbox.state == super::State::Creating { "making" } else { "removal" }
}

/// Returns the name under which what was found is noted, if it is ours: a role has others while its database is filled.
pub(super) fn noted_name(found: &Found) -> String {
    let settled = if found.kind == "role" { settled_role(&found.name) } else { None };
    settled.unwrap_or_else(|| found.name.clone())
}
