//! Shows how two texts differ, as a unified difference of one hunk.
//!
//! Configurations of clients hold other servers' secrets: of every line, quoted texts are shown only where they are keys
//! or what this program writes itself.

/// Lines that are shown around what differs.
const CONTEXT_LINES: usize = 3;

/// Returns how many lines two texts have in common at their begin, and beyond those at their end.
pub(super) fn common<T: PartialEq>(old: &[T], new: &[T]) -> (usize, usize) {
    let head = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    let (old, new) = (old.get(head..).unwrap_or_default(), new.get(head..).unwrap_or_default());
    let tail = old.iter().rev().zip(new.iter().rev()).take_while(|(a, b)| a == b).count();
    (head, tail)
}

/// Returns the difference between a file's old text and its new one; empty if there is none. `written` is what may be shown.
pub(super) fn unified(file: &str, old: Option<&str>, new: Option<&str>, written: &[&str]) -> String {
    if old == new {
        return String::new();
    }
    let lines = |text: Option<&str>| -> Vec<String> {
        text.unwrap_or_default().split_inclusive('\n').map(str::to_owned).collect()
    };
    let (olds, news) = (lines(old), lines(new));
    let (head, tail) = common(&olds, &news);
    let from = head.saturating_sub(CONTEXT_LINES);
    let behind = tail.min(CONTEXT_LINES);
    let count = |lines: &[String]| lines.len() - tail + behind - from;
    let range = |lines: &[String]| match (count(lines), lines.is_empty()) {
        (_, true) => "0,0".to_owned(),
        (count, false) => format!("{},{count}", from + usize::from(count > 0)),
    };
    let name = |text: Option<&str>| if text.is_some() { file.to_owned() } else { "/dev/null".to_owned() };
    let mut out = format!("--- {}\n+++ {}\n@@ -{} +{} @@\n", name(old), name(new), range(&olds), range(&news));
    let mut add = |sign: char, lines: &[String]| {
        for line in lines {
            out.push(sign);
            out.push_str(&shown(line, written));
            if !line.ends_with('\n') {
                out.push_str("\n\\ No newline at end of file\n");
            }
        }
    };
    let part = |lines: &'_ [String], from: usize, to: usize| lines.get(from..to).unwrap_or_default().to_vec();
    add(' ', &part(&olds, from, head));
    add('-', &part(&olds, head, olds.len() - tail));
    add('+', &part(&news, head, news.len() - tail));
    add(' ', &part(&olds, olds.len() - tail, olds.len() - tail + behind));
    out
}

/// Returns a line with `…` for the quoted texts that are neither a key nor `written` by us.
fn shown(line: &str, written: &[&str]) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(start) = rest.find(['"', '\'']) {
        let (before, quoted) = rest.split_at(start);
        out.push_str(before);
        let quote = if quoted.starts_with('"') { '"' } else { '\'' };
        let end = end_of(quoted, quote);
        let (text, behind) = quoted.split_at(end);
        let inner = text.strip_prefix(quote).map(|text| text.strip_suffix(quote).unwrap_or(text)).unwrap_or_default();
        let is_key = behind.trim_start().starts_with([':', '=']);
        if is_key || written.iter().any(|ours| *ours == inner || escaped(ours) == inner) {
            out.push_str(text);
        } else {
            out.push(quote);
            out.push('…');
            out.push(quote);
        }
        rest = behind;
    }
    out.push_str(rest);
    out
}

/// Returns where a quoted text ends, beyond its quote; at the line's end, if that does not come.
fn end_of(quoted: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, c) in quoted.char_indices().skip(1) {
        match c {
            '\n' | '\r' => return at,
            '\\' if !is_escaped && quote == '"' => is_escaped = true,
            c if c == quote && !is_escaped => return at + c.len_utf8(),
            _ => is_escaped = false,
        }
    }
    quoted.len()
}

fn escaped(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted.trim_matches('"').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(old: Option<&str>, new: Option<&str>, expected: &str) {
        assert_eq!(unified("f", old, new, &["ours"]), expected);
    }

    #[test]
    fn a_difference_says_what_goes_and_what_comes() {
        check(Some("a\n"), Some("a\n"), "");
        check(None, Some("{\n}\n"), "--- /dev/null\n+++ f\n@@ -0,0 +1,2 @@\n+{\n+}\n");
        check(
            Some("1\n2\n3\n4\n5\n6"),
            Some("1\n2\n3\n4\nx\n5\n6"),
            "--- f\n+++ f\n@@ -2,5 +2,6 @@\n 2\n 3\n 4\n+x\n 5\n 6\n\\ No newline at end of file\n",
        );
        check(Some("a\n"), None, "--- f\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-a\n");
    }

    #[test]
    fn what_is_not_ours_is_not_shown() {
        let line = r#"{"x": {"env": {"TOKEN": "hunter2", "Q": "a\"hunter2"}, "args": ["ours", "hunter2"]}}"#;
        let seen = unified("f", Some(line), Some(&format!("{line}\n")), &["ours"]);
        assert!(
            !seen.contains("hunter2") && seen.contains("\"TOKEN\": \"…\"") && seen.contains("[\"ours\", \"…\"]"),
            "{seen}"
        );
        let seen = unified("f", None, Some("token = 'hunter2'\nkey = \"hunter2\nhalf hunter3\"\n"), &[]);
        assert!(!seen.contains("hunter2"), "{seen}");
    }
}
