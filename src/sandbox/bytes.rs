//! What the byte quota means for sandboxes in use: over it nothing is written, and direct logins are taken away. The same
//! becomes of all while the disk of a managed server is nearly full: a server without room for its log stops for everybody.
//!
//! The limits are the policies', as of the last decided write; the sizes are as of the last measuring. Only the owner
//! role is ever kept out altogether: the reader can write nothing by itself, and its direct logins, which can call what the
//! owner has made to write, go on a managed server. New sandboxes over the quota are refused where they are reserved.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::time::Instant;

use super::access::{PAUSE_MAX, PAUSE_MIN};
use super::core::removal_spec;
use super::remove::{PAGE, PAGES_MAX, REMOVALS_AT_ONCE};
use super::room::refuse_without_room;
use super::upkeep::Steward;
use super::{Core, Profile, Sandbox, State, not_found};
use crate::admission::{Grant, SystemReason};
use crate::engine::EngineError;
use crate::model::{Code, CredentialAccess, Failure, Impact, SandboxId, Scope, fault};
use crate::store::{After, ByteLimits, DueLogin, Find, LoginTurn};

/// The longest that changing a login may take; the server ends a metadata transaction that idles for a minute.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(45);
/// When a caller may come back whose login is just being changed by somebody else.
const RETRY_AFTER_MS: u64 = 1_000;

/// Returns whether a request may fill the sandbox: by its own SQL, or by that of a command that is given the credentials.
fn fills(grant: &Grant) -> bool {
    matches!(grant.impact, Impact::Writes | Impact::ReachesOut)
}

/// What came of a look at all logins.
pub(super) struct Settled {
    /// So many could not be changed.
    pub(super) failed: usize,
    /// Whether there was no room all the while, and so all are kept out.
    pub(super) disk_full: bool,
}

impl Core {
    /// Lets the owner role in, or the reader from outside: refuses a write over the byte quota, and gives back a login that was taken for it and
    /// need not be any longer.
    ///
    /// Limits that have changed are noted; where there are none, and were none, nothing is asked.
    pub(super) async fn admit_owner(
        &self,
        grant: &Grant,
        profile: &Arc<Profile>,
        sandbox: &Sandbox,
    ) -> Result<(), Failure> {
        let mut limits = sandbox.byte_limits;
        if fills(grant) {
            refuse_without_room(profile)?;
            let decided = &grant.obligations.max_database_bytes;
            limits = ByteLimits::new(decided);
            if limits != sandbox.byte_limits {
                profile.store.set_byte_limits(sandbox.id, limits).await?;
            }
            for (scope, limit) in decided {
                refuse_over(profile, sandbox, *scope, limit.value, &format!(", set by `{}`", limit.set_by)).await?;
            }
            profile.note_filled(sandbox.id);
        }
        self.give_login_back(grant, profile, sandbox, limits).await
    }

    /// Gives a login back that need not be away any longer. Where somebody else is just changing it, what comes of that is
    /// waited for, as long as for a session: whether there is room is looked at again each time, and never taken for known.
    async fn give_login_back(
        &self,
        grant: &Grant,
        profile: &Arc<Profile>,
        sandbox: &Sandbox,
        limits: ByteLimits,
    ) -> Result<(), Failure> {
        let (mut now, mut pause) = (sandbox.clone(), PAUSE_MIN);
        let until = Instant::now() + self.session_wait();
        while !now.login_stands() {
            refuse_without_room(profile)?;
            refuse_over_any(profile, &now, limits).await?;
            let (core, for_task, for_turn) = (self.clone(), Arc::clone(profile), now.clone());
            grant.course.acts();
            let given_back = self.detached(async move {
                let Some(turn) = for_task.store.login_turn(&for_turn).await? else { return Ok(false) };
                core.turn_login(&for_task, &for_turn, turn, true).await.map(|()| true)
            });
            if given_back.await? {
                return Ok(());
            }
            now = profile.store.find(&Find::Id(sandbox.id)).await?.ok_or_else(not_found)?;
            now.usable()?;
            if now.login_stands() {
                break;
            }
            if Instant::now() + pause >= until {
                return Err(being_given_back(&now));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
        Ok(())
    }

    /// Says what [`Core::admit_owner`] would refuse with, and notes and gives back nothing.
    pub(super) async fn foresee_owner(
        &self,
        grant: &Grant,
        profile: &Profile,
        sandbox: &Sandbox,
    ) -> Result<(), Failure> {
        let mut limits = sandbox.byte_limits;
        if fills(grant) || !sandbox.login_stands() {
            refuse_without_room(profile)?;
        }
        if fills(grant) {
            let decided = &grant.obligations.max_database_bytes;
            limits = ByteLimits::new(decided);
            for (scope, limit) in decided {
                refuse_over(profile, sandbox, *scope, limit.value, &format!(", set by `{}`", limit.set_by)).await?;
            }
        }
        if sandbox.login_stands() { Ok(()) } else { refuse_over_any(profile, sandbox, limits).await }
    }

    /// Measures what a program that ends after one call was let write in: the next such program has nothing else to go by,
    /// where no server runs that measures all in turn.
    pub async fn measure_filled(&self) {
        for profile in self.profiles() {
            let Some(id) = profile.take_filled() else { continue };
            let measured = async {
                let found = profile.store.find(&Find::Id(id)).await?;
                let Some(sandbox) = found.filter(|sandbox| sandbox.state == State::Ready) else { return Ok(()) };
                let bytes = profile.engine.measure(&removal_spec(&sandbox)).await?;
                profile.store.measured(id, Some(bytes)).await.map_err(Failure::from)
            };
            if let Err(failure) = measured.await {
                tracing::debug!(sandbox = %id, %failure, "it could not be measured");
            }
        }
    }

    /// Says why the server did not let the owner role in: its login may have been taken away since the sandbox was
    /// looked at.
    pub(super) async fn why_owner_is_refused(
        &self,
        profile: &Profile,
        id: SandboxId,
        error: EngineError,
    ) -> Result<Failure, Failure> {
        let Some(now) = profile.store.find(&Find::Id(id)).await? else { return Ok(not_found()) };
        now.usable()?;
        refuse_without_room(profile)?;
        // It may be that nobody has noted yet that it was taken away, so the limits are asked as well.
        refuse_over_any(profile, &now, now.byte_limits).await?;
        Ok(if now.login_stands() { error.into() } else { being_given_back(&now) })
    }

    /// Takes logins away where sandboxes hold more than they may, and gives them back where they no longer do. One
    /// that fails is due again in the next round, whatever its limits say then, and holds up no other.
    pub(super) async fn settle_logins(&self, profile: &Arc<Profile>, steward: &Steward) -> Result<Settled, Failure> {
        let (mut after, failed, spared) = (None, AtomicUsize::new(0), AtomicBool::new(false));
        let disk_full = refuse_without_room(profile).is_err();
        for _ in 0..PAGES_MAX {
            let page = profile.store.logins_due(after, PAGE, disk_full).await?;
            let Some(DueLogin { sandbox: last, .. }) = page.last() else { break };
            after = Some(After { time: last.created_at, id: last.id });
            futures_util::stream::iter(page)
                .for_each_concurrent(REMOVALS_AT_ONCE, async |DueLogin { sandbox, allowed }| {
                    // There may be room again since they were listed. Who holds too much beside that is due in the next round.
                    if disk_full && !allowed && refuse_without_room(profile).is_ok() {
                        spared.store(true, Ordering::Relaxed);
                        return;
                    }
                    if let Err(failure) = self.settle_login(profile, &sandbox, allowed, steward).await {
                        failed.fetch_add(1, Ordering::Relaxed);
                        tracing::warn!(
                            sandbox = %sandbox.id, allowed, %failure, audit = ?failure.audit,
                            "its login could not be changed now"
                        );
                    }
                })
                .await;
        }
        profile.engine.end_kept_out().await?;
        Ok(Settled { failed: failed.into_inner(), disk_full: disk_full && !spared.into_inner() })
    }

    async fn settle_login(
        &self,
        profile: &Arc<Profile>,
        sandbox: &Sandbox,
        allowed: bool,
        steward: &Steward,
    ) -> Result<(), Failure> {
        // Before the audit entry: what another server does, that one records.
        let Some(turn) = profile.store.login_turn(sandbox).await? else { return Ok(()) };
        let reason = if allowed { SystemReason::RestoreLogin } else { SystemReason::WithholdLogin };
        let permit = steward.permit(reason);
        steward.audit.open(&permit, sandbox).await?;
        let outcome = self.turn_login(profile, sandbox, turn, allowed).await;
        steward.audit.close(&permit, sandbox, outcome.as_ref().copied()).await;
        outcome
    }

    /// Gives the login or takes it away, then notes it. If that fails, it stays noted that the login is not known.
    async fn turn_login(
        &self,
        profile: &Profile,
        sandbox: &Sandbox,
        turn: LoginTurn,
        allowed: bool,
    ) -> Result<(), Failure> {
        let outcome = self.change_login(profile, sandbox, turn, allowed).await;
        // The note made with the turn says so already, unless the turn was lost and another's has ended meanwhile.
        if outcome.is_err()
            && let Err(error) = profile.store.doubt_login(sandbox.id).await
        {
            tracing::warn!(sandbox = %sandbox.id, %error, "that its login is not known could not be noted");
        }
        outcome
    }

    async fn change_login(
        &self,
        profile: &Profile,
        sandbox: &Sandbox,
        turn: LoginTurn,
        allowed: bool,
    ) -> Result<(), Failure> {
        let spec = removal_spec(sandbox);
        match tokio::time::timeout(fault::within(LOGIN_TIMEOUT), profile.engine.set_login(&spec, allowed)).await {
            Ok(Ok(())) => {}
            // Somebody dropped its roles: nobody can log in, and there is nothing to come back for.
            Ok(Err(EngineError::Known(failure))) if failure.code == Code::DatabaseNotFound => {}
            Ok(Err(error)) => return Err(error.into()),
            Err(_) => return Err(Failure::new(Code::Busy, "changing the sandbox's login did not end in time")),
        }
        if !allowed {
            self.inner().pool.close_role(sandbox.id, CredentialAccess::Owner);
        }
        if allowed {
            profile.note_let_in();
        }
        profile.store.note_login(turn, allowed).await?;
        tracing::info!(sandbox = %sandbox.id, allowed, "login changed for the bytes that are held");
        Ok(())
    }
}

async fn refuse_over_any(profile: &Profile, sandbox: &Sandbox, limits: ByteLimits) -> Result<(), Failure> {
    for (scope, limit) in limits.iter() {
        refuse_over(profile, sandbox, scope, limit, "").await?;
    }
    Ok(())
}

/// Refuses while the sandboxes that are counted with this one hold more than they may, when last measured.
async fn refuse_over(
    profile: &Profile,
    sandbox: &Sandbox,
    scope: Scope,
    limit: u64,
    set_by: &str,
) -> Result<(), Failure> {
    let held = profile.store.bytes_held(sandbox, scope).await?;
    if held <= limit {
        return Ok(());
    }
    let who = match (scope, &sandbox.group_owner) {
        (Scope::Group, Some(_)) => "its group owner",
        (Scope::Group, None) => "its owner without a group owner",
        (Scope::Principal, _) => "its owner",
    };
    let text = format!("sandboxes of {who} hold {held} bytes; the limit is {limit}{set_by}");
    Err(Failure::new(Code::QuotaExceeded, text)
        .hint("delete a sandbox, or reset one to what it began with; reading goes on"))
}

fn being_given_back(sandbox: &Sandbox) -> Failure {
    let name = &sandbox.names.database;
    let text =
        format!("the login of sandbox `{name}` was taken away for the bytes that are held, and is being given back");
    Failure::new(Code::QuotaExceeded, text).hint("call again, or read only").retry_after_ms(RETRY_AFTER_MS)
}
