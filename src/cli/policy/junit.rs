//! A run of cases as the JUnit XML that build servers read.

#![expect(clippy::let_underscore_must_use, reason = "writing to a string cannot fail")]

use std::fmt::Write as _;

use crate::author::shown;
use crate::author::subject::Subject;
use crate::author::suite::Report;

/// Microseconds of a second.
const US_PER_SECOND: f64 = 1_000_000.0;

/// Returns the whole document, without a line's end.
pub(super) fn document(subject: &Subject, report: &Report, is_covered: bool) -> String {
    let description = subject.description();
    let failed = report.failed().count() + usize::from(!is_covered);
    let tests = report.results.len() + usize::from(!is_covered);
    let total_us: u64 = report.results.iter().map(|case| case.elapsed_us).sum();
    let (policy, time) = (escaped(&description.name), seconds(total_us));
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let _ = writeln!(out, "<testsuites tests=\"{tests}\" failures=\"{failed}\" time=\"{time}\">");
    let _ = writeln!(out, "  <testsuite name=\"{policy}\" tests=\"{tests}\" failures=\"{failed}\" time=\"{time}\">");
    out.push_str("    <properties>\n");
    for (name, value) in [("componentSha256", subject.sha256()), ("version", &description.version)] {
        let _ = writeln!(out, "      <property name=\"{name}\" value=\"{}\"/>", escaped(value));
    }
    out.push_str("    </properties>\n");
    for case in &report.results {
        let name = escaped(&case.name);
        let _ =
            write!(out, "    <testcase classname=\"{policy}\" name=\"{name}\" time=\"{}\"", seconds(case.elapsed_us));
        let Some(first) = case.reasons.first() else {
            out.push_str("/>\n");
            continue;
        };
        let mut text: Vec<String> =
            case.reasons.iter().map(|reason| format!("{}: {}", reason.code, reason.detail)).collect();
        text.extend(case.request.as_ref().map(|request| format!("request: {request}")));
        text.extend(case.decision.as_ref().map(|decision| format!("decision: {}", shown::decision(decision))));
        out.push_str(">\n");
        failure(&mut out, first.code, &first.detail, &text.join("\n"));
    }
    if !is_covered {
        let text = format!("no case meets `{}`", report.unmet.join("`, `"));
        let _ = writeln!(out, "    <testcase classname=\"{policy}\" name=\"every declared code is met\" time=\"0\">");
        failure(&mut out, "coverage", &text, &text);
    }
    out.push_str("  </testsuite>\n</testsuites>");
    out
}

fn failure(out: &mut String, kind: &str, message: &str, text: &str) {
    let (kind, message, text) = (escaped(kind), escaped(message), escaped(text));
    let _ = writeln!(out, "      <failure type=\"{kind}\" message=\"{message}\">{text}</failure>\n    </testcase>");
}

#[expect(clippy::cast_precision_loss, reason = "a time that people read")]
fn seconds(us: u64) -> String {
    format!("{:.6}", us as f64 / US_PER_SECOND)
}

/// Writes a text so that it can stand in an attribute and between tags. What XML cannot hold is shown as what it is not.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            '\n' | '\t' | '\r' => {
                let _ = write!(out, "&#{};", u32::from(c));
            }
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_text_ends_it_or_is_no_xml() {
        assert_eq!(escaped("a<b>&\"'c"), "a&lt;b&gt;&amp;&quot;&apos;c");
        assert_eq!(escaped("]]>\n\0\u{1b}\u{ffff}é"), "]]&gt;&#10;\u{fffd}\u{fffd}\u{fffd}é");
    }
}
