//! The MCP server: answers the handshake and lists at once, and hands every call to the service.

use std::str::FromStr;
use std::sync::Arc;

use rmcp::ErrorData;
use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, CustomRequest, CustomResult, ErrorCode,
    Implementation, ListToolsResult, PaginatedRequestParams, ProtocolVersion, ServerCapabilities, ServerConfig,
};
use rmcp::service::{RequestContext, RoleServer};
use serde_json::Value;

use super::progress::PeerProgress;
use super::tools::tools;
use crate::model::{Principal, Progress, Silent};
use crate::operation::{Envelope, Toolset, find};
use crate::service::{Request, Service};

/// What an agent is told when it connects.
const INSTRUCTIONS: &str = "\
Disposable Postgres databases. create_database gives you one; name it by databaseId in later calls.
Run SQL with run_sql: readonly=true to look, rowLimit small; your sandbox is yours to break, nothing else is.
When a call is refused, errors[].hint and allowed[] say what would work; explain_policy says why, without running anything.
Passwords stay out of your context: use run_sql, and ask get_connection_string for credentials only when a program needs them.
delete_database when you are done; extend_database if you need longer. Sandboxes expire.";

/// Where row data travels; it travels once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowsIn {
    /// In `structuredContent`; the text says how many there are. Clients older than structured content get them in the text.
    Structured,
    /// In the text, for clients that show their model nothing else.
    Text,
}

impl FromStr for RowsIn {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        match word {
            "structured" => Ok(Self::Structured),
            "text" => Ok(Self::Text),
            other => Err(format!("`{other}` is neither `structured` nor `text`")),
        }
    }
}

/// The MCP server of one connection.
#[derive(Clone)]
pub struct Handler {
    service: Arc<Service>,
    principal: Principal,
    toolsets: Arc<[Toolset]>,
    rows_in: RowsIn,
}

impl Handler {
    /// Makes a server for `principal`, who is the same for the whole connection.
    pub fn new(service: Arc<Service>, principal: Principal, toolsets: &[Toolset], rows_in: RowsIn) -> Self {
        Self { service, principal, toolsets: toolsets.into(), rows_in }
    }

    fn request(&self, call: CallToolRequestParams, context: &RequestContext<RoleServer>) -> Request {
        let progress: Arc<dyn Progress> = match context.meta.get_progress_token() {
            Some(token) => Arc::new(PeerProgress::new(context.peer.clone(), token)),
            None => Arc::new(Silent),
        };
        let client = context.client_info().map(|info| info.name).unwrap_or_default();
        let client = client.chars().filter(|c| !c.is_control()).take(128).collect();
        Request {
            method: "tools/call",
            principal: Principal { client, ..self.principal.clone() },
            operation: call.name.into_owned(),
            input: call.arguments.unwrap_or_default(),
            progress,
            cancel: context.ct.clone(),
            traceparent: context.meta.get("traceparent").and_then(Value::as_str).map(str::to_owned),
            console: None,
        }
    }
}

impl ServerHandler for Handler {
    fn get_info(&self) -> ServerConfig {
        let implementation =
            Implementation::new(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION")).with_title("PostgreSQL sandboxes");
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(implementation)
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools(&self.toolsets)))
    }

    async fn call_tool(
        &self,
        call: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let structured =
            context.protocol_version().is_some_and(|v| v.as_str() >= ProtocolVersion::V_2025_06_18.as_str());
        let unknown = find(&call.name).is_err();
        let envelope = self.service.call(self.request(call, &context)).await;
        if unknown {
            return Err(ErrorData::invalid_params(envelope.summary.clone(), Some(envelope.to_json())));
        }
        Ok(render(&envelope, structured, self.rows_in).into())
    }

    /// Refuses what rmcp could not read as any method it knows: one it does know was given parameters of a wrong shape.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        Err(match request.method.as_str() {
            "tools/call" => {
                ErrorData::invalid_params("`params` takes `name`, a string, and `arguments`, an object", None)
            }
            "tools/list" => ErrorData::invalid_params("`params` takes `cursor`, a string", None),
            _ => ErrorData::new(ErrorCode::METHOD_NOT_FOUND, "there is no such method", None),
        })
    }
}

/// Renders an envelope so that row data travels once.
fn render(envelope: &Envelope, structured: bool, rows_in: RowsIn) -> CallToolResult {
    let whole = envelope.to_json();
    let mut other = whole.clone();
    let has_rows = take_rows(&mut other);
    if structured && has_rows && rows_in == RowsIn::Structured {
        // Whoever reads the text alone is told why there are counts and no rows.
        point_to(&mut other, "structuredContent");
    }
    let (text, structured_content) = match (structured, rows_in, has_rows) {
        (false, _, _) => (whole, None),
        (true, _, false) => (whole.clone(), Some(whole)),
        (true, RowsIn::Structured, true) => (other, Some(whole)),
        (true, RowsIn::Text, true) => (whole, Some(other)),
    };
    let content = vec![ContentBlock::text(text.to_string())];
    let mut result = if envelope.ok { CallToolResult::success(content) } else { CallToolResult::error(content) };
    result.structured_content = structured_content;
    result
}

/// Says in an envelope whose rows were taken where they are.
fn point_to(envelope: &mut Value, place: &str) {
    if let Some(members) = envelope.as_object_mut() {
        members.insert("rowsIn".to_owned(), place.into());
    }
}

/// Empties the row data of an envelope; returns whether there was any.
fn take_rows(envelope: &mut Value) -> bool {
    let Some(sets) = envelope.pointer_mut("/result/resultSets").and_then(Value::as_array_mut) else { return false };
    let mut any = false;
    for rows in sets.iter_mut().filter_map(|set| set.get_mut("rows")).filter_map(Value::as_array_mut) {
        any |= !rows.is_empty();
        rows.clear();
    }
    any
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::{Code, RequestId};
    use crate::operation::Done;

    fn sample() -> Envelope {
        let result = json!({"resultSets": [{"rows": [[1, "marker"]]}]});
        Envelope::done(RequestId::fresh(), Done::new("SELECT 1", result), None)
    }

    fn occurrences(structured: bool, rows_in: RowsIn) -> (usize, usize) {
        let rendered = render(&sample(), structured, rows_in);
        let text = serde_json::to_string(&rendered.content).unwrap();
        let structured = rendered.structured_content.map(|v| v.to_string()).unwrap_or_default();
        (text.matches("marker").count(), structured.matches("marker").count())
    }

    #[test]
    fn row_data_travels_once() {
        assert_eq!(occurrences(true, RowsIn::Structured), (0, 1));
        assert_eq!(occurrences(true, RowsIn::Text), (1, 0));
        assert_eq!(occurrences(false, RowsIn::Structured), (1, 0));
    }

    #[test]
    fn a_text_without_its_rows_says_where_they_are() {
        let text = |rows_in| serde_json::to_string(&render(&sample(), true, rows_in).content).unwrap();
        assert!(text(RowsIn::Structured).contains("rowsIn"));
        assert!(!text(RowsIn::Text).contains("rowsIn"));
    }

    #[test]
    fn a_failure_is_a_result_with_is_error() {
        let failure = crate::model::Failure::new(Code::Denied, "no");
        let rendered = render(&Envelope::failed(RequestId::fresh(), &failure, None), true, RowsIn::Structured);
        assert_eq!(rendered.is_error, Some(true));
    }
}
