//! Reads the digest that a schema is compared with: the object that `schema_digest` gave, its whole reply, either as text, or
//! the handle under which the schema is kept.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::model::{Code, Failure, SchemaFilter, SchemaKind};
use crate::sandbox::schema::{DIGEST_VERSION, HANDLE_HEAD, is_checksum, is_handle};

/// The deepest text in text: a reply as text, and the object in it as text.
const TEXTS_MAX: usize = 3;

/// A digest that was sent back.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BaseDigest {
    /// Where its schema may still be kept.
    pub(super) handle: Option<String>,
    /// None if only a handle was given.
    pub(super) sent: Option<SentDigest>,
}

/// What was sent of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SentDigest {
    pub(super) checksum: String,
    pub(super) filter: SchemaFilter,
    /// By kind and name with schema.
    pub(super) fingerprints: BTreeMap<(SchemaKind, String), String>,
    /// Whether those are all.
    pub(super) complete: bool,
}

impl BaseDigest {
    /// Reads what was given.
    ///
    /// # Errors
    /// `invalid_base_digest`, or `schema_digest_version_mismatch`.
    pub(super) fn read(given: &Value) -> Result<Self, Failure> {
        let mut object = given.clone();
        for _ in 0..TEXTS_MAX {
            object = match object {
                Value::String(text) => match text.trim() {
                    handle if is_handle(handle) => return Ok(Self { handle: Some(handle.to_owned()), sent: None }),
                    handle if handle.starts_with(HANDLE_HEAD) => return Err(not_kept()),
                    checksum if is_checksum(checksum) => {
                        return Err(invalid(
                            "`baseDigest` is a bare checksum, which does not say of which version it is",
                        ));
                    }
                    json => {
                        serde_json::from_str(json).map_err(|_| invalid("`baseDigest` is not JSON, nor a handle"))?
                    }
                },
                Value::Object(mut reply) if !reply.contains_key("checksum") && reply.contains_key("result") => {
                    reply.remove("result").unwrap_or_default()
                }
                Value::Object(_) => break,
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => {
                    return Err(invalid("`baseDigest` is no object"));
                }
            };
        }
        read_object(&object)
    }
}

fn read_object(object: &Value) -> Result<BaseDigest, Failure> {
    let Some(version) = object.get("version") else {
        return Err(invalid("`baseDigest` has no `version`"));
    };
    let version = version.as_u64().ok_or_else(|| invalid("`version` of `baseDigest` is no whole number"))?;
    if version != u64::from(DIGEST_VERSION) {
        let text =
            format!("the base digest is of version {version}, and this program's are of version {DIGEST_VERSION}");
        return Err(Failure::new(Code::SchemaDigestVersionMismatch, text).hint("make another with `schema_digest`"));
    }
    let checksum = object.get("checksum").and_then(Value::as_str).filter(|text| is_checksum(text));
    let checksum = checksum.ok_or_else(|| invalid("`checksum` of `baseDigest` is not 64 hexadecimal digits"))?;
    let text = |name: &str| object.get(name).and_then(Value::as_str).map(str::to_owned);
    let handle = text("handle").filter(|handle| is_handle(handle));
    let mut fingerprints = BTreeMap::new();
    let objects = object.get("objects").and_then(Value::as_object);
    for (kind, named) in objects.into_iter().flatten() {
        let kind =
            SchemaKind::parse(kind).ok_or_else(|| invalid("`objects` of `baseDigest` has a kind that there is not"))?;
        let named = named
            .as_object()
            .ok_or_else(|| invalid("`objects` of `baseDigest` are not fingerprints by kind and name"))?;
        for (name, print) in named {
            let print = print.as_str().ok_or_else(|| invalid("a fingerprint in `baseDigest` is no text"))?;
            fingerprints.insert((kind, name.clone()), print.to_owned());
        }
    }
    let complete = objects.is_some() && object.get("truncated").and_then(Value::as_bool) == Some(false);
    let filter = SchemaFilter { schema: text("schema"), table: text("table") };
    Ok(BaseDigest { handle, sent: Some(SentDigest { checksum: checksum.to_owned(), filter, fingerprints, complete }) })
}

/// Nothing is kept under the handle that was given.
pub(super) fn not_kept() -> Failure {
    Failure::new(Code::InvalidBaseDigest, "no digest is kept under this handle, or not any more")
        .hint("digests are kept for a day and not without bound; a snapshot stays: `create_schema_snapshot`")
}

fn invalid(text: &str) -> Failure {
    Failure::new(Code::InvalidBaseDigest, text).hint(
        "give the `result` of a `schema_digest` call as it came, or its `handle`; or name a snapshot with `snapshotName`",
    ).naming(&["snapshotName"])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const CHECKSUM: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn object() -> Value {
        json!({"version": 1, "checksum": CHECKSUM, "objects": {"table": {"public.t": "ab"}}, "truncated": false})
    }

    fn refused(given: &Value) -> Code {
        BaseDigest::read(given).unwrap_err().code
    }

    #[test]
    fn an_object_a_reply_and_either_as_text_are_the_same() {
        let expected = BaseDigest::read(&object()).unwrap();
        let reply = json!({"ok": true, "result": object()});
        let twice = json!({"ok": true, "result": object().to_string()});
        for given in [reply.clone(), json!(object().to_string()), json!(reply.to_string()), json!(twice.to_string())] {
            assert_eq!(BaseDigest::read(&given).unwrap(), expected, "{given}");
        }
    }

    #[test]
    fn what_does_not_say_its_version_is_refused() {
        let mut bare = object();
        bare.as_object_mut().unwrap().remove("version");
        let deep = json!(json!(json!(json!(object().to_string()).to_string()).to_string()).to_string());
        for given in [json!(CHECKSUM), bare, json!(""), json!("{}"), json!([]), json!(7), json!({"result": 1}), deep] {
            assert_eq!(refused(&given), Code::InvalidBaseDigest, "{given}");
        }
    }

    #[test]
    fn another_version_is_another_code() {
        for version in [0, 2, 99] {
            let given = json!({"version": version, "checksum": CHECKSUM});
            assert_eq!(refused(&given), Code::SchemaDigestVersionMismatch);
        }
    }

    #[test]
    fn what_is_no_handle_that_was_ever_given_is_said_not_to_be_kept() {
        for given in ["digest-nosuch", "digest-", "digest-0123456789abcdef01234567\u{0}"] {
            let failure = BaseDigest::read(&json!(given)).unwrap_err();
            assert_eq!(failure.code, Code::InvalidBaseDigest);
            assert!(failure.message.contains("no digest is kept"), "{failure:?}");
        }
    }

    #[test]
    fn a_handle_is_enough() {
        let handle = format!("digest-{}", &CHECKSUM[..24]);
        let read = BaseDigest::read(&json!(handle)).unwrap();
        assert_eq!((read.handle, read.sent), (Some(handle), None));
    }
}
