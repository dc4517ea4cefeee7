//! Each check of `verify` has one way to fail.

use pgsandbox::engine::SandboxSpec;

use super::{Bench, benches, spec};

/// Does something wrong to a sandbox as a superuser, in its database, and expects exactly these checks to fail.
async fn check(wrong: impl Fn(&SandboxSpec) -> String, expected: &[&str]) {
    for bench in benches() {
        let spec = spec("check");
        bench.create(&spec).await;
        assert_eq!(bench.failures(&spec).await, Vec::<String>::new(), "{}", bench.name());
        let sql = wrong(&spec);
        bench.cluster.superuser(&spec.names.database).await.batch_execute(&sql).await.unwrap();
        assert_eq!(bench.failures(&spec).await, expected, "{}: {sql}", bench.name());
        clean_up(&bench, &spec).await;
    }
}

async fn clean_up(bench: &Bench, spec: &SandboxSpec) {
    let admin = bench.cluster.superuser("postgres").await;
    let undo = format!(
        "ALTER DATABASE {} OWNER TO {}; REVOKE pg_monitor FROM {}; \
         ALTER ROLE {} LOGIN NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS",
        spec.names.database, spec.names.owner_role, spec.names.owner_role, spec.names.owner_role
    );
    admin.batch_execute(&undo).await.unwrap();
    bench.delete(spec).await;
    bench.nothing_is_left(spec).await;
}

#[tokio::test]
async fn an_elevated_attribute_is_found() {
    for attribute in ["CREATEDB", "CREATEROLE", "REPLICATION", "BYPASSRLS"] {
        check(|s| format!("ALTER ROLE {} {attribute}", s.names.owner_role), &["sandbox.attributes"]).await;
    }
}

#[tokio::test]
async fn a_lost_login_is_found() {
    check(|s| format!("ALTER ROLE {} NOLOGIN", s.names.owner_role), &["sandbox.login"]).await;
}

#[tokio::test]
async fn another_owner_of_the_database_is_found() {
    for bench in benches() {
        let spec = spec("owner");
        bench.create(&spec).await;
        let sql = format!("ALTER DATABASE {} OWNER TO {}", spec.names.database, crate::harness::SUPERUSER);
        bench.cluster.superuser("postgres").await.batch_execute(&sql).await.unwrap();
        // the right to connect went with it, and only a superuser admin can give it back
        let expected: &[&str] = if bench.superuser { &["sandbox.owner"] } else { &["sandbox.login", "sandbox.owner"] };
        assert_eq!(bench.failures(&spec).await, expected, "{}", bench.name());
        clean_up(&bench, &spec).await;
    }
}

#[tokio::test]
async fn a_membership_is_found() {
    check(|s| format!("GRANT pg_monitor TO {}", s.names.owner_role), &["sandbox.memberships"]).await;
}

#[tokio::test]
async fn rights_of_public_are_found() {
    check(|s| format!("GRANT CONNECT ON DATABASE {} TO PUBLIC", s.names.database), &["sandbox.public"]).await;
}

#[tokio::test]
async fn a_reader_that_may_create_or_owns_is_found() {
    check(|s| format!("GRANT CREATE ON SCHEMA public TO {}", s.names.readonly_role), &["reader.no-create"]).await;
    check(|s| format!("GRANT TEMP ON DATABASE {} TO {}", s.names.database, s.names.readonly_role), &["reader.no-temp"])
        .await;
    check(
        |s| format!("CREATE TABLE t (a int); ALTER TABLE t OWNER TO {}", s.names.readonly_role),
        &["reader.owns-nothing"],
    )
    .await;
}

#[tokio::test]
async fn lifted_limits_are_found() {
    check(|s| format!("ALTER ROLE {} VALID UNTIL 'infinity'", s.names.owner_role), &["sandbox.valid-until"]).await;
    check(|s| format!("ALTER ROLE {} CONNECTION LIMIT -1", s.names.readonly_role), &["reader.connection-limit"]).await;
}

#[tokio::test]
async fn a_way_to_the_servers_files_is_found() {
    check(
        |s| format!("GRANT EXECUTE ON FUNCTION pg_catalog.lo_import(text) TO {}", s.names.owner_role),
        &["sandbox.server-files"],
    )
    .await;
}

#[tokio::test]
async fn a_way_into_another_sandbox_is_found() {
    for bench in benches() {
        let (spec, other) = (spec("guest"), spec("host"));
        bench.create(&spec).await;
        bench.create(&other).await;
        let inside = bench.owner(&other).await;
        let sql = format!("GRANT CONNECT ON DATABASE {} TO {}", other.names.database, spec.names.owner_role);
        inside.batch_execute(&sql).await.unwrap();
        assert_eq!(bench.failures(&spec).await, ["sandbox.other-sandboxes"], "{}", bench.name());
        drop(inside);
        bench.delete(&spec).await;
        bench.delete(&other).await;
    }
}
