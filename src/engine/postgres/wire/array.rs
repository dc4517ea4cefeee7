//! Reads the text form of Postgres arrays (documentation, "Array Input and Output Syntax").
//!
//! Only the form that `array_out` writes with default bounds is read; anything else is `None`, and the caller keeps
//! the text as it is.

/// The deepest array that is taken apart; Postgres itself has six dimensions.
const DEPTH_MAX: usize = 6;

/// An array or an element of one.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Item {
    /// NULL, unquoted.
    Null,
    /// An element's text, unquoted and unescaped.
    Value(String),
    /// A dimension.
    Array(Vec<Item>),
}

/// Reads `text` as an array with default bounds.
pub(super) fn read(text: &str, delimiter: char) -> Option<Vec<Item>> {
    let mut reader = Reader { rest: text.chars(), delimiter };
    if reader.rest.next()? != '{' {
        return None;
    }
    let items = reader.items(1)?;
    reader.rest.as_str().is_empty().then_some(items)
}

struct Reader<'a> {
    rest: std::str::Chars<'a>,
    delimiter: char,
}

impl Reader<'_> {
    /// Reads up to and with the closing brace.
    fn items(&mut self, depth: usize) -> Option<Vec<Item>> {
        let mut items = Vec::new();
        if depth > DEPTH_MAX {
            return None;
        }
        if self.rest.as_str().starts_with('}') {
            self.rest.next();
            return Some(items);
        }
        loop {
            let (item, end) = match self.rest.as_str().chars().next()? {
                '{' => {
                    self.rest.next();
                    (Item::Array(self.items(depth + 1)?), self.rest.next()?)
                }
                '"' => {
                    self.rest.next();
                    (Item::Value(self.quoted()?), self.rest.next()?)
                }
                _ => self.bare()?,
            };
            items.push(item);
            if end == '}' {
                return Some(items);
            }
            if end != self.delimiter {
                return None;
            }
        }
    }

    /// Reads up to and with the closing quote.
    fn quoted(&mut self) -> Option<String> {
        let mut value = String::new();
        loop {
            match self.rest.next()? {
                '"' => return Some(value),
                '\\' => value.push(self.rest.next()?),
                c => value.push(c),
            }
        }
    }

    /// Reads an element without quotes, and what ends it.
    fn bare(&mut self) -> Option<(Item, char)> {
        let mut value = String::new();
        let end = loop {
            match self.rest.next()? {
                c if c == '}' || c == self.delimiter => break c,
                '{' | '"' => return None,
                '\\' => value.push(self.rest.next()?),
                c => value.push(c),
            }
        };
        match value.as_str() {
            "" => None,
            "NULL" => Some((Item::Null, end)),
            _ => Some((Item::Value(value), end)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Item {
        Item::Value(text.into())
    }

    #[test]
    fn arrays_of_every_form_are_read() {
        let check = |text, delimiter, items| assert_eq!(read(text, delimiter), Some(items), "{text}");
        check("{}", ',', vec![]);
        check("{1,2,NULL}", ',', vec![value("1"), value("2"), Item::Null]);
        check(r#"{"NULL","null",null}"#, ',', vec![value("NULL"), value("null"), value("null")]);
        check(r#"{"a,b","c\"d","e\\f"," ","","{}"}"#, ',', [r"a,b", "c\"d", r"e\f", " ", "", "{}"].map(value).into());
        check(
            "{{1,2},{3,4}}",
            ',',
            vec![Item::Array(vec![value("1"), value("2")]), Item::Array(vec![value("3"), value("4")])],
        );
        check("{(1,1),(0,0);(2,2),(1,1)}", ';', vec![value("(1,1),(0,0)"), value("(2,2),(1,1)")]);
        check("{漢字,ü}", ',', vec![value("漢字"), value("ü")]);
    }

    #[test]
    fn what_is_no_array_with_default_bounds_is_left() {
        for text in
            ["", "[0:1]={1,2}", "{", "{1", "{1,", "{1,}", "{,1}", "{1}}", "{1}x", "{\"a", "{\"a\"b}", "{1{2}}", "{\\"]
        {
            assert_eq!(read(text, ','), None, "{text}");
        }
        assert_eq!(read(&"{".repeat(100_000), ','), None);
    }

    #[test]
    fn arrays_are_taken_apart_as_deep_as_postgres_makes_them() {
        let deep = |depth: usize| format!("{}1{}", "{".repeat(depth), "}".repeat(depth));
        for depth in [DEPTH_MAX - 1, DEPTH_MAX] {
            assert!(read(&deep(depth), ',').is_some(), "{depth}");
        }
        assert_eq!(read(&deep(DEPTH_MAX + 1), ','), None);
    }
}
