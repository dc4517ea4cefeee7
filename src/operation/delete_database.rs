//! Removes a sandbox.

use std::time::Duration;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::extend_database::missing_target;
use super::selector::DatabaseSelector;
use super::{About, Asks, Call, Done, Operation, Spec, Toolset};
use crate::admission::{Admissible, Permit};
use crate::model::{Failure, Impact, ObligationKind, fault};
use crate::sandbox::State;

/// How long a caller waits for database and roles to be gone; then it is told that they are not yet.
const WAIT: Duration = Duration::from_secs(120);

/// Arguments of `delete_database`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct DeleteDatabase {
    #[serde(flatten)]
    database: DatabaseSelector,
    /// Wait until database and roles are gone; default: answer once nobody can log in any more.
    wait: Option<bool>,
}

/// What became of the sandbox.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct DeletedDatabase {
    database_id: String,
    database_name: String,
    /// `deleting` or `deleted`.
    state: String,
    /// True only when database and roles are gone.
    deleted: bool,
}

impl Admissible for DeleteDatabase {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;
}

#[async_trait]
impl Operation for DeleteDatabase {
    const SPEC: Spec = Spec {
        name: "delete_database",
        title: "Delete a sandbox database",
        help: "Deletes a sandbox: its database and its roles. Nobody can log in once this answers; the files go shortly after, \
               or before the answer with wait=true.",
        impact: Impact::Destroys,
        meets: &[],
        toolset: Toolset::Core,
        idempotent: true,
    };
    type Output = DeletedDatabase;

    fn asks(&self) -> Asks {
        Asks { about: About::Sandbox((&self.database).into()), ..Asks::default() }
    }

    async fn run(permit: Permit<Self>, call: &Call) -> Result<Done<DeletedDatabase>, Failure> {
        let id = permit.grant().target.ok_or_else(missing_target)?;
        let wait = permit.input().wait.unwrap_or(false).then_some(fault::within(WAIT));
        let deletion = call.core.delete(&permit, id, wait).await?;
        let deleted = deletion.state == State::Deleted;
        let state = deletion.state.as_str();
        let name = deletion.sandbox.names.database;
        Ok(Done::new(
            format!("`{name}` is {state}"),
            DeletedDatabase { database_id: id.to_string(), database_name: name, state: state.to_owned(), deleted },
        ))
    }
}
