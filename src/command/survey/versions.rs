//! Which Postgres a repository is made for, by the files that say so.

use rustix::fs::FileType;

use super::Survey;
use super::yaml::{self, Node};
use crate::command::Repo;
use crate::model::place_in_text;

/// Versions that a tag can mean.
const MAJORS: std::ops::RangeInclusive<u16> = 9..=99;
/// The most services that are looked at in a file.
const SERVICES_MAX: usize = 200;
/// The most services that are looked at in all files together: a file may name one of them very often.
const SERVICES_ALL_MAX: usize = 2000;
/// The most places that are kept.
const SOURCES_MAX: usize = 100;
/// The longest name of an image, in bytes; a longer one is none.
const IMAGE_BYTES_MAX: usize = 1024;
/// The most workflow files that are looked at.
const WORKFLOWS_MAX: usize = 20;

/// Images that hold Postgres, by the last part of their names.
const IMAGES: [&str; 12] = [
    "alloydbomni",
    "cloudnative-pg",
    "citus",
    "pgvector",
    "postgis",
    "postgres",
    "postgresql",
    "supabase-postgres",
    "timescaledb",
    "timescaledb-ha",
    "pgvecto-rs",
    "postgresql-repmgr",
];

/// A place in a repository that says which Postgres is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionSource {
    /// The file.
    pub file: String,
    /// The service, job or tool.
    pub name: String,
    /// What it says, an image for instance.
    pub says: String,
    /// The major version, where that is plain.
    pub major: Option<u16>,
}

/// Finds every place, the one that counts first.
pub(super) fn find(repo: &Repo, survey: &mut Survey) {
    const COMPOSE: [&str; 8] = [
        "compose.yaml",
        "compose.yml",
        "docker-compose.yaml",
        "docker-compose.yml",
        "docker-compose.override.yml",
        ".devcontainer/docker-compose.yml",
        ".devcontainer/compose.yaml",
        "docker/docker-compose.yml",
    ];
    for file in COMPOSE {
        if let Some(document) = document(repo, file, survey) {
            for (name, service) in
                document.get("services").map(Node::entries).unwrap_or_default().iter().take(SERVICES_MAX)
            {
                compose_service(file, name, service, survey);
            }
        }
    }
    devcontainer(repo, survey);
    tool_versions(repo, survey);
    for file in repo.names(".github/workflows", FileType::RegularFile).into_iter().take(WORKFLOWS_MAX) {
        // A name is told, and one with control characters is made for whoever reads it on a terminal.
        let plain = !file.chars().any(char::is_control);
        if plain && (file.ends_with(".yml") || file.ends_with(".yaml")) {
            workflow(repo, &format!(".github/workflows/{file}"), survey);
        }
    }
    for file in [".gitlab-ci.yml", ".circleci/config.yml"] {
        let Some(document) = document(repo, file, survey) else { continue };
        let jobs = document.get("jobs").map_or(document.entries(), Node::entries);
        let services = |node: &Node| {
            [node.get("services"), node.get("docker")]
                .into_iter()
                .flatten()
                .flat_map(Node::items)
                .cloned()
                .collect::<Vec<_>>()
        };
        for service in services(&document) {
            either(file, "services", &service, survey);
        }
        for (name, job) in jobs.iter().take(SERVICES_MAX) {
            services(job).iter().take(SERVICES_MAX).for_each(|service| either(file, name, service, survey));
        }
    }
}

/// Reads a file as YAML; a malformed one is a warning.
fn document(repo: &Repo, file: &str, survey: &mut Survey) -> Option<std::rc::Rc<Node>> {
    let text = survey.text(repo, file)?;
    yaml::read(&text).map_err(|why| survey.warnings.push(format!("`{file}` {why}"))).ok()
}

fn compose_service(file: &str, name: &str, service: &Node, survey: &mut Survey) {
    if one_more(survey) {
        image(file, name, service.get("image"), survey);
    }
}

/// Returns whether one more service is looked at.
fn one_more(survey: &mut Survey) -> bool {
    survey.services += 1;
    survey.services <= SERVICES_ALL_MAX
}

/// An image by itself, or the name in a map.
fn either(file: &str, name: &str, node: &Node, survey: &mut Survey) {
    if !one_more(survey) {
        return;
    }
    let named = node.get("image").or_else(|| node.get("name"));
    image(file, name, if node.text().is_some() { Some(node) } else { named }, survey);
}

fn image(file: &str, name: &str, node: Option<&Node>, survey: &mut Survey) {
    let Some(says) = node.and_then(Node::text).filter(|says| says.len() <= IMAGE_BYTES_MAX) else { return };
    if survey.versions.len() >= SOURCES_MAX {
        return;
    }
    let resolved = with_defaults(says);
    if let Some(major) = image_version(&resolved) {
        let source = VersionSource { file: file.to_owned(), name: short(name), says: short(says), major };
        survey.versions.push(source);
    }
}

fn workflow(repo: &Repo, file: &str, survey: &mut Survey) {
    let Some(document) = document(repo, file, survey) else { return };
    for (name, job) in document.get("jobs").map(Node::entries).unwrap_or_default().iter().take(SERVICES_MAX) {
        for (_, service) in job.get("services").map(Node::entries).unwrap_or_default().iter().take(SERVICES_MAX) {
            either(file, name, service, survey);
        }
    }
}

fn devcontainer(repo: &Repo, survey: &mut Survey) {
    for file in [".devcontainer/devcontainer.json", ".devcontainer.json"] {
        let Some(text) = survey.text(repo, file) else { continue };
        // Comments of whole lines are usual there.
        let text: String =
            text.lines().filter(|line| !line.trim_start().starts_with("//")).map(|line| format!("{line}\n")).collect();
        match serde_json::from_str::<serde_json::Value>(&text) {
            Ok(value) => {
                if let Some(says) = value.get("image").and_then(serde_json::Value::as_str) {
                    image(file, "image", Some(&Node::Scalar(says.to_owned())), survey);
                }
            }
            Err(error) => {
                let place = place_in_text(error.line(), error.column());
                survey.warnings.push(format!("`{file}` is not JSON: look at {place}"));
            }
        }
    }
}

fn tool_versions(repo: &Repo, survey: &mut Survey) {
    if let Some(text) = survey.text(repo, ".tool-versions") {
        for line in text.lines() {
            let mut words = line.split_whitespace();
            if let (Some("postgres" | "postgresql"), Some(version)) = (words.next(), words.next()) {
                let major = leading_major(version);
                survey.versions.push(VersionSource {
                    file: ".tool-versions".to_owned(),
                    name: "postgres".to_owned(),
                    says: short(version),
                    major,
                });
            }
        }
    }
    for file in ["mise.toml", ".mise.toml"] {
        let Some(text) = survey.text(repo, file) else { continue };
        let Ok(table) = text.parse::<toml::Table>() else {
            survey.warnings.push(format!("`{file}` is not TOML"));
            continue;
        };
        let says = table.get("tools").and_then(|tools| tools.get("postgres")).and_then(toml::Value::as_str);
        if let Some(says) = says {
            survey.versions.push(VersionSource {
                file: file.to_owned(),
                name: "postgres".to_owned(),
                says: short(says),
                major: leading_major(says),
            });
        }
    }
}

/// Puts in what `${NAME:-default}` falls back to, the innermost first: a default may have one of its own.
fn with_defaults(text: &str) -> String {
    let mut out = text.to_owned();
    while let Some(begin) = out.rfind("${") {
        let (before, after) = (out.get(..begin).unwrap_or_default(), out.get(begin + 2..).unwrap_or_default());
        let Some((inside, after)) = after.split_once('}') else { return before.to_owned() };
        let default = inside.split_once(":-").or_else(|| inside.split_once('-')).map(|(_, default)| default);
        out = format!("{before}{}{after}", default.unwrap_or_default());
    }
    out
}

/// Returns nothing for an image without Postgres, and else its major version where the tag says it.
fn image_version(image: &str) -> Option<Option<u16>> {
    let image = image.split_once('@').map_or(image, |(name, _)| name);
    let last = image.rsplit('/').next().unwrap_or_default();
    let (name, tag) = last.split_once(':').unwrap_or((last, ""));
    if !IMAGES.contains(&name) {
        return None;
    }
    // `pg16` outranks a version of something else: `timescaledb:2.17.2-pg16`.
    let marked = tag.split(['-', '_', '.']).find_map(|part| part.strip_prefix("pg").and_then(leading_major));
    let extension = name.starts_with("timescaledb") || matches!(name, "pgvector" | "citus" | "pgvecto-rs");
    Some(marked.or_else(|| leading_major(tag).filter(|_| !extension)))
}

fn leading_major(version: &str) -> Option<u16> {
    let digits: String = version.trim_start_matches('v').chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok().filter(|major| MAJORS.contains(major))
}

/// Cuts what comes from a file to what is shown of it.
fn short(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(120).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_images_tag_says_which_major_it_is() {
        for (image, expected) in [
            ("postgres:16", Some(Some(16))),
            ("postgres:16.4-alpine", Some(Some(16))),
            ("docker.io/library/postgres:15-bookworm", Some(Some(15))),
            ("localhost:5000/postgres:14", Some(Some(14))),
            ("postgres:17@sha256:abc", Some(Some(17))),
            ("postgis/postgis:16-3.4", Some(Some(16))),
            ("pgvector/pgvector:pg17", Some(Some(17))),
            ("pgvector/pgvector:0.8.0-pg16", Some(Some(16))),
            ("timescale/timescaledb:2.17.2-pg15", Some(Some(15))),
            ("timescale/timescaledb:2.17.2", Some(None)),
            ("postgres", Some(None)),
            ("postgres:latest", Some(None)),
            ("postgres:${PG:-16}-alpine", Some(Some(16))),
            ("${IMAGE:-${REGISTRY:-ghcr.io}/postgres:${PG:-17}}", Some(Some(17))),
            ("$${A-{postgres:16}", None),
            ("postgres:${PG}", Some(None)),
            ("mysql:8", None),
            ("my-postgres-exporter:1", None),
        ] {
            assert_eq!(image_version(&with_defaults(image)), expected, "{image}");
        }
    }
}
