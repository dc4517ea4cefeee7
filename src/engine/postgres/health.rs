//! The server's health for `doctor`: looks, and starts nothing.

use std::path::Path;
use std::sync::Arc;

use super::admin::{AdminSession, refused};
use super::managed::{ManagedCluster, Why, discover, dump_tools, to_install};
use super::server::PostgresServer;
use super::shared::Sizes;
use super::verify::{check, judge, warn_unless};
use crate::engine::{EngineError, because, metadata_owner, metadata_right};
use crate::model::{Check, CheckStatus, Failure};

/// Below this many free bytes the next sandbox may be the last.
const FREE_BYTES_MIN: u64 = 1 << 30;

/// Runs every check.
pub(super) async fn health(server: &Arc<PostgresServer>) -> Vec<Check> {
    let mut checks = Vec::new();
    if let Some(cluster) = server.managed()
        && !cluster_runs(cluster, &mut checks).await
    {
        return checks;
    }
    let profile = &server.settings().profile;
    let session = match server.admin_session().await {
        Ok(session) => session,
        Err(EngineError::Unsuited { check: name, failure }) => {
            checks.push(unsuited(name, &failure));
            return checks;
        }
        Err(error) => {
            let mut detail = error.to_string();
            if let EngineError::Unreachable { detail: cause, .. } = &error {
                detail = because(&detail, cause);
            }
            let remedy = format!("see that the server of profile `{profile}` runs and takes the admin's credentials");
            checks.push(check("postgres.reachable", CheckStatus::Fail, &detail, Some(&remedy)));
            return checks;
        }
    };
    checks.push(check("postgres.reachable", CheckStatus::Ok, "the server answers", None));
    match server.info().await {
        Ok(info) => {
            checks.push(check("postgres.version", CheckStatus::Ok, &format!("PostgreSQL {}", info.version), None));
            checks.push(admin(info.superuser));
            checks.push(tools(server, info.major).await);
        }
        Err(EngineError::Unsuited { check: name, failure }) => {
            checks.push(unsuited(name, &failure));
            return checks;
        }
        Err(error) => {
            let failure = Failure::from(error);
            checks.push(check("postgres.version", CheckStatus::Fail, &failure.message, failure.hint.as_deref()));
            return checks;
        }
    }
    match inside(server, &session).await {
        Ok(found) => checks.extend(found),
        Err(error) => checks.push(check("postgres.catalogue", CheckStatus::Fail, &error.to_string(), None)),
    }
    checks
}

/// What an operator has to change, as the check that it fails.
fn unsuited(name: &str, failure: &Failure) -> Check {
    check(name, CheckStatus::Fail, &failure.message, failure.hint.as_deref())
}

fn admin(superuser: bool) -> Check {
    let detail = if superuser {
        "the admin is a superuser"
    } else {
        "the admin is no superuser: temporary files are not limited, the reader does not bypass row security, and \
         only trusted extensions can be installed"
    };
    check("postgres.admin", CheckStatus::Ok, detail, None)
}

/// Looks whether there are programs that can dump and restore what this server holds.
async fn tools(server: &Arc<PostgresServer>, major: u16) -> Check {
    let found = dump_tools(&server.settings().tools).await;
    let versions: Vec<String> = found.iter().map(|t| format!("{} in `{}`", t.version, t.dir.display())).collect();
    // What newer programs write may hold settings that the server does not know.
    let is_there = found.iter().any(|tools| tools.major == major);
    let detail = match versions.is_empty() {
        true => "neither pg_dump nor pg_restore is installed".to_owned(),
        false => format!("pg_dump and pg_restore {}", versions.join(", ")),
    };
    let remedy = format!(
        "install the client programs of PostgreSQL {major}, `postgresql-client-{major}` for instance; without them nothing can be dumped or restored"
    );
    warn_unless("postgres.tools", is_there, &detail, &remedy)
}

/// Looks at the managed cluster from outside. Returns whether it runs.
async fn cluster_runs(cluster: &ManagedCluster, checks: &mut Vec<Check>) -> bool {
    let installed = discover(&cluster.settings().binaries).await;
    let versions: Vec<String> =
        installed.iter().map(|i| format!("{} in `{}`", i.version, i.bin_dir.display())).collect();
    let wanted = cluster.known_major();
    let there = installed.iter().any(|i| wanted.is_none_or(|major| i.major == major));
    let mut detail = if versions.is_empty() { "no server is installed".to_owned() } else { versions.join(", ") };
    if let (false, Some(major)) = (there, wanted) {
        detail.push_str(&format!("; PostgreSQL {major} is wanted"));
    }
    checks.push(judge("postgres.installed", there, &detail, &to_install(wanted)));
    let status = match cluster.status().await {
        Ok(status) => status,
        Err(error) => {
            checks.push(check("postgres.cluster", CheckStatus::Fail, &error.to_string(), Some(&error.remedy())));
            return false;
        }
    };
    if let Some(data) = cluster.data_dir() {
        checks.extend(disk(&data));
    }
    let port = status.port.map(|p| format!(" on 127.0.0.1:{p}")).unwrap_or_default();
    let user = status.run_as.map(|u| format!(" as user `{u}`")).unwrap_or_default();
    if let (false, Some(pid)) = (status.running, status.pid) {
        let detail = format!("its server, process {pid}, runs and lets the admin not in{port}");
        let remedy = "it may be starting or stopping; if it stays so, see what is wrong with the process and its disk";
        checks.push(check("postgres.cluster", CheckStatus::Fail, &detail, Some(remedy)));
        return false;
    }
    let detail = match (status.initialised, status.running) {
        (false, _) => "is not there yet; the first use makes it".to_owned(),
        (true, false) => format!("does not run; the next use starts it{user}"),
        (true, true) => format!("runs{port}{user}"),
    };
    let state = if status.running { CheckStatus::Ok } else { CheckStatus::Skipped };
    checks.push(check("postgres.cluster", state, &detail, None));
    let held_off = |why: Why| {
        let those = cluster.held_off().into_iter().filter(|(_, of)| *of == why);
        let names: Vec<String> = those.map(|(database, _)| format!("`{database}`")).collect();
        (!names.is_empty()).then(|| names.join(", "))
    };
    let remedy = "it ends by itself; delete the sandbox if it does so again";
    if let Some(names) = held_off(Why::Locks) {
        let detail = format!("kept out for some minutes, as sessions took every lock again: {names}");
        checks.push(check("postgres.locks", CheckStatus::Warn, &detail, Some(remedy)));
    }
    if let Some(names) = held_off(Why::Catalogues) {
        let detail =
            format!("kept out for some minutes, as they filled the catalogues that all databases share: {names}");
        checks.push(check("postgres.kept-out", CheckStatus::Warn, &detail, Some(remedy)));
    }
    if let Some(names) = held_off(Why::Connections) {
        let detail = format!(
            "kept out for some minutes, as their owner took more than its share of the connections again: {names}"
        );
        let remedy = "it ends by itself; open fewer connections at once in all sandboxes of that owner together";
        checks.push(check("postgres.crowded-out", CheckStatus::Warn, &detail, Some(remedy)));
    }
    status.running
}

fn disk(data: &Path) -> Option<Check> {
    let found = rustix::fs::statvfs(data).ok()?;
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    let detail = format!("{} MiB free for `{}`", free >> 20, data.display());
    Some(warn_unless("postgres.disk", free >= FREE_BYTES_MIN, &detail, "free some space, or delete sandboxes"))
}

/// Looks whether the metadata schema is there and ours to use, or can be made.
async fn metadata(server: &Arc<PostgresServer>, session: &AdminSession) -> Result<Check, EngineError> {
    let row = session
        .query_one(
            "SELECT pg_catalog.current_database()::text, current_user::text, \
             pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE'), \
             (SELECT pg_catalog.pg_has_role(n.nspowner, 'USAGE') OR pg_catalog.has_schema_privilege(n.oid, 'USAGE') \
              FROM pg_catalog.pg_namespace n \
              WHERE n.nspname = 'pgsandbox')",
            &[],
        )
        .await
        .map_err(refused("look for the metadata schema", &server.settings().profile))?;
    let (database, role, may_create, owns): (String, String, bool, Option<bool>) =
        (row.get(0), row.get(1), row.get(2), row.get(3));
    let name = "postgres.metadata";
    Ok(match owns {
        Some(true) => check(name, CheckStatus::Ok, &format!("schema `pgsandbox` of database `{database}`"), None),
        Some(false) => unsuited(name, &metadata_owner(&database, &role)),
        None if may_create => {
            check(name, CheckStatus::Ok, &format!("`{role}` may make the metadata schema in `{database}`"), None)
        }
        None => unsuited(name, &metadata_right(&database, &role)),
    })
}

async fn inside(server: &Arc<PostgresServer>, session: &AdminSession) -> Result<Vec<Check>, EngineError> {
    let prefix = format!("{}_", server.settings().prefix);
    let failed = refused("list its databases", &server.settings().profile);
    let open = session
        .query(
            "SELECT d.datname::text FROM pg_catalog.pg_database d WHERE d.datallowconn \
             AND pg_catalog.has_database_privilege('public'::name, d.oid, 'CONNECT') \
             AND NOT pg_catalog.starts_with(d.datname::text, $1) ORDER BY 1",
            &[&prefix],
        )
        .await
        .map_err(&failed)?;
    let names: Vec<String> = open.iter().map(|row| format!("`{}`", row.get::<_, String>(0))).collect();
    let detail = if names.is_empty() {
        "PUBLIC may enter no database".to_owned()
    } else {
        format!("PUBLIC, and so every sandbox, may enter {}", names.join(", "))
    };
    let public = warn_unless(
        "postgres.public-connect",
        names.is_empty(),
        &detail,
        "`REVOKE CONNECT, TEMPORARY ON DATABASE … FROM PUBLIC` where that suits the server's other users",
    );
    let row = session
        .query_one(
            "SELECT pg_catalog.current_setting('max_connections')::int4, \
             (SELECT pg_catalog.count(*)::int4 FROM pg_catalog.pg_stat_activity WHERE backend_type = 'client backend'), \
             pg_catalog.current_setting('max_prepared_transactions')::int4",
            &[],
        )
        .await
        .map_err(&failed)?;
    let (limit, used, prepared): (i32, i32, i32) = (row.get(0), row.get(1), row.get(2));
    // what is left should do for a few sandboxes' pools
    let roomy = used.saturating_mul(10) < limit.saturating_mul(9);
    let detail = format!("{used} of {limit} connections are in use");
    let connections = warn_unless("postgres.connections", roomy, &detail, "close some, or raise `max_connections`");
    let detail = format!("max_prepared_transactions = {prepared}");
    let remedy = "set it to 0 unless something needs it: a prepared transaction outlives its session";
    let prepared = warn_unless("postgres.prepared-transactions", prepared == 0, &detail, remedy);
    let mut checks = vec![public, connections, prepared];
    if server.managed().is_some() {
        let sizes = Sizes::read(session, &server.settings().profile).await?;
        let detail = format!("{} MiB lie in the catalogues that all databases share", sizes.bytes >> 20);
        let remedy = "a running server makes them smaller and keeps out whose they are; if they stay so, look for long comments on \
                      databases, long settings of roles, and transactions that are open for long";
        checks.push(warn_unless("postgres.shared-catalogues", !sizes.is_too_much(), &detail, remedy));
    }
    // A managed cluster's metadata has a database of its own, made with it.
    if server.managed().is_none() {
        checks.push(metadata(server, session).await?);
    }
    Ok(checks)
}
