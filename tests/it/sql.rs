//! Reading SQL as a whole: the labelled statements, every known bypass, hostile sizes, and properties of all texts.

#![expect(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "helpers of tests fail as tests do")]

mod server;

use std::time::Duration;

use pgsandbox::model::{StatementClass, StatementFacts};
use pgsandbox::sql::scanner::{TokenKind, tokens};
use pgsandbox::sql::{Reader, SqlError, read};
use proptest::prelude::*;
use serde_json::Value;

const LABELLED: &str = include_str!("../cases/sql-labelled.jsonl");

fn facts(sql: &str) -> Vec<StatementFacts> {
    read(sql).unwrap_or_else(|e| panic!("{sql:?}: {e}")).statements.iter().map(|s| s.facts.clone()).collect()
}

fn classes(sql: &str) -> Vec<&'static str> {
    facts(sql).iter().map(|f| f.class.as_str()).collect()
}

/// Returns what is read of a text in short: classes, and whether all of it is safe; or that it is refused.
fn summary(sql: &str) -> String {
    match read(sql) {
        Err(_) => "refused".to_owned(),
        Ok(script) => {
            let classes: Vec<_> = script.statements.iter().map(|s| s.facts.class.as_str()).collect();
            let safe = script.statements.iter().all(|s| s.facts.read_only_safe);
            format!("{} {}", classes.join("+"), if safe { "safe" } else { "unsafe" })
        }
    }
}

/// Where we differ from a label on purpose: the text, what we say, and why.
const DEVIATIONS: &[(&str, &str, &str)] = &[
    ("SELECT 1 AS U&\"d\\0061ta\"", "read unsafe", "a name in Unicode escapes is never trusted"),
    ("SELECT 1 END", "read unsafe", "the parser does not take reserved words as bare labels"),
    ("SELECT true AND", "read unsafe", "the parser does not take reserved words as bare labels"),
    ("SELECT pure_add(1, 2)", "read unsafe", "a user's function; a policy may allow it"),
    ("SELECT pure_add(a => 1, b => 2)", "read unsafe", "a user's function; a policy may allow it"),
    ("SELECT * FROM list_owners()", "read unsafe", "a user's function; a policy may allow it"),
    ("SELECT * FROM noisy_view", "read safe", "only Postgres can stop it: the view calls a function"),
    ("SELECT a.touch FROM accounts a", "read safe", "only Postgres can stop it: a call written as a column"),
    ("SELECT ROW(1)::money_pair::int", "read safe", "only Postgres can stop it: a cast with a function"),
    ("EXPLAIN ANALYZE SELECT count(*) FROM accounts", "read safe", "it runs, so it has its statement's class"),
    ("EXPLAIN ANALYSE SELECT 1", "read safe", "it runs, so it has its statement's class"),
    (
        "EXPLAIN (ANALYZE, BUFFERS, FORMAT TEXT) SELECT * FROM orders",
        "read safe",
        "it runs, so it has its statement's class",
    ),
    ("EXPLAIN (ANALYZE true, TIMING off) TABLE accounts", "read safe", "it runs, so it has its statement's class"),
    ("explain (analyze \"on\") select 1", "read safe", "it runs, so it has its statement's class"),
    ("EXPLAIN ANALYZE SELECT bump_audit()", "read unsafe", "it runs, so it has its statement's class"),
    ("\\restrict abcdef", " safe", "a line of pg_dump that is stepped over: nothing is left to run"),
    ("SELECT 1 FROM accounts WHERE", "read unsafe", "keywords make it a read; Postgres finds the fault"),
    ("SELECT `id` FROM accounts", "read unsafe", "keywords make it a read; Postgres finds the fault"),
    ("SELECT TOP 5 * FROM accounts", "read unsafe", "keywords make it a read; Postgres finds the fault"),
    ("SELECT * FROM accounts WHERE id = $1", "read safe", "safe once its parameter is bound"),
    ("SHOW TABLES", "show safe", "a setting that does not exist; Postgres says so"),
];

#[test]
fn labelled_statements_are_read_as_labelled() {
    let mut deviations: Vec<_> = DEVIATIONS.iter().map(|(sql, ..)| *sql).collect();
    let mut wrong = Vec::new();
    let mut count = 0;
    for line in LABELLED.lines() {
        let label: Value = serde_json::from_str(line).unwrap();
        let sql = label["sql"].as_str().unwrap();
        let safe = label["readonly_safe"].as_bool().unwrap();
        let class = label["class"].as_str().unwrap();
        let classes = match class {
            "multi" => {
                label["classes"].as_array().unwrap().iter().map(|c| c.as_str().unwrap()).collect::<Vec<_>>().join("+")
            }
            "empty" => String::new(),
            class => class.to_owned(),
        };
        let expected = format!("{classes} {}", if safe { "safe" } else { "unsafe" });
        let got = summary(sql);
        count += 1;
        // What is refused is of no class, and is run in no mode.
        if got == expected || (got == "refused" && class == "unparsed") {
            continue;
        }
        match DEVIATIONS.iter().find(|(text, ..)| *text == sql) {
            Some((_, allowed, _)) if *allowed == got => deviations.retain(|text| *text != sql),
            _ => wrong.push(format!("{sql:?}: expected {expected}, got {got}")),
        }
    }
    assert_eq!(count, 400);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(deviations.is_empty(), "deviations that are none any more: {deviations:?}");
}

#[test]
fn nearly_all_labelled_reads_are_safe_and_nothing_that_must_be_refused_is() {
    let (mut reads, mut safe_reads) = (0, 0);
    for line in LABELLED.lines() {
        let label: Value = serde_json::from_str(line).unwrap();
        let sql = label["sql"].as_str().unwrap();
        let is_safe = summary(sql).ends_with(" safe");
        if label["readonly_safe"].as_bool().unwrap() && label["statements"].as_u64().unwrap() > 0 {
            reads += 1;
            safe_reads += u32::from(is_safe);
        }
        if label["expect"] == "refuse" && is_safe {
            let reason = DEVIATIONS.iter().find(|(text, ..)| *text == sql).map_or("", |(.., reason)| *reason);
            let excused = reason.starts_with("only Postgres can stop it") || reason.ends_with("nothing is left to run");
            assert!(excused, "{sql:?} must be refused");
        }
    }
    assert!(f64::from(safe_reads) / f64::from(reads) >= 0.95, "{safe_reads} of {reads}");
}

#[test]
fn the_labelled_statements_own_fixture_is_understood() {
    let script = read(include_str!("../cases/sql-fixture.sql")).unwrap();
    assert_eq!(script.statements.len(), 22);
    assert!(script.statements.iter().all(|s| s.facts.class != StatementClass::Unparsed));
}

#[test]
fn the_bypasses_that_fool_a_parser_on_text_are_seen() {
    // Text after END, which a parser of scripts drops.
    assert_eq!(classes("SELECT 1 END; DROP TABLE t"), ["read", "ddl"]);
    // Comments that begin inside what looks like an operator, and hide a quote.
    assert_eq!(classes("SELECT 3 >-- '\n 2; DROP TABLE t; -- '"), ["read", "ddl"]);
    assert_eq!(classes("SELECT 3 -/* ' */ 2; DROP TABLE t; -- '"), ["read", "ddl"]);
    // The same within one statement, around a WITH item that deletes.
    assert_eq!(
        classes("WITH a AS (SELECT 3 >-- '\n 2), b AS (DELETE FROM t RETURNING 1) SELECT * FROM b -- ') SELECT 1"),
        ["write"]
    );
    assert_eq!(
        classes("WITH a AS (SELECT 3 -/* ' */ 2), b AS (DELETE FROM t RETURNING 1) SELECT 1 -- ') SELECT 1"),
        ["write"]
    );
    // Dollar tags of bytes over 0x7f, which make of SQL a string, and of a string SQL.
    assert_eq!(classes("SELECT $é$; DROP TABLE t; $é$"), ["read"]);
    assert_eq!(classes("SELECT $é$ ' $é$; DROP TABLE t; --'"), ["read", "ddl"]);
    assert_eq!(
        classes("WITH a AS (SELECT $é$ ' $é$), b AS (DELETE FROM t RETURNING 1) SELECT 1 -- ') SELECT 1"),
        ["write"]
    );
    // Reserved words as bare labels before INTO.
    for sql in ["SELECT a AND INTO x FROM t", "SELECT a LIKE INTO x FROM t", "SELECT a END INTO x FROM t"] {
        assert_eq!(classes(sql), ["ddl"], "{sql}");
    }
    // A function's name in Unicode escapes.
    assert_eq!(summary("SELECT U&\"pg_sl\\0065ep\"(1)"), "read unsafe");
    // COPY does not swallow the lines after it.
    assert_eq!(classes("COPY t FROM STDIN;\nDROP TABLE t;"), ["copy-in", "ddl"]);
    // Functions in FROM are calls.
    assert_eq!(facts("SELECT * FROM bump()")[0].functions, ["bump"]);
    assert_eq!(summary("SELECT * FROM bump()"), "read unsafe");
    assert_eq!(summary("SELECT * FROM lower('x'), LATERAL bump()"), "read unsafe");
    assert_eq!(summary("SELECT * FROM ROWS FROM (bump(), lower('x')) AS r"), "read unsafe");
}

#[test]
fn what_runs_in_a_read_only_transaction_is_not_called_safe() {
    for sql in [
        "EXPLAIN ANALYZE CREATE TABLE x AS SELECT 1",
        "SELECT lo_create(0)",
        "NOTIFY c",
        "SELECT pg_notify('c', 'x')",
        "LOCK t",
        "REINDEX TABLE t",
        "CLUSTER t",
        "SET a = 1",
        "SET transaction_read_only = off",
        "SELECT set_config('transaction_read_only', 'off', false)",
        "PREPARE TRANSACTION 'x'",
        "COPY t TO '/tmp/x'",
        "COPY (SELECT 1) TO PROGRAM 'x'",
        "SELECT pg_create_physical_replication_slot('x')",
        "DO $$ BEGIN NULL; END $$",
        "CALL p()",
    ] {
        assert!(summary(sql).ends_with(" unsafe"), "{sql}");
    }
}

#[test]
fn lexical_tricks_do_not_move_a_boundary() {
    for (sql, expected) in [
        ("SELECT 1 a$$; DROP TABLE t; SELECT 1 b$$", &["read", "ddl", "read"][..]),
        ("SELECT E'a'\n'\\''; DELETE FROM t; --'", &["read", "write"]),
        ("SELECT 'a\\'; DELETE FROM t; --'", &["read", "write"]),
        ("SELECT U&'a\\'; DELETE FROM t; --'", &["read", "write"]),
        ("SELECT 1 /* /* */ */; DELETE FROM t", &["read", "write"]),
        ("SELECT 1 -- x\r; DELETE FROM t", &["read", "write"]),
        ("SELECT 'a'''; DELETE FROM t; SELECT '''b'", &["read", "write", "read"]),
        ("SELECT 1 AS \"a\"\"'\"; DELETE FROM t; SELECT 1 AS \"'\"", &["read", "write", "read"]),
        ("SELECT B'1''; DELETE FROM t; --'", &["read"]),
        ("SELECT X'1'''; DELETE FROM t; --'", &["read", "write"]),
        ("SELECT 'a' -- x'\n'; DELETE FROM t; --'; DROP TABLE t", &["read", "ddl"]),
        ("SELECT $a$ $b$; $a$; DELETE FROM t; $b$ $c$ $b$", &["read", "write", "unparsed"]),
    ] {
        assert_eq!(classes(sql), expected, "{sql:?}");
    }
    for sql in
        ["SELECT $1a$$; DROP TABLE t", "SELECT 1a", "SELECT\u{b}1", "SELECT '\0'", "SELECT \"\"", "SELECT 0x1F$$x$$"]
    {
        assert!(read(sql).is_err(), "{sql:?}");
    }
}

/// Returns the CPU time of this process: unlike the clock, it does not run while others have the processor.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let after_name = stat.rsplit_once(')').unwrap().1;
    let ticks: u64 = after_name.split_whitespace().skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}

/// Reads on a thread with a small stack, and within a time that no linear work comes near.
fn read_on_a_small_stack(name: &str, sql: String) -> Result<Vec<(StatementClass, bool)>, SqlError> {
    let started = cpu_time();
    let thread = std::thread::Builder::new().stack_size(1 << 20).spawn(move || {
        read(&sql).map(|s| s.statements.iter().map(|s| (s.facts.class, s.facts.read_only_safe)).collect())
    });
    let result = thread.unwrap().join().unwrap();
    let took = cpu_time() - started;
    assert!(took < Duration::from_secs(10), "{name} took {took:?}");
    result
}

#[test]
fn hostile_sizes_neither_overflow_the_stack_nor_take_long() {
    let nested = |open: &str, close: &str, n: usize| format!("SELECT {}1{}", open.repeat(n), close.repeat(n));
    let deep = [
        ("operators", format!("SELECT 1{}", "+1".repeat(24_990))),
        ("or", format!("SELECT 1 WHERE a=1{}", " OR a=1".repeat(12_000))),
        ("union", format!("SELECT 1{}", " UNION SELECT 1".repeat(5_000))),
        ("union to the limit", format!("SELECT 1{}", " UNION SELECT 1".repeat(16_000))),
        ("parentheses", nested("(", ")", 20_000)),
        ("open parentheses", format!("SELECT * FROM {}", "(".repeat(49_000))),
        ("case", nested("CASE WHEN 1=1 THEN ", " END", 5_000)),
        ("calls", nested("f(", ")", 10_000)),
        ("subqueries", nested("(SELECT ", ")", 10_000)),
        ("derived tables", format!("SELECT * FROM {}t{}", "(SELECT * FROM ".repeat(5_000), ") x".repeat(5_000))),
        ("not", format!("SELECT {}true", "NOT ".repeat(40_000))),
        ("minus", format!("SELECT {}1", "- ".repeat(40_000))),
        ("casts", format!("SELECT 1{}", "::int".repeat(20_000))),
        ("joins", format!("SELECT * FROM t{}", " JOIN t ON true".repeat(9_000))),
        ("subscripts", format!("SELECT a{}", "[1]".repeat(15_000))),
        ("dots", format!("SELECT a{}", ".b".repeat(24_000))),
        ("explain", format!("{}SELECT 1", "EXPLAIN ".repeat(40_000))),
        ("prepare", format!("{}SELECT 1", "PREPARE a AS ".repeat(15_000))),
        ("labels", format!("SELECT 1{} INTO x", " AS".repeat(40_000))),
        ("bodies", format!("CREATE FUNCTION f(){}", " BEGIN ATOMIC CREATE FUNCTION f()".repeat(7_000))),
    ];
    for (name, sql) in deep {
        let result = read_on_a_small_stack(name, sql);
        assert_eq!(result.map(|s| s.len()), Ok(1), "{name}");
    }
    let wide = [
        ("copy without data", "COPY t FROM STDIN;".repeat(10_000)),
        ("copy with data", "COPY t FROM STDIN;\n\\.\n".repeat(10_000)),
        ("strings", "SELECT '' -- x\n;".repeat(10_000)),
        ("continued string", format!("SELECT ''{}", "\n''".repeat(200_000))),
        ("dollars", format!("SELECT $a${}$a$", "$a".repeat(200_000))),
        ("blank lines", "\n".repeat(1 << 20)),
        ("comments", "--\n".repeat(300_000)),
    ];
    for (name, sql) in wide {
        assert!(read_on_a_small_stack(name, sql).is_ok(), "{name}");
    }
}

#[test]
fn trees_at_the_edge_of_the_callers_stack_fit_it() {
    // The longest chains that are still read on the caller's own stack, and the first that are not.
    for operators in 490..505 {
        let result = read_on_a_small_stack("chain", format!("SELECT 1{}", "+1".repeat(operators)));
        assert_eq!(result, Ok(vec![(StatementClass::Read, true)]));
    }
}

#[test]
fn sizes_over_a_limit_are_refused_by_name() {
    let refused = |sql: String| read_on_a_small_stack("refused", sql).unwrap_err();
    assert!(matches!(refused(format!("SELECT '{}'", "a".repeat(1 << 20))), SqlError::TooLong { .. }));
    assert!(matches!(refused(format!("SELECT 1{}", "+1".repeat(200_000))), SqlError::Tokens { .. }));
    assert!(matches!(refused(format!("SELECT 1{}", "+1".repeat(32_000))), SqlError::Tokens { .. }));
    assert!(matches!(refused(format!("{}1", "/*".repeat(20_000))), SqlError::CommentDepth { .. }));
    assert!(matches!(refused(format!("SELECT 1 {} 1", "*".repeat(200_000))), SqlError::OperatorRun { .. }));
    assert!(matches!(refused("SELECT 1;".repeat(10_001)), SqlError::Statements { .. }));
    assert!(matches!(refused("SELECT '\0'".to_owned()), SqlError::Nul { .. }));
    assert!(matches!(refused("SELECT\u{b}1".to_owned()), SqlError::ControlCharacter { .. }));
}

/// Pieces of text that meet each other badly.
const FRAGMENTS: &[&str] = &[
    "'",
    "''",
    "\"",
    "\"\"",
    "E'",
    "e'",
    "B'",
    "x'",
    "N'",
    "U&'",
    "U&\"",
    "u&",
    "\\",
    "\\'",
    "$$",
    "$a$",
    "$é$",
    "$1",
    "$",
    "a$$",
    "--",
    "/*",
    "*/",
    "-",
    "/",
    "*",
    "+",
    "@",
    "<",
    ">",
    "=",
    "|",
    "?",
    "~",
    "\n",
    "\r",
    " ",
    "\t",
    "\u{c}",
    "1",
    "1.",
    ".5",
    "..",
    "1e",
    "0x",
    "_",
    "a",
    "é",
    "select",
    "INTO",
    "AS",
    "(",
    ")",
    "[",
    "]",
    ";",
    ",",
    ".",
    ":",
    "::",
    ":=",
    "=>",
    "BEGIN ATOMIC",
    "END",
    "COPY t FROM STDIN;\n",
    "\\.\n",
    "\\restrict x\n",
    "\u{200b}",
    "\0",
    "\u{b}",
    "{",
];

fn soup(max: usize) -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(FRAGMENTS), 0..max).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn tokens_tile_the_text(text in prop_oneof![soup(40), any::<String>()]) {
        if let Ok(all) = tokens(&text) {
            let mut end = 0;
            for token in all {
                prop_assert_eq!(token.start, end);
                prop_assert!(token.end > token.start);
                prop_assert!(text.is_char_boundary(token.end));
                end = token.end;
            }
            prop_assert_eq!(end, text.len());
        }
    }

    #[test]
    fn reading_never_panics_and_never_depends_on_what_was_read_before(text in prop_oneof![soup(40), any::<String>()]) {
        let reader = Reader::default();
        let first = reader.read(&text);
        prop_assert_eq!(&first, &reader.read(&text));
        prop_assert_eq!(&first, &read(&text));
    }

    #[test]
    fn between_statements_there_is_nothing_that_runs(text in soup(40)) {
        let Ok(script) = read(&text) else { return Ok(()) };
        let mut end = 0;
        for statement in &script.statements {
            prop_assert!(statement.text.start >= end);
            prop_assert!(!is_code(&text[end..statement.text.start]), "{:?}", &text[end..statement.text.start]);
            end = statement.copy_data.as_ref().map_or(statement.text.end, |data| data.end);
        }
        prop_assert!(!is_code(&text[end..]), "{:?}", &text[end..]);
    }

    #[test]
    fn statements_read_alone_are_what_they_are_among_others(text in soup(40)) {
        let Ok(script) = read(&text) else { return Ok(()) };
        for statement in &script.statements {
            let alone = read(&text[statement.text.clone()]).unwrap();
            prop_assert_eq!(alone.statements.len(), 1);
            prop_assert_eq!(alone.statements[0].facts.class, statement.facts.class);
            prop_assert_eq!(alone.statements[0].facts.fingerprint, statement.facts.fingerprint);
        }
    }
}

/// Returns whether a text has more than blanks, comments, semicolons and lines that are stepped over.
fn is_code(text: &str) -> bool {
    let text = text.replace("\\restrict x\n", "").replace("\\.\n", "").replace('\u{feff}', "");
    // What is left of a `\restrict` line runs to the end of the line, and the last line may have no end.
    let stepped_over = |line: &str| line.trim_start().starts_with("\\restrict") || line == "\\.";
    let text = text.lines().filter(|line| !stepped_over(line)).collect::<Vec<_>>().join("\n");
    let quiet = |kind| matches!(kind, TokenKind::Space | TokenKind::Comment | TokenKind::Semicolon);
    tokens(&text).is_ok_and(|all| all.iter().any(|t| !quiet(t.kind)))
}
