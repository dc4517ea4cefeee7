//! Plans that fail or crash anywhere, over an engine that is not Postgres.

use std::sync::Arc;
use std::time::Duration;

use pgsandbox::model::{Code, Failure, PlanId, RequestId, Silent};
use pgsandbox::sandbox::{CleanupFilter, Core, CreateRequest, Created, Idempotency, State};
use pgsandbox::store::{BeginDelete, FailPoints, Point, StoreError, Whose};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::harness::block_on;
use super::toy_engine::{Gate, Ground, Script, Setup, any_permit, create, create_as, permit, request, upkeep};
use pgsandbox::admission::SystemReason;

/// Long enough for any removal here; a removal that takes it is a failure.
const WAIT: Duration = Duration::from_secs(20);
/// More points than any scenario passes.
const POINTS_MAX: u64 = 400;

async fn create_quietly(ground: Arc<Ground>, core: Core) {
    let result = create(&core).await;
    if result.is_err() {
        // What could not be taken back at once is taken back later.
        ground.time_passes().await;
    }
}

async fn delete_all(_ground: Arc<Ground>, core: Core) {
    let Ok(list) = core.list(&Default::default()).await else { return };
    for sandbox in list.databases {
        drop(core.delete(&any_permit(), sandbox.id, Some(WAIT)).await);
    }
}

async fn clean_up(_ground: Arc<Ground>, core: Core) {
    drop(core.cleanup(&any_permit(), &CleanupFilter::default(), false).await);
}

async fn extend_all(_ground: Arc<Ground>, core: Core) {
    let Ok(list) = core.list(&Default::default()).await else { return };
    for sandbox in list.databases {
        drop(core.extend(&any_permit(), sandbox.id, 90).await);
    }
}

async fn tend(_ground: Arc<Ground>, core: Core) {
    drop(upkeep(&core).await);
}

/// Lives without faults, tidying up; nothing may be left unfinished then.
fn recover(ground: &Arc<Ground>) {
    let ended = ground.live(Script::fail_at(u64::MAX), |ground, core| async move {
        ground.time_passes().await;
        upkeep(&core).await.unwrap();
        // What a sweep found to be there all the same is removed by the next round.
        upkeep(&core).await.unwrap();
    });
    assert!(ended);
}

/// Empties the ground for the next round.
fn clear(ground: &Arc<Ground>) {
    assert!(ground.live(Script::fail_at(u64::MAX), delete_all));
    check_settled(ground, 0, "cleared");
}

fn check_settled(ground: &Arc<Ground>, live: usize, context: &str) {
    block_on(ground.check_settled(live, context));
}

fn live_now(ground: &Arc<Ground>) -> usize {
    let ready = block_on(ground.count("select count(*) from pgsandbox.sandboxes where state = 'ready'"));
    usize::try_from(ready).unwrap()
}

fn migrated() -> Arc<Ground> {
    let ground = Arc::new(Ground::new());
    assert!(ground.live(Script::fail_at(u64::MAX), tend));
    ground
}

fn make_one(ground: &Arc<Ground>) {
    let ended = ground.live(Script::fail_at(u64::MAX), |_, core| async move {
        create(&core).await.unwrap();
    });
    assert!(ended);
}

fn expire(ground: &Arc<Ground>) {
    block_on(ground.all_expire());
}

#[test]
fn a_create_plan_that_fails_anywhere_leaves_nothing() {
    let ground = migrated();
    for at in 0..POINTS_MAX {
        let script = Script::fail_at(at);
        let (failed, point) = {
            let script = Arc::clone(&script);
            let outcome = Arc::new(std::sync::Mutex::new(None));
            let for_scenario = Arc::clone(&outcome);
            assert!(ground.live(script.clone(), move |_, core| async move {
                *for_scenario.lock().unwrap() = Some(create(&core).await.is_err());
            }));
            let failed = outcome.lock().unwrap().unwrap();
            (failed, *script.point.lock().unwrap())
        };
        let context = format!("failed at {at}: {point:?}");
        if failed && matches!(point, Some(Point::Step(_))) {
            // A step that fails is taken back before the caller hears of it.
            check_settled(&ground, 0, &context);
        }
        recover(&ground);
        check_settled(&ground, usize::from(!failed), &context);
        clear(&ground);
        if !script.fired() {
            assert!(at > 10, "only {at} points");
            return;
        }
        assert!(failed, "{context}: and the caller did not hear of it");
    }
    panic!("the scenario passes more than {POINTS_MAX} points");
}

/// A creation under a key of its own, as a client sends it again that has not heard of an end.
async fn create_under_key(core: &Core) -> Result<Created, Failure> {
    let idempotency = Some(Idempotency { key: "k".to_owned(), digest: [7; 32] });
    create_as(core, SystemReason::Pool, CreateRequest { idempotency, ..request() }).await
}

/// The second call needs nobody's upkeep: a command on its own has none.
#[test]
fn a_create_that_crashed_anywhere_is_made_by_the_next_call_under_its_key() {
    let ground = migrated();
    for at in 0..POINTS_MAX {
        let script = Script::crash_at(at);
        ground.live(script.clone(), |_, core| async move { drop(create_under_key(&core).await) });
        let context = format!("crashed at {at}: {:?}", script.point.lock().unwrap());
        let for_scenario = context.clone();
        let ended = ground.live(Script::fail_at(u64::MAX), |_, core| async move {
            let first = create_under_key(&core).await.unwrap_or_else(|failure| panic!("{for_scenario}: {failure:?}"));
            let second = create_under_key(&core).await.unwrap();
            assert_eq!((second.sandbox.id, second.replayed), (first.sandbox.id, true), "{for_scenario}");
        });
        assert!(ended, "{context}");
        check_settled(&ground, 1, &context);
        clear(&ground);
        block_on(ground.sql("delete from pgsandbox.idempotency"));
        if !script.fired() {
            assert!(at > 10, "only {at} points");
            return;
        }
    }
    panic!("the scenario passes more than {POINTS_MAX} points");
}

/// The connection was cut after the commit was sent: the row is there and ours, and nobody works on it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reservation_that_was_made_and_not_heard_of_is_no_obstacle_to_the_next_call_under_its_key() {
    let ground = tokio::task::spawn_blocking(migrated).await.unwrap();
    for at in 0..POINTS_MAX {
        let for_thread = Arc::clone(&ground);
        let crash =
            move || for_thread.live(Script::crash_at(at), |_, core| async move { drop(create_under_key(&core).await) });
        tokio::task::spawn_blocking(crash).await.unwrap();
        if ground.count("select count(*) from pgsandbox.plans where state = 'running'").await == 1 {
            break;
        }
    }
    let core = ground.core().await;
    core.orphans("local").await.unwrap();
    let begun = "select count(*) from pgsandbox.plans p join pgsandbox.sandboxes b on b.id = p.sandbox_id
                 where p.state = 'running' and b.state = 'creating'";
    assert_eq!(ground.count(begun).await, 1);
    ground
        .sql("update pgsandbox.plans set holder = (select max(number) from pgsandbox.servers), taken_at = now()")
        .await;
    let call = tokio::spawn({
        let core = core.clone();
        async move { create_under_key(&core).await }
    });
    // It may still be somebody's who is about to begin; then its time is over.
    ground.sql("update pgsandbox.plans set taken_at = now() - interval '31 seconds' where state = 'running'").await;
    let made = call.await.unwrap().unwrap();
    assert_eq!(create_under_key(&core).await.unwrap().sandbox.id, made.sandbox.id);
    ground.check_settled(1, "called again").await;
}

/// Stops everything at one point, for good.
struct Stop {
    at: Point,
    reached: Notify,
}

#[async_trait::async_trait]
impl FailPoints for Stop {
    async fn fails_at(&self, point: Point) -> bool {
        if point == self.at {
            self.reached.notify_one();
            std::future::pending::<()>().await;
        }
        false
    }
}

/// Lives until one point is reached, and dies there.
fn die_at<F: Future<Output = ()> + Send + 'static>(
    ground: &Arc<Ground>,
    at: Point,
    scenario: impl FnOnce(Arc<Ground>, Core) -> F + Send + 'static,
) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let for_life = Arc::clone(ground);
    runtime.block_on(async move {
        let points = Arc::new(Stop { at, reached: Notify::new() });
        let core = for_life.core_with(Setup { points: points.clone(), ..Setup::default() }).await;
        let life = tokio::spawn(scenario(for_life, core));
        tokio::select! {
            ended = life => panic!("`{at}` was not reached: {ended:?}"),
            () = points.reached.notified() => {}
        }
    });
    runtime.shutdown_timeout(Duration::from_secs(10));
    ground.await_death();
}

#[test]
fn what_takes_effect_after_it_was_taken_back_is_taken_back_again() {
    let ground = migrated();
    die_at(&ground, Point::Step("open"), create_quietly);
    let late = ground.world.with(|things| things.databases.clone());
    assert_eq!(late.len(), 1);
    // The next one dies when the database is taken back already and the roles are not yet.
    block_on(ground.time_passes());
    die_at(&ground, Point::Undo("roles"), tend);
    assert!(ground.world.with(|things| things.databases.is_empty()));
    // Only now the first one's last statement has its effect.
    ground.world.with(|things| things.databases = late);
    recover(&ground);
    check_settled(&ground, 0, "a late database");
}

#[test]
fn a_delete_plan_that_fails_anywhere_is_carried_through_later() {
    let ground = migrated();
    for at in 0..POINTS_MAX {
        make_one(&ground);
        let script = Script::fail_at(at);
        assert!(ground.live(Arc::clone(&script), delete_all));
        let context = format!("failed at {at}: {:?}", script.point.lock().unwrap());
        recover(&ground);
        let live = live_now(&ground);
        check_settled(&ground, live, &context);
        clear(&ground);
        if !script.fired() {
            assert_eq!(live, 0, "{context}");
            return;
        }
    }
    panic!("the scenario passes more than {POINTS_MAX} points");
}

/// Crashes `scenario` at every point, then recovery from that at a point of its own, then recovers.
fn check_crashes<F: Future<Output = ()> + Send + 'static>(
    prepare: impl Fn(&Arc<Ground>),
    scenario: impl Fn(Arc<Ground>, Core) -> F + Clone + Send + 'static,
) {
    let ground = migrated();
    let mut second = 0;
    for at in 0..POINTS_MAX {
        prepare(&ground);
        let first = Script::crash_at(at);
        let ended = ground.live(Arc::clone(&first), scenario.clone());
        let mut context = format!("crashed at {at}: {:?}", first.point.lock().unwrap());
        if !ended {
            let again = Script::crash_at(second);
            if ground.live(Arc::clone(&again), tend) {
                second = 0;
            } else {
                context = format!("{context}, then at {second}: {:?}", again.point.lock().unwrap());
                second += 1;
            }
        }
        recover(&ground);
        check_settled(&ground, live_now(&ground), &context);
        clear(&ground);
        if ended {
            assert!(at > 5, "only {at} points");
            return;
        }
    }
    panic!("the scenario passes more than {POINTS_MAX} points");
}

#[test]
fn a_create_that_crashes_anywhere_and_again_in_recovery_leaves_nothing_untracked() {
    check_crashes(|_| {}, create_quietly);
}

#[test]
fn a_delete_that_crashes_anywhere_and_again_in_recovery_leaves_nothing_untracked() {
    check_crashes(make_one, delete_all);
}

#[test]
fn a_cleanup_that_crashes_anywhere_and_again_in_recovery_leaves_nothing_untracked() {
    let prepare = |ground: &Arc<Ground>| {
        make_one(ground);
        expire(ground);
    };
    check_crashes(prepare, clean_up);
}

#[test]
fn an_extend_that_crashes_anywhere_and_again_in_recovery_leaves_nothing_untracked() {
    check_crashes(make_one, extend_all);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_request_does_not_drop_the_work() {
    let ground = Ground::new();
    let gate = Gate::at(Point::Step("database"));
    let core = ground.core_with(Setup { points: gate.clone(), ..Setup::default() }).await;
    let call = tokio::spawn({
        let core = core.clone();
        async move { create(&core).await }
    });
    gate.reached.notified().await;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    gate.go_on.notify_one();
    assert!(core.drain(WAIT).await);
    ground.check_settled(1, "the request was dropped").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelling_takes_back_what_was_begun() {
    let ground = Ground::new();
    let gate = Gate::at(Point::Step("database"));
    let core = ground.core_with(Setup { points: gate.clone(), ..Setup::default() }).await;
    let cancel = CancellationToken::new();
    let call = tokio::spawn({
        let (core, cancel) = (core.clone(), cancel.clone());
        async move { core.create(&any_permit(), request(), Arc::new(Silent), cancel).await }
    });
    gate.reached.notified().await;
    cancel.cancel();
    gate.go_on.notify_one();
    assert_eq!(call.await.unwrap().unwrap_err().code, Code::Cancelled);
    ground.check_settled(0, "the request was cancelled").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_core_that_drains_finishes_removals_and_begins_nothing() {
    let ground = Ground::new();
    let gate = Gate::at(Point::Step("drop-database"));
    let core = ground.core_with(Setup { points: gate.clone(), ..Setup::default() }).await;
    let sandbox = create(&core).await.unwrap();
    let deleted = core.delete(&any_permit(), sandbox.id, None).await.unwrap();
    assert_eq!(deleted.state, State::Deleting);
    gate.reached.notified().await;
    let draining = tokio::spawn({
        let core = core.clone();
        async move { core.drain(WAIT).await }
    });
    // Until the drain has begun; it cannot end before the gate opens.
    while create(&core).await.is_ok() {}
    gate.go_on.notify_one();
    assert!(draining.await.unwrap());
    assert_eq!(create(&core).await.unwrap_err().code, Code::Busy);
    let gone = ground
        .count(&format!("select count(*) from pgsandbox.sandboxes where id = '{}' and state = 'deleted'", sandbox.id))
        .await;
    assert_eq!(gone, 1);
    assert_eq!(ground.count("select count(*) from pgsandbox.servers").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_that_a_live_server_holds_is_left_alone() {
    let ground = Ground::new();
    let gate = Gate::at(Point::Step("database"));
    let busy = ground.core_with(Setup { points: gate.clone(), ..Setup::default() }).await;
    let call = tokio::spawn({
        let busy = busy.clone();
        async move { create(&busy).await }
    });
    gate.reached.notified().await;
    let other = ground.core().await;
    upkeep(&other).await.unwrap();
    gate.go_on.notify_one();
    call.await.unwrap().unwrap();
    ground.check_settled(1, "another server came by").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_paused_and_lost_its_plan_writes_nothing_and_leaves_nothing() {
    let ground = Ground::new();
    let gate = Gate::at(Point::Step("database"));
    let paused = ground.core_with(Setup { points: gate.clone(), ..Setup::default() }).await;
    let call = tokio::spawn({
        let paused = paused.clone();
        async move { create(&paused).await }
    });
    gate.reached.notified().await;
    ground.sql("update pgsandbox.servers set heartbeat_at = '-infinity'").await;
    let other = ground.core().await;
    upkeep(&other).await.unwrap();
    ground.check_settled(0, "taken over").await;
    // It goes on where it stood, and makes the database that was taken back already.
    gate.go_on.notify_one();
    assert_eq!(call.await.unwrap().unwrap_err().code, Code::Busy);
    ground.check_settled(0, "the paused one came back").await;
}

/// It does not get as far as the line that would tell it that the plan is no longer its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_lost_its_plan_and_then_fails_leaves_nothing_either() {
    let after = [Point::Step("database:made"), Point::Step("furnish"), Point::Step("furnish:done")];
    for then in after.into_iter().chain([Point::Statement("note-done")]) {
        let ground = Ground::new();
        let gate = Gate::then_fails(Some(Point::Step("database")), then);
        let paused = ground.core_with(Setup { points: gate.clone(), ..Setup::default() }).await;
        let call = tokio::spawn({
            let paused = paused.clone();
            async move { create(&paused).await }
        });
        gate.reached.notified().await;
        ground.sql("update pgsandbox.servers set heartbeat_at = '-infinity'").await;
        let other = ground.core().await;
        upkeep(&other).await.unwrap();
        gate.go_on.notify_one();
        let failure = call.await.unwrap().unwrap_err();
        assert_ne!(failure.code, Code::Busy, "it was told before `{then}`");
        ground.check_settled(0, &format!("the paused one came back and failed at `{then}`")).await;
    }
}

/// Lines of the plan of the one sandbox there is, by the transaction that wrote them.
async fn commits(ground: &Ground) -> Vec<String> {
    ground
        .texts(
            "select string_agg(step || ' ' || mark, ', ' order by line) from pgsandbox.journal
             group by xmin::text::bigint order by min(line)",
        )
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn that_a_step_is_done_and_that_the_next_has_begun_is_one_commit() {
    let ground = Ground::new();
    let core = ground.core().await;
    let sandbox = create(&core).await.unwrap();
    let plan_of_row = "select (b.xmin = j.xmin)::text from pgsandbox.sandboxes b, pgsandbox.journal j
                       where j.line = (select max(line) from pgsandbox.journal)";
    let making = [
        "roles intent",
        "roles done, database intent, furnish intent",
        "database done, furnish done, open intent",
        "open done",
    ];
    assert_eq!(commits(&ground).await, making);
    assert_eq!(ground.texts(plan_of_row).await, ["true"], "the last line is written when the sandbox is ready");
    ground.sql("delete from pgsandbox.journal").await;
    core.delete(&any_permit(), sandbox.id, Some(WAIT)).await.unwrap();
    let removing =
        ["bar intent", "bar done, drop-database intent", "drop-database done, drop-roles intent", "drop-roles done"];
    assert_eq!(commits(&ground).await, removing);
    assert_eq!(ground.texts(plan_of_row).await, ["true"], "the last line is written when the sandbox is gone");
    ground.sql("delete from pgsandbox.journal").await;

    let failing = Gate::then_fails(None, Point::Step("open"));
    let core = ground.core_with(Setup { points: failing, ..Setup::default() }).await;
    create(&core).await.unwrap_err();
    let taking_back = [
        "roles intent",
        "roles done, database intent, furnish intent",
        "database done, furnish done, open intent",
        "open undo",
        "open undone, furnish undo",
        "furnish undone, database undo",
        "database undone, roles undo",
        "roles undone",
    ];
    assert_eq!(commits(&ground).await, taking_back);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_line_of_an_older_epoch_is_refused() {
    let ground = Ground::new();
    let core = ground.core().await;
    let sandbox = create(&core).await.unwrap();
    let (old, new) = (ground.store(), ground.store());
    old.open().await.unwrap();
    new.open().await.unwrap();
    let begun = old.begin_delete(sandbox.id, PlanId::fresh(), RequestId::fresh(), false, &[], &["bar"]).await.unwrap();
    let BeginDelete::Ours(held, _) = begun else { panic!("{begun:?}") };
    assert!(new.claim(&[], Whose::Anybodys, 10).await.unwrap().is_empty(), "the holder lives");
    ground.sql("update pgsandbox.servers set heartbeat_at = '-infinity' where number = (select min(holder) from pgsandbox.plans)").await;
    let claimed = new.claim(&[], Whose::Anybodys, 10).await.unwrap();
    assert_eq!(claimed.len(), 1);
    assert_eq!(claimed[0].held.epoch, held.epoch + 1);
    use pgsandbox::store::Mark;
    for mark in [Mark::Intent, Mark::Done, Mark::Undo, Mark::Undone] {
        assert!(matches!(old.note(&held, &[("bar", mark)]).await, Err(StoreError::Fenced)));
    }
    assert!(matches!(old.finish_delete(&held, &["bar"]).await, Err(StoreError::Fenced)));
    assert!(matches!(old.finish_create(&held, &["bar"], None).await, Err(StoreError::Fenced)));
    assert!(matches!(old.begin_undo(&held, "x").await, Err(StoreError::Fenced)));
    assert!(matches!(old.finish_undo(&held, &["bar"]).await, Err(StoreError::Fenced)));
    assert!(matches!(old.release(&held, "x").await, Err(StoreError::Fenced)));
    new.note(&claimed[0].held, &[("bar", Mark::Intent)]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_took_effect_after_it_was_given_up_is_swept() {
    let ground = Ground::new();
    let core = ground.core().await;
    let sandbox = create(&core).await.unwrap();
    core.delete(&any_permit(), sandbox.id, Some(WAIT)).await.unwrap();
    ground.world.with(|things| {
        things.databases.insert(sandbox.names.database.clone());
        things.databases.insert("toy_not_ours".to_owned());
    });
    upkeep(&core).await.unwrap();
    assert_eq!(ground.world.names().len(), 2, "it ended a moment ago: somebody may be at it");
    ground.time_passes().await;
    upkeep(&core).await.unwrap();
    assert_eq!(ground.world.names(), ["toy_not_ours"]);
    let orphans = core.orphans("local").await.unwrap();
    assert_eq!(orphans.untracked.len(), 1);
    assert_eq!(orphans.untracked[0].name, "toy_not_ours");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_whose_names_are_not_ours_drops_nothing() {
    let ground = Ground::new();
    let core = ground.core().await;
    let sandbox = create(&core).await.unwrap();
    ground.world.with(|things| things.databases.insert("precious".to_owned()));
    ground.sql("update pgsandbox.sandboxes set database_name = 'precious'").await;
    let failure = core.delete(&permit(SystemReason::Reaper), sandbox.id, Some(WAIT)).await.unwrap_err();
    assert_eq!(failure.code, Code::MetadataDamaged);
    assert!(ground.world.with(|things| things.databases.contains("precious")));
}
