//! What an approver is shown of a request: everything that was asked, without passwords, and which policies want it approved.
//!
//! It is kept whole, as whoever approves is to see all of it; what is too long to be read by anybody cannot be approved. In a
//! list long texts are cut, and what is cut is told with its length and digest.

use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::approvals::Asked;
use crate::engine::postgres::{PostgresUrl, UrlOrigin};
use crate::model::{Context, StatementFacts};

/// The longest request that can be approved, as JSON: nobody reads more.
pub(super) const ASKED_BYTES_MAX: usize = 64 << 10;
/// The longest text that is shown whole in a list, in characters.
const SHOWN_CHARS_MAX: usize = 2000;
/// The deepest values that are shown in a list.
const SHOWN_DEPTH_MAX: usize = 8;

/// What of a request is cut where it is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Where it stands, as a JSON pointer.
    pub at: String,
    /// How long the whole is: a text, or a value as JSON.
    pub bytes: usize,
    /// The SHA-256 of the whole, in hexadecimal.
    pub sha256: String,
}

/// Returns what an approver is to judge: facts, and arguments without passwords and data.
pub(super) fn shown_request(asked: &Asked<'_>) -> Value {
    let context = asked.context;
    let source = context.clone_source.as_ref().map(|source| {
        json!({
            "name": source.name, "host": source.host, "port": source.port, "database": source.database,
            "user": source.user, "production": source.production, "schemaOnly": source.schema_only,
            "reason": source.reason,
        })
    });
    let arguments: Map<String, Value> = asked
        .arguments
        .iter()
        .filter(|(_, value)| !value.is_null())
        .map(|(key, value)| (key.clone(), shown_value(value)))
        .collect();
    let said = asked.demanded.said.iter().map(|(policy, text)| json!({"policy": policy, "text": text}));
    let said = Some(Value::Array(said.collect())).filter(|said| *said != json!([]));
    let mut what = json!({
        "operation": context.operation,
        "subject": context.principal.subject,
        "owner": context.principal.owner,
        "groupOwner": context.group_owner,
        "transport": context.principal.transport.as_str(),
        "profile": context.server.as_ref().map(|server| &server.profile),
        "databaseId": context.sandbox.as_ref().map(|sandbox| sandbox.id.to_string()),
        "databaseName": context.sandbox.as_ref().map(|sandbox| &sandbox.name),
        "source": source,
        "command": (!context.requested.command.is_empty()).then(|| shown_value(&json!(context.requested.command))),
        "arguments": arguments,
        "statements": shown_statements(context),
        "demandedBy": asked.demanded.policies,
        "said": said,
    });
    if let Some(fields) = what.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    what
}

/// Returns what statements do, in their order, however far behind they stand in the text.
fn shown_statements(context: &Context) -> Option<Vec<String>> {
    let shown = |statement: &StatementFacts| match statement.tag.as_str() {
        "" => statement.class.as_str().to_owned(),
        tag => tag.to_owned(),
    };
    let statements: Vec<String> = context.statements.iter().map(shown).collect();
    (!statements.is_empty()).then_some(statements)
}

/// Returns a value without the passwords of URLs.
fn shown_value(value: &Value) -> Value {
    match value {
        Value::String(text) => Value::String(without_password(text)),
        Value::Array(items) => items.iter().map(shown_value).collect(),
        Value::Object(fields) => {
            Value::Object(fields.iter().map(|(key, value)| (key.clone(), shown_value(value))).collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

/// Cuts long texts, and what lies deep, and returns what was cut.
pub(super) fn cut(value: &mut Value) -> Vec<Cut> {
    let mut all = Vec::new();
    cut_below(value, "", 0, &mut all);
    all
}

fn cut_below(value: &mut Value, at: &str, depth: usize, all: &mut Vec<Cut>) {
    match value {
        Value::String(text) => {
            let Some((end, _)) = text.char_indices().nth(SHOWN_CHARS_MAX) else { return };
            all.push(Cut { at: at.to_owned(), bytes: text.len(), sha256: sha256(text) });
            *text = format!("{}… ({} bytes)", text.get(..end).unwrap_or_default(), text.len());
        }
        Value::Array(_) | Value::Object(_) if depth >= SHOWN_DEPTH_MAX => {
            let whole = value.to_string();
            all.push(Cut { at: at.to_owned(), bytes: whole.len(), sha256: sha256(&whole) });
            *value = Value::String(format!("… ({} bytes)", whole.len()));
        }
        Value::Array(items) => {
            for (number, item) in items.iter_mut().enumerate() {
                cut_below(item, &format!("{at}/{number}"), depth + 1, all);
            }
        }
        Value::Object(fields) => {
            for (key, value) in fields.iter_mut() {
                let key = key.replace('~', "~0").replace('/', "~1");
                cut_below(value, &format!("{at}/{key}"), depth + 1, all);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn sha256(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns a database's URL as it is connected to, without its password; of one that is not read, its scheme and length alone.
fn without_password(text: &str) -> String {
    let scheme = ["postgres://", "postgresql://"]
        .into_iter()
        .find(|scheme| text.trim_start().get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme)));
    let Some(scheme) = scheme else { return text.to_owned() };
    PostgresUrl::parse(text, UrlOrigin::Caller)
        .map_or_else(|_| format!("{scheme}… (no URL that can be read: {} bytes)", text.len()), |url| url.redacted())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_shown_without_its_password() {
        for (url, shown) in [
            ("postgresql://ana:pw@db.internal:5432/app", "postgresql://ana@db.internal:5432/app"),
            ("postgres://h/d?user=a&password=b", "postgresql://a@h:5432/d"),
            ("postgresql://u@h:55/d?password=my@SECRET", "postgresql://u@h:55/d"),
            ("postgresql://u@h:55/d?application_name=x@harmless:5432/other", "postgresql://u@h:55/d"),
            (
                "POSTGRES://ana:p%40w@h/app?password=x&sslmode=require",
                "postgres://… (no URL that can be read: 53 bytes)",
            ),
            (" postgres://a:b@c@h/d", "postgres://… (no URL that can be read: 21 bytes)"),
            ("select 'postgres://'", "select 'postgres://'"),
        ] {
            assert_eq!(without_password(url), shown, "{url}");
        }
    }

    #[test]
    fn what_is_cut_in_a_list_is_told_with_its_place_length_and_digest() {
        let long = "é".repeat(SHOWN_CHARS_MAX + 1);
        let mut deep = json!({"last": 1});
        (0..SHOWN_DEPTH_MAX - 2).for_each(|_| deep = json!([deep]));
        let mut shown = json!({"a/b": [long, "é".repeat(SHOWN_CHARS_MAX)], "deep": [deep]});
        let cuts = cut(&mut shown);
        assert_eq!(cuts.len(), 2, "{cuts:?}");
        assert_eq!((cuts[0].at.as_str(), cuts[0].bytes, &cuts[0].sha256), ("/a~1b/0", 4002, &sha256(&long)));
        assert_eq!((cuts[1].at.as_str(), cuts[1].bytes), ("/deep/0/0/0/0/0/0/0", 10));
        let text = shown["a/b"][0].as_str().unwrap();
        assert_eq!(text.chars().take_while(|c| *c == 'é').count(), SHOWN_CHARS_MAX);
        assert!(text.ends_with("… (4002 bytes)"), "{text}");
        assert_eq!(cut(&mut json!({"a": "short", "b": [1, null]})), []);
    }
}
