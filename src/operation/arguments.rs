//! Reads an operation's arguments: unknown ones are refused with the nearest known name.
//!
//! A refusal names the argument and what would have been accepted, never the value that came: values
//! may be secrets. Ranges are not checked here; operations have codes of their own for those.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Number, Value};

use super::schema::JsonObject;
use crate::model::{Code, Failure};

/// How alike two names must be for one to be suggested, from 0 to 1.
const SIMILARITY_MIN: f64 = 0.7;
/// The longest name that is compared, in characters: comparing takes time in proportion to both lengths.
const COMPARED_CHARS_MAX: usize = 64;
/// Unknown arguments that are named; more are counted.
const UNKNOWN_TOLD_MAX: usize = 20;

/// Reads `arguments` as the input that `schema` describes.
///
/// # Errors
/// `invalid_arguments`, with every fault in one message.
pub fn read<T: DeserializeOwned>(operation: &str, schema: &JsonObject, arguments: JsonObject) -> Result<T, Failure> {
    let faults = faults(schema, &arguments);
    if !faults.is_empty() {
        // Names of arguments are no help where a word is wrong.
        let only_words = faults.iter().all(|fault| !fault.words.is_empty());
        let words = faults.iter().flat_map(|fault| fault.words.clone()).collect();
        let said: Vec<String> = faults.into_iter().map(|fault| fault.text).collect();
        let allowed = if only_words { words } else { names(schema) };
        return Err(Failure::new(Code::InvalidArguments, said.join("; ")).allowed(allowed));
    }
    // Nulls mean absent: several clients send every argument they know.
    let present = arguments.into_iter().filter(|(_, value)| !value.is_null()).collect();
    serde_json::from_value(Value::Object(present)).map_err(|_| {
        Failure::new(Code::InvalidArguments, format!("the arguments do not fit `{operation}`"))
            .hint("see the operation's input schema")
    })
}

/// Returns the one of `known` that is most like `name`, if any is like it.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let fold = |text: &str| text.to_ascii_lowercase().replace(['_', '-'], "");
    if name.chars().nth(COMPARED_CHARS_MAX).is_some() {
        return None;
    }
    let folded = fold(name);
    known
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(&folded, &fold(candidate)), candidate))
        .filter(|(alike, _)| *alike >= SIMILARITY_MIN)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

fn names(schema: &JsonObject) -> Vec<String> {
    properties(schema).map(|(name, _)| name.clone()).collect()
}

fn properties(schema: &JsonObject) -> impl Iterator<Item = (&String, &Value)> {
    schema.get("properties").and_then(Value::as_object).into_iter().flatten()
}

/// What is wrong with an argument.
#[derive(Debug)]
struct Fault {
    text: String,
    /// What would have been accepted, where that is one of some words.
    words: Vec<String>,
}

impl From<String> for Fault {
    fn from(text: String) -> Self {
        Self { text, words: Vec::new() }
    }
}

fn faults(schema: &JsonObject, arguments: &JsonObject) -> Vec<Fault> {
    let mut faults: Vec<Fault> = Vec::new();
    let known: Vec<&str> = properties(schema).map(|(name, _)| name.as_str()).collect();
    let mut unknown = arguments.keys().filter(|name| !known.contains(&name.as_str()));
    for name in unknown.by_ref().take(UNKNOWN_TOLD_MAX) {
        // The name itself is the caller's text: shortened, and shown only as a name.
        let shown = shown(name);
        let text = match nearest(name, known.iter().copied()) {
            Some(nearest) => format!("unknown argument `{shown}`, the nearest known one is `{nearest}`"),
            None => format!("unknown argument `{shown}`"),
        };
        faults.push(text.into());
    }
    let more = unknown.count();
    if more > 0 {
        faults.push(format!("and {more} more unknown {}", if more == 1 { "argument" } else { "arguments" }).into());
    }
    for (name, property) in properties(schema) {
        match arguments.get(name) {
            None | Some(Value::Null) if is_required(schema, name) => {
                faults.push(format!("argument `{name}` is required").into());
            }
            None | Some(Value::Null) => {}
            Some(value) => faults.extend(fault(&format!("argument `{name}`"), property, value)),
        }
    }
    faults
}

fn shown(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(COMPARED_CHARS_MAX).collect()
}

fn is_required(schema: &JsonObject, name: &str) -> bool {
    schema.get("required").and_then(Value::as_array).is_some_and(|r| r.iter().any(|n| n.as_str() == Some(name)))
}

/// Says how `value` differs from what `schema` wants: the first fault there is.
fn fault(what: &str, schema: &Value, value: &Value) -> Option<Fault> {
    let wanted = schema.get("type").and_then(Value::as_str)?;
    let fits = match wanted {
        "string" => value.is_string(),
        "integer" => value.as_number().is_some_and(is_whole),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => true,
    };
    if !fits {
        return Some(format!("{what} must be {}, and is {}", described(wanted), described(type_of(value))).into());
    }
    if let (Some(Value::Array(words)), Some(word)) = (schema.get("enum"), value.as_str())
        && !words.iter().any(|w| w.as_str() == Some(word))
    {
        let words: Vec<String> = words.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        let listed: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
        return Some(Fault { text: format!("{what} must be one of {}", listed.join(", ")), words });
    }
    if let (Some(items), Value::Array(values)) = (schema.get("items"), value) {
        return values.iter().find_map(|v| fault(&format!("each item of {what}"), items, v));
    }
    let (Value::Object(schema), Value::Object(entries)) = (schema, value) else { return None };
    match schema.get("additionalProperties") {
        Some(Value::Bool(false)) => {}
        Some(inner) => return entries.values().find_map(|v| fault(&format!("each value of {what}"), inner, v)),
        None => return None,
    }
    let known: Vec<&str> = properties(schema).map(|(name, _)| name.as_str()).collect();
    if let Some(unknown) = entries.keys().find(|name| !known.contains(&name.as_str())) {
        let known: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
        return Some(format!("{what} has no `{}`; it takes {}", shown(unknown), known.join(", ")).into());
    }
    properties(schema).find_map(|(name, property)| match entries.get(name) {
        None | Some(Value::Null) if is_required(schema, name) => Some(format!("`{name}` of {what} is required").into()),
        None | Some(Value::Null) => None,
        Some(value) => fault(&format!("`{name}` of {what}"), property, value),
    })
}

fn is_whole(number: &Number) -> bool {
    number.is_i64() || number.is_u64() || number.as_f64().is_some_and(|f| f.fract() == 0.0)
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if is_whole(n) => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn described(json_type: &str) -> &'static str {
    match json_type {
        "string" => "a string",
        "integer" => "an integer",
        "number" => "a number",
        "boolean" => "true or false",
        "array" => "an array",
        "object" => "an object",
        _ => "null",
    }
}

/// A whole number of any size, so that one out of range gets the operation's own code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Whole(i128);

impl Whole {
    /// Returns the number if it lies between `min` and `max`.
    pub fn within(self, min: u64, max: u64) -> Option<u64> {
        u64::try_from(self.0).ok().filter(|n| (min..=max).contains(n))
    }

    /// Returns the number as text, for messages.
    pub fn shown(self) -> String {
        self.0.to_string()
    }
}

impl From<u64> for Whole {
    fn from(number: u64) -> Self {
        Self(number.into())
    }
}

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = Number::deserialize(deserializer)?;
        let whole = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
        #[expect(clippy::cast_possible_truncation, reason = "float to integer casts saturate, which is what is wanted")]
        let whole = whole.or_else(|| number.as_f64().filter(|f| f.fract() == 0.0).map(|f| f as i128));
        whole.map(Self).ok_or_else(|| serde::de::Error::custom("not a whole number"))
    }
}

impl schemars::JsonSchema for Whole {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Whole".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "integer" })
    }

    fn inline_schema() -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use schemars::JsonSchema;
    use serde_json::json;

    use super::*;
    use crate::operation::schema::object_schema;

    #[derive(Debug, Deserialize, JsonSchema)]
    #[serde(rename_all = "camelCase")]
    #[expect(dead_code, reason = "only reading it is tried")]
    struct Input {
        sql: String,
        row_limit: Option<Whole>,
        extensions: Option<Vec<String>>,
    }

    fn check(arguments: Value, expected: &str) {
        let schema = object_schema::<Input>();
        let Value::Object(arguments) = arguments else { panic!("not an object") };
        let failure = read::<Input>("run_sql", &schema, arguments).unwrap_err();
        assert_eq!(failure.message, expected);
        assert_eq!(failure.code, Code::InvalidArguments);
    }

    #[test]
    fn no_more_unknown_arguments_are_named_than_anybody_reads() {
        for (unknown, counted) in
            [(UNKNOWN_TOLD_MAX - 1, None), (UNKNOWN_TOLD_MAX, None), (UNKNOWN_TOLD_MAX + 5, Some("5 more"))]
        {
            let arguments: JsonObject = (0..unknown).map(|n| (format!("zz{n}"), Value::Null)).collect();
            let faults = faults(&JsonObject::new(), &arguments);
            assert_eq!(faults.len(), unknown.min(UNKNOWN_TOLD_MAX) + usize::from(counted.is_some()));
            assert!(counted.is_none_or(|text| faults.last().unwrap().text.contains(text)), "{faults:?}");
        }
    }

    #[test]
    fn an_unknown_argument_gets_the_nearest_known_name() {
        check(
            json!({"sql": "x", "row_limits": 3}),
            "unknown argument `row_limits`, the nearest known one is `rowLimit`",
        );
    }

    #[test]
    fn a_name_of_megabytes_is_not_compared() {
        let known = ["sql", "rowLimit"];
        assert_eq!(nearest("rowlimits", known), Some("rowLimit"));
        assert_eq!(nearest(&"rowLimit".repeat(9), known), None);
    }

    #[test]
    fn every_fault_is_named_at_once_and_no_value_is_shown() {
        check(
            json!({"rowLimit": "hunter2", "extensions": ["a", 3]}),
            "argument `sql` is required; argument `rowLimit` must be an integer, and is a string; each item of argument \
             `extensions` must be a string, and is an integer",
        );
    }

    #[derive(Debug, Deserialize, JsonSchema)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    #[expect(dead_code, reason = "only reading it is tried")]
    struct Part {
        column: String,
        with: Word,
        value: Option<String>,
    }

    #[derive(Debug, Deserialize, JsonSchema)]
    #[serde(rename_all = "camelCase")]
    enum Word {
        Null,
        Hash,
    }

    #[derive(Debug, Deserialize, JsonSchema)]
    #[expect(dead_code, reason = "only reading it is tried")]
    struct Parts {
        mask: Vec<Part>,
    }

    #[test]
    fn a_fault_within_a_list_is_named_with_what_would_be_accepted() {
        let schema = object_schema::<Parts>();
        let read = |part: Value| {
            let Value::Object(arguments) = json!({"mask": [{"column": "a", "with": "null"}, part]}) else {
                panic!("not an object")
            };
            read::<Parts>("clone_database", &schema, arguments)
        };
        for (part, expected) in [
            (
                json!({"column": "a", "with": "hunter2"}),
                "`with` of each item of argument `mask` must be one of `null`, `hash`",
            ),
            (json!({"column": "a"}), "`with` of each item of argument `mask` is required"),
            (
                json!({"column": 7, "with": "hash"}),
                "`column` of each item of argument `mask` must be a string, and is an integer",
            ),
            (
                json!({"column": "a", "with": "hash", "vaule": "hunter2"}),
                "each item of argument `mask` has no `vaule`; it takes `column`, `with`, `value`",
            ),
        ] {
            let failure = read(part).unwrap_err();
            assert_eq!(failure.message, expected);
            assert_eq!(failure.allowed == ["null", "hash"], expected.contains("one of"), "{failure:?}");
        }
        assert!(read(json!({"column": "a", "with": "hash", "value": null})).is_ok());
    }

    #[test]
    fn numbers_of_any_size_are_read() {
        for (text, within) in
            [("-1", None), ("9223372036854775808", None), ("1e30", None), ("7", Some(7)), ("7.0", Some(7))]
        {
            let whole: Whole = serde_json::from_str(text).unwrap();
            assert_eq!(whole.within(1, 1440), within, "{text}");
        }
    }
}
