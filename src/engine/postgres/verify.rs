//! Checks one sandbox against what it promises, from outside and from inside.
//!
//! The five points of the role check (identity, attributes, owner, memberships, other databases) and what else
//! isolation rests on. Every check has a name and one way to fail; logins are real ones with the stored passwords.

use std::sync::Arc;

use tokio_postgres::Row;

use super::access::{self, catalogue_session, credentials};
use super::admin::{AdminSession, LoginError, refused};
use super::managed::{DIRECT_ROLE, WITHHELD_ROLE};
use super::names;
use super::server::PostgresServer;
use crate::engine::{EngineError, SandboxSpec};
use crate::model::{Check, CheckStatus, CredentialAccess};

/// The most databases that a login is tried on; the rest is judged by the catalogue.
const LOGINS_TRIED_MAX: usize = 100;

/// Runs every check.
pub(super) async fn verify(server: &Arc<PostgresServer>, spec: &SandboxSpec) -> Result<Vec<Check>, EngineError> {
    names::check(&server.settings().prefix, spec)?;
    let superuser = server.info().await?.superuser;
    let mut checks = Vec::new();
    for access in [CredentialAccess::Owner, CredentialAccess::ReadOnly] {
        identity(server, spec, access, &mut checks).await?;
    }
    let admin = server.admin_session().await?;
    outside(server, spec, &admin, superuser, &mut checks).await?;
    other_databases(server, spec, &admin, &mut checks).await?;
    Ok(checks)
}

/// Logs in as the role and looks at the session, and for the reader at what it may do inside.
async fn identity(
    server: &Arc<PostgresServer>,
    spec: &SandboxSpec,
    access: CredentialAccess,
    checks: &mut Vec<Check>,
) -> Result<(), EngineError> {
    let role = credentials(spec, access).user;
    let part = part(access);
    let session = match catalogue_session(server, spec, access).await {
        Ok(session) => session,
        Err(error @ (EngineError::Unreachable { .. } | EngineError::Busy { .. } | EngineError::Crowded { .. })) => {
            return Err(error);
        }
        Err(error) => {
            checks.push(judge(&format!("{part}.login"), false, &format!("`{role}` cannot log in: {error}"), RECREATE));
            return Ok(());
        }
    };
    checks.push(judge(&format!("{part}.login"), true, &format!("`{role}` logs in with the stored password"), RECREATE));
    let failed = refused("describe the session", &server.settings().profile);
    let row = session
        .query_one("SELECT current_user::text, session_user::text, pg_catalog.current_database()::text", &[])
        .await
        .map_err(&failed)?;
    let (current, logged_in, database): (String, String, String) = (row.get(0), row.get(1), row.get(2));
    let same = current == role && logged_in == role && database == spec.names.database;
    let seen = format!("current_user `{current}`, session_user `{logged_in}`, database `{database}`");
    checks.push(judge(&format!("{part}.identity"), same, &seen, RECREATE));
    match access {
        CredentialAccess::Owner => owner_inside(&session, checks).await.map_err(&failed),
        CredentialAccess::ReadOnly => reader_inside(&session, checks).await.map_err(&failed),
    }
}

/// The owner's way to the server's files and programs.
async fn owner_inside(session: &AdminSession, checks: &mut Vec<Check>) -> Result<(), tokio_postgres::Error> {
    let rows = session
        .query(
            "SELECT DISTINCT p.proname::text FROM pg_catalog.pg_proc p \
             WHERE p.pronamespace = 'pg_catalog'::pg_catalog.regnamespace \
             AND p.proname IN ('pg_read_file', 'pg_read_binary_file', 'pg_ls_dir', 'pg_stat_file', 'lo_import', \
             'lo_export', 'pg_reload_conf', 'pg_rotate_logfile', 'pg_promote', 'pg_switch_wal') \
             AND pg_catalog.has_function_privilege(p.oid, 'EXECUTE') ORDER BY 1",
            &[],
        )
        .await?;
    let detail = listed(&rows, "no function that reaches the server's files", "may execute");
    checks.push(judge("sandbox.server-files", rows.is_empty(), &detail, "revoke the execute right in every database"));
    Ok(())
}

async fn reader_inside(session: &AdminSession, checks: &mut Vec<Check>) -> Result<(), tokio_postgres::Error> {
    let rows = session
        .query(
            "SELECT n.nspname::text FROM pg_catalog.pg_namespace n \
             WHERE pg_catalog.has_schema_privilege(n.oid, 'CREATE') ORDER BY 1",
            &[],
        )
        .await?;
    let detail = listed(&rows, "may create in no schema", "may create in");
    checks.push(judge("reader.no-create", rows.is_empty(), &detail, "revoke CREATE on the schema from the reader"));
    let row = session
        .query_one("SELECT pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE, TEMPORARY')", &[])
        .await?;
    let may: bool = row.get(0);
    let detail =
        if may { "may make temporary tables or schemas" } else { "may make neither temporary tables nor schemas" };
    checks.push(judge("reader.no-temp", !may, detail, "revoke TEMPORARY and CREATE on the database from the reader"));
    Ok(())
}

/// What the catalogue says of roles and database.
async fn outside(
    server: &Arc<PostgresServer>,
    spec: &SandboxSpec,
    admin: &AdminSession,
    superuser: bool,
    checks: &mut Vec<Check>,
) -> Result<(), EngineError> {
    let failed = refused("describe the sandbox", &server.settings().profile);
    for access in [CredentialAccess::Owner, CredentialAccess::ReadOnly] {
        role(spec, admin, superuser, access, checks).await.map_err(&failed)?;
    }
    let names = &spec.names;
    let row = admin
        .query_opt(
            "SELECT pg_catalog.pg_get_userbyid(d.datdba)::text, \
             pg_catalog.has_database_privilege('public'::name, d.oid, 'CONNECT, TEMPORARY, CREATE'), \
             d.datistemplate, d.datallowconn, d.datconnlimit FROM pg_catalog.pg_database d WHERE d.datname = $1",
            &[&names.database],
        )
        .await
        .map_err(&failed)?;
    let Some(row) = row else { return Err(access::gone(spec)) };
    let (owner, public, template, open, limit): (String, bool, bool, bool, i32) =
        (row.get(0), row.get(1), row.get(2), row.get(3), row.get(4));
    checks.push(judge(
        "sandbox.owner",
        owner == names.owner_role,
        &format!("the database belongs to `{owner}`"),
        RECREATE,
    ));
    let detail = if public { "PUBLIC has rights on the database" } else { "PUBLIC has no rights on the database" };
    checks.push(judge("sandbox.public", !public, detail, "revoke them: `REVOKE ALL ON DATABASE … FROM PUBLIC`"));
    let settings = format!("template: {template}, open: {open}, connection limit: {limit}");
    checks.push(warn_unless(
        "sandbox.settings",
        !template && open && limit == -1,
        &settings,
        "set back at the next use",
    ));
    let rows = admin
        .query(
            "SELECT DISTINCT s.classid::pg_catalog.regclass::text FROM pg_catalog.pg_shdepend s \
             JOIN pg_catalog.pg_roles r ON r.oid = s.refobjid \
             WHERE s.refclassid = 'pg_catalog.pg_authid'::pg_catalog.regclass AND s.deptype = 'o' AND r.rolname = $1",
            &[&names.readonly_role],
        )
        .await
        .map_err(&failed)?;
    let detail = listed(&rows, "owns nothing", "owns entries of");
    checks.push(judge("reader.owns-nothing", rows.is_empty(), &detail, "give the objects to the owner role"));
    Ok(())
}

/// Attributes, memberships and limits of one role.
async fn role(
    spec: &SandboxSpec,
    admin: &AdminSession,
    superuser: bool,
    access: CredentialAccess,
    checks: &mut Vec<Check>,
) -> Result<(), tokio_postgres::Error> {
    let role = credentials(spec, access).user;
    let part = part(access);
    let name = |check: &str| format!("{part}.{check}");
    let row = admin
        .query_opt(
            "SELECT r.rolsuper, r.rolcreatedb, r.rolcreaterole, r.rolreplication, r.rolbypassrls, \
             r.rolconnlimit, (pg_catalog.date_part('epoch', r.rolvaliduntil) * 1000)::float8, r.oid, \
             (SELECT s FROM pg_catalog.unnest(c.setconfig) s WHERE s LIKE 'temp\\_file\\_limit=%') \
             FROM pg_catalog.pg_roles r \
             LEFT JOIN pg_catalog.pg_db_role_setting c ON c.setrole = r.oid AND c.setdatabase = 0 \
             WHERE r.rolname = $1",
            &[&role],
        )
        .await?;
    let Some(row) = row else {
        checks.push(judge(&name("attributes"), false, &format!("there is no role `{role}`"), RECREATE));
        return Ok(());
    };
    let mut elevated = Vec::new();
    for (column, attribute) in [(0, "SUPERUSER"), (1, "CREATEDB"), (2, "CREATEROLE"), (3, "REPLICATION")] {
        if row.get(column) {
            elevated.push(attribute);
        }
    }
    let bypasses: bool = row.get(4);
    if bypasses && access == CredentialAccess::Owner {
        elevated.push("BYPASSRLS");
    }
    // whether it can log in is a check of its own, with a real login
    let detail = if elevated.is_empty() { "none but LOGIN".to_owned() } else { elevated.join(", ") };
    checks.push(judge(&name("attributes"), elevated.is_empty(), &detail, "take the attributes away"));
    if access == CredentialAccess::ReadOnly {
        let status = if bypasses { CheckStatus::Ok } else { CheckStatus::Skipped };
        let detail = if bypasses {
            "sees every row"
        } else {
            "has no BYPASSRLS, which only a superuser admin can give; where row security applies a read is refused"
        };
        checks.push(check(&name("row-security"), status, detail, None));
    }
    let limit: i32 = row.get(5);
    checks.push(judge(&name("connection-limit"), limit > 0, &format!("connection limit {limit}"), RECREATE));
    let until: Option<f64> = row.get(6);
    // the server keeps microseconds, we milliseconds; both are exact in a float for the next centuries
    #[expect(clippy::cast_precision_loss, reason = "milliseconds of this era fit a float's 53 bits")]
    let on_time = until.is_some_and(|until| (until - spec.expires_at.unix_ms() as f64).abs() < 1.0);
    let detail = match until {
        None => "logins never end".to_owned(),
        Some(_) if on_time => format!("logins end at {}", spec.expires_at),
        Some(_) => format!("logins do not end at {}", spec.expires_at),
    };
    checks.push(judge(&name("valid-until"), on_time, &detail, "extend the sandbox, which sets it"));
    let temp: Option<String> = row.get(8);
    checks.push(match (&temp, superuser) {
        (Some(setting), _) => check(&name("temp-files"), CheckStatus::Ok, setting, None),
        (None, true) => {
            check(&name("temp-files"), CheckStatus::Warn, "temporary files are not limited", Some(RECREATE))
        }
        (None, false) => {
            check(&name("temp-files"), CheckStatus::Skipped, "only a superuser admin can limit temporary files", None)
        }
    });
    memberships(spec, admin, &role, row.get(7), &name, checks).await
}

async fn memberships(
    spec: &SandboxSpec,
    admin: &AdminSession,
    role: &str,
    oid: u32,
    name: &impl Fn(&str) -> String,
    checks: &mut Vec<Check>,
) -> Result<(), tokio_postgres::Error> {
    let rows = admin
        .query(
            "SELECT pg_catalog.pg_get_userbyid(m.roleid)::text FROM pg_catalog.pg_auth_members m WHERE m.member = $1 \
             AND pg_catalog.pg_get_userbyid(m.roleid) NOT IN ($2, $3) ORDER BY 1",
            &[&oid, &DIRECT_ROLE, &WITHHELD_ROLE],
        )
        .await?;
    let detail = listed(&rows, "is a member of no role", "is a member of");
    checks.push(judge(&name("memberships"), rows.is_empty(), &detail, &format!("`REVOKE … FROM {role}`")));
    let rows = admin
        .query(
            "SELECT pg_catalog.pg_get_userbyid(m.member)::text FROM pg_catalog.pg_auth_members m \
             JOIN pg_catalog.pg_roles r ON r.oid = m.member \
             WHERE m.roleid = $1 AND m.member <> current_user::pg_catalog.regrole AND NOT r.rolsuper ORDER BY 1",
            &[&oid],
        )
        .await?;
    let detail = listed(&rows, "nobody but the admin is a member", "has as members");
    let remedy = format!("`REVOKE {role} FROM …`; other members may enter `{}`", spec.names.database);
    checks.push(judge(&name("members"), rows.is_empty(), &detail, &remedy));
    Ok(())
}

/// Tries to log in to every other database as the owner and as the reader.
async fn other_databases(
    server: &Arc<PostgresServer>,
    spec: &SandboxSpec,
    admin: &AdminSession,
    checks: &mut Vec<Check>,
) -> Result<(), EngineError> {
    let failed = refused("list the databases", &server.settings().profile);
    let major = server.info().await?.major;
    let reach = server.reach().await?;
    for access in [CredentialAccess::Owner, CredentialAccess::ReadOnly] {
        let credentials = credentials(spec, access);
        let rows = admin
            .query(
                "SELECT d.datname::text, pg_catalog.has_database_privilege($2::name, d.oid, 'CONNECT') \
                 FROM pg_catalog.pg_database d JOIN pg_catalog.pg_roles r ON r.rolname = $2 \
                 WHERE d.datallowconn AND d.datname <> $1 ORDER BY 2 DESC, 1",
                &[&spec.names.database, &credentials.user],
            )
            .await
            .map_err(&failed)?;
        let others = Others::of(rows.iter().map(|row| (row.get(0), row.get(1))));
        let looked = others.looked_into();
        let mut entered = others.allowed;
        for database in others.tried {
            match access::log_in(&reach, &credentials, &database, major).await {
                Ok(_) => entered.push(database),
                Err(LoginError::Refused { .. }) => {}
                Err(error) => return Err(error.within(&server.settings().profile, &credentials.user)),
            }
        }
        let prefix = &server.settings().prefix;
        let is_sandbox = |name: &String| name.strip_prefix(prefix.as_str()).is_some_and(|rest| rest.starts_with('_'));
        let (sandboxes, others): (Vec<_>, Vec<_>) = entered.into_iter().partition(is_sandbox);
        let part = part(access);
        let detail = named(&sandboxes, "enters no other sandbox", "enters");
        let remedy = "take CONNECT away from PUBLIC and from the role in those databases";
        checks.push(judge(&format!("{part}.other-sandboxes"), sandboxes.is_empty(), &detail, remedy));
        let detail = named(&others, &format!("enters no other database; {looked}"), "enters");
        let name = format!("{part}.other-databases");
        // on a server of the operator's own PUBLIC's rights are the operator's to decide
        let strict = server.managed().is_some();
        checks.push(if strict {
            judge(&name, others.is_empty(), &detail, remedy)
        } else {
            warn_unless(
                &name,
                others.is_empty(),
                &detail,
                "`REVOKE CONNECT ON DATABASE … FROM PUBLIC` in those databases",
            )
        });
    }
    Ok(())
}

/// The databases that are not the sandbox's own.
struct Others {
    /// A login is tried on them.
    tried: Vec<String>,
    /// The catalogue lets the role into them, and no login is tried.
    allowed: Vec<String>,
    /// How many the catalogue alone has judged.
    judged: usize,
}

impl Others {
    /// Parts databases, with what the catalogue says of each: a login is tried on the first [`LOGINS_TRIED_MAX`].
    fn of(databases: impl Iterator<Item = (String, bool)>) -> Self {
        let mut others = Self { tried: Vec::new(), allowed: Vec::new(), judged: 0 };
        for (database, may) in databases {
            if others.tried.len() < LOGINS_TRIED_MAX {
                others.tried.push(database);
                continue;
            }
            others.judged += 1;
            if may {
                others.allowed.push(database);
            }
        }
        others
    }

    /// Says how they are looked into.
    fn looked_into(&self) -> String {
        let tried = self.tried.len();
        match self.judged {
            0 => format!("{tried} logins were tried"),
            more => format!("{tried} logins were tried, and the catalogue was asked about {more} more"),
        }
    }
}

const RECREATE: &str = "delete the sandbox and create another";

const fn part(access: CredentialAccess) -> &'static str {
    match access {
        CredentialAccess::Owner => "sandbox",
        CredentialAccess::ReadOnly => "reader",
    }
}

fn listed(rows: &[Row], none: &str, some: &str) -> String {
    named(&rows.iter().map(|row| row.get(0)).collect::<Vec<String>>(), none, some)
}

/// More names than this say no more.
const SHOWN_MAX: usize = 10;

fn named(names: &[String], none: &str, some: &str) -> String {
    if names.is_empty() {
        return none.to_owned();
    }
    let shown: Vec<String> = names.iter().take(SHOWN_MAX).map(|n| format!("`{n}`")).collect();
    let more = names.len().saturating_sub(SHOWN_MAX);
    if more == 0 {
        format!("{some} {}", shown.join(", "))
    } else {
        format!("{some} {} and {more} more", shown.join(", "))
    }
}

/// A check that fails unless `good`.
pub(super) fn judge(name: &str, good: bool, detail: &str, remedy: &str) -> Check {
    let status = if good { CheckStatus::Ok } else { CheckStatus::Fail };
    check(name, status, detail, (!good).then_some(remedy))
}

/// A check that warns unless `good`.
pub(super) fn warn_unless(name: &str, good: bool, detail: &str, remedy: &str) -> Check {
    let status = if good { CheckStatus::Ok } else { CheckStatus::Warn };
    check(name, status, detail, (!good).then_some(remedy))
}

pub(super) fn check(name: &str, status: CheckStatus, detail: &str, remedy: Option<&str>) -> Check {
    Check { name: name.to_owned(), status, detail: detail.to_owned(), remedy: remedy.map(str::to_owned) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_logins_are_tried_and_the_catalogue_judges_the_rest() {
        for count in [0, LOGINS_TRIED_MAX - 1, LOGINS_TRIED_MAX, LOGINS_TRIED_MAX + 1, 5 * LOGINS_TRIED_MAX] {
            // The catalogue lets the role into the first and the last.
            let may = |n: &usize| *n == 0 || n + 1 == count;
            let others = Others::of((0..count).map(|n| (n.to_string(), may(&n))));
            let named = |numbers: std::ops::Range<usize>| numbers.map(|n| n.to_string()).collect::<Vec<_>>();
            let tried = count.min(LOGINS_TRIED_MAX);
            assert_eq!(others.tried, named(0..tried), "of {count}");
            assert_eq!(others.allowed, named(tried.max(count.saturating_sub(1))..count), "of {count}");
            let said = others.looked_into();
            let rest = if count > tried {
                format!(", and the catalogue was asked about {} more", count - tried)
            } else {
                String::new()
            };
            assert_eq!(said, format!("{tried} logins were tried{rest}"));
        }
    }

    #[test]
    fn more_names_than_can_be_read_are_counted() {
        let said = |count: usize| named(&(0..count).map(|n| format!("n{n}")).collect::<Vec<_>>(), "none", "these:");
        assert_eq!(said(0), "none");
        for count in [SHOWN_MAX - 1, SHOWN_MAX] {
            assert!(said(count).ends_with(&format!("`n{}`", count - 1)), "{}", said(count));
        }
        assert!(said(SHOWN_MAX + 1).ends_with("`n9` and 1 more"), "{}", said(SHOWN_MAX + 1));
    }
}
