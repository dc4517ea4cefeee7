//! What a client is told of this program: what to start, and in which surroundings.

use crate::config::Environment;

/// A server's entry in a client's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) struct Entry {
    /// The program.
    pub(in crate::cli) command: String,
    /// Its arguments.
    pub(in crate::cli) args: Vec<String>,
    /// Variables that it is given. None holds a secret.
    pub(in crate::cli) env: Vec<(String, String)>,
}

impl Entry {
    /// Returns the entry by which a client starts this program as it was started now.
    pub(in crate::cli) fn of_this_process() -> Self {
        let env = Environment::of_process().repeatable();
        Self { command: program(), args: vec!["mcp".to_owned()], env }
    }
}

/// Returns this program's path: it need not be on anybody's `PATH`.
pub(in crate::cli) fn program() -> String {
    let program = std::env::current_exe().ok().and_then(|path| path.to_str().map(str::to_owned));
    program.unwrap_or_else(|| env!("CARGO_PKG_NAME").to_owned())
}
