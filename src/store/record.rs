//! What the metadata holds, as plain values.

use tokio_postgres::Row;
use uuid::Uuid;

use super::StoreError;
use crate::model::{
    Code, Failure, Limit, Origin, PlanId, RequestId, SandboxFacts, SandboxId, SandboxKind, SandboxNames, Scope,
    Timestamp, counted,
};

/// A sandbox's state. *Expired* is none: it is a comparison with the server's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Its plan runs.
    Creating,
    /// In use.
    Ready,
    /// Being removed, at its end or because it could not be made.
    Deleting,
    /// Gone: database and roles.
    Deleted,
    /// Could not be made, and all that was begun is gone.
    Failed,
}

impl State {
    /// Returns the word that is stored and shown.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Ready => "ready",
            Self::Deleting => "deleting",
            Self::Deleted => "deleted",
            Self::Failed => "failed",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [Self::Creating, Self::Ready, Self::Deleting, Self::Deleted, Self::Failed]
            .into_iter()
            .find(|state| state.as_str() == text)
    }
}

/// The sandbox or template that another is a copy of, as it was then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Its id.
    pub id: SandboxId,
    /// The sandbox's name, or what the template was called.
    pub name: String,
}

/// A sandbox, without its passwords.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// Its identity, for good.
    pub id: SandboxId,
    /// The profile it was found in.
    pub profile: String,
    /// The kind of engine that made it.
    pub engine: String,
    /// Names of its database and roles.
    pub names: SandboxNames,
    /// The authenticated owner that made it.
    pub owner: String,
    /// The authenticated subject that made it.
    pub subject: String,
    /// The owner that was named beneath the principal.
    pub group_owner: Option<String>,
    /// Sorted by key.
    pub labels: Vec<(String, String)>,
    /// What its name was made from.
    pub hint: Option<String>,
    /// What it is for.
    pub kind: SandboxKind,
    /// Where its first contents came from.
    pub origin: Origin,
    /// The sandbox or template that it was copied from; it may be gone.
    pub source: Option<Source>,
    /// Of a template: what its owner calls it.
    pub template_name: Option<String>,
    /// Extensions that were asked for.
    pub extensions: Vec<String>,
    /// Its state.
    pub state: State,
    /// Why it could not be made.
    pub failure: Option<String>,
    /// Size when last measured.
    pub bytes: Option<u64>,
    /// The byte limits that its direct logins are under.
    pub byte_limits: ByteLimits,
    /// Whether the owner role's login is taken away because of them.
    pub login_withheld: bool,
    /// Whether a change of that was begun and is not noted, so that it may have been made or not.
    pub login_turning: bool,
    /// When it was reserved.
    pub created_at: Timestamp,
    /// When its time is over.
    pub expires_at: Timestamp,
    /// The server's clock when this was read.
    pub read_at: Timestamp,
}

impl Sandbox {
    /// Returns whether its time was over when it was read, by the server's clock.
    pub fn expired(&self) -> bool {
        self.expires_at <= self.read_at
    }

    /// Returns whether the owner role is known to have its login.
    pub fn login_stands(&self) -> bool {
        !self.login_withheld && !self.login_turning
    }

    /// Returns the seconds left when it was read; negative once its time is over.
    pub fn expires_in_seconds(&self) -> i64 {
        self.expires_at.ms_since(self.read_at) / 1000
    }

    /// Returns what policies may know of it.
    pub fn facts(&self) -> SandboxFacts {
        SandboxFacts {
            id: self.id,
            name: self.names.database.clone(),
            owner: self.owner.clone(),
            group_owner: self.group_owner.clone(),
            labels: self.labels.clone(),
            origin: self.origin,
            created_at: self.created_at,
            expires_at: self.expires_at,
            bytes: self.bytes,
        }
    }

    /// Checks that it may be used.
    ///
    /// # Errors
    /// `sandbox_expired` or `sandbox_not_ready`.
    pub fn usable(&self) -> Result<(), Failure> {
        let name = &self.names.database;
        match self.state {
            State::Ready if !self.expired() => Ok(()),
            State::Ready => Err(Failure::new(
                Code::SandboxExpired,
                format!("the time of sandbox `{name}` was over at {}", self.expires_at),
            )
            .hint("extend it before it is cleaned up, or create another")),
            State::Creating => {
                Err(Failure::new(Code::SandboxNotReady, format!("sandbox `{name}` is still being made"))
                    .hint("call again in a moment"))
            }
            State::Deleting | State::Deleted | State::Failed => {
                Err(Failure::new(Code::SandboxNotReady, format!("sandbox `{name}` is being removed"))
                    .hint("create another")
                    .for_good())
            }
        }
    }
}

/// Whether a plan makes or removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PlanKind {
    /// Makes a sandbox.
    Create,
    /// Removes one.
    Delete,
}

impl PlanKind {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Delete => "delete",
        }
    }

    pub(super) fn parse(text: &str) -> Result<Self, StoreError> {
        match text {
            "create" => Ok(Self::Create),
            "delete" => Ok(Self::Delete),
            _ => Err(StoreError::Corrupt("a plan's kind")),
        }
    }
}

/// The right to work on a plan: what changes hands carries another epoch, and an older one writes nothing any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Held {
    /// The plan.
    pub plan: PlanId,
    /// The sandbox it is about.
    pub sandbox: SandboxId,
    /// Whether it makes or removes.
    pub kind: PlanKind,
    /// The server that holds it.
    pub holder: i32,
    /// How often it has changed hands.
    pub epoch: i64,
    /// Whether it was written just now, with the line that its first steps have begun.
    pub begun: bool,
}

/// A mark in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mark {
    /// A step is about to be done.
    Intent,
    /// It was done.
    Done,
    /// It is about to be taken back.
    Undo,
    /// It was taken back.
    Undone,
}

impl Mark {
    /// Returns the word that is stored.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Intent => "intent",
            Self::Done => "done",
            Self::Undo => "undo",
            Self::Undone => "undone",
        }
    }
}

/// The limits under which a sandbox is reserved, each with who set it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuotaLimits {
    /// Live sandboxes, the new one included.
    pub live: std::collections::BTreeMap<Scope, Limit>,
    /// Bytes of live sandboxes when last measured.
    pub bytes: std::collections::BTreeMap<Scope, Limit>,
}

/// The byte limits of one sandbox's owner and group owner, as last decided; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByteLimits {
    /// For all live sandboxes of its owner together.
    pub principal: Option<u64>,
    /// For all live sandboxes of its group owner together.
    pub group: Option<u64>,
}

impl ByteLimits {
    /// The highest limit that is kept: what the metadata's integers hold, and more than any disk.
    const MAX: u64 = i64::MAX.unsigned_abs();

    /// Returns what is kept of limits.
    pub fn new(limits: &std::collections::BTreeMap<Scope, Limit>) -> Self {
        let of = |scope| limits.get(&scope).map(|limit| limit.value.min(Self::MAX));
        Self { principal: of(Scope::Principal), group: of(Scope::Group) }
    }

    /// Returns the limits there are.
    pub fn iter(self) -> impl Iterator<Item = (Scope, u64)> {
        let limit = |scope, value: Option<u64>| value.map(|value| (scope, value));
        limit(Scope::Principal, self.principal).into_iter().chain(limit(Scope::Group, self.group))
    }

    /// Returns the owner's and the group owner's, as they are stored.
    pub(super) fn stored(self) -> [Option<i64>; 2] {
        [self.principal, self.group].map(|limit| limit.map(|limit| i64::try_from(limit).unwrap_or(i64::MAX)))
    }
}

/// A key under which the same request gives the same sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idempotency {
    /// The caller's key.
    pub key: String,
    /// Digest of the request it stands for.
    pub digest: [u8; 32],
}

/// All that is written when a sandbox is reserved.
#[derive(Clone, Debug)]
pub struct Reservation {
    /// The sandbox to be.
    pub id: SandboxId,
    /// The plan that will make it.
    pub plan: PlanId,
    /// The steps that the plan begins with, which are noted as begun with it.
    pub first: Vec<&'static str>,
    /// The request it is made for.
    pub request_id: RequestId,
    /// Its names.
    pub names: SandboxNames,
    /// The kind of engine.
    pub engine: String,
    /// The owner role's password, sealed.
    pub owner_sealed: Vec<u8>,
    /// The read-only role's password, sealed.
    pub readonly_sealed: Vec<u8>,
    /// The authenticated owner.
    pub owner: String,
    /// The authenticated subject.
    pub subject: String,
    /// The owner named beneath the principal.
    pub group_owner: Option<String>,
    /// Labels, keys distinct.
    pub labels: Vec<(String, String)>,
    /// What its name is made from.
    pub hint: Option<String>,
    /// Where its first contents come from.
    pub origin: Origin,
    /// The sandbox or template that it will be a copy of.
    pub source: Option<Source>,
    /// What makes it a template.
    pub template: Option<NewTemplate>,
    /// Extensions to install.
    pub extensions: Vec<String>,
    /// Its time to live.
    pub ttl_minutes: u64,
    /// The quotas it must fit.
    pub limits: QuotaLimits,
    /// The caller's idempotency key.
    pub idempotency: Option<Idempotency>,
}

/// What is known of a template beside what is known of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTemplate {
    /// What its owner calls it.
    pub name: String,
    /// Who made it, by the caller's word.
    pub created_by: Option<String>,
    /// What it is for, by the caller's word.
    pub notes: Option<String>,
    /// The server's major version.
    pub major: u16,
    /// The extensions in it, with their versions.
    pub extensions: Vec<(String, String)>,
}

/// What a reservation came to.
#[derive(Clone, Debug)]
pub enum Reserved {
    /// The row is written, and the plan is ours.
    New(Box<Sandbox>, Held),
    /// The idempotency key has a sandbox already.
    Replayed(SandboxId),
}

/// Why a sandbox is not reserved.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ReserveError {
    /// A quota is used up.
    #[error(transparent)]
    Quota(#[from] QuotaExceeded),
    /// The key was used for another request.
    #[error("the idempotency key was used with other arguments")]
    IdempotencyConflict,
    /// Another sandbox has the name.
    #[error("another sandbox has the name `{0}`")]
    NameTaken(String),
    /// The metadata failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A quota that is used up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuotaExceeded {
    /// Too many live sandboxes.
    #[error("{who} has {} on profile `{profile}`; the limit is {}, set by `{}`", counted(used, "live sandbox", "live sandboxes"), limit.value, limit.set_by)]
    Live {
        /// The profile.
        profile: String,
        /// Whose quota: `owner x` or `group owner x`.
        who: String,
        /// How many there are.
        used: u64,
        /// The limit and who set it.
        limit: Limit,
    },
    /// Too many bytes.
    #[error("sandboxes of {who} on profile `{profile}` hold {used} bytes; the limit is {}, set by `{}`", limit.value, limit.set_by)]
    Bytes {
        /// The profile.
        profile: String,
        /// Whose quota.
        who: String,
        /// How many bytes when last measured.
        used: u64,
        /// The limit and who set it.
        limit: Limit,
    },
    /// Too many sandboxes still being removed.
    #[error(
        "{} of {who} on profile `{profile}` still to be removed; the limit is {limit}, set by `core`",
        counted(used, "sandbox", "sandboxes")
    )]
    Backlog {
        /// The profile.
        profile: String,
        /// Whose quota.
        who: String,
        /// How many there are.
        used: u64,
        /// The limit.
        limit: u64,
    },
}

impl From<QuotaExceeded> for Failure {
    fn from(error: QuotaExceeded) -> Self {
        let failure = Self::new(Code::QuotaExceeded, error.to_string());
        match error {
            QuotaExceeded::Live { .. } => {
                failure.hint("delete a sandbox first; expired ones count until they are cleaned up")
            }
            QuotaExceeded::Bytes { .. } => failure.hint("delete a sandbox first, or reset one to what it began with"),
            QuotaExceeded::Backlog { .. } => failure.hint("wait until they are gone").retry_after_ms(5_000),
        }
    }
}

impl From<ReserveError> for Failure {
    fn from(error: ReserveError) -> Self {
        match error {
            ReserveError::Quota(error) => error.into(),
            ReserveError::Store(error) => error.into(),
            ReserveError::IdempotencyConflict => Self::new(Code::IdempotencyConflict, error.to_string())
                .hint("use another key, or the arguments of the first call"),
            ReserveError::NameTaken(_) => Self::new(Code::Internal, error.to_string()),
        }
    }
}

/// The columns that [`sandbox`] reads, in order.
pub(super) const SANDBOX_COLUMNS: &str = "b.id, b.engine, b.database_name, b.owner_role, b.readonly_role, b.owner, \
     b.subject, b.group_owner, b.labels, b.hint, b.origin, b.extensions, b.state, b.failure, b.bytes, \
     case when pg_catalog.isfinite(b.created_at) then (extract(epoch from b.created_at) * 1000)::bigint end, \
     case when pg_catalog.isfinite(b.expires_at) then (extract(epoch from b.expires_at) * 1000)::bigint end, \
     (extract(epoch from pg_catalog.now()) * 1000)::bigint, b.owner_bytes_max, b.group_bytes_max, b.login_withheld, \
     b.prefix, b.login_turning, b.kind, b.source_id, b.source_name, b.template_name";

/// How many they are: what a query reads besides begins here.
pub(super) const SANDBOX_COLUMNS_COUNT: usize = 27;

/// A condition that holds for a row `b` if [`sandbox`] reads it. Whatever works through many sandboxes asks for it, so
/// that one row somebody has edited stands in nobody else's way; what has one such row in hand is refused instead.
pub(super) const SOUND: &str = "(
    pg_catalog.isfinite(b.created_at) and b.created_at >= '1970-01-01Z' and b.created_at < '10000-01-01Z'
    and pg_catalog.isfinite(b.expires_at) and b.expires_at >= '1970-01-01Z' and b.expires_at < '10000-01-01Z'
    and pg_catalog.starts_with(b.database_name, b.prefix || '_') and b.database_name ~ '^[a-z0-9_]+$'
    and pg_catalog.right(b.database_name, 10) = pg_catalog.left(pg_catalog.replace(b.id::text, '-', ''), 10)
    and b.owner_role = b.database_name || '_role' and b.readonly_role = b.database_name || '_ro'
    and coalesce(b.bytes, 0) >= 0 and coalesce(b.owner_bytes_max, 0) >= 0 and coalesce(b.group_bytes_max, 0) >= 0
    and coalesce(pg_catalog.array_ndims(b.extensions), 1) = 1
    and not exists (select from pg_catalog.unnest(b.extensions) e where e is null)
    and pg_catalog.jsonb_typeof(b.labels) = 'object'
    and not pg_catalog.jsonb_path_exists(b.labels, 'strict $.* ? (@.type() <> \"string\")', '{}', true))";

/// The last millisecond that is read as a time: of the year 9999.
const TIME_MS_MAX: u64 = 253_402_300_799_999;

/// Reads a row of [`SANDBOX_COLUMNS`].
pub(super) fn sandbox(profile: &str, row: &Row) -> Result<Sandbox, StoreError> {
    let id: Uuid = row.try_get(0).map_err(|_| StoreError::Corrupt("the id of a sandbox"))?;
    let id = SandboxId::from(id);
    read(id, profile, row).map_err(|what| StoreError::Damaged { sandbox: id, what })
}

fn read(id: SandboxId, profile: &str, row: &Row) -> Result<Sandbox, &'static str> {
    let text = |at: usize, what: &'static str| row.try_get::<_, String>(at).map_err(|_| what);
    let size = |at: usize, what: &'static str| -> Result<Option<u64>, &'static str> {
        let bytes: Option<i64> = row.try_get(at).map_err(|_| what)?;
        bytes.map(u64::try_from).transpose().map_err(|_| what)
    };
    let sandbox = Sandbox {
        id,
        profile: profile.to_owned(),
        engine: text(1, "`engine`")?,
        names: SandboxNames {
            database: text(2, "`database_name`")?,
            owner_role: text(3, "`owner_role`")?,
            readonly_role: text(4, "`readonly_role`")?,
        },
        owner: text(5, "`owner`")?,
        subject: text(6, "`subject`")?,
        group_owner: row.try_get(7).map_err(|_| "`group_owner`")?,
        labels: row.try_get(8).ok().and_then(labels).ok_or("`labels`")?,
        hint: row.try_get(9).map_err(|_| "`hint`")?,
        kind: kind(&text(23, "`kind`")?).ok_or("`kind`")?,
        origin: origin(&text(10, "`origin`")?).ok_or("`origin`")?,
        source: source(row)?,
        template_name: row.try_get(26).map_err(|_| "`template_name`")?,
        extensions: row.try_get(11).map_err(|_| "`extensions`")?,
        state: State::parse(&text(12, "`state`")?).ok_or("`state`")?,
        failure: row.try_get(13).map_err(|_| "`failure`")?,
        bytes: size(14, "`bytes`")?,
        byte_limits: ByteLimits { principal: size(18, "`owner_bytes_max`")?, group: size(19, "`group_bytes_max`")? },
        login_withheld: row.try_get(20).map_err(|_| "`login_withheld`")?,
        login_turning: row.try_get(22).map_err(|_| "`login_turning`")?,
        created_at: time(row, 15).ok_or("`created_at`")?,
        expires_at: time(row, 16).ok_or("`expires_at`")?,
        read_at: time(row, 17).ok_or("the server's clock")?,
    };
    if !sandbox.names.belong_to(&text(21, "`prefix`")?, id) {
        return Err("one of its names");
    }
    Ok(sandbox)
}

fn time(row: &Row, at: usize) -> Option<Timestamp> {
    let ms: Option<i64> = row.try_get(at).ok()?;
    u64::try_from(ms?).ok().filter(|ms| *ms <= TIME_MS_MAX).map(Timestamp::from_unix_ms)
}

fn labels(value: serde_json::Value) -> Option<Vec<(String, String)>> {
    let serde_json::Value::Object(map) = value else { return None };
    let mut labels = Vec::with_capacity(map.len());
    for (key, value) in map {
        let serde_json::Value::String(value) = value else { return None };
        labels.push((key, value));
    }
    labels.sort();
    Some(labels)
}

/// Returns labels as they are stored.
pub(super) fn labels_json(labels: &[(String, String)]) -> serde_json::Value {
    labels.iter().map(|(key, value)| (key.clone(), serde_json::Value::String(value.clone()))).collect()
}

fn kind(text: &str) -> Option<SandboxKind> {
    [SandboxKind::Sandbox, SandboxKind::Template].into_iter().find(|kind| kind.as_str() == text)
}

fn source(row: &Row) -> Result<Option<Source>, &'static str> {
    let id: Option<Uuid> = row.try_get(24).map_err(|_| "`source_id`")?;
    let name: Option<String> = row.try_get(25).map_err(|_| "`source_name`")?;
    Ok(id.zip(name).map(|(id, name)| Source { id: id.into(), name }))
}

fn origin(text: &str) -> Option<Origin> {
    [Origin::Empty, Origin::Clone, Origin::Fork, Origin::Template].into_iter().find(|origin| origin.as_str() == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_beyond_what_is_kept_are_the_highest_kept() {
        for (value, kept) in [(ByteLimits::MAX - 1, i64::MAX - 1), (ByteLimits::MAX, i64::MAX), (u64::MAX, i64::MAX)] {
            let limit = Limit { value, set_by: "p".to_owned() };
            let limits = ByteLimits::new(&[(Scope::Principal, limit)].into());
            assert_eq!(limits.stored(), [Some(kept), None]);
        }
    }
}
