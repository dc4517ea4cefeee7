//! Forks, templates and clones of one database, beside what the server and its own programs take for the same.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use pgsandbox::engine::postgres::{
    ADMIN_ROLE, BinarySettings, ManagedSettings, PostgresServer, PostgresSettings, ServerSource, discover,
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::Effort;
use super::client::{Home, Server};
use super::report::{Report, Samples, Target};

/// Tables of the database that is copied, and the rows of each: 100,000 together.
const TABLES: usize = 50;
const ROWS: usize = 2000;
/// What a copy may take beyond the server's own: 15 ms, and 0.4 ms for each of fifty tables.
const BEYOND_MAX_US: f64 = 35e3;
const BEYOND_MAX: &str = "≤ floor + 35 ms";

/// The server's programs, and how its superuser reaches it.
struct ByHand {
    bin_dir: PathBuf,
    environment: Vec<(&'static str, String)>,
}

pub fn measure(report: &mut Report, effort: Effort, home: &Home, server: &mut Server) {
    let runtime = Runtime::new().unwrap();
    let managed = ServerSource::Managed(ManagedSettings::new(home.state().join("postgres")));
    let postgres = PostgresServer::new(PostgresSettings::new("bench", "bench", managed));
    let admin = runtime.block_on(postgres.admin_session()).unwrap();
    let execute = |sql: &str| runtime.block_on(admin.execute(sql, &[])).unwrap();

    let made = server.call("create_database", &json!({"ttlMinutes": 60, "nameHint": "source"}));
    let source = made["result"]["databaseId"].as_str().unwrap().to_owned();
    let database = made["result"]["databaseName"].as_str().unwrap().to_owned();
    server.call("run_sql", &json!({"databaseId": source, "sql": contents()}));
    server.call("create_template_from_sandbox", &json!({"databaseId": source, "templateName": "bench"}));

    let (mut fork, mut template, mut floor) = (Samples::default(), Samples::default(), Samples::default());
    for number in 0..effort.samples(20) {
        let arguments = json!({"databaseId": source, "nameHint": "fork"});
        let forked = fork.time(|| server.call("fork_database", &arguments));
        delete(server, &forked);
        let arguments = json!({"templateName": "bench", "nameHint": "made"});
        let from = template.time(|| server.call("create_sandbox_from_template", &arguments));
        delete(server, &from);
        floor.time(|| execute(&format!("CREATE DATABASE bench_copy_{number} TEMPLATE {database}")));
        execute(&format!("DROP DATABASE bench_copy_{number}"));
    }
    let by_server = Some(("the server's own CREATE DATABASE … TEMPLATE", floor.median()));
    for (measure, samples) in [
        ("fork_database of 50 tables with 100,000 rows, p50", &fork),
        ("create_sandbox_from_template of the same, p50", &template),
    ] {
        let beyond = samples.median() - floor.median();
        report.time(measure, samples.median(), by_server, Target::Words(BEYOND_MAX, beyond <= BEYOND_MAX_US));
        report.profile(
            measure,
            [
                ("the server's own CREATE DATABASE … TEMPLATE", floor.median()),
                ("the gate", report.notes.gate_us),
                ("the rest: records, roles, what is in it given to them", beyond - report.notes.gate_us),
            ],
        );
    }
    two_at_once(report, effort, home, server, &source);
    clone(report, effort, home, server, &runtime, &source);
    server.call("delete_template", &json!({"templateName": "bench"}));
    server.call("delete_database", &json!({"databaseId": source, "wait": true}));
}

/// Returns the statements that make the tables, each with a key, an index and a reference to the one before.
fn contents() -> String {
    let table = |n: usize| {
        let before = n.saturating_sub(1);
        format!(
            "create table t{n} (id int primary key, a text, b int references t{before} (id), c timestamptz default now()); \
             create index on t{n} (a); insert into t{n} select g, 'row ' || g, g from generate_series(1, {ROWS}) g;"
        )
    };
    (0..TABLES).map(table).collect()
}

fn delete(server: &mut Server, made: &Value) {
    server.call("delete_database", &json!({"databaseId": made["result"]["databaseId"], "wait": true}));
}

/// Forks one source from two programs at the same time.
fn two_at_once(report: &mut Report, effort: Effort, home: &Home, server: &mut Server, source: &str) {
    let mut other = Server::start(home);
    other.call("list_databases", &json!({}));
    let arguments = json!({"databaseId": source, "nameHint": "both"});
    let (mut both, mut refused) = (Samples::default(), Vec::new());
    for _ in 0..effort.samples(10) {
        let answers = both.time(|| {
            server.begin_call("fork_database", &arguments);
            other.begin_call("fork_database", &arguments);
            [server.next_answer().1, other.next_answer().1]
        });
        for answer in answers {
            let envelope = &answer["result"]["structuredContent"];
            if envelope["ok"] == true { delete(server, envelope) } else { refused.push(envelope["errors"].to_string()) }
        }
    }
    other.finish();
    let done = if refused.is_empty() { "both made, each time".to_owned() } else { refused.join("; ") };
    report.figure(
        "two forks of it at once, by two programs, p50",
        super::report::shown(both.median()),
        done,
        Target::Words("both are made", refused.is_empty()),
    );
}

/// Clones the source from its own server, beside the same by hand with that server's programs.
fn clone(report: &mut Report, effort: Effort, home: &Home, server: &mut Server, runtime: &Runtime, source: &str) {
    let arguments = json!({"databaseId": source, "includeCredentials": true});
    let url =
        server.call("get_connection_string", &arguments)["result"]["connectionString"].as_str().unwrap().to_owned();
    let by_hand = ByHand::find(home, runtime);
    let (mut clone, mut hand) = (Samples::default(), Samples::default());
    for number in 0..effort.samples(10) {
        let arguments = json!({"sourceDatabaseUrl": url, "nameHint": "clone"});
        let cloned = clone.time(|| server.call("clone_database", &arguments));
        delete(server, &cloned);
        let target = format!("bench_hand_{number}");
        hand.time(|| {
            by_hand.run("createdb", &["--template", "template0", &target]);
            by_hand.copy(&url, &target);
        });
        by_hand.run("dropdb", &[&target]);
    }
    let measure = "clone_database of the same, p50";
    let floor = Some(("createdb, pg_dump | pg_restore by hand", hand.median()));
    report.time(measure, clone.median(), floor, Target::RatioMax(1.2));
    report.profile(
        measure,
        [
            ("createdb, pg_dump | pg_restore by hand", hand.median()),
            ("the rest: source examined, records, roles, contents compared", clone.median() - hand.median()),
        ],
    );
}

impl ByHand {
    fn find(home: &Home, runtime: &Runtime) -> Self {
        let servers = home.state().join("postgres/postgres");
        let cluster =
            fs::read_dir(servers).unwrap().map(|entry| entry.unwrap().path()).find(|path| path.is_dir()).unwrap();
        let major: u16 = cluster.file_name().unwrap().to_str().unwrap().parse().unwrap();
        let found = runtime.block_on(discover(&BinarySettings::default()));
        let bin_dir = found.into_iter().find(|one| one.major == major).unwrap().bin_dir;
        let told = |file: &str| fs::read_to_string(cluster.join(file)).unwrap().trim().to_owned();
        let environment = vec![
            ("PGHOST", told("socket-directory")),
            ("PGPORT", told("port")),
            ("PGUSER", ADMIN_ROLE.to_owned()),
            ("PGPASSWORD", told("admin-password")),
        ];
        Self { bin_dir, environment }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.bin_dir.join(program));
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        let status = self.command(program).args(arguments).stdin(Stdio::null()).status().unwrap();
        assert!(status.success(), "{program} {arguments:?}: {status}");
    }

    /// Dumps a database into another.
    fn copy(&self, url: &str, target: &str) {
        let mut dump = self.command("pg_dump").args(["--format=custom", url]).stdout(Stdio::piped()).spawn().unwrap();
        let archive = dump.stdout.take().unwrap();
        let restored = self
            .command("pg_restore")
            .args(["--no-owner", "--no-privileges", "--single-transaction", "--exit-on-error", "--dbname", target])
            .stdin(archive)
            .status()
            .unwrap();
        assert!(restored.success() && dump.wait().unwrap().success(), "{restored}");
    }
}
