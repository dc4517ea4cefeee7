//! The Postgres cluster that this program runs itself.
//!
//! It listens on the loopback interface and on a socket in a private directory, wants a SCRAM password on
//! both, and runs as an ordinary user, whoever starts it. However many processes want it at once, one of
//! them starts it. Nothing here knows sandboxes.

mod ballast;
mod binaries;
mod conf;
mod crowd;
mod error;
mod greed;
mod home;
mod install;
mod log;
mod process;
mod relief;
mod room;
mod start;
mod tools;
mod user;
mod wakes;

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use tracing::Instrument;

pub use binaries::{BinarySettings, Installation, discover};
pub(super) use conf::{DIRECT_ROLE, WITHHELD_ROLE};
pub use error::ManagedError;
pub(super) use error::to_install;
pub use home::Home;
pub use install::{InstallError, install};
pub(super) use relief::{ROUNDS_MAX, Why};
pub(super) use tools::{DumpTools, dump_tools};
pub use user::RunAs;
pub(super) use user::{DEFAULT_USER, cluster_user, command};

use self::home::{Locked, check_own_dir, make_dir, read_own, write_private};
use self::process::Paths;
use super::admin::{AdminSession, CONNECTIONS_USED_UP, Chain, Login, LoginError};
use super::{ChannelBinding, Credentials, Endpoint, Host};
use crate::engine::Standing;
use crate::model::{Secret, TlsMode, fault};
use crate::telemetry::span;

/// The superuser of managed clusters.
pub const ADMIN_ROLE: &str = "pgsandbox_admin";
/// The database that the superuser administers from.
pub(super) const ADMIN_DATABASE: &str = "postgres";
/// Where the search for a free port begins: far from 5432, and from what systems hand out.
pub const PORT_FIRST: u16 = 65432;
/// How long one process waits for another that initialises or starts the cluster.
const LOCK_WAIT: Duration = Duration::from_secs(180);
/// How long a server that is there may take until it lets the admin in: recovery after a crash needs its time.
const READY_WAIT: Duration = Duration::from_secs(90);
/// How long one attempt to log in may take.
const LOGIN_WAIT: Duration = Duration::from_secs(10);
/// How long it is waited for a connection of those that are kept for the admin: logins of others that are only begun take one,
/// each for as long as its password takes to be checked.
const ADMITTED_WAIT: Duration = Duration::from_secs(5);
/// How often it is tried.
const ADMITTED_POLL: Duration = Duration::from_millis(20);
/// How often a server that is starting is asked again.
const READY_POLL: Duration = Duration::from_millis(40);

/// What a managed cluster is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagedSettings {
    /// The state directory; each major has a cluster below it.
    pub home: PathBuf,
    /// A file that is there as long as the directory's owner keeps it: once it is gone nothing is made or started.
    pub mark: Option<PathBuf>,
    /// The major version; without one that of the cluster that was made first, else of the newest server installed.
    pub major: Option<u16>,
    /// Where servers are looked for.
    pub binaries: BinarySettings,
    /// The first port to try.
    pub port_first: u16,
    /// Whom root runs the cluster as.
    pub run_as: String,
}

impl ManagedSettings {
    /// Sets up a cluster below `home` with the usual choices.
    pub fn new(home: impl Into<PathBuf>) -> Self {
        Self {
            home: home.into(),
            mark: None,
            major: None,
            binaries: BinarySettings::default(),
            port_first: PORT_FIRST,
            run_as: user::DEFAULT_USER.to_owned(),
        }
    }
}

/// A cluster of this program's, running or not, there or not.
#[derive(Debug)]
pub struct ManagedCluster {
    settings: ManagedSettings,
    last: Mutex<Option<Running>>,
    relief: tokio::sync::Mutex<relief::Watch>,
}

/// Returns the majors that have a cluster in a state directory, the newest first. Looks alone.
pub fn clusters_in(home: &Path) -> Vec<u16> {
    process::clusters(home).into_iter().map(|paths| paths.major).collect()
}

/// A cluster that answers.
#[derive(Clone, Debug)]
pub(super) struct Running {
    /// Its socket, for our own sessions: nobody else can stand in for it.
    pub(super) endpoint: Endpoint,
    /// Its port on 127.0.0.1, for everybody else.
    pub(super) port: u16,
    pub(super) admin: Credentials,
}

/// What can be seen of a cluster without starting it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterStatus {
    /// Its major version, where a cluster is there or a server to make one with.
    pub major: Option<u16>,
    /// Whether it was initialised.
    pub initialised: bool,
    /// Whether its server accepts connections.
    pub running: bool,
    /// Its port on 127.0.0.1, once it was started for the first time.
    pub port: Option<u16>,
    /// Its folder.
    pub directory: Option<PathBuf>,
    /// The server's process.
    pub pid: Option<u32>,
    /// The user it runs as where that is not ourselves.
    pub run_as: Option<String>,
}

impl ManagedCluster {
    /// Sets a cluster up. Nothing is made or started.
    pub fn new(settings: ManagedSettings) -> Self {
        Self { settings, last: Mutex::default(), relief: tokio::sync::Mutex::default() }
    }

    /// Returns what it was set up with.
    pub fn settings(&self) -> &ManagedSettings {
        &self.settings
    }

    /// Returns the port on 127.0.0.1 that the cluster was last seen on, without looking.
    pub(super) fn last_port(&self) -> Option<u16> {
        let last = self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        last.as_ref().map(|r| r.port).or_else(|| {
            let paths = self.existing()?;
            read_port(&paths).ok().flatten()
        })
    }

    /// Returns the major of the cluster, where that is known without looking further than the state directory.
    pub fn known_major(&self) -> Option<u16> {
        self.settings.major.or_else(|| self.existing().map(|p| p.major))
    }

    /// Initialises the cluster if it is not there. Returns whether it had to be.
    ///
    /// # Errors
    /// Fails when no server is installed, or the state directory cannot be used.
    pub async fn init(&self) -> Result<bool, ManagedError> {
        let (paths, installation) = self.prepare().await?;
        let _lock = Locked::take(&paths.lock(), LOCK_WAIT).await?;
        self.init_locked(&paths, &installation).await
    }

    /// Starts the cluster if it does not run, initialising it first if need be.
    ///
    /// # Errors
    /// Fails when no server is installed, or it does not come up; says what the server said.
    pub async fn start(&self) -> Result<ClusterStatus, ManagedError> {
        self.ensure_running().await?;
        self.status().await
    }

    /// Stops the cluster. Returns whether it ran.
    ///
    /// # Errors
    /// Fails when the server does not go down.
    pub async fn stop(&self) -> Result<bool, ManagedError> {
        if !Home::recognise(&self.settings.home)? {
            return Ok(false);
        }
        let Some(paths) = self.existing() else { return Ok(false) };
        let _lock = Locked::take(&paths.lock(), LOCK_WAIT).await?;
        self.remember(None);
        let Some(installation) = self.installation(paths.major).await else {
            // It runs without its programs being found, and goes without them.
            return process::stop_by_signal(&paths).await;
        };
        let user = user::cluster_user(&self.settings.run_as)?;
        process::stop(&paths, &installation, user.as_ref()).await
    }

    /// Says what is there and what runs. Starts nothing.
    ///
    /// # Errors
    /// Fails when the state directory is somebody else's.
    pub async fn status(&self) -> Result<ClusterStatus, ManagedError> {
        let run_as = user::is_root().then(|| self.settings.run_as.clone());
        let here = Home::recognise(&self.settings.home)?;
        let Some(paths) = self.existing().filter(|_| here) else {
            let major = match self.settings.major {
                Some(major) => Some(major),
                None => discover(&self.settings.binaries).await.first().map(|i| i.major),
            };
            return Ok(ClusterStatus {
                major,
                initialised: false,
                running: false,
                port: None,
                directory: None,
                pid: None,
                run_as,
            });
        };
        let pid = process::server_pid(&paths);
        let running = match self.address(&paths)? {
            Some(running) => self.log_in(&paths, &running).await.is_ok(),
            None => false,
        };
        Ok(ClusterStatus {
            major: Some(paths.major),
            initialised: true,
            running,
            port: read_port(&paths)?,
            directory: Some(paths.directory.clone()),
            pid,
            run_as,
        })
    }

    /// Says whether the cluster was made and whether it runs; fails if it runs and does not answer. Starts nothing.
    ///
    /// # Errors
    /// Fails when the state directory is somebody else's, or the server is silent or full.
    pub(super) async fn standing(&self) -> Result<Standing, ManagedError> {
        if !Home::recognise(&self.settings.home)? || self.existing().is_none() {
            return Ok(Standing::Unmade);
        }
        Ok(if self.running().await?.is_some() { Standing::Runs } else { Standing::Stopped })
    }

    /// Returns the folder whose free space matters to sandboxes, if it is there.
    pub(super) fn data_dir(&self) -> Option<PathBuf> {
        self.existing().map(|p| p.data())
    }

    /// Returns how the cluster is reached if it runs, and the session that found out; fails if it runs and does not
    /// answer. Starts nothing.
    async fn running(&self) -> Result<Option<(Running, AdminSession)>, ManagedError> {
        let Some(paths) = self.existing() else { return Ok(None) };
        let Some(running) = self.address(&paths)? else { return Ok(None) };
        let session = match self.log_in(&paths, &running).await {
            Ok(session) => session,
            Err(error) if error.is_silence() => return Err(silent(&paths)),
            Err(error) if error.sqlstate() == Some(CONNECTIONS_USED_UP) => {
                return Err(ManagedError::Full(paths.directory));
            }
            Err(_) => return Ok(None),
        };
        self.remember(Some(running.clone()));
        Ok(Some((running, session)))
    }

    /// Makes the cluster answer, whatever that takes. Returns with it the admin's session, in [`ADMIN_DATABASE`], that it
    /// answered to.
    pub(super) async fn ensure_running(&self) -> Result<(Running, AdminSession), ManagedError> {
        if Home::recognise(&self.settings.home)?
            && let Some(running) = self.running().await?
        {
            return Ok(running);
        }
        let (paths, installation) = self.prepare().await?;
        let _lock = Locked::take(&paths.lock(), LOCK_WAIT).await?;
        // another process may have been faster
        if let Some(running) = self.running().await? {
            return Ok(running);
        }
        self.init_locked(&paths, &installation).await?;
        let user = user::cluster_user(&self.settings.run_as)?;
        let bring_up = async || {
            let up = async {
                start::end_asked(&paths, &installation, user.as_ref()).await?;
                if !process::wait_for_other(&paths).await? {
                    process::clear_remains(&paths).await?;
                    start::start(&paths, &installation, user.as_ref(), self.settings.port_first).await?;
                }
                self.come_up(&paths).await
            };
            traced("start", paths.major, up).await
        };
        match bring_up().await {
            Err(error) if ballast::give_up_for_start(&paths) => {
                tracing::warn!(%error, "the disk is full: what was kept back of it is given up, and the server started once more");
                bring_up().await
            }
            started => {
                ballast::keep(&paths);
                started
            }
        }
    }

    /// Writes who may connect, where an earlier version wrote it. Returns whether it had to be; the server is to be told.
    pub(super) async fn renew_rules(&self) -> Result<bool, ManagedError> {
        let Some(paths) = self.existing() else { return Ok(false) };
        if process::has_rules(&paths)? {
            return Ok(false);
        }
        let _lock = Locked::take(&paths.lock(), LOCK_WAIT).await?;
        if process::has_rules(&paths)? {
            return Ok(false);
        }
        let user = user::cluster_user(&self.settings.run_as)?;
        process::write_rules(&paths, user.as_ref()).map(|()| true)
    }

    /// Returns how many bytes are free where the cluster's data is, if it is there. What has to be kept back again is not free.
    pub(super) fn disk_left(&self) -> Option<u64> {
        ballast::left(&self.existing()?)
    }

    /// Gives up what was kept back of the disk, if there is nothing else left. Returns whether that made room.
    pub(super) fn give_up_ballast(&self) -> bool {
        self.existing().is_some_and(|paths| ballast::give_up_beside(&paths))
    }

    /// Keeps a part of the disk back again, once there is room.
    pub(super) fn keep_ballast(&self) {
        if let Some(paths) = self.existing() {
            ballast::keep(&paths);
        }
    }

    /// Waits until the server lets the admin in.
    async fn come_up(&self, paths: &Paths) -> Result<(Running, AdminSession), ManagedError> {
        let running = self.address(paths)?.ok_or_else(|| ManagedError::Start("it has no port".to_owned()))?;
        let until = tokio::time::Instant::now() + fault::within(READY_WAIT);
        let session = loop {
            match self.log_in(paths, &running).await {
                Ok(session) => break session,
                Err(e) if e.is_silence() => return Err(silent(paths)),
                Err(e) if e.is_unreachable() && tokio::time::Instant::now() < until => {
                    // it came up and went down again, for want of disk for instance
                    if process::server_pid(paths).is_none() {
                        return Err(ManagedError::Start("it came up and ended again".to_owned()));
                    }
                    tokio::time::sleep(READY_POLL).await;
                }
                Err(e) => return Err(ManagedError::Start(e.to_string())),
            }
        };
        self.remember(Some(running.clone()));
        Ok((running, session))
    }

    /// Logs in, and makes sure that who answers serves this cluster's data: of a state directory that was copied or
    /// moved, another's server may answer in the place of its own.
    async fn log_in(&self, paths: &Paths, running: &Running) -> Result<AdminSession, LoginError> {
        let login = Login {
            endpoint: &running.endpoint,
            credentials: &running.admin,
            database: ADMIN_DATABASE,
            timeout: LOGIN_WAIT,
            answer: LOGIN_WAIT,
        };
        // Its data says of which major the server is.
        let mut rounds = 0;
        let session = loop {
            rounds += 1;
            match open_admitted(&login, paths.major).await {
                Err(error) if error.is_starved() && rounds < ROUNDS_MAX && self.relieve().await => {}
                opened => break opened?,
            }
        };
        self.hold_off(&session).await;
        check_serves(paths, &session).await?;
        Ok(session)
    }

    /// Claims the state directory and finds the server for its cluster.
    async fn prepare(&self) -> Result<(Paths, Installation), ManagedError> {
        if let Some(mark) = self.settings.mark.as_ref().filter(|mark| !mark.exists()) {
            return Err(ManagedError::HomeGone(mark.parent().unwrap_or(mark).to_owned()));
        }
        let major = self.settings.major.or_else(|| self.existing().map(|p| p.major));
        let installation = match major {
            Some(major) => self.installation(major).await,
            None => discover(&self.settings.binaries).await.into_iter().next(),
        };
        let Some(installation) = installation else {
            return Err(self.not_installed(major).await);
        };
        let user = user::cluster_user(&self.settings.run_as)?;
        let home = Home::claim(&self.settings.home)?;
        let paths = Paths::new(home.path(), installation.major);
        make_dir(&paths.directory)?;
        self.check_own(&paths)?;
        if let Some(user) = &user
            && let Some(closed) = user::first_closed(&paths.directory, user)
        {
            return Err(ManagedError::NotTraversable { directory: closed, user: user.name.clone() });
        }
        Ok((paths, installation))
    }

    async fn init_locked(&self, paths: &Paths, installation: &Installation) -> Result<bool, ManagedError> {
        let user = user::cluster_user(&self.settings.run_as)?;
        if paths.initialised() {
            process::check_version(paths, installation)?;
            process::remove_attempts(paths);
            process::note_first(&self.settings.home)?;
            return Ok(false);
        }
        traced("init", paths.major, process::init(paths, installation, user.as_ref())).await?;
        process::note_first(&self.settings.home)?;
        Ok(true)
    }

    async fn installation(&self, major: u16) -> Option<Installation> {
        discover(&self.settings.binaries).await.into_iter().find(|i| i.major == major)
    }

    async fn not_installed(&self, major: Option<u16>) -> ManagedError {
        let found = discover(&self.settings.binaries).await.iter().map(|i| i.major).collect();
        ManagedError::NotInstalled { major, found }
    }

    /// Returns the cluster that is there: the one of the wanted major, or the first that was made. One that comes to it
    /// later does not take its place.
    fn existing(&self) -> Option<Paths> {
        let home = &self.settings.home;
        match self.settings.major {
            Some(major) => Some(Paths::new(home, major)).filter(Paths::initialised),
            None => process::first(home),
        }
    }

    /// Returns how the cluster is reached if it was started before.
    fn address(&self, paths: &Paths) -> Result<Option<Running>, ManagedError> {
        self.check_own(paths)?;
        let (Some(port), Some(password)) = (read_port(paths)?, read_own(&paths.password(), true)?) else {
            return Ok(None);
        };
        let Some(directory) = process::known_socket_dir(paths)? else { return Ok(None) };
        let endpoint = Endpoint {
            host: Host::Unix(directory),
            port,
            tls: TlsMode::Disable,
            ca_file: None,
            address: None,
            binding: ChannelBinding::Prefer,
        };
        let admin = Credentials { user: ADMIN_ROLE.to_owned(), password: Some(Secret::new(password)) };
        Ok(Some(Running { endpoint, port, admin }))
    }

    /// Checks that nobody else can change what lies on the way to the cluster.
    fn check_own(&self, paths: &Paths) -> Result<(), ManagedError> {
        let ours = paths.directory.ancestors().take_while(|dir| dir.starts_with(&self.settings.home));
        ours.filter(|dir| dir.exists()).try_for_each(check_own_dir)
    }

    fn remember(&self, running: Option<Running>) {
        *self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = running;
    }
}

/// Logs in, waiting while the server has no connection left, not even of those that are kept for the admin.
async fn open_admitted(login: &Login<'_>, major: u16) -> Result<AdminSession, LoginError> {
    let until = tokio::time::Instant::now() + fault::within(ADMITTED_WAIT);
    loop {
        match AdminSession::open(login, Some(major)).await {
            Err(error) if error.is_crowded() && tokio::time::Instant::now() < until => {
                tokio::time::sleep(ADMITTED_POLL).await;
            }
            opened => return opened,
        }
    }
}

/// Fails if it is another cluster's server.
async fn check_serves(paths: &Paths, session: &AdminSession) -> Result<(), LoginError> {
    let lost = |error: tokio_postgres::Error| LoginError::Lost(Chain(&error).to_string());
    let row = session.query_one("SELECT pg_catalog.current_setting('data_directory')", &[]).await.map_err(lost)?;
    if process::serves(paths, Path::new(row.get::<_, &str>(0))) {
        return Ok(());
    }
    Err(LoginError::Lost("another cluster's server answers".to_owned()))
}

/// Shows in a trace what takes most of a request's time where the cluster is not there yet.
async fn traced<T>(
    act: &'static str,
    major: u16,
    doing: impl Future<Output = Result<T, ManagedError>>,
) -> Result<T, ManagedError> {
    let here = span::cluster(act, major);
    let outcome = doing.instrument(here.clone()).await;
    if let Err(error) = &outcome {
        span::failed_with(&here, error.code());
    }
    outcome
}

fn silent(paths: &Paths) -> ManagedError {
    ManagedError::Silent { directory: paths.directory.clone(), pid: process::server_pid(paths) }
}

fn read_port(paths: &Paths) -> Result<Option<u16>, ManagedError> {
    Ok(read_own(&paths.port(), false)?.and_then(|text| text.trim().parse().ok()))
}

fn write_port(path: &Path, port: u16) -> Result<(), ManagedError> {
    write_private(path, format!("{port}\n").as_bytes())
}
