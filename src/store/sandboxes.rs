//! Rows of sandboxes: reserved under quotas, found, listed, extended, measured.

use std::collections::{BTreeSet, HashMap};

use futures_util::TryFutureExt as _;
use futures_util::future::{try_join, try_join_all};
use sha2::{Digest, Sha256};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{GenericClient, Transaction};
use uuid::Uuid;

use super::record::{self, SANDBOX_COLUMNS, SOUND};
use super::{
    ByteLimits, PlanKind, QuotaExceeded, QuotaLimits, Reservation, ReserveError, Reserved, Sandbox, Store, StoreError,
};
use crate::model::{Limit, SandboxId, SandboxKind, Scope, Timestamp, Usage};

/// How long an idempotency key stands for its sandbox: longer than any client retries.
const IDEMPOTENCY_HOURS: i32 = 24;
/// Sandboxes of one owner that may be in removal at once. Removal does not count against the quota of live ones,
/// so without this an owner could pile up databases as fast as they can be made.
const BACKLOG_MAX: u64 = 64;

/// Which sandbox is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Find {
    /// By id.
    Id(SandboxId),
    /// By its database's name.
    Name(String),
}

/// Where a page of a list begins: after this sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct After {
    /// The time that the list is ordered by.
    pub time: Timestamp,
    /// Breaks ties.
    pub id: SandboxId,
}

/// Which sandboxes are listed, oldest first.
#[derive(Clone, Debug, Default)]
pub struct ListQuery {
    /// Only those of this authenticated owner.
    pub owner: Option<String>,
    /// Only those of this group owner.
    pub group_owner: Option<String>,
    /// Only those that bear all of these labels.
    pub labels: Vec<(String, String)>,
    /// Also those whose time is over.
    pub include_expired: bool,
    /// Sandboxes, or templates.
    pub kind: SandboxKind,
    /// Where the page begins.
    pub after: Option<After>,
    /// How many at most.
    pub limit: usize,
}

/// The passwords of one sandbox, sealed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedPasswords {
    /// The owner role's.
    pub owner: Vec<u8>,
    /// The read-only role's.
    pub readonly: Vec<u8>,
}

/// Whose use is counted.
struct Bucket<'a> {
    owner: &'a str,
    group: Option<&'a str>,
    scope: Scope,
}

impl Bucket<'_> {
    /// The condition on `b` that selects the bucket's sandboxes; takes the owner as `$2`, the group owner as `$3`.
    const fn condition(&self) -> &'static str {
        match (self.scope, self.group) {
            (Scope::Principal, _) => "b.owner = $2 and ($3::text is null or true)",
            // A name is free to be given, so it stands beneath the owner who gives it, and is none of another's.
            (Scope::Group, Some(_)) => "b.owner = $2 and b.group_owner = $3",
            // Who names none has a bucket as well: what is left of the principal's own.
            (Scope::Group, None) => "b.owner = $2 and b.group_owner is null and $3::text is null",
        }
    }

    fn who(&self) -> String {
        match (self.scope, self.group) {
            (Scope::Principal, _) => format!("owner `{}`", self.owner),
            (Scope::Group, Some(group)) => format!("group owner `{group}`"),
            (Scope::Group, None) => format!("owner `{}` without a group owner", self.owner),
        }
    }

    /// The key of the advisory lock that serialises reservations of the bucket.
    fn lock_key(&self, prefix: &str) -> i64 {
        let mut digest = Sha256::new();
        let (scope, group) = match (self.scope, self.group) {
            (Scope::Principal, _) => ("principal", ""),
            (Scope::Group, Some(group)) => ("group", group),
            (Scope::Group, None) => ("ungrouped", ""),
        };
        for part in ["pgsandbox quota", prefix, scope, self.owner, group] {
            digest.update(part.as_bytes());
            digest.update([0]);
        }
        let digest = digest.finalize();
        digest.first_chunk().map_or(0, |bytes| i64::from_be_bytes(*bytes))
    }
}

/// Returns the key of the lock under which one owner's reservations wait for each other.
pub(super) fn principal_lock(prefix: &str, owner: &str) -> i64 {
    Bucket { owner, group: None, scope: Scope::Principal }.lock_key(prefix)
}

/// Returns whose an idempotency key is: the subject's in the name of one owner. One subject may act for several owners,
/// and none of them is told of another's sandbox.
fn key_holder(new: &Reservation) -> String {
    format!("{}:{}{}", new.subject.len(), new.subject, new.owner)
}

impl Store {
    /// Writes a sandbox's row, its plan and that the first steps have begun, if the quotas allow: one transaction, in which reservations of the same
    /// owner, then of the same group owner, wait for each other.
    ///
    /// Each lock and each count is a statement of its own: in READ COMMITTED a statement sees what was committed
    /// before *it* began, so the count sees what the last holder of the lock wrote. What does not depend on an answer is
    /// sent without waiting for it; the server does one after the other all the same, and nothing after one that failed.
    ///
    /// # Errors
    /// Fails if a quota is used up, the name is taken, or the idempotency key stands for another request.
    pub async fn reserve(&self, new: &Reservation) -> Result<Reserved, ReserveError> {
        self.number()?;
        let typed = self.typed("reserve a sandbox");
        let mut session = self.session("reserve").await?;
        let transaction = session
            .build_transaction()
            .isolation_level(tokio_postgres::IsolationLevel::ReadCommitted)
            .start()
            .await
            .map_err(&typed)?;
        let buckets = [Scope::Principal, Scope::Group].map(|scope| Bucket {
            owner: &new.owner,
            group: new.group_owner.as_deref(),
            scope,
        });
        let lock = async |bucket: &Bucket<'_>| {
            let key = bucket.lock_key(&self.prefix);
            transaction.query_typed("select pg_catalog.pg_advisory_xact_lock($1)", &[(&key, Type::INT8)]).await
        };
        try_join_all(buckets.iter().map(lock)).await.map_err(&typed)?;
        if let Some(id) = self.replay(&transaction, new).await? {
            return Ok(Reserved::Replayed(id));
        }
        self.check_quotas(&transaction, &buckets, &new.limits).await?;
        let plan = (new.plan, PlanKind::Create);
        let plan = self.begin_plan(&transaction, plan, new.id, new.request_id, &new.first).map_err(ReserveError::from);
        let (sandbox, held) = try_join(self.insert(&transaction, new), plan).await?;
        if let Some(idempotency) = &new.idempotency {
            transaction
                .execute(
                    "insert into pgsandbox.idempotency (prefix, subject, key, digest, sandbox_id, expires_at)
                     values ($1, $2, $3, $4, $5, now() + make_interval(hours => $6))",
                    &[
                        &self.prefix,
                        &key_holder(new),
                        &idempotency.key,
                        &idempotency.digest.as_slice(),
                        &Uuid::from(new.id),
                        &IDEMPOTENCY_HOURS,
                    ],
                )
                .await
                .map_err(&typed)?;
        }
        self.pass("reserve-commit").await?;
        transaction.commit().await.map_err(&typed)?;
        self.written("reserve").await?;
        Ok(Reserved::New(Box::new(sandbox), held))
    }

    /// Says what [`Store::reserve`] would refuse with, and reserves nothing. What others do at the same time may change it.
    ///
    /// # Errors
    /// Fails as the reservation would.
    pub async fn rehearse(&self, new: &Reservation) -> Result<Option<SandboxId>, ReserveError> {
        let mut session = self.session("rehearse").await?;
        // Rolled back when dropped.
        let transaction = session.transaction().await.map_err(self.typed("rehearse a reservation"))?;
        if let Some(earlier) = self.replay(&transaction, new).await? {
            return Ok(Some(earlier));
        }
        let buckets = [Scope::Principal, Scope::Group].map(|scope| Bucket {
            owner: &new.owner,
            group: new.group_owner.as_deref(),
            scope,
        });
        self.check_quotas(&transaction, &buckets, &new.limits).await?;
        Ok(None)
    }

    /// Says what [`reserve`](Self::reserve) would say on a server that holds nothing, without one.
    ///
    /// # Errors
    /// A quota allows none at all.
    pub fn rehearse_on_none(&self, new: &Reservation) -> Result<(), ReserveError> {
        let none = Counted::default();
        for scope in [Scope::Principal, Scope::Group] {
            let bucket = Bucket { owner: &new.owner, group: new.group_owner.as_deref(), scope };
            self.compare_quota(&none, &bucket, &new.limits)?;
        }
        Ok(())
    }

    /// Finds the sandbox that the idempotency key stands for already.
    async fn replay(
        &self,
        transaction: &Transaction<'_>,
        new: &Reservation,
    ) -> Result<Option<SandboxId>, ReserveError> {
        let Some(idempotency) = &new.idempotency else { return Ok(None) };
        let typed = self.typed("look up an idempotency key");
        transaction
            .execute(
                "delete from pgsandbox.idempotency
                 where prefix = $1 and subject = $2 and key = $3 and expires_at <= now()",
                &[&self.prefix, &key_holder(new), &idempotency.key],
            )
            .await
            .map_err(&typed)?;
        let row = transaction
            .query_opt(
                "select digest, sandbox_id from pgsandbox.idempotency
                 where prefix = $1 and subject = $2 and key = $3",
                &[&self.prefix, &key_holder(new), &idempotency.key],
            )
            .await
            .map_err(&typed)?;
        let Some(row) = row else { return Ok(None) };
        let (digest, id): (Vec<u8>, Uuid) = (row.get(0), row.get(1));
        if digest == idempotency.digest { Ok(Some(id.into())) } else { Err(ReserveError::IdempotencyConflict) }
    }

    async fn check_quotas(
        &self,
        transaction: &Transaction<'_>,
        buckets: &[Bucket<'_>],
        limits: &QuotaLimits,
    ) -> Result<(), ReserveError> {
        let used = try_join_all(buckets.iter().map(|bucket| self.count(transaction, bucket))).await?;
        for (bucket, used) in buckets.iter().zip(used) {
            self.compare_quota(&used, bucket, limits)?;
        }
        Ok(())
    }

    /// Compares what is used with what may be.
    fn compare_quota(&self, used: &Counted, bucket: &Bucket<'_>, limits: &QuotaLimits) -> Result<(), QuotaExceeded> {
        let (profile, who) = (self.profile.clone(), bucket.who());
        let over = |limit: Option<&Limit>, used: u64| limit.filter(|limit| used >= limit.value).cloned();
        if let Some(limit) = over(limits.live.get(&bucket.scope), used.live) {
            return Err(QuotaExceeded::Live { profile, who, used: used.live, limit });
        }
        if let Some(limit) = over(limits.bytes.get(&bucket.scope), used.bytes) {
            return Err(QuotaExceeded::Bytes { profile, who, used: used.bytes, limit });
        }
        if bucket.scope == Scope::Principal && used.deleting >= BACKLOG_MAX {
            return Err(QuotaExceeded::Backlog { profile, who, used: used.deleting, limit: BACKLOG_MAX });
        }
        Ok(())
    }

    async fn count(&self, client: &impl GenericClient, bucket: &Bucket<'_>) -> Result<Counted, StoreError> {
        let sql = format!(
            "select count(*) filter (where b.state in ('creating', 'ready') and b.kind = 'sandbox'),
                    coalesce(sum(b.bytes) filter (where b.state in ('creating', 'ready') and b.kind = 'sandbox'), 0)::bigint,
                    count(*) filter (where b.state = 'deleting')
             from pgsandbox.sandboxes b
             where b.prefix = $1 and b.state not in ('deleted', 'failed') and {}",
            bucket.condition()
        );
        // In every call's way, as in `find`: types are given instead of asked for.
        let params: [(&(dyn ToSql + Sync), Type); 3] =
            [(&self.prefix, Type::TEXT), (&bucket.owner, Type::TEXT), (&bucket.group, Type::TEXT)];
        let row = client.query_typed_one(&sql, &params).await.map_err(self.typed("count an owner's sandboxes"))?;
        let number = |at: usize| u64::try_from(row.get::<_, i64>(at)).unwrap_or(0);
        Ok(Counted { live: number(0), bytes: number(1), deleting: number(2) })
    }

    pub(super) async fn insert(
        &self,
        transaction: &Transaction<'_>,
        new: &Reservation,
    ) -> Result<Sandbox, ReserveError> {
        let ttl = i32::try_from(new.ttl_minutes).unwrap_or(i32::MAX);
        let [owner_bytes_max, group_bytes_max] = ByteLimits::new(&new.limits.bytes).stored();
        let source_id = new.source.as_ref().map(|source| Uuid::from(source.id));
        let source_name = new.source.as_ref().map(|source| source.name.as_str());
        let template_name = new.template.as_ref().map(|template| template.name.as_str());
        let kind = if new.template.is_some() { SandboxKind::Template } else { SandboxKind::Sandbox };
        let sql = format!(
            "with b as (insert into pgsandbox.sandboxes
                (id, prefix, engine, database_name, owner_role, readonly_role, owner_sealed, readonly_sealed,
                 owner, subject, group_owner, labels, hint, origin, extensions, state, created_at, expires_at,
                 owner_bytes_max, group_bytes_max, kind, source_id, source_name, template_name)
             values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, 'creating',
                     date_trunc('milliseconds', clock_timestamp()),
                     date_trunc('milliseconds', clock_timestamp()) + make_interval(mins => $16), $17, $18, $19, $20, $21, $22)
             returning *) select {SANDBOX_COLUMNS} from b"
        );
        let inserted = transaction
            .query_typed_one(
                &sql,
                &[
                    (&Uuid::from(new.id), Type::UUID),
                    (&self.prefix, Type::TEXT),
                    (&new.engine, Type::TEXT),
                    (&new.names.database, Type::TEXT),
                    (&new.names.owner_role, Type::TEXT),
                    (&new.names.readonly_role, Type::TEXT),
                    (&new.owner_sealed, Type::BYTEA),
                    (&new.readonly_sealed, Type::BYTEA),
                    (&new.owner, Type::TEXT),
                    (&new.subject, Type::TEXT),
                    (&new.group_owner, Type::TEXT),
                    (&record::labels_json(&new.labels), Type::JSONB),
                    (&new.hint, Type::TEXT),
                    (&new.origin.as_str(), Type::TEXT),
                    (&new.extensions, Type::TEXT_ARRAY),
                    (&ttl, Type::INT4),
                    (&owner_bytes_max, Type::INT8),
                    (&group_bytes_max, Type::INT8),
                    (&kind.as_str(), Type::TEXT),
                    (&source_id, Type::UUID),
                    (&source_name, Type::TEXT),
                    (&template_name, Type::TEXT),
                ],
            )
            .await;
        match inserted {
            Ok(row) => Ok(record::sandbox(&self.profile, &row)?),
            Err(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => {
                Err(ReserveError::NameTaken(new.names.database.clone()))
            }
            Err(error) => Err(self.typed("reserve a sandbox")(error).into()),
        }
    }

    /// Returns a page of sandboxes that are being made or ready, oldest first.
    ///
    /// # Errors
    /// Fails if the metadata cannot be read.
    pub async fn list(&self, query: &ListQuery) -> Result<Vec<Sandbox>, StoreError> {
        let sql = format!(
            "select {SANDBOX_COLUMNS} from pgsandbox.sandboxes b
             where b.prefix = $1 and b.kind = $9 and b.state in ('creating', 'ready') and {SOUND}
               and ($2::text is null or b.owner = $2) and ($3::text is null or b.group_owner = $3)
               and b.labels @> $4 and ($5 or b.expires_at > now())
               and ($6::bigint is null or (b.created_at, b.id) > (to_timestamp($6::bigint / 1000.0), $7::uuid))
             order by b.created_at, b.id limit $8"
        );
        let (after_ms, after_id) = cursor(query.after);
        let limit = i64::try_from(query.limit).unwrap_or(i64::MAX);
        let labels = record::labels_json(&query.labels);
        let rows = self
            .session("list")
            .await?
            .query(
                &sql,
                &[
                    &self.prefix,
                    &query.owner,
                    &query.group_owner,
                    &labels,
                    &query.include_expired,
                    &after_ms,
                    &after_id,
                    &limit,
                    &query.kind.as_str(),
                ],
            )
            .await
            .map_err(self.typed("list sandboxes"))?;
        rows.iter().map(|row| record::sandbox(&self.profile, row)).collect()
    }

    /// Returns a page of ready sandboxes whose time is over, the longest over first.
    ///
    /// # Errors
    /// Fails if the metadata cannot be read.
    pub async fn expired(&self, query: &ListQuery) -> Result<Vec<Sandbox>, StoreError> {
        let sql = format!(
            "select {SANDBOX_COLUMNS} from pgsandbox.sandboxes b
             where b.prefix = $1 and b.kind = 'sandbox' and b.state = 'ready' and b.expires_at <= now() and {SOUND}
               and ($2::text is null or b.owner = $2) and ($3::text is null or b.group_owner = $3)
               and b.labels @> $4
               and ($5::bigint is null or (b.expires_at, b.id) > (to_timestamp($5::bigint / 1000.0), $6::uuid))
             order by b.expires_at, b.id limit $7"
        );
        let (after_ms, after_id) = cursor(query.after);
        let limit = i64::try_from(query.limit).unwrap_or(i64::MAX);
        let labels = record::labels_json(&query.labels);
        let rows = self
            .session("expired")
            .await?
            .query(&sql, &[&self.prefix, &query.owner, &query.group_owner, &labels, &after_ms, &after_id, &limit])
            .await
            .map_err(self.typed("list expired sandboxes"))?;
        rows.iter().map(|row| record::sandbox(&self.profile, row)).collect()
    }

    /// Returns what an owner, and a group owner if one is named, have live.
    ///
    /// # Errors
    /// Fails if the metadata cannot be read.
    pub async fn usage(&self, owner: &str, group: Option<&str>) -> Result<(Usage, Option<Usage>), StoreError> {
        let session = self.session("usage").await?;
        let principal = self.count(&*session, &Bucket { owner, group, scope: Scope::Principal }).await?;
        let grouped = match group {
            Some(_) => Some(self.count(&*session, &Bucket { owner, group, scope: Scope::Group }).await?.into()),
            None => None,
        };
        Ok((principal.into(), grouped))
    }

    /// Returns how many bytes the sandboxes hold, when last measured, that are counted with this one in `scope`.
    ///
    /// # Errors
    /// Fails if the metadata cannot be read.
    pub async fn bytes_held(&self, sandbox: &Sandbox, scope: Scope) -> Result<u64, StoreError> {
        let session = self.session("bytes-held").await?;
        let bucket = Bucket { owner: &sandbox.owner, group: sandbox.group_owner.as_deref(), scope };
        Ok(self.count(&*session, &bucket).await?.bytes)
    }

    /// Moves the end of a ready sandbox to `ttl_minutes` from now, if that is within `life_minutes_max` from its
    /// creation. Returns the sandbox as it is then; `None` if it is not ready or the end would be too late.
    ///
    /// # Errors
    /// Fails if the metadata cannot be written.
    pub async fn extend(
        &self,
        id: SandboxId,
        ttl_minutes: u64,
        life_minutes_max: u64,
    ) -> Result<Option<Sandbox>, StoreError> {
        let sql = format!(
            "with b as (update pgsandbox.sandboxes b
                 set expires_at = date_trunc('milliseconds', now()) + make_interval(mins => $3)
                 where b.id = $1 and b.prefix = $2 and b.state = 'ready'
                   and date_trunc('milliseconds', now()) + make_interval(mins => $3)
                       <= b.created_at + make_interval(mins => $4)
                 returning *)
             select {SANDBOX_COLUMNS} from b"
        );
        let minutes = |value: u64| i32::try_from(value).unwrap_or(i32::MAX);
        let row = self
            .session("extend")
            .await?
            .query_opt(&sql, &[&Uuid::from(id), &self.prefix, &minutes(ttl_minutes), &minutes(life_minutes_max)])
            .await
            .map_err(self.typed("extend a sandbox"))?;
        self.written("extend").await?;
        row.map(|row| record::sandbox(&self.profile, &row)).transpose()
    }

    /// Returns the sealed passwords of a sandbox that is not gone.
    ///
    /// # Errors
    /// Fails if the metadata cannot be read.
    pub async fn passwords(&self, id: SandboxId) -> Result<Option<SealedPasswords>, StoreError> {
        self.pass("passwords").await?;
        let rows = self
            .read(
                "read sealed passwords",
                "select owner_sealed, readonly_sealed from pgsandbox.sandboxes
                 where id = $1 and prefix = $2 and state not in ('deleted', 'failed')",
                &[(&Uuid::from(id), Type::UUID), (&self.prefix, Type::TEXT)],
            )
            .await?;
        Ok(rows.first().map(|row| SealedPasswords { owner: row.get(0), readonly: row.get(1) }))
    }

    /// Replaces sealed passwords, if they still are the ones that were read.
    ///
    /// # Errors
    /// Fails if the metadata cannot be written.
    pub async fn replace_passwords(
        &self,
        id: SandboxId,
        old: &SealedPasswords,
        new: &SealedPasswords,
    ) -> Result<bool, StoreError> {
        let changed = self
            .session("replace-passwords")
            .await?
            .execute(
                "update pgsandbox.sandboxes set owner_sealed = $3, readonly_sealed = $4
                 where id = $1 and prefix = $2 and owner_sealed = $5 and readonly_sealed = $6",
                &[&Uuid::from(id), &self.prefix, &new.owner, &new.readonly, &old.owner, &old.readonly],
            )
            .await
            .map_err(self.typed("replace sealed passwords"))?;
        self.written("replace-passwords").await?;
        Ok(changed == 1)
    }

    /// Returns ready sandboxes that were not measured for the longest, of those not measured within `age_seconds`.
    ///
    /// # Errors
    /// Fails if the metadata cannot be read.
    pub async fn unmeasured(&self, age_seconds: i32, limit: i64) -> Result<Vec<Sandbox>, StoreError> {
        let sql = format!(
            "select {SANDBOX_COLUMNS} from pgsandbox.sandboxes b
             where b.prefix = $1 and b.kind = 'sandbox' and b.state = 'ready' and {SOUND}
               and (b.measured_at is null or b.measured_at < now() - make_interval(secs => $2::integer))
             order by b.measured_at nulls first, b.created_at limit $3"
        );
        let rows = self
            .session("unmeasured")
            .await?
            .query(&sql, &[&self.prefix, &age_seconds, &limit])
            .await
            .map_err(self.typed("list sandboxes to measure"))?;
        rows.iter().map(|row| record::sandbox(&self.profile, row)).collect()
    }

    /// Notes that a sandbox was measured; without `bytes`, that it was tried.
    ///
    /// # Errors
    /// Fails if the metadata cannot be written.
    pub async fn measured(&self, id: SandboxId, bytes: Option<u64>) -> Result<(), StoreError> {
        let bytes = bytes.map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
        self.session("measured")
            .await?
            .execute(
                "update pgsandbox.sandboxes set measured_at = now(), bytes = coalesce($2, bytes) where id = $1",
                &[&Uuid::from(id), &bytes],
            )
            .await
            .map_err(self.typed("note a sandbox's size"))?;
        Ok(())
    }

    /// Returns the sandboxes of this profile, in any state, that bear one of `names`: database or role.
    ///
    /// # Errors
    /// Fails if the metadata cannot be read.
    pub async fn bearing(&self, names: &[String]) -> Result<Vec<Sandbox>, StoreError> {
        let sql = format!(
            "select {SANDBOX_COLUMNS} from pgsandbox.sandboxes b where b.prefix = $1 and {SOUND}
             and (b.database_name = any($2) or b.owner_role = any($2) or b.readonly_role = any($2))"
        );
        let rows = self
            .session("bearing")
            .await?
            .query(&sql, &[&self.prefix, &names])
            .await
            .map_err(self.typed("look up names"))?;
        rows.iter().map(|row| record::sandbox(&self.profile, row)).collect()
    }

    /// Returns the owner of each sandbox that is there, by its database's name, whatever the profile.
    ///
    /// # Errors
    /// Fails if the metadata cannot be read.
    pub async fn owners(&self) -> Result<HashMap<String, String>, StoreError> {
        let sql = "select database_name, owner from pgsandbox.sandboxes where state not in ('deleted', 'failed')";
        let rows =
            self.session("owners").await?.query(sql, &[]).await.map_err(self.typed("look up who owns sandboxes"))?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    /// Returns those of `names` that a sandbox of any profile bears: database or role.
    ///
    /// # Errors
    /// Fails if the metadata cannot be read.
    pub async fn tracked(&self, names: &[String]) -> Result<BTreeSet<String>, StoreError> {
        let rows = self
            .session("tracked")
            .await?
            .query(
                "select n from unnest($1::text[]) n where exists (select from pgsandbox.sandboxes b
                 where b.database_name = n or b.owner_role = n or b.readonly_role = n)",
                &[&names],
            )
            .await
            .map_err(self.typed("look up names"))?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }
}

#[derive(Default)]
struct Counted {
    live: u64,
    bytes: u64,
    deleting: u64,
}

impl From<Counted> for Usage {
    fn from(counted: Counted) -> Self {
        Self { live: u32::try_from(counted.live).unwrap_or(u32::MAX), bytes: counted.bytes }
    }
}

pub(super) fn cursor(after: Option<After>) -> (Option<i64>, Option<Uuid>) {
    match after {
        Some(After { time, id }) => (Some(i64::try_from(time.unix_ms()).unwrap_or(i64::MAX)), Some(id.into())),
        None => (None, None),
    }
}
