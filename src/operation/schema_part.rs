//! What operations about schemas share: which part is meant, and how differences are told within bounds.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::arguments::Whole;
use crate::model::limits::NAME_BYTES_MAX;
use crate::model::{Code, Failure, SchemaFilter, SchemaKind, counted};
use crate::sandbox::schema::{AttributeChange, Change, ChangeKind};

/// Changes that are told unless asked otherwise, and the most that can be asked for.
const CHANGES_DEFAULT: u64 = 50;
const CHANGES_MAX: u64 = 500;
/// The most text of changes in one reply, in bytes; the first change is told whatever it takes.
const CHANGES_BYTES_MAX: usize = 128 << 10;
/// The longest text of one attribute in a reply, in characters.
const SHOWN_CHARS_MAX: usize = 2000;
/// How much of two long texts is told before the place where they begin to differ, in characters.
const SHOWN_BEFORE_CHARS: usize = 80;
/// Attributes of one object that are told; a table has some hundreds of columns at most.
const ATTRIBUTES_SHOWN_MAX: usize = 200;

/// Which part of a schema is meant. Neither argument: all of it.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct SchemaPart {
    /// Only this schema, by its bare name.
    schema: Option<String>,
    /// Only this table or view and what is its own, by its bare name.
    table: Option<String>,
}

impl SchemaPart {
    pub(super) fn filter(&self) -> SchemaFilter {
        SchemaFilter { schema: self.schema.clone(), table: self.table.clone() }
    }

    pub(super) fn check(&self) -> Result<(), Failure> {
        for (argument, name) in [("schema", &self.schema), ("table", &self.table)] {
            let Some(name) = name else { continue };
            if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains('\0') {
                let text = format!("`{argument}` is not a name of 1 to {NAME_BYTES_MAX} bytes");
                return Err(Failure::new(Code::InvalidArguments, text));
            }
        }
        Ok(())
    }

    /// Warns where nothing is found of a part that is named: it may be there later.
    pub(super) fn missed(&self, is_empty: bool) -> Option<String> {
        let filter = self.filter();
        let is_named = filter != SchemaFilter::default();
        (is_empty && is_named).then(|| format!("nothing is there of {}; {}", shown_part(&filter), self.named_so()))
    }

    /// Refuses where nothing is found of a table that is named.
    ///
    /// # Errors
    /// `undefined_table`.
    pub(super) fn found(&self, is_empty: bool) -> Result<(), Failure> {
        if !is_empty || self.table.is_none() {
            return Ok(());
        }
        let text = format!("there is no {}", shown_part(&self.filter()));
        Err(Failure::new(Code::UndefinedTable, text).hint(self.named_so()))
    }

    fn named_so(&self) -> &'static str {
        match (&self.table, &self.schema) {
            (Some(table), None) if table.contains('.') => {
                "the bare name of a table is wanted; give its schema in `schema`"
            }
            (_, _) => "names are written as the catalogue has them, in the same case and without quotes",
        }
    }

    /// Returns the part that is meant where something else says which part it is of itself.
    ///
    /// # Errors
    /// Fails if both say so, and not the same.
    pub(super) fn agreed(&self, of: &SchemaFilter, what: &str, code: Code) -> Result<SchemaFilter, Failure> {
        let own = self.filter();
        if own == SchemaFilter::default() || own == *of {
            return Ok(of.clone());
        }
        let part = shown_part(of);
        Err(Failure::new(code, format!("{what} is of {part}, and another part is asked for"))
            .hint("leave `schema` and `table` out: the same part is compared"))
    }
}

/// Says which part of a schema a filter leaves.
pub(super) fn shown_part(filter: &SchemaFilter) -> String {
    match (&filter.schema, &filter.table) {
        (None, None) => "the whole schema".to_owned(),
        (Some(schema), None) => format!("schema `{}`", schema.escape_debug()),
        (None, Some(table)) => format!("table `{}`", table.escape_debug()),
        (Some(schema), Some(table)) => {
            format!("table `{}` of schema `{}`", table.escape_debug(), schema.escape_debug())
        }
    }
}

/// Returns how many are asked for, of `default` up to `max`, zero only if `zero`.
pub(super) fn limit(asked: Option<Whole>, default: u64, max: u64, min: u64) -> Result<usize, Failure> {
    let Some(asked) = asked else { return Ok(usize::try_from(default).unwrap_or(usize::MAX)) };
    let within = asked.within(min, max).and_then(|n| usize::try_from(n).ok());
    within.ok_or_else(|| {
        Failure::new(Code::InvalidArguments, format!("limit of {} is not between {min} and {max}", asked.shown()))
    })
}

/// Returns how many changes are to be told.
pub(super) fn change_limit(asked: Option<Whole>) -> Result<usize, Failure> {
    limit(asked, CHANGES_DEFAULT, CHANGES_MAX, 1)
}

/// How many objects of one kind differ.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct KindChanges {
    added: usize,
    removed: usize,
    changed: usize,
}

/// One difference.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ToldChange {
    /// What the object is: `table`, `column`, `function` and so on.
    kind: String,
    /// Its name, with its schema.
    name: String,
    /// `added`, `removed` or `changed`; a renamed object is one removed and one added.
    change: String,
    /// The attributes that differ; of an object that is new or gone, all.
    attributes: Vec<ToldAttribute>,
}

/// An attribute that differs. Of long texts, the place where they begin to differ.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ToldAttribute {
    name: String,
    /// Absent if it was not there.
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<String>,
    /// Absent if it is not there any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<String>,
}

/// Differences, as many as fit.
pub(super) struct Told {
    /// By kind.
    pub(super) counts: BTreeMap<String, KindChanges>,
    /// In the order of objects.
    pub(super) changes: Vec<ToldChange>,
    /// How many there are in all.
    pub(super) count: usize,
    /// How many are told.
    pub(super) told: usize,
    /// Whether some are not told.
    pub(super) truncated: bool,
}

impl Told {
    pub(super) fn new(changes: &[Change], limit: usize) -> Self {
        let mut counts: BTreeMap<String, KindChanges> = BTreeMap::new();
        for change in changes {
            let of_kind = counts.entry(change.key.kind.as_str().to_owned()).or_default();
            match change.what {
                ChangeKind::Added => of_kind.added += 1,
                ChangeKind::Removed => of_kind.removed += 1,
                ChangeKind::Changed => of_kind.changed += 1,
            }
        }
        let (mut told, mut bytes) = (Vec::new(), 0);
        for change in changes.iter().take(limit) {
            let change = ToldChange::new(change);
            bytes += change.bytes();
            if bytes > CHANGES_BYTES_MAX && !told.is_empty() {
                break;
            }
            told.push(change);
        }
        Self { counts, truncated: told.len() < changes.len(), count: changes.len(), told: told.len(), changes: told }
    }

    /// Says in one line how much differs from what.
    pub(super) fn summary(&self, from: &str) -> String {
        if self.count == 0 {
            return format!("nothing differs from {from}");
        }
        let more = if self.truncated { format!(", {} told", self.told) } else { String::new() };
        format!("{} from {from}{more}", counted(self.count, "difference", "differences"))
    }
}

impl ToldChange {
    fn new(change: &Change) -> Self {
        let mut attributes: Vec<ToldAttribute> =
            change.attributes.iter().take(ATTRIBUTES_SHOWN_MAX).map(ToldAttribute::new).collect();
        let more = change.attributes.len().saturating_sub(ATTRIBUTES_SHOWN_MAX);
        if more > 0 {
            let text = Some(format!("{more} attributes are not told"));
            attributes.push(ToldAttribute { name: "…".to_owned(), before: None, after: text });
        }
        Self {
            kind: change.key.kind.as_str().to_owned(),
            name: change.key.path(),
            change: change.what.as_str().to_owned(),
            attributes,
        }
    }

    fn bytes(&self) -> usize {
        let of = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let attributes: usize = self.attributes.iter().map(|a| a.name.len() + of(&a.before) + of(&a.after)).sum();
        self.name.len() + attributes
    }
}

impl ToldAttribute {
    fn new(change: &AttributeChange) -> Self {
        let AttributeChange { name, before, after } = change;
        let (before, after) = match (before, after) {
            (Some(before), Some(after)) => {
                let (before, after) = where_they_differ(before, after);
                (Some(before), Some(after))
            }
            (before, after) => (before.as_deref().map(cut), after.as_deref().map(cut)),
        };
        Self { name: name.clone(), before, after }
    }
}

/// Cuts a text that is too long to be told.
pub(super) fn cut(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        None => text.to_owned(),
        Some((at, _)) => {
            let more = text.get(at..).unwrap_or_default().chars().count();
            format!("{}… and {more} more characters", text.get(..at).unwrap_or_default())
        }
    }
}

/// Cuts two texts of which one is too long so that the place where they begin to differ is told.
fn where_they_differ(before: &str, after: &str) -> (String, String) {
    let long = |text: &str| text.chars().nth(SHOWN_CHARS_MAX).is_some();
    if !long(before) && !long(after) {
        return (before.to_owned(), after.to_owned());
    }
    let same = before.chars().zip(after.chars()).take_while(|(a, b)| a == b).count();
    let skipped = same.saturating_sub(SHOWN_BEFORE_CHARS);
    let from = |text: &str| {
        let rest: String = text.chars().skip(skipped).collect();
        if skipped == 0 { cut(&rest) } else { format!("{skipped} characters, the same, then …{}", cut(&rest)) }
    };
    (from(before), from(after))
}

/// Writes counts by kind.
pub(super) fn counts(counts: impl IntoIterator<Item = (SchemaKind, usize)>) -> BTreeMap<String, usize> {
    counts.into_iter().map(|(kind, count)| (kind.as_str().to_owned(), count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::SchemaKey;

    fn change(n: usize, text: &str) -> Change {
        let key = SchemaKey { kind: SchemaKind::Function, schema: "s".to_owned(), name: format!("f{n}()") };
        let body = AttributeChange { name: "body".to_owned(), before: None, after: Some(text.to_owned()) };
        Change { key, what: ChangeKind::Added, attributes: vec![body] }
    }

    #[test]
    fn no_more_changes_are_told_than_are_asked_for_and_all_are_counted() {
        let changes: Vec<Change> = (0..10).map(|n| change(n, "x")).collect();
        for (limit, told, truncated) in [(9, 9, true), (10, 10, false), (11, 10, false)] {
            let it = Told::new(&changes, limit);
            assert_eq!((it.changes.len(), it.told, it.count, it.truncated), (told, told, 10, truncated), "{limit}");
        }
        assert_eq!(change_limit(Some(Whole::from(CHANGES_MAX))).ok(), usize::try_from(CHANGES_MAX).ok());
        for asked in [0, CHANGES_MAX + 1] {
            assert_eq!(change_limit(Some(Whole::from(asked))).unwrap_err().code, Code::InvalidArguments);
        }
        assert_eq!(change_limit(None).ok(), usize::try_from(CHANGES_DEFAULT).ok());
    }

    #[test]
    fn the_text_of_changes_is_bounded_and_the_first_is_told_whatever_it_takes() {
        let changes: Vec<Change> = (0..500).map(|n| change(n, &"x".repeat(SHOWN_CHARS_MAX))).collect();
        let told = Told::new(&changes, 500);
        assert!(
            told.truncated && told.changes.len() == CHANGES_BYTES_MAX / (SHOWN_CHARS_MAX + 10),
            "{}",
            told.changes.len()
        );
        let mut wide = change(0, "x");
        wide.attributes = (0..ATTRIBUTES_SHOWN_MAX + 5)
            .map(|n| AttributeChange { name: n.to_string(), ..wide.attributes[0].clone() })
            .collect();
        let told = Told::new(&[wide], 1);
        assert_eq!(told.changes[0].attributes.len(), ATTRIBUTES_SHOWN_MAX + 1);
        assert_eq!(told.changes[0].attributes.last().unwrap().after.as_deref(), Some("5 attributes are not told"));
    }

    #[test]
    fn of_long_texts_the_place_where_they_differ_is_told() {
        let (before, after) =
            (format!("{}old{}", "é".repeat(3000), "y".repeat(10)), format!("{}new", "é".repeat(3000)));
        let (before, after) = where_they_differ(&before, &after);
        let head = format!("{} characters, the same, then …", 3000 - SHOWN_BEFORE_CHARS);
        for (text, word) in [(&before, "old"), (&after, "new")] {
            assert!(text.starts_with(&head) && text.contains(word), "{text}");
        }
        assert_eq!(cut(&"é".repeat(SHOWN_CHARS_MAX + 3)).chars().filter(|c| *c == 'é').count(), SHOWN_CHARS_MAX);
        assert!(cut(&"é".repeat(SHOWN_CHARS_MAX + 3)).ends_with("… and 3 more characters"));
    }
}
