//! What the lifecycle core promises its callers, over an engine that is not Postgres.

mod metadata;
mod quotas;
mod removal;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use pgsandbox::admission::SystemReason;
use pgsandbox::model::{Code, CredentialAccess, Failure, SandboxId, Silent};
use pgsandbox::sandbox::{
    CleanupFilter, Core, CreateRequest, Idempotency, ListFilter, Parts, Profile, ProfileSettings, Sandbox, Selector,
    State,
};
use pgsandbox::secret::{KeyRing, KeySource};
use tokio_util::sync::CancellationToken;

use super::toy_engine::{Ground, Setup, World, any_permit, create, create_as, permit, request, settings, upkeep};

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
async fn what_took_long_to_find_out_is_not_found_out_again_by_the_same_call() {
    let (up, down) = (ground(), ground());
    down.world.with(|things| (things.down, things.down_after) = (true, Duration::from_secs(1)));
    let core = two_profiles(&up, &down).await;
    let looks = async |times: u32| {
        for _ in 0..times {
            let list = core.list(&ListFilter::default()).await.unwrap();
            assert_eq!(list.failures[0].failure.code, Code::PostgresConnectionFailed);
        }
        down.world.with(|things| things.found_down)
    };
    assert_eq!(looks(3).await, 1);
    // For no longer than it took.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(looks(1).await, 2);
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
