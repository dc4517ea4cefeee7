//! Finds the commands that a mistyped word may mean.
//!
//! `_` and `-` are alike, and so are capitals. What the word begins or shortens comes before what it merely resembles, and
//! where nothing is near nothing is found: a wrong suggestion is followed as readily as a right one.

/// Whether the parts of a word fit those of a name.
type Fits = fn(&[String], &[String]) -> bool;

/// Returns the names among `known` that `word` may mean, the nearest ones alone.
pub(super) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let known: Vec<&str> = known.into_iter().collect();
    let parts = parts(word);
    let plain = parts.concat();
    if plain.is_empty() {
        return Vec::new();
    }
    let named = |fits: Fits| {
        let fitting = known.iter().copied().filter(|name| fits(&parts, &self::parts(name)));
        fitting.collect::<Vec<&str>>()
    };
    let found = [is_alike as Fits, begins, is_shortened].into_iter().map(named).find(|found| !found.is_empty());
    if let Some(found) = found {
        return found;
    }
    let distances = known.iter().map(|&name| (strsim::damerau_levenshtein(&plain, &self::parts(name).concat()), name));
    // A third of the letters may be wrong at most.
    let near: Vec<(usize, &str)> = distances.filter(|(distance, _)| *distance <= plain.len() / "abc".len()).collect();
    let least = near.iter().map(|(distance, _)| *distance).min();
    near.into_iter().filter(|(distance, _)| Some(*distance) == least).map(|(_, name)| name).collect()
}

fn is_alike(word: &[String], name: &[String]) -> bool {
    word.concat() == name.concat()
}

/// A part that is written out whole is the beginning of a name, and one of two letters is the beginning of nothing.
fn begins(word: &[String], name: &[String]) -> bool {
    let enough = word.first() == name.first() || word.len() > 1 || word.concat().len() > "ab".len();
    enough && name.concat().starts_with(&word.concat())
}

fn is_shortened(word: &[String], name: &[String]) -> bool {
    word.len() > 1 && word.len() == name.len() && word.iter().zip(name).all(|(short, whole)| shortens(short, whole))
}

fn parts(name: &str) -> Vec<String> {
    let parts = name.split(['-', '_']).filter(|part| !part.is_empty());
    parts.map(str::to_ascii_lowercase).collect()
}

/// Returns whether `short` is `whole` with letters left out, but for the first: `db` is `database`.
fn shortens(short: &str, whole: &str) -> bool {
    let mut rest = whole.chars();
    short.chars().next() == whole.chars().next() && short.chars().all(|c| rest.any(|of| of == c))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::arguments;

    fn check(word: &str, expected: &[&str]) {
        let grammar = arguments::command();
        let known = grammar.get_subcommands().map(clap::Command::get_name);
        let mut found = nearest(word, known);
        found.sort_unstable();
        assert_eq!(found, expected, "{word}");
    }

    #[test]
    fn a_mistyped_command_finds_the_one_that_is_meant() {
        for word in ["creat-database", "create-databse", "create_database", "CreateDatabase", "create-db", "crete_db"] {
            check(word, &["create-database"]);
        }
        check("lst-databases", &["list-databases"]);
        check("list-database", &["list-databases"]);
        check("list-template", &["list-templates"]);
        check("delete-db", &["delete-database"]);
        check("runsql", &["run-sql"]);
        check("run-sgl", &["run-sql"]);
        check("reset", &["reset-database"]);
        check("clone", &["clone-database"]);
        check("docter", &["doctor"]);
        check("clean", &["cleanup", "cleanup-expired"]);
        check(
            "create-",
            &[
                "create-database",
                "create-sandbox-from-template",
                "create-schema-snapshot",
                "create-template-from-sandbox",
            ],
        );
    }

    #[test]
    fn where_nothing_is_near_nothing_is_suggested() {
        for word in ["", "-", "x", "do", "database", "psql", "shell", "destroy", "hunter2", "é", "postgresql"] {
            check(word, &[]);
        }
    }
}
