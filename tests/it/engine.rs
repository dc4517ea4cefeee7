//! The Postgres engine against real servers, with both kinds of admin.

use std::sync::Arc;
use std::time::Duration;

use pgsandbox::engine::postgres::{
    PostgresEngine, PostgresServer, PostgresSettings, PostgresUrl, ServerSource, UrlOrigin,
};
use pgsandbox::engine::{Contents, Engine, EngineError, SandboxSpec};
use pgsandbox::model::{
    CheckStatus, Code, CredentialAccess, Failure, SandboxId, SandboxKind, SandboxNames, Secret, Timestamp,
};
use tokio_postgres::Client;

use crate::harness::{self, Cluster, clusters, own_cluster};

mod checks;
mod copies;
mod doors;
mod extensions;
mod managed;
pub(crate) mod odd;
mod settings;

const PREFIX: &str = "pgsbt";

/// An engine with one admin on one cluster.
struct Bench {
    cluster: &'static Cluster,
    engine: PostgresEngine,
    superuser: bool,
}

/// Returns every admin on every cluster.
fn benches() -> Vec<Bench> {
    let all = clusters().into_iter().flat_map(|cluster| cluster.admin_urls().map(|url| (cluster, url)));
    all.map(|(cluster, url)| {
        let superuser = url == cluster.superuser_url();
        Bench { cluster, engine: PostgresEngine::new(server(&url)), superuser }
    })
    .collect()
}

fn server(url: &str) -> Arc<PostgresServer> {
    let url = PostgresUrl::parse(url, UrlOrigin::Operator).unwrap();
    let mut settings = PostgresSettings::new("test", PREFIX, ServerSource::External(url));
    settings.connection_limit = 5;
    settings.statement_timeout_ms = Some(60_000);
    PostgresServer::new(settings)
}

fn spec(hint: &str) -> SandboxSpec {
    let id = SandboxId::fresh();
    SandboxSpec {
        id,
        names: SandboxNames::new(PREFIX, Some(hint), id),
        owner_password: Secret::new(format!("owner:{id}")),
        readonly_password: Secret::new(format!("reader:{id}")),
        expires_at: Timestamp::now().plus(Duration::from_secs(3600)),
        extensions: Vec::new(),
        kind: SandboxKind::Sandbox,
        contents: Contents::Empty,
    }
}

impl Bench {
    fn name(&self) -> String {
        format!("{} admin on {}", if self.superuser { "superuser" } else { "limited" }, self.cluster.major)
    }

    async fn create(&self, spec: &SandboxSpec) {
        for step in self.engine.create_steps(SandboxKind::Sandbox, &Contents::Empty) {
            self.engine.run(step, spec).await.unwrap_or_else(|e| panic!("{}: {}: {e:?}", self.name(), step.name));
        }
    }

    async fn delete(&self, spec: &SandboxSpec) {
        let steps = self.engine.delete_steps();
        for step in steps.foreground.into_iter().chain(steps.background) {
            self.engine.run(step, spec).await.unwrap_or_else(|e| panic!("{}: {}: {e:?}", self.name(), step.name));
        }
    }

    async fn owner(&self, spec: &SandboxSpec) -> Client {
        self.log_in(spec, CredentialAccess::Owner).await.unwrap()
    }

    async fn log_in(&self, spec: &SandboxSpec, access: CredentialAccess) -> Result<Client, tokio_postgres::Error> {
        let (user, password) = match access {
            CredentialAccess::Owner => (&spec.names.owner_role, &spec.owner_password),
            CredentialAccess::ReadOnly => (&spec.names.readonly_role, &spec.readonly_password),
        };
        self.cluster.connect(user, password.expose(), &spec.names.database).await
    }

    /// Fails if anything of the sandbox is left on the server, rights and memberships among it.
    async fn nothing_is_left(&self, spec: &SandboxSpec) {
        let found = self.engine.inventory(PREFIX).await.unwrap();
        let left: Vec<_> = found.iter().filter(|f| f.name.contains(&spec.id.short())).collect();
        assert!(left.is_empty(), "{}: {left:?}", self.name());
        let admin = self.cluster.superuser("postgres").await;
        let dangling = "SELECT count(*) FROM pg_shdepend s WHERE s.refclassid = 'pg_authid'::regclass \
                        AND NOT EXISTS (SELECT 1 FROM pg_authid a WHERE a.oid = s.refobjid)";
        let count: i64 = admin.query_one(dangling, &[]).await.unwrap().get(0);
        assert_eq!(count, 0, "{}", self.name());
    }

    async fn failures(&self, spec: &SandboxSpec) -> Vec<String> {
        let checks = self.engine.verify(spec).await.unwrap();
        checks.into_iter().filter(|c| c.status == CheckStatus::Fail).map(|c| c.name).collect()
    }
}

/// Returns the SQLSTATE of a refused statement or login.
fn sqlstate<T>(result: Result<T, tokio_postgres::Error>) -> String {
    match result {
        Ok(_) => "accepted".to_owned(),
        Err(error) => error.code().map_or_else(|| error.to_string(), |c| c.code().to_owned()),
    }
}

#[tokio::test]
async fn a_sandbox_is_made_verified_and_removed() {
    for bench in benches() {
        let spec = spec("Life of a sandbox");
        bench.create(&spec).await;
        assert_eq!(bench.failures(&spec).await, Vec::<String>::new(), "{}", bench.name());
        assert!(bench.engine.measure(&spec).await.unwrap() > 1 << 20);
        bench.delete(&spec).await;
        bench.nothing_is_left(&spec).await;
    }
}

#[tokio::test]
async fn twelve_sandboxes_at_once_do_not_disturb_each_other() {
    for bench in benches() {
        let bench = Arc::new(bench);
        let lives: Vec<_> = (0..12)
            .map(|_| {
                let bench = Arc::clone(&bench);
                tokio::spawn(async move {
                    let spec = spec("crowd");
                    bench.create(&spec).await;
                    let session = bench.engine.session(&spec, CredentialAccess::Owner).await.unwrap();
                    drop(session);
                    bench.delete(&spec).await;
                    spec
                })
            })
            .collect();
        for life in lives {
            bench.nothing_is_left(&life.await.unwrap()).await;
        }
    }
}

#[tokio::test]
async fn every_step_and_every_undo_may_find_its_work_done() {
    for bench in benches() {
        let mut spec = spec("twice");
        spec.extensions = vec!["citext".to_owned()];
        let steps = bench.engine.create_steps(SandboxKind::Sandbox, &Contents::Empty);
        // before anything is there
        for step in steps.iter().rev() {
            bench.engine.undo(*step, &spec).await.unwrap();
        }
        for step in &steps {
            for _ in 0..2 {
                bench.engine.run(*step, &spec).await.unwrap_or_else(|e| panic!("{}: {e:?}", bench.name()));
            }
        }
        for step in &steps {
            bench.engine.run(*step, &spec).await.unwrap();
        }
        assert_eq!(bench.failures(&spec).await, Vec::<String>::new(), "{}", bench.name());
        for step in steps.iter().rev() {
            for _ in 0..2 {
                bench.engine.undo(*step, &spec).await.unwrap_or_else(|e| panic!("{}: {e:?}", bench.name()));
            }
        }
        bench.nothing_is_left(&spec).await;
        bench.create(&spec).await;
        let delete = bench.engine.delete_steps();
        for step in delete.foreground.iter().chain(&delete.background) {
            for _ in 0..2 {
                bench.engine.run(*step, &spec).await.unwrap_or_else(|e| panic!("{}: {e:?}", bench.name()));
            }
        }
        bench.delete(&spec).await;
        bench.nothing_is_left(&spec).await;
    }
}

#[tokio::test]
async fn a_plan_that_stops_after_any_step_can_be_taken_back_and_deleted() {
    for bench in benches() {
        let steps = bench.engine.create_steps(SandboxKind::Sandbox, &Contents::Empty);
        for done in 0..=steps.len() {
            for taken_back in [true, false] {
                let spec = spec("partial");
                for step in &steps[..done] {
                    bench.engine.run(*step, &spec).await.unwrap();
                }
                if taken_back {
                    for step in steps[..done].iter().rev() {
                        bench.engine.undo(*step, &spec).await.unwrap();
                    }
                } else {
                    bench.delete(&spec).await;
                }
                bench.nothing_is_left(&spec).await;
            }
        }
    }
}

#[tokio::test]
async fn nobody_can_enter_a_database_before_it_is_opened() {
    for bench in benches() {
        let spec = spec("closed");
        let steps = bench.engine.create_steps(SandboxKind::Sandbox, &Contents::Empty);
        let open = steps.iter().position(|s| s.name == "open-database").unwrap();
        for step in &steps[..open] {
            bench.engine.run(*step, &spec).await.unwrap();
            for access in [CredentialAccess::Owner, CredentialAccess::ReadOnly] {
                let state = sqlstate(bench.log_in(&spec, access).await);
                // Roles have no passwords at first, so the server does not even say that there is no database.
                let refused = ["28P01", "3D000", "53300", "55000"];
                assert!(refused.contains(&state.as_str()), "{}: {state}", bench.name());
            }
        }
        bench.engine.run(steps[open], &spec).await.unwrap();
        bench.log_in(&spec, CredentialAccess::Owner).await.unwrap();
        bench.delete(&spec).await;
    }
}

#[tokio::test]
async fn closing_ends_sessions_that_hold_what_is_to_be_changed() {
    for bench in benches() {
        let spec = spec("holds on");
        bench.create(&spec).await;
        let (a, b) = (bench.owner(&spec).await, bench.owner(&spec).await);
        let role = &spec.names.owner_role;
        a.batch_execute(&format!("BEGIN; ALTER ROLE {role} SET work_mem = '8MB'; ALTER ROLE {role} PASSWORD 'x'"))
            .await
            .unwrap();
        b.batch_execute(&format!("BEGIN; ALTER DATABASE {} CONNECTION LIMIT 7", spec.names.database)).await.unwrap();
        for step in bench.engine.delete_steps().foreground {
            bench.engine.run(step, &spec).await.unwrap_or_else(|e| panic!("{}: {e:?}", bench.name()));
        }
        assert!(a.simple_query("SELECT 1").await.is_err() && b.simple_query("SELECT 1").await.is_err());
        assert_eq!(sqlstate(bench.log_in(&spec, CredentialAccess::Owner).await), "28000", "{}", bench.name());
        bench.delete(&spec).await;
        bench.nothing_is_left(&spec).await;
    }
}

#[tokio::test]
async fn an_operators_session_that_holds_what_is_to_be_removed_is_waited_for() {
    for bench in benches().into_iter().filter(|bench| bench.superuser).take(1) {
        let spec = spec("held by another");
        bench.create(&spec).await;
        // Named as managed clusters name their admin: like a sandbox' role, and none.
        let admin = bench.cluster.superuser("postgres").await;
        let (name, role) = (format!("{PREFIX}_admin"), &spec.names.owner_role);
        admin.batch_execute(&format!("CREATE ROLE {name} SUPERUSER LOGIN PASSWORD 'x'")).await.unwrap();
        let operator = bench.cluster.connect(&name, "x", "postgres").await.unwrap();
        let granted = format!("BEGIN; CREATE TABLE t (); GRANT SELECT ON t TO {role}");
        operator.batch_execute(&granted).await.unwrap();
        let steps = bench.engine.delete_steps();
        let mut refused = false;
        for step in steps.foreground.into_iter().chain(steps.background) {
            refused = bench.engine.run(step, &spec).await.is_err();
            if refused {
                break;
            }
        }
        assert!(refused, "{}: the lock was not in the way", bench.name());
        operator.batch_execute("ROLLBACK").await.expect("it was not ended");
        bench.delete(&spec).await;
        bench.nothing_is_left(&spec).await;
        drop(operator);
        admin.batch_execute(&format!("DROP ROLE {name}")).await.unwrap();
    }
}

#[tokio::test]
async fn prepared_transactions_templates_and_slots_do_not_hold_a_database() {
    for bench in benches() {
        let spec = spec("prepared");
        bench.create(&spec).await;
        let owner = bench.owner(&spec).await;
        let names = &spec.names;
        let short = spec.id.short();
        // before the prepared transaction, which it would wait for
        if bench.superuser {
            let admin = bench.cluster.superuser(&names.database).await;
            let slot = format!("SELECT pg_create_logical_replication_slot('s{short}', 'pgoutput')");
            admin.batch_execute(&slot).await.unwrap();
        }
        owner
            .batch_execute(&format!(
                "CREATE TABLE t (a int); BEGIN; INSERT INTO t VALUES (1); ALTER ROLE {} SET work_mem = '8MB'; \
                 PREPARE TRANSACTION 'it''s {short}'",
                names.owner_role
            ))
            .await
            .unwrap();
        owner.batch_execute(&format!("ALTER DATABASE {} IS_TEMPLATE true", names.database)).await.unwrap();
        owner.batch_execute(&format!("ALTER DATABASE {} ALLOW_CONNECTIONS false", names.database)).await.unwrap_err();
        bench.delete(&spec).await;
        bench.nothing_is_left(&spec).await;
    }
}

#[tokio::test]
async fn what_roles_own_in_other_databases_goes_without_giving_it_to_the_powerful() {
    for bench in benches() {
        let (guest, host) = (spec("guest"), spec("host"));
        bench.create(&guest).await;
        bench.create(&host).await;
        // the host lets the guest in, and an operator has let it into a database of his own
        let inside = bench.owner(&host).await;
        inside
            .batch_execute(&format!(
                "GRANT CONNECT, CREATE ON DATABASE {} TO {}; GRANT CREATE ON SCHEMA public TO {}",
                host.names.database, guest.names.owner_role, guest.names.owner_role
            ))
            .await
            .unwrap();
        let password = guest.owner_password.expose();
        let visitor = bench.cluster.connect(&guest.names.owner_role, password, &host.names.database).await.unwrap();
        visitor.batch_execute("CREATE TABLE public.left_behind (a int); CREATE SCHEMA mine").await.unwrap();
        drop(visitor);
        let (home, user) =
            if bench.superuser { ("postgres", harness::SUPERUSER) } else { (harness::LIMITED, harness::LIMITED) };
        let admin = bench.cluster.superuser(home).await;
        let role = &guest.names.owner_role;
        admin
            .batch_execute(&format!(
                "GRANT CONNECT ON DATABASE {home} TO {role}; SET ROLE {user}; CREATE SCHEMA s_{role}; \
                 GRANT ALL ON SCHEMA s_{role} TO {role}"
            ))
            .await
            .unwrap();
        let visitor = bench.cluster.connect(role, password, home).await.unwrap();
        visitor
            .batch_execute(&format!(
                "CREATE VIEW s_{role}.trap AS SELECT 1; CREATE FUNCTION s_{role}.trap() RETURNS int SECURITY DEFINER \
                 LANGUAGE sql AS 'SELECT 1'; GRANT SELECT ON s_{role}.trap TO PUBLIC"
            ))
            .await
            .unwrap();
        drop(visitor);
        bench.delete(&guest).await;
        bench.nothing_is_left(&guest).await;
        let owner = "SELECT pg_get_userbyid(relowner)::text FROM pg_class WHERE relname = 'left_behind'";
        let owner: String = inside.query_one(owner, &[]).await.unwrap().get(0);
        assert_eq!(owner, host.names.owner_role, "{}", bench.name());
        for table in ["pg_class WHERE relname", "pg_proc WHERE proname"] {
            let sql = format!("SELECT count(*) FROM {table} = 'trap'");
            let count: i64 = admin.query_one(&sql, &[]).await.unwrap().get(0);
            assert_eq!(count, 0, "{}: {table}", bench.name());
        }
        admin.batch_execute(&format!("DROP SCHEMA s_{role} CASCADE; RESET ROLE")).await.unwrap();
        bench.delete(&host).await;
        bench.nothing_is_left(&host).await;
    }
}

#[tokio::test]
async fn an_admins_session_in_the_database_makes_deletion_busy_or_is_ended() {
    for bench in benches() {
        let spec = spec("busy");
        bench.create(&spec).await;
        let visitor = bench.cluster.superuser(&spec.names.database).await;
        let steps = bench.engine.delete_steps();
        let mut outcome = Ok(());
        for step in steps.foreground.iter().chain(&steps.background) {
            outcome = bench.engine.run(*step, &spec).await;
            if outcome.is_err() {
                break;
            }
        }
        match outcome {
            Ok(()) => assert!(bench.superuser),
            Err(EngineError::Busy { sessions: 1, .. }) => {
                assert!(!bench.superuser);
                drop(visitor);
                loop {
                    let count = "SELECT count(*) FROM pg_stat_activity WHERE datname = $1";
                    let admin = bench.cluster.superuser("postgres").await;
                    let count: i64 = admin.query_one(count, &[&spec.names.database]).await.unwrap().get(0);
                    if count == 0 {
                        break;
                    }
                }
                bench.delete(&spec).await;
            }
            Err(error) => panic!("{}: {error:?}", bench.name()),
        }
        bench.nothing_is_left(&spec).await;
    }
}

#[tokio::test]
async fn names_that_are_not_a_sandboxs_own_are_never_touched() {
    for bench in benches() {
        let mut spec = spec("mine");
        spec.names.database = "postgres".to_owned();
        let delete = bench.engine.delete_steps();
        for step in delete.foreground.iter().chain(&delete.background) {
            assert!(matches!(bench.engine.run(*step, &spec).await, Err(EngineError::Unsupported(_))), "{}", step.name);
        }
        for step in bench.engine.create_steps(SandboxKind::Sandbox, &Contents::Empty) {
            assert!(matches!(bench.engine.undo(step, &spec).await, Err(EngineError::Unsupported(_))), "{}", step.name);
        }
    }
}

#[tokio::test]
async fn a_database_of_another_owner_is_not_taken_over_or_dropped() {
    for bench in benches() {
        let spec = spec("taken");
        let admin = bench.cluster.superuser("postgres").await;
        admin.batch_execute(&format!("CREATE DATABASE {}", spec.names.database)).await.unwrap();
        let steps = bench.engine.create_steps(SandboxKind::Sandbox, &Contents::Empty);
        bench.engine.run(steps[0], &spec).await.unwrap();
        assert!(matches!(bench.engine.run(steps[1], &spec).await, Err(EngineError::Refused { .. })));
        assert!(matches!(bench.engine.undo(steps[1], &spec).await, Err(EngineError::Refused { .. })));
        let count = "SELECT count(*) FROM pg_database WHERE datname = $1";
        let count: i64 = admin.query_one(count, &[&spec.names.database]).await.unwrap().get(0);
        assert_eq!(count, 1, "{}", bench.name());
        admin.batch_execute(&format!("DROP DATABASE {}", spec.names.database)).await.unwrap();
        bench.engine.undo(steps[0], &spec).await.unwrap();
        bench.nothing_is_left(&spec).await;
    }
}

#[tokio::test]
async fn extensions_are_made_by_whom_they_should_be() {
    for bench in benches() {
        let mut spec = spec("extensions");
        spec.extensions = vec!["citext".to_owned()];
        if bench.superuser {
            spec.extensions.push("pg_buffercache".to_owned());
        }
        bench.create(&spec).await;
        let owner = bench.owner(&spec).await;
        let sql = "SELECT extname::text, pg_get_userbyid(extowner)::text, extnamespace::regnamespace::text \
                   FROM pg_extension WHERE extname <> 'plpgsql' ORDER BY 1";
        let rows = owner.query(sql, &[]).await.unwrap();
        let found: Vec<(String, String, String)> = rows.iter().map(|r| (r.get(0), r.get(1), r.get(2))).collect();
        let mut expected = vec![("citext".to_owned(), spec.names.owner_role.clone(), "public".to_owned())];
        if bench.superuser {
            expected.push(("pg_buffercache".to_owned(), harness::SUPERUSER.to_owned(), "public".to_owned()));
        }
        assert_eq!(found, expected, "{}", bench.name());
        let installed = bench.engine.installed_extensions(&spec).await.unwrap();
        assert!(installed.iter().any(|(name, _)| name == "citext"));
        let offered = bench.engine.available_extensions().await.unwrap();
        assert!(offered.iter().any(|e| e.name == "citext" && e.trusted));
        assert!(offered.iter().all(|e| e.name != "dblink" && e.name != "postgres_fdw"));
        bench.delete(&spec).await;
    }
}

#[tokio::test]
async fn an_untrusted_extension_needs_a_superuser_and_a_dangerous_one_is_never_made() {
    for bench in benches() {
        for (name, expected) in [("dblink", true), ("file_fdw", true), ("pg_buffercache", !bench.superuser)] {
            let mut spec = spec("refused");
            spec.extensions = vec![name.to_owned()];
            let mut outcome = Ok(());
            for step in bench.engine.create_steps(SandboxKind::Sandbox, &Contents::Empty) {
                outcome = outcome.and(bench.engine.run(step, &spec).await);
            }
            let refused = matches!(&outcome, Err(EngineError::Known(f)) if f.code == Code::ExtensionNotAllowed);
            assert_eq!(refused, expected, "{}: {name}: {outcome:?}", bench.name());
            bench.delete(&spec).await;
            bench.nothing_is_left(&spec).await;
        }
    }
}

#[tokio::test]
async fn the_reader_sees_what_the_owner_makes_and_changes_nothing() {
    for bench in benches() {
        let spec = spec("reader");
        bench.create(&spec).await;
        let owner = bench.owner(&spec).await;
        owner
            .batch_execute(
                "CREATE TABLE t (a int); INSERT INTO t VALUES (1); CREATE SCHEMA s; CREATE TABLE s.u (b int)",
            )
            .await
            .unwrap();
        let reader = bench.log_in(&spec, CredentialAccess::ReadOnly).await.unwrap();
        assert_eq!(reader.query_one("SELECT a FROM t", &[]).await.unwrap().get::<_, i32>(0), 1);
        assert!(reader.query("SELECT b FROM s.u", &[]).await.unwrap().is_empty());
        for sql in [
            "INSERT INTO t VALUES (2)",
            "DELETE FROM t",
            "CREATE TABLE x (a int)",
            "CREATE TEMP TABLE x (a int)",
            "CREATE SCHEMA x",
            "CREATE TABLE s.x (a int)",
            "SELECT * FROM t FOR UPDATE",
            "COPY t TO '/tmp/pgsb-test-never'",
            "COPY t TO PROGRAM 'true'",
        ] {
            assert_eq!(sqlstate(reader.batch_execute(sql).await), "42501", "{}: {sql}", bench.name());
        }
        bench.delete(&spec).await;
    }
}

#[tokio::test]
async fn expiry_and_login_can_be_set() {
    for bench in benches() {
        let mut spec = spec("times");
        bench.create(&spec).await;
        let later = spec.expires_at.plus(Duration::from_secs(60));
        bench.engine.set_expiry(&spec, later).await.unwrap();
        spec.expires_at = later;
        assert_eq!(bench.failures(&spec).await, Vec::<String>::new(), "{}", bench.name());
        let session = bench.owner(&spec).await;
        bench.engine.set_login(&spec, false).await.unwrap();
        assert!(session.simple_query("SELECT 1").await.is_err());
        assert_eq!(sqlstate(bench.log_in(&spec, CredentialAccess::Owner).await), "28000");
        bench.log_in(&spec, CredentialAccess::ReadOnly).await.unwrap();
        bench.engine.set_login(&spec, true).await.unwrap();
        bench.owner(&spec).await;
        bench.engine.set_expiry(&spec, Timestamp::now()).await.unwrap();
        assert_eq!(sqlstate(bench.log_in(&spec, CredentialAccess::Owner).await), "28P01", "{}", bench.name());
        bench.delete(&spec).await;
        let gone = bench.engine.set_expiry(&spec, later).await;
        assert!(matches!(&gone, Err(EngineError::Known(f)) if f.code == Code::DatabaseNotFound), "{gone:?}");
    }
}

#[tokio::test]
async fn no_statement_that_the_server_sees_holds_a_password() {
    for bench in benches() {
        let spec = spec("secrets");
        bench.create(&spec).await;
        let admin = bench.cluster.superuser("postgres").await;
        let sql = "SELECT count(*) FROM pg_authid WHERE rolname = ANY($1) AND rolpassword LIKE 'SCRAM-SHA-256$4096:%'";
        let roles = [&spec.names.owner_role, &spec.names.readonly_role];
        assert_eq!(admin.query_one(sql, &[&roles.as_slice()]).await.unwrap().get::<_, i64>(0), 2);
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%' || $1 || '%' AND pid <> pg_backend_pid()";
        for password in [&spec.owner_password, &spec.readonly_password] {
            let seen: i64 = admin.query_one(sql, &[&password.expose()]).await.unwrap().get(0);
            assert_eq!(seen, 0, "{}", bench.name());
        }
        bench.delete(&spec).await;
    }
}

#[tokio::test]
async fn sessions_are_kept_and_lost_ones_replaced() {
    let cluster = own_cluster();
    let server = self::server(&cluster.superuser_url());
    let pid = |session: pgsandbox::engine::postgres::PooledSession| async move {
        session.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get::<_, i32>(0)
    };
    let first = pid(server.metadata_session().await.unwrap()).await;
    assert_eq!(pid(server.metadata_session().await.unwrap()).await, first);
    cluster.crash_and_restart();
    // One that was used a moment ago is taken to be there, so its loss may be found by whoever uses it next, and only by them.
    let lost = match server.metadata_session().await {
        Ok(session) => session.query_one("SELECT 1", &[]).await.is_err(),
        Err(_) => true,
    };
    if lost {
        pid(server.metadata_session().await.unwrap()).await;
    }
}

#[tokio::test]
async fn health_looks_and_finds_what_an_operator_may_want_to_know() {
    for bench in benches() {
        let checks = bench.engine.health().await;
        let status = |name: &str| checks.iter().find(|c| c.name == name).map(|c| c.status);
        assert_eq!(status("postgres.reachable"), Some(CheckStatus::Ok), "{checks:?}");
        assert_eq!(status("postgres.version"), Some(CheckStatus::Ok));
        assert_eq!(status("postgres.public-connect"), Some(CheckStatus::Warn));
        assert_eq!(status("postgres.prepared-transactions"), Some(CheckStatus::Warn));
    }
    let nowhere = PostgresEngine::new(server("postgresql://u:p@127.0.0.1:1/d?sslmode=disable"));
    let checks = nowhere.health().await;
    assert_eq!(checks[0].name, "postgres.reachable");
    assert_eq!(checks[0].status, CheckStatus::Fail);
}

/// Passes connections on to `port`, without the `options` of their startup messages, as some poolers do.
async fn pooler(port: u16) -> u16 {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut server = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let length = client.read_u32().await.unwrap();
            let mut body = vec![0; usize::try_from(length).unwrap() - 4];
            client.read_exact(&mut body).await.unwrap();
            let mut words: Vec<&[u8]> = body[4..].split(|b| *b == 0).collect();
            let at = words.iter().position(|w| *w == b"options").unwrap();
            words.drain(at..at + 2);
            let rest = words.join(&0);
            server.write_u32(u32::try_from(rest.len()).unwrap() + 8).await.unwrap();
            server.write_all(&body[..4]).await.unwrap();
            server.write_all(&rest).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut client, &mut server).await });
        }
    });
    own
}

#[tokio::test]
async fn a_pooler_that_drops_start_up_settings_is_refused() {
    let cluster = harness::cluster();
    let port = pooler(cluster.port).await;
    let url = cluster.superuser_url().replace(&format!(":{}/", cluster.port), &format!(":{port}/"));
    let refused = PostgresEngine::new(server(&url)).ready().await;
    assert!(matches!(&refused, Err(EngineError::Unsuited { check: "postgres.settings", .. })), "{refused:?}");
}

#[tokio::test]
async fn an_admin_that_cannot_do_the_work_is_refused() {
    for cluster in clusters() {
        let admin = cluster.superuser("postgres").await;
        admin.batch_execute("CREATE ROLE weak LOGIN CREATEDB PASSWORD 'weak'").await.unwrap();
        let engine = PostgresEngine::new(server(&cluster.url("weak", "weak", "postgres")));
        let refused = engine.ready().await;
        let named =
            |f: &Failure| f.message.contains("lacks CREATEROLE") && f.hint.as_ref().unwrap().contains("ALTER ROLE");
        assert!(
            matches!(&refused, Err(EngineError::Unsuited { check: "postgres.admin", failure }) if named(failure)),
            "{refused:?}"
        );
        let engine = PostgresEngine::new(server(&cluster.url("weak", "wrong", "postgres")));
        assert!(matches!(engine.ready().await, Err(EngineError::Auth { .. })));
        admin.batch_execute("DROP ROLE weak").await.unwrap();
    }
}
