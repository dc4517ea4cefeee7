//! Cases files: requests in short form, and what is expected of each.
//!
//! A file is read wholly or not at all: unknown keys and values of another type are faults, each with its line, its case and
//! its path. `docs/reference/policy-cases.md` describes the format, which the SDK's own tests read as well.

mod asked;
mod case;
mod expect;
mod facts;
mod place;
mod words;

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize as _;
use serde::de::IntoDeserializer as _;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

pub use asked::{Asked, Operations};
pub use case::{Case, GivenOutcome, GivenRequested, GivenSandbox, GivenSource, GivenUsage};
pub use expect::{Difference, Expect, Told, VerdictWord, obligation_text};
pub use facts::GivenStatement;
pub use place::Fault;
pub use words::{Word, Words};

/// The key of what every case begins with.
const GIVEN: &str = "given";
/// The key of the cases.
const CASE: &str = "case";

/// A case of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Its name, which no other of the file has.
    pub name: String,
    /// The line on which it begins.
    pub line: usize,
    /// What is asked, with what every case of the file begins with in it.
    pub case: Case,
    /// What is expected.
    pub expect: Expect,
}

/// Reads the text of a cases file. One without cases is empty.
///
/// # Errors
/// Returns what is wrong with the file: at most one fault of each case's types, and all that is missing.
pub fn read(text: &str) -> Result<Vec<Entry>, Vec<Fault>> {
    let table = DeTable::parse(text).map_err(|error| vec![Fault::syntax(text, &error)])?;
    let mut faults = Vec::new();
    let mut given = Case::default();
    let mut cases: &[Spanned<DeValue<'_>>] = &[];
    for (key, value) in table.get_ref() {
        let line = place::line(text, key.span().start);
        match (key.get_ref().as_ref(), value.get_ref()) {
            (GIVEN, DeValue::Table(_)) => match typed(text, GIVEN, None, value) {
                Ok(case) => given = case,
                Err(fault) => faults.push(fault),
            },
            (CASE, DeValue::Array(list)) => cases = list,
            (GIVEN, _) => faults.push(Fault::at(line, None, GIVEN, "a table is wanted here, `[given]`")),
            (CASE, _) => faults.push(Fault::at(line, None, CASE, "a list of tables is wanted here, `[[case]]`")),
            (other, _) => faults.push(Fault::at(line, None, other, "unknown key; a cases file has `given` and `case`")),
        }
    }
    for (key, is_there) in [("name", given.name.is_some()), ("expect", given.expect.is_some())] {
        if is_there {
            faults.push(Fault::at(0, None, &format!("{GIVEN}.{key}"), "is each case's own; write it there"));
        }
    }
    let mut entries: Vec<Entry> = Vec::new();
    let mut names = BTreeMap::new();
    for (index, value) in cases.iter().enumerate() {
        let path = format!("{CASE}[{index}]");
        match typed(text, &path, place::name_of(value), value) {
            Ok(case) => {
                let line = place::line(text, place::start_of(value));
                let case = case.over(&given);
                match entry(case, line, &path) {
                    Ok(entry) => {
                        if let Some(first) = names.insert(entry.name.clone(), line) {
                            let message = format!("line {first} has a case of this name; give one of them another");
                            faults.push(Fault::at(line, Some(&entry.name), "name", &message));
                        }
                        entries.push(entry);
                    }
                    Err(found) => faults.extend(found),
                }
            }
            Err(fault) => faults.push(fault),
        }
    }
    if faults.is_empty() { Ok(entries) } else { Err(faults) }
}

/// Reads one table into its type.
fn typed(text: &str, path: &str, name: Option<&str>, value: &Spanned<DeValue<'_>>) -> Result<Case, Fault> {
    Case::deserialize(value.clone().into_deserializer()).map_err(|error| Fault::typed(text, path, name, value, &error))
}

/// Finds what a case lacks.
fn entry(case: Case, line: usize, path: &str) -> Result<Entry, Vec<Fault>> {
    let name = case.name.clone().unwrap_or_default();
    let shown = Some(name.as_str()).filter(|name| !name.is_empty());
    let mut faults = Vec::new();
    let mut lacks = |key: &str, message: &str| {
        let at = if shown.is_none() { format!("{path}.{key}") } else { key.to_owned() };
        faults.push(Fault::at(line, shown, &at, message));
    };
    if name.is_empty() {
        lacks("name", "is missing; name the fact that the case shows");
    }
    if case.operation.is_none() {
        lacks("operation", "is missing; name what is asked, `run_sql` for instance");
    }
    let expect = case.expect.clone().unwrap_or_default();
    match (expect.verdict, &expect.code) {
        (None, _) => lacks("expect.verdict", "is missing; it is `pass`, `abstain` or `deny`"),
        (Some(Word(VerdictWord::Deny)), None) => lacks("expect.code", "is missing; a denial has a code"),
        (Some(Word(VerdictWord::Pass | VerdictWord::Abstain)), Some(_)) => {
            lacks("expect.code", "stands beside a verdict that is no `deny`; leave one of them away");
        }
        (Some(_), _) => {}
    }
    if faults.is_empty() { Ok(Entry { name, line, case, expect }) } else { Err(faults) }
}

/// Reads one request in the form of a case, TOML or JSON. What is expected of it need not be there, and is not looked at.
///
/// # Errors
/// Says what is wrong, and where.
pub fn read_request(text: &str) -> Result<Case, Fault> {
    let case = if text.trim_start().starts_with('{') {
        serde_json::from_str::<Case>(text).map_err(|error| Fault::json(&error))?
    } else {
        let table = DeTable::parse(text).map_err(|error| Fault::syntax(text, &error))?;
        let span = table.span();
        let value = Spanned::new(span, DeValue::Table(table.into_inner()));
        typed(text, "", None, &value)?
    };
    if case.operation.is_none() {
        return Err(Fault::at(0, None, "operation", "is missing; name what is asked, `run_sql` for instance"));
    }
    Ok(case)
}

/// Writes a case as it stands in a file.
pub fn write(case: &Case) -> String {
    #[derive(serde::Serialize)]
    struct File<'a> {
        case: [&'a Case; 1],
    }
    // Every key is a text and every value has a form in TOML.
    toml::to_string(&File { case: [case] }).unwrap_or_default()
}

/// Returns the declared codes that no case expects.
pub fn unmet<'a>(declared: &'a [String], met: &BTreeSet<String>) -> Vec<&'a str> {
    declared.iter().map(String::as_str).filter(|code| !met.contains(*code)).collect()
}
