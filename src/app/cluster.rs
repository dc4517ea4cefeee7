//! What an operator does with the managed cluster, on the program's own account.

use super::App;
use crate::admission::SystemReason;
use crate::engine::postgres::{ClusterStatus, Installation, ManagedCluster, discover, install};
use crate::model::{Code, Failure, Progress};

impl App {
    /// Starts the cluster, making it first if need be. Returns a line that says where it is.
    ///
    /// # Errors
    /// Fails if no profile is managed, no server is installed, or it does not come up.
    pub async fn start_cluster(&self, progress: &dyn Progress) -> Result<String, Failure> {
        let cluster = self.cluster()?;
        let status = self
            .on_own_account(SystemReason::LocalCluster, async |_permit| {
                progress.report(0, 1, "starting the managed cluster");
                let status = cluster.start().await?;
                progress.report(1, 1, "the managed cluster runs");
                Ok(status)
            })
            .await?;
        Ok(described(&status))
    }

    /// Stops the cluster. Returns whether it ran.
    ///
    /// # Errors
    /// Fails if no profile is managed, or the server does not go down.
    pub async fn stop_cluster(&self) -> Result<bool, Failure> {
        let cluster = self.cluster()?;
        self.on_own_account(SystemReason::LocalCluster, async |_permit| Ok(cluster.stop().await?)).await
    }

    /// Says where the cluster runs, if it does. Looks; starts nothing.
    ///
    /// # Errors
    /// Fails if no profile is managed, or the state directory is somebody else's.
    pub async fn cluster_status(&self) -> Result<Option<String>, Failure> {
        let status = self.cluster()?.status().await?;
        Ok(status.running.then(|| described(&status)))
    }

    /// Makes sure that a Postgres server is installed; with `install`, through the system's package manager. Returns
    /// lines that say what was found or done.
    ///
    /// # Errors
    /// Fails if none is there and none could be, or may be, installed.
    pub async fn ensure_postgres(&self, may_install: bool, progress: &dyn Progress) -> Result<Vec<String>, Failure> {
        let cluster = self.cluster()?;
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

    fn cluster(&self) -> Result<&ManagedCluster, Failure> {
        self.servers.iter().find_map(|server| server.managed()).ok_or_else(|| {
            Failure::new(Code::LocalPostgresUnavailable, "no profile of this configuration is managed")
                .hint("leave `PGSANDBOX_CONFIG` and `PGSANDBOX_ADMIN_DATABASE_URL` unset, or add a profile with `managedLocal`")
        })
    }
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
