//! `run_sql` over stdio: one at a time, eight at once, a large result, and memory over many calls.

use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls};

use super::Effort;
use super::client::{Home, Server};
use super::report::{Report, Samples, Target};

/// Calls under way at once.
const AT_ONCE: usize = 8;
/// The size of a value that no result takes.
const VALUE_BYTES: usize = 500_000_000;
/// How much memory may have grown by to count as flat.
const FLAT: f64 = 1.1;

pub fn measure(report: &mut Report, effort: Effort, home: &Home, server: &mut Server, sandbox: &str) {
    let select = json!({"databaseId": sandbox, "sql": "select 1", "readonly": true});
    let runtime = Runtime::new().unwrap();
    let floor = connect(&runtime, server, sandbox);
    one_at_a_time(report, effort, server, &select, &runtime, &floor);
    at_once(report, effort, server, &select, &runtime, &floor);
    large_result(report, effort, server, sandbox);
    memory(report, effort, home, sandbox, &select);
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
    let measure = "run_sql select 1, read-only, stdio, p50";
    report.time(measure, program.median(), by_hand, Target::UsMax(1e3));
    let by_hand_p99 = Some(("the same, p99", floor.percentile(99)));
    report.time("… p99", program.percentile(99), by_hand_p99, Target::None);
    report.time("run_sql select 1 as the owner, p50", write.median(), by_hand, Target::None);
    report.time("MCP ping, stdio, p50: the transport alone", ping.median(), None, Target::None);
    let known = ping.median() + report.notes.gate_us + floor.median();
    report.profile(
        measure,
        [
            ("the transport (a ping)", ping.median()),
            ("the gate", report.notes.gate_us),
            ("the statement by hand: three round trips", floor.median()),
            ("the rest: the sandbox found, its use counted, its session reset", program.median() - known),
        ],
    );
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
    let floor = ("one client by hand, one at a time", rate(&floors));
    report.rate("eight calls at once", rate(&rates), floor, Target::PerSecondMin(1500.0));
    report.profile(
        "eight calls at once",
        [
            ("one call's share of the two cores", 1e6 / rate(&rates)),
            ("of which the gate", report.notes.gate_us),
            ("a call by hand, one at a time", 1e6 / rate(&floors)),
        ],
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
        Target::Words("≤ 1.3 × floor", wire as f64 <= 1.3 * compact as f64),
    );
    report.time("… p50", took.median(), None, Target::None);
}

/// Runs in a process of its own, whose memory nothing else has touched.
fn memory(report: &mut Report, effort: Effort, home: &Home, sandbox: &str, select: &Value) {
    let calls = effort.samples(10_000);
    let mut server = Server::start(home);
    server.call("list_databases", &json!({}));
    let idle = server.rss_mib();
    let mut after = Vec::new();
    for number in 1..=calls {
        server.call("run_sql", select);
        if number == calls / 10 || number == calls / 2 || number == calls {
            after.push((number, server.rss_mib()));
        }
    }
    let first = after[0].1;
    let last = after[after.len() - 1].1;
    let refused = refused_value(&mut server, sandbox);
    let then = server.rss_mib();
    let peak = server.peak_mib();
    server.finish();
    let flat = last <= first * FLAT;
    report.figure(
        "resident memory, idle",
        format!("{idle:.1} MiB"),
        String::new(),
        Target::Words("≤ 64 MB", idle * 1.048_576 <= 64.0),
    );
    let after: Vec<_> = after.iter().map(|(number, mib)| format!("{mib:.1} after {number}")).collect();
    report.figure(
        format!("… over {calls} calls, MiB"),
        after.join(", "),
        String::new(),
        Target::Words("flat: the last within 10 % of the first", flat),
    );
    report.figure(
        format!("… after a value of 500 MB was refused ({refused})"),
        format!("{then:.1} MiB"),
        format!("{last:.1} MiB before, {peak:.1} at most"),
        Target::Words("flat: within 10 % of before", then <= last * FLAT),
    );
}

/// Asks for one value of 500 MB and returns how it was answered.
fn refused_value(server: &mut Server, sandbox: &str) -> String {
    let sql = format!("select repeat('x', {VALUE_BYTES}) as value");
    server.begin_call("run_sql", &json!({"databaseId": sandbox, "sql": sql, "readonly": true}));
    let (_, mut answer) = server.next_answer();
    let envelope = answer["result"]["structuredContent"].take();
    assert!(server.last_bytes < VALUE_BYTES / 100, "{} bytes came back", server.last_bytes);
    let cut_by = envelope["result"]["resultSets"][0]["truncatedBy"].as_str().map(|by| format!("cut by `{by}`"));
    let code = envelope["errors"][0]["code"].as_str().map(|code| format!("`{code}`"));
    cut_by.or(code).unwrap_or_else(|| panic!("a value of {VALUE_BYTES} bytes was not refused: {envelope:#}"))
}
