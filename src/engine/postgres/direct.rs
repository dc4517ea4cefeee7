//! Who may log in to a managed cluster over TCP: those whose credentials were given out, and are not kept out just now.
//!
//! Our own sessions come by the private socket, whoever they are for. Over TCP `pg_hba.conf` admits the members of
//! one role, and refuses those of another before that. The admin alone makes members of either; both say nothing but
//! this, and are gone with the member. So a password that a sandbox's role has set itself opens nothing.
//!
//! They are two, so that neither has to know of the other: who is kept out and comes back has what it was given.

use std::sync::Arc;

use super::access;
use super::admin::{AdminSession, ident, refused};
use super::managed::{DIRECT_ROLE, WITHHELD_ROLE};
use super::server::PostgresServer;
use super::steps::Work;
use crate::engine::{EngineError, SandboxSpec};
use crate::model::{CredentialAccess, fault};

/// Where a statement finds one that another process of ours has finished meanwhile: `duplicate_object`, `unique_violation`.
const DONE_MEANWHILE: [&str; 2] = ["42710", "23505"];

/// Makes the two roles of a managed cluster, of which `there` says which it has.
pub(super) async fn make_roles(session: &AdminSession, profile: &str, there: [bool; 2]) -> Result<(), EngineError> {
    for (role, _) in [DIRECT_ROLE, WITHHELD_ROLE].into_iter().zip(there).filter(|(_, there)| !there) {
        match session.execute(format!("CREATE ROLE {} NOLOGIN", ident(role)).as_str(), &[]).await {
            Err(error) if !is_done_meanwhile(&error) => return Err(refused("make a role of its own", profile)(error)),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(())
}

/// Writes who may log in where that was written by an earlier version, under whose server this one has come.
pub(super) async fn renew_rules(server: &PostgresServer, session: &AdminSession) -> Result<(), EngineError> {
    let Some(cluster) = server.managed() else { return Ok(()) };
    let renewed = cluster.renew_rules().await.map_err(|error| EngineError::Known(Box::new(error.into())))?;
    if !renewed {
        return Ok(());
    }
    tracing::info!("who may log in to the managed cluster was written anew");
    let failed = refused("read who may log in", &server.settings().profile);
    session.execute("SELECT pg_catalog.pg_reload_conf()", &[]).await.map(drop).map_err(failed)
}

/// Lets one of a sandbox's roles in over TCP, from now on. Nobody else decides on a server that is not ours.
pub(super) async fn admit(
    server: &Arc<PostgresServer>,
    spec: &SandboxSpec,
    access: CredentialAccess,
) -> Result<(), EngineError> {
    if server.managed().is_none() {
        return Ok(());
    }
    let work = Work::new(server, spec).await?;
    let profile = &server.settings().profile;
    let session = server.admin_session().await?;
    let role = access::credentials(spec, access).user;
    let failed = refused("let a role log in directly", profile);
    let found = session
        .query_opt(
            "SELECT EXISTS (SELECT FROM pg_catalog.pg_auth_members m JOIN pg_catalog.pg_roles d ON d.oid = m.roleid \
             WHERE m.member = r.oid AND d.rolname = $2) FROM pg_catalog.pg_roles r WHERE r.rolname = $1",
            &[&role, &DIRECT_ROLE],
        )
        .await
        .map_err(&failed)?;
    match found.map(|row| row.get(0)) {
        None => return Err(access::gone(spec)),
        Some(true) => return Ok(()),
        Some(false) => {}
    }
    fault::pass("direct.grant").await.map_err(|injected| EngineError::injected(&injected, profile))?;
    match session.execute(work.grant_of(DIRECT_ROLE, &role).as_str(), &[]).await {
        Err(error) if !is_done_meanwhile(&error) => return Err(failed(error)),
        Ok(_) | Err(_) => {}
    }
    fault::pass("direct.granted").await.map_err(|injected| EngineError::injected(&injected, profile))
}

/// Ends direct sessions of those who are kept out: rules are asked when a login begins, so one that was begun before and held
/// comes in after the others were ended.
pub(super) async fn end_kept_out(server: &Arc<PostgresServer>) -> Result<(), EngineError> {
    if server.managed().is_none() {
        return Ok(());
    }
    let failed = refused("end sessions of those who are kept out", &server.settings().profile);
    server
        .admin_session()
        .await?
        .query(
            "SELECT pg_catalog.pg_terminate_backend(a.pid) FROM pg_catalog.pg_stat_activity a \
             JOIN pg_catalog.pg_auth_members m ON m.member = a.usesysid \
             JOIN pg_catalog.pg_roles w ON w.oid = m.roleid AND w.rolname = $1 WHERE a.client_addr IS NOT NULL",
            &[&WITHHELD_ROLE],
        )
        .await
        .map(drop)
        .map_err(failed)
}

fn is_done_meanwhile(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| DONE_MEANWHILE.contains(&code.code()))
}

impl Work<'_> {
    /// Returns what makes a sandbox's role a member, of which it has nothing but that it is one.
    fn grant_of(&self, of: &str, role: &str) -> String {
        let options = if self.major() >= 16 { " WITH INHERIT FALSE, SET FALSE" } else { "" };
        format!("GRANT {} TO {}{options}", ident(of), ident(role))
    }

    /// Returns what keeps the reader's direct logins out, or lets them in again; nothing on a server that is not ours.
    pub(super) fn keeping_out(&self, reader: &str, allowed: bool) -> Option<String> {
        self.is_managed().then(|| match allowed {
            true => format!("REVOKE {} FROM {}", ident(WITHHELD_ROLE), ident(reader)),
            false => self.grant_of(WITHHELD_ROLE, reader),
        })
    }

    /// Takes back, before 15, that a role has made others members of itself: they would be kept out with it.
    pub(super) async fn part_from_others(&self, session: &AdminSession, role: &str) -> Result<(), EngineError> {
        if self.major() >= 15 || !self.is_managed() {
            return Ok(());
        }
        let failed = refused("take a role back from others", self.profile());
        let rows = session
            .query(
                "SELECT pg_catalog.pg_get_userbyid(m.member)::text FROM pg_catalog.pg_auth_members m \
                 JOIN pg_catalog.pg_roles r ON r.oid = m.roleid WHERE r.rolname = $1",
                &[&role],
            )
            .await
            .map_err(&failed)?;
        for row in rows {
            let sql = format!("REVOKE {} FROM {}", ident(role), ident(row.get(0)));
            session.execute(sql.as_str(), &[]).await.map_err(&failed)?;
        }
        Ok(())
    }
}
