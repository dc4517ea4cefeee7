//! The envelope around every result: what agents, scripts and people get, on every edge alike.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::schema::{JsonObject, object_schema};
use crate::admission::AppliedLimit;
use crate::model::{Failure, ProgramOutput, RequestId, Scope};

/// What an operation hands back when it succeeds.
#[derive(Debug)]
pub struct Done<T> {
    /// One line for people.
    pub summary: String,
    /// For the caller to read; never a reason to refuse.
    pub warnings: Vec<String>,
    /// The result.
    pub result: T,
}

impl<T> Done<T> {
    /// Wraps a result with its one-line summary.
    pub fn new(summary: impl Into<String>, result: T) -> Self {
        Self { summary: summary.into(), warnings: Vec::new(), result }
    }

    /// Adds warnings.
    #[must_use]
    pub fn warn(mut self, warnings: impl IntoIterator<Item = String>) -> Self {
        self.warnings.extend(warnings);
        self
    }
}

/// The reply to one call. `ok` is whether `errors` is empty.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Envelope {
    /// Whether the call did what was asked.
    pub ok: bool,
    /// One line for people.
    pub summary: String,
    /// What to know, though the call succeeded.
    pub warnings: Vec<String>,
    /// What went wrong; empty if `ok`.
    pub errors: Vec<EnvelopeError>,
    /// Handles under which more detail can be asked for.
    pub detail_handles: Vec<String>,
    /// The operation's result; absent unless `ok`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// The id under which audit log, traces and program log know the call.
    pub request_id: String,
    /// Which policies limited the call, where one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyNote>,
}

/// Which policies limited a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyNote {
    /// The set of policies that decided.
    pub generation: String,
    /// The limits that acted, each with who set it.
    pub limits: Vec<LimitNote>,
}

/// A limit that acted on a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LimitNote {
    /// The limit's kind, `max-rows` for instance.
    pub limit: String,
    /// Its effective value.
    pub value: String,
    /// The policy, profile or core that set it.
    pub set_by: String,
}

impl From<&AppliedLimit> for LimitNote {
    fn from(limit: &AppliedLimit) -> Self {
        let scope = match limit.scope {
            None => "",
            Some(Scope::Principal) => " per principal",
            Some(Scope::Group) => " per group owner",
        };
        Self {
            limit: format!("{}{scope}", limit.kind.as_str()),
            value: limit.value.to_string(),
            set_by: limit.set_by.clone(),
        }
    }
}

/// One failure as callers read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EnvelopeError {
    /// The stable code.
    pub code: String,
    /// The code's category.
    pub category: String,
    /// What happened, to what.
    pub message: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The arguments that it names; for the command line.
    #[serde(skip)]
    pub hint_arguments: &'static [&'static str],
    /// Whether the same call may succeed later without a change.
    pub retryable: bool,
    /// When to try again, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// What would have been accepted.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub allowed: Vec<String>,
    /// The policy that refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// The policy's own code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_code: Option<String>,
    /// Postgres' five-character code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sqlstate: Option<String>,
    /// The statement, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub statement_index: Option<u32>,
    /// Where in the statement, in characters from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<u32>,
    /// The line of `sql` where that is, or where the statement begins; from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// What the server was at: line and column of COPY's data, functions with their lines; the innermost first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// Whether earlier statements of the call were committed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub earlier_committed: Option<bool>,
    /// The version that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested_version: Option<String>,
    /// The source's version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_version: Option<String>,
    /// The target's version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_version: Option<String>,
    /// The profile that the request was resolved to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resolved_profile: Option<String>,
    /// Its Postgres version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resolved_postgres_version: Option<String>,
    /// What a command wrote before it was ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<ErrorOutput>,
}

/// What a command wrote before it was ended, bounded and cleared of credentials as in a result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ErrorOutput {
    /// Standard output.
    pub stdout: String,
    /// The error output.
    pub stderr: String,
    /// Whether something of it was left out.
    pub stdout_truncated: bool,
    /// The same of the error output.
    pub stderr_truncated: bool,
    /// Bytes that the command wrote.
    pub stdout_bytes: u64,
    /// The same of the error output.
    pub stderr_bytes: u64,
}

impl From<ProgramOutput> for ErrorOutput {
    fn from(output: ProgramOutput) -> Self {
        let ProgramOutput { stdout, stderr, stdout_truncated, stderr_truncated, stdout_bytes, stderr_bytes } = output;
        Self { stdout, stderr, stdout_truncated, stderr_truncated, stdout_bytes, stderr_bytes }
    }
}

impl From<&Failure> for EnvelopeError {
    fn from(failure: &Failure) -> Self {
        let detail = failure.detail.as_deref().cloned().unwrap_or_default();
        let (policy, policy_code) = failure.policy.clone().unzip();
        Self {
            code: failure.code.as_str().to_owned(),
            category: failure.code.category().to_owned(),
            message: failure.message.clone(),
            hint: failure.hint.clone(),
            hint_arguments: failure.hint_arguments,
            retryable: failure.retryable,
            retry_after_ms: failure.retry_after_ms,
            allowed: failure.allowed.clone(),
            policy,
            policy_code,
            sqlstate: detail.sqlstate,
            statement_index: detail.statement_index,
            position: detail.position,
            line: detail.line,
            context: detail.context,
            earlier_committed: detail.earlier_committed,
            requested_version: detail.requested_version,
            source_version: detail.source_version,
            target_version: detail.target_version,
            resolved_profile: detail.resolved_profile,
            resolved_postgres_version: detail.resolved_postgres_version,
            output: detail.output.map(Into::into),
        }
    }
}

impl Envelope {
    /// Wraps a success.
    pub fn done(request_id: RequestId, done: Done<Value>, policy: Option<PolicyNote>) -> Self {
        Self {
            ok: true,
            summary: done.summary,
            warnings: done.warnings,
            errors: Vec::new(),
            detail_handles: Vec::new(),
            result: Some(done.result),
            request_id: request_id.to_string(),
            policy,
        }
    }

    /// Wraps a failure.
    pub fn failed(request_id: RequestId, failure: &Failure, policy: Option<PolicyNote>) -> Self {
        Self {
            ok: false,
            summary: failure.message.clone(),
            warnings: Vec::new(),
            errors: vec![failure.into()],
            detail_handles: failure.detail.iter().filter_map(|detail| detail.handle.clone()).collect(),
            result: None,
            request_id: request_id.to_string(),
            policy,
        }
    }

    /// Returns the envelope as a JSON object.
    pub fn to_json(&self) -> Value {
        // A struct of strings, numbers and JSON values always serialises.
        serde_json::to_value(self).unwrap_or_else(|_| Value::Object(Map::new()))
    }
}

/// Returns the schema of an envelope around a result of type `T`.
pub fn envelope_schema<T: JsonSchema>() -> JsonObject {
    let mut schema = object_schema::<Envelope>();
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.insert("result".into(), Value::Object(object_schema::<T>()));
    }
    schema
}
