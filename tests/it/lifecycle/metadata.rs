//! The metadata: whose it is, which version it has, and what it keeps.

use std::sync::Arc;

use pgsandbox::admission::SystemReason;
use pgsandbox::model::{Code, CredentialAccess};
use pgsandbox::sandbox::{Core, CreateRequest, ListFilter, Orphans, Parts, ProfileSettings};
use pgsandbox::store::StoreError;

use super::{WAIT, by_id, find, ground, keyed};
use crate::toy_engine::{Setup, any_permit, create, create_as, request, settings, upkeep};

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
    assert_eq!(ground.count("select count(*) from pgsandbox.migrations").await, i64::from(migrations()));
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

/// How many migrations this program has.
fn migrations() -> i32 {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/store/migrations");
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    i32::try_from(names.filter(|name| name.ends_with(".sql")).count()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metadata_of_an_earlier_program_is_brought_up_and_its_sandboxes_stay() {
    let ground = ground();
    let made = create(&ground.core().await).await.unwrap();
    ground
        .sql(
            "drop table pgsandbox.approvals, pgsandbox.approval_requests, pgsandbox.templates;
             alter table pgsandbox.sandboxes drop column login_turning, drop column template_name, drop column kind,
                 drop column source_id, drop column source_name;
             delete from pgsandbox.migrations where number > 1",
        )
        .await;
    let core = ground.core().await;
    create(&core).await.unwrap();
    assert_eq!(find(&core, &by_id(made.id)).await.map(|found| found.id), Ok(made.id));
    assert_eq!(ground.count("select count(*) from pgsandbox.migrations").await, i64::from(migrations()));
    ground.check_settled(2, "brought up").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_or_changed_schema_is_refused() {
    let ground = ground();
    ground.store().open().await.unwrap();
    ground.sql("insert into pgsandbox.migrations (number, name, sha256) values (99, 'later', '')").await;
    let error = ground.store().open().await.unwrap_err();
    let (newer, ours) = (migrations() + 1, migrations());
    assert!(matches!(error, StoreError::Newer { found, known, .. } if (found, known) == (newer, ours)), "{error}");
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
