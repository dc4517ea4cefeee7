//! What a client can read beside tools: resources, by kind.
//!
//! A kind is a type and an entry in [`KINDS`]; its list, its template, its reading and the completion of its variable
//! come from there. A kind lists and reads what is the caller's own, and nothing is started for a list.

pub(super) mod kept;
mod profiles;
mod sandboxes;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Serialize;

use super::{About, Call, page};
use crate::admission::Grant;
use crate::model::{Code, Failure};

/// What every URI of ours begins with.
const SCHEME: &str = "pgsandbox://";

/// The kinds, in the order in which they are listed.
static KINDS: [&dyn Kind; 5] =
    [&profiles::Profiles, &sandboxes::Sandboxes, &kept::Digests, &kept::Snapshots, &kept::Templates];

/// A kind of resource.
#[async_trait]
pub(super) trait Kind: Sync {
    /// The part of the URI before the variable.
    fn path(&self) -> &'static str;

    /// What is fixed about it.
    fn template(&self) -> Template;

    /// Says what a request for one of them is about.
    fn about(&self, name: &str) -> About;

    /// Returns those that the caller may know, at most `room`, and where the next page begins.
    async fn list(
        &self,
        call: &Call,
        grant: &Grant,
        from: Option<&str>,
        room: usize,
    ) -> Result<(Vec<Resource>, Option<String>), Failure>;

    /// Returns what is in one of them.
    async fn read(&self, call: &Call, grant: &Grant, name: &str) -> Result<Content, Failure>;
}

/// How URIs of a kind are made.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Template {
    pub(super) uri_template: String,
    pub(super) name: String,
    pub(super) title: String,
    pub(super) description: String,
    pub(super) mime_type: String,
}

/// A resource as it is listed.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Resource {
    pub(super) uri: String,
    pub(super) name: String,
    pub(super) title: String,
    pub(super) description: String,
    pub(super) mime_type: String,
}

/// What is in a resource.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Content {
    pub(super) uri: String,
    pub(super) mime_type: String,
    pub(super) text: String,
}

/// Returns every kind's template.
pub(super) fn templates() -> Vec<Template> {
    KINDS.iter().map(|kind| kind.template()).collect()
}

/// Returns the kind of a URI, and which of them is meant.
///
/// # Errors
/// `invalid_arguments`, with the templates there are.
pub(super) fn find(uri: &str) -> Result<(&'static dyn Kind, &str), Failure> {
    let named = |kind: &&'static dyn Kind| {
        let name = uri.strip_prefix(SCHEME)?.strip_prefix(kind.path())?.strip_prefix('/')?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        (!name.is_empty() && name.chars().all(is_plain)).then_some((*kind, name))
    };
    KINDS.iter().find_map(named).ok_or_else(|| {
        Failure::new(Code::InvalidArguments, "there is no such resource")
            .allowed(templates().into_iter().map(|template| template.uri_template))
    })
}

/// Returns the URI of one of a kind.
fn uri(kind: &dyn Kind, name: &str) -> String {
    format!("{SCHEME}{}/{name}", kind.path())
}

/// Returns the kind whose template it is.
///
/// # Errors
/// `invalid_arguments`, with the templates there are.
pub(super) fn of_template(uri_template: &str) -> Result<&'static dyn Kind, Failure> {
    let found = KINDS.iter().find(|kind| kind.template().uri_template == uri_template);
    found.copied().ok_or_else(|| {
        Failure::new(Code::InvalidArguments, "there is no such resource template")
            .allowed(templates().into_iter().map(|template| template.uri_template))
    })
}

/// Returns a page over all kinds.
///
/// # Errors
/// `invalid_arguments`, if the cursor is none of ours; or as a kind cannot be listed.
pub(super) async fn list(
    call: &Call,
    grant: &Grant,
    cursor: Option<&str>,
    max: usize,
) -> Result<(Vec<Resource>, Option<String>), Failure> {
    let (first, mut from) = place(cursor)?;
    let mut found = Vec::new();
    for (at, kind) in KINDS.iter().enumerate().skip(first) {
        if found.len() >= max {
            return Ok((found, Some(page::cursor(&format!("{at}:")))));
        }
        let (page, next) = kind.list(call, grant, from.take().as_deref(), max - found.len()).await?;
        found.extend(page);
        if let Some(next) = next {
            return Ok((found, Some(page::cursor(&format!("{at}:{next}")))));
        }
    }
    Ok((found, None))
}

/// Returns the kind at which a page begins, and where in it.
///
/// # Errors
/// `invalid_arguments`, if the cursor is none of ours.
pub(super) fn place(cursor: Option<&str>) -> Result<(usize, Option<String>), Failure> {
    let Some(cursor) = cursor else { return Ok((0, None)) };
    let place = page::place(cursor)?;
    let (kind, within) = place.split_once(':').ok_or_else(page::unknown)?;
    let kind = kind.parse().ok().filter(|kind| *kind < KINDS.len()).ok_or_else(page::unknown)?;
    Ok((kind, (!within.is_empty()).then(|| within.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_names_one_resource_of_one_kind() {
        let name = |uri| find(uri).map(|(kind, name)| (kind.path(), name)).ok();
        assert_eq!(name("pgsandbox://profiles/local"), Some(("profiles", "local")));
        assert_eq!(name("pgsandbox://sandboxes/a-1"), Some(("sandboxes", "a-1")));
        for strange in [
            "",
            "pgsandbox://",
            "pgsandbox://profiles",
            "pgsandbox://profiles/",
            "pgsandbox://profiles/a/b",
            "file:///etc/passwd",
            "pgsandbox://profiles/../x",
            "pgsandbox://profiles/%2e",
            "PGSANDBOX://profiles/a",
            "pgsandbox://profilesx/a",
        ] {
            assert_eq!(name(strange), None, "{strange}");
        }
    }

    #[test]
    fn templates_are_of_the_uris_that_are_found() {
        for template in templates() {
            let (start, _) = template.uri_template.split_once('{').unwrap();
            assert!(find(&format!("{start}x")).is_ok(), "{template:?}");
            assert!(of_template(&template.uri_template).is_ok());
        }
    }

    #[test]
    fn a_strange_cursor_is_refused() {
        for strange in ["x", "", "OTk6", &page::cursor("9:"), &page::cursor("0"), &page::cursor(":")] {
            assert!(place(Some(strange)).is_err(), "{strange}");
        }
        assert_eq!(place(Some(&page::cursor("1:a:b"))).unwrap(), (1, Some("a:b".to_owned())));
    }
}
