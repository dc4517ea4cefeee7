//! Reads the newest lines of a log, all segments together, in the order of their times.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use serde::Deserialize;

use super::manifest::{self, Entry};
use super::segment::is_segment_name;

/// Which lines are wanted: those that match all that is set. Matches opening and closing lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// The request's id.
    pub id: Option<String>,
    /// The operation's name. Closing lines without a record of the request have none.
    pub operation: Option<String>,
    /// The principal's owner.
    pub owner: Option<String>,
    /// `open` or `close`.
    pub kind: Option<String>,
    /// The failure's code.
    pub code: Option<String>,
    /// The sandbox's id.
    pub target: Option<String>,
}

#[derive(Deserialize)]
struct Keys {
    kind: String,
    at: String,
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    operation: Option<String>,
    #[serde(default)]
    principal: Option<Who>,
    #[serde(default)]
    code: Option<String>,
    #[serde(default)]
    target: Option<String>,
    #[serde(default)]
    request: Option<Request>,
}

#[derive(Deserialize)]
struct Who {
    owner: String,
}

#[derive(Deserialize)]
struct Request {
    operation: String,
    principal: Who,
}

impl Filter {
    fn matches(&self, keys: &Keys) -> bool {
        let request = keys.request.as_ref();
        let operation = keys.operation.as_ref().or(request.map(|request| &request.operation));
        let owner = keys.principal.as_ref().or(request.map(|request| &request.principal)).map(|who| &who.owner);
        let fits = |wanted: &Option<String>, found: Option<&String>| wanted.is_none() || wanted.as_ref() == found;
        fits(&self.id, keys.id.as_ref())
            && fits(&self.operation, operation)
            && fits(&self.owner, owner)
            && fits(&self.kind, Some(&keys.kind))
            && fits(&self.code, keys.code.as_ref())
            && fits(&self.target, keys.target.as_ref())
    }
}

/// Returns the newest `n` lines that match, oldest first, as they stand in the files. Checks no hash.
///
/// # Errors
/// Fails if the directory or a file in it cannot be read.
pub fn tail(dir: &Path, n: usize, filter: &Filter) -> io::Result<Vec<String>> {
    let mut newest: Vec<(String, String)> = Vec::new();
    for (sealed_at, name) in newest_first(dir)? {
        let enough =
            newest.len() >= n && newest.first().is_some_and(|(at, _)| sealed_at.as_ref().is_some_and(|s| s < at));
        if enough {
            break;
        }
        newest.extend(matching(&dir.join(name), filter)?);
        newest.sort_by(|one, other| one.0.cmp(&other.0));
        newest.drain(..newest.len().saturating_sub(n));
    }
    Ok(newest.into_iter().map(|(_, line)| line).collect())
}

/// Returns the segments with the times of their seals: first those without, then the last sealed first.
fn newest_first(dir: &Path) -> io::Result<Vec<(Option<String>, String)>> {
    let seals: BTreeMap<String, String> = manifest::entries(dir)?
        .into_iter()
        .filter_map(|entry| match entry {
            Entry::Seal(length) => Some((length.segment, length.at)),
            Entry::Add { .. } | Entry::Checkpoint(_) => None,
        })
        .collect();
    let mut segments = Vec::new();
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if is_segment_name(&name) {
            segments.push((seals.get(&name).cloned(), name));
        }
    }
    segments.sort_by(|one, other| match (&one.0, &other.0) {
        (None, None) => one.1.cmp(&other.1),
        (None, Some(_)) => std::cmp::Ordering::Less,
        (Some(_), None) => std::cmp::Ordering::Greater,
        (Some(one), Some(other)) => other.cmp(one),
    });
    Ok(segments)
}

fn matching(path: &Path, filter: &Filter) -> io::Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for line in BufReader::new(fs::File::open(path)?).lines() {
        let line = line?;
        let Ok(keys) = serde_json::from_str::<Keys>(&line) else { continue };
        let about_a_request = matches!(keys.kind.as_str(), "open" | "close");
        if about_a_request && filter.matches(&keys) {
            found.push((keys.at, line));
        }
    }
    Ok(found)
}
