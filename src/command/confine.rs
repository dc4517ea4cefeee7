//! Confines a thread, and whatever it starts, to parts of the file system.
//!
//! The kernel's Landlock does it: what is not allowed is denied, for good, to the thread and all that comes of it. Nothing
//! else of a process is confined: not the network, not sockets in the file system, not the metadata of files.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What a command may do with the file system, beside what is done to directories that are open already; whatever is not
/// here is denied. The paths are without links, and whoever made the rules judged them: they are followed through no
/// link, so that what was put in the place of a part of them since is not allowed instead.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Rules {
    /// Files and directories that may be read, listed and executed.
    pub(super) read: Vec<PathBuf>,
    /// Files and directories of which everything may be done.
    pub(super) write: Vec<PathBuf>,
    /// Device files.
    pub(super) devices: Vec<PathBuf>,
}

#[cfg(target_os = "linux")]
mod landlocked {
    use std::os::fd::{AsFd, OwnedFd};
    use std::path::Path;

    use landlock::{
        ABI, Access, AccessFs, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr, RulesetCreated,
        RulesetCreatedAttr, RulesetStatus, Scope,
    };
    use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};

    use super::Rules;

    /// Without it a file that may not be written could be cut off.
    const NEEDED: ABI = ABI::V3;
    /// What is used where the kernel has it: device files, signals and abstract sockets.
    const USED: ABI = ABI::V6;

    /// Returns a set of rules that denies everything.
    fn ruleset() -> Result<RulesetCreated, String> {
        let made = || {
            Ruleset::default()
                .set_compatibility(CompatLevel::HardRequirement)
                .handle_access(AccessFs::from_all(NEEDED))?
                .set_compatibility(CompatLevel::BestEffort)
                .handle_access(AccessFs::from_all(USED))?
                .scope(Scope::Signal | Scope::AbstractUnixSocket)?
                .create()
        };
        made().map_err(|error| error.to_string())
    }

    pub(super) fn available() -> Result<(), String> {
        ruleset().map(|_| ())
    }

    pub(super) fn restrict(rules: &Rules, open: &[OwnedFd]) -> Result<(), String> {
        let mut set = ruleset()?.set_compatibility(CompatLevel::BestEffort);
        let all = AccessFs::from_all(USED);
        let device = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
        for dir in open {
            set = set.add_rule(PathBeneath::new(dir, all)).map_err(|error| error.to_string())?;
        }
        let lists = [(&rules.read, AccessFs::from_read(USED)), (&rules.write, all), (&rules.devices, device)];
        for (paths, access) in lists {
            for path in paths {
                // What is not there, or is another by now, cannot be reached either way.
                let Ok(opened) = through_no_link(path) else { continue };
                let Ok(stat) = rustix::fs::fstat(&opened) else { continue };
                let dir = FileType::from_raw_mode(stat.st_mode).is_dir();
                let access = if dir { access } else { access & AccessFs::from_file(USED) };
                let rule = PathBeneath::new(opened.as_fd(), access);
                set = set.add_rule(rule).map_err(|error| error.to_string())?;
            }
        }
        let status = set.restrict_self().map_err(|error| error.to_string())?;
        if status.ruleset == RulesetStatus::NotEnforced || !status.no_new_privs {
            return Err("the kernel did not enforce the rules".to_owned());
        }
        Ok(())
    }

    /// Opens what a path says that has no link in it, and nothing else.
    fn through_no_link(path: &Path) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
    }
}

/// Says whether this system can confine a command.
///
/// # Errors
/// Says what is missing.
pub(super) fn available() -> Result<(), String> {
    if let Err(injected) = crate::model::fault::reach("command.confine") {
        return Err(std::io::Error::from(injected).to_string());
    }
    #[cfg(target_os = "linux")]
    return landlocked::available();
    #[cfg(not(target_os = "linux"))]
    Err("this system has no Landlock".to_owned())
}

/// Takes from the calling thread, for good, what no command needs: gaining rights by a program's mode, and of root's
/// rights all but those over files and its own processes. Some of the others look past Landlock: who may watch
/// performance may read any process's environment.
///
/// # Errors
/// Fails if the system does not do it.
pub(super) fn give_up_rights() -> Result<(), String> {
    #[cfg(target_os = "linux")]
    {
        use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs};
        const KEPT: CapabilitySet = CapabilitySet::CHOWN
            .union(CapabilitySet::DAC_OVERRIDE)
            .union(CapabilitySet::FOWNER)
            .union(CapabilitySet::FSETID)
            .union(CapabilitySet::KILL)
            .union(CapabilitySet::SETGID)
            .union(CapabilitySet::SETUID)
            .union(CapabilitySet::NET_BIND_SERVICE);
        let given_up = set_no_new_privs(true).and_then(|()| {
            let CapabilitySets { effective, permitted, inheritable } = capabilities(None)?;
            let kept = |set: CapabilitySet| set.intersection(KEPT);
            let sets = CapabilitySets {
                effective: kept(effective),
                permitted: kept(permitted),
                inheritable: kept(inheritable),
            };
            set_capabilities(None, sets)
        });
        given_up.map_err(|error| error.to_string())
    }
    #[cfg(not(target_os = "linux"))]
    Ok(())
}

/// Confines the calling thread, for good. Of the directories that are `open` everything may be done.
///
/// # Errors
/// Fails if any of the rules cannot be enforced; the thread is of no use then.
pub(super) fn restrict(rules: &Rules, open: &[OwnedFd]) -> Result<(), String> {
    #[cfg(target_os = "linux")]
    return landlocked::restrict(rules, open);
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (rules, open);
        Err("this system has no Landlock".to_owned())
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;
    use std::thread;

    use super::*;

    /// Confines a thread of its own, and returns which of the files it reads.
    fn read_by(rules: &Rules, open: &[OwnedFd], files: &[&Path]) -> Vec<bool> {
        thread::scope(|scope| {
            let confined = scope.spawn(|| {
                restrict(rules, open).unwrap();
                files.iter().map(|file| fs::read(file).is_ok()).collect()
            });
            confined.join().unwrap()
        })
    }

    #[test]
    fn what_was_put_in_the_place_of_a_rule_is_not_allowed_by_it() {
        if available().is_err() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        let [cache, tools, state] = ["cache", "tools/bin", "state/bin"].map(|name| root.join(name));
        for path in [&cache, &tools, &state] {
            fs::create_dir_all(path).unwrap();
            fs::write(path.join("file"), "text").unwrap();
        }
        let files = [cache.join("file"), tools.join("file"), state.join("file")];
        let files = files.each_ref().map(std::path::PathBuf::as_path);
        let rules = Rules { read: vec![tools.clone()], write: vec![cache.clone()], devices: Vec::new() };
        assert_eq!(read_by(&rules, &[], &files), [true, true, false]);
        fs::rename(&cache, root.join("aside")).unwrap();
        symlink(&state, &cache).unwrap();
        fs::rename(root.join("tools"), root.join("away")).unwrap();
        symlink(root.join("state"), root.join("tools")).unwrap();
        assert_eq!(read_by(&rules, &[], &files), [false, false, false]);
        // A directory that is open stays what it is.
        let open = [fs::File::open(root.join("aside")).unwrap().into()];
        let aside = root.join("aside/file");
        assert_eq!(read_by(&rules, &open, &[&aside, files[2]]), [true, false]);
    }
}
