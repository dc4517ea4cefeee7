//! Says how one schema differs from another: what was added, removed and changed, and each changed attribute before and after.
//!
//! A renamed object is one removed and one added. Columns of a table that is new or gone are told with it.

use std::collections::{BTreeMap, BTreeSet};

use super::digest::{SchemaDigest, told_as};
use crate::model::{Schema, SchemaKey, SchemaKind, SchemaObject};

/// The attribute that lists a table's columns in order.
const COLUMN_ORDER: &str = "column order";

/// What became of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ChangeKind {
    /// It is new.
    Added,
    /// It is gone.
    Removed,
    /// It is another.
    Changed,
}

impl ChangeKind {
    /// Returns the word callers see.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Removed => "removed",
            Self::Changed => "changed",
        }
    }
}

/// One difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Of which object.
    pub key: SchemaKey,
    /// What became of it.
    pub what: ChangeKind,
    /// Its attributes that differ; of one that is new or gone, all. None where only fingerprints are known.
    pub attributes: Vec<AttributeChange>,
}

/// An attribute that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttributeChange {
    /// Its name.
    pub name: String,
    /// What it was, if it was there.
    pub before: Option<String>,
    /// What it is, if it is there.
    pub after: Option<String>,
}

/// Returns what is different in `after`, in the order of objects.
pub fn compare(before: &Schema, after: &Schema) -> Vec<Change> {
    let keys: BTreeSet<&SchemaKey> = before.objects().iter().chain(after.objects()).map(|object| &object.key).collect();
    let mut changes: BTreeMap<SchemaKey, Change> = BTreeMap::new();
    for key in keys {
        let (was, is) = (before.find(key), after.find(key));
        let what = match (was, is) {
            (None, Some(_)) => ChangeKind::Added,
            (Some(_), None) => ChangeKind::Removed,
            (Some(was), Some(is)) if was.attributes != is.attributes => ChangeKind::Changed,
            (Some(_), Some(_)) | (None, None) => continue,
        };
        let attributes = attributes(was, is);
        if attributes.is_empty() && what == ChangeKind::Changed {
            continue;
        }
        changes.insert(key.clone(), Change { key: key.clone(), what, attributes });
    }
    fold_columns(&mut changes, before, after);
    changes.into_values().collect()
}

/// Returns which objects are different where of those before only fingerprints are known, by kind and name with schema.
pub fn compare_fingerprints(before: &BTreeMap<(SchemaKind, String), String>, after: &SchemaDigest) -> Vec<Change> {
    let after: BTreeMap<(SchemaKind, String), &String> =
        after.fingerprints.iter().map(|(key, print)| ((key.kind, key.path()), print)).collect();
    let keys: BTreeSet<&(SchemaKind, String)> = before.keys().chain(after.keys()).collect();
    let change = |named: &(SchemaKind, String)| {
        let what = match (before.get(named), after.get(named)) {
            (None, Some(_)) => ChangeKind::Added,
            (Some(_), None) => ChangeKind::Removed,
            (Some(was), Some(is)) if was != *is => ChangeKind::Changed,
            (Some(_), Some(_)) | (None, None) => return None,
        };
        let (kind, name) = named.clone();
        Some(Change { key: SchemaKey { kind, schema: String::new(), name }, what, attributes: Vec::new() })
    };
    keys.into_iter().filter_map(change).collect()
}

fn attributes(was: Option<&SchemaObject>, is: Option<&SchemaObject>) -> Vec<AttributeChange> {
    let list = |object: Option<&SchemaObject>| object.map(|object| object.attributes.clone()).unwrap_or_default();
    let (was_all, is_all) = (list(was), list(is));
    let mut names: Vec<&String> = was_all.iter().map(|(name, _)| name).collect();
    names.extend(is_all.iter().map(|(name, _)| name).filter(|name| !was_all.iter().any(|(known, _)| known == *name)));
    let of = |object: Option<&SchemaObject>, name: &str| object.and_then(|o| o.attribute(name)).map(str::to_owned);
    names
        .into_iter()
        .map(|name| AttributeChange { name: name.clone(), before: of(was, name), after: of(is, name) })
        .filter(|change| change.before != change.after && !only_more_columns(change))
        .collect()
}

/// Returns whether the columns that were there before and after are in the same order: what came and went is told by itself.
fn only_more_columns(change: &AttributeChange) -> bool {
    let (COLUMN_ORDER, Some(before), Some(after)) = (change.name.as_str(), &change.before, &change.after) else {
        return false;
    };
    let (before, after) = (list(before), list(after));
    let common =
        |of: &[&str], other: &[&str]| of.iter().filter(|name| other.contains(name)).map(|n| (*n).to_owned()).collect();
    let (was, is): (Vec<String>, Vec<String>) = (common(&before, &after), common(&after, &before));
    was == is
}

/// Splits a list of names at commas outside of quotes.
fn list(text: &str) -> Vec<&str> {
    let mut quoted = false;
    let outside = |c: char| {
        quoted ^= c == '"';
        c == ',' && !quoted
    };
    text.split(outside).map(str::trim_start).collect()
}

/// Tells the columns of a table that is new or gone with the table.
fn fold_columns(changes: &mut BTreeMap<SchemaKey, Change>, before: &Schema, after: &Schema) {
    let columns: Vec<SchemaKey> = changes.keys().filter(|key| key.kind == SchemaKind::Column).cloned().collect();
    for key in columns {
        let side = if after.find(&key).is_some() { after } else { before };
        let Some(object) = side.find(&key) else { continue };
        let relation = told_as(side, object);
        let short = object.of.as_ref().and_then(|of| key.name.strip_prefix(of.as_str())?.strip_prefix('.'));
        let what = changes.get(&key).map(|change| change.what);
        let (Some(short), Some(table)) = (short, changes.get_mut(&relation)) else { continue };
        if relation == key || table.what == ChangeKind::Changed || what != Some(table.what) {
            continue;
        }
        let text = in_a_line(object);
        let (before, after) = if table.what == ChangeKind::Added { (None, Some(text)) } else { (Some(text), None) };
        table.attributes.push(AttributeChange { name: format!("column {short}"), before, after });
        changes.remove(&key);
    }
}

/// Writes a column in a line: its type, then each further attribute by name.
pub fn in_a_line(column: &SchemaObject) -> String {
    let words = column.attributes.iter().map(|(name, value)| match name.as_str() {
        "type" | "nullability" => value.clone(),
        name => format!("{name} {value}"),
    });
    words.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(kind: SchemaKind, name: &str, attributes: &[(&str, &str)]) -> SchemaObject {
        let attributes = attributes.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let of = name.split_once('.').map(|(of, _)| of.to_owned());
        SchemaObject { key: SchemaKey { kind, schema: "s".to_owned(), name: name.to_owned() }, of, attributes }
    }

    fn table(order: &str) -> SchemaObject {
        object(SchemaKind::Table, "t", &[(COLUMN_ORDER, order)])
    }

    fn told(before: Vec<SchemaObject>, after: Vec<SchemaObject>) -> Vec<String> {
        let tell = |change: Change| {
            let attributes: Vec<String> = change
                .attributes
                .iter()
                .map(|a| format!("{}: {:?} -> {:?}", a.name, a.before.as_deref(), a.after.as_deref()))
                .collect();
            format!(
                "{} {} {} [{}]",
                change.what.as_str(),
                change.key.kind.as_str(),
                change.key.path(),
                attributes.join("; ")
            )
        };
        compare(&Schema::new(before), &Schema::new(after)).into_iter().map(tell).collect()
    }

    #[test]
    fn a_changed_attribute_is_told_before_and_after() {
        let column = |kind: &str| object(SchemaKind::Column, "t.n", &[("type", kind)]);
        assert_eq!(
            told(vec![table("n"), column("integer")], vec![table("n"), column("bigint")]),
            ["changed column s.t.n [type: Some(\"integer\") -> Some(\"bigint\")]"]
        );
    }

    #[test]
    fn columns_of_a_new_table_are_told_with_it() {
        let column = object(SchemaKind::Column, "t.n", &[("type", "integer"), ("default", "1")]);
        assert_eq!(
            told(vec![], vec![table("n"), column]),
            ["added table s.t [column order: None -> Some(\"n\"); column n: None -> Some(\"integer, default 1\")]"]
        );
    }

    #[test]
    fn a_column_more_is_no_other_order_and_an_exchange_is() {
        let column = |name: &str| object(SchemaKind::Column, name, &[("type", "integer")]);
        assert_eq!(
            told(
                vec![table("a, b"), column("t.a")],
                vec![table("a, \"x, y\", b"), column("t.a"), column("t.\"x, y\"")]
            ),
            ["added column s.t.\"x, y\" [type: None -> Some(\"integer\")]"]
        );
        let changed = told(vec![table("a, b")], vec![table("b, a")]);
        assert_eq!(changed, ["changed table s.t [column order: Some(\"a, b\") -> Some(\"b, a\")]"]);
    }
}
