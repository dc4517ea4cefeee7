//! MCP: tools from the list of operations, wire conversion, and the stdio transport.
//!
//! This folder parses the envelope of the protocol and nothing else: every call goes to the service as
//! it came, and every answer is rendered from the service's. Nothing here decides or acts.

mod answers;
mod handler;
mod lines;
mod progress;
mod stdio;
mod tasks;
mod tools;

pub use handler::{Handler, RowsIn};
pub use stdio::serve_stdio;
pub use tools::tool_list_json;
