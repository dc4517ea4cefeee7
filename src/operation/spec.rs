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

impl Spec {
    /// Returns the operation's name as a command: `create-database`.
    pub fn command(&self) -> String {
        self.name.replace('_', "-")
    }

    /// Returns whether the operation changes nothing.
    pub const fn reads_only(&self) -> bool {
        matches!(self.impact, Impact::Reads | Impact::Discloses)
    }

    /// Returns whether the operation may remove or overwrite something.
    pub const fn destructive(&self) -> bool {
        matches!(self.impact, Impact::Destroys | Impact::Writes)
    }

    /// Returns whether the operation touches systems beyond sandboxes.
    pub const fn open_world(&self) -> bool {
        matches!(self.impact, Impact::ReachesOut)
    }
}
