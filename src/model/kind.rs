//! What a sandbox is for.

/// What a sandbox is for: both are made, tracked and removed in the same way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SandboxKind {
    /// To be worked in, until its time is over.
    #[default]
    Sandbox,
    /// To be copied: nobody enters it, and it has no end of its own.
    Template,
}

impl SandboxKind {
    /// Returns the word that is stored.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sandbox => "sandbox",
            Self::Template => "template",
        }
    }
}
