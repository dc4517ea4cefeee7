//! Creating and deleting, beside what the server itself takes for a database.

use std::thread::sleep;
use std::time::{Duration, Instant};

use pgsandbox::engine::postgres::{ManagedSettings, PostgresServer, PostgresSettings, ServerSource};
use serde_json::json;
use tokio::runtime::Runtime;

use super::Effort;
use super::client::{Home, Server};
use super::report::{Report, Samples, Target, shown};

/// Sandboxes deleted together.
const TOGETHER: usize = 60;
/// The same in a quick run.
const TOGETHER_QUICK: usize = 10;
/// The time in which they are to be gone.
const GONE_MAX: Duration = Duration::from_secs(15);
/// How often the list is looked at for what is not gone yet.
const LOOK: Duration = Duration::from_millis(20);

pub fn measure(report: &mut Report, effort: Effort, home: &Home, server: &mut Server) {
    let runtime = Runtime::new().unwrap();
    let managed = ServerSource::Managed(ManagedSettings::new(home.state().join("postgres")));
    let postgres = PostgresServer::new(PostgresSettings::new("bench", "bench", managed));
    let admin = runtime.block_on(postgres.admin_session()).unwrap();
    let execute = |sql: &str| runtime.block_on(admin.execute(sql, &[])).unwrap();

    let (mut create, mut floor, mut delete) = (Samples::default(), Samples::default(), Samples::default());
    let count = effort.samples(20);
    let mut made = Vec::new();
    for number in 0..count {
        made.push(create.time(|| server.create()));
        floor.time(|| execute(&format!("CREATE DATABASE bench_{number} TEMPLATE template0")));
    }
    let mut dropped = Samples::default();
    (0..count).for_each(|number| _ = dropped.time(|| execute(&format!("DROP DATABASE bench_{number}"))));
    for id in made {
        delete.time(|| server.call("delete_database", &json!({"databaseId": id})));
    }
    report.time(
        "create_database, p50",
        create.median(),
        Some(("the server's own CREATE DATABASE", floor.median())),
        Target::RatioMax(1.5),
    );
    let rest = create.median() - floor.median();
    report.profile(
        "create_database, p50",
        [
            ("the server's own CREATE DATABASE", floor.median()),
            ("the rest: gate, records, roles, rights, the second connection", rest),
        ],
    );
    let measure = "delete_database, answer, p50";
    let in_server = Some(("a DROP DATABASE by hand, which the answer does not wait for", dropped.median()));
    report.time(measure, delete.median(), in_server, Target::UsMax(20e3));
    report.profile(
        measure,
        [
            ("the gate", report.notes.gate_us),
            ("the rest: the records, logins taken away, sessions ended", delete.median() - report.notes.gate_us),
        ],
    );

    let together = if effort.divisor > 1 { TOGETHER_QUICK } else { TOGETHER };
    let ids: Vec<String> = (0..together).map(|_| server.create()).collect();
    let databases = || -> i64 {
        let sql = "select count(*) from pg_catalog.pg_database where datname like 'pgsandbox\\_%'";
        runtime.block_on(admin.query_one(sql, &[])).unwrap().get(0)
    };
    // The deletions measured before may still be under way; one sandbox is kept for the measures that follow.
    while databases() > i64::try_from(together).unwrap() + 1 {
        sleep(LOOK);
    }
    let began = Instant::now();
    ids.iter().for_each(|id| _ = server.begin_call("delete_database", &json!({"databaseId": id})));
    ids.iter().for_each(|_| _ = server.next_answer());
    let answered = began.elapsed();
    while databases() > 1 {
        sleep(LOOK);
    }
    let gone = began.elapsed();
    report.figure(
        format!("{together} deletes at once, all gone"),
        shown(gone.as_secs_f64() * 1e6),
        format!("{} (all answered)", shown(answered.as_secs_f64() * 1e6)),
        Target::Words("≤ 15 s for sixty", gone <= GONE_MAX),
    );
}
