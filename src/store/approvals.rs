//! Requests that wait for another principal's approval, and the approvals: kept sealed, each counting once.
//!
//! Nothing here opens what is sealed, or knows who may approve. Time is the database's clock.

use uuid::Uuid;

use super::{Store, StoreError};
use crate::model::{RequestId, Timestamp};

/// How long a request waits to be approved, in minutes: over a night and a morning.
const WAIT_MINUTES: i32 = 24 * 60;
/// How long an approval can be used, in minutes: as long as who asked is likely to be still at it.
const APPROVAL_MINUTES: i32 = 60;
/// The most requests of one subject that wait at once: who is refused again and again must not fill the metadata.
const WAITING_MAX: i64 = 100;
/// The most requests that are listed.
const LISTED_MAX: i64 = 200;

/// A request to be noted.
#[derive(Clone, Debug)]
pub struct NewRequest<'a> {
    /// Its id, if it does not wait already.
    pub id: Uuid,
    /// Its digest.
    pub digest: &'a [u8],
    /// Who asks.
    pub subject: &'a str,
    /// Seals who asks and what for, for the id that it is noted under.
    pub sealed: &'a [u8],
}

/// A request that waits.
#[derive(Clone, Debug)]
pub struct WaitingRequest {
    /// Its id.
    pub id: Uuid,
    /// Its digest.
    pub digest: Vec<u8>,
    /// Who asks and what for, sealed for the id.
    pub sealed: Vec<u8>,
    /// Since when it waits.
    pub asked_at: Timestamp,
    /// Until when it waits.
    pub expires_at: Timestamp,
    /// What was approved so far and can still be used, by group.
    pub given: Vec<GivenApproval>,
}

/// An approval that can still be used.
#[derive(Clone, Debug)]
pub struct GivenApproval {
    /// The group in whose name.
    pub group: String,
    /// By whom and of what, sealed for the request's id.
    pub sealed: Vec<u8>,
    /// Until when it can be used.
    pub expires_at: Timestamp,
}

/// What became of noting a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// It waits from now on.
    New,
    /// It waited already.
    Waits,
    /// The subject has as many waiting as it may.
    TooMany(i64),
}

const COLUMNS: &str = "r.id, r.digest, r.sealed,
    (extract(epoch from r.asked_at) * 1000)::bigint, (extract(epoch from r.expires_at) * 1000)::bigint,
    coalesce(array_agg(a.group_name order by a.group_name) filter (where a.group_name is not null), '{}'),
    coalesce(array_agg(a.sealed order by a.group_name) filter (where a.group_name is not null), '{}'),
    coalesce(array_agg((extract(epoch from a.expires_at) * 1000)::bigint order by a.group_name)
        filter (where a.group_name is not null), '{}')";

const FROM: &str = "from pgsandbox.approval_requests r
    left join pgsandbox.approvals a on a.request_id = r.id and a.expires_at > now()
    where r.prefix = $1 and r.taken_by is null and r.expires_at > now()";

fn waiting(row: &tokio_postgres::Row) -> WaitingRequest {
    let time = |ms: i64| Timestamp::from_unix_ms(u64::try_from(ms).unwrap_or_default());
    let (groups, sealed, until): (Vec<String>, Vec<Vec<u8>>, Vec<i64>) = (row.get(5), row.get(6), row.get(7));
    let given = groups.into_iter().zip(sealed).zip(until);
    WaitingRequest {
        id: row.get(0),
        digest: row.get(1),
        sealed: row.get(2),
        asked_at: time(row.get(3)),
        expires_at: time(row.get(4)),
        given: given.map(|((group, sealed), until)| GivenApproval { group, sealed, expires_at: time(until) }).collect(),
    }
}

impl Store {
    /// Notes a request, so that it can be approved; one that waits already stays as it is.
    ///
    /// # Errors
    /// Fails if the metadata cannot be written.
    pub async fn note_request(&self, new: &NewRequest<'_>) -> Result<Noted, StoreError> {
        let typed = self.typed("note a request that waits for approval");
        let session = self.session("note-request").await?;
        // What is over is of no use to anybody.
        session
            .execute(
                "delete from pgsandbox.approval_requests where prefix = $1 and expires_at <= now()",
                &[&self.prefix],
            )
            .await
            .map_err(&typed)?;
        let noted = session
            .execute(
                "insert into pgsandbox.approval_requests (id, prefix, digest, subject, sealed, asked_at, expires_at)
                 select $2, $1, $3, $4, $5, now(), now() + make_interval(mins => $6)
                 where (select count(*) from pgsandbox.approval_requests
                        where prefix = $1 and subject = $4 and taken_by is null) < $7
                 on conflict (prefix, digest) where taken_by is null do nothing",
                &[&self.prefix, &new.id, &new.digest, &new.subject, &new.sealed, &WAIT_MINUTES, &WAITING_MAX],
            )
            .await
            .map_err(&typed)?;
        self.written("note-request").await?;
        if noted == 1 {
            return Ok(Noted::New);
        }
        // Asked behind it: one that somebody else noted meanwhile is in no snapshot from before.
        let row = session
            .query_one(
                "select count(*) from pgsandbox.approval_requests
                 where prefix = $1 and subject = $2 and digest <> $3 and taken_by is null",
                &[&self.prefix, &new.subject, &new.digest],
            )
            .await
            .map_err(&typed)?;
        // If it was taken since, whoever asks again notes it anew.
        Ok(if row.get::<_, i64>(0) >= WAITING_MAX { Noted::TooMany(WAITING_MAX) } else { Noted::Waits })
    }

    /// Finds a request that waits, by its digest.
    ///
    /// # Errors
    /// Fails if the metadata cannot be read.
    pub async fn find_request(&self, digest: &[u8]) -> Result<Option<WaitingRequest>, StoreError> {
        let sql = format!("select {COLUMNS} {FROM} and r.digest = $2 group by r.id");
        let session = self.session("find-request").await?;
        let row = session.query_opt(&sql, &[&self.prefix, &digest]).await;
        Ok(row.map_err(self.typed("find a request that waits for approval"))?.as_ref().map(waiting))
    }

    /// Returns the requests that wait, oldest first, up to a bound, and whether there are more.
    ///
    /// # Errors
    /// Fails if the metadata cannot be read.
    pub async fn waiting_requests(&self) -> Result<(Vec<WaitingRequest>, bool), StoreError> {
        let sql = format!("select {COLUMNS} {FROM} group by r.id order by r.asked_at, r.id limit $2");
        let session = self.session("waiting-requests").await?;
        let rows = session.query(&sql, &[&self.prefix, &(LISTED_MAX + 1)]).await;
        let rows = rows.map_err(self.typed("list requests that wait for approval"))?;
        let most = usize::try_from(LISTED_MAX).unwrap_or(usize::MAX);
        Ok((rows.iter().take(most).map(waiting).collect(), rows.len() > most))
    }

    /// Returns until when an approval that is given now can be used.
    ///
    /// # Errors
    /// Fails if the metadata cannot be read.
    pub async fn approval_end(&self) -> Result<Timestamp, StoreError> {
        let sql = "select (extract(epoch from (now() + make_interval(mins => $1))::timestamptz(3)) * 1000)::bigint";
        let session = self.session("approval-end").await?;
        let row = session.query_one(sql, &[&APPROVAL_MINUTES]).await.map_err(self.typed("read the clock"))?;
        Ok(Timestamp::from_unix_ms(u64::try_from(row.get::<_, i64>(0)).unwrap_or_default()))
    }

    /// Notes a group's approval of a request that waits, in place of an earlier one. Returns whether it still waits.
    ///
    /// # Errors
    /// Fails if the metadata cannot be written.
    pub async fn note_approval(
        &self,
        request: Uuid,
        group: &str,
        sealed: &[u8],
        expires_at: Timestamp,
    ) -> Result<bool, StoreError> {
        let session = self.session("note-approval").await?;
        let until = i64::try_from(expires_at.unix_ms()).unwrap_or(i64::MAX);
        let noted = session
            .execute(
                "insert into pgsandbox.approvals (request_id, group_name, sealed, expires_at)
                 select id, $3, $4, to_timestamp($5::bigint / 1000.0) from pgsandbox.approval_requests
                 where id = $2 and prefix = $1 and taken_by is null and expires_at > now() for update
                 on conflict (request_id, group_name) do update
                     set sealed = excluded.sealed, expires_at = excluded.expires_at",
                &[&self.prefix, &request, &group, &sealed, &until],
            )
            .await
            .map_err(self.typed("note an approval"))?;
        self.written("note-approval").await?;
        Ok(noted == 1)
    }

    /// Takes the approvals of `groups`, all or none. Returns whether they were there to take: of several who want them at
    /// once, one gets them.
    ///
    /// # Errors
    /// Fails if the metadata cannot be written.
    pub async fn take_approvals(&self, request: Uuid, groups: &[&str], by: RequestId) -> Result<bool, StoreError> {
        let session = self.session("take-approvals").await?;
        let taken = session
            .execute(
                "update pgsandbox.approval_requests r set taken_by = $3
                 where r.id = $2 and r.prefix = $1 and r.taken_by is null and r.expires_at > now()
                   and not exists (
                       select from unnest($4::text[]) wanted where not exists (
                           select from pgsandbox.approvals a
                           where a.request_id = r.id and a.group_name = wanted and a.expires_at > now()))",
                &[&self.prefix, &request, &Uuid::from(by), &groups],
            )
            .await
            .map_err(self.typed("take an approval"))?;
        self.written("take-approvals").await?;
        Ok(taken == 1)
    }

    /// Gives back what was taken for a request that was refused before anything was done for it.
    ///
    /// # Errors
    /// Fails if the metadata cannot be written; it then stays taken.
    pub async fn give_approvals_back(&self, request: Uuid, by: RequestId) -> Result<(), StoreError> {
        let session = self.session("give-approvals-back").await?;
        session
            .execute(
                "update pgsandbox.approval_requests r set taken_by = null
                 where r.id = $2 and r.prefix = $1 and r.taken_by = $3 and not exists (
                     select from pgsandbox.approval_requests o
                     where o.prefix = r.prefix and o.digest = r.digest and o.taken_by is null)",
                &[&self.prefix, &request, &Uuid::from(by)],
            )
            .await
            .map_err(self.typed("give an approval back"))?;
        self.written("give-approvals-back").await
    }
}
