//! What policies ask of a statement's facts: which keywords it begins with, which relations it touches.

use crate::{Access, Pattern, Problems, Relation, Statement};

/// Relations as settings write them, and what is done to them.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelationSettings {
    /// A pattern: `schema.name`, or `name`.
    pub name: String,
    /// `reads`, `writes`, `defines`; absent: all.
    pub access: Option<Vec<String>>,
}

/// Relations of some name, touched in some way.
#[derive(Debug)]
pub struct RelationPattern {
    name: Pattern,
    /// The pattern's part after its schema, if it has one.
    bare: Option<Pattern>,
    access: Vec<Access>,
}

impl RelationPattern {
    /// Reads a list; faults are reported under `path`.
    pub fn read_all(list: Vec<RelationSettings>, path: &str, problems: &mut Problems) -> Vec<Self> {
        let mut patterns = Vec::with_capacity(list.len());
        for (index, relation) in list.into_iter().enumerate() {
            let path = format!("{path}[{index}]");
            let access = match &relation.access {
                Some(words) => {
                    if words.is_empty() {
                        problems.add(format!("{path}.access"), "an empty list is no access; leave it out for all");
                    }
                    problems.words(&format!("{path}.access"), words, Access::WORDS)
                }
                None => Access::WORDS.iter().map(|(access, _)| *access).collect(),
            };
            let bare = relation.name.rsplit_once('.').and_then(|(_, bare)| Pattern::new(bare).ok());
            match Pattern::new(&relation.name) {
                Ok(name) => patterns.push(Self { name, bare, access }),
                Err(message) => problems.add(format!("{path}.name"), message),
            }
        }
        patterns
    }

    /// Returns whether it is certain that the relation is one of these.
    pub fn is(&self, relation: &Relation) -> bool {
        self.access.contains(&relation.access) && self.name.matches(&relation.name)
    }

    /// Returns whether the relation may be one of these: what is written without a schema may be in any.
    pub fn may_be(&self, relation: &Relation) -> bool {
        let name = &relation.name;
        let anywhere = bare_name(name).is_none() && self.bare.as_ref().is_some_and(|bare| bare.matches(name));
        // What is written with one may be what a pattern without one means.
        let bare = bare_name(name).unwrap_or(name);
        let somewhere = self.bare.is_none() && self.name.matches(bare);
        self.access.contains(&relation.access) && (anywhere || somewhere || self.name.matches(name))
    }

    /// Returns whether the pattern says in which schema the relations are.
    pub fn has_schema(&self) -> bool {
        self.bare.is_some()
    }

    /// Returns the pattern of the names as it was written.
    pub fn as_str(&self) -> &str {
        self.name.as_str()
    }
}

/// Returns a relation's name without its schema, if it has one. A dot inside quotes makes none.
pub fn bare_name(name: &str) -> Option<&str> {
    let mut quoted = false;
    let dot = name.char_indices().filter(|(_, c)| {
        quoted ^= *c == '"';
        *c == '.' && !quoted
    });
    dot.last().and_then(|(at, _)| name.get(at + 1..))
}

/// Returns a relation that is written without a schema as it is named in this one. Those of the system are found first, and
/// stay as they are.
pub fn with_schema(relation: &Relation, schema: &str) -> Option<Relation> {
    let is_systems = relation.name.trim_start_matches('"').starts_with("pg_");
    (bare_name(&relation.name).is_none() && !is_systems)
        .then(|| Relation { name: format!("{schema}.{}", relation.name), access: relation.access })
}

/// Checks the name of the schema that names without one stand for; a fault is reported under `path`.
pub fn check_schema(name: &str, path: &str, problems: &mut Problems) {
    const NAME_BYTES_MAX: usize = 63;
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let begins = name.starts_with(|c: char| !c.is_ascii_digit());
    if name.len() > NAME_BYTES_MAX || !name.chars().all(plain) || !begins {
        problems.add(path, "it is no schema's name; write it without quotes, in lower case");
    }
}

/// Checks leading keywords as settings write them; faults are reported under `path`.
pub fn read_tags(tags: Vec<String>, path: &str, problems: &mut Problems) -> Vec<String> {
    for (index, tag) in tags.iter().enumerate() {
        let words = tag.split(' ').all(|word| !word.is_empty() && word.bytes().all(|b| b.is_ascii_uppercase()));
        if !words {
            problems.add(
                format!("{path}[{index}]"),
                format!(
                    "`{}` is not keywords in capitals with single spaces between, `DROP TABLE` for instance",
                    clean(tag)
                ),
            );
        }
    }
    tags
}

/// Returns whether a tag begins with these whole keywords.
pub fn begins_with(tag: &str, keywords: &str) -> bool {
    tag.strip_prefix(keywords).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
}

/// Returns whether two statements are the same to a policy that is not shown their texts.
pub fn same_facts(one: &Statement, other: &Statement) -> bool {
    one.class == other.class
        && one.traits == other.traits
        && one.read_only_safe == other.read_only_safe
        && one.tag == other.tag
        && one.functions == other.functions
        && one.relations == other.relations
}

/// Makes a name from a caller fit for a message: nothing in it that could break a line, and not too much of it.
pub fn clean(text: &str) -> String {
    const SHOWN_CHARS_MAX: usize = 128;
    text.chars().filter(|c| !c.is_control()).take(SHOWN_CHARS_MAX).collect()
}

/// Names a statement in a message, `statement 2 (`DROP TABLE`)` for instance. `number` counts from 1.
pub fn named(statement: &Statement, number: usize) -> String {
    let tag = clean(&statement.tag);
    if tag.is_empty() { format!("statement {number}") } else { format!("statement {number} (`{tag}`)") }
}
