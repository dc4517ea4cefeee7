//! A schema as people look at it: a table is one entry with its columns, keys, indexes, triggers and policies.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::Serialize;

use super::schema_part::cut;
use crate::model::{Schema, SchemaKey, SchemaKind, SchemaObject, schema_name};

/// One entry.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Entry {
    /// What it is: `table`, `view`, `function`, `type` and so on.
    kind: String,
    /// Its name, with its schema.
    name: String,
    /// In order; of tables and views.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    columns: Vec<ColumnEntry>,
    /// The definition of the primary key.
    #[serde(skip_serializing_if = "Option::is_none")]
    primary_key: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    foreign_keys: Vec<Defined>,
    /// Unique, check and exclusion constraints.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    constraints: Vec<Defined>,
    /// Indexes that no constraint stands for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    indexes: Vec<Defined>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    triggers: Vec<Defined>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    policies: Vec<Defined>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rules: Vec<Defined>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    statistics: Vec<Defined>,
    /// All else that is known of it and not as usual.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    attributes: BTreeMap<String, String>,
}

/// A column.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ColumnEntry {
    name: String,
    #[serde(rename = "type")]
    of_type: String,
    nullable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    default: Option<String>,
    /// All else that is known of it and not as usual.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    attributes: BTreeMap<String, String>,
}

/// Something with a definition.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Defined {
    name: String,
    definition: String,
}

/// Kinds that are told first, in this order.
const FIRST: [SchemaKind; 5] =
    [SchemaKind::Table, SchemaKind::View, SchemaKind::MaterializedView, SchemaKind::Function, SchemaKind::Type];
/// Attributes that columns tell by themselves.
const OF_COLUMNS: [&str; 3] = ["type", "nullability", "default"];

/// Returns every entry, in order, with the object that it is of.
pub(super) fn entries(schema: &Schema) -> Vec<(SchemaKey, Entry)> {
    let mut own: BTreeMap<(&str, &str), Vec<&SchemaObject>> = BTreeMap::new();
    let mut found = Vec::new();
    for object in schema.objects() {
        match (&object.of, is_own(object.key.kind)) {
            (Some(of), true) => own.entry((&object.key.schema, of)).or_default().push(object),
            (_, _) => found.push(object),
        }
    }
    let mut entries: Vec<(SchemaKey, Entry)> = Vec::new();
    for object in found {
        let mut entry = Entry::new(object);
        if is_relation(object.key.kind)
            && let Some(own) = own.remove(&(object.key.schema.as_str(), object.key.name.as_str()))
        {
            entry.take(object, own);
        }
        entries.push((object.key.clone(), entry));
    }
    // What is of a table in another schema, statistics for instance, stands by itself.
    entries.extend(own.into_values().flatten().map(|object| (object.key.clone(), Entry::new(object))));
    entries.sort_by(|(a, _), (b, _)| (Entry::place(a.kind), a).cmp(&(Entry::place(b.kind), b)));
    entries
}

fn is_relation(kind: SchemaKind) -> bool {
    matches!(kind, SchemaKind::Table | SchemaKind::View | SchemaKind::MaterializedView)
}

/// Returns whether objects of a kind are told with their table. A sequence is told by itself: it may be used by itself.
fn is_own(kind: SchemaKind) -> bool {
    matches!(
        kind,
        SchemaKind::Column
            | SchemaKind::Constraint
            | SchemaKind::Index
            | SchemaKind::Trigger
            | SchemaKind::Policy
            | SchemaKind::Rule
            | SchemaKind::Statistics
    )
}

impl Entry {
    /// Returns where entries of a kind stand.
    pub(super) fn place(kind: SchemaKind) -> usize {
        FIRST.iter().position(|first| *first == kind).unwrap_or(FIRST.len())
    }

    fn new(object: &SchemaObject) -> Self {
        // A body is as long as it likes, and is had by itself where it is wanted.
        let told =
            |name: &str| !matches!((object.key.kind, name), (SchemaKind::Function, "body") | (_, "column order"));
        let mut attributes = rest(object, &[]);
        attributes.retain(|name, _| told(name));
        if let Some(body) = object.attribute("body").filter(|_| object.key.kind == SchemaKind::Function) {
            attributes.insert("body bytes".to_owned(), body.len().to_string());
        }
        Self { kind: object.key.kind.as_str().to_owned(), name: object.key.path(), attributes, ..Self::default() }
    }

    /// Takes in what is a table's own.
    fn take(&mut self, relation: &SchemaObject, own: Vec<&SchemaObject>) {
        let of_constraints: BTreeSet<String> = own
            .iter()
            .filter(|object| object.key.kind == SchemaKind::Index && object.attribute("constraint").is_some())
            .map(|object| object.key.name.clone())
            .collect();
        let mut columns = Vec::new();
        for object in own {
            let name = object.key.name.strip_prefix(&relation.key.name).and_then(|rest| rest.strip_prefix('.'));
            let name = name.unwrap_or(&object.key.name).to_owned();
            let kind = object.key.kind;
            let of_constraint = kind == SchemaKind::Index && of_constraints.contains(&object.key.name);
            if kind == SchemaKind::Column {
                columns.push(ColumnEntry::new(name, object));
            } else if kind == SchemaKind::Constraint {
                self.take_constraint(name, object);
            } else if !of_constraint {
                let list = if kind == SchemaKind::Index {
                    &mut self.indexes
                } else if kind == SchemaKind::Trigger {
                    &mut self.triggers
                } else if kind == SchemaKind::Policy {
                    &mut self.policies
                } else if kind == SchemaKind::Rule {
                    &mut self.rules
                } else {
                    &mut self.statistics
                };
                list.push(Defined { name, definition: definition(object) });
            }
        }
        let order = relation.attribute("column order").unwrap_or_default();
        let place = |name: &str| column_place(order, name);
        columns.sort_by_key(|column| place(&column.name));
        self.columns = columns;
    }

    fn take_constraint(&mut self, name: String, constraint: &SchemaObject) {
        let said = constraint.attribute("definition").unwrap_or_default();
        if said.starts_with("PRIMARY KEY") {
            self.primary_key = Some(said.to_owned());
        } else if said.starts_with("FOREIGN KEY") {
            self.foreign_keys.push(Defined { name, definition: definition(constraint) });
        } else {
            self.constraints.push(Defined { name, definition: definition(constraint) });
        }
    }

    /// Returns about how much text is in it.
    pub(super) fn bytes(&self) -> usize {
        let map = |map: &BTreeMap<String, String>| {
            map.iter().map(|(name, value)| name.len() + value.len() + 6).sum::<usize>()
        };
        let column = |c: &ColumnEntry| {
            c.name.len() + c.of_type.len() + c.default.as_ref().map_or(0, String::len) + map(&c.attributes) + 40
        };
        let lists = [&self.foreign_keys, &self.constraints, &self.indexes, &self.triggers];
        let lists = lists.into_iter().chain([&self.policies, &self.rules, &self.statistics]).flatten();
        let lists: usize = lists.map(|defined| defined.name.len() + defined.definition.len() + 28).sum();
        let columns: usize = self.columns.iter().map(column).sum();
        self.name.len()
            + self.primary_key.as_ref().map_or(0, String::len)
            + lists
            + columns
            + map(&self.attributes)
            + 60
    }
}

/// Returns where a column stands in the list of its table's; of a view's, whose list is its definition, by name.
fn column_place(order: &str, name: &str) -> usize {
    let mut quoted = false;
    let outside = |c: char| {
        quoted ^= c == '"';
        c == ',' && !quoted
    };
    // Keywords are quoted in the list and not in names.
    let same = |listed: &str| {
        let listed = listed.trim_start();
        listed == name
            || listed.strip_prefix('"').and_then(|l| l.strip_suffix('"')).is_some_and(|l| schema_name(l) == name)
    };
    order.split(outside).position(same).unwrap_or(usize::MAX)
}

impl ColumnEntry {
    fn new(name: String, column: &SchemaObject) -> Self {
        let mut attributes = rest(column, &OF_COLUMNS);
        let nullability = column.attribute("nullability");
        if let Some(more) = nullability.filter(|word| *word != "not null") {
            attributes.insert("nullability".to_owned(), more.to_owned());
        }
        Self {
            name,
            of_type: column.attribute("type").unwrap_or_default().to_owned(),
            nullable: nullability.is_none(),
            default: column.attribute("default").map(cut),
            attributes,
        }
    }
}

fn rest(object: &SchemaObject, but: &[&str]) -> BTreeMap<String, String> {
    let told = object.attributes.iter().filter(|(name, _)| !but.contains(&name.as_str()));
    told.map(|(name, value)| (name.clone(), cut(value))).collect()
}

/// Writes all that is known of an object in a line, its definition first.
fn definition(object: &SchemaObject) -> String {
    let own = object.attribute("definition").map(str::to_owned);
    let others = object.attributes.iter().filter(|(name, _)| name != "definition");
    let others = others.map(|(name, value)| format!("{name}: {value}"));
    cut(&own.into_iter().chain(others).collect::<Vec<_>>().join("; "))
}
