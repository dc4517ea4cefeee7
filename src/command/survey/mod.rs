//! Looks into a repository: which Postgres it is made for, and by which commands its database is changed and filled.
//!
//! Only looks: nothing is run, no link is followed, and of each file only a bounded piece is read. A file that cannot be
//! read is a warning, and the rest is looked at all the same.

mod tools;
mod versions;
mod yaml;

use std::collections::BTreeMap;

use rustix::fs::FileType;

pub use self::versions::VersionSource;
use super::Repo;

/// The longest file that is read, in bytes.
pub const FILE_BYTES_MAX: usize = 256 << 10;
/// The most files that are read.
pub const FILES_MAX: usize = 100;
/// The most warnings that are kept.
const WARNINGS_MAX: usize = 20;

/// What a command would be for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Changes the schema.
    Migration,
    /// Fills in data.
    Seed,
}

/// A command that a repository seems to be made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// What for.
    pub purpose: Purpose,
    /// Its words.
    pub command: Vec<String>,
    /// The file that says so.
    pub because: String,
}

/// What was found.
#[derive(Debug, Default)]
pub struct Survey {
    /// What says which Postgres is used, in the order in which it counts.
    pub versions: Vec<VersionSource>,
    /// Tools, each with the file that gives it away.
    pub tools: Vec<(String, String)>,
    /// Commands, the likeliest first.
    pub proposals: Vec<Proposal>,
    /// Names that the repository reads its database URL from, beside `DATABASE_URL`.
    pub url_names: Vec<String>,
    /// What could not be read, or does not agree.
    pub warnings: Vec<String>,
    /// How many services were looked at.
    services: usize,
    /// What was read already; none for what is not there.
    texts: BTreeMap<String, Option<String>>,
}

impl Survey {
    /// Looks into a repository.
    pub fn of(repo: &Repo) -> Self {
        let mut survey = Self::default();
        versions::find(repo, &mut survey);
        tools::find(repo, &mut survey);
        let majors: Vec<u16> = survey.versions.iter().filter_map(|source| source.major).collect();
        if let Some(first) = majors.first()
            && majors.iter().any(|major| major != first)
        {
            survey
                .warnings
                .push(format!("the files do not agree on one version of Postgres; {first} is the first of them"));
        }
        survey.warnings.truncate(WARNINGS_MAX);
        survey
    }

    /// Returns the major version that counts.
    pub fn major(&self) -> Option<u16> {
        self.versions.iter().find_map(|source| source.major)
    }

    /// Reads a file once; what cannot be read is a warning.
    fn text(&mut self, repo: &Repo, file: &str) -> Option<String> {
        if let Some(known) = self.texts.get(file) {
            return known.clone();
        }
        if self.texts.len() >= FILES_MAX {
            return None;
        }
        let text = repo.read(file, FILE_BYTES_MAX).unwrap_or_else(|error| {
            let link = error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error());
            let why = if link { "it is a link".to_owned() } else { error.to_string() };
            self.warnings.push(format!("`{file}` was not read: {why}"));
            None
        });
        self.texts.insert(file.to_owned(), text.clone());
        text
    }

    /// Returns whether there is a plain file of that name.
    fn is_file(&self, repo: &Repo, file: &str) -> bool {
        let (dir, name) = file.rsplit_once('/').unwrap_or(("", file));
        repo.names(dir, FileType::RegularFile).iter().any(|found| found == name)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::command::Grounds;

    fn survey(files: &[(&str, &str)]) -> Survey {
        let dir = tempfile::tempdir().unwrap();
        for (file, text) in files {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        symlink("/etc/passwd", dir.path().join("Makefile")).unwrap();
        Survey::of(&Repo::open(dir.path().to_str().unwrap(), &Grounds::default()).unwrap())
    }

    fn commands(survey: &Survey, purpose: Purpose) -> Vec<String> {
        survey.proposals.iter().filter(|p| p.purpose == purpose).map(|p| p.command.join(" ")).collect()
    }

    #[test]
    fn a_file_whose_name_would_drive_a_terminal_is_not_told() {
        let workflow = "jobs: {a: {services: {pg: {image: 'postgres:13'}}}}\n";
        let found =
            survey(&[(".github/workflows/\u{1b}[31mx.yml", workflow), (".github/workflows/$(id).yml", workflow)]);
        let told: Vec<&str> = found.versions.iter().map(|source| source.file.as_str()).collect();
        assert_eq!(told, [".github/workflows/$(id).yml"]);
    }

    #[test]
    fn services_that_stand_for_each_other_are_looked_at_so_often_and_no_more() {
        let named =
            |count: usize, anchor: &str| (0..count).map(|n| format!("n{n}: *{anchor}")).collect::<Vec<_>>().join(", ");
        let jobs = format!(
            "x-s: &s {{image: 'postgres:16'}}\nx-m: &m {{{}}}\nx-j: &j {{services: *m}}\njobs: {{{}}}\n",
            named(200, "s"),
            named(200, "j")
        );
        // Each of these is a place of its own; after so many no more are kept, and after so many no more are looked at.
        let found = survey(&[(".github/workflows/ci.yml", &jobs)]);
        assert_eq!((found.versions.len(), found.services > 2000), (100, true));
        let other = jobs.replace("postgres:16", "redis:7");
        let files = [(".github/workflows/a.yml", other.as_str()), (".gitlab-ci.yml", "services: ['postgres:14']\n")];
        assert_eq!(survey(&files).versions, []);
        for (length, kept) in [(1024, 1), (1025, 0)] {
            let image = format!("{:a>1$}", "/postgres:16", length);
            let compose = format!("services: {{db: {{image: '{image}'}}}}\n");
            assert_eq!(survey(&[("compose.yaml", &compose)]).versions.len(), kept, "{length}");
        }
    }

    #[test]
    fn versions_and_commands_are_found_where_they_stand() {
        let found = survey(&[
            ("compose.yaml", "services:\n  web:\n    image: app\n  db:\n    image: postgres:16-alpine\n"),
            (".github/workflows/ci.yml", "jobs:\n  test:\n    services:\n      pg:\n        image: postgres:15\n"),
            (".gitlab-ci.yml", "test:\n  services: ['postgres:14', {name: 'postgres:13'}]\n"),
            (".tool-versions", "nodejs 20\npostgres 16.2\n"),
            ("mise.toml", "[tools]\npostgres = '17'\n"),
            (
                "package.json",
                r#"{"scripts":{"db:migrate":"x","db:seed":"y","build":"z"},"dependencies":{"typeorm":"1"}}"#,
            ),
            ("pnpm-lock.yaml", ""),
            (
                "prisma/schema.prisma",
                "datasource db {\n  provider = \"postgresql\"\n  url      = env(\"MY_URL\")\n  directUrl = env( \"DIRECT_URL\" )\n  // url = env(\"OLD_URL\")\n  shadowDatabaseUrl = env(\"SHADOW\")\n}\n",
            ),
            ("db/migrations/001.sql", "-- +goose Up\n"),
            (".env.example", "APP_DB_URL=postgres://x\nPORT=1\n"),
        ]);
        let majors: Vec<_> = found.versions.iter().map(|source| source.major).collect();
        assert_eq!(majors, [Some(16), Some(16), Some(17), Some(15), Some(14), Some(13)]);
        assert_eq!(found.major(), Some(16));
        let migrations = commands(&found, Purpose::Migration);
        assert_eq!(migrations[..2], ["pnpm run db:migrate", "npx --no-install typeorm migration:run"]);
        assert!(migrations.contains(&"goose -dir db/migrations postgres up".to_owned()));
        assert_eq!(commands(&found, Purpose::Seed)[0], "pnpm run db:seed");
        assert_eq!(found.url_names, ["APP_DB_URL", "DIRECT_URL", "GOOSE_DBSTRING", "MY_URL"]);
        let said = found.warnings.join("; ");
        assert!(said.contains("`Makefile` was not read: it is a link") && said.contains("do not agree"), "{said}");
    }

    #[test]
    fn a_program_of_the_repositorys_own_environment_is_proposed_from_there() {
        let found = survey(&[("alembic.ini", ""), (".venv/bin/alembic", ""), ("manage.py", "")]);
        let migrations = commands(&found, Purpose::Migration);
        assert_eq!(migrations, [".venv/bin/alembic upgrade head", "python manage.py migrate"]);
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("venv/bin")).unwrap();
        fs::write(dir.path().join("manage.py"), "").unwrap();
        symlink("/usr/bin/python3", dir.path().join("venv/bin/python")).unwrap();
        let found = Survey::of(&Repo::open(dir.path().to_str().unwrap(), &Grounds::default()).unwrap());
        assert_eq!(commands(&found, Purpose::Migration), ["venv/bin/python manage.py migrate"]);
    }

    #[test]
    fn what_is_malformed_is_a_warning_and_the_rest_is_found() {
        let long = "#".repeat(FILE_BYTES_MAX + 1);
        let found = survey(&[
            ("docker-compose.yml", "services: {db: [\n"),
            ("compose.yaml", "services:\n  db:\n    image: [postgres]\n  other: text\n"),
            ("compose.yml", "- 1\n"),
            ("package.json", "{\"scripts\": {"),
            (".devcontainer/devcontainer.json", "{,}"),
            ("mise.toml", "[tools"),
            (".gitlab-ci.yml", &long),
            ("alembic.ini", ""),
        ]);
        for file in
            ["docker-compose.yml", "package.json", ".devcontainer/devcontainer.json", "mise.toml", ".gitlab-ci.yml"]
        {
            assert!(found.warnings.iter().any(|warning| warning.contains(file)), "{file}: {:?}", found.warnings);
        }
        assert_eq!(commands(&found, Purpose::Migration), ["alembic upgrade head"]);
        assert_eq!(found.major(), None);
    }

    #[test]
    fn files_and_warnings_have_a_bound() {
        let dir = tempfile::tempdir().unwrap();
        let repo = Repo::open(dir.path().to_str().unwrap(), &Grounds::default()).unwrap();
        let mut survey = Survey::default();
        for n in 0..=FILES_MAX {
            fs::write(dir.path().join(n.to_string()), "x").unwrap();
            assert_eq!(survey.text(&repo, &n.to_string()).is_some(), n < FILES_MAX);
        }
        let workflows: Vec<(String, &str)> = (0..30).map(|n| (format!(".github/workflows/{n}.yml"), "[")).collect();
        let workflows: Vec<(&str, &str)> = workflows.iter().map(|(file, text)| (file.as_str(), *text)).collect();
        assert_eq!(self::survey(&workflows).warnings.len(), WARNINGS_MAX);
    }

    #[test]
    fn of_many_services_scripts_and_commands_some_are_looked_at() {
        let services: String =
            (0..=200).map(|n| format!("  s{n}:\n    image: {}\n", if n < 200 { "x" } else { "postgres:16" })).collect();
        let targets: String = (0..=500)
            .map(|n| format!("{}:\n\techo\n", if n < 500 { format!("t{n}") } else { "migrate".to_owned() }))
            .collect();
        let scripts: Vec<String> = (0..20).map(|n| format!("\"migrate:{n}\": \"x\"")).collect();
        let package = format!("{{\"scripts\": {{{}}}}}", scripts.join(","));
        let compose = format!("services:\n{services}");
        let workflow = "jobs:\n  t:\n    services:\n      db: {image: 'postgres:15'}\n";
        let workflows: Vec<String> = (0..30).map(|n| format!(".github/workflows/{n}.yml")).collect();
        let mut files: Vec<(&str, &str)> =
            vec![("compose.yaml", &compose), ("makefile", &targets), ("package.json", &package)];
        files.extend(workflows.iter().map(|file| (file.as_str(), workflow)));
        let schema = |lines: usize| format!("{}url = env(\"MY_URL\")\n", "\n".repeat(lines));
        for (lines, names) in [(9_999, 1), (10_000, 0)] {
            assert_eq!(survey(&[("prisma/schema.prisma", &schema(lines))]).url_names.len(), names, "{lines}");
        }
        let found = survey(&files);
        assert_eq!(found.versions.len(), 20, "those of workflows: the service that is too much is not looked at");
        assert_eq!(commands(&found, Purpose::Migration).len(), 8);
        assert!(!commands(&found, Purpose::Migration).contains(&"make migrate".to_owned()));
    }
}
