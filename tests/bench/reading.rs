//! Reading SQL: tokens alone, statements classed by their words, and statements that are parsed.

use std::fmt::Write as _;
use std::hint::black_box;

use pgsandbox::sql;

use super::Effort;
use super::report::{Report, Samples, Target};

/// Statements in a generated text.
const STATEMENTS: usize = 200;

pub fn measure(report: &mut Report, effort: Effort) {
    check(report, effort, "a short INSERT", |text, n| {
        writeln!(text, "INSERT INTO app.items (id, name, price) VALUES ({n}, 'item {n}', {n}.5);")
    });
    check(report, effort, "a SELECT with joins and a CTE", |text, n| {
        write!(
            text,
            "WITH recent AS (SELECT id, owner_id FROM app.orders WHERE created_at > now() - interval '{n} days')\n\
             SELECT o.name, count(*), sum(i.price * i.quantity) FROM recent r JOIN app.owners o ON o.id = r.owner_id\n\
             LEFT JOIN app.items i ON i.order_id = r.id WHERE o.name LIKE 'a%' AND i.price BETWEEN 1 AND {n}\n\
             GROUP BY o.name HAVING count(*) > {n} ORDER BY 2 DESC LIMIT 10;\n"
        )
    });
    check(report, effort, "a statement without a tree (BEGIN)", |text, _| writeln!(text, "BEGIN;"));
}

fn check(report: &mut Report, effort: Effort, what: &str, statement: impl Fn(&mut String, usize) -> std::fmt::Result) {
    let mut text = String::new();
    (0..STATEMENTS).for_each(|number| statement(&mut text, number).unwrap());
    let (mut whole, mut tokens) = (Samples::default(), Samples::default());
    for _ in 0..effort.samples(100) {
        let script = whole.time(|| sql::read(black_box(&text)).unwrap());
        assert_eq!(script.statements.len(), STATEMENTS);
        tokens.time(|| black_box(sql::scanner::tokens(black_box(&text)).unwrap()));
    }
    let each = |samples: &Samples| samples.median() / STATEMENTS as f64;
    report.time(format!("reading {what}"), each(&whole), Some(("its tokens alone", each(&tokens))), Target::None);
}
