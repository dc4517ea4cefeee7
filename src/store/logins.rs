//! Whose direct login is to be taken away for the bytes its owner holds, and whose is to be given back.
//!
//! Buckets are those of the quotas. That a login is being turned is noted before it is, and what it became afterwards:
//! whoever fails or dies in between leaves a sandbox that is due again whatever its limits say by then, and to do it
//! again changes nothing. Nothing here touches a role.

use uuid::Uuid;

use super::record::{self, SANDBOX_COLUMNS, SANDBOX_COLUMNS_COUNT, SOUND};
use super::sandboxes::cursor;
use super::{After, ByteLimits, Sandbox, Store, StoreError, StoreSession};
use crate::model::SandboxId;

/// A sandbox whose login is not as its limits have it, or not known to be.
#[derive(Clone, Debug)]
pub struct DueLogin {
    /// The sandbox.
    pub sandbox: Sandbox,
    /// Whether its owner role is to have its login.
    pub allowed: bool,
}

/// The sole right to change one sandbox's login, until it is noted or dropped. Meanwhile the sandbox's row is locked,
/// so nobody begins to remove it.
#[derive(Debug)]
pub struct LoginTurn {
    /// Of its own, and in a transaction: closed when dropped, which gives the right back.
    session: StoreSession,
    sandbox: SandboxId,
}

impl Store {
    /// Notes the byte limits a sandbox is under from now on.
    ///
    /// # Errors
    /// Fails if the metadata cannot be written.
    pub async fn set_byte_limits(&self, id: SandboxId, limits: ByteLimits) -> Result<(), StoreError> {
        let [of_owner, of_group] = limits.stored();
        self.session("set-byte-limits")
            .await?
            .execute(
                "update pgsandbox.sandboxes set owner_bytes_max = $3, group_bytes_max = $4
                 where id = $1 and prefix = $2 and (owner_bytes_max, group_bytes_max) is distinct from ($3, $4)",
                &[&Uuid::from(id), &self.prefix, &of_owner, &of_group],
            )
            .await
            .map_err(self.typed("note the byte limits of a sandbox"))?;
        Ok(())
    }

    /// Returns a page of ready sandboxes whose login is not as their limits have it, oldest first: those over a limit
    /// that can log in, those over none that cannot, and those of which it is not known.
    ///
    /// # Errors
    /// Fails if the metadata cannot be read.
    pub async fn logins_due(
        &self,
        after: Option<After>,
        limit: usize,
        disk_full: bool,
    ) -> Result<Vec<DueLogin>, StoreError> {
        // Who names no group owner is counted with what else of the principal's own names none.
        let sql = format!(
            "with live as (
                 select b.*, sum(b.bytes) over (partition by b.owner) as of_owner,
                     sum(b.bytes) over (partition by b.owner, b.group_owner) as of_group
                 from pgsandbox.sandboxes b
                 where b.prefix = $1 and b.kind = 'sandbox' and b.state in ('creating', 'ready')),
             b as (
                 select *, $5 or coalesce(of_owner > owner_bytes_max, false)
                     or coalesce(of_group > group_bytes_max, false) as exceeds
                 from live)
             select {SANDBOX_COLUMNS}, not b.exceeds from b
             where b.state = 'ready' and (b.exceeds <> b.login_withheld or b.login_turning) and {SOUND}
               and ($2::bigint is null or (b.created_at, b.id) > (to_timestamp($2::bigint / 1000.0), $3::uuid))
             order by b.created_at, b.id limit $4"
        );
        let (after_ms, after_id) = cursor(after);
        let rows = self
            .session("logins-due")
            .await?
            .query(&sql, &[&self.prefix, &after_ms, &after_id, &i64::try_from(limit).unwrap_or(i64::MAX), &disk_full])
            .await
            .map_err(self.typed("list logins to take away or give back"))?;
        let due = rows.iter().map(|row| {
            Ok(DueLogin { sandbox: record::sandbox(&self.profile, row)?, allowed: row.get(SANDBOX_COLUMNS_COUNT) })
        });
        due.collect()
    }

    /// Takes the turn to change the login of a ready sandbox, and notes that it is being changed. `None` if somebody
    /// else is at it, or it has changed since `sandbox` was read.
    ///
    /// # Errors
    /// Fails if the metadata cannot be written.
    pub async fn login_turn(&self, sandbox: &Sandbox) -> Result<Option<LoginTurn>, StoreError> {
        self.pass("login-turn").await?;
        let typed = self.typed("take the turn to change a login");
        // Not out of the pool: it is held while the engine works, which needs sessions itself.
        let session = self.sessions.dedicated().await.map_err(|error| error.of_profile(&self.profile))?;
        let id = Uuid::from(sandbox.id);
        let lock = "select from pgsandbox.sandboxes
                    where id = $1 and prefix = $2 and state = 'ready' and (login_withheld, login_turning) = ($3, $4)
                    for update skip locked";
        // Noted while nobody else is at it. Then it is locked once more, as the note counts only once it is committed:
        // who comes in between does what it has to do, and leaves it as it was noted or changed.
        for turning in [sandbox.login_turning, true] {
            session.batch_execute("begin isolation level read committed").await.map_err(&typed)?;
            let locked = session
                .query_opt(lock, &[&id, &self.prefix, &sandbox.login_withheld, &turning])
                .await
                .map_err(&typed)?;
            if locked.is_none() {
                return Ok(None);
            }
            if turning {
                return Ok(Some(LoginTurn { session, sandbox: sandbox.id }));
            }
            session
                .execute("update pgsandbox.sandboxes set login_turning = true where id = $1", &[&id])
                .await
                .map_err(&typed)?;
            session.batch_execute("commit").await.map_err(&typed)?;
            self.written("login-turn").await?;
        }
        Ok(None)
    }

    /// Notes what the login was changed to, and ends the turn.
    ///
    /// # Errors
    /// Fails if the metadata cannot be written.
    pub async fn note_login(&self, turn: LoginTurn, allowed: bool) -> Result<(), StoreError> {
        self.pass("note-login").await?;
        let typed = self.typed("note a login");
        let LoginTurn { session, sandbox } = turn;
        session
            .execute(
                "update pgsandbox.sandboxes set login_withheld = $2, login_turning = false where id = $1",
                &[&Uuid::from(sandbox), &!allowed],
            )
            .await
            .map_err(&typed)?;
        session.batch_execute("commit").await.map_err(&typed)?;
        self.written("note-login").await
    }

    /// Notes that what a login is is not known: a turn that was not ended may have come to an end for the server, and
    /// somebody else's may have been ended since, before its act took effect.
    ///
    /// # Errors
    /// Fails if the metadata cannot be written.
    pub async fn doubt_login(&self, id: SandboxId) -> Result<(), StoreError> {
        self.session("doubt-login")
            .await?
            .execute(
                "update pgsandbox.sandboxes set login_turning = true
                 where id = $1 and prefix = $2 and state = 'ready' and not login_turning",
                &[&Uuid::from(id), &self.prefix],
            )
            .await
            .map_err(self.typed("note that a login is not known"))?;
        Ok(())
    }
}
