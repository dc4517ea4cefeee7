//! A second kind of sandbox, for tests only: names in a table in memory.
//!
//! It proves that the lifecycle core knows nothing of Postgres: here a sandbox is two roles and a database in a
//! [`World`] that outlives the program, as a server does. Every step passes fail-points half-way, so that it can fail
//! or crash with its work half done. The metadata is in a real Postgres, in a database of the test's own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use pgsandbox::admission::{Permit, SystemAuthority, SystemReason};
use pgsandbox::engine::postgres::SandboxSession;
use pgsandbox::engine::{
    ConnectionInfo, Contents, DeleteSteps, Engine, EngineError, ExtensionInfo, Found, SandboxSpec, ServerInfo, Step,
};
use pgsandbox::model::{Check, Code, CredentialAccess, Failure, RequestId, SandboxKind, Silent, Timestamp};
use pgsandbox::sandbox::{Core, CreateRequest, Created, Parts, Profile, ProfileSettings, Sandbox, UpkeepAudit};
use pgsandbox::secret::{KeyRing, KeySource};
use pgsandbox::store::{DirectSessions, FailPoints, Inert, Point, Store};
use tokio::sync::Notify;
use tokio_postgres::NoTls;
use tokio_util::sync::CancellationToken;

use super::harness::{Cluster, PASSWORD, SUPERUSER, block_on, cluster};

/// What is on the toy's server. Outlives every core that works on it.
#[derive(Clone, Default)]
pub struct World(Arc<Mutex<Things>>);

#[derive(Default)]
pub struct Things {
    pub databases: BTreeSet<String>,
    pub roles: BTreeSet<String>,
    pub open: BTreeSet<String>,
    pub expiry: BTreeMap<String, Timestamp>,
    /// Databases that cannot be dropped.
    pub stuck: BTreeSet<String>,
    /// Databases whose owner's login cannot be changed.
    pub stiff: BTreeSet<String>,
    /// Whether the server answers.
    pub down: bool,
    /// How long it takes to find out that it does not.
    pub down_after: Duration,
    /// How often that was found out.
    pub found_down: u32,
    /// Whether looking for what copies have left takes for ever, and whether somebody does.
    pub hangs: bool,
    pub hung: bool,
    /// How many bytes are free on its disk, if that can be seen.
    pub disk_left: Option<u64>,
}

impl World {
    pub fn with<R>(&self, look: impl FnOnce(&mut Things) -> R) -> R {
        look(&mut self.0.lock().unwrap())
    }

    /// Everything that is there, databases and roles.
    pub fn names(&self) -> Vec<String> {
        self.with(|things| things.databases.iter().chain(&things.roles).cloned().collect())
    }
}

/// The toy as the core sees it.
pub struct Toy {
    pub world: World,
    pub points: Arc<dyn FailPoints>,
}

const ROLES: Step = Step::new("roles", "making roles");
const DATABASE: Step = Step::new("database", "making the database");
const COPY: Step = Step::new("copy", "copying the database");
const RESET: Step = Step::new("reset", "emptying the sandbox");
const FURNISH: Step = Step::inner("furnish", "putting things into the database");
const OPEN: Step = Step::new("open", "letting the roles in");
const BAR: Step = Step::new("bar", "letting nobody in");
const DROP_DATABASE: Step = Step::new("drop-database", "dropping the database");
const DROP_ROLES: Step = Step::new("drop-roles", "dropping the roles");

impl Toy {
    fn refused(action: &'static str) -> EngineError {
        EngineError::Refused { action, sqlstate: "55006".to_owned(), detail: "the toy says no".to_owned() }
    }

    async fn half_way(&self, name: &'static str) -> Result<(), EngineError> {
        if self.points.fails_at(Point::Step(name)).await { Err(Self::refused("go on half-way")) } else { Ok(()) }
    }
}

#[async_trait]
impl Engine for Toy {
    fn kind(&self) -> &'static str {
        "toy"
    }

    fn managed(&self) -> bool {
        false
    }

    fn known_major(&self) -> Option<u16> {
        Some(7)
    }

    fn disk_left(&self) -> Option<u64> {
        self.world.with(|things| things.disk_left)
    }

    async fn ready(&self) -> Result<ServerInfo, EngineError> {
        if self.world.with(|things| things.down) {
            tokio::time::sleep(self.world.with(|things| things.down_after)).await;
            self.world.with(|things| things.found_down += 1);
            return Err(EngineError::Unreachable { profile: "toy".to_owned(), detail: "down".to_owned() });
        }
        Ok(ServerInfo { major: 7, version: "7.1 toy".to_owned(), superuser: true })
    }

    fn create_steps(&self, _kind: SandboxKind, contents: &Contents) -> Vec<Step> {
        match contents {
            Contents::Empty | Contents::Clone(_) | Contents::Restore(_) => vec![ROLES, DATABASE, FURNISH, OPEN],
            Contents::Copy { .. } => vec![ROLES, COPY, FURNISH, OPEN],
        }
    }

    fn known_steps(&self) -> Vec<Step> {
        vec![RESET, ROLES, DATABASE, COPY, FURNISH, OPEN]
    }

    fn reset_step(&self) -> Step {
        RESET
    }

    async fn check_copy(&self, source: &SandboxSpec) -> Result<(), EngineError> {
        match self.world.with(|things| things.databases.contains(&source.names.database)) {
            true => Ok(()),
            false => Err(Self::refused("copy what is not there")),
        }
    }

    async fn look_ahead(&self, _: &Contents) {}

    async fn await_unused(&self, _source: &SandboxSpec) -> Result<(), EngineError> {
        Ok(())
    }

    fn delete_steps(&self) -> DeleteSteps {
        DeleteSteps { foreground: vec![BAR], background: vec![DROP_DATABASE, DROP_ROLES] }
    }

    async fn run(&self, step: Step, sandbox: &SandboxSpec) -> Result<(), EngineError> {
        let names = sandbox.names.clone();
        match step.name {
            "roles" => {
                self.world.with(|things| things.roles.insert(names.owner_role));
                self.half_way("roles:one-of-two").await?;
                self.world.with(|things| things.roles.insert(names.readonly_role));
                self.half_way("roles:both").await
            }
            "database" => {
                self.world.with(|things| things.databases.insert(names.database));
                self.half_way("database:made").await
            }
            "copy" => {
                let Contents::Copy { names: source, .. } = &sandbox.contents else {
                    return Err(Self::refused("copy nothing"));
                };
                let copied = self.world.with(|things| {
                    things.databases.contains(&source.database) && {
                        things.databases.insert(names.database);
                        true
                    }
                });
                if copied { self.half_way("copy:made").await } else { Err(Self::refused("copy what is not there")) }
            }
            "reset" => {
                self.world.with(|things| {
                    things.open.remove(&names.database);
                    things.databases.remove(&names.database);
                });
                self.half_way("reset:done").await
            }
            "furnish" => match self.world.with(|things| things.databases.contains(&names.database)) {
                true => self.half_way("furnish:done").await,
                false => Err(Self::refused("furnish what is not there")),
            },
            "open" => {
                self.world.with(|things| things.open.insert(names.database));
                self.half_way("open:done").await
            }
            "bar" => {
                self.world.with(|things| things.open.remove(&names.database));
                self.half_way("bar:done").await
            }
            "drop-database" => {
                if self.world.with(|things| things.stuck.contains(&names.database)) {
                    return Err(Self::refused("drop a database"));
                }
                self.world.with(|things| things.databases.remove(&names.database));
                self.half_way("drop-database:done").await
            }
            "drop-roles" => {
                self.world.with(|things| things.roles.remove(&names.owner_role));
                self.half_way("drop-roles:one-of-two").await?;
                self.world.with(|things| things.roles.remove(&names.readonly_role));
                self.half_way("drop-roles:both").await
            }
            other => Err(EngineError::Unsupported(format!("no step `{other}`"))),
        }
    }

    async fn undo(&self, step: Step, sandbox: &SandboxSpec) -> Result<(), EngineError> {
        let names = &sandbox.names;
        self.world.with(|things| match step.name {
            "roles" => {
                things.roles.remove(&names.owner_role);
                things.roles.remove(&names.readonly_role);
            }
            "database" | "copy" => {
                things.databases.remove(&names.database);
            }
            "reset" => {
                things.open.remove(&names.database);
                things.databases.remove(&names.database);
                things.roles.remove(&names.owner_role);
                things.roles.remove(&names.readonly_role);
            }
            "furnish" => {}
            _ => {
                things.open.remove(&names.database);
            }
        });
        self.half_way("undone").await
    }

    async fn set_expiry(&self, sandbox: &SandboxSpec, expires_at: Timestamp) -> Result<(), EngineError> {
        self.half_way("set-expiry").await?;
        self.world.with(|things| things.expiry.insert(sandbox.names.database.clone(), expires_at));
        Ok(())
    }

    async fn set_login(&self, sandbox: &SandboxSpec, allowed: bool) -> Result<(), EngineError> {
        if self.world.with(|things| things.stiff.contains(&sandbox.names.database)) {
            return Err(Self::refused("change a login"));
        }
        self.world.with(|things| match allowed {
            true => things.open.insert(sandbox.names.database.clone()),
            false => things.open.remove(&sandbox.names.database),
        });
        self.half_way("set-login").await
    }

    async fn sweep_copies(&self) {
        let hangs = self.world.with(|things| {
            things.hung = things.hangs;
            things.hangs
        });
        if hangs {
            std::future::pending::<()>().await;
        }
    }

    async fn measure(&self, sandbox: &SandboxSpec) -> Result<u64, EngineError> {
        match self.world.with(|things| things.databases.contains(&sandbox.names.database)) {
            true => Ok(1000),
            false => Err(Self::refused("measure a database")),
        }
    }

    async fn inventory(&self, prefix: &str) -> Result<Vec<Found>, EngineError> {
        let bears = |name: &&String| name.starts_with(prefix);
        Ok(self.world.with(|things| {
            let databases =
                things.databases.iter().filter(bears).map(|name| Found { kind: "database", name: name.clone() });
            let roles = things.roles.iter().filter(bears).map(|name| Found { kind: "role", name: name.clone() });
            databases.chain(roles).collect()
        }))
    }

    async fn verify(&self, _sandbox: &SandboxSpec) -> Result<Vec<Check>, EngineError> {
        Ok(Vec::new())
    }

    async fn available_extensions(&self) -> Result<Vec<ExtensionInfo>, EngineError> {
        let citext = ExtensionInfo {
            name: "citext".to_owned(),
            default_version: "1".to_owned(),
            trusted: true,
            requires: Vec::new(),
            comment: String::new(),
        };
        Ok(vec![citext])
    }

    async fn check_extensions(&self, wanted: &[String]) -> Result<(), EngineError> {
        match wanted.iter().find(|name| *name != "citext") {
            None => Ok(()),
            Some(_) => Err(EngineError::Known(Failure::new(Code::ExtensionSetupRequired, "it is not there").into())),
        }
    }

    async fn installed_extensions(&self, sandbox: &SandboxSpec) -> Result<Vec<(String, String)>, EngineError> {
        Ok(sandbox.extensions.iter().map(|name| (name.clone(), "1".to_owned())).collect())
    }

    fn connection(&self, sandbox: &SandboxSpec, access: CredentialAccess) -> ConnectionInfo {
        let names = &sandbox.names;
        let user = match access {
            CredentialAccess::Owner => &names.owner_role,
            CredentialAccess::ReadOnly => &names.readonly_role,
        };
        ConnectionInfo {
            host: "toy".to_owned(),
            port: 7,
            database: names.database.clone(),
            user: user.clone(),
            parameters: Vec::new(),
        }
    }

    async fn session(&self, sandbox: &SandboxSpec, access: CredentialAccess) -> Result<SandboxSession, EngineError> {
        let open = self.world.with(|things| things.open.contains(&sandbox.names.database));
        if access == CredentialAccess::Owner && !open {
            return Err(EngineError::Auth { profile: "toy".to_owned(), user: sandbox.names.owner_role.clone() });
        }
        Err(EngineError::Unsupported("a toy has no sessions".to_owned()))
    }

    async fn restore_reads(&self, _sandbox: &SandboxSpec, _within: Duration) -> Result<bool, EngineError> {
        Ok(false)
    }

    async fn health(&self) -> Vec<Check> {
        Vec::new()
    }
}

/// Fails or stops at the n-th point that is passed, or only counts.
pub struct Script {
    act: Act,
    at: u64,
    passed: AtomicU64,
    fired: AtomicBool,
    crashed: Notify,
    /// The point at which it acted.
    pub point: Mutex<Option<Point>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Act {
    Fail,
    Crash,
}

impl Script {
    /// The n-th point fails, from 0.
    pub fn fail_at(at: u64) -> Arc<Self> {
        Self::new(Act::Fail, at)
    }

    /// At the n-th point everything stops.
    pub fn crash_at(at: u64) -> Arc<Self> {
        Self::new(Act::Crash, at)
    }

    fn new(act: Act, at: u64) -> Arc<Self> {
        Arc::new(Self {
            act,
            at,
            passed: AtomicU64::new(0),
            fired: AtomicBool::new(false),
            crashed: Notify::new(),
            point: Mutex::default(),
        })
    }

    /// Waits until everything has stopped.
    pub async fn crashed(&self) {
        self.crashed.notified().await;
    }

    /// Returns whether the n-th point came.
    pub fn fired(&self) -> bool {
        self.fired.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl FailPoints for Script {
    async fn fails_at(&self, point: Point) -> bool {
        let n = self.passed.fetch_add(1, Ordering::SeqCst);
        if n < self.at || (n > self.at && self.act == Act::Fail) {
            return false;
        }
        if !self.fired.swap(true, Ordering::SeqCst) {
            *self.point.lock().unwrap() = Some(point);
        }
        if self.act == Act::Fail {
            return true;
        }
        self.crashed.notify_one();
        std::future::pending().await
    }
}

/// Waits at one point until told to go on, and may fail at one that comes after it.
#[derive(Default)]
pub struct Gate {
    at: Mutex<Option<Point>>,
    then_fails: Mutex<Option<Point>>,
    pub reached: Notify,
    pub go_on: Notify,
}

impl Gate {
    pub fn at(point: Point) -> Arc<Self> {
        Arc::new(Self { at: Mutex::new(Some(point)), ..Self::default() })
    }

    /// Waits at the one, if there is one, and fails at the other.
    pub fn then_fails(at: Option<Point>, then: Point) -> Arc<Self> {
        Arc::new(Self { at: Mutex::new(at), then_fails: Mutex::new(Some(then)), ..Self::default() })
    }
}

#[async_trait]
impl FailPoints for Gate {
    async fn fails_at(&self, point: Point) -> bool {
        let here = self.at.lock().unwrap().take_if(|at| *at == point).is_some();
        if here {
            self.reached.notify_one();
            self.go_on.notified().await;
        }
        self.at.lock().unwrap().is_none() && self.then_fails.lock().unwrap().take_if(|then| *then == point).is_some()
    }
}

/// The metadata's server, what is on the toy's server, and the keys: what survives a crash.
pub struct Ground {
    cluster: &'static Cluster,
    database: String,
    pub world: World,
    state: tempfile::TempDir,
}

/// How a core of a test differs from the usual.
pub struct Setup {
    pub points: Arc<dyn FailPoints>,
    pub settings: ProfileSettings,
}

impl Default for Setup {
    fn default() -> Self {
        Self { points: Arc::new(Inert), settings: settings() }
    }
}

pub fn settings() -> ProfileSettings {
    ProfileSettings {
        prefix: "toy".to_owned(),
        default_ttl_minutes: 60,
        max_ttl_minutes: 120,
        allowed_extensions: vec!["citext".to_owned(), "hstore".to_owned()],
        max_active_per_owner: None,
    }
}

impl Ground {
    pub fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let database = format!("metadata_{}", COUNT.fetch_add(1, Ordering::SeqCst));
        let cluster = cluster();
        block_on(async {
            let admin = cluster.superuser("postgres").await;
            admin.batch_execute(&format!("create database {database}")).await.unwrap();
        });
        Self { cluster, database, world: World::default(), state: tempfile::tempdir().unwrap() }
    }

    fn config(&self) -> tokio_postgres::Config {
        let mut config = tokio_postgres::Config::new();
        config.host("127.0.0.1").port(self.cluster.port).user(SUPERUSER).password(PASSWORD).dbname(&self.database);
        config
    }

    pub fn sessions(&self) -> DirectSessions {
        DirectSessions::new(self.config())
    }

    pub fn store(&self) -> Store {
        Store::new("local", "toy", Arc::new(self.sessions()), Arc::new(Inert))
    }

    pub async fn keys(&self) -> KeyRing {
        KeyRing::open(KeySource::StateDirectory(self.state.path().to_owned())).await.unwrap()
    }

    pub async fn core(&self) -> Core {
        self.core_with(Setup::default()).await
    }

    pub async fn core_with(&self, setup: Setup) -> Core {
        let profile = self.profile("local", setup);
        let parts = Parts { profiles: vec![profile], default_profile: "local".to_owned(), keys: self.keys().await };
        Core::new(parts).unwrap()
    }

    pub fn profile(&self, name: &str, setup: Setup) -> Profile {
        let engine = Toy { world: self.world.clone(), points: Arc::clone(&setup.points) };
        let sessions = Arc::new(self.sessions());
        Profile::with_points(name, setup.settings, Arc::new(engine), sessions, setup.points).unwrap()
    }

    /// Runs a statement on the metadata, as time or an operator would.
    pub async fn sql(&self, sql: &str) {
        let (client, connection) = self.config().connect(NoTls).await.unwrap();
        let connection = tokio::spawn(connection);
        client.batch_execute(sql).await.unwrap();
        drop(client);
        connection.await.unwrap().unwrap();
    }

    /// Returns the number that a query gives.
    pub async fn count(&self, sql: &str) -> i64 {
        let (client, connection) = self.config().connect(NoTls).await.unwrap();
        let connection = tokio::spawn(connection);
        let count = client.query_one(sql, &[]).await.unwrap().get(0);
        drop(client);
        connection.await.unwrap().unwrap();
        count
    }

    /// Returns the texts that a query gives, one per row.
    pub async fn texts(&self, sql: &str) -> Vec<String> {
        let (client, connection) = self.config().connect(NoTls).await.unwrap();
        let connection = tokio::spawn(connection);
        let texts = client.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
        drop(client);
        connection.await.unwrap().unwrap();
        texts
    }

    /// Makes every wait be over.
    pub async fn time_passes(&self) {
        self.sql(
            "update pgsandbox.plans set next_attempt_at = now() - interval '1 second', taken_at = '-infinity';
             update pgsandbox.sandboxes set ended_at = ended_at - interval '1 hour' where ended_at is not null",
        )
        .await;
    }

    /// Makes the time of every sandbox be over.
    pub async fn all_expire(&self) {
        self.sql("update pgsandbox.sandboxes set expires_at = now() - interval '1 minute' where state = 'ready'").await;
    }

    /// Checks that metadata and world agree, that nothing is unfinished, and that there are so many sandboxes.
    pub async fn check_settled(&self, live: usize, context: &str) {
        let unfinished = self.count("select count(*) from pgsandbox.plans where state in ('running', 'undoing')").await;
        assert_eq!(unfinished, 0, "unfinished plans: {context}");
        let between =
            self.count("select count(*) from pgsandbox.sandboxes where state in ('creating', 'deleting')").await;
        assert_eq!(between, 0, "sandboxes between states: {context}");
        let ready = self.count("select count(*) from pgsandbox.sandboxes where state = 'ready'").await;
        assert_eq!(usize::try_from(ready).unwrap(), live, "ready sandboxes: {context}");
        let (databases, roles) = self.world.with(|things| (things.databases.len(), things.roles.len()));
        assert_eq!((databases, roles), (live, 2 * live), "what is on the server: {context}: {:?}", self.world.names());
    }

    /// Waits until no server holds its lock: the metadata's server has noticed that they are gone.
    pub fn await_death(&self) {
        block_on(async {
            let held = "select count(*) from pg_locks l join pg_database d on d.oid = l.database
                        where l.locktype = 'advisory' and d.datname = current_database()";
            let until = Instant::now() + Duration::from_secs(20);
            while self.count(held).await > 0 {
                assert!(Instant::now() < until, "a server's lock outlives it");
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        });
    }

    /// Lives once: runs `scenario` on a core of its own, until its end or until `script` crashes everything.
    /// Returns whether it came to its end.
    pub fn live<F: Future<Output = ()> + Send + 'static>(
        self: &Arc<Self>,
        script: Arc<Script>,
        scenario: impl FnOnce(Arc<Self>, Core) -> F + Send + 'static,
    ) -> bool {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let ground = Arc::clone(self);
        let ended = runtime.block_on(async move {
            let points: Arc<dyn FailPoints> = script.clone();
            let core = ground.core_with(Setup { points, ..Setup::default() }).await;
            let scenario = tokio::spawn(scenario(ground, core));
            tokio::select! {
                ended = scenario => { ended.unwrap(); true }
                () = script.crashed() => false,
            }
        });
        // As a kill would: every task is dropped where it stands, and every connection with it.
        runtime.shutdown_timeout(Duration::from_secs(10));
        self.await_death();
        ended
    }
}

pub fn authority() -> SystemAuthority {
    static AUTHORITY: OnceLock<SystemAuthority> = OnceLock::new();
    AUTHORITY.get_or_init(|| SystemAuthority::take().expect("nobody else takes it")).clone()
}

/// A permit for everything. Different reasons are different owners.
pub fn permit(reason: SystemReason) -> Permit<()> {
    authority().permit(reason, RequestId::fresh(), Timestamp::now())
}

pub fn any_permit() -> Permit<()> {
    permit(SystemReason::Recovery)
}

pub fn request() -> CreateRequest {
    CreateRequest { profile: "local".to_owned(), name_hint: Some("task".to_owned()), ..CreateRequest::default() }
}

pub async fn create(core: &Core) -> Result<Sandbox, Failure> {
    create_as(core, SystemReason::Recovery, request()).await.map(|created| created.sandbox)
}

pub async fn create_as(core: &Core, reason: SystemReason, request: CreateRequest) -> Result<Created, Failure> {
    core.create(&permit(reason), request, Arc::new(Silent), CancellationToken::new()).await
}

pub async fn upkeep(core: &Core) -> Result<(), Failure> {
    let audit: Arc<dyn UpkeepAudit> = Arc::new(Unrecorded);
    core.upkeep(&core.profiles()[0], &authority(), &audit, 0).await.map(drop)
}

/// Upkeep that is recorded nowhere.
struct Unrecorded;

#[async_trait]
impl UpkeepAudit for Unrecorded {
    async fn open(&self, _permit: &Permit<()>, _sandbox: &Sandbox) -> Result<(), Failure> {
        Ok(())
    }

    async fn close(&self, _permit: &Permit<()>, _sandbox: &Sandbox, _outcome: Result<(), &Failure>) {}
}
