//! Reads JSON into settings, and says where a fault is.
//!
//! Smaller than a general reader by what settings never need: numbers are integers, keys may not repeat, and nesting
//! has a bound. It is a serde `Deserializer`, so settings are ordinary derived types.

use std::fmt::{self, Display};

use serde::{
    de::{
        self, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Expected, IntoDeserializer as _, MapAccess,
        SeqAccess, Unexpected, VariantAccess, Visitor, value::StrDeserializer,
    },
    forward_to_deserialize_any,
};

use crate::Problem;

/// The deepest nesting; settings are lists of records of lists at most.
const DEPTH_MAX: usize = 32;

/// Reads a value from JSON text.
pub(crate) fn read<T: DeserializeOwned>(text: &str) -> Result<T, Problem> {
    let mut parser = Parser { text, at: 0 };
    let value = parser.document().map_err(|message| Problem { path: String::new(), message })?;
    T::deserialize(Reader { value: &value, path: Path::Root })
        .map_err(|Fault { path, message }| Problem { path: path.unwrap_or_default(), message })
}

enum Value {
    Null,
    Bool(bool),
    Unsigned(u64),
    Negative(i64),
    Text(String),
    List(Vec<Value>),
    Object(Vec<(String, Value)>),
}

/// Turns text into a [`Value`].
struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl Parser<'_> {
    fn document(&mut self) -> Result<Value, String> {
        let value = self.value(0)?;
        self.skip_blanks();
        if self.at < self.text.len() { Err(self.fault("the end")) } else { Ok(value) }
    }

    fn value(&mut self, depth: usize) -> Result<Value, String> {
        if depth > DEPTH_MAX {
            return Err(format!("nested deeper than {DEPTH_MAX}"));
        }
        self.skip_blanks();
        match self.peek() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.list(depth),
            Some(b'"') => self.string().map(Value::Text),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(_) | None => {
                for (word, value) in [("null", Value::Null), ("true", Value::Bool(true)), ("false", Value::Bool(false))]
                {
                    if self.rest().starts_with(word) {
                        self.at += word.len();
                        return Ok(value);
                    }
                }
                Err(self.fault("a value"))
            }
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value, String> {
        let mut entries: Vec<(String, Value)> = Vec::new();
        self.items(b'}', |parser| {
            parser.skip_blanks();
            let key = parser.string()?;
            if entries.iter().any(|(known, _)| *known == key) {
                return Err(format!("`{key}` stands there twice"));
            }
            parser.skip_blanks();
            parser.expect(b':')?;
            let value = parser.value(depth + 1)?;
            entries.push((key, value));
            Ok(())
        })?;
        Ok(Value::Object(entries))
    }

    fn list(&mut self, depth: usize) -> Result<Value, String> {
        let mut items = Vec::new();
        self.items(b']', |parser| {
            items.push(parser.value(depth + 1)?);
            Ok(())
        })?;
        Ok(Value::List(items))
    }

    /// Reads what stands between two brackets, with commas between.
    fn items(&mut self, close: u8, mut item: impl FnMut(&mut Self) -> Result<(), String>) -> Result<(), String> {
        self.at += 1;
        self.skip_blanks();
        if self.peek() == Some(close) {
            self.at += 1;
            return Ok(());
        }
        loop {
            item(self)?;
            self.skip_blanks();
            if self.peek() == Some(close) {
                self.at += 1;
                return Ok(());
            }
            self.expect(b',')?;
        }
    }

    fn string(&mut self) -> Result<String, String> {
        self.expect(b'"')?;
        let mut out = String::new();
        loop {
            let end = self.rest().find(['"', '\\']).ok_or_else(|| self.fault("a closing quote"))?;
            let plain = self.rest().get(..end).unwrap_or_default();
            if plain.bytes().any(|b| b < 0x20) {
                return Err("a string holds a control character that is not escaped".to_owned());
            }
            out.push_str(plain);
            self.at += end + 1;
            if self.text.as_bytes().get(self.at - 1) == Some(&b'"') {
                return Ok(out);
            }
            out.push(self.escaped()?);
        }
    }

    fn escaped(&mut self) -> Result<char, String> {
        let letter = self.peek().ok_or_else(|| self.fault("an escape"))?;
        self.at += 1;
        Ok(match letter {
            b'"' | b'\\' | b'/' => char::from(letter),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let first = self.hex4()?;
                let code = if (0xD800..0xDC00).contains(&first) && self.rest().starts_with("\\u") {
                    self.at += 2;
                    let second = self.hex4()?;
                    0x10000 + ((first - 0xD800) << 10) + (second.wrapping_sub(0xDC00) & 0x3FF)
                } else {
                    first
                };
                char::from_u32(code).ok_or_else(|| self.fault("a character"))?
            }
            _ => return Err(self.fault("an escape")),
        })
    }

    fn hex4(&mut self) -> Result<u32, String> {
        let digits = self.rest().get(..4).filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
        let code = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        let code = code.ok_or_else(|| self.fault("four hexadecimal digits"))?;
        self.at += 4;
        Ok(code)
    }

    fn number(&mut self) -> Result<Value, String> {
        let rest = self.rest();
        let end = rest.find(|c: char| !matches!(c, '-' | '+' | '.' | 'e' | 'E' | '0'..='9')).unwrap_or(rest.len());
        let digits = rest.get(..end).unwrap_or_default();
        let value = match digits.strip_prefix('-') {
            Some(_) => digits.parse().map(Value::Negative),
            None => digits.parse().map(Value::Unsigned),
        };
        let value = value.map_err(|_| format!("`{digits}` is not a whole number of at most 64 bits"))?;
        self.at += end;
        Ok(value)
    }

    fn expect(&mut self, byte: u8) -> Result<(), String> {
        if self.peek() != Some(byte) {
            return Err(self.fault(&format!("`{}`", char::from(byte))));
        }
        self.at += 1;
        Ok(())
    }

    fn skip_blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn rest(&self) -> &str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn fault(&self, expected: &str) -> String {
        format!("not JSON: expected {expected} at byte {}", self.at)
    }
}

/// Where a value stands.
#[derive(Clone, Copy)]
enum Path<'a> {
    Root,
    Key(&'a Path<'a>, &'a str),
    Index(&'a Path<'a>, usize),
}

impl Path<'_> {
    fn text(&self) -> String {
        match self {
            Self::Root => String::new(),
            Self::Key(Path::Root, key) => (*key).to_owned(),
            Self::Key(parent, key) => format!("{}.{key}", parent.text()),
            Self::Index(parent, index) => format!("{}[{index}]", parent.text()),
        }
    }
}

/// A fault, and where it is as soon as that is known.
#[derive(Debug)]
struct Fault {
    path: Option<String>,
    message: String,
}

impl Fault {
    fn at(self, path: &Path<'_>) -> Self {
        Self { path: self.path.or_else(|| Some(path.text())), message: self.message }
    }
}

impl Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Fault {}

impl de::Error for Fault {
    fn custom<T: Display>(message: T) -> Self {
        Self { path: None, message: message.to_string() }
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::custom(format_args!("expected {expected}, found {}", shown(found)))
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid_type(found, expected)
    }
}

/// Says what was found, of what settings can hold: printing numbers with a fraction would be a third of a component.
fn shown(found: Unexpected<'_>) -> String {
    match found {
        Unexpected::Bool(value) => format!("`{value}`"),
        Unexpected::Unsigned(value) => format!("`{value}`"),
        Unexpected::Signed(value) => format!("`{value}`"),
        Unexpected::Str(text) => format!("text `{text}`"),
        Unexpected::Unit | Unexpected::Option => "`null`".to_owned(),
        Unexpected::Seq => "a list".to_owned(),
        Unexpected::Map => "an object".to_owned(),
        Unexpected::Float(_)
        | Unexpected::Char(_)
        | Unexpected::Bytes(_)
        | Unexpected::NewtypeStruct
        | Unexpected::Enum
        | Unexpected::UnitVariant
        | Unexpected::NewtypeVariant
        | Unexpected::TupleVariant
        | Unexpected::StructVariant
        | Unexpected::Other(_) => "something else".to_owned(),
    }
}

/// A value and where it stands, for serde.
struct Reader<'a> {
    value: &'a Value,
    path: Path<'a>,
}

impl<'de> Deserializer<'de> for Reader<'_> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Unsigned(value) => visitor.visit_u64(*value),
            Value::Negative(value) => visitor.visit_i64(*value),
            Value::Text(text) => visitor.visit_str(text),
            Value::List(items) => visitor.visit_seq(Items { items, next: 0, path: &self.path }),
            Value::Object(entries) => visitor.visit_map(Entries { entries, next: 0, path: &self.path }),
        }
        .map_err(|fault| fault.at(&self.path))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.value {
            Value::Null => visitor.visit_none(),
            Value::Bool(_)
            | Value::Unsigned(_)
            | Value::Negative(_)
            | Value::Text(_)
            | Value::List(_)
            | Value::Object(_) => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_newtype_struct(self)
    }

    /// Takes an object only: a record written as a list of its fields would be read by their order.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        match self.value {
            Value::List(_) => {
                let fault: Fault = de::Error::invalid_type(Unexpected::Seq, &"an object");
                Err(fault.at(&self.path))
            }
            Value::Null
            | Value::Bool(_)
            | Value::Unsigned(_)
            | Value::Negative(_)
            | Value::Text(_)
            | Value::Object(_) => self.deserialize_any(visitor),
        }
    }

    /// Takes a word for a variant without contents, and an object of one key for one with.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let Reader { value, path } = self;
        let variant = match value {
            Value::Text(word) => Variant { word, content: None, path },
            Value::Object(entries) => match entries.as_slice() {
                [(word, content)] => Variant { word, content: Some(content), path },
                [] | [_, _, ..] => {
                    return Err(de::Error::custom("expected an object of one key")).map_err(|f: Fault| f.at(&path));
                }
            },
            Value::Null | Value::Bool(_) | Value::Unsigned(_) | Value::Negative(_) | Value::List(_) => {
                return Err(de::Error::custom("expected a word, or an object of one key"))
                    .map_err(|f: Fault| f.at(&path));
            }
        };
        visitor.visit_enum(variant).map_err(|fault| fault.at(&path))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}

struct Items<'a> {
    items: &'a [Value],
    next: usize,
    path: &'a Path<'a>,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = Fault;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Fault> {
        let Some(value) = self.items.get(self.next) else { return Ok(None) };
        let path = Path::Index(self.path, self.next);
        self.next += 1;
        seed.deserialize(Reader { value, path }).map(Some)
    }
}

struct Entries<'a> {
    entries: &'a [(String, Value)],
    next: usize,
    path: &'a Path<'a>,
}

impl<'de> MapAccess<'de> for Entries<'_> {
    type Error = Fault;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Fault> {
        let Some((key, _)) = self.entries.get(self.next) else { return Ok(None) };
        let key_reader: StrDeserializer<'_, Fault> = key.as_str().into_deserializer();
        seed.deserialize(key_reader).map(Some).map_err(|fault| fault.at(&Path::Key(self.path, key)))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Fault> {
        let Some((key, value)) = self.entries.get(self.next) else {
            return Err(de::Error::custom("a value without a key"));
        };
        self.next += 1;
        seed.deserialize(Reader { value, path: Path::Key(self.path, key) })
    }
}

struct Variant<'a> {
    word: &'a str,
    content: Option<&'a Value>,
    path: Path<'a>,
}

impl<'de, 'a> EnumAccess<'de> for Variant<'a> {
    type Error = Fault;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Fault> {
        let word: StrDeserializer<'_, Fault> = self.word.into_deserializer();
        Ok((seed.deserialize(word)?, self))
    }
}

impl Variant<'_> {
    fn content(&self) -> Result<Reader<'_>, Fault> {
        let value = self.content.ok_or_else(|| Fault::missing(self.word))?;
        Ok(Reader { value, path: Path::Key(&self.path, self.word) })
    }
}

impl Fault {
    fn missing(word: &str) -> Self {
        de::Error::custom(format_args!("`{word}` needs contents: an object with it as the key"))
    }
}

impl<'de> VariantAccess<'de> for Variant<'_> {
    type Error = Fault;

    fn unit_variant(self) -> Result<(), Fault> {
        match self.content {
            None | Some(Value::Null) => Ok(()),
            Some(_) => Err(de::Error::custom(format_args!("`{}` has no contents", self.word))),
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Fault> {
        seed.deserialize(self.content()?)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Fault> {
        self.content()?.deserialize_any(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(self, _: &'static [&'static str], visitor: V) -> Result<V::Value, Fault> {
        self.content()?.deserialize_any(visitor)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Outer {
        #[serde(default)]
        inner: Vec<Inner>,
        #[serde(default)]
        names: BTreeMap<String, Option<i64>>,
        #[serde(default)]
        kind: Option<Kind>,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        rows: u8,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Kind {
        Plain,
        Deep { rows: u8 },
    }

    fn check(json: &str, path: &str, message: &str) {
        let problem = read::<Outer>(json).unwrap_err();
        assert_eq!((problem.path.as_str(), problem.message.as_str()), (path, message), "{json}");
    }

    #[test]
    fn settings_are_read() {
        let json =
            r#" {"inner": [{"rows": 255}], "names": {"a\u00e9\ud83d\ude00\n": -3, "b": null}, "kind": "plain"} "#;
        let names = BTreeMap::from([("aé😀\n".to_owned(), Some(-3)), ("b".to_owned(), None)]);
        let expected = Outer { inner: vec![Inner { rows: 255 }], names, kind: Some(Kind::Plain) };
        assert_eq!(read::<Outer>(json).unwrap(), expected);
        let deep = read::<Outer>(r#"{"kind":{"deep":{"rows":1}}}"#).unwrap();
        assert_eq!(deep.kind, Some(Kind::Deep { rows: 1 }));
        assert_eq!(read::<u64>("18446744073709551615").unwrap(), u64::MAX);
        assert_eq!(read::<i64>("-9223372036854775808").unwrap(), i64::MIN);
        assert_eq!(read::<Vec<bool>>("[true,false]").unwrap(), [true, false]);
    }

    #[test]
    fn a_fault_of_form_carries_its_path() {
        check(r#"{"inner":[{"rows":1},{"rows":256}]}"#, "inner[1].rows", "expected u8, found `256`");
        check(r#"{"inner":[{"rows":1},{"rows":-1}]}"#, "inner[1].rows", "expected u8, found `-1`");
        check(r#"{"inner":[{"rows":"1"}]}"#, "inner[0].rows", "expected u8, found text `1`");
        check(r#"{"inner":[{"rowz":1}]}"#, "inner[0].rowz", "unknown field `rowz`, expected `rows`");
        check(r#"{"inner":[{}]}"#, "inner[0]", "missing field `rows`");
        check(r#"{"inner":{}}"#, "inner", "expected a sequence, found an object");
        check(r#"{"names":{"x":[]}}"#, "names.x", "expected i64, found a list");
        check(r#"{"kind":"other"}"#, "kind", "unknown variant `other`, expected `plain` or `deep`");
        check(r#"{"kind":{"deep":{"rows":null}}}"#, "kind.deep.rows", "expected u8, found `null`");
        check(r#"{"kind":1}"#, "kind", "expected a word, or an object of one key");
        check("[]", "", "expected an object, found a list");
        check("1", "", "expected struct Outer, found `1`");
    }

    #[test]
    fn what_is_not_json_is_refused() {
        for json in [
            "",
            "{",
            "{}x",
            "{\"a\"}",
            "{\"a\":}",
            "[1,]",
            "\"\\x\"",
            "\"\\u12\"",
            "\"\n\"",
            "\"\\ud800\"",
            "tru",
            "+1",
        ] {
            let message = read::<serde::de::IgnoredAny>(json).unwrap_err().message;
            assert!(message.starts_with("not JSON") || message.contains("control character"), "{json}: {message}");
        }
    }

    #[test]
    fn numbers_are_whole() {
        for json in ["1.5", "1e3", "18446744073709551616", "-9223372036854775809", "-"] {
            let message = read::<serde::de::IgnoredAny>(json).unwrap_err().message;
            assert_eq!(message, format!("`{json}` is not a whole number of at most 64 bits"));
        }
    }

    #[test]
    fn a_key_stands_once() {
        check(r#"{"inner":[],"inner":[]}"#, "", "`inner` stands there twice");
    }

    #[test]
    fn nesting_has_a_bound() {
        let json = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(
            read::<serde::de::IgnoredAny>(&json).unwrap_err().message,
            format!("nested deeper than {DEPTH_MAX}")
        );
    }
}
