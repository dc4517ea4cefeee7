//! Shows a sandbox's schema, page by page.

use std::collections::BTreeMap;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::arguments::Whole;
use super::extend_database::missing_target;
use super::schema_entries::{Entry, entries};
use super::schema_part::{SchemaPart, counts, limit};
use super::selector::DatabaseSelector;
use super::{About, Ahead, Asks, Call, Done, Operation, Spec, Toolset};
use crate::admission::{Admissible, Permit};
use crate::model::{Code, Failure, Impact, ObligationKind, SchemaKey, SchemaKind, counted};

/// Entries of a page unless asked otherwise, and the most that can be asked for.
const PAGE_DEFAULT: u64 = 50;
const PAGE_MAX: u64 = 200;
/// The most text of a page, in bytes; its first entry is told whatever it takes.
const PAGE_BYTES_MAX: usize = 96 << 10;

/// Arguments of `describe_schema`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct DescribeSchema {
    #[serde(flatten)]
    database: DatabaseSelector,
    #[serde(flatten)]
    part: SchemaPart,
    /// Where the last page ended.
    cursor: Option<String>,
    /// Entries per page, 1 to 200; default 50. A table is one entry with all that is its own.
    limit: Option<Whole>,
}

/// A page of a schema.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Described {
    database_id: String,
    database_name: String,
    /// How many objects of each kind there are, on all pages.
    counts: BTreeMap<String, usize>,
    /// How many entries there are, on all pages.
    entry_count: usize,
    /// Tables first, then views, functions, types and the rest, each by name.
    entries: Vec<Entry>,
    /// Whether there are more.
    truncated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

impl DescribeSchema {
    fn after(&self) -> Result<Option<SchemaKey>, Failure> {
        let Some(cursor) = &self.cursor else { return Ok(None) };
        read_cursor(cursor).map(Some).ok_or_else(|| {
            Failure::new(Code::InvalidArguments, "`cursor` is not one that was given out")
                .hint("give `nextCursor` of the last page, or leave it out")
        })
    }

    fn page(&self) -> Result<usize, Failure> {
        limit(self.limit, PAGE_DEFAULT, PAGE_MAX, 1)
    }
}

fn write_cursor(key: &SchemaKey) -> String {
    URL_SAFE_NO_PAD.encode(format!("{}\0{}\0{}", key.kind.as_str(), key.schema, key.name))
}

fn read_cursor(text: &str) -> Option<SchemaKey> {
    let text = String::from_utf8(URL_SAFE_NO_PAD.decode(text).ok()?).ok()?;
    let mut parts = text.splitn(3, '\0');
    let (kind, schema, name) = (parts.next()?, parts.next()?, parts.next()?);
    Some(SchemaKey { kind: SchemaKind::parse(kind)?, schema: schema.to_owned(), name: name.to_owned() })
}

impl Admissible for DescribeSchema {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;
}

#[async_trait]
impl Operation for DescribeSchema {
    const SPEC: Spec = Spec {
        name: "describe_schema",
        title: "Describe a schema",
        help: "Shows a sandbox's tables with columns, keys, indexes and triggers, its views, functions, types and all else that \
               a schema is made of, page by page. Narrow it with `schema` and `table`.",
        impact: Impact::Reads,
        meets: &[ObligationKind::ReadOnly],
        toolset: Toolset::Schema,
        idempotent: true,
    };
    type Output = Described;

    fn check(&self) -> Result<(), Failure> {
        self.part.check()?;
        self.after()?;
        self.page().map(drop)
    }

    fn asks(&self) -> Asks {
        Asks { about: About::Sandbox((&self.database).into()), ..Asks::default() }
    }

    async fn foresee(&self, ahead: &Ahead<'_>) -> Result<Vec<String>, Failure> {
        ahead.reads_sandbox().await.map(|()| Vec::new())
    }

    async fn run(permit: Permit<Self>, call: &Call) -> Result<Done<Described>, Failure> {
        let id = permit.grant().target.ok_or_else(missing_target)?;
        let input = permit.input();
        let (after, page) = (input.after()?, input.page()?);
        let read = call.core.schema(&permit, id, &input.part.filter()).await?;
        let all = entries(&read.schema);
        let entry_count = all.len();
        input.part.found(entry_count == 0)?;
        // A schema may be there and be empty.
        let missed = input.part.missed(entry_count == 0);
        let (mut told, mut bytes, mut last) = (Vec::new(), 0, None);
        let order = |key: &SchemaKey| (Entry::place(key.kind), key.clone());
        let left = all.into_iter().filter(|(key, _)| after.as_ref().is_none_or(|after| order(key) > order(after)));
        let mut left = left.peekable();
        while let Some((key, entry)) = left.next_if(|_| told.len() < page) {
            bytes += entry.bytes();
            if bytes > PAGE_BYTES_MAX && !told.is_empty() {
                return Ok(described(&read, call, told, entry_count, last));
            }
            told.push(entry);
            last = Some(key);
        }
        let more = left.peek().is_some();
        Ok(described(&read, call, told, entry_count, last.filter(|_| more)).warn(missed))
    }
}

fn described(
    read: &crate::sandbox::schema::ReadSchema,
    call: &Call,
    entries: Vec<Entry>,
    entry_count: usize,
    more_after: Option<SchemaKey>,
) -> Done<Described> {
    let more = if more_after.is_some() {
        format!(", {} told; more beyond `nextCursor`", entries.len())
    } else {
        String::new()
    };
    Done::new(
        format!("`{}` has {}{more}", call.database, counted(entry_count, "entry", "entries")),
        Described {
            database_id: read.origin.sandbox_id.clone(),
            database_name: read.origin.sandbox_name.clone(),
            counts: counts(read.schema.counts()),
            entry_count,
            entries,
            truncated: more_after.is_some(),
            next_cursor: more_after.as_ref().map(write_cursor),
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_names_any_object() {
        let key = SchemaKey { kind: SchemaKind::View, schema: "a\"\n".to_owned(), name: "x.\\é".to_owned() };
        assert_eq!(read_cursor(&write_cursor(&key)), Some(key));
        for strange in ["", "!", "dGFibGU", "AAAA"] {
            assert_eq!(read_cursor(strange), None, "{strange}");
        }
    }
}
