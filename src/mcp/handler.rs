//! The MCP server: answers the handshake and lists at once, and hands every call to the service.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use rmcp::ErrorData;
use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CancelTaskParams, CompleteRequestParams, CompleteResult,
    CompletionInfo, ContentBlock, CreateTaskResult, CustomRequest, CustomResult, DetailedTask, ErrorCode,
    GetPromptRequestParams, GetPromptResponse, GetPromptResult, GetTaskParams, GetTaskResult, Implementation,
    ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
    PromptMessage, ProtocolVersion, ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult, Reference,
    ResultType, Role, ServerCapabilities, ServerConfig, Task, TaskStatus,
};
use rmcp::service::{RequestContext, RoleServer};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::answers::{self, object};
use super::progress::PeerProgress;
use super::tasks::Board;
use super::tools::tools;
use crate::model::{self, Principal, Progress, Silent, Timestamp, fault};
use crate::operation::page::{self, PAGE_MAX};
use crate::operation::schema::JsonObject;
use crate::operation::{Envelope, Toolset, find_for};
use crate::service::{Request, Service};

/// How long a call may take before a client that knows tasks is given one.
const TASK_AFTER: Duration = Duration::from_secs(2);

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
    tasks: Board,
}

impl Handler {
    /// Makes a server for `principal`, who is the same for the whole connection.
    pub fn new(service: Arc<Service>, principal: Principal, toolsets: &[Toolset], rows_in: RowsIn) -> Self {
        Self { service, principal, toolsets: toolsets.into(), rows_in, tasks: Board::default() }
    }

    /// Builds the request of a method for an operation.
    fn request(
        &self,
        method: &'static str,
        operation: &str,
        input: JsonObject,
        heard: Option<Arc<PeerProgress>>,
        context: &RequestContext<RoleServer>,
    ) -> Request {
        let progress: Arc<dyn Progress> = match heard {
            Some(progress) => progress,
            None => Arc::new(Silent),
        };
        let client = context.client_info().map(|info| info.name).unwrap_or_default();
        let client = client.chars().filter(|c| !c.is_control()).take(128).collect();
        Request {
            method,
            principal: Principal { client, ..self.principal.clone() },
            operation: operation.to_owned(),
            input,
            progress,
            cancel: context.ct.clone(),
            tasks: Arc::new(self.tasks.clone()),
            traceparent: context.meta.get("traceparent").and_then(Value::as_str).map(str::to_owned),
            console: None,
        }
    }

    /// Asks for the operation of a method, like any tool call.
    async fn ask(
        &self,
        method: &'static str,
        operation: &str,
        input: Value,
        context: &RequestContext<RoleServer>,
    ) -> Envelope {
        self.service.call(self.request(method, operation, object(input), heard(context), context)).await
    }

    /// Makes a call; one that takes long is answered with a task, and goes on.
    async fn call_as_task(
        &self,
        request: Request,
        structured: bool,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let cancel = CancellationToken::new();
        let owner = request.principal.owner.clone();
        let (service, rows_in) = (self.service.clone(), self.rows_in);
        let request = Request { cancel: cancel.clone(), ..request };
        let mut work = tokio::spawn(async move { service.call(request).await });
        let done = move |done: Result<Envelope, _>| {
            let envelope = done.map_err(|_| ErrorData::internal_error("the call broke off", None))?;
            Ok(render(&envelope, structured, rows_in))
        };
        let board = self.tasks.clone();
        tokio::select! {
            ended = &mut work => return done(ended).map(Into::into),
            () = context.ct.cancelled() => {}
            () = tokio::time::sleep(fault::within(TASK_AFTER)) => {
                if let Some(task) = board.begin(&owner, cancel.clone(), Timestamp::now()) {
                    let handle = described(&task);
                    tokio::spawn(async move {
                        let result = match done(work.await) {
                            Ok(result) => serde_json::to_string(&result).unwrap_or_default(),
                            Err(_) => "{}".to_owned(),
                        };
                        board.end(&task.id, result, Timestamp::now());
                    });
                    return Ok(CallToolResponse::Task(CreateTaskResult::new(handle)));
                }
                tokio::select! {
                    ended = &mut work => return done(ended).map(Into::into),
                    () = context.ct.cancelled() => {}
                }
            }
        }
        cancel.cancel();
        done(work.await).map(Into::into)
    }
}

/// Describes a task as the protocol does.
fn described(task: &model::Task) -> Task {
    let status = match task.status {
        model::TaskStatus::Working => TaskStatus::Working,
        model::TaskStatus::Completed => TaskStatus::Completed,
        model::TaskStatus::Cancelled => TaskStatus::Cancelled,
    };
    Task::new(task.id.clone(), status, task.created_at.to_string(), task.updated_at.to_string())
        .with_ttl_ms(task.ttl_ms)
        .with_poll_interval_ms(task.poll_interval_ms)
}

impl ServerHandler for Handler {
    fn get_info(&self) -> ServerConfig {
        let implementation =
            Implementation::new(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION")).with_title("PostgreSQL sandboxes");
        ServerConfig::new(capabilities()).with_server_info(implementation).with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let cursor = request.and_then(|request| request.cursor);
        let (tools, next) = page::of(tools(&self.toolsets), cursor.as_deref(), PAGE_MAX)
            .map_err(|failure| ErrorData::invalid_params(failure.message, None))?;
        Ok(ListToolsResult { next_cursor: next, ..ListToolsResult::with_all_items(tools) })
    }

    async fn list_prompts(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        let input = json!({"cursor": request.and_then(|request| request.cursor)});
        let envelope = self.ask("prompts/list", "list_prompts", input, &context).await;
        Ok(ListPromptsResult { result_type: Some(ResultType::COMPLETE), ..answers::result(&envelope)? })
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let input = json!({"name": request.name, "arguments": request.arguments});
        let envelope = self.ask("prompts/get", "get_prompt", input, &context).await;
        let filled: Value = answers::result(&envelope)?;
        let field = |name: &str| filled.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let message = PromptMessage::new_text(Role::User, field("text"));
        Ok(GetPromptResult::new(vec![message]).with_description(field("description")).into())
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let input = json!({"cursor": request.and_then(|request| request.cursor)});
        let envelope = self.ask("resources/list", "list_resources", input, &context).await;
        Ok(ListResourcesResult { result_type: Some(ResultType::COMPLETE), ..answers::result(&envelope)? })
    }

    async fn list_resource_templates(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let input = json!({"cursor": request.and_then(|request| request.cursor)});
        let envelope = self.ask("resources/templates/list", "list_resource_templates", input, &context).await;
        Ok(ListResourceTemplatesResult { result_type: Some(ResultType::COMPLETE), ..answers::result(&envelope)? })
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let envelope = self.ask("resources/read", "read_resource", json!({"uri": request.uri}), &context).await;
        if !envelope.ok {
            return Err(answers::error(&envelope, ErrorCode::RESOURCE_NOT_FOUND));
        }
        let result: ReadResourceResult = answers::result(&envelope)?;
        Ok(ReadResourceResult::new(result.contents).into())
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        let (prompt, template) = match request.r#ref {
            Reference::Prompt(prompt) => (Some(prompt.name), None),
            Reference::Resource(resource) => (None, Some(resource.uri)),
            _ => return Err(ErrorData::invalid_params("`ref` is neither a prompt nor a resource template", None)),
        };
        let (name, value) = (request.argument.name, request.argument.value);
        let input = json!({"prompt": prompt, "uriTemplate": template, "argument": name, "value": value});
        let envelope = self.ask("completion/complete", "complete", input, &context).await;
        let completion: CompletionInfo = answers::result(&envelope)?;
        Ok(CompleteResult::new(completion))
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        let envelope = self.ask("tasks/get", "get_task", json!({"taskId": request.task_id}), &context).await;
        let task: DetailedTask = answers::result(&envelope)?;
        Ok(GetTaskResult::new(task))
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let envelope = self.ask("tasks/cancel", "cancel_task", json!({"taskId": request.task_id}), &context).await;
        answers::result::<Value>(&envelope).map(|_| ())
    }

    async fn call_tool(
        &self,
        call: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let structured =
            context.protocol_version().is_some_and(|v| v.as_str() >= ProtocolVersion::V_2025_06_18.as_str());
        let unknown = find_for(&call.name, "tools/call").is_err();
        let heard = heard(&context);
        let _beat = heard.as_ref().map(PeerProgress::beat);
        let request = self.request("tools/call", &call.name, call.arguments.unwrap_or_default(), heard, &context);
        if !unknown && context.client_capabilities().is_some_and(|client| client.supports_tasks()) {
            return self.call_as_task(request, structured, &context).await;
        }
        let envelope = self.service.call(request).await;
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
        Err(match answers::params_of(&request.method) {
            Some(params) => ErrorData::invalid_params(params, None),
            None => ErrorData::new(ErrorCode::METHOD_NOT_FOUND, "there is no such method", None),
        })
    }
}

fn capabilities() -> ServerCapabilities {
    ServerCapabilities::builder()
        .enable_completions()
        .enable_prompts()
        .enable_resources()
        .enable_tools()
        .enable_tasks()
        .build()
}

/// Returns what tells the client of a request's progress, if it wants to be told.
fn heard(context: &RequestContext<RoleServer>) -> Option<Arc<PeerProgress>> {
    let token = context.meta.get_progress_token()?;
    Some(Arc::new(PeerProgress::new(context.peer.clone(), token)))
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
