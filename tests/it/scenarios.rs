//! Plays the scenarios of `tests/scenarios` over every transport: the same calls must give the same replies.
//!
//! A scenario is a text file: `call OPERATION INPUT`, then `ok` or `fails CODE`, `expect POINTER JSON`, `absent POINTER`, and
//! `keep NAME POINTER`, whose value later stands for `$NAME`. Lines that begin with `#` are comments.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::program::{Cli, Home, Stdio, Transport};

#[test]
fn scenarios_play_over_stdio() {
    let home = Home::with_cluster();
    let mut stdio = Stdio::start(&home);
    play_all(&mut stdio);
}

#[test]
fn scenarios_play_on_the_command_line() {
    let home = Home::with_cluster();
    let mut cli = Cli::new(&home);
    play_all(&mut cli);
}

fn play_all(transport: &mut dyn Transport) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let mut files: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|e| e == "txt"));
    files.sort();
    assert!(files.len() >= 2, "the scenarios are not where they are looked for");
    for file in files {
        play(&file, transport);
    }
}

fn play(file: &Path, transport: &mut dyn Transport) {
    let text = fs::read_to_string(file).unwrap();
    let mut kept: BTreeMap<String, String> = BTreeMap::new();
    let mut reply = Value::Null;
    for (number, line) in text.lines().enumerate() {
        let line = kept.iter().fold(line.to_owned(), |line, (name, value)| line.replace(&format!("${name}"), value));
        let here = format!("{}:{}: `{line}`", file.display(), number + 1);
        let (word, rest) = line.split_once(' ').unwrap_or((line.as_str(), ""));
        match word {
            "" | "#" => {}
            "call" => {
                let (operation, input) = rest.split_once(' ').unwrap();
                let input = serde_json::from_str(input).unwrap_or_else(|e| panic!("{here}: {e}"));
                reply = transport.call(operation, &input);
            }
            "ok" => assert_eq!(reply["ok"], Value::Bool(true), "{here}: {reply:#}"),
            "fails" => {
                assert_eq!(reply["ok"], Value::Bool(false), "{here}: {reply:#}");
                assert_eq!(reply["errors"][0]["code"], Value::from(rest), "{here}: {reply:#}");
            }
            "expect" => {
                let (pointer, wanted) = rest.split_once(' ').unwrap();
                let wanted: Value = serde_json::from_str(wanted).unwrap_or_else(|e| panic!("{here}: {e}"));
                let seen = reply.pointer(pointer).unwrap_or_else(|| panic!("{here}: nothing there: {reply:#}"));
                assert_eq!(seen, &wanted, "{here}");
            }
            "absent" => assert!(reply.pointer(rest).is_none(), "{here}: {reply:#}"),
            "keep" => {
                let (name, pointer) = rest.split_once(' ').unwrap();
                let value =
                    reply.pointer(pointer).and_then(Value::as_str).unwrap_or_else(|| panic!("{here}: {reply:#}"));
                kept.insert(name.to_owned(), value.to_owned());
            }
            other => panic!("{here}: `{other}` is no word of scenarios"),
        }
    }
}
