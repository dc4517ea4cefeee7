//! Takes values out of JSON objects and notes what is wrong with them, by the table of keys.
//!
//! No fault ends the reading: whoever configures the program sees all of them at once. A fault never shows
//! a value, since what stands in the wrong place may be a password.

use std::cell::RefCell;

use super::Fault;
use super::keys::{Key, Kind, MAJOR_MAX, MAJOR_MIN, key_at, names_in};
use super::node::Node;
use crate::model::Secret;

/// The most items of a list, and the longest text: more is a mistake.
const LIST_MAX: usize = 1000;
const TEXT_BYTES_MAX: usize = 8 << 10;

/// Gathers faults.
#[derive(Debug, Default)]
pub(super) struct Faults(RefCell<Vec<Fault>>);

impl Faults {
    pub(super) fn add(&self, place: impl Into<String>, what: impl Into<String>) {
        self.0.borrow_mut().push(Fault { place: place.into(), what: what.into() });
    }

    pub(super) fn into_inner(self) -> Vec<Fault> {
        self.0.into_inner()
    }
}

/// A value and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Found<T> {
    pub(super) value: T,
    pub(super) place: String,
}

/// An object being read.
pub(super) struct Reader<'a> {
    entries: &'a [(String, Node)],
    /// Where it stands in this file: `profiles[0]`.
    place: String,
    /// Where it stands in the table: `profiles[]`.
    path: String,
    faults: &'a Faults,
}

impl<'a> Reader<'a> {
    /// Begins with the file's own object, noting unknown, repeated and unavailable keys.
    pub(super) fn root(entries: &'a [(String, Node)], faults: &'a Faults) -> Self {
        Self::new(entries, String::new(), String::new(), faults)
    }

    fn new(entries: &'a [(String, Node)], place: String, path: String, faults: &'a Faults) -> Self {
        let this = Self { entries, place, path, faults };
        this.check_names();
        this
    }

    pub(super) fn place(&self) -> &str {
        &self.place
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.entries.iter().any(|(key, _)| key == name)
    }

    pub(super) fn text(&self, name: &str) -> Option<Found<String>> {
        self.take(name, "text", |node| match node {
            Node::Text(text) if !text.is_empty() && text.len() <= TEXT_BYTES_MAX => Some(text.clone()),
            Node::Text(_) | Node::Null | Node::Flag(_) | Node::Number(_) | Node::OtherNumber => None,
            Node::List(_) | Node::Object(_) => None,
        })
    }

    pub(super) fn secret(&self, name: &str) -> Option<Found<Secret>> {
        self.text(name).map(|found| Found { value: Secret::new(found.value), place: found.place })
    }

    pub(super) fn flag(&self, name: &str) -> Option<Found<bool>> {
        self.take(name, "`true` or `false`", |node| if let Node::Flag(flag) = node { Some(*flag) } else { None })
    }

    pub(super) fn number(&self, name: &str) -> Option<Found<u64>> {
        let (min, max) = self.key(name).map_or((0, u64::MAX), |key| range(key.kind));
        let expected = format!("a whole number from {min} to {max}");
        self.take(name, &expected, |node| match node {
            Node::Number(number) => Some(*number).filter(|number| (min..=max).contains(number)),
            Node::Null | Node::Flag(_) | Node::OtherNumber | Node::Text(_) | Node::List(_) | Node::Object(_) => None,
        })
    }

    pub(super) fn version(&self, name: &str) -> Option<Found<u16>> {
        self.take(name, &version_expected(), |node| match node {
            Node::Number(number) => major(&number.to_string()),
            Node::Text(text) => major(text),
            Node::Null | Node::Flag(_) | Node::OtherNumber | Node::List(_) | Node::Object(_) => None,
        })
    }

    pub(super) fn word(&self, name: &str) -> Option<Found<&'static str>> {
        let words = match self.key(name).map(|key| key.kind) {
            Some(Kind::Word(words)) => words,
            None | Some(Kind::Text | Kind::Secret | Kind::Flag | Kind::Number { .. } | Kind::Version) => &[],
            Some(Kind::Texts | Kind::Object | Kind::Map | Kind::Objects | Kind::Unavailable) => &[],
        };
        let expected = words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(" or ");
        if let Some((_, Node::Text(text))) = self.entry(name)
            && !text.is_empty()
            && !words.contains(&text.as_str())
        {
            self.faults.add(join(&self.place, name), format!("is none of the words it can be; expected {expected}"));
            return None;
        }
        self.take(name, &expected, |node| {
            let Node::Text(text) = node else { return None };
            words.iter().find(|word| *word == text).copied()
        })
    }

    pub(super) fn texts(&self, name: &str) -> Option<Found<Vec<String>>> {
        self.take(name, "a list of texts", |node| {
            let Node::List(items) = node else { return None };
            let text = |item: &Node| {
                let Node::Text(text) = item else { return None };
                (text.len() <= TEXT_BYTES_MAX).then(|| text.clone())
            };
            (items.len() <= LIST_MAX).then(|| items.iter().map(text).collect::<Option<Vec<_>>>()).flatten()
        })
    }

    pub(super) fn map(&self, name: &str) -> Option<Found<Vec<(String, String)>>> {
        self.take(name, "an object of texts", |node| {
            let Node::Object(entries) = node else { return None };
            let pair = |(key, value): &(String, Node)| {
                let Node::Text(text) = value else { return None };
                Some((key.clone(), text.clone()))
            };
            entries.iter().map(pair).collect()
        })
    }

    pub(super) fn object(&self, name: &str) -> Option<Reader<'a>> {
        let entries = self.take(name, "an object", |node| matches!(node, Node::Object(_)).then_some(()))?;
        let Some((_, Node::Object(inner))) = self.entry(name) else { return None };
        Some(Reader::new(inner, entries.place, join(&self.path, name), self.faults))
    }

    pub(super) fn objects(&self, name: &str) -> Option<Vec<Reader<'a>>> {
        let found = self.take(name, "a list of objects", |node| matches!(node, Node::List(_)).then_some(()))?;
        let Some((_, Node::List(items))) = self.entry(name) else { return None };
        if items.len() > LIST_MAX {
            self.faults.add(&found.place, format!("has more than {LIST_MAX} items"));
            return None;
        }
        let path = format!("{}[]", join(&self.path, name));
        let mut readers = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let place = format!("{}[{index}]", found.place);
            let Node::Object(inner) = item else {
                self.faults.add(place, format!("is {}; expected an object", item.kind()));
                continue;
            };
            readers.push(Reader::new(inner, place, path.clone(), self.faults));
        }
        Some(readers)
    }

    fn entry(&self, name: &str) -> Option<&'a (String, Node)> {
        self.entries.iter().find(|(key, _)| key == name)
    }

    fn key(&self, name: &str) -> Option<&'static Key> {
        let key = key_at(&join(&self.path, name));
        debug_assert!(key.is_some(), "`{}` is not in the table of keys", join(&self.path, name));
        key
    }

    fn take<T>(&self, name: &str, expected: &str, read: impl Fn(&Node) -> Option<T>) -> Option<Found<T>> {
        self.key(name)?;
        let (_, node) = self.entry(name)?;
        let place = join(&self.place, name);
        let value = read(node);
        if value.is_none() {
            self.faults.add(&place, format!("is {}; expected {expected}", described(node)));
        }
        Some(Found { value: value?, place })
    }

    fn check_names(&self) {
        for (index, (name, _)) in self.entries.iter().enumerate() {
            let place = join(&self.place, &shown(name));
            if self.entries.iter().take(index).any(|(earlier, _)| earlier == name) {
                self.faults.add(place, "stands here twice");
                continue;
            }
            match key_at(&join(&self.path, name)) {
                Some(key) if key.kind == Kind::Unavailable => {
                    self.faults.add(place, "is not available in this version; remove it");
                }
                Some(_) => {}
                None => self.faults.add(place, unknown_key(name, &self.path)),
            }
        }
    }
}

/// Says that a name is not known, and which known one is nearest.
pub(super) fn unknown(name: &str, known: impl Iterator<Item = &'static str>) -> String {
    match nearest(name, known) {
        Some(near) => format!("is not known; did you mean `{near}`?"),
        None => "is not known".to_owned(),
    }
}

/// Says that a key is not known, and which is nearest or which there are.
fn unknown_key(name: &str, path: &str) -> String {
    if nearest(name, names_in(path)).is_some() {
        return unknown(name, names_in(path));
    }
    let is_there = |name: &&str| key_at(&join(path, name)).is_some_and(|key| key.kind != Kind::Unavailable);
    let known: Vec<_> = names_in(path).filter(is_there).map(|name| format!("`{name}`")).collect();
    format!("is not known; there are {}", known.join(", "))
}

/// Returns the known name that is most like `name`, if any is like it at all.
fn nearest(name: &str, known: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    let plain = |text: &str| text.chars().filter(|c| c.is_alphanumeric()).collect::<String>().to_lowercase();
    let wanted = plain(name.get(..name.floor_char_boundary(64)).unwrap_or_default());
    known
        .map(|candidate| (strsim::damerau_levenshtein(&wanted, &plain(candidate)), candidate))
        .filter(|(distance, candidate)| *distance <= (candidate.len() / 3).clamp(1, 4))
        .min()
        .map(|(_, candidate)| candidate)
}

/// Returns a name fit to be shown: short, and nothing that looks like a URL or an address.
pub(super) fn shown(name: &str) -> String {
    let secret_like = name.len() > 64 || name.contains("://") || name.contains('@');
    if name.is_empty() {
        // A place has to be seen.
        "\"\"".to_owned()
    } else if secret_like {
        "(not shown)".to_owned()
    } else {
        name.escape_default().to_string()
    }
}

/// Returns the least and the most of a number.
pub(super) fn range(kind: Kind) -> (u64, u64) {
    match kind {
        Kind::Number { min, max } => (min, max),
        Kind::Version => (MAJOR_MIN, MAJOR_MAX),
        Kind::Text | Kind::Secret | Kind::Flag | Kind::Word(_) | Kind::Texts => (0, u64::MAX),
        Kind::Object | Kind::Map | Kind::Objects | Kind::Unavailable => (0, u64::MAX),
    }
}

/// Reads a major version, ignoring a patch level: `16`, `16.3`.
pub(super) fn major(text: &str) -> Option<u16> {
    let (major, patch) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let number = digits(major).then(|| major.parse::<u16>().ok()).flatten()?;
    (digits(patch) && (MAJOR_MIN..=MAJOR_MAX).contains(&u64::from(number))).then_some(number)
}

pub(super) fn version_expected() -> String {
    format!("a major version from {MAJOR_MIN} to {MAJOR_MAX}")
}

fn described(node: &Node) -> String {
    match node {
        Node::Number(number) => number.to_string(),
        Node::Flag(flag) => flag.to_string(),
        Node::Text(text) if text.is_empty() => "empty text".to_owned(),
        Node::Text(text) if text.len() > TEXT_BYTES_MAX => "a very long text".to_owned(),
        Node::Null | Node::OtherNumber | Node::Text(_) | Node::List(_) | Node::Object(_) => node.kind().to_owned(),
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}
