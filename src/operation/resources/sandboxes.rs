//! The caller's own sandboxes: what is recorded of one, and never a credential.

use async_trait::async_trait;

use super::{Content, Kind, Resource, Template, uri};
use crate::admission::Grant;
use crate::model::Failure;
use crate::model::limits::LIST_PAGE_MAX;
use crate::operation::list_databases::Listed;
use crate::operation::{About, Call};
use crate::sandbox::{ListFilter, Selector, not_found};

/// Sandboxes by id.
pub(super) struct Sandboxes;

const MIME: &str = "application/json";

fn selector(id: &str) -> Selector {
    Selector { database_id: Some(id.to_owned()), ..Selector::default() }
}

#[async_trait]
impl Kind for Sandboxes {
    fn path(&self) -> &'static str {
        "sandboxes"
    }

    fn template(&self) -> Template {
        Template {
            uri_template: "pgsandbox://sandboxes/{databaseId}".to_owned(),
            name: "sandbox".to_owned(),
            title: "Sandbox".to_owned(),
            description: "One of your sandboxes: names, state, labels, and when its time is over.".to_owned(),
            mime_type: MIME.to_owned(),
        }
    }

    fn about(&self, name: &str) -> About {
        About::Sandbox(selector(name))
    }

    async fn list(
        &self,
        call: &Call,
        grant: &Grant,
        from: Option<&str>,
        room: usize,
    ) -> Result<(Vec<Resource>, Option<String>), Failure> {
        let filter = ListFilter {
            owner: Some(grant.principal.owner.clone()),
            cursor: from.map(str::to_owned),
            limit: Some(room.min(LIST_PAGE_MAX)),
            ..ListFilter::default()
        };
        // Clients list when they connect: no server is started for that.
        let report = call.core.looking().list(&filter).await?;
        let resources = report.databases.iter().map(|sandbox| Resource {
            uri: uri(self, &sandbox.id.to_string()),
            name: sandbox.names.database.clone(),
            title: sandbox.names.database.clone(),
            description: format!("A sandbox on profile {}, until {}", sandbox.profile, sandbox.expires_at),
            mime_type: MIME.to_owned(),
        });
        Ok((resources.collect(), report.next_cursor))
    }

    async fn read(&self, call: &Call, grant: &Grant, name: &str) -> Result<Content, Failure> {
        let target = call.core.resolve(&selector(name)).await?;
        let sandbox = target.sandbox()?;
        // What was decided about is what is told of.
        if grant.target != Some(sandbox.id) {
            return Err(not_found());
        }
        let text = serde_json::to_string_pretty(&Listed::new(sandbox)).unwrap_or_default();
        Ok(Content { uri: uri(self, name), mime_type: MIME.to_owned(), text })
    }
}
