//! Databases that may be cloned by name.
//!
//! A URL is read here by the parser that policies' facts and connections come from. Passwords that are kept in a file or
//! by a program are not looked at before they are needed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::environment::Environment;
use super::file::check_program;
use super::read::{Faults, Found, Reader, shown};
use super::resolve::{name_fault, url_fault};
use super::{CloneSourceConfig, ProfileConfig};
use crate::engine::postgres::{PostgresUrl, UrlOrigin};
use crate::model::Secret;
use crate::secret::PasswordSource;

/// Reads the sources of a file; what is returned is used only if no fault was noted.
pub(super) fn sources(
    items: Vec<Reader<'_>>,
    profiles: Option<&[ProfileConfig]>,
    environment: &Environment,
    faults: &Faults,
) -> Vec<CloneSourceConfig> {
    let mut names = BTreeSet::new();
    let mut sources = Vec::new();
    for item in &items {
        let source = source(item, profiles, environment, faults);
        if let Some(source) = source {
            if !names.insert(source.name.clone()) {
                let text = format!("names a second source `{}`", source.name);
                faults.add(format!("{}.name", item.place()), text);
            }
            sources.push(source);
        }
    }
    sources
}

fn source(
    item: &Reader<'_>,
    profiles: Option<&[ProfileConfig]>,
    environment: &Environment,
    faults: &Faults,
) -> Option<CloneSourceConfig> {
    // All keys are read, so that their faults are told together.
    let name = item.text("name");
    let url = url(item, environment, faults);
    let password = password(item, environment, faults);
    let production = item.flag("production").is_some_and(|found| found.value);
    let allowed = item.texts("profiles").map(|found| known_profiles(found, profiles, faults));
    match &name {
        None if !item.has("name") => faults.add(format!("{}.name", item.place()), "is missing"),
        None => {}
        Some(name) => {
            if let Some(what) = name_fault(&name.value) {
                faults.add(&name.place, what);
            }
        }
    }
    let (mut url, password) = (url?, password);
    if let (Some(_), Some((_, place))) = (&url.credentials.password, &password) {
        faults.add(place, "stands beside a password in the URL; remove one of them");
    }
    let password = match password {
        Some((Kept::Here(secret), _)) => {
            url.credentials.password = Some(secret);
            None
        }
        Some((Kept::Elsewhere(source), _)) => Some(source),
        None => None,
    };
    Some(CloneSourceConfig { name: name?.value, url, password, production, profiles: allowed })
}

/// Reads the URL, from the file or from the variable it names.
fn url(item: &Reader<'_>, environment: &Environment, faults: &Faults) -> Option<PostgresUrl> {
    let (written, named) = (item.secret("url"), item.text("urlFromEnv"));
    if item.has("url") && item.has("urlFromEnv") {
        faults.add(format!("{}.urlFromEnv", item.place()), "stands beside `url`; remove one of them");
        return None;
    }
    if !item.has("url") && !item.has("urlFromEnv") {
        faults.add(item.place(), "has neither `url` nor `urlFromEnv`");
        return None;
    }
    let url = match (written, named) {
        (Some(url), _) => url,
        (None, Some(named)) => Found { value: variable(&named, environment, faults)?, place: named.place },
        (None, None) => return None,
    };
    let parsed = PostgresUrl::parse(url.value.expose(), UrlOrigin::Operator);
    parsed.map_err(|fault| faults.add(&url.place, url_fault(&fault))).ok()
}

/// A password, or where it is kept.
enum Kept {
    Here(Secret),
    Elsewhere(PasswordSource),
}

/// Reads where the password is, and at which place that is said.
fn password(item: &Reader<'_>, environment: &Environment, faults: &Faults) -> Option<(Kept, String)> {
    let from_env = item.text("passwordFromEnv").and_then(|named| {
        let secret = variable(&named, environment, faults)?;
        Some((Kept::Here(secret), named.place))
    });
    let file = item.text("passwordFile").map(|found| {
        if !Path::new(&found.value).is_absolute() {
            faults.add(&found.place, "is not an absolute path");
        }
        (Kept::Elsewhere(PasswordSource::File(PathBuf::from(found.value))), found.place)
    });
    let command = item.texts("passwordCommand").map(|found| {
        check_program(&found, faults);
        (Kept::Elsewhere(PasswordSource::Command(found.value)), found.place)
    });
    let mut all = [from_env, file, command].into_iter().flatten();
    let first = all.next()?;
    for (_, place) in all {
        faults.add(place, "is a second place of the password; remove one of them");
    }
    Some(first)
}

/// Returns what the named variable holds.
fn variable(named: &Found<String>, environment: &Environment, faults: &Faults) -> Option<Secret> {
    match environment.raw(&named.value).and_then(|value| value.to_str()).filter(|value| !value.is_empty()) {
        Some(value) => Some(Secret::new(value)),
        None => {
            faults.add(&named.place, format!("names `{}`, which is not set", shown(&named.value)));
            None
        }
    }
}

fn known_profiles(found: Found<Vec<String>>, profiles: Option<&[ProfileConfig]>, faults: &Faults) -> Vec<String> {
    if found.value.is_empty() {
        faults.add(&found.place, "is empty, so that the source could never be cloned; leave it out for all profiles");
    }
    // Where the profiles themselves are at fault, that is told.
    for name in found.value.iter().filter(|name| profiles.is_some_and(|all| all.iter().all(|p| p.name != **name))) {
        faults.add(&found.place, format!("names `{}`, which is no profile", shown(name)));
    }
    found.value
}
