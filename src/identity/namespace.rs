//! Whether this process' numbers are the machine's, or those of a user namespace.
//!
//! Whoever may make a user namespace gives itself any number in it. So numbers count only where the kernel maps each to
//! itself, and only if the kernel says so: what lies at `/proc` may be anything, and anything may lie over a file in it.

use std::fs::File;
use std::io::{self, Read as _};

use rustix::fs::{Mode, OFlags, PROC_SUPER_MAGIC, ResolveFlags, fstat, fstatfs, open, openat2};

use crate::model::Identity;

/// The whole of a map of numbers, as the kernel words it outside of every user namespace.
const WHOLE: [&str; 3] = ["0", "0", "4294967295"];
/// More than a map of one line has.
const MAP_BYTES_MAX: u64 = 4096;
/// The number of the first directory of a file system of processes.
const PROC_ROOT: u64 = 1;

/// Returns how this process' user and groups are known. What cannot be read is no proof.
pub fn own_identity() -> Identity {
    let whole = |name| map(name).is_ok_and(|text| is_whole(&text));
    if whole("self/uid_map") && whole("self/gid_map") { Identity::Certain } else { Identity::Chosen }
}

fn is_whole(map: &str) -> bool {
    map.split_whitespace().eq(WHOLE)
}

/// Reads a file of `/proc`, and nothing that was mounted over it or over a part of its path.
fn map(name: &str) -> io::Result<String> {
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let proc = open("/proc", directory, Mode::empty())?;
    if fstatfs(&proc)?.f_type != PROC_SUPER_MAGIC || fstat(&proc)?.st_ino != PROC_ROOT {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let within = ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS;
    let file = openat2(&proc, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty(), within)?;
    let mut text = String::new();
    File::from(file).take(MAP_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_map_is_that_of_the_machine() {
        assert!(is_whole("         0          0 4294967295\n"));
        for map in [
            "",
            "         0       1000          1\n",
            "      1000       1000          1\n",
            "         0     100000      65536\n",
            "         0          0 4294967294\n",
            "         0          0       1000\n      1000       1000 4294966295\n",
            "         0          0 4294967295\n         7          7          1\n",
            "0 4294967295 4294967295\n",
        ] {
            assert!(!is_whole(map), "{map}");
        }
    }
}
