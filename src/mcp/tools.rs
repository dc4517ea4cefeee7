//! Tools, made from the list of operations.

use std::borrow::Cow;
use std::sync::Arc;

use rmcp::model::{Tool, ToolAnnotations};
use serde_json::Value;

use crate::operation::schema::JsonObject;
use crate::operation::{Entry, OPERATIONS, Toolset};

/// Returns the tools of the given toolsets.
pub(super) fn tools(toolsets: &[Toolset]) -> Vec<Tool> {
    OPERATIONS.iter().filter(|entry| entry.is_tool() && toolsets.contains(&entry.spec.toolset)).map(tool).collect()
}

/// Returns the default tools as `tools/list` gives them, for the contract's snapshot.
pub fn tool_list_json() -> Value {
    serde_json::to_value(tools(&[Toolset::Core])).unwrap_or_default()
}

/// Levels of an output schema that clients are shown: the envelope and the result's own fields.
const OUTPUT_LEVELS: usize = 3;

/// Cuts a schema down to names and types. A list of tools is read by every agent at every start; the whole schema, with
/// its texts, is in the reference pages.
fn compact(schema: &JsonObject) -> JsonObject {
    shallow(schema, OUTPUT_LEVELS)
}

fn shallow(schema: &JsonObject, levels: usize) -> JsonObject {
    let mut out = JsonObject::new();
    for (key, value) in schema {
        match (key.as_str(), value) {
            ("type" | "enum", _) => _ = out.insert(key.clone(), value.clone()),
            ("required", _) if levels > 1 => _ = out.insert(key.clone(), value.clone()),
            ("properties", Value::Object(properties)) if levels > 1 => {
                let inner = properties.iter().filter_map(|(name, property)| {
                    let property = property.as_object()?;
                    Some((name.clone(), Value::Object(shallow(property, levels - 1))))
                });
                out.insert(key.clone(), Value::Object(inner.collect()));
            }
            _ => {}
        }
    }
    out
}

fn tool(entry: &Entry) -> Tool {
    let spec = entry.spec;
    let annotations = ToolAnnotations::new()
        .read_only(spec.reads_only())
        .destructive(spec.destructive())
        .idempotent(spec.idempotent)
        .open_world(spec.open_world());
    Tool::new_with_raw(spec.name, Some(Cow::Borrowed(spec.help)), Arc::new(entry.input_schema().clone()))
        .with_title(spec.title)
        .with_raw_output_schema(Arc::new(compact(entry.output_schema())))
        .with_annotations(annotations)
}
