//! What authors do with a component, through the real program: it needs no configuration, no state directory and no cluster,
//! and leaves nothing anywhere.

mod cases;
mod checking;
mod measuring;
mod testing;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::policies::guest::Guest;

/// A folder with a component in it, and a home that must never come to be.
pub(crate) struct Desk {
    dir: TempDir,
}

impl Desk {
    pub(crate) fn with(component: &[u8]) -> Self {
        let desk = Self { dir: tempfile::tempdir().unwrap() };
        desk.write("p.wasm", component);
        desk
    }

    pub(crate) fn of(guest: &Guest) -> Self {
        Self::with(&guest.component())
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let folder = self.dir.path().join("policy");
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("policy")
    }

    /// Runs `policy <command> <folder> …` and returns its status and what it wrote.
    pub(crate) fn run(&self, command: &str, arguments: &[&str]) -> Ran {
        run_on(&self.path(), command, arguments)
    }
}

/// What a run of the program came to.
pub(crate) struct Ran {
    pub(crate) status: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {} {}", self.out, self.err))
    }
}

/// Runs a command on a path, in an environment that has nothing in it.
pub(crate) fn run_on(path: &Path, command: &str, arguments: &[&str]) -> Ran {
    let home = tempfile::tempdir().unwrap();
    let mut program = Command::new(env!("CARGO_BIN_EXE_pgsandbox"));
    program.args(["policy", command]).arg(path).args(arguments).env_clear();
    // What would be fatal to every other command.
    program.env("PGSANDBOX_HOME", home.path().join("state")).env("PGSANDBOX_CONFIG", "/nowhere.json");
    let Output { status, stdout, stderr } = program.stdin(Stdio::null()).output().unwrap();
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0, "something was made");
    Ran {
        status: status.code().unwrap(),
        out: String::from_utf8(stdout).unwrap(),
        err: String::from_utf8(stderr).unwrap(),
    }
}

/// Returns the folder of a bundled policy.
pub(crate) fn bundled(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("policies").join(name)
}
