//! Runs commands of a repository: argv without a shell, a small environment, confined, bounded, and ended as a whole.
//!
//! A command is looked after by a process of its own ([`supervisor`]), which ends all that comes of it with the command: by the
//! end of a namespace of process numbers, or, where there is none, as the parent that everything falls to. On Linux, Landlock denies the command every file but the repository, a temporary directory, the system's
//! programs and the caches of package managers; where there is no Landlock nothing is run, unless the operator allows it.
//! Whether a command may run at all is decided elsewhere, and nothing here asks.

pub mod argv;
mod confine;
mod descendants;
mod error;
mod first;
mod namespace;
mod order;
pub mod output;
pub mod project;
mod reach;
mod redact;
mod repo;
mod run;
mod start;
mod supervisor;
pub mod surroundings;
pub mod survey;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use tokio::sync::Semaphore;

pub use self::error::CommandError;
pub use self::output::{Captured, Wanted};
use self::reach::Reach;
pub use self::reach::{DEVICES, Further, SYSTEM};
pub use self::repo::{Grounds, Repo};
pub use self::run::{Ended, Ran, Run, STDIN_BYTES_MAX, Stdin, Stopped, TIMEOUT_SECONDS_DEFAULT, TIMEOUT_SECONDS_MAX};
pub use self::surroundings::{PLACES, Surroundings};

/// The word by which this program is started to look after a command.
const SUPERVISE: &str = "__supervise-command";
/// And the one by which that starts it anew, to be the first process of a namespace.
const FIRST: &str = "first";
/// The most commands at a time: each is a program of somebody else's, and takes what it likes of the machine.
pub const COMMANDS_MAX: usize = 4;

/// What to do where commands cannot be confined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Confinement {
    /// Run none.
    #[default]
    Required,
    /// Run them all the same.
    WhenAvailable,
}

/// Whether commands have process numbers of their own, by whose end all that comes of one is ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Namespace {
    /// Where the kernel lets us.
    #[default]
    WhenAvailable,
    /// They have the system's; what comes of one is looked for, and ended.
    Never,
}

/// How commands are run.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// What to do where they cannot be confined.
    pub confinement: Confinement,
    /// Whether they have process numbers of their own.
    pub namespace: Namespace,
    /// Files and directories that they reach besides.
    pub further: Further,
    /// Directories below which repositories may be; empty for anywhere.
    pub repositories: Vec<PathBuf>,
    /// This program's own files and directories, which no command reaches.
    pub hidden: Vec<PathBuf>,
    /// Secrets of this program, which no output shows.
    pub secrets: Vec<String>,
    /// This program.
    pub supervisor: PathBuf,
}

/// Runs commands.
#[derive(Debug)]
pub struct Commands {
    settings: Settings,
    told: Surroundings,
    reach: Reach,
    /// This program's own file.
    program: Option<PathBuf>,
    /// Whether the kernel has not said yet that it gives no process numbers of their own.
    in_namespace: AtomicBool,
    turns: Semaphore,
}

impl Commands {
    /// Builds it; starts nothing.
    pub fn new(settings: Settings, told: Surroundings) -> Self {
        let reach = Reach::new(&told, &settings.further);
        let program = std::fs::canonicalize(&settings.supervisor).ok();
        let in_namespace = AtomicBool::new(settings.namespace == Namespace::WhenAvailable);
        Self { settings, told, reach, program, in_namespace, turns: Semaphore::new(COMMANDS_MAX) }
    }

    /// Opens a repository.
    ///
    /// # Errors
    /// `repo_not_found`, or `unsafe_command` for what is no place to run commands in.
    pub fn open(&self, path: &str) -> Result<Repo, CommandError> {
        let grounds = Grounds {
            within: self.settings.repositories.clone(),
            hidden: self.settings.hidden.clone(),
            home: self.told.home.clone(),
            path: self.told.path.clone(),
            program: self.program.clone(),
        };
        Repo::open(path, &grounds)
    }
}

/// Looks after a command, if this process was started for it.
pub fn supervise_if_asked(arguments: &[OsString]) -> Option<ExitCode> {
    let is_first = || arguments.get(2).is_some_and(|word| word == FIRST);
    (arguments.get(1)? == SUPERVISE).then(|| if is_first() { first::main() } else { supervisor::main() })
}

/// Returns `text` without `secret`, in every form that output is cleared of.
pub fn without(text: &str, secret: &str) -> String {
    redact::Secrets::new([secret]).redact(text)
}
