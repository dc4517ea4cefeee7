//! What an operator does with the managed cluster, on the program's own account.

use std::path::PathBuf;
use std::sync::Arc;

use super::{App, binaries, cluster_dir};
use crate::admission::SystemReason;
use crate::config::Config;
use crate::engine::postgres::{
    BinarySettings, ClusterStatus, Installation, ManagedCluster, ManagedSettings, PostgresServer, clusters_in,
    discover, install,
};
use crate::model::{Code, Failure, Progress};

/// A managed cluster as a person sees it.
#[derive(Clone, Debug)]
pub struct ClusterSeen {
    /// The profile it belongs to; `None` where no profile of this configuration leads to it.
    pub profile: Option<String>,
    /// Its major version, where it is known.
    pub major: Option<u16>,
    /// Whether it runs now.
    pub running: bool,
    /// Where it runs, or how it stands, in words.
    pub summary: String,
}

impl App {
    /// Starts the clusters of the profile, or of all, making them first if need be.
    ///
    /// # Errors
    /// Fails if no such profile is managed, no server is installed, or one does not come up.
    pub async fn start_clusters(
        &self,
        profile: Option<&str>,
        progress: &dyn Progress,
    ) -> Result<Vec<ClusterSeen>, Failure> {
        let clusters = self.clusters(profile)?;
        self.on_own_account(SystemReason::LocalCluster, async |_permit| {
            let mut seen = Vec::new();
            let count = u32::try_from(clusters.len()).unwrap_or(u32::MAX);
            for (done, (profile, cluster)) in (0u32..).zip(&clusters) {
                progress.report(done, count, "starting the managed cluster");
                let status = cluster.start().await?;
                seen.push(ClusterSeen {
                    profile: Some((*profile).to_owned()),
                    major: status.major,
                    running: true,
                    summary: described(&status),
                });
            }
            progress.report(count, count, "the managed cluster runs");
            Ok(seen)
        })
        .await
    }

    /// Stops the clusters of the profile, or all of the state directory. Returns those that are stopped, and what kept another
    /// from it: one that does not go down holds up none of the others.
    ///
    /// # Errors
    /// Fails if no such profile is managed and no cluster is there.
    pub async fn stop_clusters(
        &self,
        profile: Option<&str>,
    ) -> Result<(Vec<ClusterSeen>, Result<(), Failure>), Failure> {
        let others = self.besides(profile);
        let clusters = self.all_clusters(profile, &others)?;
        let mut seen = Vec::new();
        let outcome = self
            .on_own_account(SystemReason::LocalCluster, async |_permit| {
                let mut failed = Ok(());
                for (profile, cluster) in clusters {
                    let stopped = match cluster.stop().await {
                        Ok(true) => "stopped",
                        Ok(false) => "was not running",
                        Err(error) => {
                            failed = failed.and(Err(error.into()));
                            continue;
                        }
                    };
                    seen.push(ClusterSeen {
                        profile: profile.map(str::to_owned),
                        major: cluster.known_major(),
                        running: false,
                        summary: stopped.to_owned(),
                    });
                }
                failed
            })
            .await;
        Ok((seen, outcome))
    }

    /// Says which clusters run, and where: those of the profile, or all of the state directory. Looks; starts nothing.
    ///
    /// # Errors
    /// Fails if no such profile is managed and no cluster is there, or the state directory is somebody else's.
    pub async fn clusters_seen(&self, profile: Option<&str>) -> Result<Vec<ClusterSeen>, Failure> {
        let mut seen = Vec::new();
        let others = self.besides(profile);
        for (profile, cluster) in self.all_clusters(profile, &others)? {
            let status = cluster.status().await?;
            let summary = if status.running { described(&status) } else { "not running".to_owned() };
            let profile = profile.map(str::to_owned);
            seen.push(ClusterSeen { profile, major: status.major, running: status.running, summary });
        }
        Ok(seen)
    }

    /// Starts the cluster that calls without a profile go to. Returns a line that says where it is.
    ///
    /// # Errors
    /// Those of [`App::start_clusters`].
    pub async fn start_first_cluster(&self, progress: &dyn Progress) -> Result<String, Failure> {
        let (profile, _) = self.first_cluster()?;
        let seen = self.start_clusters(Some(profile), progress).await?;
        Ok(seen.into_iter().map(|one| one.summary).collect())
    }

    /// Makes sure that a Postgres server is installed; with `install`, through the system's package manager. Returns
    /// lines that say what was found or done.
    ///
    /// # Errors
    /// Fails if none is there and none could be, or may be, installed.
    pub async fn ensure_postgres(&self, may_install: bool, progress: &dyn Progress) -> Result<Vec<String>, Failure> {
        let (_, cluster) = self.first_cluster()?;
        let (settings, major) = (cluster.settings(), cluster.known_major());
        let installed = discover(&settings.binaries).await;
        if let Some(found) = installed.iter().find(|found| major.is_none_or(|major| found.major == major)) {
            return Ok(vec![format!("PostgreSQL {} is installed in `{}`", found.version, found.bin_dir.display())]);
        }
        if !may_install {
            return Err(not_installed(major, &installed));
        }
        self.on_own_account(SystemReason::Installation, async |_permit| {
            let found = install(major, &settings.binaries, progress).await?;
            Ok(vec![format!("PostgreSQL {} was installed; no server of the package's own was started", found.version)])
        })
        .await
    }

    /// Returns the clusters that no profile leads to, unless one profile's alone are meant.
    fn besides(&self, profile: Option<&str>) -> Vec<ManagedCluster> {
        if profile.is_some() { Vec::new() } else { besides(&self.servers, &self.config).clusters() }
    }

    /// Returns the managed clusters with their profiles' names, and those that have none; at least one.
    fn all_clusters<'a>(
        &'a self,
        profile: Option<&str>,
        others: &'a [ManagedCluster],
    ) -> Result<Vec<(Option<&'a str>, &'a ManagedCluster)>, Failure> {
        let others = others.iter().map(|cluster| (None, cluster));
        match self.clusters(profile) {
            Ok(named) => Ok(named.into_iter().map(|(name, cluster)| (Some(name), cluster)).chain(others).collect()),
            Err(error) if others.len() == 0 => Err(error),
            Err(_) => Ok(others.collect()),
        }
    }

    /// Returns the managed clusters with their profiles' names, at least one.
    fn clusters(&self, profile: Option<&str>) -> Result<Vec<(&str, &ManagedCluster)>, Failure> {
        let names = self.config.profiles.iter().map(|profile| profile.name.as_str());
        let managed: Vec<_> =
            names.zip(&self.servers).filter_map(|(name, server)| Some((name, server.managed()?))).collect();
        let Some(asked) = profile else {
            return if managed.is_empty() { Err(none_managed()) } else { Ok(managed) };
        };
        match managed.iter().find(|(name, _)| *name == asked) {
            Some(found) => Ok(vec![*found]),
            None => Err(Failure::new(
                Code::InvalidArguments,
                format!("profile `{}` is not one that is managed here", asked.escape_default()),
            )
            .allowed(managed.iter().map(|(name, _)| (*name).to_owned()))),
        }
    }

    /// Returns the default profile's cluster, or the first, with the profile's name.
    fn first_cluster(&self) -> Result<(&str, &ManagedCluster), Failure> {
        let clusters = self.clusters(None)?;
        let is_default = |(name, _): &&(&str, &ManagedCluster)| *name == self.config.default_profile;
        let chosen = clusters.iter().find(is_default).or_else(|| clusters.first());
        chosen.copied().ok_or_else(none_managed)
    }
}

/// The clusters of a state directory that no profile leads to: made for another configuration.
pub(super) struct Besides {
    home: PathBuf,
    binaries: BinarySettings,
    servers: Vec<Arc<PostgresServer>>,
}

/// Returns what looks for the clusters that none of `servers` is.
pub(super) fn besides(servers: &[Arc<PostgresServer>], config: &Config) -> Besides {
    let home = cluster_dir(config.home.path());
    Besides { home, binaries: binaries(&config.bin_dirs), servers: servers.to_vec() }
}

impl Besides {
    /// Returns those that are there now.
    pub(super) fn clusters(&self) -> Vec<ManagedCluster> {
        let known: Vec<u16> = self.servers.iter().filter_map(|server| server.managed()?.known_major()).collect();
        let majors = clusters_in(&self.home).into_iter().filter(|major| !known.contains(major));
        let settings = majors.map(|major| ManagedSettings {
            major: Some(major),
            binaries: self.binaries.clone(),
            ..ManagedSettings::new(&self.home)
        });
        settings.map(ManagedCluster::new).collect()
    }
}

fn none_managed() -> Failure {
    Failure::new(Code::LocalPostgresUnavailable, "no profile of this configuration is managed")
        .hint("leave `PGSANDBOX_CONFIG` and `PGSANDBOX_ADMIN_DATABASE_URL` unset, or add a profile with `managedLocal`")
}

/// Says which server is missing, and which are there.
fn not_installed(major: Option<u16>, installed: &[Installation]) -> Failure {
    let install = "say `--yes` to have it installed through the system's package manager";
    let Some(major) = major else {
        return Failure::new(Code::LocalPostgresUnavailable, "no Postgres server is installed").hint(install);
    };
    let there: Vec<String> =
        installed.iter().map(|found| format!("{} in `{}`", found.version, found.bin_dir.display())).collect();
    let there =
        if there.is_empty() { "no other server is".to_owned() } else { format!("there is {}", there.join(", ")) };
    let text = format!("PostgreSQL {major}, which the managed cluster needs, is not installed; {there}");
    let hint = format!("{install}, or name its programs with `PGSANDBOX_POSTGRES_{major}_BIN_DIR`");
    let mut failure = Failure::new(Code::LocalPostgresUnavailable, text)
        .hint(hint)
        .allowed(installed.iter().map(|found| found.major.to_string()));
    failure.detail_mut().requested_version = Some(major.to_string());
    failure
}

fn described(status: &ClusterStatus) -> String {
    let at = status.port.map(|port| format!(" on 127.0.0.1:{port}")).unwrap_or_default();
    let user = status.run_as.as_deref().map(|user| format!(", as the user `{user}`")).unwrap_or_default();
    let major = status.major.map(|major| format!("Postgres {major}")).unwrap_or_else(|| "the cluster".to_owned());
    format!("{major} runs{at}{user}")
}
