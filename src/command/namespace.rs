//! Gives a command process numbers of its own, where the kernel lets us: the end of the first process of such a namespace
//! ends, in the kernel and at once, everything that is in it, and nothing in it can make another process meanwhile.
//!
//! Root may make one as it is. Others may where the system lets users make namespaces of users; in theirs they are who
//! they are, and have no rights that they did not have.

use std::io;

#[cfg(target_os = "linux")]
mod made {
    use std::fs;
    use std::io;

    use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
    use rustix::process::{Resource, Rlimit};
    use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags};

    use crate::command::descendants::TASKS_MAX;

    #[expect(deprecated, reason = "what is unsafe of it concerns file descriptors, which stay shared")]
    fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
        rustix::thread::unshare(flags)
    }

    fn is_root() -> bool {
        rustix::process::geteuid().is_root()
    }

    pub(super) fn enter() -> io::Result<()> {
        if is_root() {
            return Ok(unshare(UnshareFlags::NEWPID)?);
        }
        let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWPID)?;
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
        fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
        // With it the first process shows its own processes in `/proc`; the command does not get it.
        let sets = rustix::thread::capabilities(None)?;
        let inheritable = sets.inheritable.union(CapabilitySet::SYS_ADMIN);
        rustix::thread::set_capabilities(None, CapabilitySets { inheritable, ..sets })?;
        Ok(rustix::thread::configure_capability_in_ambient_set(CapabilitySet::SYS_ADMIN, true)?)
    }

    pub(super) fn settle() -> io::Result<()> {
        let shown = || {
            unshare(UnshareFlags::NEWNS)?;
            mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
            mount("proc", "/proc", "proc", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, None)
        };
        // In a container parts of `/proc` may be covered, and stay so: then the command sees the numbers of others there.
        shown().ok();
        if is_root() {
            return Ok(());
        }
        rustix::thread::clear_ambient_capability_set()?;
        let none = CapabilitySet::empty();
        rustix::thread::set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
        // Counts what is in this namespace of users alone.
        let most = Some(TASKS_MAX as u64);
        let (now, least) = (rustix::process::getrlimit(Resource::Nproc), |limit: Option<u64>| limit.min(most).or(most));
        let limit = Rlimit { current: least(now.current), maximum: least(now.maximum) };
        Ok(rustix::process::setrlimit(Resource::Nproc, limit)?)
    }
}

/// Lets the next process that this one starts be the first of a namespace. This process stays outside of it, must have no
/// other thread, and can start no other process or thread afterwards.
///
/// # Errors
/// Fails if the system does not do it; this process is of no use then.
pub(super) fn enter() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    return made::enter();
    #[cfg(not(target_os = "linux"))]
    Err(io::ErrorKind::Unsupported.into())
}

/// Makes the first process of a namespace ready to start the command: `/proc` shows what is in the namespace, and what
/// rights that took are given up.
///
/// # Errors
/// Fails if they are not.
pub(super) fn settle() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    return made::settle();
    #[cfg(not(target_os = "linux"))]
    Err(io::ErrorKind::Unsupported.into())
}
