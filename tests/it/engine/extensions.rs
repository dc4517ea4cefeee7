//! Extensions are made with pinned settings, whatever the database has been told, and capture nothing that lies ready for them.

use pgsandbox::engine::{Contents, Engine};
use pgsandbox::model::SandboxKind;

use super::{benches, harness, spec, sqlstate};

/// What an installation must not be moved by: settings of the database, and objects that lie in its way.
const HOSTILE: &str = "
    CREATE SCHEMA evil;
    CREATE TABLE evil.ran (who text);
    GRANT ALL ON SCHEMA evil TO PUBLIC; GRANT ALL ON evil.ran TO PUBLIC;
    CREATE FUNCTION evil.lower(text) RETURNS text LANGUAGE plpgsql AS
        $$ BEGIN INSERT INTO evil.ran VALUES (current_user); RETURN $1; END $$;
    CREATE FUNCTION evil.set_config(text, text, boolean) RETURNS text LANGUAGE plpgsql AS
        $$ BEGIN INSERT INTO evil.ran VALUES (current_user); RETURN $2; END $$;
    CREATE FUNCTION evil.texteq(text, text) RETURNS boolean LANGUAGE plpgsql AS
        $$ BEGIN INSERT INTO evil.ran VALUES (current_user); RETURN true; END $$;
    CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.texteq)";

#[tokio::test]
async fn settings_of_the_database_move_no_installation() {
    for bench in benches().into_iter().filter(|bench| bench.superuser) {
        let mut spec = spec("hostile settings");
        spec.extensions = vec!["citext".to_owned(), "pg_buffercache".to_owned()];
        let (database, owner) = (&spec.names.database, &spec.names.owner_role);
        let admin = bench.cluster.superuser("postgres").await;
        let mut entered = false;
        for step in bench.engine.create_steps(SandboxKind::Sandbox, &Contents::Empty) {
            bench.engine.run(step, &spec).await.unwrap_or_else(|e| panic!("{}: {}: {e:?}", bench.name(), step.name));
            let there =
                admin.query("SELECT 1 FROM pg_database WHERE datname = $1", &[database]).await.unwrap().len() == 1;
            if entered || !there {
                continue;
            }
            entered = true;
            bench.cluster.superuser(database).await.batch_execute(HOSTILE).await.unwrap();
            for setting in [
                "search_path = evil, pg_catalog, public",
                "default_transaction_read_only = on",
                "statement_timeout = 1",
                "lock_timeout = 1",
                "standard_conforming_strings = off",
                "check_function_bodies = on",
                "default_tablespace = 'nowhere'",
                "temp_tablespaces = 'nowhere'",
                "session_replication_role = replica",
                "client_encoding = 'SQL_ASCII'",
                "extra_float_digits = -15",
                "row_security = off",
                "lo_compat_privileges = on",
            ] {
                admin.batch_execute(&format!("ALTER DATABASE \"{database}\" SET {setting}")).await.unwrap();
            }
            let of_role =
                format!("ALTER ROLE \"{owner}\" IN DATABASE \"{database}\" SET search_path = evil, pg_catalog");
            // The role may come later than the database.
            admin.batch_execute(&of_role).await.ok();
        }
        assert!(entered, "{}", bench.name());
        let inside = bench.cluster.superuser(database).await;
        inside.batch_execute("SET search_path = pg_catalog").await.unwrap();
        let sql = "SELECT extname::text, pg_get_userbyid(extowner)::text, extnamespace::regnamespace::text \
                   FROM pg_extension WHERE extname <> 'plpgsql' ORDER BY 1";
        let rows = inside.query(sql, &[]).await.unwrap();
        let found: Vec<(String, String, String)> = rows.iter().map(|r| (r.get(0), r.get(1), r.get(2))).collect();
        let expected = [
            ("citext".to_owned(), owner.clone(), "public".to_owned()),
            ("pg_buffercache".to_owned(), harness::SUPERUSER.to_owned(), "public".to_owned()),
        ];
        assert_eq!(found, expected, "{}", bench.name());
        let ran: i64 = inside.query_one("SELECT count(*) FROM evil.ran", &[]).await.unwrap().get(0);
        assert_eq!(ran, 0, "{}: a function that lay in the way was called", bench.name());
        drop(inside);
        bench.delete(&spec).await;
        bench.nothing_is_left(&spec).await;
    }
}

#[tokio::test]
async fn a_trusted_extension_captures_nothing_of_its_owners() {
    for bench in benches() {
        let spec = spec("captured");
        bench.create(&spec).await;
        let owner = bench.owner(&spec).await;
        // What an extension's script would replace, or find there instead of making it.
        for (number, (ready, extension)) in [
            ("FUNCTION unaccent(text) RETURNS text LANGUAGE sql AS 'select $1'", "unaccent"),
            ("TYPE citext AS (a int)", "citext"),
            ("TYPE hstore AS (a int)", "hstore"),
            ("FUNCTION similarity(text, text) RETURNS real LANGUAGE sql AS 'select 1::real'", "pg_trgm"),
        ]
        .into_iter()
        .enumerate()
        {
            let (schema, name) = (format!("s{number}"), format!("{} on {}", extension, bench.name()));
            let (kind, rest) = ready.split_once(' ').unwrap();
            let ready = format!("CREATE SCHEMA {schema}; CREATE {kind} {schema}.{rest}");
            owner.batch_execute(&ready).await.unwrap_or_else(|e| panic!("{name}: {ready}: {e:?}"));
            let made = sqlstate(owner.batch_execute(&format!("CREATE EXTENSION {extension} SCHEMA {schema}")).await);
            assert!(["42723", "42710", "55000"].contains(&made.as_str()), "{name} took what lay there: {made}");
        }
        let sql = "SELECT count(*) FROM pg_extension WHERE extname <> 'plpgsql'";
        assert_eq!(owner.query_one(sql, &[]).await.unwrap().get::<_, i64>(0), 0, "{}", bench.name());
        drop(owner);
        assert_eq!(bench.failures(&spec).await, Vec::<String>::new(), "{}", bench.name());
        bench.delete(&spec).await;
        bench.nothing_is_left(&spec).await;
    }
}
