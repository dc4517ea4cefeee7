//! Profiles: what one is, and what it lets its callers do.

use async_trait::async_trait;
use serde_json::json;

use super::{Content, Kind, Resource, Template, uri};
use crate::admission::Grant;
use crate::model::Failure;
use crate::operation::{About, Call, page};

/// Profiles by name.
pub(super) struct Profiles;

const MIME: &str = "application/json";

#[async_trait]
impl Kind for Profiles {
    fn path(&self) -> &'static str {
        "profiles"
    }

    fn template(&self) -> Template {
        Template {
            uri_template: "pgsandbox://profiles/{profile}".to_owned(),
            name: "profile".to_owned(),
            title: "Profile".to_owned(),
            description: "A Postgres server on which sandboxes are made: its version and its limits.".to_owned(),
            mime_type: MIME.to_owned(),
        }
    }

    fn about(&self, _name: &str) -> About {
        // What is said of one needs no server.
        About::Program
    }

    async fn list(
        &self,
        call: &Call,
        _grant: &Grant,
        from: Option<&str>,
        room: usize,
    ) -> Result<(Vec<Resource>, Option<String>), Failure> {
        let all = call.core.profiles().iter().map(|profile| Resource {
            uri: uri(self, profile.name()),
            name: profile.name().to_owned(),
            title: format!("Profile {}", profile.name()),
            description: "A Postgres server on which sandboxes are made.".to_owned(),
            mime_type: MIME.to_owned(),
        });
        page::of(all.collect(), from, room)
    }

    async fn read(&self, call: &Call, grant: &Grant, name: &str) -> Result<Content, Failure> {
        let profile = call.core.profile(name)?;
        let settings = profile.settings();
        let extensions = call.preview.offered_extensions(&grant.principal, profile.name()).await?;
        let told = json!({
            "name": profile.name(),
            "isDefault": profile.name() == call.core.default_profile(),
            "engine": profile.engine_kind(),
            "managed": profile.managed(),
            "postgresVersion": profile.known_major().map(|major| major.to_string()),
            "databasePrefix": settings.prefix,
            "defaultTtlMinutes": settings.default_ttl_minutes,
            "maxTtlMinutes": settings.max_ttl_minutes,
            "allowedExtensions": extensions,
            "maxActiveDatabasesPerOwner": settings.max_active_per_owner,
            "use": format!("create_database with profile {} makes a sandbox here; a managed cluster starts when it is first needed", profile.name()),
        });
        let text = serde_json::to_string_pretty(&told).unwrap_or_default();
        Ok(Content { uri: uri(self, name), mime_type: MIME.to_owned(), text })
    }
}
