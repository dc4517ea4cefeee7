//! Builds the program from its configuration; the only place that knows every part.
//!
//! Building starts no server and waits for no policy: the handshake is answered at once, and a call waits
//! for what it needs. The one right to act on the program's own account is taken here, and whatever is done with it
//! is audited like any request.

mod bundled;
mod cluster;
mod health;
mod policies;
mod policy_reload;
mod policy_source;
mod policy_watch;
mod servers;
mod upkeep;

pub use self::cluster::ClusterSeen;
pub use self::policies::PoliciesSeen;
pub use self::servers::{Answered, ServerSeen};

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::AbortHandle;

use self::health::{
    AuditHealth, ClustersHealth, CommandsHealth, PoliciesHealth, ProgramHealth, SourcesHealth, TelemetryHealth,
};
use self::policies::Policies;
use self::policy_reload::Reloader;
use self::policy_watch::Watch;
use self::servers::{Ask, Registration};
use self::upkeep::AuditedUpkeep;
use crate::admission::{FileBook, NoConsents, Permit, SystemAuthority, SystemReason};
use crate::audit::{Audit, Beside, Closing, Opening, Outcome};
use crate::command::{Commands, Further, Namespace, Settings as CommandSettings, Surroundings};
use crate::config::{
    BinDirs, CloneSourceConfig, CommandsConfig, Config, Environment, ProfileConfig, Source, UnusableSourceConfig, load,
};
use crate::engine::postgres::{
    BinarySettings, ManagedSettings, PostgresEngine, PostgresServer, PostgresSettings, PostgresUrl, ServerSource,
    UrlOrigin,
};
use crate::identity::local_user;
use crate::mcp::{Handler, RowsIn, serve_stdio};
use crate::model::{Code, Failure, Principal, RequestId, Timestamp, Transport, fault};
use crate::operation::Toolset;
use crate::sandbox::{
    Core, Parts as CoreParts, Profile, ProfileSettings, SourceSettings, UnusableSource, UpkeepAudit, UpkeptProfile,
};
use crate::secret::{KeyRing, KeySource, PasswordSource};
use crate::service::{Parts, Service};
use crate::sql::Reader;
use crate::store::ServerSessions;
use crate::telemetry::Telemetry;

/// The stack of the threads that requests run on: SQL is parsed and policies are evaluated inline.
pub(crate) const WORKER_STACK_BYTES: usize = 16 << 20;
/// How long what runs may take to end when the program does.
const DRAIN: Duration = Duration::from_secs(30);
/// Read SQL that is kept for repeats.
const READER_CACHE_BYTES: usize = 4 << 20;
/// How long finished spans may take to be sent when the program ends.
const FLUSH: Duration = Duration::from_secs(2);

/// How long the process is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// Until its client leaves: expired sandboxes are removed meanwhile.
    Server,
    /// For one command.
    OneShot,
}

/// The running program.
pub struct App {
    /// Answers calls.
    pub service: Arc<Service>,
    core: Core,
    config: Config,
    audit: Arc<Audit>,
    authority: SystemAuthority,
    policies: Arc<Policies>,
    /// Where other programs find this one, if it is a server.
    registration: Arc<Mutex<Option<Registration>>>,
    servers: Vec<Arc<PostgresServer>>,
}

/// Why the program does not start.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error(transparent)]
    Config(#[from] crate::config::ConfigError),
    #[error(transparent)]
    StateDir(#[from] crate::config::StateDirError),
    #[error(transparent)]
    Telemetry(#[from] crate::telemetry::TelemetryError),
    #[error(transparent)]
    Secret(#[from] crate::secret::SecretError),
    #[error(transparent)]
    Book(#[from] crate::admission::BookError),
    #[error(transparent)]
    Url(#[from] crate::engine::postgres::UrlError),
    #[error("{}", .0.message)]
    Failure(#[from] Failure),
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Only in builds for tests.
    #[error("{0}")]
    Faults(String),
    #[error("the program was built twice in one process")]
    Twice,
}

/// Why the program does not start: what happened, why, and what to do. Nobody but the person who starts it reads it.
#[derive(Debug)]
pub struct Refusal {
    /// All of it, for people.
    pub text: String,
    /// Each fault by itself, for programs.
    pub failures: Vec<Failure>,
}

impl From<StartError> for Refusal {
    fn from(error: StartError) -> Self {
        let mut text = error.to_string();
        let unusable = |what: String| Failure::new(Code::InvalidConfiguration, what);
        let mut failure: Failure = match error {
            StartError::StateDir(error) => error.into(),
            StartError::Secret(error) => error.into(),
            StartError::Book(error) => error.into(),
            StartError::Failure(failure) => failure,
            StartError::Config(error) => {
                let failures = error.faults.iter().map(|fault| unusable(fault.to_string())).collect();
                return Self { text, failures };
            }
            StartError::Telemetry(_) | StartError::Url(_) | StartError::Faults(_) => {
                return Self { failures: vec![unusable(text.clone())], text };
            }
            StartError::Io(_) | StartError::Twice => {
                return Self { failures: vec![Failure::new(Code::Internal, text.clone())], text };
            }
        };
        if let Some(cause) = failure.audit.take() {
            text.push_str(&format!(": {cause}"));
            failure.message.push_str(&format!(": {cause}"));
        }
        if let Some(hint) = &failure.hint {
            text.push_str(&format!("\nhint: {hint}"));
        }
        Self { text, failures: vec![failure] }
    }
}

/// Runs the program: reads the configuration, builds every part, does `work`, and ends in order.
///
/// # Errors
/// Fails if it does not start; then nothing was done.
pub fn main<F, W>(lifetime: Lifetime, work: F) -> Result<ExitCode, Refusal>
where
    F: FnOnce(Arc<App>) -> W,
    W: Future<Output = ExitCode>,
{
    Ok(start(lifetime, work)?)
}

fn start<F, W>(lifetime: Lifetime, work: F) -> Result<ExitCode, StartError>
where
    F: FnOnce(Arc<App>) -> W,
    W: Future<Output = ExitCode>,
{
    fault::check().map_err(StartError::Faults)?;
    let config = load(&Environment::of_process())?;
    config.home.open()?;
    let runtime = runtime()?;
    let telemetry = Telemetry::install(&config.telemetry, runtime.handle())?;
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let telemetry = Arc::new(telemetry);
    let code = runtime.block_on(async {
        let app = Arc::new(App::build(config, telemetry.clone()).await?);
        let audit = Arc::new(AuditedUpkeep::new(app.audit.clone()));
        let mut watching = None;
        if lifetime == Lifetime::Server {
            app.core.start_upkeep(app.authority.clone(), audit.clone())?;
            watching = Some(app.watch_policies()?);
        } else {
            app.core.watch_crowds()?;
        }
        let code = work(app.clone()).await;
        // Nobody is to ask what is about to end.
        watching.iter().for_each(AbortHandle::abort);
        drop(app.registration.lock().unwrap_or_else(PoisonError::into_inner).take());
        if lifetime == Lifetime::OneShot {
            let audit: Arc<dyn UpkeepAudit> = audit;
            let settled = async {
                app.core.measure_filled().await;
                app.core.settle(&app.authority, &audit).await;
            };
            // The call is answered; what is not done by then is done after the next.
            drop(tokio::time::timeout(fault::within(DRAIN), settled).await);
        }
        app.core.drain(fault::within(DRAIN)).await;
        telemetry.shutdown(FLUSH).await;
        Ok::<_, StartError>(code)
    })?;
    // A blocked read of standard input must not hold the end up.
    runtime.shutdown_background();
    Ok(code)
}

fn runtime() -> io::Result<Runtime> {
    Builder::new_multi_thread().enable_all().thread_stack_size(WORKER_STACK_BYTES).build()
}

impl App {
    async fn build(config: Config, telemetry: Arc<Telemetry>) -> Result<Self, StartError> {
        let authority = SystemAuthority::take().ok_or(StartError::Twice)?;
        let home = config.home.path().to_path_buf();
        // First of all, as they take longest.
        let policies = Policies::begin(config.policies.clone(), home.join("cache"));
        let source = config.key_command.clone().map(KeySource::Command);
        let keys = KeyRing::open(source.unwrap_or_else(|| KeySource::StateDirectory(home.clone()))).await?;
        let mut profiles = Vec::new();
        let mut servers = Vec::new();
        for profile in &config.profiles {
            let server = PostgresServer::new(postgres_settings(profile, &config, &home)?);
            profiles.push(profile_of(profile, &server)?);
            servers.push(server);
        }
        let default_profile = config.default_profile.clone();
        let core = Core::new(CoreParts { profiles, default_profile, keys })?;
        let unusable: Vec<_> = config.unusable_sources.iter().map(unusable_of).collect();
        core.set_sources(config.sources.iter().cloned().map(source_of).collect(), unusable.clone());
        core.keep_schemas_in(home.join("schemas"));
        core.keep_dumps_in(home.join("templates"));
        let audit = Audit::deferred(config.audit.clone());
        match audit.recover() {
            Ok(recovery) => recovery
                .faults
                .iter()
                .for_each(|fault| tracing::warn!(?fault, "an audit segment could not be recovered")),
            // Each request tries anew, and is refused as long as the log cannot be written.
            Err(error) => tracing::error!(%error, "the audit log cannot be used"),
        }
        let commands = Arc::new(commands(&config));
        let service = Service::new(Parts {
            core: core.clone(),
            reader: Reader::new(READER_CACHE_BYTES),
            policies: policies.watch(),
            book: Arc::new(FileBook::open(home.join("limits"))?),
            consents: Arc::new(NoConsents),
            audit: audit.clone(),
            health: vec![
                Arc::new(ProgramHealth::new(home.clone())),
                Arc::new(ClustersHealth::new(cluster::besides(&servers, &config))),
                Arc::new(PoliciesHealth::new(policies.clone())),
                Arc::new(AuditHealth::new(config.audit.dir.clone())),
                Arc::new(TelemetryHealth::new(telemetry)),
                Arc::new(CommandsHealth::new(commands.clone())),
                Arc::new(SourcesHealth::new(unusable)),
            ],
            commands,
        });
        let registration = Arc::default();
        Ok(Self { service, core, config, audit, authority, policies, registration, servers })
    }

    /// Returns who calls from this machine.
    pub fn principal(&self, transport: Transport) -> Principal {
        local_user(transport, self.config.owner.as_deref())
    }

    /// Returns where the audit log is.
    pub fn audit_dir(&self) -> &Path {
        &self.config.audit.dir
    }

    /// Serves MCP over standard input and output until the client leaves.
    pub async fn serve_stdio(&self, toolsets: &[Toolset], rows_in: &str) -> ExitCode {
        let rows_in = rows_in.parse().unwrap_or(RowsIn::Structured);
        let handler = Handler::new(self.service.clone(), self.principal(Transport::Stdio), toolsets, rows_in);
        match serve_stdio(self.service.clone(), handler).await {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                tracing::error!(%error, "the connection to the client failed");
                ExitCode::FAILURE
            }
        }
    }

    /// Returns the loaded policies, or everything that is wrong with them.
    ///
    /// # Errors
    /// One line for each fault.
    pub async fn policies(&self) -> Result<PoliciesSeen, Vec<String>> {
        self.policies.seen().await
    }

    /// Reloads the policies from now on whenever there is cause to: each server does.
    fn watch_policies(&self) -> io::Result<AbortHandle> {
        // Taken at once: one that comes before the policies are loaded counts, and ends nothing.
        let hangups = signal(SignalKind::hangup())?;
        let (policies, audit) = (self.policies.clone(), self.audit.clone());
        let reloader = Reloader { policies, audit, authority: self.authority.clone() };
        let (home, registration) = (self.config.home.path().to_owned(), self.registration.clone());
        Ok(tokio::spawn(Watch::new(home, reloader, registration).run(hangups)).abort_handle())
    }

    /// Returns the servers that run on the state directory, each with how its policies stand.
    pub fn servers_seen(&self) -> Vec<ServerSeen> {
        servers::running(self.config.home.path())
    }

    /// Has every server of the state directory read its policies once more.
    ///
    /// # Errors
    /// Fails if they cannot be asked.
    pub async fn reload_policies(&self) -> Result<Vec<Answered>, Failure> {
        self.ask_servers(Ask::Reload).await
    }

    /// Returns how the policies of every server of the state directory stand, and what their candidates came to.
    ///
    /// # Errors
    /// Fails if they cannot be asked.
    pub async fn ask_policies(&self) -> Result<Vec<Answered>, Failure> {
        self.ask_servers(Ask::Tell).await
    }

    async fn ask_servers(&self, ask: Ask) -> Result<Vec<Answered>, Failure> {
        let home = self.config.home.path().to_owned();
        let asked = tokio::task::spawn_blocking(move || servers::ask(&home, ask)).await;
        let asked = asked.map_err(io::Error::from).flatten();
        asked.map_err(|error| {
            let home = self.config.home.path().display();
            Failure::new(Code::InvalidConfiguration, format!("the servers of `{home}` cannot be asked: {error}"))
                .hint("each reads its policies again by SIGHUP, and by itself once a file is another")
        })
    }

    /// Makes a new key and seals every stored password with it. Returns how many sandboxes' were.
    ///
    /// # Errors
    /// Fails if the key cannot be made, or a profile cannot be reached; then it may be called again.
    pub async fn rotate_keys(&self) -> Result<u64, Failure> {
        self.on_own_account(SystemReason::KeyRotation, async |permit| self.core.rotate_keys(&permit).await).await
    }

    /// Removes whatever is past its time, whoever's it is, on every profile whose server runs, as a program does that stays.
    /// Each removal is audited by itself.
    pub async fn upkeep_once(&self) -> Vec<UpkeptProfile> {
        let audit: Arc<dyn UpkeepAudit> = Arc::new(AuditedUpkeep::new(self.audit.clone()));
        self.core.upkeep_once(&self.authority, &audit).await
    }

    /// Copies an exported template of the caller's to a file that is not there yet.
    ///
    /// # Errors
    /// `template_not_found`, it is not whole, or the file cannot be written.
    pub async fn save_exported(&self, name: &str, to: &Path) -> Result<(), Failure> {
        let owner = self.principal(Transport::Cli).owner;
        let work = async |permit| self.core.save_exported(&permit, &owner, name, to).await;
        self.on_own_account(SystemReason::TemplateTransport, work).await
    }

    /// Takes a file as an exported template of the caller's. Returns its name.
    ///
    /// # Errors
    /// It is none, there is one of that name, or there is no room.
    pub async fn add_exported(&self, from: &Path, name: Option<&str>) -> Result<String, Failure> {
        let owner = self.principal(Transport::Cli).owner;
        let work = async |permit| self.core.add_exported(&permit, &owner, from, name).await;
        self.on_own_account(SystemReason::TemplateTransport, work).await
    }

    /// Does `work` under a permit of the program's own, audited like a request.
    async fn on_own_account<T>(
        &self,
        reason: SystemReason,
        work: impl AsyncFnOnce(Permit<()>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let started = std::time::Instant::now();
        let permit = self.authority.permit(reason, RequestId::fresh(), Timestamp::now());
        let grant = permit.grant().clone();
        // The entry names the person at the keyboard, and the reason as what is done.
        let principal = self.principal(Transport::Cli);
        let opening = Opening {
            id: grant.request_id,
            principal: &principal,
            operation: reason.as_str(),
            now: grant.now,
            trace: None,
            frees: true,
        };
        let ticket = self.audit.open(opening)?;
        let outcome = work(permit).await;
        let closing = Closing {
            now: Timestamp::now(),
            elapsed: started.elapsed(),
            context: None,
            decision: None,
            enforced: None,
            target: None,
            beside: Beside::default(),
            outcome: match &outcome {
                Ok(_) => Outcome::Ok,
                Err(failure) => Outcome::Failed(failure),
            },
        };
        if let Err(error) = self.audit.close(ticket, closing) {
            tracing::error!(%error, "the audit entry could not be closed");
        }
        outcome
    }
}

/// Returns what runs commands of repositories: out of reach of everything of this program's own.
fn commands(config: &Config) -> Commands {
    let CommandsConfig { confinement, repositories, mut readable, writable, environment } = config.commands.clone();
    let mut hidden = vec![config.home.path().to_path_buf(), config.audit.dir.clone()];
    hidden.extend(config.policies.clone());
    hidden.extend(config.file.clone());
    let admin_urls = config.profiles.iter().filter_map(|profile| match &profile.source {
        Source::External { admin_url, .. } => PostgresUrl::parse(admin_url.expose(), UrlOrigin::Operator).ok(),
        Source::Managed { .. } => None,
    });
    hidden.extend(config.sources.iter().filter_map(|source| match &source.password {
        Some(PasswordSource::File(path)) => Some(path.clone()),
        Some(PasswordSource::Command(_)) | None => None,
    }));
    let admin_urls: Vec<PostgresUrl> = admin_urls.collect();
    // A sandbox's connection string names it, and it is no secret.
    readable.extend(admin_urls.iter().filter_map(|url| url.endpoint.ca_file.clone()));
    let commands = config.key_command.iter().chain(config.sources.iter().filter_map(|source| match &source.password {
        Some(PasswordSource::Command(command)) => Some(command),
        Some(PasswordSource::File(_)) | None => None,
    }));
    // What a command that prints a secret is told to read, as far as its arguments say.
    hidden.extend(commands.flat_map(|command| command.iter().skip(1)).map(PathBuf::from).filter(|path| {
        path.is_absolute() && path.parent().is_some_and(|parent| parent.parent().is_some()) && path.exists()
    }));
    let urls = admin_urls.into_iter().chain(config.sources.iter().map(|source| source.url.clone()));
    let passwords = urls.filter_map(|url| url.credentials.password.map(|password| password.expose().to_owned()));
    let secrets = passwords.collect();
    let told = Surroundings::of_process(&environment);
    let settings = CommandSettings {
        confinement,
        namespace: Namespace::WhenAvailable,
        further: Further { readable, writable },
        repositories,
        hidden,
        secrets,
        supervisor: PathBuf::from("/proc/self/exe"),
    };
    Commands::new(settings, told)
}

fn postgres_settings(profile: &ProfileConfig, config: &Config, home: &Path) -> Result<PostgresSettings, StartError> {
    // A managed cluster is made of the version that is asked for, an external server has to have it.
    let mut major = None;
    let source = match &profile.source {
        Source::Managed { postgres_version, bin_dirs } => {
            let mut managed = ManagedSettings::new(cluster_dir(home));
            managed.mark = Some(config.home.marker());
            managed.major = *postgres_version;
            managed.binaries = binaries(bin_dirs);
            ServerSource::Managed(managed)
        }
        Source::External { admin_url, postgres_version, .. } => {
            major = *postgres_version;
            ServerSource::External(PostgresUrl::parse(admin_url.expose(), UrlOrigin::Operator)?)
        }
    };
    let (tools, work_dir) = (binaries(&config.bin_dirs), home.join("copies"));
    Ok(PostgresSettings { major, tools, work_dir, ..PostgresSettings::new(&profile.name, &profile.prefix, source) })
}

fn binaries(dirs: &BinDirs) -> BinarySettings {
    BinarySettings { bin_dir: dirs.any.clone(), bin_dir_by_major: dirs.by_major.clone() }
}

fn source_of(config: CloneSourceConfig) -> SourceSettings {
    let CloneSourceConfig { name, url, password, production, profiles } = config;
    SourceSettings { name, url, password, production, profiles }
}

fn unusable_of(config: &UnusableSourceConfig) -> UnusableSource {
    UnusableSource { name: config.name.clone(), production: config.production, why: config.why() }
}

fn profile_of(config: &ProfileConfig, server: &Arc<PostgresServer>) -> Result<Profile, Failure> {
    let defaults = ProfileSettings::default();
    let settings = ProfileSettings {
        prefix: config.prefix.clone(),
        default_ttl_minutes: config.default_ttl_minutes,
        max_ttl_minutes: config.max_ttl_minutes,
        allowed_extensions: config.allowed_extensions.clone().unwrap_or(defaults.allowed_extensions),
        max_active_per_owner: config.max_active_databases_per_owner,
    };
    let engine = Arc::new(PostgresEngine::new(server.clone()));
    Profile::new(&config.name, settings, engine, Arc::new(ServerSessions::new(server.clone())))
}

/// Returns the folder of the managed cluster below a state directory.
pub fn cluster_dir(home: &Path) -> PathBuf {
    home.join("postgres")
}
