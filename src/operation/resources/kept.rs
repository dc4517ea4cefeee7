//! What the caller keeps beside sandboxes: digests, snapshots of schemas, and templates. Nothing is started for them.

use async_trait::async_trait;
use serde::Serialize;
use serde_json::json;

use super::{Content, Kind, Resource, Template, uri};
use crate::admission::Grant;
use crate::model::{Code, Failure, Timestamp};
use crate::operation::list_templates::{Exported, Listed};
use crate::operation::snapshot_facts::SnapshotFacts;
use crate::operation::{About, Call, page};
use crate::sandbox::schema::SchemaFacts;

const MIME: &str = "application/json";

/// What schema digests were made of, by handle.
pub(super) struct Digests;

/// Snapshots of schemas, by name.
pub(super) struct Snapshots;

/// Templates, by name: those on servers, and those that were exported.
pub(super) struct Templates;

fn content(kind: &dyn Kind, name: &str, told: &impl Serialize) -> Content {
    let text = serde_json::to_string_pretty(told).unwrap_or_default();
    Content { uri: uri(kind, name), mime_type: MIME.to_owned(), text }
}

fn resource(kind: &dyn Kind, name: &str, title: String, description: String) -> Resource {
    Resource { uri: uri(kind, name), name: name.to_owned(), title, description, mime_type: MIME.to_owned() }
}

fn made(facts: &SchemaFacts) -> String {
    let at = Timestamp::from_unix_ms(u64::try_from(facts.created_at_ms).unwrap_or_default());
    format!("of sandbox {} on profile {}, {at}", facts.sandbox_name, facts.profile)
}

#[async_trait]
impl Kind for Digests {
    fn path(&self) -> &'static str {
        "digests"
    }

    fn template(&self) -> Template {
        Template {
            uri_template: "pgsandbox://digests/{handle}".to_owned(),
            name: "digest".to_owned(),
            title: "Schema digest".to_owned(),
            description:
                "What a schema digest of yours was made of, kept for a day: where, when, and how many objects of \
                          each kind."
                    .to_owned(),
            mime_type: MIME.to_owned(),
        }
    }

    fn about(&self, _name: &str) -> About {
        About::Program
    }

    async fn list(
        &self,
        call: &Call,
        grant: &Grant,
        from: Option<&str>,
        room: usize,
    ) -> Result<(Vec<Resource>, Option<String>), Failure> {
        let kept = call.core.digests_of(grant).await?;
        let listed = kept.iter().map(|facts| {
            resource(self, &facts.name, format!("Digest {}", facts.name), format!("A schema digest {}", made(facts)))
        });
        page::of(listed.collect(), from, room)
    }

    async fn read(&self, call: &Call, grant: &Grant, name: &str) -> Result<Content, Failure> {
        let kept = call.core.digests_of(grant).await?;
        let facts = kept.into_iter().find(|facts| facts.name == name).ok_or_else(|| {
            Failure::new(Code::InvalidArguments, "there is no digest of that handle, or it is not kept any more")
                .hint("`schema_digest` makes one; snapshots stay")
        })?;
        let mut told = serde_json::to_value(SnapshotFacts::from(facts)).unwrap_or_default();
        if let Some(told) = told.as_object_mut() {
            told.remove("snapshotName");
            told.insert("handle".into(), json!(name));
            told.insert("use".into(), json!("schema_diff with this handle as baseDigest says what has changed since"));
        }
        Ok(content(self, name, &told))
    }
}

#[async_trait]
impl Kind for Snapshots {
    fn path(&self) -> &'static str {
        "snapshots"
    }

    fn template(&self) -> Template {
        Template {
            uri_template: "pgsandbox://snapshots/{snapshotName}".to_owned(),
            name: "snapshot".to_owned(),
            title: "Schema snapshot".to_owned(),
            description: "A snapshot of a schema of yours: where, when, and how many objects of each kind.".to_owned(),
            mime_type: MIME.to_owned(),
        }
    }

    fn about(&self, _name: &str) -> About {
        About::Program
    }

    async fn list(
        &self,
        call: &Call,
        grant: &Grant,
        from: Option<&str>,
        room: usize,
    ) -> Result<(Vec<Resource>, Option<String>), Failure> {
        let kept = call.core.snapshots_of(grant).await?;
        let listed = kept.iter().map(|facts| {
            resource(
                self,
                &facts.name,
                format!("Snapshot {}", facts.name),
                format!("A schema snapshot {}", made(facts)),
            )
        });
        page::of(listed.collect(), from, room)
    }

    async fn read(&self, call: &Call, grant: &Grant, name: &str) -> Result<Content, Failure> {
        let facts = call.core.snapshot_facts_of(grant, name).await?;
        let mut told = serde_json::to_value(SnapshotFacts::from(facts)).unwrap_or_default();
        if let Some(told) = told.as_object_mut() {
            told.insert("use".into(), json!("diff_schema_snapshot says what of a sandbox's schema differs from it"));
        }
        Ok(content(self, name, &told))
    }
}

#[async_trait]
impl Kind for Templates {
    fn path(&self) -> &'static str {
        "templates"
    }

    fn template(&self) -> Template {
        Template {
            uri_template: "pgsandbox://templates/{templateName}".to_owned(),
            name: "template".to_owned(),
            title: "Template".to_owned(),
            description:
                "Your templates of a name, on every profile that has one, and the exported one: what is in them."
                    .to_owned(),
            mime_type: MIME.to_owned(),
        }
    }

    fn about(&self, _name: &str) -> About {
        About::Program
    }

    async fn list(
        &self,
        call: &Call,
        grant: &Grant,
        from: Option<&str>,
        room: usize,
    ) -> Result<(Vec<Resource>, Option<String>), Failure> {
        let (templates, exported) = kept(call, grant).await?;
        let mut listed: Vec<Resource> = Vec::new();
        for template in &templates {
            let known = listed.iter_mut().find(|known| known.name == template.name);
            match known {
                Some(known) => known.description.push_str(&format!(", and on profile {}", template.sandbox.profile)),
                None => listed.push(resource(
                    self,
                    &template.name,
                    format!("Template {}", template.name),
                    format!("A template on profile {}", template.sandbox.profile),
                )),
            }
        }
        for kept in exported.iter().filter(|kept| templates.iter().all(|template| template.name != kept.name)) {
            let title = format!("Template {}", kept.name);
            listed.push(resource(self, &kept.name, title, "An exported template".to_owned()));
        }
        listed.sort_by(|a, b| a.name.cmp(&b.name));
        page::of(listed, from, room)
    }

    async fn read(&self, call: &Call, grant: &Grant, name: &str) -> Result<Content, Failure> {
        let (templates, exported) = kept(call, grant).await?;
        let templates: Vec<Listed> = templates.iter().filter(|found| found.name == name).map(Listed::new).collect();
        let exported = exported.iter().find(|kept| kept.name == name).map(Exported::new);
        if templates.is_empty() && exported.is_none() {
            return Err(Failure::new(Code::TemplateNotFound, "you have no template of that name")
                .hint("`list_templates` shows yours"));
        }
        let used =
            "create_sandbox_from_template makes a sandbox of one; import_template makes a template of the exported one";
        Ok(content(self, name, &json!({"templates": templates, "exported": exported, "use": used})))
    }
}

/// Returns the caller's templates on servers that run, and those that were exported.
async fn kept(
    call: &Call,
    grant: &Grant,
) -> Result<(Vec<crate::sandbox::Template>, Vec<crate::sandbox::KeptDump>), Failure> {
    let templates = call.core.looking().templates_of(grant, None, None).await?.templates;
    Ok((templates, call.core.exported_of(grant).await?))
}

/// Returns the handles of the caller's digests.
pub(in crate::operation) async fn digests(call: &Call, grant: &Grant) -> Result<Vec<String>, Failure> {
    Ok(call.core.digests_of(grant).await?.into_iter().map(|facts| facts.name).collect())
}

/// Returns the names of the caller's snapshots.
pub(in crate::operation) async fn snapshots(call: &Call, grant: &Grant) -> Result<Vec<String>, Failure> {
    Ok(call.core.snapshots_of(grant).await?.into_iter().map(|facts| facts.name).collect())
}

/// Returns the names of the caller's templates.
pub(in crate::operation) async fn templates(call: &Call, grant: &Grant) -> Result<Vec<String>, Failure> {
    let (templates, exported) = kept(call, grant).await?;
    let mut names: Vec<String> = templates.into_iter().map(|template| template.name).collect();
    names.extend(exported.into_iter().map(|kept| kept.name));
    names.sort();
    names.dedup();
    Ok(names)
}
