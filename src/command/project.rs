//! What a repository remembers of how its database is worked on: `.pgsandbox/project.json`, without any secret.

use std::io;

use serde::{Deserialize, Serialize};

use super::surroundings::{URL_NAMES_MAX, check_url_name};
use super::{Grounds, Repo};
use crate::model::place_in_text;

/// Where it stands.
pub const PROJECT_FILE: &str = ".pgsandbox/project.json";
/// The longest such file, in bytes.
const PROJECT_BYTES_MAX: usize = 64 << 10;
/// The oldest and newest major version that can be recorded.
const MAJOR_MIN: u16 = 9;
/// Two digits: whatever has more is a mistake.
const MAJOR_MAX: u16 = 99;

/// What is remembered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Project {
    /// The major version of Postgres.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub postgres_version: Option<String>,
    /// The command that changes the schema.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub migration_command: Option<Vec<String>>,
    /// The command that fills in data.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub seed_command: Option<Vec<String>>,
    /// Further names under which the commands find the database URL.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub database_url_env_names: Option<Vec<String>>,
}

/// What the file has to look like.
const WANTED: &str = "it takes `migrationCommand`, `seedCommand` and `databaseUrlEnvNames`, each a list of words, \
                      [\"npm\", \"run\", \"migrate\"] for instance, and `postgresVersion`, a text";

/// Returns the major version that a text names.
pub fn major(version: &str) -> Option<u16> {
    let number = version.split('.').next().filter(|number| number.bytes().all(|byte| byte.is_ascii_digit()))?;
    number.parse().ok().filter(|major| (MAJOR_MIN..=MAJOR_MAX).contains(major))
}

impl Project {
    /// Reads what a repository remembers; nothing where it has no such file.
    ///
    /// # Errors
    /// Says why the file cannot be read.
    pub fn read(repo: &Repo) -> Result<Self, String> {
        let text = repo
            .read(PROJECT_FILE, PROJECT_BYTES_MAX)
            .map_err(|error| format!("`{PROJECT_FILE}` was not read: {error}"))?;
        let Some(text) = text else { return Ok(Self::default()) };
        let project: Self = serde_json::from_str(&text).map_err(|error| {
            format!(
                "`{PROJECT_FILE}` cannot be used: look at {}; {WANTED}",
                place_in_text(error.line(), error.column())
            )
        })?;
        // Whoever can write the repository wrote it, and it is told and selects a server.
        if project.postgres_version.as_ref().is_some_and(|version| major(version).is_none()) {
            return Err(format!("`{PROJECT_FILE}` cannot be used: its `postgresVersion` is no version of Postgres"));
        }
        if let Some(names) = &project.database_url_env_names
            && (names.len() > URL_NAMES_MAX || names.iter().any(|name| check_url_name(name).is_err()))
        {
            let text = "its `databaseUrlEnvNames` has names that no database URL may have, or too many";
            return Err(format!("`{PROJECT_FILE}` cannot be used: {text}"));
        }
        Ok(project)
    }

    /// Reads what the repository at a path remembers. Where there is none, or it is not to be used, that is nothing: who may
    /// not look there learns nothing more.
    pub fn at(path: &str) -> Self {
        Self::look_at(path).unwrap_or_default()
    }

    /// Reads the same, and says what is wrong with a file that cannot be used. It never shows what is in it.
    ///
    /// # Errors
    /// Says why the file cannot be read.
    pub fn look_at(path: &str) -> Result<Self, String> {
        Repo::open(path, &Grounds::default()).map_or_else(|_| Ok(Self::default()), |repo| Self::read(&repo))
    }

    /// Writes it into a repository.
    ///
    /// # Errors
    /// Fails if the system does not let us, or the place is a link.
    pub fn write(&self, repo: &Repo) -> io::Result<()> {
        let (dir, name) = PROJECT_FILE.rsplit_once('/').unwrap_or_default();
        let text = serde_json::to_string_pretty(self).map_err(io::Error::other)?;
        repo.write(dir, name, &(text + "\n"))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_is_remembered_is_read_again_and_what_is_malformed_is_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_str().unwrap();
        let repo = Repo::open(path, &Grounds::default()).unwrap();
        assert_eq!(Project::read(&repo), Ok(Project::default()));
        let project = Project { seed_command: Some(vec!["./seed".to_owned()]), ..Project::default() };
        project.write(&repo).unwrap();
        assert_eq!(Project::at(path), project);
        let file = dir.path().join(PROJECT_FILE);
        fs::write(&file, format!("{{\"x\":\"{}\"}}", "y".repeat(PROJECT_BYTES_MAX))).unwrap();
        assert!(Project::read(&repo).unwrap_err().contains("longer than"));
        fs::write(&file, "{\"seedCommand\": \"secret words\"}").unwrap();
        let said = Project::read(&repo).unwrap_err();
        assert!(said.contains("line 1") && said.contains("a list of words") && !said.contains("secret"), "{said}");
        assert_eq!(Project::look_at(path), Err(said));
        for (names, read) in [("[\"APP_DB_URL\"]", true), ("[\"PATH\"]", false), ("[\"a b\"]", false)] {
            fs::write(&file, format!("{{\"databaseUrlEnvNames\": {names}}}")).unwrap();
            assert_eq!(Project::read(&repo).is_ok(), read, "{names}");
        }
        for (version, read) in
            [("16", true), ("16.4", true), ("../../x", false), ("\\u001b[31m16", false), ("8", false)]
        {
            fs::write(&file, format!("{{\"postgresVersion\": \"{version}\"}}")).unwrap();
            assert_eq!(Project::read(&repo).is_ok(), read, "{version}");
        }
        assert_eq!(Project::at(path), Project::default());
    }
}
