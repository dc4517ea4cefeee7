//! Which variables a configuration file names, for those who start the program in other surroundings.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

/// What keys end with that name a variable, or name one for each of their members.
const NAMING: &str = "FromEnv";

/// Returns the variables that a configuration file names, each once; none of one that cannot be read.
pub fn variables_named(file: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let mut names = BTreeSet::new();
    gather(&serde_json::from_str(&text).unwrap_or_default(), false, &mut names);
    names
}

fn gather(value: &Value, named: bool, into: &mut BTreeSet<String>) {
    match value {
        Value::String(name) if named => drop(into.insert(name.clone())),
        Value::Array(items) => items.iter().for_each(|item| gather(item, named, into)),
        Value::Object(members) => {
            members.iter().for_each(|(key, value)| gather(value, named || key.ends_with(NAMING), into));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_named_variable_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.json");
        let text = r#"{"telemetry": {"headersFromEnv": {"Authorization": "TOKEN"}},
            "sources": [{"name": "PLAIN", "urlFromEnv": "SHOP_URL"}, {"passwordFromEnv": "SHOP_PW"}]}"#;
        fs::write(&file, text).unwrap();
        assert_eq!(variables_named(&file).into_iter().collect::<Vec<_>>(), ["SHOP_PW", "SHOP_URL", "TOKEN"]);
        assert!(variables_named(&dir.path().join("none")).is_empty());
    }
}
