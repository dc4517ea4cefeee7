//! What is fixed about an operation: name, help, impact, and which demands of policies it can meet.

use crate::model::{Impact, ObligationKind};

/// The description of one operation. Tools, commands, schemas, the reference page and the impact table
/// all come from it.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// The contract's name, `create_database` for instance.
    pub name: &'static str,
    /// A short title for people.
    pub title: &'static str,
    /// What it does, for agents and people; a few sentences.
    pub help: &'static str,
    /// What it does to the world.
    pub impact: Impact,
    /// The demands of policies that it can make true. Any other demand refuses the request.
    pub meets: &'static [ObligationKind],
    /// The group of tools it belongs to.
    pub toolset: Toolset,
    /// Whether repeating a call with the same arguments changes nothing more.
    pub idempotent: bool,
}

/// A group of tools that a client can be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Toolset {
    /// What an agent needs to get, use and lose a sandbox.
    Core,
    /// Copies of databases: clones, forks, templates.
    Copies,
    /// Reading and comparing schemas and plans.
    Schema,
    /// Commands of a repository, run against a sandbox.
    Repository,
    /// What an operator looks after: servers and approvals.
    Operator,
}

impl Toolset {
    /// Every toolset.
    pub const ALL: [Self; 5] = [Self::Core, Self::Copies, Self::Schema, Self::Repository, Self::Operator];

    /// Returns the word used on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Core => "core",
            Self::Copies => "copies",
            Self::Schema => "schema",
            Self::Repository => "repository",
            Self::Operator => "operator",
        }
    }
}

/// Operations that may remove or overwrite something though their impact says nothing of it: commands that do what they
/// like, and copies that take the place of older ones.
const OVERWRITES: [&str; 6] = [
    "create_template_from_sandbox",
    "export_template",
    "import_template",
    "run_repo_command",
    "seed_database",
    "validate_schema_change",
];

impl Spec {
    /// Returns the operation's name as a command: `create-database`.
    pub fn command(&self) -> String {
        self.name.replace('_', "-")
    }

    /// Returns whether the operation changes nothing, and hands out nothing that a person would want to be asked about.
    pub const fn reads_only(&self) -> bool {
        matches!(self.impact, Impact::Reads)
    }

    /// Returns whether the operation may remove or overwrite something.
    pub fn destructive(&self) -> bool {
        matches!(self.impact, Impact::Destroys | Impact::Writes) || OVERWRITES.contains(&self.name)
    }

    /// Returns whether the operation touches systems beyond sandboxes.
    pub const fn open_world(&self) -> bool {
        matches!(self.impact, Impact::ReachesOut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::{OPERATIONS, find};

    #[test]
    fn what_clients_are_told_of_a_tool_is_no_better_than_it_is() {
        for name in OVERWRITES {
            assert!(find(name).is_ok_and(|entry| entry.spec.destructive()), "{name}");
        }
        let hints =
            |name: &str| find(name).map(|entry| (entry.spec.reads_only(), entry.spec.destructive())).ok().unwrap();
        assert_eq!(hints("get_connection_string"), (false, false), "it can hand out a password");
        assert_eq!(hints("run_sql"), (false, true));
        assert_eq!(hints("create_database"), (false, false));
        assert_eq!(hints("list_databases"), (true, false));
        assert!(OPERATIONS.iter().all(|entry| !(entry.spec.reads_only() && entry.spec.destructive())));
    }
}
