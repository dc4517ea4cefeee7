//! Makes a sandbox anew.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;

use super::create_database::{Created, summary};
use super::extend_database::missing_target;
use super::selector::DatabaseSelector;
use super::{About, Ahead, Asks, Call, Done, Operation, Spec, Toolset};
use crate::admission::{Admissible, Permit};
use crate::model::{Failure, Impact, ObligationKind};

/// Arguments of `reset_database`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ResetDatabase {
    #[serde(flatten)]
    database: DatabaseSelector,
}

impl Admissible for ResetDatabase {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;
}

#[async_trait]
impl Operation for ResetDatabase {
    const SPEC: Spec = Spec {
        name: "reset_database",
        title: "Reset a sandbox database",
        help: "Throws away all that is in a sandbox and makes it anew: empty, or again a copy of the template or the sandbox it was \
               made from, as that is now. Id, names, passwords and end stay; sessions in it are ended. A clone of another server cannot be reset.",
        impact: Impact::Destroys,
        meets: &[ObligationKind::MaxDatabaseBytes],
        toolset: Toolset::Copies,
        idempotent: true,
    };
    type Output = Created;

    fn asks(&self) -> Asks {
        Asks { about: About::Sandbox((&self.database).into()), usage: true, ..Asks::default() }
    }

    async fn foresee(&self, ahead: &Ahead<'_>) -> Result<Vec<String>, Failure> {
        let id = ahead.grant.target.ok_or_else(missing_target)?;
        ahead.core.foresee_reset(ahead.grant, id).await?;
        Ok(Vec::new())
    }

    async fn run(permit: Permit<Self>, call: &Call) -> Result<Done<Created>, Failure> {
        let id = permit.grant().target.ok_or_else(missing_target)?;
        let sandbox = call.core.reset(&permit, id, call.progress.clone()).await?;
        let made = crate::sandbox::Created { sandbox, replayed: false, installed: None };
        let result = Created::new(&permit, call, &made).await?;
        Ok(Done::new(summary("reset", &made.sandbox), result))
    }
}
