//! The classifier, against Postgres' parse tree of each statement as it would be sent.
//!
//! For each statement that Postgres accepts: our class is Postgres' or a stricter one; what it changes, names and calls
//! is in our facts, unless these say that relations are unknown; and nothing but a plain read of allowed functions
//! passes for read-only.

use std::collections::HashMap;

use pgsandbox::model::{Access, StatementClass as Class, Traits};
use pgsandbox::sql::Statement;

use super::sql::{error_kind, ours};
use crate::driver::{Checked, Target};
use crate::oracle::{Answer, Node, Oracle};
use crate::rng::Rng;
use crate::sql_text;
use crate::tree::{self, Facts};

/// The functions that may be called in a read, from the list that ships with the program.
const FUNCTIONS: &str = include_str!("../../../../src/sql/functions-pg15.tsv");

pub struct Classifier {
    oracle: Oracle,
    harmless: HashMap<&'static str, bool>,
    compared: u64,
    stricter: u64,
    unknown: u64,
    safe: u64,
}

impl Classifier {
    pub fn new() -> Self {
        let line = |line: &'static str| {
            let mut fields = line.split('\t');
            let name = fields.next()?;
            Some((name, matches!(fields.nth(1)?, "pure" | "safe_volatile")))
        };
        let harmless = FUNCTIONS.lines().filter_map(line).collect();
        Self { oracle: Oracle::start(), harmless, compared: 0, stricter: 0, unknown: 0, safe: 0 }
    }

    fn compare(&mut self, own: &Statement, tree: &Node) -> Checked {
        let statements = tree.get("stmts").map(Node::items).unwrap_or_default();
        let [statement] = statements else {
            return Err(format!("one: Postgres sees {} statements in one of ours", statements.len()));
        };
        let Some(statement) = statement.get("stmt") else { return Ok("empty".to_owned()) };
        let facts = tree::facts(statement);
        self.compared += 1;
        self.check_safe(own, statement, &facts)?;
        self.check_class(own, statement, &facts)?;
        if own.facts.traits.contains(Traits::RELATIONS_UNKNOWN) {
            self.unknown += 1;
        } else {
            check_relations(own, &facts)?;
        }
        Ok(format!(
            "{} {} {:?} {} {}",
            own.facts.class.as_str(),
            own.facts.tag,
            own.facts.traits.words().collect::<Vec<_>>(),
            own.facts.read_only_safe,
            facts.calls.len().min(3)
        ))
    }

    fn check_safe(&mut self, own: &Statement, statement: &Node, facts: &Facts) -> Result<(), String> {
        if !own.facts.read_only_safe {
            return Ok(());
        }
        self.safe += 1;
        let class = tree::class(statement, facts);
        if !matches!(class, Some(Class::Read | Class::Show | Class::Explain | Class::CopyOut)) {
            return Err(format!("safe class: a {} ({class:?}) passes for read-only", facts.root));
        }
        for (schema, name) in &facts.calls {
            let own_schema = matches!(schema.as_deref(), None | Some("pg_catalog"));
            if !own_schema || !self.harmless.get(name.as_str()).copied().unwrap_or(false) {
                return Err(format!("safe call: `{schema:?}.{name}` passes for read-only"));
            }
        }
        if facts.foreign_operator {
            return Err("safe operator: an operator of another schema passes for read-only".to_owned());
        }
        Ok(())
    }

    fn check_class(&mut self, own: &Statement, statement: &Node, facts: &Facts) -> Result<(), String> {
        let Some(theirs) = tree::class(statement, facts) else { return Ok(()) };
        let class = own.facts.class;
        if class == theirs {
            return Ok(());
        }
        self.stricter += 1;
        let reads = matches!(theirs, Class::Read | Class::Prepared | Class::Cursor | Class::CopyOut | Class::Explain);
        let stricter = match class {
            Class::Unparsed => true,
            // An EXPLAIN whose options are in escapes is taken for one that runs its statement.
            Class::Read => theirs == Class::Explain,
            Class::ReadLock => reads,
            Class::Write => reads || theirs == Class::ReadLock,
            Class::Ddl => reads || matches!(theirs, Class::ReadLock | Class::Write),
            _ => false,
        };
        if stricter { Ok(()) } else { Err(format!("class {} for {}: {}", class.as_str(), theirs.as_str(), facts.root)) }
    }
}

/// Compares relations, functions and what policies are told about data changes.
fn check_relations(own: &Statement, facts: &Facts) -> Result<(), String> {
    let traits = own.facts.traits;
    if facts.nested_write && !traits.contains(Traits::DATA_MODIFYING_CTE) {
        return Err(format!("nested write of {}: it is not reported", facts.root));
    }
    if facts.no_where && !traits.contains(Traits::NO_WHERE) && matches!(own.facts.class, Class::Write | Class::Ddl) {
        return Err(format!("no where of {}: it is not reported", facts.root));
    }
    for (name, written) in &facts.relations {
        let found: Vec<_> = own.facts.relations.iter().filter(|r| r.name == *name).collect();
        if found.is_empty() {
            return Err(format!("relation of {}: `{name}` is not reported", facts.root));
        }
        if *written && found.iter().all(|r| r.access == Access::Reads) {
            return Err(format!("written relation of {}: `{name}` is reported as read", facts.root));
        }
        if !name.contains('.') && !traits.contains(Traits::UNQUALIFIED_RELATION) {
            return Err(format!("unqualified relation of {}: `{name}`", facts.root));
        }
    }
    for (schema, name) in &facts.calls {
        let plain = tree::quoted(name);
        let written = schema.as_ref().map_or(plain.clone(), |s| format!("{}.{plain}", tree::quoted(s)));
        // A name without a schema can be of any.
        let named = |name: &String| *name == written || (schema.as_deref() == Some("pg_catalog") && *name == plain);
        if !own.facts.functions.iter().any(named) {
            return Err(format!("function of {}: `{written}` is not reported", facts.root));
        }
    }
    Ok(())
}

impl Target for Classifier {
    fn make(&mut self, rng: &mut Rng, kept: &[Vec<u8>]) -> Vec<u8> {
        sql_text::make(rng, kept)
    }

    fn check(&mut self, input: &[u8]) -> Checked {
        let Ok(text) = std::str::from_utf8(input) else { return Ok("no text".to_owned()) };
        let script = match ours(text) {
            Ok(script) => script,
            Err(error) => return Ok(error_kind(&error)),
        };
        let pieces: Vec<_> = script.statements.iter().map(|s| &text[s.text.clone()]).collect();
        let answers = self.oracle.ask(&pieces);
        let mut outcome = String::new();
        for (own, answer) in script.statements.iter().zip(answers) {
            match answer {
                Some(Answer { parsed: Ok(tree), .. }) => outcome.push_str(&self.compare(own, &tree)?),
                Some(Answer { parsed: Err(_), .. }) if script.statements.len() == 1 => {
                    outcome.push_str(&format!("refused {}", own.facts.class.as_str()));
                }
                _ => {}
            }
        }
        Ok(outcome)
    }

    fn note(&self) -> String {
        format!(
            "{} statements compared, {} passed for read-only, {} classed more strictly, {} with relations unknown",
            self.compared, self.safe, self.stricter, self.unknown
        )
    }
}
