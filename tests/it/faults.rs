//! The places where a build for tests can be made to fail: every one has a name of its own, and nobody keeps the list.
//!
//! Names are read out of the source: what is said to `model::fault`, and what is said to the few functions that every
//! statement, program and step goes through. `UPDATE_SNAPSHOTS=1 cargo test --test it faults` writes the list anew;
//! `tests/proofs/faults` fires every name in it, and fails if one was never fired.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use pgsandbox::engine::Engine;
use pgsandbox::engine::postgres::{
    PostgresEngine, PostgresServer, PostgresSettings, PostgresUrl, ServerSource, UrlOrigin,
};

/// Which scene of the proof each name is played in, one per line.
const PLAYED: &str = "tests/proofs/lib/faults-recorded.txt";
/// The list, one name per line.
const LIST: &str = "src/model/fault/points.txt";

/// What stands before and after what was said, in each name that is made of it.
type Around = &'static [(&'static str, &'static str)];

/// What is said to these, in files whose path begins so, are names: as they are, or with something around them.
const SAYERS: [(&str, &str, Around); 9] = [
    ("src/", "fault::reach(", &[("", "")]),
    ("src/", "fault::pass(", &[("", "")]),
    ("src/", "fault::poll(", &[("", "")]),
    ("src/store/", ".session(", &[("store.", "")]),
    ("src/store/", "self.pass(", &[("store.", "")]),
    ("src/store/", "self.written(", &[("store.", ".written")]),
    ("src/store/plans.rs", "self.end(held, ", &[("store.", ""), ("store.", ".written")]),
    ("src/store/plans.rs", "=> \"note-", &[("store.note-", ""), ("store.note-", ".written")]),
    ("src/engine/postgres/managed/process.rs", "run(\"", &[("spawn.", ""), ("spawn.", ".ended")]),
];

/// Where a name is handed on and not said.
const HANDED_ON: [(&str, &str); 5] = [
    ("src/store/mod.rs", "fault::pass_of(&[\"store.\", statement])"),
    ("src/store/mod.rs", "fault::pass_of(&[\"store.\", statement, \".written\"])"),
    ("src/engine/postgres/managed/process.rs", "fault::pass_of(&[\"spawn.\", point])"),
    ("src/engine/postgres/managed/process.rs", "fault::pass_of(&[\"spawn.\", point, \".ended\"])"),
    ("src/sandbox/work.rs", "fault::pass_of(&[\"plan."),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn sources() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().join("src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
                found.push((name, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

/// Returns the literal that `text` begins with, if it does.
fn literal(text: &str) -> Option<&str> {
    text.trim_start().strip_prefix('"')?.split('"').next()
}

/// Returns every name in the source with the places that say it.
fn said() -> BTreeMap<String, Vec<String>> {
    let mut names: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (file, text) in sources() {
        if file == "src/model/fault.rs" || file == "src/model/fault/armed.rs" {
            continue;
        }
        for (below, sayer, around) in SAYERS {
            if !file.starts_with(below) {
                continue;
            }
            // What a sayer has of the literal belongs to the literal.
            let quoted = sayer.split_once('"').map_or("", |_| "\"");
            for (at, _) in text.match_indices(sayer) {
                let rest = format!("{quoted}{}", &text[at + sayer.len()..]);
                let Some(word) = literal(&rest) else { continue };
                let line = text[..at].matches('\n').count() + 1;
                for (before, after) in around {
                    names.entry(format!("{before}{word}{after}")).or_default().push(format!("{file}:{line}"));
                }
            }
        }
    }
    for name in of_steps() {
        names.entry(name).or_default().push("the steps of the Postgres engine".to_owned());
    }
    names
}

/// Returns the names before and after each step of each plan, and before and after each is taken back.
fn of_steps() -> Vec<String> {
    let url = PostgresUrl::parse("postgres://admin@127.0.0.1:1/postgres", UrlOrigin::Operator).unwrap();
    let settings = PostgresSettings::new("local", "pgsandbox", ServerSource::External(url));
    let engine = PostgresEngine::new(PostgresServer::new(settings));
    let delete = engine.delete_steps();
    let create = engine.known_steps();
    let plans = [
        ("create", create.clone()),
        ("undo", create),
        ("delete", delete.foreground.into_iter().chain(delete.background).collect()),
    ];
    let named = plans.into_iter().flat_map(|(plan, steps)| {
        steps
            .into_iter()
            .flat_map(move |step| ["before", "after"].map(|when| format!("plan.{plan}.{}.{when}", step.name)))
    });
    named.collect()
}

#[test]
fn the_list_holds_every_name_that_the_source_says() {
    let names: Vec<String> = said().into_keys().collect();
    let text = names.join("\n") + "\n";
    let file = root().join(LIST);
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        fs::write(&file, &text).unwrap();
        return;
    }
    let kept = fs::read_to_string(&file).unwrap();
    let missing: Vec<&String> = names.iter().filter(|name| !kept.lines().any(|line| line == *name)).collect();
    let stale: Vec<&str> = kept.lines().filter(|line| !names.iter().any(|name| name == line)).collect();
    assert!(
        missing.is_empty() && stale.is_empty(),
        "{LIST} lacks {missing:?} and has {stale:?} too many; UPDATE_SNAPSHOTS=1 writes it anew"
    );
    assert!(names.len() > 100, "only {} names were found", names.len());
}

#[test]
fn every_name_is_played_in_a_scene_of_the_proof() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let (played, scenes) = (read(PLAYED), read("tests/proofs/lib/scenes.py"));
    let played: BTreeMap<&str, &str> = played.lines().filter_map(|line| line.split_once(' ')).collect();
    let never: Vec<String> = said().into_keys().filter(|name| !played.contains_key(name.as_str())).collect();
    assert!(
        never.is_empty(),
        "no scene reaches {never:?}: write one in tests/proofs/lib/scenes.py, then \
         UPDATE_SNAPSHOTS=1 tests/proofs/faults --record"
    );
    let gone: Vec<_> = played.iter().filter(|(_, scene)| !scenes.contains(&format!("    \"{scene}\": ("))).collect();
    assert!(gone.is_empty(), "there are no such scenes: {gone:?}");
}

#[test]
fn no_two_places_share_a_name() {
    let shared: Vec<_> = said().into_iter().filter(|(_, places)| places.len() > 1).collect();
    assert!(shared.is_empty(), "give each place a name of its own: {shared:#?}");
}

#[test]
fn no_name_is_said_in_a_way_that_the_list_does_not_see() {
    for (file, text) in sources() {
        if file.starts_with("src/model/fault") {
            continue;
        }
        for sayer in ["fault::reach(", "fault::pass(", "fault::poll("] {
            for (at, _) in text.match_indices(sayer) {
                let rest = &text[at + sayer.len()..];
                assert!(literal(rest).is_some(), "{file}: say the name itself to `{sayer}…)`");
            }
        }
        for (at, _) in text.match_indices("fault::pass_of(") {
            let known = HANDED_ON.iter().any(|(of, call)| *of == file && text[at..].starts_with(call));
            assert!(known, "{file}: a name is put together where the list does not know its parts");
        }
        if file.starts_with("src/store/") {
            for sayer in [".session(", "self.pass(", "self.written("] {
                for (at, _) in text.match_indices(sayer) {
                    let rest = text[at + sayer.len()..].trim_start();
                    // `note` and `end` hand on what their callers say; a pool's own session has no name.
                    let fine = literal(rest).is_some()
                        || ["point", "statement", ")", "&session"].iter().any(|w| rest.starts_with(w));
                    assert!(fine, "{file}: say the statement's name itself to `{sayer}…)`");
                }
            }
        }
    }
}
