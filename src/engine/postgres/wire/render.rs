//! Values as JSON, native only where nothing is lost.
//!
//! `null` stands for NULL alone. Booleans, 32-bit integers and finite floats are native; `int8`, `numeric` and all
//! other types are strings of the server's exact text; `json` and `jsonb` are nested with their digits as they are
//! unless a reader could lose something of one value: then the whole column is text, and says so; arrays are arrays
//! of their elements, or the text where their bounds are not the usual ones. What is not there is an object that says
//! so, which no scalar is: `{"omittedBytes": n}` for a value that was too long, `{"notUtf8": "hex"}` for bytes that are
//! no text.

use std::collections::HashSet;
use std::fmt::{self, Write as _};

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use super::array::{self, Item};
use super::{Cell, ResultSet, Shape};

/// The deepest `json` that is nested; common readers stop at 128, and the reply around it has levels of its own.
const JSON_DEPTH_MAX: usize = 100;

/// The whole numbers up to this one, and down to its negative, are those of which a double holds each and no other one
/// as well; a reader in JavaScript calls it `Number.MAX_SAFE_INTEGER`.
const INTEGER_MAX: u64 = (1 << 53) - 1;
/// How the keys begin for which `serde_json::Value` takes an object for a number, or for other JSON.
const KEY_PRIVATE: &str = "$serde_json::private::";

/// How the `json` and `jsonb` values of a column are given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum JsonForm {
    /// As they are: every reader gets each of them right.
    #[default]
    Nested,
    /// Each as a string of its text.
    Text,
}

impl ResultSet {
    /// Returns how `json` in the column at `index`, from 0, is given: all of it in one form.
    pub fn json_form(&self, index: usize) -> JsonForm {
        let Some(column) = self.columns.get(index) else { return JsonForm::Nested };
        let all_nest = self.rows.iter().filter_map(|row| row.get(index)).all(|cell| match cell {
            Cell::Text(text) => nests(text, &column.shape),
            Cell::Null | Cell::Bytes(_) | Cell::Omitted { .. } => true,
        });
        if all_nest { JsonForm::Nested } else { JsonForm::Text }
    }

    /// Renders the rows as a JSON array of arrays.
    pub fn rows_json(&self) -> String {
        let forms: Vec<_> = (0..self.columns.len()).map(|index| self.json_form(index)).collect();
        let mut out = String::from("[");
        for (index, row) in self.rows.iter().enumerate() {
            out.push_str(if index == 0 { "[" } else { ",[" });
            for (index, ((cell, column), form)) in row.iter().zip(&self.columns).zip(&forms).enumerate() {
                if index > 0 {
                    out.push(',');
                }
                cell.write_json(&column.shape, *form, &mut out);
            }
            out.push(']');
        }
        out.push(']');
        out
    }
}

impl Cell {
    /// Renders the value as JSON text, its own `json` in the form that its column has.
    pub fn json(&self, shape: &Shape, form: JsonForm) -> String {
        let mut out = String::new();
        self.write_json(shape, form, &mut out);
        out
    }

    /// Renders the value for a reply that is built of `serde_json::Value`.
    pub fn json_value(&self, shape: &Shape, form: JsonForm) -> serde_json::Value {
        serde_json::from_str(&self.json(shape, form)).unwrap_or_default()
    }

    fn write_json(&self, shape: &Shape, form: JsonForm, out: &mut String) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Text(text) => write_text(text, shape, form, out),
            Self::Bytes(bytes) => {
                out.push_str("{\"notUtf8\":\"");
                push_hex(bytes, out);
                out.push_str("\"}");
            }
            Self::Omitted { bytes } => push(out, format_args!("{{\"omittedBytes\":{bytes}}}")),
        }
    }
}

/// Returns whether no reader gets `json` in a value wrong that is nested.
fn nests(text: &str, shape: &Shape) -> bool {
    fn all(items: &[Item], element: &Shape) -> bool {
        items.iter().all(|item| match item {
            Item::Null => true,
            Item::Value(text) => nests(text, element),
            Item::Array(items) => all(items, element),
        })
    }
    match shape {
        Shape::Json => survives(text),
        Shape::Array { element, delimiter } if holds_json(element) => {
            array::read(text, *delimiter).is_none_or(|items| all(&items, element))
        }
        Shape::Array { .. } | Shape::Text | Shape::Bool | Shape::Int | Shape::Float => true,
    }
}

fn holds_json(shape: &Shape) -> bool {
    match shape {
        Shape::Json => true,
        Shape::Array { element, .. } => holds_json(element),
        Shape::Text | Shape::Bool | Shape::Int | Shape::Float => false,
    }
}

fn write_text(text: &str, shape: &Shape, form: JsonForm, out: &mut String) {
    match shape {
        Shape::Bool if text == "t" => out.push_str("true"),
        Shape::Bool if text == "f" => out.push_str("false"),
        Shape::Int if serde_json::from_str::<i32>(text).is_ok() => out.push_str(text),
        Shape::Float if serde_json::from_str::<serde_json::Number>(text).is_ok() => out.push_str(text),
        Shape::Json if form == JsonForm::Nested => out.push_str(text),
        Shape::Array { element, delimiter } => match array::read(text, *delimiter) {
            Some(items) => write_items(&items, element, form, out),
            None => push_string(text, out),
        },
        Shape::Text | Shape::Bool | Shape::Int | Shape::Float | Shape::Json => push_string(text, out),
    }
}

fn write_items(items: &[Item], element: &Shape, form: JsonForm, out: &mut String) {
    out.push('[');
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        match item {
            Item::Null => out.push_str("null"),
            Item::Value(text) => write_text(text, element, form, out),
            Item::Array(items) => write_items(items, element, form, out),
        }
    }
    out.push(']');
}

/// Returns whether `text` is JSON that no reader gets wrong: not too deep, no key twice, every number with the digits that
/// a double gives back, and not `null` alone, which stands for NULL.
fn survives(text: &str) -> bool {
    let mut reader = serde_json::Deserializer::from_str(text);
    let sound = Sound { depth: 0 }.deserialize(&mut reader).is_ok() && reader.end().is_ok();
    sound && text.trim_ascii() != "null" && scalars(text).all(stays_the_same)
}

/// Returns whether a number has the same digits after it has been a double, which is what most readers make of it; and
/// whether a string is nothing of `serde_json`'s own.
fn stays_the_same(scalar: &str) -> bool {
    if scalar.starts_with('"') {
        // Only what is written otherwise need be read to be known.
        return match scalar.contains("\\u") {
            true => serde_json::from_str::<String>(scalar).is_ok_and(|text| !text.starts_with(KEY_PRIVATE)),
            false => !scalar.get(1..).is_some_and(|text| text.starts_with(KEY_PRIVATE)),
        };
    }
    if let Ok(whole) = scalar.parse::<i64>() {
        return whole.unsigned_abs() <= INTEGER_MAX && whole.to_string() == scalar;
    }
    let double = |n: f64| serde_json::Number::from_f64(n).is_some_and(|n| n.to_string() == scalar);
    scalar.parse::<f64>().is_ok_and(double)
}

/// Returns the numbers in `json`, which is valid, and the strings with their quotes.
fn scalars(json: &str) -> impl Iterator<Item = &str> {
    let mut rest = json;
    std::iter::from_fn(move || {
        let start = rest.find(|c: char| c == '"' || c == '-' || c.is_ascii_digit())?;
        let found = rest.get(start..)?;
        let end = if found.starts_with('"') {
            let mut escaped = false;
            let end = found.char_indices().skip(1).find(|(_, c)| {
                let closes = *c == '"' && !escaped;
                escaped = *c == '\\' && !escaped;
                closes
            });
            end?.0 + 1
        } else {
            found.find(|c: char| !matches!(c, '0'..='9' | '-' | '+' | '.' | 'e' | 'E')).unwrap_or(found.len())
        };
        let (scalar, after) = found.split_at_checked(end)?;
        rest = after;
        Some(scalar)
    })
}

/// Reads JSON, keeps nothing of it, and fails on what a reader may get wrong.
struct Sound {
    depth: usize,
}

impl Sound {
    fn deeper<E: serde::de::Error>(&self) -> Result<usize, E> {
        if self.depth < JSON_DEPTH_MAX { Ok(self.depth + 1) } else { Err(E::custom("too deep")) }
    }
}

impl<'de> DeserializeSeed<'de> for Sound {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Sound {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let depth = self.deeper()?;
        while items.next_element_seed(Sound { depth })?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let depth = self.deeper()?;
        let mut keys = HashSet::new();
        while let Some(key) = entries.next_key::<String>()? {
            if !keys.insert(key) {
                return Err(A::Error::custom("a key twice"));
            }
            entries.next_value_seed(Sound { depth })?;
        }
        Ok(())
    }
}

fn push_string(text: &str, out: &mut String) {
    push(out, format_args!("{}", serde_json::Value::from(text)));
}

pub(super) fn push_hex(bytes: &[u8], out: &mut String) {
    for byte in bytes {
        push(out, format_args!("{byte:02x}"));
    }
}

fn push(out: &mut String, text: fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    if out.write_fmt(text).is_err() {
        out.push_str("null");
    }
}

#[cfg(test)]
mod tests {
    use super::super::Column;
    use super::*;

    fn text(text: &str) -> Cell {
        Cell::Text(text.into())
    }

    fn column(shape: &Shape, values: &[&str]) -> ResultSet {
        let column = Column {
            name: "c".into(),
            type_name: "t".into(),
            type_oid: 0,
            position: 1,
            origin: None,
            shape: shape.clone(),
        };
        let rows = values.iter().map(|value| vec![text(value)]).collect();
        ResultSet { columns: vec![column], rows, ..ResultSet::default() }
    }

    fn array_of(element: Shape) -> Shape {
        Shape::Array { element: Box::new(element), delimiter: ',' }
    }

    fn check(shape: &Shape, value: &str, expected: &str) {
        let found = column(shape, &[value]).rows_json();
        assert_eq!(found, format!("[[{expected}]]"));
        serde_json::from_str::<&serde_json::value::RawValue>(&found).unwrap();
    }

    #[test]
    fn scalars_are_native_only_where_nothing_is_lost() {
        check(&Shape::Bool, "t", "true");
        check(&Shape::Int, "-2147483648", "-2147483648");
        check(&Shape::Float, "1e+20", "1e+20");
        check(&Shape::Float, "-0", "-0");
        check(&Shape::Float, "NaN", "\"NaN\"");
        check(&Shape::Float, "-Infinity", "\"-Infinity\"");
        check(&Shape::Text, "9223372036854775807", "\"9223372036854775807\"");
        check(&Shape::Text, "a\"\\\u{1}漢", "\"a\\\"\\\\\\u0001漢\"");
        assert_eq!(Cell::Null.json(&Shape::Text, JsonForm::Nested), "null");
        check(&Shape::Text, "null", "\"null\"");
    }

    #[test]
    fn a_server_that_lies_about_types_cannot_break_the_reply() {
        check(&Shape::Bool, "yes", "\"yes\"");
        check(&Shape::Int, "1],\"x\":[", "\"1],\\\"x\\\":[\"");
        check(&Shape::Int, "+1", "\"+1\"");
        check(&Shape::Int, "007", "\"007\"");
        check(&Shape::Float, "0x1p3", "\"0x1p3\"");
        check(&Shape::Json, "{\"a\":1}]", "\"{\\\"a\\\":1}]\"");
    }

    #[test]
    fn json_is_nested_with_its_digits() {
        let digits = "{\"n\": [0, -0.5, 0.1], \"s\": \"-1\\\"2\"}";
        check(&Shape::Json, digits, digits);
        check(&Shape::Json, "\"null\"", "\"null\"");
        let deep = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        check(&Shape::Json, &deep(JSON_DEPTH_MAX), &deep(JSON_DEPTH_MAX));
        check(&Shape::Json, &deep(JSON_DEPTH_MAX + 1), &format!("\"{}\"", deep(JSON_DEPTH_MAX + 1)));
    }

    #[test]
    fn json_that_a_reader_would_change_is_text() {
        let check = |json: &str, nested: bool| {
            let set = column(&Shape::Json, &[json]);
            let form = set.json_form(0);
            assert_eq!(form == JsonForm::Nested, nested, "{json}");
            let value = text(json).json_value(&Shape::Json, form);
            let shown = if nested { value.to_string() } else { value.as_str().unwrap().to_owned() };
            assert_eq!(shown, json);
        };
        check("{\"n\":9007199254740991,\"f\":1.5,\"s\":\"1.10\",\"m\":-9007199254740991}", true);
        check("[9007199254740992]", false);
        check("{\"a\":{\"b\":[-9007199254740992]}}", false);
        check("[9007199254740993]", false);
        check("[\"9007199254740993\"]", true);
        check("[18446744073709551615]", false);
        check("[9007199254740993.0]", false);
        check("[0.12345678901234567890]", false);
        check("[123456789012345.123]", false);
        check("[0.30000000000000004]", true);
        check("[1.10]", false);
        check("[-0]", false);
        check("[1e400]", false);
        check("{\"a\": 1, \"a\": 2}", false);
        check("null", false);
        check("[null]", true);
    }

    #[test]
    fn an_object_that_is_taken_for_something_else_is_text() {
        for key in ["$serde_json::private::Number", "$serde_json::private::RawValue"] {
            for json in [format!("{{\"{key}\":\"1\"}}"), format!("[{{\"{}\":\"1\"}}]", key.replace('$', "\\u0024"))] {
                let set = column(&Shape::Json, &[&json]);
                assert_eq!(set.json_form(0), JsonForm::Text);
                assert_eq!(set.rows[0][0].json_value(&Shape::Json, JsonForm::Text), json.as_str());
            }
        }
        assert_eq!(column(&Shape::Json, &["{\"\\u00e4\":\"$serde\"}"]).json_form(0), JsonForm::Nested);
    }

    #[test]
    fn the_json_of_a_column_is_all_in_one_form() {
        let rows = |shape: &Shape, values: &[&str]| column(shape, values).rows_json();
        assert_eq!(rows(&Shape::Json, &["1", "{\"a\": \"b\"}"]), "[[1],[{\"a\": \"b\"}]]");
        assert_eq!(
            rows(&Shape::Json, &["1", "9007199254740993", "\"b\"", "null"]),
            "[[\"1\"],[\"9007199254740993\"],[\"\\\"b\\\"\"],[\"null\"]]"
        );
        assert_eq!(
            rows(&array_of(Shape::Json), &["{1,NULL}", "{{1.10},{2}}"]),
            "[[[\"1\",null]],[[[\"1.10\"],[\"2\"]]]]"
        );
    }

    #[test]
    fn arrays_follow_their_elements() {
        check(&array_of(Shape::Int), "{1,NULL,3}", "[1,null,3]");
        check(&array_of(Shape::Text), "{{a,\"b c\"},{NULL,\"NULL\"}}", "[[\"a\",\"b c\"],[null,\"NULL\"]]");
        check(&array_of(Shape::Float), "{NaN,0.5}", "[\"NaN\",0.5]");
        check(&array_of(Shape::Json), "{\"{\\\"a\\\": 1.5}\",\"[]\"}", "[{\"a\": 1.5},[]]");
        check(&array_of(Shape::Int), "[0:1]={1,2}", "\"[0:1]={1,2}\"");
        check(&array_of(Shape::Int), "{}", "[]");
    }

    #[test]
    fn what_is_not_there_says_so() {
        assert_eq!(Cell::Omitted { bytes: 5 }.json(&Shape::Text, JsonForm::Nested), "{\"omittedBytes\":5}");
        assert_eq!(Cell::Bytes(vec![0xff, 0x0a]).json(&Shape::Text, JsonForm::Nested), "{\"notUtf8\":\"ff0a\"}");
    }
}
