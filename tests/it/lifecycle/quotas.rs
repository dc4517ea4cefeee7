//! Quotas are exact, whoever counts and however many ask at once.

use std::collections::BTreeMap;

use pgsandbox::admission::SystemReason;
use pgsandbox::model::{Code, Limit, Origin, PlanId, RequestId, SandboxId, SandboxNames, Scope};
use pgsandbox::store::{QuotaExceeded, QuotaLimits, Reservation, ReserveError, Reserved, Store};

use super::{ground, limited};
use crate::toy_engine::{any_permit, create, create_as, request, upkeep};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn twenty_parallel_creates_with_a_limit_of_three_give_exactly_three() {
    let ground = ground();
    let cores = [ground.core_with(limited(3)).await, ground.core_with(limited(3)).await];
    let calls = (0..20).map(|n| {
        let core = cores[n % 2].clone();
        tokio::spawn(async move { create(&core).await })
    });
    let mut refused = Vec::new();
    for call in calls.collect::<Vec<_>>() {
        if let Err(failure) = call.await.unwrap() {
            assert_eq!(failure.code, Code::QuotaExceeded, "{failure}");
            refused.push(failure.message);
        }
    }
    assert_eq!(refused.len(), 17);
    let expected = "owner `system:recovery` has 3 live sandboxes on profile `local`; the limit is 3, set by `profile`";
    assert_eq!(refused[0], expected);
    ground.check_settled(3, "twenty creates").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_sandboxes_count_and_those_in_removal_do_not() {
    let ground = ground();
    let core = ground.core_with(limited(1)).await;
    let first = create(&core).await.unwrap();
    ground.all_expire().await;
    assert_eq!(create(&core).await.unwrap_err().code, Code::QuotaExceeded);
    ground.world.with(|things| things.stuck.insert(first.names.database.clone()));
    core.delete(&any_permit(), first.id, None).await.unwrap();
    create(&core).await.unwrap();
    // Another owner has a quota of its own.
    create_as(&core, SystemReason::Pool, request()).await.unwrap();
}

/// Reserves without a plan's work: quotas are the store's.
async fn reserve(
    store: &Store,
    (owner, group): (&str, Option<&str>),
    limits: &QuotaLimits,
) -> Result<Reserved, ReserveError> {
    let id = SandboxId::fresh();
    let reservation = Reservation {
        id,
        plan: PlanId::fresh(),
        first: Vec::new(),
        request_id: RequestId::fresh(),
        names: SandboxNames::new("toy", None, id),
        engine: "toy".to_owned(),
        owner_sealed: vec![1],
        readonly_sealed: vec![1],
        owner: owner.to_owned(),
        subject: owner.to_owned(),
        group_owner: group.map(str::to_owned),
        labels: Vec::new(),
        hint: None,
        origin: Origin::Empty,
        source: None,
        template: None,
        extensions: Vec::new(),
        ttl_minutes: 60,
        limits: limits.clone(),
        idempotency: None,
    };
    store.reserve(&reservation).await
}

fn limit(value: u64) -> Limit {
    Limit { value, set_by: "quota".to_owned() }
}

fn live(limits: &[(Scope, u64)]) -> QuotaLimits {
    let live = limits.iter().map(|&(scope, value)| (scope, limit(value))).collect();
    QuotaLimits { live, bytes: BTreeMap::new() }
}

fn check_refused(result: Result<Reserved, ReserveError>, who: &str) {
    match result {
        Err(ReserveError::Quota(
            QuotaExceeded::Live { who: got, .. }
            | QuotaExceeded::Bytes { who: got, .. }
            | QuotaExceeded::Backlog { who: got, .. },
        )) => assert_eq!(got, who),
        other => panic!("{other:?} instead of a quota of {who}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_owner_is_charged_as_well_and_never_instead() {
    let ground = ground();
    let store = ground.store();
    store.open().await.unwrap();
    let limits = live(&[(Scope::Principal, 3), (Scope::Group, 2)]);
    for group in ["a", "a", "b"] {
        reserve(&store, ("ci", Some(group)), &limits).await.unwrap();
    }
    // Inventing owners buys nothing.
    check_refused(reserve(&store, ("ci", Some("c")), &limits).await, "owner `ci`");
    check_refused(reserve(&store, ("ci", None), &limits).await, "owner `ci`");
    // A group owner stands beneath the owner who names it: another's of that name is another bucket, full or not.
    for _ in 0..2 {
        reserve(&store, ("other", Some("a")), &limits).await.unwrap();
    }
    check_refused(reserve(&store, ("other", Some("a")), &limits).await, "group owner `a`");
    let (principal, group) = store.usage("ci", Some("a")).await.unwrap();
    assert_eq!((principal.live, group.unwrap().live), (3, 2));
    assert_eq!(store.usage("other", None).await.unwrap().1, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_owner_is_a_bucket_too() {
    let ground = ground();
    let store = ground.store();
    store.open().await.unwrap();
    let limits = live(&[(Scope::Principal, 1)]);
    reserve(&store, ("", None), &limits).await.unwrap();
    check_refused(reserve(&store, ("", None), &limits).await, "owner ``");
    // Whoever names no group owner has what is left of the principal's own.
    let limits = live(&[(Scope::Group, 1)]);
    reserve(&store, ("ci", Some("a")), &limits).await.unwrap();
    reserve(&store, ("ci", None), &limits).await.unwrap();
    check_refused(reserve(&store, ("ci", None), &limits).await, "owner `ci` without a group owner");
    reserve(&store, ("ci", Some("")), &limits).await.unwrap();
    check_refused(reserve(&store, ("ci", Some("")), &limits).await, "group owner ``");
    reserve(&store, ("other", Some("")), &limits).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_when_last_measured_are_a_quota() {
    let ground = ground();
    let core = ground.core().await;
    create(&core).await.unwrap();
    upkeep(&core).await.unwrap();
    let (usage, _) = core.usage("local", "system:recovery", None).await.unwrap();
    assert_eq!((usage.live, usage.bytes), (1, 1000));
    let store = ground.store();
    store.open().await.unwrap();
    let bytes = |value| QuotaLimits { live: BTreeMap::new(), bytes: [(Scope::Principal, limit(value))].into() };
    check_refused(reserve(&store, ("system:recovery", None), &bytes(1000)).await, "owner `system:recovery`");
    reserve(&store, ("system:recovery", None), &bytes(1001)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_backlog_of_removals_is_bounded() {
    let ground = ground();
    let store = ground.store();
    store.open().await.unwrap();
    for _ in 0..64 {
        reserve(&store, ("ci", None), &QuotaLimits::default()).await.unwrap();
    }
    ground.sql("update pgsandbox.sandboxes set state = 'deleting'").await;
    check_refused(reserve(&store, ("ci", None), &QuotaLimits::default()).await, "owner `ci`");
    reserve(&store, ("other", None), &QuotaLimits::default()).await.unwrap();
}
