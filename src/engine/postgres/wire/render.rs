//! Values as JSON, native only where nothing is lost.
//!
//! `null` stands for NULL alone. Booleans, 32-bit integers and finite floats are native; `int8`, `numeric` and all
//! other types are strings of the server's exact text; `json` and `jsonb` are nested with their digits as they are,
//! or strings of the whole text where a reader could lose something; arrays are arrays of their elements, or the
//! text where their bounds are not the usual ones. What is not there is an object that says so, which no scalar is:
//! `{"omittedBytes": n}` for a value that was too long, `{"notUtf8": "hex"}` for bytes that are no text.

use std::collections::HashSet;
use std::fmt::{self, Write as _};

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use super::array::{self, Item};
use super::{Cell, ResultSet, Shape};

/// The deepest `json` that is nested; common readers stop at 128, and the reply around it has levels of its own.
const JSON_DEPTH_MAX: usize = 100;

/// Through what a `json` value has to come unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Embed {
    /// Through text only: every digit stays.
    Verbatim,
    /// Through `serde_json::Value`, which keeps 64 bits of a number: a value with other numbers becomes a string.
    Portable,
}

impl ResultSet {
    /// Renders the rows as a JSON array of arrays.
    pub fn rows_json(&self, embed: Embed) -> String {
        let mut out = String::from("[");
        for (index, row) in self.rows.iter().enumerate() {
            out.push_str(if index == 0 { "[" } else { ",[" });
            for (index, (cell, column)) in row.iter().zip(&self.columns).enumerate() {
                if index > 0 {
                    out.push(',');
                }
                cell.write_json(&column.shape, embed, &mut out);
            }
            out.push(']');
        }
        out.push(']');
        out
    }
}

impl Cell {
    /// Renders the value as JSON text.
    pub fn json(&self, shape: &Shape, embed: Embed) -> String {
        let mut out = String::new();
        self.write_json(shape, embed, &mut out);
        out
    }

    /// Renders the value for a reply that is built of `serde_json::Value`.
    pub fn json_value(&self, shape: &Shape) -> serde_json::Value {
        serde_json::from_str(&self.json(shape, Embed::Portable)).unwrap_or_default()
    }

    fn write_json(&self, shape: &Shape, embed: Embed, out: &mut String) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Text(text) => write_text(text, shape, embed, out),
            Self::Bytes(bytes) => {
                out.push_str("{\"notUtf8\":\"");
                push_hex(bytes, out);
                out.push_str("\"}");
            }
            Self::Omitted { bytes } => push(out, format_args!("{{\"omittedBytes\":{bytes}}}")),
        }
    }
}

fn write_text(text: &str, shape: &Shape, embed: Embed, out: &mut String) {
    match shape {
        Shape::Bool if text == "t" => out.push_str("true"),
        Shape::Bool if text == "f" => out.push_str("false"),
        Shape::Int if serde_json::from_str::<i32>(text).is_ok() => out.push_str(text),
        Shape::Float if serde_json::from_str::<serde_json::Number>(text).is_ok() => out.push_str(text),
        Shape::Json if survives(text, embed) => out.push_str(text),
        Shape::Array { element, delimiter } => match array::read(text, *delimiter) {
            Some(items) => write_items(&items, element, embed, out),
            None => push_string(text, out),
        },
        Shape::Text | Shape::Bool | Shape::Int | Shape::Float | Shape::Json => push_string(text, out),
    }
}

fn write_items(items: &[Item], element: &Shape, embed: Embed, out: &mut String) {
    out.push('[');
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        match item {
            Item::Null => out.push_str("null"),
            Item::Value(text) => write_text(text, element, embed, out),
            Item::Array(items) => write_items(items, element, embed, out),
        }
    }
    out.push(']');
}

/// Returns whether `text` is JSON that no reader gets wrong: not too deep, no key twice, numbers as `embed` says.
fn survives(text: &str, embed: Embed) -> bool {
    let mut reader = serde_json::Deserializer::from_str(text);
    let sound = Sound { depth: 0 }.deserialize(&mut reader).is_ok() && reader.end().is_ok();
    sound && (embed == Embed::Verbatim || numbers(text).all(stays_the_same))
}

/// Returns whether a number has the same digits after it has been an integer of 64 bits or a double, which is what most
/// readers make of it.
fn stays_the_same(number: &str) -> bool {
    let double = |n: f64| serde_json::Number::from_f64(n).is_some_and(|n| n.to_string() == number);
    number.parse::<i64>().is_ok_and(|n| n.to_string() == number)
        || number.parse::<u64>().is_ok_and(|n| n.to_string() == number)
        || number.parse::<f64>().is_ok_and(double)
}

/// Returns the numbers in `json`, which is valid.
fn numbers(json: &str) -> impl Iterator<Item = &str> {
    let mut rest = json;
    std::iter::from_fn(move || {
        loop {
            let start = rest.find(|c: char| c == '"' || c == '-' || c.is_ascii_digit())?;
            let found = rest.get(start..)?;
            if let Some(string) = found.strip_prefix('"') {
                let mut escaped = false;
                let end = string.find(|c| {
                    let closes = c == '"' && !escaped;
                    escaped = c == '\\' && !escaped;
                    closes
                })?;
                rest = string.get(end + 1..)?;
                continue;
            }
            let end = found.find(|c: char| !matches!(c, '0'..='9' | '-' | '+' | '.' | 'e' | 'E'));
            let (number, after) = found.split_at_checked(end.unwrap_or(found.len()))?;
            rest = after;
            return Some(number);
        }
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
    use super::*;

    fn text(text: &str) -> Cell {
        Cell::Text(text.into())
    }

    fn array_of(element: Shape) -> Shape {
        Shape::Array { element: Box::new(element), delimiter: ',' }
    }

    fn check(shape: &Shape, value: &str, expected: &str) {
        let found = text(value).json(shape, Embed::Verbatim);
        assert_eq!(found, expected);
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
        assert_eq!(Cell::Null.json(&Shape::Text, Embed::Verbatim), "null");
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
        let digits = "{\"n\": 12345678901234567890.10, \"s\": \"-1\\\"2\"}";
        check(&Shape::Json, digits, digits);
        check(&Shape::Json, "null", "null");
        check(&Shape::Json, "{\"a\": 1, \"a\": 2}", "\"{\\\"a\\\": 1, \\\"a\\\": 2}\"");
        let deep = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        check(&Shape::Json, &deep(JSON_DEPTH_MAX), &deep(JSON_DEPTH_MAX));
        check(&Shape::Json, &deep(JSON_DEPTH_MAX + 1), &format!("\"{}\"", deep(JSON_DEPTH_MAX + 1)));
    }

    #[test]
    fn json_that_a_value_would_change_becomes_text() {
        let check = |json: &str, nested: bool| {
            let value = text(json).json_value(&Shape::Json);
            assert_eq!(value.is_string(), !nested, "{json}");
            assert_eq!(value.as_str().map_or_else(|| value.to_string(), str::to_owned), json);
        };
        check("{\"n\":18446744073709551615,\"f\":1.5,\"s\":\"1.10\"}", true);
        check("[1.10]", false);
        check("[18446744073709551616]", false);
        check("{\"a\":{\"b\":[-9223372036854775809]}}", false);
        check("[1e400]", false);
    }

    #[test]
    fn arrays_follow_their_elements() {
        check(&array_of(Shape::Int), "{1,NULL,3}", "[1,null,3]");
        check(&array_of(Shape::Text), "{{a,\"b c\"},{NULL,\"NULL\"}}", "[[\"a\",\"b c\"],[null,\"NULL\"]]");
        check(&array_of(Shape::Float), "{NaN,0.5}", "[\"NaN\",0.5]");
        check(&array_of(Shape::Json), "{\"{\\\"a\\\": 1.10}\",\"[]\"}", "[{\"a\": 1.10},[]]");
        check(&array_of(Shape::Int), "[0:1]={1,2}", "\"[0:1]={1,2}\"");
        check(&array_of(Shape::Int), "{}", "[]");
    }

    #[test]
    fn what_is_not_there_says_so() {
        assert_eq!(Cell::Omitted { bytes: 5 }.json(&Shape::Text, Embed::Verbatim), "{\"omittedBytes\":5}");
        assert_eq!(Cell::Bytes(vec![0xff, 0x0a]).json(&Shape::Text, Embed::Verbatim), "{\"notUtf8\":\"ff0a\"}");
    }
}
