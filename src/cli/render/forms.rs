//! How people are shown what some operations found: checks, lists, and what a command wrote. Everything else is JSON.

use serde_json::Value;

use super::{cell, one_line};

/// Columns of a list of sandboxes.
const SANDBOXES: [&str; 8] =
    ["databaseId", "databaseName", "profile", "state", "owner", "labels", "sizeBytes", "expiresAt"];

/// Returns what is shown of a result, as lines or whole texts; none where it has no form but JSON.
pub(super) fn shown(result: &Value) -> Option<Vec<String>> {
    let list = |key: &str| result.get(key).and_then(Value::as_array);
    if let Some(checks) = list("checks") {
        return Some(checks.iter().flat_map(check).collect());
    }
    if let Some(databases) = list("databases") {
        return Some(sandboxes(databases, result.get("nextCursor").and_then(Value::as_str)));
    }
    if let Some(requests) = list("requests") {
        return Some(approvals(requests));
    }
    let text = |key: &str| result.get(key).and_then(Value::as_str);
    let beside = ["schemaDiff", "disposable"].into_iter().filter_map(|key| result.get(key));
    Some(written(text("stdout")?, text("stderr")?, beside))
}

/// A check is a line, as of `smoke-test`, and what to do about it another.
fn check(check: &Value) -> Vec<String> {
    let text = |key: &str| one_line(check.get(key).and_then(Value::as_str).unwrap_or_default());
    let status = match text("status") {
        failed if failed == "fail" => failed.to_uppercase(),
        other => other,
    };
    let mut lines = vec![format!("{status:<7} {:<36} {}", text("name"), text("detail"))];
    if check.get("remedy").is_some() {
        lines.push(format!("{:<7} remedy: {}", "", text("remedy")));
    }
    lines
}

fn sandboxes(databases: &[Value], next: Option<&str>) -> Vec<String> {
    let row = |sandbox: &Value| {
        SANDBOXES.map(|column| match (column, sandbox.get(column)) {
            ("state", Some(state)) if sandbox.get("expired") == Some(&Value::Bool(true)) => {
                format!("{}, expired", cell(state))
            }
            ("labels", Some(Value::Object(labels))) => {
                let labels: Vec<String> =
                    labels.iter().map(|(key, value)| format!("{}={}", one_line(key), cell(value))).collect();
                labels.join(", ")
            }
            (_, value) => value.map(cell).unwrap_or_default(),
        })
    };
    let rows: Vec<_> = databases.iter().map(|sandbox| row(sandbox).to_vec()).collect();
    let mut lines = super::aligned(&SANDBOXES.map(str::to_owned), &rows);
    lines.extend(next.map(|next| format!("nextCursor: {}", one_line(next))));
    lines
}

/// Whoever approves has to see what for: the arguments come last, whole.
fn approvals(requests: &[Value]) -> Vec<String> {
    const COLUMNS: [&str; 9] =
        ["requestDigest", "state", "subject", "operation", "on", "groups", "approved", "until", "arguments"];
    let row = |request: &Value| {
        let of = |path: &str| request.pointer(path).filter(|value| !value.is_null());
        let words = |path: &str| {
            let words = of(path).and_then(Value::as_array).into_iter().flatten();
            words.map(cell).collect::<Vec<_>>().join(", ")
        };
        COLUMNS.map(|column| match column {
            "subject" | "operation" | "arguments" => of(&format!("/request/{column}")).map(cell).unwrap_or_default(),
            "on" => {
                let on = ["/request/source", "/request/databaseName", "/request/profile"];
                on.into_iter().find_map(of).map(cell).unwrap_or_default()
            }
            "groups" | "approved" => words(&format!("/{column}")),
            "until" => of("/usableUntil").or_else(|| of("/expiresAt")).map(cell).unwrap_or_default(),
            other => of(&format!("/{other}")).map(cell).unwrap_or_default(),
        })
    };
    super::aligned(
        &COLUMNS.map(str::to_owned),
        &requests.iter().map(|request| row(request).to_vec()).collect::<Vec<_>>(),
    )
}

/// What a command wrote, and what of the schema and its sandbox was found beside.
fn written<'a>(stdout: &str, stderr: &str, beside: impl Iterator<Item = &'a Value>) -> Vec<String> {
    // A terminal's own ends of lines are no control sequences.
    let texts = [stdout, stderr].into_iter().filter(|text| !text.is_empty());
    let mut shown: Vec<String> =
        texts.map(|text| text.replace("\r\n", "\n").trim_end_matches('\n').to_owned()).collect();
    shown.extend(beside.map(|found| serde_json::to_string_pretty(found).unwrap_or_default()));
    shown
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(result: Value, expected: &[&str]) {
        assert_eq!(shown(&result).unwrap_or_default(), expected, "{result}");
    }

    #[test]
    fn a_check_is_a_line_and_its_remedy_another() {
        check(
            json!({"ok": false, "checks": [
                {"name": "home", "status": "ok", "detail": "/home/ana/.pgsandbox"},
                {"name": "local: leftovers", "status": "fail", "detail": "two\nok      forged", "remedy": "drop them"},
            ]}),
            &[
                "ok      home                                 /home/ana/.pgsandbox",
                "FAIL    local: leftovers                     two␣ok      forged",
                "        remedy: drop them",
            ],
        );
    }

    #[test]
    fn sandboxes_are_rows_and_say_where_the_next_page_begins() {
        let one = json!({"databaseId": "1", "databaseName": "a", "profile": "local", "state": "ready", "expired": true,
            "labels": {"task": "4\u{1b}[2m2"}, "expiresAt": "soon"});
        check(
            json!({"databases": [one], "nextCursor": "abc"}),
            &[
                "databaseId | databaseName | profile | state          | owner | labels      | sizeBytes | expiresAt",
                "-----------+--------------+---------+----------------+-------+-------------+-----------+----------",
                "1          | a            | local   | ready, expired |       | task=4␣[2m2 |           | soon",
                "nextCursor: abc",
            ],
        );
    }

    #[test]
    fn a_request_is_a_row_that_says_what_is_asked_for() {
        let one = json!({"requestDigest": "ab", "state": "approved", "groups": ["dba", "sec"], "approved": ["dba"],
            "expiresAt": "late", "usableUntil": "soon",
            "request": {"operation": "clone_database", "subject": "ana", "profile": "p", "arguments": {"source": "prod"}}});
        check(
            json!({"requests": [one]}),
            &[
                "requestDigest | state    | subject | operation      | on | groups   | approved | until | arguments",
                "--------------+----------+---------+----------------+----+----------+----------+-------+------------------",
                r#"ab            | approved | ana     | clone_database | p  | dba, sec | dba      | soon  | {"source":"prod"}"#,
            ],
        );
    }

    #[test]
    fn what_a_command_wrote_is_shown_as_it_wrote_it() {
        check(json!({"stdout": "one\r\n\ttwo\n", "stderr": "three"}), &["one\n\ttwo", "three"]);
        check(json!({"stdout": "", "stderr": ""}), &[]);
        check(
            json!({"stdout": "a", "stderr": "", "schemaDiff": {"changed": false}}),
            &["a", "{\n  \"changed\": false\n}"],
        );
        assert_eq!(shown(&json!({"ok": true})), None);
    }
}
