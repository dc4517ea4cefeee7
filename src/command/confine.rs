//! Confines a thread, and whatever it starts, to parts of the file system.
//!
//! The kernel's Landlock does it: what is not allowed is denied, for good, to the thread and all that comes of it. Nothing
//! else of a process is confined: not the network, not sockets in the file system, not the metadata of files.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What a command may do with the file system; whatever is not here is denied.
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
    use landlock::{
        ABI, Access, AccessFs, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreated,
        RulesetCreatedAttr, RulesetStatus, Scope,
    };

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

    pub(super) fn restrict(rules: &Rules) -> Result<(), String> {
        let mut set = ruleset()?.set_compatibility(CompatLevel::BestEffort);
        let read = AccessFs::from_read(USED);
        let device = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
        let lists = [(&rules.read, read), (&rules.write, AccessFs::from_all(USED)), (&rules.devices, device)];
        for (paths, access) in lists {
            for path in paths {
                // What is not there cannot be reached either way.
                let Ok(opened) = PathFd::new(path) else { continue };
                let access = if path.is_dir() { access } else { access & AccessFs::from_file(USED) };
                set = set.add_rule(PathBeneath::new(opened, access)).map_err(|error| error.to_string())?;
            }
        }
        let status = set.restrict_self().map_err(|error| error.to_string())?;
        if status.ruleset == RulesetStatus::NotEnforced || !status.no_new_privs {
            return Err("the kernel did not enforce the rules".to_owned());
        }
        Ok(())
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

/// Confines the calling thread, for good.
///
/// # Errors
/// Fails if any of the rules cannot be enforced; the thread is of no use then.
pub(super) fn restrict(rules: &Rules) -> Result<(), String> {
    #[cfg(target_os = "linux")]
    return landlocked::restrict(rules);
    #[cfg(not(target_os = "linux"))]
    {
        let _ = rules;
        Err("this system has no Landlock".to_owned())
    }
}
