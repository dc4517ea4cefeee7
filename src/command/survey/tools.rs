//! Which tools a repository changes and fills its database with, and by which commands.

use rustix::fs::FileType;

use super::{Proposal, Purpose, Survey};
use crate::command::Repo;
use crate::model::place_in_text;

/// The most scripts or targets that are looked at.
const NAMES_MAX: usize = 500;
/// The most lines of a schema that are looked at.
const LINES_MAX: usize = 10_000;
/// The most proposals of one purpose.
const PROPOSALS_MAX: usize = 8;

/// A tool that a file gives away.
struct Tool {
    name: &'static str,
    /// Any of them is enough.
    files: &'static [&'static str],
    migrate: &'static [&'static str],
    seed: &'static [&'static str],
    /// The variable that it reads the URL from, if that is not `DATABASE_URL`.
    variable: Option<&'static str>,
}

const TOOLS: &[Tool] = &[
    Tool {
        name: "prisma",
        files: &["prisma/schema.prisma", "schema.prisma"],
        migrate: &["npx", "--no-install", "prisma", "migrate", "deploy"],
        seed: &["npx", "--no-install", "prisma", "db", "seed"],
        variable: None,
    },
    Tool {
        name: "drizzle",
        files: &["drizzle.config.ts", "drizzle.config.js", "drizzle.config.json"],
        migrate: &["npx", "--no-install", "drizzle-kit", "migrate"],
        seed: &[],
        variable: None,
    },
    Tool {
        name: "knex",
        files: &["knexfile.js", "knexfile.ts", "knexfile.cjs", "knexfile.mjs"],
        migrate: &["npx", "--no-install", "knex", "migrate:latest"],
        seed: &["npx", "--no-install", "knex", "seed:run"],
        variable: None,
    },
    Tool {
        name: "alembic",
        files: &["alembic.ini"],
        migrate: &["alembic", "upgrade", "head"],
        seed: &[],
        variable: None,
    },
    Tool {
        name: "django",
        files: &["manage.py"],
        migrate: &["python", "manage.py", "migrate"],
        seed: &[],
        variable: None,
    },
    Tool {
        name: "rails",
        files: &["bin/rails"],
        migrate: &["bin/rails", "db:migrate"],
        seed: &["bin/rails", "db:seed"],
        variable: None,
    },
    Tool {
        name: "laravel",
        files: &["artisan"],
        migrate: &["php", "artisan", "migrate", "--force"],
        seed: &["php", "artisan", "db:seed", "--force"],
        variable: Some("DB_URL"),
    },
    Tool {
        name: "flyway",
        files: &["flyway.conf", "flyway.toml"],
        migrate: &["flyway", "migrate"],
        seed: &[],
        variable: None,
    },
    Tool {
        name: "sqlx",
        files: &[".sqlx/.gitkeep", "sqlx-data.json", "sqlx.toml"],
        migrate: &["sqlx", "migrate", "run"],
        seed: &[],
        variable: None,
    },
    Tool {
        name: "diesel",
        files: &["diesel.toml"],
        migrate: &["diesel", "migration", "run"],
        seed: &[],
        variable: None,
    },
    Tool {
        name: "ecto",
        files: &["mix.exs"],
        migrate: &["mix", "ecto.migrate"],
        seed: &["mix", "run", "priv/repo/seeds.exs"],
        variable: None,
    },
    Tool {
        name: "sqitch",
        files: &["sqitch.conf"],
        migrate: &["sqitch", "deploy"],
        seed: &[],
        variable: Some("SQITCH_TARGET"),
    },
    Tool { name: "atlas", files: &["atlas.hcl"], migrate: &["atlas", "migrate", "apply"], seed: &[], variable: None },
];

/// Where a repository's own Python programs are, each as its package made it.
const OWN_PROGRAMS: [&str; 2] = [".venv/bin", "venv/bin"];

/// Returns a command with the repository's own program in place of one that would be looked for elsewhere.
fn with_own_program(repo: &Repo, command: &[&str]) -> Vec<String> {
    let mut words: Vec<String> = command.iter().map(|&word| word.to_owned()).collect();
    let Some(program) = words.first_mut().filter(|program| !program.contains('/')) else { return words };
    let is_in = |dir: &&&str| {
        // The interpreter is a link to the one that it was made from.
        [FileType::RegularFile, FileType::Symlink].into_iter().any(|kind| repo.names(dir, kind).contains(program))
    };
    if let Some(dir) = OWN_PROGRAMS.iter().find(is_in) {
        *program = format!("{dir}/{program}");
    }
    words
}

/// Finds tools and proposes commands, those of the repository's own making first.
pub(super) fn find(repo: &Repo, survey: &mut Survey) {
    package_json(repo, survey);
    makefile(repo, survey);
    for tool in TOOLS {
        let Some(file) = tool.files.iter().find(|file| survey.is_file(repo, file)) else { continue };
        found(survey, tool.name, file);
        propose(survey, Purpose::Migration, &with_own_program(repo, tool.migrate), file);
        propose(survey, Purpose::Seed, &with_own_program(repo, tool.seed), file);
        survey.url_names.extend(tool.variable.map(str::to_owned));
    }
    by_contents(repo, survey);
    prisma_variables(repo, survey);
    example_variables(repo, survey);
}

fn found(survey: &mut Survey, name: &str, file: &str) {
    if !survey.tools.iter().any(|(known, _)| known == name) {
        survey.tools.push((name.to_owned(), file.to_owned()));
    }
}

fn propose(survey: &mut Survey, purpose: Purpose, command: &[impl AsRef<str>], because: &str) {
    let command: Vec<String> = command.iter().map(|word| word.as_ref().to_owned()).collect();
    let same = survey.proposals.iter().filter(|proposal| proposal.purpose == purpose).count();
    if !command.is_empty()
        && same < PROPOSALS_MAX
        && !survey.proposals.iter().any(|proposal| proposal.command == command)
    {
        survey.proposals.push(Proposal { purpose, command, because: because.to_owned() });
    }
}

/// Returns what a script of that name is for, if for the database.
fn purpose(name: &str) -> Option<Purpose> {
    let words: Vec<&str> = name.split([':', '-', '_', '.']).collect();
    let has = |word: &str| words.contains(&word);
    // Those make, undo or look, or want a terminal.
    if [
        "create",
        "new",
        "generate",
        "gen",
        "make",
        "rollback",
        "down",
        "undo",
        "reset",
        "status",
        "dev",
        "prod",
        "production",
        "test",
    ]
    .into_iter()
    .any(has)
    {
        return None;
    }
    if has("migrate") || has("migration") || has("migrations") {
        Some(Purpose::Migration)
    } else if has("seed") || has("seeds") {
        Some(Purpose::Seed)
    } else {
        None
    }
}

fn package_json(repo: &Repo, survey: &mut Survey) {
    const FILE: &str = "package.json";
    let Some(text) = survey.text(repo, FILE) else { return };
    let package: serde_json::Value = match serde_json::from_str(&text) {
        Ok(package) => package,
        Err(error) => {
            let place = place_in_text(error.line(), error.column());
            return survey.warnings.push(format!("`{FILE}` is not JSON: look at {place}"));
        }
    };
    let locks = [("pnpm-lock.yaml", "pnpm"), ("yarn.lock", "yarn"), ("bun.lock", "bun"), ("bun.lockb", "bun")];
    let manager = locks.into_iter().find(|(file, _)| survey.is_file(repo, file)).map_or("npm", |(_, name)| name);
    found(survey, manager, FILE);
    let scripts = package.get("scripts").and_then(serde_json::Value::as_object);
    for name in scripts.into_iter().flat_map(|scripts| scripts.keys()).take(NAMES_MAX) {
        if let Some(purpose) = purpose(name).filter(|_| is_word(name)) {
            propose(survey, purpose, &[manager, "run", name], FILE);
        }
    }
    let depends = |on: &str| {
        ["dependencies", "devDependencies"]
            .into_iter()
            .any(|list| package.get(list).is_some_and(|list| list.get(on).is_some()))
    };
    for (on, migrate, seed) in [
        ("node-pg-migrate", &["npx", "--no-install", "node-pg-migrate", "up"][..], &[][..]),
        (
            "sequelize-cli",
            &["npx", "--no-install", "sequelize-cli", "db:migrate"],
            &["npx", "--no-install", "sequelize-cli", "db:seed:all"],
        ),
        ("typeorm", &["npx", "--no-install", "typeorm", "migration:run"], &[]),
    ] {
        if depends(on) {
            found(survey, on, FILE);
            propose(survey, Purpose::Migration, migrate, FILE);
            propose(survey, Purpose::Seed, seed, FILE);
        }
    }
}

fn makefile(repo: &Repo, survey: &mut Survey) {
    for file in ["Makefile", "makefile", "GNUmakefile"] {
        let Some(text) = survey.text(repo, file) else { continue };
        found(survey, "make", file);
        let targets = text.lines().filter(|line| !line.starts_with(['\t', ' ', '#', '.'])).filter_map(|line| {
            let (name, rest) = line.split_once(':')?;
            (!rest.starts_with('=') && is_word(name)).then(|| name.to_owned())
        });
        for target in targets.take(NAMES_MAX).collect::<Vec<_>>() {
            if let Some(purpose) = purpose(&target) {
                propose(survey, purpose, &["make", &target], file);
            }
        }
        return;
    }
}

/// Returns whether a name needs no more care as a word of a command.
fn is_word(name: &str) -> bool {
    name.len() <= 80
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b':' | b'-' | b'_' | b'.' | b'/'))
}

/// Tools that are told by what their migrations look like.
fn by_contents(repo: &Repo, survey: &mut Survey) {
    for dir in ["migrations", "db/migrations", "sql/migrations", "internal/migrations"] {
        let Some(first) = repo.names(dir, FileType::RegularFile).into_iter().find(|name| name.ends_with(".sql")) else {
            continue;
        };
        let file = format!("{dir}/{first}");
        let Some(text) = survey.text(repo, &file) else { continue };
        if text.contains("-- +goose") {
            found(survey, "goose", &file);
            propose(survey, Purpose::Migration, &["goose", "-dir", dir, "postgres", "up"], &file);
            survey.url_names.push("GOOSE_DBSTRING".to_owned());
        } else if text.contains("-- migrate:up") {
            found(survey, "dbmate", &file);
            propose(survey, Purpose::Migration, &["dbmate", "--migrations-dir", dir, "up"], &file);
        } else if survey.text(repo, "Cargo.toml").is_some_and(|cargo| cargo.contains("sqlx")) {
            found(survey, "sqlx", "Cargo.toml");
            propose(survey, Purpose::Migration, &["sqlx", "migrate", "run", "--source", dir], &file);
        }
    }
}

/// Variables that Prisma's schema reads its URLs from.
fn prisma_variables(repo: &Repo, survey: &mut Survey) {
    for file in ["prisma/schema.prisma", "schema.prisma"] {
        let Some(text) = survey.is_file(repo, file).then(|| survey.text(repo, file)).flatten() else { continue };
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with("//")).take(LINES_MAX) {
            let Some((key, value)) = line.split_once('=') else { continue };
            let named = value.trim().strip_prefix("env(").and_then(|rest| rest.trim_start().strip_prefix('"'));
            let Some((name, _)) = named.and_then(|rest| rest.split_once('"')) else { continue };
            // The shadow database is another than the one that is worked on.
            let url = matches!(key.trim(), "url" | "directUrl");
            if url && name != "DATABASE_URL" && crate::command::surroundings::check_url_name(name).is_ok() {
                survey.url_names.push(name.to_owned());
            }
        }
    }
}

/// Variables of an example file that hold a Postgres URL; only their names are taken.
fn example_variables(repo: &Repo, survey: &mut Survey) {
    for file in [".env.example", ".env.sample", ".env.template", "env.example"] {
        let Some(text) = survey.text(repo, file) else { continue };
        for line in text.lines().take(NAMES_MAX) {
            let Some((name, value)) = line.trim_start_matches("export ").split_once('=') else { continue };
            let value = value.trim_start_matches(['"', '\'', ' ']);
            let url = value.starts_with("postgres://") || value.starts_with("postgresql://");
            if url && name != "DATABASE_URL" && crate::command::surroundings::check_url_name(name).is_ok() {
                survey.url_names.push(name.to_owned());
            }
        }
    }
    survey.url_names.sort();
    survey.url_names.dedup();
    survey.url_names.truncate(crate::command::surroundings::URL_NAMES_MAX);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scripts_name_says_what_it_is_for() {
        for (name, expected) in [
            ("migrate", Some(Purpose::Migration)),
            ("db:migrate", Some(Purpose::Migration)),
            ("prisma-migrate-deploy", Some(Purpose::Migration)),
            ("db:seed", Some(Purpose::Seed)),
            ("migrate:down", None),
            ("migrate:create", None),
            ("migration:generate", None),
            ("immigrate", None),
            ("build", None),
        ] {
            assert_eq!(purpose(name), expected, "{name}");
        }
        assert!(is_word("db:migrate") && !is_word("-x") && !is_word("a b") && !is_word("$(id)"));
    }
}
