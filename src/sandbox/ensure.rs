//! Makes sure that a Postgres server of a version is there and runs.

use std::sync::Arc;

use super::core::require;
use super::find::Version;
use super::{Core, Profile};
use crate::admission::{Grant, Permit};
use crate::engine::Standing;
use crate::model::{Code, Failure, Impact, Progress};

/// What is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// A profile's name.
    pub profile: Option<String>,
    /// A Postgres version; with a patch level, its major is meant.
    pub postgres_version: Option<String>,
    /// Whether a version that is missing on this machine is installed.
    pub install: bool,
}

/// What was done, and what runs where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ensured {
    /// The profile whose server was made sure of.
    pub profile: String,
    /// Its server's major version.
    pub major: u16,
    /// Whether it had to be started.
    pub started: bool,
    /// The version that had to be installed.
    pub installed: Option<String>,
    /// Every profile's server.
    pub servers: Vec<ServerStatus>,
    /// Versions of the servers installed on this machine, the newest first.
    pub versions: Vec<String>,
}

/// What is known of one profile's server without starting it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerStatus {
    /// The profile.
    pub profile: String,
    /// Whether this program runs the server.
    pub managed: bool,
    /// The server's major version; of a cluster that is not there yet, the one that it would have.
    pub major: Option<u16>,
    /// What there is of it; not known where it does not answer. A server of others is taken to run.
    pub standing: Option<Standing>,
}

/// A profile that fits, and what it lacks.
struct Chosen {
    profile: Arc<Profile>,
    lacks: Lacks,
}

/// What has to be installed first.
#[derive(Clone, Copy)]
enum Lacks {
    Nothing,
    /// A server of this major, or of the one that the package manager prefers.
    Server(Option<u16>),
}

impl Core {
    /// Makes sure that the server of a profile, or of a version, runs; installs it first where that was asked for.
    ///
    /// # Errors
    /// `unknown_profile`, `version_mismatch`, `postgres_version_unavailable`, `local_postgres_install_failed`, or the server
    /// does not come up.
    pub async fn ensure<T>(
        &self,
        permit: &Permit<T>,
        wanted: &Wanted,
        progress: Arc<dyn Progress>,
    ) -> Result<Ensured, Failure> {
        let course = permit.grant().course.clone();
        let chosen = async {
            require(permit, Impact::ReachesOut, None)?;
            self.choose(wanted).await
        };
        let Chosen { profile, lacks } = course.refusing(chosen.await)?;
        course.acts();
        let core = self.clone();
        self.detached(async move {
            let installed = match lacks {
                Lacks::Server(major) => Some(profile.engine.install(major, &*progress).await?),
                Lacks::Nothing => None,
            };
            let started = profile.managed() && profile.standing().await? != Standing::Runs;
            profile.open().await?;
            let major = profile.known_major();
            let major =
                major.ok_or_else(|| Failure::new(Code::Internal, "an open profile does not know its server"))?;
            let versions = profile.engine.versions_installed().await.into_iter().map(|(_, version)| version).collect();
            let servers = core.servers().await;
            Ok(Ensured { profile: profile.name().to_owned(), major, started, installed, servers, versions })
        })
        .await
    }

    /// Says what [`Core::ensure`] would refuse with before it installs or starts anything.
    ///
    /// # Errors
    /// As [`Core::ensure`].
    pub async fn foresee_ensure(&self, _grant: &Grant, wanted: &Wanted) -> Result<(), Failure> {
        self.choose(wanted).await.map(drop)
    }

    /// Returns what is known of each profile's server. Looks, and starts nothing.
    async fn servers(&self) -> Vec<ServerStatus> {
        let mut servers = Vec::new();
        for profile in self.profiles() {
            servers.push(ServerStatus {
                profile: profile.name().to_owned(),
                managed: profile.managed(),
                major: profile.engine.major_ahead().await,
                standing: profile.standing().await.ok(),
            });
        }
        servers
    }

    /// Finds the profile that is meant: a managed one before others, the default before all.
    async fn choose(&self, wanted: &Wanted) -> Result<Chosen, Failure> {
        let version = Version::parse(wanted.postgres_version.as_deref())?;
        if let Some(name) = &wanted.profile {
            let profile = self.profile(name)?;
            return match version {
                Version::Major(major) => match self.fits(&profile, major).await {
                    Some(lacks) => check_lack(Chosen { profile, lacks }, wanted.install),
                    None => Err(mismatch(&profile, profile.engine.major_ahead().await, major)),
                },
                Version::Any => self.as_it_is(profile, wanted.install).await,
            };
        }
        let default = self.profile(self.default_profile())?;
        let others = self.profiles().iter().filter(|profile| profile.name() != default.name()).map(Arc::clone);
        let (mut ordered, external): (Vec<_>, Vec<_>) =
            std::iter::once(default.clone()).chain(others).partition(|profile| profile.managed());
        ordered.extend(external);
        let Version::Major(major) = version else {
            return match ordered.into_iter().next() {
                Some(profile) => self.as_it_is(profile, wanted.install).await,
                None => self.as_it_is(default, wanted.install).await,
            };
        };
        let mut unmade = None;
        for profile in ordered {
            match self.fits(&profile, major).await {
                Some(Lacks::Nothing) => return Ok(Chosen { profile, lacks: Lacks::Nothing }),
                Some(lacks) => unmade = unmade.or(Some(Chosen { profile, lacks })),
                None => {}
            }
        }
        match unmade {
            Some(chosen) => check_lack(chosen, wanted.install),
            None => Err(self.no_such_version(major).hint(format!(
                "an operator can add a profile with `managedLocal: true` and `postgresVersion: {major}` to the configuration"
            ))),
        }
    }

    /// Returns whether a profile has a version, or would have it once what is returned is installed.
    async fn fits(&self, profile: &Profile, wanted: u64) -> Option<Lacks> {
        let wanted = u16::try_from(wanted).ok()?;
        let known = profile.known_major();
        if !profile.managed() {
            return match known {
                Some(major) => (major == wanted).then_some(Lacks::Nothing),
                // It has to be asked.
                None => {
                    let opened = self.open(profile).await;
                    opened.is_ok_and(|()| profile.known_major() == Some(wanted)).then_some(Lacks::Nothing)
                }
            };
        }
        let installed = profile.engine.versions_installed().await;
        let there = installed.iter().any(|(major, _)| *major == wanted);
        let would_be = match known {
            Some(major) => major == wanted,
            // A cluster that is not there yet is made of the newest server.
            None => installed.iter().all(|(major, _)| *major <= wanted),
        };
        would_be.then_some(if there { Lacks::Nothing } else { Lacks::Server(Some(wanted)) })
    }

    /// Takes a profile with whatever version it has.
    async fn as_it_is(&self, profile: Arc<Profile>, install: bool) -> Result<Chosen, Failure> {
        if !profile.managed() {
            return Ok(Chosen { profile, lacks: Lacks::Nothing });
        }
        let installed = profile.engine.versions_installed().await;
        let known = profile.known_major();
        let there = match known {
            Some(major) => installed.iter().any(|(there, _)| *there == major),
            None => !installed.is_empty(),
        };
        let lacks = if there { Lacks::Nothing } else { Lacks::Server(known) };
        check_lack(Chosen { profile, lacks }, install)
    }
}

/// Refuses what would have to be installed where that was not asked for.
fn check_lack(chosen: Chosen, install: bool) -> Result<Chosen, Failure> {
    let Lacks::Server(major) = chosen.lacks else { return Ok(chosen) };
    if install {
        return Ok(chosen);
    }
    let (what, code) = match major {
        Some(major) => (format!("Postgres {major}"), Code::PostgresVersionUnavailable),
        None => ("a Postgres server".to_owned(), Code::LocalPostgresUnavailable),
    };
    let text = format!("{what}, which profile `{}` needs, is not installed on this machine", chosen.profile.name());
    let which = major.map_or_else(String::new, |major| format!("_{major}"));
    let version = major.map_or_else(String::new, |major| format!("PGSANDBOX_POSTGRES_VERSION={major} "));
    let mut failure = Failure::new(code, text).hint(format!(
        "call again with `installMissing: true`, once `allow` of the policy `host-command` names \
         `[\"apt-get\", \"install\", \"--yes\", \"postgresql-*\"]`; or install it by hand with `{version}pgsandbox quickstart --yes`, or name \
         its programs with `PGSANDBOX_POSTGRES{which}_BIN_DIR`"
    )).naming(&["installMissing"]);
    let detail = failure.detail_mut();
    detail.requested_version = major.map(|major| major.to_string());
    detail.resolved_profile = Some(chosen.profile.name().to_owned());
    Err(failure)
}

fn mismatch(profile: &Profile, has: Option<u16>, wanted: u64) -> Failure {
    let has_text = has.map_or_else(|| "another Postgres".to_owned(), |major| format!("Postgres {major}"));
    let text = format!("profile `{}` has {has_text}, not {wanted}", profile.name());
    let mut failure = Failure::new(Code::VersionMismatch, text).hint("leave one of the two out");
    let detail = failure.detail_mut();
    detail.requested_version = Some(wanted.to_string());
    detail.resolved_profile = Some(profile.name().to_owned());
    detail.resolved_postgres_version = has.map(|major| major.to_string());
    failure
}
