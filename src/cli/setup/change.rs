//! What is to become of a client's configuration, and what became of it: the same for every syntax.

use super::entry::Entry;

/// What is wanted of a configuration.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change<'a> {
    /// That the server is there as the entry says; whatever else it has is kept.
    Put(&'a Entry),
    /// That the server is not there, nor what was made for it.
    Remove(Made),
}

/// What was made for the server when it was put there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Made {
    /// Its entry alone.
    #[default]
    Entry,
    /// What holds the servers, too.
    Servers,
    /// The whole file.
    File,
}

impl Made {
    /// Each of them.
    pub(super) const ALL: [Self; 3] = [Self::Entry, Self::Servers, Self::File];

    /// Returns what a word in the record says; one that is not known says the least.
    pub(super) fn of(word: &str) -> Self {
        Self::ALL.into_iter().find(|made| made.as_str() == word).unwrap_or_default()
    }

    /// Returns the word in the record.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Entry => "entry",
            Self::Servers => "servers",
            Self::File => "file",
        }
    }
}

/// Where in a configuration something is, and as what.
#[derive(Clone, Copy, Debug)]
pub(super) struct At<'a> {
    /// The key of what holds the servers.
    pub(super) servers: &'a str,
    /// The server's name.
    pub(super) name: &'a str,
    /// Whether an entry says by `type` how its server is reached.
    pub(super) typed: bool,
}

/// A configuration after the change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Changed {
    /// All of it; `None` if nothing but an empty shell is left of a file that was made for the server.
    pub(super) text: Option<String>,
    /// What was made to put the server there.
    pub(super) made: Made,
    /// Whether the server was there before.
    pub(super) was_there: bool,
    /// What the entry has that is not of our making: kept, or gone with it.
    pub(super) others: Vec<String>,
}

/// Why a configuration is left alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// The place in the text, from 1; `None` if it has none.
    pub(super) at: Option<(usize, usize)>,
    /// What is wrong.
    pub(super) what: String,
}

impl Fault {
    pub(super) fn new(text: &str, offset: usize, what: impl Into<String>) -> Self {
        Self { at: Some(place(text, offset)), what: what.into() }
    }
}

/// Returns line and column, both from 1, of a byte of a text; columns are counted in characters.
pub(super) fn place(text: &str, offset: usize) -> (usize, usize) {
    let before: String = text.bytes().take(offset).map(char::from).collect();
    let before = text.get(..offset).unwrap_or(&before);
    let line = before.rsplit('\n').next().unwrap_or_default();
    (before.matches('\n').count() + 1, line.chars().count() + 1)
}

/// Arguments by which some client reaches a server otherwise than by starting a program.
pub(super) const REACHED_BY: [&str; 3] = ["url", "serverUrl", "httpUrl"];

/// What is said of arguments that somebody added to ours.
pub(super) const FURTHER_ARGUMENTS: &str = "further arguments";

/// Returns whether a variable is one that setting up writes, where it is set.
pub(super) fn is_written(variable: &str) -> bool {
    crate::config::is_repeatable(variable)
}

/// What is said of an entry that is reached over a network.
pub(super) fn reached_by(name: &str, by: &str) -> String {
    format!("the entry `{name}` has a `{by}`, and is another server's; remove or rename it, or say `--name`")
}

/// What is said of an entry that starts another program.
pub(super) fn starts_another(name: &str) -> String {
    format!("the entry `{name}` starts another program than this one; remove it by hand if it is to go")
}

/// What is said where a server is to be put and another is.
pub(super) fn is_anothers(name: &str) -> String {
    format!("the entry `{name}` starts another program than this one; remove or rename it, or say `--name`")
}

/// Returns whether a command is this program's, wherever it is installed.
pub(super) fn is_ours(command: &str) -> bool {
    let name = command.rsplit(['/', '\\']).next().unwrap_or_default();
    name == env!("CARGO_PKG_NAME") || command == super::entry::program()
}
