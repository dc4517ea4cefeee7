//! Reads the attempts that are SQL: `tests/cases/escapes/*.sql`, a category each.
//!
//! An attempt begins with a line `--@ who[, who…] | [limits | …] title`; its text goes on to the next such line. *Who* is
//! `owner` or `reader` (a login of its own with the sandbox's credentials; `owner@home` into another database), `write`
//! or `read` (`run_sql`, without and with `readonly`), and each of them is an attempt of its own. A limit says what may
//! become true outside the sandbox's content all the same (`may password settings database comment prepared`), or where
//! the text has a meaning (`since 16`). `--@ setup` is run as the owner before the rest. In the texts `{me}`, `{owner}`,
//! `{reader}`, `{db}`, `{victim_…}`, `{admin}`, `{super}`, `{home}`, `{file}`, `{out}` and `{port}` are filled in.

use std::fs;
use std::path::Path;

/// How a text reaches the server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    /// As the owner role, logged in with its password; into another database than its own if one is named.
    Owner(Option<String>),
    /// The same as the read-only role.
    Reader(Option<String>),
    /// `run_sql`.
    Write,
    /// `run_sql` with `readonly`.
    Read,
}

/// What an attempt may change outside its sandbox's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// The password of its own role.
    Password,
    /// Settings of its own roles or database.
    Settings,
    /// Limits and rights of its own database.
    Database,
    /// The comment on its own database.
    Comment,
    /// A prepared transaction of its own.
    Prepared,
}

/// One text that is tried in some ways.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) title: String,
    pub(super) ways: Vec<Way>,
    pub(super) effects: Vec<Effect>,
    /// The first major on which it has a meaning.
    pub(super) since: u16,
    pub(super) sql: String,
}

/// A file of them.
#[derive(Clone, Debug)]
pub(super) struct Category {
    pub(super) name: String,
    /// What the owner makes before.
    pub(super) setup: String,
    pub(super) attempts: Vec<Attempt>,
}

/// Returns every category.
pub(super) fn categories() -> Vec<Category> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/escapes");
    let mut files: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().filter(|path| path.extension().is_some_and(|e| e == "sql")).map(|path| category(path)).collect()
}

fn category(path: &Path) -> Category {
    let text = fs::read_to_string(path).unwrap();
    let name = path.file_stem().unwrap().to_str().unwrap().replace('_', " ");
    let mut found = Category { name, setup: String::new(), attempts: Vec::new() };
    for part in text.split("\n--@ ").skip(1) {
        let (head, sql) = part.split_once('\n').unwrap();
        if head == "setup" {
            found.setup = sql.to_owned();
        } else {
            found.attempts.push(attempt(head, sql.trim_end()));
        }
    }
    found
}

fn attempt(head: &str, sql: &str) -> Attempt {
    let fields: Vec<&str> = head.split(" | ").collect();
    let [ways, limits @ .., title] = fields.as_slice() else { panic!("no title: {head}") };
    let mut attempt = Attempt {
        title: (*title).to_owned(),
        ways: ways.split(',').map(|way| self::way(way.trim())).collect(),
        effects: Vec::new(),
        since: 0,
        sql: sql.to_owned(),
    };
    for limit in limits {
        match limit.split_once(' ') {
            Some(("since", major)) => attempt.since = major.parse().unwrap(),
            Some(("may", effects)) => attempt.effects = effects.split(' ').map(effect).collect(),
            _ => panic!("no such limit: {limit}"),
        }
    }
    attempt
}

fn way(text: &str) -> Way {
    let (who, place) = text.split_once('@').map_or((text, None), |(who, place)| (who, Some(place.to_owned())));
    match who {
        "owner" => Way::Owner(place),
        "reader" => Way::Reader(place),
        "write" => Way::Write,
        "read" => Way::Read,
        _ => panic!("nobody is called {text}"),
    }
}

fn effect(word: &str) -> Effect {
    match word {
        "password" => Effect::Password,
        "settings" => Effect::Settings,
        "database" => Effect::Database,
        "comment" => Effect::Comment,
        "prepared" => Effect::Prepared,
        _ => panic!("no such effect: {word}"),
    }
}
