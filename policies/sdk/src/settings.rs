//! Reads settings and gathers what is wrong with them.
//!
//! A fault of form (an unknown key, a wrong type) ends the reading, with its path; faults of meaning are gathered,
//! so that an operator sees all of them at once.

use serde::de::DeserializeOwned;

use crate::{Problem, glob::quoted, json};

/// Reads settings from a JSON object.
pub(crate) fn parse<T: DeserializeOwned>(json: &str) -> Result<T, Vec<Problem>> {
    json::read(json).map_err(|problem| vec![problem])
}

/// What is wrong with settings, gathered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Problems(Vec<Problem>);

impl Problems {
    /// Adds a fault: where, as a path, and what is wrong and what would be accepted.
    pub fn add(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.0.push(Problem { path: path.into(), message: message.into() });
    }

    /// Adds a fault if the number is outside `least..=most`.
    pub fn check_range(&mut self, path: &str, value: u64, least: u64, most: u64) {
        if value < least || value > most {
            self.add(path, format!("{value} is not from {least} to {most}"));
        }
    }

    /// Returns the members of a closed set that `texts` name; faults are reported under `path`.
    pub fn words<T: Copy>(&mut self, path: &str, texts: &[String], words: &[(T, &str)]) -> Vec<T> {
        let mut members = Vec::with_capacity(texts.len());
        for (index, text) in texts.iter().enumerate() {
            if let Some(member) = self.word(&format!("{path}[{index}]"), text, words) {
                members.push(member);
            }
        }
        members
    }

    /// Returns the member of a closed set that `text` names; a fault is reported under `path`.
    pub fn word<T: Copy>(&mut self, path: &str, text: &str, words: &[(T, &str)]) -> Option<T> {
        let found = words.iter().find(|(_, word)| *word == text).map(|(member, _)| *member);
        if found.is_none() {
            let known = words.iter().map(|(_, word)| format!("`{word}`")).collect::<Vec<_>>().join(", ");
            self.add(path, format!("`{text}` is not one of {known}"));
        }
        found
    }

    /// Adds a fault for each text that is not one of `known`.
    pub fn check_known(&mut self, path: &str, texts: &[String], known: &[&str]) {
        for (index, text) in texts.iter().enumerate() {
            if !known.contains(&text.as_str()) {
                let known = quoted(known.iter().copied());
                self.add(format!("{path}[{index}]"), format!("`{text}` is not one of {known}"));
            }
        }
    }

    /// Returns `value` if nothing is wrong.
    ///
    /// # Errors
    /// Returns every fault.
    pub fn done<T>(self, value: T) -> Result<T, Vec<Problem>> {
        if self.0.is_empty() { Ok(value) } else { Err(self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_meaning_are_gathered() {
        let mut problems = Problems::default();
        problems.check_range("a", 0, 1, 2);
        problems.check_range("b", 1, 1, 2);
        assert_eq!(problems.words("c", &["x".into(), "y".into()], &[(1, "x")]), [1]);
        let paths: Vec<_> = problems.done(()).unwrap_err().into_iter().map(|p| p.path).collect();
        assert_eq!(paths, ["a", "c[1]"]);
    }
}
