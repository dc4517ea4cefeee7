//! Every limit that the program declares, with the test that breaks it.
//!
//! `limits/table.tsv` has a row for each number and each time that a constant of `src` holds: a limit's row says what
//! becomes of whatever is over it, and which tests go there; what is no limit says so. A constant without a row fails
//! here, as does a limit without a test, and a row for a constant or a test that does not exist. `tests/proofs/limits`
//! runs the tests of the table. The modules below are the breakers that belong to no one part.

mod arguments;
mod configured;
pub(crate) mod deadlines;
mod loading;
mod rows;
mod servers;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The rows: file below `src`, constant, kind, tests, what happens.
const TABLE: &str = include_str!("limits/table.tsv");
/// What a row can be, with whether it needs a breaker.
const KINDS: [(&str, bool); 5] = [
    // whatever is over it is refused, with this code or these words
    ("refuses", true),
    // whatever is over it is left out, and said to be
    ("cuts", true),
    // it ends, or is given up, after this time or so many attempts
    ("ends", true),
    // so much is kept; the rest is given back, and nothing is lost
    ("keeps", true),
    // nothing can be over it: a format, a rhythm, a part of another
    ("is", false),
];

struct Row<'a> {
    file: &'a str,
    name: &'a str,
    kind: &'a str,
    tests: Vec<&'a str>,
    what: &'a str,
}

fn rows() -> Vec<Row<'static>> {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
    let rows = lines.map(|line| {
        let fields: Vec<_> = line.split('\t').collect();
        let [file, name, kind, tests, what] = fields[..] else { panic!("not five fields: {line}") };
        let tests = if tests == "-" { Vec::new() } else { tests.split(' ').collect() };
        Row { file, name, kind, tests, what }
    });
    rows.collect()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the lines of each file of `src`, those of tests left out.
fn source() -> Vec<(String, Vec<String>)> {
    fn files(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                files(&path, found);
            } else if path.extension().is_some_and(|end| end == "rs")
                && !path.file_stem().unwrap().to_str().unwrap().ends_with("tests")
            {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    files(&root().join("src"), &mut found);
    let lines = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        let file = path.strip_prefix(root().join("src")).unwrap().to_str().unwrap().to_owned();
        // A module's own tests are its last item.
        (file, text.lines().take_while(|line| !line.starts_with("mod tests {")).map(str::to_owned).collect())
    };
    found.into_iter().map(lines).collect()
}

/// Returns the name, the type and the value of a constant, if the line declares one.
fn constant(line: &str) -> Option<(&str, &str, &str)> {
    let item = line.trim_start().trim_start_matches("pub").trim_start_matches("(super)").trim_start_matches("(crate)");
    let (name, rest) = item.trim_start().strip_prefix("const ")?.split_once(": ")?;
    let (kind, value) = rest.split_once(" =").unwrap_or((rest, ""));
    Some((name, kind.rsplit("::").next().unwrap_or(kind), value.trim().trim_end_matches(';')))
}

/// Finds the constants of `src` that hold a number or a time, as a text too.
fn constants() -> BTreeSet<(String, String)> {
    let mut constants = BTreeSet::new();
    for (file, lines) in source() {
        for (name, kind, value) in lines.iter().filter_map(|line| constant(line)) {
            let number = ["u8", "u16", "u32", "u64", "u128", "usize", "i32", "i64", "i128", "f64"].contains(&kind);
            let worded = value.strip_prefix('"').is_some_and(|text| {
                let unit = text.trim_end_matches('"').trim_start_matches(|c: char| c.is_ascii_digit());
                text.starts_with(|c: char| c.is_ascii_digit())
                    && ["", "ms", "s", "min", "h", "kB", "MB"].contains(&unit)
            });
            let bound = number || kind == "Duration" || kind.starts_with("RangeInclusive<") || worded;
            if bound && name != "_" && name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_') {
                constants.insert((file.clone(), name.to_owned()));
            }
        }
    }
    constants
}

#[test]
fn no_time_is_written_where_it_is_used() {
    let mut hidden = Vec::new();
    for (file, lines) in source() {
        for (at, line) in lines.iter().enumerate() {
            let mut times = line.split("Duration::from_").skip(1).filter_map(|rest| rest.split_once('('));
            if constant(line).is_none() && times.any(|(_, value)| value.starts_with(|c: char| c.is_ascii_digit())) {
                hidden.push(format!("src/{file}:{}: {}", at + 1, line.trim()));
            }
        }
    }
    assert!(hidden.is_empty(), "declare these as constants, with rows in tests/it/limits/table.tsv: {hidden:#?}");
}

#[test]
fn every_number_that_src_declares_has_a_row_and_every_row_a_number() {
    let constants = constants();
    assert!(constants.len() > 200, "the scan finds {} constants", constants.len());
    let mut listed = BTreeSet::new();
    for row in rows() {
        let twice = !listed.insert((row.file.to_owned(), row.name.to_owned()));
        assert!(!twice, "`{}` of `{}` has two rows", row.name, row.file);
    }
    let missing: Vec<_> = constants.difference(&listed).collect();
    assert!(missing.is_empty(), "add rows to tests/it/limits/table.tsv for {missing:#?}");
    let gone: Vec<_> = listed.difference(&constants).collect();
    assert!(gone.is_empty(), "these rows of tests/it/limits/table.tsv have no constant: {gone:#?}");
}

#[test]
fn every_limit_names_tests_that_exist() {
    for Row { file, name, kind, tests, what } in rows() {
        let Some((_, needs)) = KINDS.iter().find(|(known, _)| *known == kind) else {
            panic!("`{kind}` of `{name}` in `{file}` is none of {KINDS:?}");
        };
        assert!(!what.is_empty(), "`{name}` of `{file}` does not say what happens");
        assert!(*needs || tests.is_empty(), "`{name}` of `{file}` is no limit, and has a breaker");
        assert!(!*needs || !tests.is_empty(), "`{name}` of `{file}` {kind}, and no test goes there");
        for test in tests {
            let (file, function) = test.split_once("::").unwrap_or_else(|| panic!("`{test}` is no FILE::TEST"));
            let text = fs::read_to_string(root().join(file)).unwrap_or_else(|e| panic!("{test}: {e}"));
            let at = text.find(&format!("fn {function}(")).unwrap_or_else(|| panic!("there is no `{test}`"));
            let head = text[..at].lines().rev().take(4).collect::<String>();
            assert!(head.contains("test]") || head.contains("test("), "`{test}` is no test");
        }
    }
}
