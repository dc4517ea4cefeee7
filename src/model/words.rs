//! How counted things are worded, in one place.

use std::fmt::Display;

/// Words a count: `1 sandbox`, `2 sandboxes`.
pub fn counted(count: impl Display, one: &str, many: &str) -> String {
    let count = count.to_string();
    let noun = if count == "1" { one } else { many };
    format!("{count} {noun}")
}

/// Words a place in a text, for who looks for it: a reader that stops behind the end of a line counts no column of the next.
pub fn place_in_text(line: usize, column: usize) -> String {
    format!("line {} column {}", line.max(1), column.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_counted_from_one() {
        assert_eq!(place_in_text(2, 0), "line 2 column 1");
        assert_eq!(place_in_text(3, 14), "line 3 column 14");
    }

    #[test]
    fn one_is_worded_as_one() {
        assert_eq!(counted(0, "sandbox", "sandboxes"), "0 sandboxes");
        assert_eq!(counted(1_u64, "sandbox", "sandboxes"), "1 sandbox");
        assert_eq!(counted(21, "sandbox", "sandboxes"), "21 sandboxes");
    }
}
