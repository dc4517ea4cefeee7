//! Databases that may be cloned by name.
//!
//! A URL is read here by the parser that policies' facts and connections come from. Passwords that are kept in a file or
//! by a program are not looked at before they are needed. A variable that is not set makes one source unusable and stops
//! nothing else: what is not known of it is refused where it would be needed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::environment::Environment;
use super::file::check_program;
use super::read::{Faults, Found, Reader, shown};
use super::resolve::{name_fault, url_fault};
use super::{CloneSourceConfig, ProfileConfig, UnusableSourceConfig};
use crate::engine::postgres::{PostgresUrl, UrlOrigin};
use crate::model::Secret;
use crate::secret::PasswordSource;

/// A source as far as it can be known now.
enum Known {
    Whole(Box<CloneSourceConfig>),
    /// But for variables that are not set.
    InPart(UnusableSourceConfig),
}

impl Known {
    fn name(&self) -> &str {
        match self {
            Self::Whole(source) => &source.name,
            Self::InPart(source) => &source.name,
        }
    }
}

/// Reads the sources of a file, those that can be used and the others; what is returned is used only if no fault was noted.
pub(super) fn sources(
    items: Vec<Reader<'_>>,
    profiles: Option<&[ProfileConfig]>,
    environment: &Environment,
    faults: &Faults,
) -> (Vec<CloneSourceConfig>, Vec<UnusableSourceConfig>) {
    let mut names = BTreeSet::new();
    let (mut usable, mut unusable) = (Vec::new(), Vec::new());
    for item in &items {
        let Some(source) = source(item, profiles, environment, faults) else { continue };
        if !names.insert(source.name().to_owned()) {
            faults.add(format!("{}.name", item.place()), format!("names a second source `{}`", source.name()));
        }
        match source {
            Known::Whole(source) => usable.push(*source),
            Known::InPart(source) => unusable.push(source),
        }
    }
    (usable, unusable)
}

fn source(
    item: &Reader<'_>,
    profiles: Option<&[ProfileConfig]>,
    environment: &Environment,
    faults: &Faults,
) -> Option<Known> {
    // All keys are read, so that their faults are told together.
    let missing = Missing::default();
    let name = item.text("name");
    let url = url(item, environment, &missing, faults);
    let password = password(item, environment, &missing, faults);
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
    let missing = missing.into_inner();
    if !missing.is_empty() {
        return Some(Known::InPart(UnusableSourceConfig { name: name?.value, production, faults: missing }));
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
    let source = CloneSourceConfig { name: name?.value, url, password, production, profiles: allowed };
    Some(Known::Whole(Box::new(source)))
}

/// Reads the URL, from the file or from the variable it names.
fn url(item: &Reader<'_>, environment: &Environment, missing: &Missing, faults: &Faults) -> Option<PostgresUrl> {
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
        (None, Some(named)) => Found { value: variable(&named, environment, missing)?, place: named.place },
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
fn password(
    item: &Reader<'_>,
    environment: &Environment,
    missing: &Missing,
    faults: &Faults,
) -> Option<(Kept, String)> {
    let from_env = item.text("passwordFromEnv").and_then(|named| {
        let secret = variable(&named, environment, missing)?;
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

/// The variables that a source names and that are not set.
type Missing = Faults;

/// Returns what the named variable holds.
fn variable(named: &Found<String>, environment: &Environment, missing: &Missing) -> Option<Secret> {
    match environment.raw(&named.value).and_then(|value| value.to_str()).filter(|value| !value.is_empty()) {
        Some(value) => Some(Secret::new(value)),
        None => {
            missing.add(&named.place, format!("names `{}`, which is not set", shown(&named.value)));
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
