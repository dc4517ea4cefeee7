//! Cases files: what is wrong with one is said with its line, its case, its path and what would be right.

use pgsandbox::author::cases::{self, read_request};

use crate::cases::operations;

const CASE: &str = "[[case]]\nname = \"a\"\noperation = \"run_sql\"\n[case.expect]\nverdict = \"pass\"\n";

fn check(text: &str, expected: &[&str]) {
    let faults = cases::read(text).expect_err("it was read");
    let told: Vec<String> = faults.iter().map(ToString::to_string).collect();
    assert_eq!(told.len(), expected.len(), "{told:#?}");
    for (told, expected) in told.iter().zip(expected) {
        assert!(told.starts_with(expected), "{told}\n{expected}");
    }
}

/// Expects a fault of a case that has this line in it.
fn check_line(line: &str, expected: &str) {
    check(&CASE.replacen("[case.expect]", &format!("{line}\n[case.expect]"), 1), &[expected]);
}

#[test]
fn a_value_of_another_type_is_said_with_line_case_path_and_type() {
    check_line("groups = \"dev\"", "line 4, case `a`, `groups`: invalid type: string \"dev\", expected a sequence");
    check_line("now_ms = \"now\"", "line 4, case `a`, `now_ms`: invalid type: string \"now\", expected u64");
    check_line(
        "sandbox = { owner = 3 }",
        "line 4, case `a`, `sandbox.owner`: invalid type: integer `3`, expected a string",
    );
    check_line(
        "requested = { labels = { k = [] } }",
        "line 4, case `a`, `requested.labels.k`: invalid type: sequence, expected a string",
    );
    check_line(
        "statements = [{ class = \"read\" }, { class = \"red\" }]",
        "line 4, case `a`, `statements[1].class`: `red` is none of the words that are accepted: `read`, `read-lock`",
    );
    check_line(
        "transport = 5",
        "line 4, case `a`, `transport`: invalid type: integer `5`, expected one of `stdio`, `http`, `cli`, `internal`",
    );
    check_line("usage = { live = -1 }", "line 4, case `a`, `usage.live`: invalid value: integer `-1`, expected u32");
    check_line(
        "balances = { b = 5000000000 }",
        "line 4, case `a`, `balances.b`: invalid value: integer `5000000000`, expected u32",
    );
}

#[test]
fn keys_that_are_not_known_are_said_with_those_that_are() {
    check_line(
        "opration = \"x\"",
        "line 4, case `a`, `opration`: unknown field `opration`, expected one of `name`, `settings`, `as`",
    );
    check_line("source = { tsl = \"prefer\" }", "line 4, case `a`, `source.tsl`: unknown field `tsl`");
    check(&CASE.replace("verdict", "verdikt"), &["line 5, case `a`, `expect.verdikt`: unknown field `verdikt`"]);
    check(
        &format!("{CASE}[[cases]]\nname = \"x\"\n"),
        &["line 6, `cases`: unknown key; a cases file has `given` and `case`"],
    );
}

#[test]
fn what_a_case_lacks_is_said_all_at_once() {
    check(
        "[[case]]\nclient = \"x\"\n\n[[case]]\nname = \"b\"\noperation = \"run_sql\"\n",
        &[
            "line 1, `case[0].name`: is missing",
            "line 1, `case[0].operation`",
            "line 1, `case[0].expect.verdict`",
            "line 4, case `b`, `expect.verdict`",
        ],
    );
    check(&CASE.replace("\"pass\"", "\"deny\""), &["line 1, case `a`, `expect.code`: is missing"]);
    check(
        &format!("{CASE}code = \"x\"\n"),
        &["line 1, case `a`, `expect.code`: stands beside a verdict that is no `deny`"],
    );
    check(&format!("{CASE}{CASE}"), &["line 6, case `a`, `name`: line 1 has a case of this name"]);
    check("[given]\nname = \"x\"\n", &["`given.name`: is each case's own"]);
    check("case = 3", &["line 1, `case`: a list of tables is wanted"]);
}

#[test]
fn each_case_tells_its_own_fault_and_what_is_no_toml_its_line() {
    let broken = CASE.replace("operation = \"run_sql\"", "operation = 1");
    check(
        &format!("{broken}{}", broken.replace("\"a\"", "\"b\"")),
        &["line 3, case `a`, `operation`", "line 8, case `b`, `operation`"],
    );
    check("[[case]]\nname =\n", &["line 2: "]);
    check("[given]\nas = 5\n", &["line 2, `given.as`: invalid type"]);
}

#[test]
fn a_case_lays_its_keys_over_what_is_given() {
    let text = format!(
        "[given]\nas = \"ben\"\ngroups = [\"x\"]\n{}",
        CASE.replace("name = \"a\"", "name = \"a\"\ngroups = [\"z\", \"y\", \"z\"]")
    );
    let entries = cases::read(&text).unwrap();
    let asked = entries[0].case.asked(&operations(), "p").unwrap();
    let principal = asked.context.principal;
    assert_eq!((principal.owner.as_str(), principal.subject.as_str()), ("ben", "ben"));
    assert_eq!(principal.groups, ["y", "z"]);
    assert_eq!(cases::read("").unwrap(), []);
    assert_eq!(cases::read("[given]\nas = \"ben\"\n").unwrap(), []);
}

#[test]
fn the_reader_is_held_against_the_cases_own_facts() {
    let line = |statements: &str| {
        let text = CASE.replacen(
            "[case.expect]",
            &format!("sql = \"DELETE FROM t; SELECT 1\"\n{statements}\n[case.expect]"),
            1,
        );
        let entries = cases::read(&text).unwrap();
        entries[0].case.asked(&operations(), "p").unwrap().differences
    };
    assert_eq!(line(""), [""; 0], "facts need not be there");
    let read = "{ class = \"read\", tag = \"SELECT\", read_only_safe = true }";
    let write =
        "{ class = \"write\", tag = \"DELETE\", writes = [\"t\"], traits = [\"no-where\", \"unqualified-relation\"] }";
    assert_eq!(line(&format!("statements = [{write}, {read}]")), [""; 0]);
    let less = write.replace("\"no-where\", ", "").replace("\"t\"", "\"u\"");
    assert_eq!(
        line(&format!("statements = [{less}, {read}]")),
        [
            "`statements[0].traits`: the reader says [\"no-where\", \"unqualified-relation\"], and the case [\"unqualified-relation\"]",
            "`statements[0].writes`: the reader says [\"t\"], and the case [\"u\"]",
        ]
    );
    assert_eq!(line(&format!("statements = [{read}]")), ["the reader finds 2 statements, and the case names 1"]);
}

#[test]
fn a_request_is_read_from_toml_and_from_json() {
    let toml = read_request("operation = \"run_sql\"\nsql = \"select 1\"\n").unwrap();
    let json = read_request(" {\"operation\": \"run_sql\", \"sql\": \"select 1\"}").unwrap();
    assert_eq!(toml, json);
    let fault = |text: &str| read_request(text).unwrap_err().to_string();
    assert!(
        fault("{\"operation\": 3}").starts_with("line 1: invalid type: integer `3`, expected a string"),
        "{}",
        fault("{\"operation\": 3}")
    );
    assert!(fault("operation = 3").starts_with("line 1, `operation`: invalid type"), "{}", fault("operation = 3"));
    assert!(fault("").contains("`operation`: is missing"));
}

#[test]
fn a_case_that_is_written_is_read_again() {
    let text = "[[case]]\nname = \"odd \\\" 'name'\"\noperation = \"clone_database\"\nas = \"ben\"\nsource = { port = 1, tls = \"verify-ca\" }\n\
                statements = [{ class = \"copy-in\", traits = [\"network\"], writes = [\"a.b\"] }]\nrequested = { labels = { k = \"v\\n\" } }\nbalances = { b = 3 }\n\
                settings = { x = [1, { y = 2.5 }] }\n[case.expect]\nverdict = \"deny\"\ncode = \"no\"\nobligations = [\"read-only\"]\ncharges = { b = 1 }\n";
    let entries = cases::read(text).unwrap();
    let written = cases::write(&entries[0].case);
    let again = cases::read(&written).unwrap_or_else(|faults| panic!("{faults:?}\n{written}"));
    assert_eq!(again[0].case, entries[0].case, "{written}");
}
