//! What a call does: what is charged for it, what it changes beside what it was asked for, and what a killed one leaves.

use std::fs;
use std::process::Stdio as Pipe;
use std::time::Duration;

use pgsandbox::model::Obligation;
use serde_json::{Value, json};

use crate::crash::{check_tracked, query};
use crate::hostile::{Session, code, wait};
use crate::obligations::{
    balances, charging, demanding, enforce, home_with_policy_file, policies_with, with, write_policies,
};
use crate::program::{Cli, Home, Stdio, Transport};

/// How long the server may take to notice something on a busy machine.
const NOTICED: Duration = Duration::from_secs(60);

/// A sandbox that is there, its connection closed.
fn made(home: &Home) -> String {
    write_policies(home, &[]);
    let Session { stdio, id } = Session::start(home);
    assert!(stdio.finish().success());
    id
}

/// The first number of a result.
fn number(reply: &Value) -> u64 {
    let cell = &reply["result"]["resultSets"][0]["rows"][0][0];
    let number = cell.as_u64().or_else(|| cell.as_str().and_then(|text| text.parse().ok()));
    number.unwrap_or_else(|| panic!("no number: {reply:#}"))
}

/// What is left in the bucket of one policy.
fn left(stdio: &mut Stdio, policy: &str, operation: &str, input: &Value) -> u64 {
    let balances = balances(stdio, operation, input);
    balances.iter().find(|(of, _)| of == policy).unwrap_or_else(|| panic!("{balances:?}")).1
}

#[test]
fn what_was_done_keeps_its_charge_whatever_it_failed_with() {
    let home = home_with_policy_file();
    let id = made(&home);
    let stdio = enforce(&home, &[charging("sql-cost", "run_sql", 100, 1)]);
    let mut it = Session { stdio, id };
    let input = json!({"databaseId": it.id, "sql": "select 1"});
    assert_eq!(code(&it.sql("create table t (x int)", json!({}))), "ok");
    let on = json!({"continueOnError": true});
    // What runs, and fails with a code that is also given before anything ran; what it cost; what was committed before.
    let insert = "insert into t values (1);";
    let cases: [(&str, &Value, &str, u64, Option<bool>); 10] = [
        ("begin; create extension dblink", &on, "extension_not_allowed", 1, Some(true)),
        ("begin; copy t from stdin", &on, "invalid_arguments", 1, Some(true)),
        ("copy t from stdin; select 1", &on, "ok", 1, None),
        ("select 1/0", &json!({}), "sql_failed", 1, Some(true)),
        ("copy t from stdin", &json!({}), "invalid_arguments", 0, None),
        ("create extension dblink", &json!({}), "extension_not_allowed", 0, None),
        ("select 1", &json!({"params": [1]}), "single_statement_required", 0, None),
        ("select 1", &json!({"stdin": "1"}), "single_statement_required", 0, None),
        ("select 1", &json!({"readonly": true}), "readonly_violation", 0, None),
        (";;", &json!({}), "ok", 1, None),
    ];
    let mut rows = 0;
    for (sql, more, expected, cost, committed) in cases {
        let before = left(&mut it.stdio, "sql-cost", "run_sql", &input);
        let reply = it.sql(&format!("{insert} {sql}"), more.clone());
        assert_eq!(code(&reply), expected, "{sql}: {reply:#}");
        let after = left(&mut it.stdio, "sql-cost", "run_sql", &input);
        assert_eq!(before - after, cost, "{sql} with {more} cost something else: {reply:#}");
        let said = reply["errors"].get(0).and_then(|error| error["earlierCommitted"].as_bool());
        assert_eq!(said, committed, "{sql}: {reply:#}");
        rows += cost;
    }
    assert_eq!(
        number(&it.sql("select count(*) from t", json!({}))),
        rows,
        "what was charged was done, and nothing else"
    );
}

#[test]
fn a_sandbox_that_was_begun_keeps_its_charge_and_one_that_was_refused_does_not() {
    let home = home_with_policy_file();
    let guest = charging("make-cost", "create_database", 100, 1);
    drop(enforce(&home, std::slice::from_ref(&guest)));
    // A requirement that is missing on the server is noticed in this step.
    let fault = [("PGSANDBOX_TEST_FAULTS", "plan.create.prepare-database.before=fail:58P01")];
    let mut stdio = Stdio::start_with(&home, &fault, Pipe::inherit());
    let balance = |stdio: &mut Stdio| left(stdio, "make-cost", "create_database", &json!({}));
    let refused = [
        (json!({"extensions": ["pageinspect"]}), "extension_not_allowed"),
        (json!({"ttlMinutes": 100_000}), "invalid_ttl"),
    ];
    for (input, expected) in refused {
        assert_eq!(code(&stdio.call("create_database", &input)), expected);
        assert_eq!(balance(&mut stdio), 100, "{input} was refused before anything was made");
    }
    let reply = stdio.call("create_database", &json!({}));
    assert_ne!(code(&reply), "ok", "{reply:#}");
    assert_eq!(balance(&mut stdio), 99, "roles and a database were made for it: {reply:#}");
    let input = json!({"idempotencyKey": "k"});
    assert_eq!(code(&stdio.call("create_database", &input)), "ok");
    let other = json!({"idempotencyKey": "k", "nameHint": "other"});
    assert_eq!(code(&stdio.call("create_database", &other)), "idempotency_conflict");
    assert_eq!(balance(&mut stdio), 98, "what was reserved for nobody costs nothing");
}

#[test]
fn a_read_gives_the_reader_its_rights_again_within_its_time_and_not_where_a_policy_demands_reading() {
    let home = home_with_policy_file();
    write_policies(&home, &[]);
    let mut it = Session::start(&home);
    let listed = it.stdio.call("list_databases", &json!({}));
    let reader = format!("{}_ro", listed["result"]["databases"][0]["databaseName"].as_str().unwrap());
    // More than one statement gives, names that have to be quoted, and every kind of place.
    let make = "do $$ begin for i in 1..1100 loop execute format('create table \"t %s\" ()', i); end loop; end $$;
                create table hid (x int); create schema apart; create sequence apart.s; create view apart.v as select 1 as x";
    assert_eq!(code(&it.sql(make, json!({}))), "ok");
    let revoke = format!(
        "revoke select on all tables in schema public, apart from {reader};
         revoke select on all sequences in schema apart from {reader}; revoke usage on schema apart from {reader}"
    );
    assert_eq!(code(&it.sql(&revoke, json!({}))), "ok");
    let count = format!(
        "select count(*) from pg_class c where relnamespace in ('public'::regnamespace, 'apart'::regnamespace)
         and relkind in ('r', 'v', 'S') and not has_table_privilege('{reader}', oid, 'select')"
    );
    let missing = |it: &mut Session| number(&it.sql(&count, json!({})));
    assert_eq!(missing(&mut it), 1103);
    let read = "select * from hid";
    let Session { stdio, id } = it;
    assert!(stdio.finish().success());

    // A call that only reads because a policy demands it writes nothing, rights included.
    let mut it = Session { stdio: with(&home, &demanding(&[Obligation::ReadOnly])), id: id.clone() };
    for more in [json!({}), json!({"readonly": true})] {
        assert_eq!(code(&it.sql(read, more)), "permission_denied");
    }
    assert!(it.stdio.finish().success());
    write_policies(&home, &[]);
    let mut it = Session { stdio: Stdio::start(&home), id };
    assert_eq!(missing(&mut it), 1103, "rights were given on behalf of a policy that demands reading");

    // Somebody keeps what would have to be changed: the call ends in its time all the same, and so does what it began.
    let mut other = Stdio::start(&home);
    let sql = format!("begin; grant select on hid to {reader}; select pg_sleep(290)");
    let arguments = json!({"databaseId": it.id, "sql": sql, "timeoutSeconds": 300});
    other.begin("tools/call", json!({"name": "run_sql", "arguments": arguments}));
    let sleeping = "from pg_stat_activity where wait_event = 'PgSleep'";
    let is = |sql: &str, expected: &str| query(&home, sql)[0][0] == expected;
    wait(NOTICED, || is(&format!("select count(*) {sleeping}"), "1"));
    let reply = it.sql(read, json!({"readonly": true, "timeoutSeconds": 8}));
    assert_eq!(code(&reply), "permission_denied", "{reply:#}");
    wait(NOTICED, || is("select count(*) from pg_stat_activity where wait_event_type = 'Lock'", "0"));
    query(&home, &format!("select pg_terminate_backend(pid) {sleeping}"));
    wait(NOTICED, || is(&format!("select count(*) {sleeping}"), "0"));

    let reply = it.sql(read, json!({"readonly": true, "timeoutSeconds": 120}));
    assert_eq!(code(&reply), "ok", "{reply:#}");
    assert!(reply["warnings"].to_string().contains("granted to it again"), "{reply:#}");
    assert_eq!(missing(&mut it), 0);
    assert_eq!(code(&it.sql("create table apart.later (x int)", json!({}))), "ok");
    let reply = it.sql("select * from apart.later, apart.v, apart.s", json!({"readonly": true}));
    assert_eq!((code(&reply), &reply["warnings"]), ("ok", &json!([])), "{reply:#}");
}

#[test]
fn a_statement_that_may_write_runs_to_its_end_wherever_its_effects_hide() {
    let home = Home::with_cluster();
    let mut it = Session::start(&home);
    let make = "create table log (g int);
        create function lg(g int, n int) returns int language sql volatile as 'insert into log values (g) returning g';
        create operator @@@ (leftarg = int, rightarg = int, function = lg);
        create view vlog as select lg(g, 1) from generate_series(1, 500) g;
        create table rows as select g from generate_series(1, 500) g;
        create table policed as table rows; alter table policed enable row level security, force row level security;
        create policy p on policed using (lg(g, 1) > 0)";
    assert_eq!(code(&it.sql(make, json!({}))), "ok");
    for sql in ["select * from vlog", "table vlog", "select g @@@ 1 from rows", "select g from policed"] {
        let reply = it.sql(sql, json!({"rowLimit": 5}));
        let set = &reply["result"]["resultSets"][0];
        let seen = (&set["returnedRowCount"], &set["truncated"], &set["totalRowCountKnown"]);
        assert_eq!(seen, (&json!(5), &json!(true), &json!(true)), "{sql}: {reply:#}");
        assert_eq!(number(&it.sql("select count(*) from log", json!({}))), 500, "{sql} was stopped half-way");
        assert_eq!(code(&it.sql("truncate log", json!({}))), "ok");
    }
    // What only reads stops at its limit: to its end this would take hours.
    let endless = "select a from pg_catalog.generate_series(1, 1000000) a, pg_catalog.generate_series(1, 1000000) b";
    let reply = it.sql(endless, json!({"readonly": true, "rowLimit": 5, "timeoutSeconds": 120}));
    assert_eq!((code(&reply), &reply["result"]["truncated"]), ("ok", &json!(true)), "{reply:#}");
    let reply = it.sql(endless, json!({"rowLimit": 5, "timeoutSeconds": 1}));
    assert_eq!(code(&reply), "statement_timeout");
    assert!(reply["errors"][0]["hint"].as_str().unwrap().contains("readonly"), "{reply:#}");
}

#[test]
fn what_a_killed_command_left_half_made_is_taken_back_by_the_next_command() {
    let home = Home::with_cluster();
    let mut cli = Cli::new(&home);
    let killed = |key: &str| {
        let input = json!({"idempotencyKey": key}).to_string();
        let mut command = home.command(&["tool", "create_database", "--format", "json", "--input", &input]);
        command.env("PGSANDBOX_TEST_FAULTS", "plan.create.prepare-database.before=crash");
        let output = command.stdin(Pipe::null()).output().unwrap();
        assert!(!output.status.success() && output.stdout.is_empty(), "it was not killed: {output:?}");
        let holds = "select count(*) from pg_locks where locktype = 'advisory' and classid = 1346851650";
        wait(NOTICED, || query(&home, holds)[0][0] == "0");
        let creating = query(&home, "select id from pgsandbox.sandboxes where state = 'creating'");
        assert_eq!(creating.len(), 1, "nothing was left half made");
        creating[0][0].clone()
    };
    killed("a");
    let told = cli.call("doctor", &json!({})).to_string();
    assert!(told.contains("waits to be removed, its making broke off"), "{told}");
    assert_eq!(cli.call("cleanup_expired", &json!({"dryRun": true}))["ok"], true);
    assert_eq!(cli.call("cleanup_expired", &json!({}))["ok"], true);
    assert!(check_tracked(&home).is_empty(), "a cleanup left it");
    let told = cli.call("doctor", &json!({})).to_string();
    assert!(told.contains("metadata and server agree"), "{told}");

    let id = killed("b");
    let reply = cli.call("delete_database", &json!({"databaseId": id, "wait": true}));
    assert_eq!((&reply["ok"], &reply["result"]["deleted"]), (&json!(true), &json!(true)), "{reply:#}");
    assert!(check_tracked(&home).is_empty(), "a deletion left it");

    killed("c");
    let reply = cli.call("create_database", &json!({"idempotencyKey": "c"}));
    assert_eq!(reply["ok"], true, "{reply:#}");
    assert_eq!(check_tracked(&home).len(), 1, "the first try and the second");

    // Whoever comes next, and whatever for: no server runs that would.
    killed("d");
    let next = home.command(&["tool", "list_databases"]).env("PGSANDBOX_OWNER", "another").output().unwrap();
    assert!(next.status.success(), "{next:?}");
    assert_eq!(check_tracked(&home).len(), 1, "another's command left what a killed one had half made");
    let told = cli.call("doctor", &json!({})).to_string();
    assert!(told.contains("metadata and server agree"), "{told}");
    let log = String::from_utf8(home.run(&["audit", "tail", "-n", "1000"]).stdout).unwrap();
    assert!(log.contains("system:recovery"), "recovery is audited like any request: {log}");

    // A server that nobody has called yet.
    killed("e");
    let idle = Stdio::start_with(&home, &[("PGSANDBOX_TEST_INTERVAL_MS", "200")], Pipe::null());
    let undone = "select id from pgsandbox.sandboxes where state in ('creating', 'deleting')";
    wait(NOTICED, || query(&home, undone).is_empty());
    assert_eq!(check_tracked(&home).len(), 1, "an idle server left what a killed command had half made");
    assert!(idle.finish().success());
    let verified = home.run(&["audit", "verify"]);
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stdout));
}

#[test]
fn a_group_owner_is_its_namers_own_and_nobody_learns_of_anothers() {
    let home = home_with_policy_file();
    let quota = policies_with("quota", "settings = { max_live_group = 2 }\n");
    fs::write(home.path().join("policies.toml"), quota).unwrap();
    let named = json!({"owner": "secret-project"});
    let of = |who: &str| Stdio::start_with(&home, &[("PGSANDBOX_OWNER", who)], Pipe::inherit());
    let (mut alice, mut bob) = (of("alice"), of("bob"));
    let fill = |one: &mut Stdio| {
        for _ in 0..2 {
            assert_eq!(code(&one.call("create_database", &named)), "ok");
        }
        let refused = one.call("create_database", &named);
        assert_eq!(code(&refused), "quota_exceeded", "{refused:#}");
    };
    fill(&mut alice);
    let told = bob.call("explain_policy", &json!({"operation": "create_database", "arguments": named}));
    assert_eq!(told["result"]["allowed"], true, "{told:#}");
    fill(&mut bob);
    let reply = bob.call("list_databases", &named);
    assert_eq!(reply["result"]["databases"].as_array().unwrap().len(), 2, "{reply:#}");
}
