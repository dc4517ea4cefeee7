//! Plans: who works on them, their journal, and how they end.
//!
//! Every write names the holder and epoch and changes nothing if the plan has changed hands, so a server that was
//! paused and lost a plan is told so at its next line. A change of a plan and of its sandbox is one statement.
//!
//! Each write is a commit that waits for the disk, so what is known at one time is written in one: that a step is done with
//! that the next has begun, the first step's beginning with the row or the mark, the last one's end with the plan's.

use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use super::record::{self, SANDBOX_COLUMNS, SANDBOX_COLUMNS_COUNT as MORE, SOUND};
use super::servers::holder_lives;
use super::{Held, Mark, PlanKind, Sandbox, Store, StoreError, StoreSession};
use crate::model::{PlanId, RequestId, SandboxId};

/// The first wait after a failed attempt, doubled each time.
const BACKOFF_SECONDS: i32 = 2;
/// The longest wait: a stuck sandbox is tried again soon after what blocks it is gone.
const BACKOFF_SECONDS_MAX: i32 = 600;

/// A plan that we hold and do not work on was lost by a task that could not even let go of it; but for a moment after
/// taking one, the task may not have begun.
const OWN_GRACE_SECONDS: i32 = 30;

/// Whose plans are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose<'a> {
    /// All of the profile.
    Anybodys,
    /// One sandbox's.
    Sandbox(SandboxId),
    /// One sandbox's that is to be removed, due or not.
    Removed(SandboxId),
    /// Those of an owner's sandboxes, or only of those of one group owner beneath it.
    Owners(&'a str, Option<&'a str>),
}

/// A plan that nobody worked on, taken over.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// The right to work on it.
    pub held: Held,
    /// What it is about.
    pub sandbox: Sandbox,
    /// How often it failed.
    pub attempts: u32,
    /// Whether it is being taken back.
    pub undoing: bool,
}

/// What became of the wish to remove a sandbox.
#[derive(Clone, Debug)]
pub enum BeginDelete {
    /// The plan is ours to carry out: a new one, or one that nobody worked on.
    Ours(Held, Sandbox),
    /// Somebody works on it.
    Theirs(Sandbox),
    /// Its creation has not come to an end.
    Creating(Sandbox),
    /// Its time is not over, which was the condition.
    NotExpired(Sandbox),
    /// There is none, or no more.
    Gone,
}

/// `update … where` that only the holder passes; `$1` to `$3` are plan, holder and epoch.
pub(super) const HELD: &str = "p.id = $1 and p.holder = $2 and p.epoch = $3 and p.state in ('running', 'undoing')";

/// Returns the statement that writes a line for each step of an array, in its order, for the plans of `plans`.
pub(super) fn lines(plans: &str, steps: &str, mark: Mark) -> String {
    format!(
        "insert into pgsandbox.journal (plan_id, epoch, step, mark)
         select p.id, p.epoch, l.step, '{}' from {plans} p, unnest({steps}) with ordinality l (step, n) order by l.n",
        mark.as_str()
    )
}

impl Store {
    /// Writes lines of the journal, all or none of them: of steps, each with its mark.
    ///
    /// # Errors
    /// [`StoreError::Fenced`] if the plan has changed hands.
    pub async fn note(&self, held: &Held, lines: &[(&str, Mark)]) -> Result<(), StoreError> {
        let Some((_, first)) = lines.first() else { return Ok(()) };
        let sql = format!(
            "with held as (select p.id, p.epoch from pgsandbox.plans p where {HELD} for update)
             insert into pgsandbox.journal (plan_id, epoch, step, mark)
             select h.id, h.epoch, l.step, l.mark
             from held h, unnest($4, $5) with ordinality l (step, mark, n) order by l.n"
        );
        let (steps, marks): (Vec<&str>, Vec<&str>) = lines.iter().map(|(step, mark)| (step, mark.as_str())).unzip();
        let point = match first {
            Mark::Intent => "note-intent",
            Mark::Done => "note-done",
            Mark::Undo => "note-undo",
            Mark::Undone => "note-undone",
        };
        let written = self
            .session(point)
            .await?
            .execute_typed(
                &sql,
                &[
                    (&Uuid::from(held.plan), Type::UUID),
                    (&held.holder, Type::INT4),
                    (&held.epoch, Type::INT8),
                    (&steps, Type::TEXT_ARRAY),
                    (&marks, Type::TEXT_ARRAY),
                ],
            )
            .await
            .map_err(self.typed("write the journal"))?;
        self.written(point).await?;
        if written == 0 { Err(StoreError::Fenced) } else { Ok(()) }
    }

    /// Returns the steps of a plan that were begun, in order, each once.
    ///
    /// # Errors
    /// Fails if the metadata cannot be read.
    pub async fn begun(&self, plan: PlanId) -> Result<Vec<String>, StoreError> {
        let rows = self
            .session("begun")
            .await?
            .query(
                "select step from pgsandbox.journal where plan_id = $1 group by step order by min(line)",
                &[&Uuid::from(plan)],
            )
            .await
            .map_err(self.typed("read the journal"))?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Ends a create plan well: its last steps are done, and the sandbox is ready; its size is noted where it is known.
    ///
    /// # Errors
    /// [`StoreError::Fenced`] if the plan has changed hands.
    pub async fn finish_create(&self, held: &Held, done: &[&str], bytes: Option<u64>) -> Result<Sandbox, StoreError> {
        let bytes = bytes.map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
        let sql = format!(
            "with p as (update pgsandbox.plans p set state = 'done', holder = null where {HELD} and p.state = 'running'
                        returning p.id, p.epoch, p.sandbox_id),
                  j as ({}),
                  b as (update pgsandbox.sandboxes b
                        set state = 'ready', bytes = coalesce($5, b.bytes),
                            measured_at = case when $5 is null then b.measured_at else now() end from p
                        where b.id = p.sandbox_id and b.state = 'creating' returning b.*)
             select {SANDBOX_COLUMNS} from b",
            lines("p", "$4", Mark::Done)
        );
        let row = self
            .session("finish-create")
            .await?
            .query_typed_opt(
                &sql,
                &[
                    (&Uuid::from(held.plan), Type::UUID),
                    (&held.holder, Type::INT4),
                    (&held.epoch, Type::INT8),
                    (&done, Type::TEXT_ARRAY),
                    (&bytes, Type::INT8),
                ],
            )
            .await
            .map_err(self.typed("end a plan"))?;
        self.written("finish-create").await?;
        record::sandbox(&self.profile, &row.ok_or(StoreError::Fenced)?)
    }

    /// Turns a create plan around: from here on it is taken back.
    ///
    /// # Errors
    /// [`StoreError::Fenced`] if the plan has changed hands.
    pub async fn begin_undo(&self, held: &Held, reason: &str) -> Result<(), StoreError> {
        let sql = format!(
            "with p as (update pgsandbox.plans p set state = 'undoing', last_error = $4 where {HELD}
                        returning p.sandbox_id)
             update pgsandbox.sandboxes b set state = 'deleting', failure = coalesce(b.failure, $4) from p
             where b.id = p.sandbox_id and b.state in ('creating', 'deleting')"
        );
        self.end(held, "begin-undo", &sql, (&reason, Type::TEXT)).await
    }

    /// Ends a plan whose last steps are taken back: the sandbox has failed, and its idempotency key is free again.
    ///
    /// # Errors
    /// [`StoreError::Fenced`] if the plan has changed hands.
    pub async fn finish_undo(&self, held: &Held, undone: &[&str]) -> Result<(), StoreError> {
        let sql = format!(
            "with p as (update pgsandbox.plans p set state = 'undone', holder = null where {HELD}
                        returning p.id, p.epoch, p.sandbox_id),
                  j as ({}),
                  k as (delete from pgsandbox.idempotency k using p where k.sandbox_id = p.sandbox_id)
             update pgsandbox.sandboxes b
             set state = 'failed', ended_at = now(), bytes = null, owner_sealed = '', readonly_sealed = '' from p
             where b.id = p.sandbox_id and b.state = 'deleting'",
            lines("p", "$4", Mark::Undone)
        );
        self.end(held, "finish-undo", &sql, (&undone, Type::TEXT_ARRAY)).await
    }

    /// Ends a delete plan: its last steps are done, the sandbox is gone, and so are its sealed passwords.
    ///
    /// # Errors
    /// [`StoreError::Fenced`] if the plan has changed hands.
    pub async fn finish_delete(&self, held: &Held, done: &[&str]) -> Result<(), StoreError> {
        let sql = format!(
            "with p as (update pgsandbox.plans p set state = 'done', holder = null where {HELD}
                        returning p.id, p.epoch, p.sandbox_id),
                  j as ({})
             update pgsandbox.sandboxes b
             set state = case when b.failure is null then 'deleted' else 'failed' end,
                 ended_at = now(), bytes = null, owner_sealed = '', readonly_sealed = '' from p
             where b.id = p.sandbox_id and b.state = 'deleting'",
            lines("p", "$4", Mark::Done)
        );
        self.end(held, "finish-delete", &sql, (&done, Type::TEXT_ARRAY)).await
    }

    /// Lets go of a plan after a failed attempt; it is due again after a wait that doubles each time.
    ///
    /// # Errors
    /// [`StoreError::Fenced`] if the plan has changed hands.
    pub async fn release(&self, held: &Held, reason: &str) -> Result<(), StoreError> {
        let sql = format!(
            "update pgsandbox.plans p
             set holder = null, attempts = p.attempts + 1, last_error = $4,
                 next_attempt_at = now() + make_interval(secs =>
                     least({BACKOFF_SECONDS_MAX}, {BACKOFF_SECONDS} * power(2, least(p.attempts, 16))))
             where {HELD}"
        );
        self.end(held, "release", &sql, (&reason, Type::TEXT)).await
    }

    /// Sends a statement that only the holder passes; `said` is its `$4`.
    async fn end(
        &self,
        held: &Held,
        point: &'static str,
        sql: &str,
        said: (&(dyn ToSql + Sync), Type),
    ) -> Result<(), StoreError> {
        let changed = self
            .session(point)
            .await?
            .execute_typed(
                sql,
                &[(&Uuid::from(held.plan), Type::UUID), (&held.holder, Type::INT4), (&held.epoch, Type::INT8), said],
            )
            .await
            .map_err(self.typed("change a plan"))?;
        self.written(point).await?;
        fenced(changed)
    }

    /// Marks a sandbox for removal and takes the plan that does it. `running` are the plans that this server works on,
    /// `first` the steps that a new plan begins with: they are noted as begun with it.
    ///
    /// # Errors
    /// Fails if the metadata cannot be written.
    pub async fn begin_delete(
        &self,
        id: SandboxId,
        plan: PlanId,
        request_id: RequestId,
        only_expired: bool,
        running: &[PlanId],
        first: &[&str],
    ) -> Result<BeginDelete, StoreError> {
        let me = self.number()?;
        let typed = self.typed("mark a sandbox for removal");
        let mut session = self.session("begin-delete").await?;
        if let Some(begun) = self.mark_ready(&session, id, plan, request_id, only_expired, first).await? {
            self.written("mark-ready").await?;
            return Ok(begun);
        }
        let transaction = session.transaction().await.map_err(&typed)?;
        let select =
            format!("select {SANDBOX_COLUMNS} from pgsandbox.sandboxes b where b.id = $1 and b.prefix = $2 for update");
        let row = transaction.query_opt(&select, &[&Uuid::from(id), &self.prefix]).await.map_err(&typed)?;
        let Some(row) = row else { return Ok(BeginDelete::Gone) };
        let mut sandbox = record::sandbox(&self.profile, &row)?;
        let held = match sandbox.state {
            super::State::Deleted | super::State::Failed => return Ok(BeginDelete::Gone),
            super::State::Creating if has_open_plan(&transaction, id, &typed).await? => {
                return Ok(BeginDelete::Creating(sandbox));
            }
            super::State::Ready if only_expired && !sandbox.expired() => {
                return Ok(BeginDelete::NotExpired(sandbox));
            }
            super::State::Deleting if has_open_plan(&transaction, id, &typed).await? => {
                let sql = format!(
                    "update pgsandbox.plans p set holder = $2, epoch = p.epoch + 1, taken_at = now()
                     where p.sandbox_id = $1 and p.state in ('running', 'undoing') and {}
                     returning p.id, p.kind, p.epoch",
                    free("$2", "$3")
                );
                let running: Vec<Uuid> = running.iter().map(|plan| (*plan).into()).collect();
                let row = transaction.query_opt(&sql, &[&Uuid::from(id), &me, &running]).await.map_err(&typed)?;
                let Some(row) = row else { return Ok(BeginDelete::Theirs(sandbox)) };
                let (plan, kind, epoch): (Uuid, String, i64) = (row.get(0), row.get(1), row.get(2));
                Held { plan: plan.into(), sandbox: id, kind: PlanKind::parse(&kind)?, holder: me, epoch, begun: false }
            }
            // Being made or removed without a plan is nothing that this program leaves, nor is ready with one: somebody
            // has edited the row. What is asked for here is that it goes.
            super::State::Ready | super::State::Creating | super::State::Deleting => {
                transaction
                    .execute(
                        "update pgsandbox.plans set state = 'undone', holder = null, epoch = epoch + 1
                         where sandbox_id = $1 and state in ('running', 'undoing')",
                        &[&Uuid::from(id)],
                    )
                    .await
                    .map_err(&typed)?;
                transaction
                    .execute("update pgsandbox.sandboxes set state = 'deleting' where id = $1", &[&Uuid::from(id)])
                    .await
                    .map_err(&typed)?;
                self.begin_plan(&transaction, (plan, PlanKind::Delete), id, request_id, first).await?
            }
        };
        self.pass("begin-delete-commit").await?;
        transaction.commit().await.map_err(&typed)?;
        self.written("begin-delete").await?;
        sandbox.state = super::State::Deleting;
        Ok(BeginDelete::Ours(held, sandbox))
    }

    /// Writes a new plan that is ours, and that its first steps have begun.
    pub(super) async fn begin_plan(
        &self,
        transaction: &tokio_postgres::Transaction<'_>,
        (plan, kind): (PlanId, PlanKind),
        sandbox: SandboxId,
        request_id: RequestId,
        first: &[&str],
    ) -> Result<Held, StoreError> {
        let me = self.number()?;
        let sql = format!(
            "with p as (insert into pgsandbox.plans (id, sandbox_id, kind, state, holder, request_id)
                        values ($1, $2, $3, 'running', $4, $5) returning id, epoch)
             {}",
            lines("p", "$6", Mark::Intent)
        );
        transaction
            .execute_typed(
                &sql,
                &[
                    (&Uuid::from(plan), Type::UUID),
                    (&Uuid::from(sandbox), Type::UUID),
                    (&kind.as_str(), Type::TEXT),
                    (&me, Type::INT4),
                    (&Uuid::from(request_id), Type::UUID),
                    (&first, Type::TEXT_ARRAY),
                ],
            )
            .await
            .map_err(self.typed("write a plan"))?;
        Ok(Held { plan, sandbox, kind, holder: me, epoch: 1, begun: true })
    }

    /// Marks a sandbox for removal that is ready, as most are, and writes its plan: in one statement.
    async fn mark_ready(
        &self,
        session: &StoreSession,
        id: SandboxId,
        plan: PlanId,
        request_id: RequestId,
        only_expired: bool,
        first: &[&str],
    ) -> Result<Option<BeginDelete>, StoreError> {
        let me = self.number()?;
        self.pass("mark-ready").await?;
        let sql = format!(
            "with b as (update pgsandbox.sandboxes b set state = 'deleting'
                        where b.id = $1 and b.prefix = $2 and b.state = 'ready' and (not $3 or b.expires_at <= now())
                        returning b.*),
                  p as (insert into pgsandbox.plans (id, sandbox_id, kind, state, holder, request_id)
                        select $4, b.id, 'delete', 'running', $5, $6 from b returning id, epoch),
                  j as ({})
             select {SANDBOX_COLUMNS} from b",
            lines("p", "$7", Mark::Intent)
        );
        let row = session
            .query_typed_opt(
                &sql,
                &[
                    (&Uuid::from(id), Type::UUID),
                    (&self.prefix, Type::TEXT),
                    (&only_expired, Type::BOOL),
                    (&Uuid::from(plan), Type::UUID),
                    (&me, Type::INT4),
                    (&Uuid::from(request_id), Type::UUID),
                    (&first, Type::TEXT_ARRAY),
                ],
            )
            .await
            .map_err(self.typed("mark a sandbox for removal"))?;
        let Some(row) = row else { return Ok(None) };
        let held = Held { plan, sandbox: id, kind: PlanKind::Delete, holder: me, epoch: 1, begun: true };
        Ok(Some(BeginDelete::Ours(held, record::sandbox(&self.profile, &row)?)))
    }

    /// Opens the removal of a sandbox that is marked as gone while something of it is still there.
    /// Returns `false` if it ended less than a minute ago: then somebody may still be at it.
    ///
    /// # Errors
    /// Fails if the metadata cannot be written.
    pub async fn reopen_delete(&self, id: SandboxId, plan: PlanId, request_id: RequestId) -> Result<bool, StoreError> {
        let changed = self
            .session("reopen-delete")
            .await?
            .execute(
                "with b as (update pgsandbox.sandboxes set state = 'deleting'
                            where id = $1 and prefix = $2 and state in ('deleted', 'failed')
                              and ended_at < now() - interval '1 minute' returning id)
                 insert into pgsandbox.plans (id, sandbox_id, kind, state, request_id)
                 select $3, b.id, 'delete', 'running', $4 from b",
                &[&Uuid::from(id), &self.prefix, &Uuid::from(plan), &Uuid::from(request_id)],
            )
            .await
            .map_err(self.typed("open a removal again"))?;
        Ok(changed == 1)
    }

    /// Takes over plans that are due and that nobody works on: those let go of, those of dead servers, and those of
    /// ours that are not among `running`; only those that are meant. The longest due first; one that is to be removed is
    /// always due.
    ///
    /// # Errors
    /// Fails if the metadata cannot be written.
    pub async fn claim(&self, running: &[PlanId], whose: Whose<'_>, limit: i64) -> Result<Vec<Claimed>, StoreError> {
        let me = self.number()?;
        let sql = format!(
            "with due as (
                 select p.id from pgsandbox.plans p join pgsandbox.sandboxes b on b.id = p.sandbox_id
                 where b.prefix = $1 and p.state in ('running', 'undoing') and {} and {SOUND}
                   and (p.next_attempt_at <= now() or $8)
                   and ($5::uuid is null or p.sandbox_id = $5) and ($6::text is null or b.owner = $6)
                   and ($7::text is null or b.group_owner = $7)
                 order by p.next_attempt_at, p.created_at limit $4 for update of p skip locked),
             p as (update pgsandbox.plans p set holder = $2, epoch = p.epoch + 1, taken_at = now() from due where p.id = due.id
                   returning p.id, p.sandbox_id, p.kind, p.epoch, p.attempts, p.state, p.created_at)
             select {SANDBOX_COLUMNS}, p.id, p.kind, p.epoch, p.attempts, p.state = 'undoing'
             from p join pgsandbox.sandboxes b on b.id = p.sandbox_id order by p.created_at",
            free("$2", "$3")
        );
        let running: Vec<Uuid> = running.iter().map(|plan| (*plan).into()).collect();
        let (of, owner, group) = match whose {
            Whose::Anybodys => (None, None, None),
            Whose::Sandbox(id) | Whose::Removed(id) => (Some(Uuid::from(id)), None, None),
            Whose::Owners(owner, group) => (None, Some(owner), group),
        };
        let always = matches!(whose, Whose::Removed(_));
        let rows = self
            .session("claim")
            .await?
            .query(&sql, &[&self.prefix, &me, &running, &limit, &of, &owner, &group, &always])
            .await
            .map_err(self.typed("take over plans"))?;
        let mut claimed = Vec::with_capacity(rows.len());
        for row in &rows {
            let sandbox = record::sandbox(&self.profile, row)?;
            let (plan, kind, epoch, attempts): (Uuid, String, i64, i32) =
                (row.get(MORE), row.get(MORE + 1), row.get(MORE + 2), row.get(MORE + 3));
            let kind = PlanKind::parse(&kind)?;
            let held = Held { plan: plan.into(), sandbox: sandbox.id, kind, holder: me, epoch, begun: false };
            let attempts = u32::try_from(attempts).unwrap_or(0);
            claimed.push(Claimed { held, sandbox, attempts, undoing: row.get(MORE + 4) });
        }
        Ok(claimed)
    }

    /// Returns sandboxes whose making or removal nobody works on, and that are not shown as stuck. Registers nothing.
    ///
    /// # Errors
    /// Fails if the metadata cannot be read.
    pub async fn waiting(&self, attempts: i32, limit: i64) -> Result<Vec<Sandbox>, StoreError> {
        let sql = format!(
            "select {SANDBOX_COLUMNS} from pgsandbox.plans p
             join pgsandbox.sandboxes b on b.id = p.sandbox_id
             where b.prefix = $1 and p.state in ('running', 'undoing') and p.attempts < $2 and {SOUND}
               and (p.holder is null or not {})
             order by p.created_at limit $3",
            holder_lives()
        );
        let rows = self
            .session("waiting")
            .await?
            .query(&sql, &[&self.prefix, &attempts, &limit])
            .await
            .map_err(self.typed("list what nobody works on"))?;
        rows.iter().map(|row| record::sandbox(&self.profile, row)).collect()
    }

    /// Returns sandboxes whose removal failed at least `attempts` times, with the last reason.
    ///
    /// # Errors
    /// Fails if the metadata cannot be read.
    pub async fn stuck(&self, attempts: i32, limit: i64) -> Result<Vec<(Sandbox, String)>, StoreError> {
        let sql = format!(
            "select {SANDBOX_COLUMNS}, coalesce(p.last_error, '') from pgsandbox.plans p
             join pgsandbox.sandboxes b on b.id = p.sandbox_id
             where b.prefix = $1 and p.state in ('running', 'undoing') and p.attempts >= $2 and {SOUND}
             order by p.created_at limit $3"
        );
        let rows = self
            .session("stuck")
            .await?
            .query(&sql, &[&self.prefix, &attempts, &limit])
            .await
            .map_err(self.typed("list stuck removals"))?;
        rows.iter().map(|row| Ok((record::sandbox(&self.profile, row)?, row.get(MORE)))).collect()
    }
}

async fn has_open_plan(
    transaction: &tokio_postgres::Transaction<'_>,
    id: SandboxId,
    typed: &impl Fn(tokio_postgres::Error) -> StoreError,
) -> Result<bool, StoreError> {
    let sql = "select exists (select from pgsandbox.plans where sandbox_id = $1 and state in ('running', 'undoing'))";
    Ok(transaction.query_one(sql, &[&Uuid::from(id)]).await.map_err(typed)?.get(0))
}

/// A condition that holds while nobody works on plan `p`; takes our number and the array of plans we work on.
fn free(me: &str, running: &str) -> String {
    format!(
        "(p.holder is null
          or (p.holder = {me} and not p.id = any({running})
              and p.taken_at < now() - make_interval(secs => {OWN_GRACE_SECONDS}))
          or (p.holder <> {me} and not {}))",
        holder_lives()
    )
}

fn fenced(changed: u64) -> Result<(), StoreError> {
    if changed == 1 { Ok(()) } else { Err(StoreError::Fenced) }
}
