//! The words of the closed sets, as settings, messages and cases files write them.

use crate::{Access, CredentialAccess, Impact, Origin, Phase, Scope, StatementClass, StatementTraits, Tls, Transport};

macro_rules! words {
    ($($set:ident { $($variant:ident $word:literal),+ $(,)? })+) => {$(
        impl $set {
            /// Every member with its word.
            pub const WORDS: &'static [(Self, &'static str)] = &[$((Self::$variant, $word)),+];

            /// Returns the member's word.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }

            /// Returns the member with this word.
            pub fn from_word(word: &str) -> Option<Self> {
                Self::WORDS.iter().find(|(_, w)| *w == word).map(|(member, _)| *member)
            }
        }
    )+};
}

words! {
    Phase { Visible "visible", Before "before", After "after" }
    Impact {
        Reads "reads", Creates "creates", Writes "writes", Destroys "destroys", Discloses "discloses",
        ReachesOut "reaches-out",
    }
    Transport { Stdio "stdio", Http "http", Cli "cli", Internal "internal" }
    Origin { Empty "empty", Clone "clone", Fork "fork", Template "template" }
    Access { Reads "reads", Writes "writes", Defines "defines" }
    Tls {
        Disabled "disabled", Prefer "prefer", Require "require", VerifyCa "verify-ca", VerifyFull "verify-full",
    }
    CredentialAccess { Owner "owner", ReadOnly "read-only" }
    Scope { Principal "principal", Group "group" }
    StatementClass {
        Read "read", ReadLock "read-lock", Write "write", Ddl "ddl", Code "code", AccessControl "access-control",
        Cluster "cluster", Transaction "transaction", Session "session", Show "show", Procedural "procedural",
        CopyIn "copy-in", CopyOut "copy-out", CopyServer "copy-server", Maintenance "maintenance",
        Replication "replication", Notify "notify", Lock "lock", Prepared "prepared", Cursor "cursor",
        Utility "utility", Explain "explain", Empty "empty", Unparsed "unparsed",
    }
}

impl StatementTraits {
    /// Every trait with its word.
    pub const WORDS: &'static [(Self, &'static str)] = &[
        (Self::DATA_MODIFYING_CTE, "data-modifying-cte"),
        (Self::DYNAMIC_SQL, "dynamic-sql"),
        (Self::VOLATILE_FUNCTION, "volatile-function"),
        (Self::SERVER_FILE, "server-file"),
        (Self::NETWORK, "network"),
        (Self::SESSION_SETTING, "session-setting"),
        (Self::OPAQUE_BODY, "opaque-body"),
        (Self::NO_WHERE, "no-where"),
        (Self::UNQUALIFIED_RELATION, "unqualified-relation"),
        (Self::UNKNOWN_FUNCTION, "unknown-function"),
        (Self::RELATIONS_UNKNOWN, "relations-unknown"),
    ];

    /// Returns the trait with this word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::WORDS.iter().find(|(_, w)| *w == word).map(|(member, _)| *member)
    }
}
