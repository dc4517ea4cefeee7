//! How a sandbox's roles get in: sessions as them, and setting back what the sandbox has changed about its own access.
//!
//! A role may change its own password and its database's connection limit and rights. When a login of ours
//! fails for one of these reasons, the admin sets them as they were and the login is tried once more. A role
//! whose login was taken away is never given it back here.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_postgres::types::Type;

use super::admin::{AdminSession, Login, LoginError, ident, literal, refused};
use super::managed::Why;
use super::server::{PostgresServer, Reach};
use super::steps::{Work, is_contention, login_options};
use super::{Auth, Credentials, SandboxSession, SessionTarget, WireError, scram, startup};
use crate::engine::{EngineError, SandboxSpec, ServerInfo};
use crate::model::{Code, CredentialAccess, Failure, Secret, Timestamp};

/// How often a change is tried against sessions of the sandbox that hold the row.
const ATTEMPTS_MAX: u32 = 12;

/// How long the server may take for a statement that reads a sandbox's catalogue: longer than its own timer lets it.
pub(super) const CATALOGUE_ANSWER: Duration = Duration::from_secs(130);

/// Returns the role and password of one kind of access.
pub(super) fn credentials(spec: &SandboxSpec, access: CredentialAccess) -> Credentials {
    let (user, password) = role_and_password(spec, access);
    Credentials { user: user.clone(), password: Some(password.clone()) }
}

fn role_and_password(spec: &SandboxSpec, access: CredentialAccess) -> (&String, &Secret) {
    match access {
        CredentialAccess::Owner => (&spec.names.owner_role, &spec.owner_password),
        CredentialAccess::ReadOnly => (&spec.names.readonly_role, &spec.readonly_password),
    }
}

/// Returns the settings a session with the caller's SQL starts with.
pub(super) fn session_options(major: u16, superuser: bool, access: CredentialAccess) -> super::StartupOptions {
    let purpose = match access {
        CredentialAccess::Owner => startup::Purpose::Owner,
        CredentialAccess::ReadOnly => startup::Purpose::ReadOnly { bypasses_row_security: superuser },
    };
    startup::startup_options(major, purpose)
}

/// Says whether a refused login may be due to what the sandbox itself can change.
pub(super) fn may_be_repaired(sqlstate: &str) -> bool {
    // invalid_password, insufficient_privilege, too_many_connections, object_not_in_prerequisite_state (closed),
    // undefined_database
    matches!(sqlstate, "28P01" | "42501" | "53300" | "55000" | "3D000")
}

/// Returns the size of a sandbox's database in bytes.
pub(super) async fn size(server: &Arc<PostgresServer>, spec: &SandboxSpec) -> Result<u64, EngineError> {
    let session = server.admin_session().await?;
    database_size(&session, &server.settings().profile, &spec.names.database).await?.ok_or_else(|| gone(spec))
}

/// Returns the size of a database, in bytes, if it is there.
pub(super) async fn database_size(
    session: &AdminSession,
    profile: &str,
    database: &str,
) -> Result<Option<u64>, EngineError> {
    let sql = "SELECT pg_catalog.pg_database_size(oid) FROM pg_catalog.pg_database WHERE datname = $1";
    let row = session
        .query_typed_opt(sql, &[(&database, Type::NAME)])
        .await
        .map_err(refused("measure the database", profile))?;
    Ok(row.map(|row| u64::try_from(row.get::<_, i64>(0)).unwrap_or_default()))
}

/// Opens a session as one of the sandbox's roles for reading catalogues, `search_path` pinned.
pub(super) async fn catalogue_session(
    server: &Arc<PostgresServer>,
    spec: &SandboxSpec,
    access: CredentialAccess,
) -> Result<AdminSession, EngineError> {
    let credentials = credentials(spec, access);
    let reach = server.reach().await?;
    let major = server.info().await?.major;
    let failed = match log_in(&reach, &credentials, &spec.names.database, major).await {
        Ok(session) => return Ok(session),
        Err(error) => error,
    };
    let reach = if failed.is_unreachable() && !failed.is_silence() {
        server.reconnect().await?
    } else if failed.is_crowded() && !is_narrowed(server, spec).await? {
        reach
    } else if failed.sqlstate().is_some_and(may_be_repaired) {
        repair(server, spec).await?;
        reach
    } else {
        return Err(failed.within(&server.settings().profile, &credentials.user));
    };
    let login = Login {
        endpoint: &reach.endpoint,
        credentials: &credentials,
        database: &spec.names.database,
        timeout: reach.connect_timeout,
        answer: CATALOGUE_ANSWER,
    };
    let again = server.log_in_as(&login, Some(major)).await;
    again.map_err(|e| e.within(&server.settings().profile, &credentials.user))
}

/// Logs in as a sandbox's role, to any database.
pub(super) async fn log_in(
    reach: &Reach,
    credentials: &Credentials,
    database: &str,
    major: u16,
) -> Result<AdminSession, LoginError> {
    let timeout = reach.connect_timeout;
    let login = Login { endpoint: &reach.endpoint, credentials, database, timeout, answer: CATALOGUE_ANSWER };
    AdminSession::open(&login, Some(major)).await
}

/// Returns whether the sandbox has limited its own connections further than they were made.
async fn is_narrowed(server: &Arc<PostgresServer>, spec: &SandboxSpec) -> Result<bool, EngineError> {
    let names = &spec.names;
    let made_with = i32::try_from(server.settings().connection_limit).unwrap_or(i32::MAX);
    let row = server
        .admin_session()
        .await?
        .query_one(
            "SELECT EXISTS (SELECT FROM pg_catalog.pg_database WHERE datname = $1 AND datconnlimit <> -1) \
             OR EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname IN ($2, $3) AND rolconnlimit <> $4)",
            &[&names.database, &names.owner_role, &names.readonly_role, &made_with],
        )
        .await
        .map_err(refused("say what limits the sandbox's connections", &server.settings().profile))?;
    Ok(row.get(0))
}

/// Sets passwords, limits and rights as they were made, and notes what it found changed.
///
/// # Errors
/// Says that there is no such sandbox if its database is gone, as its owner may drop it.
pub(super) async fn repair(server: &Arc<PostgresServer>, spec: &SandboxSpec) -> Result<(), EngineError> {
    if let Some(why) = server.managed().and_then(|managed| managed.is_held_off(&spec.names.database)) {
        let (took, hint) = match why {
            Why::Locks => (
                "its sessions took every lock of the server, again and again",
                "take fewer locks in one transaction, and call again later",
            ),
            Why::Catalogues => (
                "it had filled the catalogues that all databases of the server share",
                "write short comments on the database and short settings of it and its roles, and call again later",
            ),
            Why::Connections => (
                "direct sessions of its owner took most of the server's connections, which others needed, and took them again",
                "open fewer connections at once in all sandboxes of the owner together, and call again later",
            ),
        };
        let text = format!("sandbox `{}` is kept out for some minutes: {took}", spec.names.database);
        let failure = Failure::new(Code::Busy, text).hint(hint);
        return Err(EngineError::Known(Box::new(failure)));
    }
    let work = Work::new(server, spec).await?;
    let session = server.admin_session().await?;
    let names = &spec.names;
    let found = session
        .query_opt(
            "SELECT datconnlimit, datallowconn, pg_catalog.has_database_privilege($2::name, oid, 'CONNECT'), \
             pg_catalog.has_database_privilege($3::name, oid, 'CONNECT') \
             FROM pg_catalog.pg_database WHERE datname = $1 \
             AND (SELECT pg_catalog.count(*) FROM pg_catalog.pg_roles WHERE rolname IN ($2, $3)) = 2",
            &[&names.database, &names.owner_role, &names.readonly_role],
        )
        .await
        .map_err(refused("find the database", work.profile()))?;
    let Some(found) = found else { return Err(gone(spec)) };
    let (limit, open, owner, reader): (i32, bool, bool, bool) =
        (found.get(0), found.get(1), found.get(2), found.get(3));
    tracing::warn!(
        sandbox = %spec.id, connection_limit = limit, open, owner_may_connect = owner, reader_may_connect = reader,
        "a sandbox's access was changed from inside and is set back"
    );
    let database = ident(&names.database);
    let mut statements = Vec::new();
    for (role, password, _) in work.roles() {
        work.join(&session, role).await?;
        let verifier = scram::verifier(password);
        let login = login_options(server.settings().connection_limit, &verifier, spec.expires_at);
        statements.push(format!("ALTER ROLE {} WITH {login}", ident(role)));
        statements.push(format!("GRANT CONNECT ON DATABASE {database} TO {}", ident(role)));
    }
    // a database that is being removed is closed, and its roles as well: it stays so. The reader tells, as the owner
    // alone may be kept out over its quota
    if can_log_in(&session, &work, &names.readonly_role).await? {
        statements.push(format!("ALTER DATABASE {database} WITH ALLOW_CONNECTIONS true CONNECTION LIMIT -1"));
    }
    for sql in &statements {
        work.execute(&session, "set the sandbox's access back", sql).await?;
    }
    Ok(())
}

async fn can_log_in(session: &AdminSession, work: &Work<'_>, role: &str) -> Result<bool, EngineError> {
    let row = session
        .query_opt("SELECT rolcanlogin FROM pg_catalog.pg_roles WHERE rolname = $1", &[&role])
        .await
        .map_err(refused("find a role", work.profile()))?;
    Ok(row.is_some_and(|row| row.get(0)))
}

/// Makes the roles' logins end at `until`.
pub(super) async fn set_expiry(
    server: &Arc<PostgresServer>,
    spec: &SandboxSpec,
    until: Timestamp,
) -> Result<(), EngineError> {
    let until = literal(&until.to_string());
    let both = [&spec.names.owner_role, &spec.names.readonly_role];
    alter(server, spec, &both.map(|role| format!("ALTER ROLE {} VALID UNTIL {until}", ident(role)))).await
}

/// Takes the owner's login away and ends its sessions, or gives the login back.
///
/// The reader keeps its login, as read-only calls of ours go on; on a managed cluster its direct logins go too: it can
/// write to no table, but call what the owner has made to write.
pub(super) async fn set_login(
    server: &Arc<PostgresServer>,
    spec: &SandboxSpec,
    allowed: bool,
) -> Result<(), EngineError> {
    let word = if allowed { "LOGIN" } else { "NOLOGIN" };
    let work = Work::new(server, spec).await?;
    let (owner, reader) = (&spec.names.owner_role, &spec.names.readonly_role);
    let mut statements = vec![format!("ALTER ROLE {} {word}", ident(owner))];
    let kept_out = work.keeping_out(reader, allowed);
    let managed = kept_out.is_some();
    statements.extend(kept_out);
    alter(server, spec, &statements).await?;
    if allowed {
        return Ok(());
    }
    let session = server.admin_session().await?;
    work.terminate_role(&session, owner).await?;
    if managed {
        work.terminate_direct(&session, reader).await?;
        work.part_from_others(&session, reader).await?;
    }
    Ok(())
}

/// Changes roles in one transaction; a session of the sandbox that holds their rows is ended.
async fn alter(server: &Arc<PostgresServer>, spec: &SandboxSpec, statements: &[String]) -> Result<(), EngineError> {
    let work = Work::new(server, spec).await?;
    let mut session = server.admin_session().await?;
    let failed = refused("change the sandbox's roles", work.profile());
    for (role, ..) in work.roles() {
        if work.role_oid(&session, role).await?.is_none() {
            return Err(gone(spec));
        }
        work.join(&session, role).await?;
    }
    let mut attempt = 0;
    loop {
        attempt += 1;
        let changed = async {
            let transaction = session.transaction().await?;
            transaction.execute("SET LOCAL lock_timeout = '500ms'", &[]).await?;
            for sql in statements {
                transaction.execute(sql.as_str(), &[]).await?;
            }
            transaction.commit().await
        };
        match changed.await.map_err(&failed) {
            Ok(()) => return Ok(()),
            Err(error) if attempt < ATTEMPTS_MAX && is_contention(&error) => work.terminate(&session).await?,
            Err(error) => return Err(error),
        }
    }
}

/// Returns what lets the reader see all that the owner, whose session it is, will make. `reader` is quoted already.
pub(super) fn reads_to_come(reader: &str) -> [String; 3] {
    ["SELECT ON TABLES", "SELECT ON SEQUENCES", "USAGE ON SCHEMAS"]
        .map(|right| format!("ALTER DEFAULT PRIVILEGES GRANT {right} TO {reader}"))
}

/// What the reader may not see of what is the owner's: schemas, and what is in them, each by its quoted name.
const MISSING_READS: &str = "
    SELECT true, pg_catalog.format('%I', nspname)
    FROM pg_catalog.pg_namespace n
    WHERE nspname !~ '^pg_' AND nspname <> 'information_schema' AND pg_catalog.pg_has_role(nspowner, 'USAGE')
        AND NOT pg_catalog.has_schema_privilege($1::text::name, n.oid, 'USAGE')
    UNION ALL
    SELECT false, pg_catalog.format('%I.%I', nspname, relname)
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND nspname !~ '^pg_' AND nspname <> 'information_schema'
        AND pg_catalog.pg_has_role(relowner, 'USAGE')
        AND NOT pg_catalog.has_table_privilege($1::text::name, c.oid, 'SELECT')";

/// How much one statement gives the reader to see: few enough that the server has a lock for each.
const GRANTED_AT_ONCE: usize = 1000;

/// Gives the reader again what it may see: `DROP OWNED`, for one, takes it away with all else. The server stops by itself
/// when the time is over; what was given by then stays, and the next call goes on from there.
pub(super) async fn restore_reads(
    server: &Arc<PostgresServer>,
    spec: &SandboxSpec,
    within: Duration,
) -> Result<bool, EngineError> {
    let until = Instant::now() + within;
    let failed = refused("restore the reader's rights", &server.settings().profile);
    let session = catalogue_session(server, spec, CredentialAccess::Owner).await?;
    let arm = || format!("SET statement_timeout = {}", (until - Instant::now()).as_millis().max(1));
    session.execute(&arm(), &[]).await.map_err(&failed)?;
    let missing = session.query(MISSING_READS, &[&spec.names.readonly_role]).await.map_err(&failed)?;
    if missing.is_empty() {
        return Ok(false);
    }
    let missing: Vec<(bool, String)> = missing.iter().map(|row| (row.get(0), row.get(1))).collect();
    for sql in grants(&missing, &ident(&spec.names.readonly_role)) {
        // Each for itself: the timer begins anew with every statement. They bear the caller's names, if quoted, so each goes
        // where one statement is all that can be sent.
        session.execute(&arm(), &[]).await.map_err(&failed)?;
        session.execute(&sql, &[]).await.map_err(&failed)?;
    }
    tracing::info!(sandbox = %spec.id, granted = missing.len(), "the reader's rights were restored");
    Ok(true)
}

/// Returns what gives the reader to see schemas and relations, and all that the owner will make, as few statements.
fn grants(missing: &[(bool, String)], reader: &str) -> Vec<String> {
    let mut statements = reads_to_come(reader).to_vec();
    for (of_schemas, right) in [(true, "USAGE ON SCHEMA"), (false, "SELECT ON TABLE")] {
        let names: Vec<&str> = missing.iter().filter(|(is, _)| *is == of_schemas).map(|(_, name)| &**name).collect();
        let each = names.chunks(GRANTED_AT_ONCE).map(|names| names.join(", "));
        statements.extend(each.map(|names| format!("GRANT {right} {names} TO {reader}")));
    }
    statements
}

/// Says that a sandbox's database or roles are not there.
pub(super) fn gone(spec: &SandboxSpec) -> EngineError {
    let message = format!("the database of sandbox `{}` is gone; its owner may have dropped it", spec.names.database);
    EngineError::Known(Box::new(
        Failure::new(Code::DatabaseNotFound, message).hint("delete the sandbox and create another"),
    ))
}

/// Returns how the sandbox's owner logs in right now.
pub(super) async fn owner_login(
    server: &Arc<PostgresServer>,
    spec: &SandboxSpec,
) -> Result<SessionTarget, EngineError> {
    let info = server.info().await?;
    Ok(session_target(server, spec, CredentialAccess::Owner, &info, &server.reach().await?))
}

fn session_target(
    server: &PostgresServer,
    spec: &SandboxSpec,
    access: CredentialAccess,
    info: &ServerInfo,
    reach: &Reach,
) -> SessionTarget {
    SessionTarget {
        endpoint: reach.endpoint.clone(),
        database: spec.names.database.clone(),
        user: role_and_password(spec, access).0.clone(),
        password: role_and_password(spec, access).1.clone(),
        application_name: startup::APPLICATION_NAME.to_owned(),
        options: session_options(info.major, info.superuser, access),
        auth: if server.managed().is_some() { Auth::ScramOnly } else { Auth::AsServerAsks },
        connect_timeout: reach.connect_timeout,
    }
}

/// Opens a session for the caller's SQL.
pub(super) async fn caller_session(
    server: &Arc<PostgresServer>,
    spec: &SandboxSpec,
    access: CredentialAccess,
) -> Result<SandboxSession, EngineError> {
    let profile = &server.settings().profile;
    let info = server.info().await?;
    let reach = server.reach().await?;
    let target = |reach: &Reach| session_target(server, spec, access, &info, reach);
    let failed = match SandboxSession::connect(&target(&reach)).await {
        Ok(session) => return Ok(session),
        Err(error) => login_error(error),
    };
    let reach = if failed.is_unreachable() && !failed.is_silence() {
        server.reconnect().await?
    } else if failed.is_crowded() && !is_narrowed(server, spec).await? {
        // Sessions of ours that do nothing need not be in the way of a caller's.
        server.trim_idle();
        return Err(failed.within(profile, role_and_password(spec, access).0));
    } else if failed.sqlstate().is_some_and(may_be_repaired) {
        repair(server, spec).await?;
        reach
    } else {
        return Err(failed.within(profile, role_and_password(spec, access).0));
    };
    let again = SandboxSession::connect(&target(&reach)).await.map_err(login_error);
    again.map_err(|error| error.within(profile, role_and_password(spec, access).0))
}

/// Sorts a failed login of the wire's.
fn login_error(error: WireError) -> LoginError {
    let said = error.to_string();
    match error {
        WireError::Net(error) => LoginError::Net(error),
        WireError::AuthMethod(_) | WireError::Impostor => LoginError::Method,
        WireError::Unbound => LoginError::Unbound,
        // its words are about our own login: they name role and database, and hold nothing of a caller's
        WireError::Auth(error) | WireError::Refused(error) | WireError::Ended(error) | WireError::Statement(error) => {
            LoginError::Refused { sqlstate: error.sqlstate().to_owned(), message: error.message().expose().to_owned() }
        }
        WireError::Protocol(_)
        | WireError::Lost(_)
        | WireError::Timeout { .. }
        | WireError::Cancelled
        | WireError::CopyDataMissing
        | WireError::ReadOnlyViolated
        | WireError::NotIdle
        | WireError::Setting(_)
        | WireError::Unusable
        | WireError::NotSendable(_) => LoginError::Lost(said),
    }
}
