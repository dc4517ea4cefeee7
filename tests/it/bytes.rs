//! Over the byte quota the owner role's login goes; it comes back once there is room.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use pgsandbox::admission::Permit;
use pgsandbox::model::{Code, CredentialAccess, Failure, Impact, Obligation, Scope};
use pgsandbox::sandbox::{Core, Sandbox, UpkeepAudit};
use pgsandbox::store::{ByteLimits, FailPoints, Point};

use super::permits::{code, make, under};
use super::pressure::WAIT;
use super::toy_engine::{Gate, Ground, Setup, any_permit, authority, upkeep};

const OWNER: CredentialAccess = CredentialAccess::Owner;
const READER: CredentialAccess = CredentialAccess::ReadOnly;
/// The toy has no sessions to lend; but it was asked for one.
const ASKED: Option<Code> = Some(Code::InvalidConfiguration);
const OVER: Option<Code> = Some(Code::QuotaExceeded);

fn bytes(scope: Scope, limit: u64) -> [Obligation; 1] {
    [Obligation::MaxDatabaseBytes { scope, limit }]
}

/// A limit that one sandbox of the toy, of 1000 bytes, fits and two do not.
fn fits_one() -> [Obligation; 1] {
    bytes(Scope::Principal, 1500)
}

/// The sandboxes that owners can log in to.
fn open(ground: &Ground) -> BTreeSet<String> {
    ground.world.with(|things| things.open.clone())
}

fn names<const N: usize>(sandboxes: [&Sandbox; N]) -> BTreeSet<String> {
    sandboxes.map(|sandbox| sandbox.names.database.clone()).into()
}

async fn withheld(ground: &Ground) -> i64 {
    ground.count("select count(*) from pgsandbox.sandboxes where login_withheld and state = 'ready'").await
}

/// How many sandboxes have a login that is not known.
async fn turning(ground: &Ground) -> i64 {
    ground.count("select count(*) from pgsandbox.sandboxes where login_turning and state = 'ready'").await
}

async fn ask(core: &Core, impact: Impact, sandbox: &Sandbox, access: CredentialAccess) -> Option<Code> {
    ask_under(core, impact, sandbox, access, &fits_one()).await
}

async fn ask_under(
    core: &Core,
    impact: Impact,
    sandbox: &Sandbox,
    access: CredentialAccess,
    obligations: &[Obligation],
) -> Option<Code> {
    code(core.session(&under(impact, sandbox, obligations), sandbox.id, access).await.map(drop))
}

/// Two sandboxes that together are over their limit, which nobody has noticed yet.
async fn two(core: &Core) -> (Sandbox, Sandbox) {
    (make(core, None, &fits_one()).await.unwrap(), make(core, None, &fits_one()).await.unwrap())
}

#[derive(Default)]
struct Book(Mutex<Vec<String>>);

impl Book {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

#[async_trait]
impl UpkeepAudit for Book {
    async fn open(&self, permit: &Permit<()>, sandbox: &Sandbox) -> Result<(), Failure> {
        self.0.lock().unwrap().push(format!("{} {}", permit.grant().operation, sandbox.id));
        Ok(())
    }

    async fn close(&self, permit: &Permit<()>, _sandbox: &Sandbox, outcome: Result<(), &Failure>) {
        self.0.lock().unwrap().push(format!("{} {}", permit.grant().operation, outcome.is_ok()));
    }
}

async fn round(core: &Core, book: &Arc<Book>) {
    let audit: Arc<dyn UpkeepAudit> = book.clone();
    core.upkeep(&core.profiles()[0], &authority(), &audit, 1).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logins_go_over_the_limit_and_come_back_once_another_sandbox_is_gone() {
    let ground = Ground::new();
    let core = ground.core().await;
    let (kept, other) = two(&core).await;
    assert_eq!(kept.byte_limits, ByteLimits { principal: Some(1500), group: None });
    let book = Arc::new(Book::default());
    round(&core, &book).await;
    assert_eq!((open(&ground), withheld(&ground).await), (BTreeSet::new(), 2));
    let lines = book.take();
    assert_eq!(lines.len(), 4, "{lines:?}");
    for sandbox in [&kept, &other] {
        assert!(lines.contains(&format!("withhold-login {}", sandbox.id)), "{lines:?}");
    }
    for (impact, access, expected) in [
        (Impact::Writes, OWNER, OVER),
        (Impact::Reads, OWNER, OVER),
        (Impact::Writes, READER, ASKED),
        (Impact::Reads, READER, ASKED),
    ] {
        assert_eq!(ask(&core, impact, &kept, access).await, expected, "{impact:?} {access:?}");
    }
    let disclose = under(Impact::Discloses, &kept, &[]);
    assert_eq!(code(core.credentials(&disclose, kept.id, OWNER).await), OVER, "a login that does not work is not told");
    core.credentials(&disclose, kept.id, READER).await.unwrap();
    core.extend(&any_permit(), kept.id, 30).await.unwrap();

    round(&core, &book).await;
    assert_eq!(book.take(), Vec::<String>::new(), "what is as it should be is left alone");
    core.delete(&any_permit(), other.id, Some(std::time::Duration::from_secs(20))).await.unwrap();
    assert_eq!(open(&ground), BTreeSet::new());
    round(&core, &book).await;
    assert_eq!((open(&ground), withheld(&ground).await), (names([&kept]), 0));
    assert_eq!(book.take(), [format!("restore-login {}", kept.id), "restore-login true".to_owned()]);
    assert_eq!(ask(&core, Impact::Writes, &kept, OWNER).await, ASKED);
    ground.check_settled(1, "room again").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_is_nearly_full_is_written_to_no_more() {
    const FULL: Option<Code> = Some(Code::DiskFull);
    let ground = Ground::new();
    let core = ground.core().await;
    let book = Arc::new(Book::default());
    let (one, two) = (make(&core, None, &[]).await.unwrap(), make(&core, None, &[]).await.unwrap());
    let left = |bytes: Option<u64>| ground.world.with(|things| things.disk_left = bytes);
    let asked = async |impact, access| ask_under(&core, impact, &one, access, &[]).await;
    left(Some(64 << 20));
    round(&core, &book).await;
    assert_eq!((asked(Impact::Writes, OWNER).await, open(&ground)), (ASKED, names([&one, &two])));

    left(Some((64 << 20) - 1));
    assert_eq!(asked(Impact::Writes, OWNER).await, FULL);
    assert_eq!(asked(Impact::Reads, READER).await, ASKED);
    assert_eq!(code(make(&core, None, &[]).await.map(drop)), FULL);
    round(&core, &book).await;
    assert_eq!((withheld(&ground).await, open(&ground)), (2, BTreeSet::new()));
    // The reads of the owner's wait as well: it has no login.
    assert_eq!((asked(Impact::Writes, OWNER).await, asked(Impact::Reads, OWNER).await), (FULL, FULL));
    core.delete(&any_permit(), two.id, None).await.unwrap();

    left(None);
    round(&core, &book).await;
    assert_eq!((withheld(&ground).await, open(&ground)), (0, names([&one])));
    assert_eq!(asked(Impact::Writes, OWNER).await, ASKED);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_fills_up_is_held_while_a_round_of_upkeep_hangs() {
    let ground = Ground::new();
    let core = ground.core().await;
    make(&core, None, &[]).await.unwrap();
    ground.world.with(|things| things.hangs = true);
    core.start_upkeep(authority(), Arc::new(Book::default())).unwrap();
    let until = std::time::Instant::now() + WAIT;
    while !ground.world.with(|things| things.hung) {
        assert!(std::time::Instant::now() < until, "no round begins");
        tokio::task::yield_now().await;
    }
    ground.world.with(|things| things.disk_left = Some(1));
    while withheld(&ground).await == 0 {
        assert!(std::time::Instant::now() < until, "nobody looks at the disk");
    }
    assert_eq!(open(&ground), BTreeSet::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn who_was_kept_out_of_a_full_disk_is_let_in_once_there_is_room_whoever_is_at_its_login() {
    let ground = Ground::new();
    let gate = Gate::at(Point::Statement("note-login"));
    let slow = ground.core_with(Setup { points: gate.clone(), ..Setup::default() }).await;
    let once = Arc::new(Once::default());
    let quick = ground.core_with(Setup { points: once.clone(), ..Setup::default() }).await;
    let made = make(&quick, None, &[]).await.unwrap();
    ground.world.with(|things| things.disk_left = Some(1));
    let round = tokio::spawn(async move { upkeep(&slow).await });
    gate.reached.notified().await;
    assert_eq!((open(&ground), turning(&ground).await), (BTreeSet::new(), 1));
    assert_eq!(ask_under(&quick, Impact::Writes, &made, OWNER, &[]).await, Some(Code::DiskFull));
    ground.world.with(|things| things.disk_left = None);
    let goes_on = async {
        let until = std::time::Instant::now() + WAIT;
        while !once.passed.lock().unwrap().contains(&Point::Statement("login-turn")) {
            assert!(std::time::Instant::now() < until, "the call does not come to it");
            tokio::task::yield_now().await;
        }
        gate.go_on.notify_one();
    };
    let (asked, ()) = tokio::join!(ask_under(&quick, Impact::Writes, &made, OWNER, &[]), goes_on);
    assert_eq!(asked, ASKED, "it is not told to come back");
    round.await.unwrap().unwrap();
    assert_eq!((open(&ground), withheld(&ground).await), (names([&made]), 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nobody_is_kept_out_of_a_disk_that_has_room_again() {
    let ground = Ground::new();
    let gate = Gate::at(Point::Statement("logins-due"));
    let core = ground.core_with(Setup { points: gate.clone(), ..Setup::default() }).await;
    let made = make(&core, None, &[]).await.unwrap();
    let book = Arc::new(Book::default());
    ground.world.with(|things| things.disk_left = Some(1));
    let (core, audit) = (core.clone(), Arc::clone(&book));
    let held = tokio::spawn(async move { round(&core, &audit).await });
    gate.reached.notified().await;
    ground.world.with(|things| things.disk_left = None);
    gate.go_on.notify_one();
    held.await.unwrap();
    assert_eq!((book.take(), open(&ground)), (Vec::<String>::new(), names([&made])));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_under_a_higher_limit_or_none_finds_the_login_given_back() {
    for raised in [&bytes(Scope::Principal, 2000)[..], &[]] {
        let ground = Ground::new();
        let core = ground.core().await;
        let (one, other) = two(&core).await;
        upkeep(&core).await.unwrap();
        assert_eq!(open(&ground), BTreeSet::new());
        assert_eq!(ask_under(&core, Impact::Writes, &one, OWNER, raised).await, ASKED);
        assert_eq!(open(&ground), names([&one]), "{raised:?}");
        upkeep(&core).await.unwrap();
        assert_eq!(open(&ground), names([&one]), "the limit that was decided last holds: {raised:?}");
        // Who only reads decides nothing.
        assert_eq!(ask_under(&core, Impact::Reads, &other, OWNER, raised).await, OVER);
        assert_eq!(ask_under(&core, Impact::Writes, &one, OWNER, &fits_one()).await, OVER);
        upkeep(&core).await.unwrap();
        assert_eq!(open(&ground), BTreeSet::new(), "lowered again: {raised:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn buckets_are_those_of_the_quotas() {
    let ground = Ground::new();
    let core = ground.core().await;
    let of_group = bytes(Scope::Group, 1500);
    let in_a = [make(&core, Some("a"), &of_group).await.unwrap(), make(&core, Some("a"), &of_group).await.unwrap()];
    let free = make(&core, Some("a"), &[]).await.unwrap();
    let alone = make(&core, Some("b"), &of_group).await.unwrap();
    let ungrouped = make(&core, None, &of_group).await.unwrap();
    upkeep(&core).await.unwrap();
    assert_eq!(open(&ground), names([&free, &alone, &ungrouped]));
    for (sandbox, expected) in [(&in_a[0], OVER), (&alone, ASKED), (&ungrouped, ASKED)] {
        assert_eq!(ask_under(&core, Impact::Writes, sandbox, OWNER, &of_group).await, expected, "{sandbox:?}");
    }
    let more = make(&core, None, &of_group).await.unwrap();
    upkeep(&core).await.unwrap();
    assert_eq!(open(&ground), names([&free, &alone]), "who names no group owner has a bucket as well");
    assert_eq!(ask_under(&core, Impact::Writes, &more, OWNER, &of_group).await, OVER);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_fails_holds_up_no_other_and_is_tried_again() {
    let ground = Ground::new();
    let core = ground.core().await;
    let (stiff, _other) = two(&core).await;
    ground.world.with(|things| things.stiff.insert(stiff.names.database.clone()));
    let book = Arc::new(Book::default());
    round(&core, &book).await;
    assert_eq!((open(&ground), withheld(&ground).await), (names([&stiff]), 1));
    let lines = book.take();
    assert!(lines.contains(&"withhold-login false".to_owned()), "{lines:?}");
    ground.world.with(|things| things.stiff.clear());
    round(&core, &book).await;
    assert_eq!((open(&ground), withheld(&ground).await), (BTreeSet::new(), 2));
    assert_eq!(book.take(), [format!("withhold-login {}", stiff.id), "withhold-login true".to_owned()]);
}

/// Fails at one point once, and keeps what is passed.
#[derive(Default)]
struct Once {
    at: Mutex<Option<Point>>,
    passed: Mutex<Vec<Point>>,
}

#[async_trait]
impl FailPoints for Once {
    async fn fails_at(&self, point: Point) -> bool {
        self.passed.lock().unwrap().push(point);
        self.at.lock().unwrap().take_if(|at| *at == point).is_some()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_done_and_not_noted_is_done_again_and_refuses_as_quota_meanwhile() {
    for point in [Point::Statement("note-login"), Point::Step("set-login")] {
        let ground = Ground::new();
        let once = Arc::new(Once::default());
        let core = ground.core_with(Setup { points: once.clone(), ..Setup::default() }).await;
        let (one, other) = two(&core).await;
        ground.world.with(|things| things.stiff.insert(other.names.database.clone()));
        *once.at.lock().unwrap() = Some(point);
        upkeep(&core).await.unwrap();
        assert!(once.at.lock().unwrap().is_none(), "{point:?} was not passed");
        assert_eq!((open(&ground), withheld(&ground).await), (names([&other]), 0), "{point:?}");
        for impact in [Impact::Reads, Impact::Writes] {
            assert_eq!(ask(&core, impact, &one, OWNER).await, OVER, "{point:?} {impact:?}");
        }
        upkeep(&core).await.unwrap();
        assert_eq!((open(&ground), withheld(&ground).await), (names([&other]), 1), "{point:?}");
        // The same on the way back.
        *once.at.lock().unwrap() = Some(point);
        let failed = ask_under(&core, Impact::Writes, &one, OWNER, &[]).await;
        assert_eq!(failed, Some(Code::Internal), "{point:?}");
        assert_eq!(withheld(&ground).await, 1, "{point:?}");
        assert_eq!(ask_under(&core, Impact::Writes, &one, OWNER, &[]).await, ASKED, "{point:?}");
        assert_eq!((open(&ground), withheld(&ground).await), (names([&one, &other]), 0), "{point:?}");
    }
}

/// Where a turn of a login may end: before the server's act, after it, and before that is noted.
const TURNS: [Point; 3] = [Point::Statement("login-turn"), Point::Step("set-login"), Point::Statement("note-login")];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_taken_away_and_not_noted_comes_back_once_it_may() {
    for point in TURNS {
        for by_caller in [false, true] {
            let ground = Ground::new();
            let once = Arc::new(Once::default());
            let core = ground.core_with(Setup { points: once.clone(), ..Setup::default() }).await;
            let (one, other) = two(&core).await;
            ground.world.with(|things| things.stiff.insert(other.names.database.clone()));
            *once.at.lock().unwrap() = Some(point);
            upkeep(&core).await.unwrap();
            assert!(once.at.lock().unwrap().is_none(), "{point:?} was not passed");
            let left = if point == TURNS[0] { names([&one, &other]) } else { names([&other]) };
            assert_eq!((open(&ground), withheld(&ground).await), (left, 0), "{point:?}");
            ground.world.with(|things| things.stiff.clear());
            if by_caller {
                // By a limit that was raised, which the caller finds.
                assert_eq!(ask_under(&core, Impact::Writes, &one, OWNER, &[]).await, ASKED, "{point:?}");
                assert!(open(&ground).contains(&one.names.database), "{point:?}");
            }
            // By room, which upkeep finds.
            core.delete(&any_permit(), other.id, Some(std::time::Duration::from_secs(20))).await.unwrap();
            upkeep(&core).await.unwrap();
            assert_eq!((open(&ground), withheld(&ground).await), (names([&one]), 0), "{point:?}");
            assert_eq!(turning(&ground).await, 0, "{point:?}");
            assert_eq!(ask(&core, Impact::Reads, &one, OWNER).await, ASKED, "{point:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_given_back_and_not_noted_goes_again_where_it_must() {
    for point in TURNS {
        let ground = Ground::new();
        let once = Arc::new(Once::default());
        let core = ground.core_with(Setup { points: once.clone(), ..Setup::default() }).await;
        let (one, other) = two(&core).await;
        upkeep(&core).await.unwrap();
        assert_eq!((open(&ground), withheld(&ground).await), (BTreeSet::new(), 2), "{point:?}");
        core.delete(&any_permit(), other.id, Some(std::time::Duration::from_secs(20))).await.unwrap();
        *once.at.lock().unwrap() = Some(point);
        upkeep(&core).await.unwrap();
        assert!(once.at.lock().unwrap().is_none(), "{point:?} was not passed");
        let left = if point == TURNS[0] { BTreeSet::new() } else { names([&one]) };
        assert_eq!((open(&ground), withheld(&ground).await), (left, 1), "{point:?}");
        // Over the limit again, before anybody looked.
        let more = make(&core, None, &fits_one()).await.unwrap();
        ground.sql(&format!("update pgsandbox.sandboxes set bytes = 1000 where id = '{}'", more.id)).await;
        assert_eq!(ask(&core, Impact::Reads, &one, OWNER).await, OVER, "{point:?}");
        upkeep(&core).await.unwrap();
        assert_eq!((open(&ground), withheld(&ground).await), (BTreeSet::new(), 2), "{point:?}");
        assert_eq!(turning(&ground).await, 0, "{point:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_turn_that_was_lost_on_the_way_leaves_the_login_to_be_looked_at_again() {
    let ground = Ground::new();
    let gate = Gate::at(Point::Statement("note-login"));
    let slow = ground.core_with(Setup { points: gate.clone(), ..Setup::default() }).await;
    let quick = ground.core().await;
    let (one, other) = two(&slow).await;
    ground.world.with(|things| things.stiff.insert(other.names.database.clone()));
    let round = tokio::spawn(async move { upkeep(&slow).await });
    gate.reached.notified().await;
    assert_eq!((open(&ground), turning(&ground).await), (names([&other]), 2));
    // The server ends the session that holds the turn, and somebody else takes the next one, to its end.
    ground
        .sql(
            "select pg_terminate_backend(pid, 20000) from pg_stat_activity
             where datname = current_database() and state = 'idle in transaction'",
        )
        .await;
    assert_eq!(ask_under(&quick, Impact::Writes, &one, OWNER, &[]).await, ASKED);
    assert_eq!((open(&ground), turning(&ground).await), (names([&one, &other]), 1));
    // What the first one did may have come after that: it alone knows, and says so.
    ground.world.with(|things| things.open.remove(&one.names.database));
    gate.go_on.notify_one();
    round.await.unwrap().unwrap();
    assert_eq!(turning(&ground).await, 2);
    upkeep(&quick).await.unwrap();
    assert_eq!((open(&ground), withheld(&ground).await), (names([&one, &other]), 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_without_byte_limits_ask_nothing_more() {
    let ground = Ground::new();
    let once = Arc::new(Once::default());
    let core = ground.core_with(Setup { points: once.clone(), ..Setup::default() }).await;
    let made = make(&core, None, &[]).await.unwrap();
    once.passed.lock().unwrap().clear();
    assert_eq!(ask_under(&core, Impact::Writes, &made, OWNER, &[]).await, ASKED);
    assert_eq!(*once.passed.lock().unwrap(), [Point::Statement("find"), Point::Statement("passwords")]);
    // Limits that have not changed are not written again.
    ask(&core, Impact::Writes, &made, OWNER).await;
    once.passed.lock().unwrap().clear();
    ask(&core, Impact::Writes, &made, OWNER).await;
    let expected = ["find", "bytes-held", "passwords"].map(Point::Statement);
    assert_eq!(*once.passed.lock().unwrap(), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn servers_that_come_round_at_once_change_each_login_once() {
    let ground = Ground::new();
    let cores = [ground.core().await, ground.core().await, ground.core().await];
    for _ in 0..8 {
        make(&cores[0], None, &fits_one()).await.unwrap();
    }
    let book = Arc::new(Book::default());
    futures_util::future::join_all(cores.iter().map(|core| round(core, &book))).await;
    // A row that another was just writing to is left for the next round.
    round(&cores[0], &book).await;
    assert_eq!((open(&ground), withheld(&ground).await), (BTreeSet::new(), 8));
    assert_eq!(book.take().len(), 16, "each once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_is_changed_by_one_at_a_time_and_never_while_its_sandbox_is_removed() {
    let ground = Ground::new();
    let core = ground.core().await;
    let made = make(&core, None, &[]).await.unwrap();
    let store = ground.store();
    let turn = store.login_turn(&made).await.unwrap().expect("nobody else is at it");
    assert!(store.login_turn(&made).await.unwrap().is_none(), "one at a time");
    store.note_login(turn, false).await.unwrap();
    assert_eq!(withheld(&ground).await, 1);
    assert!(store.login_turn(&made).await.unwrap().is_none(), "it has changed since it was read");
    ground.world.with(|things| things.stuck.insert(made.names.database.clone()));
    core.delete(&any_permit(), made.id, None).await.unwrap();
    let removed = Sandbox { login_withheld: true, ..made };
    assert!(store.login_turn(&removed).await.unwrap().is_none(), "it is being removed");
}
