//! Answers to methods other than `tools/call`: what an operation returned, as the protocol writes it.

use rmcp::ErrorData;
use rmcp::model::ErrorCode;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::operation::Envelope;

/// What the protocol calls any failure that is none of its own.
const SERVER_ERROR: ErrorCode = ErrorCode(-32000);

/// Reads an operation's result as a result of the protocol. The operation's own fields are named as the protocol names them.
///
/// # Errors
/// Fails as the operation did; its envelope is in the error's data.
pub(super) fn result<T: DeserializeOwned>(envelope: &Envelope) -> Result<T, ErrorData> {
    let Some(result) = &envelope.result else { return Err(error(envelope, ErrorCode::INVALID_PARAMS)) };
    serde_json::from_value(result.clone())
        .map_err(|_| ErrorData::internal_error("the result cannot be written as the protocol wants it", None))
}

/// Returns an operation's failure as an error of the protocol; `missing` is the code for what is not there.
pub(super) fn error(envelope: &Envelope, missing: ErrorCode) -> ErrorData {
    let code = envelope.errors.first().map(|error| error.code.as_str()).unwrap_or_default();
    let code = match code {
        "invalid_arguments"
        | "invalid_artifact_name"
        | "unknown_profile"
        | "database_not_found"
        | "snapshot_not_found"
        | "template_not_found" => missing,
        "unknown_operation" => ErrorCode::INVALID_PARAMS,
        _ => SERVER_ERROR,
    };
    ErrorData::new(code, envelope.summary.clone(), Some(envelope.to_json()))
}

/// Says what a method's parameters are, for one whose parameters could not be read.
pub(super) fn params_of(method: &str) -> Option<&'static str> {
    Some(match method {
        "tools/call" => "`params` takes `name`, a string, and `arguments`, an object",
        "tools/list" | "prompts/list" | "resources/list" | "resources/templates/list" => {
            "`params` takes `cursor`, a string"
        }
        "prompts/get" => "`params` takes `name`, a string, and `arguments`, an object of strings",
        "resources/read" => "`params` takes `uri`, a string",
        "completion/complete" => {
            "`params` takes `ref`, a prompt or a resource template, and `argument` with `name` and `value`"
        }
        "tasks/get" | "tasks/cancel" => "`params` takes `taskId`, a string",
        _ => return None,
    })
}

/// Returns an object without its nulls.
pub(super) fn object(value: Value) -> serde_json::Map<String, Value> {
    match value {
        Value::Object(object) => object.into_iter().filter(|(_, value)| !value.is_null()).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => serde_json::Map::new(),
    }
}
