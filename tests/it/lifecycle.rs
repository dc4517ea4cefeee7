//! What the lifecycle core promises its callers, over an engine that is not Postgres.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use pgsandbox::admission::{Permit, SystemReason};
use pgsandbox::model::{
    Code, CredentialAccess, Failure, Limit, Origin, PlanId, RequestId, SandboxId, SandboxNames, Scope, Silent,
};
use pgsandbox::sandbox::{
    CleanupFilter, Core, CreateRequest, Idempotency, ListFilter, Orphans, Parts, Profile, ProfileSettings, Sandbox,
    Selector, State, UpkeepAudit,
};
use pgsandbox::secret::{KeyRing, KeySource};
use pgsandbox::store::{QuotaExceeded, QuotaLimits, Reservation, ReserveError, Reserved, Store, StoreError};
use tokio_util::sync::CancellationToken;

use super::toy_engine::{
    Ground, Setup, World, any_permit, authority, create, create_as, permit, request, settings, upkeep,
};

/// Long enough for any removal here; a removal that takes it is a failure.
const WAIT: Duration = Duration::from_secs(20);

fn ground() -> Arc<Ground> {
    Arc::new(Ground::new())
}

fn limited(max: u64) -> Setup {
    Setup { settings: ProfileSettings { max_active_per_owner: Some(max), ..settings() }, ..Setup::default() }
}

fn by_name(name: &str) -> Selector {
    Selector { database_name: Some(name.to_owned()), ..Selector::default() }
}

fn by_id(id: SandboxId) -> Selector {
    Selector { database_id: Some(id.to_string()), ..Selector::default() }
}

async fn find(core: &Core, selector: &Selector) -> Result<Sandbox, Code> {
    let target = core.resolve(selector).await.map_err(|failure| failure.code)?;
    target.sandbox().cloned().map_err(|failure| failure.code)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_is_made_found_lent_extended_and_removed() {
    let ground = ground();
    let core = ground.core().await;
    let labels = vec![("task".to_owned(), "invoices".to_owned())];
    let asked = CreateRequest { ttl_minutes: Some(30), labels: labels.clone(), ..request() };
    let made = create_as(&core, SystemReason::Pool, asked).await.unwrap().sandbox;
    assert_eq!(made.state, State::Ready);
    assert_eq!(made.labels, labels);
    assert_eq!(made.owner, "system:pool");
    assert_eq!(made.engine, "toy");
    assert_eq!(made.expires_at.ms_since(made.created_at), 30 * 60_000);
    assert!(made.names.database.starts_with("toy_task_"));
    assert_eq!(find(&core, &by_id(made.id)).await.unwrap().names, made.names);
    assert_eq!(find(&core, &by_name(&made.names.database)).await.unwrap().id, made.id);

    let (info, password) = core.credentials(&any_permit(), made.id, CredentialAccess::Owner).await.unwrap();
    assert_eq!(info.user, made.names.owner_role);
    assert_eq!(password.expose().len(), 43);
    let (info, other) = core.credentials(&any_permit(), made.id, CredentialAccess::ReadOnly).await.unwrap();
    assert_eq!(info.user, made.names.readonly_role);
    assert_ne!(password, other);

    let extended = core.extend(&any_permit(), made.id, 90).await.unwrap();
    assert!(extended.expires_at > made.expires_at);
    assert_eq!(ground.world.with(|things| things.expiry[&made.names.database]), extended.expires_at);

    let gone = core.delete(&any_permit(), made.id, Some(WAIT)).await.unwrap();
    assert_eq!(gone.state, State::Deleted);
    ground.check_settled(0, "deleted").await;
    assert_eq!(find(&core, &by_id(made.id)).await, Err(Code::DatabaseNotFound));
    let again = core.delete(&any_permit(), made.id, Some(WAIT)).await.unwrap_err();
    assert_eq!(again.code, Code::DatabaseNotFound);
    let kept = ground.count("select count(*) from pgsandbox.sandboxes where length(owner_sealed) > 0").await;
    assert_eq!(kept, 0, "a removed sandbox keeps no password");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metadata_never_holds_a_password_in_the_clear() {
    let ground = ground();
    let core = ground.core().await;
    let made = create(&core).await.unwrap();
    let (_, password) = core.credentials(&any_permit(), made.id, CredentialAccess::Owner).await.unwrap();
    let sql = format!(
        "select count(*) from pgsandbox.sandboxes where position('{}'::bytea in owner_sealed) > 0",
        password.expose()
    );
    assert_eq!(ground.count(&sql).await, 0);
}

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

fn keyed(key: &str, digest: u8) -> CreateRequest {
    CreateRequest { idempotency: Some(Idempotency { key: key.to_owned(), digest: [digest; 32] }), ..request() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idempotency_key_gives_one_sandbox() {
    let ground = ground();
    let core = ground.core().await;
    let reason = SystemReason::Pool;
    let calls = (0..8).map(|_| {
        let core = core.clone();
        tokio::spawn(async move { create_as(&core, reason, keyed("k", 1)).await.unwrap() })
    });
    let mut ids = BTreeSet::new();
    let mut fresh = 0;
    for call in calls.collect::<Vec<_>>() {
        let created = call.await.unwrap();
        ids.insert(created.sandbox.id);
        fresh += usize::from(!created.replayed);
    }
    assert_eq!((ids.len(), fresh), (1, 1));
    let other = create_as(&core, reason, keyed("k", 2)).await.unwrap_err();
    assert_eq!(other.code, Code::IdempotencyConflict);
    // Another principal's key is another key.
    let theirs = create_as(&core, SystemReason::Reaper, keyed("k", 2)).await.unwrap();
    assert!(!theirs.replayed);
    // The key stands for that sandbox, though it is gone.
    let id = *ids.first().unwrap();
    core.delete(&any_permit(), id, Some(WAIT)).await.unwrap();
    let gone = create_as(&core, reason, keyed("k", 1)).await.unwrap_err();
    assert_eq!(gone.code, Code::DatabaseNotFound);
    ground.sql("update pgsandbox.idempotency set expires_at = now()").await;
    assert!(!create_as(&core, reason, keyed("k", 1)).await.unwrap().replayed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_whose_creation_failed_is_free_again() {
    let ground = ground();
    let script = super::toy_engine::Script::fail_at(12);
    let core = ground.core_with(Setup { points: script.clone(), ..Setup::default() }).await;
    let failed = create_as(&core, SystemReason::Pool, keyed("k", 1)).await;
    assert!(failed.is_err() && script.fired(), "{failed:?}");
    ground.time_passes().await;
    upkeep(&core).await.unwrap();
    assert!(!create_as(&core, SystemReason::Pool, keyed("k", 1)).await.unwrap().replayed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stuck_sandboxes_do_not_starve_the_rest() {
    let ground = ground();
    let core = ground.core().await;
    let mut names = Vec::new();
    for _ in 0..12 {
        names.push(create(&core).await.unwrap().names.database);
    }
    let stuck: BTreeSet<String> = names[..9].iter().cloned().collect();
    ground.world.with(|things| things.stuck.clone_from(&stuck));
    ground.all_expire().await;
    for attempt in 0..3 {
        ground.time_passes().await;
        upkeep(&core).await.unwrap();
        assert_eq!(ground.world.with(|things| things.databases.clone()), stuck, "attempt {attempt}");
    }
    let orphans = core.orphans("local").await.unwrap();
    assert_eq!(orphans.stuck.len(), 9);
    assert!(orphans.stuck[0].1.contains("the toy says no"), "{}", orphans.stuck[0].1);
    // Not due again yet, so a round leaves them alone.
    let before = ground.count("select sum(attempts) from pgsandbox.plans").await;
    upkeep(&core).await.unwrap();
    assert_eq!(ground.count("select sum(attempts) from pgsandbox.plans").await, before);
    ground.world.with(|things| things.stuck.clear());
    ground.time_passes().await;
    upkeep(&core).await.unwrap();
    ground.check_settled(0, "nothing is stuck any more").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removal_says_deleted_only_when_all_is_gone() {
    let ground = ground();
    let core = ground.core().await;
    let made = create(&core).await.unwrap();
    ground.world.with(|things| things.stuck.insert(made.names.database.clone()));
    let failure = core.delete(&any_permit(), made.id, Some(WAIT)).await.unwrap_err();
    assert!(failure.retryable);
    assert!(ground.world.with(|things| things.open.is_empty()), "nobody can log in");
    assert_eq!(find(&core, &by_id(made.id)).await.unwrap().state, State::Deleting);
    let listed = core.list(&ListFilter::default()).await.unwrap();
    assert!(listed.databases.is_empty());
    let code = core.credentials(&any_permit(), made.id, CredentialAccess::Owner).await.unwrap_err().code;
    assert_eq!(code, Code::SandboxNotReady);
    ground.world.with(|things| things.stuck.clear());
    let again = core.delete(&any_permit(), made.id, Some(WAIT)).await.unwrap();
    assert_eq!(again.state, State::Deleted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_that_remove_the_same_sandbox_all_hear_that_it_is_gone() {
    let ground = ground();
    let cores = [ground.core().await, ground.core().await];
    let made = create(&cores[0]).await.unwrap();
    let calls = (0..8).map(|n| {
        let (core, id) = (cores[n % 2].clone(), made.id);
        tokio::spawn(async move { core.delete(&any_permit(), id, Some(WAIT)).await })
    });
    for call in calls.collect::<Vec<_>>() {
        match call.await.unwrap() {
            Ok(deleted) => assert_eq!(deleted.state, State::Deleted),
            Err(failure) => assert_eq!(failure.code, Code::DatabaseNotFound, "{failure}"),
        }
    }
    ground.check_settled(0, "deleted many times").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_sandbox_refuses_use_and_may_be_extended_until_it_is_cleaned_up() {
    let ground = ground();
    let core = ground.core().await;
    let made = create(&core).await.unwrap();
    ground.all_expire().await;
    let id = made.id;
    let code = |failure: Failure| failure.code;
    let used = core.credentials(&any_permit(), id, CredentialAccess::Owner).await.map(drop).map_err(code);
    assert_eq!(used, Err(Code::SandboxExpired));
    let used = core.session(&any_permit(), id, CredentialAccess::ReadOnly).await.map(drop).map_err(code);
    assert_eq!(used, Err(Code::SandboxExpired));
    assert!(find(&core, &by_id(id)).await.unwrap().expired());
    assert!(core.list(&ListFilter::default()).await.unwrap().databases.is_empty());
    let all = ListFilter { include_expired: true, ..ListFilter::default() };
    assert_eq!(core.list(&all).await.unwrap().databases.len(), 1);
    core.extend(&any_permit(), id, 30).await.unwrap();
    core.credentials(&any_permit(), id, CredentialAccess::Owner).await.unwrap();
    upkeep(&core).await.unwrap();
    ground.check_settled(1, "extended").await;
    ground.all_expire().await;
    upkeep(&core).await.unwrap();
    ground.check_settled(0, "reaped").await;
    assert_eq!(core.extend(&any_permit(), id, 30).await.map_err(code), Err(Code::DatabaseNotFound));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_life_stays_within_the_maximum() {
    let ground = ground();
    let core = ground.core().await;
    let id = create(&core).await.unwrap().id;
    ground.sql("update pgsandbox.sandboxes set created_at = now() - interval '70 minutes'").await;
    core.extend(&any_permit(), id, 49).await.unwrap();
    let over = core.extend(&any_permit(), id, 51).await.unwrap_err();
    assert_eq!(over.code, Code::InvalidTtl);
    assert!(over.hint.unwrap().starts_with("ask for "));
    for minutes in [0, 121, u64::MAX] {
        assert_eq!(core.extend(&any_permit(), id, minutes).await.unwrap_err().code, Code::InvalidTtl, "{minutes}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cleanup_selects_by_owner_and_label_and_can_only_look() {
    let ground = ground();
    let core = ground.core().await;
    let labelled = CreateRequest { labels: vec![("task".to_owned(), "x".to_owned())], ..request() };
    create_as(&core, SystemReason::Pool, labelled.clone()).await.unwrap();
    create_as(&core, SystemReason::Pool, request()).await.unwrap();
    create_as(&core, SystemReason::Reaper, labelled).await.unwrap();
    let filter = CleanupFilter {
        owner: Some("system:pool".to_owned()),
        labels: vec![("task".to_owned(), "x".to_owned())],
        ..CleanupFilter::default()
    };
    let none = core.cleanup(&any_permit(), &filter, false).await.unwrap();
    assert!(none.selected.is_empty(), "nothing has expired");
    ground.all_expire().await;
    let looked = core.cleanup(&any_permit(), &filter, true).await.unwrap();
    assert_eq!((looked.selected.len(), looked.deleted.len()), (1, 0));
    ground.check_settled(3, "a dry run").await;
    let done = core.cleanup(&any_permit(), &filter, false).await.unwrap();
    assert_eq!(done.deleted, [looked.selected[0].id]);
    ground.check_settled(2, "filtered").await;
    let rest = core.cleanup(&any_permit(), &CleanupFilter::default(), false).await.unwrap();
    assert_eq!(rest.deleted.len(), 2);
    ground.check_settled(0, "all").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_a_list_show_each_sandbox_once() {
    let ground = ground();
    let core = ground.core().await;
    let mut made = Vec::new();
    for _ in 0..7 {
        made.push(create(&core).await.unwrap().id);
    }
    // The same instant for several: ties are broken, none is lost.
    ground.sql("update pgsandbox.sandboxes set created_at = date_trunc('hour', now())").await;
    let mut filter = ListFilter { limit: Some(3), ..ListFilter::default() };
    let (mut seen, mut pages) = (Vec::new(), 0);
    loop {
        let page = core.list(&filter).await.unwrap();
        pages += 1;
        seen.extend(page.databases.iter().map(|sandbox| sandbox.id));
        assert_eq!(page.truncated, page.next_cursor.is_some());
        match page.next_cursor {
            Some(cursor) => filter.cursor = Some(cursor),
            None => break,
        }
    }
    made.sort_unstable();
    seen.sort_unstable();
    assert_eq!((seen, pages), (made, 3));
    let bad = ListFilter { cursor: Some("x".to_owned()), ..ListFilter::default() };
    assert_eq!(core.list(&bad).await.unwrap_err().code, Code::InvalidArguments);
}

/// A core with two profiles on two grounds, of which the second may be down.
async fn two_profiles(first: &Ground, second: &Ground) -> Core {
    let profiles: Vec<Profile> =
        vec![first.profile("local", Setup::default()), second.profile("remote", Setup::default())];
    Core::new(Parts { profiles, default_profile: "local".to_owned(), keys: first.keys().await }).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_profile_that_is_down_is_reported_beside_the_others() {
    let (up, down) = (ground(), ground());
    down.world.with(|things| things.down = true);
    let core = two_profiles(&up, &down).await;
    let made = create(&core).await.unwrap();
    let list = core.list(&ListFilter::default()).await.unwrap();
    assert_eq!(list.databases.len(), 1);
    assert_eq!(list.profiles, ["local", "remote"]);
    assert_eq!(list.failures.len(), 1);
    assert_eq!(list.failures[0].profile, "remote");
    assert_eq!(list.failures[0].failure.code, Code::PostgresConnectionFailed);
    // What is found is found; what is not may be where nobody could look.
    assert_eq!(find(&core, &by_id(made.id)).await.unwrap().id, made.id);
    assert_eq!(find(&core, &by_name("toy_other")).await, Err(Code::PostgresConnectionFailed));
    let cleanup = core.cleanup(&any_permit(), &CleanupFilter::default(), false).await.unwrap();
    assert_eq!(cleanup.profile_failures.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn selectors_are_never_overridden() {
    let (first, second) = (ground(), ground());
    let core = two_profiles(&first, &second).await;
    let here = create(&core).await.unwrap();
    let there = CreateRequest { profile: "remote".to_owned(), ..request() };
    let there = create_as(&core, SystemReason::Recovery, there).await.unwrap().sandbox;
    assert_eq!(find(&core, &by_id(there.id)).await.unwrap().profile, "remote");
    let select = |profile: Option<&str>, version: Option<&str>, id: Option<SandboxId>, name: Option<&str>| Selector {
        profile: profile.map(str::to_owned),
        postgres_version: version.map(str::to_owned),
        database_id: id.map(|id| id.to_string()),
        database_name: name.map(str::to_owned),
    };
    let name = here.names.database.as_str();
    for (selector, expected) in [
        (select(Some("local"), None, Some(here.id), Some(name)), Ok(here.id)),
        (select(None, Some("7.3"), Some(here.id), None), Ok(here.id)),
        (select(Some("remote"), None, Some(here.id), None), Err(Code::DatabaseNotFound)),
        (select(None, None, Some(there.id), Some(name)), Err(Code::DatabaseNotFound)),
        (select(Some("nowhere"), None, Some(here.id), None), Err(Code::UnknownProfile)),
        (select(Some("local"), Some("8"), Some(here.id), None), Err(Code::VersionMismatch)),
        (select(None, Some("8"), Some(here.id), None), Err(Code::PostgresVersionUnavailable)),
        (select(None, Some("x"), Some(here.id), None), Err(Code::InvalidArguments)),
        (select(None, None, None, None), Err(Code::InvalidArguments)),
    ] {
        let got = find(&core, &selector).await.map(|sandbox| sandbox.id);
        assert_eq!(got, expected, "{selector:?}");
    }
    let malformed = Selector { database_id: Some("7".to_owned()), ..Selector::default() };
    assert_eq!(find(&core, &malformed).await, Err(Code::InvalidArguments));
    // A name in two places asks for the profile.
    let mut twin = here.id.to_string();
    let last = if twin.ends_with('0') { '1' } else { '0' };
    twin.replace_range(twin.len() - 1.., &last.to_string());
    let row = format!(
        "insert into pgsandbox.sandboxes select (jsonb_populate_record(b, jsonb_build_object('id', '{twin}',
             'database_name', '{name}', 'owner_role', '{name}_role', 'readonly_role', '{name}_ro'))).*
         from pgsandbox.sandboxes b"
    );
    second.sql(&row).await;
    let failure = core.resolve(&by_name(name)).await.unwrap_err();
    assert_eq!(failure.allowed, ["local", "remote"]);
    assert_eq!(find(&core, &select(Some("remote"), None, None, Some(name))).await.unwrap().id.to_string(), twin);
    let default = core.resolve(&Selector::default()).await.unwrap();
    assert_eq!(default.profile.name(), "local");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eight_servers_start_at_once_on_fresh_metadata() {
    let ground = ground();
    let starts = (0..8).map(|_| {
        let ground = Arc::clone(&ground);
        tokio::spawn(async move {
            let core = ground.core().await;
            create(&core).await.unwrap();
            core
        })
    });
    let mut cores = Vec::new();
    for start in starts.collect::<Vec<_>>() {
        cores.push(start.await.unwrap());
    }
    ground.check_settled(8, "eight starts").await;
    assert_eq!(ground.count("select count(*) from pgsandbox.migrations").await, 1);
    assert_eq!(ground.count("select count(*) from pgsandbox.servers").await, 8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schema_of_another_program_is_refused_and_not_touched() {
    let ground = ground();
    ground.sql("create schema pgsandbox; create table pgsandbox.sandboxes (theirs text)").await;
    let error = ground.store().open().await.unwrap_err();
    assert!(matches!(error, StoreError::Foreign { .. }), "{error}");
    assert_eq!(create(&ground.core().await).await.unwrap_err().code, Code::InvalidConfiguration);
    let tables = "select count(*) from pg_class where relnamespace = 'pgsandbox'::regnamespace and relkind = 'r'";
    assert_eq!(ground.count(tables).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_or_changed_schema_is_refused() {
    let ground = ground();
    ground.store().open().await.unwrap();
    ground.sql("insert into pgsandbox.migrations (number, name, sha256) values (99, 'later', '')").await;
    let error = ground.store().open().await.unwrap_err();
    assert!(matches!(error, StoreError::Newer { found: 2, known: 1, .. }), "{error}");
    ground.sql("delete from pgsandbox.migrations where number = 99; update pgsandbox.migrations set sha256 = ''").await;
    let error = ground.store().open().await.unwrap_err();
    assert!(matches!(error, StoreError::Foreign { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_metadata_server_may_restart_under_a_core() {
    let ground = ground();
    let core = ground.core().await;
    create(&core).await.unwrap();
    ground.sql("select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() and datname = current_database()").await;
    // The first call may meet a lost connection; nothing is left of it, and the next works.
    drop(create(&core).await);
    create(&core).await.unwrap();
    assert_eq!(ground.count("select count(*) from pgsandbox.servers").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rotation_seals_every_live_sandbox_again() {
    let ground = ground();
    let core = ground.core().await;
    let made = create(&core).await.unwrap();
    let (_, before) = core.credentials(&any_permit(), made.id, CredentialAccess::Owner).await.unwrap();
    let sealed = "select count(distinct substr(owner_sealed, 2, 8)) from pgsandbox.sandboxes where state = 'ready'";
    assert_eq!(core.rotate_keys(&permit(SystemReason::KeyRotation)).await.unwrap(), 1);
    create(&core).await.unwrap();
    assert_eq!(ground.count(sealed).await, 1, "all under one key");
    let (_, after) = core.credentials(&any_permit(), made.id, CredentialAccess::Owner).await.unwrap();
    assert_eq!(before, after);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_key_refuses_use_and_keeps_nothing_alive() {
    let ground = ground();
    let made = create(&ground.core().await).await.unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let keys = KeyRing::open(KeySource::StateDirectory(elsewhere.path().to_owned())).await.unwrap();
    let profiles = vec![ground.profile("local", Setup::default())];
    let core = Core::new(Parts { profiles, default_profile: "local".to_owned(), keys }).unwrap();
    let failure = core.credentials(&any_permit(), made.id, CredentialAccess::Owner).await.unwrap_err();
    assert_eq!(failure.code, Code::InvalidConfiguration);
    let gone = core.delete(&any_permit(), made.id, Some(WAIT)).await.unwrap();
    assert_eq!(gone.state, State::Deleted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn extensions_are_checked_against_profile_and_server() {
    let ground = ground();
    let core = ground.core().await;
    let with = |name: &str| CreateRequest { extensions: vec![name.to_owned()], ..request() };
    let make = |name| create_as(&core, SystemReason::Pool, with(name));
    let made = make("citext").await.unwrap().sandbox;
    let installed = core.installed_extensions(&any_permit(), made.id).await.unwrap();
    assert_eq!(installed, [("citext".to_owned(), "1".to_owned())]);
    let missing = make("hstore").await.unwrap_err();
    assert_eq!((missing.code, missing.allowed), (Code::ExtensionSetupRequired, vec!["citext".to_owned()]));
    assert_eq!(make("postgis").await.unwrap_err().code, Code::ExtensionNotAllowed);
    ground.check_settled(1, "refused before anything is begun").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upkeep_runs_by_itself_and_ends_with_the_core() {
    let ground = ground();
    let core = ground.core().await;
    create(&core).await.unwrap();
    ground.all_expire().await;
    core.start_upkeep(authority(), Arc::new(Book::default())).unwrap();
    let until = std::time::Instant::now() + WAIT;
    while ground.count("select count(*) from pgsandbox.sandboxes where state <> 'deleted'").await > 0 {
        assert!(std::time::Instant::now() < until, "nobody removes it");
    }
    assert!(core.drain(WAIT).await);
    ground.check_settled(0, "reaped").await;
    assert_eq!(core.start_upkeep(authority(), Arc::new(Book::default())).unwrap_err().code, Code::Busy);
}

/// Keeps what upkeep says, and can refuse.
#[derive(Default)]
struct Book {
    lines: Mutex<Vec<String>>,
    full: bool,
}

#[async_trait]
impl UpkeepAudit for Book {
    async fn open(&self, permit: &Permit<()>, sandbox: &Sandbox) -> Result<(), Failure> {
        if self.full {
            return Err(Failure::new(Code::AuditUnavailable, "the audit log cannot be written"));
        }
        self.lines.lock().unwrap().push(format!("open {} {}", permit.grant().operation, sandbox.id));
        Ok(())
    }

    async fn close(&self, permit: &Permit<()>, sandbox: &Sandbox, outcome: Result<(), &Failure>) {
        let line = format!("close {} {} {}", permit.grant().operation, sandbox.id, outcome.is_ok());
        self.lines.lock().unwrap().push(line);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upkeep_is_recorded_and_does_nothing_that_cannot_be() {
    let ground = ground();
    let core = ground.core().await;
    let made = create(&core).await.unwrap();
    ground.all_expire().await;
    let profile = Arc::clone(&core.profiles()[0]);
    let full: Arc<dyn UpkeepAudit> = Arc::new(Book { full: true, ..Book::default() });
    core.upkeep(&profile, &authority(), &full, 0).await.unwrap();
    ground.check_settled(1, "the audit could not be written").await;
    let book = Arc::new(Book::default());
    let audit: Arc<dyn UpkeepAudit> = book.clone();
    core.upkeep(&profile, &authority(), &audit, 0).await.unwrap();
    ground.check_settled(0, "reaped").await;
    let expected = [format!("open reaper {}", made.id), format!("close reaper {} true", made.id)];
    assert_eq!(*book.lines.lock().unwrap(), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_its_owner_dropped_is_reported_and_removed_like_any_other() {
    let ground = ground();
    let core = ground.core().await;
    let made = create(&core).await.unwrap();
    ground.world.with(|things| things.databases.clear());
    let orphans = core.orphans("local").await.unwrap();
    assert_eq!(orphans.missing.iter().map(|sandbox| sandbox.id).collect::<Vec<_>>(), [made.id]);
    let gone = core.delete(&any_permit(), made.id, Some(WAIT)).await.unwrap();
    assert_eq!(gone.state, State::Deleted);
    ground.check_settled(0, "dropped by its owner").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn profiles_with_one_server_and_other_prefixes_do_not_see_each_other() {
    let ground = ground();
    let other = Setup { settings: ProfileSettings { prefix: "other".to_owned(), ..settings() }, ..Setup::default() };
    let profiles = vec![ground.profile("local", Setup::default()), ground.profile("other", other)];
    let core = Core::new(Parts { profiles, default_profile: "local".to_owned(), keys: ground.keys().await }).unwrap();
    create(&core).await.unwrap();
    let theirs = ListFilter { profile: Some("other".to_owned()), ..ListFilter::default() };
    assert!(core.list(&theirs).await.unwrap().databases.is_empty());
    assert_eq!(core.usage("other", "system:recovery", None).await.unwrap().0.live, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prefix_that_begins_with_anothers_leaves_its_sandboxes_alone() {
    let ground = ground();
    let longer = Setup { settings: ProfileSettings { prefix: "toy_b".to_owned(), ..settings() }, ..Setup::default() };
    let profiles = vec![ground.profile("local", Setup::default()), ground.profile("longer", longer)];
    let core = Core::new(Parts { profiles, default_profile: "local".to_owned(), keys: ground.keys().await }).unwrap();
    let theirs = CreateRequest { profile: "longer".to_owned(), ..request() };
    create_as(&core, SystemReason::Pool, theirs).await.unwrap();
    ground.all_expire().await;
    upkeep(&core).await.unwrap();
    ground.check_settled(1, "upkeep of the shorter prefix").await;
    assert_eq!(core.orphans("local").await.unwrap(), Orphans::default());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_longer_matters_is_forgotten() {
    let ground = ground();
    let core = ground.core().await;
    let gone = create_as(&core, SystemReason::Pool, keyed("k", 1)).await.unwrap().sandbox;
    create_as(&core, SystemReason::Pool, keyed("l", 1)).await.unwrap();
    core.delete(&any_permit(), gone.id, Some(WAIT)).await.unwrap();
    ground
        .sql(
            "update pgsandbox.sandboxes set ended_at = now() - interval '29 days' where ended_at is not null;
             insert into pgsandbox.servers (host, pid, heartbeat_at) values ('gone', 1, now() - interval '2 days')",
        )
        .await;
    upkeep(&core).await.unwrap();
    let rows = "select count(*) from pgsandbox.sandboxes";
    let keys = "select count(*) from pgsandbox.idempotency";
    assert_eq!((ground.count(rows).await, ground.count(keys).await), (2, 2));
    assert_eq!(ground.count("select count(*) from pgsandbox.journal").await, 0, "both plans are done");
    assert_eq!(ground.count("select count(*) from pgsandbox.servers").await, 1, "we are still there");
    ground
        .sql(
            "update pgsandbox.sandboxes set ended_at = now() - interval '31 days' where ended_at is not null;
             update pgsandbox.idempotency set expires_at = now()",
        )
        .await;
    upkeep(&core).await.unwrap();
    assert_eq!((ground.count(rows).await, ground.count(keys).await), (1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_over_a_bound_begin_nothing() {
    let ground = ground();
    let core = ground.core().await;
    let long = "x".repeat(257);
    for (asked, code) in [
        (CreateRequest { ttl_minutes: Some(0), ..request() }, Code::InvalidTtl),
        (CreateRequest { ttl_minutes: Some(1 << 63), ..request() }, Code::InvalidTtl),
        (CreateRequest { name_hint: Some(long.clone()), ..request() }, Code::InvalidArguments),
        (CreateRequest { labels: vec![("k".to_owned(), "x".repeat(1 << 20))], ..request() }, Code::InvalidArguments),
        (CreateRequest { profile: "nowhere".to_owned(), ..request() }, Code::UnknownProfile),
        (keyed(&long, 1), Code::InvalidArguments),
    ] {
        let got = core.create(&any_permit(), asked.clone(), Arc::new(Silent), CancellationToken::new()).await;
        assert_eq!(got.unwrap_err().code, code, "{asked:?}");
    }
    assert_eq!(World::names(&ground.world).len(), 0);
    let hint = CreateRequest { name_hint: Some("漢".repeat(80)), ..request() };
    let made = create_as(&core, SystemReason::Pool, hint).await.unwrap().sandbox;
    assert_eq!(made.names.database, format!("toy_{}", made.id.short()));
}
