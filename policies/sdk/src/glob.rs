//! Matches names against patterns: `*` is any run of characters, `?` is one, everything else is itself.
//!
//! A match takes at most (pattern length × text length) steps, both bounded, whatever the two hold.

use crate::Problems;

/// The longest pattern, in bytes; the names that patterns stand for are not longer.
const PATTERN_BYTES_MAX: usize = 256;
/// The most patterns in one list: a linear walk over more would eat an evaluation's fuel.
const PATTERNS_MAX: usize = 1000;

/// One pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// Says what is wrong with it, as the message of a [`crate::Problem`].
    pub fn new(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("an empty pattern matches nothing; write a name, or `*` for every name".into());
        }
        if text.len() > PATTERN_BYTES_MAX {
            return Err(format!("a pattern has at most {PATTERN_BYTES_MAX} bytes; this has {}", text.len()));
        }
        Ok(Self(text.to_owned()))
    }

    /// Returns whether the whole of `text` matches.
    pub fn matches(&self, text: &str) -> bool {
        matches(self.0.as_bytes(), text.as_bytes())
    }

    /// Returns the pattern as it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A list of patterns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patterns {
    /// In the order of the settings, for messages.
    written: Vec<Pattern>,
    /// Those without `*` and `?`, sorted: long lists are mostly of these, and one search finds them.
    names: Vec<String>,
    /// The others.
    globs: Vec<Pattern>,
}

impl Patterns {
    /// Reads a list; faults are reported under `path`.
    pub fn read(texts: &[String], path: &str, problems: &mut Problems) -> Self {
        if texts.len() > PATTERNS_MAX {
            problems.add(path, format!("at most {PATTERNS_MAX} patterns; this has {}", texts.len()));
            return Self::default();
        }
        let mut written = Vec::with_capacity(texts.len());
        for (index, text) in texts.iter().enumerate() {
            match Pattern::new(text) {
                Ok(pattern) => written.push(pattern),
                Err(message) => problems.add(format!("{path}[{index}]"), message),
            }
        }
        let is_glob = |pattern: &&Pattern| pattern.as_str().contains(['*', '?']);
        let mut names: Vec<_> = written.iter().filter(|p| !is_glob(p)).map(|p| p.0.clone()).collect();
        names.sort_unstable();
        let globs = written.iter().filter(is_glob).cloned().collect();
        Self { written, names, globs }
    }

    /// Returns whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.written.is_empty()
    }

    /// Returns whether any of them matches the whole of `text`.
    pub fn matches(&self, text: &str) -> bool {
        self.names.binary_search_by(|name| name.as_str().cmp(text)).is_ok()
            || self.globs.iter().any(|pattern| pattern.matches(text))
    }

    /// Returns the patterns in a sentence: at most a few of them, in backticks.
    pub fn quoted(&self) -> String {
        quoted(self.written.iter().map(Pattern::as_str))
    }
}

/// The most names that a message lists before it says how many more there are.
const LISTED_MAX: usize = 12;

/// Puts names in backticks with commas between; of a long list only the beginning.
pub(crate) fn quoted<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut out = String::new();
    let mut more = 0_usize;
    for (index, name) in names.enumerate() {
        if index >= LISTED_MAX {
            more += 1;
            continue;
        }
        if index > 0 {
            out.push_str(", ");
        }
        out.push('`');
        out.push_str(name);
        out.push('`');
    }
    if more > 0 {
        out.push_str(&format!(" and {more} more"));
    }
    out
}

/// Goes through both once, and back to the last `*` on a mismatch.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut back: Option<(usize, usize)> = None;
    while let Some(&byte) = text.get(t) {
        match pattern.get(p) {
            Some(b'*') => {
                back = Some((p + 1, t));
                p += 1;
            }
            Some(b'?') => {
                p += 1;
                t = next_char(text, t);
            }
            Some(&literal) if literal == byte => {
                p += 1;
                t += 1;
            }
            Some(_) | None => {
                let Some((after_star, taken)) = back else { return false };
                let taken = next_char(text, taken);
                back = Some((after_star, taken));
                (p, t) = (after_star, taken);
            }
        }
    }
    pattern.iter().skip(p).all(|&b| b == b'*')
}

/// Returns where the character after the one at `at` begins.
fn next_char(text: &[u8], at: usize) -> usize {
    let mut next = at + 1;
    while text.get(next).is_some_and(|b| b & 0xC0 == 0x80) {
        next += 1;
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pattern: &str, text: &str, expected: bool) {
        assert_eq!(Pattern::new(pattern).unwrap().matches(text), expected, "{pattern} on {text}");
    }

    #[test]
    fn a_pattern_matches_the_whole_name() {
        check("staging", "staging", true);
        check("staging", "staging2", false);
        check("staging", "a-staging", false);
        check("*", "", true);
        check("*.example.com", "db.example.com", true);
        check("*.example.com", "example.com", false);
        check("*.example.com", "evil-example.com", false);
        check("*.example.com", "db.example.com.evil.org", false);
    }

    #[test]
    fn stars_take_as_much_as_is_needed() {
        check("a*b*c", "axxbxxbc", true);
        check("a*b*c", "axxbxxb", false);
        check("**x**", "x", true);
        check("app_*_test", "app__test", true);
    }

    #[test]
    fn a_question_mark_is_one_character_not_one_byte() {
        check("?", "漢", true);
        check("??", "漢", false);
        check("a?c", "aéc", true);
        check("*?", "漢", true);
        check("?", "", false);
    }

    #[test]
    fn other_characters_are_themselves() {
        check("a.c", "abc", false);
        check("[ab]", "a", false);
        check("A", "a", false);
    }

    #[test]
    fn hostile_patterns_are_cheap() {
        check(&"*a".repeat(128), &"a".repeat(127), false);
        check(&format!("{}b", "*a".repeat(100)), &"a".repeat(5000), false);
    }

    #[test]
    fn a_list_matches_what_one_of_its_patterns_does() {
        let texts: Vec<String> = ["hstore", "pg_*", "citext", "?"].map(str::to_owned).to_vec();
        let mut problems = Problems::default();
        let list = Patterns::read(&texts, "allow", &mut problems);
        for (text, expected) in
            [("hstore", true), ("citext", true), ("pg_trgm", true), ("x", true), ("hstor", false), ("", false)]
        {
            assert_eq!(list.matches(text), expected, "{text}");
        }
        assert_eq!(list.quoted(), "`hstore`, `pg_*`, `citext`, `?`");
    }

    #[test]
    fn useless_patterns_are_refused() {
        assert!(Pattern::new("").is_err());
        assert!(Pattern::new(&"x".repeat(PATTERN_BYTES_MAX + 1)).is_err());
        let mut problems = Problems::default();
        Patterns::read(&vec!["x".to_owned(); PATTERNS_MAX + 1], "allow", &mut problems);
        assert_eq!(problems.done(()).unwrap_err()[0].path, "allow");
    }
}
