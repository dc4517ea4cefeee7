//! A database's schema as a list of objects, each with its attributes as text: what is described, digested, compared and kept.
//!
//! The list is in one order whatever order the catalogue gave it, and names of the sandbox itself are placeholders in it:
//! two sandboxes that were made by the same SQL have the same list. Nothing here knows how it was read.

use std::collections::BTreeMap;

macro_rules! kinds {
    ($($variant:ident $text:literal $help:literal;)*) => {
        /// What an object of a schema is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum SchemaKind {
            $(#[doc = $help] $variant,)*
        }

        impl SchemaKind {
            /// Every kind, in the order in which they are told.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Returns the word callers see.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

kinds! {
    Database "database" "The database's own settings and comment.";
    Schema "schema" "A schema.";
    Extension "extension" "An extension; what belongs to it is not listed.";
    Language "language" "A procedural language.";
    Table "table" "A table: ordinary, partitioned or foreign.";
    Column "column" "A column of a table or view.";
    Constraint "constraint" "A constraint of a table.";
    Index "index" "An index.";
    View "view" "A view.";
    MaterializedView "materializedView" "A materialised view.";
    Sequence "sequence" "A sequence.";
    Type "type" "An enum, a domain, a composite or a range type.";
    Function "function" "A function, procedure, aggregate or window function.";
    Trigger "trigger" "A trigger.";
    Rule "rule" "A rewrite rule.";
    Policy "policy" "A row security policy.";
    Statistics "statistics" "Extended statistics.";
    Collation "collation" "A collation.";
    Operator "operator" "An operator.";
    OperatorFamily "operatorFamily" "An operator family with its operators and functions.";
    OperatorClass "operatorClass" "An operator class.";
    Cast "cast" "A cast.";
    Conversion "conversion" "An encoding conversion.";
    TextSearch "textSearch" "A text search configuration or dictionary.";
    Publication "publication" "A publication.";
    EventTrigger "eventTrigger" "An event trigger.";
    ForeignDataWrapper "foreignDataWrapper" "A foreign-data wrapper.";
    ForeignServer "foreignServer" "A foreign server.";
    UserMapping "userMapping" "A user mapping; none of its values.";
    DefaultPrivileges "defaultPrivileges" "Privileges that objects to come are given.";
}

impl SchemaKind {
    /// Returns the kind of that name.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.as_str() == word)
    }
}

/// What makes an object that one and no other, in the order in which objects are told.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SchemaKey {
    /// What it is.
    pub kind: SchemaKind,
    /// The schema it is in, quoted where it has to be; empty if it is in none.
    pub schema: String,
    /// Its name in there, quoted where it has to be, behind its table's and a dot where it is a table's own.
    pub name: String,
}

impl SchemaKey {
    /// Returns the name with its schema.
    pub fn path(&self) -> String {
        if self.schema.is_empty() { self.name.clone() } else { format!("{}.{}", self.schema, self.name) }
    }
}

/// One object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaObject {
    /// Which one.
    pub key: SchemaKey,
    /// The table or view that it is of, by its name in the same schema.
    pub of: Option<String>,
    /// What is known of it, in order; what is as usual is left out.
    pub attributes: Vec<(String, String)>,
}

impl SchemaObject {
    /// Returns an attribute.
    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// A part of a schema.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SchemaFilter {
    /// Only what is in this schema, by its bare name.
    pub schema: Option<String>,
    /// Only this table or view, and what is its own, by its bare name.
    pub table: Option<String>,
}

/// A schema, or a part of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schema {
    objects: Vec<SchemaObject>,
}

impl Schema {
    /// Puts objects into their order.
    pub fn new(mut objects: Vec<SchemaObject>) -> Self {
        objects.sort_by(|a, b| a.key.cmp(&b.key));
        Self { objects }
    }

    /// Returns the objects in order.
    pub fn objects(&self) -> &[SchemaObject] {
        &self.objects
    }

    /// Returns how many objects there are of each kind that there is any of.
    pub fn counts(&self) -> BTreeMap<SchemaKind, usize> {
        let mut counts = BTreeMap::new();
        for object in &self.objects {
            *counts.entry(object.key.kind).or_default() += 1;
        }
        counts
    }

    /// Returns an object.
    pub fn find(&self, key: &SchemaKey) -> Option<&SchemaObject> {
        let at = self.objects.binary_search_by(|object| object.key.cmp(key)).ok()?;
        self.objects.get(at)
    }
}

/// Quotes a name unless it needs no quotes. Keywords are not quoted: which words are differs between servers.
pub fn schema_name(name: &str) -> String {
    let plain = name.bytes().next().is_some_and(|b| b.is_ascii_lowercase() || b == b'_')
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    if plain { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_where_they_have_to_be() {
        for (name, shown) in
            [("orders", "orders"), ("Orders", "\"Orders\""), ("a.b", "\"a.b\""), ("a\"b", "\"a\"\"b\""), ("", "\"\"")]
        {
            assert_eq!(schema_name(name), shown);
        }
    }

    #[test]
    fn every_kind_is_found_by_its_word() {
        for kind in SchemaKind::ALL {
            assert_eq!(SchemaKind::parse(kind.as_str()), Some(*kind));
        }
    }
}
