//! Copies on one server: everything in them is their own roles', and the source is as it was.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{Bench, benches, spec, sqlstate};
use pgsandbox::engine::{Contents, Engine, EngineError, SandboxSpec};
use pgsandbox::model::{CredentialAccess, SandboxKind};

/// What an owner may leave in its sandbox; `OWNER` and `READER` are its roles.
const FURNITURE: &str = r#"
    CREATE SCHEMA app; CREATE SCHEMA "Odd ""Name";
    CREATE TYPE app.mood AS ENUM ('glad', 'sad'); CREATE DOMAIN app.positive AS int CHECK (VALUE > 0);
    CREATE TYPE app.pair AS (a int, b text);
    CREATE TABLE app.things (id serial PRIMARY KEY, mood app.mood, secret text, n app.positive);
    INSERT INTO app.things (mood, secret, n) SELECT 'glad', 's' || i, i FROM generate_series(1, 1000) i;
    CREATE TABLE "Odd ""Name"."Things" ("A b" int GENERATED ALWAYS AS IDENTITY);
    CREATE TABLE app.parted (at date, v int) PARTITION BY RANGE (at);
    CREATE TABLE app.parted_1 PARTITION OF app.parted FOR VALUES FROM ('2020-01-01') TO ('2021-01-01');
    CREATE VIEW app.seen AS SELECT id, mood FROM app.things;
    CREATE MATERIALIZED VIEW app.kept AS SELECT count(*) AS c FROM app.things;
    CREATE SEQUENCE app.free;
    CREATE FUNCTION app.double(app.positive) RETURNS int LANGUAGE sql AS 'SELECT $1 * 2';
    CREATE PROCEDURE app.nothing() LANGUAGE sql AS 'SELECT 1';
    CREATE AGGREGATE app.total(int) (SFUNC = int4pl, STYPE = int);
    CREATE OPERATOR app.### (LEFTARG = int, RIGHTARG = int, FUNCTION = int4pl);
    CREATE COLLATION app.plain (LOCALE = 'C');
    CREATE TEXT SEARCH CONFIGURATION app.words (COPY = pg_catalog.simple);
    CREATE STATISTICS app.joint ON id, n FROM app.things;
    CREATE PUBLICATION news FOR TABLE app.things;
    CREATE EXTENSION citext SCHEMA app;
    SELECT lo_create(4242);
    ALTER TABLE app.things ENABLE ROW LEVEL SECURITY;
    CREATE POLICY mine ON app.things TO OWNER, READER USING (true);
    CREATE POLICY all_of_us ON app.things FOR SELECT TO PUBLIC USING (n > 0);
    GRANT SELECT (id, mood) ON app.things TO READER;
    GRANT SELECT, UPDATE ON app.parted TO READER WITH GRANT OPTION;
    GRANT EXECUTE ON FUNCTION app.double(app.positive) TO READER; REVOKE EXECUTE ON PROCEDURE app.nothing() FROM PUBLIC;
    GRANT EXECUTE ON PROCEDURE app.nothing() TO READER;
    GRANT USAGE ON TYPE app.mood TO READER; GRANT USAGE ON SEQUENCE app.free TO READER;
    GRANT SELECT ON LARGE OBJECT 4242 TO READER; GRANT USAGE, CREATE ON SCHEMA app TO READER;
    ALTER DEFAULT PRIVILEGES IN SCHEMA app GRANT INSERT ON TABLES TO READER;
    ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;
    ALTER DATABASE SOURCE SET search_path = app, "$user", "Odd ""Name";
    ALTER DATABASE SOURCE SET TimeZone = 'Europe/Madrid';
    ALTER ROLE OWNER IN DATABASE SOURCE SET work_mem = '8MB';
    COMMENT ON DATABASE SOURCE IS 'don''t panic'"#;

/// Who owns and may do what in a database, and what is kept of it outside: one line for each fact.
const FACTS: &str = "
    SELECT 'class ' || oid::regclass || ' ' || relowner::regrole || ' ' ||
        array(SELECT a::text FROM unnest(relacl) a ORDER BY 1)::text FROM pg_class WHERE relnamespace <> 99
    UNION ALL SELECT 'column ' || attrelid::regclass || '.' || attname || ' ' ||
        array(SELECT a::text FROM unnest(attacl) a ORDER BY 1)::text FROM pg_attribute WHERE attacl IS NOT NULL
    UNION ALL SELECT 'routine ' || oid::regprocedure || ' ' || proowner::regrole || ' ' ||
        array(SELECT a::text FROM unnest(proacl) a ORDER BY 1)::text FROM pg_proc
    UNION ALL SELECT 'type ' || oid::regtype || ' ' || typowner::regrole || ' ' ||
        array(SELECT a::text FROM unnest(typacl) a ORDER BY 1)::text FROM pg_type
    UNION ALL SELECT 'schema ' || nspname || ' ' || nspowner::regrole || ' ' ||
        array(SELECT a::text FROM unnest(nspacl) a ORDER BY 1)::text FROM pg_namespace
    UNION ALL SELECT 'large object ' || oid || ' ' || lomowner::regrole || ' ' ||
        array(SELECT a::text FROM unnest(lomacl) a ORDER BY 1)::text FROM pg_largeobject_metadata
    UNION ALL SELECT 'default ' || defaclrole::regrole || ' ' || defaclnamespace::regnamespace || ' ' || defaclobjtype::text || ' ' ||
        array(SELECT a::text FROM unnest(defaclacl) a ORDER BY 1)::text FROM pg_default_acl
    UNION ALL SELECT 'policy ' || polname || ' ' || array(SELECT coalesce(r::regrole::text, '') FROM unnest(polroles) r ORDER BY 1)::text
        FROM pg_policy
    UNION ALL SELECT 'publication ' || pubname || ' ' || pubowner::regrole FROM pg_publication
    UNION ALL SELECT 'extension ' || extname || ' ' || extowner::regrole FROM pg_extension
    UNION ALL SELECT 'event trigger ' || evtname || ' ' || evtowner::regrole FROM pg_event_trigger
    UNION ALL SELECT 'operator ' || oid::regoperator || ' ' || oprowner::regrole FROM pg_operator
    UNION ALL SELECT 'statistics ' || stxname || ' ' || stxowner::regrole FROM pg_statistic_ext
    UNION ALL SELECT 'collation ' || collname || ' ' || collowner::regrole FROM pg_collation WHERE collnamespace <> 11
    UNION ALL SELECT 'words ' || cfgname || ' ' || cfgowner::regrole FROM pg_ts_config
    UNION ALL SELECT 'database ' || datdba::regrole || ' ' || datallowconn || ' ' || datconnlimit || ' ' ||
        array(SELECT a::text FROM unnest(datacl) a ORDER BY 1)::text FROM pg_database WHERE datname = current_database()
    UNION ALL SELECT 'setting ' || setrole::regrole || ' ' || setconfig::text FROM pg_db_role_setting
        WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
    UNION ALL SELECT 'server ' || srvname || ' ' || srvowner::regrole || ' ' || coalesce(srvoptions, '{}')::text || ' ' ||
        array(SELECT a::text FROM unnest(srvacl) a ORDER BY 1)::text FROM pg_foreign_server
    UNION ALL SELECT 'wrapper ' || fdwname || ' ' || fdwowner::regrole || ' ' ||
        array(SELECT a::text FROM unnest(fdwacl) a ORDER BY 1)::text FROM pg_foreign_data_wrapper
    UNION ALL SELECT 'mapping ' || usename || ' ' || srvname || ' ' || coalesce(umoptions, '{}')::text FROM pg_user_mappings
    UNION ALL SELECT 'comment ' || shobj_description(oid, 'pg_database') FROM pg_database WHERE datname = current_database()
    ORDER BY 1";

/// Returns a copy's specification.
pub(super) fn copy_of(source: &SandboxSpec) -> SandboxSpec {
    SandboxSpec { contents: Contents::copy(source.id, source.names.clone()), ..spec("copy") }
}

impl Bench {
    async fn furnish(&self, source: &SandboxSpec) {
        let names = &source.names;
        let sql = FURNITURE
            .replace("OWNER", &names.owner_role)
            .replace("READER", &names.readonly_role)
            .replace("SOURCE", &names.database);
        self.owner(source).await.batch_execute(&sql).await.unwrap();
        let reader = self.log_in(source, CredentialAccess::ReadOnly).await.unwrap();
        reader.batch_execute("CREATE TABLE app.of_reader (v int); GRANT SELECT ON app.parted TO PUBLIC").await.unwrap();
        let admin = self.cluster.superuser(&names.database).await;
        let by_admin = "CREATE FUNCTION app.on_ddl() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END';
                        CREATE EVENT TRIGGER watch ON ddl_command_end EXECUTE FUNCTION app.on_ddl()";
        admin.batch_execute(by_admin).await.unwrap();
        drop(admin);
    }

    pub(super) async fn facts(&self, of: &SandboxSpec) -> Vec<String> {
        let client = self.cluster.superuser(&of.names.database).await;
        let facts = client.query(FACTS, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
        drop(client);
        // A superuser's session is in the way of an admin that is none.
        self.engine.await_unused(of).await.unwrap();
        facts
    }

    pub(super) async fn make(&self, wanted: &SandboxSpec) -> Result<(), EngineError> {
        for step in self.engine.create_steps(wanted.kind, &wanted.contents) {
            self.engine.run(step, wanted).await?;
        }
        Ok(())
    }

    /// Returns how much in the database of `of` names a role of `whose`.
    async fn named(&self, of: &SandboxSpec, whose: &SandboxSpec) -> i64 {
        let admin = self.cluster.superuser("postgres").await;
        let sql = "SELECT count(*) FROM pg_shdepend s JOIN pg_database d ON d.oid = s.dbid JOIN pg_roles r ON r.oid = s.refobjid
                   WHERE s.refclassid = 'pg_authid'::regclass AND d.datname = $1 AND r.rolname IN ($2, $3)";
        let names = &whose.names;
        let params: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
            [&of.names.database, &names.owner_role, &names.readonly_role];
        admin.query_one(sql, &params).await.unwrap().get(0)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_in_a_copy_is_its_own_roles_and_the_source_is_as_it_was() {
    for bench in benches() {
        let source = spec("source");
        bench.create(&source).await;
        bench.furnish(&source).await;
        let before = bench.facts(&source).await;
        // Its owner has let the reader create, which is told.
        let told = bench.failures(&source).await;
        let copy = copy_of(&source);
        bench.engine.check_copy(&source).await.unwrap();
        bench.make(&copy).await.unwrap_or_else(|error| panic!("{}: {error:?}", bench.name()));
        assert_eq!(bench.named(&copy, &source).await, 0, "{}", bench.name());
        assert_eq!(bench.facts(&source).await, before, "{}", bench.name());
        let expected: Vec<String> = {
            let mut lines: Vec<String> =
                before.iter().map(|line| line.replace(&source.names.database, &copy.names.database)).collect();
            lines.sort();
            lines
        };
        let mut found = bench.facts(&copy).await;
        found.sort();
        let missing: Vec<_> = expected.iter().filter(|line| !found.contains(line)).collect();
        let more: Vec<_> = found.iter().filter(|line| !expected.contains(line)).collect();
        assert!(missing.is_empty() && more.is_empty(), "{}: missing {missing:#?}, more {more:#?}", bench.name());
        assert_eq!(bench.failures(&copy).await, told, "{}", bench.name());
        let owner = bench.owner(&copy).await;
        owner.batch_execute("INSERT INTO app.things (n) VALUES (5); DROP TABLE app.parted").await.unwrap();
        let row = owner.query_one("SELECT count(*) FROM app.things", &[]).await.unwrap();
        assert_eq!(row.get::<_, i64>(0), 1001);
        drop(owner);
        // The old roles have no way in.
        let password = source.owner_password.expose();
        let stranger = bench.cluster.connect(&source.names.owner_role, password, &copy.names.database);
        assert_eq!(sqlstate(stranger.await), "42501", "{}", bench.name());
        bench.delete(&source).await;
        bench.nothing_is_left(&source).await;
        assert_eq!(bench.failures(&copy).await, told, "{}: after the source's end", bench.name());
        bench.delete(&copy).await;
        bench.nothing_is_left(&copy).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_carried_over_is_refused_before_anything_is_begun() {
    for bench in benches() {
        let source = spec("more");
        bench.create(&source).await;
        let names = &source.names;
        let superuser = bench.cluster.superuser("postgres").await;
        let check = async |what: &str, refused: bool| match bench.engine.check_copy(&source).await {
            Err(EngineError::Known(failure)) if refused => {
                assert!(failure.message.contains(what) && failure.hint.is_some(), "{}: {failure:?}", bench.name());
            }
            Ok(()) if !refused => {
                bench.engine.await_unused(&source).await.unwrap();
                let copy = copy_of(&source);
                bench.make(&copy).await.unwrap_or_else(|error| panic!("{}: {what}: {error:?}", bench.name()));
                bench.delete(&copy).await;
                bench.nothing_is_left(&copy).await;
            }
            other => panic!("{}: {what}: {other:?}", bench.name()),
        };
        // A name that no module has claimed yet, and what the server does not show to everybody.
        for (setting, limited) in [
            ("\"MyApp\".x = 'y z'", "MyApp.x"),
            ("dynamic_library_path = '$libdir'", "dynamic_library_path"),
            ("log_statement = 'none'", "log_statement"),
            ("plpgsql.variable_conflict = 'error'", "plpgsql.variable_conflict"),
        ] {
            superuser.batch_execute(&format!("ALTER DATABASE {} SET {setting}", names.database)).await.unwrap();
            check(limited, !bench.superuser).await;
            superuser.batch_execute(&format!("ALTER DATABASE {} RESET ALL", names.database)).await.unwrap();
            let of_role = format!("ALTER ROLE {} IN DATABASE {}", names.owner_role, names.database);
            superuser.batch_execute(&format!("{of_role} SET {setting}")).await.unwrap();
            check(limited, !bench.superuser).await;
            superuser.batch_execute(&format!("{of_role} RESET ALL")).await.unwrap();
        }
        // An owner's own of a language that is there, and an operator's for others, which stays behind.
        let owner = bench.owner(&source).await;
        let own = format!("DO 'BEGIN END'; ALTER DATABASE {} SET plpgsql.extra_warnings = 'all'", names.database);
        for sql in own.split("; ") {
            owner.batch_execute(sql).await.unwrap();
        }
        drop(owner);
        let of_operator =
            format!("ALTER ROLE {} IN DATABASE {} SET myapp.x = 'y'", crate::harness::SUPERUSER, names.database);
        superuser.batch_execute(&of_operator).await.unwrap();
        check("settings that can be set", false).await;
        superuser.batch_execute(&of_operator.replace("SET myapp.x = 'y'", "RESET ALL")).await.unwrap();
        // What is the roles', and not inside: it would change hands.
        let space = format!("sub_{}", source.id.short());
        let inside = bench.cluster.superuser(&names.database).await;
        let subscription = format!(
            "CREATE SUBSCRIPTION {space} CONNECTION 'dbname=none password=x' PUBLICATION p WITH (connect = false, enabled = false, slot_name = NONE)"
        );
        inside.batch_execute(&subscription).await.unwrap();
        let given = inside.batch_execute(&format!("ALTER SUBSCRIPTION {space} OWNER TO {}", names.owner_role)).await;
        // Before 16 only a superuser may own one.
        if bench.cluster.major >= 16 {
            given.unwrap();
            drop(inside);
            check(&space, true).await;
        } else {
            drop((given, inside));
        }
        let inside = bench.cluster.superuser(&names.database).await;
        inside.batch_execute(&format!("DROP SUBSCRIPTION {space}")).await.unwrap();
        let wrapper = format!(
            "CREATE FOREIGN DATA WRAPPER nowhere; GRANT USAGE ON FOREIGN DATA WRAPPER nowhere TO {0}; \
            SET ROLE {0}; CREATE SERVER away FOREIGN DATA WRAPPER nowhere; \
            CREATE USER MAPPING FOR {0} SERVER away OPTIONS (password 'p')",
            names.owner_role
        );
        inside.batch_execute(&wrapper).await.unwrap();
        drop(inside);
        // A superuser's session is in the way of an admin that is none.
        bench.engine.await_unused(&source).await.unwrap();
        check("user mappings", !bench.superuser).await;
        bench.delete(&source).await;
        bench.nothing_is_left(&source).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_template_is_nobodys_to_enter_and_outlives_its_source() {
    for bench in benches() {
        let source = spec("source");
        bench.create(&source).await;
        bench.furnish(&source).await;
        let template = SandboxSpec { kind: SandboxKind::Template, ..copy_of(&source) };
        bench.make(&template).await.unwrap_or_else(|error| panic!("{}: {error:?}", bench.name()));
        for access in [CredentialAccess::Owner, CredentialAccess::ReadOnly] {
            let state = sqlstate(bench.log_in(&template, access).await);
            assert!(["28P01", "28000", "55000"].contains(&state.as_str()), "{}: {state}", bench.name());
        }
        bench.delete(&source).await;
        bench.nothing_is_left(&source).await;
        let copy = copy_of(&template);
        bench.make(&copy).await.unwrap_or_else(|error| panic!("{}: {error:?}", bench.name()));
        assert_eq!(bench.named(&copy, &template).await, 0, "{}", bench.name());
        let owner = bench.owner(&copy).await;
        let row = owner.query_one("SELECT count(*) FROM app.things", &[]).await.unwrap();
        assert_eq!(row.get::<_, i64>(0), 1000);
        drop(owner);
        bench.delete(&template).await;
        bench.nothing_is_left(&template).await;
        bench.delete(&copy).await;
        bench.nothing_is_left(&copy).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_in_use_is_not_copied_and_its_users_are_counted() {
    for bench in benches() {
        let source = spec("used");
        bench.create(&source).await;
        let user = bench.owner(&source).await;
        let copy = copy_of(&source);
        let error = bench.make(&copy).await.unwrap_err();
        assert!(matches!(&error, EngineError::Busy { sessions: 1, .. }), "{}: {error:?}", bench.name());
        drop(user);
        bench.engine.await_unused(&source).await.unwrap();
        bench.make(&copy).await.unwrap_or_else(|error| panic!("{}: {error:?}", bench.name()));
        bench.delete(&copy).await;
        bench.delete(&source).await;
        bench.nothing_is_left(&copy).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_source_is_copied_several_times_at_once() {
    for bench in benches() {
        let source = spec("popular");
        bench.create(&source).await;
        bench.furnish(&source).await;
        let before = bench.facts(&source).await;
        bench.engine.await_unused(&source).await.unwrap();
        let copies = [copy_of(&source), copy_of(&source), copy_of(&source)];
        let (a, b, c) = tokio::join!(bench.make(&copies[0]), bench.make(&copies[1]), bench.make(&copies[2]));
        for made in [a, b, c] {
            made.unwrap_or_else(|error| panic!("{}: {error:?}", bench.name()));
        }
        assert_eq!(bench.facts(&source).await, before, "{}", bench.name());
        for copy in &copies {
            assert_eq!(bench.named(copy, &source).await, 0, "{}", bench.name());
            bench.delete(copy).await;
        }
        bench.delete(&source).await;
        bench.nothing_is_left(&source).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_whose_rights_change_while_it_is_copied_is_copied_and_has_what_it_was_given() {
    for bench in benches() {
        let source = spec("shifting");
        bench.create(&source).await;
        bench.furnish(&source).await;
        let before = bench.facts(&source).await;
        let stop = Arc::new(AtomicBool::new(false));
        let operator = bench.cluster.superuser("postgres").await;
        let (name, stopped) = (source.names.database.clone(), Arc::clone(&stop));
        // Who cannot wait in line for the row meets it as it is between two changes.
        let pause = Duration::from_millis(if bench.superuser { 1 } else { 60 });
        let changes = tokio::spawn(async move {
            let mut times = 0;
            while !stopped.load(Ordering::SeqCst) {
                for change in
                    ["GRANT CONNECT ON DATABASE {} TO pg_monitor", "REVOKE ALL ON DATABASE {} FROM pg_monitor"]
                {
                    // Refused where ours comes in between.
                    times += u32::from(operator.batch_execute(&change.replace("{}", &name)).await.is_ok());
                    tokio::time::sleep(pause).await;
                }
            }
            operator.batch_execute(&format!("REVOKE ALL ON DATABASE {name} FROM pg_monitor")).await.unwrap();
            times
        });
        let copies: [SandboxSpec; 4] = std::array::from_fn(|_| copy_of(&source));
        for copy in &copies {
            bench.engine.await_unused(&source).await.unwrap();
            bench.make(copy).await.unwrap_or_else(|error| panic!("{}: {error:?}", bench.name()));
        }
        stop.store(true, Ordering::SeqCst);
        assert!(changes.await.unwrap() > 0);
        assert_eq!(bench.facts(&source).await, before, "{}", bench.name());
        for copy in &copies {
            assert_eq!(bench.named(copy, &source).await, 0, "{}", bench.name());
            bench.delete(copy).await;
        }
        bench.delete(&source).await;
        bench.nothing_is_left(&source).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_right_that_is_taken_back_or_given_while_a_source_is_copied_stays_so() {
    const TURNS: u32 = 8;
    for bench in benches().into_iter().filter(|bench| bench.superuser) {
        let (source, other) = (spec("asked"), spec("owner"));
        bench.create(&source).await;
        bench.create(&other).await;
        // So that it takes a while to give it to its roles.
        let tables = "DO $$ BEGIN FOR i IN 1..400 LOOP EXECUTE 'CREATE TABLE t' || i || ' (a int PRIMARY KEY)'; END LOOP; END $$";
        bench.owner(&source).await.batch_execute(tables).await.unwrap();
        let owner = bench.owner(&other).await;
        let (database, role) = (&other.names.database, &source.names.owner_role);
        let mut took = Duration::ZERO;
        for turn in 0..=TURNS {
            owner.batch_execute(&format!("GRANT CONNECT ON DATABASE {database} TO {role}")).await.unwrap();
            owner.batch_execute(&format!("REVOKE TEMPORARY ON DATABASE {database} FROM {role}")).await.unwrap();
            bench.engine.await_unused(&source).await.unwrap();
            let copy = copy_of(&source);
            let began = Instant::now();
            let change = async {
                if turn == 0 {
                    return (false, false);
                }
                // In the second half, in which it is given.
                tokio::time::sleep(took / 2 + took * (turn - 1) / (2 * TURNS)).await;
                let change = async |sql: &str| {
                    owner.batch_execute(&format!("{sql} {role}").replace("{}", database)).await.is_ok()
                };
                (change("REVOKE CONNECT ON DATABASE {} FROM").await, change("GRANT TEMPORARY ON DATABASE {} TO").await)
            };
            let (made, (revoked, granted)) = tokio::join!(bench.make(&copy), change);
            made.unwrap_or_else(|error| panic!("{}: {error:?}", bench.name()));
            if turn == 0 {
                took = began.elapsed();
            }
            let sql = "SELECT has_database_privilege($1, $2, 'CONNECT'), has_database_privilege($1, $2, 'TEMPORARY')";
            let row = bench.cluster.superuser("postgres").await.query_one(sql, &[role, database]).await.unwrap();
            let found: (bool, bool) = (row.get(0), row.get(1));
            assert_eq!(found, (!revoked, granted), "{} turn {turn}", bench.name());
            bench.delete(&copy).await;
        }
        drop(owner);
        bench.delete(&source).await;
        bench.delete(&other).await;
    }
}

/// An operator's trigger stands for those who are in the way, and counts how often they were.
const IN_THE_WAY: &str = "
    CREATE SEQUENCE public.tries;
    CREATE FUNCTION public.in_the_way() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER AS
        $$ BEGIN PERFORM nextval('public.tries'); RAISE EXCEPTION 'held' USING ERRCODE = 'lock_not_available'; END $$;
    CREATE EVENT TRIGGER in_the_way ON ddl_command_start EXECUTE FUNCTION public.in_the_way();
    ALTER EVENT TRIGGER in_the_way ENABLE ALWAYS";
/// How often it is tried to give a copy to its roles.
const TRIED_MAX: i64 = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_others_are_in_the_way_of_is_tried_so_often_and_then_taken_back() {
    for bench in benches() {
        let source = spec("contended");
        bench.create(&source).await;
        let admin = bench.cluster.superuser(&source.names.database).await;
        admin.batch_execute(IN_THE_WAY).await.unwrap();
        drop(admin);
        bench.engine.await_unused(&source).await.unwrap();
        let copy = copy_of(&source);
        let error = bench.make(&copy).await.unwrap_err();
        assert!(
            matches!(&error, EngineError::Refused { sqlstate, .. } if sqlstate == "55P03"),
            "{}: {error:?}",
            bench.name()
        );
        let admin = bench.cluster.superuser("postgres").await;
        let name = &copy.names.database;
        admin.batch_execute(&format!("ALTER DATABASE {name} ALLOW_CONNECTIONS true")).await.unwrap();
        let inside = bench.cluster.superuser(name).await;
        let tried = inside.query_one("SELECT last_value FROM public.tries", &[]).await.unwrap();
        assert_eq!(tried.get::<_, i64>(0), TRIED_MAX, "{}", bench.name());
        drop(inside);
        bench.engine.await_unused(&copy).await.unwrap();
        bench.delete(&copy).await;
        bench.nothing_is_left(&copy).await;
        bench.delete(&source).await;
        bench.nothing_is_left(&source).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_with_rights_of_another_sandbox_is_refused_before_anything_is_begun() {
    for bench in benches() {
        let (source, other) = (spec("lent"), spec("other"));
        bench.create(&source).await;
        bench.create(&other).await;
        let lent = format!("CREATE TABLE t (); GRANT SELECT ON t TO {}", other.names.owner_role);
        bench.owner(&source).await.batch_execute(&lent).await.unwrap();
        let EngineError::Known(failure) = bench.engine.check_copy(&source).await.unwrap_err() else { panic!() };
        assert!(failure.message.contains(&other.names.owner_role), "{failure:?}");
        bench.delete(&source).await;
        bench.delete(&other).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_stops_after_any_step_is_taken_back_whole() {
    for bench in benches() {
        let source = spec("halves");
        bench.create(&source).await;
        bench.furnish(&source).await;
        let before = bench.facts(&source).await;
        for kind in [SandboxKind::Sandbox, SandboxKind::Template] {
            let steps = bench.engine.create_steps(kind, &copy_of(&source).contents);
            for done in 0..=steps.len() {
                bench.engine.await_unused(&source).await.unwrap();
                let copy = SandboxSpec { kind, ..copy_of(&source) };
                for step in &steps[..done] {
                    // Each may find its work done.
                    bench
                        .engine
                        .run(*step, &copy)
                        .await
                        .unwrap_or_else(|e| panic!("{}: {}: {e:?}", bench.name(), step.name));
                    bench
                        .engine
                        .run(*step, &copy)
                        .await
                        .unwrap_or_else(|e| panic!("{}: {}: {e:?}", bench.name(), step.name));
                }
                for step in steps[..done].iter().rev() {
                    bench
                        .engine
                        .undo(*step, &copy)
                        .await
                        .unwrap_or_else(|e| panic!("{}: {}: {e:?}", bench.name(), step.name));
                }
                bench.nothing_is_left(&copy).await;
            }
        }
        assert_eq!(bench.facts(&source).await, before, "{}", bench.name());
        bench.delete(&source).await;
    }
}
