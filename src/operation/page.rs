//! Pages of lists that MCP clients walk through: a cursor is a place in the list, and one that is none of ours is refused.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::model::{Code, Failure};

/// Entries of a page.
pub const PAGE_MAX: usize = 100;

/// Wraps a place in a list.
pub fn cursor(place: &str) -> String {
    URL_SAFE_NO_PAD.encode(place)
}

/// Returns the place that a cursor stands for.
///
/// # Errors
/// `invalid_arguments`, if it is none of ours.
pub fn place(cursor: &str) -> Result<String, Failure> {
    let bytes = URL_SAFE_NO_PAD.decode(cursor).ok();
    bytes.and_then(|bytes| String::from_utf8(bytes).ok()).ok_or_else(unknown)
}

/// The failure for a cursor that is none of ours.
pub fn unknown() -> Failure {
    Failure::new(Code::InvalidArguments, "the cursor is none that a list gave out").hint("begin without one")
}

/// Returns a page of a list that does not change, and where the next one begins.
///
/// # Errors
/// `invalid_arguments`, if the cursor is none of ours.
pub fn of<T>(all: Vec<T>, from: Option<&str>, max: usize) -> Result<(Vec<T>, Option<String>), Failure> {
    let start = match from.map(place).transpose()? {
        None => 0,
        Some(place) => place.parse().ok().filter(|start| (1..all.len()).contains(start)).ok_or_else(unknown)?,
    };
    let next = start + max;
    let next_cursor = (next < all.len()).then(|| cursor(&next.to_string()));
    Ok((all.into_iter().skip(start).take(max).collect(), next_cursor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_walked_through_whole_and_a_strange_cursor_is_refused() {
        let all: Vec<usize> = (0..7).collect();
        let (mut seen, mut from) = (Vec::new(), None);
        loop {
            let (page, next) = of(all.clone(), from.as_deref(), 3).unwrap();
            assert!(page.len() <= 3);
            seen.extend(page);
            from = next;
            if from.is_none() {
                break;
            }
        }
        assert_eq!(seen, all);
        for strange in ["", "x", "!", "MA", "Nw", &cursor("7"), &cursor("-1"), &cursor("999999999999999999999")] {
            assert_eq!(of(all.clone(), Some(strange), 3).unwrap_err().code, Code::InvalidArguments, "{strange}");
        }
    }
}
