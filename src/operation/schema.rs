//! JSON schemas that every client accepts: plain objects, inlined, single types, no `$ref`, no unions.
//!
//! A property that may be left out is not in `required`; it is never typed as null.

use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::{Map, Value, json};

/// A JSON object.
pub type JsonObject = Map<String, Value>;

/// Returns the schema of `T`, which must be a struct.
pub fn object_schema<T: JsonSchema>() -> JsonObject {
    let settings = SchemaSettings::draft2020_12().with(|s| {
        s.inline_subschemas = true;
        s.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    simplify(&mut schema);
    let mut object = if let Value::Object(object) = schema { object } else { Map::new() };
    object.remove("title");
    object.remove("description");
    object.entry("type").or_insert_with(|| json!("object"));
    object.entry("properties").or_insert_with(|| json!({}));
    object
}

/// Rewrites a schema in place to the subset that all clients read.
fn simplify(schema: &mut Value) {
    match schema {
        Value::Bool(_) => *schema = json!({}),
        Value::Object(object) => simplify_object(object),
        Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) => {}
    }
}

fn simplify_object(object: &mut JsonObject) {
    if let Some(Value::Array(types)) = object.get("type") {
        let single = types.iter().find(|t| t.as_str() != Some("null")).cloned();
        object.insert("type".into(), single.unwrap_or_else(|| json!("object")));
    }
    if let Some(Value::Array(choices)) = object.remove("anyOf") {
        let single = choices.into_iter().find(|c| c.get("type").and_then(Value::as_str) != Some("null"));
        if let Some(Value::Object(single)) = single {
            for (key, value) in single {
                object.entry(key).or_insert(value);
            }
        }
    }
    if let Some(choices) = object.remove("oneOf").and_then(words_of_constants) {
        object.insert("type".into(), json!("string"));
        object.insert("enum".into(), choices);
    }
    object.remove("default");
    object.remove("format");
    if let Some(Value::Array(words)) = object.get_mut("enum") {
        words.retain(|word| !word.is_null());
    }
    for key in ["properties", "patternProperties"] {
        if let Some(Value::Object(properties)) = object.get_mut(key) {
            properties.values_mut().for_each(simplify);
        }
    }
    for key in ["items", "additionalProperties"] {
        // `additionalProperties: false` is a refusal, not a schema of everything.
        if let Some(inner) = object.get_mut(key).filter(|v| **v != Value::Bool(false)) {
            simplify(inner);
        }
    }
}

/// Turns the documented variants of an enum into the list of its words.
fn words_of_constants(choices: Value) -> Option<Value> {
    let Value::Array(choices) = choices else { return None };
    let words: Option<Vec<Value>> = choices
        .iter()
        .flat_map(|choice| match (choice.get("const"), choice.get("enum")) {
            (Some(word), _) => vec![Some(word.clone())],
            (None, Some(Value::Array(words))) => words.iter().cloned().map(Some).collect(),
            _ => vec![None],
        })
        .collect();
    words.map(Value::Array)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An input.
    #[derive(JsonSchema)]
    #[expect(dead_code, reason = "only its schema is looked at")]
    struct Sample {
        /// A name.
        name: String,
        /// A count.
        count: Option<u32>,
        choice: Option<Choice>,
        nested: Vec<Inner>,
        any: Value,
    }

    /// A choice.
    #[derive(JsonSchema)]
    #[serde(rename_all = "camelCase")]
    #[expect(dead_code, reason = "only its schema is looked at")]
    enum Choice {
        /// One.
        First,
        /// Two.
        Second,
    }

    /// A part.
    #[derive(JsonSchema)]
    #[expect(dead_code, reason = "only its schema is looked at")]
    struct Inner {
        value: Option<bool>,
    }

    #[test]
    fn optional_fields_have_a_single_type_and_nothing_is_referenced() {
        let schema = Value::Object(object_schema::<Sample>());
        let text = schema.to_string();
        assert!(!text.contains("null") && !text.contains("$ref") && !text.contains("anyOf"), "{text}");
        assert_eq!(schema["properties"]["count"]["type"], "integer");
        assert_eq!(schema["properties"]["choice"]["enum"], json!(["first", "second"]));
        assert_eq!(schema["required"], json!(["name", "nested", "any"]));
    }
}
