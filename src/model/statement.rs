//! What is known of one SQL statement before it runs.

use std::fmt;

/// What a statement does, by class; every production of Postgres' grammar falls into one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StatementClass {
    /// SELECT, VALUES, TABLE and WITH that change and lock nothing.
    Read,
    /// A read with a row lock clause.
    ReadLock,
    /// INSERT, UPDATE, DELETE, MERGE, TRUNCATE, or a read that contains one.
    Write,
    /// CREATE, ALTER, DROP of data objects; COMMENT; SELECT INTO; CREATE TABLE AS.
    Ddl,
    /// Functions, triggers, rules, casts, operators, languages, extensions, foreign servers.
    Code,
    /// GRANT, REVOKE, default privileges, REASSIGN and DROP OWNED.
    AccessControl,
    /// Roles, databases, tablespaces, ALTER SYSTEM.
    Cluster,
    /// BEGIN to PREPARE TRANSACTION, SET TRANSACTION, SET CONSTRAINTS.
    Transaction,
    /// SET, RESET, DISCARD, SET ROLE.
    Session,
    /// SHOW.
    Show,
    /// DO and CALL.
    Procedural,
    /// COPY … FROM STDIN.
    CopyIn,
    /// COPY … TO STDOUT.
    CopyOut,
    /// COPY with a server's file or program.
    CopyServer,
    /// VACUUM, ANALYZE, REINDEX, CLUSTER, CHECKPOINT, REFRESH.
    Maintenance,
    /// Publications and subscriptions.
    Replication,
    /// LISTEN, NOTIFY, UNLISTEN.
    Notify,
    /// LOCK.
    Lock,
    /// PREPARE, EXECUTE, DEALLOCATE.
    Prepared,
    /// DECLARE, FETCH, MOVE, CLOSE.
    Cursor,
    /// LOAD, SECURITY LABEL.
    Utility,
    /// EXPLAIN that runs nothing.
    Explain,
    /// Nothing but space and comments.
    Empty,
    /// A statement that scans and is of no known class.
    Unparsed,
}

impl StatementClass {
    /// Every class.
    pub const ALL: [Self; 24] = [
        Self::Read,
        Self::ReadLock,
        Self::Write,
        Self::Ddl,
        Self::Code,
        Self::AccessControl,
        Self::Cluster,
        Self::Transaction,
        Self::Session,
        Self::Show,
        Self::Procedural,
        Self::CopyIn,
        Self::CopyOut,
        Self::CopyServer,
        Self::Maintenance,
        Self::Replication,
        Self::Notify,
        Self::Lock,
        Self::Prepared,
        Self::Cursor,
        Self::Utility,
        Self::Explain,
        Self::Empty,
        Self::Unparsed,
    ];

    /// Returns the word used in records and settings.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::ReadLock => "read-lock",
            Self::Write => "write",
            Self::Ddl => "ddl",
            Self::Code => "code",
            Self::AccessControl => "access-control",
            Self::Cluster => "cluster",
            Self::Transaction => "transaction",
            Self::Session => "session",
            Self::Show => "show",
            Self::Procedural => "procedural",
            Self::CopyIn => "copy-in",
            Self::CopyOut => "copy-out",
            Self::CopyServer => "copy-server",
            Self::Maintenance => "maintenance",
            Self::Replication => "replication",
            Self::Notify => "notify",
            Self::Lock => "lock",
            Self::Prepared => "prepared",
            Self::Cursor => "cursor",
            Self::Utility => "utility",
            Self::Explain => "explain",
            Self::Empty => "empty",
            Self::Unparsed => "unparsed",
        }
    }
}

/// A set of things known of a statement beside its class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Traits(u16);

impl Traits {
    /// A WITH clause changes data.
    pub const DATA_MODIFYING_CTE: Self = Self(1);
    /// Text is executed that is not visible (DO, CALL, EXECUTE).
    pub const DYNAMIC_SQL: Self = Self(1 << 1);
    /// A called function is volatile.
    pub const VOLATILE_FUNCTION: Self = Self(1 << 2);
    /// The server's files are read or written.
    pub const SERVER_FILE: Self = Self(1 << 3);
    /// Other servers may be contacted.
    pub const NETWORK: Self = Self(1 << 4);
    /// A setting of the session is changed.
    pub const SESSION_SETTING: Self = Self(1 << 5);
    /// A function body or quoted block was not looked into.
    pub const OPAQUE_BODY: Self = Self(1 << 6);
    /// UPDATE or DELETE without WHERE.
    pub const NO_WHERE: Self = Self(1 << 7);
    /// A relation is named without its schema.
    pub const UNQUALIFIED_RELATION: Self = Self(1 << 8);
    /// A called function is not one of Postgres' own.
    pub const UNKNOWN_FUNCTION: Self = Self(1 << 9);
    /// Relations and functions are not known.
    pub const RELATIONS_UNKNOWN: Self = Self(1 << 10);

    /// Every trait with its word.
    pub const NAMED: [(Self, &'static str); 11] = [
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

    /// Adds every trait of `other`.
    pub const fn insert(&mut self, other: Self) {
        self.0 |= other.0;
    }

    /// Returns whether every trait of `other` is in this set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the words of the traits in the set, in a fixed order.
    pub fn words(self) -> impl Iterator<Item = &'static str> {
        Self::NAMED.into_iter().filter(move |(t, _)| self.contains(*t)).map(|(_, word)| word)
    }
}

/// How a statement touches a relation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Access {
    /// Its rows are read.
    Reads,
    /// Its rows are changed.
    Writes,
    /// It is made, altered or dropped. What gets another schema or name is named twice: where it was and where it is then.
    Defines,
}

impl Access {
    /// Returns the word used in records.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reads => "reads",
            Self::Writes => "writes",
            Self::Defines => "defines",
        }
    }
}

/// A relation as a statement names it, folded as Postgres folds it: `schema.name` or `name`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Relation {
    /// The name, in parts joined by dots.
    pub name: String,
    /// What is done to it.
    pub access: Access,
}

/// What is known of one statement. Its text is not here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatementFacts {
    /// What it does.
    pub class: StatementClass,
    /// The leading keywords, `CREATE INDEX` for instance; never a name or a literal.
    pub tag: String,
    /// What else is known.
    pub traits: Traits,
    /// Sorted, without repetition; empty with [`Traits::RELATIONS_UNKNOWN`].
    pub relations: Vec<Relation>,
    /// Names of called functions, folded, as written (`lower`, `app.audit`); sorted, without repetition.
    pub functions: Vec<String>,
    /// Whether the statement passed every test for read-only use. A filter, not the barrier.
    pub read_only_safe: bool,
    /// The statement with literals replaced, hashed: equal for statements that differ only in values.
    pub fingerprint: Fingerprint,
}

/// A stable 64-bit hash of a statement's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub u64);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
