//! Commands of a repository: what they reach, what they are told, what is kept of them, and that they end.

mod confined;
mod disposable;
mod ending;
mod program;
mod shared_memory;
mod tools;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use pgsandbox::command::output::OUTPUT_CHARS_MAX;
use pgsandbox::command::{
    CommandError, Commands, Confinement, Ended, Ran, Repo, Run, Settings, Stdin, Surroundings, Wanted,
};
use tokio_util::sync::CancellationToken;

/// All output, as it is.
pub(crate) const ALL: Wanted =
    Wanted { strip_ansi: false, chars_max: OUTPUT_CHARS_MAX, tail_lines: None, without_docker_lifecycle: false };

/// Returns whether this kernel confines commands. Where it does not, what needs it is not tried.
pub(crate) fn confines() -> bool {
    let confines = Commands::new(Settings::default(), Surroundings::default()).confined().is_ok();
    if !confines {
        crate::harness::not_tried("this kernel has no Landlock");
    }
    confines
}

/// A machine with a home, a repository and the program's state.
pub(crate) struct Ground {
    _dir: tempfile::TempDir,
    pub(crate) root: PathBuf,
    pub(crate) settings: Settings,
    pub(crate) variables: Vec<(String, String)>,
}

impl Ground {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        for path in ["home/.npm", "home/.cache/pip", "home/.ssh", "repo", "state"] {
            fs::create_dir_all(root.join(path)).unwrap();
        }
        fs::write(root.join("state/keys"), "the master key").unwrap();
        fs::write(root.join("home/.ssh/id"), "a private key").unwrap();
        let settings = Settings {
            confinement: Confinement::WhenAvailable,
            hidden: vec![root.join("state")],
            supervisor: env!("CARGO_BIN_EXE_pgsandbox").into(),
            ..Settings::default()
        };
        Self { _dir: dir, root, settings, variables: Vec::new() }
    }

    /// Puts an executable script into the repository, and returns the command that runs it.
    pub(crate) fn script(&self, text: &str) -> Vec<String> {
        use std::os::unix::fs::PermissionsExt;
        let path = self.root.join("repo/script");
        fs::write(&path, format!("#!/bin/bash\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        vec!["./script".to_owned()]
    }

    pub(crate) fn commands(&self) -> Commands {
        let mut told = Surroundings::of_process(&[]);
        told.home = Some(self.root.join("home"));
        Commands::new(self.settings.clone(), told)
    }

    pub(crate) async fn run(&self, argv: &[String]) -> Result<Ran, CommandError> {
        self.run_for(argv, Duration::from_secs(60), CancellationToken::new()).await
    }

    pub(crate) async fn run_for(
        &self,
        argv: &[String],
        timeout: Duration,
        cancel: CancellationToken,
    ) -> Result<Ran, CommandError> {
        let commands = self.commands();
        let repo = commands.open(self.root.join("repo").to_str().unwrap())?;
        self.run_in(&commands, &repo, argv, timeout, cancel).await
    }

    /// Runs a command in a repository that was opened before.
    pub(crate) async fn run_in(
        &self,
        commands: &Commands,
        repo: &Repo,
        argv: &[String],
        timeout: Duration,
        cancel: CancellationToken,
    ) -> Result<Ran, CommandError> {
        let run = Run {
            repo,
            argv,
            stdin: Stdin::Text("read me".to_owned()),
            variables: self.variables.clone(),
            secrets: vec!["hunter2-hunter2".to_owned()],
            timeout,
            wanted: [ALL, ALL],
            console: None,
            cancel,
        };
        commands.run(run).await
    }

    /// Runs a script that succeeds, and returns what it wrote.
    pub(crate) async fn output(&self, text: &str) -> String {
        let ran = self.run(&self.script(text)).await.unwrap();
        assert_eq!(ran.ended, Ended::Exited(0), "{}{}", ran.stdout.text, ran.stderr.text);
        ran.stdout.text
    }
}
