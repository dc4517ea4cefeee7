//! The names of spans and attributes, and the spans themselves, so that no two places name a thing differently.
//!
//! Names are those of OpenTelemetry's semantic conventions for MCP, GenAI and databases; what they have no word for
//! begins with `pgsandbox.`. No attribute holds SQL text, a literal, a secret or an argument. Span names are from
//! closed sets, so that a collector may group by them.

use tracing::Span;
use tracing::field::Empty;

use crate::model::{Code, Failure, RequestId, Transport};

/// The target of a request's own span.
pub const REQUEST_TARGET: &str = "pgsandbox::request";
/// The MCP method: `tools/call`.
pub const MCP_METHOD_NAME: &str = "mcp.method.name";
/// The MCP session over HTTP.
pub const MCP_SESSION_ID: &str = "mcp.session.id";
/// The protocol revision that client and server agreed on.
pub const MCP_PROTOCOL_VERSION: &str = "mcp.protocol.version";
/// The JSON-RPC request's id.
pub const JSONRPC_REQUEST_ID: &str = "jsonrpc.request.id";
/// The tool that is called.
pub const GEN_AI_TOOL_NAME: &str = "gen_ai.tool.name";
/// `execute_tool` for calls of tools.
pub const GEN_AI_OPERATION_NAME: &str = "gen_ai.operation.name";
/// `pipe` or `tcp`.
pub const NETWORK_TRANSPORT: &str = "network.transport";
/// The failure's code.
pub const ERROR_TYPE: &str = "error.type";
/// `postgresql`.
pub const DB_SYSTEM_NAME: &str = "db.system.name";
/// The statement's leading keywords.
pub const DB_OPERATION_NAME: &str = "db.operation.name";
/// The sandbox's database.
pub const DB_NAMESPACE: &str = "db.namespace";
/// The SQLSTATE of a failure.
pub const DB_RESPONSE_STATUS_CODE: &str = "db.response.status_code";
/// Rows that were returned.
pub const DB_RESPONSE_RETURNED_ROWS: &str = "db.response.returned_rows";
/// The request's id, as audit and error texts show it.
pub const REQUEST_ID: &str = "pgsandbox.request.id";
/// The principal's owner.
pub const OWNER: &str = "pgsandbox.owner";
/// The profile.
pub const PROFILE: &str = "pgsandbox.profile";
/// The sandbox's id.
pub const SANDBOX_ID: &str = "pgsandbox.sandbox.id";
/// The policy that is asked; on a refused request, the policy that refused or set the limit.
pub const POLICY_NAME: &str = "pgsandbox.policy.name";
/// The policy's own code of a refusal, or the kind of its limit.
pub const POLICY_CODE: &str = "pgsandbox.policy.code";
/// The limits a request stood under, each with the policy that set it: `max-rows=100 by row-limit`.
pub const LIMITS: &str = "pgsandbox.limits";
/// `enforce` or `shadow`.
pub const POLICY_MODE: &str = "pgsandbox.policy.mode";
/// What the policy, or all of them, said.
pub const VERDICT: &str = "pgsandbox.verdict";
/// Fuel that an evaluation spent.
pub const POLICY_FUEL: &str = "pgsandbox.policy.fuel";
/// How many statements were classified.
pub const STATEMENT_COUNT: &str = "pgsandbox.statement.count";
/// The statement's shape, hashed.
pub const STATEMENT_FINGERPRINT: &str = "pgsandbox.statement.fingerprint";
/// The statement's class.
pub const STATEMENT_CLASS: &str = "pgsandbox.statement.class";
/// The plan that a step belongs to.
pub const PLAN_NAME: &str = "pgsandbox.plan.name";
/// The major version of the managed cluster.
pub const CLUSTER_MAJOR: &str = "pgsandbox.cluster.major";
/// How many extensions the policies are asked about, one by one.
pub const EXTENSION_COUNT: &str = "pgsandbox.extension.count";
/// The step's name.
pub const STEP_NAME: &str = "pgsandbox.step.name";

/// Opens the span of one request. `method` is MCP's, or `cli`; `operation` must be one of the list, not a caller's
/// own word. Its parent is set by [`super::continue_trace`].
pub fn request(id: RequestId, method: &str, operation: &str, transport: Transport) -> Span {
    let tool = method == "tools/call";
    let network = match transport {
        Transport::Stdio | Transport::Cli | Transport::Internal => "pipe",
        Transport::Http => "tcp",
    };
    let span = tracing::info_span!(
        target: REQUEST_TARGET,
        "request",
        otel.name = format!("{method} {operation}"),
        otel.kind = "server",
        otel.status_code = Empty,
        { MCP_METHOD_NAME } = method,
        { MCP_SESSION_ID } = Empty,
        { MCP_PROTOCOL_VERSION } = Empty,
        { JSONRPC_REQUEST_ID } = Empty,
        { GEN_AI_TOOL_NAME } = Empty,
        { GEN_AI_OPERATION_NAME } = Empty,
        { NETWORK_TRANSPORT } = network,
        { REQUEST_ID } = %id,
        { OWNER } = Empty,
        { PROFILE } = Empty,
        { SANDBOX_ID } = Empty,
        { VERDICT } = Empty,
        { POLICY_NAME } = Empty,
        { POLICY_CODE } = Empty,
        { LIMITS } = Empty,
        { ERROR_TYPE } = Empty,
    );
    if tool {
        span.record(GEN_AI_TOOL_NAME, operation);
        span.record(GEN_AI_OPERATION_NAME, "execute_tool");
    }
    span
}

/// Opens the span in which a request's SQL is read.
pub fn classify() -> Span {
    tracing::info_span!(
        target: "pgsandbox::sql",
        "classify",
        otel.status_code = Empty,
        { STATEMENT_COUNT } = Empty,
        { ERROR_TYPE } = Empty,
    )
}

/// Opens the span of one policy's evaluation.
pub fn policy(name: &str, mode: &'static str) -> Span {
    tracing::info_span!(
        target: "pgsandbox::policy",
        "policy",
        otel.name = format!("policy {name}"),
        otel.status_code = Empty,
        { POLICY_NAME } = name,
        { POLICY_MODE } = mode,
        { POLICY_FUEL } = Empty,
        { VERDICT } = Empty,
        { ERROR_TYPE } = Empty,
    )
}

/// Opens the span of one step of a plan.
pub fn step(plan: &'static str, step: &'static str) -> Span {
    tracing::info_span!(
        target: "pgsandbox::sandbox",
        "step",
        otel.name = format!("{plan} {step}"),
        otel.status_code = Empty,
        { PLAN_NAME } = plan,
        { STEP_NAME } = step,
        { SANDBOX_ID } = Empty,
        { ERROR_TYPE } = Empty,
    )
}

/// Opens the span in which a managed cluster is made or brought up: `init`, `start`.
pub fn cluster(act: &'static str, major: u16) -> Span {
    tracing::info_span!(
        target: "pgsandbox::engine",
        "cluster",
        otel.name = format!("cluster {act}"),
        otel.status_code = Empty,
        { CLUSTER_MAJOR } = major,
        { ERROR_TYPE } = Empty,
    )
}

/// Opens the span in which the policies are asked which of so many extensions they would refuse.
pub fn extensions(count: usize) -> Span {
    tracing::info_span!(target: "pgsandbox::policy", "extensions", { EXTENSION_COUNT } = count)
}

/// Opens the span of one statement. `tag` is its leading keywords and `database` the sandbox's.
pub fn statement(tag: &str, database: &str) -> Span {
    tracing::info_span!(
        target: "pgsandbox::engine",
        "statement",
        // What begins with no keyword has no tag, and a span must have a name.
        otel.name = if tag.is_empty() { "statement" } else { tag },
        otel.kind = "client",
        otel.status_code = Empty,
        { DB_SYSTEM_NAME } = "postgresql",
        { DB_OPERATION_NAME } = tag,
        { DB_NAMESPACE } = database,
        { DB_RESPONSE_STATUS_CODE } = Empty,
        { DB_RESPONSE_RETURNED_ROWS } = Empty,
        { STATEMENT_CLASS } = Empty,
        { STATEMENT_FINGERPRINT } = Empty,
        { ERROR_TYPE } = Empty,
    )
}

/// Says on a span that what it covers failed, and with which code. The failure's text is not for traces.
pub fn failed(span: &Span, failure: &Failure) {
    failed_with(span, failure.code);
    if let Some(sqlstate) = failure.detail.as_ref().and_then(|detail| detail.sqlstate.as_deref()) {
        span.record(DB_RESPONSE_STATUS_CODE, sqlstate);
    }
}

/// The same where no more than the code is known.
pub fn failed_with(span: &Span, code: Code) {
    span.record(ERROR_TYPE, code.as_str());
    span.record("otel.status_code", "ERROR");
}
