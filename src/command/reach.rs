//! Which files a command may reach: the repository, its own temporary directory, the system's programs, and the caches and
//! tools of package managers. This program's own directories are in none of them.

use std::fs;
use std::path::{Path, PathBuf};

use super::confine::Rules;
use super::surroundings::{PLACES, Surroundings};

/// Directories of the system that may be read and executed.
pub const SYSTEM: [&str; 17] = [
    "/bin",
    "/etc",
    "/home/linuxbrew/.linuxbrew",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix/store",
    "/opt",
    "/proc",
    "/run/current-system",
    "/run/resolvconf",
    "/run/systemd/resolve",
    "/sbin",
    "/snap",
    "/sys",
    "/usr",
];
/// Device files that may be used.
pub const DEVICES: [&str; 6] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/ptmx"];
/// How deep directories are gone into to leave something out.
const CARVE_DEPTH_MAX: usize = 32;
/// The most entries of a directory that are allowed one by one.
const CARVE_ENTRIES_MAX: usize = 4096;

/// What the operator adds.
#[derive(Clone, Debug, Default)]
pub struct Further {
    /// May be read and executed.
    pub readable: Vec<PathBuf>,
    /// May be written as well.
    pub writable: Vec<PathBuf>,
}

/// What commands reach beside the repository and their temporary directories.
///
/// Links are followed once, here: what a command puts in the place of one of these later leads nowhere.
#[derive(Debug)]
pub(super) struct Reach {
    readable: Vec<Named>,
    writable: Vec<Named>,
}

/// A file or a directory as it is named, and where that leads.
#[derive(Debug)]
struct Named {
    name: PathBuf,
    real: PathBuf,
}

impl Reach {
    /// Finds out what there is.
    pub(super) fn new(told: &Surroundings, further: &Further) -> Self {
        let (mut readable, mut writable) = (Vec::new(), Vec::new());
        readable.extend(SYSTEM.map(PathBuf::from));
        readable.extend(told.path.iter().cloned());
        for place in PLACES {
            let named = told.variables.get(place.variable).map(PathBuf::from).filter(|path| path.is_absolute());
            let home = told.home.as_deref().filter(|_| !place.home.is_empty()).map(|home| home.join(place.home));
            let Some(root) = named.or(home) else { continue };
            let below = |path: &str| if path == "." { root.clone() } else { root.join(path) };
            writable.extend(place.writable.iter().map(|path| below(path)));
            readable.extend(place.readable.iter().map(|path| below(path)));
        }
        readable.extend(further.readable.iter().cloned());
        writable.extend(further.writable.iter().cloned());
        let home = told.home.as_deref().map(real);
        // A root or a home as a whole is no cache: whoever names it names everything.
        let narrow =
            |path: &Path| path.parent().is_some() && home.as_deref().is_none_or(|home| !home.starts_with(path));
        let found = |paths: Vec<PathBuf>| {
            let named = paths.into_iter().map(|name| Named { real: would_be(&name), name });
            named.filter(|named| narrow(&named.real)).collect()
        };
        Self { readable: found(readable), writable: found(writable) }
    }

    /// Returns what a command in a repository may reach beside it, and nothing of what is `hidden`.
    pub(super) fn rules(&self, repo: &Path, hidden: &[PathBuf]) -> Rules {
        let hidden: Vec<PathBuf> = hidden.iter().map(|path| real(path)).collect();
        // What is named in the repository is reached with it, and may be a link that a command has made.
        let apart = |named: &&Named| !named.name.starts_with(repo) && !named.real.starts_with(repo);
        let mut read = Vec::new();
        for named in self.readable.iter().filter(apart) {
            carve(&named.real, &hidden, CARVE_DEPTH_MAX, &mut read);
        }
        let mut write: Vec<PathBuf> = self.writable.iter().filter(apart).map(|named| named.real.clone()).collect();
        write.retain(|path| path.exists() && !hidden.iter().any(|hidden| touches(path, hidden)));
        for paths in [&mut read, &mut write] {
            paths.sort();
            paths.dedup();
        }
        Rules { read, write, devices: DEVICES.map(|path| real(Path::new(path))).to_vec() }
    }
}

/// Returns a path without links; of what is not there yet, where it would be made.
fn would_be(path: &Path) -> PathBuf {
    let missing = || match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => would_be(parent).join(name),
        _ => path.to_path_buf(),
    };
    fs::canonicalize(path).unwrap_or_else(|_| missing())
}

/// Returns a path without links, or as it is where it leads nowhere.
pub(super) fn real(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf())
}

/// Returns whether one path is within the other.
pub(super) fn touches(a: &Path, b: &Path) -> bool {
    a.starts_with(b) || b.starts_with(a)
}

/// Adds a path, or of a directory that holds something hidden everything beside that.
fn carve(path: &Path, hidden: &[PathBuf], depth: usize, into: &mut Vec<PathBuf>) {
    if hidden.iter().any(|hidden| path.starts_with(hidden)) {
        return;
    }
    if !hidden.iter().any(|hidden| hidden.starts_with(path)) {
        if path.exists() {
            into.push(path.to_path_buf());
        }
        return;
    }
    let Some(depth) = depth.checked_sub(1) else { return };
    let entries = fs::read_dir(path).into_iter().flatten().flatten().take(CARVE_ENTRIES_MAX);
    for entry in entries {
        // A link leads to what is allowed elsewhere, or is not.
        if entry.file_type().is_ok_and(|kind| !kind.is_symlink()) {
            carve(&entry.path(), hidden, depth, into);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(paths: &[&str]) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        paths.iter().for_each(|path| fs::create_dir_all(root.join(path)).unwrap());
        (dir, root)
    }

    #[test]
    fn a_directory_that_holds_something_hidden_is_allowed_but_for_that() {
        let (_dir, root) = made(&["etc/ssl", "etc/pgsandbox/keys", "etc/other"]);
        let mut into = Vec::new();
        carve(&root.join("etc"), &[root.join("etc/pgsandbox/keys")], CARVE_DEPTH_MAX, &mut into);
        into.sort();
        assert_eq!(into, [root.join("etc/other"), root.join("etc/ssl")]);
    }

    #[test]
    fn what_is_too_deep_or_too_much_is_not_allowed() {
        let deep: String = (0..CARVE_DEPTH_MAX + 1).map(|_| "d/").collect();
        let (_dir, root) = made(&[&format!("{deep}beside"), &format!("{deep}hidden")]);
        let reached = |depth| {
            let mut into = Vec::new();
            carve(&root, &[root.join(&deep).join("hidden")], depth, &mut into);
            into
        };
        assert_eq!(reached(CARVE_DEPTH_MAX), Vec::<PathBuf>::new());
        assert_eq!(reached(CARVE_DEPTH_MAX + 2), [root.join(&deep).join("beside")]);
        let names: Vec<String> = (0..CARVE_ENTRIES_MAX + 2).map(|n| format!("n{n}")).collect();
        let (_dir, root) = made(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let mut into = Vec::new();
        carve(&root, &[root.join("absent")], 1, &mut into);
        assert_eq!(into.len(), CARVE_ENTRIES_MAX);
    }

    #[test]
    fn caches_are_writable_and_credentials_beside_them_are_out_of_reach() {
        let (_dir, root) =
            made(&["home/.cargo/registry", "home/.cargo/bin", "home/.npm", "home/.ssh", "repo", "tmp", "state"]);
        let told = Surroundings { home: Some(root.join("home")), ..Surroundings::default() };
        let rules = Reach::new(&told, &Further::default()).rules(&root.join("repo"), &[root.join("state")]);
        let below = |paths: &[&str]| paths.iter().map(|path| root.join(path)).collect::<Vec<_>>();
        assert_eq!(rules.write, below(&["home/.cargo/registry", "home/.npm"]));
        assert!(rules.read.contains(&root.join("home/.cargo/bin")));
        let all = rules.read.iter().chain(&rules.write);
        assert!(all.clone().all(|path| !root.join("home/.cargo/credentials.toml").starts_with(path)));
        assert!(all.clone().all(|path| !root.join("home/.ssh").starts_with(path)));
        assert!(all.clone().all(|path| !root.join("state").starts_with(path)));
    }

    #[test]
    fn a_variable_that_names_everything_allows_nothing() {
        let (_dir, root) = made(&["home", "repo", "tmp", "state"]);
        let variables = [
            ("npm_config_cache", "/"),
            ("PIP_CACHE_DIR", root.join("state").to_str().unwrap()),
            ("UV_CACHE_DIR", root.to_str().unwrap()),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let told =
            Surroundings { home: Some(root.join("home")), variables: variables.into(), ..Surroundings::default() };
        let rules = Reach::new(&told, &Further::default()).rules(&root.join("repo"), &[root.join("state")]);
        assert_eq!(rules.write, Vec::<PathBuf>::new());
    }

    #[test]
    fn a_link_in_the_repository_allows_nothing_and_a_cache_may_come_later() {
        let (_dir, root) = made(&["home/.ssh", "disk", "repo"]);
        let link = |to: &str, at: &str| std::os::unix::fs::symlink(root.join(to), root.join(at)).unwrap();
        link("home/.ssh", "repo/bin");
        link("disk", "home/.cache");
        let told = Surroundings {
            home: Some(root.join("home")),
            path: vec![root.join("repo/bin")],
            ..Surroundings::default()
        };
        let reach = Reach::new(&told, &Further::default());
        fs::create_dir(root.join("disk/pip")).unwrap();
        let rules = reach.rules(&root.join("repo"), &[]);
        assert!(!rules.read.contains(&root.join("home/.ssh")));
        assert_eq!(rules.write, [root.join("disk/pip")]);
    }
}
