//! Reading SQL: the labelled statements, the named bypasses, and hostile sizes.

use pgsandbox::sql;

#[test]
fn dump() {
    let Ok(path) = std::env::var("SQL_DUMP") else { return };
    if path.ends_with(".jsonl") {
        let text = std::fs::read_to_string(&path).unwrap();
        for (n, line) in text.lines().enumerate() {
            let v: serde_json::Value = serde_json::from_str(line).unwrap();
            let sql = v["sql"].as_str().unwrap();
            let label = v["class"].as_str().unwrap();
            match sql::read(sql) {
                Err(e) => println!("{} {label} ERR {e} | {sql:?}", n + 1),
                Ok(s) => {
                    let classes: Vec<_> = s.statements.iter().map(|s| s.facts.class.as_str()).collect();
                    let safe = s.statements.iter().all(|s| s.facts.read_only_safe);
                    let ok = classes == [label] && safe == v["readonly_safe"].as_bool().unwrap();
                    if !ok {
                        println!(
                            "{} want {label} {} {} got {classes:?} {safe} {:?}| {sql:?}",
                            n + 1,
                            v["readonly_safe"],
                            v["expect"],
                            s.statements.iter().map(|s| s.facts.traits.words().collect::<Vec<_>>()).collect::<Vec<_>>()
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn hostile_probe() {
    if std::env::var("SQL_HOSTILE").is_err() {
        return;
    }
    let rep = |a: &str, n: usize| a.repeat(n);
    let cases: Vec<(&str, String)> = vec![
        ("1+1 24999", format!("SELECT 1{}", rep("+1", 24_990))),
        ("1+1 64KB", format!("SELECT 1{}", rep("+1", 32_000))),
        ("or", format!("SELECT 1 WHERE a=1{}", rep(" OR a=1", 12_000))),
        ("union 5000", format!("SELECT 1{}", rep(" UNION SELECT 1", 5_000))),
        ("union 16000", format!("SELECT 1{}", rep(" UNION SELECT 1", 16_000))),
        ("parens", format!("SELECT {}1{}", rep("(", 20_000), rep(")", 20_000))),
        ("parens45", format!("SELECT {}1{}", rep("(", 45), rep(")", 45))),
        ("subsel40", format!("SELECT {}1{}", rep("(SELECT ", 40), rep(")", 40))),
        ("from40", format!("SELECT * FROM {}t{}", rep("(", 40), rep(")", 40))),
        ("fromsel40", format!("SELECT * FROM {}t{}", rep("(SELECT * FROM ", 40), rep(") x", 40))),
        ("case 40", format!("SELECT {}1{}", rep("CASE WHEN 1=1 THEN ", 40), rep(" END", 40))),
        ("case 5000", format!("SELECT {}1{}", rep("CASE WHEN 1=1 THEN ", 5000), rep(" END", 5000))),
        ("not", format!("SELECT {}true", rep("NOT ", 40_000))),
        ("minus", format!("SELECT {}1", rep("- ", 40_000))),
        ("cast", format!("SELECT 1{}", rep("::int", 20_000))),
        ("index", format!("SELECT a{}", rep("[1]", 15_000))),
        ("dots", format!("SELECT a{}", rep(".b", 24_000))),
        ("is null", format!("SELECT a{}", rep(" IS NULL", 24_000))),
        ("join", format!("SELECT * FROM t{}", rep(" JOIN t ON true", 9_000))),
        ("joinparen", format!("SELECT * FROM {}t{}", rep("(t JOIN ", 40), rep(" ON true)", 40))),
        ("cross", format!("SELECT * FROM t{}", rep(" CROSS JOIN t", 15_000))),
        ("func", format!("SELECT {}1{}", rep("f(", 20_000), rep(")", 20_000))),
        ("func40", format!("SELECT {}1{}", rep("f(", 45), rep(")", 45))),
        ("in40", format!("SELECT {}1{}", rep("1 IN (", 45), rep(")", 45))),
        ("insel40", format!("SELECT {}1{}", rep("1 IN (SELECT ", 45), rep(")", 45))),
        ("pos40", format!("SELECT {}1{}", rep("position(", 45), rep(" in 1)", 45))),
        ("pos40b", format!("SELECT {}1{}", rep("position(", 45), rep(", 1)", 45))),
        ("substring40", format!("SELECT {}1{}", rep("substring(", 45), rep(" from 1)", 45))),
        ("array", format!("SELECT {}1{}", rep("ARRAY[", 20_000), rep("]", 20_000))),
        ("array40", format!("SELECT {}1{}", rep("ARRAY[", 45), rep("]", 45))),
        ("row40", format!("SELECT {}1{}", rep("ROW(", 45), rep(")", 45))),
        ("exists40", format!("SELECT {}1{}", rep("EXISTS(SELECT ", 45), rep(")", 45))),
        ("interval40", format!("SELECT {}1{}", rep("interval ", 45), "")),
        ("date40", format!("SELECT {}'x'", rep("date ", 45))),
        ("typed", format!("SELECT {}1{}", rep("interval (", 45), rep(")", 45))),
        ("with40", format!("{}SELECT 1{}", rep("WITH a AS (", 45), rep(") SELECT 1", 45))),
        ("openparens_unclosed", format!("SELECT {}", rep("(", 49_000))),
        ("select_parens_unclosed", format!("SELECT * FROM {}", rep("(", 49_000))),
        ("parens_mixed", format!("SELECT * FROM {}t", rep("(SELECT (", 25))),
        ("lambda", format!("SELECT {}1{}", rep("(a,", 45), rep(")", 45))),
        ("lateral", format!("SELECT * FROM {}1{}", rep("LATERAL (SELECT ", 45), rep(") x", 45))),
        ("over", format!("SELECT {}1{}", rep("f() OVER (PARTITION BY ", 45), rep(")", 45))),
        ("like", format!("SELECT a{}", rep(" LIKE a", 20_000))),
        ("between", format!("SELECT a{}", rep(" BETWEEN 1 AND 2", 10_000))),
        ("at tz", format!("SELECT a{}", rep(" AT TIME ZONE 'x'", 10_000))),
        ("collate", format!("SELECT a{}", rep(" COLLATE x", 20_000))),
        ("concat ops", format!("SELECT a{}", rep(" || a", 20_000))),
        ("explain", format!("{}SELECT 1", rep("EXPLAIN ", 40_000))),
        ("explain(", format!("{}SELECT 1", rep("EXPLAIN (", 20_000))),
        ("prepare", format!("{}SELECT 1", rep("PREPARE a AS ", 15_000))),
        ("declare", format!("{}SELECT 1", rep("DECLARE a CURSOR FOR ", 12_000))),
        ("copy", format!("{}SELECT 1{}", rep("COPY (", 20_000), rep(") TO STDOUT", 10_000))),
        ("as", format!("SELECT 1{} INTO x", rep(" AS", 40_000))),
        ("into as", format!("SELECT 1{} x", rep(" AS INTO", 24_000))),
        ("create schema", format!("CREATE SCHEMA s{}", rep(" CREATE TABLE t", 16_000))),
        ("copies", rep("COPY t FROM STDIN;\n", 10_000)),
        ("copies data", rep("COPY t FROM STDIN;\n\\.\n", 10_000)),
        ("strings", rep("SELECT '' -- x\n;", 10_000)),
        ("continuation", format!("SELECT ''{}", rep("\n''", 200_000))),
        ("many parens statements", rep("SELECT ((((((((((1))))))))));", 10_000)),
        ("typecast nest", format!("SELECT {}1{}", rep("cast(", 45), rep(" as int)", 45))),
        ("values", format!("VALUES {}", rep("(1,2),", 8_000).trim_end_matches(','))),
        ("create table parens", format!("CREATE TABLE t (a int CHECK ({}1{}))", rep("(", 40), rep(")", 40))),
        ("trim", format!("SELECT {}'x'{}", rep("trim(both from ", 45), rep(")", 45))),
        ("extract", format!("SELECT {}'x'{}", rep("extract(year from ", 45), rep(")", 45))),
        ("mixed1", format!("SELECT {}1{}", rep("(CASE WHEN f(1) IN (SELECT ", 12), rep(") THEN 1 END)", 12))),
        ("mixed2", format!("SELECT {}1", rep("(CASE WHEN f(1) IN (SELECT ", 12))),
        ("mixed3", format!("SELECT {}1", rep("interval (f((", 12))),
        ("mixed4", format!("SELECT {}1", rep("date (timestamp (", 20))),
        ("mixed5", format!("SELECT * FROM {}t", rep("(t JOIN (SELECT * FROM ", 15))),
        ("type names", format!("SELECT {}1", rep("a.b (", 45))),
        ("array type", format!("SELECT 1::{}", rep("array<", 45))),
    ];
    let only = std::env::var("SQL_HOSTILE").unwrap();
    for (name, text) in cases {
        if only != "1" && only != name {
            continue;
        }
        eprint!("{name}: ");
        let started = std::time::Instant::now();
        let out = sql::read(&text);
        let t = started.elapsed();
        match out {
            Err(e) => eprintln!("{t:?} ERR {e}"),
            Ok(s) => eprintln!(
                "{t:?} {} {:?}",
                s.statements.len(),
                s.statements.first().map(|s| (
                    s.facts.class.as_str(),
                    s.facts.read_only_safe,
                    s.facts.traits.words().collect::<Vec<_>>()
                ))
            ),
        }
    }
}
