//! What a case says of statements, beside what the reader says of their text.

use serde::{Deserialize, Serialize};

use super::words::Word;
use crate::model::{Access, Fingerprint, Relation, StatementClass, StatementFacts, Traits};

/// What is known of one statement.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "they are the request's own fields, as the world describes them")]
pub struct GivenStatement {
    pub class: Word<StatementClass>,
    #[serde(default)]
    pub tag: String,
    #[serde(default)]
    pub traits: Vec<Word<Traits>>,
    #[serde(default)]
    pub reads: Vec<String>,
    #[serde(default)]
    pub writes: Vec<String>,
    #[serde(default)]
    pub defines: Vec<String>,
    #[serde(default)]
    pub functions: Vec<String>,
    #[serde(default)]
    pub read_only_safe: bool,
    pub text: Option<String>,
}

impl GivenStatement {
    /// Returns the facts, sorted as the reader sorts them.
    pub(super) fn facts(&self) -> StatementFacts {
        let touched = [(Access::Reads, &self.reads), (Access::Writes, &self.writes), (Access::Defines, &self.defines)];
        let relations = touched
            .into_iter()
            .flat_map(|(access, names)| names.iter().map(move |name| Relation { name: name.clone(), access }));
        let mut relations: Vec<Relation> = relations.collect();
        relations.sort();
        let mut traits = Traits::default();
        self.traits.iter().for_each(|one| traits.insert(one.0));
        let mut functions = self.functions.clone();
        functions.sort();
        StatementFacts {
            class: self.class.0,
            tag: self.tag.clone(),
            traits,
            relations,
            functions,
            read_only_safe: self.read_only_safe,
            fingerprint: Fingerprint(0),
        }
    }
}

/// Says where a case's facts are others than the reader's.
pub(super) fn differences(read: &[StatementFacts], given: &[StatementFacts]) -> Vec<String> {
    if read.len() != given.len() {
        return vec![format!("the reader finds {} statements, and the case names {}", read.len(), given.len())];
    }
    let mut found = Vec::new();
    for (index, (read, given)) in read.iter().zip(given).enumerate() {
        for ((key, said), (_, named)) in parts(read).into_iter().zip(parts(given)) {
            if said != named {
                found.push(format!("`statements[{index}].{key}`: the reader says {said}, and the case {named}"));
            }
        }
    }
    found
}

/// Returns what cases say of a statement, in words, by key.
fn parts(facts: &StatementFacts) -> [(&'static str, String); 8] {
    let relations =
        |access: Access| listed(facts.relations.iter().filter(|one| one.access == access).map(|one| one.name.as_str()));
    [
        ("class", format!("`{}`", facts.class.as_str())),
        ("tag", format!("`{}`", facts.tag)),
        ("traits", listed(facts.traits.words())),
        ("reads", relations(Access::Reads)),
        ("writes", relations(Access::Writes)),
        ("defines", relations(Access::Defines)),
        ("functions", listed(facts.functions.iter().map(String::as_str))),
        ("read_only_safe", facts.read_only_safe.to_string()),
    ]
}

fn listed<'a>(words: impl Iterator<Item = &'a str>) -> String {
    format!("{:?}", words.collect::<Vec<_>>())
}
