//! The reference page of the bundled policies' settings, made from the schema that each policy carries and from its defaults.

#![expect(clippy::let_underscore_must_use, reason = "writing to a string cannot fail")]

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Map, Value};

/// The most references followed for one value: a schema may name itself.
const REFERENCES_MAX: usize = 16;

macro_rules! policies {
    ($($name:literal),+ $(,)?) => {
        [$((
            $name,
            include_str!(concat!("../../policies/", $name, "/settings.schema.json")),
            include_str!(concat!("../../policies/", $name, "/default.json")),
        )),+]
    };
}

/// Each bundled policy: its name, the schema of its settings, and its default settings.
const POLICIES: [(&str, &str, &str); 13] = policies![
    "clone-source",
    "destructive-guard",
    "extensions",
    "host-command",
    "maintenance-window",
    "ownership",
    "quota",
    "rate-limit",
    "readonly",
    "required-labels",
    "row-limit",
    "rules",
    "statement-guard",
];

/// Writes the page, below its first line.
pub(super) fn write(page: &mut String) {
    page.push_str(
        "# Settings of the bundled policies\n\n\
         What each policy is for, and examples that go together, is in the [guide](../guides/bundled-policies.md); how a policy is named, \
         pinned and given settings by owner, in the [policy file's reference](policy-file.md). A key of `settings` replaces the default of that key as a whole. \
         `a[].b` is key `b` of each table in list `a`; a pattern is a text in which `*` stands for any text. `pgsandbox doctor` tells every key that is not known or of another type.\n",
    );
    for (name, schema, defaults) in POLICIES {
        let parsed = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
        let (schema, defaults) = (parsed(schema), parsed(defaults));
        let _ = write!(page, "\n## {name}\n\n| key | type | default | |\n|---|---|---|---|\n");
        Rows { root: &schema, told: BTreeMap::new(), page }.properties("", &schema, Some(&defaults));
    }
}

/// Writes rows of one policy.
struct Rows<'a> {
    root: &'a Value,
    /// The tables that were told, by the name of their definition: where they stand.
    told: BTreeMap<String, String>,
    page: &'a mut String,
}

impl<'a> Rows<'a> {
    /// Writes a row for each key, and rows for what is in it. `defaults` is what stands there by default, where that can be said.
    fn properties(&mut self, prefix: &str, schema: &'a Value, defaults: Option<&Value>) {
        for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
            let path = format!("{prefix}{name}");
            let (shape, meaning) = self.resolved(property);
            let default = defaults.and_then(|beneath| beneath.get(name));
            let (inner, step) = match shape.get("items") {
                Some(items) => (self.resolved(items).0, "[]."),
                None => (shape, "."),
            };
            let has_keys = inner.get("properties").is_some();
            let shown = match (default, has_keys && step == ".") {
                // Its own keys say it.
                (_, true) => String::new(),
                (Some(value), false) => format!("`{}`", toml(value)),
                (None, false) if defaults.is_some() => "absent".to_owned(),
                (None, false) => String::new(),
            };
            let definition = property.get("$ref").or_else(|| property.pointer("/items/$ref"));
            let definition = definition.and_then(Value::as_str).unwrap_or_default().to_owned();
            let known = self.told.get(&definition).filter(|_| has_keys).cloned();
            let meaning = match (meaning, &known) {
                (Some(meaning), _) => meaning.to_owned(),
                (None, Some(known)) => format!("As `{known}`."),
                // The same key stands above, for everything.
                (None, None) if !prefix.is_empty() && self.root.pointer(&format!("/properties/{name}")).is_some() => {
                    format!("As `{name}`.")
                }
                (None, None) if has_keys => "Has the keys below.".to_owned(),
                (None, None) => String::new(),
            };
            let required = schema.get("required").and_then(Value::as_array);
            let required = required.is_some_and(|names| names.iter().any(|one| one == name.as_str()));
            let required = if required { " Required." } else { "" };
            let _ = writeln!(self.page, "| `{path}` | {} | {shown} | {meaning}{required} |", self.kind(shape));
            if !has_keys {
                continue;
            }
            // What is by default in tables that are told once is told in each.
            let is_default = default.and_then(Value::as_object).filter(|_| step == ".");
            if known.is_none() || is_default.is_some_and(|beneath| !beneath.is_empty()) {
                if !definition.is_empty() {
                    self.told.entry(definition).or_insert_with(|| path.clone());
                }
                self.properties(&format!("{path}{step}"), inner, default.filter(|_| step == "."));
            }
        }
    }

    /// Follows references to the schema's own definitions. Returns what is there and its nearest description.
    fn resolved(&self, mut schema: &'a Value) -> (&'a Value, Option<&'a str>) {
        let mut meaning = None;
        for _ in 0..REFERENCES_MAX {
            meaning = meaning.or_else(|| schema.get("description").and_then(Value::as_str));
            let target = schema.get("$ref").and_then(Value::as_str).and_then(|to| to.strip_prefix('#'));
            match target.and_then(|pointer| self.root.pointer(pointer)) {
                Some(found) => schema = found,
                None => break,
            }
        }
        (schema, meaning)
    }

    /// Words the type of a value.
    fn kind(&self, schema: &'a Value) -> String {
        let (schema, _) = self.resolved(schema);
        if let Some(words) = schema.get("enum").and_then(Value::as_array) {
            let words: Vec<String> = words.iter().filter_map(Value::as_str).map(|word| format!("`{word}`")).collect();
            return words.join(" or ");
        }
        let kind = match schema.get("type") {
            Some(Value::String(kind)) => kind.as_str(),
            Some(Value::Array(kinds)) => {
                kinds.iter().filter_map(Value::as_str).find(|kind| *kind != "null").unwrap_or_default()
            }
            _ => "",
        };
        match kind {
            "integer" => number(schema),
            "boolean" => "`true` or `false`".to_owned(),
            "string" => "text".to_owned(),
            "array" => match schema.get("items") {
                Some(items) => format!("list of {}", several(&self.kind(items))),
                None => "list".to_owned(),
            },
            "object" => match schema.get("additionalProperties") {
                Some(each @ Value::Object(_)) => format!("table of {}", several(&self.kind(each))),
                _ => "table".to_owned(),
            },
            other => other.to_owned(),
        }
    }
}

/// Words what a list or table has many of.
fn several(kind: &str) -> String {
    match kind {
        "text" => "texts".to_owned(),
        "table" => "tables".to_owned(),
        kind if kind.starts_with("list of ") => kind.replacen("list", "lists", 1),
        kind if kind.starts_with("number") => kind.replacen("number", "numbers", 1),
        kind => kind.to_owned(),
    }
}

fn number(schema: &Value) -> String {
    let bound = |key: &str| schema.get(key).and_then(Value::as_u64);
    match (bound("minimum"), bound("maximum").filter(|most| *most < u64::from(u32::MAX))) {
        (Some(least), Some(most)) => format!("number from {least} to {most}"),
        (Some(least), None) => format!("number from {least} on"),
        (None, Some(most)) => format!("number up to {most}"),
        (None, None) => "number".to_owned(),
    }
}

/// Writes a value as it stands in the policy file.
fn toml(value: &Value) -> String {
    let joined = |parts: Vec<String>| parts.join(", ");
    match value {
        Value::Array(items) => format!("[{}]", joined(items.iter().map(toml).collect())),
        Value::Object(keys) if keys.is_empty() => "{}".to_owned(),
        Value::Object(keys) => format!("{{ {} }}", joined(pairs(keys))),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
    }
}

fn pairs(keys: &Map<String, Value>) -> Vec<String> {
    keys.iter().map(|(key, value)| format!("{key} = {}", toml(value))).collect()
}
