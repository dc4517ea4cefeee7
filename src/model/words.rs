//! How counted things are worded, in one place.

use std::fmt::Display;

/// Words a count: `1 sandbox`, `2 sandboxes`.
pub fn counted(count: impl Display, one: &str, many: &str) -> String {
    let count = count.to_string();
    let noun = if count == "1" { one } else { many };
    format!("{count} {noun}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_worded_as_one() {
        assert_eq!(counted(0, "sandbox", "sandboxes"), "0 sandboxes");
        assert_eq!(counted(1_u64, "sandbox", "sandboxes"), "1 sandbox");
        assert_eq!(counted(21, "sandbox", "sandboxes"), "21 sandboxes");
    }
}
