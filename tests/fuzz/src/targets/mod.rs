//! What is fuzzed, each with what has to hold of it.

mod audit;
mod classifier;
mod config;
mod mcp;
mod policy;
mod scanner;
mod sql;
mod url;
mod wire;

use crate::driver::Target;

/// A target: its name, what it plays against, and how it is made.
pub struct Kind {
    pub name: &'static str,
    pub of: &'static str,
    /// Makes the target of a run with this seed.
    pub make: fn() -> Box<dyn Target>,
}

/// Every target, in the order of the table.
pub const ALL: &[Kind] = &[
    Kind {
        name: "scanner",
        of: "tokens and statements, against Postgres' own",
        make: || Box::new(scanner::Scanner::new()),
    },
    Kind {
        name: "classifier",
        of: "class, relations, functions, against Postgres' tree",
        make: || Box::new(classifier::Classifier::new()),
    },
    Kind { name: "wire", of: "the client, against a hostile server", make: || Box::new(wire::Wire::new()) },
    Kind { name: "url", of: "database URLs, against written-down rules", make: || Box::new(url::Url) },
    Kind { name: "policy", of: "a guest's memory, through the real host", make: || Box::new(policy::Policy::new()) },
    Kind { name: "audit", of: "a sealed log, changed", make: || Box::new(audit::Audit::new()) },
    Kind { name: "config", of: "configuration and policy files", make: || Box::new(config::Config::new()) },
    Kind { name: "mcp", of: "frames, through the real program", make: || Box::new(mcp::Mcp::new()) },
];
