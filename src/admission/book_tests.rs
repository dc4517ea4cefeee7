use crate::model::{Identity, Transport};

use super::*;

const START: Timestamp = Timestamp::from_unix_ms(1_800_000_000_000);

fn at(ms: u64) -> Timestamp {
    START.plus(Duration::from_millis(ms))
}

fn bucket(name: &str, burst: u32, interval_ms: u64) -> Bucket {
    Bucket { name: name.into(), burst, per_interval: 1, interval_ms }
}

fn charge(bucket: Bucket, cost: u32) -> KeyedCharge {
    KeyedCharge { policy: "rate".into(), bucket, cost }
}

fn account(owner: &str, group: Option<&str>) -> Account {
    Account { owner: owner.into(), group: group.map(str::to_owned) }
}

fn left(book: &dyn Book, account: &Account, bucket: &Bucket, now: Timestamp) -> u32 {
    book.balances(account, &[("rate".into(), bucket.clone())], now).unwrap()[0].remaining
}

#[test]
fn a_bucket_gives_its_burst_and_then_one_each_interval() {
    let book: &dyn Book = &MemoryBook::default();
    let (me, calls) = (account("me", None), bucket("calls", 3, 1000));
    for spent in 0..3 {
        assert_eq!(left(book, &me, &calls, at(0)), 3 - spent);
        book.charge(&me, &[charge(calls.clone(), 1)], at(0)).unwrap();
    }
    let error = book.charge(&me, &[charge(calls.clone(), 1)], at(400)).unwrap_err();
    assert_eq!(error, BookError::Used { policy: "rate".into(), bucket: "calls".into(), retry_after_ms: 600 });
    assert_eq!(book.charge(&me, &[charge(calls.clone(), 1)], at(1000)), Ok(()), "the named wait is enough");
    assert_eq!(left(book, &me, &calls, at(1000)), 0);
    assert_eq!(left(book, &me, &calls, at(10_000)), 3, "and no more than the burst gathers");
}

#[test]
fn gains_are_never_faster_than_the_policy_says() {
    let book: &dyn Book = &MemoryBook::default();
    let me = account("me", None);
    let thirds = Bucket { name: "b".into(), burst: 1, per_interval: 3, interval_ms: 1000 };
    let taken = (0..=1000).filter(|ms| book.charge(&me, &[charge(thirds.clone(), 1)], at(*ms)).is_ok()).count();
    assert_eq!(taken, 3, "at 0, 334 and 668 ms; the fourth would be a third of a nanosecond early");
}

#[test]
fn charges_are_taken_all_or_none() {
    let book: &dyn Book = &MemoryBook::default();
    let me = account("me", None);
    let (wide, narrow) = (bucket("wide", 10, 1000), bucket("narrow", 1, 1000));
    let both = [charge(wide.clone(), 4), charge(narrow.clone(), 1)];
    assert_eq!(book.charge(&me, &both, at(0)), Ok(()));
    assert!(book.charge(&me, &both, at(0)).is_err());
    assert_eq!(left(book, &me, &wide, at(0)), 6, "the second call took nothing from the bucket that had enough");
}

#[test]
fn a_cost_above_the_burst_is_a_quota_without_a_wait() {
    let book: &dyn Book = &MemoryBook::default();
    let both = [charge(bucket("empty", 1, 60_000), 1), charge(bucket("small", 2, 1000), 3)];
    book.charge(&account("me", None), &both[..1], at(0)).unwrap();
    let failure = Failure::from(book.charge(&account("me", None), &both, at(0)).unwrap_err());
    assert_eq!((failure.code, failure.retry_after_ms, failure.retryable), (Code::QuotaExceeded, None, false));
}

#[test]
fn of_several_empty_buckets_the_longest_wait_is_told() {
    let book: &dyn Book = &MemoryBook::default();
    let both = [charge(bucket("slow", 1, 9000), 1), charge(bucket("fast", 1, 10), 1)];
    book.charge(&account("me", None), &both, at(0)).unwrap();
    let failure = Failure::from(book.charge(&account("me", None), &both, at(0)).unwrap_err());
    assert_eq!((failure.code, failure.retry_after_ms), (Code::RateLimited, Some(9000)));
}

#[test]
fn an_invented_group_owner_buys_nothing() {
    let book: &dyn Book = &MemoryBook::default();
    let calls = bucket("calls", 2, 1000);
    for group in ["a", "b"] {
        book.charge(&account("me", Some(group)), &[charge(calls.clone(), 1)], at(0)).unwrap();
    }
    assert!(book.charge(&account("me", Some("c")), &[charge(calls.clone(), 1)], at(0)).is_err());
    assert_eq!(left(book, &account("me", Some("c")), &calls, at(0)), 0);
    assert_eq!(left(book, &account("you", Some("a")), &calls, at(0)), 2, "and costs nobody else anything");
}

#[test]
fn a_refund_is_exact() {
    let book = MemoryBook::default();
    let (me, calls) = (account("me", Some("team")), bucket("calls", 5, 1000));
    let call = [charge(calls.clone(), 2)];
    (&book as &dyn Book).charge(&me, &call, at(0)).unwrap();
    let before = book.read("me").unwrap();
    (&book as &dyn Book).charge(&me, &call, at(100)).unwrap();
    (&book as &dyn Book).refund(&me, &call, at(200)).unwrap();
    assert_eq!(book.read("me").unwrap(), before);
    (&book as &dyn Book).refund(&me, &call, at(200)).unwrap();
    assert_eq!(book.read("me").unwrap(), Entries::default(), "a full bucket has no entry");
    (&book as &dyn Book).refund(&me, &call, at(200)).unwrap();
    assert_eq!(left(&book, &me, &calls, at(200)), 5, "and a bucket is never more than full");
}

#[test]
fn trying_takes_nothing() {
    let book = MemoryBook::default();
    let (me, call) = (account("me", None), [charge(bucket("calls", 1, 1000), 1)]);
    assert_eq!((&book as &dyn Book).probe(&me, &call, at(0)), Ok(()));
    assert_eq!(book.read("me").unwrap(), Entries::default());
    (&book as &dyn Book).charge(&me, &call, at(0)).unwrap();
    assert!((&book as &dyn Book).probe(&me, &call, at(0)).is_err());
}

#[test]
fn a_clock_set_back_costs_at_most_one_filling() {
    let book: &dyn Book = &MemoryBook::default();
    let (me, calls) = (account("me", None), bucket("calls", 2, 1000));
    book.charge(&me, &[charge(calls.clone(), 1)], at(86_400_000)).unwrap();
    let Err(BookError::Used { retry_after_ms, .. }) = book.charge(&me, &[charge(calls, 1)], at(0)) else {
        panic!("a bucket whose filling lies in the future counts as empty");
    };
    assert_eq!(retry_after_ms, 1000);
}

#[test]
fn the_largest_buckets_do_not_overflow() {
    let book: &dyn Book = &MemoryBook::default();
    let me = account("me", None);
    let year = crate::policy::BUCKET_FILL_MS_MAX;
    let slow = Bucket { name: "slow".into(), burst: 1, per_interval: 1, interval_ms: year };
    let fine = Bucket { name: "fine".into(), burst: u32::MAX, per_interval: u32::MAX, interval_ms: year };
    for bucket in [slow, fine] {
        let burst = bucket.burst;
        book.charge(&me, &[charge(bucket.clone(), burst)], at(0)).unwrap();
        assert_eq!(left(book, &me, &bucket, at(0)), 0);
        assert!(book.charge(&me, &[charge(bucket.clone(), 1)], at(0)).is_err());
    }
}

#[test]
fn an_account_has_a_bound() {
    let book: &dyn Book = &MemoryBook::default();
    let me = account("me", None);
    let charges: Vec<_> = (0..=ACCOUNT_KEYS_MAX).map(|n| charge(bucket(&n.to_string(), 2, 1000), 1)).collect();
    assert_eq!(book.charge(&me, &charges, at(0)), Err(BookError::Full));
    assert_eq!(book.charge(&me, &charges[1..], at(0)), Ok(()));
    assert_eq!(Failure::from(BookError::Full).code, Code::Busy);
}

#[test]
fn idle_accounts_are_forgotten() {
    let book = MemoryBook::default();
    for n in 0..ACCOUNTS_SWEPT_AT * 2 {
        (&book as &dyn Book).refund(&account(&n.to_string(), None), &[charge(bucket("b", 1, 1), 1)], at(0)).unwrap();
    }
    assert!(book.accounts.lock().unwrap().len() <= ACCOUNTS_SWEPT_AT);
}

#[test]
fn keys_do_not_run_together() {
    let keys = [
        key("ab", "c", None),
        key("a", "bc", None),
        key("a", "b", Some("c")),
        key("a", "b", None),
        key("a", "b", Some("")),
    ];
    let distinct: std::collections::BTreeSet<_> = keys.iter().collect();
    assert_eq!(distinct.len(), keys.len());
}

#[test]
fn an_account_is_the_owners_not_the_subjects() {
    let principal = Principal {
        subject: "token-7".into(),
        owner: "team".into(),
        groups: Vec::new(),
        transport: Transport::Http,
        client: "c".into(),
        identity: Identity::Certain,
    };
    assert_eq!(Account::new(&principal, Some("g")), account("team", Some("g")));
}

#[test]
fn a_clock_that_was_set_back_costs_one_empty_bucket_and_no_more() {
    let book: &dyn Book = &MemoryBook::default();
    let (me, calls) = (account("me", None), bucket("calls", 3, 1000));
    let year_ms = 366 * 86_400_000;
    for _ in 0..3 {
        book.charge(&me, &[charge(calls.clone(), 1)], at(year_ms)).unwrap();
    }
    let refused = book.charge(&me, &[charge(calls.clone(), 1)], at(0)).unwrap_err();
    assert_eq!(refused, BookError::Used { policy: "rate".into(), bucket: "calls".into(), retry_after_ms: 1000 });
    assert_eq!(book.charge(&me, &[charge(calls.clone(), 1)], at(1000)), Ok(()), "the named wait is enough");
}

/// One call of a quota that gives two in ten minutes each, three times, then another quota under the same name.
fn used_up_under_a_slow_quota(book: &dyn Book) {
    let slow = [charge(bucket("calls", 2, 600_000), 1)];
    book.charge(&account("me", None), &slow, at(0)).unwrap();
    book.charge(&account("me", None), &slow, at(0)).unwrap();
    assert!(book.charge(&account("me", None), &slow, at(0)).is_err());
}

#[test]
fn a_raised_quota_fills_at_its_own_pace_at_once() {
    let book: &dyn Book = &MemoryBook::default();
    let me = account("me", None);
    used_up_under_a_slow_quota(book);
    let raised = [charge(bucket("calls", 20_000, 3), 1)];
    let refused = book.charge(&me, &raised, at(1000)).unwrap_err();
    assert!(
        matches!(refused, BookError::Used { retry_after_ms: 3, .. }),
        "what was used up is not forgotten: {refused}"
    );
    assert_eq!(book.charge(&me, &raised, at(1003)), Ok(()), "the named wait is enough");
    assert_eq!(left(book, &me, &raised[0].bucket, at(1003 + 60_000)), 20_000, "full after the new quota's own time");
}

#[test]
fn looking_at_a_balance_is_enough_for_a_raised_quota_to_fill() {
    let book: &dyn Book = &MemoryBook::default();
    let (me, raised) = (account("me", None), bucket("calls", 10, 1000));
    used_up_under_a_slow_quota(book);
    assert_eq!(left(book, &me, &raised, at(0)), 0);
    assert_eq!(left(book, &me, &raised, at(3000)), 3);
}

#[test]
fn a_lowered_quota_keeps_what_was_used_up() {
    let book: &dyn Book = &MemoryBook::default();
    let me = account("me", None);
    let wide = bucket("calls", 1000, 1000);
    book.charge(&me, &[charge(wide.clone(), 1000)], at(0)).unwrap();
    let lowered = [charge(bucket("calls", 2, 1000), 1)];
    let refused = book.charge(&me, &lowered, at(0)).unwrap_err();
    assert!(matches!(refused, BookError::Used { retry_after_ms: 1000, .. }), "{refused}");
    assert_eq!(left(book, &me, &lowered[0].bucket, at(1000)), 1);
    assert_eq!(
        left(book, &me, &lowered[0].bucket, at(2000)),
        2,
        "it locks for the new quota's own time, not for 1000 s"
    );
}

#[test]
fn a_refused_call_shortens_the_other_buckets_of_the_call_as_well() {
    let book: &dyn Book = &MemoryBook::default();
    let me = account("me", Some("team"));
    let slow = [charge(bucket("calls", 1, 600_000), 1)];
    book.charge(&me, &slow, at(0)).unwrap();
    let both = [charge(bucket("calls", 1, 10), 1), charge(bucket("small", 1, 10), 2)];
    assert!(matches!(book.charge(&me, &both, at(0)), Err(BookError::OverBurst { .. })));
    assert_eq!(left(book, &me, &both[0].bucket, at(10)), 1);
}
