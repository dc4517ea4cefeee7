//! The MCP clients that can be set up, as data: where each keeps its configuration, and how servers stand in it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// A client.
#[derive(Debug)]
pub(super) struct Client {
    /// The word on the command line.
    pub(super) name: &'static str,
    /// What people call it.
    pub(super) title: &'static str,
    /// What its files are written in.
    pub(super) syntax: Syntax,
    /// The key of the object that holds its servers by name.
    pub(super) servers: &'static str,
    /// Whether an entry says by `type` how its server is reached.
    pub(super) typed: bool,
    user: Option<Place>,
    /// Below the project's directory.
    project: Option<&'static str>,
    /// What to do instead, where a scope has no file of its own.
    instead: &'static str,
    /// What to do for a change to be seen.
    pub(super) after: &'static str,
}

/// What a configuration file is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Syntax {
    /// JSON and nothing more.
    Json,
    /// JSON that may hold comments and trailing commas.
    JsonWithComments,
    /// TOML.
    Toml,
}

/// Whom a configuration is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// Everything that the user does.
    User,
    /// One project.
    Project,
}

/// Where a user's own file is.
#[derive(Debug)]
enum Place {
    /// Below the home directory.
    Home(&'static str),
    /// Below the directory that a variable names, or one below the home directory.
    HomeOr { variable: &'static str, home: &'static str, file: &'static str },
    /// Below where the system keeps its applications' settings.
    Settings(&'static str),
}

/// The clients, in the order of the guide.
pub(super) static CLIENTS: [Client; 5] = [
    Client {
        name: "codex",
        title: "Codex",
        syntax: Syntax::Toml,
        servers: "mcp_servers",
        typed: false,
        user: Some(Place::HomeOr { variable: "CODEX_HOME", home: ".codex", file: "config.toml" }),
        project: Some(".codex/config.toml"),
        instead: "",
        after: "start Codex again; `/mcp` lists its servers",
    },
    Client {
        name: "cursor",
        title: "Cursor",
        syntax: Syntax::JsonWithComments,
        servers: "mcpServers",
        typed: false,
        user: Some(Place::Home(".cursor/mcp.json")),
        project: Some(".cursor/mcp.json"),
        instead: "",
        after: "Cursor asks whether to enable the server; its settings list it under MCP",
    },
    Client {
        name: "vscode",
        title: "VS Code",
        syntax: Syntax::JsonWithComments,
        servers: "servers",
        typed: true,
        user: Some(Place::Settings("Code/User/mcp.json")),
        project: Some(".vscode/mcp.json"),
        instead: "",
        after: "`MCP: List Servers` starts and shows it",
    },
    Client {
        name: "claude-desktop",
        title: "Claude Desktop",
        syntax: Syntax::Json,
        servers: "mcpServers",
        typed: false,
        user: Some(Place::Settings("Claude/claude_desktop_config.json")),
        project: None,
        instead: "Claude Desktop has no configuration of a project's own; say `--scope user`",
        after: "quit Claude Desktop and start it again",
    },
    Client {
        name: "claude-code",
        title: "Claude Code",
        syntax: Syntax::Json,
        servers: "mcpServers",
        typed: false,
        user: None,
        project: Some(".mcp.json"),
        instead: "Claude Code keeps its user's servers among much else; say `--scope project`, or run `claude mcp add --scope user pgsandbox -- PROGRAM mcp`",
        after: "Claude Code asks whether to trust the project's servers; `/mcp` lists them",
    },
];

/// Where files are looked for.
#[derive(Clone, Debug)]
pub(super) struct Surroundings {
    /// The user's home directory.
    pub(super) home: Option<PathBuf>,
    /// The project's directory.
    pub(super) project: PathBuf,
    /// Whether applications keep their settings where macOS wants them.
    pub(super) macos: bool,
    /// Reads a variable.
    pub(super) variable: fn(&str) -> Option<OsString>,
}

impl Client {
    /// Returns the scope that is meant where none is said.
    pub(super) fn scope(&self) -> Scope {
        if self.user.is_some() { Scope::User } else { Scope::Project }
    }

    /// Says what to do where a scope is none of the client's.
    fn instead(&self) -> String {
        self.instead.replace("PROGRAM", &super::entry::program())
    }

    /// Returns the file of a scope.
    ///
    /// # Errors
    /// Says what to do instead, if there is none.
    pub(super) fn file(&self, scope: Scope, around: &Surroundings) -> Result<PathBuf, String> {
        let place = match scope {
            Scope::Project => {
                return self.project.map(|file| around.project.join(file)).ok_or_else(|| self.instead());
            }
            Scope::User => self.user.as_ref().ok_or_else(|| self.instead())?,
        };
        let absolute = |path: &Path| path.is_absolute();
        let named = |name: &str| (around.variable)(name).map(PathBuf::from).filter(|path| absolute(path));
        let home = || {
            let home = around.home.clone().filter(|home| absolute(home));
            home.ok_or_else(|| "`HOME` is not set to an absolute path".to_owned())
        };
        Ok(match place {
            Place::Home(file) => home()?.join(file),
            Place::HomeOr { variable, home: below, file } => match named(variable) {
                Some(dir) => dir.join(file),
                None => home()?.join(below).join(file),
            },
            Place::Settings(file) if around.macos => home()?.join("Library/Application Support").join(file),
            Place::Settings(file) => match named("XDG_CONFIG_HOME") {
                Some(dir) => dir.join(file),
                None => home()?.join(".config").join(file),
            },
        })
    }
}

impl Scope {
    /// Both, the one that is meant first.
    pub(super) const ALL: [Self; 2] = [Self::User, Self::Project];

    /// Returns the word on the command line.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Project => "project",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(macos: bool, variable: fn(&str) -> Option<OsString>, expected: &[&str]) {
        let around = Surroundings { home: Some("/h".into()), project: "/p".into(), macos, variable };
        let mut seen = Vec::new();
        for client in &CLIENTS {
            for scope in Scope::ALL {
                seen.extend(client.file(scope, &around).ok().map(|path| path.display().to_string()));
            }
        }
        assert_eq!(seen, expected);
    }

    #[test]
    fn each_client_has_its_files_where_it_looks_for_them() {
        check(
            false,
            |_| None,
            &[
                "/h/.codex/config.toml",
                "/p/.codex/config.toml",
                "/h/.cursor/mcp.json",
                "/p/.cursor/mcp.json",
                "/h/.config/Code/User/mcp.json",
                "/p/.vscode/mcp.json",
                "/h/.config/Claude/claude_desktop_config.json",
                "/p/.mcp.json",
            ],
        );
        check(
            true,
            |name| (name == "CODEX_HOME").then(|| "/c".into()),
            &[
                "/c/config.toml",
                "/p/.codex/config.toml",
                "/h/.cursor/mcp.json",
                "/p/.cursor/mcp.json",
                "/h/Library/Application Support/Code/User/mcp.json",
                "/p/.vscode/mcp.json",
                "/h/Library/Application Support/Claude/claude_desktop_config.json",
                "/p/.mcp.json",
            ],
        );
    }

    #[test]
    fn a_scope_without_a_file_says_what_to_do_instead() {
        let around = Surroundings { home: None, project: "/p".into(), macos: false, variable: |_| None };
        for (client, scope, told) in [
            ("claude-desktop", Scope::Project, "--scope user"),
            ("claude-code", Scope::User, "--scope project"),
            ("cursor", Scope::User, "`HOME`"),
        ] {
            let said = CLIENTS.iter().find(|of| of.name == client).unwrap().file(scope, &around).unwrap_err();
            assert!(said.contains(told), "{said}");
        }
    }
}
