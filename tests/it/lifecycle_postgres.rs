//! The lifecycle core over the Postgres engine: what the toy cannot show.

use std::sync::Arc;
use std::time::Duration;

use pgsandbox::engine::postgres::{
    PostgresEngine, PostgresServer, PostgresSettings, PostgresUrl, ResultSet, SandboxSession, ServerSource,
    StatementCall, UrlOrigin,
};
use pgsandbox::model::{CheckStatus, Code, CredentialAccess, Impact, Obligation, Scope};
use pgsandbox::sandbox::{Core, Parts, Profile, ProfileSettings, State};
use pgsandbox::secret::{KeyRing, KeySource};
use pgsandbox::store::{FailPoints, Inert, ServerSessions};

use tokio::sync::Mutex;

use super::harness::{Cluster, block_on, cluster, clusters};
use super::permits::{make, under};
use super::toy_engine::{Script, any_permit, create, upkeep};

/// Long enough for any removal here; a removal that takes it is a failure.
const WAIT: Duration = Duration::from_secs(60);
const PREFIX: &str = "life";
/// These tests count what is on the server, so each needs it alone.
static ALONE: Mutex<()> = Mutex::const_new(());

/// A core on `url`'s server. Its metadata is in the admin's own database.
pub(crate) async fn core(url: &str, keys: &tempfile::TempDir, max: Option<u64>, points: Arc<dyn FailPoints>) -> Core {
    let url = PostgresUrl::parse(url, UrlOrigin::Operator).unwrap();
    let server = PostgresServer::new(PostgresSettings::new("local", PREFIX, ServerSource::External(url)));
    let settings =
        ProfileSettings { prefix: PREFIX.to_owned(), max_active_per_owner: max, ..ProfileSettings::default() };
    let sessions = Arc::new(ServerSessions::new(Arc::clone(&server)));
    let engine = Arc::new(PostgresEngine::new(server));
    let profile = Profile::with_points("local", settings, engine, sessions, points).unwrap();
    let keys = KeyRing::open(KeySource::StateDirectory(keys.path().to_owned())).await.unwrap();
    Core::new(Parts { profiles: vec![profile], default_profile: "local".to_owned(), keys }).unwrap()
}

async fn count(cluster: &Cluster, sql: &str) -> i64 {
    cluster.superuser("postgres").await.query_one(sql, &[]).await.unwrap().get(0)
}

/// Databases and roles that bear our prefix.
async fn things(cluster: &Cluster) -> i64 {
    let sql = "select (select count(*) from pg_database where datname like 'life\\_%')
             + (select count(*) from pg_roles where rolname like 'life\\_%')";
    count(cluster, sql).await
}

pub(crate) async fn run(session: &mut SandboxSession, text: &str) -> ResultSet {
    let call = StatementCall {
        text,
        params: &[],
        limits: Default::default(),
        rest: Default::default(),
        timeout: WAIT,
        copy_in: None,
    };
    session.execute(&call).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_lives_and_goes_with_both_kinds_of_admin() {
    let _alone = ALONE.lock().await;
    for cluster in clusters() {
        for url in cluster.admin_urls() {
            let keys = tempfile::tempdir().unwrap();
            let core = core(&url, &keys, None, Arc::new(Inert)).await;
            let made = create(&core).await.unwrap();
            let id = made.id;
            for access in [CredentialAccess::Owner, CredentialAccess::ReadOnly] {
                let (info, password) = core.credentials(&any_permit(), id, access).await.unwrap();
                let client = cluster.connect(&info.user, password.expose(), &info.database).await.unwrap();
                let row = client.query_one("select current_user::text", &[]).await.unwrap();
                assert_eq!(row.get::<_, String>(0), info.user);
            }
            for check in core.verify(&any_permit(), id).await.unwrap() {
                assert_ne!(check.status, CheckStatus::Fail, "{check:?}");
            }
            let extended = core.extend(&any_permit(), id, 30).await.unwrap();
            let until = format!(
                "select (extract(epoch from rolvaliduntil) * 1000)::bigint from pg_roles where rolname = '{}'",
                made.names.owner_role
            );
            assert_eq!(count(cluster, &until).await, i64::try_from(extended.expires_at.unix_ms()).unwrap());
            let deleted = core.delete(&any_permit(), id, Some(WAIT)).await.unwrap();
            assert_eq!(deleted.state, State::Deleted);
            assert_eq!(things(cluster).await, 0);
            assert!(core.drain(WAIT).await);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_lent_again_without_a_trace_of_its_last_use() {
    let _alone = ALONE.lock().await;
    let cluster = cluster();
    let keys = tempfile::tempdir().unwrap();
    let core = core(&cluster.superuser_url(), &keys, None, Arc::new(Inert)).await;
    let made = create(&core).await.unwrap();
    let lend = async || core.session(&any_permit(), made.id, CredentialAccess::Owner).await;
    let mut session = lend().await.unwrap();
    let first = session.process_id();
    run(&mut session, "create temp table left_behind ()").await;
    run(&mut session, "set search_path = nowhere").await;
    run(&mut session, "begin").await;
    drop(session);
    // The reset runs beside; until it is done, another session is lent.
    let until = std::time::Instant::now() + WAIT;
    let mut again = loop {
        let session = lend().await.unwrap();
        if session.process_id() == first {
            break session;
        }
        assert!(std::time::Instant::now() < until, "the session never comes back");
        session.close();
    };
    let left = run(&mut again, "select 1 where to_regclass('left_behind') is not null").await;
    assert!(left.rows.is_empty());
    let path = run(&mut again, "select 1 where current_setting('search_path') = 'nowhere'").await;
    assert!(path.rows.is_empty());
    drop(again);
    // Sessions of ours do not stand in the way of removal.
    core.delete(&any_permit(), made.id, Some(WAIT)).await.unwrap();
    assert!(lend().await.is_err());
    assert_eq!(things(cluster).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_holds_too_many_bytes_reads_on_and_writes_no_more_until_there_is_room() {
    let _alone = ALONE.lock().await;
    let cluster = cluster();
    for url in cluster.admin_urls() {
        let keys = tempfile::tempdir().unwrap();
        let core = core(&url, &keys, None, Arc::new(Inert)).await;
        let bytes = |limit| [Obligation::MaxDatabaseBytes { scope: Scope::Principal, limit }];
        // An empty database has some 8 MB.
        let few = bytes(22_000_000);
        let (full, other) = (make(&core, None, &few).await.unwrap(), make(&core, None, &few).await.unwrap());
        let (owner, owner_password) = core.credentials(&any_permit(), full.id, CredentialAccess::Owner).await.unwrap();
        let (info, reader_password) =
            core.credentials(&any_permit(), full.id, CredentialAccess::ReadOnly).await.unwrap();
        let database = info.database;
        let as_owner = async || cluster.connect(&owner.user, owner_password.expose(), &database).await;
        let as_reader = async || cluster.connect(&info.user, reader_password.expose(), &database).await;
        let (owners, readers) = (as_owner().await.unwrap(), as_reader().await.unwrap());

        let write = under(Impact::Writes, &full, &few);
        let mut session = core.session(&write, full.id, CredentialAccess::Owner).await.unwrap();
        let fill = "create table t as select repeat(md5(i::text), 30) from generate_series(1, 10000) i";
        run(&mut session, fill).await;
        // The owner tries to lock the reader out as well, which is set back as ever.
        run(&mut session, &format!("alter database {database} connection limit 0")).await;
        drop(session);
        upkeep(&core).await.unwrap();

        assert!(owners.simple_query("select 1").await.is_err(), "its direct session is ended");
        let refused = as_owner().await.unwrap_err();
        assert_eq!(refused.code().map(|code| code.code().to_owned()).as_deref(), Some("28000"), "{refused:?}");
        let failure = core.session(&write, full.id, CredentialAccess::Owner).await.map(drop).unwrap_err();
        assert_eq!(failure.code, Code::QuotaExceeded, "{failure}");
        readers.simple_query("select 1").await.expect("the reader's session goes on");
        let read = under(Impact::Reads, &full, &[]);
        let mut session = core.session(&read, full.id, CredentialAccess::ReadOnly).await.unwrap();
        assert_eq!(run(&mut session, "select 1 from t limit 3").await.rows.len(), 3);
        as_reader().await.unwrap();
        core.installed_extensions(&read, full.id).await.unwrap();
        for check in core.verify(&read, full.id).await.unwrap() {
            assert_ne!(check.status, CheckStatus::Fail, "{check:?}");
        }
        core.extend(&any_permit(), full.id, 30).await.unwrap();
        assert!(as_owner().await.is_err(), "a longer life is no login");

        // The limit is raised: the next write finds the door open, and so does everybody.
        let much = under(Impact::Writes, &full, &bytes(1 << 40));
        let mut session = core.session(&much, full.id, CredentialAccess::Owner).await.unwrap();
        run(&mut session, "insert into t values ('x')").await;
        as_owner().await.unwrap();
        // The other is still under the limit that it was made with, until there is room.
        let attempt = async || core.session(&any_permit(), other.id, CredentialAccess::Owner).await.map(drop);
        assert_eq!(attempt().await.unwrap_err().code, Code::QuotaExceeded);
        drop(session);
        core.delete(&any_permit(), full.id, Some(WAIT)).await.unwrap();
        upkeep(&core).await.unwrap();
        let (info, password) = core.credentials(&any_permit(), other.id, CredentialAccess::Owner).await.unwrap();
        cluster.connect(&info.user, password.expose(), &info.database).await.unwrap();
        core.delete(&any_permit(), other.id, Some(WAIT)).await.unwrap();
        assert_eq!(things(cluster).await, 0);
        assert!(core.drain(WAIT).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn twenty_parallel_creates_over_postgres_give_exactly_three() {
    let _alone = ALONE.lock().await;
    let cluster = cluster();
    let keys = tempfile::tempdir().unwrap();
    let url = cluster.superuser_url();
    let cores = [core(&url, &keys, Some(3), Arc::new(Inert)).await, core(&url, &keys, Some(3), Arc::new(Inert)).await];
    let calls = (0..20).map(|n| {
        let core = cores[n % 2].clone();
        tokio::spawn(async move { create(&core).await.map_err(|failure| failure.code) })
    });
    let mut made = 0;
    for call in calls.collect::<Vec<_>>() {
        match call.await.unwrap() {
            Ok(_) => made += 1,
            Err(code) => assert_eq!(code, Code::QuotaExceeded),
        }
    }
    assert_eq!((made, things(cluster).await), (3, 9));
    for sandbox in cores[0].list(&Default::default()).await.unwrap().databases {
        cores[0].delete(&any_permit(), sandbox.id, Some(WAIT)).await.unwrap();
    }
    assert_eq!(things(cluster).await, 0);
}

#[test]
fn a_create_that_crashes_anywhere_leaves_no_database_and_no_role() {
    let _alone = ALONE.blocking_lock();
    let cluster = cluster();
    let keys = tempfile::tempdir().unwrap();
    let url = cluster.superuser_url();
    // Lives once; returns whether the scenario came to its end.
    let live = |script: &Arc<Script>, then_delete: bool| {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let ended = runtime.block_on(async {
            let points: Arc<dyn FailPoints> = script.clone();
            let core = core(&url, &keys, None, points).await;
            let work = tokio::spawn(async move {
                if then_delete {
                    upkeep(&core).await.unwrap();
                } else {
                    create(&core).await.unwrap();
                }
                for sandbox in core.list(&Default::default()).await.unwrap().databases {
                    core.delete(&any_permit(), sandbox.id, Some(WAIT)).await.unwrap();
                }
            });
            tokio::select! {
                ended = work => { ended.unwrap(); true }
                () = script.crashed() => false,
            }
        });
        runtime.shutdown_timeout(WAIT);
        ended
    };
    let held = "select count(*) from pg_locks where locktype = 'advisory'
                and database = (select oid from pg_database where datname = 'postgres')";
    for at in 0.. {
        let script = Script::crash_at(at);
        let ended = live(&script, false);
        while block_on(count(cluster, held)) > 0 {
            std::thread::yield_now();
        }
        if !ended {
            assert!(live(&Script::fail_at(u64::MAX), true));
        }
        assert_eq!(block_on(things(cluster)), 0, "crashed at {at}: {:?}", script.point.lock().unwrap());
        if ended {
            assert!(at > 20, "only {at} points");
            return;
        }
    }
}
