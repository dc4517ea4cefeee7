//! The book of token buckets: who has used how much of which rate.
//!
//! The arithmetic is governor's; the book is ours. Per key it holds one number, the instant at which the
//! bucket will be full again, in nanoseconds since the Unix epoch. For each charge a throw-away limiter
//! with the quota of that call runs over a staged copy of the number: either every charge of a call passes
//! and all numbers are written back, or none is. A bucket that is full has no entry, so the book forgets
//! by itself. A book that cannot be read refuses; it never means "no limit".

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use governor::clock::FakeRelativeClock;
use governor::middleware::StateInformationMiddleware;
use governor::nanos::Nanos;
use governor::state::{NotKeyed, StateStore};
use governor::{Quota, RateLimiter};
use sha2::{Digest, Sha256};

use crate::model::{Balance, Bucket, Code, Failure, KeyedCharge, Principal, Timestamp};

/// The most keys of one account that are not full: a call costs a token of a bucket that refills, so only buckets of
/// very long intervals come near.
pub const ACCOUNT_KEYS_MAX: usize = 4096;
/// Accounts held in memory before full ones are swept out.
const ACCOUNTS_SWEPT_AT: usize = 1024;

/// Whose book a call is written in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// The authenticated principal's owner: its buckets are always charged.
    pub owner: String,
    /// The owner named beneath it: a bucket of its own within the account, charged as well.
    pub group: Option<String>,
}

impl Account {
    /// Returns the account of a principal's call.
    pub fn new(principal: &Principal, group_owner: Option<&str>) -> Self {
        Self { owner: principal.owner.clone(), group: group_owner.map(str::to_owned) }
    }

    /// Returns the keys that a charge on `bucket` touches.
    fn keys(&self, policy: &str, bucket: &str) -> impl Iterator<Item = Key> {
        let group = self.group.as_ref().map(|group| key(policy, bucket, Some(group)));
        std::iter::once(key(policy, bucket, None)).chain(group)
    }
}

/// The digest of (policy, bucket, group owner); the account is the fourth part.
pub(super) type Key = [u8; 32];

fn key(policy: &str, bucket: &str, group: Option<&str>) -> Key {
    let mut hash = Sha256::new();
    // The first byte tells no group from a group without a name; lengths keep the parts apart.
    hash.update([u8::from(group.is_some())]);
    for part in [policy, bucket, group.unwrap_or_default()] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize().into()
}

/// One account: key → when the bucket is full again, in nanoseconds since the epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entries(pub(super) BTreeMap<Key, u64>);

/// Keeps accounts. What is charged where is not its concern.
pub trait Book: Send + Sync {
    /// Returns an account as it stands.
    ///
    /// # Errors
    /// Fails if the account cannot be read.
    fn read(&self, owner: &str) -> Result<Entries, BookError>;

    /// Runs `change` on an account that nobody else changes meanwhile, and keeps the result if it succeeds.
    ///
    /// # Errors
    /// Fails as `change` does, or if the account cannot be had, read or written; then nothing is changed.
    fn update(
        &self,
        owner: &str,
        change: &mut dyn FnMut(&mut Entries) -> Result<(), BookError>,
    ) -> Result<(), BookError>;
}

impl dyn Book + '_ {
    /// Takes every charge, or none.
    ///
    /// # Errors
    /// Fails if a bucket has too little, now or ever, or if the account cannot be had.
    pub fn charge(&self, account: &Account, charges: &[KeyedCharge], now: Timestamp) -> Result<(), BookError> {
        if charges.is_empty() {
            return Ok(());
        }
        let mut overlong = false;
        let taken = self.update(&account.owner, &mut |entries| {
            overlong = shorten_all(entries, account, charges.iter().map(of_charge), now);
            take(entries, account, charges, now)
        });
        if taken.is_err() && overlong {
            // A refusal keeps nothing, and without this the next call would find the bucket as empty as this one did.
            self.update(&account.owner, &mut |entries| {
                shorten_all(entries, account, charges.iter().map(of_charge), now);
                Ok(())
            })?;
        }
        taken
    }

    /// Says what [`charge`](Self::charge) would, on a copy.
    ///
    /// # Errors
    /// Fails as the charge would.
    pub fn probe(&self, account: &Account, charges: &[KeyedCharge], now: Timestamp) -> Result<(), BookError> {
        if charges.is_empty() {
            return Ok(());
        }
        take(&mut self.read(&account.owner)?, account, charges, now)
    }

    /// Gives charges back that were taken for a call that never began.
    ///
    /// # Errors
    /// Fails if the account cannot be had; the charges then stay taken.
    pub fn refund(&self, account: &Account, charges: &[KeyedCharge], now: Timestamp) -> Result<(), BookError> {
        if charges.is_empty() {
            return Ok(());
        }
        self.update(&account.owner, &mut |entries| {
            for charge in charges {
                let given_ns = interval_ns(&charge.bucket).saturating_mul(u64::from(charge.cost));
                for key in account.keys(&charge.policy, &charge.bucket.name) {
                    if let Some(full_at_ns) = entries.0.get_mut(&key) {
                        *full_at_ns = full_at_ns.saturating_sub(given_ns);
                    }
                }
            }
            forget_full(entries, unix_ns(now));
            Ok(())
        })
    }

    /// Returns what is left in buckets, given with their policies.
    ///
    /// # Errors
    /// Fails if the account cannot be read.
    pub fn balances<'a>(
        &self,
        account: &Account,
        buckets: &'a [(String, Bucket)],
        now: Timestamp,
    ) -> Result<Vec<Balance>, BookError> {
        if buckets.is_empty() {
            return Ok(Vec::new());
        }
        let of_bucket = |(policy, bucket): &'a (String, Bucket)| (policy.as_str(), bucket);
        let mut entries = self.read(&account.owner)?;
        // Also for a policy that refuses by what is left, and so never comes to a charge.
        if shorten_all(&mut entries, account, buckets.iter().map(of_bucket), now) {
            self.update(&account.owner, &mut |entries| {
                shorten_all(entries, account, buckets.iter().map(of_bucket), now);
                Ok(())
            })?;
        }
        let balances = buckets.iter().map(|(policy, bucket)| {
            let keys = account.keys(policy, &bucket.name);
            let remaining = keys.map(|key| remaining(&entries, &key, bucket, unix_ns(now))).min().unwrap_or(0);
            Balance { policy: policy.clone(), bucket: bucket.name.clone(), remaining }
        });
        Ok(balances.collect())
    }
}

/// Why charges were not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BookError {
    /// A bucket has too little for now.
    #[error("the rate limit `{bucket}` of policy `{policy}` is used up for now")]
    Used {
        /// The policy.
        policy: String,
        /// Its bucket.
        bucket: String,
        /// When the same call would pass.
        retry_after_ms: u64,
    },
    /// A call costs more than a bucket ever holds.
    #[error(
        "the call costs {cost} of the rate limit `{bucket}` of policy `{policy}`, which never holds more than {burst}"
    )]
    OverBurst {
        /// The policy.
        policy: String,
        /// Its bucket.
        bucket: String,
        /// What the call costs.
        cost: u32,
        /// What the bucket holds.
        burst: u32,
    },
    /// Others held the account for too long.
    #[error("the record of rate limits was in use for longer than {waited_ms} ms")]
    Busy {
        /// How long was waited.
        waited_ms: u64,
    },
    /// The account has more keys in use than it may.
    #[error("the account has more than {ACCOUNT_KEYS_MAX} rate limits in use")]
    Full,
    /// A file is not what this program wrote.
    #[error("the record of rate limits is damaged: {detail}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        detail: &'static str,
    },
    /// A file cannot be read or written.
    #[error("the record of rate limits cannot be read or written")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        detail: String,
    },
}

impl From<BookError> for Failure {
    fn from(error: BookError) -> Self {
        let message = error.to_string();
        match error {
            BookError::Used { policy, bucket, retry_after_ms } => {
                let mut failure = Self::new(Code::RateLimited, message)
                    .hint(format!("try again in {retry_after_ms} ms"))
                    .retry_after_ms(retry_after_ms);
                failure.policy = Some((policy, bucket));
                failure
            }
            BookError::OverBurst { policy, bucket, .. } => {
                let mut failure =
                    Self::new(Code::QuotaExceeded, message).hint("ask for less in one call; waiting does not help");
                failure.policy = Some((policy, bucket));
                failure
            }
            BookError::Busy { .. } => Self::new(Code::Busy, message).hint("try again in a moment"),
            BookError::Full => Self::new(Code::Busy, message).hint("try again when some of them have filled up again"),
            BookError::Damaged { path, detail } => Self::new(Code::LimitsUnavailable, message)
                .hint("an operator can remove the file that the log names; its budgets then start full")
                .audit(format!("{}: {detail}", path.display())),
            BookError::Io { path, detail } => Self::new(Code::LimitsUnavailable, message)
                .hint("an operator finds the file and the reason in the log under the request id")
                .audit(format!("{}: {detail}", path.display())),
        }
    }
}

/// Takes every charge from `entries`, which is to be thrown away if this fails.
///
/// Of several buckets with too little the caller hears of one it can never satisfy, else of the one to wait longest for.
fn take(entries: &mut Entries, account: &Account, charges: &[KeyedCharge], now: Timestamp) -> Result<(), BookError> {
    let now_ns = unix_ns(now);
    let mut worst: Option<BookError> = None;
    for charge in charges {
        // What costs nothing takes nothing.
        let Some(cost) = NonZeroU32::new(charge.cost) else { continue };
        for key in account.keys(&charge.policy, &charge.bucket.name) {
            let staged = Staged::new(entries, &key, &charge.bucket, now_ns);
            match limiter(&staged, &charge.bucket).check_n(cost) {
                Ok(Ok(_)) => {
                    entries.0.insert(key, staged.full_at_ns());
                }
                Ok(Err(not_until)) => {
                    let wait: Duration = not_until.wait_time_from(Nanos::new(0));
                    let retry_after_ms = u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).max(1);
                    let (policy, bucket) = (charge.policy.clone(), charge.bucket.name.clone());
                    worst = Some(worse(worst, BookError::Used { policy, bucket, retry_after_ms }));
                }
                Err(_) => {
                    let (policy, bucket, burst) =
                        (charge.policy.clone(), charge.bucket.name.clone(), charge.bucket.burst);
                    worst = Some(worse(worst, BookError::OverBurst { policy, bucket, cost: charge.cost, burst }));
                }
            }
        }
    }
    forget_full(entries, now_ns);
    match worst {
        Some(error) => Err(error),
        None if entries.0.len() > ACCOUNT_KEYS_MAX => Err(BookError::Full),
        None => Ok(()),
    }
}

/// Keeps the graver of two reasons; of equal ones the first, which is the one whose policy sorts first.
fn worse(known: Option<BookError>, found: BookError) -> BookError {
    let gravity = |error: &BookError| match error {
        BookError::OverBurst { .. } => u64::MAX,
        BookError::Used { retry_after_ms, .. } => *retry_after_ms,
        BookError::Busy { .. } | BookError::Full | BookError::Damaged { .. } | BookError::Io { .. } => 0,
    };
    match known {
        Some(known) if gravity(&known) >= gravity(&found) => known,
        Some(_) | None => found,
    }
}

/// Returns what is left in a bucket, by trying for one token on a copy.
fn remaining(entries: &Entries, key: &Key, bucket: &Bucket, now_ns: u64) -> u32 {
    let staged = Staged::new(entries, key, bucket, now_ns);
    match limiter(&staged, bucket).check() {
        Ok(state) => state.remaining_burst_capacity().saturating_add(1),
        Err(_) => 0,
    }
}

/// Sets buckets that are noted to fill later than an empty one of their present quota to empty as of now, and returns
/// whether there were any: quotas that filled more slowly, or a clock that was ahead, left them so. What was used up
/// stays used up, and comes back at the pace of the quota that is in force.
fn shorten_all<'a>(
    entries: &mut Entries,
    account: &Account,
    buckets: impl Iterator<Item = (&'a str, &'a Bucket)>,
    now: Timestamp,
) -> bool {
    let Some(latest_ns) = entries.0.values().copied().max() else { return false };
    let mut any = false;
    for (policy, bucket) in buckets {
        let empty_until_ns = unix_ns(now).saturating_add(empty_ns(bucket));
        // Nothing in the account is later; its keys need not be made.
        if latest_ns <= empty_until_ns {
            continue;
        }
        for key in account.keys(policy, &bucket.name) {
            if let Some(full_at_ns) = entries.0.get_mut(&key).filter(|full_at_ns| **full_at_ns > empty_until_ns) {
                *full_at_ns = empty_until_ns;
                any = true;
            }
        }
    }
    any
}

fn of_charge(charge: &KeyedCharge) -> (&str, &Bucket) {
    (&charge.policy, &charge.bucket)
}

fn forget_full(entries: &mut Entries, now_ns: u64) {
    entries.0.retain(|_, full_at_ns| *full_at_ns > now_ns);
}

/// One number of the book, on its way through a limiter: nanoseconds from now until the bucket is full.
struct Staged {
    full_in_ns: Cell<u64>,
    now_ns: u64,
}

impl Staged {
    /// A bucket cannot be emptier than empty: were the clock set back, or the bucket made smaller, it counts as empty.
    fn new(entries: &Entries, key: &Key, bucket: &Bucket, now_ns: u64) -> Self {
        let full_at_ns = entries.0.get(key).copied().unwrap_or(now_ns);
        Self { full_in_ns: Cell::new(full_at_ns.saturating_sub(now_ns).min(empty_ns(bucket))), now_ns }
    }

    fn full_at_ns(&self) -> u64 {
        self.now_ns.saturating_add(self.full_in_ns.get())
    }
}

impl StateStore for &Staged {
    type Key = NotKeyed;

    fn measure_and_replace<T, F, E>(&self, _key: &NotKeyed, f: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        let (outcome, full_in) = f(Some(Nanos::new(self.full_in_ns.get())))?;
        self.full_in_ns.set(full_in.into());
        Ok(outcome)
    }
}

/// Makes a limiter whose clock stands at zero: the number it works on is relative to now.
fn limiter<'a>(
    staged: &'a Staged,
    bucket: &Bucket,
) -> RateLimiter<NotKeyed, &'a Staged, FakeRelativeClock, StateInformationMiddleware> {
    let burst = NonZeroU32::new(bucket.burst).unwrap_or(NonZeroU32::MIN);
    let interval = Duration::from_nanos(interval_ns(bucket));
    let quota = Quota::with_period(interval).unwrap_or(Quota::per_second(NonZeroU32::MIN)).allow_burst(burst);
    RateLimiter::<_, _, _, StateInformationMiddleware>::new(quota, staged, FakeRelativeClock::default())
}

/// Returns the time in which one token is gained, rounded up: never more than the policy says.
fn interval_ns(bucket: &Bucket) -> u64 {
    let interval_ns = u128::from(bucket.interval_ms) * 1_000_000;
    let one_ns = interval_ns.div_ceil(u128::from(bucket.per_interval.max(1)));
    u64::try_from(one_ns).unwrap_or(u64::MAX).max(1)
}

/// Returns the time in which an empty bucket is full again.
fn empty_ns(bucket: &Bucket) -> u64 {
    interval_ns(bucket).saturating_mul(u64::from(bucket.burst))
}

fn unix_ns(now: Timestamp) -> u64 {
    now.unix_ms().saturating_mul(1_000_000)
}

/// A book in memory, for one process that shares with none.
#[derive(Debug, Default)]
pub struct MemoryBook {
    accounts: Mutex<HashMap<String, Arc<Mutex<Entries>>>>,
}

impl MemoryBook {
    fn account(&self, owner: &str) -> Arc<Mutex<Entries>> {
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        if accounts.len() >= ACCOUNTS_SWEPT_AT {
            // One that somebody holds may be about to be charged.
            accounts.retain(|_, account| {
                Arc::strong_count(account) > 1 || !account.lock().unwrap_or_else(PoisonError::into_inner).0.is_empty()
            });
        }
        Arc::clone(accounts.entry(owner.to_owned()).or_default())
    }
}

impl Book for MemoryBook {
    fn read(&self, owner: &str) -> Result<Entries, BookError> {
        let account = self.account(owner);
        let entries = account.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(entries.clone())
    }

    fn update(
        &self,
        owner: &str,
        change: &mut dyn FnMut(&mut Entries) -> Result<(), BookError>,
    ) -> Result<(), BookError> {
        let account = self.account(owner);
        let mut entries = account.lock().unwrap_or_else(PoisonError::into_inner);
        let mut staged = entries.clone();
        change(&mut staged)?;
        *entries = staged;
        Ok(())
    }
}

#[cfg(test)]
#[path = "book_tests.rs"]
mod tests;
