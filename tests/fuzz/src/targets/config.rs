//! Configuration files, environment variables and policy files.
//!
//! What holds: nothing panics; every fault names its place; an unknown key is refused; and no error, and nothing shown of
//! what was read, holds a secret.

use std::path::{Path, PathBuf};

use pgsandbox::config::{Environment, load, policies};
use tempfile::TempDir;

use crate::driver::{Checked, Target};
use crate::mutate;
use crate::rng::Rng;

const SECRET: &str = "hunter2hunter2";
/// A key that no file may have.
const UNKNOWN: &str = "noSuchKeyAtAll";
const WORDS: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\"",
    "null",
    "true",
    "false",
    "0",
    "-1",
    "1e400",
    "18446744073709551616",
    "1.5",
    "\\u0000",
    "\\ud800",
    "\"profiles\"",
    "\"name\"",
    "\"adminUrl\"",
    "\"managedLocal\"",
    "\"policies\"",
    "\"audit\"",
    "\"telemetry\"",
    "\"headers\"",
    "\"noSuchKeyAtAll\": 1,",
    "\"defaultProfile\"",
    "\"postgresql://u:hunter2hunter2@localhost/db\"",
    "\"hunter2hunter2\"",
    "[[policy]]",
    "source = \"quota\"",
    "mode = \"shadow\"",
    "noSuchKeyAtAll = 1\n",
    "settings = { max_live = 3 }",
    "owners.\"team-*\" = { max_live = 1 }",
    "limits = { fuel = 1 }",
    "digest = \"sha256:00\"",
    "=",
    "'''",
    "\"\"\"",
    "\n",
    "#",
    ".",
    "1979-05-27T07:32:00Z",
    "inf",
    "nan",
    "0x_1",
    "é",
    "[policy]",
    "name = \"a\"",
    "sees_text = true",
];

pub struct Config {
    _dir: TempDir,
    json: PathBuf,
}

impl Config {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory can be made");
        let json = dir.path().join("pgsandbox.json");
        std::fs::write(dir.path().join("policies.toml"), "").expect("a file can be written");
        Self { _dir: dir, json }
    }

    fn json(&self, text: &str) -> Checked {
        std::fs::write(&self.json, text).map_err(|error| format!("setting up: {error}"))?;
        let variables = [
            ("PGSANDBOX_CONFIG".to_owned(), self.json.display().to_string()),
            ("PGSANDBOX_HOME".to_owned(), "/srv/state".to_owned()),
            ("COLLECTOR_AUTHORIZATION".to_owned(), format!("Bearer {SECRET}")),
        ];
        judged(text, load(&Environment::of(variables, false)), has_unknown_json(text))
    }

    fn variables(text: &str) -> Checked {
        let pairs = text.lines().filter_map(|line| line.split_once('='));
        let pairs: Vec<_> = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let unknown = pairs.iter().any(|(name, _)| name.starts_with("PGSANDBOX_NO_SUCH"));
        judged(text, load(&Environment::of(pairs, false)), unknown)
    }

    fn toml(text: &str) -> Checked {
        let read = policies::parse(text, Path::new("policies.toml"), &[]);
        let unknown = text.parse::<toml::Table>().is_ok_and(|table| {
            let listed = table.get("policy").and_then(|p| p.as_array()).into_iter().flatten();
            table.contains_key(UNKNOWN) || listed.filter_map(|p| p.as_table()).any(|p| p.contains_key(UNKNOWN))
        });
        match read {
            Ok(specs) if unknown => Err(format!("unknown key: {} policies are read beside it", specs.len())),
            Ok(specs) => {
                let shown = format!("{:?}", specs.iter().map(|s| (&s.name, &s.mode, &s.limits)).collect::<Vec<_>>());
                Ok(format!("policies {} {}", specs.len(), shown.len()))
            }
            Err(error) => {
                if error.faults.is_empty() {
                    return Err("no faults: a file is refused without a reason".to_owned());
                }
                // A policy file holds no secrets by design; only that whole lines are not quoted is looked at.
                let kinds: Vec<_> = error
                    .faults
                    .iter()
                    .map(|fault| fault.message.split_whitespace().take(2).collect::<Vec<_>>().join(" "))
                    .take(3)
                    .collect();
                Ok(format!("policies {kinds:?}"))
            }
        }
    }
}

fn judged(
    text: &str,
    loaded: Result<pgsandbox::config::Config, pgsandbox::config::ConfigError>,
    unknown: bool,
) -> Checked {
    match loaded {
        Ok(_) if unknown => Err("unknown key: the configuration loads".to_owned()),
        Ok(config) => {
            let shown = format!("{config:?}");
            if shown.contains(SECRET) && secret_is_secret(text) {
                return Err(format!("leak: a configuration is shown as {shown}"));
            }
            Ok(format!("loads {} {}", config.profiles.len(), config.telemetry.export.is_some()))
        }
        Err(error) => {
            if error.faults.is_empty() {
                return Err("no faults: a configuration is refused without a reason".to_owned());
            }
            for fault in &error.faults {
                if fault.place.is_empty() || fault.what.is_empty() {
                    return Err(format!("no place: a fault says `{fault}`"));
                }
            }
            let shown = format!("{error} {error:?}");
            if shown.contains(SECRET) && secret_is_secret(text) {
                return Err(format!("leak: an error says {error}"));
            }
            let kinds: Vec<_> = error
                .faults
                .iter()
                .map(|fault| fault.what.split_whitespace().take(3).collect::<Vec<_>>().join(" "))
                .take(3)
                .collect();
            Ok(format!("{kinds:?}"))
        }
    }
}

/// Returns whether the mark stands only where a secret may: in a URL's password or a header's value.
fn secret_is_secret(text: &str) -> bool {
    let places = [
        "\"adminUrl\":\"postgresql://u:hunter2hunter2@",
        "\nPGSANDBOX_ADMIN_DATABASE_URL=postgresql://u:hunter2hunter2@",
        "\"authorization\":\"Bearer hunter2hunter2\"",
    ];
    text.matches(SECRET).count() == places.iter().map(|place| text.matches(place).count()).sum::<usize>()
}

fn has_unknown_json(text: &str) -> bool {
    match serde_json::from_str::<serde_json::Value>(text) {
        Ok(serde_json::Value::Object(root)) => {
            let profiles = root.get("profiles").and_then(|p| p.as_array()).into_iter().flatten();
            root.contains_key(UNKNOWN) || profiles.filter_map(|p| p.as_object()).any(|p| p.contains_key(UNKNOWN))
        }
        _ => false,
    }
}

impl Target for Config {
    fn make(&mut self, rng: &mut Rng, kept: &[Vec<u8>]) -> Vec<u8> {
        let pick = |rng: &mut Rng| kept[rng.below(kept.len())].clone();
        let mut input = pick(rng);
        let other = pick(rng);
        if rng.once_in(4) {
            mutate::bytes(rng, &mut input, &other);
            return input;
        }
        mutate::text(rng, &mutate::as_text(&input), &mutate::as_text(&other), WORDS).into_bytes()
    }

    /// The first byte says what the rest is: `{` a configuration file, `P` variables, anything else a policy file.
    fn check(&mut self, input: &[u8]) -> Checked {
        let text = mutate::as_text(input);
        match input.first() {
            Some(b'{') => self.json(&text),
            Some(b'P') => Self::variables(&text),
            _ => Self::toml(&text),
        }
    }
}
