//! Installs a Postgres server through the system's package manager, when somebody has asked for it.
//!
//! Debian's packages start a server of their own on port 5432 unless told otherwise, so they are told: before the
//! server's package comes, `createcluster.conf` says that no cluster is made, and afterwards it is as it was.
//! Nothing is installed without root's rights, and nobody is asked for a password. A package manager that takes too long
//! is left to itself, and so is `createcluster.conf` then.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::binaries::{BinarySettings, Installation, discover};
use super::user;
use crate::model::{Code, Failure, Progress};

/// How long one run of the package manager may take, its wait for another run's lock included.
const RUN_WAIT: Duration = Duration::from_secs(15 * 60);
/// Seconds that the package manager waits for another run of itself.
const LOCK_OPTION: &str = "DPkg::Lock::Timeout=300";
/// What keeps the server's package from making a cluster.
const NO_CLUSTER: &str = "create_main_cluster = false";
/// What the package manager says at its end is kept so far, in bytes.
const SAID_BYTES_MAX: usize = 600;
/// What the package manager gets of our environment: where programs and proxies are. What packages start may run for
/// long, and shows what it was started with.
const PASSED_ON: [&str; 9] =
    ["PATH", "HOME", "LANG", "TZ", "http_proxy", "https_proxy", "no_proxy", "HTTPS_PROXY", "NO_PROXY"];
/// Parts of the work, for progress.
const PARTS: u32 = 4;

/// Why Postgres could not be installed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InstallError {
    /// No package manager that is known.
    #[error("there is no `apt-get` on this machine; Postgres must be installed by hand")]
    NoPackageManager,
    /// Root's rights are missing.
    #[error("installing packages needs root's rights, which this process does not have")]
    NotRoot {
        /// What to run instead.
        command: String,
    },
    /// The archive has no such version.
    #[error("the package archive has no PostgreSQL{}", .0.map(|m| format!(" {m}")).unwrap_or_default())]
    NoPackage(Option<u16>),
    /// The package manager failed.
    #[error("`{command}` failed: {said}")]
    Failed {
        /// What was run.
        command: String,
        /// The end of what it said.
        said: String,
    },
    /// The package manager did not end in time, and still runs.
    #[error("`{command}` did not end within {} s, and still runs", within.as_secs())]
    Late {
        /// What was run.
        command: String,
        /// How long it was given.
        within: Duration,
        /// The packages' configuration, where it is not as it was: nothing may change under what still runs.
        changed: Option<PathBuf>,
    },
    /// The packages are there and the server is not.
    #[error("the packages were installed, and no server of that version was found afterwards")]
    NotFound,
}

impl InstallError {
    /// Returns what to do.
    pub fn remedy(&self) -> String {
        match self {
            Self::NoPackageManager | Self::NotFound => {
                "install PostgreSQL 13 to 18 and name its programs with `PGSANDBOX_POSTGRES_BIN_DIR`".to_owned()
            }
            Self::NotRoot { command } => format!("run this as root, then try again: {command}"),
            Self::NoPackage(_) => "ask for another version, or add the archive at apt.postgresql.org".to_owned(),
            Self::Failed { command, .. } => format!("see what `{command}` says when run by hand"),
            Self::Late { changed: None, .. } => "see what it waits for, let it end, and try again".to_owned(),
            Self::Late { changed: Some(conf), .. } => format!(
                "see what it waits for and let it end; then take `{NO_CLUSTER}` out of `{}` and try again",
                conf.display()
            ),
        }
    }
}

impl From<InstallError> for Failure {
    fn from(error: InstallError) -> Self {
        Self::new(Code::LocalPostgresInstallFailed, error.to_string()).hint(error.remedy())
    }
}

/// Installs a server of `major`, or of the version that the system's archive prefers, unless one is there.
///
/// # Errors
/// Says what to run by hand where root's rights are missing, and what the package manager said where it failed.
pub async fn install(
    major: Option<u16>,
    binaries: &BinarySettings,
    progress: &dyn Progress,
) -> Result<Installation, InstallError> {
    let wanted = |i: &Installation| major.is_none_or(|m| i.major == m);
    if let Some(found) = discover(binaries).await.into_iter().find(wanted) {
        return Ok(found);
    }
    let apt = Apt::of_this_machine();
    apt.install(major, progress).await?;
    discover(binaries).await.into_iter().find(wanted).ok_or(InstallError::NotFound)
}

/// Debian's package manager, and where its configuration lies.
struct Apt {
    get: PathBuf,
    cache: PathBuf,
    cluster_conf: PathBuf,
    sudo: Option<PathBuf>,
    run_wait: Duration,
}

impl Apt {
    fn of_this_machine() -> Self {
        Self {
            get: "/usr/bin/apt-get".into(),
            cache: "/usr/bin/apt-cache".into(),
            cluster_conf: "/etc/postgresql-common/createcluster.conf".into(),
            sudo: (!user::is_root()).then(|| "/usr/bin/sudo".into()),
            run_wait: RUN_WAIT,
        }
    }

    async fn install(&self, major: Option<u16>, progress: &dyn Progress) -> Result<(), InstallError> {
        if !self.get.is_file() {
            return Err(InstallError::NoPackageManager);
        }
        self.check_rights(major).await?;
        progress.report(0, PARTS, "reading the package archive's lists");
        self.get(&["update"]).await?;
        let package = self.package(major).await?;
        progress.report(1, PARTS, "installing postgresql-common");
        self.get(&["install", "postgresql-common"]).await?;
        let before = tokio::fs::read_to_string(&self.cluster_conf).await.unwrap_or_default();
        self.write_conf(&without_main_cluster(&before)).await?;
        progress.report(2, PARTS, &format!("installing {package}; no cluster is made on port 5432"));
        let installed = self.get(&["install", &package]).await;
        if let Err(InstallError::Late { command, within, .. }) = installed {
            // With its configuration put back, it would still make a cluster on port 5432.
            return Err(InstallError::Late { command, within, changed: Some(self.cluster_conf.clone()) });
        }
        progress.report(3, PARTS, "putting the packages' configuration back");
        let restored = self.write_conf(&before).await;
        installed.and(restored)?;
        progress.report(PARTS, PARTS, &format!("{package} is installed"));
        Ok(())
    }

    /// Finds out whether packages may be installed without asking anybody.
    async fn check_rights(&self, major: Option<u16>) -> Result<(), InstallError> {
        let Some(sudo) = &self.sudo else { return Ok(()) };
        if sudo.is_file() && run(sudo, ["-n", "true"], None, self.run_wait).await.is_ok() {
            return Ok(());
        }
        Err(InstallError::NotRoot { command: self.by_hand(major) })
    }

    /// Returns what does the same in a shell. It needs nothing of this program, which root may not have on its path.
    fn by_hand(&self, major: Option<u16>) -> String {
        let version = major.map(|m| format!("-{m}")).unwrap_or_default();
        format!(
            "sh -c 'apt-get update && apt-get install -y postgresql-common && \
             echo {NO_CLUSTER} >>{} && \
             apt-get install -y --no-install-recommends postgresql{version}'",
            self.cluster_conf.display()
        )
    }

    /// Returns the server's package.
    async fn package(&self, major: Option<u16>) -> Result<String, InstallError> {
        let missing = InstallError::NoPackage(major);
        let said = match major {
            Some(major) => run(&self.cache, ["show", &format!("postgresql-{major}")], None, self.run_wait).await,
            None => run(&self.cache, ["depends", "postgresql"], None, self.run_wait).await,
        };
        package_in(&said.map_err(|_| missing.clone())?).ok_or(missing)
    }

    async fn get(&self, arguments: &[&str]) -> Result<(), InstallError> {
        let get = self.get.display().to_string();
        let mut all = vec!["DEBIAN_FRONTEND=noninteractive", "LC_ALL=C.UTF-8", &get, "-q", "-y", "-o", LOCK_OPTION];
        all.extend(["-o", "Dpkg::Options::=--force-confold", "-o", "Dpkg::Use-Pty=0", "--no-install-recommends"]);
        all.extend(arguments);
        self.as_root(&all, None).await
    }

    async fn write_conf(&self, text: &str) -> Result<(), InstallError> {
        let path = self.cluster_conf.display().to_string();
        let script =
            "mkdir -p \"$(dirname \"$1\")\" && cat >\"$1.part\" && chmod 644 \"$1.part\" && mv \"$1.part\" \"$1\"";
        self.as_root(&["/bin/sh", "-c", script, "sh", &path], Some(text.as_bytes())).await
    }

    async fn as_root(&self, arguments: &[&str], input: Option<&[u8]>) -> Result<(), InstallError> {
        let done = match &self.sudo {
            Some(sudo) => run(sudo, ["-n", "/usr/bin/env"].iter().chain(arguments), input, self.run_wait).await,
            None => run(Path::new("/usr/bin/env"), arguments, input, self.run_wait).await,
        };
        done.map(drop)
    }
}

/// Runs a program to its end and returns what it said. It is not ended with us, nor when it takes too long:
/// half-installed packages help nobody.
async fn run<A: AsRef<OsStr>>(
    program: &Path,
    arguments: impl IntoIterator<Item = A>,
    input: Option<&[u8]>,
    within: Duration,
) -> Result<String, InstallError> {
    let mut command = Command::new(program);
    let passed_on = PASSED_ON.iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
    command.env_clear().envs(passed_on).args(arguments).current_dir("/");
    command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
    let shown: Vec<_> = command.as_std().get_args().map(|a| a.to_string_lossy().into_owned()).collect();
    let shown = format!("{} {}", program.display(), shown.join(" "));
    let work = async {
        let (mut out, mut err) = (nameless_file()?, nameless_file()?);
        let mut child = command.stdout(out.try_clone()?).stderr(err.try_clone()?).spawn()?;
        if let (Some(input), Some(mut stdin)) = (input, child.stdin.take()) {
            stdin.write_all(input).await?;
        }
        let status = child.wait().await?;
        Ok::<_, io::Error>((status.success(), text_of(&mut out)?, text_of(&mut err)?))
    };
    let Ok(done) = tokio::time::timeout(within, work).await else {
        return Err(InstallError::Late { command: shown, within, changed: None });
    };
    let failed = |said: &str| InstallError::Failed { command: shown.clone(), said: said.to_owned() };
    let (success, out, err) = done.map_err(|e| failed(&e.to_string()))?;
    if success {
        return Ok(out);
    }
    let said = if err.is_empty() { out } else { err };
    let start = said.len().saturating_sub(SAID_BYTES_MAX);
    let start = (start..said.len()).find(|i| said.is_char_boundary(*i)).unwrap_or_default();
    Err(failed(said.get(start..).unwrap_or_default().trim()))
}

/// Makes a file that only who holds it can reach. A program may write there when we are gone, which it could not to a
/// pipe: it would be ended by its next word.
fn nameless_file() -> io::Result<File> {
    let path = std::env::temp_dir().join(format!("pgsandbox-{}", uuid::Uuid::new_v4().simple()));
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}

/// Returns what was written to a file.
fn text_of(file: &mut File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Finds `postgresql-<major>` in what `apt-cache` says of it, or of the package that depends on it.
fn package_in(said: &str) -> Option<String> {
    let names =
        said.lines().filter_map(|line| line.trim().strip_prefix("Package: ").or(line.trim().strip_prefix("Depends: ")));
    names.map(str::trim).find_map(|name| {
        let major: u16 = name.strip_prefix("postgresql-")?.parse().ok()?;
        Some(format!("postgresql-{major}"))
    })
}

/// Returns `createcluster.conf` with the one line that matters changed.
fn without_main_cluster(conf: &str) -> String {
    let is_setting = |line: &&str| !line.trim_start().starts_with('#') && line.contains("create_main_cluster");
    let mut text: String = conf.lines().filter(|line| !is_setting(line)).flat_map(|line| [line, "\n"]).collect();
    text.push_str(NO_CLUSTER);
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Mutex;
    use std::time::Instant;

    use super::*;

    struct Heard(Mutex<Vec<String>>);

    impl Progress for Heard {
        fn report(&self, done: u32, total: u32, message: &str) {
            self.0.lock().unwrap().push(format!("{done}/{total} {message}"));
        }
    }

    /// A package manager that writes down what it was asked, and what the configuration said at that moment.
    fn fake(dir: &Path, fails_at: &str) -> Apt {
        let script = format!(
            "#!/bin/sh\nenv >{log}.environment\nfor a; do last=$a; done\necho \"$last $DEBIAN_FRONTEND $(grep -c '^create_main_cluster = false' {conf})\" \
             >>{log}\n[ \"$last\" != '{fails_at}' ] || {{ echo 'E: no luck' >&2; exit 100; }}\n",
            conf = dir.join("createcluster.conf").display(),
            log = dir.join("log").display(),
        );
        let cache = "#!/bin/sh\nprintf 'postgresql\\n  Depends: postgresql-15\\n'\n";
        for (name, text) in [("apt-get", script.as_str()), ("apt-cache", cache)] {
            fs::write(dir.join(name), text).unwrap();
            fs::set_permissions(dir.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::write(dir.join("createcluster.conf"), "#create_main_cluster = true\nssl = on\n").unwrap();
        Apt {
            get: dir.join("apt-get"),
            cache: dir.join("apt-cache"),
            cluster_conf: dir.join("createcluster.conf"),
            sudo: None,
            run_wait: RUN_WAIT,
        }
    }

    async fn check(fails_at: &str, succeeds: bool, expected: &[&str]) {
        let dir = tempfile::tempdir().unwrap();
        let apt = fake(dir.path(), fails_at);
        let heard = Heard(Mutex::default());
        let outcome = apt.install(None, &heard).await;
        assert_eq!(outcome.is_ok(), succeeds, "{outcome:?}");
        if let Err(error) = outcome {
            assert!(error.to_string().ends_with("E: no luck"), "{error}");
        }
        let log = fs::read_to_string(dir.path().join("log")).unwrap();
        assert_eq!(log.lines().collect::<Vec<_>>(), expected);
        let conf = fs::read_to_string(dir.path().join("createcluster.conf")).unwrap();
        assert_eq!(conf, "#create_main_cluster = true\nssl = on\n", "it is as it was");
        assert_eq!(heard.0.lock().unwrap().iter().any(|h| h.starts_with("4/4")), succeeds);
    }

    const UPDATE: &str = "update noninteractive 0";
    const COMMON: &str = "postgresql-common noninteractive 0";
    const SERVER: &str = "postgresql-15 noninteractive 1";

    #[tokio::test]
    async fn the_server_comes_only_when_no_cluster_is_made_with_it() {
        check("", true, &[UPDATE, COMMON, SERVER]).await;
    }

    #[tokio::test]
    async fn the_package_manager_sees_of_our_environment_what_it_needs() {
        let dir = tempfile::tempdir().unwrap();
        fake(dir.path(), "").install(None, &crate::model::Silent).await.unwrap();
        let seen = fs::read_to_string(dir.path().join("log.environment")).unwrap();
        let (path, cargo) = (format!("PATH={}", std::env::var("PATH").unwrap()), "CARGO_MANIFEST_DIR");
        assert!(seen.lines().any(|line| line == path), "{seen}");
        assert!(std::env::var_os(cargo).is_some() && !seen.contains(cargo), "{seen}");
    }

    #[tokio::test]
    async fn a_failure_is_told_and_leaves_the_configuration_as_it_was() {
        check("update", false, &[UPDATE]).await;
        check("postgresql-common", false, &[UPDATE, COMMON]).await;
        check("postgresql-15", false, &[UPDATE, COMMON, SERVER]).await;
    }

    #[tokio::test]
    async fn a_package_manager_that_hangs_is_left_to_itself_with_its_configuration() {
        /// Longer than a script takes on a busy machine, and much shorter than what hangs waits for.
        const SHORT: Duration = Duration::from_secs(2);
        assert_eq!(Apt::of_this_machine().run_wait, RUN_WAIT);
        let dir = tempfile::tempdir().unwrap();
        let apt = Apt { run_wait: SHORT, ..fake(dir.path(), "") };
        let (go, log) = (dir.path().join("go"), dir.path().join("log"));
        // It waits for a minute at most, and has something to say at its end.
        let hangs = format!(
            "[ \"$last\" != postgresql-15 ] || {{ n=0; while [ ! -e {go} ] && [ $n -lt 600 ]; do n=$((n+1)); sleep 0.1; \
             done; echo out && echo err >&2 && echo \"ended $(grep -c '^{NO_CLUSTER}' {conf})\" >>{log}; }}\n",
            go = go.display(),
            conf = apt.cluster_conf.display(),
            log = log.display(),
        );
        let script = fs::read_to_string(&apt.get).unwrap() + &hangs;
        fs::write(&apt.get, script).unwrap();
        let (begun, heard) = (Instant::now(), Heard(Mutex::default()));
        let error = apt.install(None, &heard).await.unwrap_err();
        let InstallError::Late { command, within: SHORT, changed: Some(conf) } = &error else { panic!("{error:?}") };
        assert!(command.ends_with("postgresql-15") && *conf == apt.cluster_conf, "{error:?}");
        assert!(error.remedy().contains(NO_CLUSTER), "{}", error.remedy());
        assert!(begun.elapsed() >= SHORT);
        assert!(!heard.0.lock().unwrap().iter().any(|heard| heard.starts_with("3/4")), "the configuration is put back");
        let said = || fs::read_to_string(&log).unwrap();
        assert!(!said().contains("ended"), "{}", said());
        // Nothing that it does later fails for want of us, and no cluster is made with it.
        fs::write(&go, "").unwrap();
        while !said().contains("ended") && begun.elapsed() < Duration::from_secs(50) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(said().ends_with("ended 1\n"), "{}", said());
        // The same one step earlier, where nothing was changed.
        fs::remove_file(&go).unwrap();
        let script = fs::read_to_string(&apt.get).unwrap().replace("!= postgresql-15", "!= update");
        fs::write(&apt.get, script).unwrap();
        let error = apt.install(None, &Heard(Mutex::default())).await.unwrap_err();
        fs::write(&go, "").unwrap();
        assert!(matches!(error, InstallError::Late { changed: None, .. }), "{error:?}");
    }

    #[tokio::test]
    async fn without_roots_rights_the_command_is_named_and_nothing_runs() {
        let dir = tempfile::tempdir().unwrap();
        let mut apt = fake(dir.path(), "");
        apt.sudo = Some(dir.path().join("no-sudo"));
        let error = apt.install(Some(16), &crate::model::Silent).await.unwrap_err();
        assert_eq!(
            error.remedy(),
            format!(
                "run this as root, then try again: sh -c 'apt-get update && apt-get install -y postgresql-common && \
                 echo create_main_cluster = false >>{} && apt-get install -y --no-install-recommends postgresql-16'",
                apt.cluster_conf.display()
            )
        );
        assert!(!dir.path().join("log").exists());
    }

    #[test]
    fn the_setting_is_replaced_wherever_it_stands() {
        assert_eq!(without_main_cluster(""), "create_main_cluster = false\n");
        let conf = "# create_main_cluster = true\ncreate_main_cluster = true\nssl = on\n";
        assert_eq!(without_main_cluster(conf), "# create_main_cluster = true\nssl = on\ncreate_main_cluster = false\n");
    }

    #[test]
    fn the_servers_package_is_found() {
        assert_eq!(
            package_in("postgresql\n  Depends: postgresql-15\n  Suggests: postgresql-doc\n").as_deref(),
            Some("postgresql-15")
        );
        assert_eq!(package_in("Package: postgresql-17\nVersion: 17.1\n").as_deref(), Some("postgresql-17"));
        assert_eq!(package_in("Package: postgresql-common\n"), None);
    }
}
