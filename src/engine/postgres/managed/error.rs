//! What can go wrong with the managed cluster, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};

use crate::model::{Code, Failure};

/// Why the managed cluster cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManagedError {
    /// No server to run.
    #[error("{}", not_installed(*major, found))]
    NotInstalled {
        /// The major that is wanted.
        major: Option<u16>,
        /// The majors that are installed.
        found: Vec<u16>,
    },
    /// The state directory is not ours.
    #[error("`{}` is not empty and was not written by this program", .0.display())]
    ForeignHome(PathBuf),
    /// The state directory is of a newer program's.
    #[error("the state directory `{}` is of a format that this version does not know", .0.display())]
    HomeFormat(PathBuf),
    /// The state directory went away under the program.
    #[error("the state directory `{}` was removed while this program runs; nothing was made or started in it", .0.display())]
    HomeGone(PathBuf),
    /// The state directory must be said in full.
    #[error("the state directory `{}` is not an absolute path", .0.display())]
    RelativeHome(PathBuf),
    /// A directory is not as private as it must be.
    #[error("`{}` is not a private directory of the cluster's user", .0.display())]
    NotPrivate(PathBuf),
    /// Others could have put something else in the place of a file or directory of ours.
    #[error("`{}` {fault}", .path.display())]
    Exposed {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong with it.
        fault: String,
    },
    /// As root, there is no user to run the cluster as.
    #[error("Postgres does not run as root, and there is no user `{0}` to run it as")]
    NoUser(String),
    /// The cluster's user cannot reach the state directory.
    #[error("user `{user}`, who runs the cluster, cannot enter `{}`", .directory.display())]
    NotTraversable {
        /// The first directory that is closed.
        directory: PathBuf,
        /// The user.
        user: String,
    },
    /// The cluster is of another major than the programs.
    #[error("the cluster in `{}` is of PostgreSQL {data}, the programs are of {binaries}", .directory.display())]
    DataVersion {
        /// The cluster's folder.
        directory: PathBuf,
        /// What its data says.
        data: String,
        /// The programs' major.
        binaries: u16,
    },
    /// Others hold the lock for too long.
    #[error("another process has held `{}` for too long", .0.display())]
    Locked(PathBuf),
    /// Every port that was tried is taken.
    #[error("no free port was found from {0} upward")]
    NoPort(u16),
    /// The cluster could not be made.
    #[error("the cluster could not be initialised: {0}")]
    Init(String),
    /// The server does not come up.
    #[error("the cluster's server does not start: {0}")]
    Start(String),
    /// The server runs and does not answer: it was stopped by a signal, or its disk hangs.
    #[error("the server of the cluster in `{}` runs and does not answer", .directory.display())]
    Silent {
        /// The cluster's folder.
        directory: PathBuf,
        /// The server's process, where it can be told.
        pid: Option<u32>,
    },
    /// The server runs and has as many sessions as it may have.
    #[error("the server of the cluster in `{}` takes no more sessions", .0.display())]
    Full(PathBuf),
    /// The server does not go down.
    #[error("the cluster's server does not stop: {0}")]
    Stop(String),
    /// The system refused something.
    #[error("could not {action} `{}`: {detail}", .path.display())]
    Io {
        /// What was attempted.
        action: &'static str,
        /// To what.
        path: PathBuf,
        /// What the system said.
        detail: String,
    },
}

impl ManagedError {
    /// Returns a function that makes a system's error into this one.
    pub(super) fn io(action: &'static str, path: &Path) -> impl Fn(io::Error) -> Self {
        let path = path.to_owned();
        move |error| Self::Io { action, path: path.clone(), detail: error.to_string() }
    }

    /// Returns the code that the failure has.
    pub(super) fn code(&self) -> Code {
        match self {
            Self::NotInstalled { major: Some(_), .. } | Self::DataVersion { .. } => Code::PostgresVersionUnavailable,
            Self::Full(_) => Code::Busy,
            Self::ForeignHome(_) | Self::HomeFormat(_) | Self::RelativeHome(_) => Code::InvalidConfiguration,
            Self::NotInstalled { major: None, .. }
            | Self::HomeGone(_)
            | Self::NotPrivate(_)
            | Self::Exposed { .. }
            | Self::NoUser(_)
            | Self::NotTraversable { .. }
            | Self::Locked(_)
            | Self::NoPort(_)
            | Self::Init(_)
            | Self::Start(_)
            | Self::Stop(_)
            | Self::Silent { .. }
            | Self::Io { .. } => Code::LocalPostgresUnavailable,
        }
    }

    /// Returns what to do.
    pub fn remedy(&self) -> String {
        match self {
            Self::NotInstalled { major, .. } => to_install(*major),
            Self::HomeGone(_) => {
                "end this program and start it again, the client that runs it for instance; it makes the \
                 directory anew then"
                    .to_owned()
            }
            Self::ForeignHome(_) | Self::RelativeHome(_) => {
                "set `PGSANDBOX_HOME` to a directory that is absent or empty".to_owned()
            }
            Self::HomeFormat(_) => "use the version of pgsandbox that wrote it, or another `PGSANDBOX_HOME`".to_owned(),
            Self::NotPrivate(path) => format!("move `{}` away and try again", path.display()),
            Self::Exposed { path, .. } => {
                format!(
                    "see who has changed it; then make `{}` the program's user's own again, closed to others",
                    path.display()
                )
            }
            Self::NoUser(user) => {
                format!("make the user with `adduser --system --group {user}`, or do not run as root")
            }
            Self::NotTraversable { directory, .. } => format!(
                "set `PGSANDBOX_HOME` to a directory outside of `{}`, below `/var/lib` for instance",
                directory.display()
            ),
            Self::DataVersion { data, .. } => {
                format!("install PostgreSQL {data}, or name it with `PGSANDBOX_POSTGRES_{data}_BIN_DIR`")
            }
            Self::Locked(_) => "see which pgsandbox process starts or stops the cluster, and try again".to_owned(),
            Self::NoPort(_) => "free a port on 127.0.0.1".to_owned(),
            Self::Init(_) | Self::Start(_) | Self::Stop(_) => {
                "mend what it says, and see `pgsandbox doctor`".to_owned()
            }
            Self::Full(_) => "close sessions that are not needed, then call again".to_owned(),
            Self::Silent { pid, .. } => {
                let process = pid.map(|pid| format!(" with process {pid}")).unwrap_or_default();
                format!("call again later; if it stays so, see what is wrong{process} and the machine's disk")
            }
            Self::Io { .. } => "see that the state directory can be written and its disk is not full".to_owned(),
        }
    }
}

impl From<ManagedError> for Failure {
    fn from(error: ManagedError) -> Self {
        Self::new(error.code(), error.to_string()).hint(error.remedy())
    }
}

/// Says how a server is had, of this major or of any.
pub(in crate::engine::postgres) fn to_install(major: Option<u16>) -> String {
    match major {
        Some(major) => format!(
            "install PostgreSQL {major} with `PGSANDBOX_POSTGRES_VERSION={major} pgsandbox quickstart --yes`; or with \
             `pgsandbox ensure-postgres --postgres-version {major} --install-missing`, once `allow` of the policy `host-command` \
             names `[\"apt-get\", \"install\", \"--yes\", \"postgresql-*\"]`; or name its programs with \
             `PGSANDBOX_POSTGRES_{major}_BIN_DIR`"
        ),
        None => "install a server with `pgsandbox quickstart --yes`, or name one with `PGSANDBOX_POSTGRES_BIN_DIR`"
            .to_owned(),
    }
}

fn not_installed(major: Option<u16>, found: &[u16]) -> String {
    let found: Vec<String> = found.iter().map(u16::to_string).collect();
    match (major, found.is_empty()) {
        (None, _) => "no Postgres server is installed on this machine".to_owned(),
        (Some(major), true) => format!("PostgreSQL {major} is not installed on this machine, nor is any other"),
        (Some(major), false) => {
            format!("PostgreSQL {major} is not installed on this machine; installed are {}", found.join(", "))
        }
    }
}
