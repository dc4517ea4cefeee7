//! What keeps a command from running, and what callers are told of it.

use std::path::PathBuf;

use crate::model::{Code, Failure};

/// Why a command was not run, or was stopped.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// No program was named.
    #[error("the command names no program")]
    Empty,
    /// Too many words, or too many bytes.
    #[error("the command has {words} words and {bytes} bytes")]
    TooLong {
        /// How many words.
        words: usize,
        /// How many bytes, all words together.
        bytes: usize,
    },
    /// A NUL or a line break in a word.
    #[error("the command holds a NUL or a line break")]
    Unprintable,
    /// A shell, or a program that runs its arguments.
    #[error("`{program}` runs whatever its arguments say")]
    Launcher {
        /// Its file name.
        program: String,
    },
    /// The first word cannot be a program.
    #[error("the command's first word is no program")]
    NoProgram,
    /// A whole line in the first word.
    #[error("the command's first word is a whole line, or text for a shell")]
    Line,
    /// An assignment in the first word.
    #[error("the command's first word is an assignment")]
    Assignment,
    /// The repository is not there.
    #[error("there is no repository at `{}`", path.display())]
    RepoNotFound {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The repository is named from somewhere.
    #[error("the repository's path `{}` is not absolute", path.display())]
    RepoRelative {
        /// As it was given.
        path: PathBuf,
    },
    /// A password in what is to be written down.
    #[error("the command to be recorded holds what looks like a password")]
    Password,
    /// The repository cannot be used.
    #[error("the repository `{}` {why}", path.display())]
    Repo {
        /// The path.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// This system does not confine commands.
    #[error("commands cannot be confined on this system: {why}")]
    Unconfined {
        /// What is missing.
        why: String,
    },
    /// There is no such program.
    #[error("there is no program `{program}`")]
    NotFound {
        /// As it was given.
        program: String,
    },
    /// The program may not be run.
    #[error("`{program}` may not be run")]
    NotExecutable {
        /// As it was given.
        program: String,
    },
    /// It was ended for what it started.
    #[error(
        "`{program}` had more than {} processes and threads and was ended with all of them",
        super::descendants::TASKS_MAX
    )]
    TooMany {
        /// As it was given.
        program: String,
    },
    /// Something that came of it could not be ended.
    #[error("`{program}` ended, and {} that it had started could not be ended", crate::model::counted(*count, "process", "processes"))]
    Remains {
        /// As it was given.
        program: String,
        /// How many.
        count: u32,
    },
    /// Something of the system failed.
    #[error("the command could not be started: {why}")]
    System {
        /// What, without arguments.
        why: String,
    },
    /// Too many commands run.
    #[error("as many commands run as may at a time")]
    Busy,
    /// The caller cancelled while the command waited for its turn.
    #[error("the call was cancelled by the caller; nothing was run")]
    Cancelled,
    /// A name for the database URL that is not taken.
    #[error("`{name}` cannot name the database URL")]
    VariableName {
        /// As it was given, shortened.
        name: String,
    },
}

impl From<CommandError> for Failure {
    fn from(error: CommandError) -> Self {
        let text = error.to_string();
        match error {
            CommandError::Empty | CommandError::NoProgram => {
                Self::new(Code::UnclearCommand, text).hint("give the program and each argument as a word of its own")
            }
            CommandError::Line => Self::new(Code::UnclearCommand, text)
                .hint("no shell reads the command: give the program and each argument as a word of its own; on the command line, by the option once for each"),
            CommandError::Assignment => Self::new(Code::UnclearCommand, text)
                .hint("name the program first; variables for the database URL go into `databaseUrlEnvNames`").naming(&["databaseUrlEnvNames"]),
            CommandError::TooLong { .. } => Self::new(Code::UnsafeCommand, text).hint(format!(
                "at most {} words and {} bytes; put more into a script of the repository, or into `stdin`",
                super::argv::WORDS_MAX,
                super::argv::ARGV_BYTES_MAX
            )),
            CommandError::Unprintable => {
                Self::new(Code::UnsafeCommand, text).hint("put text of several lines into a file, or into `stdin`")
            }
            CommandError::Launcher { .. } => Self::new(Code::UnsafeCommand, text).hint(
                "name the program itself, or an executable script of the repository: `./scripts/seed.sh`, `npm run seed`",
            ),
            CommandError::RepoNotFound { .. } => {
                Self::new(Code::RepoNotFound, text).hint("give the absolute path of an existing directory")
            }
            CommandError::RepoRelative { .. } => {
                Self::new(Code::RepoNotFound, text).hint("give it from the root, `/home/ann/project` for instance")
            }
            CommandError::Password => Self::new(Code::UnsafeCommand, text).hint(
                "it would stand in a file of the repository: leave it out. The command finds the sandbox's URL in `DATABASE_URL` and its password in `PGPASSWORD`; a script of the repository can use them, and `commands.environment` passes others of the server's variables on",
            ),
            CommandError::Repo { .. } => Self::new(Code::UnsafeCommand, text)
                .hint(
                "give the directory of one repository, `/home/ann/project`, `/srv/app`, `/var/www/app` or `/workspace` for instance, apart from programs on `PATH` and from this program's own directories",
            ),
            CommandError::Unconfined { .. } => Self::new(Code::UnsafeCommand, text).hint(
                "run on Linux 6.2 or later with Landlock, or let the operator set `commands.confinement` to `available`",
            ),
            CommandError::NotFound { .. } => Self::new(Code::UnclearCommand, text)
                .hint("is it installed, and on the path? A script of the repository begins with `./`"),
            CommandError::NotExecutable { .. } => Self::new(Code::UnclearCommand, text).hint(
                "is it executable? Programs outside the repository, the system's directories and the path are out of reach unless the operator lists them in `commands.readable`",
            ),
            CommandError::TooMany { .. } => {
                Self::new(Code::UnsafeCommand, text).hint("let it do less at a time: most tools have an option for that")
            }
            CommandError::Remains { .. } => Self::new(Code::Internal, text.clone())
                .hint("look for them among the processes of this user: they may still write to the repository and the sandbox")
                .audit(text),
            CommandError::System { .. } => Self::new(Code::Internal, "the command could not be started").audit(text),
            CommandError::Busy => Self::new(Code::Busy, text).hint("call again when another has ended"),
            CommandError::Cancelled => Self::new(Code::Cancelled, text),
            CommandError::VariableName { .. } => Self::new(Code::InvalidArguments, text)
                .hint("use up to 8 names of letters, digits and `_` that no program reads for anything else, `APP_DATABASE_URL` for instance"),
        }
    }
}
