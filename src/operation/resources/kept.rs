//! What the caller keeps beside sandboxes: digests, snapshots of schemas, and templates. Nothing is started for them.

use async_trait::async_trait;
use serde_json::{Value, json};

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

/// What is kept of one kind, for its owner.
#[async_trait]
trait Kept: Sync {
    /// The part of the URI before the variable.
    const PATH: &'static str;
    /// The variable.
    const VARIABLE: &'static str;
    /// What one of them is called by clients.
    const NAME: &'static str;
    /// What one of them is called by people.
    const TITLE: &'static str;
    /// What is in one of them.
    const HOLDS: &'static str;

    /// Returns the caller's, each with a name, a title and a description.
    async fn listed(call: &Call, grant: &Grant) -> Result<Vec<[String; 3]>, Failure>;

    /// Returns what is told of the one of that name.
    async fn told(call: &Call, grant: &Grant, name: &str) -> Result<Value, Failure>;
}

#[async_trait]
impl<K: Kept> Kind for K {
    fn path(&self) -> &'static str {
        K::PATH
    }

    fn template(&self) -> Template {
        Template {
            uri_template: uri(self, &format!("{{{}}}", K::VARIABLE)),
            name: K::NAME.to_owned(),
            title: K::TITLE.to_owned(),
            description: K::HOLDS.to_owned(),
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
        let listed = K::listed(call, grant).await?.into_iter().map(|[name, title, description]| Resource {
            uri: uri(self, &name),
            name,
            title,
            description,
            mime_type: MIME.to_owned(),
        });
        page::of(listed.collect(), from, room)
    }

    async fn read(&self, call: &Call, grant: &Grant, name: &str) -> Result<Content, Failure> {
        let text = serde_json::to_string_pretty(&K::told(call, grant, name).await?).unwrap_or_default();
        Ok(Content { uri: uri(self, name), mime_type: MIME.to_owned(), text })
    }
}

fn made(facts: &SchemaFacts) -> String {
    let at = Timestamp::from_unix_ms(u64::try_from(facts.created_at_ms).unwrap_or_default());
    format!("of sandbox {} on profile {}, {at}", facts.sandbox_name, facts.profile)
}

#[async_trait]
impl Kept for Digests {
    const PATH: &'static str = "digests";
    const VARIABLE: &'static str = "handle";
    const NAME: &'static str = "digest";
    const TITLE: &'static str = "Schema digest";
    const HOLDS: &'static str = "What a schema digest of yours was made of, kept for a day: where, since when it is so, and \
                                 how many objects of each kind.";

    async fn listed(call: &Call, grant: &Grant) -> Result<Vec<[String; 3]>, Failure> {
        let told = |facts: SchemaFacts| {
            let (title, description) = (format!("Digest {}", facts.name), format!("A schema digest {}", made(&facts)));
            [facts.name, title, description]
        };
        Ok(call.core.digests_of(grant).await?.into_iter().map(told).collect())
    }

    async fn told(call: &Call, grant: &Grant, name: &str) -> Result<Value, Failure> {
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
        Ok(told)
    }
}

#[async_trait]
impl Kept for Snapshots {
    const PATH: &'static str = "snapshots";
    const VARIABLE: &'static str = "snapshotName";
    const NAME: &'static str = "snapshot";
    const TITLE: &'static str = "Schema snapshot";
    const HOLDS: &'static str = "A snapshot of a schema of yours: where, when, and how many objects of each kind.";

    async fn listed(call: &Call, grant: &Grant) -> Result<Vec<[String; 3]>, Failure> {
        let told = |facts: SchemaFacts| {
            let (title, description) =
                (format!("Snapshot {}", facts.name), format!("A schema snapshot {}", made(&facts)));
            [facts.name, title, description]
        };
        Ok(call.core.snapshots_of(grant).await?.into_iter().map(told).collect())
    }

    async fn told(call: &Call, grant: &Grant, name: &str) -> Result<Value, Failure> {
        let facts = call.core.snapshot_facts_of(grant, name).await?;
        let mut told = serde_json::to_value(SnapshotFacts::from(facts)).unwrap_or_default();
        if let Some(told) = told.as_object_mut() {
            told.insert("use".into(), json!("diff_schema_snapshot says what of a sandbox's schema differs from it"));
        }
        Ok(told)
    }
}

#[async_trait]
impl Kept for Templates {
    const PATH: &'static str = "templates";
    const VARIABLE: &'static str = "templateName";
    const NAME: &'static str = "template";
    const TITLE: &'static str = "Template";
    const HOLDS: &'static str =
        "Your templates of a name, on every profile that has one, and the exported one: what is in them.";

    async fn listed(call: &Call, grant: &Grant) -> Result<Vec<[String; 3]>, Failure> {
        let (templates, exported) = kept(call, grant).await?;
        let mut listed: Vec<[String; 3]> = Vec::new();
        let title = |name: &str| format!("Template {name}");
        for template in &templates {
            match listed.iter_mut().find(|[name, ..]| *name == template.name) {
                Some([.., description]) => {
                    description.push_str(&format!(", and on profile {}", template.sandbox.profile));
                }
                None => listed.push([
                    template.name.clone(),
                    title(&template.name),
                    format!("A template on profile {}", template.sandbox.profile),
                ]),
            }
        }
        for kept in exported.iter().filter(|kept| templates.iter().all(|template| template.name != kept.name)) {
            listed.push([kept.name.clone(), title(&kept.name), "An exported template".to_owned()]);
        }
        listed.sort();
        Ok(listed)
    }

    async fn told(call: &Call, grant: &Grant, name: &str) -> Result<Value, Failure> {
        let (templates, exported) = kept(call, grant).await?;
        let templates: Vec<Listed> = templates.iter().filter(|found| found.name == name).map(Listed::new).collect();
        let exported = exported.iter().find(|kept| kept.name == name).map(Exported::new);
        if templates.is_empty() && exported.is_none() {
            return Err(Failure::new(Code::TemplateNotFound, "you have no template of that name")
                .hint("`list_templates` shows yours"));
        }
        let used =
            "create_sandbox_from_template makes a sandbox of one; import_template makes a template of the exported one";
        Ok(json!({"templates": templates, "exported": exported, "use": used}))
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
