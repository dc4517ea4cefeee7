//! Which owners' section applies to an owner.
//!
//! An exact name wins over every pattern, and among patterns the one with the longest text before its
//! first `*`. Two patterns with the same text there are refused when the set is loaded, so that at most
//! one answer is possible. `*` stands for any text, the empty one too; every other character for itself.

use std::collections::BTreeMap;

/// The sections of one policy, ready to be asked.
#[derive(Clone, Debug, Default)]
pub(super) struct Owners {
    exact: BTreeMap<String, usize>,
    /// Longest literal prefix first.
    globs: Vec<(String, usize)>,
}

impl Owners {
    /// Orders sections given by their patterns.
    ///
    /// # Errors
    /// Returns every fault of the patterns.
    pub(super) fn new<'a>(patterns: impl IntoIterator<Item = &'a str>) -> Result<Self, Vec<String>> {
        let mut owners = Self::default();
        let mut faults = Vec::new();
        for (index, pattern) in patterns.into_iter().enumerate() {
            if let Some(fault) = pattern_fault(pattern) {
                faults.push(fault);
            } else if pattern.contains('*') {
                let same = owners.globs.iter().find(|(other, _)| literal_prefix(other) == literal_prefix(pattern));
                if let Some((other, _)) = same {
                    faults.push(format!(
                        "owners' sections `{other}` and `{pattern}` have the same text before `*`, so neither goes before \
                         the other; make one of them more exact"
                    ));
                }
                owners.globs.push((pattern.to_owned(), index));
            } else if owners.exact.insert(pattern.to_owned(), index).is_some() {
                faults.push(format!("owners' section `{pattern}` is there twice"));
            }
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        owners.globs.sort_by_key(|(pattern, _)| std::cmp::Reverse(literal_prefix(pattern).len()));
        Ok(owners)
    }

    /// Returns the index of the section for `owner`.
    pub(super) fn resolve(&self, owner: &str) -> Option<usize> {
        let exact = self.exact.get(owner).copied();
        exact.or_else(|| self.globs.iter().find(|(glob, _)| matches(glob, owner)).map(|(_, index)| *index))
    }
}

/// Says what is wrong with an owner pattern, if anything.
pub fn pattern_fault(pattern: &str) -> Option<String> {
    if pattern.is_empty() {
        return Some("an owners' section has no name; name an owner, or a pattern with `*`".to_owned());
    }
    if pattern.len() > crate::model::limits::NAME_BYTES_MAX {
        return Some(format!(
            "an owners' section's name has {} bytes, over the limit of {}",
            pattern.len(),
            crate::model::limits::NAME_BYTES_MAX
        ));
    }
    None
}

fn literal_prefix(glob: &str) -> &str {
    glob.split('*').next().unwrap_or_default()
}

/// Matches `text` against `glob`, in time linear in each part.
fn matches(glob: &str, text: &str) -> bool {
    let mut parts = glob.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = rest.get(at + part.len()..).unwrap_or_default();
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(patterns: &[&str], owner: &str, expected: Option<&str>) {
        let owners = Owners::new(patterns.iter().copied()).unwrap();
        assert_eq!(owners.resolve(owner).map(|index| patterns[index]), expected, "{owner} in {patterns:?}");
    }

    #[test]
    fn an_exact_name_wins_over_patterns() {
        check(&["*", "team-*", "team-a"], "team-a", Some("team-a"));
        check(&["team-a", "team-*", "*"], "team-a", Some("team-a"));
    }

    #[test]
    fn the_longest_literal_prefix_wins() {
        check(&["*", "te*", "team-*"], "team-b", Some("team-*"));
        check(&["team-*", "te*", "*"], "test", Some("te*"));
        check(&["team-*", "te*", "*"], "other", Some("*"));
    }

    #[test]
    fn no_section_may_match() {
        check(&["team-*"], "solo", None);
        check(&[], "solo", None);
    }

    #[test]
    fn stars_stand_for_any_text() {
        check(&["a*c*e"], "abcde", Some("a*c*e"));
        check(&["a*c*e"], "ace", Some("a*c*e"));
        check(&["a*c*e"], "ae", None);
        check(&["ab*ba"], "aba", None);
        check(&["*@corp"], "漢@corp", Some("*@corp"));
    }

    #[test]
    fn a_tie_is_refused() {
        let faults = Owners::new(["team-*", "team-*-ci"]).unwrap_err();
        assert!(faults[0].contains("`team-*` and `team-*-ci`"), "{faults:?}");
        assert_eq!(Owners::new(["", "a", "a"]).unwrap_err().len(), 2);
    }
}
