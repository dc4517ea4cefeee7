//! Reads YAML into a bounded tree: compose files and workflows of somebody else's.
//!
//! What an alias stands for is shared and not copied, so a small file cannot become a large tree.

use std::collections::BTreeMap;
use std::rc::Rc;

use saphyr_parser::{Event, Parser};

/// The most values of a file.
pub(super) const NODES_MAX: usize = 20_000;
/// The deepest nesting.
pub(super) const DEPTH_MAX: usize = 64;
/// The most maps that are looked into for one key: maps that lend each other theirs are soon more than there is time for.
const LENDERS_MAX: usize = 1000;

/// A value.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Node {
    /// A number, a word or a text, as it is written.
    Scalar(String),
    List(Vec<Rc<Node>>),
    /// In the order of the file.
    Map(Vec<(String, Rc<Node>)>),
}

impl Node {
    /// Returns a map's value, one that another map lends it by `<<` included.
    pub(super) fn get(&self, key: &str) -> Option<&Node> {
        let mut left = LENDERS_MAX;
        self.look(key, DEPTH_MAX, &mut left)
    }

    fn look(&self, key: &str, depth: usize, left: &mut usize) -> Option<&Node> {
        let Self::Map(entries) = self else { return None };
        let depth = depth.checked_sub(1)?;
        *left = left.checked_sub(1)?;
        let named = |wanted: &str| entries.iter().find(|(name, _)| name == wanted).map(|(_, node)| &**node);
        named(key).or_else(|| match named("<<")? {
            lent @ Self::Map(_) => lent.look(key, depth, left),
            Self::List(lenders) => lenders.iter().find_map(|lent| lent.look(key, depth, left)),
            Self::Scalar(_) => None,
        })
    }

    /// Returns a text.
    pub(super) fn text(&self) -> Option<&str> {
        if let Self::Scalar(text) = self { Some(text) } else { None }
    }

    /// Returns a map's entries.
    pub(super) fn entries(&self) -> &[(String, Rc<Node>)] {
        if let Self::Map(entries) = self { entries } else { &[] }
    }

    /// Returns a list's items.
    pub(super) fn items(&self) -> &[Rc<Node>] {
        if let Self::List(items) = self { items } else { &[] }
    }
}

/// What is not yet at its end.
enum Open {
    List(usize, Vec<Rc<Node>>),
    /// The key that waits for its value.
    Map(usize, Vec<(String, Rc<Node>)>, Option<String>),
}

/// Reads the first document of a file.
///
/// # Errors
/// Says where it cannot be read, or that there is too much of it. Shows nothing of the file.
pub(super) fn read(text: &str) -> Result<Rc<Node>, String> {
    let mut open: Vec<Open> = Vec::new();
    let mut anchors: BTreeMap<usize, Rc<Node>> = BTreeMap::new();
    let mut count = 0;
    for event in Parser::new_from_str(text) {
        let (event, _) = event.map_err(|error| {
            let at = error.marker();
            format!("is not YAML: look at line {} column {}", at.line(), at.col() + 1)
        })?;
        count += 1;
        if count > NODES_MAX {
            return Err(format!("holds more than {NODES_MAX} values"));
        }
        let done = match event {
            Event::SequenceStart(anchor, _) => {
                open.push(Open::List(anchor, Vec::new()));
                None
            }
            Event::MappingStart(anchor, _) => {
                open.push(Open::Map(anchor, Vec::new(), None));
                None
            }
            Event::Scalar(text, _, anchor, _) => Some((anchor, Node::Scalar(text.into_owned()))),
            Event::SequenceEnd | Event::MappingEnd => open.pop().map(|ended| match ended {
                Open::List(anchor, items) => (anchor, Node::List(items)),
                Open::Map(anchor, entries, _) => (anchor, Node::Map(entries)),
            }),
            Event::Alias(anchor) => {
                let shared = anchors.get(&anchor).cloned().unwrap_or_else(|| Rc::new(Node::Scalar(String::new())));
                if let Some(whole) = put(&mut open, shared) {
                    return Ok(whole);
                }
                None
            }
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentStart(_) | Event::DocumentEnd => {
                None
            }
        };
        if open.len() > DEPTH_MAX {
            return Err(format!("is nested deeper than {DEPTH_MAX}"));
        }
        if let Some((anchor, node)) = done {
            let node = Rc::new(node);
            if anchor > 0 {
                anchors.insert(anchor, Rc::clone(&node));
            }
            if let Some(whole) = put(&mut open, node) {
                return Ok(whole);
            }
        }
    }
    Ok(Rc::new(Node::Map(Vec::new())))
}

/// Puts a value where it belongs. Returns it if it is the document.
fn put(open: &mut [Open], node: Rc<Node>) -> Option<Rc<Node>> {
    match open.last_mut() {
        None => return Some(node),
        Some(Open::List(_, items)) => items.push(node),
        Some(Open::Map(_, entries, key)) => match key.take() {
            Some(key) => entries.push((key, node)),
            None => *key = Some(node.text().unwrap_or_default().to_owned()),
        },
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_name_and_through_what_is_lent() {
        let text = "x-db: &db\n  image: postgres:16\nservices:\n  db:\n    <<: *db\n    ports: ['5432:5432', 1]\n";
        let read = read(text).unwrap();
        let db = read.get("services").and_then(|services| services.get("db")).unwrap();
        assert_eq!(db.get("image").and_then(Node::text), Some("postgres:16"));
        assert_eq!(db.get("ports").unwrap().items().len(), 2);
    }

    #[test]
    fn maps_that_lend_each_other_theirs_are_looked_into_so_often_and_no_more() {
        let mut text = "x-0: &a0 {k: v}\n".to_owned();
        for n in 1..40 {
            let lenders = vec![format!("*a{}", n - 1); 10].join(",");
            text.push_str(&format!("x-{n}: &a{n} {{\"<<\": [{lenders}]}}\n"));
        }
        let read = read(&text).unwrap();
        let last = read.get("x-39").unwrap();
        assert_eq!(last.get("absent"), None);
        assert_eq!(last.get("k").and_then(Node::text), Some("v"));
        let many = |count: usize| format!("a: {{\"<<\": [{}, {{k: v}}]}}", vec!["{}"; count].join(","));
        let of = |count: usize| super::read(&many(count)).unwrap().get("a").unwrap().get("k").is_some();
        assert!(of(LENDERS_MAX - 2) && !of(LENDERS_MAX - 1));
    }

    #[test]
    fn what_is_no_yaml_is_said_to_be_with_its_place() {
        for text in ["services: [", "a: b: c", "a: 'b", "%YAML 9.9\n---\n@", "a: *nobody"] {
            let error = read(text).unwrap_err();
            assert!(error.starts_with("is not YAML: look at line"), "{text}: {error}");
        }
        for text in ["", "# nothing", "---\n...", "just words", "- 1\n- 2"] {
            assert!(read(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn a_file_that_means_more_than_it_says_stays_small() {
        let mut text = "a0: &a0 [x, x]\n".to_owned();
        for n in 1..40 {
            text.push_str(&format!("a{n}: &a{n} [*a{p}, *a{p}, *a{p}]\n", p = n - 1));
        }
        assert_eq!(read(&text).unwrap().entries().len(), 40);
    }

    #[test]
    fn values_and_nesting_have_a_bound() {
        let many = |count: usize| format!("[{}]", "1,".repeat(count));
        assert!(read(&many(NODES_MAX - 100)).is_ok());
        assert!(read(&many(NODES_MAX)).unwrap_err().contains("more than"));
        let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(read(&deep(DEPTH_MAX)).is_ok());
        assert!(read(&deep(DEPTH_MAX + 1)).unwrap_err().contains("nested"));
    }
}
