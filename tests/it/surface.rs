//! What is public has a snapshot, so that a change of contract is seen in review.
//!
//! `UPDATE_SNAPSHOTS=1 cargo test --test it surface` writes the pages and snapshots anew.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use pgsandbox::cli::reference;
use pgsandbox::mcp::tool_list_json;
use pgsandbox::operation::OPERATIONS;
use serde_json::Value;

/// The default list's budget in tokens, at four characters a token.
const TOOL_LIST_CHARS_MAX: usize = 4 * 4000;

fn check(path: &str, seen: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, seen).unwrap();
        return;
    }
    let kept = fs::read_to_string(&file).unwrap_or_default();
    if kept != seen {
        let line = kept.lines().zip(seen.lines()).position(|(a, b)| a != b).unwrap_or(0);
        panic!(
            "{path} is not what the program says, from line {}:\n- {}\n+ {}\nUPDATE_SNAPSHOTS=1 writes it anew",
            line + 1,
            kept.lines().nth(line).unwrap_or_default(),
            seen.lines().nth(line).unwrap_or_default()
        );
    }
}

/// Returns the names of all tests, of the program's own and of these.
fn tests() -> BTreeSet<String> {
    fn look(dir: &Path, names: &mut BTreeSet<String>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                look(&path, names);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let mut is_test = false;
                for line in fs::read_to_string(&path).unwrap().lines().map(str::trim_start) {
                    let item = line.strip_prefix("async ").unwrap_or(line);
                    match item.strip_prefix("fn ").and_then(|rest| rest.split_once('(')) {
                        Some((name, _)) if std::mem::take(&mut is_test) => drop(names.insert(name.to_owned())),
                        Some(_) => {}
                        None => is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test"),
                    }
                }
            }
        }
    }
    let mut names = BTreeSet::new();
    for dir in ["src", "tests/it"] {
        look(&Path::new(env!("CARGO_MANIFEST_DIR")).join(dir), &mut names);
    }
    names
}

#[test]
fn every_finding_names_tests_that_exist() {
    let tests = tests();
    assert!(tests.len() > 700, "{} tests are found", tests.len());
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/findings.md")).unwrap();
    let mut rows = 0;
    for line in page.lines().filter(|line| line.starts_with("| ") && !line.ends_with("| held by |")) {
        rows += 1;
        let cells: Vec<_> = line.trim_matches(['|', ' ']).split(" | ").collect();
        assert_eq!(cells.len(), 3, "a row has what was found, what is now, and what holds it: {line}");
        let named: Vec<_> = cells[2].split(", ").map(|name| name.trim_matches('`')).collect();
        let strange: Vec<_> = named.iter().filter(|name| !tests.contains(**name)).collect();
        assert!(strange.is_empty(), "docs/findings.md names {strange:?}, which are no tests");
    }
    assert!(rows > 40, "{rows} findings are found");
}

#[test]
fn the_reference_pages_say_what_the_program_does() {
    for (name, text) in reference::pages() {
        check(&format!("docs/reference/{name}"), &text);
    }
}

#[test]
fn the_page_of_settings_has_every_bundled_policy_and_what_each_key_means() {
    let pages = reference::pages();
    let (_, page) = pages.iter().find(|(name, _)| *name == "bundled-policy-settings.md").unwrap();
    let policies = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("policies")).unwrap();
    for folder in policies.map(|entry| entry.unwrap().path()).filter(|path| path.join("settings.schema.json").exists())
    {
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        let section = page.split("\n## ").find(|section| section.starts_with(&format!("{name}\n")));
        let section =
            section.unwrap_or_else(|| panic!("`{name}` is not there: src/cli/policy_settings.rs names the policies"));
        let schema: Value = serde_json::from_slice(&fs::read(folder.join("settings.schema.json")).unwrap()).unwrap();
        for key in schema["properties"].as_object().unwrap().keys() {
            assert!(section.contains(&format!("| `{key}` |")), "{name}: {key}");
        }
        for row in section.lines().filter(|line| line.starts_with("| `")) {
            let cells: Vec<&str> = row.split(" | ").collect();
            assert!(cells.len() == 4 && !cells[1].trim().is_empty() && cells[3] != " |", "{name}: {row}");
        }
    }
}

#[test]
fn the_tools_are_those_of_the_contract() {
    let tools = serde_json::to_string_pretty(&tool_list_json()).unwrap();
    check("tests/it/snapshots/tools.json", &(tools + "\n"));
}

#[test]
fn the_default_tool_list_is_short_enough_for_an_agent() {
    let mut tools = tool_list_json();
    // What an agent is shown of a tool is its input; output schemas are for programs.
    for tool in tools.as_array_mut().unwrap() {
        tool.as_object_mut().unwrap().remove("outputSchema");
    }
    let chars = tools.to_string().len();
    assert!(chars <= TOOL_LIST_CHARS_MAX, "{chars} characters are over {TOOL_LIST_CHARS_MAX}");
}

#[test]
fn every_schema_is_a_plain_object_that_all_clients_read() {
    for entry in &OPERATIONS {
        for (kind, schema) in [("input", entry.input_schema()), ("output", entry.output_schema())] {
            let name = format!("{} {kind}", entry.spec.name);
            assert_eq!(schema.get("type").and_then(Value::as_str), Some("object"), "{name}");
            plain(&name, &Value::Object(schema.clone()));
        }
    }
}

fn plain(name: &str, schema: &Value) {
    match schema {
        Value::Object(object) => {
            for key in ["$ref", "$defs", "anyOf", "oneOf", "allOf", "not"] {
                assert!(!object.contains_key(key), "{name} has `{key}`");
            }
            if let Some(kind) = object.get("type") {
                assert!(kind.is_string() || kind.is_object(), "{name} has a type of {kind}");
            }
            object.values().for_each(|inner| plain(name, inner));
        }
        Value::Array(items) => items.iter().for_each(|inner| plain(name, inner)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn every_argument_is_described() {
    for entry in &OPERATIONS {
        let properties = entry.input_schema().get("properties").and_then(Value::as_object).cloned().unwrap_or_default();
        for (name, property) in properties {
            assert!(property.get("description").is_some(), "`{}` of {} is not described", name, entry.spec.name);
        }
    }
}
