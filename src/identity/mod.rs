//! Who asks, where the operating system says so: the local user of stdio and the command line.
//!
//! The subject is the process' own user, and the groups are that user's as the kernel has them: no argument and no
//! variable can change either. In a user namespace they are what its maker chose: then the subject's name says so, and
//! there are no groups. The owner, whose quotas apply, may be named by the operator. Nothing here authenticates anybody
//! over a network.

mod namespace;

use std::fs;
use std::path::Path;

pub use namespace::own_identity;

use crate::model::{Identity, Principal, Transport, owner_fault};

/// Where user names are.
const PASSWD: &str = "/etc/passwd";
/// Where names of groups are.
const GROUP: &str = "/etc/group";
/// What the subject's name ends in where the numbers are those of a user namespace.
const IN_NAMESPACE: &str = "@user-namespace";

/// Returns the local user as the principal of a process. `owner` has been checked by the configuration.
pub fn local_user(transport: Transport, owner: Option<&str>) -> Principal {
    known_as(own_identity(), transport, owner)
}

fn known_as(identity: Identity, transport: Transport, owner: Option<&str>) -> Principal {
    let user = user_name(rustix::process::geteuid().as_raw(), Path::new(PASSWD));
    let owner = owner.map_or_else(|| user.clone(), str::to_owned);
    let (subject, groups) = match identity {
        Identity::Certain => (user, groups(Path::new(GROUP))),
        Identity::Chosen => (format!("{user}{IN_NAMESPACE}"), Vec::new()),
    };
    Principal { subject, owner, groups, transport, client: String::new(), identity }
}

/// Returns the names of the process' groups, sorted; `gid-N` where the file has none.
fn groups(file: &Path) -> Vec<String> {
    let mut numbers: Vec<u32> =
        rustix::process::getgroups().unwrap_or_default().iter().map(|gid| gid.as_raw()).collect();
    numbers.push(rustix::process::getegid().as_raw());
    let mut names: Vec<String> = numbers.into_iter().map(|gid| group_name(gid, file)).collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn group_name(gid: u32, file: &Path) -> String {
    name_in(file, gid).unwrap_or_else(|| format!("gid-{gid}"))
}

/// Returns a user's name, or `uid-N` where the file has none that can be an owner (users of a directory service).
fn user_name(uid: u32, passwd: &Path) -> String {
    name_in(passwd, uid).unwrap_or_else(|| format!("uid-{uid}"))
}

/// Finds the name for a number, in a file of `name:password:number` lines.
fn name_in(file: &Path, wanted: u32) -> Option<String> {
    let text = fs::read(file).unwrap_or_default();
    String::from_utf8_lossy(&text).lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, _, number) = (fields.next()?, fields.next()?, fields.next()?);
        (number.parse::<u32>() == Ok(wanted) && owner_fault(name).is_none()).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(passwd: &str, uid: u32, expected: &str) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("passwd");
        fs::write(&path, passwd).unwrap();
        assert_eq!(user_name(uid, &path), expected);
    }

    #[test]
    fn a_user_is_found_by_number() {
        check("root:x:0:0:root:/root:/bin/sh\nana:x:1000:1000::/home/ana:/bin/sh\n", 1000, "ana");
        check("# comment\n\nana:x:1000:1000\nbob:x:1000:1000\n", 1000, "ana");
    }

    #[test]
    fn a_user_without_a_usable_name_is_a_number() {
        check("root:x:0:0\n", 1000, "uid-1000");
        check("", 7, "uid-7");
        check("system:reaper:x:7:7\n", 7, "uid-7");
        check("*:x:7:7\n", 7, "uid-7");
        assert_eq!(user_name(7, Path::new("/nonexistent")), "uid-7");
    }

    #[test]
    fn groups_have_their_names_or_numbers() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("group");
        fs::write(&path, "root:x:0:\ndba:x:70:ana,bob\n").unwrap();
        assert_eq!((group_name(70, &path), group_name(71, &path)), ("dba".to_owned(), "gid-71".to_owned()));
        let mine = known_as(Identity::Certain, Transport::Cli, None).groups;
        assert!(!mine.is_empty() && mine.is_sorted(), "{mine:?}");
    }

    #[test]
    fn who_chose_its_own_numbers_is_nobody_and_in_no_group() {
        let (known, chosen) =
            (known_as(Identity::Certain, Transport::Cli, None), known_as(Identity::Chosen, Transport::Cli, None));
        assert_eq!((chosen.subject, chosen.groups), (format!("{}@user-namespace", known.subject), Vec::new()));
        assert_eq!(chosen.owner, known.owner, "whose sandboxes these are is the caller's own word in any case");
    }

    #[test]
    fn the_owner_is_the_user_unless_named() {
        let user = known_as(Identity::Certain, Transport::Cli, None);
        assert_eq!(user.owner, user.subject);
        let named = known_as(Identity::Certain, Transport::Stdio, Some("team"));
        assert_eq!((named.subject, named.owner.as_str()), (user.subject, "team"));
    }
}
