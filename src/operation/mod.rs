//! What can be asked: one file per operation, and the one list of all of them.
//!
//! An operation's file holds its input (whose field docs become the schema), its output, its name, help
//! and impact, which demands of policies it meets, and a body of a few lines. A body runs only with a
//! [`Permit`](crate::admission::Permit) for its own input; nothing here decides.

pub mod arguments;
mod base_digest;
mod connection;
pub mod envelope;
mod installs;
mod list;
mod new_sandbox;
pub mod page;
pub mod prompt;
mod resources;
pub mod schema;
mod schema_entries;
mod schema_part;
mod selector;
mod snapshot_facts;
mod spec;
mod time_limit;

mod approve;
mod cancel_task;
mod cleanup_expired;
mod clone_database;
mod complete;
mod create_database;
mod create_sandbox_from_template;
mod create_schema_snapshot;
mod create_template_from_sandbox;
mod delete_database;
mod delete_schema_snapshot;
mod delete_template;
mod describe_schema;
mod diff_schema_snapshot;
mod doctor;
mod ensure_postgres;
mod explain_policy;
mod explain_query;
mod export_template;
mod extend_database;
mod fork_database;
mod get_connection_string;
mod get_prompt;
mod get_task;
mod import_template;
mod list_approvals;
mod list_databases;
mod list_extensions;
mod list_profiles;
mod list_prompts;
mod list_resource_templates;
mod list_resources;
mod list_schema_snapshots;
mod list_templates;
mod prepare_for_repo;
mod query_plan;
mod read_resource;
mod repo_command;
mod reset_database;
mod run_repo_command;
mod run_sql;
mod schema_diff;
mod schema_digest;
mod seed_database;
mod sql_results;
mod validate_schema_change;
mod verify_sandbox;

use std::sync::Arc;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::admission::{Admissible, Grant, Permit};
use crate::command::Commands;
use crate::model::{Console, CredentialAccess, Failure, Health, Preview, Progress, Requested, Tasks};
use crate::sandbox::{CloneAsked, Core, Selector};
use crate::sql::Script;

pub use envelope::{Done, Envelope};
pub use list::{Beside, Entry, OPERATIONS, Offered, Passed, Prepared, Ready, find, find_for};
pub use spec::{Spec, Toolset};

/// One thing that can be asked. The implementing type is its input.
#[async_trait]
pub trait Operation: Admissible + DeserializeOwned + JsonSchema + Send + Sync + 'static {
    /// What is fixed about it.
    const SPEC: Spec;

    /// What it hands back.
    type Output: Serialize + JsonSchema + Send;

    /// Finds fault with the arguments themselves, before anything is gathered or decided.
    ///
    /// # Errors
    /// Fails with the argument's own code.
    fn check(&self) -> Result<(), Failure> {
        Ok(())
    }

    /// Says which facts the policies need to see.
    fn asks(&self) -> Asks;

    /// Says what [`run`](Operation::run) would fail with before its first act, or returns what would be refused of it while
    /// the rest is done; looks, and does nothing. The input is as it would be carried out.
    ///
    /// # Errors
    /// Fails as the call would.
    async fn foresee(&self, ahead: &Ahead<'_>) -> Result<Vec<String>, Failure> {
        let _ = ahead;
        Ok(Vec::new())
    }

    /// Does it. `permit` holds the input as it may be carried out.
    ///
    /// # Errors
    /// Fails with the codes of the contract.
    async fn run(permit: Permit<Self>, call: &Call) -> Result<Done<Self::Output>, Failure>;
}

/// The facts that an operation's decision needs.
#[derive(Clone, Debug, Default)]
pub struct Asks {
    /// What the request is about.
    pub about: About,
    /// The owner named beneath the principal.
    pub group_owner: Option<String>,
    /// What the caller asked for.
    pub requested: Requested,
    /// SQL to be read.
    pub sql: Option<String>,
    /// The source that is to be cloned.
    pub clone: Option<CloneAsked>,
    /// Whether policies need to see how many sandboxes the owner has.
    pub usage: bool,
    /// The digest of the request that is to be approved, for the audit.
    pub approves: Option<String>,
}

/// What a request is about.
#[derive(Clone, Debug, Default)]
pub enum About {
    /// The program as a whole, or all profiles.
    #[default]
    Program,
    /// One profile.
    Profile(Selector),
    /// One sandbox.
    Sandbox(Selector),
}

/// What is known of a call that is not to be run.
#[derive(Clone, Copy)]
pub struct Ahead<'a> {
    /// The lifecycle core.
    pub core: &'a Core,
    /// What its permit would grant.
    pub grant: &'a Grant,
    /// Its SQL, as it was read for the decision.
    pub script: Option<&'a Script>,
    /// Runs commands of repositories; nothing is run with it here.
    pub commands: &'a Commands,
    /// Decides without running.
    pub preview: &'a dyn Preview,
}

impl Ahead<'_> {
    /// Says what reading the sandbox that the call names would be refused with.
    ///
    /// # Errors
    /// Fails as the call would.
    pub async fn reads_sandbox(&self) -> Result<(), Failure> {
        let id = self.grant.target.ok_or_else(extend_database::missing_target)?;
        self.core.foresee_use(self.grant, id, CredentialAccess::ReadOnly).await
    }
}

/// What an operation's body works with.
pub struct Call {
    /// The lifecycle core.
    pub core: Core,
    /// Takes news of long work.
    pub progress: Arc<dyn Progress>,
    /// Set when the caller cancels.
    pub cancel: CancellationToken,
    /// The name of the sandbox that the request was resolved to, or empty.
    pub database: String,
    /// The request's SQL, as it was read for the decision.
    pub script: Option<Arc<Script>>,
    /// Decides without running.
    pub preview: Arc<dyn Preview>,
    /// The health of parts that the core does not know.
    pub health: Vec<Arc<dyn Health>>,
    /// How many tools the client is shown.
    pub tool_count: usize,
    /// Runs commands of repositories.
    pub commands: Arc<Commands>,
    /// The terminal of whom a command is run for, if there is one.
    pub console: Option<Arc<dyn Console>>,
    /// The calls of this connection that go on after they were answered with a handle.
    pub tasks: Arc<dyn Tasks>,
}
