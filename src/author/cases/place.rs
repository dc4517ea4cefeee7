//! Where in a cases file a fault is.

use std::fmt;
use std::ops::Range;

use toml::Spanned;
use toml::de::DeValue;

/// One thing that is wrong with a cases file or a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The line, from 1; none where it is of the whole file.
    pub line: Option<usize>,
    /// The case, if it has a name.
    pub case: Option<String>,
    /// Where in the case or in the file, `sandbox.owner` for instance.
    pub path: String,
    /// What is wrong and what would be accepted.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = self.line.map(|line| format!("line {line}"));
        let case = self.case.as_ref().map(|case| format!("case `{case}`"));
        let path = Some(&self.path).filter(|path| !path.is_empty()).map(|path| format!("`{path}`"));
        let place: Vec<String> = [line, case, path].into_iter().flatten().collect();
        if place.is_empty() { f.write_str(&self.message) } else { write!(f, "{}: {}", place.join(", "), self.message) }
    }
}

impl Fault {
    /// A fault at a line; line 0 is the whole file.
    pub(super) fn at(line: usize, case: Option<&str>, path: &str, message: &str) -> Self {
        let line = Some(line).filter(|line| *line > 0);
        Self { line, case: case.map(str::to_owned), path: path.to_owned(), message: message.to_owned() }
    }

    /// A text that is no TOML.
    pub(super) fn syntax(text: &str, error: &toml::de::Error) -> Self {
        let line = error.span().map_or(0, |span| self::line(text, span.start));
        Self::at(line, None, "", &one_line(error.message()))
    }

    /// A value of another type, or a key that is not known. `path` is the table's in the file.
    pub(super) fn typed(
        text: &str,
        path: &str,
        case: Option<&str>,
        value: &Spanned<DeValue<'_>>,
        error: &toml::de::Error,
    ) -> Self {
        let span = error.span().unwrap_or_else(|| value.span());
        let within = path_to(value, &span).unwrap_or_default();
        // A case that has a name is found by it.
        let path = match case {
            Some(_) => within,
            None if within.is_empty() || path.is_empty() => format!("{path}{within}"),
            None => format!("{path}.{within}"),
        };
        Self::at(line(text, span.start), case, &path, &one_line(error.message()))
    }

    /// JSON that is not what is wanted.
    pub(super) fn json(error: &serde_json::Error) -> Self {
        Self::at(error.line(), None, "", &one_line(&error.to_string()))
    }
}

fn one_line(message: &str) -> String {
    message.trim().replace('\n', ", ")
}

/// Returns the line of a byte, from 1.
pub(super) fn line(text: &str, byte: usize) -> usize {
    1 + text.as_bytes().iter().take(byte).filter(|b| **b == b'\n').count()
}

/// Returns a case's name, if it has one.
pub(super) fn name_of<'a>(value: &'a Spanned<DeValue<'_>>) -> Option<&'a str> {
    let DeValue::Table(table) = value.get_ref() else { return None };
    let name = table.iter().find(|(key, _)| key.get_ref() == "name")?.1;
    name.get_ref().as_str().filter(|name| !name.is_empty())
}

/// Returns where a table begins: its header may stand before what its span holds.
pub(super) fn start_of(value: &Spanned<DeValue<'_>>) -> usize {
    let own = value.span().start;
    let DeValue::Table(table) = value.get_ref() else { return own };
    table.keys().map(|key| key.span().start).min().map_or(own, |first| first.min(own))
}

/// Returns the path of the innermost key or value in which a place is.
fn path_to(value: &Spanned<DeValue<'_>>, span: &Range<usize>) -> Option<String> {
    match value.get_ref() {
        DeValue::Table(table) => table.iter().find_map(|(key, value)| {
            let key_name = key.get_ref();
            match path_to(value, span) {
                Some(within) if within.is_empty() => Some(key_name.to_string()),
                Some(within) if within.starts_with('[') => Some(format!("{key_name}{within}")),
                Some(within) => Some(format!("{key_name}.{within}")),
                None => holds(&key.span(), span).then(|| key_name.to_string()),
            }
        }),
        DeValue::Array(list) => {
            let inside = list.iter().enumerate().find_map(|(index, value)| {
                let within = path_to(value, span)?;
                let dot = if within.is_empty() || within.starts_with('[') { "" } else { "." };
                Some(format!("[{index}]{dot}{within}"))
            });
            inside.or_else(|| holds(&value.span(), span).then(String::new))
        }
        DeValue::String(_) | DeValue::Integer(_) | DeValue::Float(_) | DeValue::Boolean(_) | DeValue::Datetime(_) => {
            holds(&value.span(), span).then(String::new)
        }
    }
    .or_else(|| (value.span() == *span).then(String::new))
}

fn holds(outer: &Range<usize>, inner: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.start < outer.end
}
