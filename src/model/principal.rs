//! Who asks.

use super::limits::LABEL_BYTES_MAX;

/// The authenticated caller. Nothing in it is chosen by the caller's arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// The authenticated identity: the local user's name, or a token's subject.
    pub subject: String,
    /// The owner whose quotas and policy settings apply.
    pub owner: String,
    /// Groups, sorted and without repetition.
    pub groups: Vec<String>,
    /// How the request arrived.
    pub transport: Transport,
    /// What the client program calls itself, or empty. Unverified: good for records, not for decisions.
    pub client: String,
    /// Whether the subject is somebody's whom others know by it.
    pub identity: Identity,
}

/// How a subject and its groups are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Identity {
    /// Authenticated, or the numbers that the kernel has of a process on the whole machine.
    Certain,
    /// The numbers of a user namespace, which whoever made it chose: nobody is known by them. There are no groups.
    Chosen,
}

/// How a request arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// MCP over standard input and output.
    Stdio,
    /// MCP over HTTP.
    Http,
    /// The command line.
    Cli,
    /// The program's own upkeep: reaper, recovery, pool, key rotation.
    Internal,
}

impl Transport {
    /// Returns the word used in records.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stdio => "stdio",
            Self::Http => "http",
            Self::Cli => "cli",
            Self::Internal => "internal",
        }
    }
}

/// What the owners of the program's own upkeep begin with; nobody else's does.
pub const SYSTEM_OWNER_PREFIX: &str = "system:";

/// Says what is wrong with the name of an owner, if anything.
///
/// Policies' settings match owners by patterns, so what a pattern is made of cannot be in a name.
pub fn owner_fault(owner: &str) -> Option<String> {
    let odd = |c: char| c.is_control() || matches!(c, '*' | '?' | '[' | ']');
    if owner.is_empty() || owner.len() > LABEL_BYTES_MAX || owner.chars().any(odd) || owner.trim() != owner {
        return Some(format!(
            "is not 1 to {LABEL_BYTES_MAX} bytes without control characters, `*`, `?`, `[`, `]`, or blanks at an end"
        ));
    }
    owner.starts_with(SYSTEM_OWNER_PREFIX).then(|| format!("begins with `{SYSTEM_OWNER_PREFIX}`, which is reserved"))
}
