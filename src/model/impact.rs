//! What an operation does to the world.

/// The effect of an operation, from harmless to far-reaching.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Impact {
    /// Looks, and changes nothing.
    Reads,
    /// Makes a sandbox or something like it.
    Creates,
    /// Changes what is inside a sandbox, or a sandbox's own facts.
    Writes,
    /// Removes a sandbox or what is kept of it.
    Destroys,
    /// Gives out something secret.
    Discloses,
    /// Reaches a system that is not a sandbox: another database, the machine's commands.
    ReachesOut,
}

impl Impact {
    /// Every impact, in order.
    pub const ALL: [Self; 6] =
        [Self::Reads, Self::Creates, Self::Writes, Self::Destroys, Self::Discloses, Self::ReachesOut];

    /// Returns the word used in records and pages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reads => "reads",
            Self::Creates => "creates",
            Self::Writes => "writes",
            Self::Destroys => "destroys",
            Self::Discloses => "discloses",
            Self::ReachesOut => "reaches-out",
        }
    }
}
