//! What is removed is gone, by whoever removes it, and one that cannot be stands in no other's way.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use pgsandbox::admission::{Permit, SystemReason};
use pgsandbox::model::{Code, CredentialAccess, Failure};
use pgsandbox::sandbox::{CleanupFilter, CreateRequest, ListFilter, Sandbox, State, UpkeepAudit};

use super::{WAIT, by_id, find, ground};
use crate::toy_engine::{any_permit, authority, create, create_as, request, upkeep};

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_round_of_upkeep_removes_what_is_past_its_time_whoevers_it_is() {
    let ground = ground();
    let core = ground.core().await;
    for owner in [SystemReason::Pool, SystemReason::Reaper] {
        create_as(&core, owner, request()).await.unwrap();
    }
    let round = async |book: Book| {
        let audit: Arc<dyn UpkeepAudit> = Arc::new(book);
        let mut upkept = core.upkeep_once(&authority(), &audit).await;
        let reaped = upkept.remove(0).outcome.unwrap().unwrap();
        (upkept.len(), reaped.removed.len(), reaped.failed.len())
    };
    assert_eq!(round(Book::default()).await, (0, 0, 0), "nothing is past its time");
    ground.all_expire().await;
    assert_eq!(round(Book { full: true, ..Book::default() }).await, (0, 0, 2), "nothing is done unrecorded");
    ground.check_settled(2, "unrecorded").await;
    assert_eq!(round(Book::default()).await, (0, 2, 0));
    ground.check_settled(0, "one round").await;
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
