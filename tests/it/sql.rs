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
