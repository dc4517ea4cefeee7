//! Who beside us can change a file that decides what this program does.
//!
//! Whoever writes a configuration, a policy or a program that is run is as good as the operator. So each must be ours or
//! root's, in directories that are, and nobody else may write to it or put another in its place.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::identity::own_identity;
use crate::model::Identity;

/// Those beside the owner who may write.
const OTHERS_WRITE: u32 = 0o022;
/// Who may write to such a directory can neither replace nor remove what is others' in it.
const STICKY: u32 = 0o1000;
/// Whom a file seems to belong to whose owner is not in the user namespace.
const NOT_IN_NAMESPACE: u32 = 65534;

/// Says why a file must not be used: who could change it. `found` is of the opened file, so that it is no other meanwhile.
pub(super) fn fault_of(path: &Path, found: &Metadata) -> Option<String> {
    match fault(path, found, Owners::of_process()) {
        Ok(fault) => fault,
        Err(error) => Some(format!("cannot be looked at: {error}")),
    }
}

/// As [`fault_of`], of a file that another opens. One that is not there is its user's to miss.
pub(super) fn fault_at(path: &Path) -> Option<String> {
    let found = std::fs::metadata(path).ok()?;
    fault_of(path, &found)
}

/// Whose files may be used.
#[derive(Clone, Copy)]
struct Owners {
    me: u32,
    /// In a user namespace root, as everybody else outside of it, may be shown as nobody.
    within: Identity,
}

impl Owners {
    fn of_process() -> Self {
        Self { me: rustix::process::geteuid().as_raw(), within: own_identity() }
    }

    fn may(self, owner: u32) -> bool {
        owner == self.me || owner == 0 || (self.within == Identity::Chosen && owner == NOT_IN_NAMESPACE)
    }
}

fn fault(path: &Path, found: &Metadata, owners: Owners) -> io::Result<Option<String>> {
    if let Some(fault) = fault_in(found, owners, OTHERS_WRITE) {
        let shut = found.mode() & OTHERS_WRITE != 0 && owners.may(found.uid());
        let remedy = if shut { format!("; run `chmod go-w {}`", path.display()) } else { String::new() };
        return Ok(Some(format!("{fault}{remedy}")));
    }
    // Where the path leads through links, the directory that a link lies in counts as well.
    let whole = path.canonicalize()?;
    let given = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    for directory in
        [given.canonicalize()?.as_path()].into_iter().flat_map(Path::ancestors).chain(whole.ancestors().skip(1))
    {
        let found = std::fs::metadata(directory)?;
        let closed = if found.mode() & STICKY == 0 { OTHERS_WRITE } else { 0 };
        if let Some(fault) = fault_in(&found, owners, closed) {
            return Ok(Some(format!("lies in `{}`, which {fault}", directory.display())));
        }
    }
    Ok(None)
}

fn fault_in(found: &Metadata, owners: Owners, closed: u32) -> Option<String> {
    if !owners.may(found.uid()) {
        return Some(format!("belongs to user {}, and neither to user {} nor to root", found.uid(), owners.me));
    }
    let mode = found.mode() & 0o7777;
    (mode & closed != 0).then(|| format!("has mode {mode:04o}, which lets others change it"))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    const NOBODY: u32 = 4_000_000;

    fn check(file_mode: u32, dir_mode: u32, expected: Option<&str>) {
        let dir = tempfile::tempdir().unwrap();
        let within = dir.path().join("d");
        fs::create_dir(&within).unwrap();
        let file = within.join("f");
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(file_mode)).unwrap();
        fs::set_permissions(&within, Permissions::from_mode(dir_mode)).unwrap();
        let told = fault_at(&file);
        match (&told, expected) {
            (None, None) => {}
            (Some(told), Some(expected)) if told.contains(expected) => {}
            _ => panic!("{file_mode:o} in {dir_mode:o}: {told:?}, not {expected:?}"),
        }
    }

    #[test]
    fn what_others_can_change_or_replace_is_refused_by_name() {
        check(0o600, 0o700, None);
        check(0o755, 0o755, None);
        check(0o666, 0o700, Some("has mode 0666, which lets others change it; run `chmod go-w "));
        check(0o664, 0o700, Some("has mode 0664"));
        check(0o602, 0o700, Some("has mode 0602"));
        check(0o600, 0o777, Some("d`, which has mode 0777, which lets others change it"));
        check(0o600, 0o775, Some("lies in `"));
        check(0o600, 0o1777, None);
        check(0o666, 0o1777, Some("has mode 0666"));
    }

    #[test]
    fn a_link_is_judged_where_it_lies_and_where_it_leads() {
        let dir = tempfile::tempdir().unwrap();
        let (open, closed) = (dir.path().join("open"), dir.path().join("closed"));
        for (directory, mode) in [(&open, 0o777), (&closed, 0o700)] {
            fs::create_dir(directory).unwrap();
            fs::write(directory.join("file"), "").unwrap();
            fs::set_permissions(directory, Permissions::from_mode(mode)).unwrap();
        }
        symlink(closed.join("file"), open.join("link")).unwrap();
        symlink(open.join("file"), closed.join("link")).unwrap();
        symlink(closed.join("file"), closed.join("fine")).unwrap();
        assert!(fault_at(&open.join("link")).unwrap().contains("lies in"));
        assert!(fault_at(&closed.join("link")).unwrap().contains("lies in"));
        assert_eq!(fault_at(&closed.join("fine")), None);
        assert_eq!(fault_at(&closed.join("not there")), None);
    }

    #[test]
    fn only_ours_and_roots_are_used() {
        let owners = |within| Owners { me: 1000, within };
        for (owner, certain, chosen) in
            [(1000, true, true), (0, true, true), (NOT_IN_NAMESPACE, false, true), (NOBODY, false, false)]
        {
            assert_eq!(owners(Identity::Certain).may(owner), certain, "{owner}");
            assert_eq!(owners(Identity::Chosen).may(owner), chosen, "{owner}");
        }
        let dir = tempfile::tempdir().unwrap();
        let found = fs::metadata(dir.path()).unwrap();
        let another = Owners { me: NOBODY, within: Identity::Certain };
        if found.uid() != 0 {
            let told = fault(dir.path(), &found, another).unwrap().unwrap();
            assert!(told.starts_with("belongs to user ") && !told.contains("chmod"), "{told}");
        }
    }
}
