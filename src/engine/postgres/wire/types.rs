//! The types of columns: what they are called, and how their values can be rendered.
//!
//! Built-in types are known; others (enums, composites, extensions' types and arrays of them) are looked up once for
//! each session, as the session's own role. Names are remembered until the session is reset.

use std::collections::HashMap;

use tokio_postgres::types::{Kind, Type};

use super::Cell;

/// Asks for the types in `$1`. Every operator and function is named with its schema, so that a search path cannot
/// put another in its place.
pub(super) const LOOKUP: &str = "SELECT t.oid, pg_catalog.format_type(t.oid, NULL), t.typcategory, t.typelem, \
     e.typbasetype, e.typdelim \
     FROM pg_catalog.pg_type t LEFT JOIN pg_catalog.pg_type e ON e.oid OPERATOR(pg_catalog.=) t.typelem \
     WHERE t.oid OPERATOR(pg_catalog.=) ANY ($1::pg_catalog.oid[])";

/// How values of a type are rendered in JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// As a string: the value's exact text.
    Text,
    /// As `true` or `false`.
    Bool,
    /// As a number, which 32 bits hold.
    Int,
    /// As a number if it is finite, else as a string.
    Float,
    /// As it is.
    Json,
    /// As an array.
    Array {
        /// The elements'.
        element: Box<Shape>,
        /// What stands between elements.
        delimiter: char,
    },
}

/// What is known of a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TypeInfo {
    pub(super) name: String,
    pub(super) shape: Shape,
}

/// The types a session has met that are not built in.
#[derive(Debug, Default)]
pub(super) struct TypeCache(HashMap<u32, TypeInfo>);

impl TypeCache {
    /// Returns what is known of the type `oid`.
    pub(super) fn get(&self, oid: u32) -> Option<TypeInfo> {
        builtin(oid).or_else(|| self.0.get(&oid).cloned())
    }

    /// Remembers the rows that [`LOOKUP`] returned. A row that is malformed is left out.
    pub(super) fn learn(&mut self, rows: &[Vec<Cell>]) {
        self.0.extend(rows.iter().filter_map(|row| looked_up(row)));
    }

    /// Forgets everything: names may have changed.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Returns what is known of a type that nothing else is known of.
pub(super) fn unknown(oid: u32) -> TypeInfo {
    TypeInfo { name: format!("oid {oid}"), shape: Shape::Text }
}

fn looked_up(row: &[Cell]) -> Option<(u32, TypeInfo)> {
    let [oid, name, category, element, element_base, delimiter] = row else { return None };
    let number = |cell: &Cell| cell.text().and_then(|t| t.parse::<u32>().ok()).unwrap_or(0);
    let oid = oid.text()?.parse().ok()?;
    let element = match number(element_base) {
        0 => number(element),
        base => base,
    };
    let shape = match (category.text(), element) {
        (Some("A"), 1..) => {
            let element = builtin(element).map_or(Shape::Text, |t| t.shape);
            let delimiter = delimiter.text().and_then(|d| d.chars().next()).unwrap_or(',');
            Shape::Array { element: Box::new(element), delimiter }
        }
        _ => Shape::Text,
    };
    Some((oid, TypeInfo { name: name.text()?.to_owned(), shape }))
}

fn builtin(oid: u32) -> Option<TypeInfo> {
    let known = Type::from_oid(oid)?;
    // Vectors are arrays to the catalogue, with a text form of their own.
    let vector = known == Type::INT2_VECTOR || known == Type::OID_VECTOR;
    if let (false, Kind::Array(element)) = (vector, known.kind()) {
        let delimiter = if *element == Type::BOX { ';' } else { ',' };
        let shape = Shape::Array { element: Box::new(scalar_shape(element)), delimiter };
        return Some(TypeInfo { name: format!("{}[]", scalar_name(element)), shape });
    }
    Some(TypeInfo { name: scalar_name(&known).to_owned(), shape: scalar_shape(&known) })
}

fn scalar_name(known: &Type) -> &str {
    // Without quotes SQL means another type.
    if *known == Type::CHAR { "\"char\"" } else { known.name() }
}

fn scalar_shape(known: &Type) -> Shape {
    match *known {
        Type::BOOL => Shape::Bool,
        Type::INT2 | Type::INT4 => Shape::Int,
        Type::FLOAT4 | Type::FLOAT8 => Shape::Float,
        Type::JSON | Type::JSONB => Shape::Json,
        _ => Shape::Text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(oid: u32, name: &str, shape: Shape) {
        assert_eq!(builtin(oid), Some(TypeInfo { name: name.into(), shape }));
    }

    fn array(element: Shape, delimiter: char) -> Shape {
        Shape::Array { element: Box::new(element), delimiter }
    }

    #[test]
    fn builtin_types_have_names_and_shapes() {
        check(16, "bool", Shape::Bool);
        check(18, "\"char\"", Shape::Text);
        check(20, "int8", Shape::Text);
        check(23, "int4", Shape::Int);
        check(114, "json", Shape::Json);
        check(701, "float8", Shape::Float);
        check(1184, "timestamptz", Shape::Text);
        check(1700, "numeric", Shape::Text);
        check(1007, "int4[]", array(Shape::Int, ','));
        check(1020, "box[]", array(Shape::Text, ';'));
        check(3807, "jsonb[]", array(Shape::Json, ','));
        check(22, "int2vector", Shape::Text);
        assert_eq!(builtin(16_384), None);
    }

    #[test]
    fn types_that_were_looked_up_are_known_until_the_reset() {
        let row =
            |cells: [&str; 6]| cells.map(|c| if c.is_empty() { Cell::Null } else { Cell::Text(c.into()) }).to_vec();
        let mut cache = TypeCache::default();
        cache.learn(&[
            row(["16400", "public.mood", "E", "0", "", ""]),
            row(["16401", "public.mood[]", "A", "16400", "0", ","]),
            row(["16403", "public.age[]", "A", "16402", "23", ","]),
            row(["not a number", "x", "E", "0", "", ""]),
        ]);
        assert_eq!(cache.get(16_400).unwrap(), TypeInfo { name: "public.mood".into(), shape: Shape::Text });
        assert_eq!(cache.get(16_401).unwrap().shape, array(Shape::Text, ','));
        assert_eq!(cache.get(16_403).unwrap().shape, array(Shape::Int, ','), "a domain over int4");
        cache.clear();
        assert_eq!(cache.get(16_400), None);
    }
}
