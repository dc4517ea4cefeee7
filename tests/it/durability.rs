//! What the server's own crash leaves: nothing is there without the row and the line that announce it, what goes on
//! after the crash comes to its end or is taken back, and what was answered stays.
//!
//! The server is stopped as by a power cut of its processes: what it had not yet written is lost.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use pgsandbox::model::CredentialAccess;
use pgsandbox::sandbox::{Core, State};
use pgsandbox::store::{FailPoints, Inert, Point};
use tokio_postgres::Client;

use super::harness::{Cluster, own_cluster};
use super::lifecycle_postgres::core;
use super::toy_engine::{any_permit, create, upkeep};

/// Long enough for anything here.
const WAIT: Duration = Duration::from_secs(60);
/// More points than a create passes.
const POINTS_MAX: u64 = 60;

/// Crashes the server when the n-th point is passed.
struct Cut {
    cluster: Arc<Cluster>,
    at: u64,
    passed: AtomicU64,
    point: Mutex<Option<Point>>,
    /// What was there right after the crash and ought not to be.
    unannounced: Mutex<Vec<String>>,
}

#[async_trait]
impl FailPoints for Cut {
    async fn fails_at(&self, point: Point) -> bool {
        if self.passed.fetch_add(1, Ordering::SeqCst) == self.at {
            *self.point.lock().unwrap() = Some(point);
            let cluster = Arc::clone(&self.cluster);
            tokio::task::spawn_blocking(move || cluster.crash_and_restart()).await.unwrap();
            *self.unannounced.lock().unwrap() = unannounced(&self.cluster).await;
        }
        false
    }
}

async fn texts(client: &Client, sql: &str) -> Vec<String> {
    client.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

/// Databases and roles that no row that is still open announces, or no journal line.
async fn unannounced(cluster: &Cluster) -> Vec<String> {
    let admin = cluster.superuser("postgres").await;
    let things = "
        with things (name, step) as (
            select datname::text, 'create-database' from pg_database where datname like 'life\\_%'
            union all select rolname::text, 'create-roles' from pg_roles where rolname like 'life\\_%')
        select t.name from things t where not exists (
            select from pgsandbox.sandboxes b
            where t.name in (b.database_name, b.owner_role, b.readonly_role) and b.state in ('ready', 'creating', 'deleting')
              and exists (select from pgsandbox.plans p where p.sandbox_id = b.id)
              and (b.state = 'ready' or exists (
                  select from pgsandbox.plans p join pgsandbox.journal j on j.plan_id = p.id
                  where p.sandbox_id = b.id and (p.kind = 'delete' or j.step = t.step))))";
    texts(&admin, things).await
}

async fn check_usable(cluster: &Cluster, core: &Core, id: pgsandbox::model::SandboxId) {
    let (info, password) = core.credentials(&any_permit(), id, CredentialAccess::Owner).await.unwrap();
    let client = cluster.connect(&info.user, password.expose(), &info.database).await.unwrap();
    client.simple_query("create table t ()").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_outlives_a_crash_of_the_server_without_its_row_and_its_line() {
    let cluster = Arc::new(own_cluster());
    let keys = tempfile::tempdir().unwrap();
    let url = cluster.superuser_url();
    core(&url, &keys, None, Arc::new(Inert)).await.ready("local").await.unwrap();
    for at in 0..POINTS_MAX {
        let cut = Arc::new(Cut {
            cluster: Arc::clone(&cluster),
            at,
            passed: AtomicU64::new(0),
            point: Mutex::default(),
            unannounced: Mutex::default(),
        });
        let first = core(&url, &keys, None, cut.clone()).await;
        let made = create(&first).await;
        let point = *cut.point.lock().unwrap();
        let context = format!("cut at {at}: {point:?}: {made:?}");
        assert_eq!(*cut.unannounced.lock().unwrap(), [""; 0], "{context}");
        assert_eq!(unannounced(&cluster).await, [""; 0], "{context}");
        let second = core(&url, &keys, None, Arc::new(Inert)).await;
        if let Ok(made) = &made {
            check_usable(&cluster, &second, made.id).await;
            second.delete(&any_permit(), made.id, Some(WAIT)).await.unwrap();
        }
        first.drain(WAIT).await;
        // What the first could not take back, the second does.
        upkeep(&second).await.unwrap();
        upkeep(&second).await.unwrap();
        let admin = cluster.superuser("postgres").await;
        let left = "select datname::text from pg_database where datname like 'life\\_%'
                    union all select rolname::text from pg_roles where rolname like 'life\\_%'";
        assert_eq!(texts(&admin, left).await, [""; 0], "{context}");
        second.drain(WAIT).await;
        if point.is_none() {
            assert!(at > 10, "only {at} points were tried");
            return;
        }
    }
    panic!("a create passes more than {POINTS_MAX} points");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_answered_outlives_a_crash_of_the_server() {
    let cluster = own_cluster();
    let keys = tempfile::tempdir().unwrap();
    let url = cluster.superuser_url();
    for _ in 0..3 {
        let core = core(&url, &keys, None, Arc::new(Inert)).await;
        let made = create(&core).await.unwrap();
        tokio::task::block_in_place(|| cluster.crash_and_restart());
        check_usable(&cluster, &core, made.id).await;

        let deleted = core.delete(&any_permit(), made.id, None).await.unwrap();
        assert_eq!(deleted.state, State::Deleting);
        tokio::task::block_in_place(|| cluster.crash_and_restart());
        let admin = cluster.superuser("postgres").await;
        let sql = format!("select state from pgsandbox.sandboxes where database_name = '{}'", made.names.database);
        let state = texts(&admin, &sql).await;
        assert!(state == ["deleting"] || state == ["deleted"], "{state:?}");
        let sql = format!(
            "select rolname::text from pg_roles where rolname in ('{}', '{}') and rolcanlogin",
            made.names.owner_role, made.names.readonly_role
        );
        assert_eq!(texts(&admin, &sql).await, [""; 0]);
        core.drain(WAIT).await;
    }
}
