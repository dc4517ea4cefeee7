//! Tools, made from the list of operations.

use std::borrow::Cow;
use std::sync::Arc;

use rmcp::model::{Tool, ToolAnnotations};
use serde_json::Value;

use crate::operation::{Entry, OPERATIONS, Toolset};

/// Returns the tools of the given toolsets.
pub(super) fn tools(toolsets: &[Toolset]) -> Vec<Tool> {
    OPERATIONS.iter().filter(|entry| toolsets.contains(&entry.spec.toolset)).map(tool).collect()
}

/// Returns the default tools as `tools/list` gives them, for the contract's snapshot.
pub fn tool_list_json() -> Value {
    serde_json::to_value(tools(&[Toolset::Core])).unwrap_or_default()
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
        .with_raw_output_schema(Arc::new(entry.output_schema().clone()))
        .with_annotations(annotations)
}
