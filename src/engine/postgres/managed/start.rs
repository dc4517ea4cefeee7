//! Starts the server of a managed cluster, and has it say why it does not come up.
//!
//! Whoever calls holds the cluster's lock. What a server says is heard until it is there, and by nobody from then on: what it
//! writes past its log, of a statement for which there is no memory for instance, goes nowhere. One whose log is open has no
//! statement to say: it admits nobody.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};

use super::binaries::Installation;
use super::conf::Log;
use super::home::write_private;
use super::process::{PG_CTL_WAIT_SECONDS, Paths, majors, run_start, socket_dir, stop, write_rules};
use super::user::{self, RunAs};
use super::{ManagedError, conf, log, read_port, write_port};

/// How many ports are tried.
const PORTS_TRIED_MAX: u16 = 100;
/// The rules of a server that is to say why it does not start.
const CLOSED_RULES: &str = "pgsandbox.closed.conf";

/// Starts the server on the port it had, or on another if that is taken.
pub(super) async fn start(
    paths: &Paths,
    installation: &Installation,
    user: Option<&RunAs>,
    port_first: u16,
) -> Result<(), ManagedError> {
    user::make_private_dir(&paths.log_dir(), user)?;
    let socket_dir = socket_dir(paths, user)?;
    let remembered = read_port(paths)?;
    let ports = ports(paths, remembered, port_first);
    log::remove(paths, user);
    for port in ports {
        if !is_free(port) {
            continue;
        }
        let configure = |log: Log<'_>| {
            let conf = conf::postgresql_conf(port, &socket_dir, paths.major, log);
            user::write_as(&paths.data().join("postgresql.conf"), conf.as_bytes(), user)
        };
        configure(Log::WhileItStarts)?;
        write_rules(paths, user)?;
        write_private(&paths.socket_dir_file(), socket_dir.display().to_string().as_bytes())?;
        write_port(&paths.port(), port)?;
        if let Some(before) = remembered.filter(|before| *before != port) {
            let major = paths.major;
            tracing::warn!(
                before,
                port,
                "port {before} is taken by another program, so Postgres {major} has port {port} from now on; URLs with the old one \
                 lead elsewhere, and `get_connection_string` gives those with the new one"
            );
        }
        let Some(mut said) = attempt(paths, installation, user).await? else { return Ok(()) };
        // somebody took the port between the look and the start
        if !is_free(port) {
            continue;
        }
        if said.is_empty() {
            // It failed behind the point from which it says nothing.
            let asked = ask(paths, installation, user, &configure).await;
            configure(Log::WhileItStarts)?;
            match asked? {
                Some(why) => said = why,
                // What was in its way is gone.
                None => match attempt(paths, installation, user).await? {
                    None => return Ok(()),
                    Some(why) => said = why,
                },
            }
        }
        return Err(ManagedError::Start(if said.is_empty() { "it does not say why".to_owned() } else { said }));
    }
    Err(ManagedError::NoPort(port_first))
}

/// Starts the server once more with its log open, to say why it does not come up, and ends it if it does: nobody was let in.
/// Returns what it said.
async fn ask(
    paths: &Paths,
    installation: &Installation,
    user: Option<&RunAs>,
    configure: &impl Fn(Log<'_>) -> Result<(), ManagedError>,
) -> Result<Option<String>, ManagedError> {
    let closed = closed_rules(paths);
    user::write_as(&closed, conf::closed_hba().as_bytes(), user)?;
    configure(Log::Always(&closed))?;
    let said = attempt(paths, installation, user).await?;
    end_asked(paths, installation, user).await?;
    Ok(said)
}

/// Ends a server that was started to say why it did not come up. Whoever started it may have been ended before it: none is used
/// as long as the file with its rules is there, and that goes behind it.
pub(super) async fn end_asked(
    paths: &Paths,
    installation: &Installation,
    user: Option<&RunAs>,
) -> Result<(), ManagedError> {
    let closed = closed_rules(paths);
    if fs::symlink_metadata(&closed).is_err() {
        return Ok(());
    }
    stop(paths, installation, user).await?;
    fs::remove_file(&closed).map_err(ManagedError::io("remove", &closed))
}

fn closed_rules(paths: &Paths) -> PathBuf {
    paths.data().join(CLOSED_RULES)
}

/// Returns the ports to try: the one that the cluster had, then others, but none that another cluster of the state directory
/// comes back to, where what was given out of that one would lead to this one.
fn ports(paths: &Paths, remembered: Option<u16>, port_first: u16) -> Vec<u16> {
    let home = paths.directory.ancestors().nth(2).unwrap_or(&paths.directory);
    let others = majors(home).into_iter().filter(|major| *major != paths.major).map(|major| Paths::new(home, major));
    // One whose port cannot be read is not started either.
    let reserved: Vec<u16> = others.filter_map(|other| read_port(&other).ok().flatten()).collect();
    let further = (0..PORTS_TRIED_MAX).filter_map(|n| port_first.checked_add(n));
    remembered.into_iter().chain(further.filter(|port| !reserved.contains(port))).collect()
}

/// Starts the server. Returns what it said if it did not come up.
async fn attempt(
    paths: &Paths,
    installation: &Installation,
    user: Option<&RunAs>,
) -> Result<Option<String>, ManagedError> {
    let pg_ctl = installation.bin_dir.join("pg_ctl");
    let output = run_start(start_command(paths, &pg_ctl, user)).await.map_err(ManagedError::io("run", &pg_ctl))?;
    if output.status.success() {
        return Ok(None);
    }
    Ok(Some(log::said(&output.stdout)))
}

/// The server inherits a limit of address space, and tells the kernel to end a backend rather than itself.
fn start_command(paths: &Paths, pg_ctl: &Path, user: Option<&RunAs>) -> std::process::Command {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let mut command = user::command("/bin/sh", user);
    command
        .env("PG_OOM_ADJUST_FILE", "/proc/self/oom_score_adj")
        .env("PG_OOM_ADJUST_VALUE", "500")
        .args(["-c", "umask 077; ulimit -v \"$1\" 2>/dev/null; ulimit -c 0 2>/dev/null; shift; exec \"$@\"", "sh"])
        .arg(conf::address_space_kb(&meminfo).to_string())
        .arg(pg_ctl)
        .args(["start", "--wait", "--timeout", PG_CTL_WAIT_SECONDS, "--silent", "--pgdata"])
        .arg(paths.data());
    command
}

fn is_free(port: u16) -> bool {
    port != 0 && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_is_seen() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(!is_free(port));
        drop(listener);
        assert!(is_free(port));
    }

    #[test]
    fn no_cluster_takes_the_port_that_another_of_its_directory_comes_back_to() {
        let dir = tempfile::tempdir().unwrap();
        let [old, new] = [15, 18].map(|major| Paths::new(dir.path(), major));
        for (paths, port) in [(&old, 65_433), (&new, 65_432)] {
            fs::create_dir_all(&paths.directory).unwrap();
            write_port(&paths.port(), port).unwrap();
        }
        assert_eq!(ports(&old, Some(65_433), 65_432)[..3], [65_433, 65_433, 65_434]);
        assert_eq!(ports(&new, Some(65_432), 65_432)[..3], [65_432, 65_432, 65_434]);
        let third = Paths::new(dir.path(), 17);
        assert_eq!(ports(&third, None, 65_432)[..2], [65_434, 65_435]);
    }
}
