//! What an operator does with the managed cluster, on the program's own account.

use super::App;
use crate::admission::SystemReason;
use crate::engine::postgres::{ClusterStatus, Installation, ManagedCluster, discover, install};
use crate::model::{Code, Failure, Progress};

/// A managed cluster as a person sees it.
#[derive(Clone, Debug)]
pub struct ClusterSeen {
    /// The profile it belongs to.
    pub profile: String,
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
                seen.push(ClusterSeen { profile: (*profile).to_owned(), running: true, summary: described(&status) });
            }
            progress.report(count, count, "the managed cluster runs");
            Ok(seen)
        })
        .await
    }

    /// Stops the clusters of the profile, or of all.
    ///
    /// # Errors
    /// Fails if no such profile is managed, or a server does not go down.
    pub async fn stop_clusters(&self, profile: Option<&str>) -> Result<Vec<ClusterSeen>, Failure> {
        let clusters = self.clusters(profile)?;
        self.on_own_account(SystemReason::LocalCluster, async |_permit| {
            let mut seen = Vec::new();
            let mut failed = Ok(());
            for (profile, cluster) in clusters {
                // One that does not go down holds up none of the others.
                match cluster.stop().await {
                    Ok(ran) => seen.push(ClusterSeen {
                        profile: profile.to_owned(),
                        running: false,
                        summary: if ran { "stopped" } else { "was not running" }.to_owned(),
                    }),
                    Err(error) => failed = failed.and(Err(error)),
                }
            }
            failed?;
            Ok(seen)
        })
        .await
    }

    /// Says which clusters run, and where. Looks; starts nothing.
    ///
    /// # Errors
    /// Fails if no such profile is managed, or the state directory is somebody else's.
    pub async fn clusters_seen(&self, profile: Option<&str>) -> Result<Vec<ClusterSeen>, Failure> {
        let mut seen = Vec::new();
        for (profile, cluster) in self.clusters(profile)? {
            let status = cluster.status().await?;
            let summary = if status.running { described(&status) } else { "not running".to_owned() };
            seen.push(ClusterSeen { profile: profile.to_owned(), running: status.running, summary });
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
