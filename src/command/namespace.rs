//! Gives a command process numbers of its own, where the kernel lets us: the end of the first process of such a namespace
//! ends, in the kernel and at once, everything that is in it, and nothing in it can make another process meanwhile.
//!
//! Root may make one as it is. Others may where the system lets users make namespaces of users; in theirs they are who
//! they are, and have no rights that they did not have.
//!
//! With it comes a [`SHARED_MEMORY`] that nobody else has: what programs put there is theirs by its name alone, and whoever
//! runs as the same user could read and change it. The older kind of it, segments and queues that the kernel knows by numbers
//! (System V), is the command's own as well, and ends with it.

use std::io;
use std::path::PathBuf;

/// Where programs have the memory that their processes share, semaphores among it.
pub(super) const SHARED_MEMORY: &str = "/dev/shm";
/// The most that is in a command's own, in bytes: it is the machine's memory.
#[cfg(target_os = "linux")]
const SHARED_MEMORY_BYTES_MAX: u64 = 256 << 20;

#[cfg(target_os = "linux")]
mod made {
    use std::ffi::CString;
    use std::fs;
    use std::io;
    use std::path::{Path, PathBuf};

    use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
    use rustix::process::{Resource, Rlimit};
    use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags};

    use super::{SHARED_MEMORY, SHARED_MEMORY_BYTES_MAX};
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
            return Ok(unshare(UnshareFlags::NEWPID | UnshareFlags::NEWIPC)?);
        }
        let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWPID | UnshareFlags::NEWIPC)?;
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
        fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
        // With it the first process shows its own processes in `/proc`; the command does not get it.
        let sets = rustix::thread::capabilities(None)?;
        let inheritable = sets.inheritable.union(CapabilitySet::SYS_ADMIN);
        rustix::thread::set_capabilities(None, CapabilitySets { inheritable, ..sets })?;
        Ok(rustix::thread::configure_capability_in_ambient_set(CapabilitySet::SYS_ADMIN, true)?)
    }

    /// Puts a file system of the command's own over the place. What is in use there would be covered, and is left.
    fn shared_memory(used: &[PathBuf]) -> io::Result<()> {
        let place = Path::new(SHARED_MEMORY);
        let directory = fs::symlink_metadata(place)?.is_dir();
        if !directory || used.iter().any(|path| path.starts_with(place)) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let data = CString::new(format!("mode=1777,size={SHARED_MEMORY_BYTES_MAX}"))?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        Ok(mount("tmpfs", place, "tmpfs", flags, data.as_c_str())?)
    }

    pub(super) fn settle(used: &[PathBuf]) -> io::Result<bool> {
        let apart = || {
            unshare(UnshareFlags::NEWNS)?;
            mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        };
        let mut shares_alone = false;
        // Without mounts of its own the command sees the numbers of others, and reaches no shared memory.
        if apart().is_ok() {
            // In a container parts of `/proc` may be covered, and stay so.
            mount("proc", "/proc", "proc", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, None).ok();
            shares_alone = shared_memory(used).is_ok();
        }
        if is_root() {
            return Ok(shares_alone);
        }
        rustix::thread::clear_ambient_capability_set()?;
        let none = CapabilitySet::empty();
        rustix::thread::set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
        // Counts what is in this namespace of users alone.
        let most = Some(TASKS_MAX as u64);
        let (now, least) = (rustix::process::getrlimit(Resource::Nproc), |limit: Option<u64>| limit.min(most).or(most));
        let limit = Rlimit { current: least(now.current), maximum: least(now.maximum) };
        rustix::process::setrlimit(Resource::Nproc, limit)?;
        Ok(shares_alone)
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

/// Makes the first process of a namespace ready to start the command: `/proc` shows what is in the namespace, shared memory
/// is the command's own, and what rights that took are given up. Returns whether the second is so; it is not if one of the
/// places that the command uses is there.
///
/// # Errors
/// Fails if the rights are not given up.
pub(super) fn settle(used: &[PathBuf]) -> io::Result<bool> {
    #[cfg(target_os = "linux")]
    return made::settle(used);
    #[cfg(not(target_os = "linux"))]
    {
        let _ = used;
        Err(io::ErrorKind::Unsupported.into())
    }
}
