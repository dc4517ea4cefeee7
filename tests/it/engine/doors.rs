//! A sandbox tries each door: none leads out of it, and none keeps us out.

use pgsandbox::engine::{Engine, EngineError, SandboxSpec};
use pgsandbox::model::{Code, CredentialAccess};

use super::{Bench, benches, spec, sqlstate};

/// Runs `sql` as the owner, then checks that we still get in as who we are and everything can be removed.
async fn check(door: impl Fn(&SandboxSpec) -> String) {
    for bench in benches() {
        let spec = spec("door");
        bench.create(&spec).await;
        let sql = door(&spec);
        let owner = bench.owner(&spec).await;
        owner.batch_execute(&sql).await.unwrap_or_else(|e| panic!("{}: {sql}: {e:?}", bench.name()));
        drop(owner);
        still_ours(&bench, &spec, &sql).await;
    }
}

async fn still_ours(bench: &Bench, spec: &SandboxSpec, sql: &str) {
    let extensions = bench.engine.installed_extensions(spec).await;
    assert!(extensions.is_ok(), "{}: {sql}: {extensions:?}", bench.name());
    assert_eq!(bench.failures(spec).await, Vec::<String>::new(), "{}: {sql}", bench.name());
    bench.delete(spec).await;
    bench.nothing_is_left(spec).await;
}

#[tokio::test]
async fn a_database_that_sets_a_role_changes_nobody() {
    check(|s| format!("ALTER DATABASE {} SET role = '{}'", s.names.database, s.names.owner_role)).await;
}

#[tokio::test]
async fn a_database_that_sets_a_search_path_misleads_nobody() {
    check(|s| {
        format!(
            "CREATE SCHEMA trap; CREATE FUNCTION trap.count(bigint) RETURNS bigint LANGUAGE sql AS 'SELECT 99::bigint'; \
             CREATE TABLE trap.pg_extension (extname name, extversion text); \
             ALTER DATABASE {} SET search_path = trap, pg_catalog",
            s.names.database
        )
    })
    .await;
}

#[tokio::test]
async fn a_library_that_does_not_exist_keeps_nobody_out() {
    check(|s| {
        format!(
            "ALTER DATABASE {} SET local_preload_libraries = 'no_such'; ALTER ROLE {} SET local_preload_libraries = 'no_such'",
            s.names.database, s.names.owner_role
        )
    })
    .await;
}

#[tokio::test]
async fn settings_that_change_how_text_is_read_do_not_reach_us() {
    check(|s| {
        format!(
            "ALTER DATABASE {0} SET standard_conforming_strings = off; ALTER DATABASE {0} SET exit_on_error = on; \
             ALTER DATABASE {0} SET default_transaction_read_only = on; ALTER DATABASE {0} SET DateStyle = 'German'; \
             ALTER DATABASE {0} SET client_encoding = 'LATIN1'; ALTER DATABASE {0} SET bytea_output = 'escape'; \
             ALTER DATABASE {0} SET statement_timeout = '1ms'; ALTER DATABASE {0} SET default_table_access_method = 'no'",
            s.names.database
        )
    })
    .await;
}

#[tokio::test]
async fn a_database_that_calls_itself_a_template_can_be_dropped() {
    check(|s| format!("ALTER DATABASE {} IS_TEMPLATE true", s.names.database)).await;
}

#[tokio::test]
async fn a_connection_limit_of_none_is_set_back() {
    check(|s| format!("ALTER DATABASE {} CONNECTION LIMIT 0", s.names.database)).await;
}

#[tokio::test]
async fn a_changed_password_is_set_back() {
    check(|s| format!("ALTER ROLE {} PASSWORD 'changed'", s.names.owner_role)).await;
}

#[tokio::test]
async fn a_right_to_connect_taken_away_is_given_back() {
    check(|s| {
        format!(
            "REVOKE CONNECT ON DATABASE {0} FROM {1}, {2}",
            s.names.database, s.names.owner_role, s.names.readonly_role
        )
    })
    .await;
}

#[tokio::test]
async fn an_admin_thrown_out_of_the_role_gets_back() {
    for bench in benches() {
        let spec = spec("throws");
        bench.create(&spec).await;
        let owner = bench.owner(&spec).await;
        let sql = format!("REVOKE {} FROM {}", spec.names.owner_role, crate::harness::LIMITED);
        // 15 lets a role decide on its own members; later majors do not
        let outcome = owner.batch_execute(&sql).await;
        assert!(outcome.is_ok() || bench.cluster.major >= 16, "{}: {outcome:?}", bench.name());
        drop(owner);
        still_ours(&bench, &spec, &sql).await;
    }
}

#[tokio::test]
async fn a_sandbox_whose_owner_dropped_it_is_reported_gone_and_can_be_deleted() {
    for bench in benches() {
        let spec = spec("dropped");
        bench.create(&spec).await;
        // an owner needs another database to drop its own from; where it finds one is the operator's affair
        let admin = bench.cluster.superuser("postgres").await;
        admin.batch_execute(&format!("DROP DATABASE {}", spec.names.database)).await.unwrap();
        let found = bench.engine.installed_extensions(&spec).await;
        assert!(matches!(&found, Err(EngineError::Known(f)) if f.code == Code::DatabaseNotFound), "{found:?}");
        let found = bench.engine.measure(&spec).await;
        assert!(matches!(&found, Err(EngineError::Known(f)) if f.code == Code::DatabaseNotFound), "{found:?}");
        bench.delete(&spec).await;
        bench.nothing_is_left(&spec).await;
    }
}

#[tokio::test]
async fn what_a_sandbox_must_not_do_is_refused() {
    for bench in benches() {
        let (spec, other) = (spec("escape"), spec("neighbour"));
        bench.create(&spec).await;
        bench.create(&other).await;
        let home = if bench.superuser { "postgres" } else { crate::harness::LIMITED };
        let admin = bench.cluster.superuser(home).await;
        admin
            .batch_execute(
                "CREATE SCHEMA IF NOT EXISTS pgsandbox; CREATE TABLE IF NOT EXISTS pgsandbox.secrets (a int)",
            )
            .await
            .unwrap();
        for access in [CredentialAccess::Owner, CredentialAccess::ReadOnly] {
            let (user, password) = match access {
                CredentialAccess::Owner => (&spec.names.owner_role, &spec.owner_password),
                CredentialAccess::ReadOnly => (&spec.names.readonly_role, &spec.readonly_password),
            };
            let neighbour = bench.cluster.connect(user, password.expose(), &other.names.database).await;
            assert_eq!(sqlstate(neighbour), "42501", "{}", bench.name());
            // the operator of this server lets PUBLIC in; the metadata stays shut all the same
            let metadata = bench.cluster.connect(user, password.expose(), home).await.unwrap();
            assert_eq!(sqlstate(metadata.batch_execute("SELECT * FROM pgsandbox.secrets").await), "42501");
            let session = bench.log_in(&spec, access).await.unwrap();
            let owner = &spec.names.owner_role;
            let database = &spec.names.database;
            for sql in [
                "CREATE ROLE intruder".to_owned(),
                "CREATE DATABASE intruder".to_owned(),
                format!("ALTER ROLE {user} SUPERUSER"),
                format!("ALTER ROLE {user} CREATEROLE"),
                format!("ALTER ROLE {user} CREATEDB"),
                format!("ALTER ROLE {user} REPLICATION"),
                format!("ALTER ROLE {user} CONNECTION LIMIT 100"),
                format!("ALTER ROLE {user} VALID UNTIL 'infinity'"),
                format!("ALTER ROLE {user} SET temp_file_limit = -1"),
                format!("ALTER ROLE {} PASSWORD 'x'", other.names.owner_role),
                format!("SET ROLE {}", other.names.owner_role),
                format!("SET ROLE {}", crate::harness::SUPERUSER),
                format!("SET SESSION AUTHORIZATION {}", crate::harness::SUPERUSER),
                format!("GRANT {} TO {user}", other.names.owner_role),
                format!("GRANT pg_read_server_files TO {user}"),
                format!("GRANT pg_execute_server_program TO {user}"),
                format!("DROP DATABASE {}", other.names.database),
                format!("ALTER DATABASE {database} RENAME TO intruder"),
                format!("ALTER DATABASE {database} OWNER TO {}", other.names.owner_role),
                format!("ALTER DATABASE {database} SET session_preload_libraries = 'x'"),
                format!("DROP OWNED BY {}", other.names.owner_role),
                format!("REASSIGN OWNED BY {} TO {owner}", other.names.owner_role),
                "ALTER SYSTEM SET shared_buffers = '1MB'".to_owned(),
                "COPY (SELECT 1) TO PROGRAM 'true'".to_owned(),
                "COPY (SELECT 1) TO '/tmp/pgsb-test-never'".to_owned(),
                "SELECT pg_read_file('/etc/passwd')".to_owned(),
                "SELECT pg_ls_dir('/')".to_owned(),
                "SELECT lo_import('/etc/passwd')".to_owned(),
                "SELECT * FROM pg_catalog.pg_authid".to_owned(),
                "SELECT pg_reload_conf()".to_owned(),
                "LOAD '/tmp/x.so'".to_owned(),
                "CREATE EXTENSION file_fdw".to_owned(),
                "CREATE EXTENSION dblink".to_owned(),
                "CREATE EXTENSION postgres_fdw".to_owned(),
                "CREATE FUNCTION f() RETURNS int LANGUAGE c AS '/tmp/x.so', 'f'".to_owned(),
                "CREATE FUNCTION f() RETURNS int LANGUAGE internal AS 'boolin'".to_owned(),
                "CREATE EVENT TRIGGER t ON ddl_command_end EXECUTE FUNCTION pg_catalog.now()".to_owned(),
                "CREATE TABLESPACE t LOCATION '/tmp'".to_owned(),
                "CREATE SUBSCRIPTION s CONNECTION 'host=127.0.0.1' PUBLICATION p".to_owned(),
            ] {
                let state = sqlstate(session.batch_execute(&sql).await);
                assert!(
                    // denied, no such function for a reader, or no such role to alter for another reason
                    ["42501", "0LP01"].contains(&state.as_str()) || (state == "58P01" && sql.starts_with("LOAD")),
                    "{}: {sql}: {state}",
                    bench.name()
                );
            }
        }
        admin.batch_execute("DROP SCHEMA pgsandbox CASCADE").await.unwrap();
        bench.delete(&spec).await;
        bench.delete(&other).await;
        bench.nothing_is_left(&spec).await;
    }
}

/// Every setting a role may change, set for the database and both roles to a value it takes.
#[tokio::test]
async fn no_setting_that_a_sandbox_may_change_keeps_us_out_or_reaches_what_we_pin() {
    for bench in benches() {
        let spec = spec("settings");
        bench.create(&spec).await;
        let owner = bench.owner(&spec).await;
        let rows = owner
            .query(
                "SELECT name, vartype, min_val, max_val, enumvals, boot_val FROM pg_settings \
                 WHERE context = 'user' ORDER BY name",
                &[],
            )
            .await
            .unwrap();
        assert!(rows.len() > 100);
        for row in rows {
            let (name, kind): (String, String) = (row.get(0), row.get(1));
            let values: Vec<String> = match kind.as_str() {
                "bool" => vec!["on".into(), "off".into()],
                "enum" => row.get::<_, Option<Vec<String>>>(4).unwrap_or_default(),
                "integer" | "real" => [row.get::<_, Option<String>>(2), row.get(3)].into_iter().flatten().collect(),
                _ => vec!["no_such".into(), String::new()],
            };
            for value in values {
                let sql = format!(
                    "ALTER DATABASE {} SET {name} = '{value}'; ALTER ROLE {} SET {name} = '{value}'",
                    spec.names.database, spec.names.owner_role
                );
                // some values are no values after all; a setting may also end the session that sets it
                if owner.batch_execute(&sql).await.is_err() {
                    continue;
                }
                let found = bench.engine.installed_extensions(&spec).await;
                assert!(found.is_ok(), "{}: {sql}: {found:?}", bench.name());
            }
            let reset = format!(
                "ALTER DATABASE {} RESET ALL; ALTER ROLE {} RESET ALL",
                spec.names.database, spec.names.owner_role
            );
            drop(owner.batch_execute(&reset).await);
        }
        assert!(!owner.is_closed(), "{}", bench.name());
        bench.delete(&spec).await;
    }
}
