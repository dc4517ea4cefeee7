//! CREATE, ALTER and DROP: the class goes by the kind of thing.

use super::{Class, Detail, Reading, find_query_hazards, unparsed};
use crate::model::Traits;
use crate::sql::Installs;
use crate::sql::scanner::TokenKind;
use crate::sql::words::Words;

/// Kinds of things that CREATE, ALTER and DROP are about: keywords, class, and the word in tags.
///
/// The first match counts, so longer ones come before their beginnings.
const OBJECTS: &[(&[&str], Class)] = &[
    (&["TABLE"], Class::Ddl),
    (&["INDEX"], Class::Ddl),
    (&["VIEW"], Class::Ddl),
    (&["MATERIALIZED", "VIEW"], Class::Ddl),
    (&["SEQUENCE"], Class::Ddl),
    (&["SCHEMA"], Class::Ddl),
    (&["TYPE"], Class::Ddl),
    (&["DOMAIN"], Class::Ddl),
    (&["COLLATION"], Class::Ddl),
    (&["CONVERSION"], Class::Ddl),
    (&["STATISTICS"], Class::Ddl),
    (&["POLICY"], Class::Ddl),
    (&["TEXT", "SEARCH", "CONFIGURATION"], Class::Ddl),
    (&["TEXT", "SEARCH", "DICTIONARY"], Class::Ddl),
    (&["TEXT", "SEARCH", "PARSER"], Class::Ddl),
    (&["TEXT", "SEARCH", "TEMPLATE"], Class::Ddl),
    (&["FOREIGN", "TABLE"], Class::Ddl),
    (&["PROPERTY", "GRAPH"], Class::Ddl),
    (&["LARGE", "OBJECT"], Class::Ddl),
    (&["FOREIGN", "DATA", "WRAPPER"], Class::Code),
    (&["FUNCTION"], Class::Code),
    (&["PROCEDURE"], Class::Code),
    (&["ROUTINE"], Class::Code),
    (&["AGGREGATE"], Class::Code),
    (&["EVENT", "TRIGGER"], Class::Code),
    (&["TRIGGER"], Class::Code),
    (&["RULE"], Class::Code),
    (&["CAST"], Class::Code),
    (&["OPERATOR", "CLASS"], Class::Code),
    (&["OPERATOR", "FAMILY"], Class::Code),
    (&["OPERATOR"], Class::Code),
    (&["LANGUAGE"], Class::Code),
    (&["TRANSFORM"], Class::Code),
    (&["EXTENSION"], Class::Code),
    (&["SERVER"], Class::Code),
    (&["USER", "MAPPING"], Class::Code),
    (&["ACCESS", "METHOD"], Class::Code),
    (&["ASSERTION"], Class::Code),
    (&["ROLE"], Class::Cluster),
    (&["USER"], Class::Cluster),
    (&["GROUP"], Class::Cluster),
    (&["DATABASE"], Class::Cluster),
    (&["TABLESPACE"], Class::Cluster),
    (&["SYSTEM"], Class::Cluster),
    (&["PUBLICATION"], Class::Replication),
    (&["SUBSCRIPTION"], Class::Replication),
    (&["DEFAULT", "PRIVILEGES"], Class::AccessControl),
    (&["OWNED"], Class::AccessControl),
];

/// Words between CREATE, ALTER or DROP and the kind of thing.
const MODIFIERS: &[&str] =
    &["GLOBAL", "LOCAL", "TEMP", "TEMPORARY", "UNLOGGED", "UNIQUE", "TRUSTED", "PROCEDURAL", "RECURSIVE", "CONSTRAINT"];

/// Finds the kind of thing; returns its class, its words, and the index after them.
fn object(words: &Words<'_>) -> Option<(Class, &'static [&'static str], usize)> {
    let mut index = if words.are(1, &["OR", "REPLACE"]) { 3 } else { 1 };
    while words.is_any(index, MODIFIERS) {
        index += 1;
    }
    if words.is(index, "DEFAULT") && words.is(index + 1, "CONVERSION") {
        index += 1;
    }
    OBJECTS.iter().find(|(kind, _)| words.are(index, kind)).map(|(kind, class)| (*class, *kind, index + kind.len()))
}

/// Things whose statements name no relation and call no function.
const NAMES_NO_RELATION: &[&[&str]] = &[
    &["ACCESS", "METHOD"],
    &["AGGREGATE"],
    &["CAST"],
    &["COLLATION"],
    &["CONVERSION"],
    &["DATABASE"],
    &["DEFAULT", "PRIVILEGES"],
    &["EVENT", "TRIGGER"],
    &["FOREIGN", "DATA", "WRAPPER"],
    &["GROUP"],
    &["LANGUAGE"],
    &["LARGE", "OBJECT"],
    &["OPERATOR", "CLASS"],
    &["OPERATOR", "FAMILY"],
    &["OPERATOR"],
    &["ROLE"],
    &["SERVER"],
    &["SUBSCRIPTION"],
    &["SYSTEM"],
    &["TABLESPACE"],
    &["TEXT", "SEARCH", "CONFIGURATION"],
    &["TEXT", "SEARCH", "DICTIONARY"],
    &["TEXT", "SEARCH", "PARSER"],
    &["TEXT", "SEARCH", "TEMPLATE"],
    &["TRANSFORM"],
    &["TYPE"],
    &["USER", "MAPPING"],
    &["USER"],
];

/// Of these too only CREATE can do either, or ALTER.
const DROP_NAMES_NO_RELATION: &[&[&str]] = &[
    &["DOMAIN"],
    &["EXTENSION"],
    &["FUNCTION"],
    &["PROCEDURE"],
    &["PUBLICATION"],
    &["ROUTINE"],
    &["SCHEMA"],
    &["STATISTICS"],
];

fn detail(words: &Words<'_>, kind: &[&str], names_nothing: bool) -> Detail {
    if names_nothing || NAMES_NO_RELATION.contains(&kind) {
        return Detail::Nothing;
    }
    Detail::Parse(0..words.len())
}

/// Reads a CREATE.
pub(super) fn create(words: &Words<'_>) -> Reading {
    let Some((class, kind, after)) = object(words) else { return unparsed() };
    let tag = format!("CREATE {}", kind.join(" "));
    let reading = Reading::new(class, tag, detail(words, kind, kind == ["EXTENSION"]));
    match kind {
        // Whatever relations it has are made there.
        ["EXTENSION"] if words.find_outside(after, &["SCHEMA"]).is_some() => {
            Reading { detail: Detail::Hidden, ..reading }
        }
        ["FUNCTION" | "PROCEDURE"] => Reading { detail: Detail::Hidden, ..reading }.with(Traits::OPAQUE_BODY),
        ["INDEX"] => reading.autocommit(words.is(after, "CONCURRENTLY")),
        ["DATABASE" | "TABLESPACE"] => reading.autocommit(true),
        ["SUBSCRIPTION"] => reading.with(Traits::NETWORK).autocommit(true),
        ["SERVER"] | ["USER", "MAPPING"] | ["FOREIGN", "TABLE"] => reading.with(Traits::NETWORK),
        ["TABLE"] => {
            // A column's or key's list stands in parentheses; AS outside them begins a query.
            let as_query = words.find_outside(after, &["AS"]).filter(|at| {
                words.has(at + 1, TokenKind::OpenParen)
                    || words.is_any(at + 1, &["SELECT", "VALUES", "TABLE", "WITH", "EXECUTE"])
            });
            match as_query {
                Some(at) if words.is(at + 1, "EXECUTE") => {
                    Reading { tag: "CREATE TABLE AS".to_owned(), detail: Detail::Hidden, ..reading }
                        .with(Traits::DYNAMIC_SQL)
                }
                Some(at) => {
                    let nested = find_query_hazards(&words.from(at + 1)).write;
                    let traits = if nested { Traits::DATA_MODIFYING_CTE } else { Traits::default() };
                    Reading { tag: "CREATE TABLE AS".to_owned(), ..reading }.with(traits)
                }
                None => reading,
            }
        }
        ["SCHEMA"] => create_schema(words, after, Reading { detail: Detail::Nothing, ..reading }),
        _ => reading,
    }
}

/// Returns the extension that a statement installs. `CREATE LANGUAGE` without a handler is another word for it.
pub(in crate::sql) fn installs(words: &Words<'_>) -> Option<Installs> {
    if !words.is(0, "CREATE") {
        return None;
    }
    let (_, kind, after) = object(words)?;
    let at = match kind {
        ["EXTENSION"] => words.after(after, &["IF", "NOT", "EXISTS"]),
        ["LANGUAGE"] if !(after..words.len()).any(|index| words.is(index, "HANDLER")) => after,
        _ => return None,
    };
    let legible = matches!(words.kind(at), Some(TokenKind::Word | TokenKind::QuotedName));
    Some(Installs {
        name: legible.then(|| words.name(at).into_owned()),
        cascades: (at + 1..words.len()).any(|index| words.is(index, "CASCADE")),
    })
}

/// Takes the elements of a CREATE SCHEMA into account: tables and views, but also triggers and grants.
fn create_schema(words: &Words<'_>, after: usize, mut reading: Reading) -> Reading {
    let mut from = after;
    while let Some(at) = words.find_outside(from, &["CREATE", "GRANT"]) {
        reading.detail = Detail::Hidden;
        let class = match words.is(at, "GRANT") {
            true => Class::AccessControl,
            false => object(&words.from(at)).map_or(Class::Unparsed, |(class, ..)| class),
        };
        if class != Class::Ddl && reading.class == Class::Ddl {
            reading.class = class;
        }
        from = at + 1;
    }
    reading
}

/// Reads an ALTER.
pub(super) fn alter(words: &Words<'_>) -> Reading {
    let Some((class, kind, after)) = object(words) else { return unparsed() };
    let tag = format!("ALTER {}", kind.join(" "));
    // The body is not touched. A schema that is given away stays; one that is renamed takes along what is in it.
    let names_nothing = matches!(kind, ["FUNCTION" | "PROCEDURE" | "ROUTINE" | "SCHEMA" | "STATISTICS"]);
    let reading = Reading::new(class, tag, detail(words, kind, names_nothing));
    match kind {
        ["SCHEMA"] if words.is(after + 1, "RENAME") => Reading { detail: Detail::Hidden, ..reading },
        ["SYSTEM"] => reading.autocommit(true),
        ["TYPE"] => {
            let add_value = (after..words.len()).any(|index| words.are(index, &["ADD", "VALUE"]));
            reading.autocommit(add_value)
        }
        ["TABLE"] => {
            let detaches = words.find_outside(after, &["DETACH"]).is_some()
                && words.find_outside(after, &["CONCURRENTLY", "FINALIZE"]).is_some();
            reading.autocommit(detaches)
        }
        ["DATABASE"] => {
            let moves = (after..words.len()).any(|index| words.are(index, &["SET", "TABLESPACE"]));
            reading.autocommit(moves)
        }
        ["SUBSCRIPTION"] => reading.with(Traits::NETWORK).autocommit(true),
        ["SERVER"] | ["USER", "MAPPING"] => reading.with(Traits::NETWORK),
        _ => reading,
    }
}

/// Reads a DROP.
pub(super) fn drop(words: &Words<'_>) -> Reading {
    let Some((class, kind, after)) = object(words) else { return unparsed() };
    let tag = format!("DROP {}", kind.join(" "));
    let is_relation =
        matches!(kind, ["TABLE" | "INDEX" | "VIEW" | "SEQUENCE"] | ["MATERIALIZED", "VIEW"] | ["FOREIGN", "TABLE"]);
    let detail = match words.is(words.len() - 1, "CASCADE") && !is_relation {
        // Rows go with it, of relations that are not named.
        true => Detail::Hidden,
        false => detail(words, kind, DROP_NAMES_NO_RELATION.contains(&kind)),
    };
    let reading = Reading::new(class, tag, detail);
    match kind {
        ["DATABASE" | "TABLESPACE"] => reading.autocommit(true),
        ["SUBSCRIPTION"] => reading.with(Traits::NETWORK).autocommit(true),
        ["INDEX"] => reading.autocommit(words.is(after, "CONCURRENTLY")),
        _ => reading,
    }
}
