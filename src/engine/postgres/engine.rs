//! The Postgres engine as the lifecycle core sees it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::admin::refused;
use super::server::{PostgresServer, ServerSource};
use super::steps::{self, Work};
use super::{
    CatalogueSession, ChannelBinding, CloneJob, Host, InFile, RestoreJob, SandboxSession, Wanted, access, catalog,
    direct, discover, dump, extensions, health, managed, names, shared, verify,
};
use crate::engine::{
    ConnectionInfo, Contents, DeleteSteps, Engine, EngineError, ExtensionInfo, Found, SandboxSpec, ServerInfo,
    Standing, Step,
};
use crate::model::{Check, CredentialAccess, Progress, SandboxKind, Schema, SchemaFilter, Timestamp, TlsMode};

/// The engine's name in metadata.
const KIND: &str = "postgres";

/// Makes sandboxes on one server: a database, its owner and its reader each.
#[derive(Clone, Debug)]
pub struct PostgresEngine {
    server: Arc<PostgresServer>,
}

impl PostgresEngine {
    /// Works on `server`, which the profile's store may share.
    pub fn new(server: Arc<PostgresServer>) -> Self {
        Self { server }
    }

    /// Returns the server.
    pub fn server(&self) -> &Arc<PostgresServer> {
        &self.server
    }
}

#[async_trait]
impl Engine for PostgresEngine {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn managed(&self) -> bool {
        self.server.managed().is_some()
    }

    fn known_major(&self) -> Option<u16> {
        let asked = self.server.known_info().map(|info| info.major);
        asked.or(self.server.settings().major).or_else(|| self.server.managed()?.known_major())
    }

    async fn major_ahead(&self) -> Option<u16> {
        match self.known_major() {
            Some(major) => Some(major),
            None => self.versions_installed().await.first().map(|(major, _)| *major),
        }
    }

    async fn versions_installed(&self) -> Vec<(u16, String)> {
        let Some(cluster) = self.server.managed() else { return Vec::new() };
        let found = discover(&cluster.settings().binaries).await;
        found.into_iter().map(|installation| (installation.major, installation.version)).collect()
    }

    async fn install(&self, major: Option<u16>, progress: &dyn Progress) -> Result<String, EngineError> {
        let Some(cluster) = self.server.managed() else {
            return Err(EngineError::Unsupported("the profile's server is not one that this program runs".to_owned()));
        };
        let installed = managed::install(major, &cluster.settings().binaries, progress).await;
        installed.map(|found| found.version).map_err(|error| EngineError::Known(Box::new(error.into())))
    }

    async fn ready(&self) -> Result<ServerInfo, EngineError> {
        // a session and not only what was found out before: the server may have stopped since
        let session = self.server.admin_session().await?;
        drop(session);
        self.server.info().await
    }

    fn create_steps(&self, kind: SandboxKind, contents: &Contents) -> Vec<Step> {
        steps::create_steps(kind, contents)
    }

    fn known_steps(&self) -> Vec<Step> {
        steps::known_steps()
    }

    fn reset_step(&self) -> Step {
        steps::RESET
    }

    async fn check_copy(&self, source: &SandboxSpec) -> Result<(), EngineError> {
        Work::new(&self.server, source).await?.check_copy(&source.names).await
    }

    async fn await_unused(&self, source: &SandboxSpec) -> Result<(), EngineError> {
        let session = self.server.admin_session().await?;
        Work::new(&self.server, source).await?.await_unused(&session, &source.names).await
    }

    async fn look_ahead(&self, contents: &Contents) {
        let Contents::Copy { names, source_bytes, .. } = contents else { return };
        // Only if there is a session at once: it would be waited for by who needs to know it, too.
        let Ok(Some(session)) = self.server.second_admin_session().await else { return };
        let profile = &self.server.settings().profile;
        if let Ok(Some(bytes)) = access::database_size(&session, profile, &names.database).await {
            source_bytes.get_or_init(|| bytes);
        }
    }

    fn delete_steps(&self) -> DeleteSteps {
        steps::delete_steps()
    }

    async fn run(&self, step: Step, sandbox: &SandboxSpec) -> Result<(), EngineError> {
        Work::new(&self.server, sandbox).await?.run(step).await
    }

    async fn undo(&self, step: Step, sandbox: &SandboxSpec) -> Result<(), EngineError> {
        Work::new(&self.server, sandbox).await?.undo(step).await
    }

    async fn set_expiry(&self, sandbox: &SandboxSpec, expires_at: Timestamp) -> Result<(), EngineError> {
        access::set_expiry(&self.server, sandbox, expires_at).await
    }

    async fn set_login(&self, sandbox: &SandboxSpec, allowed: bool) -> Result<(), EngineError> {
        access::set_login(&self.server, sandbox, allowed).await
    }

    async fn admit_direct(&self, sandbox: &SandboxSpec, access: CredentialAccess) -> Result<(), EngineError> {
        direct::admit(&self.server, sandbox, access).await
    }

    async fn end_kept_out(&self) -> Result<(), EngineError> {
        direct::end_kept_out(&self.server).await
    }

    async fn measure(&self, sandbox: &SandboxSpec) -> Result<u64, EngineError> {
        access::size(&self.server, sandbox).await
    }

    async fn examine_source(&self, job: &CloneJob) -> Result<(), EngineError> {
        dump::preflight(&self.server, job).await
    }

    async fn examine_dump(&self, wanted: Wanted, dump: InFile) -> Result<RestoreJob, EngineError> {
        dump::examine(&self.server, wanted, dump).await
    }

    async fn sweep_copies(&self) {
        dump::sweep(&self.server.settings().work_dir);
    }

    fn disk_left(&self) -> Option<u64> {
        self.server.managed().and_then(super::ManagedCluster::disk_left)
    }

    fn give_up_ballast(&self) -> bool {
        self.server.managed().is_some_and(super::ManagedCluster::give_up_ballast)
    }

    fn keep_ballast(&self) {
        if let Some(managed) = self.server.managed() {
            managed.keep_ballast();
        }
    }

    async fn keep_watch(&self, owners: HashMap<String, String>) -> Vec<String> {
        let Some(managed) = self.server.managed() else { return Vec::new() };
        managed.keep_watch(owners).await;
        if let Err(error) = shared::keep_small(&self.server).await {
            tracing::warn!(profile = self.server.settings().profile, %error, "what all databases share is not looked after now");
        }
        managed.let_in_again()
    }

    async fn relieve_others(&self) {
        if let Some(managed) = self.server.managed() {
            managed.relieve_others().await;
        }
    }

    async fn is_crowded(&self) -> bool {
        match self.server.managed() {
            Some(managed) => managed.is_crowded().await,
            None => false,
        }
    }

    async fn part_crowd(&self, owners: Option<HashMap<String, String>>) -> bool {
        match self.server.managed() {
            Some(managed) => managed.part_crowd(owners).await,
            None => false,
        }
    }

    async fn relieve_of_others(&self, database: &str) -> bool {
        match self.server.managed() {
            Some(managed) => managed.relieve_of_others(database).await,
            None => false,
        }
    }

    async fn let_in(&self, sandbox: &SandboxSpec) -> Result<(), EngineError> {
        access::repair(&self.server, sandbox).await
    }

    async fn relieve(&self) {
        self.server.relieve().await;
    }

    async fn inventory(&self, prefix: &str) -> Result<Vec<Found>, EngineError> {
        let session = self.server.admin_session().await?;
        // the admin of a managed cluster may bear the prefix itself, and its other roles
        let sql = "SELECT 'database', datname::text FROM pg_catalog.pg_database \
                   WHERE pg_catalog.starts_with(datname::text, $1) \
                   UNION ALL SELECT 'role', rolname::text FROM pg_catalog.pg_roles \
                   WHERE pg_catalog.starts_with(rolname::text, $1) AND rolname <> current_user \
                   AND rolname NOT IN ($2, $3) ORDER BY 1, 2";
        let rows = session
            .query(sql, &[&format!("{prefix}_"), &managed::DIRECT_ROLE, &managed::WITHHELD_ROLE])
            .await
            .map_err(refused("list what bears the prefix", &self.server.settings().profile))?;
        let kind = |word: &str| if word == "database" { "database" } else { "role" };
        Ok(rows.iter().map(|row| Found { kind: kind(row.get(0)), name: row.get(1) }).collect())
    }

    async fn verify(&self, sandbox: &SandboxSpec) -> Result<Vec<Check>, EngineError> {
        verify::verify(&self.server, sandbox).await
    }

    async fn available_extensions(&self) -> Result<Vec<ExtensionInfo>, EngineError> {
        let superuser = self.server.info().await?.superuser;
        let session = self.server.admin_session().await?;
        extensions::available(&session, &self.server.settings().profile, superuser).await
    }

    async fn check_extensions(&self, wanted: &[String]) -> Result<(), EngineError> {
        let superuser = self.server.info().await?.superuser;
        let session = self.server.admin_session().await?;
        extensions::plan(&session, &self.server.settings().profile, wanted, superuser).await.map(|_| ())
    }

    async fn installed_extensions(&self, sandbox: &SandboxSpec) -> Result<Vec<(String, String)>, EngineError> {
        names::check(&self.server.settings().prefix, sandbox)?;
        let session = access::catalogue_session(&self.server, sandbox, CredentialAccess::ReadOnly).await?;
        let rows = session
            .query("SELECT extname::text, extversion FROM pg_catalog.pg_extension ORDER BY 1", &[])
            .await
            .map_err(refused("list the sandbox's extensions", &self.server.settings().profile))?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    async fn catalogue(&self, sandbox: &SandboxSpec) -> Result<CatalogueSession, EngineError> {
        names::check(&self.server.settings().prefix, sandbox)?;
        CatalogueSession::open(&self.server, sandbox).await
    }

    async fn schema(
        &self,
        session: &mut CatalogueSession,
        sandbox: &SandboxSpec,
        filter: &SchemaFilter,
    ) -> Result<Schema, EngineError> {
        names::check(&self.server.settings().prefix, sandbox)?;
        catalog::read(session, &self.server.settings().profile, sandbox, filter).await
    }

    fn connection(&self, sandbox: &SandboxSpec, access: CredentialAccess) -> ConnectionInfo {
        let (host, port, tls) = match &self.server.settings().source {
            ServerSource::Managed(settings) => {
                let port = self.server.managed().and_then(|cluster| cluster.last_port());
                (Host::Tcp("127.0.0.1".to_owned()), port.unwrap_or(settings.port_first), TlsMode::Disable)
            }
            ServerSource::External(url) => (url.endpoint.host.clone(), url.endpoint.port, url.endpoint.tls),
        };
        let (host, mut parameters) = match host {
            // Libpq's own default is not written: other drivers mean something else by the word.
            Host::Tcp(host) if tls == TlsMode::Prefer => (host, Vec::new()),
            Host::Tcp(host) => (host, vec![("sslmode".to_owned(), ssl_mode(tls).to_owned())]),
            Host::Unix(directory) => (directory.display().to_string(), Vec::new()),
        };
        if let ServerSource::External(url) = &self.server.settings().source
            && let Some(ca_file) = &url.endpoint.ca_file
        {
            parameters.push(("sslrootcert".to_owned(), ca_file.display().to_string()));
        }
        if let ServerSource::External(url) = &self.server.settings().source
            && url.endpoint.binding != ChannelBinding::Prefer
        {
            parameters.push(("channel_binding".to_owned(), url.endpoint.binding.as_str().to_owned()));
        }
        ConnectionInfo {
            host,
            port,
            database: sandbox.names.database.clone(),
            user: access::credentials(sandbox, access).user,
            parameters,
        }
    }

    async fn session(&self, sandbox: &SandboxSpec, access: CredentialAccess) -> Result<SandboxSession, EngineError> {
        names::check(&self.server.settings().prefix, sandbox)?;
        access::caller_session(&self.server, sandbox, access).await
    }

    async fn restore_reads(&self, sandbox: &SandboxSpec, within: Duration) -> Result<bool, EngineError> {
        names::check(&self.server.settings().prefix, sandbox)?;
        access::restore_reads(&self.server, sandbox, within).await
    }

    async fn standing(&self) -> Result<Standing, EngineError> {
        let Some(cluster) = self.server.managed() else { return Ok(Standing::Runs) };
        cluster.standing().await.map_err(|error| EngineError::Known(Box::new(error.into())))
    }

    async fn identity(&self) -> Result<Option<String>, EngineError> {
        let session = self.server.admin_session().await?;
        // A server made as a copy of another has its identifier, and was started at another time.
        let sql = "SELECT (SELECT system_identifier FROM pg_catalog.pg_control_system())::text \
                   || ' ' || pg_catalog.date_part('epoch', pg_catalog.pg_postmaster_start_time())::text";
        let failed = refused("say which server it is", &self.server.settings().profile);
        let row = session.query_one(sql, &[]).await.map_err(failed)?;
        Ok(row.get(0))
    }

    async fn health(&self) -> Vec<Check> {
        health::health(&self.server).await
    }
}

/// Returns libpq's word.
const fn ssl_mode(tls: TlsMode) -> &'static str {
    match tls {
        TlsMode::Disable => "disable",
        TlsMode::Prefer => "prefer",
        TlsMode::Require => "require",
        TlsMode::VerifyCa => "verify-ca",
        TlsMode::VerifyFull => "verify-full",
    }
}
