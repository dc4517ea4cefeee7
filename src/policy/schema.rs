//! Finds fault with settings by the schema that the policy declares, before the policy itself is asked.
//!
//! A policy that reads its settings into a type stops at the first that does not fit; here every key is looked at. Of JSON
//! Schema it knows what says which keys, types and bounds there are, and lets pass what it does not know: the policy has
//! the last word. A schema that cannot be read finds no fault.

use serde_json::{Map, Value};

/// The most faults reported of one policy's settings: a file that has more is not one with slips.
const FAULTS_MAX: usize = 64;
/// The longest word that is compared with what was meant, in characters, and how many it is compared with: comparing takes
/// time in proportion to all three.
const MEANT_CHARS_MAX: usize = 64;
const MEANT_WORDS_MAX: usize = 128;
/// The most references followed for one value: a schema may name itself.
const REFERENCES_MAX: usize = 16;

/// One fault of settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// Where, `impacts.reads.burst` for instance.
    pub(super) path: String,
    /// What is wrong and what would be accepted.
    pub(super) message: String,
    /// Whether the settings have another shape than the policy reads, so that it would stop there.
    pub(super) shape: bool,
}

/// Returns every fault of `settings`, both JSON texts.
pub(super) fn faults(schema: &str, settings: &str) -> Vec<Fault> {
    let (Ok(schema), Ok(settings)) = (serde_json::from_str::<Value>(schema), serde_json::from_str::<Value>(settings))
    else {
        return Vec::new();
    };
    let mut checker = Checker { schema: &schema, faults: Vec::new() };
    checker.value("", &schema, &settings);
    checker.faults
}

struct Checker<'a> {
    schema: &'a Value,
    faults: Vec<Fault>,
}

impl<'a> Checker<'a> {
    fn fault(&mut self, path: &str, shape: bool, message: String) {
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(Fault { path: path.to_owned(), message, shape });
        }
    }

    /// Follows references to a schema's own definitions.
    fn resolved(&self, mut schema: &'a Value) -> &'a Value {
        for _ in 0..REFERENCES_MAX {
            let target = schema.get("$ref").and_then(Value::as_str).and_then(|to| to.strip_prefix('#'));
            match target.and_then(|pointer| self.schema.pointer(pointer)) {
                Some(found) => schema = found,
                None => break,
            }
        }
        schema
    }

    /// Returns whether as many faults were found as are told: the rest need not be looked for.
    fn is_full(&self) -> bool {
        self.faults.len() >= FAULTS_MAX
    }

    fn value(&mut self, path: &str, schema: &'a Value, value: &Value) {
        if self.is_full() {
            return;
        }
        let schema = self.resolved(schema);
        let types = types(schema);
        if !types.is_empty() && !types.iter().any(|name| is_of(value, name)) {
            let wanted: Vec<&str> = types.iter().filter(|name| **name != "null").map(|name| wording(name)).collect();
            self.fault(path, true, format!("{} is wanted here, and it is {}", wanted.join(" or "), kind(value)));
            return;
        }
        if let Some(accepted) = schema.get("enum").and_then(Value::as_array)
            && !accepted.contains(value)
        {
            let words: Vec<&str> = accepted.iter().filter_map(Value::as_str).collect();
            let given = value.as_str().unwrap_or_default();
            self.fault(path, true, format!("it is none of the words that are accepted{}", meant(given, &words)));
        }
        match value {
            Value::Number(_) => self.bounds(path, schema, value.as_f64(), ["minimum", "maximum"], ""),
            Value::String(text) => {
                self.bounds(path, schema, count(text.chars().count()), ["minLength", "maxLength"], " characters");
            }
            Value::Array(items) => {
                self.bounds(path, schema, count(items.len()), ["minItems", "maxItems"], " entries");
                let Some(of) = schema.get("items") else { return };
                for (index, item) in items.iter().enumerate() {
                    self.value(&format!("{path}[{index}]"), of, item);
                }
            }
            Value::Object(object) => self.object(path, schema, object),
            Value::Null | Value::Bool(_) => {}
        }
    }

    fn object(&mut self, path: &str, schema: &'a Value, object: &Map<String, Value>) {
        let known = schema.get("properties").and_then(Value::as_object);
        let others = schema.get("additionalProperties");
        for (key, value) in object {
            if self.is_full() {
                return;
            }
            let at = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            match (known.and_then(|known| known.get(key)), others) {
                (Some(of), _) => self.value(&at, of, value),
                (None, Some(Value::Bool(false))) => {
                    let names: Vec<&str> = known.into_iter().flat_map(Map::keys).map(String::as_str).collect();
                    self.fault(&at, true, format!("there is no such key{}", meant(key, &names)));
                }
                (None, Some(of @ Value::Object(_))) => self.value(&at, of, value),
                (None, _) => {}
            }
        }
        let required = schema.get("required").and_then(Value::as_array);
        for key in required.into_iter().flatten().filter_map(Value::as_str) {
            if !object.contains_key(key) {
                self.fault(path, true, format!("the key `{key}` is missing"));
            }
        }
    }

    fn bounds(&mut self, path: &str, schema: &Value, value: Option<f64>, keys: [&str; 2], unit: &str) {
        let Some(value) = value else { return };
        let [least, most] = keys.map(|key| schema.get(key));
        let below = least.and_then(Value::as_f64).is_some_and(|least| value < least);
        let above = most.and_then(Value::as_f64).is_some_and(|most| value > most);
        if !below && !above {
            return;
        }
        let wanted = match (least, most) {
            (Some(least), Some(most)) => format!("between {least} and {most}{unit}"),
            (Some(least), None) => format!("at least {least}{unit}"),
            (None, Some(most)) => format!("at most {most}{unit}"),
            (None, None) => return,
        };
        self.fault(path, false, format!("{value}{unit} is out of range; {wanted} is accepted"));
    }
}

fn count(of: usize) -> Option<f64> {
    u32::try_from(of).ok().map(f64::from)
}

fn types(schema: &Value) -> Vec<&str> {
    match schema.get("type") {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect(),
        Some(_) | None => Vec::new(),
    }
}

fn is_of(value: &Value, name: &str) -> bool {
    match name {
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "null" => value.is_null(),
        _ => true,
    }
}

fn wording(name: &str) -> &str {
    match name {
        "integer" => "a whole number",
        "number" => "a number",
        "string" => "text in quotes",
        "boolean" => "`true` or `false`",
        "array" => "a list",
        "object" => "a table",
        other => other,
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "`true` or `false`",
        Value::Number(number) if number.is_f64() => "a number with a fraction",
        Value::Number(_) => "a whole number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a table",
    }
}

/// Words the nearest of what would have been accepted, or all if none is near.
fn meant(given: &str, names: &[&str]) -> String {
    if names.len() > MEANT_WORDS_MAX {
        return format!("; there are {} others", names.len());
    }
    let short = |text: &str| text.chars().nth(MEANT_CHARS_MAX).is_none();
    let alike = names.iter().filter(|name| short(given) && short(name));
    match alike.map(|name| (strsim::damerau_levenshtein(given, name), name)).min() {
        Some((distance, name)) if distance <= 3 && distance < name.len() => format!("; is `{name}` meant?"),
        _ if names.is_empty() => String::new(),
        _ => {
            format!("; there are {}", names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEMA: &str = r##"{
        "type": "object", "additionalProperties": false, "required": ["must"],
        "properties": {
            "must": {"type": "string", "maxLength": 3},
            "most": {"type": ["integer", "null"], "minimum": 1, "maximum": 9},
            "words": {"type": "array", "maxItems": 2, "items": {"enum": ["reads", "writes"]}},
            "rates": {"type": "object", "additionalProperties": {"$ref": "#/$defs/rate"}}
        },
        "$defs": {"rate": {"type": "object", "additionalProperties": false, "properties": {"burst": {"type": "integer"}}},
                  "loop": {"$ref": "#/$defs/loop"}}
    }"##;

    fn check(settings: &str, expected: &[(&str, &str)]) {
        let found = faults(SCHEMA, settings);
        let paths: Vec<&str> = found.iter().map(|fault| fault.path.as_str()).collect();
        assert_eq!(paths, expected.iter().map(|(path, _)| *path).collect::<Vec<_>>(), "{found:?}");
        for (fault, (_, says)) in found.iter().zip(expected) {
            assert!(fault.message.contains(says), "`{}` does not say `{says}`", fault.message);
        }
    }

    #[test]
    fn what_fits_has_no_fault() {
        check(r#"{"must": "abc", "most": null, "words": ["reads"], "rates": {"x": {"burst": 1}}}"#, &[]);
    }

    #[test]
    fn every_fault_is_found_at_once() {
        check(
            r#"{"must": "abcd", "mots": 1, "most": "9", "words": ["raeds", "writes", "reads"], "rates": {"x": {"burts": 1}}}"#,
            &[
                ("must", "4 characters is out of range"),
                ("mots", "is `most` meant?"),
                ("most", "a whole number is wanted here, and it is text"),
                ("words", "at most 2 entries"),
                ("words[0]", "is `reads` meant?"),
                ("rates.x.burts", "is `burst` meant?"),
            ],
        );
        check(r#"{"most": 10}"#, &[("most", "between 1 and 9"), ("", "`must` is missing")]);
        check(r#"{"must": "a", "most": 1.5}"#, &[("most", "it is a number with a fraction")]);
    }

    #[test]
    fn long_words_and_many_are_not_compared() {
        let long = |n: usize| "x".repeat(n);
        for (chars, suggested) in [(MEANT_CHARS_MAX, true), (MEANT_CHARS_MAX + 1, false)] {
            assert_eq!(meant(&long(chars - 1), &[&long(chars)]).contains("is `"), suggested);
        }
        let words: Vec<String> = (0..=MEANT_WORDS_MAX).map(|n| format!("word{n}")).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        assert!(meant("wrod1", &words[1..]).contains("is `word1` meant"));
        assert_eq!(meant("wrod1", &words), format!("; there are {} others", words.len()));
    }

    #[test]
    fn no_more_faults_are_told_than_anybody_reads() {
        for (keys, told) in [(FAULTS_MAX - 1, FAULTS_MAX - 1), (FAULTS_MAX, FAULTS_MAX), (FAULTS_MAX + 1, FAULTS_MAX)] {
            let rates: Map<String, Value> = (0..keys).map(|n| (format!("r{n}"), Value::Null)).collect();
            let settings = serde_json::json!({"rates": rates, "must": "a"}).to_string();
            assert_eq!(faults(SCHEMA, &settings).len(), told);
        }
    }

    #[test]
    fn a_schema_that_says_nothing_finds_nothing() {
        for schema in [
            "",
            "{}",
            "true",
            "[]",
            "{\"$ref\": \"#/$defs/loop\", \"$defs\": {\"loop\": {\"$ref\": \"#/$defs/loop\"}}}",
        ] {
            assert_eq!(faults(schema, r#"{"anything": [1]}"#), [], "{schema}");
        }
    }
}
