//! `run_sql` over stdio: one at a time, eight at once, a large result, and memory over many calls.

use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls};

use super::Effort;
use super::client::{Home, Server};
use super::report::{Report, Samples};

/// Calls under way at once.
const AT_ONCE: usize = 8;

pub fn measure(report: &mut Report, effort: Effort, home: &Home, server: &mut Server, sandbox: &str) {
    let select = json!({"databaseId": sandbox, "sql": "select 1", "readonly": true});
    let runtime = Runtime::new().unwrap();
    let floor = connect(&runtime, server, sandbox);
    one_at_a_time(report, effort, server, &select, &runtime, &floor);
    at_once(report, effort, server, &select, &runtime, &floor);
    large_result(report, effort, server, sandbox);
    memory(report, effort, home, &select);
}

/// Connects as the sandbox's reader, as a program beside ours would.
fn connect(runtime: &Runtime, server: &mut Server, sandbox: &str) -> Client {
    let arguments = json!({"databaseId": sandbox, "access": "readonly", "includeCredentials": true});
    let envelope = server.call("get_connection_string", &arguments);
    let url = envelope["result"]["connectionString"].as_str().unwrap();
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    })
}

/// What a client that keeps its connection pays for the same read: three statements, three answers awaited.
fn read_by_hand(runtime: &Runtime, client: &Client) {
    runtime.block_on(async {
        for statement in ["begin read only", "select 1", "rollback"] {
            client.simple_query(statement).await.unwrap();
        }
    });
}

fn one_at_a_time(
    report: &mut Report,
    effort: Effort,
    server: &mut Server,
    select: &Value,
    runtime: &Runtime,
    client: &Client,
) {
    let (mut program, mut write, mut ping, mut floor) =
        (Samples::default(), Samples::default(), Samples::default(), Samples::default());
    let mut writing = select.clone();
    writing["readonly"] = false.into();
    for _ in 0..20 {
        server.call("run_sql", select);
        server.call("run_sql", &writing);
    }
    for _ in 0..effort.samples(1000) {
        program.time(|| server.call("run_sql", select));
        write.time(|| server.call("run_sql", &writing));
        ping.time(|| {
            server.begin("ping", &json!({}));
            server.next_answer()
        });
        floor.time(|| read_by_hand(runtime, client));
    }
    let by_hand = Some(("begin, select, rollback on a kept connection", floor.median()));
    report.time("run_sql select 1, read-only, stdio, p50", program.median(), by_hand, "1 ms");
    report.time("… p99", program.percentile(99), Some(("the same, p99", floor.percentile(99))), "");
    report.time("run_sql select 1 as the owner, p50", write.median(), by_hand, "");
    report.time("MCP ping, stdio, p50: the transport alone", ping.median(), None, "");
}

fn at_once(
    report: &mut Report,
    effort: Effort,
    server: &mut Server,
    select: &Value,
    runtime: &Runtime,
    client: &Client,
) {
    let calls = effort.samples(2000).max(AT_ONCE * 4);
    let (mut rates, mut floors) = (Samples::default(), Samples::default());
    for _ in 0..5 {
        rates.time(|| {
            for number in 0..calls + AT_ONCE {
                if number >= AT_ONCE {
                    let (_, answer) = server.next_answer();
                    assert_eq!(answer["result"]["structuredContent"]["ok"], true, "{answer}");
                }
                if number < calls {
                    server.begin_call("run_sql", select);
                }
            }
        });
        floors.time(|| (0..calls).for_each(|_| read_by_hand(runtime, client)));
    }
    let rate = |samples: &Samples| calls as f64 / (samples.median() / 1e6);
    report.figure(
        "eight calls at once",
        format!("{:.0} per s", rate(&rates)),
        format!("{:.0} per s (one client by hand, one at a time)", rate(&floors)),
        "1500 per s",
    );
}

fn large_result(report: &mut Report, effort: Effort, server: &mut Server, sandbox: &str) {
    let sql = "select i as id, 'name ' || i as name, i * 1.5 as price, i % 2 = 0 as even, \
               timestamptz '2026-01-01 00:00:00+00' + i * interval '1 minute' as at from generate_series(1, 1000) i";
    let arguments = json!({"databaseId": sandbox, "sql": sql, "readonly": true, "rowLimit": 1000});
    let mut took = Samples::default();
    for _ in 0..effort.samples(50) {
        took.time(|| server.call("run_sql", &arguments));
    }
    let wire = server.last_bytes;
    let envelope = server.call("run_sql", &arguments);
    let rows = &envelope["result"]["resultSets"][0]["rows"];
    assert_eq!(rows.as_array().map(Vec::len), Some(1000), "{envelope:#}");
    let compact = rows.to_string().len();
    report.figure(
        "1000 rows × 5 columns on the wire",
        format!("{wire} bytes, ratio {:.2}", wire as f64 / compact as f64),
        format!("{compact} bytes (the rows as compact JSON)"),
        "ratio 1.3",
    );
    report.time("… p50", took.median(), None, "");
}

/// Runs in a process of its own, whose memory nothing else has touched.
fn memory(report: &mut Report, effort: Effort, home: &Home, select: &Value) {
    let calls = effort.samples(10_000);
    let mut server = Server::start(home);
    server.call("list_databases", &json!({}));
    let idle = server.rss_kib();
    let mut after = Vec::new();
    for number in 1..=calls {
        server.call("run_sql", select);
        if number == calls / 10 || number == calls / 2 || number == calls {
            after.push(format!("{:.1} after {number}", server.rss_kib() as f64 / 1024.0));
        }
    }
    server.finish();
    report.figure(
        "resident memory, MiB",
        format!("{:.1} idle", idle as f64 / 1024.0),
        after.join(", "),
        "64 MB idle, flat over 10,000 calls",
    );
}
