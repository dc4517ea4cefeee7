//! What a server has left for all of its sandboxes: disk, and memory that its sessions share.
//!
//! What one of them could use up for everybody is refused, or freed, before the server stops for everybody.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::upkeep::Steward;
use super::{Core, Profile};
use crate::engine::{DISK_FULL_HINT, STARVED, Standing};
use crate::model::{Code, Failure, SandboxKind, fault};
use crate::store::{Find, State};

/// Where less than so much of the sandboxes' disk is free, nothing is written to it but what frees some.
const DISK_BYTES_MIN: u64 = 64 << 20;
/// What to do where others have taken what all share.
const STARVED_HINT: &str = "sessions of theirs were ended to make room; call again";
/// How often a managed server's disk is looked at, and its connections.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long it is waited for whose the sandboxes are, where connections are few; else it is who was known before.
const OWNERS_WAIT: Duration = Duration::from_secs(1);
/// Where less is free, it is looked at more often: one sandbox may fill that in seconds.
const DISK_BYTES_NEAR: u64 = 1 << 30;
/// So often; and the connections, where sessions were just ended for them.
const LOOK_CLOSELY_EVERY: Duration = Duration::from_millis(100);

/// Returns when the disk of the profile's sandboxes is nearly full, if it was not before or somebody was let in since: `was_full`
/// says which and is kept.
async fn filled_up(profile: &Profile, was_full: &mut bool) {
    loop {
        let is_near = profile.engine.disk_left().is_some_and(|left| left < DISK_BYTES_NEAR);
        tokio::time::sleep(if is_near { LOOK_CLOSELY_EVERY } else { fault::every(LOOK_EVERY) }).await;
        let is_full = refuse_without_room(profile).is_err();
        let let_in = profile.take_let_in();
        let was_known = std::mem::replace(was_full, is_full);
        if is_full && (let_in || !was_known) {
            return;
        }
    }
}

/// Returns whether the profile's server runs, if that is to be told without starting it.
pub(super) async fn runs(profile: &Profile) -> bool {
    !profile.managed() || matches!(profile.standing().await, Ok(Standing::Runs))
}

/// Makes room for programs that cannot tell themselves who has taken what all share, for ever. Who watches has to be there
/// before anybody takes it: from when the server runs, also in a program that had no call yet. Neither is the server started
/// for it nor the profile opened.
pub(super) async fn relieves_others(profile: &Profile) {
    loop {
        profile.engine.relieve_others().await;
        let parted = part_crowd(profile).await;
        tokio::time::sleep(if parted { LOOK_CLOSELY_EVERY } else { fault::every(LOOK_EVERY) }).await;
    }
}

/// Sees to it that no owner has every connection, for ever, for a program that makes one call: not before it has taken long,
/// as it does where it gets none.
pub(super) async fn parts_crowds(profile: &Profile) {
    let mut parted = false;
    loop {
        tokio::time::sleep(if parted { LOOK_CLOSELY_EVERY } else { fault::every(LOOK_EVERY) }).await;
        parted = part_crowd(profile).await;
    }
}

/// Ends sessions of an owner who has more than its share, where few connections are left. Returns whether any were.
async fn part_crowd(profile: &Profile) -> bool {
    if !profile.engine.is_crowded().await {
        return false;
    }
    // Whoever comes while there are none left is not known yet.
    let owners = async {
        if !profile.is_open().await {
            return None;
        }
        profile.store.owners().await.ok()
    };
    let owners = tokio::time::timeout(fault::within(OWNERS_WAIT), owners).await.ok().flatten();
    profile.engine.part_crowd(owners).await
}

/// Refuses what would fill the disk of the sandboxes, as long as it is nearly full: it is looked at for each call.
///
/// Whatever comes as the owner role is refused, also a query: that may call a function that writes, and what it sorts beyond
/// its memory is written as well. A read-only call goes on: it comes as the reader, which can write to no table.
pub(super) fn refuse_without_room(profile: &Profile) -> Result<(), Failure> {
    let Some(left) = profile.engine.disk_left().filter(|left| *left < DISK_BYTES_MIN) else { return Ok(()) };
    let text = format!(
        "{left} bytes are free on the disk of profile `{}`'s sandboxes: nothing is written below {DISK_BYTES_MIN}",
        profile.name()
    );
    Err(Failure::new(Code::DiskFull, text).hint(DISK_FULL_HINT))
}

impl Core {
    /// Looks at the disk until the program ends, and keeps all out of it when it fills up: beside the rounds of upkeep, which may
    /// wait for somebody.
    pub(super) async fn hold_the_disk_in_time(self, profile: Arc<Profile>, steward: Steward) {
        let stopping = &self.inner().stopping;
        let mut was_full = false;
        while stopping.run_until_cancelled(filled_up(&profile, &mut was_full)).await.is_some() {
            if !profile.is_open().await && !runs(&profile).await {
                continue;
            }
            let held = async {
                self.open(&profile).await?;
                self.hold_the_disk(&profile, &steward).await
            };
            match held.await {
                // Where there was room in between, it is looked at anew.
                Ok(is_full) => was_full = is_full,
                Err(failure) => {
                    tracing::warn!(profile = profile.name(), %failure, audit = ?failure.audit, "not all could be kept out of the disk");
                }
            }
            // There may be what makes room.
            self.inner().opened.notify_waiters();
        }
    }

    /// Keeps all out of a disk that is nearly full, and only then gives up what was kept back of it, or that would be filled as
    /// well. Returns whether it was so all the while.
    pub(super) async fn hold_the_disk(&self, profile: &Arc<Profile>, steward: &Steward) -> Result<bool, Failure> {
        if refuse_without_room(profile).is_ok() {
            return Ok(false);
        }
        let settled = self.settle_logins(profile, steward).await;
        if profile.engine.give_up_ballast() {
            tracing::warn!(profile = profile.name(), "the disk is full: what was kept back of it is given up");
        }
        let settled = match settled {
            Ok(settled) if settled.failed == 0 && settled.disk_full => settled,
            // There was no room even to note it, or there is again.
            Ok(_) | Err(_) => self.settle_logins(profile, steward).await?,
        };
        Ok(settled.disk_full)
    }

    /// Sees that it can be told who takes what all share, and lets those in again who were kept out for it.
    pub(super) async fn keep_watch(&self, profile: &Profile) -> Result<(), Failure> {
        let owners = if profile.managed() { profile.store.owners().await? } else { HashMap::new() };
        for database in profile.engine.keep_watch(owners).await {
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
        Ok(())
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
