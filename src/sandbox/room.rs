//! What a server has left for all of its sandboxes: disk, and memory that its sessions share.
//!
//! What one of them could use up for everybody is refused, or freed, before the server stops for everybody.

use std::sync::Arc;
use std::time::Duration;

use super::upkeep::Steward;
use super::{Core, Profile};
use crate::engine::{DISK_FULL_HINT, STARVED};
use crate::model::{Code, Failure, SandboxKind, fault};
use crate::store::{Find, State};

/// Where less than so much of the sandboxes' disk is free, nothing is written to it but what frees some.
const DISK_BYTES_MIN: u64 = 64 << 20;
/// What to do where others have taken what all share.
const STARVED_HINT: &str = "sessions of theirs were ended to make room; call again";
/// How often a managed server's disk is looked at: one sandbox may fill what is left of it in seconds.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Returns when the disk of the profile's sandboxes is nearly full, if it was not before: `was_full` says which and is kept.
pub(super) async fn filled_up(profile: &Profile, was_full: &mut bool) {
    loop {
        let is_full = refuse_without_room(profile).is_err();
        if is_full && !std::mem::replace(was_full, is_full) {
            return;
        }
        *was_full = is_full;
        tokio::time::sleep(fault::every(LOOK_EVERY)).await;
    }
}

/// Makes room for programs that cannot tell themselves who has taken what all share, for ever. Who watches has to be there
/// before anybody takes it: from when the server runs, also in a program that had no call yet. Neither is the server started
/// for it nor the profile opened.
pub(super) async fn relieves_others(profile: &Profile) {
    loop {
        profile.engine.relieve_others().await;
        tokio::time::sleep(fault::every(LOOK_EVERY)).await;
    }
}

/// Refuses what would fill the disk of the sandboxes, as long as it is nearly full.
pub(super) fn refuse_without_room(profile: &Profile) -> Result<(), Failure> {
    let Some(left) = profile.engine.disk_left().filter(|left| *left < DISK_BYTES_MIN) else { return Ok(()) };
    let text = format!(
        "{left} bytes are free on the disk of profile `{}`'s sandboxes: nothing is written below {DISK_BYTES_MIN}",
        profile.name()
    );
    Err(Failure::new(Code::DiskFull, text).hint(DISK_FULL_HINT))
}

impl Core {
    /// Keeps all out of a disk that is nearly full, and only then gives up what was kept back of it, or that would be filled as
    /// well.
    pub(super) async fn hold_the_disk(&self, profile: &Arc<Profile>, steward: &Steward) -> Result<(), Failure> {
        if refuse_without_room(profile).is_ok() {
            return Ok(());
        }
        let settled = self.settle_logins(profile, steward).await;
        if profile.engine.give_up_ballast() {
            tracing::warn!(profile = profile.name(), "the disk is full: what was kept back of it is given up");
        }
        match settled {
            Ok(0) => Ok(()),
            // There was no room even to note it.
            Ok(_) | Err(_) => self.settle_logins(profile, steward).await.map(drop),
        }
    }

    /// Sees that it can be told who takes what all share, and lets those in again who were kept out for it.
    pub(super) async fn keep_watch(&self, profile: &Profile) {
        for database in profile.engine.keep_watch().await {
            let let_in = async {
                match profile.store.find(&Find::Name(database.clone())).await? {
                    // Nobody logs in to a template.
                    Some(sandbox) if sandbox.state == State::Ready && sandbox.kind == SandboxKind::Sandbox => {
                        let spec = self.spec(profile, &sandbox).await?;
                        profile.engine.let_in(&spec).await.map_err(Failure::from)
                    }
                    Some(_) | None => Ok(()),
                }
            };
            match let_in.await {
                Ok(()) => tracing::info!(sandbox = database, "who was kept out is let in again"),
                Err(failure) => {
                    tracing::warn!(sandbox = database, %failure, "who was kept out is let in by the next call")
                }
            }
        }
    }

    /// Says that a statement found no room because others have taken it, where that is so and can be told, and makes room. What
    /// a sandbox has taken itself stays its own doing.
    pub async fn blame_others(&self, profile: &str, database: &str, failure: &mut Failure) {
        if failure.code != Code::SqlFailed || sqlstate(failure) != Some(STARVED) {
            return;
        }
        let Ok(profile) = self.profile(profile) else { return };
        if !profile.engine.relieve_of_others(database).await {
            return;
        }
        failure.code = Code::Busy;
        failure.message =
            "other sandboxes had taken what the server has for locks; the statement was not carried out".to_owned();
        failure.hint = Some(STARVED_HINT.to_owned());
        failure.retryable = true;
    }

    /// Makes room on managed servers after a failure that says that one had none left for anybody.
    pub async fn relieve_after(&self, failure: &Failure) {
        if sqlstate(failure) != Some(STARVED) {
            return;
        }
        for profile in self.profiles().iter().filter(|profile| profile.managed()) {
            if profile.is_open().await {
                profile.engine.relieve().await;
            }
        }
    }
}

fn sqlstate(failure: &Failure) -> Option<&str> {
    failure.detail.as_ref()?.sqlstate.as_deref()
}
